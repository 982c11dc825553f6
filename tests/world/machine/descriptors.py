"""Open files of the simulated machine: regular files, pipes, sockets, and what waits for them."""

from __future__ import annotations

import errno
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from world.machine.files import CLOSED, About, Inode, fail
from world.machine.kernel import K, LOCK_WAITERS, UID
from world.machine.processes import IGNORE, PIPE, Host, Process, Waiters

IN, OUT, ERR, HUP = 0x1, 0x4, 0x8, 0x10

ROOM = 65536
"""Bytes that a pipe, or one direction of a socket, holds."""


class Open:
    """An open file description. `count` is the number of references: file descriptors of processes, and messages on
    their way. `nonblocking` is the flag O_NONBLOCK."""

    kind = "file"

    def __init__(self) -> None:
        self.count = 0
        self.nonblocking = False
        self.waiters: Waiters = {}

    def gone(self) -> None:
        """Handle the end of the last reference."""

    def ready(self, wanted: int) -> int:
        """Return which of these events are ready; errors and hang-ups always are."""
        return wanted & (IN | OUT)

    def queues(self) -> Iterator[Waiters]:
        """Yield the queues of the processes that wait for it."""
        yield self.waiters

    def read(self, size: int) -> bytes:
        raise fail(errno.EINVAL)

    def write(self, data: bytes) -> int:
        raise fail(errno.EBADF)

    def put(self, data: bytes) -> None:
        """Write from a signal handler, as much as there is room for."""

    def about(self) -> About:
        return About(Inode(0, stat.S_IFIFO | 0o600, 0), UID, 0)

    def until_ready(self, wanted: int) -> None:
        """Wait until an event is ready. Raises BlockingIOError if the file is non-blocking."""
        while not self.ready(wanted):
            if self.nonblocking:
                raise fail(errno.EAGAIN)
            K.wait(self.queues())


class FileOpen(Open):
    """An open regular file or directory, with a position."""

    def __init__(self, inode: Inode, readable: bool, writable: bool, append: bool, path: str) -> None:
        super().__init__()
        self.inode, self.readable, self.writable, self.append, self.at = inode, readable, writable, append, 0
        self.path = path
        inode.opens += 1

    def gone(self) -> None:
        inode = self.inode
        if inode.lock is not None and self in inode.lock[1]:
            inode.lock[1].discard(self)
            if not inode.lock[1]:
                inode.lock = None
            K.wake(inode_waiters(inode))
        if self.writable and inode.watches:
            K.disk.tell(inode, CLOSED)
        inode.opens -= 1
        K.disk.gone(inode)

    def read(self, size: int) -> bytes:
        data = self.pread(size, self.at)
        self.at += len(data)
        return data

    def pread(self, size: int, at: int) -> bytes:
        if not self.readable:
            raise fail(errno.EBADF)
        if self.inode.is_dir:
            raise fail(errno.EISDIR)
        return bytes(self.inode.data[at:at + size])

    def write(self, data: bytes) -> int:
        if self.append:
            self.at = len(self.inode.data)
        written = self.pwrite(data, self.at)
        self.at += written
        return written

    def pwrite(self, data: bytes, at: int) -> int:
        if not self.writable:
            raise fail(errno.EBADF)
        return K.disk.write(self.inode, at, data)

    def about(self) -> About:
        return About(self.inode, UID, len(self.inode.data))


def inode_waiters(inode: Inode) -> Waiters:
    """Return the queue of those that wait for a lock of an inode."""
    return LOCK_WAITERS.setdefault(inode.number, {})


class NullOpen(Open):
    """/dev/null."""

    def read(self, size: int) -> bytes:
        return b""

    def write(self, data: bytes) -> int:
        return len(data)

    def about(self) -> About:
        return About(Inode(3, stat.S_IFCHR | 0o666, 0), 0, 0)


class TextOpen(Open):
    """An open file of /proc; its text is made when it is opened."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self.text = text

    def read(self, size: int) -> bytes:
        found, self.text = self.text[:size], self.text[size:]
        return found

    def about(self) -> About:
        return About(Inode(4, stat.S_IFREG | 0o444, 0), UID, 0)


class HandleOpen(Open):
    """A process file descriptor, as from pidfd_open(2)."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process

    def ready(self, wanted: int) -> int:
        return wanted & IN if self.process.dead else 0

    def queues(self) -> Iterator[Waiters]:
        yield self.process.exit_waiters


class Channel:
    """One direction of a pipe or socket. `packets`: message boundaries are kept. A message may carry open files; then
    what follows is another message."""

    def __init__(self, packets: bool = False) -> None:
        self.messages: deque[tuple[bytes, list[Open]]] = deque()
        self.size = 0
        self.packets = packets
        self.writers = self.readers = 0
        self.reset = False  # the writer has closed it without having read all that came to him
        self.waiters: Waiters = {}

    def put(self, data: bytes, files: list[Open]) -> int:
        """Take as many bytes as there is room for."""
        room = ROOM - self.size
        if not self.packets:
            data = data[:room]
        for each in files:
            each.count += 1
        self.messages.append((data, files))
        self.size += len(data)
        K.wake(self.waiters)
        return len(data)

    def take(self, size: int, peek: bool = False) -> tuple[bytes, list[Open]]:
        """Return a message, or a part of the stream up to the end of the next message that carries files."""
        data, files = self.messages[0]
        if peek:
            return data[:size], []
        if self.packets:
            self.messages.popleft()
            self.size -= len(data)
            K.wake(self.waiters)
            return data[:size], files
        parts, left = [], size
        while self.messages and left > 0:
            part, files = self.messages.popleft()
            parts.append(part[:left])
            if len(part) > left:
                self.messages.appendleft((part[left:], []))
            left -= len(parts[-1])
            if files:
                break
        found = b"".join(parts)
        self.size -= len(found)
        K.wake(self.waiters)
        return found, files

    def drop(self) -> None:
        """Handle the end of the reader: open files on their way are closed."""
        messages, self.size = list(self.messages), 0
        self.messages.clear()
        for _, files in messages:
            for each in files:
                each.count -= 1
                if not each.count:
                    each.gone()


class PipeOpen(Open):
    """An end of a pipe."""

    kind = "pipe"

    def __init__(self, channel: Channel, writes: bool) -> None:
        super().__init__()
        self.channel, self.writes = channel, writes
        if writes:
            channel.writers += 1
        else:
            channel.readers += 1

    def gone(self) -> None:
        if self.writes:
            self.channel.writers -= 1
        else:
            self.channel.readers -= 1
            if not self.channel.readers:
                self.channel.drop()
        K.wake(self.channel.waiters)

    def queues(self) -> Iterator[Waiters]:
        yield self.channel.waiters

    def ready(self, wanted: int) -> int:
        channel = self.channel
        if self.writes:
            return (wanted & OUT if channel.size < ROOM or not channel.readers else 0) | (0 if channel.readers else ERR)
        return (wanted & IN if channel.messages else 0) | (0 if channel.writers else HUP)

    def read(self, size: int) -> bytes:
        if self.writes:
            raise fail(errno.EBADF)
        self.until_ready(IN)
        return self.channel.take(size)[0] if self.channel.messages else b""

    def write(self, data: bytes) -> int:
        if not self.writes:
            raise fail(errno.EBADF)
        written = 0
        while written < len(data):
            self.until_ready(OUT)
            if not self.channel.readers:
                broken_pipe()
            written += self.channel.put(data[written:], [])
            if self.nonblocking:
                break
        return written

    def put(self, data: bytes) -> None:
        if self.channel.readers and self.channel.size < ROOM:
            self.channel.put(data, [])


class Line:
    """A connection to another machine, with a channel in each direction."""

    def __init__(self, host: Host) -> None:
        self.host, self.boot = host, host.boot
        self.channels = (Channel(), Channel())
        self.near: tuple[LineOpen, LineOpen] = (LineOpen(self, 0, True), LineOpen(self, 1, False))
        self.far: tuple[LineOpen, LineOpen] = (LineOpen(self, 0, False), LineOpen(self, 1, True))
        host.lines.append(self)

    @property
    def silent(self) -> bool:
        """Return whether the network is cut."""
        return self.host.cut or not self.host.on

    @property
    def lost(self) -> bool:
        """Return whether the machine was restarted since; it then resets the connection."""
        return self.host.boot != self.boot

    def hang_up(self) -> None:
        """Handle that the machine at this end is gone and the other one knows it."""
        there, back = self.channels
        there.writers = back.readers = 0
        K.wake(there.waiters)
        K.wake(back.waiters)


class LineOpen(PipeOpen):
    """An end of a connection to another machine."""

    def __init__(self, line: Line, way: int, writes: bool) -> None:
        super().__init__(line.channels[way], writes)
        self.line = line

    def ready(self, wanted: int) -> int:
        if self.writes:
            return wanted & OUT if self.channel.size < ROOM or self._broken() else 0
        if self.line.silent:
            return 0
        return wanted & IN if self.channel.messages else HUP if self.line.lost or not self.channel.writers else 0

    def _broken(self) -> bool:
        return not self.line.silent and (self.line.lost or not self.channel.readers)

    def read(self, size: int) -> bytes:
        self.until_ready(IN)
        return self.channel.take(size)[0] if self.channel.messages and not self.line.lost else b""

    def write(self, data: bytes) -> int:
        self.until_ready(OUT)
        if self._broken():
            broken_pipe()
        return self.channel.put(data, [])


def broken_pipe() -> None:
    """Raise BrokenPipeError: there is no reader (Python ignores SIGPIPE)."""
    process = K.current
    if process.actions.get(PIPE, IGNORE) != IGNORE:
        K.signal(process, PIPE)
    raise fail(errno.EPIPE)


class SocketOpen(Open):
    """An end of a socket pair or of a connection, or a listening socket."""

    kind = "socket"

    def __init__(self, packets: bool = False) -> None:
        super().__init__()
        self.packets = packets
        self.incoming: Channel | None = None
        self.outgoing: Channel | None = None
        self.peer: tuple[int, int, int] = (0, UID, UID)
        self.name: Any = ""  # or the file that stands for it
        self.backlog: deque[SocketOpen] | None = None

    def join(self, other: SocketOpen) -> None:
        """Connect to the other end."""
        self.incoming, self.outgoing = Channel(self.packets), Channel(self.packets)
        other.incoming, other.outgoing = self.outgoing, self.incoming
        for channel in (self.incoming, self.outgoing):
            channel.readers = channel.writers = 1

    def gone(self) -> None:
        if self.name and K.names.get(self.name) is self:
            del K.names[self.name]
        if self.backlog is not None:
            for each in self.backlog:
                each.gone()
                assert each.outgoing is not None
                each.outgoing.reset = True
            self.backlog = None
        if self.incoming is not None and self.outgoing is not None:
            unread = bool(self.incoming.messages)
            self.incoming.readers = self.outgoing.writers = 0
            self.incoming.drop()
            self.outgoing.reset = unread
            K.wake(self.incoming.waiters)
            K.wake(self.outgoing.waiters)

    def queues(self) -> Iterator[Waiters]:
        yield self.waiters
        if self.incoming is not None and self.outgoing is not None:
            yield self.incoming.waiters
            yield self.outgoing.waiters

    def ready(self, wanted: int) -> int:
        if self.backlog is not None:
            return wanted & IN if self.backlog else 0
        incoming, outgoing = self.incoming, self.outgoing
        if incoming is None or outgoing is None:
            return HUP
        found = 0
        if incoming.messages or not incoming.writers:
            found |= wanted & IN
        if outgoing.size < ROOM or not outgoing.readers:
            found |= wanted & OUT
        return found | (HUP if not incoming.writers and not outgoing.readers else 0)

    def receive(self, size: int, wait: bool = True, peek: bool = False, until: float | None = None) -> tuple[bytes, list[Open]]:
        """Return the received bytes and the open files with them; b"" if the other end is closed. Raises TimeoutError if
        nothing comes `until` then."""
        incoming = self.incoming
        if incoming is None:
            raise fail(errno.ENOTCONN)
        while not incoming.messages:
            if not incoming.writers:
                if incoming.reset:
                    incoming.reset = False
                    raise fail(errno.ECONNRESET)
                return b"", []
            if self.nonblocking or not wait:
                raise fail(errno.EAGAIN)
            if until is not None and K.now >= until:
                raise TimeoutError("timed out")
            K.wait(self.queues(), until)
        return incoming.take(size, peek)

    def send(self, data: bytes, files: Iterable[Open] = (), wait: bool = True) -> int:
        """Send as much as there is room for; a packet only whole."""
        outgoing = self.outgoing
        if outgoing is None:
            raise fail(errno.ENOTCONN)
        while True:
            if not outgoing.readers:
                broken_pipe()
            if outgoing.size < ROOM and (not self.packets or outgoing.size + len(data) <= ROOM):
                return outgoing.put(data, list(files))
            if self.nonblocking or not wait:
                raise fail(errno.EAGAIN)
            K.wait(self.queues())

    def read(self, size: int) -> bytes:
        return self.receive(size)[0]

    def write(self, data: bytes) -> int:
        return self.send(data)

    def put(self, data: bytes) -> None:
        if self.outgoing is not None and self.outgoing.readers and self.outgoing.size < ROOM:
            self.outgoing.put(data, [])


class PollOpen(Open):
    """An epoll instance: the watched open files by file descriptor. A file whose last reference is closed is no longer
    watched."""

    kind = "epoll"

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[int, tuple[Open, int]] = {}

    def found(self) -> list[tuple[int, int]]:
        """Return the ready events by file descriptor."""
        events = []
        for number, (opened, wanted) in list(self.members.items()):
            if not opened.count:
                del self.members[number]
                continue
            mask = opened.ready(wanted)
            if mask:
                events.append((number, mask))
        return events

    def queues(self) -> Iterator[Waiters]:
        yield self.waiters
        for opened, _ in self.members.values():
            yield from opened.queues()

    def ready(self, wanted: int) -> int:
        return wanted & IN if any(opened.count and opened.ready(mask) for opened, mask in self.members.values()) else 0


class BellOpen(Open):
    """An inotify instance; it says that something happened, but not what."""

    kind = "inotify"

    def __init__(self) -> None:
        super().__init__()
        self.nonblocking = True
        self.rang = False
        self.watched: list[Inode] = []

    def ring(self) -> None:
        self.rang = True
        K.wake(self.waiters)

    def watch(self, inode: Inode, events: int) -> None:
        inode.watches = [(watch, mask) for watch, mask in inode.watches if watch is not self] + [(self, events)]
        self.watched.append(inode)

    def gone(self) -> None:
        for inode in self.watched:
            inode.watches = [each for each in inode.watches if each[0] is not self]

    def ready(self, wanted: int) -> int:
        return wanted & IN if self.rang else 0

    def read(self, size: int) -> bytes:
        if not self.rang:
            raise fail(errno.EAGAIN)
        self.rang = False
        return bytes(16)


def opened(process: Process, number: Any) -> Open:
    """Return the open file of a file descriptor."""
    found = process.files.get(number)
    if found is None:
        raise fail(errno.EBADF)
    return found  # type: ignore[no-any-return]
