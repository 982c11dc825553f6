"""The part that measures the energy of jobs. With a real state and journal (`support.executor`)."""

from __future__ import annotations

from pathlib import Path

from support.executor import Managed, root  # noqa: F401

from vrm.ext.energy.part import EnergyPart, EnergyRead
from vrm.live.manager.part import RecordPrepared


def test_a_job_has_the_joules_that_its_node_says(root: Path) -> None:
    managed = Managed(root, "ok.x 1 100", Nodes=1,
                      NodeClasses=[{"Hosts": "n0", "Energy": {"Name": "p1", "Idle": 50, "Busy": 100}}])
    part, = (each for each in managed.manager.parts if isinstance(each, EnergyPart))
    assert managed.live.cluster.nodes[0].power is not None
    outcomes = []
    observe = part.observe

    def noted(event: object) -> None:
        observe(event)
        if isinstance(event, RecordPrepared):
            outcomes.append(event.outcome)

    part.observe = noted  # type: ignore[method-assign]
    managed.start(1.0)
    assert not part.keeps(0)
    managed.end(0, 51.0)
    node = managed.live.cluster.nodes[0].name
    part.observe(EnergyRead(node, 0, False, 1234.0, ""))
    assert not part.keeps(0), "its node has answered"
    managed.turn(52.0)
    assert [outcome.joules for outcome in outcomes] == [1234.0]
    managed.close()
