"""Divides the nodes of a site into slots of equal numbers of cores. The site's queue is simulated hundreds of
times, and that takes a hundredth of the time if jobs only count slots.

If no two jobs fit on one node, a slot is a node, and nothing is lost. Otherwise jobs take any free slots: that
a job needs its cores on one node is ignored.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from collections.abc import Sequence

from vrm.ext.forecast.site.snapshot import Place, SiteJob, SiteNode, Snapshot

MOST = 2048
"""Greatest number of slots of a site."""


def cores_per_slot(site: Snapshot, cores: int) -> int:
    """Return the number of cores of a slot; `cores` is the number on each node of our requests. 0: a slot is a
    node."""
    wanted = [each for job in site.jobs for each in ([job.per_node] if job.nodes else [job.cores])]
    if all(2 * each > max(node.cores for node in site.nodes) for each in [*wanted, cores]) and all(
            job.nodes for job in site.jobs):
        return 0
    least = -(-sum(node.cores for node in site.nodes) // MOST)
    return max(math.gcd(*wanted, *(node.cores for node in site.nodes), cores), least)


def in_slots(site: Snapshot, grain: int) -> Snapshot:
    """Return the site with slots instead of nodes; jobs have one core on each of their slots."""
    counts = [max(1, node.cores // grain) if grain else 1 for node in site.nodes]
    firsts = list(itertools.accumulate(counts, initial=0))
    nodes = [SiteNode(node.name, 1, None if node.classes is None else {name: 1 for name, held in node.classes.items()
                                                                      if held}, node.up, node.busy)
             for node, count in zip(site.nodes, counts) for _ in range(count)]
    free = [list(range(first, last)) for first, last in zip(firsts, firsts[1:])]
    reservations = [replace(each, nodes=tuple(itertools.chain.from_iterable(
        range(firsts[node], firsts[node + 1]) for node in each.nodes))) for each in site.reservations]
    return replace(site, nodes=nodes, shared=False, jobs=[_in_slots(job, grain, free) for job in site.jobs],
                   reservations=reservations)


def slots_of(nodes: int, cores: int, grain: int) -> int:
    """Return the number of slots of a job that needs `cores` cores on each of `nodes` nodes."""
    return nodes * max(1, -(-cores // grain)) if grain else nodes


def _in_slots(job: SiteJob, grain: int, free: Sequence[list[int]]) -> SiteJob:
    """Return a job with slots; a running one takes slots of its nodes that are still `free`."""
    number = slots_of(job.nodes, job.per_node, grain) if job.nodes else slots_of(1, job.cores, grain)
    places: list[Place] = []
    if job.places:
        each = -(-number // len(job.places))
        for node, _ in job.places:
            places += [(slot, None) for slot in free[node][:each]]
            del free[node][:each]
    return replace(job, nodes=number, per_node=1, cores=number, places=tuple(sorted(places)))
