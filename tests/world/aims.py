"""Worlds in which what goes wrong comes just when something else happens, which chance alone meets too seldom: a manager is
killed when it has written a reason and given no signal, a disk is full when a program has ended.

A word says it: `KIND@AIM`, a fault and what it waits for (`AIMS`); `A+B`, a fault soon after another one; the name of a shape of
`SHAPES`, what jobs and users are like then; the kind of an act, of which there are more."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from world.plan import BEYOND, DISK, KILLS, Act, Fault, Plan, front_command, kills, line_of, plan_of_chance

JOURNAL = ("run", "job", "start", "intent", "end", "again", "back", "hold", "lent", "regain", "regained")
"""A record that is written."""

FILES = {"pids": "pids", "ended": "ended", "commands": "commands", "replies": "replies", "jobs.csv": "jobs.csv", "queue": "../queue",
         "scripts": "scripts"}
"""A file that changes, or one in a folder, as the directory of the run has it."""

AIMS = (*JOURNAL, *FILES, "begin", "exit", "signal", "look")
"""Besides: a program of a job begins, or has ended; a manager has sent it a signal; a manager looks for the status of a job."""

ASKED = ("cancel", "requeue", "hold", "submit", "stop", "term", "append", "insert", "lend", "back")
"""What users do that a world may have more of."""

VALUES = {"clock": (-90000.0, -100.0, 2.0, 100.0), "eio": (1.0, 2.0, 4.0), "pause": (0.1, 2.5, 12.0), "stall": (0.02, 0.5, 2.5), "stall_agent": (0.02, 0.5),
          **dict.fromkeys(BEYOND, (0.1, 3.0, 9.0, 20.0))}
"""How long, or how much, by the kind of a fault; others last for up to two seconds."""


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
"""What the lines of a world become: programs that run for seconds, ignore SIGTERM, leave daemons, exceed their limits or fail; jobs
that are too large; scripts; lines that are all the same."""


def shaped(plan: Plan, words: Sequence[str], chance: Random) -> Plan:
    """The same world with jobs of these shapes, more of these acts, or numbers of processes that are given again."""
    for word in words:
        shape = SHAPES.get(word)
        if shape is not None and not (word == "long" and 0 < plan.batch < 60):  # none would ever end
            plan = plan.but(lines=tuple(shape(line, chance) for line in plan.lines), acts=tuple(
                act._replace(value=shape(act.value, chance)) if act.kind in ("submit", "append", "insert") else act for act in plan.acts))
    if "limited" in words:
        plan = plan.but(walltime="kill")
    return plan.but(reuse=plan.reuse or "reuse" in words)


def value_of(kind: str, plan: Plan, chance: Random) -> Any:
    """What an act of this kind is about."""
    if kind in ("submit", "append", "insert"):
        return line_of(chance, 0, plan.cores)
    if kind in ("stop", "term"):
        return None
    job = chance.randrange(max(1, len(plan.lines)))
    return (job, chance.randint(0, 2), None if chance.random() < 0.3 else chance.randrange(max(1, len(plan.lines)))) if kind in ("lend", "back") else job


def focused(plan: Plan, words: Sequence[str], share: float = 0.8) -> Plan:
    """The same world with so many of its faults of these kinds, and more of these acts."""
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
    if found and found[0].aim:  # also of the first one
        found[0] = found[0]._replace(gap=1)
    return plan.but(faults=tuple(found))


AIMED = 0x802c92
"""As `plan.SALT`, for these worlds."""

WORDS = ("manager@job", "manager@start", "manager@intent", "manager@end", "manager@again", "manager@begin", "manager@exit", "machine@run",
         "machine@job", "machine@start", "machine@signal", "machine@commands", "full@exit", "full@again", "full@queue", "full@exit+manager",
         "full@jobs.csv+machine@jobs.csv", "readonly@exit+manager", "readonly@replies+manager", "both@start", "both@begin+supervisor",
         "manager@begin+pause@look", "manager@exit+supervisor@pids", "pause@look", "pause@replies", "stall@commands", "client@commands")
"""What the faults of such worlds are."""

BEYOND_WORDS = ("cut@start", "cut@begin", "delay@start", "node@begin", "node@exit", "machine@begin", "machine@pids", "stand_in@start",
                "stand_in@begin", "ssh@begin", "relay@begin", "relay@exit", "runner@exit", "agent@begin")
"""Where nodes are other machines."""


CALLS, CALLS_SINCE = 0xca115, 795_896_000_000
"""As `plan.SALT`, for calls through the socket; the seeds before are of worlds that there were without."""

CALL_WORDS = ("manager@call", "manager@job", "client@call", "machine@call", "pause@call", "both@call", "full@call", "machine@job",
              "stall@call", "manager@again", "manager@end")
"""What the faults of such worlds are: a call comes, or is on record."""


def plan_of(seed: int, strict: bool = False) -> Plan:
    """The world of a seed: in a tenth of them users call Slurm's commands through the manager's socket."""
    plan = plan_of_faults(seed, strict)
    chance = Random(seed ^ CALLS)
    if seed < CALLS_SINCE or chance.random() < 0.9:
        return plan
    acts = (*plan.acts, *(front_command(chance, plan) for _ in range(chance.choice((4, 8, 16)))), Act(6.5, "release", "all"))
    plan = plan.but(sockets=True, acts=tuple(sorted(acts, key=lambda act: act.time)))
    return focused(plan, [chance.choice(CALL_WORDS) for _ in range(chance.choice((0, 1, 3)))], 0.4)


def plan_of_faults(seed: int, strict: bool = False) -> Plan:
    """The world of a seed without these calls: in a tenth of them what goes wrong comes just when something else happens."""
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
    """The faults of a word, instead of this one."""
    found = list[Fault]()
    for number, each in enumerate(word.split("+")):
        kind, _, aim = each.partition("@")
        gap = 1 + int(chance.random() ** 2 * chance.choice((4, 40, 200))) if number else fault.gap
        found.append(Fault(gap, kind, chance.choice(VALUES.get(kind, (0.05, 0.5, 2.0))), 0 if aim or number else fault.edge, aim))
    return found
