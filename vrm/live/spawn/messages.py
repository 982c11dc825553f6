"""What a spawner is asked for, and what it says of jobs."""

from __future__ import annotations

import enum
import errno
import json
import marshal
import os
import resource
import sys
from dataclasses import dataclass, field
from collections.abc import Mapping, Sequence

from vrm.live.spawn.records import ExitStatus, JobId, PathLike
from vrm.live.relay.process import UNREACHED

_ENCODING = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


class _Encoded(dict[str, bytes]):
    """Texts as the kernel has them: nearly all of a job's environment is that of the job before."""

    def __missing__(self, text: str) -> bytes:
        if len(self) >= 4096:
            self.clear()
        self[text] = data = text.encode(*_ENCODING)
        return data


_encoded = _Encoded()


@dataclass(frozen=True)
class LaunchRequest:
    """A program to start as a job.

    `argv[0]` is a path, or a name to be found along the PATH of `env`, which is the program's
    whole environment. `stdout` and `stderr` are emptied first and may be the same file.
    `marker` stands while the job lives; `status` receives how it ended, and lies on the same file
    system, since the one is renamed to the other.
    `affinity`: numbers of the CPUs to which the program is bound. `limits`: soft limits by the
    name of `resource.RLIMIT_*` in lower case (`{"core": 0}`). `sync`: force the status to disk
    before the marker goes. `host`: the other node on which the program runs, if any; its files
    are opened there. `daemons`: it starts daemons of its own on other nodes, through the relay (`rsh_agent.py`).
    `reports`: a file for the lines of standard error in which the launcher's
    program reports bindings, how many these are, and by what they are known (see `Launch`).
    `append`: the outputs are not emptied first. `stdin`: the file that is its standard input.
    `patience`: seconds for which the job waits for the directories of its outputs; `make`: they are made then.
    """

    id: JobId
    argv: Sequence[PathLike]
    env: Mapping[str, str]
    cwd: PathLike
    stdout: PathLike
    stderr: PathLike
    marker: PathLike
    status: PathLike
    affinity: Sequence[int] | None = None
    sync: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    daemons: bool = False
    reports: tuple[PathLike, int, tuple[tuple[bytes, bytes, bytes], ...]] | None = None
    append: bool = False
    stdin: PathLike = ""
    patience: float = 0.0
    make: bool = False

    def packed(self, old: bytes = b"", relay: str = "") -> bytes:
        """The request as the supervisor reads it; `old` is a file that may become the marker, `relay` the name of
        the relay. Raises ValueError for an impossible one."""
        if not self.argv:
            raise ValueError(f"job {self.id}: no program to start")
        try:
            limits = tuple((name, getattr(resource, f"RLIMIT_{name.upper()}"), value)
                           for name, value in self.limits.items())
        except AttributeError as error:
            raise ValueError(f"job {self.id}: no such limit: {error}") from error
        order = ([os.fsencode(word) for word in self.argv],
                 {_encoded[name]: _encoded[value] for name, value in self.env.items()},
                 absolute(self.cwd), absolute(self.stdout), absolute(self.stderr),
                 None if self.affinity is None else tuple(self.affinity), limits,
                 self.reports and (absolute(self.reports[0]), *self.reports[1:]), self.append,
                 absolute(self.stdin) if self.stdin else b"", self.patience, self.make)
        return marshal.dumps((json.dumps(self.id), absolute(self.marker), absolute(self.status),
                              self.sync, relay.encode() if self.host or self.daemons else b"",
                              os.fsencode(self.host), order, old))


def absolute(path: PathLike) -> bytes:
    """A path as supervisors take it."""
    path = path.encode(*_ENCODING) if type(path) is str else os.fsencode(path)
    return path if path.startswith(b"/") else os.path.abspath(path)


@dataclass(frozen=True)
class Started:
    """A job's program runs; `supervisor_pid` is also the number of its session, and `leader` the start time of that process
    (as in `Pid`; None: not known): the number may be another's when the session is looked at."""

    id: JobId
    supervisor_pid: int
    pid: int
    leader: int | None = None


@dataclass(frozen=True)
class Ended:
    """A job's program ended, its status is on disk and its marker gone.

    Unless `problem` says why not (a file system turned read-only): then nobody but the receiver
    may know the status, and removing the marker is left to it. `clean`: no process of the job is
    left on this machine, in whatever session.
    """

    id: JobId
    status: ExitStatus
    problem: str | None = None
    clean: bool = False


class Failure(enum.Enum):
    """Why a job could not be started: there is no room for its files now, or for processes; its node cannot be
    reached now; or it is something that the next attempt would meet again."""

    LACK = enum.auto()
    UNREACHED = enum.auto()
    JOB = enum.auto()


@dataclass(frozen=True)
class LaunchFailed:
    """A job could not be started; `problem` as for `Ended`."""

    id: JobId
    message: str
    problem: str | None = None
    kind: Failure = field(default=Failure.JOB, compare=False)


_LACKING = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EAGAIN, errno.ENOMEM))


def failed(request: LaunchRequest, message: str, problem: str | None) -> LaunchFailed:
    """The event, with its kind: supervisors, which record it in a file, give its text alone."""
    return LaunchFailed(request.id, message, problem, kind_of(message, request.host))


def kind_of(message: str, host: str) -> Failure:
    """Why a job could not be started on a node, by what was said of it ("": on this machine)."""
    if message.endswith(_LACKING) or message.startswith("marker file"):
        return Failure.LACK
    return Failure.UNREACHED if host and message.startswith(host + UNREACHED) else Failure.JOB


@dataclass(frozen=True)
class SupervisorLost:
    """A supervisor was killed. Its job may go on in session `supervisor_pid`; the marker stays. `leader` as in `Started`."""

    id: JobId
    supervisor_pid: int
    leader: int | None = None


@dataclass(frozen=True)
class SpawnerLost:
    """The spawner itself ended. Running jobs are not touched, and their ends are still told.

    `id` is None. `Spawner.start` replaces it; the jobs in `unstarted`, which have surely not begun,
    wait for that or for a supervisor that has ended its job.
    """

    message: str
    unstarted: tuple[JobId, ...] = ()
    id: None = None


Event = Started | Ended | LaunchFailed | SupervisorLost | SpawnerLost
