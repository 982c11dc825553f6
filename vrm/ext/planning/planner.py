"""Makes plans in a separate process: a manager with the backfilling `cp` requests a plan and continues meanwhile.

The process reads problems from its standard input and writes plans to its standard output, one line of
JSON each. It ends with its manager, however that ends, because its input ends then.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace

from vrm.ext.planning.planning_problem import Effort, PlanningProblem, solve

LONGEST = 0.7
"""Maximum seconds of a search; including reading, heuristics and writing, a decision takes one second."""

PATIENCE = 10.0
"""Seconds after which a process that does not answer is ended."""


class Planner:
    """Requests one plan at a time; see `vrm.ext.planning.planning_dispatcher.BackgroundPlanner`. `process` is the
    solver's process."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._since = 0.0

    def start(self) -> subprocess.Popen[bytes]:
        """Return the process; start it if necessary, and then it loads the solver at once."""
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
        """Start the search for a plan; `now` is in seconds."""
        process = self.start()
        self._read, self._since = b"", now
        limited = replace(effort, wall=LONGEST, most=min(effort.most, 1.0))
        line = json.dumps([problem.record(), limited.record()]) + "\n"
        assert process.stdin is not None
        try:
            process.stdin.write(line.encode())
            process.stdin.flush()
        except OSError:  # the process has ended: there will be no answer
            self.close()

    def answer(self, now: float) -> list[int] | None:
        """Return the starts of the plan; None during the search, [] if there will be no plan."""
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
    """Answer the problems on standard input until it ends."""
    importlib.import_module("ortools.sat.python.cp_model")  # so that the first answer does not wait for it
    for line in sys.stdin:
        problem, effort = json.loads(line)
        found = solve(PlanningProblem.read(problem), Effort(*effort))
        print(json.dumps(found or []), flush=True)


if __name__ == "__main__":
    main()
