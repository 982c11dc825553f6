"""Real jobs that lend cores, against waiting in turn and against running side by side on the same cores.

    python studies/malleable/live.py --bin DIR [--config FILE] [--repeat N] [--quick] [--out DIR]

DIR has the programs of `vrm npb build --apps ep-omp,insitu-omp --classes W,A,B`. Two experiments, whose
sizes and times of submission are fixed below, before anything is measured:

| experiment | first job | second job, and when it comes |
|---|---|---|
| insitu | a simulation on all cores, which writes its field when it is half done | its analysis, as soon as the field is there |
| urgent | a job on all cores | another one on all cores, after a third of what the first takes alone |

Each in three ways: `serial` (the second waits), `beside` (both on all cores at once, unbound), `lend`
(`vrm lend`: the first keeps half of its cores while the second runs on the others). The ways alternate, so that
other load of the machine meets all of them. live.csv has each run, live.md means with 95 % intervals, beside
what exact arithmetic allows where each job is as fast as its share of the cores.
"""

from __future__ import annotations

import argparse
import csv
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

import yaml

from vrm.live.nodes.topology import read_topology
from vrm.results.jobs import read_jobs
from vrm.results.statistics import Interval, interval

WAYS = ("serial", "beside", "lend")
LIMIT = 3600.0
"""Seconds after which something awaited counts as not happening."""


@dataclass(frozen=True)
class Experiment:
    """Two jobs: their programs (`C` stands for the class), and the arguments in which `F` is a file of the
    run. `wait`: the second comes when that file is there; else after a third of the first's time."""

    first: str
    first_args: str
    second: str
    second_args: str
    wait: bool


EXPERIMENTS: Dict[str, Experiment] = {
    "insitu": Experiment("insitu-omp.C.x", "write F", "insitu-omp.C.x", "analyse F", True),
    "urgent": Experiment("ep-omp.C.x", "", "ep-omp.C.x", "", False)}
CLASS, QUICK = {"insitu": "B", "urgent": "B"}, {"insitu": "W", "urgent": "A"}


@dataclass(frozen=True)
class Measured:
    """The seconds from submission to end of both jobs, and from the first submission to the last end."""

    first: float
    second: float
    total: float


class Bench:
    """Runs of vrm, each in a directory of its own below `root`."""

    def __init__(self, root: Path, programs: Path, base: Dict[str, object], cores: int) -> None:
        self.root, self.programs, self.base, self.cores = root, programs, base, cores
        self.number = 0
        self.managers: List["subprocess.Popen[bytes]"] = []

    def close(self) -> None:
        """End what still runs."""
        for manager in self.managers:
            if manager.poll() is None:
                manager.terminate()
                manager.terminate()
                manager.wait()

    def start(self, lines: List[str], **keys: object) -> Tuple[Path, "subprocess.Popen[bytes]"]:
        """A manager with these lines; its directory."""
        self.number += 1
        here = self.root / f"run{self.number}"
        here.mkdir()
        (here / "queue").write_text("".join(line + "\n" for line in lines))
        (here / "vrm.yaml").write_text(yaml.safe_dump({**self.base, **keys, "Log": "log", "Applications": {
            "Path": str(self.programs), "Queue": "queue"}}))
        with open(here / "said", "wb") as said:
            self.managers.append(subprocess.Popen([sys.executable, "-m", "vrm.cli", "-c", here / "vrm.yaml"],
                                                  cwd=here, stdout=said, stderr=said,
                                                  stdin=subprocess.DEVNULL))
        return here, self.managers[-1]

    @staticmethod
    def vrm(here: Path, *words: str) -> None:
        """A command to the manager of a directory."""
        done = subprocess.run([sys.executable, "-m", "vrm.cli", "-c", here / "vrm.yaml", *words], cwd=here,
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"vrm {' '.join(words)} in {here}: {done.stderr or done.stdout}")

    def line(self, app: str, args: str) -> str:
        """A line of the queue: one rank on all cores of a node, which may lend some."""
        said = f" args='{args}'" if args else ""
        return f"{app} 1 2h 0 cores={self.cores} malleable=1{said}"

    def one(self, experiment: Experiment, size: str, way: str, alone: float) -> Measured:
        """One run of both jobs. `alone`: what the first takes alone, in seconds."""
        field = self.root / f"field{self.number + 1}"
        first = self.line(experiment.first.replace("C", size, 1), experiment.first_args.replace("F", str(field)))
        second = self.line(experiment.second.replace("C", size, 1),
                           experiment.second_args.replace("F", str(field)))
        here, manager = self.start([first])
        awaited(lambda: (here / "log" / "pids" / "0").exists(), "the first job runs", here)
        begun = time.monotonic()
        if experiment.wait:
            awaited(field.exists, "the field is written", here)
        else:
            awaited(lambda: time.monotonic() >= begun + alone / 3, "a third has passed", here)
        if way == "beside":
            there, other = self.start([second, "end"], Emulate=True, Nodes=1, Sockets=1, Cores=self.cores)
        else:
            there, other = here, manager
            append(here / "queue", second)
            if way == "lend":
                awaited(lambda: "vrm" if job_waits(here) else "", "the second job waits", here)
                self.vrm(here, "lend", "0", "--to", "1")
        append(here / "queue", "end")
        for process, where in ((manager, here), (other, there)):
            if process.wait(LIMIT):
                raise SystemExit(f"a run failed; see {where}/said")
        rows = list(read_jobs(here / "log" / "jobs.csv"))
        rows += list(read_jobs(there / "log" / "jobs.csv")) if there != here else []
        rows.sort(key=lambda row: row.submit)
        one, two = rows
        assert one.end is not None and two.end is not None
        if {one.status, two.status} != {"completed"}:
            raise SystemExit(f"a job failed: {one.reason or two.reason}; see {here}/said")
        field.unlink(missing_ok=True)
        return Measured(one.end - one.submit, two.end - two.submit, max(one.end, two.end) - one.submit)


def job_waits(here: Path) -> bool:
    """Whether the manager has read the second line."""
    try:
        return '"event":"job","id":1,' in (here / "log" / "journal").read_text(errors="replace")
    except OSError:
        return False


def append(path: Path, line: str) -> None:
    """Add a line to a queue."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def awaited(condition: Callable[[], object], what: str, here: Path) -> None:
    """Wait until something holds."""
    until = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"not within {LIMIT:g} s: {what}; see {here}/said")
        select.select([], [], [], 0.02)


def allowed(first: float, second: float, come: float, way: str) -> Optional[Measured]:
    """What exact arithmetic gives jobs that take `first` and `second` seconds alone on all cores, of which the
    second comes at `come`: each is as fast as its share of the cores."""
    if way == "serial":
        return Measured(first, first - come + second, first + second)
    left = first - come
    short = min(left, second)  # both at half speed until one has ended, the other alone from then on
    if way == "lend" and second > left:
        # The borrower keeps the half that it has started with.
        return Measured(come + 2 * left, 2 * second, come + 2 * second)
    total = come + left + second
    return Measured(total if left > second else come + 2 * short, total - come if second >= left else 2 * short,
                    total)


def text(found: Interval) -> str:
    """A mean with its interval."""
    return f"{found.mean:.2f}" + (f" ± {found.half:.2f}" if found.half is not None else "")


def main() -> int:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="the directory of the programs")
    parser.add_argument("--config", type=Path, help="nodes and launcher, as a configuration has them "
                        "(default: the cores of one socket of this machine)")
    parser.add_argument("--repeat", type=int, default=10, help="runs of each way (default: 10)")
    parser.add_argument("--only", choices=sorted(EXPERIMENTS), help="one experiment")
    parser.add_argument("--quick", action="store_true", help="small classes, two runs of each")
    parser.add_argument("--out", type=Path, default=Path("."), help="where live.csv and live.md go")
    options = parser.parse_args()
    base = yaml.safe_load(options.config.read_text()) if options.config else {}
    cores = int(base.get("Cores") or len(read_topology().sockets[0]))
    if cores < 2:
        raise SystemExit("one core cannot be shared: this needs two on a socket")
    repeat, classes = (2, QUICK) if options.quick else (options.repeat, CLASS)
    options.out.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="vrm-lend-"))
    bench = Bench(root, options.bin.resolve(), {**base, "Launcher": {"AllowRoot": True, **base.get(
        "Launcher", {})}}, cores)
    try:
        pages = measured(bench, options, repeat, classes)
    finally:
        bench.close()
    (options.out / "live.md").write_text("\n".join(pages), encoding="utf-8")
    print("\n".join(pages))
    shutil.rmtree(root)
    return 0


def measured(bench: Bench, options: argparse.Namespace, repeat: int, classes: Dict[str, str]) -> List[str]:
    """All runs, and the tables."""
    pages: List[str] = []
    with open(options.out / "live.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["experiment", "class", "repetition", "way", "first", "second", "total"])
        for name in [options.only] if options.only else sorted(EXPERIMENTS):
            experiment, size = EXPERIMENTS[name], classes[name]
            found: Dict[str, List[Measured]] = {way: [] for way in WAYS}
            # How long the first takes is known before the runs that count.
            alone = 0.0 if experiment.wait else bench.one(experiment, size, "serial", 0.0).first
            for number in range(repeat):
                for way in WAYS[number % 3:] + WAYS[:number % 3] if number else WAYS:
                    each = bench.one(experiment, size, way, alone)
                    found[way].append(each)
                    writer.writerow([name, size, number, way, *(f"{value:.3f}" for value in (
                        each.first, each.second, each.total))])
                    file.flush()
            pages.append(page(name, size, found, alone / 3 if alone else None))
    return pages


def page(name: str, size: str, found: Dict[str, List[Measured]], came: Optional[float]) -> str:
    """The table of an experiment; the second job came after so many seconds, None: at half of the first."""
    serial = found["serial"]
    first = interval([each.first for each in serial]).mean
    come = first / 2 if came is None else came
    second = interval([each.total - each.first for each in serial]).mean
    lines = [f"{name}, class {size}, {len(serial)} runs of each way; seconds, mean and 95 % interval; in brackets "
             "what exact arithmetic allows",
             "", "| way | first job | second job | mean response | total |", "|---|---|---|---|---|"]
    for way in WAYS:
        best = allowed(first, second, come, way)
        assert best is not None
        cells = []
        for value in (lambda each: each.first, lambda each: each.second,
                      lambda each: (each.first + each.second) / 2, lambda each: each.total):
            cells.append(f"{text(interval([value(each) for each in found[way]]))} ({value(best):.2f})")
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    changes = []
    for label, value in (("first job", lambda each: each.first), ("second job", lambda each: each.second),
                         ("mean response", lambda each: (each.first + each.second) / 2),
                         ("total", lambda each: each.total)):
        ratio = interval([100 * (value(one) / value(other) - 1)
                          for one, other in zip(found["lend"], serial)])
        changes.append(f"{label} {text(ratio)} %")
    return "\n".join([*lines, "", "lend against serial, pairs of runs: " + ", ".join(changes) + ".", ""])


if __name__ == "__main__":
    sys.exit(main())
