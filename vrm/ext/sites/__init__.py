"""Launchers besides Open MPI, batch systems besides Slurm, and the transport of Flux."""
