"""Calls functions on the cores of a run (`Session.map`). The workers are ordinary jobs."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import pickle
import secrets
import shutil
import sys
import time
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Callable, Iterator, Sequence

from vrm.results import state
from vrm.ext.session.worker import Outcome, write
from vrm.system.files import read_own

if TYPE_CHECKING:
    from vrm.ext.session import JobFuture, Session

PARTS = 16
"""Parts of the items per worker: at the end, workers wait at most for one of these."""

PAUSE = 0.02
"""Seconds between two looks for results."""

TRIES = 3
"""Maximum number of tries of a part whose workers were lost."""


def pickled(function: Callable[..., Any]) -> bytes:
    """Return a function as bytes. Raises ValueError, with advice, if that is not possible."""
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        if getattr(function, "__module__", "") == "__main__" or "<" in getattr(function, "__qualname__", ""):
            raise ValueError(f"{function!r} can be sent to workers only with cloudpickle (`pip install "
                             "cloudpickle`), or if it is in a module of its own") from None
        return pickle.dumps(function)
    data: bytes = cloudpickle.dumps(function)
    return data


def cores_of(session: Session) -> int:
    """Return the number of cores on the nodes of the run that are up; 1 if that is not known yet."""
    try:
        found = state.read(session.settings.state, ("nodes",))
    except (OSError, ValueError):
        return 1
    return max(1, sum(len(socket) for node in found["nodes"] if node.get("up", True)
                      for socket in node["sockets"]))


def mapped(session: Session, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], workers: int,
           cores: int, walltime: str | float, size: int) -> Iterator[Any]:
    """Yield the results of the calls, in order; see `Session.map`."""
    workers = workers or cores_of(session) // cores or 1
    size = size or max(1, math.ceil(len(calls) / (workers * PARTS)))
    directory = session.settings.directory / "maps" / secrets.token_hex(8)
    for name in ("todo", "taken", "done"):
        (directory / name).mkdir(mode=0o700, parents=True)
    parts = [calls[at:at + size] for at in range(0, len(calls), size)]
    names = [f"{number:08d}" for number in range(len(parts))]
    jobs: list[JobFuture] = []
    try:
        write(directory / "function", pickled(function))
        for name, part in zip(names, parts):
            write(directory / "todo" / name, pickle.dumps(part))
        (directory / "end").touch()
        there = os.pathsep.join(path for path in sys.path if path)

        def worker() -> JobFuture:
            return session.submit(sys.executable, 1, walltime, args=["-m", "vrm.ext.session.worker", directory],
                                  cores=cores, dir=os.getcwd(), env={"PYTHONPATH": there})

        jobs += [worker() for _ in range(min(workers, len(parts)))]
        lost: list[str] = []
        for name in names:
            yield from _results(_wait(directory, name, jobs, lost, worker))
    finally:
        for job in jobs:
            with contextlib.suppress(RuntimeError):  # the manager has ended, and the jobs with it
                job.cancel()
        wait(jobs)
        shutil.rmtree(directory, ignore_errors=True)


def _results(outcomes: list[Outcome]) -> Iterator[Any]:
    for good, value, trace in outcomes:
        if not good:
            raise value from RuntimeError(f"in a worker:\n{trace}")
        yield value


def _wait(directory: Path, name: str, jobs: list[JobFuture], lost: list[str], worker: Callable[[], JobFuture]
          ) -> list[Outcome]:
    """Return the outcomes of a part when they are there. A part that a lost worker had taken is done again by a new
    worker."""
    while True:
        ended = [job for job in jobs if job.done()]  # checked first: the results of ended workers are there then
        try:
            found: list[Outcome] = pickle.loads(read_own(directory / "done" / name))
            return found
        except FileNotFoundError:
            pass
        for job in ended:
            for taken in (directory / "taken").glob(f"*.{job._id}"):
                part = taken.name.partition(".")[0]
                if not (directory / "done" / part).exists():
                    lost.append(part)
                    if lost.count(part) >= TRIES:
                        job.result()
                        raise RuntimeError(f"part {part} has lost {TRIES} workers")
                    os.rename(taken, directory / "todo" / part)
                    jobs.append(worker())
        if len(ended) == len(jobs):
            for job in ended:
                job.result()  # raises the job's exception, if any
            raise RuntimeError("all workers have ended, and not all is done")
        time.sleep(PAUSE)
