"""Nodes that are lost, closed, and come back. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
from support.executor import Managed, root, states  # noqa: F401
from vrm.live.nodes.node_watch import NodeUncertain, NodeCameBack
from vrm.report.tables import state_json, state_table
from vrm.results.state import parsed


def test_nothing_starts_on_a_node_that_may_be_lost_until_it_answers(root: Path) -> None:
    managed = Managed(root, "ok.x 4 9 0", "ok.x 4 9 0")
    managed.agents.says.append(NodeUncertain(0, "it is silent"))
    managed.turn(1.0)
    assert states(managed) == ["running", "queued"] and managed.live.running[0].booking.placement.nodes == [1]
    managed.agents.says.append(NodeCameBack(0))
    managed.turn(2.0)
    assert managed.live.running[1].booking.placement.nodes == [0]
    managed.close()


def test_a_node_that_is_drained_takes_no_jobs_until_it_is_resumed(root: Path) -> None:
    managed = Managed(root, "ok.x 4 9 0", "ok.x 4 9 0")
    managed.manager.nodes.drain(0, "somebody repairs it")
    managed.turn(1.0)
    assert states(managed) == ["running", "queued"] and managed.live.running[0].booking.placement.nodes == [1]
    managed.agents.says += [NodeUncertain(0, "it is silent"), NodeCameBack(0)]
    managed.turn(2.0)
    assert states(managed) == ["running", "queued"] and "node n0 answers again" in managed.said
    shown = parsed(managed.run.state.read_bytes())
    assert [(node["up"], node.get("why")) for node in shown["nodes"]] == [(False, "somebody repairs it"), (True, None)]
    assert "node n0 takes no new jobs: somebody repairs it" in state_table(shown) and "Drained" in state_table(shown)
    assert [node.get("why") for node in state_json(shown)["nodes"]] == ["somebody repairs it", None]
    managed.agents.down.add(0)
    managed.manager.nodes.resume_node(0)
    managed.turn(3.0)
    assert states(managed) == ["running", "queued"]
    managed.agents.down.clear()
    managed.agents.says.append(NodeCameBack(0))
    managed.turn(4.0)
    assert managed.live.running[1].booking.placement.nodes == [0]
    managed.close()
