"""Hydra, which starts the ranks of MPICH and of Intel MPI: commands, CPU lists, exit codes.

| | MPICH | Intel MPI |
|---|---|---|
| places of ranks | `-hosts n1:2,n0:1`, filled in this order | a block `-host n1 -n 2 ...` for each host, with `:` between |
| CPUs, with the operating system's numbers | `-bind-to user:0+1,2+3`: one entry for each rank of a node, and the same list for all nodes; in a block it still applies to all | `-env I_MPI_PIN_DOMAIN [0x3,0xc]` in the block: one mask for each rank of this node |
| a rank killed by signal 9 | 9, and `EXIT STRING: Killed (signal 9)` on standard output; on several nodes 255 | 255, and `KILLED BY SIGNAL: 9 (Killed)` |
| a rank that ends without MPI_Finalize | mpiexec waits for the others | the same |

Therefore, if the nodes of a job of MPICH have different free cores, each rank has a block of its own
and is bound by `taskset`. With `Hosts: {Steps: each}`, when MPICH reaches the nodes by srun, it counts them in Slurm's
order and not in its own, and ranks end up on each other's nodes. vrm makes MPICH use ssh if the two orders differ.
(All seen in MPICH 4.0.2 and 5.0.2 and in Intel MPI 2021.18.)"""

from __future__ import annotations

import os
import re
from itertools import groupby
from typing import TypeVar
from collections.abc import Mapping, Sequence

from vrm.ext.sites.cpus import shared_list
from vrm.live.launch.base import (SYNTHETIC_CHECK, VERSION_SECONDS, AppContext, Launch, Launcher, LauncherConfiguration,
                                  LaunchError, LauncherNotFound, PathLike, ask_version, find_program, programs_in, slot_cpus, synthetic,
                                  tail)
from vrm.live.launch.environment import (environment, hydra_settings, own_programs, step_environment, tagged,
                                         threads_per_program, with_threads)
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import Topology
from vrm.model import Node, RankSlot
from vrm.system.hosts import host_name

MPICH, INTEL = "MPICH", "Intel MPI"

_BOOTSTRAPS = ("HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER", "I_MPI_HYDRA_BOOTSTRAP")
"""Variables by which a user chooses how Hydra starts its proxies."""

RankProgram = tuple[tuple[str, ...], tuple[str, ...]]
"""The command of a rank: the options of its block, and the program with its arguments."""

Each = TypeVar("Each")

_NAMES = ("mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich", "mpiexec", "mpirun")


class Hydra(Launcher):
    """Starts jobs by the mpiexec of MPICH or Intel MPI; `family` says which.

    `env` is the environment of all jobs, `topologies` are the machines by node name, `options` are placed before the
    first block. On an `emulated` cluster all ranks run on this machine, unbound."""

    kind = "hydra"
    automatic = True
    rank_variables = ("PMI_RANK",)
    complaints = r"mpiexec (detected|noticed|has)|Abort\(\d+\) on node \d+ .*: application called MPI_Abort"

    def __init__(self, mpiexec: str, family: str, version: str, env: Mapping[str, str],
                 topologies: Mapping[str, Topology], emulated: bool = False,
                 options: Sequence[str] = ()) -> None:
        self.mpirun = mpiexec
        self.family = family
        self.in_steps = "mpich" if family == MPICH else "intel"
        self.version_text = f"{family} {version}"
        self.env = dict(env)
        self.topologies = dict(topologies)
        self.emulated = emulated
        self.options = tuple(options)
        self.run_id = ""

    @classmethod
    def detect(cls, settings: LauncherConfiguration, emulated: bool, topologies: Mapping[str, Topology],
               base: Mapping[str, str]) -> Hydra:
        """Find mpiexec according to the settings. Raises LaunchError if there is neither MPICH nor Intel MPI."""
        mpiexec, family, version = find_mpiexec(settings.mpirun, base)
        env = environment(step_environment(base, {}), settings.environment, hydra_settings(base))
        return cls(mpiexec, family, version, env, topologies, emulated, settings.options)

    def together(self, job_id: int, contexts: Sequence[AppContext], slots: Sequence[RankSlot], nodes: Sequence[Node],
                 rankfile: PathLike, variables: Mapping[str, str] | None = None) -> Launch:
        """Return the mpiexec command with blocks for hosts or programs. Raises LaunchError if the CPU numbers of its
        cores are not known."""
        programs: list[RankProgram] = []
        for each, threads in zip(contexts, threads_per_program(self.env, variables, contexts, self.options)):
            own = ("-env", "OMP_NUM_THREADS", threads) if threads else ()
            programs += [(own, (os.fspath(each.program), *each.arguments))] * each.ranks
        hosts = [nodes[slot.node].name for slot in slots]
        cpus: list[list[int]] | None = None
        if self.emulated:
            hosts = ["localhost"] * len(slots)
        elif not synthetic(self.topologies, slots, nodes):
            cpus = [slot_cpus(self.topologies, slot, nodes[slot.node]) for slot in slots]
        make = self._mpich if self.family == MPICH else self._intel
        how = make(hosts, cpus, programs)
        here = self.emulated or all(host.partition(".")[0] == host_name() for host in hosts)
        daemons = bool(self.rsh_agent) and not here and not any(map(self.env.get, _BOOTSTRAPS))
        bootstrap = (["fork"] if here else ["ssh", "-bootstrap-exec", self.rsh_agent] if daemons
                     else self._bootstrap(slots))
        argv = (self.mpirun, *(["-bootstrap", *bootstrap] if bootstrap else []), *how)
        env = with_threads(self.env, variables, slots, self.options)
        return Launch(argv, tagged(env, self.run_id, job_id), {}, daemons=daemons)

    def _bootstrap(self, slots: Sequence[RankSlot]) -> list[str]:
        """Return options that choose how Hydra starts its proxies on other nodes: none if Hydra's own choice (srun
        inside a Slurm job, else ssh) places ranks correctly."""
        order = [slot.node for slot in slots]  # nodes are numbered as in the allocation
        if self.family == MPICH and "SLURM_JOB_ID" in self.env and order != sorted(order):
            return ["ssh"]
        return []

    def _mpich(self, hosts: Sequence[str], cpus: Sequence[Sequence[int]] | None,
               programs: Sequence[RankProgram]) -> list[str]:
        """Return the arguments for MPICH; without `cpus` ranks are unbound."""
        where = ["-hosts", ",".join(f"{host}:{ranks}" for host, ranks in _runs(hosts)), "-bind-to"]
        shared = shared_list(hosts, cpus) if cpus else None
        if cpus and shared is None:
            blocks = [["-n", "1", *own, "taskset", "-c", ",".join(map(str, of_rank)), *program]
                      for of_rank, (own, program) in zip(cpus, programs)]
            return [*where, "none", *self.options, *_joined(blocks)]
        binding = "none" if shared is None else "user:" + ",".join(
            "+".join(map(str, of_rank)) for of_rank in shared)
        first, *others = [["-n", str(ranks), *own, *program] for (own, program), ranks in _runs(programs)]
        return [*where, binding, *first[:2], *self.options, *_joined([first[2:], *others])]

    def _intel(self, hosts: Sequence[str], cpus: Sequence[Sequence[int]] | None,
               programs: Sequence[RankProgram]) -> list[str]:
        """Return the arguments for Intel MPI; without `cpus` ranks are unbound."""
        blocks, first = [], 0
        for (host, (own, program)), ranks in _runs(list(zip(hosts, programs))):
            binding = []
            if cpus:
                masks = [hex(sum(1 << cpu for cpu in of_rank))
                         for of_rank in cpus[first:first + ranks]]
                binding = ["-env", "I_MPI_PIN_DOMAIN", f"[{','.join(masks)}]"]
            blocks.append(["-host", host, "-n", str(ranks), *own, *binding, *program])
            first += ranks
        return [*([] if cpus else ["-genv", "I_MPI_PIN", "off"]), *self.options, *_joined(blocks)]

    def exit_code(self, code: int, output: PathLike, errors: PathLike) -> int:
        """Return the exit code that a shell would show for the failed rank: 128 plus the signal's number if Hydra's
        message in the job's output says that a signal killed it."""
        text = tail(output) if code else ""
        found = next(filter(None, (pattern.search(text) for pattern in _SIGNALS)), None)
        return 128 + int(found[1]) if found else code

    def check_bindings(self, errors: PathLike, output: PathLike, slots: Sequence[RankSlot],
                       nodes: Sequence[Node] = ()) -> BindingCheck:
        """Return a check without result: Hydra reports no bindings. They can only be read on the nodes."""
        if self.emulated:
            return BindingCheck("unbound")
        if synthetic(self.topologies, slots, nodes):
            return SYNTHETIC_CHECK
        return BindingCheck("unchecked", (f"{self.family} does not report bindings",))


# The order matters: MPICH's banner may be that of a rank which Hydra itself has killed. (The exit string appears for
# signals only; on several nodes the line after the banner is often missing.)
_SIGNALS = [re.compile(pattern, re.MULTILINE) for pattern in (
    r"^YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)$",
    r"^=\s+KILLED BY SIGNAL: (\d+) \(",
    r"^=\s+BAD TERMINATION OF ONE .*\n=\s+PID .*\n=\s+EXIT CODE: (\d{1,2})$")]


def _runs(of_ranks: Sequence[Each]) -> list[tuple[Each, int]]:
    """Return what consecutive ranks have in common, such as the host, with the number of these ranks."""
    return [(each, len(list(same))) for each, same in groupby(of_ranks)]


def _joined(blocks: Sequence[Sequence[str]]) -> list[str]:
    """Return blocks of arguments joined with `:`."""
    return [word for block in blocks for word in (":", *block)][1:]


# ----------------------------------------------------------------------------- finding mpiexec

_FIX = ("install MPICH (Debian: mpich; or `pip install mpich` into this Python's environment) "
        "or Intel MPI, or set Launcher.Mpirun to the path of its mpiexec")


def find_mpiexec(configured: str = "auto", env: Mapping[str, str] | None = None
                 ) -> tuple[str, str, str]:
    """Return the path, family and version of the mpiexec to use.

    `auto` searches the PATH of `env`, then the directory of this Python; MPIs of other kinds are skipped. Raises
    LaunchError with the reasons."""
    env = os.environ if env is None else env
    folders = [*env.get("PATH", os.defpath).split(os.pathsep), own_programs()]
    found, (family, version) = find_program(configured, env, programs_in(folders, _NAMES),
                                            lambda each: read_version(each, env), "no mpiexec on PATH", _FIX)
    return found, family, version


def read_version(mpiexec: str, env: Mapping[str, str] | None = None,
                 seconds: float = VERSION_SECONDS) -> tuple[str, str]:
    """Return the family and version of an mpiexec, which is run. Raises LaunchError if it is neither MPICH nor Intel
    MPI."""
    said = ask_version(mpiexec, environment(os.environ if env is None else env), _FIX, seconds)
    try:
        return parse_version(said)
    except LaunchError as error:
        raise type(error)(f"{mpiexec} {error}") from error


def parse_version(text: str) -> tuple[str, str]:
    """Return family and version from the output of `mpiexec --version`. Raises LaunchError for other programs."""
    for pattern, family in ((r"Intel\(R\) MPI Library.*?Version ([\w.]+)", INTEL),
                            (r"HYDRA build details:\s*Version:\s*(\S+)", MPICH)):
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return family, match[1]
    other = re.search(r"\((?:Open MPI|OpenRTE)\) (\S+)", text)
    if other:
        raise LauncherNotFound(f"is Open MPI {other[1]}; set Launcher: {{Kind: openmpi}} to start "
                               f"jobs by this one, or {_FIX}")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
    raise LauncherNotFound(f"--version says `{first[:80]}`, which is neither MPICH nor Intel MPI; {_FIX}")
