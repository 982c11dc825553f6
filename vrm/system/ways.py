"""Ways to start a program on another node: what `Hosts.Reach` can name."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from collections.abc import Callable, Mapping

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Way:
    """How a program is started on another node; `register` makes it known.

    `start` gives the words before the program's, from the node's name and the seconds in which it
    must answer. `shell`: the program's words go as one word, through a shell there, as with ssh.
    `environment` makes the environment of that command from vrm's own. `chosen` says whether
    `Reach: auto` takes it in an environment; ssh is taken where none says so. `own_name` is the
    variable with the name of this machine among the nodes, if there is one. `gpus` gives the words
    behind those of `start` for what is to see so many GPUs. `group` gives those that start the program once on each of
    several nodes, from these in a folded list, their number and the seconds; `own_name` tells them apart there, and
    all get the same input.
    """

    name: str
    start: Callable[[str, float], tuple[str, ...]]
    shell: bool = False
    environment: Callable[[Environment], dict[str, str]] = dict
    chosen: Callable[[Environment], bool] = lambda env: False
    own_name: str = ""
    gpus: Callable[[int], tuple[str, ...]] = lambda number: ()
    group: Callable[[str, int, float], tuple[str, ...]] | None = None


WAYS: dict[str, Way] = {}
"""The known ones by name, in the order in which `auto` asks them."""


def register(way: Way) -> Way:
    """Enter a way; a name that is taken is a ValueError."""
    if way.name in WAYS:
        raise ValueError(f"the way {way.name} is registered already")
    WAYS[way.name] = way
    return way


def choose(reach: str, env: Environment) -> str:
    """The name of the way to take, where `Hosts.Reach` is this word."""
    if reach != "auto":
        return reach
    return next((name for name, way in WAYS.items() if way.chosen(env)), "ssh")


# ------------------------------------------------------------------------------------------ ssh

SSH = ("ssh", "-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes",
       "-o", "ControlMaster=no")
"""OpenSSH's client, as the user has configured it, but never asking and never staying behind."""

register(Way("ssh", lambda host, timeout: (  # noqa: S604  (a field of Way)
    *SSH, "-o", f"ConnectTimeout={max(1, round(timeout))}", host), shell=True))

# ----------------------------------------------------------------------------------------- srun

_SLURM_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JOB_ID", "SLURM_JOBID",
               "SLURM_CLUSTER_NAME", "SLURM_CLUSTERS")


def _without_wishes(env: Environment) -> dict[str, str]:
    """What a Slurm job says of its own tasks (CPUs, memory, distribution) would be taken for
    options of this step."""
    return {name: value for name, value in env.items()
            if name in _SLURM_KEPT or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))}


# Alongside everything else that runs there, and taking nothing away from it. GPUs are named, since
# a step on some nodes of a job of `--gpus=N` is refused without, and one of an `--exclusive` job has
# none (seen in Slurm 22.05).
_STEP = ("--cpu-bind=none", "--mem=0", "--mpi=none", "--export=ALL", "--quiet")

# One step on all nodes. The end of a task, or of a node, is not the end of the others.
_GROUP = ("--ntasks-per-node=1", "--kill-on-bad-exit=0", "--no-kill", "--wait=0")

register(Way("srun", lambda host, timeout: (
    "srun", "--overlap", "-N1", "-n1", "-w", host, *_STEP), environment=_without_wishes,
    group=lambda hosts, number, timeout: (
        "srun", "--overlap", f"-N{number}", f"-n{number}", "-w", hosts, *_GROUP, *_STEP),
    chosen=lambda env: bool(env.get("SLURM_JOB_ID") and shutil.which("srun", path=env.get("PATH"))),
    own_name="SLURMD_NODENAME",
    gpus=lambda number: (f"--gpus={number}",) if number else ("--gres=none",)))
