"""What jobs used of the resources that they held, and what to request next time.

Busy cores are CPU seconds divided by run time. An MPI rank that waits for others is busy, too: from outside,
waiting cannot be distinguished from work. If the same program and input has run on fewer ranks, its core
seconds there show how much was work.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple
from collections.abc import Iterable, Mapping, Sequence

from vrm.ext.learning.learned_jobs import LearnedJob, input_of
from vrm.model.quantities import fold, memory_bytes, memory_text, numbers, said
from vrm.results.job_columns import JobFileError
from vrm.results.jobs import JobRow
from vrm.results.placement_text import parse_cores
from vrm.workload.grammar import FIELDS

FEW_BUSY = 0.75
"""Fraction of a job's cores below which few of them were busy."""

ROUNDING = 0.05
"""Busy cores above a whole number that do not count as another core: starting a program takes some time."""

LITTLE, MUCH = 0.5, 0.9
"""Fractions of the requested memory or time: below the first, too much was requested; above the second, it was
tight."""

SPARE = 1.2
"""Factor between used memory and the memory to request."""

SPARE_TIME = 1.5
"""Factor between used time and the time to request."""

LITTLE_IDLE = 0.02
"""Fraction of the core time of the nodes; less idle time while jobs waited is not reported."""

SHORT = 1.0
"""Shorter jobs, in seconds, are not examined: start-up is a large part of them."""

OVERHEAD = 1.5
"""Factor by which core seconds exceed those on fewer ranks if they are many."""

CoreSeconds = Mapping[tuple[str, str], Mapping[int, float]]
"""Median core seconds by number of ranks, for each program and input."""

NOT_KNOWN: CoreSeconds = {}
"""Core seconds of no program."""


@dataclass(frozen=True)
class ProgramUse:
    """What a program of a coupled job used until the last look at it: `busy` is the average number of busy
    cores of its `cores`; `largest` are the bytes of its largest process."""

    app: str
    ranks: int
    cores: int
    busy: float
    largest: int


@dataclass(frozen=True)
class JobUse:
    """What a job used: `busy` is the average number of busy cores of its `cores` (None: unknown). `beyond` is
    the number of threads that ran beyond the cores of a node. `memory` is the peak in bytes on a node, `asked`
    what it requested there (0: nothing). `seconds` is its run time, `limit` its walltime. `findings` are
    sentences, `ask` what to request next time, by the fields of a job (`ranks` and `time` are the second and
    the third word of its line). `programs` are those of a coupled job, if nodes were asked about it."""

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
        """Core seconds that were held and not used, as far as they are known."""
        return 0.0 if self.busy is None else max(0.0, self.cores - self.busy) * self.seconds


def use_of(row: JobRow, work: CoreSeconds = NOT_KNOWN) -> JobUse | None:
    """Return what a job used; None if it never ran. `work` is what its program needed on other numbers of
    ranks."""
    if row.start is None or row.end is None:
        return None
    seconds, beyond, asked = row.end - row.start, row.threads_beyond, requested_memory(row)
    busy = row.cpu_time / seconds if row.cpu_time and seconds > 0 else None
    memory = int(memory_bytes(row.memory_peak)) if row.memory_peak else None
    found: list[str] = []
    ask: dict[str, Any] = {}
    programs = programs_of(row) if row.coupled else ()
    if seconds >= SHORT:
        if row.coupled:
            few = [(each.app, _idle_cores_finding(each.busy, each.ranks, each.cores)[0]) for each in programs]
            found += [f"{app}: {text}" for app, text in few if text]
        else:
            text, ask = _idle_cores_finding(math.inf if busy is None else busy, row.procs, row.processors)
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
    """Return what the programs of a coupled job used; () if that is unknown, or damaged: it then disagrees with
    the programs of the job."""
    seconds = (row.end or 0.0) - (row.start or 0.0)
    try:
        known = [text.split() for text in row.programs_use.split(" : ")]
        return tuple(ProgramUse(part.app, part.request.tasks, part.request.tasks * part.request.cores_per_task,
                                float(cpu) / seconds, int(memory_bytes(largest)))
                     for part, (cpu, largest) in zip(FIELDS["coupled"].kind.read(row.coupled), known, strict=True))
    except (ValueError, ZeroDivisionError):
        return ()


def _idle_cores_finding(busy: float, ranks: int, cores: int) -> tuple[str, dict[str, Any]]:
    """Return what to report about a program that kept few of its cores busy, and what to request; "" for other
    programs."""
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
    """Report if the same program and input needed far fewer core seconds on fewer ranks."""
    fewer = {ranks: needed for ranks, needed in work.get((row.app, input_of(row)), {}).items() if ranks < row.procs}
    if not fewer or row.status != "completed":
        return
    best = min(fewer, key=lambda ranks: fewer[ranks])
    here = seconds * row.processors
    if here > OVERHEAD * fewer[best]:
        found.append(f"it took {here:.0f} core seconds, and {fewer[best]:.0f} on {best} rank{'s' * (best > 1)}: the "
                     "rest is waiting and overhead")


def _memory(memory: int | None, asked: int, row: JobRow, found: list[str], ask: dict[str, Any]) -> None:
    """Report if a job requested far too much memory, or hardly enough."""
    if memory is None or not asked or LITTLE * asked <= memory <= MUCH * asked:
        return
    per_task = bool(row.mem_per_task)
    share = memory / max(_ranks_on_nodes(row)) if per_task else memory
    name = "mem_per_task" if per_task else "mem_per_node"
    ask[name] = memory_text(math.ceil(SPARE * share / (10 << 20)) * (10 << 20))
    found.append(f"{memory_text(_whole(memory))} of {memory_text(_whole(asked))} memory were used on a node: ask for "
                 f"{name}={ask[name]}")


def _whole(size: int) -> int:
    """Return bytes rounded to whole MiB."""
    return max(1, round(size / (1 << 20))) << 20


def _ranks_on_nodes(row: JobRow) -> list[int]:
    """Return the number of ranks of a job on each of its nodes."""
    each = max(1, row.processors // row.procs)
    try:
        found = [max(1, sum(part.last - part.first + 1 for part in parts) // each)
                 for _, parts in parse_cores(row.cores)]
    except JobFileError:
        found = []
    return found or [row.procs]


def requested_memory(row: JobRow) -> int:
    """Return the bytes that a job requested on the node with most of its ranks; 0 if it requested none."""
    each, once = (int(memory_bytes(text)) if text else 0 for text in (row.mem_per_task, row.mem_per_node))
    return each * max(_ranks_on_nodes(row)) + once if each or once else 0


def core_seconds(jobs: Iterable[LearnedJob]) -> CoreSeconds:
    """Return the median core seconds of completed jobs, by program and input, and by number of ranks."""
    groups: dict[tuple[str, str], dict[int, list[float]]] = {}
    for job in jobs:
        if job.status == "completed" and job.steady:
            groups.setdefault((job.app, job.input), {}).setdefault(job.ranks, []).append(job.seconds * job.cores)
    return {key: {ranks: median(values) for ranks, values in of.items()} for key, of in groups.items()}


# ---------------------------------------------------------------------------------------------- a run


@dataclass(frozen=True)
class RunUse:
    """What the jobs of a run used of its `cores` in `seconds`: from the first start to the last end, without the times
    in which jobs waited and none ran, since no manager ran then. In core seconds: `held` by jobs; `known`, the part of
    jobs whose CPU time is known; `busy`, the part of that which was used; `idle`, the time that was idle while jobs
    waited; `fit`, the part of that in which enough cores for a waiting job were free. `example` is the job that waited
    longest in `fit`; `narrow` is the largest number of cores that a job could have used when no waiting job fitted."""

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
        """The summary in one line; "" if there is nothing to report."""
        total, parts = self.cores * self.seconds, []
        if self.known:
            some = f" (known for {self.known / self.held:.0%} of it)" if self.known < 0.99 * self.held else ""
            parts.append(f"{self.busy / self.known:.0%} of the core time that jobs held was used{some}")
        if total > 0 and self.idle >= LITTLE_IDLE * total:
            parts.append(f"{self.idle / total:.0%} of the core time of the nodes was idle while jobs waited")
            if self.fit >= 0.5 * self.idle:
                parts.append(f"the free cores were enough for #{self.example} and other waiting jobs, but the order, "
                             "the backfilling or the nodes kept them from starting")
            elif self.narrow:
                parts.append(f"a job of {self.narrow} core{'s' * (self.narrow > 1)} would have used it")
        return "; ".join(parts)


class _Change(NamedTuple):
    """At `time`, `cores` become free (negative: are taken), and a job begins to wait (1) or ends its wait (-1)."""

    time: float
    cores: int
    waits: int
    row: JobRow


def run_use(rows: Sequence[JobRow], cores: int) -> RunUse | None:
    """Return what the jobs of a run used of the cores of its nodes; None if no job has run."""
    ran = [row for row in rows if row.start is not None and row.end is not None and row.end > row.start]
    if not ran:
        return None
    first, last = min(row.start or 0.0 for row in ran), max(row.end or 0.0 for row in ran)
    held = [(row.processors * ((row.end or 0.0) - (row.start or 0.0)), row.cpu_time) for row in ran]
    idle, fit, paused, narrow = 0.0, 0.0, 0.0, 0
    lost: Counter[int] = Counter()  # milliseconds by job
    free, waiting = cores, _WaitingJobs()
    changes = _changes(ran)
    for change, following in zip(changes, [*changes[1:], None]):
        free += change.cores
        waiting.take(change)
        span = (min(last, following.time) if following else last) - max(first, change.time)
        if span <= 0 or free <= 0 or not waiting.oldest:
            continue
        if free >= cores:
            paused += span
            continue
        idle += free * span
        fits = [width for width in waiting.oldest if width <= free]
        if fits:
            fit += free * span
            lost[waiting.oldest[max(fits)][0]] += round(1000 * span)
        else:
            narrow = max(narrow, free)
    example = lost.most_common(1)[0][0] if lost else None
    return RunUse(cores, last - first - paused, sum(mine for mine, _ in held), sum(mine for mine, cpu in held if cpu),
                  sum(min(cpu, mine) for mine, cpu in held), idle, fit, example, narrow)


class _WaitingJobs:
    """The waiting jobs by their number of cores: `oldest` has their ids in the order in which they began to
    wait."""

    def __init__(self) -> None:
        self.oldest: dict[int, list[int]] = {}

    def take(self, change: _Change) -> None:
        """Add a job that begins to wait, or remove one that has waited."""
        width, job = change.row.processors, change.row.id
        if change.waits > 0:
            self.oldest.setdefault(width, []).append(job)
        elif change.waits < 0:
            self.oldest[width].remove(job)
            if not self.oldest[width]:
                del self.oldest[width]


def _changes(ran: Sequence[JobRow]) -> list[_Change]:
    """Return the changes in the order of time. Jobs wait from the time when those on which they depend have
    ended."""
    ends, found = {row.id: row.end for row in ran}, []
    for row in ran:
        start, end = row.start or 0.0, row.end or 0.0
        found += [_Change(start, -row.processors, 0, row), _Change(end, row.processors, 0, row)]
        since = max([row.submit, *(ends[job] or 0.0 for job in _before(row) if job in ends)])
        if since < start:
            found += [_Change(since, 0, 1, row), _Change(start, 0, -1, row)]
    return sorted(found, key=lambda change: change.time)


def _before(row: JobRow) -> list[int]:
    """Return the jobs for which a job has waited, from its column `after`."""
    found: list[int] = []
    for part in str(row.after or "").split(","):
        try:
            found += numbers(part.rpartition(":")[2].partition("+")[0])
        except ValueError:
            continue
    return found


def by_program(uses: Iterable[JobUse], most: int = 3) -> list[str]:
    """Return a line for each of the programs that wasted most core seconds, with what to request next time."""
    groups: dict[tuple[str, str], list[JobUse]] = {}
    for use in uses:
        groups.setdefault((use.app, use.input), []).append(use)
    lines: list[str] = []
    for (app, _), of in sorted(groups.items(), key=lambda each: -sum(use.wasted for use in each[1])):
        wishes = Counter(request_text(name, value) for use in of for name, value in use.ask.items() if name != "time")
        known = [use.busy for use in of if use.busy is not None]
        if wishes and len(lines) < most:
            busy = f"{fmean(known):.1f} of {fold(sorted({use.cores for use in of}))} cores busy, " if known else ""
            lines.append(f"{app} ({len(of)} job{'s' * (len(of) > 1)}): {busy}ask for "
                         + " and ".join(wish for wish, _ in wishes.most_common(2)))
    return lines


def request_text(name: str, value: Any) -> str:
    """Return one of the things to request next time (`JobUse.ask`), as it is written in a queue line or for
    `vrm submit`."""
    if name == "ranks":
        return f"{value} rank{'s' * (value > 1)}"
    return str(value) if name == "time" else f"{name}={value}"
