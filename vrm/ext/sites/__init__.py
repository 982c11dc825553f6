"""MPI launchers other than Open MPI, batch systems other than Slurm, and the transport of Flux."""
