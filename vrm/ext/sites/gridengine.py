"""Grid Engine: nodes from `PE_HOSTFILE`, with the cores of each in its second column. The end of the job is not
known. GPUs named on the script's host (`SGE_HGR_gpu`) are those of that host."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from vrm.live.batch.base import (REMEDY, AllocationError, BatchJob, BatchSystem, Environment, NodeShare, counted,
                                 indices_of, read_text, slots_of_lines)
from vrm.system.hosts import host_name


class GridEngine(BatchSystem):
    """Sun Grid Engine, Univa Grid Engine and their successors, in a parallel environment."""

    name = "gridengine"
    title = "Grid Engine"
    signs = ("PE_HOSTFILE",)
    ids = ("JOB_ID",)
    openmpi_overlooks = ({"OMPI_MCA_ras": "^gridengine", "OMPI_MCA_plm_rsh_disable_qrsh": "1"},
                         {"PRTE_MCA_plm_ssh_disable_qrsh": "1"})

    def hosts(self, env: Environment) -> dict[str, int]:
        """Return the nodes with their slots."""
        return gridengine_hosts(env)

    def shares(self, env: Environment, answer: BatchJob, hosts: Mapping[str, int],
               run: Callable[[Sequence[str]], str]) -> dict[str, NodeShare]:
        """Return the GPUs of a resource map named gpu."""
        indices = indices_of(env.get("SGE_HGR_gpu") or env.get("SGE_HGR_GPU") or "", " ")
        own = next((host for host in hosts if host.partition(".")[0] == host_name()), "")
        return {own: NodeShare(gpus=len(indices), indices=indices)} if own and indices else {}

    def openmpi_slots(self, env: Environment) -> Mapping[str, int] | None:
        """Return the slots in PE_HOSTFILE, which Open MPI reads, too."""
        return slots_of_lines(env, "PE_HOSTFILE") if "PE_HOSTFILE" in env else None


def gridengine_hosts(env: Mapping[str, str]) -> dict[str, int]:
    """Return the nodes of a Grid Engine job in a parallel environment. The file has a line `host slots queue
    processors` for each host and queue."""
    path = env["PE_HOSTFILE"]
    hosts: list[str] = []
    for number, line in enumerate(read_text(path, "PE_HOSTFILE").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) < 2 or not re.fullmatch(r"\d{1,6}", words[1]):
            raise AllocationError(f"PE_HOSTFILE: {path}:{number}: `{line.strip()}` is not a host "
                                  f"with a number of slots; {REMEDY}")
        hosts += [words[0]] * int(words[1])
    return counted(hosts, f"PE_HOSTFILE: {path}")
