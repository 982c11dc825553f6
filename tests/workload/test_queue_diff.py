"""What was done to a queue file is found by comparing lines, or it is said that it is not clear."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from vrm.run.journal.queue_lines import Lines
from vrm.workload.queue_diff import Edit, AmbiguousEdit, compare


def compared(old: str, new: str, ran: Sequence[int] = (), accept: bool = False) -> Edit | AmbiguousEdit:
    """Lines are letters; jobs of the lines `ran` have run, all others wait."""
    return compare([*map(ord, old)], [*map(ord, new)], lambda line: line not in ran, lambda line: line not in ran, accept)


@pytest.mark.parametrize("old, new, ran, found", [
    ("abc", "abcd", [], Edit([], [], [], [], 3)),            # appended
    ("abc", "axc", [], Edit([(1, 1)], [], [], [], 3)),       # changed
    ("abc", "ac", [0], Edit([], [], [1], [], 2)),            # a waiting one removed
    ("abc", "bc", [0], Edit([], [], [0], [], 2)),            # one that ran removed
    ("abcd", "abxcd", [0, 1], Edit([], [], [], [2], 5)),     # added between
    ("abcdef", "abdefg", [0, 1], Edit([], [], [2], [], 5)),
    ("abc", "bca", [0], Edit([], [(0, 2)], [], [], 3)),      # moved, and not to run again
    ("aab", "ab", [], Edit([], [], [1], [], 2)),
    ("abc", "", [0, 1, 2], Edit([], [], [0, 1, 2], [], 0)),
    ("abc", "xbc", [0], AmbiguousEdit([0], [0])),                  # one that ran changed
    ("bb", "aba", [], Edit([(0, 0)], [], [], [], 2)),        # the second line is as it was
    ("aab", "ab", [0], AmbiguousEdit([0, 1], [])),                 # which of two equal ones?
    ("abc", "", [0], AmbiguousEdit([0, 1, 2], []))])
def test_what_was_done_to_a_file(old: str, new: str, ran: list[int], found: Edit | AmbiguousEdit) -> None:
    assert compared(old, new, ran) == found


def test_what_is_not_clear_can_be_accepted() -> None:
    assert compared("abc", "xyz", [0, 1, 2], accept=True) == Edit([], [], [0, 1, 2], [], 0)
    assert compared("abc", "xbc", [0], accept=True) == Edit([], [], [0], [0], 3)


@settings(max_examples=2000)
@given(st.text("abc", max_size=8), st.text("abcx", max_size=8), st.sets(st.integers(0, 7)), st.booleans())
def test_an_edit_makes_the_new_file_of_the_old_one(old: str, new: str, ran: set[int], accept: bool) -> None:
    """Carried out step by step, as a manager does it; what has run is neither changed nor run again."""
    found = compared(old, new, sorted(ran), accept)
    if isinstance(found, AmbiguousEdit):
        assert not accept
        return
    lines = Lines()
    for at, letter in enumerate(old):
        lines.add(ord(letter), [at])
    for line, at in found.changed:
        assert line not in ran
        lines.change(line, ord(new[at]))
    lines.take_out(found.gone, [(line, at - sum(each < at for each in found.new)) for line, at in found.moved])
    for at in found.new:
        lines.add(ord(new[at]), [100 + at], at)
    assert [*map(chr, lines.digests)] == [*new[:found.reached]]
    for at in range(len(lines)):
        job_id, = lines.jobs(at)
        assert job_id not in ran or new[at] == old[job_id]
    if not accept:  # a line that is there as often as before, or seldomer, brings no new job
        more = [*(new[at] for at in found.new), *new[found.reached:]]
        for letter in set(more):
            assert new.count(letter) > old.count(letter) or any(old[line] == letter for line, _ in found.changed)


@pytest.mark.parametrize("kinds", [1, 7, 10 ** 6])
def test_large_files_are_compared_quickly(kinds: int) -> None:
    old = [number % kinds for number in range(100_000)]
    new = [-1 - number if number % 2 else line for number, line in enumerate(old)]
    begin = time.process_time()
    found = compare(old, new, lambda line: True, lambda line: True)
    assert isinstance(found, Edit) and len(found.changed) == 50_000
    assert time.process_time() - begin < 10
