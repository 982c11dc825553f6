"""pack: core by core, so that jobs share nodes."""

from __future__ import annotations

from vrm.model import Cluster, Insufficient, Job
from vrm.scheduling import make_policy


def test_jobs_share_nodes_core_by_core() -> None:
    cluster = Cluster.regular(2, 1, 4)
    policy = make_policy("pack", cluster)
    seen: list[list[int]] = []
    for number, ranks in enumerate((3, 3, 2)):
        job = Job(number, "a", ranks, 60.0, 0.0)
        placement = policy.place(job, cluster)
        cluster.book(job, placement, 0.0)
        seen.append([slot.node for slot in placement.slots(cluster.nodes)])
    assert seen == [[0, 0, 0], [0, 1, 1], [1, 1]] and cluster.taken_cores == 8
    assert isinstance(policy.place(Job(3, "a", 1, 60.0, 0.0), cluster), Insufficient)


def test_an_exclusive_job_has_nodes_of_its_own() -> None:
    cluster = Cluster.regular(2, 1, 4)
    policy = make_policy("pack", cluster)
    cluster.book(Job(0, "a", 1, 60.0, 0.0), policy.place(Job(0, "a", 1, 60.0, 0.0), cluster), 0.0)
    assert list(policy.place(Job(1, "a", 1, 60.0, 0.0, exclusive=True), cluster).nodes) == [1]
