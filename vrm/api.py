"""The public names of vrm, for your programs and policies.

    from vrm.api import Session, simulate

A name in `__all__` keeps its meaning and its signature until the next major version (semantic versioning), from 1.0
on; for `Cluster`, `Job`, `Placement` and `Scheduler`, this applies to what docs/how-to/policies.md names. All other
modules may change with any version. Each name is loaded when it is first used.

| for | names |
|---|---|
| jobs of a live run, as futures | `Session`, `JobFuture`, `Result`, `JobFailed`, `SessionError` |
| simulations | `simulate`, `Machine`, `Rules`, `Outcome` |
| more for simulations | `Selection`, `Measurements`, `Timetable`, `Recording`, `Outage`, `Submission`, `Watcher` |
| own policies | `Job`, `Cluster`, `Placement`, `SchedulingStep`, `combine`, `Infeasible`, `PolicyError` |
| testing own policies | `compose`, `Scheduler` |
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vrm.model.booking import Watcher
    from vrm.model.cluster import Cluster
    from vrm.model.job import Infeasible, Job
    from vrm.model.machine import Machine
    from vrm.model.placement import Placement
    from vrm.model.rules import Rules
    from vrm.scheduling.compose import compose
    from vrm.scheduling.backfilling.user_dispatcher import SchedulingStep
    from vrm.scheduling.placement.combining import combine
    from vrm.scheduling.registry import PolicyError
    from vrm.scheduling.scheduler import Scheduler
    from vrm.ext.session import JobFailed, JobFuture, Result, Session, SessionError
    from vrm.simulation.arguments import Measurements, Recording, Timetable
    from vrm.simulation.engine import Outage
    from vrm.simulation.library import simulate
    from vrm.simulation.outcome import Outcome
    from vrm.workload.submission import Submission
    from vrm.workload.swf import Selection

__all__ = ["Cluster", "Infeasible", "Job", "JobFailed", "JobFuture", "Machine", "Measurements", "Outage", "Outcome",
           "Placement", "PolicyError", "Recording", "Result", "Rules", "Scheduler", "SchedulingStep", "Selection",
           "Session", "SessionError", "Submission", "Timetable", "Watcher", "combine", "compose", "simulate"]

_PLACES = {
    "model.booking": ("Watcher",), "model.cluster": ("Cluster",), "model.job": ("Infeasible", "Job"),
    "model.machine": ("Machine",), "model.placement": ("Placement",), "model.rules": ("Rules",),
    "scheduling.compose": ("compose",),
    "scheduling.backfilling.user_dispatcher": ("SchedulingStep",), "scheduling.placement.combining": ("combine",),
    "scheduling.registry": ("PolicyError",), "scheduling.scheduler": ("Scheduler",),
    "ext.session": ("JobFailed", "JobFuture", "Result", "Session", "SessionError"),
    "simulation.arguments": ("Measurements", "Recording", "Timetable"), "simulation.engine": ("Outage",),
    "simulation.library": ("simulate",), "simulation.outcome": ("Outcome",), "workload.submission": ("Submission",),
    "workload.swf": ("Selection",)}


def __getattr__(name: str) -> Any:
    """Return a public name; it is loaded at its first use."""
    for module, names in _PLACES.items():
        if name in names:
            globals()[name] = found = getattr(import_module(f"vrm.{module}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its names are {', '.join(__all__)}")
