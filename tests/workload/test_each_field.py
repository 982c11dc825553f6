"""`each=`: a job for each path, or for each line of a file; and `%i` and `%e` in directories and names."""

from __future__ import annotations

from pathlib import Path

import pytest

from vrm.model import Job
from vrm.model.forms.fields import made
from vrm.results.jobs import fields_of
from vrm.run.journal.codec import job_record, jobs_of
from vrm.workload.each_field import expanded
from vrm.workload.grammar import LineError, parse_line


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    for name in ("b", "a", "c"):
        (tmp_path / "cases" / name).mkdir(parents=True)
    (tmp_path / "list").write_text("-n 1\n\n  two words \n")
    return tmp_path


def own(text: str, where: Path) -> list:
    """Arguments, directory and name of each job of a line."""
    wanted = expanded(parse_line(text), where)
    job, details = made({**wanted.values_at(where), "after": ()}, 0, 0.0)
    record = job_record(job, details, wanted.fields["array"])
    jobs, details, indices = jobs_of(record)  # as a journal keeps them
    found = [fields_of(job, details.of(index, job.payload)) for job, index in zip(jobs, indices)]
    return [(row["args"], row["dir"], row["name"]) for row in found]


def test_each_path_is_a_job_in_its_directory(cases: Path) -> None:
    assert own("solver 1 10 each=cases/* dir=%e name=run%i args='-o out.%e'", cases) == [
        (f"-o out.cases/{name}", f"{cases}/cases/{name}", f"run{at}") for at, name in enumerate("abc")]
    assert own(f"solver 1 10 each={cases}/cases/* dir=%e", cases)[1][1] == f"{cases}/cases/b"


def test_each_line_of_a_file_is_a_job(cases: Path) -> None:
    assert own("solver 1 10 each=@list args=%e", cases) == [("'-n 1'", "", ""), ("'two words'", "", "")]


def test_an_array_has_its_index_in_directory_and_name(cases: Path) -> None:
    assert own("solver 1 10 array=1-2 dir=case%i name=case%i", cases) == [
        ("", f"{cases}/case{index}", f"case{index}") for index in (1, 2)]


@pytest.mark.parametrize("fields, said", [
    ("each=none/*", "no path matches"), ("each=@none", "No such file"), ("each=@empty", "has no line"),
    ("each=@list array=0-3", "leave out one"), ("each=@tab", "cannot be printed")])
def test_what_is_wrong_is_said(cases: Path, fields: str, said: str) -> None:
    (cases / "empty").touch()
    (cases / "tab").write_text("a\tb\n")
    with pytest.raises(LineError, match=said):
        expanded(parse_line(f"solver 1 10 {fields}"), cases)


def test_the_item_is_a_variable_too(cases: Path) -> None:
    wanted = expanded(parse_line("solver 1 10 each=@list"), cases)
    job: Job = made(wanted.values, 0, 0.0)[0]
    assert job.payload.own(1).variables == {"VRM_ARRAY_INDEX": "1", "VRM_ARRAY_ITEM": "two words"}


def test_a_name_that_would_be_an_id_is_refused() -> None:
    with pytest.raises(LineError, match="would be taken for ids"):
        parse_line("solver 1 10 array=1-3 name=%i")


@pytest.mark.parametrize("line, meant", [
    ("mpirun -n 4 solver", "`solver 4 600`"), ("mpiexec -np 2 ./solver -i a", "`./solver 2 600 args='-i a'`"),
    ("srun --ntasks=8 solver", "`solver 8 600`")])
def test_a_launcher_in_the_queue_gets_the_line_that_is_meant(line: str, meant: str) -> None:
    with pytest.raises(LineError, match="vrm calls .* itself") as wrong:
        parse_line(line)
    assert meant in str(wrong.value)
    assert parse_line(meant.strip("`")).procs > 1
    assert parse_line("mpirun 4 60").app == "mpirun"  # a program of that name
