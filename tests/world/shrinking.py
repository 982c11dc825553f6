"""Shrinks a failing plan: removes the faults, acts and lines without which the world still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from world.plan import Fault, Plan

MOST = 400
"""Maximum number of worlds that are tried."""


def without(faults: Sequence[Fault], gone: set[int]) -> tuple[Fault, ...]:
    """Return the faults without those at the indices `gone`; the others keep their times."""
    kept, gap = list[Fault](), 0
    for at, fault in enumerate(faults):
        gap += fault.gap
        if at not in gone:
            kept.append(fault._replace(gap=gap))
            gap = 0
    return tuple(kept)


def reduced(count: int, fails: Callable[[set[int]], bool]) -> set[int]:
    """Return the indices of the items, out of `count`, that can be removed: tries large groups first, then single items."""
    gone, size = set[int](), max(1, count // 2)
    while True:
        changed = False
        for begin in range(0, count, size):
            part = {at for at in range(begin, min(count, begin + size)) if at not in gone}
            if part and fails(gone | part):
                gone |= part
                changed = True
        if size == 1 and not changed:
            return gone
        size = max(1, size // 2)


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return a smaller plan that also fails."""
    left = [MOST]

    def tried(candidate: Plan) -> bool:
        left[0] -= 1
        return left[0] >= 0 and fails(candidate)

    def of(name: str, value: Any) -> None:
        nonlocal plan
        items: Sequence[Any] = getattr(plan, name)
        gone = reduced(len(items), lambda gone: tried(plan.but(**{name: value(items, gone)})))
        if gone:
            plan = plan.but(**{name: value(items, gone)})

    def kept(items: Sequence[Any], gone: set[int]) -> tuple[Any, ...]:
        # Keep the act that releases all held jobs: without it no world would end.
        return tuple(item for at, item in enumerate(items) if at not in gone or getattr(item, "value", None) == "all")

    of("faults", without)
    of("acts", kept)
    of("lines", kept)
    of("faults", without)
    return plan
