"""Which cores and GPUs a step gets: those of its job that no other step has; it waits while there are too few.

In the directory of a job's steps each running step has a file with its number as name and as content its
cores, and GPUs (`0:2 0:3 0:g1`: cores 2 and 3, and the second GPU, of the first node), on which it holds a
lock; so the cores of a step that was killed are free at once. All of this is looked at and changed under the
lock of one file, `lock`, which holds the number of the next step.
"""

from __future__ import annotations

import fcntl
import os

from vrm.ext.steps.jobfile import JobNode, StepJob
from vrm.ext.steps.options import Wrong, gpus_of, hosts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from vrm.ext.steps.jobfile import StepGroup
    from vrm.ext.steps.options import SrunOptions

LOCK = "lock"

LOOK = 0.25
"""Seconds between two looks at the steps of a job, where nothing tells of a change before."""


class TooFew(Exception):
    """The job has never enough cores, or nodes, for this step."""


class Task:
    """A task of a step: the number of its node in the job, those of its cores on the node, and of the GPUs that
    it sees there (None: all of the job, which are not for this step alone)."""

    __slots__ = ("node", "cores", "gpus")

    def __init__(self, node: int, cores: list[int], gpus: list[int] | None = None) -> None:
        self.node, self.cores, self.gpus = node, cores, gpus

    def __repr__(self) -> str:
        return f"Task({self.node}, {self.cores})"


class StepRequest:
    """What a step asks for: `tasks` of so many `cpus` (cores) each; on how many `nodes` (least and
    most; None for any), with at most `per_node` tasks on each, of these `allowed` nodes (numbers; None for
    all). `cyclic`: tasks take turns on the nodes. `gpus`: how many for each task, and for each node, that has some;
    tasks see all that the step has on their node if they are `shared`, as those for each node are. None: the
    step asks for none, and sees those of the job. `over`: tasks share cores where there are more tasks. `cores`: only
    these (pairs of node and core). A heterogeneous step has `parts`, whose tasks are numbered in this order."""

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


def ask_for_gpus(wish: StepRequest, asked: dict[str, int], nodes: int) -> None:
    """Add the GPUs to a wish. Wrong where they cannot be shared out."""
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
            raise Wrong(f"--gpus={total}: this number cannot be shared equally; use --gpus-per-node or --gpus-per-task")
    elif total and total != each * wish.tasks:
        raise Wrong(f"--gpus={total} contradicts the other options of GPUs")
    wish.gpus = each, together


def requested(job: StepJob, options: SrunOptions, group: StepGroup | None, outside: bool, warn: Callable[[str], None]
              ) -> StepRequest:
    """What these options ask for: of a component of the job, its `group`. `outside`: they were not typed in the job, so
    without numbers there is a task on each node. `warn` gets a message for each option that is not followed."""
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
    ask_for_gpus(wish, gpus_of(options), len(job.nodes))
    return wish


def _allowed(job: StepJob, options: SrunOptions) -> set[int] | None:
    """The nodes that the options name; None for all."""
    allowed = None
    if "nodelist" in options:
        names = {node.name: at for at, node in enumerate(job.nodes)}
        wanted = hosts(options.get("nodelist"))
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise Wrong(f"--nodelist: {unknown[0]} is not a node of job {job.slurm}")
        allowed = {names[name] for name in wanted}
    first = 0 if options.get("relative", "0") == "0" else options.number("relative", 1)
    without = set(hosts(options.get("exclude")))
    if first or without:
        allowed = {at for at, node in enumerate(job.nodes) if at >= first and node.name not in without
                   and (allowed is None or at in allowed)}
    return allowed


def cpus_of(job: StepJob, tasks: list[Task], wide: bool, listed: list[list[int]]) -> list[list[int]]:
    """The CPUs of each task: those of its cores, or where it is `wide`, of the step's on its node; or those that are
    `listed` for the tasks of a node, in turns. Wrong for one that the job does not have."""
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
                raise Wrong(f"--cpu-bind: CPU {min(others)} of {node.name} is not this job's, which has "
                            + ",".join(map(str, sorted(cpu for core in node.cores for cpu in core))))
        counts[task.node] += 1
        found.append(cpus)
    return found


def choose(job: StepJob, wish: StepRequest, used: set[tuple[int, int]],
           held: set[tuple[int, int]] = frozenset()) -> list[Task] | None:  # type: ignore[assignment]
    """The tasks, in the order of their numbers, on cores that are not `used` (pairs of node and core), with GPUs
    that are not `held`; None where there are too few.

    Nodes are filled one after the other. With `nodes` each of these gets a task at least. Cores that no task of
    the job has (it is exclusive) are for steps that do not find room without.
    """
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
    """The tasks of all parts of a step, of one after the other."""
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
    """For how many tasks there is room on each node: without the cores that no task of the job has, and with them."""
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
    """So many tasks on a node, which has these cores and GPUs free."""
    each, together = wish.gpus or (0, 0)
    left, here = free, list[Task]()
    for _ in range(count):
        cores = _of_one_socket(left, node.socket, wish.cpus)
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
    """How many tasks each node gets, where there is `room` for so many."""
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


def _of_one_socket(free: list[int], socket: list[int], count: int) -> list[int]:
    """So many of the free cores, of one socket where one has enough."""
    if count > 1:
        for wanted in dict.fromkeys(socket[core] for core in free):
            here = [core for core in free if socket[core] == wanted]
            if len(here) >= count:
                return here[:count]
    return free[:count]


def _nearest(node: JobNode, free: list[int], cores: list[int], count: int) -> list[int]:
    """So many of the free GPUs of a node, those of the sockets of these cores first."""
    sockets = {node.socket[core] for core in cores}
    return sorted(sorted(free, key=lambda gpu: (node.gpus[gpu].socket not in sockets, gpu))[:count])


class StepCores:
    """Cores that a step has: `number` is that of the step, `tasks` where they are. They are given back by
    `release`, or when the last process ends that has `handle` open."""

    def __init__(self, path: str, number: int, tasks: list[Task], handle: int) -> None:
        self.path, self.number, self.tasks, self.handle = path, number, tasks, handle

    def release(self) -> None:
        """Give the cores back."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        os.close(self.handle)


class Claims:
    """The cores of a job's steps. OSError when its directory cannot be used."""

    def __init__(self, job: StepJob) -> None:
        self.job = job
        self._lock = os.open(f"{job.directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, wish: StepRequest, overlap: bool = False) -> StepCores | None:
        """Take cores: None where others have them at the moment. TooFew where the job never has so many.
        With `overlap` it may be cores that other steps have, and others may take them."""
        job = self.job
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            tasks = choose(job, wish, *self._used())
            if tasks is None:
                whole = choose(job, wish, set(), set())
                if whole is None:
                    raise TooFew
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
        """The cores and the GPUs of the steps that run; the files of others are removed."""
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
        """Take cores as soon as there are enough. TooFew as `take`."""
        claim = self.take(wish, overlap)
        if claim is not None:
            return claim
        from vrm.system.bell import CLOSED, GONE, Bell
        bell = Bell()
        bell.watch(self.job.directory, CLOSED | GONE)
        while True:
            claim = self.take(wish, overlap)
            if claim is not None:
                bell.close()
                return claim
            bell.wait(LOOK)
