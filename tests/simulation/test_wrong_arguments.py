"""What `simulate` says of arguments that cannot be, and where they are refused."""

from typing import Any

import pytest

from vrm.api import Job, Machine, Outage, PolicyError, Recording, Rules, Selection, Submission, Timetable, simulate
from vrm.simulation.inputs import WorkloadError

ONE = [Submission(Job(1, "a", 1, 10.0), 10.0)]
FOUR = Machine.of(4)


@pytest.mark.parametrize("given, error, says", [
    ({"workload": 5}, WorkloadError, "the workload is 5; give a file, lublin:PROCESSORS:JOBS, or submissions"),
    ({"workload": ONE}, WorkloadError, r"does not say how large the machine is .*; give a machine, as Machine.of\(nodes=8\)"),
    ({"workload": ONE * 2, "machine": FOUR}, WorkloadError, "job 1 comes twice; give each job an id of its own"),
    ({"workload": [Submission(Job(1, "a", 2.0, 10.0), 10.0)], "machine": FOUR}, WorkloadError,  # type: ignore[arg-type]
     "job 1 of 2.0 ranks: both are whole numbers"),
    ({"workload": ONE, "machine": FOUR, "rules": "easy"}, PolicyError, "rules: expected Rules, such as .*, got 'easy'"),
    ({"workload": ONE, "machine": FOUR, "timetable": Timetable(outages=[Outage(4, 5.0)])}, ValueError,
     r"Outage\(node=4, .*expected a node from 0 to 3"),
    ({"workload": ONE, "machine": FOUR, "timetable": Timetable(outages=[Outage(1, 5.0, 2.0)])}, ValueError,
     r"back \(up\) after it was lost \(down\)"),
    ({"workload": ONE, "machine": FOUR, "rules": Rules(algorithm=3)}, PolicyError, "`int` makes no ordering: give a function"),
])
def test_a_wrong_argument_is_refused(given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        simulate(**given)


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_selection_has_at_least_one_job(jobs: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 job, not {jobs}"):
        Selection(jobs=jobs)


def test_jobs_of_numpy_numbers_are_simulated() -> None:
    numpy = pytest.importorskip("numpy")
    jobs = [Submission(Job(numpy.int64(1), "a", numpy.int64(2), 10.0), 10.0)]
    assert simulate(jobs, FOUR).summary["jobs"] == 1


def test_an_outcome_is_shown_in_one_line() -> None:
    assert repr(simulate(ONE, FOUR)) == (
        "<Outcome of FCFS + EASY, pack: 1 jobs, mean wait 0.00 s, utilisation 0.250; `summary` has all metrics>")


def test_backfilled_jobs_are_counted_like_all_others_between_warm_up_and_cool_down() -> None:
    jobs = [Submission(Job(1, "a", 3, 100.0, 0.0), 100.0), Submission(Job(2, "a", 4, 100.0, 1.0), 100.0)]
    jobs += [Submission(Job(number, "a", 1, 5.0, number), 5.0) for number in (3, 10, 50, 80)]  # all are backfilled
    assert simulate(jobs, FOUR).summary["backfilled"] == 4
    summary = simulate(jobs, FOUR, record=Recording(warm_up=10.0, cool_down=20.0)).summary
    assert (summary["jobs"], summary["backfilled"]) == (2, 2)
