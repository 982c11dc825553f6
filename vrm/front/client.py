"""The client in Python: for what the C program cannot do, and where there is no compiler.

It finds the run by the variable VRM_DIRECTORY, and without it by the configuration, as vrm does. It
talks to the manager through its socket, and from another node than the manager's by command files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from vrm.front import names, wire
from vrm.front.answers import Refused
from vrm.front.wire import STDIN, Call
from vrm.run import control
from vrm.run.rundir import RunDirectory
from vrm.system.errors import RunError

REPLY_SECONDS = 60.0
"""Seconds that a manager on another node has to answer."""

SETTLING = 0.5
"""Seconds after which a manager that took a command file just before it was taken back has answered."""

ASK_EVERY = 0.5
"""Seconds between two questions of a client on another node whose job runs."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(argv: List[str]) -> int:
    """The command `argv[0]` with these arguments; its exit status."""
    name, arguments = os.path.basename(argv[0]), argv[1:]
    call = Call(name, arguments, _here(), {**os.environ, STDIN: f"{os.getpid()}@{os.uname().nodename}"})
    try:
        act = names.local(name)
        code = act(call) if act is not None else None
        return ask(call, directory()) if code is None else code
    except Refused as refused:
        print(refused, file=sys.stderr)
        return refused.code
    except (RunError, OSError, wire.WireError) as error:
        return failed(name, str(error))
    except KeyboardInterrupt:
        return 130


def failed(name: str, why: str) -> int:
    """Say why a command could not be carried out; its exit status."""
    print(f"{name}: error: {why}", file=sys.stderr)
    return 1


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def directory(env: Optional[Mapping[str, str]] = None) -> Path:
    """The directory of the run; RunError where nothing says which."""
    found = (os.environ if env is None else env).get(wire.DIRECTORY)
    if not found:
        raise RunError("which run of vrm is meant? VRM_DIRECTORY names its directory; `vrm run -- COMMAND` "
                       "and `vrm slurm` set it")
    return Path(found)


def ask(call: Call, run: Path) -> int:
    """Ask the manager of this run; the exit status."""
    manager = connected(run)
    if manager is not None:
        with manager:
            return talk(call, manager)
    return by_files(call, run)


def connected(run: Path) -> Optional[socket.socket]:
    """The manager's socket; None where it is not on this machine. RunError when it is another user's."""
    try:
        folder = os.open(run, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise RunError(f"{run}: {error.strerror}") from error
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        manager.connect(f"/proc/self/fd/{folder}/{wire.SOCKET}")
    except OSError:
        manager.close()
        return None
    finally:
        os.close(folder)
    if peer(manager) != os.geteuid():
        manager.close()
        raise RunError(f"the manager in {run} is not yours")
    return manager


def peer(connection: socket.socket) -> int:
    """The user at the other end."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def talk(call: Call, manager: socket.socket) -> int:
    """Send the call and print what comes back; the exit status."""
    lost = RunError("the manager of vrm has not answered; is it still there? `vrm queue` shows")
    try:
        manager.sendall(call.packed())
        rest = b""
        while True:
            part = manager.recv(1 << 16)
            if not part:
                raise lost
            found, rest = wire.frames(rest + part)
            for kind, data in found:
                if kind in b"OE":
                    _print(kind == b"O", data)
                elif kind == b"X":
                    return int(data)
                elif kind == b"I":
                    text, why = read(os.fsdecode(data))
                    manager.sendall(wire.frame(b"F", why.encode()) if why else wire.frame(b"D", text))
    except ConnectionError as error:
        raise lost from error


def _print(out: bool, data: bytes) -> None:
    stream = sys.stdout if out else sys.stderr
    stream.flush()
    stream.buffer.write(data)
    stream.flush()


def read(path: str) -> Tuple[bytes, str]:
    """A file, or for "" standard input; and why it cannot be read."""
    try:
        with (open(path, "rb") if path else contextlib.nullcontext(sys.stdin.buffer)) as file:
            text = file.read(wire.LARGEST + 1)
    except OSError as error:
        return b"", error.strerror or str(error)
    return (text, "") if len(text) <= wire.LARGEST else (b"", "File too large")


def by_files(call: Call, place: Path) -> int:
    """Ask by a command file; the exit status. RunError where no manager runs, or none answers."""
    run = RunDirectory(place, place, place / "state")
    if not run.manager_runs():
        act = names.alone(call.name)
        code = act(call) if act is not None else None
        if code is not None:
            return code
        raise RunError(f"Unable to contact slurm controller (connect failure): no manager of vrm runs on {place}")
    sent: Dict[str, bytes] = {}
    missing: Dict[str, str] = {}
    while True:
        call = Call(call.name, call.arguments, call.cwd, call.env, sent, missing)
        name = control.send(run, {"do": "front", "call": call_record(call)})
        reply = control.wait_reply(run, name, REPLY_SECONDS)
        if reply is None:
            return _unanswered(call, run, name)
        if "needs" in reply:
            path = reply["needs"]
            text, why = read(path)
            if why:
                missing[path] = why
            else:
                sent[path] = text
            continue
        return wait_by_files(call, run, reply["waits"]) if "waits" in reply else _printed(reply)


def wait_by_files(call: Call, run: RunDirectory, of: str) -> int:
    """Ask again and again, until what was called has ended; pass signals on. The exit status."""
    signals: List[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    ignored = {number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN}
    try:
        while True:
            name = control.send(run, {"do": "front", "of": of, "signals": signals})
            reply = control.wait_reply(run, name, REPLY_SECONDS)
            if reply is None:
                control.withdraw(run, name)
                raise RunError(f"the manager of vrm has not answered within {REPLY_SECONDS:g} s; its job goes on")
            code = _printed(reply)
            if "waits" not in reply:
                return code
            got = signal.sigtimedwait(PASSED_ON, 0 if reply["out"] or reply["err"] else ASK_EVERY)
            signals = [got.si_signo] if got is not None and got.si_signo not in ignored else []
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _printed(reply: Mapping[str, Any]) -> int:
    """Print what an answer says; its exit status. One without any is of a manager that was killed before it
    could say what became of the call, or did not understand it."""
    done = "code" in reply or "waits" in reply
    _print(True, os.fsencode(reply.get("out", "")))
    _print(False, os.fsencode(reply.get("err", "") if done else f"{reply['text']}; `vrm queue` shows the jobs\n"))
    return int(reply.get("code", 1))


def _unanswered(call: Call, run: RunDirectory, name: str) -> int:
    """Nobody has answered a command file, perhaps since the manager was killed: take it back. If it has brought
    jobs by then, they are what is printed, so that nobody submits them again."""
    from vrm.front.past import unanswered

    control.withdraw(run, name)
    reply = control.wait_reply(run, name, SETTLING)
    if reply is not None and "needs" not in reply:
        return _printed(reply)
    found = unanswered(call, run, name)
    if found is None:
        raise RunError(f"the manager of vrm has not answered within {REPLY_SECONDS:g} s; nothing was done")
    return _printed({"ok": not found.code, "out": found.out, "err": found.err, "code": found.code})


def call_record(call: Call) -> Dict[str, Any]:
    """A call as a value of JSON."""
    return {"name": call.name, "arguments": call.arguments, "cwd": call.cwd, "env": dict(call.env),
            "sent": {path: b64encode(text).decode() for path, text in call.sent.items()},
            "missing": dict(call.missing)}


def call_of_record(record: Any) -> Call:
    """The call; ValueError, TypeError or KeyError for what is none."""
    def text(value: Any) -> str:
        if type(value) is not str or "\0" in value:
            raise TypeError("a word of the call is no text")
        return value
    return Call(text(record["name"]), [text(word) for word in list(record["arguments"])], text(record["cwd"]),
                {text(name): text(value) for name, value in dict(record["env"]).items()},
                {text(path): b64decode(data) for path, data in dict(record["sent"]).items()},
                {text(path): text(why) for path, why in dict(record["missing"]).items()})
