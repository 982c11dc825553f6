"""What supervisors leave on disk of a job: the marker of a live one, and how it ended."""

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
"""Bytes of the longest marker or status that is read."""


class RecordError(Exception):
    """A marker or status file cannot be understood; the text names it."""


@dataclass(frozen=True)
class ExitStatus:
    """How a job ended: one of exit code, signal and error is set.

    `start` and `end` are seconds since the epoch by the wall clock; `duration` comes from a
    clock that does not jump, and so does `tick`, the end by this machine's clock since its boot (None: an older vrm has
    not recorded it). `user` and `system` are the CPU seconds of the program and of all
    descendants it waited for, `maxrss` is the largest memory of any one of them, in bytes.
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
        """Whether the program had ended by then, on the clock of `tick`."""
        return tick == math.inf or (self.tick is not None and self.tick < tick)

    @property
    def ok(self) -> bool:
        """Whether the program ran and returned 0."""
        return self.code == 0

    def describe(self) -> str:
        """`exit 3`, `killed by signal 9 (SIGKILL)` or `could not start: ...`."""
        if self.error is not None:
            return f"could not start: {self.error}"
        if self.signal is not None:
            try:
                return f"killed by signal {self.signal} ({signal.Signals(self.signal).name})"
            except ValueError:
                return f"killed by signal {self.signal}"
        return f"exit {self.code}"


def read_status(path: PathLike, job: JobId | None = None) -> ExitStatus | None:
    """The exit status that a supervisor left in `path`, or None if there is none (yet).

    `path` is a status file, or the marker of a dead supervisor, which may have been killed after
    it wrote the status there and before it turned the marker into the status file.
    Raises RecordError if the file cannot be read or is damaged, or is not that of the `job` (a
    marker is written over the status of an earlier job, which a machine that dies may leave).
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
    """A live job's marker file: which process supervises it.

    `pid` is the supervisor's process number and the number of the session in which the job
    runs, `started` its start time in clock ticks since the boot named by `boot` of machine
    `host`; `time` is the launch in seconds since the epoch, and `tick` by the monotonic clock of the host (None in a
    marker of an older vrm).
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
        """The marker in `path`, or None if there is none.

        Raises RecordError if the file cannot be read, or is not a marker, or not that of the `job`.
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
        """Whether the supervisor lives; None if that cannot be told from this machine."""
        if self.host != os.uname().nodename:
            return None
        if self.boot != boot_id():
            return False
        stat = read_stat(self.pid)
        return stat is not None and stat.pid.started == self.started and not stat.dead

    def end_idle(self, seconds: float) -> bool:
        """End the supervisor, where it is on this machine and has no job any more, only an end that the disk has not
        taken yet: it would write that over the marker of the job's next start. Whether it is dead, within so many
        seconds."""
        if not self.alive() or [pid for pid in session_members(self.pid, self.started) if pid != self.pid]:
            return False
        signal_process(Pid(self.pid, self.started), signal.SIGKILL)
        limit = time.monotonic() + seconds
        while self.alive() and time.monotonic() < limit:
            time.sleep(0.001)
        return not self.alive()


def _read_lines(path: PathLike, job: JobId | None) -> list[dict[str, Any]] | None:
    """The objects in a file of one line for the marker and one for the status, when it is there.

    None if there is no file. A last line without its end counts as not written. Raises
    RecordError if the file cannot be read or has no line, or one of another job than `job`.
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
