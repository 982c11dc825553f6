"""The part through which commands of Slurm come. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
import pytest
from support.executor import Managed, root  # noqa: F401
from vrm.ext.slurm.calls.answers import Refused
from vrm.ext.slurm.calls.counter import SubmittedJob
from vrm.ext.slurm.calls.door import Door
from vrm.model import JobState


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


def test_a_manager_that_stops_still_knows_the_jobs_of_a_call_that_comes_again(root: Path) -> None:
    """The manager that had taken them was killed before it answered."""
    managed = Managed(root)
    counter = managed.live.part(Door).counter
    counter.known = {"call": [3]}
    managed.live.phase = "stopping"
    values = {"app": "ok.x", "procs": 1, "walltime": 9.0}
    assert counter.submit(SubmittedJob(values, command="call")) == [3]
    with pytest.raises(Refused, match="takes no more jobs"):
        counter.submit(SubmittedJob(values, command="other"))
    managed.close()
