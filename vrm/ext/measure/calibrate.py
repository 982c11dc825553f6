"""Measures how long applications run alone with each rank count, as a table of estimates.

The table is rewritten after every run, so an interrupted calibration loses at most one run, and the same command
continues it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from collections.abc import Callable, Sequence

from vrm.config.schema import Settings
from vrm.live.site.setup import Site
from vrm.ext.measure.bench import Bench, MeasureError, duration, machine_text
from vrm.model import Infeasible, Job
from vrm.system.files import write_atomically
from vrm.ext.measured.estimates import EstimateError, Estimate, read_estimates, table_text
from vrm.ext.generate.npb import allows, rank_counts, rule

Reporter = Callable[[str], None]
Key = tuple[str, int]


@dataclass(frozen=True)
class CalibrationPlan:
    """What to measure: programs, rank counts (empty: all that fit), repetitions, the maximum seconds of a run, and
    the file of the table."""

    apps: tuple[str, ...]
    ranks: tuple[int, ...]
    repetitions: int
    limit: float
    table: Path


def most_ranks(site: Site) -> int:
    """Return the largest number of ranks that the placement policy can place on the allocation."""
    most = 0
    for step in (1 << bit for bit in reversed(range(site.cluster.cores.bit_length()))):
        try:
            site.scheduler.check(Job(0, "any", most + step, 1.0))
            most += step
        except Infeasible:
            continue
    return most


def combinations(plan: CalibrationPlan, site: Site, tell: Reporter) -> list[Key]:
    """Return the pairs of program and rank count to measure; print those that are left out, with the reason.

    Raises MeasureError if none is left.
    """
    most = most_ranks(site)
    for ranks in plan.ranks:
        if ranks > most:
            tell(f"{ranks} ranks are left out: {most} fit here under {site.scheduler.policy.name}")
    wanted = [ranks for ranks in plan.ranks if ranks <= most]
    chosen = []
    for app in plan.apps:
        for ranks in wanted if plan.ranks else rank_counts(app, most):
            if not allows(app, ranks):
                tell(f"{app} on {ranks} ranks is left out: it runs on {rule(app)}")
            else:
                chosen.append((app, ranks))
    if not chosen:
        raise MeasureError("nothing is left to measure; choose other programs (--apps) or rank "
                           "counts (--ranks)")
    return chosen


def calibrate(settings: Settings, site: Site, plan: CalibrationPlan, tell: Reporter, fresh: bool = False) -> bool:
    """Run everything that is missing in the table; return True if every program ran.

    Raises MeasureError or RunError if it cannot start or continue, KeyboardInterrupt if it is interrupted; the runs
    so far are then in the table.
    """
    keys = combinations(plan, site, tell)
    machine = f"{machine_text(site)}; placement {site.scheduler.policy.name}"
    known = {} if fresh else _read_existing(plan.table, machine, tell)
    comments = ["measured by vrm calibrate; seconds = median of whole runs, with mpirun's start; "
                "app_seconds = as the program says", f"machine: {machine}"]
    failed: dict[Key, str] = {}

    def missing(round_: int) -> list[Key]:
        return [key for key in keys if key not in failed and _count(known, key) <= round_]

    with Bench(settings, site) as bench:
        # Round by round, so that a disturbance of some minutes affects at most one run of each program.
        for round_ in range(plan.repetitions):
            for key in missing(round_):
                app, ranks = key
                placement = site.scheduler.policy.place(Job(0, app, ranks, 1.0),
                                                        site.cluster)
                assert placement, "the nodes are empty"
                bench.start(app, list(placement.slots(site.cluster.nodes)), plan.limit)
                run = bench.wait()[0]
                done = sum(min(_count(known, one), plan.repetitions) for one in keys) + 1
                head = f"[{done}/{len(keys) * plan.repetitions}] {app} on {ranks} rank(s)"
                if run.fault:
                    failed[key] = run.fault
                    tell(f"{head}: {run.fault}")
                    continue
                old = known.get(key) or Estimate(app, ranks)
                known[key] = old.with_run(run.whole, run.seconds)
                _write(plan.table, known, comments)
                left = _time_left(keys, known, failed, plan.repetitions)
                tell(f"{head}: {run.whole:.2f} s" + (f", about {duration(left)} left"
                                                     if left else ""))
    for (app, ranks), fault in failed.items():
        tell(f"not in the table: {app} on {ranks} rank(s): {fault}")
    return not failed


def _count(known: dict[Key, Estimate], key: Key) -> int:
    return len(known[key].times) if key in known else 0


def _time_left(keys: Sequence[Key], known: dict[Key, Estimate], failed: dict[Key, str],
               repetitions: int) -> float:
    """Return the seconds that the missing runs will take; a program without a run counts as the mean of the others
    (at least one must have run)."""
    seen = [known[key].seconds for key in keys if key in known]
    mean = sum(seen) / len(seen)
    return sum(max(0, repetitions - _count(known, key))
               * (known[key].seconds if key in known else mean)
               for key in keys if key not in failed)


def _read_existing(table: Path, machine: str, tell: Reporter) -> dict[Key, Estimate]:
    """Return the estimates already in the table. Raises MeasureError if it was measured on another machine."""
    if not table.exists():
        return {}
    try:
        estimates, comments = read_estimates(table)
    except EstimateError as error:
        raise MeasureError(f"{error}; name another file with --out, or start again with --fresh"
                           ) from error
    if f"machine: {machine}" not in comments:
        there = next((line for line in comments if line.startswith("machine: ")), "it does not say")
        raise MeasureError(f"{table} was measured elsewhere or otherwise ({there}; here: "
                           f"{machine}); name another file with --out, or start again with --fresh")
    runs = sum(len(estimate.times) for estimate in estimates.values())
    tell(f"continuing {table}: {runs} run(s) are there")
    return dict(estimates)


def _write(table: Path, known: dict[Key, Estimate], comments: Sequence[str]) -> None:
    try:
        table.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(table, table_text(known.values(), comments))
    except OSError as error:
        raise MeasureError(f"cannot write {table}: {error.strerror}; name another file with --out"
                           ) from error
