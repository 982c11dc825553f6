"""The part that puts the commands where the scripts of a run find them."""

from __future__ import annotations

import contextlib
import threading

from vrm.ext.slurm.calls import build
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Launched, Part
from vrm.run.journal.past import Past
from vrm.ext.steps.used import PROGRAM
from vrm.ext.building import compiling


class CommandPrograms(Part):
    """The commands as the C program: at once where it is there already, else compiled next to the run when a script
    starts, which may need them. Until then, and without a compiler, they are scripts."""

    observes = (Launched,)

    def __init__(self, live: LiveRun) -> None:
        self._run = live.run_directory
        self._thread: threading.Thread | None = None

    def recall(self, past: Past) -> None:
        """Make the commands, before jobs start."""
        self._run.make_commands(build.scripts())
        if build.ready():
            self._link()

    def observe(self, event: object) -> None:
        """A script has started: compile the program, unless that was tried."""
        if (isinstance(event, Launched) and event.job.payload.script and self._thread is None
                and not build.current(self._run.programs / PROGRAM)):
            self._thread = threading.Thread(target=self._link, name="commands", daemon=True)
            self._thread.start()

    def _link(self) -> None:
        with contextlib.suppress(OSError):
            build.link(self._run.programs)

    def leave(self) -> None:
        """Wait for the compiler."""
        if self._thread is not None:
            self._thread.join(compiling.SECONDS)
