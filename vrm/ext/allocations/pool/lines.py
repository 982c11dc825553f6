"""The jobs of a queue file as a pool takes them: one line for each job, that can be run from any directory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from collections.abc import Iterator

from vrm.ext.allocations.pool.journal import PoolError
from vrm.workload.following import QueueFollower
from vrm.workload.grammar import LineError, QueueLine, field_of

TIED = ("after", "begin", "deadline")
"""Fields of jobs that know of others, or of a time."""


def lines_of(path: Path) -> list[str]:
    """The jobs of a queue file. PoolError where it cannot be read, for a line that is wrong, and for one that waits for
    others or for a time: allocations know nothing of each other's jobs."""
    follower = QueueFollower(path)
    follower.finish()
    found = [line for taken in follower.read_new() for line in _each(path, taken.number, taken.parsed)]
    if follower.trouble:
        raise PoolError(f"{path} {follower.trouble}")
    if not found:
        raise PoolError(f"{path}: it has no jobs")
    return found


def _each(path: Path, number: int, parsed: QueueLine | LineError) -> Iterator[str]:
    if isinstance(parsed, LineError):
        raise PoolError(f"{path}:{number}: {parsed}")
    tied = next((name for name in TIED if name in parsed.fields), "a delay" if parsed.delay else "")
    if tied:
        raise PoolError(f"{path}:{number}: `{tied}` is for jobs that know of each other or of a time; a pool is for "
                        "jobs that may run anywhere in any order")
    if parsed.items:
        raise PoolError(f"{path}:{number}: `each` cannot be dealt to allocations; write a line for each job, or array=")
    fields = {key: _placed(key, value, path.parent) for key, value in parsed.fields.items()}
    for index in fields.get("array", ()) or (None,):
        yield str(replace(parsed, delay=None,
                          fields=fields if index is None else {**fields, "array": range(index, index + 1)}))


def _placed(key: str, value: Any, directory: Path) -> Any:
    """A value whose paths are seen from anywhere."""
    at = field_of(key).at
    if at in ("directory", "file"):
        return os.path.normpath(os.path.join(os.path.abspath(directory), value))
    if at == "components":
        return tuple(each._replace(file=os.path.normpath(os.path.join(os.path.abspath(directory), each.file)))
                     if each.file else each for each in value)
    return value
