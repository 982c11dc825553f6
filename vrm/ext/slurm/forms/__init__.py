"""Slurm's names for states and reasons, and the formats of its input and output."""
