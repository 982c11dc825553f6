"""One call that runs a workload under a policy: what the command, the matrix of runs and users'
own programs stand on."""

from __future__ import annotations

import inspect
import json
import math
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from vrm.model import bits
from vrm.model.amounts import MEMORY
from vrm.model.cluster import Cluster, Watcher
from vrm.model.energy import NO_PROGRAMS, Programs
from vrm.model.heatmap import Heatmap
from vrm.model.machine import Machine
from vrm.model.node import Node
from vrm.model.queues import NO_QUEUES, Queues
from vrm.model.reservation import Wanted
from vrm.model.rules import DEFAULTS, KEYS, Rules
from vrm.model.speedups import Speedups
from vrm.results.history import lessons
from vrm.results.efficiency import Efficiency
from vrm.results.metrics import THRESHOLD
from vrm.results.sharing import Sharing
from vrm.run.expectations import make_expectations
from vrm.scheduling.backfilling import make_backfilling
from vrm.scheduling.custom import dispatcher_of, placement_of
from vrm.scheduling.estimators import Estimator, Own as OwnEstimator
from vrm.scheduling.node_orders import AUTO
from vrm.scheduling.of_rules import maker
from vrm.scheduling.ordering import ADVISED, Ordering, Utility, make_ordering
from vrm.scheduling.placement import make_policy
from vrm.scheduling.power_cap import check_energy, under_cap
from vrm.scheduling.registry import PolicyError
from vrm.scheduling.scheduler import Scheduler
from vrm.simulation.corun import CoRunning
from vrm.simulation.recorded_lends import AskedLend, WithLends
from vrm.simulation.counting import CountingSimulator, Uncountable, possible
from vrm.simulation.engine import Outage, Simulator
from vrm.simulation.inputs import WorkloadError, open_workload, read_heatmap
from vrm.simulation.outcome import Bookings, Outcome
from vrm.simulation.results import Results
from vrm.system.memory import rare_collections
from vrm.workload.malleable import Hybrid
from vrm.workload.estimates import seconds_of_runs
from vrm.workload.submission import Submission
from vrm.workload.swf import LARGEST_ID, LONGEST
from vrm.workload.swf import Rules as Selection

Progress = Callable[[float, int, int], None]

MOST_SOCKETS = 1_000_000
"""Of a machine; each costs memory, and a wrong number would take all of it."""


def simulate(workload: Union[str, Path, Iterable[Submission]], *,
             nodes: Union[int, Iterable[Node], None] = None, sockets: int = 1, cores: int = 1,
             machine: Union[str, Path, Machine, None] = None,
             licences: Optional[Mapping[str, float]] = None,
             heatmap: Union[str, Path, Heatmap, None] = None,
             speedups: Optional[Speedups] = None, rows_are: str = "own",
             rules: Selection = Selection(), keep_estimates: bool = False,
             threshold: float = THRESHOLD, warm_up: float = 0.0, cool_down: float = 0.0,
             out: Union[str, Path, None] = None, places: Optional[str] = None,
             evalys: bool = False, progress: Optional[Progress] = None,
             watchers: Iterable[Watcher] = (), outages: Iterable[Outage] = (),
             end: float = math.inf, efficiency: bool = False,
             calibrated: Union[str, Path, None] = None,
             history: Iterable[Union[str, Path]] = (),
             reservations: Iterable[Wanted] = (), changes: Iterable[Tuple[float, Rules]] = (),
             lends: Iterable[AskedLend] = (), energy: Union[str, Path, Programs, None] = None,
             **how: Any) -> Outcome:
    """Run a workload in virtual time and return its outcome.

    `workload`: a trace (SWF, also .gz), a queue file, the jobs.csv of a run, or submissions in
    order of time. `nodes`: how many, each of `sockets` with `cores`, or the nodes themselves; None
    takes the processors of the trace's header as one-core nodes. `machine`: in their place a machine
    file, for nodes that differ (see `vrm.config.machine`), or a `vrm.model.machine.Machine`.
    `licences` of the whole machine, where a machine file does not say them.

    How it schedules is said by the fields of `vrm.model.rules.Rules`. `algorithm`: a name, an
    expression, or a function `utility(job, now, nodes)`, highest first. `backfill`: a name, a
    number of reservations, or a dispatcher (see `vrm.scheduling.backfilling`). `policy`: a name,
    or a function `policy(cluster, heatmap)`. `node_order`: a name, for a policy given by name, or a
    function `mine(job, view, node)`, lowest first. `kill` ends jobs at their estimate. `interval`:
    seconds between decisions (0: at every event), with at most `starts_per_interval` heads started
    each time (0: all that fit); see `vrm.scheduling.scheduler`. `queues`: keys by the names of queues,
    such as `{"debug": {"max_running": 2, "expected_wait": 600}}` (see `vrm.model.queues.Queue`).

    `heatmap`: orders nodes under strip; a file with measured speed-ups (or `speedups`) also
    makes jobs faster or slower there, and pairs below `min_throughput` (1: as much as one after
    the other) share no node. `rules` select jobs of the workload; `keep_estimates` leaves
    estimates of a trace below the run time as they are, and so does `kill`: else no job would
    outrun its estimate.

    `outages`: nodes that are lost for a while; their jobs wait again, as live. `end`: seconds at
    which the allocation ends; jobs that would not have ended by then do not start, and
    `summary["held"]` counts what is left for the next one. `reservations`: advance reservations of
    nodes (`vrm.model.reservation.Wanted`), in seconds of the workload; all are known from the start.
    `lends`: running jobs lend cores to waiting ones at these seconds, as `vrm lend` asks for.
    `changes`: other rules from these seconds on, in order; what of them can be changed in a live run
    counts (`vrm.model.rules.CHANGEABLE`).

    `estimates` says how long jobs are expected to take, a name or an object with `expected(job)` and
    `learn(job, run)`; see `vrm.scheduling.estimators`. `calibrated`: the table of the estimator of
    that name. `history`: earlier runs, from which it learns before the first job: directories with
    a jobs.csv, or such files.

    `energy`: what was measured of programs on classes of nodes, a file (`vrm.config.energy`) or a
    `vrm.model.energy.Programs`.

    `out`: a directory for jobs.csv (and evalys.csv with `evalys`); `places`: full, nodes or none,
    how much of a job's place is written (default: full up to 1024 nodes, else nodes).
    `efficiency`: also how well nodes that differ are used (see `vrm.results.efficiency`): in the
    summary, and moment by moment as `outcome.efficiency`.
    `watchers` are told of every start and end (see `Watcher`): with them an ordering of your own
    can know what each user has had. `progress(now, ended, waiting)` is called now and then; its
    `watch(workload)`, if it has one, at the beginning. KeyboardInterrupt ends the run early: the
    outcome has `interrupted` and what has ended so far.

    Raises WorkloadError, PolicyError, SpeedError and others of `vrm.simulation.inputs.ERRORS`, and
    `vrm.config.problems.ConfigError` for a machine file.
    """
    for name in how:
        if name not in KEYS:
            raise TypeError(f"simulate() has no argument `{name}`")
    try:
        chosen = Rules(**{**how, "queues": Queues.of(how.get("queues", NO_QUEUES))})
    except (TypeError, ValueError) as error:
        raise PolicyError(f"queues: {error}; give keys such as {{'debug': {{'max_running': 2}}}}"
                          ) from None
    measured = speedups
    if isinstance(heatmap, (str, Path)):
        heatmap, found = read_heatmap(heatmap, rows_are, chosen.min_throughput)
        measured = speedups or found
    elif heatmap is None and measured is not None:
        heatmap = measured.heatmap(chosen.min_throughput)
    source: Any = workload
    if isinstance(workload, (str, Path)):
        source = open_workload(workload, rules, keep_estimates or chosen.kill, measured)
    watch = getattr(progress, "watch", None)
    if watch is not None:
        watch(source)
    cluster = machine_of(source, nodes, sockets, cores, machine, chosen.queues, licences)
    cluster.programs = programs_of(energy)
    cluster.watchers += watchers
    bookings = Bookings()
    if efficiency:
        cluster.watchers.append(bookings)
    algorithm, backfill, policy = chosen.algorithm, chosen.backfill, chosen.policy
    ordering = _ordering(algorithm)
    if ordering.name == ADVISED:
        raise PolicyError("the algorithm advised chooses in a live run, from what waits and what has ended "
                          "there; `vrm advise WORKLOAD` says what it would choose, to be simulated")
    dispatcher = (make_backfilling(backfill, chosen.backfill_order, chosen.starvation)
                  if isinstance(backfill, (str, int)) else
                  dispatcher_of(_own_name(backfill), backfill, f"backfill={backfill!r}: give a "
                                "name, a number of reservations, or an object with `fill` or "
                                "`plan`"))
    if not isinstance(policy, str) and chosen.node_order != AUTO:
        raise PolicyError(f"node_order={chosen.node_order!r}: a policy of your own says itself which "
                          "nodes come first")
    placement = (make_policy(policy, cluster, heatmap, chosen.node_order)
                 if isinstance(policy, str) else
                 placement_of(_own_name(policy), policy(cluster, heatmap), cluster,
                              f"policy={policy!r}: "
                              "give a name, or a function that gives an object with `nodes` and "
                              "`place`"))
    placement = under_cap(placement, chosen.power_cap, cluster)
    check_energy(dispatcher, cluster)
    expectations = make_expectations(
        chosen.estimates if isinstance(chosen.estimates, (str, Estimator))
        else OwnEstimator(_own_name(chosen.estimates), chosen.estimates), chosen.correction,
        None if calibrated is None else seconds_of_runs(calibrated), lessons(history))
    if not 0 <= chosen.interval < math.inf:
        raise PolicyError(f"interval={chosen.interval!r}: give seconds from 0 on")
    fit_to(source, cluster)
    sharing = Sharing() if dispatcher.lends else None
    if sharing is not None:
        cluster.watchers.append(sharing)
    if chosen.malleable:
        try:
            source = Hybrid(_checked(workload) if source is workload else source, cluster, chosen.malleable,
                            chosen.malleable_seed, getattr(source, "processors", None))
        except ValueError as error:
            raise PolicyError(f"malleable={chosen.malleable:g}: {error}") from None
    if places is None:
        places = "full" if len(cluster.nodes) <= 1024 else "nodes"
    with ExitStack() as stack:
        files: List[Any] = [None, None]
        if out is not None:
            directory = Path(out)
            directory.mkdir(parents=True, exist_ok=True)
            _keep_apart(directory, workload)
            for index, name in enumerate(["jobs.csv"] + ["evalys.csv"] * evalys):
                files[index] = stack.enter_context(
                    open(directory / name, "w", 1 << 18, encoding="utf-8",
                         errors="backslashreplace", newline="\n"))
        asked = getattr(getattr(source, "rules", None), "memory", False)
        more = getattr(source, "says_more", asked or (
            source is workload and bool(cluster.left or cluster.licences)))
        powered = bool(cluster.programs) or cluster.budget is not None or any(
            one.node.power is not None for one in cluster.classes)
        more = more or expectations is not None or powered or sharing is not None

        def recorder() -> Results:
            results = Results(cluster.nodes, files[0], places, files[1],
                              Path(workload).name if isinstance(workload, (str, Path)) else
                              "workload", more=more, programs=cluster.programs if more else None)
            stack.callback(results.close)
            return results

        results = recorder()
        lends = tuple(lends)
        if lends:
            dispatcher = WithLends(dispatcher, lends)
        speeds = (CoRunning(cluster, measured, chosen.shared_speed == "ideal")
                  if measured is not None or dispatcher.lends else None)
        scheduler = Scheduler(ordering, dispatcher, placement, chosen.interval,
                              chosen.starts_per_interval, chosen.queues)
        simulator: Union[Simulator, CountingSimulator]
        outages, reservations = tuple(outages), tuple(reservations)
        changed = [(at, maker(rules, heatmap)) for at, rules in changes]
        countable = not (results.needs_bookings or cluster.watchers or speeds or outages
                         or end < math.inf or expectations or reservations or changed or powered
                         ) and possible(source, scheduler)
        begun = time.perf_counter()
        interrupted = False
        try:
            with rare_collections():
                if countable:
                    try:
                        simulator = CountingSimulator(scheduler, cluster, results, progress)
                        simulator.run(source)
                    except Uncountable:
                        countable, results = False, recorder()
                if not countable:
                    simulator = Simulator(scheduler, cluster, results, chosen.kill, speeds, progress,
                                          outages, end, expectations, changed)
                    for wanted in reservations:
                        simulator.state.reserve(wanted, 0.0, foreseen=True)
                    checked = _checked(workload) if source is workload else source
                    simulator.run(results.noting(checked if sharing is None
                                                 else sharing.noting(checked)))
        except KeyboardInterrupt:
            interrupted = True
        results.flush()
        seconds = time.perf_counter() - begun
    used = Efficiency(cluster.nodes, bookings.held(results.rows())) if efficiency else None
    summary = {
        **replace(chosen, algorithm=ordering.name, backfill=dispatcher.name, policy=placement.name,
                  estimates=expectations.estimator.name if expectations else chosen.estimates
                  ).record(),
        **results.summary(warm_up, cool_down, threshold),
        **({} if used is None else used.summary()),
        **results.energy(),
        "backfilled": results.backfilled,
        **({} if sharing is None else sharing.summary(results.rows(), threshold)),
        "held": simulator.left,
        **({"unmatched_speeds": speeds.unmatched()} if measured is not None and speeds else {}),
        **_recorded(getattr(source, "waited", {})),
        "start_hash": results.start_hash(),
        "refusals": dict(results.refusals),
        "events": simulator.events,
        "simulated_seconds": seconds,
        "jobs_per_second": results.ran / seconds if seconds > 0 else 0.0,
    }
    return Outcome(summary, results, cluster, dict(getattr(source, "dirt", {})), interrupted, used)


def programs_of(energy: Union[str, Path, Programs, None]) -> Programs:
    """What was measured of programs, of a file where it is none already. Raises ConfigError."""
    if isinstance(energy, Programs) or energy is None:
        return energy or NO_PROGRAMS
    from vrm.config.energy import read_programs  # its libraries take a quarter of a second
    return read_programs(energy)


def _recorded(waited: Dict[int, float]) -> Dict[str, Any]:
    """How long the jobs of a log really waited (s), on the machine that it is of."""
    if not waited:
        return {}
    return {"recorded": {"jobs": len(waited), "average_wait": math.fsum(waited.values()) / len(waited)}}


def _signature() -> inspect.Signature:
    """That of `simulate` with the fields of Rules by their names, for `help()`."""
    found = inspect.signature(simulate)
    *own, _ = found.parameters.values()
    return found.replace(parameters=[*own, *(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in DEFAULTS.items())])


vars(simulate)["__signature__"] = _signature()


def choices_of(settings: Any) -> Dict[str, Any]:
    """What a configuration (`vrm.config.schema.Settings`) says for a simulation, as keyword arguments of
    `simulate`; a geometry of `auto` is left to the workload."""
    chosen = vars(settings.rules).copy()
    if settings.applications.heatmap is not None:
        chosen["heatmap"] = settings.applications.heatmap
    if settings.scheduling.calibrated is not None:
        chosen["calibrated"] = settings.scheduling.calibrated
    if settings.scheduling.history:
        chosen["history"] = settings.scheduling.history
    if settings.licences:
        chosen["licences"] = settings.licences
    if settings.energy.database is not None:
        chosen["energy"] = settings.energy.database
    for name in ("nodes", "sockets", "cores"):
        if isinstance(getattr(settings, name), int):
            chosen[name] = getattr(settings, name)
    return chosen


def described(workload: Union[str, Path], outcome: Outcome) -> Dict[str, Any]:
    """An outcome as data for JSON: the workload, the machine, the summary and what went wrong."""
    nodes = outcome.cluster.nodes
    machine: Dict[str, Any] = {"nodes": len(nodes), "sockets": len(nodes[0].sockets),
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


def write_summary(directory: Path, workload: Union[str, Path], outcome: Outcome) -> None:
    """Write summary.json beside the jobs.csv of an outcome; equal runs write equal files."""
    kept = {key: value for key, value in described(workload, outcome).items()
            if key not in ("simulated_seconds", "jobs_per_second")}
    (directory / "summary.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def machine_of(source: Any, nodes: Union[int, Iterable[Node], None], sockets: int = 1, cores: int = 1,
               machine: Union[str, Path, Machine, None] = None, queues: Queues = NO_QUEUES,
               licences: Optional[Mapping[str, float]] = None) -> Cluster:
    """The machine on which a workload runs, from the arguments of `simulate`, which raises the same."""
    cluster = (_cluster(source, nodes, sockets, cores, queues, licences) if machine is None else
               _described(machine, nodes, queues, licences))
    for queue, names in queues.strangers(cluster.nodes).items():
        raise PolicyError(f"queue {queue}: no node is called {names[0]}; the nodes are "
                          f"{cluster.nodes[0].name} to {cluster.nodes[-1].name}")
    return cluster


def _cluster(source: Any, nodes: Union[int, Iterable[Node], None], sockets: int,
             cores: int, queues: Queues, licences: Optional[Mapping[str, float]]) -> Cluster:
    if nodes is None:
        processors = getattr(source, "processors", None)
        if processors is None:
            name = getattr(source, "name", "")
            raise WorkloadError(f"{f'{name}: ' if name else ''}the workload does not say how large "
                                "the machine is (a trace does in its header, `; MaxProcs: N`); give "
                                "nodes, sockets and cores (--nodes N --sockets S --cores C), or a "
                                "machine file (--machine FILE)")
        nodes, sockets, cores = processors, 1, 1
    if not isinstance(nodes, int):
        return Cluster(queues.marked(nodes), licences)
    if min(nodes, sockets, cores) < 1:
        raise WorkloadError("a machine has at least 1 node, 1 socket and 1 core")
    if nodes * sockets > MOST_SOCKETS:
        raise WorkloadError(f"{nodes} nodes of {sockets} socket(s) are too many; a machine has at "
                            f"most {MOST_SOCKETS} sockets")
    regular = Cluster.regular(nodes, sockets, cores)
    return Cluster(queues.marked(regular.nodes), licences) if queues.placed or licences else regular


def _described(machine: Union[str, Path, Machine], nodes: Any, queues: Queues,
               licences: Optional[Mapping[str, float]]) -> Cluster:
    """The cluster of a machine, or of the file of one. Raises ConfigError, or WorkloadError where
    `nodes` say another thing."""
    if nodes is not None:
        raise WorkloadError("a machine file says which nodes there are; give either that or nodes")
    if not isinstance(machine, Machine):
        from vrm.config.machine import read_machine  # its libraries take a quarter of a second
        machine = read_machine(machine)
    return Cluster(queues.marked(machine.nodes), machine.licences or licences)


def _ordering(algorithm: Union[str, Ordering, Utility]) -> Ordering:
    """An ordering by its name or expression; a function is one of its own."""
    if isinstance(algorithm, str):
        return make_ordering(algorithm)
    if isinstance(algorithm, Ordering):
        return algorithm
    return Ordering(getattr(algorithm, "__name__", type(algorithm).__name__), algorithm,
                    static=False)


def _own_name(own: Any) -> str:
    """What a user's own object or function is called."""
    return str(getattr(own, "name", getattr(own, "__name__", type(own).__name__)))


def _keep_apart(directory: Path, workload: Any) -> None:
    """Raise WorkloadError where jobs.csv would take the place of the workload's own jobs, or of
    those of a live run."""
    own = isinstance(workload, (str, Path)) and (directory / "jobs.csv").resolve() == Path(
        workload).resolve()
    if own or (directory / "journal").exists():
        raise WorkloadError(f"{directory / 'jobs.csv'} is "
                            f"{'the workload' if own else 'that of a live run'} and would be "
                            "overwritten; write to another directory")


def _checked(submissions: Iterable[Submission]) -> Iterator[Submission]:
    """A user's own submissions; WorkloadError where time would go backwards or stand still."""
    before = 0.0
    for one in submissions:
        if not 0 <= one.job.id <= LARGEST_ID:
            raise WorkloadError(f"job {str(one.job.id)[:30]}: ids go from 0 to 2^63 - 1")
        if not (0 <= one.run < LONGEST and before <= one.job.submit < LONGEST):
            raise WorkloadError(f"job {one.job.id} comes at {one.job.submit} s and runs for "
                                f"{one.run} s; give submissions in order of time, from 0 s "
                                "on, and run times from 0 s on")
        before = one.job.submit
        yield one


def fit_to(source: Any, cluster: Cluster) -> None:
    """Let a workload that is read from a file give what is of use on this machine."""
    if hasattr(source, "rules"):
        source.rules = _fitted(source.rules, cluster, source.processors is not None)


def _fitted(rules: Selection, cluster: Cluster, limited: bool) -> Selection:
    """The rules for this machine: memory counts where it has some, and if `limited`, jobs are dropped
    that are larger than it (traces have such dirt)."""
    names = frozenset(name for one in cluster.classes for name in one.node.resources)
    largest = cluster.cores if limited and rules.largest is None else rules.largest
    features = frozenset[str]().union(*(one.node.features for one in cluster.classes))
    return replace(rules, largest=largest, memory=MEMORY in names, resources=names, features=features)
