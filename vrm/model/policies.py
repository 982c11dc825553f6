"""What policies are to each other: the protocols of placement policies and of what they are made of.

A policy sees the machine through a view, which is any `Pool`: the cluster as it is now, or as it
would be. It holds none itself, so one policy serves a run, its forecast and its replay.
"""

from __future__ import annotations

from typing import (Protocol)
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from vrm.model.cluster import Cluster, Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Insufficient, Job
from vrm.model.placement import Placement

Rooms = Callable[[], Sequence[tuple[int, int]]]
"""Gives the eligible nodes on which a job finds room, as disjoint sets of nodes that hold equally many
of its tasks, each with how many one node holds."""


class InOrder(Protocol):
    """The waiting jobs in order at one moment, first to start first. `fresh` are those that came
    since the last step."""

    @property
    def fresh(self) -> list[Job]: ...

    def holds(self, job: Job) -> bool: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Job: ...


class Follower(Protocol):
    """Who goes by what waits and by what became of earlier jobs, and is told each step of a run."""

    def follow(self, now: float, waiting: InOrder, cluster: Cluster,
               decided: Iterator[tuple[Job, Placement]], all_tried: bool
               ) -> Iterator[tuple[Job, Placement]]:
        """A step at `now`: the same starts as `decided`, each of which is booked before the next
        one is asked for. `all_tried`: the dispatcher also looks at jobs behind the first that does
        not fit. Until it ends, `waiting` says who waits."""

    def plans(self, starts: Mapping[int, tuple[Job, float]]) -> None:
        """During a step: the waiting jobs that a dispatcher plans to start later, with their times
        (seconds), by id."""


class PlacementPolicy(Protocol):
    """Where jobs run. `heatmap` is the one that it goes by, if any; `follower` wants to be told each
    step, where there is one."""

    name: str
    heatmap: Heatmap | None

    @property
    def follower(self) -> Follower | None: ...

    def copy(self) -> PlacementPolicy:
        """An independent copy, for a copy of the run; itself where nothing is kept from step to
        step."""

    def nodes(self, job: Job) -> int:
        """Nodes that the job takes on the empty machine; raises Infeasible, with the reason, when
        it can never run."""

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Where the job would start on the view, or why it does not fit; takes nothing."""


class CountingPolicy(PlacementPolicy, Protocol):
    """A placement policy that also answers by counting, which is quicker than asking where jobs fit. All of
    vrm's do; one that cannot count gives None, any size and False (see
    `vrm.scheduling.placement.custom.OwnPlacement`)."""

    def copy(self) -> CountingPolicy: ...

    def fits(self, job: Job, view: Pool) -> bool:
        """Whether `place` finds a place."""

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """A class of jobs, and the job's size in it: in one state of the machine, of two jobs of a
        class the larger takes all that the smaller takes, and more. None: nothing is promised."""

    def exact(self, job: Job) -> bool:
        """Whether counts say all of the job: it fits where `size` is at most `room`, takes that
        much of the room and gives as much back."""

    def size(self, job: Job) -> int:
        """What is counted of a job: all that it takes if counts are exact, else the least."""

    def room(self, view: Pool) -> int | None:
        """The largest `size` that any job may have to fit on the view; None: cannot be counted."""


class Eligibility(Protocol):
    """On which nodes a job may run: the first third of a placement policy."""

    def alone(self, job: Job) -> bool:
        """Whether the job shares its nodes with no other, before it or after."""

    def nodes(self, job: Job, view: Pool) -> int:
        """The set of nodes on which the job may run now."""
