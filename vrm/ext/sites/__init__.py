"""Launchers besides Open MPI, batch systems besides Slurm and PBS, and the transport of Flux."""
