"""`scancel`: cancels jobs, or sends them signals."""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence

from vrm.ext.slurm.forms import state_names
from vrm.ext.slurm.calls.answers import Answer, Call, AnswerInParts, CallRefused, Reply, DeferredAnswer
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.forms.options import Options
from vrm.ext.slurm.sbatch import signal_number
from vrm.model import JobState

OPTIONS = Options("scancel",
    "A account v, b batch n, f full n, . me n, n name v, . jobname v name, p partition v, q qos v, Q quiet n, "
    "R reservation v, s signal v, t state v, u user v, v verbose n, . wckey v, "
    ". ctld n -, c cron n -, H hurry n -, i interactive n -, M clusters v -, . sibling v -, "
    "w nodelist v !", "[options] [ID ...]")

_FILTERS = ("account", "me", "name", "partition", "qos", "reservation", "state", "user", "wckey")


PATIENCE = 95.0
"""Seconds that a signal waits for its jobs to start, as Slurm's scancel does."""


class SignalAnswer(DeferredAnswer):
    """Waits until the jobs that are to get a signal run. `said` are error messages so far; `wrong` is the number of
    failures."""

    def __init__(self, handler: RequestHandler, ids: list[int], number: int, said: list[str], wrong: int) -> None:
        self._handler, self._ids, self._number = handler, ids, number
        self._said, self._wrong = said, wrong
        self._until = handler.now + PATIENCE

    def poll(self) -> Answer | None:
        """Return the answer when each job has got the signal or has ended, or the time is over."""
        late = self._handler.now >= self._until
        for job in self._handler.jobs(self._ids) if self._ids else ():
            if job.state is not JobState.QUEUED or late:
                self._ids.remove(job.id)
                self._send(job, late)
        if self._ids:
            return None
        return Answer(err="".join(f"{line}\n" for line in self._said), code=int(bool(self._wrong)))

    def _send(self, job: JobView, late: bool) -> None:
        try:
            if job.state is JobState.RUNNING:
                self._handler.cancel(job.id, self._number)
            elif late and job.state is JobState.QUEUED:
                raise CallRefused("Job can not be altered now, try again later")
        except CallRefused as error:
            self._wrong += 1
            self._said.append(f"scancel: error: Kill job error on job id {job.shown_id}: {error}")


def scancel(call: Call, handler: RequestHandler) -> Reply:
    """Cancel the named jobs, or the jobs that match all options."""
    given, rest = OPTIONS.parse(call.arguments)
    if not rest and not any(key in given for key in _FILTERS):
        raise OPTIONS.error("No job identification provided")
    number = OPTIONS.checked(f"Unknown job signal: {given['signal']}", signal_number, given["signal"]) if (
        "signal" in given) else 0
    said: list[str] = []
    found: set[int] = set()
    for word in rest:
        if "." in word:
            raise OPTIONS.error(f"{word}: vrm ends whole jobs; a step ends with its job, or by a signal to its srun")
        named, missing = OPTIONS.checked(f"Invalid job id {word}", state_names.find, handler, word)
        found.update(job.id for job in named)
        if missing:
            said.append(f"scancel: error: Kill job error on job id {', '.join(missing)}: Invalid job id specified")
    _matching([], given, handler)  # report invalid options even if there are no jobs
    ids = sorted(found) if rest else handler.ids()
    work = AnswerInParts(_end_all(ids, given, number, said, handler))
    return work.finish() if len(ids) <= MANY else work


MANY = 1000
"""With more jobs than this the work is split over several turns of the manager's loop."""

STEP = 100
"""Number of jobs that are handled between two checks of the time."""


def _end_all(ids: Sequence[int], given: dict[str, str], number: int, said: list[str], handler: RequestHandler
             ) -> Generator[None, None, Answer | DeferredAnswer]:
    """Cancel those of these jobs that match the options, or send them a signal. `said` are error messages so far."""
    wrong, waits, ends = len(said), [], number in (0, signal.SIGKILL)
    for at in range(0, len(ids), STEP):
        part = ids[at:at + STEP]
        for job in _matching(handler.unfinished(part) if ends else handler.jobs(part, ended=False), given, handler):
            if "verbose" in given:
                said.append(f"scancel: Terminating job {job.shown_id}")
            running = job.state is JobState.RUNNING
            if not (running or ends):
                waits.append(job.id)
                continue
            try:
                handler.cancel(job.id, number if running else 0)
            except CallRefused as error:
                wrong += 1
                said.append(f"scancel: error: Kill job error on job id {job.shown_id}: {error}")
        yield
    if "quiet" in given:
        said.clear()
    if waits:
        return SignalAnswer(handler, waits, number, said, wrong)
    return Answer(err="".join(f"{line}\n" for line in said), code=int(bool(wrong)))


def _matching(jobs: list[JobView], given: dict[str, str], handler: RequestHandler) -> list[JobView]:
    """Return those of the jobs that match the options."""
    site = handler.site
    if ("user" in given and given["user"] not in (site.user, str(site.uid))) or "account" in given or "wckey" in given:
        return []
    jobs = state_names.selected(jobs, given, site)
    if "state" in given:
        states = OPTIONS.checked("Invalid job state specified: {}", state_names.states_of, given["state"])
        jobs = [job for job in jobs if states is None or state_names.state(job) in states]
    return jobs
