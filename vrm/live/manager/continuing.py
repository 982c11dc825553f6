"""Takes up what an earlier manager left: jobs that wait, run, or ended in the meantime."""

from __future__ import annotations

import math
import os
import time
import uuid
from typing import Dict, Iterable, Mapping, Optional, Tuple

from vrm.live.batch.adoption import Adoption
from vrm.live.manager import recovery, takeup
from vrm.live.manager.desk import Desk
from vrm.live.manager.ends import Ends
from vrm.live.manager.intake import Intake
from vrm.live.manager.launches import Launches
from vrm.live.manager.lending import Lending
from vrm.live.manager.records import Outcome
from vrm.live.manager.running import Running
from vrm.live.manager.verdict import verdict
from vrm.live.site.programs import Wanted
from vrm.model import AnyPlacement, Booking, Job, JobState
from vrm.model.core_share import Borrowed
from vrm.model.ranges import fold
from vrm.run import codec
from vrm.run.journal import FORMAT, Past
from vrm.run.journal_check import Record
from vrm.run.lending import Room
from vrm.scheduling import Start
from vrm.system.errors import RunError

SHARED_DELAY = 90.0
"""Seconds after which a file that another host has made is seen here for sure."""


class Continuing:
    """Goes on with a run. `run_id` marks its processes."""

    def __init__(self, desk: Desk, intake: Intake, ends: Ends, launches: Launches,
                 adoption: Adoption, lending: Lending) -> None:
        self.desk = desk
        self.intake = intake
        self.ends = ends
        self.launches = launches
        self.adoption = adoption
        self.lending = lending
        self._borrowers: Dict[int, Borrowed] = {}  # as they started
        self.run_id = uuid.uuid4().hex[:12]
        self._run_of: Dict[int, Record] = {}  # the manager under which a job was started

    def take_up(self, past: Past, warnings: Iterable[str], failed: bool) -> None:
        """Go on with the past of this run's state; with `failed` what did not complete runs again.
        RunError where there is no past to run anything again of."""
        desk = self.desk
        if past.run:
            self.ends.leftovers = True
            self.run_id = past.run
            desk.tell("note", f"continuing the run of {len(past.state.book.entries)} job(s): "
                              f"{len(past.ended)} ended, {len(past.running)} started, "
                              f"{len(past.waiting)} waiting")
        for warning in warnings:
            desk.tell("warning", warning)
        self._record_run(past)
        if past.run and past.format == 1:  # whose jobs run where vrm was started, to their end
            self.launches.workplace = os.getcwd()
        for record in past.runs:
            desk.room.add(codec.nodes_of(record.get("nodes", [])))
            desk.room.add(codec.nodes_of(record.get("granted", [])))
        self._restore_jobs(past)
        if failed:
            self._run_failed_again(past)
        if desk.expectations is not None:
            for lesson in filter(None, map(past.lesson, past.ended)):
                desk.expectations.learn(*lesson)
        intents = dict(desk.state.intents)
        for job, start in past.running:
            self._take_over(job, start, *intents.get(job.id, ("", math.inf)))
        self._bequeath(past.rooms)
        self.lending.resume()
        if past.runs and not codec.same_nodes(past.runs[-1].get("nodes", ()),
                                              codec.nodes_record(desk.cluster.nodes)):
            desk.state.promises.clear()  # they were made for other nodes
        desk.scheduler.dispatcher.restore(desk.state.promises)
        desk.scheduler.dispatcher.recall(past.waits)
        desk.revise(desk.now)

    def _record_run(self, past: Past) -> None:
        """The first record of this manager."""
        desk = self.desk
        desk.mark(self.run_id)
        self.ends.watch.begin(self.run_id)
        self._run_of = past.run_of
        nodes = codec.nodes_record(desk.cluster.nodes)
        granted = codec.nodes_record(desk.room.granted)
        more = {"granted": granted} if granted not in ([], nodes) else {}
        if past.runs and not codec.same_nodes(past.runs[-1].get("nodes", nodes), nodes):
            desk.tell("note", "the nodes are others than before; the run continues with these")
        desk.journal.append("run", format=FORMAT, run=self.run_id, time=desk.clock(), tick=time.monotonic(),
                            pid=os.getpid(), nodes=nodes, **more,
                            home=takeup.identity(desk.run_directory), **desk.place.record())

    def _restore_jobs(self, past: Past) -> None:
        """Let the jobs wait that wait, but those that must not run (any more)."""
        desk, state = self.desk, past.state
        waiting = [entry for _, entry in sorted(state.book.parked.items())]
        foreign = {wanted: self.intake.foreign(wanted)
                   for wanted in {Wanted.of(entry.job) for entry in waiting}}
        for entry in waiting:
            job = entry.job
            if job.id in past.again:
                self.ends.clear(job.id)
            if entry.state is not JobState.QUEUED:
                continue  # one before it, on which it depends, was refused just now
            never = foreign[Wanted.of(job)] or desk.room.never(job)
            if never:  # the machine died between the job's record and that of its refusal
                self.ends.close_job(Outcome(job, JobState.REFUSED, never, end=desk.now))
        for job_id, reason in list(state.losing.items()):
            entry = state.entry(job_id)
            self.ends.close_job(Outcome(entry.job, entry.state, reason, end=desk.now))
        state.thaw()
        self.intake.tell_lacking(sorted(state.book.lacking))

    def _run_failed_again(self, past: Past) -> None:
        """Let the jobs wait again that did not complete, with their ids; refused ones stay so."""
        desk, state = self.desk, self.desk.state
        if not past.run:
            raise RunError(f"there is no earlier run in {desk.run_directory.directory} of which "
                           "jobs could run again; start without --failed")
        ids = [job_id for job_id, entry in sorted(state.book.entries.items())
               if entry.state.value in takeup.RERUN]
        desk.tell("note", f"#{fold(ids)} run{'s' * (len(ids) == 1)} again (--failed)" if ids else
                          "no job of the run failed: nothing to run again (--failed)")
        dropped = [state.again(job_id, desk.now, "run again by --failed") for job_id in ids]
        desk.journal.sync()
        self.ends.records.forget(ids)
        for job_id, each in zip(ids, dropped):
            self.ends.clear(job_id)
            self.ends.drop(each)

    def _take_over(self, job: Job, start: Record, intent: str, told: float) -> None:
        """Follow a job that an earlier manager started, or find how it ended. With an `intent` it
        had told the job to end, at `told`."""
        desk, ends = self.desk, self.ends
        before = codec.cluster_of(self._run_of.get(job.id, {}), desk.cluster)
        found = self._look(job.id)
        old = codec.placement_of(start["placement"], before)
        placement = self._now(start, self._run_of.get(job.id, {}), job.id)
        if placement is not None and placement.clashes(desk.cluster):
            placement = None  # one of its nodes is down
        if found.trouble:
            desk.tell("warning", found.trouble)
        if placement is None:
            booking = Booking(job, old, start["time"], start["time"] + job.expected)
        else:
            booking = desk.cluster.book(job, placement, start["time"])
        running = Running(Start(booking, start["backfilled"]), taken_over=True, marker=found.marker,
                          intent=intent, told=told if intent else math.inf,
                          away=found.what == recovery.ELSEWHERE,
                          former=before if placement is None else None)
        desk.running[job.id] = running
        desk.state.adopt(running.start)
        marker = found.marker
        if marker and (marker.host, marker.boot) == (desk.place.host, desk.place.boot):
            running.session = marker.pid
            self.adoption.add(job.id, marker.pid, desk.now)
        if found.what == recovery.UNSTARTED:
            self._never_began(running)
        elif found.what == recovery.INTERRUPTED:
            running.intent = intent or "interrupted"
            ends.ended(running, None, *verdict(running.intent, None))
        elif found.what == recovery.ELSEWHERE:
            if intent:
                ends.ended(running, None, *verdict(intent, None))
                return
            assert marker is not None
            desk.tell("note", f"#{job.id} {job.app} runs under {marker.host}; it is followed "
                              "by its files (`vrm requeue` or `vrm cancel` gives it up)")
        elif found.what == recovery.RUNNING and placement is None:
            desk.tell("warning", f"#{job.id} {job.app} runs on nodes that are not there any more; "
                                 "ending it")
            ends.end_job(running, "interrupted")
        elif found.what == recovery.RUNNING and intent:
            ends.end_session(running)

    def _now(self, start: Record, under: Record, job_id: int) -> Optional[AnyPlacement]:
        """The cores of a start that an earlier manager has recorded, on the nodes there are now; None
        where they are not there, or whoever lends them is not."""
        cluster = self.desk.cluster
        before = codec.cluster_of(under, cluster)
        placement = codec.moved(codec.placement_of(start["placement"], before), before, cluster)
        if not isinstance(placement, Borrowed):
            return placement
        self._borrowers[job_id] = placement
        settled = self.desk.state.lends.settled(placement, job_id)
        assert isinstance(settled, Borrowed)
        return settled if all(lender in cluster.bookings for lender, _ in settled.lent) else None

    def _bequeath(self, rooms: Mapping[Tuple[int, int], Room]) -> None:
        """Jobs that run have what lenders have left to them."""
        cluster = self.desk.cluster
        for (start, under), loans in self.desk.state.lends.left(cluster, self._borrowers, rooms):
            room = self._now(start, under, start["id"])
            if room is not None:
                cluster.loans.bequeath(cluster, room, loans)

    def _never_began(self, running: Running) -> None:
        """The journal says that a job was to start, and nothing tells that it did."""
        if running.intent in ("cancel", "stop"):
            self.ends.ended(running, None, *verdict(running.intent, None))
            return
        del self.desk.running[running.job.id]
        self.ends.drop(self.desk.state.back(running.job.id))

    # Jobs of an earlier manager have no supervisor that would tell this one: their files do.

    def look_at_markers(self) -> None:
        """See whether jobs of an earlier manager have ended."""
        for running in [r for r in self.desk.running.values() if r.taken_over]:
            self._look_at_marker(running)

    def _look_at_marker(self, running: Running) -> None:
        ends, found = self.ends, self._look(running.job.id)
        if found.what == recovery.ENDED:
            assert found.status is not None
            if found.gone and not found.status.ok:  # perhaps by that allocation's end
                running.intent = running.intent or "interrupted"
            ends.ended(running, found.status, *ends.judged(running, found.status))
        elif found.what == recovery.INTERRUPTED:
            ends.ended(running, None, JobState.FAILED, found.trouble)
        elif found.what in (recovery.LOST, recovery.UNSTARTED) and not running.lost:
            # Another host's rename of the marker to the status may be seen in two parts.
            running.gone_since = min(running.gone_since, self.desk.now)
            if not running.away or self.desk.now > running.gone_since + SHARED_DELAY:
                ends.lost(running)

    def _look(self, job_id: int) -> recovery.Found:
        return recovery.look(self.desk.run_directory, job_id, self._run_of.get(job_id, {}),
                             self.desk.place)
