"""Fills the database of programs from jobs that have run: ordinary jobs whose energy was measured on a node of
their own, and calibration runs, one on a node of each class.

A job counts if it completed alone on one node, at the node's own frequency, with energy measured by counters
(column `metered` of `jobs.csv`). Of the jobs of a program on a class, only those with the most cores count: an
entry is about a fully used node. A program that ran with several arguments is left out, because these may behave
like different programs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from collections.abc import Callable, Iterable, Sequence

from vrm.ext.measure.bench import MeasureError
from vrm.model.cluster import Cluster
from vrm.model.measured.energy import MeasuredProgram, Programs
from vrm.results.jobs import JobRow
from vrm.ext.generate.npb import rank_counts

ClassOf = Callable[[str], str | None]
"""A function that returns the class of a node, given its name."""


@dataclass
class LearnedTimes:
    """`found`: by program and class, the measurement, the number of jobs, and their cores. `left_out`: the number
    of jobs that do not count, by reason."""

    found: dict[tuple[str, str], tuple[MeasuredProgram, int, int]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


def learn(rows: Iterable[JobRow], class_of: ClassOf, watts: float = 0.0) -> LearnedTimes:
    """Compute the entries from these jobs. `watts` is the power of a node with any of them, if it was not measured."""
    learnt = LearnedTimes()
    jobs: dict[tuple[str, str], list[JobRow]] = {}
    arguments: dict[str, set[str]] = {}
    for row in rows:
        name = class_of(row.nodes) if row.nodes else None
        why = ("did not complete" if row.status != "completed" else
               "ran where no energy was measured, or with others"
               if not watts and not (row.metered and row.power) else
               "ran on several nodes" if "[" in row.nodes or "," in row.nodes else
               "had a frequency set" if row.frequency else
               "ran on nodes without a class" if name is None else "")
        if why or name is None:
            learnt.left_out[why] += 1
            continue
        jobs.setdefault((row.app, name), []).append(row)
        arguments.setdefault(row.app, set()).add(row.args)
    for (app, name), there in jobs.items():
        if len(arguments[app]) > 1:
            learnt.left_out[f"are of {app}, which ran with several arguments"] += len(there)
            continue
        cores = max(row.processors for row in there)
        widest = [row for row in there if row.processors == cores]
        learnt.left_out["had fewer cores than others of their program"] += len(there) - len(widest)
        seconds = [(row.end or 0.0) - (row.start or 0.0) for row in widest]
        learnt.found[app, name] = MeasuredProgram(
            fmean(seconds), watts or sum(row.power * time for row, time in zip(widest, seconds)) / sum(seconds)
        ), len(widest), cores
    learnt.left_out = +learnt.left_out
    return learnt


def feature(name: str) -> str:
    """Return the node feature that represents a class in a calibration: its name in letters that features may have."""
    return "class-" + name.encode().hex()


def calibration(apps: Sequence[str], cluster: Cluster, programs: Programs, seconds: float, only: str = ""
                ) -> list[str]:
    """Return the queue lines of the runs that the database lacks: each program once on one node of each class, with
    as many ranks as the node has cores, or as the program's rule allows. `only` restricts the runs to one class;
    all nodes belong to it if no node has a class. Raises MeasureError if no node has a class, or the class `only`."""
    classes = {node.power.name: node for node in reversed(cluster.nodes) if node.power is not None}
    marked = bool(classes)
    if only:
        classes = {only: cluster.nodes[0]} if not marked else {
            name: node for name, node in classes.items() if name == only}
    if not classes:
        raise MeasureError(f"no node has {f'the class {only}' if only else 'a class'}: write NodeClasses: [{{Hosts: "
                           "..., Energy: {Name: ...}}] into the configuration (docs/how-to/energy.md)")
    return [f"{app} {rank_counts(app, node.cores)[-1]} {seconds:g} 0 nodes=1"
            + f" features={feature(name)}" * marked for app in apps for name, node in sorted(classes.items())
            if name not in programs.of(app) and rank_counts(app, node.cores)]
