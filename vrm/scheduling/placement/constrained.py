"""Placement under constraints (`vrm.model.constraint`): a job starts only if all constraints of the view allow it.

A constraint is active if the rules have a value for its key. Extensions add constraints with entry points of the group
`vrm.constraints`: subclasses of `Constraint`, with the name of their key.
"""

from __future__ import annotations

from typing import Any
from collections.abc import Hashable, Iterable

from vrm.model.cluster import Cluster, Pool
from vrm.model.constraint import Constraint
from vrm.model.job import Infeasible, Insufficient, Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.system.plugins import MISSING
from vrm.scheduling.registry import PolicyError, Registry, guarded
from vrm.scheduling.placement.wrapper import PlacementWrapper

CONSTRAINTS = Registry("constraint", "vrm.constraints")

_METHODS = ("__init__", *(name for name in vars(Constraint) if not name.startswith("_")))


def constrained(policy: CountingPolicy, constraints: Iterable[Constraint], cluster: Cluster) -> CountingPolicy:
    """Return the policy for a cluster under constraints; without constraints, the policy itself. The constraints are
    added to the cluster, and count its running jobs."""
    found = tuple(constraints)
    for booking in cluster.bookings.values():
        for each in found:
            each.take(booking.job, booking.placement, booking.start, booking.limit)
    cluster.constraints = found
    return ConstrainedPlacement(policy, cluster) if found else policy


def constraint(name: str, value: Any, cluster: Cluster) -> Constraint:
    """Return the constraint for a key with this value. Raises PolicyError."""
    if not CONSTRAINTS.knows(name):
        raise PolicyError(f"{name} is a constraint {MISSING}")
    make = CONSTRAINTS.find(name)
    if not (isinstance(make, type) and issubclass(make, Constraint)):
        raise PolicyError(f"constraint {name}: {make!r} is not a subclass of vrm.model.constraint.Constraint")
    if not make.__module__.startswith("vrm."):
        make = type(make.__name__, (make,), {each: guarded(name, getattr(make, each)) for each in _METHODS})
    made: Constraint = make(value, cluster)
    return made


class ConstrainedPlacement(PlacementWrapper):
    """A placement policy under constraints. Counting is never exact: free nodes alone do not decide whether a job
    fits."""

    def __init__(self, policy: CountingPolicy, cluster: Cluster) -> None:
        super().__init__(policy)
        self._nodes, self._licences = cluster.nodes, dict(cluster.all_licences)
        self._programs = cluster.programs
        self._constraints = tuple(each.copy() for each in cluster.constraints)
        self._alone: dict[Hashable, Placement | None] = {}

    def nodes(self, job: Job) -> int:
        """Return the nodes that the policy needs for a job. Raises Infeasible if a constraint can never allow it."""
        found = self.inner.nodes(job)
        for each in self._constraints:
            reason = each.never(job, self._where(job, each))
            if reason:
                raise Infeasible(reason)
        return found

    def _where(self, job: Job, constraint: Constraint) -> Placement | None:
        """Return the placement of a job on the empty machine, if a constraint depends on it."""
        if not constraint.depends(job):
            return None
        key = job.app, job.request
        if key not in self._alone:
            empty = Pool(self._nodes)
            empty.licences, empty.programs = dict(self._licences), self._programs  # already in base units
            self._alone[key] = self.inner.place(job, empty) or None
        return self._alone[key]

    def fits(self, job: Job, view: Pool) -> bool:
        """Return whether the job could start on the view, at its time."""
        if any(each.depends(job) for each in view.constraints):
            return bool(self.place(job, view))
        return self._allowed(job, None, view, job.walltime) and self.inner.fits(job, view)

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Return where the job would start on the view, at its time."""
        if self._allowed(job, None, view, job.walltime):
            placement = self.inner.place(job, view)
            if placement and self._allowed(job, placement, view, job.walltime):
                return placement
        return Insufficient(self._lacks, job, view)

    @staticmethod
    def _allowed(job: Job, placement: Placement | None, view: Pool, seconds: float) -> bool:
        return all(each.allows(job, placement, view.at, view.at + seconds) for each in view.constraints)

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """Return None: of two jobs, the larger may take less of something."""
        return None

    def exact(self, job: Job) -> bool:
        """Return False: see the class."""
        return False

    def _lacks(self, job: Job, view: Pool) -> str:
        """Return why the policy cannot place a job, otherwise the reason of the first constraint that does not allow
        it."""
        placement = self.inner.place(job, view)
        if not placement:
            return str(placement)
        begin, end = view.at, view.at + job.walltime
        for each in view.constraints:
            if not each.allows(job, placement, begin, end):
                return each.lacks(job, self._where(job, each), begin, end)
        return ""
