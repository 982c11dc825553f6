"""How a manager stops. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

import math
from pathlib import Path
from support.executor import Managed, root, states  # noqa: F401


def test_what_is_decided_waits_again_when_the_allocation_ends_and_what_runs_is_interrupted(root: Path) -> None:
    managed = Managed(root, "ok.x 1 99 0", "ok.x 1 99 0")
    stopping, live = managed.manager.stopping, managed.live
    managed.agents.swept = {1}  # so it is not launched
    managed.start(1.0)
    assert list(live.running) == [0] and managed.manager.launches.busy()
    live.end.end = 100.0
    assert stopping.deadline(1.0) == live.end.closing < live.end.end_jobs_at
    managed.turn(live.end.closing)
    assert live.phase == "stopping" and not managed.manager.launches.busy() and states(managed) == ["running", "queued"]
    assert not live.running[0].intent and stopping.deadline(50.0) == live.end.end_jobs_at
    managed.turn(live.end.end_jobs_at)
    assert live.running[0].intent == "interrupted" and stopping.deadline(99.0) == math.inf
    managed.end(0, 99.0, code=1)
    assert states(managed) == ["queued", "queued"]
    managed.close()
