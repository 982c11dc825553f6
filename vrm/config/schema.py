"""The settings: all keys, the values that they accept, and their defaults.

A new setting is one line in one of the classes below. Files are read by `vrm.config.yaml_reader`.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from collections.abc import Callable

from pydantic import BaseModel, Field, PrivateAttr, create_model

from vrm.config.node_classes import Licences, NodeClasses, extended
from vrm.config.validators import STRICT, defaults, group as _group, kind as _kind  # a class has a key `kind`
from vrm.config.paths import LOG, default_log
from vrm.config.problems import ConfigError, Problem
from vrm.config.queues import QueueTable, queues_of
from vrm.config.value_types import (
    Amount, At, Backfilling, CheckBindings, Directories, Duration, Environment, Events, Extensions, Factor, FilePath,
    HeatmapPath,
    Interrupted, Limit, Names, OnStop, Options, Over, Program, Programs, Reach, Seconds, Share, Size, Speed, Steps,
    Switch, Text, Threads, Transport, Trust, Version, Walltime)
from vrm.config.yaml_reader import Document, Source, reason, shown, validated
from vrm.model.rules import Rules, attribute, section
from vrm.scheduling import extension_keys
from vrm.system import plugins

# ------------------------------------------------------------------------------- the settings


class Applications(BaseModel):
    """The programs, and the jobs that name them."""

    model_config = STRICT
    path: FilePath = Path(".")  # the directory of the programs
    queue: FilePath = Path("queue")  # the queue file
    heatmap: HeatmapPath | None = None  # which applications run well together; None = no difference
    run_in: FilePath | None = None  # where jobs run; None = the queue file's directory
    programs: Programs = Field(default_factory=dict)  # others, by the names that jobs use
    any: Switch = False  # jobs may name any program by its path
    malleable: Names = ()  # those whose jobs may lend cores while they run

    def program(self, app: str, file: str = "") -> Path:
        """Return the file that a job of this application runs; `file`: the path that the job itself names."""
        return Path(file) if file else self.programs.get(app, self.path / app)


class CoreHosts(BaseModel):
    """The nodes of the run, and how they are reached."""

    model_config = STRICT
    file: FilePath | None = None  # the nodes; None = those of the batch job, or this machine
    reach: Reach = "auto"  # auto = srun inside Slurm, else ssh; a list instead of ssh
    timeout: Duration = 10.0  # seconds in which a node must answer
    steps: Steps = "shared"  # each = mpirun starts its daemons by itself, as a step of the batch system for each job


if TYPE_CHECKING:
    Hosts = CoreHosts
else:
    Hosts = create_model("Hosts", __base__=CoreHosts, __doc__=CoreHosts.__doc__, **extended("Hosts"))


def _section(name: str, text: str, **more: Any) -> Any:
    """Return a section with the keys of a section of the table in `vrm.model.rules`, and with `more`: a kind and a
    default for each."""
    kinds: dict[str, Any] = {"backfilling": Backfilling, "seconds": Seconds, "number": Amount,
                             "count": Limit, "flag": Switch, "share": Share, "speed": Speed, "events": Events}
    keys: dict[str, Any] = {
        attribute: (kinds.get(key.kind) or Annotated[Text, _kind("text", key.example)], default)
        for attribute, (key, default) in section(name).items()}
    return create_model(name, __base__=_Section, __doc__=text, **keys, **more)


class _Section(BaseModel):
    model_config = STRICT


if TYPE_CHECKING:  # for typed values use `Settings.rules`
    class Scheduling(_Section):
        """Which job starts next."""

        calibrated: Path | None = None
        history: tuple[Path, ...] = ()

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
        **extended("Scheduling"))
    Starvation = _section("Starvation", "The guard against starvation.")
    Allocation = _section("Allocation", "Where a job's ranks go.")
    Sharing = _section("Sharing", "Simulated jobs that lend each other cores.")


class LauncherSettings(BaseModel):
    """How a job becomes processes."""

    model_config = STRICT
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
        """Whether jobs are single processes, so that a job has one node unless its line states otherwise."""
        return self.kind.strip().lower() == "direct"


class End(BaseModel):
    """When the allocation ends, and what that means for jobs."""

    model_config = STRICT
    at: At = "auto"  # auto = reported by the batch system; never; seconds from the start
    margin: Seconds = 60.0  # before the end; nothing starts in it
    fit: Switch = True  # start no job whose estimate goes beyond the end


class Memory(BaseModel):
    """The treatment of jobs that use more memory than they requested."""

    model_config = STRICT
    over: Over = "warn"  # off = not checked


class Output(BaseModel):
    """Where the output of ended jobs is kept."""

    model_config = STRICT
    archive: Switch = False  # in one file instead of two for each job, except files that a job names itself


class Replay(BaseModel):
    """How a recorded queue is replayed."""

    model_config = STRICT
    speed: Factor = 1.0  # 2 = the recorded delays halved


class CoreSettings(BaseModel):
    """The checked settings of one run: frozen, all paths absolute, all times in seconds.

    Settings are equal if their values are, whichever file they were read from.
    """

    model_config = STRICT
    version: Version = "1.0"
    applications: Annotated[Applications, _group("{Path: bin}")] = Field(default_factory=defaults)
    scheduling: Annotated[Scheduling, _group("{Algorithm: FCFS}")] = Field(default_factory=defaults)
    starvation: Annotated[Starvation, _group("{Factor: 25}")] = Field(default_factory=defaults)
    sharing: Annotated[Sharing, _group("{MalleableShare: 0.5}")] = Field(default_factory=defaults)
    hosts: Annotated[Hosts, _group("{Timeout: 10}")] = Field(default_factory=defaults)
    nodes: Size = "auto"  # auto = what the allocation or the machine has
    sockets: Size = "auto"  # per node
    cores: Size = "auto"  # per socket
    threads: Threads = 1  # per core; above 1 each hardware thread counts as a core
    emulate: Switch = False  # a geometry larger than the machine, unbound
    node_classes: NodeClasses = Field(default_factory=list)  # what nodes have besides cores
    licences: Licences = Field(default_factory=dict)  # of the whole run
    queues: QueueTable = Field(default_factory=dict)  # limits for jobs of each queue; in this order
    allocation: Annotated[Allocation, _group("{Policy: compact}")] = Field(default_factory=defaults)
    walltime: Walltime = "warn"  # for jobs that exceed their estimate
    memory: Annotated[Memory, _group("{Over: kill}")] = Field(default_factory=defaults)
    output: Annotated[Output, _group("{Archive: true}")] = Field(default_factory=defaults)
    grace: Seconds = 10.0  # between SIGTERM and SIGKILL
    end: Annotated[End, _group("{Margin: 120}")] = Field(default_factory=defaults)
    interrupted: Interrupted = "requeue"  # jobs that the end of the allocation interrupts
    retries: Limit = 0  # of a job that failed or ran too long
    on_stop: OnStop = "kill"  # running jobs, when the manager is stopped
    log: FilePath = Path("logs")  # directory of the jobs' output
    state: FilePath = Field(default_factory=lambda given: given.get("log", Path()) / "state")
    directory: FilePath = Field(default_factory=lambda given: given.get("state", Path()).parent)
    launcher: Annotated[LauncherSettings, _group("{AllowRoot: true}")] = Field(default_factory=defaults)
    trust: Trust = "own"  # whose files may be used
    replay: Annotated[Replay, _group("{Speed: 10}")] = Field(default_factory=defaults)

    extensions: Extensions = Field(default_factory=dict)  # keys of installed packages, by package

    _source: Source = PrivateAttr(default_factory=Source)

    def model_post_init(self, context: Any) -> None:
        if context is not None:
            self._source = context

    @property
    def base(self) -> Path:
        """The directory of the configuration, or the current one without a file."""
        return Path(self._source.directory or os.getcwd())

    @property
    def workplace(self) -> Path:
        """The working directory of jobs that have none of their own."""
        return self.applications.run_in or self.applications.queue.parent

    def where(self, key: str) -> str:
        """Return where a key such as `Scheduling.Algorithm`, or a list entry such as `NodeClasses.0`, was written:
        `file:line`. If the value is the default: the file alone, or `built-in defaults` without a file."""
        return self._source.place(tuple(int(word) if word.isdigit() else word
                                        for word in key.split(".")))

    def problem(self, key: str, message: str, hint: str = "") -> Problem:
        """Return a problem with the value of `key`, for checks in other modules."""
        line = self._source.lines.get(tuple(key.split(".")))
        return Problem(self._source.file, line, key, message, hint)

    @property
    def rules(self) -> Rules:
        """The scheduling rules of the run."""
        return replace(Rules.of(self), queues=queues_of(self.queues),
                       extensions=extension_keys.text_of(self.extensions))

    @property
    def added(self) -> dict[str, Any]:
        """The values of the keys of packages, by name."""
        return extension_keys.values(self.extensions)

    def extended(self, place: str) -> Any:
        """Return the value of a key that one of vrm's own extensions adds, such as `Energy.Database`; None if none
        adds it."""
        value: Any = self
        for word in map(attribute, place.split(".")):
            value = getattr(value, word, None)
        return value

    def _files_of_extensions(self) -> list[tuple[str, Path | None]]:
        """Return the files that keys of extensions name, with these keys."""
        return [(f"{name}.{info.alias}", getattr(value, key)) for name, value in (
            (info.alias, getattr(self, key)) for key, info in type(self).model_fields.items()
            if key not in CoreSettings.model_fields) if isinstance(value, BaseModel)
            for key, info in type(value).model_fields.items() if isinstance(getattr(value, key), Path)]

    def check_files(self) -> list[Problem]:
        """Return the problems with the files and directories that the settings name.

        Separate from load(), because status queries must work without these files. The queue file need not exist yet,
        and Log, State and Directory are created when they are needed.
        """
        named = [
            ("Applications.Path", self.applications.path, _must_be_directory),
            ("Applications.Queue", self.applications.queue, _may_be_file),
            ("Applications.Heatmap", self.applications.heatmap, _may_be_made),
            ("Scheduling.Calibrated", self.scheduling.calibrated, _must_be_file),
            *(("Scheduling.History", run, _must_be_run) for run in self.scheduling.history),
            ("Applications.RunIn", self.applications.run_in, _must_be_directory),
            ("Hosts.File", self.hosts.file, _must_be_file),
            ("Log", self.log, _may_be_directory),
            ("State", self.state, _may_be_file),
            ("Directory", self.directory, _may_be_directory),
            *((key, path, _must_be_file) for key, path in self._files_of_extensions()),
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


if TYPE_CHECKING:
    Settings = CoreSettings
else:
    Settings = create_model("Settings", __base__=CoreSettings, __doc__=CoreSettings.__doc__, **extended(""))


def dump(settings: Settings) -> dict[str, Any]:
    """Return the settings as a mapping of plain values with the key names of the YAML file.

    Written as YAML and loaded again they are equal, in any directory.
    """
    return settings.model_dump(mode="json", by_alias=True)


def to_line(settings: Settings) -> str:
    """Return the settings as one line, for another process on this machine."""
    return json.dumps([dump(settings), str(settings.base), settings._source.file])


def of_line(line: str) -> Settings:
    """Return the settings of such a line: equal ones, with the same paths."""
    values, base, file = json.loads(line)
    return validated(Settings, values, Source(file=file, directory=base), [])


# ------------------------------------------------------------------------ files that are named


def _must_be_directory(path: Path) -> str:
    return _complaint(path, os.path.isdir, "a directory")


def _must_be_file(path: Path) -> str:
    return _complaint(path, os.path.isfile, "a file")


def _may_be_made(path: Path) -> str:
    return _must_be_file(path) if plugins.find("vrm.heatmaps", str(path)) is None else ""


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
    """Read and check a configuration file; None gives the defaults. `client`: for a program behind `vrm run --` (see
    `vrm.config.paths.default_log`).

    Relative paths inside the file are relative to its directory (for None: to the current one). Raises ConfigError
    with all mistakes.
    """
    document = Document.nothing(os.getcwd()) if path is None else Document.read(path)
    log = default_log(document.source.directory, client)
    if "Log" not in document.mapping and log != LOG:
        document = replace(document, mapping={**document.mapping, "Log": log})
    settings = document.checked(Settings)
    wrong = [document.problem(place, message) for place, message in extension_keys.faults(settings.extensions)]
    if wrong:
        raise ConfigError(wrong)
    return settings
