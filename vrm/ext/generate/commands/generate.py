"""`vrm generate`."""

from __future__ import annotations

import argparse
import random
import shlex
import sys
from pathlib import Path
from typing import Any

from vrm.commands.parsing import command
from vrm.commands.shared import (CannotRun, count, counts, factor, seconds, settings_of, tell,
                                 words)


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the parser of vrm."""
    parser = command(
        commands, "generate", generate, "write a queue file with a random mix of jobs", [shared],
        "vrm generate queue --jobs 50 --estimates estimates.csv --seed 1\n"
        "vrm generate queue --apps cg.A.x,ep.A.x --ranks 1,2 --estimate 10\n"
        "vrm generate more.csv --like sacct.txt --machine my.yaml --jobs 50000",
        "The times between submissions are written as well, so that every run has the same ones.\n\n"
        "With --like it writes a workload for `vrm simulate` (CSV, also .gz) with the statistics of "
        "another one, and prints both to compare.",
        usage="%(prog)s [FILE] (--estimates TABLE | --estimate SECONDS | --like WORKLOAD) [options]")
    add = parser.add_argument
    add("queue", nargs="?", metavar="FILE",
        help="the queue file (default: the configuration's Applications.Queue)")
    add("--jobs", metavar="N", type=count, help="how many (default: 20; with --like: as many as there)")
    add("--like", metavar="WORKLOAD",
        help="draw from a model that is fitted to a workload (whatever `vrm simulate` reads), or "
             "eurora-year: a modelled year of a machine with GPUs and MICs")
    add("--machine", metavar="FILE", help="with --like: the machine of that workload, whose memory and "
        "resources count")
    add("--apps", metavar="LIST", type=words, default=(),
        help="programs, as cg or cg.A.x (default: all that have an estimate)")
    add("--classes", metavar="LIST", type=words, default=(),
        help="problem classes, as S,W (default: all that have an estimate)")
    add("--ranks", metavar="LIST", type=counts, default=(),
        help="rank counts, as 1,2,4 (default: all that have an estimate)")
    add("--arrival", metavar="HOW", default="uniform:3-10",
        help="uniform:LOW-HIGH (whole seconds), poisson:MEAN or once (default: uniform:3-10)")
    add("--estimates", metavar="TABLE",
        help="estimates by program and ranks: a table of `vrm calibrate`, or class-b, a published "
             "one of class B on 2 to 128 ranks")
    add("--estimate", metavar="SECONDS", type=seconds, help="one estimate for all, instead of a "
        "table; needs --apps and --ranks")
    add("--margin", metavar="FACTOR", type=factor, default=1.0,
        help="multiply the table's seconds, as careful users do (default: 1)")
    add("--exclusive", metavar="SHARE", type=float, default=0.0,
        help="share of jobs that share no node, 0 to 1 (default: 0)")
    add("--seed", metavar="N", type=int, help="the same seed draws the same mix (default: a random one; it "
        "is written into the file)")
    add("--live", action="store_true", help="append the jobs as time passes, while a manager runs")
    add("--resume", action="store_true", help="with --live: continue a file that was begun with "
        "the same options and seed")
    add("--speed", metavar="FACTOR", type=factor, default=1.0,
        help="with --live: append them FACTOR times as fast. The recorded times stay the same: a "
             "manager reads them this fast only with the same Replay.Speed")
    add("--force", action="store_true", help="replace a file that exists")


def generate(arguments: argparse.Namespace) -> int:
    """Run the command; exit status 0 on success, 130 if interrupted. Raises CannotRun if the mix cannot be written."""
    from vrm.ext.generate import generator

    if arguments.like:
        return _like(arguments)
    if arguments.machine:
        raise CannotRun("--machine is the machine of the workload of --like; give both")
    arguments.jobs = arguments.jobs or 20
    queue = Path(arguments.queue) if arguments.queue else settings_of(arguments).applications.queue
    if arguments.resume and (not arguments.live or arguments.seed is None):
        raise CannotRun("--resume continues a --live mix of a known --seed (the first line of "
                        "the file has it); give both")
    if arguments.live and arguments.force:
        raise CannotRun("--force replaces a file, which a manager may follow; for --live name a "
                        "new one")
    if arguments.speed != 1.0 and not arguments.live:
        raise CannotRun("--speed is how fast a --live mix is written; give both")
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    try:
        arrival = generator.parse_arrival(arguments.arrival)
        table = _table(arguments)
        mix = generator.Mix(arguments.jobs, seed,
                            generator.choices(table, arguments.apps, arguments.classes,
                                              arguments.ranks),
                            arrival, arguments.exclusive, arguments.margin)
        header = _header(arguments, seed)
        if arguments.live:
            generator.write_live(mix, queue, header, arguments.resume, arguments.speed, tell)
        else:
            generator.write_at_once(mix, queue, header, arguments.force)
    except KeyboardInterrupt:
        print(f"vrm: interrupted; to continue, type the same command with --resume "
              f"and --seed {seed}",
              file=sys.stderr)
        return 130
    print(f"{queue}: {mix.jobs} job(s) of {len(mix.choices)} program(s), seed {seed}")
    return 0


def _table(arguments: argparse.Namespace) -> dict[tuple[str, int], float]:
    """Return the estimates from which jobs are drawn."""
    from vrm.ext.measured.estimates import EstimateError, read_estimates
    from vrm.ext.generate.generator import GenerateError, constant
    from vrm.ext.generate.npb import CLASS_B

    if arguments.estimate is not None and arguments.estimates:
        raise GenerateError("--estimate is one for all, --estimates a table; give one of them")
    if arguments.estimate is not None:
        if not arguments.apps or not arguments.ranks:
            raise GenerateError("--estimate needs to know what to draw from: give --apps and "
                                "--ranks, too")
        return constant(arguments.apps, arguments.classes, arguments.ranks, arguments.estimate)
    if arguments.estimates == "class-b":
        return dict(CLASS_B)
    if not arguments.estimates:
        raise GenerateError("no estimates; measure some with `vrm calibrate` and give --estimates "
                            "FILE, or use --estimates class-b (published, class B) or --estimate "
                            "SECONDS")
    try:
        found, _ = read_estimates(arguments.estimates)
    except EstimateError as error:
        raise GenerateError(str(error)) from error
    return {key: estimate.seconds for key, estimate in found.items()}


def _header(arguments: argparse.Namespace, seed: int) -> str:
    """Return the command that makes this mix again, for the file's first line."""
    options = ["vrm", "generate", "--jobs", str(arguments.jobs), "--seed", str(seed),
               "--arrival", arguments.arrival]
    for name in ("apps", "classes", "ranks"):
        value = getattr(arguments, name)
        options += [f"--{name}", ",".join(map(str, value))] if value else []
    for name in ("estimates", "estimate"):
        value = getattr(arguments, name)
        options += [f"--{name}", Path(value).name if name == "estimates" else f"{value:g}"
                    ] if value else []
    for name, default in (("margin", 1.0), ("exclusive", 0.0)):
        value = getattr(arguments, name)
        options += [f"--{name}", f"{value:g}"] if value != default else []
    return shlex.join(options)


def _like(arguments: argparse.Namespace) -> int:
    """Draw a workload from a model, write it, and print a comparison with the original."""
    from vrm.config.problems import ConfigError
    from vrm.ext.formats.table import write
    from vrm.ext.generate.campaign_model import compared, draw
    from vrm.ext.generate.models import model_of
    from vrm.simulation.inputs import ERRORS

    if not arguments.queue:
        raise CannotRun("--like writes a workload for `vrm simulate`; name its file, as drawn.csv")
    wrong = [f"--{name}" for name in ("apps", "classes", "ranks", "estimates", "estimate", "live")
             if getattr(arguments, name)]
    if wrong:
        raise CannotRun(f"--like has its own programs, sizes and times; leave out {', '.join(wrong)}")
    target = Path(arguments.queue)
    if target.exists() and not arguments.force:
        raise CannotRun(f"{target} exists; name another file, or replace it with --force")
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    try:
        model, original = model_of(arguments.like, arguments.machine)
        drawn = draw(model.of(arguments.jobs) if arguments.jobs else model, seed)
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target, drawn, model.unix_start, shlex.join(
            ["vrm", "generate", "--like", Path(arguments.like).name, "--jobs", str(len(drawn)), "--seed",
             str(seed)]))
    except (ConfigError, *ERRORS, ValueError) as error:
        raise CannotRun(str(error)) from error
    except OSError as error:
        raise CannotRun(f"cannot write {target}: {error.strerror}") from error
    print(f"{target}: {len(drawn)} job(s), seed {seed}\n")
    print(compared(original, drawn, model.unix_start))
    return 0
