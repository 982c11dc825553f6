"""The interface through which commands of other batch systems query and change a manager's jobs.
`vrm.ext.slurm.calls.live_handler.LiveRequestHandler` implements it inside a manager; `vrm.ext.slurm.calls.past_handler`
reads the files of a run without a manager."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.ext.slurm.calls.answers import CallRefused
from vrm.ext.slurm.calls.jobs import JobView, NodeView, RunFacts, StepUsage
from vrm.model.job import Dependency
from vrm.ext.steps.records import Step


@dataclass(frozen=True)
class SubmittedJob:
    """A job that is to be submitted: `values` by their names in `vrm.model.forms.fields`, and what belongs to them.

    `script` is the script's text. `environment` is the environment of its processes (None: the manager's). `indices`
    are the indices of an array; at most `width` of its jobs run at a time (0: any number). `flexible`: the time limit
    may be cut at the end of the allocation. `own` has the additional dependencies of the jobs of some indices.
    `command` is the name of the call (`vrm.ext.slurm.calls.wire.TOKEN`): a call submits its jobs only once, even when
    it is repeated."""

    values: Mapping[str, Any]
    script: bytes = b""
    environment: Mapping[str, str] | None = None
    indices: Sequence[int] = ()
    width: int = 0
    flexible: bool = True
    notes: Sequence[str] = field(default_factory=list)
    own: Mapping[int, tuple[Dependency, ...]] = field(default_factory=dict)
    command: str = ""


class RequestHandler(Protocol):
    """A manager, or the files that it has left. Ids are those that users of other batch systems see (`JobView.id`).

    Methods that change something raise `vrm.ext.slurm.calls.answers.CallRefused` with the reason. A change is in the
    journal, on disk, before the answer is sent."""

    @property
    def now(self) -> float:
        """Current time in epoch seconds."""

    @property
    def site(self) -> RunFacts:
        """Facts about the run that hold for all jobs."""

    def jobs(self, ids: Iterable[int] = (), ended: bool = True) -> list[JobView]:
        """Return the existing jobs with these ids (all jobs without ids), in the order of their ids; without `ended`,
        only those that have not ended."""

    def unfinished(self, ids: Iterable[int]) -> list[JobView]:
        """Return those of these jobs that wait or run, or that the next manager is to run again."""

    def ids(self) -> list[int]:
        """Return the ids of all jobs."""

    def array(self, first: int) -> list[JobView]:
        """Return the jobs of the array whose first job has this id."""

    def steps(self, job: JobView) -> list[Step]:
        """Return the recorded steps of a job; steps are recorded when they end."""

    def usage(self, jobs: Sequence[JobView]) -> Callable[[], list[list[StepUsage]] | None]:
        """Request what the scripts and steps of these running jobs use now. The returned function gives the usage by
        jobs, or None until all nodes have answered."""

    def files(self, job: JobView) -> tuple[str, str, str]:
        """Return the paths of a job's output, errors and input ("" for none)."""

    def script(self, job_id: int) -> bytes:
        """Return the text of a job's script."""

    def nodes(self) -> list[NodeView]:
        """Return the nodes."""

    def submit(self, asked: SubmittedJob) -> list[int]:
        """Submit a job or an array; return the new ids."""

    def foresee(self, asked: SubmittedJob) -> JobView:
        """Return the job as it would start if it were submitted now: start time, nodes, id."""

    def entry_variables(self, job_id: int, env: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables with which a client that has the environment `env` can run a step in a running job."""

    def cancel(self, job_id: int, signal: int = 0) -> None:
        """Cancel a job, or with `signal` send that signal to its processes."""

    def hold(self, job_id: int) -> None:
        """Prevent a waiting job from starting."""

    def release(self, job_id: int) -> None:
        """Allow a held job to start."""

    def requeue(self, job_id: int, command: str = "") -> None:
        """Requeue a job; a running job is ended first. `command`: see `SubmittedJob`."""

    def change(self, job_id: int, values: Mapping[str, Any]) -> None:
        """Change fields of a submitted job, by their names in `vrm.model.forms.fields`: `walltime` (seconds),
        `priority`, `title`, `comment` and `requeue`; and while it waits and has not run, also `begin` (seconds after
        its submission), `after`, `singleton`, `throttle` and `nodes`."""


def submitted(handler: RequestHandler, asked: SubmittedJob, refused: str) -> list[int]:
    """Submit and return the ids of the new jobs. The text of a CallRefused begins with `refused`, the command's own
    wording."""
    try:
        return handler.submit(asked)
    except CallRefused as error:
        raise CallRefused(f"{refused}: {error}", error.code) from error
