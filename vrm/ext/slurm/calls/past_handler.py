"""Answers `sacct` from the files of a run while no manager runs, also for runs that are over."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.ext.slurm.calls import jobs as front, names
from vrm.ext.slurm.calls.answers import Answer, Call, CallRefused, DeferredAnswer
from vrm.ext.slurm.calls.client import directory
from vrm.ext.slurm.calls.handler import SubmittedJob
from vrm.model import JobState
from vrm.model.quantities import fold
from vrm.ext.steps.records import Step, read_steps
from vrm.run.journal import files as journals
from vrm.run.journal.history import replay
from vrm.run.requeue import unfinished
from vrm.run.rundir import RunDirectory
from vrm.system.errors import RunError
from vrm.system.files import group_name, read_own, user_name


class PastRequestHandler:
    """A `vrm.ext.slurm.calls.handler.RequestHandler` over the files of a run. Nothing can be changed, but the jobs that
    a call has submitted are known even if that call was never answered."""

    def __init__(self, run: RunDirectory) -> None:
        self.now = time.time()
        self.site = front.RunFacts(user_name(os.geteuid()), os.geteuid(), socket.gethostname(), str(run.directory), {},
                               3600.0, group=group_name(os.getegid()), gid=os.getegid())
        self._run = run
        try:
            self._past = replay(journals.records(run.journal), run.journal)
        except ValueError as error:
            raise RunError(f"the journal is damaged: {error}") from error
        self._steps = read_steps(run.steps)

    def jobs(self, ids: Iterable[int] = (), ended: bool = True) -> list[front.JobView]:
        """Return the jobs with these ids, or all jobs without ids."""
        entries = self._past.state.book.entries
        wanted = set(ids)
        return [self._job(job_id) for job_id in sorted(wanted or entries) if job_id in entries
                and (ended or not entries[job_id].state.ended)]

    def _job(self, job_id: int) -> front.JobView:
        entry, start, end = (self._past.state.book.entries[job_id], self._past.started.get(job_id),
                             self._past.ended.get(job_id))
        more: dict[str, Any] = {}
        if start is not None and entry.state is not JobState.QUEUED:
            more["start"] = start["time"]
            there = {each[0]: sum(each[1]) for each in self._past.run_of[job_id].get("nodes") or ()}
            steps = self._steps.get(job_id, [])
            more["nodes"] = tuple(steps[-1].nodes.split() if steps else there if len(there) == 1 else ())
            more["cores"] = (steps[-1].cores if steps else entry.job.request.cores,)
            if entry.job.exclusive:
                more["held"] = sum(there.get(name, 0) for name in more["nodes"])
        if end is not None:
            more.update(end=end["time"], code=end["exit_code"], reason=end["reason"], cause=end.get("cause", ""))
        if entry.details.index is not None:
            more["array"] = entry.details.more.get("array_id")
        return front.JobView(job_id, entry.job, entry.details, entry.state, requeued=entry.tries + entry.losses, **more)

    def ids(self) -> list[int]:
        """Return the ids of all jobs."""
        return sorted(self._past.state.book.entries)

    def array(self, first: int) -> list[front.JobView]:
        """Return the jobs of the array whose first job has this id."""
        return [job for job in self.jobs() if job.array == first]

    def steps(self, job: front.JobView) -> list[Step]:
        """Return the recorded steps of a job."""
        return self._steps.get(job.id, [])

    def usage(self, jobs: Sequence[front.JobView]) -> Callable[[], list[list[front.StepUsage]]]:
        """Return no usage: no job is known to run."""
        return lambda: [[] for _ in jobs]

    def files(self, job: front.JobView) -> tuple[str, str, str]:
        """Return the paths of a job's output, errors and input, as its user has named them."""
        payload, run = job.job.payload, self._run
        if not payload.output:
            return str(run.output(job.job.app, job.id)), str(run.errors(job.job.app, job.id)), ""
        return payload.output, payload.errors, payload.input

    def script(self, job_id: int) -> bytes:
        """Return the text of a job's script."""
        return read_own(self._run.scripts / self._past.jobs[job_id].payload.copy)

    def nodes(self) -> list[front.NodeView]:
        """Return no nodes: without a manager there are none."""
        return []

    def _no_manager(self) -> CallRefused:
        return CallRefused("no manager runs")

    def submit(self, asked: SubmittedJob) -> list[int]:
        """Return the jobs that this call has already submitted; raises CallRefused if there are none."""
        ids = self._past.by_command.get(asked.command)
        if not ids:
            raise self._no_manager()
        return ids

    def foresee(self, asked: SubmittedJob) -> front.JobView:
        """Raises CallRefused: no manager runs."""
        raise self._no_manager()

    def entry_variables(self, job_id: int, env: Mapping[str, str]) -> Mapping[str, str]:
        """Raises CallRefused: no manager runs."""
        raise self._no_manager()

    def cancel(self, job_id: int, signal: int = 0) -> None:
        """Raises CallRefused: no manager runs."""
        raise self._no_manager()

    def unfinished(self, ids: Iterable[int]) -> list[front.JobView]:
        """Return those of these jobs that wait or run, or that the next manager is to run again."""
        found = unfinished(self._past.state.book.entries, ids)
        return self.jobs(found) if found else []

    def hold(self, job_id: int) -> None:
        """Raises CallRefused: no manager runs."""
        raise self._no_manager()

    release = hold

    def requeue(self, job_id: int, command: str = "") -> None:
        """Raises CallRefused: no manager runs."""
        raise self._no_manager()

    def change(self, job_id: int, values: Mapping[str, Any]) -> None:
        """Raises CallRefused: no manager runs."""
        raise self._no_manager()


def unanswered(call: Call, run: RunDirectory) -> Answer | None:
    """Return the answer to a call whose manager was killed after it had submitted jobs; None if the call has
    submitted none."""
    ids = journals.jobs_of_command(run.journal, call.token)
    if not ids:
        return None
    found = names.reply_to(call, PastRequestHandler(run))
    if isinstance(found, Answer):
        return found
    assert isinstance(found, DeferredAnswer)
    out, err, more = b"", b"", True
    while more:
        done, (text, said) = found.poll(), found.take()
        out, err, more = out + text, err + said, bool(text) and done is None
    if done is None:
        done = Answer(err=f"{call.name}: error: the manager of vrm has ended; job {fold(ids)} was submitted, and "
                          "continues with the next manager\n", code=1)
    return Answer(os.fsdecode(out) + done.out, os.fsdecode(err) + done.err, done.code)


def recorded(call: Call) -> int | None:
    """Answer a command about ended jobs from the files of the run; return None if it has no journal."""
    place = directory(call.env)
    run = RunDirectory(place, place, place / "state")
    if not run.journal.exists():
        return None
    found = names.reply_to(call, PastRequestHandler(run))
    assert isinstance(found, Answer)  # these commands answer at once
    print(found.out, end="")
    print(found.err, end="", file=sys.stderr)
    return found.code
