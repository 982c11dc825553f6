"""What the processes of a running job use now, by what the kernel of this machine says of them."""

from __future__ import annotations

import os
import re
from typing import Dict, List

from vrm.front.jobs import Usage
from vrm.results.steps import BATCH
from vrm.system.processes import pids_with_environment

_TICK = os.sysconf("SC_CLK_TCK")
_STEP = re.compile(rb"\0SLURM_STEPID=(\d+)\0")
_TASK = re.compile(rb"\0SLURM_PROCID=(\d+)\0")
_PEAK = re.compile(rb"VmHWM:\s*(\d+) kB")


def sampled(run: str, job_id: int, node: str) -> List[Usage]:
    """What the script of a job (`batch`) and its steps use on this node: those of its processes that live."""
    pids: Dict[str, List[int]] = {}
    tasks: Dict[str, set[bytes]] = {}
    cpu: Dict[str, float] = {}
    peaks: Dict[str, List[int]] = {}
    mark = os.fsencode(f"\0VRM_RUN={run}\0")
    for pid in pids_with_environment("VRM_JOB_ID", str(job_id)):
        try:
            text = b"\0" + _read(pid, "environ") + b"\0"
            times = _read(pid, "stat").rpartition(b")")[2].split()
            peak = _PEAK.search(_read(pid, "status"))
        except OSError:  # it has ended meanwhile
            continue
        if mark not in text or peak is None:
            continue
        found, task = _STEP.search(text), _TASK.search(text)
        step = found[1].decode() if found else BATCH
        pids.setdefault(step, []).append(pid)
        tasks.setdefault(step, set()).add(task[1] if found and task else b"0")
        cpu[step] = cpu.get(step, 0.0) + (int(times[11]) + int(times[12])) / _TICK
        peaks.setdefault(step, []).append(1024 * int(peak[1]))
    order = sorted(pids, key=lambda step: -1 if step == BATCH else int(step))
    return [Usage(step, len(tasks[step]), cpu[step], max(peaks[step]), sum(peaks[step]), node, tuple(pids[step]))
            for step in order]


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", 0) as file:
        return file.read()
