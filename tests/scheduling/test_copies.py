"""A copy of cluster, queue and scheduler decides on as the original would, and is cheap."""

from __future__ import annotations

import copy
import time
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reference import HEATMAP, Task, different_nodes, regular_nodes, workloads
from vrm.model import Cluster, Heatmap, Infeasible, Job
from vrm.scheduling import Dispatcher, JobQueue, Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.backfilling.user_dispatcher import own_dispatcher

State = tuple[Cluster, JobQueue, Scheduler]


class Alternating:
    """A user's own: backfills at every second step, as it remembers."""

    def __init__(self) -> None:
        self.steps = [0]

    def schedule(self, step: Any) -> Any:
        self.steps[0] += 1
        for job in step.waiting:
            if step.fits(job):
                yield job
            elif self.steps[0] % 2 == 0:
                return


def dispatcher(name: str) -> Dispatcher:
    return own_dispatcher(name, Alternating()) if name == "own" else make_backfilling(name)


def run(state: State, tasks: Sequence[Task], begin: float, end: float = float("inf")
        ) -> list[tuple[float, int, str]]:
    """Run from event to event, without those up to `begin` and from `end` on: what started when
    and where."""
    cluster, queue, scheduler = state
    runs = {task.job.id: task.runtime for task in tasks}
    coming = [task.job for task in tasks if task.job.submit > begin]
    ends: dict[int, float] = {job_id: booking.start + runs[job_id]
                              for job_id, booking in cluster.bookings.items()}
    wake, found = scheduler.wake(begin), []
    while True:
        now = min([wake, *ends.values(), *(job.submit for job in coming)])
        if now >= end or now == float("inf"):
            return found
        for job_id in sorted(job_id for job_id, when in ends.items() if when <= now):
            cluster.release(job_id)
            del ends[job_id]
        for job in [job for job in coming if job.submit <= now]:
            coming.remove(job)
            try:
                queue.add(job)
            except Infeasible:
                continue
        for start in scheduler.step(now, queue, cluster):
            ends[start.job.id] = now + runs[start.job.id]
            found.append((now, start.job.id, repr(start.booking.placement)))
        wake = scheduler.wake(now)


@pytest.mark.parametrize("name", ["none", "easy", "list", "conservative", "easy-kept", "2", "own",
                                  "conservative-recomputed"])
@settings(max_examples=40, deadline=None)
@given(data=st.data(), policy=st.sampled_from(["compact", "spare", "strip", "pack"]),
       ordering=st.sampled_from(["FCFS", "WFP3"]), middle=st.integers(1, 20))
@pytest.mark.slow
def test_a_copy_goes_on_as_the_original(name: str, data: Any, policy: str, ordering: str,
                                        middle: int) -> None:
    nodes = data.draw(st.one_of(regular_nodes(), different_nodes()))
    tasks = data.draw(workloads(plain=policy == "pack"))
    tasks = [task for task in tasks if task.runtime > 0]
    cluster = Cluster(nodes)
    heatmap = Heatmap.parse(HEATMAP.splitlines())
    scheduler = Scheduler(make_ordering(ordering), dispatcher(name),
                          make_policy(policy, cluster, heatmap))
    state = cluster, scheduler.new_queue(), scheduler
    run(state, tasks, -1, middle)
    twin = cluster.copy()
    other = twin, state[1].copy(), scheduler.copy(twin)
    begin = middle - 1e-9
    expected = run(state, tasks, begin)
    assert run(other, tasks, begin) == expected
    assert not cluster.bookings and not twin.bookings and twin.empty == cluster.empty


@pytest.mark.parametrize("name", ["easy", "conservative"])
@pytest.mark.parametrize("policy", ["compact", "strip"])
def test_a_copy_of_many_jobs_takes_a_tenth_of_a_deep_copy(name: str, policy: str) -> None:
    """1,000 jobs run and 10,000 wait (all with reservations, where counting gives them quickly)."""
    cluster = Cluster.regular(1024, 2, 8)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(name), make_policy(policy, cluster))
    queue = scheduler.new_queue()
    waiting = 10_000 if policy == "compact" or name == "easy" else 0
    for number in range(1000):
        queue.add(Job(number, f"app{number % 7}", 16 if policy == "compact" else 8, 100 + number))
    scheduler.step(0, queue, cluster)
    assert len(cluster.bookings) == 1000
    for number in range(1000, 1000 + waiting):
        queue.add(Job(number, f"app{number % 7}", 16 * 100, 10 + number % 50))
    scheduler.step(1, queue, cluster)
    assert len(cluster.bookings) >= 1000 and len(queue) >= waiting - 24

    def seconds(make: Any) -> float:
        begun = time.process_time()
        made = make()
        passed = time.process_time() - begun
        assert made
        return passed

    def copies() -> Any:
        twin = cluster.copy()
        return twin, queue.copy(), scheduler.copy(twin)

    deep = seconds(lambda: copy.deepcopy((cluster, queue, scheduler)))
    assert min(seconds(copies) for _ in range(3)) <= deep / 10
