"""Orderings by their formulas, ties, and the queue that keeps jobs in order."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reference import UTILITIES
from vrm.model import Infeasible, Job
from vrm.scheduling import JobQueue, PolicyError, make_ordering
from vrm.scheduling.orderings import queue
from vrm.scheduling.orderings.ordering import NAMES

NODES = 7
EXPRESSIONS = {
    **UTILITIES,
    "q": lambda q, t, n: q,
    "q / t * n": lambda q, t, n: q / t * n,
    "(q / t)**3 * n": lambda q, t, n: (q / t) ** 3 * n,
    "-t": lambda q, t, n: -t,
    "0 * q": lambda q, t, n: 0.0,
    "max(q, 5) - n": lambda q, t, n: max(q, 5) - n,
    "log(q) * n": lambda q, t, n: (math.log(q) if q > 0 else -math.inf) * n,
    "sqrt(q - t)": lambda q, t, n: math.sqrt(q - t) if q >= t else math.nan,
    "log2(n) / (q - 3)": lambda q, t, n: (
        math.log2(n) / (q - 3) if q != 3 else math.copysign(math.inf, n - 1) if n > 1 else 0.0),
}


def nodes_of(job):
    return job.procs % NODES + 1


def in_plain_order(name, jobs, now):
    """Highest first, what is not a number last, then by submit time, then by id."""
    def key(job):
        value = EXPRESSIONS[name](now - job.submit, job.estimate, nodes_of(job))
        return (math.inf if math.isnan(value) else -value, job.submit, job.id)
    return sorted(jobs, key=key)


JOBS = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([0.5, 1, 2, 3, 10, 60, 7.25]),
              st.sampled_from([0, 1, 1.5, 2, 4, 8])), min_size=1, max_size=12).map(
    lambda facts: [Job(i * 7 % 13, "ft", *fact) for i, fact in enumerate(facts)])


@pytest.fixture(params=[40, 2], ids=["loops", "arrays"], autouse=True)
def long_queues_begin_at(request, monkeypatch):
    """Queues are walked while they are short and seen through arrays when long: test both."""
    monkeypatch.setattr(queue, "_FEW", request.param)


@pytest.mark.parametrize("name", list(EXPRESSIONS))
@settings(max_examples=25, deadline=None)
@given(JOBS, st.sampled_from([8, 9, 10.5, 1000]))
@pytest.mark.slow
def test_highest_first_then_submit_time_then_id(name, jobs, now):
    waiting = JobQueue(make_ordering(name), nodes_of)
    for job in jobs:
        waiting.add(job)
    wanted = in_plain_order(name, jobs, now)
    assert list(waiting.in_order(now)) == wanted
    one_by_one = waiting.in_order(now)
    assert [one_by_one[place] for place in range(len(jobs))] == wanted


@pytest.mark.parametrize("name", ["FCFS", "SJF", "WFP3", "FCSJ", "s * n", "procs - id", "q * n"])
@settings(max_examples=25, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_a_queue_that_jobs_come_to_and_leave(name, data):
    """What comes, what starts and what is cancelled in any order: the rest stays in order."""
    ordering = make_ordering(name)
    waiting, plain, now, last_step = JobQueue(ordering, nodes_of), [], 0.0, []
    moves = data.draw(st.lists(st.tuples(st.sampled_from(["add", "add", "add", "remove", "start"]),
                                         st.integers(0, 10**6)), max_size=40))
    for number, (move, chance) in enumerate(moves):
        chosen = random.Random(chance)
        now += chosen.choice([0, 0, 1, 2.5])
        if move == "add":
            job = Job(number * 31 % 64, "ft", chosen.randint(1, 40), chosen.choice([1, 2, 9.5]),
                      now)
            waiting.add(job)
            plain.append(job)
            last_step.append(job)
        elif move == "remove" and plain:
            job = plain.pop(chosen.randrange(len(plain)))
            assert job.id in waiting
            assert waiting.remove(job.id) == job
        elif move == "start" and plain:
            order = sorted(plain, key=lambda job: ordering.key(job, now, nodes_of(job)))
            heads = order[:chosen.randint(0, 3)]
            later = [job for job in order[len(heads):] if chosen.random() < 0.2]
            waiting.remove_started([*heads, *later])
            plain = [job for job in plain if job not in heads and job not in later]
            waiting.fresh.clear()
            last_step = []
        order = sorted(plain, key=lambda job: ordering.key(job, now, nodes_of(job)))
        seen = waiting.in_order(now)
        if order:
            assert seen[0] == order[0]
        first, room = chosen.randint(0, len(order)), chosen.randint(0, NODES + 1)
        window, extra = chosen.choice([math.inf, 1, 3]), chosen.randint(0, room)
        assert list(seen.fitting(first, room, window, extra)) == [
            job for job in order[first:] if nodes_of(job) <= room
            and (job.estimate <= window or nodes_of(job) <= extra)]
        assert list(seen) == order and seen[:] == order and seen[1:3] == order[1:3]
        assert len(waiting) == len(seen) == len(order)
        assert seen.fresh == [job for job in order if job in last_step]
        assert {job.id for job in waiting} == {job.id for job in order}
        assert all(waiting.get(job.id) is job for job in order)
        if order:
            assert seen[-1] == order[-1]
        with pytest.raises(IndexError):
            seen[len(order)]


def test_large_identities_and_products_are_not_cut_off():
    """Values of many jobs are computed as those of one: as floats, which do not wrap around."""
    ordering = make_ordering("q + id * id * id * procs * procs")
    jobs = [Job(3_000_000 + i * 50_000, "ft", 4000 - i, 1) for i in range(60)]
    waiting = JobQueue(ordering, nodes_of)
    for job in jobs:
        waiting.add(job)
    wanted = sorted(jobs, key=lambda job: ordering.key(job, 5.0, nodes_of(job)))
    seen = waiting.in_order(5.0)
    assert [seen[place] for place in range(10)] == wanted[:10]


def test_a_job_waits_only_once():
    for name in ("FCFS", "WFP3"):
        waiting = JobQueue(make_ordering(name), nodes_of)
        waiting.add(Job(1, "ft", 1, 1))
        with pytest.raises(ValueError, match="job 1 waits already"):
            waiting.add(Job(1, "cg", 1, 1))
        with pytest.raises(KeyError):
            waiting.remove(2)
        with pytest.raises(KeyError):
            waiting.get(2)
        assert 1 in waiting and 2 not in waiting and len(waiting) == 1


@pytest.mark.parametrize("name", ["FCFS", "WFP3"])
def test_a_job_that_is_refused_while_entering_leaves_no_trace(name):
    def refusing(job):
        if job.procs > NODES:
            raise Infeasible("too large")
        return job.procs
    waiting = JobQueue(make_ordering(name), refusing)
    waiting.add(Job(1, "ft", 1, 1))
    with pytest.raises(Infeasible):
        waiting.add(Job(2, "ft", 100, 1))
    waiting.add(Job(3, "ft", 2, 1, 1))
    assert len(waiting) == 2 and 2 not in waiting
    seen = waiting.in_order(10)
    assert [job.id for job in seen] == sorted([1, 3], key=lambda i: seen.key(waiting.get(i)))
    assert sorted(job.id for job in seen.fitting(0, 5)) == [1, 3]
    assert waiting.remove(1).id == 1 and waiting.remove(3).id == 3


@pytest.mark.parametrize("name", [*UTILITIES, "(q / t)**3 * n", "q**9 / t**9"])
@pytest.mark.parametrize("estimate", [5e-324, 1e-200, 1e308])
def test_no_estimate_above_zero_is_too_small_or_too_large(name, estimate):
    waiting = JobQueue(make_ordering(name), nodes_of)
    for number, seconds in enumerate([estimate, 1.0, 2.0]):
        waiting.add(Job(number, "ft", 1, seconds, 0))
    order = [job.id for job in waiting.in_order(2e9)]
    assert sorted(order) == [0, 1, 2]
    if name in ("FCSJ", "WFP1", "WFP3", "SJF"):
        assert order.index(0) == (0 if estimate < 1 else 2)


@pytest.mark.parametrize("name, static", [
    ("FCFS", True), ("SJF", True), ("LJF", True), ("s", True), ("-t * n", True),
    ("WFP3", False), ("FCSJ", False), ("q", False), ("0 * q", False)])
def test_what_depends_on_the_time_waited_is_not_static(name, static):
    assert make_ordering(name).static is static


@pytest.mark.parametrize("text", ["wfp3", " WFP3 ", "Wfp3"])
def test_names_are_found_in_any_case(text):
    assert make_ordering(text).name == "WFP3"


@pytest.mark.parametrize("text, parts", [
    ("WFP4", ["`WFP4`", "did you mean wfp"]), ("FCSF", ["did you mean fcfs?"]), ("fifo", ["`fifo`", "fcfs", "expression of q t n"]),
    ("q / x", ["`x`", *NAMES]), ("q +", ["not an arithmetic expression: it ends too early"]), ("", []),
    ("min(q)", ["2 or more"]),
    ("no_such_module_of_mine:utility", ["no_such_module_of_mine", "PYTHONPATH"]),
    ("math:no_such_utility", ["module math has no `no_such_utility`"]),
    ("math:pi", ["`math:pi` is not callable"]), ("os..path:join", []), ("a:b:c", []),
])
def test_orderings_that_are_not_there(text, parts):
    with pytest.raises(PolicyError) as refused:
        make_ordering(text)
    assert all(part in str(refused.value) for part in parts), str(refused.value)


@pytest.mark.parametrize("body, part", [
    ("def utility(:", "SyntaxError"), ("raise RuntimeError('not today')", "not today"),
    ("import math\nmath.no_such_function", "no_such_function"), ("1 / 0", "ZeroDivisionError"),
])
def test_a_module_that_cannot_be_loaded_is_named_with_the_reason(tmp_path, monkeypatch, body, part):
    (tmp_path / "my_broken_policies.py").write_text(body + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PolicyError) as refused:
        make_ordering("my_broken_policies:utility")
    assert "my_broken_policies" in str(refused.value) and part in str(refused.value)
    assert "has no `utility`" not in str(refused.value)


def test_a_utility_of_ones_own(tmp_path, monkeypatch):
    """By dotted path: the job of the smallest area first."""
    (tmp_path / "my_orderings.py").write_text(
        "def shortest_area(job, now, nodes):\n"
        "    return -job.estimate * nodes\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ordering = make_ordering("my_orderings:shortest_area")
    assert ordering.name == "my_orderings:shortest_area"
    waiting = JobQueue(ordering, nodes_of)
    jobs = [Job(i, "ft", procs, estimate) for i, (procs, estimate) in
            enumerate([(6, 1), (1, 3), (0 + 7, 2), (1, 1), (7, 2)])]
    for job in jobs:
        waiting.add(job)
    assert [job.id for job in waiting.in_order(5)] == [2, 3, 4, 1, 0]


def test_the_length_of_queues_beyond_which_arrays_are_used(monkeypatch):
    """The same order just below and above it, as a whole and one by one."""
    monkeypatch.undo()
    chosen = random.Random(1)
    for name in ("WFP3", "FCSJ", "(q / t)**3 * n", "log(q) * n", "sqrt(q - t)"):
        ordering = make_ordering(name)
        waiting, jobs = JobQueue(ordering, nodes_of), []
        for number in range(3 * queue._FEW):
            jobs.append(Job(number, "ft", chosen.randint(1, 40), chosen.choice([1, 2, 5]),
                            chosen.choice([0, 1, 2])))
            waiting.add(jobs[-1])
            wanted = in_plain_order(name, jobs, 9.0)
            seen = waiting.in_order(9.0)
            assert [seen[place] for place in range(min(20, len(jobs)))] == wanted[:20]
            first = min(2, number)
            assert list(seen.fitting(first, 3)) == [
                job for job in wanted[first:] if nodes_of(job) <= 3]
