"""Nothing that somebody else has written ends a manager: command files, calls, frames, numbers.

Each trial goes through the place where a manager takes such a thing, in this process, and the run goes on. A failure
names the seed, which `VRM_TEST_SEED` repeats; `VRM_TEST_RANDOM=1` takes another one each time.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import math
import os
import pkgutil
import random
import selectors
import signal
import socket
import time
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest

import vrm.ext.slurm
from conftest import LIMIT
from support.executor import Managed
from vrm.ext.slurm.calls import answers, names, wire
from vrm.ext.slurm.calls.client import call_to_json
from vrm.ext.slurm.forms.options import Options
from vrm.ext.slurm.calls.wire import Call
from vrm.ext.slurm.calls import server
from vrm.ext.slurm.calls.server import SocketServer
from vrm.model.quantities import numbers
from vrm.run import command_files
from vrm.run.journal import files as journals
from vrm.run.journal.history import replay
from vrm.workload.grammar import parse_line

TRIALS = 5_000
"""Command files, and as many calls."""

SEED = int(os.environ.get("VRM_TEST_SEED") or (
    random.randrange(1 << 30) if os.environ.get("VRM_TEST_RANDOM") else 1))

HUGE = "9" * 5000
ODD: list[Any] = [None, True, -1, 0, 1, 3, 7, 2 ** 31, 2 ** 63, 10 ** 30, 1e308, -0.5, float("inf"), float("-inf"),
                  float("nan"), "", "x", "0", "3", "1-3", "all", "failed", "0-99999", "../../x", "\x1b[31m", "\ud800",
                  "\udcff", "a" * 3000, "any:1", HUGE, "1e999", "inf", "nan", "n0", "n[0-1]", "n[0-99999999]", [], {},
                  [[]], [1], [1e400], {"id": 1}, [None], "9" * 25, "4G", "1:00:00", "-1", "\n", "é", "%j", "=", ",", ":"]

COMMANDS: list[dict[str, Any]] = [
    {"do": "submit", "line": "ok.x 1 9 0 name=a after=any:1 array=0-3 mem=1G start=+5"},
    *({"do": what, "ids": ["1-3", 4, "failed"]} for what in ("cancel", "hold", "release", "requeue")),
    *({"do": what, "id": 1} for what in ("cancel", "hold", "release", "requeue")),
    {"do": "reserve", "begin": None, "end": 2e9, "number": 1, "nodes": ["n0"], "name": "x", "jobs": [1]},
    {"do": "unreserve", "which": "x"}, {"do": "lend", "id": 0, "cores": 1, "to": 1}, {"do": "lend", "id": 0, "back": 1},
    {"do": "rules", "rules": {"algorithm": "SJF"}, "reason": "why", "instead": None},
    {"do": "front", "of": "x", "signals": [2]},
    {"do": "front", "call": {"name": "sbatch", "arguments": ["--wrap=true", "-t", "5"], "cwd": "/tmp", "sent": {},
                             "env": {"SLURM_HOSTFILE": "/h"}, "missing": {}}}]

PBS = {"qsub": "aAcCeefhIjJklmMNopPqrRSuvVWXzl", "qstat": "aBfHinpQqrstTuwx", "qdel": "xW", "qhold": "h", "qrls": "h",
       "qalter": "aAcehjklmMNoprRSuW", "pbsnodes": "aFjlsSvL"}
WORDS = ["1", "1.vrm", "1[].vrm", "show", "update", "job", "jobid=1", "timelimit=5", "priority=1", "nodes", "select=2",
         "select=1:ncpus=2:mpiprocs=2", "walltime=5:00", "place=scatter", "true", "script.sh", "--", "hold", "-",
         f"select={'9' * 30}", "job=1", "NodeName=n0", "%i %j %R", "jobid,state", "/h", "now", "tomorrow", "a=b"]


class Live:
    """A manager that takes commands and calls, on two nodes that are emulated; it starts nothing."""

    def __init__(self, root: Path) -> None:
        now = time.time()
        managed = Managed(root, "ok.x 2 99 0 malleable=1", "ok.x 2 99 0", *("ok.x 8 99 0 nodes=2",) * 4,
                          now=now)
        managed.start(now)
        self.manager, self.run, self.said = managed.manager, managed.run, managed.said
        self.close = managed.close
        self.selector = selectors.DefaultSelector()
        self.server = self.manager.live.part(SocketServer)
        self.server.begin(self.selector)
        assert not self.server.trouble

    def turn(self) -> None:
        """What the loop does with calls."""
        for key, _ in self.selector.select(0):
            key.data()
        self.server.look(self.manager.live.now, False)
        self.server.act(self.manager.live.now)

    def asked(self, *parts: bytes) -> bytes:
        """What the manager answers to these, each sent when the one before was read."""
        answer = b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(self.run.directory / wire.SOCKET))
            client.setblocking(False)
            for part in parts:
                with contextlib.suppress(ConnectionError):
                    client.sendall(part)
                self.turn()
            self.turn()
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while more := client.recv(1 << 20):
                    answer += more
        self.turn()
        return answer

    def sent(self, call: Call) -> socket.socket:
        """A client whose call the manager has taken."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(str(self.run.directory / wire.SOCKET))
        client.sendall(call.packed())
        self.turn()
        self.turn()
        return client

    def answer(self, call: Call) -> bytes:
        """The whole answer to a call."""
        with self.sent(call) as client:
            return text_of(client)

    def works(self) -> None:
        """Commands and calls are carried out as ever, and the journal says what the manager knows."""
        name = command_files.send(self.run, {"do": "submit", "line": "ok.x 1 9 0"})
        self.manager.orders.carry_out_waiting()
        assert command_files.wait_reply(self.run, name, 0) and b"JOBID" in self.answer(Call("squeue", []))
        state = self.manager.live.state
        self.manager.live.journal.sync()
        past = replay(journals.read(self.run.journal))
        known = {i: (entry.job.id, entry.state.ended, entry.held) for i, entry in state.book.entries.items()}
        assert known == {i: (entry.job.id, entry.state.ended, entry.held)
                         for i, entry in past.state.book.entries.items()}
        assert past.state.next_id == state.next_id and past.state.reservations.keys() == state.reservations.keys()


def text_of(client: socket.socket) -> bytes:
    """What a manager, or its copy, says to a client."""
    client.settimeout(LIMIT)
    data = b"".join(iter(lambda: client.recv(1 << 20), b""))
    frames, rest = wire.frames(data)
    assert not rest and frames[-1] == (b"X", b"0") and max(len(each) for _, each in frames) <= wire.PART
    return b"".join(each for kind, each in frames if kind == b"O")


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setattr(os, "fdatasync", lambda number: None)
    monkeypatch.setattr(os, "fsync", lambda number: None)
    made = Live(tmp_path / "run")
    yield made
    made.close()
    made.selector.close()


INF = float("inf")


@pytest.mark.parametrize("command", [
    {"do": "lend", "id": INF, "cores": 1}, {"do": "lend", "id": 0, "cores": 1, "to": INF},
    {"do": "lend", "id": 0, "cores": INF}, {"do": "front", "of": "x", "signals": [INF]},
    {"do": "front", "of": "x", "signals": [99]},
    {"do": "reserve", "begin": None, "end": INF, "number": INF, "nodes": [], "name": "x", "jobs": []},
    {"do": "reserve", "begin": None, "end": 9e9, "number": 1, "nodes": [], "name": "x", "jobs": [INF]},
    {"do": "front", "call": {"name": "sbatch", "arguments": ["\ud800"], "cwd": "/", "env": {}, "sent": {},
                             "missing": {}}}])
def test_a_number_or_text_that_is_none_is_answered(live: Live, command: command_files.Command) -> None:
    name = command_files.send(live.run, command)
    live.manager.orders.carry_out_waiting()
    reply = command_files.wait_reply(live.run, name, 0)
    assert reply and not reply["ok"] and "not understood" in reply["text"]
    assert not any("Traceback" in said or "error in vrm" in said for said in live.said)
    live.works()


@pytest.mark.parametrize("call", [Call("squeue", []), Call("srun", ["-n", "1", "sleep", "5"])])
@pytest.mark.parametrize("number", [pytest.param(HUGE, id="long"), "99999999999999", "0", "65", "-1", "", "x"])
def test_a_frame_with_no_signal_loses_its_client(live: Live, call: Call, number: str) -> None:
    live.asked(call.packed() + wire.frame(b"K", number.encode()))
    live.asked(call.packed(), wire.frame(b"K", number.encode()))
    live.works()


@pytest.mark.parametrize("words, what", [
    (["qsub", "-l", f"select={'9' * 30}", "--", "/bin/true"], "select"),
    (["salloc", "true"], "SLURM_HOSTFILE"), (["salloc", "-n1", "true"], "SLURM_HOSTFILE")])
@pytest.mark.parametrize("hosts", [b"n\0x\n", b"\xff\xfe\n"])
def test_what_vrm_cannot_carry_out_is_said_as_its_command_says_it(live: Live, words: list[str], what: str,
                                                                 hosts: bytes) -> None:
    call = Call(words[0], words[1:], "/", {"SLURM_HOSTFILE": "/h"})
    said = live.asked(call.packed(), wire.frame(b"D", hosts))
    assert b"error in vrm" not in said and what.encode() in said and said[-1:] != b"0", said
    live.works()


def test_a_long_answer_is_made_by_a_copy_and_the_manager_goes_on(live: Live) -> None:
    """Answers of any length, and those who ask later do not wait. The copy has all as it was when it was asked."""
    live.manager.intake.enter(parse_line("ok.x 1 9 0 array=0-24999 hold=1"))
    with live.sent(Call("squeue", ["--json"])) as long:
        live.manager.intake.enter(parse_line("ok.x 1 9 0"))
        with live.sent(Call("sinfo", ["-h"])) as short:
            assert b"n[0-1]" in text_of(short)
            assert not selectors_ready(long), "the other one is not done yet"
        answer = text_of(long)
    assert len(answer) > wire.LARGEST and len(json.loads(answer)["jobs"]) == 6 + 25_000
    live.works()


def by_file(live: Live, call: Call) -> str:
    """Ask as a client on another node does: by a command file, of this name."""
    return command_files.send(live.run, {"do": "front", "call": call_to_json(call)})


def reply_to(live: Live, name: str) -> dict[str, Any]:
    """The answer to a command file, once it has come."""
    end = time.monotonic() + LIMIT
    while (reply := command_files.wait_reply(live.run, name, 0.1)) is None:
        assert time.monotonic() < end
        live.manager.orders.carry_out_waiting()
    return reply


def test_a_long_answer_to_a_command_file_is_made_by_a_copy_too(live: Live) -> None:
    live.manager.intake.enter(parse_line("ok.x 1 9 0 array=0-4999 hold=1"))
    orders = live.manager.orders
    long = by_file(live, Call("squeue", ["--json"]))
    orders.carry_out_waiting()
    live.manager.intake.enter(parse_line("ok.x 1 9 0"))
    short = by_file(live, Call("sinfo", ["-h"]))
    orders.carry_out_waiting()
    assert command_files.wait_reply(live.run, long, 0) is None, "the other one is not done yet"
    reply = command_files.wait_reply(live.run, short, 0)
    assert reply and "n[0-1]" in reply["out"]
    reply = reply_to(live, long)
    assert reply["ok"] and reply["code"] == 0 and len(json.loads(reply["out"])["jobs"]) == 6 + 5000
    while orders.live.copies.look():
        pass
    orders.carry_out_waiting()
    assert not list(live.run.commands.iterdir()) and not list(live.run.replies.iterdir()), "it is answered once"
    live.works()


def test_of_a_question_that_no_copy_can_answer_it_is_said(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.manager.intake.enter(parse_line("ok.x 1 9 0 array=0-1999 hold=1"))
    name, manager = by_file(live, Call("squeue", [])), os.getpid()
    answer = command_files.answer
    monkeypatch.setattr(command_files, "answer", lambda *given: answer(*given) if os.getpid() == manager else os.kill(
        os.getpid(), signal.SIGKILL))
    reply = reply_to(live, name)
    assert reply["code"] == 1 and "has not made the answer" in reply["err"]
    monkeypatch.undo()
    live.works()


def test_no_question_holds_the_loop(live: Live) -> None:
    """With many jobs the manager answers others, and writes its state, in a small part of the time that the answers
    take. CPU seconds of this process: copies have their own."""
    live.manager.intake.enter(parse_line("ok.x 1 9 0 array=0-19999 hold=1"))
    calls = [Call("squeue", ["--json"]), Call("qselect", []), Call("pbsnodes", ["-a"])]
    live.manager.state_writer.finish()
    begun = time.process_time()
    live.manager.state_writer.finish()
    for call in calls:
        server.reply_to(call, live.server.handler, live.manager.live)
    itself = time.process_time() - begun
    begun = time.process_time()
    with contextlib.ExitStack() as asked:
        for call in calls[:2]:
            asked.enter_context(live.sent(call))
        names_of = [by_file(live, call) for call in calls[2:]]
        live.manager.orders.carry_out_waiting()
        live.manager.state_writer.write(live.manager.live.now)
        live.manager.intake.look(live.manager.live.now, True)
        took = time.process_time() - begun
    assert took < itself / 8, (took, itself)
    for name in names_of:
        assert reply_to(live, name)["ok"]


def test_many_jobs_are_cancelled_while_others_are_answered(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PART", 0.0)  # a step in each turn
    manager, run = live.manager, live.manager.live
    first = run.state.next_id
    for name in ("some", "others"):
        manager.intake.enter(parse_line(f"ok.x 1 9 0 array=0-1999 hold=1 name={name}"))

    def left() -> int:
        return sum(not run.state.entry(job_id).state.ended for job_id in range(first, first + 4000))
    with live.sent(Call("scancel", ["-n", "some"])) as many:
        for _ in range(3):
            with live.sent(Call("sinfo", ["-h"])) as short:
                assert b"n[0-1]" in text_of(short)
            assert 2000 < left() < 4000
            assert min(part.deadline(run.now) for part in manager.parts) == run.now, "the next turn is at once"
            assert any(part.expects(run.now) for part in manager.parts), "the run does not end before"
        while live.server.has_work:
            live.turn()
        assert left() == 2000 and text_of(many) == b""
    assert reply_to(live, by_file(live, Call("scancel", ["-n", "others"])))["code"] == 0 and left() == 0
    live.works()


def test_a_copy_writes_the_state_of_many_jobs(live: Live) -> None:
    state_writer, live_run = live.manager.state_writer, live.manager.live

    def shown() -> tuple[int, int, str]:
        state = json.loads(live.run.state.read_text())
        return state["manager"]["pid"], sum(len(numbers(job["ids"])) if "ids" in job else 1 for job in state["jobs"]
                                            ), state["manager"]["phase"]

    state_writer.write(live_run.now)
    assert shown() == (os.getpid(), 6, "running")
    live.manager.intake.enter(parse_line("ok.x 1 9 0 array=0-9999 hold=1"))
    assert live_run.dirty
    state_writer.write(live_run.now)
    assert shown()[1] == 6 and not state_writer.due(math.inf), "it is being written"
    while not state_writer.due(math.inf):
        pass
    assert shown() == (os.getpid(), 6 + 10_000, "running") and not live_run.dirty
    state_writer.write(live_run.now)
    live_run.phase = "ended"
    state_writer.finish()
    assert state_writer.due(math.inf) and shown()[2] == "ended", "no copy writes what was"
    live_run.phase = "running"
    live.works()


def test_a_state_that_a_copy_cannot_write_is_said_once(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.manager.intake.enter(parse_line("ok.x 1 9 0 array=0-1999 hold=1"))
    monkeypatch.setattr(live.run, "state", live.run.directory / "nowhere" / "state")
    for _ in range(2):
        live.manager.state_writer.write(live.manager.live.now)
        while not live.manager.state_writer.due(math.inf):
            pass
    assert [said for said in live.said if "cannot write" in said] == [
        f"cannot write {live.run.state}: No such file or directory"]


def selectors_ready(client: socket.socket) -> bool:
    """Whether something has come."""
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ)
        return bool(selector.select(0))


def test_no_command_file_ends_a_manager(live: Live) -> None:
    choose = random.Random(SEED)
    for number in range(TRIALS):
        command = json.loads(json.dumps(COMMANDS[number % len(COMMANDS)]))
        for _ in range(choose.randint(1, 3)):
            holder, key = choose.choice(list(places(command)))
            if choose.random() < 0.2:
                holder.pop(key)
            else:
                holder[key] = copy.deepcopy(choose.choice(ODD))
            if not command:
                break
        data = json.dumps(command).encode()
        if number % 7 == 0:
            at = choose.randrange(len(data) + 1)
            data = data[:at] + choose.choice([b"", b"\0", b"\xff", b"1e999", b"[" * 100_000]) + data[at + choose.randrange(3):]
        try:
            taken(live, f"{number:06}", data, number % 10 == 0)
        except Exception as error:
            raise AssertionError(f"VRM_TEST_SEED={SEED}, trial {number}: {data[:2000]!r}") from error
        live.manager.live.phase = "running"  # what a `stop` has ended
    live.works()


def taken(live: Live, name: str, data: bytes, as_file: bool) -> None:
    """A command is carried out: as a file, or without one where it can be one, which is faster."""
    try:
        command = json.loads(data)
    except (ValueError, RecursionError):
        command = None
    if as_file or not isinstance(command, dict) or type(command.get("do")) is not str or b"\\ud" in data:
        file = live.run.commands / name
        file.write_bytes(data)
        file.chmod(0o600)
        live.manager.orders.carry_out_waiting()
        assert not file.exists()
    else:
        replies: list[Any] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(command_files, "claim", lambda run, name: os.open(os.devnull, os.O_RDONLY))
            patched.setattr(command_files, "answer", lambda run, name, reply: replies.append(json.dumps(reply)))
            live.manager.orders.carry_out_safely(name, command)
        assert replies or command.get("unasked")


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container in a value, with a key of it."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def options_of() -> dict[str, list[str]]:
    """The options of each command, as they are typed."""
    found: dict[str, list[str]] = {name: [] for name in names.everything().answers}
    for module in pkgutil.iter_modules(vrm.ext.slurm.__path__):
        for value in vars(importlib.import_module(f"vrm.ext.slurm.{module.name}")).values():
            if isinstance(value, Options):
                found.setdefault(value.command, []).extend(
                    [f"--{each.name}" for each in value.all if each.name]
                    + [f"-{each.letter}" for each in value.all if each.letter])
    for name, letters in PBS.items():
        found[name] += [f"-{letter}" for letter in letters]
    return found


def test_no_call_and_no_frame_ends_a_manager(live: Live) -> None:
    choose, options = random.Random(SEED), options_of()
    texts = [*WORDS, *(each for each in ODD if isinstance(each, str) and "\ud800" not in each)]
    for number in range(TRIALS):
        name = choose.choice(sorted(names.everything().answers))
        arguments = []
        for _ in range(choose.randint(0, 3)):
            if options[name] and choose.random() < 0.8:
                option = choose.choice(options[name])
                arguments += choose.choice([[option], [option, choose.choice(texts)], [f"{option}={choose.choice(texts)}"]])
            else:
                arguments.append(choose.choice(texts))
        if choose.random() < 0.6:
            arguments += choose.choice([["--wrap=true"], ["true"], ["--", "/bin/true"], ["-n", "1", "true"]])
        env = {choose.choice(["SLURM_HOSTFILE", "SBATCH_TIMELIMIT", "SLURM_NTASKS", "SQUEUE_FORMAT", "SLURM_CONF",
                              "PBS_DPREFIX", "SLURM_TIME_FORMAT", "SLURM_JOB_ID"]): choose.choice(texts)}
        data = Call(name, arguments, "/tmp", env if choose.random() < 0.3 else {}).packed()
        frames = [wire.frame(choose.choice([b"D", b"F", b"K", b"X", b"Z"]), os.fsencode(choose.choice(
            [*texts, "#!/bin/sh\n#SBATCH -n 999999999999\n", "#PBS -l select=0\n", "n0\n", "n\0x\n"])))
            for _ in range(choose.randint(0, 2))]
        if number % 9 == 0:
            at = choose.randrange(len(data))
            data = data[:at] + choose.randbytes(choose.randint(0, 4)) + data[at + choose.randint(0, 4):]
        try:
            live.asked(data, *frames)
        except Exception as error:
            raise AssertionError(f"VRM_TEST_SEED={SEED}, trial {number}: {data[:2000]!r} {frames}") from error
    live.works()
    assert not {said for said in live.said if "error in vrm" in said}
