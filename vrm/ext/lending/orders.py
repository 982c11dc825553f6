"""Orders to the nodes of a job that lends cores: the CPUs that its ranks may use from now on, or a pause."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol
from collections.abc import Collection, Iterable, Mapping, Sequence

from vrm.ext.lending.nodes import dlb, lending, masks, pausing
from vrm.live.nodes.node_watch import NodeWatch
from vrm.live.nodes.agent_events import AgentOrder
from vrm.model import Booking, Cluster, RankSlot
from vrm.model.sharing.core_share import LentCores

PATIENCE = 10.0
"""Seconds within which the ranks of a running job should be where `set_masks` puts them."""

HERE = 1.0
"""Seconds within which the processes of a job on emulated nodes have to stop."""


@dataclass(frozen=True)
class MaskReport:
    """Answer of a node about the cores of a job's ranks: they were set according to the order of this epoch, the
    last one that the node has got. `clear`: no thread of the job may use another core there; otherwise `error` says
    why. `threads` are the threads of each rank; `acknowledged` are the ranks whose processes have confirmed that
    they follow the order."""

    host: str
    job_id: int
    epoch: int
    clear: bool
    threads: Mapping[int, int]
    acknowledged: frozenset[int]
    error: str = ""


def _read(host: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> MaskReport:
    tasks = {int(rank): task for rank, task in answer["tasks"].items()}
    return MaskReport(host, request["job"], int(answer["epoch"]), bool(answer["clear"]),
                      {rank: int(task["threads"]) for rank, task in tasks.items()},
                      frozenset(rank for rank, task in tasks.items() if task["acknowledged"]), str(answer["error"]))


MASKS = AgentOrder("masks", (dlb.__file__, lending.__file__, masks.__file__), _read)


def _read_pause(host: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> MaskReport:
    return MaskReport(host, request["job"], int(answer["epoch"]), bool(answer["clear"]), {}, frozenset(),
                      str(answer["error"]))


STOP = AgentOrder("pause", (*MASKS.files, pausing.__file__), _read_pause)


def stops(cluster: Cluster, booking: Booking, shares: Sequence[LentCores]) -> bool | None:
    """Return True if the last change of what a running job lends pauses it, False if the change ends a pause, and
    None otherwise."""
    now, before = (shares[-at].lent if len(shares) >= at else 0 for at in (1, 2))
    if cluster.loans.stopped(cluster, booking, now):
        return True
    return False if cluster.loans.stopped(cluster, booking, before) else None


def pause(watch: NodeWatch, run: str, booking: Booking, epoch: int, stop: bool, cluster: Cluster,
          patience: float = PATIENCE) -> set[str]:
    """Order the processes of a job to stop or to continue. Each of the hosts in the result sends a `MaskReport`. On
    emulated cores all processes are on this machine, and it is done at once."""
    values = {"epoch": epoch, "stop": stop, "patience": patience,
              "variables": [] if booking.job.payload.script else list(watch.variables)}
    if watch.watches:
        hosts = [cluster.nodes[node].name for node in booking.placement.nodes]
        return watch.order(STOP, booking.job.id, dict.fromkeys(hosts, values))
    pausing.pause_here({**values, "number": 0, "run": run, "job": booking.job.id, "patience": HERE})
    return set()


@dataclass
class CoreOrder:
    """The last order about a lender's cores: `hosts` have not answered yet, and may answer until the time `until`.
    `sent`: it was sent; otherwise it is sent at the time `after`. `early`: the lender has just started, and the
    order is only complete when all of its `ranks` (by host) exist."""

    epoch: int
    hosts: set[str] = field(default_factory=set)
    until: float = math.inf
    sent: bool = False
    after: float = 0.0
    early: bool = False
    ranks: dict[str, set[int]] = field(default_factory=dict)


class OrderSender(Protocol):
    """Passes orders on to agents: `vrm.live.nodes.agents.Agents`, or an object that watches the nodes through them."""

    def order(self, order: AgentOrder, job_id: int, hosts: Mapping[str, Mapping[str, Any]], /) -> set[str]: ...


def set_masks(agents: OrderSender, job_id: int, epoch: int, hosts: Mapping[str, Mapping[int, Collection[int]]],
              variables: Sequence[str], own: Mapping[str, Mapping[int, Collection[int]]] | None = None,
              patience: float = PATIENCE) -> set[str]:
    """Let the ranks of a job use only these CPUs, given by host and rank; each host needs all of its ranks. `own`
    are the CPUs that they have while the job neither lends nor borrows; a process that starts later cannot find them
    out. `variables` show the rank, as for `Agents.request_affinity`; none: the job is one process.

    Each of the hosts in the result sends a `MaskReport`; a host that goes down before that does not. If a node has got
    a newer epoch of the job than this one, it answers with the newer one. Raises ValueError for a rank without
    cores."""
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
    """Let each rank of a job use only the cores of its slot, by an order of this epoch; `own` are all its cores. A
    job whose ranks cannot be told apart is treated as one process on the cores of all. Return the nodes that will
    answer, with a `MaskReport` or their `NodeWentDown`, and the ranks on each; none if cores are emulated."""
    tasks = watch.cpus(slots)
    if not watch.watches or not tasks:
        return {}
    set_masks(watch, job_id, epoch, tasks, watch.variables, watch.cpus(own))
    return {host: set(ranks) for host, ranks in tasks.items()}
