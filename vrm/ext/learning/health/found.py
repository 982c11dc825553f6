"""What was found of a node, as the store and people have it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from collections.abc import Hashable, Iterable, Mapping

from vrm.ext.learning.health.judging import NodeFinding
from vrm.model.forms.hosts import fold

SUSPECTED, BAD, QUARANTINED, CLEARED = "suspected", "bad", "quarantined", "cleared"
"""What a node is; CLEARED: what was found before does not count any more."""

SLOWER = 0.9
"""Of the speed of other nodes, the part below which a probe has found a node slow."""


@dataclass(frozen=True)
class NodeRecord:
    """What was found of a node, `since` when (seconds since the epoch). `state` is one of those above, `cause` slow or
    failing, `text` says what was measured."""

    machine: str
    name: str
    state: str
    cause: str
    since: float
    text: str


@dataclass(frozen=True)
class ProbeRecord:
    """What a probe of a node has measured at a `time` (seconds since the epoch): loops and bytes copied a second, by
    all of its `workers` together; `fault`: what is wrong with the node, "" for nothing."""

    machine: str
    name: str
    time: float
    compute: float
    memory: float
    workers: int
    fault: str


@dataclass(frozen=True)
class AttemptRecord:
    """An attempt of a job that failed; `nodes` are folded names, `cores` those of all ranks, `start` and `end` are
    seconds since the epoch."""

    run: str
    job: int
    app: str
    input: str
    ranks: int
    cores: int
    nodes: str
    start: float
    end: float
    machine: str


@dataclass(frozen=True)
class ProbeResult:
    """A probe against those of other nodes: parts of their speed; `fault` as in the record. `others`: their names."""

    compute: float
    memory: float
    fault: str
    others: tuple[str, ...]

    @property
    def bad(self) -> bool:
        """Whether the probe has found something."""
        return bool(self.fault) or min(self.compute, self.memory) < SLOWER

    @property
    def text(self) -> str:
        """What it has found, for people."""
        if self.fault:
            return self.fault
        return (f"computing at {100 * self.compute:.0f} %, copying memory at {100 * self.memory:.0f} % of the speed "
                f"of {fold(self.others)}")


def compared(probe: ProbeRecord, peers: Iterable[ProbeRecord]) -> ProbeResult | None:
    """Return a probe against those of other nodes; None where none has as many workers, and nothing is wrong."""
    usable = [each for each in peers if each.workers == probe.workers and not each.fault and each.name != probe.name]
    if probe.fault or not usable:
        return ProbeResult(0.0, 0.0, probe.fault, ()) if probe.fault else None
    return ProbeResult(probe.compute / median(each.compute for each in usable),
                       probe.memory / median(each.memory for each in usable), "", tuple(each.name for each in usable))


def kinds_of(machine: str) -> Mapping[str, Hashable]:
    """Return what nodes have in common, by what their names begin with, of a machine by its name
    (`vrm.ext.learning.observed.machine_of`). Those of names with several kinds are not there."""
    found: dict[str, list[str]] = {}
    for kind in machine.split(", "):
        found.setdefault(kind.rpartition(" ")[0], []).append(kind)
    return {prefix: of[0] for prefix, of in found.items() if len(of) == 1}


def sentence(finding: NodeFinding) -> str:
    """Return what was measured of a node, for people."""
    runs, nodes = len(finding.trials), len(finding.others)
    others = f"{finding.elsewhere} on {nodes} other node{'s' * (nodes > 1)}"
    if finding.cause == "slow":
        said = f"{runs} runs at {100 * finding.speed:.0f} % of the speed of {others}"
    else:
        said = f"{finding.failed} of {runs} jobs failed, and {finding.elsewhere_failed} of {others}"
    with_it = f"; {fold(finding.together)} had the same jobs" if finding.together else ""
    return f"{said}; by chance once in {number(finding.chance)} runs{with_it}"


def number(value: float) -> str:
    """Return a large number with two digits that count: `12,000`."""
    size = max(0, math.floor(math.log10(max(1.0, value))) - 1)
    return f"{round(value / 10 ** size) * 10 ** size:,}"
