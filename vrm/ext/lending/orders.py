"""Orders to the nodes of a job that lends cores: which CPUs its ranks may use from now on, or that they stand still."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol
from collections.abc import Collection, Iterable, Mapping, Sequence

from vrm.ext.lending.nodes import dlb, lending, masks, pausing
from vrm.live.nodes.nodewatch import NodeWatch
from vrm.live.nodes.outcomes import AgentOrder
from vrm.model import Booking, Cluster, RankSlot
from vrm.model.sharing.core_share import LentCores

PATIENCE = 10.0
"""Seconds in which the ranks of a running job should be where `set_masks` wants them."""

HERE = 1.0
"""Seconds in which the processes of a job on emulated nodes have to stand still."""


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


MASKS = AgentOrder("masks", (dlb.__file__, lending.__file__, masks.__file__), _read)


def _read_pause(host: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> Masks:
    return Masks(host, request["job"], int(answer["epoch"]), bool(answer["clear"]), {}, frozenset(),
                 str(answer["error"]))


STOP = AgentOrder("pause", (*MASKS.files, pausing.__file__), _read_pause)


def stops(cluster: Cluster, booking: Booking, shares: Sequence[LentCores]) -> bool | None:
    """Whether the last change of what a running job lends pauses it, or (False) ends its pause; None: neither."""
    now, before = (shares[-at].lent if len(shares) >= at else 0 for at in (1, 2))
    if cluster.loans.stopped(cluster, booking, now):
        return True
    return False if cluster.loans.stopped(cluster, booking, before) else None


def pause(watch: NodeWatch, run: str, booking: Booking, epoch: int, stop: bool, cluster: Cluster,
          patience: float = PATIENCE) -> set[str]:
    """Let the processes of a job stand still, or go on. Each of the hosts in the result gives a `Masks`. Where cores
    are emulated all processes are here, and it is done at once."""
    values = {"epoch": epoch, "stop": stop, "patience": patience,
              "variables": [] if booking.job.payload.script else list(watch.variables)}
    if watch.watches:
        hosts = [cluster.nodes[node].name for node in booking.placement.nodes]
        return watch.order(STOP, booking.job.id, dict.fromkeys(hosts, values))
    pausing.pause_here({**values, "number": 0, "run": run, "job": booking.job.id, "patience": HERE})
    return set()


@dataclass
class CoreOrder:
    """The last order about a lender's cores: the `hosts` that have not answered yet, and `until` when they
    may. `sent`: it is on its way; else it goes `after` a time. `early`: the lender has just started, and the order
    counts only when all of its `ranks` are there, by host."""

    epoch: int
    hosts: set[str] = field(default_factory=set)
    until: float = math.inf
    sent: bool = False
    after: float = 0.0
    early: bool = False
    ranks: dict[str, set[int]] = field(default_factory=dict)


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
