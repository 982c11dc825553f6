"""Steps: programs that a script job starts by `srun` on part of its cores.

A step is a program of its own, which knows of the job what the manager has written into a file, and goes on
while the manager is dead. It starts within milliseconds: this room loads nothing that takes longer
(`re`, `json`, `typing`, `subprocess`), and of vrm only `vrm.results.steps`.
"""

START = "from vrm.steps.main import run; run()"
"""What Python runs as `srun` of a script job, with `-I -S`, once it knows where vrm is."""
