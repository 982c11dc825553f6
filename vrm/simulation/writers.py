"""Writes what a simulation leaves of each job: lines of `jobs.csv`, and the columns of evalys.

Texts cost a quarter of a simulation's time, so that another process makes them where there is a
second processor (`WriterProcess`).
"""

from __future__ import annotations

import fcntl
import gc
import marshal
import os
import signal
import threading
from contextlib import suppress
from typing import Any, NoReturn, Protocol, TextIO
from collections.abc import Iterable, Sequence

from vrm.model.node import Node
from vrm.model.placement import CoreLayout, Placement
from vrm.model.forms.placement_forms import Values, of_values, width_of
from vrm.model.quantities import seconds_text
from vrm.results.job_columns import SIMULATED, header, pattern, places_cell, TextCells
from vrm.results.places import PlacementText

JobTuple = tuple[Any, ...]
"""A job that ran: id, application, ranks, submission, start, end, estimate, status, whether it
was exclusive and whether backfilled, and the values of its placement."""

_SIZE = 8
"""Bytes of the length that goes before each batch of rows to another process."""

_SET_PIPE_SIZE = 1031  # Linux; `fcntl` has its name from Python 3.10 on

PLACES = ("full", "nodes", "none")

_all_whole = {int}.issuperset

_LINE = pattern(exit_code="", app_time="", binding="unbound", reason="") + "%s\n"


Batch = tuple[int, int, bytes, bytes, list[str]]
"""How many jobs have ended in all; how many have started since the batch before, or were refused; of
these, as the bytes of arrays, id, ranks, application and how it was (0, OVERTOOK, or -1: refused), and
submission, start, end and estimate; and the applications that are new. Values that `marshal` takes."""


class PlacesJobs(Protocol):
    """Finds the places of the jobs of a run by counting, and makes their lines."""

    def made(self, batch: Batch, refused: list[str]) -> list[str]:
        """The lines of the jobs that have ended since the batch before; `refused` are those of jobs that
        were refused, in order."""


class JobLines:
    """Writes lines of `jobs.csv` to a text file, whose header it writes at once.

    `places` tells how much of a job's place is written (see `vrm.simulation.results.Results`).
    With `more`, rows end with the text of the columns behind `reason`.
    """

    _wide = False
    placer: PlacesJobs | None = None
    """For a run by counting: what is written are its batches, with the lines of refused jobs."""

    def __init__(self, nodes: Sequence[Node], out: TextIO, places: str, more: bool = False) -> None:
        self._wide = more
        self._out = out
        self.places = places
        self.text = PlacementText(nodes)
        self._layout = CoreLayout(nodes)
        self.apps = TextCells()
        out.write(header() if more else SIMULATED)

    def write(self, rows: Iterable[Any]) -> None:
        """Write rows, or lines that are made already."""
        if self.placer is not None:
            rows = self.placer.made(*rows)
        if self._wide:
            rows = [row if isinstance(row, str) else self._line(row[:-1], row[-1]) for row in rows]
        self._out.write("".join([row if isinstance(row, str) else self._line(row) for row in rows]))

    def flush(self) -> None:
        """Hand all lines to the file."""
        self._out.flush()

    def close(self) -> None:
        """Nothing is left to do: the file is its owner's."""

    def _line(self, row: JobTuple, more: str = "") -> str:
        job_id, app, procs, *times, status, exclusive, backfilled, place = row
        if not _all_whole(map(type, times)):
            times = list(map(seconds_text, times))
        nodes, cores = self._place(place)
        return _LINE % (job_id, self.apps[app], procs, *times, status, '1' if exclusive else '0',
                        '1' if backfilled else '0', places_cell(nodes), places_cell(cores), more)

    def _place(self, place: Values) -> tuple[str, str]:
        """The columns `nodes` and `cores`, as far as they are wanted. Where ranks have several
        cores, the column says how many there are, and is always there."""
        wide = width_of(place) > 1
        return ("", "") if self.places == "none" and not wide else self.place(of_values(place, self._layout), wide)

    def place(self, placement: Placement, wide: bool = False) -> tuple[str, str]:
        """The same of a placement, of which something is wanted."""
        if self.places == "nodes" and not wide:
            return self.text.nodes(placement), ""
        return self.text.columns(placement)


class WriterProcess:
    """Has `lines` written by a process of its own, which ends with this one.

    Errors of writing are raised by whatever follows them.
    """

    @staticmethod
    def possible() -> bool:
        """Whether there is a processor for it, and no thread that a fork would cut off."""
        return (hasattr(os, "fork") and threading.active_count() == 1
                and len(os.sched_getaffinity(0)) > 1)

    def __init__(self, lines: JobLines) -> None:
        lines.flush()  # what is in a buffer now must not be written twice
        rows, self._rows = os.pipe()
        with suppress(OSError):  # where the system allows no more, the pipe stays as it was
            fcntl.fcntl(self._rows, _SET_PIPE_SIZE, 1 << 20)
        self._complaint, complaint = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(self._rows)
            self._serve(lines, rows, complaint)
        os.close(rows)
        os.close(complaint)

    @staticmethod
    def _serve(lines: JobLines, rows: int, complaint: int) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rows of an interrupted run count
        gc.disable()  # it would look at, and so copy, all that this process shares with the other
        code = 1
        try:
            with open(rows, "rb") as source:
                while True:
                    size = int.from_bytes(source.read(_SIZE), "little")
                    batch = source.read(size)  # at once: marshal.load would ask for every number
                    if not size or len(batch) < size:
                        break
                    lines.write(marshal.loads(batch))
            lines.flush()
            code = 0
        except OSError as error:
            os.write(complaint, marshal.dumps((error.errno, error.strerror, error.filename)))
        finally:
            os._exit(code)

    def write(self, rows: list[Any]) -> None:
        """Have rows written."""
        batch = marshal.dumps(rows)
        data = memoryview(len(batch).to_bytes(_SIZE, "little") + batch)
        try:
            while data:
                data = data[os.write(self._rows, data):]
        except BrokenPipeError:
            self.close()
            raise

    def flush(self) -> None:
        """Wait until all rows are in the file; nothing can be written after it."""
        self.close()

    def close(self) -> None:
        """End the process when it has written what it has; OSError when it could not."""
        if not self._child:
            return
        child, self._child = self._child, 0
        os.close(self._rows)
        with open(self._complaint, "rb") as source:
            said = source.read()
        if os.waitpid(child, 0)[1]:
            raise OSError(*marshal.loads(said)) if said else OSError(
                "the process that writes jobs.csv ended")
