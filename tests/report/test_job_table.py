"""jobs.csv as columns: the same jobs, and the same messages, as line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vrm.report import job_table
from vrm.report.job_table import JobTable
from vrm.results.jobs import HEADER, SIMULATED, JobFileError, JobRow, JobWriter, read_jobs

TEXT = st.text(alphabet='ab,"\\\n\r\0é ', max_size=6)
TIME = st.one_of(st.integers(-5, 10 ** 9), st.floats(0, 1e6).map(lambda value: round(value, 3)))
MAYBE = st.one_of(st.none(), TIME)
PLACES = st.sampled_from(["", "n0:0/0", "n0:0/0-3+1/0;n1:0/5", "n-1:0/0-3;n2:0/1", "n0:0/2;n7:0/0"])
JOB = st.builds(JobRow, id=st.integers(0, 10 ** 9), app=TEXT, procs=st.integers(1, 99), submit=TIME,
                start=MAYBE, end=MAYBE, walltime=TIME,
                status=st.sampled_from(["completed", "failed", "timeout", "cancelled"]),
                exit_code=st.one_of(st.none(), st.integers(0, 255)), app_time=MAYBE,
                exclusive=st.booleans(), backfilled=st.booleans(),
                nodes=st.sampled_from(["", "n0", "n[0-3,7]"]), cores=PLACES, reason=TEXT,
                name=TEXT, index=st.one_of(st.none(), st.integers(0, 9)),
                after=TEXT, priority=st.integers(-9, 9), hold=st.booleans())
ALONE = settings(max_examples=60, deadline=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture])


def seen(read: Any) -> Any:
    try:
        return tuple(read())
    except JobFileError as error:
        return str(error)


@ALONE
@given(rows=st.lists(JOB, max_size=6))
def test_the_table_has_the_rows_of_the_list(tmp_path: Path, rows: List[JobRow]) -> None:
    path = tmp_path / "jobs.csv"
    path.unlink(missing_ok=True)
    with JobWriter(path) as writer:
        for row in rows:
            writer.write(row)
    table, careful = JobTable.read(path), tuple(read_jobs(path))
    assert table.rows == careful == JobTable.of(careful).rows
    assert len(table) == len(careful)
    ran = [row for row in careful if row.start is not None and row.end is not None]
    assert table.ran.cores.tolist() == [row.processors for row in ran]
    assert table.ran.start.tolist() == [row.start for row in ran]
    assert table.jobs == sorted(ran, key=lambda row: (row.start, row.id))


@ALONE
@given(header=st.sampled_from([HEADER, SIMULATED, "app,id,procs\n", "id"]),
       lines=st.lists(st.one_of(
           st.just("1,a,2,0,1,2,9,completed,,,0,0,n0,n0:0/0-1,unbound,\n"),
           st.just('2,a,2,0,1,2,9,completed,,,0,0,"n[0,2]",n0:0/0;n2:0/0,unbound,\n'),
           st.just('3,"a ""x""",2,0,,,9,cancelled,,,0,0,,,,"a, b"\n'),
           st.lists(st.sampled_from(["1", "", "completed", "nan", "1e99", '"', '"a,b"', "-1", "0",
                                     "\r", "1_0", "a", "\0"]), max_size=22)
           .map(lambda words: ",".join(words) + "\n")), max_size=6), torn=st.booleans())
def test_the_table_names_the_lines_that_the_list_names(tmp_path: Path, header: str,
                                                       lines: List[str], torn: bool) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(header + "".join(lines) + "7,a" * torn, newline="\n")
    assert seen(lambda: JobTable.read(path).rows) == seen(lambda: read_jobs(path))


def test_a_simulation_is_read_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(SIMULATED + '1,a,2,0,1,2,9,completed,,,0,0,"n[0,2]",n0:0/0;n2:0/0,unbound,\n')
    monkeypatch.setattr(job_table, "read_jobs", lambda path: pytest.fail("line by line"))
    assert JobTable.read(path).rows[0].nodes == "n[0,2]"
