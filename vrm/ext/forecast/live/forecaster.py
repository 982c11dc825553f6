"""Starts, feeds and ends the background process that forecasts when jobs start
(`vrm.ext.forecast.live.process`). The manager's loop never waits for it, whatever happens to it."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Callable

from vrm.config.schema import Settings, to_line
from vrm.results.forecast import ManagerReport
from vrm.run.rundir import RunDirectory
from vrm.run.state import State

RESTARTS = 3
"""Number of times that the process is started again after it has ended by itself."""

FIRST = 2.0
"""Seconds before the first forecast of a run with waiting jobs: many runs end earlier."""

PATIENCE = 1.0
"""Seconds to wait for the killed process; on a hanging file system it may need longer."""

LARGEST = 1 << 20
"""Greatest number of bytes that are kept for a process which does not read; later reports are dropped."""


class Forecaster:
    """Makes forecasts in a background process, from `begin` on (seconds of the manager's clock). `warn` is
    called once, when there will be no more forecasts. `process` is the process; `left` are the bytes that its
    pipe has not accepted yet."""

    def __init__(self, settings: Settings, run: RunDirectory, begin: float,
                 warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._path = run.forecast
        self._begin = begin
        self._warn = warn
        self.process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.left = b""  # not accepted by the pipe yet

    def _start(self) -> None:
        """Start the process."""
        self._starts += 1
        try:
            self.process = process = subprocess.Popen(
                [sys.executable, "-m", "vrm.ext.forecast.live.process"], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, cwd="/")
        except OSError as error:
            self._begin = math.inf
            self._give_up(str(error.strerror))
            return
        for pipe in (process.stdin, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self.left = to_line(self._settings).encode() + b"\n"

    def begin(self, now: float) -> float:
        """Start to make forecasts for a run that begins at `now`; return when the process gets its first
        report."""
        self._begin = now + FIRST
        return self._begin

    def awake(self, state: State, now: float) -> bool:
        """Return whether the process is to get reports."""
        return self.process is not None or (now >= self._begin and bool(state.waiting))

    def tell(self, state: State, phase: str, end: float, now: float) -> None:
        """Send a report to the process, because something may have happened to the run; see
        `vrm.results.forecast.ManagerReport`."""
        if self.process is None:
            self._start()
        process = self.process
        if process is None:
            return
        if len(self.left) < LARGEST:
            nodes, up = state.cluster.nodes, state.cluster.up
            down = frozenset(node.name for number, node in enumerate(nodes) if not up >> number & 1)
            self.left += ManagerReport(phase, end, down, now).to_line().encode() + b"\n"
        assert process.stdin is not None
        try:
            self.left = self.left[os.write(process.stdin.fileno(), self.left):]
        except BlockingIOError:
            pass
        except OSError:
            self._ended()

    def _ended(self) -> None:
        """Handle the end of the process: start it again, or give up."""
        process = self.process
        assert process is not None and process.stderr is not None
        said = b""
        with contextlib.suppress(OSError):
            said = os.read(process.stderr.fileno(), 1 << 16)
        self._remove()
        if self._starts <= RESTARTS:
            self._start()
        else:
            self._begin = math.inf
            self._give_up(said.decode(errors="replace").strip().rpartition("\n")[2])

    def _give_up(self, why: str) -> None:
        self._warn("forecasts have ended: the process that makes them ended several times"
                   + (f" ({why})" if why else ""))

    def _remove(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        for pipe in (process.stdin, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # the last report is of no use any more
                    pipe.close()

    def close(self) -> None:
        """End the process and remove its forecast, which is no longer valid without the manager."""
        self._remove()
        with contextlib.suppress(OSError):
            for path in (self._path, *self._path.parent.glob(f".{self._path.name}.*")):  # also half-written ones
                path.unlink(missing_ok=True)
