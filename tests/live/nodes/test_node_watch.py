"""Which nodes of a job are other machines: none of an emulated cluster, where nobody watches; and
what is told of those that go and come.
"""

from __future__ import annotations

from dataclasses import replace

from vrm.live.nodes.agents import Agents
from vrm.live.nodes.agent_events import AgentEvent, NodeDown, NodeLost, NodeUp
from vrm.live.nodes.node_watch import NodeWentDown, NodeWatch, NodeUncertain, NodeCameBack
from vrm.live.nodes.topology import Core, NodeFacts, Topology
from vrm.model import Cluster, Job
from vrm.scheduling import make_policy


def test_emulated_nodes_are_this_machine() -> None:
    cluster = Cluster.regular(2, 1, 2)
    policy = make_policy("compact", cluster)
    one = policy.place(Job(0, "a", 2, 1), cluster)
    both = policy.place(Job(1, "a", 4, 1), cluster)
    assert not NodeWatch(None, cluster, {}, ("OMPI_COMM_WORLD_RANK",), "login").beyond(both)
    agents = Agents(["n0", "n1"], env={})
    try:
        watch = NodeWatch(agents, cluster, {}, ("OMPI_COMM_WORLD_RANK",), "n0")
        assert not watch.beyond(one)
        assert watch.beyond(both)
    finally:
        agents.close()


def test_a_job_that_may_run_on_another_node_starts_nowhere_before_all_are_swept() -> None:
    """Others start where nothing is to be swept."""
    cluster = Cluster.regular(2, 1, 2)
    policy = make_policy("compact", cluster)
    here = policy.place(Job(0, "a", 2, 1), cluster)
    both = policy.place(Job(1, "a", 4, 1), cluster)
    agents = Agents([node.name for node in cluster.nodes], env={})
    try:
        watch = NodeWatch(agents, cluster, {}, (), cluster.nodes[0].name)
        watch.begin("r1")
        watch.sweep_others([7], [2])
        assert watch.sweeping(2, here) and watch.sweeping(2)
        assert not watch.sweeping(3, here) and watch.sweeping(3, both) and not watch.sweeping(3)
    finally:
        agents.close()


class Told:
    """In the place of the agents: tells what a test has put there."""

    def __init__(self) -> None:
        self.waiting: list[AgentEvent] = []

    def tick(self, now: float) -> float:
        return now

    def events(self) -> list[AgentEvent]:
        waiting, self.waiting = self.waiting, []
        return waiting


def test_what_is_told_of_a_node_that_goes_and_comes() -> None:
    cluster = Cluster.regular(2, 1, 2)
    names = [node.name for node in cluster.nodes]
    cores = Core(0, 0, 0, (0,)), Core(1, 0, 1, (1,))
    shape = Topology(names[1], cores, (cores,))
    agents = Told()
    watch = NodeWatch(agents, cluster, {names[1]: shape}, ("OMPI_COMM_WORLD_RANK",), names[0])  # type: ignore
    for event, told, answers in (
            (NodeUp(names[1], NodeFacts(shape)), [], True),
            (NodeLost(names[1], "x"), [NodeUncertain(1, "x")], False),
            (NodeUp(names[1], NodeFacts(shape)), [NodeCameBack(1)], True),
            (NodeLost(names[1], "y"), [NodeUncertain(1, "y")], False),
            (NodeDown(names[1], "y"), [NodeWentDown(1, "y")], False),
            (NodeDown(names[1], "y"), [], False),
            (NodeUp(names[1], NodeFacts(shape)), [NodeCameBack(1)], True),
            (NodeDown(names[1], "z"), [NodeWentDown(1, "z")], False),
            (NodeUp(names[1], NodeFacts(replace(shape, sockets=()))),
             [NodeWentDown(1, "it has come back with other cores than before")], False)):
        agents.waiting.append(event)
        assert watch.poll(0.0) == told and watch.answers(1) is answers
