"""Backfillings by their names, with their parameters, and the dispatcher that a text of a user's means.

What needs a library, or is seldom used, is imported when it is named.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Optional, Union

from vrm.scheduling.backfilling import BACKFILLINGS, Easy, ListScheduling, NoBackfilling
from vrm.scheduling.custom import dispatcher_of
from vrm.scheduling.dispatcher import Dispatcher
from vrm.scheduling.ordering import make_ordering
from vrm.scheduling.registry import PolicyError, Readers, above_0, guarded, whole
from vrm.scheduling.reservations import Reserving
from vrm.scheduling.starvation import GuardedEasy


@BACKFILLINGS.register("conservative")
def conservative() -> Reserving:
    """A reservation for every job, kept and moved forward when jobs end early."""
    return Reserving(None, kept=True)


@BACKFILLINGS.register("conservative-recomputed")
def conservative_recomputed() -> Reserving:
    """A reservation for every job, all made again at each step."""
    return Reserving(None, kept=False)


@BACKFILLINGS.register("easy-kept")
def easy_kept() -> Reserving:
    """One reservation, which its job keeps until it starts, whoever is first by then."""
    return Reserving(1, kept=True)


@BACKFILLINGS.register("cp")
def cp(jobs: int = 100, budget: Fraction = Fraction("0.1"), start: str = "easy") -> Dispatcher:
    """The starts of a plan for the first waiting jobs, by constraint programming."""
    from vrm.scheduling.plan import Effort
    from vrm.scheduling.planning import Planning
    return Planning(jobs, Effort(float(budget), max(16.0, float(budget)), start == "easy"))


@BACKFILLINGS.register("eamc")
def eamc(variant: str = "priority-inc-v", weight: Fraction = Fraction(1),
         threshold: Fraction = Fraction("0.35")) -> Dispatcher:
    """The best class of nodes and frequency for each job, by time and energy."""
    from vrm.scheduling.eamc import Eamc
    return Eamc(variant, float(weight), float(threshold))


def _variant(text: str) -> str:
    from vrm.scheduling.eamc import GOALS
    if text not in GOALS:
        raise ValueError(text)
    return text


@BACKFILLINGS.register("sd")
def sd(max_slowdown: Optional[float] = 10.0, share: Fraction = Fraction("0.5"), mates: int = 2,
       when: str = "earlier", reservations: str = "head") -> Dispatcher:
    """EASY, or conservative backfilling, in which jobs that would wait too long start on cores that running
    jobs lend."""
    if reservations == "all":
        from vrm.scheduling.lending import Terms
        from vrm.scheduling.slowdown_all import SlowdownAll
        return SlowdownAll(Terms(max_slowdown, float(share), mates, when == "always", when == "gain"))
    from vrm.scheduling.slowdown import SlowdownDriven
    return SlowdownDriven(max_slowdown, float(share), mates, when == "always", when == "gain")


def _max_slowdown(text: str) -> Optional[float]:
    if text == "dynamic":
        return None
    if not float(text) > 1:
        raise ValueError(text)
    return float(text)


def _below_1(text: str) -> Fraction:
    if above_0(text) >= 1:
        raise ValueError(text)
    return above_0(text)


def _when(text: str) -> str:
    if text not in ("earlier", "always", "gain"):
        raise ValueError(text)
    return text


def _reservations(text: str) -> str:
    if text not in ("head", "all"):
        raise ValueError(text)
    return text


def _start(text: str) -> str:
    if text not in ("easy", "nothing"):
        raise ValueError(text)
    return text


_READERS: Readers = {
    "jobs": (whole, "a number of waiting jobs from 1 on, as jobs=100"),
    "budget": (above_0, "seconds of the solver's deterministic clock, as budget=0.1"),
    "max_slowdown": (_max_slowdown, "a number above 1, inf or dynamic, as max_slowdown=10"),
    "share": (_below_1, "a share of a job's cores above 0 and below 1, as share=0.5"),
    "mates": (whole, "a number of jobs that lend to one, as mates=2"),
    "when": (_when, "when=earlier, when=always or when=gain: whether a job must end earlier than by waiting, and "
             "if so by more than its mates lose"),
    "reservations": (_reservations, "reservations=head or reservations=all: whose start no lend puts off"),
    "start": (_start, "start=easy or start=nothing: with which plan the search begins"),
    "variant": (_variant, "variant=reorder, priority-inc, priority-inc-v, base, min-runtime or min-energy"),
    "weight": (above_0, "how much more time counts than energy, as weight=1.5"),
    "threshold": (above_0, "from which share above the best a class is tried last, as threshold=0.35"),
}


_DEPTH = re.compile(r"(\d{1,18})(-per-queue)?(-kept)?", re.ASCII)


def make_backfilling(text: Union[str, int], order: str = "queue",
                     starvation: float = 0.0) -> Dispatcher:
    """The dispatcher of that name or dotted path, or with that number of reservations.

    `3` makes three reservations again at each step, `3-kept` keeps them; `1-per-queue` makes one for
    each queue: where queues have nodes of their own, each is a machine of its own. A user's own is a function
    or class without arguments whose result is a `Dispatcher` or has `fill`, as Easy, or `plan`, as
    `Dispatcher.decide` without its last argument. `order`: that in which later jobs are backfilled,
    queue or as of `make_ordering`. `starvation`: the factor of `vrm.scheduling.starvation`, 0 for
    none. Raises PolicyError.
    """
    dispatcher = _backfilling(text)
    return with_order(dispatcher, order, starvation)


def with_order(dispatcher: Dispatcher, order: str, starvation: float) -> Dispatcher:
    """A dispatcher with the order in which it backfills, and the factor of its guard; PolicyError
    where it has no use for them."""
    by = None if order.strip().lower() == "queue" else make_ordering(order)
    if starvation:
        if type(dispatcher) is not Easy:
            raise PolicyError("Starvation works with the backfilling easy: "
                              f"{dispatcher.name} has no one head to which others give way")
        return GuardedEasy(starvation, by)
    if by is not None:
        if not isinstance(dispatcher, (Easy, ListScheduling)):
            raise PolicyError("an order of backfilling works with the backfillings easy and list: "
                              f"under {dispatcher.name} it is the queue's")
        dispatcher.order = by
    return dispatcher


def _backfilling(text: Union[str, int]) -> Dispatcher:
    depth = _DEPTH.fullmatch(str(text).strip())
    if depth is None:
        own = BACKFILLINGS.own(str(text))
        return dispatcher_of(str(text), guarded(str(text), own)() if own is not None
                             else BACKFILLINGS.make(str(text), _READERS))
    number, per_queue, kept = int(depth.group(1)), bool(depth.group(2)), bool(depth.group(3))
    if number == 0:
        return NoBackfilling()
    if number == 1 and not kept and not per_queue:
        return Easy()
    return Reserving(number, kept, per_queue)
