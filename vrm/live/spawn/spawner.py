"""Starts jobs for the manager without making it wait, and reports how they end. `supervisor.py` describes the
processes behind it and the order of their actions."""

from __future__ import annotations

import array
import collections
import contextlib
import errno
import marshal
import os
import resource
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any
from collections.abc import Callable, Sequence

from vrm.live.spawn import run_supervisors, supervisor
from vrm.live.spawn.messages import (Ended, Event, LaunchRequest, SpawnerLost, Started,
                                     SupervisorLost, absolute, failed)
from vrm.live.spawn.records import ExitStatus, JobId, Marker, PathLike, RecordError, read_status
from vrm.live.relay.process import RelayProcess
from vrm.system.errors import RunError
from vrm.system.processes import read_stat

PACKET = 1 << 16
"""Bytes read from a supervisor at once."""

KEPT = 32
"""Idle supervisors that are kept for the next jobs, at most; also the limit for old status files that are kept as
later markers."""

FORKS = 64
"""Supervisors that may be requested from the spawner at the same time."""

FILES = 1 << 16
"""Open files that this process may have, if its hard limit allows it: one for each supervisor."""

ATTEMPTS = 3
"""Supervisors that may be killed before they begin a job; after that the job counts as lost."""

DYING = 1.0
"""Seconds at most between the end of a supervisor's socket and its death."""

GONE_WITHIN = 5.0
"""Seconds within which a spawner must end after it was asked to; then it is killed."""


class SpawnerError(RunError):
    """The spawner cannot be used; the text says why."""


@dataclass
class _Launch:
    """A job from its request to its end."""

    request: LaunchRequest
    packed: bytes
    started: bool = False
    attempts: int = 0


class _Supervisor:
    """A supervisor: its socket, its process number, and its job if it has one."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.launch: _Launch | None = None
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

    def receive(self) -> tuple[list[tuple[Any, ...]], bool]:
        """Return the events that have come, and whether the supervisor has ended."""
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
    """Return whether this process exists and is not a zombie."""
    stat = read_stat(pid)
    return stat is not None and not stat.dead


class Spawner:
    """Launches jobs through processes of their own and reports what happens to them.

    A job is given to an idle supervisor; one more than needed is always kept ready, so that no fork delays the start
    of a job after the decision.

    For an event loop: when `fileno()` is readable, call `events()`, which returns what happened and may send more
    data. Only `close` waits. Not for use by several threads at the same time.
    """

    def __init__(self, hold: Sequence[int] = (), relay: RelayProcess | None = None) -> None:
        """Create a spawner that is not started. `hold`: open files, such as the lock of the run, which are kept open
        while a job may still be started; a lock taken with `flock` is therefore free only when no start is possible
        any more, however the manager ended. `relay` leads to other nodes; this object starts and closes it."""
        self.hold = tuple(hold)
        self._relay = relay
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._asked = 0                                        # requested supervisors that have not come yet
        self._supervisors: dict[int, _Supervisor] = {}         # by the number of their socket
        self._idle: list[_Supervisor] = []
        self._waiting: collections.deque[_Launch] = collections.deque()    # for a supervisor
        self._files = 0                                        # open files that a job may have
        self._refused = False                                  # the spawner could not fork
        self._old: list[bytes] = []                            # files for the next markers
        self._renamed = 0
        self._unwritten: dict[bytes, _Supervisor] = {}         # by the status that they could not write
        self._live: set[JobId] = set()
        self._poll: select.epoll | None = None

    # Start and end.

    def __enter__(self) -> Spawner:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the spawner's process, or a new one after `SpawnerLost`.

        This process may then have more open files than before; its jobs may not. Raises SpawnerError if the spawner
        cannot be started or runs already.
        """
        if self._control is not None:
            raise SpawnerError("the spawner runs already")
        if self._poll is None:
            self._poll = select.epoll()
            self._files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(self._files, min(hard, FILES)), hard))
            if self._relay is not None:
                self._watch_relay(self._relay.started)
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
    def _program() -> list[str]:
        """The command line of the spawner."""
        return [sys.executable, "-I", "-S", run_supervisors.__file__]

    def _watch_relay(self, start: Callable[[], int]) -> None:
        """Start the relay and watch it; `start` may also replace a relay that has ended."""
        assert self._poll is not None
        try:
            self._poll.register(start(), select.EPOLLIN)
        except OSError as error:
            raise SpawnerError(f"cannot start {sys.executable}: {error.strerror}") from error

    def close(self) -> None:
        """End the spawner and forget its jobs; their supervisors follow them to their end.

        A job that was launched a moment ago and has not started will not start. Closing twice is harmless.
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
        self._unwritten.clear()
        self._live.clear()

    def _wait(self) -> int:
        """Wait for the process, which is about to end, and kill it after `GONE_WITHIN` seconds; return its exit
        code."""
        assert self._process is not None
        try:
            return self._process.wait(GONE_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    @property
    def pid(self) -> int | None:
        """Process number of the spawner, or None if there is none."""
        return self._process.pid if self._process and self._control is not None else None

    # Launches and events.

    def fileno(self) -> int:
        """Return a descriptor that is readable when `events` should be called. Raises SpawnerError before the first
        `start`."""
        if self._poll is None:
            raise SpawnerError("the spawner was not started")
        return self._poll.fileno()

    def launch(self, request: LaunchRequest) -> None:
        """Start a job; returns at once, also while the spawner is busy.

        The status and marker of an earlier attempt are removed. After a `SpawnerLost` the job may wait for `start`.
        Raises SpawnerError before the first `start`; ValueError if the request is impossible, or if the job is alive
        already (here or according to its marker); OSError if an old file cannot be removed.
        """
        if self._poll is None:
            raise SpawnerError("the spawner was not started")
        if request.id in self._live:
            raise ValueError(f"job {request.id} lives already")
        if self.release(request.status):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(request.marker)
        elif os.path.exists(request.marker):
            self._remove_marker(request)
        packed = request.packed(self._old[-1] if self._old else b"", self._relay.address if self._relay else "")
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
        """Remove a marker whose supervisor is certainly dead, or has no job any more; raises ValueError otherwise."""
        try:
            marker = Marker.read(request.marker)
        except RecordError as error:
            if isinstance(error.__cause__, OSError):
                raise ValueError(f"job {request.id}: {error}; remove it if the job does not run") from error
            marker = None  # only a machine crash leaves a part of a marker, and the supervisor has died in it
        if marker is not None and marker.alive() is not False and not marker.end_idle(DYING):
            raise ValueError(f"job {request.id} runs already, as process {marker.pid} on "
                             f"{marker.host} ({os.fsdecode(request.marker)})")
        os.unlink(request.marker)

    def recorded(self, status: PathLike) -> None:
        """Free a status file whose content is on record elsewhere: it becomes the marker of a later job, or is
        removed. Raises OSError."""
        self.release(status)
        self._renamed += 1
        folder = os.path.dirname(absolute(status))
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

    def unwritten(self, status: PathLike) -> bool:
        """Return whether a supervisor holds this status because it could not write it."""
        return absolute(status) in self._unwritten

    def release(self, status: PathLike) -> bool:
        """End the supervisor that could not write this status, since the status is on record elsewhere. Return whether
        there was such a supervisor."""
        each = self._unwritten.pop(absolute(status), None)
        if each is not None:
            with contextlib.suppress(OSError):
                each.connection.send(supervisor.RECORDED)
            self._drop(each)
        return each is not None

    def _assign(self) -> None:
        """Give waiting jobs to idle supervisors, and request the supervisors that are missing."""
        while self._waiting and self._idle:
            each, launch = self._idle.pop(), self._waiting.popleft()
            each.launch = launch
            launch.attempts += 1
            relay = [self._relay.fileno()] if self._relay and (launch.request.host or launch.request.daemons) else []
            each.send(launch.packed, [*relay, *self.hold])
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

    def events(self) -> list[Event]:
        """Return what has happened since the last call, in order; [] if nothing.

        After an `Ended`, `LaunchFailed` or `SupervisorLost` its id is free again.
        """
        if self._poll is None:
            raise SpawnerError("the spawner was not started")
        told: list[Event] = []
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
                self._watch_relay(self._relay.start)
            elif self._control is not None and descriptor == self._control.fileno():
                lost = not self._welcome(told)
        if lost:
            self._spawner_lost(told)
        self._assign()
        return told

    def _welcome(self, told: list[Event]) -> bool:
        """Add the supervisors that the spawner has forked; False if the spawner has ended."""
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
                told.append(failed(launch.request, f"no process for its supervisor: {reason}", None))

    def _hear(self, told: list[Event], each: _Supervisor) -> None:
        """Handle the events of a supervisor, or its end."""
        events, ended = each.receive()
        for kind, *values in events:
            launch = each.launch
            assert launch is not None
            if kind == supervisor.STARTED:
                self._started(told, each, *values)
                continue
            if kind == supervisor.ENDED:
                pid, leader, status, problem, clean = values
                self._started(told, each, pid, leader)
                told.append(Ended(launch.request.id, ExitStatus(*status), problem, clean))
            else:
                message, problem, clean = values
                told.append(failed(launch.request, message, problem))
            each.launch = None
            self._live.remove(launch.request.id)
            if problem is not None:
                self._unwritten[absolute(launch.request.status)] = each
            elif clean and len(self._idle) < KEPT:
                self._idle.append(each)
            else:
                self._drop(each)
                return
        if ended:
            self._unwritten = {status: other for status, other in self._unwritten.items() if other is not each}
            self._drop(each)
            if each.launch is not None:
                self._lost(told, each, each.launch)

    def _drop(self, each: _Supervisor) -> None:
        """Close the socket of a supervisor and forget it; it ends when it has no job."""
        del self._supervisors[each.connection.fileno()]
        assert self._poll is not None
        self._poll.unregister(each.connection)
        each.connection.close()
        if each in self._idle:
            self._idle.remove(each)

    @staticmethod
    def _started(told: list[Event], each: _Supervisor, pid: int, leader: int) -> None:
        """Report the start of a job once, from the first event that mentions it."""
        launch = each.launch
        assert launch is not None
        if not launch.started:
            launch.started = True
            told.append(Started(launch.request.id, each.pid, pid, leader))

    def _lost(self, told: list[Event], each: _Supervisor, launch: _Launch) -> None:
        """Handle the end of a supervisor that had a job: report the end that it recorded, or its loss; give a job that
        it had not begun to another supervisor."""
        request = launch.request
        limit = time.monotonic() + DYING
        while alive(each.pid) and time.monotonic() < limit:
            time.sleep(0.001)  # its files are closed a moment before it is dead
        marker = None
        try:
            marker = Marker.read(request.marker, request.id)
            if launch.attempts < ATTEMPTS and marker is None and not os.path.exists(request.status):
                self._waiting.appendleft(launch)
                return
        except RecordError:
            pass
        event: Event = SupervisorLost(request.id, each.pid, marker.started if marker and marker.pid == each.pid else None)
        for path, problem in ((request.status, None), (request.marker, "status still in marker")):
            try:
                status = read_status(path, request.id)
            except RecordError:
                continue
            if status is not None:
                event = (failed(request, status.error, problem) if status.error is not None
                         else Ended(request.id, status, problem))
                break
        self._live.remove(request.id)
        told.append(event)

    def _spawner_lost(self, told: list[Event]) -> None:
        """Close the socket of the spawner and report that it has ended."""
        assert self._poll is not None and self._control is not None and self._process is not None
        self._poll.unregister(self._control)
        self._control.close()
        self._control = None
        code = self._wait()
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        told.append(SpawnerLost(f"the process that starts jobs (pid {self._process.pid}) {cause}",
                                tuple(launch.request.id for launch in self._waiting)))
