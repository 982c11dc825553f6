"""Whether this machine is one from which jobs are submitted: a login node, where none should run.

Nothing is started to find out: the submit command must be on PATH, and the batch system's
configuration must be there. An installed batch system that nobody has configured does not count.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple
from collections.abc import Mapping

from vrm.live.batch.base import BatchSystem, around, with_scripts


class LoginNode(NamedTuple):
    """The batch system to which jobs are submitted from here, and the file that says so."""

    system: BatchSystem
    file: str


def login_node(env: Mapping[str, str]) -> LoginNode | None:
    """The batch system of which this machine is a login node; None inside a job, of it or of vrm, and where none
    is configured."""
    if around(env) is not None or env.get("VRM_RUN") or env.get("VRM_DIRECTORY"):
        return None
    for system in with_scripts():
        submit = shutil.which(system.submit, path=env.get("PATH", os.defpath))
        if submit:
            own = env.get(system.settings_variable, "")
            prefix = Path(os.path.realpath(submit)).parent.parent
            files = (own,) if own else tuple(str(prefix / file) for file in system.settings_files)
            for file in files:
                if os.path.isfile(file):
                    return LoginNode(system, file)
    return None
