"""A site's batch system at one moment: nodes, jobs, reservations, and how it schedules.

Snapshots are made by the readers of several formats (`vrm.ext.forecast.site.lml`, `outer_slurm`, `outer_pbs`)
and forecast by `vrm.ext.forecast.site.forecast`. Times are seconds from the snapshot's own time: earlier ones
are negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from collections.abc import Mapping

from vrm.system.errors import UserError

ALGORITHMS = ("FCFS", "List", "Backfilling")
"""First come, first served (nothing overtakes the head); any job that fits starts; backfilling."""

MANAGERS = ("NodeState", "AttributeState")
"""Jobs have fixed nodes and cores for all of their time; or only amounts of cores are counted."""

Place = tuple[int, frozenset[int] | None]
"""A node (its number, from 0 on) and some of its cores (from 0 on); None: the cores are not known."""


class SnapshotError(UserError, ValueError):
    """Raised if a snapshot cannot be read or contradicts itself; the text names the place."""


@dataclass(frozen=True)
class SiteNode:
    """A node. `classes` gives the cores that jobs of each queue may have on it in total; None: any job may have
    any core. If it is not `up`, nothing starts on it. `busy`: the site reports jobs on it."""

    name: str
    cores: int
    classes: Mapping[str, int] | None = None
    up: bool = True
    busy: bool = False


@dataclass(frozen=True)
class SiteJob:
    """A job, with the `key` that the site uses for it.

    It requests `per_node` cores on each of `nodes` nodes, or, if `nodes` is 0, `cores` anywhere. `wall` is its
    limit, `submit` its queue date (until a date in the future it does not compete), `start` the start of a
    running job, which has `places`. The job with the highest `rank` comes first; the snapshot's formula, if
    there is one, computes the rank from `values`. It starts when the jobs `after` (keys) have ended. If `stuck`
    is set, it does not start, and `stuck` is the reason.
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
        """Total number of its cores."""
        return self.nodes * self.per_node if self.nodes else self.cores


@dataclass(frozen=True)
class SiteReservation:
    """An advance reservation of nodes (their numbers) for jobs (their keys); if amounts are counted, of `cores`
    cores."""

    key: str
    begin: float
    end: float
    nodes: tuple[int, ...] = ()
    cores: int = 0
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteQueue:
    """Limits of a queue, 0 for none: cores and jobs that run at a time, and running jobs of one user."""

    cores: int = 0
    jobs: int = 0
    jobs_per_user: int = 0


class Formula(NamedTuple):
    """An expression (higher values come first), its variables, and the beginning of messages about it."""

    text: str
    names: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True)
class Snapshot:
    """All data of a site. `time` is its time in epoch seconds. `depth` is the number of reservations (infinity:
    one for every job): backfilling is EASY, depth n or conservative; `per_queue`: that many for each queue.
    `shared`: jobs may share nodes. `one_by_one`: simultaneous events are handled one after the other, each with
    its own decision. `unknown` lists what it does not contain, as text for users. `longest` is the longest
    limit of a job of each queue (seconds), if the site gives one, and `default` the queue of jobs that name
    none ("": not known)."""

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
