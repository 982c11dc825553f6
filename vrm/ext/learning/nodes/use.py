"""Measures what the processes of a job on a node have used so far, and how many threads run at once; for a
coupled job, also what each of its programs has used. One file, standard library only, Python 3.6 or newer:
agents (`agent.py`) run it on their nodes."""

import os

if __name__ == "use":  # imported by `agent.py` on a node
    import proc
else:
    from vrm.live.runner import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from vrm.live.runner.proc import Process

LOOKS, PAUSE = 3, 0.05
"""Number of counts of the threads (the median counts), and the seconds between two counts."""

_TICK = os.sysconf("SC_CLK_TCK")


class UseProbe:
    """Looks LOOKS times at the processes of a job. `due`: when to look next."""

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        self.number = request["number"]
        self.marks = proc.marks(str(request["run"]), int(request["job"]))
        self.ends: "List[int]" = request["ends"]
        self.variables = [os.fsencode(name + "=") for name in request["variables"]]
        self.due = now
        self.running: "List[int]" = []
        self.begin()

    def begin(self) -> None:
        """Prepare a look."""
        self.cpu = 0.0
        self.here = 0
        self.programs: "List[Tuple[float, int]]" = [(0.0, 0)] * len(self.ends)

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """Add one process of the job: its CPU time, including that of children it has waited for, and its
        running threads."""
        times = _words(f"/proc/{process[0]}/stat")
        cpu = sum(map(int, times[11:15])) / _TICK
        self.cpu += cpu
        at = self.program(environment)
        if at is not None:
            before, largest = self.programs[at]
            self.programs[at] = before + cpu, max(largest, _peak(process[0]))
        self.here += sum(_words(f"/proc/{process[0]}/task/{thread}/stat")[:1] == [b"R"]
                         for thread in proc.threads(process[0]))

    def program(self, environment: "List[bytes]") -> "Optional[int]":
        """Return the index of the program of a coupled job to which a process belongs, by its rank; None for
        mpirun and its daemons."""
        for variable in self.variables if self.ends else ():
            rank = proc.rank_of(environment, variable)
            if rank is not None:
                return next((at for at, end in enumerate(self.ends) if rank < end), None)
        return None

    def looked(self, now: float) -> bool:
        """End a look at all processes; return whether that was the last one."""
        self.running.append(self.here)
        if len(self.running) == LOOKS:
            return True
        self.due = now + PAUSE
        self.begin()
        return False

    def answer(self) -> "Dict[str, Any]":
        """Return CPU seconds, and threads that run at once; for each program, CPU seconds and bytes of its
        largest process."""
        return {"number": self.number, "cpu": self.cpu, "running": sorted(self.running)[LOOKS // 2],
                "programs": self.programs}


def take(request: "Dict[str, Any]", now: float) -> UseProbe:
    """Start the looks for an order of the manager."""
    return UseProbe(request, now)


def _words(path: str) -> "List[bytes]":
    """Return the words of a kernel file after the program's name; an empty list if the process has ended."""
    try:
        with open(path, "rb", 0) as file:
            return file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return []


def _peak(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    try:
        with open(f"/proc/{pid}/status", "rb", 0) as file:
            return int(file.read(4096).partition(b"VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return 0
