"""Start forecasts of single jobs, for the commands of other batch systems that ask when a job would start."""

from __future__ import annotations

from vrm.model import Job
from vrm.model.cluster import Booking
from vrm.model.job import Details
from vrm.run.run import Run


def start_of(job: Job, details: Details, run: Run, now: float, end: float, kill: bool, fit: bool
             ) -> Booking | None:
    """Return where and when a job would start if it joined the run at `now` (seconds) and all jobs took as long
    as their limits allow; None if it would not start before `end`. The other parameters are as in `FrozenRun`.
    Raises Infeasible if the job can never run, and JobStateError if it depends on a job that does not exist."""
    from vrm.ext.forecast.frozen import FrozenRun  # imported here so that the start of a manager does not wait for them
    from vrm.ext.forecast.replay import limits, replay

    plan = replay(FrozenRun(run, now, end, kill, fit).with_job(job, details), limits).get(job.id)
    return None if plan is None else Booking(job, plan.placement, plan.start, plan.end)
