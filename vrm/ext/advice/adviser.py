"""The process beside a manager whose algorithm is `advised`: it looks for rules that serve the jobs better,
and asks the manager to change to them.

It reads the files of the run, as anybody can, and drops a command file, as `vrm advise --apply` does:
the manager's loop never waits for it. It ends with its manager, of which it has the standard input.

It is slow to change its mind: other rules must be the best, or as good, in at least CONFIDENT of the
draws, those in force worse by at least GAIN, and REST must have passed since the last change.
"""

from __future__ import annotations

import selectors
import sys
import time
from dataclasses import replace
from typing import Any

from vrm.config.problems import ConfigError
from vrm.config.schema import Settings, of_line
from vrm.ext.advice.advice import Advice, Choice, advise, combinations, reason
from vrm.ext.forecast.live.beside import yield_to_others
from vrm.ext.forecast.files import RunFiles
from vrm.model.rules import Rules
from vrm.run import control
from vrm.scheduling import PolicyError
from vrm.scheduling.orderings.ordering import ADVISED
from vrm.system.errors import RunError

GAIN = 0.05
"""By how much the rules in force must be worse."""

REST = 60.0
"""Seconds between two changes."""

PAUSE = 2.0
"""Seconds at least between two looks at the run; it also rests nine times as long as a look took."""

FEWEST = 2
"""Jobs that must wait for anything to be advised."""


ORDERS = ("FCFS", "SAF", "LJF", "SJF", "LAF", "WFP3")
"""What is compared where reservations are kept, and the dispatcher has to stay."""


class Adviser:
    """Decides when to ask for a change."""

    def __init__(self, objective: str) -> None:
        self.objective = objective
        self._changed = -REST

    def wish(self, found: Advice, now: float) -> Choice | None:
        """The choice to change to; None for no change. `now` is in seconds."""
        known = {each.objective: each for each in found.choices}
        choice = known.get(self.objective) or known["makespan"]  # the allocation has no end
        if not choice.change or choice.regret < GAIN or now < self._changed + REST:
            return None
        self._changed = now
        return choice


def command(found: Advice, choice: Choice, instead: Rules) -> dict[str, Any]:
    """The command that asks for a change."""
    return {"do": "rules", "rules": found.combinations[choice.best].rules.changes(),
            "reason": f"advised: {reason(found, choice)}", "instead": instead.record(), "unasked": True}


def look(files: RunFiles, adviser: Adviser, now: float) -> None:
    """Look at the run, and ask for a change if one pays."""
    told = files.told()
    if told.phase != "running":
        return
    frozen = files.frozen(told)
    if len(frozen.waiting()) < FEWEST or frozen.run.scheduler.dispatcher.plans_aside:
        return
    in_force = files.rules
    today = (replace(in_force, algorithm="FCFS") if in_force.algorithm.lower() == ADVISED
             else in_force)
    kept = frozen.run.scheduler.dispatcher.kept  # what was promised stays so
    rules = combinations(today, orders=ORDERS if kept else (),
                         dispatchers=[str(today.backfill)] if kept else ())
    found = advise(frozen, rules, frozen.run.scheduler.policy.heatmap, calibrate=False)
    choice = adviser.wish(found, now)
    if choice is not None:
        control.send(files.run_directory, command(found, choice, in_force))


def follow(settings: Settings) -> None:
    """Look after each change of the run, until standard input ends. What is wrong with the files now
    may be right the next time: a manager writes them."""
    files, adviser = RunFiles(settings), Adviser(settings.extended("Scheduling.Objective"))
    rest = PAUSE
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while not selector.select(rest):
            begun = time.monotonic()
            try:
                if files.read_new():
                    look(files, adviser, begun)
            except (RunError, ConfigError, PolicyError, OSError) as error:
                print(f"vrm: advised: {error}", file=sys.stderr, flush=True)
            rest = max(PAUSE, 9 * (time.monotonic() - begun))


def main() -> None:
    """Follow the run whose settings come on standard input."""
    yield_to_others()
    follow(of_line(sys.stdin.readline()))


if __name__ == "__main__":
    main()
