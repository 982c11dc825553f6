"""Dispatchers that users write: a class with `schedule(step)`, which yields the jobs that start now."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple
from collections.abc import Iterator, Mapping, Sequence

from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.scheduling.backfilling.profile import CountProfile, PoolProfile, Profile, Slot, countable
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.registry import PolicyError, guarded, shortened, where


class RunningJob(NamedTuple):
    """A running job: its start and expected end (seconds), and the names of its nodes."""

    job: Job
    start: float
    end: float
    nodes: tuple[str, ...]


class NodeState(NamedTuple):
    """A node: its name, its number of cores, how many of them are free, and whether it is up."""

    name: str
    cores: int
    free: int
    up: bool


class SchedulingStep:
    """The state of the run at one moment, for a user's dispatcher. All values include the starts of the jobs that were
    already yielded.

    `now` is the time in seconds, `waiting` has the waiting jobs in the order of the queue, including those that were
    already yielded. The placement policy of the run decides where jobs start.
    """

    def __init__(self, now: float, waiting: QueueView, cluster: Cluster, policy: CountingPolicy) -> None:
        self.now = now
        self._waiting, self._cluster, self._policy = waiting, cluster, policy
        self._plan: Profile | None = None
        self._slots: dict[int, Slot] = {}
        self._started: set[int] = set()
        self._found: tuple[Job, int, int, Placement] | None = None  # a job, the state, and its placement then

    @property
    def waiting(self) -> Sequence[Job]:
        """The waiting jobs, the next one first."""
        return self._waiting

    @property
    def running(self) -> list[RunningJob]:
        """The running jobs, earliest expected end first."""
        names = [node.name for node in self._cluster.nodes]
        return [RunningJob(booking.job, booking.start, booking.gives,
                           tuple(names[at] for at in booking.placement.nodes)) for booking in self._cluster.running()]

    @property
    def nodes(self) -> list[NodeState]:
        """The nodes of the machine."""
        view = self._cluster
        return [NodeState(node.name, node.cores, view.free_on(at), bool(view.up >> at & 1))
                for at, node in enumerate(view.nodes)]

    @property
    def free_cores(self) -> int:
        """The number of free cores on all nodes together."""
        return self._cluster.count_free()

    @property
    def reserved(self) -> Mapping[int, float]:
        """The starts (seconds) that `reserve` has given to jobs that still wait, by job id."""
        return {job_id: slot.time for job_id, slot in self._slots.items()}

    def fits(self, job: Job) -> bool:
        """Return whether a waiting job can start now without delaying a reservation of this step, if all jobs end when
        expected."""
        if job.id in self._slots:
            return self._slots[job.id].time <= self.now
        return self._place(job) is not None

    def earliest(self, job: Job) -> float:
        """Return when a waiting job can start (seconds) without delaying a reservation of this step, if all jobs end
        when expected: `now` if immediately, infinity if nodes are missing."""
        return self._slots[job.id].time if job.id in self._slots else self._future().earliest(job).time

    def reserve(self, job: Job) -> float:
        """Reserve the earliest place for a waiting job and return its start, as `earliest` does. Later requests and
        starts in this step do not delay it. Reservations end with the step."""
        if job.id in self._started:
            raise ValueError(f"job {job.id} starts in this step")
        if job.id not in self._slots:
            plan = self._future()
            slot = self._slots[job.id] = plan.earliest(job)
            plan.hold(job, slot)
        return self._slots[job.id].time

    def _place(self, job: Job) -> Placement | None:
        """Return where a job without a reservation starts now; None if it does not fit."""
        state = self._cluster.generation, len(self._slots)
        if self._found is not None and self._found[:3] == (job, *state):
            return self._found[3]
        placement = None
        if self._plan is None:
            placement = self._policy.place(job, self._cluster) or None
        elif self._plan.fits_now(job):
            placement = self._plan.place(job, self._cluster)
        self._found = None if placement is None else (job, *state, placement)
        return placement

    def _future(self) -> Profile:
        """Return the profile of the future, made on first use."""
        if self._plan is None:
            counts = all(map(self._policy.exact, self._waiting)) and countable(self._cluster, self._policy)
            self._plan = (CountProfile if counts else PoolProfile)(self.now, self._cluster, self._policy)
        return self._plan

    def _start(self, job: Job) -> Placement | None:
        """Return where a yielded job starts, and enter it in the profile; None if it does not fit."""
        if not self.fits(job):
            return None
        self._started.add(job.id)
        slot = self._slots.pop(job.id, None)
        if slot is not None:
            return self._future().start(job, slot, self._cluster)
        placement = self._place(job)
        if self._plan is not None:
            self._plan.hold(job, Slot(self.now, placement))
        return placement


class UserDispatcher(Dispatcher):
    """Runs a user's object with `schedule(step)` and checks what it starts. The object keeps its own state between
    steps. It may have `wake(now)`, which returns when the next step is due even if nothing happens before, in
    seconds."""

    heads_first = False

    def __init__(self, text: str, own: Any) -> None:
        super().__init__()
        self.name = str(getattr(own, "name", text))
        self._text = text.strip()
        self._own = own
        self._reserved: Mapping[int, float] = {}

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy, heads: int) -> Starts:
        """Yield the jobs that the user's object yields, with their placements. Raises PolicyError for an invalid
        one."""
        step, found = SchedulingStep(now, waiting, view, policy), self._own.schedule

        def wrong(what: str) -> PolicyError:
            return PolicyError(f"`{self._text}`{where(found)} {what}")

        def ask() -> Iterator[Any]:
            nonlocal found
            found = self._own.schedule(step)
            return iter(found if found is not None else ())

        steps = guarded(self._text, ask)()
        while True:
            job = guarded(self._text, lambda: next(steps, None))()
            if job is None:
                break
            if not isinstance(job, Job):
                raise wrong(f"gives {shortened(job)}; give the jobs that start: `yield job`")
            if job.id in step._started:
                raise wrong(f"starts job {job.id} twice")
            if not waiting.holds(job):
                raise wrong(f"starts job {job.id}, which does not wait" + ": it runs" * (job.id in view.bookings))
            placement = step._start(job)
            if placement is None:
                raise wrong(f"starts job {job.id}, which does not fit now; ask `step.fits(job)` right before "
                            "`yield job`")
            yield job, placement
        self._reserved = step.reserved

    def wake(self, now: float) -> float:
        """Return when the next reservation of the last step begins, or the time that the user's object returns, if
        that is earlier."""
        own = getattr(self._own, "wake", None)
        said = math.inf if own is None else float(guarded(self._text, own)(now))
        if not said > now:
            raise PolicyError(f"`{self._text}`{where(own)} gives {said} as the time of the next step, at {now}; give a "
                              "later time, or math.inf for none")
        return min([said, *(time for time in self._reserved.values() if time > now)])

    def reservations(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy) -> dict[int, float]:
        """Return the reservations of the last step."""
        return dict(self._reserved)

    def copy(self, view: Cluster) -> Dispatcher:
        """Return a copy, with a deep copy of the user's object."""
        twin = super().copy(view)
        assert isinstance(twin, UserDispatcher)
        twin._own = copy.deepcopy(self._own)
        return twin


def own_dispatcher(text: str, made: Any, otherwise: str = "") -> Dispatcher:
    """Wrap a user's object with `schedule` in a dispatcher; `text` names it in messages. Raises PolicyError, with the
    text `otherwise`, if it has none."""
    if callable(getattr(made, "schedule", None)):
        return UserDispatcher(text, made)
    if isinstance(made, Dispatcher) and type(made).__module__.startswith("vrm."):
        return made
    former = [name for name in ("fill", "plan", "decide") if callable(getattr(made, name, None))]
    raise PolicyError(
        f"`{text.strip()}` has `{former[0]}`, which vrm no longer calls: give it `schedule(self, step)`, which "
        "yields the jobs that start (docs/how-to/policies.md)" if former else otherwise or
        f"`{text.strip()}` makes no backfilling; it must give an object with `schedule(self, step)`, which yields the "
        "jobs that start")
