r"""What a step knows of its job: a file that the manager writes when the script starts.

It is lines of a key and a value; line ends in values are written as `\n`.

| key | value |
|---|---|
| `job`, `run` | vrm's id of the job, the mark of the run |
| `slurm` | the id by which Slurm's commands know the job |
| `name` | its name |
| `records` | the path of `steps.csv` |
| `began` | when the job was started, in seconds since the epoch: its lines there are known by it |
| `tasks`, `cpus` | its tasks, and the cores of each |
| `node` | one for each: name, name of the machine, tasks there, its cores: `0,4/1,5;2,6` are three, of two sockets |
| `group` | one for each component of a heterogeneous job: its tasks, the cores of each, and all: `2 1 0:0 0:1` |
| `gpu` | one for each GPU: node, index and socket there (-1: not known), variable that shows it, word in that |
| `bound` | 1: tasks are bound to their cores; 0: nodes are emulated, or the machine made up |
| `launcher` | what starts MPI programs: openmpi4, openmpi5, mpich, intel, srun or direct |
| `program`, `option` | its program, and its options, one a line |
| `agent` | the path of the program that starts commands on other nodes of the job |
| `measure` | the path of the program that notes what others use (see `vrm.ext.steps.used`), which may not be there |
| `site` | a variable of the batch system around, for its own commands |
| `threads` | what the script found in OMP_NUM_THREADS |
"""

from __future__ import annotations

import os

from vrm.system import marks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

JOB = "job"
"""The name of the file in the directory of a job's steps."""

ELSEWHERE = "-"
"""What the variable `marks.NODE` says on another node than those of the job."""


class JobGpu:
    """A GPU that the job has on a node: by its `word` in a `variable` programs choose it."""

    __slots__ = ("index", "socket", "variable", "word")

    def __init__(self, index: int, socket: int, variable: str, word: str) -> None:
        self.index, self.socket, self.variable, self.word = index, socket, variable, word


class JobNode:
    """A node of the job: `cores` are the CPU numbers of each, `socket` that of each core (counted in the job),
    `gpus` the job's GPUs there."""

    __slots__ = ("name", "host", "tasks", "cores", "socket", "gpus")

    def __init__(self, name: str, host: str, tasks: int, cores: list[list[int]], socket: list[int]) -> None:
        self.name, self.host, self.tasks = name, host, tasks
        self.cores, self.socket = cores, socket
        self.gpus: list[JobGpu] = []

    @property
    def text(self) -> str:
        """The value of its line."""
        sockets: dict[int, list[str]] = {}
        for cpus, socket in zip(self.cores, self.socket):
            sockets.setdefault(socket, []).append(",".join(map(str, cpus)))
        return f"{self.name} {self.host} {self.tasks} " + ";".join(map("/".join, sockets.values()))


def node_of(text: str) -> JobNode:
    """The node of such a line; ValueError for what is none."""
    name, host, tasks, cores = text.split(" ")
    found, socket = [], []
    for number, group in enumerate(cores.split(";")):
        for core in group.split("/"):
            found.append([int(cpu) for cpu in core.split(",")])
            socket.append(number)
    return JobNode(name, host, int(tasks), found, socket)


class StepGroup:
    """A component of a heterogeneous job: its `tasks`, the cores of each (`cpus`), and these as pairs of node and
    core."""

    __slots__ = ("tasks", "cpus", "cores")

    def __init__(self, text: str) -> None:
        tasks, cpus, *cores = text.split(" ")
        self.tasks, self.cpus = int(tasks), int(cpus)
        self.cores: set[tuple[int, int]] = set()
        for each in cores:
            node, _, core = each.partition(":")
            self.cores.add((int(node), int(core)))


class StepJob:
    """A job as its steps know it: `values` are those of the file by key, `nodes` its nodes."""

    def __init__(self, values: dict[str, list[str]], directory: str = "") -> None:
        self.values, self.directory = values, directory
        self.nodes = [node_of(text) for text in values["node"]]
        for text in values.get("gpu", ()):
            name, index, socket, variable, word = text.split(" ", 4)
            next(node for node in self.nodes if node.name == name).gpus.append(
                JobGpu(int(index), int(socket), variable, word))
        self.id, self.slurm = int(values["job"][0]), values["slurm"][0]
        self.tasks, self.cpus = int(values["tasks"][0]), int(values["cpus"][0])
        self.groups = [StepGroup(text) for text in values.get("group", ())]
        self.launcher = values["launcher"][0]
        self.bound = values["bound"][0] == "1"

    def components(self, text: str, at: int) -> Sequence[StepGroup | None]:
        """The components that a list of their numbers names, "" that of the number `at`; None for the whole job, where
        it has none. ValueError for what is no such list."""
        if not text:
            return self.groups[at:at + 1] or (None,)
        from vrm.model.quantities import numbers
        try:
            found = numbers(text)
        except ValueError:
            raise ValueError(f'Invalid --het-group argument "{text}"') from None
        if max(found) >= max(1, len(self.groups)):
            raise ValueError(f"--het-group={text}: job {self.slurm} has {max(1, len(self.groups))} component(s), "
                             "from 0 on")
        return [self.groups[number] for number in found] if self.groups else (None,)

    def one(self, key: str) -> str:
        """The value of a key that has one, or ""."""
        return self.values.get(key, [""])[0]

    def here(self, env: dict[str, str] | os._Environ[str]) -> int:
        """The number of the node on which this process is; the first where nothing says so, -1 where it is on none."""
        name = env.get(marks.NODE, "")
        if name == ELSEWHERE:
            return -1
        return next((at for at, node in enumerate(self.nodes) if node.name == name), 0)


def text_of(values: dict[str, list[str]]) -> str:
    """The file of these values."""
    return "".join(f"{key} " + value.replace("\\", "\\\\").replace("\n", "\\n") + "\n"
                   for key, each in values.items() for value in each)


def read(directory: str) -> StepJob:
    """The job whose steps have this directory. OSError when the file cannot be read, ValueError when it
    is damaged."""
    path = f"{directory}/{JOB}"
    try:
        file = open(path, encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "the job has ended, and this file of it with that", path) from None
    with file:
        values: dict[str, list[str]] = {}
        for line in file:
            key, _, value = line.rstrip("\n").partition(" ")
            if "\\" in value:
                value = "\\".join(part.replace("\\n", "\n") for part in value.split("\\\\"))
            values.setdefault(key, []).append(value)
    try:
        return StepJob(values, directory)
    except (KeyError, ValueError, StopIteration) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
