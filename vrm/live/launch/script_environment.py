"""What a script job gets to start its own programs: variables, and files next to its own, which keep a plain mpirun on
the job's nodes and cores.

| variable | why |
|---|---|
| those of `vrm.system.job_variables` | programs in the script find its files by them |
| `SLURM_JOB_ID` and the others of `slurm_variables` | a batch script for Slurm expects them. mpirun takes the job's nodes and tasks from them |
| `OMPI_MCA_plm=rsh` (4.1), `PRTE_MCA_plm=ssh` (5), and their agent; `HYDRA_BOOTSTRAP=ssh`, `HYDRA_BOOTSTRAP_EXEC`, and the same of Intel MPI | daemons on other nodes are started by `DAEMON`, only on the job's cores there: otherwise mpirun would use the srun on PATH, which is vrm's, or ranks would be on all cores of the node |
| `OMPI_MCA_orte_fork_agent` (4.1), `PRTE_MCA_odls_base_exec_agent` (5) | ranks start through `RANK`: ranks that `--bind-to core` and the like have bound to cores of other jobs may use all cores of their own job on the node. (Hydra has no such agent) |
| `OMPI_MCA_ras=^slurm` and the like, more ranks than cores allowed | on emulated nodes, which are this one machine |
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from collections.abc import Mapping, Sequence

from vrm.live.launch.base import synthetic
from vrm.live.nodes.topology import Topology, fold
from vrm.model import Job, Node, RankSlot
from vrm.model.forms.hosts import fold_hosts
from vrm.model.job import Details
from vrm.model.quantities import repeated
from vrm.system import job_variables
from vrm.system.files import user_name
from vrm.system.transports.srun import without_job_requests

BATCH_VARIABLES = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN|PBS|SGE|PE|LSB|COBALT)_.*|NSLOTS|NHOSTS|JOB_ID")
"""Variables that batch systems and their launchers set for their own job."""

AGENT, DAEMON = "vrm-agent", "vrm-daemon"
"""The programs that replace ssh in scripts, in the folder of commands: for tasks of steps, and for daemons of mpiruns.
A program that DAEMON starts needs no standard input or output, and is started through vrm's own connections to the
nodes."""

RANK = "vrm-rank"
"""The program through which mpiruns of Open MPI in scripts start their ranks."""

NODES, CORES = "nodes", "cores"
"""The files in the folder of a job that tell the agent how to reach its nodes, and which CPUs the job has there."""

NodeCommands = Mapping[str, tuple[Sequence[str], bool]]
"""The commands that start a program on another node, by its name (see `vrm.live.nodes.runner_commands.node_command`)."""

_AGENT = f"""#!/bin/sh
# Starts a command on another node of the script job around, on the job's cores there.
. "${{{job_variables.FOLDER}:?this is not a script job of vrm}}/{NODES}"
"""

_RANK = f"""#!/bin/sh
# Starts a rank of a script's mpirun where it is bound, if that is on the job's cores.
. "${{{job_variables.FOLDER}:?this is not a script job of vrm}}/{CORES}"
while read -r key value; do
    [ "$key" != Cpus_allowed_list: ] || break
done </proc/self/status
[ "$value" != "$own" ] || exec "$@"
numbers() {{
    for part in $(echo "$1" | tr , ' '); do
        at=${{part%-*}}
        while [ "$at" -le "${{part#*-}}" ]; do
            echo "$at"
            at=$((at + 1))
        done
    done
}}
all=" $(numbers "$own" | tr '\\n' ' ') "
for cpu in $(numbers "$value"); do
    case $all in
        *" $cpu "*) ;;
        *) exec taskset -c "$own" "$@";;
    esac
done
exec "$@"
"""

_NODES = """while :; do
    case $1 in
        -l|-p|-o|-F|-i|-S|-E) shift 2;;
        -*) shift;;
        *) break;;
    esac
done
host=$1
shift
command=$(printf '%s\\n' "$*" | sed "s/'/'\\\\\\\\''/g; 1s/^/'/; \\$s/\\$/'/")
shell=${SHELL:-/bin/sh}
step=${VRM_STEP##*.}
used=used.${step:-batch}.$host.$$
"""


def slurm_variables(job_id: int, on: Mapping[str, Sequence[RankSlot]], idle: Mapping[str, Sequence[RankSlot]]
                    ) -> dict[str, str]:
    """Return the variables that Slurm sets for the batch script of such a job; `on` are its tasks by node, `idle` its
    other cores."""
    counts = [len(slots) for slots in on.values()]
    cores = [sum(len(slot.cores) for slot in (*slots, *idle.get(name, ()))) for name, slots in on.items()]
    first = next(iter(on.values()))
    nodes, tasks, names = str(len(on)), str(sum(counts)), fold_hosts(list(on))
    cpus = str(len(first[0].cores))
    return {"SLURM_JOB_ID": str(job_id), "SLURM_JOBID": str(job_id),
            "SLURM_JOB_NODELIST": names, "SLURM_NODELIST": names, "SLURM_JOB_NUM_NODES": nodes,
            "SLURM_NNODES": nodes, "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks, "SLURM_CPUS_PER_TASK": cpus,
            "SRUN_CPUS_PER_TASK": cpus, "SLURM_CPUS_ON_NODE": str(cores[0]),
            "SLURM_JOB_CPUS_PER_NODE": repeated(cores), "SLURM_TASKS_PER_NODE": repeated(counts),
            "SLURMD_NODENAME": next(iter(on)), "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
            "SLURM_GTIDS": "0", "SLURM_CLUSTER_NAME": "vrm", "SLURM_JOB_PARTITION": "vrm",
            "SLURM_JOB_USER": user_name(os.getuid()), "SLURM_JOB_UID": str(os.getuid()),
            "SLURM_JOB_GID": str(os.getgid()), "SLURM_JOB_QOS": "normal",
            "SLURM_SUBMIT_HOST": os.uname().nodename}


def cores_unspecified(job: Job) -> bool:
    """Return whether the user of sbatch has not set the number of cores of a task (`-c`): then there is no
    SLURM_CPUS_PER_TASK."""
    program = job.payload
    return program.front == "slurm" and job.cores == 1 and "SLURM_CPUS_PER_TASK" not in program.variables


def pbs_variables(job_id: int, on: Mapping[str, Sequence[RankSlot]], listed: Path, said: Mapping[str, str]
                  ) -> dict[str, str]:
    """Return the variables that PBS sets for the script of such a job; `listed` is the file with its nodes, `said` are
    the variables of the job in Slurm's form."""
    index = said.get("SLURM_ARRAY_TASK_ID")
    first = next(iter(on.values()))
    found = {"PBS_JOBID": f"{job_id}.vrm", "PBS_NODEFILE": str(listed), "PBS_NODENUM": "0", "PBS_TASKNUM": "1",
             "PBS_QUEUE": said.get("PBS_O_QUEUE", "vrm"), "NCPUS": str(sum(len(slot.cores) for slot in first))}
    if index is not None:
        array = said.get("SLURM_ARRAY_JOB_ID", str(job_id))
        found.update(PBS_JOBID=f"{array}[{index}].vrm", PBS_ARRAY_ID=f"{array}[].vrm", PBS_ARRAY_INDEX=index)
    return found


def of_submission(job: Job, details: Details, directory: str, start: float) -> dict[str, str]:
    """Return the variables in which Slurm describes to a batch script how its job was submitted. `start`: epoch
    seconds."""
    found = {"SLURM_JOB_NAME": details.name or job.app, "SLURM_SUBMIT_DIR": directory,
             "SLURM_JOB_START_TIME": str(int(start)), "SLURM_JOB_END_TIME": str(int(start + job.walltime))}
    if details.index is not None:
        found["SLURM_ARRAY_TASK_ID"] = str(details.index)
        if "array_id" in details.more:
            found["SLURM_ARRAY_JOB_ID"] = str(details.more["array_id"])
    return found


def nodes_script(on: Mapping[str, Sequence[RankSlot]], cpus: Mapping[str, Sequence[int]], ways: NodeCommands,
                 site: Mapping[str, str], run: str, job_id: int, folder: Path, measure: str, rsh_agent: str = "") -> str:
    """Return the text of the file NODES of a job, which has this folder. Programs on other nodes are started through
    the program `measure`, if it exists, and daemons by `rsh_agent`, if it is named."""
    steps, program = shlex.quote(str(folder)), shlex.quote(measure)
    through = f"{program} {steps}/"
    lines = [_NODES, f"through=\n[ ! -x {program} ] || through={shlex.quote(through)}\"$used \"\n", "case $host in\n"]
    for name in on:
        bind = f"taskset -c {','.join(map(str, cpus[name]))} " if cpus.get(name) else ""
        before, shell = ways.get(name, ((), False))
        own = (f"env {job_variables.NODE}={shlex.quote(name)} {job_variables.FOLDER}={steps} VRM_RUN={run} "
               f"VRM_JOB_ID={job_id} {job_variables.STEP}=")
        noted = f"[ -z \"$through\" ] || : >{steps}/\"$used\"\n"
        remote = f"{shlex.quote(own)}\"${job_variables.STEP} \"{shlex.quote(bind)}\"$through$shell -c $command\""
        if not before:
            start = f"echo \"vrm: there is no way to {name}\" >&2; exit 1"
        elif shell:
            start = f"{noted}exec {shlex.join(before)} {remote}"
        else:
            start = (f"{noted}set -- \"$shell\" -c \"$*\"\n[ -z \"$through\" ] || set -- {through}\"$used\" \"$@\"\n"
                     + _site_srun_lines(site) + f"exec {shlex.join(before)} {own}\"${job_variables.STEP}\" {bind}\"$@\"")
        if rsh_agent:
            start = f"if [ \"${{0##*/}}\" = {DAEMON} ]; then\n{noted}exec {shlex.join((rsh_agent, name))} {remote}\nfi\n{start}"
        short = name.partition(".")[0]
        lines.append(f"{'|'.join(dict.fromkeys((name, short, short + '.*')))})\n"
                     f"[ \"${job_variables.NODE}\" != {shlex.quote(name)} ] || exec {own}\"${job_variables.STEP}\" {bind}\"$shell\" -c \"$*\"\n"
                     f"{start};;\n")
    lines.append("*) echo \"vrm: $host is not a node of this job, which has " + " ".join(on)
                 + "\" >&2; exit 1;;\nesac\n")
    return "".join(lines)


def cores_script(cpus: Mapping[str, Sequence[int]]) -> str:
    """Return the text of the file CORES of a job: its CPUs on each node, in the kernel's list format."""
    return (f"case ${job_variables.NODE} in\n" + "".join(f"{shlex.quote(name)}) own={fold(numbers)};;\n"
                                                  for name, numbers in cpus.items()) + "esac\n")


def _site_srun_lines(site: Mapping[str, str]) -> str:
    """Return shell lines that make the site's own srun use the surrounding batch job as its job."""
    unset = ("for each in $(env | sed -n 's/^\\(S[A-Z]*_[A-Za-z0-9_]*\\)=.*/\\1/p'); do case $each in "
             "SLURM*|SRUN*|SBATCH*) unset \"$each\";; esac; done\n")
    return unset + "".join(f"export {name}={shlex.quote(value)}\n" for name, value
                           in without_job_requests(site).items() if name.isidentifier())


def confining_variables(commands: Path, emulated: bool) -> dict[str, str]:
    """Return the variables that keep mpiruns in a script on the job's nodes and cores."""
    agent = commands / DAEMON
    found = {"OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": str(agent), "PRTE_MCA_plm": "ssh",
             "PRTE_MCA_plm_ssh_agent": str(agent), "HYDRA_BOOTSTRAP": "ssh",
             "HYDRA_BOOTSTRAP_EXEC": str(agent), "HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(agent),
             "I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(agent)}
    if emulated:
        return {**found, "OMPI_MCA_ras": "^slurm", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                "PRTE_MCA_ras": "^slurm", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                "HYDRA_RMK": "user"}
    return {**found, "OMPI_MCA_orte_fork_agent": str(commands / RANK),
            "PRTE_MCA_odls_base_exec_agent": str(commands / RANK)}


def commands() -> dict[str, str]:
    """Return the programs for mpiruns in scripts, by name."""
    return {AGENT: _AGENT, DAEMON: _AGENT, RANK: _RANK}


def is_bound(topologies: Mapping[str, Topology], slots: Sequence[RankSlot], nodes: Sequence[Node],
             emulated: bool) -> bool:
    """Return whether tasks can be bound to the cores of these slots."""
    return not emulated and not synthetic(topologies, slots, nodes) and all(
        nodes[slot.node].name in topologies for slot in slots)
