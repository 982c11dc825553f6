r"""The file from which a step reads what it needs to know about its job. The manager writes it when the script starts.

Each line has a key and a value; line ends in values are written as `\n`.

| key | value |
|---|---|
| `job`, `run` | vrm's id of the job; the mark of the run |
| `slurm` | the id of the job in Slurm's commands |
| `name` | its name |
| `records` | the path of `steps.csv` |
| `began` | when the job was started, in seconds since the epoch; identifies the lines of this attempt in `steps.csv` |
| `tasks`, `cpus` | the number of its tasks, and the number of cores of each |
| `node` | one per node: name, name of the machine, tasks there, cores: `0,4/1,5;2,6` are three cores on two sockets |
| `group` | one per component of a heterogeneous job: its tasks, the cores of each, and all cores: `2 1 0:0 0:1` |
| `gpu` | one per GPU: node, index and socket there (-1: not known), variable that shows it, its word in that variable |
| `bound` | 1: tasks are bound to their cores; 0: they are not, because nodes are emulated or the machine is synthetic |
| `launcher` | what starts MPI programs: openmpi4, openmpi5, mpich, intel, srun or direct |
| `program`, `option` | the launcher's program, and its options, one per line |
| `agent` | the path of the program that starts commands on other nodes of the job |
| `measure` | the path of the program that records what others use (`vrm.ext.steps.resource_use`); it may not exist |
| `site` | a variable of the surrounding batch system, for the site's own commands |
| `threads` | the value of OMP_NUM_THREADS at the start of the script |"""

from __future__ import annotations

import os

from vrm.system import job_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

JOB = "job"
"""Name of the file in the directory of a job's steps."""

ELSEWHERE = "-"
"""Value of the variable `job_variables.NODE` on a node that is not one of the job's."""


class JobGpu:
    """A GPU of the job on a node; programs choose it by its `word` in the environment variable `variable`."""

    __slots__ = ("index", "socket", "variable", "word")

    def __init__(self, index: int, socket: int, variable: str, word: str) -> None:
        self.index, self.socket, self.variable, self.word = index, socket, variable, word


class JobNode:
    """A node of the job: `cores` are the CPU numbers of each core, `socket` is the socket of each core (numbered
    within the job), `gpus` are the job's GPUs there."""

    __slots__ = ("name", "host", "tasks", "cores", "socket", "gpus")

    def __init__(self, name: str, host: str, tasks: int, cores: list[list[int]], socket: list[int]) -> None:
        self.name, self.host, self.tasks = name, host, tasks
        self.cores, self.socket = cores, socket
        self.gpus: list[JobGpu] = []

    @property
    def text(self) -> str:
        """The value of the node's line."""
        sockets: dict[int, list[str]] = {}
        for cpus, socket in zip(self.cores, self.socket):
            sockets.setdefault(socket, []).append(",".join(map(str, cpus)))
        return f"{self.name} {self.host} {self.tasks} " + ";".join(map("/".join, sockets.values()))


def parse_node(text: str) -> JobNode:
    """Return the node that such a line describes. Raises ValueError for an invalid one."""
    name, host, tasks, cores = text.split(" ")
    found, socket = [], []
    for number, group in enumerate(cores.split(";")):
        for core in group.split("/"):
            found.append([int(cpu) for cpu in core.split(",")])
            socket.append(number)
    return JobNode(name, host, int(tasks), found, socket)


class StepGroup:
    """A component of a heterogeneous job: the number of its `tasks`, the cores of each (`cpus`), and all its cores
    as pairs of node and core."""

    __slots__ = ("tasks", "cpus", "cores")

    def __init__(self, text: str) -> None:
        tasks, cpus, *cores = text.split(" ")
        self.tasks, self.cpus = int(tasks), int(cpus)
        self.cores: set[tuple[int, int]] = set()
        for each in cores:
            node, _, core = each.partition(":")
            self.cores.add((int(node), int(core)))


class StepJob:
    """A job as its steps know it: `values` are the values of the file by key, `nodes` are its nodes."""

    def __init__(self, values: dict[str, list[str]], directory: str = "") -> None:
        self.values, self.directory = values, directory
        self.nodes = [parse_node(text) for text in values["node"]]
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
        """Return the components with the numbers in the list `text`; for "" the component `at`; (None,) stands for
        the whole job if it has no components. Raises ValueError for an invalid list."""
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
        """Return the value of a key that has at most one; "" if it is missing."""
        return self.values.get(key, [""])[0]

    def here(self, env: dict[str, str] | os._Environ[str]) -> int:
        """Return the number of the node of this process; 0 if it is not known, -1 if it is not a node of the job."""
        name = env.get(job_variables.NODE, "")
        if name == ELSEWHERE:
            return -1
        return next((at for at, node in enumerate(self.nodes) if node.name == name), 0)


def text_of(values: dict[str, list[str]]) -> str:
    """Return the text of the file with these values."""
    return "".join(f"{key} " + value.replace("\\", "\\\\").replace("\n", "\\n") + "\n"
                   for key, each in values.items() for value in each)


def read(directory: str) -> StepJob:
    """Return the job with this directory of steps. Raises OSError if the file cannot be read, ValueError if it is
    damaged."""
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
