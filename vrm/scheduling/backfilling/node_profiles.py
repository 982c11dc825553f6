"""Free cores and amounts of each node as step functions of time: on which nodes, and during which times, a job fits.

A `PoolProfile` knows for each step what is free everywhere. To find a start with it alone, everything that is free
from a step to the end of the job would have to be intersected, for each step. But a job changes only few nodes, and
for the others it is known when they have capacity: this module looks only at nodes where something has changed.
"""

from __future__ import annotations

import bisect
import math
from typing import NamedTuple
from collections.abc import Callable, Hashable, Sequence

from vrm.model import bits
from vrm.model.cluster import Pool
from vrm.model.job import Job
from vrm.model.sharing.capacity import TaskCapacity

State = tuple[int, ...]
"""What is free on a node: a set of cores counted from its first core, then the amounts in the order of the names (base
units)."""

Span = tuple[float, float]
"""The first and the last time at which a job may start."""

MOST = 256
"""Maximum number of kinds of jobs whose possible starts are cached."""

MOST_STATES = 10_000
"""Maximum number of node states whose capacity for one kind of tasks is cached."""


class NodeNeeds(NamedTuple):
    """What a job must find during its whole run: at least `nodes` of the nodes `able`, each with capacity for `tasks`
    of its tasks. `room` returns for how many tasks a node has capacity, from its free cores and amounts; it is the
    same for all jobs of one `kind`."""

    kind: Hashable  # also the kind in `vrm.model.sharing.capacity.CapacityLedger`
    able: int
    nodes: int
    tasks: int
    room: Callable[[int, int, Callable[[str], int]], int]


class _Starts:
    """Possible starts of jobs that are alike, for each node by itself. The nodes in `stale` must be computed again."""

    __slots__ = ("able", "spans", "first", "last", "stale")

    def __init__(self, nodes: int, able: int) -> None:
        self.able = self.stale = able
        self.spans: list[list[Span]] = [[] for _ in range(nodes)]
        self.first = [math.inf] * nodes  # the first possible start, and the end of its span
        self.last = [math.inf] * nodes


class NodeProfiles:
    """The steps of each node, beginning with those of a view. Nodes that are down have no capacity."""

    def __init__(self, now: float, view: Pool) -> None:
        self._up, self._layout, self._names = view.up, view.layout, tuple(view.left)
        nodes = range(len(view.nodes))
        free = view.layout.split(view.free_cores)
        self._times: list[list[float]] = [[now] for _ in nodes]
        self._states: list[list[State]] = [
            [(free(node), *[view.left[name][node] for name in self._names])] for node in nodes]
        self._shapes = [node.sockets for node in view.nodes]
        self._starts: dict[Hashable, _Starts] = {}
        # By kind and node; nodes with equal sockets share one dictionary.
        self._rooms: dict[Hashable, list[dict[State, int]]] = {}

    def copy(self) -> NodeProfiles:
        """Return an independent copy."""
        twin = NodeProfiles.__new__(NodeProfiles)
        twin.__dict__.update(self.__dict__)
        twin._times, twin._states = list(map(list, self._times)), list(map(list, self._states))
        twin._starts = {}
        return twin

    def change(self, begin: float, end: float, nodes: int, cores: int,
               amounts: Sequence[tuple[str, int, int]], sign: int) -> None:
        """Free (`sign` +1) or take (-1) cores and amounts of some nodes from `begin` to `end`."""
        more: dict[int, list[int]] = {}
        for name, node, amount in amounts:
            more.setdefault(node, [0] * len(self._names))[self._names.index(name)] += sign * amount
        for node in bits.members(nodes):
            here, plus = self._layout.on_node(cores, node), more.get(node)
            times, states = self._times[node], self._states[node]
            first = self._step_at(times, states, begin)
            last = self._step_at(times, states, end) if end < math.inf else len(times)
            for at in range(first, last):
                free, *left = states[at]
                states[at] = (free | here if sign > 0 else free & ~here,
                              *(left if plus is None else map(int.__add__, left, plus)))
            for at in (last, first):
                if 0 < at < len(times) and states[at] == states[at - 1]:
                    del times[at], states[at]
        for starts in self._starts.values():
            starts.stale |= nodes & starts.able

    @staticmethod
    def _step_at(times: list[float], states: list[State], time: float) -> int:
        at = bisect.bisect_left(times, time)
        if at == len(times) or times[at] != time:
            if not at:
                return 0  # nothing is known about times before the first step
            times.insert(at, time)
            states.insert(at, states[at - 1])
        return at

    def starts(self, wants: NodeNeeds, job: Job, now: float, limit: float, own: int = 0) -> list[Span]:
        """Return when a job may start, from `now` on and before `limit`, ascending. For the nodes `own`, the time from
        `limit` on is ignored: the job itself has taken capacity there."""
        key = wants.kind, wants.tasks, job.expected
        found = self._starts.get(key)
        if found is None:
            if len(self._starts) >= MOST:
                self._starts.clear()
            found = self._starts[key] = _Starts(len(self._times), wants.able & self._up)
        first, last, spans = found.first, found.last, found.spans
        if min(last) < now:
            for node in bits.members(found.able):
                if last[node] < now:
                    found.stale |= 1 << node
        for node in bits.members(found.stale):
            spans[node] = here = self._look(wants, node, job.expected, now)
            first[node], last[node] = here[0] if here else (math.inf, math.inf)
        found.stale = 0
        if min(first) <= now and sum(begin <= now and end == math.inf
                                     for begin, end in zip(first, last)) >= wants.nodes:
            return [(now, math.inf)]
        mine = {node: self._look(wants, node, job.expected, now, limit) for node in bits.members(own & found.able)}
        every = [mine.pop(node) if node in mine else spans[node] for node, begin in enumerate(first) if begin < limit]
        every += mine.values()
        return _covered(every, wants.nodes)

    def _look(self, wants: NodeNeeds, node: int, duration: float, now: float, limit: float = math.inf) -> list[Span]:
        """Return when the job may start as far as one node is concerned; times from `limit` on are ignored."""
        times, states = self._times[node], self._states[node]
        past = bisect.bisect_right(times, now) - 1
        if past > 0:
            del times[:past], states[:past]
        found: list[Span] = []
        known, begin = self._known(wants)[node], -math.inf
        for time, state in zip(times, states):
            if time >= limit:
                break
            room = known.get(state, -1)
            if room < 0:
                room = self._room(wants, node, state, known)
            if room >= wants.tasks:
                if begin < 0:
                    begin = time
            elif begin >= 0:
                # This may be too late by a rounding error: the caller checks the whole run.
                until = math.nextafter(time - duration, math.inf)
                if until >= max(begin, now):
                    found.append((begin, until))
                begin = -math.inf
        if begin >= 0:
            found.append((begin, math.inf))
        return found

    def keep_common(self, view: Pool, begin: float, end: float, wants: NodeNeeds) -> None:
        """Keep free, in a view at `begin`, only the cores and amounts that are free until `end`, and store in the view
        on which nodes there is capacity for the job."""
        each, total, some = [0] * len(self._times), 0, 0
        taken, left = view.busy_cores, [list(view.left[name]) for name in self._names]
        able, cores, known = wants.able & self._up, self._layout.node_first, self._known(wants)
        for node, times in enumerate(self._times):
            states = self._states[node]
            at = bisect.bisect_right(times, begin)
            state = states[at - 1]
            if at < len(times) and times[at] < end:
                free, amounts = state[0], state[1:]
                while at < len(times) and times[at] < end:
                    free &= states[at][0]
                    if states[at][1:] != amounts:
                        amounts = tuple(map(min, amounts, states[at][1:]))
                    at += 1
                taken |= (state[0] & ~free) << cores[node]
                for column, amount in zip(left, amounts):
                    column[node] = amount
                state = (free, *amounts)
            if able >> node & 1:
                room = known[node].get(state, -1)
                if room < 0:
                    room = self._room(wants, node, state, known[node])
                if room:
                    each[node] = room
                    total += room
                    some |= 1 << node
        view.busy_cores = taken
        view.left = dict(zip(self._names, left))
        view.rooms.know(wants.kind, TaskCapacity(each, total, some, 0))

    def _known(self, wants: NodeNeeds) -> list[dict[State, int]]:
        """Return, by node, the cached capacity (tasks) for each of its states."""
        found = self._rooms.get(wants.kind)
        if found is None:
            of_shape: dict[tuple[int, ...], dict[State, int]] = {shape: {} for shape in self._shapes}
            found = self._rooms[wants.kind] = [of_shape[shape] for shape in self._shapes]
        return found

    def _room(self, wants: NodeNeeds, node: int, state: State, known: dict[State, int]) -> int:
        """Compute for how many tasks a node has capacity in a state, and cache it."""
        if len(known) >= MOST_STATES:
            known.clear()
        left = dict(zip(self._names, state[1:]))
        known[state] = room = max(0, wants.room(node, state[0], left.__getitem__))
        return room


def _covered(every: Sequence[Sequence[Span]], nodes: int) -> list[Span]:
    """Return the times that are in the spans of at least `nodes` nodes."""
    if len(every) <= nodes == 1:
        return [span for spans in every for span in spans]
    # A span includes its last time: at that time, others begin before it ends.
    events = sorted([(begin, 0) for spans in every for begin, _ in spans]
                    + [(end, 1) for spans in every for _, end in spans])
    found: list[Span] = []
    open_, begin = 0, 0.0
    for time, ends in events:
        if ends:
            if open_ == nodes:
                found.append((begin, time))
            open_ -= 1
        else:
            open_ += 1
            if open_ == nodes:
                begin = time
    return found
