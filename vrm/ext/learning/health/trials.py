"""Runs of programs as observations of the nodes on which they ran."""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Collection, Iterable

from vrm.ext.learning.learned_jobs import LearnedJob
from vrm.results.job_columns import JobFileError
from vrm.results.placement_text import unfold_nodes

OUTCOMES = ("completed", "failed", "timeout")
"""Ends of jobs that say something about their nodes."""

SAME = 0.5
"""Seconds by which two records of the end of one attempt may differ."""

Key = tuple[str, str, int, int]
"""Program, input, ranks, and cores of each rank: runs with equal keys are compared."""


@dataclass(frozen=True)
class NodeTrial:
    """One attempt of a job on the nodes of these names, until `end` (seconds since the epoch). `seconds` is its
    run time, 0 if that says nothing. `outcome` is one of OUTCOMES."""

    run: str
    job: int
    key: Key
    nodes: frozenset[str]
    end: float
    seconds: float
    outcome: str

    @property
    def app(self) -> str:
        """The program."""
        return self.key[0]


def trial_from_job(job: LearnedJob) -> NodeTrial | None:
    """Return a job as an observation of its nodes; None if it says nothing about them."""
    if job.status not in OUTCOMES or not job.ranks:
        return None
    try:
        nodes = frozenset(unfold_nodes(job.nodes))
    except JobFileError:
        return None
    key = job.app, job.input, job.ranks, max(1, job.cores // job.ranks)
    seconds = job.seconds if job.steady else 0.0
    return NodeTrial(job.run, job.job, key, nodes, job.end, seconds, job.status) if nodes else None


def merged(trials: Iterable[NodeTrial], since: float, most: int) -> list[NodeTrial]:
    """Return each attempt that ended after `since` once, in the order of their ends: the last `most`."""
    found: dict[tuple[str, int], list[NodeTrial]] = {}
    for trial in trials:
        of = found.setdefault((trial.run, trial.job), [])
        if trial.end > since and all(abs(trial.end - each.end) > SAME for each in of):
            of.append(trial)
    return sorted((trial for of in found.values() for trial in of), key=lambda trial: (trial.end, trial.job))[-most:]


def at_fault(trials: Collection[NodeTrial]) -> set[tuple[str, int]]:
    """Return the jobs, by run and id, that failed on several disjoint sets of nodes: these jobs are the cause
    themselves."""
    failed: dict[tuple[str, int], list[frozenset[str]]] = {}
    for trial in trials:
        if trial.outcome == "failed":
            failed.setdefault((trial.run, trial.job), []).append(trial.nodes)
    return {job for job, places in failed.items() if any(place.isdisjoint(places[0]) for place in places)}
