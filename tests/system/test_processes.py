"""Finding and ending processes, with real ones: sessions, groups, escapes, recycled numbers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from collections.abc import Callable, Iterator

import psutil
import pytest

from conftest import wait_until
from vrm.system.processes import (ProcessEnding, Pid, SessionEnding, StraySessions, TaggedEnding, kill_groups, pids_with_environment,
                                  read_stat, session_members, sessions, signal_process, signal_session)

READY = "print('ready', flush=True)\n"
SLEEP = "import time; time.sleep(600)\n"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs in sessions of their own, which are killed at the end."""
    processes: list[subprocess.Popen] = []

    def start(program: str, *words: str, **values: object) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program, *words],
                                   stdout=subprocess.PIPE, text=True, start_new_session=True,
                                   **values)
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process
    yield start
    for process in processes:
        signal_session(process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def run_to_the_end(ending: ProcessEnding) -> int:
    """Poll an ending when it is due, as an event loop does; how many polls it took."""
    polls = 0

    def over() -> bool:
        nonlocal polls
        now = time.monotonic()
        if now < ending.deadline:
            return False
        polls += 1
        return ending.poll(now)
    wait_until(over, "end of the processes")
    return polls


def family(count: int, body: str = SLEEP) -> str:
    """A program with `count` children, each leader of its own group, that prints `ready`."""
    return (f"import os\n"
            f"r, w = os.pipe()\n"
            f"for _ in range({count}):\n"
            f"    if not os.fork():\n"
            f"        os.setpgid(0, 0)\n"
            f"        if not os.fork(): os.write(w, b'x')\n"
            f"        break\n"
            f"else:\n"
            f"    got = 0\n"
            f"    while got < {count}: got += len(os.read(r, {count}))\n"
            f"    {READY}" + body)


# Finding.

def session_of(pid: int) -> int | None:
    """The session of a process; None when it has ended meanwhile."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def test_session_members_are_those_that_psutil_sees(start: Start) -> None:
    one, two = start(family(3)), start(family(2))
    for process, count in ((one, 7), (two, 5)):
        members = session_members(process.pid)
        expected = [p.pid for p in psutil.process_iter() if session_of(p.pid) == process.pid]
        assert sorted(members) == sorted(expected)
        assert len(members) == count
        assert sorted(session_members(process.pid, table=sessions())) == sorted(members)
        assert len({os.getpgid(pid) for pid in members}) > 1


def test_no_such_session() -> None:
    assert session_members(2 ** 22 + 1) == []
    assert signal_session(2 ** 22 + 1, signal.SIGKILL) == []


@pytest.mark.parametrize("name", [") Z 1 1 1", "a b", "((", "\n) R", "", "ü" * 7])
def test_names_that_look_like_fields(start: Start, name: str) -> None:
    """The program's name stands in the middle of the line that is parsed."""
    rename = f"open('/proc/self/comm', 'w').write({name!r})\n"
    process = start(rename + READY + SLEEP)
    stat = read_stat(process.pid)
    assert stat is not None
    assert (stat.pid, stat.session, stat.dead) == (process.pid, process.pid, False)
    assert session_members(process.pid) == [process.pid]
    assert stat.pid.started == read_stat(process.pid).pid.started


def test_start_time_is_that_of_psutil(start: Start) -> None:
    process = start(READY + SLEEP)
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = psutil.boot_time() + read_stat(process.pid).pid.started / ticks
    assert seconds == pytest.approx(psutil.Process(process.pid).create_time(), abs=2 / ticks + 1)


def test_the_dead_are_no_members(start: Start) -> None:
    process = start(READY)
    wait_until(lambda: read_stat(process.pid).dead, "a zombie")
    assert os.getsid(process.pid) == process.pid
    assert session_members(process.pid) == []


def test_a_process_whose_first_thread_has_ended_is_alive(start: Start) -> None:
    """It is shown as a zombie."""
    process = start("import ctypes, threading, time\n"
                    "threading.Thread(target=time.sleep, args=(600,)).start()\n"
                    + READY + "ctypes.CDLL(None).pthread_exit(None)\n")
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "a zombie")
    assert session_members(process.pid) == [process.pid]
    ending = SessionEnding(process.pid, 0)
    run_to_the_end(ending)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_processes_that_come_and_go_do_not_disturb() -> None:
    """A scan races with hundreds of births and deaths."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(100):
            assert os.getpid() in session_members(os.getsid(0))
            assert os.getpid() in sessions()[os.getsid(0)]
            pids_with_environment("VRM_TEST_NEVER_SET", "1")
    finally:
        stop.set()
        thread.join()


def test_environment_tag_finds_what_left_its_session(start: Start) -> None:
    tag = f"{os.getpid()}.7"
    escape = ("import os, subprocess, sys\n"
              "child = subprocess.Popen([sys.executable, '-I', '-S', '-c', sys.argv[1]],\n"
              "    start_new_session=True, stdout=subprocess.DEVNULL)\n"
              "print('ready', flush=True)\nprint(child.pid, flush=True)\n")
    process = start(escape, SLEEP, env={"VRM_TEST": tag, "OTHER": "1"})
    escaped = int(process.stdout.readline())
    process.wait()
    assert session_members(process.pid) == []
    # The child has the tag when it is forked, and keeps it when it becomes another program.
    assert pids_with_environment("VRM_TEST", tag) == [escaped]
    for name, value in [("VRM_TEST", tag[:-1]), ("VRM_TEST", tag + "7"), ("RM_TEST", tag),
                        ("VRM_TEST", ""), ("TEST", tag)]:
        assert escaped not in pids_with_environment(name, value)
    ending = TaggedEnding("VRM_TEST", tag, grace=60)
    run_to_the_end(ending)
    assert not ending.killed
    assert pids_with_environment("VRM_TEST", tag) == []


def test_environment_tag_first_and_last(start: Start) -> None:
    process = start(READY + SLEEP, env={"A": "first", "M": "middle", "Z": "last"})
    for name, value in [("A", "first"), ("M", "middle"), ("Z", "last")]:
        assert process.pid in pids_with_environment(name, value)


# Signalling.

def test_a_recycled_number_is_not_signalled(start: Start) -> None:
    process = start(READY + SLEEP)
    real = read_stat(process.pid).pid
    assert not signal_process(Pid(process.pid, real.started - 1), signal.SIGKILL)
    assert signal_session(process.pid, signal.SIGKILL, started=real.started - 1) == []
    stale = SessionEnding(process.pid, 0, started=real.started - 1)
    assert stale.poll(0.0) and not stale.killed
    assert kill_groups([Pid(process.pid, real.started - 1, process.pid)], ()) == set()
    assert process.poll() is None
    assert signal_process(real, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not signal_process(real, signal.SIGKILL)
    assert not signal_process(process.pid, signal.SIGKILL)


def test_signalling_without_process_handles(start: Start,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 5.3 have none."""
    def missing(pid: int) -> int:
        raise OSError(38, os.strerror(38))
    monkeypatch.setattr(os, "pidfd_open", missing)
    process = start(READY + SLEEP)
    pid = read_stat(process.pid).pid
    assert not signal_process(Pid(pid, pid.started + 1), signal.SIGKILL)
    assert signal_process(pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_no_descriptor_stays_open(start: Start) -> None:
    process = start(family(3))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        signal_session(process.pid, signal.SIGCONT)
        signal_process(Pid(process.pid, 0), signal.SIGCONT)
        pids_with_environment("A", "B")
    assert len(os.listdir("/proc/self/fd")) == before


def test_spared_processes_are_not_signalled(start: Start) -> None:
    process = start(family(3))
    told = signal_session(process.pid, signal.SIGKILL, spare={process.pid})
    assert len(told) == 6 and process.pid not in told
    wait_until(lambda: session_members(process.pid) == [process.pid], "end of the others")


# Ending.

def test_grandchildren_in_their_own_groups_end(start: Start) -> None:
    process = start(family(4))
    assert len(session_members(process.pid)) == 9
    ending = SessionEnding(process.pid, grace=60)
    run_to_the_end(ending)
    assert not ending.killed
    assert ending.remaining == []
    assert process.wait() == -signal.SIGTERM


def test_what_ignores_sigterm_is_killed_after_the_grace(start: Start) -> None:
    process = start(DEAF + family(2))
    ending = SessionEnding(process.pid, grace=10)
    assert not ending.poll(100.0)
    assert 100.0 < ending.deadline < 110.0
    for now in (100.1, 105.0, 109.9):
        assert not ending.poll(now)
        assert len(ending.remaining) == 5 and not ending.killed
        assert now < ending.deadline <= 110.0
    assert not ending.poll(110.0)
    assert ending.killed
    wait_until(lambda: ending.poll(111.0), "end of the processes")
    assert process.wait() == -signal.SIGKILL


def test_no_grace_kills_at_once(start: Start) -> None:
    process = start(READY + SLEEP)
    ending = SessionEnding(process.pid, grace=0)
    ending.poll(5.0)
    assert ending.killed
    assert process.wait() == -signal.SIGKILL
    assert ending.poll(5.1)


def test_the_supervisor_is_spared(start: Start) -> None:
    process = start(family(2))
    run_to_the_end(SessionEnding(process.pid, grace=60, spare={process.pid}))
    assert session_members(process.pid) == [process.pid]
    assert process.poll() is None


def test_a_stopped_process_ends_by_sigterm(start: Start) -> None:
    process = start(READY + SLEEP)
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "stop")
    ending = SessionEnding(process.pid, grace=60)
    run_to_the_end(ending)
    assert not ending.killed
    assert process.wait() == -signal.SIGTERM


def test_what_is_born_of_sigterm_has_the_grace_and_is_killed_then(start: Start) -> None:
    """The answer to SIGTERM is a new process, as one that writes a checkpoint: it may work."""
    process = start("import os, signal, time\n"
                    "def more(*_):\n"
                    "    if not os.fork(): signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
                    "    else: os._exit(0)\n"
                    "signal.signal(signal.SIGTERM, more)\n" + READY +
                    "while True: time.sleep(600)\n")
    ending = SessionEnding(process.pid, grace=60)
    assert not ending.poll(100.0)
    assert process.wait() == 0
    assert not ending.poll(101.5) and len(ending.remaining) == 1
    child = ending.remaining[0]
    assert not ending.poll(159.0) and ending.remaining == [child] and not ending.killed
    assert not ending.poll(160.0) and ending.killed
    wait_until(lambda: ending.poll(161.0), "end of the child")


def test_a_shell_does_not_go_on_when_its_child_ends_first(start: Start, tmp_path: Path) -> None:
    """All of a group gets the signal in one moment, however many processes there are to signal."""
    went_on = tmp_path / "went on"
    shells = []
    for _ in range(20):
        shell = start("import os\nos.execv('/bin/sh', ['sh', '-c', "
                      f"\"echo ready; sleep 600; echo >> '{went_on}'\"])")
        shells.append(shell)
    for shell in shells:
        wait_until(lambda: len(session_members(shell.pid)) == 2, "the shell waits for its child")
        ending = SessionEnding(shell.pid, grace=60)
        run_to_the_end(ending)
        assert shell.wait() == -signal.SIGTERM and not ending.killed
        assert ending.signalled_at == pytest.approx(time.monotonic(), abs=60)
    assert not went_on.exists()


def test_the_oldest_group_has_time_to_end_the_others(start: Start, tmp_path: Path) -> None:
    """As mpirun does, of whose ranks each is a group: they must not be told twice."""
    log = tmp_path / "log"
    process = start("import os, signal, time\n"
                    "def told(name):\n"
                    f"    with open({str(log)!r}, 'a') as file: file.write(name)\n"
                    "rank = os.fork()\n"
                    "name = 'mpirun ' if rank else 'rank '\n"
                    "signal.signal(signal.SIGTERM, lambda *_: told(name))\n"
                    "if rank: os.setpgid(rank, rank)\n"
                    "if rank: print('ready', flush=True)\n"
                    "while True: time.sleep(600)\n")
    wait_until(lambda: len({pid.group for pid in session_members(process.pid)}) == 2, "two groups")
    ending = SessionEnding(process.pid, grace=60)
    ending.poll(100.0)
    wait_until(lambda: log.exists() and log.read_text() == "mpirun ", "the first is told")
    ending.poll(100.9)
    ending.poll(101.0)
    wait_until(lambda: log.read_text() == "mpirun rank ", "the others are told")
    for now in (102.0, 150.0):
        ending.poll(now)
    assert log.read_text() == "mpirun rank "
    ending.poll(160.0)
    wait_until(lambda: ending.poll(161.0), "the end of both")


def test_processes_that_multiply_are_ended(start: Start) -> None:
    """Each child forks another and ends, so no number lives long. (Only the kernel can tell for
    sure that nobody is left: by the group.)"""
    process = start("import os\n" + READY +
                    "while True:\n"
                    "    if os.fork(): os._exit(0)\n")
    run_to_the_end(SessionEnding(process.pid, grace=0))
    process.wait()

    def over() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False
    wait_until(over, "the end of their group")


def test_many_sessions_end_with_one_look(start: Start) -> None:
    processes = [start(family(1)) for _ in range(10)]
    endings = [SessionEnding(p.pid, grace=60) for p in processes]

    def over() -> bool:
        table = sessions()
        return all(ending.poll(time.monotonic(), table) for ending in endings)
    wait_until(over, "end of ten sessions")
    assert [p.wait() for p in processes] == [-signal.SIGTERM] * 10


def test_the_sessions_of_each_job_are_found(start: Start) -> None:
    strays, run = StraySessions(), f"r1.{os.getpid()}"
    env = {**os.environ, "VRM_RUN": run, "VRM_JOB_ID": "7"}
    first, second = (start(READY + SLEEP, env=env) for _ in range(2))
    start(READY + SLEEP, env={**env, "VRM_RUN": run + "2"})
    start(READY + SLEEP, env={**env, "VRM_JOB_ID": "x"})
    other = start(READY + SLEEP, env={**env, "VRM_JOB_ID": "77"})
    found = strays.find(run, sessions())
    assert {job: sorted(sids) for job, sids in found.items()} == {
        7: sorted([first.pid, second.pid]), 77: [other.pid]}
    first.kill()
    first.wait()
    late = start(READY + SLEEP, env=env)
    assert sorted(strays.find(run, sessions())[7]) == sorted([second.pid, late.pid])


def test_a_session_that_was_seen_before_its_program_is_found() -> None:
    """As one that a daemon makes for a rank: for a moment it is the daemon's process that is in it."""
    strays, run = StraySessions(), f"r2.{os.getpid()}"
    line = f"read go; exec env VRM_RUN={run} VRM_JOB_ID=7 sleep 60"
    with subprocess.Popen(["sh", "-c", line], stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.pid in sessions() and not strays.find(run, sessions())
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            wait_until(lambda: strays.find(run, sessions()) == {7: [process.pid]}, "the session is the job's")
        finally:
            process.kill()
