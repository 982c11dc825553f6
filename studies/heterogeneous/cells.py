"""The runs of the study: which there are, how one is carried out, and what it leaves.

A run leaves one file, `NAME.npz`: arrays of its jobs (ordered by id) and of its moments, and its figures
as JSON. It appears when it is whole, so a study that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from vrm.config.machine import read_machine
from vrm.model.amounts import unit
from vrm.model.bits import members
from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Request
from vrm.model.machine import Machine
from vrm.scheduling import make_policy
from vrm.api import Recording, Rules, Watcher, simulate
from vrm.simulation.inputs import open_workload
from vrm.ext.generate.eurora_year import model
from vrm.ext.generate.campaign_model import draw, kind_of
from vrm.workload.submission import Submission
from vrm.workload.swf import Selection

HERE = Path(__file__).parent
REAL = "real"
SEED = 1
MODELLED, BUDGET = 20, 0.005
"""Jobs that CP plans, and the seconds of a decision (of the solver's deterministic clock)."""

QUEUES = {"debug": 3600.0, "parallel": 21600.0, "np_longpar": 86400.0, "longpar": 86400.0, "R": 1800.0}
"""Expected waits (s), which PRB and CP go by."""

SCHEDULERS: Mapping[str, Mapping[str, Any]] = {
    "LJF": {"algorithm": "LJF", "backfill": "none"},
    "SJF": {"algorithm": "SJF", "backfill": "none"},
    "EASY": {"algorithm": "FCFS", "backfill": "easy"},
    "PRB": {"algorithm": "PRB", "backfill": "list"},
    "CP": {"algorithm": "PRB", "backfill": f"cp jobs={MODELLED} budget={BUDGET}"}}

ORDERS = ("first-fit", "best-fit", "balanced", "weighted", "hybrid", "priority-weighted")
"""Simple, Consolidate, Balanced, Weighted, Hybrid, Priority-Weighted."""

ESTIMATES = ("requested", "predicted", "actual")

MONTHLY = {"2014-05": ("CP", "requested"), "2014-06": ("SJF", "predicted"), "2014-08": ("EASY", "predicted"),
           "2014-09": ("PRB", "requested"), "2015-01": ("PRB", "predicted")}
"""The cases of months: scheduler and estimates, each under every node order."""


@dataclass(frozen=True)
class Cell:
    """A run: a workload (`real`, or a month `2014-09` of the year) under a scheduler."""

    workload: str
    scheduler: str
    order: str
    estimates: str

    @property
    def name(self) -> str:
        """That of its file."""
        return f"{self.workload}.{self.scheduler}.{self.order}.{self.estimates}"


def cells(workloads: Sequence[str], schedulers: Sequence[str]) -> List[Cell]:
    """All runs: the whole grid on the five days and on `grid` months, its cases on other months."""
    found: List[Cell] = []
    for workload in workloads:
        whole = workload.endswith("+")
        name = workload.rstrip("+")
        for scheduler in schedulers:
            for estimates in ESTIMATES:
                if name == REAL or whole or MONTHLY.get(name) == (scheduler, estimates):
                    found += [Cell(name, scheduler, order, estimates) for order in ORDERS]
    return found


# -------------------------------------------------------------------------------------- workloads


@lru_cache(maxsize=1)
def year(seed: int) -> Tuple[Submission, ...]:
    """The generated year."""
    return tuple(draw(model(), seed))


@lru_cache(maxsize=2)
def workload_of(name: str, real: Optional[str]) -> Tuple[Machine, Tuple[Submission, ...]]:
    """The machine and the jobs of a workload. In the five days users and programs are hidden: a program is
    called by queue and request, so that estimators tell jobs apart by these."""
    if name == REAL:
        machine = read_machine(HERE / "real.yaml")
        names = frozenset(name for node in machine.nodes for name in node.resources)
        assert real is not None
        rows = open_workload(real, Selection(memory=True, units=True, resources=names, keep_estimates=True))
        kinds: Dict[Tuple[str, Request], str] = {}
        jobs = tuple(one._replace(job=one.job.but(app=kinds.setdefault(
            (one.job.queue, one.job.request), f"{one.job.queue}{len(kinds)}"))) for one in rows)
        return machine, jobs
    begin, end = month_of(name)
    found = [one for one in year(SEED) if begin <= one.job.submit < end]
    return read_machine(HERE / "year.yaml"), tuple(
        one._replace(job=one.job.but(submit=one.job.submit - begin)) for one in found)


def month_of(name: str) -> Tuple[float, float]:
    """Where a month begins and ends, in seconds of the year."""
    periods = model().periods
    first = 12 * 2014 + 3
    year_text, month_text = name.split("-")
    period = periods[12 * int(year_text) + int(month_text) - 1 - first]
    return period.begin, period.end


def waited(real: str) -> Dict[int, float]:
    """How long the jobs of the five days really waited, by id."""
    rows: Any = open_workload(real, Selection(keep_estimates=True))
    list(rows)
    return dict(rows.waited)


# ------------------------------------------------------------------------------------ measuring


TYPES = ("core", "memory", "gpu", "mic")
"""What is counted, in cores, GiB and pieces, as AccaSim adds them up."""


def asked(request: Request) -> Tuple[float, ...]:
    """What a job asks of each type, all its units together."""
    per_task = dict(request.per_task)
    return (request.cores, *(request.tasks * per_task.get(name, 0) / unit(name) for name in TYPES[1:]))


class Meter(Watcher):
    """Notes at each start what its nodes had left before; RAE is what the job takes of that."""

    def __init__(self) -> None:
        self.cluster: Optional[Cluster] = None
        self.jobs: Dict[int, Tuple[float, int]] = {}  # RAE, and the set of nodes

    def booked(self, booking: Booking) -> None:
        """A job starts."""
        view = self.cluster
        assert view is not None
        placement, request = booking.placement, booking.job.request
        free, total = view.free_cores, 0.0
        for node, tasks in placement.ranks_by_node(view.nodes):
            total += (free & view.layout.node_cores(node)).bit_count() + tasks * request.cores_per_task
            here = dict(request.on_node(tasks))
            for name, left in view.left.items():
                total += (left[node] + here.get(name, 0)) / unit(name)
        wanted = sum(asked(request))
        self.jobs[booking.job.id] = (wanted / total if total else 1.0), placement.node_set


def capacity(machine: Machine) -> Tuple[float, ...]:
    """What the machine has of each type."""
    return (float(sum(node.cores for node in machine.nodes)),
            *(float(sum(node.resources.get(name, 0) for node in machine.nodes)) for name in TYPES[1:]))


def moments(machine: Machine, rows: Sequence[Any], meter: Meter, amounts: Mapping[int, Tuple[float, ...]]
            ) -> Dict[str, Any]:
    """What is in use from each change to the next: seconds, load of each type, nodes with jobs, and RAE of
    the whole machine: what running jobs ask, of what their nodes have. That of one type looks only at jobs
    that ask for it, and their nodes."""
    events = sorted([(row.end, 0, row.id) for row in rows] + [(row.start, 1, row.id) for row in rows])
    has = np.array([[node.cores, *(node.resources.get(name, 0) for name in TYPES[1:])]
                    for node in machine.nodes], float)
    on_node = [[0] * len(machine.nodes) for _ in range(1 + len(TYPES))]  # jobs; jobs that ask for a type
    whole, busy = 0.0, 0
    used, held = np.zeros(len(TYPES)), np.zeros(len(TYPES))
    times, loads, nodes, rae = [], [], [], []
    for index, (at, starts, job) in enumerate(events):
        sign = 1 if starts else -1
        wants = amounts[job]
        used = used + sign * np.array(wants)
        held = held.copy()
        for node in members(meter.jobs[job][1]):
            if _first_or_last(on_node[0], node, sign):
                whole += sign * float(has[node].sum())
                busy += sign
            for kind, amount in enumerate(wants):
                if amount and _first_or_last(on_node[1 + kind], node, sign):
                    held[kind] += sign * has[node][kind]
        after = events[index + 1][0] if index + 1 < len(events) else at
        if after > at:
            times.append(after - at)
            loads.append(used)
            nodes.append(busy)
            rae.append((float(used.sum() / whole) if busy else 0.0,
                        *np.divide(used, held, out=np.zeros(len(TYPES)), where=held > 0)))
    return {"seconds": np.array(times), "used": np.array(loads), "nodes": np.array(nodes),
            "rae": np.array(rae)}


def _first_or_last(on_node: List[int], node: int, sign: int) -> bool:
    """Count a job that comes to a node or leaves it; whether it is the only one there."""
    before = on_node[node]
    on_node[node] += sign
    return not before or not on_node[node]


# -------------------------------------------------------------------------------------- running


def choices(cell: Cell) -> Dict[str, Any]:
    """Fields of the rules of a run."""
    predicted = "history" if cell.workload == REAL else "accasim"
    estimates = predicted if cell.estimates == "predicted" else cell.estimates
    return {**SCHEDULERS[cell.scheduler], "estimates": estimates,
            "queues": {name: {"expected_wait": wait} for name, wait in QUEUES.items()}}


def run(cell: Cell, out: Path, real: Optional[str]) -> Dict[str, Any]:
    """Carry out a run and write its file; gives its figures."""
    machine, jobs = workload_of(cell.workload, real)
    meter = Meter()

    def pack(cluster: Cluster, heatmap: Any) -> Any:
        meter.cluster = cluster
        return make_policy("pack", cluster, heatmap, cell.order)

    begun = time.process_time()
    outcome = simulate(iter(jobs), machine, Rules(policy=pack, **choices(cell)),
                       record=Recording(watchers=[meter], places="none"))
    seconds = time.process_time() - begun
    amounts = {one.job.id: asked(one.job.request) for one in jobs}
    kinds = {one.job.id: kind_of(one.job.request) for one in jobs}
    rows = sorted(outcome.jobs, key=lambda row: row.id)
    found = moments(machine, rows, meter, amounts)
    wait = np.array([row.start - row.submit for row in rows])
    length = np.array([row.end - row.start for row in rows])
    figures = {
        "cell": cell.name, "jobs": len(rows), "refused": outcome.summary["refused"],
        "makespan": outcome.summary["makespan"], "queue": outcome.summary["queue_length"]["mean"],
        "wait": float(wait.mean()), "slowdown": float(((wait + length) / length).mean()),
        "rae": float(np.mean([meter.jobs[row.id][0] for row in rows])),
        "hash": outcome.summary["start_hash"], "cpu": seconds}
    partial = out / f".{cell.name}.{os.getpid()}.npz"
    np.savez_compressed(
        partial, figures=json.dumps(figures), id=np.array([row.id for row in rows]), wait=wait, run=length,
        kind=np.array([kinds[row.id] for row in rows]),
        rae_of_jobs=np.array([meter.jobs[row.id][0] for row in rows]), **found)
    os.replace(partial, out / f"{cell.name}.npz")
    return figures


def read(path: Path) -> Tuple[Dict[str, Any], Any]:
    """The figures of a run, and its arrays."""
    found = np.load(path)
    return json.loads(str(found["figures"])), found


def done(out: Path) -> Iterator[Path]:
    """The files of the runs that are there."""
    return iter(sorted(path for path in out.glob("*.npz") if not path.name.startswith(".")))
