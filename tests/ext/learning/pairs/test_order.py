"""The node order `partners`: few partners, and good ones."""

from __future__ import annotations

import pytest

from vrm.ext.learning.pairs.heatmap import LearnedHeatmap
from vrm.model import Cluster, Heatmap, Job
from vrm.model.measured.speedups import Speedups
from vrm.scheduling import make_policy

SPEEDS = {"good": 1.0, "fair": 0.9, "bad": 0.5}
MEASURED = Speedups({own: {other: SPEEDS.get(other, 1.0) for other in ("x", *SPEEDS)} for own in ("x", *SPEEDS)})


def on_nodes(nodes: int, sizes: dict[str, int], heatmap: Heatmap | None, ranks: int) -> list[str]:
    """Next to whom a job x of so many ranks runs, where others have so many nodes each and no node is empty."""
    cluster = Cluster.regular(nodes, 1, 4)
    policy = make_policy("strip", cluster, heatmap, "partners")
    there: list[str] = []
    for number, (app, size) in enumerate(sizes.items()):
        job = Job(number, f"{app}.A.x", 2 * size, 60.0, 0.0)
        cluster.book(job, policy.place(job, cluster), 0.0)
        there += [app] * size
    return [there[node] for node in policy.place(Job(99, "x.A.x", ranks, 60.0, 0.0), cluster).nodes]


@pytest.mark.parametrize("heatmap", [MEASURED.heatmap(), Heatmap.parse(["x good fair bad"])], ids=["measured", "ranks"])
def test_the_good_partners_that_it_needs_and_of_these_few(heatmap: Heatmap) -> None:
    sizes = {"bad": 3, "good": 1, "fair": 3}
    assert on_nodes(7, sizes, heatmap, 2) == ["good"]
    assert on_nodes(7, sizes, heatmap, 6) == ["fair"] * 3  # next to one `fair` it is as slow as next to three
    assert sorted(on_nodes(7, sizes, heatmap, 8)) == ["fair"] * 3 + ["good"]
    assert sorted(on_nodes(7, sizes, heatmap, 10)) == ["bad"] * 2 + ["fair"] * 3


def test_strip_takes_it_with_a_learned_heatmap_unless_the_rules_name_an_order() -> None:
    def order(heatmap: Heatmap | None, name: str = "auto") -> str:
        return type(make_policy("strip", Cluster.regular(2, 1, 4), heatmap, name).order).__name__
    assert order(LearnedHeatmap([])) == order(None, "partners") == "FewPartners"
    assert order(LearnedHeatmap([]), "heatmap") == order(MEASURED.heatmap()) == order(None) == "ByPartner"


def test_without_a_heatmap_it_has_few_partners() -> None:
    assert on_nodes(6, {"a": 1, "b": 2, "c": 3}, None, 12) == ["c", "c", "c", "b", "b", "a"]
    assert on_nodes(6, {"a": 1, "b": 5}, None, 6) == ["b"] * 3


def test_empty_nodes_are_first() -> None:
    cluster = Cluster.regular(2, 1, 4)
    policy = make_policy("strip", cluster, MEASURED.heatmap(), "partners")
    good = Job(0, "good.A.x", 2, 60.0, 0.0)
    cluster.book(good, policy.place(good, cluster), 0.0)
    assert list(policy.place(Job(1, "x.A.x", 2, 60.0, 0.0), cluster).nodes) == [1]
    assert list(policy.place(Job(1, "x.A.x", 4, 60.0, 0.0), cluster).nodes) == [1, 0]
