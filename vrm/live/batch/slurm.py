"""Slurm: nodes from `SLURM_JOB_NODELIST`; cores of each from `SLURM_JOB_CPUS_PER_NODE`, or the tasks and
`SLURM_CPUS_PER_TASK`; the end from `squeue`, `scontrol` or `SLURM_JOB_END_TIME`. GPUs and memory of each node come
from `scontrol show job -d`, which has the GPUs' indices, otherwise from `SLURM_JOB_GPUS` (only for the batch
script's node), `SLURM_GPUS_PER_NODE` and `SLURM_MEM_PER_NODE` or `_PER_CPU`.

Inside a step (srun), the nodes of the step count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from vrm.live.batch.queries import ANSWER_SECONDS, command_output
from vrm.live.batch.base import (REMEDY, AllocationError, BatchJob, BatchSystem, Environment, Question, NodeShare,
                                 BatchScript, BatchScriptError, indices_of, register, whole)
from vrm.model.forms.hosts import MOST_HOSTS, expand
from vrm.model.quantities import SLURM_MEMORY, clock, memory_bytes, repeated
from vrm.system.printing.local_times import STANDARD, parse_local_time

WARNING = 120
"""Default seconds before the end at which Slurm sends its warning."""
LEAST_WARNING = 60
"""Minimum seconds: Slurm sends warnings to the minute, so a shorter one may come too late."""


@register
class Slurm(BatchSystem):
    """Slurm, from version 20.11."""

    name = "slurm"
    title = "Slurm"
    signs = ids = ("SLURM_JOB_ID", "SLURM_JOBID")
    kill_delay = 30.0  # KillWait
    hydra_settings = {"SLURM_CPU_BIND": "none"}
    step_requests = (
        r"SLURM_(CPU_BIND\w*|CPUS_PER_TASK|CORE_SPEC|DISTRIBUTION|EXACT|EXCLUSIVE|HINT|HOSTFILE"
        r"|MEM_BIND\w*|MULTI_PROG|NNODES|NPROCS|NTASKS(_PER_\w+)?|OVERCOMMIT|THREADS_PER_CORE|WHOLE)"
        r"|SRUN_CPUS_PER_TASK|SLURM_TRES_PER_TASK")
    submit = "sbatch"
    settings_variable = "SLURM_CONF"
    settings_files = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf",
                      "etc/slurm.conf", "etc/slurm/slurm.conf")
    directive = "SBATCH"
    script_help = "for sbatch"
    queue_word = "partition"
    whole_nodes = True
    ask_whole = "sbatch --exclusive, salloc --exclusive"

    def hosts(self, env: Environment) -> dict[str, int]:
        """Return the nodes of the job, or of the step around vrm."""
        return slurm_hosts(env)

    def questions(self, job: str) -> Sequence[Question]:
        """Query squeue, and scontrol if that fails."""
        return ((("squeue", "-h", "-j", job, "-o", "%A %e"),
                 lambda text: BatchJob(parse_squeue(text, job))),
                (("scontrol", "show", "job", job), lambda text: BatchJob(parse_scontrol(text, job))))

    def own_end(self, env: Environment) -> float | None:
        """Return the end as of the start of the job; administrators may have extended the job since."""
        end = env.get("SLURM_JOB_END_TIME", "")
        return float(end) if re.fullmatch(r"\d{1,12}", end) else None

    def shares(self, env: Environment, answer: BatchJob, hosts: Mapping[str, int],
               run: Callable[[Sequence[str]], str]) -> dict[str, NodeShare]:
        """Return memory and GPUs. A job that requested no GPU has none on nodes whose GPUs Slurm manages, and all GPUs
        on other nodes."""
        memory = _memory(env, hosts)
        job = self.job_id(env)
        gpus = any(env.get(name) for name in _GPUS)
        # The id becomes an argument of a command: it must look like an id.
        if not gpus or not re.fullmatch(r"[\w.]+", job):
            given = parse_gres(run(("sinfo", "-h", "-N", "-n", ",".join(hosts), "-o", "%N %G")))
            return {host: NodeShare(memory.get(host, 0), 0 if given.get(host) else None) for host in hosts}
        found = parse_shares(run(("scontrol", "show", "job", "-d", job)))
        if found:
            return {host: NodeShare(share.memory or memory.get(host, 0), share.gpus or 0, share.indices)
                    for host, share in ((host, found.get(host, NodeShare())) for host in hosts)}
        each = re.search(r"(\d{1,4})$", env.get("SLURM_GPUS_PER_NODE", "")
                         or env.get("SLURM_GPUS_ON_NODE", ""))
        own = indices_of(env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS") or "")
        return {host: NodeShare(memory.get(host, 0), len(own), own)
                if own is not None and host == env.get("SLURMD_NODENAME")
                else NodeShare(memory.get(host, 0), int(each[1]) if each else None) for host in hosts}

    def restarts(self, env: Environment, runs: int) -> int:
        """Return the restarts, which Slurm counts itself."""
        return whole(env, "SLURM_RESTART_COUNT")

    def job_environment(self, env: Environment, slots: Sequence[int]) -> dict[str, str]:
        """Return the variables of a job inside Slurm. Without SLURM_OVERLAP the mpiruns of several jobs wait for each
        other. Open MPI takes its slots from SLURM_TASKS_PER_NODE."""
        if "SLURM_JOB_ID" not in env:
            return {}
        more = {"SLURM_OVERLAP": "1"}
        if slots:
            more["SLURM_TASKS_PER_NODE"] = _tasks_per_node(env, slots)
        return more

    def step_gpus(self, gpus: Sequence[int]) -> dict[str, str]:
        """Return the total number of GPUs. Without it, srun gives a step of an `--exclusive` job no GPU, and
        refuses a step on some nodes of a job of `--gpus=N`. It also does this if `--gpus-per-node` is
        more than the job has on the node with the fewest GPUs (all seen in 22.05)."""
        return {"SLURM_GPUS": str(sum(gpus))} if sum(gpus) else {"SLURM_GRES": "none"}

    def check_script(self, wrapper: BatchScript) -> None:
        """Raise BatchScriptError if the warning would not come in time."""
        warning = WARNING if wrapper.warning is None else wrapper.warning
        if warning < LEAST_WARNING:
            raise BatchScriptError(f"a warning {warning} s before the end may come too late: give "
                                   f"--signal {LEAST_WARNING} or more")
        if warning >= wrapper.walltime:
            raise BatchScriptError(f"the warning is due {warning} s before the end of "
                                   f"{wrapper.walltime} s: give a smaller --signal or a larger -t")

    def script_lines(self, wrapper: BatchScript) -> list[str]:
        """Return options of sbatch."""
        ask = [f"--job-name={wrapper.name}", f"--nodes={wrapper.nodes}"]
        if wrapper.cores is not None:
            ask += ["# A task slot for every core (not hardware thread): mpirun does not start more ranks",
                    "# on a node than it has slots.",
                    f"--ntasks-per-node={wrapper.cores}", "--cpus-per-task=1", "--ntasks-per-core=1"]
        ask.append(f"--time={clock(wrapper.walltime)}")
        if wrapper.exclusive:
            ask += ["# Whole nodes: no jobs of others on them."
                    + ("" if wrapper.cores else " vrm uses all their cores."), "--exclusive"]
        if wrapper.memory is not None:
            ask += ["# By core, not by node: of two jobs on a node the first could take all memory.",
                    f"--mem-per-cpu={wrapper.memory}M"]
        warning = WARNING if wrapper.warning is None else wrapper.warning
        ask += [f"# {warning} s before the end vrm itself (B:) gets a signal: it starts nothing "
                "more and ends.", f"--signal=B:USR1@{warning}",
                "# A node that fails ends the jobs that run on it, not the allocation.", "--no-kill"]
        if has_step_manager(os.environ):
            ask += ["# Steps are made on the job's first node, not by Slurm's controller.", "--stepmgr"]
        if wrapper.chain > 1:
            ask += ["# Of the jobs of this name and user, one runs at a time.",
                    "--dependency=singleton"]
        if wrapper.account:
            ask.append(f"--account={wrapper.account}")
        if wrapper.queue:
            ask.append(f"--partition={wrapper.queue}")
        ask += [f"--output={wrapper.name}-%j.out",
                "# A job that is put back into the queue and runs again adds to its output.",
                "--open-mode=append"]
        return ask

    def chain(self, file: str, rest: str) -> list[str]:
        """Submit all at once; `singleton`, in the script, lets only one run at a time."""
        return [f"for i in 1 {rest}; do sbatch {file}; done"]


def has_step_manager(env: Environment) -> bool:
    """Return whether this Slurm can manage the steps of a job on one of its nodes: from 24.05, if `PrologFlags` has
    Contain."""
    return ("--stepmgr" in command_output(("sbatch", "--help"), env, ANSWER_SECONDS)
            and bool(re.search(r"(?im)^PrologFlags\s*=.*\bcontain", command_output(("scontrol", "show", "config"), env, ANSWER_SECONDS))))


def slurm_hosts(env: Mapping[str, str]) -> dict[str, int]:
    """Return the nodes of a Slurm job or step, with the CPUs granted on each (0: not known)."""
    name = next((name for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST") if env.get(name)), "")
    if not name:
        raise AllocationError(f"SLURM_JOB_NODELIST: is not set in this Slurm job; {REMEDY}")
    hosts = _expanded(env, name)
    cpus = slurm_counts(env, "SLURM_JOB_CPUS_PER_NODE", len(hosts))
    if not cpus:
        each = env.get("SLURM_CPUS_PER_TASK", "1")
        tasks = slurm_counts(env, "SLURM_TASKS_PER_NODE", len(hosts))
        cpus = [int(each) * count for count in tasks] if each.isdigit() else []
    granted = dict(zip(hosts, cpus or [0] * len(hosts)))
    if env.get("SLURM_STEP_NODELIST") and env.get("SLURM_STEP_ID"):
        return {host: granted.get(host, 0) for host in _expanded(env, "SLURM_STEP_NODELIST")}
    return granted


def _expanded(env: Mapping[str, str], name: str) -> list[str]:
    try:
        return list(dict.fromkeys(expand(env[name].strip())))
    except ValueError as error:
        raise AllocationError(f"{name}: {error}; {REMEDY}") from error


def slurm_counts(env: Mapping[str, str], name: str, hosts: int) -> list[int]:
    """Return Slurm's counts for the nodes, such as `8(x3),4`; empty if the variable is not set.

    Raises AllocationError if they are not valid counts, or not for `hosts` nodes.
    """
    text = env.get(name, "").strip()
    counts: list[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if not match or len(counts) > MOST_HOSTS:
            raise AllocationError(f"{name}: `{text}` is not a list of counts such as 8(x3),4; "
                                  f"{REMEDY}")
        counts += [int(match[1])] * int(match[2] or 1)
    if counts and len(counts) != hosts:
        raise AllocationError(f"{name}: `{text}` is for {len(counts)} nodes, and "
                              f"SLURM_JOB_NODELIST names {hosts}; {REMEDY}")
    return counts


_GPUS = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS", "SLURM_GPUS_ON_NODE",
         "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET")
"""Variables; at least one of them is set in a job that requested GPUs."""


def _memory(env: Environment, hosts: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of memory on each host that the environment grants; a value of 0 in it means all memory of a
    node, and gives no entry."""
    each = _mebibytes(env.get("SLURM_MEM_PER_NODE", ""))
    if each:
        return dict.fromkeys(hosts, each * 2**20)
    of_cpu = _mebibytes(env.get("SLURM_MEM_PER_CPU", ""))
    cpus = slurm_counts(env, "SLURM_JOB_CPUS_PER_NODE", len(_expanded(env, "SLURM_JOB_NODELIST"))
                        ) if env.get("SLURM_JOB_NODELIST") else []
    if not of_cpu or not cpus:
        return {}
    return {host: of_cpu * number * 2**20
            for host, number in zip(_expanded(env, "SLURM_JOB_NODELIST"), cpus) if host in hosts}


def _mebibytes(text: str) -> int:
    """Return a size in MiB, Slurm's default unit, or with a unit; 0 if it is not a size."""
    try:
        return memory_bytes(text.strip(), SLURM_MEMORY) >> 20
    except ValueError:
        return 0


def parse_shares(text: str) -> dict[str, NodeShare]:
    """Return memory and GPUs on each node from the output of `scontrol show job -d JOB`, from lines such as
    `NodeEvents=n[1-2] CPU_IDs=0-3 Mem=4096 GRES=gpu:a100:2(IDX:0,3)`."""
    found: dict[str, NodeShare] = {}
    for match in re.finditer(r"^\s+Nodes=(\S+) CPU_IDs=\S* Mem=(\d+) ?(?:GRES=(\S*))?", text,
                             re.MULTILINE):
        gpus, sure = 0, True
        indices: list[int] = []
        for number, listed in re.findall(
                r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)(?:\(IDX:([\d,-]+)\))?", match[3] or ""):
            gpus += int(number)
            indices += indices_of(listed) or ()
            sure = sure and bool(listed)
        try:
            nodes = expand(match[1])
        except ValueError:
            continue
        for node in nodes:  # in a job of several components, a node has a line for each
            found[node] = found.get(node, NodeShare()) + NodeShare(
                int(match[2]) * 2**20, gpus, tuple(indices) if sure and indices else None)
    return found


def parse_gres(text: str) -> dict[str, bool]:
    """Return for each node whether Slurm manages GPUs there, from the output of `sinfo -h -N -o "%N %G"`."""
    found: dict[str, bool] = {}
    for line in text.splitlines():
        node, _, gres = line.strip().partition(" ")
        found[node] = found.get(node, False) or bool(re.search(r"(^|,)gpu[:(]", gres.strip()))
    return found


def parse_slurm_time(text: str) -> float | None:
    """Return the seconds since the epoch of a local time as Slurm prints it (2026-11-21T16:00:00); None
    for `N/A`, `UnknownResource` and similar words."""
    try:
        return parse_local_time(text.strip(), STANDARD)
    except ValueError:
        return None


def parse_squeue(text: str, job: str) -> float | None:
    """Return the end of `job` from the output of `squeue -h -j JOB -o "%A %e"`. There may be other lines, because an
    array's first job has the same number as the array."""
    for line in text.splitlines():
        number, _, end = line.strip().partition(" ")
        if number == job:
            return parse_slurm_time(end)
    return None


def parse_scontrol(text: str, job: str) -> float | None:
    """Return the end of `job` from the output of `scontrol show job JOB`."""
    for record in re.split(r"(?=\bJobId=)", text):
        if re.match(rf"JobId={re.escape(job)}\b", record):
            end = re.search(r"\bEndTime=(\S+)", record)
            return parse_slurm_time(end[1]) if end else None
    return None


def _tasks_per_node(env: Mapping[str, str], slots: Sequence[int]) -> str:
    """Return the cores of every node in Slurm's format, such as `8(x4),4`."""
    given = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or ""
    allocated = int(given) if given.isdigit() else len(slots)
    if allocated != len(slots):  # only some nodes of the allocation are in use
        slots = [max(slots)] * allocated
    return repeated(slots)
