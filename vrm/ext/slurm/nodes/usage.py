"""Measures what the processes of a job on a node use now, by script and steps. One file, only the standard library,
Python 3.6 or newer: agents (`agent.py`) run it on their nodes, and the manager on its own."""

import os

if __name__ == "usage":  # when `agent.py` imports it on a node
    import proc
else:
    from vrm.live.runner import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from vrm.live.runner.proc import Process

BATCH = "batch"
"""Name of the step that is the script itself."""

_TICK = os.sysconf("SC_CLK_TCK")


class UsageProbe:
    """Measures the living processes of a job once. `due`: when to measure."""

    def __init__(self, request: "Dict[str, Any]", now: float) -> None:
        self.number, self.job = request["number"], int(request["job"])
        self.marks = proc.marks(str(request["run"]), self.job)
        self.due = now
        self.steps: "Dict[str, Dict[str, Any]]" = {}

    def see(self, process: "Process", environment: "List[bytes]") -> None:
        """Add one process of the job."""
        try:
            times = _read(process[0], "stat").rpartition(b")")[2].split()
            size = 1024 * int(_read(process[0], "status").partition(b"VmHWM:")[2].split(None, 1)[0])
        except (OSError, IndexError):  # it has ended meanwhile
            return
        step, task = _value(environment, b"SLURM_STEPID="), _value(environment, b"SLURM_PROCID=")
        found = self.steps.setdefault(step or BATCH, {"tasks": [], "cpu": 0.0, "largest": 0, "memory": 0, "pids": []})
        rank = int(task) if step and task.isdigit() else 0
        if rank not in found["tasks"]:
            found["tasks"].append(rank)
        found["cpu"] += (int(times[11]) + int(times[12])) / _TICK
        found["largest"] = max(found["largest"], size)
        found["memory"] += size
        found["pids"].append(process[0])

    def looked(self, now: float) -> bool:
        """Return True: one look at all processes is enough."""
        return True

    def answer(self) -> "Dict[str, Any]":
        """Return the usage by steps."""
        return {"number": self.number, "steps": self.steps}


def take(request: "Dict[str, Any]", now: float) -> UsageProbe:
    """Return the probe for a request of the manager."""
    return UsageProbe(request, now)


def here(run: str, job: int) -> "Dict[str, Dict[str, Any]]":
    """Return what the processes of a job use on this machine, by steps."""
    usage = UsageProbe({"number": 0, "run": run, "job": job}, 0.0)
    for process, environment in proc.marked():
        if all(mark in environment for mark in usage.marks):
            usage.see(process, environment)
    return usage.steps


def _value(environment: "List[bytes]", name: bytes) -> str:
    return next((entry[len(name):].decode() for entry in environment if entry.startswith(name)), "")


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", 0) as file:
        return file.read()
