"""The past of a run, read from the records of its journal; a restarted manager continues from it.

`EVENTS` has, for each journal event, the change that it makes and the check whether it was possible.
"""

from __future__ import annotations

import marshal
import os
from dataclasses import replace
from typing import Any, NamedTuple, Union
from collections.abc import Callable, Iterable, Mapping

from vrm.model import Cluster, Job, JobState
from vrm.model.forms import placement_formats
from vrm.model.job import Details, on_ranks
from vrm.model.reservation import Reservation
from vrm.model.rules import Rules
from vrm.run import loans
from vrm.run.journal import record_checks as journal_check, combined_records
from vrm.run.entry import LINE
from vrm.run.journal.codec import MOST_TEMPLATES, cluster_of, jobs_of, missing, move_lends, own_dependencies
from vrm.run.journal.files import START
from vrm.run.journal.record_checks import STATES, EndRecord, JournalError, Record, StartRecord
from vrm.run.journal.queue_lines import Lines
from vrm.run.state import SAID, State
from vrm.scheduling import JobQueue
from vrm.system import plugins

PathLike = Union[str, "os.PathLike[str]"]


class RunHistory:
    """The content of a journal: the state of the run, and what else its manager needs.

    `format` is that of the manager which began the run: 1 is vrm 0.1.0. `runs` are the records of the managers that
    wrote the journal, `run_of` by job the one under which it was started. `started` and `ended` are the records of
    the last start and of the end of jobs, as far as they are kept. `again` are the jobs
    that wait after a start, or that another job has replaced since.
    `waits` are the seconds that jobs had waited at each start. `rules` is the last record of a change of the
    scheduling rules, or None. With `defers_checks`, placements of starts that have a checksum are checked by
    `check_placements`, and only of jobs that still run then; `placement_fault` checks that of any job. `rooms` are,
    by lender and borrower, the start records of jobs that have lent cores and not got them back, and the manager's
    record then. `lines` are the accepted lines of the queue file, `of_file` their jobs in the order of submission,
    `by_command` the jobs of each command file. `parts` are the events (name and values) of manager parts that
    extensions add, by part. `folded` is the number of folded records.
    """

    def __init__(self, state: State | None = None) -> None:
        if state is None:  # for events only, without a cluster or an order
            from vrm.scheduling import make_ordering
            state = State(JobQueue(make_ordering("FCFS"), lambda job: 1), Cluster.regular(1, 1, 1), frozen=True)
        self.state = state
        self.run = ""
        self.format = journal_check.NEWEST
        self.finished = False
        self.position: list[Any] | None = None
        self.input_ended = False
        self.started: dict[int, StartRecord] = {}
        self.ended: dict[int, EndRecord] = {}
        self.again: set[int] = set()
        self.waits: list[float] = []
        self.runs: list[Record] = []
        self.run_of: dict[int, Record] = {}
        self.commands: list[str] = []
        self.by_command: dict[str, list[int]] = {}
        self.rules: Record | None = None
        self.rooms: dict[tuple[int, int], loans.Room] = {}
        self.of_file: list[int] = []
        self.mark = START
        self.number = 0  # of the last line
        self.defers_checks = False
        self.unchecked: dict[int, int] = {}  # line of the start of each running job, for `check_placements`
        self.placements: dict[bytes, Record] = {}
        self.lines = Lines()
        self.parts: dict[str, list[tuple[str, Record]]] = {}
        self.folded = 0

    @property
    def jobs(self) -> dict[int, Job]:
        """All jobs of the run by id."""
        return {job_id: entry.job for job_id, entry in self.state.book.entries.items()}

    def in_force(self, configured: Rules) -> Rules:
        """Return the scheduling rules of the run: the changed ones, as long as the configuration is the same as at
        the change; otherwise the configured ones."""
        if self.rules is None or self.rules["was"] != configured.record():
            return configured
        return replace(Rules.read(self.rules["rules"]), queues=configured.queues)

    @property
    def details(self) -> dict[int, Details]:
        """The details with which the jobs were submitted, by id."""
        return {job_id: entry.details for job_id, entry in self.state.book.entries.items()}

    @property
    def waiting(self) -> list[Job]:
        """Jobs that have neither started nor ended."""
        return [job for i, job in self.jobs.items()
                if i not in self.started and i not in self.ended]

    @property
    def running(self) -> list[tuple[Job, StartRecord]]:
        """Jobs that have started and have no recorded end, with their start records."""
        entries = self.state.book.entries
        return [(entries[i].job, start) for i, start in self.started.items()
                if i not in self.ended]

    def take(self, record: Record, number: int, path: PathLike = "journal") -> None:
        """Apply the next record. Raises JournalError, with line `number` of `path`, if the record is not possible."""
        self.number = number
        usual = bool(self.runs) and journal_check.is_usual(record)
        fault = "" if usual else journal_check.fault(record)
        if not fault and not self.runs and record["event"] != "run":
            fault = "the first record is not a manager's"
        if not fault:
            happened = EVENTS[record["event"]]
            fault = happened.fault(self, record)
        if fault:
            raise JournalError(path, number, fault)
        happened.apply(self, record)
        if not usual or "command" in record:
            self.commands += combined_records.commands_of(record)

    def forget(self, job_id: int) -> None:
        """Treat a job that waits again as neither started nor ended."""
        self.again.add(job_id)
        for each in (self.started, self.ended, self.unchecked):
            each.pop(job_id, None)

    def placement_fault(self, job_id: int) -> str:
        """Return why the placement in a job's start record is wrong; "" if it is right."""
        return _placement_fault(self.started[job_id], self.state.entry(job_id).job, self.run_of[job_id])

    def check_placements(self, path: PathLike = "journal") -> None:
        """Check the placements of running jobs that `defers_checks` has postponed. Raises JournalError, with the line
        of the start, for a wrong one."""
        while self.unchecked:
            job_id, number = self.unchecked.popitem()
            fault = self.placement_fault(job_id)
            if fault:
                raise JournalError(path, number, fault)

    def lesson(self, job_id: int) -> tuple[Job, float, JobState] | None:
        """Return an ended job, its run time in seconds and its end state; None if it never started."""
        end, start = self.ended[job_id], self.started.get(job_id)
        if start is None:
            return None
        ran = end["time"] - start["time"] - end.get("slower", 0.0)
        return self.state.entry(job_id).job, ran, JobState(end["state"])


def replay(told: Iterable[Record], path: PathLike = "journal", state: State | None = None) -> RunHistory:
    """Return the past that these records describe; each is applied to the result of those before it, in `state`, a
    frozen one.

    Raises JournalError, with the line of `path`, for a record that is not possible there.
    """
    past = RunHistory(state)
    past.defers_checks = True
    for number, record in enumerate(told, 1):
        past.take(record, number, path)
    past.check_placements(path)
    return past


# Checks whether an event was possible.


Fault = Callable[[RunHistory, Record], str]
"""Returns why an event was not possible after this past; "" if it was."""


def _never(past: RunHistory, record: Record) -> str:
    return ""


def _of_job(wrong: Callable[[Record, bool, bool], str]) -> Fault:
    """Return a check of the job that a record names, from the record and from whether its job has started and
    ended."""
    def fault(past: RunHistory, record: Record) -> str:
        job_id = record["id"]
        if job_id not in past.state.book.entries:
            return f"{record['event']} of job {job_id}, which never came"
        return wrong(record, job_id in past.started, job_id in past.ended)
    return fault


_known = _of_job(lambda record, started, ended: "")
_runs = _of_job(lambda record, started, ended: (
    "" if started and not ended else f"{record['event']} of job {record['id']}, which does not run"))
_has_not_ended = _of_job(lambda record, started, ended: (
    f"job {record['id']} has ended, and its limit is changed" if ended else ""))
_ends_once = _of_job(lambda record, started, ended: (
    f"job {record['id']} ends, and it ended already" if ended else ""))
_has_started = _of_job(lambda record, started, ended: (
    "" if started or ended else f"job {record['id']} waits again, and it never started"))
_starts_once = _of_job(lambda record, started, ended: (
    f"job {record['id']} starts, and it {'ended' if ended else 'runs'} already" if started or ended else ""))


def _summed(record: Record) -> bool:
    """Return whether a record has a checksum."""
    return "sum" in record or "SUM" in record


def _can_start(past: RunHistory, record: Record) -> str:
    wrong = _starts_once(past, record)
    if wrong or (past.defers_checks and _summed(record)):
        return wrong
    return _placement_fault(record, _as_started(past, record), past.runs[-1])


def _as_started(past: RunHistory, record: Record) -> Job:
    """Return the job of a start record, with the number of ranks that it started on."""
    job, shape = past.state.book.entries[record["id"]].job, record.get("as")
    return job if shape is None else on_ranks(job, shape["procs"], shape["walltime"], shape["expected"])


def _placement_fault(start: Mapping[str, Any], job: Job, run: Record) -> str:
    """Return why the placement of a job's start is wrong on the nodes of this `run` record; "" if it is right."""
    return placement_formats.fault(start["placement"], job, [each[:2] for each in run.get("nodes", [])])


def _line_is_there(past: RunHistory, record: Record) -> str:
    lines, changed = len(past.lines), record["event"] == "revise" and "line" in record
    wrong = record.get("at", 0) > lines or (changed and record.get("at", lines) >= lines)
    return f"job {record['id']} is of line {record.get('at')}, and there are {lines}" if wrong else ""


def _is_new(past: RunHistory, record: Record) -> str:
    job_id, jobs, wrong = record["id"], combined_records.array_size(record), _line_is_there(past, record)
    if wrong or job_id < past.state.next_id:
        return wrong or f"job {job_id} exists already"
    return f"job {job_id}: own is not of {jobs} jobs" if "own" in record and len(record["own"]) != jobs else ""


def _can_be_revised(past: RunHistory, record: Record) -> str:
    wrong = _line_is_there(past, record)
    for job_id in range(record["id"], record["id"] + combined_records.array_size(record)):
        if wrong:
            break
        if job_id not in past.state.book.entries:
            wrong = f"revise of job {job_id}, which never came"
        elif job_id in past.started:
            wrong = f"revise of job {job_id}, which {'ran' if job_id in past.ended else 'runs'}"
    return wrong


def _lines_are_there(past: RunHistory, record: Record) -> str:
    moved, lines = record["moved"], len(past.lines)
    there = [*record["gone"], *(line for line, _ in moved)]
    if len(set(there)) < len(there) or any(line >= lines for line in (*there, *(at for _, at in moved))):
        return f"lines are gone or moved that are not there: there are {lines}"
    return ""


def _reservation(there: bool) -> Fault:
    """Return a check that a reservation exists already (`there`) or does not."""
    def fault(past: RunHistory, record: Record) -> str:
        known = record["reservation"] in past.state.reservations
        return "" if known == there else (f"{record['event']} of reservation {record['reservation']}, which "
                                          f"{'is there already' if known else 'is not there'}")
    return fault


def _can_lend(past: RunHistory, record: Record) -> str:
    if record["number"] in past.state.lends.all:
        return f"lend {record['number']} is there already"
    if record["id"] not in past.started or record["id"] in past.ended:
        return f"lend of job {record['id']}, which does not run"
    return past.placement_fault(record["id"])


def _lend_in(*phases: str) -> Fault:
    """Return a check that a lend is in one of these phases. Managers that were killed twice while a lend began could
    write `regain` twice."""
    def fault(past: RunHistory, record: Record) -> str:
        event, number, found = record["event"], record["number"], past.state.lends.all.get(record["number"])
        if found is None or found.lender != record["id"]:
            return f"{event} of lend {number} of job {record['id']}, which there is not"
        return "" if found.phase in phases else f"{event} of lend {number}, which is in phase {found.phase}"
    return fault


def _can_be_unfolded(past: RunHistory, record: Record) -> str:
    entries = past.state.book.entries
    return combined_records.fault(record, past.state.next_id, journal_check.fault,
                                  lambda each: each in entries and each not in past.started and each not in past.ended)


def _part_is_there(past: RunHistory, record: Record) -> str:
    """Return the fault of an event of an extension's part that is not installed, or belongs to another package."""
    name = record["part"]
    if name in past.parts:
        return ""
    try:
        found = plugins.find("vrm.parts", name)
    except plugins.PluginError as error:
        return str(error)
    there = found is not None and found.package == record["package"]
    return "" if there else missing(f"an event of the part `{name}`", record["package"])


# Changes that an event makes.


Apply = Callable[[RunHistory, Record], None]


class JournalEvent(NamedTuple):
    """The change that an event makes, and the check whether it was possible."""

    apply: Apply
    fault: Fault


EVENTS: dict[str, JournalEvent] = {}


def event(name: str, fault: Fault = _never) -> Callable[[Apply], Apply]:
    """Register the function that applies the event of this name."""
    def register(apply: Apply) -> Apply:
        EVENTS[name] = JournalEvent(apply, fault)
        return apply
    return register


@event("run")
def _run(past: RunHistory, record: Record) -> None:
    if not past.runs:
        past.format = record.get("format", 1)
    past.run, past.finished, past.input_ended = record["run"], False, False  # a copied run has another name
    lends = past.state.lends
    if (lends.all or lends.grown or lends.shares) and record.get("nodes") is not None:
        move_lends(lends, [job.id for job, _ in past.running], past.runs[-1], cluster_of(record, past.state.cluster))
    past.runs.append(record)


@event("job", _is_new)
def _job(past: RunHistory, record: Record) -> None:
    """Apply a record of a job, or of all jobs of an array."""
    jobs, details, indices = jobs_of(record)
    ids = [job.id for job in jobs]
    past.state.submit(jobs, details, indices, own_dependencies(record), refused="fault" in record,
                      fault=record.get("fault"))
    if record.get("command"):
        past.by_command.setdefault(record["command"], []).extend(ids)
    if record.get("position") or "line" in record:
        past.of_file += ids
        past.lines.add(int(record.get("line", "0"), 16), ids, record.get("at"))
    past.position = record.get("position") or past.position


@event(combined_records.JOBS, _can_be_unfolded)
def _jobs(past: RunHistory, record: Record) -> None:
    for each in combined_records.unfolded([record]):
        _job(past, each)
    past.folded += 1


@event("revise", _can_be_revised)
def _revise(past: RunHistory, record: Record) -> None:
    """Apply a record that replaces jobs, or all jobs of an array, by others with the same ids."""
    jobs, details, indices = jobs_of(record)
    for job in jobs:
        past.forget(job.id)
    past.state.revise(jobs, details, indices, refused="fault" in record, fault=record.get("fault"))
    if "line" in record:
        past.lines.change(record["at"], int(record["line"], 16))


@event("lines", _lines_are_there)
def _lines(past: RunHistory, record: Record) -> None:
    past.state.withdraw(past.lines.withdrawn(record["gone"]), record["time"])
    past.lines.take_out(record["gone"], record["moved"])


@event("input")
def _input(past: RunHistory, record: Record) -> None:
    past.position = record.get("position") or past.position
    past.input_ended = record["ended"]


@event("start", _can_start)
def _start(past: RunHistory, record: Record) -> None:
    job = past.state.book.entries[record["id"]].job
    record["id"] = job_id = job.id  # share one int object, to save memory
    if len(past.placements) == MOST_TEMPLATES:
        past.placements.clear()
    placement = past.placements.setdefault(marshal.dumps(record["placement"], 2), record["placement"])
    past.started[job_id] = StartRecord(record, placement)
    past.waits.append(record["time"] - job.submit)
    past.again.discard(job_id)
    past.run_of[job_id] = past.runs[-1]
    if past.defers_checks and _summed(record):
        past.unchecked[job_id] = past.number
    if "as" in record:
        past.state.reshape(_as_started(past, record))
    past.state.began(job_id, record["time"])


@event("back", _runs)
def _back(past: RunHistory, record: Record) -> None:
    past.forget(record["id"])
    past.state.back(record["id"])


@event("intent", _runs)
def _intent(past: RunHistory, record: Record) -> None:
    past.state.intend(record["id"], record["reason"], record.get("time", 0.0), record.get("tick", 0.0))


@event("end", _ends_once)
def _end(past: RunHistory, record: Record) -> None:
    job_id = past.state.book.entries[record["id"]].job.id
    past.ended[job_id] = EndRecord(record)
    past.unchecked.pop(job_id, None)
    # An older vrm did not record refused jobs with the values of their lines.
    state = STATES[record["state"]]
    unknown = state is JobState.REFUSED and past.runs[-1].get("format", 1) < 3
    past.state.end(job_id, state, record["time"], record["reason"],
                   cause=record.get("cause") or (LINE if unknown else ""))


@event(combined_records.LIVES, _can_be_unfolded)
def _lives(past: RunHistory, record: Record) -> None:
    for _, start, end in combined_records.lives_of(record):
        if start is not None:
            _start(past, start)
        _end(past, end)
    past.folded += 1


@event("again", _has_started)
def _again(past: RunHistory, record: Record) -> None:
    past.forget(record["id"])
    past.state.again(record["id"], record.get("time", 0.0), retry=record["retry"], lost=record.get("lost", False))


@event("hold", _known)
@event("release", _known)
def _kept(past: RunHistory, record: Record) -> None:
    held = past.state.book.entries[record["id"]].held = record["event"] == "hold"
    if held:
        past.state.promises.pop(record["id"], None)


@event("change", _has_not_ended)
def _change(past: RunHistory, record: Record) -> None:
    past.state.change(record["id"], record["walltime"], record["priority"],
                      {key: record[key] for key in SAID if key in record})


@event("expect")
def _expect(past: RunHistory, record: Record) -> None:
    state = past.state
    state.expect([state.entry(job_id).job.but(expected=seconds) for job_id, seconds in record["jobs"]
                  if job_id in state.book.entries])


@event("promise")
def _promise(past: RunHistory, record: Record) -> None:
    for job_id, start in record["starts"]:
        past.state.promises.pop(job_id, None)
        if start is not None:
            past.state.promises[job_id] = start  # the latest promise is at the end


@event("reserve", _reservation(there=False))
def _reserve(past: RunHistory, record: Record) -> None:
    past.state.reservations.add(Reservation(record["reservation"], record["name"], tuple(record["nodes_reserved"]),
                                        record["begin"], record["end"]), record["jobs_bound"])


@event("unreserve", _reservation(there=True))
def _unreserve(past: RunHistory, record: Record) -> None:
    past.state.reservations.cancel(record["reservation"], record["time"], record["reason"])


@event("lend", _can_lend)
def _lend(past: RunHistory, record: Record) -> None:
    if record["to"] is not None:
        past.rooms[record["id"], record["to"]] = past.started[record["id"]], past.run_of[record["id"]]
    past.state.lending.lend(loans.of_record(record), number=record["number"])


@event("lent", _lend_in(loans.LENDING))
def _lent(past: RunHistory, record: Record) -> None:
    past.state.lending.lent(record["number"], record["time"])


@event("regain", _lend_in(loans.LENDING, loans.LENT, loans.REGAINING))
def _regain(past: RunHistory, record: Record) -> None:
    found = past.state.lending.regain(record["number"], record["time"], record["reason"])
    if all(each.lender != found.lender for each in past.state.lends.of_borrower(found.borrower)):
        past.rooms.pop((found.lender, found.borrower), None)  # the lender leaves no more cores to the borrower


@event("regained", _lend_in(loans.REGAINING))
def _regained(past: RunHistory, record: Record) -> None:
    past.state.lending.regained(record["number"], record["time"])


@event("grown", _runs)
def _grown(past: RunHistory, record: Record) -> None:
    past.state.lends.grow(record["id"], int(record["cores"], 16), record["width"], record["time"])


@event("rules")
def _rules(past: RunHistory, record: Record) -> None:
    past.rules = record


@event("part", _part_is_there)
def _part(past: RunHistory, record: Record) -> None:
    past.parts.setdefault(record["part"], []).append((record["what"], record["values"]))


@event("finished")
def _finished(past: RunHistory, record: Record) -> None:
    past.finished = True
