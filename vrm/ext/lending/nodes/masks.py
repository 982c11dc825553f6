"""The order `masks` of an agent (`agent.py`): the cores that each rank of a job may use on this node from
now on. One file, the standard library only, Python 3.6 or newer.

The kernel's mask of every thread of every process of the job is set, and looked at again until a look at
all of them finds nothing to set: a thread takes the mask of the one that makes it. One that the kernel is
making at that very moment may still come out with the old mask: so it is looked at again for some seconds
after the answer. A process that belongs to no rank (mpirun, its daemons) gets the cores of all ranks of the node. No
process need cooperate. To those that have made a file for it (`lending.py`) the order is written, too, so
that the number of their threads follows.
"""

import os

if __name__ == "masks":  # as `agent.py` imports it on a node
    import dlb
    import lending
    import proc
else:
    from vrm.ext.lending.nodes import dlb, lending
    from vrm.live.runner import proc

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing would be a tenth of the agent's start
    from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

    from vrm.live.runner.proc import Process

    Tasks = Dict[int, FrozenSet[int]]

PAUSE = 0.002
"""Seconds between two looks, while the last one has found threads to set."""

LONGEST_PAUSE = 0.1
"""The pause doubles up to so many seconds."""

GUARD_PAUSE, LONGEST_GUARD = 0.01, 5.0
"""Seconds between the answer and the first look after it; the pause doubles up to so many."""


def ranks_of(found: "List[Tuple[Process, List[bytes]]]", variables: "List[bytes]") -> "List[Optional[int]]":
    """The rank of each process, None for those that belong to no rank. The first of the variables that some
    process has is what shows it; without variables the job is one process, its rank 0, and what it started."""
    if not variables:
        return [0] * len(found)
    for variable in variables:
        ranks = [proc.rank_of(environment, variable) for _, environment in found]
        if any(rank is not None for rank in ranks):
            return ranks
    return [None] * len(found)


def confine(pid: int, cpus: "FrozenSet[int]") -> "Tuple[bool, int, str]":
    """Set the mask of each thread of a process until no new one appears: whether a thread could use another
    core, how many threads there are, and why one could not be set. A mask that the kernel cuts, to a cpuset,
    is right."""
    changed, trouble = False, ""
    known: "Dict[int, bool]" = {}
    while True:
        new = [thread for thread in proc.threads(pid) if thread not in known]
        if not new:
            return changed, sum(known.values()), trouble
        for thread in new:
            known[thread] = False
            try:
                allowed = os.sched_getaffinity(thread)
                if allowed != cpus:
                    os.sched_setaffinity(thread, cpus)
                changed = changed or not allowed <= cpus
            except ProcessLookupError:
                continue  # it has ended
            except OSError as error:
                trouble = "process {} cannot be moved to CPU {}: {}".format(
                    pid, ",".join(map(str, sorted(cpus))), error.strerror)
            known[thread] = True


class EpochOrder:
    """An order about the processes of a job here: they are looked at until it is carried out, or `patience` seconds
    have passed. `due`: when to look next.

    An order with an older epoch than the last one of its job is not carried out; it is answered with the last one.
    """

    ends_by_sweep = True
    last: "Dict[Tuple[bytes, ...], Tuple[Any, ...]]" = {}
    """Epoch of each job's last order, and what it wants, by its marks: a dictionary for each kind of orders."""

    def __init__(self, request: "Dict[str, Any]", now: float, *wants: "Any") -> None:
        self.number = request["number"]
        self.job = int(request["job"])
        self.marks = proc.marks(str(request["run"]), self.job)
        self.variables = [os.fsencode(name + "=") for name in request["variables"]]
        self.until = now + float(request["patience"])
        self.due = now
        self.pause = PAUSE
        self.found: "List[Tuple[Process, List[bytes]]]" = []
        self.clear = False
        epoch, key = int(request["epoch"]), tuple(self.marks)
        if epoch > self.last.get(key, (-1,))[0]:
            self.last[key] = (epoch,) + wants
        self._newest = self.last[key]

    def newest(self) -> "Tuple[Any, ...]":
        """The epoch, and what is wanted: a newer order may have come."""
        self._newest = self.last.get(tuple(self.marks), self._newest)
        return self._newest

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """One process of the job."""
        self.found.append((process, environment))

    def over(self, now: float) -> bool:
        """After a look: whether nothing is left to do, or there is no time left."""
        self.due = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        return self.clear or now >= self.until

    def looked(self, now: float) -> bool:
        """All processes have been seen: True when nothing is left to do, or there is no time left."""
        raise NotImplementedError


class OrderGuard:
    """Looks again after an order was answered, for what was in the making then, or comes later, as long as the order is
    the last one and the job has processes. `due`: when to look next."""

    ends_by_sweep = lasts = True

    def __init__(self, order: EpochOrder, now: float, pause: float) -> None:
        self.order = order
        self.marks = order.marks
        self.epoch = order.newest()[0]
        self.see = order.see
        self.pause = pause
        self.due = now + self.pause

    def looked(self, now: float) -> bool:
        """All processes have been seen: True after the last look."""
        if not self.order.found or self.order.last.get(tuple(self.marks), (-1,))[0] != self.epoch:
            self.order.found = []
            return True
        self.order.looked(now)
        self.pause = min(2 * self.pause, LONGEST_GUARD)
        self.due = now + self.pause
        return False

    def answer(self) -> None:
        """Nobody has asked."""


class MaskSetter(EpochOrder):
    """Sets the masks of a job until they are right. `clear` in the answer: every rank was found, and no thread of the
    job here may use a core outside its mask."""

    last: "Dict[Tuple[bytes, ...], Tuple[Any, ...]]" = {}

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        tasks, own = ({int(rank): frozenset(map(int, cpus)) for rank, cpus in request[name].items()}
                      for name in ("tasks", "own"))
        EpochOrder.__init__(self, request, now, tasks, own)
        self.threads: "Dict[int, int]" = {}
        self.behind: "Set[int]" = set()
        self.by_dlb: "Dict[int, Set[int]]" = {}
        self.place = lending.folder(str(request["run"]), self.job)
        self.error = ""
        self.epoch, self.tasks, self.own = self.newest()

    def looked(self, now: float) -> bool:
        """All processes have been seen: True when nothing is left to do, or there is no time left."""
        self.epoch, self.tasks, self.own = self.newest()
        found, self.found = self.found, []
        ranks = ranks_of(found, self.variables)
        self.threads, self.error = dict.fromkeys(self.tasks, 0), ""
        everything = frozenset().union(*self.tasks.values())
        self.behind = set(self.tasks)
        quiet = True
        for (pid, started), rank in zip((process for process, _ in found), ranks):
            if rank is not None and rank not in self.tasks:
                self.error = "rank {} runs here, and the order names no cores for it".format(rank)
                quiet = False
                continue
            changed, threads, error = confine(pid, everything if rank is None else self.tasks[rank])
            quiet, self.error = quiet and not changed, self.error or error
            if rank is not None:
                self.threads[rank] += threads
                said = lending.publish(self.place, pid, started, self.epoch, self.tasks[rank],
                                       own=self.own.get(rank, ()))
                if said is not None and said["acknowledged"] >= self.epoch:
                    self.behind.discard(rank)
        self.behind -= self._by_dlb(found, ranks)
        missing = [rank for rank in sorted(self.tasks) if not self.threads[rank]]
        if missing and not self.error:
            self.error = "no process of rank {} was found".format(", ".join(map(str, missing)))
        self.clear = quiet and not self.error
        return self.over(now)

    def _by_dlb(self, found: "List[Tuple[Process, List[bytes]]]", ranks: "List[Optional[int]]") -> "Set[int]":
        """The ranks that follow by DLB and have been given this order, which is done once."""
        if self.epoch not in self.by_dlb:
            groups: "Dict[Tuple[str, bytes], Dict[int, int]]" = {}
            for ((pid, _), environment), rank in zip(found, ranks):
                library = "" if rank is None else dlb.library_of(pid, environment)
                if library and rank is not None:
                    said = next(entry[9:] for entry in environment if entry.startswith(b"DLB_ARGS="))
                    groups.setdefault((library, said), {})[pid] = rank
            if not groups:
                return set()
            self.by_dlb = {self.epoch: set()}
            for (library, said), of in groups.items():
                answer = dlb.order(library, said, {pid: self.tasks[rank] for pid, rank in of.items()
                                                   if rank in self.tasks})
                self.by_dlb[self.epoch] |= {of[pid] for pid, code in answer.items() if code >= 0}
        return self.by_dlb[self.epoch]

    def then(self, now: float) -> "List[OrderGuard]":
        """Who looks after the answer."""
        return [OrderGuard(self, now, GUARD_PAUSE)] if self.clear else []

    def answer(self) -> "Dict[str, Any]":
        """How it is at the last look."""
        return {"number": self.number, "job": self.job, "epoch": self.epoch, "clear": self.clear,
                "tasks": {str(rank): {"threads": threads, "acknowledged": rank not in self.behind}
                          for rank, threads in self.threads.items()}, "error": self.error}


def take(request: "Dict[str, Any]", now: float) -> MaskSetter:
    """What does an order."""
    return MaskSetter(request, now)


def forget(run: str, job: "Optional[int]") -> None:
    """A job has ended, or a run (None): its orders do not matter any more, and its files go."""
    for key in [key for key in MaskSetter.last if set(proc.marks(run, job)) <= set(key)]:
        del MaskSetter.last[key]
    for place in lending.places(run, job):
        lending.remove(place)
