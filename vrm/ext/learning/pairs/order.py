"""The node order `partners`: a job takes nodes of few partners, of those with which it does much together."""

from __future__ import annotations

from collections.abc import Iterator

from vrm.model import bits
from vrm.model.cluster import Pool
from vrm.model.job import Job
from vrm.model.measured.heatmap import Heatmap
from vrm.model.policies import Rooms
from vrm.scheduling.placement.node_orders import Order

UNFELT = 2.0
"""What two jobs do together that do not feel each other (`vrm.model.measured.heatmap.Throughput`): as is expected of a
pair of which nothing is known, so it is tried."""


class FewPartners(Order):
    """Nodes without a job, then those of the loads that are good partners: as many as hold the job. A job is as fast as
    next to the worst of its partners, and slows each of them as a whole, so of these loads it takes those first that
    hold most of it, whichever is best."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        self._heatmap = heatmap

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """The empty nodes, then those of each load."""
        empty = eligible & view.empty
        yield empty
        shared = eligible & ~empty
        if not shared:
            return
        free = rooms()

        def held(nodes: int) -> int:
            return sum(ranks * bits.count(nodes & here) for here, ranks in free)

        loads = [(load, nodes) for load, lanes in view.tenants.items() if (nodes := (lanes[0] | lanes[1]) & shared)]
        loads.sort(key=lambda each: self._badness(job, *each[0]))
        left, chosen = job.procs - held(empty), list[int]()
        for _, nodes in loads:
            chosen.append(nodes)
            left -= held(nodes)
            if left <= 0:
                break
        chosen.sort(key=held, reverse=True)
        yield from chosen
        for nodes in chosen:
            shared &= ~nodes
        yield shared

    def _badness(self, job: Job, app: str, procs: int) -> tuple[float, float]:
        """How bad a partner is: by what both do together, where that is known, else by its rank."""
        heatmap = self._heatmap
        if heatmap is None:
            return 0.0, 0.0
        together = heatmap.throughput and heatmap.throughput.of(job.app, job.procs, app, procs)
        return -(together or UNFELT), heatmap.rank(job.kind, app)
