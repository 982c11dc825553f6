"""Functions for the CPUs of ranks: one list for all nodes, and comparison with reported bindings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vrm.live.launch.base import slot_cpus
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import Topology
from vrm.model import Node, RankSlot


def shared_list(hosts: Sequence[str], cpus: Sequence[Sequence[int]]
                ) -> Sequence[Sequence[int]] | None:
    """Return the CPUs of each rank of a node, if one list fits all nodes; else None.

    `hosts` and `cpus` are those of all ranks. A node with fewer ranks uses the beginning of the list."""
    lists: dict[str, list[Sequence[int]]] = {}
    for host, of_rank in zip(hosts, cpus):
        lists.setdefault(host, []).append(of_rank)
    longest = max(lists.values(), key=len)
    return longest if all(of_host == longest[:len(of_host)]
                          for of_host in lists.values()) else None


def compare_cpus(found: Mapping[int, frozenset[int]], slots: Sequence[RankSlot],
                 nodes: Sequence[Node], topologies: Mapping[str, Topology], unreported: str
                 ) -> BindingCheck:
    """Return the check of bindings if the CPU numbers of ranks are as in `found`. `unreported` says why ranks may be
    missing there."""
    differences, missing = [], 0
    for slot in slots:
        if slot.rank not in found:
            missing += 1
            continue
        wanted = frozenset(slot_cpus(topologies, slot, nodes[slot.node]))
        if found[slot.rank] != wanted:
            differences.append(f"rank {slot.rank} of {nodes[slot.node].name}: runs on CPU "
                               f"{_listed(found[slot.rank])}, wanted CPU {_listed(wanted)}")
    if differences:
        return BindingCheck("mismatch", tuple(differences))
    if missing:
        return BindingCheck("unchecked", (f"{missing} rank(s): {unreported}",))
    return BindingCheck("ok")


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(numbers)))
