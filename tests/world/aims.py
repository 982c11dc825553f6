"""Worlds whose faults come exactly when something else happens, which is too rare with random times: a manager is killed
after it has written a reason and before it sends the signal; a disk is full when a program has ended.

Words describe such worlds: `KIND@AIM` is a fault and the event that it waits for (`AIMS`); `A+B` is a fault soon after another
one; the name of a shape (`SHAPES`) changes the jobs; the kind of an act adds more acts of this kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from world.plan import BEYOND, DISK, KILLS, Act, Fault, Plan, front_command, kills, line_of, plan_of_chance

JOURNAL = ("run", "job", "start", "intent", "end", "again", "back", "hold", "lent", "regain", "regained")
"""Aims: a journal record of this event is written."""

FILES = {"pids": "pids", "ended": "ended", "commands": "commands", "replies": "replies", "jobs.csv": "jobs.csv", "queue": "../queue",
         "scripts": "scripts", "journal.new": "journal.new"}
"""Aims: a file, or a file in a directory, changes; paths relative to the directory of the run."""

AIMS = (*JOURNAL, *list(FILES)[:-1], "begin", "exit", "signal", "look")
"""All aims of usual worlds. The last four: a program of a job begins; it has ended; a manager has sent it a signal; a manager looks for the status
of a job."""

ASKED = ("cancel", "requeue", "hold", "submit", "stop", "term", "append", "insert", "lend", "back")
"""Kinds of acts of users of which a world can have more."""

VALUES = {"clock": (-90000.0, -100.0, 2.0, 100.0), "eio": (1.0, 2.0, 4.0), "pause": (0.1, 2.5, 12.0), "stall": (0.02, 0.5, 2.5), "stall_agent": (0.02, 0.5),
          **dict.fromkeys(BEYOND, (0.1, 3.0, 9.0, 20.0))}
"""Possible values (seconds, or an amount) by kind of fault; other faults last for up to two seconds."""


def _seconds(line: str, chance: Random) -> str:
    return re.sub("args='[0-9.]+", f"args='{chance.choice((5, 5, 1.5))}", line)


def _flags(mark: str) -> Callable[[str, Random], str]:
    return lambda line, chance: re.sub(r" (-|[a-z]+)'", lambda found: f" {found[1].strip('-')}{mark}'", line) if chance.random() < 0.5 else line


SHAPES: dict[str, Callable[[str, Random], str]] = {
    "long": _seconds,
    "deaf": _flags("i"),
    "leaving": _flags("d"),
    "limited": lambda line, chance: re.sub(r"^(job.x \d+) \d+ ", r"\1 1 ", line),
    "failing": lambda line, chance: re.sub(" ([0-9]+) ([a-z-]+)'", r" 3 \2'", line) + " retries=2" * ("retries" not in line),
    "large": lambda line, chance: re.sub(r"^job.x \d+", "job.x 9", line) if chance.random() < 0.5 else line,
    "scripts": lambda line, chance: line if "gpus_" in line else re.sub("^job.x ", "run.sh ", line) + " script=1" * line.startswith("job.x "),
    "same": lambda line, chance: "job.x 1 9 0 args='0.1 0 -'"}
"""Functions that change the lines of a world: programs that run for seconds, ignore SIGTERM, leave daemons, exceed their limits or
fail; jobs that are too large; scripts; lines that are all the same."""


def shaped(plan: Plan, words: Sequence[str], chance: Random) -> Plan:
    """Return the plan with jobs of the shapes in `words`; with the word `reuse`, process ids are reused soon."""
    for word in words:
        shape = SHAPES.get(word)
        if shape is not None and not (word == "long" and 0 < plan.batch < 60):  # otherwise no job would ever end
            plan = plan.but(lines=tuple(shape(line, chance) for line in plan.lines), acts=tuple(
                act._replace(value=shape(act.value, chance)) if act.kind in ("submit", "append", "insert") else act for act in plan.acts))
    if "limited" in words:
        plan = plan.but(walltime="kill")
    return plan.but(reuse=plan.reuse or "reuse" in words)


def value_of(kind: str, plan: Plan, chance: Random) -> Any:
    """Return a random value of an act of this kind: a queue line, a job, or the values of a lend."""
    if kind in ("submit", "append", "insert"):
        return line_of(chance, 0, plan.cores)
    if kind in ("stop", "term"):
        return None
    job = chance.randrange(max(1, len(plan.lines)))
    return (job, chance.randint(0, 2), None if chance.random() < 0.3 else chance.randrange(max(1, len(plan.lines)))) if kind in ("lend", "back") else job


def focused(plan: Plan, words: Sequence[str], share: float = 0.8) -> Plan:
    """Return the plan with the fraction `share` of its faults replaced by faults of `words`, and with more acts and shapes of `words`."""
    chance = Random(plan.seed ^ 0xf0c5)
    acts = [word for word in words if word in ASKED]
    kinds = [word for word in words if word not in (*ASKED, *SHAPES, "reuse")]
    more = [Act(chance.choice((0.3, 2.0, 5.0)) * chance.random(), chance.choice(acts), None) for _ in range(10 if acts else 0)]
    more = [act._replace(value=value_of(act.kind, plan, chance)) for act in more]
    more += [Act(6.0, "release", "all")] if "hold" in acts else []
    plan = plan.but(acts=tuple(sorted((*plan.acts, *more), key=lambda act: act.time)))
    plan = shaped(plan, words, chance)
    found = list[Fault]()
    for fault in plan.faults:
        found += chain(fault, chance.choice(kinds), chance) if kinds and chance.random() < share else (fault,)
    if found and found[0].aim:  # also for the first fault
        found[0] = found[0]._replace(gap=1)
    return plan.but(faults=tuple(found))


AIMED = 0x802c92
"""Changes the random numbers of worlds with aimed faults (see `plan.SALT`)."""

WORDS = ("manager@job", "manager@start", "manager@intent", "manager@end", "manager@again", "manager@begin", "manager@exit", "machine@run",
         "machine@job", "machine@start", "machine@signal", "machine@commands", "full@exit", "full@again", "full@queue", "full@exit+manager",
         "full@jobs.csv+machine@jobs.csv", "readonly@exit+manager", "readonly@replies+manager", "both@start", "both@begin+supervisor",
         "manager@begin+pause@look", "manager@exit+supervisor@pids", "pause@look", "pause@replies", "stall@commands", "client@commands")
"""Faults of such worlds."""

BEYOND_WORDS = ("cut@start", "cut@begin", "delay@start", "node@begin", "node@exit", "machine@begin", "machine@pids", "stand_in@start",
                "stand_in@begin", "ssh@begin", "relay@begin", "relay@exit", "runner@exit", "agent@begin")
"""Further faults if nodes are other machines."""


CALLS, CALLS_SINCE = 0xca115, 795_896_000_000
"""Changes the random numbers of calls through the socket (see `plan.SALT`); worlds of seeds below the second number have no such
calls."""

CALL_WORDS = ("manager@call", "manager@job", "client@call", "machine@call", "pause@call", "both@call", "full@call", "machine@job",
              "stall@call", "manager@again", "manager@end")
"""Faults of worlds with such calls: at the call, or at its record."""


FOLDS, FOLDS_SINCE = 0xf01d5, 795_946_000_000
"""Changes the random numbers of worlds in which journals are folded often (see `plan.SALT`); worlds of seeds below the second
number fold none."""

FOLD_WORDS = ("manager@journal.new", "manager@journal.new", "machine@journal.new", "machine@journal.new", "copy@journal.new",
              "full@journal.new", "eio@journal.new", "pause@journal.new", "full@journal.new+machine")
"""Faults of such worlds."""


def plan_of(seed: int, strict: bool = False) -> Plan:
    """Return the world of a seed. In half of the worlds, managers fold their journals often."""
    plan = plan_of_calls(seed, strict)
    chance = Random(seed ^ FOLDS)
    if seed < FOLDS_SINCE or chance.random() < 0.5:
        return plan
    words = [chance.choice(FOLD_WORDS) for _ in range(chance.choice((0, 1, 3)))]
    return focused(plan.but(folds=chance.choice((3, 8, 20, 50))), words, 0.3)


def plan_of_calls(seed: int, strict: bool = False) -> Plan:
    """Return the world of a seed without folds. In a tenth of the worlds, users call Slurm's commands through the manager's socket."""
    plan = plan_of_faults(seed, strict)
    chance = Random(seed ^ CALLS)
    if seed < CALLS_SINCE or chance.random() < 0.9:
        return plan
    acts = (*plan.acts, *(front_command(chance, plan) for _ in range(chance.choice((4, 8, 16)))), Act(6.5, "release", "all"))
    plan = plan.but(sockets=True, acts=tuple(sorted(acts, key=lambda act: act.time)))
    return focused(plan, [chance.choice(CALL_WORDS) for _ in range(chance.choice((0, 1, 3)))], 0.4)


def plan_of_faults(seed: int, strict: bool = False) -> Plan:
    """Return the world of a seed without these calls. In a tenth of the worlds, faults have aims."""
    plan = plan_of_chance(seed, strict)
    chance = Random(seed ^ AIMED)
    if chance.random() < 0.9:
        return plan
    words = (*WORDS, *BEYOND_WORDS, *BEYOND_WORDS) if plan.hosts else WORDS
    kinds = (*KILLS[:6], *DISK[:3], "pause", "machine", *(BEYOND if plan.hosts else ()))
    plan = focused(plan, [*(chance.choice(words) for _ in range(chance.choice((1, 2, 4)))),
                          *(f"{chance.choice(kinds)}@{chance.choice(AIMS)}" for _ in range(chance.choice((0, 1, 3)))),
                          *(shape for shape in (*SHAPES, "reuse", "cancel", "requeue", "submit") if chance.random() < 0.15)], chance.choice((0.3, 0.6)))
    return plan.but(faults=(*plan.faults, *kills(plan, chance)))


def chain(fault: Fault, word: str, chance: Random) -> list[Fault]:
    """Return the faults of a word, which replace this one."""
    found = list[Fault]()
    for number, each in enumerate(word.split("+")):
        kind, _, aim = each.partition("@")
        gap = 1 + int(chance.random() ** 2 * chance.choice((4, 40, 200))) if number else fault.gap
        found.append(Fault(gap, kind, chance.choice(VALUES.get(kind, (0.05, 0.5, 2.0))), 0 if aim or number else fault.edge, aim))
    return found
