"""The socket in the directory of a run, through which commands of other batch systems are answered.

Only this user can connect: others have no right to the socket, and the kernel says who connects.
All calls of one turn of the loop share one sync of the journal; nobody is answered before it.
"""

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
from vrm.ext.slurm.calls.answers import Answer, InParts, Joins, Locally, Needs, Refused, Reply, LaterAnswer
from vrm.ext.slurm.calls.client import call_of_record, peer
from vrm.ext.slurm.calls.counter import Counter
from vrm.ext.slurm.calls.wire import Call
from vrm.live.manager import copies
from vrm.live.manager.boundary import NotUnderstood, reading
from vrm.ext.slurm.calls.live_counter import LiveCounter
from vrm.ext.slurm.calls.sampling import JobUsage
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Obey, Part, Question
from vrm.run.journal.past import Past
from vrm.run.control import Command
from vrm.workload.grammar import show

SOON = 0.02
"""Seconds after a call in which another is likely to come. What can wait waits for that one's sync."""

BACKLOG = 4096
"""Clients that may wait until they are taken."""

MOST = 2000
"""Clients at a time. When one more comes, the first goes whose call has not come: it, or that one. It calls again,
by a command file."""


@dataclass(eq=False)
class Client:
    """A client: what it has said, and what is to be sent to it."""

    connection: socket.socket
    got: bytes = b""
    size: int | None = None
    call: Call | None = None
    needs: str | None = None         # the file that it is to send
    waiting: LaterAnswer | None = None
    to_send: deque[memoryview] = field(default_factory=deque)
    events: int = 0                     # what the loop waits for
    last: bool = False                  # nothing follows what is to be sent
    parts: list[bytes] = field(default_factory=list)


SILENCE = 60.0
"""Seconds after which a client on another node that has not asked again is taken to be gone."""

AGAIN = 5.0
"""Seconds in which one that is there asks again."""


LATER = Answer()
"""Stands for an answer that is still to be made."""


class Door(Part):
    """Takes calls and answers them. Without a socket (a file system that has none) only command files
    are obeyed (`afar`), and `trouble` says why."""

    observes = (JobUsage,)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.counter = LiveCounter(live)
        self.afar = Afar(live, self.counter)
        self.trouble = ""
        self._path = live.run_directory.directory / wire.SOCKET
        self._listening: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._clients: dict[int, Client] = {}
        self.next_call = -math.inf          # by when another one is likely to come
        self.calls: list[Client] = []       # whose call is complete
        self.replies: dict[Client, Reply] = {}

    def recall(self, past: Past) -> None:
        """Learn what calls earlier managers have carried out, and their jobs."""
        self.counter.known = past.by_command
        self.afar.done = set(past.commands)

    def observe(self, event: object) -> None:
        """Take notice of what jobs use."""
        if isinstance(event, JobUsage):
            self.counter.sampling.answered(event)

    def commands(self) -> Mapping[str, Obey]:
        """What comes from other nodes."""
        return {"front": self.afar.obey}

    def repeats(self) -> Collection[str]:
        """A call: the jobs that it has brought are known."""
        return self.commands()

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Make the socket; the loop's selector calls what reads it."""
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
        """Answer nobody any more."""
        for client in list(self._clients.values()):
            self._drop(client)
        if self._listening is not None and self._selector is not None:
            self._selector.unregister(self._listening)
            self._listening.close()
            self._listening = None
            self._path.unlink(missing_ok=True)

    @property
    def has_work(self) -> bool:
        """Whether the next turn has something to do for somebody who waits."""
        return any(client.waiting is not None and client.waiting.has_work for client in self._clients.values())

    def deadline(self, now: float) -> float:
        """When there is something to do for somebody who waits."""
        return now if self.has_work else math.inf

    def expects(self, now: float) -> bool:
        """Whether an answer is not done yet, or a client on another node is about to ask again."""
        return self.has_work or self.afar.busy(self.live.clock())

    def likely(self) -> float:
        """Calls come one after the other."""
        return math.inf if self.has_work else self.next_call

    # Who comes, and what it says.

    def _accept(self) -> None:
        assert self._listening is not None and self._selector is not None
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # nobody else, or no more files: they wait
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
            self._read(client)  # it has said all by now, as a rule
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
        except (NotUnderstood, OSError) as error:
            self._refuse(client, str(error))

    def _understand(self, client: Client) -> None:
        """Take a whole call, or what follows it."""
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
        """Carry out what was asked; it is answered later, by `act`."""
        if files:
            self.afar.sweep(self.live.clock())
        calls, self.calls = self.calls, []
        if calls:
            self.next_call = self.live.clock() + SOON
        for client in calls:
            assert client.call is not None
            self.replies[client] = (LATER if takes_long(client.call, self.live) else
                                    reply_to(client.call, self.counter, self.live))
        for client in list(self._clients.values()):
            if client.waiting is not None:
                done, out, err = polled(client.waiting, self.live)
                if out or err:
                    self._send(client, wire.frame(b"O", out) * bool(out) + wire.frame(b"E", err) * bool(err))
                if done is not None:
                    client.waiting = None
                    self.replies[client] = done

    def act(self, now: float) -> None:
        """Answer what was carried out, once it is on disk."""
        if not self.replies:
            return
        if not self.live.synced():
            return  # they wait until the disk takes it
        replies, self.replies = self.replies, {}
        for client, reply in replies.items():
            if reply is LATER:
                assert client.call is not None
                if self.live.copies.begin(partial(self._answer_all, client), client.connection.fileno()):
                    self._drop(client)
                else:
                    self.replies[client] = LATER
            elif isinstance(reply, Needs):
                client.needs = reply.path
                self._send(client, wire.frame(b"I", os.fsencode(reply.path)))
            elif isinstance(reply, Locally):
                self._send(client, wire.frame(b"P", b""), last=True)
            elif isinstance(reply, Joins):
                self._send(client, wire.frame(b"S", reply.packed()), last=True)
            elif isinstance(reply, LaterAnswer):
                client.waiting = reply
                self._send(client, wire.frame(b"O", b""))
            else:
                self._send(client, framed(reply), last=True)

    def _answer_all(self, client: Client) -> None:
        """In a copy: make the whole answer to a call that only reads, and send it."""
        assert client.call is not None
        reply = reply_to(client.call, self.counter, self.live)
        client.connection.setblocking(True)
        client.connection.sendall(framed(reply) if isinstance(reply, Answer) else wire.frame(b"P", b""))

    def _refuse(self, client: Client, why: str) -> None:
        self._send(client, wire.texts([(b"E", f"error: {why}\n")]) + wire.frame(b"X", b"1"), last=True)

    def _send(self, client: Client, data: bytes, last: bool = False) -> None:
        """Send, as far as the client takes it; the rest when it takes more."""
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
        """Let the loop wait for this of a client: that it says something, or takes something; or nothing. Of one
        whose call is to be carried out nothing is awaited until it is answered."""
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


class Afar:
    """Calls that come as command files, from other nodes. One that takes long is given a name, under which its
    client asks again and again; the job of a client that has not asked for SILENCE seconds ends, as that of
    one that was killed does on this node."""

    def __init__(self, live: LiveRun, counter: LiveCounter) -> None:
        self.live = live
        self.counter = counter
        self.done: set[str] = set()  # calls that earlier managers have carried out
        self._waiting: dict[str, tuple[LaterAnswer, float]] = {}  # with the time at which each client has asked last

    def obey(self, command: Command, name: str) -> Command | Question:
        """Carry out a command of this name. It is called where anything may be raised (`vrm.live.manager.boundary`)."""
        if name in self.done and name not in self.counter.known:
            return {"ok": True, "text": "accepted before the manager was restarted", "code": 0}
        answer = partial(self.answer, command, name, self.live.clock())
        if self.takes_long(command):
            return answer
        first = self.live.state.next_id
        try:
            return answer()
        finally:
            if self.live.state.next_id > first:  # one that waits for them may ask again, under the same name
                self.counter.known[name] = list(range(first, self.live.state.next_id))

    def answer(self, command: Mapping[str, Any], name: str, now: float) -> dict[str, object]:
        """The answer to a command of this name."""
        if "of" in command:
            return self._go_on(command["of"], [wire.signal_of(b"%d" % number) for number in command["signals"]], now)
        call = replace(call_of_record(command["call"]), token=name)
        reply = reply_to(call, self.counter, self.live)
        if isinstance(reply, Needs):
            return {"ok": True, "text": "", "needs": reply.path}
        if isinstance(reply, Joins):
            return {"ok": True, "text": "", "joins": dict(reply.variables)}
        if isinstance(reply, InParts):
            reply = reply.finish()  # whoever asks from another node asks too rarely
        if isinstance(reply, LaterAnswer):
            self.wait(name, reply, now)
            return {"ok": True, "text": "", "waits": name}
        if not isinstance(reply, Answer):
            reply = Answer(err=f"{call.name}: error: this works only on the node where vrm runs\n", code=1)
        return {"ok": not reply.code, "text": reply.err, "out": reply.out, "err": reply.err, "code": reply.code}

    def wait(self, name: str, reply: LaterAnswer, now: float) -> None:
        """The client of a command of this name asks for the answer until there is one."""
        self._waiting[name] = reply, now

    def takes_long(self, command: Mapping[str, Any]) -> bool:
        """Whether the answer to a command may take long."""
        return "of" not in command and takes_long(call_of_record(command["call"]), self.live)

    def _go_on(self, name: str, signals: list[int], now: float) -> dict[str, object]:
        if name not in self._waiting:
            return {"ok": False, "lost": True, "text": "error: the manager of vrm was started again, or has heard "
                    f"nothing for {SILENCE:g} s"}
        waiting = self._waiting[name][0]
        self.wait(name, waiting, now)
        for number in signals:
            waiting.signalled(number)
        done, *said = polled(waiting, self.live)
        out, err = map(os.fsdecode, said)
        if done is None:
            return {"ok": True, "text": "", "out": out, "err": err, "waits": name}
        del self._waiting[name]
        if isinstance(done, Joins):
            return {"ok": True, "text": "", "out": out, "err": err, "joins": dict(done.variables)}
        return {"ok": not done.code, "text": "", "out": out + done.out, "err": err + done.err, "code": done.code}

    def busy(self, now: float) -> bool:
        """Whether somebody is about to ask again."""
        return any(now - heard < AGAIN for _, heard in self._waiting.values())

    def sweep(self, now: float) -> None:
        """Give up those whose clients are gone."""
        for name in [name for name, (_, heard) in self._waiting.items() if now - heard > SILENCE]:
            self._waiting.pop(name)[0].gone()


def takes_long(call: Call, live: LiveRun) -> bool:
    """Whether the answer may take long, and changes nothing: then a copy of the manager makes it."""
    return (len(live.state.book.entries) > copies.FEW and call.name in names.dialect(call.name).about_jobs
            and names.reads(call))


def framed(answer: Answer) -> bytes:
    """An answer as its frames."""
    return wire.texts([(b"O", answer.out), (b"E", answer.err)]) + wire.frame(b"X", b"%d" % answer.code)


def reply_to(call: Call, counter: Counter, live: LiveRun) -> Reply:
    """What the command answers, or why it is not carried out."""
    try:
        with reading(live.journal):
            try:
                return names.reply_to(call, counter)
            except Refused as refused:
                text = str(refused)
                return Answer(err=text + "\n" * (not text.endswith("\n")), code=refused.code)
    except (NotUnderstood, OSError) as error:
        live.tell("warning", f"a call of {show(call.name, 50)} is not carried out; an error in vrm: "
                             f"{show(str(error), 300)}")
        return Answer(err=f"{call.name}: error in vrm: {error}\n", code=1)


def polled(waiting: LaterAnswer, live: LiveRun) -> tuple[Answer | None, bytes, bytes]:
    """What one that waits has: its answer, once there is one, and what is to be printed now."""
    try:
        with reading(live.journal):
            done = waiting.poll()
            return (done, *waiting.take())
    except (NotUnderstood, OSError) as error:
        return Answer(err=f"error in vrm: {error}\n", code=1), b"", b""
