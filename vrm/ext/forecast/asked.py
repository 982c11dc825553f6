"""When a job would start, if it were submitted now: for commands of other batch systems that ask."""

from __future__ import annotations

from vrm.model import Job
from vrm.model.cluster import Booking
from vrm.model.job import Details
from vrm.run.run import Run


def start_of(job: Job, details: Details, run: Run, now: float, end: float, kill: bool, fit: bool
             ) -> Booking | None:
    """Where a job that joined the run at `now` (seconds) would start, and when, if all jobs took as long as their
    limits let them; None where it would not start before `end`. The rest as of `Frozen`. Infeasible when it can
    never run; LifeError when it depends on a job that there is not."""
    from vrm.ext.forecast.frozen import Frozen  # the start of a manager need not wait for these
    from vrm.ext.forecast.replay import limits, replay

    plan = replay(Frozen(run, now, end, kill, fit).with_job(job, details), limits).get(job.id)
    return None if plan is None else Booking(job, plan.placement, plan.start, plan.end)
