"""`vrm pool`: one queue for several allocations."""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Sequence

from vrm.commands.parsing import Parser, command
from vrm.commands.shared import CannotRun, count, default_config, tell

if TYPE_CHECKING:
    from vrm.ext.allocations.pool.batch import BatchAnswers
    from vrm.ext.allocations.pool.journal import PoolJournal
    from vrm.ext.allocations.pool.lines import PoolLine

MOST = 3
"""Greatest number of simultaneous allocations, unless another number is given."""

CHOSEN = {"max_allocations": ("max_allocations",), "max_nodes": ("max_nodes",), "partition": ("partition",),
          "nodes": ("shape",), "account": ("account",), "cores": ("cores", "exclusive"), "directive": ("directives",),
          "history": ("history",), "site_history": ("site_history",)}
"""Options of `start`, and the keys under which a pool keeps them until they are given again."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the program's commands."""
    parser = command(
        commands, "pool", pool, "run one queue in several allocations", [],
        "vrm pool start my.queue --max-allocations 3\nvrm pool status\nvrm pool add more.queue\nvrm pool stop",
        "`start` gives the jobs of a queue file to a pool, and asks for the allocations that `vrm plan` recommends, or "
        "for those of -N and -t. vrm in each of them takes jobs from the pool, and ends when there are none that it "
        "has the time for. What an allocation does not do others do; no job runs twice. `add` adds jobs, `stop` ends "
        "the pool (--now: also the jobs that run), and `start` without a queue continues it. `gone` gives back the "
        "jobs of an allocation that you know to have no process left, where the batch system does not say so.",
        usage="%(prog)s {start,add,status,stop,gone} [QUEUE] [options]")
    parser.usual = ("--partition", "--max-nodes", "--max-allocations", "-N", "-t", "--pool", "--json", "--now")
    parser.later = partial(_add_arguments, parser)


def _add_arguments(parser: Parser) -> None:
    from vrm.ext.begin.commands.script import directive, duration, name

    parser.add_argument("do", choices=("start", "add", "status", "stop", "gone", "work"),
                        metavar="{start,add,status,stop,gone}", help="what to do")
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="a queue file (default: that of the configuration); "
                        "with gone: an allocation, by its name in `vrm pool status`")
    add = parser.add_argument
    add("--pool", metavar="DIR", help="where the pool is, on a file system that all nodes see (default: pool in the "
        "directory Log)")
    add("--json", action="store_true", help="with status: print one JSON object")
    add("--now", action="store_true", help="with stop: end the jobs that run, too")
    add = parser.add_argument_group("the allocations (start)").add_argument
    add("--max-allocations", metavar="N", type=count, help=f"the most at once (default: {MOST})")
    add("--max-nodes", metavar="N", type=count, help="the most nodes of all of them together")
    add("--partition", metavar="NAME", type=name, help="in this partition (PBS: queue)")
    add("-N", "--nodes", metavar="N", type=count, help="the nodes of each; with -t: without a plan")
    add("-t", "--time", metavar="TIME", type=duration, help="how long each lasts: HH:MM:SS, 90m, 2h")
    add("--cores", metavar="N", type=count, help="cores of each node (default: whole nodes)")
    add("--account", metavar="NAME", type=name, help="who pays")
    add("--directive", metavar="TEXT", action="append", default=[], type=directive,
        help="a further option of the batch system, as --directive=--qos=long")
    add("--history", metavar="DIR", help="for the plan: earlier runs of such jobs")
    add("--site-history", metavar="FILE", help="for the plan: jobs of the site that have ended")


def pool(arguments: argparse.Namespace) -> int:
    """Carry out the command; return the exit status."""
    from vrm.ext.allocations.queue_parts import log_of
    from vrm.ext.allocations.pool.journal import PoolJournal

    config = getattr(arguments, "config", default_config())
    if config is None and arguments.pool is None:
        raise CannotRun("which pool? Give --pool DIR, or a configuration with -c FILE (vrm init writes one)")
    place = os.path.abspath(arguments.pool) if arguments.pool else str(log_of(str(config)) / "pool")
    journal = PoolJournal(place)
    if arguments.do == "start":
        return _start(arguments, config, journal)
    if not journal.exists():
        raise CannotRun(f"{place}: there is no pool; `vrm pool start QUEUE` begins one")
    journal.look()
    return {"add": _add, "status": _status, "stop": _stop, "gone": _gone, "work": _work}[arguments.do](
        arguments, journal)


def _add(arguments: argparse.Namespace, journal: PoolJournal) -> int:
    from vrm.ext.allocations.pool.lines import adding, lines_of
    if arguments.queue is None:
        raise CannotRun("which jobs? vrm pool add QUEUE")
    lines = lines_of(Path(arguments.queue))
    journal.decide(lambda state: adding(state, lines))
    tell(f"{len(lines)} jobs added; {len(journal.state.free)} of the pool's {len(journal.state.lines)} wait. "
         "`vrm pool start` asks for allocations if there are too few")
    return 0


def _start(arguments: argparse.Namespace, config: str | None, journal: PoolJournal) -> int:
    """Begin a pool or continue it, and request allocations; return 0. Raises CannotRun if the batch system
    refuses one."""
    from vrm.config.schema import load
    from vrm.ext.allocations.pool.lines import adding, lines_of
    from vrm.ext.allocations.pool.state import PoolState

    there = journal.exists()
    if there and arguments.queue is not None:
        raise CannotRun(f"{journal.directory} is a pool already: `vrm pool add {arguments.queue}` adds these jobs, "
                        "`vrm pool start` without a queue continues it, --pool DIR begins another one")
    if config is None:
        raise CannotRun("which configuration? Give -c FILE; vrm init writes one")
    settings = load(config)
    lines = [] if there else lines_of(Path(arguments.queue or settings.applications.queue))
    if (arguments.nodes is None) != (arguments.time is None):
        raise CannotRun("-N and -t belong together: how many nodes, and for how long")
    options = _options(arguments, config, settings, journal)
    if arguments.nodes is not None:
        _possible(settings, arguments, lines)
    if not there:
        adding(PoolState(), lines)
        journal.create()
        journal.decide(lambda state: adding(state, lines) if not state.lines else None)
    state = journal.look()
    kept = {key for name, keys in CHOSEN.items() if not getattr(arguments, name) for key in keys}
    options.update((key, value) for key, value in state.options.items() if key in kept)
    if options != state.options or state.stopped:
        journal.decide(lambda state: {"do": "start", "options": options})
    _clean_up_dead(journal, options["system"])
    if not state.free:
        tell(f"no job of {len(state.lines)} waits"
             + (f" but for {len(state.later)} that wait for others" if state.later else "") + ": nothing to ask for")
        return 0
    live = sum(not each.ended for each in state.allocations.values())
    more = state.options["max_allocations"] - live
    if more <= 0:
        tell(f"{live} allocations run; --max-allocations raises the limit")
        return 0
    return _ask(arguments, journal, more)


def _clean_up_dead(journal: PoolJournal, system: str) -> None:
    """Give back the jobs of allocations that have died, and forget requests that gave no allocation. Raises
    CannotRun if the batch system hangs."""
    from vrm.ext.allocations.pool.batch import BatchAnswers
    from vrm.ext.allocations.pool.requests import record_ended_requests
    answers = BatchAnswers(system)
    record_ended_requests(journal, answers)
    for each in _return_dead_jobs(journal, answers):
        tell(f"allocation {each} has died: the jobs that it had not done wait again")
    if answers.hangs:
        raise CannotRun("the batch system does not answer; try again later. The allocations of the pool continue")


def _options(arguments: argparse.Namespace, config: str, settings: Any, journal: PoolJournal) -> dict[str, Any]:
    """Return the options from which requests are made."""
    import shutil

    from vrm.ext.allocations.pool.batch import SYSTEMS
    from vrm.ext.begin.commands.script import batch_name, cores_of, modules, vrm_command

    system = next((name for name, batch in SYSTEMS.items() if shutil.which(batch.submit[0])), "")
    if not system:
        raise CannotRun("there is no sbatch and no qsub here: type this on a login node of the cluster")
    arguments.here = False
    cores = arguments.cores or cores_of(settings)
    if system != "slurm" and cores is None:
        raise CannotRun("how many cores of each node? Give --cores N")
    whole = system == "slurm" and not arguments.cores
    return {"system": system, "config": os.path.abspath(config), "pool": str(journal.directory),
            "command": vrm_command(config, arguments), "name": batch_name(config), "cores": None if whole else cores,
            "exclusive": whole, "partition": arguments.partition or "", "account": arguments.account or "",
            "directives": arguments.directive, "modules": modules([], os.environ.get("LOADEDMODULES", "")),
            "max_allocations": arguments.max_allocations or MOST, "max_nodes": arguments.max_nodes,
            "shape": None if arguments.nodes is None else [arguments.nodes, float(arguments.time)],
            **{key: getattr(arguments, key) and os.path.abspath(getattr(arguments, key))
               for key in ("history", "site_history")}}


def _possible(settings: Any, arguments: argparse.Namespace, lines: Sequence[PoolLine]) -> None:
    """Raise CannotRun for jobs that allocations of -N and -t cannot run, as far as that is known here."""
    from vrm.ext.allocations.shapes import START_UP
    from vrm.workload.grammar import parse_line
    cores = arguments.cores or (
        None if "auto" in (settings.sockets, settings.cores) else int(settings.sockets * settings.cores))
    for number, line in enumerate(lines):
        parsed = parse_line(line.text)
        needed = parsed.procs * parsed.fields.get("cores", 1)
        if cores is not None and needed > cores * arguments.nodes:
            raise CannotRun(f"no allocation can run job {number}: it needs {needed} cores, and {arguments.nodes} nodes "
                            f"have {cores * arguments.nodes}. Give more nodes (-N), or leave this job out")
        if parsed.seconds + START_UP > arguments.time:
            raise CannotRun(f"no allocation can run job {number}: its limit is {parsed.seconds:g} s, vrm needs "
                            f"{START_UP:g} s more, and the allocations have {arguments.time} s. Give more time (-t), "
                            "or lower its limit")


def _ask(arguments: argparse.Namespace, journal: PoolJournal, more: int) -> int:
    from vrm.ext.allocations.pool.journal import PoolError
    from vrm.ext.allocations.pool.planning import PoolPlan, enough, wished, work_of
    from vrm.ext.allocations.pool.requests import ask, cancel, take_back
    from vrm.ext.allocations.pool.state import PoolDemand
    from vrm.model.quantities import clock

    state = journal.state
    shape, jobs = state.options.get("shape"), sorted({*state.free, *state.later})
    if shape is not None:
        wished(journal, PoolDemand(more, shape[0], shape[1], work_of(state, jobs)))
    else:
        try:
            wished(journal, PoolPlan(journal, jobs, more).wish())
        except PoolError as error:
            raise CannotRun(f"{error}. -N NODES -t TIME asks for allocations without one") from None
        taken = take_back(journal, enough)
        cancel(journal, taken)
        for each in taken:
            tell(f"taken back, since the plan needs fewer: batch job {each.job}")
    assert state.wish is not None
    (number, nodes, seconds, _), asked = state.wish, 0
    while asked < number:
        try:
            request = ask(journal, nodes, seconds, enough=(lambda state, waiting: False) if shape else enough)
        except PoolError as error:
            raise CannotRun(f"{error}. {asked} of {number} allocations were asked for") from None
        if request is None:
            break
        asked += 1
        tell(f"asked for {nodes} node{'s' * (nodes > 1)} x {clock(int(seconds))}: batch job {request.job}")
    if not asked:
        options = state.options
        tell("the requests that wait are as many as the plan recommends"
             if shape is None and enough(state, [*state.pending()]) else
             f"{state.living()} allocations run or wait; --max-allocations raises the limit"
             if state.living() >= options["max_allocations"] else
             f"--max-nodes {options['max_nodes']}: the allocations of the pool have as many")
    tell(f"{len(state.free)} jobs wait in {journal.directory}. `vrm pool status` shows them")
    return 0


def _return_dead_jobs(journal: PoolJournal, answers: BatchAnswers) -> list[str]:
    """Give the jobs of allocations that have died back to the pool; return the names of these allocations."""
    from vrm.ext.allocations.pool.dead_allocations import ended_now
    found = []
    state = journal.state
    for each in [each for each in state.allocations.values() if not each.ended]:
        for name, done in ended_now(journal.directory, state, each.name, answers):
            journal.decide(lambda state, name=name, done=done:  # type: ignore[misc]
                           {"do": "end", "name": name, "done": done} if state.is_live(name) else None)
            found.append(name)
    return found


def _gone(arguments: argparse.Namespace, journal: PoolJournal) -> int:
    """Give back the jobs of an allocation that the user knows to have no processes left; return 0."""
    from vrm.ext.allocations.pool import dead_allocations
    name = arguments.queue
    if name is None or not journal.state.is_live(name):
        live = [each.name for each in journal.state.allocations.values() if not each.ended]
        if not live:
            raise CannotRun("no allocation of the pool runs: there is nothing to give back")
        raise CannotRun(f"which allocation? vrm pool gone NAME, one of: {', '.join(live)}")
    back = dead_allocations.give_back(journal, name)
    tell(f"{back} jobs of {name} wait again. `vrm pool start` asks for allocations if there are too few")
    return 0


def _stop(arguments: argparse.Namespace, journal: PoolJournal) -> int:
    """Stop the pool: nothing starts any more, and requests are taken back. Returns 0."""
    from vrm.ext.allocations.pool.requests import cancel, take_back
    journal.decide(lambda state: {"do": "stop", "now": bool(arguments.now)})
    taken = take_back(journal)
    cancel(journal, taken)
    live = sum(not each.ended for each in journal.state.allocations.values())
    tell(f"the pool is stopped: {live} allocations end {'now' if arguments.now else 'when their jobs have ended'}, "
         f"{len(taken)} requests were taken back. `vrm pool start` continues it")
    return 0


def _work(arguments: argparse.Namespace, journal: PoolJournal) -> int:
    """Run jobs of the pool in this allocation; return 0, or another exit status if that is impossible."""
    from vrm import cli
    from vrm.ext.allocations.queue_parts import config_with
    from vrm.ext.allocations.pool.overview import MEMBER
    from vrm.live.batch.allocation import batch_job
    from vrm.live.batch.base import around

    state = journal.state
    name = batch_job(os.environ).replace(" ", "-")
    if not name:
        raise CannotRun("`vrm pool work` is for the scripts that `vrm pool start` submits: this is no batch job")
    system = around(os.environ)
    job = system.job_id(os.environ) if system else ""
    if state.stopped or not state.may_join(job) or not (state.free or state.holders() or state.held_by(name)):
        tell("no job of the pool waits: nothing to do")
        return 0
    config, directory = state.options["config"], journal.directory / name
    file = Path(config).with_name(f"{Path(config).stem}.{name}{Path(config).suffix}")
    try:
        directory.mkdir(0o700, exist_ok=True)
        (directory / "queue").touch()
        file.write_text(config_with(config, directory, directory / "queue"))
        (directory / MEMBER).write_text(json.dumps({"pool": str(journal.directory), "name": name, "job": job}))
    except OSError as error:
        raise CannotRun(f"cannot write {error.filename}: {error.strerror}; this allocation takes no jobs of the "
                        "pool") from None
    found = cli.main(["-c", str(file)])
    return 0 if found == 1 else found  # `vrm pool status` shows failed jobs


def _status(arguments: argparse.Namespace, journal: PoolJournal) -> int:
    """Print the allocations and what has happened to the jobs; return 0."""
    from vrm.ext.allocations.pool.overview import of
    from vrm.system.printing.output import show
    found = of(journal, asks=True)
    show(arguments.json, lambda: found.record, found.text)
    return 0
