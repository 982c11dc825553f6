"""Recognizes a login node, from which jobs are submitted and where none should run.

No program is started for this: the submit command must be on PATH, and the batch system's
configuration must be there. A batch system that is installed but not configured does not count.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple
from collections.abc import Mapping

from vrm.live.batch.base import BatchSystem, around, scriptable_systems


class LoginNode(NamedTuple):
    """The batch system to which this machine submits jobs, and its configuration file, which shows that."""

    system: BatchSystem
    file: str


def login_node(env: Mapping[str, str]) -> LoginNode | None:
    """Return the batch system of which this machine is a login node; None inside a job of a batch system or of vrm, and
    if none is configured."""
    if around(env) is not None or env.get("VRM_RUN") or env.get("VRM_DIRECTORY"):
        return None
    for system in scriptable_systems():
        submit = shutil.which(system.submit, path=env.get("PATH", os.defpath))
        if submit:
            own = env.get(system.settings_variable, "")
            prefix = Path(os.path.realpath(submit)).parent.parent
            files = (own,) if own else tuple(str(prefix / file) for file in system.settings_files)
            for file in files:
                if os.path.isfile(file):
                    return LoginNode(system, file)
    return None
