"""`qdel`, `qrerun`, `qsig`, `qselect`, `qhold`, `qrls` and `qalter`: commands that act on jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from vrm.ext.pbs import resources
from vrm.ext.slurm.calls.answers import Answer, Call, CallRefused
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.sbatch import signal_number
from vrm.model import JobState

LETTERS = {"qrerun": "W:", "qsig": "s:", "qselect": "a:A:c:h:HJl:N:p:q:r:s:tTu:x",
           "qdel": "W:xp", "qhold": "h:", "qrls": "h:",
           "qalter": "a:A:c:e:h:j:k:l:m:M:N:o:p:P:r:R:S:u:v:W:"}
USAGE = {"qrerun": "qrerun [-W force] job_identifier ...", "qsig": "qsig [-s signal] job_identifier ...",
         "qselect": "qselect [-s states] [-N name] [-u user] [-q queue] [-x]",
         "qdel": "qdel [-W force] [-x] job_identifier ...", "qhold": "qhold [-h hold_list] job_identifier ...",
         "qrls": "qrls [-h hold_list] job_identifier ...",
         "qalter": "qalter -l walltime=... [-p priority] job_identifier ..."}


def _each(call: Call, handler: RequestHandler, ids: Sequence[str], act: Callable[[JobView], None]) -> Answer:
    """Apply `act` to all named jobs; report errors and continue with the other jobs."""
    if not ids:
        raise CallRefused(f"{call.name}: no job identifier\nusage: {USAGE[call.name]}", resources.USAGE)
    said: list[str] = []
    code = 0
    for text in ids:
        try:
            found = resources.find(handler, call.name, text)
            open_ = (handler.unfinished([job.id for job in found.jobs]) if call.name == "qdel" else
                     [job for job in found.jobs if not job.state.ended])
            if not open_:
                raise CallRefused(f"{call.name}: Job has finished" + f" {found.id}" * (call.name == "qdel"),
                                  resources.FINISHED)
            for job in open_:
                try:
                    act(job)
                except CallRefused as error:
                    code = resources.VALUE if error.code == resources.VALUE else resources.STATE
                    raise CallRefused(f"{call.name}: {error} {found.id}", code) from error
        except CallRefused as error:
            said.append(f"{error}\n")
            code = error.code
    return Answer(err="".join(said), code=code)


def qdel(call: Call, handler: RequestHandler) -> Answer:
    """Cancel jobs."""
    _, ids = resources.options("qdel", LETTERS["qdel"], USAGE["qdel"], call.arguments)
    return _each(call, handler, ids, lambda job: handler.cancel(job.id))


def qrerun(call: Call, handler: RequestHandler) -> Answer:
    """Requeue jobs."""
    _, ids = resources.options("qrerun", LETTERS["qrerun"], USAGE["qrerun"], call.arguments)
    return _each(call, handler, ids, lambda job: handler.requeue(job.id, call.token))


def qsig(call: Call, handler: RequestHandler) -> Answer:
    """Send a signal to jobs."""
    options, ids = resources.options("qsig", LETTERS["qsig"], USAGE["qsig"], call.arguments)
    said = dict(options).get("s", "SIGTERM")
    try:
        number = signal_number(said)
    except ValueError as error:
        raise CallRefused(f"qsig: illegal -s value: {said}; a signal as SIGUSR1 or 10", resources.USAGE) from error
    return _each(call, handler, ids, lambda job: handler.cancel(job.id, number))


def qselect(call: Call, handler: RequestHandler) -> Answer:
    """Print the ids of the jobs that match the options."""
    options, rest = resources.options("qselect", LETTERS["qselect"], USAGE["qselect"], call.arguments)
    given, site = dict(options), handler.site
    unknown = sorted(set(given) - {*"sNuqxJHtT"})
    if unknown or rest:
        by = rest[0] if rest else f"-{unknown[0]}"
        raise CallRefused(f"qselect: vrm cannot select by {by}\nusage: {USAGE['qselect']}", resources.USAGE)
    users = [each.partition("@")[0] for each in given.get("u", site.user).split(",")]
    found: dict[str, None] = {}
    for job in handler.jobs(ended="x" in given or "H" in given):
        whole = job.array is not None and "t" not in given
        if (site.user in users and given.get("N", job.name) == job.name
                and resources.state(job) in (given.get("s") or resources.state(job))
                and given.get("q", resources.queue(job, site)).partition("@")[0] == resources.queue(job, site)
                and ("J" not in given or job.array is not None)):
            found[resources.whole(job.array) if whole and job.array is not None else resources.shown(job)] = None
    return Answer("".join(f"{each}\n" for each in found))


def qhold(call: Call, handler: RequestHandler) -> Answer:
    """Prevent jobs from starting."""
    options, ids = resources.options("qhold", LETTERS["qhold"], USAGE["qhold"], call.arguments)
    _holds("qhold", options)

    def act(job: JobView) -> None:
        if job.state is JobState.RUNNING:
            raise CallRefused("Request invalid for state of job", resources.STATE)
        handler.hold(job.id)
    return _each(call, handler, ids, act)


def qrls(call: Call, handler: RequestHandler) -> Answer:
    """Release held jobs."""
    options, ids = resources.options("qrls", LETTERS["qrls"], USAGE["qrls"], call.arguments)
    _holds("qrls", options)
    return _each(call, handler, ids, lambda job: handler.release(job.id) if job.why == "held" else None)


def _holds(command: str, options: Sequence[tuple[str, str]]) -> None:
    for _, value in options:
        if not re.fullmatch("[uosn]+", value):
            raise CallRefused(f"{command}: illegal -h value: {value}; vrm has the hold of the user: u", resources.USAGE)


def qalter(call: Call, handler: RequestHandler) -> Answer:
    """Change the walltime or priority of jobs."""
    options, ids = resources.options("qalter", LETTERS["qalter"], USAGE["qalter"], call.arguments)
    values: dict[str, float] = {}
    illegal = ""
    for letter, value in options:
        try:
            values.update(_change(letter, value))
        except resources.BadResourceValue as error:
            illegal = error.name
        except ValueError as error:
            raise CallRefused(f"qalter: illegal -{letter} value: {value}; {error}", resources.USAGE) from error

    def act(job: JobView) -> None:
        if illegal:
            raise CallRefused(f"Illegal attribute or resource value Resource_List.{illegal}", resources.VALUE)
        handler.change(job.id, values)
    return _each(call, handler, ids, act)


def _change(letter: str, value: str) -> Mapping[str, float]:
    if letter == "p" and re.fullmatch(r"[+-]?[0-9]{1,4}", value):
        return {"priority": int(value)}
    if letter == "l":
        wanted: dict[str, str] = {}
        resources.resources(value, wanted)
        if set(wanted) == {"walltime"}:
            return {"walltime": resources.walltime(wanted["walltime"])}
    raise ValueError("vrm changes -l walltime=HH:MM:SS and -p priority only; delete the job and submit it again")
