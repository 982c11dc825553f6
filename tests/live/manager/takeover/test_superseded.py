"""Which recorded starts cannot be running any more, against a plain reference on sets of cores."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from vrm.live.manager.takeover.superseded import superseded
from vrm.model import Cluster, Placement
from vrm.model.placement import CORES

NODES, CORES_OF_NODE = 3, 4
CLUSTER = Cluster.regular(NODES, 2, 2)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Whole nodes, half nodes (one lane), or cores; some with a GPU."""
    kind = draw(st.sampled_from(["whole", "half", "cores"]))
    nodes = draw(st.integers(1, (1 << NODES) - 1))
    devices: Any = {0: {"gpu": (draw(st.integers(0, 1)),)}} if draw(st.booleans()) else {}
    if kind == "cores":
        taken = draw(st.integers(1, (1 << NODES * CORES_OF_NODE) - 1))
        return Placement.of_cores(CLUSTER.layout, taken, taken.bit_count()).but(devices=devices)
    lanes = (nodes, nodes) if kind == "whole" else draw(st.sampled_from([(nodes, 0), (0, nodes)]))
    return Placement(kind, lanes, (nodes,), nodes.bit_count(), layout=CLUSTER.layout, devices=devices)


def held(placement: Placement) -> set[object]:
    """Halves of nodes, and devices."""
    found: set[object] = {("gpu", index) for by_name in placement.devices.values() for index in by_name["gpu"]}
    lane0, lane1, _ = placement.room
    for node in range(NODES):
        found.update((node, lane) for lane, nodes in enumerate((lane0, lane1)) if nodes >> node & 1)
    return found


def clash(one: Placement, other: Placement) -> bool:
    if held(one) & held(other):
        return True
    if one.share == CORES == other.share:
        return bool(one.taken & other.taken)
    if CORES not in (one.share, other.share):
        return False
    return bool(one.node_set & other.node_set)


@given(st.lists(placements(), max_size=6), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_what_a_later_job_has_was_left(starts: list[Placement], loans: set[tuple[int, int]]) -> None:
    lends: dict[int, set[int]] = {}
    for lender, borrower in loans:
        lends.setdefault(lender, set()).add(borrower)
    wanted = {job for job, one in enumerate(starts)
              if any(clash(one, starts[later]) and later not in lends.get(job, ()) for later in range(job + 1, len(starts)))}
    assert superseded(dict(enumerate(starts)), lends, CLUSTER.layout) == wanted
