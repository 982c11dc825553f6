"""Jobs that name nodes: whatever decides, none is on a node that it excludes, and all of its nodelist are
among its nodes. That the decisions themselves are the right ones, and no head starts later, is compared with
the plain version in `test_placement` and `test_backfilling`, whose jobs name nodes, too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from vrm.model import Booking, Cluster, Infeasible, Job, Node
from vrm.model.job import Request
from vrm.model.placement import CorePlacement, Placement
from vrm.scheduling import make_policy
from vrm.scheduling.placement.user_placement import placement_of
from vrm.ext.lending.offers import borrowed, offer
from vrm.scheduling.placement.spread import spread
from vrm.api import Machine, Recording, Rules, Submission, Timetable, Watcher, simulate
from vrm.simulation.engine import Outage

NODES = [Node(f"n{i}.site", (2, 2), features=frozenset({"fast"} if i % 2 else ())) for i in range(5)]
NAMES = [f"n{i}" for i in range(5)]


class Seen(Watcher):
    """Notes on which nodes jobs start."""

    def __init__(self) -> None:
        self.starts: list[tuple[float, Job, set[str]]] = []

    def booked(self, booking: Booking) -> None:
        on = {NAMES[node] for node, tasks in booking.placement.ranks_by_node(NODES) if tasks}
        self.starts.append((booking.start, booking.job, on))


class LastFirst:
    """A placement policy of a user's own, who has never heard of names: cores from the last node on."""

    def __init__(self, cluster: Cluster, heatmap: Any) -> None:
        self.machine = Cluster(cluster.nodes)

    def nodes(self, job: Job) -> int:
        placement = self.place(job, self.machine)
        if placement is None:
            raise Infeasible("no room")
        return len(placement.nodes)

    def place(self, job: Job, view: Any) -> Placement | None:
        free, chosen = view.free_cores & sum(view.layout.node_cores(at) for at, node in enumerate(view.nodes)
                                             if job.features <= node.features), 0
        for _ in range(job.procs):
            if not free:
                return None
            last = 1 << free.bit_length() - 1
            free, chosen = free ^ last, chosen | last
        return CorePlacement(view.layout, chosen, job.procs, 1)


@st.composite
def named(draw: Any, tasks: int) -> dict[str, Any]:
    """What a job says of nodes."""
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    cut = min(draw(st.integers(0, len(names))), tasks)
    features = draw(st.sampled_from([frozenset(), frozenset(), frozenset({"fast"})]))
    return {"nodelist": names[:cut], "exclude": names[cut:], "features": features}


@st.composite
def workloads(draw: Any) -> list[Submission]:
    found, now = [], 0.0
    for job_id in range(draw(st.integers(2, 12))):
        now += draw(st.sampled_from([0.0, 0.0, 1.0, 5.0]))
        tasks, limit = draw(st.integers(1, 9)), draw(st.sampled_from([2.0, 10.0, 30.0]))
        request = Request.of(tasks, **(draw(named(tasks)) if draw(st.booleans()) else {}))
        found.append(Submission(Job(job_id, "a.x", tasks, limit, now, request=request, malleable=draw(st.booleans())),
                                draw(st.sampled_from([limit, limit / 2]))))
    return found


@pytest.mark.parametrize("backfill, policies", [
    *((name, ["compact", "spare", "strip", "pack"]) for name in (
        "none", "easy", "list", "3", "conservative", "conservative-recomputed", "easy-kept")),
    ("easy", [LastFirst, "open x best-fit x free", "open x weighted x free"]),
    ("sd max_slowdown=100 when=always", ["pack"]), ("cp jobs=5 budget=0.01", ["pack", "compact"])])
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_job_is_where_it_would_not_be(backfill: str, policies: list[Any], data: st.DataObject) -> None:
    tasks, seen = data.draw(workloads()), Seen()
    outcome = simulate(tasks, Machine(NODES), Rules(backfill=backfill, policy=data.draw(st.sampled_from(policies))),
                       record=Recording(watchers=[seen]))
    assert {row.id for row in outcome.jobs} == {job.id for _, job, _ in seen.starts}
    assert len(outcome.jobs) + outcome.summary["refused"] == len(tasks)
    for _, job, on in seen.starts:
        assert job.request.nodelist <= on and not job.request.exclude & on, (job, on)


def test_reasons_why_a_job_can_never_run() -> None:
    for policy, request, said in [
            ("pack", Request.of(2, nodelist=["n3.size"]), "there is no node n3.size; did you mean `n3.site`?"),
            ("compact", Request.of(2, nodelist=["front"]), "there is no node front; there are n[0-4].site"),
            ("pack", Request.of(17, exclude=["n1"]), "17 ranks do not fit on 4 node(s) (of 5, without those of exclude) "
             "under pack, which holds at most 16 of them"),
            ("compact", Request.of(5, nodes=(5, 5), exclude=["n1"]), "it wants 5 nodes, there are 4 (of 5, without"),
            ("strip", Request.of(2, nodelist=["n0"], features=frozenset({"fast"})),
             "it is to run on n0.site: it does not offer fast"),
            ("pack", Request.of(5, nodelist=["n0"], nodes=(1, 1)), "5 ranks do not fit on 1 of 5 node(s)"),
            ("spare", Request.of(1, exclude=NAMES), "exclude leaves none of the nodes"),
            ("pack", Request.of(1, exclude=["n1", "n3"], features=frozenset({"fast"})),
             "no node of those that exclude leaves offers fast")]:
        with pytest.raises(Infeasible) as never:
            make_policy(policy, Cluster(NODES)).nodes(Job(0, "a.x", request.tasks, 1.0, request=request))
        assert said in str(never.value), (policy, request)
    with pytest.raises(Infeasible, match="finds no place for it on the nodes that it names"):
        cluster = Cluster(NODES)
        placement_of("mine", LastFirst(cluster, None), cluster).nodes(
            Job(0, "a.x", 5, 1.0, request=Request.of(5, nodelist=["n0"])))  # whose last nodes it takes


@pytest.mark.parametrize("values, said", [
    ({"nodelist": ["a", "b"]}, "1 rank(s) cannot run on 2 nodes"), ({"nodelist": ["a"], "exclude": ["a"]}, "both name a"),
    ({"tasks": 3, "nodelist": ["a", "b"], "nodes": (1, 1)}, "names 2 nodes, and the job runs on 1 at most")])
def test_requests_that_contradict_themselves(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as wrong:
        Request.of(**{"tasks": 1, **values})
    assert said in str(wrong.value)


def test_named_nodes_come_first_and_the_others_in_the_order_of_the_policy() -> None:
    rooms = [(0, 4), (1, 1), (2, 4), (3, 4)]
    assert spread(rooms, Request.of(6, nodelist=["x"]), 1 << 1) == [(0, 3), (1, 1), (2, 2)]
    assert spread(rooms, Request.of(3, nodelist=["x"]), 1 << 3) == [(3, 3)]
    assert spread(rooms, Request.of(4, nodelist=["x"], nodes=(2, 2)), 1 << 3) == [(0, 2), (3, 2)]
    assert spread(rooms, Request.of(5, nodelist=["x"], nodes=(1, 2)), 1 << 1) == [(0, 4), (1, 1)]
    assert spread(rooms, Request.of(6, nodelist=["x"], nodes=(1, 2)), 1 << 1) is None
    assert spread(rooms, Request.of(2, nodelist=["x"]), 1 << 4) is None  # where there is no room


def test_borrowed_cores_are_on_the_named_nodes() -> None:
    cluster = Cluster(NODES)
    for node in range(3):
        cores = cluster.layout.node_cores(node)
        cluster.book(Job(node, "a.x", 2, 99.0, cores=2, malleable=True),
                     CorePlacement(cluster.layout, cores, 2, 2), 0.0)
    lent = [(node, offer(cluster, node).cores) for node in range(3)]

    def on(**names: Any) -> list[int] | None:
        found = borrowed(Job(9, "b.x", 2, 1.0, request=Request.of(2, **names)), cluster, lent)
        assert found is None or found.lease is not None
        return None if found is None else list(found.nodes)
    assert on() == [0] and on(exclude=["n0"]) == [1] and on(nodelist=["n2"]) == [2]
    assert on(nodelist=["n0", "n2"]) == [0, 2] and on(nodelist=["n4"]) is None


def test_a_lost_node_is_waited_for() -> None:
    """A job of the lost node alone waits for it; one that excludes it does not, and others overtake."""
    jobs = [Job(0, "a.x", 4, 10.0, request=Request.of(4, nodelist=["n1"])),
            Job(1, "a.x", 4, 10.0, request=Request.of(4, exclude=["n1"])), Job(2, "a.x", 4, 10.0)]
    seen = Seen()
    simulate([Submission(job, 10.0) for job in jobs], Machine(NODES), Rules(backfill="easy", policy="pack"),
             timetable=Timetable(outages=[Outage(1, 0.0, 50.0)]), record=Recording(watchers=[seen]))
    assert [(start, job.id, on) for start, job, on in seen.starts] == [
        (0.0, 1, {"n0"}), (0.0, 2, {"n2"}), (50.0, 0, {"n1"})]
