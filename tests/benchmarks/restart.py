#!/usr/bin/env python3
"""What it costs a manager to continue a long run all of whose jobs have ended.

python tests/benchmarks/restart.py [--jobs 100000] [--rounds 3] [--against PYTHON ...] [--quick]

A manager runs one job. Its records and its line of jobs.csv are repeated with other ids, a line of the queue file for
each. Then managers continue the run and find nothing to do, in turns: this one and those of further Pythons with a vrm
each (--against: of another checkout). The first of each finds the journal as it was written, and folds it
(vrm.run.journal.compaction). CPU seconds and memory are those of the whole command, the least of the rounds.
--quick takes few jobs, to see that all of it works.
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
from typing import Any

import yaml
from prettytable import PrettyTable

from vrm.results.jobs import JobWriter, read_jobs
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


def lengthen(folder: Path, jobs: int) -> None:
    """Repeat the only job of a run."""
    log, queue = folder / "log", folder / "queue"
    first: dict[str, dict[str, Any]] = {
        each["event"]: {key: value for key, value in each.items() if key not in ("event", "sum", "SUM")}
        for each in journal.read(log / "journal")}
    row = next(read_jobs(log / "jobs.csv"))
    with open(queue, "a") as file:
        file.writelines(f"true 1 {30 + number % 50}\n" for number in range(1, jobs))
    lines = QueueFollower(queue).read_rest()[1:]
    records = journal.Journal(log / "journal")
    for job_id, line in enumerate(lines, 1):
        records.append("job", **{**first["job"], "id": job_id, "estimate": 30.0 + job_id % 50, "position": line.position,
                                 "line": f"{line.digest:x}"})
    with JobWriter(log / "jobs.csv") as rows:
        for job_id in range(1, jobs):
            later: dict[str, Any] = {"id": job_id, "time": first["start"]["time"] + job_id / 1024}
            for event in ("start", "end"):
                records.append(event, **{**first[event], **later})
            rows.write(replace(row, id=job_id, start=later["time"], end=later["time"]))
    records.close()


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
        before, written = os.path.getsize(log / "journal"), (log / "journal").read_bytes()
        for number in range(chosen.rounds + 1):
            for python in (sys.executable, *chosen.against):
                if not number:  # each from the journal as it was written
                    (log / "journal").write_bytes(written)
                found.setdefault(f"{python}, {'first' if not number else 'later'}", []).append(run(python, folder))
        del written
        assert sum(1 for _ in read_jobs(log / "jobs.csv")) == chosen.jobs
        sizes = {name: os.path.getsize(log / name) for name in names}
    table = PrettyTable(["python", "CPU [s]", "memory [MB]"])
    for python, costs in (("a run of one job", [start]), *found.items()):
        table.add_row([python.replace(sys.executable, "this"), f"{min(cpu for cpu, _ in costs):.2f}",
                       f"{min(memory for _, memory in costs):.0f}"])
    each = ", ".join(f"{name} {size / chosen.jobs * 0.1:.1f} MB" for name, size in sizes.items())
    print(f"a run of {chosen.jobs} ended jobs, a journal of {before / 1e6:.1f} MB as written; then for 100,000 jobs: {each}")
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
