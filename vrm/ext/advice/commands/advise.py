"""`vrm advise`: reports which rules would serve the jobs better."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrm.commands.parsing import Parser, command
from vrm.commands.shared import CannotRun, count, counts, default_config, run_of, seconds, settings_of, tell, words
from vrm.system.printing.output import boxed, show

if TYPE_CHECKING:
    from vrm.ext.advice.advice import Advice, Choice
    from vrm.ext.forecast.frozen import FrozenRun
    from vrm.model.measured.heatmap import Heatmap
    from vrm.model.rules import Rules

REPLY_SECONDS = 10.0


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the argument parser."""
    parser = command(
        commands, "advise", advise, "say which rules would serve the jobs better", [],
        "vrm advise\nvrm advise my.queue --nodes 8 --sockets 2 --cores 4 --history runs/before\n"
        "vrm advise --apply makespan",
        "Without a QUEUE: of the run of the configuration, as it is now. With one: before it is run, with "
        "the options of `vrm simulate`. Each combination of an order, a backfilling and a placement is "
        "replayed under the same draws of how long the jobs take, from jobs that have ended.",
        usage="%(prog)s [QUEUE] [options]")
    parser.usual = ("--sizes", "--objective", "--apply", "--all", "--json", "--walltime", "--orders", "--dispatchers",
                    "--placements", "--history", "--nodes", "--sockets", "--cores")
    parser.later = partial(_add_arguments, parser)


def _add_arguments(parser: Parser) -> None:
    from vrm.commands.simulate import add_choices

    parser.add_argument("queue", metavar="QUEUE", nargs="?",
                        help="a queue file, or any other workload of `vrm simulate`")
    compared = parser.add_argument_group("what is compared")
    add = compared.add_argument
    add("--orders", metavar="A,B", type=words, default=(),
        help="these orders (default: FCFS, SAF, LJF, SJF, LAF, WFP3)")
    add("--dispatchers", metavar="A,B", type=words, default=(),
        help="these backfillings, such as none,conservative,easy/SAF (SAF: backfilled first)")
    add("--placements", metavar="A,B", type=words, default=(),
        help="these placements, such as compact,strip,pack/best-fit (default: today's; with measured "
             "speed-ups compact and strip, too)")
    add("--most", metavar="N", type=count, help="at most N combinations (default: 12)")
    add("--members", metavar="N", type=count, help="draws (default: 50)")
    add("--walltime", metavar="TIME", type=seconds,
        help="with a QUEUE, or with --sizes: the allocation ends after this time")
    add("--sizes", metavar="N,N", nargs="?", type=counts, const=(),
        help="say how large an allocation to ask for: replay the queue on machines of N nodes (default: half "
             "as many as now, as many, and twice as many)")
    shown = parser.add_argument_group("results")
    add = shown.add_argument
    add("--all", action="store_true", help="also print what each combination gives")
    add("--json", action="store_true", help="print one JSON object")
    add("--objective", metavar="NAME", help="print the advice for one objective alone: makespan, wait, slowdown, "
        "longest, fits, or energy (where programs were measured: docs/how-to/energy.md)")
    add("--apply", metavar="N|OBJECTIVE", nargs="?", const="",
        help="change the rules of the running manager: to combination N, or to the best for makespan, "
             "wait, slowdown, longest, fits or energy (default: Scheduling.Objective)")
    add_choices(parser)


LARGE = 200_000
"""Number of replayed jobs from which it takes so many seconds that the command says what it does."""


class AdviceInput:
    """The subject of advice: a run, its rules, and the heatmap."""

    def __init__(self, frozen: FrozenRun, rules: Rules, heatmap: Heatmap | None) -> None:
        self.frozen = frozen
        self.rules = rules
        self.heatmap = heatmap


def advise(arguments: argparse.Namespace) -> int:
    """Print advice, and apply it on request. Return 0, or 1 if there is nothing to apply. Raises CannotRun (exit status
    2) if advice is not possible."""
    if arguments.sizes is not None:
        from vrm.ext.advice.commands.whatif import whatif
        arguments.nodes = arguments.sizes or arguments.nodes
        return whatif(arguments)
    from vrm.ext.advice import advice
    from vrm.ext.forecast.parallel import processes_for

    take_queue(arguments)
    _check(arguments)
    case = planned(arguments) if arguments.queue is not None else running(arguments)
    frozen, today = advice.without_plans(case.frozen, case.rules, case.heatmap)
    if today != case.rules:
        tell("note: cp is too slow to be replayed this often; easy is used instead")
    load_named(arguments)
    rules = advice.combinations(
        today, case.heatmap, frozen.speedups is not None, arguments.orders, arguments.dispatchers,
        arguments.placements, arguments.most or advice.MOST,
        bool(frozen.state.cluster.programs))
    members = arguments.members or advice.MEMBERS
    jobs = len(frozen.later) + len(frozen.waiting())
    if not jobs:
        raise CannotRun("no job waits: there is nothing to advise")
    work = len(rules) * members * jobs
    if work > LARGE:
        tell(f"replaying {jobs} jobs {len(rules) * members} times; `--members 10` is faster")
    found = advice.advise(frozen, rules, case.heatmap, members, processes_for(work))
    if arguments.objective is not None:
        found = _of_objective(found, arguments.objective)
    waste = _waste(arguments)
    show(arguments.json, lambda: {**found.record(), "waste": waste},
         lambda: "\n".join([text(found, arguments.all), *(["", "what jobs wasted (vrm efficiency):"] if waste else []),
                            *(f"  {line}" for line in waste)]), indent=None)
    return 0 if arguments.apply is None else apply(arguments, found)


def _waste(arguments: argparse.Namespace) -> list[str]:
    """Return a line for each program whose jobs wasted most, in the run of the configuration."""
    from vrm.ext.learning.waste import by_program, use_of
    from vrm.results.job_columns import JobFileError
    from vrm.results.jobs import read_jobs

    if arguments.queue is not None and getattr(arguments, "config", None) is None:
        return []
    try:
        uses = [use_of(row) for row in read_jobs(run_of(arguments).jobs)]
    except (OSError, JobFileError):
        return []
    return by_program(use for use in uses if use is not None)


def _check(arguments: argparse.Namespace) -> None:
    """Raise CannotRun for options that do not fit together, and for unknown objectives."""
    from vrm.ext.advice import advice

    wish = arguments.apply
    if wish is not None and arguments.queue is not None:
        raise CannotRun("--apply changes a running manager: leave out QUEUE, and start a manager with `vrm run`")
    if wish and not wish.isdigit() and wish not in advice.OBJECTIVES:
        raise CannotRun(f"--apply {wish}: give the number of a combination, or one of "
                        f"{', '.join(advice.OBJECTIVES)}")
    if arguments.objective is not None and arguments.objective not in advice.OBJECTIVES:
        raise CannotRun(f"--objective {arguments.objective}: give one of {', '.join(advice.OBJECTIVES)}")


def _of_objective(found: Advice, objective: str) -> Advice:
    """Return the advice for one objective only."""
    shown = tuple(each for each in found.choices if each.objective == objective)
    if not shown:
        raise CannotRun("the energy of these jobs is not known: measure programs, and name the file (Energy: "
                        "{Database: FILE}, or --energy FILE)" if objective == "energy" else
                        "the end of the allocation is not known")
    return replace(found, choices=shown)


# --------------------------------------------------------------------------- the run or queue

_OF_A_QUEUE = ("machine", "nodes", "sockets", "cores", "heatmap", "calibrated", "history", "energy", "walltime")
"""Options that are only for a QUEUE, besides the keys of `Rules`."""


def load_named(arguments: argparse.Namespace) -> None:
    """Load the files of the user's own policies to compare: from the working directory, or from the directory of a
    run's configuration. Raises CannotRun for unknown orders and backfillings."""
    from vrm.commands.simulate import own
    from vrm.scheduling import make_backfilling, make_ordering

    named = [part for text in (*arguments.orders, *arguments.dispatchers, *arguments.placements)
             for part in text.split("/")]
    directory, trust = Path.cwd(), "own"
    if arguments.queue is None:
        settings = settings_of(arguments)
        directory, trust = settings.base, settings.trust
    for text in named:
        own(text, directory, trust)
    for text in arguments.orders:
        make_ordering(text)
    for text in arguments.dispatchers:
        dispatcher, _, by = text.partition("/")
        make_backfilling(dispatcher, by or "queue")


def take_queue(arguments: argparse.Namespace) -> None:
    """Set the queue to the configuration's queue file, if no queue is named and the run has not begun or is
    finished."""
    from vrm.run.rundir import RunDirectory

    config = getattr(arguments, "config", default_config())
    if arguments.queue is not None or config is None:
        return
    settings = settings_of(arguments)
    queue, journal = settings.applications.queue, RunDirectory.of(settings).journal
    if queue.is_file() and (not journal.exists() or _finished(journal)):
        arguments.queue, arguments.config = str(queue), config
        if settings.nodes == "auto" and not (arguments.nodes or arguments.machine):
            arguments.nodes, arguments.sockets, arguments.cores = _shape(RunDirectory.of(settings).state)


def _finished(journal: Path) -> bool:
    """Return whether the run that wrote this journal has ended."""
    from vrm.run.journal import files as journals
    from vrm.run.journal.history import replay

    try:
        return replay(journals.records(journal)).finished
    except ValueError:
        return False  # the manager reports what is wrong with it


def _shape(file: Path) -> tuple[int | None, int | None, int | None]:
    """Return the number of nodes, of sockets per node and of cores per socket: of the finished run of a state file,
    otherwise of this machine. All None if the nodes differ."""
    from vrm.live.nodes.topology import TopologyError, read_topology
    from vrm.results.state import read

    try:
        shapes = [[len(socket) for socket in node["sockets"]] for node in read(file)["nodes"]] if file.exists() else [
            list(read_topology().node.sockets)]
    except (ValueError, TopologyError):
        return None, None, None
    if {tuple(shape) for shape in shapes} != {(shapes[0][0],) * len(shapes[0])}:
        return None, None, None
    return len(shapes), len(shapes[0]), shapes[0][0]


def planned(arguments: argparse.Namespace) -> AdviceInput:
    """Return the case of a queue that has not begun."""
    from vrm.ext.advice.planned_run import plan
    found = made(arguments, plan)
    return AdviceInput(found.frozen, found.rules, found.heatmap)


def made(arguments: argparse.Namespace, make: Any) -> Any:
    """Call `make` with the options of the command line. Raises CannotRun if they are wrong."""
    from vrm.commands.simulate import choices

    try:
        chosen = choices(arguments)
        if not chosen["measured"].history:
            chosen["measured"] = replace(chosen["measured"], history=earlier(arguments))
        return make(arguments.queue, end=arguments.walltime or math.inf, **chosen)
    except ValueError as error:
        raise CannotRun(str(error)) from error


def earlier(arguments: argparse.Namespace) -> list[Path]:
    """Return the jobs.csv of the run of a configuration, if one is named."""
    if getattr(arguments, "config", None) is None:
        return []
    file = run_of(arguments).jobs
    return [file] if file.exists() else []


def running(arguments: argparse.Namespace) -> AdviceInput:
    """Return the case of the configuration's run, with or without a manager."""
    from vrm.ext.forecast.files import RunFiles
    from vrm.model.rules import KEYS

    for name in (*KEYS, *_OF_A_QUEUE):
        if getattr(arguments, name, None):
            raise CannotRun(f"--{name.replace('_', '-')} is for a QUEUE; the run of the configuration has "
                            "its own. Name its queue file to try something else")
    settings = settings_of(arguments)
    files = RunFiles(settings)
    files.read_new()
    os.nice(10)  # jobs may run on these cores
    frozen = files.frozen(files.told())
    return AdviceInput(frozen, as_it_is(files.rules), frozen.run.scheduler.policy.heatmap)


def as_it_is(rules: Rules) -> Rules:
    """Return the rules by which jobs are started: `advised` without a choice yet is FCFS."""
    from vrm.scheduling.orderings.ordering import ADVISED
    return replace(rules, algorithm="FCFS") if rules.algorithm.lower() == ADVISED else rules


# ------------------------------------------------------------------------------------------- apply

def apply(arguments: argparse.Namespace, found: Advice) -> int:
    """Change the rules of the running manager; return 0 if that was done, otherwise 1."""
    from vrm.commands.job import ask
    from vrm.ext.advice.advice import reason

    wish = arguments.apply or settings_of(arguments).extended("Scheduling.Objective")
    if wish.isdigit():
        number = int(wish)
        if number >= len(found.combinations):
            raise CannotRun(f"--apply {number}: the combinations are 0 to {len(found.combinations) - 1}")
        chosen, why = found.combinations[number], "asked for by its number"
    elif wish not in {each.objective for each in found.choices}:
        raise CannotRun(f"--apply {wish}: the end of the allocation is not known")
    else:
        choice = found.choice(wish)
        chosen, why = found.combinations[choice.best], reason(found, choice)
        if not choice.change:
            print(f"not applied: {why}")
            return 1
    return ask(settings_of(arguments), {"do": "rules", "rules": chosen.rules.changes(), "reason": why})


# -------------------------------------------------------------------------------------------- text

def text(found: Advice, every: bool) -> str:
    """Return the advice as text."""
    from vrm.ext.advice.advice import OBJECTIVES

    rows = []
    for choice in found.choices:
        best = found.combinations[choice.best]
        rows.append([OBJECTIVES[choice.objective].words, choice.best,
                     best.name if choice.clear else f"no clear winner ({best.name})",
                     spread_text(choice.objective, best.gives[choice.objective]),
                     f"{100 * choice.confidence:.0f} %", _today(choice)])
    lines = [_head(found), "", boxed(["for", "no.", "best rules", "P50 (P10 to P90)", "sure", "today's rules"], rows)]
    lines += [line for line in (_price(found, choice) for choice in found.choices) if line]
    if every:
        lines += ["", boxed(["no.", "rules", *(OBJECTIVES[each.objective].words for each in found.choices)], [
            [number, each.name, *(spread_text(choice.objective, each.gives[choice.objective])
                                  for choice in found.choices)] for number, each in enumerate(found.combinations)])]
    lines += [f"left out: {name}: {why}" for name, why in found.left_out.items()]
    lines.append(found.ranges)
    return "\n".join(lines)


def _head(found: Advice) -> str:
    return (f"{found.jobs} jobs, now under {found.combinations[0].name}; {found.members} draws "
            f"{found.drawn}. Sure: the share of draws in which the rules are the best, or within 2 % of it.")


def spread_text(objective: str, spread: Any) -> str:
    """Return P50 and the range, with the unit."""
    from vrm.ext.advice.advice import OBJECTIVES
    from vrm.results.names import digits, unit_of

    unit = OBJECTIVES[objective].unit
    if unit == "s":
        scale = unit_of([spread.p50])
        return (f"{scale.text(spread.p50)} {scale.name} ({scale.text(spread.p10)} to "
                f"{scale.text(spread.p90)})")
    if unit == "kJ":
        size, name = next((each for each in ((1e6, "GJ"), (1e3, "MJ")) if spread.p50 >= each[0]), (1.0, unit))
        return f"{spread.p50 / size:.3g} {name} ({spread.p10 / size:.3g} to {spread.p90 / size:.3g})"
    if unit:
        return f"{spread.p50:.0f} ({spread.p10:.0f} to {spread.p90:.0f})"
    return f"{digits(spread.p50)} ({digits(spread.p10)} to {digits(spread.p90)})"


def _today(choice: Choice) -> str:
    """Return how today's rules compare with the best."""
    if choice.best == 0:
        return "are these"
    if choice.regret <= 0.02:
        return "as good"
    if choice.regret == math.inf:
        return "worse"
    return (f"{100 * choice.regret:.0f} % worse" if choice.regret < 2 else
            f"{choice.regret + 1:.1f} times as much")


def changes(price: dict[str, float]) -> list[str]:
    """Return texts on the changes of objectives, such as `makespan +9 %`."""
    from vrm.ext.advice.advice import OBJECTIVES
    said: list[tuple[str, float]] = [(OBJECTIVES[name].words, value) for name, value in price.items()]
    return [f"{words} {'more than 0' if value == math.inf else change(value)}" for words, value in said]


def change(value: float) -> str:
    """Return a change as `+40 %`, or as `4.7 times` from three times on."""
    percent = round(100 * value)
    return f"{value + 1:.1f} times" if value >= 2 else f"{percent:+d} %" if percent else "the same"


def _price(found: Advice, choice: Choice) -> str:
    """Return a line on how the best rules for an objective change all objectives."""
    from vrm.ext.advice.advice import OBJECTIVES
    if not choice.change:
        return ""
    name = found.combinations[choice.best].name
    all_of_it = {choice.objective: against_today(found, choice), **choice.price}
    return (f"  {OBJECTIVES[choice.objective].words}: {name} instead of today's rules: "
            f"{', '.join(changes(all_of_it))}")


def against_today(found: Advice, choice: Choice) -> float:
    """Return the change of the choice's own objective against today's rules."""
    from vrm.ext.advice.advice import against
    best, today = (found.combinations[at].gives[choice.objective].mean for at in (choice.best, 0))
    return against(best, today)
