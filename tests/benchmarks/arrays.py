#!/usr/bin/env python3
"""What an array that waits for an array costs the manager, and how soon it answers with many jobs.

python tests/benchmarks/arrays.py [--jobs 10000] [--waiting 20000] [--against PYTHON ...] [--quick]

--against names further Pythons with a vrm each (of another checkout), for figures side by side.
CPU seconds and memory are those of the manager alone, beyond what the same run without the second
array costs; answers are wall seconds of `vrm cancel` as a whole. --quick takes few jobs, to see that
all of it works.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml
from prettytable import PrettyTable


class Run:
    """A manager under `python` on a queue of these lines."""

    def __init__(self, python: str, folder: Path, lines: list[str]) -> None:
        (folder / "bin").mkdir(parents=True)
        program = folder / "bin" / "h"
        program.write_text("#!/bin/sh\nwhile [ ! -e $0.go ]; do sleep 0.1; done\n")
        program.chmod(0o755)
        (folder / "queue").write_text("".join(f"{line}\n" for line in lines))
        self.config = folder / "vrm.yaml"
        self.config.write_text(yaml.safe_dump({
            "Applications": {"Path": str(folder / "bin"), "Queue": str(folder / "queue")},
            "Launcher": {"Kind": "direct"}, "Nodes": 1, "Sockets": 1, "Cores": 1,
            "Log": str(folder / "log")}))
        self.python, self.folder = python, folder
        self.log = open(folder / "out", "w")
        self.process = subprocess.Popen(
            [python, "-m", "vrm.cli", "-c", str(self.config)], cwd=folder, stdout=self.log,
            stderr=subprocess.STDOUT)

    def wait(self, text: str) -> None:
        """Wait until the manager has printed this."""
        end = time.monotonic() + 600
        while text not in (self.folder / "out").read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit((self.folder / "out").read_text()[-2000:])
            time.sleep(0.05)

    def cost(self) -> tuple[float, float]:
        """CPU seconds and memory (MB) of the manager so far."""
        process = psutil.Process(self.process.pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss / 1e6

    def ask(self, *words: str) -> float:
        """Seconds that a command takes."""
        begin = time.monotonic()
        subprocess.run([self.python, "-m", "vrm.cli", "-c", str(self.config), *words],
                       cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       check=False)
        return time.monotonic() - begin

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.terminate()
        self.process.wait(120)
        self.log.close()


def stage(python: str, folder: Path, lines: list[str], rest: float) -> tuple[float, float, float]:
    """CPU seconds, MB of memory and MB of the state file, some seconds (`rest`) after the last
    line's job has started."""
    run = Run(python, folder, [*lines, "h 1 5 0 priority=9 hold=1", "h 1 5 0 priority=8"])
    run.wait("starts")
    time.sleep(rest)
    cpu, memory = run.cost()
    size = os.path.getsize(folder / "log" / "state") / 1e6
    run.stop()
    return cpu, memory, size


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=10000)
    parser.add_argument("--waiting", type=int, default=20000)
    parser.add_argument("--against", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true", help="20 jobs, for a look")
    chosen = parser.parse_args()
    rest = 3.0
    if chosen.quick:
        chosen.jobs, chosen.waiting, rest = 20, 20, 0.3
    table = PrettyTable(["python", "CPU of the second array [s]", "memory [MB]", "state [MB]",
                         "CPU, all [s]", "cancel one [s]", "cancel all [s]", "command alone [s]"])
    for python in (sys.executable, *chosen.against):
        with tempfile.TemporaryDirectory(prefix="vrm-bench-") as name:
            last = chosen.jobs - 1
            first = [f"h 1 5 0 array=0-{last} hold=1"]
            one = stage(python, Path(name, "one"), [*first, f"h 1 5 0 array=0-{last} hold=1"], rest)
            two = stage(python, Path(name, "two"), [*first,
                                                    f"h 1 5 0 array=0-{last} after=0-{last}"],
                        rest)
            run = Run(python, Path(name, "many"), [f"h 1 5 0 array=0-{chosen.waiting}"])
            run.wait("starts")
            alone = run.ask("--version")
            single = run.ask("cancel", "7")
            every = run.ask("cancel", "all")
            run.stop()
        table.add_row([python if python != sys.executable else "this",
                       f"{two[0] - one[0]:.2f}", f"{two[1] - one[1]:.0f}", f"{two[2]:.3f}",
                       f"{two[0]:.2f}", f"{single:.2f}", f"{every:.2f}", f"{alone:.2f}"])
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
