"""The name of this machine."""

from __future__ import annotations

import os


def host_name() -> str:
    """The short name of this machine."""
    return os.uname().nodename.partition(".")[0]
