"""A manager continues what another one has begun. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.executor import Agents, Jobs, Managed, OtherSession, other, root, states  # noqa: F401
from vrm.results.jobs import read_jobs
from vrm.system.processes import read_stat


def test_another_manager_goes_on_with_the_run(root: Path) -> None:
    """A job that was decided and of which nothing is there was not launched: it waits again."""
    before = Managed(root, "ok.x 4 9 0", "ok.x 1 9 0 hold=1", "ok.x 1 9 0")
    before.start(1.0)
    before.end(2, 2.0)
    before.close()
    managed = Managed(root, now=3.0)
    assert states(managed) == ["queued", "queued", "completed"] and "continuing the run of 3 job(s)" in managed.said[0]
    managed.turn(3.0)
    assert states(managed) == ["running", "queued", "completed"]
    assert [row.id for row in read_jobs(managed.run.jobs)] == [2]
    managed.close()


def test_a_refusal_that_the_death_of_the_machine_kept_out_of_the_journal_is_made_again(root: Path) -> None:
    before = Managed(root, "ok.x 99 9 0")
    assert states(before) == ["refused"]
    before.close()
    path = before.run.journal
    lines = path.read_bytes().partition(b"\0")[0].splitlines(keepends=True)
    assert b'"refused"' in lines[-1] and b'"event":"job"' in lines[-2]
    path.write_bytes(b"".join(lines[:-1]))
    managed = Managed(root, now=2.0)
    assert states(managed) == ["refused"]
    managed.close()


def test_the_first_record_of_a_journal_is_on_disk_before_there_is_another(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a crash leaves behind it is known as such."""
    synced, sync = list[bytes](), os.fdatasync

    def noted(number: int) -> None:
        sync(number)
        synced.append(os.pread(number, 1 << 20, 0).partition(b"\0")[0])
    monkeypatch.setattr(os, "fdatasync", noted)
    managed = Managed(root, "ok.x 1 9 0")
    managed.turn(1.0)
    assert [json.loads(line)["event"] for line in synced[0].splitlines()] == ["run"]
    assert b'"event":"start"' in synced[-1]
    managed.close()


def test_a_job_that_runs_has_its_cores_and_not_one_whose_end_was_not_recorded(root: Path) -> None:
    """The manager before had given them away when it was killed."""
    before = Managed(root, "ok.x 4 9 0 nodes=1", "ok.x 4 9 0 nodes=1", "ok.x 4 9 0 nodes=1", Nodes=1)
    before.start(1.0)
    before.live.state.release_cores(0)  # it has ended
    del before.live.running[0]
    before.start(2.0)
    assert before.found.count("start") == 2
    before.close()
    here, leader = before.live.place, read_stat(os.getpid())
    assert leader is not None
    for job, pid, started in ((0, 1 << 22, 1), (1, os.getpid(), leader.pid.started)):
        before.run.marker(job).write_text(json.dumps({
            "id": job, "pid": pid, "started": started, "boot": here.boot, "host": here.host, "time": 0.0}) + "\n")
    status = {"code": 0, "signal": None, "error": None, "start": 1.0, "end": 2.0, "user": 0.0, "system": 0.0, "maxrss": 0, "duration": 1.0}
    before.run.marker(0).rename(before.run.status(0))
    with before.run.status(0).open("a") as file:
        file.write(json.dumps({"id": 0, **status}) + "\n")
    managed = Managed(root, now=3.0, Nodes=1)
    managed.manager.recovery.look(3.0, True)
    assert managed.live.running[1].former is None and managed.live.cluster.bookings.keys() == {1}
    assert states(managed) == ["completed", "running", "queued"]
    managed.close()


def test_nodes_are_swept_of_what_the_manager_before_may_have_left_and_what_it_had_started_starts_nowhere_before(
        root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker of a job may have gone with the manager's machine."""
    swept = list[tuple[list[int], list[int]]]()
    monkeypatch.setattr(Agents, "sweep_others", lambda watch, jobs, doubted: swept.append((sorted(jobs), sorted(doubted))))
    before = Managed(root, "ok.x 1 9 0", "ok.x 1 9 0", "ok.x 1 9 0 hold=1")
    before.start(1.0)
    before.close()
    here, leader = before.live.place, read_stat(os.getpid())
    assert not swept and leader is not None
    before.run.marker(1).write_text(json.dumps({
        "id": 1, "pid": os.getpid(), "started": leader.pid.started, "boot": here.boot, "host": here.host, "time": 0.0}) + "\n")
    managed = Managed(root, now=2.0)
    assert swept == [([1], [0])] and states(managed) == ["queued", "running", "queued"]
    managed.close()


def test_what_nobody_has_seen_end_starts_nowhere_before_the_nodes_are_swept_even_if_another_manager_was_killed_meanwhile(
        root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The death of the manager's machine has taken the marker of one job, and a part of that of another."""
    before = Managed(root, "ok.x 1 9 0", "ok.x 1 9 0", "ok.x 1 9 0", "ok.x 1 9 0 hold=1")
    before.start(1.0)
    before.end(0, 1.5)
    before.start(2.0)
    before.close()
    before.run.marker(2).write_bytes(bytes(80))
    then = Managed(root, now=3.0)
    assert states(then) == ["completed", "queued", "queued", "queued"] and any("#2 ok.x waits again" in text for text in then.said)
    then.close()
    doubted = list[list[int]]()
    monkeypatch.setattr(Agents, "sweep_others", lambda watch, jobs, ids: doubted.append(sorted(ids)))
    managed = Managed(root, now=4.0)
    assert states(managed) == ["completed", "queued", "queued", "queued"] and doubted == [[1, 2]]
    managed.close()


def test_what_the_manager_before_was_to_end_is_ended_by_the_next_one(root: Path, other: OtherSession) -> None:
    before = Managed(root, "ok.x 1 9 0", Grace=0)
    before.start(1.0)
    before.manager.ends.end_job(before.live.running[0], "cancel")
    before.close()
    here = before.live.place
    before.run.marker(0).write_text(json.dumps({
        "id": 0, "pid": other.sid, "started": other.started, "boot": here.boot, "host": here.host, "time": 0.0}) + "\n")
    managed = Managed(root, now=2.0, Grace=0)
    assert managed.live.running[0].intent == "cancel" and not other.lives()
    managed.close()


def test_what_is_on_its_way_to_start_has_the_lock_of_the_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody has it while a job of this manager may still start."""
    class Entered(Exception):
        """The spawner is used from now on."""

    locks = list[str]()

    def enter(jobs: Jobs) -> Jobs:
        locks.extend(os.readlink(f"/proc/self/fd/{number}") for number in jobs.hold)
        raise Entered
    managed = Managed(root)
    managed.close()
    monkeypatch.setattr(Jobs, "__enter__", enter)
    with pytest.raises(Entered):
        managed.manager.run()
    assert locks == [str(managed.run.lock)]


def test_a_job_that_the_manager_before_has_started_has_its_limit(root: Path, other: OtherSession) -> None:
    before = Managed(root, "ok.x 1 9 0", Grace=0, Walltime="kill")
    before.start(1.0)
    before.close()
    here = before.live.place
    before.run.marker(0).write_text(json.dumps({
        "id": 0, "pid": other.sid, "started": other.started, "boot": here.boot, "host": here.host, "time": 0.0}) + "\n")
    managed = Managed(root, now=2.0, Grace=0, Walltime="kill")
    managed.manager.recovery.look(2.0, True)
    managed.manager.ends.look(9.0, False)
    assert not managed.live.running[0].intent and other.lives()
    managed.manager.ends.look(10.0, False)
    assert managed.live.running[0].intent == "timeout" and not other.lives()
    managed.close()


def test_a_job_that_has_ended_in_time_is_not_reported_as_too_long(root: Path) -> None:
    """It ended while no manager ran, and its limit is over when the next one begins."""
    before = Managed(root, "ok.x 1 9 0", Walltime="kill")
    before.start(1.0)
    before.close()
    leave_end(before, 0)
    managed = Managed(root, now=20.0, Walltime="kill")
    managed.turn(20.0, files=True)
    managed.turn(21.0, files=True)
    assert states(managed) == ["completed"] and "estimate" not in "".join(managed.said)
    managed.close()


def leave_end(managed: Managed, job: int) -> None:
    """What the supervisor of a job leaves that has ended well."""
    here = managed.live.place
    marker = {"id": job, "pid": 1 << 22, "started": 1, "boot": here.boot, "host": here.host, "time": 0.0}
    status = {"id": job, "code": 0, "signal": None, "error": None, "start": 1.0, "end": 2.0, "user": 0.0, "system": 0.0, "maxrss": 0,
              "duration": 1.0}
    managed.run.status(job).write_text(f"{json.dumps(marker)}\n{json.dumps(status)}\n")


def leave_marker(managed: Managed, job: int, session: OtherSession) -> None:
    """What the supervisor of a job leaves that runs, in this session."""
    here = managed.live.place
    managed.run.marker(job).write_text(json.dumps({
        "id": job, "pid": session.sid, "started": session.started, "boot": here.boot, "host": here.host, "time": 0.0}) + "\n")


def test_who_has_borrowed_and_ended_has_no_cores_of_its_lender_any_more(root: Path) -> None:
    """Nor has an earlier one, whose end was not recorded (seed 795848797857 of the world): they were free for two others."""
    malleable = "ok.x 1 9 0 cores=4 malleable=1"
    before = Managed(root, "ok.x 4 9 0", malleable, malleable, "ok.x 4 9 0", "ok.x 1 9 0", Nodes=1)
    record = before.live.journal.append
    record("start", id=0, time=1.0, backfilled=False, placement={"taken": "0xf", "procs": 4, "width": 1})
    record("start", id=1, time=2.0, backfilled=False, placement={"taken": "0xf", "procs": 1, "width": 4})
    record("lend", number=1, id=1, to=2, cores="0x8", time=2.0, until=20.0)
    record("lent", number=1, id=1, time=2.0)
    record("start", id=2, time=2.0, backfilled=False, placement={"taken": "0x8", "procs": 1, "width": 1, "lent": [[1, "0x8"]]})
    record("end", id=1, time=3.0, state="completed", reason="", exit_code=0, ran=None)
    before.close()
    for job in (0, 2):
        leave_end(before, job)
    managed = Managed(root, now=4.0, Nodes=1)
    recovery, running = managed.manager.recovery, managed.live.running
    assert running.keys() == {0, 2} and managed.live.cluster.count_free() == 0
    recovery._look_at_marker(running[2])
    managed.start(4.0)
    assert [request.id for request in managed.jobs.launched] == [3] and managed.live.cluster.count_free() == 0
    recovery._look_at_marker(running[0])
    managed.start(5.0)
    assert [request.id for request in managed.jobs.launched] == [3] and managed.live.cluster.count_free() == 0
    managed.close()


def test_a_job_has_the_cores_of_an_ended_one_that_had_lent_some_to_nobody(root: Path, other: OtherSession) -> None:
    """The end was not recorded, as the verdict on a failure is held back (seed 795915333375 of the world)."""
    before = Managed(root, "ok.x 1 9 0 cores=4 malleable=1", "ok.x 4 9 0", Nodes=1)
    record = before.live.journal.append
    record("start", id=0, time=1.0, backfilled=False, placement={"taken": "0xf", "procs": 1, "width": 4})
    record("lend", number=1, id=0, to=None, cores="0xc", time=1.0, until=None)
    record("lent", number=1, id=0, time=1.0)
    record("start", id=1, time=2.0, backfilled=False, placement={"taken": "0xf", "procs": 4, "width": 1})
    before.close()
    leave_end(before, 0)
    leave_marker(before, 1, other)
    managed = Managed(root, now=3.0, Nodes=1)
    managed.manager.recovery.look(3.0, True)
    assert managed.live.running[1].former is None and managed.live.cluster.bookings.keys() == {1}
    assert states(managed) == ["completed", "running"]
    managed.close()


def test_a_job_has_a_node_of_an_ended_lender_whose_borrower_runs_on_another(root: Path, other: OtherSession) -> None:
    """The end of the lender was not recorded; its borrower and the job that got its other node go on."""
    before = Managed(root, "ok.x 2 9 0 cores=4 malleable=1", "ok.x 2 9 0", "ok.x 4 9 0")
    record = before.live.journal.append
    record("start", id=0, time=1.0, backfilled=False, placement={"taken": "0xff", "procs": 2, "width": 4})
    record("lend", number=1, id=0, to=1, cores="0xc", time=1.0, until=None)
    record("lent", number=1, id=0, time=1.0)
    record("start", id=1, time=1.0, backfilled=False, placement={"taken": "0xc", "procs": 2, "width": 1, "lent": [[0, "0xc"]]})
    record("start", id=2, time=2.0, backfilled=False, placement={"taken": "0xf0", "procs": 4, "width": 1})
    before.close()
    leave_end(before, 0)
    for job in (1, 2):
        leave_marker(before, job, other)
    managed = Managed(root, now=3.0)
    managed.manager.recovery.look(3.0, True)
    assert all(managed.live.running[job].former is None for job in (1, 2)) and managed.live.cluster.bookings.keys() == {1, 2}
    assert states(managed) == ["completed", "running", "running"]
    managed.close()


def test_a_borrower_keeps_its_cores_where_its_lender_was_not_started(root: Path, other: OtherSession) -> None:
    """The supervisor of the lender was killed before it began; the lender waits again (seed 795933676993 of the world)."""
    before = Managed(root, "ok.x 1 9 0 cores=4 malleable=1", "ok.x 2 9 0", Nodes=1)
    record = before.live.journal.append
    record("start", id=0, time=1.0, backfilled=False, placement={"taken": "0xf", "procs": 1, "width": 4})
    record("lend", number=1, id=0, to=1, cores="0xc", time=1.0, until=None)
    record("lent", number=1, id=0, time=1.0)
    record("start", id=1, time=1.0, backfilled=False, placement={"taken": "0xc", "procs": 2, "width": 1, "lent": [[0, "0xc"]]})
    before.close()
    leave_marker(before, 1, other)
    managed = Managed(root, now=3.0, Nodes=1)
    assert managed.live.running[1].former is None and states(managed) == ["queued", "running"]
    managed.close()


def test_a_job_has_the_cores_of_a_lender_whose_supervisor_was_killed(root: Path, other: OtherSession) -> None:
    """The manager had ended the rest of the lender; its borrower had its cores until it ended, too (seed 795934978646 of the world)."""
    malleable = "ok.x 1 9 0 cores=4 malleable=1"
    before = Managed(root, malleable, malleable, "ok.x 4 9 0", Nodes=1)
    record = before.live.journal.append
    record("start", id=0, time=1.0, backfilled=False, placement={"taken": "0xf", "procs": 1, "width": 4})
    record("lend", number=1, id=0, to=1, cores="0x8", time=1.0, until=20.0)
    record("lent", number=1, id=0, time=1.0)
    record("start", id=1, time=1.0, backfilled=False, placement={"taken": "0x8", "procs": 1, "width": 1, "lent": [[0, "0x8"]]})
    record("end", id=1, time=3.0, state="completed", reason="", exit_code=0, ran=None)
    record("start", id=2, time=3.0, backfilled=False, placement={"taken": "0xf", "procs": 4, "width": 1})
    before.close()
    leave_marker(before, 2, other)
    here = before.live.place
    before.run.marker(0).write_text(json.dumps({
        "id": 0, "pid": 1 << 22, "started": 1, "boot": here.boot, "host": here.host, "time": 0.0}) + "\n")
    managed = Managed(root, now=4.0, Nodes=1)
    assert managed.live.running[2].former is None and managed.live.cluster.count_free() == 0
    managed.close()
