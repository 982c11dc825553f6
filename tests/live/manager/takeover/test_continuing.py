"""A manager continues what another one has begun. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
from support.executor import Managed, root, states  # noqa: F401
from vrm.results.jobs import read_jobs


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
