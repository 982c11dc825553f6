"""Code that agents run on the nodes for Slurm's commands. It uses only the standard library of Python 3.6."""
