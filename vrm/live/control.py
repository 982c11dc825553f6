"""Commands to a running manager, as files: `vrm submit`, `vrm cancel`, `vrm hold` and others.

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
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from vrm.live.rundir import RunDirectory, RunError, write_json
from vrm.workload.queue_file import numbers

Command = Dict[str, Any]
_LARGEST = 1 << 20
_POLL = 0.05


def send(run: RunDirectory, command: Command) -> str:
    """Drop a command and return its name; RunError when the directory does not take it."""
    name = f"{time.time_ns():020d}.{secrets.token_hex(4)}"
    try:
        run.commands.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(run.commands / name, command, private=True)
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
        # A pipe under this name must not block the manager.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                return {"do": "invalid", "why": "it is not a file of this user"}
            if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return {"do": "invalid", "why": "others may write this file (chmod go-w)"}
            data = file.read(_LARGEST + 1)
        command = json.loads(data) if len(data) <= _LARGEST else None
    except (OSError, ValueError) as error:
        return {"do": "invalid", "why": str(error)}
    if not isinstance(command, dict) or not isinstance(command.get("do"), str):
        return {"do": "invalid", "why": "it is not a command"}
    return command


def answer(run: RunDirectory, name: str, reply: Command) -> None:
    """Answer a command and remove it."""
    write_json(run.replies / name, reply, private=True)
    (run.commands / name).unlink(missing_ok=True)


def chosen(command: Command, known: Iterable[int]) -> Tuple[List[int], List[int]]:
    """The jobs that a command names: those named one by one, and those of ranges or `all`.

    It has an `id`, or `ids`: texts and numbers such as 3, "5-7" and "all", which stands for the
    `known`. Ranges are cut to the `known`, since not each of their jobs need be there. ValueError
    for what is none of these, KeyError when neither is there.
    """
    named: Dict[int, None] = {}
    swept: Dict[int, None] = {}
    known = set(known)
    for word in command["ids"] if "ids" in command else [command["id"]]:
        text = str(word)
        if text == "all":
            swept.update(dict.fromkeys(sorted(known)))
        elif "-" in text:
            swept.update(dict.fromkeys(i for i in numbers(text) if i in known))
        else:
            named.update(dict.fromkeys(numbers(text)))
    return list(named), [job_id for job_id in swept if job_id not in named]
