"""A failure with less in it: the faults, acts and lines without which a world still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from world.plan import Fault, Plan

MOST = 400
"""Worlds that are tried at most."""


def without(faults: Sequence[Fault], gone: set[int]) -> tuple[Fault, ...]:
    """The faults but for some; the others come as late as before."""
    kept, gap = list[Fault](), 0
    for at, fault in enumerate(faults):
        gap += fault.gap
        if at not in gone:
            kept.append(fault._replace(gap=gap))
            gap = 0
    return tuple(kept)


def reduced(count: int, fails: Callable[[set[int]], bool]) -> set[int]:
    """Of so many things the numbers of those that can be left out: first many at once, then each."""
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
    """A smaller plan that fails, too."""
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
        # Who has held jobs lets them go: else nothing would ever end.
        return tuple(item for at, item in enumerate(items) if at not in gone or getattr(item, "value", None) == "all")

    of("faults", without)
    of("acts", kept)
    of("lines", kept)
    of("faults", without)
    return plan
