"""Orders for processes that follow their cores through DLB (Barcelona's library) and not through vrm's files. One
file, only the standard library, Python 3.6 or newer.

If a process has libdlb loaded and its `DLB_ARGS` contain `--drom`, its order is given through DLB's administrator
calls. A separate process does that, `python dlb.py LIBRARY ORDER`, with a time limit of SECONDS, so that a library
that fails or hangs does not affect the agent. DLB's names and numbers are those of its headers `dlb_drom.h` and
`dlb_errors.h`."""

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Mapping

SECONDS = 2.0
"""Time limit of an order in seconds."""

PAUSE = 0.01
"""Seconds before an order is repeated for a process that has not taken its last order yet."""

CPUS = 1024
"""Number of bits of the C library's masks."""

PENDING = -7
"""Return code of the library if the last order was not taken yet."""


def dlb_library(pid: int, environment: "List[bytes]") -> str:
    """Return the path of the DLB library through which a process follows its cores; "" for none."""
    if not any(entry.startswith(b"DLB_ARGS=") and b"--drom" in entry for entry in environment):
        return ""
    try:
        with open("/proc/{}/maps".format(pid)) as file:
            for line in file:
                path = line.rstrip("\n").partition("/")[1:]
                if os.path.basename(path[1]).startswith("libdlb") and ".so" in path[1]:
                    return "".join(path)
    except OSError:
        pass  # the process has ended
    return ""


def order(library: str, arguments: bytes, wanted: "Mapping[int, FrozenSet[int]]") -> "Dict[int, int]":
    """Give processes (by process id) their cores; return DLB's code for each, 0 or more for success. `arguments` are
    the processes' DLB_ARGS, which name the shared memory in which they meet. Empty if that fails."""
    import subprocess  # imported only with DLB: it takes a third of an agent's start time

    words = [sys.executable or "python3", "-I", "-S", os.path.abspath(__file__), library,
             json.dumps({str(pid): sorted(cpus) for pid, cpus in wanted.items()})]
    environment = dict(os.environ, DLB_ARGS=os.fsdecode(arguments))
    environment.pop("LD_PRELOAD", None)
    try:
        said = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=SECONDS + 1.0).stdout
        answer = json.loads(said.decode().strip().split("\n")[-1])
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return {int(pid): int(code) for pid, code in answer.items()}


def drom_order(library: str, wanted: "Dict[str, List[int]]") -> "Dict[str, int]":
    """Carry out the order in this process."""
    import ctypes

    dlb = ctypes.CDLL(library)
    code = dlb.DLB_DROM_Attach()
    if code:
        return dict.fromkeys(wanted, code)
    until = time.monotonic() + SECONDS
    answer = {}
    for pid, cpus in wanted.items():
        mask = (ctypes.c_ubyte * (CPUS // 8))()
        for cpu in cpus:
            if cpu < CPUS:
                mask[cpu // 8] |= 1 << cpu % 8
        while True:
            answer[pid] = dlb.DLB_DROM_SetProcessMask(int(pid), mask, 0)
            if answer[pid] != PENDING or time.monotonic() > until:
                break
            time.sleep(PAUSE)
    dlb.DLB_DROM_Detach()
    return answer


if __name__ == "__main__":
    print(json.dumps(drom_order(sys.argv[1], json.loads(sys.argv[2]))))
