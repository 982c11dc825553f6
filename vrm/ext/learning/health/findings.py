"""Findings about a node, as they are stored and shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from collections.abc import Hashable, Iterable, Mapping

from vrm.ext.learning.health.detection import NodeFinding
from vrm.model.forms.hosts import fold

SUSPECTED, BAD, QUARANTINED, CLEARED = "suspected", "bad", "quarantined", "cleared"
"""States of a node. CLEARED: earlier findings no longer count."""

SLOWER = 0.9
"""Fraction of the speed of other nodes below which a probed node counts as slow."""


@dataclass(frozen=True)
class NodeRecord:
    """The finding about a node, made at `since` (seconds since the epoch). `state` is one of those above,
    `cause` is slow or failing, `text` describes the measurements."""

    machine: str
    name: str
    state: str
    cause: str
    since: float
    text: str


@dataclass(frozen=True)
class ProbeRecord:
    """The result of a node's probe at `time` (seconds since the epoch): `compute` loops per second and `memory`
    bytes copied per second, summed over all `workers`; `fault`: what is wrong with the node, "" if nothing."""

    machine: str
    name: str
    time: float
    compute: float
    memory: float
    workers: int
    fault: str


@dataclass(frozen=True)
class AttemptRecord:
    """A failed attempt of a job. `nodes` are folded names, `cores` those of all ranks; `start` and `end` are
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
    """A probe compared with probes of the nodes `others`: fractions of their speed; `fault` as in the record."""

    compute: float
    memory: float
    fault: str
    others: tuple[str, ...]

    @property
    def bad(self) -> bool:
        """Whether the probe found something wrong."""
        return bool(self.fault) or min(self.compute, self.memory) < SLOWER

    @property
    def text(self) -> str:
        """The result as text."""
        if self.fault:
            return self.fault
        return (f"computing at {100 * self.compute:.0f} %, copying memory at {100 * self.memory:.0f} % of the speed "
                f"of {fold(self.others)}")


def compared(probe: ProbeRecord, peers: Iterable[ProbeRecord]) -> ProbeResult | None:
    """Return a probe compared with those of other nodes; None if no other has the same number of workers and
    nothing is wrong."""
    usable = [each for each in peers if each.workers == probe.workers and not each.fault and each.name != probe.name]
    if probe.fault or not usable:
        return ProbeResult(0.0, 0.0, probe.fault, ()) if probe.fault else None
    return ProbeResult(probe.compute / median(each.compute for each in usable),
                       probe.memory / median(each.memory for each in usable), "", tuple(each.name for each in usable))


def node_kinds(machine: str) -> Mapping[str, Hashable]:
    """Return the kind of a machine's nodes, by the prefix of their names. `machine` is the machine's name
    (`vrm.ext.learning.learned_jobs.machine_of`). Prefixes with several kinds are left out."""
    found: dict[str, list[str]] = {}
    for kind in machine.split(", "):
        found.setdefault(kind.rpartition(" ")[0], []).append(kind)
    return {prefix: of[0] for prefix, of in found.items() if len(of) == 1}


def sentence(finding: NodeFinding) -> str:
    """Return the measurements of a node as a sentence."""
    runs, nodes = len(finding.trials), len(finding.others)
    others = f"{finding.elsewhere} on {nodes} other node{'s' * (nodes > 1)}"
    if finding.cause == "slow":
        said = f"{runs} runs at {100 * finding.speed:.0f} % of the speed of {others}"
    else:
        said = f"{finding.failed} of {runs} jobs failed, and {finding.elsewhere_failed} of {others}"
    with_it = f"; {fold(finding.together)} had the same jobs" if finding.together else ""
    return f"{said}; by chance once in {number(finding.chance)} runs{with_it}"


def number(value: float) -> str:
    """Return a large number with two significant digits: `12,000`."""
    size = max(0, math.floor(math.log10(max(1.0, value))) - 1)
    return f"{round(value / 10 ** size) * 10 ** size:,}"
