#!/usr/bin/env python3
"""Slurm's commands on vrm against those of a real Slurm: jobs a second, and how long sbatch and squeue take.

    python tests/benchmarks/commands.py [--jobs 1000] [--rounds 3] [--calls 100] [--quick] [--only vrm]

A test cluster of two nodes of 8 cores (tests/support/testbed.py, as root): on the one real Slurm runs the jobs, on the
other, an allocation of it, vrm. A shell loop submits the jobs, whose script is `true`, one after the other, and
then asks squeue until none is left. Both take turns. Rates are from the first submission to the last job seen
ended; ratios are of rounds next to each other. `--only vrm` needs no root: vrm alone, on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.testbed import LOGIN, Testbed, missing  # noqa: E402  (a module of the tests)

from vrm.ext.slurm.calls import build  # noqa: E402

SCRIPT = "#!/bin/sh\n#SBATCH -J loop -n 1 -t 5 -o /dev/null\ntrue\n"

LOOP = """\
set -e
i=0
while [ $i -lt $1 ]; do sbatch loop.sh >/dev/null; i=$((i + 1)); done
while [ -n "$(squeue -h -n loop)" ]; do sleep 0.02; done
"""

TIMED = """\
import os, sys, time
null = os.open("/dev/null", os.O_WRONLY)
for _ in range(int(sys.argv[1])):
    before = time.monotonic()
    pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
    assert os.waitpid(pid, 0)[1] == 0
    print(time.monotonic() - before)
"""

Exec = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def plain(env: dict[str, str], folder: Path) -> Exec:
    """Runs commands here."""
    return lambda words: subprocess.run(words, env=env, cwd=folder, text=True, capture_output=True, check=True,
                                        stdin=subprocess.DEVNULL)


def rate(execute: Exec, jobs: int) -> float:
    """Jobs a second."""
    before = time.monotonic()
    execute(["sh", "-c", LOOP, "sh", str(jobs)])
    return jobs / (time.monotonic() - before)


def latency(execute: Exec, calls: int, *words: str) -> float:
    """The median of the seconds that a command takes."""
    done = execute([sys.executable, "-I", "-S", "-c", TIMED, str(calls), *words])
    return statistics.median(map(float, done.stdout.split()))


def configured(folder: Path) -> Path:
    """A directory with a configuration, the commands and the script."""
    (folder / "bin").mkdir()
    (folder / "queue").touch()
    (folder / "loop.sh").write_text(SCRIPT)
    (folder / "vrm.yaml").write_text(
        "Applications: {Path: bin, Queue: queue}\nLauncher: {Kind: direct}\nLog: logs\nAllocation: {Policy: pack}\n"
        "Forecast: false\n")
    build.link(folder / "commands")
    return folder


@contextlib.contextmanager
def manager(folder: Path, start: Callable[[list[str], Any], subprocess.Popen[Any]]) -> Iterator[None]:
    """A manager, while the block lasts."""
    with open(folder / "said", "w") as said:
        process = start([sys.executable, "-m", "vrm.cli", "-c", str(folder / "vrm.yaml"), "run", "--wait"], said)
        end = time.monotonic() + 60
        while not (folder / "logs/socket").exists():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit((folder / "said").read_text())
            time.sleep(0.05)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def surroundings(folder: Path) -> dict[str, str]:
    """What a client of vrm has around it."""
    return {"PATH": f"{folder}/commands:{os.environ['PATH']}", "VRM_DIRECTORY": f"{folder}/logs",
            "PYTHONPATH": str(ROOT)}


def measure(sides: dict[str, Exec], arguments: argparse.Namespace) -> None:
    """Print rates and times of all sides, and their ratios."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    times: dict[str, dict[str, list[float]]] = {name: {"sbatch": [], "squeue": []} for name in sides}
    for number in range(arguments.rounds):
        for name in (list(sides) if number % 2 else list(sides)[::-1]):
            rates[name].append(rate(sides[name], arguments.jobs))
            times[name]["sbatch"].append(latency(sides[name], arguments.calls, "sbatch", "loop.sh"))
            times[name]["squeue"].append(latency(sides[name], arguments.calls, "squeue", "-h", "-o", "%i %T"))
            sides[name](["sh", "-c", LOOP, "sh", "0"])
    for name in sides:
        print(f"{name:<6} {statistics.median(rates[name]):8.1f} jobs/s   sbatch "
              f"{1000 * statistics.median(times[name]['sbatch']):6.2f} ms   squeue "
              f"{1000 * statistics.median(times[name]['squeue']):6.2f} ms")
    if len(sides) == 2:
        ours, theirs = sides
        ratios = [mine / other for mine, other in zip(rates[ours], rates[theirs])]
        print(f"rate of vrm to Slurm's: {statistics.median(ratios):.1f} (rounds: "
              f"{', '.join(f'{each:.1f}' for each in ratios)})")
        for command in ("sbatch", "squeue"):
            found = [mine / other for mine, other in zip(times[ours][command], times[theirs][command])]
            print(f"time of {command} to Slurm's: {statistics.median(found):.2f} (rounds: "
                  f"{', '.join(f'{each:.2f}' for each in found)})")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["vrm"])
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.jobs, arguments.rounds, arguments.calls = 10, 1, 3
    with tempfile.TemporaryDirectory() as name:
        folder = configured(Path(name))
        env = surroundings(folder)
        if arguments.only:
            with manager(folder, lambda words, said: subprocess.Popen(words, stdout=said, stderr=said, cwd=folder)):
                measure({"vrm": plain({**os.environ, **env}, folder)}, arguments)
            return
        if missing():
            raise SystemExit(missing())
        with Testbed(2) as testbed, testbed.allocation(1, "--exclusive") as batch:
            around = {**batch.env, **env}
            with manager(folder, lambda words, said: testbed.popen(
                    batch.host, words, env={**batch.env, "PYTHONPATH": str(ROOT)}, cwd=folder, stdout=said, stderr=said)):
                measure({
                    "vrm": lambda words: testbed.exec(batch.host, words, env=around, cwd=folder, timeout=600, check=True),
                    "Slurm": lambda words: testbed.exec(LOGIN, words, cwd=folder, timeout=600, check=True)}, arguments)


if __name__ == "__main__":
    main()
