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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from vrm.ext.lending.nodes import masks
    from vrm.live.runner import proc
    from vrm.live.runner.proc import Process
elif __name__ == "pausing":  # as `agent.py` imports it on a node
    import masks
    import proc
else:
    from vrm.ext.lending.nodes import masks
    from vrm.live.runner import proc

GUARD_PAUSE = 0.05
"""Seconds between the answer and the first look after it."""


def state_of(pid: int) -> bytes:
    """The state of a process, as in /proc: T where it is stopped; nothing when it is gone."""
    try:
        with open("/proc/{}/stat".format(pid), "rb", 0) as file:
            return file.read(4096).rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b""


def held_up(pid: int) -> bool:
    """Whether the parent of a process cannot stop now. Perhaps it waits until this one begins a program (vfork):
    if this one stopped first, it would never stop."""
    stat = proc.read_stat(pid)
    return stat is not None and state_of(stat[0]) == b"D"


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


class Pauser(masks.EpochOrder):
    """Stops or continues the processes of a job."""

    last: "Dict[Tuple[bytes, ...], Tuple[Any, ...]]" = {}

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        masks.EpochOrder.__init__(self, request, now, bool(request["stop"]))
        self.epoch, self.stop = self.newest()

    def looked(self, now: float) -> bool:
        """All processes have been seen: True when nothing is left to do, or there is no time left."""
        self.epoch, self.stop = self.newest()
        found, self.found = self.found, []
        ranks = masks.ranks_of(found, self.variables) if self.stop else []
        some = any(rank is not None for rank in ranks)
        self.clear = True
        for at, (process, _) in enumerate(found):
            state = state_of(process[0])
            if self.stop and state not in (b"T", b"t", b"Z", b"X", b"") and (not some or ranks[at] is not None):
                self.clear = not (held_up(process[0]) or send(process, signal.SIGSTOP)) and self.clear
            elif not self.stop and state == b"T":
                self.clear = not send(process, signal.SIGCONT) and self.clear
        return self.over(now)

    def then(self, now: float) -> "List[masks.OrderGuard]":
        """Who looks after the answer."""
        return [masks.OrderGuard(self, now, GUARD_PAUSE)] if self.stop else []

    def answer(self) -> "Dict[str, Any]":
        """How it is at the last look."""
        wrong = "" if self.clear else "some of its processes do not " + ("stop" if self.stop else "continue")
        return {"number": self.number, "job": self.job, "epoch": self.epoch, "clear": self.clear, "error": wrong}


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
