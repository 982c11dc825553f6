"""Which allocations a pool asks for: those that `vrm plan` recommends for the jobs that are left, or of a shape that
somebody has chosen."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any
from collections.abc import Sequence

from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.lines import wants, with_after
from vrm.ext.allocations.pool.state import PoolRequest, PoolState, PoolWish, nodes_of
from vrm.ext.allocations.shapes import START_UP
from vrm.system.printing.text import printable

SIDE_BY_SIDE = (1, 2, 4)
"""Numbers of allocations at once that are tried."""


def enough(state: PoolState, requests: Sequence[PoolRequest], left: Sequence[int] = ()) -> bool:
    """Whether these requests are all that the pool needs to have waiting, for the jobs that wait and those that an
    allocation has `left`: as many as were planned, or of as many node seconds, times the share of their work that waits
    still. One of them has the time for the longest job."""
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
    """The core seconds of jobs, by their limits."""
    return sum(wants(state.lines[job]).work for job in jobs)


def wished(pool: PoolJournal, wish: PoolWish) -> None:
    """Write what was planned, or chosen, into the pool's journal."""
    pool.decide(lambda state: None if state.wish == wish else {"do": "wish", **wish._asdict()})


class PoolPlan:
    """`vrm plan` of some jobs of a pool, in a process of its own: it takes seconds, and asks the batch system. `more`:
    the most allocations that may wait, those that are asked for by now among them; `leaving`: an allocation that is
    about to end."""

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

    def wish(self, seconds: float | None = None) -> PoolWish:
        """What it recommends, if it says so within some seconds. PoolError with the reason where it does not."""
        try:
            said, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.close()
            raise PoolError(f"no plan: it was not made within {seconds:g} s") from None
        if self._process.returncode:
            reason = (errors.strip().splitlines() or ["vrm plan says nothing"])[-1]
            raise PoolError(f"no plan: {printable(reason.removeprefix('vrm: '), 400)}")
        return self._chosen(json.loads(said)["requests"])

    def _chosen(self, requests: list[dict[str, Any]]) -> PoolWish:
        """The best request that the pool may have."""
        for each in requests:
            if each["nodes"] <= self._most:
                number = min(self._more, each["at_once"] * each["chain"])
                return PoolWish(int(min(number, self._most // each["nodes"])), each["nodes"], each["seconds"],
                                self._work)
        raise PoolError(f"no plan: --max-nodes leaves {max(0, int(self._most))} nodes, and no request with as few runs "
                        "all jobs")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

