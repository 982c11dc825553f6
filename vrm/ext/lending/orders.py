"""Orders to the nodes of a job that lends cores: which CPUs its ranks may use from now on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol
from collections.abc import Collection, Iterable, Mapping, Sequence

from vrm.ext.lending.nodes import masks
from vrm.live.nodes.nodewatch import NodeWatch
from vrm.live.nodes.outcomes import AgentOrder
from vrm.model import RankSlot

PATIENCE = 10.0
"""Seconds in which the ranks of a running job should be where `set_masks` wants them."""


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


def _read(host: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> Masks:
    tasks = {int(rank): task for rank, task in answer["tasks"].items()}
    return Masks(host, request["job"], int(answer["epoch"]), bool(answer["clear"]),
                 {rank: int(task["threads"]) for rank, task in tasks.items()},
                 frozenset(rank for rank, task in tasks.items() if task["acknowledged"]), str(answer["error"]))


MASKS = AgentOrder("masks", masks.__file__, _read)


class Asks(Protocol):
    """What passes orders on to agents: `vrm.live.nodes.agents.Agents`, or what watches the nodes by them."""

    def order(self, order: AgentOrder, job_id: int, hosts: Mapping[str, Mapping[str, Any]], /) -> set[str]: ...


def set_masks(agents: Asks, job_id: int, epoch: int, hosts: Mapping[str, Mapping[int, Collection[int]]],
              variables: Sequence[str], own: Mapping[str, Mapping[int, Collection[int]]] | None = None,
              patience: float = PATIENCE) -> set[str]:
    """Let the ranks of a job use these CPUs only: by host and rank, all ranks of each host. `own` are those
    that they have where the job neither lends nor borrows: a process that comes later cannot see them.
    `variables` show the rank, as for `Agents.ask_affinity`; none: the job is one process.

    Each of the hosts in the result gives a `Masks`; one that goes down first, nothing else. Of an
    epoch that is older than another of the job the node gives the latter. Raises ValueError for a
    rank without a core.
    """
    for host, tasks in hosts.items():
        empty = [rank for rank, cpus in tasks.items() if not cpus]
        if empty or not tasks:
            raise ValueError(f"job {job_id} would have no core on {host} for rank(s) {empty}")
    return agents.order(MASKS, job_id, {
        host: {"epoch": epoch, "tasks": {rank: sorted(cpus) for rank, cpus in tasks.items()},
               "own": {rank: sorted(cpus) for rank, cpus in (own or {}).get(host, {}).items()},
               "variables": list(variables), "patience": patience} for host, tasks in hosts.items()})


def confine(watch: NodeWatch, job_id: int, epoch: int, slots: Iterable[RankSlot], own: Iterable[RankSlot]
            ) -> dict[str, set[int]]:
    """Let each rank of a job use the cores of its slot only, by the order of this epoch, of those that are its
    `own`; a job whose ranks nobody can tell apart is one process, on the cores of all. The nodes that will say
    so, with a `Masks` or their `Down`, and the ranks on each; none where cores are emulated."""
    tasks = watch.cpus(slots)
    if not watch.watches or not tasks:
        return {}
    set_masks(watch, job_id, epoch, tasks, watch.variables, watch.cpus(own))
    return {host: set(ranks) for host, ranks in tasks.items()}
