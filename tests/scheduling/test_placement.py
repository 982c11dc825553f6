"""Placement policies: examples from their definitions, the reasons of refusals, heatmaps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reference import (HEATMAP, KINDS, ORDERINGS, POLICIES, Reference, different_nodes, jobs, pair,
                       places_of, play, rank_of_pair, regular_nodes, workloads)
from vrm.model import Cluster, Heatmap, Infeasible, Job, Node
from vrm.model.job import Request
from vrm.scheduling import (PolicyError, Scheduler, make_backfilling, make_ordering,
                            make_policy)

NAMES = ["compact", "spare", "strip"]


def start(cluster, policy, job, now=0):
    """Book the job where the policy puts it; its places, or None."""
    placement = policy.place(job, cluster)
    if not placement:
        return None
    cluster.book(job, placement, now)
    return places_of(placement, cluster.nodes)


def on(places):
    """Places as text: node:socket.core of every rank."""
    return " ".join(f"{node}:{socket}.{'-'.join(map(str, cores))}"
                    for node, socket, cores in places)


# ------------------------------------------------------------------------------------- examples


@pytest.mark.parametrize("policy, procs, wanted", [
    ("compact", 8, "0:0.0 0:0.1 0:0.2 0:0.3 0:1.0 0:1.1 0:1.2 0:1.3"),
    ("compact", 3, "0:0.0 0:0.1 0:0.2"),
    ("compact", 10, "0:0.0 0:0.1 0:0.2 0:0.3 0:1.0 0:1.1 0:1.2 0:1.3 1:0.0 1:0.1"),
    ("spare", 4, "0:0.0 0:0.1 0:1.0 0:1.1"),
    ("spare", 5, "0:0.0 0:0.1 0:1.0 0:1.1 1:0.0"),
    ("strip", 5, "0:0.0 0:0.1 0:1.0 0:1.1 1:0.0"),
])
def test_ranks_fill_node_by_node_socket_by_socket_core_by_core(policy, procs, wanted):
    cluster = Cluster.regular(4, 2, 4)
    assert on(start(cluster, make_policy(policy, cluster), Job(1, "ft", procs, 1))) == wanted


def test_two_jobs_share_each_socket_half_and_half_under_strip():
    cluster = Cluster.regular(1, 2, 4)
    policy = make_policy("strip", cluster)
    assert on(start(cluster, policy, Job(1, "ft", 4, 1))) == "0:0.0 0:0.1 0:1.0 0:1.1"
    assert on(start(cluster, policy, Job(2, "cg", 3, 1))) == "0:0.2 0:0.3 0:1.2"
    assert start(cluster, policy, Job(3, "ep", 1, 1)) is None  # at most one job beside another
    cluster.release(1)
    assert on(start(cluster, policy, Job(3, "ep", 1, 1))) == "0:0.0"


@pytest.mark.parametrize("policy", ["spare", "strip"])
@pytest.mark.parametrize("cores, half", [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_half_of_an_odd_socket_is_rounded_down_but_never_to_none(policy, cores, half):
    cluster = Cluster.regular(3, 1, cores)
    chosen = make_policy(policy, cluster)
    assert chosen.nodes(Job(1, "ft", half, 1)) == 1
    assert chosen.nodes(Job(1, "ft", half + 1, 1)) == 2
    assert on(start(cluster, chosen, Job(1, "ft", half, 1))) == " ".join(
        f"0:0.{core}" for core in range(half))


def test_a_socket_of_one_core_cannot_be_shared():
    cluster = Cluster([Node("n0", (1,)), Node("n1", (1, 2))])
    policy = make_policy("strip", cluster)
    assert on(start(cluster, policy, Job(1, "ft", 3, 1))) == "0:0.0 1:0.0 1:1.0"
    assert on(start(cluster, policy, Job(2, "ft", 1, 1))) == "1:1.1"
    assert start(cluster, policy, Job(3, "ft", 1, 1)) is None


def test_equal_nodes_with_a_socket_of_one_core_have_unequal_halves():
    cluster = Cluster([Node("n0", (1, 3)), Node("n1", (1, 3))])
    policy = make_policy("strip", cluster)
    assert on(start(cluster, policy, Job(1, "ft", 4, 1))) == "0:0.0 0:1.0 1:0.0 1:1.0"
    assert start(cluster, policy, Job(2, "ft", 3, 1)) is None
    assert on(start(cluster, policy, Job(2, "ft", 2, 1))) == "0:1.1 1:1.1"


def test_a_partly_filled_last_node_is_open_to_another_job_under_strip_only():
    for name, wanted in [("compact", "1:0.0"), ("spare", "1:0.0"), ("strip", "1:0.0")]:
        cluster = Cluster.regular(2, 1, 4)
        policy = make_policy(name, cluster)
        start(cluster, policy, Job(1, "ft", 1, 1))
        assert on(start(cluster, policy, Job(2, "ft", 1, 1))) == wanted  # an empty node first
        third = start(cluster, policy, Job(3, "ft", 1, 1))
        assert third == ([(0, 0, (2,))] if name == "strip" else None)


def test_an_exclusive_job_shares_no_node_under_strip():
    cluster = Cluster.regular(2, 1, 4)
    policy = make_policy("strip", cluster)
    assert on(start(cluster, policy, Job(1, "ft", 2, 1, exclusive=True))) == "0:0.0 0:0.1"
    assert on(start(cluster, policy, Job(2, "ft", 2, 1))) == "1:0.0 1:0.1"
    assert start(cluster, policy, Job(3, "ft", 1, 1, exclusive=True)) is None
    assert on(start(cluster, policy, Job(4, "ft", 1, 1))) == "1:0.2"
    cluster.release(1)
    assert on(start(cluster, policy, Job(5, "ft", 2, 1, exclusive=True))) == "0:0.0 0:0.1"


def test_strip_takes_empty_nodes_then_the_better_partner():
    cluster = Cluster.regular(5, 1, 4)
    policy = make_policy("strip", cluster, Heatmap.parse(HEATMAP.splitlines()))
    for number, app in enumerate(["bt", "lu", "ep", "zz"]):
        start(cluster, policy, Job(number, f"{app}.B.x", 2, 1))
    # The row of ft: ep lu cg is mg bt sp ft; zz is unknown, so in the middle: 4.5.
    assert on(start(cluster, policy, Job(9, "ft.C.x", 10, 1))) == (
        "4:0.0 4:0.1 2:0.2 2:0.3 1:0.2 1:0.3 3:0.2 3:0.3 0:0.2 0:0.3")


def test_cores_of_a_rank_lie_in_one_socket():
    cluster = Cluster([Node("n0", (3, 5)), Node("n1", (2, 2))])
    policy = make_policy("compact", cluster)
    assert on(start(cluster, policy, Job(1, "ft", 4, 1, cores=2))) == (
        "0:0.0-1 0:1.0-1 0:1.2-3 1:0.0-1")


def test_ranks_are_spread_over_nodes_by_what_else_they_need():
    cluster = Cluster([Node("n0", (4,), {"gpu": 1}), Node("n1", (4,)),
                       Node("n2", (4,), {"gpu": 2})])
    policy = make_policy("compact", cluster)
    job = Job(1, "ft", 3, 1, resources={"gpu": 1})
    assert policy.nodes(job) == 2
    assert on(start(cluster, policy, job)) == "0:0.0 2:0.0 2:0.1"
    assert cluster.amounts == {"gpu": [0, 0, 0]}


def test_only_nodes_with_the_features_are_taken():
    cluster = Cluster([Node("n0", (2,)), Node("n1", (2,), features=frozenset({"fast", "big"})),
                       Node("n2", (2,), features=frozenset({"fast"}))])
    for name in NAMES:
        policy = make_policy(name, cluster)
        assert policy.nodes(Job(1, "ft", 2, 1, features=frozenset({"fast"}))) == (
            1 if name == "compact" else 2)
        placement = policy.place(Job(1, "ft", 1, 1, features=frozenset({"big"})), cluster)
        assert placement.nodes == [1]


def test_none_of_a_resource_may_be_asked_where_there_is_none():
    cluster = Cluster.regular(1, 1, 2)
    policy = make_policy("compact", cluster)
    assert start(cluster, policy, Job(1, "ft", 2, 1, resources={"gpu": 0})) is not None
    cluster.release(1)
    assert cluster.empty == 1


# ------------------------------------------------------------------------- against the reference


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 9), st.integers(1, 80),
       st.sampled_from(NAMES))
def test_nodes_needed_are_those_of_the_formulas(nodes, sockets, cores, procs, name):
    """compact: ceil(procs / (S C)); spare and strip: ceil(procs / (S max(1, C // 2)))."""
    policy = make_policy(name, Cluster.regular(nodes, sockets, cores))
    each = sockets * (cores if name == "compact" else max(1, cores // 2))
    needed = -(-procs // each)
    try:
        assert policy.nodes(Job(1, "ft", procs, 1)) == needed <= nodes
    except Infeasible as reason:
        assert needed > nodes
        assert f"{procs} ranks" in str(reason) and f"at most {each * nodes} of them" in str(reason)


@settings(max_examples=60, deadline=None)
@given(st.data(), POLICIES, ORDERINGS, st.booleans())
@pytest.mark.slow
def test_what_nobody_asks_for_changes_nothing(data, policy, ordering, heatmap):
    """Nodes of several classes, by resources and features that no job wants."""
    nodes = data.draw(regular_nodes())
    others = [Node(node.name, node.sockets, {"token": 1 + number % 2, "mem": 64},
                   frozenset({"odd"} if number % 3 else ())) for number, node in enumerate(nodes)]
    tasks = data.draw(workloads())
    runs = []
    for some in (nodes, others):
        scheduler, cluster, reference = pair(some, policy, ordering, "easy", heatmap)
        assert len(cluster.classes) == 1 or some is others
        runs.append([(moment.now, moment.starts) for moment in
                     play(scheduler, cluster, reference, tasks)])
    assert runs[0] == runs[1]


@settings(max_examples=100, deadline=None)
@given(st.data(), POLICIES)
@pytest.mark.slow
def test_asking_books_nothing_and_fits_says_whether_it_can_be_placed(data, policy):
    nodes = data.draw(st.one_of(regular_nodes(features=True), different_nodes()))
    cluster = Cluster(nodes)
    chosen = make_policy(policy, cluster)
    reference = Reference(nodes, policy)
    for number, wish in enumerate(data.draw(st.lists(jobs(plain=False), max_size=8))):
        job = Job(id=number, **wish)
        before = cluster.generation, cluster.busy0, cluster.busy1, cluster.busy_cores
        try:
            needed = chosen.nodes(job)
        except Infeasible:
            assert reference.nodes_needed(job) is None
            continue
        assert needed == reference.nodes_needed(job)
        fits, places = chosen.fits(job, cluster), reference.find(job)
        placement = chosen.place(job, cluster)
        assert before == (cluster.generation, cluster.busy0, cluster.busy1, cluster.busy_cores)
        assert fits == bool(placement) == (places is not None)
        if placement:
            assert places_of(placement, nodes) == places
            cluster.book(job, placement, 0)
            reference.start(job, places, 0)


@settings(max_examples=60, deadline=None)
@given(st.data(), POLICIES)
@pytest.mark.slow
def test_of_similar_jobs_the_larger_takes_all_that_the_smaller_takes(data, policy):
    """What backfilling relies on when it passes over larger jobs of a class."""
    nodes = data.draw(st.one_of(regular_nodes(features=True), different_nodes()))
    heatmap = Heatmap.parse(HEATMAP.splitlines())
    cluster = Cluster(nodes)
    chosen = make_policy(policy, cluster, heatmap)
    wishes = data.draw(st.lists(jobs(plain=False), min_size=2, max_size=8))
    placed = []
    for number, wish in enumerate(wishes):
        job = Job(id=number, **wish)
        try:
            similar = chosen.similar(job)
        except Infeasible:
            continue
        placement = chosen.place(job, cluster)
        if not placement:
            continue
        if number < 2:
            cluster.book(job, placement, 0)
            placed.clear()
        elif similar:
            placed.append((similar, placement))
    for (kind, size), placement in placed:
        for (other_kind, other_size), larger in placed:
            if kind == other_kind and size <= other_size:
                smaller, all_of_it = Cluster(nodes).copy(), Cluster(nodes).copy()
                smaller.take(Job(0, "a", 1, 1), placement)
                all_of_it.take(Job(0, "a", 1, 1), larger)
                assert smaller.busy0 & ~all_of_it.busy0 == smaller.busy1 & ~all_of_it.busy1 == 0
                assert smaller.busy_cores & ~all_of_it.busy_cores == 0


# ------------------------------------------------------------------------------------- refusals

MIXED = [Node("n0", (4, 4), {"gpu": 2}, frozenset({"fast"})), Node("n1", (2,), {"mem": 8})]


@pytest.mark.parametrize("policy, wish, parts", [
    ("compact", {"procs": 11}, ["11 ranks", "2 node(s)", "compact", "at most 10 of them"]),
    ("spare", {"procs": 6}, ["6 ranks", "spare", "at most 5 of them"]),
    ("strip", {"procs": 6, "exclusive": True}, ["6 ranks", "strip", "at most 5"]),
    ("compact", {"procs": 1, "cores": 5}, ["5 cores of one socket", "at most 4"]),
    ("strip", {"procs": 1, "cores": 3}, ["3 cores of one socket", "at most 2"]),
    ("compact", {"procs": 1, "features": {"big", "fast", "odd"}}, ["no node offers big, odd"]),
    ("compact", {"procs": 1, "resources": {"gpu": 3}}, ["3 of gpu", "at most 2"]),
    ("compact", {"procs": 1, "resources": {"disk": 0.5}}, ["0.5 of disk", "at most 0"]),
    ("compact", {"procs": 3, "resources": {"gpu": 1}}, ["3 ranks", "at most 2 of them"]),
    ("compact", {"procs": 9, "features": {"fast"}}, ["9 ranks", "at most 8 of them"]),
    ("pack", {"procs": 11}, ["11 ranks", "10 cores"]),
    ("pack", {"procs": 4, "cores": 3}, ["4 ranks of 3 core(s)"]),
    ("pack", {"procs": 1, "cores": 5}, ["5 cores of one socket", "4"]),
    ("pack", {"procs": 11, "exclusive": True}, ["11 ranks of 1 core", "10 cores"]),
    ("pack", {"procs": 1, "resources": {"gpu": 3}}, ["3 of gpu", "at most 2", "nearest, n0"]),
    ("pack", {"procs": 3, "resources": {"gpu": 1}}, ["3 ranks", "at most 2 of them"]),
    ("pack", {"procs": 1, "per_node": {"gup": 1}}, ["the job wants 1 of gup on each", "did you mean `gpu`?"]),
    ("pack", {"procs": 1, "resources": {"memory": 4}, "per_node": {"memory": 8}},
     ["a rank wants 4G of memory and the job 8G of memory on each node, a node has at most 0"]),
    ("compact", {"procs": 1, "licences": {"ansys": 3}}, ["3 licence(s) of ansys", "the run has 2"]),
    ("pack", {"procs": 1, "licences": {"ansis": 1}}, ["has none", "did you mean `ansys`?"]),
    ("strip", {"procs": 3, "nodes": (3, 0)}, ["it wants 3 nodes, there are 2"]),
    ("pack", {"procs": 9, "nodes": (1, 1)}, ["9 ranks do not fit on 1 of 2 node(s)"]),
])
def test_jobs_that_can_never_run_are_refused_with_the_reason(policy, wish, parts):
    wish = dict(wish)
    tasks, width = wish.pop("procs"), wish.pop("cores", 1)
    wish = {**wish, "features": frozenset(wish.get("features", ()))}
    asked = Request.of(tasks, width, **wish)
    chosen = make_policy(policy, Cluster(MIXED, {"ansys": 2}))
    for _ in range(2):  # also when asked again
        with pytest.raises(Infeasible) as refused:
            chosen.nodes(Job(1, "ft.B.x", tasks, 1, cores=width, request=asked))
        assert all(part in str(refused.value) for part in parts), str(refused.value)


def test_a_job_that_only_has_to_wait_is_not_refused():
    cluster = Cluster(MIXED)
    policy = make_policy("compact", cluster)
    start(cluster, policy, Job(1, "ft", 10, 1))
    cluster.set_up(0, False)
    assert policy.nodes(Job(2, "ft", 10, 1)) == 2
    assert not policy.place(Job(2, "ft", 10, 1), cluster)


@pytest.mark.parametrize("text, part", [
    ("strop", "did you mean strip"), ("zzz", "known: compact, spare, strip"),
    ("no_such_module:policy", "PYTHONPATH"), ("math:no_such_policy", "no `no_such_policy`"),
    ("math:pi", "not callable"),
])
def test_policies_that_are_not_there(text, part):
    with pytest.raises(PolicyError, match=part):
        make_policy(text, Cluster.regular(1, 1, 1))


def test_a_policy_of_ones_own(tmp_path, monkeypatch):
    """By dotted path: one node per job, the last free one."""
    (tmp_path / "my_placement.py").write_text(
        "from vrm.model import Placement\n"
        "class Last:\n"
        "    def __init__(self, cluster, heatmap):\n"
        "        self.heatmap = heatmap\n"
        "    def nodes(self, job):\n"
        "        return 1\n"
        "    def fits(self, job, pool):\n"
        "        return pool.empty != 0\n"
        "    def place(self, job, cluster):\n"
        "        if not cluster.empty:\n"
        "            return None\n"
        "        last = 1 << (cluster.empty.bit_length() - 1)\n"
        "        return Placement('whole', (last, last), (last,), job.procs)\n"
        "    def similar(self, job):\n"
        "        return None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    cluster = Cluster.regular(3, 1, 2)
    heatmap = Heatmap({})
    policy = make_policy("my_placement:Last", cluster, heatmap)
    assert policy.heatmap is heatmap
    assert [on(start(cluster, policy, Job(i, "ft", 2, 1))) for i in range(2)] == [
        "2:0.0 2:0.1", "1:0.0 1:0.1"]
    scheduler = Scheduler(make_ordering("WFP3"), make_backfilling("easy"), policy)
    waiting = scheduler.new_queue()
    for number in (5, 6, 7):
        waiting.add(Job(number, "ft", 2, 1))
    assert [one.job.id for one in scheduler.step(0, waiting, cluster)] == [5]


# -------------------------------------------------------------------------------------- heatmaps


@given(st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_the_rank_of_a_pair(app, partner):
    heatmap = Heatmap.parse(HEATMAP.splitlines())
    assert heatmap.rank(app, partner) == rank_of_pair(app.split(".")[0], partner.split(".")[0])
    assert heatmap.rank(app.upper(), partner) == heatmap.rank(app, partner)


def test_a_heatmap_file_may_hold_comments_and_blank_lines():
    heatmap = Heatmap.parse(["# who goes with whom", "", "FT.B.x ep ft # best first", "ep ft ep"])
    assert [heatmap.rank(*names) for names in [("ft", "ep"), ("ft", "ft"), ("ep.A.x", "ft.B.x")]
            ] == [1, 2, 1]
    assert heatmap.missing(["ft", "cg.S.x", "ep", "cg"]) == ["cg"]


def test_without_a_heatmap_all_pairs_are_alike():
    heatmap = Heatmap({})
    assert heatmap.rank("ft", "cg") == heatmap.rank("cg", "cg") == 1


@pytest.mark.parametrize("lines, part", [
    (["ft"], "line 1: `ft` has no partners"), (["ft ep", "", "ft ep"], "line 3: `ft` has a line"),
    (["ft ep cg ep"], "line 1: `ep` is twice"),
])
def test_heatmaps_that_are_wrong(lines, part):
    with pytest.raises(ValueError, match=part):
        Heatmap.parse(lines)
