"""A job of a run and where it is in its life, and what jobs wait for together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple
from collections.abc import Mapping

from vrm.model import Dependency, Job, JobState
from vrm.model.job import PLAIN, START, Details
from vrm.model.quantities import fold

DEPENDED = ", on which it depends, ended as"
"""What the reason of a job says that was dropped since another one ended otherwise than it wants."""


CANCEL, STOP, REMOVED, LINE, DEPENDENCY = "cancel", "stop", "removed", "line", "dependency"
"""Causes of ends that say what a later run does: its user cancelled the job, the manager was stopped, its line was
removed from the queue file, its line is wrong, or a job that it depends on ended otherwise."""


class LifeError(ValueError):
    """What was asked cannot be done with that job; the text says why."""


class SharedDependencies:
    """What all jobs with one `after` wait for, counted once for all of them: `open` things of it have
    not happened, `failed` are the ids of jobs that ended otherwise than wanted, and how. `ready` is when the
    last of its delays is over (seconds)."""

    __slots__ = ("after", "open", "failed", "dependents", "ready", "_text")

    def __init__(self, after: tuple[Dependency, ...]) -> None:
        self.after = after
        self.open = 0
        self.failed: dict[int, JobState] = {}
        self.dependents: list[Entry] = []
        self.ready = -math.inf
        self._text: str | None = None  # as `still` gives it, until something changes

    def count(self, change: int) -> None:
        """So many more of its jobs have not ended, or begun."""
        self.open += change
        self._text = None

    def begun(self, wanted: Dependency, time: float) -> None:
        """A job has begun, or never will, and that is what was wanted of it."""
        self.count(-1)
        self.ready = max(self.ready, time + wanted.delay)

    def still(self, entries: Mapping[int, Entry]) -> str:
        """The ids of the jobs that have not ended, or begun, as ranges."""
        if self._text is None:
            self._text = fold(sorted({job_id for each in self.after for job_id in each.ids
                                      if job_id in entries and entries[job_id].open_for(each)}))
        return self._text


@dataclass(slots=True, eq=False)
class Entry:
    """A job and where it is in its life. `tries` counts the retries that were used, `losses` how
    often it has lost a node or its launcher failed before it ran, `wish` is what it waits for, once
    it waits, `wished` are those of others in which it is (and what they want of it), `late`: it would not end before
    the allocation does. `lacks` says why it cannot run on the nodes there are now, "" when it can.
    `begun` is when it first began, or was found never to, in seconds; `early`: it is not to start yet, but at
    `begin`. `cause` is why it ended, "" where there is nothing to say of that. `asked` is the job as it came, where it
    was started on another number of ranks."""

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
        """Whether what is wanted of it has yet to happen."""
        return self.begun == math.inf if wanted.kind == START else not self.state.ended

    def enter(self, pair: tuple[SharedDependencies, Dependency]) -> None:
        """Others wait for it, who want this of it."""
        wish, wanted = pair
        if self.open_for(wanted):
            wish.open += 1
        elif wanted.kind == START:
            wish.ready = max(wish.ready, self.begun + wanted.delay)
            return  # it has begun for good, even if it waits again
        elif not wanted.met(self.state):
            wish.failed[self.job.id] = self.state
        if self.wished is None:
            self.wished = []
        self.wished.append(pair)

    @property
    def latest(self) -> float:
        """The last moment at which it may start, by its deadline (seconds)."""
        return self.job.submit + float(self.details.more.get("deadline", math.inf)) - self.job.walltime

    def copy(self) -> Entry:
        """A copy without what it waits for, and who waits for it."""
        return Entry(self.job, self.details, self.state, self.held, self.tries, self.losses, None,
                     None, self.late, self.lacks, self.begun, self.early, self.begin, self.cause, self.asked)

    def dropped(self, other: int, state: JobState) -> Dropped:
        """That it will never run, since a job that it depends on ended so."""
        return Dropped(self.job, f"job {other}{DEPENDED} {state.value}")

    @property
    def missing(self) -> int:
        """How many ends and starts of jobs it still waits for."""
        return self.wish.open if self.wish is not None else 0

    @property
    def eligible(self) -> bool:
        """Whether it may start as soon as there is room for it."""
        return not (self.held or self.missing or self.late or self.lacks or self.early)


class Dropped(NamedTuple):
    """A job that will never run, since one it depends on did not end as it wants, or its deadline has come."""

    job: Job
    reason: str
