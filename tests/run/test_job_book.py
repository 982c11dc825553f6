"""The jobs of a run against a plain model: who is eligible, who is dropped, whatever happens."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vrm.model import Dependency, Job, JobState
from vrm.model.job import ANY, FAIL, OK, START, Details
from vrm.model.quantities import fold
from vrm.run.job_book import JobBook
from vrm.run.entry import JobStateError
from vrm.scheduling import make_ordering
from vrm.scheduling.orderings.queue import JobQueue


class Books(RuleBasedStateMachine):
    """The model asks each time anew, of all jobs, what the book keeps up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.book = JobBook(JobQueue(make_ordering("FCFS"), lambda job: 1))
        self.states: dict[int, JobState] = {}
        self.after: dict[int, list[Dependency]] = {}
        self.held: dict[int, bool] = {}
        self.deadline = math.inf
        self.now = 0.0
        self.begun: dict[int, float] = {}
        self.begin: dict[int, int] = {}
        self.until: dict[int, float] = {}
        self.jobs: list[Job] = []

    def waiting(self) -> list[int]:
        return [i for i, state in self.states.items() if state is JobState.QUEUED]

    def settle(self, now: float) -> list[int]:
        """Drop what can never run, in turn; the ids."""
        dropped = []
        changed = True
        while changed:
            changed = False
            for i in self.waiting():
                if any(self.states[other].ended and d.kind in (OK, FAIL)
                       and (self.states[other] is JobState.COMPLETED) == (d.kind == FAIL)
                       for d in self.after[i] for other in d.ids):
                    self.states[i] = JobState.CANCELLED
                    self.begun.setdefault(i, now)
                    dropped.append(i)
                    changed = True
        return dropped

    def open(self, number: int) -> list[int]:
        """The jobs, once for each thing, of which something is still wanted."""
        return [other for d in dict.fromkeys(self.after[number]) for other in d.ids
                if (other not in self.begun if d.kind == START else not self.states[other].ended)]

    def begins(self, number: int) -> float:
        """When the time of a job comes that waits for nothing."""
        return max([self.jobs[number].submit + self.begin[number], *(
            self.begun[other] + d.delay for d in self.after[number] if d.kind == START for other in d.ids)])

    @rule(estimate=st.integers(1, 20), held=st.booleans(), begin=st.sampled_from([0, 0, 3]),
          until=st.sampled_from([0, 0, 20, 25]), data=st.data())
    def enter(self, estimate: int, held: bool, begin: int, until: int, data: st.DataObject) -> None:
        number = len(self.jobs)
        job = Job(number, "a.x", 1, float(estimate), self.now)
        after = data.draw(st.lists(st.builds(
            lambda ends, step, kind, delay: Dependency(range(min(ends), max(ends) + 1, step), kind,
                                                       delay=delay if kind == START else 0.0),
            st.tuples(*[st.integers(0, number - 1)] * 2), st.integers(1, 3), st.sampled_from((OK, ANY, START, FAIL)),
            st.sampled_from([0.0, 2.0])), max_size=3)) if number else []
        if number and data.draw(st.booleans()):
            after = self.after[number - 1]  # as the jobs of an array
        self.jobs.append(job)
        self.states[number], self.after[number], self.held[number] = JobState.QUEUED, after, held
        self.begin[number] = begin
        self.until[number] = self.now + until if until else math.inf
        more = {key: value for key, value in (("begin", begin), ("deadline", until)) if value}
        dropped = self.book.enter(job, Details(tuple(after), held=held, more=more))
        assert sorted(each.job.id for each in dropped) == sorted(self.settle(self.now))

    @precondition(lambda self: len(self.book.queue))
    @rule(data=st.data(), state=st.sampled_from([None, *(s for s in JobState if s.ended)]))
    def run(self, data: st.DataObject, state: JobState | None) -> None:
        number = data.draw(st.sampled_from(sorted(job.id for job in self.book.queue)))
        self.book.queue.remove(number)
        self.book.started(number, self.now)
        self.begun.setdefault(number, self.now)
        self.states[number] = JobState.RUNNING
        if state is None:
            self.again(number)
        else:
            self.end(number, state)

    def end(self, number: int, state: JobState) -> None:
        self.states[number] = state
        self.begun.setdefault(number, self.now)
        dropped = self.book.ended(number, state, self.now)
        assert sorted(each.job.id for each in dropped) == sorted(self.settle(self.now))

    def again(self, number: int) -> None:
        self.states[number] = JobState.QUEUED
        dropped = self.book.again(number)
        assert sorted(each.job.id for each in dropped) == sorted(self.settle(self.jobs[number].submit))
        self.book.begin(self.now)  # a book has no clock: who steps it says the time

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), what=st.sampled_from(["hold", "release", "cancel"]))
    def act(self, data: st.DataObject, what: str) -> None:
        number = data.draw(st.sampled_from(self.waiting()))
        if what == "cancel":
            self.end(number, JobState.CANCELLED)
        elif what == "hold":
            self.book.hold(number)
            self.held[number] = True
        elif self.held[number]:
            self.book.hold(number, held=False)
            self.held[number] = False
        else:
            with pytest.raises(JobStateError):
                self.book.hold(number, held=False)

    @precondition(lambda self: any(state.ended for state in self.states.values()))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        self.again(data.draw(st.sampled_from([i for i, s in self.states.items() if s.ended])))

    @rule()
    def copy(self) -> None:
        self.book = self.book.copy(self.book.queue)

    @rule(passed=st.floats(0, 5), deadline=st.one_of(st.just(math.inf), st.floats(0, 60)))
    def fit(self, passed: float, deadline: float) -> None:
        self.now += passed
        self.deadline = deadline
        assert self.book.begin(self.now) is False or self.book.begins.next > self.now
        late = [i for i in self.waiting() if self.until[i] - self.jobs[i].walltime <= self.now]
        missed = self.book.missed(self.now)
        assert sorted(each.job.id for each in missed) == late and self.book.deadlines.next > self.now
        for each in missed:
            if self.states[each.job.id] is JobState.QUEUED:  # and did not depend on another of them
                self.end(each.job.id, JobState.CANCELLED)
        self.book.fit(self.now, deadline)
        for number in self.waiting():
            entry = self.book.entries[number]
            if not entry.held and not entry.missing and not entry.early:
                assert entry.late == (self.now + entry.job.estimate > deadline) or (
                    entry.late and deadline < math.inf)

    @invariant()
    def the_queue_holds_what_is_eligible(self) -> None:
        for number, state in self.states.items():
            entry = self.book.entries[number]
            assert entry.state is state
            assert (number in self.book.queue) + (number in self.book.parked) == (
                state is JobState.QUEUED)
            if state is JobState.QUEUED:
                assert entry.held == self.held[number]
                left = self.open(number)
                assert entry.missing == len(left)
                if entry.wish is not None:
                    assert entry.wish.still(self.book.entries) == fold(sorted(set(left)))
                assert (number in self.book.queue) == entry.eligible
                if not left:
                    assert entry.early == (self.begins(number) > self.now)
                    assert not entry.early or self.book.begins.next <= entry.begin == self.begins(number)
        assert self.book.waiting == len(self.waiting())
        assert list(self.book.held) == [i for i in self.book.parked if self.held[i]]


Books.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestBooks = pytest.mark.slow(Books.TestCase)


def test_jobs_that_do_not_fit_come_back_when_the_end_moves() -> None:
    book = JobBook(JobQueue(make_ordering("FCFS"), lambda job: 1))
    for number, estimate in enumerate((100.0, 10.0, 50.0)):
        book.enter(Job(number, "a.x", 1, estimate, 0.0))
    assert book.fit(0.0, math.inf) == []
    assert [job.id for job in book.fit(0.0, 60.0)] == [0]
    assert [job.id for job in book.fit(20.0, 60.0)] == [2]
    assert book.fit(20.0, 60.0) == [] and sorted(book.parked) == [0, 2]
    assert book.fit(20.0, 75.0) == [] and sorted(book.parked) == [0]
    assert book.fit(20.0, math.inf) == [] and not book.parked
    assert [job.id for job in book.queue.in_order(20.0)] == [0, 1, 2]


def test_a_job_that_did_not_fit_and_was_cancelled_fits_when_it_is_asked_for_again() -> None:
    book = JobBook(JobQueue(make_ordering("FCFS"), lambda job: 1))
    book.enter(Job(0, "a.x", 1, 100.0, 0.0))
    assert [job.id for job in book.fit(0.0, 60.0)] == [0]
    book.ended(0, JobState.CANCELLED, 0.0)
    book.fit(0.0, math.inf)
    book.again(0)
    assert book.fit(0.0, math.inf) == [] and 0 in book.queue
    assert [job.id for job in book.fit(0.0, 60.0)] == [0] and 0 in book.parked


def test_a_dependency_on_a_job_that_is_not_there() -> None:
    book = JobBook(JobQueue(make_ordering("FCFS"), lambda job: 1))
    for other in (0, 1):
        with pytest.raises(JobStateError, match=f"depends on job {other}"):
            book.enter(Job(0, "a.x", 1, 1.0), Details((Dependency.on(other),)))
    with pytest.raises(JobStateError, match="there is no job 7"):
        book.get(7)


def seconds_of(stages: int) -> float:
    """CPU seconds of an array of `stages` jobs that waits for one of as many, to its start."""
    book = JobBook(JobQueue(make_ordering("FCFS"), lambda job: 1))
    after = (Dependency(range(stages)),)
    begin = time.process_time()
    for number in range(stages):
        book.enter(Job(number, "a.x", 1, 1.0))
    for number in range(stages, 2 * stages):
        book.enter(Job(number, "a.x", 1, 1.0), Details(after, index=number))
    assert len(book.queue) == len(book.parked) == stages
    assert book.entries[stages].wish is book.entries[2 * stages - 1].wish
    for number in range(stages):
        book.queue.remove(number)
        book.started(number, 0.0)
        book.ended(number, JobState.COMPLETED, 0.0)
    assert len(book.queue) == stages and not book.parked
    return time.process_time() - begin


@pytest.mark.slow
def test_arrays_that_wait_for_arrays_cost_their_sum_and_not_their_product():
    """Sixteen times the jobs: some sixteen times the work, where the product would be 256 times."""
    few, many = (min(seconds_of(stages) for _ in range(3)) for stages in (250, 4000))
    assert many < 80 * few


def test_an_array_that_waits_is_dropped_once_whatever_fails_of_the_other():
    book = JobBook(JobQueue(make_ordering("FCFS"), lambda job: 1))
    for number in range(6):
        book.enter(Job(number, "a.x", 1, 1.0), Details((Dependency(range(3)),) if number > 2 else ()))
    book.queue.remove(1)
    dropped = book.ended(1, JobState.FAILED, 0.0)
    assert [(each.job.id, each.reason) for each in dropped] == [
        (number, "job 1, on which it depends, ended as failed") for number in (3, 4, 5)]
    book.queue.remove(2)
    assert book.ended(2, JobState.FAILED, 0.0) == []
    assert book.again(1) == [] and book.dependencies.against(book.entries[3]) == (2, JobState.FAILED)
    assert book.again(2) == [] and book.dependencies.against(book.entries[3]) is None
    assert book.again(4) == [] and book.entries[4].missing == 3 and 4 in book.parked
