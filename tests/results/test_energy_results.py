"""Energy and power of jobs that ran: figures, the power over time, tables and the picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import warm
from hypothesis import given
from hypothesis import strategies as st

from vrm.ext.study.report.plotting import PictureError
from vrm.ext.measure.power_picture import draw_power
from vrm.results.energy import PowerSpan, columns_of, power_of_rows, energy_of, power_over_time
from vrm.results.jobs import JobRow


def test_figures_made_by_hand() -> None:
    jobs = [PowerSpan(0, 10, 100, 2.0), PowerSpan(5, 15, 50, 1.0), PowerSpan(20, 30, 0)]
    assert energy_of(jobs) == {"energy": 1500.0, "mean_power": 50.0, "highest_power": 150.0,
                               "average_frequency": 1.5, "jobs_of_unknown_power": 1}
    assert power_over_time(jobs) == [(0, 100), (5, 150), (10, 50), (15, 0)]
    assert energy_of([PowerSpan(0, 1, 0)]) == {} and power_over_time([]) == []
    assert columns_of(jobs[0]) == {"frequency": 2.0, "energy": 1000.0, "power": 100.0}


def test_rows_of_a_list() -> None:
    rows = [JobRow(1, "a", 1, 0, 2, 12, 60, "completed", power=30.0, energy=300.0, frequency=1.8),
            JobRow(2, "a", 1, 0, 2, 12, 60, "completed", energy=200.0),
            JobRow(3, "a", 1, 0, None, None, 60, "refused")]
    assert power_of_rows(rows) == [PowerSpan(2, 12, 30.0, 1.8), PowerSpan(2, 12, 20.0)]


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), -1.0, 1e300])
def test_what_is_no_power_is_not_known(wrong: float) -> None:
    rows = [JobRow(1, "a", 1, 0, 2, 12, 60, "completed", power=wrong, energy=wrong, frequency=wrong),
            JobRow(2, "a", 1, 0, 2, 12, 60, "completed", power=20.0)]
    assert power_of_rows(rows) == [PowerSpan(2, 12, 0.0), PowerSpan(2, 12, 20.0)]
    assert energy_of(power_of_rows(rows))["jobs_of_unknown_power"] == 1


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(1, 999)), max_size=12))
def test_the_power_is_the_sum_at_each_moment(spans: list[tuple[int, int, int]]) -> None:
    jobs = [PowerSpan(begin, begin + length, watts / 7) for begin, length, watts in spans]
    steps = power_over_time(jobs)
    for moment, (time, watts) in enumerate(steps):
        assert watts == pytest.approx(sum(job.watts for job in jobs if job.start <= time < job.end), abs=1e-5)
        assert moment == 0 or steps[moment - 1][0] < time
    assert not steps or abs(steps[-1][1]) < 1e-9
    area = sum(watts * (after - before) for (before, watts), (after, _) in zip(steps, steps[1:]))
    assert area == pytest.approx(sum(job.joules for job in jobs), abs=0.01)


def test_a_picture(tmp_path: Path) -> None:
    steps = power_over_time([PowerSpan(7200, 9000, 100), PowerSpan(8000, 20000, 50)])
    draw_power(tmp_path / "power.svg", [("one", steps), ("two", steps)], ("cap", [(0, 200), (8500, 90)]))
    said = (tmp_path / "power.svg").read_text()
    assert said.startswith("<?xml") and len(said) > 5000
    with pytest.raises(PictureError, match=r"ends in .png or .svg"):
        draw_power(tmp_path / "power.txt", [("one", steps)])


MACHINE = """
Classes:
  - {Name: p1, Count: 2, Cores: 4, Energy: {Name: p1, Idle: 20}}
  - {Name: p2, Count: 2, Cores: 4, Energy: {Name: p2, Idle: 10, Busy: 60}}
"""


@pytest.mark.slow
def test_energy_in_tables(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MACHINE)
    (tmp_path / "db.yaml").write_text("Programs: {a: {p1: {Seconds: 10, Watts: 100}, p2: {Seconds: 15, Watts: 50}}}\n")
    (tmp_path / "q").write_text("a 4 60 0\nb 4 60 0 watts=70\na 4 60 0\n")

    def vrm(*words: str) -> str:
        done = warm.run(words, cwd=tmp_path, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

    common = ("q", "--machine", "m.yaml", "--energy", "db.yaml", "--policy", "compact")
    # 100 W for 60 s, 70 W for 60 s, and the last on p2: 50 W for 90 s.
    said = vrm("simulate", *common, "--backfill", "eamc", "--out", "eamc")
    assert "energy" in said and "0.015 MJ" in said
    said = vrm("simulate", *common, "--backfill", "easy", "--power-cap", "160", "--kill", "--out", "easy")
    assert "FCFS + EASY, compact, kill, power cap 160\n" in said
    said = vrm("compare", "eamc", "easy")
    assert "energy [MJ]" in said and "highest [W]" in said and "power cap 160" in said
    said = vrm("report", "eamc", "easy", "--format", "csv")
    assert "priority-inc-v weight=1 threshold=0.35,0.0147,163.333333,220\n" in said, said
    vrm("report", "eamc", "--out", "page")
    assert "power of" in (tmp_path / "page" / "report.html").read_text()
    said = vrm("energy", "show", "eamc", "--out", "p.png")
    # A wrong name is one line.
    done = warm.run(["energy", "show", "eamc", "--out", "p.xyz"], cwd=tmp_path, timeout=100)
    assert (done.returncode, done.stderr) == (2, "vrm: p.xyz: the name of a picture ends in .png or .svg\n")
    assert "14,700.0  J" in said and (tmp_path / "p.png").exists()
    said = vrm("advise", *common, "--objective", "energy", "--members", "3")
    assert "energy of the jobs" in said and " kJ (" in said and "makespan " not in said.split("+--")[1]
