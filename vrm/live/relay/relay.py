"""Keeps one connection to each node for all that a run does there: vrm's agent, programs without MPI, and the daemons of
mpirun. It runs alone (`python -I -S relay.py LISTENING ALIVE`), one process per manager, and outlives it.

ssh or srun for every program would cost more than short programs take, and the batch system a step for each. So there is
one runner (`runner.py`) on each node, started when first needed; under Slurm one srun starts all of them. They are not the
manager's: a manager may be killed, and its programs go on under the next one. `wire.py` says what goes to and fro.

A client connects to the socket LISTENING: the manager for the agent of a node, a supervisor's stand-in
(`supervisor.py`) for a program, or what takes the place of ssh for mpirun (`rsh_agent.py`). The end of its connection
kills the program, or is the end of the agent's input. The end of the connection without an answer means that the
node was lost.

It ends when nobody can send an order any more, since nobody has the pipe ALIVE open for writing, and no program runs.
"""

from __future__ import annotations

import marshal
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time

if not __package__:
    _HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path += [_HERE, os.path.join(os.path.dirname(_HERE), "runner")]
    import boot
    import wire
    from connections import FarConnection, NodeConnection, NodeLink, RelayClient
else:
    from vrm.live.relay import boot
    from vrm.live.relay.connections import FarConnection, NodeConnection, NodeLink, RelayClient
    from vrm.live.runner import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNREACHED = "cannot be reached"
"""Begins the reason of what was not started since its node did not answer."""

SILENT = "no answer to a ping within"
"""Begins the reason of a node that was there."""

MOST_NOISE = 1 << 20
"""Bytes in a row that may be no line of a runner, as login scripts print them."""

PING_EVERY = 5.0
"""Seconds from a runner's answer to the next question whether it is there."""

EACH = 0.02
"""Seconds more for each node that is reached with others: Slurm starts a step on many nodes in some time."""

SUSPENDED = 2.0
"""Seconds by which a process that wakes too late counts as having been stopped."""

CLOSE_SECONDS = 2.0
"""Seconds that runners have to end by themselves."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals meant for the manager or its jobs."""

KILLED = re.compile(r"error: (\S+): tasks? [\d,-]+: ")
"""What srun says of a runner that has ended."""


class Relay:
    """The loop; clients connect to `listening` as long as `alive` is open somewhere. `ways` are commands by the
    node's name, `groups` those that reach several nodes at once, with these; `timeout` seconds to answer in."""

    def __init__(self, listening: socket.socket, alive: int, ways: dict[bytes, Any],
                 groups: list[tuple[list[bytes], list[str]]], timeout: float) -> None:
        self.listening = listening
        self.alive = alive
        self.ways = ways
        self.groups = groups
        self.timeout = timeout
        self.ping = min(PING_EVERY, timeout)
        self.look_every = self.ping / 8
        self.poll = select.epoll()
        self.readers: dict[int, Any] = {}   # number of an open file -> what to call, and with what
        self.writers: dict[int, Any] = {}
        self.nodes: dict[bytes, NodeConnection] = {}  # behind which things start from now on
        self.links: dict[NodeLink, None] = {}  # in their order, which a set of objects would not have
        self.clients: set[RelayClient] = set()
        self.ended: list[subprocess.Popen[bytes]] = []  # of lost links, that have not been waited for
        self.program = b""
        self.open = True                # orders may still come
        self.numbers = 0
        self.listen(listening.fileno(), self.take_client)
        self.listen(alive, self.end_orders)

    def listen(self, descriptor: int, reader: object, *arguments: object) -> None:
        """Call the reader when the file can be read."""
        self.readers[descriptor] = reader, arguments
        self.poll.register(descriptor, select.EPOLLIN)

    def forget(self, descriptor: int) -> None:
        """Stop listening to a file, which is about to be closed."""
        self.writers.pop(descriptor, None)
        if self.readers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def serve(self) -> None:
        """Run until all is done."""
        look = time.monotonic() + self.look_every
        while self.open or self.clients:
            ready = self.poll.poll(max(0.0, look - time.monotonic()) if self.links else None)
            late = time.monotonic() - look
            if late > SUSPENDED:  # this process was stopped, and perhaps the runners with it
                for node in self.connections():
                    node.due += late
            for descriptor, mask in ready:
                for handlers, wanted in ((self.writers, select.EPOLLOUT), (self.readers, ~select.EPOLLOUT)):
                    if mask & wanted and descriptor in handlers:
                        handler, arguments = handlers[descriptor]
                        handler(*arguments)
            if time.monotonic() >= look or not self.links:
                self.look_at_nodes()
                look = time.monotonic() + self.look_every
        self.close()

    def connections(self) -> list[NodeConnection]:
        """All of them, also those behind which nothing new starts."""
        return [node for link in self.links for node in link.nodes.values()]

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
        if not wire.own(connection):
            connection.close()
            return
        connection.setblocking(False)
        client = RelayClient(connection)
        self.clients.add(client)
        self.listen(connection.fileno(), self.read_client, client)
        self.writers[connection.fileno()] = self.deliver, (client,)

    def read_client(self, client: RelayClient) -> None:
        """A part of an order, what follows it, or the end of a client."""
        try:
            data = client.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.end_client(client)
            return
        client.unread += data
        if not client.number:
            end = 4 + int.from_bytes(client.unread[:4], "little")
            if len(client.unread) < max(5, end):
                return
            client.kind, (client.host, _, order) = bytes(client.unread[4:5]), bytes(client.unread[5:end]).partition(b"\0")
            del client.unread[:end]
            self.place(client, order)
        if client.kind == wire.AGENT and client.unread:
            self.pass_on(client, bytes(client.unread))
        elif client.kind == wire.PROGRAM:
            for number in client.unread:
                self.pass_on(client, int(number))
        client.unread.clear()

    def end_client(self, client: RelayClient) -> None:
        """Nothing more comes from a client: its program is killed, its agent sees the end of its input."""
        if client.number and not client.ending:
            self.pass_on(client, b"" if client.kind == wire.AGENT else signal.SIGKILL.value)
        if client not in self.clients:
            return  # its node was lost at this
        if client.kind == wire.AGENT and not client.ending:  # which may say something still
            client.ending = True
            self.poll.modify(client.connection.fileno(), 0)
        else:
            self.dismiss(client)

    def place(self, client: RelayClient, order: bytes) -> None:
        """Send an order to its node."""
        self.numbers += 1
        client.number = self.numbers
        try:
            node = self.nodes.get(client.host) or self.connect(client.host)
        except OSError as error:
            self.lose_client(client, str(error.strerror))
            return
        client.node = node
        node.clients[client.number] = client
        self.send(client, node, node.link.shortened(order) if node.ready and client.kind != wire.AGENT else order)

    def pass_on(self, client: RelayClient, what: int | bytes) -> None:
        """Pass on a signal to the program of a client, where that still runs, or input to its agent."""
        node = client.node
        if node is not None and client.number in node.clients:
            self.send(client, node, marshal.dumps(what, wire.PORTABLE))

    def send(self, client: RelayClient, node: NodeConnection, content: bytes) -> None:
        """Send an order or what follows it to the node, as soon as that has answered."""
        unsent = node.link.unsent if node.ready else client.unsent
        unsent += wire.frame(client.host, client.number, content)
        if node.ready:
            self.flush(node.link)

    def deliver(self, client: RelayClient) -> None:
        """Give a client what it can take."""
        try:
            while client.unheard:
                del client.unheard[:client.connection.send(client.unheard)]
        except BlockingIOError:
            pass
        except OSError:
            client.unheard.clear()  # it has been killed, which is read as well
        if client.connection.fileno() in self.readers:
            read = 0 if client.ending else select.EPOLLIN
            self.poll.modify(client.connection.fileno(), read | (select.EPOLLOUT if client.unheard else 0))

    def dismiss(self, client: RelayClient, answer: bytes = b"") -> None:
        """End the connection to a client, after the answer."""
        self.forget(client.connection.fileno())
        try:
            client.connection.settimeout(CLOSE_SECONDS)
            client.connection.sendall(client.unheard + answer)
        except OSError:
            pass  # it has been killed
        client.connection.close()
        self.clients.discard(client)
        if client.node is not None:
            client.node.clients.pop(client.number, None)

    # Nodes.

    def connect(self, host: bytes) -> NodeConnection:
        """Start the connection to a node, and to those that are reached with it. Raises OSError."""
        group = next((group for group in self.groups if host in group[0]), None)
        if group is not None:
            self.groups.remove(group)  # a node that is lost is reached alone
        hosts, way = group or ([host], self.ways.get(host))
        if way is None:
            raise OSError(0, "not a node of this run")
        try:
            process = subprocess.Popen(way, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, start_new_session=True, cwd="/")
        except OSError as error:
            raise OSError(0, f"{way[0]} cannot be started: {error.strerror}") from None
        link = NodeLink(process, hosts)
        self.links[link] = None
        due = time.monotonic() + self.timeout + EACH * (len(hosts) - 1)
        link.nodes = {each: NodeConnection(each, link, due) for each in hosts}
        self.nodes.update(link.nodes)
        for pipe, reader in ((link.stdout, self.hear), (link.stderr, self.hear_errors)):
            os.set_blocking(pipe.fileno(), False)
            self.listen(pipe.fileno(), reader, link)
        stdin = link.stdin.fileno()
        os.set_blocking(stdin, False)
        self.readers[stdin] = self.writers[stdin] = self.flush, (link,)
        self.poll.register(stdin, 0)
        return self.nodes[host]

    def flush(self, link: NodeLink) -> None:
        """Write what the pipe takes."""
        if link not in self.links:
            return
        stdin = link.stdin.fileno()
        try:
            while link.unsent:
                del link.unsent[:os.write(stdin, link.unsent[:1 << 16])]
        except BlockingIOError:
            pass
        except OSError:
            self.lose_link(link, "its connection was closed")
            return
        self.poll.modify(stdin, select.EPOLLOUT if link.unsent else 0)

    def hear(self, link: NodeLink) -> None:
        """What runners, or before them login scripts, say."""
        try:
            data = os.read(link.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.hear_errors(link)
            self.lose_link(link, link.said or "its agent ended and printed nothing")
            return
        link.unread += data
        *lines, rest = bytes(link.unread).split(b"\n") if b"\n" in data else (bytes(link.unread),)
        link.unread[:] = rest
        for line in lines:
            host, part = wire.part_of(line)
            if host:
                link.noise = 0
                self.take(link, host, part)
            else:
                link.noise += len(line)
                self.note(link, line)
        if link.noise + len(link.unread) > MOST_NOISE:
            self.note(link, bytes(link.unread[:300]))
            self.lose_link(link, f"something other than an agent answers there: {link.said}")

    def take(self, link: NodeLink, host: bytes, part: bytes) -> None:
        """A part of what the runner of a node says."""
        node = link.nodes.get(host)
        if node is None:  # it was given up
            return
        if not part:
            if not link.sent:
                link.sent = True
                link.unsent[:0] = self.program = self.program or boot.program()
                self.flush(link)
            return
        if not node.ready:
            node.ready = True
            for client in node.clients.values():  # those that have been killed are not in it
                link.unsent += client.unsent
            self.flush(link)
        node.asked, node.due = False, time.monotonic() + self.ping
        node.unread += part
        for number, content in wire.take_answers(node.unread):
            if number & wire.FAR:
                self.hear_far(node, number, content)
            elif number in node.clients:
                self.answer(node.clients[number], content)

    def hear_far(self, node: NodeConnection, number: int, content: bytes) -> None:
        """A program on a node, such as the mpirun of a script, wants a daemon on another one, or no longer."""
        client = node.far.get(number)
        if client is None and content:
            client = node.far[number] = RelayClient(FarConnection(node, number, self.flush))
            self.clients.add(client)
            client.kind, (client.host, _, order) = content[:1], content[1:].partition(b"\0")
            self.place(client, order)
        elif client is not None and not content:
            self.end_client(client)

    def answer(self, client: RelayClient, content: bytes) -> None:
        """How the program of a client ended; or what its agent says, or its end."""
        if client.kind != wire.AGENT:
            self.dismiss(client, content if client.kind == wire.PROGRAM else wire.said(client.host, content))
            return
        said = marshal.loads(content)
        if isinstance(said, bytes):
            client.unheard += said
            self.deliver(client)
        else:
            self.dismiss(client)

    def note(self, link: NodeLink, data: bytes) -> None:
        """Keep the last line that is none of a runner."""
        texts = [text.strip() for text in data.decode(errors="replace").splitlines()]
        said = next((text for text in reversed(texts) if text), link.said)
        link.said = "".join(c if c.isprintable() else "?" for c in said)[:300]

    def hear_errors(self, link: NodeLink) -> None:
        """Keep the last line that ssh, srun or a runner complained of; a runner of several may have ended."""
        descriptor = link.stderr.fileno()
        try:
            data = os.read(descriptor, 1 << 16) if descriptor in self.readers else b""
        except BlockingIOError:
            return
        if not data:
            self.forget(descriptor)
        self.note(link, data)
        if link.several:
            for host in KILLED.findall(data.decode(errors="replace")):
                node = link.nodes.get(host.encode())
                if node is not None:
                    self.lose(node, "its agent was killed")

    def look_at_nodes(self) -> None:
        """Ask those of which nothing was heard, and give up those that do not answer."""
        now = time.monotonic()
        links = dict[NodeLink, None]()
        for node in self.connections():
            if now < node.due or node.link.nodes.get(node.host) is not node:
                continue
            if node.asked:
                said = f"; it said: {node.link.said}" if node.link.said and not node.ready else ""
                self.lose(node, f"{SILENT if node.ready else 'no answer within'} {self.timeout:g} s{said}")
            else:
                node.asked, node.due = True, now + self.timeout
                links[node.link] = None
        for link in [link for link in links if link in self.links]:
            link.unsent += wire.frame(wire.EVERY, 0)
            self.flush(link)
        self.ended = [process for process in self.ended if process.poll() is None]

    def lose_client(self, client: RelayClient, reason: str, ready: bool = False) -> None:
        """What a client wanted was not started, or is lost with its node if that was `ready`."""
        if client.kind == wire.AGENT:
            self.dismiss(client, b"\n" + reason.encode() + b"\n")
        elif ready:
            self.dismiss(client)
        else:
            self.answer(client, marshal.dumps((f"{UNREACHED}: {reason}", 0, 0.0, 0.0, 0), 2))

    def lose(self, node: NodeConnection, reason: str) -> None:
        """A node is out of reach: what was to start there has not, what ran there is lost. One that was to be reached
        with others is tried alone: the start of all may have failed for one of them."""
        host, link = node.host, node.link
        del link.nodes[host]
        if self.nodes.get(host) is node:
            del self.nodes[host]
        if node.clients and not node.ready and link.several:
            try:
                again = self.nodes.get(host) or self.connect(host)
                for client in node.clients.values():
                    client.node = again
                    if again.ready:
                        again.link.unsent += client.unsent
                again.clients.update(node.clients)
                node.clients = {}
                self.flush(again.link)
            except OSError as error:
                reason = str(error.strerror)
        for client in list(node.clients.values()):
            self.lose_client(client, reason, node.ready)
        for client in list(node.far.values()):
            self.end_client(client)
        if link in self.links:
            self.leave(node)

    def leave(self, lost: NodeConnection) -> None:
        """A node behind a link is lost. srun ends the tasks on all nodes when that is restarted before Slurm takes it for down: what
        starts from now on gets a connection to each node alone."""
        link = lost.link
        if not link.nodes:
            self.disconnect(link)
            return
        for node in link.nodes.values():
            if lost.ready and self.nodes.get(node.host) == node:
                del self.nodes[node.host]
        link.unsent += wire.frame(lost.host, 0, marshal.dumps(None, wire.PORTABLE))  # should it hear that still
        self.flush(link)

    def lose_link(self, link: NodeLink, reason: str) -> None:
        """All nodes behind a link are out of reach."""
        self.disconnect(link)
        for node in list(link.nodes.values()):
            self.lose(node, reason)

    def disconnect(self, link: NodeLink) -> None:
        """Close a link and kill its ssh or srun, which leads a group of its own."""
        self.links.pop(link, None)
        for pipe in (link.stdin, link.stdout, link.stderr):
            if not pipe.closed:
                self.forget(pipe.fileno())
                pipe.close()
        if link.process.poll() is None:
            os.killpg(link.process.pid, signal.SIGKILL)
            self.ended.append(link.process)

    def close(self) -> None:
        """End all runners by the end of their input, and by force those that do not end."""
        for link in self.links:
            self.forget(link.stdin.fileno())
            link.stdin.close()
        end = time.monotonic() + CLOSE_SECONDS
        for link in list(self.links):
            try:
                link.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            self.disconnect(link)
        for process in self.ended:
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                continue  # it hangs in the kernel, and has its SIGKILL


def main(arguments: list[str]) -> None:
    """Run the relay; what `Relay` takes comes through standard input."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one file for each program
    setup = marshal.loads(sys.stdin.buffer.read())
    listening, alive = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    listening.set_inheritable(False)
    listening.setblocking(False)
    os.set_inheritable(alive, False)
    Relay(listening, alive, *setup).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
