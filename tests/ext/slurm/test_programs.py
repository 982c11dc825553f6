"""The part that puts Slurm's commands where scripts find them. With a real state and journal (`support.executor`)."""

from __future__ import annotations

import os
from pathlib import Path

from support.executor import Managed, root  # noqa: F401

from vrm.ext.slurm.calls.programs import CommandPrograms


def test_the_commands_are_there_before_jobs_start(root: Path) -> None:
    managed = Managed(root)
    part, = (each for each in managed.manager.parts if isinstance(each, CommandPrograms))
    names = {path.name for path in managed.run.programs.iterdir()}
    assert {"sbatch", "squeue", "srun", "qsub"} <= names
    assert all(os.access(managed.run.programs / name, os.X_OK) for name in ("sbatch", "squeue"))
    part.leave()  # nobody compiles: no script has started
    managed.close()
