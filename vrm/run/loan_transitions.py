"""Transitions of `vrm.run.loans.LoanTable`: running jobs lend cores and get them back."""

from __future__ import annotations

from typing import Any
from collections.abc import Callable

from vrm.model.cluster import Cluster
from vrm.model.sharing.core_share import Loan
from vrm.model.placement import Placement
from vrm.run.loans import LENT, REGAINING, NumberedLoan, LoanTable, record


class LoanTransitions:
    """Changes the `lends` of a run and logs an event for each change; lends in force are also on the `cluster`."""

    def __init__(self, lends: LoanTable, cluster: Cluster, log: Callable[..., None]) -> None:
        self.lends, self.cluster, self.log = lends, cluster, log

    def lend(self, loan: Loan, *, number: int = 0, **origin: Any) -> NumberedLoan:
        """Record that a running job is about to lend cores. Raises ValueError, with the reason, if it cannot."""
        if self._there(loan) is None and loan.lender in self.cluster.bookings:
            self.cluster.loans.lend(self.cluster, loan)
        found = self.lends.add(loan, number)
        self.log("lend", **record(found), **origin)
        return found

    def lent(self, number: int, now: float) -> None:
        """Record that all nodes of the lender are clear: the borrower may use the cores."""
        found = self.lends.change(number, LENT, now)
        self.log("lent", number=number, id=found.lender, time=now)

    def regain(self, number: int, now: float, reason: str = "", **origin: Any) -> NumberedLoan:
        """Record that a lender gets its cores back. If the borrower has started again on the same cores, it keeps
        them."""
        found = self.lends.change(number, REGAINING, now)
        if not any(each.loan[:3] == found.loan[:3] and each.phase != REGAINING for each in self.lends.all.values()):
            self._give_back(found.loan, now)
        self.log("regain", number=number, id=found.lender, reason=reason, time=now, **origin)
        return found

    def regained(self, number: int, now: float) -> None:
        """Record that a lender has its cores again, on all nodes."""
        found = self.lends.all.pop(number)
        self.log("regained", number=number, id=found.lender, time=now)

    def grow(self, job_id: int, wide: Placement, now: float) -> None:
        """Record that a running job owns these cores from now on, after their lenders have ended."""
        self.cluster.loans.grow(self.cluster, job_id, wide, now)
        self.lends.grow(job_id, wide.taken, wide.width, now)
        self.log("grown", id=job_id, cores=hex(wide.taken), width=wide.width, time=now)

    def returned(self, borrower: int, now: float) -> None:
        """Return all cores that a job had borrowed to their lenders at once; for simulations."""
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
        """Return the same loan on the cluster, whose expected end may have changed; None if there is none."""
        return next((each for each in self.cluster.loans.all if each[:3] == loan[:3]), None)
