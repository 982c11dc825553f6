"""Run a workload under a policy with one call. The command `vrm simulate`, experiment matrices and users' own
programs use this module."""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol
from collections.abc import Callable, Iterable, Iterator, Mapping

from vrm.model import bits
from vrm.model.amounts import MEMORY
from vrm.model.cluster import Cluster
from vrm.model.measured.heatmap import Heatmap
from vrm.model.machine import Machine
from vrm.model.queues import NO_QUEUES, Queues
from vrm.model.rules import Rules
from vrm.model.measured.speedups import Speedups
from vrm.results.extension_columns import load_columns
from vrm.results.job_columns import COMPUTED
from vrm.run.expectations import Expectations
from vrm.scheduling.compose import checked, compose
from vrm.scheduling.placement.node_orders import AUTO
from vrm.scheduling.orderings.ordering import ADVISED
from vrm.scheduling.registry import PolicyError, own_name, shortened
from vrm.scheduling.scheduler import Scheduler
from vrm.simulation.arguments import File, Measurements, Recording, Timetable, by_name, read_machine
from vrm.simulation.engine import Simulator
from vrm.simulation.executor import SpeedModel
from vrm.simulation.inputs import PackageWorkload, WorkloadError, open_workload, processors_of
from vrm.simulation.old_keywords import with_old_keywords
from vrm.simulation.outcome import Outcome
from vrm.simulation.results import Results
from vrm.system import plugins
from vrm.system.memory import rare_collections
from vrm.workload.extension_fields import load_all
from vrm.workload.submission import Submission
from vrm.workload.columns import LONGEST
from vrm.workload.swf import LARGEST_ID, Selection

Progress = Callable[[float, int, int], None]


@with_old_keywords
def simulate(workload: File | Iterable[Submission], machine: File | Machine | None = None,
             rules: Rules = Rules(), *, selection: Selection = Selection(), measured: Measurements = Measurements(),
             timetable: Timetable = Timetable(), record: Recording = Recording(),
             progress: Progress | None = None) -> Outcome:
    """Run a workload in virtual time and return its outcome.

    `workload`: a trace (SWF, also .gz), a table or log of a site, a queue file, the jobs.csv of a run, the text
    `lublin:PROCESSORS:JOBS[:SEED]`, or submissions in order of time. Times are seconds of the workload.

    `machine`: `Machine.of(nodes, sockets, cores)` for equal nodes, a `Machine` of different nodes, or a machine file
    (`vrm.config.machine`). None uses the processors of the trace's header as nodes of one core.

    `rules`: how the run schedules, a `Rules`; by default FCFS, EASY and pack. Its policies are names or objects:
    `algorithm` a name, an expression, or a function `utility(job, now, nodes)`, highest first, or a class whose
    objects are called so; `backfill` a name, a number of reservations, or an object with `schedule(step)`; `policy` a
    name, or a function `policy(cluster, heatmap)`; `node_order`, for a policy given by name, a name, or a function
    `mine(job, view, node)`, lowest first; `estimates` a name, or an object with `expected(job)` and `learn(job, run)`.
    `queues` may be keys by the names of queues, `{"debug": {"max_running": 2}}`.

    `selection`: which jobs of a workload file are used, and how they are changed. `measured`: heatmap, speed-ups, run
    times and energy from earlier measurements. `timetable`: lost nodes, reservations, the end of the allocation and
    other events at known times. `record`: which files are written, and which part of the run is in the averages.

    `progress(now, ended, waiting)` is called from time to time; its `watch(workload)`, if it has one, once at the
    start. KeyboardInterrupt ends the run early: the outcome then has `interrupted` set, and contains the jobs that
    had ended.

    Raises WorkloadError and others of `vrm.simulation.inputs.ERRORS` for the workload, PolicyError for the rules,
    ConfigError (`vrm.config.problems`) for a machine file or an energy file, HistoryError for earlier runs, OSError
    for files that cannot be written.
    """
    rules = checked(rules)
    heatmap, speedups = measured.pairs(rules.min_throughput)
    source = open_source(workload, selection, rules, speedups)
    watch = getattr(progress, "watch", None)
    if watch is not None:
        watch(source)
    cluster = cluster_of(source, machine, rules.queues, measured)
    scheduler = compose(_on_whole_nodes(rules), cluster, heatmap)
    if scheduler.ordering.name == ADVISED:
        raise PolicyError("the algorithm advised chooses in a live run, from what waits and what has ended "
                          "there; `vrm advise WORKLOAD` says what it would choose, to be simulated")
    simulation = ComposedSimulation(workload, _malleable(source, workload, rules, cluster), rules, cluster, scheduler,
                             measured.expectations(rules), timetable, record, heatmap, speedups)
    return simulation.run(progress)


def open_source(workload: Any, selection: Selection, rules: Rules, speedups: Speedups | None) -> Any:
    """Open the workload of a file; submissions are returned unchanged. Raises WorkloadError."""
    if not isinstance(workload, (str, Path)):
        if not isinstance(workload, Iterable):
            raise WorkloadError(f"the workload is {shortened(workload)}; give a file, lublin:PROCESSORS:JOBS, or "
                                "submissions (vrm.api.Submission) in order of time")
        return workload
    return open_workload(workload, replace(selection, keep_estimates=selection.keep_estimates or rules.kill), speedups)


def cluster_of(source: Any, machine: File | Machine | None, queues: Queues = NO_QUEUES,
               measured: Measurements = Measurements()) -> Cluster:
    """Return the cluster on which a workload runs, with the power that programs draw there. A workload file is
    adapted to it: it then yields only what this machine can use. Raises ConfigError, and WorkloadError if the number
    of nodes is unknown."""
    described = read_machine(machine)
    nodes = described.nodes or Machine.of(processors_of(
        source, "give nodes, sockets and cores (--nodes N --sockets S --cores C), or a machine file (--machine FILE)"
        if hasattr(source, "name") else "give a machine, as Machine.of(nodes=8)")).nodes
    cluster = Cluster(queues.marked(nodes), described.licences)
    for queue, names in queues.unknown_nodes(cluster.nodes).items():
        raise PolicyError(f"queue {queue}: no node is called {names[0]}; the nodes are "
                          f"{cluster.nodes[0].name} to {cluster.nodes[-1].name}")
    cluster.programs = measured.programs()
    if hasattr(source, "rules"):
        source.rules = _fitted(source.rules, cluster, source.processors is not None)
    return cluster


class Engine(Protocol):
    """An extension's replacement of the event loop: `events` is the number of events, `left` the number of jobs that
    still wait."""

    events: int
    left: int

    def run(self) -> None:
        """Run the simulation."""


@cache
def engines() -> list[Callable[[ComposedSimulation, Progress | None], Engine | None]]:
    """Return the engines of extensions: each is called with a simulation, and returns None if it does not support
    it."""
    found: list[Callable[[ComposedSimulation, Progress | None], Engine | None]] = []
    plugins.use("vrm.engines", (), lambda plugin, make: found.append(make))
    return found


@dataclass
class ComposedSimulation:
    """A simulation with all its parts, and its results."""

    workload: Any  # as the caller gave it
    source: Any
    rules: Rules
    cluster: Cluster
    scheduler: Scheduler
    expectations: Expectations | None
    timetable: Timetable
    record: Recording
    heatmap: Heatmap | None
    speedups: Speedups | None
    speeds: SpeedModel | None = None
    sharing: Any = None
    bookings: Any = None
    more: bool = False  # whether the lines of jobs have columns after `reason`
    interrupted: bool = False

    def __post_init__(self) -> None:
        cluster, record, scheduler = self.cluster, self.record, self.scheduler
        observing = scheduler.ordering.watcher  # it may also be among those of the record
        cluster.watchers += [one for one in record.watchers if observing is None or not observing.is_for(one)]
        if record.efficiency:
            self.bookings = plugins.need("vrm.options", "efficiency")(cluster.nodes)
            cluster.watchers.append(self.bookings)
        if scheduler.dispatcher.lends:
            self.sharing = plugins.need("vrm.options", "sharing")()
            cluster.watchers.append(self.sharing)
        if self.timetable.lends:
            scheduler.dispatcher = plugins.need("vrm.options", "lends")(scheduler.dispatcher, self.timetable.lends)
        if self.speedups is not None or scheduler.dispatcher.lends:
            self.speeds = plugins.need("vrm.speeds", "beside")(
                cluster, self.speedups, self.rules.shared_speed == "ideal")
        self.powered = bool(cluster.programs) or bool(self.rules.power_cap) or any(
            one.node.power is not None for one in cluster.classes)
        asked = getattr(getattr(self.source, "rules", None), "memory", False)
        more = getattr(self.source, "says_more", asked or (
            self.source is self.workload and bool(cluster.left or cluster.licences)))
        if record.out is not None:
            load_all()
            load_columns()
        self.more = more or bool(COMPUTED) or self.expectations is not None or self.powered or self.sharing is not None

    def run(self, progress: Progress | None) -> Outcome:
        """Run the simulation and return its outcome."""
        with ExitStack() as stack:
            self._begin(stack)
            begun = time.perf_counter()
            try:
                with rare_collections():
                    self._carry_out(progress)
            except KeyboardInterrupt:
                self.interrupted = True
            self.results.flush()
            return self._outcome(time.perf_counter() - begun)

    def _begin(self, stack: ExitStack) -> None:
        """Open the files and make the recorder."""
        nodes, (jobs, evalys) = self.cluster.nodes, self.record.files(stack, self.workload)
        places = self.record.places or ("full" if len(nodes) <= 1024 else "nodes")
        name = Path(self.workload).name if isinstance(self.workload, (str, Path)) else "workload"
        self.results = Results(nodes, jobs, places, evalys, name, more=self.more,
                               programs=self.cluster.programs if self.more else None)
        stack.callback(self.results.close)

    def _carry_out(self, progress: Progress | None) -> None:
        """Run with the first engine of an extension that supports this simulation, else with the event loop."""
        for make in engines():
            engine = make(self, progress)
            if engine is not None:
                self.engine: Engine | Simulator = engine
                return engine.run()
        return self._simulate(progress)

    @property
    def besides(self) -> Mapping[str, Any]:
        """Features of this simulation beyond scheduling a workload, by name: an engine that does not know one that is
        in use must not run the simulation."""
        timetable = self.timetable
        return {"what is written of jobs": self.results.needs_bookings, "watchers": self.cluster.watchers,
                "speeds": self.speeds, "lost nodes": timetable.outages, "an end": timetable.end < math.inf,
                "estimates": self.expectations, "reservations": timetable.reservations,
                "changes": timetable.changes, "energy": self.powered,
                "the order of events": self.rules.events == "published"}

    def forget(self) -> None:
        """Restore the initial state after an engine has read the workload without supporting it. The policy is made
        again, too, because it has seen jobs that are not submitted yet."""
        self.results.forget()
        self.scheduler = compose(_on_whole_nodes(self.rules), self.cluster, self.heatmap)

    def _simulate(self, progress: Progress | None) -> None:
        rules, timetable, source = self.rules, self.timetable, self.source
        changes = [(at, partial(compose, other, heatmap=self.heatmap)) for at, other in timetable.changes]
        engine = Simulator(
            self.scheduler, self.cluster, self.results, rules.kill, self.speeds, progress, timetable.outages,
            timetable.end, self.expectations, changes, rules.events == "published")
        for wanted in timetable.reservations:
            engine.state.reservations.reserve(wanted, 0.0, foreseen=True)
        if source is self.workload or isinstance(source, PackageWorkload):
            source = _checked(source)
        self.engine = engine
        engine.run(self.results.noting(source if self.sharing is None else self.sharing.noting(source)))

    def _outcome(self, seconds: float) -> Outcome:
        record, results, waited = self.record, self.results, getattr(self.source, "waited", {})
        used = self.bookings.efficiency(results.rows()) if record.efficiency else None
        summary = {
            **self._ruled(),
            **results.summary(record.warm_up, record.cool_down, record.threshold),
            **({} if used is None else used.summary()),
            **results.energy(),
            "backfilled": results.backfilled(record.warm_up, record.cool_down),
            **({} if self.sharing is None else self.sharing.summary(results.rows(), record.threshold)),
            "held": self.engine.left,
            **({"unmatched_speeds": self.speeds.unmatched()} if self.speedups is not None and self.speeds else {}),
            **({"recorded": {"jobs": len(waited), "average_wait": math.fsum(waited.values()) / len(waited)}}
               if waited else {}),  # real waiting times, if the workload is a log
            "start_hash": results.start_hash(),
            "refusals": dict(results.refusals),
            "events": self.engine.events,
            "simulated_seconds": seconds,
            "jobs_per_second": results.ran / seconds if seconds > 0 else 0.0,
        }
        return Outcome(summary, results, self.cluster, dict(getattr(self.source, "dirt", {})), self.interrupted, used)

    def _ruled(self) -> dict[str, Any]:
        """Return the rules for the summary, with the names of policies."""
        rules, scheduler, order = self.rules, self.scheduler, self.rules.node_order
        return replace(rules, algorithm=scheduler.ordering.name, backfill=scheduler.dispatcher.name,
                       policy=scheduler.policy.name, node_order=order if isinstance(order, str) else own_name(order),
                       estimates=self.expectations.estimator.name if self.expectations else rules.estimates).record()


def choices_of(settings: Any, **options: Any) -> dict[str, Any]:
    """Return arguments of `simulate` from a configuration (`vrm.config.schema.Settings`, or None). A geometry of
    `auto` is left to the workload. `options`, with the field names of `by_name`, override it; a machine option
    replaces its nodes."""
    chosen: dict[str, Any] = {}
    if settings is not None:
        chosen = {**vars(settings.rules), "heatmap": settings.applications.heatmap,
                  "calibrated": settings.scheduling.calibrated, "history": settings.scheduling.history,
                  "licences": settings.licences, "energy": settings.extended("Energy.Database")}
    if "machine" not in options:
        chosen |= {name: getattr(settings, name) for name in ("nodes", "sockets", "cores")
                   if isinstance(getattr(settings, name, None), int)}
    return by_name({**chosen, **options})


def described(workload: str | Path, outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as data for JSON: the workload, the machine, the summary, the counts of dropped and changed
    rows, and whether it was interrupted."""
    nodes = outcome.cluster.nodes
    machine: dict[str, Any] = {"nodes": len(nodes), "sockets": len(nodes[0].sockets),
                               "cores": nodes[0].sockets[0], "all_cores": outcome.cluster.cores}
    classes = outcome.cluster.classes
    if len(classes) > 1 or classes[0].node.resources or classes[0].node.features:
        machine["classes"] = [
            {"first": one.node.name, "nodes": bits.count(one.members), "sockets": one.node.sockets,
             "resources": dict(one.node.resources), "features": sorted(one.node.features)}
            for one in classes]
    return {"workload": str(workload),
            "machine": machine,
            **outcome.summary, "dirt": outcome.dirt, "interrupted": outcome.interrupted}


def write_summary(directory: Path, workload: str | Path, outcome: Outcome) -> None:
    """Write summary.json next to the jobs.csv of an outcome; equal runs write equal files."""
    kept = {key: value for key, value in described(workload, outcome).items()
            if key not in ("simulated_seconds", "jobs_per_second")}
    (directory / "summary.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def _on_whole_nodes(rules: Rules) -> Rules:
    """Return the rules; if all jobs run on whole nodes, with the policy `compact`, which counts nodes and places jobs
    like pack."""
    whole = rules.malleable and str(rules.policy).lower() == "pack" and rules.node_order == AUTO
    return replace(rules, policy="compact") if whole else rules


def _malleable(source: Any, workload: Any, rules: Rules, cluster: Cluster) -> Any:
    """Return the workload with the share of malleable jobs that the rules set. Raises PolicyError."""
    if not rules.malleable:
        return source
    try:
        return plugins.need("vrm.options", "malleable")(
            _checked(source) if source is workload else source, cluster, rules.malleable, rules.malleable_seed,
            getattr(source, "processors", None))
    except ValueError as error:
        raise PolicyError(f"malleable={rules.malleable:g}: {error}") from None


def _checked(submissions: Iterable[Submission]) -> Iterator[Submission]:
    """Yield a user's own submissions. Raises WorkloadError if their times are out of range or not in order."""
    before, seen = 0.0, set[int]()
    for one in submissions:
        if not isinstance(one, Submission):
            raise WorkloadError(f"the workload has {shortened(one)}, expected a vrm.simulation.Submission; of a "
                                "table make one from each row: "
                                "`Submission(Job(id, app, procs, estimate, submit), run)`")
        if not (isinstance(one.job.id, Integral) and isinstance(one.job.procs, Integral)):
            raise WorkloadError(f"job {one.job.id!r} of {one.job.procs!r} ranks: both are whole numbers (int)")
        if not 0 <= one.job.id <= LARGEST_ID:
            raise WorkloadError(f"job {str(one.job.id)[:30]}: ids go from 0 to 2^63 - 1")
        if one.job.id in seen:
            raise WorkloadError(f"job {one.job.id} comes twice; give each job an id of its own")
        if not (0 <= one.run < LONGEST and before <= one.job.submit < LONGEST):
            raise WorkloadError(f"job {one.job.id} comes at {one.job.submit} s and runs for "
                                f"{one.run} s; give submissions in order of time, from 0 s "
                                "on, and run times from 0 s on")
        before = one.job.submit
        seen.add(one.job.id)
        yield one


def _fitted(rules: Selection, cluster: Cluster, limited: bool) -> Selection:
    """Return the selection for this machine: memory is used if the machine has some, and if `limited`, jobs larger
    than the machine are dropped (traces contain such errors)."""
    names = frozenset(name for one in cluster.classes for name in one.node.resources)
    largest = cluster.cores if limited and rules.largest is None else rules.largest
    features = frozenset[str]().union(*(one.node.features for one in cluster.classes))
    return replace(rules, largest=largest, memory=MEMORY in names, resources=names, features=features)
