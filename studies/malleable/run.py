"""What SD-policy gains over EASY, simulated: limits, models of speed, shares of malleable jobs.

    python studies/malleable/run.py --out DIR [--trace FILE@NODES[:FIRST:JOBS] ...] [--partition N]
                                    [--processors P] [--jobs 5000] [--load 1.4] [--nodes 5040] [--seeds 1]
                                    [--only WORD] [--quick] [--show]

The first workload is drawn: the model of Lublin and Feitelson with its published parameters for a machine of
80,640 processors, which are 5,040 nodes of 2 sockets with 8 cores (--nodes: another number of them); estimates
are 1 to 5 times the run times (uniform), `load` divides the times between arrivals. With --seeds N it is drawn
N times, and a table has the mean changes with their 95 % intervals. Further workloads are traces in the
Standard Workload Format, for a machine of so many nodes: FILE@100, FILE@5040:1:198509 (from which job on, how
many). A job has as large a part of the machine as in its trace; --processors says how many processors that machine
has where the trace has no header. With --partition, only the jobs of that partition count.

All jobs are hybrid, with a rank on each socket of whole nodes. EASY and SD-policy run the same jobs. Slowdowns
are by the run time on all cores; a run below one second counts as one. Each run leaves a file, and those that
are there are not run again: a study that was interrupted goes on. In the end, and with --show at once, tables.md
and pictures are written. --quick: 400 drawn jobs on 64 nodes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

from vrm.model.booking import Booking, Watcher
from vrm.ext.lending.simulated.sharing import slowdowns
from vrm.ext.study.confidence import interval
from vrm.api import Machine, Recording, Rules, simulate
from vrm.simulation.inputs import ERRORS, open_workload, processors_of
from vrm.ext.generate.lublin import Lublin
from vrm.workload.submission import Submission

NODES, CORES = 5040, 16
DAY = 86400.0
SIZES = (1, 4, 16, 64, 256, 1024, math.inf)
RUNS = (300.0, 3600.0, 4 * 3600.0, 12 * 3600.0, DAY, math.inf)
RUN_NAMES = ("5 min", "1 h", "4 h", "12 h", "1 day", "longer")
LIMITS = ("5", "10", "50", "inf", "dynamic")
SHARES = (0.2, 0.4, 0.6, 0.8)
VARIANTS = {"gain": "when=gain", "always": "when=always", "width 0.75": "share=0.75", "mates 4": "mates=4"}


Draws = Sequence[Dict[str, Dict[str, Any]]]
"""The runs of a workload, or of several draws of one, by name."""


class Jobs(List[Submission]):
    """Jobs of a machine with so many processors."""

    processors = 0


class Case(NamedTuple):
    """A workload on a machine of so many nodes."""

    name: str
    jobs: Jobs
    nodes: int
    said: str


def drawn(number: int, load: float, nodes: int, seed: int = 1) -> Case:
    """The workload of the model."""
    found = Jobs(Lublin(nodes * CORES, load=load).jobs(number, seed))
    found.processors = nodes * CORES
    return Case(f"lublin-{nodes}-{number}-{load:g}" + f"-seed{seed}" * (seed > 1), found, nodes,
                f"Lublin, {number} jobs, load {load:g}, seed {seed}")


def of_trace(text: str, partition: int, processors: int = 0) -> Case:
    """A trace, as the option says it, of a machine with so many processors; 0: its header says that. Raises
    WorkloadError where it does not."""
    path, _, what = text.rpartition("@")
    nodes, first, number = (*map(int, what.split(":")), 1, 0)[:3] if what.count(":") != 1 else (
        *map(int, what.split(":")), 0)
    source = open_workload(path)
    if not processors:
        processors = nodes * CORES if partition else processors_of(source, "give --processors P, those of that machine")
    wanted = _of_partition(path, partition) if partition else None
    jobs = sorted((each for each in source if wanted is None or each.job.id in wanted),
                  key=lambda each: (each.job.submit, each.job.id))
    found = Jobs(jobs[first - 1:first - 1 + number if number else None])
    found.processors = processors
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(path).name.partition(".")[0])
    return Case(f"{name}-{nodes}-{first}-{len(found)}", found, nodes,
                f"{Path(path).name.partition('.')[0]}, {len(found):,} jobs" + (f" from number {first} on" if first > 1 else ""))


def _of_partition(path: str, partition: int) -> Dict[int, None]:
    """The jobs of a partition of a trace (field 16)."""
    import gzip
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="latin-1") as file:
        rows = (line.split() for line in file if line[:1] not in (";", "\n", ""))
        return {int(row[0]): None for row in rows if len(row) > 15 and row[15] == str(partition)}


def runs_of(quick: bool, first: bool) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The runs of a case: their names, and how they schedule; `first`: one of them twice."""
    yield "easy", {"backfill": "easy", "malleable": 1.0}
    for limit in LIMITS:
        yield f"sd {limit}", {"backfill": f"sd max_slowdown={limit}", "malleable": 1.0}
    yield "sd 10 worst", {"backfill": "sd", "malleable": 1.0, "shared_speed": "worst"}
    for name, more in VARIANTS.items():
        yield f"sd 10 {name}", {"backfill": f"sd {more}", "malleable": 1.0}
    for share in SHARES[:1] if quick else SHARES:
        yield f"sd 10 malleable {share:g}", {"backfill": "sd", "malleable": share}
    if first:
        yield "sd 10 again", {"backfill": "sd", "malleable": 1.0}


class Borrowers(Watcher):
    """Watches a run: who starts on borrowed cores."""

    def __init__(self) -> None:
        self.ids: Set[int] = set()

    def booked(self, booking: Booking) -> None:
        """A job starts."""
        if booking.placement.lease is not None:
            self.ids.add(booking.job.id)


def run(case: Case, how: Dict[str, Any]) -> Dict[str, Any]:
    """The numbers of one run, and those of its jobs: submission (s), nodes, run and response (s), and
    whether they borrowed."""
    borrowers, begun = Borrowers(), time.process_time()
    outcome = simulate(case.jobs, Machine.of(case.nodes, 2, CORES // 2), Rules(policy="compact", **how),
                       record=Recording(watchers=[borrowers] if how["backfill"].startswith("sd") else ()))
    seconds = time.process_time() - begun
    runs = {each.job.id: each.run for each in case.jobs}
    rows = sorted(outcome.jobs)
    means = slowdowns(rows, runs)
    return {"jobs": len(rows), "response": means.response, "slowdown": means.slowdown,
            "bounded": means.bounded, "makespan": max(row.end for row in rows) - min(row.start for row in rows),
            "borrowers": outcome.summary.get("borrowers", 0), "lenders": outcome.summary.get("lenders", 0),
            "seconds": seconds, "hash": outcome.summary["start_hash"],
            "rows": [[row.submit, -(-row.processors // CORES), runs[row.id], row.end - row.submit,
                      int(row.id in borrowers.ids)] for row in rows]}


# ---------------------------------------------------------------------------------------- tables


def change(before: float, after: float) -> str:
    """By how many percent it is another."""
    return f"{100 * (after / before - 1):+.1f} %" if before else ""


def table(found: Dict[str, Dict[str, Any]]) -> List[str]:
    """The runs of a case against EASY."""
    base = found["easy"]
    lines = ["| run | mean slowdown | | mean response, s | | bounded slowdown | | makespan, s | | borrowed | lent |",
             "|" + "---|" * 11]
    for name, each in found.items():
        if name != "sd 10 again":
            cells = [name]
            for key, form in (("slowdown", ".2f"), ("response", ",.0f"), ("bounded", ".2f"), ("makespan", ",.0f")):
                cells += [format(each[key], form), "" if each is base else change(base[key], each[key])]
            lines.append("| " + " | ".join([*cells, str(each["borrowers"]), str(each["lenders"])]) + " |")
    return lines


def place(value: float, limits: Sequence[float]) -> int:
    """Which band a value is in."""
    return next(at for at, limit in enumerate(limits) if value <= limit)


def pairs_of(draws: Draws) -> Iterator[Tuple[Sequence[float], Sequence[float]]]:
    """Each job under EASY and under sd 10."""
    for found in draws:
        yield from zip(found["easy"]["rows"], found["sd 10"]["rows"])


def gains(draws: Draws) -> List[List[Tuple[int, float]]]:
    """By size and run time: how many jobs, and the mean slowdown under EASY over that under SD-policy."""
    sums = [[[0, 0.0, 0.0] for _ in RUNS] for _ in SIZES]
    for one, other in pairs_of(draws):
        cell = sums[place(one[1], SIZES)][place(one[2], RUNS)]
        cell[0] += 1
        for at, row in ((1, one), (2, other)):
            cell[at] += row[3] / max(1.0, row[2])
    return [[(int(number), first / second if number else 0.0) for number, first, second in line]
            for line in sums]


def over_time(found: Dict[str, Any]) -> Tuple[str, Dict[int, float]]:
    """The mean slowdown of the jobs that came on each day, or in each week of a long log."""
    rows = found["rows"]
    name, length = ("week", 7 * DAY) if max(row[0] for row in rows) > 60 * DAY else ("day", DAY)
    sums: Dict[int, List[float]] = {}
    for submit, _, ran, response, _ in rows:
        sums.setdefault(int(submit // length), []).append(response / max(1.0, ran))
    return name, {at: math.fsum(each) / len(each) for at, each in sorted(sums.items())}


def heat(grid: List[List[Tuple[int, float]]]) -> List[str]:
    """The table of gains."""
    lines = ["| nodes | " + " | ".join(f"to {name}" if name != "longer" else name for name in RUN_NAMES) + " |",
             "|" + "---|" * (len(RUNS) + 1)]
    low = 1
    for limit, line in zip(SIZES, grid):
        name = f"over {SIZES[-2]:g}" if limit == math.inf else f"{low:g}-{limit:g}" if limit > low else f"{low:g}"
        if any(number for number, _ in line):
            lines.append(f"| {name} | " + " | ".join(f"{ratio:.2f} ({number})" if number else ""
                                                     for number, ratio in line) + " |")
        low = int(limit) + 1 if limit < math.inf else 0
    return lines


def by_size(draws: Draws) -> List[str]:
    """Whose response changes: by size, the share of all response, of jobs that borrow, and the change."""
    lines = ["| nodes | jobs | share of all response | mean response, s | | borrowed |", "|" + "---|" * 6]
    total, low = sum(one[3] for one, _ in pairs_of(draws)), 1
    for limit in SIZES:
        pairs = [(one[3], other[3], other[4]) for one, other in pairs_of(draws) if low <= one[1] <= limit]
        if pairs:
            first, second = (sum(pair[at] for pair in pairs) for at in (0, 1))
            name = f"over {low - 1:g}" if limit == math.inf else f"{low:g}-{limit:g}" if limit > low else f"{low:g}"
            lines.append(f"| {name} | {len(pairs)} | {100 * first / total:.0f} % | {first / len(pairs):,.0f} | "
                         f"{change(first, second)} | {100 * sum(pair[2] for pair in pairs) / len(pairs):.0f} % |")
        low = int(limit) + 1 if limit < math.inf else 0
    return lines


def over_draws(draws: Draws, name: str, key: str) -> Tuple[float, float]:
    """The mean change of a run against EASY in percent, and half of its 95 % interval (Student's t)."""
    found = [100 * (each[name][key] / each["easy"][key] - 1) for each in draws]
    if len(found) == 1:
        return found[0], 0.0
    mean = interval(found)
    return mean.mean, mean.half or 0.0


def table_of_draws(draws: Draws) -> List[str]:
    """The mean changes against EASY over several draws, with 95 % intervals."""
    keys = ("slowdown", "response", "bounded", "makespan")
    easy = draws[0]["easy"]
    lines = ["| run | mean slowdown | mean response | bounded slowdown | makespan | borrowed | lent |",
             "|" + "---|" * 7,
             "| easy, mean of the draws | " + " | ".join(
                 format(math.fsum(each["easy"][key] for each in draws) / len(draws), form)
                 for key, form in zip(keys, (".2f", ",.0f", ".2f", ",.0f"))) + " | | |"]
    for name in draws[0]:
        if draws[0][name] is not easy and all(name in each for each in draws):
            cells = ["{:+.1f} ± {:.1f} %".format(*over_draws(draws, name, key)) for key in keys]
            jobs = sum(each[name]["jobs"] for each in draws)
            cells += [f"{100 * sum(each[name][key] for each in draws) / jobs:.0f} %"
                      for key in ("borrowers", "lenders")]
            lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def picture(path: Path, case: str, draws: Draws) -> None:
    """Gains by size and run time, the days, and the share of malleable jobs."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.4), width_ratios=(1.35, 1, 1), layout="constrained")
    grid = gains(draws)
    while not any(number for number, _ in grid[-1]):
        grid.pop()
    axes[0].imshow([[math.log2(ratio) if number else math.nan for number, ratio in line] for line in grid],
                   cmap="PuOr", vmin=-2, vmax=2, aspect="auto", origin="lower")
    for row, line in enumerate(grid):
        for column, (number, ratio) in enumerate(line):
            if number:
                axes[0].text(column, row, f"{ratio:.2f}", ha="center", va="center", fontsize=9,
                             style="italic" if number < 30 else "normal",
                             color="white" if abs(math.log2(ratio)) > 1.5 else "black")
    axes[0].set_xticks(range(len(RUNS)), [f"to {name}" if name != "longer" else name for name in RUN_NAMES], fontsize=8)
    lows = [1, *(int(size) + 1 for size in SIZES[:-1])]
    names = [f"{low}" if low == size else f"{low}-{size:g}" if size < math.inf else f"over {low - 1}"
             for low, size in zip(lows, SIZES)]
    axes[0].set_yticks(range(len(grid)), names[:len(grid)], fontsize=8)
    axes[0].set_title("mean slowdown under EASY divided by that under SD\n(above 1: SD is better; italics: fewer than 30 jobs)",
                      fontsize=10, loc="left")
    axes[0].set(xlabel="run time of the job", ylabel="nodes of the job")
    for name, label, colour in (("easy", "EASY", "#777777"), ("sd 10", "SD", "#0072B2")):
        period, series = over_time(draws[0][name])
        axes[1].plot(list(series), list(series.values()), label=label, color=colour, linewidth=1)
    axes[1].set_title(f"mean slowdown by {period} of submission" + "\n(the first draw)" * (len(draws) > 1), fontsize=10,
                      loc="left")
    axes[1].set(xlabel=f"{period} of the workload", ylabel="mean slowdown (logarithmic)", yscale="log")
    low, high = axes[1].get_ylim()
    axes[1].yaxis.set_major_locator(FixedLocator([each for each in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000,
                                                                    5000) if low <= each <= high]))
    axes[1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[1].yaxis.set_minor_locator(NullLocator())
    axes[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[1].legend(frameon=False)
    shares = sorted((float(name.split()[-1]), name) for name in draws[0] if "malleable" in name)
    shares.append((1.0, "sd 10"))
    for key, colour, mark in (("slowdown", "#0072B2", "o"), ("response", "#D55E00", "s")):
        found = [over_draws(draws, name, key) for _, name in shares]
        axes[2].errorbar([0, *(100 * share for share, _ in shares)], [0, *(mean for mean, _ in found)],
                         [0, *(half for _, half in found)] if len(draws) > 1 else None, marker=mark, color=colour,
                         label=f"mean {key}", capsize=3)
    axes[2].axhline(0, color="#777777", linewidth=0.8)
    axes[2].set_title("change under SD against EASY" + "\n(95 % intervals over the draws)" * (len(draws) > 1), fontsize=10,
                      loc="left")
    axes[2].set(xlabel="share of malleable jobs [%]", ylabel="change [%]: below 0 SD is better")
    axes[2].legend(frameon=False)
    for axis in axes[1:]:
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(case, fontsize=11, x=0.01, ha="left")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def show(out: Path) -> None:
    """Write tables and pictures of what is there."""
    text: List[str] = []
    cases: Dict[str, List[Dict[str, Dict[str, Any]]]] = {}
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        found = {path.stem: json.loads(path.read_text()) for path in sorted(
            folder.glob("*.json"), key=lambda each: each.stat().st_mtime_ns)}
        if "easy" in found:
            cases.setdefault(re.sub(r"-seed\d+$", "", folder.name), []).append(found)
    for name, draws in cases.items():
        first = draws[0]
        said = f"{first['easy']['said']}, {first['easy']['nodes']} nodes"
        if len(draws) > 1:
            said = f"{said.replace(', seed 1', '')}, {len(draws)} draws"
        text += [f"## {said}", "", *(table(first) if len(draws) == 1 else table_of_draws(draws)), ""]
        if all("sd 10" in each for each in draws):
            text += ["Mean slowdown under EASY over that under sd 10, by size and run time (number of jobs):", "",
                     *heat(gains(draws)), "",
                     "Response under sd 10 against EASY by size, and which part of the jobs borrowed:", "",
                     *by_size(draws), ""]
            picture(out / f"{name}.png", said, draws)
        if "sd 10 again" in first:
            same = first["sd 10 again"]["rows"] == first["sd 10"]["rows"]
            text += [f"The repeated run has {'the same' if same else 'OTHER'} starts and ends.", ""]
    (out / "tables.md").write_text("\n".join(text))
    print("\n".join(text))


def main() -> None:
    """Run what is not there yet, and show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trace", action="append", default=[])
    parser.add_argument("--partition", type=int, default=0)
    parser.add_argument("--processors", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--load", type=float, default=1.4)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.show:
        try:
            cases = [of_trace(text, args.partition, args.processors) for text in args.trace]
        except (OSError, *ERRORS) as error:
            parser.error(str(error))
        if args.jobs:
            number, nodes = (400, 64) if args.quick else (args.jobs, args.nodes)
            cases[:0] = [drawn(number, args.load, nodes, seed) for seed in range(1, args.seeds + 1)]
        for case in cases:
            folder = args.out / case.name
            folder.mkdir(exist_ok=True)
            for name, how in runs_of(args.quick, "-seed" not in case.name):
                path = folder / f"{name}.json"
                if args.only in f"{case.name}/{name}" and not path.exists():
                    found = {"said": case.said, "nodes": case.nodes, **run(case, how)}
                    half = path.with_suffix(".part")
                    half.write_text(json.dumps(found))
                    half.rename(path)
                    print(f"{case.name}: {name}: slowdown {found['slowdown']:.2f}, response "
                          f"{found['response']:.0f} s, {found['seconds']:.1f} s of CPU", flush=True)
    show(args.out)


if __name__ == "__main__":
    main()
