"""Commands that are about jobs. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.executor import Managed, OtherSession, asked, other, root, states  # noqa: F401
from vrm.live.manager.records.records import EndedJob
from vrm.model import JobState
from vrm.results.jobs import read_jobs


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


def stopped(root: Path, recorded: bool) -> Managed:
    """A manager that is stopping, has ended job 0, and perhaps `recorded` that: jobs 1 and 2 depend on it, and 3 on its end."""
    managed = Managed(root, "ok.x 8 9 0", "ok.x 8 9 0 after=0", "ok.x 8 9 0 after=1", "ok.x 8 9 0 after=any:0")
    managed.start(1.0)
    managed.manager.stopping.stop("`vrm stop --now`", kill=True)
    managed.end(0, 2.0, code=1)
    if recorded:
        managed.turn(2.0)
    assert states(managed) == ["cancelled", "cancelled", "cancelled", "queued"]
    return managed


def left(managed: Managed) -> list[tuple[int, str]]:
    """What `jobs.csv` says of jobs and why they ended, when all is recorded."""
    managed.turn(9.0)
    managed.close()
    return [(row.id, row.cause) for row in read_jobs(managed.run.jobs)]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_job_that_a_stop_has_ended_can_be_cancelled(root: Path, recorded: bool) -> None:
    managed = stopped(root, recorded)
    assert asked(managed, 3.0, do="cancel", id=0)["text"] == "job 0 (ok.x) will not run"
    for job_id in (0, 1):  # with job 0, the others do not run either
        assert asked(managed, 4.0, do="cancel", id=job_id)["text"] == f"job {job_id} neither waits nor runs: it is cancelled"
    assert managed.state.counts["cancelled"] == 3 and left(managed) == [(1, ""), (2, ""), (0, "cancel")]
    later = Managed(root)
    assert states(later) == ["cancelled", "cancelled", "cancelled", "queued"] and later.state.counts["cancelled"] == 3
    later.close()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_job_that_depends_on_one_that_runs_again_can_be_cancelled(root: Path, recorded: bool) -> None:
    managed = stopped(root, recorded)
    assert asked(managed, 3.0, do="cancel", ids=["1-2"])["text"] == "job 1 (ok.x) will not run"
    assert managed.state.counts["cancelled"] == 3 and left(managed) == [(0, "stop"), (2, ""), (1, "cancel")]
    later = Managed(root)
    assert states(later) == ["queued", "cancelled", "cancelled", "queued"] and later.state.counts["cancelled"] == 2
    later.close()


def test_what_a_job_has_left_is_killed_where_its_end_is_forgotten_before_it_was_recorded(root: Path, other: OtherSession) -> None:
    managed = Managed(root, "ok.x 8 9 0")
    records = managed.live.records
    records.pending.append(EndedJob(managed.state.entry(0).job, JobState.CANCELLED, session=other.sid, leader=other.started))
    records.forget([0])
    assert not records.pending and not other.lives()
    managed.close()
