"""Constraints: conditions on the starts of jobs besides free cores, such as a cap on power or a number of tokens.

Each view of the machine (`vrm.model.cluster.Pool`) has its own, which knows what the jobs that run in that view have
taken. So one class answers for a start now, a shadow time and a plan.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING
from collections.abc import Iterable

from vrm.model.job import Job

if TYPE_CHECKING:
    from vrm.model.placement import Placement


class Constraint:
    """A condition on starts. A subclass overrides what it needs; times are in seconds. See also `CountedConstraint`.

    It is made with the value of its key in the configuration and the cluster, in which nothing has been taken yet.
    """

    __slots__: tuple[str, ...] = ()

    def copy(self) -> Constraint:
        """Return an independent copy, for a copy of the view. The attributes of the copy are the same objects."""
        return copy.copy(self)

    def depends(self, job: Job) -> bool:
        """Return whether what a job takes depends on where it runs; then `allows` is asked with placements."""
        return False

    def uniform(self) -> bool:
        """Return whether a job takes the same wherever it runs."""
        return True

    def never(self, job: Job, alone: Placement | None) -> str:
        """Return why a job can never start; "" where it can. `alone`: where it `depends` on that, the placement of the
        job on the empty machine."""
        return ""

    def allows(self, job: Job, placement: Placement | None, begin: float, end: float) -> bool:
        """Return whether a job may run from `begin`, which is the time of the view, to `end`, the end of its walltime.
        `placement` is None where it is not known yet: then the answer may be yes too often. With `end` = `begin` it is
        asked about that moment alone."""
        return True

    def take(self, job: Job, placement: Placement, begin: float, end: float) -> None:
        """A job runs from `begin` until `end` at the latest."""

    def give(self, job: Job, placement: Placement) -> None:
        """Undo `take`."""

    def boundaries(self, after: float) -> Iterable[float]:
        """Return when something changes by itself, after a time, ascending: then a job may begin to fit."""
        return ()

    def keep_common(self, other: Constraint, at: float) -> None:
        """Allow no more than the same constraint of another view, which is of the time `at`, allows then."""

    def alike(self, other: Constraint) -> bool:
        """Return whether the same constraint of another view allows the same."""
        return True

    def lacks(self, job: Job, alone: Placement | None, begin: float, end: float) -> str:
        """Return why a job may not start at `begin`, in a few words. `alone` is as in `never`."""
        return ""


class CountedConstraint(Constraint):
    """A number of things of which each running job takes some: `total` of them, `amount(job)` for a job, `name` for
    messages."""

    name = "units"

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0

    def amount(self, job: Job) -> int:
        """Return how many a job takes."""
        return 0

    def never(self, job: Job, alone: Placement | None) -> str:
        """Return why a job can never start: it takes more than there are."""
        wanted = self.amount(job)
        return f"it takes {wanted} {self.name}, there are {self.total}" if wanted > self.total else ""

    def allows(self, job: Job, placement: Placement | None, begin: float, end: float) -> bool:
        """Return whether as many are left as the job takes."""
        return self.amount(job) <= self.total - self.taken

    def take(self, job: Job, placement: Placement, begin: float, end: float) -> None:
        """A job takes its amount."""
        self.taken += self.amount(job)

    def give(self, job: Job, placement: Placement) -> None:
        """A job gives its amount back."""
        self.taken -= self.amount(job)

    def keep_common(self, other: Constraint, at: float) -> None:
        """Have no more left than the other."""
        self.taken = max(self.taken, other.taken)  # type: ignore[attr-defined]  # it is of the same class

    def alike(self, other: Constraint) -> bool:
        """Return whether as many are left in the other."""
        return self.taken == other.taken  # type: ignore[attr-defined,no-any-return]  # it is of the same class

    def lacks(self, job: Job, alone: Placement | None, begin: float, end: float) -> str:
        """Return how many the job takes, and how many are left."""
        return f"takes {self.amount(job)} {self.name}, {self.total - self.taken} are left"
