"""The programs of a batch system, asked."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

ANSWER_SECONDS = 10.0
"""Seconds that a batch system's program may take to answer."""


def answer_of(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> str:
    """What a program prints, "" when it fails, hangs or is not there."""
    try:
        program = subprocess.Popen(
            argv, env={**env, "SLURM_TIME_FORMAT": "standard"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        return ""
    try:
        output, _ = program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)  # with what it has started
        output, _ = program.communicate()
    return output.decode(errors="replace") if program.returncode == 0 else ""
