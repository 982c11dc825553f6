"""Keeps one connection to each node for all that a run does there: vrm's agent, programs without MPI, mpirun's daemons.
It runs alone (`python -I -S relay.py LISTENING ALIVE`), one process per manager, and outlives the manager.

One ssh or srun per program would take longer than short programs run, and cost a step of the batch system each. So each
node has one runner (`runner.py`), started when first needed; under Slurm one srun starts all. Runners do not belong to
the manager: if it is killed, programs continue under the next one. `wire.py` describes the messages.

A client connects to the socket LISTENING: the manager for the agent of a node, a supervisor's stand-in
(`supervisor.py`) for a program, or the replacement of ssh for mpirun (`rsh_agent.py`). The end of its connection kills
the program, or ends the agent's input. If the relay ends the connection without an answer, the node was lost.

The relay ends when no program runs and nobody has the pipe ALIVE open for writing, so that no order can come."""

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
    from connections import RemoteConnection, NodeConnection, NodeLink, RelayClient
else:
    from vrm.live.relay import boot
    from vrm.live.relay.connections import RemoteConnection, NodeConnection, NodeLink, RelayClient
    from vrm.live.runner import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNREACHED = "cannot be reached"
"""First words of the reason why something was not started: its node did not answer."""

SILENT = "no answer to a ping within"
"""First words of the reason why a node that had answered before was lost."""

MOST_NOISE = 1 << 20
"""Bytes in a row that need not be lines of a runner, such as the output of login scripts; after more the link is lost."""

PING_EVERY = 5.0
"""Seconds from a runner's answer to the next question whether it is alive."""

EACH = 0.02
"""Additional seconds for each node that is reached together with others: Slurm needs time to start a step on many nodes."""

SUSPENDED = 2.0
"""Seconds of delay after which a process that wakes up too late counts as having been stopped."""

CLOSE_SECONDS = 2.0
"""Seconds that runners have to end by themselves."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are ignored: they are meant for the manager or its jobs."""

KILLED = re.compile(r"error: (\S+): tasks? [\d,-]+: ")
"""Message of srun about a runner that has ended."""


class Relay:
    """The main loop. Clients connect to `listening` as long as `alive` is open somewhere. `ways` are commands by node
    name; `groups` are pairs of several nodes and the command that reaches them at once; `timeout` is the seconds
    within which a node must answer."""

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
        self.readers: dict[int, Any] = {}   # descriptor -> function to call, and its arguments
        self.writers: dict[int, Any] = {}
        self.nodes: dict[bytes, NodeConnection] = {}  # connections for new orders
        self.links: dict[NodeLink, None] = {}  # in order of creation, which a set would not keep
        self.clients: set[RelayClient] = set()
        self.ended: list[subprocess.Popen[bytes]] = []  # processes of lost links, not waited for yet
        self.program = b""
        self.open = True                # orders may still come
        self.numbers = 0
        self.listen(listening.fileno(), self.take_client)
        self.listen(alive, self.end_orders)

    def listen(self, descriptor: int, reader: object, *arguments: object) -> None:
        """Call `reader` whenever the file can be read."""
        self.readers[descriptor] = reader, arguments
        self.poll.register(descriptor, select.EPOLLIN)

    def forget(self, descriptor: int) -> None:
        """Stop polling a file, which is about to be closed."""
        self.writers.pop(descriptor, None)
        if self.readers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def serve(self) -> None:
        """Run until no order can come and no client is left."""
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
                self.check_nodes()
                look = time.monotonic() + self.look_every
        self.close()

    def connections(self) -> list[NodeConnection]:
        """Return all connections, including those that get no new orders."""
        return [node for link in self.links for node in link.nodes.values()]

    # Clients.

    def end_orders(self) -> None:
        """Stop accepting clients: nobody can connect any more."""
        self.forget(self.alive)
        self.forget(self.listening.fileno())
        self.open = False

    def take_client(self) -> None:
        """Accept a client that has connected."""
        try:
            connection, _ = self.listening.accept()
        except OSError:  # it has ended, or there are too many open files: the next round tries again
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
        """Read a part of an order, the data that follows it, or the end of a client."""
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
        """Handle the end of a client's data: kill its program, or end the input of its agent."""
        if client.number and not client.ending:
            self.pass_on(client, b"" if client.kind == wire.AGENT else signal.SIGKILL.value)
        if client not in self.clients:
            return  # its node was lost in this call
        if client.kind == wire.AGENT and not client.ending:  # the agent may still send something
            client.ending = True
            self.poll.modify(client.connection.fileno(), 0)
        else:
            self.dismiss(client)

    def place(self, client: RelayClient, order: bytes) -> None:
        """Number an order and send it to its node."""
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
        """Pass on a signal to the program of a client, if that still runs, or input to its agent."""
        node = client.node
        if node is not None and client.number in node.clients:
            self.send(client, node, marshal.dumps(what, wire.PORTABLE))

    def send(self, client: RelayClient, node: NodeConnection, content: bytes) -> None:
        """Send an order, or the data that follows it, to the node as soon as the node has answered."""
        unsent = node.link.unsent if node.ready else client.unsent
        unsent += wire.frame(client.host, client.number, content)
        if node.ready:
            self.flush(node.link)

    def deliver(self, client: RelayClient) -> None:
        """Send a client as much as it can take."""
        try:
            while client.undelivered:
                del client.undelivered[:client.connection.send(client.undelivered)]
        except BlockingIOError:
            pass
        except OSError:
            client.undelivered.clear()  # it has been killed; its end is read as well
        if client.connection.fileno() in self.readers:
            read = 0 if client.ending else select.EPOLLIN
            self.poll.modify(client.connection.fileno(), read | (select.EPOLLOUT if client.undelivered else 0))

    def dismiss(self, client: RelayClient, answer: bytes = b"") -> None:
        """Close the connection to a client, after sending the answer."""
        self.forget(client.connection.fileno())
        try:
            client.connection.settimeout(CLOSE_SECONDS)
            client.connection.sendall(client.undelivered + answer)
        except OSError:
            pass  # it has been killed
        client.connection.close()
        self.clients.discard(client)
        if client.node is not None:
            client.node.clients.pop(client.number, None)

    # Nodes.

    def connect(self, host: bytes) -> NodeConnection:
        """Start the connection to a node, and to the nodes that are reached together with it. Raises OSError."""
        group = next((group for group in self.groups if host in group[0]), None)
        if group is not None:
            self.groups.remove(group)  # after a loss each node is reached alone
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
        for pipe, reader in ((link.stdout, self.hear), (link.stderr, self.read_errors)):
            os.set_blocking(pipe.fileno(), False)
            self.listen(pipe.fileno(), reader, link)
        stdin = link.stdin.fileno()
        os.set_blocking(stdin, False)
        self.readers[stdin] = self.writers[stdin] = self.flush, (link,)
        self.poll.register(stdin, 0)
        return self.nodes[host]

    def flush(self, link: NodeLink) -> None:
        """Write as much as the pipe takes."""
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
        """Read the output of runners, and of login scripts before them."""
        try:
            data = os.read(link.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.read_errors(link)
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
        """Handle a part of a runner's frame."""
        node = link.nodes.get(host)
        if node is None:  # it was given up as lost
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
                self.handle_remote_request(node, number, content)
            elif number in node.clients:
                self.answer(node.clients[number], content)

    def handle_remote_request(self, node: NodeConnection, number: int, content: bytes) -> None:
        """Handle a program on a node, such as the mpirun of a script, that requests a daemon on another node, or withdraws that."""
        client = node.far.get(number)
        if client is None and content:
            client = node.far[number] = RelayClient(RemoteConnection(node, number, self.flush))
            self.clients.add(client)
            client.kind, (client.host, _, order) = content[:1], content[1:].partition(b"\0")
            self.place(client, order)
        elif client is not None and not content:
            self.end_client(client)

    def answer(self, client: RelayClient, content: bytes) -> None:
        """Pass on how the program of a client ended, or the output of its agent, or the agent's end."""
        if client.kind != wire.AGENT:
            self.dismiss(client, content if client.kind == wire.PROGRAM else wire.said(client.host, content))
            return
        said = marshal.loads(content)
        if isinstance(said, bytes):
            client.undelivered += said
            self.deliver(client)
        else:
            self.dismiss(client)

    def note(self, link: NodeLink, data: bytes) -> None:
        """Keep the last line that is not from a runner."""
        texts = [text.strip() for text in data.decode(errors="replace").splitlines()]
        said = next((text for text in reversed(texts) if text), link.said)
        link.said = "".join(c if c.isprintable() else "?" for c in said)[:300]

    def read_errors(self, link: NodeLink) -> None:
        """Keep the last line that ssh, srun or a runner printed on standard error. On a link to several nodes it may
        report that one runner has ended."""
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

    def check_nodes(self) -> None:
        """Ask the nodes that were silent whether they are alive, and give up those that do not answer."""
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
        """Report to a client that its order was not started, or (if its node was `ready`) that it was lost with the node."""
        if client.kind == wire.AGENT:
            self.dismiss(client, b"\n" + reason.encode() + b"\n")
        elif ready:
            self.dismiss(client)
        else:
            self.answer(client, marshal.dumps((f"{UNREACHED}: {reason}", 0, 0.0, 0.0, 0), 2))

    def lose(self, node: NodeConnection, reason: str) -> None:
        """Give up a node as out of reach: what was to start there was not started, what ran there is lost. A node that
        was to be reached together with others is tried alone, since one of them may have made the start of all fail."""
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
        """Continue a link after one of its nodes was lost. srun ends the tasks on all nodes when a node is restarted
        before Slurm marks it as down: therefore new orders get a connection to each node alone."""
        link = lost.link
        if not link.nodes:
            self.disconnect(link)
            return
        for node in link.nodes.values():
            if lost.ready and self.nodes.get(node.host) == node:
                del self.nodes[node.host]
        link.unsent += wire.frame(lost.host, 0, marshal.dumps(None, wire.PORTABLE))  # if that node still receives it
        self.flush(link)

    def lose_link(self, link: NodeLink, reason: str) -> None:
        """Close a link and give up all nodes behind it."""
        self.disconnect(link)
        for node in list(link.nodes.values()):
            self.lose(node, reason)

    def disconnect(self, link: NodeLink) -> None:
        """Close a link and kill its ssh or srun, which leads a process group of its own."""
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
                continue  # it hangs in the kernel, and was sent SIGKILL


def main(arguments: list[str]) -> None:
    """Run the relay; the other arguments of `Relay` come through standard input."""
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
