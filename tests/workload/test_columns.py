"""Traces as columns: the same jobs, counts and complaints as one by one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vrm.workload import columns
from vrm.workload.columns import Names
from vrm.workload.swf import Selection, Trace, TraceError

NUMBERS = st.sampled_from(["1", "2", "3", "7", "9", "90", "0", "-1"])
WHOLE = st.tuples(st.just(1), st.sampled_from([0, 0, 3]), NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS,
                  st.just(18))
OTHERS = st.one_of(
    st.tuples(st.sampled_from([1, 0, -1]), st.sampled_from([0, 5, -4]), NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS,
              NUMBERS, st.sampled_from([18, 17, 15, 12])),
    st.sampled_from(["", "; a remark", "# another", "  ", "5 6.5 -1 2.5 1 -1 -1 1 3 -1 1 4 -1 2 -1 -1 -1 -1",
                     "+5 6 -1 2 1 -1 -1 1 3 -1 1 4 -1 2 -1 -1 -1 -1"]))
ROWS = st.one_of(st.lists(WHOLE, max_size=30), st.lists(st.one_of(WHOLE, WHOLE, WHOLE, OTHERS), max_size=40))


ROW = ("90", "1", "1", "90", "1", "1", 18)


def text_of(rows: list[Any]) -> str:
    lines, number, at = ["; MaxProcs: 8"], 0, 0
    for row in rows:
        if isinstance(row, str):
            lines.append(row)
            continue
        step, gap, run, used, procs, estimate, user, app, fields = row
        number, at = max(0, number + step), max(0, at + gap)
        lines.append(" ".join((f"{number} {at} -1 {run} {used} -1 -1 {procs} {estimate} -1 1 {user} -1 {app} -1 -1 "
                               "-1 -1").split()[:fields]))
    return "\n".join(lines) + "\n"


def found(trace: Trace, by_columns: bool) -> tuple[Any, ...]:
    """All that is read of a trace: its jobs, counts, and the complaint."""
    jobs: list[Any] = []
    complaint: str | None = None
    try:
        if by_columns:
            users, apps = Names(""), Names()
            for block in trace.blocks(users, apps):
                named = list(users), list(apps)
                jobs += zip(*(column.tolist() for column in (
                    block.ids, block.procs, block.submit, block.run, block.estimate)),
                    [named[0][code] for code in block.user], [named[1][code] for code in block.app])
                assert not block.requests
        else:
            jobs += [(job.id, job.procs, job.submit, run, job.expected, job.user, job.app)
                     for job, run, *_ in trace]
    except TraceError as error:
        complaint, jobs = str(error), []
    return jobs, trace.taken if complaint is None else None, trace.dirt if complaint is None else None, complaint


@settings(max_examples=300, deadline=None)
@given(rows=ROWS, largest=st.sampled_from([None, 2, 8]), size=st.sampled_from([1, 100, 1 << 20]))
@example(rows=[(1, 5, *ROW), (1, 0, *ROW), (1, -4, *ROW)], largest=None, size=1)
@example(rows=[(1, 5, *ROW), (1, 0, *ROW), (-1, 0, *ROW)], largest=None, size=1)
@example(rows=[(1, 5, *ROW), (1, 0, *ROW), (1, 5, *ROW), "x " * 18], largest=None, size=1)
def test_columns_have_what_rows_have(rows: list[Any], largest: int | None, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BLOCK", size)
        path = Path(folder) / "trace.swf"
        path.write_text(text_of(rows))
        trace = Trace(path, Selection(largest=largest))
        assert found(trace, True) == found(Trace(path, Selection(largest=largest)), False)


def test_whole_numbers_are_read_at_once(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "trace.swf"
    path.write_text("; MaxProcs: 8\n" + "".join(
        f"{number} {number // 3} -1 5 1 -1 -1 1 9 -1 1 4 -1 2 -1 -1 -1 -1\n" for number in range(5000)))
    asked: list[Any] = []
    monkeypatch.setattr(Trace, "_rows", lambda *of: iter(asked.append(of) or ()))
    blocks = list(Trace(path).blocks(Names(""), Names()))
    assert asked == [] and np.concatenate([block.ids for block in blocks]).tolist() == list(range(5000))
