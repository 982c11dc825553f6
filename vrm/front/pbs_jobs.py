"""`qdel`, `qhold`, `qrls` and `qalter`: what is done to jobs."""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Mapping, Sequence

from vrm.front import pbs_words as words
from vrm.front.answers import Answer, Call, Refused
from vrm.front.counter import Counter
from vrm.front.jobs import Job
from vrm.model import JobState

LETTERS = {"qdel": "W:xp", "qhold": "h:", "qrls": "h:",
           "qalter": "a:A:c:e:h:j:k:l:m:M:N:o:p:P:r:R:S:u:v:W:"}
USAGE = {"qdel": "qdel [-W force] [-x] job_identifier ...", "qhold": "qhold [-h hold_list] job_identifier ...",
         "qrls": "qrls [-h hold_list] job_identifier ...",
         "qalter": "qalter -l walltime=... [-p priority] job_identifier ..."}


def _each(call: Call, counter: Counter, ids: Sequence[str], act: Callable[[Job], None]) -> Answer:
    """Do it to all jobs that are named; what does not work is said, and the others are done."""
    if not ids:
        raise Refused(f"{call.name}: no job identifier\nusage: {USAGE[call.name]}", words.USAGE)
    said: List[str] = []
    code = 0
    for text in ids:
        try:
            found = words.find(counter, call.name, text)
            open_ = [job for job in found.jobs if not job.state.ended]
            if not open_:
                raise Refused(f"{call.name}: Job has finished" + f" {found.id}" * (call.name == "qdel"), words.FINISHED)
            for job in open_:
                try:
                    act(job)
                except Refused as error:
                    code = words.VALUE if error.code == words.VALUE else words.STATE
                    raise Refused(f"{call.name}: {error} {found.id}", code) from error
        except Refused as error:
            said.append(f"{error}\n")
            code = error.code
    return Answer(err="".join(said), code=code)


def qdel(call: Call, counter: Counter) -> Answer:
    """End jobs, or let them never start."""
    _, ids = words.options("qdel", LETTERS["qdel"], USAGE["qdel"], call.arguments)
    return _each(call, counter, ids, lambda job: counter.cancel(job.id))


def qhold(call: Call, counter: Counter) -> Answer:
    """Keep jobs from starting."""
    options, ids = words.options("qhold", LETTERS["qhold"], USAGE["qhold"], call.arguments)
    _holds("qhold", options)

    def act(job: Job) -> None:
        if job.state is JobState.RUNNING:
            raise Refused("Request invalid for state of job", words.STATE)
        counter.hold(job.id)
    return _each(call, counter, ids, act)


def qrls(call: Call, counter: Counter) -> Answer:
    """Let held jobs start."""
    options, ids = words.options("qrls", LETTERS["qrls"], USAGE["qrls"], call.arguments)
    _holds("qrls", options)
    return _each(call, counter, ids, lambda job: counter.release(job.id) if job.why == "held" else None)


def _holds(command: str, options: Sequence["tuple[str, str]"]) -> None:
    for _, value in options:
        if not re.fullmatch("[uosn]+", value):
            raise Refused(f"{command}: illegal -h value: {value}; vrm has the hold of the user: u", words.USAGE)


def qalter(call: Call, counter: Counter) -> Answer:
    """Change a job's walltime or priority."""
    options, ids = words.options("qalter", LETTERS["qalter"], USAGE["qalter"], call.arguments)
    values: Dict[str, float] = {}
    illegal = ""
    for letter, value in options:
        try:
            values.update(_change(letter, value))
        except words.Illegal as error:
            illegal = f"Resource_List.{error.name}"
        except ValueError as error:
            raise Refused(f"qalter: illegal -{letter} value: {value}; {error}", words.USAGE) from error

    def act(job: Job) -> None:
        if illegal:
            raise Refused(f"Illegal attribute or resource value {illegal}", words.VALUE)
        counter.change(job.id, values)
    return _each(call, counter, ids, act)


def _change(letter: str, value: str) -> Mapping[str, float]:
    if letter == "p" and re.fullmatch(r"[+-]?[0-9]{1,4}", value):
        return {"priority": int(value)}
    if letter == "l":
        wanted: Dict[str, str] = {}
        words.resources(value, wanted)
        if set(wanted) == {"walltime"}:
            try:
                return {"walltime": words.walltime(wanted["walltime"])}
            except ValueError as error:
                raise words.Illegal("walltime", wanted["walltime"]) from error
    raise ValueError("vrm changes -l walltime=HH:MM:SS and -p priority only; delete the job and submit it again")
