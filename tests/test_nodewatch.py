"""Which nodes of a job are other machines: none of an emulated cluster, where nobody watches."""

from __future__ import annotations

from vrm.live.agents import Agents
from vrm.live.nodewatch import NodeWatch
from vrm.model import Cluster, Job
from vrm.scheduling import make_policy


def test_emulated_nodes_are_this_machine() -> None:
    cluster = Cluster.regular(2, 1, 2)
    policy = make_policy("compact", cluster)
    one = policy.place(Job(0, "a", 2, 1), cluster)
    both = policy.place(Job(1, "a", 4, 1), cluster)
    assert not NodeWatch(None, cluster, {}, "openmpi", "login").beyond(both)
    agents = Agents(["n0", "n1"], env={})
    try:
        watch = NodeWatch(agents, cluster, {}, "openmpi", "n0")
        assert not watch.beyond(one)
        assert watch.beyond(both)
    finally:
        agents.close()
