"""The transport ssh: one connection to each node."""

from __future__ import annotations

from vrm.system.transports.base import Transport

COMMAND = ("ssh", "-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes",
           "-o", "ControlMaster=no")
"""OpenSSH's client with the user's configuration, but it never asks questions and leaves no process behind."""

SSH = Transport("ssh", lambda host, timeout: (  # noqa: S604  (a field of Transport)
    *COMMAND, "-o", f"ConnectTimeout={max(1, round(timeout))}", host), shell=True)
