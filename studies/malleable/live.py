"""Real jobs that lend cores, against waiting in turn and against running side by side on the same cores.

    python studies/malleable/live.py --bin DIR --out DIR [--cluster N] [--repeat N] [--only NAME] [--for SECONDS]

`--bin`: the programs of `vrm npb build --apps ep-omp,insitu-omp --classes S,A,B,C --out DIR`. The experiments, whose
sizes and times are fixed in EXPERIMENTS below and printed before anything is measured:

| experiment | first job | second job, and when it comes |
|---|---|---|
| changes | a job that lends cores to nobody and takes them back, 20 times | - |
| insitu | a simulation on all cores, which writes its field after a quarter | its analysis, when the field is there |
| urgent | a job on all cores | a quarter of its work, on all cores, 3 s later |
| short | a longer job on all cores | a sixteenth of its work, on all cores, 3 s later |
| equal | a job on all cores | the same once more, 3 s later |

All but the first in three ways: `serial` (the second waits), `together` (a second manager starts it on the same cores),
`lend` (`vrm lend`: the first keeps half of its cores while the second runs on the others). The ways alternate, so
that other load of the machine meets all of them. live.csv has each run; a run that is there is not made again, so
the study can be made in pieces (`--for`: no run begins after so many seconds; `--quiet`: a run that others
disturbed does not count). live.md has means with 95 %
intervals next to what exact arithmetic allows, where each job is as fast as its share of the cores. `--cluster N`:
on N nodes of tests/support/testbed.py (as root), which share this machine's cores. `--quick`: small classes, one run of each.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from bench import Bench, Failure, LiveRun, Table, put_into

from vrm.ext.lending.nodes import lending
from vrm.ext.study.report.compare import COLOURS
from vrm.ext.study.confidence import ConfidenceInterval, interval

WAYS = ("serial", "together", "lend")
CHANGES = 20
"""Lends, and returns, in a run of `changes`."""


@dataclass(frozen=True)
class Experiment:
    """Two jobs: programs and arguments, in which `F` is a file of the run. The second comes `come` seconds after
    the first began, or when F has `bytes` bytes."""

    first: str
    first_args: str = ""
    second: str = ""
    second_args: str = ""
    come: float = 0.0
    bytes: int = 0


EXPERIMENTS: Dict[str, Experiment] = {
    "changes": Experiment("ep-omp.B.x"),
    "insitu": Experiment("insitu-omp.B.x", "write F", "insitu-omp.B.x", "analyse F", bytes=8 * 2048 ** 2),
    "urgent": Experiment("ep-omp.B.x", second="ep-omp.A.x", come=3.0),
    "short": Experiment("ep-omp.C.x", second="ep-omp.A.x", come=3.0),
    "equal": Experiment("ep-omp.B.x", second="ep-omp.B.x", come=3.0)}
QUICK: Dict[str, Experiment] = {
    "changes": Experiment("ep-omp.A.x"),
    "insitu": Experiment("insitu-omp.A.x", "write F", "insitu-omp.A.x", "analyse F", bytes=8 * 1024 ** 2),
    "urgent": Experiment("ep-omp.A.x", second="ep-omp.S.x", come=0.5),
    "short": Experiment("ep-omp.A.x", second="ep-omp.S.x", come=0.1),
    "equal": Experiment("ep-omp.S.x", second="ep-omp.S.x", come=0.1)}

GOALS: Tuple[Tuple[str, str, float], ...] = (
    ("insitu", "second job", -90.0), ("insitu", "first job", 4.2), ("insitu", "mean response", -37.0),
    ("urgent", "mean response", -10.0), ("urgent", "total", -2.5), ("short", "mean response", -10.0))
"""An experiment, a column of its table, and percent: `lend` against `serial` is to be this much at most. All but the
last are older than the experiments; that one was fixed with its experiment."""

VALUES = ["come", "first", "second", "total", "lent", "clear_ms", "follow_ms", "back_ms", "others"]


@dataclass(frozen=True)
class Measured:
    """Seconds from the coming of each of two jobs to its end, and from the coming of the first to the last end."""

    first: float
    second: float
    total: float

    @property
    def mean(self) -> float:
        """The mean response."""
        return (self.first + self.second) / 2


def allowed(first: float, second: float, come: float, way: str) -> Measured:
    """What exact arithmetic gives jobs that take `first` and `second` seconds alone on all cores, of which the
    second comes at `come`: each is as fast as its share of the cores."""
    if way == "serial":
        return Measured(first, first - come + second, first + second)
    left = first - come
    short = min(left, second)  # both at half speed until one has ended, the other alone from then on
    total = come + left + second
    return Measured(total if left > second else come + 2 * short, total - come if second >= left else 2 * short,
                    total)


def pair(bench: Bench, experiment: Experiment, way: str) -> Dict[str, float]:
    """One run of both jobs."""
    field = bench.root / f"field{bench.count}"
    first = bench.line(experiment.first, experiment.first_args.replace("F", str(field)))
    second = bench.line(experiment.second, experiment.second_args.replace("F", str(field)))
    with bench.start([first]) as one, (bench.start([]) if way == "together" else one) as other:
        if other is not one:
            other.missing_nodes(lambda: "waiting for lines" in (other.here / "said").read_text(),
                                "the second manager is there")
        begun = float(one.missing_nodes(lambda: one.records("start", 0), "the first job starts")[0]["time"])
        if experiment.bytes:
            one.missing_nodes(lambda: field.exists() and field.stat().st_size >= experiment.bytes, "the field is written")
        else:
            one.missing_nodes(lambda: time.time() >= begun + experiment.come, "it is time for the second job")
        came = other.append(second)
        if way == "lend":
            one.missing_nodes(lambda: one.records("job", 1), "the manager knows the second job")
            status, said = one.vrm("lend", "0", "--to", "1")
            if status and not one.records("end", 0):
                raise Failure(f"vrm lend: {said}")
        for run in {id(run): run for run in (one, other)}.values():
            run.append("end")
        one.finish(1 if other is not one else 2)
        if other is not one:
            other.finish(1)
        ends = one.ended(0), other.ended(0 if other is not one else 1)
        delays = changes_of(one)
    field.unlink(missing_ok=True)
    return {"come": came - begun, "first": ends[0] - begun, "second": ends[1] - came, "total": max(ends) - begun,
            "lent": float(len(delays)), "clear_ms": median(each[0] for each in delays),
            "follow_ms": math.nan, "back_ms": median(each[1] for each in delays)}


def changes_of(run: LiveRun) -> List[Tuple[float, float]]:
    """Of each lend of a run: milliseconds from the order to cores without a thread of the lender, and from the
    borrower's end (or the command) to the answer that the lender has them again; nan where it ended before."""
    times: Dict[int, Dict[str, float]] = {}
    ends: Dict[Optional[int], float] = {}
    for record in run.records():
        if record["event"] == "end":
            ends[record["id"]] = record["time"]
        elif record["event"] in ("lend", "lent", "regain", "regained"):
            each = times.setdefault(record["number"], {})
            each[record["event"]] = record["time"]
            if record["event"] == "lend":
                each["to"] = -1 if record.get("to") is None else record["to"]
    found = []
    for each in times.values():
        back = ends.get(int(each["to"]), each.get("regain", math.nan))
        found.append((1000 * (each.get("lent", math.nan) - each["lend"]),
                      1000 * (each.get("regained", math.nan) - back)))
    return found


def median(values: object) -> float:
    """Of those that are numbers; nan for none."""
    found = [value for value in values if not math.isnan(value)]  # type: ignore[attr-defined]
    return statistics.median(found) if found else math.nan


def changes(bench: Bench, experiment: Experiment) -> Dict[str, float]:
    """A job lends and has back, again and again: medians of how long the orders take, and until the process says
    that the number of its threads follows."""
    followed: List[float] = []
    with bench.start([bench.line(experiment.first)]) as run:
        begun = float(run.missing_nodes(lambda: run.records("start", 0), "the job starts")[0]["time"])
        place = Path(lending.folder(run.records("run")[0]["run"], 0))
        run.missing_nodes(lambda: acknowledged(place) is not None, "the job follows")
        for epoch in range(1, 2 * CHANGES + 1):
            with run.command("lend", "0", *(("--to", "node") if epoch % 2 else ("--back",))) as command:
                run.missing_nodes(partial(follows, place, epoch), "its threads follow", 0.0005)
                followed.append(time.time())
                said, _ = command.communicate()
            if acknowledged(place) is None or command.returncode and run.records("end", 0):
                break
            if command.returncode:
                raise Failure(f"vrm lend: {said}")
        run.append("end")
        run.finish(1)
        delays = changes_of(run)
        orders = [float(each["time"]) for each in run.records("lend")]
        took = run.ended(0) - begun
    follow = [1000 * (each - order) for each, order in zip(followed[::2], orders)]
    if len(delays) < CHANGES:
        follow = follow[:-1]  # it may have ended instead
    return {"come": math.nan, "first": took, "second": math.nan, "total": took, "lent": float(len(delays)),
            "clear_ms": median(each[0] for each in delays), "follow_ms": median(follow),
            "back_ms": median(each[1] for each in delays)}


def follows(place: Path, epoch: int) -> bool:
    """Whether the process of a job follows this order, or has ended."""
    return acknowledged(place) in (None, epoch)


def acknowledged(place: Path) -> Optional[int]:
    """The order that the process of a job follows; None while there is none, or after its end."""
    try:
        file = next(path for path in place.iterdir() if path.name.isdigit())
        return int(lending.HEAD.unpack_from(file.read_bytes())[6])
    except (OSError, StopIteration, ValueError):
        return None


# The pages.

def text(found: ConfidenceInterval, digits: int = 2) -> str:
    """A mean with its interval."""
    return f"{found.mean:.{digits}f}" + (f" ± {found.half:.{digits}f}" if found.half is not None else "")


def percent(found: ConfidenceInterval, exact: float) -> str:
    """A change, and what exact arithmetic allows."""
    half = f" ± {found.half:.1f}" if found.half is not None else ""
    return f"{found.mean:+.1f}{half} ({exact:+.1f}) %"


COLUMNS: Dict[str, Callable[[Measured], float]] = {
    "first job": lambda each: each.first, "second job": lambda each: each.second,
    "mean response": lambda each: each.mean, "total": lambda each: each.total}


def measured(row: Dict[str, float]) -> Measured:
    """The times of a run."""
    return Measured(row["first"], row["second"], row["total"])


def exact(rows: List[Dict[str, Dict[str, float]]]) -> Dict[str, Measured]:
    """What exact arithmetic allows in each way, from what the jobs took in the runs of `serial`."""
    come = statistics.fmean(row[way]["come"] for row in rows for way in WAYS)
    first = statistics.fmean(row["serial"]["first"] for row in rows)
    second = statistics.fmean(row["serial"]["total"] - row["serial"]["first"] for row in rows)
    return {way: allowed(first, second, come, way) for way in WAYS}


def change(rows: List[Dict[str, Dict[str, float]]], column: str, other: str) -> Tuple[ConfidenceInterval, float]:
    """The change of a column from another way to `lend`, in percent, and what exact arithmetic allows."""
    value, best = COLUMNS[column], exact(rows)
    found = [100 * (value(measured(row["lend"])) / value(measured(row[other])) - 1) for row in rows]
    return interval(found), 100 * (value(best["lend"]) / value(best[other]) - 1)


def verdict(found: ConfidenceInterval, best: float, goal: float) -> str:
    """Whether a goal is reached; `best` is what exact arithmetic allows."""
    word = "reached" if found.mean <= goal else "missed"
    if found.half is None or abs(found.mean - goal) <= found.half:
        word += " by the mean, not certain"
    return word + (": beyond what arithmetic allows" if word.startswith("missed") and best > goal else "")


def goals(where: str, found: Dict[str, List[Dict[str, Dict[str, float]]]]) -> str:
    """The table of the goals."""
    lines = [f"**Goals**, {where}: `lend` against `serial`.", "",
             "| | | goal | arithmetic | measured | |", "|---|---|---|---|---|---|"]
    for name, column, goal in GOALS:
        if name in found:
            mine, best = change(found[name], column, "serial")
            half = f" ± {mine.half:.1f}" if mine.half is not None else ""
            lines.append(f"| {name} | {column} | {goal:+g} % | {best:+.1f} % | {mine.mean:+.1f}{half} % | "
                         f"{verdict(mine, best, goal)} |")
    return "\n".join([*lines, ""])


def page(name: str, where: str, rows: List[Dict[str, Dict[str, float]]]) -> str:
    """The table of an experiment: rows of whole repetitions, by way."""
    found = {way: [measured(row[way]) for row in rows] for way in WAYS}
    come = statistics.fmean(row[way]["come"] for row in rows for way in WAYS)
    best = exact(rows)
    others = [each["others"] for row in rows for each in row.values() if not math.isnan(each["others"])]
    lines = [f"**{name}**, {where}: {len(rows)} runs of each way, the second job after {come:.1f} s; at most "
             f"{max(others, default=0.0):.2f} other processes wanted to run.", "",
             "| way | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    lines += [f"| {way} | " + " | ".join(
        f"{text(interval([value(each) for each in found[way]]))} ({value(best[way]):.2f})"
        for value in COLUMNS.values()) + " |" for way in WAYS]
    lines += [f"| lend against {other} | " + " | ".join(
        percent(*change(rows, column, other)) for column in COLUMNS) + " |" for other in ("serial", "together")]
    lent = [row["lend"] for row in rows if row["lend"]["lent"]]
    if lent:
        back = median(row["back_ms"] for row in lent)  # not a number where lenders ended first
        lines += ["", f"Cores changed hands in {len(lent)} of {len(rows)} runs of `lend`; medians: clear "
                  f"{median(row['clear_ms'] for row in lent):.0f} ms after the order"
                  + (f", the lender's again {back:.0f} ms after the borrower's end" if back >= 0 else "") + "."]
    return "\n".join([*lines, ""])


def latencies(where: str, rows: List[Dict[str, float]]) -> str:
    """The table of `changes`: of the medians of the runs."""
    lines = [f"**changes**, {where}: {len(rows)} runs, {sum(int(row['lent']) for row in rows)} lends; milliseconds, "
             "mean of the runs' medians and 95 % interval.", "",
             "| from the order to | ms |", "|---|---|"]
    for label, value in (("no thread of the lender on a lent core", "clear_ms"),
                         ("the number of its threads follows", "follow_ms"),
                         ("the lender's mask is wide again", "back_ms")):
        known = [row[value] for row in rows if not math.isnan(row[value])]
        if known:
            lines.append(f"| {label} | {text(interval(known), 1)} |")
    return "\n".join([*lines, ""])


def repetitions(table: Table, name: str, where: str) -> List[Dict[str, Dict[str, float]]]:
    """The runs of an experiment by way, of repetitions that are whole."""
    mine = {(key[2], key[3]): row for key, row in table.rows.items() if key[:2] == (name, where)}
    ways = ("lend",) if name == "changes" else WAYS
    return [{way: mine[number, way] for way in ways} for number in dict.fromkeys(key[0] for key in mine)
            if all((number, way) in mine for way in ways)]


def pages(table: Table, experiments: Dict[str, Experiment]) -> str:
    """All that is there."""
    found = ["Seconds; means with 95 % intervals, of as many runs as is said. In brackets what exact arithmetic allows, "
             "from the times of `serial`.\n"]
    for where in dict.fromkeys(key[1] for key in table.rows):
        whole = {name: rows for name in experiments for rows in [repetitions(table, name, where)] if rows}
        found += [goals(where, whole)] if any(name in whole for name, *_ in GOALS) else []
        found += [latencies(where, [row["lend"] for row in rows]) if name == "changes" else page(name, where, rows)
                  for name, rows in whole.items()]
    return "\n".join(found)


NAMES = {"serial": "one after the other (serial)", "together": "both on all cores (together)",
         "lend": "the first lends half of its cores (lend)"}


def picture(path: Path, table: Table, experiments: Dict[str, Experiment]) -> None:
    """The responses of both jobs in each way, as measured on this machine, and what exact arithmetic allows."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    shown = {name: rows for name in experiments for rows in [repetitions(table, name, "here")]
             if rows and name != "changes"}
    figure, axes = pyplot.subplots(1, len(shown), figsize=(max(3.1 * len(shown), 5.5), 3.9), squeeze=False)
    for axis, (name, rows) in zip(axes[0], shown.items()):
        best = exact(rows)
        for place, value in enumerate([*COLUMNS.values()][:3]):
            for turn, way in enumerate(WAYS):
                found = interval([value(measured(row[way])) for row in rows])
                at = place + 0.27 * (turn - 1)
                axis.bar(at, found.mean, 0.25, yerr=found.half, capsize=2, ecolor="dimgray",
                         color=COLOURS[turn],
                         label=NAMES[way] if not place else None)
                axis.plot([at - 0.12, at + 0.12], [value(best[way])] * 2, color="black", linewidth=2,
                          label="expected by arithmetic" if not place and way == WAYS[-1] else None)
        axis.set_xticks(range(3), ["first job", "second job", "mean"])
        axis.set(title=name, ylim=(0, None))
    axes[0][0].set_ylabel("response time: from submission to end [s]")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center", ncol=4, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    """Measure what is missing, and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="the directory of the programs")
    parser.add_argument("--out", type=Path, default=Path("."), help="where live.csv and live.md go")
    parser.add_argument("--cluster", type=int, default=0, metavar="N", help="on N nodes of the test cluster")
    parser.add_argument("--repeat", type=int, default=8, help="runs of each way (default: 8)")
    parser.add_argument("--only", choices=sorted(EXPERIMENTS), action="append",
                        help="this experiment, and others named so")
    parser.add_argument("--for", type=float, default=math.inf, dest="seconds", metavar="SECONDS",
                        help="begin no run after so many seconds")
    parser.add_argument("--quiet", type=float, default=math.inf, metavar="N",
                        help="runs in which more other processes wanted to run, on an average, do not count")
    parser.add_argument("--quick", action="store_true", help="small classes, one run of each")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also a picture (PNG), of this machine's runs")
    parser.add_argument("--docs", type=Path, metavar="FILE",
                        help="also put the tables, and the picture, into this page, between its comments for them")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    experiments = QUICK if options.quick else EXPERIMENTS
    try:
        table = Table(options.out, "live", ["experiment", "where", "number", "way"], VALUES,
                      {name: asdict(each) for name, each in experiments.items()})
        root = Path(tempfile.mkdtemp(prefix="vrm-lend-"))
        with Bench(root, options.bin, options.cluster) as bench:
            names = [name for name in experiments if (not options.only or name in options.only)
                     and not (name == "changes" and options.cluster)]  # its file is in the node's memory
            print(json.dumps({name: asdict(experiments[name]) for name in names}))
            for number in range(1 if options.quick else options.repeat):
                for name in names:
                    ways = ("lend",) if name == "changes" else WAYS[number % 3:] + WAYS[:number % 3]
                    for way in ways:
                        key = (name, bench.where, number, way)
                        if tuple(map(str, key)) in table.rows or time.monotonic() > until:
                            continue
                        with bench.others() as others:
                            found = (changes(bench, experiments[name]) if name == "changes"
                                     else pair(bench, experiments[name], way))
                        found["others"] = others.mean
                        quiet = others.mean <= options.quiet
                        if quiet:
                            table.add(key, found)
                        print(*key, *(f"{name} {value:.3g}" for name, value in found.items()),
                              "" if quiet else "does not count", flush=True)
        shutil.rmtree(root)
    except Failure as error:
        print(f"live.py: {error}", file=sys.stderr)
        return 1
    said = pages(table, experiments)
    (options.out / "live.md").write_text(said, encoding="utf-8")
    print(said)
    if options.picture:
        picture(options.picture, table, experiments)
    if options.docs:
        shown = f"![Responses in each way]({options.picture.name})\n\n" if options.picture else ""
        put_into(options.docs, "live.py", shown + said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
