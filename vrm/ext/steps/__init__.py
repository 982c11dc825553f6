"""Steps: programs that a script job starts by `srun` on part of its cores.

A step is a program of its own, which knows of the job what the manager has written into a file, and goes on
while the manager is dead. It starts within milliseconds: but for `part`, this folder loads nothing that takes longer
(`re`, `json`, `typing`, `subprocess`), and of the rest of vrm only `vrm.system.marks`.
"""

START = "from vrm.ext.steps.main import run; run()"
"""What Python runs as `srun` of a script job, with `-I -S`, once it knows where vrm is."""
