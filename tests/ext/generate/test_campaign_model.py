"""Mixed workloads: models of them, what is drawn from these, and the stated year."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vrm.cli import main
from vrm.model.job import Job, Request
from vrm.simulation.inputs import open_workload
from vrm.ext.generate import eurora_year
from vrm.ext.generate.campaign_model import Model, compared, draw, figures, fit, hour_of, kind_of, points, quantile
from vrm.workload.submission import Submission
from vrm.workload.swf import Selection
from vrm.ext.formats.table import write


def made(jobs: int, seed: int = 1) -> list[Submission]:
    """A workload of two users: one has serial jobs at night, the other GPU jobs at noon."""
    rng = random.Random(seed)
    found = []
    for number in range(jobs):
        gpu = rng.random() < 0.25
        day = 86400 * (number * 20 // jobs)
        request = Request.of(2 if gpu else 1, 4, False, {"gpu": 1, "memory": 2} if gpu else {"memory": 1})
        run = math.ceil(rng.lognormvariate(6 if gpu else 4, 1))
        limit = 3600.0 if run < 3600 else 86400.0
        found.append(Submission(
            Job(number, "train" if gpu else "sweep", request.tasks, limit,
                float(day + 3600 * (12 if gpu else 2) + rng.randrange(3600)), False, 4,
                user="ann" if gpu else "bob", queue="gpu" if gpu else "cpu", request=request), run))
    return sorted(found, key=lambda one: one.job.submit)


def test_what_is_drawn_has_the_statistics_of_what_was_read() -> None:
    original = made(4000)
    model = fit(original)
    drawn = draw(model, 7)
    assert drawn == draw(model, 7) != draw(model, 8)
    assert [one.job.id for one in drawn] == list(range(1, 4001))
    assert all(one.job.submit <= later.job.submit for one, later in zip(drawn, drawn[1:]))
    there, here = figures(original), figures(drawn)
    assert there.keys() == here.keys() == {"all", "gpu", "standard"}
    for kind, each in there.items():
        assert here[kind].jobs == each.jobs
        assert sum(here[kind].runs) == pytest.approx(sum(each.runs), rel=0.04)
        assert max(here[kind].runs) <= max(each.runs)
        assert here[kind].work == pytest.approx(each.work, rel=0.05)
    hours = Counter((kind_of(one.job.request), hour_of(one.job.submit, 0) % 24) for one in drawn)
    at = hours["gpu", 12] + hours["gpu", 13] + hours["standard", 2] + hours["standard", 3]
    assert at > 0.95 * len(drawn)  # a campaign that begins late in the hour goes on in the next one
    assert {one.job.queue for one in drawn} == {"gpu", "cpu"}
    assert all(one.run <= one.job.walltime for one in drawn)
    table = compared(original, drawn)
    assert "gpu       original  " in table and "drawn: " in table


def test_another_number_of_jobs_comes_at_the_same_rate() -> None:
    model = fit(made(2000))
    for jobs in (1, 500, 2000, 5000):
        other = model.of(jobs)
        assert other.jobs == jobs == len(draw(other, 1))
        period, before = other.periods[0], model.periods[0]
        assert period.end - period.begin == pytest.approx((before.end - before.begin) * jobs / 2000)


def test_limits_that_are_the_jobs_own_go_with_their_run_times() -> None:
    original = [one._replace(job=one.job.but(walltime=one.run * (1.5 + one.job.id % 7 / 10)))
                for one in made(1000)]
    drawn = draw(fit(original), 1)
    assert all(1.4 < one.job.walltime / one.run < 2.6 for one in drawn)


def test_a_drawn_workload_is_read_as_it_was_written(tmp_path: Path) -> None:
    drawn = draw(fit(made(300)), 3)
    drawn[0] = drawn[0]._replace(job=Job(1, "a", 4, 60.0, drawn[0].job.submit, True, 2, user="x",
                                         request=Request.of(4, 2, True, {}, frozenset({"ib", "b"}), {
                                             "gpu": 2, "memory": 0.25}, {"ansys": 2}, (2, 2), 3)))
    write(tmp_path / "w.csv.gz", drawn, 1400000000, "a remark")
    write(tmp_path / "again.csv.gz", drawn, 1400000000, "a remark")
    assert (tmp_path / "w.csv.gz").read_bytes() == (tmp_path / "again.csv.gz").read_bytes()
    workload = open_workload(tmp_path / "w.csv.gz", Selection(memory=True, keep_estimates=True))
    found = list(workload)
    begin = drawn[0].job.submit
    assert workload.unix_start == 1400000000 + begin and not workload.dirt
    assert [(one.job.request, one.run, one.job.walltime, one.job.user, one.job.app, one.job.queue,
             one.job.submit) for one in found] == [
        (one.job.request, one.run, one.job.walltime, one.job.user, one.job.app, one.job.queue,
         one.job.submit - begin) for one in drawn]


def test_distributions() -> None:
    assert points([3, 1, 2]) == (1, 2, 3) and len(points(range(5000))) == 1001
    assert [quantile((1, 2, 4), share) for share in (0, 0.25, 0.5, 1)] == [1, 1.5, 2, 4]
    assert quantile((5,), 0.7) == 5
    with pytest.raises(ValueError, match="no job to fit"):
        fit([])


@pytest.fixture(scope="module")
def year() -> list[Submission]:
    return draw(eurora_year.model(), 1)


def test_the_year_has_the_published_numbers(year: list[Submission]) -> None:
    kinds = figures(year)
    assert kinds["all"].jobs == 372320 and sum(kinds["all"].runs) / 372320 == pytest.approx(968, rel=0.01)
    for kind, jobs in eurora_year.JOBS.items():
        assert kinds[kind].jobs == jobs
        assert sum(kinds[kind].runs) / jobs == pytest.approx(eurora_year.MEAN[kind], rel=0.02)
        assert 0.9 * eurora_year.LONGEST[kind] < max(kinds[kind].runs) <= eurora_year.LONGEST[kind]
    assert kinds.keys() == {"all", "standard", "mic", "gpu"}  # nobody asks for both
    for one in year:
        request = one.job.request
        assert one.run <= one.job.walltime == eurora_year.QUEUES[one.job.queue]
        assert request.tasks <= eurora_year.MOST_UNITS[one.job.queue] and request.cores <= 512
    most = Counter({kind: max(one.job.request.tasks * dict(one.job.request.per_task).get(kind, 0) // 1000
                              for one in year) for kind in ("gpu", "mic")})
    assert most["gpu"] == 64 and most["mic"] <= 12
    september = [one for one in year if 153 * 86400 <= one.job.submit < 183 * 86400]
    assert Counter(kind_of(one.job.request) for one in september) == {
        "standard": 8868, "mic": 622, "gpu": 68296}


def test_users_of_the_year_repeat_themselves(year: list[Submission]) -> None:
    """The error of the last run of the same user, name and request is far below that of the limit."""
    last: dict[Any, float] = {}
    errors, limits = [], []
    for one in year:
        key = one.job.user, one.job.app, one.job.request
        errors.append(abs(one.run - last.get(key, one.job.walltime)))
        limits.append(one.job.walltime - one.run)
        last[key] = one.run
    assert sum(errors) * 5 < sum(limits) and sum(limits) / len(limits) / 60 == pytest.approx(310, rel=0.1)


def test_the_command(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "a.csv", "--like", "lublin:64:300", "--seed", "1"]) == 0
    assert "original: " in capsys.readouterr().out
    assert main(["generate", "b.csv", "--like", "a.csv", "--jobs", "50", "--seed", "1"]) == 0
    assert len(list(open_workload("b.csv"))) == 50
    for words, message in [
            (["b.csv", "--like", "a.csv"], "b.csv exists; name another file, or replace it with --force"),
            (["--like", "a.csv"], "name its file"), (["c", "--machine", "m"], "give both"),
            (["c", "--like", "none"], "none: no such file"),
            (["c", "--like", "a.csv", "--apps", "cg"], "leave out --apps"),
            (["c", "--like", "a.csv", "--machine", "none.yaml"], "none.yaml: no such file")]:
        assert main(["generate", *words]) == 2
        assert message in capsys.readouterr().err
    assert isinstance(fit(open_workload("a.csv")), Model)
