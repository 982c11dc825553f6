#!/usr/bin/env python3
"""What it costs to start a program through the spawner, against subprocess and a bare shell loop.

python tests/benchmarks/spawn.py [--jobs 300] [--rounds 3] [--folder DIR] [--quick] [PROGRAM [ARGUMENT ...]]

PROGRAM is /bin/true unless given (try `mpirun -np 1 true` with --jobs 20). The contestants take
turns within a round, so that drift of the machine hits them alike; one job runs at a time, but
for the last line, where all are asked for at once. Files are written below --folder.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from collections.abc import Callable

from prettytable import PrettyTable

from vrm.live.spawn.messages import Ended, LaunchFailed, LaunchRequest, Started
from vrm.live.spawn.spawner import Spawner
from vrm.system.processes import pids_with_environment, read_stat, session_members, sessions

BALLAST = 100 << 20
"""Bytes by which this process is made as large as a manager with much work."""


class Contest:
    """Runs a program again and again in different ways; times are seconds for each run."""

    def __init__(self, folder: Path, argv: list[str], jobs: int) -> None:
        self.folder = folder
        self.argv = argv
        self.jobs = jobs
        self.env = dict(os.environ)
        if os.geteuid() == 0:
            self.env.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        self.number = 0
        self.supervisor_memory = 0

    def request(self) -> LaunchRequest:
        """The next job."""
        self.number += 1
        name = f"{self.folder}/{self.number}"
        return LaunchRequest(self.number, self.argv, self.env, self.folder, f"{name}.o",
                             f"{name}.e", f"{name}.marker", f"{name}.status")

    def spawner_one_by_one(self) -> list[float]:
        """Launch, wait for the event of the end, launch the next."""
        times = []
        with Spawner() as spawner:
            self.await_ends(spawner, 1, [self.request()])
            for _ in range(self.jobs):
                begin = time.perf_counter()
                self.await_ends(spawner, 1, [self.request()])
                times.append(time.perf_counter() - begin)
        return times

    def spawner_all_at_once(self) -> list[float]:
        """Launch all, then wait for all ends."""
        with Spawner() as spawner:
            self.await_ends(spawner, 1, [self.request()])
            begin = time.perf_counter()
            self.await_ends(spawner, self.jobs, [self.request() for _ in range(self.jobs)])
            return [(time.perf_counter() - begin) / self.jobs] * self.jobs

    @staticmethod
    def await_ends(spawner: Spawner, count: int, requests: list[LaunchRequest]) -> None:
        """Launch these and return when `count` jobs have ended."""
        for request in requests:
            spawner.launch(request)
        while count:
            select.select([spawner], [], [])
            for event in spawner.events():
                if isinstance(event, LaunchFailed):
                    sys.exit(event.message)
                count -= isinstance(event, Ended)

    def subprocess_one_by_one(self) -> list[float]:
        """`Popen` with the same files and a session, from this large process, and `wait`."""
        times = []
        for _ in range(self.jobs):
            begin = time.perf_counter()
            request = self.request()
            with open(request.stdout, "wb") as out, open(request.stderr, "wb") as err:
                subprocess.Popen(self.argv, env=self.env, cwd=self.folder, stdout=out, stderr=err,
                                 stdin=subprocess.DEVNULL, start_new_session=True).wait()
            times.append(time.perf_counter() - begin)
        return times

    def shell_loop(self) -> list[float]:
        """A bare loop of bash, with the same two output files for each job."""
        command = " ".join(map(shlex.quote, self.argv))
        first = self.number + 1
        self.number += self.jobs
        program = (f"for ((i = {first}; i < {first + self.jobs}; i++)); do "
                   f"begin=$EPOCHREALTIME; {command} > $i.o 2> $i.e < /dev/null; "
                   "times+=($begin $EPOCHREALTIME); done; echo ${times[@]}")
        said = subprocess.run(["bash", "-c", program], cwd=self.folder, env=self.env, check=True,
                              capture_output=True, text=True).stdout
        moments = [float(word.replace(",", ".")) for word in said.split()]
        return [end - begin for begin, end in zip(moments[::2], moments[1::2])]


def private_memory(pid: int) -> int:
    """Memory that a process shares with no other, in bytes."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines()
                      if line.startswith("Private_"))


def sleepers(contest: Contest, count: int) -> PrettyTable:
    """What `count` running jobs cost: memory of supervisors, time to look at all processes."""
    table = PrettyTable([f"with {count} jobs running", "value"], align="r")
    with Spawner() as spawner:
        started: list[Started] = []
        for _ in range(count):
            request = contest.request()
            spawner.launch(LaunchRequest(request.id, ["sleep", "600"], {**contest.env, "TAG": "x"},
                                         request.cwd, request.stdout, request.stderr,
                                         request.marker, request.status))
        while len(started) < count:
            select.select([spawner], [], [])
            started += [e for e in spawner.events() if isinstance(e, Started)]
        try:
            memory = [private_memory(e.supervisor_pid) / 1e6 for e in started]
            table.add_row(["private memory of a supervisor, MB",
                           f"{statistics.median(memory):.2f}"])
            processes = len(list(Path("/proc").glob("[0-9]*")))
            table.add_row(["processes on this machine", processes])
            sid = started[0].supervisor_pid
            for what, look in (("session_members, ms", lambda: session_members(sid)),
                               ("sessions (all), ms", sessions),
                               ("pids_with_environment, ms",
                                lambda: pids_with_environment("TAG", "x")),
                               ("by reading every /proc/PID/stat, ms", lambda: [
                                   read_stat(int(name)) for name in os.listdir("/proc")
                                   if name.isdigit()])):
                table.add_row([what, f"{1e3 * median_time(look):.2f}"])
        finally:
            for event in started:
                os.kill(event.pid, signal.SIGKILL)
            contest.await_ends(spawner, count, [])
    return table


def median_time(function: Callable[[], object], repeats: int = 11) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """Run the contest and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="5 jobs, for a look")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    running = 300
    if options.quick:
        options.jobs, options.rounds, running = 5, 1, 5
    argv = options.program or ["/bin/true"]
    argv[0] = shutil.which(argv[0]) or parser.error(f"no program {argv[0]}")
    ballast = bytearray(BALLAST)
    ballast[::4096] = b"x" * len(ballast[::4096])

    with tempfile.TemporaryDirectory(prefix="vrm-spawn-", dir=options.folder) as name:
        contest = Contest(Path(name), argv, options.jobs)
        contestants: dict[str, Callable[[], list[float]]] = {
            "bare shell loop": contest.shell_loop,
            "subprocess.Popen, wait": contest.subprocess_one_by_one,
            "spawner": contest.spawner_one_by_one,
            "spawner, all at once": contest.spawner_all_at_once,
        }
        times: dict[str, list[float]] = {who: [] for who in contestants}
        for turn in range(options.rounds):
            order = list(contestants)
            for who in order if turn % 2 else reversed(order):
                times[who] += contestants[who]()
        table = PrettyTable([" ".join(argv), "median ms", "p95 ms", "mean ms", "per second",
                             "ratio of medians"], align="r")
        shell = statistics.median(times["bare shell loop"])
        for who, found in times.items():
            found.sort()
            median, mean = statistics.median(found), statistics.fmean(found)
            table.add_row([who, f"{1e3 * median:.2f}", f"{1e3 * found[len(found) * 95 // 100]:.2f}",
                           f"{1e3 * mean:.2f}", f"{1 / mean:.0f}", f"{median / shell:.3f}"])
        print(f"{options.jobs} jobs in each of {options.rounds} rounds, one after the other; all "
              "at once: the time of a round by its number of jobs")
        print(table)
        print(sleepers(contest, running), flush=True)
    del ballast


if __name__ == "__main__":
    main()
