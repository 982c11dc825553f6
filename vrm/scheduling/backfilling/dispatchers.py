"""Backfillings by name, and the dispatcher for a user's text. `vrm.ext` has more, for energy, lending and planning."""

from __future__ import annotations

import re

from vrm.scheduling.backfilling.easy import BACKFILLINGS, Easy, ListScheduling, NoBackfilling
from vrm.scheduling.backfilling.dispatcher import Dispatcher
from vrm.scheduling.orderings.ordering import make_ordering
from vrm.scheduling.backfilling.user_dispatcher import own_dispatcher
from vrm.scheduling.registry import PolicyError, guarded, needed
from vrm.scheduling.backfilling.reservations import Reserving


@BACKFILLINGS.register("conservative")
def conservative() -> Reserving:
    """A reservation for every job, kept and moved forward when jobs end early."""
    return Reserving(None, kept=True)


@BACKFILLINGS.register("conservative-recomputed")
def conservative_recomputed() -> Reserving:
    """A reservation for every job, all computed again at each step."""
    return Reserving(None, kept=False)


@BACKFILLINGS.register("easy-kept")
def easy_kept() -> Reserving:
    """One reservation, which its job keeps until it starts, even if another job becomes first."""
    return Reserving(1, kept=True)


_DEPTH = re.compile(r"(\d{1,18})(-per-queue)?(-kept)?", re.ASCII)


def make_backfilling(text: str | int, order: str = "queue",
                     starvation: float = 0.0) -> Dispatcher:
    """Return the dispatcher with that name or dotted path, or with that number of reservations.

    `3` makes three reservations again at each step, `3-kept` keeps them; `1-per-queue` makes one for each queue, for
    queues with nodes of their own, which are like separate machines. A user's own is a function or class without
    arguments whose result has `schedule(step)`, as in `vrm.scheduling.backfilling.user_dispatcher`. `order` is the
    order in which later jobs are backfilled, `queue` or as for `make_ordering`. `starvation` is the factor of the
    guard against starvation, 0 for none. Raises PolicyError.
    """
    dispatcher = _backfilling(text)
    return with_order(dispatcher, order, starvation)


def with_order(dispatcher: Dispatcher, order: str, starvation: float) -> Dispatcher:
    """Return a dispatcher with the order in which it backfills, and with the factor of its starvation guard. Raises
    PolicyError if it cannot use them."""
    by = None if order.strip().lower() == "queue" else make_ordering(order)
    if starvation:
        if type(dispatcher) is not Easy:
            raise PolicyError("Starvation works with the backfilling easy: "
                              f"{dispatcher.name} has no single first job that the others wait for")
        guard: Dispatcher = needed("starvation")(starvation, by)
        return guard
    if by is not None:
        if not isinstance(dispatcher, (Easy, ListScheduling)):
            raise PolicyError("an order of backfilling works with the backfillings easy and list: "
                              f"under {dispatcher.name} it is the queue's")
        dispatcher.order = by
    return dispatcher


def _backfilling(text: str | int) -> Dispatcher:
    depth = _DEPTH.fullmatch(str(text).strip())
    if depth is None:
        own = BACKFILLINGS.own(str(text))
        return own_dispatcher(str(text), guarded(str(text), own)() if own is not None
                              else BACKFILLINGS.make(str(text)))
    number, per_queue, kept = int(depth.group(1)), bool(depth.group(2)), bool(depth.group(3))
    if number == 0:
        return NoBackfilling()
    if number == 1 and not kept and not per_queue:
        return Easy()
    return Reserving(number, kept, per_queue)
