"""The spawner with real processes: what is recorded, in which order, and what survives a kill."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import py_compile
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from collections.abc import Callable, Iterator, Sequence

import pytest

from conftest import wait_until
from vrm.live.runner import wire
from vrm.live.spawn import home, run_supervisors, supervisor
from vrm.live.spawn.records import Marker, RecordError, read_status
from vrm.live.spawn.messages import (Ended, LaunchFailed, SpawnerLost, Started,
                                     SupervisorLost)
from vrm.live.spawn.spawner import FILES, FORKS, KEPT, Spawner, SpawnerError, _Launch, alive as lives
from vrm.system.processes import SessionEnding, read_stat, session_members, signal_process
from support.spawning import BLOCK, ENV, PYTHON, Desk, children, end_sessions, place  # noqa: F401

LIMIT = 60.0
"""Seconds after which a condition that was waited for counts as never coming."""

OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""What a job may have; a manager may have more, see `Spawner.start`."""


@pytest.fixture
def desk(place: Path) -> Iterator[Desk]:
    """A running spawner."""
    with Spawner() as spawner:
        desk = Desk(place, spawner)
        yield desk
        end_sessions(desk.sessions)


class Altered(Spawner):
    """A spawner whose program is the real one after some lines of Python have changed it."""

    def __init__(self, lines: str) -> None:
        super().__init__()
        self.lines = lines

    def _program(self) -> list[str]:
        return [sys.executable, "-c", f"import errno, os, sys\nsys.path[:0] = {sys.path!r}\n"
                "from vrm.live.spawn import supervisor\n"
                f"{self.lines}\nsupervisor.main(sys.argv[1:])\n"]


# How jobs end.

@pytest.mark.parametrize("argv, code, number, text", [
    (["true"], 0, None, "exit 0"),
    (["sh", "-c", "exit 3"], 3, None, "exit 3"),
    (["sh", "-c", "exit 127"], 127, None, "exit 127"),
    (["sh", "-c", "kill -9 $$"], None, 9, "killed by signal 9 (SIGKILL)"),
    (["sh", "-c", "kill -15 $$"], None, 15, "killed by signal 15 (SIGTERM)"),
    (["sh", "-c", "kill -40 $$"], None, 40, "killed by signal 40"),
    (["sh", "-c", "kill -9 0"], None, 9, "killed by signal 9 (SIGKILL)"),
])
def test_exit_status(desk: Desk, argv: list[str], code: int | None, number: int | None,
                     text: str) -> None:
    before = time.time()
    status = desk.run(1, argv)
    assert (status.code, status.signal, status.error) == (code, number, None)
    assert status.describe() == text
    assert status.ok == (code == 0)
    assert before - 1 < status.start <= status.end < time.time() + 1
    assert 0 < status.duration < LIMIT
    assert status.maxrss > 100_000
    recorded = read_status(desk.status(1))
    assert recorded is not None
    for told, written in zip(dataclasses.astuple(status), dataclasses.astuple(recorded)):
        assert written == (pytest.approx(told, abs=1e-5) if isinstance(told, float) else told)
    recorded = read_status(desk.status(1))
    assert recorded is not None
    for told, written in zip(dataclasses.astuple(status), dataclasses.astuple(recorded)):
        assert written == (pytest.approx(told, abs=1e-5) if isinstance(told, float) else told)


def test_cpu_time_is_that_of_program_and_descendants(desk: Desk) -> None:
    burn = ("import os, time\n"
            "if os.fork(): os.wait()\n"
            "while time.process_time() < 0.1: pass")
    status = desk.run("burn", PYTHON + [burn])
    assert 0.2 <= status.user + status.system < LIMIT


@pytest.mark.parametrize("make, reason", [
    (lambda p: None, "No such file or directory"),
    (lambda p: p.write_text("#!/bin/sh\n"), "Permission denied"),
    (lambda p: p.mkdir(), "is a directory"),
    (lambda p: (p.write_text("#!/no/such/interpreter\n"), p.chmod(0o755)),
     "the interpreter that its first line names does not exist"),
    (lambda p: (p.write_bytes(b"#!/bin/sh\r\necho\r\n"), p.chmod(0o755)),
     "the interpreter that its first line names does not exist: its lines end as on Windows; type sed -i 's/\\r$//' {}"),
    (lambda p: (p.write_text("neither text nor program"), p.chmod(0o755)),
     "no program for this machine, nor a script whose first line names one (#!/bin/sh)"),
])
def test_a_program_that_cannot_run(desk: Desk, make: Callable[[Path], object],
                                   reason: str) -> None:
    program = desk.place / "program"
    reason = reason.format(program)
    make(program)
    desk.launch(7, [str(program)])
    assert desk.await_event(7, LaunchFailed) == LaunchFailed(7, f"{program}: {reason}")
    status = read_status(desk.status(7))
    assert status is not None and not status.ok
    assert status.describe() == f"could not start: {program}: {reason}"
    assert not desk.marker(7).exists()


def test_places_that_cannot_be_used(desk: Desk) -> None:
    missing = desk.place / "missing" / "file"
    reason = f"{missing}: No such file or directory"
    for job, values, message in [
            ("o", {"stdout": missing}, f"output file {reason}"),
            ("e", {"stderr": missing}, f"output file {reason}"),
            ("d", {"cwd": missing}, f"working directory {reason}"),
            ("m", {"marker": missing}, f"marker file {reason}"),
            ("a", {"affinity": [100_000]}, "CPUs 100000: Invalid argument"),
            ("n", {"argv": ["true", "a\0b"]}, "true: embedded null byte")]:
        desk.launch(job, **{"argv": ["true"], **values})
        assert desk.await_event(job, LaunchFailed) == LaunchFailed(job, message)
        assert not desk.marker(job).exists()
    assert desk.run("well", ["true"]).ok


def test_the_directory_of_an_output_may_come_a_moment_later(desk: Desk) -> None:
    waits, made, ended = (desk.place / name / "deep" / "out" for name in ("waits", "made", "ended"))
    desk.launch("waits", ["echo", "here"], stdout=waits, stderr=waits, patience=LIMIT)
    desk.launch("made", ["echo", "here"], stdout=made, stderr=made, patience=0.01, make=True)
    desk.launch("ended", ["echo", "here"], stdout=ended, stderr=ended, patience=LIMIT)
    sid = {job: desk.await_event(job, Started).supervisor_pid for job in ("waits", "ended")}["ended"]
    assert desk.end_of("made").ok and made.read_text() == "here\n"
    desk.launch("never", ["true"], stdout=desk.place / "no" / "out", patience=0.01)
    assert isinstance(desk.await_event("never", LaunchFailed, Ended), LaunchFailed)
    assert desk.run("another", ["true"]).ok
    SessionEnding(sid, grace=5, spare={sid}).poll(0.0)
    event = desk.await_event("ended", LaunchFailed, Ended)
    assert isinstance(event, LaunchFailed) and "while it waited for that directory" in event.message
    assert not ended.parent.exists()
    waits.parent.mkdir(parents=True)
    assert desk.end_of("waits").ok and waits.read_text() == "here\n"


def test_a_status_that_cannot_be_written_is_told(desk: Desk) -> None:
    status = desk.place / "missing" / "status"
    desk.launch(1, ["sh", "-c", "exit 3"], status=status)
    event = desk.await_event(1, Ended)
    assert isinstance(event, Ended)
    assert event.problem == f"status file {status}: No such file or directory"
    assert event.status.code == 3
    assert desk.marker(1).exists()
    assert desk.spawner.release(status)  # else its supervisor would try for an hour


def test_a_status_that_was_told_and_not_recorded_is_written_when_the_manager_has_ended(place: Path) -> None:
    """Only the manager's memory has it, so its supervisor keeps it until it is recorded, or the manager is gone."""
    later = place / "later"
    with Spawner() as spawner:
        desk = Desk(place, spawner)
        supervisors = {}
        for job in ("lost", "recorded", "again"):
            desk.launch(job, ["sh", "-c", "sleep 0.1; exit 3"], status=later / job)
            supervisors[job] = desk.await_event(job, Started).supervisor_pid
            assert desk.await_event(job, Ended).status.code == 3 and spawner.unwritten(later / job)
        spawner.recorded(later / "recorded")
        assert all(lives(pid) for job, pid in supervisors.items() if job != "recorded")
        desk.launch("again", ["false"], status=later / "again")  # its next start is on record
        wait_until(lambda: not lives(supervisors["again"]), "its supervisor is not needed any more")
        wait_until(lambda: not lives(supervisors["recorded"]), "nor is this one")
        desk.seen.clear()
        assert desk.await_event("again", Ended).status.code == 1
        assert [spawner.unwritten(later / job) for job in supervisors] == [True, False, True]
        later.mkdir()
    wait_until(lambda: (later / "lost").exists() and (later / "again").exists(), "they are written")
    assert read_status(later / "lost").code == 3 and read_status(later / "again").code == 1
    assert not (later / "recorded").exists()


def test_a_status_that_nobody_could_be_told_is_written_later(place: Path) -> None:
    """Neither manager nor disk takes the status: the supervisor keeps it until one does."""
    fifo = place / "go"
    os.mkfifo(fifo)
    with Spawner() as spawner:
        desk = Desk(place, spawner)
        desk.launch(1, ["sh", "-c", f"read x < {fifo}; exit 3"],
                    status=place / "later" / "status")
        started = desk.await_event(1, Started)
    fifo.write_text("go\n")
    wait_until(lambda: not session_members(started.pid), "end of the job")
    wait_until(lambda: list(session_members(started.supervisor_pid))
               == [started.supervisor_pid], "end of the job")
    (place / "later").mkdir()
    wait_until(lambda: not desk.marker(1).exists(), "end of the marker")
    assert read_status(place / "later" / "status").code == 3


QUICK = """
from vrm.live.spawn import home
home.LOOK_EVERY = supervisor.RETRY_EVERY = 0.05
look = home.MarkerDirectory.look
def noted(self):
    with open({place!r}, "a") as file:
        file.write(".")
    return look(self)
home.MarkerDirectory.look = noted
"""
"""A supervisor that looks often for its run's directory, and leaves a note each time."""


def test_when_the_directory_of_a_run_without_a_manager_is_removed_its_jobs_end(place: Path) -> None:
    run, looks = place / "run", place / "looks"
    (run / "pids").mkdir(parents=True)
    other = "setsid sleep 600 & echo $! > other; "
    with Altered(QUICK.format(place=str(looks))) as spawner:
        desk = Desk(place, spawner)
        files = {"marker": run / "pids" / "1", "status": run / "pids" / "1.status"}
        desk.launch(1, ["sh", "-c", f"{other} sleep 600"], **files)
        started = desk.await_event(1, Started)
        left = wait_until(lambda: (place / "other").exists() and (place / "other").read_text(), "its child")
    supervised = [started.supervisor_pid, started.pid, int(left)]
    run.rename(place / "elsewhere")  # nobody has removed it
    wait_until(lambda: looks.exists() and looks.stat().st_size > 2 * home.LOOKS, "some looks")
    assert all(map(lives, supervised))
    shutil.rmtree(place / "elsewhere")
    wait_until(lambda: not any(map(lives, supervised)), "the end of all")


def test_a_directory_is_removed_when_looks_in_a_row_find_it_so(tmp_path: Path) -> None:
    folder = tmp_path / "file system" / "run" / "pids"
    folder.mkdir(parents=True)
    place = home.MarkerDirectory(os.fsencode(folder))
    assert not any(place.look() for _ in range(home.LOOKS))
    folder.rmdir()
    assert not any(place.look() for _ in range(home.LOOKS - 1))
    folder.mkdir()  # as a shared file system may show it
    assert not place.look()
    folder.rmdir()
    assert [place.look() for _ in range(home.LOOKS)] == [*[False] * (home.LOOKS - 1), True] and place.removed
    folder.parent.rmdir()
    assert place.look()
    folder.parent.parent.rmdir()  # not mounted
    assert not place.look() and not place.removed


def test_a_full_disk_has_room_for_the_status(place: Path) -> None:
    """The disk fills up while the job runs: the status goes where the marker was."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    go, disk = place / "go", place / "disk"
    os.mkfifo(go)
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)],
                             capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr}")
    try:
        with Spawner() as spawner:
            desk = Desk(place, spawner)
            desk.launch(1, ["sh", "-c", f"read x < {go}; exit 3"], marker=disk / "marker",
                        status=disk / "status")
            desk.await_event(1, Started)
            with pytest.raises(OSError, match="No space left"), \
                    open(disk / "filler", "wb", 0) as filler:
                while True:
                    filler.write(bytes(1000))
            go.write_text("go\n")
            event = desk.await_event(1, Ended)
            assert event.problem is None and event.status.code == 3
            assert not (disk / "marker").exists()
            assert read_status(disk / "status") is not None
            assert read_status(disk / "status").code == 3
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_large_environment_and_arguments(desk: Desk) -> None:
    env = {f"NAME_{i}": "v" * 1000 for i in range(100)}
    words = [f"{i}-" + "w" * 995 for i in range(100)]
    show = ("import os, sys\n"
            "values = [v for k, v in os.environ.items() if k.startswith('NAME_')]\n"
            "print(len(values), sum(map(len, values)), sum(map(len, sys.argv)))")
    status = desk.run("large", PYTHON + [show] + words, env=env)
    assert status.ok
    said = (desk.place / "large.o").read_text().split()
    assert list(map(int, said)) == [100, 100_000, sum(map(len, words)) + len("-c")]


def test_too_large_for_the_kernel(desk: Desk) -> None:
    desk.launch(1, ["true", "x" * 5_000_000])
    event = desk.await_event(1, LaunchFailed)
    assert event.message == "true: Argument list too long"


def test_odd_names_and_bytes(desk: Desk) -> None:
    odd = desk.place / "sp ace\n\udcff'\""
    odd.mkdir()
    program = "import os; print(os.listdir(b'.'), os.environb[b'ODD'])"
    desk.launch("id \"'\n", PYTHON + [program], cwd=odd, env={**ENV, "ODD": "\udcfe=\u00fc"},
                stdout=odd / "out", stderr=odd / "err", marker=odd / "marker",
                status=odd / "status")
    event = desk.await_event("id \"'\n", Ended)
    assert event.status.ok
    assert "b'\\xfe=\\xc3\\xbc'" in (odd / "out").read_text()
    assert read_status(odd / "status").ok
    desk.launch("x", [str(odd / "absent\udcff")])
    message = desk.await_event("x", LaunchFailed).message
    assert message.endswith("absent\\udcff: No such file or directory")


# What a job finds.

def test_signals_standard_input_and_descriptors(desk: Desk) -> None:
    """Nothing of the manager or the supervisor is inherited, whatever they block or ignore."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Spawner() as spawner:
            inner = Desk(desk.place, spawner)
            assert inner.run("signals", ["cat", "/proc/self/status"]).ok
    finally:
        signal.signal(signal.SIGHUP, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    said = dict(line.split(":\t") for line in
                (desk.place / "signals.o").read_text().splitlines() if line.startswith("Sig"))
    ours = sum(1 << (number - 1) for number in signal.valid_signals())  # not those of the C library
    assert int(said["SigBlk"], 16) == 0
    assert int(said["SigIgn"], 16) & ours == 0
    look = ("import os\n"
            "print(os.readlink('/proc/self/fd/0'))\n"
            "fd = os.open('/proc/self/fd', os.O_RDONLY)\n"
            "print(sorted(set(map(int, os.listdir(fd))) - {fd, fd + 1}))\n"
            "print(os.getpgrp() == os.getpid(), os.getsid(0) == os.getppid(), os.getcwd())\n")
    assert desk.python("look", look).splitlines() == [
        "/dev/null", "[0, 1, 2]", f"True True {desk.place}"]


def test_environment_is_exactly_the_one_asked_for(desk: Desk) -> None:
    assert desk.run("env", ["/usr/bin/env"], env={"ONLY": "this", "B": "x y"}).ok
    assert set((desk.place / "env.o").read_text().splitlines()) == {"ONLY=this", "B=x y"}


def test_a_name_is_found_along_the_path_of_the_request(desk: Desk) -> None:
    tool = desk.place / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    assert desk.run(1, ["tool"], env={"PATH": f"/nowhere:{tool.parent}"}).ok
    assert (desk.place / "1.o").read_text() == "found\n"
    desk.launch(2, ["tool"], env={"PATH": "/nowhere"})
    assert desk.await_event(2, LaunchFailed).message == "tool: No such file or directory"


def test_affinity_and_limits_reach_the_job_but_not_the_next(desk: Desk) -> None:
    look = ("import os, resource\n"
            "print(sorted(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_NOFILE)[0],"
            " resource.getrlimit(resource.RLIMIT_CORE)[0])")
    cpus = sorted(os.sched_getaffinity(0))
    said = desk.python(1, look, affinity=cpus[-1:], limits={"nofile": 123, "core": 0})
    assert said == f"{cpus[-1:]} 123 0\n"
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    assert desk.python(2, look) == f"{cpus} {OPEN_FILES} {core}\n"
    desk.launch(3, ["true"], limits={"nofile": 1 << 60})
    assert "limit nofile = " in desk.await_event(3, LaunchFailed).message


def test_outputs_are_emptied_appended_to_and_may_be_one(desk: Desk) -> None:
    (desk.place / "both").write_text("old " * 1000)
    status = desk.run(1, ["sh", "-c", "echo one; echo two >&2; echo three"],
                      stdout=desk.place / "both", stderr=desk.place / "both")
    assert status.ok
    assert (desk.place / "both").read_text() == "one\ntwo\nthree\n"


def test_relative_paths_are_those_of_the_manager(desk: Desk,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk.place)
    assert desk.run(1, ["pwd"], cwd=".", stdout="1.o", stderr="1.e", marker="pids/1",
                    status="ended/1").ok
    assert (desk.place / "1.o").read_text() == f"{desk.place}\n"


# The order of things.

def test_marker_stands_before_the_program_starts(desk: Desk) -> None:
    look = ("import json, os\n"
            f"marker = json.load(open({str(desk.marker(5))!r}))\n"
            "assert marker['pid'] == os.getppid(), marker\n"
            f"assert not os.path.exists({str(desk.status(5))!r})\n"
            "print(marker['id'], marker['host'] == os.uname().nodename)")
    assert desk.python(5, look) == "5 True\n"


def test_status_is_there_before_the_marker_goes(desk: Desk) -> None:
    desk.run("first", ["true"])  # from here on there is a supervisor that waits for a job
    for job in range(30):
        desk.launch(job, ["true"])
        while not desk.marker(job).exists() and not desk.status(job).exists():
            pass
        while desk.marker(job).exists():
            pass
        assert desk.status(job).exists()
        assert desk.end_of(job).ok


@pytest.mark.parametrize("text", ["", '{"id": 1, "pid": 5', "\0\0\0"])
def test_a_marker_that_a_dead_machine_left_in_part_hinders_nobody(desk: Desk, text: str) -> None:
    desk.marker(1).write_text(text)
    assert desk.run(1, ["true"]).ok and not desk.marker(1).exists()


def test_files_are_never_seen_half_written(desk: Desk) -> None:
    desk.run("first", ["true"])
    for job in range(30):
        desk.launch(job, ["true"])
        status = None
        while status is None:
            Marker.read(desk.marker(job))
            status = read_status(desk.status(job))
        assert status.ok
        desk.end_of(job)
    assert not [p.name for p in desk.place.rglob(".*")]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.slow
def test_many_at_once(desk: Desk, sync: bool) -> None:
    """A burst larger than any socket buffer; each job has its own status, no file stays open."""
    padding = {**ENV, "PADDING": "p" * 10_000}
    desk.run("first", ["true"])
    ours = len(os.listdir("/proc/self/fd"))
    for job in range(200):
        desk.launch(job, ["sh", "-c", f"exit {job}"], env=padding, sync=sync)
    wait_until(lambda: desk.collect() or sum(isinstance(e, Ended) for e in desk.seen) == 201,
               "200 ends")
    assert {e.id: e.status.code for e in desk.seen if isinstance(e, Ended) and e.id != "first"} \
        == {job: job for job in range(200)}
    # The supervisors that are left wait for the next jobs.
    wait_until(lambda: {state for _, state in children(desk.spawner.pid)} == {"S"},
               "no zombies")
    left = len(children(desk.spawner.pid))
    assert left <= KEPT + FORKS and len(os.listdir("/proc/self/fd")) <= ours + left
    wait_until(lambda: len(os.listdir(f"/proc/{desk.spawner.pid}/fd")) == 4,
               "the spawner has its standard files and its socket to the manager")
    assert not list((desk.place / "pids").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("program", [["true"], ["sleep", "600"]])
def test_with_a_start_comes_when_its_supervisor_was_started(desk: Desk, program: list[str]) -> None:
    """The number alone may be another's by the time that its session is looked at."""
    desk.launch(1, program)
    started = desk.await_event(1, Started)
    found = read_stat(started.supervisor_pid)  # it waits for the next job
    assert found is not None and found.pid.started == started.leader


def test_started_comes_before_ended_even_when_nobody_listens(desk: Desk) -> None:
    """Ends are recorded while the manager is busy."""
    go = desk.place / "go"
    for job in range(200):
        desk.launch(job, ["sh", "-c", f"while test ! -e {go}; do sleep 0.1; done"])
    wait_until(lambda: desk.collect() or sum(isinstance(e, Started) for e in desk.seen) >= 100,
               "100 starts")  # of the others some have started by now, and some have not
    go.touch()
    wait_until(lambda: sum(desk.status(job).exists() for job in range(200)) >= 100,
               "100 statuses")
    wait_until(lambda: desk.collect() or sum(isinstance(e, Ended) for e in desk.seen) == 200,
               "200 ends")
    for job in range(200):
        mine = [e for e in desk.seen if e.id == job]
        assert [type(e) for e in mine] == [Started, Ended]


def test_an_id_is_free_again_after_the_end(desk: Desk) -> None:
    assert desk.run(1, ["sh", "-c", "exit 3"]).code == 3
    desk.seen.clear()
    desk.launch(1, ["sleep", "600"])
    with pytest.raises(ValueError, match="job 1 lives already"):
        desk.launch(1, ["true"])
    started = desk.await_event(1, Started)
    assert not desk.status(1).exists()  # that of the first attempt
    os.kill(started.pid, signal.SIGTERM)
    assert desk.end_of(1).signal == signal.SIGTERM


def test_requests_that_are_refused(place: Path) -> None:
    spawner = Spawner()
    request = Desk(place, spawner).request(1, ["true"])
    for use in (lambda: spawner.launch(request), spawner.fileno, spawner.events):
        with pytest.raises(SpawnerError, match="not started"):
            use()
    with spawner:
        with pytest.raises(SpawnerError, match="runs already"):
            spawner.start()
        desk = Desk(place, spawner)
        with pytest.raises(ValueError, match="no program"):
            desk.launch(1, [])
        with pytest.raises(ValueError, match="no such limit"):
            desk.launch(1, ["true"], limits={"patience": 3})
        assert desk.run(1, ["true"]).ok
    spawner.close()


# Kills.

def test_supervisor_ignores_what_can_be_ignored(desk: Desk) -> None:
    desk.launch(1, ["sleep", "600"])
    started = desk.await_event(1, Started)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
                   signal.SIGUSR2, signal.SIGALRM, signal.SIGTSTP, signal.SIGXCPU):
        os.kill(started.supervisor_pid, signum)
    os.kill(started.pid, signal.SIGINT)
    assert desk.end_of(1).signal == signal.SIGINT


def test_a_killed_supervisor_is_told(desk: Desk) -> None:
    desk.launch(1, ["sleep", "600"])
    started = desk.await_event(1, Started)
    os.kill(started.supervisor_pid, signal.SIGKILL)
    event = desk.await_event(1, SupervisorLost)
    assert event == SupervisorLost(1, started.supervisor_pid, started.leader)
    assert session_members(started.supervisor_pid) == [started.pid]
    marker = Marker.read(desk.marker(1))
    assert marker is not None and marker.alive() is False
    # The same job may be launched again: late news of the first attempt is not mistaken.
    desk.seen.clear()
    assert desk.run(1, ["true"]).ok


def test_killed_between_recording_and_renaming(desk: Desk) -> None:
    """The status is found where the supervisor had to leave it: a directory is in its way."""
    go = desk.place / "go"
    os.mkfifo(go)
    with Spawner() as spawner:
        inner = Desk(desk.place, spawner)
        # Not through launch(), which removes what is in the way of the status.
        request = inner.request(1, ["sh", "-c", f"read x < {go}; exit 3"],
                                status=desk.place / "ended")
        packed = request.packed()
        spawner._live.add(1)
        spawner._waiting.append(_Launch(request, len(packed).to_bytes(4, "little") + packed))
        started = inner.await_event(1, Started)
    assert read_status(desk.marker(1)) is None
    go.write_text("go\n")  # no manager, no room for the status: the supervisor tries again
    wait_until(lambda: read_status(desk.marker(1)), "status in the marker")
    os.kill(started.supervisor_pid, signal.SIGKILL)
    assert read_status(desk.marker(1)).code == 3
    assert Marker.read(desk.marker(1)).pid == started.supervisor_pid


def test_a_job_deaf_to_sigterm_is_ended(desk: Desk) -> None:
    """With children in groups of their own; the supervisor is spared and records the end."""
    deaf = ("import os, signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "for _ in range(3):\n"
            "    if not os.fork():\n"
            "        os.setpgid(0, 0)\n"
            "        os.write(1, b'x')\n"
            "        break\n"
            "time.sleep(600)")
    desk.launch(1, PYTHON + [deaf])
    started = desk.await_event(1, Started)
    sid = started.supervisor_pid
    wait_until(lambda: (desk.place / "1.o").read_text() == "xxx", "start of the children")
    assert len(session_members(sid)) == 5
    ending = SessionEnding(sid, grace=5, spare={sid})
    assert not ending.poll(0.0) and not ending.killed
    assert set(session_members(sid)) == {sid, *ending.remaining}
    assert not ending.poll(5.0) and ending.killed
    assert desk.end_of(1).describe() == "killed by signal 9 (SIGKILL)"
    wait_until(lambda: ending.poll(6.0), "end of the session")


def opened(folder: str) -> list[str]:
    """What a process has open; nothing where it is just opening or closing something."""
    try:
        return sorted(os.readlink(f"{folder}/{fd}").split(":")[0] for fd in os.listdir(folder))
    except OSError:
        return []


def test_a_supervisor_holds_nothing_that_is_not_its_own(desk: Desk) -> None:
    """No pipe, terminal or lock of the manager: null, the socket of events, and the directory of markers."""
    lock = os.open(desk.place / "lock", os.O_RDWR | os.O_CREAT)
    try:
        with Spawner(hold=[lock]) as spawner:
            inner = Desk(desk.place, spawner)
            for job in (1, 2):
                inner.launch(job, ["sleep", "600"])
            for job in (1, 2):
                started = inner.await_event(job, Started)
                folder = f"/proc/{started.supervisor_pid}/fd"
                wait_until(lambda: opened(folder) == [*["/dev/null"] * 3, str(desk.place / "pids"), "socket"],
                           "release of the rest")
                assert os.readlink(f"/proc/{started.supervisor_pid}/cwd") == "/"
            end_sessions(inner.sessions)
            for job in (1, 2):
                assert inner.end_of(job).signal == signal.SIGKILL
    finally:
        os.close(lock)


@pytest.mark.slow
def test_a_killed_spare_takes_no_job_along(desk: Desk) -> None:
    """It may have read the request, or a part of it: the job goes to another."""
    desk.launch("running", ["sleep", "600"])
    running = desk.await_event("running", Started)
    for job in range(20):
        spares = [pid for pid, _ in children(desk.spawner.pid) if pid != running.supervisor_pid]
        for pid in spares:
            signal_process(pid, signal.SIGKILL)
        desk.launch(job, ["true"])
        assert desk.end_of(job).ok
    assert not [e for e in desk.seen if isinstance(e, (SpawnerLost, SupervisorLost))]
    os.kill(running.pid, signal.SIGKILL)
    assert desk.end_of("running").signal == signal.SIGKILL


def test_a_job_that_no_supervisor_lives_to_begin_is_lost(place: Path) -> None:
    with Altered("supervisor.supervise = lambda *words: os.kill(os.getpid(), 9)") as spawner:
        desk = Desk(place, spawner)
        desk.launch(1, ["true"])
        assert isinstance(desk.await_event(1, Ended, SupervisorLost), SupervisorLost)
        desk.launch(1, ["true"])  # its id is free again


def test_a_supervisor_takes_one_job_after_another(desk: Desk) -> None:
    supervisors = set()
    for job in range(20):
        status = desk.run(job, ["sh", "-c", f"exit {job}"])
        assert status.code == job
        ended = desk.await_event(job, Ended)
        assert ended.clean
        supervisors.add(desk.await_event(job, Started).supervisor_pid)
    assert len(supervisors) <= 2 and len(children(desk.spawner.pid)) <= 2


DAEMON = """
import os, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        print(os.getpid(), flush=True)
        time.sleep({seconds})
        os._exit(0)
    os._exit(0)
os.wait()
while not os.path.getsize("{output}"): pass
"""
"""Leaves a process in a session of its own whose parent has ended."""


def test_what_a_job_leaves_behind_is_never_taken_for_a_part_of_the_next(desk: Desk) -> None:
    for job in ("a", "b"):
        pid = int(desk.python(job, DAEMON.format(seconds=600, output=desk.place / f"{job}.o")))
        assert os.getsid(pid) != desk.await_event(job, Started).supervisor_pid
        assert not desk.await_event(job, Ended).clean
        os.kill(pid, signal.SIGKILL)
    assert desk.await_event("a", Started).supervisor_pid != \
        desk.await_event("b", Started).supervisor_pid


def test_what_has_ended_before_its_job_is_not_left_behind(desk: Desk) -> None:
    """Nor do its remains stay with the supervisor while the job runs."""
    desk.launch(1, PYTHON + [DAEMON.format(seconds=0, output=desk.place / "1.o") + BLOCK])
    started = desk.await_event(1, Started)
    pid = int(wait_until((desk.place / "1.o").read_text, "a daemon"))
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the daemon is collected")
    os.kill(started.pid, signal.SIGKILL)
    assert desk.end_of(1).signal == signal.SIGKILL and desk.await_event(1, Ended).clean


def test_without_a_subreaper_each_job_has_its_own_supervisor(place: Path) -> None:
    """Where Python has no ctypes nobody can know what a job has left."""
    with Altered("sys.modules['ctypes'] = None") as spawner:
        desk = Desk(place, spawner)
        for job in range(3):
            assert desk.run(job, ["true"]).ok
            assert not desk.await_event(job, Ended).clean
        assert len({desk.await_event(job, Started).supervisor_pid for job in range(3)}) == 3


def test_a_recorded_status_becomes_the_marker_of_a_later_job(desk: Desk) -> None:
    """No job costs a file, and none is mistaken for another, nor for its own earlier start."""
    inodes = set()
    for turn in range(5):
        for job, code in ((1, turn), (2, 100 + turn)):
            assert desk.run(job, ["sh", "-c", f"exit {code}"]).code == code
        inodes |= {desk.status(job).stat().st_ino for job in (1, 2)}
        desk.seen.clear()
        for job in (1, 2, 2):
            desk.spawner.recorded(desk.status(job))
            assert not desk.status(job).exists()
    assert len(inodes) == 2
    for job in range(KEPT + 5):
        assert desk.run(job, ["true"]).ok
    for job in range(KEPT + 5):
        desk.spawner.recorded(desk.status(job))
    assert len(list((desk.place / "ended").iterdir())) == KEPT
    desk.spawner.close()
    assert not list((desk.place / "ended").iterdir())


def test_nothing_of_the_earlier_job_is_left_in_a_marker(desk: Desk) -> None:
    """Its file keeps its block on the disk: it is written over and cut."""
    desk.run("a job with a long name", ["sh", "-c", "exit 3"])
    desk.spawner.recorded(desk.status("a job with a long name"))
    old, = (desk.place / "ended").iterdir()
    inode = old.stat().st_ino
    desk.launch(2, ["sleep", "600"])
    started = desk.await_event(2, Started)
    assert desk.marker(2).stat().st_ino == inode
    marker, = desk.marker(2).read_text().splitlines()
    assert json.loads(marker)["id"] == 2
    os.kill(started.pid, signal.SIGKILL)
    desk.await_event(2, Ended)
    assert [json.loads(line)["id"] for line in desk.status(2).read_text().splitlines()] == [2, 2]


def test_a_file_for_a_marker_that_is_gone_is_not_missed(desk: Desk) -> None:
    desk.run(1, ["true"])
    desk.spawner.recorded(desk.status(1))
    old, = (desk.place / "ended").iterdir()
    old.unlink()
    assert desk.run(2, ["sh", "-c", "exit 3"]).code == 3


def test_outputs_of_the_next_job_are_made_while_one_runs(desk: Desk) -> None:
    """They are empty files until a job gets them; who is in their way is left alone."""
    def prepared() -> list[str]:
        return sorted(path.name.rpartition(".")[2] for path in desk.place.glob(".vrm-*"))

    desk.launch("a", ["sh", "-c", "echo a; echo A >&2; exec sleep 600"])
    started = desk.await_event("a", Started)
    assert isinstance(started, Started)
    wait_until(lambda: desk.collect() or desk.spawner._idle, "the next one to fork is there")
    wait_until(lambda: prepared() == ["e", "o"], "two files")
    inodes = {path.stat().st_ino for path in desk.place.glob(".vrm-*")}
    os.killpg(started.pid, signal.SIGKILL)
    desk.end_of("a")
    (desk.place / "b.e").write_text("old")
    assert desk.run("b", ["sh", "-c", "echo b; echo B >&2"]).ok
    assert desk.await_event("b", Started).supervisor_pid == started.supervisor_pid
    assert (desk.place / "b.o").stat().st_ino in inodes
    assert (desk.place / "b.e").stat().st_ino not in inodes
    assert [(desk.place / name).read_text() for name in ("a.o", "a.e", "b.o", "b.e")] == \
        ["a\n", "A\n", "b\n", "B\n"]
    assert len(prepared()) == 1
    desk.spawner.close()
    wait_until(lambda: not prepared(), "what nobody needs is removed")


def test_a_manager_may_have_a_file_for_each_supervisor(desk: Desk) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(hard, FILES)
    desk.spawner.close()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == OPEN_FILES


def test_a_killed_spawner_is_told_and_can_be_replaced(desk: Desk) -> None:
    go = desk.place / "go"
    os.mkfifo(go)
    desk.launch(1, ["sh", "-c", f"read x < {go}; exit 3"])
    desk.await_event(1, Started)
    number = desk.spawner.pid
    os.kill(number, signal.SIGSTOP)
    for job in range(2, 30):
        desk.launch(job, ["true"])
    os.kill(number, signal.SIGKILL)
    event = desk.await_event(None, SpawnerLost)
    # A spare needs no spawner, and takes one job after another meanwhile.
    begun = {e.id for e in desk.seen if isinstance(e, (Started, Ended))} - {1}
    assert event.unstarted and begun <= set(range(2, event.unstarted[0]))
    assert event.unstarted == tuple(range(event.unstarted[0], 30))
    assert event.message == f"the process that starts jobs (pid {number}) was killed by signal 9"
    assert desk.spawner.pid is None
    desk.launch(30, ["true"])
    go.write_text("go\n")
    assert desk.end_of(1).code == 3  # told by its supervisor, which needs no spawner
    desk.spawner.start()
    for job in range(2, 31):
        assert desk.end_of(job).ok
    assert [e.id for e in desk.seen if isinstance(e, Started)].count(30) == 1


def test_spawner_killed_at_any_moment_loses_and_repeats_nothing(desk: Desk) -> None:
    """Every program notes that it ran: each must have run once, also across replacements."""
    ran = desk.place / "ran"
    ran.mkdir()
    jobs = 120
    for job in range(jobs):
        desk.launch(job, ["sh", "-c", f"echo x >> {ran}/{job}"])
    kills = 0
    while True:
        desk.collect()
        ends = sum(isinstance(e, Ended) for e in desk.seen)
        if isinstance(desk.seen[-1] if desk.seen else None, SpawnerLost):
            desk.spawner.start()
            desk.seen.append(Started("replaced", 0, 0))
        elif desk.spawner.pid is not None and kills < 10 and ends >= 10 * kills:
            kills += 1
            os.kill(desk.spawner.pid, signal.SIGKILL)
        if ends == jobs:
            break
        assert not [e for e in desk.seen if isinstance(e, (SupervisorLost, LaunchFailed))]
    assert kills > 1
    assert [(ran / str(job)).read_text() for job in range(jobs)] == ["x\n"] * jobs


def test_no_process_for_a_supervisor(place: Path) -> None:
    """A `fork` that fails: each job is told, the spawner goes on."""
    with Altered("def fail(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
                 "os.fork = fail\n") as spawner:
        desk = Desk(place, spawner)
        for job in range(3):
            desk.launch(job, ["true"])
            assert desk.await_event(job, LaunchFailed).message == \
                "no process for its supervisor: Resource temporarily unavailable"


def test_a_spawner_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(SpawnerError, match="cannot start /no/such/python: No such file"):
        Spawner().start()
    assert len(os.listdir("/proc/self/fd")) == before


def turned(data: bytes, place: int) -> bytes:
    """The data with another byte at that place, whatever is there."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1:]


@pytest.mark.parametrize("change, taken", [
    (lambda data: data, True),
    (lambda data: turned(data, 8), False),   # of a source of another time
    (lambda data: turned(data, 12), False),  # of another size
    (lambda data: turned(data, 0), False),   # by another Python
    (lambda data: b"", False)])
def test_only_the_right_compiled_program_is_run(place: Path, monkeypatch: pytest.MonkeyPatch,
                                                change: Callable[[bytes], bytes],
                                                taken: bool) -> None:
    """A copied tree may hold what was compiled from an earlier state of the source."""
    folder = place / "program"
    folder.mkdir()
    for source in (*Path(supervisor.__file__).parent.glob("*.py"), *Path(wire.__file__).parent.glob("*.py")):
        shutil.copy2(source, folder)
    source = folder / "supervisor.py"
    compiled = Path(py_compile.compile(
        str(source), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP))
    compiled.write_bytes(change(compiled.read_bytes()))
    before = compiled.read_bytes()
    monkeypatch.setattr(run_supervisors, "__file__", str(folder / "run_supervisors.py"))
    with Spawner() as spawner:
        assert Desk(place, spawner).run(1, ["true"]).ok
    assert (compiled.read_bytes() == before) is taken


MANAGER = """
import fcntl, os, select, sys
sys.path[:0] = {path!r}
from vrm.live.spawn.spawner import *
place, count, argv = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
lock = os.open(place + "/lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
with Spawner(hold=[lock]) as spawner:
    print(spawner.pid, flush=True)
    for job in range(count):
        spawner.launch(LaunchRequest(job, argv, dict(os.environ), place, f"{{place}}/{{job}}.o",
            f"{{place}}/{{job}}.e", f"{{place}}/pids/{{job}}", f"{{place}}/ended/{{job}}"))
    while True:
        select.select([spawner], [], [])
        for event in spawner.events():
            if isinstance(event, Started):
                print(event.id, event.supervisor_pid, event.pid, flush=True)
"""


def start_manager(place: Path, count: int, argv: Sequence[str]) -> subprocess.Popen:
    """A manager in a process of its own, that can be killed."""
    return subprocess.Popen(
        [sys.executable, "-c", MANAGER.format(path=sys.path), str(place), str(count), *argv],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_status_survives_the_manager(place: Path) -> None:
    """Manager and spawner die by kill -9, the job's end is still on record, and nothing keeps
    the pipes open on which somebody may wait for the manager's end."""
    go = place / "go"
    os.mkfifo(go)
    manager = start_manager(place, 1, ["sh", "-c", f"read x < {go}; exit 3"])
    spawner = int(manager.stdout.readline())
    _job, supervisor, pid = map(int, manager.stdout.readline().split())
    manager.kill()
    out, err = manager.communicate(timeout=LIMIT)
    assert (out, err) == ("", "")
    wait_until(lambda: not session_members(spawner), "end of the spawner")
    marker = Marker.read(place / "pids" / "0")
    assert marker is not None and marker.pid == supervisor and marker.alive() is True
    assert read_status(place / "ended" / "0") is None
    assert set(session_members(supervisor)) == {supervisor, pid}
    go.write_text("go\n")
    wait_until(lambda: not (place / "pids" / "0").exists(), "end of the marker")
    assert read_status(place / "ended" / "0").code == 3
    wait_until(lambda: not session_members(supervisor), "end of the supervisor")
    assert marker.alive() is False


@pytest.mark.parametrize("after", [1, 5, 20, 60])
@pytest.mark.slow
def test_the_lock_is_free_when_no_launch_is_under_way(place: Path, after: int) -> None:
    """Kill a manager with launches in flight: once its lock is free, none begins any more."""
    manager = start_manager(place, 100, ["sleep", "600"])
    manager.stdout.readline()
    for _ in range(after):
        manager.stdout.readline()
    manager.kill()
    lock = os.open(place / "lock", os.O_RDWR)
    try:
        end = time.monotonic() + LIMIT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < end
        markers = {p.name: Marker.read(p) for p in (place / "pids").iterdir()}
        manager.communicate(timeout=LIMIT)
        assert len(markers) >= after
        for marker in markers.values():
            assert marker.alive() is True
            assert len(session_members(marker.pid)) == 2
        end_sessions([marker.pid for marker in markers.values()])
        wait_until(lambda: not list((place / "pids").iterdir()), "end of the markers")
        assert {p.name for p in (place / "ended").iterdir()} == set(markers)
    finally:
        os.close(lock)
        end_sessions([m.pid for m in map(Marker.read, (place / "pids").iterdir()) if m])


def test_a_supervisor_that_only_has_an_end_to_write_does_not_keep_its_job_from_the_next_start(place: Path) -> None:
    """Nobody has recorded that end: the journal says that the job waits (seed 795823061072 of the world)."""
    with Spawner() as first:
        desk = Desk(place, first)
        desk.launch(1, ["sh", "-c", "sleep 0.1; exit 3"], status=place / "missing" / "status")
        old = desk.await_event(1, Started).supervisor_pid
        desk.await_event(1, Ended)
    assert lives(old) and desk.marker(1).exists()
    with Spawner() as second:
        again = Desk(place, second)
        assert again.run(1, ["true"]).ok and not lives(old)


def test_a_live_marker_is_not_launched_again(place: Path) -> None:
    with Spawner() as first:
        desk = Desk(place, first)
        desk.launch(1, ["sleep", "600"])
        started = desk.await_event(1, Started)
    with Spawner() as second:
        again = Desk(place, second)
        with pytest.raises(ValueError, match=f"runs already, as process {desk.sessions[0]} on"):
            again.launch(1, ["true"])
        os.kill(started.pid, signal.SIGKILL)
        wait_until(lambda: not again.marker(1).exists(), "end of the marker")
        assert again.run(1, ["true"]).ok


# The files.

def test_marker_of_another_process_boot_or_host(desk: Desk) -> None:
    desk.launch(1, ["sleep", "600"])
    desk.await_event(1, Started)
    path = desk.marker(1)
    values: dict[str, object] = json.loads(path.read_text())
    for change, alive in [({}, True), ({"started": 1}, False), ({"pid": 2 ** 22 + 1}, False),
                          ({"boot": "another"}, False), ({"host": "another"}, None)]:
        other = desk.place / "changed"
        other.write_text(json.dumps({**values, **change}) + "\n")
        assert Marker.read(other).alive() is alive
    assert Marker.read(desk.place / "absent") is None


@pytest.mark.parametrize("text", ["", "{", "{\n", "[]\n", "{}\n{}\n", "\0" * 100, "\0\n",
                                  "\udcff\n"])
def test_damaged_files_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "7"
    path.write_bytes(text.encode(errors="surrogateescape"))
    for read in (read_status, Marker.read):
        with pytest.raises(RecordError, match=str(path)):
            read(path)
    with pytest.raises(RecordError, match="is a directory"):
        read_status(tmp_path)
