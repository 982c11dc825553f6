"""The life-cycle record of a job in a run, and dependencies that several jobs share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple
from collections.abc import Mapping

from vrm.model import Dependency, Job, JobState
from vrm.model.job import PLAIN, START, Details
from vrm.model.quantities import fold

DEPENDED = ", on which it depends, ended as"
"""Part of the reason of a job that was cancelled because a job it depends on ended in another state than required."""


CANCEL, STOP, REMOVED, LINE, DEPENDENCY = "cancel", "stop", "removed", "line", "dependency"
"""Causes of ends, which decide what a later run does: its user cancelled the job, the manager was stopped, its line
was removed from the queue file, its line is wrong, or a dependency failed."""


class JobStateError(ValueError):
    """A request that is not possible for this job; the text gives the reason."""


class SharedDependencies:
    """The dependencies of all jobs with one `after` list, counted once for all of them. `open` is the number that has
    not happened yet, `failed` maps the ids of jobs that failed the dependency to their end states. `ready` is when
    the last delay is over (seconds)."""

    __slots__ = ("after", "open", "failed", "dependents", "ready", "_text")

    def __init__(self, after: tuple[Dependency, ...]) -> None:
        self.after = after
        self.open = 0
        self.failed: dict[int, JobState] = {}
        self.dependents: list[Entry] = []
        self.ready = -math.inf
        self._text: str | None = None  # cached result of `still`

    def count(self, change: int) -> None:
        """Add `change` to the number of open dependencies."""
        self.open += change
        self._text = None

    def begun(self, wanted: Dependency, time: float) -> None:
        """Record that a job has started (or never will), as the dependency `wanted` requires."""
        self.count(-1)
        self.ready = max(self.ready, time + wanted.delay)

    def still(self, entries: Mapping[int, Entry]) -> str:
        """Return the ids of the jobs whose required end or start is still open, as ranges."""
        if self._text is None:
            self._text = fold(sorted({job_id for each in self.after for job_id in each.ids
                                      if job_id in entries and entries[job_id].open_for(each)}))
        return self._text


@dataclass(slots=True, eq=False)
class Entry:
    """A job and its state in the run. `tries` is the number of used retries, `losses` how often it lost a node or its
    launcher failed before it ran. `wish` are its dependencies, once it waits; `wished` are the dependencies of other
    jobs on it, each with the one that concerns it. `late`: it would not end before the allocation does. `lacks` is
    why it cannot run on the current nodes ("" if it can). `begun` is the time of its first start, or when it was
    found that it will never start, in seconds. `early`: it must not start before `begin` (seconds). `cause` is why it
    ended ("" if none is recorded). `asked` is the job as submitted, if it was started on another number of ranks."""

    job: Job
    details: Details = PLAIN
    state: JobState = JobState.QUEUED
    held: bool = False
    tries: int = 0
    losses: int = 0
    wish: SharedDependencies | None = None
    wished: list[tuple[SharedDependencies, Dependency]] | None = None
    late: bool = False
    lacks: str = ""
    begun: float = math.inf
    early: bool = False
    begin: float = -math.inf
    cause: str = ""
    asked: Job | None = None

    def open_for(self, wanted: Dependency) -> bool:
        """Return whether this job has not yet started or ended, as `wanted` requires."""
        return self.begun == math.inf if wanted.kind == START else not self.state.ended

    def enter(self, pair: tuple[SharedDependencies, Dependency]) -> None:
        """Register shared dependencies that include this job."""
        wish, wanted = pair
        if self.open_for(wanted):
            wish.open += 1
        elif wanted.kind == START:
            wish.ready = max(wish.ready, self.begun + wanted.delay)
            return  # a start counts even if the job is requeued later
        elif not wanted.met(self.state):
            wish.failed[self.job.id] = self.state
        if self.wished is None:
            self.wished = []
        self.wished.append(pair)

    @property
    def latest(self) -> float:
        """The latest start time that meets its deadline (seconds)."""
        return self.job.submit + float(self.details.more.get("deadline", math.inf)) - self.job.walltime

    def copy(self) -> Entry:
        """Return a copy without dependencies and dependents."""
        return Entry(self.job, self.details, self.state, self.held, self.tries, self.losses, None,
                     None, self.late, self.lacks, self.begun, self.early, self.begin, self.cause, self.asked)

    def dropped(self, other: int, state: JobState) -> DroppedJob:
        """Return this job as dropped because job `other`, on which it depends, ended in `state`."""
        return DroppedJob(self.job, f"job {other}{DEPENDED} {state.value}")

    @property
    def missing(self) -> int:
        """Number of open dependencies."""
        return self.wish.open if self.wish is not None else 0

    @property
    def eligible(self) -> bool:
        """Whether the job may start as soon as it fits on the nodes."""
        return not (self.held or self.missing or self.late or self.lacks or self.early)


class DroppedJob(NamedTuple):
    """A job that will never run, because a dependency failed or its deadline has passed."""

    job: Job
    reason: str
