"""The waiting jobs, kept in the order in which they should start."""

from __future__ import annotations

import bisect
import copy
import math
from array import array
from typing import TYPE_CHECKING, Any
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.queues import NO_QUEUES, Queues
from vrm.scheduling.orderings.candidates import Candidates, JobClasses, Similar
from vrm.scheduling.orderings.job_columns import SlottedJobs, SortedJobs
from vrm.scheduling.orderings.queue_limits import QueueUsage
from vrm.scheduling.orderings.ordering import Ordering

if TYPE_CHECKING:
    import numpy

Key = tuple[float, ...]
"""Sort key of a job: that of the ordering, preceded by the negated priority once any job has one."""

# Below this number of waiting jobs, plain loops are faster than arrays.
_FEW = 40
# Utilities of arrays may differ from those of single numbers in the last digits (powers and
# logarithms). Values that are closer than this, relative to the value, are compared exactly.
_CLOSE = 1e-9


class QueueView(Sequence[Job]):
    """The waiting jobs in order at one moment, first to start first; valid until the queue changes. `fresh` has the
    jobs that are new since the last scheduling step.

    `fitting` is the bulk operation for backfilling; otherwise it is a plain sequence.
    """

    def __init__(self, queue: JobQueue, now: float) -> None:
        self._queue = queue
        self._now = now

    @property
    def fresh(self) -> list[Job]:
        """Jobs that are new since the last scheduling step and still wait, in order."""
        jobs = [job for job in self._queue.fresh if job.id in self._queue.jobs]
        return jobs if len(jobs) < 2 else sorted(jobs, key=self.key)

    @property
    def static(self) -> bool:
        """Whether the order of two jobs never changes while they wait."""
        return self._queue.ordering.static

    @property
    def by_submission(self) -> bool:
        """Whether the order is that of submission."""
        return self._queue.ordering.name == "FCFS" and not self._queue.prioritised

    @property
    def prioritised(self) -> bool:
        """Whether keys begin with priorities."""
        return self._queue.prioritised

    @property
    def queues(self) -> Queues:
        """The queues of the run."""
        return self._queue.queues

    def holds(self, job: Job) -> bool:
        """Return whether the job waits here."""
        return self.has(job.id)

    def has(self, job_id: int) -> bool:
        """Return whether the job with this id waits here."""
        return job_id in self._queue.jobs and job_id not in self._queue.outside

    def key(self, job: Job) -> Key:
        """Return the sort key of a job at this moment, smallest first."""
        return self._queue.key(job, self._now)

    def fitting(self, first: int, room: int, window: float = math.inf,
                extra: int = 0) -> Iterable[Job]:
        """Return the jobs from index `first` on that need at most `room`, in order.

        Of these, only the jobs that take at most `window` seconds by their estimate or need at most `extra`.
        """
        raise NotImplementedError

    def within(self, longest: Mapping[int, float], spare: Mapping[int, float], factor: float, price: float,
               gone: int) -> list[Job]:
        """Return, in order, the jobs that satisfy two conditions. First, they are expected to take at most as many
        seconds as `longest` has for their number of nodes (no entry: excluded). Second, these seconds times (`factor`
        + nodes times `price` for each job before them except `gone` ones) are at most what `spare` has for their size.
        If the order is unknown, the price may be ignored."""
        raise NotImplementedError

    def place(self, job: Job) -> int:
        """Return the number of jobs before this one."""
        return next(at for at, other in enumerate(self) if other is job)

    def __len__(self) -> int:
        return self._queue.competing


class _Sorted(QueueView):
    """View of a queue that is kept sorted."""

    def __getitem__(self, index: Any) -> Any:
        jobs = self._queue.sorted
        if isinstance(index, slice):
            return [entry[-1] for entry in jobs.entries[jobs.first:][index]]
        if index < 0:
            index += len(self)
            if index < 0:
                raise IndexError("no such place in the queue")
        return jobs.entries[jobs.first + index][-1]

    def __iter__(self) -> Iterator[Job]:
        jobs = self._queue.sorted
        return (jobs.entries[at][-1] for at in range(jobs.first, len(jobs.entries)))

    def fitting(self, first: int, room: int, window: float = math.inf,
                extra: int = 0) -> Iterable[Job]:
        jobs = self._queue.sorted
        estimates, sizes, _ = jobs.columns()
        entries, head = jobs.entries, jobs.first
        places = _fitting(estimates, sizes, first, room, window, extra)
        if isinstance(places, list):
            return (entries[head + place][-1] for place in places)
        return self._queue.candidates(lambda place: entries[head + place][-1], places, estimates, sizes, jobs.kinds)

    def within(self, longest: Mapping[int, float], spare: Mapping[int, float], factor: float, price: float,
               gone: int) -> list[Job]:
        jobs = self._queue.sorted
        estimates, sizes, nodes = jobs.columns()
        if len(nodes) < _FEW:
            places = [at for at, (seconds, number) in enumerate(zip(estimates, nodes))
                      if seconds <= longest.get(number, -math.inf)
                      and seconds * (factor + price * number * max(0, at - gone)) <= spare[sizes[at]]]
        else:
            import numpy
            seconds, numbers = numpy.frombuffer(estimates), numpy.frombuffer(nodes, numpy.int64)
            most = numpy.full(int(numbers.max()) + 1, -math.inf)
            known = numpy.fromiter(longest, numpy.int64, len(longest))
            inside = known < len(most)
            most[known[inside]] = numpy.fromiter(longest.values(), numpy.float64, len(longest))[inside]
            short = (seconds <= most[numbers]).nonzero()[0]
            left = [spare[size] for size in numpy.frombuffer(sizes, numpy.int64)[short].tolist()]
            dear = factor + price * numbers[short] * numpy.maximum(0, short - gone)
            places = short[seconds[short] * dear <= left].tolist() if len(short) else []
        entries, head = jobs.entries, jobs.first
        return [entries[head + place][-1] for place in places]

    def place(self, job: Job) -> int:
        jobs = self._queue.sorted
        return bisect.bisect_left(jobs.entries, self.key(job), jobs.first) - jobs.first


class _Ranked(QueueView):
    """View of a queue whose order changes with time; it is sorted only as far as needed."""

    def __init__(self, queue: JobQueue, now: float) -> None:
        super().__init__(queue, now)
        self._ordered: list[Job] = []
        self._complete = False
        self._values: numpy.ndarray | None = None  # utilities by slot
        self._utilities: numpy.ndarray | None = None  # utilities of jobs that are not sorted yet

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) or index < 0 or index >= len(self):
            self._sort()
        elif not self._complete:
            while len(self._ordered) <= index:
                self._next()
        return self._ordered[index]

    def __iter__(self) -> Iterator[Job]:
        self._sort()
        return iter(self._ordered)

    def _sort(self) -> None:
        if self._complete:
            return
        if self._by_arrays:
            import numpy
            slots = self._in_order(numpy.arange(len(self._queue.slotted.slots)))
            self._ordered = list(map(self._queue.slotted.slots.__getitem__, slots.tolist()))
        else:
            key, now = self._queue.key, self._now
            keyed: list[tuple[Any, ...]] = [(*key(job, now), job) for job in self._queue.slotted.slots]
            keyed.sort()  # ids differ, so two jobs are never compared
            self._ordered = [entry[-1] for entry in keyed]
        self._complete = True

    @property
    def _by_arrays(self) -> bool:
        """Whether utilities are computed for all jobs at once."""
        queue = self._queue
        return (len(queue.slotted.slots) >= _FEW and queue.ordering.vector is not None
                and not queue.prioritised)

    def _all_utilities(self) -> numpy.ndarray:
        if self._values is None:
            assert self._queue.ordering.vector is not None
            self._values = self._queue.slotted.utilities(self._queue.ordering.vector, self._now)
        return self._values

    def _in_order(self, slots: numpy.ndarray) -> numpy.ndarray:
        """Return some slots in the order of their jobs: sorted with arrays, and exactly where utilities are close."""
        import numpy
        values = self._all_utilities()[slots]
        order = numpy.argsort(-values, kind="stable")
        values, slots = values[order], slots[order]
        size = numpy.abs(values)
        with numpy.errstate(invalid="ignore"):  # infinity minus infinity is not a number: not apart
            apart = values[:-1] - values[1:] > numpy.maximum(size[:-1], size[1:]) * _CLOSE
        if not apart.all():
            jobs, starts = self._queue.slotted.slots, numpy.concatenate(([True], apart)).nonzero()[0]
            ends = numpy.append(starts[1:], len(slots))
            for begin, end in zip(starts[ends - starts > 1].tolist(), ends[ends - starts > 1].tolist()):
                slots[begin:end] = sorted(slots[begin:end].tolist(), key=lambda slot: self.key(jobs[slot]))
        return slots

    def _next(self) -> None:
        """Find the first of the jobs that are not sorted yet."""
        queue = self._queue
        if not self._by_arrays or len(self._ordered) >= 16:
            self._sort()
            return
        if self._utilities is None:
            self._utilities = self._all_utilities().copy()
        utilities = self._utilities
        best = float(utilities.max())
        if math.isinf(best):
            close = (utilities == best).nonzero()[0]
        else:
            close = (utilities >= best - abs(best) * _CLOSE).nonzero()[0]
        chosen = int(close[0])
        if len(close) > 1:
            if best == -math.inf:  # jobs that are already sorted have this value, too
                self._sort()
                return
            key, now = queue.key, self._now
            chosen = min(close.tolist(), key=lambda slot: key(queue.slotted.slots[slot], now))
        elif best == -math.inf:
            self._sort()
            return
        utilities[chosen] = -math.inf
        self._ordered.append(queue.slotted.slots[chosen])

    def fitting(self, first: int, room: int, window: float = math.inf,
                extra: int = 0) -> Iterable[Job]:
        queue = self._queue
        if first > len(self._ordered):
            self[first - 1]
        jobs = queue.slotted
        places = _fitting(jobs.estimates, jobs.sizes, 0, room, window, extra)
        ahead = {jobs.slot_of(job) for job in self._ordered[:first]}
        if self._by_arrays and not isinstance(places, list):
            import numpy
            places = self._in_order(places[~numpy.isin(places, list(ahead))])
            return queue.candidates(jobs.slots.__getitem__, places, jobs.estimates, jobs.sizes, jobs.kinds)
        return sorted((jobs.slots[place] for place in places if place not in ahead), key=self.key)

    def within(self, longest: Mapping[int, float], spare: Mapping[int, float], factor: float, price: float,
               gone: int) -> list[Job]:
        jobs = self._queue.slotted
        return sorted((job for job, seconds, size, nodes in zip(jobs.slots, jobs.estimates, jobs.sizes, jobs.nodes)
                       if seconds <= longest.get(nodes, -math.inf) and seconds * factor <= spare[size]), key=self.key)


def _fitting(estimates: array[float], sizes: array[int], first: int, room: int, window: float, extra: int
             ) -> list[int] | numpy.ndarray:
    """Return the indices from `first` on of the jobs for `QueueView.fitting`; an array if there are many."""
    if len(sizes) - first < _FEW:
        return [at for at, size in enumerate(sizes[first:], first)
                if size <= room and (size <= extra or estimates[at] <= window)]
    import numpy
    size = numpy.frombuffer(sizes, numpy.int64)[first:]
    fits = size <= room
    if window < math.inf:
        fits &= (numpy.frombuffer(estimates)[first:] <= window) | (size <= extra)
    return fits.nonzero()[0] + first


class JobQueue:
    """Waiting jobs under an ordering.

    `nodes_of(job)` returns how many nodes a job needs, `size_of(job)` its size in the units that the placement policy
    counts. Under a static ordering, jobs are kept sorted; otherwise they are in slots, with columns of the values from
    which utilities are computed. `prioritised` becomes true with the first job whose priority is not 0: keys then
    begin with it.

    `similar(job)` is that of the placement policy. `jobs` has all waiting jobs. Jobs in `outside` are over a limit of
    their queue (of `queues`) until `admit` lets them compete, or `bound` to an advance reservation (job id:
    reservation id); views do not contain them.
    """

    def __init__(self, ordering: Ordering, nodes_of: Callable[[Job], int],
                 size_of: Callable[[Job], int] | None = None,
                 queues: Queues = NO_QUEUES, similar: Similar | None = None) -> None:
        self.ordering = ordering
        self.similar = similar
        self.queues = queues
        self.outside: dict[int, Job] = {}
        self.bound: dict[int, int] = {}  # of jobs that wait, are yet to be submitted, run or ended
        self._within: dict[int, Job] = {}  # competing jobs of queues with limits
        self._limited = any(queue.limited for queue in queues.all)
        self._admitted: tuple[int, bool] = (-1, False)  # the state of the cluster then, and whether it is still valid
        self.nodes_of = nodes_of
        self.size_of = size_of or nodes_of
        self.prioritised = False
        self.fresh: list[Job] = []
        self.jobs: dict[int, Job] = {}  # by id
        self.wanted = 0  # cores that all waiting jobs request
        self.sorted = SortedJobs(self.nodes_of, self.size_of)  # used for a static ordering
        self.slotted = SlottedJobs()  # used for any other ordering
        self._view = _Sorted(self, 0.0) if ordering.static else None

    def copy(self) -> JobQueue:
        """Return an independent copy, with the same jobs."""
        twin = copy.copy(self)
        twin.fresh, twin.jobs = list(self.fresh), dict(self.jobs)
        twin.outside, twin._within = dict(self.outside), dict(self._within)
        twin.bound = dict(self.bound)
        twin.sorted, twin.slotted = self.sorted.copy(), self.slotted.copy()
        if self._view is not None:
            twin._view = _Sorted(twin, 0.0)
        return twin

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs.values())

    def __contains__(self, job_id: object) -> bool:
        return job_id in self.jobs

    @property
    def competing(self) -> int:
        """The number of jobs that dispatchers see."""
        return len(self.jobs) - len(self.outside)

    def get(self, job_id: int) -> Job:
        """Return the waiting job with that id. Raises KeyError if there is none."""
        return self.jobs[job_id]

    def key(self, job: Job, now: float) -> Key:
        """Return the sort key of a job, smallest first."""
        key = self.ordering.key(job, now, self.nodes_of(job))
        return (-self.priority(job), *key) if self.prioritised else key

    def priority(self, job: Job) -> int:
        """Return the priority of a job: its own plus that of its queue."""
        return job.priority + self.queues.queue(job).priority if self.queues else job.priority

    def _compared(self, job: Job) -> int:
        """Return the priority of a job that is about to enter. The first one that is not 0 adds priorities to all
        keys; those of the jobs that already wait are 0."""
        priority = self.priority(job)
        if priority and not self.prioritised:
            self.prioritised = True
            self.sorted.prepend(0)
        return priority

    def add(self, job: Job) -> None:
        """Add a job. Raises ValueError if a job with its id already waits."""
        job_id, jobs = job.id, self.jobs
        if job_id in jobs:
            raise ValueError(f"job {job_id} waits already")
        nodes = self.nodes_of(job)  # may refuse the job
        if self.queues:
            self.queues.check(job)
        priority = self._compared(job)
        jobs[job_id] = job
        self.wanted += job.request.cores
        if self.bound and job_id in self.bound:
            self.outside[job_id] = job
        elif self._limited and self.queues.queue(job).limited:
            self.outside[job_id] = job
            self._admitted = (-1, False)
        else:
            self._enter(job, nodes, priority)

    def bind(self, job_id: int, reservation: int | None) -> None:
        """Bind a job to an advance reservation, or, with None, unbind it. The job need not wait here."""
        job = self.remove(job_id) if job_id in self.jobs else None
        self.fresh[:] = [each for each in self.fresh if each.id != job_id]
        if reservation is None:
            self.bound.pop(job_id, None)
        else:
            self.bound[job_id] = reservation
        if job is not None:
            self.add(job)

    def replace(self, job: Job) -> None:
        """Replace the waiting job with the same id, after its expected run time has changed."""
        job_id = job.id
        if job_id in self.outside:
            self.outside[job_id] = self.jobs[job_id] = job
            return
        competes = job_id in self._within
        priority = self._compared(job)
        self.remove(job_id)
        self.fresh[:] = [each for each in self.fresh if each.id != job_id]
        self.jobs[job_id] = job
        self.wanted += job.request.cores
        if competes:
            self._within[job_id] = job
        self._enter(job, self.nodes_of(job), priority)

    def _enter(self, job: Job, nodes: int, priority: int) -> None:
        """Let a job compete; it is already in `jobs`."""
        if self._view is not None:
            key = self.ordering.key(job, 0.0, nodes)
            self.sorted.add((-priority, *key) if self.prioritised else key, job, nodes)
        else:
            self.slotted.add(job, self.size_of(job), nodes)
        self.fresh.append(job)

    def admit(self, now: float, cluster: Cluster) -> None:
        """Let the jobs compete that are within the limits of their queues."""
        if not self._limited or self._admitted == (cluster.generation, True):
            return
        self._admitted = (cluster.generation, True)
        usage = QueueUsage(self.queues, [booking.job for booking in cluster.bookings.values()])
        for job in self._within.values():
            usage.add(job)
        outside = [job for job in self.outside.values() if job.id not in self.bound]
        for job in sorted(outside, key=lambda job: self.key(job, now)):
            if not usage.over(job):
                usage.add(job)
                del self.outside[job.id]
                self._within[job.id] = job
                self._enter(job, self.nodes_of(job), self._compared(job))

    def why_not_competing(self, cluster: Cluster) -> dict[int, str]:
        """Return, by id, the limits that keep jobs outside."""
        usage = QueueUsage(self.queues, [booking.job for booking in cluster.bookings.values()])
        for job in self._within.values():
            usage.add(job)
        return {job_id: usage.over(job) or "competes at the next step"
                for job_id, job in self.outside.items() if job_id not in self.bound}

    def remove(self, job_id: int) -> Job:
        """Remove a job and return it. Raises KeyError if it does not wait."""
        job = self.jobs.pop(job_id)
        self.wanted -= job.request.cores
        if self._limited:
            self._admitted = (-1, False)
            self._within.pop(job_id, None)
        if self.outside and self.outside.pop(job_id, None) is not None:
            return job
        if self._view is not None:
            self.sorted.remove(self.key(job, 0.0), job)
        else:
            self.slotted.remove(job)
        return job

    def remove_started(self, jobs: Iterable[Job]) -> None:
        """Remove jobs that have started; fast for the first ones of a static order."""
        sorted_ = self.sorted
        for job in jobs:
            if self._view is not None and sorted_.entries[sorted_.first][-1] is job:
                del self.jobs[job.id]
                self._within.pop(job.id, None)
                self.wanted -= job.request.cores
                sorted_.remove_first()
            else:
                self.remove(job.id)

    def candidates(self, job_at: Callable[[int], Job], places: numpy.ndarray, estimates: array[float],
                   sizes: array[int], kinds: Callable[[Similar | None], JobClasses]) -> Candidates:
        """Return the jobs at these indices, for backfilling; the columns are those of all jobs."""
        import numpy
        seconds, size = numpy.frombuffer(estimates)[places], numpy.frombuffer(sizes, numpy.int64)[places]
        return Candidates(job_at, places, seconds, size, lambda: kinds(self.similar), self.similar)

    def in_order(self, now: float) -> QueueView:
        """Return the waiting jobs, first to start first. Valid until the next change."""
        return _Ranked(self, now) if self._view is None else self._view
