"""Keeps one connection to each node for all that jobs start there: programs without MPI, and the daemons of mpirun.
It runs alone (`python -I -S relay.py LISTENING ALIVE`), one process per manager, and outlives it.

ssh or srun for every program would cost more than short programs take. So there is one of them for
each node, with a runner (`runner.py`) at its other end, started when first needed. It is not the
manager's: a manager may be killed, and its programs go on under the next one.

A client connects to the socket LISTENING (`relay_client.py`): a supervisor's stand-in (`supervisor.py`), or what
takes the place of ssh for mpirun (`rsh_agent.py`). It sends the node's name and the order behind their length, then a
byte for each signal to pass on; the end of it kills the program. It reads how the program ended,
up to the end of the connection, which alone means that the node was lost.

To and from a runner go frames: length (four bytes), number of the order (eight), what a stand-in
sends or reads, and the end of a line, since Slurm passes on whole lines only; signals are whole
numbers in `marshal`. A frame of number 0 without content asks whether the other is there, and is
the answer.

It ends when nobody can send an order any more, since nobody has the pipe ALIVE open for writing, and no program runs.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time

if not __package__:  # for `runner.py`, too
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import relay_client
else:
    from vrm.live.spawn import relay_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"\nvrm's runner\n"
"""What a runner says first: login scripts may have said something before."""

UNREACHED = "cannot be reached"
"""Begins the reason of what was not started since its node did not answer."""

MOST_NOISE = 1 << 20
"""Bytes that may come before it."""

PING_EVERY = 5.0
"""Seconds from a runner's answer to the next question whether it is there."""

SUSPENDED = 2.0
"""Seconds by which a process that wakes too late counts as having been stopped."""

CLOSE_SECONDS = 2.0
"""Seconds that runners have to end by themselves."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals meant for the manager or its jobs."""


def refused(reason: str) -> bytes:
    """How a program that was not started ended, as a runner would say it."""
    return marshal.dumps((reason, 0, 0.0, 0.0, 0), 2)


def frame(number: int, content: bytes = b"") -> bytes:
    """What goes between relay and runner."""
    return len(content).to_bytes(4, "little") + number.to_bytes(8, "little") + content + b"\n"


def take_frames(unread: bytearray) -> list[tuple[int, bytes]]:
    """Take the whole frames off what was read: (number, content) of each."""
    frames = []
    while len(unread) > 12:
        end = 12 + int.from_bytes(unread[:4], "little")
        if len(unread) <= end:
            break
        frames.append((int.from_bytes(unread[4:12], "little"), bytes(unread[12:end])))
        del unread[:end + 1]
    return frames


class Client:
    """What has a program started: its connection, the node and the number of its order (0 until that is whole), and
    what waits for the node to answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.host = b""
        self.unread = bytearray()
        self.number = 0
        self.unsent = bytearray()


class NodeConnection:
    """The connection to a node. `due`: when it counts as lost, or is to be asked whether it is not;
    `asked` tells which."""

    def __init__(self, process: subprocess.Popen[bytes], due: float) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.process = process
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self.ready = False
        self.due = due
        self.asked = True
        self.unread = bytearray()
        self.unsent = bytearray()
        self.said = ""
        self.clients: dict[int, Any] = {}


class Relay:
    """The loop; clients connect to `listening` as long as `alive` is open somewhere. `ways` are commands by the
    node's name, `timeout` seconds to answer in."""

    def __init__(self, listening: socket.socket, alive: int, ways: dict[bytes, Any], timeout: float) -> None:
        self.listening = listening
        self.alive = alive
        self.ways = ways
        self.timeout = timeout
        self.ping = min(PING_EVERY, timeout)
        self.poll = select.epoll()
        self.handlers: dict[int, Any] = {}   # number of an open file -> what to call, and with what
        self.lines: dict[bytes, NodeConnection] = {}   # by the node's name
        self.clients: set[Any] = set()
        self.ended: list[subprocess.Popen[bytes]] = []  # processes of lost lines that have not been waited for
        self.open = True                # orders may still come
        self.numbers = 0
        self.listen(listening.fileno(), self.take_client)
        self.listen(alive, self.end_orders)

    def listen(self, descriptor: int, handler: object, *arguments: object) -> None:
        """Call the handler when the file can be read."""
        self.handlers[descriptor] = handler, arguments
        self.poll.register(descriptor, select.EPOLLIN)

    def forget(self, descriptor: int) -> None:
        """Listen to a file no more; it is about to be closed."""
        if self.handlers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def serve(self) -> None:
        """Run until all is done."""
        while self.open or self.clients:
            due = min([line.due for line in self.lines.values()], default=None)
            wait = None if due is None else max(0.0, due - time.monotonic())
            ready = self.poll.poll(wait)
            late = 0.0 if due is None else time.monotonic() - due
            if late > SUSPENDED:  # this process was stopped, and perhaps the runners with it
                for line in self.lines.values():
                    line.due += late
            for descriptor, _ in ready:
                handler, arguments = self.handlers.get(descriptor, (None, ()))
                if handler is not None:
                    handler(*arguments)
            self.look_at_lines()
        self.close()

    # Clients.

    def end_orders(self) -> None:
        """Nobody can connect any more."""
        self.forget(self.alive)
        self.forget(self.listening.fileno())
        self.open = False

    def take_client(self) -> None:
        """A client has connected."""
        try:
            connection, _ = self.listening.accept()
        except OSError:  # it has gone, or there are too many open files: the next turn tries again
            return
        if not relay_client.own(connection):
            connection.close()
            return
        connection.setblocking(False)
        client = Client(connection)
        self.clients.add(client)
        self.listen(connection.fileno(), self.read_client, client)

    def read_client(self, client: Client) -> None:
        """A part of an order, signals, or the end of a client."""
        try:
            data = client.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            if client.number:
                self.signal(client, signal.SIGKILL)
            self.dismiss(client)
            return
        client.unread += data
        if not client.number:
            end = 4 + int.from_bytes(client.unread[:4], "little")
            if len(client.unread) < max(5, end):
                return
            client.host, _, order = bytes(client.unread[4:end]).partition(b"\0")
            del client.unread[:end]
            self.place(client, order)
        for number in client.unread:
            self.signal(client, number)
        client.unread.clear()

    def place(self, client: Client, order: bytes) -> None:
        """Send an order to its node."""
        self.numbers += 1
        client.number = self.numbers
        line = self.lines.get(client.host) or self.connect(client)
        if line is not None:
            line.clients[client.number] = client
            self.send(client, order)

    def signal(self, client: Client, number: int) -> None:
        """Pass a signal on to the program of a stand-in, where that still runs."""
        line = self.lines.get(client.host)
        if line is not None and client.number in line.clients:
            self.send(client, marshal.dumps(int(number), 2))

    def send(self, client: Client, content: bytes) -> None:
        """Send an order or a signal to the node, as soon as that has answered."""
        line = self.lines[client.host]
        unsent = line.unsent if line.ready else client.unsent
        unsent += frame(client.number, content)
        if line.ready:
            self.flush(client.host, line)

    def dismiss(self, client: Client, answer: bytes = b"") -> None:
        """End the connection to a stand-in, after the answer."""
        self.forget(client.connection.fileno())
        try:
            client.connection.sendall(answer)
        except OSError:
            pass  # it has been killed
        client.connection.close()
        self.clients.discard(client)
        line = self.lines.get(client.host)
        if line is not None:
            line.clients.pop(client.number, None)

    # Lines.

    def connect(self, client: Client) -> NodeConnection | None:
        """Start the connection to a stand-in's node; None, and it knows why, when that fails."""
        way = self.ways.get(client.host)
        try:
            if way is None:
                raise OSError(0, "not a node of this run")
            process = subprocess.Popen(way, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, start_new_session=True, cwd="/")
        except OSError as error:
            self.dismiss(client, refused(f"{UNREACHED}: {error.strerror}"))
            return None
        line = self.lines[client.host] = NodeConnection(process, time.monotonic() + self.timeout)
        for pipe, handler in ((line.stdout, self.hear), (line.stderr, self.hear_errors)):
            os.set_blocking(pipe.fileno(), False)
            self.listen(pipe.fileno(), handler, client.host, line)
        os.set_blocking(line.stdin.fileno(), False)
        self.handlers[line.stdin.fileno()] = self.flush, (client.host, line)
        self.poll.register(line.stdin.fileno(), 0)
        return line

    def flush(self, host: bytes, line: NodeConnection) -> None:
        """Write what the pipe takes."""
        stdin = line.stdin.fileno()
        try:
            while line.unsent:
                del line.unsent[:os.write(stdin, line.unsent[:1 << 16])]
        except BlockingIOError:
            pass
        except OSError:
            self.lose(host, line, "its connection was closed")
            return
        self.poll.modify(stdin, select.EPOLLOUT if line.unsent else 0)

    def hear(self, host: bytes, line: NodeConnection) -> None:
        """What a runner, or before it a login script, says."""
        try:
            data = os.read(line.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.hear_errors(host, line)
            self.lose(host, line, "its runner ended")
            return
        line.unread += data
        if not line.ready:
            noise, magic, rest = bytes(line.unread).partition(MAGIC)
            if not magic:
                if len(noise) > MOST_NOISE:
                    self.lose(host, line, "something other than a runner answers there")
                return
            line.unread[:] = rest
            line.ready = True
            for client in line.clients.values():  # those that have been killed are not in it
                line.unsent += client.unsent
            self.flush(host, line)
        line.asked, line.due = False, time.monotonic() + self.ping
        for number, content in take_frames(line.unread):
            if number in line.clients:
                self.dismiss(line.clients[number], content)

    def hear_errors(self, host: bytes, line: NodeConnection) -> None:
        """Keep the last line that ssh, srun or the runner complained of."""
        descriptor = line.stderr.fileno()
        try:
            data = os.read(descriptor, 1 << 16) if descriptor in self.handlers else b""
        except BlockingIOError:
            return
        if not data:
            self.forget(descriptor)
        lines = [text.strip() for text in data.decode(errors="replace").splitlines()]
        line.said = next((text for text in reversed(lines) if text), line.said)[:300]

    def look_at_lines(self) -> None:
        """Ask those of which nothing was heard, and give up those that do not answer."""
        now = time.monotonic()
        for host, line in list(self.lines.items()):
            if now < line.due:
                continue
            if line.asked:
                self.lose(host, line, f"no answer within {self.timeout:g} s")
            else:
                line.asked, line.due = True, now + self.timeout
                line.unsent += frame(0)
                self.flush(host, line)
        self.ended = [process for process in self.ended if process.poll() is None]

    def lose(self, host: bytes, line: NodeConnection, reason: str) -> None:
        """A node is out of reach: what was to start there has not, what ran there is lost."""
        if self.lines.get(host) is not line:
            return
        del self.lines[host]
        answer = b"" if line.ready else refused(
            f"{UNREACHED}: {reason}" + (f"; it said: {line.said}" if line.said else ""))
        for client in line.clients.values():
            self.dismiss(client, answer)
        self.disconnect(line)

    def disconnect(self, line: NodeConnection) -> None:
        """Close a line and kill its ssh or srun, which leads a group of its own."""
        for pipe in (line.stdin, line.stdout, line.stderr):
            if not pipe.closed:
                self.forget(pipe.fileno())
                pipe.close()
        if line.process.poll() is None:
            os.killpg(line.process.pid, signal.SIGKILL)
            self.ended.append(line.process)

    def close(self) -> None:
        """End all runners by the end of their input, and by force those that do not end."""
        for line in self.lines.values():
            self.forget(line.stdin.fileno())
            line.stdin.close()
        end = time.monotonic() + CLOSE_SECONDS
        for line in self.lines.values():
            try:
                line.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            self.disconnect(line)


def main(arguments: list[str]) -> None:
    """Run the relay; what `Relay` takes comes through standard input."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one file for each program
    timeout, ways = marshal.loads(sys.stdin.buffer.read())
    listening, alive = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    listening.set_inheritable(False)
    listening.setblocking(False)
    os.set_inheritable(alive, False)
    Relay(listening, alive, ways, timeout).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
