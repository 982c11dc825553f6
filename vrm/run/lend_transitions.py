"""Running jobs lend cores and take them back: the transitions of a run's `vrm.run.lending.Lends`."""

from __future__ import annotations

from typing import Any
from collections.abc import Callable

from vrm.model.cluster import Cluster
from vrm.model.sharing.core_share import Loan
from vrm.model.placement import Placement
from vrm.run.lending import LENT, REGAINING, Lend, Lends, record


class LendTransitions:
    """What changes the `lends` of a run, each with its event; those in force are on the `cluster`."""

    def __init__(self, lends: Lends, cluster: Cluster, log: Callable[..., None]) -> None:
        self.lends, self.cluster, self.log = lends, cluster, log

    def lend(self, loan: Loan, *, number: int = 0, **origin: Any) -> Lend:
        """A running job is about to lend cores. ValueError, with the reason, where it cannot."""
        if self._there(loan) is None and loan.lender in self.cluster.bookings:
            self.cluster.loans.lend(self.cluster, loan)
        found = self.lends.add(loan, number)
        self.log("lend", **record(found), **origin)
        return found

    def lent(self, number: int, now: float) -> None:
        """The nodes of the lender are clear of it: the cores are the borrower's."""
        found = self.lends.change(number, LENT, now)
        self.log("lent", number=number, id=found.lender, time=now)

    def regain(self, number: int, now: float, reason: str = "", **origin: Any) -> Lend:
        """A lender takes its cores back. The borrower may have started again on the same ones: it keeps them."""
        found = self.lends.change(number, REGAINING, now)
        if not any(each.loan[:3] == found.loan[:3] and each.phase != REGAINING for each in self.lends.all.values()):
            self._give_back(found.loan, now)
        self.log("regain", number=number, id=found.lender, reason=reason, time=now, **origin)
        return found

    def regained(self, number: int, now: float) -> None:
        """A lender has its cores again, on all nodes."""
        found = self.lends.all.pop(number)
        self.log("regained", number=number, id=found.lender, time=now)

    def grow(self, job_id: int, wide: Placement, now: float) -> None:
        """A running job has these cores from now on, of lenders that have ended."""
        self.cluster.loans.grow(self.cluster, job_id, wide, now)
        self.lends.grow(job_id, wide.taken, wide.width, now)
        self.log("grown", id=job_id, cores=hex(wide.taken), width=wide.width, time=now)

    def returned(self, borrower: int, now: float) -> None:
        """A job has left the cores that it had borrowed, in a simulation: their lenders have them."""
        for each in self.lends.of_borrower(borrower):
            self.regain(each.number, now)
            self.regained(each.number, now)
        for loan in self.cluster.loans.of_borrower(borrower):
            self._give_back(loan, now)

    def _give_back(self, loan: Loan, now: float) -> None:
        there = self._there(loan)
        if there is not None and loan.lender in self.cluster.bookings:
            self.cluster.loans.regain(self.cluster, there, now)

    def _there(self, loan: Loan) -> Loan | None:
        """The same loan on the cluster, of which something else may be expected by now."""
        return next((each for each in self.cluster.loans.all if each[:3] == loan[:3]), None)
