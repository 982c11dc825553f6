"""Traces in the Standard Workload Format: header, dirt, filters, order, and writing."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Job
from vrm.api import Rules, simulate
from vrm.workload.submission import Submission
from vrm.workload.swf import Selection, Trace, TraceError, write

HEADER = """; Version: 2.2
; Computer: Test machine
; UnixStartTime: 1000000
; MaxNodes: 4
; MaxProcs: 8 processors
; Note: one
; Note: two
;       and more of it
"""


def row(number: int, submit: Any = 0, run: Any = 10, allocated: int = 2, requested: int = 2,
        time: Any = 20, status: int = 1, user: int = 3, app: int = 7) -> str:
    return (f"{number} {submit} -1 {run} {allocated} -1 -1 {requested} {time} -1 {status} {user} "
            f"-1 {app} -1 -1 -1 -1\n")


def trace(path: Path, *rows: str, header: str = HEADER, **rules: Any) -> Trace:
    path.write_text(header + "".join(rows))
    return Trace(path, Selection(**rules))


def ids(found: Trace) -> list[int]:
    return [one.job.id for one in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.swf"


def test_header(path: Path) -> None:
    found = trace(path, row(1))
    assert (found.processors, found.nodes, found.unix_start) == (8, 4, 1000000)
    assert found.header["Note"] == "one\ntwo"


def test_machine_from_max_nodes_or_nothing(path: Path) -> None:
    assert trace(path, row(1), header="; MaxNodes: 256\n").processors == 256
    assert trace(path, row(1), header="").processors is None
    assert trace(path, row(1), header="; MaxProcs: -1\n").processors is None


def test_a_row(path: Path) -> None:
    (one,) = trace(path, row(5, 17, 30, time=60))
    assert one == Submission(Job(5, "app7", 2, 60, 17, user="3"), 30)


def test_decimals_and_unknown_fields(path: Path) -> None:
    (one,) = trace(path, row(5, "17.25", "3.5", 4, -1, -1, -1, -1, -1))
    assert one == Submission(Job(5, "app", 4, 3.5, 17.25), 3.5)


@pytest.mark.parametrize("bad, reason", [
    (row(2, run=0), "dropped: run time 0"),
    (row(2, run=-1), "dropped: no run time"),
    (row(2, allocated=-1, requested=-1), "dropped: no processors"),
    (row(2, allocated=0, requested=0), "dropped: no processors"),
    (row(2, requested=9), "dropped: more processors than the machine"),
    (row(2, submit=-1), "dropped: no submission time"),
    ("2 0 -1 10\n", "dropped: fewer than 14 of the 18 fields"),
])
def test_rows_that_are_dropped_are_counted(path: Path, bad: str, reason: str) -> None:
    found = trace(path, row(1), bad, row(3), largest=8)
    assert ids(found) == [1, 3] and found.dirt == {reason: 1} and found.taken == 2


@pytest.mark.parametrize("bad, reason, estimate, procs", [
    (row(2, time=-1), "no requested time: run time instead", 10, 2),
    (row(2, run=25), "run time above the requested time: estimate raised", 25, 2),
    (row(2, requested=-1, allocated=5), "allocated processors instead of requested ones", 20, 5),
])
def test_rows_that_are_changed_are_counted(path: Path, bad: str, reason: str, estimate: float,
                                           procs: int) -> None:
    found = trace(path, bad)
    (one,) = found
    assert (one.job.estimate, one.job.procs) == (estimate, procs) and found.dirt == {reason: 1}


def test_estimates_can_be_kept(path: Path) -> None:
    path.write_text(row(1, run=25))
    (one,) = Trace(path, Selection(keep_estimates=True))
    assert (one.run, one.job.estimate) == (25, 20)


def test_unsorted_rows_are_sorted_and_ties_keep_the_order_of_lines(path: Path) -> None:
    found = trace(path, row(1, 50), row(2, 10), row(3, 50), row(4, 10), row(5, 0))
    assert ids(found) == [5, 2, 4, 1, 3]
    assert found.dirt == {"submitted before a row above": 3}


def test_job_numbers_that_repeat_are_renumbered(path: Path) -> None:
    found = trace(path, row(4), row(4), row(2), row(9))
    assert ids(found) == [4, 10, 2, 9]
    assert found.dirt == {"job number used before: renumbered": 1}


def test_job_numbers_that_do_not_rise_are_kept(path: Path) -> None:
    found = trace(path, row(1), row(10 ** 9), row(3), row(4))
    assert ids(found) == [1, 10 ** 9, 3, 4] and not found.dirt


def test_rows_without_their_last_fields_are_counted_as_such(path: Path) -> None:
    short = [" ".join(row(number).split()[:fields]) + "\n"
             for number, fields in enumerate((18, 17, 14, 13), 1)]
    found = trace(path, *short)
    assert ids(found) == [1, 2, 3]
    assert found.dirt == {"fewer than 18 fields: the missing last ones are unknown": 2,
                          "dropped: fewer than 14 of the 18 fields": 1}


def test_each_submission_out_of_order_is_counted(path: Path) -> None:
    found = trace(path, row(1, 50), row(2, 5), row(3, 20))
    assert ids(found) == [2, 3, 1] and found.dirt == {"submitted before a row above": 2}


@pytest.mark.parametrize("bad", [row(2 ** 63), row(-2), row(2, "9" * 400), row(2, run="9" * 400),
                                 row(2, time="9" * 400), row(2, run="1" + "0" * 5000)])
def test_numbers_out_of_range_are_an_error_with_the_line(path: Path, bad: str) -> None:
    with pytest.raises(TraceError, match=r"t\.swf:10: .*put a `;` before it") as found:
        list(trace(path, row(1), bad))
    assert len(str(found.value)) < 400


def test_what_is_no_number_is_an_error_with_the_line(path: Path) -> None:
    for text in ("x", "nan", "inf"):
        with pytest.raises(TraceError, match=r"t\.swf:10: .*put a `;` before it"):
            list(trace(path, row(1), row(2, submit=text)))


def test_a_file_that_is_not_there_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        Trace(tmp_path / "none.swf")
    whole = gzip.compress((HEADER + "".join(row(i) for i in range(1, 500))).encode())
    (tmp_path / "cut.swf.gz").write_bytes(whole[:len(whole) // 2])
    with pytest.raises(TraceError, match="damaged gzip file"):
        list(Trace(tmp_path / "cut.swf.gz"))


def test_filters(path: Path) -> None:
    rows = [row(number, number * 10) for number in range(1, 8)]
    assert ids(trace(path, *rows, first=3, last=5)) == [3, 4, 5]
    assert ids(trace(path, *rows, begin=20, end=40)) == [2, 3]
    assert ids(trace(path, *rows, jobs=2)) == [1, 2]
    assert [one.job.submit for one in trace(path, *rows[:3], load=2)] == [10, 15, 20]
    with pytest.raises(ValueError, match="load factor"):
        Selection(load=0)


def test_cleaning(path: Path) -> None:
    rows = [row(number, status=status) for number, status in enumerate([1, 0, 5, 2, 3, 4], 1)]
    assert ids(trace(path, *rows)) == [1, 2, 3, 4, 5, 6]
    found = trace(path, *rows, clean=True)
    assert ids(found) == [1, 2]
    assert found.dirt == {"cleaned: cancelled": 1, "cleaned: part of a checkpointed job": 3}


submissions = st.lists(st.builds(
    lambda procs, estimate, submit, share, user, app: Submission(
        Job(1, app, procs, estimate, submit, user=user), max(1, int(estimate * share))),
    st.integers(1, 500), st.integers(1, 10 ** 6), st.integers(0, 10 ** 7), st.floats(0, 1),
    st.sampled_from(["", "1", "2"]), st.sampled_from(["app", "app3", "app12"])), max_size=20)


@settings(max_examples=60, deadline=None)
@given(jobs=submissions, packed=st.booleans())
def test_what_is_written_is_read_again(tmp_path_factory: Any, jobs: list[Submission],
                                       packed: bool) -> None:
    path = tmp_path_factory.mktemp("w") / ("t.swf.gz" if packed else "t.swf")
    jobs = sorted(jobs, key=lambda one: one.job.submit)
    jobs = [Submission(Job(number, one.job.app, one.job.procs, one.job.estimate, one.job.submit,
                           user=one.job.user), one.run) for number, one in enumerate(jobs, 1)]
    assert write(path, jobs, {"MaxProcs": 500, "Note": "a\nb"}) == len(jobs)
    found = Trace(path)
    assert list(found) == jobs and found.header["Note"] == "a\nb" and not found.dirt
    before = path.read_bytes()
    write(path, jobs, {"MaxProcs": 500, "Note": "a\nb"})
    assert path.read_bytes() == before


@pytest.mark.slow
def test_memory_does_not_grow_with_the_trace(path: Path) -> None:
    """Per job the simulator keeps some numbers (about 100 bytes), not the job."""
    def peak(jobs: int) -> int:
        with open(path, "w") as out:
            out.write("; MaxProcs: 8\n")
            out.writelines(row(number, number * 10, 8, 2, 2, 20) for number in range(1, jobs + 1))
        tracemalloc.start()
        simulate(path, rules=Rules(backfill="easy"))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found
    peak(100)  # what is imported and cached at first use
    few, many = peak(1000), peak(6000)
    assert many - few < 5000 * 400
