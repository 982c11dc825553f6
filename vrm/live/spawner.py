"""Starts jobs for the manager without making it wait, and tells it how they end.
The processes behind it, and the order of what they do, are described in `supervisor.py`.
"""

from __future__ import annotations

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
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from vrm.live import supervisor
from vrm.live.processes import boot_id, read_stat
from vrm.live.remote import Relay
from vrm.live.rundir import RunError
from vrm.system.files import read_own

JobId = Union[int, str]
PathLike = Union[str, bytes, "os.PathLike[Any]"]

_ENCODING = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())

PACKET = 1 << 16
"""Bytes that hold any event."""

LARGEST = 1 << 20
"""Bytes of the longest marker or status that is read."""

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


def read_status(path: PathLike) -> Optional[ExitStatus]:
    """The exit status that a supervisor left in `path`, or None if there is none (yet).

    `path` is a status file, or the marker of a dead supervisor, which may have been killed after
    it wrote the status there and before it turned the marker into the status file.
    Raises RecordError if the file cannot be read or is damaged.
    """
    lines = _read_lines(path)
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
    def read(cls, path: PathLike) -> Optional[Marker]:
        """The marker in `path`, or None if there is none.

        Raises RecordError if the file cannot be read or is not a marker.
        """
        lines = _read_lines(path)
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


def _read_lines(path: PathLike) -> Optional[List[Dict[str, Any]]]:
    """The objects in a file of one line for the marker and one for the status, when it is there.

    None if there is no file. A last line without its end counts as not written. Raises
    RecordError if the file cannot be read or has no line.
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
    are opened there.
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

    def packed(self) -> bytes:
        """The request as the supervisor reads it. Raises ValueError for an impossible one."""
        if not self.argv:
            raise ValueError(f"job {self.id}: no program to start")
        try:
            limits = tuple((name, getattr(resource, f"RLIMIT_{name.upper()}"), value)
                           for name, value in self.limits.items())
        except AttributeError as error:
            raise ValueError(f"job {self.id}: no such limit: {error}") from error
        order = ([os.fsencode(word) for word in self.argv],
                 {name.encode(*_ENCODING): value.encode(*_ENCODING)
                  for name, value in self.env.items()},
                 _absolute(self.cwd), _absolute(self.stdout), _absolute(self.stderr),
                 None if self.affinity is None else tuple(self.affinity), limits)
        return marshal.dumps((json.dumps(self.id), _absolute(self.marker), _absolute(self.status),
                              self.sync, os.fsencode(self.host), order))


def _absolute(path: PathLike) -> bytes:
    path = os.fsencode(path)
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
    may know the status, and removing the marker is left to it.
    """

    id: JobId
    status: ExitStatus
    problem: Optional[str] = None


@dataclass(frozen=True)
class LaunchFailed:
    """A job could not be started; `problem` as for `Ended`."""

    id: JobId
    message: str
    problem: Optional[str] = None


@dataclass(frozen=True)
class SupervisorLost:
    """A supervisor was killed. Its job may go on in session `supervisor_pid`; the marker stays.

    `supervisor_pid` is None if it was lost before it said that the job had started.
    """

    id: JobId
    supervisor_pid: Optional[int]


@dataclass(frozen=True)
class SpawnerLost:
    """The spawner itself ended. Running jobs are not touched, and their ends are still told.

    `id` is None. `Spawner.start` replaces it and launches the jobs in `unstarted`, which were
    asked for and have surely not begun.
    """

    message: str
    unstarted: Tuple[JobId, ...] = ()
    id: None = None


Event = Union[Started, Ended, LaunchFailed, SupervisorLost, SpawnerLost]


@dataclass
class _Launch:
    """A job from its request to its end."""

    request: LaunchRequest
    supervisor_pid: Optional[int] = None


class Spawner:
    """Launches jobs through a process of its own and hands out what happens to them.

    For an event loop: when `fileno()` is readable, `events()` has something or has written
    something; nothing here waits, but `close`. Not for use by several threads at a time.
    """

    def __init__(self, hold: Sequence[int] = (), relay: Optional[Relay] = None) -> None:
        """`hold`: open files, such as the lock of the run, which the spawner keeps open while it
        may still start a job; a lock taken with `flock` is free when that can't happen any more,
        however the manager ended. `relay` leads to other nodes; it is started and closed here."""
        self._hold = tuple(hold)
        self._relay = relay
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._requests: Optional[socket.socket] = None
        self._unsent = bytearray()
        # By number of the launch: late news of one is not mistaken for news of the job's next.
        self._launches: Dict[int, _Launch] = {}
        self._live: Set[JobId] = set()
        self._launched = 0
        self._poll: Optional[select.epoll] = None

    # Its life.

    def __enter__(self) -> Spawner:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the spawner's process, or a new one after `SpawnerLost`.

        Raises SpawnerError if it cannot be started or runs already.
        """
        if self._requests is not None:
            raise SpawnerError("the spawner runs already")
        if self._poll is None:
            self._events, self._event_end = socket.socketpair(
                socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # Supervisors share this end: none may block on it before its job is waited for.
            self._event_end.setblocking(False)
            self._events.setblocking(False)
            self._poll = select.epoll()
            self._poll.register(self._events, select.EPOLLIN)
            if self._relay is not None:
                self._start_relay()
        ours, theirs = socket.socketpair()
        relay = -1 if self._relay is None else self._relay.fileno()
        inherited = (theirs.fileno(), self._event_end.fileno(), relay, *self._hold)
        try:
            self._process = subprocess.Popen(
                [*self._program(), *map(str, inherited)], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, cwd="/",
                pass_fds=[each for each in inherited if each >= 0], start_new_session=True)
        except OSError as error:
            ours.close()
            if self._process is None:
                self.close()
            raise SpawnerError(f"cannot start {sys.executable}: {error.strerror}") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        self._requests = ours
        self._poll.register(ours, select.EPOLLIN)
        for number, launch in self._launches.items():
            if self._begun(launch) is None:
                self._send(number, launch.request.packed())

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
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        self._unsent.clear()
        if self._process is not None:
            self._wait()
        self._events.close()
        self._event_end.close()
        if self._relay is not None:
            self._relay.close()
        self._launches.clear()
        self._live.clear()

    def _wait(self) -> int:
        """Wait for the process, which is about to end; returns what it returned."""
        try:
            return self._process.wait(GONE_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    @property
    def pid(self) -> Optional[int]:
        """Process number of the spawner, None if there is none."""
        return self._process.pid if self._requests is not None else None

    # Its use.

    def fileno(self) -> int:
        """A descriptor that is readable when `events` should be called."""
        if self._poll is None:
            raise SpawnerError("the spawner was not started")
        return self._poll.fileno()

    def launch(self, request: LaunchRequest) -> None:
        """Start a job; returns at once, also while the spawner is busy.

        What an earlier attempt left of status and marker is removed. After a `SpawnerLost` the
        job waits for `start`. Raises SpawnerError before the first `start`, ValueError if the
        request is impossible or the job lives already, here or by its marker, OSError if an old
        file cannot be removed.
        """
        if self._poll is None:
            raise SpawnerError("the spawner was not started")
        if request.id in self._live:
            raise ValueError(f"job {request.id} lives already")
        if os.path.exists(request.marker):
            self._remove_marker(request)
        packed = request.packed()
        try:
            os.unlink(request.status)
        except FileNotFoundError:
            pass
        self._launched += 1
        self._launches[self._launched] = _Launch(request)
        self._live.add(request.id)
        if self._requests is not None:
            self._send(self._launched, packed)

    @staticmethod
    def _remove_marker(request: LaunchRequest) -> None:
        """Remove a marker whose supervisor is dead for sure; raises ValueError otherwise."""
        try:
            marker = Marker.read(request.marker)
        except RecordError as error:
            raise ValueError(f"job {request.id}: {error}; remove it if the job does not run")
        if marker is not None and marker.alive() is not False:
            raise ValueError(f"job {request.id} lives already, as process {marker.pid} on "
                             f"{marker.host} ({os.fsdecode(request.marker)})")
        os.unlink(request.marker)

    def _send(self, number: int, packed: bytes) -> None:
        idle = not self._unsent
        self._unsent += len(packed).to_bytes(4, "little") + number.to_bytes(8, "little") + packed
        if idle:
            self._flush()
            if self._unsent:
                self._poll.modify(self._requests, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self) -> None:
        """Send as much as the socket takes."""
        try:
            while self._unsent:
                del self._unsent[:self._requests.send(self._unsent)]
        except BlockingIOError:
            return
        except ConnectionError:
            return  # `events` sees the end of the spawner

    def events(self) -> List[Event]:
        """What has happened since the last call, in order; [] if nothing.

        After an `Ended`, `LaunchFailed` or `SupervisorLost` its id is free again.
        """
        if self._poll is None:
            raise SpawnerError("the spawner was not started")
        ready = dict(self._poll.poll(0))
        told: List[Event] = []
        if self._relay is not None and self._relay.life in ready:
            self._start_relay()
        # End-of-file first: every event of a launch that it concludes is then here to be read.
        mask = ready.get(self._requests.fileno(), 0) if self._requests is not None else 0
        lost = bool(mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR))
        if self._events.fileno() in ready or lost:
            self._read_events(told)
        if lost:
            self._spawner_lost(told)
        elif mask & select.EPOLLOUT:
            self._flush()
            if not self._unsent:
                self._poll.modify(self._requests, select.EPOLLIN)
        return told

    def _read_events(self, told: List[Event]) -> None:
        while True:
            try:
                kind, number, *values = marshal.loads(self._events.recv(PACKET))
            except BlockingIOError:
                return
            launch = self._launches.get(number)
            if launch is None:
                continue  # its supervisor was killed just after it had told of the end
            job = launch.request.id
            if kind == supervisor.STARTED:
                self._started(told, launch, *values)
                continue
            if kind == supervisor.ENDED:
                supervisor_pid, pid, status, problem = values
                self._started(told, launch, supervisor_pid, pid)
                event: Event = Ended(job, ExitStatus(*status), problem)
            elif kind == supervisor.FAILED:
                event = LaunchFailed(job, *values)
            else:
                event = self._ended_untold(launch)
            self._forget(number)
            told.append(event)

    def _forget(self, number: int) -> None:
        self._live.remove(self._launches.pop(number).request.id)

    @staticmethod
    def _started(told: List[Event], launch: _Launch, supervisor_pid: int, pid: int) -> None:
        """A supervisor does not wait to tell of the start: the end may be what tells of it."""
        if launch.supervisor_pid is None:
            launch.supervisor_pid = supervisor_pid
            told.append(Started(launch.request.id, supervisor_pid, pid))

    @staticmethod
    def _ended_untold(launch: _Launch) -> Event:
        """What to tell of a supervisor that is gone: the end which it recorded, or its loss."""
        request = launch.request
        for path, problem in ((request.status, None), (request.marker, "status still in marker")):
            try:
                status = read_status(path)
            except RecordError:
                continue
            if status is not None:
                if status.error is not None:
                    return LaunchFailed(request.id, status.error, problem)
                return Ended(request.id, status, problem)
        return SupervisorLost(request.id, launch.supervisor_pid)

    def _spawner_lost(self, told: List[Event]) -> None:
        """Find out where each launch stood, which is settled: no launch is under way any more."""
        self._poll.unregister(self._requests)
        self._requests.close()
        self._requests = None
        self._unsent.clear()
        code = self._wait()
        unstarted = []
        for number, launch in list(self._launches.items()):
            begun = self._begun(launch)
            if begun is None:
                unstarted.append(launch.request.id)
            elif not begun:
                told.append(self._ended_untold(launch))
                self._forget(number)
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        told.append(SpawnerLost(f"the process that starts jobs (pid {self._process.pid}) {cause}",
                                tuple(unstarted)))

    @staticmethod
    def _begun(launch: _Launch) -> Optional[bool]:
        """None: this job was not started. True: its supervisor lives or has done its work.
        False: its supervisor is dead and its marker still there."""
        if launch.supervisor_pid is None:
            try:
                marker = Marker.read(launch.request.marker)
            except RecordError:
                return False
            if marker is None:
                return True if os.path.exists(launch.request.status) else None
            return marker.alive() is not False
        return True
