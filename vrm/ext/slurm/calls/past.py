"""What the files of a run say of its jobs where no manager runs: for `sacct`, which is asked of runs that are
over, too."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.ext.slurm.calls import jobs as front, names
from vrm.ext.slurm.calls.answers import Answer, Call, Refused, LaterAnswer
from vrm.ext.slurm.calls.client import directory
from vrm.ext.slurm.calls.counter import SubmittedJob
from vrm.ext.slurm.sacct import sacct as answer
from vrm.model import JobState
from vrm.model.quantities import fold
from vrm.ext.steps.records import Step, read_steps
from vrm.run.journal import files as journals
from vrm.run.journal.past import replay
from vrm.run.rundir import RunDirectory
from vrm.system.errors import RunError
from vrm.system.files import group_name, read_own, user_name


class PastCounter:
    """A counter at which nobody can do anything: see `vrm.ext.slurm.calls.counter.Counter`. But the jobs that a call
    has brought are known, although nobody has answered it."""

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
        """The jobs of these ids, or without ids all."""
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
        """Those of all jobs."""
        return sorted(self._past.state.book.entries)

    def array(self, first: int) -> list[front.JobView]:
        """The jobs of the array whose first one this is."""
        return [job for job in self.jobs() if job.array == first]

    def steps(self, job: front.JobView) -> list[Step]:
        """The steps of a job that have ended."""
        return self._steps.get(job.id, [])

    def usage(self, jobs: Sequence[front.JobView]) -> Callable[[], list[list[front.StepUsage]]]:
        """Nothing is known to run."""
        return lambda: [[] for _ in jobs]

    def files(self, job: front.JobView) -> tuple[str, str, str]:
        """The files that a job was to write to and read, as its user has named them."""
        payload, run = job.job.payload, self._run
        if not payload.output:
            return str(run.output(job.job.app, job.id)), str(run.errors(job.job.app, job.id)), ""
        return payload.output, payload.errors, payload.input

    def script(self, job_id: int) -> bytes:
        """The text of a job's script."""
        return read_own(self._run.scripts / self._past.jobs[job_id].payload.copy)

    def nodes(self) -> list[front.NodeView]:
        """Nobody has nodes now."""
        return []

    def _nobody(self) -> Refused:
        return Refused("no manager runs")

    def submit(self, asked: SubmittedJob) -> list[int]:
        """Nobody takes jobs; those of this call were taken."""
        ids = self._past.by_command.get(asked.command)
        if not ids:
            raise self._nobody()
        return ids

    def foresee(self, asked: SubmittedJob) -> front.JobView:
        """Nobody takes jobs."""
        raise self._nobody()

    def entering(self, job_id: int, env: Mapping[str, str]) -> Mapping[str, str]:
        """Nothing is known to run."""
        raise self._nobody()

    def cancel(self, job_id: int, signal: int = 0) -> None:
        """Nobody is there to do it."""
        raise self._nobody()

    def cancellable(self, ids: Iterable[int]) -> list[front.JobView]:
        """Nobody is there to do it."""
        raise self._nobody()

    def hold(self, job_id: int) -> None:
        """Nobody is there to do it."""
        raise self._nobody()

    release = hold

    def requeue(self, job_id: int, command: str = "") -> None:
        """Nobody is there to do it."""
        raise self._nobody()

    def change(self, job_id: int, values: Mapping[str, Any]) -> None:
        """Nobody is there to do it."""
        raise self._nobody()


def unanswered(call: Call, run: RunDirectory) -> Answer | None:
    """The answer to a call that a manager has taken, and was killed then; None where it has brought no jobs."""
    ids = journals.made_by(run.journal, call.token)
    if not ids:
        return None
    found = names.reply_to(call, PastCounter(run))
    if isinstance(found, Answer):
        return found
    assert isinstance(found, LaterAnswer)
    out, err, more = b"", b"", True
    while more:
        done, (text, said) = found.poll(), found.take()
        out, err, more = out + text, err + said, bool(text) and done is None
    if done is None:
        done = Answer(err=f"{call.name}: error: the manager of vrm has ended; job {fold(ids)} was submitted, and "
                          "continues with the next manager\n", code=1)
    return Answer(os.fsdecode(out) + done.out, os.fsdecode(err) + done.err, done.code)


def sacct(call: Call) -> int | None:
    """Answer from the files of the run; None where it has none."""
    place = directory(call.env)
    run = RunDirectory(place, place, place / "state")
    if not run.journal.exists():
        return None
    found = answer(call, PastCounter(run))
    print(found.out, end="")
    print(found.err, end="", file=sys.stderr)
    return found.code
