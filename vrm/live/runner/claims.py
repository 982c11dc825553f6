"""Claims cores and GPUs of a node for one vrm, so that no other vrm takes them. One file, the standard library only,
Python 3.6 or newer: agents (`agent.py`) run it on their nodes.

A claim is the name of an abstract socket. Only one process of this machine, of any user, can have that name at a time,
and the name is free when the process ends.
"""

import os

if not __package__:
    import proc
else:
    from vrm.live.runner import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Set

_CLAIMS: "Dict[str, Any]" = {}  # sockets that hold claims by their names, until this process ends

LONGEST = 90
"""Characters of a name that a claim may have; the kernel allows 107 bytes."""


class CoreClaim:
    """Claims cores of this node if the batch system has granted a number of cores without saying which ones. `wish` is
    that number, or the CPUs of an earlier claim (`cpus:0,4`), which is to be held again. `cpus` are the claimed CPUs
    (None: nothing was claimed, all may be used); `trouble` says why they are fewer than requested or in use by others
    ("": neither).

    Cores to which processes of others are bound are claimed last.
    """

    def __init__(self, files: "Dict[str, str]", mask: "Set[int]", wish: str) -> None:
        self.cpus: "Optional[List[int]]" = None
        self.trouble = ""
        cores = _cores(files, mask)
        again = [int(cpu) for cpu in wish[5:].split(",")] if wish.startswith("cpus:") else None
        if again is not None:
            # They may still be held by an agent that has lost its vrm: then no other vrm can have them either.
            for core in cores:
                if core[0] in again:
                    _hold(core[0])
            self.cpus = again
            return
        wanted = max(1, int(wish))
        if wanted >= len(cores):
            return
        bound = bound_cpus(mask)
        free = [core for core in cores if not any(cpu in bound for cpu in core)]
        used = [core for core in cores if core not in free]
        claimed: "List[List[int]]" = []
        taken = 0
        for core in free + used:
            if len(claimed) == wanted:
                break
            if not _hold(core[0]):
                taken += 1
                continue
            claimed.append(core)
            if core in used:
                self.trouble = "CPU {} is used although {} is bound to it".format(
                    core[0], next(bound[cpu] for cpu in core if cpu in bound))
        self.cpus = sorted(cpu for core in claimed for cpu in core)
        if len(claimed) < wanted:
            self.trouble = ("{} core(s) are granted to this job, and of the {} that are seen there "
                            "{} are taken by other vrm".format(wanted, len(cores), taken))


def _cores(files: "Dict[str, str]", mask: "Set[int]") -> "List[List[int]]":
    """Return the usable CPUs of each core, from the kernel's files; the core with the lowest CPU first."""
    cores: "Dict[str, List[int]]" = {}
    for cpu in sorted(mask):
        folder = "cpu/cpu{}/topology/".format(cpu)
        siblings = (files.get(folder + "core_cpus_list")
                    or files.get(folder + "thread_siblings_list") or str(cpu))
        cores.setdefault(siblings, []).append(cpu)
    return sorted(cores.values())


def hold_device(device: "Mapping[str, Any]") -> bool:
    """Claim a GPU (see `devices.py`); False if another process holds it. Its UUID does not depend on where its device
    file is."""
    file = os.path.realpath(device["file"])
    known = device["uuid"] if file.startswith("/dev/") and device["uuid"] else file
    return _claim("\0vrm-gpu-" + known[-LONGEST:])


def _hold(cpu: int) -> bool:
    """Claim a core by its lowest CPU; False if another process holds it."""
    return _claim("\0vrm-core-{}".format(cpu))


def _claim(name: str) -> bool:
    if name in _CLAIMS:
        return True
    import socket  # only here: it would take a third of the agent's start
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(name)
    except OSError:
        claim.close()
        return False
    _CLAIMS[name] = claim
    return True


def bound_cpus(mask: "Set[int]") -> "Dict[int, str]":
    """Return the CPUs to which processes are bound, each with the name of such a process. Processes of vrm runs are
    left out, since their claims count."""
    bound: "Dict[int, str]" = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or proc.environment_of(int(name)):
            continue
        listed = proc.allowed_cpus(int(name))
        if listed is None or not _has_command(name):
            continue
        cpus = {cpu for part in listed.split(",")
                for cpu in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}
        if not mask <= cpus:
            for cpu in cpus & mask:
                bound.setdefault(cpu, "process {}".format(name))
    return bound


def _has_command(pid: str) -> bool:
    """Return whether a process is a program and not a kernel thread."""
    try:
        with open("/proc/{}/cmdline".format(pid), "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False
