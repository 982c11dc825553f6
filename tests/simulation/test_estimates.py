"""Expected run times, corrections, orders of backfilling and the guard in simulations, against a plain
simulator of single processors that follows the definitions word by word."""

from __future__ import annotations

import gzip
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vrm.model import Cluster, Job, Node
from vrm.model.job import Dependency
from vrm.model.rules import Rules
from vrm.results.jobs import read_jobs
from vrm.run.expectations import make_expectations
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.estimators import LAST, MARGIN, STEPS, make_estimator
from vrm.scheduling.registry import PolicyError
from vrm.ext.estimates.starvation import SLIP
from vrm.api import Machine, Submission, Timetable, simulate
from vrm.simulation.arguments import by_name
from vrm.simulation.engine import Outage, Simulator

ROOT = Path(__file__).resolve().parents[2]


def workload(seed: int, number: int, processors: int) -> list[Submission]:
    """Jobs in bursts, of a few users, with requests that are mostly far too long."""
    draw, now, found = random.Random(seed), 0.0, []
    for job_id in range(number):
        now += draw.choice((0, 0, 1, 30, 300))
        walltime = float(draw.choice((300, 600, 3600, 7200)))
        run = draw.choice((0.05, 0.1, 0.5, 1.0)) * walltime * draw.choice((1.0, draw.random()))
        found.append(Submission(Job(
            job_id, "app", draw.choice((1, 1, 2, 4, processors // 2, processors)), walltime,
            float(now), user=draw.choice("ab")), float(math.ceil(run))))
    return found


def corrected(name: str, first: float, ran: float, walltime: float) -> float:
    """What is expected next."""
    if name == "request":
        return walltime
    if name == "stepwise":
        return min([first + step for step in STEPS if first + step > ran] + [walltime])
    while first <= ran:
        first *= 2
    return min(first, walltime)


class Plain:
    """EASY on processors that are all alike: one event time after the other, ends first, then
    corrections, then submissions, then one step."""

    def __init__(self, jobs: list[Submission], processors: int, estimates: str, correction: str,
                 shortest: bool, factor: float, reestimate: bool = False) -> None:
        self.jobs = {each.job.id: each for each in jobs}
        self.free = processors
        self.estimator = make_estimator(estimates)
        if estimates == "actual":
            self.estimator.runs = {each.job.id: each.run for each in jobs}  # type: ignore[attr-defined]
        self.correction, self.shortest, self.factor = correction, shortest, factor
        self.reestimate = reestimate
        self.queue: list[int] = []
        self.expected: dict[int, float] = {}
        self.start: dict[int, float] = {}
        self.end_expected: dict[int, float] = {}  # of running jobs
        self.corrections = 0
        self.promise: tuple[int, float] = (-1, 0.0)
        self.shares: dict[Any, list[float]] = {}  # of their requests that jobs alike took

    def run(self) -> dict[int, float]:
        coming = sorted(self.jobs.values(), key=lambda each: (each.job.submit, each.job.id))
        while coming or self.end_expected:
            now = min([each.job.submit for each in coming[:1]]
                      + [self.real_end(i) for i in self.end_expected]
                      + [end for i, end in self.end_expected.items() if end < self.real_end(i)
                         and end < self.start[i] + self.jobs[i].job.walltime])
            for i in sorted(i for i in self.end_expected if self.real_end(i) <= now):
                del self.end_expected[i]
                self.free += self.jobs[i].job.procs
                self.learn(i)
                for other in self.queue:
                    if self.reestimate and self.jobs[other].job.user == self.jobs[i].job.user:
                        self.expected[other] = self.estimator.expected(self.jobs[other].job)
            for i, end in list(self.end_expected.items()):
                walltime = self.jobs[i].job.walltime
                if end <= now and end < self.start[i] + walltime:
                    self.end_expected[i] = self.start[i] + corrected(
                        self.correction, self.expected[i], now - self.start[i] + 1e-6, walltime)
                    self.corrections += 1
            while coming and coming[0].job.submit <= now:
                job = coming.pop(0).job
                self.expected[job.id] = self.estimator.expected(job)
                self.queue.append(job.id)
            self.step(now)
        return self.start

    def run_published(self) -> dict[int, float]:
        """The order of published schedules: each submission of an instant, then each end in the order of
        the starts, has a step; corrections have none; expected times are whole seconds."""
        coming = sorted(self.jobs.values(), key=lambda each: (each.job.submit, each.job.id))
        ends: list[tuple[float, int, int]] = []
        while coming or ends:
            now = min([each.job.submit for each in coming[:1]] + [end for end, _, _ in ends]
                      + [end for i, end in self.end_expected.items() if end < self.real_end(i)])
            for i, end in list(self.end_expected.items()):
                if end <= now and self.real_end(i) <= now:
                    self.leave(i)
                elif end <= now:
                    job = self.jobs[i].job
                    self.end_expected[i] = self.start[i] + corrected(
                        self.correction, self.expected[i], now - self.start[i] + 1e-6, job.walltime)
                    self.corrections += 1
            if coming and coming[0].job.submit <= now:
                job = coming.pop(0).job
                self.expected[job.id] = math.floor(self.estimator.expected(job))
                self.queue.append(job.id)
            elif ends and ends[0][0] <= now:
                i = ends.pop(0)[2]
                self.leave(i)
                self.learn(i)
            else:
                continue
            before = set(self.start)
            self.step(now)
            for number, i in enumerate(self.start):
                if i not in before:
                    ends.append((self.real_end(i), number, i))
            ends.sort()
        return self.start

    def learn(self, job_id: int) -> None:
        self.estimator.learn(self.jobs[job_id].job, self.jobs[job_id].run)
        job = self.jobs[job_id].job
        for alike in (job.user, job.walltime), job.user, None:
            self.shares.setdefault(alike, []).append(self.jobs[job_id].run / job.walltime)

    def longest(self, job_id: int) -> float:
        """How long it takes at the most, by the last jobs with the same user and request, else of the user, else of
        all; a simulation without estimates learns nothing."""
        job = self.jobs[job_id].job
        if self.estimator.name == "requested":
            return job.walltime
        for alike in (job.user, job.walltime), job.user, None:
            if alike in self.shares:
                longest = MARGIN * max(self.shares[alike][-LAST:]) * job.walltime
                return min(job.walltime, max(self.expected[job_id], longest))
        return job.walltime

    def end_of(self, job_id: int, kind: str, now: float) -> float:
        """When a running job ends."""
        start, walltime = self.start[job_id], self.jobs[job_id].job.walltime
        if kind == "expected":
            return self.end_expected[job_id]
        seconds = walltime if kind == "walltime" else self.longest(job_id)
        while start + seconds <= now and seconds < walltime:
            seconds *= 2
        return start + min(seconds, walltime)

    def lasts(self, job_id: int, kind: str) -> float:
        """How long a job takes that starts now."""
        return {"expected": self.expected[job_id], "walltime": self.jobs[job_id].job.walltime,
                "longest": self.longest(job_id)}[kind]

    def leave(self, job_id: int) -> None:
        if self.end_expected.pop(job_id, None) is not None:
            self.free += self.jobs[job_id].job.procs

    def real_end(self, job_id: int) -> float:
        return self.start[job_id] + self.jobs[job_id].run

    def starving(self, now: float) -> set[int]:
        """Who waits for longer than so many times the mean wait of those that have started."""
        if not (self.factor and self.start):
            return set()
        waits = [start - self.jobs[i].job.submit for i, start in self.start.items()]
        longest = self.factor * sum(waits) / len(waits)
        return {i for i in self.queue if now - self.jobs[i].job.submit > longest}

    def begin(self, job_id: int, now: float) -> None:
        self.queue.remove(job_id)
        self.free -= self.jobs[job_id].job.procs
        self.start[job_id] = now
        self.end_expected[job_id] = now + self.expected[job_id]

    def reservation(self, head: int, now: float, kind: str, at: float = -1.0) -> tuple[float, int, str]:
        """When the head can start, and what it leaves over then (or at another time)."""
        ends = {i: self.end_of(i, kind, now) for i in self.end_expected}

        def free(time: float) -> int:
            return self.free + sum(self.jobs[i].job.procs for i, end in ends.items()
                                   if max(end, now) <= time)

        wanted = self.jobs[head].job.procs
        time = max(at, min(max(end, now) for end in ends.values()
                           if free(max(end, now)) >= wanted))
        return time, free(time) - wanted, kind

    def step(self, now: float) -> None:
        old = self.starving(now)
        while self.queue and self.jobs[self.queue[0]].job.procs <= self.free:
            self.begin(self.queue[0], now)
        if len(self.queue) < 2:
            return
        head, *later = self.queue
        if not self.factor:
            held = [self.reservation(head, now, "expected")]
        elif head in old:
            held = [self.reservation(head, now, "longest")]
        else:
            prospect = self.reservation(head, now, "walltime")[0]
            if self.promise[0] != head:
                self.promise = head, now + SLIP * (prospect - now)
            held = [self.reservation(head, now, "walltime", self.promise[1]),
                    self.reservation(head, now, "expected")]
        later.sort(key=lambda i: (i not in old, self.expected[i] if self.shortest and i not in old
                                  else 0))
        for i in later:
            job = self.jobs[i].job
            if job.procs > self.free:
                continue
            beyond = [now + self.lasts(i, kind) > time for time, _, kind in held]
            if any(over and job.procs > spare for over, (_, spare, _) in zip(beyond, held)):
                continue
            held = [(time, spare - job.procs * over, kind)
                    for over, (time, spare, kind) in zip(beyond, held)]
            self.begin(i, now)


CASES = [(estimates, correction, order, factor)
         for estimates in ("requested", "last-two", "history", "accasim", "actual")
         for correction in ("request", "stepwise", "doubling")
         for order in ("queue", "sjf") for factor in (0.0, 2.0)
         if correction == "request" or estimates in ("last-two", "history")]


@pytest.mark.parametrize("estimates, correction, order, factor", CASES)
def test_starts_are_those_of_the_plain_simulator(estimates: str, correction: str, order: str,
                                                 factor: float) -> None:
    corrections = 0
    for seed in range(4):
        jobs = workload(seed, 150, 16)
        again = seed % 2 == 1
        plain = Plain(jobs, 16, estimates, correction, order == "sjf", factor, again)
        wanted = plain.run()
        for policy in ("compact", "pack"):
            found = simulate(jobs, Machine.of(16),
                             Rules(backfill="easy", policy=policy, estimates=estimates, correction=correction,
                                   backfill_order=order, starvation=factor, reestimate=again))
            assert {row.id: row.start for row in found.jobs} == wanted, (seed, policy)
        if seed == 0:  # where nodes have resources, the same policies look at the nodes
            asking = [each._replace(job=Job(
                each.job.id, "app", each.job.procs, each.job.walltime, each.job.submit,
                user=each.job.user, resources={"ssd": 1})) for each in jobs]
            nodes = [Node(f"n{number}", (1,), resources={"ssd": 1}) for number in range(16)]
            found = simulate(asking, Machine(nodes),
                             Rules(backfill="easy", estimates=estimates, correction=correction, backfill_order=order,
                                   starvation=factor))
            assert {row.id: row.start for row in found.jobs} == wanted
        corrections += plain.corrections
    assert (corrections > 50) == (estimates not in ("requested", "actual"))


@pytest.mark.parametrize("estimates, correction", [
    ("requested", "request"), ("actual", "request"), ("last-two", "request"), ("last-two", "stepwise"),
    ("history", "doubling")])
@pytest.mark.parametrize("order", ["queue", "sjf"])
def test_starts_in_the_published_order_of_events(estimates: str, correction: str, order: str) -> None:
    """Whatever the order of the lines of one instant."""
    changed = 0
    for seed in range(6):
        jobs = workload(seed, 150, 16)
        wanted = Plain(jobs, 16, estimates, correction, order == "sjf", 0.0).run_published()
        lines = sorted(jobs, key=lambda each: (each.job.submit, -each.job.id))
        how: dict[str, Any] = {"nodes": 16, "backfill": "easy", "estimates": estimates,
                               "correction": correction, "backfill_order": order}
        for policy in ("compact", "pack"):
            outcome = simulate(lines, **by_name(dict(events="published", policy=policy, **how)))
            assert {row.id: row.start for row in outcome.jobs} == wanted, (seed, policy)
            assert outcome.summary["event_order"] == "published"
        changed += wanted != {row.id: row.start for row in simulate(lines, **by_name(how)).jobs}
    assert changed or estimates == "actual"


@pytest.mark.parametrize("backfill", ["easy", "none", "list", "conservative", "3", "2-kept"])
def test_no_dispatcher_stumbles_over_the_published_order(backfill: str) -> None:
    """With jobs that are ended at their walltime, lost nodes and jobs that depend on others."""
    jobs = [each._replace(after=(Dependency.on(each.job.id - 7),) if each.job.id % 10 == 9 else ())
            for each in workload(2, 120, 8)]
    out = simulate(jobs, Machine.of(8),
                   Rules(backfill=backfill, estimates="last-two", correction="stepwise", kill=True, events="published"),
                   timetable=Timetable(outages=[Outage(2, 500.0, 4000.0), Outage(3, 900.0, 901.0)]))
    assert sorted(row.id for row in out.jobs) == list(range(120))
    assert max(out.columns()["wait"]) > 0


def test_an_order_of_events_that_there_is_not_is_refused() -> None:
    with pytest.raises(PolicyError, match="events: expected instant or published, got 'pyss'"):
        simulate([], Machine.of(1), Rules(events="pyss"))


@pytest.mark.parametrize("factor", [0.0, 3.0])
@pytest.mark.parametrize("backfill", ["easy", "none", "list", "conservative", "3", "2-kept",
                                      "conservative-recomputed"])
def test_no_dispatcher_stumbles_over_jobs_that_outlive_what_is_expected(backfill: str,
                                                                        factor: float) -> None:
    """Nothing is lost, nobody overlaps (the cluster would say so), whatever was planned."""
    if factor and backfill != "easy":
        with pytest.raises(PolicyError, match="Starvation works with the backfilling easy"):
            simulate([], Machine.of(8), Rules(backfill=backfill, starvation=factor))
        return
    for seed in range(3):
        jobs = workload(seed, 120, 8)
        for policy in ("compact", "strip", "pack"):
            for correction in ("request", "stepwise", "doubling"):
                out = simulate(jobs, Machine.of(8, sockets=2, cores=1),
                               Rules(backfill=backfill, policy=policy, estimates="last-two", correction=correction,
                                     starvation=factor))
                assert sorted(row.id for row in out.jobs) == list(range(120))


def test_a_reservation_is_put_off_when_a_job_outlives_what_was_expected() -> None:
    """Two of a user's jobs take 10 s; the third takes 100 s, with a request of 200 s. The job behind
    it wants all nodes. What comes later may start as long as it would end before."""
    def job(number: int, submit: float, procs: int, walltime: float, run: float) -> Submission:
        return Submission(Job(number, "x", procs, walltime, submit, user="u"), run)

    jobs = [job(0, 0, 1, 200, 10), job(1, 0, 1, 200, 10), job(2, 20, 1, 200, 100),
            job(3, 21, 4, 200, 10), job(4, 25, 1, 60, 5), job(5, 31, 1, 60, 5)]
    found = {row.id: row.start for row in simulate(jobs, Machine.of(4),
                                                   Rules(backfill="easy", estimates="last-two",
                                                         correction="request")).jobs}
    # At 25 the head is expected at 30: a job of 10 s would put it off. At 30 it is expected at 220.
    assert found == {0: 0, 1: 0, 2: 20, 3: 120, 4: 30, 5: 31}


def test_limits_are_those_of_the_user() -> None:
    jobs = [Submission(Job(0, "x", 1, 100.0, 0.0, user="u"), 10.0),
            Submission(Job(1, "x", 1, 100.0, 0.0, user="u"), 10.0),
            Submission(Job(2, "x", 1, 100.0, 50.0, user="u"), 99.0),
            Submission(Job(3, "x", 1, 100.0, 50.0, user="u"), 101.0)]
    rows = {row.id: row for row in simulate(jobs, Machine.of(2), Rules(kill=True, estimates="last-two")).jobs}
    assert [(rows[i].end - rows[i].start, rows[i].status) for i in range(4)] == [
        (10.0, "completed"), (10.0, "completed"), (99.0, "completed"), (100.0, "timeout")]
    assert rows[3].estimate == 100.0


def test_lost_nodes_and_an_end_go_with_estimates() -> None:
    jobs = workload(5, 80, 8)
    out = simulate(jobs, Machine.of(8),
                   Rules(backfill="easy", estimates="last-two", correction="doubling", starvation=5.0),
                   timetable=Timetable(outages=[Outage(2, 500.0, 4000.0), Outage(3, 900.0, 901.0)]))
    assert len(out.jobs) == 80
    out = simulate(jobs, Machine.of(8), Rules(backfill="easy", estimates="history"), timetable=Timetable(end=3000.0))
    assert 0 < len(out.jobs) < 80


def test_a_forecast_goes_on_with_what_was_learnt() -> None:
    """A copied run starts the rest of the jobs when the original does."""
    jobs = workload(3, 100, 16)
    cluster = Cluster.regular(16, 1, 1)

    class Nobody:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    class Noting(Nobody):
        def __init__(self) -> None:
            self.starts: dict[int, float] = {}

        def ended(self, booking: Any, *_: Any) -> None:
            self.starts[booking.job.id] = booking.start

    def simulator(recorder: Any) -> Simulator:
        return Simulator(Scheduler(make_ordering("FCFS"), make_backfilling("easy", "sjf", 3.0),
                                   make_policy("compact", cluster)), cluster, recorder,
                         end=1e9, expectations=make_expectations(Rules(estimates="last-two", correction="stepwise")))

    whole = Noting()
    original = simulator(whole)
    copied: Simulator | None = None
    later = Noting()
    for number, now in enumerate(original.moments(jobs)):
        if number == 90:
            copied = Simulator.of(original.subject.copy(), later,
                                  {each.job.id: each.run for each in jobs}, now)
            rest = [each for each in jobs if each.job.submit > now]
    assert copied is not None and rest
    copied.run(rest)
    assert len(later.starts) > 20
    assert later.starts == {job_id: whole.starts[job_id] for job_id in later.starts}


def test_an_order_of_backfilling_is_refused_where_it_means_nothing() -> None:
    for backfill in ("none", "conservative", "4"):
        with pytest.raises(PolicyError, match="works with the backfillings easy and list"):
            simulate([], Machine.of(1), Rules(backfill=backfill, backfill_order="sjf"))
    with pytest.raises(PolicyError, match="unknown ordering `shortest`"):
        simulate([], Machine.of(1), Rules(backfill="easy", backfill_order="shortest"))


def test_the_smallest_and_the_largest_area() -> None:
    """Two nodes; areas 40, 30, 60 and 20."""
    jobs = [Submission(Job(i, "x", procs, walltime, 0.0 if i == 0 else 1.0), walltime)
            for i, (procs, walltime) in enumerate([(2, 20.0), (1, 30.0), (2, 30.0), (1, 20.0)])]
    for algorithm, order in (("SAF", [0, 3, 1, 2]), ("laf", [0, 2, 1, 3])):
        starts = {row.id: row.start for row in simulate(jobs, Machine.of(2), Rules(algorithm=algorithm)).jobs}
        assert sorted(starts, key=lambda i: (starts[i], order.index(i))) == order


def test_the_command_takes_them_all(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "vrm.cli", "simulate", "lublin:16:60", "--backfill", "easy",
           "--estimates", "history", "--correction", "stepwise", "--backfill-order", "sjf",
           "--starvation", "25", "--json"]
    first = subprocess.run([*run, "--out", str(tmp_path / "first")], text=True, capture_output=True,
                           timeout=60, check=False, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert '"estimates": "history"' in first.stdout and '"starvation": 25.0' in first.stdout
    assert any(row.expected for row in read_jobs(tmp_path / "first" / "jobs.csv"))
    again = subprocess.run([*run, "--history", str(tmp_path / "first")], text=True,
                           capture_output=True, timeout=60, check=False, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    wrong = subprocess.run([*run, "--history", str(tmp_path / "nowhere")], text=True,
                           capture_output=True, timeout=60, check=False, cwd=tmp_path)
    assert wrong.returncode == 2 and "nowhere: no such file" in wrong.stderr


def published(path: Path, jobs: list[Submission], starts: dict[int, float]) -> Path:
    """A schedule as a trace, in the order of the ends."""
    rows = sorted(jobs, key=lambda each: (starts[each.job.id] + each.run, each.job.id))
    with gzip.open(path, "wt") as file:
        file.write("; MaxProcs: 16\n")
        for job, run, *_ in rows:
            file.write(f"{job.id} {job.submit:.0f} {starts[job.id] - job.submit:.0f} {run:.0f} "
                       f"{job.procs} -1 -1 {job.procs} {job.walltime:.0f} -1 1 "
                       f"{ord(job.user)} -1 -1 -1 -1 -1 -1\n")
    return path


def test_the_study_tells_the_order_of_ties_from_other_differences(tmp_path: Path) -> None:
    """A schedule in the published order of events is the same to the last start."""
    jobs = workload(4, 200, 16)
    published(tmp_path / "a.easy.swf.gz", jobs,
              Plain(jobs, 16, "requested", "request", False, 0.0).run_published())
    published(tmp_path / "a.pp.swf.gz", jobs,
              Plain(jobs, 16, "last-two", "stepwise", True, 0.0).run_published())
    done = subprocess.run([sys.executable, str(ROOT / "studies" / "predict" / "run.py"), "--easy", "a.easy.swf.gz",
                           "--easyplusplus", "a.pp.swf.gz", "--out", "found"], cwd=tmp_path,
                          text=True, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    assert [row[-1] for row in rows if row and row[0].startswith("a.") and len(row) == 7] == [
        "200", "200"]
    assert "history, guarded" in done.stdout and (tmp_path / "found" / "results.json").exists()


def test_the_guard_counts_and_keeps_its_reservations(monkeypatch: Any) -> None:
    """While nothing starts or ends, a job that is submitted costs a look at itself, not at sets of nodes."""
    from vrm.ext.estimates import starvation
    from vrm.scheduling.placement.lanes import LanePolicy
    made: list[Any] = []
    reservation = starvation.Shadow
    monkeypatch.setattr(starvation, "Shadow", lambda *of: made.append(of) or reservation(*of))
    monkeypatch.setattr(LanePolicy, "fits", lambda *of: pytest.fail("it looks at sets of nodes"))
    jobs = [Submission(Job(0, "x", 6, 1000.0, 0.0), 1000.0), Submission(Job(1, "x", 8, 1000.0, 1.0), 1000.0),
            *[Submission(Job(2 + number, "x", 5, 1000.0, 2.0 + number), 10.0) for number in range(100)]]
    outcome = simulate(jobs, Machine.of(8), Rules(backfill="easy", starvation=25.0))
    assert [row.id for row in outcome.jobs][:2] == [0, 1]
    assert len([now for _, now, *_ in made if now < 1000]) == 1  # the head has waited longer than the mean: one


def test_a_head_that_starves_waits_for_what_jobs_take_and_not_for_their_walltimes() -> None:
    """Who takes seconds starts before it though all ask for hours; what has outlived the longest of its kind is taken to
    end soon all the same."""
    def job(number: int, user: str, nodes: int, submit: float, run: float, walltime: float = 36000.0) -> Submission:
        return Submission(Job(number, "x", nodes, walltime, submit, user=user), run)

    jobs = [job(0, "long", 8, 0.0, 1000.0), job(1, "short", 8, 0.0, 10.0),  # from which the guard knows users
            job(2, "long", 6, 1010.0, 9000.0), job(3, "wide", 8, 1010.0, 1.0),
            *[job(4 + number, "short", 2, 5000.0 + number, 10.0) for number in range(3)]]
    found = {row.id: row.start for row in simulate(jobs, Machine.of(8),
                                                   Rules(backfill="easy", estimates="history", starvation=1.0)).jobs}
    assert found[2] == 1010.0 and found[3] == 10010.0  # as soon as 2 has ended
    assert [found[number] for number in (4, 5, 6)] == [5000.0, 5010.0, 5020.0]
