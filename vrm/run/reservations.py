"""Create, check and cancel advance reservations: which nodes, for which jobs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from collections.abc import Callable, Sequence

from vrm.model import Cluster, Job, JobState, bits
from vrm.model.forms.field_types import name_sound
from vrm.model.job import Infeasible
from vrm.model.reservation import LATEST, Calendar, Reservation, ReservationError, Span, ReservationRequest
from vrm.run.job_book import JobBook
from vrm.system.printing.local_times import local_time_text

Log = Callable[..., None]
"""Logs an event: its name, and its values by name."""

EPOCH = 1e9
"""Times from here on (seconds) are wall-clock times and are printed as dates."""


def when(moment: float) -> str:
    """Return a time as text: a date for wall-clock times, seconds for simulated times."""
    if not EPOCH <= moment < 1e11:
        return f"{moment:g} s"
    return local_time_text(moment, "%Y-%m-%d %H:%M:%S")


class Reservations(dict[int, Reservation]):
    """The advance reservations of a run by id. `book` has its jobs, and its queue knows which job is bound to which
    reservation. The `cluster` gets a new calendar at each change. `promises` are the promised start times of the run;
    bound jobs have none."""

    def __init__(self, book: JobBook, cluster: Cluster, promises: dict[int, float], log: Log) -> None:
        super().__init__()
        self.book, self.cluster, self.promises, self.log = book, cluster, promises, log
        self.next_id = 1

    def take_over(self, others: Reservations) -> None:
        """Copy the reservations of another run; the cluster's calendar does not change."""
        self.update(others)
        self.next_id = others.next_id

    def named(self, what: str) -> Reservation:
        """Return the reservation of that name or id. Raises ReservationError if there is none."""
        for each in self.values():
            if what in (each.name, str(each.id)):
                return each
        there = ", ".join(each.name for each in self.values())
        raise ReservationError(f"there is no reservation {what}; "
                               + (f"there {'are' if len(self) > 1 else 'is'} {there}" if there
                                  else "none is made (`vrm reserve` makes one)"))

    def of_job(self, job_id: int) -> Reservation | None:
        """Return the reservation to which a job is bound, or None."""
        return self.get(self.book.queue.bound.get(job_id, -1))

    def reserve(self, wanted: ReservationRequest, now: float, foreseen: bool = False, **origin: Any
                ) -> Reservation:
        """Create a reservation. Raises ReservationError, with the reason, if it is not possible. `foreseen`: it may
        name jobs that are not submitted yet."""
        found, jobs = self._made(wanted, now, foreseen)
        ids = wanted.jobs if foreseen else tuple(job.id for job in jobs)
        self.log("reserve", reservation=found.id, name=found.name, nodes_reserved=list(found.nodes),
                 begin=found.begin, end=found.end, jobs_bound=list(ids), time=now, **origin)
        self.add(found, ids)
        return found

    def cancel(self, reservation_id: int, now: float, reason: str, **origin: Any) -> list[int]:
        """Remove a reservation that has ended or is cancelled. Return its jobs; those that wait are scheduled
        normally again."""
        del self[reservation_id]
        jobs = [job_id for job_id, bound in self.book.queue.bound.items() if bound == reservation_id]
        for job_id in jobs:
            self.book.queue.bind(job_id, None)
        self.show()
        self.log("unreserve", reservation=reservation_id, reason=reason, time=now, **origin)
        return jobs

    def pass_time(self, now: float) -> bool:
        """Open reservations that have begun and remove those that have ended; return whether anything changed."""
        before = self.cluster.calendar
        for over in self._open(now):
            self.cancel(over, now, "ended")
        return self.cluster.calendar is not before

    def add(self, reservation: Reservation, jobs: Sequence[int]) -> None:
        """Add a reservation and bind these jobs to it."""
        self[reservation.id] = reservation
        self.next_id = max(self.next_id, reservation.id + 1)
        for job_id in jobs:
            self.book.queue.bind(job_id, reservation.id)
            self.promises.pop(job_id, None)
        self.show()

    def _open(self, now: float) -> list[int]:
        """Open the reservations that have begun; return the ids of those that have ended."""
        queue = self.book.queue
        for each in list(self.values()):
            if each.begin <= now < min(each.end, each.opened):
                late = any(queue.bound.get(job_id) == each.id and job.submit <= each.begin
                           for job_id, job in queue.outside.items())
                self[each.id] = replace(each, opened=now if late else each.begin)
                self.show()
        return [each.id for each in self.values() if each.end <= now]

    def show(self) -> None:
        """Update the cluster's calendar; nodes that the cluster does not have are left out."""
        numbers = {node.name: number for number, node in enumerate(self.cluster.nodes)}
        self.cluster.set_calendar(Calendar(
            Span(each, sum(1 << numbers[name] for name in each.nodes if name in numbers)) for each in self.values()))

    def _made(self, wanted: ReservationRequest, now: float, foreseen: bool = False) -> tuple[Reservation, list[Job]]:
        """Return the requested reservation, and the jobs that it is for. Raises ReservationError with the reason if
        it is not possible. `foreseen`: it may name jobs that are not submitted yet."""
        cluster = self.cluster
        begin = wanted.begin
        if begin == -math.inf or now - LATEST <= begin < now:  # the command was under way
            begin = now
        if not math.isfinite(begin) or not math.isfinite(wanted.end) or not begin < wanted.end:
            raise ReservationError(f"a reservation ends after it begins, and this one would begin at "
                                   f"{when(begin)} and end at {when(wanted.end)}")
        if begin < now:
            raise ReservationError(f"the begin, {when(begin)}, is in the past: it is {when(now)}; give "
                                   "a later one, or none to begin at once")
        name = wanted.name or f"r{self.next_id}"
        if not name_sound(name):
            raise ReservationError(f"`{name}` is not a name: give a letter and then at most 63 letters, "
                                   "digits, `_`, `.` and `-`")
        if any(each.name == name for each in self.values()):
            raise ReservationError(f"there is a reservation {name} already; give another name, or "
                                   f"cancel that one (`vrm reserve --cancel {name}`)")
        nodes = _named_nodes(wanted, cluster, begin, now) if wanted.nodes else _chosen(
            wanted, cluster, begin, now)
        found = Reservation(self.next_id, name, tuple(cluster.nodes[node].name for node in nodes), begin,
                            wanted.end)
        return found, [job for job in (self._job(job_id, found, now, foreseen)
                                       for job_id in dict.fromkeys(wanted.jobs)) if job is not None]

    def _job(self, job_id: int, reservation: Reservation, now: float, foreseen: bool) -> Job | None:
        """Return a job to be bound; None for a job that is not submitted yet, if `foreseen` allows it."""
        queue = self.book.queue
        entry = self.book.entries.get(job_id)
        job = (entry.job if entry is not None else
               queue.get(job_id) if job_id in queue else None)
        if job is None:
            if foreseen:
                return None
            raise ReservationError(f"there is no job {job_id}")
        if entry is not None and entry.state is not JobState.QUEUED:
            raise ReservationError(f"job {job_id} does not wait: it is {entry.state.value}")
        bound = queue.bound.get(job_id)
        if bound is not None:
            raise ReservationError(f"job {job_id} is bound to reservation "
                                   f"{self[bound].name} already")
        why = self.unfit(job, reservation, now)
        if why:
            raise ReservationError(why)
        return job

    def unfit(self, job: Job, reservation: Reservation, now: float) -> str:
        """Return why a job can never run within a reservation; "" if it can."""
        length = reservation.end - max(reservation.begin, now)
        if job.walltime > length:
            return (f"job {job.id} may run for {job.walltime:g} s, and reservation {reservation.name} "
                    f"{'has' if now > reservation.begin else 'lasts'} {length:.6g} s"
                    f"{' left' if now > reservation.begin else ''}; give the job a shorter time, or make "
                    "a longer reservation")
        try:
            wants, has = self.book.queue.nodes_of(job), len(reservation.nodes)
        except Infeasible as error:
            return str(error)
        if wants > has:
            return (f"job {job.id} needs {wants} nodes, and reservation {reservation.name} has {has}")
        return ""


def _named_nodes(wanted: ReservationRequest, cluster: Cluster, begin: float, now: float) -> list[int]:
    numbers = {node.name: number for number, node in enumerate(cluster.nodes)}
    for name in wanted.nodes:
        if name not in numbers:
            raise ReservationError(f"no node is called {name}; the nodes are "
                                   f"{cluster.nodes[0].name} to {cluster.nodes[-1].name}")
    nodes = sorted({numbers[name] for name in wanted.nodes})
    if wanted.number not in (0, len(nodes)):
        raise ReservationError(f"{wanted.number} node(s) are asked for and {len(nodes)} are named; "
                               "give one of the two, or the same number")
    for node in nodes:
        against = _against(node, cluster, begin, wanted.end, now)
        if against:
            raise ReservationError(f"node {cluster.nodes[node].name} {against}")
    return nodes


def _chosen(wanted: ReservationRequest, cluster: Cluster, begin: float, now: float) -> list[int]:
    """Choose the last nodes that are free of jobs and reservations in that time: other jobs use the first nodes."""
    number = wanted.number
    if number < 1:
        raise ReservationError("how many nodes are to be reserved, or which? (-N 2, --nodes n0,n1)")
    if number > len(cluster.nodes):
        raise ReservationError(f"{number} nodes are asked for, and the run has "
                               f"{len(cluster.nodes)}")
    against = {node: _against(node, cluster, begin, wanted.end, now)
               for node in reversed(range(len(cluster.nodes)))}
    free = [node for node, why in against.items() if not why]
    if len(free) < number:
        node, why = next((node, why) for node, why in sorted(against.items()) if why)
        raise ReservationError(f"{len(free)} of {number} nodes are free of other jobs and "
                               f"reservations then: node {cluster.nodes[node].name}, for one, {why}")
    return sorted(free[:number])


def _against(node: int, cluster: Cluster, begin: float, end: float, now: float) -> str:
    """Return why a node cannot be reserved, as the end of a sentence; "" if it can."""
    if not cluster.up >> node & 1:
        return "is down"
    other = cluster.calendar.blocking_reservation(1 << node, begin, end)
    if other is not None:
        return (f"is in reservation {other.name} from {when(other.begin)} to {when(other.end)}: "
                "choose other nodes or times")
    for job_id in cluster.jobs_on(node):
        booking = cluster.bookings[job_id]
        until = max(booking.limit, booking.until, now)
        if until > begin or begin <= now:
            return (f"has job {job_id} until {when(until)} by its walltime: choose a later begin or "
                    "other nodes")
    return ""


def nodes_of(span: Span, cluster: Cluster) -> list[str]:
    """Return the names of a reservation's nodes that are in the cluster."""
    return [cluster.nodes[node].name for node in bits.members(span.nodes)]
