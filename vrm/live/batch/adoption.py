"""Adds the processes of jobs to the batch job around vrm, so that they end and stop with it.

Slurm, and sites that confine jobs by control groups, do this themselves. OpenPBS and PBS
Professional identify a job by its sessions: the session of the job's script, and those that
`pbs_attach` adds. vrm's jobs have sessions of their own, and so do processes that ssh starts on
other nodes. Without pbs_attach they outlive `qdel -W force` or a killed vrm, and they continue to
compute while PBS has suspended the job and given its cores to others.

| session | is added by |
|---|---|
| of a job on vrm's node (mpirun, or the program itself) | `Adoption`, ATTACH_AFTER seconds after its start |
| of vrm's agent and runner on another node, with the programs that it starts | the command that ssh runs, see `vrm.live.nodes.agents` |
| of mpirun's daemon on another node | Open MPI, which uses pbs_attach as its launch agent |
"""

from __future__ import annotations

import collections
import os
import subprocess
from collections.abc import Mapping

from vrm.live.batch.allocation import attach_command

ATTACH_AFTER = 1.0
"""Seconds after which a job that still runs is added; each addition is one more record in PBS."""

GIVEN_UP_AFTER = 5.0
"""Maximum seconds that pbs_attach may take."""


class Adoption:
    """Adds the sessions of jobs to the batch job, one after the other and without ever blocking.

    `command` comes from `vrm.live.batch.allocation.attach_command`; if it is empty, nothing is done. `trouble`: why the
    last session could not be added.
    """

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str] | None = None) -> None:
        self.trouble = ""
        self._command = command
        self._env = dict(os.environ if env is None else env)
        self._waiting: collections.deque[tuple[float, int, int]] = collections.deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._since = 0.0

    def add(self, job_id: int, session: int, now: float) -> None:
        """Add a session after ATTACH_AFTER seconds, if its job still runs then."""
        if self._command:
            self._waiting.append((now + ATTACH_AFTER, job_id, session))

    def attach(self, session: int) -> None:
        """Add a session of vrm's own at the next `poll`, without the delay."""
        if self._command:
            self._waiting.appendleft((0.0, -1, session))

    def deadline(self, now: float) -> float:
        """Return when to call `poll` again, on its clock."""
        if self._process is not None:
            return now + 0.05
        return self._waiting[0][0] if self._waiting else float("inf")

    def poll(self, now: float, sessions: Mapping[int, int | None]) -> None:
        """Add the sessions that are due; `sessions` are those of the running jobs, by id."""
        if self._process is not None:
            if self._process.poll() is None:
                if now < self._since + GIVEN_UP_AFTER:
                    return
                self._process.kill()
                self._process.wait()
            self._ended(self._process)
            self._process = None
        while self._waiting and now >= self._waiting[0][0]:
            _, job_id, session = self._waiting.popleft()
            if job_id >= 0 and sessions.get(job_id) != session:
                continue  # it has ended
            try:
                self._process = subprocess.Popen(
                    [*self._command, "-p", str(session)], env=self._env, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                    cwd="/")
            except OSError as error:
                self.trouble = f"{self._command[0]}: {error.strerror}"
                continue
            self._since = now
            return

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        said = process.stderr.read(2000).decode(errors="replace").strip()
        process.stderr.close()
        self.trouble = "" if process.returncode == 0 else (
            said or f"{self._command[0]} ended with {process.returncode}")


def launch_agent(major: int, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make mpirun of Open MPI start its daemons on other nodes inside the batch job; empty if
    that is not necessary."""
    command = " ".join(attach_command(env))
    if not command:
        return {}
    if major < 5:
        return {"OMPI_MCA_orte_launch_agent": f"{command} orted"}
    return {"PRTE_MCA_prte_launch_agent": f"{command} prted"}
