"""The program behind `Spawner`: a supervisor starts a job, waits for it and records its end. It runs alone (`python -I
-S run_supervisors.py`) and imports almost nothing, since it is forked.

Two kinds of process run this file.

*The spawner*, one per manager, forks supervisors when the manager asks for them. It does nothing else, and ends when
the manager does.

*A supervisor* leads the session in which its job runs, and outlives manager and spawner. In this order it writes the
marker, starts the job, waits, writes the status, removes the marker, and reports the end to the manager. If the status
cannot be written to disk, the supervisor keeps it until the manager has recorded it; if the manager ends before, the
supervisor goes on trying to write it. The start is reported on its own only for a job that runs for a while; for a
shorter one the report of the end includes it. A supervisor ignores every signal that can be ignored: a Ctrl-C or a
batch system's warning that reaches it must not lose the status.

A supervisor takes one job after another, as long as nothing of a job is left. To know that, it is the "subreaper" of
its descendants: the kernel makes it the parent of those whose own parent has ended, whatever session or group they
have moved to. Without children it has no descendants, so its session is empty and may take the next job. If there are
some, or if it could not become a subreaper, or if the end could not be recorded, the supervisor ends, and the manager
looks for the rest.

The status is written into the marker's file, behind the marker, and the file is then renamed to the status file. So
marker and status change places in one step, a supervisor killed between the two has left the status in the marker, a
full disk has space for it (the block is there already), and a job costs one file fewer to create and none to delete
(ext4 looks at every inode that was deleted in the last minute before it gives out a new one: 100 to 1500 microseconds
a file). The next job need not create one either: a status that is on record elsewhere becomes the marker of a later
job.

A program on another node has a *stand-in* here, which the supervisor forks in its place: it gives the order to the
relay (see `relay.py`), passes signals on, and ends as the program ends there. An mpirun starts its daemons on other
nodes through the relay, too.

The wire protocol, between processes of one interpreter: every supervisor has a stream socket to the manager; the
spawner gives the other end of it to the manager. Requests and events are `marshal` tuples behind their length (four
bytes). When one side ends, the other reads end-of-file: an idle supervisor ends with the manager, and the manager
learns of a supervisor that was killed. Open files come with a request: the manager's lock and, where the relay is
needed, the file that keeps the relay alive. They stay open until the launch is on record, so when a later manager gets
the lock, no launch is under way. The file of the relay stays open for as long as an mpirun runs, which may need it.
"""

from __future__ import annotations

import gc
import marshal
import os
import resource
import sys
import time

# The C modules themselves: `signal` and `socket` import enum, which makes every fork 10 % slower.
import _signal as signal
import _socket as socket

if not __package__:  # for `run_supervisors.py`
    import home
    import serving
    import starting
    import wire
else:
    from vrm.live.runner import serving, starting, wire
    from vrm.live.spawn import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STARTED, ENDED, FAILED = range(3)
"""The kinds of event: the first field of an event."""

RECORDED = b"r"
"""Message of a manager that has recorded a status which the supervisor could not write."""

SUBREAPER = 36
"""The option of prctl(2) that makes a process the subreaper of its descendants."""

MOST_FILES = 8
"""Maximum number of open files that come with a request."""

RETRY_EVERY = 1.0
"""Seconds between attempts to write a status that could not be reported to a manager."""

RETRY_FOR = 3600.0
"""Seconds after which a supervisor stops trying to write it."""

FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1,
                     signal.SIGUSR2)
"""Signals that a stand-in passes on to its program; SIGKILL ends both."""

_IGNORED = sorted(set(starting.DEFAULTED) - {
    signal.SIGCHLD, signal.SIGCONT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS})


class ManagerGone(Exception):
    """The manager has ended, so nothing more may be started."""


class ManagerLink:
    """A supervisor's socket to the manager."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.started = 0  # the start time of this supervisor, sent with its process number in messages

    def take(self) -> tuple[Any, ...]:
        """Wait for a request; return its fields, followed by the list of open files that came with it. Raises ManagerGone."""
        try:
            data, control, _, _ = self.connection.recvmsg(
                1 << 16, socket.CMSG_SPACE(4 * MOST_FILES), socket.MSG_CMSG_CLOEXEC)
            end = 4 + int.from_bytes(data[:4], "little")
            while data and len(data) < end:
                part = self.connection.recv(end - len(data))
                data = data + part if part else part
        except ConnectionError:
            data = b""
        if not data:
            raise ManagerGone
        files = control[0][2] if control else b""
        return (*marshal.loads(data[4:]), [int.from_bytes(files[at:at + 4], sys.byteorder)
                                           for at in range(0, len(files), 4)])

    def recorded(self) -> bool:
        """Wait until the manager has recorded the reported status; False if the manager ends before that."""
        try:
            return bool(self.connection.recv(1))
        except ConnectionError:
            return False

    def closed(self) -> bool:
        """Return whether the manager has ended."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def tell(self, event: tuple[Any, ...]) -> bool:
        """Send an event; False if the manager has ended."""
        packet = marshal.dumps(event)
        try:
            self.connection.sendall(len(packet).to_bytes(4, "little") + packet)
            return True
        except ConnectionError:
            return False


def release(files: list[int]) -> None:
    """Close the open files that came with a request, since its launch is on record."""
    for descriptor in files:
        os.close(descriptor)
    files.clear()


# Files.

def write_marker(path: bytes, text: str, old: bytes) -> None:
    """Write a marker so that a reader sees all of it or none of it; raises OSError.

    `old` is a file that nobody else needs (empty: none); it is reused as the marker. It is cut to length and not
    emptied first, so that it keeps its block on the disk: to free that block, allocate another and write it at once
    (ext4 does so for a file that was emptied) cost 70 microseconds of CPU time and 200 of waiting. A machine that
    crashes may leave the old content in it; therefore each line contains the job's id.
    """
    if not old:
        folder, name = os.path.split(path)
        old = os.path.join(folder, b"." + name + b".tmp")
    write(old, text, True, False)
    os.rename(old, path)


def record(marker: bytes, status: bytes, text: str, sync: bool) -> str | None:
    """Turn a marker into a status; `text` is the whole content of the file. Return the error text, or None.

    May be repeated: it writes the whole file again from the start.
    """
    try:
        write(marker, text, False, sync)
        os.rename(marker, status)
        if sync:
            for path in (marker, status):
                descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
    except (OSError, ValueError) as error:
        said: str = starting.described("status file", status, error)
        return said
    return None


def write(path: bytes, text: str, cut: bool, sync: bool) -> None:
    """Write a small file from its beginning; `cut` removes what follows the text, `sync` forces it to disk. Raises
    OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        data = text.encode()
        length = len(data)
        while data:
            data = data[os.write(descriptor, data):]
        if cut:
            os.ftruncate(descriptor, length)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def quoted(text: str | None) -> str:
    """Return a text as a JSON string; None becomes null."""
    if text is None:
        return "null"
    import json  # only here: it would double the memory of every supervisor
    return json.dumps(text)


# The launch on another node.

def start_stand_in(link: ManagerLink, files: list[int], relay: bytes, host: bytes, order: tuple[Any, ...]) -> tuple[int, int]:
    """Fork the stand-in of a program on `host`. Return its process number, and the pipe in which it leaves its result
    (see `read_result_pipe`). `order` are the arguments of `start_job` there, `relay` the name of the relay. Raises
    StartError."""
    last_words, pen = os.pipe()
    try:
        pid = starting.fork_into(stand_in, link, last_words, files, relay, host, order, pen)
    except OSError as error:
        raise starting.StartError(f"no process for it: {starting.reason_of(error)}") from None
    os.close(pen)
    return pid, last_words


def stand_in(link: ManagerLink, last_words: int, files: list[int], relay: bytes, host: bytes, order: tuple[Any, ...], pen: int
             ) -> None:
    """Have the order carried out on the node, and end as the program ends there. `last_words` and `link` belong to the
    parent and are closed."""
    os.close(last_words)
    link.connection.close()
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, FORWARDED_SIGNALS)  # the order goes first
    answer: tuple[Any, ...] = ()
    try:
        connection = wire.connect(relay, wire.PROGRAM, host, order)

        def pass_on(number: int, frame: object) -> None:
            try:
                connection.send(bytes([number]))
            except OSError:
                pass  # it has ended

        for number in FORWARDED_SIGNALS:
            signal.signal(number, pass_on)
        release(files)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        answer = wire.answer(connection)
    except OSError:
        pass  # the relay has been killed
    if not answer:
        complain(order[4], f"vrm: the connection to {os.fsdecode(host)} was lost\n")
        os._exit(255)
    message, raw, *usage = answer
    os.write(pen, marshal.dumps((message and starting.clean(f"{os.fsdecode(host)}: {message}"), *usage)))
    if os.WIFSIGNALED(raw):
        number = os.WTERMSIG(raw)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number in starting.DEFAULTED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(raw))


def start_here(link: ManagerLink, files: list[int], order: tuple[Any, ...], place: home.MarkerDirectory) -> int:
    """Start the program on this node and return its process number; it may first wait for the directory of its
    outputs. Raises StartError."""
    try:
        pid: int = starting.start_job(*order)
        return pid
    except starting.FolderMissing as absent:
        release(files)  # the marker says that the job is under way
        raw, _ = wait_for(starting.start_wait(absent), link, b"", serving.ScriptServer({}), place)
        if raw:
            raise starting.StartError(f"{absent}; it was ended while it waited for that directory") from None
    *before, _, make = order
    later: int = starting.start_job(*before, 0.0, make)
    return later


def complain(path: bytes, text: str) -> None:
    """Add a line to a job's standard error; errors are ignored."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
                             | os.O_NONBLOCK, 0o666)
        os.write(descriptor, text.encode(errors="backslashreplace"))
        os.close(descriptor)
    except (OSError, ValueError):
        pass  # its exit status shows the failure, too


def read_result_pipe(last_words: int) -> tuple[Any, ...] | None:
    """Return what a stand-in has left in its pipe: why the program could not be started (None: it was started), its
    CPU seconds (user, system) and its memory in bytes; None if the stand-in was killed before."""
    data = os.read(last_words, 1 << 16)
    os.close(last_words)
    return marshal.loads(data) if data else None


# A supervisor's life.

def run_supervisor(link: ManagerLink, facts: HostFacts, others: tuple[socket.socket, ...] = ()) -> None:
    """Run a forked supervisor until it ends; never returns. `others` are sockets of the parent, which are closed."""
    for each in others:
        each.close()
    result = 1
    try:
        link.started = leave_spawner()
        alone = facts.become_subreaper()
        while supervise(link, facts, alone, *link.take()):
            pass
        result = 0
    except ManagerGone:
        result = 0
    finally:
        starting.PREPARED.remove()
        os._exit(result)


def leave_spawner() -> int:
    """Move this process to a session and signal handling of its own; return its start time in clock ticks."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))  # see `wait_for`
    os.setsid()
    os.dup2(0, 2)  # the spawner's stderr may be a pipe whose reader waits for the manager's end
    descriptor = os.open("/proc/self/stat", os.O_RDONLY)
    line = os.read(descriptor, 4096)
    os.close(descriptor)
    return int(line.rpartition(b")")[2].split()[19])


def number_or_null(number: int | None) -> str:
    """Return a number as JSON; None becomes null."""
    return "null" if number is None else str(number)


def supervise(link: ManagerLink, facts: HostFacts, alone: bool, name: str, marker: bytes, status: bytes, sync: bool, relay: bytes,
              host: bytes, order: tuple[Any, ...], old: bytes, files: list[int]) -> bool:
    """Run one job, from its request to the last message; return whether this supervisor may take another job.

    `alone`: this process is a subreaper. With `relay`, the first of the `files` keeps the relay of this name alive.
    """
    me = os.getpid()
    text = (f'{{"id": {name}, "pid": {me}, "started": {link.started}, "boot": "{facts.boot}", '
            f'"host": "{facts.host}", "time": {time.time():.6f}, "tick": {time.monotonic():.6f}}}\n')
    try:
        write_marker(marker, text, old)
    except (OSError, ValueError) as error:
        release(files)
        return link.tell((FAILED, starting.described("marker file", marker, error), None, True))

    code = number = message = None
    user = system = duration = 0.0
    maxrss = 0
    begin, tick = time.time(), time.monotonic()
    end, over = begin, tick
    last_words = -1
    pid = 0
    place = home.MarkerDirectory(os.path.dirname(marker))
    kept = [files.pop(0)] if relay and not host else []
    try:
        if host:
            pid, last_words = start_stand_in(link, files, relay, host, order)
        else:
            pid = start_here(link, files, order, place)
    except starting.StartError as error:
        message = str(error)
    release(files)
    if pid:
        server = serving.ScriptServer({} if host else order[1])
        raw, usage = wait_for(pid, link, b"" if host else os.path.dirname(order[3]), server, place)
        user, system, maxrss = server.end(usage)
        if order[7] is not None:
            starting.wait_for_report_filter()
        over, end = time.monotonic(), time.time()
        duration = over - tick
        if os.WIFSIGNALED(raw):
            number = os.WTERMSIG(raw)
        else:
            code = os.WEXITSTATUS(raw)
        words = read_result_pipe(last_words) if host else None
        if words is not None:
            message, user, system, maxrss = words
            if message is not None:
                code = number = None

    text += (f'{{"id": {name}, "code": {number_or_null(code)}, "signal": {number_or_null(number)}, '
             f'"error": {quoted(message)}, "start": {begin:.6f}, "end": {end:.6f}, "user": {user:.6f}, '
             f'"system": {system:.6f}, "maxrss": {maxrss}, "duration": {duration:.6f}, "tick": {over:.6f}}}\n')
    release(kept)
    problem = record(marker, status, text, sync)
    clean = alone and starting.has_no_children()
    outcome = (code, number, None, begin, end, user, system, maxrss, duration, over)
    told = link.tell((ENDED, pid, link.started, outcome, problem, clean) if message is None else (FAILED, message, problem, clean))
    if told and (problem is None or link.recorded()):
        place.close()
        return clean and problem is None
    _keep(place, problem, marker, status, text, sync)
    return False


def _keep(place: home.MarkerDirectory, problem: str | None, marker: bytes, status: bytes, text: str, sync: bool) -> None:
    """Try again to write a status that no manager has recorded: only this process knows how the job ended, and the
    disk may be full or read-only. If the run's directory was removed, kill what is left of the job."""
    last = time.monotonic() + RETRY_FOR
    while problem is not None and time.monotonic() < last and not place.look():
        time.sleep(RETRY_EVERY)
        problem = record(marker, status, text, sync)
    last = time.monotonic() + RETRY_EVERY
    while place.removed and not starting.has_no_children() and time.monotonic() < last:
        home.end_all()
        signal.sigtimedwait((signal.SIGCHLD,), RETRY_EVERY)


def wait_for(pid: int, link: ManagerLink, folder: bytes, server: serving.ScriptServer, place: home.MarkerDirectory) -> tuple[Any, ...]:
    """Wait for a program; return its wait status and resource usage. If it runs longer than `serving.AFTER`, its start
    is reported, files for the outputs of the next job are created in `folder` (if any), and its server is started.

    Other children are descendants that the program left; they are collected, too. If there is no manager and the run
    was removed from `place`, everything is killed.
    """
    start_unreported = True
    due = time.monotonic() + serving.AFTER
    while True:
        limit = max(0.0, due - time.monotonic()) if start_unreported else home.LOOK_EVERY
        if signal.sigtimedwait((signal.SIGCHLD,), limit) is None:
            if start_unreported:
                if link.tell((STARTED, pid, link.started)) and folder:
                    starting.PREPARED.make(folder)
                server.start()
                place.keep()
                start_unreported = False
            elif link.closed() and place.look():
                home.end_all()
        while True:
            child, raw, usage = os.wait4(-1, os.WNOHANG)
            if child == pid:
                return raw, usage
            if not child:
                break
            server.ended(child, usage)


# The spawner.

class HostFacts:
    """What all supervisors know: the boot, the host, and how to become a subreaper."""

    def __init__(self) -> None:
        with open("/proc/sys/kernel/random/boot_id") as file:
            self.boot = file.read().strip()
        self.host = os.uname().nodename
        try:
            import ctypes  # some Pythons are built without it
            self.prctl: Callable[..., int] | None = ctypes.CDLL(None).prctl
        except (ImportError, OSError, AttributeError):
            self.prctl = None

    def become_subreaper(self) -> bool:
        """Make this process the parent of every descendant whose own parent ends; return whether that worked."""
        return self.prctl is not None and self.prctl(SUBREAPER, 1, 0, 0, 0) == 0


def serve(control: socket.socket, facts: HostFacts) -> None:
    """Fork a supervisor for each byte that comes, until the manager has ended.

    The answer to each byte is a packet: the supervisor's process number, together with the manager's end of its
    socket; or the reason why it could not be forked.
    """
    while True:
        wanted = control.recv(1 << 16)
        if not wanted:
            return
        for _ in wanted:
            try:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                pid = starting.fork_into(run_supervisor, ManagerLink(theirs), facts, (ours, control))
            except OSError as error:
                control.send(marshal.dumps(starting.reason_of(error)))
                continue
            theirs.close()
            control.sendmsg([marshal.dumps(pid)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                                    ours.fileno().to_bytes(4, sys.byteorder))])
            ours.close()


def main(arguments: list[str]) -> int:
    """Run the spawner: `supervisor.py CONTROL FILES`, the descriptor of its socket to the manager and how many open
    files a job may have."""
    gc.disable()  # a collection would touch, and so copy, every page shared with the supervisors
    control = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(control.fileno(), False)
    resource.setrlimit(resource.RLIMIT_NOFILE,
                       (int(arguments[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects supervisors that ended
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    facts = HostFacts()
    gc.freeze()
    try:
        serve(control, facts)
    except ConnectionError:
        pass  # the manager has been killed
    return 0
