"""Nodes that are lost, closed, and come back. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
from support.executor import Managed, root, states  # noqa: F401
from vrm.live.nodes.nodewatch import Unsure, Up


def test_nothing_starts_on_a_node_that_may_be_lost_until_it_answers(root: Path) -> None:
    managed = Managed(root, "ok.x 4 9 0", "ok.x 4 9 0")
    managed.agents.says.append(Unsure(0, "it is silent"))
    managed.turn(1.0)
    assert states(managed) == ["running", "queued"] and managed.live.running[0].booking.placement.nodes == [1]
    managed.agents.says.append(Up(0))
    managed.turn(2.0)
    assert managed.live.running[1].booking.placement.nodes == [0]
    managed.close()
