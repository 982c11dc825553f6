"""vrm's policies under another order of what happens at one instant: that of the pyss simulator (Tsafrir,
Etsion and Feitelson), with which the schedules were made that others have published.

In vrm all ends of an instant come first, then corrections and submissions, and then one scheduling
step. There it is one event at a time: first corrections, without a step; then each submission and
then each end, in the order of the starts, with a step after each. A running job whose expected end
has come counts as ended at the first event of that instant, also if its own end is a later one.
"""

from __future__ import annotations

import heapq
import math
from typing import Dict, List, Optional, Sequence, Tuple

from vrm.model.cluster import Cluster
from vrm.model.job import Job, JobState
from vrm.run.expectations import Expectations
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.estimators import LastTwo, make_correction
from vrm.workload.submission import Submission


class WholeLastTwo(LastTwo):
    """In whole seconds, as there."""

    def expected(self, job: Job) -> float:
        return float(math.floor(super().expected(job)))


def starts(submissions: Sequence[Submission], processors: int, order: str = "queue",
           correction: str = "") -> Dict[int, float]:
    """The start of each job under EASY, by id, in seconds. With a `correction` the mean of the last
    two run times is expected, else what was requested."""
    cluster = Cluster.regular(processors, 1, 1)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy", order),
                          make_policy("compact", cluster))
    expectations: Optional[Expectations] = (
        Expectations(WholeLastTwo(), make_correction(correction)) if correction else None)
    queue = scheduler.new_queue()
    found: Dict[int, float] = {}
    ends: List[Tuple[float, int, Job, float]] = []
    coming = iter(submissions)
    following = next(coming, None)
    runs: Dict[int, float] = {}
    while following is not None or ends:
        submit = following.job.submit if following is not None else math.inf
        revision = expectations.due(cluster) if expectations is not None else math.inf
        now = min(submit, ends[0][0] if ends else math.inf, revision)
        for job_id in [job_id for end, job_id in cluster.ends if end <= now]:
            booking = cluster.bookings[job_id]
            if booking.start + runs[job_id] <= now:
                cluster.release(job_id)
            elif expectations is not None:
                expectations.correct(cluster, job_id, now)
        if submit > now and not (ends and ends[0][0] <= now):
            continue
        if submit <= now:
            assert following is not None
            job = following.job
            runs[job.id] = following.run
            queue.add(expectations.of(job) if expectations is not None else job)
            following = next(coming, None)
        else:
            _, _, job, run = heapq.heappop(ends)
            if job.id in cluster.bookings:
                cluster.release(job.id)
            if expectations is not None:
                expectations.learn(job, run, JobState.COMPLETED)
        for start in scheduler.step(now, queue, cluster):
            job = start.job
            found[job.id] = now
            heapq.heappush(ends, (now + runs[job.id], len(found), job, runs[job.id]))
    return found
