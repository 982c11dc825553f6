"""Commands to a running manager, as files: `vrm submit`, `vrm cancel`, `vrm stop`.

The client drops a JSON file into the run's private `commands` directory; the manager takes it,
acts, and answers in `replies` under the same name. Nothing listens on the network.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from vrm.live.rundir import RunDirectory, RunError, write_json

Command = Dict[str, Any]
_LARGEST = 1 << 20
_POLL = 0.05


def send(run: RunDirectory, command: Command) -> str:
    """Drop a command and return its name; RunError when the directory does not take it."""
    name = f"{time.time_ns():020d}.{secrets.token_hex(4)}"
    try:
        run.commands.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(run.commands / name, command)
    except OSError as error:
        raise RunError(f"cannot write to {run.commands}: {error.strerror}; is this the config of "
                       "your own run?") from error
    return name


def wait_reply(run: RunDirectory, name: str, seconds: float) -> Optional[Command]:
    """The manager's answer, or None when it has not come within `seconds`."""
    path = run.replies / name
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError):
            reply = json.loads(path.read_text())
            path.unlink()
            return reply
        if time.monotonic() >= end:
            return None
        time.sleep(_POLL)  # the answer comes from another host perhaps: only files tell


def withdraw(run: RunDirectory, name: str) -> bool:
    """Take a command back that no manager has taken yet; whether that was so."""
    try:
        (run.commands / name).unlink()
    except FileNotFoundError:
        return False
    return True


def take(run: RunDirectory) -> Iterator[Tuple[str, Command]]:
    """The waiting commands, oldest first; the manager answers each, which removes its file.

    A file of another user, or one that is not a command, is answered and set aside by raising
    nothing: it comes as a command `{"do": "invalid", "why": ...}`.
    """
    for name in sorted(os.listdir(run.commands)):
        if name.startswith("."):
            continue
        yield name, _read(run.commands / name)


def _read(path: Path) -> Command:
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                return {"do": "invalid", "why": "it is not a file of this user"}
            data = file.read(_LARGEST + 1)
        command = json.loads(data) if len(data) <= _LARGEST else None
    except (OSError, ValueError) as error:
        return {"do": "invalid", "why": str(error)}
    if not isinstance(command, dict) or not isinstance(command.get("do"), str):
        return {"do": "invalid", "why": "it is not a command"}
    return command


def answer(run: RunDirectory, name: str, reply: Command) -> None:
    """Answer a command and remove it."""
    write_json(run.replies / name, reply)
    (run.commands / name).unlink(missing_ok=True)
