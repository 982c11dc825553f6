"""The accuracy study and the comparison of snapshots, on small workloads."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from vrm.model import Job
from vrm.ext.forecast.site.snapshot import SiteJob, SiteNode, Snapshot, SnapshotError
from vrm.workload.submission import Submission

STUDIES = Path(__file__).resolve().parents[3] / "studies" / "forecast"


def loaded(name: str) -> ModuleType:
    """A study as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_study", STUDIES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[f"{name}_study"] = found
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def snapshots() -> ModuleType:
    return loaded("snapshots")


def study(name: str, *words: object) -> str:
    return subprocess.run([sys.executable, STUDIES / name, *map(str, words)], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


@pytest.mark.slow
def test_the_study_runs_and_shows_what_there_is(tmp_path: Path) -> None:
    words = ("--out", tmp_path, "--forecasts", 45, "--members", 4, "--reservations", "small",
             "--trace", "small=lublin:16:160:3")
    said = study("run.py", *words)
    assert "small: 160 jobs on 16 processors" in said and "| small (" in said
    rows = {row.split("|")[2].strip(): row.split("|") for row in said.splitlines() if row.count("|") == 10}
    assert float(rows["true"][3].replace(",", "")) < float(rows["limits"][3].replace(",", ""))
    assert float(rows["ensemble"][3].replace(",", "")) < float(rows["limits"][3].replace(",", ""))
    assert "| small | EASY++ |" in said and (tmp_path / "small.svg").stat().st_size > 1000
    again = study("run.py", *words)
    assert again in said and "jobs on" not in again  # what is there is not run again


@pytest.mark.slow
def test_a_trace_that_was_stopped_is_shown_and_goes_on(tmp_path: Path) -> None:
    words = ("--forecasts", 45, "--members", 4, "--trace", "small=lublin:16:160:3")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    study("run.py", "--out", whole, *words)
    module = loaded("run")
    jobs, processors = module.jobs_of("lublin:16:160:3")
    stopped.mkdir()
    part = stopped / "small.45-4.part"

    class Stop(Exception):
        pass

    def after_20(found: list) -> list:
        if len(module.read_part(part)) >= 20:
            raise Stop
        return record(found)

    record, module.record = module.record, after_20
    with pytest.raises(Stop):
        module.forecasts(jobs, processors, 45, 4, part)
    with open(part, "a") as file:
        file.write('\n{"made": {"id"')  # a line that was not written to its end
    assert "| small (stopped) (20; " in study("run.py", "--out", stopped, "--show")
    study("run.py", "--out", stopped, *words)
    assert not part.exists()
    assert (stopped / "small.json").read_text() == (whole / "small.json").read_text()


# The comparison of snapshots.


def at(time: float, running: dict[str, float], waiting: list[str], wall: float = 100.0) -> Snapshot:
    """A snapshot of one node with one core; jobs are queued at 10 s each, by their last digit."""
    jobs = [SiteJob(key, wall, submit=10.0 * int(key[-1]) - time, start=start - time, places=((0, None),))
            for key, start in running.items()]
    return Snapshot(time, [SiteNode("n0", 1)], jobs + [
        SiteJob(key, wall, submit=10.0 * int(key[-1]) - time) for key in waiting])


def test_a_series_becomes_one_snapshot(snapshots: ModuleType) -> None:
    series = [at(20, {"j0": 0}, ["j1"]), at(40, {"j0": 0}, ["j1", "j3"]), at(70, {"j1": 60}, ["j3"]),
              at(90, {"j3": 80}, [])]
    span = snapshots.merged(series)
    assert (span.length, span.starts) == (70, {"j1": 40, "j3": 60})
    jobs = {job.key: job for job in span.snapshot.jobs}
    assert jobs["j0"].start == -20 and jobs["j0"].wall == 70  # last seen at 40, gone at 70
    assert jobs["j1"].start is None and (jobs["j1"].wall, jobs["j1"].submit) == (30, -10)
    assert (jobs["j3"].wall, jobs["j3"].submit) == (100, 10)  # it has not ended, and comes in the future
    # j0 ends 50 s after the beginning, j1 is forecast then and started 10 s before: too late, negative.
    assert snapshots.errors(span) == ([-10.0], 1)  # and j3 is forecast to start behind the span
    early = replace(span.snapshot, jobs=[replace(jobs["j0"], wall=30.0), jobs["j1"], jobs["j3"]])
    assert snapshots.errors(span._replace(snapshot=early)) == ([30.0, 20.0], 0)
    late = replace(span.snapshot, jobs=[replace(jobs["j0"], wall=900.0), jobs["j1"], jobs["j3"]])
    assert snapshots.errors(span._replace(snapshot=late)) == ([], 2)


def test_series_that_make_no_sense(snapshots: ModuleType) -> None:
    with pytest.raises(SnapshotError, match="order of their times"):
        snapshots.merged([at(20, {}, []), at(10, {}, [])])
    with pytest.raises(SnapshotError, match="no snapshot"):
        snapshots.merged([])


def test_a_row(snapshots: ModuleType) -> None:
    row = snapshots.Row.of(3600, [-10, 0, 0, 50], 3)
    assert row == pytest.approx((3600, 4, 10, 0, -10, 50, math.sqrt(2100 / 4 + 25), -2.5, 12.5, 3))
    assert snapshots.Row.of(1, [5.0], 0).sigma == 0 and math.isnan(snapshots.Row.of(1, [], 0).mean)
    better = snapshots.Row.of(3600, [-10, 0, 0, 20], 3)
    assert better.improved(row) and not row.improved(better) and not row.improved(row)
    assert not snapshots.Row.of(1, [0, 0, -100, 100], 0).improved(row)  # the mean alone


def test_with_true_limits_there_is_no_error_and_longer_ones_make_it(snapshots: ModuleType) -> None:
    jobs = [Submission(Job(number, "a.x", 1 + number * 7 % 5, 40.0 + number * 37 % 300, 12.0 * number),
                       20.0 + number * 53 % 200) for number in range(150)]
    found = snapshots.compared(jobs, 8, 4, 600.0, 0.0)
    assert len(found["true limits"]) >= 2
    for _, errors, dropped in found["true limits"]:
        assert errors and set(errors) == {0.0} and not dropped
    longer = [error for _, errors, _ in found["limits x 2"] for error in errors]
    assert sum(map(abs, longer)) + sum(dropped for _, _, dropped in found["limits x 2"]) > 0
    exact = snapshots.Row.of(1, [error for _, errors, _ in found["true limits"] for error in errors], 0)
    assert exact.improved(snapshots.Row.of(1, longer, 0))


@pytest.mark.slow
def test_lml_files_are_compared(tmp_path: Path) -> None:
    for number, (moment, first, second) in enumerate([
            ("12:00:00", "Running", "Idle"), ("12:01:00", "Completed", "Running")]):
        dates = "dispatchdate" if second == "Running" else "odate"
        (tmp_path / f"{number}.xml").write_text(f"""<lml:lgui xmlns:lml="http://eclipse.org/ptp/lml" version="1.1">
<objects><object id="s" type="system"/><object id="n" type="node"/><object id="a" type="job"/>
<object id="b" type="job"/></objects><information>
<info oid="s"><data key="system_time" value="07/12/12-{moment}"/></info>
<info oid="n"><data key="ncores" value="4"/></info>
<info oid="a"><data key="state" value="{first}"/><data key="queuedate" value="07/12/12-11:00:00"/>
<data key="dispatchdate" value="07/12/12-11:50:00"/><data key="wall" value="3600"/>
<data key="totalcores" value="4"/><data key="nodelist" value="(1-1(1-4))"/></info>
<info oid="b"><data key="state" value="{second}"/><data key="queuedate" value="07/12/12-11:10:00"/>
<data key="{dates}" value="07/12/12-12:00:40"/><data key="wall" value="60"/><data key="totalcores" value="2"/></info>
</information></lml:lgui>""")
    said = study("snapshots.py", "--lml", tmp_path / "0.xml", tmp_path / "1.xml")
    # b started at 40 s; a was seen to be gone at 60 s, when the forecast starts b: 20 s too late.
    assert "| 0.xml | 0.02 | 1 | -20.0 | -20 | -20 | -20 | 0.0 | -20, -20 | 0 |" in said
