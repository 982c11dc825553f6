"""The names of this machine and of the time since its start."""

from __future__ import annotations

import os
from pathlib import Path

from vrm.system.hosts import boot_id, host_name


def test_the_host_has_its_short_name() -> None:
    assert os.uname().nodename.startswith(host_name()) and "." not in host_name()


def test_boot_id_is_the_kernels() -> None:
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
