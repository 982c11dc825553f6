"""Node orders: the examples of their source to the digit, and each against its definition in plain
loops over nodes and fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reference import each_of, some_of
from vrm.model import Cluster, Job, Node, bits
from vrm.model.cluster import Pool
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.ext.planning.node_orders import Weighted
from vrm.scheduling.placement.node_orders import Order, make_node_order
from vrm.scheduling.registry import PolicyError
from vrm.ext.planning.free_amounts import FreeAmounts

Amounts = Mapping[str, float]


def eurora(gpus: int = 32, mics: int = 32) -> list[Node]:
    """Nodes of 16 cores and 16 GiB, first those with two GPUs, then those with two MICs."""
    return ([Node(f"g{i}", (8, 8), {"memory": 16, "gpu": 2}) for i in range(gpus)]
            + [Node(f"m{i}", (8, 8), {"memory": 16, "mic": 2}) for i in range(mics)])


def order(text: str, nodes: Sequence[Node]) -> Any:
    made = make_node_order(text)
    made.bind(nodes)
    return made


def view(nodes: Sequence[Node], free: Mapping[int, Amounts]) -> Pool:
    """A view in which the nodes of `free` have that much left, and all others everything."""
    pool = Pool(nodes)
    for node, left in free.items():
        for name, amount in left.items():
            if name == "cores":
                taken = nodes[node].cores - int(amount)
                pool.busy_cores |= ((1 << taken) - 1) << pool.layout.node_first[node]
            else:
                whole = int(nodes[node].resources[name])
                pool.left[name][node] = int(pool.left[name][node] * Fraction(str(amount)) / whole)
    pool.__dict__.update(_free=-1, _empties=-1)
    return pool


def listed(groups: Iterator[int]) -> list[int]:
    """The nodes in order."""
    found = [node for group in groups for node in bits.members(group)]
    assert len(set(found)) == len(found)
    return found


def asked(made: Any, pool: Pool, job: Job, eligible: int | None = None,
          rooms: Sequence[tuple[int, int]] = ()) -> list[int]:
    return listed(made.groups(job, pool, pool.up if eligible is None else eligible, lambda: rooms))


class Line:
    """Waiting jobs in order."""

    def __init__(self, jobs: Sequence[Job], fresh: Sequence[Job] = ()) -> None:
        self.jobs, self.fresh = list(jobs), list(fresh)

    def holds(self, job: Job) -> bool:
        return job in self.jobs

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, at: int) -> Job:
        return self.jobs[at]


def during(made: Weighted, waiting: Sequence[Job], question: Any, cluster: Any = None) -> Any:
    """What the question gives during a step in which these jobs wait."""
    found = []

    def decided() -> Iterator[Any]:
        found.append(question())
        return iter(())
        yield

    list(made.follow(0.0, Line(waiting), cluster or Cluster(eurora(1, 1)), decided(), True))
    return found[0]


ONE = Job(1, "a", 1, 60.0)


# ------------------------------------------------------------------------------------- examples


def test_first_fit_fills_nodes_in_the_order_of_their_numbers() -> None:
    cluster = Cluster(eurora(2, 2))
    policy = make_policy("pack", cluster, node_order="first-fit")
    placement = policy.place(Job(1, "a", 20, 60.0), cluster)
    assert placement
    assert dict(placement.ranks_by_node(cluster.nodes)) == {0: 16, 1: 4}
    wide = policy.place(Job(1, "a", 5, 60.0, cores=4), cluster)
    assert wide is not None and dict(wide.ranks_by_node(cluster.nodes)) == {0: 4, 1: 1}


def test_best_fit_takes_the_smallest_sum_first_and_sorts_again_after_each_start() -> None:
    nodes = eurora(2, 2)
    made = order("best-fit", nodes)
    free = {0: {"cores": 16, "memory": 16, "gpu": 2}, 1: {"cores": 8, "memory": 8, "gpu": 2},
            2: {"cores": 12, "memory": 12, "mic": 2}, 3: {"cores": 8, "memory": 10, "mic": 0}}
    # The sums are 34, 18, 26 and 18.
    assert asked(made, view(nodes, free), ONE) == [1, 3, 2, 0]
    cluster = Cluster(nodes)
    policy = make_policy("pack", cluster, node_order="best-fit")
    where = []
    for job in [Job(1, "a", 4, 60.0), Job(2, "a", 8, 60.0), Job(3, "a", 8, 60.0)]:
        placement = policy.place(job, cluster)
        assert placement
        cluster.book(job, placement, 0.0)
        where.append(dict(placement.ranks_by_node(nodes)))
    assert where == [{0: 4}, {0: 8}, {0: 4, 1: 4}]


@pytest.mark.parametrize("nodes, free, expected", [
    (eurora(4, 4), {}, [1, 5, 2, 6, 3, 7, 4, 8]),
    (eurora(5, 2), {}, [1, 2, 3, 4, 6, 5, 7]),
])
def test_balanced_takes_heads_of_the_longest_list(nodes: Sequence[Node], free: dict[int, Amounts],
                                                  expected: list[int]) -> None:
    made = order("balanced critical=gpu,mic", nodes)
    assert [node + 1 for node in asked(made, view(nodes, free), ONE)] == expected


def test_balanced_goes_by_what_is_left_now() -> None:
    """A MIC node has GPUs, too, and these alone are left; two nodes have nothing left."""
    nodes = eurora(4, 0) + [Node("both", (8, 8), {"memory": 16, "gpu": 2, "mic": 2})] + eurora(0, 3)
    made = order("balanced", nodes)
    free: dict[int, Amounts] = {0: {"gpu": 2}, 1: {"gpu": 1}, 2: {"gpu": 0}, 3: {"gpu": 2},
                                4: {"gpu": 2, "mic": 0}, 5: {"mic": 2}, 6: {"mic": 0}, 7: {"mic": 1}}
    assert [node + 1 for node in asked(made, view(nodes, free), ONE)] == [3, 7, 1, 2, 4, 6, 5, 8]


def test_nodes_without_room_count_for_the_length_of_a_list() -> None:
    """Of five GPU nodes and two MIC nodes the job finds room on one and two."""
    nodes = eurora(5, 2)
    made = order("balanced", nodes)
    assert asked(made, Pool(nodes), ONE, eligible=0b1110000) == [5, 4, 6]
    assert asked(made, Pool(nodes), ONE, eligible=0b1100001) == [0, 5, 6]


def test_balanced_counts_a_node_of_two_critical_resources_to_that_of_which_more_is_left() -> None:
    nodes = [Node("a", (4,), {"gpu": 4, "mic": 4}), Node("b", (4,), {"gpu": 4, "mic": 4}),
             Node("c", (4,), {"gpu": 4, "mic": 4})]
    made = order("balanced", nodes)
    left: dict[int, Amounts] = {0: {"gpu": 1, "mic": 2}, 1: {"gpu": 2, "mic": 1}, 2: {"mic": 4}}
    assert asked(made, view(nodes, left), ONE) == [1, 2, 0]  # ties: GPUs first
    left[2] = {"gpu": 0, "mic": 4}
    assert asked(made, view(nodes, left), ONE) == [0, 1, 2]


A, B, C, D = 0, 1, 32, 33
LETTERS = {A: "A", B: "B", C: "C", D: "D"}


def example() -> tuple[list[Node], Pool, list[Job], list[tuple[int, int]]]:
    """Eurora at loads of 1/2 of its cores and memory, 3/4 of its GPUs, 1/4 of its MICs, two jobs
    that wait, and four nodes on which the first one has room."""
    nodes = eurora()
    free: dict[int, dict[str, float]] = {
        A: {"cores": 16, "memory": 16, "gpu": 2}, B: {"cores": 8, "memory": 8, "gpu": 2},
        C: {"cores": 12, "memory": 12, "mic": 2}, D: {"cores": 8, "memory": 10, "mic": 0}}
    used = {"cores": 512 - 20, "memory": 512 - 18, "gpu": 48, "mic": 16 - 2}
    for node in range(64):
        if node not in free:
            free[node] = {}
            for name, whole in [("cores", 16), *nodes[node].resources.items()]:
                some = min(used[name], whole, 9 if name in ("cores", "memory") else 2)
                used[name] -= some
                free[node][name] = whole - some
    assert not any(used.values())
    jobs = [Job(1, "a", 1, 1800.0, cores=8, resources={"memory": 8}),
            Job(2, "b", 2, 600.0, cores=4, resources={"memory": 4, "gpu": 1})]
    return nodes, view(nodes, free), jobs, [(1 << A | 1 << B | 1 << C | 1 << D, 1)]


def test_weighted_computes_the_weights_and_keys_of_its_definition() -> None:
    nodes, pool, jobs, rooms = example()
    made = order("weighted", nodes)
    weights = during(made, jobs, lambda: made.weights(jobs[0], pool))
    assert weights == {"cores": Fraction("0.00390625"), "memory": Fraction("0.00390625"),
                       "gpu": Fraction("0.005859375") / 1, "mic": 0}
    left = {A: (16, 16, 2), B: (8, 8, 2), C: (12, 12, 0), D: (8, 10, 0)}
    keys = {LETTERS[node]: float(round(weights["cores"] * (cores - 8) + weights["memory"] * (memory - 8)
                                       + weights["gpu"] * gpus, 6))
            for node, (cores, memory, gpus) in left.items()}
    assert keys == {"D": 0.007812, "B": 0.011719, "C": 0.03125, "A": 0.074219}
    found = during(made, jobs, lambda: asked(made, pool, jobs[0], rooms=rooms))
    assert "".join(LETTERS[node] for node in found) == "DBCA"


def test_priorities_push_nodes_of_the_resource_that_jobs_fail_to_get_to_the_end() -> None:
    nodes, pool, jobs, rooms = example()
    made = order("priority-weighted critical=gpu,mic", nodes)
    gpu = [Job(100 + at, "g", 1, 60.0, resources={"gpu": 1}) for at in range(9)]
    assert made.priorities == {"gpu": 1, "mic": 1}
    cluster = Cluster(nodes)
    list(made.follow(0.0, Line(gpu, gpu), cluster, iter(()), True))
    assert made.priorities == {"gpu": 10, "mic": 1}
    found = during(made, jobs, lambda: asked(made, pool, jobs[0], rooms=rooms), cluster)
    weights = during(made, jobs, lambda: made.weights(jobs[0], pool), cluster)
    assert "".join(LETTERS[node] for node in found) == "DCBA"
    assert weights["gpu"] == Fraction("0.05859375")
    assert weights["cores"] == Fraction("0.00390625")


def test_best_fit_burns_a_gpu_node_where_weighted_does_not() -> None:
    nodes, pool, jobs, rooms = example()
    found = asked(order("best-fit", nodes), pool, jobs[0], eligible=rooms[0][0])
    assert "".join(LETTERS[node] for node in found) == "BDCA"


def test_on_an_empty_machine_weights_are_0_and_nodes_come_by_number() -> None:
    nodes = eurora()
    made = order("weighted", nodes)
    job = Job(1, "a", 1, 60.0, resources={"gpu": 1})
    assert set(made.weights(job, Pool(nodes)).values()) == {0}
    assert asked(made, Pool(nodes), job) == list(range(64))


def test_weighted_leaves_out_nodes_without_room() -> None:
    nodes, pool, jobs, _ = example()
    made = order("weighted", nodes)
    found = during(made, jobs, lambda: asked(made, pool, jobs[0], rooms=[(1 << A | 1 << C, 1)]))
    assert found == [C, A]


def test_jobs_that_a_plan_starts_beside_this_one_are_in_the_window() -> None:
    nodes, pool, jobs, _ = example()
    made = order("weighted window=1", nodes)
    mic = Job(3, "c", 1, 600.0, resources={"mic": 2})

    def weights(start: float | None) -> Any:
        if start is not None:
            made.plans({3: (mic, start)})
        return made.weights(jobs[0], pool)["mic"]

    waiting = [*jobs, mic]
    assert during(made, waiting, lambda: weights(None)) == 0
    assert during(made, waiting, lambda: weights(1799.0)) == Fraction(600 * 2, 2400) / 4 / 64
    assert during(made, waiting, lambda: weights(1800.0)) == 0  # it begins when this one ends


def test_hybrid_sorts_each_list_by_weight_and_keeps_the_order_of_the_lists() -> None:
    nodes = eurora(4, 3)
    free: dict[int, Amounts] = {0: {"cores": 16}, 1: {"cores": 4}, 2: {"cores": 8}, 3: {"cores": 12,
                                "gpu": 0}, 4: {"cores": 9}, 5: {"cores": 3}, 6: {"cores": 1}}
    made = order("hybrid", nodes)
    pool = view(nodes, free)
    rooms = [(0b111111, 1)]  # none on the last MIC node
    job = Job(1, "a", 1, 60.0)
    # Without GPUs: 3. GPUs by what is left: 1 2 0. MICs: 5 4. Heads of the longest list, GPUs first.
    assert asked(made, pool, job, rooms=rooms) == [3, 1, 2, 5, 0, 4]


def test_priorities_move_by_steps_within_their_range() -> None:
    nodes = eurora(2, 2)
    cluster = Cluster(nodes)
    made = order("priority-weighted", nodes)
    gpu, mic, cpu, both = (
        Job(at, "x", 1, 60.0, resources=resources) for at, resources in
        enumerate([{"gpu": 1}, {"mic": 1}, {"memory": 1}, {"gpu": 1, "mic": 1}], 1))

    def step(waiting: Sequence[Job], started: Sequence[Job] = (), all_tried: bool = True) -> Any:
        list(made.follow(0.0, Line(waiting, waiting), cluster, iter([(job, None) for job in started]),
                         all_tried))
        return tuple(made.priorities[name] for name in ("gpu", "mic"))

    assert step([gpu, cpu]) == (2, 1)
    assert step([gpu, mic, both]) == (4, 3)
    assert step([gpu, mic], [mic]) == (5, 2)
    assert step([gpu, mic], all_tried=False) == (6, 2)
    for _ in range(10):
        last = step([both])
    assert last == (10, 10)
    for _ in range(20):
        last = step([both], [both])
    assert last == (1, 1)


def test_who_waits_on_is_not_tried_again_until_something_changes() -> None:
    nodes = eurora(1, 1)
    cluster = Cluster(nodes)
    made = order("priority-weighted step=0.5 range=2-3", nodes)
    gpu = Job(1, "x", 1, 60.0, resources={"gpu": 1})
    assert made.priorities["gpu"] == 2
    list(made.follow(0.0, Line([gpu], [gpu]), cluster, iter(()), True))
    assert made.priorities["gpu"] == 2.5
    list(made.follow(1.0, Line([gpu]), cluster, iter(()), True))
    assert made.priorities["gpu"] == 2.5
    cluster.set_up(1, False)
    list(made.follow(2.0, Line([gpu]), cluster, iter(()), True))
    assert made.priorities["gpu"] == 3


# ------------------------------------------------------------------------------ against plain loops


class PlainNode:
    """What is left on a node: free cores of each socket, and amounts by name."""

    def __init__(self, node: Node) -> None:
        self.sockets = list(node.sockets)
        self.left = {name: Fraction(str(amount)) for name, amount in node.resources.items()}

    def all(self) -> dict[str, Fraction]:
        return {"cores": Fraction(sum(self.sockets)), **self.left}

    def room(self, job: Job) -> int:
        ranks = sum(free // job.cores for free in self.sockets)
        for name, amount in job.resources.items():
            ranks = min(ranks, int(self.left.get(name, Fraction()) / Fraction(str(amount))))
        return ranks


def wants(job: Job) -> dict[str, Fraction]:
    """What a rank takes."""
    return {"cores": Fraction(job.cores),
            **{name: Fraction(str(amount)) for name, amount in job.resources.items()}}


def plain_weights(job: Job, window: Sequence[Job], nodes: Sequence[Node],
                  here: Sequence[PlainNode], priorities: Mapping[str, Fraction]) -> dict[str, Fraction]:
    names = {"cores"}.union(*(node.resources for node in nodes))
    weights = {}
    for name in names:
        capacity = sum(PlainNode(node).all().get(name, Fraction()) for node in nodes)
        left = sum(node.all().get(name, Fraction()) for node in here)
        wanted = sum(Fraction(other.expected) * other.procs * wants(other).get(name, 0)
                     for other in window) / sum(Fraction(other.expected) for other in window)
        weights[name] = (wanted * (capacity - left) / capacity / capacity
                         * priorities.get(name, 1)) if capacity else Fraction()
    return weights


def plain_order(text: str, job: Job, window: Sequence[Job], nodes: Sequence[Node],
                here: Sequence[PlainNode], critical: Sequence[str],
                priorities: Mapping[str, Fraction]) -> list[int]:
    """All nodes on which the job has room, best first."""
    everything = list(range(len(nodes)))
    fitting = [at for at in everything if here[at].room(job)]
    if text == "first-fit":
        return fitting
    if text == "best-fit":
        return sorted(fitting, key=lambda at: sum(here[at].all().values()))
    weights = plain_weights(job, window, nodes, here, priorities)

    def key(at: int) -> Fraction:
        ranks = min(here[at].room(job), job.procs)
        return sum((weights[name] * (here[at].all().get(name, 0) - ranks * wants(job).get(name, 0))
                    for name in weights), Fraction())

    if text.endswith("weighted"):
        return sorted(fitting, key=key)
    lists: dict[str, list[int]] = {name: [] for name in ["", *critical]}
    for at in everything if text == "balanced" else sorted(fitting, key=key):
        left = {name: here[at].left.get(name, 0) for name in critical}
        most = max([*left.values(), 0])
        lists[next((name for name in critical if left[name] == most > 0), "")].append(at)
    found = lists.pop("")
    while any(lists.values()):
        longest = max(lists.values(), key=len)
        found.append(longest.pop(0))
    return [at for at in found if at in fitting]


RESOURCES = some_of({"gpu": range(4), "mic": [1, 2], "memory": [4, 8, 16.5]})
SHAPES = st.lists(st.tuples(st.sampled_from([(4,), (2, 2), (1, 3), (8,)]), RESOURCES), min_size=1,
                  max_size=3)


@st.composite
def machines(draw: Any) -> list[Node]:
    one = st.sampled_from(draw(SHAPES))
    return [Node(f"n{at}", *draw(one))
            for at in range(draw(st.integers(1, 9)))]


def mixed_jobs(first: int, most: int = 8) -> st.SearchStrategy[list[Job]]:
    one = st.tuples(each_of(range(1, 7), [1, 2], [1.5, 60.0, 600.25]),
                    some_of({"gpu": [1], "mic": [1], "memory": [0.5, 2]}))
    return st.lists(one, max_size=most).map(lambda found: [
        Job(first + at, "x", procs, time, cores=cores, resources=resources)
        for at, ((procs, cores, time), resources) in enumerate(found)])


ORDERS = ["first-fit", "best-fit", "balanced", "weighted", "hybrid", "priority-weighted"]


@pytest.mark.parametrize("text", ORDERS)
@settings(max_examples=120, deadline=None)
@given(nodes=machines(), running=mixed_jobs(100), waiting=mixed_jobs(1), window=st.integers(1, 4),
       data=st.data())
def test_nodes_come_as_the_definition_says(text: str, nodes: list[Node], running: list[Job],
                                           waiting: list[Job], window: int, data: Any) -> None:
    """On machines with random loads: what runs is placed anywhere, some of it ends again."""
    cluster, plain = Cluster(nodes), [PlainNode(node) for node in nodes]
    first_fit = make_policy("pack", cluster)
    sized = text if text in ORDERS[:3] else f"{text} window={window}"
    policy: Any = make_policy("pack", cluster, node_order=sized)
    critical = sorted({name for node in nodes for name in node.resources if name != "memory"})

    def take(job: Job, placement: Any, sign: int) -> None:
        for slot in placement.slots(nodes):
            plain[slot.node].sockets[slot.socket] -= sign * job.cores
            for name, amount in job.resources.items():
                plain[slot.node].left[name] -= sign * Fraction(str(amount))

    def check(job: Job, window: Sequence[Job], priorities: Mapping[str, Fraction]) -> None:
        rooms = {at: node.room(job) for at, node in enumerate(plain)}
        eligible = cluster.up
        if data.draw(st.booleans()):  # a policy may leave out those without room
            eligible &= sum(1 << at for at, room in rooms.items() if room)
        found = listed(policy.order.groups(job, cluster, eligible, lambda: [
            (1 << at, room) for at, room in rooms.items() if room]))
        assert [at for at in found if rooms[at]] == plain_order(
            text, job, window, nodes, plain, critical, priorities)

    for job in running:
        placement = first_fit.place(job, cluster)
        if placement:
            cluster.book(job, placement, 0.0)
            take(job, placement, 1)
            check(job, [job], {})
            if data.draw(st.booleans()):
                cluster.release(job.id)
                take(job, placement, -1)

    priorities = {name: Fraction(1) for name in critical}

    def move(job: Job, by: int) -> None:
        for name in critical:
            if text.startswith("priority") and name in job.resources:
                priorities[name] = max(Fraction(1), min(Fraction(10), priorities[name] + by))

    def decided() -> Iterator[Any]:
        for at, job in enumerate(waiting):
            check(job, waiting[at:at + window], priorities)
            placement = policy.place(job, cluster)
            if not placement:
                move(job, +1)
                continue
            yield job, placement
            move(job, -1)

    starts = decided()
    if policy.follower is not None:
        starts = policy.follower.follow(0.0, Line(waiting, waiting), cluster, starts, True)
    for job, placement in starts:
        cluster.book(job, placement, 0.0)
        take(job, placement, 1)
    if text.startswith("priority"):
        assert policy.order.priorities == priorities


@settings(max_examples=60, deadline=None)
@given(nodes=machines(), jobs=mixed_jobs(1, 12), data=st.data())
def test_what_is_left_is_that_of_a_walk_over_the_nodes(nodes: list[Node], jobs: list[Job],
                                                       data: Any) -> None:
    cluster = Cluster(nodes)
    policy = make_policy("pack", cluster)
    stock = FreeAmounts(nodes)
    for job in jobs:
        what = data.draw(st.sampled_from(["start", "end", "switch", "if"]))
        placement = policy.place(job, cluster)
        if what == "start" and placement:
            cluster.book(job, placement, 0.0)
        elif what == "end" and cluster.bookings:
            cluster.release(next(iter(cluster.bookings)))
        elif what == "switch":
            node = data.draw(st.integers(0, len(nodes) - 1))
            cluster.set_up(node, not cluster.up >> node & 1)
        pool: Any = cluster
        if what == "if" and placement:
            pool = cluster.what_if()
            pool.take(job, placement)
        names = sorted({name for node in nodes for name in node.resources})
        expected: dict[tuple[int, ...], int] = {}
        used = [0] * (1 + len(names))
        whole = Pool(nodes)
        for at, node in enumerate(nodes):
            if pool.up >> at & 1:
                left = (pool.free_on(at), *(pool.left[name][at] for name in names))
                expected[left] = expected.get(left, 0) | 1 << at
                full = (node.cores, *(whole.left[name][at] for name in names))
                used = [sum_ + all_ - some for sum_, all_, some in zip(used, full, left)]
        assert dict(stock.alike(pool)) == expected
        assert list(stock.used(pool)) == used


@pytest.mark.parametrize("text", ORDERS)
@settings(max_examples=60, deadline=None)
@given(nodes=machines(), wanted=mixed_jobs(1, 12), data=st.data())
def test_whole_nodes_are_taken_as_the_definition_says(text: str, nodes: list[Node], wanted: list[Job],
                                                      data: Any) -> None:
    """Under compact: of a node that a job has no core is left, but resources are."""
    cluster = Cluster(nodes)
    policy = make_policy("compact", cluster, node_order=text)
    critical = sorted({name for node in nodes for name in node.resources if name != "memory"})
    for job in wanted:
        plain = [PlainNode(node) for node in nodes]
        for booking in cluster.bookings.values():
            for node, ranks in booking.placement.ranks_by_node(nodes):
                plain[node].sockets = [0]
                for name, amount in booking.job.resources.items():
                    plain[node].left[name] -= ranks * Fraction(str(amount))
        expected, left = [], job.procs
        for node in plain_order(text, job, [job], nodes, plain, critical, {}):
            if left > 0:
                expected.append(node)
                left -= plain[node].room(job)
        placement = policy.place(job, cluster)
        assert (not placement) is (left > 0)
        if placement:
            assert sorted(placement.nodes) == sorted(expected)
            cluster.book(job, placement, 0.0)
        if cluster.bookings and data.draw(st.booleans()):
            cluster.release(next(iter(cluster.bookings)))


@pytest.mark.parametrize("text", ORDERS)
@settings(max_examples=80, deadline=None)
@given(nodes=machines(), running=mixed_jobs(100), wanted=mixed_jobs(1), data=st.data())
def test_a_job_fits_where_it_has_a_place(text: str, nodes: list[Node], running: list[Job],
                                         wanted: list[Job], data: Any) -> None:
    """Whether it says on how many nodes it runs or not; a place keeps to that."""
    cluster = Cluster(nodes)
    policy = make_policy("pack", cluster, node_order=text)
    for job in [*running, *wanted]:
        least = data.draw(st.integers(1, job.procs))
        most = data.draw(st.sampled_from([0, least, job.procs]))
        each = data.draw(st.sampled_from([0, 0, 2]))
        if most and 0 < each * most < job.procs:
            continue
        asks = job.request._replace(nodes=(least, most), tasks_per_node=each)
        job = job.but(request=asks)
        placement = policy.place(job, cluster)
        assert policy.fits(job, cluster) is bool(placement)
        if not placement:
            continue
        ranks = dict(placement.ranks_by_node(nodes))
        assert least <= len(ranks) <= (most or len(nodes)) and sum(ranks.values()) == job.procs
        assert not each or max(ranks.values()) <= each
        if data.draw(st.booleans()):
            cluster.book(job, placement, 0.0)
        elif cluster.bookings:
            cluster.release(next(iter(cluster.bookings)))


# ------------------------------------------------------------------------------------ in a scheduler


@pytest.mark.parametrize("policy", ["compact", "spare", "strip", "pack"])
@pytest.mark.parametrize("text", [*ORDERS, "heatmap"])
def test_every_order_goes_with_every_placement(policy: str, text: str) -> None:
    cluster = Cluster(eurora(2, 2))
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"),
                          make_policy(policy, cluster, node_order=text))
    queue = scheduler.new_queue()
    for number in range(8):
        queue.add(Job(number, "x", 6, 60.0 + number, resources={} if policy == "pack" else {
            "memory": number % 2 / 4}))
    started = scheduler.step(0.0, queue, cluster)
    assert len(started) >= 2
    for start in started:
        held = sum(ranks for _, ranks in start.booking.placement.ranks_by_node(cluster.nodes))
        assert held == 6


@pytest.mark.parametrize("how", ["none", "easy", "list", "conservative", "2"])
def test_a_copy_keeps_priorities_of_its_own(how: str) -> None:
    cluster = Cluster(eurora(1, 1))
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(how),
                          make_policy("compact", cluster, node_order="priority-weighted"))
    queue = scheduler.new_queue()
    for number in range(4):
        queue.add(Job(number, "x", 1, 60.0, resources={"gpu": 1}))
    scheduler.step(0.0, queue, cluster)
    before = scheduler.policy.order.priorities  # type: ignore[attr-defined]
    assert before["gpu"] > 1
    other = cluster.copy()
    twin, waiting = scheduler.copy(other), queue.copy()
    assert twin.policy.order.priorities == before  # type: ignore[attr-defined]
    other.release(0)
    twin.step(1.0, waiting, other)
    assert twin.policy.order.priorities != before or how == "none"  # type: ignore[attr-defined]
    assert scheduler.policy.order.priorities == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("text, message", [
    ("wieghted", "did you mean weighted?"),
    ("weighted windw=3", "weighted has no parameter `windw`; did you mean window?"),
    ("weighted window=0", "window is `0`; give a number of jobs from 1 on"),
    ("weighted window", "window is ``; give a number of jobs"),
    ("best-fit window=3", "best-fit has no parameter `window`; it has none"),
    ("balanced critical=gpus", "critical=gpus: no node has `gpus`; did you mean gpu?"),
    ("priority-weighted range=5", "range is `5`; give two numbers above 0, as range=1-10"),
    ("priority-weighted range=5-2", "range is `5-2`"),
    ("priority-weighted step=1/0", "step is `1/0`"),
])
def test_what_is_no_order_is_one_line(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy("pack", Cluster(eurora(1, 1)), node_order=text)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("policy, message", [
    ("open x number x free", "names a node order, and so does `weighted`; leave one out"),
    ("mine:first", "NodeOrder works with compact, spare, strip, pack"),
])
def test_orders_go_with_policies_of_vrm(policy: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make_policy(policy, Cluster(eurora(1, 1)), node_order="weighted")


def test_three_parts_take_an_order_with_parameters() -> None:
    cluster = Cluster(eurora(1, 1))
    made: Any = make_policy("open x weighted window=7 x free", cluster)
    assert isinstance(made.order, Order) and made.order.window == 7
