"""Jobs belong to the batch job around. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
from conftest import wait_until
from support.executor import Managed, root  # noqa: F401
from vrm.live.batch.adoption import ATTACH_AFTER, Adoption
from vrm.live.spawn.messages import Started


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
