"""Write the lines of `jobs.csv` of a simulation.

Making these texts takes a quarter of a simulation's time. Therefore another process makes them if there is a second
processor (`WriterProcess`).
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
from vrm.model.forms.placement_formats import Values, of_values, width_of
from vrm.model.quantities import seconds_text
from vrm.results.job_columns import SIMULATED, header, pattern, places_cell, TextCells
from vrm.results.placement_text import PlacementText

JobTuple = tuple[Any, ...]
"""A job that ran: id, application, ranks, submission, start, end, estimate, status, whether it was exclusive, whether
it was backfilled, and the values of its placement."""

_SIZE = 8
"""Bytes of the length field before each batch of rows that is sent to the other process."""

_SET_PIPE_SIZE = 1031  # Linux; `fcntl` has its name from Python 3.10 on

PLACES = ("full", "nodes", "none")

_all_whole = {int}.issuperset

_LINE = pattern(exit_code="", app_time="", binding="unbound", reason="") + "%s\n"


Batch = tuple[int, int, bytes, bytes, list[str]]
"""The number of all ended jobs; the number of jobs that have started, or were refused, since the batch before; then
of these jobs, as the bytes of arrays: id, ranks, application and how (0, OVERTOOK, or -1: refused), and submission,
start, end and estimate; and the new applications. Values that `marshal` accepts."""


class LineMaker(Protocol):
    """Finds the placements of jobs in a run by counting, and makes their lines."""

    def made(self, batch: Batch, refused: list[str]) -> list[str]:
        """Return the lines of the jobs that have ended since the batch before; `refused` are the lines of refused
        jobs, in order."""


class JobLines:
    """Writes lines of `jobs.csv` to a text file; it writes the header at once.

    `places` is the part of a job's placement that is written (see `vrm.simulation.results.Results`). With `more`,
    rows end with the text of the columns after `reason`.
    """

    _wide = False
    placer: LineMaker | None = None
    """Set in a run by counting: then batches are written, with the lines of refused jobs."""

    def __init__(self, nodes: Sequence[Node], out: TextIO, places: str, more: bool = False) -> None:
        self._wide = more
        self._out = out
        self.places = places
        self.text = PlacementText(nodes)
        self._layout = CoreLayout(nodes)
        self.apps = TextCells()
        out.write(header() if more else SIMULATED)

    def write(self, rows: Iterable[Any]) -> None:
        """Write rows, or finished lines."""
        if self.placer is not None:
            rows = self.placer.made(*rows)
        if self._wide:
            rows = [row if isinstance(row, str) else self._line(row[:-1], row[-1]) for row in rows]
        self._out.write("".join([row if isinstance(row, str) else self._line(row) for row in rows]))

    def flush(self) -> None:
        """Pass all lines to the file."""
        self._out.flush()

    def close(self) -> None:
        """Do nothing: the caller closes the file."""

    def _line(self, row: JobTuple, more: str = "") -> str:
        job_id, app, procs, *times, status, exclusive, backfilled, place = row
        if not _all_whole(map(type, times)):
            times = list(map(seconds_text, times))
        nodes, cores = self._place(place)
        return _LINE % (job_id, self.apps[app], procs, *times, status, '1' if exclusive else '0',
                        '1' if backfilled else '0', places_cell(nodes), places_cell(cores), more)

    def _place(self, place: Values) -> tuple[str, str]:
        """Return the columns `nodes` and `cores`, as far as they are requested. If ranks have several cores, the
        column `cores` includes their number, and is always written."""
        wide = width_of(place) > 1
        return ("", "") if self.places == "none" and not wide else self.place(of_values(place, self._layout), wide)

    def place(self, placement: Placement, wide: bool = False) -> tuple[str, str]:
        """Return the columns `nodes` and `cores` of a placement, unless `places` is `none`."""
        if self.places == "nodes" and not wide:
            return self.text.nodes(placement), ""
        return self.text.columns(placement)


class WriterProcess:
    """Writes rows to `lines` in a separate process, which ends with this one.

    Write errors are raised by a later call.
    """

    @staticmethod
    def possible() -> bool:
        """Return whether there is a free processor, and no other thread, which a fork would not copy."""
        return (hasattr(os, "fork") and threading.active_count() == 1
                and len(os.sched_getaffinity(0)) > 1)

    def __init__(self, lines: JobLines) -> None:
        lines.flush()  # buffered text must not be written twice
        rows, self._rows = os.pipe()
        with suppress(OSError):  # if the system allows no more, the pipe keeps its size
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rows of an interrupted run are still written
        gc.disable()  # a collection would touch, and so copy, all memory that is shared with the other process
        code = 1
        try:
            with open(rows, "rb") as source:
                while True:
                    size = int.from_bytes(source.read(_SIZE), "little")
                    batch = source.read(size)  # in one read: marshal.load would read every number separately
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
        """Send rows to the process."""
        batch = marshal.dumps(rows)
        data = memoryview(len(batch).to_bytes(_SIZE, "little") + batch)
        try:
            while data:
                data = data[os.write(self._rows, data):]
        except BrokenPipeError:
            self.close()
            raise

    def flush(self) -> None:
        """Wait until all rows are in the file; nothing can be written afterwards."""
        self.close()

    def close(self) -> None:
        """End the process after it has written everything. Raises OSError if it could not write."""
        if not self._child:
            return
        child, self._child = self._child, 0
        os.close(self._rows)
        with open(self._complaint, "rb") as source:
            said = source.read()
        if os.waitpid(child, 0)[1]:
            raise OSError(*marshal.loads(said)) if said else OSError(
                "the process that writes jobs.csv ended")
