"""srun: one step of the Slurm job around for all nodes, or one for each."""

from __future__ import annotations

import shutil

from vrm.system.transports.base import Environment, Transport

_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JOB_ID", "SLURM_JOBID",
         "SLURM_CLUSTER_NAME", "SLURM_CLUSTERS")


def without_wishes(env: Environment) -> dict[str, str]:
    """What a Slurm job says of its own tasks (CPUs, memory, distribution) would be taken for
    options of this step."""
    return {name: value for name, value in env.items()
            if name in _KEPT or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))}


# Alongside everything else that runs there, and taking nothing away from it. GPUs are named, since
# a step on some nodes of a job of `--gpus=N` is refused without, and one of an `--exclusive` job has
# none (seen in Slurm 22.05).
_STEP = ("--cpu-bind=none", "--mem=0", "--mpi=none", "--export=ALL", "--quiet")

# One step on all nodes. The end of a task, or of a node, is not the end of the others.
_GROUP = ("--ntasks-per-node=1", "--kill-on-bad-exit=0", "--no-kill", "--wait=0")

SRUN = Transport(
    "srun", lambda host, timeout: ("srun", "--overlap", "-N1", "-n1", "-w", host, *_STEP), environment=without_wishes,
    group=lambda hosts, number, timeout: (
        "srun", "--overlap", f"-N{number}", f"-n{number}", "-w", hosts, *_GROUP, *_STEP),
    chosen=lambda env: bool(env.get("SLURM_JOB_ID") and shutil.which("srun", path=env.get("PATH"))),
    own_name="SLURMD_NODENAME",
    gpus=lambda number: (f"--gpus={number}",) if number else ("--gres=none",))
