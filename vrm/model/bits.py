"""Sets of nodes as integers: bit i stands for node i.

An `&` over five thousand nodes takes nanoseconds, which is what lets a scheduling step ask
"which of all nodes" without walking over them.
"""

from __future__ import annotations

from collections.abc import Iterator


count = int.bit_count
"""How many nodes are in the set."""


def members(bits: int) -> Iterator[int]:
    """The nodes of the set, lowest number first."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def lowest(bits: int, wanted: int) -> int:
    """The subset of the `wanted` lowest-numbered nodes (all of them when there are fewer)."""
    if wanted <= 0:
        return 0
    if wanted == 1:
        return bits & -bits
    size = bits.bit_length()
    first, part, length = 0, bits, size
    if size > 1000:  # look above the first node only as far as need be
        first = (bits & -bits).bit_length() - 1
        length = 4 * wanted if wanted > 15 else 60
        part = bits >> first
        size -= first
        while length < size and count(part & ((1 << length) - 1)) < wanted:
            length *= 4
        if length < size:
            part &= (1 << length) - 1
        else:
            length = size
    if wanted <= 8:
        rest = part
        while wanted and rest:
            rest &= rest - 1
            wanted -= 1
        return (part ^ rest) << first
    below, above = wanted - 1, length  # the answer is `part` cut to a length in (below, above]
    while above - below > 1:
        middle = (below + above) // 2
        if count(part & ((1 << middle) - 1)) < wanted:
            below = middle
        else:
            above = middle
    return (part & ((1 << above) - 1)) << first


def runs(bits: int) -> list[tuple[int, int]]:
    """The set as ranges: pairs of the first member and one past the last, ascending."""
    found = []
    stop = bits.bit_length()
    below = (1 << stop) - 1
    while stop:  # from the highest range down: what is in it, then what is in the gap below
        bits ^= below
        first = bits.bit_length()
        found.append((first, stop))
        below >>= stop - first
        bits ^= below
        stop = bits.bit_length()
        below >>= first - stop
    found.reverse()
    return found
