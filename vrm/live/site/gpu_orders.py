"""What the agents on the nodes must know about GPUs, and stand-ins for GPUs that are not there (VRM_DEVICES)."""

from __future__ import annotations

import os
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.live.batch.allocation import Allocation
from vrm.live.runner import devices
from vrm.live.nodes.topology import Gpu, TopologyError, gpus_of
from vrm.model import Node
from vrm.model.amounts import GPU


def agent_gpu_orders(allocation: Allocation, env: Mapping[str, str], claim: bool
                     ) -> dict[str, dict[str, Any]]:
    """Return, by host, what its agent must know about GPUs (see `agent.device_facts`): what the batch system grants, and
    the directory with stand-ins for GPUs. With `claim`, no other vrm may use them."""
    wanted: dict[str, dict[str, Any]] = {}
    for host in allocation.hosts:
        share = allocation.shares.get(host)
        said: dict[str, Any] = {"claim": True} if claim else {}
        if share is not None and share.indices is not None:
            said["indices"] = list(share.indices)
        if share is not None and share.gpus is not None:
            said["count"] = share.gpus
        if env.get("VRM_DEVICES"):
            said.update(stand_ins=os.path.abspath(env["VRM_DEVICES"]), host=host)
        wanted[host] = said
    return wanted


def stand_ins(env: Mapping[str, str]) -> Callable[[str], Sequence[Gpu]]:
    """Return a function for the GPUs of an emulated node: the stand-ins in the directory that VRM_DEVICES names."""
    def of(host: str) -> Sequence[Gpu]:
        if not env.get("VRM_DEVICES"):
            return ()
        try:
            found = devices.stand_ins(env["VRM_DEVICES"], host)
        except devices.DeviceError as error:
            raise TopologyError(str(error)) from error
        return gpus_of(found)

    return of


def gpus_of_node(node: Node, found: Mapping[str, Sequence[Gpu]]) -> Sequence[Gpu]:
    """Return the GPUs of a node: those that were found, otherwise those that `NodeClasses` declares. Declared GPUs
    count as NVIDIA's; the directory that VRM_DEVICES names can say otherwise."""
    return found.get(node.name) or [Gpu("nvidia", each.index, str(each.index))
                                    for each in node.devices_of(GPU)]
