"""Starts jobs for the manager without making it wait, and tells it how they end.
The processes behind it, and the order of what they do, are described in `supervisor.py`.
"""

from __future__ import annotations

import array
import collections
import contextlib
import enum
import errno
import importlib.util
import json
import marshal
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from vrm.live.spawn import supervisor
from vrm.live.spawn.remote import UNREACHED, Relay
from vrm.system.errors import RunError
from vrm.system.files import read_own
from vrm.system.processes import boot_id, read_stat

JobId = Union[int, str]
PathLike = Union[str, bytes, "os.PathLike[Any]"]

_ENCODING = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


class _Encoded(Dict[str, bytes]):
    """Texts as the kernel has them: nearly all of a job's environment is that of the job before."""

    def __missing__(self, text: str) -> bytes:
        if len(self) >= 4096:
            self.clear()
        self[text] = data = text.encode(*_ENCODING)
        return data


_encoded = _Encoded()

PACKET = 1 << 16
"""Bytes read from a supervisor at once."""

KEPT = 32
"""Supervisors without a job that are kept for the next ones."""

FORKS = 64
"""Supervisors at most that are asked for at the same time."""

FILES = 1 << 16
"""Open files that this process may have, if its hard limit allows it: one for each supervisor."""

ATTEMPTS = 3
"""Supervisors that may be killed before they begin a job; then it counts as lost."""

LARGEST = 1 << 20
"""Bytes of the longest marker or status that is read."""

DYING = 1.0
"""Seconds at most between the end of a supervisor's socket and its death."""

GONE_WITHIN = 5.0
"""Seconds in which a spawner that was told to end must have ended."""


class SpawnerError(RunError):
    """The spawner cannot be used; the text says why."""


class RecordError(Exception):
    """A marker or status file cannot be understood; the text names it."""


# How jobs end.

@dataclass(frozen=True)
class ExitStatus:
    """How a job ended: one of exit code, signal and error is set.

    `start` and `end` are seconds since the epoch by the wall clock; `duration` comes from a
    clock that does not jump. `user` and `system` are the CPU seconds of the program and of all
    descendants it waited for, `maxrss` is the largest memory of any one of them, in bytes.
    """

    code: Optional[int]
    signal: Optional[int]
    error: Optional[str]
    start: float
    end: float
    user: float
    system: float
    maxrss: int
    duration: float

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


def read_status(path: PathLike, job: Optional[JobId] = None) -> Optional[ExitStatus]:
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
        return ExitStatus(*(values[name] for name in ExitStatus.__dataclass_fields__))
    except (KeyError, TypeError) as error:
        raise RecordError(f"{os.fsdecode(path)} is not a job's exit status: {error!r}") from error


@dataclass(frozen=True)
class Marker:
    """A live job's marker file: which process supervises it.

    `pid` is the supervisor's process number and the number of the session in which the job
    runs, `started` its start time in clock ticks since the boot named by `boot` of machine
    `host`; `time` is the launch in seconds since the epoch.
    """

    id: JobId
    pid: int
    started: int
    boot: str
    host: str
    time: float

    @classmethod
    def read(cls, path: PathLike, job: Optional[JobId] = None) -> Optional[Marker]:
        """The marker in `path`, or None if there is none.

        Raises RecordError if the file cannot be read, or is not a marker, or not that of the `job`.
        """
        lines = _read_lines(path, job)
        if lines is None:
            return None
        values = lines[0]
        try:
            marker = cls(*(values[name] for name in cls.__dataclass_fields__))
            if not (type(marker.pid) is type(marker.started) is int and marker.pid > 0
                    and type(marker.boot) is type(marker.host) is str):
                raise TypeError("its values are of the wrong kinds")
            return marker
        except (KeyError, TypeError) as error:
            raise RecordError(f"{os.fsdecode(path)} is not a job's marker: {error!r}") from error

    def alive(self) -> Optional[bool]:
        """Whether the supervisor lives; None if that cannot be told from this machine."""
        if self.host != os.uname().nodename:
            return None
        if self.boot != boot_id():
            return False
        stat = read_stat(self.pid)
        return stat is not None and stat.pid.started == self.started and not stat.dead


def _read_lines(path: PathLike, job: Optional[JobId]) -> Optional[List[Dict[str, Any]]]:
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


# What is asked and what is told.

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
    are opened there. `reports`: a file for the lines of standard error in which the launcher's
    program reports bindings, how many these are, and by what they are known (see `Launch`).
    `append`: the outputs are not emptied first. `stdin`: the file that is its standard input.
    """

    id: JobId
    argv: Sequence[PathLike]
    env: Mapping[str, str]
    cwd: PathLike
    stdout: PathLike
    stderr: PathLike
    marker: PathLike
    status: PathLike
    affinity: Optional[Sequence[int]] = None
    sync: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    reports: Optional[Tuple[PathLike, int, Tuple[Tuple[bytes, bytes, bytes], ...]]] = None
    append: bool = False
    stdin: PathLike = ""

    def packed(self, old: bytes = b"") -> bytes:
        """The request as the supervisor reads it; `old` is a file that may become the marker.
        Raises ValueError for an impossible one."""
        if not self.argv:
            raise ValueError(f"job {self.id}: no program to start")
        try:
            limits = tuple((name, getattr(resource, f"RLIMIT_{name.upper()}"), value)
                           for name, value in self.limits.items())
        except AttributeError as error:
            raise ValueError(f"job {self.id}: no such limit: {error}") from error
        order = ([os.fsencode(word) for word in self.argv],
                 {_encoded[name]: _encoded[value] for name, value in self.env.items()},
                 _absolute(self.cwd), _absolute(self.stdout), _absolute(self.stderr),
                 None if self.affinity is None else tuple(self.affinity), limits,
                 self.reports and (_absolute(self.reports[0]), *self.reports[1:]),
                 *((self.append, _absolute(self.stdin) if self.stdin else b"")
                   if self.append or self.stdin else ()))
        return marshal.dumps((json.dumps(self.id), _absolute(self.marker), _absolute(self.status),
                              self.sync, os.fsencode(self.host), order, old))


def _absolute(path: PathLike) -> bytes:
    path = path.encode(*_ENCODING) if type(path) is str else os.fsencode(path)
    return path if path.startswith(b"/") else os.path.abspath(path)


@dataclass(frozen=True)
class Started:
    """A job's program runs; `supervisor_pid` is also the number of its session."""

    id: JobId
    supervisor_pid: int
    pid: int


@dataclass(frozen=True)
class Ended:
    """A job's program ended, its status is on disk and its marker gone.

    Unless `problem` says why not (a file system turned read-only): then nobody but the receiver
    may know the status, and removing the marker is left to it. `clean`: no process of the job is
    left on this machine, in whatever session.
    """

    id: JobId
    status: ExitStatus
    problem: Optional[str] = None
    clean: bool = False


class Failure(enum.Enum):
    """Why a job could not be started: files of vrm cannot be written now, its node cannot be
    reached now, or it is something that the next attempt would meet again."""

    DISK = enum.auto()
    UNREACHED = enum.auto()
    JOB = enum.auto()


@dataclass(frozen=True)
class LaunchFailed:
    """A job could not be started; `problem` as for `Ended`."""

    id: JobId
    message: str
    problem: Optional[str] = None
    kind: Failure = field(default=Failure.JOB, compare=False)


_FULL_DISK = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))


def _failed(request: LaunchRequest, message: str, problem: Optional[str]) -> LaunchFailed:
    """The event, with its kind: supervisors, which record it in a file, give its text alone."""
    if message.endswith(_FULL_DISK) or message.startswith("marker file"):
        kind = Failure.DISK
    elif request.host and message.startswith(request.host + UNREACHED):
        kind = Failure.UNREACHED
    else:
        kind = Failure.JOB
    return LaunchFailed(request.id, message, problem, kind)


@dataclass(frozen=True)
class SupervisorLost:
    """A supervisor was killed. Its job may go on in session `supervisor_pid`; the marker stays."""

    id: JobId
    supervisor_pid: int


@dataclass(frozen=True)
class SpawnerLost:
    """The spawner itself ended. Running jobs are not touched, and their ends are still told.

    `id` is None. `Spawner.start` replaces it; the jobs in `unstarted`, which have surely not begun,
    wait for that or for a supervisor that has ended its job.
    """

    message: str
    unstarted: Tuple[JobId, ...] = ()
    id: None = None


Event = Union[Started, Ended, LaunchFailed, SupervisorLost, SpawnerLost]


@dataclass
class _Launch:
    """A job from its request to its end."""

    request: LaunchRequest
    packed: bytes
    started: bool = False
    attempts: int = 0


class _Supervisor:
    """A supervisor: its socket, its process number, its job if it has one."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.launch: Optional[_Launch] = None
        self.unsent = b""
        self.unread = b""

    def send(self, data: bytes, files: Sequence[int]) -> None:
        """Send a request with its files, as much of it as the socket takes."""
        try:
            sent = self.connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                                     array.array("i", files))])
            self.unsent = data[sent:]
        except ConnectionError:
            pass  # its end is read as well

    def flush(self) -> None:
        """Send more of a long request."""
        try:
            self.unsent = self.unsent[self.connection.send(self.unsent):]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.unsent = b""

    def receive(self) -> Tuple[List[Tuple[Any, ...]], bool]:
        """The events that have come, and whether it has ended."""
        ended = False
        try:
            data = self.connection.recv(PACKET)
            ended = not data
            self.unread += data
        except BlockingIOError:
            pass
        except ConnectionError:
            ended = True
        events = []
        while len(self.unread) >= 4:
            end = 4 + int.from_bytes(self.unread[:4], "little")
            if len(self.unread) < end:
                break
            events.append(marshal.loads(self.unread[4:end]))
            self.unread = self.unread[end:]
        return events, ended


def alive(pid: int) -> bool:
    """Whether there is such a process, and no zombie."""
    stat = read_stat(pid)
    return stat is not None and not stat.dead


class Spawner:
    """Launches jobs through processes of their own and hands out what happens to them.

    A job goes to a supervisor that has none; one more than needed is always kept ready, so that
    no fork is on the way from a decision to the start of a job.

    For an event loop: when `fileno()` is readable, `events()` has something or has written
    something; nothing here waits, but `close`. Not for use by several threads at a time.
    """

    def __init__(self, hold: Sequence[int] = (), relay: Optional[Relay] = None) -> None:
        """`hold`: open files, such as the lock of the run, which are kept open while a job may
        still be started; a lock taken with `flock` is free when that can't happen any more,
        however the manager ended. `relay` leads to other nodes; it is started and closed here."""
        self._hold = tuple(hold)
        self._relay = relay
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._control: Optional[socket.socket] = None
        self._asked = 0                                        # supervisors that are to come
        self._supervisors: Dict[int, _Supervisor] = {}         # by the number of their socket
        self._idle: List[_Supervisor] = []
        self._waiting: Deque[_Launch] = collections.deque()    # for a supervisor
        self._files = 0                                        # that a job may have open
        self._refused = False                                  # the spawner could not fork
        self._old: List[bytes] = []                            # files for the next markers
        self._renamed = 0
        self._live: Set[JobId] = set()
        self._poll: Optional[select.epoll] = None

    # Its life.

    def __enter__(self) -> Spawner:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the spawner's process, or a new one after `SpawnerLost`.

        This process may then have more open files than before; its jobs may not. Raises SpawnerError
        if the spawner cannot be started or runs already.
        """
        if self._control is not None:
            raise SpawnerError("the spawner runs already")
        if self._poll is None:
            self._poll = select.epoll()
            self._files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(self._files, min(hard, FILES)), hard))
            if self._relay is not None:
                self._start_relay()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [*self._program(), str(theirs.fileno()), str(self._files)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, cwd="/", pass_fds=[theirs.fileno()],
                start_new_session=True)
        except OSError as error:
            ours.close()
            if self._process is None:
                self.close()
            raise SpawnerError(f"cannot start {sys.executable}: {error.strerror}") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        self._control = ours
        self._asked = 0
        self._poll.register(ours, select.EPOLLIN)
        self._assign()

    @staticmethod
    def _program() -> List[str]:
        """The command line of the spawner, with the compiled file where it is that of the source.

        Compiling it anew would take longer and leave a megabyte in every supervisor.
        """
        source = supervisor.__file__
        compiled = importlib.util.cache_from_source(source)
        stat = os.stat(source)
        # What `import` compares: a file's age alone means nothing in a copied tree.
        expected = importlib.util.MAGIC_NUMBER + b"".join(
            (value & 0xFFFFFFFF).to_bytes(4, "little")
            for value in (0, int(stat.st_mtime), stat.st_size))
        try:
            with open(compiled, "rb") as file:
                fresh = file.read(16) == expected
        except OSError:
            fresh = False
        return [sys.executable, "-I", "-S", compiled if fresh else source]

    def _start_relay(self) -> None:
        """Start the relay, or another one in the place of one that has ended."""
        assert self._poll is not None and self._relay is not None
        try:
            self._poll.register(self._relay.start(), select.EPOLLIN)
        except OSError as error:
            raise SpawnerError(f"cannot start {sys.executable}: {error.strerror}") from error

    def close(self) -> None:
        """End the spawner and forget its jobs; their supervisors follow them to the end.

        What was launched a moment ago and has not started will not start. Closing twice is
        harmless.
        """
        if self._poll is None:
            return
        self._poll.close()
        self._poll = None
        resource.setrlimit(resource.RLIMIT_NOFILE,
                           (self._files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        if self._control is not None:
            self._control.close()
            self._control = None
        for each in self._supervisors.values():
            each.connection.close()
        if self._process is not None:
            self._wait()
        if self._relay is not None:
            self._relay.close()
        for path in self._old:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._old.clear()
        self._supervisors.clear()
        self._idle.clear()
        self._waiting.clear()
        self._live.clear()

    def _wait(self) -> int:
        """Wait for the process, which is about to end; returns what it returned."""
        assert self._process is not None
        try:
            return self._process.wait(GONE_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    @property
    def pid(self) -> Optional[int]:
        """Process number of the spawner, None if there is none."""
        return self._process.pid if self._process and self._control is not None else None

    # Its use.

    def fileno(self) -> int:
        """A descriptor that is readable when `events` should be called."""
        if self._poll is None:
            raise SpawnerError("the spawner was not started")
        return self._poll.fileno()

    def launch(self, request: LaunchRequest) -> None:
        """Start a job; returns at once, also while the spawner is busy.

        What an earlier attempt left of status and marker is removed. After a `SpawnerLost` the
        job may wait for `start`. Raises SpawnerError before the first `start`, ValueError if the
        request is impossible or the job lives already, here or by its marker, OSError if an old
        file cannot be removed.
        """
        if self._poll is None:
            raise SpawnerError("the spawner was not started")
        if request.id in self._live:
            raise ValueError(f"job {request.id} lives already")
        if os.path.exists(request.marker):
            self._remove_marker(request)
        packed = request.packed(self._old[-1] if self._old else b"")
        del self._old[-1:]
        try:
            os.unlink(request.status)
        except FileNotFoundError:
            pass
        self._live.add(request.id)
        self._refused = False
        self._waiting.append(_Launch(request, len(packed).to_bytes(4, "little") + packed))
        self._assign()

    @staticmethod
    def _remove_marker(request: LaunchRequest) -> None:
        """Remove a marker whose supervisor is dead for sure; raises ValueError otherwise."""
        try:
            marker = Marker.read(request.marker)
        except RecordError as error:
            raise ValueError(f"job {request.id}: {error}; remove it if the job does not run") from error
        if marker is not None and marker.alive() is not False:
            raise ValueError(f"job {request.id} lives already, as process {marker.pid} on "
                             f"{marker.host} ({os.fsdecode(request.marker)})")
        os.unlink(request.marker)

    def recorded(self, status: PathLike) -> None:
        """The end that a status file tells of is on record elsewhere: the file is not needed any
        more. It becomes the marker of a later job, or is removed. Raises OSError."""
        self._renamed += 1
        folder = os.path.dirname(_absolute(status))
        try:
            if len(self._old) < KEPT:
                # Under its own name it might be mistaken for the status of the job's next start.
                old = os.path.join(folder, b".%d.old" % self._renamed)
                os.rename(status, old)
                self._old.append(old)
            else:
                os.unlink(status)
        except FileNotFoundError:
            pass

    def _assign(self) -> None:
        """Give waiting jobs to supervisors without one, and ask for as many as are missing."""
        while self._waiting and self._idle:
            each, launch = self._idle.pop(), self._waiting.popleft()
            each.launch = launch
            launch.attempts += 1
            relay = [self._relay.fileno()] if self._relay and launch.request.host else []
            each.send(launch.packed, [*relay, *self._hold])
            if each.unsent and self._poll is not None:
                self._poll.modify(each.connection, select.EPOLLIN | select.EPOLLOUT)
        spare = not self._idle and not self._refused
        wanted = min(FORKS, len(self._waiting) + spare) - self._asked
        if wanted > 0 and self._control is not None:
            try:
                self._control.send(bytes(wanted))
                self._asked += wanted
            except (BlockingIOError, ConnectionError):
                pass  # it is asked again when it answers, or replaced

    def events(self) -> List[Event]:
        """What has happened since the last call, in order; [] if nothing.

        After an `Ended`, `LaunchFailed` or `SupervisorLost` its id is free again.
        """
        if self._poll is None:
            raise SpawnerError("the spawner was not started")
        told: List[Event] = []
        lost = False
        for descriptor, mask in self._poll.poll(0):
            each = self._supervisors.get(descriptor)
            if each is not None:
                if mask & select.EPOLLOUT:
                    each.flush()
                    if not each.unsent:
                        self._poll.modify(each.connection, select.EPOLLIN)
                if mask & ~select.EPOLLOUT:
                    self._hear(told, each)
            elif self._relay is not None and descriptor == self._relay.life:
                self._start_relay()
            elif self._control is not None and descriptor == self._control.fileno():
                lost = not self._welcome(told)
        if lost:
            self._spawner_lost(told)
        self._assign()
        return told

    def _welcome(self, told: List[Event]) -> bool:
        """Take the supervisors that the spawner has forked; False if it has ended."""
        assert self._control is not None and self._poll is not None
        while True:
            try:
                data, files, _, _ = socket.recv_fds(self._control, PACKET, 1,
                                                    socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not data:
                return False
            self._asked -= 1
            answer = marshal.loads(data)
            if files:
                connection = socket.socket(fileno=files[0])
                connection.setblocking(False)
                each = _Supervisor(connection, answer)
                self._supervisors[files[0]] = each
                self._idle.append(each)
                self._poll.register(connection, select.EPOLLIN)
                continue
            self._refused = True
            if self._waiting:
                reason = answer if isinstance(answer, str) else os.strerror(errno.EMFILE)
                launch = self._waiting.popleft()
                self._live.remove(launch.request.id)
                told.append(LaunchFailed(launch.request.id,
                                         f"no process for its supervisor: {reason}"))

    def _hear(self, told: List[Event], each: _Supervisor) -> None:
        """What a supervisor tells, or its end."""
        events, ended = each.receive()
        for kind, *values in events:
            launch = each.launch
            assert launch is not None
            if kind == supervisor.STARTED:
                self._started(told, each, *values)
                continue
            if kind == supervisor.ENDED:
                pid, status, problem, clean = values
                self._started(told, each, pid)
                told.append(Ended(launch.request.id, ExitStatus(*status), problem, clean))
            else:
                message, problem, clean = values
                told.append(_failed(launch.request, message, problem))
            each.launch = None
            self._live.remove(launch.request.id)
            if clean and problem is None and len(self._idle) < KEPT:
                self._idle.append(each)
            else:
                self._drop(each)
                return
        if ended:
            self._drop(each)
            if each.launch is not None:
                self._lost(told, each, each.launch)

    def _drop(self, each: _Supervisor) -> None:
        """Forget a supervisor, which ends when it has no job."""
        del self._supervisors[each.connection.fileno()]
        assert self._poll is not None
        self._poll.unregister(each.connection)
        each.connection.close()
        if each in self._idle:
            self._idle.remove(each)

    @staticmethod
    def _started(told: List[Event], each: _Supervisor, pid: int) -> None:
        """The start is told once, by whatever tells of it first."""
        launch = each.launch
        assert launch is not None
        if not launch.started:
            launch.started = True
            told.append(Started(launch.request.id, each.pid, pid))

    def _lost(self, told: List[Event], each: _Supervisor, launch: _Launch) -> None:
        """A supervisor is gone: tell the end which it recorded, or its loss; a job which it has not
        begun goes to another."""
        request = launch.request
        event: Event = SupervisorLost(request.id, each.pid)
        limit = time.monotonic() + DYING
        while alive(each.pid) and time.monotonic() < limit:
            time.sleep(0.001)  # its files are closed a moment before it is dead
        try:
            if (launch.attempts < ATTEMPTS and Marker.read(request.marker, request.id) is None
                    and not os.path.exists(request.status)):
                self._waiting.appendleft(launch)
                return
        except RecordError:
            pass
        for path, problem in ((request.status, None), (request.marker, "status still in marker")):
            try:
                status = read_status(path, request.id)
            except RecordError:
                continue
            if status is not None:
                event = (_failed(request, status.error, problem) if status.error is not None
                         else Ended(request.id, status, problem))
                break
        self._live.remove(request.id)
        told.append(event)

    def _spawner_lost(self, told: List[Event]) -> None:
        """Tell of its end, and of what supervisors said before."""
        assert self._poll is not None and self._control is not None and self._process is not None
        self._poll.unregister(self._control)
        self._control.close()
        self._control = None
        code = self._wait()
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        told.append(SpawnerLost(f"the process that starts jobs (pid {self._process.pid}) {cause}",
                                tuple(launch.request.id for launch in self._waiting)))
