"""A worker of `Session.map`: calls a function on the items, one part after the other.

`python -m vrm.ext.session.worker DIRECTORY`. The parts are files in `todo`. A worker takes a part by renaming its file
into `taken`, and writes the outcomes to `done`. Workers may run on many nodes; they communicate only through files. A
worker ends when there is a file `end` and no part is left.
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
"""Seconds between two looks when there is nothing to do."""

Outcome = tuple[bool, Any, str]
"""Whether a call returned a result; the result, or its exception; the traceback."""


def call(function: Any, arguments: tuple[Any, ...]) -> Outcome:
    """Return the outcome of one call."""
    try:
        return True, function(*arguments), ""
    except Exception as error:  # it belongs to the caller and is passed on
        return False, error, traceback.format_exc()


def packed(outcomes: list[Outcome]) -> bytes:
    """Return outcomes as bytes; outcomes that cannot be pickled become exceptions that say so."""
    try:
        return _readable(outcomes)
    except Exception:  # a user's object may raise anything when it is pickled or unpickled
        sound: list[Outcome] = []
        for each in outcomes:
            try:
                _readable([each])
                sound.append(each)
            except Exception as error:  # this one cannot be pickled
                what = "what a call gave" if each[0] else f"an exception ({type(each[1]).__name__}: {each[1]})"
                sound.append((False, TypeError(f"{what} cannot be sent back: {error}"), each[2]))
        return pickle.dumps(sound)


def _readable(outcomes: list[Outcome]) -> bytes:
    """Return outcomes as bytes, after checking that their exceptions can be unpickled: exceptions with arguments of
    their own often cannot."""
    data = pickle.dumps(outcomes)
    pickle.loads(pickle.dumps([value for good, value, _ in outcomes if not good]))
    return data


def write(path: Path, data: bytes) -> None:
    """Write a file atomically: it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def serve(directory: Path, name: str) -> None:
    """Work on the parts in `todo` until the session has ended and none is left."""
    todo, taken, done = (directory / each for each in ("todo", "taken", "done"))
    function = pickle.loads(read_own(directory / "function"))
    while True:
        ended = (directory / "end").exists()  # checked first: parts that were added before it are seen below
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
