"""`qstat`: shows jobs as a table, in full, or as JSON."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any, NamedTuple
from collections.abc import Callable, Mapping, Sequence

from vrm.ext.pbs import queues as pbs_queues, resources
from vrm.ext.slurm.calls.answers import Answer, Call, CallRefused
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import JobView
from vrm.model import JobState
from vrm.model.job import ANY, FAIL, OK, START

USAGE = ("qstat [-f] [-x] [-t] [-J] [-w] [-F json|dsv [-D delimiter]] [-a | -i | -r] [-n] [-s] [-1] [-u user] "
         "[job_identifier ...] | -Q [-f] [queue ...] | -q [queue ...] | -B [-f]")

HEAD = ("Job id            Name             User              Time Use S Queue\n"
        "----------------  ---------------- ----------------  -------- - -----\n")
WIDE_HEAD = ("Job id                         Name            User             Time Use S Queue\n"
             "-----------------------------  --------------- ---------------  -------- - ---------------\n")
OTHER_HEAD = ("\n{server}: \n{space}                                                            Req'd  Req'd   Elap\n"
              "Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time\n"
              "--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----\n")

LIMIT = 78
"""Maximum length of a line of -f; the rest follows in lines that begin with a tab."""

BLANK = " -- "
"""Text for an empty value in the table of -a."""

COMMENT, SHORT = 74, 71
"""Maximum length of a comment in that table, and the length to which a longer one is cut."""


class QstatRow(NamedTuple):
    """A line of a table: a job, or all jobs of an array."""

    id: str
    jobs: Sequence[JobView]
    state: str

    @property
    def one(self) -> JobView:
        """The job that represents all of them."""
        return self.jobs[0]

    @property
    def whole(self) -> bool:
        """Whether the row represents a whole array."""
        return self.one.array is not None and self.id == resources.whole(self.one.array)


def qstat(call: Call, handler: RequestHandler) -> Answer:
    """Show jobs."""
    options, ids = resources.options("qstat", "aD:E1fF:GHiJMnpQqBrsTtu:wxWL", USAGE, call.arguments)
    given = dict(options)
    for letter in given:
        if letter in "TML":
            raise CallRefused(f"qstat: -{letter}: vrm shows jobs, queues and the server only\nusage: {USAGE}",
                              resources.USAGE)
    if {"Q", "q", "B"} & set(given):
        site = handler.site
        states: dict[str, list[str]] = {name: [] for name in site.queues or ["vrm"]}
        for row in group_rows(handler, handler.jobs(ended=False), False):
            states.setdefault(resources.queue(row.one, site), []).append(row.state)
        return pbs_queues.shown(given, ids, states, handler)
    if given.get("F", "json") not in ("json", "dsv"):
        raise CallRefused(f"qstat: -F {given['F']}: vrm knows json and dsv", resources.USAGE)
    past = bool({"x", "H"} & set(given))
    rows, wrong, code = _asked(ids, handler, past, "t" in given)
    rows = _kept(rows, given, handler.site.user)
    if "f" in given:
        text = full(rows, handler, given)
    elif {"a", "i", "r", "n", "s", "1", "u", "H"} & set(given):
        text = other(rows, handler, given)
    else:
        text = table(rows, handler, "w" in given)
    return Answer(text, wrong, code)


def _asked(ids: Sequence[str], handler: RequestHandler, past: bool, each: bool) -> tuple[list[QstatRow], str, int]:
    """Return the rows of these ids and queues (of all jobs without them), error messages, and the exit status."""
    if not ids:
        return group_rows(handler, handler.jobs(ended=past), each), "", 0
    rows: list[QstatRow] = []
    wrong, code = "", 0
    for text in ids:
        try:
            rows += (_named(resources.find(handler, "qstat", text), handler, past, each) if text[:1].isdigit() else
                     _of_queue(text, handler, past, each))
        except CallRefused as error:
            wrong, code = f"{wrong}{error}\n", error.code
    return rows, wrong, code


def _kept(rows: Sequence[QstatRow], given: Mapping[str, str], user: str) -> list[QstatRow]:
    """Return the rows that these options select."""
    left: dict[str, Callable[[QstatRow], bool]] = {
        "u": lambda row: user in [name.partition("@")[0] for name in given["u"].split(",")],
        "i": lambda row: (row.state in "REB") == ("r" in given), "r": lambda row: row.state in "REB",
        "J": lambda row: row.one.array is not None, "H": lambda row: "x" in given or row.state in "FX"}
    return [row for row in rows if all(keep(row) for letter, keep in left.items() if letter in given)]


def _of_queue(name: str, handler: RequestHandler, past: bool, each: bool) -> list[QstatRow]:
    """Return the rows of a queue."""
    site = handler.site
    if name not in (site.queues or ["vrm"]):
        raise CallRefused(f"qstat: Unknown queue destination {name}", resources.NO_QUEUE)
    return group_rows(handler, [job for job in handler.jobs(ended=past) if resources.queue(job, site) == name], each)


def _part(job: JobView, whole: Sequence[JobView]) -> QstatRow:
    """Return the row of a job of an array; its state is F only when all jobs of the array have ended."""
    return QstatRow(resources.shown(job), [job],
                    "F" if all(each.state.ended for each in whole) else resources.state(job))


def _named(found: resources.JobReference, handler: RequestHandler, past: bool, each: bool) -> list[QstatRow]:
    """Return the rows of an id."""
    ended = all(job.state.ended for job in found.jobs)
    if ended and not past:
        raise CallRefused(f"qstat: {found.id} Job has finished, use -x or -H to obtain historical job information",
                          resources.FINISHED)
    if found.array is None:
        return [QstatRow(resources.shown(job), [job], resources.state(job)) if job.array is None else
                _part(job, handler.array(job.array)) for job in found.jobs]
    parts = [_part(job, found.jobs) for job in found.jobs] if each else []
    return [QstatRow(found.id, found.jobs, resources.state_of(found.jobs)), *parts]


def group_rows(handler: RequestHandler, jobs: Sequence[JobView], each: bool) -> list[QstatRow]:
    """Return the rows of these jobs: one for each job or array. `each`: also one for each job of an array."""
    rows: dict[str, QstatRow] = {}
    for job in jobs:
        if job.array is not None:
            name = resources.whole(job.array)
            if name not in rows:
                whole = handler.array(job.array)
                rows[name] = QstatRow(name, whole, resources.state_of(whole))
            if each:
                rows[resources.shown(job)] = _part(job, rows[name].jobs)
            continue
        rows[resources.shown(job)] = QstatRow(resources.shown(job), [job], resources.state(job))
    return list(rows.values())


def table(rows: Sequence[QstatRow], handler: RequestHandler, wide: bool = False) -> str:
    """Return the default table; empty if there are no jobs."""
    site, now = handler.site, handler.now
    lines = []
    first, width, last = (30, 15, 15) if wide else (17, 16, 16)
    for row in rows:
        used = 0.0 if row.whole else row.one.ran(now)
        lines.append(f"{_cut(row.id, first):<{first}} {_cut(row.one.name, width, 1):<{width}} "
                     f"{site.user[:width]:<{width}}  {resources.clock(used) if used else '0':>8} {row.state:>1} "
                     f"{resources.queue(row.one, site)[:last]:<{last}}\n")
    return (WIDE_HEAD if wide else HEAD) + "".join(lines) if lines else ""


def _cut(text: str, width: int, less: int = 0) -> str:
    """Cut a text to `width` characters, the last of which then is a `*`. qstat also cuts names of exactly that
    width; `less` is 1 for these."""
    return text if len(text) <= width - less else text[:width - 1] + "*"


def other(rows: Sequence[QstatRow], handler: RequestHandler, given: dict[str, str]) -> str:
    """Return the table of -a, -i, -r, -u, -n and -s."""
    site, now = handler.site, handler.now
    if not rows:
        return ""
    lines = [OTHER_HEAD.format(server=site.host, space="")]
    for row in rows:
        job = row.one
        used = job.ran(now)
        memory = sum(amount for name, amount in job.job.request.per_task if name == "mem") * job.job.procs
        more = []
        if {"n", "1"} & set(given):
            more += _nodes(exec_host(job) or BLANK, "1" in given)
        if "s" in given:
            text = comment(row) or BLANK
            more.append("   " + (text if len(text) <= COMMENT else text[:SHORT] + "..."))
        lines.append(
            f"{_cut(row.id, 15):<15} {_cut(site.user, 8):<8} {_cut(resources.queue(job, site), 8):<8} "
            f"{_cut(job.name, 10):<10} {BLANK:>6} {_cut(str(nodes(job)), 3):>3} "
            f"{_cut(str(job.job.request.cores), 3):>3} {_size(memory) if memory else BLANK:>6.6} "
            f"{resources.clock(job.job.walltime):>5.5} {row.state} {resources.clock(used) if used else BLANK:>5.5}"
            + (" " if "1" in given else "\n") + "".join(f"{text}\n" for text in more))
    return "".join(lines)


def _nodes(text: str, one: bool) -> list[str]:
    """Return nodes and cores as several lines, or as one."""
    lines, line = [], ""
    for part in text.split("+"):
        if len(line) + len(part) >= LIMIT - 1:
            lines.append(line)
            line = ""
        line += part + "+"
    lines.append(line[:-1])
    return ["".join(lines)] if one else [f"   {line}" for line in lines]


def _size(amount: int) -> str:
    """Return a number of bytes with at most four digits, rounded up."""
    power, amount = 1, -(-amount >> 10)
    while amount > 9999 or (power < 3 and amount % 1024 == 0):
        amount, power = (amount + 1023) >> 10, power + 1
    return f"{amount}{' kmgtp'[power]}b"


def nodes(job: JobView) -> int:
    """Return the number of its nodes; while it waits, the least number that it requests."""
    return len(job.nodes) or job.job.request.nodes[0]


def exec_host(job: JobView) -> str:
    """Return the nodes and cores of a job: `n0/0*4+n1/0*4`."""
    return "+".join(f"{name}/0" + (f"*{cores}" if cores > 1 else "")
                    for name, cores in zip(job.nodes, job.cores or [1] * len(job.nodes)))


def exec_vnode(job: JobView) -> str:
    """Return the nodes and cores of a job as chunks: `(n0:ncpus=4)+(n1:ncpus=4)`."""
    return "+".join(f"({name}:ncpus={cores})" for name, cores in zip(job.nodes, job.cores or [1] * len(job.nodes)))


def comment(row: QstatRow) -> str:
    """Return why a job waits, when it started, or how it ended."""
    job = row.one
    if not math.isfinite(job.start) or job.why:
        return {"held": "Job held by the user", "dependency": f"Job held on dependency: {job.reason}",
                "": ""}.get(job.why, f"Not Running: {job.reason or job.why}")
    began = time.strftime("%a %b %d at %H:%M", time.localtime(job.start))
    if row.whole:
        return f"Job Array Began at {began}" + " and finished" * (row.state == "F")
    end = (" and exceeded resource walltime" if job.state is JobState.TIMEOUT else
           " and finished" if job.state is JobState.COMPLETED else " and failed") if job.state.ended else ""
    return f"Job run at {began} on {exec_vnode(job)}{end}"


def substate(row: QstatRow) -> int:
    """Return PBS's number for the detailed state of a job."""
    job = row.one
    if row.state in "FX":
        return 92 if row.whole or job.state is JobState.COMPLETED else 93 if math.isfinite(job.start) else 91
    if row.state == "H":
        return 22 if job.why == "dependency" else 20
    return {"Q": 10, "W": 30, "R": 42, "E": 51, "B": 70}[row.state]


def indices(jobs: Sequence[JobView]) -> str:
    """Return the indices of an array's jobs as ranges, `0-3:3,9`; `-` for none."""
    found: list[str] = []
    left = [int(job.details.index or 0) for job in jobs]
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        size = next((at for at in range(1, len(left)) if left[at] - left[at - 1] != step), len(left))
        found.append(str(left[0]) if size == 1 else f"{left[0]}-{left[size - 1]}" + f":{step}" * (step > 1))
        left = left[size:]
    return ",".join(found) or "-"


_KINDS = {OK: "afterok", FAIL: "afternotok", ANY: "afterany", START: "after"}


def depend(job: JobView) -> str:
    """Return the unfulfilled dependencies of a job: `afterok:3.vrm@vrm`."""
    found: dict[str, str] = {}
    for each in job.named:
        for job_id in each.ids:
            kind = _KINDS[each.kind]
            found[kind] = found.get(kind, "") + f":{job_id}.{resources.SERVER}@{resources.SERVER}"
    return ",".join(f"{kind}{ids}" for kind, ids in found.items())


Fact = tuple[str, Any]


class FullRow:
    """A row with the values that `-f` shows."""

    def __init__(self, row: QstatRow, handler: RequestHandler) -> None:
        self.row, self.job, self.submitted = row, row.one, row.one.job
        self.site, self.now = handler.site, handler.now
        self.used = self.job.ran(self.now)
        self.began = math.isfinite(self.job.start) and not self.job.why
        self.ended = row.state in "FX"
        self.single = not row.whole
        self.ran = self.single and bool(self.used or (self.job.state.ended and self.began))
        steps = handler.steps(self.job) if self.ran else ()
        self.script = next((step for step in steps if step.step == "batch"), None)
        asked = self.submitted.payload.output, self.submitted.payload.errors
        self.output, self.errors = (
            known if self.single or "%a" not in path else
            path.replace("%A", str(self.job.array)).replace("%a", "^array_index^").replace("%%", "%")
            for path, known in zip(asked, handler.files(self.job)))

    @property
    def status(self) -> int | None:
        """Exit status; for an array 1 if one of its jobs has failed, else 0."""
        return resources.exit_status(self.job) if self.single else int(any(map(resources.exit_status, self.row.jobs)))

    @property
    def changed(self) -> float:
        """Time of the last change of its state (epoch seconds)."""
        return min(self.now, max(self.submitted.submit, 0.0, *filter(math.isfinite, (self.job.start, self.job.end))))

    @property
    def counts(self) -> str:
        """Number of jobs of an array in each state."""
        states = list(map(resources.state, self.row.jobs))
        return " ".join(f"{word}:{sum(state in letters for state in states)}" for word, letters in (
            ("Queued", "QHW"), ("Running", "R"), ("Exiting", "E"), ("Expired", "X")))


def _if(shown: object, value: Any) -> Any:
    """Return the value; None if it is not shown."""
    return value if shown else None


FACTS: tuple[tuple[str, Callable[[FullRow], Any]], ...] = (
    ("Job_Name", lambda row: row.job.name),
    ("Job_Owner", lambda row: f"{row.site.user}@{row.site.host}"),
    ("resources_used.cput", lambda row: row.script and resources.clock(row.script.user + row.script.system)),
    ("resources_used.mem", lambda row: row.script and f"{row.script.maxrss >> 10}kb"),
    ("resources_used.ncpus", lambda row: _if(row.ran, sum(row.job.cores))),
    ("resources_used.walltime", lambda row: _if(row.ran, resources.clock(row.used))),
    ("job_state", lambda row: row.row.state),
    ("queue", lambda row: resources.queue(row.job, row.site)),
    ("server", lambda row: resources.SERVER),
    ("Checkpoint", lambda row: "u"),
    ("ctime", lambda row: Moment(row.submitted.submit)),
    ("depend", lambda row: depend(row.job) or None),
    ("Error_Path", lambda row: f"{row.site.host}:{row.errors}"),
    ("Execution_Time", lambda row: _if(row.row.state == "W", Moment(row.job.eligible))),
    ("exec_host", lambda row: _if(row.job.nodes and row.single, exec_host(row.job))),
    ("exec_vnode", lambda row: _if(row.job.nodes and row.single, exec_vnode(row.job))),
    ("Hold_Types", lambda row: {"held": "u", "dependency": "s"}.get(row.job.why, "n")),
    ("Join_Path", lambda row: "oe" if row.output == row.errors else "n"),
    ("Keep_Files", lambda row: "n"),
    ("Mail_Points", lambda row: "a"),
    ("mtime", lambda row: Moment(row.changed)),
    ("Output_Path", lambda row: f"{row.site.host}:{row.output}"),
    ("Priority", lambda row: row.submitted.priority),
    ("qtime", lambda row: Moment(row.submitted.submit)),
    ("Rerunable", lambda row: "True"),
    ("Resource_List.ncpus", lambda row: row.submitted.request.cores),
    ("Resource_List.nodect", lambda row: nodes(row.job)),
    ("Resource_List.place", lambda row: place(row.job)),
    ("Resource_List.select", lambda row: select(row.job)),
    ("Resource_List.walltime", lambda row: resources.clock(row.submitted.walltime)),
    ("stime", lambda row: _if(row.began, Moment(row.job.start))),
    ("obittime", lambda row: _if(row.ended and math.isfinite(row.job.end) and row.began, Moment(row.job.end))),
    ("jobdir", lambda row: _if(row.began and row.single, row.submitted.payload.directory)),
    ("substate", lambda row: substate(row.row)),
    ("Variable_List", lambda row: row.submitted.payload.variables),
    ("comment", lambda row: comment(row.row) or None),
    ("etime", lambda row: _if(row.row.state not in "HW", Moment(row.job.eligible))),
    ("run_count", lambda row: _if(row.began and row.single, 1 + row.job.requeued)),
    ("Exit_status", lambda row: _if(row.ended, row.status)),
    ("array", lambda row: _if(row.row.whole, "True")),
    ("array_state_count", lambda row: _if(row.row.whole, row.counts)),
    ("array_indices_submitted", lambda row: _if(row.row.whole, indices(row.row.jobs))),
    ("array_indices_remaining", lambda row: _if(row.row.whole, indices(
        [each for each in row.row.jobs if resources.state(each) in "QHW"]))),
    ("array_id", lambda row: _if(row.single and row.job.array is not None, resources.whole(row.job.array or 0))),
    ("array_index", lambda row: _if(row.single and row.job.array is not None, row.job.details.index)),
    ("project", lambda row: "_pbs_project_default"),
    ("Submit_Host", lambda row: row.submitted.payload.variables.get("PBS_O_HOST", row.site.host)))
"""The attributes that `-f` shows, with PBS's names. A name with a dot is a member of another attribute. An attribute
with the value None is left out."""


def facts(row: QstatRow, handler: RequestHandler) -> list[Fact]:
    """Return all attributes of a job; each of its variables becomes an attribute of its own."""
    whole = FullRow(row, handler)
    found = ((name, read(whole)) for name, read in FACTS)
    return [part for name, value in found if value is not None for part in (
        [(f"{name}.{key}", each) for key, each in value.items()] if isinstance(value, dict) else [(name, value)])]


def place(job: JobView) -> str:
    """Return how the job is placed."""
    request = job.job.request
    return "scatter" if request.tasks_per_node else "pack" if request.nodes == (1, 1) else "free"


class Moment(float):
    """A time, which PBS prints in the format of ctime."""

    def __str__(self) -> str:
        return time.ctime(self)


def select(job: JobView) -> str:
    """Return the resources that a job requests as chunks."""
    request = job.job.request
    each = request.tasks_per_node or (request.tasks if request.nodes == (1, 1) else 1)
    return f"{-(-request.tasks // each)}:ncpus={each * request.cores_per_task}" + f":mpiprocs={each}" * (each > 1)


def full(rows: Sequence[QstatRow], handler: RequestHandler, given: dict[str, str]) -> str:
    """Return all that is known of the jobs, as text, as JSON, or with a delimiter."""
    known = [(row.id, facts(row, handler)) for row in rows]
    form = given.get("F", "")
    if form == "json":
        return resources.document(handler, {"Jobs": {name: _nested(each) for name, each in known}} if known else {})
    if form == "dsv":
        mark = given.get("D", "|")
        return "".join(mark.join([f"Job Id: {name}", *(f"{key}={_plain(value, mark)}" for key, value in _listed(each))])
                       + "\n" for name, each in known)
    def line(key: str, value: str) -> str:
        return f"    {key} = {value}" if "w" in given else folded(key, value)
    return "".join(f"Job Id: {name}\n" + "".join(line(key, _plain(value)) + "\n" for key, value in _listed(each)) + "\n"
                   for name, each in known)


def _plain(value: Any, mark: str = "") -> str:
    """Return a value as one line."""
    text = re.sub(r"[\x00-\x1f]", lambda found: f"\\{ord(found[0]):03o}", str(value))
    return text.replace(mark, f"\\{mark}") if mark else text


def _listed(each: Sequence[Fact]) -> list[Fact]:
    """Return the attributes with all variables joined to one value."""
    listed: list[Fact] = []
    variables = [f"{key.partition('.')[2]}={value}".replace(",", "\\,") for key, value in each
                 if key.startswith("Variable_List.")]
    for key, value in each:
        if not key.startswith("Variable_List."):
            listed.append((key, value))
        elif variables:
            listed.append(("Variable_List", ",".join(variables)))
            variables = []
    return listed


def folded(key: str, value: str) -> str:
    """Return a long line as several, split as qstat does: at commas, or anywhere in a part without commas."""
    out, at, first = f"    {key} = ", len(key) + 7, True
    parts = [part for part in value.split(",") if part]
    for number, part in enumerate(parts):
        if len(part) + at < LIMIT:
            out, at = out + part, at + len(part)
        else:
            if not first:
                out, at = out + "\n\t", 9
            for letter in part:
                out, at = out + letter, at + 1
                if at > LIMIT:
                    out, at = out + "\n\t", 8
        if number < len(parts) - 1:
            out, first = out + ",", False
    return out


def parsed(text: str) -> Any:
    """Return the JSON value that PBS writes for a text: a number or other JSON if the text has that form."""
    if re.fullmatch(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?", text):
        number = float(text)
        return int(number) if number.is_integer() and abs(number) < 2 ** 53 else number
    if text[:1] in ('"', "{", "[") or text in ("true", "false", "null"):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def _nested(each: Sequence[Fact]) -> dict[str, Any]:
    """Return the attributes as nested objects: a name with a dot becomes a member of another object. Times become
    text."""
    found: dict[str, Any] = {}
    for key, value in each:
        above, dot, name = key.partition(".")
        said = str(value) if isinstance(value, Moment) else value
        if dot:
            found.setdefault(above, {})[name] = parsed(said) if isinstance(said, str) else said
        else:
            found[key] = said
    return found
