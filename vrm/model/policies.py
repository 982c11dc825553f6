"""Protocols of placement policies and of their parts.

A policy sees the machine through a view, which is any `Pool`: the cluster as it is now, or as it would be. It holds no
view itself, so one policy serves a run, its forecast and its replay.
"""

from __future__ import annotations

from typing import (Protocol)
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from vrm.model.cluster import Cluster, Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Insufficient, Job
from vrm.model.placement import Placement

Rooms = Callable[[], Sequence[tuple[int, int]]]
"""Function that returns the eligible nodes with capacity for a job: pairs of a set of nodes and how many of its tasks
fit on each node of the set. The sets are disjoint."""


class OrderedJobs(Protocol):
    """The waiting jobs in order at one moment, first to start first. `fresh` has those that are new since the last
    step."""

    @property
    def fresh(self) -> list[Job]: ...

    def holds(self, job: Job) -> bool: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Job: ...


class PolicyObserver(Protocol):
    """Observer of each step of a run, for policies that depend on which jobs wait and on what became of earlier
    jobs."""

    def follow(self, now: float, waiting: OrderedJobs, cluster: Cluster,
               decided: Iterator[tuple[Job, Placement]], all_tried: bool
               ) -> Iterator[tuple[Job, Placement]]:
        """Observe a step at `now` and yield the same starts as `decided`; each is booked before the next one is
        requested. `all_tried` says that the dispatcher also looks at jobs behind the first one that does not fit.
        Until the generator ends, `waiting` has the waiting jobs."""

    def plans(self, starts: Mapping[int, tuple[Job, float]]) -> None:
        """Observe, during a step, the waiting jobs that a dispatcher plans to start later: by id, each with its start
        (seconds)."""


class PlacementPolicy(Protocol):
    """Decides where jobs run. `heatmap` is the heatmap that it uses, if any; `follower`, if not None, is called at
    each step."""

    name: str
    heatmap: Heatmap | None

    @property
    def follower(self) -> PolicyObserver | None: ...

    def copy(self) -> PlacementPolicy:
        """Return an independent copy, for a copy of the run; the policy itself if it keeps nothing between steps."""

    def nodes(self, job: Job) -> int:
        """Return how many nodes the job takes on the empty machine. Raises Infeasible, with the reason, if it can
        never run."""

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Return where the job would start on the view, or why it does not fit. Does not change the view."""


class CountingPolicy(PlacementPolicy, Protocol):
    """A placement policy that can also answer by counting, which is faster than searching for a place. All of vrm's
    do; one that cannot count returns None, any size and False (see
    `vrm.scheduling.placement.user_placement.UserPlacement`)."""

    def copy(self) -> CountingPolicy: ...

    def fits(self, job: Job, view: Pool) -> bool:
        """Return whether `place` finds a place."""

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """Return a class of jobs, and the job's size in it. In one state of the machine, the larger of two jobs of a
        class takes everything that the smaller takes, and more. None: no such promise."""

    def exact(self, job: Job) -> bool:
        """Return whether counting is exact for the job: it fits if and only if `size` is at most `room`, and it takes
        and returns that much."""

    def size(self, job: Job) -> int:
        """Return what is counted of a job: everything that it takes if counts are exact, otherwise a lower bound."""

    def room(self, view: Pool) -> int | None:
        """Return the largest `size` with which a job can fit on the view; None if it cannot be counted."""


class Eligibility(Protocol):
    """Decides on which nodes a job may run: the first of the three parts of a placement policy."""

    def alone(self, job: Job) -> bool:
        """Return whether the job shares its nodes with no other job, earlier or later."""

    def nodes(self, job: Job, view: Pool) -> int:
        """Return the set of nodes on which the job may run now."""
