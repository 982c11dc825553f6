"""Decides what starts now: the base class of all dispatchers (none, EASY, conservative and others are subclasses).

A dispatcher decides from the waiting jobs in order, a view of the machine and a placement policy. Between two steps it
keeps only answers that it could compute again, or (kept reservations) promises.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.scheduling.orderings.queue import QueueView

Starts = Iterator[tuple[Job, Placement]]
"""Jobs that start now, with their placements. The caller books each job before it takes the next."""


class Dispatcher:
    """Starts jobs in the order of the queue while they fit; after the first one that does not, `fill` may start later
    ones. Subclasses override `fill`, or `decide` as a whole.

    `heads_first`: heads start whenever they fit, so their number per step can be limited. `kept`: its reservations are
    promises: none is moved to a later time. `tries_all`: it also looks at jobs after the first that does not fit.
    `lends`: it may start jobs on cores of running ones (`vrm.model.placement.Lease`). `by_energy`: it uses
    measurements of programs. `plans_in_background`: it searches for plans, which takes long, so a live manager does
    this in a background process. `learns`: it learns from jobs that have ended.
    """

    name = "none"
    heads_first = True
    kept = False
    tries_all = True
    lends = False
    by_energy = False
    plans_in_background = False
    learns = False

    def __init__(self) -> None:
        # The head that did not fit at the end of the last step: it need not be tried again.
        self._blocked: Job | None = None
        self._left: tuple[Cluster | None, int] = (None, -1)  # the cluster at that time, and its state

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """Yield the jobs that start at `now` (seconds), at most `heads` of them from the head of the queue."""
        place, turn = policy.place, self.turn(waiting)
        for at in range(heads):
            head = turn[at]
            if at and self.heads_first and not (self.lends or self.promising) and policy.room(view) == 0:
                self._blocked, self._left = head, (view, view.generation)
                return
            placement = (head is not self._blocked or self._left != (view, view.generation)) and place(head, view)
            if not placement:
                if at + 1 < len(waiting):
                    yield from self.fill(now, waiting, at, view, policy)
                self._blocked, self._left = head, (view, view.generation)
                return
            yield head, placement

    def turn(self, waiting: QueueView) -> Sequence[Job]:
        """Return the waiting jobs in the order in which they become heads."""
        return waiting

    def idle(self, waiting: QueueView, view: Cluster, policy: CountingPolicy) -> bool:
        """Return whether a count shows that nothing can start now; called before `decide`, to save that call."""
        return self.heads_first and not self.lends and policy.room(view) == 0

    def fill(self, now: float, waiting: QueueView, first: int, view: Cluster,
             policy: CountingPolicy) -> Starts:
        """Yield the jobs behind the head that start now; the head is at index `first` and does not fit. Here: none."""
        return iter(())

    @property
    def promising(self) -> bool:
        """Whether it makes promises."""
        return self.kept

    def promises(self, now: float, waiting: QueueView, view: Cluster,
                 policy: CountingPolicy) -> dict[int, float]:
        """Return the promises: latest starts of waiting jobs by id, in seconds. They are written to the journal, and a
        manager that continues the run passes them to `restore`."""
        return self.reservations(now, waiting, view, policy) if self.kept else {}

    def wake(self, now: float) -> float:
        """Return when the next step is due even if nothing happens before, in seconds. Here: never."""
        return math.inf

    def reservations(self, now: float, waiting: QueueView, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """Return the latest starts (seconds) of the waiting jobs that have reservations, by id."""
        return {}

    def restore(self, promises: Mapping[int, float]) -> None:
        """Take over the promises of the dispatcher whose run this one continues: latest starts of waiting jobs by id,
        in seconds, the most recent promise last. Does nothing if it makes no promises."""

    def recall(self, waits: Iterable[float]) -> None:
        """Receive the waiting times (seconds) of the jobs that an earlier manager of the run has started. Does nothing
        without a guard against starvation."""

    def inform(self, longest: Callable[[Job], float]) -> None:
        """Receive a function that returns the longest plausible run time of a job in seconds. Does nothing without a
        guard against starvation."""

    def learn(self, job: Job, run: float) -> None:
        """Learn that a job completed after `run` seconds. Does nothing if widths are not chosen."""

    def stretch(self, asked: Job, started: Job) -> float:
        """Return, in a simulation, the factor between the run times of a job on the ranks of `started` and on those
        that it `asked` for."""
        return 1.0

    def follow(self, before: Dispatcher) -> None:
        """Replace another dispatcher, whose jobs have started. Does nothing without a guard against starvation."""

    def copy(self, view: Cluster) -> Dispatcher:
        """Return an independent copy, with everything that it keeps, for a copy of the cluster."""
        twin = copy.copy(self)
        if self._left[0] is not None:
            twin._left = view, self._left[1]
        return twin
