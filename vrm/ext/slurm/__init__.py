"""Commands of Slurm, answered by vrm: names, options and forms that people and tools know; and what commands of other
batch systems share with them (`vrm.ext.slurm.calls`)."""
