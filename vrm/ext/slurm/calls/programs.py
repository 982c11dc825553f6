"""Part of a manager that puts the commands where the scripts of a run find them."""

from __future__ import annotations

import contextlib
import threading

from vrm.ext.slurm.calls import build
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import JobLaunched, Part
from vrm.run.journal.history import RunHistory
from vrm.ext.steps.resource_use import PROGRAM
from vrm.ext.building import compiling


class CommandPrograms(Part):
    """Provides the commands as the C program: at once if it is compiled already; otherwise a thread compiles it when
    the first script starts. Until then, and without a compiler, the commands are scripts that start Python."""

    observes = (JobLaunched,)

    def __init__(self, live: LiveRun) -> None:
        self._run = live.run_directory
        self._thread: threading.Thread | None = None

    def recall(self, past: RunHistory) -> None:
        """Create the commands before jobs start."""
        self._run.make_commands(build.scripts())
        if build.ready():
            self._link()

    def observe(self, event: object) -> None:
        """Compile the program when a script starts, unless that was tried before."""
        if (isinstance(event, JobLaunched) and event.job.payload.script and self._thread is None
                and not build.current(self._run.programs / PROGRAM)):
            self._thread = threading.Thread(target=self._link, name="commands", daemon=True)
            self._thread.start()

    def _link(self) -> None:
        with contextlib.suppress(OSError):
            build.link(self._run.programs)

    def leave(self) -> None:
        """Wait until the compiler has ended."""
        if self._thread is not None:
            self._thread.join(compiling.SECONDS)
