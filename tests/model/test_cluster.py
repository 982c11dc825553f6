"""The model: jobs, nodes, sets of nodes, and the cluster's booking of cores."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reference import (ORDERINGS, POLICIES, different_nodes, pair, places_of, play, regular_nodes,
                       workloads)
from vrm.model import Cluster, Job, JobState, Node, Socket, bits
from vrm.model.booking import Watcher
from vrm.model.node import Device
from vrm.model.placement import CoreLayout
from vrm.scheduling import make_policy

# --------------------------------------------------------------------------------- sets of nodes



def as_bits(numbers):
    return sum(1 << number for number in numbers)


@given(st.one_of(st.integers(0, 2**16), st.integers(0, 2**200)), st.integers(-1, 210))
def test_sets_of_nodes(made, wanted):
    numbers = {number for number in range(201) if made >> number & 1}
    assert as_bits(numbers) == made
    assert list(bits.members(made)) == sorted(numbers)
    assert bits.count(made) == len(numbers)
    assert bits.lowest(made, wanted) == as_bits(sorted(numbers)[:max(0, wanted)])
    assert [n for start, stop in bits.runs(made) for n in range(start, stop)] == sorted(numbers)
    assert all(stop not in numbers and start - 1 not in numbers for start, stop in bits.runs(made))


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=5),
       st.data())
def test_the_numbering_of_cores(shapes, data):
    nodes = [Node(f"n{i}", tuple(shape)) for i, shape in enumerate(shapes)]
    layout = CoreLayout(nodes)
    every = [(node, socket, core) for node, shape in enumerate(shapes)
             for socket, cores in enumerate(shape) for core in range(cores)]
    assert layout.total == len(every) and layout.all == (1 << len(every)) - 1
    chosen = data.draw(st.sets(st.integers(0, len(every) - 1)))
    assert [(node, socket, core) for node, socket, first, stop in layout.spans(as_bits(chosen))
            for core in range(first, stop)] == [every[number] for number in sorted(chosen)]
    for node in range(len(nodes)):
        assert layout.node_cores(node) == as_bits(
            number for number, place in enumerate(every) if place[0] == node)


# ---------------------------------------------------------------------------------- jobs and nodes


@pytest.mark.parametrize("wrong, part", [
    ({"procs": 0}, "at least 1 rank, not 0"), ({"procs": -1}, "not -1"),
    ({"estimate": 0}, "above 0 seconds, not 0"), ({"estimate": -2.5}, "not -2.5"),
    ({"estimate": float("nan")}, "not nan"), ({"cores": 0}, "at least 1 core"),
])
def test_jobs_that_ask_for_nothing_are_refused(wrong, part):
    with pytest.raises(ValueError, match=part):
        Job(**{"id": 1, "app": "ft.B.x", "procs": 1, "estimate": 1, **wrong})


def test_the_kind_of_an_application():
    assert [Job(1, app, 1, 1).kind for app in ("ft.B.x", "ft", "ft.", ".x")] == [
        "ft", "ft", "ft", ""]


def test_which_states_are_ends():
    assert [state.value for state in JobState if not state.ended] == ["queued", "running"]


@pytest.mark.parametrize("sockets", [(), (4, 0), (-1,)])
def test_a_socket_without_cores_is_refused(sockets):
    with pytest.raises(ValueError, match="n7"):
        Node("n7", sockets)


def test_a_cluster_without_nodes_is_refused():
    with pytest.raises(ValueError, match="at least one node"):
        Cluster([])


def test_a_regular_cluster():
    cluster = Cluster.regular(3, 2, 4)
    assert [node.name for node in cluster.nodes] == ["n0", "n1", "n2"]
    assert {node.sockets for node in cluster.nodes} == {(4, 4)}
    assert cluster.cores == 24 and bits.count(cluster.up) == 3


@pytest.mark.parametrize("slots, taken, status", [
    ([None] * 4, 0, "Empty"), ([1, None, 0, None], 2, "Slots"), ([0, 0], 2, "Full")])
def test_the_status_of_a_socket(slots, taken, status):
    socket = Socket(0, slots)
    assert (socket.taken, socket.status) == (taken, status)


# ------------------------------------------------------------------------------------- booking


def state(cluster):
    """All that a cluster keeps of its jobs, down to the last core."""
    return (cluster.up, cluster.busy0, cluster.busy1, cluster.busy_cores, cluster.amounts,
            cluster.bookings, cluster.ends, cluster.tenants, cluster.taken_cores,
            cluster.empty, cluster.free0, cluster.free1, cluster.free_cores,
            [[socket.slots for socket in node] for node in cluster.view()])


@settings(max_examples=60, deadline=None)
@given(st.data(), POLICIES, ORDERINGS, st.booleans())
@pytest.mark.slow
def test_no_core_is_used_twice_and_the_end_is_as_the_beginning(data, policy, ordering, same):
    nodes = data.draw(regular_nodes(features=True) if same else different_nodes())
    pieces = pair(nodes, policy, ordering, "easy", heatmap=True)
    untouched = state(Cluster(nodes))
    for moment in play(*pieces, data.draw(workloads(plain=False))):
        cluster = moment.cluster
        used = [(node, socket, core) for booking in cluster.bookings.values()
                for node, socket, cores in places_of(booking.placement, nodes) for core in cores]
        assert len(used) == len(set(used)) == cluster.taken_cores
        assert all(core < nodes[node].sockets[socket] for node, socket, core in used)
        for booking in cluster.bookings.values():
            places = places_of(booking.placement, nodes)
            assert len(places) == booking.job.procs
            assert all(len(cores) == booking.job.cores for _, _, cores in places)
            touched = list(dict.fromkeys(node for node, _, _ in places))
            assert booking.placement.nodes == touched
            assert booking.placement.node_set == as_bits(touched)
            if booking.job.exclusive:
                assert all(cluster.jobs_on(node) == [booking.job.id] for node in touched)
        for index, node in enumerate(nodes):
            held = {name: sum(booking.job.resources.get(name, 0) for booking in
                              cluster.bookings.values() for place in
                              places_of(booking.placement, nodes) if place[0] == index)
                    for name in node.resources}
            assert all(held[name] <= node.resources[name] for name in held)
    assert not cluster.bookings and state(cluster) == untouched


@settings(max_examples=40, deadline=None)
@given(st.data(), POLICIES)
@pytest.mark.slow
def test_what_is_told_of_nodes_and_ends(data, policy):
    nodes = data.draw(regular_nodes())
    for moment in play(*pair(nodes, policy), data.draw(workloads(late=True))):
        running = moment.reference.running
        ends = sorted((end, job_id) for job_id, (_, _, end) in running.items())
        assert moment.cluster.ends == ends
        assert [booking.job.id for booking in moment.cluster.running()] == [i for _, i in ends]
        for index in range(len(nodes)):
            here = {job_id: end for job_id, (_, places, end) in running.items()
                    if index in [node for node, _, _ in places]}
            assert moment.cluster.jobs_on(index) == sorted(here)
            assert moment.cluster.remaining(index, moment.now) == (
                max(0, min(here.values()) - moment.now) if here else None)


def booked(policy="compact", nodes=2):
    cluster = Cluster.regular(nodes, 1, 4)
    job = Job(7, "ft", 4, 10)
    placement = make_policy(policy, cluster).place(job, cluster)
    return cluster, job, placement, cluster.book(job, placement, 100)


def test_a_booking_tells_start_and_expected_end():
    cluster, job, placement, booking = booked()
    assert (booking.job, booking.placement) == (job, placement)
    assert (booking.start, booking.expected_end) == (100, 110)
    assert cluster.release(7) == booking


@pytest.mark.parametrize("policy", ["compact", "spare", "strip", "pack"])
def test_cores_that_are_taken_cannot_be_booked(policy):
    cluster, _job, placement, _ = booked(policy, nodes=3)
    before = state(cluster)
    with pytest.raises(ValueError, match="job 8: .* not free"):
        cluster.book(Job(8, "cg", 4, 10), placement, 100)
    assert state(cluster) == before
    cluster.release(7)
    for node in placement.nodes:
        cluster.set_up(node, False)
    with pytest.raises(ValueError, match="job 8: .* not free"):
        cluster.book(Job(8, "cg", 4, 10), placement, 100)


def test_a_job_that_runs_cannot_be_booked_again():
    cluster, job, _, _ = booked()
    elsewhere = make_policy("compact", cluster).place(job, cluster)
    before = state(cluster)
    with pytest.raises(ValueError, match="job 7 runs already"):
        cluster.book(job, elsewhere, 100)
    assert state(cluster) == before


def test_a_job_that_does_not_run_cannot_be_released():
    cluster, *_ = booked()
    before = state(cluster)
    with pytest.raises(KeyError):
        cluster.release(8)
    assert state(cluster) == before


@pytest.mark.parametrize("policy", ["compact", "pack"])
def test_a_node_that_goes_down_keeps_its_job_and_takes_no_other(policy):
    cluster, *_ = booked(policy, nodes=1)
    cluster.set_up(0, False)
    cluster.set_up(0, False)
    assert cluster.jobs_on(0) == [7] and cluster.up == 0
    cluster.release(7)
    assert not cluster.empty and not cluster.free_cores
    chosen = make_policy(policy, cluster)
    assert not chosen.place(Job(8, "ft", 1, 1), cluster)
    cluster.set_up(0, True)
    assert chosen.place(Job(8, "ft", 1, 1), cluster)


@pytest.mark.parametrize("policy", ["compact", "strip", "pack"])
def test_a_copy_goes_its_own_way(policy):
    cluster = Cluster([Node("n0", (4,), {"gpu": 2}), Node("n1", (4,), {"gpu": 2})])
    job = Job(7, "ft", 2, 10, resources={} if policy == "pack" else {"gpu": 1})
    placement = make_policy(policy, cluster).place(job, cluster)
    copy = cluster.copy()
    before = state(cluster)
    copy.take(job, placement)
    assert state(cluster) == before
    assert copy.free_cores != cluster.free_cores or copy.empty != cluster.empty
    copy.give(job, placement)
    assert (copy.busy0, copy.busy1, copy.busy_cores, copy.amounts) == (
        cluster.busy0, cluster.busy1, cluster.busy_cores, cluster.amounts)


def test_every_change_has_its_generation():
    cluster, *_ = booked()
    seen = [cluster.generation]
    cluster.release(7)
    seen.append(cluster.generation)
    cluster.set_up(1, False)
    seen.append(cluster.generation)
    assert len(set(seen)) == 3


def test_shares_of_a_resource_come_out_even():
    """0.1 ten times is 1, and what was taken and given back in any order is all there."""
    cluster = Cluster([Node("n0", (16,), {"disk": 1.0}), Node("n1", (16,), {"disk": 0.7})])
    policy = make_policy("strip", cluster)
    jobs = [Job(i, "ft", procs, 1, resources={"disk": 0.1}) for i, procs in enumerate((3, 7, 7))]
    for job in jobs:
        assert policy.nodes(job) == 1
        cluster.book(job, policy.place(job, cluster), 0)
    assert cluster.amounts["disk"] == [0, 0]
    for job_id in (1, 0, 2):
        cluster.release(job_id)
    assert cluster.amounts["disk"] == [1.0, 0.7]


@pytest.mark.parametrize("policy, free", [("compact", 0), ("spare", 0), ("strip", 4), ("pack", 6)])
def test_free_cores_of_a_node(policy, free):
    """What users' node orders look at: 2 ranks on the first of two nodes of 2 x 4 cores."""
    cluster = Cluster.regular(2, 2, 4)
    assert [cluster.free_on(node) for node in (0, 1)] == [8, 8]
    job = Job(1, "ft", 2, 1)
    cluster.book(job, make_policy(policy, cluster).place(job, cluster), 0)
    assert [cluster.free_on(node) for node in (0, 1)] == [free, 8]
    cluster.set_up(1, False)
    assert cluster.free_on(1) == 0


def test_another_end_is_expected_of_a_running_job():
    cluster = Cluster.regular(3, 1, 1)
    policy = make_policy("compact", cluster)
    seen = []

    class Seen(Watcher):
        def revised(self, booking, before):
            seen.append((booking.job.id, booking.expected_end, before))

    cluster.watchers.append(Seen())
    for job_id, seconds in enumerate((10.0, 20.0, 30.0)):
        job = Job(job_id, "x", 1, 100.0, expected=seconds)
        cluster.book(job, policy.place(job, cluster), 5.0)
    assert cluster.ends == [(15.0, 0), (25.0, 1), (35.0, 2)]
    assert cluster.limits == [(105.0, 0), (105.0, 1), (105.0, 2)]
    before, twin = cluster.generation, cluster.copy()
    assert cluster.revise(0, 30.0) is cluster.bookings[0]
    assert cluster.generation > before and seen == [(0, 30.0, 15.0)]
    assert cluster.ends == [(25.0, 1), (30.0, 0), (35.0, 2)]
    assert [each.job.id for each in cluster.running()] == [1, 0, 2]
    cluster.release(0)
    assert cluster.ends == [(25.0, 1), (35.0, 2)] and cluster.limits == [(105.0, 1), (105.0, 2)]
    assert twin.ends == [(15.0, 0), (25.0, 1), (35.0, 2)] and len(twin.limits) == 3
    with pytest.raises(KeyError):
        cluster.revise(0, 40.0)


def test_a_placement_clashes_by_devices_alone() -> None:
    """A job that has ended unseen names GPUs that another one has by now; its cores may be free."""
    cluster = Cluster([Node("n0", (4,), {"gpu": 2}, devices={"gpu": (Device(0, 0), Device(1, 0))})])
    policy = make_policy("pack", cluster)
    one, other = (Job(number, "a", 1, 10.0, resources={"gpu": 1}) for number in range(2))
    held = cluster.book(one, policy.place(one, cluster), 0.0).placement.devices
    place = policy.place(other, cluster)
    assert held and not cluster.clashes(place) and cluster.clashes(place.but(devices=held))
