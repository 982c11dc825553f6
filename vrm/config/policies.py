"""From settings to who decides: the scheduler of a run, the heatmap that it goes by, and the table of
its estimates. Live runs and forecasts of them make theirs here."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from vrm.config.energy import read_programs
from vrm.config.own import load_own
from vrm.config.problems import ConfigError, Problem
from vrm.config.schema import Settings
from vrm.model import Cluster, Heatmap
from vrm.model.energy import NO_PROGRAMS, Programs
from vrm.model.rules import Rules
from vrm.scheduling import PolicyError, Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.backfilling import with_order
from vrm.scheduling.estimators import make_correction, make_estimator
from vrm.scheduling.node_orders import AUTO
from vrm.scheduling.power_cap import check_energy, under_cap
from vrm.workload import heatmap_files
from vrm.workload.estimates import seconds_of_runs


def read_heatmap(settings: Settings) -> Optional[Heatmap]:
    """The heatmap that the settings name, if any, of any form; ValueError when it is unusable."""
    path = settings.applications.heatmap
    if path is None:
        return None
    return heatmap_files.read(path, least=settings.rules.min_throughput).heatmap


def load_all(settings: Settings, rules: Rules) -> None:
    """Load the files of the user's own policies that rules name. Raises PolicyError."""
    for text in rules.own().values():
        load_own(text, settings.base, settings.trust)


def make_scheduler(settings: Settings, cluster: Cluster) -> Scheduler:
    """The scheduler that the settings describe; ConfigError with everything wrong in them."""
    problems: List[Problem] = []
    made: Dict[str, Any] = {}
    for key, text in settings.rules.own().items():
        try:
            load_own(text, settings.base, settings.trust)
        except PolicyError as error:
            problems.append(settings.problem(key, str(error)))
    if problems:
        raise ConfigError(problems)
    for key, make in (
            ("Scheduling.Algorithm", lambda: make_ordering(settings.rules.algorithm)),
            ("Scheduling.Backfilling",
             lambda: make_backfilling(str(settings.rules.backfill))),
            ("Scheduling.BackfillOrder", lambda: with_order(
                made["Scheduling.Backfilling"], settings.rules.backfill_order, 0.0)),
            ("Starvation.Factor", lambda: with_order(
                made["Scheduling.BackfillOrder"], settings.rules.backfill_order,
                settings.rules.starvation)),
            ("Scheduling.Correction", lambda: make_correction(settings.rules.correction)),
            ("Scheduling.Calibrated", lambda: table_of(settings)),
            ("Scheduling.Estimates", lambda: make_estimator(
                settings.rules.estimates, made["Scheduling.Calibrated"], live=True)),
            ("Applications.Heatmap", lambda: read_heatmap(settings)),
            ("Energy.Database", lambda: programs_of(settings))):
        try:
            made[key] = make()
        except KeyError:
            pass  # what it needs is wrong itself
        except ConfigError as error:
            problems += error.problems
        except (PolicyError, ValueError, OSError) as error:
            problems.append(settings.problem(key, str(error)))
    cluster.programs = made.get("Energy.Database", NO_PROGRAMS)
    for key, order in (("Allocation.Policy", AUTO),
                       ("Allocation.NodeOrder", settings.rules.node_order)):
        try:
            policy = make_policy(settings.rules.policy, cluster, made.get("Applications.Heatmap"),
                                 order)
        except PolicyError as error:
            problems.append(settings.problem(key, str(error)))
            break
    else:
        try:
            policy = under_cap(policy, settings.rules.power_cap, cluster)
        except PolicyError as error:
            problems.append(settings.problem("PowerCap", str(error).partition(": ")[2]))
    try:
        check_energy(made.get("Scheduling.Backfilling"), cluster,
                     [each.energy.name for each in settings.node_classes if each.energy is not None])
    except PolicyError as error:
        key = "Energy.Database" if cluster.programs else "Scheduling.Backfilling"
        problems.append(settings.problem(key, str(error)))
    if problems:
        raise ConfigError(problems)
    try:
        return Scheduler(made["Scheduling.Algorithm"], made["Starvation.Factor"], policy,
                         settings.rules.interval, settings.rules.starts_per_interval,
                         settings.rules.queues)
    except PolicyError as error:
        raise ConfigError([settings.problem("Scheduling.StartsPerInterval", str(error))]) from error


def programs_of(settings: Settings) -> Programs:
    """What was measured of programs. Raises ConfigError."""
    path = settings.energy.database
    return NO_PROGRAMS if path is None else read_programs(path)


def table_of(settings: Settings) -> Optional[Dict[Tuple[str, int], float]]:
    """The table of Estimates: calibrated; None where there is none. EstimateError."""
    path = settings.scheduling.calibrated
    return None if path is None else seconds_of_runs(path)
