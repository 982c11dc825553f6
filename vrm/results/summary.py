"""All metrics of a run at once, from columns of numbers, for simulations, studies and lists of live runs. The
definitions are those of `vrm.results.metrics`.

They compare policies on the same workload. Print the `method` of `summarise` together with a metric: threshold,
floor, percentile and trimming differ between tools.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.results.metrics import THRESHOLD, jain_index

EXACT = 2.0 ** 53
"""Below this limit a float represents all integers exactly."""

METHOD = "linear interpolation (Hyndman and Fan, type 7)"


@dataclass(frozen=True)
class Distribution:
    """Mean, median, 95th percentile and maximum of `count` values; None if there are none.

    A percentile is interpolated linearly between the two nearest values in order: the q-th is at rank q (count - 1),
    counted from 0 (type 7 of Hyndman and Fan, "Sample quantiles in statistical packages", 1996; the default of numpy
    and R).
    """

    count: int
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    maximum: float | None = None


def distribution(values: Any) -> Distribution:
    """Return the distribution of values (a sequence, or a numpy array)."""
    import numpy as np
    if not len(values):
        return Distribution(0)
    found = np.asarray(values, float)
    median, p95 = np.quantile(found, (0.5, 0.95)).tolist()
    return Distribution(len(found), mean(found), median, p95, float(found.max()))


def mean(values: Any) -> float | None:
    """Return the mean of an array of numbers; None if it is empty."""
    return _sum(values) / len(values) if len(values) else None


@dataclass(frozen=True)
class JobArrays:
    """The jobs of a run that ran, as numpy arrays with one item per job.

    `submit`, `start` and `end` are in seconds, `cores` is the number of cores that the job held, `completed` whether
    it completed, `user` the index of its user in `users` (0: unknown). `lent` are the core seconds that other jobs
    used of these cores (None: no job lent any).
    """

    submit: Any
    start: Any
    end: Any
    cores: Any
    completed: Any
    user: Any
    users: Sequence[str] = ("",)
    lent: Any = None

    @property
    def whole(self) -> tuple[float, float]:
        """First submission and last end; (0, 0) if no job ran."""
        if not len(self.submit):
            return 0.0, 0.0
        return float(self.submit.min()), float(self.end.max())

    @property
    def used(self) -> Any:
        """Average number of cores that each job used: the cores that it held minus those that it had lent."""
        import numpy as np
        if self.lent is None:
            return self.cores
        return self.cores - self.lent / np.maximum(self.run, 1e-9)

    @property
    def wait(self) -> Any:
        """Waiting times w = start - submit, in seconds."""
        return self.start - self.submit

    @property
    def run(self) -> Any:
        """Running times r = end - start, in seconds: how long the jobs held their cores."""
        return self.end - self.start

    @property
    def turnaround(self) -> Any:
        """Turnaround (response) times w + r = end - submit, in seconds."""
        return self.end - self.submit

    def bounded_slowdown(self, threshold: float = THRESHOLD, processors: Any = 1) -> Any:
        """Return bounded slowdowns; see `vrm.results.metrics.bounded_slowdown`. With `processors` p (of each job),
        return those per processor, max(1, (w + r) / (p max(r, threshold))): Zotkin and Keleher, "Job-length
        estimation and performance in backfilling schedulers" (1999)."""
        import numpy as np
        if threshold <= 0:
            raise ValueError(f"the threshold must be above 0 s, not {threshold:g}")
        return np.maximum(1.0, self.turnaround / (processors * np.maximum(self.run, threshold)))

    def core_seconds(self, first: float, last: float) -> float:
        """Return the core seconds that the jobs used within a window. Failed and killed jobs count, because they held
        their cores."""
        import numpy as np
        return _sum(self.used * np.clip(np.minimum(self.end, last) - np.maximum(self.start, first), 0, None))

    def utilisation(self, processors: int) -> float:
        """Return the share (0 to 1) of the processor time of the makespan that the jobs used."""
        first, last = self.whole
        return self.core_seconds(first, last) / (processors * (last - first)) if last > first else 0.0


@dataclass(frozen=True)
class Moments:
    """Queue and machine over time: for each of the increasing `times` (s), the number of waiting jobs, the cores that
    they request, and the cores in use from then on."""

    times: Any
    queued: Any
    wanted: Any
    busy: Any

    @classmethod
    def of(cls, jobs: JobArrays, used: Sequence[Any] | None = None) -> Moments:
        """Return the moments of jobs that wait from submission to start. `used`: arrays of begin, end (s) and number
        of cores in use; None: each job used its cores from its start to its end."""
        import numpy as np
        count = len(jobs.submit)
        begins, ends, cores = used or (jobs.start, jobs.end, jobs.cores)
        times, at = np.unique(np.concatenate([jobs.submit, jobs.start, begins, ends]),
                              return_inverse=True)
        submit, start, begin, end = np.split(at, [count, 2 * count, 2 * count + len(begins)])

        def over_time(begin: Any, finish: Any, amount: Any) -> Any:
            change = np.zeros(len(times), np.int64)
            np.add.at(change, begin, amount)
            np.subtract.at(change, finish, amount)
            return np.cumsum(change)

        return cls(times, over_time(submit, start, 1), over_time(submit, start, jobs.cores),
                   over_time(begin, end, cores))


def summarise(jobs: JobArrays, moments: Moments, counts: Mapping[str, int], processors: int,
              warm_up: float = 0.0, cool_down: float = 0.0,
              threshold: float = THRESHOLD, lends: bool = False) -> dict[str, Any]:
    """Return all metrics of a run on `processors` cores, ready for JSON (None if there is no value).

    Averages are over the jobs that ran (`jobs` of them), completed or not. With `warm_up` or `cool_down` (s) they are
    over the jobs submitted between these limits, and the values of the machine (utilisation, queue, loss, throughput)
    are over the time between the limits; the makespan remains that of all jobs. `slowdown` leaves out jobs that ran 0
    s. `counts` are the numbers of jobs by end state. `lends`: jobs lent each other cores, so only `moments` has the
    cores in use. Raises ValueError if trimming leaves no time, or for an invalid threshold or number of
    processors.
    """
    import numpy as np
    if processors < 1:
        raise ValueError(f"a machine has at least 1 processor, not {processors}")
    if not (warm_up >= 0 and cool_down >= 0):
        raise ValueError("warm-up and cool-down are seconds from 0 on")
    submit, end, bounded = jobs.submit, jobs.end, jobs.bounded_slowdown(threshold)
    first, last = whole = jobs.whole
    chosen = np.ones(len(submit), dtype=bool)
    if (warm_up or cool_down) and len(submit):
        latest = float(submit.max())
        first, last = first + warm_up, latest - cool_down
        if last <= first:
            raise ValueError(f"a warm-up of {warm_up:g} s and a cool-down of {cool_down:g} s leave"
                             f" nothing of the {latest - whole[0]:g} s in which jobs came")
        chosen = (submit >= first) & (submit <= last)
    length = last - first
    capacity = processors * length
    used = _busy(moments, first, last) if lends else jobs.core_seconds(first, last)
    done = int((jobs.completed & (end >= first) & (end <= last)).sum())
    lost, queue = _over_time(moments, processors, first, last)
    ran_on = chosen & (jobs.run > 0)
    waits, runs, turnarounds, bounds, slowdowns, per_processor = (asdict(distribution(values)) for values in (
        jobs.wait[chosen], jobs.run[chosen], jobs.turnaround[chosen], bounded[chosen],
        jobs.turnaround[ran_on] / jobs.run[ran_on], jobs.bounded_slowdown(threshold, jobs.cores)[chosen]))
    return {
        "jobs": int(chosen.sum()),
        **counts,
        "average_wait": waits["mean"],
        "average_running": runs["mean"],
        "average_turnaround": turnarounds["mean"],
        "average_bounded_slowdown": bounds["mean"],
        "average_queue_length": queue["mean"],
        "makespan": whole[1] - whole[0],
        "utilisation": used / capacity if capacity > 0 else 0.0,
        "loss_of_capacity": lost / capacity if capacity > 0 else 0.0,
        "throughput_per_hour": done * 3600 / length if length > 0 else 0.0,
        "wait": waits,
        "running": runs,
        "turnaround": turnarounds,
        "slowdown": slowdowns,
        "bounded_slowdown": bounds,
        "per_processor_bounded_slowdown": per_processor,
        "queue_length": queue,
        "fairness": _fairness(jobs, chosen, bounded[chosen]),
        "method": {
            "processors": processors,
            "bounded_slowdown_threshold": threshold,
            "bounded_slowdown_floor": 1.0,
            "percentile": METHOD,
            "warm_up": warm_up,
            "cool_down": cool_down,
        },
    }


def _seconds(times: Any, first: float, last: float) -> Any:
    """Return the part of a window, in seconds, between each of some increasing times and the next."""
    import numpy as np
    until = np.minimum(np.append(times[1:], max(last, times[-1])), last)
    return np.clip(until - np.maximum(times, first), 0, None)


def _busy(moments: Moments, first: float, last: float) -> float:
    """Return the core seconds in use within a window."""
    if not len(moments.times):
        return 0.0
    return _sum(_seconds(moments.times, first, last) * moments.busy)


def _over_time(moments: Moments, processors: int, first: float,
               last: float) -> tuple[float, dict[str, Any]]:
    """Return the core seconds lost and the distribution of the queue length in a window."""
    import numpy as np
    times, queued = moments.times, moments.queued
    if not len(times) or last <= first:
        return 0.0, asdict(Distribution(0))
    seconds = _seconds(times, first, last)
    idle = processors - moments.busy
    lost = _sum(seconds * np.clip(np.minimum(moments.wanted, idle), 0, None))
    held = seconds > 0
    weights = np.bincount(queued[held].astype(np.int64), seconds[held])
    lengths = np.flatnonzero(weights)
    weights = weights[lengths]
    total = _sum(seconds)
    passed = np.cumsum(weights)

    def reached(share: float) -> int:
        at = int(np.searchsorted(passed, share * total))
        return int(lengths[min(at, len(lengths) - 1)])

    return lost, asdict(Distribution(int(held.sum()), _sum(queued * seconds) / total, reached(0.5), reached(0.95),
                                     int(lengths[-1])))


def _sum(values: Any) -> float:
    """Return the sum of numbers, rounded only once."""
    import numpy as np
    if len(values) and float(np.abs(values).max()) * len(values) < EXACT:
        whole = values.astype(np.int64)
        if (whole == values).all():  # the usual case, and much faster
            return float(whole.sum())
    return math.fsum(values.tolist())


def _fairness(jobs: JobArrays, chosen: Any, metric: Any) -> dict[str, Any] | None:
    """Return the mean of the metric over each user's jobs, and Jain's index of these means."""
    import numpy as np
    if len(jobs.users) < 2:
        return None
    users = jobs.user[chosen]
    order = metric.argsort()  # makes the sums independent of the order of the jobs
    sums = np.bincount(users[order], metric[order], len(jobs.users))
    counts = np.bincount(users, minlength=len(jobs.users))
    means = {name: float(sums[number] / counts[number])
             for number, name in sorted(enumerate(jobs.users), key=lambda one: one[1])
             if name and counts[number]}
    return {"index": jain_index(means.values()), "means": means} if means else None
