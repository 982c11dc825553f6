"""Slurm's own launcher: one job step for each job, for sites where MPI programs are started by srun. It needs
`TaskPlugin=task/affinity` on the nodes; the site decides which MPI a step supports."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from collections.abc import Mapping, Sequence

from vrm.ext.sites.cpus import compare_cpus, shared_list
from vrm.live.launch.base import (SYNTHETIC_CHECK, VERSION_SECONDS, AppContext, Launch, Launcher, LauncherConfiguration,
                                  LaunchError, LauncherNotFound, PathLike, ask_version, head, slot_cpus,
                                  synthetic, tail)
from vrm.live.launch.environment import environment, step_environment, tagged, threads_per_program, with_threads
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import Topology
from vrm.model import Node, RankSlot


class Srun(Launcher):
    """Starts jobs as steps of the Slurm job in which vrm runs.

    A file with one host for each rank (`-m arbitrary`) determines the node of each rank. srun accepts one list of
    CPUs for all nodes of a step; if nodes need different lists, each rank is bound by `taskset` instead."""

    kind = "srun"
    automatic = True
    in_steps = "srun"
    rank_variables = ("SLURM_PROCID",)
    complaints = r"srun: (error: .*: task|Terminating|Job step|launch)|slurmstepd"

    def __init__(self, srun: str, version_text: str, env: Mapping[str, str],
                 topologies: Mapping[str, Topology], options: Sequence[str] = ()) -> None:
        self.mpirun = srun
        self.version_text = version_text
        self.env = dict(env)
        self.topologies = dict(topologies)
        self.options = tuple(options)
        self.run_id = ""

    @classmethod
    def detect(cls, settings: LauncherConfiguration, emulated: bool, topologies: Mapping[str, Topology],
               base: Mapping[str, str]) -> Srun:
        """Find srun. Raises LaunchError if there is none, or vrm does not run in a Slurm job."""
        srun = find_srun(settings.mpirun, base)
        if emulated:
            raise LaunchError("Launcher.Kind: srun starts ranks on the nodes of a Slurm job, and "
                              "`Emulate: true` wishes for others; use the Kind of an MPI")
        if "SLURM_JOB_ID" not in base:
            raise LauncherNotFound("srun starts jobs inside a Slurm job only (SLURM_JOB_ID is not set); "
                                   "start vrm from a batch script or under salloc")
        env = step_environment(environment(base, settings.environment), settings.environment)
        return cls(srun, read_version(srun, env), env, topologies, settings.options)

    def together(self, job_id: int, contexts: Sequence[AppContext], slots: Sequence[RankSlot], nodes: Sequence[Node],
                 rankfile: PathLike, variables: Mapping[str, str] | None = None) -> Launch:
        """Return the srun command with a task on each slot. Raises LaunchError if the CPU numbers of its cores are
        not known.

        `rankfile` becomes the host file. If tasks run different programs, a second file names them."""
        hosts = [nodes[slot.node].name for slot in slots]
        files = {Path(rankfile): "".join(f"{host}\n" for host in hosts)}
        programs: list[list[str]] = []
        for each, threads in zip(contexts, threads_per_program(self.env, variables, contexts, self.options)):
            own = ["env", f"OMP_NUM_THREADS={threads}"] if threads else []
            programs += [[*own, os.fspath(each.program), *each.arguments]] * each.ranks
        several = len(contexts) > 1
        binding = "none"
        if not synthetic(self.topologies, slots, nodes):
            cpus = [slot_cpus(self.topologies, slot, nodes[slot.node]) for slot in slots]
            shared = shared_list(hosts, cpus)
            if shared is not None:
                binding = _binding(shared)
            else:
                programs = [["taskset", "-c", ",".join(map(str, of_rank)), *program]
                            for of_rank, program in zip(cpus, programs)]
                several = True
        program = programs[0]
        if several:
            listed = Path(f"{os.fspath(rankfile)}.programs")
            files[listed] = _listed(programs)
            program = ["--multi-prog", os.fspath(listed)]
        argv = (self.mpirun, f"--job-name=vrm.{job_id}", "--overlap", f"--nodes={len(set(hosts))}",
                f"--ntasks={len(slots)}", "--distribution=arbitrary",
                f"--cpu-bind=verbose,{binding}", "--kill-on-bad-exit=1", "--export=ALL",
                *self.options, *program)
        env = tagged({**with_threads(self.env, variables, slots, self.options),
                      "SLURM_HOSTFILE": os.fspath(rankfile)},
                     self.run_id, job_id)
        return Launch(argv, env, files, reports=((b"cpu-bind", b", task ", b"]: "),))

    def check_bindings(self, errors: PathLike, output: PathLike, slots: Sequence[RankSlot],
                       nodes: Sequence[Node] = ()) -> BindingCheck:
        """Compare the masks that slurmd reports on standard error with the slots."""
        if synthetic(self.topologies, slots, nodes):
            return SYNTHETIC_CHECK
        return compare_cpus(parse_masks(head(errors, len(slots))), slots, nodes, self.topologies,
                            "no binding reported by slurmd, which was not the one to bind them, "
                            "or has no TaskPlugin=task/affinity")


    def exit_code(self, code: int, output: PathLike, errors: PathLike) -> int:
        """Return the exit code that a shell would show for the task that failed first. srun's own exit code is the
        largest of all tasks, including those that srun ended after that failure."""
        found = _FAILED.search(tail(errors)) if code else None
        if found is None:
            return code
        number = _SIGNALS.get(found[2] or "")
        return int(found[1]) if found[1] else 128 + number if number else code


_FAILED = re.compile(r"^srun: error: \S+: tasks? [\d,-]+: (?:Exited with exit code (\d+)"
                     r"|([A-Z][^(\n]*?)(?: \(core dumped\))?)$", re.MULTILINE)
_SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals()}


def _binding(cpus: Sequence[Sequence[int]]) -> str:
    """Return the value of `--cpu-bind=` for the CPUs of each rank of a node."""
    if all(len(of_rank) == 1 for of_rank in cpus):
        return "map_cpu:" + ",".join(str(cpu) for cpu, in cpus)
    return "mask_cpu:" + ",".join(hex(sum(1 << cpu for cpu in of_rank)) for of_rank in cpus)


def _listed(programs: Sequence[Sequence[str]]) -> str:
    """Return the text of a file for `--multi-prog`, rank by rank. Raises LaunchError for words that it cannot
    contain."""
    for word in (word for program in programs for word in program):
        if not word or re.search(r"[\s'\"\\%#]", word):
            raise LaunchError(f"`{word}` cannot be passed on by srun to a job of several programs, or whose nodes have "
                              "different cores free: no blanks, quotes, %, # or backslashes")
    return "".join(f"{rank} {' '.join(program)}\n" for rank, program in enumerate(programs))


_MASK = re.compile(r"cpu[-_]bind\S*=(?:MAP|MASK) +- +\S+, task +(\d+) +\d+ \[\d+\]: "
                   r"mask 0x([0-9A-Fa-f]+)( set)?\s*?\n")


def parse_masks(text: str) -> dict[int, frozenset[int]]:
    """Return the CPUs of each rank that slurmd reports with `--cpu-bind=verbose`.

    A line of its report:

    `cpu-bind=MAP  - n1, task  0  0 [6242]: mask 0x2 set`"""
    found: dict[int, frozenset[int]] = {}
    for match in _MASK.finditer(text):
        mask = int(match[2], 16)
        found.setdefault(int(match[1]), frozenset(
            cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1))
    return found


# ------------------------------------------------------------------------------- finding srun

_FIX = "load Slurm's module, or set Launcher: {Kind: openmpi, hydra or direct}"


def find_srun(configured: str, env: Mapping[str, str]) -> str:
    """Return the path of srun; `auto` searches the PATH of `env`. Raises LaunchError if there is none."""
    wanted = "srun" if configured == "auto" else configured
    found = shutil.which(wanted, path=env.get("PATH", os.defpath))
    if not found:
        raise LauncherNotFound(f"{wanted} is not an executable program"
                               + ("" if os.sep in wanted else " on PATH") + f"; {_FIX}")
    return found


def read_version(srun: str, env: Mapping[str, str], seconds: float = VERSION_SECONDS) -> str:
    """Return the name and version of an srun, such as `Slurm 22.05.8`. Raises LaunchError if it is not Slurm's srun."""
    text = ask_version(srun, env, _FIX, seconds).strip()
    match = re.match(r"slurm(?:-\w+)? (\d[\w.]*)", text)
    if not match:
        raise LauncherNotFound(f"{srun} --version says `{text[:80]}`, which is not Slurm's srun; "
                               f"{_FIX}")
    return f"Slurm {match[1]}"
