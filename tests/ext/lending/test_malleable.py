"""Workloads of which a share is malleable, and what a run of them says."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from vrm.model import Cluster
from vrm.model.job import Job
from vrm.ext.lending.simulated.sharing import slowdowns
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.scheduling.registry import PolicyError
from vrm.api import Machine, Recording, Rules, simulate
from vrm.simulation.arguments import by_name
from vrm.ext.generate.lublin import Lublin
from vrm.ext.lending.simulated.malleable import HybridWorkload
from vrm.workload.submission import Submission

JOBS = [Submission(Job(number, "a", 1 + number % 40, 100.0), 50.0) for number in range(1, 201)]


def malleable(share: float, seed: int = 1) -> set[int]:
    return {one.job.id for one in HybridWorkload(JOBS, Cluster.regular(10, 2, 8), share, seed)
            if one.job.malleable}


def test_the_jobs_of_a_smaller_share_are_among_those_of_a_larger_one() -> None:
    assert malleable(0.0) == set() and len(malleable(1.0)) == 200
    assert malleable(0.2) < malleable(0.5) < malleable(0.8)
    assert 20 < len(malleable(0.2)) < 60
    assert malleable(0.5) == malleable(0.5) != malleable(0.5, seed=2)


def test_a_job_has_a_rank_on_each_socket_of_as_large_a_part_of_the_machine() -> None:
    cluster = Cluster.regular(10, 2, 8)
    jobs = [one.job for one in HybridWorkload(JOBS, cluster, 1.0)]
    assert [(job.procs, job.cores) for job in jobs[:3]] == [(2, 8), (2, 8), (2, 8)]
    assert [job.procs for job in jobs[14:18]] == [2, 4, 4, 4]  # 16, 17, 18 and 19 cores
    half = [one.job for one in HybridWorkload(JOBS, cluster, 1.0, processors=20)]
    assert [job.procs for job in half[:5]] == [2, 4, 4, 6, 6]  # 2 to 6 of 20 processors are 1 to 3 nodes
    assert all(job.procs <= 20 for job in half)


@pytest.mark.parametrize("machine, share, words", [
    ({"nodes": 4}, 1.0, "a rank on a socket of 1 core has none to lend"),
    ({"nodes": 4, "sockets": 2, "cores": 4}, 1.5, "a share of the jobs is from 0 to 1, not 1.5")])
def test_what_cannot_be_is_said(machine: dict, share: float, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        simulate(JOBS, **by_name(dict(malleable=share, backfill="sd", **machine)))


def test_a_run_says_who_borrowed_and_who_lent_and_repeats_byte_for_byte(tmp_path: Path) -> None:
    long, short = 3600.0, 60.0
    jobs = [Submission(Job(number, "a", 32, long if number < 5 else short, 10.0 * number),
                       long if number < 5 else short) for number in range(1, 13)]
    outcomes = [simulate(jobs, Machine.of(4, sockets=2, cores=8), Rules(malleable=1.0, backfill="sd"),
                         record=Recording(out=tmp_path / name)) for name in ("first", "second")]
    files = [(tmp_path / name / "jobs.csv").read_bytes() for name in ("first", "second")]
    assert files[0] == files[1]
    rows = list(csv.DictReader((tmp_path / "first" / "jobs.csv").open()))
    borrowers = {row["id"]: row["mates"] for row in rows if row["mates"]}
    summary = outcomes[0].summary
    assert summary["borrowers"] == len(borrowers) > 3
    mates = {mate for cell in borrowers.values() for mate in cell.split(",")}
    assert summary["lenders"] == len(mates)
    lent = {row["id"]: float(row["lent"]) for row in rows if row["lent"]}
    assert set(lent) == mates and all(row["malleable"] == "1" for row in rows)
    # Every core has one job at a time: 32 cores of each job that has them for itself, and of lenders all
    # that they hold, of which borrowers take none.
    held = sum(32 * (float(row["end"]) - float(row["start"])) for row in rows if not row["mates"])
    assert summary["utilisation"] == pytest.approx(held / (64 * summary["makespan"])) and held > 0
    # Two nodes of 16 cores, half of them for twice 60 s, for each job that borrowed of the mate.
    for mate in mates:
        loans = sum(mate in cell.split(",") for cell in borrowers.values())
        assert lent[mate] == loans * 2 * 8 * 120
    by_run = slowdowns(outcomes[0].jobs, {one.job.id: one.run for one in jobs})
    assert summary["average_slowdown_full_cores"] == pytest.approx(by_run.slowdown)
    assert by_run.slowdown > summary["slowdown"]["mean"], "a stretched run is not a merit"


@pytest.mark.parametrize("backfill", ["easy", "sd"])
def test_whole_nodes_are_counted_under_pack(backfill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the schedule that a look at each core has, which takes many times as long."""
    jobs = list(Lublin(256, load=1.2).jobs(60, 1))

    def starts(**how: str) -> str:
        outcome = simulate(jobs, Machine.of(16, 2, 8),
                           Rules(**{"policy": "pack", "malleable": 1.0, "backfill": backfill, **how}))
        return str(outcome.summary["start_hash"])

    by_core = starts(node_order="first-fit")
    monkeypatch.setattr(CorePolicy, "place", lambda *_: pytest.fail("it looks at cores"))
    assert starts() == by_core


def test_the_two_models_of_speed_differ_only_where_a_mate_ends_first() -> None:
    jobs = [Submission(Job(1, "a", 16, 1000.0), 1000.0), Submission(Job(2, "a", 16, 100.0, 10.0), 100.0)]
    ends = [[job.end for job in simulate(jobs, Machine.of(1, 2, 8), Rules(
        malleable=1.0, backfill="sd", shared_speed=speed)).jobs] for speed in ("ideal", "worst")]
    assert ends[0] == ends[1] == [210.0, 1100.0]
