"""A worker of `Session.map`: calls a function on one part of the items after the other.

`python -m vrm.ext.session.worker DIRECTORY`. The parts are files in `todo`; who renames one to `taken` has
it, and writes what came of it to `done`. There may be workers on many nodes: only files are between
them. It ends when there is a file `end` and nothing to do.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from vrm.system.files import read_own

PAUSE = 0.02
"""Seconds between two looks where there is nothing to do."""

Outcome = tuple[bool, Any, str]
"""Whether a call gave a result; that, or its exception; the traceback."""


def call(function: Any, arguments: tuple[Any, ...]) -> Outcome:
    """What comes of one call."""
    try:
        return True, function(*arguments), ""
    except Exception as error:  # it is the caller's, who gets it
        return False, error, traceback.format_exc()


def packed(outcomes: list[Outcome]) -> bytes:
    """Outcomes as bytes; those that cannot be are exceptions that say so."""
    try:
        return _readable(outcomes)
    except Exception:  # whatever a user's object raises when it is pickled, or read again
        sound: list[Outcome] = []
        for each in outcomes:
            try:
                _readable([each])
                sound.append(each)
            except Exception as error:  # this is one of them
                what = "what a call gave" if each[0] else f"an exception ({type(each[1]).__name__}: {each[1]})"
                sound.append((False, TypeError(f"{what} cannot be sent back: {error}"), each[2]))
        return pickle.dumps(sound)


def _readable(outcomes: list[Outcome]) -> bytes:
    """Outcomes as bytes. Exceptions with arguments of their own often cannot be read again."""
    data = pickle.dumps(outcomes)
    pickle.loads(pickle.dumps([value for good, value, _ in outcomes if not good]))
    return data


def write(path: Path, data: bytes) -> None:
    """A file that is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def serve(directory: Path, name: str) -> None:
    """Work on the parts in `todo` until the session has ended and none is left."""
    todo, taken, done = (directory / each for each in ("todo", "taken", "done"))
    function = pickle.loads(read_own(directory / "function"))
    while True:
        ended = (directory / "end").exists()  # asked first: what is added before it is seen below
        parts = sorted(each for each in os.listdir(todo) if not each.startswith("."))
        if not parts and ended:
            return
        for part in parts:
            mine = taken / f"{part}.{name}"
            try:
                os.rename(todo / part, mine)
            except FileNotFoundError:
                continue  # another worker has it
            items = pickle.loads(read_own(mine))
            write(done / part, packed([call(function, arguments) for arguments in items]))
            break
        else:
            time.sleep(PAUSE)


if __name__ == "__main__":
    sys.path[:0] = [os.getcwd()]
    serve(Path(sys.argv[1]), os.environ.get("VRM_JOB_ID", "0"))
