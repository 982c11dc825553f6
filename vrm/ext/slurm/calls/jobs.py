"""What is known of jobs, nodes and the site, in the words of other batch systems: plain data."""

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
    """A job and where it is in its life. Times are epoch seconds, infinity where nothing is known.

    `id` is its id, in whatever batch system's words; of an array `array` is that of its first job, and
    `index` its own. `nodes` are the nodes where it runs or ran, `cores` how many cores its tasks have
    on each, `held` how many nobody else can have, where it is exclusive (else 0).
    `start` is when it started, or for one that waits when it is to start. `reason` says why it waits,
    or how it ended, for people; `why` is the kind of that: see WAITS. `code` is the exit status as a
    shell shows it. `waits` are what it depends on that has not happened yet.
    `cause` is why the manager has ended it (see `vrm.live.manager.jobs.verdict`), "" where it did not. `begun`: it has
    started, and may wait again. `launched`: its processes were asked for; its start may be decided before.
    """

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

    @property
    def cpus(self) -> int:
        """How many cores it has, as Slurm counts: all of its nodes where it is exclusive. Of a job that waits, how
        many it asks for."""
        return self.held or sum(self.cores) or self.job.request.cores

    @property
    def named(self) -> tuple[Dependency, ...]:
        """Those of `waits` that its user has named."""
        return self.without_limit(self.waits)

    def without_limit(self, after: Iterable[Dependency]) -> tuple[Dependency, ...]:
        """These dependencies without ends of jobs of its own array: there they mean that only some run at a time."""
        count = int(self.job.payload.variables.get("SLURM_ARRAY_TASK_COUNT", 0)) if self.limit else 0
        own = range(self.array or 0, (self.array or 0) + count)
        return tuple(each for each in after if each.kind != ANY or not each.ids or each.ids[0] not in own)

    @property
    def limit(self) -> int:
        """How many jobs of its array may run at a time; 0 for any number."""
        return int(self.details.more.get("throttle", 0))

    @property
    def name(self) -> str:
        """What it is called."""
        return self.details.more.get("title") or self.details.name or self.job.app

    @property
    def eligible(self) -> float:
        """From when on it may start, as its user has asked for it."""
        return self.job.submit + float(self.details.more.get("begin", 0.0))

    @property
    def deadline(self) -> float:
        """When it must have ended; infinity for any time."""
        return self.job.submit + float(self.details.more.get("deadline", math.inf))

    @property
    def known_end(self) -> float:
        """When it ended or is to end at the latest."""
        return self.end if self.end < math.inf else self.start + self.job.walltime

    def ran(self, now: float) -> float:
        """Seconds that it has run."""
        if self.state is JobState.QUEUED or not math.isfinite(self.start):
            return 0.0
        return max(0.0, (self.end if self.state.ended and math.isfinite(self.end) else now) - self.start)

    @property
    def node_count(self) -> int:
        """On how many nodes it runs, or at least will run."""
        request = self.job.request
        per_node = request.tasks_per_node or request.tasks
        return len(self.nodes) or max(request.least_nodes, -(-request.tasks // per_node))

    @property
    def memory_text(self) -> str:
        """The memory of each node or task that it asks for."""
        size = self.job.request.mem_per_node or self.job.request.mem_per_task
        return memory_text(size) if size else "0"

    @property
    def minutes(self) -> int:
        """Its time limit as Slurm counts."""
        return max(1, round(self.job.walltime / 60))

    @property
    def priority(self) -> int:
        """Its priority as Slurm counts, above 0."""
        return max(1, 1000 + self.job.priority)

    @property
    def features(self) -> str:
        """What its nodes must have, as a list."""
        return ",".join(sorted(self.job.features))

    @property
    def licences(self) -> str:
        """The licences that it takes, each with its number."""
        return ",".join(f"{name}:{amount // 1000}" for name, amount in self.job.request.licences)

    @property
    def shown_id(self) -> str:
        """The id as people write it: 12, or 12_3 of an array."""
        return str(self.id) if self.array is None else f"{self.array}_{self.details.index}"


@dataclass(frozen=True)
class StepUsage:
    """What the processes of a running step use: CPU seconds, bytes of the largest, which is on `node`, and of all;
    on which `nodes` they are."""

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
"""Kinds of reasons to wait. LIMIT: as many jobs of its array run as may at a time."""


@dataclass(frozen=True)
class NodeView:
    """A node: cores of each socket, how many of them tasks of jobs have, memory in bytes (0: not known). Its cores are
    hardware threads, `threads` of each real core, where these are more than one."""

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
        """The most real cores of a socket."""
        return max(self.sockets) // self.threads

    @property
    def cores(self) -> int:
        """How many it has."""
        return sum(self.sockets)

    @property
    def allocated(self) -> int:
        """How many cores jobs have, as Slurm counts: all, where one is exclusive."""
        return self.cores if self.exclusive else self.taken


@dataclass(frozen=True)
class RunFacts:
    """What all commands may want to know of a run. `queues` are its queues by their names,
    `default_time` is the limit of jobs that say none (seconds), `end` is when the allocation ends, and
    `closing` from when on nothing starts."""

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
