"""The file `shares.csv`: which cores the ranks of a job had at which time, for jobs that lent cores or ran on
borrowed ones. It has a line for each node and each change, written when the job has ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Iterable, Iterator, Sequence

from vrm.model import Booking, Cluster, bits
from vrm.model.sharing import core_share
from vrm.model.sharing.core_share import LentCores
from vrm.model.node import Node
from vrm.model.placement import RankSlot
from vrm.model.quantities import seconds_text
from vrm.results.placement_text import cores_text

COLUMNS = ("job", "from", "to", "node", "cores")
HEADER = ",".join(COLUMNS) + "\n"


class HeldCores(NamedTuple):
    """The cores of a job on a node during a period (epoch seconds), in the form of `jobs.csv`: `0/0-3+1/0` are cores
    0 to 3 of socket 0 and core 0 of socket 1."""

    job: int
    begin: float
    end: float
    node: str
    cores: str

    @property
    def line(self) -> str:
        """The line, with its line end."""
        return (f"{self.job},{seconds_text(self.begin)},{seconds_text(self.end)},{self.node},"
                f"{self.cores}\n")


def shared(booking: Booking) -> bool:
    """Return whether a job lent cores, or ran on borrowed ones."""
    return bool(booking.shares) or booking.placement.lease is not None


def periods(booking: Booking, end: float) -> list[tuple[float, float, int]]:
    """Return which cores an ended job had lent and when: begin, end, cores."""
    shares = [LentCores(booking.start, 0), *booking.shares]
    ends = [*(share.since for share in shares[1:]), end]
    return [(share.since, until, share.lent) for share, until in zip(shares, ends)
            if until > share.since]


def _slots(booking: Booking, end: float, cluster: Cluster) -> Iterator[tuple[float, float, Iterator[RankSlot]]]:
    """Yield the rank slots of an ended job for each period: begin, end, slots."""
    placement, layout = booking.placement, cluster.layout
    if placement.lease is not None:
        for begin, until, then in core_share.periods(placement, booking.start, end):
            yield begin, until, then.slots(cluster.nodes)
        return
    for begin, until, cores_lent in periods(booking, end):
        yield begin, until, core_share.slots(placement, cores_lent, cluster.nodes, layout)


def held(booking: Booking, end: float, cluster: Cluster) -> Iterator[HeldCores]:
    """Yield the lines of an ended job."""
    for begin, until, slots in _slots(booking, end, cluster):
        for node, cores in by_node(slots, cluster.nodes).items():
            yield HeldCores(booking.job.id, begin, until, node, cores)


def by_node(slots: Iterable[RankSlot], nodes: Sequence[Node]) -> dict[str, str]:
    """Return the cores of some rank slots by node."""
    found: dict[int, int] = {}
    for slot in slots:
        at = sum(nodes[slot.node].sockets[:slot.socket])
        found[slot.node] = found.get(slot.node, 0) | sum(1 << at + core for core in slot.cores)
    return {nodes[node].name: cores_text(nodes[node].sockets, cores) for node, cores in found.items()}


def lent(booking: Booking, end: float) -> float:
    """Return the core seconds that an ended job had lent."""
    return sum((until - begin) * bits.count(cores) for begin, until, cores in periods(booking, end))


def columns(booking: Booking, end: float) -> dict[str, float]:
    """Return columns of jobs.csv for an ended job: the core seconds that it has lent, the core seconds of a job that
    started on borrowed cores, and how many times its cores changed."""
    placement = booking.placement
    if placement.lease is None:
        return {"lent": lent(booking, end), "borrowed": 0.0, "changes": len(booking.shares)}
    return {"lent": 0.0, "changes": len(placement.grown),
            "borrowed": sum((until - begin) * then.cores for begin, until, then
                            in core_share.periods(placement, booking.start, end))}


def append(path: str | Path, lines: Iterable[HeldCores]) -> None:
    """Append lines to a file, which is created if needed. Raises OSError if it cannot be written, or is a symbolic
    link."""
    text = "".join(each.line for each in lines)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not os.fstat(handle).st_size:
            text = HEADER + text
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def read(path: str | Path) -> list[HeldCores]:
    """Return the lines of a file; empty if there is no file. Raises ValueError, with the place, for an invalid line;
    an incomplete last line is left out."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines[1:], 2):
        if not line.endswith("\n"):
            break
        try:
            job, begin, end, node, cores = line.rstrip("\n").split(",")
            found.append(HeldCores(int(job), float(begin), float(end), node, cores))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: not a line of shares.csv") from error
    return found


def mates_of(booking: Booking) -> tuple[int, ...]:
    """Return the ids of the jobs on whose cores a job started."""
    return tuple(sorted(lender for lender, _ in booking.placement.lent))


def columns_of(booking: Booking, end: float) -> dict[str, Any]:
    """Return the ids of the jobs on whose cores an ended job started, and its `columns`; empty if it shared no
    cores."""
    if not shared(booking):
        return {}
    return {"mates": ",".join(map(str, mates_of(booking))), **columns(booking, end)}
