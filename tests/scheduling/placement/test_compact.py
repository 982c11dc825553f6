"""compact: whole empty nodes, filled core by core."""

from __future__ import annotations

from vrm.model import Cluster, Insufficient, Job
from vrm.scheduling import make_policy


def test_it_takes_empty_nodes_and_shares_none() -> None:
    cluster = Cluster.regular(3, 2, 2)
    policy = make_policy("compact", cluster)
    first = policy.place(Job(0, "a", 5, 60.0, 0.0), cluster)
    assert list(first.nodes) == [0, 1] and [slot.node for slot in first.slots(cluster.nodes)] == [0, 0, 0, 0, 1]
    cluster.book(Job(0, "a", 5, 60.0, 0.0), first, 0.0)
    assert isinstance(policy.place(Job(1, "a", 5, 60.0, 0.0), cluster), Insufficient)
    assert list(policy.place(Job(2, "a", 1, 60.0, 0.0), cluster).nodes) == [2], "node 1 has three free cores"
