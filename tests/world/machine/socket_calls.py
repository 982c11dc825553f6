"""Sockets, `select` and `selectors` of the simulated machine."""

from __future__ import annotations

import array
import errno
import select as real_select
import socket as real
import stat
from collections.abc import Iterator, Sequence
from typing import Any

from world.machine.descriptors import PollOpen, SocketOpen, opened
from world.machine.file_calls import give, place_of_socket
from world.machine.files import Inode, fail
from world.machine.kernel import K

FLAGS = {name: getattr(real, name) for name in dir(real)
         if name.isupper() and isinstance(getattr(real, name), int)}


class Socket:
    """socket.socket: a file descriptor of the process, and its open file."""

    _seconds: float | None = None  # that a call waits

    def __init__(self, family: int = -1, type: int = -1, proto: int = 0, fileno: int | None = None) -> None:
        process = K.enter()
        if fileno is not None:
            found = opened(process, fileno)
            if not isinstance(found, SocketOpen):
                raise fail(errno.ENOTSOCK)
            self._open, self._number = found, fileno
            return
        self._open = SocketOpen(packets=type == real.SOCK_SEQPACKET)
        self._open.nonblocking = type == real.SOCK_STREAM | real.SOCK_NONBLOCK
        self._number = give(process, self._open)

    @classmethod
    def of(cls, number: int) -> Socket:
        """Return the socket of a file descriptor."""
        return cls(fileno=number)

    def _here(self) -> SocketOpen:
        process = K.enter()
        if process.files.get(self._number) is not self._open:
            raise fail(errno.EBADF)
        return self._open

    def fileno(self) -> int:
        return self._number if K.current.files.get(self._number) is self._open else -1

    def detach(self) -> int:
        return self._number

    def close(self) -> None:
        process = K.enter()
        if process.files.get(self._number) is self._open:
            K.close(process, self._number)

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def set_inheritable(self, inherited: bool) -> None:
        self._here()

    def setblocking(self, blocks: bool) -> None:
        self._here().nonblocking = not blocks

    def settimeout(self, seconds: float | None) -> None:
        """Accept setsockopt; it has no effect, since scheduled messages of the world always fit."""
        self._here().nonblocking = seconds == 0
        self._seconds = seconds

    def setsockopt(self, *_: Any) -> None:
        self._here()

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        self._here()
        if option == 17:
            return b"".join(each.to_bytes(4, "little") for each in (K.current.pid, 1000, 1000))
        return 0

    def shutdown(self, how: int) -> None:
        """Shut down the writing side."""
        outgoing = self._here().outgoing
        if outgoing is not None:
            outgoing.writers = 0
            K.wake(outgoing.waiters)

    def recv(self, size: int, flags: int = 0) -> bytes:
        return self.recvmsg(size, 0, flags)[0]

    def recvmsg(self, size: int, control: int = 0, flags: int = 0) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        found = self._here()
        data, files = found.receive(size, not flags & real.MSG_DONTWAIT, bool(flags & real.MSG_PEEK),
                                    K.now + self._seconds if self._seconds else None)
        if not files:
            return data, [], 0, None
        process, numbers = K.current, list[int]()
        for each in files:
            if control:
                numbers.append(give(process, each, not flags & real.MSG_CMSG_CLOEXEC))
            each.count -= 1
            if not each.count:
                each.gone()
        return data, [(real.SOL_SOCKET, real.SCM_RIGHTS, array.array("i", numbers).tobytes())], 0, None

    def send(self, data: Any, flags: int = 0) -> int:
        return self._here().send(bytes(data), (), not flags & real.MSG_DONTWAIT)

    def sendall(self, data: Any, flags: int = 0) -> None:
        data = bytes(data)
        while data:
            data = data[self.send(data, flags):]

    def sendmsg(self, parts: Sequence[Any], control: Sequence[tuple[int, int, Any]] = (), flags: int = 0) -> int:
        found, process, files = self._here(), K.current, []
        for _, kind, data in control:
            if kind == real.SCM_RIGHTS:
                numbers = array.array("i", bytes(data))
                files += [opened(process, number) for number in numbers]
        return found.send(b"".join(map(bytes, parts)), files, not flags & real.MSG_DONTWAIT)

    # Connections.

    def bind(self, address: Any) -> None:
        found, name = self._here(), _name(address)
        if name.startswith("/"):
            found.name = _made(name)
            K.names[found.name] = found
            return
        if name in K.names:
            raise fail(errno.EADDRINUSE)
        K.names[name], found.name = found, name

    def listen(self, most: int = 128) -> None:
        from collections import deque
        self._here().backlog = deque()

    def connect(self, address: Any) -> None:
        found, name = self._here(), _name(address)
        where = place_of_socket(name)[2] if name.startswith("/") else name
        if where is None:
            raise fail(errno.ENOENT)
        target = K.names.get(where)
        if target is None or target.backlog is None:
            raise fail(errno.ECONNREFUSED)
        other = SocketOpen()
        found.join(other)
        target.backlog.append(other)
        K.wake(target.waiters)

    def accept(self) -> tuple[Socket, str]:
        found = self._here()
        while not found.backlog:
            if found.nonblocking:
                raise fail(errno.EAGAIN)
            K.wait(found.queues())
        return Socket.of(give(K.current, found.backlog.popleft())), ""


def _made(name: str) -> Inode:
    """Return a new open file of a socket."""
    if not K.socket_files:  # command files do
        raise fail(errno.EOPNOTSUPP)
    there, last, inode = place_of_socket(name)
    if inode is not None:
        raise fail(errno.EADDRINUSE)
    inode = K.disk.new(stat.S_IFSOCK | 0o600)
    K.disk.change(name, (there, last, inode))
    return inode


def _name(address: Any) -> str:
    return address.decode("latin-1") if isinstance(address, bytes) else str(address)


def socketpair(family: int = -1, type: int = -1, proto: int = 0) -> tuple[Socket, Socket]:
    process = K.enter()
    one, other = SocketOpen(type == real.SOCK_SEQPACKET), SocketOpen(type == real.SOCK_SEQPACKET)
    one.join(other)
    first = give(process, one)
    try:
        return Socket.of(first), Socket.of(give(process, other))
    except OSError:
        K.close(process, first)
        raise


def recv_fds(connection: Socket, size: int, most: int, flags: int = 0) -> tuple[bytes, list[int], int, None]:
    data, control, told, address = connection.recvmsg(size, 4 * most, flags)
    numbers = array.array("i", control[0][2]).tolist() if control else []
    return data, numbers, told, address


def gethostname() -> str:
    return K.current.host.name


# select


class Epoll:
    """select.epoll."""

    def __init__(self, *_: Any) -> None:
        self._open = PollOpen()
        self._number = give(K.enter(), self._open)

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        process = K.enter()
        if process.files.get(self._number) is self._open:
            K.close(process, self._number)

    def register(self, file: Any, events: int = 5) -> None:
        number = _number(file)
        found = opened(K.enter(), number)
        if number in self._open.members and self._open.members[number][0] is found:
            raise fail(errno.EEXIST)
        self._open.members[number] = (found, events)
        K.wake(self._open.waiters)

    def modify(self, file: Any, events: int) -> None:
        number = _number(file)
        found = opened(K.enter(), number)
        if self._open.members.get(number, (None,))[0] is not found:
            raise fail(errno.ENOENT)
        self._open.members[number] = (found, events)

    def unregister(self, file: Any) -> None:
        opened(K.enter(), _number(file))
        if self._open.members.pop(_number(file), None) is None:
            raise fail(errno.ENOENT)

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        return _await(self._open, timeout)


def _await(poll: PollOpen, timeout: float | None) -> list[tuple[int, int]]:
    K.enter()
    until = None if timeout is None or timeout < 0 else K.now + timeout
    while True:
        found = poll.found()
        if found or (until is not None and K.now >= until):
            return found
        K.wait(poll.queues(), until)


class Poll:
    """select.poll."""

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}

    def register(self, file: Any, events: int = 7) -> None:
        self._asked[_number(file)] = events

    def unregister(self, file: Any) -> None:
        del self._asked[_number(file)]

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        poll = PollOpen()
        process = K.enter()
        poll.members = {number: (opened(process, number), events & 5) for number, events in self._asked.items()}
        return _await(poll, None if timeout is None else timeout / 1000)


def select(readers: Sequence[Any], writers: Sequence[Any], others: Sequence[Any], timeout: float | None = None
           ) -> tuple[list[Any], list[Any], list[Any]]:
    process, poll = K.enter(), PollOpen()
    for files, events in ((readers, 1), (writers, 4)):
        for file in files:
            number = _number(file)
            poll.members[number] = (opened(process, number), events | poll.members.get(number, (None, 0))[1])
    found = dict(_await(poll, timeout))
    return ([file for file in readers if found.get(_number(file), 0) & ~4],
            [file for file in writers if found.get(_number(file), 0) & ~1], [])


def _number(file: Any) -> int:
    return file if isinstance(file, int) else int(file.fileno())


class Key:
    """selectors.SelectorKey."""

    def __init__(self, file: Any, number: int, events: int, data: Any) -> None:
        self.fileobj, self.fd, self.events, self.data = file, number, events, data

    def __getitem__(self, at: int) -> Any:
        return (self.fileobj, self.fd, self.events, self.data)[at]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.fileobj, self.fd, self.events, self.data))


class Selector:
    """selectors.DefaultSelector."""

    def __init__(self) -> None:
        self._poll = Epoll()
        self._keys: dict[int, Key] = {}

    def __enter__(self) -> Selector:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def register(self, file: Any, events: int, data: Any = None) -> Key:
        number = _number(file)
        self._poll.register(number, 1 if events == 1 else 4 if events == 2 else 5)
        self._keys[number] = key = Key(file, number, events, data)
        return key

    def modify(self, file: Any, events: int, data: Any = None) -> Key:
        number = _number(file)
        self._poll.modify(number, 1 if events == 1 else 4)
        self._keys[number] = key = Key(file, number, events, data)
        return key

    def unregister(self, file: Any) -> Key:
        number = _number(file)
        self._poll.unregister(number)
        return self._keys.pop(number)

    def select(self, timeout: float | None = None) -> list[tuple[Key, int]]:
        found = self._poll.poll(None if timeout is None else max(0.0, timeout))
        return [(self._keys[number], (2 if mask & ~1 else 0) | (1 if mask & ~4 else 0)) for number, mask in found]

    def get_map(self) -> dict[int, Key]:
        return self._keys

    def close(self) -> None:
        self._poll.close()
        self._keys.clear()


EPOLL = {name: getattr(real_select, name) for name in dir(real_select)
         if name.isupper() and isinstance(getattr(real_select, name), int)}
