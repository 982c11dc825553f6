"""The command `vrm experiment`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterator

from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, count, tell

INTERRUPTED = 130


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the main parser."""
    parser = command(commands, "experiment", experiment,
                     "run many scenarios on many queues, as a file says", [],
                     "vrm experiment plan.yaml --dry-run\nvrm experiment plan.yaml",
                     "Runs are live or simulated. The same command continues with what is "
                     "missing. `vrm report` shows the results.")
    add = parser.add_argument
    add("file", metavar="FILE.yaml", help="the plan; experiments/ has examples")
    add("--out", metavar="DIR", help="where everything goes (default: the file's Out, else "
        "runs/NAME)")
    add("--dry-run", action="store_true", help="show the runs, in their order, and run nothing")
    add("-j", "--jobs", metavar="N", type=count,
        help="simulated runs at a time (default: usable cores)")


def experiment(arguments: argparse.Namespace) -> int:
    """Run `vrm experiment`; return 0 if all jobs of all runs succeeded, 1 if some failed, 2 if it is impossible,
    130 if interrupted."""
    from vrm.ext.study.experiment.execute import COMPLETE, Experiment, time_left_text
    from vrm.ext.study.experiment.experiment_plan import LIVE, read_plan

    plan = read_plan(arguments.file)
    if plan.mode == LIVE and arguments.jobs:
        raise CannotRun("--jobs is for simulated runs: live ones go one at a time, or they would "
                        "disturb each other")
    out = Path(arguments.out) if arguments.out else plan.out
    once = [] if plan.mode == LIVE or plan.repetitions == 1 else [one.name for one in plan.queues if not one.drawn]
    if once:
        tell(f"simulated once, not {plan.repetitions} times: {', '.join(once)}; the same jobs give the same result "
             "again")
    work = Experiment(plan, out, tell, arguments.jobs)
    try:
        if not arguments.dry_run:
            with _interrupted_by_signals():
                succeeded = work.run()
            print(f"{len(plan.runs)} run{'s are' if len(plan.runs) > 1 else ' is'} in {out}; "
                  f"`vrm report {out}` shows them")
            return 0 if succeeded else 1
        tasks = work.tasks()
        for task in tasks:
            changes = ", ".join(f"{key}: {value}" for key, value in
                                task.run.scenario.changes.items())
            print(f"{task.number:4}  {task.state:9}  {task.run.name}"
                  + (f"  ({changes})" if changes else ""))
        missing = sum(task.state != COMPLETE for task in tasks)
        print(f"{len(tasks)} runs ({plan.mode}), {missing} to do, in {out}")
        seconds = work.expected() if plan.mode == LIVE else None
        if seconds is not None:
            print(f"all of them take {time_left_text(seconds)} if jobs run as long as they were "
                  "estimated to")
    except KeyboardInterrupt:
        print(f"vrm: interrupted; what is complete is in {out}, the same command continues",
              file=sys.stderr)
        return INTERRUPTED
    return 0


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP (lost terminal) interrupt like Ctrl-C, so that the jobs of the run are ended."""
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)
