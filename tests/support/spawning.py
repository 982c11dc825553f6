"""Helpers for tests of the spawner: launch jobs, wait for events, end leftover processes."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import wait_until
from vrm.live.spawn.messages import Ended, Event, LaunchFailed, LaunchRequest, Started, SupervisorLost
from vrm.live.spawn.records import ExitStatus, read_status
from vrm.live.spawn.spawner import Spawner
from vrm.system.processes import session_members, signal_process


ENV = {"PATH": os.environ.get("PATH", os.defpath)}
PYTHON = [sys.executable, "-I", "-S", "-c"]
BLOCK = "import time\ntime.sleep(600)"
"""A job that ends only when it is killed."""


class Desk:
    """Acts as a manager with an own directory: launches jobs and collects events in `seen`."""

    def __init__(self, place: Path, spawner: Spawner) -> None:
        self.place = place
        self.spawner = spawner
        self.seen: list[Event] = []
        self.sessions: list[int] = []

    def request(self, job: object, argv: Sequence[str], **values: object) -> LaunchRequest:
        """Return a launch request with all files in this directory."""
        files = {"env": ENV, "cwd": self.place, "stdout": self.place / f"{job}.o",
                 "stderr": self.place / f"{job}.e", "marker": self.marker(job),
                 "status": self.status(job)}
        return LaunchRequest(job, argv, **{**files, **values})

    def marker(self, job: object) -> Path:
        return self.place / "pids" / str(job)

    def status(self, job: object) -> Path:
        return self.place / "ended" / str(job)

    def launch(self, job: object, argv: Sequence[str], **values: object) -> None:
        self.spawner.launch(self.request(job, argv, **values))

    def collect(self) -> None:
        """Append new events to `seen`, in order."""
        if select.select([self.spawner], [], [], 0.05)[0]:
            for event in self.spawner.events():
                self.seen.append(event)
                if isinstance(event, Started):
                    self.sessions.append(event.supervisor_pid)

    def await_event(self, job: object, *kinds: type) -> Event:
        """Wait for the first event of one of these kinds for a job; return it."""
        found: list[Event] = []

        def arrived() -> bool:
            self.collect()
            found.extend(e for e in self.seen if e.id == job and isinstance(e, kinds))
            return bool(found)
        wait_until(arrived, f"{kinds} of {job}; seen: {self.seen}")
        return found[0]

    def end_of(self, job: object) -> ExitStatus:
        """Wait for a job's end; return its status, which must equal the recorded one."""
        event = self.await_event(job, Ended, LaunchFailed, SupervisorLost)
        assert isinstance(event, Ended) and event.problem is None, event
        recorded = read_status(self.status(job))
        assert recorded is not None
        assert recorded.describe() == event.status.describe()
        assert not self.marker(job).exists()
        return event.status

    def run(self, job: object, argv: Sequence[str], **values: object) -> ExitStatus:
        """Launch a job and wait for its end; return its status."""
        self.launch(job, argv, **values)
        return self.end_of(job)

    def python(self, job: object, program: str, **values: object) -> str:
        """Run a Python program that must succeed; return its output."""
        status = self.run(job, PYTHON + [program], **values)
        errors = (self.place / f"{job}.e").read_text()
        assert status.ok, (status.describe(), errors)
        return (self.place / f"{job}.o").read_text()


def children(pid: int) -> list[tuple[int, str]]:
    """Return process ids and states of a process's children."""
    found = []
    for name in os.listdir("/proc"):
        try:
            text = Path(f"/proc/{name}/stat").read_text(errors="replace") if name.isdigit() else ""
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = text.rpartition(")")[2].split()
        if fields and int(fields[1]) == pid:
            found.append((int(name), fields[0]))
    return found


def end_sessions(sessions: Sequence[int]) -> None:
    """Kill processes that a test may have left in the sessions that it started."""
    for sid in sessions:
        for pid in session_members(sid):
            if pid != sid:
                signal_process(pid, signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory for markers and statuses."""
    (tmp_path / "pids").mkdir()
    (tmp_path / "ended").mkdir()
    return tmp_path
