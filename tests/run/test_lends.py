"""Lends as transitions of a run's state: their events make them again, and what makes no sense in a
journal is refused with the line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vrm.model import Cluster, Job, JobState
from vrm.model.sharing.core_share import NOBODY, Loan
from vrm.run import loans
from vrm.run.journal import codec
from vrm.run.journal.record_checks import JournalError
from vrm.run.journal.history import RunHistory, replay
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, Start, make_backfilling, make_ordering, make_policy
from vrm.ext.lending.offers import borrowed, offer

Records = list[dict[str, Any]]


def begun(records: Records, policy: str = "compact") -> Run:
    """A run of two nodes whose first job has all of them, and whose second waits."""
    cluster = Cluster.regular(2, 2, 2)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"),
                          make_policy(policy, cluster))
    run = Run(State(scheduler.new_queue(), cluster), scheduler)
    records.append({"event": "run", "format": 2, "run": "r",
                    "nodes": codec.nodes_record(cluster.nodes)})
    run.state.log = lambda event, **values: records.append(
        json.loads(json.dumps({"event": event, **values})))
    for number, ranks in ((1, 4), (2, 2)):
        run.state.submit([Job(number, "ep.A", ranks, 100, 0.0, cores=2)])
    assert [start.job.id for start in run.step(0.0)] == [1]
    return run


def facts(state: State) -> dict[str, Any]:
    return {"lends": state.lends.all, "next": state.lends.next, "epochs": state.lends.epochs}


def test_a_lend_from_intent_to_return_is_replayed_at_each_record() -> None:
    records: Records = []
    run = begun(records)
    state = run.state
    seen = {len(records): facts(state.copy())}

    def note() -> None:
        seen[len(records)] = facts(state.copy())

    job = state.queue.get(2)
    found = offer(state.cluster, 1)
    placement = borrowed(job, state.cluster, [(1, found.cores)], shrinks=True)
    assert placement
    booking = state.cluster.book(job, placement, 5.0)
    state.queue.remove_started([job])
    loan, = state.cluster.loans.of_borrower(2)
    assert state.lending.lend(loan).number == 1 and state.lends.plan(1) == found.cores
    note()
    state.lending.lent(1, 6.0)
    note()
    state.started(Start(booking, False), 6.0)
    note()
    node = Loan(1, NOBODY, 0, 7.0, float("inf"))
    with pytest.raises(ValueError, match="does not have the cores"):
        state.lending.lend(node)
    assert len(records) in seen, "what cannot be is not recorded"
    state.release_cores(2)
    state.end(2, JobState.COMPLETED, 20.0, exit_code=0)
    note()
    assert state.cluster.loans.all, "until it is taken back"
    state.lending.regain(1, 21.0)
    assert not state.cluster.loans.all and state.lends.plan(1) == 0
    note()
    state.lending.regained(1, 22.0)
    note()
    assert state.lends.epochs == {1: 2}
    for count, wanted in seen.items():
        assert facts(replay(records[:count]).state) == wanted
    past = replay(records)
    start = next(record for record in records if record["event"] == "start" and record["id"] == 2)
    there = codec.placement_of(start["placement"], state.cluster)
    assert there.lent == ((1, found.cores),)
    assert replay(records[:-2]).rooms[1, 2][0]["id"] == 1 and not past.rooms, "it has taken them back"


def test_who_ends_lends_no_more_and_its_guest_has_the_room_after_a_restart() -> None:
    records: Records = []
    run = begun(records)
    state = run.state
    placement = borrowed(state.queue.get(2), state.cluster,
                         [(1, offer(state.cluster, 1).cores)], shrinks=True)
    assert placement
    booking = state.cluster.book(state.queue.get(2), placement, 5.0)
    state.queue.remove_started([booking.job])
    state.lending.lend(state.cluster.loans.of_borrower(2)[0])
    state.lending.lent(1, 5.0)
    state.started(Start(booking, False), 5.0)
    state.release_cores(1)
    state.end(1, JobState.FAILED, 9.0, exit_code=1)
    assert not state.lends.all
    past = replay(records)
    assert not past.state.lends.all
    again = Cluster.regular(2, 2, 2)
    own = codec.placement_of(past.started[2]["placement"], again)
    assert own.lease is not None
    again.book(past.jobs[2], past.state.lends.settled(own, 2), 5.0)
    (room, loans), = past.state.lends.left(again, {2: own}, past.rooms)
    again.loans.pass_to_borrowers(again, codec.placement_of(room[0]["placement"], again), loans)
    now = state.cluster
    assert (again.busy0, again.busy1, again.busy_cores) == (now.busy0, now.busy1, now.busy_cores)
    again.release(2)
    assert again.busy0 == again.busy1 == 0


@pytest.mark.parametrize("policy", ["compact", "pack"])
def test_a_borrower_is_left_nothing_that_another_job_has(policy: str) -> None:
    """After a restart: the end of the borrower was not recorded, and the start of the other one was (seed 795835149805 of
    the world)."""
    records: Records = []
    state = begun(records, policy).state
    lent_to(2, state)
    state.release_cores(1)
    state.end(1, JobState.FAILED, 9.0, exit_code=1)
    past = replay(records)
    again = Cluster.regular(2, 2, 2)
    own = codec.placement_of(past.started[2]["placement"], again)
    rest = hex(0xff & ~own.taken)
    other = codec.placement_of({"taken": rest, "procs": 1, "width": 8 - own.taken.bit_count()}, again)
    again.book(Job(3, "ep.A", 1, 100, 0.0, cores=other.width), other, 7.0)
    again.book(past.jobs[2], past.state.lends.settled(own, 2), 5.0)
    (room, loans), = past.state.lends.left(again, {2: own}, past.rooms)
    left = codec.placement_of(room[0]["placement"], again)
    again.loans.pass_to_borrowers(again, left, loans)
    again.release(2)
    assert again.clashes(other) and again.busy_cores & other.taken == other.taken
    again.release(3)
    assert again.busy0 == again.busy1 == again.busy_cores == 0


def test_cores_come_back_whatever_was_expected_of_the_borrower_meanwhile() -> None:
    """Also after a restart, when the loan on the cluster begins with the borrower's start."""
    records: Records = []
    state = begun(records).state
    placement = borrowed(state.queue.get(2), state.cluster,
                         [(1, offer(state.cluster, 1).cores)], shrinks=True)
    assert placement
    state.cluster.book(state.queue.get(2), placement, 5.0)
    state.lending.lend(state.cluster.loans.of_borrower(2)[0])
    before = state.cluster.bookings[1].limit
    state.cluster.loans.extend_loans(state.cluster, 2, 120.0, 600.0)
    assert state.cluster.bookings[1].limit > before, "the lender is not to pay for it"
    state.release_cores(2)
    state.lending.regain(1, 130.0)
    assert not state.cluster.loans.all
    assert state.cluster.bookings[1].limit == pytest.approx(100 + (130 - 5) / 2)


def lent_to(borrower: int, state: State) -> None:
    """Job 1 lends half of its cores, on which another starts."""
    placement = borrowed(state.queue.get(borrower), state.cluster, [(1, offer(state.cluster, 1).cores)], shrinks=True)
    assert placement
    booking = state.cluster.book(state.queue.get(borrower), placement, 5.0)
    state.queue.remove_started([booking.job])
    loan, = state.cluster.loans.of_borrower(borrower)
    number = state.lending.lend(loan).number
    state.lending.lent(number, 5.0)
    state.started(Start(booking, False), 5.0)


def test_a_borrower_that_starts_again_keeps_its_cores_when_what_it_left_is_taken_back() -> None:
    """A restarted manager had given it the same cores before it took the first loan back (seed 795851826728 of the world)."""
    state = begun([]).state
    lent_to(2, state)
    first, = state.cluster.loans.of_borrower(2)
    state.release_cores(2)
    state.again(2, 9.0, retry=True)
    state.cluster.loans.regain(state.cluster, first, 9.0)  # on the new cluster of a restarted manager it is not
    lent_to(2, state)
    state.lending.regain(1, 9.0)
    state.lending.regained(1, 9.0)
    assert [each.lender for each in state.cluster.loans.of_borrower(2)] == [1]
    state.release_cores(2)
    state.lending.regain(2, 20.0)
    assert not state.cluster.loans.all


def test_who_has_taken_its_cores_back_and_ends_leaves_nothing_to_the_borrower() -> None:
    """A manager was killed between that and the record of the borrower's end (seed 795823056036 of the world)."""
    records: Records = []
    state = begun(records).state
    lent_to(2, state)
    assert list(replay(records).rooms) == [(1, 2)]
    state.release_cores(2)
    state.lending.regain(1, 6.0)
    assert not replay(records).rooms
    state.lending.regained(1, 6.0)
    state.release_cores(1)
    state.end(1, JobState.FAILED, 9.0, exit_code=1)
    assert not replay(records).rooms


def test_the_same_cores_are_lent_where_a_manager_has_other_nodes() -> None:
    """As where one was left out (seed 795823058256 of the world)."""
    records: Records = []
    state = begun(records).state
    lent_to(2, state)
    first, second = (each[:] for each in records[0]["nodes"])
    loan, shares = state.lends.all[1].loan, state.lends.shares[1]
    assert loan.cores == 0b1100_1100 and shares[0].lent == loan.cores
    records.append({"event": "run", "format": 2, "run": "r", "nodes": [["new", [1]], second, first]})
    lends = replay(records).state.lends
    assert lends.all[1].loan == loan._replace(cores=0b1_1001_1000) and lends.shares[1][0].lent == 0b1_1001_1000
    assert lends.moved == {1}
    records.append({"event": "run", "format": 2, "run": "r", "nodes": [second]})
    lends = replay(records).state.lends
    assert lends.all[1].loan.cores == lends.shares[1][0].lent == 0b1100, "the rest is not there"
    records.append({"event": "run", "format": 2, "run": "r"})
    assert replay(records).state.lends.all == lends.all, "a manager that does not say what nodes it has"


@pytest.mark.parametrize("bad, why", [
    ({"event": "lent", "number": 1, "id": 1, "time": 1.0}, "lent of lend 1 of job 1, which there is not"),
    ({"event": "lend", "number": 1, "id": 2, "to": None, "cores": "0x1", "time": 1.0, "until": None},
     "lend of job 2, which does not run"),
    ({"event": "lend", "number": 1, "id": 1, "to": None, "cores": "1", "time": 1.0, "until": None},
     "cores"),
    ({"event": "regained", "number": 3, "id": 1, "time": 1.0}, "regained of lend 3"),
    ({"event": "grown", "id": 2, "cores": "0x3", "width": 2, "time": 1.0}, "grown of job 2, which does not run"),
    ({"event": "grown", "id": 1, "cores": "0x3", "width": 0, "time": 1.0}, "width"),
])
def test_a_journal_that_makes_no_sense_names_its_line(bad: dict[str, Any], why: str) -> None:
    records: Records = []
    begun(records)
    with pytest.raises(JournalError, match=f"journal:{len(records) + 1}: .*{why}"):
        replay([*records, bad])


def test_phases_come_in_their_order() -> None:
    records: Records = []
    run = begun(records)
    cores = offer(run.state.cluster, 1).cores
    run.state.lending.lend(Loan(1, NOBODY, cores, 1.0, float("inf")))
    past: RunHistory = replay(records)
    for event, why in (("regained", "in phase lend"), ("lend", "there already")):
        record = {**records[-1], "event": event}
        with pytest.raises(JournalError, match=why):
            replay([*records, record])
    run.state.lending.lent(1, 2.0)
    with pytest.raises(JournalError, match="lent of lend 1, which is in phase lent"):
        replay([*records, records[-1]])
    assert past.state.lends.all[1].phase == loans.LENDING
    again = run.state.cluster.copy()
    again.loans.all.clear()
    run.state.lends.apply_node_loans(again)
    assert [loan.cores for loan in again.loans.all] == [cores]
    run.state.lending.regain(1, 3.0)
    twice = replay([*records, records[-1]])  # as a manager wrote it that was killed twice while a lend began
    assert twice.state.lends.all[1].phase == loans.REGAINING


def test_nothing_is_learnt_from_time_that_was_lost_by_lending() -> None:
    records: Records = []
    state = begun(records).state
    state.release_cores(1)
    state.end(1, JobState.COMPLETED, 50.0, exit_code=0, slower=20.0)
    assert replay(records).lesson(1) == (state.entry(1).job, 30.0, JobState.COMPLETED)
