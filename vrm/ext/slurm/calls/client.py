"""The client in Python, for the tasks that the C program cannot do, and for machines without a C compiler.

It finds the run by the variable VRM_DIRECTORY; without it by the configuration, as vrm does. On the manager's node
it uses the manager's socket, on other nodes command files. If the manager is lost before it has reported the result
of a call, the client repeats the call under the same name by a command file: the next manager, or the journal, knows
what was done for that name."""

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
from vrm.ext.slurm.calls.answers import Answer, CallRefused, HelpAnswer
from vrm.ext.slurm.calls.shell import ENTERED_VARIABLE, run
from vrm.ext.slurm.calls.wire import STDIN, Call
from vrm.run import command_files
from vrm.run.rundir import RunDirectory
from vrm.system.errors import RunError

ASK_EVERY = 0.5
"""Seconds between two requests for output of a client on another node while its job runs."""

FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class ManagerLost(Exception):
    """The manager has ended or closed the connection before it has reported the result of a call. `call` includes
    the files that were already sent; `given` is how many bytes were already printed on standard output and standard
    error."""

    def __init__(self, call: Call, given: tuple[int, int]) -> None:
        super().__init__()
        self.call, self.given = call, given


class Printer:
    """Prints output, but skips the part that was already printed before a manager was lost."""

    def __init__(self, given: tuple[int, int] = (0, 0)) -> None:
        self._given, self._seen = list(given), [0, 0]

    @property
    def given(self) -> tuple[int, int]:
        """Number of bytes printed on standard output and standard error."""
        return self._given[0], self._given[1]

    def again(self) -> None:
        """Prepare for the whole output to arrive again from its beginning."""
        self._seen = [0, 0]

    def print(self, number: int, data: bytes) -> None:
        """Print on standard output (`number` 0) or standard error (1)."""
        new = data[max(0, self._given[number] - self._seen[number]):]
        self._seen[number] += len(data)
        self._given[number] = max(self._given[number], self._seen[number])
        stream = (sys.stdout, sys.stderr)[number]
        stream.flush()
        stream.buffer.write(new)
        stream.flush()


def main(argv: list[str]) -> int:
    """Run the command `argv[0]` with the arguments that follow it; return its exit status."""
    return _run_command(argv, command_files.new_name(), ask)


def again(argv: list[str]) -> int:
    """Continue for the C program whose manager was lost; return the exit status. `argv` has the call's name, the
    bytes printed on standard output and on standard error, an open file (-1: none) with content that was sent to the
    manager, the path of that content, and the command."""
    token, out, err, file, path, *command = argv
    sent = {}
    if int(file) >= 0:
        with open(int(file), "rb") as kept:
            sent[path] = kept.read()

    def act(call: Call, run: Path) -> int:
        return by_files(replace(call, sent=sent), run, (int(out), int(err)))
    return _run_command(command, token, act)


def _run_command(argv: list[str], token: str, ask_for: Callable[[Call, Path], int]) -> int:
    name, arguments = os.path.basename(argv[0]), argv[1:]
    call = Call(name, arguments, _here(), {**os.environ, STDIN: f"{os.getpid()}@{os.uname().nodename}"}, token=token)
    try:
        act = names.local(name)
        code = act(call) if act is not None else None
        return ask_for(call, directory()) if code is None else code
    except HelpAnswer as told:
        print(told.answer.out, end="")
        return told.answer.code
    except CallRefused as refused:
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
    """Print why a command could not be carried out; return its exit status."""
    print(f"{name}: error: {why}", file=sys.stderr)
    return 1


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def directory(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory of the run. Raises RunError if VRM_DIRECTORY is not set."""
    found = (os.environ if env is None else env).get(wire.DIRECTORY)
    if not found:
        raise RunError("which run of vrm is meant? VRM_DIRECTORY names its directory; `vrm run -- COMMAND` "
                       "and `vrm slurm` set it")
    return Path(found)


def ask(call: Call, run: Path) -> int:
    """Send the call to the manager of this run; return the exit status."""
    manager = connect_manager(run)
    if manager is None:
        return by_files(call, run)
    try:
        with manager:
            return exchange_frames(call, manager)
    except ManagerLost as lost:
        return by_files(lost.call, run, lost.given)


def connect_manager(run: Path) -> socket.socket | None:
    """Return a socket connected to the manager; None if no manager listens on this machine. Raises RunError if the
    manager belongs to another user."""
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
    """Return the user id of the process at the other end."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def exchange_frames(call: Call, manager: socket.socket) -> int:
    """Send the call and print the reply; return the exit status. Raises ManagerLost if the connection ends before the
    exit status has come."""
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
                call, why = add_file(call, os.fsdecode(data))
                manager.sendall(wire.frame(b"F", why.encode()) if why else
                                wire.frame(b"D", call.sent[os.fsdecode(data)]))
    except TimeoutError as error:
        raise RunError(wire.timeout_message()) from error
    except ConnectionError as error:
        raise ManagerLost(call, screen.given) from error
    raise ManagerLost(call, screen.given)


def _frames(call: Call, manager: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """Send the call and yield the frames of the reply until the manager closes the connection. A command that only
    reads raises TimeoutError after `PATIENCE` seconds without an answer; another command prints once that it is
    waiting."""
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
    """Continue as a step of the job that these variables name, or as salloc with a shell in that job."""
    os.environ.update(variables)
    if ENTERED_VARIABLE in variables:
        sys.exit(shell([call.name, *call.arguments]))
    from vrm.ext.steps import main as steps
    sys.argv = [call.name, *call.arguments]
    steps.run()


def shell(argv: list[str]) -> int:
    """Run salloc, or srun with a job of its own, in the job that the environment variables name; return its exit
    status."""
    return run(argv)


def add_file(call: Call, path: str) -> tuple[Call, str]:
    """Return the call with this file, or the reason why it cannot be read, added; and that reason."""
    text, why = read(path)
    return (replace(call, missing={**call.missing, path: why}) if why else
            replace(call, sent={**call.sent, path: text})), why


def read(path: str) -> tuple[bytes, str]:
    """Return a file (standard input for "") and the reason why it cannot be read ("": none)."""
    try:
        with (open(path, "rb") if path else contextlib.nullcontext(sys.stdin.buffer)) as file:
            text = file.read(wire.LARGEST + 1)
    except OSError as error:
        return b"", error.strerror or str(error)
    return (text, "") if len(text) <= wire.LARGEST else (b"", "File too large")


def by_files(call: Call, place: Path, given: tuple[int, int] | None = None) -> int:
    """Send the call by a command file with the call's name; return the exit status. `given` is None at first; after
    a manager was lost it is how many bytes that manager's reply has printed. Raises RunError if no manager runs or
    none answers."""
    run = RunDirectory(place, place, place / "state")
    if given is None and not run.manager_runs():
        return _no_manager(call, run)
    screen = Printer(given or (0, 0))
    while True:
        if any(screen.given) and call.name in names.dialect(call.name).blocking:
            raise RunError("the manager of vrm has ended; its job continues with the next manager")
        screen.again()
        reply = _reply(call, run)
        if reply is not None and "needs" in reply:
            call, _ = add_file(call, reply["needs"])
            continue
        if reply is not None and "joins" in reply:
            step(call, reply["joins"])
        if reply is None:
            found = _unanswered(call, run)
            if found is None:
                return _no_manager(call, run)
            return _printed({"out": found.out, "err": found.err, "code": found.code}, screen)
        code = _wait_by_command_files(call, run, reply, screen)
        if code is not None:
            return code
        given = screen.given


def _reply(call: Call, run: RunDirectory) -> command_files.Command | None:
    command_files.send(run, {"do": "front", "call": call_to_json(call)}, call.token)
    return command_files.answered(run, call.token, wire.PATIENCE)


def _wait_by_command_files(call: Call, run: RunDirectory, reply: command_files.Command, screen: Printer) -> int | None:
    """Print the reply; while it says that the call has not ended, ask again and pass signals on. Return the exit
    status; None if the manager that handled the call was lost."""
    signals: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    ignored = {number for number in FORWARDED_SIGNALS if signal.getsignal(number) is signal.SIG_IGN}
    try:
        while "waits" in reply:
            _printed(reply, screen)
            got = signal.sigtimedwait(FORWARDED_SIGNALS, 0 if reply.get("out", "?") or reply["err"] else ASK_EVERY)
            signals = [got.si_signo] if got is not None and got.si_signo not in ignored else []
            name = command_files.send(run, {"do": "front", "of": reply["waits"], "signals": signals})
            asked = command_files.answered(run, name, wire.PATIENCE)
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
    """Print a reply; return its exit status. A reply without exit status comes from a manager that did not
    understand the call."""
    done = "code" in reply or "waits" in reply
    screen.print(0, os.fsencode(reply.get("out", "")))
    screen.print(1, os.fsencode(reply.get("err", "") if done else f"{reply['text']}; `vrm queue` shows the jobs\n"))
    return int(reply.get("code", 1))


def _no_manager(call: Call, run: RunDirectory) -> int:
    """Handle a call without a manager; return the exit status. Raises RunError for commands that need one."""
    act = names.alone(call.name)
    code = act(call) if act is not None else None
    if code is None:
        raise RunError("Unable to contact slurm controller (connect failure): no manager of vrm runs on "
                       f"{run.directory}")
    return code


def _unanswered(call: Call, run: RunDirectory) -> Answer | None:
    """Return the answer to a call that got no reply and was withdrawn. If it has submitted jobs, these are the
    answer, so that the user does not submit them again. None: no manager runs and nothing was done. Raises RunError
    with what is known in all other cases."""
    from vrm.ext.slurm.calls.past_handler import unanswered

    found = unanswered(call, run)
    if found is not None:
        return found
    if run.manager_runs():
        raise RunError(f"the manager of vrm has not answered within {wire.PATIENCE:g} s; the command was withdrawn")
    if names.submits(call.name):
        raise RunError("the manager of vrm has ended before it took this; nothing was submitted")
    return None


def call_to_json(call: Call) -> dict[str, Any]:
    """Return the call as a JSON value."""
    return {"name": call.name, "arguments": call.arguments, "cwd": call.cwd, "env": dict(call.env),
            "sent": {path: b64encode(text).decode() for path, text in call.sent.items()},
            "missing": dict(call.missing)}


def call_from_json(record: Any) -> Call:
    """Return the call of a JSON value. Raises ValueError, TypeError or KeyError for an invalid one."""
    def text(value: Any) -> str:
        if type(value) is not str or "\0" in value:
            raise TypeError("a word of the call is not text")
        return value
    return Call(text(record["name"]), [text(word) for word in list(record["arguments"])], text(record["cwd"]),
                {text(name): text(value) for name, value in dict(record["env"]).items()},
                {text(path): b64decode(data) for path, data in dict(record["sent"]).items()},
                {text(path): text(why) for path, why in dict(record["missing"]).items()})
