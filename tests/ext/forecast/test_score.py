"""The record of a run's own forecasts."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import pytest
from support.run_files import recorded, settings_in, submissions_of, write

from vrm.ext.forecast.calibration import NEEDED
from vrm import cli
from vrm.config.schema import Settings, load
from vrm.ext.forecast.files import RunFiles
from vrm.ext.forecast.forecast import Forecast, JobForecast, forecast
from vrm.ext.forecast.score import NAME, ScoredForecast, Log, Made, Score, scored_forecasts, read
from vrm.ext.forecast.report.forecast_score import moving_fraction
from vrm.results.forecast import ManagerReport
from vrm.run.journal.files import Journal


def settings_of(directory: Path) -> Settings:
    return load(directory / "vrm.yaml")


def drawn_text(picture: Path) -> str:
    """The texts of a drawn picture: matplotlib writes them as comments."""
    return " ".join(re.findall(r"<!-- (.*?) -->", picture.read_text()))


def forecast_of(time: float, jobs: dict[int, float], running: bool = False, calibrated: str = "") -> Forecast:
    """A forecast of jobs, with ranges of 100 s on both sides, by id."""
    return Forecast(time, 3, 50, calibrated, math.inf, tuple(
        JobForecast(job_id, "a.x", 1, running, start, start - 100, start + 100, start + 50, start - 50,
                    start + 150, start + 500, "n0", drawn=(start - 100, start + 100, start - 50, start + 150))
        for job_id, start in jobs.items()))


def made(job_id: int, start: float, time: float = 0.0) -> Made:
    return Made.of(forecast_of(time, {job_id: start}).jobs[0], forecast_of(time, {job_id: start}))


def test_the_first_forecast_of_each_waiting_job_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "forecasts.jsonl"
    log = Log(path)
    log.note(forecast_of(0.0, {1: 300.0, 2: math.inf}))
    log.note(forecast_of(0.0, {5: 0.0}, running=True))
    log.note(forecast_of(10.0, {1: 400.0, 2: 900.0}))
    Log(path).note(forecast_of(20.0, {1: 500.0, 3: 600.0}))
    found, wrong = read(path)
    assert wrong == 0
    assert [(each.id, each.time, each.start) for each in found] == [(1, 0, 300), (2, 10, 900), (3, 20, 600)]
    assert found[0] == made(1, 300.0)


def test_a_file_that_ends_anywhere_is_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "forecasts.jsonl"
    Log(path).note(forecast_of(0.0, {1: 300.0, 2: 400.0, 3: 500.0}))
    whole = path.read_bytes()
    lines = whole.splitlines(True)
    for size in range(len(whole)):
        torn = tmp_path / f"{size}.jsonl"
        torn.write_bytes(whole[:size])
        found, wrong = read(torn)
        entire = sum(size >= sum(map(len, lines[:number])) - 1 for number in (1, 2, 3))  # but for its end
        assert [each.id for each in found] == [1, 2, 3][:entire]
        assert wrong == (not (whole[:size] + b"\n").endswith((b"}\n", b"}\n\n")) and size > 0)
        Log(torn).note(forecast_of(9.0, {7: 800.0}))
        assert [each.id for each in read(torn)[0]] == [1, 2, 3][:entire] + [7]


@pytest.mark.parametrize("line", ["", "\0\0\0", "{}", "[]", "7", "null", '{"id": "x"}', "[" * 100_000, "\xff"])
def test_what_is_no_forecast_is_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "forecasts.jsonl"
    good = made(1, 300.0).line()
    path.write_text(f"{good}{line}\n{good.replace('300.0', '1e999')}", encoding="utf-8")
    path.chmod(0o600)
    found, wrong = read(path)
    assert found == [made(1, 300.0)] and wrong == 1 + bool(line.strip("\0"))


def test_infinity_is_kept() -> None:
    one = made(1, 300.0)._replace(p90=math.inf, drawn=(1.0, math.inf, 2.0, math.inf))
    assert Made.read(one.line()) == one
    assert "Infinity" not in one.line() and json.loads(one.line())["p90"] is None


def test_a_score_is_what_it_says() -> None:
    known = [ScoredForecast(made(1, 300.0), 290.0), ScoredForecast(made(2, 300.0), 700.0), ScoredForecast(made(3, 300.0), 150.0),
             ScoredForecast(made(4, 3000.0)._replace(calibrated=False), 1000.0)]
    found = Score.of(known)
    assert found == pytest.approx((
        4, (290 + 700 + 150 + 1000) / 4, (10 + 400 + 150 + 2000) / 4, (150 + 400) / 2,
        (10 - 400 + 150 + 2000) / 4, 2 / 4, 3 / 4, 1.0, 3, 1 / 3, 1 / 3, 1 / 3))
    assert found.relative == pytest.approx(2560 / 2140)
    assert Score.of(known, lambda each: each.latest).bias == pytest.approx((2560 - 400 * 2 + 4 * 500) / 4)


def test_a_score_of_one_job() -> None:
    found = Score.of([ScoredForecast(made(1, 300.0)._replace(calibrated=False), 300.0)])
    assert (found.number, found.mean, found.ranged) == (1, 0, 0) and math.isnan(found.coverage)
    assert math.isnan(Score.of([ScoredForecast(made(1, 0.0), 0.0)]).relative)
    assert found.lines()[-1].endswith(f"none was calibrated: {NEEDED} forecasts must have come true before")


def test_forecasts_come_true_when_their_jobs_start() -> None:
    every = [made(1, 300.0), made(1, 900.0, 200.0), made(2, 300.0), made(3, 300.0, 100.0)]
    starts = {1: 310.0, 3: 50.0}  # by a clock that is behind
    assert scored_forecasts(every, starts.get) == [ScoredForecast(every[0], 310.0), ScoredForecast(every[3], 100.0)]


def test_what_comes_true_calibrates_the_next_forecasts_however_it_is_read(tmp_path: Path) -> None:
    generator = random.Random(3)
    path = tmp_path / "forecasts.jsonl"
    log = Log(path)
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    seen: list[float] = []
    for number in range(4 * NEEDED):
        calibration = log.calibration
        log.note(forecast_of(number, {number: number + 1000.0}, calibrated="" if calibration.ready else "no"))
        starts[number] = number + 1000.0 + generator.uniform(-300, 300)
        ends[number] = starts[number] + 60
        log.learn(starts.get, ends.get)
        seen.append(calibration.starts.late.by)
    assert log.calibration.ready and log.calibration.ends.ready
    assert 0.5 < seen[-1] < 1.0  # 300 s are beyond by one width
    again = Log(path)
    again.learn(starts.get, ends.get)
    assert again.calibration.starts.known == 4 * NEEDED
    assert again.calibration.starts.late.by == pytest.approx(seen[-1], abs=0.05)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A run that has ended, whose forecasts were kept from moment to moment."""
    settings = settings_in(tmp_path, Backfilling="easy")
    records = recorded(settings, submissions_of(70, random.Random(8)))
    write(settings, [])
    journal, files = Journal(settings.directory / "journal"), RunFiles(settings)
    log = Log(settings.directory / NAME)
    for moment in records:
        for record in moment:
            journal.append(**record)
        journal.sync()
        files.read_new()
        frozen = files.frozen(ManagerReport("running"), now=0.0)
        log.learn(lambda job_id: files.past.started.get(job_id, {}).get("time"), lambda job_id: None)
        log.note(forecast(frozen, 4, calibration=log.calibration))
    journal.close()
    return tmp_path


def score(directory: Path, *words: str) -> int:
    return cli.main(["-c", str(directory / "vrm.yaml"), "forecast", "--score", *words])


def test_the_command_prints_and_draws_the_score(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = directory / "score.svg"
    assert score(directory, "--plot", str(picture)) == 0
    text = capsys.readouterr().out
    assert re.search(r"forecasts that came true +\d\d, the mean wait was ", text)
    assert "error of the start" in text and "later submissions" in text
    assert "wait as forecast" in drawn_text(picture)
    assert score(directory, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    made, _ = read(settings_of(directory).directory / NAME)
    assert found["number"] == len(made) > NEEDED and found["ranged"] <= found["number"]
    assert 0 <= found["mean"] < 60 and found["close"] == 1


def test_what_cannot_be_scored_is_said(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = settings_of(directory).directory / NAME
    whole = path.read_text()
    path.write_text(whole + "{\n")
    assert score(directory) == 0
    assert "1 line(s)" in capsys.readouterr().err
    path.write_text("")
    assert score(directory) == 2
    assert "no forecast job has started yet" in capsys.readouterr().err
    path.unlink()
    assert score(directory) == 2
    assert "no manager with forecasts has run here" in capsys.readouterr().err
    assert cli.main(["-c", str(directory / "vrm.yaml"), "forecast", "--plot", "a.svg"]) == 2
    assert "add --score" in capsys.readouterr().err
    path.write_text(whole)
    assert score(directory, "--plot", "picture.txt") == 2
    assert "ends in .png or .svg" in capsys.readouterr().err


def test_the_share_in_the_ranges_is_of_the_last_ones() -> None:
    assert moving_fraction([True, False, True, True], 2) == [0.5, 0.5, 1.0]
    assert moving_fraction([True], 2) == []
