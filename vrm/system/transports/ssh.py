"""ssh: a connection to each node."""

from __future__ import annotations

from vrm.system.transports.base import Transport

COMMAND = ("ssh", "-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes",
           "-o", "ControlMaster=no")
"""OpenSSH's client, as the user has configured it, but never asking and never staying behind."""

SSH = Transport("ssh", lambda host, timeout: (  # noqa: S604  (a field of Transport)
    *COMMAND, "-o", f"ConnectTimeout={max(1, round(timeout))}", host), shell=True)
