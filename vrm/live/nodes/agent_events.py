"""Answers of agents as events for the loop that sends the requests (see `vrm.live.nodes.agents`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple
from collections.abc import Callable, Mapping

from vrm.live.nodes.topology import Gpu, NodeFacts, Topology, parse_cpu_list


@dataclass(frozen=True)
class NodeUp:
    """A node answers: for the first time, or again."""

    host: str
    facts: NodeFacts

    @property
    def topology(self) -> Topology:
        """The node's cores."""
        return self.facts.topology

    @property
    def memory(self) -> int:
        """The node's total memory in bytes."""
        return self.facts.memory

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that this run may use."""
        return self.facts.gpus


@dataclass(frozen=True)
class NodeLost:
    """The agent of a node was lost; it may soon answer again, or the node may then count as down."""

    host: str
    reason: str


@dataclass(frozen=True)
class NodeDown:
    """A node counts as down, since it does not answer."""

    host: str
    reason: str


@dataclass(frozen=True)
class Affinity:
    """The CPUs that ranks of a job may use on a node; ranks that were not found are missing."""

    host: str
    job_id: int
    ranks: Mapping[int, frozenset[int]]


@dataclass(frozen=True)
class SweepDone:
    """No process of the job (None: of the run) is left on a node, except `left` ones that do not die; `processes` had
    to be killed."""

    host: str
    job_id: int | None
    processes: int
    left: int = 0


@dataclass(frozen=True)
class MemoryUse:
    """The most bytes of memory that a job's processes on a node had together so far; `over`: this exceeds the job's
    limit."""

    host: str
    job_id: int
    memory: int
    over: bool


class AgentOrder(NamedTuple):
    """A request of an extension to agents: its `name`, and the `files` of the modules that handle it on the nodes,
    each after those that it imports (see `vrm.live.runner.agent.bring`). `read` makes an event for parts of the
    manager from the host, the request and the answer; it raises KeyError, TypeError, ValueError or AttributeError for
    an invalid answer."""

    name: str
    files: tuple[str, ...]
    read: Callable[[str, Mapping[str, Any], Mapping[str, Any]], object]


AgentEvent = object
"""One of the classes above, or the event that an `AgentOrder` makes of an answer."""


def outcome(host: str, request: Mapping[str, Any], answer: Mapping[str, Any], known: Mapping[str, AgentOrder]) -> AgentEvent:
    """Return the event for the answer of an agent to a request; `known` are the orders of extensions. Raises KeyError,
    TypeError, ValueError or AttributeError for an invalid answer."""
    asked, job_id = request["ask"], request["job"]
    if asked in known:
        return known[asked].read(host, request, answer)
    if asked == "affinity":
        return Affinity(host, job_id, {int(rank): parse_cpu_list(cpus) for rank, cpus in answer["ranks"].items()})
    return SweepDone(host, job_id, int(answer["processes"]), int(answer["left"]))
