"""Makes a run that has not begun: a workload on a machine, frozen before its first moment."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

from vrm.ext.advice.times_alone import works
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.frozen import FrozenRun
from vrm.model.measured.heatmap import Heatmap
from vrm.model.machine import Machine
from vrm.model.rules import Rules
from vrm.ext.estimates.history import lessons
from vrm.run.expectations import TEACHING
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling.compose import checked, compose
from vrm.simulation.arguments import File, Measurements
from vrm.simulation.inputs import WorkloadError
from vrm.simulation.library import cluster_of, open_source
from vrm.workload.submission import Submission
from vrm.workload.swf import Selection

MOST_JOBS = 5000
"""Maximum number of jobs of a workload: real queues are not longer, and replays would take hours."""


class PlannedRun(NamedTuple):
    """A planned workload: the run frozen at its beginning, its rules, and the heatmap."""

    frozen: FrozenRun
    rules: Rules
    heatmap: Heatmap | None


def plan(workload: File, machine: File | Machine | None = None, rules: Rules = Rules(), *,
         selection: Selection = Selection(), measured: Measurements = Measurements(), end: float = math.inf
         ) -> PlannedRun:
    """Plan a workload on a machine under rules. The arguments and exceptions are those of `vrm.simulation.simulate`.
    The allocation ends at `end` (seconds after its beginning). Run times are drawn from the jobs of the history; the
    run times in the workload are not used."""
    rules = checked(rules)
    chart, speedups = measured.pairs(rules.min_throughput)
    source = open_source(workload, selection, rules, speedups)
    cluster = cluster_of(source, machine, rules.queues, measured)
    jobs: list[Submission] = []
    for one in source:
        jobs.append(one)
        if len(jobs) > MOST_JOBS:
            raise WorkloadError(f"{workload}: more than {MOST_JOBS} jobs; say which of them are meant "
                                "(--first, --last, --jobs)")
    if not jobs:
        reasons = "".join(f"; {reason}: {number}" for reason, number in source.dirt.items())
        raise WorkloadError(f"{workload}: it has no jobs{reasons}")
    known = lessons(measured.history)
    expectations = measured.expectations(rules, known)
    past = History()
    if speedups is not None:  # draws are times without neighbours: replays add the effect of neighbours
        known = lessons(measured.history, partial(works, speedups=speedups))
    for job, run, how_ended in known:
        if how_ended in TEACHING:
            past.add(job, run)
    scheduler = compose(rules, cluster, chart)
    return PlannedRun(FrozenRun(Run(State(scheduler.new_queue(), cluster), scheduler, expectations), 0.0, end,
                       kill=rules.kill, past=past, speedups=speedups, later=tuple(jobs)),
                rules, chart)
