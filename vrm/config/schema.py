"""The settings: every key has a default, and what it takes is said here.

A new setting is one line in one of the classes below. Files are read by `vrm.config.yaml_reader`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import (TYPE_CHECKING, Annotated, Any, Literal)
from collections.abc import Callable

from pydantic import (AfterValidator, BaseModel, BeforeValidator, Field, PlainSerializer, PlainValidator,
                      PrivateAttr, ValidationInfo, create_model)
from pydantic_core import PydanticCustomError

from vrm.config.energy import PowerCap
from vrm.config.holdings import Licences, NodeClasses
from vrm.config.kinds import (OURS as _OURS, STRICT as _STRICT, defaults as _defaults,
                              group as _group, kind as _kind, lower as _lower,
                              refuse as _refuse, strip as _strip)
from vrm.config.paths import LOG, VERSION, NoPath, absolute, default_log, expanded
from vrm.config.problems import ConfigError, Problem
from vrm.config.queues import QueueTable, queues_of
from vrm.config.yaml_reader import Document, Source, reason, shown, validated
from vrm.model.rules import Rules, section
from vrm.model.quantities import seconds_of
from vrm.scheduling import added_keys
from vrm.system import plugins
from vrm.system.ways import WAYS

# ----------------------------------------------------------------------- the kinds of settings
# Validators run from the last one in Annotated[...] to the first.

def _over(value: Any) -> Any:
    """A word; YAML takes a bare `off` for no."""
    return "off" if value is False else _lower(value)


OBJECTIVES = ("wait", "makespan", "slowdown", "longest", "fits", "energy")
"""What advice can look for: its own names."""


def _objective(name: str) -> str:
    """The name of what advice looks for, of vrm or of a package."""
    if name not in OBJECTIVES and not plugins.find("vrm.objectives", name):
        raise ValueError(name)
    return name


def _backfilling(value: Any) -> Any:
    """A registered name with its parameters, a number of reservations from 2 on (`3`, `3-kept`), or
    `module:function`, which is loaded; all are judged with the other policies."""
    text = str(value).strip()
    if isinstance(value, (list, dict)):
        raise ValueError("no name")
    if ":" in text:
        return text
    text = text.lower()
    if text in ("0", "false", "no", "off", "none"):
        return "none"
    if text in ("1", "true", "yes", "on", "easy"):
        return "easy"
    if re.fullmatch("[0-9]+", text):
        return int(text)
    from vrm.scheduling.backfilling.easy import BACKFILLINGS
    if BACKFILLINGS.knows(text.partition(" ")[0]) or re.fullmatch("0*[1-9][0-9]{0,5}-kept", text):
        return text
    raise ValueError(text)


def _time(value: Any) -> Any:
    """Seconds of a time such as 90m or 1:30:00; other texts in lower case."""
    text = str(value).strip().lower()
    try:
        return seconds_of(text)
    except ValueError:
        return text


def _expanded(text: str) -> str:
    try:
        return expanded(text)
    except NoPath as error:
        context = {"message": str(error), "hint": error.hint}
        raise PydanticCustomError(_OURS, "{message}", context) from None


def _absolute(path: str | Path, info: ValidationInfo) -> str:
    return absolute(path, info.context.directory if info.context else "")


def _path(value: Any, info: ValidationInfo) -> Path:
    if isinstance(value, Path):  # a default, or given by a program: nothing to expand
        return Path(_absolute(value, info))
    if not isinstance(value, str) or not value.strip():
        raise _refuse(value, "a path", "../demo/name")
    return Path(_absolute(_expanded(value), info))


def _program(value: Any, info: ValidationInfo) -> str:
    """A bare name is left to PATH, anything with a slash in it is a path."""
    if not isinstance(value, str) or not value.strip():
        raise _refuse(value, "auto or the path of a program", "/opt/openmpi/bin/mpirun")
    if value.strip().lower() == "auto":
        return "auto"
    name = _expanded(value)
    return _absolute(name, info) if os.sep in name else name


def _reach(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, str) for v in value):
        return tuple(value)
    if isinstance(value, str) and _lower(value) in ("auto", *WAYS):
        return str(_lower(value))
    wanted = f"auto, {', '.join(WAYS)}, or a list: the words of a program instead of ssh"
    raise _refuse(value, wanted, '[ssh, -p, "2222"]')


# What is written must read back as the same path.
_as_text = PlainSerializer(lambda path: str(path).replace("$", "$$"), return_type=str)

Text = Annotated[str, Field(min_length=1), BeforeValidator(_strip)]
FilePath = Annotated[Path, PlainValidator(_path), _as_text]
Program = Annotated[str, PlainValidator(_program), _as_text]
Switch = Annotated[bool, _kind("true or false", "true")]
Seconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    BeforeValidator(_time),
    _kind("seconds, 0 or more, or a time as 90m or 1:30:00", "10"),
]
Duration = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    BeforeValidator(_time),
    _kind("seconds above 0, or a time as 90m or 1:30:00", "10"),
]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False), _kind("a number, 0 or more", "1")]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False), _kind("a number above 0", "2.5")]
Size = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=1000000)],
    BeforeValidator(_lower),
    _kind("auto or a whole number from 1 to 1000000", "8"),
]
Version = Annotated[
    str,
    Field(pattern=f"^{VERSION}$"),
    BeforeValidator(lambda value: str(value).strip()),
    _kind("a version that this vrm reads, 1 or 1.x", "1.0"),
]
Backfilling = Annotated[
    int | str,
    BeforeValidator(_backfilling),
    _kind("none (0), easy (1), conservative, list, sd, eamc, cp, module:function, or a number of reservations "
          "from 2 up", "easy"),
]
Limit = Annotated[int, Field(ge=0), _kind("a whole number, 0 or more", "1")]
Share = Annotated[float, Field(ge=0, le=1), _kind("a number from 0 to 1", "0.5")]
Events = Annotated[
    Literal["instant", "published"], BeforeValidator(_lower), _kind("instant or published", "published")]
Steps = Annotated[Literal["shared", "each"], BeforeValidator(_lower), _kind("shared or each", "each")]
Speed = Annotated[Literal["ideal", "worst"], BeforeValidator(_lower), _kind("ideal or worst", "worst")]
Walltime = Annotated[
    Literal["warn", "kill", "ignore"],
    BeforeValidator(_lower),
    _kind("warn, kill or ignore", "warn"),
]
Over = Annotated[
    Literal["warn", "kill", "off"], BeforeValidator(_over), _kind("warn, kill or off", "warn")]
Objective = Annotated[
    str, AfterValidator(_objective), BeforeValidator(_lower),
    _kind("wait, makespan, slowdown, longest, fits, energy, or an objective of a package", "makespan")]
Interrupted = Annotated[
    Literal["requeue", "mark"], BeforeValidator(_lower), _kind("requeue or mark", "requeue")
]
Trust = Annotated[
    Literal["own", "group", "any"], BeforeValidator(_lower), _kind("own, group or any", "own")
]
At = Annotated[
    Literal["auto", "never"] | Annotated[float, Field(gt=0, allow_inf_nan=False)],
    BeforeValidator(_time),
    _kind("auto, never, or a time from the start: seconds, 90m, 2h or 1:30:00", "02:00:00"),
]
OnStop = Annotated[
    Literal["kill", "wait", "requeue"],
    BeforeValidator(_lower),
    _kind("kill, wait or requeue", "requeue"),
]
Transport = Annotated[
    Literal["auto", "tcp", "site"], BeforeValidator(_lower), _kind("auto, tcp or site", "site")
]
CheckBindings = Annotated[
    Literal["warn", "fail", "ignore"],
    BeforeValidator(_lower),
    _kind("warn, fail or ignore", "warn"),
]
_LIST = '["--mca", "btl", "self,tcp"]'
Options = Annotated[
    tuple[Annotated[str, _kind("text", _LIST)], ...], _kind("a list", _LIST, empty=())
]
_RUNS = "[../first/logs, ../second/logs]"
Directories = Annotated[
    tuple[Annotated[FilePath, _kind("a path", _RUNS)], ...],
    _kind("a list of directories", _RUNS, empty=())
]
_APPS = "[ep-omp.A.x]"
Names = Annotated[
    tuple[Annotated[str, _kind("the name of a program", _APPS)], ...],
    _kind("a list of programs", _APPS, empty=())
]
Reach = Annotated[
    str | tuple[str, ...],
    PlainValidator(_reach),
    PlainSerializer(lambda reach: reach if isinstance(reach, str) else list(reach)),
]
_NAMES = "{OMP_NUM_THREADS: 4}"
Environment = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[^=]+$"), _kind("the name of a variable", _NAMES)],
        Annotated[str, _kind('text or a number ("" for an empty one)', "4")],
    ],
    _kind("names with their values", _NAMES, empty={}),
]


_SOLVER = "{solver: ~/code/solver}"
Programs = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[^/\-][^/]{0,199}$"), _kind("a name for a program", _SOLVER)],
        FilePath,
    ],
    _kind("names with the paths of programs", _SOLVER, empty={}),
]


_TOKENS = "{vrm-example: {SiteTokens: 4}}"
Extensions = Annotated[
    dict[str, Annotated[dict[str, Any], _kind("keys with their values", "{SiteTokens: 4}")]],
    _kind("names of packages with their keys", _TOKENS, empty={}),
]


# ------------------------------------------------------------------------------- the settings


class Applications(BaseModel):
    """The programs and the jobs that name them."""

    model_config = _STRICT
    path: FilePath = Path(".")  # the directory of the programs
    queue: FilePath = Path("queue")  # the queue file
    heatmap: FilePath | None = None  # which applications run well together; None = all alike
    run_in: FilePath | None = None  # where jobs run; None = the queue file's directory
    programs: Programs = Field(default_factory=dict)  # others, by the names that jobs use
    any: Switch = False  # jobs may name any program by its path
    malleable: Names = ()  # those whose jobs may lend cores while they run

    def program(self, app: str, file: str = "") -> Path:
        """The file that a job of this application runs; `file`: where it says so itself."""
        return Path(file) if file else self.programs.get(app, self.path / app)


class Hosts(BaseModel):
    """The nodes of the run, and how they are reached."""

    model_config = _STRICT
    file: FilePath | None = None  # the nodes; None = those of the batch job, or this machine
    reach: Reach = "auto"  # auto = srun inside Slurm, else ssh; a list instead of ssh
    timeout: Duration = 10.0  # seconds in which a node must answer
    steps: Steps = "shared"  # each = mpirun starts its daemons by itself, as a step of the batch system for each job


def _section(name: str, text: str, **more: Any) -> Any:
    """A section whose keys are those of the table of `vrm.model.rules`, and `more`: a kind and a
    default each."""
    kinds: dict[str, Any] = {"backfilling": Backfilling, "seconds": Seconds, "number": Amount,
                             "count": Limit, "flag": Switch, "share": Share, "speed": Speed, "events": Events}
    keys: dict[str, Any] = {
        attribute: (kinds.get(key.kind) or Annotated[Text, _kind("text", key.example)], default)
        for attribute, (key, default) in section(name).items()}
    return create_model(name, __base__=_Section, __doc__=text, **keys, **more)


class _Section(BaseModel):
    model_config = _STRICT


if TYPE_CHECKING:  # who needs their values asks `Settings.rules`, which has types
    class Scheduling(_Section):
        """Which job starts next."""

        calibrated: Path | None = None
        history: tuple[Path, ...] = ()
        objective: str = "makespan"

    class Allocation(_Section):
        """Which cores jobs get."""

    class Starvation(_Section):
        """How long jobs may be passed by others."""

    class Sharing(_Section):
        """How jobs share sockets."""
else:
    Scheduling = _section(
        "Scheduling", "Which job starts next.",
        calibrated=(FilePath | None, None),  # the table of Estimates: calibrated
        history=(Directories, ()),  # earlier runs, which teach Estimates
        objective=(Objective, "makespan"))  # what advice looks for
    Starvation = _section("Starvation", "The guard against starvation.")
    Allocation = _section("Allocation", "Where a job's ranks go.")
    Sharing = _section("Sharing", "Simulated jobs that lend each other cores.")


class LauncherSettings(BaseModel):
    """How a job becomes processes."""

    model_config = _STRICT
    kind: Annotated[Text, _kind("text", "openmpi")] = "auto"  # a name, as written
    mpirun: Program = "auto"  # auto, a name to look up on PATH, or an absolute path
    allow_root: Switch = False
    transport: Transport = "auto"  # auto = shared memory and TCP without a fabric
    options: Options = ()  # further arguments for mpirun
    check_bindings: CheckBindings = "warn"
    stamp: Switch = False  # mpirun puts the time before each line of output (Open MPI)
    environment: Environment = Field(default_factory=dict)  # further variables for the jobs

    @property
    def one_node(self) -> bool:
        """Whether its jobs are one process each: a job has one node, if its line does not say otherwise."""
        return self.kind.strip().lower() == "direct"


class End(BaseModel):
    """When the allocation ends, and what that means for jobs."""

    model_config = _STRICT
    at: At = "auto"  # auto = what the batch system tells; never; seconds from the start
    margin: Seconds = 60.0  # before the end; nothing starts in it
    fit: Switch = True  # what would not end before by its estimate is not started


class Memory(BaseModel):
    """What becomes of jobs that use more memory than they asked for."""

    model_config = _STRICT
    over: Over = "warn"  # off = nobody looks


class Output(BaseModel):
    """Where the outputs of jobs are when these have ended."""

    model_config = _STRICT
    archive: Switch = False  # in one file instead of two for each job, but those that a job names itself


class SlurmSettings(BaseModel):
    """Jobs that come by the commands of other batch systems."""

    model_config = _STRICT
    default_time: Duration = 3600.0  # of a job that says no limit


class EnergySection(BaseModel):
    """What is known of the energy of programs, and what may be done with it."""

    model_config = _STRICT
    database: FilePath | None = None  # the database of programs; None = nothing is known
    frequency: Switch = True  # set the cores' frequency where a policy chooses one and the user may


class Replay(BaseModel):
    """How a recorded queue is played."""

    model_config = _STRICT
    speed: Factor = 1.0  # 2 = the recorded delays halved


class Settings(BaseModel):
    """The checked settings of one run: frozen, all paths absolute, all times in seconds.

    Settings compare equal when their values do, whichever file they were read from.
    """

    model_config = _STRICT
    version: Version = "1.0"
    applications: Annotated[Applications, _group("{Path: bin}")] = Field(default_factory=_defaults)
    scheduling: Annotated[Scheduling, _group("{Algorithm: FCFS}")] = Field(default_factory=_defaults)
    starvation: Annotated[Starvation, _group("{Factor: 25}")] = Field(default_factory=_defaults)
    sharing: Annotated[Sharing, _group("{MalleableShare: 0.5}")] = Field(default_factory=_defaults)
    hosts: Annotated[Hosts, _group("{Timeout: 10}")] = Field(default_factory=_defaults)
    nodes: Size = "auto"  # auto = what the allocation or the machine has
    sockets: Size = "auto"  # per node
    cores: Size = "auto"  # per socket
    emulate: Switch = False  # a geometry larger than the machine, unbound
    node_classes: NodeClasses = Field(default_factory=list)  # what nodes have besides cores
    licences: Licences = Field(default_factory=dict)  # of the whole run
    energy: Annotated[EnergySection, _group("{Database: energy.yaml}")] = Field(default_factory=_defaults)
    power_cap: PowerCap = ""  # the most watts that the machine may draw, over time; "" = any
    queues: QueueTable = Field(default_factory=dict)  # what jobs of each may take; in this order
    allocation: Annotated[Allocation, _group("{Policy: compact}")] = Field(default_factory=_defaults)
    walltime: Walltime = "warn"  # for jobs that outrun their estimate
    memory: Annotated[Memory, _group("{Over: kill}")] = Field(default_factory=_defaults)
    output: Annotated[Output, _group("{Archive: true}")] = Field(default_factory=_defaults)
    grace: Seconds = 10.0  # between SIGTERM and SIGKILL
    end: Annotated[End, _group("{Margin: 120}")] = Field(default_factory=_defaults)
    interrupted: Interrupted = "requeue"  # jobs that the end of the allocation interrupts
    retries: Limit = 0  # of a job that failed or ran too long
    on_stop: OnStop = "kill"  # running jobs, when the manager is told to stop
    forecast: Switch = True  # a process beside the manager forecasts when jobs start
    log: FilePath = Path("logs")  # directory of the jobs' output
    state: FilePath = Field(default_factory=lambda given: given.get("log", Path()) / "state")
    directory: FilePath = Field(default_factory=lambda given: given.get("state", Path()).parent)
    launcher: Annotated[LauncherSettings, _group("{AllowRoot: true}")] = Field(default_factory=_defaults)
    trust: Trust = "own"  # whose files are obeyed
    slurm: Annotated[SlurmSettings, _group("{DefaultTime: 30m}")] = Field(default_factory=_defaults)
    replay: Annotated[Replay, _group("{Speed: 10}")] = Field(default_factory=_defaults)

    extensions: Extensions = Field(default_factory=dict)  # keys of installed packages, by package

    _source: Source = PrivateAttr(default_factory=Source)

    def model_post_init(self, context: Any) -> None:
        if context is not None:
            self._source = context

    @property
    def base(self) -> Path:
        """The directory of the configuration; without a file the current one."""
        return Path(self._source.directory or os.getcwd())

    @property
    def workplace(self) -> Path:
        """The directory in which jobs run that have none of their own."""
        return self.applications.run_in or self.applications.queue.parent

    def where(self, key: str) -> str:
        """Where a key such as `Scheduling.Algorithm`, or an entry of a list such as `NodeClasses.0`,
        was written: `file:line`, or the file alone (without a file: `built-in defaults`) if the
        value is the default."""
        return self._source.place(tuple(int(word) if word.isdigit() else word
                                        for word in key.split(".")))

    def problem(self, key: str, message: str, hint: str = "") -> Problem:
        """A problem with the value of `key`, for checks that are made elsewhere."""
        line = self._source.lines.get(tuple(key.split(".")))
        return Problem(self._source.file, line, key, message, hint)

    @property
    def rules(self) -> Rules:
        """How a run schedules."""
        return replace(Rules.of(self), queues=queues_of(self.queues), extensions=added_keys.text_of(self.extensions))

    @property
    def added(self) -> dict[str, Any]:
        """The values of the keys of packages, by their names."""
        return added_keys.values(self.extensions)

    def check_files(self) -> list[Problem]:
        """What is wrong with the files and directories that the settings name.

        Apart from load(), because the status queries must answer without them. The queue file
        need not exist yet, and Log, State and Directory are made when they are needed.
        """
        named = [
            ("Applications.Path", self.applications.path, _must_be_directory),
            ("Applications.Queue", self.applications.queue, _may_be_file),
            ("Applications.Heatmap", self.applications.heatmap, _must_be_file),
            ("Scheduling.Calibrated", self.scheduling.calibrated, _must_be_file),
            *(("Scheduling.History", run, _must_be_run) for run in self.scheduling.history),
            ("Applications.RunIn", self.applications.run_in, _must_be_directory),
            ("Hosts.File", self.hosts.file, _must_be_file),
            ("Log", self.log, _may_be_directory),
            ("State", self.state, _may_be_file),
            ("Directory", self.directory, _may_be_directory),
            ("Energy.Database", self.energy.database, _must_be_file),
        ]
        if os.sep in self.launcher.mpirun:
            named.append(("Launcher.Mpirun", Path(self.launcher.mpirun), _must_be_program))
        complaints = [(key, check(path)) for key, path, check in named if path is not None]
        complaints += [
            ("State", f"{path} is the file of {key}, too, and would be replaced")
            for key, path, _ in named
            if path == self.state and key != "State"
        ]
        return [
            self.problem(key, message, "correct the path, or make what it names")
            for key, message in complaints
            if message
        ]


def dump(settings: Settings) -> dict[str, Any]:
    """The settings as a mapping under the YAML's own key names, of plain values only.

    Written as YAML and loaded again it gives equal settings, wherever the file stands.
    """
    return settings.model_dump(mode="json", by_alias=True)


def to_line(settings: Settings) -> str:
    """The settings as one line, for another process of this machine."""
    return json.dumps([dump(settings), str(settings.base), settings._source.file])


def of_line(line: str) -> Settings:
    """The settings of such a line: equal ones, with the same places of their files."""
    values, base, file = json.loads(line)
    return validated(Settings, values, Source(file=file, directory=base), [])


# ------------------------------------------------------------------------ files that are named


def _must_be_directory(path: Path) -> str:
    return _complaint(path, os.path.isdir, "a directory")


def _must_be_file(path: Path) -> str:
    return _complaint(path, os.path.isfile, "a file")


def _must_be_run(path: Path) -> str:
    return _must_be_file(path / "jobs.csv" if path.is_dir() else path)


def _must_be_program(path: Path) -> str:
    def is_program(path: Path) -> bool:
        return os.path.isfile(path) and os.access(path, os.X_OK)

    return _complaint(path, is_program, "an executable program")


def _may_be_directory(path: Path) -> str:
    return _must_be_directory(path) if os.path.lexists(path) else ""


def _may_be_file(path: Path) -> str:
    return _must_be_file(path) if os.path.lexists(path) else ""


def _complaint(path: Path, right: Callable[[Path], bool], wanted: str) -> str:
    try:
        os.stat(path)
    except OSError as error:
        return f"{shown(str(path), 200)}: {reason(error)}"
    return "" if right(path) else f"{shown(str(path), 200)} is not {wanted}"


NO_CONFIG = "none; every key has its default"


def load(path: str | os.PathLike[str] | None = None, client: bool = False) -> Settings:
    """Read and check a configuration file; None gives the defaults. `client`: for a program behind `vrm run --`
    (see `vrm.config.paths.default_log`).

    Relative paths inside the file are relative to its directory (for None: to the current one).
    Raises ConfigError with everything that is wrong.
    """
    document = Document.nothing(os.getcwd()) if path is None else Document.read(path)
    log = default_log(document.source.directory, client)
    if "Log" not in document.mapping and log != LOG:
        document = replace(document, mapping={**document.mapping, "Log": log})
    settings = document.checked(Settings)
    wrong = [document.problem(place, message) for place, message in added_keys.faults(settings.extensions)]
    if wrong:
        raise ConfigError(wrong)
    return settings
