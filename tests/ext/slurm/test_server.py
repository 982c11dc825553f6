"""The part through which commands of Slurm come. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
import pytest
from support.executor import Managed, root, states  # noqa: F401
from vrm.ext.pbs.jobs import qdel
from vrm.ext.slurm.calls.answers import Answer, Call, CallRefused
from vrm.ext.slurm.calls.handler import SubmittedJob
from vrm.ext.slurm.calls.names import reply_to
from vrm.ext.slurm.sbatch import EndAnswer
from vrm.ext.slurm.calls.server import SocketServer
from vrm.ext.slurm.scancel import scancel
from vrm.model import JobState


def test_the_handler_knows_what_runs_waits_and_has_ended(root: Path) -> None:
    managed = Managed(root, *["ok.x 2 9 0 nodes=2 cores=3"] * 3)
    handler = managed.live.part(SocketServer).handler
    managed.start(1.0)
    assert [job.state for job in handler.jobs()] == [JobState.RUNNING, JobState.QUEUED, JobState.QUEUED]
    assert [(node.name, node.taken) for node in handler.nodes()] == [("n0", 3), ("n1", 3)]
    managed.end(0, 3.0, code=2)
    managed.turn(4.0)
    ended, = handler.jobs([0])
    assert (ended.start, ended.end, ended.code, ended.nodes) == (1.0, 3.0, 2, ("n0", "n1"))
    handler.hold(2)
    with pytest.raises(CallRefused, match="job 0"):
        handler.hold(0)
    managed.live.start_of = None  # in a vrm without forecasts
    with pytest.raises(CallRefused, match="makes no forecasts"):
        handler.foresee(SubmittedJob({"app": "ok.x", "procs": 1, "walltime": 9.0}))
    managed.close()


def test_a_manager_that_stops_still_knows_the_jobs_of_a_call_that_comes_again(root: Path) -> None:
    """The manager that had taken them was killed before it answered."""
    managed = Managed(root)
    handler = managed.live.part(SocketServer).handler
    handler.known = {"call": [3]}
    managed.live.phase = "stopping"
    values = {"app": "ok.x", "procs": 1, "walltime": 9.0}
    assert handler.submit(SubmittedJob(values, command="call")) == [3]
    with pytest.raises(CallRefused, match="takes no more jobs"):
        handler.submit(SubmittedJob(values, command="other"))
    managed.close()


def test_a_job_that_is_not_to_be_requeued_does_not_run_again_after_a_stop(root: Path) -> None:
    managed = Managed(root, *["ok.x 4 9 0"] * 2)
    managed.start(1.0)
    handler = managed.live.part(SocketServer).handler
    assert reply_to(Call("scontrol", ["update", "JobId=1", "Requeue=0"], "/work"), handler) == Answer()
    managed.manager.stopping.stop("`vrm stop --now`", kill=True)
    for job_id in range(2):
        managed.end(job_id, 2.0, code=1)
    assert EndAnswer(handler, [0], "").poll() is None and EndAnswer(handler, [1], "").poll() == Answer(code=1)
    managed.close()
    later = Managed(root)
    assert states(later) == ["queued", "cancelled"]
    later.close()


def test_who_waits_for_a_job_that_the_next_manager_runs_again_is_not_given_the_end_by_the_stop(root: Path) -> None:
    managed = Managed(root, "ok.x 4 9 0")
    managed.start(1.0)
    managed.manager.stopping.stop("`vrm stop --now`", kill=True)
    managed.end(0, 2.0, code=1)
    handler = managed.live.part(SocketServer).handler
    assert EndAnswer(handler, [0], "").poll() is None
    handler.cancel(0)
    assert EndAnswer(handler, [0], "").poll() == Answer(code=1)
    managed.close()


def test_scancel_and_qdel_take_jobs_that_a_stop_has_ended_for_good(root: Path) -> None:
    """The next manager would run them again."""
    managed = Managed(root, *["ok.x 4 9 0"] * 2, "ok.x 4 9 0 after=1")
    managed.start(1.0)
    managed.manager.stopping.stop("`vrm stop --now`", kill=True)
    for job_id in range(2):
        managed.end(job_id, 2.0, code=1)
    handler = managed.live.part(SocketServer).handler
    assert scancel(Call("scancel", ["0"], "/work"), handler) == Answer()
    assert qdel(Call("qdel", ["2", "1"], "/work"), handler) == Answer()
    assert qdel(Call("qdel", ["2"], "/work"), handler).code == 35
    managed.close()
    later = Managed(root)
    assert states(later) == ["cancelled"] * 3
    later.close()
