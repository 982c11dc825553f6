"""strip: two jobs on a node, each with half of each socket, the best partners together."""

from __future__ import annotations

from vrm.model import Cluster, Heatmap, Insufficient, Job
from vrm.scheduling import make_policy


def test_two_jobs_share_a_node_by_halves_of_its_sockets() -> None:
    cluster = Cluster.regular(2, 2, 4)
    policy = make_policy("strip", cluster)
    a, b, c = (Job(number, "a", 8, 60.0, 0.0) for number in range(3))
    first = policy.place(a, cluster)
    cluster.book(a, first, 0.0)
    second = policy.place(b, cluster)
    cluster.book(b, second, 0.0)
    assert list(first.nodes) == list(second.nodes) == [0, 1]
    cores = [{(slot.node, slot.socket, core) for slot in each.slots(cluster.nodes) for core in slot.cores}
             for each in (first, second)]
    assert not cores[0] & cores[1] and len(cores[0] | cores[1]) == 16
    assert isinstance(policy.place(c, cluster), Insufficient)


def test_the_heatmap_says_who_is_next_to_whom() -> None:
    cluster = Cluster.regular(2, 1, 4)
    heatmap = Heatmap({"x": {"good": 1, "bad": 2}, "good": {"x": 1, "bad": 2}, "bad": {"good": 1, "x": 2}})
    policy = make_policy("strip", cluster, heatmap)
    for number, app in enumerate(("bad", "good")):
        job = Job(number, app, 2, 60.0, 0.0)
        cluster.set_up(1 - number, False)
        cluster.book(job, policy.place(job, cluster), 0.0)
        cluster.set_up(1 - number, True)
    assert [list(booking.placement.nodes) for booking in cluster.bookings.values()] == [[0], [1]]
    assert list(policy.place(Job(2, "x", 2, 60.0, 0.0), cluster).nodes) == [1]
