"""Small programs that probe a system. Each runs on the real system and on the simulated machine, and must return the same
results on both (`test_simulated_machine`). `s` has the modules of the system, `s.fork` (see
`vrm.live.runner.starting.fork_into`) and `s.subreaper`."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

PROGRAMS: list[Callable[[Any], Any]] = []


def program(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorator: add a function to PROGRAMS."""
    PROGRAMS.append(function)
    return function


def tried(call: Callable[..., Any], *words: Any, **more: Any) -> Any:
    """Return the result of a call, or the name of its error."""
    try:
        found = call(*words, **more)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return found if isinstance(found, (int, str, bytes, type(None))) else "something"


def put(s: Any, path: str, data: bytes, flags: int = 0) -> int:
    """Create a file with `data`; return its open file descriptor."""
    number: int = s.os.open(path, s.os.O_RDWR | s.os.O_CREAT | flags, 0o644)
    s.os.write(number, data)
    return number


def content(s: Any, path: str) -> bytes:
    number = s.os.open(path, s.os.O_RDONLY)
    data: bytes = s.os.read(number, 1 << 20)
    s.os.close(number)
    return data


def ended(s: Any, pid: int) -> Any:
    """Wait for a child; return ("signal", number) or ("exit", status)."""
    raw = s.os.waitpid(pid, 0)[1]
    return ("signal", s.os.WTERMSIG(raw)) if s.os.WIFSIGNALED(raw) else ("exit", s.os.WEXITSTATUS(raw))


@program
def names(s: Any) -> Any:
    os = s.os
    number = put(s, "a", b"one")
    put(s, "b", b"two")
    os.rename("b", "a")
    os.mkdir("d")
    os.mkdir("e")
    put(s, "e/x", b"")
    os.symlink("a", "l")
    os.symlink("loop", "loop")
    os.link("a", "h")
    return [content(s, "a"), os.pread(number, 9, 0), os.fstat(number).st_nlink, os.stat("a").st_nlink, tried(os.stat, "b"),
            tried(os.rename, "a", "d"), tried(os.rename, "d", "a"), tried(os.rename, "d", "e"), tried(os.rename, "no", "a"),
            tried(os.link, "a", "h"), tried(os.unlink, "d"), tried(os.rmdir, "e"), tried(os.rmdir, "a"), tried(os.mkdir, "d"),
            tried(os.open, "l", os.O_RDONLY | os.O_NOFOLLOW), content(s, "l"), os.readlink("l"), tried(os.readlink, "a"),
            tried(os.stat, "loop"), tried(os.open, "a/x", os.O_RDONLY), tried(os.open, "d", os.O_WRONLY),
            tried(os.open, "a", os.O_RDONLY | os.O_DIRECTORY), tried(os.open, "a", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
            tried(os.open, "no/x", os.O_WRONLY | os.O_CREAT), tried(os.open, "x" * 256, os.O_WRONLY | os.O_CREAT),
            content(s, "d/../a"), sorted(os.listdir(".")), tried(os.listdir, "a"), os.path.exists("loop"), os.path.lexists("loop"),
            tried(os.rename, "a", "h"), os.stat("a").st_nlink, tried(os.link, "d", "f"), tried(os.truncate, "no", 0)]


@program
def contents(s: Any) -> Any:
    os = s.os
    first, second = put(s, "f", b"abc", os.O_APPEND), os.open("f", os.O_WRONLY | os.O_APPEND)
    os.write(second, b"def")
    os.write(first, b"ghi")
    third = os.open("f", os.O_RDWR)
    os.pwrite(third, b"X", 12)
    found = [content(s, "f"), os.lseek(first, 0, 1), os.lseek(third, 0, 1), os.pread(third, 3, 11), os.pread(third, 3, 99)]
    os.ftruncate(third, 2)
    os.ftruncate(third, 4)
    found += [content(s, "f"), os.fstat(third).st_size]
    os.unlink("f")
    os.write(third, b"Z")
    found += [os.pread(third, 9, 0), tried(os.stat, "f"), os.fstat(third).st_nlink]
    os.close(third)
    read_only = os.open("g", os.O_RDONLY | os.O_CREAT, 0o644)
    found += [tried(os.read, third, 1), tried(os.write, read_only, b"x"), tried(os.ftruncate, read_only, 0),
              tried(os.close, third), tried(os.fsync, read_only)]
    put(s, "g", b"text")
    os.close(os.open("g", os.O_WRONLY | os.O_TRUNC))
    copy = os.dup(first)
    os.write(copy, b"1")
    return [*found, os.stat("g").st_size, os.lseek(first, 0, 1) == os.lseek(copy, 0, 1), tried(os.fsync, 77)]


@program
def pipes(s: Any) -> Any:
    os = s.os
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    found = [tried(os.read, reader, 9), os.write(writer, b"x" * 100_000), tried(os.write, writer, b"y"), len(os.read(reader, 1 << 20))]
    found.append(tried(os.read, reader, 1))
    os.close(writer)
    found.append(os.read(reader, 1))
    reader, writer = os.pipe()
    os.close(reader)
    found.append(tried(os.write, writer, b"x"))
    reader, writer = os.pipe()

    def child() -> None:
        os.close(reader)
        os.write(writer, b"hello")
    pid = s.fork(child)
    os.close(writer)
    return [*found, os.read(reader, 9), os.read(reader, 9), ended(s, pid)]


@program
def streams(s: Any) -> Any:
    socket = s.socket
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    one.sendall(b"abc")
    one.sendall(b"def")
    found = [other.recv(2, socket.MSG_PEEK), other.recv(4), other.recv(9), tried(other.recv, 1, socket.MSG_DONTWAIT)]
    one.close()
    found += [other.recv(1), tried(other.send, b"x")]
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    other.sendall(b"unread")
    one.sendall(b"last")
    one.close()
    found += [other.recv(9), tried(other.recv, 9), other.recv(9), one.fileno(), tried(one.send, b"x")]
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.send(b"first")
    one.send(b"second")
    found += [other.recv(3), other.recv(99)]
    one.close()
    return [*found, other.recv(9)]


@program
def sockets_that_are_files(s: Any) -> Any:
    os, socket = s.os, s.socket
    folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
    name, plain = f"/proc/self/fd/{folder}/socket", f"/proc/self/fd/{folder}/plain"
    put(s, "plain", b"text")

    def client() -> Any:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    found = [tried(client().connect, name), tried(listening.bind, name), tried(client().bind, name), tried(client().connect, name)]
    listening.listen(9)
    found += [tried(listening.accept), tried(client().connect, plain), stat_kind(s, "socket"), sorted(os.listdir("."))]
    one = client()
    one.connect(name)
    one.sendall(b"call")
    other, _ = listening.accept()
    other.setblocking(False)
    found += [other.recv(9), tried(other.recv, 9), int.from_bytes(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], "little") == os.geteuid()]
    one.settimeout(0.05)
    try:
        found.append(one.recv(9))
    except TimeoutError:
        found.append("nothing comes")
    waits = client()
    waits.connect(name)
    other.send(b"answer")
    other.close()
    listening.close()
    found += [one.recv(99), one.recv(9), tried(waits.recv, 9), tried(client().connect, name), tried(os.unlink, "socket")]
    return [*found, tried(client().connect, name), os.listdir(".")]


def stat_kind(s: Any, path: str) -> int:
    """Return the type bits of the mode of a file."""
    return int(s.os.stat(path).st_mode) >> 12


@program
def files_in_messages(s: Any) -> Any:
    os, socket = s.os, s.socket
    reader, writer = os.pipe()
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    one.sendall(b"plain")
    one.sendmsg([b"with"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, writer.to_bytes(4, "little"))])
    one.sendall(b"after")
    os.close(writer)
    s.os.set_blocking(reader, False)
    found = [tried(os.read, reader, 1)]
    data, control, _, _ = other.recvmsg(99, socket.CMSG_SPACE(4))
    found += [data, len(control)]
    if not control:
        data, control, _, _ = other.recvmsg(99, socket.CMSG_SPACE(4))
        found += [data, len(control)]
    number = int.from_bytes(control[0][2], "little")
    found += [other.recv(99), os.write(number, b"z"), os.read(reader, 9)]
    os.close(number)
    found.append(os.read(reader, 9))
    reader, writer = os.pipe()
    one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, writer.to_bytes(4, "little"))])
    os.close(writer)
    one.close()
    other.close()  # nobody has received the file: it is closed with the socket
    return [*found, os.read(reader, 9)]


@program
def signals(s: Any) -> Any:
    os, signal, time = s.os, s.signal, s.time

    def sleeper() -> None:
        time.sleep(60)

    def deaf() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(pen, b"r")
        time.sleep(60)

    def handled() -> None:
        got: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: got.append(int(number)))
        os.write(pen, b"r")
        until = time.monotonic() + 60
        while not got and time.monotonic() < until:
            time.sleep(0.05)
        os._exit(got[0])

    def waits() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGCHLD))
        os.write(pen, b"r")
        found = signal.sigtimedwait((signal.SIGUSR1,), 60)
        none = signal.sigtimedwait((signal.SIGCHLD,), 0.01)
        os._exit(int(found[0]) if none is None else 1)

    ready, pen = os.pipe()
    found = []
    for body, number in ((sleeper, 15), (sleeper, 9), (handled, 15), (waits, 10), (sleeper, 17), (deaf, 15)):
        pid = s.fork(body)
        if body is not sleeper:
            os.read(ready, 1)
        os.kill(pid, number)
        if number == 17 or body is deaf:
            found.append(os.waitpid(pid, os.WNOHANG)[0])
            os.kill(pid, 9)
        found.append(ended(s, pid))
    return [*found, tried(os.kill, pid, 0)]


@program
def signals_wake(s: Any) -> Any:
    os, signal, select, socket = s.os, s.signal, s.select, s.socket
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    called: list[int] = []
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGUSR1, lambda number, frame: called.append(int(number)))
    me = os.getpid()
    pid = s.fork(lambda: os.kill(me, signal.SIGUSR1))
    ready = select.select([reader], [], [], 60)[0] == [reader]
    found = [ready, reader.recv(9), called, ended(s, pid)]
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    return found


@program
def waiting(s: Any) -> Any:
    os, signal, time = s.os, s.signal, s.time
    found = [tried(os.waitpid, -1, 0)]
    ready, pen = os.pipe()

    def child() -> None:
        os.read(ready, 1)
        os._exit(3)
    pid = s.fork(child)
    found.append(os.waitpid(pid, os.WNOHANG) == (0, 0))
    os.write(pen, b"x")
    until = time.monotonic() + 60
    while state(s, pid) != "Z" and time.monotonic() < until:
        time.sleep(0.01)
    found += [state(s, pid), tried(os.kill, pid, 0), ended(s, pid), tried(os.kill, pid, 0), tried(os.waitpid, pid, 0)]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pid = s.fork(lambda: None)
    found.append(tried(os.waitpid, pid, 0))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return found


def state(s: Any, pid: int) -> str:
    """Return the state letter of a process from /proc; "gone" if there is none."""
    try:
        line = content(s, f"/proc/{pid}/stat")
    except OSError:
        return "gone"
    return line.rpartition(b")")[2].split()[0].decode()


@program
def sessions(s: Any) -> Any:
    os, time = s.os, s.time
    ready, pen = os.pipe()

    def child() -> None:
        os.setsid()
        fields = content(s, "/proc/self/stat").rpartition(b")")[2].split()
        me = os.getpid()
        right = [int(fields[2]) == me, int(fields[3]) == me, os.getsid(0) == me, os.getpgid(0) == me, tried(os.setsid) == "EPERM"]
        inner = s.fork(lambda: time.sleep(60))
        right += [os.getsid(inner) == me, tried(os.setpgid, inner, inner) is None, os.getpgid(inner) == inner]
        os.killpg(inner, 9)
        right += [ended(s, inner) == ("signal", 9), tried(os.killpg, inner, 9) == "ESRCH"]
        os.write(pen, bytes(right))
    pid = s.fork(child)
    return [list(os.read(ready, 99)), ended(s, pid), tried(os.getsid, 4_000_000)]


@program
def orphans(s: Any) -> Any:
    os, time = s.os, s.time
    s.subreaper()
    ready, pen = os.pipe()

    def grandchild() -> None:
        os.setsid()
        until = time.monotonic() + 60
        while os.getppid() == parent[0] and time.monotonic() < until:
            time.sleep(0.01)
        os.write(pen, bytes([os.getppid() == me]))
        os._exit(7)

    parent: list[int] = []
    me = os.getpid()

    def child() -> None:
        parent.append(os.getpid())
        s.fork(grandchild)
    first = s.fork(child)
    found = [ended(s, first), os.read(ready, 9)]
    pid, raw = os.waitpid(-1, 0)
    return [*found, pid != first, os.WEXITSTATUS(raw), tried(os.waitpid, -1, os.WNOHANG)]


@program
def locks(s: Any) -> Any:
    os, flock = s.os, s.fcntl.flock
    shared, alone, now, free = s.fcntl.LOCK_SH, s.fcntl.LOCK_EX, s.fcntl.LOCK_NB, s.fcntl.LOCK_UN
    one, other = put(s, "f", b""), os.open("f", os.O_RDWR)
    found = [tried(flock, one, alone | now), tried(flock, other, shared | now), tried(flock, one, shared | now),
             tried(flock, other, shared | now), tried(flock, one, alone | now), tried(flock, other, free), tried(flock, one, alone | now)]
    copy = os.dup(one)
    os.close(one)
    found.append(tried(flock, other, shared | now))
    ready, pen = os.pipe()

    def child() -> None:
        os.close(other)
        os.read(ready, 1)
    pid = s.fork(child)
    os.close(copy)
    found.append(tried(flock, other, shared | now))
    os.write(pen, b"x")
    found += [ended(s, pid), tried(flock, other, alone | now)]
    return found


@program
def readiness(s: Any) -> Any:
    os, select, socket = s.os, s.select, s.socket
    reader, writer = os.pipe()
    one, other = socket.socketpair()
    epoll, outer = select.epoll(), select.epoll()
    epoll.register(reader, select.EPOLLIN)
    epoll.register(writer, select.EPOLLOUT)
    epoll.register(one, select.EPOLLIN)
    outer.register(epoll, select.EPOLLIN)
    names = {reader: "reader", writer: "writer", one.fileno(): "one", epoll.fileno(): "epoll"}

    def now(what: Any = epoll) -> Any:
        return sorted((names[number], mask) for number, mask in what.poll(0))
    found = [now(), now(outer)]
    os.write(writer, b"x")
    other.send(b"y")
    found.append(now())
    epoll.modify(one, select.EPOLLIN | select.EPOLLOUT)
    found.append(now())
    os.read(reader, 9)
    other.close()
    found.append(now())
    os.close(writer)
    found += [now(), tried(epoll.register, reader, 1), tried(epoll.unregister, 99)]
    os.close(reader)
    found += [now(), now(outer), epoll.poll(0.01) != []]
    poll = select.poll()
    reader, writer = os.pipe()
    poll.register(reader, select.POLLIN)
    found += [poll.poll(1), select.select([reader], [writer], [], 0) == ([], [writer], [])]
    os.close(writer)
    return [*found, [mask for _, mask in poll.poll(1)]]


@program
def handles(s: Any) -> Any:
    os, signal, time, select = s.os, s.signal, s.time, s.select
    pid = s.fork(lambda: time.sleep(60))
    handle = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    found = [poll.poll(1)]
    signal.pidfd_send_signal(handle, signal.SIGTERM)
    found += [bool(poll.poll(60_000)), ended(s, pid), tried(signal.pidfd_send_signal, handle, 9)]
    return [*found, tried(os.pidfd_open, 4_000_000)]


@program
def bells(s: Any) -> Any:
    os = s.os
    library = s.ctypes.CDLL(None, use_errno=True)
    number = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    file = put(s, "f", b"")
    library.inotify_add_watch(number, b"f", 0x2)
    library.inotify_add_watch(number, b".", 0x80)

    def rang() -> bool:
        return not isinstance(tried(os.read, number, 1 << 16), str)
    found = [rang()]
    os.write(file, b"x")
    found += [rang(), rang()]
    put(s, "g", b"y")
    found.append(rang())
    os.rename("g", "h")
    found.append(rang())
    os.rename("h", "f")  # the watched file no longer has a name
    found.append(rang())
    os.write(file, b"z")
    return [*found, rang(), tried(library.inotify_add_watch, number, b"no", 0x2)]


@program
def numbers(s: Any) -> Any:
    os = s.os
    first = os.open("/dev/null", os.O_RDWR)
    found = [os.read(first, 9), os.write(first, b"xyz")]
    second = os.dup(first)
    os.close(first)
    third = os.dup(second)
    found.append(third == first)
    os.dup2(second, 50)
    os.closerange(40, 60)
    found += [tried(os.write, 50, b"x"), tried(os.dup, 50)]
    ready, pen = os.pipe()

    def child() -> None:
        os.write(pen, b"x")
        os.close(ready)
    pid = s.fork(child)
    return [*found, ended(s, pid), os.read(ready, 9)]
