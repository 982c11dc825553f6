"""Takes up what an earlier manager left: jobs that wait, run, or ended in the meantime."""

from __future__ import annotations

import math
import os
import time
import uuid
from typing import Any
from collections.abc import Mapping, Sequence
from itertools import chain, groupby

from vrm.live.manager.takeover import recovery, takeup
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.jobs.intake import Intake
from vrm.live.manager.part import Part
from vrm.live.manager.records.records import EndedJob
from vrm.live.manager.jobs.running import Running
from vrm.live.manager.jobs.verdict import verdict
from vrm.live.spawn.messages import Failure, kind_of
from vrm.live.site.programs import WantedProgram, foreign
from vrm.live.site.setup import Site
from vrm.model import Booking, Cluster, Job, JobState, Placement
from vrm.model.quantities import fold
from vrm.run.journal import codec
from vrm.run.again import stopped, unsuccessful, with_dependents
from vrm.run.entry import REMOVED, Dropped, LifeError
from vrm.run.journal.files import FORMAT
from vrm.run.journal.check import Record, StartRecord
from vrm.run.lending import Room
from vrm.run.journal.past import Past
from vrm.scheduling import Start
from vrm.system.errors import RunError

OVER = 2
"""In the order of taking over: jobs that have ended, or have not begun."""

MOST_SAID = 5
"""Lines that are said at most of jobs that are refused again."""

SHARED_DELAY = 90.0
"""Seconds after which a file that another host has made is seen here for sure."""


class Continuing(Part):
    """Goes on with a run. `run_id` marks its processes."""

    def __init__(self, live: LiveRun, intake: Intake, ends: Ends, site: Site) -> None:
        self.live = live
        self.intake = intake
        self.ends = ends
        self.site = site
        self._borrowers: dict[int, Placement] = {}  # as they started
        self.run_id = uuid.uuid4().hex[:12]
        self._run_of: dict[int, Record] = {}  # the manager under which a job was started

    def take_up(self, past: Past, failed: bool = False) -> None:
        """Continue the past of this run's state: what was stopped runs again, and with `failed` what did not
        complete."""
        live = self.live
        if past.run:
            self.ends.leftovers = True
            self.run_id = past.run
            live.tell("note", f"continuing the run of {len(past.state.book.entries)} job(s): "
                              f"{len(past.ended)} ended, {len(past.running)} started, "
                              f"{len(past.waiting)} waiting")
        for warning in self.site.warnings:
            live.tell("warning", warning)
        self._record_run(past)
        for record in past.runs:
            live.room.add(codec.nodes_of(record.get("nodes", [])))
            live.room.add(codec.nodes_of(record.get("granted", [])))
        self._restore_jobs(past)
        self._run_again(failed)
        if live.expectations is not None:
            for lesson in filter(None, map(past.lesson, past.ended)):
                live.expectations.learn(*lesson)
        self._take_over_all(past)
        if past.run:  # this machine's death may have taken the markers, or a manager before ended before it had swept
            live.watch.sweep_others(live.running, filter(self._may_be_left, chain(past.started, past.again)))
        self._go_on_lending()
        for part in live.parts:
            part.resume()
        if past.runs and not codec.same_nodes(past.runs[-1].get("nodes", ()),
                                              codec.nodes_record(live.cluster.nodes)):
            live.state.promises.clear()  # they were made for other nodes
        live.scheduler.dispatcher.restore(live.state.promises)
        live.scheduler.dispatcher.recall(past.waits)
        live.revise(live.now)

    def _may_be_left(self, job_id: int) -> bool:
        """Whether a job that was started once may still have processes, which no manager follows."""
        return job_id not in self.live.running and self.live.state.entry(job_id).state is not JobState.COMPLETED

    def _go_on_lending(self) -> None:
        """Jobs lend what they lent. RunError where nothing here can give it back."""
        live, lends = self.live, self.live.state.lends
        if lends.all and not any("lend" in part.commands() for part in live.parts):
            raise RunError(f"{live.run_directory.journal}: jobs of this run lend cores, and the part `lending` of vrm's "
                           "extensions, which gives them back, is not in this installation (vrm/ext); install vrm again, "
                           "with all its files")
        lends.to_node(live.cluster)
        for job_id, shares in lends.shares.items():
            live.cluster.loans.recall(live.cluster, job_id, shares, live.now)

    def _record_run(self, past: Past) -> None:
        """The first record of this manager."""
        live = self.live
        live.launcher.run_id = live.scripts.run_id = self.run_id
        live.watch.begin(self.run_id)
        self._run_of = past.run_of
        nodes = codec.nodes_record(live.cluster.nodes)
        granted = codec.nodes_record(live.room.granted)
        more = {"granted": granted} if granted not in ([], nodes) else {}
        if past.runs and not codec.same_nodes(past.runs[-1].get("nodes", nodes), nodes):
            live.tell("note", "the nodes have changed; the run continues on the present ones")
            codec.move_lends(live.state.lends, [job.id for job, _ in past.running], past.runs[-1], live.cluster)
        live.journal.append("run", format=FORMAT, run=self.run_id, time=live.clock(), tick=time.monotonic(),
                            pid=os.getpid(), nodes=nodes, **more,
                            home=takeup.identity(live.run_directory), **live.place.record())

    def _restore_jobs(self, past: Past) -> None:
        """Let the jobs wait that wait, but those that must not run (any more)."""
        live, state = self.live, past.state
        waiting = [entry for _, entry in sorted(state.book.parked.items())]
        trusted = {wanted: foreign(live.settings.applications, wanted, live.settings.trust)
                   for wanted in {each for entry in waiting for each in WantedProgram.of(entry.job)}}
        for entry in waiting:
            job = entry.job
            if job.id in past.again:
                self.ends.clear(job.id)
            if entry.state is not JobState.QUEUED:
                continue  # one before it, on which it depends, was refused just now
            never = next(filter(None, map(trusted.get, WantedProgram.of(job))), "") or live.room.never(job)
            if never:  # the machine died between the job's record and that of its refusal
                self.ends.close_job(EndedJob(job, JobState.REFUSED, never, end=live.now))
        for job_id, reason in list(state.losing.items()):
            entry = state.entry(job_id)
            self.ends.close_job(EndedJob(entry.job, entry.state, reason, end=live.now,
                                        cause=entry.cause if entry.cause == REMOVED else ""))
        state.book.thaw()
        self.intake.tell_lacking(sorted(state.book.lacking))

    def _run_again(self, failed: bool) -> None:
        """Let jobs wait again, with their ids, that the manager before ended since it was stopped; with `failed`
        also those that did not complete."""
        live, state = self.live, self.live.state
        wanted = unsuccessful if failed else stopped
        ids: list[int] = []
        refused: list[str] = []
        dropped: list[Dropped] = []
        for job_id in with_dependents(state.book.entries, wanted):
            entry = state.entry(job_id)
            try:
                if entry.state is JobState.REFUSED:
                    self.intake.retry(entry)
                else:
                    dropped += state.again(job_id, live.now, "run again by --failed" if failed else
                                           "the manager had been stopped")
                ids.append(job_id)
            except LifeError as error:
                refused.append(str(error))
        if ids:
            live.tell("note", f"#{fold(ids)} run{'s' * (len(ids) == 1)} again"
                      + (" (--failed)" if failed else ": the manager was stopped while they ran or waited"))
        elif failed:
            live.tell("note", "no job of the run failed: nothing to run again (--failed)")
        for reason in refused[:MOST_SAID]:
            live.tell("warning", reason)
        live.journal.sync()  # the first record of a journal alone, too: what a crash leaves behind that is known as such
        if ids:
            self.live.records.forget(ids)
        for job_id in ids:
            self.ends.clear(job_id)
        self.ends.drop(dropped)

    def _take_over_all(self, past: Past) -> None:
        """Follow all jobs that an earlier manager started, or record how they ended. Those that run have what their lenders
        have left before one that has ended gets the same cores back."""
        intents = dict(self.live.state.intents)
        looked = sorted(((job, start, self._look(job.id, start["time"])) for job, start in past.running), key=self._order)
        for order, group in groupby(looked, key=lambda each: self._order(each)[0]):
            for job, start, found in group:
                self._take_over(job, start, found, *intents.get(job.id, ("", math.inf)))
            if order < OVER:
                self._bequeath(past.rooms)

    def _order(self, looked: tuple[Job, StartRecord, recovery.Recovered]) -> tuple[int, float]:
        """In which order jobs are taken over: one that has ended comes last, since its cores may have another one, whose
        start the manager before has recorded and not the end of this one. One without its supervisor may still run, the last
        that was started at the most."""
        job, start, found = looked
        if found.what in (recovery.RUNNING, recovery.ELSEWHERE) or job.id in self.live.state.lends.shares:
            return 0, 0.0
        return (1, -start["time"]) if found.what == recovery.LOST else (OVER, 0.0)

    def _take_over(self, job: Job, start: StartRecord, found: recovery.Recovered, intent: str, told: float) -> None:
        """Follow a job that an earlier manager started, or record how it ended, as was found. With an `intent` it
        had told the job to end, at `told`."""
        live = self.live
        before = codec.cluster_of(self._run_of.get(job.id, {}), live.cluster)
        old = codec.placement_of(start["placement"], before)
        placement = self._now(start, self._run_of.get(job.id, {}), job.id)
        if placement is not None and live.cluster.clashes(placement):
            placement = None  # one of its nodes is down
        if found.trouble:
            live.tell("warning", found.trouble)
        if placement is None:
            booking = Booking(job, old, start["time"], start["time"] + job.expected)
        else:
            booking = live.cluster.book(job, placement, start["time"])
        running = Running(Start(booking, start["backfilled"]), taken_over=True, marker=found.marker,
                          intent=intent, told=told if intent else math.inf,
                          away=found.what == recovery.ELSEWHERE,
                          former=before if placement is None else None)
        missing = [] if placement is not None else self._missing(old, before)
        if missing and intent in ("", "node"):
            running.why = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        live.running[job.id] = running
        live.state.running[running.start.job.id] = running.start
        marker = found.marker
        if marker and (marker.host, marker.boot) == (live.place.host, live.place.boot):
            running.session, running.leader = marker.pid, marker.started
            self.site.adoption.add(job.id, marker.pid, live.now)
        self._settle(running, found, missing)

    def _settle(self, running: Running, found: recovery.Recovered, missing: Sequence[str]) -> None:
        """Follow a job that was taken over, or end it, by what was found of it; `missing` are nodes of it."""
        live, ends, job, intent, marker = self.live, self.ends, running.job, running.intent, found.marker
        if found.what == recovery.UNSTARTED:
            self._never_began(running)
        elif found.what == recovery.INTERRUPTED:
            running.intent = intent or ("interrupted" if found.gone else "node")
            running.why = "" if found.gone else f"{marker.host if marker else 'the machine'} was restarted"
            ends.ended(running, None, *verdict(running.intent, None, running.why))
        elif found.what == recovery.ELSEWHERE:
            if intent:
                ends.ended(running, None, *verdict(intent, None))
                return
            assert marker is not None
            live.tell("note", f"#{job.id} {job.app} runs under {marker.host}; it is followed "
                              "by its files (`vrm requeue` or `vrm cancel` gives it up)")
        elif found.what == recovery.RUNNING and running.former is not None:
            live.tell("warning", f"#{job.id} {job.app} runs on nodes that are missing"
                                 f"{' (' + ', '.join(missing) + ')' if missing else ''}; ending it")
            ends.end_job(running, "node" if missing else "interrupted")
        elif found.what == recovery.RUNNING and intent:
            ends.end_session(running)
        elif found.what == recovery.RUNNING and self._restarted(running):
            live.tell("warning", f"#{job.id} {job.app}: {running.why} while it ran there; ending it")
            ends.end_job(running, "node")

    def _restarted(self, running: Running) -> bool:
        """Whether a node of a job, on which this machine's processes are not, was lost since the job began, and is
        there again."""
        if not self.ends.beyond(running):
            return False
        booking, nodes = running.booking, self.live.cluster.nodes
        ahead = self.live.clock() - time.monotonic()  # of the clock by which the machine knows when nodes began
        names = [name for name in (nodes[number].name for number in booking.placement.nodes)
                 if self.site.began.get(name, -math.inf) + ahead > booking.start]
        if names:
            running.why = f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} restarted"
        return bool(names)

    def _now(self, start: Mapping[str, Any], under: Mapping[str, Any], job_id: int) -> Placement | None:
        """The cores of a start that an earlier manager has recorded, on the nodes there are now; None
        where they are not there, or whoever lends them is not."""
        cluster = self.live.cluster
        before = codec.cluster_of(under, cluster)
        placement = codec.moved(codec.placement_of(start["placement"], before), before, cluster)
        if placement is None or placement.lease is None:
            return placement
        self._borrowers[job_id] = placement
        settled = self.live.state.lends.settled(placement, job_id)
        return settled if all(lender in cluster.bookings for lender, _ in settled.lent) else None

    def _missing(self, placement: Placement, before: Cluster) -> list[str]:
        """The nodes of a placement, in the cluster of an earlier manager, on which nothing can run now: they did
        not answer, or have other cores."""
        cluster = self.live.cluster
        there = {node.name: node.sockets for number, node in enumerate(cluster.nodes) if cluster.up >> number & 1}
        return [node.name for node in (before.nodes[number] for number in sorted(placement.nodes))
                if there.get(node.name) != node.sockets]

    def _bequeath(self, rooms: Mapping[tuple[int, int], Room]) -> None:
        """Jobs that run have what lenders have left to them."""
        cluster = self.live.cluster
        borrowers, self._borrowers = self._borrowers, {}
        for (start, under), loans in self.live.state.lends.left(cluster, borrowers, rooms):
            room = self._now(start, under, start["id"])
            if room is not None:
                cluster.loans.bequeath(cluster, room, loans)

    def _never_began(self, running: Running) -> None:
        """The journal says that a job was to start, and nothing tells that it did."""
        if running.intent in ("cancel", "stop"):
            self.ends.ended(running, None, *verdict(running.intent, None))
            return
        del self.live.running[running.job.id]
        self.ends.drop(self.live.state.back(running.job.id))

    # Jobs of an earlier manager have no supervisor that would tell this one: their files do.

    def look(self, now: float, files: bool) -> None:
        """See whether jobs of an earlier manager have ended."""
        if not files:
            return
        for running in [r for r in self.live.running.values() if r.taken_over]:
            self._look_at_marker(running)

    def _look_at_marker(self, running: Running) -> None:
        ends, found = self.ends, self._look(running.job.id, running.booking.start)
        if found.what == recovery.ENDED:
            assert found.status is not None
            if running.intent in ("", "timeout") and self._may_start(running, found.status.error):
                del self.live.running[running.job.id]
                ends.take_back(running.job)
                self.live.changes()
                return
            if not running.intent:
                running.intent = self._interruption(running, found)
            ends.ended(running, found.status, *ends.judged(running, found.status))
        elif found.what == recovery.INTERRUPTED:
            ends.ended(running, None, JobState.FAILED, found.trouble)
        elif found.what in (recovery.LOST, recovery.UNSTARTED) and not running.lost:
            # Another host's rename of the marker to the status may be seen in two parts.
            running.gone_since = min(running.gone_since, self.live.now)
            if not running.away or self.live.now > running.gone_since + SHARED_DELAY:
                ends.lost(running)

    def _may_start(self, running: Running, error: str | None) -> bool:
        """Whether a job could not be started for want of something, which the manager before did not come to hear."""
        nodes, first = (running.former or self.live.cluster).nodes, running.booking.placement.nodes[0]
        return bool(error) and kind_of(error or "", nodes[first].name) is not Failure.JOB

    def _interruption(self, running: Running, found: recovery.Recovered) -> str:
        """The intent of a job that has ended, if nobody but its nodes or its allocation's end may have ended it;
        "" where it ended by itself. With its nodes away, nobody can ask them any more."""
        assert found.status is not None
        if found.gone and not found.status.ok:
            return "interrupted"
        lost = self.ends.lost_nodes(running)
        if lost:  # with Open MPI 5 the exit status may be 0
            running.why = f"the connection to {', '.join(lost)} was lost"
        return "node" if lost or (not found.status.ok and (running.why or self._restarted(running))) else ""

    def _look(self, job_id: int, start: float) -> recovery.Recovered:
        return recovery.look(self.live.run_directory, job_id, self._run_of.get(job_id, {}), self.live.place, start)
