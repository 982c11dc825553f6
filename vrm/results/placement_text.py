"""Placements as text for people, and for the columns `nodes`, `cores` and `devices` of `jobs.csv`.

The forms for programs are in `vrm.model.forms.placement_formats`.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, NamedTuple
from collections.abc import Sequence

from vrm.model import bits
from vrm.model.forms.hosts import fold as fold_nodes
from vrm.model.node import CORES, Node
from vrm.model.placement import SMALL, CoreLayout, Placement, in_lane
from vrm.results.job_columns import JobFileError
from vrm.system.printing.text import printable

MOST_NODES = 1_000_000
"""Maximum number of nodes of a job."""

Runs = list[tuple[int, int]]
"""Ranges of neighbouring nodes or cores: pairs of the first number and the last number plus one, ascending."""


def unfold_nodes(text: str) -> list[str]:
    """Return the names that `fold_nodes` has folded. Raises JobFileError for a text that it cannot have written."""
    if "[" not in text and "," not in text:
        return [text] if text else []
    from ClusterShell.NodeSet import NodeSet, NodeSetException
    try:
        if sum(map(_number_of, re.split(r",(?![^\[]*\])", text))) > MOST_NODES:
            raise ValueError("more nodes than any machine has")
        return list(NodeSet(text))
    except (NodeSetException, ValueError) as error:
        raise JobFileError(f"nodes `{printable(text, 60)}`: {printable(str(error), 100)}") from error


def _number_of(text: str) -> int:
    """Return how many names a folded name has: numbers and ranges in brackets are added, and several brackets
    multiplied."""
    return math.prod(sum(max(1, int(last or first) - int(first) + 1)
                         for first, last in re.findall(r"(\d+)(?:-(\d+))?", each))
                     for each in re.findall(r"\[([^\]]*)\]?", text))


class CoreRange(NamedTuple):
    """Cores `first` to `last` (inclusive, logical numbers within the socket) of a socket."""

    socket: int
    first: int
    last: int


def parse_cores(text: str) -> list[tuple[str, list[CoreRange]]]:
    """Return nodes and their cores, in the order of the ranks, from the column `cores`.

    Raises JobFileError if the text does not have the form of `PlacementText.cores`.
    """
    placed = []
    for part in text.split(";") if text else ():
        name, colon, places = part.partition(":")
        ranges = []
        for place in places.split("+"):
            found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})(?:-([0-9]{1,6}))?", place)
            socket, first, last = map(int, found.groups(found[2])) if found else (0, 1, 0)
            if first > last or not colon:
                raise JobFileError(f"cores `{printable(part, 60)}` are not of the form "
                                   "node:socket/first-last")
            ranges.append(CoreRange(socket, first, last))
        placed.append((name, ranges))
    return placed


@lru_cache(maxsize=4096)
def cores_text(sockets: Sequence[int], cores: int) -> str:
    """Return a set of cores of a node, numbered from 0, as text: `0/0-3+1/0` are cores 0 to 3 of socket 0 and core 0
    of socket 1."""
    texts = []
    for socket, count in enumerate(sockets):
        texts += [f"{socket}/{first}" if stop == first + 1 else f"{socket}/{first}-{stop - 1}"
                  for first, stop in bits.runs(cores & ((1 << count) - 1))]
        cores >>= count
    return "+".join(texts)


class PlacementText:
    """Writes placements on one cluster for the columns `nodes`, `cores` and `devices`.

    The work is done for each range of neighbouring nodes, or each node, never for each rank, because a simulation
    writes hundreds of thousands of placements.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._regular = _numbered_in_order([node.name for node in nodes])
        self._filled: dict[tuple[str, int, int], tuple[list[int], list[int], str]] = {}
        self._ranges: dict[tuple[int, int], tuple[int, int, str]] = {}
        self._known: dict[Any, tuple[str, str]] = {}

    def nodes(self, placement: Placement) -> str:
        """Return the nodes of a placement, folded: `n[0-3,7]`. The order of the ranks is lost."""
        return self.folded(bits.runs(placement.node_set))

    def folded(self, runs: Runs) -> str:
        """Return the names of nodes, folded."""
        if self._regular is None:
            return fold_nodes(self._nodes[node].name for first, stop in runs for node in range(first, stop))
        prefix, least = self._regular
        numbers = ",".join([str(first + least) if first == stop - 1 else f"{first + least}-{stop - 1 + least}"
                            for first, stop in runs])
        return f"{prefix}{numbers}" if numbers.isdigit() else f"{prefix}[{numbers}]"

    def cores(self, placement: Placement) -> str:
        """Return the cores of a placement by node, in the order of the ranks.

        `n0:0/0-3+1/0-3;n1:0/5` is cores 0 to 3 of both sockets of n0, then core 5 of socket 0 of n1 (logical numbers
        within the socket).
        """
        nodes = self._nodes
        return ";".join(f"{nodes[node].name}:{cores_text(nodes[node].sockets, cores)}"
                        for node, _, cores in placement.on_nodes(nodes))

    def devices(self, placement: Placement) -> str:
        """Return the devices of a placement by node: `n0:gpu/0,2;n1:gpu/1+mic/0` are GPUs 0 and 2 of n0, GPU 1 and
        MIC 0 of n1. Devices of single tasks come first, in the order of the tasks."""
        return ";".join(f"{self._nodes[node].name}:" + "+".join(
            f"{name}/{','.join(map(str, indices))}" for name, indices in here.items())
            for node, here in placement.devices.items())

    # Whole ranges of nodes or cores.

    def columns(self, placement: Placement) -> tuple[str, str]:
        """Return the columns `nodes` and `cores`."""
        if placement.size > SMALL or placement.most is not None or placement.parts:
            return self._columns(placement)
        # Small jobs often get the same placements again.
        key = placement.share, placement.room, placement.order, placement.procs, placement.width
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= 50_000:
                self._known.clear()
            known = self._known[key] = self._columns(placement)
        return known

    def _columns(self, placement: Placement) -> tuple[str, str]:
        if placement.parts:
            return self.nodes(placement), ";".join(self.columns(part)[1] for part in placement.parts)
        if placement.share == CORES:
            return self.of_cores(bits.runs(placement.taken), placement.layout)
        runs = [bits.runs(group) for group in placement.order]
        nodes = self.folded(runs[0]) if len(runs) == 1 else self.nodes(placement)
        lane0 = placement.room[0]
        # Other resources limit the ranks of a node, or the nodes are used in different lanes.
        if placement.most is not None or any(group & lane0 and group & ~lane0 for group in placement.order):
            return nodes, self.cores(placement)
        parts: list[str] = []
        left = placement.procs
        for group, some in zip(placement.order, runs):
            left = self._fill(parts, some, placement.share, 0 if group & lane0 else 1, placement.width, left)
        return nodes, ";".join(parts)

    def of_nodes(self, runs: Runs, share: str, procs: int) -> tuple[str, str]:
        """Return both columns of `procs` ranks of one core that fill these nodes on lane 0."""
        parts: list[str] = []
        self._fill(parts, runs, share, 0, 1, procs)
        return self.folded(runs), ";".join(parts)

    def _fill(self, parts: list[str], runs: Runs, share: str, lane: int, width: int, left: int) -> int:
        """Append the texts of nodes that are filled by `left` ranks; return how many ranks remain."""
        ranks, at, text = self._full(share, lane, width)
        for first, stop in runs:
            here = ranks[stop] - ranks[first]
            if here > left:  # the last node may stay partly filled
                self._partly(parts, first, share, lane, width, left)
                return 0
            parts.append(text[at[first]:at[stop] - 1])
            left -= here
        return left

    def _full(self, share: str, lane: int, width: int) -> tuple[list[int], list[int], str]:
        """Return, for all nodes when filled: the number of ranks before each node, the offset of each node's text,
        and the text of all nodes, from which the text of neighbours is cut."""
        known = self._filled.get((share, lane, width))
        if known is None:
            ranks, at, texts = [0], [0], []
            for node in self._nodes:
                here = node.capacity(share, lane, width)
                ranks.append(ranks[-1] + here)
                texts.append(self._on_node(node, share, lane, width, here))
                at.append(at[-1] + len(texts[-1]) + 1)
            known = self._filled[share, lane, width] = ranks, at, ";".join(texts)
        return known

    @staticmethod
    def _on_node(node: Node, share: str, lane: int, width: int, ranks: int) -> str:
        cores = in_lane(node.sockets, share, lane, width, ranks)
        return f"{node.name}:{cores_text(node.sockets, cores)}" if ranks else ""

    def _partly(self, parts: list[str], first: int, share: str, lane: int, width: int, left: int) -> None:
        """Append the texts of the nodes from `first` on that hold the remaining `left` ranks."""
        for node in self._nodes[first:]:
            here = min(left, node.capacity(share, lane, width))
            parts.append(self._on_node(node, share, lane, width, here))
            left -= here
            if left <= 0:
                break

    def of_cores(self, runs: Runs, layout: CoreLayout) -> tuple[str, str]:
        """Return both columns of cores, numbered as in their layout."""
        known = self._ranges
        parts: list[str] = []
        nodes: list[tuple[int, int]] = []
        for cores in runs:
            if cores not in known:
                if len(known) >= 100_000:
                    known.clear()
                known[cores] = self._range(layout, *cores)
            first, stop, text = known[cores]
            if nodes and first <= nodes[-1][1]:
                if first < nodes[-1][1]:  # more of the same node
                    parts[-1] += "+" + text.partition(":")[2]
                else:
                    parts.append(text)
                nodes[-1] = nodes[-1][0], stop
            else:
                parts.append(text)
                nodes.append((first, stop))
        return self.folded(nodes), ";".join(parts)

    def _range(self, layout: CoreLayout, start: int, stop: int) -> tuple[int, int, str]:
        """Return the first node of a range of cores, the last node plus one, and the text of the range."""
        by_node: dict[int, list[str]] = {}
        for node, socket, first, end in layout.span(start, stop):
            by_node.setdefault(node, []).append(
                f"{socket}/{first}" if end - first == 1 else f"{socket}/{first}-{end - 1}")
        text = ";".join(f"{self._nodes[node].name}:{'+'.join(places)}"
                        for node, places in by_node.items())
        return min(by_node), max(by_node) + 1, text


def _numbered_in_order(names: Sequence[str]) -> tuple[str, int] | None:
    """Return prefix and first number of consecutive names such as n4, n5, n6; None if the names have another form."""
    prefix = names[0].rstrip("0123456789")
    if any(char.isdigit() for char in prefix) or not names[0][len(prefix):]:
        return None
    first = int(names[0][len(prefix):])
    if any(name != f"{prefix}{number}" for number, name in enumerate(names, first)):
        return None
    return prefix, first
