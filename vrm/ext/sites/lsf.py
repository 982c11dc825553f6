"""LSF: nodes from `LSB_DJOB_HOSTFILE`, `LSB_MCPU_HOSTS` or `LSB_HOSTS`; a node has as many cores as it is named
there. The end of the job is not known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from vrm.live.batch.base import (REMEDY, AllocationError, BatchSystem, Environment, counted, read_text)


class LSF(BatchSystem):
    """IBM Spectrum LSF."""

    name = "lsf"
    title = "LSF"
    signs = ("LSB_JOBID", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS")
    ids = ("LSB_JOBID",)
    openmpi_overlooks = ({"OMPI_MCA_ras": "^lsf", "OMPI_MCA_plm": "rsh"},
                         {"PRTE_MCA_ras": "^lsf", "PRTE_MCA_plm": "ssh"})

    def hosts(self, env: Environment) -> dict[str, int]:
        """Return the nodes with their slots."""
        return lsf_hosts(env)

    def openmpi_slots(self, env: Environment) -> Mapping[str, int] | None:
        """Return the slots in LSB_MCPU_HOSTS, such as `n0 4 n1 8`."""
        if "LSB_JOBID" not in env:
            return None
        slots: Counter[str] = Counter()
        words = env.get("LSB_MCPU_HOSTS", "").split()
        for host, number in zip(words[::2], words[1::2]):
            slots[host.partition(".")[0]] += int(number) if number.isdigit() else 0
        return slots


def lsf_hosts(env: Mapping[str, str]) -> dict[str, int]:
    """Return the nodes of an LSF job with their slots."""
    path = env.get("LSB_DJOB_HOSTFILE")
    if path:
        return counted(read_text(path, "LSB_DJOB_HOSTFILE").split(),
                        f"LSB_DJOB_HOSTFILE: {path}")
    words = env.get("LSB_MCPU_HOSTS", "").split()
    if words:
        if len(words) % 2 or not all(re.fullmatch(r"\d{1,6}", count) for count in words[1::2]):
            raise AllocationError(f"LSB_MCPU_HOSTS: `{env['LSB_MCPU_HOSTS']}` is not a list of "
                                  f"hosts, each with a number; {REMEDY}")
        return counted((host for host, count in zip(words[::2], words[1::2])
                         for _ in range(int(count))), "LSB_MCPU_HOSTS")
    return counted(env.get("LSB_HOSTS", "").split(), "LSB_HOSTS")
