"""jobs.csv as columns: the same jobs, and the same messages, as line by line, each in a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vrm.ext.study.report.job_table import JobTable
from vrm.results.job_columns import HEADER, SIMULATED, JobFileError, Layout, read_last
from vrm.results.jobs import JobRow, JobWriter, read_jobs, rows_of

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
def test_the_table_has_the_rows_of_the_list(tmp_path: Path, rows: list[JobRow]) -> None:
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
                                                       lines: list[str], torn: bool) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(header + "".join(lines) + "7,a" * torn, newline="\n")
    assert seen(lambda: JobTable.read(path).rows) == seen(lambda: read_jobs(path)) == alone(path, header, lines)
    good = [row for line in lines for row in one(path, header, line)]
    path.write_text(header + "".join(lines) + "7,a" * torn, newline="\n")
    assert [row for values in read_last(path, 9) for row in rows_of(values)] == good


def one(path: Path, header: str, line: str) -> list[JobRow]:
    """The row of a line; none of a wrong one."""
    path.write_text(header + line, newline="\n")
    try:
        return list(read_jobs(path))
    except JobFileError:
        return []


def alone(path: Path, header: str, lines: list[str]) -> Any:
    """What is to be seen of a list: of each line what it says in a file of its own."""
    path.write_text(header, newline="\n")
    found = seen(lambda: read_jobs(path))
    for number, line in enumerate(lines, 2):
        path.write_text(header + line, newline="\n")
        row = seen(lambda: read_jobs(path))
        if isinstance(row, str):
            return found if isinstance(found, str) else row.replace(":2: ", f":{number}: ", 1)
        found += row
    return found


def test_a_list_is_read_many_lines_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(SIMULATED + '1,a,2,0,1,2,9,completed,,,0,0,"n[0,2]",n0:0/0;n2:0/0,unbound,\n' * 3000)
    monkeypatch.setattr(Layout, "careful", lambda *lines: pytest.fail("line by line"))
    assert {row.nodes for row in JobTable.read(path).rows} == {"n[0,2]"}
    assert sum(1 for _ in read_jobs(path)) == 3000


def test_a_wrong_line_far_behind_is_named_after_those_before_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    line = '{},a,2,0,1,2,9,completed,,,0,0,"n[0,2]",n0:0/0;n2:0/0,unbound,\n'
    lines = [line.format(number) for number in range(5000)]
    lines[4000] = "4000,a,0,0,1,2,9,completed\n"
    path.write_text(SIMULATED + "".join(lines))
    rows = read_jobs(path)
    assert [next(rows).id for _ in range(4000)] == list(range(4000))
    with pytest.raises(JobFileError, match="jobs.csv:4002: procs: `0` is not a number of ranks"):
        next(rows)
