"""Runs Slurm's commands against a handler that only records the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from vrm.ext.slurm.calls import jobs as front, names
from vrm.ext.slurm.calls.answers import Answer, Call, FileNeeded, CallRefused
from vrm.ext.slurm.calls.handler import SubmittedJob
from vrm.ext.steps.records import Step
from vrm.model import JobState
from vrm.model.forms.fields import made


SCRIPT = b"#!/bin/sh\ntrue\n"


class Counter:
    """A handler of Slurm commands that only records requests: `asked` holds submissions, `done` all other changes."""

    def __init__(self, *jobs: front.JobView) -> None:
        self.now = 1_700_000_000.0
        self.site = front.RunFacts("ann", 1000, "n1", "/run", {}, 3600.0, group="users", gid=100)
        self.all = {job.id: job for job in jobs}
        self.asked: list[SubmittedJob] = []
        self.done: list[Any] = []
        self.again: set[int] = set()  # jobs that have ended and run again under the next manager

    def jobs(self, ids: Any = (), ended: bool = True) -> list[front.JobView]:
        chosen = sorted(set(ids)) or sorted(self.all)
        return [self.all[i] for i in chosen if i in self.all and (ended or not self.all[i].state.ended)]

    def unfinished(self, ids: Iterable[int]) -> list[front.JobView]:
        return [self.all[i] for i in ids if i in self.all and (i in self.again or not self.all[i].state.ended)]

    def ids(self) -> list[int]:
        return sorted(self.all)

    def array(self, first: int) -> list[front.JobView]:
        return [job for job in self.jobs() if job.array == first]

    def steps(self, job: front.JobView) -> list[Step]:
        return []

    def usage(self, jobs: Sequence[front.JobView]) -> Callable[[], Any]:
        found = [front.StepUsage("batch", 1, 1.0, 3 << 20, 5 << 20, "n1", (7, 8), ("n1",)),
                 front.StepUsage("0", 2, 61.0, 4 << 20, 6 << 20, "n1", (9, 10), ("n1", "n2"))]
        return lambda: [found for _ in jobs]

    def files(self, job: front.JobView) -> tuple[str, str, str]:
        return "/o", "/e", ""

    def script(self, job_id: int) -> bytes:
        return SCRIPT

    def nodes(self) -> list[front.NodeView]:
        return [front.NodeView("n1", (4, 4), 3), front.NodeView("n2", (4, 4), 0), front.NodeView("n3", (4, 4), 0, up=False)]

    def submit(self, asked: SubmittedJob) -> list[int]:
        self.asked.append(asked)
        return [len(self.all) + len(self.asked)]

    def foresee(self, asked: SubmittedJob) -> front.JobView:
        return a_job(99, JobState.QUEUED, start=self.now + 60, nodes=("n1", "n2"), cores=(2, 1))

    def cancel(self, job_id: int, signal: int = 0) -> None:
        self.done.append(("cancel", job_id, signal))

    def hold(self, job_id: int) -> None:
        self.done.append(("hold", job_id))

    def release(self, job_id: int) -> None:
        self.done.append(("release", job_id))

    def requeue(self, job_id: int, command: str = "") -> None:
        self.done.append(("requeue", job_id))

    def change(self, job_id: int, values: Any) -> None:
        self.done.append(("change", job_id, dict(values)))


def a_job(job_id: int, state: JobState = JobState.RUNNING, **more: Any) -> front.JobView:
    values = {"app": "solve", "procs": 2, "walltime": 600.0, "script": True, "directory": "/home/ann"}
    job, details = made({**values, **more.pop("fields", {})}, job_id, 1_699_999_000.0)
    if "index" in more:
        details = replace(details, index=more.pop("index"))
    return front.JobView(job_id, job, details, state, **more)


def run(handler: Counter, *words_: str, env: dict[str, str] | None = None, script: bytes = SCRIPT) -> Answer:
    """Return the answer to a command; the script is sent if the handler requests it."""
    call = Call(words_[0], list(words_[1:]), "/work", env or {})
    try:
        reply = names.reply_to(call, handler)
        if isinstance(reply, FileNeeded):
            reply = names.reply_to(replace(call, sent={reply.path: script}), handler)
    except CallRefused as refused:
        return Answer(err=f"{refused}\n", code=refused.code)
    assert isinstance(reply, Answer), reply
    return reply


def asked(*words_: str, script: bytes = SCRIPT, env: dict[str, str] | None = None, handler: Counter | None = None
          ) -> SubmittedJob:
    handler = handler or Counter()
    answer = run(handler, "sbatch", *words_, script=script, env=env)
    assert (answer.code, answer.err) == (0, ""), answer
    return handler.asked[0]
