"""Starts scripts as jobs: a script runs once, on the first node of the job, on all cores that the job has there. If
the job is exclusive, the script and its steps may use all cores of its nodes.

Variables that batch systems and launchers set for a job of their own are not passed on to the script: otherwise an
mpirun in it would use the nodes of the whole allocation. Instead the script finds variables that describe its own job:
see `vrm.live.launch.script_environment`.
"""

from __future__ import annotations

import os
from pathlib import Path
from collections.abc import Iterator, Mapping, Sequence

from vrm.live.launch.base import Launch, Launcher, PathLike, LauncherConfiguration, slot_cpus
from vrm.live.launch.direct import DirectLauncher
from vrm.live.launch.environment import environment, with_own_mpi
from vrm.live.launch.script_environment import (CORES, BATCH_VARIABLES, NodeCommands, confining_variables, cores_script, is_bound, nodes_script,
                                                pbs_variables, slurm_variables)
from vrm.live.launch.script_environment import NODES as NODES_FILE
from vrm.live.nodes.topology import Topology
from vrm.model import Node, RankSlot
from vrm.system import job_variables, bash_env

UNBOUND = {"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none",
           "I_MPI_PIN": "off"}
"""Variables that keep ranks of an mpirun in the script on the cores of the script: otherwise Open MPI binds to any
cores of the machine, also to those of other jobs."""


CONFINING = frozenset((*UNBOUND, *confining_variables(Path(), True), *confining_variables(Path(), False)))
"""The variables that keep mpiruns on the cores of a job."""


class ScriptLauncher(DirectLauncher):
    """Starts scripts; see `vrm.live.launch.base.Launcher`.

    `launcher` is that of the run; `ways` are the commands that reach the other nodes; `site` are the variables of the
    surrounding batch system. `directory` is that of the run, `commands` the folder of the programs that scripts find
    first, `outside` the folder of those for programs outside of jobs. `measure` is the path of a program that starts
    others and records what they use, if an extension has one. `rsh_agent`: see `vrm.live.launch.base.Launcher`.

    | variable | meaning |
    |---|---|
    | `VRM_JOB_ID` | the job |
    | `VRM_NNODES`, `VRM_NODELIST` | the number of the job's nodes, and their names, as n1,n2 |
    | `VRM_NTASKS`, `VRM_CPUS_PER_TASK` | its number of ranks, and the cores of each |
    | those of UNBOUND | ranks of an mpirun are not bound, unless the user sets that |
    | `VRM_TASKS_PER_NODE` | ranks on each of its nodes, in their order, as 4,4,2 |
    | those of `vrm.live.launch.script_environment` | the same data in Slurm's variables, and where steps and mpiruns may run |
    """

    kind = "script"
    several_nodes = True
    version_text = "scripts are started directly, on the first node of a job"
    launcher: Launcher = Launcher()
    ways: NodeCommands = {}
    site: Mapping[str, str] = {}
    directory = Path()
    measure = ""
    commands = outside = Path("/nowhere")

    @classmethod
    def detect(cls, settings: LauncherConfiguration, emulated: bool, topologies: Mapping[str, Topology],
               base: Mapping[str, str]) -> ScriptLauncher:
        """Create the launcher; no program has to be found."""
        made = cls(environment(base, settings.environment), settings.environment, topologies, emulated)
        made.site = {name: value for name, value in base.items()
                     if BATCH_VARIABLES.fullmatch(name) and name.isidentifier()}
        return made

    def folder(self, rankfile: PathLike) -> Path:
        """Return the directory of a job's own files, next to its rankfile."""
        return Path(rankfile).with_suffix(".steps")

    def command(self, job_id: int, app: PathLike, slots: Sequence[RankSlot],
                nodes: Sequence[Node], rankfile: PathLike, arguments: Sequence[str] = (),
                variables: Mapping[str, str] | None = None, alone: bool = False, unspecified: bool = False) -> Launch:
        """Return how to start the script, bound to the cores of its slots on the first node; `alone`: to all cores of
        the node, since no other job has any. `unspecified`: see `cores_unspecified`."""
        on, idle = self.places(slots, nodes, alone)
        names = list(on)
        first = on[names[0]]
        launch = super().command(job_id, app, first, nodes, rankfile, arguments, variables)
        own = {"VRM_NNODES": str(len(on)), "VRM_NODELIST": ",".join(on),
               "VRM_NTASKS": str(len(slots)),
               "VRM_CPUS_PER_TASK": str(len(slots[0].cores)),
               "VRM_TASKS_PER_NODE": ",".join(str(len(here)) for here in on.values())}
        chosen = {**self.user, **(variables or {})}
        env = {**self._of_launcher(), **{name: value for name, value in launch.env.items()
                                         if name in chosen or not BATCH_VARIABLES.fullmatch(name)}}
        bound = is_bound(self.topologies, slots, nodes, self.emulated)
        cpus = {name: sorted(cpu for slot in (*here, *idle.get(name, ()))
                             for cpu in slot_cpus(self.topologies, slot, nodes[slot.node]))
                for name, here in on.items()} if bound else {}
        affinity = launch.affinity and tuple(cpus.get(names[0], launch.affinity))
        daemons = bool(self.rsh_agent) and len(on) > 1
        folder, name = self.folder(rankfile), os.path.basename(os.fspath(app))
        files = {folder / NODES_FILE: nodes_script(on, cpus, self.ways, self.site, self.run_id, job_id,
                                                   folder, self.measure, self.rsh_agent if daemons else ""),
                 folder / CORES: cores_script(cpus)}
        own.update({job_variables.FOLDER: str(folder), job_variables.NODE: names[0],
                    "VRM_DIRECTORY": str(self.directory), **self.finding(env)})
        if "PBS_O_WORKDIR" in chosen:  # it was submitted by qsub
            listed = folder / "nodefile"
            files[listed] = "".join(f"{host}\n" * len(here) for host, here in on.items())
            own.update(pbs_variables(job_id, on, listed, chosen))
        given = {"SLURM_JOB_NAME": name, **UNBOUND, **confining_variables(self.commands, not bound),
                 **slurm_variables(job_id, on, idle)}
        if unspecified:
            del given["SLURM_CPUS_PER_TASK"], given["SRUN_CPUS_PER_TASK"]
        return Launch(launch.argv, {**given, **env, **own}, files, affinity, launch.host, daemons=daemons)

    @staticmethod
    def places(slots: Sequence[RankSlot], nodes: Sequence[Node], alone: bool
               ) -> tuple[dict[str, list[RankSlot]], dict[str, list[RankSlot]]]:
        """Return the slots of a job by node name, and the other cores of these nodes if the job is `alone` on them."""
        found: tuple[dict[str, list[RankSlot]], dict[str, list[RankSlot]]] = {}, {}
        for there, each in zip(found, (slots, _idle(slots, nodes) if alone else ())):
            for slot in each:
                there.setdefault(nodes[slot.node].name, []).append(slot)
        return found

    def site_variables(self) -> Mapping[str, str]:
        """Return the variables of the surrounding batch system for its own srun, if that starts steps."""
        theirs: Mapping[str, str] = getattr(self.launcher, "env", {})
        return {name: value for name, value in theirs.items()
                if self.launcher.in_steps == "srun" and BATCH_VARIABLES.fullmatch(name)}

    def finding(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make programs of a job find vrm's commands for jobs first (not those for programs
        outside of jobs), and an mpirun."""
        ours = (str(self.commands), str(self.outside))
        others = (folder for folder in env.get("PATH", os.defpath).split(os.pathsep) if folder not in ours)
        return {"PATH": os.pathsep.join([ours[0], with_own_mpi(os.pathsep.join(others))]),
                **bash_env.variables(self.commands, env, [self.outside])}

    def _of_launcher(self) -> dict[str, str]:
        """Return what the run's launcher sets for its mpirun, for the mpiruns in scripts."""
        theirs: Mapping[str, str] = getattr(self.launcher, "env", {})
        return {name: value for name, value in theirs.items()
                if self.env.get(name) != value and not BATCH_VARIABLES.fullmatch(name)}


def _idle(slots: Sequence[RankSlot], nodes: Sequence[Node]) -> Iterator[RankSlot]:
    """Yield each core of the nodes of these slots that is in none of the slots."""
    taken = {(slot.node, slot.socket, core) for slot in slots for core in slot.cores}
    for node in dict.fromkeys(slot.node for slot in slots):
        for socket, cores in enumerate(nodes[node].sockets):
            for core in range(cores):
                if (node, socket, core) not in taken:
                    yield RankSlot(-1, node, socket, (core,))
