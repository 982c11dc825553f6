"""What a site's batch system says at one moment: nodes, jobs, reservations, and how it schedules.

Readers of several forms make one (`vrm.ext.forecast.site.lml`, `outer_slurm`, `outer_pbs`);
`vrm.ext.forecast.site.forecast` says what becomes of its jobs. Times are seconds from the snapshot's own moment:
what was before it is negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from collections.abc import Mapping

ALGORITHMS = ("FCFS", "List", "Backfilling")
"""First come, first served (nothing overtakes the head); whatever fits starts; backfilling."""

MANAGERS = ("NodeState", "AttributeState")
"""Jobs have nodes and cores, the same for all of their time; or amounts of cores are counted, and
nobody asks which."""

Place = tuple[int, frozenset[int] | None]
"""A node (its number from 0 on) and some of its cores (from 0 on); None: which is not said."""


class SnapshotError(ValueError):
    """A snapshot that cannot be read or contradicts itself; the text names the place."""


@dataclass(frozen=True)
class SiteNode:
    """A node: `classes` are the cores that jobs of each queue may have of it together, None: any job
    any core. On one that is not `up` nothing starts. `busy`: the site says that jobs are on it."""

    name: str
    cores: int
    classes: Mapping[str, int] | None = None
    up: bool = True
    busy: bool = False


@dataclass(frozen=True)
class SiteJob:
    """A job, by the `key` that the site knows it by.

    It wants `per_node` cores on each of `nodes` nodes, or, where `nodes` is 0, `cores` anywhere.
    `wall` is its limit, `submit` its queue date (one in the future: it does not compete before),
    `start` that of one that runs, on `places`. The highest `rank` comes first, or that of
    the snapshot's formula, for whose variables the job has these `values`. It starts when the
    jobs `after` (keys) have ended. With a `stuck`, it does not start, and that is why.
    """

    key: str
    wall: float
    cores: int = 1
    nodes: int = 0
    per_node: int = 0
    name: str = ""
    user: str = ""
    queue: str = ""
    submit: float = 0.0
    start: float | None = None
    places: tuple[Place, ...] = ()
    rank: float = 0.0
    values: tuple[float, ...] = ()
    after: tuple[str, ...] = ()
    stuck: str = ""

    @property
    def total(self) -> int:
        """All its cores."""
        return self.nodes * self.per_node if self.nodes else self.cores


@dataclass(frozen=True)
class SiteReservation:
    """An advance reservation of nodes (their numbers), for jobs (their keys); where amounts are
    counted, of `cores`."""

    key: str
    begin: float
    end: float
    nodes: tuple[int, ...] = ()
    cores: int = 0
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteQueue:
    """Limits of a queue, 0 for none: cores and jobs that run at a time, jobs of one user."""

    cores: int = 0
    jobs: int = 0
    jobs_per_user: int = 0


class Formula(NamedTuple):
    """An expression, higher first, its variables, and how messages about it begin."""

    text: str
    names: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True)
class Snapshot:
    """All of it. `time` is its moment in epoch seconds. With `depth` reservations (infinity: one for
    every job) backfilling is EASY, depth n or conservative, `per_queue`: so many for each queue.
    `shared`: jobs may share nodes. `one_by_one`: what happens at one moment does so one after the other,
    each with a decision of its own. `unknown` are what it does not say, for people. `longest` is the longest limit of
    a job of each queue (s), where the site says one, and `default` the queue of jobs that name none ("": not said)."""

    time: float
    nodes: list[SiteNode]
    jobs: list[SiteJob]
    reservations: list[SiteReservation] = field(default_factory=list)
    queues: dict[str, SiteQueue] = field(default_factory=dict)
    algorithm: str = "Backfilling"
    manager: str = "NodeState"
    depth: float = 1
    per_queue: bool = False
    shared: bool = True
    formula: Formula | None = None
    unknown: tuple[str, ...] = ()
    one_by_one: bool = False
    longest: Mapping[str, float] = field(default_factory=dict)
    default: str = ""
