"""Record a simulation: one line per job, and the metrics of the run.

Both are made as jobs end. Each job needs about a hundred bytes of memory here, whatever its size.
"""

from __future__ import annotations

import hashlib
import signal
import struct
from contextlib import contextmanager
from typing import (Any, NamedTuple, TextIO)
from collections.abc import Callable, Iterable, Iterator, Sequence

from vrm.model.cluster import Booking
from vrm.model.measured.energy import Programs
from vrm.model.job import PLAIN, Details, Job
from vrm.model.node import Node
from vrm.model.forms.placement_formats import to_values
from vrm.model.measured.power import draw
from vrm.results.energy import PowerSpan, columns_of, energy_of
from vrm.results import shares
from vrm.results.job_columns import added_names, more_cells
from vrm.results.jobs import JobRow, added_cells, fields_of
from vrm.results.metrics import THRESHOLD
from vrm.results.placement_text import PlacementText
from vrm.results.summary import JobArrays, Moments, summarise
from vrm.scheduling.scheduler import Start
from vrm.simulation.engine import Moment, Recorder
from vrm.simulation.writers import PLACES, Batch, JobLines, LineMaker, WriterProcess
from vrm.system.plugins import need
from vrm.workload.columns import Names
from vrm.workload.submission import Submission

BATCH = 500
"""Number of rows that are written at a time."""

MANY, MANY_COUNTED = 8, 2
"""Number of batches (the second: in a run by counting) after which another process writes the rows, because it then
pays off."""

HASHED = 4096
"""Number of rows whose texts are made at a time for the hash of a schedule; all texts at once would take most of the
memory."""

_STATUSES = ("completed", "failed", "timeout", "cancelled", "refused")
_NUMBERS = {status: number for number, status in enumerate(_STATUSES)}
OVERTOOK = 8
"""Added to the number of a status: the job was backfilled."""

_JOB = struct.Struct("6q4d")
"""A job that ran: its id, ranks, cores, user, application and how it ended (the index in _STATUSES, plus OVERTOOK if
backfilled); its submission, start, end and estimate."""

_MOMENT = struct.Struct("4d")
"""A time, jobs and cores queued, cores busy."""

_pack_job, _pack_moment = _JOB.pack, _MOMENT.pack


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a Ctrl-C until the block is complete."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ResultRow(NamedTuple):
    """A job that ran; times in seconds of the workload. `processors` is the number of cores that it held, `status` is
    completed or timeout (killed at its estimate)."""

    id: int
    processors: int
    submit: float
    start: float
    end: float
    user: str = ""
    app: str = ""
    procs: int = 1
    estimate: float = 0.0
    status: str = "completed"
    backfilled: bool = False


class Results(Recorder):
    """Records a run; see `vrm.simulation.engine.Recorder`.

    `nodes` are those of the cluster. With `out`, a text file, each job is written there as it ends, in the columns of
    `jobs.csv`. `places` is the part of its placement that is written: `full`, `nodes` (without the cores, which need
    gigabytes on thousands of nodes) or `none`. With `more`, the line also has the details that `noting` has read.
    `evalys` is a text file for the same jobs in the columns of Batsim and evalys.
    """

    def __init__(self, nodes: Sequence[Node], out: TextIO | None = None, places: str = "full",
                 evalys: TextIO | None = None, workload: str = "workload",
                 more: bool = False, programs: Programs | None = None) -> None:
        if places not in PLACES:
            raise ValueError(f"places are {', '.join(PLACES)}, not `{places}`")
        self._writer: JobLines | WriterProcess | None = None
        if out is not None:
            self._writer = JobLines(nodes, out, places, more)
        self._text = PlacementText(nodes)
        self._nodes, self._programs = nodes, programs
        self._powered = any(node.power is not None for node in nodes)
        self.drawn: list[PowerSpan] = []  # power that jobs have drawn, in the order of their ends; 0 W if unknown
        self._details: dict[int, Details] | None = {} if more and out is not None else None
        self._rows: list[Any] = []  # not yet written
        self._batches = 0
        self.processors = sum(node.cores for node in nodes)
        self.counts = dict.fromkeys(_STATUSES, 0)
        self.refusals: dict[str, int] = {}
        self._evalys = need("vrm.options", "evalys")(evalys, nodes, workload) if evalys is not None else None
        self._jobs: Any = bytearray()  # of _JOB
        self._moments: Any = bytearray()  # of _MOMENT
        self.users, self.apps = Names(""), Names()
        self._lends = False  # whether any job has lent cores
        self._user_names: list[str] = []  # names in the order of their numbers
        self._app_names: list[str] = []

    def ended(self, booking: Booking, start: Start, end: float, status: str) -> None:
        """Record the end of a job."""
        job = booking.job
        self.counts[status] += 1
        user = self.users[job.user]
        app = self.apps[job.app]
        how = _NUMBERS[status]
        if start.backfilled:
            how |= OVERTOOK
        procs = job.procs
        self._jobs += _pack_job(job.id, procs, procs * job.cores, user, app, how,
                                job.submit, booking.start, end, job.walltime)
        self._lends = self._lends or bool(booking.shares)
        if self._programs is not None:
            watts = (draw(job, booking.placement, self._nodes, self._programs) or 0.0 if self._powered
                     else job.watts or 0.0)
            self.drawn.append(PowerSpan(booking.start, end, watts, booking.placement.frequency))
        if self._writer is not None:
            row = (job.id, job.app, job.procs, job.submit, booking.start, end, job.walltime,
                   status, job.exclusive, start.backfilled, to_values(booking.placement.at_start))
            self._rows.append(row if self._details is None else (*row, self._more_cells(booking, start, end, status)))
            if len(self._rows) >= BATCH:
                self._hand_over()
        if self._evalys is not None:
            self._evalys.write(booking, end, status)

    def _more_cells(self, booking: Booking, start: Start, end: float, status: str) -> str:
        """Return the columns after `reason` for an ended job."""
        job, placement = booking.job, booking.placement
        more = {**self._said(job), "devices": self._text.devices(placement),
                **(columns_of(self.drawn[-1]) if self._programs is not None else {}),
                **shares.columns_of(booking, end)}
        if not added_names():
            return more_cells(more)
        nodes, cores = self._text.columns(placement.at_start)
        return more_cells(more) + added_cells(JobRow(
            job.id, job.app, job.procs, job.submit, booking.start, end, job.walltime, status, exclusive=job.exclusive,
            backfilled=start.backfilled, nodes=nodes, cores=cores, binding="unbound", **more))

    def refused(self, job: Job, reason: str) -> None:
        """Record a job that can never run on this machine."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self._never_ran(job, "refused", None, reason)

    def cancelled(self, job: Job, reason: str, now: float) -> None:
        """Record a job that will never run because a dependency failed."""
        self._never_ran(job, "cancelled", now, reason)

    def _never_ran(self, job: Job, status: str, end: float | None, reason: str) -> None:
        self.counts[status] += 1
        if self._writer is not None:
            row = JobRow(job.id, job.app, job.procs, job.submit, None, end, job.walltime, status,
                         exclusive=job.exclusive, reason=reason, **self._said(job))
            self._rows.append(row.short_line if self._details is None else row.line)

    def _said(self, job: Job) -> dict[str, Any]:
        """Return the values of the columns after `reason` for a job, if they are written."""
        return {} if self._details is None else fields_of(job, self._details.pop(job.id, PLAIN))

    def energy(self) -> dict[str, Any]:
        """Return the energy of the jobs for the summary; empty if it is unknown for all."""
        return energy_of(self.drawn) if self._programs is not None else {}

    def noting(self, submissions: Iterable[Submission]) -> Iterator[Submission]:
        """Yield the same submissions, and keep their details for the jobs' lines, if these are written."""
        for one in submissions:
            if self._details is not None and one.details is not PLAIN:
                self._details[one.job.id] = one.details
            yield one

    def moment(self, state: Moment) -> None:
        """Record the state after all events of one time."""
        self._moments += _pack_moment(*state)

    @property
    def needs_bookings(self) -> bool:
        """Whether the written lines need more about jobs than a `LineMaker` object can supply."""
        return self._details is not None or self._evalys is not None

    def forget(self) -> None:
        """Remove the names of jobs that were read and will be read again."""
        self.users.forget()
        self.apps.forget()

    def placed_by(self, placer: Callable[[JobLines], LineMaker]) -> bool:
        """Set what makes the lines of jobs, for a run by counting; return whether lines are requested."""
        if self._writer is None:
            return False
        assert isinstance(self._writer, JobLines)
        self._writer.placer = placer(self._writer)
        return True

    def hand_over_counted(self, batch: Batch) -> None:
        """Write the jobs of a run by counting."""
        self._write((batch, self._rows), self._batches >= MANY_COUNTED)
        self._rows = []

    def counted(self, records: Any, moments: Any) -> None:
        """Store the record of a run by counting: the jobs that ran, as an array of `_JOB` values, and the moments, as
        an array of `_MOMENT` values."""
        import numpy as np
        self._jobs, self._moments = (each.reshape(-1).view(np.uint8).data for each in (records, moments))
        self.counts["completed"] = len(records)

    def _hand_over(self) -> None:
        """Write the pending rows."""
        with uninterrupted():
            self._write(self._rows, self._batches >= MANY and len(self._rows) >= BATCH)
            self._rows.clear()

    def _write(self, rows: Any, many: bool) -> None:
        """Write rows; once there are many, through another process."""
        if many and isinstance(self._writer, JobLines) and WriterProcess.possible():
            self._writer = WriterProcess(self._writer)
        self._batches += 1
        assert self._writer is not None
        self._writer.write(rows)

    def flush(self) -> None:
        """Write everything that is pending, at the end of the run. Raises OSError if that fails."""
        if self._writer is not None:
            if self._rows:
                self._hand_over()
            self._writer.flush()
        if self._evalys is not None:
            self._evalys.flush()

    def close(self) -> None:
        """Close the writer, also after a failed run."""
        if self._writer is not None:
            self._writer.close()

    # The whole run.

    @property
    def ran(self) -> int:
        """Number of jobs that ran and ended."""
        return len(self._jobs) // _JOB.size

    def rows(self) -> Iterator[ResultRow]:
        """Yield the jobs that ran, in the order of their ends."""
        return map(self.row, range(self.ran))

    def row(self, at: int) -> ResultRow:
        """Return the job at this position in the order of ends."""
        if len(self._user_names) < len(self.users):
            self._user_names = list(self.users)
        if len(self._app_names) < len(self.apps):
            self._app_names = list(self.apps)
        (number, procs, cores, user, app, how, submit, start, end,
         estimate) = _JOB.unpack_from(self._jobs, at * _JOB.size)
        return ResultRow(number, cores, submit, start, end, self._user_names[user], self._app_names[app], procs,
                   estimate, _STATUSES[how & ~OVERTOOK], how >= OVERTOOK)

    def _columns(self) -> tuple[Any, Any]:
        """Return the six integers and the four times of `_JOB`, each as a view of all jobs. Nothing can be recorded
        while such a view exists."""
        import numpy as np
        return (np.frombuffer(self._jobs, np.int64).reshape(-1, 10)[:, :6].T,
                np.frombuffer(self._jobs).reshape(-1, 10)[:, 6:].T)

    def backfilled(self, warm_up: float = 0.0, cool_down: float = 0.0) -> int:
        """Return the number of backfilled jobs, without those submitted in the first and last seconds of this
        length."""
        (*_, how), (submit, *_) = self._columns()
        if not len(how):
            return 0
        within = (submit >= submit.min() + warm_up) & (submit <= submit.max() - cool_down)
        return int(((how >= OVERTOOK) & within).sum())

    def start_hash(self) -> str:
        """Return a hash of the schedule: the first 16 hex digits of the SHA-256 of the lines `id start`, sorted by
        id, with starts in whole seconds."""
        import numpy as np
        numbers, times = self._columns()
        ids, starts = numbers[0], times[1]
        order = ids.argsort()
        digest = hashlib.sha256()
        for begin in range(0, len(order), HASHED):
            rows = order[begin:begin + HASHED]
            lines = map("%d %d\n".__mod__, zip(ids[rows].tolist(), starts[rows].astype(np.int64).tolist()))
            digest.update("".join(lines).encode())
        return digest.hexdigest()[:16]

    def moments(self) -> dict[str, Any]:
        """Return the moments; see `vrm.simulation.outcome.Outcome.moments`."""
        import numpy as np
        columns = np.frombuffer(self._moments).reshape(-1, 4).T
        return dict(zip(("time", "queued", "cores_queued", "cores_busy"), columns))

    def summary(self, warm_up: float = 0.0, cool_down: float = 0.0,
                threshold: float = THRESHOLD) -> dict[str, Any]:
        """Return the metrics of `vrm.results.summary.summarise`. Queue and machine over time are as the scheduler saw
        them: a job that waits for another one is not in the queue yet."""
        import numpy as np
        (_, _, cores, users, _, how), times = self._columns()
        completed = how & ~OVERTOOK == _NUMBERS["completed"]
        submit, start, end = times[:3]
        jobs = JobArrays(submit, start, end, cores, completed, users, tuple(self.users))
        moments = Moments(*np.frombuffer(self._moments).reshape(-1, 4).T)
        return summarise(jobs, moments, self.counts, self.processors, warm_up, cool_down,
                         threshold, self._lends)
