"""Make the scheduler of a run from its settings, with its heatmap and the table of its estimates. Live runs and their
forecasts use this."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any
from collections.abc import Callable, Iterator, Mapping

from vrm.config.own_policies import load_own
from vrm.config.problems import ConfigError, Problem
from vrm.config.schema import Settings
from vrm.model import Cluster, Heatmap, Job
from vrm.model.measured.energy import NO_PROGRAMS, Programs
from vrm.model.forms.fields import made
from vrm.model.job import Details
from vrm.model.rules import KEYS, Rules
from vrm.scheduling.compose import RulesError, compose
from vrm.scheduling.estimators import ObservedRun, make_correction, make_estimator
from vrm.scheduling.registry import PolicyError
from vrm.scheduling.scheduler import Scheduler
from vrm.system import plugins
from vrm.system.errors import RunError


def read_heatmap(settings: Settings, cluster: Cluster) -> Heatmap | None:
    """Return the heatmap that the settings name, or None: a file of any format, or one that an extension makes for
    this machine. Raises ValueError if it is unusable."""
    path = settings.applications.heatmap
    if path is None:
        return None
    made = plugins.find("vrm.heatmaps", str(path))
    if made is not None:
        heatmap: Heatmap = plugins.load(made)(settings, cluster)
        return heatmap
    found: Heatmap | None = plugins.need("vrm.readers", "heatmap")(path, least=settings.rules.min_throughput).heatmap
    return found


def load_all(settings: Settings, rules: Rules) -> None:
    """Load the files of the user's own policies that the rules name. Raises PolicyError."""
    for text in rules.own().values():
        load_own(text, settings.base, settings.trust)


def make_scheduler(settings: Settings, cluster: Cluster) -> Scheduler:
    """Return the scheduler that the settings describe. Raises ConfigError with all mistakes."""
    rules = settings.rules
    problems: list[Problem] = []
    noting = partial(_noting, settings, problems)
    for key, text in rules.own().items():
        with noting(key):
            load_own(text, settings.base, settings.trust)
    if problems:
        raise ConfigError(problems)
    heatmap, cluster.programs = None, NO_PROGRAMS
    with noting("Scheduling.Correction"):
        make_correction(rules.correction)
    with noting("Scheduling.Events"):
        _check_events(rules.events)
    with noting("Scheduling.Calibrated"):
        table = table_of(settings)
        with noting("Scheduling.Estimates"):
            make_estimator(rules.estimates, table, live=True)
    with noting("Applications.Heatmap"):
        heatmap = read_heatmap(settings, cluster)
    with noting("Energy.Database"):
        cluster.programs = programs_of(settings)
    try:
        scheduler = compose(rules, cluster, heatmap, [
            power.name for each in settings.node_classes if (power := each.power()) is not None])
    except RulesError as error:
        keys = {name: KEYS[name].config if name in KEYS else "Energy.Database" for name in error.wrong}
        problems += [settings.problem(keys[name], text.removeprefix(f"{keys[name]}: "))
                     for name, text in error.wrong.items()]
    if problems:
        raise ConfigError(problems)
    return scheduler


@contextmanager
def _noting(settings: Settings, problems: list[Problem], key: str) -> Iterator[None]:
    """Add errors in the block to the problems, as problems of this key."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems
    except (PolicyError, ValueError, OSError) as error:
        problems.append(settings.problem(key, str(error)))


def _check_events(order: str) -> None:
    """Raise PolicyError for an order of events that a live run cannot have."""
    if order != "instant":
        raise PolicyError(f"{order} is an order of events in simulations; write instant, or leave it out")


def job_of(settings: Settings, values: Mapping[str, Any], job_id: int, submit: float) -> tuple[Job, Details]:
    """Return the job of a line's values, and its details; the configuration supplies values that the line lacks.
    Raises ValueError like `made`."""
    one = not values.get("components")
    own: dict[str, Any] = {"retries": settings.retries,
                           "malleable": one and values["app"] in settings.applications.malleable}
    if settings.launcher.one_node and one and not any(
            values.get(key) for key in ("script", "tasks_per_node", "nodelist")):
        own["nodes"] = (1, 1)
    return made({**own, **values}, job_id, submit)


def one_node_remedy(settings: Settings, job: Job, never: Callable[[Job], str]) -> str:
    """Return what to add to the reason why a job can never run, if it could run on more nodes than one; "" for other
    jobs. `never(job)` returns such a reason."""
    if not settings.launcher.one_node or job.payload.script or job.request.nodes != (1, 1):
        return ""
    if never(job.but(request=job.request._replace(nodes=(1, 0)))):
        return ""
    return (f"; Launcher.Kind: {settings.launcher.kind} starts one process on one node: ask for fewer ranks, or set "
            "the Kind of an MPI")


def programs_of(settings: Settings) -> Programs:
    """Return the energy measurements of programs. Raises ConfigError."""
    path = settings.extended("Energy.Database")
    found: Programs = NO_PROGRAMS if path is None else plugins.need("vrm.readers", "energy")(path)
    return found


def history_of(settings: Settings) -> list[ObservedRun]:
    """Return the jobs of earlier runs, from which estimators learn. Raises RunError if they cannot be read."""
    runs = settings.scheduling.history
    try:
        return list(plugins.need("vrm.readers", "history")(runs)) if runs else []
    except ValueError as error:
        raise RunError(f"Scheduling.History: {error}") from error


def table_of(settings: Settings) -> dict[tuple[str, int], float] | None:
    """Return the table for `Estimates: calibrated`; None if there is none. Raises EstimateError."""
    path = settings.scheduling.calibrated
    return None if path is None else dict(plugins.need("vrm.readers", "calibrated")(path))
