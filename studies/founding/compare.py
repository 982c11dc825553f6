"""The founding experiments in virtual time: what was published, the same loop imitated, and the
same policies deciding at every event.

    python studies/founding/compare.py --queues DIR [--heatmap FILE] [--held SECONDS] [--out DIR]

docs/research/founding.md says what is compared, what is assumed, and what the figures show.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from vrm.config.schema import Settings, load
from vrm.model import Cluster, Heatmap, Job, Placement, bits
from vrm.model.measured.speedups import SpeedError, Speedups, load_name
from vrm.scheduling import Dispatcher
from vrm.ext.study.report.compare import COLOURS
from vrm.api import Machine, Measurements, Outcome, Rules, Submission, simulate
from vrm.results.names import unmatched_text
from vrm.simulation.inputs import QueueWorkload
from vrm.ext.measured.heatmap_files import read as read_heatmap_file

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parents[1] / "config" / "founding"
VALUES = ("waiting", "running", "turnaround")
ORDERINGS = {"FCFS": "FCFS", "WFP3": "(q / t)**3 * procs"}  # its WFP3 counts ranks, not nodes
PICTURES = ("comparison.png", "comparison.svg")
MACHINES = {"cslab": "2 x 4 cores (CSLab)", "aris": "2 x 10 cores (ARIS)"}


class StudyError(Exception):
    """What is given cannot be studied; the text names the place and the fix."""


@dataclass(frozen=True)
class CoRun:
    """Co-run times measured on ARIS (`path`), and what is taken of jobs that they do not cover.

    `fills`: measured speed-ups hold for jobs that fill a "socket" or more under compact (as all
    measured loads did), for those that fill a "node" or more, or for "any" job; others have
    speed 1. `alone`: on half of a node without neighbour a job has the speed that it has beside
    its "best" measured partner (running alone cannot be slower), or "one", that of compact.
    """

    path: Path
    fills: str = "socket"
    alone: str = "best"


@dataclass(frozen=True)
class Published:
    """A scenario of the thesis and its average seconds of waiting, running and turnaround."""

    queue: str
    machine: str
    nodes: int
    policy: str
    algorithm: str
    backfilling: str
    waiting: float
    running: float
    turnaround: float

    @property
    def name(self) -> str:
        """As in the thesis: `FCFS`, or `FCFS+BF` with backfilling."""
        return self.algorithm + ("+BF" if self.backfilling != "none" else "")


@dataclass(frozen=True)
class Averages:
    """Average seconds of waiting, running and turnaround of a simulated run."""

    waiting: float
    running: float
    turnaround: float


@dataclass(frozen=True)
class Comparison:
    """A scenario as published and as simulated.

    `imitated`: one head every 10 seconds, with the thesis's own rule of backfilling; `easy`: the
    same loop with EASY (no other than `imitated` without backfilling); `event`: everything that
    fits starts at every event, with EASY; `unlimited`: the same loop as `imitated` where nodes are
    never short, so that all its waiting is the loop's.
    """

    published: Published
    imitated: Averages
    easy: Averages
    event: Averages
    unlimited: Averages


class FoundingBackfilling(Dispatcher):
    """Backfilling as the thesis wrote it, with what it leaves out.

    If the head misses x nodes, each node that it cannot have is taken to be free when the *first*
    of its jobs should end, and the x-th smallest of these times is the window. Later jobs that fit
    now start if their estimate is within the window; none may run past it on nodes that the head
    leaves over. After a start the next job of the queue is passed over.
    """

    name = "founding"

    def fill(self, now: float, waiting: Sequence[Job], first: int, cluster: Cluster,
             policy: Any) -> Iterator[Tuple[Job, Placement]]:
        """Jobs of `waiting` after the head (at `first`) that may start now, with their places."""
        window = self._window(now, waiting[first], cluster, policy)
        later = iter(waiting[first + 1:])
        for job in later:
            placement = job.estimate <= window and policy.place(job, cluster)
            if placement:
                yield job, placement
                next(later, None)

    @staticmethod
    def _window(now: float, head: Job, cluster: Cluster, policy: Any) -> float:
        """Seconds until the head can run, by that rule."""
        most = 2 if policy.name == "strip" and not head.exclusive else 1
        ends: Dict[int, List[float]] = {}
        for booking in cluster.running():
            for node in bits.members(booking.placement.node_set):
                ends.setdefault(node, []).append(max(booking.expected_end - now, 0.0))
        taken = sorted(min(here) for here in ends.values() if len(here) >= most)
        missing = policy.nodes(head) - (len(cluster.nodes) - len(taken))
        return taken[missing - 1] if 0 < missing <= len(taken) else 0.0


def read_published(path: Path = HERE / "published.csv") -> List[Published]:
    """The published averages."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines()
             if not line.startswith("#")]
    return [Published(row["queue"], row["machine"], int(row["nodes"]), row["policy"],
                      row["algorithm"], row["backfilling"], float(row["waiting"]),
                      float(row["running"]), float(row["turnaround"]))
            for row in csv.DictReader(lines)]


def find_queues(directory: Path, published: Sequence[Published]) -> Dict[str, Path]:
    """The recorded queues that are there: files named as in published.csv, with any ending.

    Raises StudyError when there is none.
    """
    names = dict.fromkeys(one.queue for one in published)
    found = {path.stem: path for path in sorted(directory.glob("*")) if path.stem in names}
    if not found:
        raise StudyError(f"{directory}: none of the recorded queues is there; they are files named "
                         f"{', '.join(names)}, with any ending")
    return {name: found[name] for name in names if name in found}


# ----------------------------------------------------------------------------- the simulations


class Study:
    """The scenarios of one recorded queue. Raises StudyError when the queue cannot be used."""

    def __init__(self, path: Path, published: Sequence[Published], corun: Optional[CoRun] = None,
                 held: float = 0.0) -> None:
        self.scenarios = list(published)
        self.held = held
        self.settings: Settings = load(CONFIGS / f"{published[0].machine}.yaml")
        workload = QueueWorkload(path)
        self.submissions = list(workload)
        if not self.submissions or workload.dirt:
            raise StudyError(f"{path}: not a recorded queue, whose lines are program, ranks, "
                             "estimated seconds, exclusive (0 or 1) and seconds to the next line")
        self.estimate = fmean(one.job.estimate for one in self.submissions)
        self.socket = int(self.settings.cores)  # cores
        self.cores = int(self.settings.sockets) * self.socket  # of a node
        self.speedups = self._speedups(corun) if corun is not None else None
        self.matched = self.speedups is not None and any(self.speedups.pairs.values())
        self._unmatched: Dict[str, Dict[str, int]] = {}  # of the strip run with the most
        self.heatmap = self._heatmap()

    def _heatmap(self) -> Heatmap:
        assert self.settings.applications.heatmap is not None
        return read_heatmap_file(self.settings.applications.heatmap).heatmap

    def _speedups(self, corun: CoRun) -> Optional[Speedups]:
        """Measured speed-ups where they apply: on the machine that they were measured on; the
        mean over the sizes of an application."""
        if self.scenarios[0].machine != "aris":
            return None
        measured = read_heatmap_file(corun.path).speedups
        if measured is None or not measured.pairs:
            raise StudyError(f"{corun.path}: it has no measured speed-ups of pairs")
        sums: Dict[Tuple[str, str], List[float]] = {}
        for load_, row in measured.pairs.items():
            for partner, value in row.items():
                key = load_.split(".")[0].lower(), partner.split(".")[0].lower()
                sums.setdefault(key, []).append(value)
        least = {"node": self.cores, "socket": self.socket, "any": 1}[corun.fills]
        loads = {load_name(job.app, job.procs): job.kind.lower()
                 for job, *_ in self.submissions if job.procs >= least}
        pairs = {one: {other: fmean(sums[kind, beside])
                       for other, beside in loads.items() if (kind, beside) in sums}
                 for one, kind in loads.items()}
        alone = {one: max(fmean(values) for (own, _), values in sums.items() if own == kind)
                 for one, kind in loads.items() if any(own == kind for own, _ in sums)}
        return Speedups(pairs, alone if corun.alone == "best" else None)

    def run(self) -> List[Comparison]:
        """All scenarios."""
        return [self._compare(one) for one in self.scenarios]

    def _compare(self, one: Published) -> Comparison:
        own: Any = "none" if one.backfilling == "none" else FoundingBackfilling()
        enough = sum(-(-2 * job.procs // self.cores) for job, *_ in self.submissions)
        return Comparison(
            one, self._simulate(one, own), self._simulate(one, one.backfilling),
            self._simulate(one, one.backfilling, interval=0.0),
            self._simulate(one, own, nodes=enough))

    def _simulate(self, one: Published, backfill: Any, interval: Optional[float] = None,
                  nodes: Optional[int] = None) -> Averages:
        """A scenario; `interval` and `nodes` are the configuration's unless given."""
        rules = self.settings.scheduling
        every = rules.interval if interval is None else interval
        strip = one.policy == "strip"
        outcome: Outcome = simulate(
            self._jobs(one),
            Machine.of(nodes or one.nodes, int(self.settings.sockets), int(self.settings.cores)),
            Rules(algorithm=ORDERINGS[one.algorithm], backfill=backfill, policy=one.policy, interval=every,
                  starts_per_interval=rules.starts_per_interval if every else 0),
            measured=Measurements(self.heatmap, self.speedups) if strip else Measurements())
        found = outcome.summary
        if found["refused"]:
            raise StudyError(f"{one.queue}: {found['refused']} job(s) of the queue do not fit on "
                             f"{one.nodes} nodes under {one.policy}; is it the recorded one?")
        unmatched = found.get("unmatched_speeds", {})
        if _jobs_of(unmatched) > _jobs_of(self._unmatched):
            self._unmatched = unmatched
        return Averages(found["average_wait"], found["average_running"] - self.held,
                        found["average_turnaround"] - self.held)

    def notes(self) -> List[str]:
        """What ran at speed 1 since it was not measured, after `run`."""
        if self.speedups is None:
            return []
        lines = unmatched_text(self._unmatched)
        if not self.matched:
            lines.insert(0, "no program of the queue is in the co-run times; what strip gains here is room alone")
        return [f"{self.scenarios[0].queue} under strip: {text}" for text in lines]

    def _jobs(self, one: Published) -> List[Submission]:
        """The queue with its estimates, scaled to the published mean, as run times.

        Where speed-ups say how fast jobs run under strip, their work is that of compact.
        """
        policy = "compact" if self.speedups is not None else one.policy
        mean = next(other.running for other in self.scenarios
                    if (other.policy, other.name) == (policy, one.name))
        scale = mean / self.estimate
        return [submission._replace(run=submission.job.estimate * scale + self.held)
                for submission in self.submissions]


def _jobs_of(unmatched: Dict[str, Dict[str, int]]) -> int:
    """How many there are."""
    return sum(number for loads in unmatched.values() for number in loads.values())


def compare(queues: Path, corun: Optional[CoRun] = None,
            held: float = 0.0) -> Tuple[List[Comparison], List[str]]:
    """All scenarios of the recorded queues in a directory, and what was assumed.

    `corun`: co-run times of ARIS. `held`: seconds by which a job holds its nodes longer
    than it runs. Raises StudyError or SpeedError.
    """
    published = read_published()
    found: List[Comparison] = []
    measured, unmatched = False, list[str]()
    for name, path in find_queues(queues, published).items():
        study = Study(path, [one for one in published if one.queue == name], corun, held)
        measured = measured or study.matched
        found += study.run()
        unmatched += study.notes()
    return found, [*assumptions(measured, corun is not None, held), *unmatched]


def assumptions(measured: bool, given: bool, held: float) -> List[str]:
    """What the simulations take for granted; `measured`: speed-ups were `given`, and used."""
    notes = [
        "run times are the estimates of the recorded queue, scaled so that their mean is the "
        "published mean running time of the scenario; the single ones were not published",
        "nodes are held for the run time" + (f" and {held:g} s more" if held else
                                             ": starting and ending a job costs nothing"),
        "the first job comes at the first tick; waiting counts from a job's line to its start",
        "strip orders nodes by the published heatmap and lets any two jobs share one",
    ]
    if measured:
        return notes + [
            "ARIS under strip: the work of a job is its run time under compact; its speed with "
            "another is the mean measured speed-up of the two applications over all measured "
            "sizes, if both jobs fill a socket or more under compact, else 1; alone on half a "
            "node its speed is that with its best measured partner",
            "CSLab under strip: the co-run times of ARIS do not apply; every job is as much "
            "faster as the published mean says"]
    if given:
        return notes + ["ARIS under strip: every job has speed 1, alone and with others: the co-run times have none of "
                        "its programs; CSLab under strip: every job is as much faster as the published mean says"]
    return notes + ["strip: no co-run times given (--heatmap); every job is as much faster as the "
                    "published mean says"]


# ------------------------------------------------------------------------------------- results


HEADS = ("scenario", "waiting: published", "imitated", "event-driven", "ratio", "loop alone",
         "turnaround: published", "imitated", "event-driven", "running: published", "imitated")
LEGEND = ("average seconds; imitated: the loop of the thesis's manager, which every 10 s starts "
          "the head of the queue or, if it does not fit, backfills by its own rule; event-driven: "
          "the same policies (with EASY), at every event; both in virtual time; ratio: of imitated "
          "to event-driven waiting; loop alone: the imitated waiting where nodes are never short")
MOST = 100.0  # of a ratio: above it, next to nobody waits


def ratio(one: Comparison) -> float:
    """How many times longer jobs wait with the imitated loop than event-driven."""
    return one.imitated.waiting / one.event.waiting if one.event.waiting else float("inf")


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value <= MOST else f"> {MOST:.0f}"


def ranges(found: Sequence[Comparison]) -> List[str]:
    """The ratios of waiting, imitated to event-driven, from the least to the largest."""
    lines = []
    for policy in ("compact", "strip"):
        parts = []
        for queue, group in by_queue(found).items():
            own = [ratio(one) for one in group if one.published.policy == policy]
            if own:
                parts.append(f"{queue} {_ratio(min(own))} to {_ratio(max(own))}")
        whole = [ratio(one) for one in found if one.published.policy == policy]
        if whole:
            lines.append(f"{policy}: waiting with the imitated loop is {_ratio(min(whole))} to "
                         f"{_ratio(max(whole))} times that of event-driven, both in virtual time "
                         f"({'; '.join(parts)})")
    less = sum(one.event.waiting < one.imitated.waiting for one in found)
    return [*lines, f"event-driven waiting is less than imitated in {less} of {len(found)} "
                    "scenarios"]


def _cells(one: Comparison) -> List[str]:
    known, own, event = one.published, one.imitated, one.event
    return [f"{known.policy} {known.name}", f"{known.waiting:.0f}", f"{own.waiting:.0f}",
            f"{event.waiting:.{0 if event.waiting >= 1 else 1}f}", _ratio(ratio(one)),
            f"{one.unlimited.waiting:.0f}", f"{known.turnaround:.0f}", f"{own.turnaround:.0f}",
            f"{event.turnaround:.0f}", f"{known.running:.0f}", f"{own.running:.0f}"]


def by_queue(found: Sequence[Comparison]) -> Dict[str, List[Comparison]]:
    """The scenarios of each queue."""
    groups: Dict[str, List[Comparison]] = {}
    for one in found:
        groups.setdefault(one.published.queue, []).append(one)
    return groups


def title(queue: str, found: Sequence[Comparison]) -> str:
    """A queue and its machine, for people."""
    one = found[0].published
    return f"{queue}, {one.nodes} nodes of {MACHINES[one.machine]}"


def text_table(found: Sequence[Comparison], notes: Sequence[str]) -> str:
    """The comparison as text, a table for each queue, with the assumptions below."""
    from prettytable import PrettyTable

    parts = []
    for queue, group in by_queue(found).items():
        out = PrettyTable()
        # A table wants different names: blanks at their ends make them so.
        out.field_names = [head + " " * HEADS[:at].count(head) for at, head in enumerate(HEADS)]
        out.align = "r"
        out.align["scenario"] = "l"
        out.add_rows([_cells(one) for one in group])
        parts.append(f"{title(queue, group)}\n{out.get_string()}")
    return "\n\n".join(parts) + f"\n{LEGEND}\n" + "".join(
        f"- {note}\n" for note in [*ranges(found), *notes])


def markdown(found: Sequence[Comparison], notes: Sequence[str]) -> str:
    """The comparison in Markdown."""
    lines = []
    for queue, group in by_queue(found).items():
        lines += [f"**{title(queue, group)}**", "",
                  f"| {' | '.join(HEADS)} |", "|---|" + "---:|" * (len(HEADS) - 1)]
        lines += [f"| {' | '.join(_cells(one))} |" for one in group] + [""]
    return "\n".join([*lines, LEGEND + ".", ""]
                     + [f"- {note}" for note in [*ranges(found), *notes]]) + "\n"


def csv_text(found: Sequence[Comparison]) -> str:
    """The comparison as CSV, every average to a hundredth of a second."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    kinds = ("published", "imitated", "easy", "event", "unlimited")
    writer.writerow(["queue", "machine", "nodes", "policy", "algorithm", "backfilling",
                     *(f"{kind}_{value}" for kind in kinds for value in VALUES)])
    for one in found:
        known = one.published
        writer.writerow([known.queue, known.machine, known.nodes, known.policy, known.algorithm,
                         known.backfilling, *(f"{getattr(getattr(one, kind), value):.2f}"
                                              for kind in kinds for value in VALUES)])
    return out.getvalue()


KINDS = (("published", "o", "none"), ("simulated with the loop: one start every 10 s", "s", COLOURS[1]),
         ("simulated as vrm starts jobs: at every event", "D", COLOURS[2]))
ABREAST = 2
FINDING = "From square to diamond: waiting that the 10-second loop caused, not full nodes. On class c that is nearly all of it"


def draw(found: Sequence[Comparison], path: Path) -> None:
    """The average waiting times as points, a panel for each queue, into a PNG or SVG file."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = by_queue(found)
    plain = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left",
             "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "vrm"}
    abreast = min(ABREAST, len(groups))
    rows = -(-len(groups) // abreast)
    with pyplot.rc_context(plain):
        shape, panels = pyplot.subplots(rows, abreast, figsize=(4.6 * abreast, 1.4 + 2.2 * rows),
                                        layout="constrained", squeeze=False)
        places = panels.flatten()
        for axes, (queue, group) in zip(places, groups.items()):
            _panel(axes, title(queue, group), group)
        for axes in places[len(groups):]:
            axes.set_axis_off()
        shape.suptitle(textwrap.fill(FINDING, 46 * abreast), fontsize=11, x=0.01, ha="left")
        handles, labels = places[0].get_legend_handles_labels()
        shape.legend(handles, labels, loc="outside lower left", ncol=2, frameon=False, title="mean waiting time [s]", alignment="left")
        kept = {"Date": None} if path.suffix == ".svg" else {}
        shape.savefig(path, dpi=150, metadata=kept)
        pyplot.close(shape)


def _panel(axes: Any, name: str, group: Sequence[Comparison]) -> None:
    lines = range(len(group))
    for (kind, marker, colour), values in zip(KINDS, (
            [one.published.waiting for one in group], [one.imitated.waiting for one in group],
            [one.event.waiting for one in group])):
        axes.plot(values, lines, linestyle="none", marker=marker, markersize=6, label=kind,
                  markerfacecolor=colour, markeredgecolor="black" if colour == "none" else colour,
                  zorder=3 if colour == "none" else 2.5)
    axes.plot([one.unlimited.waiting for one in group], lines, linestyle="none", marker="|",
              markersize=13, color="0.45", label="the loop alone: simulated with unlimited nodes", zorder=2)
    axes.set_yticks(lines, [f"{one.published.policy} {one.published.name.replace('+BF', ' + EASY')}" for one in group])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="both", color="0.9", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.06, y=0.08)
    axes.set_xlim(left=-0.02 * axes.get_xlim()[1])  # a marker at 0 is whole
    axes.set_title(name)


# ------------------------------------------------------------------------------------- command


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Compare, print and write; 0 done, 2 could not."""
    parser = argparse.ArgumentParser(
        description="Compare the published averages of the founding experiments with the same "
                    "queues simulated: with the loop of that time, and at every event.")
    parser.add_argument("--queues", metavar="DIR", type=Path, required=True,
                        help="the recorded queues: class-b-a.rewind and so on, as in published.csv")
    parser.add_argument("--heatmap", metavar="FILE", type=Path,
                        help="measured co-run times of ARIS, for classes C and D under strip")
    parser.add_argument("--held", metavar="SECONDS", type=float, default=0.0,
                        help="how much longer than it runs a job holds its nodes (default: 0)")
    parser.add_argument("--out", metavar="DIR", type=Path,
                        help="write comparison.txt, .md, .csv, .png and .svg there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    try:
        corun = CoRun(chosen.heatmap) if chosen.heatmap is not None else None
        found, notes = compare(chosen.queues, corun, chosen.held)
        text = text_table(found, notes)
        if chosen.out is not None:
            chosen.out.mkdir(parents=True, exist_ok=True)
            for name, content in (("comparison.txt", text), ("comparison.csv", csv_text(found)),
                                  ("comparison.md", markdown(found, notes))):
                (chosen.out / name).write_text(content, encoding="utf-8")
            for name in PICTURES:
                draw(found, chosen.out / name)
    except (StudyError, SpeedError, OSError) as error:
        print(f"founding: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"scenarios": [asdict(one) for one in found], "ranges": ranges(found),
                      "assumptions": notes}, indent=2)
          if chosen.json else text, end="" if not chosen.json else "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
