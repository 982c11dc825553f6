"""What a simulation leaves: one line per job, and the metrics of the run.

Both are made as jobs end. A job costs about a hundred bytes of memory here, whatever it was.
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
from vrm.model.forms.placement_forms import to_values
from vrm.model.measured.power import draw
from vrm.results.energy import Drawn, columns_of, energy_of
from vrm.results import shares
from vrm.results.job_columns import added_names, more_cells
from vrm.results.jobs import JobRow, added_cells, fields_of
from vrm.results.metrics import THRESHOLD
from vrm.results.places import PlacementText
from vrm.results.summary import JobArrays, Moments, summarise
from vrm.scheduling.scheduler import Start
from vrm.simulation.engine import Moment, Recorder
from vrm.simulation.writers import PLACES, Batch, JobLines, PlacesJobs, WriterProcess
from vrm.system.plugins import need
from vrm.workload.columns import Names
from vrm.workload.submission import Submission

BATCH = 500
"""Rows that are written at a time."""

MANY, MANY_COUNTED = 8, 2
"""Batches, and those of a run by counting, after which it pays to have rows written by a process of its own."""

HASHED = 4096
"""Rows whose texts are made at a time for the fingerprint of a schedule: all at once are most of the memory."""

_STATUSES = ("completed", "failed", "timeout", "cancelled", "refused")
_NUMBERS = {status: number for number, status in enumerate(_STATUSES)}
OVERTOOK = 8
"""Added to the number of a status: the job was backfilled."""

_JOB = struct.Struct("6q4d")
"""A job that ran: its id, ranks, cores, user, application and how it ended (the place in _STATUSES,
and OVERTOOK if backfilled); its submission, start, end and estimate."""

_MOMENT = struct.Struct("4d")
"""A time, jobs and cores queued, cores busy."""

_pack_job, _pack_moment = _JOB.pack, _MOMENT.pack


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A Ctrl-C waits until what is done here is done, and not half of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ResultRow(NamedTuple):
    """A job that ran; times in seconds of the workload. `processors` is the number of cores that
    it held, `status` completed or timeout (killed at its estimate)."""

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

    `nodes` are those of the cluster. With `out`, a text file, each job is written there as it
    ends, in the columns of `jobs.csv`; `places` tells how much of its place: `full`, `nodes`
    (without the cores, which on thousands of nodes are gigabytes) or `none`; with `more`, the
    line also has what `noting` has seen of the job. `evalys` is a text file for the same jobs in the
    columns of Batsim and evalys.
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
        self.drawn: list[Drawn] = []  # what jobs have drawn, in the order of their ends; none where nobody knows
        self._details: dict[int, Details] | None = {} if more and out is not None else None
        self._rows: list[Any] = []  # for the writer
        self._batches = 0
        self.processors = sum(node.cores for node in nodes)
        self.counts = dict.fromkeys(_STATUSES, 0)
        self.refusals: dict[str, int] = {}
        self.backfilled = 0
        self._evalys = need("vrm.options", "evalys")(evalys, nodes, workload) if evalys is not None else None
        self._jobs: Any = bytearray()  # of _JOB
        self._moments: Any = bytearray()  # of _MOMENT
        self.users, self.apps = Names(""), Names()
        self._lends = False  # whether any job has lent cores
        self._user_names: list[str] = []  # the names, in the order of their numbers
        self._app_names: list[str] = []

    def ended(self, booking: Booking, start: Start, end: float, status: str) -> None:
        """A job ended."""
        job = booking.job
        self.counts[status] += 1
        user = self.users[job.user]
        app = self.apps[job.app]
        how = _NUMBERS[status]
        if start.backfilled:
            self.backfilled += 1
            how |= OVERTOOK
        procs = job.procs
        self._jobs += _pack_job(job.id, procs, procs * job.cores, user, app, how,
                                job.submit, booking.start, end, job.walltime)
        self._lends = self._lends or bool(booking.shares)
        if self._programs is not None:
            watts = (draw(job, booking.placement, self._nodes, self._programs) or 0.0 if self._powered
                     else job.watts or 0.0)
            self.drawn.append(Drawn(booking.start, end, watts, booking.placement.frequency))
        if self._writer is not None:
            row = (job.id, job.app, job.procs, job.submit, booking.start, end, job.walltime,
                   status, job.exclusive, start.backfilled, to_values(booking.placement.at_start))
            self._rows.append(row if self._details is None else (*row, self._more_cells(booking, start, end, status)))
            if len(self._rows) >= BATCH:
                self._hand_over()
        if self._evalys is not None:
            self._evalys.write(booking, end, status)

    def _more_cells(self, booking: Booking, start: Start, end: float, status: str) -> str:
        """The columns behind `reason` of a job that has ended."""
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
        """A job can never run on this machine."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self._never_ran(job, "refused", None, reason)

    def cancelled(self, job: Job, reason: str, now: float) -> None:
        """A job will never run since one that it depends on did not end as it wants."""
        self._never_ran(job, "cancelled", now, reason)

    def _never_ran(self, job: Job, status: str, end: float | None, reason: str) -> None:
        self.counts[status] += 1
        if self._writer is not None:
            row = JobRow(job.id, job.app, job.procs, job.submit, None, end, job.walltime, status,
                         exclusive=job.exclusive, reason=reason, **self._said(job))
            self._rows.append(row.short_line if self._details is None else row.line)

    def _said(self, job: Job) -> dict[str, Any]:
        """What the columns behind `reason` say of a job, where they are written."""
        return {} if self._details is None else fields_of(job, self._details.pop(job.id, PLAIN))

    def energy(self) -> dict[str, Any]:
        """The energy of the jobs, for the summary; empty where nothing is known of any."""
        return energy_of(self.drawn) if self._programs is not None else {}

    def noting(self, submissions: Iterable[Submission]) -> Iterator[Submission]:
        """The same submissions; what they say of jobs is kept for their lines, where these have
        room for it."""
        for one in submissions:
            if self._details is not None and one.details is not PLAIN:
                self._details[one.job.id] = one.details
            yield one

    def moment(self, state: Moment) -> None:
        """The state after everything that happened at one time."""
        self._moments += _pack_moment(*state)

    @property
    def needs_bookings(self) -> bool:
        """Whether more is written of jobs than what one that `PlacesJobs` can say."""
        return self._details is not None or self._evalys is not None

    def forget(self) -> None:
        """Forget the names of jobs that were read and will come again."""
        self.users.forget()
        self.apps.forget()

    def placed_by(self, placer: Callable[[JobLines], PlacesJobs]) -> bool:
        """For a run by counting: what makes the lines of its jobs. Whether somebody asks for these."""
        if self._writer is None:
            return False
        assert isinstance(self._writer, JobLines)
        self._writer.placer = placer(self._writer)
        return True

    def hand_over_counted(self, batch: Batch) -> None:
        """Have the jobs of a run by counting written."""
        self._write((batch, self._rows), self._batches >= MANY_COUNTED)
        self._rows = []

    def counted(self, records: Any, moments: Any) -> None:
        """Take the record of a run by counting: the jobs that ran, as an array with the values of `_JOB`,
        and the moments, with those of `_MOMENT`."""
        import numpy as np
        self._jobs, self._moments = (each.reshape(-1).view(np.uint8).data for each in (records, moments))
        self.counts["completed"] = len(records)
        self.backfilled = int(np.count_nonzero(records.view(np.int64)[:, 5] == OVERTOOK))

    def _hand_over(self) -> None:
        """Have the rows written."""
        with uninterrupted():
            self._write(self._rows, self._batches >= MANY and len(self._rows) >= BATCH)
            self._rows.clear()

    def _write(self, rows: Any, many: bool) -> None:
        """Have rows written, by another process once there are many."""
        if many and isinstance(self._writer, JobLines) and WriterProcess.possible():
            self._writer = WriterProcess(self._writer)
        self._batches += 1
        assert self._writer is not None
        self._writer.write(rows)

    def flush(self) -> None:
        """Have everything written, at the end of the run; OSError when that fails."""
        if self._writer is not None:
            if self._rows:
                self._hand_over()
            self._writer.flush()
        if self._evalys is not None:
            self._evalys.flush()

    def close(self) -> None:
        """End what writes, also of a run that came to grief."""
        if self._writer is not None:
            self._writer.close()

    # The run as a whole.

    @property
    def ran(self) -> int:
        """Jobs that ran and ended."""
        return len(self._jobs) // _JOB.size

    def rows(self) -> Iterator[ResultRow]:
        """The jobs that ran, in the order of their ends."""
        return map(self.row, range(self.ran))

    def row(self, at: int) -> ResultRow:
        """The job that ended at this place of the order."""
        if len(self._user_names) < len(self.users):
            self._user_names = list(self.users)
        if len(self._app_names) < len(self.apps):
            self._app_names = list(self.apps)
        (number, procs, cores, user, app, how, submit, start, end,
         estimate) = _JOB.unpack_from(self._jobs, at * _JOB.size)
        return ResultRow(number, cores, submit, start, end, self._user_names[user], self._app_names[app], procs,
                   estimate, _STATUSES[how & ~OVERTOOK], how >= OVERTOOK)

    def _columns(self) -> tuple[Any, Any]:
        """The six whole numbers and the four times of `_JOB`, each as a view of all jobs: while
        there is one, nothing can be recorded."""
        import numpy as np
        return (np.frombuffer(self._jobs, np.int64).reshape(-1, 10)[:, :6].T,
                np.frombuffer(self._jobs).reshape(-1, 10)[:, 6:].T)

    def start_hash(self) -> str:
        """A fingerprint of the schedule: the first 16 hex digits of the SHA-256 of the lines
        `id start`, by id, with starts in whole seconds."""
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
        """See `vrm.simulation.outcome.Outcome.moments`."""
        import numpy as np
        columns = np.frombuffer(self._moments).reshape(-1, 4).T
        return dict(zip(("time", "queued", "cores_queued", "cores_busy"), columns))

    def summary(self, warm_up: float = 0.0, cool_down: float = 0.0,
                threshold: float = THRESHOLD) -> dict[str, Any]:
        """The metrics of `vrm.results.summary.summarise`. Queue and machine over time are as the
        scheduler saw them: a job that waits for another one is not in the queue yet."""
        import numpy as np
        (_, _, cores, users, _, how), times = self._columns()
        completed = how & ~OVERTOOK == _NUMBERS["completed"]
        submit, start, end = times[:3]
        jobs = JobArrays(submit, start, end, cores, completed, users, tuple(self.users))
        moments = Moments(*np.frombuffer(self._moments).reshape(-1, 4).T)
        return summarise(jobs, moments, self.counts, self.processors, warm_up, cool_down,
                         threshold, self._lends)
