"""A run that has not begun: a workload on a machine, frozen before its first moment."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, Iterable, List, NamedTuple, Optional, Union

from vrm.forecast.alone import works
from vrm.forecast.draws import History
from vrm.forecast.frozen import Frozen
from vrm.model.heatmap import Heatmap
from vrm.model.queues import NO_QUEUES, Queues
from vrm.model.rules import KEYS, Rules
from vrm.results.history import lessons
from vrm.run.expectations import TEACHING, make_expectations
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling.of_rules import scheduler_of
from vrm.simulation.inputs import WorkloadError, open_workload, read_heatmap
from vrm.simulation.library import fit_to, machine_of, programs_of
from vrm.workload.estimates import seconds_of_runs
from vrm.workload.submission import Submission
from vrm.workload.swf import Rules as Selection

MOST_JOBS = 5000
"""Of a workload: more are no queue that anybody waits for, and would take hours."""


class Plan(NamedTuple):
    """A workload that is to run: frozen at its beginning, by which rules, and the heatmap."""

    frozen: Frozen
    rules: Rules
    heatmap: Optional[Heatmap]


def plan(workload: Any, *, nodes: Optional[int] = None, sockets: int = 1, cores: int = 1,
         machine: Any = None, licences: Any = None, heatmap: Union[str, Path, None] = None,
         rows_are: str = "own", calibrated: Union[str, Path, None] = None,
         history: Iterable[Union[str, Path]] = (), end: float = math.inf,
         selection: Selection = Selection(), energy: Any = None, **how: Any) -> Plan:
    """A workload on a machine under rules: the arguments are those of `vrm.simulation.simulate`, and it
    raises the same. The allocation ends at `end` (seconds after its beginning). How long jobs will take
    is drawn from those of the `history`; the run times that the workload knows are not looked at."""
    rules = Rules(**{**{name: how[name] for name in KEYS if name in how},
                     "queues": Queues.of(how.get("queues", NO_QUEUES))})
    chart, speedups = (None, None) if heatmap is None else read_heatmap(heatmap, rows_are,
                                                                        rules.min_throughput)
    source = open_workload(workload, selection, rules.kill, speedups)
    cluster = machine_of(source, nodes, sockets, cores, machine, rules.queues, licences)
    cluster.programs = programs_of(energy)
    fit_to(source, cluster)
    jobs: List[Submission] = []
    for one in source:
        jobs.append(one)
        if len(jobs) > MOST_JOBS:
            raise WorkloadError(f"{workload}: more than {MOST_JOBS} jobs; say which of them are meant "
                                "(--first, --last, --jobs)")
    if not jobs:
        reasons = "".join(f"; {reason}: {number}" for reason, number in source.dirt.items())
        raise WorkloadError(f"{workload}: there is no job in it{reasons}")
    history = tuple(history)
    known = lessons(history)
    expectations = make_expectations(
        rules.estimates, rules.correction,
        None if calibrated is None else seconds_of_runs(calibrated), known)
    past = History()
    if speedups is not None:  # draws are of time alone: replays add what neighbours cost
        known = lessons(history, partial(works, speedups=speedups))
    for job, run, how_ended in known:
        if how_ended in TEACHING:
            past.add(job, run)
    scheduler = scheduler_of(rules, cluster, chart)
    return Plan(Frozen(Run(State(scheduler.new_queue(), cluster), scheduler, expectations), 0.0, end,
                       kill=rules.kill, past=past, speedups=speedups, later=tuple(jobs)),
                rules, chart)
