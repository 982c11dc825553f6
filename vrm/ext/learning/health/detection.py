"""Finds nodes that slow or fail jobs, by two sequential tests for each node.

Both are CUSUM tests (Page 1954) of likelihood ratios: the evidence against a node grows with each run that is
more probable on a bad node than on a good one, and falls with each other run, not below 0. The mean number of
runs on a good node until its evidence reaches h is at least exp(h) (Lorden 1971); SUSPECT and BAD are such h.

*Slow*: take the logarithm of a run time, less the mean over the NEAREST runs in time of the same program,
input, ranks and cores on other nodes. It is normal with mean LIKE on a good node and SLOW on a bad one. Its
standard deviation is that of the times of this program, and larger while few other runs are known. *Failing*: a
job fails on a bad node with probability FAILING, and on a good one as often as its program fails on other
nodes. Failures of a program that has completed on no other node do not count.

A single run counts for at most ODD or ODD_FAILURE, so that two odd runs make no node suspected, and two
failures make no node bad; an exact test must also show that the failures are no accident. Runs on several nodes
count for each of them until one of these is found; then its runs no longer count for the others.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from statistics import fmean, median
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from vrm.ext.learning.health.trials import Key, NodeTrial, at_fault

SUSPECT, BAD = math.log(1e3), math.log(1e5)
"""The evidence from which on a node is probed, and from which on it is bad whatever the probe says: a good node
reaches it at most once in 1,000 and once in 100,000 runs."""

LIKE, SLOW = math.log(1.04), math.log(1 / 0.85)
"""How much longer jobs take on a node like the others, and at least on a slow one (logarithms)."""

SINGLE = math.log(10)
"""Amount by which the evidence of failures may exceed that of an exact test of the same runs, because that test
does not know that good nodes fail few jobs."""

FAILING = 0.3
"""Probability that a job fails on a bad node."""

PRIOR_FAILED, PRIOR_RUNS = 0.3, 10.0
"""Failures and runs that are assumed in advance for the failure rate of all programs. PRIOR_RUNS is also the
weight of that rate in the failure rate of a single program."""

NEAREST, FEWEST = 16, 3
"""Number of runs on other nodes with which a run is compared, those that ended nearest in time; and the least
number."""

SHORT = 1.0
"""Shorter run times, in seconds, are ignored: start-up is a large part of them."""

NOISE, NOISE_RUNS, LEAST_NOISE = 0.06, 4, 0.02
"""Standard deviation of the logarithms of run times that is assumed before there are several, the number of
times that it counts as, and the least standard deviation."""

JUMP = 0.5
"""Greatest value of a difference between two logarithms in that standard deviation."""

ODD, ODD_FAILURE = SUSPECT / 2.4, BAD / 2.4
"""Greatest evidence of a single run, and of a single failure."""

MOST_FOUND = 8
"""Greatest number of nodes that are found at a time."""

MOST_SAID = 1e7
"""Greatest number of runs that is printed for a chance."""


@dataclass(frozen=True)
class NodeFinding:
    """A node that is `slow` or `failing` (its `cause`), with the evidence against it, the natural logarithm of
    a likelihood ratio. `trials` are the runs that count against it; they were compared with `elsewhere` runs on
    the nodes `others`. `speed` is the speed of jobs there divided by their speed on other nodes. `failed` of
    the `trials` failed, and `elsewhere_failed` of the other runs. `together` are nodes that no run
    distinguishes from it."""

    node: str
    cause: str
    evidence: float
    trials: tuple[NodeTrial, ...]
    elsewhere: int
    others: frozenset[str]
    speed: float = 1.0
    failed: int = 0
    elsewhere_failed: int = 0
    together: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether the evidence is enough without a probe."""
        return self.evidence >= BAD

    @property
    def chance(self) -> float:
        """Number of runs in which a good node looks like this once, at least."""
        return min(MOST_SAID, math.exp(self.evidence))


def judge(trials: Sequence[NodeTrial], kind: Callable[[str], Hashable] = lambda node: "",
          cleared: Mapping[str, float] | None = None) -> list[NodeFinding]:
    """Return the suspected nodes, those with most evidence first.

    `trials` are in the order of their ends. `kind` returns a value that is equal for nodes which should be
    equally fast; None: the node is not judged. `cleared`: times (seconds since the epoch) up to which runs on a
    node do not count.
    """
    cleared = cleared or {}
    faulty = at_fault(trials)
    usable = [trial for trial in trials
              if len({kind(node) for node in trial.nodes}) == 1 and kind(next(iter(trial.nodes))) is not None
              and not any(trial.end <= cleared.get(node, -math.inf) for node in trial.nodes)]
    found: list[NodeFinding] = []
    while len(found) < MOST_FOUND:
        bad = {name for finding in found for name in (finding.node, *finding.together)}
        left = [trial for trial in usable if bad.isdisjoint(trial.nodes)]
        findings = sorted([*_slow(left, kind), *_failing(left, faulty)],
                          key=lambda finding: (-finding.evidence, finding.node))
        if not findings:
            break
        first = findings[0]
        alike = tuple(each.node for each in findings[1:] if each.cause == first.cause and each.trials == first.trials)
        found.append(NodeFinding(**{**first.__dict__, "together": alike}))
    return found


@dataclass
class _Evidence:
    """The evidence against a node, with the runs since it was last 0."""

    most: float
    value: float = 0.0
    trials: list[NodeTrial] = field(default_factory=list)
    figures: list[float] = field(default_factory=list)

    def add(self, trial: NodeTrial, ratio: float, figure: float = 0.0) -> None:
        """Add a run with the logarithm of its likelihood ratio."""
        self.value += max(-self.most, min(self.most, ratio))
        self.trials.append(trial)
        self.figures.append(figure)
        if self.value <= 0:
            self.value = 0.0
            self.trials.clear()
            self.figures.clear()


def _by_node(trials: Iterable[NodeTrial]) -> dict[str, list[NodeTrial]]:
    found: dict[str, list[NodeTrial]] = {}
    for trial in trials:
        for node in trial.nodes:
            found.setdefault(node, []).append(trial)
    return found


class _Times:
    """The run times of one key on one kind of node, in the order of their ends."""

    def __init__(self, trials: Sequence[NodeTrial]) -> None:
        done = [trial for trial in trials if trial.outcome == "completed"]
        self.trials = done
        self.ends = [trial.end for trial in done]
        self.logs = [math.log(trial.seconds) for trial in done]
        self.variance = _variance(done, self.logs)

    def elsewhere(self, trial: NodeTrial, node: str) -> list[int]:
        """Return the indices of the nearest runs in time on other nodes, at most NEAREST."""
        right = bisect.bisect_left(self.ends, trial.end)
        left, found = right - 1, list[int]()
        while len(found) < NEAREST and (left >= 0 or right < len(self.ends)):
            if right >= len(self.ends) or (left >= 0 and trial.end - self.ends[left] <= self.ends[right] - trial.end):
                at, left = left, left - 1
            else:
                at, right = right, right + 1
            if node not in self.trials[at].nodes:
                found.append(at)
        return found


def _variance(trials: Sequence[NodeTrial], logs: Sequence[float]) -> float:
    """Return the variance of the logarithms of run times, from differences between successive runs on the same
    nodes, or, if there are few, between successive runs. So differences between nodes are not part of it."""
    last: dict[frozenset[str], float] = {}
    same = list[float]()
    for trial, log in zip(trials, logs):
        if trial.nodes in last:
            same.append(log - last[trial.nodes])
        last[trial.nodes] = log
    if len(same) < NOISE_RUNS:
        same = [after - before for before, after in zip(logs, logs[1:])]
    squares = sum(min(JUMP, abs(each)) ** 2 for each in same) / 2
    return max(LEAST_NOISE ** 2, (squares + NOISE_RUNS * NOISE ** 2) / (len(same) + NOISE_RUNS))


def _slow(trials: Sequence[NodeTrial], kind: Callable[[str], Hashable]) -> list[NodeFinding]:
    """Return the nodes on which jobs take longer."""
    groups: dict[tuple[Key, Hashable], list[NodeTrial]] = {}
    for trial in trials:
        if trial.seconds >= SHORT and trial.outcome != "failed":
            groups.setdefault((trial.key, kind(next(iter(trial.nodes)))), []).append(trial)
    times = {group: _Times(of) for group, of in groups.items()}
    found = []
    for node, here in _by_node(trial for of in groups.values() for trial in of).items():
        total, seen = _Evidence(ODD), dict[str, tuple[set[int], _Times]]()
        for trial in sorted(here, key=lambda trial: trial.end):
            known = times[trial.key, kind(node)]
            others = known.elsewhere(trial, node)
            if len(others) < FEWEST:
                continue
            longer = math.log(trial.seconds) - fmean(known.logs[at] for at in others)
            variance = known.variance * (1 + (len(total.trials) + 1) / len(others))
            ratio = ((longer - LIKE) ** 2 - (longer - SLOW) ** 2) / (2 * variance)
            if trial.outcome == "completed" or ratio > 0:  # a run that its limit ended would have taken longer
                total.add(trial, ratio, longer)
                seen[repr(trial.key)] = seen.get(repr(trial.key), (set(), known))[0] | {*others}, known
        if total.value >= SUSPECT:
            compared = [known.trials[at] for at_all, known in seen.values() for at in at_all]
            found.append(NodeFinding(node, "slow", total.value, tuple(total.trials), len(compared),
                                 frozenset(name for each in compared for name in each.nodes),
                                 speed=math.exp(-median(total.figures))))
    return found


def _failing(trials: Sequence[NodeTrial], faulty: set[tuple[str, int]]) -> list[NodeFinding]:
    """Return the nodes on which jobs fail whose programs do not fail elsewhere."""
    by_app: dict[str, list[NodeTrial]] = {}
    for trial in trials:
        if trial.outcome != "timeout" and (trial.run, trial.job) not in faulty:
            by_app.setdefault(trial.app, []).append(trial)
    failed = {app: [trial for trial in of if trial.outcome == "failed"] for app, of in by_app.items()}
    suspects = {node for of in failed.values() for trial in of for node in trial.nodes}
    here = _by_node(trial for of in by_app.values() for trial in of)
    found = []
    for node in suspects:
        total = _Evidence(ODD_FAILURE)
        others = {app: [trial for trial in of if node not in trial.nodes] for app, of in by_app.items()}
        wrong = {app: [trial for trial in of if trial.outcome == "failed"] for app, of in others.items()}
        ends = {app: [trial.end for trial in of] for app, of in others.items()}
        any_fails = ((sum(map(len, wrong.values())) + PRIOR_FAILED) / (sum(map(len, others.values())) + PRIOR_RUNS))
        counted = set[tuple[str, int]]()
        for trial in sorted(here[node], key=lambda trial: trial.end):
            fails = trial.outcome == "failed"
            if fails and ((trial.run, trial.job) in counted or len(wrong[trial.app]) == len(others[trial.app])):
                continue  # ignore a job that failed here before, or whose program has completed on no other node
            counted.add((trial.run, trial.job))
            usual = _usual(others[trial.app], wrong[trial.app], ends[trial.app], trial.end, any_fails)
            if usual < FAILING / 2:
                total.add(trial, math.log(FAILING / usual) if fails else math.log((1 - FAILING) / (1 - usual)))
        if total.value >= SUSPECT:
            apps = {trial.app for trial in total.trials}
            compared = [trial for app in apps for trial in others[app]]
            lost = sum(trial.outcome == "failed" for trial in total.trials)
            elsewhere = sum(len(wrong[app]) for app in apps)
            exact = SINGLE - _log_chance(lost, len(total.trials), elsewhere, len(compared))
            found.append(NodeFinding(node, "failing", min(total.value, max(SUSPECT, exact)), tuple(total.trials),
                                 len(compared), frozenset(name for each in compared for name in each.nodes),
                                 failed=lost, elsewhere_failed=elsewhere))
    return found


def _log_chance(failed: int, runs: int, elsewhere_failed: int, elsewhere: int) -> float:
    """Return the logarithm of the probability that at least this many of all failures are among these runs, if
    all runs fail with equal probability (Fisher's exact test)."""
    def ways(number: int, of: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(number + 1) - math.lgamma(of - number + 1)

    whole = failed + elsewhere_failed
    return math.log(math.fsum(
        math.exp(ways(here, runs) + ways(whole - here, elsewhere) - ways(whole, runs + elsewhere))
        for here in range(failed, min(whole, runs) + 1) if whole - here <= elsewhere))


def _usual(others: Sequence[NodeTrial], wrong: Sequence[NodeTrial], ends: Sequence[float], at: float,
           any_fails: float) -> float:
    """Return the failure rate of a program on other nodes: of all runs, or of those around time `at` if that is
    higher. `any_fails` is the failure rate of all programs."""
    overall = (len(wrong) + PRIOR_RUNS * any_fails) / (len(others) + PRIOR_RUNS)
    if not wrong:
        return overall
    middle = bisect.bisect_left(ends, at)
    near = others[max(0, middle - NEAREST // 2):middle + NEAREST // 2]
    return max(overall, sum(trial.outcome == "failed" for trial in near) / len(near) if near else 0.0)
