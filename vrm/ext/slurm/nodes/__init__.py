"""What agents of nodes do for commands of Slurm: a file for the standard library of Python 3.6 alone."""
