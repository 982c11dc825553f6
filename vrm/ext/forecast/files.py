"""Reads a live run from its journal and its state file, with or without a manager, and freezes it.

The jobs come from the journal, the scheduling rules from the configuration. The state file, or the manager
itself, has what is not in the journal: which nodes are down, and when the allocation ends.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from typing import Any
from collections.abc import Callable, Collection, Mapping

from vrm.config.node_classes import powered
from vrm.config.policies import history_of, job_of, load_all, make_scheduler, programs_of, table_of
from vrm.config.schema import Settings
from vrm.ext.forecast.lookahead import QueueLookahead, unmet_dependencies
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.frozen import FrozenRun
from vrm.model import Cluster, Job, JobState
from vrm.model.job import Details, resolved
from vrm.model.placement import Placement
from vrm.model.rules import Rules
from vrm.results import state as states
from vrm.results.forecast import ManagerReport
from vrm.run.journal import codec
from vrm.run.expectations import TEACHING, Expectations, make_expectations
from vrm.run.journal.follower import JournalFollower
from vrm.run.journal.combined_records import JOBS, LIVES
from vrm.run.journal.record_checks import EndRecord, JournalError, Record
from vrm.run.journal.history import RunHistory
from vrm.run.run import Run
from vrm.run.state import State
from vrm.run.rundir import RunDirectory
from vrm.scheduling import JobQueue, Scheduler, Start
from vrm.scheduling.compose import compose
from vrm.system.errors import RunError
from vrm.workload.each_field import expanded
from vrm.workload.grammar import parse_line
from vrm.workload.submission import Submission


MOST_TESTED = 100
"""Greatest number of jobs of an array that can be forecast before they are submitted."""

MOST_AHEAD = 2000
"""Greatest number of waiting jobs together with jobs found in the queue file: at this number the search in the
queue file stops."""

_KEYS = ("time", "manager", "allocation", "nodes")


class RunFiles:
    """Follows the files of a run. `trouble` says what cannot be read in them; the state is then that before the
    fault."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run_directory = RunDirectory(settings.directory, settings.log, settings.state)
        self.trouble = ""
        self._follower = JournalFollower(self.run_directory.journal)
        self._ahead = QueueLookahead(settings)
        self._begin()

    def _begin(self) -> None:
        """Reset to an empty run."""
        self.past = RunHistory()
        self.history = History()
        self._expectations = self._expected()
        self._time = 0.0  # time of the latest record, in seconds
        self._ticked: float | None = None  # the first start under this manager
        self._taken: float | None = None  # when the manager last read a line of the queue
        self._stuck = False
        self._nodes: Any = None
        self._cluster: Cluster | None = None
        self._scheduler: Scheduler | None = None
        self._clusters: dict[int, Cluster] = {}  # of the managers that started jobs, by id() of their run record

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
        """Number of journal records that were applied."""
        return self._follower.number

    @property
    def rules(self) -> Rules:
        """The rules by which the run schedules: those of its configuration, or those to which it was changed."""
        return self.past.in_force(self.settings.rules)

    # The journal.

    def read_new(self) -> bool:
        """Apply the journal records that were added since the last call; return whether there were any. Raises
        RunError if there is no run, or if its journal cannot be read."""
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
            self._cluster = None  # other rules decide from now on
        elif event == "run" and record.get("nodes") is not None:
            if self._nodes is not None and not codec.same_nodes(self._nodes, record["nodes"]):
                past.state.promises.clear()  # they were made for other nodes
            self._nodes, self._cluster = record["nodes"], None

    def _learn(self, job_id: int) -> None:
        """Learn from the run time of a job that has ended."""
        lesson = self.past.lesson(job_id)
        if lesson is not None:
            self._remember(*lesson)
            if self._expectations is not None:
                self._expectations.learn(*lesson)

    def about(self, job_id: int) -> str:
        """Return one line about a job, from the journal."""
        job, end = self.past.jobs.get(job_id), self.past.ended.get(job_id)
        if job is None:
            return f"there is no job {job_id}"
        if end is not None or job_id in self.past.started:
            return over(job, end)
        return f"#{job_id} {job.app} waits behind those that are forecast"

    # The state.

    def told(self) -> ManagerReport:
        """Return the report in the state file. If the manager no longer runs, its phase is "ended"."""
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
        except OSError:  # no file locks here, or the run is another user's
            return True

    def frozen(self, told: ManagerReport, now: float | None = None, most: float = math.inf) -> FrozenRun:
        """Return the run at `now` (default: the present), with at most the first `most` waiting jobs. Raises
        RunError if the run has no nodes yet, and ConfigError if the configuration makes no scheduler.

        While a manager runs, its own clock counts, otherwise that of this host; the time is never before that
        of the latest record. Without a manager the forecast is for one that starts now, with no end of its
        allocation.
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
        # A running manager has decided already, except that a dispatcher with plans has to plan again.
        due = not (alive and scheduler.dispatcher.heads_first)
        return FrozenRun(run, now, end, settings.walltime == "kill", settings.end.fit, cut, self.history,
                         self.position, later=later, due=due)

    def _state(self, cluster: Cluster, scheduler: Scheduler, down: Collection[str], now: float, most: float) -> State:
        """Return the jobs and nodes at this moment, with the first `most` waiting jobs."""
        past = self.past
        state = _copy_state(past.state, scheduler.new_queue(), cluster, scheduler.lacks)
        if state.waiting > most:
            first = itertools.islice(state.queue.in_order(now), int(most))
            state = _copy_state(past.state, scheduler.new_queue(), cluster, scheduler.lacks,
                                    [job.id for job in first])
        state.book.begin(now)
        for start in self._running(cluster):
            state.running[start.job.id] = start
        for job_id, shares in state.lends.shares.items():  # deduct the time that they have lost by lending
            cluster.loans.recall(cluster, job_id, shares, now)
        for number, node in enumerate(cluster.nodes):
            if node.name in down:
                state.cluster.set_up(number, False)
        return state

    def submitted(self, line: str, now: float) -> tuple[list[Job], list[Details]]:
        """Return the jobs of a queue line as they would be entered now, and their further details. Raises
        LineError (a ValueError) for a wrong line, and ValueError for a dependency on a job that does not exist
        or ended in another state than wanted, and for large arrays."""
        wanted = expanded(parse_line(line), self.settings.applications.queue.parent)
        state, ended = self.past.state, self.past.ended
        indices = wanted.fields.get("array", ())
        if len(indices) > MOST_TESTED:
            raise ValueError(f"an array of more than {MOST_TESTED} jobs is not forecast before it is "
                             "submitted; ask for a part of it")
        after = unmet_dependencies(resolved(wanted.fields.get("after", ()), state.names), ended)
        first, details = job_of(self.settings, {**wanted.values, "after": after}, state.next_id, now)
        count = len(indices) or 1
        return ([first.but(id=first.id + at) for at in range(count)],
                [details.of(indices[at], first.payload) if indices else details for at in range(count)])

    def _made(self) -> tuple[Cluster, Scheduler]:
        """Return an empty cluster of the run's nodes, and its scheduler."""
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
        """Book the jobs that run. Jobs that no longer have cores on the present nodes are left out.

        The cores of a job are free before its end is recorded: if two jobs have the same cores, the later one
        has them.
        """
        found = []
        borrowers: dict[int, Placement] = {}
        lends = self.past.state.lends
        for job, start in sorted(self.past.running, key=lambda each: (
                "lent" in each[1]["placement"], -each[1]["time"])):  # borrowers last
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
                cluster.loans.pass_to_borrowers(cluster, left, loans)
        lends.apply_node_loans(cluster)
        return sorted(found, key=lambda each: each.booking.start)

    def _placement(self, start: Mapping[str, Any], under: Mapping[str, Any]) -> Placement | None:
        """Return where a job runs, on the present nodes."""
        assert self._cluster is not None
        if id(under) not in self._clusters:
            self._clusters[id(under)] = codec.cluster_of(under, self._cluster)
        before = self._clusters[id(under)]
        return codec.moved(codec.placement_of(start["placement"], before), before, self._cluster)


def over(job: Job, end: EndRecord | None) -> str:
    """Return one line about a job that no longer waits. `end` is the record of its end; None: it runs."""
    if end is None:
        return f"#{job.id} {job.app} runs"
    reason = f": {end['reason']}" if end.get("reason") else ""
    return f"#{job.id} {job.app} has ended as {end['state']}{reason}"


def _copy_state(state: State, queue: JobQueue, cluster: Cluster, lacks: Callable[[Job], str] | None = None,
                only: Collection[int] | None = None) -> State:
    """Return a copy of `state`, without a log, whose waiting jobs are in the (empty) `queue`. Jobs that have
    ended are left out unless others depend on them; with `only` also all waiting jobs that it does not name.
    The caller has to book the running jobs on the `cluster`."""
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
