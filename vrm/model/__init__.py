"""Plain data of the manager: jobs, nodes, the cluster with its bookings of cores, placements, heatmaps.

Nothing in this package reads a clock, a file, the environment or the process table.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vrm.model.cluster import Booking, Cluster, Pool
    from vrm.model.measured.heatmap import Heatmap
    from vrm.model.job import Dependency, Infeasible, Insufficient, Job, JobState
    from vrm.model.node import Node, Socket
    from vrm.model.placement import CoreLayout, CorePlacement, Placement, RankSlot
else:
    _PLACES = {
        "cluster": ("Booking", "Cluster", "Pool"),
        "measured.heatmap": ("Heatmap",),
        "job": ("Dependency", "Infeasible", "Insufficient", "Job", "JobState"),
        "node": ("Node", "Socket"),
        "placement": ("CoreLayout", "CorePlacement", "Placement", "RankSlot")}

    def __getattr__(name):
        """Import a name on first use: commands that only look at a file need few of these modules."""
        for module, names in _PLACES.items():
            if name in names:
                globals()[name] = found = getattr(import_module(f"vrm.model.{module}"), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

__all__ = [
    "Booking", "Cluster", "CoreLayout", "CorePlacement", "Dependency", "Heatmap",
    "Infeasible", "Insufficient", "Job", "JobState", "Node", "Placement", "Pool", "RankSlot", "Socket",
]
