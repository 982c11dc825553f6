"""Arguments of a simulation besides workload, machine and rules: earlier measurements, events at known times, and
what is recorded. Command lines and experiment matrices use the field names without their classes (`by_name`)."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TextIO
from collections.abc import Iterable, Mapping, Sequence

from vrm.model.booking import Watcher
from vrm.model.measured.energy import NO_PROGRAMS, Programs
from vrm.model.measured.heatmap import Heatmap
from vrm.model.machine import Machine
from vrm.model.reservation import ReservationRequest
from vrm.model.rules import Rules
from vrm.model.measured.speedups import Speedups
from vrm.scheduling.estimators import ObservedRun
from vrm.results.metrics import THRESHOLD
from vrm.run.expectations import Expectations, make_expectations
from vrm.simulation.engine import Outage
from vrm.simulation.inputs import WorkloadError
from vrm.system import plugins
from vrm.workload.swf import Selection

File = str | Path


@dataclass(frozen=True)
class Measurements:
    """Measurements of programs and jobs from before the run.

    `heatmap` orders nodes under the policy strip: a `Heatmap`, or a file of ranks or of measured speed-ups. With
    speed-ups, also those given as `speedups`, jobs run faster or slower next to others, and pairs whose combined
    throughput is below `Rules.min_throughput` share no node. `rows_are`: whose speed the rows of such a file contain,
    `own` or `partner`. `calibrated`: the file of run times for the estimates of that name. `history`: directories of
    earlier runs, or their jobs.csv, from which estimators learn before the first job. `energy`: the power that
    programs draw on classes of nodes, a file as `vrm energy measure` writes it, or a
    `vrm.model.measured.energy.Programs`. Files are read when the simulation begins.
    """

    heatmap: File | Heatmap | None = None
    speedups: Speedups | None = None
    rows_are: str = "own"
    calibrated: File | None = None
    history: Sequence[File] = ()
    energy: File | Programs | None = None

    def pairs(self, least: float) -> tuple[Heatmap | None, Speedups | None]:
        """Return the heatmap and the speeds next to others, None if unknown; pairs with a combined throughput below
        `least` are refused. Raises SpeedError."""
        if isinstance(self.heatmap, (str, Path)):
            found = plugins.need("vrm.readers", "heatmap")(self.heatmap, self.rows_are, least)
            return found.heatmap, self.speedups or found.speedups
        if self.heatmap is None and self.speedups is not None:
            return self.speedups.heatmap(least), self.speedups
        return self.heatmap, self.speedups

    def programs(self) -> Programs:
        """Return the power that programs draw. Raises ConfigError."""
        if isinstance(self.energy, Programs) or self.energy is None:
            return self.energy or NO_PROGRAMS
        found: Programs = plugins.need("vrm.readers", "energy")(self.energy)
        return found

    def expectations(self, rules: Rules, known: list[ObservedRun] | None = None) -> Expectations | None:
        """Return the expected run times of jobs under these rules, or None if only users' time limits count. `known`
        are the jobs of the history, if they have been read already. Raises PolicyError and HistoryError."""
        table = None if self.calibrated is None else plugins.need("vrm.readers", "calibrated")(self.calibrated)
        if known is None and self.history:
            known = plugins.need("vrm.readers", "history")(self.history)
        return make_expectations(rules, table, known or ())


@dataclass(frozen=True)
class Timetable:
    """Events at known times (seconds of the workload) during a simulation.

    `outages`: nodes that are lost for some time; their jobs wait again, as in a live run. `end`: when the allocation
    ends; jobs that would not have ended by then do not start, and `summary["held"]` counts the jobs that are left.
    `reservations`: advance reservations of nodes (`vrm.model.reservation.ReservationRequest`), known from the start.
    `changes`: pairs of a time and the rules from then on, in order of time; only rules that can be changed in a live
    run take effect (`vrm.model.rules.CHANGEABLE`). `lends`: running jobs lend cores to waiting ones, like `vrm lend`
    (`RequestedLend` of vrm's extension lending).
    """

    outages: Iterable[Outage] = ()
    end: float = math.inf
    reservations: Iterable[ReservationRequest] = ()
    changes: Iterable[tuple[float, Rules]] = ()
    lends: Iterable[Any] = ()

    def __post_init__(self) -> None:
        for name in ("outages", "reservations", "changes", "lends"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True)
class Recording:
    """What a simulation records.

    `out`: a directory for jobs.csv, and with `evalys` for evalys.csv in the columns of Batsim. `places`: which part
    of a job's placement jobs.csv has, `full`, `nodes` or `none` (None: full up to 1024 nodes, else nodes).
    `efficiency`: also compute how well different kinds of nodes are used (`vrm.ext.study.efficiency`). `watchers`
    observe each start and end (`Watcher`); an ordering that is a `Watcher` does so without being named here.
    `threshold`: minimum run time in seconds in the bounded slowdown. `warm_up` and `cool_down`: jobs submitted in the
    first and last seconds of this length are left out of the averages.
    """

    out: File | None = None
    places: str | None = None
    evalys: bool = False
    efficiency: bool = False
    watchers: Sequence[Watcher] = ()
    threshold: float = THRESHOLD
    warm_up: float = 0.0
    cool_down: float = 0.0

    def files(self, stack: ExitStack, workload: Any) -> list[TextIO | None]:
        """Open jobs.csv and evalys.csv, if requested, else None; the stack closes them. Raises OSError, and
        WorkloadError if the jobs of the workload, or of a live run, would be overwritten."""
        if self.out is None:
            return [None, None]
        directory = Path(self.out)
        if directory.is_file():
            raise WorkloadError(f"{directory} is a file; name a directory for the results")
        directory.mkdir(parents=True, exist_ok=True)
        jobs = directory / "jobs.csv"
        own = isinstance(workload, (str, Path)) and jobs.resolve() == Path(workload).resolve()
        if own or (directory / "journal").exists():
            raise WorkloadError(f"{jobs} is {'the workload' if own else 'that of a live run'} and would be "
                                "overwritten; write to another directory")
        return [stack.enter_context(open(directory / name, "w", 1 << 18, encoding="utf-8", errors="backslashreplace",
                                         newline="\n")) if wanted else None
                for name, wanted in (("jobs.csv", True), ("evalys.csv", self.evalys))]


PARTS: Mapping[str, Any] = {"rules": Rules, "measured": Measurements, "timetable": Timetable, "record": Recording,
                            "selection": Selection, "machine": Machine}
"""The classes of those parameters of `simulate` that are objects."""

FIELDS: Mapping[str, str] = {each.name: parameter for parameter in ("rules", "measured", "timetable", "record")
                             for each in fields(PARTS[parameter])} | {
    "keep_estimates": "selection", **dict.fromkeys(("nodes", "sockets", "cores", "licences"), "machine")}
"""For each field name that can be used without its class, the parameter of `simulate` that has this field."""


def by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `simulate`: field names such as `nodes`, `backfill` or `out` are collected into their
    objects, other names stay as they are. Raises WorkloadError if the nodes are given twice, and ConfigError for a
    machine file."""
    found = {name: value for name, value in given.items() if name not in FIELDS}
    flat: dict[str, dict[str, Any]] = {}
    for name in given.keys() - found.keys():
        flat.setdefault(FIELDS[name], {})[name] = given[name]
    if "machine" in flat:
        found["machine"] = _machine(found.get("machine"), **flat.pop("machine"))
    for parameter, values in flat.items():
        found[parameter] = replace(found.get(parameter) or PARTS[parameter](), **values)
    return found


def _machine(machine: File | Machine | None, nodes: Any = None, sockets: int = 1, cores: int = 1,
             licences: Mapping[str, float] | None = None) -> Machine:
    if machine is not None and nodes is not None:
        raise WorkloadError("a machine file says which nodes there are; give either that or nodes")
    if isinstance(nodes, int):
        return Machine.of(nodes, sockets, cores, licences)
    described = read_machine(machine)
    return Machine(tuple(nodes or described.nodes), described.licences or licences or {})


def read_machine(machine: File | Machine | None) -> Machine:
    """Return a machine, read from its file if it is a path. Raises ConfigError."""
    if isinstance(machine, Machine) or machine is None:
        return machine or Machine()
    from vrm.config.machine import read_machine as read  # its import takes a quarter of a second
    return read(machine)
