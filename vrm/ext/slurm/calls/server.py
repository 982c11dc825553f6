"""The socket in the directory of a run, through which the manager answers commands of other batch systems.

Only the user who runs the manager can connect: the socket's permissions exclude others, and the kernel reports the
user of each connection. All calls of one turn of the manager's loop share one sync of the journal; no call is
answered before that sync."""

from __future__ import annotations

import math
import os
import selectors
import socket
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from collections.abc import Collection, Mapping

from vrm.ext.slurm.calls import names, wire
from vrm.ext.slurm.calls.answers import (Answer, AnswerInParts, CallRefused, DeferredAnswer, FileNeeded, JoinStep,
                                         Reply, RunLocally)
from vrm.ext.slurm.calls.client import call_from_json, peer
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.wire import Call
from vrm.live.manager import copies
from vrm.live.manager.input_faults import InputFault, reading
from vrm.ext.slurm.calls.live_handler import LiveRequestHandler
from vrm.ext.slurm.calls.sampling import JobUsage
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import CommandHandler, Part, Question
from vrm.run.journal.history import RunHistory
from vrm.run.command_files import Command
from vrm.workload.grammar import show

SOON = 0.02
"""Seconds after a call in which another call is likely. Work that can wait shares that call's sync."""

BACKLOG = 4096
"""Number of clients that may wait for their connection to be accepted."""

MOST = 2000
"""Maximum number of connected clients. When one more connects, the first client whose call is not complete yet is
disconnected (it may be the new one); it repeats its call by a command file."""


@dataclass(eq=False)
class Client:
    """A connected client: the bytes received from it, its call, and the data to be sent to it."""

    connection: socket.socket
    got: bytes = b""
    size: int | None = None
    call: Call | None = None
    needs: str | None = None         # the file that the client is asked to send
    waiting: DeferredAnswer | None = None
    to_send: deque[memoryview] = field(default_factory=deque)
    events: int = 0                     # the events of its connection that the loop waits for
    last: bool = False                  # close the connection after sending `to_send`
    parts: list[bytes] = field(default_factory=list)


SILENCE = 60.0
"""Seconds after which a client on another node that has not asked again is considered dead."""

AGAIN = 5.0
"""Seconds within which a living client on another node asks again."""


LATER = Answer()
"""Placeholder for an answer that is still to be made."""


class SocketServer(Part):
    """Part of the manager that receives calls and answers them. If no socket can be made (some file systems have
    none), only calls by command files are answered (`file_calls`), and `trouble` holds the reason."""

    observes = (JobUsage,)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.handler = LiveRequestHandler(live)
        self.file_calls = CommandFileCalls(live, self.handler)
        self.trouble = ""
        self._path = live.run_directory.directory / wire.SOCKET
        self._listening: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._clients: dict[int, Client] = {}
        self.call_expected_until = -math.inf          # until when another call is likely
        self.calls: list[Client] = []       # clients with a complete call
        self.replies: dict[Client, Reply] = {}

    def recall(self, past: RunHistory) -> None:
        """Read from the journal which calls earlier managers have carried out, and the jobs of these calls."""
        self.handler.known = past.by_command
        self.file_calls.done = set(past.commands)

    def observe(self, event: object) -> None:
        """Pass on usage reports of nodes."""
        if isinstance(event, JobUsage):
            self.handler.sampling.answered(event)

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the handler of calls that come as command files."""
        return {"front": self.file_calls.carry_out_command}

    def repeats(self) -> Collection[str]:
        """A call may be repeated, because the jobs that it has submitted are known."""
        return self.commands()

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Create the socket and register it with the loop's selector."""
        self._selector = selector
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._path.unlink(missing_ok=True)
            folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                before = os.umask(0o177)
                try:
                    listening.bind(f"/proc/self/fd/{folder}/{wire.SOCKET}")  # short, however long the path
                finally:
                    os.umask(before)
            finally:
                os.close(folder)
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            self.trouble = f"no socket can be made in {self._path.parent}: {error.strerror}"
            return
        self._listening = listening
        selector.register(listening, selectors.EVENT_READ, self._accept)

    def end(self) -> None:
        """Disconnect all clients and remove the socket."""
        for client in list(self._clients.values()):
            self._drop(client)
        if self._listening is not None and self._selector is not None:
            self._selector.unregister(self._listening)
            self._listening.close()
            self._listening = None
            self._path.unlink(missing_ok=True)

    @property
    def has_work(self) -> bool:
        """Whether the next turn has work for a waiting client."""
        return any(client.waiting is not None and client.waiting.has_work for client in self._clients.values())

    def deadline(self, now: float) -> float:
        """Return `now` if there is work for a waiting client, else infinity."""
        return now if self.has_work else math.inf

    def expects(self, now: float) -> bool:
        """Return whether an answer is not finished, or a client on another node will ask again soon."""
        return self.has_work or self.file_calls.busy(self.live.clock())

    def likely(self) -> float:
        """Return until when another call is likely; infinity if there is work for a waiting client."""
        return math.inf if self.has_work else self.call_expected_until

    # Receiving calls.

    def _accept(self) -> None:
        assert self._listening is not None and self._selector is not None
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # no more clients, or no more file descriptors: these clients wait
            if peer(connection) != os.geteuid():
                connection.close()
                continue
            connection.setblocking(False)
            client = Client(connection)
            self._clients[connection.fileno()] = client
            if len(self._clients) > MOST:
                self._drop(next(each for each in self._clients.values() if each.call is None))
                if connection.fileno() < 0:
                    continue
            self._read(client)  # usually the whole call is there already
            self._listen(client, selectors.EVENT_READ)

    def _read(self, client: Client) -> None:
        try:
            while True:
                part = client.connection.recv(1 << 18)
                if not part:
                    self._drop(client)
                    return
                client.parts.append(part)
                if len(part) < 1 << 18:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        client.got = b"".join([client.got, *client.parts])
        client.parts.clear()
        try:
            with reading(self.live.journal):
                self._understand(client)
        except (InputFault, OSError) as error:
            self._refuse(client, str(error))

    def _understand(self, client: Client) -> None:
        """Parse a complete call, or the frames that follow one."""
        if client.call is None:
            if client.size is None:
                client.size = wire.size_of(client.got)
            if client.size is None or len(client.got) < client.size:
                return
            client.call = wire.call_of(client.got[:client.size])
            client.got = client.got[client.size:]
            self.calls.append(client)
        found, client.got = wire.frames(client.got)
        for kind, data in found:
            call, path = client.call, client.needs
            if kind in b"DF" and path is not None:
                client.needs = None
                sent = {**call.sent, path: data} if kind == b"D" else call.sent
                missing = {**call.missing, path: os.fsdecode(data)} if kind == b"F" else call.missing
                client.call = replace(call, sent=sent, missing=missing)
                self.calls.append(client)
            elif kind == b"K" and client.waiting is not None:
                client.waiting.signalled(wire.signal_of(data))
                self._send(client, wire.frame(b"O", b""))
            elif kind == b"K":
                self._send(client, wire.frame(b"X", b"%d" % (128 + wire.signal_of(data))), last=True)
            else:
                raise wire.WireError("nothing of this kind was asked for")

    def _drop(self, client: Client) -> None:
        number = client.connection.fileno()
        if self._clients.pop(number, None) is None:
            return
        self._listen(client, 0)
        client.connection.close()
        if client in self.calls:
            self.calls.remove(client)
        self.replies.pop(client, None)
        if client.waiting is not None:
            client.waiting.gone()
            client.waiting = None

    # Answers.

    def look(self, now: float, files: bool) -> None:
        """Carry out the received calls. Their replies are sent later, by `act`."""
        if files:
            self.file_calls.sweep(self.live.clock())
        calls, self.calls = self.calls, []
        if calls:
            self.call_expected_until = self.live.clock() + SOON
        for client in calls:
            assert client.call is not None
            self.replies[client] = (LATER if is_long_query(client.call, self.live) else
                                    reply_to(client.call, self.handler, self.live))
        for client in list(self._clients.values()):
            if client.waiting is not None:
                done, out, err = poll_answer(client.waiting, self.live)
                if out or err:
                    self._send(client, wire.frame(b"O", out) * bool(out) + wire.frame(b"E", err) * bool(err))
                if done is not None:
                    client.waiting = None
                    self.replies[client] = done

    def act(self, now: float) -> None:
        """Send the replies, once the journal is on disk."""
        if not self.replies:
            return
        if not self.live.synced():
            return  # the replies wait until the disk accepts the journal
        replies, self.replies = self.replies, {}
        for client, reply in replies.items():
            if reply is LATER:
                assert client.call is not None
                if self.live.copies.begin(partial(self._answer_all, client), client.connection.fileno()):
                    self._drop(client)
                else:
                    self.replies[client] = LATER
            elif isinstance(reply, FileNeeded):
                client.needs = reply.path
                self._send(client, wire.frame(b"I", os.fsencode(reply.path)))
            elif isinstance(reply, RunLocally):
                self._send(client, wire.frame(b"P", b""), last=True)
            elif isinstance(reply, JoinStep):
                self._send(client, wire.frame(b"S", reply.packed()), last=True)
            elif isinstance(reply, DeferredAnswer):
                client.waiting = reply
                self._send(client, wire.frame(b"O", b""))
            else:
                self._send(client, framed(reply), last=True)

    def _answer_all(self, client: Client) -> None:
        """In a copy of the manager: make the whole answer to a call that only reads, and send it."""
        assert client.call is not None
        reply = reply_to(client.call, self.handler, self.live)
        client.connection.setblocking(True)
        client.connection.sendall(framed(reply) if isinstance(reply, Answer) else wire.frame(b"P", b""))

    def _refuse(self, client: Client, why: str) -> None:
        self._send(client, wire.texts([(b"E", f"error: {why}\n")]) + wire.frame(b"X", b"1"), last=True)

    def _send(self, client: Client, data: bytes, last: bool = False) -> None:
        """Send data as far as the client accepts it; the rest is sent when it accepts more."""
        if data:
            client.to_send.append(memoryview(data))
        client.last |= last
        self._go_on(client)

    def _go_on(self, client: Client) -> None:
        try:
            while client.to_send:
                sent = client.connection.send(client.to_send[0])
                client.to_send[0] = client.to_send[0][sent:]
                if not client.to_send[0]:
                    client.to_send.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        if not client.to_send and client.last:
            self._drop(client)
        else:
            self._listen(client, selectors.EVENT_WRITE if client.to_send else selectors.EVENT_READ)

    def _listen(self, client: Client, events: int) -> None:
        """Register the client's connection with the loop: for reading, for writing, or not at all. A client whose
        call is still to be carried out is not registered until it is answered."""
        if client in self.calls:
            events = 0
        assert self._selector is not None
        if events == client.events or (events and client.connection.fileno() not in self._clients):
            return
        act = partial(self._go_on if events == selectors.EVENT_WRITE else self._read, client)
        if not client.events:
            self._selector.register(client.connection, events, act)
        elif events:
            self._selector.modify(client.connection, events, act)
        else:
            self._selector.unregister(client.connection)
        client.events = events


class CommandFileCalls:
    """Handles calls that come as command files from other nodes. A call that takes long is kept under a name, and
    its client asks again under that name. If a client has not asked for SILENCE seconds, its job ends, as it does on
    this node when the client was killed."""

    def __init__(self, live: LiveRun, handler: LiveRequestHandler) -> None:
        self.live = live
        self.handler = handler
        self.done: set[str] = set()  # calls that earlier managers have carried out
        # by name, with the time of the client's last request
        self._waiting: dict[str, tuple[DeferredAnswer, float]] = {}

    def carry_out_command(self, command: Command, name: str) -> Command | Question:
        """Carry out a command file with this name. The caller handles any exception
        (`vrm.live.manager.input_faults`)."""
        if name in self.done and name not in self.handler.known:
            return {"ok": True, "text": "accepted before the manager was restarted", "code": 0}
        answer = partial(self.answer, command, name, self.live.clock())
        if self.is_long_query(command):
            return answer
        first = self.live.state.next_id
        try:
            return answer()
        finally:
            if self.live.state.next_id > first:  # a client waiting for these jobs may ask again under the same name
                self.handler.known[name] = list(range(first, self.live.state.next_id))

    def answer(self, command: Mapping[str, Any], name: str, now: float) -> dict[str, object]:
        """Return the answer to a command file with this name."""
        if "of" in command:
            return self._go_on(command["of"], [wire.signal_of(b"%d" % number) for number in command["signals"]], now)
        call = replace(call_from_json(command["call"]), token=name)
        reply = reply_to(call, self.handler, self.live)
        if isinstance(reply, FileNeeded):
            return {"ok": True, "text": "", "needs": reply.path}
        if isinstance(reply, JoinStep):
            return {"ok": True, "text": "", "joins": dict(reply.variables)}
        if isinstance(reply, AnswerInParts):
            reply = reply.finish()  # a client on another node asks too rarely for an answer in parts
        if isinstance(reply, DeferredAnswer):
            self.wait(name, reply, now)
            return {"ok": True, "text": "", "waits": name}
        if not isinstance(reply, Answer):
            reply = Answer(err=f"{call.name}: error: this works only on the node where vrm runs\n", code=1)
        return {"ok": not reply.code, "text": reply.err, "out": reply.out, "err": reply.err, "code": reply.code}

    def wait(self, name: str, reply: DeferredAnswer, now: float) -> None:
        """Keep an unfinished answer under this name until its client has got it."""
        self._waiting[name] = reply, now

    def is_long_query(self, command: Mapping[str, Any]) -> bool:
        """Return whether the answer to a command may take long."""
        return "of" not in command and is_long_query(call_from_json(command["call"]), self.live)

    def _go_on(self, name: str, signals: list[int], now: float) -> dict[str, object]:
        if name not in self._waiting:
            return {"ok": False, "lost": True, "text": "error: the manager of vrm was started again, or has heard "
                    f"nothing for {SILENCE:g} s"}
        waiting = self._waiting[name][0]
        self.wait(name, waiting, now)
        for number in signals:
            waiting.signalled(number)
        done, *said = poll_answer(waiting, self.live)
        out, err = map(os.fsdecode, said)
        if done is None:
            return {"ok": True, "text": "", "out": out, "err": err, "waits": name}
        del self._waiting[name]
        if isinstance(done, JoinStep):
            return {"ok": True, "text": "", "out": out, "err": err, "joins": dict(done.variables)}
        return {"ok": not done.code, "text": "", "out": out + done.out, "err": err + done.err, "code": done.code}

    def busy(self, now: float) -> bool:
        """Return whether a client will ask again soon."""
        return any(now - heard < AGAIN for _, heard in self._waiting.values())

    def sweep(self, now: float) -> None:
        """Drop the calls whose clients are gone."""
        for name in [name for name, (_, heard) in self._waiting.items() if now - heard > SILENCE]:
            self._waiting.pop(name)[0].gone()


def is_long_query(call: Call, live: LiveRun) -> bool:
    """Return whether the call changes nothing and its answer may take long; then a copy of the manager makes the
    answer."""
    return (len(live.state.book.entries) > copies.FEW and call.name in names.dialect(call.name).about_jobs
            and names.reads(call))


def framed(answer: Answer) -> bytes:
    """Return the frames of an answer."""
    return wire.texts([(b"O", answer.out), (b"E", answer.err)]) + wire.frame(b"X", b"%d" % answer.code)


def reply_to(call: Call, handler: RequestHandler, live: LiveRun) -> Reply:
    """Return the reply to a call, or why it is not carried out."""
    try:
        with reading(live.journal):
            try:
                return names.reply_to(call, handler)
            except CallRefused as refused:
                text = str(refused)
                return Answer(err=text + "\n" * (not text.endswith("\n")), code=refused.code)
    except (InputFault, OSError) as error:
        live.tell("warning", f"a call of {show(call.name, 50)} is not carried out; an error in vrm: "
                             f"{show(str(error), 300)}")
        return Answer(err=f"{call.name}: error in vrm: {error}\n", code=1)


def poll_answer(waiting: DeferredAnswer, live: LiveRun) -> tuple[Answer | None, bytes, bytes]:
    """Return the answer of a waiting call (None: not finished) and the output to print now, for standard output and
    standard error."""
    try:
        with reading(live.journal):
            done = waiting.poll()
            return (done, *waiting.take())
    except (InputFault, OSError) as error:
        return Answer(err=f"error in vrm: {error}\n", code=1), b"", b""
