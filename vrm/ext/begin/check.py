"""`vrm check`: checks a configuration with its queue, and reports what can never run, and why, before anything runs.

It starts nothing and changes nothing. A line of the queue is checked as the manager would check it: with the same
readers, programs, trust and placement.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.config.machine import read_machine
from vrm.config.policies import job_of, make_scheduler, one_node_remedy
from vrm.config.problems import ConfigError
from vrm.config.schema import NO_CONFIG, Settings, load
from vrm.live.batch.allocation import find_allocation
from vrm.live.batch.base import AllocationError
from vrm.live.batch.login import login_node
from vrm.live.launch.base import Launcher, LaunchError, make_launcher
from vrm.live.nodes.geometry import cluster_geometry
from vrm.live.nodes.topology import TopologyError
from vrm.live.site.classes import declared
from vrm.ext.begin.diagnosis import Finding, ask_nodes, faulty
from vrm.live.site.gpu_orders import stand_ins
from vrm.live.site.programs import WantedProgram, program_fault
from vrm.live.site.capacity import WholeNodes
from vrm.live.site.setup import describe, distrusted, judges, whole_nodes
from vrm.model import Cluster, Job, Node
from vrm.model.job import resolved
from vrm.scheduling import Scheduler
from vrm.scheduling.placement.spread import stranger
from vrm.system.trust import distrust
from vrm.ext.measured.estimates import EstimateError, read_estimates
from vrm.workload.queue_follower import Line, QueueFollower
from vrm.workload.grammar import LineError, QueueLine
from vrm.ext.generate.npb import allows, rule

MOST_SHOWN = 20
"""Lines of the queue that are shown with the same kind of error; further ones are only counted."""

Size = str | int


@dataclass
class CheckReport:
    """The findings. `usable`: a manager could start with this configuration; `lines`: number of lines of the queue
    with jobs; `never`: number of those that can never run."""

    findings: list[Finding]
    usable: bool = True
    lines: int = 0
    never: int = 0

    def add(self, level: str, what: str, text: str, fix: str = "") -> None:
        """Add one finding."""
        self.findings.append(Finding(level, what, text, fix))


def check(config: str | None, env: Mapping[str, str], estimates: str | None = None,
          sizes: dict[str, Size] | None = None, machine: str | None = None) -> CheckReport:
    """Check a configuration (None: every key's default) and its queue.

    `estimates` is a table of `vrm calibrate` to compare the queue with. `sizes` (nodes, sockets, cores) describe
    another machine than this one; so does a `machine` file.
    """
    report = CheckReport([])
    try:
        settings = load(config)
        problems = settings.check_files() or distrusted(settings)
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        return _unusable(report, error)
    report.add("ok", "config", config or NO_CONFIG)
    known = None
    if estimates is not None:
        try:
            known = read_estimates(estimates)[0]
        except EstimateError as error:
            report.usable = False
            report.add("wrong", "estimates", str(error))
            return report
    whole = None
    try:
        if machine is None:
            cluster, whole = _cluster(settings, env, sizes or {}, report)
        else:
            cluster = _described(settings, machine, report)
    except ConfigError as error:
        return _unusable(report, error)
    launcher = _launcher(settings, report)
    if cluster is None:
        return report
    try:
        scheduler = make_scheduler(settings, cluster)
    except ConfigError as error:
        return _unusable(report, error)
    on = judges(settings, settings.rules, scheduler)
    _queue(settings, scheduler, cluster.nodes, launcher, known, report,
           (lambda job: whole.remedy(job, on)) if whole else lambda job: "")
    return report


def _unusable(report: CheckReport, error: ConfigError) -> CheckReport:
    report.findings = [each for each in faulty(report.findings, error.problems)
                       if (each.level, each.what) != ("ok", "nodes")]  # that finding names the policies
    report.usable = False
    return report


def _cluster(settings: Settings, env: Mapping[str, str], sizes: dict[str, Size], report: CheckReport
             ) -> tuple[Cluster | None, WholeNodes | None]:
    """Return the cluster that jobs would have (None: it cannot be found out), and its nodes with all of their cores if
    the surrounding batch job has fewer."""
    try:
        allocation = find_allocation(env, settings.hosts.file)
        found, failed = ask_nodes(allocation, settings)
        own = {name: sizes.get(name, getattr(settings, name))
               for name in ("nodes", "sockets", "cores")}
        alone = allocation.kind == "machine"
        described = bool(sizes) or (alone and not settings.emulate and "auto" not in own.values())
        shape = cluster_geometry(allocation.hosts, found, own["nodes"], own["sockets"],
                                 own["cores"], settings.emulate or described, allocation.cores,
                                 failed, {host: share.memory for host, share in
                                          allocation.shares.items()}, stand_ins(env), described,
                                 threads=settings.threads)
    except (AllocationError, TopologyError) as error:
        report.usable = False
        report.add("wrong", "nodes", str(error))
        return None, None
    emulated = shape.emulated and settings.emulate
    nodes, told = declared(settings, shape.nodes)
    report.add("ok", "nodes", describe(settings, nodes, emulated))
    for warning in (*shape.warnings, *told):
        report.add("note", "nodes", warning)
    if shape.emulated and not settings.emulate and not sizes:
        report.add("note", "nodes", "this machine is smaller than the configuration says: checked "
                   "as configured", "run vrm there, in a batch job: `vrm script` writes one")
    elif alone and not sizes and login_node(env):
        report.add("note", "nodes", "checked for this machine alone, outside of a batch job",
                   "for 4 nodes: vrm check --nodes 4 (--sockets and --cores, if they differ)")
    return Cluster(nodes, settings.licences), None if sizes else whole_nodes(settings, shape, env)


def _described(settings: Settings, machine: str, report: CheckReport) -> Cluster:
    """Return the cluster of a machine file; raises ConfigError."""
    found = read_machine(machine)
    report.add("ok", "nodes", f"{describe(settings, found.nodes, False)} ({machine})")
    return Cluster(found.nodes, found.licences)


def _launcher(settings: Settings, report: CheckReport) -> Launcher | None:
    """Return the launcher; None if there is none."""
    try:
        launcher = make_launcher(settings.launcher)
    except LaunchError as error:
        report.usable = False
        report.add("wrong", "MPI", str(error))
        return None
    report.add("ok", "MPI", ", ".join(filter(None, (launcher.mpirun, launcher.version_text))))
    return launcher


def _queue(settings: Settings, scheduler: Scheduler, nodes: Sequence[Node], launcher: Launcher | None,
           known: Mapping[Any, Any] | None, report: CheckReport, remedy: Callable[[Job], str]) -> None:
    """Check every line of the queue."""
    path = settings.applications.queue
    if not path.exists():
        report.add("note", "queue", f"{path} does not exist yet; a manager waits for it")
        return
    reason = distrust(path, settings.trust)
    if reason:
        report.usable = False
        report.add("wrong", "queue", reason)
        return
    follower = QueueFollower(path)
    follower.finish()
    lines = follower.read_new()
    if follower.trouble:
        report.usable = False
        report.add("wrong", "queue", follower.trouble)
        return
    LineChecker(settings, scheduler, nodes, launcher, known, report, remedy).judge(lines)
    if not lines:
        report.add("note", "queue", f"{path} names no job yet; a job is for example `cg.A.x 4 60 0` "
                   "(program, ranks, estimated seconds, exclusive)")
    elif not report.never:
        report.add("ok", "queue", f"{path}: all {report.lines} line(s) can run")


def _missing(job: Job, indices: Sequence[int]) -> str:
    """Return which directories of a job or an array do not exist; "" if all do."""
    if not job.payload.directory:
        return ""
    places = dict.fromkeys(job.payload.own(index).directory for index in indices or (None,))
    missing = [place for place in places if not os.path.isdir(place)]
    more = f" and {len(missing) - 1} more of {len(places)}" if len(missing) > 1 else ""
    return f"dir: {missing[0]}{more}: no such directory; make it first" if missing else ""


class LineChecker:
    """Checks the lines of a queue one after the other, as a manager would at its start."""

    def __init__(self, settings: Settings, scheduler: Scheduler, nodes: Sequence[Node], launcher: Launcher | None,
                 known: Mapping[Any, Any] | None, report: CheckReport, remedy: Callable[[Job], str]) -> None:
        """`remedy` returns advice for a job that does not fit."""
        self.settings = settings
        self.scheduler = scheduler
        self.nodes = nodes
        self.launcher = launcher
        self.known = known
        self.report = report
        self.remedy = remedy
        self._next_id = 0
        self._named: dict[str, list[int]] = {}
        self._shown: dict[str, int] = {}
        self._warned: set[tuple[str, ...]] = set()
        self._program: Callable[[WantedProgram], str] = lru_cache(maxsize=None)(self._program_fault)

    def judge(self, lines: list[Line]) -> None:
        """Check all lines and report what is wrong."""
        name = self.settings.applications.queue.name
        for line in lines:
            self.report.lines += 1
            place = f"{name}:{line.number}"
            if isinstance(line.parsed, LineError):
                self._next_id += line.parsed.jobs
                self._never(place, "", str(line.parsed))
                continue
            wanted = line.parsed
            reason = self._fault(wanted)
            what = f"{wanted.app} {wanted.procs}"
            if reason:
                self._never(place, what, reason)
            else:
                self._notes(place, wanted)
            ids = range(self._next_id, self._next_id + len(wanted.fields.get("array", (None,))))
            if wanted.fields.get("name"):
                self._named.setdefault(wanted.fields["name"], []).extend(ids)
            self._next_id = ids[-1] + 1
        hidden = sum(max(0, count - MOST_SHOWN) for count in self._shown.values())
        if hidden:
            self.report.add("wrong", "queue", f"... and {hidden} more lines that can never run")

    def _never(self, place: str, what: str, reason: str) -> None:
        self.report.never += 1
        self._shown["never"] = self._shown.get("never", 0) + 1
        if self._shown["never"] <= MOST_SHOWN:
            self.report.add("wrong", place, f"{what}: {reason}" if what else reason)

    def _fault(self, wanted: QueueLine) -> str:
        """Return why a job can never run; "" if it can."""
        fields = wanted.fields
        values = wanted.values_at(self.settings.applications.queue.parent)
        reason = next(filter(None, map(self._program, WantedProgram.named(values))), "")
        if reason:
            return reason
        try:
            job, _ = job_of(self.settings, {**values, "after": ()}, self._next_id, 0.0)
            for dependency in resolved(fields.get("after", ()), self._named):
                if dependency.ids[-1] >= self._next_id:
                    return (f"after={dependency} is not a job before this one, which is job "
                            f"{self._next_id}")
        except ValueError as unknown:
            return str(unknown)
        missing = "" if fields.get("after") else _missing(job, fields.get("array", ()))
        if missing:
            return missing
        never = self.scheduler.lacks(job)
        if never:
            return never + self.remedy(job) + one_node_remedy(self.settings, job, self.scheduler.lacks)
        strange = stranger(job.request.exclude, self.nodes)
        if strange:
            return strange
        nodes = self.scheduler.policy.nodes(job)
        if self.launcher is not None and not self.launcher.several_nodes and nodes > 1:
            return (f"it needs {nodes} nodes, and Launcher.Kind: {self.launcher.kind} starts one process on one "
                    "node; ask for fewer ranks, or set the Kind of an MPI")
        end = self.settings.end
        if isinstance(end.at, float) and end.fit and wanted.seconds > end.at - end.margin:
            return (f"its estimate of {wanted.seconds:g} s is longer than the allocation: End.At "
                    f"{end.at:g} s less a Margin of {end.margin:g} s")
        return ""

    def _program_fault(self, wanted: WantedProgram) -> str:
        return program_fault(self.settings.applications, wanted, self.settings.trust)

    def _notes(self, place: str, wanted: QueueLine) -> None:
        """Report what may go wrong with a job that can run, once for each program."""
        for program in wanted.fields.get("coupled", ()):
            self._of_program(place, program.app, program.request.tasks)
        if "coupled" in wanted.fields:
            return
        self._of_program(place, wanted.app, wanted.procs)
        if self.known is not None:
            measured = self.known.get((wanted.app, wanted.procs))
            if measured is None:
                self._note(place, ("unknown", wanted.app, str(wanted.procs)),
                           f"{wanted.app} on {wanted.procs} rank(s) is not in the estimates",
                           f"vrm calibrate --apps '{wanted.app}' --ranks {wanted.procs}")
            elif measured.seconds > wanted.seconds:
                ended = "; Walltime: kill would end it" * (self.settings.rules.kill)
                self._note(place, ("short", wanted.app, str(wanted.procs)),
                           f"{wanted.app} on {wanted.procs} rank(s) took {measured.seconds:.0f} s, "
                           f"its estimate is {wanted.seconds:g} s{ended}")

    def _of_program(self, place: str, app: str, ranks: int) -> None:
        """Report what may go wrong with a program on this number of ranks, alongside any other jobs."""
        if not allows(app, ranks):
            self._note(place, ("ranks", app, str(ranks)),
                       f"{app} is a NAS benchmark by its name and runs on "
                       f"{rule(app)}, not on {ranks} ranks")
        heatmap = self.scheduler.policy.heatmap
        if heatmap is not None and heatmap.missing([app]):
            self._note(place, ("heatmap", app),
                       f"{app} is not in the heatmap; it counts as an average partner",
                       f"vrm heatmap measure --apps '{app}' --out "
                       f"{self.settings.applications.heatmap}")

    def _note(self, place: str, key: tuple[str, ...], text: str, fix: str = "") -> None:
        if key not in self._warned:
            self._warned.add(key)
            self.report.add("note", place, text, fix)
