"""Requests for allocations of a pool: each is an entry of its journal before the batch system knows of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from collections.abc import Callable, Iterable, Sequence

from vrm.ext.allocations.pool import batch
from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.state import TAKEN_BACK, Entry, PoolRequest, PoolState, nodes_of, surplus
from vrm.ext.begin.wrapper import script
from vrm.live.batch.base import Wrapper, WrapperError
from vrm.system.files import write_atomically


Enough = Callable[[PoolState, Sequence[PoolRequest]], bool]
"""Whether these requests are all that the pool needs to have waiting."""


def ask(pool: PoolJournal, nodes: int, seconds: float, leaving: str = "",
        enough: Enough = lambda state, waiting: False) -> PoolRequest | None:
    """Ask for one more allocation, if the pool may have more of them and of their nodes, and those that wait are not
    `enough`; the allocation `leaving` is about to end. PoolError with the batch system's words if it refuses; then the
    request is over."""
    def wanted(state: PoolState) -> Entry | None:
        living = state.living() - state.is_live(leaving)
        most = state.options.get("max_nodes") or math.inf
        if (state.stopped or living >= state.options["max_allocations"] or nodes_of(state, leaving) + nodes > most
                or enough(state, [*state.pending()])):
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


def take_back(pool: PoolJournal, enough: Enough = lambda state, waiting: True) -> list[PoolRequest]:
    """Take back the requests whose allocations have not begun, but for the oldest ones that are `enough`. One that
    begins nevertheless does nothing: it is in the journal before the batch system is asked to cancel them
    (`cancel`)."""
    taken: list[PoolRequest] = []

    def wanted(state: PoolState) -> Entry | None:
        found = surplus(state, enough)
        return {"do": "over", "number": found[-1].number, "why": TAKEN_BACK} if found else None
    while (entry := pool.decide(wanted)) is not None:
        taken.append(pool.state.requests[entry["number"]])
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
