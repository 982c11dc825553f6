"""The cluster: which lanes or cores of which nodes are taken, by which job and until when.

A lane (core share) is one half of each socket's cores; see `vrm.model.node.lane_of_socket`.
"""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, Any
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vrm.model import bits
from vrm.model.sharing import devices
from vrm.model.amounts import amounts, base, people
from vrm.model.booking import Booking as Booking, Watcher
from vrm.model.sharing.core_share import Loan, slots
from vrm.model.job import Job
from vrm.model.measured.energy import NO_PROGRAMS
from vrm.model.sharing.loans import Loans
from vrm.model.node import HALF, Node, Socket, node_classes
from vrm.model.placement import CoreLayout, Placement, RankSlot
from vrm.model.measured.power import pace
from vrm.model.reservation import NO_CALENDAR, Calendar
from vrm.model.sharing.capacity import CapacityLedger

if TYPE_CHECKING:
    from vrm.model.constraint import Constraint

# The constructor of a named tuple calls this; calling it directly takes a third of the time.
_new = tuple.__new__


class Pool:
    """Free and taken lanes and cores of the nodes, kept as sets of nodes and of cores; cheap to copy.

    Policies see the machine as a pool: the cluster as it is now, or a copy that was changed with `take` and `give` to
    show a future or hypothetical state. `nodes` and `classes` never change. `busy0` and `busy1` are the nodes whose
    lane 0 or lane 1 is taken. Policies that share nodes core by core use `busy_cores`, a set of cores in the numbering
    of `layout`. `left` has, for each countable resource, the amount (base units) that is left on each node; `licences`
    has what is left of the licences of the whole run. `rooms` caches how many tasks fit on each node. `tenants` maps
    each load (executable and ranks) to the lanes that it holds now. `calendar` has the advance reservations; if there
    are any, or there are `constraints`, `at` is the time (seconds) that this view shows. `programs` has the
    measurements of programs.
    """

    def __init__(self, nodes: Sequence[Node], licences: Mapping[str, float] | None = None
                 ) -> None:
        self.nodes = nodes
        self.classes = node_classes(nodes)
        self.up = self._all = (1 << len(nodes)) - 1
        self.busy0 = 0
        self.busy1 = 0
        self.layout = CoreLayout(nodes)
        self.busy_cores = 0
        self._down_cores = 0
        self._empties = self._free = -1  # numbers of empty nodes and of free cores; -1: not counted yet
        names = sorted({name for each in self.classes for name in each.node.resources})
        self.left: dict[str, list[int]] = {
            name: [base(name, node.resources.get(name, 0)) for node in nodes] for name in names}
        self._shared: frozenset[str] = frozenset()  # names in `left` whose lists are shared with copies
        self.licences = dict(amounts(licences or {}))
        self.rooms = CapacityLedger(self._all)
        self.tenants: dict[tuple[str, int], list[int]] = {}
        self.calendar = NO_CALENDAR
        self.at = 0.0
        self.programs = NO_PROGRAMS
        self.constraints: tuple[Constraint, ...] = ()

    def what_if(self) -> Pool:
        """Return an independent copy of the free and taken state, to try out starts and ends of jobs. The `tenants` of
        the copy stay those of now."""
        twin = Pool.__new__(Pool)
        self._copy_to(twin)
        return twin

    def copy(self) -> Pool:
        """Return an independent copy: `what_if` for a pool; a cluster also copies its bookings."""
        return self.what_if()

    def _copy_to(self, twin: Pool) -> None:
        twin.nodes, twin.classes, twin._all = self.nodes, self.classes, self._all
        twin.up, twin.busy0, twin.busy1 = self.up, self.busy0, self.busy1
        twin.layout = self.layout
        twin.busy_cores, twin._down_cores = self.busy_cores, self._down_cores
        twin._empties, twin._free = self._empties, self._free
        twin.left, twin.tenants = dict(self.left) if self.left else self.left, self.tenants
        twin._shared = self._shared = frozenset(self.left)
        twin.licences = dict(self.licences) if self.licences else self.licences
        twin.rooms = CapacityLedger(self._all, self.rooms if self.rooms.used else None)
        twin.calendar, twin.at = self.calendar, self.at
        twin.programs = self.programs
        twin.constraints = self.constraints and tuple([each.copy() for each in self.constraints])

    def close(self, nodes: int) -> None:
        """Mark nodes as down, so that nothing starts on them; only for copies."""
        self.up &= ~nodes
        for node in bits.members(nodes):
            self._down_cores |= self.layout.node_cores(node)
        self._empties = self._free = -1
        self.rooms.touch(nodes, freed=False)

    def left_on(self, node: int) -> Callable[[str], int]:
        """Return a function that gives how much of a resource is left on `node` (base units; 0 for an unknown
        resource)."""
        left = self.left
        return lambda name: left[name][node] if name in left else 0

    def has_licences(self, job: Job) -> bool:
        """Return whether the licences that the job takes are available."""
        return all(self.licences.get(name, 0) >= amount for name, amount in job.request.licences)

    @property
    def amounts(self) -> dict[str, list[float]]:
        """What is left of each resource on each node, in people's units."""
        return {name: [people(name, amount) for amount in left]
                for name, left in self.left.items()}

    @property
    def free0(self) -> int:
        """Nodes that are up and whose lane 0 is free."""
        return self.up & ~self.busy0

    @property
    def free1(self) -> int:
        """Nodes that are up and whose lane 1 is free."""
        return self.up & ~self.busy1

    @property
    def all_up(self) -> bool:
        """Whether all nodes are up."""
        return self.up == self._all

    @property
    def empty(self) -> int:
        """Nodes that are up and hold no job."""
        empty = self.up & ~(self.busy0 | self.busy1)
        if self.busy_cores:
            empty &= ~self.layout.nodes_of(self.busy_cores)
        return empty

    @property
    def free_cores(self) -> int:
        """Free cores (numbered as in `layout`) of nodes that are up and have no lane taken."""
        taken = self.busy_cores | self._down_cores
        if self.busy0 or self.busy1:  # jobs of a policy by lanes still run here
            taken |= self.layout.cores_of(self.busy0 | self.busy1)
        return self.layout.all & ~taken

    def count_empty(self) -> int:
        """The number of empty nodes."""
        if self._empties < 0:
            self._empties = bits.count(self.empty)
        return self._empties

    def count_free(self) -> int:
        """The number of free cores (see `layout`)."""
        if self._free < 0:
            self._free = bits.count(self.free_cores)
        return self._free

    def free_on(self, node: int) -> int:
        """Return the number of free cores of a node that are in no taken lane; 0 if it is down. For users' policies:
        docs/how-to/policies.md."""
        if not self.up >> node & 1:
            return 0
        facts = self.nodes[node]
        lanes = (self.busy0 >> node & 1, self.busy1 >> node & 1)
        if all(lanes):
            return 0
        if any(lanes):
            return facts.capacity(HALF, lanes.index(0), 1)
        return facts.cores - bits.count(self.busy_cores & self.layout.node_cores(node))

    def boundaries(self, now: float) -> Sequence[float]:
        """Return the times after `now` at which reservations or constraints change what is available, ascending."""
        if not self.constraints:
            return self.calendar.boundaries(now)
        return sorted({*self.calendar.boundaries(now),
                       *(time for each in self.constraints for time in each.boundaries(now))})

    def take(self, job: Job, placement: Placement, begun: float | None = None) -> None:
        """Mark everything that the placement takes as taken: lanes or cores, amounts, licences, and what constraints
        count. `begun` is the start of the job, if it is not the time of this view."""
        lane0, lane1, cores = placement.room
        self.busy0 |= lane0
        self.busy1 |= lane1
        self.busy_cores |= cores
        self._empties = self._free = -1
        if self.rooms.used:
            self.rooms.touch(placement.node_set, freed=False)
        if not job.request.plain:
            self._change_amounts(job, placement, -1)
        if self.constraints:
            begin = self.at if begun is None else begun
            for each in self.constraints:
                each.take(job, placement, begin, begin + job.walltime * placement.pace)

    def clashes(self, placement: Placement) -> bool:
        """Return whether something that the placement holds is already taken, or is on a node that is down. Lent cores
        belong to their lender, so a placement on them clashes only if a node is down or its own capacity is taken."""
        lane0, lane1, cores = placement.room
        if placement.lease is not None and (placement.node_set & ~self.up or not (lane0 or lane1 or cores)):
            return bool(placement.node_set & ~self.up)
        if cores:
            return bool(cores & ~self.free_cores)
        return bool(lane0 & self.busy0 or lane1 & self.busy1 or (lane0 | lane1) & ~self.up
                    or (self.busy_cores and (lane0 | lane1) & self.layout.nodes_of(self.busy_cores)))

    def give(self, job: Job, placement: Placement) -> None:
        """Undo `take`."""
        lane0, lane1, cores = placement.room
        self.busy0 &= ~lane0
        self.busy1 &= ~lane1
        self.busy_cores &= ~cores
        self._empties = self._free = -1
        if self.rooms.used:
            self.rooms.touch(placement.node_set)
        if not job.request.plain:
            self._change_amounts(job, placement, +1)
        for each in self.constraints:
            each.give(job, placement)

    def keep_common(self, *others: Pool, nodes: bool = True) -> None:
        """Keep as free only what is free in all the other pools, too. With `nodes=False`, taken cores and amounts of
        nodes stay unchanged, for a caller that knows them better."""
        busy0, busy1, busy_cores, down = self.busy0, self.busy1, self.busy_cores, self._down_cores
        for other in others:
            self.up &= other.up
            busy0 |= other.busy0
            busy1 |= other.busy1
            if nodes:
                busy_cores |= other.busy_cores
            down |= other._down_cores
            if self.constraints:
                for mine, its in zip(self.constraints, other.constraints):
                    mine.keep_common(its, other.at)
        self.busy0, self.busy1, self.busy_cores, self._down_cores = busy0, busy1, busy_cores, down
        self._empties = self._free = -1
        for name, left in self.left.items() if nodes else ():  # many pools share one list
            lists = {id(each): each for each in (left, *(other.left[name] for other in others))}
            if len(lists) > 1:
                self.left[name] = list(map(min, *lists.values()))
                self._shared -= {name}
        if self.licences and others:
            self.licences = {name: min(left, *(other.licences[name] for other in others))
                             for name, left in self.licences.items()}
        self.rooms.touch(self._all, freed=False)

    def alike(self, other: Pool) -> bool:
        """Return whether exactly the same is free in the other pool."""
        return (self.busy_cores == other.busy_cores and self.busy0 == other.busy0 and self.busy1 == other.busy1
                and self.up == other.up and self._down_cores == other._down_cores and self.left == other.left
                and self.licences == other.licences
                and all(mine.alike(its) for mine, its in zip(self.constraints, other.constraints)))

    def returns(self, placement: Placement) -> int:
        """Return how much of the placement's size becomes free when its job ends: the part on nodes that are up."""
        if self.up == self._all:
            return placement.size
        lane0, lane1, cores = placement.room
        return bits.count((lane0 | lane1) & self.up) + bits.count(cores and cores & ~self._down_cores)

    def _change_amounts(self, job: Job, placement: Placement, sign: int) -> None:
        request = job.request
        for name, amount in request.licences:
            self.licences[name] += sign * amount
        if not request.amounts:
            return
        known = placement.amounts
        if known is None or known[0] is not request:
            known = placement.amounts = request, [
                (name, node, amount)
                for asked, part in zip(request.parts or (request,), placement.parts or (placement,))
                for node, tasks in part.ranks_by_node(self.nodes) for name, amount in asked.on_node(tasks)]
        for name, node, amount in known[1]:
            if name in self._shared:
                self.left[name] = list(self.left[name])
                self._shared -= {name}
            self.left[name][node] += sign * amount


def toggle_tenant(tenants: dict[tuple[str, int], list[int]], job: Job, placement: Placement) -> None:
    """Add the lanes of a job to those of its load; if they are already there, remove them."""
    tenant = tenants.setdefault((job.app, job.procs), [0, 0])
    tenant[0] ^= placement.room[0]
    tenant[1] ^= placement.room[1]
    if not any(tenant):
        del tenants[job.app, job.procs]


class Cluster(Pool):
    """The nodes of the allocation and the jobs that run on them.

    `held` has the devices that jobs hold, `all_licences` the licences of the run, free or taken. `generation` counts
    the changes, so that answers derived from the state can be cached until it changes. An object that keeps a plan of
    the future can append itself to `watchers`.
    """

    def __init__(self, nodes: Iterable[Node], licences: Mapping[str, float] | None = None
                 ) -> None:
        super().__init__(tuple(nodes), licences)
        if not self.nodes:
            raise ValueError("a cluster needs at least one node")
        self.all_licences = dict(self.licences)
        self.generation = 0
        self.watchers: list[Watcher] = []
        self.bookings: dict[int, Booking] = {}
        self.held: devices.Held = {}
        self.loans = Loans()
        self._orders: dict[str, list[tuple[float, int]]] = {}

    def _in_order(self, by: str) -> list[tuple[float, int]]:
        """Return pairs (time, job id) of the running jobs, earliest first; `by` names the time of the booking. Kept
        sorted from the first call on."""
        found = self._orders.get(by)
        if found is None:
            found = self._orders[by] = sorted((getattr(booking, by), job_id)
                                              for job_id, booking in self.bookings.items())
        return found

    @property
    def limits(self) -> list[tuple[float, int]]:
        """Pairs (end of the walltime, job id) of the running jobs, earliest first."""
        return self._in_order("limit")

    @property
    def ends(self) -> list[tuple[float, int]]:
        """Pairs (time at which its capacity is expected to be free, job id) of the running jobs, earliest first."""
        return self._in_order("gives")

    def copy(self) -> Cluster:
        """Return an independent copy with all bookings, for a run that continues from here. The copy has no
        watchers."""
        twin = Cluster.__new__(Cluster)
        self._copy_to(twin)
        twin.tenants = {load: list(lanes) for load, lanes in self.tenants.items()}
        twin.all_licences = self.all_licences
        twin.generation = self.generation
        twin.watchers = []
        twin.bookings = dict(self.bookings)
        twin.held = {place: set(indices) for place, indices in self.held.items()}
        twin.loans = self.loans.copy()
        twin._orders = {by: list(order) for by, order in self._orders.items()}
        return twin

    @classmethod
    def regular(cls, nodes: int, sockets: int, cores: int, prefix: str = "n") -> Cluster:
        """Return a cluster of equal nodes named n0, n1, ..."""
        return cls(Node(f"{prefix}{i}", (cores,) * sockets) for i in range(nodes))

    @property
    def cores(self) -> int:
        """Number of cores of all nodes, up or down."""
        return sum(node.cores for node in self.nodes)

    def book(self, job: Job, placement: Placement, now: float) -> Booking:
        """Start a job: take what its placement holds, until `now` plus its expected run time. If it requests devices
        and the placement has none yet, assign the nearest ones.

        Raises ValueError if something is not free: then the policy has a bug.
        """
        job_id = job.id
        if super().clashes(placement):
            raise ValueError(f"job {job_id}: {placement} takes cores that are not free")
        if job_id in self.bookings:
            raise ValueError(f"job {job_id} runs already")
        if not job.request.plain or self.programs:
            placement = self._completed(job, placement)
        slower = placement.slower(job.cores)
        end, extra = now + job.expected * slower, job.walltime * (slower - 1)
        if placement.lease is not None:
            for lender, cores in placement.lease.lent:
                self.loans.lend(self, Loan(lender, job_id, cores, now, end), stops=True)
            self.loans.borrowing_jobs.add(job_id)
        booking = self.bookings[job_id] = _new(Booking, (job, placement, now, end, (), extra, 0.0))
        self._insert(booking)
        known = self._empties, self._free
        self.take(job, placement, now)
        self._recount(job, placement, known, -1)
        self.generation += 1
        for watcher in self.watchers:
            watcher.booked(booking)
        return booking

    def clashes(self, placement: Placement) -> bool:
        """Return whether cores or devices of a placement are taken, or one of its nodes is down."""
        return super().clashes(placement) or devices.clash(self.held, placement.devices)

    def _completed(self, job: Job, placement: Placement) -> Placement:
        """Return the placement with devices, if the job requests some, and with its pace there; mark the devices as
        held."""
        if placement.parts:
            return Placement.together([self._completed(*each) for each in zip(job.parts, placement.parts)])
        given = placement.devices
        if not given and job.request.amounts:
            given = devices.choose(job.request, placement.slots(self.nodes), self.nodes, self.held)
        devices.hold(self.held, given)
        paced = pace(job, placement, self.nodes, self.programs) if self.programs else placement.pace
        return placement.but(devices=given, pace=paced) if given or paced != placement.pace else placement

    def _recount(self, job: Job, placement: Placement, known: tuple[int, int], sign: int) -> None:
        """Update the counts of empty nodes and free cores, and the tenants of lanes, after a start (sign -1) or an end
        (+1). `known` has the counts of empty nodes and free cores before it."""
        lane0, lane1, cores = placement.room
        empties, free = known
        if not (lane0 or lane1):
            self._free = free + sign * self.returns(placement) if free >= 0 else -1
        elif lane0 == lane1 and not cores:  # the job has its nodes to itself
            self._empties = empties + sign * self.returns(placement) if empties >= 0 else -1
        elif placement.lease is None:
            for part, place in zip(job.parts, placement.parts or (placement,)):
                toggle_tenant(self.tenants, part, place)

    def release(self, job_id: int) -> Booking:
        """Free what a running job holds and return its booking. Raises KeyError if it does not run."""
        booking = self.bookings.pop(job_id)
        job, placement = booking[:2]
        self._remove(booking)
        known = self._empties, self._free
        self.give(job, placement)
        if placement.devices:
            devices.free(self.held, placement.devices)
        self._recount(job, placement, known, +1)
        self.generation += 1
        for watcher in self.watchers:
            watcher.released(booking)
        if not self.loans:
            self.loans.forget(job_id)
        elif self.loans.ended(self, booking):
            self._empties = self._free = -1
        return booking

    def _insert(self, booking: Booking) -> None:
        """Add its times to the sorted lists."""
        for by, order in self._orders.items():
            bisect.insort(order, (getattr(booking, by), booking.job.id))

    def _remove(self, booking: Booking) -> None:
        """Undo `_insert`."""
        for by, order in self._orders.items():
            del order[bisect.bisect_left(order, (getattr(booking, by), booking.job.id))]

    def revise(self, job_id: int, end: float, now: float = -math.inf) -> Booking:
        """Change the expected end of a running job (seconds). With `now`, the jobs that lend it cores are expected to
        be slower until that end. Raises KeyError if the job does not run."""
        booking = self.reshape(job_id, expected_end=end)
        if self.loans and now > -math.inf:
            self.loans.extend_loans(self, job_id, now, end)
        return booking

    def reshape(self, job_id: int, **changes: Any) -> Booking:
        """Change fields of a running job's booking, such as its placement or its ends; observers are notified once.
        Raises KeyError if the job does not run."""
        before = self.bookings[job_id]
        booking = self.bookings[job_id] = before._replace(**changes)
        self._remove(before)
        self._insert(booking)
        self.generation += 1
        for watcher in self.watchers:
            watcher.revised(booking, before.expected_end)
        return booking

    def slots(self, booking: Booking) -> Iterator[RankSlot]:
        """Yield the current place of every rank of a running job, in rank order."""
        lent = self.loans.lent(booking.job.id) if self.loans else 0
        return slots(booking.placement, lent, self.nodes, self.layout)

    def pass_time(self, now: float) -> None:
        """Set the time to `now`. If a constraint has changed by itself since, cached answers become invalid."""
        if any(time <= now for each in self.constraints for time in each.boundaries(self.at)):
            self.generation += 1
        self.at = now

    def set_up(self, node: int, up: bool) -> None:
        """Mark a node as up or down. Jobs on it keep their cores until they are released."""
        self.up = self.up | (1 << node) if up else self.up & ~(1 << node)
        cores = self.layout.node_cores(node)
        self._down_cores = self._down_cores & ~cores if up else self._down_cores | cores
        self._empties = self._free = -1
        self.rooms.touch(1 << node)
        self.generation += 1
        for watcher in self.watchers:
            watcher.nodes_changed()

    def set_calendar(self, calendar: Calendar) -> None:
        """Replace the advance reservations. Objects that keep a plan notice it at their next step."""
        self.calendar = calendar
        self.generation += 1

    @property
    def taken_cores(self) -> int:
        """Number of cores in use by the ranks of all jobs."""
        return (sum(booking.placement.cores for booking in self.bookings.values())
                - (self.loans.cores(self) if self.loans else 0))

    def jobs_on(self, node: int) -> list[int]:
        """Return the ids of the jobs on a node, ascending."""
        return sorted(i for i, b in self.bookings.items()
                      if b.placement.node_set >> node & 1)

    def view(self) -> list[list[Socket]]:
        """Return for every node its sockets, with the id of the job on each core."""
        sockets = [[Socket(i, [None] * cores) for i, cores in enumerate(node.sockets)]
                   for node in self.nodes]
        for job_id, booking in self.bookings.items():
            if self.loans:
                for slot in self.slots(booking):
                    for core in slot.cores:
                        sockets[slot.node][slot.socket].slots[core] = job_id
                continue
            for node, _, cores in booking.placement.on_nodes(self.nodes):
                for socket in sockets[node]:
                    count = len(socket.slots)
                    here, cores = cores & ((1 << count) - 1), cores >> count
                    if bits.count(here) == count:  # faster: there may be a million cores
                        socket.slots[:] = [job_id] * count
                    else:
                        for core in bits.members(here):
                            socket.slots[core] = job_id
        return sockets

    def remaining(self, node: int, now: float) -> float | None:
        """Return the seconds until the first job on the node is expected to end; None if no job runs there."""
        ends = [self.bookings[i].gives for i in self.jobs_on(node)]
        return max(0.0, min(ends) - now) if ends else None

    def running(self) -> Iterator[Booking]:
        """Yield the bookings of the running jobs, earliest expected end first."""
        return (self.bookings[job_id] for _, job_id in self.ends)
