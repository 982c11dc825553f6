"""Node orders that depend on the free amounts of nodes.

| order | first nodes | parameters |
|---|---|---|
| `best-fit` | nodes with the least free, all resources added up | |
| `balanced` | nodes without a free critical resource, then one node at a time of the longest list | critical |
| `weighted` | nodes with the least free of resources that are scarce and requested by waiting jobs | window |
| `hybrid` | as balanced, each list in the order of weighted | critical, window |
| `priority-weighted` | as weighted, but resources that jobs fail to get count more | critical, window, step, range |

The last four are the allocators of A. Netti, "Development of data-driven dispatching heuristics for
heterogeneous HPC systems" (University of Bologna, 2017), and `best-fit` is his Consolidate (`first-fit` is his Simple).

All calculations use whole numbers, so that equally good nodes are ordered by number, whatever
the units are.
"""

from __future__ import annotations

import copy
import difflib
import math
from fractions import Fraction
from collections.abc import Iterator, Mapping, Sequence

from vrm.model import bits
from vrm.model.amounts import GPU, MEMORY, unit
from vrm.model.cluster import Cluster, Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Job, Request
from vrm.model.node import Node
from vrm.model.placement import Placement
from vrm.model.policies import PolicyObserver, OrderedJobs, Rooms
from vrm.scheduling.placement.node_orders import Order
from vrm.scheduling.registry import PolicyError, positive_number, reads, whole
from vrm.ext.planning.free_amounts import Left, FreeAmounts

WINDOW = 100
"""Number of waiting jobs that `weighted` considers, including the job to place."""

_TICKS = 1_000_000
"""Expected run times are counted in millionths of a second."""


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(names):
        raise ValueError(text)
    return names


def _span(text: str) -> tuple[Fraction, Fraction]:
    least, _, most = text.partition("-")
    found = positive_number(least), positive_number(most)
    if found[0] > found[1]:
        raise ValueError(text)
    return found


class _Counting(Order):
    """An order that depends on the free amounts on nodes: free cores, and each countable resource.

    `critical`: names of the resources whose nodes are spared, in the order of their weight for lists of equal length;
    () means all except memory, GPUs first.
    """

    def __init__(self, critical: Sequence[str] = ()) -> None:
        self._wanted = tuple(critical)

    def bind(self, nodes: Sequence[Node]) -> None:
        """See `Order.bind`."""
        self._stock = FreeAmounts(nodes)
        names = self._stock.names
        for name in self._wanted:
            if name not in names:
                close = difflib.get_close_matches(name, names, 1)
                raise PolicyError(f"critical={','.join(self._wanted)}: no node has `{name}`; " + (
                    f"did you mean {close[0]}?" if close else
                    f"they have {', '.join(names) or 'nothing but cores'}"))
        chosen = self._wanted or sorted((name for name in names if name != MEMORY),
                                        key=lambda name: (name != GPU, name))
        self.critical: tuple[int, ...] = tuple(1 + names.index(name) for name in chosen)
        units = [1, *map(unit, names)]  # base units of one of each
        self._units: tuple[int, ...] = tuple(units)
        most = math.lcm(*units)
        self._even: tuple[int, ...] = tuple(most // each for each in units)


class BestFit(_Counting):
    """Nodes with the least free first: free cores, GiB of memory and pieces of all other resources, added up."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        super().__init__()

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """Yield the nodes by the sum of their free amounts, the smallest first."""
        by_sum: dict[int, int] = {}
        for left, members in self._stock.alike(view).items():
            here = members & eligible
            if here:
                key = sum(map(int.__mul__, left, self._even))
                by_sum[key] = by_sum.get(key, 0) | here
        return (by_sum[key] for key in sorted(by_sum))


@reads({
    "critical": (_names, "names of resources, as critical=gpu,mic"),
})
class Balanced(_Counting):
    """First the nodes with no critical resource free; then the others one at a time, each from the list that is longest
    at that moment.

    A node is in the list of the critical resource of which it has the most free, whether the job fits on it or not.
    Nodes of the scarcest resource come last.
    """

    def __init__(self, heatmap: Heatmap | None = None, *, critical: Sequence[str] = ()) -> None:
        super().__init__(critical)

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """Yield the nodes without free critical resources, then the heads of the other lists."""
        lists = [0] * (1 + len(self.critical))
        for left, members in self._stock.alike(view).items():
            lists[_list_of(left, self.critical, self._even)] |= members
        yield lists[0] & eligible
        for nodes in _longest_first([[each] for each in lists[1:]]):
            if nodes & eligible:
                yield nodes & eligible


def _list_of(left: Left, critical: Sequence[int], even: Sequence[int]) -> int:
    """Return the index of a node's list: 0 if no critical resource is free, otherwise 1 + the index of the critical
    resource of which most is free."""
    chosen, most = 0, 0
    for place, at in enumerate(critical, 1):
        amount = left[at] * even[at]
        if amount > most:
            chosen, most = place, amount
    return chosen


def _longest_first(lists: list[list[int]]) -> Iterator[int]:
    """Yield the heads of lists, each time from the list that is longest at that moment; among lists of equal length
    from the first. A list consists of sets of nodes, best first."""
    lengths = [sum(map(bits.count, each)) for each in lists]
    while any(lengths):
        most = max(lengths)
        at = lengths.index(most)
        # It remains the chosen one until it is as long as an earlier list, or shorter than a later one.
        least = max([1, *(length + 1 for length in lengths[:at]), *lengths[at + 1:]])
        wanted = most - least + 1
        lengths[at] -= wanted
        sets = lists[at]
        while wanted:
            chosen = bits.lowest(sets[0], wanted)
            wanted -= bits.count(chosen)
            sets[0] &= ~chosen
            if not sets[0]:
                sets.pop(0)
            if chosen:
                yield chosen


class Weighted(_Counting):
    """Nodes with the least free first, each resource weighted: how much of it the next waiting jobs request,
    times its load, over the machine's capacity.

    The free amount is what the job would leave over. On an empty machine all weights are 0, and nodes are taken by
    number. `apart`: use the lists of `Balanced`, each in this order. `most` is the largest priority of a critical
    resource. A priority starts at `least`, grows by `step` with each job that requests the resource and is tried
    without success, and falls by `step` with each job that requests it and starts.

    A job counts as tried in a step if jobs were submitted or the machine changed since the last step. Jobs after the
    first one that does not start count only if the dispatcher looks at more than heads.
    """

    def __init__(self, window: int = WINDOW, critical: Sequence[str] = (), apart: bool = False,
                 step: Fraction = Fraction(0), least: Fraction = Fraction(1),
                 most: Fraction = Fraction(1)) -> None:
        super().__init__(critical)
        self.window = window
        self.apart = apart
        self._step, self._least, self._most = step, least, most
        self.follower: PolicyObserver | None = self
        self._totals: dict[Request, Left] = {}
        self._waiting: OrderedJobs | None = None
        self._cluster: Cluster | None = None
        self._left_at = -1  # the cluster's generation after the last step
        self._planned: Mapping[int, tuple[Job, float]] = {}
        self._forget()

    def bind(self, nodes: Sequence[Node]) -> None:
        """See `Order.bind`."""
        super().bind(nodes)
        # The key of a node is sum(wanted/time x used/capacity x priority/capacity x left), here
        # multiplied so that all is in whole numbers (except the time, which divides all keys).
        below = [capacity ** 2 * each or 1
                 for capacity, each in zip(self._stock.capacity, self._units)]
        whole = math.lcm(*below)
        self._factors = [whole // each for each in below]
        self._whole = whole
        self._parts = math.lcm(self._step.denominator, self._least.denominator,
                               self._most.denominator)
        self._priorities = [self._parts] * len(self._units)
        for at in self.critical:
            self._priorities[at] = int(self._least * self._parts)

    def copy(self) -> Weighted:
        """Return an independent copy, including the priorities."""
        twin = copy.copy(self)
        twin.follower = twin
        twin._priorities = list(self._priorities)
        twin._stock = copy.copy(self._stock)
        twin._stock.forget()
        twin._waiting = twin._cluster = None
        twin._planned = {}
        twin._forget()
        return twin

    # Calls of the scheduler.

    def follow(self, now: float, waiting: OrderedJobs, cluster: Cluster,
               decided: Iterator[tuple[Job, Placement]], all_tried: bool
               ) -> Iterator[tuple[Job, Placement]]:
        """See `vrm.model.policies.PolicyObserver`."""
        self._waiting, self._cluster, self._now = waiting, cluster, now
        self._forget()
        self._counted = 0
        self._started: set[int] = set()
        self._tries = self._step > 0 and (bool(waiting.fresh) or self._left_at != cluster.generation)
        try:
            for job, placement in decided:
                yield job, placement
                self._started.add(job.id)
                self._move(job, -1)
            if all_tried:
                self._count_to(len(waiting))
            else:
                first = next((at for at in range(len(waiting))
                              if waiting[at].id not in self._started), -1)
                self._count_to(first + 1)
        finally:
            self._left_at = cluster.generation
            self._waiting = self._cluster = None
            self._planned = {}
            self._forget()

    def plans(self, starts: Mapping[int, tuple[Job, float]]) -> None:
        """See `vrm.model.policies.PolicyObserver`."""
        self._planned = starts

    def _forget(self) -> None:
        """Forget the sums over the waiting jobs."""
        self._place_of: dict[int, int] = {}
        self._times: list[int] = [0]
        self._sums: list[tuple[int, ...]] = []

    # Priorities.

    @property
    def priorities(self) -> dict[str, float]:
        """The priorities of the critical resources, by name."""
        return {self._stock.names[at - 1]: self._priorities[at] / self._parts
                for at in self.critical}

    def _move(self, job: Job, sign: int) -> None:
        """Change the priorities of the critical resources that a job requests."""
        if self._step:
            totals = self._total(job)
            step, parts = self._step * self._parts, self._parts
            for at in self.critical:
                if totals[at]:
                    self._priorities[at] = int(max(self._least * parts, min(
                        self._most * parts, self._priorities[at] + sign * step)))

    def _count_to(self, place: int) -> None:
        """Count the waiting jobs before this index that did not start as tried without success."""
        if self._tries and self.critical and self._waiting is not None:
            top = int(self._most * self._parts)
            for at in range(self._counted, place):
                if all(self._priorities[each] == top for each in self.critical):
                    break
                job = self._waiting[at]
                if job.id not in self._started:
                    self._move(job, +1)
        self._counted = max(self._counted, place)

    # The window.

    def _total(self, job: Job) -> Left:
        """Return what a job takes of the machine: cores, then base units of each resource. Amounts per node are counted
        for the smallest possible number of nodes."""
        request = job.request
        total = self._totals.get(request)
        if total is None:
            per_task, per_node = dict(request.per_task), dict(request.per_node)
            total = self._totals[request] = (
                request.tasks * request.cores_per_task,
                *[request.tasks * per_task.get(name, 0)
                  + request.least_nodes * per_node.get(name, 0) for name in self._stock.names])
        return total

    def _place(self, job: Job) -> int:
        """Return the index of a job in the queue; -1 if it does not wait, or outside of a step."""
        waiting = self._waiting
        if waiting is None or not waiting.holds(job):
            return -1
        while job.id not in self._place_of:
            self._sum_up()
        return self._place_of[job.id]

    def _sum_up(self) -> None:
        """Add the next waiting job to the sums."""
        assert self._waiting is not None
        if not self._sums:
            self._sums.append((0,) * len(self._units))
        at = len(self._sums) - 1
        job = self._waiting[at]
        self._place_of[job.id] = at
        time = round(job.expected * _TICKS)
        self._times.append(self._times[-1] + time)
        self._sums.append(tuple(sum_ + time * each
                                for sum_, each in zip(self._sums[-1], self._total(job))))

    def _in_window(self, job: Job, first: int) -> tuple[Sequence[int], int]:
        """Return what the jobs of the window request, times their run times, and the sum of the run times."""
        if first < 0:
            time = round(job.expected * _TICKS)
            return [time * each for each in self._total(job)], time
        assert self._waiting is not None
        last = min(first + self.window, len(self._waiting))
        while len(self._sums) <= last:
            self._sum_up()
        wanted = [after - before for before, after in zip(self._sums[first], self._sums[last])]
        times = self._times[last] - self._times[first]
        for other, start in self._planned.values():
            if start < self._now + job.expected and not first <= self._place(other) < last:
                time = round(other.expected * _TICKS)
                times += time
                wanted = [sum_ + time * each for sum_, each in zip(wanted, self._total(other))]
        return wanted, times

    # The order.

    def _weights(self, job: Job, view: Pool) -> tuple[list[int], int]:
        """Return the weight of a base unit of each resource, as whole numbers over one denominator."""
        first = self._place(job)
        if view is self._cluster and first >= 0:
            self._count_to(first)
        wanted, times = self._in_window(job, first)
        used = self._stock.used(view)
        return [part * some * factor * priority for part, some, factor, priority
                in zip(wanted, used, self._factors, self._priorities)], (
                    times * self._whole * self._parts)

    def weights(self, job: Job, view: Pool) -> dict[str, Fraction]:
        """Return the weight of one unit of each resource (memory: GiB), for this job now."""
        found, below = self._weights(job, view)
        return {name: Fraction(weight * each, below) for name, weight, each
                in zip(("cores", *self._stock.names), found, self._units)}

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """Yield the nodes on which tasks of the job fit, by the amounts that the job would leave over there."""
        weights, _ = self._weights(job, view)
        if not self.apart:
            if not any(weights):
                yield eligible
                return
            by_key = self._keyed(job, view, rooms, weights, False)[0]
            for key in sorted(by_key):
                yield by_key[key]
            return
        lists = [[each[key] for key in sorted(each)]
                 for each in self._keyed(job, view, rooms, weights, True)]
        yield from lists[0]
        yield from _longest_first(lists[1:])

    def _keyed(self, job: Job, view: Pool, rooms: Rooms, weights: Sequence[int],
               apart: bool) -> list[dict[int, int]]:
        """Return the nodes by their keys, for each list."""
        request, tasks = job.request, job.procs
        names = self._stock.names
        alike = [(members, sum(map(int.__mul__, weights, left)),
                  _list_of(left, self.critical, self._even) if apart else 0)
                 for left, members in self._stock.alike(view).items()]
        lists: list[dict[int, int]] = [{} for _ in range(1 + len(self.critical) * apart)]
        for nodes, room in rooms():
            here = min(room, tasks)
            taken = here * request.cores_per_task * weights[0]
            if request.amounts:
                amounts = dict(request.on_node(here))
                taken += sum(weight * amounts.get(name, 0)
                             for name, weight in zip(names, weights[1:]))
            for members, left, place in alike:
                both = members & nodes
                if both:
                    keyed = lists[place]
                    keyed[left - taken] = keyed.get(left - taken, 0) | both
        return lists


@reads({
    "window": (whole, "a number of jobs from 1 on, as window=100"),
})
def weighted(heatmap: Heatmap | None = None, *, window: int = WINDOW) -> Weighted:
    """Order nodes by weighted free amounts, the least first."""
    return Weighted(window)


@reads({
    "critical": (_names, "names of resources, as critical=gpu,mic"),
    "window": (whole, "a number of jobs from 1 on, as window=100"),
})
def hybrid(heatmap: Heatmap | None = None, *, critical: Sequence[str] = (),
           window: int = WINDOW) -> Weighted:
    """Order nodes by the lists of `Balanced`, each list by weighted free amounts."""
    return Weighted(window, critical, apart=True)


@reads({
    "critical": (_names, "names of resources, as critical=gpu,mic"),
    "window": (whole, "a number of jobs from 1 on, as window=100"),
    "step": (positive_number, "a number above 0, as step=1"),
    "range": (_span, "two numbers above 0, as range=1-10"),
})
def priority_weighted(heatmap: Heatmap | None = None, *, critical: Sequence[str] = (),
                      window: int = WINDOW, step: Fraction = Fraction(1),
                      range: tuple[Fraction, Fraction] = (Fraction(1), Fraction(10))) -> Weighted:
    """Order nodes by weighted free amounts, with priorities."""
    return Weighted(window, critical, step=step, least=range[0], most=range[1])
