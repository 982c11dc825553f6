"""The variables with which a malleable job is started, so that its processes follow their cores."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple
from collections.abc import Mapping

from vrm.ext.lending.build import ShimError, shim
from vrm.ext.lending.nodes.lending import folder
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import ProgramPrepared

YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "I_MPI_WAIT_MODE": "1"}
"""Variables that make waiting ranks leave their core to others: for Open MPI, for MPICH 3 and MVAPICH, and for Intel
MPI. MPICH 4 and 5 have no such variable (none is in the library of 5.0)."""

_MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 243: "riscv64", 22: "s390x", 3: "i386", 40: "arm"}
_INTERPRETER = 3  # PT_INTERP of the ELF format


class FollowSettings(NamedTuple):
    """The variables of a malleable job, and the reason why its number of threads cannot follow ("": it can)."""

    variables: dict[str, str]
    rigid: str = ""


def following(program: str | Path, run: str, job: int, env: Mapping[str, str]) -> FollowSettings:
    """Return the variables by which the processes of a job of this program follow their cores. `env` is their
    environment without these variables; a library that is preloaded there stays. If anything is missing, cores are
    still lent by affinity."""
    place = folder(run, job)
    variables = {"VRM_LENDING": place, **{name: value for name, value in YIELDING.items() if name not in env}}
    reason = rigid(program)
    if not reason and "--drom" not in env.get("DLB_ARGS", ""):  # with --drom its processes follow through DLB
        try:
            library = str(shim())
        except ShimError as error:
            reason = str(error)
        else:
            variables["LD_PRELOAD"] = ":".join(filter(None, (library, env.get("LD_PRELOAD", ""))))
    return FollowSettings(variables, reason)


def rigid(program: str | Path) -> str:
    """Return why no library can be preloaded into a program; "" if one can, or if it is not known (a script)."""
    try:
        with open(program, "rb") as file:
            about = os.fstat(file.fileno())
            head = file.read(64)
            if head[:4] != b"\x7fELF" or len(head) < 64:
                return ""
            if about.st_mode & (stat.S_ISUID | stat.S_ISGID):
                return "it is setuid or setgid, and the kernel preloads nothing there"
            order = "<" if head[5] == 1 else ">"
            machine, = struct.unpack_from(order + "H", head, 18)
            wide = head[4] == 2
            offset, = struct.unpack_from(order + ("Q" if wide else "I"), head, 32 if wide else 28)
            size, count = struct.unpack_from(order + "HH", head, 54 if wide else 42)
            own = os.uname().machine
            if _MACHINES.get(machine, own) != own:
                return f"it is a program for {_MACHINES[machine]}, and this machine is {own}"
            file.seek(offset)
            table = file.read(size * count)
            kinds = [struct.unpack_from(order + "I", table, size * row)[0] for row in range(count)]
            if _INTERPRETER not in kinds:
                return "it is linked statically, and nothing can be preloaded there"
    except (OSError, struct.error):
        return ""
    return ""


def note(app: str, reason: str) -> str:
    """Return the message about a job whose number of threads cannot follow."""
    return f"{app} is malleable, and its number of threads stays as it is: {reason}"


class FollowingCores:
    """Gives malleable jobs the variables by which their processes follow their cores."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._rigid: set[str] = set()  # malleable programs whose threads cannot follow

    def give(self, event: ProgramPrepared) -> None:
        """Set the variables of a job that is about to start. Report once for each program why its number of threads
        cannot follow."""
        booking, env, launcher = event.booking, event.env, self.live.launcher
        job = booking.job
        variables, rigid = following(event.program, launcher.run_id, job.id, env)
        event.variables.update(variables)
        if rigid and job.app not in self._rigid:
            self._rigid.add(job.app)
            self.live.tell("note", note(job.app, rigid))
        said = "OMP_NUM_THREADS" in env or any("OMP_NUM_THREADS" in word for word in getattr(launcher, "options", ()))
        if booking.placement.width < job.cores and not rigid and not said:
            ranks = job.procs if launcher.kind == "direct" else 1  # ranks of a process
            event.variables["OMP_NUM_THREADS"] = str(ranks * job.cores)
            event.variables["VRM_LENDING_CORES"] = f"{ranks * booking.placement.width}/{ranks * job.cores}"
