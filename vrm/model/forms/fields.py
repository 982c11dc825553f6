"""The fields of a job: one table, from which every form of a job is made.

| form | parts of a row that it uses |
|---|---|
| a line of a queue file | `word`, the kind's `read` and `write`, `wanted` |
| an option of `vrm submit` | `option` |
| a journal's job record, and its check | `record`, the kind's `to_record`, `of_record` and `sound` |
| the state file, `vrm queue --json` | `shown`, the kind's `plain` |
| `jobs.csv` | `column`, the kind's `plain` and `cell` |
| a run simulated again from its `jobs.csv` | `column`, the kind's `of_plain` |

Extensions add fields, too (`vrm.workload.extension_fields`): `ADDED` has those that have been needed so far. Each form
has one place for all of these, `more`: an attribute of `Job`, a key of the journal and of the state file, the end of a
line of `jobs.csv`.

A new field of vrm is one row at the end of `TABLE`, plus the code that uses it. Its value is kept in the attribute of
that name of `Job`, `Program` or `Details`, or in `Details.more` if none of them has it. Files that are older than the
field do not have it; then it has its default. Options of batch scripts and fields of traces (SWF) get a place in the
row when something reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.model.job import PLAIN, PROGRAM, Component, Details, Job, Program, Request
from vrm.model.forms import components
from vrm.model.forms.field_types import (AFTER, AMOUNT, AMOUNTS, APP, ARGUMENTS, COUNT, EACH, EXPECTED, FEATURES, FLAG,
                                         HOSTS,
                             INDEX, INDICES, INTEGER, LABEL, LICENCES, LONGEST_TIME, MEMORY_SIZE, NAME,
                             NODES, PATH, TEXT, TIME, VARIABLES, WHOLE, Kind)
from vrm.model.quantities import MOST_JOBS


@dataclass(frozen=True)
class Option:
    """The option of `vrm submit` for a field (`--` and the field's word): the name of its value ("": it has no value,
    and sets the field to 1) and its help."""

    value: str
    help: str


JOB, REQUEST, PAYLOAD, DETAILS, LINE = "job", "request", "payload", "details", "line"
"""Where a field is kept: in `Job`, in its `request` or `payload`, in `Details`, or only in the line and its record."""

NO_COLUMN = "-"
"""The `column` of an extension's field that is not written to `jobs.csv`."""

RESULT = "result"
"""A column of `jobs.csv` about the result of a job, not about its submission."""

OF_JOB, OF_DETAILS = (JOB, REQUEST, PAYLOAD), (DETAILS,)
"""The places that belong to a `Job`, and to `Details`."""

SIMULATED = 1
"""The version of `jobs.csv` of vrm 0.1.0, and of simulations whose jobs have no further fields."""


@dataclass(frozen=True)
class Field:
    """A row of the table. Names are empty where a form does not have the field.

    `word` is the part of a queue line before the `=`, or the name of a column there. `attribute` is where the value is
    kept (default: the word), `default` its value if none is given. `record` is the key in the journal, `always` says
    that it is written there even with the default. `shown` is the key in the state file and in JSON, `column` the
    column in `jobs.csv`, which exists since version number `form` of that file. `package` is the extension that adds
    the field, if any; its column has the name of the word, unless it is NO_COLUMN.
    """

    word: str
    kind: Kind
    wanted: str = ""
    kept: str = DETAILS
    attribute: str = ""
    default: Any = None
    record: str = ""
    always: bool = False
    shown: str = ""
    column: str = ""
    form: int = 3
    option: Option | None = None
    package: str = ""

    @property
    def at(self) -> str:
        """The name of the attribute."""
        return self.attribute or self.word

    @property
    def path(self) -> str:
        """The path of the attribute, as `attrgetter` takes it for a `Job` or `Details`."""
        return f"{self.kept}.{self.at}" if self.kept in (REQUEST, PAYLOAD) else self.at

    @property
    def plain_default(self) -> Any:
        """The default, in the form of the state file and `jobs.csv`."""
        return None if self.default is None else self.kind.plain(self.default)


def _asked(word: str, kind: Kind, wanted: str, default: Any, option: Option, at: str = "",
           name: str = "") -> Field:
    """Return the row of a resource that a job requests; `name` is its name in files, if it is not the word."""
    return Field(word, kind, wanted, REQUEST, at, default, record=name or word, shown=name or word,
                 column=name or word, form=4, option=option)


TABLE: list[Field] = [
    Field("app", APP, "the name of a program", JOB, "app", record="app", always=True, shown="app",
          column="app", form=SIMULATED),
    Field("procs", WHOLE, "a whole number of ranks, 1 or more", JOB, "procs", record="procs",
          always=True, shown="procs", column="procs", form=SIMULATED),
    Field("seconds", TIME, "the estimated run time above 0, a number of seconds (at most "
          f"{LONGEST_TIME}) or as 90m, 2h, 1:30:00 or 1-12:00:00", JOB, "walltime",
          record="estimate", always=True, shown="estimate", column="walltime", form=SIMULATED),
    Field("exclusive", FLAG, "0 (may share its nodes) or 1 (may not)", JOB, "exclusive", False,
          record="exclusive", always=True, shown="exclusive", column="exclusive", form=SIMULATED),
    Field("cores", WHOLE, "the cores of each rank, a whole number, 1 or more", JOB, "cores", 1,
          record="cores", always=True, shown="cores", column="cores_per_task",
          option=Option("N", "cores of each rank (default: 1)")),
    Field("name", LABEL, "a label of at most 64 printable characters", DETAILS, "name", "",
          record="name", shown="name", column="name", form=2, option=Option("TEXT", "a label")),
    Field("after", AFTER, "the ids or the names of jobs that must have completed before, as 3,5-7 or prep; any:3 "
          "(however it ends), fail:3 (without success), start:3 or start:3+5m (it has begun)", DETAILS, "after", (),
          record="after", column="after",
          option=Option("IDS", "start only when these jobs have completed: 3,5-7; any:3 = however it ends, fail:3 = "
                        "without success, start:3+5m = 5 minutes after it has begun")),
    Field("priority", INTEGER, "a whole number; jobs of a higher one are first", JOB,
          "priority", 0, record="priority", shown="priority", column="priority",
          option=Option("N", "jobs of a higher priority start first (default: 0)")),
    Field("retries", COUNT, "how often the job is tried again when it fails, 0 or more", DETAILS,
          "retries", 0, record="retries", shown="retries", column="retries",
          option=Option("N", "run it again up to N times if it fails (default: Retries of the "
                        "configuration)")),
    Field("env", VARIABLES, "a variable as NAME=VALUE (env= may be given several times)", PAYLOAD,
          "variables", {}, record="variables",
          option=Option("NAME=VALUE", "a variable for the job; may be repeated")),
    Field("args", ARGUMENTS, "arguments, quoted as a whole: args='-n 3'", PAYLOAD, "arguments", (),
          record="arguments", shown="args", column="args", form=2,
          option=Option("'A B'", "arguments of the program in one word, instead of those after "
                        "`--`")),
    Field("dir", PATH, "the directory to run in", PAYLOAD, "directory", "", record="directory",
          shown="dir", column="dir", form=2,
          option=Option("DIR", "the directory to run in (default: the queue file's)")),
    Field("array", INDICES, f"the indices of at most {MOST_JOBS} jobs, as 0-9:2,20", LINE,
          "array", (), record="array",
          option=Option("0-9:2", "one job for each index, which it finds in VRM_ARRAY_INDEX; %%i "
                        "in the arguments, in --dir and in --name is the index")),
    Field("each", EACH, "a pattern of paths, as 'cases/*', or @FILE for the lines of a file", PAYLOAD, "each", (),
          record="each",
          option=Option("PATTERN|@FILE", "one job for each path that matches, or for each line of the file; %%e in "
                        "the arguments, in --dir and in --name is it, and VRM_ARRAY_ITEM")),
    Field("", INDEX, "", DETAILS, "index", None, shown="index", column="index", form=2),
    Field("hold", FLAG, "1 (the job waits for `vrm release`) or 0", DETAILS, "held", False,
          record="held", column="hold",
          option=Option("", "do not start it before `vrm release`")),
    _asked("gpus_per_task", WHOLE, "a whole number of GPUs, 1 or more", 0,
           Option("N", "GPUs of each task, which no other task sees")),
    _asked("mem_per_task", MEMORY_SIZE, "memory with its unit, as 4G, 4GiB or 4000M", 0,
           Option("SIZE", "memory of each task: 4G, 4000M")),
    _asked("gpus_per_node", WHOLE, "a whole number of GPUs, 1 or more", 0,
           Option("N", "GPUs on each node of the job, for all its tasks there")),
    _asked("mem_per_node", MEMORY_SIZE, "memory with its unit, as 4G, 4GiB or 4000M", 0,
           Option("SIZE", "memory on each node of the job, besides that of its tasks: 16G")),
    _asked("per_task", AMOUNTS, "resources of the nodes as NAME:N, as ssd:1,scratch:0.5", (),
           Option("NAME:N", "other resources that each task takes on its node: ssd:1"),
           "others_per_task"),
    _asked("per_node", AMOUNTS, "resources of the nodes as NAME:N, as ssd:1,scratch:0.5", (),
           Option("NAME:N", "other resources that the job takes on each of its nodes"),
           "others_per_node"),
    _asked("licences", LICENCES, "licences of the run as NAME:N, as ansys:2", (),
           Option("NAME:N", "licences that the job takes of the run's: ansys:2")),
    _asked("features", FEATURES, "names of features, as ib,fast", frozenset(),
           Option("NAMES", "what every node of the job must offer: ib,fast")),
    _asked("nodes", NODES, "a number of nodes, as 4, or the least and the most, as 2-4 or 2-",
           (1, 0), Option("N|MIN-MAX", "on how many nodes it runs (default: as few as it fits on, in "
                          "the order of the policy)"), name="node_range"),
    _asked("tasks_per_node", WHOLE, "a whole number of ranks, 1 or more", 0,
           Option("N", "at most N ranks on a node")),
    Field("queue", NAME, "the name of a queue: letters, digits, `_`, `.` and `-`", JOB, "queue", "",
          record="queue", shown="queue", column="queue", form=4,
          option=Option("NAME", "the queue of the configuration's Queues that it goes to")),
    Field("", TEXT, "", RESULT, "devices", "", column="devices", form=4),
    Field("", EXPECTED, "", JOB, "believed", record="expected", shown="expected",
          column="expected", form=4),
    Field("", TEXT, "", RESULT, "memory_peak", "", column="memory_peak", form=4),
    Field("reservation", NAME, "the name of a reservation, which `vrm reserve` has made", DETAILS,
          "reservation", "", record="reservation", shown="reservation", column="reservation", form=4,
          option=Option("NAME", "run on the nodes of this reservation, within its time "
                        "(`vrm reserve`)")),
    Field("script", FLAG, "1 (the program is a script, which runs once, on the job's first node) or 0",
          PAYLOAD, "script", False, record="script", shown="script", column="script", form=4,
          option=Option("", "APP is a script: it is copied now, and runs once, on all cores that the job has "
                        "on its first node")),
    Field("file", PATH, "the path of a program or script", PAYLOAD, "file", "", record="file",
          shown="file", column="file", form=4,
          option=Option("PATH", "the program, where it is not one of Applications (with Applications: {Any: "
                        "true}); a path instead of APP says the same")),
    Field("", NAME, "", PAYLOAD, "copy", "", record="copy"),
    Field("", NAME, "", PAYLOAD, "front", "", record="front"),
    Field("", NAME, "", PAYLOAD, "environment", "", record="environment"),
    Field("", PATH, "", PAYLOAD, "output", "", record="output"),
    Field("", PATH, "", PAYLOAD, "errors", "", record="errors"),
    Field("", PATH, "", PAYLOAD, "input", "", record="input"),
    Field("", FLAG, "", PAYLOAD, "append", False, record="append"),
    Field("", WHOLE, "", DETAILS, "array_id", 0, record="array_id"),
    Field("", NAME, "", DETAILS, "limit", "", record="limit"),
    Field("", TEXT, "", DETAILS, "comment", "", record="comment"),
    Field("malleable", FLAG, "1 (it may run with fewer cores for each rank than it asks for, and lend some "
          "while it runs) or 0", JOB, "malleable", False, record="malleable", shown="malleable",
          column="malleable", form=4,
          option=Option("", "it may run with fewer cores for each rank than it asks for, and lend some while "
                        "it runs")),
    Field("watts", AMOUNT, "watts above 0, as 250", JOB, "watts", 0.0, record="watts", shown="watts",
          column="watts", form=4, option=Option("W", "what the job draws on all its nodes, above idle ones: for "
                                        "PowerCap")),
    Field("", AMOUNT, "", RESULT, "frequency", 0.0, column="frequency", form=4),
    Field("", AMOUNT, "", RESULT, "energy", 0.0, column="energy", form=4),
    Field("", AMOUNT, "", RESULT, "power", 0.0, column="power", form=4),
    Field("", TEXT, "", RESULT, "mates", "", column="mates", form=4),
    Field("", AMOUNT, "", RESULT, "lent", 0.0, column="lent", form=4),
    Field("", TEXT, "", DETAILS, "title", "", record="title"),
    Field("", TEXT, "", DETAILS, "warning", "", record="warning"),
    Field("", AMOUNT, "", RESULT, "borrowed", 0.0, column="borrowed", form=4),
    Field("", COUNT, "", RESULT, "changes", 0, column="changes", form=4),
    Field("", FLAG, "", RESULT, "metered", False, column="metered", form=4),
    Field("begin", AMOUNT, "a time after the submission, as 90m, 2h or 1-12:00:00", DETAILS, "begin", 0.0,
          record="begin", shown="begin", column="begin", form=4,
          option=Option("TIME", "the earliest start, counted from its submission: 90m, 2h")),
    Field("", TEXT, "", RESULT, "cause", "", column="cause", form=4),
    Field("", NAME, "", DETAILS, "requeue", "", record="requeue"),
    Field("", TEXT, "", DETAILS, "singleton", "", record="singleton"),
    Field("", WHOLE, "", DETAILS, "throttle", 0, record="throttle"),
    Field("deadline", AMOUNT, "a time after the submission, as 90m, 2h or 1-12:00:00", DETAILS, "deadline", 0.0,
          record="deadline", shown="deadline", column="deadline", form=4,
          option=Option("TIME", "cancel it if it can no longer finish within this time after its submission: 2h")),
    _asked("nodelist", HOSTS, "names of nodes, as n1 or n[1-4,7],m2", frozenset(),
           Option("NODES", "nodes that are all among the job's, as n[1-4,7]; the others, if it has more, are any")),
    _asked("exclude", HOSTS, "names of nodes, as n1 or n[1-4,7],m2", frozenset(),
           Option("NODES", "nodes on which it does not run, as n[1-4,7]")),
]

_THREADS = _asked(
    "threads", WHOLE, "a whole number of hardware threads, 1 or more", 0,
    Option("N", "use N hardware threads of each core, where Threads of the configuration is above 1: 1 leaves the "
           "others idle, or under strip to another job"))

_OF_PROGRAMS = {field.word: field for field in (*TABLE, _THREADS)
                if field.word in ("procs", "cores", "exclusive", "args")
                or (field.kept == REQUEST and field.word != "licences")}
"""The fields that each program of a coupled job may have."""

TABLE.append(Field(
    "coupled", components.kind(_OF_PROGRAMS), "programs with their ranks, and a colon between them, as "
    "'ocean.x 8 : atmos.x 16 cores=2'", PAYLOAD, "components", (), record="coupled", shown="coupled", column="coupled",
    form=4, option=Option("'A 8 : B 16 cores=2'", "programs that start together, each with its ranks, and with cores=, "
                          "nodes=, args= and the like of its own; APP is the name of the job, and its ranks are those "
                          "of all")))
TABLE += [
    Field("", AMOUNT, "", RESULT, "cpu_time", 0.0, column="cpu_time", form=4),
    Field("", TEXT, "", RESULT, "largest_process", "", column="largest_process", form=4),
    Field("", COUNT, "", RESULT, "threads_beyond", 0, column="threads_beyond", form=4),
    _THREADS,
    Field("", TEXT, "", RESULT, "programs_use", "", column="programs_use", form=4),
]


ADDED: dict[str, Field] = {}
"""The fields of loaded extensions, by their words. Their values are in `Job.more`."""


Getter = Callable[[Any], Any]


_CLASSES: dict[str, Any] = {JOB: Job, REQUEST: Request, PAYLOAD: Program, DETAILS: Details}


def _declared(kept: str, attribute: str) -> bool:
    return kept in _CLASSES and hasattr(_CLASSES[kept], attribute)


def getter(field: Field) -> Getter:
    """Return a function that gives the value of a field from a `Job` or from `Details` (see OF_JOB)."""
    if _declared(field.kept, field.at):
        return attrgetter(field.path)
    name, default = field.at, field.default
    return lambda details: details.more.get(name, default)


def made(values: Mapping[str, Any], job_id: int, submit: float, user: str = ""
         ) -> tuple[Job, Details]:
    """Return the job with these values, which are named by the attributes that keep them. Raises ValueError if the
    request contradicts itself; the values are not checked otherwise."""
    request: dict[str, Any] = {}
    of_job: dict[str, Any] = {}
    payload: dict[str, Any] = {}
    details: dict[str, Any] = {}
    more: dict[str, Any] = {}
    for name, value in values.items():
        kept, argument = _PLACES.get(name) or _place(name)
        if kept == JOB:
            of_job[argument] = value
        elif kept == PAYLOAD:
            payload[name] = value
        elif kept == REQUEST:
            request[name] = value
        elif argument:
            details[name] = value
        elif kept == DETAILS:
            more[name] = value
    if any(more.values()):  # empty values are not kept
        details["more"] = {name: value for name, value in more.items() if value}
    added = {name: values[name] for name, field in ADDED.items() if values.get(name, field.default) != field.default}
    if added:
        of_job["more"] = added
    asked = asked_of(of_job, request, payload.get("components", ()))
    if asked is not None:
        of_job.update(request=asked, cores=asked.cores_per_task)
    return (Job(job_id, submit=submit, user=user,
                payload=Program(**payload) if payload else PROGRAM, **of_job),
            Details(**details) if details else PLAIN)


def asked_of(job: Mapping[str, Any], request: Mapping[str, Any], programs: Sequence[Component]) -> Request | None:
    """Return the request that these values describe; None if it is for cores alone. Raises ValueError if it
    contradicts itself."""
    if programs:
        return components.whole(job["procs"], job.get("exclusive", False), request, programs)
    if not request:
        return None
    return Request.of_fields(job["procs"], job.get("cores", 1), job.get("exclusive", False), request)


_PLACES: dict[str, tuple[str, str]] = {}


def _place(name: str) -> tuple[str, str]:
    """Return where an attribute is kept, and its argument there ("": in `more`); two empty strings for a field of an
    extension."""
    if name in ADDED:
        return "", ""
    field = next(each for each in TABLE if each.at == name)
    argument = {"walltime": "estimate", "believed": "expected"}.get(name, name)
    _PLACES[name] = found = field.kept, argument if _declared(field.kept, name) else ""
    return found
