#!/usr/bin/env python3
"""How long others wait for the manager while it is asked for a long list of jobs.

python tests/benchmarks/questions.py [--jobs 50000] [--against PYTHON ...] [--quick]

`squeue --json` of so many held jobs is asked for through the manager's socket and by a command file, and `sinfo` again
and again until both answers are there: seconds of wall time, and how often the longest of them is as long as the first
Python's. Then `scancel` cancels all jobs by their name, and `sinfo` is asked again and again until that is done.
--against names further Pythons with a vrm each (of another checkout). --quick takes few jobs, to see that all of it
works.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from collections.abc import Callable

from prettytable import PrettyTable

from arrays import Run
from vrm.ext.slurm.calls import wire
from vrm.ext.slurm.calls.client import Call, call_to_json
from vrm.run import command_files
from vrm.run.rundir import RunDirectory


def asked(path: Path, *words: str) -> float:
    """Seconds until the manager has answered a call."""
    begin = time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        client.sendall(Call(words[0], words[1:]).packed())
        while client.recv(1 << 20):
            pass
    return time.monotonic() - begin


def by_file(run: RunDirectory, *words: str) -> float:
    """Seconds until the manager has answered a command file, as one on another node sends it."""
    begin = time.monotonic()
    name = command_files.send(run, {"do": "front", "call": call_to_json(Call(words[0], words[1:]))})
    while not (run.replies / name).exists():  # to read it would take the other questions' time
        time.sleep(0.05)
    return time.monotonic() - begin


def meanwhile(path: Path, *questions: Callable[[], float]) -> tuple[float, list[float]]:
    """How long the slowest of some questions takes, and each `sinfo` during that."""
    took: list[float] = []
    asking = [threading.Thread(target=lambda each=each: took.append(each())) for each in questions]
    for thread in asking:
        thread.start()
    during = []
    while any(thread.is_alive() for thread in asking):
        during.append(asked(path, "sinfo", "-h"))
    return max(took), during


def measure(python: str, folder: Path, jobs: int) -> tuple[float, list[float], list[float], list[float]]:
    """How long the later of both lists takes, and each `sinfo` before that, during that, and during a `scancel`."""
    run = Run(python, folder, [f"h 1 5 0 array=0-{jobs - 1} hold=1",
                               "h 1 5 0 hold=1 name=stays"])  # the run, and its manager, when the others are cancelled
    run.wait("only held jobs are left")
    path = folder / "log" / wire.SOCKET
    before = [asked(path, "sinfo", "-h") for _ in range(20)]
    log = folder / "log"
    took, during = meanwhile(path, lambda: asked(path, "squeue", "--json"),
                             lambda: by_file(RunDirectory(log, log, log), "squeue", "--json"))
    _, cancelling = meanwhile(path, lambda: asked(path, "scancel", "-n", "h"))
    run.stop()
    return took, before, during, cancelling


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=50000)
    parser.add_argument("--against", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true", help="20 jobs, for a look")
    chosen = parser.parse_args()
    table = PrettyTable(["python", "squeue --json [s]", "sinfo alone, longest [s]", "meanwhile, longest [s]", "ratio",
                         "during scancel, longest [s]"])
    first = 0.0
    for python in (sys.executable, *chosen.against):
        with tempfile.TemporaryDirectory(prefix="vrm-bench-") as name:
            took, before, during, cancelling = measure(python, Path(name, "run"), 20 if chosen.quick else chosen.jobs)
        longest = max(during, default=0.0)
        first = first or longest
        table.add_row([python if python != sys.executable else "this", f"{took:.2f}", f"{max(before):.3f}",
                       f"{longest:.3f}", f"{longest / first:.1f}" if first else "-",
                       f"{max(cancelling, default=0.0):.3f}"])
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
