"""The command `vrm simulate`: its arguments, its output and its progress bar."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Callable, Sequence

from vrm.commands.parsing import Parser, command
from vrm.commands.shared import BOUND, count, factor
from vrm.system.printing.output import aligned, show

if TYPE_CHECKING:
    from vrm.model.reservation import ReservationRequest
    from vrm.simulation.outcome import Outcome

INTERRUPTED = 130

USUAL = ("--algorithm", "--backfill", "--policy", "--heatmap", "--estimates", "--nodes", "--sockets", "--cores",
         "--machine", "--jobs", "--out", "--json")
"""The options that most simulations use."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the program's; it has its own option `-c`."""
    parser = command(
        commands, "simulate", run, "run a workload in virtual time", [],
        "vrm simulate lublin:256:1000 --algorithm sjf --backfill easy --out runs/sjf\n"
        "vrm simulate trace.swf.gz --algorithm '(q/t)**3*n'",
        "The scheduler is that of live runs. Options override the configuration. Without nodes, "
        "a trace's header gives their number (processors count as nodes of one core).",
        usage="%(prog)s WORKLOAD [options]")
    parser.usual = USUAL
    parser.later = partial(_add_arguments, parser)


def _add_arguments(parser: Parser) -> None:
    """Add the arguments; those of the scheduling rules come from the table of their keys."""
    add = parser.add_argument
    add("workload", metavar="WORKLOAD",
        help="a trace in the Standard Workload Format, a dump of sacct, an accounting log of PBS, a CSV "
             "(each also .gz), a queue file, the jobs.csv of an earlier run, or "
             "lublin:PROCESSORS:JOBS[:SEED] for a synthetic one")
    add_choices(parser)
    parser.add_argument_group("reservations").add_argument(
        "--reservation", metavar="KEYS", action="append", default=[],
        help="keep nodes for some jobs: nodes=2,from=1h,to=3h,name=demo,jobs=3-5 "
             "(nodes: a number, or names as n[0-3]+n7; jobs: ids as 3-5+9; may be repeated)")
    workload = parser.add_argument_group("workload")
    add = workload.add_argument
    add("--first", metavar="ID", type=int, help="take jobs from this number on")
    add("--last", metavar="ID", type=int, help="take jobs up to this number")
    add("--begin", metavar="SECONDS", type=float, help="submissions from this time on")
    add("--end", metavar="SECONDS", type=float, help="submissions before this time")
    add("--jobs", metavar="N", type=count, help="at most N jobs")
    add("--load", metavar="FACTOR", type=factor, default=1.0,
        help="divide the times between submissions (2: twice the load)")
    add("--units", action="store_true",
        help="a row of n nodes is n equal parts; several may be on one node (default: n nodes)")
    add("--clean", action="store_true",
        help="drop cancelled jobs (status 5) and parts of checkpointed ones (2 to 4)")
    add("--keep-estimates", action="store_true",
        help="leave requested times below the run time as they are (default: raised to it)")
    results = parser.add_argument_group("results")
    add = results.add_argument
    add("--out", metavar="DIR", help="write jobs.csv and summary.json there")
    add("--places", choices=("full", "nodes", "none"),
        help="how much of a job's place jobs.csv has (default: full up to 1024 nodes)")
    add("--evalys", action="store_true", help="with --out: also evalys.csv, as Batsim writes it")
    add("--moments", action="store_true",
        help="with --out: also moments.csv, the queue and the cores in use after each event")
    add("--status", metavar="FILE",
        help="write the progress to FILE (JSON, replaced about once a second)")
    add("--swf", metavar="FILE", help="write the jobs that ran as a trace (SWF; .gz compresses), "
        "with the waits of this run")
    add("--efficiency", action="store_true",
        help="also how well nodes that differ are used: allocation efficiency and load by resource")
    add("--json", action="store_true", help="print one JSON object")
    add("--threshold", metavar="SECONDS", type=factor, default=BOUND,
        help="of the bounded slowdown (default: 10)")
    add("--warm-up", metavar="SECONDS", type=float, default=0.0,
        help="leave out of the averages what is submitted in the first seconds")
    add("--cool-down", metavar="SECONDS", type=float, default=0.0,
        help="and in the last seconds")


def add_choices(parser: Parser, sizes: Callable[[str], Any] = count) -> None:
    """Add the options of configuration, policy and machine, which `choices` reads. `sizes` parses --nodes."""
    from vrm.model.rules import KEYS, WORDS

    add = parser.add_argument
    add("-c", "--config", metavar="FILE", default=argparse.SUPPRESS,
        help="take algorithm, backfilling, policy, heatmap and geometry from a configuration")
    add("-config", dest="config", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    policies = parser.add_argument_group("policy")
    add = policies.add_argument
    types: dict[str, Any] = {"seconds": factor, "number": float, "share": float, "count": count}
    for name, key in KEYS.items():
        if key.kind == "queues":  # set in a configuration only
            continue
        option = f"--{name.replace('_', '-')}"
        if key.kind == "flag":
            add(option, action="store_const", const=True, help=key.help)
        else:
            add(option, metavar=key.metavar, type=types.get(key.kind, str), choices=WORDS.get(key.kind),
                help=key.help)
        if key.kind == "cap":
            add("--energy", metavar="FILE",
                help="what was measured of programs, as `vrm energy measure` writes it")
        if name == "estimates":
            add("--calibrated", metavar="FILE",
                help="for --estimates calibrated: run times, as `vrm calibrate` writes them")
            add("--history", metavar="DIR", action="append",
                help="an earlier run (its Log, or a jobs.csv), from which --estimates learns; may be "
                     "repeated")
        if name == "policy":
            add("--heatmap", metavar="FILE",
                help="for strip: ranks, or measured speed-ups (a table or a JSON pool)")
            add("--heatmap-rows", dest="rows_are", choices=("own", "partner"), default="own",
                help="of a table of speed-ups: whose speed the rows are (default: own)")
    machine = parser.add_argument_group("machine")
    one = sizes is count
    machine.add_argument("--nodes", metavar="N" if one else "N,N", type=sizes,
                         help="nodes" if one else "the numbers of nodes that are tried")
    machine.add_argument("--sockets", metavar="N", type=count, help="sockets per node")
    machine.add_argument("--cores", metavar="N", type=count, help="cores per socket")
    machine.add_argument("--machine", metavar="FILE",
                         help="a machine file, for nodes that differ (YAML; or AccaSim's JSON)")
    machine.add_argument("--system", dest="machine", help=argparse.SUPPRESS)  # as of vrm 0.1.0


def run(args: argparse.Namespace) -> int:
    """Carry out the command; return 0: done, 2: could not run, 130: interrupted (the ended jobs are written)."""
    from vrm.config.problems import ConfigError
    from vrm.simulation.library import described, simulate
    begun = time.perf_counter()
    bar = _Bar() if sys.stderr.isatty() else None
    try:
        given = _arguments(args)
        status = _Status(args.status, args.workload, bar) if args.status else None
        try:
            outcome = simulate(args.workload, progress=status or bar, **given)
        finally:
            if bar:
                bar.clear()
        report = {**described(args.workload, outcome), "seconds": time.perf_counter() - begun}
        _write(args, outcome)
        if status:
            status.ended(outcome)
    except (ConfigError, OSError, ValueError) as error:
        said = (f"{error.filename or args.swf or args.out}: {error.strerror}" if isinstance(error, OSError)
                else error)
        print(said if isinstance(error, ConfigError) else f"vrm simulate: {said}", file=sys.stderr)
        return 2
    report["jobs_per_second"] = report["jobs"] / report["seconds"]
    show(args.json, lambda: report, lambda: _table(report), indent=None)
    return INTERRUPTED if outcome.interrupted else 0


def _write(args: argparse.Namespace, outcome: Outcome) -> None:
    """Write the requested files other than jobs.csv. Raises WorkloadError if no job was left to run."""
    from vrm.simulation.inputs import WorkloadError
    from vrm.simulation.library import write_summary

    if not (outcome.interrupted or any(outcome.results.counts.values()) or outcome.summary["held"]):
        reasons = "".join(f"; {reason}: {number}" for reason, number in outcome.dirt.items())
        raise WorkloadError(f"{args.workload}: no job is left to run; check the limits "
                            f"(--first, --last, --begin, --end) and at the file{reasons}")
    if args.out is not None:
        write_summary(Path(args.out), args.workload, outcome)
        if args.moments:
            outcome.write_moments(Path(args.out) / "moments.csv")
    if args.swf is not None:
        outcome.write_swf(args.swf)


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `simulate` for these options. Raises like `choices`."""
    from vrm.simulation.arguments import Timetable
    from vrm.workload.swf import Selection

    if args.out is None and (args.evalys or args.places or args.moments):
        raise ValueError("--evalys, --places and --moments are about files; say where (--out DIR)")
    if args.swf is not None and Path(args.swf).resolve() == Path(args.workload).resolve():
        raise ValueError(f"{args.swf} is the workload and would be overwritten; write to another "
                         "file")
    selection = Selection(args.first, args.last, args.begin, args.end, args.load, args.clean, jobs=args.jobs,
                          units=args.units, keep_estimates=args.keep_estimates)
    return {**choices(args), "selection": selection,
            "timetable": Timetable(reservations=[reservation(text) for text in args.reservation])}


def choices(args: argparse.Namespace) -> dict[str, Any]:
    """Return arguments of `simulate`, except the selection and the timetable: from the options, else the
    configuration, else the defaults. Raises ValueError, and other errors of `simulate`, for options that exclude each
    other."""
    from vrm.model.rules import KEYS
    from vrm.simulation.arguments import FIELDS
    from vrm.simulation.library import choices_of

    if not 0 <= (args.min_throughput or 0) < math.inf:
        raise ValueError("--min-throughput is a number from 0 on")
    options = {name: value for name, value in vars(args).items()
               if value is not None and name in (FIELDS.keys() | {"machine"}) - {"end"}}  # --end is of the selection
    settings = None
    if getattr(args, "config", None) is not None:
        from vrm.config.schema import load  # its import takes as long as a short simulation
        settings = load(args.config)
    for name in (name for name, key in KEYS.items() if key.own):  # load the files of own policies
        if name in options:
            own(options[name], Path.cwd())
        elif settings is not None:
            own(str(getattr(settings.rules, name)), settings.base, settings.trust)
    if "power_cap" in options:
        from vrm.system import plugins
        reader = plugins.find("vrm.readers", "cap")  # without it the constraint is missing, too
        options["power_cap"] = plugins.load(reader)(args.power_cap, "") if reader is not None else args.power_cap
    if "machine" in options and options.keys() & {"nodes", "sockets", "cores"}:
        raise ValueError("--machine says which nodes there are; leave out --nodes, --sockets and --cores")
    sizes = {name for name in ("nodes", "sockets", "cores")
             if name in options or isinstance(getattr(settings, name, None), int)}
    if sizes and not (sizes | options.keys()) & {"nodes", "machine"}:
        raise ValueError("sockets and cores are those of a node; give the number of nodes, too "
                         "(--nodes N)")
    return choices_of(settings, **options)


def reservation(text: str) -> ReservationRequest:
    """Return the request of a text such as `nodes=2,from=1h,to=3h,name=demo,jobs=3-5`. Raises ValueError for other
    texts."""
    from vrm.model.quantities import numbers
    from vrm.model.reservation import ReservationRequest
    from vrm.model.quantities import seconds_of
    from vrm.model.forms.hosts import expand

    here = f"--reservation {text}"
    found: dict[str, str] = {}
    for key, _, value in (part.partition("=") for part in text.split(",")):
        if key not in ("nodes", "from", "to", "name", "jobs") or not value or key in found:
            raise ValueError(f"{here}: give nodes=, from=, to=, and if you like name= and jobs=, each "
                             "once, as nodes=2,from=1h,to=3h")
        found[key] = value
    missing = [key for key in ("nodes", "to") if key not in found]
    if missing:
        raise ValueError(f"{here}: {missing[0]}= is missing, as in nodes=2,from=1h,to=3h")
    try:
        nodes = found["nodes"]
        number = int(nodes) if nodes.isdecimal() else 0
        names = () if number else tuple(expand(nodes.replace("+", ",")))
        jobs = numbers(found["jobs"].replace("+", ",")) if "jobs" in found else ()
        return ReservationRequest(seconds_of(found.get("from", "0")), seconds_of(found["to"]), number, names,
                      found.get("name", ""), jobs)
    except ValueError as error:
        raise ValueError(f"{here}: `{error}` is not a time, a number or a list") from None


def own(text: str, directory: Path, trust: str = "own") -> None:
    """Load the file of a user's own policy from a directory, if it is there."""
    if ":" in text:  # other policies need no slow import
        from vrm.config.own_policies import load_own
        load_own(text, directory, trust)


class _Bar:
    """The progress bar on a terminal: simulated date, jobs done, jobs per second, time left."""

    WIDTH = 24

    def __init__(self) -> None:
        self._begun = self._shown = time.perf_counter()
        self._source: Any = None

    def __call__(self, now: float, ended: int, waiting: int) -> None:
        clock = time.perf_counter()
        if clock - self._shown < 0.2:
            return
        self._shown = clock
        passed = clock - self._begun
        share = getattr(self._source, "read", None)
        parts = [_moment(now, getattr(self._source, "unix_start", None)),
                 f"{ended} jobs done", f"{waiting} waiting", f"{ended / passed:.0f} jobs/s"]
        if share:
            filled = int(share * self.WIDTH)
            parts.insert(0, f"[{'#' * filled}{'.' * (self.WIDTH - filled)}]")
            parts.append(f"{passed / share - passed:.0f} s left")
        room = os.get_terminal_size(sys.stderr.fileno()).columns - 1  # a wrapped line could not be erased
        print("\r\x1b[K" + "  ".join(parts)[:room or None], end="", file=sys.stderr, flush=True)

    def watch(self, source: Any) -> None:
        """Use the workload `source` for the fraction done and the date."""
        self._source = source

    def clear(self) -> None:
        """Remove the bar."""
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class _Status:
    """Keeps a file with the progress of a simulation. It does not change the schedule."""

    EVERY = 1.0  # seconds

    def __init__(self, path: str, workload: str, bar: _Bar | None) -> None:
        self.path, self.workload, self.bar = path, workload, bar
        self._begun = time.perf_counter()
        self._written = -math.inf
        self._source: Any = None
        self._write({"now": None, "ended": 0, "waiting": 0})

    def __call__(self, now: float, ended: int, waiting: int) -> None:
        if self.bar:
            self.bar(now, ended, waiting)
        if time.perf_counter() - self._written >= self.EVERY:
            self._write({"now": now, "ended": ended, "waiting": waiting})

    def watch(self, source: Any) -> None:
        """Use the workload `source` for the fraction done."""
        self._source = source
        if self.bar:
            self.bar.watch(source)

    def ended(self, outcome: Any) -> None:
        """Write that the simulation is complete, or was interrupted."""
        summary = outcome.summary
        self._write({"now": None, "ended": summary["jobs"], "waiting": summary["held"]},
                    "interrupted" if outcome.interrupted else "complete")

    def _write(self, values: dict[str, Any], state: str = "running") -> None:
        from vrm.system.files import write_atomically

        self._written = time.perf_counter()
        write_atomically(Path(self.path), json.dumps({
            "state": state, "workload": self.workload, **values,
            "share": getattr(self._source, "read", None), "seconds": self._written - self._begun,
            "pid": os.getpid()}) + "\n")


def _moment(now: float, unix_start: int | None) -> str:
    if unix_start is None:
        return f"day {int(now // 86400)}"
    return datetime.fromtimestamp(unix_start + now, timezone.utc).strftime("%Y-%m-%d")


def _classes(classes: Sequence[dict[str, Any]]) -> str:
    """Return in short what the node classes have besides their cores."""
    from vrm.model.machine import holdings
    named = (f"{one['nodes']} with {what}" for one in classes
             if (what := holdings(one["resources"], one["features"])))
    return "".join(f"; {each}" for each in named)


def _by_resource(values: dict[str, float]) -> str:
    """Return `0.412 in all (cores 0.511, gpu 0.250)`; `-` if there is no value."""
    parts = [f"{name} {value:.3f}" for name, value in values.items() if name != "all"]
    return f"{values['all']:.3f} in all ({', '.join(parts)})" if "all" in values else "-"


def _every(report: dict[str, Any]) -> str:
    """Return how often the scheduler decides, if not at every event; else ""."""
    if "interval" not in report:
        return ""
    limit = report["starts_per_interval"]
    return f", deciding every {report['interval']:g} s" + (
        f" ({limit} start{'s' * (limit > 1)} of the queue's head)" if limit else "")


def _table(report: dict[str, Any]) -> str:
    from vrm.model.rules import Rules
    from vrm.results.names import policy_name, time_text, unit_of, unmatched_text
    from vrm.scheduling.placement.parts import counted
    machine = report["machine"]
    rules = Rules.read(report)
    further = rules.words(name for name in rules.changed()
                          if name not in ("interval", "starts_per_interval", "node_order"))
    order = f" ({report['node_order']})" if "node_order" in report else ""
    lines: list[tuple[str, str]] = [
        ("machine", f"{counted(machine['nodes'], 'node')}, {counted(machine['all_cores'], 'core')}"
                    + _classes(machine.get("classes", ()))),
        ("policy", f"{policy_name(report['algorithm'], report['backfilling'])}, "
                   + ", ".join([f"{report['policy']}{order}{_every(report)}", *further])),
        ("jobs", f"{report['jobs']} ({report['backfilled']} backfilled, {report['timeout']} "
                 f"killed, {report['refused']} refused)")]
    if report["cancelled"]:
        lines.append(("cancelled", f"{report['cancelled']} jobs, which depend on others that were "
                                   "killed, refused or cancelled"))
    if report["held"]:
        lines.append(("held", f"{report['held']} jobs never ran: they, or jobs they depend on, are "
                              "held"))
    lines += [(f"{reason}", counted(number, "row")) for reason, number in report["dirt"].items()]
    lines += [("refused", f"{counted(number, 'job')}: {reason}")
              for reason, number in list(report["refusals"].items())[:5]]
    lines += [("not measured", text) for text in unmatched_text(report.get("unmatched_speeds", {}))]
    if "energy" in report:
        at = f", {report['average_frequency']:.2f} GHz" if "average_frequency" in report else ""
        unknown = report["jobs_of_unknown_power"]
        lines.append(("energy", f"{report['energy'] / 1e6:.3f} MJ, {report['mean_power']:.0f} W on average, "
                                f"at most {report['highest_power']:.0f} W{at}"
                                + f"; nothing is known of {unknown} jobs" * bool(unknown)))
    lines += [
        ("makespan", f"{report['makespan']:.0f} s" + (
            f" ({time_text(report['makespan'])})" if report["makespan"] >= 600 else "")),
        ("utilisation", f"{report['utilisation']:.4f}"),
        ("loss of capacity", f"{report['loss_of_capacity']:.4f}"),
        ("throughput", f"{report['throughput_per_hour']:.2f} jobs/h")]
    if "load" in report:
        over_time = report["allocation_efficiency_over_time"]
        lines += [("load", _by_resource(report["load"])),
                  ("allocation efficiency", _by_resource(over_time))]
    text = [aligned(lines)]
    text.append(f"\n{'':<32}{'mean':>14}{'median':>14}{'95 %':>14}{'max':>14}")
    for name in ("wait", "running", "turnaround", "slowdown", "bounded_slowdown",
                 "per_processor_bounded_slowdown", "queue_length", "allocation_efficiency"):
        if name not in report:
            continue
        values = report[name]
        unit, scale = "", 1.0
        if name in ("wait", "running", "turnaround"):
            unit, scale = unit_of([report["turnaround"]["mean"]])
        cells = "".join(f"{'-' if values[key] is None else format(values[key] / scale, '.2f'):>14}"
                        for key in ("mean", "median", "p95", "maximum"))
        text.append(f"{name.replace('_', ' ') + (f' [{unit}]' if unit else ''):<32}{cells}")
    if "recorded" in report:
        unit, scale = unit_of([report["turnaround"]["mean"]])
        text.append(f"{f'really waited [{unit}]':<32}{report['recorded']['average_wait'] / scale:>14.2f}"
                    f"   {report['recorded']['jobs']} jobs, by the log")
    text.append(f"\n{report['jobs_per_second']:.0f} jobs/s, {report['seconds']:.2f} s; bounded "
                f"slowdown over {report['method']['bounded_slowdown_threshold']:g} s; schedule "
                f"{report['start_hash']}")
    if report["interrupted"]:
        text.append("interrupted: these are the jobs that had ended")
    return "\n".join(text)
