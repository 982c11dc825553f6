"""How a job becomes processes: a file for each launcher, and the environment of jobs.

`Launcher.Kind: auto` looks for the launchers in this order.
"""

from vrm.live.launch import openmpi, hydra, srun, direct  # each registers itself

__all__ = ["openmpi", "hydra", "srun", "direct"]
