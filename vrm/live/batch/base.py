"""What vrm asks of a batch system, and the registry of those it knows.

A batch system is one file with a subclass of `BatchSystem` and `@register`. Nothing else names it:
the allocation, the environment of jobs, `vrm script` and `vrm init` ask the registry.
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

PathLike = Union[str, "os.PathLike[str]"]
Environment = Mapping[str, str]


class AllocationError(Exception):
    """The nodes of this run are not known; the text says where that shows and what to do."""


class WrapperError(ValueError):
    """A script that cannot be written as wished; the text says why and what to do."""


@dataclass(frozen=True)
class NodeShare:
    """What a batch system gives of a node, beside cores: bytes of `memory` (0: not said), the number of
    `gpus` (None: not said), and their `indices` on the node, whatever number they have inside the job
    (None: not said)."""

    memory: int = 0
    gpus: int | None = None
    indices: tuple[int, ...] | None = None

    def __add__(self, other: NodeShare) -> NodeShare:
        """Those of two parts of a node."""
        gpus = None if self.gpus is None and other.gpus is None else (
            (self.gpus or 0) + (other.gpus or 0))
        indices = None if self.indices is None and other.indices is None else tuple(
            sorted({*(self.indices or ()), *(other.indices or ())}))
        return NodeShare(self.memory + other.memory, gpus, indices)


@dataclass(frozen=True)
class BatchJob:
    """What a batch system says of a job. `end` is in seconds since the epoch (None: not said),
    `cores` are those granted on the nodes as it names them, `runs` is how often the job was begun
    (0: not said). `shares` are what else is granted there."""

    end: float | None = None
    cores: Mapping[str, int] = field(default_factory=dict)
    runs: int = 0
    shares: Mapping[str, NodeShare] = field(default_factory=dict)


Question = tuple[Sequence[str], Callable[[str], BatchJob]]
"""A command, and what makes an answer of its output."""


@dataclass(frozen=True)
class Wrapper:
    """What the script asks for.

    `command` is vrm's argument list, `cores` those of each node (None: all it has), `memory` MiB
    for each core (None: the site's default), `walltime` seconds, `warning` those before the end
    at which the batch system sends SIGUSR1 (None: its default), `chain` how many allocations
    follow one another, `file` where the script will stand, `directives` further options for the
    batch system.
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
    """A batch system. The defaults are those of one that tells nothing more than its nodes.

    | attribute | what it is |
    |---|---|
    | `name` | its name in records, such as `slurm` in `slurm 4711`, and the option of `vrm script` |
    | `title` | its name for people |
    | `signs` | variables of which one at least is set in its jobs |
    | `ids` | variables with the job's id, the first that is set counts |
    | `kill_delay` | seconds from SIGTERM to SIGKILL as it comes; None: not known |
    | `openmpi_overlooks` | variables with which Open MPI 4.1, and 5, ignores it and starts ranks by ssh |
    | `hydra_settings` | variables that Hydra needs inside its jobs |
    | `step_wishes` | pattern of the variables of a job that its own launcher would take as wishes for each step |
    | `submit` | the program that submits a script; empty: vrm writes no scripts for it |
    | `settings_variable`, `settings_files` | what names its configuration, and where that is else: absolute, or from the prefix of the submit program on |
    | `directive` | what stands behind `#` in lines of the script that are for it |
    | `script_help` | the help of the option of `vrm script` |
    | `queue_word` | what it calls a queue |
    | `ask_whole` | how all cores of nodes are asked for, with `{cores}` for those of a node |
    | `whole_nodes` | whether `--exclusive` alone gives all cores of a node |
    """

    name = ""
    title = ""
    signs: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    kill_delay: float | None = None
    openmpi_overlooks: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    hydra_settings: Mapping[str, str] = {}
    step_wishes = ""
    submit = ""
    settings_variable = ""
    settings_files: tuple[str, ...] = ()
    directive = ""
    script_help = ""
    queue_word = "queue"
    whole_nodes = False
    ask_whole = "for all of their cores"

    # Of a job around vrm.

    def is_around(self, env: Environment) -> bool:
        """Whether this is the environment of one of its jobs."""
        return any(env.get(name) for name in self.signs)

    def job_id(self, env: Environment) -> str:
        """The job's id; "" where it is not said."""
        return next((env[name] for name in self.ids if env.get(name)), "")

    def hosts(self, env: Environment) -> dict[str, int]:
        """The nodes in their order, with the cores granted on each (0: not said). Raises
        AllocationError."""
        raise NotImplementedError

    def questions(self, job: str) -> Sequence[Question]:
        """What to ask its programs about a job, one after the other, until one answers."""
        return ()

    def own_end(self, env: Environment) -> float | None:
        """When the job ends by its environment alone: seconds since the epoch, None: not said."""
        return None

    def granted(self, answer: BatchJob, hosts: Mapping[str, int], run: Callable[[Sequence[str]], str]
                ) -> dict[str, int]:
        """The cores of `answer` by the names of `hosts`; `run` gives the output of a command."""
        return {host: answer.cores[host] for host in hosts if answer.cores.get(host)}

    def shares(self, env: Environment, answer: BatchJob, hosts: Mapping[str, int],
               run: Callable[[Sequence[str]], str]) -> dict[str, NodeShare]:
        """Memory and GPUs that are granted, by the names of `hosts`; of those that are not there nothing
        is said. `run` gives the output of a command."""
        return {}

    def restarts(self, env: Environment, runs: int) -> int:
        """How often the job was put back into the queue and begun again. `runs` is how often it
        was begun, where its programs say it."""
        return max(0, runs - 1)

    def attach_command(self, env: Environment) -> tuple[str, ...]:
        """What adds a session to the job, before `-p PID` or a command; none where that is not
        needed (see `vrm.live.batch.adoption`)."""
        return ()

    # Of the environment of vrm's jobs.

    def job_environment(self, env: Environment, slots: Sequence[int]) -> dict[str, str]:
        """Variables that every job needs inside; `slots` are the cores of every node in use."""
        return {}

    def step_gpus(self, gpus: Sequence[int]) -> dict[str, str]:
        """Variables by which what it starts on some nodes of a job has the job's GPUs there: `gpus` are
        their numbers."""
        return {}

    def openmpi_slots(self, env: Environment) -> Mapping[str, int] | None:
        """The slots that Open MPI finds by short host name; None where it finds all cores, or
        this is none of its jobs."""
        return None

    # Of scripts.

    def check_script(self, wrapper: Wrapper) -> None:
        """Raise WrapperError where it could not do as wished."""

    def script_lines(self, wrapper: Wrapper) -> list[str]:
        """What the script asks for: options, and comments that begin with `# `."""
        raise NotImplementedError

    def script_start(self, wrapper: Wrapper) -> list[str]:
        """Lines that come before vrm's command."""
        return []

    def chain(self, file: str, rest: str) -> list[str]:
        """What to type to submit a script (quoted) several times, one job after the other; `rest`
        are the numbers from the second on."""
        return [f"{self.submit} {file}"]


_REGISTERED: dict[str, BatchSystem] = {}


def register(system: type[BatchSystem]) -> type[BatchSystem]:
    """Class decorator that enters a batch system; a name that is taken is a ValueError."""
    if system.name in _REGISTERED:
        raise ValueError(f"batch system {system.name} is registered already")
    _REGISTERED[system.name] = system()
    return system


@functools.cache
def systems() -> dict[str, BatchSystem]:
    """The known ones by name, in the order in which they are asked: vrm's, then those of installed packages."""
    plugins.use("vrm.batch_systems", frozenset(_REGISTERED), lambda plugin, system: register(system))
    return _REGISTERED


def around(env: Environment) -> BatchSystem | None:
    """The batch system whose job this environment is of, None for none."""
    return next((system for system in systems().values() if system.is_around(env)), None)


def with_scripts() -> list[BatchSystem]:
    """Those for which vrm writes scripts."""
    return [system for system in systems().values() if system.submit]


# ------------------------------------------------------------------- what their files have in common

MEND = ("start vrm inside the batch job's script, or name the nodes in a file of your own "
        "(Hosts: {File: ...})")
"""What to do where a batch job does not say which nodes it has."""


def counted(hosts: Iterable[str], place: str) -> dict[str, int]:
    """Hosts in their order with the times that each is named; their names are checked."""
    counts = Counter(hosts)
    for host in counts:
        if not HOST.fullmatch(host):
            raise AllocationError(f"{place}: `{host}` is not the name of a host; {MEND}")
    if not counts:
        raise AllocationError(f"{place}: names no host; {MEND}")
    return dict(counts)


def read_text(path: PathLike, name: str, mend: str = MEND) -> str:
    """The text of a file that `name` names; AllocationError when it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise AllocationError(f"{name}: {path}: {error.strerror}; {mend}") from error


def whole(env: Environment, name: str) -> int:
    """The number in a variable, 0 if it holds none."""
    text = env.get(name, "").strip()
    return int(text) if re.fullmatch(r"\d{1,6}", text) else 0


def indices_of(text: str, between: str = ",") -> tuple[int, ...] | None:
    """The numbers in a list such as `0,2-3`, None if it is none."""
    numbers: list[int] = []
    for part in text.strip().split(between):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        if not match:
            return None
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(numbers)


def slots_of_lines(env: Environment, variable: str) -> Counter[str]:
    """Slots by short host name in the file that a variable names: a line for each, or with their
    number behind."""
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
