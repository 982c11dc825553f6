"""Compares an edited queue file with its accepted lines: which were changed, removed or added.

Lines are compared by digests of their words, in order. Equal lines at both ends of a part, and lines that occur once
in both files, are matched (patience diff). The lines left between matches were changed, one by one in order. A line
may be changed only while its jobs may still be replaced (`free`). Otherwise nothing is guessed: the result is
`AmbiguousEdit`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple
from collections.abc import Callable, Iterator, Sequence

Pair = tuple[int, int]
"""A line of the old file, and the matching line of the new one."""

Block = tuple[int, int, int, int]
"""A part of both files: begin and end line in the old one, begin and end line in the new one."""

Ask = Callable[[int], bool]


class Edit(NamedTuple):
    """The changes to the accepted lines; lines are counted from 0 in each file.

    `changed` and `moved` are pairs, `gone` old lines, `new` lines that were added before the last line that was
    there. `reached` is the number of lines of the new file that this covers: later lines were appended."""

    changed: list[Pair]
    moved: list[Pair]
    gone: list[int]
    new: list[int]
    reached: int

    @property
    def empty(self) -> bool:
        """Whether all lines are unchanged."""
        return not (self.changed or self.moved or self.gone or self.new)


class AmbiguousEdit(NamedTuple):
    """A change that cannot be resolved. `old` lines, whose jobs can no longer be replaced, were changed: the changed
    lines are among `new`. If `new` is empty, `old` lines were removed that are equal to others whose jobs are in
    another state, or no line is left."""

    old: list[int]
    new: list[int]


def compare(old: Sequence[int], new: Sequence[int], free: Ask, waits: Ask, accept: bool = False
            ) -> Edit | AmbiguousEdit:
    """Return how the file `old` became `new`; both are lists of line digests.

    `free(line)`: the jobs of an old line may still be replaced; `waits(line)`: one of its jobs waits. With `accept`
    no change is unclear: a changed line that is not free counts as removed, and a new one as added.
    """
    kept = matches(old, new)
    edit = Edit([], [], [], [], 0)
    for block in list(_between(kept, len(old), len(new))):
        fixed = _take(block, old, new, free, edit, kept)
        if fixed and not accept:
            return AmbiguousEdit(fixed, list(range(block[2], block[3])))
    edit = _with_moves(edit, old, new, waits)
    if not accept:
        doubtful = _doubtful(old, new, edit.gone, waits)
        if doubtful or (not new and any(map(waits, range(len(old))))):
            return AmbiguousEdit(doubtful or list(range(len(old))), [])
    reached = 1 + max((line for _, line in (*kept, *edit.changed, *edit.moved)), default=-1)
    return edit._replace(new=[line for line in edit.new if line < reached], reached=reached)


def _take(block: Block, old: Sequence[int], new: Sequence[int], free: Ask, edit: Edit, kept: list[Pair]) -> list[int]:
    """Add the changes in this part to the edit, and to `kept` the lines that are equal at the same place; return the
    old lines in it that were changed and are not free."""
    begin, end, first, last = block
    both = min(end - begin, last - first)
    fixed = []
    for one, other in zip(range(begin, begin + both), range(first, first + both)):
        if old[one] == new[other]:
            kept.append((one, other))
        elif free(one):
            edit.changed.append((one, other))
        else:
            fixed.append(one)
            edit.gone.append(one)
            edit.new.append(other)
    left = range(begin + both, end)
    edit.gone.extend(left)
    edit.new.extend(range(first + both, last))
    return fixed + [one for one in left if both and not free(one)]


def _with_moves(edit: Edit, old: Sequence[int], new: Sequence[int], waits: Ask) -> Edit:
    """Turn lines that were removed in one place and added in another into moves. Among equal lines, those without
    waiting jobs are matched first, since their jobs must not run again."""
    added: dict[int, list[int]] = {}
    for line in reversed(edit.new):
        added.setdefault(new[line], []).append(line)
    moved = [(line, added[old[line]].pop()) for line in sorted(edit.gone, key=waits) if added.get(old[line])]
    there, here = {line for line, _ in moved}, {line for _, line in moved}
    return edit._replace(moved=sorted(moved, key=lambda pair: pair[1]),
                         gone=[line for line in edit.gone if line not in there],
                         new=[line for line in edit.new if line not in here])


def matches(old: Sequence[int], new: Sequence[int]) -> list[Pair]:
    """Return the lines that are in both files, in order."""
    found: list[Pair] = []
    parts: list[Block] = [(0, len(old), 0, len(new))]
    while parts:
        begin, end, first, last = parts.pop()
        while begin < end and first < last and old[begin] == new[first]:
            found.append((begin, first))
            begin, first = begin + 1, first + 1
        while begin < end and first < last and old[end - 1] == new[last - 1]:
            end, last = end - 1, last - 1
            found.append((end, last))
        once = _once(old, new, (begin, end, first, last))
        found += once
        parts += _between(once, end, last, begin, first) if once else []
    return sorted(found)


def _between(kept: Sequence[Pair], end: int, last: int, begin: int = 0, first: int = 0) -> Iterator[Block]:
    """Yield the parts before, between and after these pairs."""
    for one, other in (*kept, (end, last)):
        if one > begin or other > first:
            yield begin, one, first, other
        begin, first = one + 1, other + 1


def _once(old: Sequence[int], new: Sequence[int], block: Block) -> list[Pair]:
    """Return the longest series of lines that occur once in each part, in the same order in both."""
    begin, end, first, last = block
    if begin == end or first == last or end - begin == last - first == 1:
        return []
    count, others = Counter(old[begin:end]), Counter(new[first:last])
    where = {new[line]: line for line in range(first, last) if others[new[line]] == 1}
    pairs = [(line, where[old[line]]) for line in range(begin, end)
             if count[old[line]] == 1 and old[line] in where]
    ends: list[int] = []  # last line of the best series of each length (patience sorting)
    rows: list[int] = []  # the number of that pair
    before: list[int] = []
    for number, (_, line) in enumerate(pairs):
        at = bisect_left(ends, line)
        ends[at:at + 1], rows[at:at + 1] = [line], [number]
        before.append(rows[at - 1] if at else -1)
    found, number = [], rows[-1] if rows else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


def _doubtful(old: Sequence[int], new: Sequence[int], gone: Sequence[int], waits: Ask) -> list[int]:
    """Return lines that are equal to a removed one, if some of these equal lines have waiting jobs and others do not:
    it is unknown which of them were removed."""
    removed = {old[line] for line in gone}.intersection(new)
    same: dict[int, list[int]] = {}
    for line, text in enumerate(old) if removed else ():
        if text in removed:
            same.setdefault(text, []).append(line)
    return [line for lines in same.values() if len(set(map(waits, lines))) > 1 for line in lines]
