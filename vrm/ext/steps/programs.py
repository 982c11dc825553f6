"""Starts a step by the MPI launcher of the run: builds one command line for each kind of launcher.

mpirun starts the tasks unbound, a given number on each node. Each task runs a script of this step, which binds it to
its cores, sets its variables and continues as the program. In this way all launchers bind steps in the same way, and
remote tasks get the whole environment. Slurm's variables are hidden from mpirun itself, because it would take its
nodes and tasks from them."""

from __future__ import annotations

import os
import sys

from vrm.ext.steps import resource_use
from vrm.ext.steps.cores import Task
from vrm.ext.steps.jobfile import StepJob
from vrm.ext.steps.options import UsageError
from vrm.system import job_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from vrm.ext.steps.options import SrunOptions

_OF_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PMI2_", "PRTE_", "HYDI_", "HYDRA_", "MPIR_", "MPI_LOCAL", "I_MPI_")
"""Variables that the launcher itself sets for a task; they are not overwritten."""

_AGENTS = ("OMPI_MCA_orte_fork_agent", "PRTE_MCA_odls_base_exec_agent")
"""Variables that keep the ranks of a plain mpirun on the job's cores; in a step the step's script does that."""

OUTER = ("HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
"""Variables whose values are indices within ROCR_VISIBLE_DEVICES, see `vrm.live.launch.visible_gpus`."""

_NOTHING = {"ZE_AFFINITY_MASK": "4095"}
"""Values that hide all devices, for variables whose empty value does not."""

RANK = "${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-$SLURM_PROCID}}}"
LOCAL = "${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$SLURM_LOCALID}}"


def quoted(text: str) -> str:
    """Return a word quoted for a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def is_name(text: str) -> bool:
    """Return whether a shell variable can have this name."""
    return text.isascii() and text.isidentifier()


def devices(job: StepJob, task: Task) -> dict[str, str]:
    """Return the variables that show a task exactly its GPUs; none if the job has no GPUs."""
    node = job.nodes[task.node]
    shown: dict[str, list[str]] = {gpu.variable: [] for each in job.nodes for gpu in each.gpus}
    if not shown:
        return {}
    mine = range(len(node.gpus)) if task.gpus is None else task.gpus
    for gpu in mine:
        shown[node.gpus[gpu].variable].append(node.gpus[gpu].word)
    return {"SLURM_GPUS_ON_NODE": str(len(mine)), **{name: ",".join(words) or _NOTHING.get(name, "")
                                                     for name, words in shown.items()}}


def _node_of_rank(job: StepJob, tasks: list[Task], nodes: list[int]) -> list[str]:
    """Return the shell lines that determine on which of the step's nodes a task runs."""
    if len(nodes) == 1:
        return ["i=0"]
    if not job.bound:  # emulated nodes: one machine, where the ranks start in order
        return ["case $r in", *(f"{rank}) i={nodes.index(task.node)} l="
                                f"{sum(each.node == task.node for each in tasks[:rank])};;"
                                for rank, task in enumerate(tasks)), "esac"]
    names = [dict.fromkeys((job.nodes[at].name.partition(".")[0], job.nodes[at].host.partition(".")[0]))
             for at in nodes]
    return ["h=$(uname -n)", "case ${h%%.*} in",
            *(f"{'|'.join(map(quoted, each))}) i={number};;" for number, each in enumerate(names)),
            "*) echo \"srun: error: $h is not a node of this step\" >&2; exit 1;;", "esac"]


def wrapper(job: StepJob, tasks: list[Task], common: Mapping[str, str], cwd: str, bound: list[list[int]],
            outputs: list[tuple[str, str]], label: int, step: int) -> str:
    """Return the script through which each task of a step starts.

    `common` are the variables of all tasks, `bound` the CPUs of each. `outputs` are the output and error file of
    each task ("": those of the launcher). `label` is the width of the label before each line (0: none); `step` is
    the number of the step."""
    nodes = list(dict.fromkeys(task.node for task in tasks))
    lines = ["#!/bin/sh", f"r={RANK}", f"l={LOCAL}", *_node_of_rank(job, tasks, nodes)]
    lines += [f"export {name}={quoted(value)}" for name, value in common.items()
              if is_name(name) and not name.startswith(_OF_LAUNCHERS)]
    lines.append('export SLURM_PROCID="$r" SLURM_LOCALID="$l" SLURM_NODEID="$i" SLURM_TASK_PID=$$')
    lines.append("case $i in")
    for number, at in enumerate(nodes):
        here = [task for task in tasks if task.node == at]
        name = quoted(job.nodes[at].name)
        ranks = ",".join(str(rank) for rank, task in enumerate(tasks) if task.node == at)
        lines.append(f"{number}) export SLURMD_NODENAME={name} {job_variables.NODE}={name} SLURM_GTIDS={ranks} "
                     f"SLURM_CPUS_ON_NODE={len({core for task in here for core in task.cores})};;")
    lines.append("esac")
    bind = ""
    if job.bound:
        bind = "taskset -c \"$c\" "
        lines.append("case $i.$l in")
        for number, at in enumerate(nodes):
            bounds = [cpus for task, cpus in zip(tasks, bound) if task.node == at]
            lines += [f"{number}.{local}) c={','.join(map(str, cpus))};;" for local, cpus in enumerate(bounds)]
        lines += ["*) echo 'srun: error: the launcher has started more tasks on a node than it was to' >&2; "
                  "exit 1;;", "esac"]
    seen = [devices(job, task) for task in tasks]
    if any(seen):
        lines += [f"unset {' '.join(OUTER)}", "case $r in", *(
            f"{rank}) export {' '.join(f'{name}={quoted(value)}' for name, value in each.items())};;"
            for rank, each in enumerate(seen)), "esac"]
    lines.append(f"cd {quoted(cwd)} || exit 1")
    if any(out or err for out, err in outputs):
        lines.append("case $r in")
        for rank, (out, err) in enumerate(outputs):
            words = ([f">{quoted(out)}"] if out else []) + (
                [] if not err else ["2>&1"] if err == out else [f"2>{quoted(err)}"])
            lines.append(f"{rank}) exec {' '.join(words)} || exit 1;;")
        lines.append("esac")
    labelled = ""
    if label:
        from vrm.ext.steps import label as program
        labelled = f"{quoted(sys.executable)} -I -S {quoted(program.__file__)} \"$r\" {label} "
    measured = ""
    if job.launcher == "srun" and os.access(job.one("measure"), os.X_OK):
        measured = f"{quoted(job.one('measure'))} {quoted(resource_use.prefix(job.directory, step))}\"$r\" "
    lines.append(f'exec {bind}{measured}{labelled}"$@"')
    return "\n".join(lines) + "\n"


def command(job: StepJob, step: str, tasks: list[Task], script: str, words: list[str],
            kill: bool = False) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts the tasks of a step, each through the script, and the files that it needs (path
    and text): a hosts file or none. `kill`: a task that fails ends the others (MPI launchers always do so)."""
    kind, program, options = job.launcher, job.one("program"), job.values.get("option", [])
    counts: dict[str, int] = {}
    for task in tasks:
        name = job.nodes[task.node].name
        counts[name] = counts.get(name, 0) + 1
    if not job.bound and kind != "srun":
        counts = {"localhost": len(tasks)}
    total, started = str(len(tasks)), ["/bin/sh", script, *words]
    runs = ",".join(f"{host}:{count}" for host, count in counts.items())
    if kind in ("openmpi4", "openmpi5"):
        how = ["-H", runs, "-np", total, "--bind-to", "none", "--map-by", "slot"]
        return [program, *how, *options, *started], {}
    if kind == "mpich":
        boot = ["-bootstrap", "fork"] if _alone(job, counts) else []
        return [program, *boot, "-hosts", runs, "-bind-to", "none", "-n", total, *options, *started], {}
    if kind == "intel":
        blocks: list[str] = []
        for host, count in counts.items():
            blocks += [":", "-host", host, "-n", str(count), *started]
        return [program, "-genv", "I_MPI_PIN", "off", *options, *blocks[1:]], {}
    hosts = f"{script}.hosts"
    return ([program, f"--job-name=vrm.{step}", "--overlap", f"--nodes={len(counts)}", f"--ntasks={total}",
             "--distribution=arbitrary", "--cpu-bind=none", f"--kill-on-bad-exit={int(kill)}", "--export=ALL", *options,
             *started], {hosts: "".join(f"{job.nodes[task.node].name}\n" for task in tasks)})


def _alone(job: StepJob, counts: Mapping[str, int]) -> bool:
    """Return whether the only node of the step is the node of this process."""
    here = job.here(os.environ)
    return list(counts) in (["localhost"], [job.nodes[here].name] if here >= 0 else [])


def environment(job: StepJob, env: Mapping[str, str], hosts: str) -> dict[str, str]:
    """Return the environment of the launcher: without Slurm's variables of this job; for the site's own srun with
    the variables of the surrounding batch job."""
    kept = {name: value for name, value in env.items()
            if (not name.startswith(("SLURM", "SRUN_")) and name not in _AGENTS) or name == "SLURM_CONF"}
    if job.launcher == "srun":
        kept.update(line.split("=", 1) for line in job.values.get("site", ()))  # type: ignore[misc]
        kept["SLURM_HOSTFILE"] = hosts
    return kept


CONTAINERS = ("apptainer", "singularity", "enroot")
"""Programs that start containers for `--container-image`; the first one found is used."""


def container_command(words: Sequence[str], options: SrunOptions, found: Mapping[str, str], folder: str
                      ) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs `words` in the container of the options, and the files (path and text) that it
    needs in `folder`. As with the plug-in pyxis, an image is a file or `[REGISTRY#]NAME[:TAG]`. `found`: the paths
    of the available programs of CONTAINERS. Raises UsageError if none of them can do it."""
    image, workdir = options.get("container-image"), options.get("container-workdir")
    mounts = [mount.split(":") for mount in options.get("container-mounts").split(",") if mount]
    for mount in mounts:
        if len(mount) > 3 or not all(mount):
            raise UsageError(f"--container-mounts: `{':'.join(mount)}` is not SOURCE:TARGET[:FLAG+FLAG]")
    if not found:
        raise UsageError(f"--container-image needs one of {', '.join(CONTAINERS)} on PATH")
    squashed = image.endswith((".sqsh", ".squashfs"))
    if "enroot" in found and (squashed or len(found) == 1):
        if not squashed:
            raise UsageError(f"--container-image={image}: enroot starts images in files; type enroot import docker://{image}"
                             " and give the file that it writes")
        path, text = f"{folder}/enroot.{os.uname().nodename}.{os.getpid()}", _enroot(mounts, workdir)
        return [found["enroot"], "start", "--conf", path, image, *words], {path: text}
    if "://" not in image and ("#" in image or "/" not in image) and not (squashed or image.endswith((".sif", ".img"))):
        image = f"docker://{image.replace('#', '/')}"
    binds = [word for mount in mounts for word in ("--bind", ":".join(mount).replace("+", ","))]
    return [next(iter(found.values())), "exec", *binds, *(["--pwd", workdir] if workdir else []), image, *words], {}


def _enroot(mounts: Sequence[Sequence[str]], workdir: str) -> str:
    """Return the configuration script that makes enroot keep all variables and skip the image's own start command."""
    lines = ["environ() { env; }", "mounts() {", "    :"]
    for source, *more in mounts:
        flags = "".join(f",{flag}" for each in more[1:] for flag in each.split("+"))
        lines.append(f"    echo {quoted(f'{source} {(more or [source])[0]} none x-create=auto,rbind{flags}')}")
    enter = f"cd {quoted(workdir)} && " if workdir else ""
    return "\n".join((*lines, "}", f'rc() {{ {enter}exec "$@"; }}', ""))


def links_mpi(path: str) -> bool:
    """Return whether a program is linked with an MPI library. If so, the launcher starts it even as a single task."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                return False
            file.seek(0)
            return any(name.startswith((b"libmpi", b"libmpich", b"libmpl.")) for name in _needed(file.read()))
    except (OSError, ValueError, IndexError, StopIteration):
        return False


def _needed(data: bytes) -> list[bytes]:
    """Return the libraries that a 64-bit ELF file needs (DT_NEEDED)."""
    if data[4:6] != b"\x02\x01":
        return []

    def number(at: int, size: int = 8) -> int:
        return int.from_bytes(data[at:at + size], "little")

    headers, each, count = number(32), number(54, 2), number(56, 2)
    loaded, dynamic = [], []
    for at in range(headers, headers + each * count, each):
        kind, offset, address, size = number(at, 4), number(at + 8), number(at + 16), number(at + 32)
        if kind == 1:
            loaded.append((address, offset, size))
        elif kind == 2:
            dynamic = [(number(entry), number(entry + 8)) for entry in range(offset, offset + size, 16)]
    table = next((value for tag, value in dynamic if tag == 5), None)
    if table is None:
        return []
    start = next(offset + table - address for address, offset, size in loaded
                 if address <= table < address + size)
    return [data[start + value:data.index(b"\0", start + value)] for tag, value in dynamic if tag == 1]
