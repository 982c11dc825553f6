"""The part of a manager that takes jobs from a pool: as many as start here now, and one that waits.

It takes only jobs that end before the allocation does, according to their limits. When the pool has no more
such jobs, the manager ends, and the allocation with it; it gives back the jobs that it has not done.
"""

from __future__ import annotations

import json
import math
import selectors
import threading
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any
from collections.abc import Iterator, Mapping, Sequence

from vrm.ext.allocations.pool import batch
from vrm.ext.allocations.pool.dead_allocations import ended_now
from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.overview import MEMBER
from vrm.ext.allocations.pool.job_states import TOOK, PoolJobStates, fate, ids_of
from vrm.ext.allocations.pool.planning import PoolPlan, enough, wished
from vrm.ext.allocations.pool.requests import Enough, ask, cancel, request_of, take_back
from vrm.ext.allocations.pool.state import Entry, PoolState, PoolDemand, surplus, taking
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import limits, replay
from vrm.live.manager.jobs.intake import Intake
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part
from vrm.live.manager.stopping import Stopping
from vrm.model import Job
from vrm.model.forms import json_checks
from vrm.model.job import Details
from vrm.workload.grammar import QueueLine, parse_line
from vrm.workload.submission import Submission

LOOKS = 1.0
"""Seconds between two looks at the pool's journal."""

CHECKS = 30.0
"""Seconds between two queries about the other allocations."""

AHEAD = 20.0
"""Seconds of work for all cores that may wait here, so that short jobs need not wait for the pool's journal."""

OTHERS = 3.0
"""Seconds for which a job that would wait here is left to the other allocations: one of them may start it at
once."""

MOST = 200
"""Greatest number of jobs that are taken at once."""

PLANNED_BEFORE, PLANNING, KEPT_BACK = 120.0, 60.0, 5.0
"""Seconds before the end of the allocation at which the next allocations are planned; seconds that the plan may
take after all jobs have ended; seconds of the allocation that are left then."""

SEARCHED = 2000
"""Greatest number of the pool's jobs that are searched for fitting ones."""


class PoolPart(Part):
    """Takes jobs from a pool, and enters them into the run."""

    events = {TOOK: {"job": json_checks.count, "id": json_checks.count}}

    def __init__(self, live: LiveRun, pool: PoolJournal, name: str, batch_job: str) -> None:
        self.live = live
        self.pool = pool
        self.mine = name
        self._batch_job = batch_job
        self._took: list[Mapping[str, Any]] = []
        self._entered = -1  # number of pool entries read when jobs were last entered
        self._jobs: dict[int, tuple[QueueLine, Job, Details, str]] = {}
        self._looked = self._checked = -math.inf
        self._question: threading.Thread | None = None
        self._answers: list[tuple[str, dict[int, str]]] = []
        self._trouble = ""
        self._seen: dict[int, float] = {}  # since when jobs that no allocation has are known
        self._plan: PoolPlan | None = None
        self._planned = False
        self._cancelling: threading.Thread | None = None
        self._compared_at = -1  # number of pool entries read when requests were last compared with jobs
        self._out = False  # the pool has given the jobs of this allocation to others

    # From an earlier manager in the same allocation.

    def happened(self, event: str, values: Mapping[str, Any]) -> None:
        """Note a job of the pool that was to be entered."""
        self._took.append(values)

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Join the pool; continue with what an earlier manager has taken."""
        end = self.live.end.end
        join = {"do": "join", "name": self.mine, "job": self._batch_job, "nodes": len(self.live.cluster.nodes),
                "until": end if end < math.inf else None}
        if self._try_pool(lambda: self.pool.decide(lambda state: None if self.mine in state.allocations else join)):
            self._follow()

    def _try_pool(self, do: Any) -> bool:
        """Do something with the pool; return whether it succeeded. A fault is reported once, and the caller
        tries again."""
        try:
            do()
        except PoolError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self.live.tell("warning", f"{error}; meanwhile this allocation takes no jobs of the pool")
            return False
        self._trouble = ""
        return True

    # Each turn.

    def look(self, now: float, files: bool) -> None:
        """Take jobs if there are free cores for them."""
        if not files and not self.live.changed:
            return
        if now >= self._looked + LOOKS or (self.live.phase == "running" and self._room() > 0):
            self._looked = now
            if self._try_pool(self.pool.look):
                self._follow()
                self._try_pool(self._report)
                if self._takes():
                    self._try_pool(self._take)
        if self._question is not None and not self._question.is_alive():
            self._question = None
            self._try_pool(self._take_back)

    def _follow(self) -> None:
        """Act on the pool's journal."""
        state = self.pool.state
        stopping = self.live.part(Stopping)
        if self.mine in state.allocations and not state.is_live(self.mine):
            if not self._out:
                self._out = True
                stopping.stop("the pool has given the jobs of this allocation to others", kill=True, at_once=True)
            return
        if state.stopped and self.live.phase == "running":
            stopping.stop("`vrm pool stop`", kill=state.stopped == "now")
        self._enter()

    def _report(self) -> None:
        """Report the ends of jobs for which others wait."""
        state = self.pool.state
        watched = {number for number in state.held_by(self.mine) if number in state.waited}
        if not watched:
            return
        done = {str(number): how for number, how in self._done().items() if number in watched}
        if done and self.live.synced():  # otherwise a machine crash could run it again after its dependents
            entry = {"do": "done", "name": self.mine, "done": done}
            self.pool.decide(lambda state: entry if state.is_live(self.mine) else None)

    def _takes(self) -> bool:
        return self.live.phase == "running" and self.pool.state.is_live(self.mine) and not self.pool.state.stopped

    def _room(self) -> int:
        """Return the number of free cores that no job here waits for."""
        cluster = self.live.cluster
        return int(cluster.cores - cluster.taken_cores - self.live.state.queue.wanted)

    def _take(self) -> None:
        """Take the jobs that start here now, and one that waits."""
        def wanted(state: PoolState) -> Entry | None:
            jobs = [*islice(self._chosen(state), MOST)] if self._takes() else []
            return taking(self.mine, jobs) if jobs else None
        self.pool.decide(wanted)
        self._enter()

    def _chosen(self, state: PoolState) -> Iterator[int]:
        """Yield the jobs to take, by this run's own forecast, in which jobs take as long as their limits allow."""
        queue, now = self.live.state.queue, self.live.now
        room, waits = self._room(), bool(queue.jobs)
        ahead = AHEAD * self.live.cluster.cores - sum(job.request.cores * job.walltime for job in queue.jobs.values())
        if room <= 0 and waits and ahead <= 0:
            return
        tried, cores = [], 0
        for number, job in self._fitting(state):
            tried.append(number)
            cores += job.request.cores
            if cores > room + max(0.0, ahead) / job.walltime and len(tried) > 1:
                break
        self._seen = {number: self._seen.get(number, now) for number in tried}
        for number, start in zip(tried, self._starts(tried)):
            if self._too_late(number):
                yield number  # this run cancels it
                continue
            area = self._judged(number)[1].request.cores * self._judged(number)[1].walltime
            if start > now and now < self._seen[number] + OTHERS:
                continue
            if start > now and area <= ahead:
                ahead -= area
            elif start > now and (waits or start == math.inf):
                continue
            waits = waits or start > now
            yield number

    def _starts(self, numbers: Sequence[int]) -> list[float]:
        """Return when these jobs would start if they joined this run now; infinity for one that would not end
        in this allocation."""
        live, first = self.live, self.live.state.next_id
        jobs = [self._judged(number)[1].but(id=job_id, submit=live.now) for job_id, number in enumerate(numbers, first)]
        run = FrozenRun(live.subject, live.now, live.end.closing, True, later=tuple(
            Submission(job, job.walltime, details=self._judged(number)[2]) for job, number in zip(jobs, numbers)))
        plan = replay(run, limits, until=frozenset(job.id for job in jobs), started=True)
        return [plan[job.id].start if job.id in plan else math.inf for job in jobs]

    def _fitting(self, state: PoolState) -> Iterator[tuple[int, Job]]:
        """Yield jobs that no allocation has, and that this one can do in the time that is left."""
        left = self.live.end.closing - self.live.now
        for number in islice(state.free, SEARCHED):
            _, job, _, fault = self._judged(number)
            if not fault and job.walltime <= left:
                yield number, job

    def _judged(self, number: int) -> tuple[QueueLine, Job, Details, str]:
        """Return a job of the pool as a job of this run, and the reason if it cannot be one."""
        if number not in self._jobs:
            wanted = self._line(number)
            base = self.live.settings.applications.queue.parent
            judged = self.live.part(Intake).judged(wanted.values_at(base), self.live.state.next_id)
            self._jobs[number] = (wanted, *judged)
        return self._jobs[number]

    def _too_late(self, number: int) -> bool:
        """Return whether a job cannot end by its deadline, wherever it starts."""
        line = self._judged(number)[0]
        return "deadline" in line.fields and (
            line.seconds > self._line(number).fields["deadline"])

    def _line(self, number: int) -> QueueLine:
        """Return the line of a job; its deadline is counted from its submission to the pool."""
        state, line = self.pool.state, parse_line(self.pool.state.lines[number])
        if "deadline" not in line.fields:
            return line
        left = state.added[number] + line.fields["deadline"] - self.live.now
        return replace(line, fields={**line.fields, "deadline": max(1.0, left)})

    def _enter(self) -> None:
        """Enter the jobs that this allocation has taken, and that are not in the run yet."""
        state = self.pool.state
        if self._entered == self.pool.read:
            return
        self._entered = self.pool.read
        known = ids_of(self._took)
        there = self.live.state.book.entries
        for number in state.held_by(self.mine):
            if known.get(number) in there:
                continue
            event = {"job": number, "id": self.live.state.next_id}
            self.live.record(self, TOOK, **event)
            self._took.append(event)
            self._jobs.pop(number, None)
            self.live.part(Intake).enter(self._line(number))

    # The end of the run, and allocations that have died.

    def expects(self, now: float) -> bool:
        """Return whether there are jobs for this allocation, or may be because another allocation has died."""
        self._try_pool(self._report)
        if not self._takes() or self._trouble:
            return False
        fitting = [number for number, _ in islice(self._fitting(self.pool.state), MOST)]
        if self._question is not None or any(start < math.inf for start in self._starts(fitting)):
            return True
        others = self.pool.state.holders(but=self.mine)
        if not others or now < self._checked + CHECKS:
            return False
        self._checked = now
        self._question = threading.Thread(target=self._ask, args=(others,), daemon=True)
        self._question.start()
        return True

    def _ask(self, others: list[Any]) -> None:
        """Find out which of these allocations have ended, and what they have done. Runs in a thread."""
        state = self.pool.state
        answers = batch.BatchAnswers(state.options.get("system", ""))
        for other in others:
            self._answers += ended_now(self.pool.directory, state, other.name, answers)

    def _take_back(self) -> None:
        answers, self._answers = self._answers, []
        for name, done in answers:
            entry = {"do": "end", "name": name, "done": done}
            if self.pool.decide(lambda state, name=name, entry=entry: entry if state.is_live(name) else None):  # type: ignore[misc]
                self.live.tell("note", f"allocation {name} has died: its jobs that had not ended run elsewhere")
            self.live.changes()

    def tidy(self, now: float) -> None:
        """Take back requests that exceed what the waiting jobs need; plan the next requests when the end is
        near."""
        if self._cancelling is not None and not self._cancelling.is_alive():
            self._cancelling = None
        if self._takes() and self._cancelling is None and self._compared_at != self.pool.read:
            self._compared_at = self.pool.read
            if surplus(self.pool.state, enough):
                self._try_pool(partial(self._withdraw_requests, enough, "the jobs that wait"))
        near = self.live.phase == "stopping" or now >= self.live.end.closing - PLANNED_BEFORE
        if near and self._plan is None and not self._planned and self._asks():
            self._begin_plan()

    def _withdraw_requests(self, enough: Enough, needs: str) -> None:
        """Take back the requests that exceed `enough`, and have a thread cancel them in the batch system."""
        taken = take_back(self.pool, enough)
        if taken:
            self.live.tell("note", f"requests for allocations taken back: {len(taken)}; {needs} need fewer")
            self._cancelling = threading.Thread(target=cancel, args=(self.pool, taken), daemon=True)
            self._cancelling.start()

    def _asks(self) -> bool:
        """Return whether this allocation requests another one at its end: its time is up, it has done jobs, and
        jobs are left."""
        state = self.pool.state
        return bool(state.is_live(self.mine) and not state.stopped and not self.live.part(Stopping).signals
                    and self._done() and (state.free or self._left()))

    def _fits(self, seconds: float) -> bool:
        """Return whether an allocation of `seconds` seconds has the time for a job that is left."""
        fresh = seconds - self.live.settings.end.margin
        return any(not self._judged(number)[3] and self._judged(number)[1].walltime <= fresh
                   for number in (*islice(self.pool.state.free, SEARCHED), *self._left()))

    def _misfit_reason(self, seconds: float) -> str:
        """Return why an allocation of `seconds` seconds cannot run a job that is left."""
        number = next(iter((*self.pool.state.free, *self._left())))
        _, job, _, fault = self._judged(number)
        return f"job {number} of the pool cannot run: " + (fault or f"its limit is {job.walltime:g} s, and an "
                                                           f"allocation as this one has {seconds:g} s")

    def _like(self) -> PoolDemand | None:
        """Return one more allocation of the chosen shape; None if `vrm plan` chooses the shape."""
        shape = self.pool.state.options.get("shape")
        return None if shape is None else PoolDemand(1, *shape)

    def _begin_plan(self) -> None:
        """Start the plan of the next requests if no shape was chosen. Jobs that run here have the time to end,
        so they are not planned."""
        self._planned = True
        state = self.pool.state
        more = state.options["max_allocations"] - sum(
            not each.ended and each.name != self.mine for each in state.allocations.values())
        jobs = sorted({*state.free, *state.later, *self._left()} - self._fate().running)
        if self._like() is None and more > 0 and jobs:
            try:
                self._plan = PoolPlan(self.pool, jobs, more, leaving=self.mine)
            except PoolError as error:
                self.live.tell("warning", str(error))

    def end(self) -> None:
        """At the end of the loop: if the time is up and jobs are left, request what `vrm plan` recommends for
        them, and take back the requests beyond that."""
        if self._cancelling is not None:
            self._cancelling.join(batch.SECONDS)
        if not self._asks():
            if self._plan is not None:
                self._plan.close()
            return
        wish, needed = self._like(), partial(enough, left=self._left())
        if wish is None:
            if self._plan is None:
                self._begin_plan()
            wish, planned = self._recommended()
            if planned and self._try_pool(partial(wished, self.pool, wish)):
                self._try_pool(partial(self._withdraw_requests, needed, "the jobs that are left"))
        if self._fits(wish.seconds):
            for _ in range(wish.number):
                self._try_pool(partial(ask, self.pool, wish.nodes, wish.seconds, leaving=self.mine, enough=needed))
        else:
            self.live.tell("warning",
                           f"no allocation is asked for: {self._misfit_reason(wish.seconds)}. `vrm pool start` "
                           "asks for others (-N, -t)")
        if self._cancelling is not None:
            self._cancelling.join(batch.SECONDS)

    def _recommended(self) -> tuple[PoolDemand, bool]:
        """Return the recommendation of the plan, and True; without a plan, another allocation like this one,
        and False."""
        left = self.live.end.end - self.live.clock() - KEPT_BACK
        try:
            if self._plan is not None:
                return self._plan.wish(max(0.0, min(PLANNING, left))), True
        except PoolError as error:
            self.live.tell("warning", f"{error}; another allocation of the same shape is asked for")
        like = request_of(self.pool.state, self.mine)
        return PoolDemand(0, 0, 0.0) if like is None else PoolDemand(1, like.nodes, like.seconds), False

    def _fate(self) -> PoolJobStates:
        return fate(self.live.state, ids_of(self._took))

    def _done(self) -> dict[int, str]:
        return self._fate().done

    def _left(self) -> list[int]:
        done = self._done()
        return [number for number in self.pool.state.held_by(self.mine) if number not in done]

    def leave(self) -> None:
        """Give back the jobs that have not ended, if no process is left."""
        if self.live.phase == "ended" and not self.live.running and not self._out:
            entry = {"do": "end", "name": self.mine, "done": self._done()}
            self._try_pool(lambda: self.pool.decide(lambda state: entry if state.is_live(self.mine) else None))


def make(live: LiveRun) -> Part:
    """Return the part for a run that belongs to a pool; an empty part for other runs."""
    try:
        member = json.loads((live.run_directory.directory / MEMBER).read_text())
    except FileNotFoundError:
        return Part()
    return PoolPart(live, PoolJournal(member["pool"]), member["name"], member["job"])
