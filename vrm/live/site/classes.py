"""Combines the configuration of nodes (`NodeClasses`) with the resources that were found on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from collections.abc import Sequence

from vrm.config.schema import Settings
from vrm.model import Node
from vrm.model.forms.hosts import fold
from vrm.model.machine import holdings
from vrm.model.measured.power import MARK as POWER_MARK
from vrm.model.queues import MARK


def declared(settings: Settings, nodes: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Return the nodes with the resources of their classes, marked with their queues, and warnings.

    If a resource was also found on the node, the smaller amount counts. A host is matched by its name, or by
    the name up to the first dot. A class without any host in this run gives a warning, not an error: another
    allocation may have its hosts.
    """
    classes = {name: number for number, each in enumerate(settings.node_classes)
               for host in each.names for name in {host, _short(host)}}
    used: dict[int, int] = {}
    warnings: list[str] = []
    found: list[Node] = []
    for node in nodes:
        number = classes.get(node.name, classes.get(_short(node.name)))
        if number is None:
            found.append(node)
            continue
        used[number] = used.get(number, 0) + 1
        said = settings.node_classes[number]
        amounts = dict(node.resources)
        for name, amount in said.amounts().items():
            there = amounts.get(name)
            if there is not None and there < amount:
                warnings.append(f"{node.name}: {amount:g} {name} by NodeClasses, {there:g} found: "
                                f"{there:g} are used")
            amounts[name] = amount if there is None else min(amount, there)
        fewer = {name: listed[:int(amounts.get(name, 0))] for name, listed in node.devices.items()}
        found.append(said.node(replace(node, resources=amounts, devices=fewer)))
    for number, each in enumerate(settings.node_classes):
        if number not in used:
            warnings.append(f"{settings.where(f'NodeClasses.{number}')}: NodeClasses: entry "
                            f"{number + 1}: none of {each.hosts} is a node of this run, which has "
                            + _few(fold(node.name for node in nodes)))
    queues = settings.rules.queues
    for name, missing in queues.unknown_nodes(found).items():
        warnings.append(f"{settings.where(f'Queues.{name}')}: Queues: {name}: {missing[0]} "
                        + (f"and {len(missing) - 1} other(s) are" if len(missing) > 1 else "is")
                        + " no node of this run")
    return tuple(queues.marked(found)), tuple(warnings)


MOST_KINDS = 4
"""Maximum number of kinds of nodes that are described separately. Equal nodes differ in memory by what the kernel
keeps."""


def described(nodes: Sequence[Node]) -> str:
    """Return how many nodes have which resources besides cores; "" if none has any."""
    counts = Counter(holdings(node.resources, frozenset(
        feature for feature in node.features if not feature.startswith((MARK, POWER_MARK)))) for node in nodes)
    del counts[""]
    known = counts.most_common() if len(counts) > MOST_KINDS else list(counts.items())
    text = "".join(f", {count} with {what}" for what, count in known[:MOST_KINDS])
    rest = sum(count for _, count in known[MOST_KINDS:])
    return text + f", {rest} with other amounts" * bool(rest)


def _few(names: str) -> str:
    return names if len(names) <= 60 else names[:59] + "…"


def _short(host: str) -> str:
    return host.partition(".")[0]
