"""When the jobs of a whole site start: a snapshot of its batch system continues in virtual time.

The jobs are those of a `vrm.ext.forecast.site.snapshot.Snapshot`. vrm's own dispatchers schedule them as the
snapshot says; every job takes as long as its limit allows, which a site's scheduler assumes, too. No jobs are
submitted later, and nothing fails.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple
from collections.abc import Iterator, Sequence

from vrm.ext.forecast.site import amounts
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.parallel import Part, run_in_processes
from vrm.model import Booking, Cluster, Dependency, Infeasible, Job, JobState, Node, Placement, bits
from vrm.model.booking import Watcher
from vrm.model.job import ANY, PLAIN, Details, Request
from vrm.model.queues import Queues
from vrm.model.reservation import Reservation
from vrm.model.rules import Rules
from vrm.run.entry import JobStateError
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Dispatcher, PolicyError
from vrm.scheduling.compose import compose
from vrm.ext.formulas.expression import ExpressionError, compile_expression
from vrm.scheduling.orderings.ordering import Ordering
from vrm.scheduling.backfilling.reservations import Reserving
from vrm.scheduling.scheduler import Start
from vrm.simulation.engine import Recorder, Simulator
from vrm.ext.forecast.site.lml import Lml
from vrm.ext.forecast.site.snapshot import Place, SiteJob, Snapshot, SnapshotError
from vrm.workload.submission import Submission

LATE = 1.0
"""Seconds after which a job is assumed to end that has exceeded its limit."""

class SiteForecast(NamedTuple):
    """The forecast of a waiting job: start and end in seconds from the snapshot's time (infinity: it does not
    start), its places (none if only amounts are counted), or the reason why it does not start."""

    start: float
    end: float
    places: tuple[Place, ...] = ()
    reason: str = ""


def forecast_site(site: Snapshot, most_jobs: float = math.inf, most_seconds: float = math.inf,
                  processes: int = 1) -> dict[str, SiteForecast]:
    """Return the forecasts of the waiting jobs, by key. The forecast ends after `most_jobs` starts, or after
    `most_seconds`. Independent parts of a site are distributed to up to `processes` processes. Raises
    SnapshotError for a snapshot that contradicts itself."""
    site = ranked(site)
    if site.manager == "AttributeState":
        return _limit_starts(site, _counted(site), most_jobs, most_seconds)
    parts = [(SiteByNode(part), numbers) for part, numbers in parts_of(site)]

    def work(share: Part) -> list[dict[str, SiteForecast]]:
        first, step = share
        return [{key: each._replace(places=tuple((numbers[node], cores) for node, cores in each.places))
                 for key, each in part.run(most_jobs, most_seconds).items()}
                for part, numbers in parts[first::step]]

    found: dict[str, SiteForecast] = {}
    try:
        shares = run_in_processes(work, min(processes, len(parts)))
    except RuntimeError:  # raised in another process; repeating it here raises the original error
        shares = work((0, 1))
    for each in shares:
        found.update(each)
    return _limit_starts(site, found, most_jobs, most_seconds)


def ranked(site: Snapshot) -> Snapshot:
    """Return the snapshot with the ranks that its formula gives."""
    if site.formula is None:
        return site
    text, names, where = site.formula
    try:
        formula, _ = compile_expression(text, names)
    except ExpressionError as error:
        raise SnapshotError(f"{where}{error}") from None
    ranks = (formula(job.values) if job.start is None else 0.0 for job in site.jobs)
    return replace(site, jobs=[replace(job, rank=rank if rank == rank else -math.inf)
                               for job, rank in zip(site.jobs, ranks)])


def parts_of(site: Snapshot) -> Iterator[tuple[Snapshot, Sequence[int]]]:
    """Yield the independent machines of a site, each with the numbers of its nodes. They are queues with nodes
    of their own, provided that no order or reservation involves several of them."""
    apart = site.algorithm == "List" or (site.algorithm == "Backfilling" and (
        site.per_queue or site.depth == math.inf))
    every = range(len(site.nodes))
    of_queue: dict[str, int] = {}
    of_node = [-1] * len(site.nodes)
    groups: list[set[str]] = []
    for node in site.nodes if apart else ():
        if node.classes is None:
            apart = False
            break
        together = {of_queue[name] for name in node.classes if name in of_queue}
        first = min(together, default=len(groups))
        if first == len(groups):
            groups.append(set())
        groups[first].update(node.classes, *(groups[each] for each in together))
        for name in groups[first]:
            of_queue[name] = first
    if apart:
        of_node = [min((of_queue[name] for name in node.classes or ()), default=0)
                   for node in site.nodes]
        where = {job.key: of_queue.get(job.queue, 0) for job in site.jobs}
        apart = all(of_node[node] == where[job.key] for job in site.jobs for node, _ in job.places
                    ) and all(where.get(key, where[job.key]) == where[job.key]
                              for job in site.jobs for key in job.after)
    used = sorted(set(of_queue.values()) | {0}) if apart else []
    if len(used) < 2:
        yield site, every
        return
    for group in used:
        numbers = [number for number in every if of_node[number] == group]
        yield with_nodes(replace(site, jobs=[job for job in site.jobs if where[job.key] == group]), numbers), numbers


def with_nodes(site: Snapshot, numbers: Sequence[int]) -> Snapshot:
    """Return the site with these nodes alone, in this order; no job may run on others."""
    place = {number: at for at, number in enumerate(numbers)}
    return replace(
        site, nodes=[site.nodes[number] for number in numbers],
        jobs=[replace(job, places=tuple((place[node], cores) for node, cores in job.places)) for job in site.jobs],
        reservations=[replace(each, nodes=tuple(place[node] for node in each.nodes if node in place))
                      for each in site.reservations])


def _limit_starts(site: Snapshot, found: dict[str, SiteForecast], most_jobs: float, most_seconds: float
                  ) -> dict[str, SiteForecast]:
    """Remove the starts after a limit."""
    jobs = f"not among the first {most_jobs:g} starts, after which the forecast ends"
    time = f"not within {most_seconds:g} s, after which the forecast ends"
    started = sorted((each.start, at, key) for at, (key, each) in enumerate(found.items())
                     if each.start < math.inf)
    for at, (start, _, key) in enumerate(started):
        if at >= most_jobs or start > most_seconds:
            found[key] = SiteForecast(math.inf, math.inf, (), jobs if at >= most_jobs else time)
    for key, each in found.items():
        if each.start == math.inf and not each.reason:
            found[key] = each._replace(reason=jobs if len(started) >= most_jobs else time
                                       if most_seconds < math.inf else "nothing that ends lets it start")
    return {job.key: found[job.key] for job in site.jobs if job.key in found}


def _counted(site: Snapshot) -> dict[str, SiteForecast]:
    """Return the forecasts by counting cores only."""
    total = sum(node.cores for node in site.nodes if node.up)
    found = {}
    starts = amounts.starts(site, LATE)
    for job in site.jobs:
        if job.start is None:
            start = starts.get(job.key, math.inf)
            reason = job.stuck or (f"it needs {job.total} cores, and there are {total}"
                                   if job.total > total else
                                   "a limit of its queue, or a job before it, never lets it start")
            found[job.key] = SiteForecast(start, start + job.wall, (),
                                          "" if start < math.inf else reason)
    return found


class _Starts(Watcher, Recorder):
    """Records which job starts where: observes the cluster."""

    def __init__(self) -> None:
        self.found: dict[int, Booking] = {}

    def booked(self, booking: Booking) -> None:
        self.found[booking.job.id] = booking


class SiteByNode:
    """A site whose jobs have nodes and cores, as a run of vrm. If jobs do not share nodes, a node counts as one
    core."""

    def __init__(self, site: Snapshot) -> None:
        self.site = site
        self.classes = sorted({name for node in site.nodes for name in node.classes or ()})
        if not site.nodes:
            raise SnapshotError("the snapshot has no nodes")
        self.ids = {job.key: number for number, job in enumerate(_dependencies_first(site.jobs))}
        self.keys = {number: key for key, number in self.ids.items()}
        self.why: dict[str, str] = {}
        self._least = min(node.cores for node in site.nodes)
        self._features: dict[tuple[str, int], frozenset[str]] = {}
        self._whole = [frozenset(range(node.cores)) for node in site.nodes]
        self.ranks = {self.ids[job.key]: job.rank for job in site.jobs}
        order = Ordering("of the site", lambda job, now, nodes: self.ranks[job.id], static=True)
        self.cluster = Cluster(self._nodes())
        rules = Rules(algorithm=order, backfill=self._backfill(), policy="pack", queues=self._queues())
        self.scheduler = compose(rules, self.cluster)
        self.state = State(self.scheduler.new_queue(), self.cluster)

    def _backfill(self) -> str | Dispatcher:
        site = self.site
        if site.algorithm != "Backfilling":
            return {"FCFS": "none", "List": "list"}[site.algorithm]
        if site.depth == math.inf:
            return "conservative"
        if site.depth == 1 and not site.per_queue and not site.shared:
            return "easy"
        return Reserving(int(site.depth), False, site.per_queue) if site.depth else "none"

    def _nodes(self) -> Iterator[Node]:
        """Yield its nodes, named by their numbers."""
        site = self.site
        kinds = {self._kind(job) for job in site.jobs} | {(name, 1) for name in self.classes}
        for number, node in enumerate(site.nodes):
            if site.shared:
                held = {_class(at): float(node.cores if node.classes is None
                                          else node.classes.get(name, 0))
                        for at, name in enumerate(self.classes)}
                yield Node(f"{number}", (node.cores,), {name: n for name, n in held.items() if n})
            else:
                fit = frozenset(_feature(kind) for kind in kinds if self._able(number, kind))
                yield Node(f"{number}", (1,), features=fit)

    def _kind(self, job: SiteJob) -> tuple[str, int]:
        """Return what determines on which whole nodes a job can run: its queue, and its cores on each node."""
        return job.queue, job.per_node if job.nodes else 1

    def _able(self, number: int, kind: tuple[str, int]) -> bool:
        node, (queue, cores) = self.site.nodes[number], kind
        return cores <= (node.cores if node.classes is None else node.classes.get(queue, 0))

    def _queues(self) -> Queues:
        """Return the limits of the queues, if there are any. The queue without a name is for jobs that name no
        queue."""
        limits = self.site.queues
        if not limits:
            return Queues()
        names = {job.queue for job in self.site.jobs} | set(limits)
        if not self.site.shared and any(each.cores for each in limits.values()):
            raise SnapshotError("limits of cores per queue need nodes that jobs share")
        return Queues.of({name or " ": {
            "max_cores": limits[name].cores, "max_running": limits[name].jobs,
            "max_running_per_user": limits[name].jobs_per_user} if name in limits else {}
            for name in sorted(names)})

    def job(self, job: SiteJob, job_id: int) -> Job:
        """Return the site's job as a job of vrm. Raises ValueError if it requests nothing."""
        site = self.site
        queue = (job.queue or " ") if site.queues else job.queue
        if site.shared:
            held = {}
            if job.queue in self.classes:
                held[_class(self.classes.index(job.queue))] = 1.0
            elif all(node.classes is not None for node in site.nodes):
                raise Infeasible(f"no node is for queue {job.queue or '(none)'}")
            request = Request.of(job.total, resources=held,
                                 nodes=(job.nodes, job.nodes) if job.nodes else (1, 0),
                                 tasks_per_node=job.per_node if job.nodes else 0)
        else:
            kind = self._kind(job)
            if kind not in self._features:
                every = all(self._able(number, kind) for number in range(len(site.nodes)))
                self._features[kind] = frozenset() if every else frozenset({_feature(kind)})
            request = Request.of(job.nodes or -(-job.cores // self._least),
                                 features=self._features[kind])
        return Job(job_id, job.name or job.key, request.tasks, job.wall, job.submit,
                   user=job.user, queue=queue, request=request)

    def _wanted(self, site_job: SiteJob) -> Job:
        try:
            return self.job(site_job, self.ids[site_job.key])
        except ValueError as error:
            raise SnapshotError(f"job {site_job.key}: {error}") from error

    def run(self, most_jobs: float, most_seconds: float) -> dict[str, SiteForecast]:
        """Return the forecasts of the waiting jobs."""
        site, state, cluster = self.site, self.state, self.cluster
        notes = _Starts()
        later, runs = self._enter()
        cluster.watchers.append(notes)
        for booking in cluster.running():
            runs[booking.job.id] = booking.expected_end - booking.start
        simulator = Simulator.of(Run(state, self.scheduler), notes, runs, 0.0, due=True)
        simulator.one_by_one = site.one_by_one
        try:
            for now in simulator.moments(later):
                if now > most_seconds or len(notes.found) >= most_jobs:
                    break
        except PolicyError:  # a job waits forever, for nodes that are down
            pass
        found = {}
        for job in site.jobs:
            if job.start is None:
                found[job.key] = self._said(job, notes.found.get(self.ids[job.key]))
        return found

    def frozen(self, past: History) -> FrozenRun:
        """Return the site frozen at the snapshot's time, with the history of ended jobs; jobs are ended at
        their limits."""
        later, _ = self._enter()
        self.state.next_id = max(self.state.next_id, len(self.ids))  # also higher than those of jobs that wait
        return FrozenRun(Run(self.state, self.scheduler), 0.0, kill=True, past=past, later=tuple(later), due=True)

    def _enter(self) -> tuple[list[Submission], dict[int, float]]:
        """Enter all jobs. Returns the jobs that are submitted later, and the run times of the waiting ones in
        seconds."""
        state = self.state
        for known in self._running():
            state.next_id = max(state.next_id, known.id + 1)
        for number, node in enumerate(self.site.nodes):
            if not node.up:
                state.cluster.set_up(number, False)
        later, runs = self._waiting()
        self._reserve()
        return later, runs

    def _places(self, placement: Placement) -> Iterator[Place]:
        """Yield the nodes and cores of a placement."""
        if not self.site.shared:
            for node in placement.nodes:
                yield node, self._whole[node]
            return
        for node, _, cores in placement.on_nodes(self.cluster.nodes):
            yield node, frozenset(bits.members(cores))

    def _said(self, job: SiteJob, booking: Booking | None) -> SiteForecast:
        if booking is not None:
            return SiteForecast(booking.start, booking.start + job.wall,
                                tuple(self._places(booking.placement)))
        why = job.stuck or self.why.get(job.key, "")
        if not why and any(not node.up for node in self.site.nodes):
            why = "it does not fit on the nodes that are up"
        return SiteForecast(math.inf, math.inf, (), why)

    def _taken(self, job: SiteJob, procs: int) -> int:
        """Return the cores of a running job of `procs` ranks, as a bit mask."""
        site, cluster, layout, taken = self.site, self.cluster, self.cluster.layout, 0
        for node, cores in job.places:
            first = layout.node_first[node]
            width = site.nodes[node].cores if site.shared else 1
            if not site.shared:
                cores = None
            mine = sum(1 << first + core for core in cores) if cores is not None else bits.lowest(
                layout.node_cores(node) & ~cluster.busy_cores,
                min(width, job.per_node or -(-procs // len(job.places))))
            if mine & cluster.busy_cores or (cores is not None and not mine):
                raise SnapshotError(
                    f"job {job.key} runs on cores of node {site.nodes[node].name} that job "
                    f"{self._holder(mine) or 'another'} has, too: the snapshot contradicts itself")
            taken |= mine
        return taken

    def _running(self) -> Iterator[Job]:
        """Book the jobs that run."""
        site, cluster, layout = self.site, self.cluster, self.cluster.layout
        held = sorted((job for job in site.jobs if job.start is not None),
                      key=lambda job: any(cores is None for _, cores in job.places) or not job.places)
        for site_job in held:
            try:
                job = self.job(site_job, self.ids[site_job.key])
            except ValueError:  # it runs even so
                job = Job(self.ids[site_job.key], site_job.key, max(1, site_job.total), site_job.wall,
                          site_job.submit, user=site_job.user)
            taken = self._taken(site_job, job.procs)
            if site_job.places and not taken:
                continue  # its cores are not named, and other jobs have them all
            if not site_job.places:
                placement = self.scheduler.policy.place(job, cluster)
                if not placement:
                    raise SnapshotError(f"job {site_job.key} runs, no nodes are named, and there is no "
                                        "room for it next to the others: name them (nodelist)")
            else:
                number = bits.count(taken)
                if number != job.procs:  # the cores that it has count, not those that it requested
                    job = job.but(procs=number, request=job.request._replace(
                        tasks=number, nodes=(1, 0), tasks_per_node=0))
                placement = Placement.of_cores(layout, taken, number)
            assert site_job.start is not None
            self.state.book.know(job, PLAIN, JobState.RUNNING)
            booking = cluster.book(job, placement, site_job.start)
            if booking.expected_end <= 0:
                booking = cluster.revise(job.id, LATE)
            self.state.running[job.id] = Start(booking, False)
            yield job

    def _holder(self, cores: int) -> str:
        return next((self.keys[job_id] for job_id, each in self.cluster.bookings.items()
                     if each.placement.taken & cores),
                    "")

    def _waiting(self) -> tuple[list[Submission], dict[int, float]]:
        """Enter the waiting jobs. Returns the jobs that are submitted later, and the run times of all in
        seconds."""
        later: list[Submission] = []
        runs: dict[int, float] = {}
        stuck = {job.key for job in self.site.jobs if job.stuck}
        for site_job in _dependencies_first(self.site.jobs):
            if site_job.start is not None or site_job.stuck:
                continue
            never = next((key for key in site_job.after if key in stuck or key in self.why), "")
            if never:
                self.why[site_job.key] = f"it waits for job {never}, which does not start"
                continue
            after = tuple(Dependency.on(self.ids[key], ANY) for key in site_job.after
                          if key in self.ids)
            try:
                job = self._wanted(site_job)
                self.scheduler.check(job)
                if site_job.submit > 0:
                    later.append(Submission(job, job.walltime, after))
                else:
                    self.state.submit([job], Details(after) if after else PLAIN)
            except (Infeasible, JobStateError, SnapshotError) as error:
                self.why[site_job.key] = str(error)
                continue
            runs[job.id] = job.walltime
        later.sort(key=lambda one: (one.job.submit, one.job.id))
        return later, runs

    def _reserve(self) -> None:
        for number, each in enumerate(self.site.reservations, 1):
            jobs = tuple(self.ids[key] for key in each.jobs
                         if key in self.ids and key not in self.why)
            if each.end > 0 and each.nodes:  # a site's jobs may overlap a reservation, so it is not refused
                self.state.reservations.add(Reservation(number, each.key, tuple(map(str, each.nodes)),
                                                each.begin, each.end), jobs)


def _class(number: int) -> str:
    return f"class {number}"


def _feature(kind: tuple[str, int]) -> str:
    return f"{kind[1]} cores for {kind[0]}"


def _dependencies_first(jobs: Sequence[SiteJob]) -> list[SiteJob]:
    """Return the jobs in their order, except that each comes after those on which it depends."""
    known = {job.key: job for job in jobs}
    found: dict[str, SiteJob] = {}
    for job in jobs:
        turn = [job]
        while turn:
            last = turn[-1]
            first = next((known[key] for key in last.after
                          if key in known and key not in found), None)
            if first is None or any(first is each for each in turn):  # or they depend on each other
                found[last.key] = turn.pop()
            else:
                turn.append(first)
    return list(found.values())


def forecast_lml(lml: Lml, most_jobs: float = math.inf, most_seconds: float = math.inf,
                 processes: int = 1) -> tuple[dict[str, SiteForecast], bytes]:
    """Return the forecasts of the waiting jobs of an LML file, and the file with them; see `forecast_site`."""
    found = forecast_site(lml.snapshot, most_jobs, most_seconds, processes)
    totals = {job.key: job.total for job in lml.snapshot.jobs}
    ends = {job.key: job.start + job.wall if job.start + job.wall > 0 else LATE
            for job in lml.snapshot.jobs if job.start is not None}
    waiting = {key: (each.start, each.end, said_of(each.places), totals[key], each.reason)
               for key, each in found.items()}
    return found, lml.written(waiting, ends)


def said_of(places: Sequence[Place], first: int = 1) -> str:
    """Return nodes and cores as `(1-1(4-5))`: ranges of nodes with the same cores, counted from `first`."""
    parts: list[tuple[int, int, frozenset[int]]] = []
    for node, cores in places:
        cores = cores or frozenset()
        if parts and parts[-1][1] == node - 1 and parts[-1][2] == cores:
            parts[-1] = (parts[-1][0], node, cores)
        else:
            parts.append((node, node, cores))
    return "".join(f"({begin + first}-{end + first}{_cores(cores, first)})"
                   for begin, end, cores in parts)


def _cores(cores: frozenset[int], first: int) -> str:
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and runs[-1][1] == core - 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return "".join(f"({begin + first}-{end + first})" for begin, end in runs)
