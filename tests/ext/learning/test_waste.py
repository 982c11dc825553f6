"""What jobs wasted, and what to ask for next time: tables of jobs, and a run against plain loops."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from vrm.ext.learning.waste import ProgramUse, by_program, run_use, use_of
from vrm.results.jobs import JobRow

ROW = JobRow(3, "a.x", 1, 0.0, 0.0, 100.0, 100.0, "completed", 0, nodes="n1", cores="n1:0/0-7")
FOUR = replace(ROW, procs=4, cores="n1:0/0-3")
WIDE = replace(ROW, procs=4)


@pytest.mark.parametrize("row, more, ask, words", [
    (ROW, {"cpu_time": 110.0}, {"cores": 2}, "1.1 of 8 cores were busy: ask for cores=2"),
    (ROW, {"cpu_time": 104.0}, {"cores": 1}, "1.0 of 8 cores were busy: ask for cores=1"),
    (ROW, {"cpu_time": 2.0}, {"cores": 1}, "0.0 of 8 cores were busy: ask for cores=1"),
    (ROW, {"cpu_time": 590.0}, {"cores": 6}, "5.9 of 8 cores were busy"),
    (ROW, {"cpu_time": 610.0}, {}, ""), (ROW, {}, {}, ""),
    (WIDE, {"cpu_time": 393.0}, {"cores": 1}, "3.9 of 8 cores were busy: ask for cores=1"),
    (FOUR, {"cpu_time": 100.0}, {"ranks": 1}, "1.0 of 4 cores were busy: its ranks wait for something; try 1 rank"),
    (FOUR, {"cpu_time": 390.0}, {}, ""),
    (FOUR, {"cpu_time": 390.0, "threads_beyond": 12}, {}, "12 more threads than cores ran at once: set OMP_NUM_THREADS=1"),
    (WIDE, {"threads_beyond": 8}, {}, "8 more threads than cores ran at once: set OMP_NUM_THREADS=2"),
    (FOUR, {"mem_per_task": "4G", "memory_peak": "1G"}, {"mem_per_task": "310M"},
     "1G of 16G memory were used on a node: ask for mem_per_task=310M"),
    (FOUR, {"mem_per_node": "4G", "memory_peak": "1G"}, {"mem_per_node": "1230M"}, "1G of 4G memory were used on a node"),
    (FOUR, {"mem_per_node": "1G", "memory_peak": "1000M"}, {"mem_per_node": "1200M"}, "1000M of 1G memory were used"),
    (FOUR, {"mem_per_node": "4G", "memory_peak": "3G"}, {}, ""), (FOUR, {"mem_per_node": "4G"}, {}, ""),
    (ROW, {"walltime": 3600.0}, {"time": "2m30s"}, "it ran for 1m40s of 1h: ask for 2m30s"),
    (ROW, {"walltime": 3600.0, "status": "failed"}, {}, ""), (ROW, {"walltime": 150.0}, {}, ""),
    (ROW, {"end": 0.5, "cpu_time": 0.1}, {}, "")])
def test_what_is_found(row: JobRow, more: dict[str, Any], ask: dict[str, Any], words: str) -> None:
    use = use_of(replace(row, **more))
    assert use is not None and use.ask == ask
    assert any(words in finding for finding in use.findings) if words else use.findings == ()


COUPLED = replace(FOUR, coupled="ocean.x 2 : atmos.x 1 cores=2", procs=3, cpu_time=390.0, programs_use="195 40M : 50.5 80M")


def test_the_programs_of_a_coupled_job_are_found_one_by_one() -> None:
    use = use_of(COUPLED)
    assert use is not None and not use.ask
    assert use.programs == (ProgramUse("ocean.x", 2, 2, 1.95, 40 << 20), ProgramUse("atmos.x", 1, 2, 0.505, 80 << 20))
    assert use.findings == ("atmos.x: 0.5 of 2 cores were busy: ask for cores=1",)


@pytest.mark.parametrize("damaged", ["", "1 40M", "1 40M : 2 3M : 3 4M", "1 40M : ", "x 40M : 2 3M", "1 : 2 3M"])
def test_what_programs_have_used_is_not_known_where_it_is_damaged(damaged: str) -> None:
    use = use_of(replace(COUPLED, programs_use=damaged))
    assert use is not None and not use.programs and not use.findings and not use.ask


def test_a_job_that_never_ran_has_no_use() -> None:
    assert use_of(replace(ROW, start=None, end=None)) is None


def test_waiting_shows_where_the_same_needed_less_on_fewer_ranks() -> None:
    row = replace(FOUR, args="-n 3", cpu_time=400.0)
    found = use_of(row, {("a.x", "-n 3"): {2: 220.0, 8: 100.0}, ("a.x", ""): {1: 1.0}})
    assert found is not None
    assert found.findings == ("it took 400 core seconds, and 220 on 2 ranks: the rest is waiting and overhead",)
    assert use_of(row, {("a.x", "-n 3"): {2: 300.0}}).findings == ()  # type: ignore[union-attr]


def test_programs_by_what_they_wasted() -> None:
    uses = [use_of(replace(ROW, id=number, cpu_time=cpu, app=app)) for number, (app, cpu) in enumerate(
        [("a.x", 110.0), ("a.x", 120.0), ("b.x", 790.0), ("c.x", 500.0)])]
    assert by_program([use for use in uses if use]) == [
        "a.x (2 jobs): 1.1 of 8 cores busy, ask for cores=2", "c.x (1 job): 5.0 of 8 cores busy, ask for cores=5"]


# ------------------------------------------------------------------------------------------- a run


def plain(rows: list[JobRow], cores: int, step: float = 0.25) -> tuple[float, float]:
    """Core seconds that were idle while jobs waited and others ran, and those where one of these had enough, by looks at each
    moment."""
    idle = fit = 0.0
    first, last = min(row.start for row in rows), max(row.end for row in rows)  # type: ignore[type-var]
    at = first + step / 2
    while at < last:
        free = cores - sum(row.processors for row in rows if row.start <= at < row.end)  # type: ignore[operator]
        waiting = [row for row in rows if row.submit <= at < row.start]  # type: ignore[operator]
        if waiting and 0 < free < cores:
            idle += free * step
            fit += free * step * any(row.processors <= free for row in waiting)
        at += step
    return idle, fit


def test_idle_cores_are_those_of_plain_looks() -> None:
    chance = random.Random(3)
    for _ in range(40):
        rows, cores = [], 8
        for number in range(chance.randint(1, 8)):
            submit = float(chance.randint(0, 20))
            start, width = submit + chance.randint(0, 10), chance.randint(1, 3)
            rows.append(replace(ROW, id=number, submit=submit, start=start, end=start + chance.randint(1, 10), procs=width,
                                cores=f"n1:0/0-{width - 1}" if width > 1 else "n1:0/0"))
        if any(sum(row.processors for row in rows if row.start <= at < row.end) > cores for at in range(41)):  # type: ignore[operator]
            continue
        found = run_use(rows, cores)
        assert found is not None and (found.idle, found.fit) == pytest.approx(plain(rows, cores))


def test_a_run_in_words() -> None:
    rows = [replace(ROW, id=0, cores="n1:0/0-2", procs=3, end=100.0, cpu_time=150.0),
            replace(ROW, id=1, cores="n1:0/0-3", procs=4, submit=0.0, start=100.0, end=200.0, cpu_time=400.0)]
    found = run_use(rows, 4)
    assert found is not None and (found.held, found.busy, found.idle, found.fit, found.narrow) == (700, 550, 100, 0, 1)
    assert found.text == ("79% of the core time that jobs held was used; 12% of the core time of the nodes was idle while "
                          "jobs waited; a job of 1 core would have used it")
    waits = replace(ROW, id=2, cores="n1:0/0", submit=0.0, start=200.0, end=300.0)
    assert "#2" in run_use([*rows, waits], 4).text  # type: ignore[union-attr]
    after = replace(waits, after="1")
    assert "#2" not in run_use([*rows, after], 4).text  # type: ignore[union-attr]
    assert run_use([replace(ROW, start=None, end=None)], 4) is None


def test_time_without_a_manager_counts_for_nothing() -> None:
    """A job waited while no manager ran (after kill -9, or from its failure to `vrm run --failed`)."""
    rows = [replace(ROW, id=0, cores="n1:0/0-3", procs=4, end=100.0, cpu_time=400.0),
            replace(ROW, id=1, cores="n1:0/0-3", procs=4, submit=0.0, start=5000.0, end=5100.0, cpu_time=400.0)]
    found = run_use(rows, 4)
    assert found is not None and (found.seconds, found.idle) == (200, 0)
    assert found.text == "100% of the core time that jobs held was used"
