"""The program behind `Spawner`: a supervisor per job that starts it, waits and records its end.
It runs alone (`python -I -S supervisor.py`) and imports next to nothing, since it is forked often.

Two kinds of process run this file.

*The spawner*, one per manager, reads launch requests from a socket, gives each to a supervisor
and reaps supervisors. It ends when the manager does. One supervisor is forked ahead of time, the
*spare*, so that the cost of a fork is not on the way from a decision to the start of mpirun;
in a burst the others are forked as they are needed.

*A supervisor*, one per job, leads the session in which the job runs and outlives manager and
spawner. In this order it writes the marker, starts the job, tells the manager, waits, writes the
status, removes the marker, tells the manager. It ignores every signal that can be ignored: a
Ctrl-C or a batch system's warning that reaches it must not lose the status.

The status is written into the marker's file, behind the marker, and the file then renamed to the
status file. So marker and status change places in one step, a supervisor killed between the two
has left the status in the marker, a full disk has room for it (the block is there already), and
a job costs one file fewer to create and none to delete (ext4 looks at every inode that was
deleted in the last minute before it gives out a new one: 100 to 1500 microseconds a file).

The wire, between processes of one interpreter: requests are `marshal` behind a four-byte length
on a stream socket, events are one `marshal` tuple per packet on a socket that all supervisors
share. The request socket and the files on the command line (the manager's lock) stay open in a
supervisor until its launch is on record. So when the manager reads end-of-file there, or a later
manager gets the lock, no launch is under way any more.
"""

from __future__ import annotations

import gc
import marshal
import os
import resource
import select
import sys
import time

# The C module itself: `signal` imports enum, which makes every fork a tenth dearer.
import _signal as signal

STARTED, ENDED, FAILED, LOST = range(4)
"""First field of an event."""

RETRY_EVERY = 1.0
"""Seconds between attempts to write a status of which no manager could be told."""

RETRY_FOR = 3600.0
"""Seconds after which a supervisor gives up writing it."""

_KEPT = (signal.SIGKILL, signal.SIGSTOP)
_DEFAULTED = sorted(signal.valid_signals() - set(_KEPT))
_IGNORED = sorted(set(_DEFAULTED) - {
    signal.SIGCHLD, signal.SIGCONT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS})


class LaunchError(Exception):
    """The job could not be started; the text says why."""


class Context:
    """What a supervisor has from the spawner: sockets, lock files, facts of the machine."""

    def __init__(self, requests: int, events: int, held: list[int]) -> None:
        self.requests = requests
        self.events = events
        self.held = held
        with open("/proc/sys/kernel/random/boot_id") as file:
            self.boot = file.read().strip()
        self.host = os.uname().nodename
        self.wake = os.pipe()

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
        """Let go of the request socket and the lock: this launch is on record."""
        os.close(self.requests)
        for descriptor in self.held:
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
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
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
                outputs.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
                                       | os.O_NOCTTY, 0o666))
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


def refusal(program: bytes, error: Exception) -> str:
    """Why the kernel would not run a program, made plain where the error number misleads."""
    reason = reason_of(error)
    if isinstance(error, OSError) and os.path.isdir(program):
        reason = "is a directory"
    elif isinstance(error, FileNotFoundError) and os.path.exists(program):
        reason = "the interpreter that its first line names does not exist"
    return clean(f"{os.fsdecode(program)}: {reason}")


# A supervisor's life.

def run_supervisor(context: Context, receive) -> None:
    """The body of a forked child; never returns.

    It exits with 0 only when the end of its job is recorded or told, so that the spawner knows
    every other end as a loss.
    """
    result = 1
    try:
        started = leave_spawner(context)
        payload = receive()
        if payload is not None:
            supervise(context, started, payload)
        result = 0
    finally:
        os._exit(result)


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


def supervise(context: Context, started: int, payload: bytes) -> None:
    """From the request to the last message."""
    (identity, name, argv, env, cwd, stdout, stderr, marker, status, affinity, limits,
     sync) = marshal.loads(payload)
    me = os.getpid()
    text = (f'{{"id": {name}, "pid": {me}, "started": {started}, "boot": "{context.boot}", '
            f'"host": "{context.host}", "time": {time.time():.6f}}}\n')
    try:
        write_marker(marker, text)
    except (OSError, ValueError) as error:
        context.tell((FAILED, identity, described("marker file", marker, error), None))
        return

    code = number = message = None
    user = system = duration = 0.0
    maxrss = 0
    begin, tick = time.time(), time.monotonic()
    end = begin
    try:
        pid = start_job(argv, env, cwd, stdout, stderr, affinity, limits)
    except LaunchError as error:
        message = str(error)
    else:
        context.tell((STARTED, identity, me, pid), wait=False)
        context.release()
        raw, usage = os.wait4(pid, 0)[1:]
        duration, end = time.monotonic() - tick, time.time()
        if os.WIFSIGNALED(raw):
            number = os.WTERMSIG(raw)
        else:
            code = os.WEXITSTATUS(raw)
        user, system, maxrss = usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024

    text += (f'{{"id": {name}, "code": {"null" if code is None else code}, '
             f'"signal": {"null" if number is None else number}, "error": {quoted(message)}, '
             f'"start": {begin:.6f}, "end": {end:.6f}, "user": {user:.6f}, '
             f'"system": {system:.6f}, "maxrss": {maxrss}, "duration": {duration:.6f}}}\n')
    problem = record(marker, status, text, sync)
    if message is not None:
        event: tuple = (FAILED, identity, message, problem)
    else:
        event = (ENDED, identity, me, pid,
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
    """The spawner's loop: hands requests to supervisors until the manager is gone."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.jobs: dict = {}          # supervisor's process number -> its job, (job,) or None
        self.spare: tuple | None = None       # process number of the spare, pipe to it
        self.can_fork = True
        self.buffer = b""

    def serve(self) -> None:
        """Take requests; returns when the manager is gone."""
        poll = select.poll()
        poll.register(self.context.requests, select.POLLIN)
        poll.register(self.context.wake[0], select.POLLIN)
        while True:
            payload = self.next_request()
            idle = payload is None and (self.spare is not None or not self.can_fork)
            ready = dict(poll.poll(None if idle else 0))
            # A manager that is gone starts nothing more: the next one may ask for it again.
            if ready.get(self.context.requests, 0) & (select.POLLHUP | select.POLLERR):
                return
            if self.context.wake[0] in ready:
                os.read(self.context.wake[0], 4096)
                self.reap()
            if payload is not None:
                self.buffer = self.buffer[4 + len(payload):]
                self.launch(payload)
            elif self.context.requests in ready:
                data = os.read(self.context.requests, 1 << 18)
                if not data:
                    return
                self.buffer += data
            elif not ready:
                self.fork_spare()

    def next_request(self) -> bytes | None:
        """The first request in the buffer, if it is there as a whole."""
        if len(self.buffer) < 4:
            return None
        end = 4 + int.from_bytes(self.buffer[:4], "little")
        return self.buffer[4:end] if len(self.buffer) >= end else None

    def launch(self, payload: bytes) -> None:
        """Give a request to the spare, or else to a new supervisor."""
        job = marshal.loads(payload)[:1]
        self.can_fork = True
        if self.spare is not None:
            pid, pipe = self.spare
            self.spare = None
            self.jobs[pid] = job
            if hand_over(pipe, payload):
                return
            del self.jobs[pid]
        try:
            pid = os.fork()
            if not pid:
                run_supervisor(self.context, lambda: payload)
            self.jobs[pid] = job
        except OSError as error:
            self.context.tell((FAILED, *job, f"no process for its supervisor: {error.strerror}",
                               None))

    def fork_spare(self) -> None:
        """Fork the supervisor of the next job; not being able to is no error yet."""
        theirs, ours = os.pipe()
        try:
            pid = os.fork()
            if not pid:
                os.close(ours)
                run_supervisor(self.context, lambda: receive(theirs))
            self.jobs[pid] = None
            self.spare = pid, ours
        except OSError:
            self.can_fork = False     # until the next request
            os.close(ours)
        os.close(theirs)

    def reap(self) -> None:
        """Collect ended supervisors; report those that left the end of their job unrecorded."""
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            job = self.jobs.pop(pid, None)
            if self.spare is not None and self.spare[0] == pid:
                os.close(self.spare[1])
                self.spare = None
            elif raw and job is not None:
                self.context.tell((LOST, *job, pid))


def hand_over(pipe: int, payload: bytes) -> bool:
    """Give the spare its request and close the pipe; False if the spare is dead."""
    data = memoryview(len(payload).to_bytes(4, "little") + payload)
    try:
        while data:
            data = data[os.write(pipe, data):]
        return True
    except BrokenPipeError:
        return False
    finally:
        os.close(pipe)


def receive(pipe: int) -> bytes | None:
    """The request that the spawner hands over; None if the spawner has ended."""
    rehearse()
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "little"):
        part = os.read(pipe, 1 << 18)
        if not part:
            return None
        data += part
    os.close(pipe)
    return data[4:]


def rehearse() -> None:
    """Touch the memory that a launch needs while there is time: after a fork the first use of
    each page costs a microsecond."""
    write(b"/dev/null", f"{marshal.loads(marshal.dumps((time.time(), b'')))[0]:.6f}", 0, False)
    os.path.split(b"/a/b")
    try:
        os.rename(b"", b"")
    except FileNotFoundError:
        pass


def main(arguments: list[str]) -> None:
    """Run the spawner: `supervisor.py REQUESTS EVENTS [HELD ...]`, numbers of open files."""
    gc.disable()  # a collection would touch, and so copy, every page shared with the supervisors
    descriptors = [int(text) for text in arguments]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    context = Context(descriptors[0], descriptors[1], descriptors[2:])
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for end in context.wake:
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(context.wake[1], warn_on_full_buffer=False)
    gc.freeze()
    Server(context).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
