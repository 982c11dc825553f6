"""The turn that the manager's loop and the simulator's have in common, with a driver that only notes what it is told."""

from __future__ import annotations

from collections.abc import Sequence

from vrm.model import Cluster, Job, JobState
from vrm.model.job import PLAIN, Details
from vrm.run.entry import DroppedJob
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, Start, make_backfilling, make_ordering, make_policy


class Noting:
    """Carries nothing out, but the ends of jobs that will not run."""

    def __init__(self) -> None:
        cluster = Cluster.regular(1, 1, 4)
        scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"), make_policy("pack", cluster))
        self.run = Run(State(scheduler.new_queue(), cluster), scheduler)
        self.told: list[tuple[str, int]] = []

    def submit(self, job_id: int, walltime: float, details: Details = PLAIN) -> None:
        self.run.state.submit([Job(job_id, "a", 1, walltime, 0.0)], details)

    def start(self, start: Start, now: float) -> None:
        self.told.append(("starts", start.job.id))

    def drop(self, dropped: Sequence[DroppedJob], cause: str) -> None:
        assert cause == "deadline"
        for job, reason in dropped:
            self.told.append(("dropped", job.id))
            self.run.state.end(job.id, JobState.CANCELLED, 0.0, reason)

    def postpone(self, jobs: Sequence[Job], now: float) -> None:
        self.told += [("put off", job.id) for job in jobs]


def test_what_would_end_after_its_deadline_does_not_start_though_there_is_room() -> None:
    driver = Noting()
    driver.submit(0, 100.0, Details(more={"deadline": 50.0}))
    driver.submit(1, 100.0, Details(more={"deadline": 100.0}))
    driver.submit(2, 100.0)
    driver.run.turn(0.0, driver)
    assert driver.told == [("dropped", 0), ("starts", 1), ("starts", 2)]


def test_what_would_end_after_the_allocation_is_put_off_and_nothing_starts_at_its_end() -> None:
    driver = Noting()
    driver.submit(0, 100.0)
    driver.submit(1, 20.0)
    driver.run.turn(0.0, driver, end=50.0)
    assert driver.told == [("put off", 0), ("starts", 1)]
    driver.submit(2, 20.0)
    driver.run.turn(50.0, driver, end=50.0, fits=False)
    assert driver.told[2:] == []
    driver.run.turn(40.0, driver, end=50.0, fits=False)
    assert driver.told[2:] == [("starts", 2)]
