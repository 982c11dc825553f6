"""The loop that only counts against the engine that books and places every job."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vrm.model import Node
from vrm.api import Machine, Recording, Rules, simulate
from vrm.ext.counting import counting
from vrm.simulation.arguments import by_name
from vrm.ext.counting.counting import CountingSimulator

ROWS = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 5, 9]),  # seconds after the one before
                          st.sampled_from([1, 1, 2, 3, 4, 6, 7, 9]),  # processors
                          st.sampled_from([1, 1, 2, 5, 9, 30]),  # run time
                          st.sampled_from([1, 1, 1.5, 3]),  # the estimate, in run times
                          st.integers(0, 3)), min_size=1, max_size=60)
MACHINES = st.sampled_from([(8, 1, 1, "compact"), (6, 1, 1, "spare"), (7, 1, 1, "strip"),
                            (4, 2, 2, "compact"), (4, 1, 4, "spare"), (3, 1, 3, "pack"),
                            (1, 2, 4, "pack"), (9, 1, 1, "pack")])


def write(path: Path, rows: list[tuple[int, int, int, float, int]], shuffled: bool,
          memory: tuple[int, ...] = (-1,)) -> None:
    """A trace; job numbers fall within an instant if `shuffled`. The jobs ask in turns for so much
    memory (MiB per processor)."""
    at, lines = 0, ["; MaxProcs: 8\n"]
    for number, (gap, procs, run, factor, user) in enumerate(rows, 1):
        at += gap
        job_id = 1000 - number if shuffled else number
        lines.append(f"{job_id} {at} -1 {run} {procs} -1 -1 {procs} {int(run * factor)} "
                     f"{memory[number % len(memory)] * 1024 if memory[0] > 0 else -1} 1 {user} "
                     f"-1 {user % 2} -1 -1 -1 -1\n")
    path.write_text("".join(lines))


def found(trace: Path, **words: Any) -> tuple[dict[str, Any], list[Any], dict[str, int], bytes]:
    """All that a simulation finds and writes, but for the time it took."""
    outcome = simulate(trace, **by_name(dict(out=trace.parent / "out", **words)))
    summary = {key: value for key, value in outcome.summary.items()
               if key not in ("simulated_seconds", "jobs_per_second")}
    jobs = (trace.parent / "out" / "jobs.csv").read_bytes()
    return summary, list(outcome.jobs), outcome.dirt, jobs


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
@settings(max_examples=150, deadline=None)
@given(rows=ROWS, machine=MACHINES, shuffled=st.booleans(),
       algorithm=st.sampled_from(["FCFS", "FCFS", "SJF", "LJF", "n*procs - t"]))
@pytest.mark.slow
def test_counting_finds_what_booking_finds(backfill: str, rows: Any, machine: Any, shuffled: bool,
                                           algorithm: str) -> None:
    nodes, sockets, cores, policy = machine
    runs: list[Any] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        trace = Path(folder) / "trace.swf"
        write(trace, rows, shuffled)
        ran = CountingSimulator.run
        patch.setattr(CountingSimulator, "run", lambda *of: (runs.append(of), ran(*of)))
        words = {"nodes": nodes, "sockets": sockets, "cores": cores, "policy": policy,
                 "backfill": backfill, "algorithm": algorithm}
        counted = found(trace, **words)
        assert len(runs) == 1
        patch.setattr(counting, "why_not", lambda *of: "a test")
        assert found(trace, **words) == counted
        assert len(runs) == 1


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
@settings(max_examples=80, deadline=None)
@given(rows=ROWS, heavy=st.booleans(), impossible=st.booleans(), cores=st.sampled_from([1, 2, 3]))
@example(rows=[(0, 1, 1, 1, 0), (0, 4, 5, 1.5, 0), (0, 6, 1, 1, 0), (1, 1, 1, 1, 0), (0, 1, 1, 1, 0), (0, 7, 5, 1, 0),
               (2, 1, 1, 1, 0), (0, 6, 1, 1, 0), (0, 1, 1, 1, 0), (0, 6, 1, 1, 0), (2, 1, 1, 1, 0), (0, 1, 1, 1, 0),
               (0, 1, 1, 1, 0)], heavy=True, impossible=True, cores=3)  # the engine went on with a policy that knew job 13
@pytest.mark.slow
def test_memory_is_counted_while_a_core_s_share_is_enough(backfill: str, rows: Any, heavy: bool,
                                                          impossible: bool, cores: int) -> None:
    """Jobs that no node holds are refused either way; one that asks for more than its cores' share
    has the run begin again with the engine."""
    memory = (100, 1024, 64, *[3000] * heavy, *[9000] * impossible)
    runs: list[Any] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        trace = Path(folder) / "trace.swf"
        write(trace, rows, False, memory)
        ran = CountingSimulator.run
        patch.setattr(CountingSimulator, "run", lambda *of: (ran(*of), runs.append(of)))

        def found() -> Any:
            machine = [Node(f"n{number}", (cores,), {"memory": float(cores)}) for number in range(4)]
            outcome = simulate(trace, Machine(machine), Rules(policy="pack", backfill=backfill))
            return ({key: value for key, value in outcome.summary.items()
                     if key not in ("simulated_seconds", "jobs_per_second")}, list(outcome.jobs))

        counted = found()
        if not heavy or cores * 1024 < 3000:
            assert len(runs) == 1
        patch.setattr(counting, "why_not", lambda *of: "a test")
        assert found() == counted


def swf(processors: int, jobs: list[tuple[int, int, int, int]]) -> str:
    """A trace of jobs: submission, run time, processors and request."""
    return f"; MaxProcs: {processors}\n" + "".join(
        f"{number} {submit} -1 {run} {procs} -1 -1 {procs} {request} -1 1 1 -1 1 -1 -1 -1 -1\n"
        for number, (submit, run, procs, request) in enumerate(jobs, 1))


def bursts(number: int, sizes: list[int], wide: list[int]) -> list[tuple[int, int, int, int]]:
    """Bursts of jobs, each on an empty machine. In a burst some long jobs run. Wide ones come, each
    followed by narrow ones that are shorter and longer than it, before or about when the first ends."""
    draw, jobs = random.Random(1), []
    for burst in range(number):
        now = 5000 * burst
        for _ in range(draw.choice((2, 3))):
            run = draw.choice((100, 130, 160, 200))
            jobs.append((now, run, draw.choice(sizes), run))
        now += 80
        for _ in range(draw.choice((1, 2))):
            for place in range(draw.choice((4, 5, 6))):
                now += draw.choice((1, 1, 3))
                run = draw.choice((9, 12, 25, 40, 60, 90) if place else (10, 50, 70))
                procs = draw.choice((*[1] * 18, *sizes[:2]) if place else wide)
                jobs.append((now, run, procs, int(run * draw.choice((1, 1, 1, 1, 1.5)))))
    return jobs


ORDERS = ("FCFS", "SJF", "LJF", "SAF", "LAF", "n*procs - t", "-(log10(t)*n + 870*log10(max(s, 0.1)))")


@pytest.mark.parametrize("processors, sizes, wide", [(13, [1, 2, 3, 5, 6], [6, 7, 8, 10]),
                                                     (16, [1, 2, 4, 8], [8, 16])])
@pytest.mark.parametrize("backfill, number", [("easy", 700), ("none", 100), ("conservative", 80)])
def test_shorter_jobs_that_start_as_the_head_take_no_reservation_with_them(
        backfill: str, number: int, processors: int, sizes: list[int], wide: list[int],
        tmp_path: Path) -> None:
    """While nothing ends, heads come, overtake the reserved one and start: the numbers of its
    reservation are no longer right."""
    trace = tmp_path / "trace.swf"
    trace.write_text(swf(processors, bursts(number, sizes, wide)))
    for order in ORDERS:
        counted = {row.id: row.start for row in simulate(trace, rules=Rules(backfill=backfill, algorithm=order)).jobs}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(counting, "why_not", lambda *of: "a test")
            booked = {row.id: row.start for row in simulate(trace,
                                                            rules=Rules(backfill=backfill, algorithm=order)).jobs}
        assert counted == booked, order


@pytest.mark.parametrize("later, starts", [
    # Job 4 is the head, with a reservation at 100 and 1 processor to spare. Job 6 is shorter: it starts
    # as the head and takes that processor. Job 7 would put job 4 off.
    ([(80, 10, 8), (85, 12, 1), (95, 9, 1), (96, 60, 1)], {4: 100, 5: 85, 6: 95, 7: 104}),
    # Job 6 moves the reservation of job 4 to 130, when there is room for job 7, too.
    ([(80, 50, 8), (85, 60, 1), (90, 40, 1), (95, 60, 1)], {4: 130, 5: 85, 6: 90, 7: 95})])
def test_a_reservation_is_made_again_after_another_job_started_as_the_head(
        later: list[tuple[int, int, int]], starts: dict[int, int], tmp_path: Path) -> None:
    trace = tmp_path / "trace.swf"
    trace.write_text(swf(13, [(submit, run, procs, run) for submit, run, procs in (
        (0, 100, 6), (0, 200, 2), (0, 130, 2), *later)]))
    found = simulate(trace, rules=Rules(algorithm="SJF", backfill="easy")).jobs
    assert {row.id: row.start for row in found} == {1: 0, 2: 0, 3: 0, **starts}


def test_a_long_queue(tmp_path: Path) -> None:
    """Thousands of jobs wait, and the list of those that have gone is cut."""
    trace = tmp_path / "trace.swf"
    write(trace, [(0, 1 + number % 5, 1 + number % 7, 2, number % 4) for number in range(4000)],
          False)
    for backfill in ("none", "easy"):
        counted = found(trace, backfill=backfill)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(counting, "why_not", lambda *of: "a test")
            assert found(trace, backfill=backfill) == counted


class Stop:
    """A progress that is interrupted at the third call."""

    calls = 0

    def __call__(self, now: float, ended: int, waiting: int) -> None:
        self.calls += 1
        if self.calls == 3:
            raise KeyboardInterrupt


def test_an_interrupted_run_keeps_what_has_ended(tmp_path: Path) -> None:
    trace = tmp_path / "trace.swf"
    write(trace, [(1, 1 + number % 5, 1 + number % 7, 2, number % 4) for number in range(4000)],
          False)
    counted = simulate(trace, rules=Rules(backfill="easy"), record=Recording(out=tmp_path), progress=Stop())
    assert (tmp_path / "jobs.csv").read_text().count("\n") == len(counted.jobs) + 1
    assert counted.interrupted and 0 < counted.summary["completed"] == len(counted.jobs) < 4000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "why_not", lambda *of: "a test")
        booked = simulate(trace, rules=Rules(backfill="easy"), progress=Stop())
    assert booked.summary["backfilled"] == counted.summary["backfilled"] > 0
    assert list(booked.jobs) == list(counted.jobs)


@pytest.mark.parametrize("words", [
    {"evalys": True}, {"backfill": "conservative-recomputed"}, {"policy": "strip", "cores": 2}, {"kill": True},
    {"keep_estimates": True}, {"interval": 10}, {"algorithm": "WFP3"}, {"watchers": [None]},
    {"nodes": [Node("a", (2,)), Node("b", (4,))], "policy": "compact"}])
def test_whatever_needs_more_than_counts_is_booked(tmp_path: Path, monkeypatch: Any, words: Any
                                                   ) -> None:
    from vrm.api import Watcher
    trace = tmp_path / "trace.swf"
    write(trace, [(0, 1, 5, 2, 1)] * 5, False)
    monkeypatch.setattr(CountingSimulator, "run", lambda *of: pytest.fail("it counts"))
    if "evalys" in words:
        words = {"out": tmp_path / "out", "evalys": True}
    if "watchers" in words:
        words = {"watchers": [Watcher()]}
    assert len(simulate(trace, **by_name({"nodes": 4, **words})).jobs) == 5
