"""The state of a pool according to its journal: its jobs, which allocation holds which, and what has ended.

An allocation holds a job from an entry `take` until an entry `end` or `back`. A job has at most one holder:
entries have one order, and an entry that does not fit those before it changes nothing. An allocation that has
ended takes nothing any more. So a job can run twice only if an `end` is written for an allocation whose
processes still run. An allocation writes its own `end` when no process is left, another one writes it when the
batch system reports the end.

A request is taken back only before its allocation has begun, and an allocation whose request was taken back
does not begin: so the batch system never cancels an allocation that works.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from vrm.model.job import Dependency, JobState

Entry = Mapping[str, Any]
"""An entry of the journal. Its kind is `do`:

| do | other keys |
|---|---|
| `start` | the options of `vrm pool start` |
| `add` | `lines`: one for each job; `after`: dependencies by number of the job: lists of a kind and numbers |
| `ask` | `number` of the request, `nodes`, `seconds` |
| `asked` | `number`, the batch `job` |
| `over` | `number`, `why`: the request gives no allocation |
| `wish` | `number`, `nodes`, `seconds`, `work`: a `PoolDemand` |
| `join` | `name` of the allocation, the batch `job`, `until` (seconds since the epoch, None: unknown), `nodes` |
| `take` | `name`, `jobs` |
| `back` | `name`, `jobs` that the allocation has not begun |
| `done` | `name`, `done`: how those of its jobs have ended for which others wait |
| `end` | `name`, `done`: how its jobs have ended, by their numbers |
| `stop` | `now`: running jobs are ended, too |
"""


WITHDRAWN = "taken back"
"""The reason of a request that the pool has taken back."""


@dataclass
class PoolAllocation:
    """An allocation. `held` are the jobs that it has taken, `done` those whose ends are in the journal: all
    that have ended, once the allocation itself has ended."""

    name: str
    job: str
    until: float | None = None
    nodes: int = 0
    ended: bool = False
    held: dict[int, None] = field(default_factory=dict)
    done: dict[int, str] = field(default_factory=dict)


@dataclass
class PoolRequest:
    """A request to the batch system. `job` is empty until the batch system has answered; `over` is the reason
    if it gives no allocation."""

    number: int
    nodes: int
    seconds: float
    job: str = ""
    over: str = ""


class PoolDemand(NamedTuple):
    """What the pool needs to have waiting: `number` requests of `nodes` nodes and `seconds` seconds, for jobs
    with `work` core seconds according to their limits."""

    number: int
    nodes: int
    seconds: float
    work: float = 0.0


class PoolState:
    """A pool. `lines` are its jobs, by their numbers; `holder` gives the allocation that has a job. `free` are
    the jobs that no allocation has, that have not ended and that wait for no other job. `later` are jobs that
    wait for others, and `needs` says for which jobs and for what kind of end. `done` is how jobs have ended.
    `unmet` are those that cannot run because a job on which they depend has ended otherwise. `added` are the
    times of their submission (seconds since the epoch)."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.options: dict[str, Any] = {}
        self.lines: list[str] = []
        self.free: dict[int, None] = {}  # in order of their first submission
        self.later: dict[int, set[int]] = {}  # the jobs for whose ends each still waits
        self.needs: dict[int, dict[int, str]] = {}
        self.waited: dict[int, list[int]] = {}  # the jobs that wait for each
        self.unmet: set[int] = set()
        self.added: list[float] = []
        self.holder: dict[int, str] = {}
        self.done: dict[int, str] = {}
        self.allocations: dict[str, PoolAllocation] = {}
        self.requests: dict[int, PoolRequest] = {}
        self.wish: PoolDemand | None = None
        self.stopped = ""
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: Entry) -> None:
        """Apply the next entry of the journal."""
        getattr(self, f"_{entry['do']}", lambda entry: None)(entry)

    def _start(self, entry: Entry) -> None:
        self.options, self.stopped = {**entry["options"]}, ""

    def _add(self, entry: Entry) -> None:
        after = entry.get("after", {})
        for line in entry["lines"]:
            number = len(self.lines)
            self.lines.append(line)
            self.added.append(entry.get("time", 0.0))
            for kind, *jobs in after.get(str(number), ()):
                for job in jobs:
                    self.needs.setdefault(number, {})[job] = kind
                    self.waited.setdefault(job, []).append(number)
            self.later[number] = {job for job in self.needs.get(number, ()) if job not in self.done}
            self._judge(number)

    def _judge(self, number: int) -> None:
        """Update a job that waits for others: it cannot run, may run now, or still waits."""
        if any(job in self.done and not Dependency.on(job, kind).met(JobState(self.done[job]))
               for job, kind in self.needs.get(number, {}).items()):
            del self.later[number]
            self.unmet.add(number)
            self._ended(number, JobState.CANCELLED.value)
        elif not self.later[number]:
            del self.later[number]
            self.free[number] = None

    def _ended(self, number: int, how: str) -> None:
        """Record the end of a job, for which others may wait."""
        self.done[number] = how
        for other in self.waited.get(number, ()):
            if other in self.later:
                self.later[other].discard(number)
                self._judge(other)

    def _ask(self, entry: Entry) -> None:
        self.requests.setdefault(entry["number"], PoolRequest(entry["number"], entry["nodes"], entry["seconds"]))

    def _asked(self, entry: Entry) -> None:
        self.requests[entry["number"]].job = entry["job"]

    def _over(self, entry: Entry) -> None:
        request = self.requests[entry["number"]]
        begun = any(each.job == request.job for each in self.allocations.values())
        if entry["why"] != WITHDRAWN or not begun:
            request.over = entry["why"]

    def _wish(self, entry: Entry) -> None:
        self.wish = PoolDemand(*(entry[name] for name in PoolDemand._fields))

    def _join(self, entry: Entry) -> None:
        if self.may_join(entry["job"]):
            self.allocations.setdefault(entry["name"], PoolAllocation(
                entry["name"], entry["job"], entry.get("until"), entry.get("nodes", 0)))

    def _take(self, entry: Entry) -> None:
        name, jobs = entry["name"], entry["jobs"]
        if self.is_live(name) and not self.stopped and all(job in self.free for job in jobs):
            for job in jobs:
                del self.free[job]
                self.holder[job] = name
                self.allocations[name].held[job] = None

    def _back(self, entry: Entry) -> None:
        self._let_go([job for job in entry["jobs"] if self.holder.get(job) == entry["name"]])

    def _done(self, entry: Entry) -> None:
        if self.is_live(entry["name"]):
            self._settle(self.allocations[entry["name"]], entry["done"])
            self.free = dict.fromkeys(sorted(self.free))

    def _end(self, entry: Entry) -> None:
        if not self.is_live(entry["name"]):
            return
        allocation = self.allocations[entry["name"]]
        allocation.ended = True
        self._settle(allocation, entry["done"])
        self._let_go([*allocation.held])

    def _settle(self, allocation: PoolAllocation, done: Mapping[str, str]) -> None:
        for job, how in ((int(job), how) for job, how in done.items()):
            if self.holder.get(job) == allocation.name:
                allocation.done[job] = how
                del self.holder[job], allocation.held[job]
                self._ended(job, how)

    def _stop(self, entry: Entry) -> None:
        self.stopped = "now" if entry["now"] else "stopped"

    def _let_go(self, jobs: Iterable[int]) -> None:
        for job in jobs:
            del self.allocations[self.holder.pop(job)].held[job]
            self.free[job] = None
        self.free = dict.fromkeys(sorted(self.free))

    # Queries.

    def is_live(self, name: str) -> bool:
        """Return whether this allocation has begun and has not ended."""
        return name in self.allocations and not self.allocations[name].ended

    def may_join(self, job: str) -> bool:
        """Return whether the allocation of this batch job may begin: its request was not taken back."""
        return not any(each.job == job and each.over == WITHDRAWN for each in self.requests.values())

    def held_by(self, name: str) -> list[int]:
        """Return the jobs that an allocation holds."""
        return [*self.allocations[name].held] if name in self.allocations else []

    def holders(self, but: str = "") -> list[PoolAllocation]:
        """Return the allocations that hold jobs, except `but`."""
        return [each for each in self.allocations.values() if each.held and each.name != but]

    def pending(self) -> Iterator[PoolRequest]:
        """Return the requests whose allocations have not begun. A request without an answer of the batch system
        does not count: the process that submitted it has died."""
        begun = {allocation.job for allocation in self.allocations.values()}
        return (each for each in self.requests.values() if each.job and not each.over and each.job not in begun)

    def living(self) -> int:
        """Return the number of allocations that work or are requested."""
        return sum(not each.ended for each in self.allocations.values()) + sum(1 for _ in self.pending())

    def successor(self, name: str) -> PoolAllocation | None:
        """Return the later allocation of the same batch job. If there is one, the batch system has requeued the
        job, so this allocation has ended."""
        names = list(self.allocations)
        return next((self.allocations[other] for other in names[names.index(name) + 1:]
                     if self.allocations[other].job == self.allocations[name].job), None)


def taking(name: str, jobs: Collection[int]) -> dict[str, Any]:
    """Return the entry with which an allocation takes jobs."""
    return {"do": "take", "name": name, "jobs": [*jobs]}


def nodes_of(state: PoolState, but: str = "") -> int:
    """Return the nodes of the pool's allocations and pending requests, without those of the allocation `but`."""
    return (sum(each.nodes for each in state.allocations.values() if not each.ended and each.name != but)
            + sum(each.nodes for each in state.pending()))


def surplus(state: PoolState, enough: Callable[[PoolState, Sequence[PoolRequest]], bool]) -> list[PoolRequest]:
    """Return the pending requests that are too many: those after the oldest ones that are `enough`. The oldest
    have waited longest in the batch system's queue."""
    kept: list[PoolRequest] = []
    found: list[PoolRequest] = []
    for each in state.pending():
        (found if found or enough(state, kept) else kept).append(each)
    return found
