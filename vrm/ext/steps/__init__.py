"""Steps: programs that a script job starts by `srun` on part of its cores.

A step is a program of its own. It reads what it needs to know about the job from a file that the manager has
written, and continues while the manager is down. It starts within milliseconds: apart from `part`, this folder
imports nothing that takes longer (`re`, `json`, `typing`, `subprocess`), and from the rest of vrm only
`vrm.system.job_variables`."""

START = "from vrm.ext.steps.main import run; run()"
"""Python code that runs as `srun` of a script job, with `-I -S`, after the path of vrm was set."""
