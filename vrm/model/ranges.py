"""Lists of numbers as people write them, `0-8:2,20`: jobs' ids, indices of arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST_JOBS = 100_000
"""Jobs that one line may make, or name to wait for."""

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")


def member_range(text: str) -> range:
    """The numbers of one part of a list, `7` or `0-8:2`; ValueError for anything else."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    first, last, step = (int(group) if group else None for group in match.groups())
    assert first is not None
    members = range(first, first + 1 if last is None else last + 1, step or 1)
    if not members or len(members) > MOST_JOBS:
        raise ValueError(text)
    return members


def numbers(text: str) -> tuple[int, ...]:
    """The numbers that a list names, each once; ValueError for anything else, and for a list whose
    parts have more than MOST_JOBS together, however often they name the same."""
    parts = []
    total = 0
    for part in text.split(","):
        parts.append(member_range(part))
        total += len(parts[-1])
        if total > MOST_JOBS:
            raise ValueError(text)
    found: dict[int, None] = {}
    for part_numbers in parts:
        found.update(dict.fromkeys(part_numbers))
    return tuple(found)


def fold_range(members: range) -> str:
    """The text that `member_range` reads as these; two numbers that are not neighbours are
    written one by one."""
    if len(members) == 1:
        return str(members[0])
    if len(members) == 2 and members.step > 1:
        return f"{members[0]},{members[1]}"
    return f"{members[0]}-{members[-1]}" + (f":{members.step}" if members.step > 1 else "")


def to_ranges(values: Sequence[int]) -> list[range]:
    """The numbers, in their order, as few plain ranges."""
    found, at = [], 0
    while at < len(values):
        step = values[at + 1] - values[at] if at + 1 < len(values) else 0
        stop = at + 1
        while stop < len(values) and step > 0 and values[stop] - values[stop - 1] == step:
            stop += 1
        if stop - at > 2 or (stop - at == 2 and step == 1):
            found.append(range(values[at], values[stop - 1] + 1, step))
            at = stop
        else:
            found.append(range(values[at], values[at] + 1))
            at += 1
    return found


def fold(values: Sequence[int]) -> str:
    """The shortest plain list that `numbers` reads as these, in their order."""
    return ",".join(map(fold_range, to_ranges(values)))
