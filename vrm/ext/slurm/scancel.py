"""`scancel`: jobs are ended, or get a signal."""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence

from vrm.ext.slurm.forms import words
from vrm.ext.slurm.calls.answers import Answer, Call, InParts, Refused, Reply, LaterAnswer
from vrm.ext.slurm.calls.counter import Counter
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
"""Seconds for which a signal waits for its jobs to start, as Slurm's scancel does."""


class Signalling(LaterAnswer):
    """Waits until jobs run that are to get a signal. `said` and `wrong` are what there is to say already, and how
    many jobs it is of."""

    def __init__(self, counter: Counter, ids: list[int], number: int, said: list[str], wrong: int) -> None:
        self._counter, self._ids, self._number = counter, ids, number
        self._said, self._wrong = said, wrong
        self._until = counter.now + PATIENCE

    def poll(self) -> Answer | None:
        """The answer, when all jobs have got it, or have ended, or it is too late."""
        late = self._counter.now >= self._until
        for job in self._counter.jobs(self._ids) if self._ids else ():
            if job.state is not JobState.QUEUED or late:
                self._ids.remove(job.id)
                self._send(job, late)
        if self._ids:
            return None
        return Answer(err="".join(f"{line}\n" for line in self._said), code=int(bool(self._wrong)))

    def _send(self, job: JobView, late: bool) -> None:
        try:
            if job.state is JobState.RUNNING:
                self._counter.cancel(job.id, self._number)
            elif late and job.state is JobState.QUEUED:
                raise Refused("Job can not be altered now, try again later")
        except Refused as error:
            self._wrong += 1
            self._said.append(f"scancel: error: Kill job error on job id {job.shown_id}: {error}")


def scancel(call: Call, counter: Counter) -> Reply:
    """End the jobs that are named, or those that all options describe."""
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
        named, missing = OPTIONS.checked(f"Invalid job id {word}", words.find, counter, word)
        found.update(job.id for job in named)
        if missing:
            said.append(f"scancel: error: Kill job error on job id {', '.join(missing)}: Invalid job id specified")
    _matching([], given, counter)  # what is wrong with the options is wrong with those of no job
    ids = sorted(found) if rest else counter.ids()
    work = InParts(_end_all(ids, given, number, said, counter))
    return work.finish() if len(ids) <= MANY else work


MANY = 1000
"""Jobs that are looked at in one turn of the manager's loop."""

STEP = 100
"""Jobs that are looked at before the time is."""


def _end_all(ids: Sequence[int], given: dict[str, str], number: int, said: list[str], counter: Counter
             ) -> Generator[None, None, Answer | LaterAnswer]:
    """End those of these jobs that the options describe, or send them a signal; `said` is what went wrong before."""
    wrong, waits, ends = len(said), [], number in (0, signal.SIGKILL)
    for at in range(0, len(ids), STEP):
        part = ids[at:at + STEP]
        for job in _matching(counter.cancellable(part) if ends else counter.jobs(part, ended=False), given, counter):
            if "verbose" in given:
                said.append(f"scancel: Terminating job {job.shown_id}")
            running = job.state is JobState.RUNNING
            if not (running or ends):
                waits.append(job.id)
                continue
            try:
                counter.cancel(job.id, number if running else 0)
            except Refused as error:
                wrong += 1
                said.append(f"scancel: error: Kill job error on job id {job.shown_id}: {error}")
        yield
    if "quiet" in given:
        said.clear()
    if waits:
        return Signalling(counter, waits, number, said, wrong)
    return Answer(err="".join(f"{line}\n" for line in said), code=int(bool(wrong)))


def _matching(jobs: list[JobView], given: dict[str, str], counter: Counter) -> list[JobView]:
    """Those of the jobs that the options describe."""
    site = counter.site
    if ("user" in given and given["user"] not in (site.user, str(site.uid))) or "account" in given or "wckey" in given:
        return []
    jobs = words.selected(jobs, given, site)
    if "state" in given:
        states = OPTIONS.checked("Invalid job state specified: {}", words.states_of, given["state"])
        jobs = [job for job in jobs if states is None or words.state(job) in states]
    return jobs
