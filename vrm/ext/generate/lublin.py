"""Synthetic workloads by the model of Lublin and Feitelson: sizes, run times and arrivals of rigid jobs, fitted to
traces of three machines, with a daily cycle.

U. Lublin and D. Feitelson, "The workload on parallel supercomputers: modeling the characteristics of rigid jobs",
Journal of Parallel and Distributed Computing 63 (2003). The constants are those of the paper for batch and interactive
jobs together, where the paper does not separate them. The model has no estimates: an estimate is the run time times a
uniform random number from 1 to `factor`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from collections.abc import Iterator

from vrm.model.job import Job
from vrm.workload.submission import Submission

# The weights of the half hours of a day are a gamma distribution of the half hours since midnight,
# over the 48 half hours that begin at 5:30; it is highest early in the afternoon.
_CYCLE_SHAPE, _CYCLE_SCALE = 8.1737, 3.9631
_BUCKETS = 48
_DAY_BEGINS = 11
_BUCKET = 1800.0


@dataclass(frozen=True)
class Lublin:
    """The model for a machine with `processors` processors.

    `serial` is the share of jobs on one processor, `power_of_two` the share of jobs on more processors whose size is
    rounded to a power of two (both of all jobs). The logarithm (base 2) of the size is uniform in two parts: from
    `low` to `middle` with probability `small`, otherwise from `middle` to the machine's size; `middle` is `below` less
    than the logarithm of that size. The logarithm (base e) of the run time has one of two gamma distributions; the
    probability of the first one falls with the size. The logarithm of the time between arrivals (in units that the
    daily cycle weights) also has a gamma distribution; `load` divides the times between arrivals.
    """

    processors: int
    serial: float = 0.244
    power_of_two: float = 0.576
    low: float = 0.8
    small: float = 0.86
    below: float = 2.5
    shape1: float = 4.2
    scale1: float = 0.94
    shape2: float = 312.0
    scale2: float = 0.03
    slope: float = -0.0054
    offset: float = 0.78
    arrival_shape: float = 10.2303
    arrival_scale: float = 0.4871
    longest: float = 60 * 3600.0
    factor: float = 5.0
    users: int = 64
    load: float = 1.0

    def __post_init__(self) -> None:
        if self.processors < 2:
            raise ValueError(f"the model is for 2 processors or more, not {self.processors}")
        if not 0 <= self.serial < 1 or self.factor < 1 or not self.load > 0 or self.users < 1:
            raise ValueError("serial is from 0 to below 1, factor is 1 or more, load above 0 and users 1 or more")

    def jobs(self, number: int, seed: int) -> Iterator[Submission]:
        """Yield the first `number` jobs of the workload with this seed, which never changes."""
        draw = random.Random(seed)
        weights = self._weights()
        time = 0.0
        for job_id in range(1, number + 1):
            time = self._arrival(draw, time, weights)
            size = self._size(draw)
            run = self._run_time(draw, size)
            estimate = math.ceil(run * draw.uniform(1, self.factor))
            user = min(self.users, int(draw.paretovariate(1.2)))
            yield Submission(Job(job_id, "app", size, estimate, int(time), user=str(user)),
                             run)

    def _size(self, draw: random.Random) -> int:
        if draw.random() <= self.serial:
            return 1
        high = math.log2(self.processors)
        middle = max(self.low, high - self.below)
        exponent = (draw.uniform(self.low, middle) if draw.random() <= self.small
                    else draw.uniform(middle, high))
        if draw.random() * (1 - self.serial) <= self.power_of_two:
            exponent = int(exponent + 0.5)
        return min(self.processors, max(1, int(2 ** exponent + 0.5)))

    def _run_time(self, draw: random.Random, size: int) -> int:
        first = min(1.0, max(0.0, self.slope * size + self.offset))
        while True:
            exponent = (draw.gammavariate(self.shape1, self.scale1) if draw.random() <= first
                        else draw.gammavariate(self.shape2, self.scale2))
            if exponent <= math.log(self.longest):
                return max(1, int(math.exp(exponent) + 0.5))

    def _weights(self) -> list[float]:
        """Return the relative number of jobs that arrive in each half hour of the day; the mean is 1."""
        raw = [0.0] * _BUCKETS
        for step in range(_DAY_BEGINS, _DAY_BEGINS + _BUCKETS):
            middle = step + 0.5
            density = (middle ** (_CYCLE_SHAPE - 1) * math.exp(-middle / _CYCLE_SCALE)
                       / (math.gamma(_CYCLE_SHAPE) * _CYCLE_SCALE ** _CYCLE_SHAPE))
            raw[step % _BUCKETS] = density
        mean = sum(raw) / _BUCKETS
        # Nights are quiet but not empty: otherwise one gap could take days.
        return [max(0.05, weight / mean) for weight in raw]

    def _arrival(self, draw: random.Random, time: float, weights: list[float]) -> float:
        """Return the next arrival: the units of the gap are used up faster in busy half hours."""
        left = math.exp(draw.gammavariate(self.arrival_shape, self.arrival_scale)) / self.load
        while True:
            weight = weights[int(time // _BUCKET) % _BUCKETS]
            end = (time // _BUCKET + 1) * _BUCKET
            if (end - time) * weight >= left:
                return time + left / weight
            left -= (end - time) * weight
            time = end
