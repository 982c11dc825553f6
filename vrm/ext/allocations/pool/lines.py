"""The jobs of a queue file for a pool: one line for each job, which can run from any directory."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Iterator, Sequence

from vrm.ext.allocations.pool.journal import PoolError
from vrm.ext.allocations.pool.state import PoolState
from vrm.model.job import START, Dependency, resolved
from vrm.workload.queue_follower import QueueFollower
from vrm.workload.grammar import LineError, QueueLine, field_of, parse_line


class PoolLine(NamedTuple):
    """A job: its line without its dependencies, its dependencies, its name, and its file and line."""

    text: str
    after: tuple[Dependency, ...]
    name: str
    place: str


def lines_of(path: Path) -> list[PoolLine]:
    """Return the jobs of a queue file. Raises PoolError if it cannot be read, for a wrong line, and for a job
    that waits for something that no allocation can know."""
    follower = QueueFollower(path)
    follower.finish()
    found = [line for taken in follower.read_new() for line in _each(path, taken.number, taken.parsed)]
    if follower.trouble:
        raise PoolError(f"{path} {follower.trouble}")
    if not found:
        raise PoolError(f"{path}: it has no jobs")
    return found


def adding(state: PoolState, lines: Sequence[PoolLine]) -> dict[str, Any]:
    """Return the entry that adds jobs to a pool, with dependencies as numbers of jobs in the pool. Raises
    PoolError for a job that depends on one which is not in the pool before it."""
    first, ids = len(state.lines), dict[str, list[int]]()
    if any(each.name for line in lines for each in line.after):
        for number, text in enumerate(state.lines):
            ids.setdefault(parse_line(text).fields.get("name", ""), []).append(number)
    after: dict[str, list[list[Any]]] = {}
    for number, line in enumerate(lines, first):
        try:
            wanted = resolved(line.after, ids)
        except ValueError as error:
            raise PoolError(f"{line.place}: {error}") from None
        for each in wanted:
            if each.ids.stop > number:
                raise PoolError(f"{line.place}: it waits for job {each.ids.stop - 1}, and the pool has no such job "
                                "before it (jobs of a pool count from 0, each of an array by itself)")
            after.setdefault(str(number), []).append([each.kind, *each.ids])
        ids.setdefault(line.name, []).append(number)
    return {"do": "add", "lines": [line.text for line in lines], **({"after": after} if after else {})}


def _each(path: Path, number: int, parsed: QueueLine | LineError) -> Iterator[PoolLine]:
    place = f"{path}:{number}"
    if isinstance(parsed, LineError):
        raise PoolError(f"{place}: {parsed}")
    if "begin" in parsed.fields or parsed.delay:
        what = "begin" if "begin" in parsed.fields else "a delay"
        raise PoolError(f"{place}: `{what}` is a time at which a pool may have no allocation; leave it out, or add the "
                        "line then (vrm pool add)")
    if parsed.items:
        raise PoolError(f"{place}: `each` cannot be dealt to allocations; write a line for each job, or array=")
    after = parsed.fields.get("after", ())
    if any(each.kind == START for each in after):
        raise PoolError(f"{place}: `after=start:` is for the jobs of one run; in a pool jobs wait for the ends of "
                        "others")
    fields = {key: _placed(key, value, path.parent) for key, value in parsed.fields.items() if key != "after"}
    for index in fields.get("array", ()) or (None,):
        text = str(replace(parsed, delay=None,
                           fields=fields if index is None else {**fields, "array": range(index, index + 1)}))
        yield PoolLine(text, after, fields.get("name", ""), place)


def _placed(key: str, value: Any, directory: Path) -> Any:
    """Return a value with absolute paths."""
    at = field_of(key).at
    if at in ("directory", "file"):
        return os.path.normpath(os.path.join(os.path.abspath(directory), value))
    if at == "components":
        return tuple(each._replace(file=os.path.normpath(os.path.join(os.path.abspath(directory), each.file)))
                     if each.file else each for each in value)
    return value


class LineDemand(NamedTuple):
    """What a job needs according to its limit: core seconds, and seconds."""

    work: float
    seconds: float


@functools.lru_cache(maxsize=20_000)
def wants(text: str) -> LineDemand:
    """Return what the job of a line needs."""
    parsed = parse_line(text)
    return LineDemand(parsed.procs * parsed.fields.get("cores", 1) * parsed.seconds, parsed.seconds)


def with_after(state: PoolState, jobs: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a queue file with only these jobs, keeping the dependencies among them."""
    place = {number: at for at, number in enumerate(jobs)}
    for number in jobs:
        waits = [Dependency.on(place[job], kind) for job, kind in state.needs.get(number, {}).items() if job in place]
        yield state.lines[number] + (f" after={','.join(map(str, waits))}" if waits else "")
