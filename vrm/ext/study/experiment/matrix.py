"""Many runs: every policy on every workload with every seed, on all cores or many machines.

A run leaves one JSON file named by its cell. Cells whose file is there are not run again, so a
matrix that was stopped continues where it was. Engines: processes of this machine; mpi4py.futures
(`mpiexec -n 64 python -m mpi4py.futures my_matrix.py`) or a Dask client, both optional.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import json
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import (Any, TypeVar)
from collections.abc import Callable, Iterator, Mapping, Sequence

Task = TypeVar("Task")


class MatrixError(ValueError):
    """A matrix that cannot be run; the text says why."""


@dataclass(frozen=True)
class Cell:
    """One run: a workload under a policy, with a seed where the workload is drawn.

    `workload` is the path of a file, or `lublin:PROCESSORS:JOBS` for a synthetic one; `choices`
    are texts and numbers (so that they have a name) by the names of fields: those of `Rules`,
    `Measurements`, `Timetable` and `Recording`, and `nodes`, `sockets`, `cores` and `machine`.
    """

    workload: str
    choices: tuple[tuple[str, Any], ...]
    seed: int = 0

    @property
    def name(self) -> str:
        """The name of the cell's file: readable, and different for different cells."""
        text = json.dumps([self.workload, self.choices, self.seed])
        readable = "-".join([Path(self.workload.replace(":", "_")).name,
                             *(str(value) for _, value in self.choices), str(self.seed)])
        safe = "".join(char if char.isalnum() or char in "._-" else "_" for char in readable)
        return f"{safe[:120]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"


@dataclass(frozen=True)
class Matrix:
    """Policies x workloads x seeds; `policies` are choices as those of a `Cell`.

    `common` is given to every run (nodes, sockets, cores, ...).
    """

    workloads: Sequence[str]
    policies: Sequence[Mapping[str, Any]]
    seeds: Sequence[int] = (0,)
    common: Mapping[str, Any] = field(default_factory=dict)

    def cells(self) -> Iterator[Cell]:
        """All runs; files are not drawn and have one seed."""
        for workload, policy in itertools.product(self.workloads, self.policies):
            choices = tuple(sorted({**self.common, **policy}.items()))
            for seed in self.seeds if workload.startswith("lublin:") else self.seeds[:1]:
                yield Cell(workload, choices, seed)

    def run(self, out: str | Path, executor: Any = None,
            workers: int | None = None) -> list[dict[str, Any]]:
        """Run what is missing under the directory `out` and return the results of all cells.

        `executor` is anything with `submit(function, ...)` that gives futures: MPIPoolExecutor of
        mpi4py.futures, a Dask client; None is a pool of `workers` processes (all cores unless
        given). A cell that fails does not stop the others. Raises MatrixError at the end when
        some failed, with the first reason.
        """
        directory = Path(out)
        directory.mkdir(parents=True, exist_ok=True)
        cells = list(self.cells())
        missing = [cell for cell in cells if not (directory / cell.name).exists()]
        failed = run_all(partial(run_cell, directory=str(directory)), missing, executor,
                         workers) if missing else []
        if failed:
            cell, error = failed[0]
            raise MatrixError(f"{len(failed)} of {len(cells)} runs failed; the first, "
                              f"{cell.workload} with {dict(cell.choices)}: {error}")
        return [json.loads((directory / cell.name).read_text(encoding="utf-8")) for cell in cells]


def run_all(function: Callable[[Task], Any], tasks: Sequence[Task], executor: Any = None,
            workers: int | None = None, done: Callable[[Task, Exception | None], None] =
            lambda task, error: None) -> list[tuple[Task, Exception]]:
    """Call a function for every task, many at a time; those that failed, and why.

    `executor` is as for `Matrix.run`. `done(task, error)` is told of each task, in their order. A
    task that fails does not stop the others; KeyboardInterrupt does, and what has not begun then
    is not begun.
    """
    own = None
    if executor is None:
        executor = own = concurrent.futures.ProcessPoolExecutor(workers or os.cpu_count())
    failed: list[tuple[Task, Exception]] = []
    try:
        futures = [(task, executor.submit(function, task)) for task in tasks]
        for task, future in futures:
            error: Exception | None = None
            try:
                future.result()
            except Exception as raised:  # whatever a run raises is told once the others are done
                error = raised
                failed.append((task, error))
            done(task, error)
    finally:
        if own is not None:
            own.shutdown(cancel_futures=True)
    return failed


def run_cell(cell: Cell, directory: str) -> str:
    """Run a cell and write its file, which appears only when it is whole; returns its name."""
    from vrm.simulation.arguments import by_name
    from vrm.simulation.library import simulate
    drawn = cell.workload.startswith("lublin:")
    workload = f"{cell.workload}:{cell.seed}" if drawn else cell.workload
    summary = simulate(workload, **by_name(dict(cell.choices))).summary
    for key in ("simulated_seconds", "jobs_per_second"):  # equal runs leave equal files
        del summary[key]
    report = {"workload": cell.workload, "seed": cell.seed, "choices": dict(cell.choices),
              **summary}
    path = Path(directory) / cell.name
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(report) + "\n", encoding="utf-8")
    os.replace(partial, path)
    return cell.name


def mpi_executor() -> Any:
    """An executor over the ranks of an MPI job; MatrixError when mpi4py is not installed."""
    try:
        from mpi4py.futures import MPIPoolExecutor
    except ImportError as error:
        raise MatrixError("mpi4py is not installed: pip install mpi4py") from error
    return MPIPoolExecutor()
