"""Reference implementations of ordering, placement and EASY backfilling, written from their definitions
with lists of cores and loops over all nodes, and an event loop that runs them together with the real ones.

Also strategies for the random clusters and workloads of the property tests.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any, NamedTuple
from collections.abc import Callable, Iterator, Mapping, Sequence

from hypothesis import strategies as st

from vrm.model import Cluster, Heatmap, Infeasible, Job, Node
from vrm.model.amounts import unit
from vrm.model.job import Component, Program, Request, together
from vrm.scheduling import JobQueue, Scheduler, make_backfilling, make_ordering, make_policy

Place = tuple[int, int, tuple[int, ...]]
"""Node, socket and cores of one rank."""

UTILITIES: dict[str, Callable[[float, float, int], float]] = {
    "FCFS": lambda q, t, n: q,
    "FCSJ": lambda q, t, n: q / t,
    "WFP1": lambda q, t, n: (q / t) * n,
    "WFP3": lambda q, t, n: (q / t) ** 3 * n,
    "SJF": lambda q, t, n: -t,
    "LJF": lambda q, t, n: t,
}

HEATMAP = """\
bt ep lu sp is cg bt mg ft
cg ep bt lu sp ft mg cg is
ep sp mg lu bt ft is cg ep
ft ep lu cg is mg bt sp ft
"""
"""Four lines of a heatmap file; the program kind `zz` of the workloads has no line."""


def rank_of_pair(app: str, partner: str) -> float:
    """Return the rank of the partner in the app's row; the middle if one of them is unknown."""
    rows = [line.split() for line in HEATMAP.splitlines()]
    for row in rows:
        if row[0] == app:
            return row.index(partner, 1) if partner in row[1:] else len(row) / 2
    return len(rows[0]) / 2


def alone(job: Job, policy: str, threads: int = 1) -> bool:
    """Return whether the job shares no node with another job. Cores are hardware threads; a real core has `threads` of them."""
    return policy in ("compact", "spare") or job.exclusive or (policy == "strip" and job.request.threads == threads > 1)


def impossible(job: Job, policy: str, threads: int) -> bool:
    """Return whether nodes can never provide the threads per core that the job requests."""
    asked = job.request.threads
    return asked > 1 if threads == 1 else bool(asked) and (policy == "pack" or asked not in (threads, threads // 2))


class PlainNode:
    """One node: the job on each core, the jobs that hold its two halves, and the resources that are left."""

    def __init__(self, cores: Sequence[int], resources: dict[str, Any],
                 features: Sequence[str], threads: int = 1) -> None:
        self.threads = threads
        self.slots: list[list[int | None]] = [[None] * count for count in cores]
        self.halves: list[Job | None] = [None, None]
        self.left = {name: Fraction(str(amount)) for name, amount in resources.items()}
        self.features = set(features)
        self.up = True

    def copy(self) -> PlainNode:
        twin = PlainNode([], {}, self.features, self.threads)
        twin.slots = [list(socket) for socket in self.slots]
        twin.halves, twin.left, twin.up = list(self.halves), dict(self.left), self.up
        return twin

    def room(self, job: Job, policy: str) -> list[tuple[int, tuple[int, ...]]]:
        """Return socket and cores of each rank that the job could run here now."""
        if not self.up or not set(job.features) <= self.features or impossible(job, policy, self.threads):
            return []
        if policy == "pack" and job.exclusive and any(holder is not None for socket in self.slots for holder in socket):
            return []
        if None not in self.halves or (alone(job, policy, self.threads) and self.halves != [None, None]):
            return []
        half = self.halves.index(None)
        found = []
        for number, socket in enumerate(self.slots):
            cores = list(range(len(socket)))
            if policy == "pack":
                cores = [core for core in cores if socket[core] is None]
            elif (policy != "compact" if self.threads == 1 or not job.request.threads
                  else job.request.threads < self.threads):
                size = len(cores) // 2 or 1
                cores = cores[half * size:half * size + size]
            while len(cores) >= job.cores:
                found.append((number, tuple(cores[:job.cores])))
                cores = cores[job.cores:]
        for name in {*job.resources, *per_node(job)}:
            each, once = amount_of(job.resources, name), amount_of(per_node(job), name)
            while found and once + len(found) * each > self.left.get(name, 0):
                found.pop()
        cap = job.request.tasks_per_node
        return found[:cap] if cap else found


def amount_of(amounts: dict[str, float], name: str) -> Fraction:
    return Fraction(str(amounts.get(name, 0)))


def per_node(job: Job) -> dict[str, float]:
    """Return the resources that the job takes once on each of its nodes."""
    return {name: amount / unit(name) for name, amount in job.request.per_node}


def licences_of(job: Job) -> int:
    """Return the number of licences; these workloads have only one kind."""
    return dict(job.request.licences).get("ansys", 0) // 1000


def programs_of(job: Job, places: list[Place]) -> Iterator[tuple[Job, list[Place]]]:
    """Yield the programs of a job with the places of their ranks."""
    at = 0
    for part in job.parts:
        yield part, places[at:at + part.procs]
        at += part.procs


class Reference:
    """A cluster with a placement policy, an ordering and a backfilling (none, easy, list), in the simplest
    form.
    """

    def __init__(self, nodes: Sequence[Node], policy: str, ordering: str = "FCFS",
                 backfilling: str = "none", heatmap: bool = False, licences: int = 0) -> None:
        self.facts = nodes
        self.all_licences = self.licences = licences
        self.nodes = [PlainNode(n.sockets, dict(n.resources), n.features, n.threads) for n in nodes]
        self.policy, self.ordering = policy, ordering
        self.backfilling, self.heatmap = backfilling, heatmap
        self.running: dict[int, tuple[Job, list[Place], float]] = {}

    def copy(self) -> Reference:
        twin = Reference([], self.policy, self.ordering, self.backfilling, self.heatmap)
        twin.facts, twin.licences = self.facts, self.licences
        twin.nodes = [node.copy() for node in self.nodes]
        twin.running = dict(self.running)
        return twin

    # Placement.

    def find(self, job: Job) -> list[Place] | None:
        """Return the place of each rank if the job started now; None if it does not fit."""
        if job.request.parts:
            return self.find_parts(job)

        def preference(index: int) -> tuple[float, int]:
            tenants = [t for t in self.nodes[index].halves if t is not None]
            if not tenants:
                return 0, index
            app, partner = job.app.split(".")[0], tenants[0].app.split(".")[0]
            return (rank_of_pair(app, partner) if self.heatmap else 1), index

        if licences_of(job) > self.licences:
            return None
        rooms = [(index, room) for index in sorted(range(len(self.nodes)), key=preference)
                 if (room := self.nodes[index].room(job, self.policy))]
        request, (least, most) = job.request, job.request.nodes
        names = [node.name for node in self.facts]
        if not request.nodelist <= set(names):
            return None
        rooms = [each for each in rooms if names[each[0]] not in request.exclude]
        mine = [each for each in rooms if names[each[0]] in request.nodelist]
        if len(mine) < len(request.nodelist):
            return None
        others = [each for each in rooms if each not in mine]
        least = max(least, len(mine))
        chosen = self.first(mine + others, job.procs, least)
        if chosen is not None and most and len(chosen) > most:
            chosen = self.first(mine + sorted(others, key=lambda each: -len(each[1])), job.procs, least)
        if chosen is None or (most and len(chosen) > most):
            return None
        chosen = [each for each in rooms if each in chosen]
        fills = (least, most) == (1, 0) and not mine
        here = {index: 0 for index, _ in chosen}
        for _ in range(job.procs):
            able = [index for index, room in chosen if here[index] < len(room)]
            here[able[0] if fills else min(able, key=here.__getitem__)] += 1
        return [(index, *place) for index, room in chosen for place in room[:here[index]]]

    def find_parts(self, job: Job) -> list[Place] | None:
        """Return the places of a coupled job, whose programs are placed one after the other; None if it does not fit."""
        if licences_of(job) > self.licences:
            return None
        left, places = self.copy(), []
        for part in job.parts:
            found = left.find(part)
            if found is None:
                return None
            left.start(part, found, 0.0)
            places += found
        return places

    @staticmethod
    def first(rooms: list[Any], tasks: int, least: int) -> list[Any] | None:
        """Return the first nodes, at least `least`, that can hold `tasks` tasks; None if all together cannot."""
        for number in range(least, len(rooms) + 1):
            if sum(len(room) for _, room in rooms[:number]) >= tasks:
                return rooms[:number]
        return None

    def nodes_needed(self, job: Job) -> int | None:
        """Return the number of nodes that the job takes on the empty cluster; None if it can never run."""
        places = Reference(self.facts, self.policy, heatmap=self.heatmap,
                           licences=self.all_licences).find(job)
        return None if places is None else len({index for index, _, _ in places})

    def start(self, job: Job, places: list[Place], now: float) -> None:
        """Allocate the cores to the job; fails if one of them is not free."""
        self.licences -= licences_of(job)
        assert self.licences >= 0
        for part, its in programs_of(job, places):
            self.start_part(part, its)
        self.running[job.id] = job, places, now + job.estimate

    def start_part(self, job: Job, places: list[Place]) -> None:
        """Allocate the cores to one program of a job."""
        for index in dict.fromkeys(index for index, _, _ in places):
            node = self.nodes[index]
            if alone(job, self.policy, node.threads):
                node.halves = [job, job]
            elif self.policy == "strip":
                node.halves[node.halves.index(None)] = job
            for name, amount in per_node(job).items():
                node.left[name] -= Fraction(str(amount))
                assert node.left[name] >= 0
        for index, socket, cores in places:
            for name, amount in job.resources.items():
                left = self.nodes[index].left
                left[name] = left.get(name, 0) - Fraction(str(amount))
                assert left[name] >= 0
            for core in cores:
                assert self.nodes[index].slots[socket][core] is None
                self.nodes[index].slots[socket][core] = job.id

    def end(self, job_id: int) -> None:
        """Free everything that the job holds."""
        job, places, _ = self.running.pop(job_id)
        self.licences += licences_of(job)
        for part, its in programs_of(job, places):
            self.end_part(part, its)

    def end_part(self, job: Job, places: list[Place]) -> None:
        """Free everything that one program of a job holds."""
        for index in {index for index, _, _ in places}:
            for name, amount in per_node(job).items():
                self.nodes[index].left[name] += Fraction(str(amount))
        for index, socket, cores in places:
            node = self.nodes[index]
            node.halves = [None if t is not None and t.id == job.id else t for t in node.halves]
            for name, amount in job.resources.items():
                node.left[name] += Fraction(str(amount))
            for core in cores:
                node.slots[socket][core] = None

    # Scheduling.

    def in_order(self, waiting: Sequence[Job], now: float) -> list[Job]:
        """Return the waiting jobs by utility (highest first), then by submission, then by id."""
        utility = UTILITIES[self.ordering]

        def key(job: Job) -> tuple[float, float, int]:
            needed = self.nodes_needed(job)
            assert needed is not None
            return -utility(now - job.submit, job.estimate, needed), job.submit, job.id
        return sorted(waiting, key=key)

    def at(self, moment: float, now: float) -> Reference:
        """Return the cluster as it will be at `moment` if all jobs run as long as estimated; a job
        past its estimate counts as ending now.
        """
        later = self.copy()
        for job_id, (_, _, end) in self.running.items():
            if max(end, now) <= moment:
                later.end(job_id)
        return later

    def shadow_time(self, job: Job, now: float) -> float:
        """Return the earliest moment at which the job fits if nothing else starts; infinity if it never fits."""
        for moment in sorted({max(end, now) for _, _, end in self.running.values()}):
            if self.at(moment, now).find(job):
                return moment
        return math.inf

    def step(self, now: float, waiting: Sequence[Job]) -> list[tuple[int, bool, list[Place]]]:
        """Start all jobs that may start; return id, whether it was backfilled, and places, in the order of starts."""
        order = self.in_order(waiting, now)
        starts = []
        while order:
            places = self.find(order[0])
            if places is None:
                break
            self.start(order[0], places, now)
            starts.append((order.pop(0).id, False, places))
        if self.backfilling != "none" and order:
            head, shadow = order[0], self.shadow_time(order[0], now)
            for job in order[1:]:
                places = self.find(job)
                if places is None:
                    continue
                if self.backfilling == "easy" and now + job.estimate > shadow:
                    with_it = self.copy()
                    with_it.start(job, places, now)
                    if with_it.at(shadow, now).find(head) is None:
                        continue
                self.start(job, places, now)
                starts.append((job.id, True, places))
        return starts


# --------------------------------------------------------------------------------- the event loop


class Task(NamedTuple):
    """A job and its real run time (seconds)."""

    job: Job
    runtime: float


class Moment(NamedTuple):
    """The starts of a step, and the waiting jobs (in order) and both clusters after it."""

    now: float
    starts: list[tuple[int, bool, list[Place]]]
    waiting: list[Job]
    reference: Reference
    scheduler: Scheduler
    cluster: Cluster
    queue: JobQueue


class Switch(NamedTuple):
    """A node that goes down or comes back at a moment."""

    time: float
    node: int
    up: bool


class Cancel(NamedTuple):
    """A job that is removed from the queue at a moment if it waits; otherwise only a step is made."""

    time: float
    job_id: int


def pair(nodes: Sequence[Node], policy: str, ordering: str = "FCFS", backfilling: str = "none",
         heatmap: bool = False, licences: int = 0) -> tuple[Scheduler, Cluster, Reference]:
    """Return the real scheduler with its cluster, and the reference with the same settings."""
    cluster = Cluster(nodes, {"ansys": licences} if licences else None)
    ranks = Heatmap.parse(HEATMAP.splitlines()) if heatmap else None
    scheduler = Scheduler(make_ordering(ordering), make_backfilling(backfilling),
                          make_policy(policy, cluster, ranks))
    return scheduler, cluster, Reference(nodes, policy, ordering, backfilling, heatmap,
                                         licences)


def places_of(placement: Any, nodes: Sequence[Node]) -> list[Place]:
    """Return the place of each rank of a placement."""
    slots = list(placement.slots(nodes))
    assert [slot.rank for slot in slots] == list(range(len(slots)))
    return [(slot.node, slot.socket, slot.cores) for slot in slots]


def play(scheduler: Scheduler, cluster: Cluster, reference: Reference, tasks: Sequence[Task],
         others: Sequence[Switch | Cancel] = ()) -> Iterator[Moment]:
    """Run the workload through both, event by event; in each step both must make the same decisions
    and have the same job on every core. Ends after the last event.
    """
    queue = scheduler.new_queue()
    waiting: dict[int, Job] = {}
    runtimes = {task.job.id: task.runtime for task in tasks}
    events: list[tuple[float, int, Any]] = [(task.job.submit, 2, task.job) for task in tasks]
    events += [(other.time, 1 if isinstance(other, Switch) else 3, other) for other in others]
    while events:
        now = min(time for time, _, _ in events)
        happening = sorted((e for e in events if e[0] <= now), key=lambda event: event[1])
        events = [e for e in events if e[0] > now]
        for _, _, what in happening:
            if isinstance(what, Switch):
                cluster.set_up(what.node, what.up)
                reference.nodes[what.node].up = what.up
            elif isinstance(what, Cancel):
                if what.job_id in waiting:
                    queue.remove(what.job_id)
                    del waiting[what.job_id]
            elif isinstance(what, Job):
                try:
                    scheduler.check(what)
                except Infeasible:
                    assert reference.nodes_needed(what) is None
                    continue
                assert scheduler.policy.nodes(what) == reference.nodes_needed(what)
                queue.add(what)
                waiting[what.id] = what
            else:
                cluster.release(what)
                reference.end(what)
        expected = reference.step(now, list(waiting.values()))
        starts = [(start.job.id, start.backfilled,
                   places_of(start.booking.placement, cluster.nodes))
                  for start in scheduler.step(now, queue, cluster)]
        assert starts == expected, f"at {now}: {starts} instead of {expected}"
        assert [[socket.slots for socket in node] for node in cluster.view()] == [
            node.slots for node in reference.nodes]
        for job_id, _, _ in starts:
            del waiting[job_id]
            events.append((now + runtimes[job_id], 0, job_id))
        assert sorted(job.id for job in queue) == sorted(waiting)
        yield Moment(now, starts, reference.in_order(list(waiting.values()), now), reference,
                     scheduler, cluster, queue)


# ------------------------------------------------------------------------ clusters and workloads

KINDS = ["bt.B.x", "cg.S.x", "ep.A.x", "ft", "zz.B.x"]
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
POLICIES = st.sampled_from(["compact", "spare", "strip", "pack"])
ORDERINGS = st.sampled_from(sorted(UTILITIES))
FEATURES = st.sampled_from([frozenset(), frozenset(["fast"]), frozenset(["big"]), frozenset(["fast", "big"])])


# Such tests spend most of their time in hypothesis, on each draw and on each new strategy. So independent values are
# drawn together, and strategies are made once.
def each_of(*choices: Sequence[Any]) -> st.SearchStrategy:
    """Draw one value of each of the choices."""
    return st.sampled_from(list(itertools.product(*choices)))


def some_of(optional: Mapping[str, Sequence[Any]]) -> st.SearchStrategy:
    """Draw a dictionary with some of these keys, each with one of its values."""
    absent = object()
    chosen = itertools.product(*([absent] * len(values) + list(values) for values in optional.values()))
    return st.sampled_from([tuple((name, value) for name, value in zip(optional, values) if value is not absent)
                            for values in chosen]).map(dict)


THREADS = st.sampled_from([1, 1, 1, 2])
"""Hardware threads per core; if there are several, each counts as a core."""


def of_threads(sockets: tuple[int, ...], threads: int) -> tuple[int, ...]:
    """Return the sockets with hardware threads as cores."""
    return tuple(cores * threads for cores in sockets)


def regular_nodes(most: int = 6, features: bool = False) -> st.SearchStrategy:
    """Draw equal nodes, also with odd and different sockets and with sockets of one core. With `features`,
    their features differ.
    """
    each = FEATURES if features else st.just(frozenset())
    return st.tuples(SHAPES, st.lists(each, min_size=1, max_size=most), THREADS).map(
        lambda facts: [Node(f"n{i}", of_threads(facts[0], facts[2]), {}, f, threads=facts[2]) for i, f in enumerate(facts[1])])


_NODE = st.tuples(SHAPES, some_of({"gpu": range(4), "mem": [4, 16.5], "memory": [2, 8, 64]}), FEATURES)


def different_nodes(most: int = 6) -> st.SearchStrategy:
    """Draw nodes of different shapes, resources and features."""
    return st.tuples(st.lists(_NODE, min_size=1, max_size=most), THREADS).map(
        lambda drawn: [Node(f"n{i}", of_threads(sockets, drawn[1]), *facts, threads=drawn[1])
                       for i, (sockets, *facts) in enumerate(drawn[0])])


AMOUNTS = some_of({"gpu": range(3), "mem": [1, 2.5, 4], "memory": [0.5, 1, 3]})
_WISHES = st.tuples(
    each_of([0, 0, 0, 1, 2], [1, 1, 1, 2, 3], [0, 0, 1, 2], range(4),
            [frozenset(), frozenset(["fast"]), frozenset(["big"])], [0, 0, 1, 2], [0, 0, 0, 1, 2]),
    st.lists(st.sampled_from(["n0", "n0", "n1", "n1", "n2", "n5"]), max_size=3, unique=True),
    AMOUNTS, st.just({}) | AMOUNTS)


def wished(drawn: Any, procs: int, cores: int, exclusive: bool) -> Request:
    """Return a request for more than cores; `drawn` is a value of _WISHES."""
    (cap, least, more, split, features, licences, threads), names, amounts, per_node = drawn
    least = min(least, procs)
    most = more and least + more - 1
    split = min(split, len(names), procs, most or procs)
    return Request.of(
        procs, cores, exclusive, amounts, features, per_node, {"ansys": licences}, (least, most),
        0 if most and cap * most < procs else cap, names[:split], names[split:], threads)


@functools.lru_cache(None)
def _jobs(plain: bool, most_procs: int) -> st.SearchStrategy:
    return st.tuples(
        each_of(KINDS, [False, False, False, True], [1, 1, 1, 1, 2, 3]),
        st.one_of(st.integers(1, 4), st.integers(1, most_procs)),
        st.one_of(st.integers(1, 12), st.sampled_from([0.125, 2.5, 40, 100])),
        st.none() if plain else _WISHES,
        st.just([]) if plain else st.one_of(st.just([]), st.just([]), st.lists(_PROGRAM, min_size=1, max_size=2)))


_PROGRAM = st.tuples(each_of(KINDS, [False, False, False, True], [1, 1, 2], range(1, 9)), _WISHES)


def _job(drawn: Any) -> dict[str, Any]:
    (app, exclusive, cores), procs, estimate, wishes, others = drawn
    found = {"app": app, "procs": procs, "estimate": estimate, "exclusive": exclusive, "cores": cores}
    if wishes is None:
        return found
    request = wished(wishes, procs, cores, exclusive)
    if not others:
        return {**found, "request": request}
    programs = [Component(app, request._replace(licences=()))]
    for (other, alone, width, ranks), more in others:
        programs.append(Component(other, wished(more, ranks, width, alone)._replace(licences=())))
    whole = together([each.request for each in programs], request.licences)
    return {"app": "coupled", "procs": whole.tasks, "cores": whole.cores_per_task, "estimate": estimate, "request": whole,
            "payload": Program(components=tuple(programs))}


def jobs(plain: bool = True, most_procs: int = 20) -> st.SearchStrategy:
    """Draw the keyword arguments of a job without its id and submit time; if not `plain`, with special requests."""
    return _jobs(plain, most_procs).map(_job)


_GAPS = [0, 0, 0, 1, 1, 2, 5, 0.5]


@functools.lru_cache(None)
def _tasks(plain: bool, late: bool) -> st.SearchStrategy:
    shares = [1, 1, 1, 0.5, 0, *([1.5, 3] if late else [])]
    return st.tuples(each_of(_GAPS, shares), _jobs(plain, 20))


@st.composite
def workloads(draw: Any, plain: bool = True, most: int = 14, late: bool = False) -> list[Task]:
    """Draw jobs that are submitted one after another and end at their estimates or before; with `late`, some
    end later.

    All times are multiples of 1/8, so that sums and differences of them are exact.
    """
    tasks, submit = [], 0.0
    for job_id in draw(st.permutations(range(draw(st.integers(1, most))))):
        (gap, share), facts = draw(_tasks(plain, late))
        submit += gap
        job = Job(id=job_id, submit=submit, **_job(facts))
        runtime = math.ceil(8 * job.estimate * share) / 8
        tasks.append(Task(job, min(runtime, job.estimate) if not late else runtime))
    return tasks


MOMENTS = st.sampled_from([0, 1, 2, 3, 5, 8, 13, 13.5, 30])


def cancels() -> st.SearchStrategy:
    """Draw cancels of waiting jobs, and steps at which nothing has happened."""
    return st.lists(st.builds(Cancel, MOMENTS, st.integers(-3, 13)), max_size=5)


def switches(nodes: int) -> st.SearchStrategy:
    """Draw nodes that go down and come back."""
    return st.lists(st.builds(Switch, MOMENTS, st.integers(0, nodes - 1), st.booleans()),
                    max_size=5)
