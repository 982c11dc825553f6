"""Which cores are lent, what that does to the bookings of a cluster, and when jobs are expected to end:
against counting by hand and plain loops."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Booking, Cluster, Job, Node, bits
from vrm.model.sharing import core_share
from vrm.model.sharing.core_share import NOBODY, Loan
from vrm.model.job import Request
from vrm.model.placement import CorePlacement, Placement
from vrm.model.forms.placement_formats import fault, moved, of_record, of_values, to_record, to_values
from vrm.scheduling import make_policy
from vrm.ext.lending.offers import CannotLend, borrowed, offer, offers

POLICIES = ("compact", "spare", "strip", "pack")


def running(cluster: Cluster, job: Job, policy: str = "compact", now: float = 0.0) -> Booking:
    placement = make_policy(policy, cluster).place(job, cluster)
    assert placement
    return cluster.book(job, placement, now)


def hybrid(number: int, ranks: int, threads: int, seconds: float = 100.0) -> Job:
    return Job(number, "ep.A", ranks, seconds, cores=threads)


def lend(cluster: Cluster, lender: int, now: float, borrower: int = NOBODY, cores: int = 0,
         until: float = math.inf) -> Loan:
    loan = Loan(lender, borrower, offer(cluster, lender, cores).cores, now, until)
    cluster.loans.lend(cluster, loan)
    return loan


def by_rank(cluster: Cluster, booking: Booking) -> dict[int, tuple[int, set[tuple[int, int]]]]:
    return {slot.rank: (slot.node, {(slot.socket, core) for core in slot.cores})
            for slot in cluster.slots(booking)}


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.sampled_from(POLICIES), st.lists(st.integers(2, 6), min_size=1, max_size=3),
       st.integers(1, 3), st.integers(2, 4), st.integers(1, 9), st.booleans(), st.data())
def test_a_lender_gives_equal_cores_of_each_rank_and_keeps_one(
        policy: str, sockets: list[int], nodes: int, threads: int, ranks: int, within: bool,
        data: st.DataObject) -> None:
    cluster = Cluster(Node(f"n{i}", tuple(sockets)) for i in range(nodes))
    placed = make_policy(policy, cluster).place(hybrid(1, ranks, threads), cluster)
    if not placed:
        return
    booking = cluster.book(hybrid(1, ranks, threads), placed, 0.0)
    before = by_rank(cluster, booking)
    assert before == {slot.rank: (slot.node, {(slot.socket, core) for core in slot.cores})
                      for slot in placed.slots(cluster.nodes)}
    each = data.draw(st.integers(1, threads - 1))
    on_a_node = max(sum(node == other for other, _ in before.values()) for node in range(nodes))
    found = offer(cluster, 1, each * on_a_node, within)
    cluster.loans.lend(cluster, Loan(1, NOBODY, found.cores, 10.0, math.inf))
    after = by_rank(cluster, cluster.bookings[1])

    held = {(node, *core) for node, cores in before.values() for core in cores}
    kept = {(node, *core) for node, cores in after.values() for core in cores}
    lent = {(node, socket, core) for node, socket, first, stop in cluster.layout.spans(found.cores)
            for core in range(first, stop)}
    assert lent == held - kept and len(lent) == ranks * each and not lent & kept
    for rank, (node, cores) in after.items():
        assert node == before[rank][0]                            # nobody leaves its node
        assert len(cores) == threads - each >= 1                  # equal, and one at least
        assert len({socket for socket, _ in cores}) == 1
        assert not within or {s for s, _ in cores} == {s for s, _ in before[rank][1]}
    assert sum(len(cores) for _, cores in after.values()) == len(kept)  # each core is one rank's
    if len(set(sockets)) == 1 and not within and policy == "compact":
        # By hand: where the ranks fill equal sockets, as many sockets as can be are lent whole.
        for node in range(nodes):
            here = [rank for rank, (other, _) in before.items() if other == node]
            fits = sockets[0] // (threads - each)
            used = {socket for rank in here for socket, _ in after[rank][1]}
            assert len(used) == math.ceil(len(here) / fits)


SOCKETS = st.sampled_from([(2, 2), (4,), (3, 5), (4, 4)])


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(POLICIES), st.lists(SOCKETS, min_size=1, max_size=9), st.integers(1, 3), st.integers(1, 20),
       st.integers(0, 2), st.randoms(use_true_random=False))
def test_equal_nodes_are_put_together(policy: str, sockets: list[tuple[int, ...]], threads: int, ranks: int,
                                      each: int, random: Random) -> None:
    """Sets of cores of many nodes, and the ranks and cores of a placement, against node by node."""
    cluster = Cluster(Node(f"n{at}", each) for at, each in enumerate(sockets))
    layout = cluster.layout
    nodes = random.getrandbits(len(sockets)) & cluster.up
    cores = random.getrandbits(layout.total) & random.getrandbits(layout.total)
    inside = list(bits.members(nodes))
    assert layout.cores_of(nodes) == sum(map(layout.node_cores, inside))
    few = random.getrandbits(4)
    assert layout.spread(nodes, few) == layout.join(
        (node, few & (1 << sum(sockets[node])) - 1) for node in inside)
    assert layout.shapes == {some: sum(1 << at for at, each in enumerate(sockets) if each == some)
                             for some in set(sockets)}
    for some, here in core_share.by_sockets(cluster.nodes, nodes, layout):
        found = {node: there for group, there in layout.patterns(cores, here) for node in bits.members(group)}
        assert found == {node: layout.on_node(cores, node) for node in inside if sockets[node] == some}

    request = Request.of(ranks, cores_per_task=threads, tasks_per_node=each)
    placed = make_policy(policy, cluster).place(Job(1, "a", ranks, 9, request=request), cluster)
    if not placed:
        return
    groups = core_share.alike(placed, cluster.nodes, layout)
    assert sorted((node, group.ranks, group.cores) for group in groups for node in bits.members(group.nodes)
                  ) == sorted(map(tuple, placed.on_nodes(cluster.nodes)))
    assert all(sockets[node] == group.sockets for group in groups for node in bits.members(group.nodes))
    assert core_share.cores_of(placed, cluster.nodes, layout) == core_share.held(groups, layout)


@settings(max_examples=100, deadline=None)
@given(st.lists(SOCKETS, min_size=2, max_size=5), st.integers(1, 8), st.integers(1, 12), st.integers(1, 3),
       st.tuples(st.integers(1, 3), st.integers(0, 4)), st.integers(0, 3))
def test_a_borrower_fills_the_nodes_by_number(sockets: list[tuple[int, ...]], each: int, ranks: int, threads: int,
                                              nodes: tuple[int, int], per_node: int) -> None:
    cluster = Cluster(Node(f"n{at}", some) for at, some in enumerate(sockets))
    layout = cluster.layout
    running(cluster, Job(1, "a", sum(map(sum, sockets)), 9))
    lent = layout.join((node, (1 << min(each, sum(some) - 1)) - 1) for node, some in enumerate(sockets))
    try:
        request = Request.of(ranks, cores_per_task=threads, nodes=nodes, tasks_per_node=per_node)
    except ValueError:
        return
    found = borrowed(Job(2, "b", ranks, 9, request=request), cluster, [(1, lent)], shrinks=True)
    wanted = None
    for width in range(threads, 0, -1):
        left, taken, used = ranks, 0, 0
        for node in range(len(sockets)):
            here, at = [], layout.node_first[node]
            for count in sockets[node]:
                free = [core for core in range(at, at + count) if lent >> core & 1]
                here += [free[first:first + width] for first in range(0, len(free) - width + 1, width)]
                at += count
            most = min(per_node or ranks, left - max(0, nodes[0] - used - 1))
            here = here[:max(0, most)] if not nodes[1] or used < nodes[1] else []
            left, used = left - len(here), used + bool(here)
            taken |= sum(1 << core for rank in here for core in rank)
        if not left and used >= nodes[0]:
            wanted = width, taken
            break
    assert (found and (found.width, found.taken)) == wanted
    assert found is None or found.node_set == CorePlacement(layout, found.taken, ranks, found.width).node_set


def test_half_of_a_node_is_a_socket_or_a_lane() -> None:
    cluster = Cluster.regular(2, 2, 8)
    running(cluster, hybrid(1, 4, 8))
    assert list(cluster.layout.spans(offer(cluster, 1).cores)) == [
        (0, 1, 0, 8), (1, 1, 0, 8)]  # 16 of 32, a socket of each node
    assert list(cluster.layout.spans(offer(cluster, 1, within=True).cores)) == [
        (0, 0, 4, 8), (0, 1, 4, 8), (1, 0, 4, 8), (1, 1, 4, 8)]  # the second lane


def test_what_cannot_be_lent_is_said_with_what_can() -> None:
    cluster = Cluster.regular(1, 2, 4)
    running(cluster, hybrid(1, 2, 4))
    with pytest.raises(CannotLend, match="2 ranks on a node, and each lends the same number of "
                                      "cores: give 2 or 4 or 6, not 3"):
        offer(cluster, 1, 3)
    with pytest.raises(CannotLend, match="has 8 cores on a node and keeps one for each of its 2 ranks: "
                                      "it lends 6 at most, not 8"):
        offer(cluster, 1, 8)
    other = Cluster.regular(1, 2, 4)
    running(other, hybrid(1, 8, 1))
    with pytest.raises(CannotLend, match="has 1 core for each of its ranks, and each keeps one"):
        offer(other, 1)
    assert list(offers(other, lambda job: True)) == []
    with pytest.raises(ValueError, match="does not have the cores"):
        cluster.loans.lend(cluster, Loan(1, 2, 1 << 8, 0.0, 1.0))
    with pytest.raises(ValueError, match="would keep a rank without a core"):
        cluster.loans.lend(cluster, Loan(1, 2, 0xff, 0.0, 1.0))


def test_a_lend_counts_once_and_room_does_not_change() -> None:
    heard: list[tuple[str, int]] = []

    class Ear:
        def booked(self, booking: Booking) -> None:
            heard.append(("booked", booking.job.id))

        def released(self, booking: Booking) -> None:
            heard.append(("released", booking.job.id))

        def revised(self, booking: Booking, before: float) -> None:
            heard.append(("revised", booking.job.id))

        def nodes_changed(self) -> None:
            raise AssertionError

    cluster = Cluster.regular(2, 2, 2)
    running(cluster, hybrid(1, 2, 2, 100))
    cluster.watchers.append(Ear())
    room = cluster.count_empty(), cluster.free_cores, cluster.taken_cores
    found = offer(cluster, 1)
    second = hybrid(2, 2, 2, 50)
    assert borrowed(second, cluster, [(1, found.cores)]) is None, "two cores are lent"
    placement = borrowed(second, cluster, [(1, found.cores)], shrinks=True)
    assert placement and placement.width == 1
    cluster.book(second, placement, 20.0)
    assert heard == [("revised", 1), ("booked", 2)]
    assert (cluster.count_empty(), cluster.free_cores) == room[:2]
    assert cluster.taken_cores == room[2]
    lender, borrower = cluster.bookings[1], cluster.bookings[2]
    # The borrower has half of its cores: 100 s for 50. The lender does 50 of its 80 s meanwhile.
    assert (borrower.expected_end, borrower.limit) == (120, 120)
    assert (lender.expected_end, lender.limit) == (150, 150)
    assert [job_id for _, job_id in cluster.ends] == [2, 1]
    cluster.release(2)
    cluster.loans.regain(cluster, cluster.loans.of_borrower(2)[0], 60.0)
    assert cluster.bookings[1].expected_end == cluster.bookings[1].limit == 120  # it lost 20 s
    assert [share.since for share in cluster.bookings[1].shares] == [20, 60]
    assert by_rank(cluster, cluster.bookings[1])[0][1] == {(0, 0), (0, 1)}
    cluster.release(1)
    assert cluster.count_empty() == 2 and not cluster.ends and not cluster.limits


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 50), st.sampled_from([0.25, 0.5, 0.75, 1.0])), max_size=5),
       st.floats(0, 60), st.floats(0, 100))
def test_work_and_finish_are_each_others_inverse(steps: list[tuple[float, float]], now: float,
                                                 left: float) -> None:
    plan, at = [(0.0, 0.5)], 0.0
    for seconds, speed in steps:
        at += seconds
        plan.append((at, speed))
    end = core_share.finish(plan, now, left)
    assert core_share.work(plan, now, end) == pytest.approx(left, abs=1e-6)
    # By small steps.
    done, time, step = 0.0, now, 0.02
    while done < left:
        done += step * [speed for since, speed in plan if since <= time + 1e-9][-1]
        time += step
    assert end == pytest.approx(time, abs=0.1)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 20), st.floats(1, 60)), min_size=1, max_size=5),
       st.lists(st.booleans(), min_size=12, max_size=12))
def test_expected_ends_are_those_of_a_plain_integral(lends: list[tuple[float, float]],
                                                     backs: list[bool]) -> None:
    """One rank of 8 cores lends one core after the other and has some of them back, sooner or later
    than was expected."""
    cluster = Cluster.regular(1, 1, 8)
    running(cluster, hybrid(1, 1, 8, 300))
    now, loans, past = 0.0, [], []
    choices = iter(backs)
    for pause, length in lends:
        now += pause
        past.append((now, 1 - len(loans) / 8))
        if loans and next(choices):
            back = loans.pop(0)
            cluster.loans.regain(cluster, back, now)
        else:
            core = offer(cluster, 1, 1).cores
            loans.append(Loan(1, NOBODY, core, now, now + length))
            cluster.loans.lend(cluster, loans[-1])
    # What was done until now, at the speeds of then; what comes, as it is expected.
    done, before = 0.0, 0.0
    for time, speed in past:
        done += (time - before) * speed
        before = time
    left, time = 300 - done, now
    for loan in sorted(loans, key=lambda each: each.until):
        speed = 1 - sum(other.until > time for other in loans) / 8
        if loan.until <= time:
            continue
        if left <= (loan.until - time) * speed:
            break
        left -= (loan.until - time) * speed
        time = loan.until
    speed = 1 - sum(other.until > time for other in loans) / 8
    assert cluster.bookings[1].expected_end == pytest.approx(time + left / speed)
    lost = sum((until - since) * (1 - core_share.rate(
        cluster.loans.ranks(cluster, cluster.bookings[1]), share.lent, cluster.layout, 8))
        for share, since, until in zip(cluster.bookings[1].shares,
                                       [share.since for share in cluster.bookings[1].shares],
                                       [*(share.since for share in cluster.bookings[1].shares[1:]), now]))
    assert cluster.loans.lost(cluster, cluster.bookings[1], now) == pytest.approx(lost)


@pytest.mark.parametrize("policy", POLICIES)
def test_who_outlives_its_lender_has_the_lenders_room(policy: str) -> None:
    cluster = Cluster.regular(2, 2, 4)
    empty = cluster.what_if()
    running(cluster, hybrid(1, 4 if policy in ("compact", "pack") else 2, 4 if policy != "strip"
                            and policy != "spare" else 2, 100), policy)
    on = cluster.bookings[1].placement.node_set
    found = offer(cluster, 1)
    guest = hybrid(2, 1, 1, 500)
    placement = borrowed(guest, cluster, [(1, found.cores)])
    assert placement
    cluster.book(guest, placement, 0.0)
    assert cluster.bookings[1].gives == 500  # as long as that has its room
    assert cluster.bookings[1].expected_end < 500
    cluster.release(1)
    left = cluster.bookings[2]
    here = placement.node_set
    assert cluster.empty == empty.up & ~here and here & on == here
    assert not cluster.loans.all
    other = hybrid(3, 1, 1)
    where = make_policy(policy, cluster).place(other, cluster)
    assert where is not None  # and policies go on with what is free
    cluster.book(other, where, 200.0)
    assert {(slot.node, slot.socket, core) for slot in cluster.slots(left) for core in slot.cores} \
        .isdisjoint((slot.node, slot.socket, core)
                    for slot in cluster.slots(cluster.bookings[3]) for core in slot.cores)
    cluster.release(3)
    cluster.release(2)
    assert (cluster.busy0, cluster.busy1, cluster.busy_cores) == (0, 0, 0)
    assert cluster.empty == cluster.up and not cluster.tenants


def test_of_two_borrowers_on_a_node_the_longer_one_has_the_room() -> None:
    cluster = Cluster.regular(1, 1, 4)
    running(cluster, hybrid(1, 1, 4, 100))
    for number, seconds in ((2, 200.0), (3, 300.0)):
        guest = hybrid(number, 1, 1, seconds)
        placement = borrowed(guest, cluster, [(1, offer(cluster, 1, 1).cores)])
        assert placement
        cluster.book(guest, placement, 0.0)
    cluster.release(1)
    assert cluster.bookings[3].gives == 300 and cluster.busy0 == 1
    cluster.release(3)
    assert cluster.busy0 == 1, "the other one is still there"
    cluster.release(2)
    assert (cluster.busy0, cluster.busy1) == (0, 0) and not cluster.loans.all


def test_a_copy_lends_on_its_own() -> None:
    cluster = Cluster.regular(1, 1, 4)
    running(cluster, hybrid(1, 1, 4))
    twin = cluster.copy()
    loan = lend(twin, 1, 10.0)
    assert not cluster.loans and cluster.bookings[1].shares == ()
    again = twin.copy()
    twin.loans.regain(twin, loan, 20.0)
    assert again.loans.all == [loan] and again.bookings[1].shares[-1].lent == loan.cores


def forms(placement: Placement, cluster: Cluster) -> list[Placement]:
    return [of_record(to_record(placement), cluster.layout),
            of_values(to_values(placement), cluster.layout)]


def test_a_borrowed_placement_survives_its_forms() -> None:
    cluster = Cluster.regular(2, 1, 4)
    running(cluster, hybrid(1, 2, 4))
    placement = borrowed(hybrid(2, 2, 2), cluster, [(1, offer(cluster, 1).cores)])
    assert placement
    for found in forms(placement, cluster):
        assert found.lease is not None
        assert (found.taken, found.procs, found.width, found.lent) == (
            placement.taken, placement.procs, placement.width, placement.lent)
    assert bits.count(placement.taken) == 4 and placement.nodes == [0, 1]
    other = Cluster(reversed(cluster.nodes))
    there = moved(placement.but(frequency=2.5), (cluster.nodes, cluster.layout), (other.nodes, other.layout))
    assert there is not None and (there.frequency, there.procs, there.width) == (2.5, 2, 2)
    assert [lender for lender, _ in there.lent] == [1]
    back = moved(there, (other.nodes, other.layout), (cluster.nodes, cluster.layout))
    assert back is not None and (back.taken, back.lent) == (placement.taken, placement.lent)


def test_a_placement_stays_as_it_was_when_its_ranks_get_more_cores() -> None:
    cluster = Cluster.regular(1, 1, 4)
    placement = core_share.borrowed_placement(cluster.layout, 0b11, 2, 1, ((7, 0b11),))
    wide = core_share.grow(placement, 0b1111, 2, 5.0)
    again = core_share.grow(wide.but(room=(1, 1, 0)), 0b1111, 2, 8.0)
    assert (placement.cores, placement.grown, wide.cores, wide.lent) == (2, (), 4, placement.lent)
    assert wide.at_start is placement and again.at_start is placement and again.size == 1
    assert [(begin, end, then.cores) for begin, end, then in core_share.periods(again, 1.0, 9.0)] == [
        (1.0, 5.0, 2), (5.0, 8.0, 4), (8.0, 9.0, 4)]


def test_a_guest_takes_its_own_amounts_and_its_own_nodes() -> None:
    cluster = Cluster(Node(f"n{i}", (4,), {"memory": 8}) for i in range(2))
    running(cluster, Job(1, "ep.A", 2, 100, cores=4, resources={"memory": 5}))
    found = offer(cluster, 1)
    fits = Job(2, "cg.A", 2, 10, cores=2, resources={"memory": 3})
    large = Job(3, "cg.A", 2, 10, cores=2, resources={"memory": 4})
    assert borrowed(large, cluster, [(1, found.cores)]) is None
    placement = borrowed(fits, cluster, [(1, found.cores)])
    assert placement
    cluster.book(fits, placement, 0.0)
    assert cluster.amounts["memory"] == [0, 0]
    cluster.release(2)
    assert cluster.amounts["memory"] == [3, 3]
    both = Job(4, "cg.A", 2, 10, request=Request.of(2, nodes=(2, 2)))
    where = borrowed(both, cluster, [(1, found.cores)])
    assert where is not None and where.nodes == [0, 1]


def test_what_a_job_could_lend_is_where_it_runs_now() -> None:
    """It was asked before, nobody lent anything, and it starts again elsewhere."""
    cluster = Cluster.regular(2, 1, 4)
    job = hybrid(1, 1, 4)
    first, second = (Placement.of_cores(cluster.layout, 0xf << 4 * node, 1, 4) for node in (0, 1))
    cluster.book(job, first, 0.0)
    assert offer(cluster, 1).cores == 0xc
    cluster.release(1)
    cluster.book(job, second, 1.0)
    assert offer(cluster, 1).cores == 0xc0


def test_a_job_on_lent_and_on_free_cores_holds_the_free_ones_also_after_a_restart() -> None:
    cluster = Cluster.regular(3, 1, 4)
    running(cluster, hybrid(1, 1, 4))
    where = core_share.borrowed_placement(cluster.layout, 0xff, 2, 4, ((1, 0xf),)).but(room=(2, 2, 0))
    record = to_record(where)
    again = of_record(record, cluster.layout)
    assert (again.room, again.taken, again.lent) == ((2, 2, 0), 0xff, ((1, 0xf),))
    assert fault(record, hybrid(2, 2, 4), [(node.name, node.sockets) for node in cluster.nodes]) == ""
    wrong = {**record, "room": ["0x2", "2"]}
    assert "its room is wrong" in fault(wrong, hybrid(2, 2, 4), [(node.name, node.sockets) for node in cluster.nodes])
    cluster.book(hybrid(2, 2, 4), where, 1.0)
    assert (cluster.free0, cluster.busy0) == (4, 3) and cluster.loans.rate(cluster, cluster.bookings[1]) == 0
    assert list(cluster.slots(cluster.bookings[1])) == [] and cluster.bookings[1].limit == 200.0
    with pytest.raises(ValueError, match="not free"):
        cluster.book(hybrid(3, 1, 4), core_share.borrowed_placement(cluster.layout, 0xf0, 1, 4, ()).but(room=(2, 2, 0)), 1.0)
    cluster.release(1)  # the lender ends first: the borrower has its node
    assert (cluster.free0, cluster.bookings[2].placement.room) == (4, (3, 3, 0))
    cluster.release(2)
    assert cluster.free0 == 7 and not cluster.loans
