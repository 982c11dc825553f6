"""Makes the content of the state file: what the status queries show of a running manager."""

from __future__ import annotations

import math
import socket
from operator import attrgetter
from typing import Any

from vrm.live.manager.liverun import LiveRun
from vrm.model import Booking, Cluster, Job, JobState
from vrm.model.amounts import people
from vrm.model.forms.fields import ADDED, OF_DETAILS, OF_JOB, TABLE, getter
from vrm.model.job import Details
from vrm.model import bits
from vrm.model.sharing.core_share import NOBODY
from vrm.model.quantities import MOST_JOBS, fold
from vrm.results.placement_text import PlacementText
from vrm.results.state import FORMATS
from vrm.run.job_book import JobBook
from vrm.run.reasons import STOPPING, WaitReasons, parked, why_bound
from vrm.run.loans import REGAINING
from vrm.run.state import State
from vrm.scheduling import Scheduler


def snapshot(live: LiveRun, pid: int, emulated: bool) -> dict[str, Any]:
    """Return nodes, cores, running and waiting jobs, and the number of ended jobs by state; see `vrm.report.tables`.

    `pid` is the manager's process. All times are in epoch seconds; `ahead`: seconds by which this machine's clock is
    ahead of them.
    """
    now, state, phase, end, ahead = live.clock(), live.state, live.phase, live.end.end, live.clock.ahead
    cluster, lends = state.cluster, _lends(state)
    return {
        "format": FORMATS[-1], "time": now, **({"ahead": ahead} if ahead else {}),
        "manager": {"host": socket.gethostname(), "pid": pid, "start": live.start_time,
                    "phase": phase},
        "scheduling": live.rules.record(),
        "allocation": {"end": end if math.isfinite(end) else None},
        "emulated": emulated,
        "nodes": [{"name": node.name, "up": bool(cluster.up >> number & 1),
                   "sockets": [socket_.slots for socket_ in sockets], **_more(cluster, number),
                   **({"why": live.drained[number]} if number in live.drained else {})}
                  for number, (node, sockets) in enumerate(zip(cluster.nodes, cluster.view()))],
        **({"licences": {name: [people(name, cluster.licences[name]), people(name, amount)]
                         for name, amount in cluster.all_licences.items()}}
           if cluster.all_licences else {}),
        **({"reservations": _reservations(state)} if state.reservations else {}),
        **({"lends": lends} if lends else {}),
        "jobs": [*_running(live, lends),
                 *_waiting(now, state, live.scheduler, phase)],
        "ended": state.counts,
    }


def _more(cluster: Cluster, number: int) -> dict[str, Any]:
    """Return what a node has besides cores: free and total amount of each resource in pieces (memory in GiB), the
    indices of its devices, and its features."""
    node = cluster.nodes[number]
    found: dict[str, Any] = {}
    if node.resources:
        found["resources"] = {name: [people(name, cluster.left[name][number]), amount]
                              for name, amount in node.resources.items()}
    if node.devices:
        found["devices"] = {name: [each.index for each in listed]
                            for name, listed in node.devices.items()}
    if node.features:
        found["features"] = sorted(node.features)
    return found


def _lends(state: State) -> list[dict[str, Any]]:
    """Return the loans: lender, borrower (`to`, None: the node), cores, and the phase: lend (the lender has not left
    the cores yet), lent, or regain (the lender does not have them back yet)."""
    cluster = state.cluster
    return [{"id": each.lender, "to": None if each.borrower == NOBODY else each.borrower,
             "phase": each.phase, "since": each.loan.since, "cores": bits.count(each.loan.cores),
             "nodes": list(dict.fromkeys(cluster.nodes[node].name for node, *_
                                         in cluster.layout.spans(each.loan.cores)))}
            for _, each in sorted(state.lends.all.items()) if each.lender in cluster.bookings]


def _shares(booking: Booking, lends: list[dict[str, Any]]) -> str:
    """Return a short text on what a running job lends or borrows; a job that lends all its cores is paused."""
    words, job_id = [], booking.job.id
    for each in lends:
        cores = f"{each['cores']} core{'s' * (each['cores'] > 1)}"
        if each["id"] == job_id and each["cores"] == booking.placement.cores and each["to"] is not None:
            words.append(f"{'continues after' if each['phase'] == REGAINING else 'is paused for'} {each['to']}")
        elif each["id"] == job_id:
            verb = "takes back" if each["phase"] == REGAINING else "lends"
            whom = "" if each["to"] is None else f" {'from' if verb != 'lends' else 'to'} {each['to']}"
            words.append(f"{verb} {cores}{whom}")
        elif each["to"] == job_id:
            words.append(f"borrows of {each['id']}")
    return ", ".join(words)


def _running(live: LiveRun, lends: list[dict[str, Any]]) -> list[dict[str, Any]]:
    book, now = live.state.book, live.cluster.bookings
    running = [(each.booking if each.former else now.get(each.job.id, each.booking), each.binding,
                each.former or live.cluster) for each in live.running.values()]
    return [{**_facts(booking.job, book.entries[booking.job.id].details),
             "state": JobState.RUNNING.value,
             "start": booking.start, "expected_end": booking.expected_end,
             "nodes": [on.nodes[number].name for number in booking.placement.nodes],
             **({"extra": booking.extra} if booking.extra else {}),
             **({"why": _shares(booking, lends)} if lends else {}),
             **({"devices": PlacementText(on.nodes).devices(booking.placement)}
                if booking.placement.devices else {}),
             "binding": binding}
            for booking, binding, on in sorted(running, key=lambda each: (each[0].start,
                                                                          each[0].job.id))]


def _reservations(state: State) -> list[dict[str, Any]]:
    """Return the advance reservations, earliest first, with the jobs bound to them."""
    bound: dict[int, list[int]] = {}
    for job_id, reservation in state.queue.bound.items():
        if not state.book.entries[job_id].state.ended:
            bound.setdefault(reservation, []).append(job_id)
    return [{"id": each.id, "name": each.name, "nodes": list(each.nodes), "begin": each.begin,
             "end": each.end, "jobs": fold(sorted(bound.get(each.id, ())))}
            for each, _ in state.cluster.calendar.spans]


def _waiting(now: float, state: State, scheduler: Scheduler, phase: str) -> list[dict[str, Any]]:
    """Return the waiting jobs; neighbours that differ only in ids and indices are one entry."""
    cluster, book = state.cluster, state.book
    reserved = {job_id: moment for job_id, moment in scheduler.reservations(now, book.queue, cluster).items()
                if moment < math.inf}  # infinite while nodes are lost
    order = book.queue.in_order(now)
    reasons = WaitReasons(now, order, cluster, scheduler, reserved, phase)
    groups = _Groups(book)
    for job in order:
        groups.add(job, reasons.of(job), reserved.get(job.id))
    outside = book.queue.why_not_competing(cluster) if book.queue.outside else {}
    for job_id in book.queue.outside:
        reservation = state.reservations.of_job(job_id)
        if reservation is not None:
            outside[job_id] = why_bound(reservation, now)
            reserved[job_id] = max(reservation.begin, now)
    for job_id in sorted(outside):
        groups.add(book.queue.get(job_id), STOPPING if phase != "running" else outside[job_id],
                   reserved.get(job_id))
    for job_id in sorted(book.parked):
        entry = book.parked[job_id]
        groups.add(entry.job, STOPPING if phase != "running" else parked(entry, book.entries, now))
    for facts in groups.made:
        for key in ("ids", "indices"):
            if key in facts:
                facts[key] = fold(facts[key])
    return groups.made


class _Groups:
    """Merges neighbouring jobs that are alike into one entry."""

    def __init__(self, book: JobBook) -> None:
        self.book = book
        self.made: list[dict[str, Any]] = []
        self._key: Any = None
        self._ids: list[int] = []
        self._indices: list[int] = []

    def add(self, job: Job, why: str, start: float | None = None) -> None:
        """Add the next waiting job in order."""
        entry = self.book.entries[job.id]
        details = entry.details
        key = (_job_key(job), _details_key(details), details.index if job.payload.each else details.index is None, entry.held, entry.late,
               entry.lacks, id(entry.wish) if entry.missing else 0, why, start)
        if key != self._key or len(self._ids) == MOST_JOBS:
            self._key = key
            self._ids, self._indices = [], []
            facts = {**_facts(job, details), "state": JobState.QUEUED.value, "why": why,
                     "held": entry.held, "late": entry.late, "lacks": entry.lacks,
                     "after": entry.wish.still(self.book.entries)
                     if entry.wish is not None and entry.missing else ""}
            if start is not None:
                facts["expected_start"] = start
            self.made.append(facts)
        self._ids.append(job.id)
        if details.index is not None:
            self._indices.append(details.index)
        if len(self._ids) == 2:
            del self.made[-1]["id"]
            self.made[-1].pop("index", None)
        if len(self._ids) > 1:  # the lists are folded when the state is written
            self.made[-1]["ids"], self.made[-1]["indices"] = self._ids, self._indices


_OF_JOB, _OF_DETAILS = ([(each.shown, getter(each), each.always, each.default, each.kind.plain)
                         for each in TABLE if each.shown and each.kept in kept]
                        for kept in (OF_JOB, OF_DETAILS))
_job_key = attrgetter("submit", "more", *(each.path for each in TABLE
                                   if each.shown and each.kept in OF_JOB))
_details_key = attrgetter("more", *(each.at for each in TABLE if each.shown and each.at != "index"
                                    and each.kept in OF_DETAILS and each.at in Details.__slots__))


def _facts(job: Job, details: Details) -> dict[str, Any]:
    """Return the values of a job that are shown. In the texts of an array's job, `%i` is replaced by the index and its
    item is filled in."""
    if job.payload.each:
        job = job.but(payload=job.payload.own(details.index))
    facts: dict[str, Any] = {"id": job.id, "submit": job.submit}
    of: Any = job
    for fields in (_OF_JOB, _OF_DETAILS):
        for key, get, always, default, plain in fields:
            value = get(of)
            if always or value != default:
                facts[key] = plain(value)
        of = details
    if job.more:
        facts["more"] = {word: ADDED[word].kind.plain(value) for word, value in job.more.items()}
    return facts
