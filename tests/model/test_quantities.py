"""Times, moments and sizes as people and batch systems write them are read back."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from vrm.ext.pbs.resources import clock as of_qstat
from vrm.ext.slurm.forms.times import elapsed, used
from vrm.model.quantities import (LOG_MEMORY, PBS_MEMORY, PEOPLE, SLURM_MEMORY, MemoryDialect, clock, memory_bytes, memory_text,
                                  seconds_of_parts, slurm_seconds, repeated, said, scale, seconds_of)
from vrm.system.printing.local_times import STANDARD, parse_local_time, local_time_text

SECONDS = st.integers(0, 40_000_000)


@given(seconds=SECONDS)
def test_what_is_printed_is_read_back(seconds: int) -> None:
    assert slurm_seconds(elapsed(seconds)) == slurm_seconds(used(seconds)) == seconds
    assert seconds_of_parts(clock(seconds)) == seconds_of_parts(of_qstat(seconds)) == slurm_seconds(clock(seconds)) == seconds
    assert abs(seconds_of(said(seconds)) - seconds) < 86400 / 2


@given(days=st.integers(0, 99), hours=st.integers(0, 99), minutes=st.integers(0, 99), seconds=st.integers(0, 99))
def test_each_part_counts(days: int, hours: int, minutes: int, seconds: int) -> None:
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert seconds_of_parts(f"{days}:{hours}:{minutes}:{seconds}") == slurm_seconds(f"{days}-{hours}:{minutes}:{seconds}") == whole
    assert slurm_seconds(f"{days}-{hours}:{minutes}") == seconds_of_parts(f"{days}-{hours}:{minutes}") == whole - seconds
    assert slurm_seconds(f"{days}-{hours}") == whole - seconds - 60 * minutes
    assert slurm_seconds(f"{minutes}:{seconds}") == seconds_of_parts(f"{minutes}:{seconds}") == 60 * minutes + seconds
    assert (slurm_seconds(f"{minutes}"), seconds_of_parts(f"{seconds}.5")) == (60 * minutes, seconds + 0.5)


@pytest.mark.parametrize("text", ["", "-", "x", "1:", ":1", "1-", "-1:00", "1--2", "1:2:3:4:5", "1-2:3:4:5", "1e3", "٣", "1 2", "1.5:2"])
def test_anything_else_is_refused(text: str) -> None:
    for read in (seconds_of_parts, slurm_seconds):
        with pytest.raises(ValueError):
            read(text)


@pytest.mark.parametrize("text", ["1:2:3:4", "1.5", "1:2.5"])
def test_slurm_has_neither_four_parts_nor_fractions(text: str) -> None:
    assert seconds_of_parts(text) > 0
    with pytest.raises(ValueError):
        slurm_seconds(text)


@given(st.integers(1, 1 << 50))
def test_sizes_are_printed_whole_and_read_back(size: int) -> None:
    assert memory_bytes(memory_text(size)) == size
    assert [scale(letter) for letter in ("", "k", "M", "g", "T", "p")] == [1024 ** power for power in range(6)]


@given(st.integers(1_000_000_000, 2_000_000_000))
def test_moments_are_printed_and_read_back_by_the_first_form_that_fits(moment: int) -> None:
    for form in (STANDARD, "%a %b %d %H:%M:%S %Y", "%Y-%m-%d %H:%M:%S"):
        assert local_time_text(parse_local_time(local_time_text(moment, form), "%H:%M", form), form) == local_time_text(moment, form)
    at = parse_local_time("14:30", "%H:%M:%S", "%H:%M", now=moment)
    assert local_time_text(at, "%F %T") == f"{local_time_text(moment, '%F')} 14:30:00"


@pytest.mark.parametrize("text", ["", "24:00", "2026-02-30T00:00:00", "99999999999-01-01T00:00:00"])
def test_what_is_in_no_form_is_not_a_moment(text: str) -> None:
    with pytest.raises(ValueError):
        parse_local_time(text, "%H:%M", STANDARD)


@pytest.mark.parametrize("dialect, sizes", [
    (PEOPLE, {"4G": 4 << 30, "4gib": 4 << 30, "1.5K": 1536, "7B": 7, "4": None, "0B": None, "1P": None, "4Gw": None}),
    (SLURM_MEMORY, {"4G": 4 << 30, "4gb": 4 << 30, "4": 4 << 20, "0": 0, "1.5G": None, "7B": None, "4GiB": None}),
    (PBS_MEMORY, {"4gb": 4 << 30, "4g": 4 << 30, "4": 4, "2kw": 16 << 10, "1w": 8, "1.5gb": None, "4GiB": None}),
    (LOG_MEMORY, {"62.50G": 125 << 29, "1 kw": 8 << 10, "4096mb": 4 << 30, "7": 7, "4e": None, "iB": None})])
def test_sizes_are_read_as_their_writer_has_them(dialect: MemoryDialect, sizes: dict[str, int | None]) -> None:
    for text, size in sizes.items():
        if size is None:
            with pytest.raises(ValueError):
                memory_bytes(text, dialect)
        else:
            assert memory_bytes(text, dialect) == size, text


def test_equal_numbers_of_nodes_are_counted() -> None:
    assert (repeated([4, 4, 2]), repeated([1]), repeated([])) == ("4(x2),2", "1", "")
