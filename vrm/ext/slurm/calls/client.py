"""The client in Python: for what the C program cannot do, and where there is no compiler.

It finds the run by the variable VRM_DIRECTORY, and without it by the configuration, as vrm does. It
talks to the manager through its socket, and from another node than the manager's by command files.
A call whose manager is lost, before it has said what became of it, is repeated under its name by a
command file: the next manager, or the journal, knows what was done of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from collections.abc import Callable, Iterator, Mapping

from vrm.ext.slurm.calls import names, wire
from vrm.ext.slurm.calls.answers import Answer, Refused, HelpAnswer
from vrm.ext.slurm.calls.shell import ENTERED, run
from vrm.ext.slurm.calls.wire import STDIN, Call
from vrm.run import control
from vrm.run.rundir import RunDirectory
from vrm.system.errors import RunError

ASK_EVERY = 0.5
"""Seconds between two questions of a client on another node whose job runs."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Lost(Exception):
    """The manager has ended, or has closed the connection, before it has said what became of a call. The
    `call` has what was sent to it; `given` is what it has printed: bytes of standard output, of standard error."""

    def __init__(self, call: Call, given: tuple[int, int]) -> None:
        super().__init__()
        self.call, self.given = call, given


class Printer:
    """Prints, but not again what was printed before a manager was lost."""

    def __init__(self, given: tuple[int, int] = (0, 0)) -> None:
        self._given, self._seen = list(given), [0, 0]

    @property
    def given(self) -> tuple[int, int]:
        """How much was printed on standard output and error, in bytes."""
        return self._given[0], self._given[1]

    def again(self) -> None:
        """All comes again, from its beginning."""
        self._seen = [0, 0]

    def print(self, number: int, data: bytes) -> None:
        """Print on standard output (0) or error (1)."""
        new = data[max(0, self._given[number] - self._seen[number]):]
        self._seen[number] += len(data)
        self._given[number] = max(self._given[number], self._seen[number])
        stream = (sys.stdout, sys.stderr)[number]
        stream.flush()
        stream.buffer.write(new)
        stream.flush()


def main(argv: list[str]) -> int:
    """The command `argv[0]` with these arguments; its exit status."""
    return _carried_out(argv, control.new_name(), ask)


def again(argv: list[str]) -> int:
    """Go on for the C program, whose manager was lost. Before the command there are the name of its call, how
    much has been printed of standard output and error, the number of an open file, and the path of
    which that has what was sent to the manager (-1: none was)."""
    token, out, err, file, path, *command = argv
    sent = {}
    if int(file) >= 0:
        with open(int(file), "rb") as kept:
            sent[path] = kept.read()

    def act(call: Call, run: Path) -> int:
        return by_files(replace(call, sent=sent), run, (int(out), int(err)))
    return _carried_out(command, token, act)


def _carried_out(argv: list[str], token: str, ask_for: Callable[[Call, Path], int]) -> int:
    name, arguments = os.path.basename(argv[0]), argv[1:]
    call = Call(name, arguments, _here(), {**os.environ, STDIN: f"{os.getpid()}@{os.uname().nodename}"}, token=token)
    try:
        act = names.local(name)
        code = act(call) if act is not None else None
        return ask_for(call, directory()) if code is None else code
    except HelpAnswer as told:
        print(told.answer.out, end="")
        return told.answer.code
    except Refused as refused:
        print(refused, file=sys.stderr)
        return refused.code
    except (RunError, OSError, wire.WireError) as error:
        found = names.unasked(call)
        if found is None:
            return failed(name, str(error))
        return _printed({"out": found.out, "err": found.err, "code": found.code}, Printer())
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


def directory(env: Mapping[str, str] | None = None) -> Path:
    """The directory of the run; RunError where nothing says which."""
    found = (os.environ if env is None else env).get(wire.DIRECTORY)
    if not found:
        raise RunError("which run of vrm is meant? VRM_DIRECTORY names its directory; `vrm run -- COMMAND` "
                       "and `vrm slurm` set it")
    return Path(found)


def ask(call: Call, run: Path) -> int:
    """Ask the manager of this run; the exit status."""
    manager = connected(run)
    if manager is None:
        return by_files(call, run)
    try:
        with manager:
            return talk(call, manager)
    except Lost as lost:
        return by_files(lost.call, run, lost.given)


def connected(run: Path) -> socket.socket | None:
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
    """Send the call and print what comes back; the exit status. Lost when it stops coming."""
    screen = Printer()
    try:
        for kind, data in _frames(call, manager):
            if kind in b"OE":
                screen.print(int(kind == b"E"), data)
            elif kind == b"X":
                return int(data)
            elif kind == b"S":
                step(call, dict(os.fsdecode(text).partition("=")[::2] for text in data.split(b"\0") if text))
            elif kind == b"I":
                call, why = with_file(call, os.fsdecode(data))
                manager.sendall(wire.frame(b"F", why.encode()) if why else
                                wire.frame(b"D", call.sent[os.fsdecode(data)]))
    except TimeoutError as error:
        raise RunError(wire.gives_up()) from error
    except ConnectionError as error:
        raise Lost(call, screen.given) from error
    raise Lost(call, screen.given)


def _frames(call: Call, manager: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """Send the call; the frames that come back, until the manager has gone. TimeoutError where a command that only
    reads has no answer in time; the others say once that they wait."""
    reads, rest = names.reads(call), b""
    manager.settimeout(wire.PATIENCE if reads else None)
    manager.sendall(call.packed())
    manager.settimeout(wire.PATIENCE if reads else wire.SAYS_AFTER)
    while True:
        try:
            part = manager.recv(1 << 16)
        except TimeoutError:
            if reads:
                raise
            print(f"{call.name}: {wire.waits()}", file=sys.stderr)
            part = None
        if not reads:
            manager.settimeout(None)
        if part is not None:
            if not part:
                return
            found, rest = wire.frames(rest + part)
            yield from found


def step(call: Call, variables: Mapping[str, str]) -> NoReturn:
    """Go on as a step of the job that these variables name, or as salloc with a shell there."""
    os.environ.update(variables)
    if ENTERED in variables:
        sys.exit(shell([call.name, *call.arguments]))
    from vrm.ext.steps import main as steps
    sys.argv = [call.name, *call.arguments]
    steps.run()


def shell(argv: list[str]) -> int:
    """Be salloc or srun with a job of its own, which the variables name; its exit status."""
    return run(argv)


def with_file(call: Call, path: str) -> tuple[Call, str]:
    """The call with this file, or with the reason why it cannot be read; and the reason."""
    text, why = read(path)
    return (replace(call, missing={**call.missing, path: why}) if why else
            replace(call, sent={**call.sent, path: text})), why


def read(path: str) -> tuple[bytes, str]:
    """A file, or for "" standard input; and why it cannot be read."""
    try:
        with (open(path, "rb") if path else contextlib.nullcontext(sys.stdin.buffer)) as file:
            text = file.read(wire.LARGEST + 1)
    except OSError as error:
        return b"", error.strerror or str(error)
    return (text, "") if len(text) <= wire.LARGEST else (b"", "File too large")


def by_files(call: Call, place: Path, given: tuple[int, int] | None = None) -> int:
    """Ask by a command file, of the call's name; the exit status. `given`: a manager was asked before, has
    printed so much, and was lost. RunError where no manager runs, or none answers."""
    run = RunDirectory(place, place, place / "state")
    if given is None and not run.manager_runs():
        return _nobody(call, run)
    screen = Printer(given or (0, 0))
    while True:
        if any(screen.given) and call.name in names.dialect(call.name).blocking:
            raise RunError("the manager of vrm has ended; its job continues with the next manager")
        screen.again()
        reply = _reply(call, run)
        if reply is not None and "needs" in reply:
            call, _ = with_file(call, reply["needs"])
            continue
        if reply is not None and "joins" in reply:
            step(call, reply["joins"])
        if reply is None:
            found = _unanswered(call, run)
            if found is None:
                return _nobody(call, run)
            return _printed({"out": found.out, "err": found.err, "code": found.code}, screen)
        code = _wait_by_files(call, run, reply, screen)
        if code is not None:
            return code
        given = screen.given


def _reply(call: Call, run: RunDirectory) -> control.Command | None:
    control.send(run, {"do": "front", "call": call_record(call)}, call.token)
    return control.answered(run, call.token, wire.PATIENCE)


def _wait_by_files(call: Call, run: RunDirectory, reply: control.Command, screen: Printer) -> int | None:
    """Print the reply. As long as it says that what was called has not ended, ask again, and pass signals on. The
    exit status; None where the manager has been lost that knew of it."""
    signals: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    ignored = {number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN}
    try:
        while "waits" in reply:
            _printed(reply, screen)
            got = signal.sigtimedwait(PASSED_ON, 0 if reply.get("out", "?") or reply["err"] else ASK_EVERY)
            signals = [got.si_signo] if got is not None and got.si_signo not in ignored else []
            name = control.send(run, {"do": "front", "of": reply["waits"], "signals": signals})
            asked = control.answered(run, name, wire.PATIENCE)
            if asked is None and run.manager_runs():
                raise RunError(f"the manager of vrm has not answered within {wire.PATIENCE:g} s; its job continues")
            if asked is None or asked.get("lost"):
                return None
            reply = asked
        if "joins" not in reply:
            return _printed(reply, screen)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    screen.print(1, os.fsencode(reply["err"]))
    step(call, reply["joins"])


def _printed(reply: Mapping[str, Any], screen: Printer) -> int:
    """Print what an answer says; its exit status. One without any is of a manager that did not understand the call."""
    done = "code" in reply or "waits" in reply
    screen.print(0, os.fsencode(reply.get("out", "")))
    screen.print(1, os.fsencode(reply.get("err", "") if done else f"{reply['text']}; `vrm queue` shows the jobs\n"))
    return int(reply.get("code", 1))


def _nobody(call: Call, run: RunDirectory) -> int:
    """Do what can be done without a manager; the exit status. RunError where that is nothing."""
    act = names.alone(call.name)
    code = act(call) if act is not None else None
    if code is None:
        raise RunError("Unable to contact slurm controller (connect failure): no manager of vrm runs on "
                       f"{run.directory}")
    return code


def _unanswered(call: Call, run: RunDirectory) -> Answer | None:
    """Nobody has answered a call, which was taken back. The jobs that it has brought by then are the answer, so
    that nobody submits them again. None: no manager runs and nothing was done; RunError, which
    says what is known, for the rest."""
    from vrm.ext.slurm.calls.past import unanswered

    found = unanswered(call, run)
    if found is not None:
        return found
    if run.manager_runs():
        raise RunError(f"the manager of vrm has not answered within {wire.PATIENCE:g} s; the command was withdrawn")
    if names.submits(call.name):
        raise RunError("the manager of vrm has ended before it took this; nothing was submitted")
    return None


def call_record(call: Call) -> dict[str, Any]:
    """A call as a value of JSON."""
    return {"name": call.name, "arguments": call.arguments, "cwd": call.cwd, "env": dict(call.env),
            "sent": {path: b64encode(text).decode() for path, text in call.sent.items()},
            "missing": dict(call.missing)}


def call_of_record(record: Any) -> Call:
    """The call; ValueError, TypeError or KeyError for what is none."""
    def text(value: Any) -> str:
        if type(value) is not str or "\0" in value:
            raise TypeError("a word of the call is not text")
        return value
    return Call(text(record["name"]), [text(word) for word in list(record["arguments"])], text(record["cwd"]),
                {text(name): text(value) for name, value in dict(record["env"]).items()},
                {text(path): b64decode(data) for path, data in dict(record["sent"]).items()},
                {text(path): text(why) for path, why in dict(record["missing"]).items()})
