"""The name of this machine, and the identifier of its current boot."""

from __future__ import annotations

import os


def host_name() -> str:
    """Return the short name of this machine."""
    return os.uname().nodename.partition(".")[0]


def boot_id() -> str:
    """Return the kernel's identifier of the period since the last boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
