"""A job: what its user requested, and the states that it passes through."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.model.amounts import GPU, MEMORY, Amounts, amounts, people, total
from vrm.model.quantities import fold_range, to_ranges


class JobState(str, enum.Enum):
    """The state of a job; the value is the word that files and tables use."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    REFUSED = "refused"

    @property
    def ended(self) -> bool:
        """Whether the state is final: the job neither waits nor runs."""
        return self is not JobState.QUEUED and self is not JobState.RUNNING


OK, ANY, START, FAIL = "", "any", "start", "fail"
"""What a job waits for of another job: that it completes (OK), that it ends in any way (ANY), that it has started or
never will (START), or that it ends without success (FAIL)."""


class Dependency(NamedTuple):
    """A condition on other jobs: the job waits for the jobs `ids`; see OK for the kinds.

    With a `name`, it waits for the jobs of that name (see `resolved`). `delay` is the number of seconds to wait after
    the last of them has started; only with START.
    """

    ids: range
    kind: str = OK
    name: str = ""
    delay: float = 0.0

    @classmethod
    def on(cls, job_id: int, kind: str = OK) -> Dependency:
        """Return the dependency on one job."""
        return cls(range(job_id, job_id + 1), kind)

    def met(self, state: JobState) -> bool:
        """Return whether a job that ended in `state` satisfies the dependency."""
        return self.kind in (ANY, START) or (state is JobState.COMPLETED) is (self.kind == OK)

    def __str__(self) -> str:
        prefix = f"{self.kind}:" if self.kind else ""
        suffix = f"+{self.delay:g}" if self.delay else ""
        return ",".join(prefix + part + suffix for part in (self.name or fold_range(self.ids)).split(","))


def resolved(after: tuple[Dependency, ...], ids_of: Mapping[str, Sequence[int]]
             ) -> tuple[Dependency, ...]:
    """Replace job names in dependencies by ids. `ids_of` has the ids of the jobs of each name so far. Raises
    ValueError for a name that no job has."""
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
    """The job can never run on this cluster under this policy; the text is the reason."""


class Insufficient:
    """The reason why a job does not fit now, which a placement policy returns instead of a placement. It is false.
    `str` calls `why(*of)` for the reason in a few words, so that the text costs nothing unless somebody reads it."""

    __slots__ = ("_why", "_of")

    def __init__(self, why: Callable[..., str], *of: Any) -> None:
        self._why, self._of = why, of

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return self._why(*self._of)


class Request(NamedTuple):
    """What a job needs from the machine. Equal requests are equal dictionary keys, so that answers for one job serve
    all jobs that request the same.

    A task is an MPI rank. The `cores_per_task` of a task lie in one socket. `per_task` has the amounts of countable
    resources that each task takes on its node, `per_node` those that the job takes once on each of its nodes,
    `licences` those that it takes of the whole run's. Every node of the job must offer the `features`. An `exclusive`
    job shares no node with another. `nodes` are the minimum and the maximum number of nodes (maximum 0: no limit),
    `tasks_per_node` is the maximum number of tasks on one of them (0: as many as fit). The nodes of the `nodelist`
    (names) must all be among those of the job, and the nodes of `exclude` must not. `threads` is how many hardware
    threads of each physical core its tasks use, where cores are hardware threads (0: as the policy chooses; see
    `Node`).

    A coupled job has a request for each of its programs in `parts`: then `tasks` is their sum, `cores_per_task` their
    maximum, and of the other fields only `licences` is used.
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
        """Number of cores of all tasks."""
        return sum(part.cores for part in self.parts) if self.parts else self.tasks * self.cores_per_task

    @property
    def amounts(self) -> bool:
        """Whether it takes anything from its nodes besides cores."""
        return bool(self.per_task or self.per_node) or any(part.amounts for part in self.parts)

    @property
    def plain(self) -> bool:
        """Whether it requests only cores, on any nodes."""
        return self[3:] == _PLAIN

    @property
    def anywhere(self) -> bool:
        """Whether its tasks may run on any number of nodes, and need no node by name. Then they fill the first nodes
        that can hold them; otherwise they are spread evenly. Always false for a coupled job."""
        return self.nodes == (1, 0) and not self.nodelist and not self.parts

    @property
    def least_nodes(self) -> int:
        """The fewest nodes on which it may run."""
        return max(self.nodes[0], len(self.nodelist))

    def on_node(self, tasks: int) -> Amounts:
        """Return what it takes from a node on which `tasks` of its tasks run."""
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
        """Return the request, with amounts in people's units: `resources` of each task, `per_node`, `licences`. Raises
        ValueError if it requests nothing, or something that no placement can provide."""
        return cls(tasks, cores_per_task, bool(exclusive), amounts(resources or {}), features,
                   amounts(per_node or {}), amounts(licences or {}), nodes, tasks_per_node,
                   frozenset(nodelist), frozenset(exclude), threads=threads).checked()

    def checked(self) -> Request:
        """Return the request itself. Raises ValueError if it contradicts itself."""
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
        """Raise ValueError if no set of nodes can satisfy what it says about nodes."""
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
        """Memory of each task, in bytes."""
        return _of(self.per_task, MEMORY)

    @property
    def mem_per_node(self) -> int:
        """Memory on each node in bytes, in addition to that of the tasks."""
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
        """Return the request that some field values describe. Raises ValueError as `of` does."""
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
    """Return the request of a coupled job, made from those of its programs and the licences that it takes."""
    return Request(sum(part.tasks for part in parts), max(part.cores_per_task for part in parts),
                   all(part.exclusive for part in parts), licences=licences, parts=tuple(parts))


_PLAIN = Request(1)[3:]
"""The values of a request for cores alone, after its first three."""


def _of(amounts: Amounts, wanted: str) -> int:
    return next((amount for name, amount in amounts if name == wanted), 0)


def _others(amounts: Amounts) -> Amounts:
    return tuple(each for each in amounts if each[0] not in (GPU, MEMORY))


class Component(NamedTuple):
    """One program of a coupled job: its request, its arguments, and its `file`, as in `Program`."""

    app: str
    request: Request
    arguments: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """What a job runs: its arguments, and environment variables for this job only. The program is the job's `app`, or
    `file`.

    `directory` is where it runs: an absolute path, or "" for the manager's own. `file` is the absolute path of the
    program, if it is not in Applications. A `script` runs once, on the first node, on all cores that the job has
    there; `copy` names the copy of the script that was kept when the job was submitted.

    `front` is the batch system whose commands submitted the job ("": vrm's own); then the user sent the script.
    `components` are the programs of a coupled job, which start together; their ranks are numbered in this order.

    `environment` names the kept variables that the job gets instead of the manager's. `output`, `errors` and `input`
    are files that the user chose, in which %j is the id (see `vrm.live.manager.job_environment`); with `append`, they
    are not emptied first. `each` has the items of an array of paths or lines, by index.
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
        """The components that are started as programs of their own. A script has none: its components only describe
        what it requests."""
        return () if self.script else self.components

    def own(self, index: int | None) -> Program:
        """Return the program of the array job with this index. In the arguments and the directory, `%i` is replaced by
        the index (also in the variable VRM_ARRAY_INDEX) and `%e` by the item (VRM_ARRAY_ITEM), if the array has items.
        With None, the job is in no array."""
        if index is None:
            return self
        variables = {"VRM_ARRAY_INDEX": str(index), **({"VRM_ARRAY_ITEM": self.each[index]} if self.each else {})}
        before, mark, _ = self.directory.partition("%e")
        directory = self.directory
        if mark and self.each and self.each[index].startswith("/"):  # an absolute item replaces what is before it
            directory = directory[len(before):]
        return replace(self, arguments=self._filled(self.arguments, index), components=tuple(
                           each._replace(arguments=self._filled(each.arguments, index)) for each in self.components),
                       directory=self.filled(directory, index), variables={**self.variables, **variables})

    def _filled(self, words: tuple[str, ...], index: int) -> tuple[str, ...]:
        return tuple(self.filled(word, index) for word in words)

    def filled(self, text: str, index: int) -> str:
        """Replace `%i` and `%e` in a text by the index and the item of an array job."""
        text = text.replace("%i", str(index))
        return text.replace("%e", self.each[index]) if self.each else text


PROGRAM = Program()
"""A program without arguments."""

NO_EXTENSION_FIELDS: Mapping[str, Any] = {}
"""The extension fields of a job that has none. Must never be changed."""

_requests: dict[tuple[int, int, bool], Request] = {}
"""Cache of plain requests: a simulation makes millions of jobs, and few of their requests differ."""


@dataclass(init=False, slots=True)
class Job:
    """A job: its identity, what it runs, what it needs and how long it takes. Attributes are never changed: `but`
    makes a changed copy.

    `submit` is the submission time, `walltime` the user's limit and `expected` the expected run time, all in seconds
    (`expected` equals `walltime` unless an estimator expects something else): limits are enforced by `walltime`,
    scheduling uses `expected`. Jobs of a higher `priority` start first, whatever the ordering. `user` is the owner, if
    the workload has one: for orderings that look at users. `queue` is the queue that it was submitted to. `payload` is
    what it runs, by the name `app`. A `malleable` job may run with fewer cores for each rank than it requests. `watts`
    is what it draws on all its nodes, above idle ones, if the user says so. `more` has the values of fields that
    extensions add (`vrm.model.forms.fields.ADDED`), by name, without those that have their default.

    `procs`, `cores`, `exclusive`, `resources` and `features` are those of the request, under the names that users'
    orderings use.
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
                 request: Request | None = None, watts: float = 0.0, more: Mapping[str,
                                                                                   Any] = NO_EXTENSION_FIELDS) -> None:
        """`estimate` is the user's limit, and also the expected run time unless `expected` is given. A `request`
        replaces the other arguments about needs, except `procs` and `cores`, which must be its own."""
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
        """Return a copy in which some attributes have other values."""
        twin = Job.__new__(Job)
        (twin.id, twin.app, twin.request, twin.walltime, twin.expected, twin.submit, twin.priority, twin.user,
         twin.queue, twin.payload, twin.malleable, twin.watts, twin.more, twin.procs, twin.cores, twin.exclusive
         ) = _all_of(self)
        for name, value in changes.items():
            setattr(twin, name, value)
        return twin

    @property
    def parts(self) -> tuple[Job, ...]:
        """The programs of a coupled job as separate jobs, which start and end together; for any other job, itself."""
        if not self.request.parts:
            return (self,)
        names = [each.app for each in self.payload.components] or [self.app] * len(self.request.parts)
        return tuple(self.but(app=app, request=part, procs=part.tasks, cores=part.cores_per_task,
                              exclusive=part.exclusive) for app, part in zip(names, self.request.parts))

    @property
    def estimate(self) -> float:
        """The expected run time (seconds), under the name that users' orderings use."""
        return self.expected

    @property
    def believed(self) -> float | None:
        """The expected run time (seconds), if it differs from the walltime; otherwise None."""
        return None if self.expected == self.walltime else self.expected

    @property
    def resources(self) -> Mapping[str, float]:
        """What each rank takes of countable resources: pieces, or GiB of memory."""
        return {name: people(name, amount) for name, amount in self.request.per_task}

    @property
    def features(self) -> frozenset[str]:
        """The features that each of its nodes must offer."""
        return self.request.features

    @property
    def kind(self) -> str:
        """The application without its class: the executable's name up to the first dot."""
        return application_kind(self.app)


@dataclass(frozen=True, slots=True)
class Details:
    """What a job was submitted with that neither the scheduler nor its processes use.

    `index` is the index of the job in its array. `more` has the fields without an attribute here (see
    `vrm.model.forms.fields`).
    """

    after: tuple[Dependency, ...] = ()
    retries: int = 0
    index: int | None = None
    held: bool = False
    name: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def of(self, index: int, payload: Program) -> Details:
        """Return the details of the array job with this index, with its index and item put into its name."""
        return replace(self, index=index, name=payload.filled(self.name, index) if "%" in self.name else self.name)


PLAIN = Details()
"""The details of a line that has nothing but its columns."""


_all_of = attrgetter(*Job.__slots__)


def application_kind(app: str) -> str:
    """Return the name that a heatmap uses for an executable: `ft` for `ft.B.x`, up to the first dot.

    A number alone is not a name: `628.pot3d_s` of SPEC's suites keeps the part after it.
    """
    name, _, rest = app.partition(".")
    if rest and name.isdigit():
        return f"{name}.{rest.partition('.')[0]}"
    return name


def on_ranks(job: Job, ranks: int, walltime: float, expected: float) -> Job:
    """Return the job with another number of ranks, limit and expected run time (seconds)."""
    return job.but(procs=ranks, request=job.request._replace(tasks=ranks), walltime=walltime, expected=expected)
