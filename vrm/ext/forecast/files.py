"""A live run, frozen: what its journal and its state file say, with or without a manager.

The journal tells of the jobs, the configuration says who decides. The state file, or the manager
itself, tells what is in no journal: which nodes are down, and when the allocation ends.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from typing import Any
from collections.abc import Callable, Collection, Mapping

from vrm.config.holdings import powered
from vrm.config.policies import history_of, job_of, load_all, make_scheduler, programs_of, table_of
from vrm.config.schema import Settings
from vrm.ext.forecast.ahead import Ahead, still_open
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.frozen import Frozen
from vrm.model import Cluster, Job, JobState
from vrm.model.job import Details, resolved
from vrm.model.placement import Placement
from vrm.model.rules import Rules
from vrm.results import state as states
from vrm.results.forecast import ManagerReport
from vrm.run.journal import codec
from vrm.run.expectations import TEACHING, Expectations, make_expectations
from vrm.run.journal.files import JournalFollower
from vrm.run.journal.folded import JOBS, LIVES
from vrm.run.journal.check import EndRecord, JournalError, Record
from vrm.run.journal.past import Past
from vrm.run.run import Run
from vrm.run.state import State
from vrm.run.rundir import RunDirectory
from vrm.scheduling import JobQueue, Scheduler, Start
from vrm.scheduling.compose import compose
from vrm.system.errors import RunError
from vrm.workload.each import expanded
from vrm.workload.grammar import parse_line
from vrm.workload.submission import Submission


MOST_TESTED = 100
"""Jobs of an array that can be forecast before they are submitted."""

MOST_AHEAD = 2000
"""Waiting jobs with which no more are looked for in the queue file, and those found there at most."""

_KEYS = ("time", "manager", "allocation", "nodes")


class RunFiles:
    """Follows the files of a run. `trouble`: what in them cannot be read; the state is that before
    it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run_directory = RunDirectory(settings.directory, settings.log, settings.state)
        self.trouble = ""
        self._follower = JournalFollower(self.run_directory.journal)
        self._ahead = Ahead(settings)
        self._begin()

    def _begin(self) -> None:
        """Nothing is known."""
        self.past = Past()
        self.history = History()
        self._expectations = self._expected()
        self._time = 0.0  # of the latest record
        self._ticked: float | None = None  # the first start under this manager
        self._taken: float | None = None  # when it has taken a line of the queue the last time
        self._stuck = False
        self._nodes: Any = None
        self._cluster: Cluster | None = None
        self._scheduler: Scheduler | None = None
        self._clusters: dict[int, Cluster] = {}  # of the managers that started jobs

    def _expected(self) -> Expectations | None:
        rules = self.settings.rules
        known = history_of(self.settings)
        for job, run, how in known:
            self._remember(job, run, how)
        return make_expectations(rules, table_of(self.settings), known, live=True)

    def _remember(self, job: Job, run: float, how: JobState) -> None:
        if how in TEACHING:
            self.history.add(job, run)

    @property
    def position(self) -> int:
        """How many records were applied."""
        return self._follower.number

    @property
    def rules(self) -> Rules:
        """How the run schedules: as its configuration says, or as it was changed to."""
        return self.past.in_force(self.settings.rules)

    # The journal.

    def read_new(self) -> bool:
        """Apply the records that were added since the last time; whether there were any. RunError
        when there is no run, or its journal cannot be read."""
        path = self.run_directory.journal
        before = self.position
        try:
            another, records = self._follower.read_new()
        except FileNotFoundError:
            raise RunError(f"there is no run in {self.settings.directory}: no manager has written a "
                           "journal there. Start one with `vrm run`; is this its configuration?"
                           ) from None
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}") from error
        if another:
            self._begin()
        first = self.position - len(records)
        for number, record in enumerate(records if not self._stuck else (), first + 1):
            try:
                self._take(record, number)
            except JournalError as error:
                self._stuck, self.trouble = True, str(error)
        if not self._stuck:
            self.trouble = self._follower.trouble
        return bool(records) or (another and before > 0)

    def _take(self, record: Record, number: int) -> None:
        past, event = self.past, record["event"]
        past.take(record, number, self.run_directory.journal)
        time = record.get("time", record.get("submit"))
        if time is not None:
            self._time = max(self._time, time)
        if event == "run" or (event == "start" and self._ticked is None):
            self._ticked = record["time"] if event == "start" else None
        if event == "run":
            self._taken = None
        elif event in ("job", JOBS) and record.get("position"):
            self._taken = record["submit" if event == "job" else "time"]
        for job_id in [record["id"]] if event == "end" else record["ids"] if event == LIVES else ():
            self._learn(job_id)
        if event == "rules":
            self._cluster = None  # others decide from now on
        elif event == "run" and record.get("nodes") is not None:
            if self._nodes is not None and not codec.same_nodes(self._nodes, record["nodes"]):
                past.state.promises.clear()  # they were made for other nodes
            self._nodes, self._cluster = record["nodes"], None

    def _learn(self, job_id: int) -> None:
        """Learn from how long a job has taken."""
        lesson = self.past.lesson(job_id)
        if lesson is not None:
            self._remember(*lesson)
            if self._expectations is not None:
                self._expectations.learn(*lesson)

    def about(self, job_id: int) -> str:
        """What the journal says of a job, in a line."""
        job, end = self.past.jobs.get(job_id), self.past.ended.get(job_id)
        if job is None:
            return f"there is no job {job_id}"
        if end is not None or job_id in self.past.started:
            return over(job, end)
        return f"#{job_id} {job.app} waits behind those that are forecast"

    # The state.

    def told(self) -> ManagerReport:
        """What the state file says; of a manager that does not run any more only which nodes were
        down."""
        try:
            found = ManagerReport.of(states.read(self.run_directory.state, _KEYS))
        except (OSError, ValueError):
            return ManagerReport()
        if found.phase != "ended" and not self._runs():
            return found._replace(phase="ended")
        return found

    def _runs(self) -> bool:
        try:
            return self.run_directory.manager_runs()
        except OSError:  # there are no locks here, or it is another user's
            return True

    def frozen(self, told: ManagerReport, now: float | None = None, most: float = math.inf) -> Frozen:
        """The run at this moment (default: now), with no more than the first `most` waiting jobs.
        RunError when it has no nodes yet, ConfigError when the configuration makes no scheduler.

        A manager's own clock counts while it runs, that of this host otherwise; no moment is before
        that of the latest record. Without a manager the forecast is for one that starts now, with no
        end of its allocation.
        """
        settings, past = self.settings, self.past
        alive = told.phase != "ended"
        if now is None:
            now = told.time if alive else max(time.time(), told.time)
        now = max(now, self._time)
        cluster, scheduler = self._made()
        state = self._state(cluster, scheduler, told.down, now, most)
        expectations = self._expectations and self._expectations.copy()
        run = Run(state, scheduler, expectations)
        if scheduler.interval and self._ticked is not None:
            scheduler.ticked(self._ticked)
        scheduler.dispatcher.restore(state.promises)
        scheduler.dispatcher.recall(past.waits)
        if expectations is not None:
            expectations.correct_all(cluster, now)
        end = cut = math.inf
        if alive:
            end, cut = told.end - settings.end.margin, told.end - settings.grace
        if told.phase == "stopping":
            end = now
        later: tuple[Submission, ...] = ()
        if not past.input_ended and told.phase in ("running", "ended") and state.waiting < most:
            later = self._ahead.jobs(past.position, self._taken if alive else None, now, state.next_id,
                                     past.state.names, past.ended, int(min(most, MOST_AHEAD)) - state.waiting,
                                     past.format > 1)
        # A manager that runs has decided already, and what it plans has to be planned again.
        due = not (alive and scheduler.dispatcher.heads_first)
        return Frozen(run, now, end, settings.walltime == "kill", settings.end.fit, cut, self.history,
                      self.position, later=later, due=due)

    def _state(self, cluster: Cluster, scheduler: Scheduler, down: Collection[str], now: float, most: float) -> State:
        """The jobs and nodes at this moment, with the first `most` waiting jobs."""
        past = self.past
        state = _onto(past.state, scheduler.new_queue(), cluster, scheduler.lacks)
        if state.waiting > most:
            first = itertools.islice(state.queue.in_order(now), int(most))
            state = _onto(past.state, scheduler.new_queue(), cluster, scheduler.lacks,
                                    [job.id for job in first])
        state.book.begin(now)
        for start in self._running(cluster):
            state.running[start.job.id] = start
        for job_id, shares in state.lends.shares.items():  # what they have lost by that
            cluster.loans.recall(cluster, job_id, shares, now)
        for number, node in enumerate(cluster.nodes):
            if node.name in down:
                state.cluster.set_up(number, False)
        return state

    def submitted(self, line: str, now: float) -> tuple[list[Job], list[Details]]:
        """The jobs of a line of a queue as they would be entered now, with what else they are submitted
        with. LineError (a ValueError) for a line that is wrong; ValueError for a dependency on a job
        that there is not, or that ended otherwise than wanted, and for large arrays."""
        wanted = expanded(parse_line(line), self.settings.applications.queue.parent)
        state, ended = self.past.state, self.past.ended
        indices = wanted.fields.get("array", ())
        if len(indices) > MOST_TESTED:
            raise ValueError(f"an array of more than {MOST_TESTED} jobs is not forecast before it is "
                             "submitted; ask for a part of it")
        after = still_open(resolved(wanted.fields.get("after", ()), state.names), ended)
        first, details = job_of(self.settings, {**wanted.values, "after": after}, state.next_id, now)
        count = len(indices) or 1
        return ([first.but(id=first.id + at) for at in range(count)],
                [details.of(indices[at], first.payload) if indices else details for at in range(count)])

    def _made(self) -> tuple[Cluster, Scheduler]:
        """An empty cluster of the run's nodes, and its scheduler."""
        if self._cluster is None or self._scheduler is None:
            if self._nodes is None:
                raise RunError(f"{self.run_directory.journal} does not say on which nodes the run is: "
                               "its manager has only begun, or was vrm 0.1.0")
            self._cluster = Cluster(powered(self.settings.node_classes, codec.nodes_of(self._nodes)),
                                    self.settings.licences)
            self._cluster.programs = programs_of(self.settings)
            self._scheduler = make_scheduler(self.settings, self._cluster)
            rules, heatmap = self.rules, self._scheduler.policy.heatmap
            if rules != self.settings.rules:
                load_all(self.settings, rules)
                self._scheduler = compose(rules, self._cluster, heatmap)
            self._clusters = {}
        cluster = self._cluster.copy()
        return cluster, self._scheduler.copy(cluster)

    def _running(self, cluster: Cluster) -> list[Start]:
        """Book the jobs that run; what has no cores there any more is left out.

        The cores of a job are free before its end is recorded: where two have the same, the later
        one has them.
        """
        found = []
        borrowers: dict[int, Placement] = {}
        lends = self.past.state.lends
        for job, start in sorted(self.past.running, key=lambda each: (
                "lent" in each[1]["placement"], -each[1]["time"])):  # who borrows last
            placement = self._placement(start, self.past.run_of[job.id])
            if placement is not None and placement.lease is not None:
                borrowers[job.id] = placement
                placement = lends.settled(placement, job.id)
            if placement is None or cluster.clashes(placement):
                continue
            booking = cluster.book(job, placement, start["time"])
            found.append(Start(booking, start["backfilled"]))
        for room, loans in lends.left(cluster, borrowers, self.past.rooms):
            left = self._placement(*room)
            if left is not None:
                cluster.loans.bequeath(cluster, left, loans)
        lends.to_node(cluster)
        return sorted(found, key=lambda each: each.booking.start)

    def _placement(self, start: Mapping[str, Any], under: Mapping[str, Any]) -> Placement | None:
        """Where a job runs, on the nodes there are now."""
        assert self._cluster is not None
        if id(under) not in self._clusters:
            self._clusters[id(under)] = codec.cluster_of(under, self._cluster)
        before = self._clusters[id(under)]
        return codec.moved(codec.placement_of(start["placement"], before), before, self._cluster)


def over(job: Job, end: EndRecord | None) -> str:
    """What there is to say of a job that waits no longer, in a line; `end` is the record of its end, None: it runs."""
    if end is None:
        return f"#{job.id} {job.app} runs"
    reason = f": {end['reason']}" if end.get("reason") else ""
    return f"#{job.id} {job.app} has ended as {end['state']}{reason}"


def _onto(state: State, queue: JobQueue, cluster: Cluster, lacks: Callable[[Job], str] | None = None,
          only: Collection[int] | None = None) -> State:
    """What a frozen state says of the jobs that wait and run, as a state in which the waiting ones
    are in the (empty) `queue`: a copy without a log. Nothing is kept of jobs that have ended, but
    of those on which others depend; with `only` nothing of other jobs that wait. Running jobs are
    to be booked on the `cluster`.
    """
    twin = State(queue, cluster, lacks, lends=state.lends.copy())
    queue.bound.update(state.queue.bound)
    twin.reservations.take_over(state.reservations)
    if twin.reservations:
        twin.reservations.show()
    entries, book, waiting = state.book.entries, twin.book, state.book.parked
    if only is not None:
        waiting = {job_id: waiting[job_id] for job_id in only}
    wanted = {job_id for entry in waiting.values() for each in entry.details.after
              for job_id in each.ids}
    running = {job_id for job_id, entry in entries.items()
               if entry.state is JobState.RUNNING or job_id in wanted}
    for job_id in sorted(running.union(waiting)):
        old = entries[job_id]
        if job_id not in waiting:
            book.know(old.job, old.details, old.state)
            book.entries[job_id].begun = old.begun
        else:
            details = old.details
            book.enter(old.job, details if details.held == old.held
                       else replace(details, held=old.held))
        new = book.entries[job_id]
        new.tries, new.losses, new.begun = old.tries, old.losses, old.begun
    for name, ids in state.names.items():
        kept = [job_id for job_id in ids if job_id in book.entries]
        if kept:
            twin.names[name] = kept
    twin.intents = dict(state.intents)
    twin.promises.update(state.promises)
    twin.counts = dict(state.counts)
    twin.next_id = state.next_id
    return twin
