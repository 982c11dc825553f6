"""`scontrol update`: changes fields of submitted jobs. Time limit, priority, name, comment and requeue can be
changed until the job ends; begin time, dependencies and nodes only while it waits."""

from __future__ import annotations

import math
import re
from typing import Any
from collections.abc import Callable, Iterator, Mapping, Sequence

from vrm.ext.slurm import requests
from vrm.ext.slurm.forms import times, state_names
from vrm.ext.slurm.calls.answers import Answer, CallRefused
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.dependencies import dependencies
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.forms.options import Options
from vrm.model import JobState
from vrm.model.job import ANY, Dependency
from vrm.model.quantities import slurm_seconds, to_ranges

NOTHING = ("account", "qos", "wckey", "admincomment", "mailtype", "mailuser", "reboot")
"""Fields that may be set without any effect, because vrm does not have them."""

Change = dict[str, Any]


def update(given: Sequence[str], handler: RequestHandler, options: Options) -> Answer:
    """Change jobs as the arguments request."""
    values = _values(given)
    text = values.pop("jobid", values.pop("job", ""))
    if not text:
        raise options.error("update what? For example scontrol update JobId=12 TimeLimit=1:00:00")
    jobs, missing = options.checked("Invalid job id specified: {}", state_names.find, handler, text)
    if missing or not jobs:
        raise _wrong("Invalid job id specified")
    throttle = values.pop("arraytaskthrottle", None)
    changes = [(job, _change(values, job, handler, options)) for job in jobs]
    if throttle is not None:
        changes += _throttled(throttle, jobs, handler)
    for job, change in changes:
        try:
            if change:
                handler.change(job.id, change)
        except CallRefused as error:
            raise _wrong(f"job {job.shown_id}: {error}") from error
    return Answer()


def _wrong(why: str) -> CallRefused:
    return CallRefused(f"slurm_update error: {why}")


def _values(given: Sequence[str]) -> dict[str, str]:
    """Return the values by their names in lower case; the arguments have the form `Name=value`, or are two words."""
    values: dict[str, str] = {}
    key = ""
    for word in given:
        name, equals, value = word.partition("=")
        if not equals and not key:
            key = name.lower()
            continue
        values[key or name.lower()] = word if key else value
        key = ""
    return values


def _change(values: Mapping[str, str], job: JobView, handler: RequestHandler, options: Options) -> Change:
    """Return the changes of a job."""
    change: Change = {}
    for name, value in values.items():
        if name in NOTHING or (name == "partition" and (
                not handler.site.queues or state_names.partition(job, handler.site) == value)):
            continue
        if name not in _READ:
            raise _wrong(f"vrm changes {', '.join(SHOWN)} of jobs, and not `{name}={value}`; cancel the job and submit "
                         "it again")
        try:
            change.update(_READ[name](value, job, handler, options))
        except ValueError as error:
            if isinstance(error, CallRefused):
                raise
            raise _wrong(f"Invalid value `{value}` for {name}") from error
    return change


def _limit(text: str, job: JobView, handler: RequestHandler, options: Options) -> Change:
    try:
        seconds = slurm_seconds(text.lstrip("+-"))
    except ValueError as error:
        raise _wrong(f"Invalid time limit specification: {text}") from error
    found = {"+": job.job.walltime + seconds, "-": job.job.walltime - seconds}.get(text[:1], seconds)
    if not 0 < found < math.inf:
        raise _wrong(f"Requested time limit is invalid: {text}")
    return {"walltime": found}


def _number(text: str, form: str) -> int:
    if not re.fullmatch(form, text):
        raise ValueError(text)
    return int(text or 100)


def _text(key: str, most: int) -> Callable[[str, JobView, RequestHandler, Options], Change]:
    def read(text: str, job: JobView, handler: RequestHandler, options: Options) -> Change:
        return {key: "".join(each if each.isprintable() else " " for each in text)[:most]}
    return read


def _requeue(text: str, job: JobView, handler: RequestHandler, options: Options) -> Change:
    return {"requeue": {"0": "no", "1": "yes"}[text] if text in ("0", "1") else _number(text, "x")}


def _start(text: str, job: JobView, handler: RequestHandler, options: Options) -> Change:
    return {"begin": max(0.0, times.begin(text, handler.now) - job.job.submit)}


def _after(text: str, job: JobView, handler: RequestHandler, options: Options) -> Change:
    if "singleton" in text:
        raise _wrong("Dependency=singleton: vrm reads it when a job is submitted; name the jobs: afterany:3:4")
    after, _, _ = dependencies(text, options, handler, job.name, ())
    named = job.without_limit(job.details.after)
    return {"after": (*after, *(each for each in job.details.after if each not in named)), "singleton": ""}


def _nodes(text: str, job: JobView, handler: RequestHandler, options: Options) -> Change:
    least, most = requests.nodes(text)
    if least > job.job.procs:
        raise _wrong(f"NumNodes={text}: the job has {job.job.procs} task{'s' * (job.job.procs > 1)}, and no node is "
                     "without one")
    return {"nodes": (least, min(most, job.job.procs))}


def _throttled(text: str, jobs: Sequence[JobView], handler: RequestHandler) -> Iterator[tuple[JobView, Change]]:
    """Yield the changes of the jobs of arrays when only `text` of them may run at a time.

    Jobs that have started come first. A waiting job depends on the end of the job `limit` places before it. The
    first `limit` waiting jobs depend on the ends of all started jobs up to that place, so that never more than
    `limit` jobs run."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise _wrong(f"Invalid value `{text}` for ArrayTaskThrottle")
    limit, arrays = int(text), dict.fromkeys(job.array for job in jobs)
    if None in arrays:
        raise _wrong("ArrayTaskThrottle is for jobs of arrays")
    for first in arrays:
        left = [job for job in handler.array(first or 0) if not job.state.ended or job.ending]
        started = [job for job in left if job.state is not JobState.QUEUED or job.begun]
        waiting = [job for job in left if job.state is JobState.QUEUED and not job.begun]
        for at, job in enumerate(waiting):
            before = started[:max(0, len(started) - limit + at + 1)] if at < limit else [waiting[at - limit]]
            ids = to_ranges([each.id for each in before]) if limit else ()
            yield job, {"throttle": limit, "after": (*job.without_limit(job.details.after),
                                                     *(Dependency(each, ANY) for each in ids))}


SHOWN = ("TimeLimit", "Priority", "Nice", "JobName", "Comment", "Requeue", "StartTime", "Dependency", "NumNodes",
         "ArrayTaskThrottle")
_READ: dict[str, Callable[[str, JobView, RequestHandler, Options], Change]] = {
    "timelimit": _limit, "jobname": _text("title", 1024), "name": _text("title", 1024),
    "comment": _text("comment", 4096), "requeue": _requeue, "starttime": _start, "dependency": _after,
    "numnodes": _nodes, "reqnodes": _nodes,
    "priority": lambda text, *_: {"priority": _number(text, "-?[0-9]{1,9}")},
    "nice": lambda text, *_: {"priority": -_number(text, "-?[0-9]{0,9}")}}
"""For each name the function that returns the change, in terms of `RequestHandler.change`."""
