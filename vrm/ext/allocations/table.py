"""The comparison of requests as a table, and the commands to type."""

from __future__ import annotations

import itertools
import math
import shlex
from typing import Any, NamedTuple
from collections.abc import Sequence

from vrm.ext.advice.advice import Spread
from vrm.ext.allocations.compare import SURE, PartRequest, RequestForecast, widths
from vrm.ext.allocations.shapes import RequestLimits, AllocationShape
from vrm.ext.allocations.queue_parts import part_name
from vrm.ext.begin.batch_script import submit_commands
from vrm.live.batch.base import BatchScript
from vrm.model.quantities import clock
from vrm.results.names import digits
from vrm.run.reasons import clock as moment
from vrm.system.printing.output import boxed

SHOWN = 5
"""Greatest number of requests in the table, unless all are requested: the best of each width and number of
parallel chains."""


class CommandTemplate(NamedTuple):
    """What the commands contain in addition to the shape: the batch system, the configuration (None: vrm.yaml),
    the queue, the cores of each node if whole nodes are not requested, and the requests for each job alone."""

    system: str
    config: str | None
    queue: str | None
    cores: int | None = None
    each: Sequence[PartRequest] = ()

    def script(self, shape: AllocationShape, config: str | None, file: str) -> list[str]:
        """Return the words of `vrm script` for one chain of a shape."""
        words = ["script", *(["-c", config] if config is not None else []), f"--{self.system}", "-N", str(shape.nodes),
                 "-t", clock(int(shape.seconds))]
        words += ["--exclusive"] if self.cores is None else ["--cores", str(self.cores)]
        words += ["--partition", shape.partition] * bool(shape.partition)
        words += ["--chain", str(shape.chain)] * (shape.chain > 1)
        return [*words, "-o", file, "--force"]

    def lines(self, shape: AllocationShape, done: int = 0) -> list[str]:
        """Return the commands for a shape; `done` of its parts are submitted already."""
        suffix = self.system
        if shape.at_once == 1:
            file = f"plan.{suffix}"
            submit = submit_commands(self.system, BatchScript((), shape.nodes, int(shape.seconds), chain=shape.chain,
                                                              file=file))
            return [f"vrm {shlex.join(self.script(shape, self.config, file))}", *submit]
        deal = ["vrm", "plan", *([self.queue] if self.queue else []), *(["-c", self.config] if self.config else []),
                "--deal", str(shape.at_once)]
        order = [(chain, number) for chain, numbers in self.chains(shape).items() for number in numbers][done:]
        return [shlex.join(deal), *(self._loop(chain, [number for _, number in parts])
                                    for chain, parts in itertools.groupby(order, key=lambda each: each[0]))]

    def chains(self, shape: AllocationShape) -> dict[AllocationShape, list[int]]:
        """Return the parallel chains, with the numbers of the parts that request each: one chain, unless each
        job has its own request."""
        found: dict[AllocationShape, list[int]] = {}
        for number in range(1, shape.at_once + 1):
            one = shape._replace(at_once=1, each=False)
            if shape.each:
                one = one._replace(nodes=self.each[number - 1].nodes, seconds=self.each[number - 1].seconds)
            found.setdefault(one, []).append(number)
        return found

    def _loop(self, shape: AllocationShape, parts: Sequence[int]) -> str:
        """Return the command that submits `parts`, which all request `shape`: a shell loop if there are several."""
        mark: int | str = "@part@" if len(parts) > 1 else parts[0]
        words = shlex.join(["vrm", *self.script(shape, part_name(self.config or "vrm.yaml", mark),
                                                f"plan.part{mark}.{self.system}"), "--submit"])
        return words if len(parts) == 1 else (
            f"for p in {' '.join(map(str, parts))}; do {words.replace('@part@', '$p')}; done")


def text(head: Sequence[str], found: Sequence[RequestForecast], typing: CommandTemplate, time: float,
         said: Sequence[str],
         every: bool) -> str:
    """Return the table, the commands, and the assumptions."""
    shown = list(enumerate(found, 1))
    if not every:
        firsts = {id(each) for each in widths(found)[:SHOWN]}
        shown = [(number, each) for number, each in shown if id(each) in firsts]
    rows = [[number, str(each.shape), _range(each.start, time), _range(each.end, time), f"{100 * each.chance:.0f} %",
             digits(each.hours), f"{100 * each.wasted:.0f} %"] for number, each in shown]
    lines = [*head, "", boxed(["no.", "request", "starts (P10 to P90)", "all jobs done (P10 to P90)", "chance",
                               "core hours", "wasted"], rows, left=(1,))]
    if len(shown) < len(found):
        lines.append(f"{len(found)} requests were tried (--all shows them)")
    lines += ["", *advice(found)]
    for number, each in shown:
        lines += [f"{number}. " + "\n   ".join(typing.lines(each.shape))]
    return "\n".join([*lines, "", "Assumed:", *(f"- {each}" for each in said)])


def advice(found: Sequence[RequestForecast]) -> list[str]:
    """Return what to request, in a sentence."""
    first = found[0]
    if first.chance < SURE:
        return [f"No request is sure to do all jobs: no. 1 does it with a chance of {100 * first.chance:.0f} %. Type:"]
    return ["No. 1 has all jobs done first, on average. Type what follows its number, or add --submit:"]


def _range(values: Spread, time: float) -> str:
    """Return P50 and the range as local times."""
    p10, p50, p90 = (moment(time + value, time) if value < math.inf else "later" for value in values[1:])
    return f"{p50} ({p10} to {p90})" if p10 != p90 else p50


def record(found: Sequence[RequestForecast], typing: CommandTemplate, bounds: RequestLimits, time: float, jobs: int,
           drawn: str,
           said: Sequence[str]) -> dict[str, Any]:
    """Return the comparison as JSON values; times are in seconds from `time` (seconds since the epoch)."""
    return {"format": 1, "time": time, "jobs": jobs, "drawn": drawn, "assumed": list(said),
            "partition": {**bounds._asdict(), "longest": bounds.longest if bounds.longest < math.inf else None},
            "requests": [{**each.record(), "type": typing.lines(each.shape)} for each in found]}
