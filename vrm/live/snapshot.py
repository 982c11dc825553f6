"""What the status queries show of a running manager, as one value for the state file."""

from __future__ import annotations

import math
import os
import socket
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from vrm.config import Settings
from vrm.model import Booking, Cluster, Job, JobState
from vrm.scheduling import Scheduler
from vrm.scheduling.book import Entry, JobBook

FORMAT = 1


def snapshot(now: float, settings: Settings, cluster: Cluster, scheduler: Scheduler, book: JobBook,
             running: Iterable[Tuple[Booking, str, Cluster]], ended: Mapping[str, int], *, emulated: bool,
             started: float, phase: str, end: float = math.inf) -> Dict[str, Any]:
    """Nodes, cores, running and waiting jobs, and how many ended how; see `vrm.report.tables`.

    `running` are the jobs that run, whether their ranks are where they should be (as in the
    column `binding` of jobs.csv), and the cluster on whose nodes they are.
    `started` is the manager's own start and `end` that of its allocation's end, all in
    epoch seconds.
    """
    return {
        "format": FORMAT, "time": now,
        "manager": {"host": socket.gethostname(), "pid": os.getpid(), "start": started,
                    "phase": phase},
        "scheduling": {"algorithm": settings.scheduling.algorithm,
                       "backfilling": settings.scheduling.backfilling,
                       "policy": settings.allocation.policy,
                       **({"interval": settings.scheduling.interval,
                           "starts_per_interval": settings.scheduling.starts_per_interval}
                          if settings.scheduling.interval else {})},
        "allocation": {"end": end if math.isfinite(end) else None},
        "emulated": emulated,
        "nodes": [{"name": node.name, "up": bool(cluster.up >> number & 1),
                   "sockets": [socket_.slots for socket_ in sockets]}
                  for number, (node, sockets) in enumerate(zip(cluster.nodes, cluster.view()))],
        "jobs": [*_running(running), *_waiting(now, cluster, scheduler, book)],
        "ended": ended,
    }


def _running(running: Iterable[Tuple[Booking, str, Cluster]]) -> List[Dict[str, Any]]:
    return [{**_facts(booking.job), "state": JobState.RUNNING.value,
             "start": booking.start, "expected_end": booking.expected_end,
             "nodes": [on.nodes[number].name for number in booking.placement.nodes],
             "binding": binding}
            for booking, binding, on in sorted(running, key=lambda each: (each[0].start,
                                                                          each[0].job.id))]


def _waiting(now: float, cluster: Cluster, scheduler: Scheduler,
             book: JobBook) -> List[Dict[str, Any]]:
    reserved = scheduler.reservations(now, book.queue, cluster)
    jobs = []
    for job in book.queue.in_order(now):
        facts = {**_facts(job), "state": JobState.QUEUED.value, **_reasons(book.entries[job.id])}
        if job.id in reserved:
            facts["expected_start"] = reserved[job.id]
        jobs.append(facts)
    return jobs + [{**_facts(entry.job), "state": JobState.QUEUED.value, **_reasons(entry)}
                   for _, entry in sorted(book.parked.items())]


def _facts(job: Job) -> Dict[str, Any]:
    return {"id": job.id, "app": job.app, "procs": job.procs, "submit": job.submit,
            "estimate": job.estimate, "exclusive": job.exclusive, "priority": job.priority}


def _reasons(entry: Entry) -> Dict[str, Any]:
    """Why a job waits although there may be room for it."""
    return {"held": entry.held, "after": sorted(entry.missing), "late": entry.late,
            "lacks": entry.lacks}
