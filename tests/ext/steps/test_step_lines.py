"""`steps.csv`: what steps write, and what is read of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vrm.ext.steps.records import BATCH, HEADER, Step, append, read_steps


def step(number: str, start: float = 10.0, job: int = 7, name: str = "solve") -> Step:
    return Step(job, number, name, start, start + 2.5, "completed", 0, 4, 8, "n0 n1")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    assert read_steps(path) == {}
    odd = Step(7, "1", 'a,"b"\nc', 1.0, 2.0, "failed", None, 1, 1, "n0", 1.25, 0.5, 4096)
    for each in (step("0"), odd, step(BATCH), step("0", job=8)):
        append(path, each)
    assert path.read_text().splitlines()[:2] == [
        HEADER.strip(), "7,0,solve,10.000,12.500,completed,0,4,8,n0 n1,0.000,0.000,0,"]
    found = read_steps(path)
    assert [each.line for each in found[7]] == [step("0").line, odd.line, step(BATCH).line]
    assert found[7][1].name == 'a,"b"?c' and found[7][1].exit_code is None
    assert (found[7][1].user, found[7][1].system, found[7][1].maxrss) == (1.25, 0.5, 4096)
    assert [each.job for each in found[8]] == [8]
    assert path.stat().st_mode & 0o077 == 0


def test_lines_of_older_versions_say_nothing_of_what_was_used(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("job,step,name,start,end,state,exit_code,tasks,cores,nodes\n"
                                        "7,0,solve,10.000,12.500,completed,0,4,8,n0 n1\n")
    assert [each.line for each in read_steps(tmp_path / "steps.csv")[7]] == [step("0").line]


def test_the_steps_are_those_of_the_last_try(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    for each in (step("0"), step("1"), step(BATCH), step(BATCH)):
        append(path, each)  # a manager that was killed writes the line of its script again
    assert [each.step for each in read_steps(path)[7]] == ["0", "1", BATCH]
    append(path, step("0", 100.0))
    assert [(each.step, each.start) for each in read_steps(path)[7]] == [("0", 100.0)]
    append(path, step(BATCH, 90.0))
    with open(path, "a", encoding="utf-8") as file:
        file.write("7,1,torn,4")
    assert [each.step for each in read_steps(path)[7]] == ["0", BATCH]


def test_a_late_line_of_an_earlier_try_is_no_new_try(tmp_path: Path) -> None:
    def line(number: str, began: float, start: float = 0.0, name: str = "solve") -> Step:
        return Step(7, number, name, start or began, began + 9, "failed", 1, 1, 1, "n0", began=began)

    path = tmp_path / "steps.csv"
    for each in (line("0", 10.0), line(BATCH, 10.0), line("1", 10.0, 12.0, "late")):
        append(path, each)  # the guard of a step whose srun was killed with the script
    assert [each.name for each in read_steps(path)[7]] == ["solve", "late", "solve"]
    for each in (line("0", 50.0, name="again"), line("2", 10.0, 13.0, "later"), line(BATCH, 10.0)):
        append(path, each)
    assert [(each.step, each.name) for each in read_steps(path)[7]] == [("0", "again")]
    append(path, line(BATCH, 50.0))
    assert [each.step for each in read_steps(path)[7]] == ["0", BATCH]


def test_of_a_step_that_was_recorded_twice_the_first_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    for each in (step("0"), step("1", name="first"), step("1", name="again"), step(BATCH), step("0", name="again")):
        append(path, each)  # by an srun, and by its guard, which saw that the srun was killed
    assert [(each.step, each.name) for each in read_steps(path)[7]] == [
        ("0", "solve"), ("1", "first"), (BATCH, "solve")]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    os.symlink("other", tmp_path / "steps.csv")
    with pytest.raises(OSError):
        append(tmp_path / "steps.csv", step("0"))
    assert (tmp_path / "other").read_text() == ""
