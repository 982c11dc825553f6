"""Launchers besides Open MPI, and batch systems besides Slurm."""
