"""Placement policies: on which nodes a job may run, in what order, and on what share of each.

| policy | eligible nodes | share of a socket | afterwards the node is |
|---|---|---|---|
| compact | empty | all C cores | full |
| spare | empty | C/2 cores | closed to others |
| strip | at most one job, not exclusive | C/2 cores | open to one more job |
| pack | with a free core | free cores, first fit | open while a core is free |

Under strip an exclusive job is placed as under spare, and eligible nodes are taken in the order
of the co-run heatmap: empty ones first, then those whose job is the better partner; a node whose
job does less beside the new one than the two one after the other (as measured) is not eligible.

What a policy must have: `nodes`, `fits`, `place` and `similar`, as LanePolicy has them. With
`room`, `size` and `exact` backfilling counts instead of asking; they may be left out.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple

from vrm.model import bits
from vrm.model.cluster import Cluster, Pool, exact
from vrm.model.heatmap import Heatmap
from vrm.model.job import Infeasible, Job
from vrm.model.node import HALF, WHOLE, lane_of_socket
from vrm.model.placement import CorePlacement, Placement
from vrm.scheduling.registry import PolicyError, Registry

POLICIES = Registry("placement policy")


class LanePolicy:
    """Placement by lanes (see `vrm.model.node`): the common part of compact, spare and strip.

    `share` is what a job takes of a node; `alone(job)` tells whether it must have the node for
    itself, `sole` whether all jobs must. Equal nodes are counted; different nodes, countable resources and features are
    walked node by node, with the same result where both apply.
    """

    def __init__(self, name: str, share: str, alone: Callable[[Job], bool], cluster: Cluster,
                 heatmap: Optional[Heatmap] = None, sole: bool = True) -> None:
        self.name = name
        self.share = share
        self.alone = alone
        self.cluster = cluster
        self.heatmap = heatmap
        self._refusing = heatmap is not None and bool(heatmap.refused)
        self._needs: Dict[Tuple[int, int], int] = {}
        self._room: Tuple[int, int] = (0, 0)
        self._room_generation = -1
        first = cluster.nodes[0]
        second_lane = first.capacity(share, 1, 1) if share == HALF else 0
        self._two_lanes = second_lane > 0
        # On sockets of one core, lane 1 has nothing; on a mix of such sockets and larger ones
        # the lanes differ, and counting nodes will not do.
        self._countable = cluster.uniform and second_lane in (0, first.capacity(share, 0, 1))
        self._exact = self._countable and (sole or not self._two_lanes)
        self._empty_pool = Pool(cluster.nodes)

    # What a job needs.

    def nodes(self, job: Job) -> int:
        """Nodes the job takes on the empty cluster; raises Infeasible when it can never run."""
        if job.resources or job.features:
            return self._walked_nodes(job)
        key = (job.procs, job.cores)
        need = self._needs.get(key)
        if need is None:
            if not self._countable:
                return self._walked_nodes(job)
            each = self.cluster.nodes[0].capacity(self.share, 0, job.cores)
            need = -(-job.procs // each) if each else len(self.cluster.nodes) + 1
            if need > len(self.cluster.nodes):
                raise Infeasible(self._why_never(job))
            self._needs[key] = need
        return need

    def _walked_nodes(self, job: Job) -> int:
        picked = self._walk(job, self._empty_pool, [self._empty_pool.up])
        if picked is None:
            raise Infeasible(self._why_never(job))
        return sum(map(bits.count, picked))

    def _why_never(self, job: Job) -> str:
        nodes = self.cluster.nodes
        lacking = job.features - frozenset().union(*(node.features for node in nodes))
        if lacking:
            return f"no node offers {', '.join(sorted(lacking))}"
        for name, amount in sorted(job.resources.items()):
            most = max(node.resources.get(name, 0) for node in nodes)
            if amount > most:
                return f"a rank wants {amount:g} of {name}, a node has at most {most:g}"
        lanes = [lane_of_socket(c, self.share, 0)[1] for node in nodes for c in node.sockets]
        if job.cores > max(lanes):
            return (f"a rank wants {job.cores} cores of one socket, {self.name} gives a job at "
                    f"most {max(lanes)}")
        fitting = [self._ranks_on(job, self._empty_pool, i) for i in range(len(nodes))]
        return (f"{job.procs} ranks do not fit on {len(nodes)} node(s) under {self.name}, which "
                f"holds at most {sum(fitting)} of them")

    # Whether and where it fits.

    def fits(self, job: Job, pool: Pool) -> bool:
        """Whether the job could start on the pool as it is."""
        if not self._counted(job):
            return self._walk(job, pool, [self._eligible(job, pool)]) is not None
        need = self.nodes(job)
        if need > self._count_room(pool)[self.alone(job)]:
            return False
        return not self._refusing or need <= bits.count(self._eligible(job, pool))

    def room(self, pool: Pool) -> Optional[int]:
        """The largest `size` that any job of the pool may have to fit; None if not countable."""
        return self._count_room(pool)[False] if self._countable else None

    def size(self, job: Job) -> int:
        """What is counted of a job: its nodes."""
        return self.nodes(job)

    def exact(self, job: Job) -> bool:
        """Whether counts say all of the job: it fits where its size does, takes that much room
        and gives as much back."""
        return self._exact and not job.resources and not job.features

    def place(self, job: Job, cluster: Cluster,
              pool: Optional[Pool] = None) -> Optional[Placement]:
        """Where the job would start now, or None when it does not fit; books nothing.

        With `pool`, only on what is free there (it may hold what the cluster has given away).
        """
        if pool is None:
            pool = cluster
        if self._exact and not job.resources and not job.features:
            need = self.nodes(job)
            if need > self._count_room(pool)[True]:
                return None
            chosen = bits.lowest(pool.empty, need)
            closed = self.share == WHOLE or self.alone(job)
            return Placement(self.share, (chosen, chosen if closed else 0), (chosen,), job.procs,
                             job.cores, need)
        if self._counted(job):
            if not self.fits(job, pool):
                return None
            picked = _take(self._groups(job, cluster, pool), self.nodes(job))
        else:
            walked = self._walk(job, pool, self._groups(job, cluster, pool))
            if walked is None:
                return None
            picked = walked
        chosen = 0
        for group in picked:
            chosen |= group
        if self.share == WHOLE or self.alone(job):
            claims = (chosen, chosen)
        else:
            claims = (chosen & pool.free0, chosen & ~pool.free0)
        most = None
        if job.resources:
            most = {index: self._ranks_on(job, pool, index) for index in bits.members(chosen)}
        return Placement(self.share, claims, tuple(picked), job.procs, job.cores, most=most)

    def similar(self, job: Job) -> Optional[Tuple[Hashable, int]]:
        """A class of jobs and the job's size in it.

        In one state of the cluster, of two jobs of a class the larger takes all that the
        smaller takes, and more. None when that can't be promised.
        """
        if not self._counted(job):
            return None
        # Where pairs are refused, on how many ranks they run decides it, too.
        kind = (job.app, job.procs) if self._refusing else job.kind
        return (kind, self.alone(job)), self.nodes(job)

    def _counted(self, job: Job) -> bool:
        return self._countable and not job.resources and not job.features

    def _count_room(self, pool: Pool) -> Tuple[int, int]:
        """Nodes for jobs that share, and for such as want to be alone."""
        if pool is self.cluster and self._room_generation == self.cluster.generation:
            return self._room
        alone = bits.count(pool.empty)
        shared = alone if self._exact else bits.count(pool.free0 | pool.free1)
        if pool is self.cluster:
            self._room = shared, alone
            self._room_generation = self.cluster.generation
        return shared, alone

    def _eligible(self, job: Job, pool: Pool) -> int:
        if self.alone(job):
            return pool.empty
        if self._exact:
            return pool.empty
        return (pool.free0 | pool.free1) & ~self._refused(job, pool)

    def _refused(self, job: Job, pool: Pool) -> int:
        """Nodes with a job beside which the heatmap refuses this one.

        In a pool of the future a lane that is taken counts as taken by whoever has it now.
        """
        closed = 0
        if self._refusing and self.heatmap is not None:
            for (app, procs), (lane0, lane1) in self.cluster.tenants.items():
                if self.heatmap.refuses(job.app, job.procs, app, procs):
                    closed |= (lane0 & pool.busy0) | (lane1 & pool.busy1)
        return closed

    def _groups(self, job: Job, cluster: Cluster, pool: Pool) -> List[int]:
        """Eligible nodes as sets, best set first."""
        empty = pool.empty
        shared = 0 if self._exact else self._eligible(job, pool) & ~empty
        if not shared:
            return [empty]
        if self.heatmap is None:
            return [empty, shared]
        by_rank: Dict[float, int] = {}
        known = 0
        for (app, _), (lane0, lane1) in cluster.tenants.items():
            beside = (lane0 | lane1) & shared
            if beside:
                rank = self.heatmap.rank(job.kind, app)
                by_rank[rank] = by_rank.get(rank, 0) | beside
            known |= beside
        # A lane that is free in a pool of the future may be beside nobody now.
        unknown = shared & ~known
        return [empty, *(by_rank[rank] for rank in sorted(by_rank)), *([unknown] if unknown else [])]

    # Different nodes.

    def _ranks_on(self, job: Job, pool: Pool, index: int) -> int:
        """Ranks of the job that the node takes in this state of the pool."""
        node = pool.nodes[index]
        if not job.features <= node.features:
            return 0
        lane = 0 if pool.free0 >> index & 1 else 1
        ranks = node.capacity(self.share, lane, job.cores)
        for name, amount in job.resources.items():
            if amount > 0:
                left = pool.left[name][index] if name in pool.left else 0
                ranks = min(ranks, int(left // exact(amount)))
        return ranks

    def _walk(self, job: Job, pool: Pool, groups: Sequence[int]) -> Optional[List[int]]:
        """The nodes of the groups that the ranks fill, or None when they do not suffice."""
        left, picked = job.procs, []
        for group in groups:
            chosen = 0
            for index in bits.members(group):
                if left <= 0:
                    break
                here = self._ranks_on(job, pool, index)
                if here:
                    chosen |= 1 << index
                    left -= here
            if chosen:
                picked.append(chosen)
        return picked if left <= 0 else None


def _take(groups: Sequence[int], wanted: int) -> List[int]:
    """The first `wanted` nodes of the groups."""
    picked = []
    for group in groups:
        chosen = bits.lowest(group, wanted)
        if chosen:
            picked.append(chosen)
            wanted -= bits.count(chosen)
        if wanted <= 0:
            break
    return picked


@POLICIES.register("compact")
def compact(cluster: Cluster, heatmap: Optional[Heatmap] = None) -> LanePolicy:
    """One application per node, on all its cores."""
    return LanePolicy("compact", WHOLE, lambda job: True, cluster)


@POLICIES.register("spare")
def spare(cluster: Cluster, heatmap: Optional[Heatmap] = None) -> LanePolicy:
    """One application per node, on half the cores of each socket."""
    return LanePolicy("spare", HALF, lambda job: True, cluster)


@POLICIES.register("strip")
def strip(cluster: Cluster, heatmap: Optional[Heatmap] = None) -> LanePolicy:
    """Two applications per socket, half and half, paired by the heatmap."""
    return LanePolicy("strip", HALF, lambda job: job.exclusive, cluster, heatmap, sole=False)


class PackPolicy:
    """Jobs share nodes core by core: the lowest-numbered free cores, node after node.

    The cores of a rank lie in one socket. Nothing keeps others off a node, so an exclusive job
    is refused.
    """

    name = "pack"

    def __init__(self, cluster: Cluster, heatmap: Optional[Heatmap] = None) -> None:
        self.cluster = cluster
        self._room = 0
        self._room_generation = -1
        self._widest = max(cores for node in cluster.nodes for cores in node.sockets)
        self._empty_pool = Pool(cluster.nodes)
        self._node_cores = cluster.nodes[0].cores if cluster.uniform else 0
        self._needs: Dict[Tuple[int, int], int] = {}

    def nodes(self, job: Job) -> int:
        """Nodes the job touches on the empty cluster; raises Infeasible."""
        if self._node_cores and self.exact(job):
            if job.procs > self.cluster.layout.total:
                raise Infeasible(self._why_never(job))
            return -(-job.procs // self._node_cores)
        need = self._needs.get((job.procs, job.cores)) if self._plain(job) else None
        if need is None:
            placement = self.place(job, self.cluster, self._empty_pool)
            if placement is None:
                raise Infeasible(self._why_never(job))
            need = len(placement.nodes)
            if self._plain(job):
                self._needs[job.procs, job.cores] = need
        return need

    @staticmethod
    def _plain(job: Job) -> bool:
        return not (job.exclusive or job.resources or job.features)

    def _why_never(self, job: Job) -> str:
        if not self._plain(job):
            return "pack takes no exclusive jobs and knows neither resources nor features"
        if job.cores > self._widest:
            return f"a rank wants {job.cores} cores of one socket, the largest has {self._widest}"
        return (f"{job.procs} ranks of {job.cores} core(s) do not fit on the "
                f"{self.cluster.layout.total} cores of {len(self.cluster.nodes)} node(s)")

    def size(self, job: Job) -> int:
        """What is counted of a job: its cores."""
        return job.procs * job.cores

    def room(self, pool: Pool) -> int:
        """Free cores."""
        if pool is self.cluster:
            if self._room_generation != self.cluster.generation:
                self._room = bits.count(pool.free_cores)
                self._room_generation = self.cluster.generation
            return self._room
        return bits.count(pool.free_cores)

    def exact(self, job: Job) -> bool:
        """Whether counts say all: for ranks of one core."""
        return job.cores == 1 and self._plain(job)

    def fits(self, job: Job, pool: Pool) -> bool:
        """Whether the job could start on the pool as it is."""
        if not self._plain(job) or self.size(job) > self.room(pool):
            return False
        return job.cores == 1 or self.place(job, self.cluster, pool) is not None

    def place(self, job: Job, cluster: Cluster,
              pool: Optional[Pool] = None) -> Optional[CorePlacement]:
        """Where the job would start now, or None when it does not fit; books nothing."""
        pool = cluster if pool is None else pool
        if not self._plain(job) or self.size(job) > self.room(pool):
            return None
        free = pool.free_cores
        if job.cores == 1:
            chosen = bits.lowest(free, job.procs)
        else:
            chosen, left = 0, job.procs
            for start, cores in pool.layout.sockets():
                here = free >> start & ((1 << cores) - 1)
                ranks = min(left, bits.count(here) // job.cores)
                chosen |= bits.lowest(here, ranks * job.cores) << start
                left -= ranks
                if not left:
                    break
            if left:
                return None
        return CorePlacement(pool.layout, chosen, job.procs, job.cores)

    def similar(self, job: Job) -> Optional[Tuple[Hashable, int]]:
        """As LanePolicy has it; jobs of one rank width are alike."""
        return (job.cores, self.size(job)) if self._plain(job) else None


POLICIES.register("pack")(PackPolicy)


def make_policy(text: str, cluster: Cluster, heatmap: Optional[Heatmap] = None) -> Any:
    """The placement policy of that name or dotted path, made for a cluster.

    A user's own is a function or class called as `policy(cluster, heatmap)` (see the module's
    text for what its result must have). Raises PolicyError.
    """
    made = POLICIES.make(text, cluster, heatmap)
    if not (hasattr(made, "nodes") and hasattr(made, "place")):
        raise PolicyError(f"`{text}` makes no placement policy; it must give an object with "
                          "`nodes` and `place`")
    return made
