"""Ended jobs as measurements of pairs: next to which loads a job ran, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Hashable, Iterable, Sequence

from vrm.ext.learning.learned_jobs import LearnedJob
from vrm.model.measured.speedups import load_name
from vrm.results.job_columns import JobFileError
from vrm.results.placement_text import unfold_nodes

ALONE = ""
"""The neighbour on a node without one."""

SHORT = 1.0
"""Shorter jobs, in seconds, are ignored: start-up is a large part of them."""


@dataclass(frozen=True)
class CoRun:
    """A job that completed. `load` names its program, class and ranks (`bt.D.256`); `work` is equal for jobs of
    the same work (program, input, ranks, cores, and number of nodes). `parts` are the seconds in each company:
    the loads on its nodes, with ALONE if a node had none."""

    load: str
    work: Hashable
    parts: tuple[tuple[float, frozenset[str]], ...]

    @property
    def seconds(self) -> float:
        """The run time in seconds."""
        return sum(seconds for seconds, _ in self.parts)


def co_runs(jobs: Iterable[LearnedJob]) -> list[CoRun]:
    """Return the completed jobs as measurements, in the order of their ends. `jobs` are all that ran, of any
    runs."""
    runs: dict[str, list[LearnedJob]] = {}
    for job in jobs:
        runs.setdefault(job.run, []).append(job)
    found = [(job.end, run) for of in runs.values() for job, run in _of_run(of)]
    return [run for _, run in sorted(found, key=lambda each: each[0])]


def _of_run(jobs: Sequence[LearnedJob]) -> Iterable[tuple[LearnedJob, CoRun]]:
    places: dict[int, frozenset[str]] = {}
    by_node: dict[str, list[LearnedJob]] = {}
    for job in jobs:
        try:
            places[job.job] = frozenset(unfold_nodes(job.nodes))
        except JobFileError:
            continue
        for node in places[job.job]:
            by_node.setdefault(node, []).append(job)
    for of in by_node.values():
        of.sort(key=lambda job: job.start)
    for job in jobs:
        nodes = places.get(job.job)
        if nodes and job.status == "completed" and job.steady and job.seconds >= SHORT:
            parts = _parts(job, [by_node[node] for node in nodes])
            work = job.app, job.input, job.ranks, job.cores, len(nodes)
            yield job, CoRun(load_name(job.app, job.ranks), work, parts)


def _parts(job: LearnedJob, on_nodes: Sequence[Sequence[LearnedJob]]) -> tuple[tuple[float, frozenset[str]], ...]:
    """Return the seconds in each company."""
    neighbours = [[other for other in here if other.job != job.job and other.start < job.end and other.end > job.start]
                  for here in on_nodes]
    moments = sorted({job.start, job.end, *(moment for here in neighbours for other in here
                                            for moment in (other.start, other.end) if job.start < moment < job.end)})
    found: dict[frozenset[str], float] = {}
    for begin, end in zip(moments, moments[1:]):
        company = set[str]()
        for here in neighbours:
            loads = {load_name(other.app, other.ranks) for other in here if other.start < end and other.end > begin}
            company |= loads or {ALONE}
        found[frozenset(company)] = found.get(frozenset(company), 0.0) + end - begin
    return tuple((seconds, company) for company, seconds in found.items())
