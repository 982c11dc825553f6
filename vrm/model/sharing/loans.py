"""Running jobs that lend cores, and the effect on the bookings of a cluster.

The lender keeps the capacity that it holds: a borrower runs on the lender's cores and takes none of its own, so
policies count free cores as without loans. Expected times change: the lender is slower while it lends (see
`vrm.model.sharing.core_share.rate`, the worst case), so its end and the end of its walltime move by what it loses, and
a borrower with fewer cores than it requested takes longer. A job that lends all its cores is paused. When a lender
ends first, its borrowers take over what it held on their nodes. If a borrower is expected to end after its lender,
`Booking.until` says how long the lender's capacity is taken.
"""

from __future__ import annotations

import math
from typing import Any, Protocol
from collections.abc import Iterable, Sequence

from vrm.model import bits
from vrm.model.sharing import core_share
from vrm.model.booking import Booking
from vrm.model.sharing.core_share import NOBODY, EqualNodes, Loan, LentCores
from vrm.model.node import Node
from vrm.model.placement import CoreLayout, Placement


class LoanCluster(Protocol):
    """The part of a cluster that loans read and change."""

    nodes: Sequence[Node]
    layout: CoreLayout
    busy0: int
    busy1: int
    busy_cores: int
    bookings: dict[int, Booking]

    def reshape(self, job_id: int, **changes: Any) -> Booking: ...


class Loans:
    """The loans of a cluster, in the order in which they were made; false if there are no loans, `borrowing_jobs` or
    `refusing_lenders` jobs.

    `borrowing_jobs` are the running jobs that started on borrowed cores. `refusing_lenders` are running jobs that did
    not leave cores which they were to lend: they are not asked again.
    """

    def __init__(self, loans: Sequence[Loan] = (), borrowing_jobs: Iterable[int] = ()) -> None:
        self.all: list[Loan] = list(loans)
        self.borrowing_jobs: set[int] = set(borrowing_jobs)
        self.refusing_lenders: set[int] = set()
        self.changes = 0  # number of changes of the cores in use, other than plain starts and ends
        self._ranks: dict[int, list[EqualNodes]] = {}
        self._rates: dict[tuple[int, bool], tuple[int, float]] = {}  # last rates, with what was lent

    def __bool__(self) -> bool:
        return bool(self.all or self.borrowing_jobs or self.refusing_lenders)

    def copy(self) -> Loans:
        """Return an independent copy."""
        twin = Loans(self.all, self.borrowing_jobs)
        twin.refusing_lenders = set(self.refusing_lenders)
        return twin

    def of_lender(self, job_id: int) -> list[Loan]:
        """Return the loans that a job has made."""
        return [loan for loan in self.all if loan.lender == job_id]

    def of_borrower(self, job_id: int) -> list[Loan]:
        """Return the loans that a job has received."""
        return [loan for loan in self.all if loan.borrower == job_id]

    def lent(self, job_id: int) -> int:
        """Return the cores that a job has lent."""
        return core_share.lent_cores(self.of_lender(job_id))

    def stopped(self, cluster: LoanCluster, booking: Booking, lent: int) -> bool:
        """Return whether a running job that has lent these cores has none left, and is therefore paused."""
        return bool(lent) and booking.placement.lease is None and lent == core_share.held(
            self.ranks(cluster, booking), cluster.layout)

    def cores(self, cluster: LoanCluster) -> int:
        """Return the number of lent cores."""
        return sum(bits.count(loan.cores) for loan in self.all
                   if cluster.bookings[loan.lender].placement.lease is None)

    def ranks(self, cluster: LoanCluster, booking: Booking) -> list[EqualNodes]:
        """Return the ranks of a running job, equal nodes grouped, with their cores when none is lent."""
        found = self._ranks.get(booking.job.id)
        if found is None:
            found = core_share.alike(booking.placement, cluster.nodes, cluster.layout)
            self._ranks[booking.job.id] = found
        return found

    def rate(self, cluster: LoanCluster, booking: Booking, ideal: bool = False) -> float:
        """Return the speed of a running job with the cores that it has now (see `core_share.rate`)."""
        placement = booking.placement
        if placement.lease is not None:
            cores = booking.job.cores
            alone = ideal and not self.of_lender(booking.job.id)  # otherwise other jobs run on what it holds
            return (core_share.mean_width(placement, cluster.nodes, cores) if alone else placement.width) / cores
        return self.rate_without(cluster, booking, self.lent(booking.job.id) if self.all else 0, ideal)

    def rate_without(self, cluster: LoanCluster, booking: Booking, lent: int, ideal: bool = False) -> float:
        """Return the speed of a running job without its cores `lent`."""
        if not lent:
            return 1.0
        key = booking.job.id, ideal
        known = self._rates.get(key)
        if known is None or known[0] != lent:
            known = self._rates[key] = lent, core_share.rate(
                self.ranks(cluster, booking), lent, cluster.layout, booking.placement.width, ideal)
        return known[1]

    def forget(self, job_id: int) -> None:
        """Drop the cached ranks and rates of a job that has left its cores or has got others."""
        self._ranks.pop(job_id, None)
        self._rates.pop((job_id, False), None)
        self._rates.pop((job_id, True), None)

    def lost(self, cluster: LoanCluster, booking: Booking, now: float) -> float:
        """Return the seconds that a running job has lost by `now`, because it had fewer cores than it requested (the
        worst case)."""
        placement = booking.placement
        if placement.lease is not None:
            return sum((until - since) * (1 - then.width / booking.job.cores)
                       for since, until, then in core_share.periods(placement, booking.start, now))
        lost = 0.0
        for at, (since, lent) in enumerate(booking.shares):
            until = booking.shares[at + 1].since if at + 1 < len(booking.shares) else now
            lost += (until - since) * (1 - self.rate_without(cluster, booking, lent))
        return lost

    def recall(self, cluster: LoanCluster, job_id: int, shares: Iterable[LentCores], now: float) -> None:
        """Restore the lending history `shares` of a running job, whose booking only has what it still lends: its ends
        move by the time that it lost before."""
        booking = cluster.bookings.get(job_id)
        if booking is None or booking.placement.lease is not None:
            return
        whole = booking._replace(shares=tuple(shares))
        more = self.lost(cluster, whole, now) - self.lost(cluster, booking, now)
        cluster.reshape(job_id, shares=whole.shares, expected_end=booking.expected_end + more,
                        extra=booking.extra + more)

    # Called by the cluster.

    def lend(self, cluster: LoanCluster, loan: Loan, stops: bool = False) -> None:
        """Let a running job lend cores. With `stops`, it may lend all of them, and is paused meanwhile. Raises
        ValueError, with the reason, if it cannot."""
        booking = cluster.bookings[loan.lender]
        if booking.placement.lease is not None:
            raise ValueError(f"job {loan.lender} runs on borrowed cores, and lends none")
        held = core_share.held(self.ranks(cluster, booking), cluster.layout)
        lent = self.lent(loan.lender)
        if not loan.cores or loan.cores & ~held or loan.cores & lent:
            raise ValueError(f"job {loan.lender} does not have the cores that it is to lend")
        if not (stops and loan.cores == held) and not self.rate_without(cluster, booking, lent | loan.cores):
            raise ValueError(f"job {loan.lender} would keep a rank without a core")
        self._change(cluster, booking, loan.since, [*self.of_lender(loan.lender), loan])
        self.all.append(loan)
        self.changes += 1

    def regain(self, cluster: LoanCluster, loan: Loan, now: float) -> None:
        """End a loan: the lender has its cores again."""
        self.all.remove(loan)
        self.changes += 1
        booking = cluster.bookings[loan.lender]
        before = [*self.of_lender(loan.lender), loan]
        self._change(cluster, booking, now, self.of_lender(loan.lender), before)
        if not self.of_lender(loan.lender):
            self.forget(loan.lender)

    def extend_loans(self, cluster: LoanCluster, borrower: int, now: float, until: float) -> None:
        """Change the time at which a borrower is expected to end."""
        for loan in self.of_borrower(borrower):
            before = self.of_lender(loan.lender)
            self.all[self.all.index(loan)] = loan._replace(until=until)
            if loan.lender in cluster.bookings:
                self._change(cluster, cluster.bookings[loan.lender], now,
                             self.of_lender(loan.lender), before, same=True)

    def ended(self, cluster: LoanCluster, booking: Booking) -> bool:
        """Pass what an ended job held to the jobs that borrowed its cores there. Returns whether it had lent any
        cores. If several borrowers are on one node, the one that is expected to run longest gets it, and lends to the
        others."""
        job_id = booking.job.id
        self.forget(job_id)
        self.refusing_lenders.discard(job_id)
        if job_id in self.borrowing_jobs:
            self.borrowing_jobs.remove(job_id)
            self.changes += 1
        mine = self.of_lender(job_id)
        if not mine:
            return False
        self.changes += 1
        self.all = [loan for loan in self.all if loan.lender != job_id]
        self.pass_to_borrowers(cluster, booking.placement, [loan for loan in mine if loan.borrower in cluster.bookings])
        return True

    def pass_to_borrowers(self, cluster: LoanCluster, left_by: Placement, mine: Iterable[Loan]) -> None:
        """Give the borrowers of these loans what the lender held on their nodes (`left_by`), longest expected loan
        first."""
        mine = sorted(mine, key=lambda loan: (-loan.until, loan.borrower))
        left = left_by.node_set
        heirs: list[int] = []
        for loan in mine:
            heir = cluster.bookings[loan.borrower]
            placement = heir.placement
            here = placement.node_set & left
            left &= ~here
            if here:
                on = here, here, left_by.room[2] and cluster.layout.cores_of(here)
                layout, whole = cluster.layout, cluster.busy0 | cluster.busy1
                crowded = cluster.busy_cores and layout.nodes_of(cluster.busy_cores)
                taken = (cluster.busy0 | crowded, cluster.busy1 | crowded,  # by other jobs, possible after a restart
                         cluster.busy_cores | (whole and layout.cores_of(whole)))
                lane0, lane1, cores = (mine | more & chosen & ~others for mine, more, chosen, others in zip(
                    placement.room, left_by.room, on, taken))
                own = placement.but(room=(lane0, lane1, cores))
                cluster.busy0, cluster.busy1 = cluster.busy0 | lane0, cluster.busy1 | lane1
                cluster.busy_cores |= cores
                cluster.reshape(loan.borrower, placement=own)
            for other in heirs:
                if cluster.bookings[other].placement.node_set & placement.node_set:
                    self.all.append(loan._replace(lender=other))
                    until = max(cluster.bookings[other].until, loan.until)
                    cluster.reshape(other, until=until)
            heirs.append(loan.borrower)

    def growable_jobs(self, cluster: LoanCluster, now: float, among: set[int] | None = None
                      ) -> list[tuple[int, Placement]]:
        """Return the running jobs that can use more cores than they run on, up to their request, each with its wider
        placement: their lenders have all ended, and they lend to no job. With `among`, consider only these jobs."""
        found: list[tuple[int, Placement]] = []
        for job_id in sorted(self.borrowing_jobs if among is None else self.borrowing_jobs & among):
            booking = cluster.bookings[job_id]
            placement = booking.placement
            if placement.width < booking.job.cores and not self.of_borrower(job_id) and not self.of_lender(job_id):
                wide = core_share.wider(placement, cluster.nodes, booking.job.cores, now)
                if wide is not None:
                    found.append((job_id, wide))
        return found

    def borrowers_of(self, cluster: LoanCluster, lender: int) -> set[int]:
        """Return the running jobs that started on cores of `lender`, which may have ended."""
        return {job_id for job_id in self.borrowing_jobs if lender in dict(cluster.bookings[job_id].placement.lent)}

    def grow(self, cluster: LoanCluster, job_id: int, wide: Placement, now: float) -> None:
        """Give a job more cores from `now` on: the rest of its run takes less time."""
        booking = cluster.bookings[job_id]
        self.changes += 1
        self.forget(job_id)
        slower = booking.placement.width / wide.width
        end, limit = (now + (each - now) * slower if each > now else each
                      for each in (booking.expected_end, booking.limit))
        cluster.reshape(job_id, placement=wide, expected_end=end,
                        extra=limit - booking.start - booking.job.walltime)

    def _change(self, cluster: LoanCluster, booking: Booking, now: float, after: list[Loan],
                before: list[Loan] | None = None, same: bool = False) -> None:
        """Recompute the expected ends of a lender whose loans change at `now`. With `same`, the loans are the same,
        but their expected ends change."""
        ends = self._ends(cluster, booking, now, after, self.of_lender(booking.job.id) if before is None else before)
        shares = booking.shares
        if not same:
            shares = (*shares, LentCores(now, core_share.lent_cores(after)))
        until = max((loan.until for loan in after if loan.borrower != NOBODY), default=0.0)
        cluster.reshape(booking.job.id, expected_end=ends[0], shares=shares, until=until,
                        extra=ends[1] - booking.start - booking.job.walltime)

    def limit(self, cluster: LoanCluster, loan: Loan) -> float:
        """Return the end of the walltime of a running job if it made this loan, too."""
        booking, mine = cluster.bookings[loan.lender], self.of_lender(loan.lender)
        return self._ends(cluster, booking, loan.since, [*mine, loan], mine)[1]

    def _ends(self, cluster: LoanCluster, booking: Booking, now: float, after: list[Loan],
              before: list[Loan]) -> list[float]:
        """Return the expected end of a lender, and the end of its walltime, if its loans change at `now`."""
        was = self._plan(cluster, booking, now, before, foreseen=True)
        really = self._plan(cluster, booking, now, before)
        will = self._plan(cluster, booking, now, after)
        since = booking.shares[-1].since if booking.shares else booking.start
        # The time that loans which last longer than expected have cost so far.
        lost = core_share.work(was, since, now) - core_share.work(really, since, now)
        ends = []
        for end in (booking.expected_end, booking.limit):
            left = lost + (core_share.work(was, now, end) if end > now else -core_share.work(was, end, now))
            ends.append(core_share.finish(will, now, left) if left > 0 else end)
        return ends

    def _plan(self, cluster: LoanCluster, booking: Booking, now: float, loans: list[Loan],
              foreseen: bool = False) -> list[tuple[float, float]]:
        """Return the speeds of a lender from its last change on: slower until its loans are expected to end, or until
        `now` for loans that last longer than that; with `foreseen`, as if they had ended in time."""
        since = booking.shares[-1].since if booking.shares else booking.start
        left = sorted(loans, key=lambda loan: loan.until)
        plan: list[tuple[float, float]] = []
        while True:
            speed = self.rate_without(cluster, booking, core_share.lent_cores(left))
            if plan and plan[-1][0] == since:
                plan.pop()
            plan.append((since, speed))
            if not left or left[0].until == math.inf:
                return plan
            until = left.pop(0).until
            since = max(since, until if foreseen else max(until, now))
