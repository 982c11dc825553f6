"""Devices: resources of a node that a job gets by index, such as GPUs.

A task with `gpus_per_task` gets the free devices nearest to its cores: first those of its socket, then those whose
socket is unknown, then others; within each group, the lowest index first. The devices of `gpus_per_node` are chosen in
the same way for all tasks of the job on the node together. Devices are GPUs, and whatever else a node lists
(`Node.devices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vrm.model.amounts import GPU, Amounts
from vrm.model.job import Request
from vrm.model.node import Device, Node
from vrm.model.placement import Devices, RankSlot

Held = dict[tuple[int, str], set[int]]
"""The indices that jobs hold, by node and resource."""


def wanted(request: Request, nodes: Sequence[Node]) -> list[str]:
    """Return the names of the requested resources that a job gets by index."""
    asked = {name for name, _ in (*request.per_task, *request.per_node)}
    return [name for name in sorted(asked)
            if name == GPU or any(name in node.devices for node in nodes)]


def choose(request: Request, slots: Iterable[RankSlot], nodes: Sequence[Node], held: Held
           ) -> Devices:
    """Choose devices for a job whose tasks are in `slots`. Raises ValueError if there are too few."""
    names = wanted(request, nodes)
    if not names:
        return {}
    sockets: dict[int, list[int]] = {}
    for slot in slots:
        sockets.setdefault(slot.node, []).append(slot.socket)
    found: dict[int, dict[str, tuple[int, ...]]] = {}
    for node, here in sockets.items():
        for name in names:
            taken = held.get((node, name), set())
            free = [each for each in nodes[node].devices_of(name) if each.index not in taken]
            indices: list[int] = []
            for socket in here:
                indices += _nearest(free, {socket}, _pieces(request.per_task, name))
            indices += _nearest(free, set(here), _pieces(request.per_node, name))
            if indices:
                found.setdefault(node, {})[name] = tuple(indices)
    return found


def of_task(request: Request, name: str, indices: Sequence[int], task: int, tasks: int
            ) -> tuple[int, ...]:
    """Return the devices that task number `task` of `tasks` on a node sees, from the `indices` that its job holds
    there: its own, then those for all tasks."""
    each = _pieces(request.per_task, name)
    return (*indices[task * each:(task + 1) * each], *indices[tasks * each:])


def hold(held: Held, devices: Devices) -> None:
    """Mark devices as held. Raises ValueError if one of them is already held."""
    for node, by_name in devices.items():
        for name, indices in by_name.items():
            taken = held.setdefault((node, name), set())
            twice = taken.intersection(indices)
            if twice:
                raise ValueError(f"{name} {min(twice)} of node {node} is held already")
            taken.update(indices)


def clash(held: Held, devices: Devices) -> bool:
    """Return whether one of these devices is already held."""
    return any(not held.get((node, name), set()).isdisjoint(indices)
               for node, by_name in devices.items() for name, indices in by_name.items())


def free(held: Held, devices: Devices) -> None:
    """Undo `hold`."""
    for node, by_name in devices.items():
        for name, indices in by_name.items():
            held[node, name].difference_update(indices)


def _pieces(amounts: Amounts, name: str) -> int:
    return next((amount // 1000 for wanted, amount in amounts if wanted == name), 0)


def _nearest(free: list[Device], sockets: set[int], number: int) -> list[int]:
    """Remove `number` devices from the list of free ones, nearest first, and return their indices."""
    if number > len(free):
        raise ValueError(f"{number} devices are wanted where {len(free)} are free")
    chosen = sorted(free, key=lambda each: (
        0 if each.socket in sockets else 1 if each.socket < 0 else 2, each.index))[:number]
    for each in chosen:
        free.remove(each)
    return [each.index for each in chosen]
