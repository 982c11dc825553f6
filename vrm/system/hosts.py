"""The names of this machine and of the time since its start."""

from __future__ import annotations

import os


def host_name() -> str:
    """The short name of this machine."""
    return os.uname().nodename.partition(".")[0]


def boot_id() -> str:
    """The kernel's name for the time since the last boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
