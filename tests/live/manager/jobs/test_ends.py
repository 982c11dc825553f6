"""Jobs end, and those that have had their time are ended. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from support.executor import Managed, OtherSession, asked, other, root, states  # noqa: F401
from vrm.live.nodes.agents import Agents
from vrm.live.nodes.node_watch import NodeWatch
from vrm.live.spawn.messages import Ended, Started, SupervisorLost
from vrm.live.spawn.records import ExitStatus
from vrm.model import JobState


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


def ended(job_id: int, clean: bool, code: int | None = 0, signal: int | None = None) -> Ended:
    return Ended(job_id, ExitStatus(code, signal, None, 1.0, 2.0, 0.0, 0.0, 0, 1.0, 2.0), clean=clean)


def swept(managed: Managed, now: float) -> None:
    """All has been done that follows an end."""
    managed.turn(now)
    managed.live.records.sweep_all(now)


@pytest.mark.parametrize("its_own", [False, True])
def test_what_a_job_has_left_is_killed_and_no_job_whose_supervisor_has_its_number(root: Path, other: OtherSession, its_own: bool) -> None:
    managed = Managed(root, "ok.x 1 9 0")
    managed.start(1.0)
    managed.jobs.says += [Started(0, other.sid, 1 << 23, other.started if its_own else other.started - 4), ended(0, clean=False)]
    managed.manager.launches.read_spawner()
    swept(managed, 2.0)
    assert states(managed) == ["completed"] and other.lives() is not its_own
    managed.close()


def test_the_next_job_of_a_supervisor_is_not_ended_for_one_that_was_to_be_ended(root: Path, other: OtherSession) -> None:
    """Both the start and the end of that are told at once, and its session has the next job by then."""
    managed = Managed(root, "ok.x 1 9 0", Grace=0)
    managed.start(1.0)
    managed.manager.ends.end_job(managed.live.running[0], "cancel")
    managed.jobs.says += [Started(0, other.sid, 1 << 23, other.started), ended(0, clean=True)]
    managed.manager.launches.read_spawner()
    assert other.lives()
    swept(managed, 2.0)
    assert other.lives()
    managed.close()


@pytest.mark.parametrize("its_own", [False, True])
def test_of_a_lost_supervisor_whose_number_is_anothers_nothing_is_ended(root: Path, other: OtherSession, its_own: bool) -> None:
    """Whether or not anybody knows when it was started."""
    managed = Managed(root, "ok.x 1 9 0", Grace=0)
    managed.start(1.0)
    managed.jobs.says.append(SupervisorLost(0, other.sid, other.started if its_own else None))
    managed.manager.launches.read_spawner()
    for now in (2.0, 3.0):
        managed.manager.ends.look(now, False)
    swept(managed, 4.0)
    assert other.lives() is not its_own
    managed.close()


@pytest.mark.parametrize("well", [False, True])
def test_no_job_starts_where_one_was_lost_before_that_node_is_swept(root: Path, well: bool) -> None:
    """A stand-in was killed: its program on the node may run, or be on its way there."""
    managed = Managed(root, "ok.x 4 9 0", "ok.x 4 9 0", "ok.x 4 9 0")
    names = [node.name for node in managed.live.cluster.nodes]
    agents = Agents(names, env={}, run="run")  # none of them was asked for anything yet
    managed.live.watch = NodeWatch(agents, managed.live.cluster, {}, (), "elsewhere")
    managed.start(1.0)
    managed.jobs.says.append(ended(0, True) if well else ended(0, True, None, 9))
    managed.manager.launches.read_spawner()
    managed.start(2.0)
    assert [request.id for request in managed.jobs.launched] == ([0, 1, 2] if well else [0, 1])
    for node in agents._nodes.values():
        node.asked.clear()  # they have answered
    managed.start(3.0)
    assert [request.id for request in managed.jobs.launched] == [0, 1, 2]
    managed.close()
    agents.close()


@pytest.mark.parametrize("before", ["timeout", "requeue"])
def test_what_a_user_wants_is_more_than_what_a_job_was_to_be_ended_for(root: Path, before: str) -> None:
    managed = Managed(root, "ok.x 1 9 0")
    managed.start(1.0)
    managed.manager.ends.end_job(managed.live.running[0], before)
    assert asked(managed, 2.0, do="cancel", ids=[0])["ok"]
    managed.end(0, 3.0, code=1)
    assert states(managed) == ["cancelled"]
    managed.close()


def test_nothing_of_a_start_goes_while_the_journal_does_not_say_that_the_job_waits_again(root: Path, monkeypatch: pytest.MonkeyPatch
                                                                                         ) -> None:
    """Neither its files, nor a supervisor that keeps a status: the next manager needs them."""
    managed = Managed(root, "ok.x 1 9 0")
    managed.start(1.0)
    files = managed.run.status(0), managed.run.marker(0)
    for path in files:
        path.write_text("something")
    released = list[object]()
    monkeypatch.setattr(managed.jobs, "unwritten", lambda status: True)
    monkeypatch.setattr(managed.jobs, "release", released.append)
    with monkeypatch.context() as full:
        full.setattr(managed.live, "synced", lambda: False)
        managed.manager.ends.ended(managed.live.running[0], None, JobState.CANCELLED, "requeued by its user")
        managed.manager.ends.requeue_job(managed.state.entry(0).job, "requeued by its user")
        assert all(path.exists() for path in files)
        managed.manager.ends.clear(0)
        assert not released
    managed.manager.ends.clear(0)
    assert released and not any(path.exists() for path in files)
    managed.close()


def test_no_process_of_a_job_gets_a_signal_before_the_reason_is_on_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = Managed(root, "ok.x 1 9 0")
    managed.start(1.0)
    ends, pending = managed.manager.ends, list[bool]()
    monkeypatch.setattr(ends, "end_session", lambda running, grace: pending.append(bool(managed.live.journal.pending)))
    ends.end_job(managed.live.running[0], "cancel")
    assert pending == [False] and managed.events[-1][0] == "intent"
    managed.close()


def test_the_cores_of_a_job_that_is_being_ended_are_its_own_until_its_processes_are_gone(root: Path) -> None:
    managed = Managed(root, "ok.x 4 9 0", "ok.x 4 9 0", Nodes=1)
    managed.start(1.0)
    managed.jobs.says.append(Started(0, 1 << 23, 1 << 23))
    managed.manager.launches.read_spawner()
    managed.manager.ends.end_job(managed.live.running[0], "cancel")
    managed.start(2.0)
    assert [request.id for request in managed.jobs.launched] == [0]
    managed.end(0, 3.0, code=1)
    managed.start(3.0)
    assert [request.id for request in managed.jobs.launched] == [0, 1]
    managed.close()
