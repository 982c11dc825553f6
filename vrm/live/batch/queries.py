"""Calls the programs of a batch system."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

ANSWER_SECONDS = 10.0
"""Maximum seconds that a batch system's program may take to answer."""


def command_output(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> str:
    """Return the output of a program; "" if it fails, does not end within `seconds`, or does not exist."""
    try:
        program = subprocess.Popen(
            argv, env={**env, "SLURM_TIME_FORMAT": "standard"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        return ""
    try:
        output, _ = program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)  # with its child processes
        output, _ = program.communicate()
    return output.decode(errors="replace") if program.returncode == 0 else ""
