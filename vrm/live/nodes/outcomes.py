"""What agents of nodes have said, as events for the loop that asks them (see `vrm.live.nodes.agents`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from collections.abc import Mapping

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


@dataclass(frozen=True)
class Metered:
    """A node was asked at the begin or the end of a job: the joules that it used in between (None: not known),
    and why it could not set the frequency."""

    host: str
    job_id: int
    begin: bool
    energy: float | None
    error: str


@dataclass(frozen=True)
class Masks:
    """The cores of a job's ranks on a node were set as the order of this epoch says, the last one that the
    node knows. `clear`: no thread of the job may use another core there; else `error` says why not.
    `threads` by rank; `acknowledged` are the ranks whose processes have said that they follow it."""

    host: str
    job_id: int
    epoch: int
    clear: bool
    threads: Mapping[int, int]
    acknowledged: frozenset[int]
    error: str = ""


@dataclass(frozen=True)
class Usage:
    """What the processes of a job on a node use at this moment, by steps (see `vrm.live.nodes.usage`)."""

    host: str
    job_id: int
    steps: Mapping[str, Mapping[str, Any]]


AgentEvent = NodeUp | NodeLost | NodeDown | Affinity | Swept | MemoryUse | Masks | Metered | Usage


def outcome(host: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> AgentEvent:
    """What the answer of an agent to a request says. Raises KeyError, TypeError, ValueError or AttributeError for
    one that no agent gives."""
    asked, job_id = request["ask"], request["job"]
    if asked == "affinity":
        return Affinity(host, job_id, {int(rank): parse_cpu_list(cpus) for rank, cpus in answer["ranks"].items()})
    if asked == "power":
        energy = answer["energy"]
        return Metered(host, job_id, request["begin"], None if energy is None else float(energy), str(answer["error"]))
    if asked == "usage":
        return Usage(host, job_id, dict(answer["steps"]))
    if asked == "masks":
        tasks = {int(rank): task for rank, task in answer["tasks"].items()}
        return Masks(host, job_id, int(answer["epoch"]), bool(answer["clear"]),
                     {rank: int(task["threads"]) for rank, task in tasks.items()},
                     frozenset(rank for rank, task in tasks.items() if task["acknowledged"]), str(answer["error"]))
    return Swept(host, job_id, int(answer["processes"]), int(answer["left"]))
