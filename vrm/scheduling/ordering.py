"""Orderings: a utility function decides which waiting job comes first, highest first.

With t the wall-time estimate, q the time waited and n the nodes a job needs: FCFS q, FCSJ q/t,
WFP1 (q/t) n, WFP3 (q/t)^3 n (Tang et al., 2009), SJF -t, LJF t, SAF and LAF -t n and t n (the smallest and the largest
area first). Ties: submit time, then id.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Tuple

from vrm.model.job import Job
from vrm.scheduling.expression import ExpressionError, compile_expression, compile_vector
from vrm.scheduling.registry import (PolicyError, Registry, guarded, is_dotted, load_dotted,
                                     refuse_file, shortened, where)

Utility = Callable[[Job, float, int], float]
"""Utility of a job at `now` (seconds) that needs `nodes` nodes."""

Vector = Callable[[Sequence[Any]], Any]
"""The same for many jobs at once: from arrays of the values of NAMES to one of utilities,
right but for rounding."""

ORDERINGS = Registry("ordering")
NAMES = ("q", "t", "n", "procs", "s", "id")


@dataclass(frozen=True)
class Ordering:
    """A named utility; `static` when the order of two jobs never changes while they wait.

    `vector`, where there is one, spares long queues of a changing order most of the sorting.
    """

    name: str
    utility: Utility
    static: bool
    vector: Optional[Vector] = None

    def key(self, job: Job, now: float, nodes: int) -> Tuple[float, float, int]:
        """Sort key, smallest first; a utility that is not a number comes last."""
        value = self.utility(job, now, nodes)
        return (math.inf if value != value else -value, job.submit, job.id)


def _builtin(name: str, utility: Utility, static: bool = False,
             vector: Optional[Vector] = None) -> None:
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

    def key(self, job: Job, now: float, nodes: int) -> Tuple[float, float, int]:
        """The submission, at once."""
        submit = job.submit
        return (submit, submit, job.id)


ORDERINGS.register("FCFS")(_Fcfs("FCFS", lambda job, now, nodes: -job.submit, static=True))
_builtin("FCSJ", lambda job, now, nodes: (now - job.submit) / job.expected,
         vector=lambda v: v[0] / v[1])
_builtin("WFP1", lambda job, now, nodes: (now - job.submit) / job.expected * nodes,
         vector=lambda v: v[0] / v[1] * v[2])
_builtin("WFP3", lambda job, now, nodes: _cube((now - job.submit) / job.expected) * nodes,
         vector=_wfp3)
_builtin("SJF", lambda job, now, nodes: -job.expected, static=True)
_builtin("LJF", lambda job, now, nodes: job.expected, static=True)
_builtin("SAF", lambda job, now, nodes: -job.expected * nodes, static=True)
_builtin("LAF", lambda job, now, nodes: job.expected * nodes, static=True)


def _own(text: str, own: Callable[..., Any]) -> Utility:
    """A user's function; what it gives that is no number is a PolicyError with its place."""
    ask = guarded(text, own)

    def utility(job: Job, now: float, nodes: int) -> float:
        value = ask(job, now, nodes)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise PolicyError(f"`{text.strip()}`{where(own)} gives {shortened(value)} for job "
                              f"{job.id}; an ordering gives a number, highest first") from None
    return utility


def make_ordering(text: str) -> Ordering:
    """The ordering of that name, expression over q t n procs s id, or dotted path.

    A function given by dotted path is called as `utility(job, now, nodes)`. Raises PolicyError.
    """
    known: Optional[Ordering] = ORDERINGS.get(text)
    if known is not None:
        return known
    if is_dotted(text):
        return Ordering(text.strip(), _own(text, load_dotted(text)), static=False)
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
