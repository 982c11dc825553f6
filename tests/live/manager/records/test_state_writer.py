"""The state file. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

import json
from pathlib import Path
from support.executor import Managed, root  # noqa: F401


def test_the_state_file_shows_the_run(root: Path) -> None:
    managed = Managed(root, "ok.x 8 9 0", "ok.x 1 9 0")
    managed.start(1.0)
    managed.turn(1.0)
    state = json.loads(managed.run.state.read_text())
    assert [(job["id"], job["state"]) for job in state["jobs"]] == [(0, "running"), (1, "queued")]
    assert (state["time"], state["manager"]["phase"], state["emulated"]) == (1.0, "running", True)
    assert not managed.live.dirty and not managed.manager.state_writer.due(1.1)
    managed.close()
