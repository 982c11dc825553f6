"""Reads the two files that a supervisor leaves on disk for a job: the marker (the job runs) and the status (how it
ended)."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from vrm.system.files import read_own
from vrm.system.hosts import boot_id
from vrm.system.processes import Pid, read_stat, session_members, signal_process

JobId = int | str
PathLike = str | bytes | os.PathLike[Any]

LARGEST = 1 << 20
"""Bytes that are read of a marker or status file at most."""


class RecordError(Exception):
    """A marker or status file cannot be read or is damaged; the text names the file."""


@dataclass(frozen=True)
class ExitStatus:
    """How a job ended: exactly one of exit code, signal and error is set.

    `start` and `end` are seconds since the epoch by the wall clock; `duration` (seconds) comes from the monotonic
    clock. `tick` is the end on the monotonic clock of this machine, in seconds since its boot (None: written by an
    older vrm). `user` and `system` are the CPU seconds of the program and of all descendants that it waited for;
    `maxrss` is the memory of the largest of these processes, in bytes.
    """

    code: int | None
    signal: int | None
    error: str | None
    start: float
    end: float
    user: float
    system: float
    maxrss: int
    duration: float
    tick: float | None = None

    def before(self, tick: float) -> bool:
        """Return whether the program had ended before `tick`, a time of the monotonic clock (infinity: always true)."""
        return tick == math.inf or (self.tick is not None and self.tick < tick)

    @property
    def ok(self) -> bool:
        """True if the program ran and returned 0."""
        return self.code == 0

    def describe(self) -> str:
        """Return the outcome as text: `exit 3`, `killed by signal 9 (SIGKILL)` or `could not start: ...`."""
        if self.error is not None:
            return f"could not start: {self.error}"
        if self.signal is not None:
            try:
                return f"killed by signal {self.signal} ({signal.Signals(self.signal).name})"
            except ValueError:
                return f"killed by signal {self.signal}"
        return f"exit {self.code}"


def read_status(path: PathLike, job: JobId | None = None) -> ExitStatus | None:
    """Return the exit status that a supervisor wrote to `path`, or None if there is none (yet).

    `path` is a status file, or the marker of a dead supervisor, which may have been killed after it wrote the status
    into the marker and before it renamed the marker to the status file. Raises RecordError if the file cannot be read,
    is damaged, or belongs to another job than `job` (a marker is written over the status of an earlier job, and a
    machine that crashes may leave that status).
    """
    lines = _read_lines(path, job)
    if lines is None or len(lines) < 2:
        return None
    values = lines[1]
    try:
        given = {name: values[name] for name in ExitStatus.__dataclass_fields__ if name != "tick"}
        return ExitStatus(**given, tick=values.get("tick"))
    except (KeyError, TypeError) as error:
        raise RecordError(f"{os.fsdecode(path)} is not a job's exit status: {error!r}") from error


@dataclass(frozen=True)
class Marker:
    """The marker file of a running job, which names the process that supervises it.

    `pid` is the supervisor's process number and also the number of the session in which the job runs. `started` is the
    start time of that process in clock ticks since the boot `boot` of machine `host`. `time` is the launch in seconds
    since the epoch; `tick` is the launch on the monotonic clock of the host (None: written by an older vrm).
    """

    id: JobId
    pid: int
    started: int
    boot: str
    host: str
    time: float
    tick: float | None = None

    @classmethod
    def read(cls, path: PathLike, job: JobId | None = None) -> Marker | None:
        """Return the marker in `path`, or None if there is no file.

        Raises RecordError if the file cannot be read, is not a marker, or belongs to another job than `job`.
        """
        lines = _read_lines(path, job)
        if lines is None:
            return None
        values = lines[0]
        try:
            given = {name: values[name] for name in cls.__dataclass_fields__ if name != "tick"}
            marker = cls(**given, tick=values.get("tick"))
            if not (type(marker.pid) is type(marker.started) is int and marker.pid > 0
                    and type(marker.boot) is type(marker.host) is str):
                raise TypeError("its values are of the wrong kinds")
            return marker
        except (KeyError, TypeError) as error:
            raise RecordError(f"{os.fsdecode(path)} is not a job's marker: {error!r}") from error

    def alive(self) -> bool | None:
        """Return whether the supervisor is alive; None if this machine cannot know (the supervisor is on another
        host)."""
        if self.host != os.uname().nodename:
            return None
        if self.boot != boot_id():
            return False
        stat = read_stat(self.pid)
        return stat is not None and stat.pid.started == self.started and not stat.dead

    def end_idle(self, seconds: float) -> bool:
        """Kill the supervisor if it is on this machine and has no job processes, only a status that it could not write
        to disk: it would later write that status over the marker of the job's next start. Return whether it died
        within `seconds`."""
        if not self.alive() or [pid for pid in session_members(self.pid, self.started) if pid != self.pid]:
            return False
        signal_process(Pid(self.pid, self.started), signal.SIGKILL)
        limit = time.monotonic() + seconds
        while self.alive() and time.monotonic() < limit:
            time.sleep(0.001)
        return not self.alive()


def _read_lines(path: PathLike, job: JobId | None) -> list[dict[str, Any]] | None:
    """Return the JSON objects in a marker or status file: one line for the marker, then one for the status if it is
    there.

    None if there is no file. A last line without a line end counts as not written. Raises RecordError if the file
    cannot be read, has no line, or has a line of another job than `job`.
    """
    try:
        lines = read_own(os.fsdecode(path), LARGEST).split(b"\n")[:-1]
        values = [json.loads(line) for line in lines]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"cannot read {os.fsdecode(path)}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{os.fsdecode(path)} is damaged: {error}") from error
    if not values or not all(isinstance(value, dict) for value in values):
        raise RecordError(f"{os.fsdecode(path)} is damaged: it holds no marker")
    others = [value["id"] for value in values if value.get("id", job) != job]
    if job is not None and others:
        raise RecordError(f"{os.fsdecode(path)} is damaged: it holds what is known of job {others[0]}")
    return values
