"""Compares where the ranks of a job really run with their assigned cores."""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Mapping, Sequence

from vrm.live.nodes.topology import Topology, fold
from vrm.model import Node, RankSlot


@dataclass(frozen=True)
class BindingCheck:
    """Result of the comparison: `state` is ok, mismatch, unchecked (not all ranks were reported) or unbound (on
    purpose). `differences` are texts about what differs or is missing."""

    state: str
    differences: tuple[str, ...] = ()


def compare_affinity(slots: Sequence[RankSlot], nodes: Sequence[Node],
                     topologies: Mapping[str, Topology],
                     ranks_by_host: Mapping[str, Mapping[int, frozenset[int]]]) -> BindingCheck:
    """Compare the CPUs that ranks may use, by host and rank, with the cores of their slots.

    A rank is right if all of its CPUs belong to cores of its slot: one hardware thread of a core counts as the core,
    and a program may have narrowed its own binding. Ranks on nodes without a topology or with a synthetic one, and
    ranks that were not found, are not compared; the state is then unchecked, unless another rank differs.
    """
    hosts_of: dict[int, set[str]] = {}
    for host, ranks in ranks_by_host.items():
        for rank in ranks:
            hosts_of.setdefault(rank, set()).add(host)
    differences, unknown, missing = [], [], []
    for slot in slots:
        host = nodes[slot.node].name
        topology = topologies.get(host)
        elsewhere = hosts_of.get(slot.rank, set()) - {host}
        cpus = ranks_by_host.get(host, {}).get(slot.rank)
        if elsewhere:
            differences.append(f"rank {slot.rank} runs on {', '.join(sorted(elsewhere))}, "
                               f"wanted {host}")
        elif topology is None or topology.synthetic:
            unknown.append(slot.rank)
        elif cpus is None:
            missing.append(slot.rank)
        else:
            difference = _difference(topology, slot, cpus)
            if difference:
                differences.append(f"rank {slot.rank} of {host}: {difference}")
    if differences:
        return BindingCheck("mismatch", tuple(differences))
    reasons = [f"rank(s) {fold(ranks)} {text}" for ranks, text in (
        (unknown, "run on emulated cores"), (missing, "were not found on their node")) if ranks]
    return BindingCheck("unchecked" if reasons else "ok", tuple(reasons))


def _difference(topology: Topology, slot: RankSlot, cpus: frozenset[int]) -> str:
    """Return what is wrong with the CPUs of a rank, "" if nothing."""
    try:
        wanted = [topology.core(slot.socket, core) for core in slot.cores]
    except IndexError:
        return f"has no socket {slot.socket} with core {max(slot.cores)}"
    mine = {cpu for core in wanted for cpu in core.cpus}
    if cpus <= mine:
        return ""
    return (f"may use CPU {fold(cpus)}, wanted {fold(mine)} (socket {slot.socket} core "
            f"{fold(slot.cores)})")
