#!/usr/bin/env python3
"""What it costs a manager to continue a long run all of whose jobs have ended.

python tests/benchmarks/restart.py [--jobs 100000] [--rounds 3] [--against PYTHON ...] [--quick]

A manager runs one job. Its records and its line of jobs.csv are repeated with other ids, a line of the queue file for
each: three records of the journal for each job. Then managers continue the run and find nothing to do, in turns: this one
and those of further Pythons with a vrm each (--against: of another checkout). Each finds the journal as a manager leaves
it that folds it while it runs (vrm.live.manager.records.journal_folding), then as one leaves it that never does, and then
as the one before has left it. CPU seconds and memory are those of the whole command and of its copies, the least of the
rounds. --quick takes few jobs, to see that all of it works.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from multiprocessing import Process
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from prettytable import PrettyTable

from vrm.live.manager.records.journal_folding import JournalFolding
from vrm.model import Job
from vrm.results.jobs import JobWriter, read_jobs
from vrm.run.entry import Entry
from vrm.run.journal import files as journal
from vrm.workload.queue_follower import QueueFollower


def run(python: str, folder: Path) -> tuple[float, float]:
    """CPU seconds and MB of memory of a manager that runs the queue to its end."""
    with open(folder / "out", "w") as out:
        process = subprocess.Popen([python, "-m", "vrm.cli", "-c", str(folder / "vrm.yaml"), "run"], cwd=folder,
                                   stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit((folder / "out").read_text()[-2000:])
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1.024 / 1e3


class FoldedJournal(journal.Journal):
    """A journal that is folded like that of a manager which writes it."""

    def __init__(self, path: Path, jobs: int) -> None:
        super().__init__(path)
        book = SimpleNamespace(entries=dict.fromkeys(range(jobs), Entry(Job(0, "true", 1, 1.0))))
        self.live: Any = SimpleNamespace(journal=self, state=SimpleNamespace(book=book), synced=lambda: True, phase="running",
                                         run_directory=SimpleNamespace(journal=path), clock=lambda: 0.0, tell=print)
        self._folding = JournalFolding(self.live)

    def append(self, event: str, **values: Any) -> None:
        """Add a record; now and then fold the journal."""
        super().append(event, **values)
        if self.appended % 1000 == 0:
            self.sync()
            self._folding.tidy(0.0)
            while self._folding.busy():
                os.sched_yield()


def lengthen(folder: Path, jobs: int) -> None:
    """Repeat the only job of a run; `folded` is the journal of a manager that folds it."""
    log, queue = folder / "log", folder / "queue"
    first: dict[str, dict[str, Any]] = {
        each["event"]: {key: value for key, value in each.items() if key not in ("event", "sum", "SUM")}
        for each in journal.read(log / "journal")}
    row = next(read_jobs(log / "jobs.csv"))
    with open(queue, "a") as file:
        file.writelines(f"true 1 {30 + number % 50}\n" for number in range(1, jobs))
    lines = QueueFollower(queue).read_rest()[1:]
    (log / "folded").write_bytes((log / "journal").read_bytes())
    plain, folded = journal.Journal(log / "journal"), FoldedJournal(log / "folded", jobs)

    def record(event: str, **values: Any) -> None:
        for each in (plain, folded):
            each.append(event, **values)

    for job_id, line in enumerate(lines, 1):
        record("job", **{**first["job"], "id": job_id, "estimate": 30.0 + job_id % 50, "position": line.position,
                                 "line": f"{line.digest:x}"})
    with JobWriter(log / "jobs.csv") as rows:
        for job_id in range(1, jobs):
            later: dict[str, Any] = {"id": job_id, "time": first["start"]["time"] + job_id / 1024}
            for event in ("start", "end"):
                record(event, **{**first[event], **later})
            rows.write(replace(row, id=job_id, start=later["time"], end=later["time"]))
    plain.close()
    folded.close()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=100000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true", help="20 jobs, once, for a look")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.jobs, chosen.rounds = 20, 1
    with tempfile.TemporaryDirectory(prefix="vrm-bench-") as name:
        folder = Path(name)
        (folder / "queue").write_text("true 1 30\n")
        (folder / "vrm.yaml").write_text(yaml.safe_dump({
            "Applications": {"Path": "/bin", "Queue": str(folder / "queue")}, "Launcher": {"Kind": "direct"},
            "Nodes": 1, "Sockets": 1, "Cores": 2, "Log": str(folder / "log")}))
        run(sys.executable, folder)
        start = run(sys.executable, folder)
        other = Process(target=lengthen, args=(folder, chosen.jobs))  # its memory would count as that of what is started
        other.start()
        other.join()
        found: dict[str, list[tuple[float, float]]] = {}
        names, log = ("journal", "jobs.csv", "state"), folder / "log"
        kinds = {"raw": (log / "journal").read_bytes(), "folded while it was written": (log / "folded").read_bytes(), "later": b""}
        for _ in range(chosen.rounds):
            for python in (sys.executable, *chosen.against):
                for kind, written in kinds.items():
                    if written:
                        (log / "journal").write_bytes(written)
                    found.setdefault(f"{python}, {kind}", []).append(run(python, folder))
        before, folded = (len(written) for written in list(kinds.values())[:2])
        del kinds, written
        assert sum(1 for _ in read_jobs(log / "jobs.csv")) == chosen.jobs
        sizes = {name: os.path.getsize(log / name) for name in names}
    table = PrettyTable(["python", "CPU [s]", "memory [MB]"])
    for python, costs in (("a run of one job", [start]), *found.items()):
        table.add_row([python.replace(sys.executable, "this"), f"{min(cpu for cpu, _ in costs):.2f}",
                       f"{min(memory for _, memory in costs):.0f}"])
    each = ", ".join(f"{name} {size / chosen.jobs * 0.1:.1f} MB" for name, size in sizes.items())
    print(f"a run of {chosen.jobs} ended jobs, a journal of {before / 1e6:.1f} MB raw, {folded / 1e6:.1f} MB folded while it was "
          f"written; then for 100,000 jobs: {each}")
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
