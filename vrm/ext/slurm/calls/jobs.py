"""Plain data about jobs, nodes and the site, as commands of other batch systems need it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from collections.abc import Iterable, Mapping

from vrm.model import JobState
from vrm.model.queues import Queue
from vrm.model.job import ANY, Dependency, Details, Job as Submitted
from vrm.model.quantities import memory_text


@dataclass(frozen=True)
class JobView:
    """A job and its current state. Times are epoch seconds, infinity where they are not known.

    `id` is the job's id as users see it in the other batch system. `array` is the id of the first job of its array;
    the job's own index is `details.index`. `nodes` are the nodes where it runs or ran, `cores` the number of cores
    of its tasks on each. `held` is the number of cores that no other job can use because it is exclusive (0: not
    exclusive). `start` is the start time, or for a waiting job the planned start. `reason` says in words why it
    waits or how it ended; `why` is the kind of reason to wait (HELD ... LIMIT below). `code` is the exit status as a
    shell shows it. `waits` are its dependencies that are not fulfilled yet. `cause` is why the manager ended it (see
    `vrm.live.manager.jobs.verdict`), "" if the manager did not. `begun`: it has started at least once, and may wait
    again. `launched`: the start of its processes was requested; the decision to start it may come earlier. `tasks`:
    this is a line for several jobs of an array, which have these indices and wait alike (`3-7%2`: two may run at a
    time)."""

    id: int
    job: Submitted
    details: Details
    state: JobState
    why: str = ""
    reason: str = ""
    array: int | None = None
    nodes: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    start: float = math.inf
    end: float = math.inf
    code: int | None = None
    ending: bool = False
    requeued: int = 0
    memory: int = 0
    waits: tuple[Dependency, ...] = ()
    cause: str = ""
    held: int = 0
    begun: bool = False
    launched: bool = False
    tasks: str = ""

    @property
    def cpus(self) -> int:
        """Number of allocated cores as Slurm counts: all cores of its nodes if it is exclusive. For a waiting job
        the number of requested cores."""
        return self.held or sum(self.cores) or self.job.request.cores

    @property
    def named(self) -> tuple[Dependency, ...]:
        """Dependencies in `waits` that the user has named."""
        return self.without_limit(self.waits)

    def without_limit(self, after: Iterable[Dependency]) -> tuple[Dependency, ...]:
        """Return `after` without dependencies on jobs of its own array: these only implement the limit of jobs that
        run at a time."""
        count = int(self.job.payload.variables.get("SLURM_ARRAY_TASK_COUNT", 0)) if self.limit else 0
        own = range(self.array or 0, (self.array or 0) + count)
        return tuple(each for each in after if each.kind != ANY or not each.ids or each.ids[0] not in own)

    @property
    def limit(self) -> int:
        """Maximum number of jobs of its array that run at a time; 0: no limit."""
        return int(self.details.more.get("throttle", 0))

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.details.more.get("title") or self.details.name or self.job.app

    @property
    def eligible(self) -> float:
        """Earliest start time that the user has requested (epoch seconds)."""
        return self.job.submit + float(self.details.more.get("begin", 0.0))

    @property
    def deadline(self) -> float:
        """Latest end time that the user has requested (epoch seconds); infinity for none."""
        return self.job.submit + float(self.details.more.get("deadline", math.inf))

    @property
    def known_end(self) -> float:
        """End time, or the latest possible end if it has not ended."""
        return self.end if self.end < math.inf else self.start + self.job.walltime

    def ran(self, now: float) -> float:
        """Return the run time so far in seconds."""
        if self.state is JobState.QUEUED or not math.isfinite(self.start):
            return 0.0
        return max(0.0, (self.end if self.state.ended and math.isfinite(self.end) else now) - self.start)

    @property
    def node_count(self) -> int:
        """Number of its nodes; for a waiting job the least number of nodes that it can get."""
        request = self.job.request
        per_node = request.tasks_per_node or request.tasks
        return len(self.nodes) or max(request.least_nodes, -(-request.tasks // per_node))

    @property
    def memory_text(self) -> str:
        """Requested memory per node or per task; "0" for none."""
        size = self.job.request.mem_per_node or self.job.request.mem_per_task
        return memory_text(size) if size else "0"

    @property
    def minutes(self) -> int:
        """Time limit in minutes, as Slurm counts it."""
        return max(1, round(self.job.walltime / 60))

    @property
    def priority(self) -> int:
        """Priority as Slurm counts it, above 0."""
        return max(1, 1000 + self.job.priority)

    @property
    def features(self) -> str:
        """Features that its nodes must have, with commas between them."""
        return ",".join(sorted(self.job.features))

    @property
    def licences(self) -> str:
        """Requested licences, as `name:count` with commas between them."""
        return ",".join(f"{name}:{amount // 1000}" for name, amount in self.job.request.licences)

    @property
    def shown_id(self) -> str:
        """Id as users write it: `12`, or `12_3` for a job of an array, or `12_[3-7%2]` for several."""
        if self.array is None:
            return str(self.id)
        return f"{self.array}_[{self.tasks}]" if self.tasks else f"{self.array}_{self.details.index}"


@dataclass(frozen=True)
class StepUsage:
    """Resources that the processes of a running step use now: CPU seconds, memory of the largest process and the
    node where it runs (`largest`, `node`), memory of all processes (bytes), and the nodes where they run."""

    step: str
    tasks: int
    cpu: float
    largest: int
    memory: int
    node: str
    pids: tuple[int, ...]
    nodes: tuple[str, ...] = ()


HELD, DEPENDENCY, BEGIN, RESOURCES, PRIORITY, LATE, RESERVATION, DOWN, LIMIT = (
    "held", "dependency", "begin", "resources", "priority", "late", "reservation", "down", "limit")
"""Kinds of reasons to wait. LIMIT: the maximum number of jobs of its array runs already."""


@dataclass(frozen=True)
class NodeView:
    """A node: cores of each socket, number of cores that tasks of jobs use, memory in bytes (0: not known). If cores
    have several hardware threads, the cores here are threads, `threads` of each physical core."""

    name: str
    sockets: tuple[int, ...]
    taken: int
    up: bool = True
    exclusive: bool = False
    memory: int = 0
    memory_taken: int = 0
    gpus: int = 0
    gpus_taken: int = 0
    features: tuple[str, ...] = ()
    threads: int = 1

    @property
    def real_cores(self) -> int:
        """Largest number of physical cores of a socket."""
        return max(self.sockets) // self.threads

    @property
    def cores(self) -> int:
        """Number of cores."""
        return sum(self.sockets)

    @property
    def allocated(self) -> int:
        """Number of allocated cores as Slurm counts: all cores if an exclusive job runs here."""
        return self.cores if self.exclusive else self.taken


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run that any command may need. `queues` are its queues by name, `default_time` is the time limit
    of jobs without one (seconds), `end` is the end of the allocation, and from `closing` on no job starts (epoch
    seconds)."""

    user: str
    uid: int
    host: str
    directory: str
    queues: Mapping[str, Queue]
    default_time: float
    end: float = math.inf
    closing: float = math.inf
    started: float = 0.0
    default_queue: str = ""
    group: str = ""
    gid: int = 0
