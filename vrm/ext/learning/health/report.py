"""What the store knows about the nodes of all machines, as text for users and their help desk."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any
from collections.abc import Hashable, Mapping, Sequence

from vrm.ext.learning.health.findings import (
    BAD, CLEARED, SUSPECTED, AttemptRecord, NodeRecord, ProbeRecord, compared, node_kinds, number)
from vrm.ext.learning.health.detection import NodeFinding, judge
from vrm.ext.learning.health.trials import NodeTrial, merged, trial_from_job
from vrm.ext.learning.learned_jobs import prefix_of
from vrm.ext.learning.store import LearnedStore
from vrm.model.forms.hosts import expand, fold

KEPT = 14 * 86400.0
"""Seconds for which runs count as evidence."""

MOST = 2000
"""Number of runs of a machine that count: the last ones."""

DAY = "%d %b %Y %H:%M"


@dataclass(frozen=True)
class NodeReport:
    """All that is known about a node: what jobs show (None: nothing any more), and what a manager found."""

    machine: str
    name: str
    finding: NodeFinding | None
    record: NodeRecord | None
    probe: str

    @property
    def state(self) -> str:
        """The state of the node."""
        if self.record is not None and self.record.state != SUSPECTED:
            return self.record.state
        return BAD if self.finding is not None and self.finding.bad else SUSPECTED

    @property
    def facts(self) -> dict[str, Any]:
        """The report as a mapping for JSON."""
        found, record = self.finding, self.record
        return {"machine": self.machine, "node": self.name, "state": self.state,
                "cause": found.cause if found else record.cause if record else "",
                "since": record.since if record else None, "text": record.text if record else "", "probe": self.probe,
                **({} if found is None else {
                    "runs": len(found.trials), "first": found.trials[0].end, "last": found.trials[-1].end,
                    "speed": found.speed if found.cause == "slow" else None, "failed": found.failed,
                    "elsewhere": found.elsewhere, "elsewhere_failed": found.elsewhere_failed,
                    "others": sorted(found.others), "chance": found.chance, "together": list(found.together),
                    "jobs": [{"run": each.run, "job": each.job, "app": each.app, "outcome": each.outcome,
                              "end": each.end, "seconds": each.seconds or None} for each in found.trials]})}


def trials_of(store: LearnedStore, machine: str, now: float) -> list[NodeTrial]:
    """Return the runs on a machine that count, from jobs and from failed attempts. Raises StoreError."""
    jobs = filter(None, map(trial_from_job, store.jobs(machine=machine, last=MOST)))
    attempts = (AttemptRecord(*row) for row in store.rows("attempts", machine))
    return merged([*jobs, *map(attempt_trial, attempts)], now - KEPT, MOST)


def attempt_trial(attempt: AttemptRecord) -> NodeTrial:
    """Return a failed attempt as an observation of its nodes."""
    key = attempt.app, attempt.input, attempt.ranks, max(1, attempt.cores // attempt.ranks)
    return NodeTrial(attempt.run, attempt.job, key, frozenset(expand(attempt.nodes)), attempt.end, 0.0, "failed")


def known(store: LearnedStore, names: Sequence[str] = (), now: float | None = None) -> list[NodeReport]:
    """Return the reports of nodes with findings, of all machines; only of the nodes `names`, if given. Raises
    StoreError, and ValueError for a name without findings."""
    now = time.time() if now is None else now
    found: list[NodeReport] = []
    for machine in sorted({*store.machines().values(), *(row[0] for row in store.rows("nodes"))}):
        records = {row[1]: NodeRecord(*row) for row in store.rows("nodes", machine)}
        probes = [ProbeRecord(*row) for row in store.rows("probes", machine)]
        kinds = node_kinds(machine)

        def kind(node: str, kinds: Mapping[str, Hashable] = kinds) -> Hashable:
            return kinds.get(prefix_of(node))

        cleared_at = {name: record.since for name, record in records.items() if record.state == CLEARED}
        findings = {name: finding for finding in judge(trials_of(store, machine, now), kind, cleared_at)
                    for name in (finding.node, *finding.together)}
        open_ones = {name for name, record in records.items() if record.state != CLEARED and record.since > now - KEPT}
        for name in sorted({*findings, *open_ones}):
            own = next((each for each in probes if each.name == name), None)
            result = own and compared(own, [each for each in probes if kind(each.name) == kind(name)])
            said = f"{time.strftime(DAY, time.localtime(own.time))}, {result.text}" if own and result else ""
            record = records.get(name) if name in open_ones else None
            found.append(NodeReport(machine, name, findings.get(name), record, said))
    unknown = [name for name in names if not any(each.name == name for each in found)]
    if unknown:
        raise ValueError(f"nothing was found of {fold(unknown)}; `vrm learned nodes` shows what was")
    return [each for each in found if not names or each.name in names]


def text(report: NodeReport) -> str:
    """Return what is known about a node, as text for the help desk."""
    found, record = report.finding, report.record
    cause = found.cause if found is not None else record.cause if record is not None else ""
    rows = [("state", report.state + (f" since {time.strftime(DAY, time.localtime(record.since))}" if record else ""))]
    if found is not None:
        programs = ", ".join(sorted({f"{each.app} on {each.key[2]} rank{'s' * (each.key[2] > 1)}"
                                     for each in found.trials}))
        first, last = (time.strftime(DAY, time.localtime(found.trials[at].end)) for at in (0, -1))
        others = fold(sorted(found.others))
        if found.cause == "slow":
            seconds = median(each.seconds for each in found.trials)
            rows += [("measured", f"{len(found.trials)} runs of {programs}, {first} to {last}: {seconds:.4g} s in the "
                                  f"median, {100 * found.speed:.0f} % of the speed elsewhere"),
                     ("compared", f"{found.elsewhere} runs of the same on {others}, at about the same time")]
        else:
            rows += [("measured", f"{found.failed} of {len(found.trials)} jobs failed ({programs}), {first} to {last}"),
                     ("compared", f"{found.elsewhere_failed} of {found.elsewhere} jobs of the same programs failed on "
                                  f"{others}")]
        rows.append(("by chance", f"a good node looks so once in {number(found.chance)} runs, at most"))
        rows.append(("jobs", fold_ids([each.job for each in found.trials])))
        if found.together:
            rows.append(("together", f"{fold(found.together)} had the same jobs: one of them may be the bad one"))
    elif record is not None:
        rows.append(("measured", record.text))
    if report.probe:
        rows.append(("probe", report.probe))
    head = f"Node {report.name} ({report.machine}) {'is' if report.state != SUSPECTED else 'may be'} {cause}."
    return "\n".join([head, *(f"  {name:<10} {value}" for name, value in rows)])


def fold_ids(ids: Sequence[int]) -> str:
    """Return ids of jobs, folded."""
    from vrm.model.quantities import fold as folded

    return folded(sorted(set(ids)))


def cleared(store: LearnedStore, names: Sequence[str], now: float | None = None) -> str:
    """Clear nodes: their measurements until now no longer count. Returns a text. Raises StoreError, and
    ValueError for a name without findings."""
    now = time.time() if now is None else now
    found = known(store, names, now)
    store.add_rows("nodes", [NodeRecord(each.machine, each.name, CLEARED, each.facts["cause"], now, "cleared")
                             for each in found])
    return f"cleared: {fold(sorted(each.name for each in found))}; a run that is managed now uses them within 10 s"
