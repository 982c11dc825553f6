"""Runs a matrix of simulations: every policy on every workload with every seed, on all cores or many machines.

A run writes one JSON file named after its cell. Cells whose file exists are skipped, so a matrix that was stopped
continues. Engines: processes on this machine; optional: mpi4py.futures
(`mpiexec -n 64 python -m mpi4py.futures my_matrix.py`) or a Dask client.
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
    """A matrix that cannot be run, or whose runs failed; the text gives the reason."""


@dataclass(frozen=True)
class Cell:
    """One run: a workload under a policy, with a seed if the workload is synthetic.

    `workload` is the path of a file, or `lublin:PROCESSORS:JOBS` for a synthetic one. `choices` are pairs of a
    field name and a text or number (they are part of the name): the fields of `Rules`, `Measurements`, `Timetable`
    and `Recording`, and `nodes`, `sockets`, `cores` and `machine`.
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
    """Policies x workloads x seeds. `policies` are mappings of the choices of a `Cell`.

    `common` are choices of every run (nodes, sockets, cores, ...).
    """

    workloads: Sequence[str]
    policies: Sequence[Mapping[str, Any]]
    seeds: Sequence[int] = (0,)
    common: Mapping[str, Any] = field(default_factory=dict)

    def cells(self) -> Iterator[Cell]:
        """Yield all runs; a workload that is a file is not random and has only the first seed."""
        for workload, policy in itertools.product(self.workloads, self.policies):
            choices = tuple(sorted({**self.common, **policy}.items()))
            for seed in self.seeds if workload.startswith("lublin:") else self.seeds[:1]:
                yield Cell(workload, choices, seed)

    def run(self, out: str | Path, executor: Any = None,
            workers: int | None = None) -> list[dict[str, Any]]:
        """Run the missing cells, write their files to the directory `out`, and return the results of all cells.

        `executor` is any object with `submit(function, ...)` that returns futures: MPIPoolExecutor of
        mpi4py.futures, or a Dask client; None is a pool of `workers` processes (default: all cores). A cell that
        fails does not stop the others. Raises MatrixError at the end if some failed, with the first reason.
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
    """Call `function` for every task, several at a time; return the failed tasks with their exceptions.

    `executor` as for `Matrix.run`. `done(task, error)` is called for each task, in their order. A task that fails
    does not stop the others. KeyboardInterrupt does: tasks that have not started then are cancelled.
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
            except Exception as raised:  # every error of a run is reported after the others are done
                error = raised
                failed.append((task, error))
            done(task, error)
    finally:
        if own is not None:
            own.shutdown(cancel_futures=True)
    return failed


def run_cell(cell: Cell, directory: str) -> str:
    """Run a cell and write its file atomically (a partial file never has this name); return the file's name."""
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
    """Return an executor that uses the ranks of an MPI job. Raises MatrixError if mpi4py is not installed."""
    try:
        from mpi4py.futures import MPIPoolExecutor
    except ImportError as error:
        raise MatrixError("mpi4py is not installed: pip install mpi4py") from error
    return MPIPoolExecutor()
