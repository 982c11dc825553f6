"""What the processes of a job on a node have used so far, and how many threads run at once; of a coupled job, what each
of its programs has used. One file, the standard library only, Python 3.6 or newer: agents (`agent.py`) run it on their
nodes."""

import os

if __name__ == "use":  # as `agent.py` imports it on a node
    import proc
else:
    from vrm.live.runner import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from vrm.live.runner.proc import Process

LOOKS, PAUSE = 3, 0.05
"""How often the threads are counted, and the seconds between two looks: the middle one counts."""

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
        """Before a look."""
        self.cpu = 0.0
        self.here = 0
        self.programs: "List[Tuple[float, int]]" = [(0.0, 0)] * len(self.ends)

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """One process of the job: its time, with that of the children it has waited for, and its threads that run."""
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
        """Which program of a coupled job a process is of, by its rank; None for mpirun and its daemons."""
        for variable in self.variables if self.ends else ():
            rank = proc.rank_of(environment, variable)
            if rank is not None:
                return next((at for at, end in enumerate(self.ends) if rank < end), None)
        return None

    def looked(self, now: float) -> bool:
        """All processes have been seen; whether that was often enough."""
        self.running.append(self.here)
        if len(self.running) == LOOKS:
            return True
        self.due = now + PAUSE
        self.begin()
        return False

    def answer(self) -> "Dict[str, Any]":
        """CPU seconds, and threads that run at once; CPU seconds of each program, and bytes of its largest process."""
        return {"number": self.number, "cpu": self.cpu, "running": sorted(self.running)[LOOKS // 2],
                "programs": self.programs}


def take(request: "Dict[str, Any]", now: float) -> UseProbe:
    """What answers an order."""
    return UseProbe(request, now)


def _words(path: str) -> "List[bytes]":
    """What a file of the kernel says behind the name of the program; nothing where the process has ended."""
    try:
        with open(path, "rb", 0) as file:
            return file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return []


def _peak(pid: int) -> int:
    """The most bytes that a process has had so far."""
    try:
        with open(f"/proc/{pid}/status", "rb", 0) as file:
            return int(file.read(4096).partition(b"VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return 0
