"""Draws of run times that are to be slowed down by neighbours must not be slow already."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from vrm.ext.advice.times_alone import works
from vrm.ext.advice.planned_run import plan
from vrm.ext.forecast.replay import replay
from vrm.ext.forecast.draws import likely
from vrm.model import Heatmap, Job, Node
from vrm.model.rules import Rules
from vrm.model.measured.speedups import Speedups
from vrm.results.jobs import JobRow, read_jobs
from vrm.api import Machine, Measurements, Recording, Submission, simulate

NODES = (Node("a1", (2, 2)), Node("a2", (2, 2)), Node("b", (2, 2)))
SPEEDS = Speedups({"cg": {"ep": 0.9, "cg": 0.5}, "ep": {"cg": 0.8, "ep": 1.0}}, {"cg": 1.25, "ep": 1.1})
ORDER = Heatmap.parse(["cg ep cg", "ep cg ep"])


def ran(directory: Path, jobs: list[Submission], policy: str = "strip") -> list[JobRow]:
    """These jobs, as fast as SPEEDS say, and the files that a live run would leave."""
    directory.mkdir(exist_ok=True)
    simulate(jobs, Machine(NODES), Rules(policy=policy, backfill="easy"),
             measured=Measurements(heatmap=ORDER, speedups=SPEEDS if policy == "strip" else None),
             record=Recording(out=directory))
    (directory / "state").write_text(json.dumps({
        "format": 2, "scheduling": Rules(policy=policy).record(),
        "nodes": [{"name": node.name, "sockets": [[None] * size for size in node.sockets], "up": True}
                  for node in NODES]}))
    return list(read_jobs(directory / "jobs.csv"))


@pytest.mark.parametrize("policy", ["strip", "compact"])
def test_the_work_of_jobs_is_found_from_who_was_beside_them(tmp_path: Path, policy: str) -> None:
    rng = random.Random(3)
    jobs = [Submission(Job(number, rng.choice(["cg.A.x", "ep.A.x"]), rng.choice([1, 2, 4, 6]), 500.0,
                           float(10 * number), exclusive=number % 9 == 4), rng.uniform(20, 300))
            for number in range(80)]
    rows = ran(tmp_path, jobs, policy)
    found = works(tmp_path / "jobs.csv", rows, SPEEDS)
    seconds = [found.get(at, row.end - row.start) for at, row in enumerate(rows)]
    assert seconds == pytest.approx([jobs[row.id].run for row in rows], abs=1e-3)
    if policy == "strip":
        slow = [row.end - row.start for row in rows if row.end - row.start > 1.3 * jobs[row.id].run]
        assert len(slow) > 5
    (tmp_path / "state").unlink()
    assert works(tmp_path / "jobs.csv", rows, SPEEDS) == {}


def test_neighbours_do_not_count_twice(tmp_path: Path) -> None:
    """Two programs of 100 s that slow each other down to half: once more they take 200 s, not 400."""
    pairs = [Submission(Job(number, "cg.A.x", 6, 1000.0, 1000.0 * (number // 2)), 100.0) for number in range(20)]
    rows = ran(tmp_path / "logs", pairs)
    assert [row.end - row.start for row in rows] == pytest.approx([200.0] * 20)
    queue = tmp_path / "q.queue"
    queue.write_text("cg.A.x 6 1000 0\ncg.A.x 6 1000 0\nend\n")
    measured = tmp_path / "map.csv"
    measured.write_text("cg\ncg 0.5\n")
    frozen = plan(str(queue), Machine.of(3, 2, 2), Rules(policy="strip"),
                  measured=Measurements(str(measured), history=[tmp_path / "logs"])).frozen
    assert sorted(each.end for each in replay(frozen, likely(frozen)).values()) == pytest.approx([200.0] * 2)
