"""Continues what an earlier manager left: jobs that wait, run, or ended in the meantime."""

from __future__ import annotations

import math
import os
import time
import uuid
from typing import Any
from collections.abc import Mapping, Sequence
from itertools import chain, groupby

from vrm.live.manager.takeover import recovery, earlier_run
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.jobs.intake import Intake
from vrm.live.manager.part import Part
from vrm.live.manager.records.records import EndedJob
from vrm.live.manager.jobs.live_job import LiveJob
from vrm.live.manager.jobs.verdict import verdict
from vrm.live.manager.takeover.superseded import superseded
from vrm.live.spawn.messages import Failure, kind_of
from vrm.live.site.programs import WantedProgram, foreign
from vrm.live.site.setup import Site
from vrm.model import Booking, Cluster, Job, JobState, Placement
from vrm.model.quantities import fold
from vrm.run.journal import codec
from vrm.run.requeue import stopped, ended_unsuccessfully, with_dependents
from vrm.run.entry import REMOVED, DroppedJob, JobStateError
from vrm.run.journal.files import FORMAT
from vrm.run.journal.record_checks import Record, StartRecord
from vrm.run.loans import Room
from vrm.run.journal.history import RunHistory
from vrm.scheduling import Start
from vrm.system.errors import RunError

RUNNING, OTHERS, SUPERSEDED = range(3)
"""Order of taking jobs over: running ones with their lenders, others, and those whose cores a later job has got."""

MOST_SAID = 5
"""Maximum number of messages about jobs that are refused again."""

SHARED_DELAY = 90.0
"""Seconds after which a file that another host has created is certainly visible here."""


class Recovery(Part):
    """Continues a run. `run_id` marks its processes."""

    def __init__(self, live: LiveRun, intake: Intake, ends: Ends, site: Site) -> None:
        self.live = live
        self.intake = intake
        self.ends = ends
        self.site = site
        self._borrowers: dict[int, Placement] = {}  # their placements at the start
        self.run_id = uuid.uuid4().hex[:12]
        self._run_of: dict[int, Record] = {}  # the `run` record of the manager that started a job

    def take_up(self, past: RunHistory, failed: bool = False) -> None:
        """Continue the run with this past. Stopped jobs run again; with `failed` also jobs that did not complete."""
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
        if past.run:  # this machine's crash may have removed markers, or the earlier manager ended before its sweep
            live.watch.sweep_others(live.running, filter(self._may_be_left, chain(past.started, past.again)))
        self._restore_loans()
        for part in live.parts:
            part.resume()
        if past.runs and not codec.same_nodes(past.runs[-1].get("nodes", ()),
                                              codec.nodes_record(live.cluster.nodes)):
            live.state.promises.clear()  # they were made for other nodes
        live.scheduler.dispatcher.restore(live.state.promises)
        live.scheduler.dispatcher.recall(past.waits)
        live.revise(live.now)

    def _may_be_left(self, job_id: int) -> bool:
        """Return whether a job that was started once may still have processes that no manager follows."""
        return job_id not in self.live.running and self.live.state.entry(job_id).state is not JobState.COMPLETED

    def _restore_loans(self) -> None:
        """Restore the loans of running jobs. Raises RunError if no part can give the cores back."""
        live, lends = self.live, self.live.state.lends
        if lends.all and not any("lend" in part.commands() for part in live.parts):
            raise RunError(f"{live.run_directory.journal}: jobs of this run lend cores, and the part `lending` of vrm's "
                           "extensions, which gives them back, is not in this installation (vrm/ext); install vrm again, "
                           "with all its files")
        lends.apply_node_loans(live.cluster)
        for job_id, shares in lends.shares.items():
            live.cluster.loans.recall(live.cluster, job_id, shares, live.now)

    def _record_run(self, past: RunHistory) -> None:
        """Write the first record of this manager."""
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
                            home=earlier_run.identity(live.run_directory), **live.place.record())

    def _restore_jobs(self, past: RunHistory) -> None:
        """Restore the waiting jobs, without those that must not run (any more)."""
        live, state = self.live, past.state
        waiting = [entry for _, entry in sorted(state.book.parked.items())]
        trusted = {wanted: foreign(live.settings.applications, wanted, live.settings.trust)
                   for wanted in {each for entry in waiting for each in WantedProgram.of(entry.job)}}
        for entry in waiting:
            job = entry.job
            if job.id in past.again:
                self.ends.clear(job.id)
            if entry.state is not JobState.QUEUED:
                continue  # an earlier job, on which it depends, was refused just now
            never = next(filter(None, map(trusted.get, WantedProgram.of(job))), "") or live.room.never(job)
            if never:  # the machine crashed between the job's record and that of its refusal
                self.ends.close_job(EndedJob(job, JobState.REFUSED, never, end=live.now))
        for job_id, reason in list(state.losing.items()):
            entry = state.entry(job_id)
            self.ends.close_job(EndedJob(entry.job, entry.state, reason, end=live.now,
                                        cause=entry.cause if entry.cause == REMOVED else ""))
        state.book.thaw()
        self.intake.report_lacking(sorted(state.book.lacking))

    def _run_again(self, failed: bool) -> None:
        """Requeue, with their ids, the jobs that the earlier manager ended because it was stopped; with `failed` also
        those that did not complete."""
        live, state = self.live, self.live.state
        wanted = ended_unsuccessfully if failed else stopped
        ids: list[int] = []
        refused: list[str] = []
        dropped: list[DroppedJob] = []
        for job_id in with_dependents(state.book.entries, wanted):
            entry = state.entry(job_id)
            try:
                if entry.state is JobState.REFUSED:
                    self.intake.retry(entry)
                else:
                    dropped += state.again(job_id, live.now, "run again by --failed" if failed else
                                           "the manager had been stopped")
                ids.append(job_id)
            except JobStateError as error:
                refused.append(str(error))
        if ids:
            live.tell("note", f"#{fold(ids)} run{'s' * (len(ids) == 1)} again"
                      + (" (--failed)" if failed else ": the manager was stopped while they ran or waited"))
        elif failed:
            live.tell("note", "no job of the run failed: nothing to run again (--failed)")
        for reason in refused[:MOST_SAID]:
            live.tell("warning", reason)
        live.journal.sync()  # the first record of a journal, too: it identifies what a crash leaves behind
        if ids:
            self.live.records.forget(ids)
        for job_id in ids:
            self.ends.clear(job_id)
        self.ends.drop(dropped)

    def _take_over_all(self, past: RunHistory) -> None:
        """Follow all jobs that an earlier manager started, or record how they ended. Running borrowers get the cores
        that ended lenders left to them before an ended job gets the same cores back."""
        intents = dict(self.live.state.intents)
        looked = [(job, start, self._look(job.id, start["time"])) for job, start in past.running]
        order = self._order(looked)
        for stage, group in groupby(sorted(looked, key=lambda each: order[each[0].id]), key=lambda each: order[each[0].id]):
            for job, start, found in group:
                self._take_over(job, start, found, *intents.get(job.id, ("", math.inf)))
            if stage != SUPERSEDED:
                self._pass_to_borrowers(past.rooms)

    def _order(self, looked: Sequence[tuple[Job, StartRecord, recovery.Recovered]]) -> dict[int, int]:
        """Return in which order jobs are taken over. The cores of an ended job may have another job by now, because the
        earlier manager had recorded the start of that job but not the end of this one."""
        cluster, runs = self.live.cluster, {recovery.RUNNING, recovery.ELSEWHERE}
        placements: dict[int, Placement] = {}
        for job, start, _ in looked:
            placement = self._moved(start, self._run_of.get(job.id, {}))
            if placement is not None:
                placements[job.id] = placement
        alive = {job.id for job, _, found in looked if found.what in runs}
        borrowers = {job.id: {each.borrower for each in self.live.state.lends.of_lender(job.id)} for job, _, _ in looked}
        over = superseded(placements, borrowers, cluster.layout) - alive
        return {job.id: SUPERSEDED if job.id in over else RUNNING if not alive.isdisjoint(borrowers[job.id] | {job.id}) else OTHERS
                for job, _, _ in looked}

    def _take_over(self, job: Job, start: StartRecord, found: recovery.Recovered, intent: str, told: float) -> None:
        """Follow a job that an earlier manager started, or record how it ended, according to `found`. With an `intent`
        that manager had signalled the job to end, at `told`."""
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
        running = LiveJob(Start(booking, start["backfilled"]), taken_over=True, looked=False, marker=found.marker,
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

    def _settle(self, running: LiveJob, found: recovery.Recovered, missing: Sequence[str]) -> None:
        """Follow or end a job that was taken over, according to what was found of it; `missing` are the names of its
        missing nodes."""
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

    def _restarted(self, running: LiveJob) -> bool:
        """Return whether a node of a job, other than this machine, was restarted since the job began; sets
        `running.why`."""
        if not self.ends.beyond(running):
            return False
        booking, nodes = running.booking, self.live.cluster.nodes
        ahead = self.live.clock() - time.monotonic()  # against the clock of the nodes' start times
        names = [name for name in (nodes[number].name for number in booking.placement.nodes)
                 if self.site.began.get(name, -math.inf) + ahead > booking.start]
        if names:
            running.why = f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} restarted"
        return bool(names)

    def _moved(self, start: Mapping[str, Any], under: Mapping[str, Any]) -> Placement | None:
        """Return the cores of a recorded start on the present nodes; None if they are not there."""
        before = codec.cluster_of(under, self.live.cluster)
        return codec.moved(codec.placement_of(start["placement"], before), before, self.live.cluster)

    def _now(self, start: Mapping[str, Any], under: Mapping[str, Any], job_id: int) -> Placement | None:
        """Return the present cores of a job that was started; None if they are not there. Cores that a job has lent are
        the borrower's own if that job is not there."""
        cluster, placement = self.live.cluster, self._moved(start, under)
        if placement is None or placement.lease is None:
            return placement
        self._borrowers[job_id] = placement
        settled = self.live.state.lends.settled(placement, job_id)
        there = tuple(each for each in settled.lent if each[0] in cluster.bookings)
        if there == settled.lent or settled.lease is None:
            return settled
        lane0, lane1, own = settled.room
        for lender, cores in settled.lent:
            own |= cores * (lender not in cluster.bookings)
        return settled.but(room=(lane0, lane1, own), lease=settled.lease._replace(lent=there))

    def _missing(self, placement: Placement, before: Cluster) -> list[str]:
        """Return the names of the nodes of a placement, in an earlier manager's cluster, on which nothing can run now:
        they did not answer, or have different cores."""
        cluster = self.live.cluster
        there = {node.name: node.sockets for number, node in enumerate(cluster.nodes) if cluster.up >> number & 1}
        return [node.name for node in (before.nodes[number] for number in sorted(placement.nodes))
                if there.get(node.name) != node.sockets]

    def _pass_to_borrowers(self, rooms: Mapping[tuple[int, int], Room]) -> None:
        """Let running jobs have the cores that ended lenders left to them."""
        cluster = self.live.cluster
        borrowers, self._borrowers = self._borrowers, {}
        for (start, under), loans in self.live.state.lends.left(cluster, borrowers, rooms):
            room = self._now(start, under, start["id"])
            if room is not None:
                cluster.loans.pass_to_borrowers(cluster, room, loans)

    def _never_began(self, running: LiveJob) -> None:
        """Handle a job whose start is in the journal and of which nothing else shows that it started."""
        if running.intent in ("cancel", "stop"):
            self.ends.ended(running, None, *verdict(running.intent, None))
            return
        del self.live.running[running.job.id]
        self.ends.drop(self.live.state.back(running.job.id))

    # The supervisors of an earlier manager's jobs do not report to this manager; the jobs' files show their ends.

    def look(self, now: float, files: bool) -> None:
        """Check whether jobs of an earlier manager have ended."""
        if not files:
            return
        for running in [r for r in self.live.running.values() if r.taken_over]:
            self._look_at_marker(running)
            running.looked = True

    def _look_at_marker(self, running: LiveJob) -> None:
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
            # When another host renames the marker to the status, the two changes may be seen one after the other.
            running.gone_since = min(running.gone_since, self.live.now)
            if not running.away or self.live.now > running.gone_since + SHARED_DELAY:
                ends.lost(running)

    def _may_start(self, running: LiveJob, error: str | None) -> bool:
        """Return whether a job could not be started because of a lack or a node, not because of the job, and the
        earlier manager did not learn of it."""
        nodes, first = (running.former or self.live.cluster).nodes, running.booking.placement.nodes[0]
        return bool(error) and kind_of(error or "", nodes[first].name) is not Failure.JOB

    def _interruption(self, running: LiveJob, found: recovery.Recovered) -> str:
        """Return the intent for a job that ended, if only a lost node or the end of its allocation may have ended it;
        "" if it ended by itself. If its nodes are no longer there, they cannot be queried any more."""
        assert found.status is not None
        if found.gone and not found.status.ok:
            return "interrupted"
        lost = self.ends.lost_nodes(running)
        if lost:  # with Open MPI 5 the exit status may be 0
            running.why = f"the connection to {', '.join(lost)} was lost"
        return "node" if lost or (not found.status.ok and (running.why or self._restarted(running))) else ""

    def _look(self, job_id: int, start: float) -> recovery.Recovered:
        return recovery.look(self.live.run_directory, job_id, self._run_of.get(job_id, {}), self.live.place, start)
