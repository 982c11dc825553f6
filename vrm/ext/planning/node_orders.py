"""Node orders that go by what is left on nodes.

| order | first come | parameters |
|---|---|---|
| `best-fit` | nodes on which least is left, all resources added up | |
| `balanced` | nodes without a free critical resource, then one of the longest list at a time | critical |
| `weighted` | nodes on which least is left of what is scarce and waited for | window |
| `hybrid` | as balanced, each list in the order of weighted | critical, window |
| `priority-weighted` | as weighted, but what jobs fail to get counts more | critical, window, step, range |

The last four are the allocators of A. Netti, "Development of data-driven dispatching heuristics for
heterogeneous HPC systems" (University of Bologna, 2017), and `best-fit` is his Consolidate (`first-fit` is his Simple).

All of it is counted in whole numbers, so nodes that are equally good are taken by number, whatever
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
from vrm.model.policies import Follower, InOrder, Rooms
from vrm.scheduling.placement.node_orders import Order
from vrm.scheduling.registry import PolicyError, above_0, reads, whole
from vrm.ext.planning.stock import Left, Stock

WINDOW = 100
"""Waiting jobs that `weighted` looks at, the one that is placed included."""

_TICKS = 1_000_000
"""Expected run times are counted in millionths of a second."""


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(names):
        raise ValueError(text)
    return names


def _span(text: str) -> tuple[Fraction, Fraction]:
    least, _, most = text.partition("-")
    found = above_0(least), above_0(most)
    if found[0] > found[1]:
        raise ValueError(text)
    return found


class _Counting(Order):
    """An order that goes by what is left on nodes: free cores, and each countable resource.

    `critical` are the names of the resources of which nodes are spared, in the order of their
    weight where lists are equally long; () for all but memory, GPUs first.
    """

    def __init__(self, critical: Sequence[str] = ()) -> None:
        self._wanted = tuple(critical)

    def bind(self, nodes: Sequence[Node]) -> None:
        """See `Order.bind`."""
        self._stock = Stock(nodes)
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
    """Least left first: free cores, GiB of memory and pieces of all else, added up."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        super().__init__()

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """The nodes by the sum of what is left."""
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
    """Nodes of which no critical resource is left first; of the others one at a time, from the list
    that is longest then.

    A node stands in the list of the critical resource of which most is left there, whether the job
    finds room on it or not. Nodes of the scarcest resource come last.
    """

    def __init__(self, heatmap: Heatmap | None = None, *, critical: Sequence[str] = ()) -> None:
        super().__init__(critical)

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """The list of nodes without, then heads of the others."""
        lists = [0] * (1 + len(self.critical))
        for left, members in self._stock.alike(view).items():
            lists[_list_of(left, self.critical, self._even)] |= members
        yield lists[0] & eligible
        for nodes in _longest_first([[each] for each in lists[1:]]):
            if nodes & eligible:
                yield nodes & eligible


def _list_of(left: Left, critical: Sequence[int], even: Sequence[int]) -> int:
    """The place of a node's list: 0 where nothing critical is left, else 1 + the place of the
    critical resource of which most is."""
    chosen, most = 0, 0
    for place, at in enumerate(critical, 1):
        amount = left[at] * even[at]
        if amount > most:
            chosen, most = place, amount
    return chosen


def _longest_first(lists: list[list[int]]) -> Iterator[int]:
    """The heads of lists, each time of the one that is longest then, of equally long ones the
    first; a list is sets of nodes, best first."""
    lengths = [sum(map(bits.count, each)) for each in lists]
    while any(lengths):
        most = max(lengths)
        at = lengths.index(most)
        # It stays the longest until it is as long as an earlier list, or shorter than a later one.
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
    """Least left first, each resource with its weight: how much of it the next waiting jobs want,
    times its load, over how much of it the machine has.

    What counts as left is what the job would leave over. On an empty machine all weights are 0, and
    nodes are taken by number. `apart`: the lists of `Balanced`, each in this order. `most` is the
    largest priority of a critical resource, which starts at `least`, grows by `step` with each job
    that wants it and is tried without success, and falls by as much with each that starts.

    A job is tried in a step if jobs came or the machine changed since the last step; behind the
    first that does not start, only where the dispatcher looks at more than heads.
    """

    def __init__(self, window: int = WINDOW, critical: Sequence[str] = (), apart: bool = False,
                 step: Fraction = Fraction(0), least: Fraction = Fraction(1),
                 most: Fraction = Fraction(1)) -> None:
        super().__init__(critical)
        self.window = window
        self.apart = apart
        self._step, self._least, self._most = step, least, most
        self.follower: Follower | None = self
        self._totals: dict[Request, Left] = {}
        self._waiting: InOrder | None = None
        self._cluster: Cluster | None = None
        self._left_at = -1  # the cluster's generation after the last step
        self._planned: Mapping[int, tuple[Job, float]] = {}
        self._forget()

    def bind(self, nodes: Sequence[Node]) -> None:
        """See `Order.bind`."""
        super().bind(nodes)
        # The key of a node is sum(wanted/time x used/capacity x priority/capacity x left): here
        # times what makes all of it whole numbers (but for the time, by which all are divided).
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
        """An independent copy, with the priorities."""
        twin = copy.copy(self)
        twin.follower = twin
        twin._priorities = list(self._priorities)
        twin._stock = copy.copy(self._stock)
        twin._stock.forget()
        twin._waiting = twin._cluster = None
        twin._planned = {}
        twin._forget()
        return twin

    # What the scheduler tells.

    def follow(self, now: float, waiting: InOrder, cluster: Cluster,
               decided: Iterator[tuple[Job, Placement]], all_tried: bool
               ) -> Iterator[tuple[Job, Placement]]:
        """See `vrm.model.policies.Follower`."""
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
        """See `vrm.model.policies.Follower`."""
        self._planned = starts

    def _forget(self) -> None:
        """Forget the sums over the waiting jobs."""
        self._place_of: dict[int, int] = {}
        self._times: list[int] = [0]
        self._sums: list[tuple[int, ...]] = []

    # Priorities.

    @property
    def priorities(self) -> dict[str, float]:
        """Those of the critical resources."""
        return {self._stock.names[at - 1]: self._priorities[at] / self._parts
                for at in self.critical}

    def _move(self, job: Job, sign: int) -> None:
        """Change the priorities of the critical resources that a job wants."""
        if self._step:
            totals = self._total(job)
            step, parts = self._step * self._parts, self._parts
            for at in self.critical:
                if totals[at]:
                    self._priorities[at] = int(max(self._least * parts, min(
                        self._most * parts, self._priorities[at] + sign * step)))

    def _count_to(self, place: int) -> None:
        """The waiting jobs up to this place that did not start were tried in vain."""
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
        """What a job takes of the machine: cores, then base units of each resource; what it takes
        once on each node, on the least number of nodes."""
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
        """The place of a job in the queue; -1 when it does not wait, or no step is under way."""
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
        """What the jobs of the window want, times their run times, and the sum of these."""
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
        """The weight of a base unit of each resource, as whole numbers over one denominator."""
        first = self._place(job)
        if view is self._cluster and first >= 0:
            self._count_to(first)
        wanted, times = self._in_window(job, first)
        used = self._stock.used(view)
        return [part * some * factor * priority for part, some, factor, priority
                in zip(wanted, used, self._factors, self._priorities)], (
                    times * self._whole * self._parts)

    def weights(self, job: Job, view: Pool) -> dict[str, Fraction]:
        """The weight of one of each resource (GiB of memory), for this job now."""
        found, below = self._weights(job, view)
        return {name: Fraction(weight * each, below) for name, weight, each
                in zip(("cores", *self._stock.names), found, self._units)}

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """The nodes that hold tasks of the job, by what the job would leave over there."""
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
        """The nodes by their keys, for each list."""
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
    """Least left first, by weight."""
    return Weighted(window)


@reads({
    "critical": (_names, "names of resources, as critical=gpu,mic"),
    "window": (whole, "a number of jobs from 1 on, as window=100"),
})
def hybrid(heatmap: Heatmap | None = None, *, critical: Sequence[str] = (),
           window: int = WINDOW) -> Weighted:
    """The lists of `Balanced`, each by weight."""
    return Weighted(window, critical, apart=True)


@reads({
    "critical": (_names, "names of resources, as critical=gpu,mic"),
    "window": (whole, "a number of jobs from 1 on, as window=100"),
    "step": (above_0, "a number above 0, as step=1"),
    "range": (_span, "two numbers above 0, as range=1-10"),
})
def priority_weighted(heatmap: Heatmap | None = None, *, critical: Sequence[str] = (),
                      window: int = WINDOW, step: Fraction = Fraction(1),
                      range: tuple[Fraction, Fraction] = (Fraction(1), Fraction(10))) -> Weighted:
    """By weight, with priorities."""
    return Weighted(window, critical, step=step, least=range[0], most=range[1])
