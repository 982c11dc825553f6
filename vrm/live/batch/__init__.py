"""The batch system around the run: nodes, end of the allocation, scripts to submit.

A file for each batch system; they are asked in this order whether vrm runs in a job of theirs.
"""

from vrm.live.batch import slurm, pbs, lsf, gridengine  # each registers itself

__all__ = ["slurm", "pbs", "lsf", "gridengine"]
