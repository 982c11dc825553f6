"""A job: what the user asked for, and the states it goes through."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.model.amounts import GPU, MEMORY, Amounts, amounts, people, total
from vrm.model.quantities import fold_range, to_ranges


class JobState(str, enum.Enum):
    """Where a job is in its life; the value is the word that files and tables use."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    REFUSED = "refused"

    @property
    def ended(self) -> bool:
        """Whether a job in this state will never run (again)."""
        return self is not JobState.QUEUED and self is not JobState.RUNNING


OK, ANY, START, FAIL = "", "any", "start", "fail"
"""What a job waits for of another: that it completes, that it ends, that it has begun (or will not), or that
it ends without success."""


class Dependency(NamedTuple):
    """That a job waits for the jobs `ids`: see OK for the kinds. With a `name` these are the jobs of that name
    (see `resolved`). `delay` are seconds that pass after the last of them has begun, with START."""

    ids: range
    kind: str = OK
    name: str = ""
    delay: float = 0.0

    @classmethod
    def on(cls, job_id: int, kind: str = OK) -> Dependency:
        """The wait for one job."""
        return cls(range(job_id, job_id + 1), kind)

    def met(self, state: JobState) -> bool:
        """Whether a job that has ended so is what was waited for."""
        return self.kind in (ANY, START) or (state is JobState.COMPLETED) is (self.kind == OK)

    def __str__(self) -> str:
        prefix = f"{self.kind}:" if self.kind else ""
        suffix = f"+{self.delay:g}" if self.delay else ""
        return ",".join(prefix + part + suffix for part in (self.name or fold_range(self.ids)).split(","))


def resolved(after: tuple[Dependency, ...], ids_of: Mapping[str, Sequence[int]]
             ) -> tuple[Dependency, ...]:
    """Dependencies with the ids of the jobs instead of their names; `ids_of` are those of
    each name so far. ValueError for a name that no job has."""
    if not any(each.name for each in after):
        return after
    found: list[Dependency] = []
    for each in after:
        if not each.name:
            found.append(each)
        elif each.name not in ids_of:
            raise ValueError(f"it waits for job `{each.name}`, but no earlier job has this "
                             "name")
        else:
            found += [each._replace(ids=ids, name="") for ids in to_ranges(ids_of[each.name])]
    return tuple(found)


class Infeasible(Exception):
    """A job that can never run on this cluster under this policy; the text is the reason."""


class Insufficient:
    """Why a job does not fit now: what a placement policy gives instead of a placement. It is false; `str` asks
    `why(*of)` for the reason, in a few words, which costs nothing where nobody wants to know it."""

    __slots__ = ("_why", "_of")

    def __init__(self, why: Callable[..., str], *of: Any) -> None:
        self._why, self._of = why, of

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return self._why(*self._of)


class Request(NamedTuple):
    """What a job needs from the machine. Equal requests are equal keys, so that what is known of
    one is known of all jobs that ask for the same.

    A task is an MPI rank. The `cores_per_task` of a task lie in one socket. `per_task` are the
    amounts of countable resources that each task takes on its node, `per_node` those that the job
    takes once on each of its nodes, `licences` those that it takes of the whole run's. The
    `features` must be offered by every node that the job uses. An `exclusive` job shares no node
    with another. `nodes` are the least and the most nodes on which it runs (most 0: any number),
    `tasks_per_node` the most tasks on one of them (0: as many as fit). The nodes of the `nodelist`,
    by their names, are all among those of the job, and those of `exclude` never are. `threads` is how many hardware
    threads of each real core its tasks have, where cores are hardware threads (0: as the policy says; see `Node`).

    A coupled job asks for each of its programs by itself, in `parts`: then `tasks` are those of all of them,
    `cores_per_task` the most cores of one, and nothing else is said here but `licences`.
    """

    tasks: int
    cores_per_task: int = 1
    exclusive: bool = False
    per_task: Amounts = ()
    features: frozenset[str] = frozenset()
    per_node: Amounts = ()
    licences: Amounts = ()
    nodes: tuple[int, int] = (1, 0)
    tasks_per_node: int = 0
    nodelist: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    parts: tuple[Request, ...] = ()
    threads: int = 0

    @property
    def cores(self) -> int:
        """The cores of all tasks."""
        return sum(part.cores for part in self.parts) if self.parts else self.tasks * self.cores_per_task

    @property
    def amounts(self) -> bool:
        """Whether it takes anything of its nodes besides cores."""
        return bool(self.per_task or self.per_node) or any(part.amounts for part in self.parts)

    @property
    def plain(self) -> bool:
        """Whether it asks for cores alone, wherever they are."""
        return self[3:] == _PLAIN

    @property
    def anywhere(self) -> bool:
        """Whether its tasks may be on any number of nodes, and need be on none by its name: then they
        fill the first nodes that hold them, and else they are spread evenly. Never of a coupled job."""
        return self.nodes == (1, 0) and not self.nodelist and not self.parts

    @property
    def least_nodes(self) -> int:
        """The fewest nodes on which it may run."""
        return max(self.nodes[0], len(self.nodelist))

    def on_node(self, tasks: int) -> Amounts:
        """What it takes of a node on which so many of its tasks run."""
        here = tuple((name, tasks * amount) for name, amount in self.per_task)
        return total(here, self.per_node) if self.per_node else here

    @classmethod
    def of(cls, tasks: int, cores_per_task: int = 1, exclusive: bool = False,
           resources: Mapping[str, float] | None = None,
           features: frozenset[str] = frozenset(),
           per_node: Mapping[str, float] | None = None,
           licences: Mapping[str, float] | None = None, nodes: tuple[int, int] = (1, 0),
           tasks_per_node: int = 0, nodelist: Iterable[str] = (), exclude: Iterable[str] = (),
           threads: int = 0) -> Request:
        """The request, with amounts as people give them: `resources` of each task, `per_node`,
        `licences`. ValueError for one that asks for nothing, or for what no placement can give."""
        return cls(tasks, cores_per_task, bool(exclusive), amounts(resources or {}), features,
                   amounts(per_node or {}), amounts(licences or {}), nodes, tasks_per_node,
                   frozenset(nodelist), frozenset(exclude), threads=threads).checked()

    def checked(self) -> Request:
        """Itself; ValueError where it contradicts itself."""
        if self.tasks < 1:
            raise ValueError(f"a job needs at least 1 rank, not {self.tasks}")
        if self.cores_per_task < 1:
            raise ValueError(f"a rank needs at least 1 core, not {self.cores_per_task}")
        self._check_nodes()
        for name, amount in (*self.per_task, *self.per_node):
            if name == GPU and amount % 1000:
                raise ValueError(f"{GPU}: {people(name, amount):g} is not a whole number of them")
        return self

    def _check_nodes(self) -> None:
        """ValueError where no nodes can be what it says of them."""
        least, most = self.nodes
        if least > self.tasks:
            raise ValueError(f"nodes: {self.tasks} rank(s) cannot run on {least} nodes")
        if least < 1 or most < 0 or 0 < most < least:
            raise ValueError(f"nodes: from {least} to {most} is not a range")
        if self.tasks_per_node < 0 or (most and 0 < self.tasks_per_node * most < self.tasks):
            raise ValueError(f"tasks_per_node: {self.tasks} ranks do not fit on {most} node(s) with "
                             f"{self.tasks_per_node} each")
        if len(self.nodelist) > self.tasks:
            raise ValueError(f"nodelist: {self.tasks} rank(s) cannot run on {len(self.nodelist)} nodes")
        if 0 < most < len(self.nodelist):
            raise ValueError(f"nodelist names {len(self.nodelist)} nodes, and the job runs on {most} at most")
        both = sorted(self.nodelist & self.exclude)
        if both:
            raise ValueError(f"nodelist and exclude both name {both[0]}")

    # By the names of the fields (`vrm.model.forms.fields`).

    @property
    def gpus_per_task(self) -> int:
        """GPUs of each task."""
        return _of(self.per_task, GPU) // 1000

    @property
    def gpus_per_node(self) -> int:
        """GPUs on each node, which all tasks there see."""
        return _of(self.per_node, GPU) // 1000

    @property
    def mem_per_task(self) -> int:
        """Bytes of each task."""
        return _of(self.per_task, MEMORY)

    @property
    def mem_per_node(self) -> int:
        """Bytes on each node, beside those of the tasks."""
        return _of(self.per_node, MEMORY)

    @property
    def others_per_task(self) -> Amounts:
        """What each task takes besides GPUs and memory."""
        return _others(self.per_task)

    @property
    def others_per_node(self) -> Amounts:
        """What it takes on each node besides GPUs and memory."""
        return _others(self.per_node)

    @classmethod
    def of_fields(cls, tasks: int, cores_per_task: int, exclusive: bool,
                  values: Mapping[str, Any]) -> Request:
        """The request of some fields; ValueError as of `of`."""
        def both(where: str) -> Amounts:
            return total(values.get(f"others_{where}", ()),
                         [(GPU, 1000 * values.get(f"gpus_{where}", 0)),
                          (MEMORY, values.get(f"mem_{where}", 0))])
        return cls(tasks, cores_per_task, exclusive, both("per_task"),
                   values.get("features", frozenset()), both("per_node"),
                   values.get("licences", ()), values.get("nodes", (1, 0)),
                   values.get("tasks_per_node", 0), values.get("nodelist", frozenset()),
                   values.get("exclude", frozenset()), threads=values.get("threads", 0)).checked()


def together(parts: Sequence[Request], licences: Amounts = ()) -> Request:
    """The request of a coupled job, of those of its programs and what it takes of the run's licences."""
    return Request(sum(part.tasks for part in parts), max(part.cores_per_task for part in parts),
                   all(part.exclusive for part in parts), licences=licences, parts=tuple(parts))


_PLAIN = Request(1)[3:]
"""What a request for cores alone says besides its first three values."""


def _of(amounts: Amounts, wanted: str) -> int:
    return next((amount for name, amount in amounts if name == wanted), 0)


def _others(amounts: Amounts) -> Amounts:
    return tuple(each for each in amounts if each[0] not in (GPU, MEMORY))


class Component(NamedTuple):
    """One program of a coupled job: what it asks for, its arguments, and its `file`, as `Program` has them."""

    app: str
    request: Request
    arguments: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """What a job runs: the program of its name, with arguments, and variables of this job alone.

    `directory` is where it runs: absolute, or empty for the manager's own. `file` is the program, where
    it is none of Applications: an absolute path. A `script` runs once, on the first node, on all cores
    that the job has there; `copy` names what was kept of it when the job came.

    `front` is the batch system by whose commands it came ("": by vrm's own): its user has sent the script.
    `components` are the programs of a coupled job, which start together; their ranks are numbered in this order.

    `environment` names what was kept of the variables that it gets instead of the manager's. `output`,
    `errors` and `input` are files that its user has chosen, in which %j is the id (see
    `vrm.live.manager.surroundings`), `append`: they are not emptied first. `each` are the items of an array
    that was made of paths or of lines, by their indices.
    """

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    file: str = ""
    script: bool = False
    copy: str = ""
    front: str = ""
    environment: str = ""
    output: str = ""
    errors: str = ""
    input: str = ""
    append: bool = False
    each: tuple[str, ...] = ()
    components: tuple[Component, ...] = ()

    @property
    def programs(self) -> tuple[Component, ...]:
        """The components that are started by themselves: those of a script say only what it asks for."""
        return () if self.script else self.components

    def own(self, index: int | None) -> Program:
        """That of the job of this index in an array: `%i` in the arguments and in the directory is its index,
        which it also finds in the variable VRM_ARRAY_INDEX, and `%e` its item (VRM_ARRAY_ITEM), where the array
        has items. None: the job is of no array."""
        if index is None:
            return self
        variables = {"VRM_ARRAY_INDEX": str(index), **({"VRM_ARRAY_ITEM": self.each[index]} if self.each else {})}
        before, mark, _ = self.directory.partition("%e")
        directory = self.directory
        if mark and self.each and self.each[index].startswith("/"):  # which stands for itself wherever it is put
            directory = directory[len(before):]
        return replace(self, arguments=self._filled(self.arguments, index), components=tuple(
                           each._replace(arguments=self._filled(each.arguments, index)) for each in self.components),
                       directory=self.filled(directory, index), variables={**self.variables, **variables})

    def _filled(self, words: tuple[str, ...], index: int) -> tuple[str, ...]:
        return tuple(self.filled(word, index) for word in words)

    def filled(self, text: str, index: int) -> str:
        """A text of an array's job with its index and item in it."""
        text = text.replace("%i", str(index))
        return text.replace("%e", self.each[index]) if self.each else text


PROGRAM = Program()
"""A program without arguments."""

NO_MORE: Mapping[str, Any] = {}
"""The fields of extensions of a job that says nothing of them. Never changed."""

_requests: dict[tuple[int, int, bool], Request] = {}
"""One of each plain request: a simulation makes jobs by the million, and few of them differ."""


@dataclass(init=False, slots=True)
class Job:
    """One job: who it is, what it runs, what it needs, and how long that takes. No attribute of it
    is ever changed: `but` makes another job.

    `submit` is the submission time in seconds. `walltime` is the user's limit in seconds and
    `expected` the run time that is believed (the limit, where nobody believes otherwise): limits go
    by the one, scheduling by the other. Jobs of a higher `priority` are first, whatever the
    ordering. `user` is whose job it is, where a workload says so: for orderings that look at users.
    `queue` is the queue that it was submitted to. `payload` is what it runs, by the name `app`. A
    `malleable` job may run with fewer cores for each rank than it asks for. `watts` is what it draws on
    all its nodes, above idle ones, where the user says so. `more` are the values of fields that extensions add
    (`vrm.model.forms.fields.ADDED`), by name; those that have their default are not in it.

    `procs`, `cores`, `exclusive`, `resources` and `features` are those of the request, by the names
    that orderings of users know them by.
    """

    id: int
    app: str
    request: Request
    walltime: float
    expected: float
    submit: float
    priority: int
    user: str
    queue: str
    payload: Program
    malleable: bool
    watts: float
    more: Mapping[str, Any]
    procs: int = field(repr=False, compare=False)
    cores: int = field(repr=False, compare=False)
    exclusive: bool = field(repr=False, compare=False)

    def __init__(self, id: int, app: str, procs: int, estimate: float, submit: float = 0.0,
                 exclusive: bool = False, cores: int = 1,
                 resources: Mapping[str, float] | None = None,
                 features: frozenset[str] = frozenset(), priority: int = 0,
                 user: str = "", expected: float | None = None,
                 payload: Program = PROGRAM, queue: str = "", malleable: bool = False,
                 request: Request | None = None, watts: float = 0.0, more: Mapping[str, Any] = NO_MORE) -> None:
        """`estimate` is the user's limit, and what is expected unless that is given, too. A
        `request` says what it needs instead of the other arguments, but for `procs` and
        `cores`, which are its own."""
        if not estimate > 0:
            raise ValueError(f"the estimate must be above 0 seconds, not {estimate:g}")
        if request is not None:
            exclusive = request.exclusive
        elif resources or features:
            request = Request.of(procs, cores, exclusive, resources, features)
        else:
            try:
                request = _requests[procs, cores, exclusive]
            except KeyError:
                request = _requests[procs, cores, exclusive] = Request.of(procs, cores, exclusive)
        self.id = id
        self.app = app
        self.request = request
        self.walltime = estimate
        self.expected = estimate if expected is None else expected
        self.submit = submit
        self.priority = priority
        self.user = user
        self.queue = queue
        self.payload = payload
        self.malleable = malleable
        self.watts = watts
        self.more = more
        self.procs = procs
        self.cores = cores
        self.exclusive = exclusive

    def but(self, **changes: Any) -> Job:
        """The same job with other values of some of its attributes."""
        twin = Job.__new__(Job)
        (twin.id, twin.app, twin.request, twin.walltime, twin.expected, twin.submit, twin.priority, twin.user,
         twin.queue, twin.payload, twin.malleable, twin.watts, twin.more, twin.procs, twin.cores, twin.exclusive
         ) = _all_of(self)
        for name, value in changes.items():
            setattr(twin, name, value)
        return twin

    @property
    def parts(self) -> tuple[Job, ...]:
        """The programs of a coupled job as jobs of their own, which start and end together; itself where it is none."""
        if not self.request.parts:
            return (self,)
        names = [each.app for each in self.payload.components] or [self.app] * len(self.request.parts)
        return tuple(self.but(app=app, request=part, procs=part.tasks, cores=part.cores_per_task,
                              exclusive=part.exclusive) for app, part in zip(names, self.request.parts))

    @property
    def estimate(self) -> float:
        """What is expected, by the name that orderings of users know it by."""
        return self.expected

    @property
    def believed(self) -> float | None:
        """What is expected, where it is something else than the walltime."""
        return None if self.expected == self.walltime else self.expected

    @property
    def resources(self) -> Mapping[str, float]:
        """What each rank takes of countable resources, in pieces, of memory in GiB."""
        return {name: people(name, amount) for name, amount in self.request.per_task}

    @property
    def features(self) -> frozenset[str]:
        """What each of its nodes must offer."""
        return self.request.features

    @property
    def kind(self) -> str:
        """The application without its class: the executable's name up to the first dot."""
        return application_kind(self.app)


@dataclass(frozen=True, slots=True)
class Details:
    """What a job was submitted with that neither the scheduler nor its processes look at.

    `index` is that of a job of an array. `more` are fields that have no attribute here (see
    `vrm.model.forms.fields`).
    """

    after: tuple[Dependency, ...] = ()
    retries: int = 0
    index: int | None = None
    held: bool = False
    name: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def of(self, index: int, payload: Program) -> Details:
        """Those of the job of this index in an array, with its index and item in its name."""
        return replace(self, index=index, name=payload.filled(self.name, index) if "%" in self.name else self.name)


PLAIN = Details()
"""Those of a line with nothing but its columns."""


_all_of = attrgetter(*Job.__slots__)


def application_kind(app: str) -> str:
    """The name a heatmap knows an executable by: `ft` for `ft.B.x`, up to the first dot.

    A number alone is not a name: `628.pot3d_s` of SPEC's suites keeps what follows it.
    """
    name, _, rest = app.partition(".")
    if rest and name.isdigit():
        return f"{name}.{rest.partition('.')[0]}"
    return name


def on_ranks(job: Job, ranks: int, walltime: float, expected: float) -> Job:
    """Return the job on another number of ranks, with another limit and expected run time (seconds)."""
    return job.but(procs=ranks, request=job.request._replace(tasks=ranks), walltime=walltime, expected=expected)
