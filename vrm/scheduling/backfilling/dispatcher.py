"""What starts now: the base of all dispatchers (none, EASY, conservative and others are subclasses).

A dispatcher decides with the waiting jobs in order, a view of the machine and a placement policy.
What it keeps between two steps are answers that it could find again, or (kept reservations) what it
has promised.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.scheduling.orderings.queue import Waiting

Starts = Iterator[tuple[Job, Placement]]
"""Jobs that start now, with their placements. The caller books each before it takes the next."""


class Dispatcher:
    """Starts jobs in the order of the queue while they fit; behind the first that does not, `fill`
    may let later ones start. Subclasses override `fill`, or `decide` as a whole.

    `heads_first`: heads start whenever they fit, so their number per step can be limited. `kept`:
    its reservations are promises: none is moved to a later time. `tries_all`: it looks at
    jobs behind the first that does not fit. `lends`: it may start jobs on cores of running ones
    (`vrm.model.placement.Lease`). `by_energy`: it uses what was measured of programs. `plans_aside`: it
    looks for plans, which takes long, so a live manager has a process for it. `learns`: from jobs that have ended.
    """

    name = "none"
    heads_first = True
    kept = False
    tries_all = True
    lends = False
    by_energy = False
    plans_aside = False
    learns = False

    def __init__(self) -> None:
        # The head that did not fit when the last step left the cluster: no need to ask again.
        self._blocked: Job | None = None
        self._left: tuple[Cluster | None, int] = (None, -1)  # the cluster then, and its state

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """The jobs that start at `now` (seconds); at most `heads` of them from the head on."""
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

    def turn(self, waiting: Waiting) -> Sequence[Job]:
        """The waiting jobs in the order in which they become heads."""
        return waiting

    def idle(self, waiting: Waiting, view: Cluster, policy: CountingPolicy) -> bool:
        """Whether a count shows that nothing can start now; asked before `decide`, to save it."""
        return self.heads_first and not self.lends and policy.room(view) == 0

    def fill(self, now: float, waiting: Waiting, first: int, view: Cluster,
             policy: CountingPolicy) -> Starts:
        """The jobs of `waiting` behind the head, which is at `first` and does not fit, that start
        now: none."""
        return iter(())

    @property
    def promising(self) -> bool:
        """Whether it makes promises at all."""
        return self.kept

    def promises(self, now: float, waiting: Waiting, view: Cluster,
                 policy: CountingPolicy) -> dict[int, float]:
        """What it has promised: latest starts of waiting jobs by id, in seconds. They are in the
        journal, and a manager that continues the run gives them to `restore`."""
        return self.reservations(now, waiting, view, policy) if self.kept else {}

    def wake(self, now: float) -> float:
        """When the next step is due though nothing may happen by then, in seconds: never."""
        return math.inf

    def reservations(self, now: float, waiting: Waiting, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """When waiting jobs can start at the latest, by id, as far as they have reservations."""
        return {}

    def restore(self, promises: Mapping[int, float]) -> None:
        """What another one had promised, of whose run this is the continuation: the latest starts
        of waiting jobs by id, in seconds, the last one made at the end. Without promises: nothing."""

    def recall(self, waits: Iterable[float]) -> None:
        """The seconds that jobs had waited which an earlier manager of the run has started. Without
        a guard against starvation: nothing."""

    def inform(self, longest: Callable[[Job], float]) -> None:
        """How many seconds a job takes at the most, as far as is known. Without a guard against starvation:
        nothing."""

    def learn(self, job: Job, run: float) -> None:
        """A job has completed after `run` seconds. Where widths are not chosen: nothing."""

    def stretch(self, asked: Job, started: Job) -> float:
        """How many times as long as it takes on the ranks that it `asked` for a job takes on those on which it was
        `started`, in a simulation."""
        return 1.0

    def follow(self, before: Dispatcher) -> None:
        """It decides from now on instead of another one, whose jobs have started. Without a
        guard against starvation: nothing."""

    def copy(self, view: Cluster) -> Dispatcher:
        """An independent copy, with all that it keeps, for a copy of the cluster."""
        twin = copy.copy(self)
        if self._left[0] is not None:
            twin._left = view, self._left[1]
        return twin
