"""The program behind `Spawner`: a supervisor per job that starts it, waits and records its end.
It runs alone (`python -I -S supervisor.py`) and imports next to nothing, since it is forked often.

Two kinds of process run this file.

*The spawner*, one per manager, forks supervisors and reaps them. It ends when the manager does.
One supervisor is always forked ahead of time, the *spare*: it reads the next launch request from
the manager's socket itself, so neither a fork nor a second process is on the way from a decision
to the start of mpirun. It tells the spawner which request it took, and the next spare is forked.

*A supervisor*, one per job, leads the session in which the job runs and outlives manager and
spawner. In this order it writes the marker, starts the job, tells the manager, waits, writes the
status, removes the marker, tells the manager. It ignores every signal that can be ignored: a
Ctrl-C or a batch system's warning that reaches it must not lose the status.

The status is written into the marker's file, behind the marker, and the file then renamed to the
status file. So marker and status change places in one step, a supervisor killed between the two
has left the status in the marker, a full disk has room for it (the block is there already), and
a job costs one file fewer to create and none to delete (ext4 looks at every inode that was
deleted in the last minute before it gives out a new one: 100 to 1500 microseconds a file).

A program on another node has a *stand-in* here, which the supervisor forks in its place: it hands
the order to the relay (see `relay.py`), passes signals on, and ends as the program ends there.

The wire, between processes of one interpreter: a request is `marshal` behind its length (four
bytes) and the number of the launch (eight) on a stream socket, an event is a `marshal` tuple in
a packet on a socket that all supervisors share. The request socket and the files on the command
line (the manager's lock) stay open in a supervisor until its launch is on record. So when the
manager reads end-of-file there, or a later manager gets the lock, no launch is under way any
more. A spare that is killed may have read a part of a request: then the spawner ends too, and
the manager, which knows what has not started, begins anew with another one.
"""

from __future__ import annotations

import errno
import gc
import marshal
import os
import resource
import select
import stat
import sys
import time

# The C modules themselves: `signal` and `socket` import enum, which makes every fork a tenth dearer.
import _signal as signal
import _socket as socket

STARTED, ENDED, FAILED, LOST = range(4)
"""First field of an event."""

RETRY_EVERY = 1.0
"""Seconds between attempts to write a status of which no manager could be told."""

RETRY_FOR = 3600.0
"""Seconds after which a supervisor gives up writing it."""

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1,
             signal.SIGUSR2)
"""Signals that a stand-in sends on to its program; SIGKILL ends both."""

PORTABLE = 2
"""Version of `marshal` that the Python of any node reads."""

_KEPT = (signal.SIGKILL, signal.SIGSTOP)
_DEFAULTED = sorted(signal.valid_signals() - set(_KEPT))
_IGNORED = sorted(set(_DEFAULTED) - {
    signal.SIGCHLD, signal.SIGCONT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS})


class LaunchError(Exception):
    """The job could not be started; the text says why."""


class Gone(Exception):
    """The manager or the spawner has ended, so nothing more is to be started."""


class Context:
    """What a supervisor has from the spawner: sockets, lock files, facts of the machine.

    `relay` leads to the relay, -1 where there is none. `wake` is the pipe of SIGCHLD, `taken` that
    on which a spare says which request it took, `life` one on which nothing is ever written: it
    ends with the spawner.
    """

    def __init__(self, requests: int, events: int, relay: int, held: list[int]) -> None:
        self.requests = requests
        self.events = events
        self.relay = relay
        self.held = held
        with open("/proc/sys/kernel/random/boot_id") as file:
            self.boot = file.read().strip()
        self.host = os.uname().nodename
        self.wake = os.pipe()
        self.taken = os.pipe()
        self.life = os.pipe()

    def tell(self, event: tuple, wait: bool = True) -> bool:
        """Send an event; False if there is no manager, or none to take it without `wait`."""
        packet = marshal.dumps(event)
        while True:
            try:
                os.write(self.events, packet)
                return True
            except BlockingIOError:
                if not wait:
                    return False
                room = select.poll()
                room.register(self.events, select.POLLOUT)
                room.poll()
            except ConnectionError:
                return False

    def release(self) -> None:
        """Let go of the request socket, the relay and the lock: this launch is on record."""
        for descriptor in (self.requests, self.relay, *self.held):
            if descriptor >= 0:
                os.close(descriptor)


# Files.

def write_marker(path: bytes, text: str) -> None:
    """Write a marker so that a reader sees all of it or none of it; raises OSError."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, b"." + name + b".tmp")
    write(temporary, text, os.O_TRUNC, False)
    os.rename(temporary, path)


def record(marker: bytes, status: bytes, text: str, sync: bool) -> str | None:
    """Turn a marker into a status; `text` is all of the file. Returns what went wrong, or None.

    It may be tried again: what is there already is written once more in its place.
    """
    try:
        write(marker, text, 0, sync)
        os.rename(marker, status)
        if sync:
            for path in (marker, status):
                descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
    except (OSError, ValueError) as error:
        return described("status file", status, error)
    return None


def write(path: bytes, text: str, flags: int, sync: bool) -> None:
    """Write a small file from its beginning; raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flags, 0o644)
    try:
        data = text.encode()
        while data:
            data = data[os.write(descriptor, data):]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def described(what: str, path: bytes, error: Exception) -> str:
    """`what path: reason` for an OSError or a ValueError."""
    return clean(f"{what} {os.fsdecode(path)}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """An error's reason alone, without its number and file name."""
    return getattr(error, "strerror", None) or str(error)


def clean(message: str) -> str:
    """A text that fits one packet and any terminal, however odd the file names in it."""
    return message[:2000].encode(errors="backslashreplace").decode()


def quoted(text: str | None) -> str:
    """A JSON string, or null."""
    if text is None:
        return "null"
    import json  # only here: it would double the memory of every supervisor
    return json.dumps(text)


# The launch.

def start_job(argv: list, env: dict, cwd: bytes, stdout: bytes, stderr: bytes,
              affinity: tuple | None, limits: tuple) -> int:
    """Start the program and return its process number; raises LaunchError.

    Directory, cores and limits are set on this process, inherited by the program, and taken
    back: so `posix_spawn` can be used, which says why a program could not be executed.
    """
    outputs: list = []
    cores = None
    before: list = []
    try:
        for path in (stdout,) if stderr == stdout else (stdout, stderr):
            try:
                outputs.append(open_output(path))
            except (OSError, ValueError) as error:
                raise LaunchError(described("output file", path, error)) from None
        try:
            os.chdir(cwd)
        except (OSError, ValueError) as error:
            raise LaunchError(described("working directory", cwd, error)) from None
        if affinity is not None:
            cores = os.sched_getaffinity(0)
            try:
                os.sched_setaffinity(0, affinity)
            except (OSError, ValueError) as error:
                raise LaunchError(f"CPUs {','.join(map(str, affinity))}: "
                                  f"{reason_of(error)}") from None
            if len(os.sched_getaffinity(0)) != len(set(affinity)):  # the kernel drops the others
                raise LaunchError(f"CPUs {','.join(map(str, affinity))}: not all of them may be "
                                  "used here")
        for name, kind, value in limits:
            old = resource.getrlimit(kind)
            try:
                resource.setrlimit(kind, (value, old[1]))
            except (OSError, ValueError) as error:
                raise LaunchError(f"limit {name} = {value}: {reason_of(error)}") from None
            before.append((kind, old))
        spawn = os.posix_spawn
        if b"/" not in argv[0]:
            spawn = os.posix_spawnp
            os.environb[b"PATH"] = env.get(b"PATH", os.defpath.encode())
        try:
            # A process group of its own: `kill 0` in a job script must not reach the supervisor.
            return spawn(argv[0], argv, env, setpgroup=0, setsigmask=(), setsigdef=_DEFAULTED,
                         file_actions=[(os.POSIX_SPAWN_DUP2, outputs[0], 1),
                                       (os.POSIX_SPAWN_DUP2, outputs[-1], 2)])
        except (OSError, ValueError) as error:
            raise LaunchError(refusal(argv[0], error)) from None
    finally:
        for kind, old in before:
            resource.setrlimit(kind, old)
        if cores is not None:
            os.sched_setaffinity(0, cores)
        for descriptor in outputs:
            os.close(descriptor)
        os.chdir("/")


def open_output(path: bytes) -> int:
    """Open an output file and empty it; raises OSError for links and pipes, and for the files of
    others: somebody may have put them there, or would read what the program prints."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NOFOLLOW
                         | os.O_NONBLOCK, 0o666)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode):
            if about.st_uid not in (os.geteuid(), 0, os.stat("/").st_uid):
                raise OSError(errno.EPERM, "belongs to another user; remove it")
            os.truncate(descriptor, 0)
        elif not stat.S_ISCHR(about.st_mode):  # /dev/null is all right
            raise OSError(errno.EPERM, "is a pipe or socket; remove it")
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refusal(program: bytes, error: Exception) -> str:
    """Why the kernel would not run a program, made plain where the error number misleads."""
    reason = reason_of(error)
    if isinstance(error, OSError) and os.path.isdir(program):
        reason = "is a directory"
    elif isinstance(error, FileNotFoundError) and os.path.exists(program):
        reason = "the interpreter that its first line names does not exist"
    elif isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        reason = "no program for this machine, nor a script whose first line names one (#!/bin/sh)"
    return clean(f"{os.fsdecode(program)}: {reason}")


# The launch on another node.

def start_stand_in(context: Context, host: bytes, order: tuple) -> tuple[int, int]:
    """Fork the stand-in of a program on `host`; its process number, and the pipe on which it leaves
    its last words. `order` are the arguments of `start_job` there. Raises LaunchError."""
    last_words, pen = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        raise LaunchError(f"no process for it: {reason_of(error)}") from None
    if not pid:
        try:
            os.close(last_words)
            stand_in(context, host, order, pen)
        finally:
            os._exit(255)
    os.close(pen)
    return pid, last_words


def stand_in(context: Context, host: bytes, order: tuple, pen: int) -> None:
    """Have the order carried out on the node, and end as the program does there."""
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # the order goes first
    relay = socket.socket(fileno=context.relay)
    ours, theirs = socket.socketpair()

    def pass_on(number: int, frame: object) -> None:
        try:
            ours.send(bytes([number]))
        except OSError:
            pass  # it has ended

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    data = marshal.dumps(order, PORTABLE)
    try:
        relay.sendmsg([host], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                theirs.fileno().to_bytes(4, sys.byteorder))])
        theirs.close()
        relay.detach()
        context.release()
        ours.sendall(len(data).to_bytes(4, "little") + data)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        answer = b""
        while True:
            part = ours.recv(4096)
            if not part:
                break
            answer += part
    except OSError:  # the relay has been killed
        answer = b""
    if not answer:
        complain(order[4], f"vrm: the connection to {os.fsdecode(host)} was lost\n")
        os._exit(255)
    message, raw, *usage = marshal.loads(answer)
    os.write(pen, marshal.dumps((message and clean(f"{os.fsdecode(host)}: {message}"), *usage)))
    if os.WIFSIGNALED(raw):
        number = os.WTERMSIG(raw)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in _KEPT:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(raw))


def complain(path: bytes, text: str) -> None:
    """Add a line to a job's standard error, if that is possible."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
                             | os.O_NONBLOCK, 0o666)
        os.write(descriptor, text.encode(errors="backslashreplace"))
        os.close(descriptor)
    except (OSError, ValueError):
        pass  # its exit status tells of it as well


def read_words(last_words: int) -> tuple | None:
    """What a stand-in has left: why the program could not be started (None: it was), its CPU
    seconds (user, system) and its memory in bytes; None if it was killed before."""
    data = os.read(last_words, 1 << 16)
    os.close(last_words)
    return marshal.loads(data) if data else None


# A supervisor's life.

def run_supervisor(context: Context) -> None:
    """The body of a forked child; never returns.

    It exits with 0 only when the end of its job is recorded or told, or when there is none, so
    that the spawner knows every other end as a loss.
    """
    result = 1
    try:
        os.close(context.life[1])
        os.close(context.taken[0])
        # In a burst the spawner waits to fork the next one: first take the request.
        request = take(context, 0)
        started = leave_spawner(context)
        if request is None:
            rehearse()
            request = take(context, None)
        os.close(context.life[0])
        os.close(context.taken[1])
        supervise(context, started, *request)
        result = 0
    except Gone:
        result = 0
    finally:
        os._exit(result)


def take(context: Context, timeout: int | None) -> tuple[int, bytes] | None:
    """The next request, told to the spawner as taken; None if there is none within `timeout`.

    A request of a manager that is gone is not taken, the next manager may ask for it again.
    Raises Gone.
    """
    poll = select.poll()
    poll.register(context.requests, select.POLLIN)
    poll.register(context.life[0], 0)
    ready = dict(poll.poll(timeout))
    if not ready:
        return None
    if context.life[0] in ready or ready[context.requests] & ~select.POLLIN:
        raise Gone
    launch, payload = read_request(context.requests)
    os.write(context.taken[1], os.getpid().to_bytes(8, "little") + launch.to_bytes(8, "little"))
    return launch, payload


def read_request(requests: int) -> tuple[int, bytes]:
    """A request, as the number of its launch and the rest; raises Gone."""
    head = read_exactly(requests, 12)
    size = int.from_bytes(head[:4], "little")
    return int.from_bytes(head[4:], "little"), read_exactly(requests, size)


def read_exactly(descriptor: int, size: int) -> bytes:
    """`size` bytes; raises Gone if their writer is."""
    data = os.read(descriptor, size)
    while len(data) < size:
        part = os.read(descriptor, size - len(data))
        if not part:
            raise Gone
        data += part
    return data


def rehearse() -> None:
    """Touch the memory that a launch needs while there is time: after a fork the first use of
    each page costs a microsecond."""
    write(b"/dev/null", f"{marshal.loads(marshal.dumps((time.time(), b'')))[0]:.6f}", 0, False)
    os.path.split(b"/a/b")
    try:
        os.rename(b"", b"")
    except FileNotFoundError:
        pass


def leave_spawner(context: Context) -> int:
    """Take a session and signal handling of its own; returns this process's start time."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for end in context.wake:
        os.close(end)
    os.setsid()
    os.dup2(0, 2)  # the spawner's stderr may be a pipe whose reader waits for the manager's end
    descriptor = os.open("/proc/self/stat", os.O_RDONLY)
    line = os.read(descriptor, 4096)
    os.close(descriptor)
    return int(line.rpartition(b")")[2].split()[19])


def supervise(context: Context, started: int, launch: int, payload: bytes) -> None:
    """From the request to the last message."""
    name, marker, status, sync, host, order = marshal.loads(payload)
    me = os.getpid()
    text = (f'{{"id": {name}, "pid": {me}, "started": {started}, "boot": "{context.boot}", '
            f'"host": "{context.host}", "time": {time.time():.6f}}}\n')
    try:
        write_marker(marker, text)
    except (OSError, ValueError) as error:
        context.tell((FAILED, launch, described("marker file", marker, error), None))
        return

    code = number = message = None
    user = system = duration = 0.0
    maxrss = 0
    begin, tick = time.time(), time.monotonic()
    end = begin
    last_words = -1
    try:
        if host:
            pid, last_words = start_stand_in(context, host, order)
        else:
            pid = start_job(*order)
    except LaunchError as error:
        message = str(error)
    else:
        context.tell((STARTED, launch, me, pid), wait=False)
        context.release()
        raw, usage = os.wait4(pid, 0)[1:]
        duration, end = time.monotonic() - tick, time.time()
        if os.WIFSIGNALED(raw):
            number = os.WTERMSIG(raw)
        else:
            code = os.WEXITSTATUS(raw)
        user, system, maxrss = usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024
        words = read_words(last_words) if host else None
        if words is not None:
            message, user, system, maxrss = words
            if message is not None:
                code = number = None

    text += (f'{{"id": {name}, "code": {"null" if code is None else code}, '
             f'"signal": {"null" if number is None else number}, "error": {quoted(message)}, '
             f'"start": {begin:.6f}, "end": {end:.6f}, "user": {user:.6f}, '
             f'"system": {system:.6f}, "maxrss": {maxrss}, "duration": {duration:.6f}}}\n')
    problem = record(marker, status, text, sync)
    if message is not None:
        event: tuple = (FAILED, launch, message, problem)
    else:
        event = (ENDED, launch, me, pid,
                 (code, number, None, begin, end, user, system, maxrss, duration), problem)
    if context.tell(event):
        return
    # No manager, and perhaps a full or read-only disk: only this process knows how the job ended.
    last = time.monotonic() + RETRY_FOR
    while problem is not None and time.monotonic() < last:
        time.sleep(RETRY_EVERY)
        problem = record(marker, status, text, sync)


# The spawner.

class Server:
    """The spawner's loop: keeps a spare ready until the manager is gone."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.launches: dict = {}      # supervisor's process number -> its launch, None: the spare
        self.spare = 0                # process number of the spare, 0: there is none
        self.broken = False           # the request socket may be in the middle of a request
        self.problem: Exception = Gone()      # why the last fork failed

    def serve(self) -> int:
        """Run; returns the exit code when the manager is gone or the spare was killed."""
        requests, taken, wake = self.context.requests, self.context.taken[0], self.context.wake[0]
        poll = select.poll()
        poll.register(taken, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while not self.broken:
            if not self.spare:
                self.fork_spare()
            # Requests are left to the spare; without one, each must be told that it fails.
            poll.register(requests, 0 if self.spare else select.POLLIN)
            ready = dict(poll.poll())
            if ready.get(requests, 0) & ~select.POLLIN:
                return 0
            if taken in ready:
                self.read_taken()
            if wake in ready:
                os.read(wake, 4096)
                self.reap()
            if requests in ready and not self.spare and not self.fork_spare():
                self.refuse()
        return 1

    def fork_spare(self) -> bool:
        """Fork the supervisor of the next job; False if that is not possible now."""
        try:
            pid = os.fork()
        except OSError as error:
            self.problem = error
            return False
        if not pid:
            run_supervisor(self.context)
        self.launches[pid] = None
        self.spare = pid
        return True

    def refuse(self) -> None:
        """Take a request for which there is no supervisor."""
        try:
            launch, _ = read_request(self.context.requests)
        except Gone:
            return
        self.context.tell((FAILED, launch, "no process for its supervisor: "
                           + reason_of(self.problem), None))

    def read_taken(self) -> None:
        """Note which spare became the supervisor of which launch."""
        try:
            data = os.read(self.context.taken[0], 4096)
        except BlockingIOError:
            return
        for at in range(0, len(data), 16):
            pid = int.from_bytes(data[at:at + 8], "little")
            self.launches[pid] = int.from_bytes(data[at + 8:at + 16], "little")
            if pid == self.spare:
                self.spare = 0

    def reap(self) -> None:
        """Collect ended supervisors; report those that left the end of their job unrecorded."""
        ended = []
        try:
            while True:
                pid, raw = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                ended.append((pid, raw))
        except ChildProcessError:
            pass
        self.read_taken()  # what these had still said
        for pid, raw in ended:
            launch = self.launches.pop(pid)
            if pid == self.spare:
                self.spare = 0
                self.broken = raw != 0
            elif raw:
                self.context.tell((LOST, launch, pid))


def main(arguments: list[str]) -> int:
    """Run the spawner: `supervisor.py REQUESTS EVENTS RELAY [HELD ...]`, numbers of open files.

    RELAY is -1 where all jobs run on this node.
    """
    gc.disable()  # a collection would touch, and so copy, every page shared with the supervisors
    descriptors = [int(text) for text in arguments]
    for descriptor in descriptors:
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    context = Context(*descriptors[:3], descriptors[3:])
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for end in (*context.wake, context.taken[0]):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(context.wake[1], warn_on_full_buffer=False)
    gc.freeze()
    return Server(context).serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
