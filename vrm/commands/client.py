"""`vrm run -- PROGRAM`: a program that gives the manager its jobs, from the manager's begin to its own
end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import Any, Mapping, Optional, Sequence

from vrm.run.rundir import RunDirectory
from vrm.workload.writer_marker import HEARTBEAT, WriterMarker

POLL = 0.05
"""Seconds between two looks whether the manager has begun."""

GRACE = 10.0
"""Seconds that the program has to end when the manager has ended before it."""


class Client:
    """Runs the program while it lasts; `status` is its exit status as a shell shows it, None where it has
    not ended by itself. The queue is taken to be complete when the program has ended."""

    def __init__(self, argv: Sequence[str], run: RunDirectory, queue: Any, env: Mapping[str, str]) -> None:
        self._argv, self._run = list(argv), run
        self._env = {**os.environ, **env}
        self._marker = WriterMarker(queue)
        self._closed = threading.Event()
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._thread = threading.Thread(target=self._follow, name="client", daemon=True)
        self.status: Optional[int] = None
        self.trouble = ""
        self.name = os.path.basename(self._argv[0])

    def __enter__(self) -> Client:
        self._marker.__enter__()
        self._thread.start()
        return self

    def _follow(self) -> None:
        try:
            while not self._run.manager_runs():
                if self._closed.wait(POLL):
                    return
            try:
                self._process = subprocess.Popen(self._argv, env=self._env)
            except OSError as error:
                self.trouble = f"{self._argv[0]}: {error.strerror}"
                self.status = 127
                return
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = self._process.wait(HEARTBEAT / 2)
                    if not self._closed.is_set():
                        self.status = code if code >= 0 else 128 - code
                    return
                self._marker.beat()
        finally:
            self._marker.__exit__()

    def __exit__(self, *failure: object) -> None:
        """The manager has ended: so does the program."""
        self._closed.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)
            self._thread.join(GRACE)
