"""Constraints: conditions on the start of a job besides free cores, such as a power cap or a number of tokens.

Each view of the machine (`vrm.model.cluster.Pool`) has its own copy of each constraint, which counts what the jobs
that run in that view have taken. So one class serves a start now, a shadow time and a plan.
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

    It is constructed with the value of its configuration key and with the cluster, in which nothing is taken yet.
    """

    __slots__: tuple[str, ...] = ()

    def copy(self) -> Constraint:
        """Return an independent copy, for a copy of the view. It is shallow: attribute values are shared."""
        return copy.copy(self)

    def depends(self, job: Job) -> bool:
        """Return whether what a job takes depends on where it runs; if so, `allows` is called with placements."""
        return False

    def uniform(self) -> bool:
        """Return whether a job takes the same amount wherever it runs."""
        return True

    def never(self, job: Job, alone: Placement | None) -> str:
        """Return the reason why a job can never start; "" if it can. `alone` is the job's placement on the empty
        machine, if `depends` is true."""
        return ""

    def allows(self, job: Job, placement: Placement | None, begin: float, end: float) -> bool:
        """Return whether a job may run from `begin`, which is the time of the view, to `end`, the end of its walltime.
        `placement` is None if it is not known yet: then the answer may be yes where no would be right. With `end` =
        `begin` the question is about that moment only."""
        return True

    def take(self, job: Job, placement: Placement, begin: float, end: float) -> None:
        """Count a job that runs from `begin` until `end` at the latest."""

    def give(self, job: Job, placement: Placement) -> None:
        """Undo `take`."""

    def boundaries(self, after: float) -> Iterable[float]:
        """Return the times after `after` at which the constraint changes by itself, so that a job may begin to fit;
        ascending."""
        return ()

    def keep_common(self, other: Constraint, at: float) -> None:
        """Restrict this constraint so that it allows nothing that `other`, the same constraint of a view at time `at`,
        does not allow."""

    def alike(self, other: Constraint) -> bool:
        """Return whether the same constraint of another view allows exactly the same."""
        return True

    def lacks(self, job: Job, alone: Placement | None, begin: float, end: float) -> str:
        """Return the reason why a job may not start at `begin`, in a few words. `alone` is as in `never`."""
        return ""


class CountedConstraint(Constraint):
    """A limited resource: there are `total` units, each running job takes `amount(job)` of them, and messages call
    them `name`."""

    name = "units"

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0

    def amount(self, job: Job) -> int:
        """Return how many things a job takes."""
        return 0

    def never(self, job: Job, alone: Placement | None) -> str:
        """Return a reason if the job takes more than `total`; otherwise ""."""
        wanted = self.amount(job)
        return f"it takes {wanted} {self.name}, there are {self.total}" if wanted > self.total else ""

    def allows(self, job: Job, placement: Placement | None, begin: float, end: float) -> bool:
        """Return whether enough are left for the job."""
        return self.amount(job) <= self.total - self.taken

    def take(self, job: Job, placement: Placement, begin: float, end: float) -> None:
        """Count the job's amount as taken."""
        self.taken += self.amount(job)

    def give(self, job: Job, placement: Placement) -> None:
        """Free the job's amount."""
        self.taken -= self.amount(job)

    def keep_common(self, other: Constraint, at: float) -> None:
        """Raise `taken` to that of the other, if that is larger."""
        self.taken = max(self.taken, other.taken)  # type: ignore[attr-defined]  # it is of the same class

    def alike(self, other: Constraint) -> bool:
        """Return whether the same number is left in the other."""
        return self.taken == other.taken  # type: ignore[attr-defined,no-any-return]  # it is of the same class

    def lacks(self, job: Job, alone: Placement | None, begin: float, end: float) -> str:
        """Return how many the job takes, and how many are left."""
        return f"takes {self.amount(job)} {self.name}, {self.total - self.taken} are left"
