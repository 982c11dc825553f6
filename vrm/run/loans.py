"""The lends of a run: which cores running jobs lend to which jobs, and how far the nodes have carried this out.

A lend has these steps. First it is intended: the lender's ranks must leave the cores. Then it is in force: all its
nodes have confirmed that the cores are clear, and the borrower may start. Then it is taken back: the borrower has
left. It is over when all nodes have confirmed that the lender has its cores again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from collections.abc import Callable, Iterable, Mapping

from vrm.model.cluster import Cluster
from vrm.model.sharing import core_share
from vrm.model.sharing.core_share import NOBODY, Loan, LentCores
from vrm.model.placement import Lease, Placement

Room = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Where a lender ran: the record of its start, and the record of the manager at that time."""

LENDING, LENT, REGAINING = "lend", "lent", "regain"


class NumberedLoan(NamedTuple):
    """A loan with its number in the run and its phase."""

    number: int
    loan: Loan
    phase: str = LENDING

    @property
    def lender(self) -> int:
        """Id of the job that lends."""
        return self.loan.lender

    @property
    def borrower(self) -> int:
        """Id of the job that borrows, or NOBODY."""
        return self.loan.borrower


class LoanTable:
    """The lends of a run by number (`all`). `epochs` counts the orders about the cores of each lender; only the last
    order is valid. `grown`: for each job the cores that it got from ended lenders, as (time, all these cores, cores
    of each rank). `shares`: for each job that has lent cores, when its lent cores changed and which it lends from
    then on. For jobs in `moved` these two use the core numbers of other nodes than those they started on."""

    def __init__(self) -> None:
        self.moved: set[int] = set()
        self.shares: dict[int, list[LentCores]] = {}
        self._mates: dict[int, set[int]] = {}
        self.all: dict[int, NumberedLoan] = {}
        self.next = 1
        self.epochs: dict[int, int] = {}
        self.grown: dict[int, list[tuple[float, int, int]]] = {}

    def copy(self) -> LoanTable:
        """Return an independent copy."""
        twin = LoanTable()
        twin.all, twin.next, twin.epochs = dict(self.all), self.next, dict(self.epochs)
        twin.grown = {job_id: list(grown) for job_id, grown in self.grown.items()}
        twin.shares = {job_id: list(shares) for job_id, shares in self.shares.items()}
        twin._mates = {job_id: set(mates) for job_id, mates in self._mates.items()}
        twin.moved = set(self.moved)
        return twin

    def move(self, there: Callable[[int], int], jobs: Iterable[int]) -> None:
        """Renumber the cores by `there`, which maps a set of cores to its new numbers: in all lends, and in the
        `shares` and `grown` of these running `jobs`."""
        self.all = {number: each._replace(loan=each.loan._replace(cores=there(each.loan.cores)))
                    for number, each in self.all.items()}
        for job_id in jobs:
            if job_id in self.shares:
                self.shares[job_id] = [each._replace(lent=there(each.lent)) for each in self.shares[job_id]]
                self.moved.add(job_id)
            if job_id in self.grown:
                self.grown[job_id] = [(time, there(cores), width) for time, cores, width in self.grown[job_id]]
                self.moved.add(job_id)

    def add(self, loan: Loan, number: int = 0) -> NumberedLoan:
        """Add an intended loan; without `number` it gets the next one."""
        found = NumberedLoan(number or self.next, loan)
        self.all[found.number] = found
        self.next = max(self.next, found.number + 1)
        self.epochs[loan.lender] = self.epochs.get(loan.lender, 0) + 1
        self._note(loan.lender, loan.since)
        return found

    def grow(self, job_id: int, cores: int, width: int, now: float) -> None:
        """Record that a job owns these cores from now on, `width` for each rank."""
        self.grown.setdefault(job_id, []).append((now, cores, width))
        self.epochs[job_id] = self.epochs.get(job_id, 0) + 1

    def change(self, number: int, phase: str, now: float) -> NumberedLoan:
        """Set the phase of a lend from now on."""
        found = self.all[number] = self.all[number]._replace(phase=phase)
        if phase == REGAINING:
            self.epochs[found.lender] += 1
            self._note(found.lender, now)
        elif phase == LENT and found.borrower != NOBODY:
            for one, other in ((found.lender, found.borrower), (found.borrower, found.lender)):
                self._mates.setdefault(one, set()).add(other)
        return found

    def _note(self, lender: int, now: float) -> None:
        self.shares.setdefault(lender, []).append(LentCores(now, self.plan(lender)))

    def mates_of(self, job_id: int) -> tuple[int, ...]:
        """Return the jobs with which a job has shared cores in its last run."""
        return tuple(sorted(self._mates.get(job_id, ())))

    def begins(self, job_id: int) -> None:
        """Record that a job starts (again): drop what it lent in an earlier run."""
        if not (self.shares or self.grown or self._mates or self.all):
            return
        self.shares.pop(job_id, None)
        self.grown.pop(job_id, None)
        self.moved.discard(job_id)
        self._mates[job_id] = {each.lender for each in self.of_borrower(job_id)}
        if not self._mates[job_id]:
            del self._mates[job_id]

    def forget(self, lender: int) -> None:
        """Remove the lends of a lender that has ended: its borrowers own these cores now."""
        if not self.all:
            return
        for number in [each.number for each in self.all.values() if each.lender == lender]:
            del self.all[number]

    def of_borrower(self, job_id: int) -> list[NumberedLoan]:
        """Return the lends to a job, in force or intended, without those that are being taken back."""
        return [each for each in self.all.values() if each.borrower == job_id and each.phase != REGAINING]

    def of_lender(self, job_id: int) -> list[NumberedLoan]:
        """Return the lends of a job in any phase."""
        return [each for each in self.all.values() if each.lender == job_id]

    def plan(self, job_id: int) -> int:
        """Return the cores (bit mask) that a job has lent and must not use."""
        cores = 0
        for each in self.of_lender(job_id):
            cores |= each.loan.cores if each.phase != REGAINING else 0
        return cores

    def settled(self, placement: Placement, job_id: int) -> Placement:
        """Return the present placement of a started job: with the cores that it has got since its start, and borrowed
        cores only of lenders that still lend."""
        if placement.lease is None:
            return placement
        lenders = {each.lender for each in self.of_borrower(job_id)}
        twin = placement.but(lease=Lease(tuple(each for each in placement.lent if each[0] in lenders)))
        for now, cores, width in self.grown.get(job_id, ()):
            twin = core_share.grow(twin, cores, width, now)
        return twin

    def left(self, cluster: Cluster, started: Mapping[int, Placement],
             rooms: Mapping[tuple[int, int], Room]) -> list[tuple[Room, list[Loan]]]:
        """Return what ended lenders left to jobs on the cluster: for each lender its start and manager records and
        its loans. `started`: placements of the borrowing jobs at their starts; `rooms`: these records by lender and
        borrower."""
        found: dict[tuple[int, float], tuple[Room, list[Loan]]] = {}
        for job_id, placement in started.items():
            booking = cluster.bookings.get(job_id)
            if booking is None:
                continue
            for lender, cores in placement.lent:
                room = rooms.get((lender, job_id))
                if room is not None and lender not in dict(booking.placement.lent):
                    found.setdefault((lender, room[0]["time"]), (room, []))[1].append(
                        Loan(lender, job_id, cores, booking.start, booking.expected_end))
        return list(found.values())

    def apply_node_loans(self, cluster: Cluster) -> None:
        """Apply to the cluster the loans that have no borrower (cores lent to the node)."""
        for each in self.all.values():
            if (each.borrower == NOBODY and each.phase != REGAINING
                    and each.lender in cluster.bookings):
                cluster.loans.lend(cluster, each.loan)


def record(found: NumberedLoan) -> dict[str, Any]:
    """Return a lend as values of a journal record."""
    loan = found.loan
    return {"number": found.number, "id": loan.lender,
            "to": None if loan.borrower == NOBODY else loan.borrower, "cores": hex(loan.cores),
            "time": loan.since, "until": None if loan.until == math.inf else loan.until}


def of_record(values: Mapping[str, Any]) -> Loan:
    """Return the loan of a journal record."""
    until = values["until"]
    return Loan(values["id"], NOBODY if values["to"] is None else values["to"],
                int(values["cores"], 16), values["time"], math.inf if until is None else until)
