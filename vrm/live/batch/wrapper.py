"""The scripts in which vrm is submitted to Slurm and to PBS, as text. What each line is for stands
beside it; the facts behind them are tested in tests/test_script.py.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

WARNING = 120
"""Seconds before the end at which Slurm sends its warning, unless told otherwise."""
LEAST_WARNING = 60
"""Seconds: Slurm sends warnings to the minute, so a shorter one may come too late."""


class WrapperError(ValueError):
    """A script that cannot be written as wished; the text says why and what to do."""


@dataclass(frozen=True)
class Wrapper:
    """What the script asks for.

    `command` is vrm's argument list, `cores` those of each node (None: all it has), `memory` MiB
    for each core (None: the site's default), `walltime` seconds, `warning` those before the end
    at which Slurm sends SIGUSR1 (None: WARNING), `chain` how many allocations follow one another,
    `file` where the script will stand, `directives` further options for the batch system.
    """

    command: Tuple[str, ...]
    nodes: int
    walltime: int
    name: str = "vrm"
    cores: Optional[int] = None
    memory: Optional[int] = None
    exclusive: bool = False
    account: str = ""
    queue: str = ""
    modules: Tuple[str, ...] = ()
    warning: Optional[int] = None
    chain: int = 1
    file: str = "FILE"
    directives: Tuple[str, ...] = ()


def submit_commands(system: str, wrapper: Wrapper) -> List[str]:
    """What to type to submit the script, a chain of them too.

    The allocations of a chain are submitted at once, by the user: a script that submits itself
    again fails where nodes may not submit, and one that goes wrong does so for ever.
    """
    file = shlex.quote(wrapper.file)
    if wrapper.chain == 1:
        return [f"{_SYSTEMS[system].submit} {file}"]
    rest = " ".join(map(str, range(2, wrapper.chain + 1)))
    if system == "slurm":  # singleton, in the script, lets one run at a time
        return [f"for i in 1 {rest}; do sbatch {file}; done"]
    return [f"id=$(qsub {file})",
            f"for i in {rest}; do id=$(qsub -W depend=afterany:$id {file}); done"]


def script(system: str, wrapper: Wrapper) -> str:
    """The script for `slurm` or `pbs`. Raises WrapperError."""
    check(system, wrapper)
    about = _SYSTEMS[system]
    length = clock(wrapper.walltime)
    nodes = f"{wrapper.nodes} node{'s' * (wrapper.nodes > 1)}"
    # A login shell, where `module` is defined.
    lines = ["#!/bin/bash -l" if wrapper.modules else "#!/bin/bash", f"# vrm on {nodes} for {length}. Submit it with:",
             *(f"#   {line}" for line in submit_commands(system, wrapper))]
    if wrapper.chain > 1:
        lines += ["# They run one after the other. Each continues where the last one stopped; when",
                  "# no job is left, the next ones end at once."]
    else:
        lines.append("# Submitted again, it continues where it stopped.")
    lines += about.lines(wrapper)
    lines += [f"#{about.word} {text}" for text in wrapper.directives]
    lines += ["", *about.start(wrapper)]
    if wrapper.modules:
        lines.append(f"module load {' '.join(map(shlex.quote, wrapper.modules))} || exit 2")
    lines += ["# exec: vrm takes the place of this shell, so that signals reach it; without srun",
              "# or mpirun before it, since it starts those itself.",
              f"exec {' '.join(map(shlex.quote, wrapper.command))}"]
    return "\n".join(lines) + "\n"


def check(system: str, wrapper: Wrapper) -> None:
    """Raise WrapperError where the batch system could not do as wished."""
    if not wrapper.file.isprintable():
        raise WrapperError("the script's name has a character that cannot be shown; choose another")
    if wrapper.cores is None and (system == "pbs" or not wrapper.exclusive):
        whole = "" if system == "pbs" else ", or --exclusive for all that the nodes have"
        raise WrapperError("how many cores of each node? Give --cores N"
                           f"{whole} (or Sockets and Cores in the configuration)")
    if system == "pbs":
        if wrapper.warning is not None:
            raise WrapperError("PBS sends no warnings, vrm looks at the clock itself: leave "
                               "--signal out, and set "
                               f"End: {{Margin: {wrapper.warning}}} in the configuration")
        return
    warning = WARNING if wrapper.warning is None else wrapper.warning
    if warning < LEAST_WARNING:
        raise WrapperError(f"a warning {warning} s before the end may come too late: give "
                           f"--signal {LEAST_WARNING} or more")
    if warning >= wrapper.walltime:
        raise WrapperError(f"the warning is due {warning} s before the end of "
                           f"{wrapper.walltime} s: give a smaller --signal or a larger -t")


def clock(seconds: int) -> str:
    """HH:MM:SS with as many hours as it takes, which Slurm and PBS both read."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


# ---------------------------------------------------------------------------------------- Slurm


def _slurm(wrapper: Wrapper) -> List[str]:
    ask = [f"--job-name={wrapper.name}", f"--nodes={wrapper.nodes}"]
    if wrapper.cores is not None:
        ask += ["# A task slot for every core (not hardware thread): mpirun starts no more ranks",
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
    return [text if text.startswith("# ") else f"#SBATCH {text}" for text in ask]


def _slurm_start(wrapper: Wrapper) -> List[str]:
    return []


# ------------------------------------------------------------------------------------------ PBS


def _pbs(wrapper: Wrapper) -> List[str]:
    assert wrapper.cores is not None
    chunk = (f"select={wrapper.nodes}:ncpus={wrapper.cores}:mpiprocs={wrapper.cores}"
             ":ompthreads=1")
    ask = [f"-N {wrapper.name[:15]}",
           "# A chunk for every node, with a slot for a rank on every core"
           + ("; memory: of a core, times the cores." if wrapper.memory else ".")]
    if wrapper.memory is not None:
        chunk += f":mem={wrapper.memory * wrapper.cores}mb"
    ask += [f"-l {chunk}",
            "# Each chunk on a node of its own" + (", and no jobs of others on them."
                                                   if wrapper.exclusive else "."),
            f"-l place=scatter{':excl' if wrapper.exclusive else ''}",
            f"-l walltime={clock(wrapper.walltime)}", "-S /bin/bash", "-j oe"]
    if wrapper.account:
        ask.append(f"-A {wrapper.account}")
    if wrapper.queue:
        ask.append(f"-q {wrapper.queue}")
    return [text if text.startswith("# ") else f"#PBS {text}" for text in ask]


def _pbs_start(wrapper: Wrapper) -> List[str]:
    return ['cd "$PBS_O_WORKDIR" || exit 2',
            "# PBS keeps the output until the end; this file can be read while vrm runs.",
            "# Added to, since PBS runs this script again after qrerun or preemption.",
            f'exec >>"{wrapper.name}-${{PBS_JOBID%%.*}}.out" 2>&1',
            "# PBS sends no warning: vrm asks qstat for the end, and takes this if it fails.",
            f"export PBS_WALLTIME=${{PBS_WALLTIME:-{wrapper.walltime}}}"]


@dataclass(frozen=True)
class _System:
    word: str
    submit: str
    lines: Callable[[Wrapper], List[str]]
    start: Callable[[Wrapper], List[str]]


_SYSTEMS: Dict[str, _System] = {
    "slurm": _System("SBATCH", "sbatch", _slurm, _slurm_start),
    "pbs": _System("PBS", "qsub", _pbs, _pbs_start),
}
