"""Which cores a step gets: those of its job that no other step has; it waits while there are too few.

In the directory of a job's steps each running step has a file with its number as name and its cores as
content, on which it holds a lock; so the cores of a step that was killed are free at once. All of this is
looked at and changed under the lock of one file, `lock`, which holds the number of the next step.
"""

from __future__ import annotations

import fcntl
import os

from vrm.steps.jobfile import StepJob

LOCK = "lock"

LOOK = 0.25
"""Seconds between two looks at the steps of a job, where nothing tells of a change before."""


class TooFew(Exception):
    """The job has never enough cores, or nodes, for this step."""


class Task:
    """A task of a step: the number of its node in the job, and those of its cores on the node."""

    __slots__ = ("node", "cores")

    def __init__(self, node: int, cores: "list[int]") -> None:
        self.node, self.cores = node, cores

    def __repr__(self) -> str:
        return f"Task({self.node}, {self.cores})"


class Wish:
    """What a step asks for: `tasks` of so many `cpus` (cores) each; on how many `nodes` (least and
    most; None for any), with at most `per_node` tasks on each, of these `allowed` nodes (numbers; None for
    all). `cyclic`: tasks take turns on the nodes."""

    def __init__(self, tasks: int, cpus: int = 1, nodes: "tuple[int, int] | None" = None, per_node: int = 0,
                 allowed: "set[int] | None" = None, cyclic: bool = False) -> None:
        self.tasks, self.cpus, self.nodes, self.per_node = tasks, cpus, nodes, per_node
        self.allowed, self.cyclic = allowed, cyclic


def choose(job: StepJob, wish: Wish, used: "set[tuple[int, int]]") -> "list[Task] | None":
    """The tasks, in the order of their numbers, on cores that are not `used` (pairs of node and core);
    None where there are too few.

    Nodes are filled one after the other. With `nodes` each of these gets a task at least.
    """
    free = [[core for core in range(len(node.cores)) if (at, core) not in used]
            if wish.allowed is None or at in wish.allowed else [] for at, node in enumerate(job.nodes)]
    room = [len(cores) // wish.cpus for cores in free]
    if wish.per_node:
        room = [min(most, wish.per_node) for most in room]
    counts = _counts(room, wish)
    if counts is None:
        return None
    tasks: "list[Task]" = []
    for at, count in enumerate(counts):
        left = free[at]
        for _ in range(count):
            cores = _of_one_socket(left, job.nodes[at].socket, wish.cpus)
            tasks.append(Task(at, cores))
            left = [core for core in left if core not in cores]
    if wish.cyclic:
        turns: "dict[int, int]" = {}
        keyed = []
        for task in tasks:
            turns[task.node] = turns.get(task.node, -1) + 1
            keyed.append((turns[task.node], task.node, task))
        tasks = [task for _, _, task in sorted(keyed, key=lambda each: each[:2])]
    return tasks


def _counts(room: "list[int]", wish: Wish) -> "list[int] | None":
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


def _of_one_socket(free: "list[int]", socket: "list[int]", count: int) -> "list[int]":
    """So many of the free cores, of one socket where one has enough."""
    if count > 1:
        for wanted in dict.fromkeys(socket[core] for core in free):
            here = [core for core in free if socket[core] == wanted]
            if len(here) >= count:
                return here[:count]
    return free[:count]


class Claim:
    """Cores that a step has: `number` is that of the step, `tasks` where they are. They are given back by
    `release`, or when the last process ends that has `handle` open."""

    def __init__(self, path: str, number: int, tasks: "list[Task]", handle: int) -> None:
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

    def take(self, wish: Wish, overlap: bool = False) -> "Claim | None":
        """Take cores: None where others have them at the moment. TooFew where the job never has so many.
        With `overlap` it may be cores that other steps have, and others may take them."""
        job = self.job
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            tasks = choose(job, wish, self._used())
            if tasks is None:
                whole = choose(job, wish, set())
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
                os.write(handle, " ".join(f"{task.node}:{core}" for task in tasks
                                          for core in task.cores).encode())
            return Claim(path, number, tasks, handle)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _used(self) -> "set[tuple[int, int]]":
        """The cores of the steps that run; the files of others are removed."""
        used: "set[tuple[int, int]]" = set()
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
                    used.add((int(node), int(core)))
            except FileNotFoundError:
                pass
            finally:
                os.close(handle)
        return used

    def wait(self, wish: Wish, overlap: bool = False) -> Claim:
        """Take cores as soon as there are enough. TooFew as `take`."""
        claim = self.take(wish, overlap)
        if claim is not None:
            return claim
        from vrm.steps.bell import Bell
        bell = Bell(self.job.directory)
        while True:
            claim = self.take(wish, overlap)
            if claim is not None:
                bell.close()
                return claim
            bell.wait(LOOK)
