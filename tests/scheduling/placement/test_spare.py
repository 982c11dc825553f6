"""spare: whole empty nodes, of which half of each socket stays free."""

from __future__ import annotations

from vrm.model import Cluster, Job
from vrm.scheduling import make_policy


def test_half_of_each_socket_stays_free() -> None:
    cluster = Cluster.regular(3, 2, 4)
    placement = make_policy("spare", cluster).place(Job(0, "a", 8, 60.0, 0.0), cluster)
    assert list(placement.nodes) == [0, 1]
    taken: dict[tuple[int, int], int] = {}
    for slot in placement.slots(cluster.nodes):
        taken[slot.node, slot.socket] = taken.get((slot.node, slot.socket), 0) + len(slot.cores)
    assert taken == {(node, socket): 2 for node in (0, 1) for socket in (0, 1)}
    cluster.book(Job(0, "a", 8, 60.0, 0.0), placement, 0.0)
    assert list(make_policy("spare", cluster).place(Job(1, "a", 4, 60.0, 0.0), cluster).nodes) == [2]
