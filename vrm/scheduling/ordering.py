"""Orderings: a utility function decides which waiting job comes first, highest first.

With t the wall-time estimate, q the time waited and n the nodes a job needs: FCFS q, FCSJ q/t,
WFP1 (q/t) n, WFP3 (q/t)^3 n (Tang et al., 2009), SJF -t, LJF t, SAF and LAF -t c and t c with the
c cores of all ranks (the smallest and the largest area first). Ties: submit time, then id. ADVISED is
FCFS until the process beside a live manager has found better rules (`vrm.ext.advice.adviser`).

PRB (A. Netti, "Development of data-driven dispatching heuristics for heterogeneous HPC systems",
University of Bologna, 2017) looks at queues: who has waited longest, measured by what jobs of its
queue are expected to wait, comes first, and of equal ones the smallest. It goes with the backfilling
`list`, which tries every job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.model.amounts import people
from vrm.model.job import Job
from vrm.model.queues import EXPECTED_WAIT, Queues
from vrm.scheduling.expression import ExpressionError, compile_expression, compile_vector
from vrm.scheduling.registry import (PolicyError, Registry, guarded, refuse_file, shortened, where)

Utility = Callable[[Job, float, int], float]
"""Utility of a job at `now` (seconds) that needs `nodes` nodes."""

Vector = Callable[[Sequence[Any]], Any]
"""The same for many jobs at once: from arrays of the values of NAMES to one of utilities,
right but for rounding."""

ORDERINGS = Registry("ordering", "vrm.orderings")
NAMES = ("q", "t", "n", "procs", "s", "id")
ADVISED = "advised"
"""The algorithm that leaves the choice to advice."""


@dataclass(frozen=True)
class Ordering:
    """A named utility; `static` when the order of two jobs never changes while they wait.

    `vector`, where there is one, spares long queues of a changing order most of the sorting.
    """

    name: str
    utility: Utility
    static: bool
    vector: Vector | None = None

    def key(self, job: Job, now: float, nodes: int) -> tuple[float, ...]:
        """Sort key, smallest first; a utility that is not a number comes last."""
        value = self.utility(job, now, nodes)
        return (math.inf if value != value else -value, job.submit, job.id)

    def of_queues(self, queues: Queues) -> Ordering:
        """The ordering for jobs of these queues."""
        return self


def _builtin(name: str, utility: Utility, static: bool = False,
             vector: Vector | None = None) -> None:
    ORDERINGS.register(name)(Ordering(name, utility, static, vector))


def _cube(x: float) -> float:
    try:
        return x ** 3
    except OverflowError:
        return math.copysign(math.inf, x)


def _wfp3(v: Sequence[Any]) -> Any:
    ratio = v[0] / v[1]
    return ratio * ratio * ratio * v[2]


class _Fcfs(Ordering):
    """Who waits longer was submitted earlier, so FCFS needs no clock."""

    def key(self, job: Job, now: float, nodes: int) -> tuple[float, ...]:
        """The submission, at once."""
        submit = job.submit
        return (submit, submit, job.id)


@dataclass(frozen=True)
class Prb(Ordering):
    """The job's wait in proportion to the `expected_waits` of its queue (seconds, by name; those of
    others: an hour), then the smaller product of expected run time and all that it asks for."""

    expected_waits: Mapping[str, float] = field(default_factory=dict)
    default: float = EXPECTED_WAIT

    def of_queues(self, queues: Queues) -> Ordering:
        """With the expected waits that these say."""
        if not queues:
            return self
        waits = {queue.name: queue.expected_wait for queue in queues.all}
        return Prb(self.name, self.utility, False, None, waits,
                   queues.queue(Job(0, "", 1, 1.0)).expected_wait)

    def key(self, job: Job, now: float, nodes: int) -> tuple[float, ...]:
        """Smallest first: the negated rank, and the volume."""
        return (self.rank(job, now), volume(job), job.submit, job.id)

    def rank(self, job: Job, now: float) -> float:
        """Minus the job's wait, stretched to the longest of the expected waits; smallest first."""
        longest = max([self.default, *self.expected_waits.values()])
        return -longest * (now - job.submit) / self.expected_waits.get(job.queue, self.default)


def volume(job: Job) -> float:
    """Expected run time (seconds) times all that a job asks for: cores, GiB of memory and pieces of
    everything else, added up."""
    request = job.request
    each = request.cores_per_task + sum(people(name, amount) for name, amount in request.per_task)
    once = sum(people(name, amount) for name, amount in request.per_node)
    return job.expected * (request.tasks * each + request.least_nodes * once)


def _rank(job: Job, now: float, nodes: int) -> float:
    return now - job.submit


ORDERINGS.register("PRB")(Prb("PRB", _rank, static=False))
ORDERINGS.register("FCFS")(_Fcfs("FCFS", lambda job, now, nodes: -job.submit, static=True))
_builtin("FCSJ", lambda job, now, nodes: (now - job.submit) / job.expected,
         vector=lambda v: v[0] / v[1])
_builtin("WFP1", lambda job, now, nodes: (now - job.submit) / job.expected * nodes,
         vector=lambda v: v[0] / v[1] * v[2])
_builtin("WFP3", lambda job, now, nodes: _cube((now - job.submit) / job.expected) * nodes,
         vector=_wfp3)
_builtin("SJF", lambda job, now, nodes: -job.expected, static=True)
_builtin("LJF", lambda job, now, nodes: job.expected, static=True)
_builtin("SAF", lambda job, now, nodes: -job.expected * job.request.cores, static=True)
_builtin("LAF", lambda job, now, nodes: job.expected * job.request.cores, static=True)
ORDERINGS.register(ADVISED)(_Fcfs(ADVISED, lambda job, now, nodes: -job.submit, static=True))


def own_ordering(text: str, own: Callable[..., Any]) -> Ordering:
    """The ordering by a user's function, named by `text`; what it raises, or gives that is not a number, is
    a PolicyError with its place."""
    ask = guarded(text, own)

    def utility(job: Job, now: float, nodes: int) -> float:
        value = ask(job, now, nodes)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise PolicyError(f"`{text.strip()}`{where(own)} gives {shortened(value)} for job "
                              f"{job.id}; an ordering gives a number, highest first") from None
    return Ordering(text.strip(), utility, static=False)


def make_ordering(text: str) -> Ordering:
    """The ordering of that name, expression over q t n procs s id, or dotted path.

    A function given by dotted path is called as `utility(job, now, nodes)`. Raises PolicyError.
    """
    known: Ordering | None = ORDERINGS.get(text)
    if known is not None:
        return known
    own = ORDERINGS.own(text)
    if own is not None:
        return own_ordering(text, own)
    refuse_file(text)
    if text.strip().isidentifier() and text.strip() not in NAMES:
        raise PolicyError(ORDERINGS.unknown(text) + f"; or an expression of {' '.join(NAMES)}")
    try:
        formula, used = compile_expression(text, NAMES)
    except ExpressionError as error:
        raise PolicyError(str(error)) from error
    return Ordering(text.strip(), lambda job, now, nodes: formula(
        (now - job.submit, job.expected, nodes, job.procs, job.submit, job.id)),
        "q" not in used, compile_vector(text, NAMES))
