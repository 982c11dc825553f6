"""Requests for allocations of a pool: each is an entry of its journal before the batch system knows of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from collections.abc import Callable, Iterable

from vrm.ext.allocations.pool import batch
from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.state import TAKEN_BACK, Entry, PoolRequest, PoolState
from vrm.ext.begin.wrapper import script
from vrm.live.batch.base import Wrapper, WrapperError
from vrm.system.files import write_atomically


def ask(pool: PoolJournal, nodes: int, seconds: float, leaving: int = 0, enough: float = math.inf
        ) -> PoolRequest | None:
    """Ask for one more allocation, if the pool may have more of them, and fewer than `enough` requests wait; so many
    allocations are about to end. PoolError with the batch system's words if it refuses; then the request is over."""
    def wanted(state: PoolState) -> Entry | None:
        if (state.stopped or state.living() - leaving >= state.options["max_allocations"]
                or sum(1 for _ in state.pending()) >= enough):
            return None
        return {"do": "ask", "number": len(state.requests), "nodes": nodes, "seconds": seconds}

    entry = pool.decide(wanted)
    if entry is None:
        return None
    number, options = entry["number"], pool.state.options
    file = pool.directory / f"request-{number}.{options['system']}"
    try:
        write_atomically(file, text(options, nodes, seconds, str(file)))
        job = batch.submit(options["system"], file)
    except (PoolError, OSError, WrapperError) as error:
        why = str(error)
        pool.decide(lambda state: {"do": "over", "number": number, "why": why})
        raise PoolError(why) from error
    pool.decide(lambda state: {"do": "asked", "number": number, "job": job})
    return pool.state.requests[number]


def request_of(state: PoolState, name: str) -> PoolRequest | None:
    """The request that gave an allocation."""
    return next((each for each in state.requests.values() if each.job == state.allocations[name].job), None)


def text(options: dict[str, Any], nodes: int, seconds: float, file: str) -> str:
    """The batch script of a request. Raises WrapperError."""
    wrapper = Wrapper((*options["command"], "pool", "work", "--pool", options["pool"]), nodes, int(seconds),
                      options["name"], cores=options["cores"], exclusive=options["exclusive"],
                      queue=options["partition"], account=options["account"], modules=tuple(options["modules"]),
                      directives=tuple(options["directives"]))
    return script(options["system"], replace(wrapper, file=file))


def take_back(pool: PoolJournal, if_: Callable[[PoolState], bool] = lambda state: True) -> list[PoolRequest]:
    """Take back the requests whose allocations have not begun, as long as this is so. One that begins nevertheless
    does nothing: it is in the journal before the batch system is asked to cancel them (`cancel`)."""
    taken = []
    for request in [*pool.look().pending()]:
        def wanted(state: PoolState, number: int = request.number) -> Entry | None:
            waits = any(each.number == number for each in state.pending())
            return {"do": "over", "number": number, "why": TAKEN_BACK} if waits and if_(state) else None
        if pool.decide(wanted) is not None:
            taken.append(request)
    return taken


def cancel(pool: PoolJournal, taken: Iterable[PoolRequest]) -> None:
    """Have the batch system cancel requests that were taken back."""
    for request in taken:
        batch.cancel(pool.state.options["system"], request.job)


def forget_ended(pool: PoolJournal, answers: batch.BatchAnswers) -> None:
    """Note which requests have come to nothing: their batch jobs ended before their allocations had begun to work."""
    for request in [*pool.look().pending()]:
        if answers.ended(request.job):
            pool.decide(lambda state, number=request.number: {  # type: ignore[misc]
                "do": "over", "number": number, "why": "it ended before vrm had begun in it"}
                if any(each.number == number for each in state.pending()) else None)
