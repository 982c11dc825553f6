"""A cap on power, as a resource of whoever decides: a placement policy that starts a job only where
what it draws is left at every moment of its walltime.

As with advance reservations, the view has the time of which it is; so one code answers for a start now, a
shadow time and a plan. The cap holds as long as jobs draw what is known of them, and end by their
walltimes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from vrm.model.cluster import Cluster, Pool
from vrm.model.energy import Programs
from vrm.model.job import Infeasible, Job
from vrm.model.placement import Placement
from vrm.model.policies import PlacementPolicy
from vrm.model.power import Budget, Cap, added, idle_power
from vrm.scheduling.dispatcher import Dispatcher
from vrm.scheduling.registry import PolicyError
from vrm.scheduling.wrapping import Wrapped


def under_cap(policy: PlacementPolicy, cap: str, cluster: Cluster) -> PlacementPolicy:
    """The policy for a cluster with a cap (a text as of `Cap.of`; "": none); itself without one. The
    cluster gets its budget. Raises PolicyError for a cap that is
    none, or does not leave the nodes their idle power."""
    if not cap:
        cluster.budget = None
        return policy
    try:
        steps = Cap.of(cap)
    except ValueError as error:
        raise PolicyError(f"PowerCap: `{cap}`: {error}; give watts, as 5000, or steps of seconds and "
                          "watts, as `0=5000 28800=3000`") from None
    idle = idle_power(cluster.nodes)
    if steps.least < idle or not steps.least:
        raise PolicyError(f"PowerCap: {steps.least:g} W is less than the {idle:g} W that the "
                          f"{len(cluster.nodes)} nodes draw without a job; give more than that"
                          if idle else "PowerCap: 0 W leave nothing to run with; give more")
    budget = Budget(steps, idle)
    for booking in cluster.bookings.values():
        budget.take(booking.job.id, booking.limit,
                    added(booking.job, booking.placement, cluster.nodes, cluster.programs) or 0)
    cluster.budget = budget
    return UnderCap(policy, cluster, budget)


def check_energy(dispatcher: Dispatcher | None, cluster: Cluster, declared: Iterable[str] = ()) -> None:
    """Raise PolicyError where what was measured of programs is of other classes than the cluster has (or those
    that are `declared`, of nodes that may be elsewhere), or a dispatcher that goes by it has nothing to go by."""
    here = sorted({*declared, *(one.node.power.name for one in cluster.classes if one.node.power is not None)})
    programs = cluster.programs
    if programs and not programs.classes & set(here):
        there = ", ".join(sorted(programs.classes))
        raise PolicyError(
            f"Energy: the nodes are of the class(es) {', '.join(here)}, the database has {there}: correct "
            "Name in the Energy of the node classes, or measure there (vrm energy measure)" if here else
            f"Energy: no node has a class, the database has {there}: write Energy: {{Name: ...}} into the "
            "classes of the machine file, or into NodeClasses")
    if dispatcher is not None and dispatcher.by_energy and not programs:
        raise PolicyError(f"backfilling {dispatcher.name.split()[0]} goes by what was measured of programs: name the "
                          "database (Energy: {Database: FILE}, or --energy FILE; docs/how-to/energy.md)")


class UnderCap(Wrapped):
    """A placement policy under a cap. Counts do not say all of any job: it may be power that lacks."""

    def __init__(self, policy: PlacementPolicy, cluster: Cluster, budget: Budget) -> None:
        super().__init__(policy)
        self._nodes, self._most = cluster.nodes, budget.most()
        self._licences: dict[str, int] = dict(cluster.all_licences)
        self._programs: Programs = cluster.programs
        self._needs: dict[tuple[Hashable, ...], int | None] = {}

    def nodes(self, job: Job) -> int:
        """As the policy says; Infeasible where what the job draws is not known, or is never left."""
        found = self.inner.nodes(job)
        need = self._need(job)
        if need is None:
            raise Infeasible(f"PowerCap: what {job.app} draws is not known; say watts=N in its line, "
                             "or Busy: N in the Energy of the node classes, or measure it (vrm energy "
                             "measure)")
        if need > self._most:
            raise Infeasible(f"PowerCap: it draws {need / 1000:g} W above idle nodes, at most "
                             f"{self._most / 1000:g} W are ever left for jobs")
        return found

    def _need(self, job: Job) -> int | None:
        """Milliwatts that the job adds on the empty machine."""
        if job.watts:
            return max(0, round(job.watts * 1000))
        key = job.app, job.request
        if key not in self._needs:
            empty = Pool(self._nodes)
            empty.licences = dict(self._licences)  # base units already
            placement = self.inner.place(job, empty)
            self._needs[key] = None if placement is None else added(job, placement, self._nodes,
                                                                     self._programs)
        return self._needs[key]

    def _left(self, job: Job, view: Pool) -> int:
        budget = view.budget
        return self._most if budget is None else budget.room(view.at, view.at + job.walltime)

    def fits(self, job: Job, view: Pool) -> bool:
        """Whether the job could start on the view, at its time."""
        if job.watts:
            return job.watts * 1000 <= self._left(job, view) and self.inner.fits(job, view)
        return self.place(job, view) is not None

    def place(self, job: Job, view: Pool) -> Placement | None:
        """Where the job would start on the view, at its time."""
        left = self._left(job, view)
        if left <= 0 or job.watts * 1000 > left:
            return None
        placement = self.inner.place(job, view)
        if placement is None or (added(job, placement, view.nodes, view.programs) or 0) > left:
            return None
        return placement

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """Nothing is promised: of two jobs the larger may draw less."""
        return None

    def exact(self, job: Job) -> bool:
        """No: see above."""
        return False

    def lacks(self, job: Job, view: Pool) -> str:
        """As the policy says, or how much power is left."""
        if not self.inner.fits(job, view):
            return self.inner.lacks(job, view)
        need, left = self._need(job), self._left(job, view)
        return f"draws {(need or 0) / 1000:g} W, {max(0, left) / 1000:g} W are left under PowerCap"
