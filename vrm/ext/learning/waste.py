"""What jobs have used of what they held, and what to ask for next time.

Busy cores are CPU seconds over run time. An MPI rank that waits for others is busy, too: from outside that cannot be
told from work. Where the same program and input has run on fewer ranks, its core seconds there show how much was
work. """

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple
from collections.abc import Iterable, Mapping, Sequence

from vrm.ext.learning.observed import LearnedJob, input_of
from vrm.model.quantities import fold, memory_bytes, memory_text, numbers, said
from vrm.results.job_columns import JobFileError
from vrm.results.jobs import JobRow
from vrm.results.places import parse_cores
from vrm.workload.grammar import FIELDS

FEW_BUSY = 0.75
"""Of the cores of a job, the part below which those that were busy are few."""

ROUNDING = 0.05
"""Busy cores that are no core more: starting a program takes some time."""

LITTLE, MUCH = 0.5, 0.9
"""Of the memory or time that was asked for, the parts below which too much was asked, and above which it was tight."""

SPARE = 1.2
"""How much more memory than was used should be asked for."""

SPARE_TIME = 1.5
"""How much more time."""

LITTLE_IDLE = 0.02
"""Of the core time of the nodes, the part below which nothing is said of what was idle while jobs waited."""

SHORT = 1.0
"""Seconds below which nothing is found in a job: its start is a large part of it."""

OVERHEAD = 1.5
"""How many times as many core seconds as on fewer ranks are many."""

CoreSeconds = Mapping[tuple[str, str], Mapping[int, float]]
"""Median core seconds by number of ranks, of each program and input."""

NOT_KNOWN: CoreSeconds = {}
"""Those of no program."""


@dataclass(frozen=True)
class ProgramUse:
    """What a program of a coupled job has used, by the last look at it: `busy` are the cores that were busy on average,
    of `cores`; `largest` are the bytes of its largest process."""

    app: str
    ranks: int
    cores: int
    busy: float
    largest: int


@dataclass(frozen=True)
class JobUse:
    """What a job has used: `busy` are the cores that were busy on average, of `cores` (None: not known). `beyond` are
    threads that ran beyond the cores of a node. `memory` are the most bytes on a node, of those that it `asked` for
    there (0: none). `seconds` is its run time, `limit` its walltime. `findings` are sentences, `ask` what to ask for
    next time, by the fields of a job (`ranks` and `time` for the second and the third word of its line). `programs` are
    those of a coupled job, where nodes were asked about it."""

    id: int
    app: str
    input: str
    status: str
    seconds: float
    limit: float
    ranks: int
    cores: int
    busy: float | None
    beyond: int
    memory: int | None
    asked: int
    findings: tuple[str, ...]
    ask: Mapping[str, Any]
    programs: tuple[ProgramUse, ...] = ()

    @property
    def wasted(self) -> float:
        """Core seconds that were held and not used, as far as that is known."""
        return 0.0 if self.busy is None else max(0.0, self.cores - self.busy) * self.seconds


def use_of(row: JobRow, work: CoreSeconds = NOT_KNOWN) -> JobUse | None:
    """Return what a job has used; None for one that never ran. `work` is what its program needed on other numbers of
    ranks."""
    if row.start is None or row.end is None:
        return None
    seconds, beyond, asked = row.end - row.start, row.threads_beyond, asked_memory(row)
    busy = row.cpu_time / seconds if row.cpu_time and seconds > 0 else None
    memory = int(memory_bytes(row.memory_peak)) if row.memory_peak else None
    found: list[str] = []
    ask: dict[str, Any] = {}
    programs = programs_of(row) if row.coupled else ()
    if seconds >= SHORT:
        if row.coupled:
            few = [(each.app, _few_busy(each.busy, each.ranks, each.cores)[0]) for each in programs]
            found += [f"{app}: {text}" for app, text in few if text]
        else:
            text, ask = _few_busy(math.inf if busy is None else busy, row.procs, row.processors)
            found += [text] if text else []
            _widths(row, seconds, work, found)
        if beyond:
            each = max(1, row.processors // row.procs)
            found.append(f"{beyond} more threads than cores ran at once: set OMP_NUM_THREADS={each}, or ask for more "
                         "cores")
        _memory(memory, asked, row, found, ask)
        if row.status == "completed" and seconds < LITTLE * row.walltime and row.walltime - seconds > 60:
            ask["time"] = said(math.ceil(max(SPARE_TIME * seconds, seconds + 30) / 10) * 10)
            found.append(f"it ran for {said(seconds)} of {said(row.walltime)}: ask for {ask['time']}")
    return JobUse(row.id, row.app, input_of(row), row.status, seconds, row.walltime, row.procs, row.processors, busy,
                  beyond, memory, asked, tuple(found), ask, programs)


def programs_of(row: JobRow) -> tuple[ProgramUse, ...]:
    """Return what the programs of a coupled job have used; none where that is not known. It is damaged where it does
    not agree with the programs that the job says, and then not known, either."""
    seconds = (row.end or 0.0) - (row.start or 0.0)
    try:
        known = [text.split() for text in row.programs_use.split(" : ")]
        return tuple(ProgramUse(part.app, part.request.tasks, part.request.tasks * part.request.cores_per_task,
                                float(cpu) / seconds, int(memory_bytes(largest)))
                     for part, (cpu, largest) in zip(FIELDS["coupled"].kind.read(row.coupled), known, strict=True))
    except (ValueError, ZeroDivisionError):
        return ()


def _few_busy(busy: float, ranks: int, cores: int) -> tuple[str, dict[str, Any]]:
    """What to say of a program that has kept few of its cores busy, and what to ask for; "" of others."""
    if busy >= FEW_BUSY * cores:
        return "", {}
    each = cores // ranks
    wanted = max(1, math.ceil(busy / ranks - ROUNDING))
    begin = f"{busy:.1f} of {cores} core{'s' * (cores > 1)} {'were' if cores > 1 else 'was'} busy"
    if wanted < each:
        return f"{begin}: ask for cores={wanted}", {"cores": wanted}
    fewer = max(1, math.ceil(busy / each - ROUNDING))
    if fewer < ranks:
        return f"{begin}: its ranks wait for something; try {fewer} rank{'s' * (fewer > 1)}", {"ranks": fewer}
    return "", {}


def _widths(row: JobRow, seconds: float, work: CoreSeconds, found: list[str]) -> None:
    """Whether the same has needed far fewer core seconds on fewer ranks."""
    fewer = {ranks: needed for ranks, needed in work.get((row.app, input_of(row)), {}).items() if ranks < row.procs}
    if not fewer or row.status != "completed":
        return
    best = min(fewer, key=lambda ranks: fewer[ranks])
    here = seconds * row.processors
    if here > OVERHEAD * fewer[best]:
        found.append(f"it took {here:.0f} core seconds, and {fewer[best]:.0f} on {best} rank{'s' * (best > 1)}: the "
                     "rest is waiting and overhead")


def _memory(memory: int | None, asked: int, row: JobRow, found: list[str], ask: dict[str, Any]) -> None:
    """Whether a job has asked for far too much memory, or for hardly enough."""
    if memory is None or not asked or LITTLE * asked <= memory <= MUCH * asked:
        return
    per_task = bool(row.mem_per_task)
    share = memory / max(_ranks_on_nodes(row)) if per_task else memory
    name = "mem_per_task" if per_task else "mem_per_node"
    ask[name] = memory_text(math.ceil(SPARE * share / (10 << 20)) * (10 << 20))
    found.append(f"{memory_text(_whole(memory))} of {memory_text(_whole(asked))} memory were used on a node: ask for "
                 f"{name}={ask[name]}")


def _whole(size: int) -> int:
    """Bytes in whole MiB."""
    return max(1, round(size / (1 << 20))) << 20


def _ranks_on_nodes(row: JobRow) -> list[int]:
    """How many ranks a job had on each of its nodes."""
    each = max(1, row.processors // row.procs)
    try:
        found = [max(1, sum(part.last - part.first + 1 for part in parts) // each)
                 for _, parts in parse_cores(row.cores)]
    except JobFileError:
        found = []
    return found or [row.procs]


def asked_memory(row: JobRow) -> int:
    """Return the bytes that a job has asked for on the node where it has most ranks; 0 where it asked for none."""
    each, once = (int(memory_bytes(text)) if text else 0 for text in (row.mem_per_task, row.mem_per_node))
    return each * max(_ranks_on_nodes(row)) + once if each or once else 0


def core_seconds(jobs: Iterable[LearnedJob]) -> CoreSeconds:
    """Return the median core seconds of jobs that completed, by program and input, and number of ranks."""
    groups: dict[tuple[str, str], dict[int, list[float]]] = {}
    for job in jobs:
        if job.status == "completed" and job.steady:
            groups.setdefault((job.app, job.input), {}).setdefault(job.ranks, []).append(job.seconds * job.cores)
    return {key: {ranks: median(values) for ranks, values in of.items()} for key, of in groups.items()}


# ---------------------------------------------------------------------------------------------- a run


@dataclass(frozen=True)
class RunUse:
    """What the jobs of a run have used of its `cores`, between the first start and the last end, `seconds` later.
    Core seconds: `held` by jobs, of which `known` are those of jobs whose CPU time is known, and `busy` those in
    which it was used; `idle` while jobs waited, and of these in `fit` as many as the waiting jobs would have needed
    were free. `example` is the job that waited longest then, `narrow` the most cores of a job that would have fit
    where none did."""

    cores: int
    seconds: float
    held: float
    known: float
    busy: float
    idle: float
    fit: float
    example: int | None
    narrow: int

    @property
    def text(self) -> str:
        """One line for people; "" where there is nothing to say."""
        total, parts = self.cores * self.seconds, []
        if self.known:
            some = f" (known for {self.known / self.held:.0%} of it)" if self.known < 0.99 * self.held else ""
            parts.append(f"{self.busy / self.known:.0%} of the core time that jobs held was used{some}")
        if total > 0 and self.idle >= LITTLE_IDLE * total:
            parts.append(f"{self.idle / total:.0%} of the core time of the nodes was idle while jobs waited")
            if self.fit >= 0.5 * self.idle:
                parts.append(f"#{self.example} and others that waited needed at most the cores that were free, but the "
                             "rules or the nodes did not allow their starts")
            elif self.narrow:
                parts.append(f"a job of {self.narrow} core{'s' * (self.narrow > 1)} would have used it")
        return "; ".join(parts)


class _Change(NamedTuple):
    """At a `time`, `cores` become free (below 0: are taken), and a job begins to wait (1) or has waited (-1)."""

    time: float
    cores: int
    waits: int
    row: JobRow


def run_use(rows: Sequence[JobRow], cores: int) -> RunUse | None:
    """Return what the jobs of a run have used of the cores of its nodes; None where none has run."""
    ran = [row for row in rows if row.start is not None and row.end is not None and row.end > row.start]
    if not ran:
        return None
    first, last = min(row.start or 0.0 for row in ran), max(row.end or 0.0 for row in ran)
    held = [(row.processors * ((row.end or 0.0) - (row.start or 0.0)), row.cpu_time) for row in ran]
    idle, fit, narrow = 0.0, 0.0, 0
    lost: Counter[int] = Counter()  # seconds by job
    free, waiting = cores, _WaitingJobs()
    changes = _changes(ran)
    for change, following in zip(changes, [*changes[1:], None]):
        free += change.cores
        waiting.take(change)
        span = (min(last, following.time) if following else last) - max(first, change.time)
        if span <= 0 or free <= 0 or not waiting.oldest:
            continue
        idle += free * span
        fits = [width for width in waiting.oldest if width <= free]
        if fits:
            fit += free * span
            lost[waiting.oldest[max(fits)][0]] += round(1000 * span)
        else:
            narrow = max(narrow, free)
    example = lost.most_common(1)[0][0] if lost else None
    return RunUse(cores, last - first, sum(mine for mine, _ in held), sum(mine for mine, cpu in held if cpu),
                  sum(min(cpu, mine) for mine, cpu in held), idle, fit, example, narrow)


class _WaitingJobs:
    """The jobs that wait, by the number of their cores: `oldest` has their ids in the order in which they came."""

    def __init__(self) -> None:
        self.oldest: dict[int, list[int]] = {}

    def take(self, change: _Change) -> None:
        """A job begins to wait, or has waited."""
        width, job = change.row.processors, change.row.id
        if change.waits > 0:
            self.oldest.setdefault(width, []).append(job)
        elif change.waits < 0:
            self.oldest[width].remove(job)
            if not self.oldest[width]:
                del self.oldest[width]


def _changes(ran: Sequence[JobRow]) -> list[_Change]:
    """What changes when, for jobs that ran: they wait from when those have ended that they depend on."""
    ends, found = {row.id: row.end for row in ran}, []
    for row in ran:
        start, end = row.start or 0.0, row.end or 0.0
        found += [_Change(start, -row.processors, 0, row), _Change(end, row.processors, 0, row)]
        since = max([row.submit, *(ends[job] or 0.0 for job in _before(row) if job in ends)])
        if since < start:
            found += [_Change(since, 0, 1, row), _Change(start, 0, -1, row)]
    return sorted(found, key=lambda change: change.time)


def _before(row: JobRow) -> list[int]:
    """The jobs that a job has waited for, by its column `after`."""
    found: list[int] = []
    for part in str(row.after or "").split(","):
        try:
            found += numbers(part.rpartition(":")[2].partition("+")[0])
        except ValueError:
            continue
    return found


def by_program(uses: Iterable[JobUse], most: int = 3) -> list[str]:
    """Return a line for each of the programs that have wasted most core seconds, with what to ask for next time."""
    groups: dict[tuple[str, str], list[JobUse]] = {}
    for use in uses:
        groups.setdefault((use.app, use.input), []).append(use)
    lines: list[str] = []
    for (app, _), of in sorted(groups.items(), key=lambda each: -sum(use.wasted for use in each[1])):
        wishes = Counter(wish_text(name, value) for use in of for name, value in use.ask.items() if name != "time")
        known = [use.busy for use in of if use.busy is not None]
        if wishes and len(lines) < most:
            busy = f"{fmean(known):.1f} of {fold(sorted({use.cores for use in of}))} cores busy, " if known else ""
            lines.append(f"{app} ({len(of)} job{'s' * (len(of) > 1)}): {busy}ask for "
                         + " and ".join(wish for wish, _ in wishes.most_common(2)))
    return lines


def wish_text(name: str, value: Any) -> str:
    """Return one of the things to ask for next time (`JobUse.ask`), as a line of the queue or `vrm submit` has it."""
    if name == "ranks":
        return f"{value} rank{'s' * (value > 1)}"
    return str(value) if name == "time" else f"{name}={value}"
