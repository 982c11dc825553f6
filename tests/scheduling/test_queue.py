"""Priorities in the queue: the highest first, within one the ordering; and nothing else changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from vrm.model import Cluster, Job
from vrm.results.jobs import read_jobs
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.orderings.queue import JobQueue
from vrm.api import Machine, Recording, Submission, simulate

JOBS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9), st.sampled_from([0, 0, 0, 1, -2])),
                min_size=1, max_size=90)


def jobs_of(values) -> list:
    return [Job(i, "a.x", 1, float(estimate), float(submit), priority=priority)
            for i, (estimate, submit, priority) in enumerate(values)]


@pytest.mark.parametrize("algorithm", ["FCFS", "SJF", "WFP3", "q / t", "module"])
@given(values=JOBS, removed=st.lists(st.integers(0, 89)), room=st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_the_order_is_that_of_a_plain_sort(algorithm: str, values, removed, room) -> None:
    ordering = make_ordering("WFP1" if algorithm == "module" else algorithm)
    if algorithm == "module":
        ordering = replace(ordering, vector=None)
    queue = JobQueue(ordering, lambda job: job.id % 3 + 1)
    jobs = jobs_of(values)
    for job in jobs:
        queue.add(job)
        if job.id % 7 == 0:
            queue.sorted.columns() if ordering.static else None
    for job_id in set(removed):
        if job_id in queue:
            jobs.remove(queue.remove(job_id))
    now = 20.0
    wanted = sorted(jobs, key=lambda job: (-job.priority, ordering.key(job, now, job.id % 3 + 1)))
    waiting = queue.in_order(now)
    assert list(waiting) == wanted
    if wanted:
        assert waiting[0] is wanted[0] and waiting[len(wanted) - 1] is wanted[-1]
        assert list(waiting.fitting(1, room)) == [
            j for j in wanted[1:] if j.id % 3 + 1 <= room]
    longest = {1: 10.0, 3: 30.0}
    short = [j for j in wanted if j.expected <= longest.get(j.id % 3 + 1, 0)]
    assert waiting.within(longest, dict.fromkeys((1, 2, 3), math.inf), 1.0, 1.0, 0) == short
    assert all(waiting.place(job) == at for at, job in enumerate(wanted))
    left = {1: 25.0, 2: 9.0, 3: 40.0}
    paying = [j for j in short if j.expected * (1 + 0.1 * (j.id % 3 + 1) * max(0, wanted.index(j) - 1))
              <= left[j.id % 3 + 1]]
    found = waiting.within(longest, left, 1.0, 0.1, 1)
    assert [job for job in found if job in paying] == paying and all(job in short for job in found)
    assert found == paying or not ordering.static
    queue.remove_started(wanted[:2])
    assert list(queue.in_order(now)) == wanted[2:]


@pytest.mark.parametrize("backfilling", ["none", "easy", "conservative", "conservative-recomputed",
                                         "3", "3-kept", "list"])
@given(values=JOBS, sizes=st.lists(st.integers(1, 4), min_size=90, max_size=90))
@settings(max_examples=15, deadline=None)
@pytest.mark.slow
def test_every_job_starts_once_and_reservations_hold_whatever_the_priorities(
        backfilling: str, values, sizes) -> None:
    """Jobs come one by one, with priorities from some moment on: kept plans change their keys."""
    cluster = Cluster.regular(4, 1, 1)
    scheduler = Scheduler(make_ordering("WFP3"), make_backfilling(backfilling),
                          make_policy("compact", cluster))
    queue = scheduler.new_queue()
    waiting = [Job(j.id, j.app, sizes[j.id], j.estimate, 3.0 * j.id, priority=j.priority)
               for j in jobs_of(values)]
    wanted, started, now = len(waiting), [], 0.0
    while waiting or len(queue) or cluster.bookings:
        moments = [waiting[0].submit] if waiting else []
        moments += [cluster.ends[0][0]] if cluster.ends else []
        now = max(now, min([*moments, scheduler.wake(now)]))
        while cluster.ends and cluster.ends[0][0] <= now:
            cluster.release(cluster.ends[0][1])
        while waiting and waiting[0].submit <= now:
            queue.add(waiting.pop(0))
        started += [start.job.id for start in scheduler.step(now, queue, cluster)]
    assert sorted(started) == list(range(wanted))


def test_the_simulator_obeys_priorities(tmp_path) -> None:
    jobs = [Job(i, "a.x", 1, 10.0, 0.0, priority=i % 3) for i in range(9)]
    simulate([Submission(job, 10.0) for job in jobs], Machine.of(1, sockets=1, cores=1), record=Recording(out=tmp_path))
    rows = sorted(read_jobs(tmp_path / "jobs.csv"), key=lambda row: row.start)
    assert [row.id for row in rows] == [2, 5, 8, 1, 4, 7, 0, 3, 6]


@pytest.mark.parametrize("ordering", ["FCFS", "SJF", "WFP3"])
def test_the_first_priority_may_come_with_a_change(ordering: str) -> None:
    """It was not compared, and the next job that was taken out took another one's place."""
    queue = JobQueue(make_ordering(ordering), lambda job: 1)
    for number in (1, 2, 3):
        queue.add(Job(number, "a", 1, 10.0 + number))
    queue.replace(Job(3, "a", 1, 13.0, priority=5))
    assert next(job.id for job in queue.in_order(1.0)) == 3
    queue.add(Job(4, "a", 1, 1.0, priority=1))
    queue.remove(3)
    assert next(job.id for job in queue.in_order(1.0)) == 4 and sorted(queue.jobs) == [1, 2, 4]
