"""System calls about processes and signals, as functions of the modules `os`, `signal`, `resource` and `subprocess`."""

from __future__ import annotations

import errno
import os as real
import signal as real_signal
import subprocess as real_subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from world.machine.descriptors import HandleOpen, NullOpen, Open, opened
from world.machine.file_calls import fsdecode, give, pipe, text_of
from world.machine.file_calls import close as close_number
from world.machine.file_calls import write as write_number
from world.machine.files import fail
from world.machine.kernel import FILES, K
from world.machine.processes import DEFAULT, IGNORE, KILL, STOP, Killed, Process


class Usage:
    """The resource usage of a process, as from wait4."""

    def __init__(self, seconds: float) -> None:
        self.ru_utime, self.ru_stime, self.ru_maxrss = seconds, 0.0, 1024


def getpid() -> int:
    return K.enter().pid


def getppid() -> int:
    parent = K.enter().parent
    return parent.pid if parent is not None else 0


def exit_(status: int) -> NoReturn:
    """os._exit."""
    process = K.enter()
    K.end(process, (status & 255) << 8)
    raise Killed


def _found(pid: int) -> Process:
    process = K.processes.get(int(pid))
    if process is None or process.host is not K.current.host:
        raise fail(errno.ESRCH)
    return process


def getsid(pid: int) -> int:
    process = K.enter()
    return (_found(pid) if pid else process).session


def getpgid(pid: int) -> int:
    process = K.enter()
    return (_found(pid) if pid else process).group


def setsid() -> None:
    process = K.enter()
    if any(each.group == process.pid for each in K.processes.values()):
        raise fail(errno.EPERM)
    process.group = process.session = process.pid


def setpgid(pid: int, group: int) -> None:
    process = K.enter()
    process = _found(pid) if pid else process
    process.group = group or process.pid


def kill(pid: int, number: int) -> None:
    process = K.enter()
    target = _found(pid)
    if target.pid == 1:
        raise fail(errno.EPERM)
    if number:
        K.note(f"kill {target!r} signal {int(number)}")
        K.signal(target, int(number))
        _arrived(process)


def killpg(group: int, number: int) -> None:
    process = K.enter()
    members = [each for each in list(K.processes.values()) if each.group == group and each.pid != 1]
    if not members:
        raise fail(errno.ESRCH)
    K.note(f"kill group {group} signal {int(number)}")
    for each in members:
        if number:
            K.signal(each, int(number))
    _arrived(process)


def _arrived(process: Process) -> None:
    """Let a signal act that may have been for the process itself."""
    if process.dead:
        raise Killed
    if process.pending:
        K.deliver(process)


def pidfd_open(pid: int, flags: int = 0) -> int:
    process = K.enter()
    return give(process, HandleOpen(_found(pid)))


def pidfd_send_signal(number: int, signum: int) -> None:
    process = K.enter()
    found = opened(process, number)
    assert isinstance(found, HandleOpen)
    if found.process.reaped:
        raise fail(errno.ESRCH)
    K.note(f"kill {found.process!r} signal {int(signum)}")
    K.signal(found.process, int(signum))
    _arrived(process)


def wait4(pid: int, options: int = 0) -> tuple[int, int, Usage]:
    process = K.enter()
    while True:
        children = [child for child in process.children.values()
                    if pid == -1 or child.pid == pid or (pid == 0 and child.group == process.group)]
        if not children:
            raise fail(errno.ECHILD)
        for child in children:
            if child.dead:
                assert child.status is not None
                K.reap(child)
                return child.pid, child.status, Usage(child.steps * 1e-5)
        if options & real.WNOHANG:
            return 0, 0, Usage(0.0)
        K.wait([process.child_waiters])


def waitpid(pid: int, options: int = 0) -> tuple[int, int]:
    return wait4(pid, options)[:2]


def sched_getaffinity(pid: int) -> set[int]:
    return set(_of(pid).affinity)


def sched_setaffinity(pid: int, cpus: Any) -> None:
    _of(pid).affinity = frozenset(cpus) & frozenset(range(64))


def _of(pid: int) -> Process:
    """Return the process with this pid; 0 is the calling one."""
    asks = K.enter()
    found = K.processes.get(pid) if pid else asks
    if found is None or found.dead or found.host is not asks.host:
        raise fail(errno.ESRCH)
    return found


class System:
    """The result of uname(2)."""

    sysname, release, machine = "Linux", "6.0", "x86_64"

    def __init__(self, nodename: str) -> None:
        self.nodename = nodename


def uname() -> System:
    return System(K.current.host.name)


def prctl(option: int, value: int, *_: int) -> int:
    process = K.enter()
    if option == 36:
        process.subreaper = bool(value)
    return 0


# A new program.

SCRIPTS = {"run_supervisors.py": "spawner", "relay.py": "relay", "agent.py": "agent"}
"""The programs of Python in the world, by script file."""


def start(program: str, argv: Sequence[str], env: Mapping[str, str], files: Mapping[int, Open], session: bool = False,
          group: bool = False, mask: frozenset[int] | None = None, defaulted: Sequence[int] = (), cwd: str = "",
          keep: Sequence[int] = ()) -> Process:
    """Start a child that runs a program of the world; `files` are given to it in addition to inherited ones."""
    parent = K.current
    inode = K.disk.find(program, parent.cwd)
    if inode.is_dir or not inode.mode & 0o100:
        raise fail(errno.EACCES, program)
    first = bytes(inode.data[:200]).split(b"\n")[0]
    if not first.startswith(b"#!world "):
        raise fail(errno.ENOEXEC, program)
    if K.faulty_fork():
        raise fail(errno.EAGAIN)
    name = first[8:].decode()
    if name == "python":
        name = SCRIPTS[argv[3].rpartition("/")[2]]
    body = K.programs[name]
    child = K.born(parent, name, argv, env, lambda: body(list(argv)))
    for number, found in parent.files.items():
        if number not in parent.on_exec or number in keep:
            child.files[number] = found
            found.count += 1
    for number, found in files.items():
        if number in child.files:
            K.close(child, number)
        child.files[number] = found
        found.count += 1
    child.actions = {signum: IGNORE for signum, action in parent.actions.items() if action == IGNORE}
    for signum in defaulted:
        child.actions.pop(int(signum), None)
    if mask is not None:
        child.mask = mask
    if session:
        child.group = child.session = child.pid
    elif group:
        child.group = child.pid
    if cwd:
        child.cwd = cwd
    K.note(f"start {child!r} {' '.join(argv)[-60:]}")
    K.on_start(child)
    return child


def posix_spawn(path: Any, argv: Sequence[Any], env: Mapping[Any, Any], *, setpgroup: int | None = None, setsigmask: Any = None,
                setsigdef: Sequence[int] = (), file_actions: Sequence[tuple[int, int, int]] = (), **_: Any) -> int:
    process = K.enter()
    files = {action[2]: opened(process, action[1]) for action in file_actions}
    child = start(text_of(path), [fsdecode(word) for word in argv],
                  {fsdecode(name): fsdecode(value) for name, value in env.items()}, files,
                  group=setpgroup is not None, mask=None if setsigmask is None else frozenset(setsigmask),
                  defaulted=setsigdef)
    return child.pid


class Popen:
    """subprocess.Popen, as far as vrm uses it."""

    def __init__(self, args: Sequence[str], *, stdin: Any = None, stdout: Any = None, stderr: Any = None, env: Any = None,
                 cwd: Any = None, pass_fds: Sequence[int] = (), start_new_session: bool = False, **_: Any) -> None:
        process = K.enter()
        self.args, self.returncode = args, None
        self.stdin = self.stdout = self.stderr = None
        files: dict[int, Open] = {}
        ends = list[int]()
        for number, wanted in enumerate((stdin, stdout, stderr)):
            if wanted == real_subprocess.DEVNULL:
                files[number] = NullOpen()
            elif wanted == real_subprocess.PIPE:
                reader, writer = pipe()
                theirs, ours = (reader, writer) if number == 0 else (writer, reader)
                files[number] = opened(process, theirs)
                ends.append(theirs)
                setattr(self, ("stdin", "stdout", "stderr")[number], Stream(ours))
            elif isinstance(wanted, int):
                files[number] = opened(process, wanted)
        child = start(args[0], args, env if env is not None else process.env, files, session=start_new_session,
                      cwd=text_of(cwd) if cwd else "", keep=pass_fds)
        for number in ends:
            close_number(number)
        self.pid = child.pid

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = waitpid(self.pid, real.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self.returncode = real.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        process = K.current
        until = None if timeout is None else K.now + timeout
        while self.poll() is None:
            if until is not None and K.now >= until:
                raise real_subprocess.TimeoutExpired(self.args, timeout or 0)
            K.wait([process.child_waiters], until)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            kill(self.pid, KILL)


class Stream:
    """An end of a pipe that Popen has made."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = False

    def fileno(self) -> int:
        return self.number

    def write(self, data: bytes) -> int:
        return write_number(self.number, data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            close_number(self.number)


# Signals.


def signal(number: int, action: Any) -> Any:
    process = K.enter()
    before = process.actions.get(int(number), DEFAULT)
    if action == real_signal.SIG_DFL:
        process.actions.pop(int(number), None)
        if int(number) in process.pending and int(number) not in process.mask and process.ignores(int(number)):
            process.pending.remove(int(number))
    elif action == real_signal.SIG_IGN:
        process.actions[int(number)] = IGNORE
        if int(number) in process.pending:
            process.pending.remove(int(number))
    else:
        process.actions[int(number)] = action
    return {DEFAULT: real_signal.SIG_DFL, IGNORE: real_signal.SIG_IGN}.get(before, before) \
        if isinstance(before, int) else before


def pthread_sigmask(how: int, numbers: Any) -> set[int]:
    process = K.enter()
    before, asked = process.mask, frozenset(int(number) for number in numbers) - {KILL, STOP}
    process.mask = (before | asked if how == real_signal.SIG_BLOCK else before - asked
                    if how == real_signal.SIG_UNBLOCK else asked)
    if process.pending:
        K.deliver(process)
    return set(before)


def set_wakeup_fd(number: int, *, warn_on_full_buffer: bool = True) -> int:
    process = K.enter()
    before, process.wakeup = process.wakeup, number
    return before


def sigtimedwait(numbers: Any, seconds: float) -> Any:
    """Return the first of these signals that comes; None after a number of seconds."""
    process = K.enter()
    wanted = {int(number) for number in numbers}
    until = K.now + seconds
    while True:
        for number in process.pending:
            if number in wanted:
                process.pending.remove(number)
                return (number,)
        if K.now >= until:
            return None
        K.wait((), until)


def sigpending() -> set[int]:
    return set(K.enter().pending)


def alarm(seconds: int) -> int:
    process = K.enter()
    if seconds:
        K.at(K.now + seconds, lambda: K.signal(process, int(real_signal.SIGALRM)))
    return 0


# Limits.


def getrlimit(kind: int) -> tuple[int, int]:
    return K.enter().limits.get(kind, (FILES, 4 * FILES) if kind == 7 else (-1, -1))


def setrlimit(kind: int, values: tuple[int, int]) -> None:
    K.enter().limits[kind] = (values[0], values[1])


def process_time() -> float:
    """Return the CPU seconds of the process."""
    return K.current.steps * 1e-5
