"""Requests to a spawner (`LaunchRequest`) and the events that it reports about jobs."""

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
    """Cache of texts encoded as the kernel stores them: nearly all of a job's environment equals that of the job
    before."""

    def __missing__(self, text: str) -> bytes:
        if len(self) >= 4096:
            self.clear()
        self[text] = data = text.encode(*_ENCODING)
        return data


_encoded = _Encoded()


@dataclass(frozen=True)
class LaunchRequest:
    """A program to start as a job.

    `argv[0]` is a path, or a name to be found along the PATH of `env`; `env` is the program's whole environment.
    `stdout` and `stderr` may be the same file; they are emptied first, unless `append` is set. `stdin`: the file that
    is its standard input ("": none). `marker` exists while the job lives; `status` receives how it ended. Both must be
    on one file system, since the marker is renamed to the status.

    `affinity`: numbers of the CPUs to which the program is bound. `limits`: soft limits by the name of
    `resource.RLIMIT_*` in lower case (`{"core": 0}`). `sync`: force the status to disk before the marker is removed.
    `host`: the other node on which the program runs ("": this one); its files are opened there. `daemons`: the program
    starts daemons on other nodes through the relay (`rsh_agent.py`). `reports`: a file for the lines of standard error
    in which the launcher's program reports bindings, the number of such lines, and the marks that identify them (see
    `Launch`). `patience`: seconds that the job waits for the directories of its outputs; `make`: create them after
    that.
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
        """Return the request in the form that a supervisor reads. `old` is a file that may become the marker; `relay`
        is the name of the relay. Raises ValueError if the request is impossible."""
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
    """Return a path as absolute bytes, the form that supervisors expect."""
    path = path.encode(*_ENCODING) if type(path) is str else os.fsencode(path)
    return path if path.startswith(b"/") else os.path.abspath(path)


@dataclass(frozen=True)
class Started:
    """A job's program runs. `supervisor_pid` is the number of its supervisor and of its session. `leader` is the start
    time of the supervisor (as in `Pid`; None: unknown), since the number may belong to another process by the time
    someone looks at the session."""

    id: JobId
    supervisor_pid: int
    pid: int
    leader: int | None = None


@dataclass(frozen=True)
class Ended:
    """A job's program ended, its status is on disk and its marker is removed.

    If `problem` is set, the status could not be written (a read-only file system, for example). Then perhaps only the
    receiver of this event knows the status, and must remove the marker. `clean`: no process of the job is left on this
    machine, in any session.
    """

    id: JobId
    status: ExitStatus
    problem: str | None = None
    clean: bool = False


class Failure(enum.Enum):
    """Why a job could not be started. `LACK`: no space for its files now, or no free processes. `UNREACHED`: its node
    cannot be reached now. `JOB`: a reason that the next attempt would meet again."""

    LACK = enum.auto()
    UNREACHED = enum.auto()
    JOB = enum.auto()


@dataclass(frozen=True)
class LaunchFailed:
    """A job could not be started; `problem` has the same meaning as in `Ended`."""

    id: JobId
    message: str
    problem: str | None = None
    kind: Failure = field(default=Failure.JOB, compare=False)


_LACKING = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EAGAIN, errno.ENOMEM))


def failed(request: LaunchRequest, message: str, problem: str | None) -> LaunchFailed:
    """Return the event for a failed launch, with its kind found from `message`: supervisors record only the text in a
    file."""
    return LaunchFailed(request.id, message, problem, kind_of(message, request.host))


def kind_of(message: str, host: str) -> Failure:
    """Return why a job could not be started on node `host` ("": this machine), found from the text of the message."""
    if message.endswith(_LACKING) or message.startswith("marker file"):
        return Failure.LACK
    return Failure.UNREACHED if host and message.startswith(host + UNREACHED) else Failure.JOB


@dataclass(frozen=True)
class SupervisorLost:
    """A supervisor was killed. Its job may still run in session `supervisor_pid`; its marker is kept. `leader` as in
    `Started`."""

    id: JobId
    supervisor_pid: int
    leader: int | None = None


@dataclass(frozen=True)
class SpawnerLost:
    """The spawner itself ended. Running jobs are not affected, and their ends are still reported.

    `id` is None. `Spawner.start` starts a new spawner. The jobs in `unstarted` have certainly not begun; they wait for
    the new spawner or for a supervisor that becomes free.
    """

    message: str
    unstarted: tuple[JobId, ...] = ()
    id: None = None


Event = Started | Ended | LaunchFailed | SupervisorLost | SpawnerLost
