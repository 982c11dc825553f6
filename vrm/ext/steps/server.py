"""Starts the steps of a script job from a process that has all modules loaded: a fork of it is ready much earlier
than a new Python process.

The process that has started a script (its supervisor, or on other nodes than the manager's a runner) forks the
server (`vrm.live.runner.serving`). The server listens in the directory of the job's steps and loads this module at
the first call. srun, a small C program (`client.c` of the commands), sends its arguments, its environment and its
open files. A fork of the server becomes the step as if srun had started it, with srun's directory, limits, cores,
umask and ignored signals. The server answers with the process id of the step, to which srun passes its signals, and
at its end with its exit status. When srun is killed, the process is killed too, and its guard ends the tasks.

An srun for which the result would differ runs the step itself: it has a terminal, other rights or namespaces, or
another scheduling class. An srun on another node than the script's, or without a server, does so, too."""

from __future__ import annotations

import os
import resource
import select
import sys

import _signal
import _socket as socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SOCKET = "socket"
"""Name of the server's socket in the directory of a job's steps."""

MOST = 16 << 20
"""Maximum size of a call in bytes."""

PDEATHSIG = 1
"""Option of prctl(2) that sends a process a signal when its parent ends."""

NOT_HERE = b"-\n"
"""Answer to an srun that has to run the step itself."""

_SAME = (b"Uid", b"Gid", b"Groups", b"CapEff", b"NoNewPrivs", b"Seccomp")
"""Lines of /proc/PID/status that must be equal for the server and an srun."""

_SPACES = ("mnt", "pid", "user", "net", "ipc", "uts", "cgroup", "time")

_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def serve(listening: socket.socket, alive: int) -> None:
    """Serve until the pipe `alive` is closed."""
    from vrm.ext.steps import guard, main, tasks  # noqa: F401  (loaded before the forks)
    prctl = _prctl()
    running: dict[int, socket.socket] = {}
    reading, wake = os.pipe()
    for each in (reading, wake):
        os.set_blocking(each, False)
    _signal.signal(_signal.SIGCHLD, lambda *_: None)
    _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    poll = select.poll()
    for handle in (listening.fileno(), alive, reading):
        poll.register(handle, select.POLLIN)
    while True:
        for connection in running.values():
            poll.register(connection.fileno(), 0)  # wait only for its end; its data is for the step
        ready = {handle for handle, _ in poll.poll()}
        if alive in ready:
            os._exit(0)
        if reading in ready:
            os.read(reading, 4096)
        for pid, connection in list(running.items()):
            poll.unregister(connection.fileno())
            code = _code(pid, connection.fileno() in ready)
            if code is not None:
                _answer(running.pop(pid), b"%d\n" % code)
        if listening.fileno() in ready:
            _accept(listening, running, prctl)


def _prctl() -> Callable[..., int] | None:
    """Return the C function prctl; None if it cannot be called."""
    try:
        import ctypes  # some Pythons are built without it
        found: Callable[..., int] = ctypes.CDLL(None).prctl
        return found
    except (ImportError, OSError, AttributeError):
        return None


def _code(pid: int, killed: bool) -> int | None:
    """Return the exit status of a step as a shell shows it; None while it runs. If its srun was `killed`, kill the
    step first."""
    if killed:
        os.kill(pid, _signal.SIGKILL)
    found, status = os.waitpid(pid, 0 if killed else os.WNOHANG)
    if not found:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _answer(to: socket.socket, text: bytes) -> None:
    try:
        to.sendall(text, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        pass  # srun has gone
    to.close()


def _accept(listening: socket.socket, running: dict[int, socket.socket],
            prctl: Callable[..., int] | None) -> None:
    handle, _ = listening._accept()  # type: ignore[attr-defined]  # `socket` would take long to load
    connection = socket.socket(fileno=handle)
    try:
        pid = os.fork()
    except OSError:  # too many processes: srun would fail as well, but prints the error itself
        _answer(connection, NOT_HERE)
        return
    if pid:
        running[pid] = connection
        return
    try:
        if prctl is not None:
            prctl(PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
        _signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        _become(connection)
    finally:
        os._exit(1)


def _become(connection: socket.socket) -> None:
    """Become the requested step."""
    try:
        words, env, files, client = _call(connection)
        ignored = _as(client)
    except (OSError, ValueError):
        connection.sendall(NOT_HERE)
        return
    os.fchdir(files[3])
    for number, handle in enumerate(files[:3]):
        os.dup2(handle, number)
    for handle in files:
        os.close(handle)
    for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
        _signal.signal(number, _signal.SIG_IGN if number in ignored else _signal.SIG_DFL)
    if _signal.SIGINT not in ignored:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["srun", *words]
    connection.sendall(b"%d\n" % os.getpid())
    from vrm.ext.steps.main import run
    run()


def _call(connection: socket.socket) -> tuple[list[str], dict[str, str], list[int], int]:
    """Return the arguments, the environment, the open files (the last is the working directory) and the calling
    process id. Raises ValueError for an invalid call."""
    data, control, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(4 * 8), socket.MSG_CMSG_CLOEXEC)
    files = [int.from_bytes(part[at:at + 4], sys.byteorder) for _, _, part in control
             for at in range(0, len(part), 4)]
    size = int.from_bytes(data[:4], "little")
    parts, got = [data], len(data)
    while 4 <= got < size + 4 <= MOST:
        part = connection.recv(1 << 20)
        if not part:
            break
        parts.append(part)
        got += len(part)
    texts = [os.fsdecode(text) for text in b"".join(parts)[4:].split(b"\0")]
    if got != size + 4 or len(files) != 4 or texts.pop():
        raise ValueError("no call")
    client, user, _ = (int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[at:at + 4],
                                      sys.byteorder) for at in (0, 4, 8))
    if user != os.geteuid():
        raise ValueError("somebody else's")
    count = int(texts[0])
    return (texts[1:count + 1], dict(text.partition("=")[::2] for text in texts[count + 1:]),
            files, client)


def _as(client: int) -> set[int]:
    """Set the attributes that this process would have inherited from an srun; return the signals that it ignores.
    Raises ValueError if that is not possible."""
    theirs, own = _status(client), _status(os.getpid())
    if any(theirs.get(name) != own.get(name) for name in _SAME) or _spaces(client) != _spaces(os.getpid()):
        raise ValueError("another world")
    if os.sched_getscheduler(client) != os.sched_getscheduler(0):
        raise ValueError("another scheduling class")
    nice = os.getpriority(os.PRIO_PROCESS, client)
    if nice != os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    cores = os.sched_getaffinity(client)
    if cores != os.sched_getaffinity(0):
        os.sched_setaffinity(0, cores)
    for kind in _LIMITS:
        limits = resource.prlimit(client, kind)
        if limits != resource.getrlimit(kind):
            resource.setrlimit(kind, limits)
    os.umask(int(theirs[b"Umask"], 8))
    bits = int(theirs[b"SigIgn"], 16)
    return {number for number in range(1, 65) if bits >> (number - 1) & 1}


def _status(pid: int) -> dict[bytes, bytes]:
    with open(f"/proc/{pid}/status", "rb") as file:
        return {name: value.strip() for name, _, value in (line.partition(b":") for line in file)}


def _spaces(pid: int) -> list[str]:
    """Return the namespaces and the root directory of a process."""
    found = [os.readlink(f"/proc/{pid}/root")]
    for name in _SPACES:
        try:
            found.append(os.readlink(f"/proc/{pid}/ns/{name}"))
        except FileNotFoundError:  # an old kernel
            pass
    return found
