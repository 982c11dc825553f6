"""What agents of nodes have said, as events for the loop that asks them (see `vrm.live.nodes.agents`)."""

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
        """Its cores."""
        return self.facts.topology

    @property
    def memory(self) -> int:
        """All of its memory in bytes."""
        return self.facts.memory

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that this run may use."""
        return self.facts.gpus


@dataclass(frozen=True)
class NodeLost:
    """The agent of a node was lost; it may answer again soon, or count as down."""

    host: str
    reason: str


@dataclass(frozen=True)
class NodeDown:
    """A node does not answer."""

    host: str
    reason: str


@dataclass(frozen=True)
class Affinity:
    """The CPUs that ranks of a job may use on a node; those that were not found are not there."""

    host: str
    job_id: int
    ranks: Mapping[int, frozenset[int]]


@dataclass(frozen=True)
class Swept:
    """No process of the job (None: of the run) is left on a node, but for `left` of them that
    do not die; `processes` were there."""

    host: str
    job_id: int | None
    processes: int
    left: int = 0


@dataclass(frozen=True)
class MemoryUse:
    """The most bytes of memory that a job's processes on a node had so far; `over`: more than it may."""

    host: str
    job_id: int
    memory: int
    over: bool


class AgentOrder(NamedTuple):
    """What an extension asks agents for: its `name`, the `files` of the modules that do it on the nodes, each behind those
    that it imports (see `vrm.live.runner.agent.bring`), and what makes an event for parts of the manager of the host, the
    request and the answer. That raises KeyError, TypeError, ValueError or AttributeError for an answer that no agent
    gives."""

    name: str
    files: tuple[str, ...]
    read: Callable[[str, Mapping[str, Any], Mapping[str, Any]], object]


AgentEvent = object
"""One of the classes above, or what an `AgentOrder` makes of an answer."""


def outcome(host: str, request: Mapping[str, Any], answer: Mapping[str, Any], known: Mapping[str, AgentOrder]) -> AgentEvent:
    """What the answer of an agent to a request says; `known` are the orders of extensions. Raises KeyError, TypeError,
    ValueError or AttributeError for one that no agent gives."""
    asked, job_id = request["ask"], request["job"]
    if asked in known:
        return known[asked].read(host, request, answer)
    if asked == "affinity":
        return Affinity(host, job_id, {int(rank): parse_cpu_list(cpus) for rank, cpus in answer["ranks"].items()})
    return Swept(host, job_id, int(answer["processes"]), int(answer["left"]))
