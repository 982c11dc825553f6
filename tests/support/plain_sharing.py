"""Reference implementation of EASY and SD-policy on whole nodes: counts of nodes, lists, and everything recomputed at
every event. The definitions are in docs/reference/sd-policy.md.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import NamedTuple


class Task(NamedTuple):
    """A job: its nodes, its `requested` and its real `run` time (seconds), and whether it is malleable."""

    id: int
    submit: float
    nodes: int
    requested: float
    run: float
    malleable: bool


@dataclass
class Running:
    """A running job. `left` is the expected and `work` the real remaining time at `since`, in seconds on all its
    cores; `expected_end` is its expected end. `lends_to` is the id of the job that it lends to."""

    task: Task
    start: float
    left: float
    work: float
    since: float
    expected_end: float = 0.0
    lenders: dict[int, int] = field(default_factory=dict)  # lenders that still run, with their nodes
    borrowed: bool = False
    lends_to: int | None = None


class PlainSharing:
    """The rules. `limit` is MAX_SLOWDOWN (None: dynamic; 0: no lending, plain EASY). `ideal`: the real speed of a job
    depends on all its cores, not on its slowest node; the expected speed always depends on the slowest node.
    `gain`: a job must end earlier by more than its mates lose."""

    def __init__(self, nodes: int, limit: float | None, share: float = 0.5, most: int = 2,
                 ideal: bool = False, grows: bool = True, gain: bool = False) -> None:
        self.nodes = self.free = nodes
        self.limit, self.share, self.most = limit, share, most
        self.ideal, self.grows, self.gain = ideal, grows, gain
        self.running: dict[int, Running] = {}
        self.queue: list[Task] = []
        self.now = 0.0
        self.started: dict[int, tuple[float, tuple[int, ...]]] = {}
        self.ended: dict[int, float] = {}

    # Real and expected speed of jobs.

    def rate(self, job: Running, ideal: bool) -> float:
        """Return the speed of a job; 1 with all its cores."""
        if job.lends_to is not None:
            return 1 - self.share
        if not job.borrowed:
            return 1.0
        shared = sum(job.lenders.values()) if self.grows else job.task.nodes
        if ideal:
            return (self.share * shared + job.task.nodes - shared) / job.task.nodes
        return self.share if shared else 1.0

    def settle(self, job: Running) -> None:
        """Subtract the work that was done until now."""
        passed = self.now - job.since
        job.left -= passed * self.rate(job, False)
        job.work -= passed * self.rate(job, self.ideal)
        job.since = self.now

    def expect(self, job: Running) -> None:
        """Compute the expected end of a job, assuming that the jobs it shares with end as expected."""
        if job.lends_to is None:
            job.expected_end = self.now + job.left / self.rate(job, False)
            return
        until = self.running[job.lends_to].expected_end
        job.expected_end = until + job.left - (1 - self.share) * (until - self.now)

    def end_of(self, job: Running) -> float:
        """Return the real end of a job if nothing changes."""
        return job.since + job.work / self.rate(job, self.ideal)

    def start(self, task: Task, mates: tuple[int, ...] = ()) -> None:
        """Start a job now, on free nodes or with mates."""
        job = Running(task, self.now, task.requested, task.run, self.now, borrowed=bool(mates))
        self.queue.remove(task)
        lenders = [self.running[mate] for mate in mates]
        for lender in lenders:
            self.settle(lender)
            lender.lends_to = task.id
            job.lenders[lender.task.id] = lender.task.nodes
        self.running[task.id] = job
        self.expect(job)
        for lender in lenders:
            self.expect(lender)
        if not mates:
            self.free -= task.nodes
        self.started[task.id] = self.now, mates

    def end(self, job: Running) -> None:
        """End a job now: lenders get their nodes back; the nodes of a lender that ends pass to its borrower."""
        for other in self.running.values():
            self.settle(other)
        del self.running[job.task.id]
        self.ended[job.task.id] = self.now
        if job.lends_to is not None:
            heir = self.running[job.lends_to]
            del heir.lenders[job.task.id]
            self.expect(heir)
            return
        self.free += job.task.nodes - sum(job.lenders.values())
        for lender in job.lenders:
            self.running[lender].lends_to = None
            self.expect(self.running[lender])

    # The decisions.

    def frees(self) -> list[tuple[float, int]]:
        """Return the expected ends of running jobs with the numbers of nodes that become free, earliest first."""
        return sorted((max(job.expected_end, self.now), job.task.nodes - sum(job.lenders.values()))
                      for job in self.running.values())

    def free_at(self, time: float, frees: list[tuple[float, int]] | None = None) -> int:
        """Return the number of nodes expected to be free at a time if nothing else starts; `frees` is computed if not given."""
        return self.free + sum(nodes for end, nodes in (self.frees() if frees is None else frees) if end <= time)

    def shadow(self, task: Task) -> float:
        """Return the first time at which the nodes of the task are free."""
        frees = self.frees()
        times = [self.now, *(end for end, _ in frees)]
        return next((time for time in times if self.free_at(time, frees) >= task.nodes), math.inf)

    def static_start(self, task: Task, head: Task) -> float:
        """Return the first time from which on the task fits together with the head's reservation."""
        if task is head:
            return self.shadow(head)
        begin = self.shadow(head)
        end = begin + head.requested
        frees = self.frees()
        times = sorted({self.now, *(each for each, _ in frees), begin, end})
        free = {time: self.free_at(time, frees) - (head.nodes if begin <= time < end else 0) for time in times}
        for time in times:
            if all(free[each] >= task.nodes for each in times
                   if time <= each < time + task.requested):
                return time
        return math.inf

    def may_backfill(self, task: Task, head: Task) -> bool:
        """Return whether a task may be backfilled by EASY's two rules."""
        if task.nodes > self.free:
            return False
        shadow = self.shadow(head)
        return (self.now + task.requested <= shadow
                or self.free_at(shadow) - task.nodes >= head.nodes)

    def cut(self) -> float:
        """Return the upper limit of the penalty of a mate (exclusive)."""
        if self.limit is not None:
            return self.limit
        slow = [(job.expected_end - job.task.submit) / job.task.requested
                for job in self.running.values()]
        return math.fsum(slow) / len(slow) if slow else math.inf

    def mates(self, task: Task, head: Task) -> tuple[int, ...] | None:
        """Return the ids of the jobs that lend to a task that does not fit; None if there are none."""
        share, requested = self.share, task.requested
        if not task.malleable:
            return None
        start = self.static_start(task, head) - self.price(task)
        if not start + requested > self.now + requested / share:
            return None
        able: dict[int, float] = {}
        for job_id, job in self.running.items():
            left = job.expected_end - self.now
            value = (job.expected_end - job.task.submit + requested) / job.task.requested
            if (job.task.malleable and not job.borrowed and job.lends_to is None
                    and left / (1 - share) >= requested / share and value < self.cut()):
                able[job_id] = value
        for allowed in (able, [mate for mate in able if not self.late(mate, task, head)]):
            sets = [(math.fsum(able[mate] for mate in each), len(each), tuple(sorted(each)))
                    for number in range(1, self.most + 1)
                    for each in itertools.combinations(allowed, number)
                    if sum(self.running[mate].task.nodes for mate in each) == task.nodes]
            if not sets:
                return None
            best = min(sets)[2]
            earlier = start + requested - (self.now + requested / share)
            if self.gain and not earlier > len(best) * requested:
                continue
            if task is head or not self.delays(best, task, head):
                return best
        return None

    def price(self, task: Task) -> float:
        """Return the seconds that the jobs ahead of the task lose because its work is done before theirs."""
        return self.queue.index(task) * task.nodes * task.requested / self.nodes

    def late(self, mate: int, task: Task, head: Task) -> bool:
        """Return whether the head counts on nodes of the mate that would be occupied beyond the head's start."""
        end = self.running[mate].expected_end
        return task is not head and end <= self.shadow(head) < end + task.requested

    def delays(self, mates: tuple[int, ...], task: Task, head: Task) -> bool:
        """Return whether the head would start later with these mates."""
        before = self.shadow(head)
        for mate in mates:
            self.running[mate].expected_end += task.requested
        after = self.shadow(head)
        for mate in mates:
            self.running[mate].expected_end -= task.requested
        return after > before

    def step(self) -> None:
        """Start all jobs that can start now; after each start, search the queue from the front again."""
        while self.queue:
            head = self.queue[0]
            if head.nodes <= self.free:
                self.start(head)
                continue
            for task in self.queue:
                if task is not head and self.may_backfill(task, head):
                    self.start(task)
                    break
                mates = None if self.limit == 0 else self.mates(task, head)
                if mates is not None:
                    self.start(task, mates)
                    break
            else:
                return

    def run(self, tasks: list[Task]) -> None:
        """Run all tasks until the last one has ended."""
        coming = sorted(tasks, key=lambda task: (task.submit, task.id))
        while coming or self.running:
            times = [self.end_of(job) for job in self.running.values()]
            times += [task.submit for task in coming[:1]]
            self.now = min(times)
            for job in sorted(self.running.values(), key=lambda job: job.task.id):
                if job.task.id in self.running and self.end_of(job) <= self.now:
                    self.end(job)
            while coming and coming[0].submit <= self.now:
                self.queue.append(coming.pop(0))
            self.step()
