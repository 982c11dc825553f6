"""`qstat`: the jobs, as a table, in full, or as JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from vrm.front import pbs_words as words
from vrm.front.answers import Answer, Call, Refused
from vrm.front.counter import Counter
from vrm.front.jobs import Job

USAGE = ("qstat [-f] [-x] [-t] [-J] [-w] [-F json|dsv [-D delimiter]] [-a | -i | -r] [-n] [-s] [-1] [-u user] "
         "[-q queue] [job_identifier ...]")

HEAD = ("Job id            Name             User              Time Use S Queue\n"
        "----------------  ---------------- ----------------  -------- - -----\n")
OTHER_HEAD = ("\n{server}: \n{space}                                                            Req'd  Req'd   Elap\n"
              "Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time\n"
              "--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----\n")

LIMIT = 78
"""Characters of a line of -f; the rest goes to lines that begin with a tab."""

BLANK = " -- "
"""What stands for nothing in the table of -a."""

COMMENT, SHORT = 74, 71
"""Characters of a comment in that table, and how many of a longer one."""


class Row(NamedTuple):
    """A line of a table: a job, or all jobs of an array."""

    id: str
    jobs: Sequence[Job]
    state: str

    @property
    def one(self) -> Job:
        """The job that stands for all."""
        return self.jobs[0]


def qstat(call: Call, counter: Counter) -> Answer:
    """Show jobs."""
    options, ids = words.options("qstat", "aD:E1fF:GHiJMnpQqBrsTtu:wxWL", USAGE, call.arguments)
    given = dict(options)
    for letter in given:
        if letter in "QqBTML":
            raise Refused(f"qstat: -{letter}: vrm shows jobs only\nusage: {USAGE}", words.USAGE)
    if given.get("F", "json") not in ("json", "dsv"):
        raise Refused(f"qstat: -F {given['F']}: vrm knows json and dsv", words.USAGE)
    said: List[str] = []
    code = 0
    past = bool({"x", "H"} & set(given))
    if ids:
        rows: List[Row] = []
        for text in ids:
            try:
                rows += _named(words.find(counter, "qstat", text), text, past, "t" in given)
            except Refused as error:
                said.append(f"{error}\n")
                code = error.code
    else:
        rows = grouped(counter, counter.jobs(ended=past), "t" in given)
    site = counter.site
    if "u" in given and site.user not in [name.partition("@")[0] for name in given["u"].split(",")]:
        rows = []
    if "i" in given or "r" in given:
        rows = [row for row in rows if (row.state in "REB") == ("r" in given)]
    if "J" in given:
        rows = [row for row in rows if row.one.array is not None]
    if "H" in given and "x" not in given:
        rows = [row for row in rows if row.state in "FX"]
    if "f" in given:
        text = full(rows, counter, given)
    elif {"a", "i", "r", "n", "s", "1", "u", "H"} & set(given):
        text = other(rows, counter, given)
    else:
        text = table(rows, counter)
    return Answer(text, "".join(said), code)


def _named(found: words.Found, text: str, past: bool, each: bool) -> List[Row]:
    """The rows of an id that was given."""
    ended = all(job.state.ended for job in found.jobs)
    if ended and not past:
        raise Refused(f"qstat: {found.id} Job has finished, use -x or -H to obtain historical job information",
                      words.FINISHED)
    if found.array is None or each:
        return [Row(words.shown(job), [job], words.state(job)) for job in found.jobs]
    return [Row(found.id, found.jobs, words.state_of(found.jobs))]


def grouped(counter: Counter, jobs: Sequence[Job], each: bool) -> List[Row]:
    """The rows of these jobs: one for each, or for each array. `each`: also one for each job of an array."""
    rows: Dict[str, Row] = {}
    for job in jobs:
        if job.array is not None:
            name = words.whole(job.array)
            if name not in rows:
                whole = counter.array(job.array)
                rows[name] = Row(name, whole, words.state_of(whole))
            if not each:
                continue
        rows[words.shown(job)] = Row(words.shown(job), [job], words.state(job))
    return list(rows.values())


def table(rows: Sequence[Row], counter: Counter) -> str:
    """The table that people know; nothing where there is no job."""
    site, now = counter.site, counter.now
    lines = []
    for row in rows:
        used = words.used(row.one, now)
        lines.append(f"{_cut(row.id, 17):<17} {_cut(row.one.name, 16, 1):<16} {site.user[:16]:<16}  "
                     f"{words.clock(used) if used else '0':>8} {row.state:>1} {words.queue(row.one, site)[:16]}\n")
    return HEAD + "".join(lines) if lines else ""


def _cut(text: str, width: int, less: int = 0) -> str:
    """As many characters, the last a `*` if there are more. (qstat does so with names of just the width: `less`.)"""
    return text if len(text) <= width - less else text[:width - 1] + "*"


def other(rows: Sequence[Row], counter: Counter, given: Dict[str, str]) -> str:
    """The table of -a, -i, -r, -u, -n and -s."""
    site, now = counter.site, counter.now
    if not rows:
        return ""
    lines = [OTHER_HEAD.format(server=site.host, space="")]
    for row in rows:
        job = row.one
        used = words.used(job, now)
        memory = sum(amount for name, amount in job.job.request.per_task if name == "mem") * job.job.procs
        more = []
        if {"n", "1"} & set(given):
            more += _nodes(exec_host(job) or BLANK, "1" in given)
        if "s" in given:
            text = comment(job) or BLANK
            more.append("   " + (text if len(text) <= COMMENT else text[:SHORT] + "..."))
        lines.append(
            f"{_cut(row.id, 15):<15} {_cut(site.user, 8):<8} {_cut(words.queue(job, site), 8):<8} "
            f"{_cut(job.name, 10):<10} {BLANK:>6} {_cut(str(nodes(job)), 3):>3} "
            f"{_cut(str(job.job.request.cores), 3):>3} {_size(memory) if memory else BLANK:>6.6} "
            f"{words.clock(job.job.walltime):>5.5} {row.state} {words.clock(used) if used else BLANK:>5.5}"
            + (" " if "1" in given else "\n") + "".join(f"{text}\n" for text in more))
    return "".join(lines)


def _nodes(text: str, one: bool) -> List[str]:
    """Nodes and cores as lines, or as one."""
    lines, line = [], ""
    for part in text.split("+"):
        if len(line) + len(part) >= LIMIT - 1:
            lines.append(line)
            line = ""
        line += part + "+"
    lines.append(line[:-1])
    return ["".join(lines)] if one else [f"   {line}" for line in lines]


def _size(amount: int) -> str:
    """Bytes with at most four digits, rounded up."""
    power, amount = 1, -(-amount >> 10)
    while amount > 9999 or power < 3 and amount % 1024 == 0:
        amount, power = (amount + 1023) >> 10, power + 1
    return f"{amount}{' kmgtp'[power]}b"


def nodes(job: Job) -> int:
    """On how many nodes it runs, or at least will."""
    return len(job.nodes) or job.job.request.nodes[0]


def exec_host(job: Job) -> str:
    """The nodes and cores of a job: `n0/0*4+n1/0*4`."""
    return "+".join(f"{name}/0" + (f"*{cores}" if cores > 1 else "")
                    for name, cores in zip(job.nodes, job.cores or [1] * len(job.nodes)))


def comment(job: Job) -> str:
    """Why a job waits, or since when it runs."""
    if not math.isfinite(job.start) or job.why:
        return {"held": "Job held by the user", "dependency": f"Job held on dependency: {job.reason}",
                "": ""}.get(job.why, f"Not Running: {job.reason or job.why}")
    return f"Job run at {words.date(job.start)} on ({exec_host(job)})"


Fact = Tuple[str, Any]


def facts(row: Row, counter: Counter) -> List[Fact]:
    """All that is known of a job, by PBS's names; a name with a dot is that of a part."""
    job, submitted = row.one, row.one.job
    request, site, now = submitted.request, counter.site, counter.now
    output, errors, _ = counter.files(job)
    found: List[Fact] = [("Job_Name", job.name), ("Job_Owner", f"{site.user}@{site.host}")]
    used = words.used(job, now)
    if used or job.state.ended:
        found += [("resources_used.ncpus", sum(job.cores)), ("resources_used.walltime", words.clock(used))]
    found += [("job_state", row.state), ("queue", words.queue(job, site)), ("server", words.SERVER),
              ("Checkpoint", "u"), ("ctime", _time(submitted.submit)),
              ("Error_Path", f"{site.host}:{errors}")]
    if job.nodes:
        found += [("exec_host", exec_host(job)),
                  ("exec_vnode", "+".join(f"({name}:ncpus={cores})" for name, cores in zip(job.nodes, job.cores)))]
    found += [("Hold_Types", "u" if job.why == "held" else "s" if job.why == "dependency" else "n"),
              ("Join_Path", "oe" if output == errors else "n"),
              ("Keep_Files", "n"), ("Mail_Points", "a"),
              ("mtime", _time(min(now, max(submitted.submit, *(each for each in (job.start, job.end)
                                                               if math.isfinite(each)), 0.0)))),
              ("Output_Path", f"{site.host}:{output}"), ("Priority", submitted.priority),
              ("qtime", _time(submitted.submit)), ("Rerunable", "True"),
              ("Resource_List.ncpus", request.cores), ("Resource_List.nodect", nodes(job)),
              ("Resource_List.place", "scatter" if request.tasks_per_node else "free"),
              ("Resource_List.select", select(job)), ("Resource_List.walltime", words.clock(submitted.walltime))]
    if math.isfinite(job.start) and not job.why:
        found.append(("stime", _time(job.start)))
    if row.state in "FX" and math.isfinite(job.end):
        found.append(("obittime", _time(job.end)))
    found += [(f"Variable_List.{name}", value) for name, value in submitted.payload.variables.items()]
    if comment(job):
        found.append(("comment", comment(job)))
    found.append(("etime", _time(submitted.submit)))
    status = words.exit_status(job)
    if job.state.ended and status is not None:
        found.append(("Exit_status", status))
    if row.one.array is not None and len(row.jobs) > 1:
        counts = {word: sum(words.state(each) in letters for each in row.jobs)
                  for word, letters in (("Queued", "QH"), ("Running", "RE"), ("Exiting", ""), ("Expired", "X"))}
        found += [("array", "True"),
                  ("array_state_count", " ".join(f"{word}:{count}" for word, count in counts.items()))]
    elif row.one.array is not None:
        found += [("array_id", words.whole(row.one.array)), ("array_index", row.one.details.index)]
    return [*found, ("project", "_pbs_project_default")]


class Moment(float):
    """A time, which PBS prints as ctime does."""

    def __str__(self) -> str:
        return words.date(self)


def _time(moment: float) -> Moment:
    return Moment(moment)


def select(job: Job) -> str:
    """What a job asks of the machine, as chunks."""
    request = job.job.request
    if request.tasks_per_node:
        count = -(-request.tasks // request.tasks_per_node)
        return f"{count}:ncpus={request.tasks_per_node * request.cores_per_task}:mpiprocs={request.tasks_per_node}"
    return f"{request.tasks}:ncpus={request.cores_per_task}:mpiprocs=1"


def full(rows: Sequence[Row], counter: Counter, given: Dict[str, str]) -> str:
    """All that is known of the jobs, as text, as JSON, or with a delimiter."""
    known = [(row.id, facts(row, counter)) for row in rows]
    form = given.get("F", "")
    if form == "json":
        return json.dumps({"timestamp": int(counter.now), "pbs_version": "vrm", "pbs_server": words.SERVER,
                           "Jobs": {name: _nested(each) for name, each in known}}, indent=4) + "\n"
    if form == "dsv":
        mark = given.get("D", "|")
        return "".join(mark.join([f"Job Id: {name}", *(f"{key}={_plain(value, mark)}" for key, value in _listed(each))])
                       + "\n" for name, each in known)
    def line(key: str, value: str) -> str:
        return f"    {key} = {value}" if "w" in given else folded(key, value)
    return "".join(f"Job Id: {name}\n" + "".join(line(key, _plain(value)) + "\n" for key, value in _listed(each)) + "\n"
                   for name, each in known)


def _plain(value: Any, mark: str = "") -> str:
    """A value as one line."""
    text = re.sub(r"[\x00-\x1f]", lambda found: f"\\{ord(found[0]):03o}", str(value))
    return text.replace(mark, f"\\{mark}") if mark else text


def _listed(each: Sequence[Fact]) -> List[Fact]:
    """The variables as one value."""
    listed: List[Fact] = []
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
    """A long line as several, as qstat breaks it: at commas, or anywhere within what has none."""
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
    """What PBS writes as JSON for a value: a number, or other JSON, where it is such."""
    if re.fullmatch(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?", text):
        number = float(text)
        return int(number) if number.is_integer() and abs(number) < 2 ** 53 else number
    if text[:1] in ('"', "{", "[") or text in ("true", "false", "null"):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def _nested(each: Sequence[Fact]) -> Dict[str, Any]:
    """What has a dot in its name within another object; times as text."""
    found: Dict[str, Any] = {}
    for key, value in each:
        above, dot, name = key.partition(".")
        said = str(value) if isinstance(value, Moment) else value
        if dot:
            found.setdefault(above, {})[name] = parsed(said) if isinstance(said, str) else said
        else:
            found[key] = said
    return found
