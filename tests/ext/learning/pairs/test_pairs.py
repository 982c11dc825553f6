"""Pairs that are learned from whole runs: on made-up machines whose speeds are known."""

from __future__ import annotations

import importlib.util
import itertools
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest
from support.executor import Managed, root  # noqa: F401

from vrm.ext.learning.learned_jobs import LearnedJob
from vrm.ext.learning.pairs.co_runs import ALONE, CoRun, co_runs
from vrm.ext.learning.pairs.heatmap import GUESSED, LEARNED, LearnedHeatmap, learned, speedups_of
from vrm.ext.learning.pairs.model import PairModel
from vrm.ext.learning.part import LearningPart
from vrm.ext.learning.store import LearnedStore
from vrm.model.measured.heatmap import Heatmap
from vrm.model.measured.speedups import Speedups

STUDY = Path(__file__).resolve().parents[4] / "studies" / "learning" / "pairs.py"


def job(number: int, app: str, nodes: str, start: float, end: float, **more: Any) -> LearnedJob:
    given = {"input": "", "ranks": 4, "cores": 4, "walltime": 99.0, "status": "completed", **more}
    return LearnedJob("r", number, app, nodes=nodes, start=start, end=end, **given)


def test_parts_of_a_run_have_the_neighbours_of_all_nodes() -> None:
    jobs = [job(0, "a.A.x", "n[1-2]", 0, 100), job(1, "b.A.x", "n1", 20, 50), job(2, "c.A.x", "n2", 40, 200, status="failed"),
            job(3, "d.A.x", "n3", 0, 100)]
    first, second = [run for run in co_runs(jobs) if run.load in ("a.A.4", "b.A.4")][::-1]
    assert {company: seconds for seconds, company in first.parts} == {
        frozenset({ALONE}): 20, frozenset({"b.A.4", ALONE}): 20, frozenset({"b.A.4", "c.A.4"}): 10, frozenset({"c.A.4", ALONE}): 50}
    assert second.parts == ((30, frozenset({"a.A.4"})),) and first.seconds == 100
    assert [run.load for run in co_runs(jobs)] == ["b.A.4", "a.A.4", "d.A.4"]  # that which failed is a neighbour alone


def made_up(seed: int, programs: int = 6) -> Speedups:
    """Speeds of a made-up machine: programs feel others in their own way, and each pair has a little of its own."""
    rng = random.Random(seed)
    names = [f"p{number}.C.64" for number in range(programs)]
    feels = {name: rng.uniform(0.3, 1.5) for name in names}
    presses = {name: rng.uniform(-0.3, 0.15) for name in names}
    return Speedups({own: {other: math.exp(0.1 + feels[own] * presses[other] + rng.gauss(0, 0.02)) for other in names}
                     for own in names}, {}, {name: rng.uniform(100, 1000) for name in names})


def observed(pool: Speedups, number: int, seed: int, noise: float = 0.0) -> list[CoRun]:
    """Runs with changing neighbours, one at a time, alone for some of the time."""
    rng, runs = random.Random(seed), []
    loads = sorted(pool.pairs)
    for _ in range(number):
        own, left, parts = rng.choice(loads), 1.0, []
        work = pool.compact[own] * math.exp(rng.gauss(0, noise))
        while left > 1e-9:
            part = min(left, rng.choice((0.3, 0.5, 1.0)))
            other = rng.choice([*loads, ALONE])
            parts.append((part * work / (pool.pairs[own][other] if other else 1.0), frozenset({other})))
            left -= part
        runs.append(CoRun(own, own, tuple(parts)))
    return runs


def error(model: PairModel, pool: Speedups) -> float:
    pairs = list(itertools.product(pool.pairs, pool.pairs))
    return fmean(abs(speed.value / pool.pairs[own][other] - 1) for (own, other), speed in zip(pairs, model.speeds(pairs)))


@pytest.mark.parametrize("seed", range(4))
def test_100_runs_of_a_made_up_machine_are_enough(seed: int) -> None:
    pool = made_up(seed)
    model = PairModel(observed(pool, 100, seed))
    pairs = list(itertools.product(pool.pairs, pool.pairs))
    assert error(model, pool) < 0.03
    inside = fmean(speed.low <= pool.pairs[own][other] <= speed.high for (own, other), speed in zip(pairs, model.speeds(pairs)))
    assert inside > 0.7
    nothing = PairModel()
    assert error(nothing, pool) > 2 * error(model, pool) and nothing.speeds([("a", "b")])[0].value == 1.0


@pytest.mark.parametrize("noise, most", [(0.03, 0.04), (0.2, 0.1)])
def test_run_times_that_scatter(noise: float, most: float) -> None:
    pool = made_up(9)
    model = PairModel(observed(pool, 200, 1, noise=noise))
    assert error(model, pool) < most and noise / 2 < model.noise < 2 * noise
    pairs = list(itertools.product(pool.pairs, pool.pairs))
    inside = fmean(speed.low <= pool.pairs[own][other] <= speed.high for (own, other), speed in zip(pairs, model.speeds(pairs)))
    assert inside > 0.6


def test_a_pair_that_was_never_seen_is_estimated_from_others() -> None:
    pool = made_up(3)
    runs = observed(pool, 200, 3)
    own, other = "p1.C.64", "p2.C.64"
    left = [run for run in runs if not (run.load == own and any(other in company for _, company in run.parts))]
    model = PairModel(left)
    [speed] = model.speeds([(own, other)])
    assert speed.runs == 0 and speed.value == pytest.approx(pool.pairs[own][other], rel=0.1)
    [seen] = PairModel(runs).speeds([(own, other)])
    assert seen.runs > 0 and seen.high / seen.low < speed.high / speed.low


def test_the_worst_of_several_neighbours_counts() -> None:
    both = frozenset({"good.A.4", "bad.A.4"})
    runs = [CoRun("own.A.4", "w", ((100.0, frozenset({ALONE})),)) for _ in range(3)]
    runs += [CoRun("own.A.4", "w", ((80.0, frozenset({"good.A.4"})),)), CoRun("own.A.4", "w", ((125.0, both),)),
             CoRun("own.A.4", "w", ((125.0, both),))]
    good, bad = PairModel(runs).speeds([("own.A.4", "good.A.4"), ("own.A.4", "bad.A.4")])
    assert good.value == pytest.approx(1.25, abs=0.03) and bad.value == pytest.approx(0.8, abs=0.03)


def _study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pairs_study", STUDY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12])
def test_after_100_simulated_jobs_the_learned_heatmap_is_as_good_as_the_full_one(seed: int) -> None:
    """Jobs of a made-up pool under strip, learned from the lines of jobs.csv."""
    study, pool = _study(), made_up(seed, 8)
    model = study.learn(pool, 100, 30, seed)
    assert study.errors(model, pool)["error"] <= 0.05
    changes = []
    for other in range(3):
        jobs = study.workload(pool, 200, 100 + other)
        ends = [study.run(jobs, pool, heatmap, 30, "strip", "t")[1].summary["makespan"]
                for heatmap in (speedups_of(model).heatmap(), pool.heatmap())]
        changes.append(ends[0] / ends[1] - 1)
    assert fmean(changes) <= 0.02, changes


@pytest.mark.slow
def test_what_runs_cannot_show() -> None:
    """The study's errors if more were known: no run time says how fast a load is that never was alone."""
    study, pool = _study(), made_up(3, 16)
    runs = study.observed(pool, 40, 20, 3)
    model = PairModel(runs)
    found = study.bounds(runs, model, pool)
    assert found["runs"] == len(runs) == 40 and found["unknown"] == len(model.seen) + len(model.loads)
    assert found["error, seen known"] < study.errors(model, pool)["error"] > found["error, alone known"]


@pytest.mark.slow
def test_few_partners_are_better_than_the_best_one_first() -> None:
    """Of jobs of one size: a job on nodes of several partners is as slow as next to the worst, and slows all."""
    study, found = _study(), list[tuple[float, float, float]]()
    for seed in range(6):
        pool = made_up(seed, 8)
        jobs = study.workload(pool, 200, seed)
        found.append(tuple(study.run(jobs, pool, heatmap, 30, "strip", "t", order)[1].summary["makespan"] for heatmap, order in (
            (pool.heatmap(), "partners"), (pool.heatmap(), "heatmap"), (Heatmap({}), "heatmap"))))
    partners, best, none = map(fmean, zip(*found))
    assert partners < 0.98 * best and partners < 0.98 * none, (partners, best, none)


def _pair_jobs() -> list[LearnedJob]:
    """Alone a takes 100 s; b slows it to 200 s and c does not."""
    found, at = list[LearnedJob](), itertools.count()
    for number in range(6):
        begin = 1000.0 * number
        found += [job(next(at), "a.A.x", "n0", begin, begin + 100), job(next(at), "a.A.x", "n1", begin, begin + 200),
                  job(next(at), "b.A.x", "n1", begin, begin + 200), job(next(at), "a.A.x", "n2", begin, begin + 100),
                  job(next(at), "c.A.x", "n2", begin, begin + 100)]
    return found


def test_the_order_of_partners_follows_what_was_learned() -> None:
    heatmap = LearnedHeatmap([])
    assert heatmap.rank("a.A.x", "b.A.x") == heatmap.rank("a.A.x", "c.A.x") and heatmap.missing(["a.A.x"]) == []
    heatmap.take(heatmap.learn_again(_pair_jobs()))
    assert heatmap.rank("a.A.x", "c.A.x") < heatmap.rank("a.A.x", "b.A.x") and heatmap.jobs == 30
    assert heatmap.throughput is not None
    one, two = (heatmap.throughput.of("a.A.x", 4, other, 4) for other in ("b.A.x", "c.A.x"))
    assert one is not None and two is not None and one < two


def test_which_pairs_are_refused_stays_as_it_was_at_the_begin() -> None:
    late, early = LearnedHeatmap([], 1.9), LearnedHeatmap(_pair_jobs(), 1.9)
    late.take(late.learn_again(_pair_jobs()))
    assert not late.refuses("a.A.x", 4, "b.A.x", 4) and late.refused == []
    assert early.refuses("a.A.x", 4, "b.A.x", 4) and ("a.A.4", "b.A.4") in early.refused


def test_a_manager_learns_while_it_works_and_from_earlier_runs(root: Path) -> None:
    managed = Managed(root, Allocation={"Policy": "strip"}, Applications={
        "Path": "bin", "Queue": "queue", "Heatmap": "learned"}, Learning={"Store": str(root / "store")})
    heatmap = managed.live.scheduler.policy.heatmap
    assert isinstance(heatmap, LearnedHeatmap) and heatmap.jobs == 0
    with LearnedStore(root / "store") as store:
        store.add("r", "/r", "n 4", _pair_jobs())
    managed.close()
    managed = Managed(root / "next", Allocation={"Policy": "strip"}, Applications={
        "Path": "bin", "Queue": "queue", "Heatmap": "learned"}, Learning={"Store": str(root / "store")})
    heatmap = managed.live.scheduler.policy.heatmap
    assert isinstance(heatmap, LearnedHeatmap) and heatmap.jobs == 30
    found = learned.shown(managed.live.settings)
    assert {(figure.app, figure.partner): figure.source for figure in found.figures} == {
        ("a.A", "b.A"): LEARNED, ("b.A", "a.A"): LEARNED, ("a.A", "c.A"): LEARNED, ("c.A", "a.A"): LEARNED,
        **dict.fromkeys([("a.A", "a.A"), ("b.A", "b.A"), ("c.A", "c.A"), ("b.A", "c.A"), ("c.A", "b.A")], GUESSED)}
    managed.close()


def test_a_manager_learns_anew_after_20_jobs(root: Path) -> None:
    managed = Managed(root, *["ok.x 1 99 0"] * 24, Allocation={"Policy": "strip"}, Applications={
        "Path": "bin", "Queue": "queue", "Heatmap": "learned"}, Learning={"Store": "off"})
    heatmap, now = managed.live.scheduler.policy.heatmap, 0.0
    assert isinstance(heatmap, LearnedHeatmap)
    while managed.state.waiting or managed.live.running:
        now += 5.0
        managed.turn(now)
        for job_id in list(managed.live.running):
            managed.end(job_id, now + 2.0)
    part = managed.live.part(LearningPart)
    managed.turn(now + 10.0)
    part._copied.look(wait=True)
    assert heatmap.jobs >= 20 and heatmap.ranks == {"ok": {"ok": 1.0}}
    managed.close()


@pytest.mark.mpi
def test_it_is_shown_and_used_live(site: Any) -> None:
    site.env["XDG_DATA_HOME"] = str(site.root / "data")
    site.program("slow.x", "exec sleep 1.6\n")
    site.program("fast.x", "exec sleep 1.2\n")
    applications = {"Path": "bin", "Queue": "queue", "Heatmap": "learned"}
    site.config(Launcher={"Kind": "direct"}, Nodes=2, Sockets=1, Cores=4, Emulate=True, Allocation={"Policy": "strip"},
                Applications=applications)
    assert "no job has run yet" in site.run("heatmap", "show", "learned").stderr
    site.lines(*["slow.x 1 60 0", "fast.x 1 60 0"] * 3)
    done = site.run("--once")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = site.run("heatmap", "show")
    assert "~ learned from ordinary runs, ? guessed from other pairs" in shown.stdout, shown.stderr
    assert "~" in shown.stdout.splitlines()[2]
    written = site.run("heatmap", "convert", "learned", str(site.root / "pairs.csv"))
    assert written.returncode == 0 and "learned" in (site.root / "pairs.csv").read_text()
    again = site.run("heatmap", "show", str(site.root / "pairs.csv"))
    assert again.stdout.splitlines()[:5] == shown.stdout.splitlines()[:5]


@pytest.mark.slow
def test_the_live_study_runs(site: Any) -> None:
    site.program("one.x", "exit 0\n")
    site.program("two.x", "exit 0\n")
    done = subprocess.run([sys.executable, str(STUDY.with_name("live.py")), "--out", str(site.root / "out"), "--programs", str(
        site.root / "bin"), "--jobs", "2", "--rounds", "1", "--emulate", "2:1:2"], env=site.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"strip, learned against exclusive compact: throughput .* the worst; 0 jobs failed\n", done.stdout)
