"""Live runs of vrm for the studies next to this file: managers of small runs, here or on a test cluster, and what
their journals say.
"""

from __future__ import annotations

import csv
import json
import os
import select
import shlex
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import yaml

from vrm.live.nodes.topology import read_topology

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600.0
"""Seconds after which something awaited counts as not happening."""


class Failure(Exception):
    """A run did not do what the study needs; the text says where to look."""


class Bench:
    """Where runs take place: this machine's first socket, or (`cluster`) so many nodes of a test cluster, which
    share this machine's cores. Each run has a directory of its own below `root`; what still runs is ended
    when the bench is left."""

    def __init__(self, root: Path, programs: Path, cluster: int = 0) -> None:
        self.root, self.programs, self.nodes = root, programs.resolve(), cluster or 1
        self.cores = len(read_topology().sockets[0])
        self.cluster = cluster
        self.count = 0
        self._stack = ExitStack()
        self._popen: Callable[..., "subprocess.Popen[Any]"] = subprocess.Popen
        self._config: Dict[str, Any] = {"Nodes": 1, "Sockets": 1, "Cores": self.cores}
        if self.cores < 2:
            raise Failure("one core cannot be shared: this needs two on a socket")

    def __enter__(self) -> "Bench":
        if self.cluster:
            sys.path.insert(0, str(ROOT / "tests"))
            from support.testbed import Testbed  # of the tests
            testbed = self._stack.enter_context(Testbed(self.cluster, sockets=1, cores=self.cores, synthetic=False,
                                                        directory=self.root / "cluster"))
            batch = self._stack.enter_context(testbed.allocation(self.cluster, "--exclusive"))
            env = {**batch.env, "PYTHONPATH": str(ROOT)}
            self._popen = lambda argv, **more: testbed.popen(batch.host, argv, env, **more)
            self._config = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def others(self) -> "Others":
        """To be entered while something is measured."""
        return Others(self.root, self.programs)

    @property
    def where(self) -> str:
        """The machine, in a word."""
        return f"cluster{self.cluster}" if self.cluster else "here"

    def start(self, lines: Iterable[str], **keys: Any) -> "LiveRun":
        """A manager with these lines in its queue."""
        self.count += 1
        here = self.root / f"run{self.count}"
        here.mkdir()
        (here / "queue").write_text("".join(line + "\n" for line in lines))
        (here / "vrm.yaml").write_text(yaml.safe_dump({
            **self._config, "Log": "log", "Applications": {"Path": str(self.programs), "Queue": "queue"},
            "Scheduling": {"Backfilling": "none"}, "Allocation": {"Policy": "compact"},
            "Launcher": {"AllowRoot": True, **({"Transport": "tcp"} if self.cluster else {})}, **keys}))
        with open(here / "said", "wb") as said:
            process = self._popen([sys.executable, "-m", "vrm.cli", "-c", str(here / "vrm.yaml"), "--wait"], cwd=str(here),
                                  stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        return LiveRun(here, process, self._popen)

    def line(self, program: str, args: str = "", estimate: float = 7200.0, delay: Optional[float] = None) -> str:
        """A line of a queue: a rank on all cores of each node, which may lend some."""
        later = "" if delay is None else f" {delay:.2f}"
        said = f" args={shlex.quote(args)}" if args else ""
        return (f"{program} {self.nodes} {estimate:g} 0{later} cores={self.cores} tasks_per_node=1 malleable=1"
                f"{said}")


class LiveRun:
    """A manager and its directory. Leaving it ends the manager, and with it its jobs."""

    def __init__(self, here: Path, process: "subprocess.Popen[Any]",
                 popen: Callable[..., "subprocess.Popen[Any]"]) -> None:
        self.here, self.process, self._popen = here, process, popen

    def __enter__(self) -> "LiveRun":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # it stops starting jobs,
            self.process.terminate()  # and ends those that run
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def command(self, *words: str) -> "subprocess.Popen[str]":
        """A command to the manager, just started."""
        return self._popen([sys.executable, "-m", "vrm.cli", "-c", str(self.here / "vrm.yaml"), *words],
                           cwd=str(self.here), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)

    def vrm(self, *words: str) -> Tuple[int, str]:
        """A command to the manager: its exit status, and what it says."""
        process = self.command(*words)
        said, _ = process.communicate(timeout=LIMIT)
        return process.returncode, said

    def append(self, line: str) -> float:
        """Add a line to the queue; when that was (seconds since 1970)."""
        with open(self.here / "queue", "a", encoding="utf-8") as file:
            file.write(line + "\n")
        return time.time()

    def records(self, event: str = "", job: Optional[int] = None) -> List[Dict[str, Any]]:
        """What the journal has, of one kind and job if given; its last line may still be in the making."""
        try:
            lines = (self.here / "log" / "journal").read_bytes().split(b"\n")[:-1]
        except OSError:
            return []
        found = [json.loads(line) for line in lines if line.endswith(b"}")]
        return [each for each in found if (not event or each["event"] == event)
                and (job is None or each.get("id") == job)]

    def missing_nodes(self, condition: Callable[[], Any], what: str, pause: float = 0.02) -> Any:
        """Wait until something holds, and give it back; Failure when the manager ends before, or never."""
        until = time.monotonic() + LIMIT
        while True:
            ended = self.process.poll() is not None
            found = condition()
            if found:
                return found
            if ended or time.monotonic() > until:
                raise Failure(f"{'the manager ended before' if ended else f'not within {LIMIT:g} s'}: {what}; see "
                              f"{self.here}/said")
            select.select([], [], [], pause)

    def finish(self, jobs: int) -> None:
        """Wait until so many jobs have completed, and the manager has ended (it has read `end`)."""
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise Failure(f"not within {LIMIT:g} s: the run ends; see {self.here}/said") from None
        done = [each["id"] for each in self.records("end") if each["state"] == "completed"]
        if status or len(done) != jobs:
            raise Failure(f"{len(done)} of {jobs} jobs completed; see {self.here}/said")

    def ended(self, job: int) -> float:
        """When a job ended (seconds since 1970)."""
        return float(self.records("end", job)[-1]["time"])


class Table:
    """A CSV file of results, to which runs are added one by one; what is there already is not run again.
    `plan` is written next to it first: results of another plan are refused."""

    def __init__(self, out: Path, name: str, keys: List[str], values: List[str], plan: Dict[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path, self.keys, self.values = out / f"{name}.csv", keys, values
        known = out / f"{name}.json"
        said = json.dumps(plan, indent=1)
        if known.exists() and known.read_text() != said:
            raise Failure(f"{out} has results of another plan than this: give another --out")
        known.write_text(said)
        self.rows: Dict[Tuple[str, ...], Dict[str, float]] = {}
        if self.path.exists():
            with open(self.path, encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    self.rows[tuple(row[key] for key in keys)] = {value: float(row[value] or "nan")
                                                                  for value in values}
        else:
            self._write(",".join([*keys, *values]))

    def _write(self, line: str) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def add(self, key: Iterable[object], values: Dict[str, float]) -> None:
        """A result; it is in the file at once."""
        texts = tuple(map(str, key))
        self.rows[texts] = values
        self._write(",".join([*texts, *(f"{values[name]:.6g}" for name in self.values)]))


def put_into(page: Path, name: str, said: str) -> None:
    """Replace what a page has between the comments `name` and `end of name`."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not end:
        raise Failure(f"{page} has no comments <!-- {name} --> and <!-- end of {name} -->")
    page.write_text(f"{before}{begin}{said.rstrip()}\n{end}{after}", encoding="utf-8")


class Others:
    """How many processes that are none of the study's want to run, on an average of looks once a second, while it is
    entered. The study's are those whose command lines hold one of `own`, and what these have started."""

    def __init__(self, *own: object) -> None:
        self.own = [str(word).encode() for word in own]
        self.looks: List[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Others":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def mean(self) -> float:
        """That average."""
        return sum(self.looks) / len(self.looks) if self.looks else 0.0

    def _look(self) -> None:
        while not self._over.wait(1.0):
            self.looks.append(sum(map(self._wants, Path("/proc").glob("[0-9]*"))))

    def _wants(self, process: Path) -> bool:
        try:
            state, parent = (process / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"R" or process.name == str(os.getpid()):
                return False
            line = (process / "cmdline").read_bytes()
            above = (process.parent / parent.decode() / "cmdline").read_bytes()
        except (OSError, ValueError):  # it has ended
            return False
        return bool(line) and not any(word in line or word in above for word in self.own)
