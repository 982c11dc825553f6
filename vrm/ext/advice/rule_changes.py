"""Changes the scheduling rules of a running manager: for `vrm advise --apply`, and for the algorithm
`advised`, whose choices are made in a separate process.

Running jobs keep their places. Promises to waiting jobs remain: rules that do not keep promises are refused while there
are any. A change is in the journal, so that a restarted manager continues with it, unless its configuration has
different rules than at the time of the change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from collections.abc import Mapping

from vrm.config.policies import load_all
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import CommandHandler, Part
from vrm.live.site.setup import judges
from vrm.model.job import Infeasible
from vrm.model.rules import CHANGEABLE, KEYS, Rules
from vrm.results.names import policy_name
from vrm.run.command_files import Command
from vrm.run.journal.history import RunHistory
from vrm.scheduling import PolicyError
from vrm.scheduling.compose import compose
from vrm.workload.grammar import show


class RuleChanges(Part):
    """Changes the scheduling rules of the run, as a command requests, or as an earlier manager of the run did."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live

    def recall(self, past: RunHistory) -> None:
        """Continue with changed rules."""
        resume_from(self.live, past)

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the command that changes the rules."""
        return {"rules": self._rules}

    def _rules(self, command: Command, name: str) -> Command:
        if not isinstance(command["reason"], str):
            raise TypeError("the reason is not text")
        try:
            text = change(self.live, command["rules"], command["reason"], command.get("instead"), command=name)
        except RulesRefused as refused:
            return {"ok": False, "text": f"the rules stay as they are: {show(str(refused), 500)}"}
        return {"ok": True, "text": text}


class RulesRefused(ValueError):
    """A run cannot continue with these rules; the text gives the reason."""


def change(live: LiveRun, changed: Mapping[str, Any], reason: str, instead: Any = None,
           **origin: Any) -> str:
    """Schedule by other rules: `changed` has values by their names, as in the files. With
    `instead`, only if those were the rules until now. Return a sentence about what was done. Raises RulesRefused, and
    changes nothing, if the change is not possible."""
    before = live.rules
    if live.phase != "running":
        raise RulesRefused("the manager is stopping")
    if not isinstance(changed, Mapping) or not isinstance(instead, (Mapping, type(None))):
        raise TypeError("rules are a mapping")
    if instead is not None and instead != before.record():
        raise RulesRefused("they were changed in the meantime")
    rules = replace(Rules.read({**before.record(), **changed}), queues=before.queues)
    for name, key in KEYS.items():
        if name not in CHANGEABLE and getattr(rules, name) != getattr(before, name):
            raise RulesRefused(f"{key.record or name} cannot be changed while the manager runs")
    if rules == before:
        return f"{told(rules)}: these are the rules already"
    schedule_by(live, rules, live.scheduler.dispatcher.kept)
    live.journal.append("rules", time=live.now, rules=rules.record(),
                        was=live.settings.rules.record(), reason=reason, **origin)
    live.changes()
    text = f"from now on {told(rules)}, instead of {told(before)}"
    live.tell("note", f"{text}: {show(reason, 300)}")
    return text


def told(rules: Rules) -> str:
    """Return a short text for rules."""
    return ", ".join([policy_name(rules.algorithm, rules.backfill)]
                     + [f"{rules.backfill_order} first"] * (rules.backfill_order != "queue")
                     + [rules.policy + (f" ({rules.node_order})" if rules.node_order != "auto" else "")])


def schedule_by(live: LiveRun, rules: Rules, kept: bool = False) -> None:
    """Use another scheduler. Raises RulesRefused if that is not possible. `kept`: it must keep promised starts."""
    before, state = live.scheduler, live.state
    try:
        load_all(live.settings, rules)
        scheduler = compose(rules, live.cluster, before.policy.heatmap)
        if scheduler.dispatcher.plans_in_background:
            raise RulesRefused(f"the backfilling {scheduler.dispatcher.name} needs a process that a manager starts in "
                               "the beginning; stop this one (`vrm stop`), and say it in the configuration")
        if kept and state.promises and not scheduler.dispatcher.kept:
            raise RulesRefused(
                f"{len(state.promises)} waiting job(s) have starts that were promised, and with the "
                f"backfilling {rules.backfill} nothing is promised; those that keep promises are "
                "easy-kept, N-kept and conservative")
        if not state.book.frozen:
            for job in [*state.queue, *(entry.job for entry in state.book.parked.values()
                                        if not entry.lacks)]:
                try:
                    scheduler.check(job)
                except Infeasible as never:
                    raise RulesRefused(f"job {job.id} ({job.app}), which waits, could never run: {never}") from never
        ordered = state.ordered(scheduler.new_queue())
    except PolicyError as error:
        raise RulesRefused(str(error)) from error
    live.room.under(scheduler, judges(live.settings, rules, scheduler))
    ordered.log, state.log = state.log, None
    live.scheduler, live.rules = scheduler, rules
    live.begin(ordered)
    ordered.book.recheck_lacking()
    if not scheduler.dispatcher.promising:
        ordered.promises.clear()
    scheduler.dispatcher.follow(before.dispatcher)
    scheduler.dispatcher.restore(ordered.promises)


def resume_from(live: LiveRun, past: RunHistory) -> None:
    """Continue with the rules that an earlier manager of the run had changed, unless the configuration has
    changed since."""
    if past.rules is None:
        return
    rules = past.in_force(live.settings.rules)
    if past.rules["was"] != live.settings.rules.record():
        live.tell("note", "the rules in the configuration were edited after the rules of the run were changed: "
                          "the configuration is used")
        return
    if rules == live.rules:
        return
    try:
        schedule_by(live, rules)
        past.state = live.state
    except RulesRefused as error:
        live.tell("warning", f"the rules of the run had been changed, and the change cannot continue: {error}; "
                             "the rules of the configuration are used")
        return
    live.tell("note", f"{told(live.rules)}, as changed before ({show(past.rules['reason'], 300)})")
