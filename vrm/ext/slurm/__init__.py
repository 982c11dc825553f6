"""Slurm's commands, answered by vrm with Slurm's names, options and formats; and the code that the commands of other
batch systems share with them (`vrm.ext.slurm.calls`)."""
