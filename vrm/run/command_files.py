"""Commands to a running manager, sent as files: `vrm submit`, `vrm cancel`, `vrm hold` and others.

The client writes a JSON file into the run's private `commands` directory. The manager claims it, carries it out, and
writes the answer under the same name into `replies`. There is no network socket. The command's name is recorded in
the journal with the effects of the command, so that the next manager, or the client itself, can find out what a
killed manager has done of it.
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
"""Errors of a full or failing disk: the same write may succeed later."""

_LARGEST = 24 << 20
"""Maximum size of a command in bytes: the longest call of a front command, with its script, as base64."""
_LONGEST_NAME = 200
_POLL = 0.05

NEXT = 10.0
"""Seconds that a client waits for the next manager after one has ended."""

SETTLING = 0.5
"""Seconds to wait for the answer of a manager that had already claimed the command when the client withdrew it."""

TAKEN = "the manager has taken the command, and has not answered yet; `vrm queue` shows whether it was carried out"
"""Message to the user when a manager has claimed a command and has not answered."""

_LOOK = 0.25
"""Seconds between two checks whether a manager runs."""


def new_name() -> str:
    """Return a unique name for a command file."""
    return f"{time.time_ns():020d}.{secrets.token_hex(4)}"


def send(run: RunDirectory, command: Command, name: str = "") -> str:
    """Write a command, with the host name and boot id of the sender, and return its file name. Raises RunError if the
    directory cannot be written."""
    name = name or new_name()
    try:
        run.commands.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(run.commands / name, {**command, "host": os.uname().nodename, "boot": boot_id()}, private=True)
    except OSError as error:
        mine = "; is this the directory of your own run?" * isinstance(error, PermissionError)
        raise RunError(f"cannot write to {run.commands}: {error.strerror}{mine}") from error
    return name


def wait_reply(run: RunDirectory, name: str, seconds: float) -> Command | None:
    """Return the manager's answer and remove it, or return None if it has not come within `seconds`."""
    path = run.replies / name
    end, pause = time.monotonic() + seconds, _POLL / 16
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError):
            reply: Command = json.loads(read_own(path))
            remove(run, name)  # which a killed manager may have left; removed before its answer
            path.unlink()
            return reply
        if time.monotonic() >= end:
            return None
        time.sleep(pause)  # the manager may be on another host, so files are the only signal
        pause = min(2 * pause, _POLL)


def answered(run: RunDirectory, name: str, seconds: float, after: float | None = None
             ) -> Command | None:
    """Return the answer to a command, from the running manager or from the next one if that starts within `after`
    seconds (default NEXT). Return None if there is no answer within `seconds`, or no manager runs: the command is
    then withdrawn and will not be carried out, and `vrm.run.journal.files.jobs_of_command` returns the jobs that it has
    already made. If a manager has claimed the command without answering, return a failed answer with the text
    TAKEN."""
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
            from vrm.run.journal import files as journal  # slow to import and seldom needed
            if journal.jobs_of_command(run.journal, name):
                break
        if now >= min(end, gone + after):
            break
    back = withdraw(run, name)
    reply = wait_reply(run, name, SETTLING if run.manager_runs() else 0)
    if reply is None and not back and (run.commands / name).exists():
        return {"ok": False, "text": TAKEN}
    return reply


def withdraw(run: RunDirectory, name: str) -> bool:
    """Remove a command that no manager has claimed yet; return whether that succeeded."""
    handle = claim(run, name)
    if handle is None:
        return False
    try:
        remove(run, name)
    finally:
        os.close(handle)
    return True


def claim(run: RunDirectory, name: str) -> int | None:
    """Lock a command file, to carry it out or to withdraw it, and return its descriptor; the claim ends when the
    descriptor is closed. Return None if the file is gone or another process has claimed it. Raises OSError."""
    try:
        handle = open_own(run.commands / name, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        handle = open_own(run.commands / name, os.O_RDONLY)  # read-only: the sender cannot withdraw it
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
    """Remove a command that has been carried out, or that must not be carried out."""
    (run.commands / name).unlink(missing_ok=True)


def take(run: RunDirectory, boot: str = "") -> Iterator[tuple[str, Command]]:
    """Yield the names and contents of waiting commands, oldest first; the manager answers each, which removes its
    file.

    A file that is not a valid command of this user is yielded as `{"do": "invalid", "why": ...}`, for `reject_file`.
    Removed without being yielded: a command that a killed manager has answered already, and one that was sent from
    this host before its last boot (its boot id differs from `boot`), because its client is gone, and the command may
    have been refused or withdrawn.
    """
    for name in sorted(os.listdir(run.commands)):
        if name.startswith("."):
            continue
        over = os.path.isfile(run.replies / name)  # checked first: a reader removes the command, then the answer
        command = _read(run.commands / name)
        if command is None:
            continue
        if command["do"] != "invalid" and (over or (boot and _of_before(command, boot))):
            remove(run, name)
        else:
            yield name, command


def _of_before(command: Command, boot: str) -> bool:
    """Return whether a command was sent from this host before its last boot, by a client that waited for the
    answer."""
    return command.get("host") == os.uname().nodename and command.get("boot") != boot and not command.get("unasked")


def _read(path: Path) -> Command | None:
    """Return a command; None if it has been withdrawn."""
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        return {"do": "invalid", "why": "its name is too long"}
    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return {"do": "invalid", "why": "others may write this file (chmod go-w)"}
            data = file.read(_LARGEST + 1)
        command = json.loads(data) if len(data) <= _LARGEST else None
        if b"\\u" in data:  # refuse text that is not valid Unicode: it could be neither written to a file nor printed
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
    """Write the answer to a command and remove the command."""
    write_json(run.replies / name, reply, private=True)
    remove(run, name)


def reject_file(run: RunDirectory, name: str, why: str) -> Path:
    """Move a file that is not a valid command to `refused/`, and answer it if possible; return its new path. Raises
    OSError if it cannot be moved, or if the answer fails now but may succeed later (see DISK)."""
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
    """Return the jobs that a command selects: first those named one by one, then those selected by ranges, `all` or
    `failed`.

    The command has an `id`, or a list `ids` of texts and numbers: 3, "5-7", "all" (all `known` jobs) or "failed" (the
    jobs in `failed`). Ranges are limited to `known` jobs, since not every id in a range need exist. Raises ValueError
    for any other value or for too many jobs, KeyError if the command has neither key.
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
