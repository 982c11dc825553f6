"""A job: what the user asked for, and the states it goes through."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import FrozenSet, Mapping, NamedTuple, Optional, Sequence

from vrm.model.ranges import fold_range, to_ranges


class JobState(str, enum.Enum):
    """Where a job is in its life; the value is the word that files and tables use."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    REFUSED = "refused"

    @property
    def ended(self) -> bool:
        """Whether a job in this state will never run (again)."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class Dependency(NamedTuple):
    """That a job waits for the ends of the jobs `ids`: for successful ones, or with `any` for
    whatever ends. With a `name` these are the jobs of that name (see `resolved`)."""

    ids: range
    any: bool = False
    name: str = ""

    @classmethod
    def on(cls, job_id: int, any: bool = False) -> Dependency:
        """The wait for one job."""
        return cls(range(job_id, job_id + 1), any)

    def __str__(self) -> str:
        prefix = "any:" if self.any else ""
        return ",".join(prefix + part for part in (self.name or fold_range(self.ids)).split(","))


def resolved(after: tuple[Dependency, ...], ids_of: Mapping[str, Sequence[int]]
             ) -> tuple[Dependency, ...]:
    """Dependencies with the ids of the jobs in the place of their names; `ids_of` are those of
    each name so far. ValueError for a name that no job has."""
    if not any(each.name for each in after):
        return after
    found: list[Dependency] = []
    for each in after:
        if not each.name:
            found.append(each)
        elif each.name not in ids_of:
            raise ValueError(f"no job before it has the name `{each.name}`, for which it is to "
                             "wait")
        else:
            found += [Dependency(ids, each.any) for ids in to_ranges(ids_of[each.name])]
    return tuple(found)


class Infeasible(Exception):
    """A job that can never run on this cluster under this policy; the text is the reason."""


@dataclass(frozen=True, init=False)
class Job:
    """One request for `procs` ranks of an application.

    `estimate` is the user's wall-time estimate and `submit` the submission time, both in
    seconds. `cores` and `resources` are wanted by each rank (a rank's cores lie in one
    socket); `features` must be offered by every node the job uses. An `exclusive` job
    shares no node with another. Jobs of a higher `priority` come first, whatever the ordering.
    `user` is whose job it is, where a workload says so: for orderings that look at users.
    """

    id: int
    app: str
    procs: int
    estimate: float
    submit: float = 0.0
    exclusive: bool = False
    cores: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    features: FrozenSet[str] = frozenset()
    priority: int = 0
    user: str = ""

    def __init__(self, id: int, app: str, procs: int, estimate: float, submit: float = 0.0,
                 exclusive: bool = False, cores: int = 1,
                 resources: Optional[Mapping[str, float]] = None,
                 features: FrozenSet[str] = frozenset(), priority: int = 0,
                 user: str = "") -> None:
        if procs < 1:
            raise ValueError(f"a job needs at least 1 rank, not {procs}")
        if not estimate > 0:
            raise ValueError(f"the estimate must be above 0 seconds, not {estimate:g}")
        if cores < 1:
            raise ValueError(f"a rank needs at least 1 core, not {cores}")
        # At once, and not by ten guarded assignments: a simulation makes jobs by the million.
        self.__dict__.update(
            id=id, app=app, procs=procs, estimate=estimate, submit=submit, exclusive=exclusive,
            cores=cores, resources={} if resources is None else resources, features=features,
            priority=priority, user=user)

    @property
    def kind(self) -> str:
        """The application without its class: the executable's name up to the first dot."""
        return application_kind(self.app)


def application_kind(app: str) -> str:
    """The name a heatmap knows an executable by: `ft` for `ft.B.x`, up to the first dot.

    A number alone is no name: `628.pot3d_s` of SPEC's suites keeps what follows it.
    """
    name, _, rest = app.partition(".")
    if rest and name.isdigit():
        return f"{name}.{rest.partition('.')[0]}"
    return name
