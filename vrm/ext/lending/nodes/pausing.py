"""The order `pause` of an agent (`agent.py`): the processes of a job on this node stand still from now on (SIGSTOP), or
go on (SIGCONT). One file, the standard library only, Python 3.6 or newer.

Where some processes have a rank, only these and what they have started are stopped: mpirun and its daemons go on, so
that they can end the ranks. Without ranks (a script, or a launcher that starts them just now) all processes of the
job are stopped. All are continued. Looks follow until one finds nothing to do. After a stop others follow, more and
more seldom, for what the kernel was making at that moment, or a launcher starts later.
"""

import os
import time

# The C module itself: `signal` imports enum, a tenth of the agent's start.
import _signal as signal

if __name__ == "pausing":  # as `agent.py` imports it on a node
    import masks
    import proc
else:
    from vrm.ext.lending.nodes import masks
    from vrm.live.runner import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from vrm.live.runner.proc import Process

PAUSE, LONGEST_PAUSE = 0.002, 0.1
"""Seconds between two looks, while the last one has found something to do; they double up to the second."""

GUARD_PAUSE, LONGEST_GUARD = 0.05, 5.0
"""Seconds between the answer and the first look after it; they double up to the second."""


def state_of(pid: int) -> bytes:
    """The state of a process, as in /proc: T where it is stopped; nothing when it is gone."""
    try:
        with open("/proc/{}/stat".format(pid), "rb", 0) as file:
            return file.read(4096).rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b""


def send(process: "Process", number: int) -> bool:
    """Signal this very process, never a later one with its number; whether it was there."""
    pid, started = process
    stat = proc.read_stat(pid)
    if stat is None or stat[1] != started:
        return False
    try:
        os.kill(pid, number)
    except OSError:
        return False  # gone, or somebody else's
    return True


class Pauser:
    """Stops or continues the processes of a job. `due`: when to look next.

    An order with an older epoch than the last one of its job is not carried out; it is answered with the last one.
    """

    ends_by_sweep = True
    last: "Dict[Tuple[bytes, ...], Tuple[int, bool]]" = {}
    """Epoch of each job's last order, and whether it stops, by its marks."""

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
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
            self.last[key] = epoch, bool(request["stop"])
        self.epoch, self.stop = self.last[key]

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """One process of the job."""
        self.found.append((process, environment))

    def looked(self, now: float) -> bool:
        """All processes have been seen: True when nothing is left to do, or there is no time left."""
        self.epoch, self.stop = self.last.get(tuple(self.marks), (self.epoch, self.stop))
        found, self.found = self.found, []
        ranks = masks.ranks_of(found, self.variables) if self.stop else []
        some = any(rank is not None for rank in ranks)
        self.clear = True
        for at, (process, _) in enumerate(found):
            state = state_of(process[0])
            if self.stop and state not in (b"T", b"t", b"Z", b"X", b"") and (not some or ranks[at] is not None):
                self.clear = not send(process, signal.SIGSTOP) and self.clear
            elif not self.stop and state == b"T":
                self.clear = not send(process, signal.SIGCONT) and self.clear
        self.due = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        return self.clear or now >= self.until

    def then(self, now: float) -> "List[PauseGuard]":
        """Who looks after the answer."""
        return [PauseGuard(self, now)] if self.stop else []

    def answer(self) -> "Dict[str, Any]":
        """How it is at the last look."""
        wrong = "" if self.clear else "some of its processes do not " + ("stop" if self.stop else "continue")
        return {"number": self.number, "job": self.job, "epoch": self.epoch, "clear": self.clear, "error": wrong}


class PauseGuard:
    """Looks again after a stop, as long as the order is the last one and the job has processes. `due`: when to look
    next."""

    ends_by_sweep = lasts = True

    def __init__(self, order: Pauser, now: float) -> None:
        self.order = order
        self.marks = order.marks
        self.epoch = order.epoch
        self.see = order.see
        self.pause = GUARD_PAUSE
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


def pause_here(request: "Dict[str, Any]") -> None:
    """Carry out an order in this process, for a job whose processes are all on this machine."""
    order = Pauser(request, time.monotonic())
    done = False
    while not done:
        for process, environment in proc.marked():
            if all(mark in environment for mark in order.marks):
                order.see(process, environment)
        done = order.looked(time.monotonic())


def take(request: "Dict[str, Any]", now: float) -> Pauser:
    """What does an order."""
    return Pauser(request, now)


def forget(run: str, job: "Any") -> None:
    """A job has ended, or a run (None): its orders do not matter any more."""
    for key in [key for key in Pauser.last if set(proc.marks(run, job)) <= set(key)]:
        del Pauser.last[key]
