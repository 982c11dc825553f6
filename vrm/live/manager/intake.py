"""Jobs come in: by the queue file, and by commands."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

from vrm.live.manager.desk import Desk
from vrm.live.manager.records import Outcome
from vrm.live.site.programs import Wanted, foreign, program_fault, read_script
from vrm.model import Job, JobState
from vrm.model.fields import made
from vrm.model.job import Dependency, Details
from vrm.model.ranges import fold, to_ranges
from vrm.model.reservation import ReservationError
from vrm.run import reserving
from vrm.run.book import Dropped
from vrm.run.codec import Own
from vrm.run.reasons import clock
from vrm.run.journal import Past
from vrm.system.errors import RunError
from vrm.system.trust import distrust, leads_astray
from vrm.workload.following import Line, Position, QueueFollower
from vrm.workload.grammar import UNKNOWN_TIME, LineError, QueueLine
from vrm.workload.replay import Replay
from vrm.workload.writer_marker import writer_of


class Intake:
    """Reads the queue file, judges what is asked for, and enters it. `close` records the end of a
    job that will not run."""

    def __init__(self, desk: Desk, close: Callable[[Outcome], None]) -> None:
        self.desk = desk
        self.bad_lines = 0  # that this manager has read in the queue file
        self._close = close
        self._bad_lines_have_ids = True
        self._known_kinds: Set[str] = set()  # applications looked up in the heatmap
        self._faults: Dict[Wanted, str] = {}  # of programs and scripts, as found in this turn
        self._said_waiting = ""
        self._of_file: List[int] = []  # the jobs of the queue file

    def check_file(self) -> None:
        """What is to be read once must be there now; RunError where it is not."""
        queue = self.desk.settings.applications.queue
        try:
            queue.open("rb").close()
        except OSError as error:
            raise RunError(f"cannot read the queue file {queue}: {error.strerror}; correct "
                           "Applications.Queue, or start without --once to wait for the file"
                           ) from error

    def open(self, past: Past, once: bool) -> None:
        """Go on where an earlier manager stopped reading."""
        settings = self.desk.settings
        self._bad_lines_have_ids = not past.run or past.format > 1
        self.desk.input_ended = past.input_ended
        self._of_file = past.of_file
        follower = QueueFollower(settings.applications.queue,
                                 Position(*past.position) if past.position else None,
                                 fault=lambda path: distrust(path, settings.trust), needed=not self.desk.feeder)
        if once:
            follower.finish()
        self._input = Replay(follower, settings.replay.speed)

    def read(self, now: float) -> None:
        """Enter the lines that are due."""
        self._faults.clear()
        desk, queue = self.desk, self.desk.settings.applications.queue
        if desk.input_ended:
            self._say_waiting(queue)
            return
        if writer_of(queue, time.time()).state == "ended":
            self._input.follower.finish()
        for line in self._input.due(now):
            self._take_line(line)
        if self._input.ended:
            desk.input_ended = True
            desk.journal.append("input", position=self._input.position, ended=True)
        for notice in self._input.follower.take_notices():
            desk.tell("warning", notice)
        self._say_waiting(queue)

    def _say_waiting(self, queue: Path) -> None:
        """Say once why nothing happens."""
        waits = ""
        desk, book = self.desk, self.desk.state.book
        if not (desk.running or len(desk.queue)):
            held, lacking, begin = book.held, book.lacking, book.next_begin
            if begin < math.inf:
                waits = f"only jobs are left that are not to start yet, the first at {clock(begin, desk.now)}"
            elif held:
                waits = (f"only held jobs are left ({fold(sorted(held)[:20])}); `vrm release` or "
                         "`vrm cancel` lets the run continue")
            elif lacking and not desk.input_ended:
                waits = (f"only jobs are left that need more nodes than there are "
                         f"({fold(sorted(lacking)[:20])}); waiting for {self._more(queue)} (`vrm stop` "
                         "ends the run, and the same command continues them)")
            elif not desk.input_ended and not desk.feeder:
                waits = (f"nothing to do; waiting for {self._more(queue)} (an `end` line or "
                         "`vrm stop` ends the run)")
        if waits and waits != self._said_waiting:
            desk.tell("note", waits)
        self._said_waiting = waits

    def _more(self, queue: Path) -> str:
        return f"jobs of {self.desk.feeder}" if self.desk.feeder else f"lines in {queue}"

    def _take_line(self, line: Line) -> None:
        if not isinstance(line.parsed, LineError):
            self.enter(line.parsed, position=line.position)
            return
        self.bad_lines += 1
        where = f"{self.desk.settings.applications.queue}:{line.number}: {line.parsed}"
        if not self._bad_lines_have_ids:
            self.desk.tell("warning", where)
            return
        # Its ids are taken, or all jobs after it would have others than their lines say.
        wanted = QueueLine(line.parsed.app or "?", 1, 1.0, fields={
            "array": range(line.parsed.jobs)} if line.parsed.jobs > 1 else {})
        self.enter(wanted, where, position=line.position)

    def enter(self, wanted: QueueLine, fault: str = "", **origin: Any
              ) -> Tuple[List[int], str]:
        """Enter what a line asks for, a job or an array of them; the ids and, when all of it is
        refused, the reason: `fault` if there is one. `origin` goes into the journal."""
        base = self.desk.settings.applications.queue.parent
        values = wanted.values_at(base)
        if "position" in origin and self.desk.ids.kept:
            try:
                values["after"] = tuple(self._counted(values.get("after", ())))
            except ValueError as error:
                values["after"], fault = (), fault or str(error)
        ids, reason = self.take(values, wanted.fields.get("array", ()), fault, **origin)
        if "position" in origin:
            self._of_file += ids
        if wanted.assumed and not reason:
            self.desk.tell("note", f"#{fold(ids)} {wanted.app}: without an estimate "
                                   f"{UNKNOWN_TIME / 3600:g} h is assumed")
        return ids, reason

    def _counted(self, after: Iterable[Dependency]) -> Iterator[Dependency]:
        """What a line of the queue file waits for, with the ids of the jobs: the file counts its own jobs
        from 0. ValueError for one that has not come."""
        for each in after:
            if each.name:
                yield each
                continue
            missing = [number for number in each.ids if number >= len(self._of_file)]
            if missing:
                raise ValueError(f"it depends on job {missing[0]} of the queue file, and a job can depend only "
                                 "on such as came before it")
            for ids in to_ranges([self._of_file[number] for number in each.ids]):
                yield each._replace(ids=ids)

    def take(self, values: Mapping[str, Any], indices: Sequence[int] = (), fault: str = "",
             keep: bool = True, own: Own = (), **origin: object) -> Tuple[List[int], str]:
        """Enter the job of these values, which are named as in `vrm.model.fields.made`, or an array of it, each
        job of which may wait for its `own` besides; the rest as of `enter`. Without `keep` nothing is kept of what
        is refused."""
        desk, state, app, now = self.desk, self.desk.state, values["app"], self.desk.now
        ids = range(state.next_id, state.next_id + (len(indices) or 1))
        after = values.get("after", ())
        try:
            after = state.resolved(after)
        except ValueError as unknown:
            after, fault = (), fault or str(unknown)
        if desk.ids.kept:
            try:
                desk.ids.keep(ids[-1])
            except OSError as error:
                desk.disk_trouble(f"{desk.run_directory.directory}: {error.strerror}")
        first, details = self._made({**values, "after": after}, ids[0])
        if first.payload.script and first.malleable:  # its steps are where they start, and nobody moves them
            first = first.but(malleable=False)
            desk.tell("note", f"#{fold(ids)} {app}: malleable=1 is for programs; a script lends no cores, and starts "
                              "with all that it asks for")
        jobs = [first.but(id=job_id) for job_id in ids]
        reason = fault or self._fault(jobs[0], details)
        if first.payload.script and not first.payload.copy and not reason:
            first, reason = self._kept(first)
            jobs = [first.but(id=job_id) for job_id in ids]
        if "position" in origin:  # a line of the queue file, which others may write
            reason = reason or leads_astray(jobs[0].payload.variables, desk.settings.trust)
        if reason and not keep:
            return [], reason
        if reason:
            desk.tell("warning", f"#{fold(ids)} {app} refused: {reason}")
        # One event for the whole line: a crash leaves all of an array or nothing.
        self._drop(state.submit(jobs, details, indices, own, refused=bool(reason), **origin))
        if reason:
            for job in jobs:
                self._close(Outcome(job, JobState.REFUSED, reason, end=now))
        else:
            desk.changed = True
            self._tell_unknown(jobs[0])
            self.tell_lacking([job_id for job_id in ids if state.book.entries[job_id].lacks])
        desk.dirty = True
        return list(ids), reason

    def judged(self, values: Mapping[str, Any], job_id: int) -> Tuple[Job, Details, str]:
        """The job of these values, as `take` would enter it, and why it would be refused ("": it would not)."""
        try:
            job, details = self._made({**values, "after": self.desk.state.resolved(values.get("after", ()))}, job_id)
        except ValueError as unknown:
            job, details = self._made({**values, "after": ()}, job_id)
            return job, details, str(unknown)
        return job, details, self._fault(job, details)

    def _made(self, values: Mapping[str, Any], job_id: int) -> Tuple[Job, Details]:
        settings = self.desk.settings
        own = {"retries": settings.retries, "malleable": values["app"] in settings.applications.malleable}
        job, details = made({**own, **values}, job_id, self.desk.now)
        return (job if self.desk.expectations is None else self.desk.expectations.of(job)), details

    def tell_lacking(self, ids: Sequence[int]) -> None:
        """Report waiting jobs that cannot run on the nodes there are now."""
        if ids:
            first = self.desk.state.book.entries[ids[0]]
            self.desk.tell("note", f"#{fold(ids)} wait{'s' * (len(ids) == 1)} for more nodes: "
                                   f"{first.job.app}: {first.lacks}")

    def _fault(self, job: Job, details: Details) -> str:
        """Why a new job can't be taken, or "" when it can."""
        settings = self.desk.settings
        wanted = Wanted.of(job)
        if wanted not in self._faults:
            self._faults[wanted] = program_fault(settings.applications, wanted, settings.trust)
        reason = self._faults[wanted]
        for dependency in details.after:
            if dependency.ids[-1] >= job.id:
                reason = reason or (f"it depends on job {dependency.ids[-1]}, and a job can "
                                    "depend only on such as came before it")
        name = details.more.get("reservation")
        if name and not reason:
            state = self.desk.state
            try:
                reason = reserving.unfit(job, reserving.named(state.reservations, name), state,
                                         self.desk.now)
            except ReservationError as error:
                reason = str(error)
        return reason or self.desk.room.never(job)

    def _kept(self, job: Job) -> Tuple[Job, str]:
        """The job with a copy of its script as it is now, or why there is none."""
        path = self.desk.settings.applications.program(job.app, job.payload.file)
        text, fault = read_script(path)
        if fault:
            return job, fault
        try:
            copy = self.desk.run_directory.keep_script(text)
        except OSError as error:
            return job, f"{path} cannot be kept: {error.filename}: {error.strerror}"
        return job.but(payload=replace(job.payload, copy=copy)), ""

    def foreign(self, wanted: Wanted) -> str:
        """Why what a job of a journal runs is not to be run; see `vrm.live.site.programs`."""
        settings = self.desk.settings
        return foreign(settings.applications, wanted, settings.trust)

    def _drop(self, dropped: List[Dropped]) -> None:
        for job, reason in dropped:
            self._close(Outcome(job, JobState.CANCELLED, reason, end=self.desk.now))

    def _tell_unknown(self, job: Job) -> None:
        """Say once of each application that the heatmap in use does not know it."""
        desk = self.desk
        heatmap = desk.scheduler.policy.heatmap
        if heatmap is not None and job.kind not in self._known_kinds and heatmap.missing([job.app]):
            desk.tell("note", f"{job.kind} is not in the heatmap "
                              f"({desk.settings.applications.heatmap}); it counts as an average "
                              "partner")
        self._known_kinds.add(job.kind)
