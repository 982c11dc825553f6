"""Plans the requests of a pool: those that `vrm plan` recommends for the jobs that are left, or those of a
chosen shape."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any
from collections.abc import Sequence

from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.lines import wants, with_after
from vrm.ext.allocations.pool.state import PoolRequest, PoolState, PoolDemand, nodes_of
from vrm.ext.allocations.shapes import START_UP
from vrm.system.printing.text import printable

SIDE_BY_SIDE = (1, 2, 4)
"""Numbers of simultaneous allocations that are compared."""


def enough(state: PoolState, requests: Sequence[PoolRequest], left: Sequence[int] = ()) -> bool:
    """Return whether these pending requests are all that the pool needs, for the jobs that wait and those that
    an allocation has `left`. They are enough if they are as many, or have as many node seconds, as was planned,
    times the fraction of the planned work that still waits; and if one of them has the time for the longest
    job."""
    jobs, wish = [wants(state.lines[job]) for job in (*state.free, *state.later, *left)], state.wish
    if not jobs or wish is None:
        return not jobs
    share = min(1.0, sum(job.work for job in jobs) / wish.work)
    number = math.ceil(wish.number * share)
    if len(requests) < number and sum(each.nodes * each.seconds for each in requests) < (
            share * wish.number * wish.nodes * wish.seconds):
        return False
    return max((each.seconds for each in requests), default=0.0) - START_UP >= max(job.seconds for job in jobs)


def work_of(state: PoolState, jobs: Sequence[int]) -> float:
    """Return the core seconds of jobs according to their limits."""
    return sum(wants(state.lines[job]).work for job in jobs)


def wished(pool: PoolJournal, wish: PoolDemand) -> None:
    """Write the planned or chosen requests into the pool's journal."""
    pool.decide(lambda state: None if state.wish == wish else {"do": "wish", **wish._asdict()})


class PoolPlan:
    """`vrm plan` for some jobs of a pool, in a separate process, because it takes seconds and queries the batch
    system. `more`: the greatest number of allocations that may wait, including those requested already;
    `leaving`: an allocation that is about to end."""

    def __init__(self, pool: PoolJournal, jobs: Sequence[int], more: int, leaving: str = "") -> None:
        state, options = pool.state, pool.state.options
        self._more, self._work = more, work_of(state, jobs)
        self._most = (options.get("max_nodes") or math.inf) - nodes_of(state, leaving) + sum(
            each.nodes for each in state.pending())
        queue = pool.directory / f"todo{leaving and '.'}{leaving}"
        words = ["-c", options["config"], "plan", str(queue), "--json", "--at-once",
                 ",".join(str(number) for number in SIDE_BY_SIDE if number <= more)]
        asked = [each.job for each in state.pending()]
        words += ["--without", ",".join(asked)] * bool(asked)
        for key in ("partition", "history", "site_history"):
            if options.get(key):
                words += [f"--{key.replace('_', '-')}", options[key]]
        try:
            queue.write_text("".join(f"{line}\n" for line in with_after(state, jobs)))
            self._process = subprocess.Popen([sys.executable, "-m", "vrm.cli", *words], stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        except OSError as error:
            raise PoolError(f"no plan: {error.filename}: {error.strerror}") from error

    def wish(self, seconds: float | None = None) -> PoolDemand:
        """Return the recommendation, waiting for at most `seconds`. Raises PoolError with the reason if there
        is none."""
        try:
            said, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.close()
            raise PoolError(f"no plan: it was not made within {seconds:g} s") from None
        if self._process.returncode:
            reason = (errors.strip().splitlines() or ["vrm plan says nothing"])[-1]
            raise PoolError(f"no plan: {printable(reason.removeprefix('vrm: '), 400)}")
        return self._chosen(json.loads(said)["requests"])

    def _chosen(self, requests: list[dict[str, Any]]) -> PoolDemand:
        """Return the best request that the limits of the pool allow."""
        for each in requests:
            if each["nodes"] <= self._most:
                number = min(self._more, each["at_once"] * each["chain"])
                return PoolDemand(int(min(number, self._most // each["nodes"])), each["nodes"], each["seconds"],
                                  self._work)
        raise PoolError(f"no plan: --max-nodes leaves {max(0, int(self._most))} nodes, and no request with as few runs "
                        "all jobs")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

