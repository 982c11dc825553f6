"""`vrm run -- PROGRAM`: runs a program that submits jobs to the manager, from the manager's start until the program
ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import threading
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.ext.slurm.calls import build
from vrm.ext.slurm.calls.names import LAUNCHERS
from vrm.ext.slurm.calls.wire import DIRECTORY
from vrm.live.launch.environment import with_own_mpi
from vrm.live.manager.part import Part
from vrm.run.rundir import RunDirectory
from vrm.system import bash_env
from vrm.workload.writer_marker import HEARTBEAT, WriterMarker

GRACE = 10.0
"""Seconds that the program has to end if the manager ends before it."""


_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def _end_with_manager() -> None:
    """Run in the program's process: request SIGTERM when the manager is killed. The next manager starts the program
    again."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def surroundings(run: RunDirectory, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program: the commands of Slurm, answered by this run, are first on PATH; vrm's
    own Open MPI is added if there is no other; variables that describe a job of a surrounding batch system are
    removed."""
    found = {name: value for name, value in env.items()
             if not name.startswith(("SLURM_", "SBATCH_", "SRUN_")) or name == "SLURM_CONF"}
    folders = [str(run.launchers), str(run.programs), with_own_mpi(env.get("PATH", os.defpath))]
    return {**found, "PATH": os.pathsep.join(folders), DIRECTORY: str(run.directory),
            **bash_env.variables(run.launchers, env, [run.programs])}


class ClientProgram(Part):
    """Part of a manager that runs the program. `status` is its exit status as a shell shows it; None if it has not
    ended by itself. When the program has ended, the queue is complete."""

    def __init__(self, argv: Sequence[str], run: RunDirectory, queue: Any, env: Mapping[str, str]) -> None:
        self._argv, self._run = list(argv), run
        self._env = {**surroundings(run, os.environ), **env}
        self._marker = WriterMarker(queue)
        self._closed = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._follow, name="client", daemon=True)
        self.status: int | None = None
        self.trouble = ""
        self.name = os.path.basename(self._argv[0])

    def __enter__(self) -> ClientProgram:
        self._marker.__enter__()
        return self

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Start the program; the manager can accept its jobs now."""
        self._thread.start()

    def expects(self, now: float) -> bool:
        """Return whether the program still runs; until then an `end` line in the queue does not end the run."""
        return self.status is None and self._thread.is_alive()

    def _follow(self) -> None:
        try:
            try:
                build.link(self._run.programs)
                build.link(self._run.launchers, sorted(LAUNCHERS), self._run.programs)
                self._process = subprocess.Popen(self._argv, env=self._env, preexec_fn=_end_with_manager)
            except OSError as error:
                self.trouble = f"{error.filename or self._argv[0]}: {error.strerror}"
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
        """The manager has ended: end the program."""
        self._closed.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)
            if self._thread.ident is not None:
                self._thread.join(GRACE)
        self._marker.path.unlink(missing_ok=True)  # a later manager waits for new lines of the queue
