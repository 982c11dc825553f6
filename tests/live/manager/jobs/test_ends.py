"""Jobs end, and those that have had their time are ended. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

import math
from pathlib import Path
from support.executor import Managed, root, states  # noqa: F401
from vrm.live.spawn.messages import Started


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
