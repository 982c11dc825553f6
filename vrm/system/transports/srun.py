"""The transport srun: one step of the surrounding Slurm job for all nodes, or one for each."""

from __future__ import annotations

import shutil

from vrm.system.transports.base import Environment, Transport

_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JOB_ID", "SLURM_JOBID",
         "SLURM_CLUSTER_NAME", "SLURM_CLUSTERS")


def without_job_requests(env: Environment) -> dict[str, str]:
    """Return the environment without the variables in which a Slurm job describes its own tasks (CPUs, memory,
    distribution): srun would take them for options of this step."""
    return {name: value for name, value in env.items()
            if name in _KEPT or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))}


# The step runs alongside everything else there and takes no resources from it. GPUs are requested explicitly: without
# that, a step on some nodes of a job of `--gpus=N` is refused, and a step of an `--exclusive` job has none (seen in
# Slurm 22.05).
_STEP = ("--cpu-bind=none", "--mem=0", "--mpi=none", "--export=ALL", "--quiet")

# One step on all nodes. The end of a task, or of a node, does not end the others.
_GROUP = ("--ntasks-per-node=1", "--kill-on-bad-exit=0", "--no-kill", "--wait=0")

SRUN = Transport(
    "srun", lambda host, timeout: ("srun", "--overlap", "-N1", "-n1", "-w", host, *_STEP),
    environment=without_job_requests,
    group=lambda hosts, number, timeout: (
        "srun", "--overlap", f"-N{number}", f"-n{number}", "-w", hosts, *_GROUP, *_STEP),
    chosen=lambda env: bool(env.get("SLURM_JOB_ID") and shutil.which("srun", path=env.get("PATH"))),
    own_name="SLURMD_NODENAME",
    gpus=lambda number: (f"--gpus={number}",) if number else ("--gres=none",))
