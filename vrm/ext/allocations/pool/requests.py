"""Requests for allocations of a pool. Each is an entry of the pool's journal before the batch system receives
it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from collections.abc import Callable, Iterable, Sequence

from vrm.ext.allocations.pool import batch
from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.state import WITHDRAWN, Entry, PoolRequest, PoolState, nodes_of, surplus
from vrm.ext.begin.batch_script import script
from vrm.live.batch.base import BatchScript, BatchScriptError
from vrm.system.files import write_atomically


Enough = Callable[[PoolState, Sequence[PoolRequest]], bool]
"""Returns whether these requests are all that the pool needs to have waiting."""


def ask(pool: PoolJournal, nodes: int, seconds: float, leaving: str = "",
        enough: Enough = lambda state, waiting: False) -> PoolRequest | None:
    """Request one more allocation, if the pool may have more allocations and nodes, and the waiting requests
    are not `enough`; the allocation `leaving` is about to end. Returns None if nothing is requested. Raises
    PoolError with the batch system's message if it refuses; the request is then over."""
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
    except (PoolError, OSError, BatchScriptError) as error:
        why = str(error)
        pool.decide(lambda state: {"do": "over", "number": number, "why": why})
        raise PoolError(why) from error
    pool.decide(lambda state: {"do": "asked", "number": number, "job": job})
    return pool.state.requests[number]


def request_of(state: PoolState, name: str) -> PoolRequest | None:
    """Return the request that gave an allocation."""
    return next((each for each in state.requests.values() if each.job == state.allocations[name].job), None)


def text(options: dict[str, Any], nodes: int, seconds: float, file: str) -> str:
    """Return the batch script of a request. Raises BatchScriptError."""
    wrapper = BatchScript((*options["command"], "pool", "work", "--pool", options["pool"]), nodes, int(seconds),
                          options["name"], cores=options["cores"], exclusive=options["exclusive"],
                          queue=options["partition"], account=options["account"], modules=tuple(options["modules"]),
                          directives=tuple(options["directives"]))
    return script(options["system"], replace(wrapper, file=file))


def take_back(pool: PoolJournal, enough: Enough = lambda state, waiting: True) -> list[PoolRequest]:
    """Take back the requests whose allocations have not begun, except the oldest ones that are `enough`. An
    allocation that begins nevertheless does nothing: this is in the journal before the batch system is asked to
    cancel it (`cancel`)."""
    taken: list[PoolRequest] = []

    def wanted(state: PoolState) -> Entry | None:
        found = surplus(state, enough)
        return {"do": "over", "number": found[-1].number, "why": WITHDRAWN} if found else None
    while (entry := pool.decide(wanted)) is not None:
        taken.append(pool.state.requests[entry["number"]])
    return taken


def cancel(pool: PoolJournal, taken: Iterable[PoolRequest]) -> None:
    """Cancel the taken-back requests in the batch system."""
    for request in taken:
        batch.cancel(pool.state.options["system"], request.job)


def record_ended_requests(pool: PoolJournal, answers: batch.BatchAnswers) -> None:
    """Record the requests that gave no allocation: their batch jobs ended before vrm began in them."""
    for request in [*pool.look().pending()]:
        if answers.ended(request.job):
            pool.decide(lambda state, number=request.number: {  # type: ignore[misc]
                "do": "over", "number": number, "why": "it ended before vrm had begun in it"}
                if any(each.number == number for each in state.pending()) else None)
