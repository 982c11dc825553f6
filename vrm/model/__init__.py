"""Plain data of the manager: jobs, nodes, the cluster's booking of cores, placements, heatmaps.

Nothing here reads a clock, a file, the environment or a process table.
"""

from vrm.model.cluster import AnyPlacement, Booking, Cluster, Pool
from vrm.model.heatmap import Heatmap
from vrm.model.job import Dependency, Infeasible, Job, JobState
from vrm.model.node import Node, Socket
from vrm.model.placement import CoreLayout, CorePlacement, Placement, RankSlot

__all__ = [
    "AnyPlacement", "Booking", "Cluster", "CoreLayout", "CorePlacement", "Dependency", "Heatmap",
    "Infeasible", "Job", "JobState", "Node", "Placement", "Pool", "RankSlot", "Socket",
]
