"""Each part of the manager by itself: with a real state and journal, and an executor that a test plays (`executor`)."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path
from typing import Any
from collections.abc import Mapping

import pytest
from conftest import wait_until
from executor import Managed

from vrm.config.schema import load
from vrm.ext.slurm.calls.answers import Refused
from vrm.ext.slurm.calls.counter import SubmittedJob
from vrm.live.batch.adoption import ATTACH_AFTER, Adoption
from vrm.ext.slurm.calls.door import Door
from vrm.live.manager.launches import CLOSED_FOR
from vrm.live.manager.liverun import RETRY
from vrm.live.manager.manager import Manager
from vrm.live.manager.part import Closed, Launched, Obey, Part, ProgramPrepared, Shown, Stopped
from vrm.live.manager.part_packages import guarded
from vrm.live.manager.recording import RecordWriting
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.nodewatch import Bound, Unsure, Up
from vrm.live.nodes.outcomes import MemoryUse
from vrm.live.site.setup import prepare
from vrm.live.spawn.messages import Failure, LaunchFailed, Started
from vrm.model import JobState
from vrm.results.jobs import read_jobs
from vrm.run import control
from vrm.run.journal import files as journal
from vrm.run.rundir import RunDirectory
from vrm.scheduling import PolicyError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def states(managed: Managed) -> list[str]:
    return [entry.state.value for entry in managed.state.book.entries.values()]


def asked(managed: Managed, now: float, **command: Any) -> control.Command:
    """The answer to a command file."""
    name = control.send(managed.run, command)
    managed.turn(now, files=True)
    reply = control.wait_reply(managed.run, name, 0)
    assert reply is not None
    return reply


class Greeter(Part):
    """A part of somebody else's; `calls` are the hooks that were called."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def look(self, now: float, files: bool) -> None:
        self.calls.append(("look", now, files))

    def act(self, now: float) -> None:
        self.calls.append("act")

    def tidy(self, now: float) -> None:
        self.calls.append("tidy")

    def leave(self) -> None:
        self.calls.append("leave")

    def commands(self) -> Mapping[str, Obey]:
        return {"greet": lambda command, name: {"ok": True, "text": f"hello {command['whom']}"}}

    def observe(self, event: object) -> None:
        self.calls.append(event)


def test_another_part_needs_only_to_be_put_into_the_list(root: Path) -> None:
    greeter = Greeter()
    managed = Managed(root, "ok.x 1 9 0", further=[greeter])
    managed.turn(1.0)
    started = Launched(managed.state.entry(0).job)
    prepared = greeter.calls.pop(1)
    assert isinstance(prepared, ProgramPrepared) and (prepared.booking.job, prepared.program.name) == (started.job, "ok.x")
    assert greeter.calls == [("look", 1.0, False), started, "act", Shown(1.0), "tidy"] and list(managed.live.running) == [0]
    assert asked(managed, 2.0, do="greet", whom="you")["text"] == "hello you"
    assert "there is no command wave" in asked(managed, 2.0, do="wave")["text"]
    greeter.calls.clear()
    managed.agents.says.append(Unsure(1, "it is silent"))
    managed.manager.nodes.look(3.0, False)
    managed.manager.stopping.stop("a test", kill=False)
    assert greeter.calls == [Closed(1), Unsure(1, "it is silent"), Stopped()]
    managed.close()


def test_all_parts_leave_however_the_manager_ends(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greeter = Greeter()
    Managed(root).close()
    settings = load(root / "vrm.yaml")
    manager = Manager(settings, prepare(settings), RunDirectory.of(settings), lambda kind, text: None, further=[greeter])

    def fails() -> None:
        raise PolicyError("a policy fails")

    monkeypatch.setattr(manager, "_loop", fails)
    with pytest.raises(PolicyError, match="a policy fails"):
        manager.run()
    assert greeter.calls == ["leave"]


def test_lines_of_the_queue_file_become_jobs_and_a_wrong_one_is_counted(root: Path) -> None:
    managed = Managed(root)
    intake = managed.manager.intake
    managed.queue.write_text("ok.x 1 9 0\nok.x many 9 0\nok.x 8 9 0\n")
    managed.turn(1.0)
    assert not managed.found, "files are looked at when it is time"
    managed.turn(1.0, files=True)
    assert states(managed) == ["running", "refused", "queued"] and intake.bad_lines == 1
    managed.queue.open("a").write("end\n")
    assert not intake.over(1.0)
    managed.turn(2.0, files=True)
    assert intake.over(2.0) and managed.live.synced()
    assert [record["ended"] for record in journal.read(managed.run.journal) if record["event"] == "input"] == [True]
    managed.close()


def test_nothing_is_launched_before_its_start_is_on_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = Managed(root, "ok.x 1 9 0")
    launches = managed.manager.launches
    with monkeypatch.context() as full:
        full.setattr(managed.live.journal, "sync", lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space")))
        managed.turn(1.0)
        assert launches.busy() and not managed.jobs.launched and "cannot write" in managed.said[-1]
    managed.turn(2.0)
    assert not launches.busy() and [request.id for request in managed.jobs.launched] == [0]
    assert [record["event"] for record in journal.read(managed.run.journal)][-2:] == ["job", "start"]
    managed.close()


def test_a_job_whose_node_cannot_be_reached_starts_on_another_and_the_node_is_used_again_later(root: Path) -> None:
    managed = Managed(root, "ok.x 1 99 0")
    managed.start(1.0)
    managed.jobs.says.append(LaunchFailed(0, "n0 does not answer", kind=Failure.UNREACHED))
    managed.turn(2.0)
    assert managed.live.running[0].booking.placement.nodes == [1] and managed.live.cluster.up == 0b10
    assert managed.manager.nodes.deadline(2.0) == 2.0 + CLOSED_FOR
    managed.turn(2.0 + CLOSED_FOR)
    assert managed.live.cluster.up == 0b11 and managed.manager.nodes.deadline(20.0) == math.inf
    managed.close()


def test_a_job_for_which_the_disk_has_no_room_waits_and_nothing_starts_for_a_while(root: Path) -> None:
    managed = Managed(root, "ok.x 1 99 0")
    managed.start(1.0)
    managed.jobs.says.append(LaunchFailed(0, "no space", kind=Failure.DISK))
    managed.turn(1.0)
    assert states(managed) == ["queued"] and any("cannot write: no space" in text for text in managed.said)
    managed.turn(1.0 + RETRY)
    assert states(managed) == ["running"]
    managed.close()


def test_a_job_that_has_had_its_time_is_ended_and_its_end_is_due_before(root: Path) -> None:
    managed = Managed(root, "ok.x 1 9 0", Walltime="kill")
    ends = managed.manager.ends
    managed.start(1.0)
    ends.look(10.0, False)
    assert ends.busy() and ends.deadline(1.0) == math.inf and managed.events[-1][0] == "start"  # it has not begun
    managed.jobs.says.append(Started(0, 1 << 23, 1 << 23))
    managed.manager.launches.read_spawner()
    assert ends.deadline(1.0) == 10.0
    ends.look(10.0, False)
    assert managed.events[-1][0] == "intent" and managed.events[-1][1]["reason"] == "timeout"
    managed.end(0, 11.0, code=1)
    assert states(managed) == ["timeout"] and not ends.busy() and ends.deadline(11.0) == math.inf
    managed.close()


def test_what_is_decided_waits_again_when_the_allocation_ends_and_what_runs_is_interrupted(root: Path) -> None:
    managed = Managed(root, "ok.x 1 99 0", "ok.x 1 99 0")
    stopping, live = managed.manager.stopping, managed.live
    managed.agents.swept = {1}  # so it is not launched
    managed.start(1.0)
    assert list(live.running) == [0] and managed.manager.launches.busy()
    live.end.end = 100.0
    assert stopping.deadline(1.0) == live.end.closing < live.end.last_call
    managed.turn(live.end.closing)
    assert live.phase == "stopping" and not managed.manager.launches.busy() and states(managed) == ["running", "queued"]
    assert not live.running[0].intent and stopping.deadline(50.0) == live.end.last_call
    managed.turn(live.end.last_call)
    assert live.running[0].intent == "interrupted" and stopping.deadline(99.0) == math.inf
    managed.end(0, 99.0, code=1)
    assert states(managed) == ["queued", "queued"]
    managed.close()


def test_nothing_starts_on_a_node_that_may_be_lost_until_it_answers(root: Path) -> None:
    managed = Managed(root, "ok.x 4 9 0", "ok.x 4 9 0")
    managed.agents.says.append(Unsure(0, "it is silent"))
    managed.turn(1.0)
    assert states(managed) == ["running", "queued"] and managed.live.running[0].booking.placement.nodes == [1]
    managed.agents.says.append(Up(0))
    managed.turn(2.0)
    assert managed.live.running[1].booking.placement.nodes == [0]
    managed.close()


def test_commands_act_on_jobs_one_by_one_and_in_ranges(root: Path) -> None:
    managed = Managed(root, *["ok.x 8 9 0"] * 4)
    managed.start(1.0)
    assert asked(managed, 2.0, do="hold", ids=["1-3"])["text"] == "jobs 1-3 (ok.x) are held"
    assert asked(managed, 2.0, do="release", id=2)["text"] == "job 2 (ok.x) is released"
    wrong = asked(managed, 2.0, do="hold", ids=[0, 9])
    assert not wrong["ok"] and len(wrong["text"].splitlines()) == 2
    assert asked(managed, 3.0, do="cancel", ids=["0-1", 3])["text"] == (
        "jobs 1,3 (ok.x) will not run\njob 0 (ok.x) is being ended")
    managed.end(0, 4.0, code=1)
    assert states(managed) == ["cancelled", "cancelled", "queued", "cancelled"]
    managed.turn(5.0)  # it is recorded, and job 2 runs
    assert asked(managed, 6.0, do="requeue", ids=[0, 1])["text"] == "jobs 0-1 (ok.x) wait again"
    assert [row.id for row in read_jobs(managed.run.jobs)] == [3]
    assert asked(managed, 7.0, do="submit", line="ok.x 1 9 0")["id"] == 4
    assert "1 job(s) may finish, 3 waiting" in asked(managed, 7.0, do="stop")["text"]
    assert "is stopping" in asked(managed, 7.0, do="submit", line="ok.x 1 9 0")["text"]
    managed.close()


def test_the_counter_knows_what_runs_waits_and_has_ended(root: Path) -> None:
    managed = Managed(root, *["ok.x 2 9 0 nodes=2 cores=3"] * 3)
    counter = managed.live.part(Door).counter
    managed.start(1.0)
    assert [job.state for job in counter.jobs()] == [JobState.RUNNING, JobState.QUEUED, JobState.QUEUED]
    assert [(node.name, node.taken) for node in counter.nodes()] == [("n0", 3), ("n1", 3)]
    managed.end(0, 3.0, code=2)
    managed.turn(4.0)
    ended, = counter.jobs([0])
    assert (ended.start, ended.end, ended.code, ended.nodes) == (1.0, 3.0, 2, ("n0", "n1"))
    counter.hold(2)
    with pytest.raises(Refused, match="job 0"):
        counter.hold(0)
    managed.live.start_of = None  # in a vrm without forecasts
    with pytest.raises(Refused, match="makes no forecasts"):
        counter.foresee(SubmittedJob({"app": "ok.x", "procs": 1, "walltime": 9.0}))
    managed.close()


class Faulty(Part):
    """Fails in each turn, in `look` behind a change."""

    def __init__(self, managed: Managed) -> None:
        self.journal = managed.live.journal

    def look(self, now: float, files: bool) -> None:
        self.journal.append("note")
        raise RuntimeError("half of it")

    def act(self, now: float) -> None:
        raise RuntimeError("nothing of it")


def test_a_part_of_an_extension_that_fails_is_left_out_but_not_in_half_of_a_change(root: Path) -> None:
    managed = Managed(root)
    part = guarded(Faulty(managed), managed.live)
    with pytest.raises(RuntimeError, match="half of it"):
        part.look(1.0, False)
    part.act(1.0)
    assert "Faulty is left out from here on: its `act` raised RuntimeError: nothing of it" in managed.said[-1]
    part.look(1.0, False)
    managed.close()


def test_ends_are_recorded_when_no_call_is_likely_to_come(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = Managed(root, "ok.x 1 9 0")
    recording = managed.live.part(RecordWriting)
    managed.start(1.0)
    managed.end(0, 2.0)
    managed.live.part(Door).next_call = 3.0
    recording.tidy(2.0)
    assert recording.busy() and recording.deadline(2.0) == 3.0, "its sync serves the end, too"
    managed.live.now = 3.0
    write, full = managed.live.records.write_next, [True]

    def written() -> None:
        if full:
            raise OSError(full.pop() * errno.ENOSPC, "no space")
        write()

    monkeypatch.setattr(managed.live.records, "write_next", written)
    recording.tidy(3.0)
    assert recording.busy() and "cannot write" in managed.said[-1]
    recording.tidy(3.0)
    assert recording.busy(), "the disk has some time"
    managed.live.now = 3.0 + RETRY
    recording.tidy(3.0 + RETRY)
    assert not recording.busy() and recording.deadline(5.0) == math.inf
    assert "files can be written again; continuing" in managed.said
    assert [row.status for row in read_jobs(managed.run.jobs)] == ["completed"]
    managed.close()


def test_sessions_are_added_to_the_batch_job_and_it_is_said_once_that_they_cannot_be(root: Path) -> None:
    managed = Managed(root, "ok.x 2 9 0", "ok.x 2 9 0", site={"adoption": Adoption(("false",))})
    managed.start(1.0)
    managed.jobs.says += [Started(0, 1 << 23, 1 << 23), Started(1, 1 << 23, 1 << 23)]
    managed.turn(1.0)
    assert min(part.deadline(1.0) for part in managed.live.parts) == 1.0 + ATTACH_AFTER
    managed.live.now = 1.0 + ATTACH_AFTER

    def idle() -> bool:
        managed.turn(managed.live.now)
        return min(part.deadline(2.0) for part in managed.live.parts) > 2.1

    wait_until(idle, "both were tried")
    assert [text for text in managed.said if "do not belong to the batch job" in text] == [
        "jobs do not belong to the batch job, and would outlive its end: false ended with 1"]
    managed.close()


def test_a_job_on_the_cores_of_others_or_with_too_much_memory_is_ended(root: Path) -> None:
    managed = Managed(root, "ok.x 1 99 0 mem_per_task=1M", "ok.x 1 99 0", Memory={"Over": "kill"},
                      Launcher={"Kind": "openmpi", "Mpirun": "bin/mpirun", "AllowRoot": True, "CheckBindings": "fail"},
                      NodeClasses=[{"Hosts": "n[0-1]", "Memory": "1G"}])
    managed.start(1.0)
    assert managed.live.running.keys() == {0, 1}, managed.said
    managed.agents.says += [MemoryUse("n0", 0, 5 << 20, True), Bound(1, BindingCheck("mismatch", ("rank 0 is on core 3",)))]
    managed.turn(2.0)
    assert {job_id: running.intent for job_id, running in managed.live.running.items()} == {0: "memory", 1: "binding"}
    assert managed.live.running[0].why == "it used 5M of memory on n0, and asked for 1M there"
    managed.close()


def test_the_state_file_shows_the_run(root: Path) -> None:
    managed = Managed(root, "ok.x 8 9 0", "ok.x 1 9 0")
    managed.start(1.0)
    managed.turn(1.0)
    state = json.loads(managed.run.state.read_text())
    assert [(job["id"], job["state"]) for job in state["jobs"]] == [(0, "running"), (1, "queued")]
    assert (state["time"], state["manager"]["phase"], state["emulated"]) == (1.0, "running", True)
    assert not managed.live.dirty and not managed.manager.showing.due(1.1)
    managed.close()


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
