"""Processes that follow their cores by DLB (Barcelona's library) rather than by vrm's files. One file, the
standard library only, Python 3.6 or newer.

Where a process has libdlb loaded and its `DLB_ARGS` say `--drom`, its order goes through DLB's calls for
administrators. That is done by a process of its own, `python dlb.py LIBRARY ORDER`, which may take
SECONDS: a library that fails or hangs is no matter to the agent. DLB's names and numbers are those of its
headers `dlb_drom.h` and `dlb_errors.h`.
"""

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Mapping

SECONDS = 2.0
"""Seconds that an order may take."""

PAUSE = 0.01
"""Seconds before a process that has not taken its last order yet is asked again."""

CPUS = 1024
"""Bits of the C library's masks."""

PENDING = -7
"""What the library answers where the last order is not taken yet."""


def library_of(pid: int, environment: "List[bytes]") -> str:
    """The library by which a process follows, "" for none."""
    if not any(entry.startswith(b"DLB_ARGS=") and b"--drom" in entry for entry in environment):
        return ""
    try:
        with open("/proc/{}/maps".format(pid)) as file:
            for line in file:
                path = line.rstrip("\n").partition("/")[1:]
                if os.path.basename(path[1]).startswith("libdlb") and ".so" in path[1]:
                    return "".join(path)
    except OSError:
        pass  # gone
    return ""


def order(library: str, arguments: bytes, wanted: "Mapping[int, FrozenSet[int]]") -> "Dict[int, int]":
    """Give processes (by number) their cores; what DLB has answered for each, 0 or more for yes. `arguments`
    are the processes' DLB_ARGS, which say in which memory they meet. Nothing where that fails."""
    import subprocess  # only where there is DLB: it takes a third of an agent's start

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


def administer(library: str, wanted: "Dict[str, List[int]]") -> "Dict[str, int]":
    """The order itself, in this process."""
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
    print(json.dumps(administer(sys.argv[1], json.loads(sys.argv[2]))))
