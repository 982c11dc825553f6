"""The part of the manager that finds nodes which fail or slow jobs, has them probed, and puts them into
quarantine."""

from __future__ import annotations

import heapq
import math
import selectors
from dataclasses import replace
from typing import Any
from collections.abc import Hashable, Iterator, Mapping

from vrm.ext.learning.copied_work import LOOK as LOOK_AGAIN, CopiedWork
from vrm.ext.learning.curves import input_key
from vrm.ext.learning.health.findings import (
    BAD, CLEARED, QUARANTINED, SUSPECTED, AttemptRecord, NodeRecord, compared, sentence)
from vrm.ext.learning.health.detection import judge
from vrm.ext.learning.health.probes import ProbeFinished, Probes
from vrm.ext.learning.health.report import KEPT, MOST, attempt_trial
from vrm.ext.learning.health.trials import OUTCOMES, NodeTrial, merged, trial_from_job
from vrm.ext.learning.keys import OFF, ON
from vrm.ext.learning.learned_jobs import learned, machine_of
from vrm.ext.learning.store import LearnedStore, StoreError, place
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.nodes import NodeEvents
from vrm.live.manager.part import JobEnded, JobReleased, Part
from vrm.live.manager.records.records import EndedJob
from vrm.live.nodes.node_watch import NodeWentDown
from vrm.model import Job, JobState, bits
from vrm.model.forms import json_checks
from vrm.model.forms.hosts import fold
from vrm.results import shares
from vrm.run.journal import codec
from vrm.run.journal.history import RunHistory
from vrm.scheduling.backfilling.shadow import Shadow

PAUSE, REST = 1.0, 50.0
"""Least number of seconds between two judgements, and the pause as a multiple of the duration of the last one."""

FEW = 200
"""Number of runs up to which the manager itself judges, which takes some hundredths of a second; a copy judges
more."""

SHARE = 4
"""One of this many nodes may be in quarantine, and one of two or three nodes."""

EVERY = 60.0
"""Seconds after which failed attempts are written to the store."""

LOOK = 10.0
"""Seconds between two checks whether a node was cleared."""

PATIENCE = 0.5
"""Seconds that a manager waits while another program writes."""

KINDS = 24
"""Number of different waiting jobs that are checked for needing a node in quarantine."""


class NodeHealth(Part):
    """Judges the nodes by the jobs that end (`vrm.ext.learning.health.detection`) and reports bad ones. With
    `Hosts: {Quarantine: on}` a bad node takes no new jobs, and a suspected one is probed when no job runs on
    it."""

    events = {"node": {"name": json_checks.line, "state": json_checks.line, "cause": json_checks.line,
                       "since": json_checks.number,
                       "text": json_checks.line}}
    observes = (NodeWentDown, JobEnded, JobReleased, ProbeFinished)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        # All emulated nodes are this machine.
        self.mode = live.settings.extended("Hosts.Quarantine") or OFF if live.watch.watches else OFF
        self._path = place(live.settings.extended("Learning.Store"))
        self._machine = machine_of(codec.nodes_record(live.cluster.nodes))
        self._index = {node.name: number for number, node in enumerate(live.cluster.nodes)}
        self._trials: list[NodeTrial] = []
        self._cleared: dict[str, float] = {}
        self.records: dict[str, NodeRecord] = {}
        self._quarantined: set[str] = set()  # nodes that this part has drained
        self._probes = Probes(live, live.part(NodeEvents), self._machine)
        self._attempts: list[AttemptRecord] = []
        self._unsaved: dict[str, NodeRecord] = {}
        self._due = self._save_due = self._look_due = math.inf
        self._trouble = ""
        self._pause = PAUSE
        self._copied = CopiedWork()

    # Known from earlier.

    def happened(self, event: str, values: Mapping[str, Any]) -> None:
        """Restore a finding of an earlier manager of the run."""
        record = NodeRecord(self._machine, **values)
        if record.state == CLEARED:
            self.records.pop(record.name, None)
            self._cleared[record.name] = record.since
        else:
            self.records[record.name] = record

    def recall(self, past: RunHistory) -> None:
        """Count the jobs of the run that have ended, as far as they are judged."""
        if self.mode == OFF:
            return
        run, rows = self.live.launcher.run_id, self.live.records.rows.values()
        last = heapq.nlargest(MOST, (row for row in rows if row.start is not None), key=lambda row: row.end or 0.0)
        mine = (learned(row, run) for row in last)
        self._trials += filter(None, (trial_from_job(job) for job in mine if job is not None))

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Read what other runs found about the nodes, and keep bad ones in quarantine."""
        live, now = self.live, self.live.now
        if self.mode == OFF:
            return
        try:
            self._read()
        except StoreError as error:
            self._tell(str(error))
        for name, record in sorted(self.records.items()):
            if name in self._index and record.state in (BAD, QUARANTINED) and now - record.since < KEPT:
                if self.mode == ON:
                    self._put_into_quarantine(record, f"{record.cause} in an earlier run: {record.text}")
                else:
                    live.tell("note", f"node {name} was {record.cause} in an earlier run: {record.text} "
                                      "(vrm learned nodes)")
        self._due = now

    def _read(self) -> None:
        if self._path is None:
            return
        with LearnedStore(self._path, PATIENCE, reading=True) as store:
            jobs = store.jobs(machine=self._machine, last=MOST)
            attempts = [AttemptRecord(*row) for row in store.rows("attempts", self._machine)]
            self._probes.know(store.rows("probes", self._machine))
            for row in store.rows("nodes", self._machine):
                record = NodeRecord(*row)
                if record.state == CLEARED:
                    self._cleared[record.name] = max(record.since, self._cleared.get(record.name, 0.0))
                elif record.since > self._cleared.get(record.name, 0.0):
                    self.records[record.name] = record
        self._trials += filter(None, map(trial_from_job, jobs))
        self._trials += map(attempt_trial, attempts)

    # Events.

    def observe(self, event: object) -> None:
        """Count the ends of jobs, and take the results of probes."""
        if self.mode == OFF:
            return
        if isinstance(event, JobEnded):
            self._ended(event.outcome)
        elif isinstance(event, JobReleased):
            booking = self.live.cluster.bookings.get(event.job.id)
            if booking is not None:
                self._probe(bits.members(booking.placement.node_set), event.job.id)
        elif isinstance(event, ProbeFinished):
            self._probes.answered(event, self._quarantined)
            self._due = min(self._due, self.live.now)
        elif isinstance(event, NodeWentDown):
            self._probes.lost(event.node)

    def _ended(self, outcome: EndedJob) -> None:
        """Count an attempt of a job that its program or its limit ended."""
        booking, state = outcome.booking, outcome.state
        if booking is None or outcome.cluster is not None or state.value not in OUTCOMES or (
                outcome.cause and outcome.cause != "timeout"):
            return
        job, run, nodes = outcome.job, self.live.launcher.run_id, self.live.cluster.nodes
        cores, seconds = max(1, job.request.cores_per_task), outcome.end - booking.start
        names = [nodes[node].name for node in booking.placement.nodes]
        key = job.app, input_key(job), job.procs, cores
        self._trials.append(NodeTrial(run, job.id, key, frozenset(names), outcome.end,
                                  0.0 if shares.shared(booking) else seconds, state.value))
        if state is JobState.FAILED:
            self._attempts.append(AttemptRecord(run, job.id, job.app, key[1], job.procs, cores * job.procs, fold(names),
                                                booking.start, outcome.end, self._machine))
            self._save_due = min(self._save_due, self.live.now + EVERY)
        self._due = min(self._due, self.live.now + self._pause)

    def deadline(self, now: float) -> float:
        """Return when nodes are to be judged, or the store is to be written or read."""
        working = now + LOOK_AGAIN if self._copied.working else self._due
        return min(working, self._save_due, self._look_due, self._probes.until)

    def tidy(self, now: float) -> None:
        """Judge the nodes when that is due; read and write the store when that is due."""
        if self.mode == OFF:
            return
        self._copied.look()
        if self._probes.overdue(now):
            self._probes.forget(now, self._quarantined)
        if now >= self._look_due:
            self._look(now)
        if now >= self._due and not self._copied.working:
            self._due = math.inf
            self._judge(now)
        if now >= self._save_due:
            self._save(PATIENCE)

    def end(self) -> None:
        """Write what is left to the store."""
        self._save(2 * PATIENCE)

    # Judging.

    def _kind(self, name: str) -> Hashable:
        """Return the class of a node; for a node of earlier runs only if all nodes are of one class, otherwise
        None."""
        classes, number = self.live.cluster.classes, self._index.get(name)
        if len(classes) == 1:
            return 0
        return None if number is None else next(at for at, each in enumerate(classes) if each.members >> number & 1)

    def _judge(self, now: float) -> None:
        """Look for bad nodes among those of this run; a copy of the manager does so if there are many runs."""
        self._trials = merged(self._trials, now - KEPT, MOST)
        if len(self._trials) > FEW:
            self._copied.begin(self._judged, self._take)
        else:
            self._take(self._judged(), 0.0)

    def _judged(self) -> dict[str, tuple[str, bool, str]]:
        """Return, for each suspected node, the cause, whether the evidence is enough, and a text."""
        return {name: (finding.cause, finding.bad, sentence(finding))
                for finding in judge(self._trials, self._kind, self._cleared)
                for name in (finding.node, *finding.together)}

    def _take(self, findings: Mapping[str, tuple[str, bool, str]] | None, seconds: float) -> None:
        """Act on the findings of a judgement, which took `seconds`."""
        now, self._pause = self.live.now, max(PAUSE, REST * seconds)
        if findings is None:
            return
        for name, (cause, enough, text) in findings.items():
            if name in self._index:
                self._found(name, cause, enough, text, now)
        self.records = {name: record for name, record in self.records.items()
                        if record.state != SUSPECTED or name in findings}
        self._probe(range(len(self._index)))
        self._look_due = now + LOOK if self.records else math.inf
        self._release_needed(now)

    def _found(self, name: str, cause: str, enough: bool, text: str, now: float) -> None:
        """Handle a suspected node: it is bad if the evidence is enough, or if a probe found something wrong."""
        known = self.records.get(name)
        probe = self._probes.known.get(name)
        since = known.since if known else now
        result = compared(probe, self._probes.peers(name, self._kind)) if probe is not None and (
            probe.time >= since - 1.0 or probe.fault) else None
        if result is not None:
            text += f"; a probe: {result.text}"
        state = BAD if enough or (result is not None and result.bad) else SUSPECTED
        if known is not None and known.state in (state, BAD, QUARANTINED):
            if known.state in (state, SUSPECTED):
                self.records[name] = replace(known, text=text)
            return
        record = NodeRecord(self._machine, name, state, cause, since, text)
        if state == SUSPECTED:
            self.records[name] = record
            self.live.tell("note", f"node {name} may be {cause}: {text}")
        elif self.mode == ON:
            self._put_into_quarantine(record, f"{cause}: {text}")
        else:
            self._keep(record)
            self.live.tell("warning", f"node {name} is {cause}: {text}; Hosts: {{Quarantine: on}} gives such "
                                      "nodes no jobs, `vrm learned nodes` prints this for the help desk")

    def _put_into_quarantine(self, record: NodeRecord, why: str) -> None:
        """Stop giving a node new jobs, unless too many nodes are in quarantine, or a waiting job could then not
        run."""
        live, node, name = self.live, self._index[record.name], record.name
        if name in self._quarantined:
            return
        needed = next((job for job in self._waiting() if not self._can_run(job, without=node)), None)
        most = max(1, len(self._index) // SHARE)
        if len(self._index) < 2 or len(self._quarantined) >= most or needed is not None:
            self._keep(replace(record, state=BAD))
            reason = (f"#{needed.id} needs it" if needed is not None else
                      f"{len(self._quarantined)} of {len(self._index)} node(s) have none already")
            live.tell("warning", f"node {name} is {why}; it gets jobs still, since {reason} (vrm learned nodes)")
            return
        self._keep(replace(record, state=QUARANTINED))
        self._quarantined.add(name)
        self._probes.nodes.drain(node, f"quarantine, {why}")
        live.tell("warning", f"node {name} is in quarantine, {why} (vrm learned nodes)")

    def _keep(self, record: NodeRecord) -> None:
        """Record the finding about a node in the journal and in the store."""
        if self.records.get(record.name) != record:
            self.live.record(self, "node", name=record.name, state=record.state, cause=record.cause, since=record.since,
                             text=record.text)
            self._unsaved[record.name] = record
            self._save_due = self.live.now
        self.records[record.name] = record

    def _waiting(self) -> Iterator[Job]:
        """Yield the first of each kind of waiting job."""
        seen = set[Hashable]()
        for job in self.live.state.book.queue.in_order(self.live.now):
            if (job.procs, job.request) not in seen:
                seen.add((job.procs, job.request))
                yield job
            if len(seen) >= KINDS:
                return

    def _can_run(self, job: Job, without: int | None = None) -> bool:
        """Return whether a waiting job can run at some time on the nodes that take jobs."""
        cluster, now = self.live.cluster, self.live.now
        if without is not None:
            cluster = cluster.copy()
            cluster.set_up(without, False)
        policy = self.live.scheduler.policy_on(cluster, now)
        return bool(policy.place(job, cluster)) or Shadow(job, now, cluster, policy).time < math.inf

    def _release_needed(self, now: float) -> None:
        """Release nodes from quarantine if a waiting job can run only there."""
        while self._quarantined:
            needed = next((job for job in self._waiting() if not self._can_run(job)), None)
            if needed is None:
                return
            name = min(self._quarantined, key=lambda name: (-self.records[name].since, name))
            self._quarantined.remove(name)
            self._keep(replace(self.records[name], state=BAD))
            self._probes.nodes.resume_node(self._index[name])
            self.live.tell("warning", f"node {name} takes jobs again, since #{needed.id} needs it (vrm learned nodes)")

    # Probes.

    def _probe(self, nodes: Any, leaves: int | None = None) -> None:
        """Probe those of `nodes` that are suspected, or that serve as a comparison, if no job is there;
        `leaves` is a job that is about to leave."""
        suspects = [name for name, record in self.records.items() if name in self._index and record.state != CLEARED]
        if suspects and self.mode == ON:  # nodes take no jobs while they are probed
            self._probes.begin(nodes, {name: self.records[name].since for name in suspects}, self._kind, leaves)

    # The store.

    def _look(self, now: float) -> None:
        """Check whether nodes were cleared, and release those."""
        self._look_due = now + LOOK
        self._release_needed(now)
        if self._path is None:
            return
        try:
            with LearnedStore(self._path, PATIENCE, reading=True) as store:
                rows = [NodeRecord(*row) for row in store.rows("nodes", self._machine)]
        except StoreError as error:
            self._tell(str(error))
            return
        for record in rows:
            known = self.records.get(record.name)
            if record.state == CLEARED and known is not None and record.since > known.since:
                self._cleared[record.name] = record.since
                self.live.record(self, "node", name=record.name, state=CLEARED, cause=known.cause, since=record.since,
                                 text="cleared")
                del self.records[record.name]
                if record.name in self._quarantined:
                    self._quarantined.remove(record.name)
                    self._probes.nodes.resume_node(self._index[record.name])
                self.live.tell("note", f"node {record.name} takes jobs as before: it was cleared")

    def _save(self, patience: float) -> None:
        """Write the findings to the store."""
        self._save_due = math.inf
        if self._path is None or not (self._attempts or self._unsaved or self._probes.unsaved):
            return
        try:
            with LearnedStore(self._path, patience) as store:
                store.add_rows("attempts", self._attempts)
                store.add_rows("nodes", self._unsaved.values())
                store.add_rows("probes", self._probes.unsaved)
        except StoreError as error:
            self._tell(str(error))
            self._save_due = self.live.now + EVERY
            return
        self._attempts.clear()
        self._unsaved.clear()
        self._probes.unsaved.clear()

    def _tell(self, why: str) -> None:
        """Report a fault of the store, once."""
        if why != self._trouble:
            self._trouble = why
            self.live.tell("warning", f"what is found of nodes is not kept: {why}")
