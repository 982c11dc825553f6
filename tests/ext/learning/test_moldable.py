"""The backfilling `moldable` against brute force over all numbers of ranks, and what holds in every schedule."""

from __future__ import annotations

import importlib.util
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from vrm.api import Machine, Outcome, Rules, Submission, simulate
from vrm.ext.learning.list_schedules import backfilled, finishes
from vrm.ext.learning.moldable import Moldable, limit_on
from vrm.ext.learning.widths import RANKS, SPEEDUP, Downey
from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.scheduling.placement.combining import combine

REGRET = 0.03

STUDY = Path(__file__).resolve().parents[3] / "studies" / "learning" / "moldable.py"


def submission(number: int, submit: float, ranks: int, run: float, widths: tuple[int, ...] = (),
               speedup: tuple[float, float] = (8.0, 0.5), limit: float = 0.0) -> Submission:
    more = {RANKS: widths, SPEEDUP: speedup} if widths else {}
    return Submission(Job(number, f"a{number}.x", ranks, limit or run, submit, more=more), run)


def simulated(jobs: list[Submission], cores: int, backfill: Any = "moldable", **rules: Any) -> Outcome:
    return simulate(jobs, Machine.of(cores, 1, 1), Rules(backfill=backfill, policy="pack", **rules))


def turnaround(outcome: Outcome) -> float:
    return sum(job.end - job.submit for job in outcome.jobs) / len(outcome.jobs)


def makespan(outcome: Outcome) -> float:
    return max(job.end for job in outcome.jobs)


def on(job: Submission, ranks: int) -> Submission:
    """A rigid job on as many ranks."""
    curve = Downey(*job.job.more[SPEEDUP])
    run = job.run * curve.time(ranks) / curve.time(job.job.procs)
    return submission(job.job.id, job.job.submit, ranks, run)


@pytest.mark.slow
def test_little_is_lost_against_brute_force_on_eight_jobs() -> None:
    """The best of all choices in three orders, of 8 machines. Of 20 machines, where jobs that had waited twice their limit were first,
    though no younger one waited, and only `makespan` compared plans, it was 3.0 and 4.3 %."""
    spec = importlib.util.spec_from_file_location("moldable_study", STUDY)
    assert spec is not None and spec.loader is not None
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    regrets = {objective: found["mean"] for objective, found in study.brute(8, 1).items()}
    assert {*regrets} == {"turnaround", "makespan"} and max(regrets.values()) <= 0.01, regrets


@pytest.mark.parametrize("objective, value", [("turnaround", turnaround), ("makespan", makespan)])
def test_little_is_lost_against_brute_force(objective: str, value: Any) -> None:
    chance, regrets = random.Random(11), []
    for _ in range(12):
        cores, jobs = 8, []
        for number in range(4):
            widths = tuple(sorted(chance.sample((1, 2, 3, 4, 6, 8), 3)))
            jobs.append(submission(number, 0.0, chance.choice(widths), chance.uniform(20, 200), widths,
                                   (chance.uniform(2, 16), chance.choice((0.0, 0.5, 1.0, 2.0)))))
        best = min(value(simulated([on(job, ranks) for job, ranks in zip(jobs, choice)], cores, "easy"))
                   for choice in itertools.product(*(job.job.more[RANKS] for job in jobs)))
        regrets.append(value(simulated(jobs, cores, f"moldable objective={objective}")) / best - 1)
    assert sum(regrets) / len(regrets) <= REGRET, regrets


def test_a_forecast_leaves_the_queue_that_was_seen_as_it_is() -> None:
    """A forecast decides in a copy, at times to come."""
    cluster = Cluster.regular(1, 1, 4)
    one = Moldable()
    one._queued.left(0.0, 3)
    twin = one.copy(cluster)
    twin._queued.left(50.0, 9)
    assert twin._queued.mean(100.0) > 3 and one._queued.mean(100.0) == 3


def test_alone_a_job_takes_the_ranks_on_which_it_is_fastest() -> None:
    outcome = simulated([submission(0, 0.0, 2, 100.0, (1, 2, 4, 8), (4.0, 0.0))], 16)
    job, = outcome.jobs
    assert job.procs == 4 and job.end == pytest.approx(50.0)


def test_under_load_jobs_are_narrow() -> None:
    jobs = [submission(number, 0.0, 4, 100.0, (1, 2, 4, 8), (2.0, 2.0)) for number in range(16)]
    outcome = simulated(jobs, 8)
    assert {job.procs for job in outcome.jobs} <= {1, 2, 4} and min(job.procs for job in outcome.jobs) == 1
    assert turnaround(outcome) < turnaround(simulated([on(job, 4) for job in jobs], 8, "easy"))


@pytest.mark.parametrize("average, variation", [(2.0, 2.0), (4.0, 2.0), (4.0, 0.5), (16.0, 0.0)])
def test_under_load_no_number_of_ranks_for_all_is_better(average: float, variation: float) -> None:
    jobs = [submission(number, 0.0, 4, 100.0, (1, 2, 4, 8), (average, variation)) for number in range(16)]
    best = min(turnaround(simulated([on(job, ranks) for job in jobs], 8, "easy")) for ranks in (1, 2, 4, 8))
    assert turnaround(simulated(jobs, 8)) <= 1.01 * best


def test_efficiency_has_a_floor() -> None:
    curve = Downey(8.0, 0.5)
    for floor in (0.9, 0.7, 0.5):
        job, = simulated([submission(0, 0.0, 1, 100.0, (1, 2, 4, 8, 16), (8.0, 0.5))], 16,
                         f"moldable objective=efficiency floor={floor}").jobs
        assert curve.speedup(job.procs) / job.procs >= floor
        assert job.procs == 16 or curve.speedup(2 * job.procs) / (2 * job.procs) < floor


def test_widths_that_no_node_can_hold_are_not_taken() -> None:
    job, = simulated([submission(0, 0.0, 2, 100.0, (1, 2, 4, 64, 128), (200.0, 0.0))], 8).jobs
    assert job.procs == 4


def test_rigid_jobs_are_those_of_easy() -> None:
    chance = random.Random(4)
    jobs = [submission(number, 5.0 * number, chance.randint(1, 8), chance.uniform(5, 60)) for number in range(200)]
    one, two = simulated(jobs, 8, "easy"), simulated(jobs, 8)
    assert [(job.id, job.start, job.end) for job in one.jobs] == [(job.id, job.start, job.end) for job in two.jobs]


def test_nobody_starves_and_no_core_is_taken_twice() -> None:
    chance = random.Random(9)
    jobs = [submission(0, 0.0, 8, 50.0, (1, 8), (8.0, 0.0))]
    jobs += [submission(number, 1.0 + number, chance.choice((1, 2)), chance.uniform(5, 40),
                        (1, 2, 4) if chance.random() < 0.5 else ()) for number in range(1, 120)]
    jobs.insert(30, submission(120, 30.0, 8, 30.0, (6, 8), (8.0, 0.0)))
    outcome = simulated(jobs, 8)
    assert len(outcome.jobs) == 121
    for moment in sorted({job.start for job in outcome.jobs}):
        assert sum(job.procs for job in outcome.jobs if job.start <= moment < job.end) <= 8
    wide = next(job for job in outcome.jobs if job.id == 120)
    rigid = next(job for job in simulated([on(job, job.job.procs) if RANKS in job.job.more else job for job in jobs], 8,
                                          "easy").jobs if job.id == 120)
    assert wide.start <= rigid.start + 60


def test_of_many_those_that_take_least_start_first_next_to_a_head_that_waits() -> None:
    jobs = [submission(0, 0.0, 6, 1000.0), submission(1, 1.0, 8, 50.0, (8,)), submission(2, 1.0, 2, 500.0, (2,)),
            submission(3, 1.0, 2, 10.0, (2,)), *(submission(number, 1.0, 8, 50.0) for number in range(4, 16))]
    starts = {job.id: job.start for job in simulated(jobs, 8).jobs}
    assert (starts[3], starts[2], starts[1]) == (1.0, 11.0, 1000.0)


def test_a_job_that_has_waited_twice_its_walltime_is_before_all_younger_ones() -> None:
    """Jobs of one rank come twice as fast as they end, and take less than the wide one: without that it would wait for
    the last of them."""
    jobs = [submission(0, 1.0, 8, 20.0, (8,))]
    jobs += [submission(1 + number, 0.625 * number, 1, 10.0, (1,)) for number in range(400)]
    jobs.sort(key=lambda each: each.job.submit)
    starts = {job.id: job.start for job in simulated(jobs, 8).jobs}
    assert 40.0 < starts[0] <= 1.0 + 40.0 + 10.0 and max(starts.values()) > 400.0


def test_a_head_that_was_promised_a_start_keeps_its_ranks() -> None:
    """A head that has waited long was promised 4 cores; 8 would be best, but are free later."""
    cluster, one = Cluster.regular(1, 1, 8), Moldable()
    policy = combine("open", "first-fit", "free", "pack")(cluster)
    head = submission(1, 1.0, 8, 20.0, (4, 8), (64.0, 0.0)).job
    promised, best = one.options(head, policy)
    assert one._pick(head, policy) == best
    assert one.reservations(1.0, [head], cluster, policy) == {}  # type: ignore[arg-type]
    one._old = head.id, promised, 50.0
    assert one._pick(head, policy) == promised
    assert one.reservations(1.0, [head], cluster, policy) == {head.id: 50.0}  # type: ignore[arg-type]


def test_a_job_alone_takes_the_ranks_on_which_it_is_likely_to_be_fastest() -> None:
    """Also where it came later than the first one: it is no sign that others will come, and nobody waits for it."""
    more = {RANKS: (1, 4)}
    jobs = [Submission(Job(number, "a.x", 1, 100.0, 1000.0 * number, more=more), 50.0) for number in range(2)]
    assert [job.procs for job in simulated(jobs, 4).jobs] == [4, 4]


def test_the_walltime_is_scaled() -> None:
    job = Job(1, "a.x", 4, 100.0)
    assert (limit_on(job, 2), limit_on(job, 4), limit_on(job, 16)) == (200.0, 100.0, 100.0)


def test_a_job_is_ended_by_the_scaled_limit() -> None:
    jobs = [submission(0, 0.0, 6, 100.0), submission(1, 0.0, 4, 90.0, (1, 4), (1.0, 0.0), limit=100.0)]
    outcome = simulated(jobs, 8, kill=True)
    assert {job.id: (job.procs, job.status) for job in outcome.jobs} == {0: (6, "completed"), 1: (1, "completed")}


def test_ends_of_a_list_schedule() -> None:
    assert finishes(10.0, 2, [(12.0, 2), (20.0, 4)], [(2, 5.0), (4, 1.0), (1, 1.0)]) == [15.0, 16.0, 17.0]
    assert finishes(0.0, 1, [], [(1, 2.0), (3, 1.0)])[0] == 2.0


def test_ends_with_backfilling_are_those_of_plain_steps() -> None:
    chance = random.Random(6)
    for _ in range(200):
        cores = 8
        ends = sorted((float(chance.randint(1, 9)), chance.randint(1, 2)) for _ in range(chance.randint(0, 3)))
        work = [(chance.randint(1, 8), float(chance.randint(1, 6))) for _ in range(chance.randint(1, 6))]
        room = [cores - sum(size for end, size in ends if end > second) for second in range(100)]
        expected = []
        for size, seconds in work:
            start = next(second for second in range(100) if all(
                room[later] >= size for later in range(second, second + int(seconds))))
            for second in range(start, start + int(seconds)):
                room[second] -= size
            expected.append(start + seconds)
        assert backfilled(0.0, cores - sum(size for _, size in ends), ends, work) == expected
    assert backfilled(0.0, 2, [], [(3, 1.0), (1, 1.0)]) == [float("inf"), 1.0]


def test_a_copy_decides_alone() -> None:
    one = Moldable()
    two = one.copy(None)  # type: ignore[arg-type]
    two.learn(Job(1, "a.x", 4, 100.0), 50.0)
    assert one.curves.version == 0


class Hidden(Moldable):
    """Nobody knows how programs scale but the simulation."""

    def __init__(self, curves: dict[str, Downey]) -> None:
        super().__init__()
        self.hidden = curves

    def stretch(self, asked: Job, started: Job) -> float:
        curve = self.hidden[asked.app]
        return curve.time(started.procs) / curve.time(asked.procs)


def learned(seed: int) -> tuple[float, float]:
    """Mean turnarounds of jobs of some programs that come one after the other, of which nothing is known at first: on
    the numbers of ranks that are chosen, and as rigid jobs."""
    chance = random.Random(seed)
    curves = {f"p{each}": Downey(max(1.0, 4 * 2 ** chance.uniform(-1, 3)), chance.choice((0.0, 0.5, 1.0, 2.0)))
              for each in range(4)}
    runs = {app: chance.uniform(50, 400) for app in curves}
    jobs, time = [], 0.0
    for each in range(160):
        app = chance.choice([*curves])
        time += chance.expovariate(1 / 30)
        run = runs[app] * chance.lognormvariate(0, 0.05)
        jobs.append(Submission(Job(each, app, 4, 3 * runs[app], time, more={RANKS: (1, 2, 4, 8, 16)}), run))
    rigid = [each._replace(job=each.job.but(more={})) for each in jobs]
    return turnaround(simulated(jobs, 64, Hidden(curves))), turnaround(simulated(rigid, 64, "easy"))


@pytest.mark.slow
def test_curves_are_learned_from_what_the_load_does() -> None:
    """With jobs that were started on unknown numbers of ranks, to learn from them, the sum was 1525."""
    chosen, rigid = map(sum, zip(*map(learned, range(12))))
    assert chosen <= 1525 and chosen < 0.65 * rigid, (chosen, rigid)


def test_a_program_that_nobody_has_seen_takes_eight_times_its_ranks_and_fewer_the_more_jobs_wait() -> None:
    """Its own number where a second on that many cores costs others a second, and one in the end."""
    one, job = Moldable(), Job(1, "a.x", 4, 100.0, more={RANKS: (1, 2, 4, 8, 16, 32)})
    policy = combine("open", "first-fit", "free", "pack")(Cluster.regular(1, 1, 64))
    taken = []
    for price in (0.0, 1 / 64, 1 / 16, 1 / 4, 8.0):
        one._price = price
        taken.append(one._pick(job, policy).job.procs)
    assert taken == [32, 16, 8, 4, 1], taken


@pytest.mark.parametrize("seed", range(4))
def test_times_that_scatter_make_no_job_narrow_while_all_cores_are_free(seed: int) -> None:
    """One rank or two: two are never slower, by any shape."""
    chance = random.Random(seed)
    jobs = [Submission(Job(each, "p", 2, 300.0, 1000.0 * each, more={RANKS: (1, 2)}), chance.uniform(90, 110))
            for each in range(30)]
    outcome = simulated(jobs, 16, Hidden({"p": Downey(8.0, 0.5)}))
    assert {job.procs for job in outcome.jobs} == {2}


def test_a_job_that_takes_longer_than_its_program_did_blocks_nobody() -> None:
    """What was learned chooses numbers of ranks; reservations are by what users ask for. Else a head would be expected
    to start at once for hours, and nothing be backfilled."""
    jobs = [submission(each, 10.0 * each, 4, 1.0, (4,), limit=3600.0) for each in range(8)]
    jobs += [submission(8, 100.0, 6, 3000.0, (6,), limit=3600.0), submission(9, 101.0, 8, 10.0, (8,), limit=60.0),
             submission(10, 102.0, 2, 1000.0, (2,), limit=2000.0)]
    jobs = [each._replace(job=each.job.but(app="same")) for each in jobs]
    outcome = simulated(jobs, 8)
    assert next(job for job in outcome.jobs if job.id == 10).start == pytest.approx(102.0)


def test_a_head_that_may_start_now_does_not_take_fewer_ranks_for_a_job_that_ends_now() -> None:
    """A job that ends at the moment of the decision is not late: its cores are as good as free."""
    jobs = [submission(0, 0.0, 6, 100.0), submission(1, 0.0, 2, 100.0),
            submission(2, 1.0, 8, 100.0, (2, 8), (64.0, 0.0))]
    outcome = simulated(jobs, 8)
    assert {job.id: (job.procs, job.start) for job in outcome.jobs}[2] == (8, pytest.approx(100.0))


def test_an_end_that_does_not_come_holds_nobody_beside_the_head() -> None:
    """The running one is expected to end at 20 s at the latest. What fits beside the head starts at once."""
    jobs = [submission(0, 0.0, 4, 10.0, (4,), limit=3600.0), submission(1, 10.0, 6, 3000.0, (6,), limit=3600.0),
            submission(2, 11.0, 8, 10.0, (8,), limit=60.0), submission(3, 12.0, 2, 1000.0, (2,), limit=2000.0)]
    jobs = [each._replace(job=each.job.but(app="same")) for each in jobs]
    outcome = simulated(jobs, 8)
    assert next(job for job in outcome.jobs if job.id == 3).start == 12.0
