"""Allocates cores and GPUs of a job to its steps. A step gets those that no other step uses, and waits while there
are too few.

In the directory of a job's steps, each running step has a file. Its name is the number of the step; its content are
the step's cores and GPUs (`0:2 0:3 0:g1`: cores 2 and 3 and the second GPU of the first node). The step holds a lock
on the file, so that the cores of a killed step are free at once. All reads and changes happen under the lock of one
file, `lock`, which contains the number of the next step."""

from __future__ import annotations

import fcntl
import os

from vrm.ext.steps.jobfile import JobNode, StepJob
from vrm.ext.steps.options import UsageError, gpus_of, hosts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from vrm.ext.steps.jobfile import StepGroup
    from vrm.ext.steps.options import SrunOptions

LOCK = "lock"

LOOK = 0.25
"""Seconds between two checks of a job's steps if no notification of a change comes before."""


class NotEnoughCores(Exception):
    """The job never has enough cores or nodes for this step."""


class Task:
    """A task of a step: the number of its node in the job, the numbers of its cores on the node, and those of the
    GPUs that it sees there (None: all GPUs of the job, which it shares with other steps)."""

    __slots__ = ("node", "cores", "gpus")

    def __init__(self, node: int, cores: list[int], gpus: list[int] | None = None) -> None:
        self.node, self.cores, self.gpus = node, cores, gpus

    def __repr__(self) -> str:
        return f"Task({self.node}, {self.cores})"


class StepRequest:
    """The resources that a step requests: `tasks` with `cpus` cores each; `nodes` is the least and the most number
    of nodes (None: any), with at most `per_node` tasks on each, out of the `allowed` nodes (numbers; None: all).
    `cyclic`: distribute tasks to the nodes in turns. `gpus`: the number for each task, and the number for each node
    that has tasks. Tasks see all GPUs that the step has on their node if they are `shared`, which GPUs for each node
    always are. `gpus` None: the step requests none and sees those of the job. `over`: tasks share cores if there are
    more tasks than cores. `cores`: use only these (pairs of node and core). A heterogeneous step has `parts`; their
    tasks are numbered in this order."""

    def __init__(self, tasks: int, cpus: int = 1, nodes: tuple[int, int] | None = None, per_node: int = 0,
                 allowed: set[int] | None = None, cyclic: bool = False,
                 gpus: tuple[int, int] | None = None, shared: bool = False, over: bool = False,
                 cores: set[tuple[int, int]] | None = None, parts: Sequence[StepRequest] = ()) -> None:
        self.tasks, self.cpus, self.nodes, self.per_node = tasks, cpus, nodes, per_node
        self.allowed, self.cyclic, self.gpus, self.shared, self.over = allowed, cyclic, gpus, shared, over
        self.cores, self.parts = cores, parts

    def __str__(self) -> str:
        if self.parts:
            return " and ".join(map(str, self.parts))
        return (f"{self.tasks} task{'s' * (self.tasks > 1)} of {self.cpus} core{'s' * (self.cpus > 1)}"
                + (f" on {self.nodes[0]} node{'s' * (self.nodes[0] > 1)}" if self.nodes else "")
                + (f", at most {self.per_node} on a node" if self.per_node else "")
                + (f", {self.gpus[0]} GPUs each and {self.gpus[1]} on each node"
                   if self.gpus and any(self.gpus) else ""))


def add_gpus(wish: StepRequest, asked: dict[str, int], nodes: int) -> None:
    """Add GPUs to a request. Raises UsageError if they cannot be distributed evenly."""
    if not asked:
        return
    each = asked.get("gpus-per-task") or asked.get("tres-per-task") or 0
    together = asked.get("gpus-per-node") or asked.get("gres") or 0
    total = asked.get("gpus") or 0
    if total and not each and not together:
        wide = wish.nodes[0] if wish.nodes and wish.nodes[0] == wish.nodes[1] else 1 if nodes == 1 else 0
        if wide and total % wide == 0:
            wish.nodes, together = (wide, wide), total // wide
        elif total % wish.tasks == 0:
            each, wish.shared = total // wish.tasks, True
        elif wish.nodes is None:
            wish.nodes, together = (1, 1), total
        else:
            raise UsageError(f"--gpus={total}: this number cannot be shared equally; use "
                             "--gpus-per-node or --gpus-per-task")
    elif total and total != each * wish.tasks:
        raise UsageError(f"--gpus={total} contradicts the other options of GPUs")
    wish.gpus = each, together


def requested(job: StepJob, options: SrunOptions, group: StepGroup | None, outside: bool, warn: Callable[[str], None]
              ) -> StepRequest:
    """Return the resources that these options request, from the job's component `group` if given. `outside`: the
    srun was called outside of the job; then the default is one task on each node. `warn` is called with a message
    for each option that is not followed."""
    there = group or job
    nodes = options.nodes()
    per_node = options.number("ntasks-per-node", 0)
    inherited = os.environ.get("SLURM_NTASKS", "")
    tasks = int(inherited) if not group and inherited.isdigit() and 0 < int(inherited) <= job.tasks else there.tasks
    if outside and not inherited and "nodelist" not in options:
        nodes = nodes or (len(job.nodes), len(job.nodes))
        tasks = nodes[0]
    if "nodes" in options and "SLURM_PROCID" not in os.environ and per_node:
        assert nodes is not None
        tasks = nodes[0] * per_node
    elif per_node and nodes is None:
        tasks = min(tasks, per_node * len(job.nodes))
    tasks = options.number("ntasks", tasks)
    if nodes and nodes[0] > tasks:
        warn(f"can't run {tasks} processes on {nodes[0]} nodes, setting nnodes to {tasks}")
        nodes = (tasks, max(tasks, nodes[1]))
    kind = options.get("distribution", "block").lower()
    wish = StepRequest(tasks, options.number("cpus-per-task", there.cpus), nodes, per_node, _allowed(job, options),
                       kind.startswith("cyclic"), over="overcommit" in options, cores=group.cores if group else None)
    add_gpus(wish, gpus_of(options), len(job.nodes))
    return wish


def _allowed(job: StepJob, options: SrunOptions) -> set[int] | None:
    """Return the numbers of the nodes that the options allow; None for all."""
    allowed = None
    if "nodelist" in options:
        names = {node.name: at for at, node in enumerate(job.nodes)}
        wanted = hosts(options.get("nodelist"))
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise UsageError(f"--nodelist: {unknown[0]} is not a node of job {job.slurm}")
        allowed = {names[name] for name in wanted}
    first = 0 if options.get("relative", "0") == "0" else options.number("relative", 1)
    without = set(hosts(options.get("exclude")))
    if first or without:
        allowed = {at for at, node in enumerate(job.nodes) if at >= first and node.name not in without
                   and (allowed is None or at in allowed)}
    return allowed


def cpus_of(job: StepJob, tasks: list[Task], wide: bool, listed: list[list[int]]) -> list[list[int]]:
    """Return the CPUs of each task: those of its cores, or if `wide` those of all cores of the step on its node; or
    the `listed` CPUs, assigned to the tasks of a node in turns. Raises UsageError for a CPU that the job does not
    have."""
    counts, used = [0] * len(job.nodes), [set[int]() for _ in job.nodes]
    for task in tasks:
        used[task.node].update(task.cores)
    found = []
    for task in tasks:
        node = job.nodes[task.node]
        cpus = sorted(cpu for core in (used[task.node] if wide else task.cores) for cpu in node.cores[core])
        if listed and job.bound:
            cpus = listed[counts[task.node] % len(listed)]
            others = set(cpus).difference(*node.cores)
            if others:
                raise UsageError(f"--cpu-bind: CPU {min(others)} of {node.name} is not this job's, which has "
                                 + ",".join(map(str, sorted(cpu for core in node.cores for cpu in core))))
        counts[task.node] += 1
        found.append(cpus)
    return found


def choose(job: StepJob, wish: StepRequest, used: set[tuple[int, int]],
           held: set[tuple[int, int]] = frozenset()) -> list[Task] | None:  # type: ignore[assignment]
    """Return the tasks, in the order of their numbers, on cores that are not `used` (pairs of node and core), with
    GPUs that are not `held`; None if there are too few.

    Nodes are filled one after the other. If the request has `nodes`, each of these nodes gets at least one task.
    Cores that no task of the job uses (the job is exclusive) are only used by steps that do not fit without them."""
    if wish.parts:
        return _choose_parts(job, wish.parts, used, held)
    free = [[core for core in range(len(node.cores))
             if (at, core) not in used and (wish.cores is None or (at, core) in wish.cores)]
            if wish.allowed is None or at in wish.allowed else [] for at, node in enumerate(job.nodes)]
    gpus = [[gpu for gpu in range(len(node.gpus)) if (at, gpu) not in held] for at, node in enumerate(job.nodes)]
    own, room = _rooms(job, wish, free, gpus)
    counts = _counts(own, wish)
    if counts is None and own != room:
        counts = _counts(room, wish)
    if counts is None:
        return None
    tasks = [task for at, count in enumerate(counts)
             for task in _on_node(at, job.nodes[at], count, wish, free[at], gpus[at])]
    if wish.cyclic:
        turns = [(turn, at) for at, count in enumerate(counts) for turn in range(count)]
        tasks = [task for _, task in sorted(zip(turns, tasks), key=lambda each: each[0])]
    return tasks


def _choose_parts(job: StepJob, parts: Sequence[StepRequest], used: set[tuple[int, int]], held: set[tuple[int, int]]
                  ) -> list[Task] | None:
    """Return the tasks of all parts of a step; the parts are placed one after the other."""
    tasks: list[Task] = []
    for part in parts:
        found = choose(job, part, used, held)
        if found is None:
            return None
        used = used | {(task.node, core) for task in found for core in task.cores}
        held = held | {(task.node, gpu) for task in found for gpu in task.gpus or ()}
        tasks += found
    return tasks


def _rooms(job: StepJob, wish: StepRequest, free: list[list[int]], gpus: list[list[int]]
           ) -> tuple[list[int], list[int]]:
    """Return how many tasks fit on each node: without the cores that no task of the job uses, and with them."""
    room = [len(cores) // wish.cpus for cores in free]
    most_room = sorted(filter(None, room), reverse=True)[:wish.nodes[1] if wish.nodes else None]
    more = -(-max(0, wish.tasks - sum(most_room)) // len(most_room)) if wish.over and most_room else 0
    room = [most and most + more for most in room]
    if wish.per_node:
        room = [min(most, wish.per_node) for most in room]
    each, together = wish.gpus or (0, 0)
    if each or together:
        room = [min(most, (len(mine) - together) // each if each else most) if len(mine) >= together else 0
                for most, mine in zip(room, gpus)]
    return [min(most, more + max(0, node.tasks * job.cpus - (len(node.cores) - len(cores))) // wish.cpus)
            for most, node, cores in zip(room, job.nodes, free)], room


def _on_node(at: int, node: JobNode, count: int, wish: StepRequest, free: list[int], gpus: list[int]) -> list[Task]:
    """Return `count` tasks on a node that has these free cores and GPUs."""
    each, together = wish.gpus or (0, 0)
    left, here = free, list[Task]()
    for _ in range(count):
        cores = _from_one_socket(left, node.socket, wish.cpus)
        own = _nearest(node, gpus, cores, each)
        gpus = [gpu for gpu in gpus if gpu not in own]
        here.append(Task(at, cores, None if wish.gpus is None else own))
        left = [core for core in left if core not in cores]
        if wish.over and len(left) < wish.cpus:
            left = free
    if together and count:
        own = _nearest(node, gpus, [core for task in here for core in task.cores], together)
        for task in here:
            task.gpus = [*(task.gpus or ()), *own]
    if wish.shared:
        for task in here:
            task.gpus = sorted({gpu for other in here for gpu in other.gpus or ()})
    return here


def _counts(room: list[int], wish: StepRequest) -> list[int] | None:
    """Return the number of tasks on each node, at most `room`; None if they do not fit."""
    if wish.nodes is None:
        counts, left = [], wish.tasks
        for most in room:
            counts.append(min(most, left))
            left -= counts[-1]
        return None if left else counts
    least, most_nodes = wish.nodes
    for number in range(least, min(most_nodes, wish.tasks) + 1):
        for order in (range(len(room)), sorted(range(len(room)), key=lambda at: -room[at])):
            taken = [at for at in order if room[at]][:number]
            if len(taken) == number and sum(room[at] for at in taken) >= wish.tasks:
                counts, left = [0] * len(room), wish.tasks - number
                for at in sorted(taken):
                    more = min(room[at] - 1, left)
                    counts[at], left = 1 + more, left - more
                return counts
    return None


def _from_one_socket(free: list[int], socket: list[int], count: int) -> list[int]:
    """Return `count` of the free cores, all from one socket if one has enough."""
    if count > 1:
        for wanted in dict.fromkeys(socket[core] for core in free):
            here = [core for core in free if socket[core] == wanted]
            if len(here) >= count:
                return here[:count]
    return free[:count]


def _nearest(node: JobNode, free: list[int], cores: list[int], count: int) -> list[int]:
    """Return `count` of the free GPUs of a node, preferably on the sockets of these cores."""
    sockets = {node.socket[core] for core in cores}
    return sorted(sorted(free, key=lambda gpu: (node.gpus[gpu].socket not in sockets, gpu))[:count])


class StepCores:
    """The cores of a step: `number` is the step's number, `tasks` say where the cores are. They are freed by
    `release`, or when the last process that has `handle` open ends."""

    def __init__(self, path: str, number: int, tasks: list[Task], handle: int) -> None:
        self.path, self.number, self.tasks, self.handle = path, number, tasks, handle

    def release(self) -> None:
        """Free the cores."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        os.close(self.handle)


class StepAllocator:
    """Manages the cores of a job's steps. Raises OSError if the job's directory cannot be used."""

    def __init__(self, job: StepJob) -> None:
        self.job = job
        self._lock = os.open(f"{job.directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, wish: StepRequest, overlap: bool = False) -> StepCores | None:
        """Allocate cores; return None if other steps use them now. Raises NotEnoughCores if the job never has enough.
        With `overlap` the cores may be used by other steps, now and later."""
        job = self.job
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            tasks = choose(job, wish, *self._used())
            if tasks is None:
                whole = choose(job, wish, set(), set())
                if whole is None:
                    raise NotEnoughCores
                if not overlap:
                    return None
                tasks = whole
            number = int(os.pread(self._lock, 20, 0) or b"0")
            os.pwrite(self._lock, b"%d" % (number + 1), 0)
            path = f"{job.directory}/{number}"
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not overlap:
                words = {f"{task.node}:{word}": None for task in tasks for word in (
                    *task.cores, *(f"g{gpu}" for gpu in task.gpus or ()))}
                os.write(handle, " ".join(words).encode())
            return StepCores(path, number, tasks, handle)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _used(self) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """Return the cores and the GPUs of running steps; remove the files of steps that have ended."""
        used: set[tuple[int, int]] = set()
        held: set[tuple[int, int]] = set()
        for name in os.listdir(self.job.directory):
            if not name.isdigit():
                continue
            path = f"{self.job.directory}/{name}"
            try:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                os.unlink(path)
            except BlockingIOError:
                for word in os.read(handle, 1 << 20).split():
                    node, _, core = word.partition(b":")
                    (held if core[:1] == b"g" else used).add((int(node), int(core.lstrip(b"g"))))
            except FileNotFoundError:
                pass
            finally:
                os.close(handle)
        return used, held

    def wait(self, wish: StepRequest, overlap: bool = False) -> StepCores:
        """Allocate cores as soon as enough are free. Raises NotEnoughCores as `take` does."""
        claim = self.take(wish, overlap)
        if claim is not None:
            return claim
        from vrm.system.file_notifier import CLOSED, GONE, FileNotifier
        bell = FileNotifier()
        bell.watch(self.job.directory, CLOSED | GONE)
        while True:
            claim = self.take(wish, overlap)
            if claim is not None:
                bell.close()
                return claim
            bell.wait(LOOK)
