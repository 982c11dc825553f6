"""Workloads in which a given share of the jobs is malleable, whatever the workload itself says.

Traces have one rank per processor, and a rank keeps at least one core, so such jobs have no cores to lend. Here
every job becomes a hybrid job, with one rank on each socket of its nodes and one thread on each of its cores, on as
large a part of the machine as it had in the trace. Whether a job is malleable is drawn from the seed and its id.
Therefore the malleable jobs of a smaller share are a subset of those of a larger share."""

from __future__ import annotations

import math
import random
from typing import Any
from collections.abc import Iterable, Iterator

from vrm.model.cluster import Cluster
from vrm.workload.submission import Submission


class HybridWorkload:
    """A workload whose jobs run on whole nodes of a cluster of equal nodes and sockets; a fraction `share` of them
    is malleable. `processors` is the size of the machine of the trace, if known. Everything else is taken from the
    source workload. Raises ValueError with the remedy if the nodes are not equal or have no core to lend, or if the
    share is not from 0 to 1."""

    def __init__(self, source: Iterable[Submission], cluster: Cluster, share: float, seed: int = 1,
                 processors: int | None = None) -> None:
        shapes = {count for node in cluster.nodes for count in node.sockets}
        if len({node.sockets for node in cluster.nodes}) > 1 or len(shapes) > 1:
            raise ValueError("malleable jobs are drawn for machines of equal nodes with equal sockets")
        self._sockets, self._cores = len(cluster.nodes[0].sockets), shapes.pop()
        if self._cores < 2:
            raise ValueError("a rank on a socket of 1 core has none to lend; give the nodes' sockets and "
                             "cores, as --nodes 100 --sockets 2 --cores 8")
        if not 0 <= share <= 1:
            raise ValueError(f"a share of the jobs is from 0 to 1, not {share:g}")
        self._source, self._share, self._seed = source, share, seed
        self._nodes = len(cluster.nodes)
        self._processors = processors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def nodes(self, cores: int) -> int:
        """Return the number of nodes of a job that requests `cores` cores: as large a part of the machine as in the
        trace; if the size of the trace's machine is unknown, the nodes that have as many cores."""
        if self._processors:
            return min(self._nodes, math.ceil(cores * self._nodes / self._processors))
        return math.ceil(cores / (self._sockets * self._cores))

    def __iter__(self) -> Iterator[Submission]:
        for one in self._source:
            job = one.job
            ranks = self.nodes(job.procs * job.cores) * self._sockets
            request = job.request._replace(tasks=ranks, cores_per_task=self._cores, nodes=(1, 0),
                                           tasks_per_node=0)
            drawn = random.Random(f"{self._seed}:{job.id}").random() < self._share
            yield one._replace(job=job.but(request=request, procs=ranks, cores=self._cores,
                                           malleable=drawn))
