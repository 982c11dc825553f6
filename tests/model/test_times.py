"""Times as batch systems write them are read back."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from vrm.ext.pbs.words import clock as of_qstat
from vrm.ext.slurm.forms.times import elapsed, used
from vrm.live.batch.base import clock
from vrm.model.times import of_parts, of_slurm, said, seconds_of

SECONDS = st.integers(0, 40_000_000)


@given(seconds=SECONDS)
def test_what_is_printed_is_read_back(seconds: int) -> None:
    assert of_slurm(elapsed(seconds)) == of_slurm(used(seconds)) == seconds
    assert of_parts(clock(seconds)) == of_parts(of_qstat(seconds)) == of_slurm(clock(seconds)) == seconds
    assert abs(seconds_of(said(seconds)) - seconds) < 86400 / 2


@given(days=st.integers(0, 99), hours=st.integers(0, 99), minutes=st.integers(0, 99), seconds=st.integers(0, 99))
def test_each_part_counts(days: int, hours: int, minutes: int, seconds: int) -> None:
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert of_parts(f"{days}:{hours}:{minutes}:{seconds}") == of_slurm(f"{days}-{hours}:{minutes}:{seconds}") == whole
    assert of_slurm(f"{days}-{hours}:{minutes}") == of_parts(f"{days}-{hours}:{minutes}") == whole - seconds
    assert of_slurm(f"{days}-{hours}") == whole - seconds - 60 * minutes
    assert of_slurm(f"{minutes}:{seconds}") == of_parts(f"{minutes}:{seconds}") == 60 * minutes + seconds
    assert (of_slurm(f"{minutes}"), of_parts(f"{seconds}.5")) == (60 * minutes, seconds + 0.5)


@pytest.mark.parametrize("text", ["", "-", "x", "1:", ":1", "1-", "-1:00", "1--2", "1:2:3:4:5", "1-2:3:4:5", "1e3", "٣", "1 2", "1.5:2"])
def test_anything_else_is_refused(text: str) -> None:
    for read in (of_parts, of_slurm):
        with pytest.raises(ValueError):
            read(text)


@pytest.mark.parametrize("text", ["1:2:3:4", "1.5", "1:2.5"])
def test_slurm_has_neither_four_parts_nor_fractions(text: str) -> None:
    assert of_parts(text) > 0
    with pytest.raises(ValueError):
        of_slurm(text)
