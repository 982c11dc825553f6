"""Any life that jobs may have, in any order of events: a run on nodes that differ is driven by hypothesis, and after each
event plain loops look at every core, device, amount and licence, at what its journal tells, and at what was promised."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from support.reference import HEATMAP, jobs
from vrm.model import Cluster, Dependency, Heatmap, Infeasible, Job, JobState, Node
from vrm.model.amounts import unit
from vrm.model.sharing.core_share import NOBODY, Loan
from vrm.model.job import ANY, FAIL, OK, PLAIN, START, Details
from vrm.model.forms.placement_formats import to_record
from vrm.model.reservation import ReservationError, ReservationRequest
from vrm.model.rules import Rules
from vrm.run.journal import codec, compaction, files
from vrm.run.entry import JobStateError
from vrm.run.journal.history import RunHistory, replay
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, Start, make_backfilling, make_ordering, make_policy
from vrm.ext.lending.offers import CannotLend, offer
from vrm.ext.urgent.plan import grant
from vrm.ext.urgent.donors import PAUSE, cores_of, core_donors, room

BACKFILLINGS = ["none", "easy", "list", "conservative", "easy-kept", "2", "2-kept", "conservative-recomputed", "sd"]
POLICIES = ["pack", "compact", "spare", "strip"]
ORDERINGS = ["FCFS", "WFP3", "SJF"]
LICENCES = 3
JOBS = st.lists(jobs(plain=True, most_procs=6) | jobs(plain=False, most_procs=6), min_size=1, max_size=4)


def machine() -> list[Node]:
    """Two nodes that are alike, one that is larger and has no GPU, and a small one."""
    return [Node("n0", (2, 2), {"gpu": 2, "memory": 8}, frozenset(["fast"])),
            Node("n1", (2, 2), {"gpu": 2, "memory": 8}, frozenset(["fast"])),
            Node("n2", (4, 4), {"memory": 64}, frozenset(["big"])), Node("n3", (1,), {"mem": 4})]


def scheduled(algorithm: str, backfilling: str, policy: str, cluster: Cluster) -> Scheduler:
    heatmap = Heatmap.parse(HEATMAP.splitlines())
    return Scheduler(make_ordering(algorithm), make_backfilling(backfilling), make_policy(policy, cluster, heatmap))


def facts(state: State) -> dict[str, Any]:
    """All that a state and its journal must agree on."""
    return {
        "jobs": {job_id: (entry.job, entry.details, entry.state, entry.held, entry.tries, entry.losses, entry.missing)
                 for job_id, entry in state.book.entries.items()},
        "queue": sorted(state.queue.jobs), "parked": sorted(state.book.parked), "running": sorted(state.running),
        "intents": state.intents, "losing": state.losing, "counts": state.counts, "next": state.next_id,
        "names": state.names, "promises": state.promises, "bound": dict(state.queue.bound),
        "reservations": {number: replace(each, opened=math.inf) for number, each in state.reservations.items()},
        "lends": state.lends.all, "epochs": state.lends.epochs}


def decisions(starts: list[Start]) -> list[tuple[int, bool, str]]:
    return sorted((start.job.id, start.backfilled, json.dumps(to_record(start.booking.placement))) for start in starts)


class Lives(RuleBasedStateMachine):
    """A run, its journal, and what was done to it."""

    backfilling = "easy"

    @initialize(policy=st.sampled_from(POLICIES), algorithm=st.sampled_from(ORDERINGS))
    def begin(self, policy: str, algorithm: str) -> None:
        self.policy, self.algorithm, self.now_by, self.now = policy, algorithm, self.backfilling, 0.0
        cluster = Cluster(machine(), {"ansys": LICENCES})
        scheduler = scheduled(algorithm, self.backfilling, policy, cluster)
        self.short: list[dict[str, Any]] = []  # folded, those of all records before the next
        self.folded_until = 0
        self.records: list[dict[str, Any]] = [
            {"event": "run", "format": 3, "run": "r", "nodes": codec.nodes_record(cluster.nodes)}]
        self.run = Run(State(scheduler.new_queue(), cluster), scheduler)
        self.run.state.log = self.log
        self.promised: dict[int, float] = {}
        self.started: Counter[int] = Counter()
        self.down: set[int] = set()
        self.paused: dict[int, float] = {}
        self.stood: dict[int, list[tuple[float, float]]] = {}

    def log(self, event: str, **values: Any) -> None:
        self.records.append(json.loads(json.dumps({"event": event, **values})))

    @property
    def state(self) -> State:
        return self.run.state

    def close(self, dropped: list[Any]) -> None:
        """Jobs that can never run are closed, and those that depend on them."""
        for job, reason in dropped:
            self.close(self.state.end(job.id, JobState.CANCELLED, self.now, reason, exit_code=None))

    def ids(self, *states: JobState) -> list[int]:
        return sorted(job_id for job_id, entry in self.state.book.entries.items() if entry.state in states)

    # What people and programs do.

    @rule(several=JOBS, held=st.sampled_from([False, False, False, True]), retries=st.integers(0, 1), name=st.sampled_from(["", "a", "b"]),
          indices=st.sampled_from([(), (), (4, 7)]), after=st.none() | st.integers(0, 9),
          kind=st.sampled_from([OK, ANY, START, FAIL]), priority=st.sampled_from([0, 0, 0, 1]))
    def submit(self, several: Any, held: bool, retries: int, name: str, indices: Any, after: Any, kind: Any, priority: int
               ) -> None:
        state = self.state
        for facts in several:
            first = Job(state.next_id, submit=self.now, priority=priority, **facts)
            try:
                self.run.scheduler.check(first)
                possible = not any(name == "mem" for name, _ in (*first.request.per_task, *first.request.per_node))
            except Infeasible:
                possible = False
            if not possible:  # on this machine, or for a line of a queue: mem is not a name there
                first = Job(state.next_id, "ep.A", 1, first.estimate, submit=self.now)
            there = sorted(state.book.entries)
            on = (Dependency.on(there[after % len(there)], kind),) if there and after is not None else ()
            group = [first.but(id=first.id + at) for at in range(len(indices) or 1)]
            self.close(state.submit(group, Details(on, retries, held=held, name=name), indices))
        self.step(0.0)

    @rule(seconds=st.sampled_from([0.125, 1.0, 2.5, 7.0]))
    def step(self, seconds: float) -> None:
        """Time goes on, to the next limit at most, at which a job has ended; and what may start does."""
        limits = {job_id: self.state.cluster.bookings[job_id].limit for job_id in self.state.running}
        self.now = max(self.now, min([self.now + seconds, *limits.values()]))
        for job_id, limit in limits.items():
            if limit <= self.now:
                self.over(job_id, JobState.TIMEOUT)
        twin = self.run.copy()
        starts = self.run.step(self.now)
        if self.state.lends.all:
            self.promised.clear()  # who lends takes longer, and nobody knows by how much
        assert decisions(twin.step(self.now)) == decisions(starts), "a copy decides alike"
        for start in starts:
            job_id = start.job.id
            self.started[job_id] += 1
            assert start.booking.start == self.now
            assert self.now <= self.promised.pop(job_id, math.inf) + 1e-9, f"job {job_id} starts later than promised"
        for job_id, at in self.state.promises.items():
            before = self.promised.get(job_id, math.inf)
            assert at <= before + 1e-9, f"the promise of job {job_id} has moved from {before} to {at}"
        if self.now_by.endswith("-kept") or self.now_by == "conservative":
            self.promised = dict(self.state.promises)

    @precondition(lambda self: self.state.running)
    @rule(data=st.data(), how=st.sampled_from([JobState.COMPLETED] * 3 + [JobState.FAILED, JobState.TIMEOUT]),
          killed=st.booleans())
    def end(self, data: Any, how: JobState, killed: bool) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.state.running)))
        if killed:
            self.state.intend(job_id, "cancel", self.now, self.now)
            how = JobState.CANCELLED
        self.over(job_id, how)
        self.step(0.0)

    def over(self, job_id: int, how: JobState) -> None:
        """A running job has ended."""
        self.give_back(job_id)
        self.state.release_cores(job_id)
        self.close(self.state.end(job_id, how, self.now, "why", exit_code=0))

    @precondition(lambda self: self.state.running)
    @rule(data=st.data(), retry=st.booleans(), lost=st.booleans())
    def interrupt(self, data: Any, retry: bool, lost: bool) -> None:
        """A running job waits again."""
        job_id = data.draw(st.sampled_from(sorted(self.state.running)))
        self.give_back(job_id)
        self.state.release_cores(job_id)
        self.close(self.state.again(job_id, self.now, "why", retry=retry, **({"lost": True} if lost and not retry else {})))
        self.promised.clear()  # who was submitted first goes first
        self.step(0.0)

    @precondition(lambda self: self.ids(*[state for state in JobState if state.ended]))
    @rule(data=st.data())
    def requeue(self, data: Any) -> None:
        """A job that ended is to run again."""
        job_id = data.draw(st.sampled_from(self.ids(*[state for state in JobState if state.ended])))
        if self.state.book.dependencies.against(self.state.entry(job_id)) is None:
            self.close(self.state.again(job_id, self.now, "asked for"))
            self.promised.clear()

    @precondition(lambda self: self.ids(JobState.QUEUED))
    @rule(data=st.data())
    def hold_or_release(self, data: Any) -> None:
        entry = self.state.entry(data.draw(st.sampled_from(self.ids(JobState.QUEUED))))
        (self.state.release if entry.held else self.state.hold)(entry.job.id)
        self.promised = {job_id: at for job_id, at in self.promised.items() if job_id != entry.job.id}
        if not entry.held:
            self.promised.clear()  # an earlier job competes again

    @precondition(lambda self: self.ids(JobState.QUEUED, JobState.RUNNING))
    @rule(data=st.data(), factor=st.sampled_from([0.5, 1.0, 2.0]), priority=st.integers(0, 2))
    def change(self, data: Any, factor: float, priority: int) -> None:
        """Another walltime, or another priority."""
        job_id = data.draw(st.sampled_from(self.ids(JobState.QUEUED, JobState.RUNNING)))
        job = self.state.entry(job_id).job
        if job_id in self.state.running:
            factor = max(factor, 1.0)
        try:
            self.state.change(job_id, job.walltime * factor, priority)
        except JobStateError as error:
            assert "promised" in str(error)
        else:
            self.promised.clear()

    @rule(node=st.integers(0, 3), up=st.sampled_from([True, True, False]))
    def node(self, node: int, up: bool) -> None:
        self.state.cluster.set_up(node, up)
        (self.down.discard if up else self.down.add)(node)
        self.promised.clear()

    @rule(begin=st.sampled_from([0.0, 3.0, 40.0]), length=st.sampled_from([5.0, 200.0]), number=st.integers(1, 2),
          data=st.data())
    def reserve(self, begin: float, length: float, number: int, data: Any) -> None:
        waiting = self.ids(JobState.QUEUED)
        bound = (data.draw(st.sampled_from(waiting)),) if waiting and data.draw(st.booleans()) else ()
        before = facts(self.state), len(self.records)
        try:
            self.state.reservations.reserve(ReservationRequest(self.now + begin, self.now + begin + length, number, jobs=bound), self.now)
        except ReservationError:
            assert (facts(self.state), len(self.records)) == before, "what cannot be changes nothing"
        else:
            self.promised.clear()

    @precondition(lambda self: self.state.reservations)
    @rule(data=st.data())
    def unreserve(self, data: Any) -> None:
        self.state.reservations.cancel(data.draw(st.sampled_from(sorted(self.state.reservations))), self.now, "cancelled")
        self.promised.clear()

    @precondition(lambda self: self.state.running)
    @rule(data=st.data())
    def lend(self, data: Any) -> None:
        """A running job lends cores to its nodes, as a user may ask for."""
        job_id = data.draw(st.sampled_from(sorted(self.state.running)))
        try:
            found = offer(self.state.cluster, job_id)
        except CannotLend:
            return
        self.state.lending.lend(Loan(job_id, NOBODY, found.cores, self.now, math.inf))
        self.state.lending.lent(max(self.state.lends.all), self.now)
        self.promised.clear()

    @rule(procs=st.integers(1, 6), cores=st.sampled_from([1, 1, 2]), data=st.data())
    def urgent(self, procs: int, cores: int, data: Any) -> None:
        """A job starts now in room that others make: they lend, stand still, or wait again."""
        state = self.state
        job = Job(state.next_id, "urgent", procs, 4.0, cores=cores, submit=self.now, resources={"memory": 0.25})
        able, _ = core_donors(state.cluster, lambda job_id: state.entry(job_id).details, lambda job_id: 1 << 28, True)
        chosen = [each for each in able if data.draw(st.booleans())]
        chosen = [each for at, each in enumerate(chosen) if each.id not in [other.id for other in chosen[:at]]]
        found = room(job, state.cluster, chosen, lambda job_id: 1 << 28, self.now)
        if found is None or self.run.scheduler.lacks(job):
            return
        grant(self.run, job, PLAIN, found, self.now)
        for job_id in found.ids(PAUSE):
            self.paused[job_id] = self.now
        self.promised.clear()
        self.step(0.0)

    @invariant()
    def whoever_stands_still_does_so_for_one_that_runs(self) -> None:
        """Its cores are lent to one running job, or to those that this one left them to; its limit moves by the time in
        which it stands still, which does not count."""
        if not hasattr(self, "run"):
            return
        cluster = self.state.cluster
        for job_id, since in list(self.paused.items()):
            booking = cluster.bookings.get(job_id)
            lent = cluster.loans.of_lender(job_id)
            if booking is None or booking.start > since:
                del self.paused[job_id]  # it has ended, or waits again
            elif lent:
                loan, = lent
                assert loan.borrower in self.state.running and cluster.loans.rate(cluster, booking) == 0
                assert not list(cluster.slots(booking)) and not cluster.loans.of_borrower(job_id)
                if self.only_stood(job_id):
                    assert booking.limit - self.limit(job_id, since) == pytest.approx(max(loan.until, since) - since)
            else:
                stood = self.paused.pop(job_id), self.now
                self.stood.setdefault(job_id, []).append(stood)
                if self.only_stood(job_id):
                    assert booking.limit == pytest.approx(self.limit(job_id, self.now)), stood
                assert cluster.loans.rate(cluster, booking) == 1

    def only_stood(self, job_id: int) -> bool:
        """Whether a job has lent all of its cores or none, since it runs."""
        booking = self.state.cluster.bookings[job_id]
        return all(each.lent in (0, cores_of(self.state.cluster, booking)) for each in booking.shares)

    def limit(self, job_id: int, before: float) -> float:
        """The end of a job's walltime by its pauses before a time."""
        booking = self.state.cluster.bookings[job_id]
        return booking.start + booking.job.walltime + sum(
            end - begin for begin, end in self.stood.get(job_id, ()) if booking.start <= begin and end <= before)

    @precondition(lambda self: any(each.borrower == NOBODY for each in self.state.lends.all.values()))
    @rule(data=st.data())
    def regain(self, data: Any) -> None:
        number = data.draw(st.sampled_from(sorted(
            number for number, each in self.state.lends.all.items() if each.borrower == NOBODY)))
        self.state.lending.regain(number, self.now, "asked for")
        self.state.lending.regained(number, self.now)

    def give_back(self, job_id: int) -> None:
        """Who borrowed leaves its lenders' cores."""
        if self.state.cluster.bookings[job_id].placement.lease is not None:
            self.state.lending.returned(job_id, self.now)

    @precondition(lambda self: self.ids(JobState.QUEUED))
    @rule(backfilling=st.sampled_from(BACKFILLINGS), algorithm=st.sampled_from(ORDERINGS))
    def other_rules(self, backfilling: str, algorithm: str) -> None:
        """The run is scheduled by other rules from now on."""
        self.algorithm, self.now_by = algorithm, backfilling
        scheduler = scheduled(algorithm, backfilling, self.policy, self.state.cluster)
        state, log = self.state, self.state.log
        self.log("rules", was=Rules().record(), rules=Rules().record(), time=self.now, reason="a test")
        state = state.ordered(scheduler.new_queue())
        state.log = log
        if state.promises:
            state.promise({}, self.now)
        self.run = Run(state, scheduler)
        self.promised.clear()
        self.step(0.0)

    # What must hold.

    @invariant()
    def nothing_is_held_twice(self) -> None:
        if not hasattr(self, "run"):
            return
        cluster = self.state.cluster
        cores: dict[tuple[int, int, int], int] = {}
        devices: set[tuple[int, str, int]] = set()
        left = [{name: round(amount * unit(name)) for name, amount in node.resources.items()} for node in cluster.nodes]
        licences, tenants = LICENCES * 1000, [set() for _ in cluster.nodes]  # type: list[set[int]]
        for job_id, booking in cluster.bookings.items():
            job, placement = booking.job, booking.placement
            lent = cluster.loans.lent(job_id)
            for slot in placement.slots(cluster.nodes):
                tenants[slot.node].add(job_id)
                assert len(slot.cores) == placement.width
                for core in slot.cores:
                    at = slot.node, slot.socket, core
                    if lent & 1 << self.number(at):
                        continue
                    assert at not in cores, f"jobs {cores.get(at)} and {job_id} have core {at}"
                    cores[at] = job_id
                for name, amount in job.request.per_task:
                    left[slot.node][name] -= amount
            for node in placement.nodes:
                for name, amount in job.request.per_node:
                    left[node][name] -= amount
            for node, by_name in placement.devices.items():
                for name, found in by_name.items():
                    for index in found:
                        assert (node, name, index) not in devices
                        devices.add((node, name, index))
            licences -= sum(amount for _, amount in job.request.licences)
            assert job.features <= frozenset.intersection(*(cluster.nodes[node].features for node in placement.nodes))
        assert licences >= 0 and all(amount >= 0 for node in left for amount in node.values()), left
        for job_id, booking in cluster.bookings.items():
            if booking.job.exclusive:
                assert all(tenants[node] == {job_id} for node in booking.placement.nodes)

    def number(self, at: tuple[int, int, int]) -> int:
        """The number of a core in the cluster's layout."""
        node, socket, core = at
        return self.state.cluster.layout.node_first[node] + sum(self.state.cluster.nodes[node].sockets[:socket]) + core

    @invariant()
    def jobs_are_where_their_state_says(self) -> None:
        if not hasattr(self, "run"):
            return
        state = self.state
        for job_id, entry in state.book.entries.items():
            assert (job_id in state.queue or job_id in state.book.parked or job_id in state.losing) == (
                entry.state is JobState.QUEUED), entry
            assert (job_id in state.running) == (job_id in state.cluster.bookings) == (entry.state is JobState.RUNNING)
        assert state.counts == {
            each.value: sum(entry.state is each for entry in state.book.entries.values())
            for each in JobState if each.ended}

    @invariant()
    def its_journal_tells_all_of_it(self) -> None:
        if not hasattr(self, "run"):
            return
        cluster = Cluster(machine(), {"ansys": LICENCES})
        scheduler = scheduled(self.algorithm, self.backfilling, self.policy, cluster)
        state = State(scheduler.new_queue(), cluster, frozen=True)
        past = replay(self.records, state=state)
        short = self.folded()
        for job, start in past.running:
            state.running[job.id] = start  # type: ignore[assignment]
        for node in self.down:
            state.cluster.set_up(node, False)
        state.book.thaw()
        assert facts(state) == facts(self.state)
        for job, start in short.running:
            short.state.running[job.id] = start  # type: ignore[assignment]
        for node in self.down:
            short.state.cluster.set_up(node, False)
        short.state.book.thaw()
        assert facts(short.state) == facts(state), "and so does what it is folded to"
        assert (short.started, short.ended, short.again, sorted(short.waits)) == (
            past.started, past.ended, past.again, sorted(past.waits))

    @rule()
    def fold_the_journal(self) -> None:
        self.short += self.folded_since()
        self.folded_until = len(self.records)

    def folded_since(self) -> list[dict[str, Any]]:
        """What a manager that folds its journal now makes of the records since it did so last."""
        lines = [json.dumps(each, separators=(",", ":")).encode() for each in self.records[self.folded_until:]]
        simple = compaction.simple_lives(lines, self.state.book.entries)
        found = compaction.records_of(lines, simple, files.START._replace(number=self.folded_until))
        return [json.loads(json.dumps(each)) for each in found]

    def folded(self) -> RunHistory:
        """The past that the journal tells that was folded now and then."""
        cluster = Cluster(machine(), {"ansys": LICENCES})
        state = State(scheduled(self.algorithm, self.backfilling, self.policy, cluster).new_queue(), cluster, frozen=True)
        records = [*self.short, *self.folded_since()]
        assert len(records) <= len(self.records)
        return replay(records, state=state)

    @invariant()
    def a_copy_is_the_same(self) -> None:
        if hasattr(self, "run"):
            assert facts(self.run.copy().state) == facts(self.state)


@pytest.mark.parametrize("backfilling", BACKFILLINGS)
def test_any_life(backfilling: str) -> None:
    kind = type("Lives", (Lives,), {"backfilling": backfilling})
    run_state_machine_as_test(kind, settings=settings(
        max_examples=25, stateful_step_count=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)))
