"""The process next to a manager whose algorithm is `advised`: it looks for rules that serve the jobs better,
and requests the manager to change to them.

It reads the files of the run, as any program can, and writes a command file, as `vrm advise --apply` does, so that
the manager's loop never waits for it. It ends with its manager, which holds its standard input open.

It changes rules rarely: other rules must be the best, or equally good, in at least CONFIDENT of the
draws, the present rules must be worse by at least GAIN, and REST must have passed since the last change.
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
from vrm.ext.forecast.live.process import lower_priority
from vrm.ext.forecast.files import RunFiles
from vrm.model.rules import Rules
from vrm.run import command_files
from vrm.scheduling import PolicyError
from vrm.scheduling.orderings.ordering import ADVISED
from vrm.system.errors import RunError

GAIN = 0.05
"""Minimum fraction by which the present rules must be worse."""

REST = 60.0
"""Minimum seconds between two changes."""

PAUSE = 2.0
"""Minimum seconds between two looks at the run; the pause is also at least nine times as long as the look took."""

FEWEST = 2
"""Minimum number of waiting jobs for which advice is computed."""


ORDERS = ("FCFS", "SAF", "LJF", "SJF", "LAF", "WFP3")
"""Orders to compare if reservations are kept, so that the dispatcher must stay."""


class Adviser:
    """Decides when to request a change."""

    def __init__(self, objective: str) -> None:
        self.objective = objective
        self._changed = -REST

    def wish(self, found: Advice, now: float) -> Choice | None:
        """Return the choice to change to; None for no change. `now` is in seconds."""
        known = {each.objective: each for each in found.choices}
        choice = known.get(self.objective) or known["makespan"]  # the allocation has no end
        if not choice.change or choice.regret < GAIN or now < self._changed + REST:
            return None
        self._changed = now
        return choice


def command(found: Advice, choice: Choice, instead: Rules) -> dict[str, Any]:
    """Return the command that requests a change."""
    return {"do": "rules", "rules": found.combinations[choice.best].rules.changes(),
            "reason": f"advised: {reason(found, choice)}", "instead": instead.record(), "unasked": True}


def look(files: RunFiles, adviser: Adviser, now: float) -> None:
    """Look at the run, and request a change if it is worthwhile."""
    told = files.told()
    if told.phase != "running":
        return
    frozen = files.frozen(told)
    if len(frozen.waiting()) < FEWEST or frozen.run.scheduler.dispatcher.plans_in_background:
        return
    in_force = files.rules
    today = (replace(in_force, algorithm="FCFS") if in_force.algorithm.lower() == ADVISED
             else in_force)
    kept = frozen.run.scheduler.dispatcher.kept  # promised starts must be kept
    rules = combinations(today, orders=ORDERS if kept else (),
                         dispatchers=[str(today.backfill)] if kept else ())
    found = advise(frozen, rules, frozen.run.scheduler.policy.heatmap, calibrate=False)
    choice = adviser.wish(found, now)
    if choice is not None:
        command_files.send(files.run_directory, command(found, choice, in_force))


def follow(settings: Settings) -> None:
    """Look at the run after each change, until standard input ends. Errors in the files are reported and the next look
    tries again, because a manager is writing the files."""
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
    lower_priority()
    follow(of_line(sys.stdin.readline()))


if __name__ == "__main__":
    main()
