"""Jobs that shall start are launched. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

import errno
import math
from pathlib import Path
import pytest
from support.executor import Managed, root, states  # noqa: F401
from vrm.live.manager.jobs.launches import CLOSED_FOR
from vrm.live.manager.liverun import RETRY
from vrm.live.spawn.messages import Failure, LaunchFailed, failed
from vrm.run.journal import files as journal


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


def test_a_script_whose_first_node_cannot_be_reached_waits_for_it(root: Path) -> None:
    """It is to run on both nodes (seed 795939009537 of the world)."""
    managed = Managed(root, "ok.x 8 99 0")
    managed.start(1.0)
    managed.jobs.says.append(LaunchFailed(0, "n0 does not answer", kind=Failure.UNREACHED))
    managed.turn(2.0)
    assert states(managed) == ["queued"] and managed.live.cluster.up == 0b10
    managed.turn(2.0 + CLOSED_FOR)
    assert managed.live.running[0].booking.placement.nodes == [0, 1]
    managed.close()


@pytest.mark.parametrize("why, said", [
    ("output file o: No space left on device", "cannot write: output file o"),
    ("no process for it: Resource temporarily unavailable", "cannot start: no process for it")])
def test_a_job_for_which_there_is_no_room_waits_and_nothing_starts_for_a_while(root: Path, why: str, said: str) -> None:
    managed = Managed(root, "ok.x 1 99 0")
    managed.start(1.0)
    managed.jobs.says.append(failed(managed.jobs.launched[-1], why, None))
    managed.turn(1.0)
    assert states(managed) == ["queued"] and any(said in text for text in managed.said)
    managed.turn(1.0 + RETRY)
    assert states(managed) == ["running"]
    managed.close()
