"""The part of the manager that writes ended jobs to the store and their resource use to `jobs.csv`, and reports
what they wasted."""

from __future__ import annotations

import math
import os
import selectors
from itertools import islice
from typing import Any
from collections.abc import Collection

from vrm.ext.learning.copied_work import CopiedWork
from vrm.ext.learning.moldable import WidthChoice, Moldable
from vrm.ext.learning.learned_jobs import LearnedJob, input_of, learned, machine_of, overlaps
from vrm.ext.learning.pairs.heatmap import HISTORY as HISTORY_OF_PAIRS, LearnedHeatmap
from vrm.ext.learning.store import PATIENCE, LearnedStore, StoreError, place
from vrm.ext.learning.job_use import JobUses, NodeUse
from vrm.ext.learning.waste import run_use, use_of
from vrm.ext.learning.widths import RANKS, text_of
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import JobLaunched, Part, RecordPrepared
from vrm.model import Job
from vrm.model.forms import json_checks
from vrm.results.jobs import JobRow
from vrm.run.journal import codec
from vrm.run.journal.history import RunHistory

EVERY = 60.0
"""Seconds after which ended jobs are written to the store."""

AT_THE_END = 2.0
"""Seconds that a manager waits at its end while another program writes."""


WORTH = 10.0
"""Least seconds of a job or a run whose waste is reported."""

MOST = 100_000
"""Greatest number of jobs of a run whose use is reported."""

HISTORY = 20_000
"""Number of jobs of the store from which curves are learned: the last ones."""

READING = 1.0
"""Seconds that a manager waits at its start while another program writes."""


PAIRS = 20
"""Number of ended jobs after which pairs are learned again."""


class LearningPart(Part):
    """Writes ended jobs to the store: from time to time in a copy of the manager, which delays nothing, and at
    the end of the manager. Rows in the store are replaced, so each manager of a run adds all of the run's jobs.
    Once for each program and input it reports what a job wasted, and at the end what the run used."""

    events = {"width": {"id": json_checks.count, "ranks": json_checks.positive, "objective": json_checks.line,
                        "options": json_checks.list_of(json_checks.list_of(json_checks.number))}}
    observes = (JobLaunched, NodeUse, RecordPrepared)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._path = place(live.settings.extended("Learning.Store"))
        self._pending: set[int] = set()
        self._due = math.inf
        self._writing = False
        self._trouble = ""
        self._uses = JobUses(live)
        self._ended: list[int] = []  # jobs to report on when their lines are written
        self._said: set[tuple[str, str]] = set()
        self._known: list[LearnedJob] = []  # jobs of earlier runs, from which pairs are learned
        self._new = 0  # number of jobs that have ended since pairs were learned
        self._copied = CopiedWork()
        self._rigid = False  # whether the warning that numbers of ranks are not chosen was given

    def recall(self, past: RunHistory) -> None:
        """Add the jobs of earlier managers again: the last one may have been killed before it wrote them."""
        self._pending = set(self.live.records.rows)

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Learn how programs scale and how they share nodes, from the jobs of all runs on this machine, if the
        configuration asks for it."""
        dispatcher, heatmap = self.live.scheduler.dispatcher, self.live.scheduler.policy.heatmap
        if not isinstance(dispatcher, Moldable) and not isinstance(heatmap, LearnedHeatmap):
            return
        run = self.live.launcher.run_id
        known: list[LearnedJob] = []
        if self._path is not None:
            try:
                with LearnedStore(self._path, READING, reading=True) as store:
                    known = [job for job in store.jobs(machine=self._machine(), last=HISTORY) if job.run != run]
            except StoreError as error:
                self._tell(str(error))
        self._known = known if isinstance(heatmap, LearnedHeatmap) else []
        if not isinstance(dispatcher, Moldable):
            return
        mine = (learned(row, run) for row in self.live.records.rows.values())
        for job in [*known, *(job for job in mine if job is not None)]:
            if job.status == "completed" and job.steady:
                dispatcher.curves.learn(("", job.app, max(1, job.cores // job.ranks)), job.input, job.ranks,
                                        job.seconds)

    def _machine(self) -> str:
        return machine_of(codec.nodes_record(self.live.cluster.nodes))

    def _widths(self, job: Job) -> None:
        """Record why a job started on its number of ranks; warn if the configuration does not choose numbers of
        ranks."""
        dispatcher, widths = self.live.scheduler.dispatcher, job.more.get(RANKS)
        if isinstance(dispatcher, Moldable):
            choice = dispatcher.choices.pop(job.id, None)
            if choice is not None:
                self.live.record(self, "width", id=job.id, ranks=job.procs, objective=choice.objective,
                                 options=_options(choice))
        elif widths and not self._rigid:
            self._rigid = True
            self.live.tell("warning", f"#{job.id} {job.app}: ranks={text_of(widths)} is for Backfilling: moldable; "
                                      f"with {dispatcher.name} it runs on {job.procs} ranks")

    def observe(self, event: object) -> None:
        """Follow jobs from their starts to their records."""
        live = self.live
        if isinstance(event, JobLaunched):
            self._uses.launched(live.running[event.job.id].booking, live.now)
            if event.job.more:
                self._widths(event.job)
        elif isinstance(event, NodeUse):
            self._uses.answered(event, live.now)
        elif isinstance(event, RecordPrepared) and event.outcome.booking is not None:
            outcome = event.outcome
            self._uses.complete(outcome)
            self._pending.add(outcome.job.id)
            self._new += 1
            self._due = min(self._due, live.now + EVERY)
            if outcome.end - event.outcome.booking.start >= WORTH:
                self._ended.append(outcome.job.id)

    def deadline(self, now: float) -> float:
        """Return when jobs are to be written to the store, or nodes to be asked."""
        return min(self._uses.due, math.inf if self._writing else self._due)

    def act(self, now: float) -> None:
        """Ask the nodes about running jobs."""
        self._uses.ask(now)

    def tidy(self, now: float) -> None:
        """Write jobs to the store in a copy of the manager, and report what jobs wasted."""
        while self._ended and self._ended[0] in self.live.records.rows:
            self._say(self.live.records.rows[self._ended.pop(0)])
        self._copied.look()
        if self._new >= PAIRS and not self._copied.working:
            self._pairs()
        if self._writing:
            self.live.copies.look()
        if now < self._due or self._writing:
            return
        self._due = math.inf
        batch = self._pending & self.live.records.rows.keys()
        if self._path is None or not batch:
            return
        read, write = os.pipe()

        def work() -> None:
            os.write(write, self._add(batch, PATIENCE).encode()[:4096])

        def then(why: str, _: float) -> None:
            with open(read, "rb") as pipe:
                why = pipe.read().decode() or why
            self._writing = False
            if why:
                self._pending |= batch
                self._due = self.live.now + EVERY
            self._tell(why)

        self._writing = self.live.copies.begin(work, write, then)
        os.close(write)
        if self._writing:
            self._pending -= batch
        else:
            os.close(read)
            self._due = now + EVERY

    def _pairs(self) -> None:
        """Learn how programs share nodes from the jobs of this run, too, in a copy of the manager."""
        heatmap, run = self.live.scheduler.policy.heatmap, self.live.launcher.run_id
        self._new = 0
        if isinstance(heatmap, LearnedHeatmap):
            mine = (learned(row, run) for row in islice(reversed(self.live.records.rows.values()), HISTORY_OF_PAIRS))
            jobs = [*self._known, *(job for job in mine if job is not None)]

            def then(found: Any, _: float) -> None:
                if found is not None:
                    heatmap.take(found)

            self._copied.begin(lambda: heatmap.learn_again(jobs), then)

    def _say(self, row: JobRow) -> None:
        """Report what a job wasted, unless this was done for a job of the same program and input."""
        use, key = use_of(row), (row.app, input_of(row))
        if use is not None and use.findings and key not in self._said:
            self._said.add(key)
            self.live.tell("note", f"#{row.id} {row.app}: {'; '.join(use.findings)} (vrm efficiency)")

    def end(self) -> None:
        """Write what is left to the store, and report what the run used."""
        rows = list(self.live.records.rows.values())
        whole = run_use(rows, sum(node.cores for node in self.live.cluster.nodes)) if 0 < len(rows) <= MOST else None
        if whole is not None and whole.seconds >= WORTH and whole.text:
            self.live.tell("note", f"{whole.text} (vrm efficiency)")
        if self._writing:
            self.live.copies.look(wait=True)
        batch = self._pending & self.live.records.rows.keys()
        if self._path is not None and batch:
            self._tell(self._add(batch, AT_THE_END))

    def _add(self, batch: Collection[int], patience: float) -> str:
        """Write jobs to the store; return why that was impossible, "" if it was done."""
        live, records = self.live, self.live.records
        assert self._path is not None
        run = live.launcher.run_id
        try:
            with LearnedStore(self._path, patience) as store:
                new = store.unknown(run, batch)  # an earlier manager has written the others
                jobs = (learned(records.rows[job_id], run) for job_id in new)
                store.add(run, str(live.run_directory.directory), self._machine(),
                          filter(None, jobs), overlaps(new, records.rows.values()))
        except StoreError as error:
            return str(error)
        return ""

    def _tell(self, why: str) -> None:
        """Report a fault of the store, once; the run continues without it."""
        if why and why != self._trouble:
            self._trouble = why
            self.live.tell("warning", f"nothing is learned from this run: {why}")


def _options(choice: WidthChoice) -> list[list[float]]:
    """Return for each number of ranks the expected seconds, the range of these, and the value of the objective
    (seconds; missing if it was not needed)."""
    gives = choice.gives or [None] * len(choice.options)
    return [[ranks, round(expected.seconds, 3), round(expected.low, 3), round(expected.high, 3),
             *([] if value is None else [round(value, 3)])] for (ranks, expected), value in zip(choice.options, gives)]
