"""What policies are to each other: the protocols of placement policies and of what they are made of.

A policy sees the machine through a view, which is any `Pool`: the cluster as it is now, or as it
would be. It holds none itself, so one policy serves a run, its forecast and its replay.
"""

from __future__ import annotations

from typing import Hashable, Iterable, Optional, Protocol, Tuple

from vrm.model.cluster import AnyPlacement, Pool
from vrm.model.heatmap import Heatmap
from vrm.model.job import Job


class PlacementPolicy(Protocol):
    """Where jobs run. `heatmap` is the one that it goes by, if any.

    `room`, `size` and `exact` are for counting, which is quicker than asking where jobs fit: a
    policy that cannot count gives None, any size and False.
    """

    name: str
    heatmap: Optional[Heatmap]

    def nodes(self, job: Job) -> int:
        """Nodes that the job takes on the empty machine; raises Infeasible, with the reason, when
        it can never run."""

    def fits(self, job: Job, view: Pool) -> bool:
        """Whether the job could start on the view as it is."""

    def place(self, job: Job, view: Pool) -> Optional[AnyPlacement]:
        """Where the job would start on the view, or None when it does not fit; takes nothing."""

    def similar(self, job: Job) -> Optional[Tuple[Hashable, int]]:
        """A class of jobs, and the job's size in it: in one state of the machine, of two jobs of a
        class the larger takes all that the smaller takes, and more. None: nothing is promised."""

    def exact(self, job: Job) -> bool:
        """Whether counts say all of the job: it fits where `size` is at most `room`, takes that
        much of the room and gives as much back."""

    def size(self, job: Job) -> int:
        """What is counted of a job: all that it takes if counts are exact, else the least."""

    def room(self, view: Pool) -> Optional[int]:
        """The largest `size` that any job may have to fit on the view; None: cannot be counted."""

    def lacks(self, job: Job, view: Pool) -> str:
        """What a job that does not fit needs, and how much of it there is, in a few words."""


class Eligibility(Protocol):
    """On which nodes a job may run: the first third of a placement policy."""

    def alone(self, job: Job) -> bool:
        """Whether the job shares its nodes with no other, before it or after."""

    def nodes(self, job: Job, view: Pool) -> int:
        """The set of nodes on which the job may run now."""


class NodeOrder(Protocol):
    """Which nodes are taken first: the second third of a placement policy."""

    def groups(self, job: Job, view: Pool, eligible: int) -> Iterable[int]:
        """The eligible nodes as disjoint sets, best set first; within a set, by number."""
