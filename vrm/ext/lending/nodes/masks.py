"""The order `masks` of an agent (`agent.py`): sets the cores that each rank of a job may use on this node from now
on. One file, only the standard library, Python 3.6 or newer.

The kernel's affinity mask of every thread of every process of the job is set, repeatedly, until a look at all of
them finds nothing to set: a new thread inherits the mask of the thread that creates it. A thread that the kernel is
creating at that very moment may still get the old mask; therefore further looks follow for some seconds after the
answer. A process that belongs to no rank (mpirun, its daemons) gets the cores of all ranks of the node. No process
has to cooperate. If processes have made a file for it (`lending.py`), the order is also written there, so that their
number of threads follows."""

import os

if __name__ == "masks":  # when `agent.py` imports it on a node
    import dlb
    import lending
    import proc
else:
    from vrm.ext.lending.nodes import dlb, lending
    from vrm.live.runner import proc

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take a tenth of the agent's start time
    from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

    from vrm.live.runner.proc import Process

    Tasks = Dict[int, FrozenSet[int]]

PAUSE = 0.002
"""Seconds between two looks while the last one has found threads to set."""

LONGEST_PAUSE = 0.1
"""Upper limit in seconds of the pause, which doubles each time."""

GUARD_PAUSE, LONGEST_GUARD = 0.01, 5.0
"""Seconds between the answer and the first look after it, and the upper limit of this pause, which doubles each
time."""


def ranks_of(found: "List[Tuple[Process, List[bytes]]]", variables: "List[bytes]") -> "List[Optional[int]]":
    """Return the rank of each process; None for processes that belong to no rank. The first of the variables that
    some process has shows the rank. Without variables the job is one process, its rank 0, and what that started."""
    if not variables:
        return [0] * len(found)
    for variable in variables:
        ranks = [proc.rank_of(environment, variable) for _, environment in found]
        if any(rank is not None for rank in ranks):
            return ranks
    return [None] * len(found)


def confine(pid: int, cpus: "FrozenSet[int]") -> "Tuple[bool, int, str]":
    """Set the mask of each thread of a process until no new threads appear. Return whether a thread could use other
    cores before, the number of threads, and an error text ("": none). A mask that the kernel reduces to a cpuset
    counts as set."""
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
    """An order about the processes of a job on this node. They are looked at until the order is carried out, or
    `patience` seconds have passed. `due`: when to look next.

    An order with an older epoch than the last one of its job is not carried out; it is answered with the last one."""

    ends_by_sweep = True
    last: "Dict[Tuple[bytes, ...], Tuple[Any, ...]]" = {}
    """Epoch and contents of each job's last order, by the job's marks: one dictionary for each kind of order."""

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
        """Return the epoch and the contents of the last order; a newer one may have come."""
        self._newest = self.last.get(tuple(self.marks), self._newest)
        return self._newest

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """Add one process of the job."""
        self.found.append((process, environment))

    def over(self, now: float) -> bool:
        """Return, after a look, whether nothing is left to do or the time is over."""
        self.due = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        return self.clear or now >= self.until

    def looked(self, now: float) -> bool:
        """Finish a look; return whether nothing is left to do or the time is over."""
        raise NotImplementedError


class OrderGuard:
    """Looks again after an order was answered, for threads or processes that were being created then or are created
    later, as long as the order is the last one and the job has processes. `due`: when to look next."""

    ends_by_sweep = lasts = True

    def __init__(self, order: EpochOrder, now: float, pause: float) -> None:
        self.order = order
        self.marks = order.marks
        self.epoch = order.newest()[0]
        self.see = order.see
        self.pause = pause
        self.due = now + self.pause

    def looked(self, now: float) -> bool:
        """Finish a look; return True after the last one."""
        if not self.order.found or self.order.last.get(tuple(self.marks), (-1,))[0] != self.epoch:
            self.order.found = []
            return True
        self.order.looked(now)
        self.pause = min(2 * self.pause, LONGEST_GUARD)
        self.due = now + self.pause
        return False

    def answer(self) -> None:
        """Return nothing: no answer is expected."""


class MaskSetter(EpochOrder):
    """Sets the masks of a job until they are right. `clear` in the answer: every rank was found, and no thread of
    the job on this node may use a core outside its mask."""

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
        """Finish a look; return whether nothing is left to do or the time is over."""
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
                said = lending.write_order(self.place, pid, started, self.epoch, self.tasks[rank],
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
        """Return the ranks that follow through DLB and have got this order. The order is given to DLB once."""
        if self.epoch not in self.by_dlb:
            groups: "Dict[Tuple[str, bytes], Dict[int, int]]" = {}
            for ((pid, _), environment), rank in zip(found, ranks):
                library = "" if rank is None else dlb.dlb_library(pid, environment)
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
        """Return the tasks that follow the answer."""
        return [OrderGuard(self, now, GUARD_PAUSE)] if self.clear else []

    def answer(self) -> "Dict[str, Any]":
        """Return the state at the last look."""
        return {"number": self.number, "job": self.job, "epoch": self.epoch, "clear": self.clear,
                "tasks": {str(rank): {"threads": threads, "acknowledged": rank not in self.behind}
                          for rank, threads in self.threads.items()}, "error": self.error}


def take(request: "Dict[str, Any]", now: float) -> MaskSetter:
    """Return the task for a request of the manager."""
    return MaskSetter(request, now)


def forget(run: str, job: "Optional[int]") -> None:
    """Forget the orders and remove the files of a job that has ended, or of all jobs of a run (None)."""
    for key in [key for key in MaskSetter.last if set(proc.marks(run, job)) <= set(key)]:
        del MaskSetter.last[key]
    for place in lending.places(run, job):
        lending.remove(place)
