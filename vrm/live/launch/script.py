"""Scripts as jobs: what is typed once runs once, on the first node of the job, on all cores that the job
has there.

What batch systems and launchers set for a job of their own is not passed on to it: an mpirun in a
script would else take the nodes of the whole allocation for those of the job.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Sequence

from vrm.live.launch.base import Launch, PathLike, Settings
from vrm.live.launch.direct import Direct
from vrm.live.launch.environment import environment
from vrm.live.nodes.topology import Topology
from vrm.model import Node, RankSlot

OF_OTHERS = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN|PBS|SGE|PE|LSB|COBALT)_.*|NSLOTS|NHOSTS|JOB_ID")


UNBOUND = {"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none",
           "I_MPI_PIN": "off"}
"""Lets ranks of an mpirun in the script stay where the script is: Open MPI binds to any cores of the
machine otherwise, also to those of other jobs."""


class Scripts(Direct):
    """Starts scripts; see `vrm.live.launch.base.Launcher`.

    | variable | what it says |
    |---|---|
    | `VRM_JOB_ID` | the job |
    | `VRM_NNODES`, `VRM_NODELIST` | how many nodes the job has, and which, as n1,n2 |
    | `VRM_NTASKS`, `VRM_CPUS_PER_TASK` | its ranks, and the cores of each |
    | those of UNBOUND | that ranks of an mpirun are not bound, unless the user says otherwise |
    | `VRM_TASKS_PER_NODE` | ranks on each of its nodes, in their order, as 4,4,2 |
    """

    kind = "script"
    several_nodes = True
    version_text = "scripts are started directly, on the first node of a job"

    @classmethod
    def detect(cls, settings: Settings, emulated: bool, topologies: Mapping[str, Topology],
               base: Mapping[str, str]) -> "Scripts":
        """Nothing is to be found."""
        return cls(environment(base, settings.environment), settings.environment, topologies, emulated)

    def command(self, job_id: int, app: PathLike, slots: Sequence[RankSlot],
                nodes: Sequence[Node], rankfile: PathLike, arguments: Sequence[str] = (),
                variables: Optional[Mapping[str, str]] = None) -> Launch:
        """The script, bound to the cores of those slots that are on the first node."""
        on: Dict[str, List[RankSlot]] = {}
        for slot in slots:
            on.setdefault(nodes[slot.node].name, []).append(slot)
        first = next(iter(on.values()))
        launch = super().command(job_id, app, first, nodes, rankfile, arguments, variables)
        own = {"VRM_NNODES": str(len(on)), "VRM_NODELIST": ",".join(on),
               "VRM_NTASKS": str(len(slots)),
               "VRM_CPUS_PER_TASK": str(len(slots[0].cores)),
               "VRM_TASKS_PER_NODE": ",".join(str(len(here)) for here in on.values())}
        chosen = {**self.user, **(variables or {})}
        env = {name: value for name, value in launch.env.items()
               if name in chosen or not OF_OTHERS.fullmatch(name)}
        return Launch(launch.argv, {**UNBOUND, **env, **own}, {}, launch.affinity, launch.host)
