"""Commands to a running manager, as files: `vrm submit`, `vrm cancel`, `vrm hold` and others.

The client drops a JSON file into the run's private `commands` directory; the manager takes it,
acts, and answers in `replies` under the same name. Nothing listens on the network. The name goes
into the journal with what the command brings, so that the next manager, or the client by itself,
knows what a killed one has done of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import secrets
import stat
import time
from pathlib import Path
from typing import Any
from collections.abc import Collection, Iterable, Iterator

from vrm.run.rundir import PRIVATE, RunDirectory, write_json
from vrm.system.errors import RunError
from vrm.system.files import open_own, read_own
from vrm.system.hosts import boot_id
from vrm.model.quantities import MOST_JOBS, numbers

Command = dict[str, Any]
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""What says that a disk may do it another time."""

_LARGEST = 24 << 20
"""Bytes of a command: the longest call of a front command, with its script, as base64."""
_LONGEST_NAME = 200
_POLL = 0.05

NEXT = 10.0
"""Seconds in which, after the end of a manager, the next one has to be there."""

SETTLING = 0.5
"""Seconds for the answer of a manager that had a command when it was to be taken back."""

TAKEN = "the manager has taken the command, and has not answered yet; `vrm queue` shows whether it was carried out"
"""What a user reads then."""

_LOOK = 0.25
"""Seconds between two looks whether a manager runs."""


def new_name() -> str:
    """A name that no other command has."""
    return f"{time.time_ns():020d}.{secrets.token_hex(4)}"


def send(run: RunDirectory, command: Command, name: str = "") -> str:
    """Drop a command, which says from which machine and since which start of that, and return its name; RunError when
    the directory does not take it."""
    name = name or new_name()
    try:
        run.commands.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(run.commands / name, {**command, "host": os.uname().nodename, "boot": boot_id()}, private=True)
    except OSError as error:
        raise RunError(f"cannot write to {run.commands}: {error.strerror}; is this the directory of "
                       "your own run?") from error
    return name


def wait_reply(run: RunDirectory, name: str, seconds: float) -> Command | None:
    """The manager's answer, or None when it has not come within `seconds`."""
    path = run.replies / name
    end, pause = time.monotonic() + seconds, _POLL / 16
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError):
            reply: Command = json.loads(read_own(path))
            remove(run, name)  # which a manager that was killed could not remove any more, before its answer goes
            path.unlink()
            return reply
        if time.monotonic() >= end:
            return None
        time.sleep(pause)  # the answer comes from another host perhaps: only files tell
        pause = min(2 * pause, _POLL)


def answered(run: RunDirectory, name: str, seconds: float, after: float | None = None
             ) -> Command | None:
    """The answer to a command, by the manager that runs or by the next one, which is there within `after`
    seconds (else NEXT). None when nobody has answered within `seconds`, or no manager runs: then the command is taken
    back and nobody carries it out any more, and `vrm.run.journal.files.made_by` says which jobs it has brought. Where a
    manager has it and has not answered, the answer says that."""
    end, gone = time.monotonic() + seconds, math.inf
    after = NEXT if after is None else after
    while True:
        reply = wait_reply(run, name, min(seconds, _LOOK))
        if reply is not None:
            return reply
        now = time.monotonic()
        if run.manager_runs():
            gone = math.inf
        elif gone == math.inf:
            gone = now
            from vrm.run.journal import files as journal  # it takes long to load, and is seldom needed
            if journal.made_by(run.journal, name):
                break
        if now >= min(end, gone + after):
            break
    back = withdraw(run, name)
    reply = wait_reply(run, name, SETTLING if run.manager_runs() else 0)
    if reply is None and not back and (run.commands / name).exists():
        return {"ok": False, "text": TAKEN}
    return reply


def withdraw(run: RunDirectory, name: str) -> bool:
    """Take a command back that no manager has taken yet; whether that was so."""
    handle = claim(run, name)
    if handle is None:
        return False
    try:
        remove(run, name)
    finally:
        os.close(handle)
    return True


def claim(run: RunDirectory, name: str) -> int | None:
    """Have a command for oneself, to carry it out or to take it back, until the file that is given is closed; None
    where it is gone, or somebody else has it. Raises OSError."""
    try:
        handle = open_own(run.commands / name, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        handle = open_own(run.commands / name, os.O_RDONLY)  # nobody can take it back
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        pass  # a file system without locks
    if os.fstat(handle).st_nlink:
        return handle
    os.close(handle)
    return None


def remove(run: RunDirectory, name: str) -> None:
    """Remove a command that has been carried out, or that nobody is to carry out."""
    (run.commands / name).unlink(missing_ok=True)


def take(run: RunDirectory, boot: str = "") -> Iterator[tuple[str, Command]]:
    """The waiting commands, oldest first; the manager answers each, which removes its file.

    What is not a command of this user's comes as `{"do": "invalid", "why": ...}`, for `put_aside`. One that has its
    answer, from a manager that was killed then, is removed; and so is one that was given on this machine before its
    last start, which has this `boot`: nobody waits for its answer, and it may have been refused, or taken back.
    """
    for name in sorted(os.listdir(run.commands)):
        if name.startswith("."):
            continue
        over = os.path.isfile(run.replies / name)  # looked for first, since who reads it removes the command before
        command = _read(run.commands / name)
        if command is None:
            continue
        if command["do"] != "invalid" and (over or (boot and _of_before(command, boot))):
            remove(run, name)
        else:
            yield name, command


def _of_before(command: Command, boot: str) -> bool:
    """Whether a command was given on this machine before this start of it, by somebody who waited for the answer."""
    return command.get("host") == os.uname().nodename and command.get("boot") != boot and not command.get("unasked")


def _read(path: Path) -> Command | None:
    """A command; None when it has been taken back."""
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        return {"do": "invalid", "why": "its name is too long"}
    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return {"do": "invalid", "why": "others may write this file (chmod go-w)"}
            data = file.read(_LARGEST + 1)
        command = json.loads(data) if len(data) <= _LARGEST else None
        if b"\\u" in data:  # a text may be no Unicode: nobody can write it into a file or print it
            json.dumps(command, ensure_ascii=False).encode(errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        return {"do": "invalid", "why": f"it {error.strerror}"}
    except (ValueError, RecursionError) as error:
        return {"do": "invalid", "why": f"it is not JSON ({error})"}
    if not isinstance(command, dict) or not isinstance(command.get("do"), str):
        return {"do": "invalid", "why": "it is not a command"}
    return command


def answer(run: RunDirectory, name: str, reply: Command) -> None:
    """Answer a command and remove it."""
    write_json(run.replies / name, reply, private=True)
    remove(run, name)


def put_aside(run: RunDirectory, name: str, why: str) -> Path:
    """Move what lies among the commands and is none to `refused/`, and answer it where that is
    possible; OSError when it cannot be moved, or not be answered now."""
    try:
        write_json(run.replies / name, {"ok": False, "text": f"not understood: {why}"},
                   private=True)
    except OSError as error:
        if error.errno in DISK:
            raise
    folder = run.directory / "refused"
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, PRIVATE)
    plain = re.sub(r"[^0-9A-Za-z._-]", "_", name[:50])
    aside = folder / f"{plain}.{secrets.token_hex(4)}"
    os.rename(run.commands / name, aside)
    return aside


def chosen(command: Command, known: Collection[int], failed: Iterable[int] = ()
           ) -> tuple[list[int], list[int]]:
    """The jobs that a command names: those named one by one, and those of ranges, `all` or `failed`.

    It has an `id`, or `ids`: texts and numbers such as 3, "5-7", "all", which stands for the
    `known`, and "failed", for the `failed`. Ranges are cut to the `known`, since not each
    of their jobs need be there. ValueError for what is none of these or names too many, KeyError when neither is there.
    """
    named: dict[int, None] = {}
    swept: dict[int, None] = {}
    words = command["ids"] if "ids" in command else [command["id"]]
    count = 0
    for text in dict.fromkeys(map(str, words)):
        each = (sorted(known) if text == "all" else sorted(failed) if text == "failed"
                else numbers(text))
        count += len(each)
        if count > 10 * MOST_JOBS:
            raise ValueError("more jobs than a run has are named")
        if text in ("all", "failed") or "-" in text:
            swept.update(dict.fromkeys(i for i in each if i in known))
        else:
            named.update(dict.fromkeys(each))
    return list(named), [job_id for job_id in swept if job_id not in named]
