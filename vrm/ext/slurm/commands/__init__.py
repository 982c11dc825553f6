"""The command `vrm slurm`."""
