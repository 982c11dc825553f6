"""Efficiency and load in all resources: figures by hand, and laws that hold always."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Cluster, Job, Node
from vrm.model.job import Request
from vrm.ext.study.efficiency import Efficiency, FinishedJob
from vrm.scheduling import make_policy
from vrm.api import Machine, Recording, Rules, simulate
from vrm.workload.submission import Submission

NODES = [Node("a", (16,), {"memory": 16, "gpu": 2}), Node("b", (16,), {"memory": 16, "mic": 2})]


def held(jobs, nodes=NODES):
    """The jobs placed one after the other by pack, as they would run from `start` to `end`."""
    cluster, found = Cluster(nodes), []
    for number, (request, start, end) in enumerate(jobs):
        for other, until in [(other, run.end) for other, run in enumerate(found)]:
            if until <= start and other in cluster.bookings:
                cluster.release(other)
        job = Job(number, "x", request.tasks, 60.0, cores=request.cores_per_task, request=request)
        placement = make_policy("pack", cluster).place(job, cluster)
        assert placement
        cluster.book(job, placement, start)
        found.append(FinishedJob(request, placement, start, end))
    return found


def test_a_job_that_takes_all_cores_and_memory_leaves_the_gpus_idle():
    request = Request.of(16, resources={"memory": 1})
    found = Efficiency(NODES, held([(request, 0, 10)]))
    assert found.jobs == [pytest.approx(32 / 34)]


def test_efficiency_and_load_by_hand():
    """A job of 4 cores, 8 GiB and a GPU on the first node from 0 to 30; one of 8 cores from 10 to 20
    beside it; one of 16 ranks over both nodes from 20 to 40."""
    jobs = [(Request.of(1, 4, resources={"memory": 8, "gpu": 1}), 0, 30), (Request.of(8), 10, 20),
            (Request.of(16), 20, 40)]
    found = Efficiency(NODES, held(jobs))
    assert found.jobs == [pytest.approx(13 / 34), pytest.approx(8 / (34 - 13)),
                          pytest.approx(16 / (34 - 13 + 34))]
    assert [moment.time for moment in found.moments] == [0, 10, 20, 30, 40]
    assert [moment.load["all"] for moment in found.moments] == pytest.approx(
        [13 / 68, 21 / 68, 29 / 68, 16 / 68, 0])
    assert [moment.load["cores"] for moment in found.moments] == pytest.approx(
        [4 / 32, 12 / 32, 20 / 32, 16 / 32, 0])
    assert [moment.load["gpu"] for moment in found.moments] == [0.5, 0.5, 0.5, 0, 0]
    assert [moment.efficiency.get("all") for moment in found.moments] == [
        pytest.approx(13 / 34), pytest.approx(21 / 34), pytest.approx(29 / 68), pytest.approx(16 / 68),
        None]
    assert [moment.efficiency.get("gpu") for moment in found.moments] == [0.5, 0.5, 0.5, None, None]
    assert [moment.nodes["all"] for moment in found.moments] == [1, 1, 2, 2, 0]
    summary = found.summary()
    assert summary["load"]["all"] == pytest.approx((13 + 21 + 29 + 16) / 68 / 4)
    assert summary["load"]["mic"] == 0 and "mic" not in summary["allocation_efficiency_over_time"]
    assert summary["allocation_efficiency_over_time"]["memory"] == pytest.approx(0.5)
    assert summary["allocation_efficiency"]["count"] == 3


def test_at_one_moment_jobs_end_before_others_start():
    request = Request.of(16, resources={"memory": 1})
    found = Efficiency(NODES[:1], held([(request, 0, 10), (request, 10, 20), (request, 20, 20)],
                                       NODES[:1]))
    assert found.jobs == [pytest.approx(32 / 34)] * 3
    assert [moment.load["cores"] for moment in found.moments] == [1, 1, 0]


def test_nothing_ran():
    found = Efficiency(NODES, [])
    assert found.moments == [] and found.summary()["load"]["all"] == 0
    assert found.summary()["allocation_efficiency"]["mean"] is None


@settings(max_examples=40, deadline=None)
@given(wanted=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(0, 20),
                                 st.sampled_from([{}, {"gpu": 1}, {"memory": 2}])), max_size=12),
       order=st.sampled_from(["first-fit", "best-fit", "weighted", "balanced"]))
def test_a_simulation_tells_efficiency_and_load(wanted, order):
    jobs = [Submission(Job(number, "x", procs, float(run), float(submit), resources=resources),
                       float(run)) for number, (procs, run, submit, resources)
            in enumerate(sorted(wanted, key=lambda each: each[2]))]
    outcome = simulate(jobs, Machine(NODES), Rules(policy="pack", backfill="easy", node_order=order),
                       record=Recording(efficiency=True))
    plain = simulate(jobs, Machine(NODES), Rules(policy="pack", backfill="easy", node_order=order))
    assert "load" not in plain.summary and plain.summary["start_hash"] == outcome.summary["start_hash"]
    ran = len(list(outcome.jobs))
    assert outcome.summary["allocation_efficiency"]["count"] == ran
    for name, load in outcome.summary["load"].items():
        assert 0 <= load <= 1
        assert load <= outcome.summary["allocation_efficiency_over_time"].get(name, 0) + 1e-9
    if ran:
        assert 0 < outcome.summary["allocation_efficiency"]["maximum"] <= 1
        assert outcome.efficiency.moments[-1].load["all"] == pytest.approx(0, abs=1e-12)
