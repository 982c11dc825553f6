"""The order `pause` of an agent (`agent.py`): stops the processes of a job on this node (SIGSTOP), or continues them
(SIGCONT). One file, only the standard library, Python 3.6 or newer.

If some processes have a rank, only these and the processes that they have started are stopped: mpirun and its
daemons go on, so that they can end the ranks. Without ranks (a script, or a launcher that is just starting them) all
processes of the job are stopped. To continue, all are continued. Looks are repeated until one finds nothing to do.
After a stop further looks follow at growing intervals, for processes that the kernel was creating at that moment, or
that a launcher starts later."""

import os
import time

# The C module: `signal` imports enum, which takes a tenth of the agent's start time.
import _signal as signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from vrm.ext.lending.nodes import masks
    from vrm.live.runner import proc
    from vrm.live.runner.proc import Process
elif __name__ == "pausing":  # when `agent.py` imports it on a node
    import masks
    import proc
else:
    from vrm.ext.lending.nodes import masks
    from vrm.live.runner import proc

GUARD_PAUSE = 0.05
"""Seconds between the answer and the first look after it."""


def state_of(pid: int) -> bytes:
    """Return the state of a process as in /proc: T if it is stopped; empty if it is gone."""
    try:
        with open("/proc/{}/stat".format(pid), "rb", 0) as file:
            return file.read(4096).rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b""


def parent_cannot_stop(pid: int) -> bool:
    """Return whether the parent of a process cannot stop now. It may be waiting until this process starts a program
    (vfork); if this process stopped first, the parent would never stop."""
    stat = proc.read_stat(pid)
    return stat is not None and state_of(stat[0]) == b"D"


def send(process: "Process", number: int) -> bool:
    """Send a signal to exactly this process, never to a later one with the same process id; return whether it was
    sent."""
    pid, started = process
    stat = proc.read_stat(pid)
    if stat is None or stat[1] != started:
        return False
    try:
        os.kill(pid, number)
    except OSError:
        return False  # gone, or of another user
    return True


class Pauser(masks.EpochOrder):
    """Stops or continues the processes of a job."""

    last: "Dict[Tuple[bytes, ...], Tuple[Any, ...]]" = {}

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        masks.EpochOrder.__init__(self, request, now, bool(request["stop"]))
        self.epoch, self.stop = self.newest()

    def looked(self, now: float) -> bool:
        """Finish a look; return whether nothing is left to do or the time is over."""
        self.epoch, self.stop = self.newest()
        found, self.found = self.found, []
        ranks = masks.ranks_of(found, self.variables) if self.stop else []
        some = any(rank is not None for rank in ranks)
        self.clear = True
        for at, (process, _) in enumerate(found):
            state = state_of(process[0])
            if self.stop and state not in (b"T", b"t", b"Z", b"X", b"") and (not some or ranks[at] is not None):
                self.clear = not (parent_cannot_stop(process[0]) or send(process, signal.SIGSTOP)) and self.clear
            elif not self.stop and state == b"T":
                self.clear = not send(process, signal.SIGCONT) and self.clear
        return self.over(now)

    def then(self, now: float) -> "List[masks.OrderGuard]":
        """Return the tasks that follow the answer."""
        return [masks.OrderGuard(self, now, GUARD_PAUSE)] if self.stop else []

    def answer(self) -> "Dict[str, Any]":
        """Return the state at the last look."""
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
    """Return the task for a request of the manager."""
    return Pauser(request, now)


def forget(run: str, job: "Any") -> None:
    """Forget the orders of a job that has ended, or of all jobs of a run (None)."""
    for key in [key for key in Pauser.last if set(proc.marks(run, job)) <= set(key)]:
        del Pauser.last[key]
