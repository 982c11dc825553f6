"""The interface of a batch system, and the registry of the known ones.

A batch system is one file with a subclass of `BatchSystem` and `@register`. No other file names it:
the allocation, the environment of jobs, `vrm script` and `vrm init` use the registry.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.model.forms.hosts import HOST
from vrm.system import plugins
from vrm.system.errors import UserError

PathLike = Union[str, "os.PathLike[str]"]
Environment = Mapping[str, str]


class AllocationError(Exception):
    """The nodes of this run cannot be determined; the text gives the place and the remedy."""


class BatchScriptError(UserError, ValueError):
    """The requested script cannot be written; the text gives the reason and the remedy."""


@dataclass(frozen=True)
class NodeShare:
    """What a batch system grants on a node besides cores: bytes of `memory` (0: not known), the number of
    `gpus` (None: not known), and their `indices` on the node, which may differ from their numbers inside the job
    (None: not known)."""

    memory: int = 0
    gpus: int | None = None
    indices: tuple[int, ...] | None = None

    def __add__(self, other: NodeShare) -> NodeShare:
        """Return the sum of two shares of one node."""
        gpus = None if self.gpus is None and other.gpus is None else (
            (self.gpus or 0) + (other.gpus or 0))
        indices = None if self.indices is None and other.indices is None else tuple(
            sorted({*(self.indices or ()), *(other.indices or ())}))
        return NodeShare(self.memory + other.memory, gpus, indices)


@dataclass(frozen=True)
class BatchJob:
    """What a batch system reports about a job. `end`: seconds since the epoch (None: not known). `cores`: cores
    granted, by the batch system's names of the nodes. `runs`: how often the job was started (0: not known). `shares`:
    other resources granted there."""

    end: float | None = None
    cores: Mapping[str, int] = field(default_factory=dict)
    runs: int = 0
    shares: Mapping[str, NodeShare] = field(default_factory=dict)


Question = tuple[Sequence[str], Callable[[str], BatchJob]]
"""A command, and the function that parses its output."""


@dataclass(frozen=True)
class BatchScript:
    """The options of a script that runs vrm in a batch job.

    `command`: vrm's argument list. `cores`: cores per node (None: all of them). `memory`: MiB per core (None: the
    site's default). `walltime`: seconds. `warning`: seconds before the end at which the batch system sends SIGUSR1
    (None: its default). `chain`: number of allocations that follow one another. `file`: path of the script.
    `directives`: further options for the batch system.
    """

    command: tuple[str, ...]
    nodes: int
    walltime: int
    name: str = "vrm"
    cores: int | None = None
    memory: int | None = None
    exclusive: bool = False
    account: str = ""
    queue: str = ""
    modules: tuple[str, ...] = ()
    warning: int | None = None
    chain: int = 1
    file: str = "FILE"
    directives: tuple[str, ...] = ()


class BatchSystem:
    """A batch system. The defaults are those of one that reports only its nodes.

    | attribute | meaning |
    |---|---|
    | `name` | its name in records, such as `slurm` in `slurm 4711`, and the option of `vrm script` |
    | `title` | its name for people |
    | `signs` | variables; at least one of them is set in its jobs |
    | `ids` | variables with the job's id; the first that is set counts |
    | `kill_delay` | default seconds from SIGTERM to SIGKILL; None: not known |
    | `openmpi_overlooks` | variables that make Open MPI 4.1, and 5, ignore it and start ranks by ssh |
    | `hydra_settings` | variables that Hydra needs inside its jobs |
    | `step_requests` | pattern of a job's variables that its own launcher would take as options of each step |
    | `submit` | the program that submits a script; empty: vrm writes no scripts for it |
    | `settings_variable`, `settings_files` | the variable that names its configuration file, and where the file is otherwise: absolute, or relative to the prefix of the submit program |
    | `directive` | the word after `#` in the script's lines for it |
    | `script_help` | the help of the option of `vrm script` |
    | `queue_word` | its term for a queue |
    | `ask_whole` | how to request all cores of nodes, with `{cores}` for the cores of a node |
    | `whole_nodes` | whether `--exclusive` alone grants all cores of a node |
    """

    name = ""
    title = ""
    signs: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    kill_delay: float | None = None
    openmpi_overlooks: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    hydra_settings: Mapping[str, str] = {}
    step_requests = ""
    submit = ""
    settings_variable = ""
    settings_files: tuple[str, ...] = ()
    directive = ""
    script_help = ""
    queue_word = "queue"
    whole_nodes = False
    ask_whole = "for all of their cores"

    # The batch job around vrm.

    def is_around(self, env: Environment) -> bool:
        """Return whether this is the environment of one of its jobs."""
        return any(env.get(name) for name in self.signs)

    def job_id(self, env: Environment) -> str:
        """Return the job's id; "" if the environment does not have it."""
        return next((env[name] for name in self.ids if env.get(name)), "")

    def hosts(self, env: Environment) -> dict[str, int]:
        """Return the nodes in their order, with the cores granted on each (0: not known). Raises AllocationError."""
        raise NotImplementedError("its method `hosts` is missing")

    def questions(self, job: str) -> Sequence[Question]:
        """Return the queries of its programs about a job; they are made one after the other until one answers."""
        return ()

    def own_end(self, env: Environment) -> float | None:
        """Return when the job ends according to its environment alone: seconds since the epoch; None if not known."""
        return None

    def granted(self, answer: BatchJob, hosts: Mapping[str, int], run: Callable[[Sequence[str]], str]
                ) -> dict[str, int]:
        """Return the cores of `answer` by the names in `hosts`; `run` returns the output of a command."""
        return {host: answer.cores[host] for host in hosts if answer.cores.get(host)}

    def shares(self, env: Environment, answer: BatchJob, hosts: Mapping[str, int],
               run: Callable[[Sequence[str]], str]) -> dict[str, NodeShare]:
        """Return the memory and GPUs granted on `hosts`, by name; a missing host means that nothing is known. `run`
        returns the output of a command."""
        return {}

    def restarts(self, env: Environment, runs: int) -> int:
        """Return how often the job was requeued and started again. `runs`: how often it was started, if its programs
        report that."""
        return max(0, runs - 1)

    def attach_command(self, env: Environment) -> tuple[str, ...]:
        """Return the command that adds a session to the job, to be followed by `-p PID` or a command; empty if that is
        not needed (see `vrm.live.batch.adoption`)."""
        return ()

    # The environment of vrm's jobs.

    def job_environment(self, env: Environment, slots: Sequence[int]) -> dict[str, str]:
        """Return variables that every job needs; `slots` are the cores of every node in use."""
        return {}

    def step_gpus(self, gpus: Sequence[int]) -> dict[str, str]:
        """Return variables that give the GPUs of a job to the steps that it starts on some of its nodes; `gpus` are the
        numbers of GPUs on these nodes."""
        return {}

    def openmpi_slots(self, env: Environment) -> Mapping[str, int] | None:
        """Return the slots that Open MPI finds, by short host name; None if it finds all cores, or if this is not a job
        of the batch system."""
        return None

    # Scripts.

    def check_script(self, wrapper: BatchScript) -> None:
        """Raise BatchScriptError if the batch system cannot do what is requested."""

    def script_lines(self, wrapper: BatchScript) -> list[str]:
        """Return the lines of the script for the batch system: options, and comments that begin with `# `."""
        raise NotImplementedError("its method `script_lines` is missing")

    def script_start(self, wrapper: BatchScript) -> list[str]:
        """Return lines that come before vrm's command."""
        return []

    def chain(self, file: str, rest: str) -> list[str]:
        """Return what to type to submit a script (quoted) several times, one job after the other; `rest` are the
        numbers from 2 on."""
        return [f"{self.submit} {file}"]


_REGISTERED: dict[str, BatchSystem] = {}


def register(system: type[BatchSystem]) -> type[BatchSystem]:
    """Class decorator that registers a batch system. Raises ValueError if the name is already registered."""
    if system.name in _REGISTERED:
        raise ValueError(f"batch system {system.name} is registered already")
    _REGISTERED[system.name] = system()
    return system


@functools.cache
def systems() -> dict[str, BatchSystem]:
    """Return the known batch systems by name, in the order of queries: vrm's own, then those of installed packages."""
    plugins.use("vrm.batch_systems", frozenset(_REGISTERED), lambda plugin, system: register(system))
    return _REGISTERED


def around(env: Environment) -> BatchSystem | None:
    """Return the batch system whose job has this environment; None if there is none."""
    return next((system for system in systems().values() if system.is_around(env)), None)


def scriptable_systems() -> list[BatchSystem]:
    """Return the batch systems for which vrm writes scripts."""
    return [system for system in systems().values() if system.submit]


# ------------------------------------------------------------------- helpers of the batch systems' files

REMEDY = ("start vrm inside the batch job's script, or name the nodes in a file of your own "
          "(Hosts: {File: ...})")
"""Advice if a batch job does not report which nodes it has."""


def counted(hosts: Iterable[str], place: str) -> dict[str, int]:
    """Return hosts in their order, with the number of times that each is named. Raises AllocationError for an invalid
    name, or without any host."""
    counts = Counter(hosts)
    for host in counts:
        if not HOST.fullmatch(host):
            raise AllocationError(f"{place}: `{host}` is not the name of a host; {REMEDY}")
    if not counts:
        raise AllocationError(f"{place}: names no host; {REMEDY}")
    return dict(counts)


def read_text(path: PathLike, name: str, mend: str = REMEDY) -> str:
    """Return the text of a file that the setting or variable `name` gives. Raises AllocationError if it cannot be
    read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise AllocationError(f"{name}: {path}: {error.strerror}; {mend}") from error


def whole(env: Environment, name: str) -> int:
    """Return the number in a variable; 0 if it has none."""
    text = env.get(name, "").strip()
    return int(text) if re.fullmatch(r"\d{1,6}", text) else 0


def indices_of(text: str, between: str = ",") -> tuple[int, ...] | None:
    """Return the numbers in a list such as `0,2-3`; None if it is not such a list."""
    numbers: list[int] = []
    for part in text.strip().split(between):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        if not match:
            return None
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(numbers)


def slots_of_lines(env: Environment, variable: str) -> Counter[str]:
    """Return slots by short host name, from the file that a variable names. Each line is one slot, or a host and its
    number of slots."""
    slots: Counter[str] = Counter()
    try:
        text = Path(env.get(variable, "")).read_text()
    except OSError:  # then Open MPI finds nothing there either
        text = ""
    for words in map(str.split, text.splitlines()):
        if words:
            number = words[1] if len(words) > 1 else ""
            slots[words[0].partition(".")[0]] += int(number) if number.isdigit() else 1
    return slots
