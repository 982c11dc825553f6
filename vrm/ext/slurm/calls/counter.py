"""What the commands of other batch systems can ask of a manager. The manager's side is
`vrm.ext.slurm.calls.live_counter.LiveCounter`; where no manager runs, what its files say is in
`vrm.ext.slurm.calls.past`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.ext.slurm.calls.answers import Refused
from vrm.ext.slurm.calls.jobs import JobView, NodeView, RunFacts, StepUsage
from vrm.model.job import Dependency
from vrm.ext.steps.records import Step


@dataclass(frozen=True)
class SubmittedJob:
    """A job that is to come: values by the names of `vrm.model.forms.fields`, and what goes with it.

    `script` is its text, `environment` what its processes get (None: the manager's), `indices` those of
    an array, of which at most `width` jobs run at a time (0: any number). `flexible`: its time limit
    may be cut at the allocation's end. `own` are what the jobs of some indices wait for alone.
    `command` is the name of the call that asks (`vrm.ext.slurm.calls.wire.TOKEN`): it brings jobs once.
    """

    values: Mapping[str, Any]
    script: bytes = b""
    environment: Mapping[str, str] | None = None
    indices: Sequence[int] = ()
    width: int = 0
    flexible: bool = True
    notes: Sequence[str] = field(default_factory=list)
    own: Mapping[int, tuple[Dependency, ...]] = field(default_factory=dict)
    command: str = ""


class Counter(Protocol):
    """A manager, or what it has left. Ids are those that people of other batch systems know (`JobView.id`).

    What changes something raises `vrm.ext.slurm.calls.answers.Refused` with the reason. It is in the journal,
    on disk, before the answer is given.
    """

    @property
    def now(self) -> float:
        """Epoch seconds."""

    @property
    def site(self) -> RunFacts:
        """What is true of all jobs."""

    def jobs(self, ids: Iterable[int] = (), ended: bool = True) -> list[JobView]:
        """The jobs of these ids that there are, or without ids all, in the order of their ids;
        `ended`: also those that have ended."""

    def cancellable(self, ids: Iterable[int]) -> list[JobView]:
        """Those of these jobs that wait or run, or have ended and the next manager runs them again."""

    def ids(self) -> list[int]:
        """Those of all jobs."""

    def array(self, first: int) -> list[JobView]:
        """The jobs of the array whose first one this is."""

    def steps(self, job: JobView) -> list[Step]:
        """The steps of a job that have ended."""

    def usage(self, jobs: Sequence[JobView]) -> Callable[[], list[list[StepUsage]] | None]:
        """What the scripts of these running jobs, and their steps, use now: asked for at once, and there when what this
        returns gives it."""

    def files(self, job: JobView) -> tuple[str, str, str]:
        """The paths of a job's output, errors and input ("": it has none)."""

    def script(self, job_id: int) -> bytes:
        """The text of a job's script."""

    def nodes(self) -> list[NodeView]:
        """The nodes."""

    def submit(self, asked: SubmittedJob) -> list[int]:
        """New jobs, one or an array; their ids."""

    def foresee(self, asked: SubmittedJob) -> JobView:
        """The job as it would start, if it were submitted now: when, where, under which id."""

    def entering(self, job_id: int, env: Mapping[str, str]) -> Mapping[str, str]:
        """The variables with which a client, which has these, runs a step in a running job."""

    def cancel(self, job_id: int, signal: int = 0) -> None:
        """End a job, or send a signal to its processes."""

    def hold(self, job_id: int) -> None:
        """Keep a waiting job from starting."""

    def release(self, job_id: int) -> None:
        """Let a held job start."""

    def requeue(self, job_id: int, command: str = "") -> None:
        """Run a job again; one that runs is ended first. `command`: as of `SubmittedJob`."""

    def change(self, job_id: int, values: Mapping[str, Any]) -> None:
        """Change what a job was submitted with, by the names of `vrm.model.forms.fields`: its `walltime` (seconds),
        `priority`, `title`, `comment` and `requeue`; while it waits, and has not run, its `begin` (seconds after its
        submission), `after`, `singleton`, `throttle` and `nodes`."""


def submitted(counter: Counter, asked: SubmittedJob, refused: str) -> list[int]:
    """The ids of new jobs; Refused begins with the words that the command has for that."""
    try:
        return counter.submit(asked)
    except Refused as error:
        raise Refused(f"{refused}: {error}", error.code) from error
