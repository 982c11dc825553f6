"""The experiment file: which scenarios run on which queues, how often and in what order.

A scenario is a configuration: the file named by `Config`, overridden by `Keys`, then overridden by the keys of the
scenario. Every mistake is reported with its line, as for a configuration.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_pascal

from vrm.config.validators import kind
from vrm.config.machine import read_machine
from vrm.config.policies import make_scheduler
from vrm.config.problems import ConfigError, Problem
from vrm.config.schema import Settings, dump, load
from vrm.config.value_types import Amount, Factor, FilePath, Seconds, Switch, Text
from vrm.config.yaml_reader import Document, Location
from vrm.live.site.programs import WantedProgram, program_fault
from vrm.model import Cluster
from vrm.simulation.inputs import is_generated
from vrm.ext.measured.estimates import EstimateError, read_estimates
from vrm.workload.queue_follower import QueueFollower
from vrm.ext.generate.generator import GenerateError, Mix, choices, constant, parse_arrival
from vrm.workload.grammar import LineError
from vrm.workload.swf import Selection
from vrm.ext.generate.npb import CLASS_B

LIVE, SIMULATED = "live", "simulated"
_DEPTH = 6  # Scenarios, its number, Launcher, Environment, NAME

# ------------------------------------------------------------------------------------- the file

_STRICT = ConfigDict(frozen=True, extra="forbid", alias_generator=to_pascal, validate_default=True)

Count = Annotated[int, Field(ge=1), kind("a whole number from 1 up", "3")]
Share = Annotated[float, Field(ge=0, le=1), kind("a number from 0 to 1", "0.1")]
Seed = Annotated[int, Field(ge=0), kind("a whole number, 0 or more", "1")]
Words = Annotated[tuple[Text, ...], kind("a list", "[cg, ep]", empty=())]
Counts = Annotated[tuple[Count, ...], kind("a list of whole numbers", "[1, 2, 4]", empty=())]


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


class Generate(BaseModel):
    """A mix of jobs to generate; the keys are the options of `vrm generate`."""

    model_config = _STRICT
    jobs: Count = 20
    apps: Words = ()
    classes: Words = ()
    ranks: Counts = ()
    arrival: Annotated[Text, kind("text", "uniform:3-10")] = "uniform:3-10"
    estimates: Text | None = None  # a table, or class-b
    estimate: Seconds | None = None  # one for all jobs, instead of a table
    margin: Factor = 1.0
    exclusive: Share = 0.0
    seed: Seed | None = None  # None = the experiment's


class QueueEntry(BaseModel):
    """A queue: a file, or a mix to generate. What selects jobs is for simulated runs."""

    model_config = _STRICT
    name: Text | None = None
    file: Text | None = None
    generate: Annotated[Generate | None, kind("a group of keys", "{Jobs: 20}")] = None
    jobs: Count | None = None
    load: Factor = 1.0
    begin: Amount | None = None
    end: Amount | None = None
    clean: Switch = False

    @property
    def selection(self) -> Selection:
        """The jobs of the queue that run."""
        return Selection(begin=self.begin, end=self.end, load=self.load, clean=self.clean, jobs=self.jobs)


def _entry(value: Any) -> Any:
    return {"File": value} if isinstance(value, str) else value


Entry = Annotated[QueueEntry, BeforeValidator(_entry), kind("a file or a group of keys", "mix")]
_SCENARIO = "{Name: mine, Allocation.Policy: strip}"


class ExperimentFile(BaseModel):
    """The keys of an experiment file."""

    model_config = _STRICT
    name: Text | None = None
    mode: Annotated[Literal["live", "simulated"], BeforeValidator(_lower),
                    kind("live or simulated", "live")] = "live"
    config: FilePath | None = None
    keys: Annotated[dict[str, Any], kind("keys of a configuration", "{Nodes: 4}", empty={})] = \
        Field(default_factory=dict)
    grid: Annotated[
        dict[str, Annotated[list[Any], Field(min_length=1), kind("a list", "[FCFS, WFP3]")]],
        kind("keys with lists of values", "{Scheduling.Algorithm: [FCFS, WFP3]}", empty={})] = \
        Field(default_factory=dict)
    scenarios: Annotated[
        list[Annotated[dict[str, Any], kind("keys of a configuration", _SCENARIO)]],
        kind("a list of scenarios", f"[{_SCENARIO}]", empty=[])] = Field(default_factory=list)
    queues: Annotated[list[Entry], Field(min_length=1), kind("a list of queues", "[mix]")]
    repetitions: Count = 1
    order: Annotated[Literal["shuffled", "given"], BeforeValidator(_lower),
                     kind("shuffled or given", "shuffled")] = "shuffled"
    seed: Seed = 0
    out: FilePath | None = None
    limit: Amount = 0.0  # seconds after which a live run is stopped and counts as failed; 0 = never
    machine: FilePath | None = None  # of simulated runs, instead of Nodes, Sockets and Cores


# ------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Scenario:
    """A named configuration; `changes` are the keys (as text) that distinguish it from other scenarios."""

    name: str
    changes: Mapping[str, str]
    settings: Settings


@dataclass(frozen=True)
class ExperimentQueue:
    """A queue of an experiment: the path of a file, the text of a synthetic workload, or a mix to generate. The
    selection of jobs is for simulations."""

    name: str
    source: str
    generate: Generate | None = None
    selection: Selection = Selection()
    place: Location = ()

    @property
    def drawn(self) -> bool:
        """Return whether the queue is random, so that another seed gives other jobs."""
        return self.generate is not None or is_generated(self.source)


@dataclass(frozen=True)
class ExperimentRun:
    """One run: a scenario on a queue; `repetition` counts from 1.

    `seed` is the seed of a random queue, else None.
    """

    scenario: Scenario
    queue: ExperimentQueue
    repetition: int
    seed: int | None

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        return f"{self.scenario.name}.{self.queue.name}.{self.repetition}"


@dataclass(frozen=True)
class Plan:
    """A checked experiment; `runs` are in the order of execution."""

    file: Path
    name: str
    mode: str
    scenarios: tuple[Scenario, ...]
    queues: tuple[ExperimentQueue, ...]
    repetitions: int
    order: str
    seed: int
    out: Path
    limit: float
    runs: tuple[ExperimentRun, ...]
    machine: Path | None = None

    def described(self) -> dict[str, Any]:
        """Return the plan as data for JSON."""
        return {"format": 1, "name": self.name, "mode": self.mode, "seed": self.seed,
                "order": self.order, "repetitions": self.repetitions,
                "scenarios": [{"name": one.name, "changes": dict(one.changes)}
                              for one in self.scenarios],
                "queues": [{"name": one.name, "source": Path(one.source).name if one.source else
                            "drawn"} for one in self.queues],
                "runs": [run.name for run in self.runs]}


def read_plan(path: str | Path) -> Plan:
    """Read and check an experiment file. Raises ConfigError with all mistakes."""
    document = Document.read(path, _DEPTH, "Queues: [mix]")
    file = document.checked(ExperimentFile)
    base = _base(file, document)
    problems = list(_machine_problems(file, document))
    scenarios = list(_scenarios(file, base, document, problems))
    queues = list(_queues(file, document, problems))
    if not problems:
        problems += _combination_problems(file, scenarios, queues, document)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    path = Path(path)
    name = _safe(file.name or path.stem)
    return Plan(path, name, file.mode, tuple(scenarios), tuple(queues), file.repetitions,
                file.order, file.seed, file.out or Path("runs") / name, file.limit,
                tuple(_ordered(file, scenarios, queues)), file.machine)


def _machine_problems(file: ExperimentFile, document: Document) -> Iterator[Problem]:
    """Yield the problems of the machine file, or of using one in a live experiment."""
    if file.machine is None:
        return
    if file.mode == LIVE:
        yield document.problem(("Machine",), "live runs have the machine that they run on",
                               "remove it, or write Mode: simulated")
        return
    try:
        read_machine(file.machine)
    except ConfigError as error:
        yield document.problem(("Machine",), f"{file.machine} cannot be used", "see below")
        yield from error.problems


def _base(file: ExperimentFile, document: Document) -> dict[str, Any]:
    if file.config is None:
        return {}
    try:
        return {key: value for key, value in dump(load(file.config)).items()
                if key not in ("Log", "State", "Directory")}
    except ConfigError as error:
        first = document.problem(("Config",), f"{file.config} cannot be used", "see below")
        raise ConfigError([first, *error.problems]) from error


Change = tuple[str, Any, Location]
"""A key (dotted), its value, and its location in the file."""


def _changes(mapping: Mapping[str, Any], place: Location, before: str = "") -> Iterator[Change]:
    """Yield the keys of a group, nested or dotted."""
    for key, value in mapping.items():
        if isinstance(value, dict):
            yield from _changes(value, place + (key,), f"{before}{key}.")
        else:
            yield f"{before}{key}", value, place + (key,)


def _scenarios(file: ExperimentFile, base: dict[str, Any], document: Document,
               problems: list[Problem]) -> Iterator[Scenario]:
    common = list(_changes(file.keys, ("Keys",)))
    wanted: list[tuple[str, list[Change]]] = []
    if file.grid or not file.scenarios:
        axes = [[(key, value, ("Grid", key, number)) for number, value in enumerate(values)]
                for key, values in file.grid.items()]
        wanted += [("", list(point)) for point in itertools.product(*axes)]
    for number, mapping in enumerate(file.scenarios):
        keys = {key: value for key, value in mapping.items() if key != "Name"}
        wanted.append((str(mapping.get("Name") or ""),
                       list(_changes(keys, ("Scenarios", number)))))
    names: dict[str, int] = {}
    for name, own in wanted:
        name = _safe(name or "-".join(_short(value) for _, value, _ in own) or "base")
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            name = f"{name}-{names[name]}"
        try:
            settings = _settings(base, [*common, *own], document)
            make_scheduler(settings, Cluster.regular(2, 2, 4))  # are there such policies?
        except ConfigError as error:
            problems += error.problems
            continue
        yield Scenario(name, {key: _short(value) for key, value, _ in own}, settings)


def _settings(base: dict[str, Any], changes: Sequence[Change], document: Document) -> Settings:
    """Return the configuration with some keys changed. Raises ConfigError."""
    mapping: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value
                               for key, value in base.items()}
    places: dict[Location, Location] = {}
    problems = []
    for key, value, place in changes:
        words = key.split(".")
        group: Any = mapping
        for word in words[:-1]:
            group = group.setdefault(word, {})
            if not isinstance(group, dict):
                break
        if not isinstance(group, dict):
            problems.append(document.problem(place, f"{key} is not a key of a configuration",
                                             "config/reference.yaml shows them all"))
            continue
        if words[0] in ("Log", "State", "Directory"):
            problems.append(document.problem(place, f"{words[0]} is decided by the experiment",
                                             "remove it; --out says where everything goes"))
            continue
        group[words[-1]] = value
        at: Location = tuple(words)
        places[at] = place
        for length in range(1, len(words)):
            places.setdefault(tuple(words[:length]), place)
        if isinstance(value, list):
            for number in range(len(value)):
                places[at + (number,)] = place
    if problems:
        raise ConfigError(problems)
    return document.placed(Settings, mapping, places)


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(map(_short, value))
    return "none" if value is None else str(value)


def _safe(text: str) -> str:
    """Return the name as one component of a path."""
    return re.sub(r"[^\w+=-]+", "_", text).strip("_") or "run"


def _queues(file: ExperimentFile, document: Document, problems: list[Problem]) -> Iterator[ExperimentQueue]:
    folder = Path(document.source.directory)
    names: dict[str, int] = {}
    for number, entry in enumerate(file.queues):
        place: Location = ("Queues", number)
        if (entry.file is None) == (entry.generate is None):
            problems.append(document.problem(place, f"queue {number + 1} is either a file or drawn",
                                             "write either File or Generate"))
            continue
        source = ""
        if entry.file is not None:
            source = entry.file if is_generated(entry.file) else str(
                (folder / Path(entry.file).expanduser()).resolve())
        stem = Path(source).name.partition(".")[0] or "drawn"
        name = _safe(entry.name or stem)
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            name = f"{name}-{names[name]}"
        generate = entry.generate
        if generate is not None and generate.estimates not in (None, "class-b"):
            table = str((folder / Path(generate.estimates).expanduser()).resolve())
            generate = generate.model_copy(update={"estimates": table})
        queue = ExperimentQueue(name, source, generate, entry.selection, place)
        for message, hint in _faults(queue, file.mode):
            problems.append(document.problem(place, message, hint))
        yield queue


def _faults(queue: ExperimentQueue, mode: str) -> Iterator[tuple[str, str]]:
    """Yield the mistakes of a queue, each with its remedy."""
    if queue.generate is not None:
        try:
            mix_of(queue.generate, 0)
        except GenerateError as error:
            yield str(error), ""
    elif not is_generated(queue.source) and not Path(queue.source).is_file():
        yield f"{queue.source} is not a file", "correct the path (it starts at this file)"
    if mode == LIVE:
        if is_generated(queue.source) or ".swf" in Path(queue.source).name:
            yield ("a live run needs programs to start, which a trace does not name",
                   "name a queue file, or write Mode: simulated")
        if queue.selection != Selection():
            yield ("Jobs, Load, Begin, End and Clean are for simulated runs",
                   "remove them, or write Mode: simulated")
    if queue.selection.begin is not None and (queue.selection.end or math.inf) <= queue.selection.begin:
        yield "End is not after Begin", "both are seconds of the trace, as in its rows"


def mix_of(generate: Generate, seed: int) -> Mix:
    """Return the mix of jobs that a `Generate` group defines. Raises GenerateError."""
    if generate.estimate is not None and generate.estimates:
        raise GenerateError("Estimate is one for all, Estimates a table; give one of them")
    if generate.estimate is not None:
        table = constant(generate.apps, generate.classes, generate.ranks, generate.estimate)
    elif generate.estimates == "class-b":
        table = dict(CLASS_B)
    elif generate.estimates is None:
        raise GenerateError("no estimates; name a table of `vrm calibrate` under Estimates, or "
                            "write Estimates: class-b or Estimate: SECONDS")
    else:
        try:
            found, _ = read_estimates(generate.estimates)
        except EstimateError as error:
            raise GenerateError(str(error)) from error
        table = {key: one.seconds for key, one in found.items()}
    return Mix(generate.jobs, seed if generate.seed is None else generate.seed,
               choices(table, generate.apps, generate.classes, generate.ranks),
               parse_arrival(generate.arrival), generate.exclusive, generate.margin)


def programs_of(queue: ExperimentQueue) -> list[WantedProgram]:
    """Return the programs that a queue names, sorted; for a mix, those that it may choose."""
    if queue.generate is not None:
        return [WantedProgram(app) for app in sorted(mix_of(queue.generate, 0).choices)]
    source = Path(queue.source)
    follower = QueueFollower(source)
    follower.finish()
    values = [line.parsed.values_at(source.parent) for line in follower.read_new()
              if not isinstance(line.parsed, LineError)]
    return sorted({wanted for each in values for wanted in WantedProgram.named(each)})


def _combination_problems(file: ExperimentFile, scenarios: Sequence[Scenario], queues: Sequence[ExperimentQueue],
                          document: Document) -> Iterator[Problem]:
    """Yield the problems of scenarios and queues that cannot be combined."""
    for scenario in scenarios:
        settings = scenario.settings
        if file.mode == LIVE:
            yield from settings.check_files()
            for queue in queues:
                for wanted in programs_of(queue):
                    fault = program_fault(settings.applications, wanted, "any")
                    if fault:
                        yield document.problem(queue.place, fault)
        elif file.machine is None and settings.nodes == "auto" and (
                "auto" not in (settings.sockets, settings.cores) or
                any(queue.generate or not _defines_size(queue) for queue in queues)):
            yield document.problem(("Mode",), "a simulated machine has to have a size",
                                   "write Nodes, Sockets and Cores under Keys, or Machine: FILE")


def _defines_size(queue: ExperimentQueue) -> bool:
    return is_generated(queue.source) or ".swf" in Path(queue.source).name


def _ordered(file: ExperimentFile, scenarios: Sequence[Scenario], queues: Sequence[ExperimentQueue]
             ) -> Iterator[ExperimentRun]:
    """Yield the runs: repetition by repetition; in each, every scenario runs on every queue once.

    So a slow drift of the machine affects all scenarios equally. Shuffling within a repetition (randomised complete
    blocks: Fisher, "The design of experiments", 1935) also balances faster drifts. A simulation that would give the
    same result again is not repeated.
    """
    draw = random.Random(file.seed)
    for repetition in range(1, file.repetitions + 1):
        block = [ExperimentRun(scenario, queue, repetition, _seed(file, queue, repetition))
                 for queue in queues for scenario in scenarios
                 if repetition == 1 or file.mode == LIVE or queue.drawn]
        if file.order == "shuffled":
            draw.shuffle(block)
        yield from block


def _seed(file: ExperimentFile, queue: ExperimentQueue, repetition: int) -> int | None:
    """Return the seed of a random queue (None for others): live runs repeat the same queue, simulated runs generate
    another one in each repetition."""
    if not queue.drawn:
        return None
    own = queue.generate.seed if queue.generate is not None else None
    first = file.seed if own is None else own
    return first if file.mode == LIVE else first + repetition - 1
