"""The socket in the directory of a run, through which commands of other batch systems are answered.

Only this user can connect: others have no right to the socket, and the kernel says who connects.
All calls of one turn of the loop share one sync of the journal; nobody is answered before it.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
from dataclasses import dataclass, field, replace
from functools import partial
from traceback import print_exc
from typing import Any, Dict, List, Mapping, Optional

from vrm.front import names, wire
from vrm.front.answers import Answer, Locally, Needs, Refused, Reply, Waiting
from vrm.front.client import call_of_record, peer
from vrm.front.counter import Counter
from vrm.front.wire import Call
from vrm.live.manager.desk import Desk

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
    size: Optional[int] = None
    call: Optional[Call] = None
    needs: Optional[str] = None         # the file that it is to send
    waiting: Optional[Waiting] = None
    to_send: bytes = b""
    events: int = 0                     # what the loop waits for
    last: bool = False                  # nothing follows what is to be sent
    parts: List[bytes] = field(default_factory=list)


SILENCE = 60.0
"""Seconds after which a client on another node that has not asked again is taken to be gone."""

AGAIN = 5.0
"""Seconds in which one that is there asks again."""


class Door:
    """Takes calls and answers them. Without a socket (a file system that has none) only command files
    are obeyed, and `trouble` says why."""

    def __init__(self, desk: Desk, counter: Counter) -> None:
        self.desk = desk
        self.counter = counter
        self.trouble = ""
        self._path = desk.run_directory.directory / wire.SOCKET
        self._listening: Optional[socket.socket] = None
        self._selector: Optional[selectors.BaseSelector] = None
        self._clients: Dict[int, Client] = {}
        self.next_call = -math.inf          # by when another one is likely to come
        self._calls: List[Client] = []      # whose call is complete
        self._replies: Dict[Client, Reply] = {}

    def open(self, selector: selectors.BaseSelector) -> None:
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

    def close(self) -> None:
        """Answer nobody any more."""
        for client in list(self._clients.values()):
            self._drop(client)
        if self._listening is not None and self._selector is not None:
            self._selector.unregister(self._listening)
            self._listening.close()
            self._listening = None
            self._path.unlink(missing_ok=True)

    def knocked(self) -> bool:
        """Whether somebody has come to a door at which people come all the time, and should not wait."""
        return (self._selector is not None and self.desk.clock() < self.next_call
                and bool(self._selector.select(0)))

    @property
    def busy(self) -> bool:
        """Whether there are calls that nobody has answered yet."""
        return bool(self._calls or self._replies)

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
            self._understand(client)
        except wire.WireError as error:
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
            self._calls.append(client)
        found, client.got = wire.frames(client.got)
        for kind, data in found:
            call, path = client.call, client.needs
            if kind in b"DF" and path is not None:
                client.needs = None
                sent = {**call.sent, path: data} if kind == b"D" else call.sent
                missing = {**call.missing, path: os.fsdecode(data)} if kind == b"F" else call.missing
                client.call = replace(call, sent=sent, missing=missing)
                self._calls.append(client)
            elif kind == b"K" and data.isdigit() and client.waiting is not None:
                client.waiting.signalled(int(data))
                self._send(client, wire.frame(b"O", b""))
            elif kind == b"K" and data.isdigit():
                self._send(client, wire.frame(b"X", b"%d" % (128 + int(data) % 128)), last=True)
            else:
                raise wire.WireError("nothing of this kind was asked for")

    def _drop(self, client: Client) -> None:
        number = client.connection.fileno()
        if self._clients.pop(number, None) is None:
            return
        self._listen(client, 0)
        client.connection.close()
        if client in self._calls:
            self._calls.remove(client)
        self._replies.pop(client, None)
        if client.waiting is not None:
            client.waiting.gone()
            client.waiting = None

    # Answers.

    def serve(self) -> None:
        """Carry out what was asked; it is answered later, by `answer`."""
        calls, self._calls = self._calls, []
        if calls:
            self.next_call = self.desk.clock() + SOON
        for client in calls:
            assert client.call is not None
            self._replies[client] = reply_to(client.call, self.counter)
        for client in list(self._clients.values()):
            if client.waiting is not None:
                done = client.waiting.poll()
                out, err = client.waiting.take()
                if out or err:
                    self._send(client, wire.frame(b"O", out) * bool(out) + wire.frame(b"E", err) * bool(err))
                if done is not None:
                    client.waiting = None
                    self._replies[client] = done

    def answer(self) -> None:
        """Answer what was carried out, once it is on disk."""
        if not self._replies:
            return
        if not self.desk.synced():
            return  # they wait until the disk takes it
        replies, self._replies = self._replies, {}
        for client, reply in replies.items():
            if isinstance(reply, Needs):
                client.needs = reply.path
                self._send(client, wire.frame(b"I", os.fsencode(reply.path)))
            elif isinstance(reply, Locally):
                self._send(client, wire.frame(b"P", b""), last=True)
            elif isinstance(reply, Waiting):
                client.waiting = reply
                self._send(client, wire.frame(b"O", b""))
            else:
                self._send(client, wire.texts([(b"O", reply.out), (b"E", reply.err)])
                           + wire.frame(b"X", b"%d" % reply.code), last=True)

    def _refuse(self, client: Client, why: str) -> None:
        self._send(client, wire.texts([(b"E", f"error: {why}\n")]) + wire.frame(b"X", b"1"), last=True)

    def _send(self, client: Client, data: bytes, last: bool = False) -> None:
        """Send, as far as the client takes it; the rest when it takes more."""
        client.to_send += data
        client.last |= last
        self._go_on(client)

    def _go_on(self, client: Client) -> None:
        try:
            sent = client.connection.send(client.to_send) if client.to_send else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(client)
            return
        client.to_send = client.to_send[sent:]
        if not client.to_send and client.last:
            self._drop(client)
        else:
            self._listen(client, selectors.EVENT_WRITE if client.to_send else selectors.EVENT_READ)

    def _listen(self, client: Client, events: int) -> None:
        """Let the loop wait for this of a client: that it says something, or takes something; or nothing. Of one
        whose call is to be carried out nothing is awaited until it is answered."""
        if client in self._calls:
            events = 0
        assert self._selector is not None
        if events == client.events or events and client.connection.fileno() not in self._clients:
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

    def __init__(self) -> None:
        self._waiting: Dict[str, Waiting] = {}
        self._heard: Dict[str, float] = {}

    def answer(self, command: Mapping[str, Any], name: str, counter: Counter, now: float) -> Dict[str, object]:
        """The answer to a command of this name. ValueError, TypeError or KeyError for what is none."""
        if "of" in command:
            return self._go_on(command["of"], [int(number) for number in command["signals"]], now)
        call = replace(call_of_record(command["call"]), token=name)
        reply = reply_to(call, counter)
        if isinstance(reply, Needs):
            return {"ok": True, "text": "", "needs": reply.path}
        if isinstance(reply, Waiting):
            self._waiting[name], self._heard[name] = reply, now
            return {"ok": True, "text": "", "waits": name}
        if not isinstance(reply, Answer):
            reply = Answer(err=f"{call.name}: error: this can be done on the node alone where vrm runs\n", code=1)
        return {"ok": not reply.code, "text": reply.err, "out": reply.out, "err": reply.err, "code": reply.code}

    def _go_on(self, name: str, signals: List[int], now: float) -> Dict[str, object]:
        waiting = self._waiting.get(name)
        if waiting is None:
            return {"ok": False, "lost": True, "text": "error: the manager of vrm was started again, or has heard "
                    f"nothing for {SILENCE:g} s"}
        self._heard[name] = now
        for number in signals:
            waiting.signalled(number)
        done = waiting.poll()
        out, err = map(os.fsdecode, waiting.take())
        if done is None:
            return {"ok": True, "text": "", "out": out, "err": err, "waits": name}
        del self._waiting[name], self._heard[name]
        return {"ok": not done.code, "text": "", "out": out + done.out, "err": err + done.err, "code": done.code}

    def busy(self, now: float) -> bool:
        """Whether somebody is about to ask again."""
        return any(now - heard < AGAIN for heard in self._heard.values())

    def sweep(self, now: float) -> None:
        """Give up those whose clients are gone."""
        for name in [name for name, heard in self._heard.items() if now - heard > SILENCE]:
            del self._heard[name]
            self._waiting.pop(name).gone()


def reply_to(call: Call, counter: Counter) -> Reply:
    """What the command answers, or why it is not carried out."""
    try:
        return names.reply_to(call, counter)
    except Refused as refused:
        text = str(refused)
        return Answer(err=text + "\n" * (not text.endswith("\n")), code=refused.code)
    except Exception as error:  # whatever a command does wrong must not end the run
        print_exc()
        return Answer(err=f"{call.name}: error: vrm failed at it: {error!r}\n", code=1)
