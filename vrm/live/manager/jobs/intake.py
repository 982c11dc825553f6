"""Takes in jobs, from the queue file and from commands."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vrm.config.policies import job_of, one_node_remedy
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.edits import Edits
from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.part import CommandHandler, Part
from vrm.live.manager.records.records import EndedJob
from vrm.live.site.programs import WantedProgram, program_fault, read_script
from vrm.model import Job, JobState
from vrm.model.job import Dependency, Details, resolved
from vrm.model.quantities import fold, to_ranges
from vrm.model.reservation import ReservationError
from vrm.run.entry import LINE, Entry, JobStateError
from vrm.run.journal.codec import Own
from vrm.run.command_files import DISK, Command
from vrm.run.journal.history import RunHistory
from vrm.run.reasons import clock
from vrm.system.errors import RunError
from vrm.system.trust import distrust, unsafe_variables
from vrm.workload.each_field import expanded
from vrm.workload.queue_follower import Line, Position, QueueFollower
from vrm.workload.grammar import LineError, QueueLine, parse_line
from vrm.workload.replay import QueueReplay
from vrm.workload.writer_marker import writer_of


LONGEST_DOUBT = 5.0
"""Maximum seconds in which nothing starts because the queue file is being edited."""


class Intake(Part):
    """Reads the queue file, checks requests, and submits jobs. `rest_wanted`: the next turn must read the file,
    including a last line without a newline."""

    def __init__(self, live: LiveRun, ends: Ends, wait: bool = False, changed: bool = False, feeder: str = "") -> None:
        """Create the reader.

        `wait`: the run does not end because no program writes the file; `changed`: lines that were changed after their
        jobs ran are new jobs; `feeder`: the name of the program behind `vrm run --`, which also submits jobs.
        """
        self.live = live
        self._ends = ends
        self._wait = wait
        self._changed = changed
        self._feeder = feeder
        self._ended = False        # the file has its `end` line
        self.follower = QueueFollower(live.settings.applications.queue)
        self._bad: set[int] = set()  # first ids of the wrong lines that this manager has read
        self._bad_without_ids = 0
        self._doubted = -math.inf  # when the file was last seen without an unsettled edit
        self._bad_lines_have_ids = True
        self._known_kinds: set[str] = set()  # applications looked up in the heatmap
        self._faults: dict[WantedProgram, str] = {}  # faults of programs and scripts, checked in this turn
        self._said_waiting = ""
        self._of_file: list[int] = []  # the jobs of the queue file

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the command that submits a line, written as in the queue file."""
        return {"submit": self._handle_command}

    def _handle_command(self, command: Command, name: str) -> Command:
        if not isinstance(command["line"], str):
            raise TypeError("the line must be a text")
        settings = self.live.settings
        wanted = expanded(parse_line(command["line"]), settings.applications.queue.parent,
                          lambda path: distrust(path, settings.trust))
        if self.live.phase != "running":
            return {"ok": False, "text": "the manager is stopping and takes no more jobs"}
        ids, reason = self.enter(wanted, command=name)
        them = f"job{'s' * (len(ids) > 1)} {fold(ids)}"
        return {"ok": not reason, "id": ids[0], "ids": ids,
                "text": f"{them} refused: {reason}" if reason else f"{them}: {wanted.app} wait{'s' * (len(ids) == 1)}"}

    @property
    def bad_lines(self) -> int:
        """Number of faulty lines that this manager has read in the queue file."""
        return len(self._bad) + self._bad_without_ids

    @property
    def unclear(self) -> str:
        """Why the queue file is not read any further; "" if it is."""
        return self._edits.unclear

    def unsettled(self, now: float) -> bool:
        """Return whether the file was edited a moment ago, so that nothing should start before the edit is understood.
        A file that is written continuously blocks starts for LONGEST_DOUBT seconds at most."""
        if not self.follower.in_doubt:
            self._doubted = now
        return now < self._doubted + LONGEST_DOUBT and self.follower.in_doubt

    def check_file(self) -> None:
        """Raise RunError if the queue file cannot be read, unless a program writes it or submits the jobs, or the run
        waits for it."""
        queue = self.live.settings.applications.queue
        if self._wait or self._feeder or writer_of(queue, time.time()).state == "writing":
            return
        try:
            queue.open("rb").close()
        except OSError as error:
            raise RunError(f"cannot read the queue file {queue}: {error.strerror}; write jobs into it, correct "
                           "Applications.Queue, or wait for the file with `vrm run --wait`") from error

    def recall(self, past: RunHistory) -> None:
        """Continue where an earlier manager stopped reading."""
        settings = self.live.settings
        self._bad_lines_have_ids = not past.run or past.format > 1
        self._of_file = past.of_file
        self.follower = QueueFollower(settings.applications.queue,
                                      Position(*past.position) if past.position else None,
                                      fault=lambda path: distrust(path, settings.trust),
                                      needed=self._wait and not self._feeder, taken=bool(past.lines))
        self._input = QueueReplay(self.follower, settings.replay.speed)
        self._edits = Edits(self, self._ends, self._input, past.lines, self._changed)
        self._doubted = self.live.now
        self.rest_wanted, self._all_read_at = True, -math.inf

    def look(self, now: float, files: bool) -> None:
        """Enter the lines of the queue file that are due, and carry out edits of other lines."""
        if not files or self.live.phase != "running":
            return
        self._faults.clear()
        live, queue = self.live, self.live.settings.applications.queue
        writer = writer_of(queue, time.time()).state
        if writer == "ended":
            self.follower.finish()
        rest = self.rest_wanted and not self._wait and writer != "writing"
        before = self.live.state.next_id
        self._take(now, rest)
        self.rest_wanted = False
        if rest and self.live.state.next_id == before and not (
                self.follower.in_doubt or self._input.waiting or self.live.changed):
            self._all_read_at = now
        ended = self._input.ended or self._edits.cut
        if ended != self._ended:
            self._ended = ended
            live.journal.append("input", position=self._input.position, ended=ended)
        self._report_waiting(queue)

    def _take(self, now: float, rest: bool = False) -> None:
        self._take_due(now, rest)
        if self.follower.edited:
            try:
                self._edits.look()
            except OSError as error:
                self.live.report_disk_error(f"{self.follower.path}: {error.strerror}")
            if not self.follower.in_doubt and not self.unclear:
                self._take_due(now, rest)
        for notice in self.follower.take_notices():
            self.live.tell("warning", notice)

    def _take_due(self, now: float, rest: bool) -> None:
        """Enter the lines that are due. If the disk cannot take a script now, its line and the lines after it are tried
        again."""
        before = self._input.position
        lines = self._input.due(now, rest)
        for number, line in enumerate(lines):
            try:
                self.enter_line(line)
            except OSError as error:
                self._input.put_back(lines[number:], before, now)
                self.live.report_disk_error(f"{error.filename}: {error.strerror}")
                return
            before = line.position

    def over(self, now: float) -> bool:
        """Return whether nothing more comes from the file: it has its `end` line, or no program writes it and the look
        of this turn found nothing new, including a last line without a newline. `rest_wanted` requests such a look."""
        if self.follower.in_doubt:
            return False
        if self._ended or (self.unclear and not self._wait):
            return True
        queue = self.live.settings.applications.queue
        if self._wait or self._input.waiting or writer_of(queue, time.time()).state == "writing":
            return False
        self.rest_wanted = self._all_read_at != now
        return not self.rest_wanted

    def _report_waiting(self, queue: Path) -> None:
        """Report once why nothing happens."""
        waits = ""
        live, book = self.live, self.live.state.book
        more = f"jobs of {self._feeder}" if self._feeder else f"lines in {queue}"
        if not (live.running or len(live.state.queue)):
            held, begin = list(islice(book.held, 20)), book.begins.next
            if begin < math.inf:
                waits = f"all jobs that are left start later, the first at {clock(begin, live.now)}"
            elif held:
                waits = (f"only held jobs are left ({fold(sorted(held))}); `vrm release` or "
                         "`vrm cancel` lets the run continue")
            elif not self._ended and (lacking := book.lacking):
                waits = (f"only jobs are left that need more nodes than there are "
                         f"({fold(sorted(lacking)[:20])}); waiting for {more} (`vrm stop` "
                         "ends the run, and the same command continues them)")
            elif self._wait and not self._ended and not self._feeder:
                waits = (f"nothing to do; waiting for {more} (an `end` line or "
                         "`vrm stop` ends the run)")
        if waits and waits != self._said_waiting:
            live.tell("note", waits)
        self._said_waiting = waits

    def enter_line(self, line: Line, at: int | None = None, old: Sequence[int] = ()) -> None:
        """Enter the jobs of a line of the queue file. `at` is its index among the lines taken, if it is not the last
        one; its jobs take the ids `old` of other jobs, if given."""
        wanted, fault = line.parsed, ""
        if isinstance(wanted, LineError):
            fault = f"{self.live.settings.applications.queue}:{line.number}: {wanted}"
            if not self._bad_lines_have_ids:
                self._bad_without_ids += 1
                self.live.tell("warning", fault)
                return
            # A faulty line takes its ids, too; otherwise all jobs after it would get other ids than expected.
            wanted = QueueLine(wanted.app or "?", 1, 1.0, fields={
                "array": range(wanted.jobs)} if wanted.jobs > 1 else {})
        place: dict[str, Any] = {"position": line.position} if at is None else {"at": at}
        ids, _ = self.enter(wanted, fault, old, line=f"{line.digest:x}", **place)
        (self._bad.add if fault else self._bad.discard)(ids[0])
        if old:
            self._edits.lines.change(at or 0, line.digest)
        else:
            self._edits.lines.add(line.digest, ids, at)
            self._of_file += ids

    def enter(self, wanted: QueueLine, fault: str = "", old: Sequence[int] = (), **origin: Any
              ) -> tuple[list[int], str]:
        """Submit what a line requests, a job or an array of jobs. Return the ids and, if all of it is refused, the
        reason (`fault` if given). `origin` goes into the journal."""
        base = self.live.settings.applications.queue.parent
        values = wanted.values_at(base)
        usual = self.live.rules.queues.default_walltime(values.get("queue", "")) if wanted.assumed else 0.0
        if usual:
            values["walltime"] = usual
        if "line" in origin and self.live.ids.kept:
            try:
                values["after"] = tuple(self._counted(values.get("after", ())))
            except ValueError as error:
                values["after"], fault = (), fault or str(error)
        ids, reason = self.take(values, wanted.fields.get("array", ()), fault, old=old, **origin)
        if wanted.assumed and not reason:
            self.live.tell("note", f"#{fold(ids)} {wanted.app}: without an estimate "
                                   f"{values['walltime'] / 3600:g} h is assumed")
        return ids, reason

    def _counted(self, after: Iterable[Dependency]) -> Iterator[Dependency]:
        """Yield the dependencies of a line of the queue file with job ids: the file numbers its own jobs from 0. Raises
        ValueError for a job that the file has not brought yet."""
        for each in after:
            if each.name:
                yield each
                continue
            missing = [number for number in each.ids if number >= len(self._of_file)]
            if missing:
                raise ValueError(f"it depends on job {missing[0]} of the queue file, and a job can depend only "
                                 "on earlier jobs")
            for ids in to_ranges([self._of_file[number] for number in each.ids]):
                yield each._replace(ids=ids)

    def take(self, values: Mapping[str, Any], indices: Sequence[int] = (), fault: str = "",
             keep: bool = True, own: Own = (), old: Sequence[int] = (), **origin: Any) -> tuple[list[int], str]:
        """Submit the job of these values, which are named as in `vrm.model.forms.fields.made`, or an array of it. Each
        job of the array may also wait for its `own` dependencies. The rest is as in `enter`. Without `keep`, a refused
        job leaves no record."""
        live, state, app = self.live, self.live.state, values["app"]
        ids = old or range(state.next_id, state.next_id + (len(indices) or 1))
        values, fault = self._resolved(values, fault, ids[0] if old else math.inf)
        if live.ids.kept and not old:
            try:
                live.ids.keep(ids[-1])
            except OSError as error:
                live.report_disk_error(f"{live.run_directory.directory}: {error.strerror}")
        first, details = self._made(values, ids[0], self._since(old))
        if first.payload.script and first.malleable:  # its steps stay where they start; vrm cannot move them
            first = first.but(malleable=False)
            live.tell("note", f"#{fold(ids)} {app}: malleable=1 is for programs; a script lends no cores, and starts "
                              "with all that it asks for")
        first, reason = self._judged(first, details, fault, again="line" in origin)
        if "line" in origin:  # from the queue file, which other users may be able to write
            reason = reason or unsafe_variables(first.payload.variables, live.settings.trust)
        if reason and not keep:
            return [], reason
        if reason:
            live.tell("warning", f"#{fold(ids)} {app} refused: {reason}")
        if fault:
            origin["fault"] = fault
        jobs = [first.but(id=job_id) for job_id in ids]
        # One event for the whole line: a crash leaves all of an array or nothing.
        self._ends.drop(state.revise(jobs, details, indices, refused=bool(reason), **origin) if old else
                   state.submit(jobs, details, indices, own, refused=bool(reason), **origin))
        self._entered(jobs, reason)
        return list(ids), reason

    def _since(self, old: Sequence[int]) -> float:
        """Return the submission time of jobs that take these ids: that of the old jobs if they wait, otherwise now."""
        entry = self.live.state.entry(old[0]) if old else None
        return entry.job.submit if entry is not None and entry.state is JobState.QUEUED else self.live.now

    def _resolved(self, values: Mapping[str, Any], fault: str, before: float) -> tuple[Mapping[str, Any], str]:
        """Replace the names of jobs in the dependencies by ids below `before`; return the values and the fault of the
        line, if any."""
        names = self.live.state.names
        if before < math.inf:
            names = {name: [job_id for job_id in ids if job_id < before] for name, ids in names.items()}
        try:
            return {**values, "after": resolved(values.get("after", ()), names)}, fault
        except ValueError as unknown:
            return {**values, "after": ()}, fault or str(unknown)

    def _judged(self, job: Job, details: Details, fault: str = "", again: bool = False) -> tuple[Job, str]:
        """Return the job, with a copy of its script, and the reason why it is refused ("" if it is not).

        `again`: the caller tries again later, so raise OSError if the disk does not take the copy now.
        """
        reason = fault or self._fault(job, details)
        if job.payload.script and not job.payload.copy and not reason:
            return self._kept(job, again)
        return job, reason

    def _entered(self, jobs: Sequence[Job], reason: str) -> None:
        """Finish the submission of jobs: they wait, or are refused for `reason`."""
        live = self.live
        if reason:
            for job in jobs:
                self._ends.close_job(EndedJob(job, JobState.REFUSED, reason, end=live.now))
        else:
            live.changed = True
            self._tell_unknown(jobs[0])
            self.report_lacking([job.id for job in jobs if live.state.book.entries[job.id].lacks])
        live.dirty = True

    def retry(self, entry: Entry, **origin: Any) -> None:
        """Requeue a refused job, if it is not refused again. Raises JobStateError with the reason if it is, or if its line
        is faulty."""
        job, details = entry.job, entry.details
        if entry.cause == LINE:
            raise JobStateError(f"job {job.id} was refused since its line is wrong; correct it in the queue file, or submit "
                                "the job again")
        job, reason = self._judged(job, details)
        if reason:
            raise JobStateError(f"job {job.id} is refused again: {reason}")
        self._ends.drop(self.live.state.revise([job], details, [details.index] if details.index is not None else (),
                                          **origin))
        self._entered([job], "")

    def change(self, entry: Entry, values: Mapping[str, Any]) -> None:
        """Replace a waiting job by one with the same id and these values: `after`, `nodes`, and others of its details.
        Raises JobStateError if that is not possible."""
        job, details = entry.job, entry.details
        if entry.state is not JobState.QUEUED or entry.tries or entry.losses or entry.begun < math.inf:
            raise JobStateError(f"only the limit, priority, name, comment and requeue of job {job.id} can change: it has "
                                "started")
        if "nodes" in values and job.request.parts:
            raise JobStateError(f"job {job.id} has several programs, each with its own number of nodes")
        if "nodes" in values:
            job = job.but(request=job.request._replace(nodes=values["nodes"]))
        more = {**details.more, **{key: value for key, value in values.items() if key not in ("nodes", "after")}}
        details = replace(details, held=entry.held, after=values.get("after", details.after),
                          more={key: value for key, value in more.items() if value})
        job, reason = self._judged(job, details)
        if reason:
            raise JobStateError(reason)
        self._ends.drop(self.live.state.revise([job], details, [details.index] if details.index is not None else ()))
        self._entered([job], "")

    def judged(self, values: Mapping[str, Any], job_id: int) -> tuple[Job, Details, str]:
        """Return the job of these values as `take` would submit it, its details, and why it would be refused ("" if it
        would not)."""
        values, fault = self._resolved(values, "", math.inf)
        job, details = self._made(values, job_id, self.live.now)
        return job, details, fault or self._fault(job, details)

    def _made(self, values: Mapping[str, Any], job_id: int, submit: float) -> tuple[Job, Details]:
        job, details = job_of(self.live.settings, values, job_id, submit)
        return (job if self.live.expectations is None else self.live.expectations.of(job)), details

    def report_lacking(self, ids: Sequence[int]) -> None:
        """Report waiting jobs that cannot run on the nodes that are there now."""
        if ids:
            first = self.live.state.book.entries[ids[0]]
            self.live.tell("note", f"#{fold(ids)} wait{'s' * (len(ids) == 1)} for more nodes: "
                                   f"{first.job.app}: {first.lacks}")

    def _fault(self, job: Job, details: Details) -> str:
        """Return why a new job cannot be accepted; "" if it can."""
        settings = self.live.settings
        reason = ""
        for wanted in WantedProgram.of(job):
            if wanted not in self._faults:
                self._faults[wanted] = program_fault(settings.applications, wanted, settings.trust)
            reason = reason or self._faults[wanted]
        for dependency in details.after:
            if dependency.ids[-1] >= job.id:
                reason = reason or (f"it depends on job {dependency.ids[-1]}, and a job can "
                                    "depend only on earlier jobs")
        name = details.more.get("reservation")
        if name and not reason:
            state = self.live.state
            try:
                reason = state.reservations.unfit(job, state.reservations.named(name), self.live.now)
            except ReservationError as error:
                reason = str(error)
        if not reason:
            reason = self.live.room.never(job)
            reason += one_node_remedy(settings, job, self.live.room.never) if reason else ""
        return reason

    def _kept(self, job: Job, again: bool) -> tuple[Job, str]:
        """Return the job with a copy of its script as it is now, and why there is no copy ("" if there is one)."""
        path = self.live.settings.applications.program(job.app, job.payload.file)
        text, fault = read_script(path)
        if fault:
            return job, fault
        try:
            copy = self.live.run_directory.keep_script(text)
        except OSError as error:
            if again and error.errno in DISK:
                raise
            return job, f"{path} cannot be kept: {error.filename}: {error.strerror}"
        return job.but(payload=replace(job.payload, copy=copy)), ""

    def _tell_unknown(self, job: Job) -> None:
        """Report each application once that is missing in the heatmap in use."""
        live = self.live
        heatmap = live.scheduler.policy.heatmap
        for part in job.parts:
            if heatmap is not None and part.kind not in self._known_kinds and heatmap.missing([part.app]):
                live.tell("note", f"{part.kind} is not in the heatmap "
                                  f"({live.settings.applications.heatmap}); it counts as an average "
                                  "partner")
            self._known_kinds.add(part.kind)
