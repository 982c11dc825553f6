"""Sets of nodes as integers: bit i is node i.

An `&` over five thousand nodes takes nanoseconds, so a scheduling step can ask which nodes are free without a loop
over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator


count = int.bit_count
"""Return the number of nodes in a set."""


def members(bits: int) -> Iterator[int]:
    """Yield the nodes of the set in ascending order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def lowest(bits: int, wanted: int) -> int:
    """Return the subset of the `wanted` lowest-numbered nodes (the whole set if it has fewer)."""
    if wanted <= 0:
        return 0
    if wanted == 1:
        return bits & -bits
    size = bits.bit_length()
    first, part, length = 0, bits, size
    if size > 1000:  # look above the first node only as far as necessary
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
    """Return the set as ranges: pairs (first member, one past the last), ascending."""
    found = []
    stop = bits.bit_length()
    below = (1 << stop) - 1
    while stop:  # from the highest range down: remove the range, then the gap below it
        bits ^= below
        first = bits.bit_length()
        found.append((first, stop))
        below >>= stop - first
        bits ^= below
        stop = bits.bit_length()
        below >>= first - stop
    found.reverse()
    return found
