"""The node order `partners`: a job gets nodes of few partners, which together with it have a high throughput."""

from __future__ import annotations

from collections.abc import Iterator

from vrm.model import bits
from vrm.model.cluster import Pool
from vrm.model.job import Job
from vrm.model.measured.heatmap import Heatmap
from vrm.model.policies import Rooms
from vrm.scheduling.placement.node_orders import Order

NO_SLOWDOWN = 2.0
"""Joint throughput of two jobs that do not slow each other (`vrm.model.measured.heatmap.Throughput`). It is
assumed for unknown pairs, so that they are tried."""


class FewPartners(Order):
    """Orders empty nodes first, then the nodes of the best partner loads, with as many loads as are needed to
    hold the job. A job is as slow as next to its worst partner, and slows each partner as a whole. So among
    these loads it takes first those that hold most of the job, not the best partner."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        self._heatmap = heatmap

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """Yield the empty nodes, then those of each load."""
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
        """Return how bad a partner is: by the joint throughput if it is known, otherwise by its rank."""
        heatmap = self._heatmap
        if heatmap is None:
            return 0.0, 0.0
        together = heatmap.throughput and heatmap.throughput.of(job.app, job.procs, app, procs)
        return -(together or NO_SLOWDOWN), heatmap.rank(job.kind, app)
