"""Every kind of placement goes through every form in which it is kept or shown."""

from __future__ import annotations

import json
import marshal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Cluster, CorePlacement, Heatmap, Infeasible, Job, Node, Placement
from vrm.model.forms.placement_formats import (fault, of_record, of_values, to_record, to_values, width_of)
from vrm.results.placement_text import PlacementText, parse_cores
from vrm.scheduling import make_policy


@st.composite
def placements(draw: Any) -> tuple[Cluster, Job, Placement]:
    """A job on a cluster on which others came and went before it."""
    nodes = [Node(f"n{number}", tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))),
                  {"gpu": draw(st.integers(0, 3))} if draw(st.booleans()) else {})
             for number in range(draw(st.integers(1, 7)))]
    cluster = Cluster(nodes)
    name = draw(st.sampled_from(["compact", "spare", "strip", "pack"]))
    policy = make_policy(name, cluster, Heatmap({}))
    found = None
    for number in range(draw(st.integers(1, 7))):
        alone = draw(st.booleans())
        job = Job(number, draw(st.sampled_from(["ft.B.x", "is.B.x"])), draw(st.integers(1, 9)), 10.0,
                  exclusive=alone, cores=draw(st.integers(1, 2)),
                  resources={"gpu": 1} if name != "pack" and draw(st.booleans()) else None)
        try:
            placement = policy.place(job, cluster)
        except Infeasible:
            continue
        if placement:
            cluster.book(job, placement, 0.0)
            found = cluster, job, placement
            if draw(st.booleans()):
                cluster.release(draw(st.sampled_from(sorted(cluster.bookings))))
    if found is None:
        job = Job(0, "a.x", 1, 1.0)
        placement = make_policy("compact", cluster).place(job, cluster)
        assert placement
        found = cluster, job, placement
    return found


def spelt(cores: str) -> dict[str, list[tuple[int, int]]]:
    """The cores of each node, of the column `cores`."""
    return {name: [(place.socket, core) for place in places
                   for core in range(place.first, place.last + 1)]
            for name, places in parse_cores(cores)}


@settings(deadline=None)
@given(placements())
def test_a_placement_comes_back(case: tuple[Cluster, Job, Placement]) -> None:
    cluster, job, placement = case
    slots = list(placement.slots(cluster.nodes))
    other = Cluster(cluster.nodes)
    bare = Job(job.id, job.app, job.procs, 10.0)
    record = json.loads(json.dumps(to_record(placement)))
    assert fault(record, job, [(node.name, list(node.sockets)) for node in cluster.nodes]) == ""
    values = marshal.loads(marshal.dumps(to_values(placement)))
    assert width_of(values) == job.cores
    for back in (of_record(record, other.layout), of_values(values, other.layout)):
        assert type(back) is type(placement) and list(back.slots(other.nodes)) == slots
        assert to_record(back) == record and to_values(back) == values
        assert not other.clashes(back)
        other.take(bare, back)
        if job.exclusive:
            assert not other.empty & placement.node_set and other.clashes(back)
            assert other.free_cores & other.layout.cores_of(placement.node_set) == 0
        other.give(bare, back)
        assert other.free_cores == other.layout.all and back.size == placement.size


@settings(deadline=None)
@given(placements())
def test_a_placement_is_written_for_people(case: tuple[Cluster, Job, Placement]) -> None:
    cluster, _job, placement = case
    wanted: dict[str, list[tuple[int, int]]] = {}
    for slot in placement.slots(cluster.nodes):
        wanted.setdefault(cluster.nodes[slot.node].name, []).extend(
            (slot.socket, core) for core in slot.cores)
    writer = PlacementText(cluster.nodes)
    nodes, cores = writer.columns(placement)
    for text in (writer.cores(placement), cores):
        assert {name: sorted(each) for name, each in spelt(text).items()} == {
            name: sorted(each) for name, each in wanted.items()}
        assert list(spelt(text)) == list(wanted)
    assert nodes == writer.nodes(placement)


def test_the_form_in_files_is_that_of_before() -> None:
    """Journals of every version have it, byte for byte."""
    cluster = Cluster.regular(3, 2, 4)
    found = {}
    for name in ("compact", "spare", "strip", "pack"):
        job = Job(1, "a.x", 5, 9.0, cores=2)
        placement = make_policy(name, cluster, Heatmap({})).place(job, cluster)
        assert placement
        found[name] = json.dumps(to_record(placement), separators=(",", ":"))
    job = Job(1, "a.x", 5, 9.0, cores=2, exclusive=True)
    placement = make_policy("pack", cluster).place(job, cluster)
    assert placement
    assert to_record(placement) == {"taken": "0x3ff", "procs": 5, "width": 2, "held": "0xffff"}
    half = '"order":["0x7"],"procs":5,"width":2,"most":null}'
    assert found == {
        "compact": '{"share":"whole","claims":["0x3","0x3"],"order":["0x3"],"procs":5,"width":2,'
                   '"most":null}',
        "spare": '{"share":"half","claims":["0x7","0x7"],' + half,
        "strip": '{"share":"half","claims":["0x7","0x0"],' + half,
        "pack": '{"taken":"0x3ff","procs":5,"width":2}'}


def test_policies_of_users_make_placements_as_before() -> None:
    layout = Cluster.regular(2, 1, 4).layout
    lanes, cores = Placement("whole", (0b10, 0b10), (0b10,), 3), CorePlacement(layout, 0b11000, 2)
    assert (lanes.room, lanes.size, lanes.nodes) == ((2, 2, 0), 1, [1])
    assert (cores.room, cores.size, cores.nodes, cores.taken) == ((0, 0, 0b11000), 2, [0, 1], 0b11000)


@pytest.mark.parametrize("change, wrong", [
    ({"procs": 4}, "another job"), ({"width": 1}, "another job"), ({"taken": "0x1f"}, "cores are"),
    ({"taken": "0x3ff00000000"}, "cores are"), ({"taken": "ff"}, "cores are"),
    ({"held": "0xff"}, "cores are"), ({"held": "0xffffffff0000"}, "cores are"), ({"held": 7}, "cores are")])
def test_what_is_wrong_with_a_record(change: dict[str, Any], wrong: str) -> None:
    cluster = Cluster.regular(3, 2, 4)
    placement = CorePlacement(cluster.layout, 0x3ff, 5, 2)
    record = {**to_record(placement), **change}
    assert wrong in fault(record, Job(1, "a.x", 5, 9.0, cores=2), [("n", [4, 4])] * 3)
