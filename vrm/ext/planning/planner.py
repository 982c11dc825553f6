"""Plans in a process of its own: a manager with the backfilling `cp` asks for one and goes on.

The process reads problems from its standard input and writes plans to its standard output, a line of
JSON each. It ends with its manager, however that ends: there is nothing to read any more then.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace

from vrm.ext.planning.plan import Effort, PlanningProblem, solve

LONGEST = 0.7
"""Seconds that a search takes at most; with reading, rules of thumb and writing a decision takes one."""

PATIENCE = 10.0
"""Seconds after which a process that gives no answer is given up."""


class Planner:
    """Asks for one plan at a time; see `vrm.ext.planning.planning.BackgroundPlanner`. `process` makes it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._since = 0.0

    def start(self) -> subprocess.Popen[bytes]:
        """The process, started where there is none; it loads the solver at once."""
        process = self.process
        if process is None or process.poll() is not None:
            self.close()
            process = self.process = subprocess.Popen(
                [sys.executable, "-m", "vrm.ext.planning.planner"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/")
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
        return process

    def ask(self, problem: PlanningProblem, effort: Effort, now: float) -> None:
        """Begin to look for a plan; `now` is in seconds."""
        process = self.start()
        self._read, self._since = b"", now
        limited = replace(effort, wall=LONGEST, most=min(effort.most, 1.0))
        line = json.dumps([problem.record(), limited.record()]) + "\n"
        assert process.stdin is not None
        try:
            process.stdin.write(line.encode())
            process.stdin.flush()
        except OSError:  # it has ended: there will be no answer
            self.close()

    def answer(self, now: float) -> list[int] | None:
        """The starts of the plan; None while it is looked for, [] where there will be none."""
        if self.process is None or now > self._since + PATIENCE:
            self.close()
            return []
        assert self.process.stdout is not None
        try:
            self._read += os.read(self.process.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            pass
        if self._read.endswith(b"\n"):
            found: list[int] = json.loads(self._read)
            return found
        return [] if self.process.poll() is not None else None

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def main() -> None:
    """Answer the problems of standard input until it ends."""
    importlib.import_module("ortools.sat.python.cp_model")  # the first answer need not wait for it
    for line in sys.stdin:
        problem, effort = json.loads(line)
        found = solve(PlanningProblem.read(problem), Effort(*effort))
        print(json.dumps(found or []), flush=True)


if __name__ == "__main__":
    main()
