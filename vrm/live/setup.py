"""From settings to what a live run needs: cluster, scheduler, launcher; and all that is wrong.

Everything that can be checked before the first job is checked here, and told at once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence

from vrm.config import ConfigError, Problem, Settings
from vrm.live.launchers import Launcher, LaunchError, make_launcher
from vrm.live.rundir import RunDirectory, RunError
from vrm.live.topology import TopologyError, geometry
from vrm.model import Cluster, Heatmap, Node
from vrm.scheduling import PolicyError, Scheduler, make_backfilling, make_ordering, make_policy
from vrm.workload import heatmap_files


@dataclass(frozen=True)
class Site:
    """The cluster of a live run, what decides on it, and what starts jobs on it."""

    cluster: Cluster
    emulated: bool
    scheduler: Scheduler
    launcher: Launcher


def describe(settings: Settings, nodes: Sequence[Node], emulated: bool) -> str:
    """What a run does where, in one line."""
    shapes = {"+".join(map(str, node.sockets)) for node in nodes}
    shape = f"{len(nodes)} node{'s' * (len(nodes) > 1)} of {' or '.join(sorted(shapes))} cores"
    warning = ", EMULATED: ranks run oversubscribed and unbound on this machine"
    return (f"{settings.scheduling.algorithm}, backfilling {settings.scheduling.backfilling}, "
            f"{settings.allocation.policy} on {shape}{warning * emulated}")


def run_directory(settings: Settings) -> RunDirectory:
    """The run directory that the settings name."""
    return RunDirectory(settings.directory, settings.log, settings.state)


def read_heatmap(settings: Settings) -> Optional[Heatmap]:
    """The heatmap that the settings name, if any, of any form; ValueError when it is unusable."""
    path = settings.applications.heatmap
    if path is None:
        return None
    return heatmap_files.read(path, least=settings.allocation.min_throughput).heatmap


def make_scheduler(settings: Settings, cluster: Cluster) -> Scheduler:
    """The scheduler that the settings describe; ConfigError with everything wrong in them."""
    problems: List[Problem] = []
    made = {}
    for key, make in (
            ("Scheduling.Algorithm", lambda: make_ordering(settings.scheduling.algorithm)),
            ("Scheduling.Backfilling",
             lambda: make_backfilling(str(settings.scheduling.backfilling))),
            ("Applications.Heatmap", lambda: read_heatmap(settings))):
        try:
            made[key] = make()
        except (PolicyError, ValueError, OSError) as error:
            problems.append(settings.problem(key, str(error)))
    try:
        policy = make_policy(settings.allocation.policy, cluster, made.get("Applications.Heatmap"))
    except PolicyError as error:
        problems.append(settings.problem("Allocation.Policy", str(error)))
    if problems:
        raise ConfigError(problems)
    return Scheduler(made["Scheduling.Algorithm"], made["Scheduling.Backfilling"], policy)


def prepare(settings: Settings) -> Site:
    """Everything a live run needs. Raises ConfigError, or RunError for what the machine lacks."""
    problems = settings.check_files()
    if problems:
        raise ConfigError(problems)
    try:
        nodes, emulated = geometry(settings.nodes, settings.sockets, settings.cores,
                                   settings.emulate)
    except TopologyError as error:
        raise RunError(str(error)) from error
    cluster = Cluster(nodes)
    scheduler = make_scheduler(settings, cluster)
    try:
        launcher = make_launcher(settings.launcher, emulated=emulated)
    except LaunchError as error:
        raise RunError(str(error)) from error
    return Site(cluster, emulated, scheduler, launcher)


def application_fault(directory: Path, app: str) -> str:
    """Why an application can't be run, or "" when it can.

    It must be an executable file inside `directory`, also after symbolic links.
    """
    path = Path(directory) / app
    inside = Path(os.path.realpath(directory))
    real = Path(os.path.realpath(path))
    if os.sep in app or app in ("", ".", "..") or inside not in real.parents:
        return f"{app} points outside {directory} (Applications.Path)"
    if not real.exists():
        return f"{path} does not exist; build it, or correct Applications.Path"
    if not real.is_file():
        return f"{path} is not a file"
    if not os.access(real, os.X_OK):
        return f"{path} is not executable (chmod +x it)"
    return ""
