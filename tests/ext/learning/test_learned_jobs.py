"""Lines of jobs.csv as observations: the key of an input, CPU time and memory, neighbours."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from vrm.ext.learning.learned_jobs import NEIGHBOURS, input_of, learned, machine_of, overlaps
from vrm.results.jobs import JobRow

ROW = JobRow(3, "a.x", 4, 0.0, 10.0, 30.0, 60.0, "completed", 0, nodes="n1", cores="n1:0/0-3")


@pytest.mark.parametrize("said, key", [
    ({}, ""), ({"args": "-n 3"}, "-n 3"), ({"name": "big", "dir": "case1", "args": "-n 3"}, "-n 3"),
    ({"args": "-i in.7 -n 17", "index": 7}, "-i in.%i -n 17"), ({"dir": "part.7", "index": 7}, "part.%i"), ({"name": "big"}, "")])
def test_what_tells_inputs_apart(said: dict[str, object], key: str) -> None:
    assert input_of(replace(ROW, **said)) == key  # type: ignore[arg-type]


def test_a_line_as_an_observation() -> None:
    row = replace(ROW, cpu_time=72.5, largest_process="100M")
    found = learned(row, "r")
    assert found is not None
    assert (found.cores, found.cpu, found.memory, found.seconds, found.used) == (4, 72.5, 100 << 20, 20.0, 3.625)
    assert found.steady and not replace(found, cpu=None).used
    more = learned(replace(row, memory_peak="2G", mates="5"), "r")
    assert more is not None and more.memory == 2 << 30 and not more.steady
    assert learned(replace(ROW, start=None), "r") is None
    odd = learned(replace(ROW, largest_process="much"), "r")
    assert odd is not None and odd.cpu is None and odd.memory is None


def test_the_name_of_a_machine() -> None:
    assert machine_of([["node01.site", [10, 10]], ["node02", [10, 10]]]) == "node 10+10"
    assert machine_of([["7", [4]], ["fat1", [8, 8], {}], ["thin1", [4]]]) == "7 4, fat 8+8, thin 4"


def test_neighbours_are_those_of_plain_loops() -> None:
    chance = random.Random(5)
    for _ in range(50):
        rows = [replace(ROW, id=number, start=start, end=start + chance.uniform(0, 30),
                        nodes=chance.choice(["n1", "n2", "n[1-2]"])) for number, start in
                enumerate(chance.uniform(0, 100) for _ in range(chance.randint(0, 12)))]
        batch = set(chance.sample(range(len(rows)), chance.randint(0, len(rows))))
        found = {(each.job, each.other): each.seconds for each in overlaps(batch, rows)}
        expected = {}
        for one in rows:
            of_one = {}
            for other in rows:
                together = min(one.end or 0, other.end or 0) - max(one.start or 0, other.start or 0)
                if one.id != other.id and together > 0 and (one.nodes == other.nodes or "[" in one.nodes + other.nodes):
                    of_one[other.id] = together
            if one.id in batch:
                for other_id in sorted(of_one, key=of_one.__getitem__, reverse=True)[:NEIGHBOURS]:
                    expected[one.id, other_id] = expected[other_id, one.id] = of_one[other_id]
        assert found == pytest.approx(expected)


def test_a_long_run_has_no_more_to_compare_than_jobs_that_met() -> None:
    """All jobs of a run that is continued are a batch: pairs that never met must not be looked at."""
    class Counted(float):
        compared = 0

        def __lt__(self, other: float) -> bool:
            Counted.compared += 1
            return float(self) < float(other)

    rows = [replace(ROW, id=number, start=Counted(number), end=Counted(number + 1.5), nodes="n1") for number in range(2000)]
    assert len({(each.job, each.other) for each in overlaps(range(2000), rows)}) == 2 * 1999
    assert 0 < Counted.compared < 100 * 2000
