"""Orderings: a utility function decides which waiting job is first; the highest utility comes first.

With t the wall-time estimate, q the time waited and n the nodes a job needs: FCFS q, FCSJ q/t, WFP1 (q/t) n, WFP3
(q/t)^3 n (Tang et al., 2009), SJF -t, LJF t, SAF and LAF -t c and t c with the c cores of all ranks (the smallest and
the largest area first). Ties: submit time, then id. Extensions add others.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any
from collections.abc import Callable, Sequence

from vrm.model.booking import Watcher
from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.queues import Queues
from vrm.scheduling.registry import PolicyError, Registry, guarded, needed, refuse_file, shortened, where

Utility = Callable[[Job, float, int], float]
"""Function (job, now, nodes): the utility at `now` (seconds) of a job that needs `nodes` nodes."""

Vector = Callable[[Sequence[Any]], Any]
"""Utility of many jobs at once: from arrays of the values of NAMES to an array of utilities, correct except for
rounding."""

ORDERINGS = Registry("ordering", "vrm.orderings")
NAMES = ("q", "t", "n", "procs", "s", "id")
ADVISED = "advised"
"""The ordering that leaves the choice to advice, which an extension adds. Only for live runs."""


@dataclass(frozen=True)
class Ordering:
    """A named utility; `static` if the order of two jobs never changes while they wait.

    `vector`, if there is one, avoids most of the sorting in long queues whose order changes. `watcher`, if there is
    one, observes the machine for the utility.
    """

    name: str
    utility: Utility
    static: bool
    vector: Vector | None = None
    watcher: OwnWatcher | None = None

    def key(self, job: Job, now: float, nodes: int) -> tuple[float, ...]:
        """Return the sort key, smallest first; a utility that is not a number is sorted last."""
        value = self.utility(job, now, nodes)
        return (math.inf if value != value else -value, job.submit, job.id)

    def observe(self, cluster: Cluster) -> None:
        """Notify the ordering's watcher of changes of the cluster from now on, unless that is done already."""
        if self.watcher is not None and not any(self.watcher.is_for(one) for one in cluster.watchers):
            cluster.watchers.append(self.watcher)

    def of_queues(self, queues: Queues) -> Ordering:
        """Return the ordering for jobs of these queues."""
        return self


class OwnWatcher(Watcher):
    """A user's watcher, named by `text`: what it raises becomes PolicyError with its place."""

    def __init__(self, text: str, own: Watcher) -> None:
        self.own = own
        for name in ("booked", "released", "revised", "nodes_changed"):
            setattr(self, name, guarded(text, getattr(own, name)))

    def is_for(self, other: Watcher) -> bool:
        """Return whether the other one is the same watcher of the user."""
        return self.own is (other.own if isinstance(other, OwnWatcher) else other)


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


class Fcfs(Ordering):
    """FCFS without a clock: a job that has waited longer was submitted earlier."""

    def key(self, job: Job, now: float, nodes: int) -> tuple[float, ...]:
        """Return the sort key, computed directly from the submission time."""
        submit = job.submit
        return (submit, submit, job.id)


ORDERINGS.register("FCFS")(Fcfs("FCFS", lambda job, now, nodes: -job.submit, static=True))
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


def own_ordering(text: str, own: Callable[..., Any]) -> Ordering:
    """Return an ordering with a user's function, or with an object of a user's class, named by `text`. An object that
    is a `Watcher` observes the machine. If the function raises, or returns something that is not a number, the result
    is PolicyError with its place."""
    if inspect.isclass(own):
        own = guarded(text, own)()
    if not callable(own):
        raise PolicyError(f"`{text.strip()}` makes no ordering: give a function (job, now, nodes), or a class without "
                          "arguments whose objects are called so")
    ask = guarded(text, own)

    def utility(job: Job, now: float, nodes: int) -> float:
        value = ask(job, now, nodes)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise PolicyError(f"`{text.strip()}`{where(own)} gives {shortened(value)} for job "
                              f"{job.id}; an ordering gives a number, highest first") from None
    watcher = OwnWatcher(text, own) if isinstance(own, Watcher) else None
    return Ordering(text.strip(), utility, static=False, watcher=watcher)


def make_ordering(text: str) -> Ordering:
    """Return the ordering with that name, of that expression over q t n procs s id, or with that dotted path.

    A function given by dotted path is called as `utility(job, now, nodes)`; of a class an object is made. Raises
    PolicyError.
    """
    known: Ordering | Callable[[], Ordering] | None = ORDERINGS.get(text)
    if known is not None:  # orderings of vrm's extensions are made on request
        return known if isinstance(known, Ordering) else known()
    own = ORDERINGS.own(text)
    if isinstance(own, Watcher):
        raise PolicyError(f"`{text.strip()}` is an object that observes starts and ends; name its class "
                          f"({type(own).__name__}), so that each run has an object of its own")
    if own is not None:
        return own_ordering(text, own)
    refuse_file(text)
    if text.strip().isidentifier() and text.strip() not in NAMES:
        raise PolicyError(ORDERINGS.unknown(text) + f"; or an expression of {' '.join(NAMES)}")
    written: Ordering = needed("expression")(text)
    return written
