"""Writes the records of ended jobs: their lines in `jobs.csv`, and messages for people.

The journal records the ends first; this work can wait until other jobs have started.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import shutil
import signal
from dataclasses import dataclass
from typing import Any
from collections.abc import Callable, Collection

from vrm.live.launch.base import Launcher, NpbResult, read_result
from vrm.live.launch.script import ScriptLauncher
from vrm.live.manager.records.last_lines import last_words, no_space
from vrm.live.manager.job_environment import printed
from vrm.live.nodes.bindings import BindingCheck
from vrm.model import Booking, Cluster, Job, JobState
from vrm.model.job import PLAIN, Details
from vrm.model.measured.power import draw
from vrm.model.placement import SlotCache
from vrm.results import shares
from vrm.results.energy import PowerSpan, columns_of
from vrm.results.job_columns import JobFileError, header
from vrm.results.jobs import JobRow, JobWriter, SharedFields, read_jobs, row_of
from vrm.results.placement_text import PlacementText
from vrm.run.journal import codec
from vrm.run.journal.record_checks import StartRecord
from vrm.run.journal.history import RunHistory
from vrm.run.loans import LoanTable
from vrm.run.rundir import RunDirectory
from vrm.scheduling import Start
from vrm.system.errors import RunError
from vrm.system.files import naming, write_atomically
from vrm.system.processes import StraySessions, job_of, sessions, signal_session

SWEEP_PAUSE = 0.05
"""Minimum seconds between two searches of all processes for those that outlived their job."""

Reporter = Callable[[str, str], None]
"""Report a text for people, with its kind (`start`, `end`, `failure`, `warning`, `note`)."""


@dataclass
class EndedJob:
    """A job that ended, before its record is written."""

    job: Job
    state: JobState
    reason: str = ""
    booking: Booking | None = None
    backfilled: bool = False
    exit_code: int | None = None      # as a shell would show it
    end: float = 0.0
    session: int | None = None
    leader: int | None = None         # start time of the session's leader, if known
    ran: tuple[float, float] | None = None  # start and end of mpirun, as its supervisor saw them
    cluster: Cluster | None = None    # on which it ran, if that is not the present one
    details: Details = PLAIN
    mates: tuple[int, ...] = ()          # ids of the jobs with which it shared its cores
    memory: int = 0                      # the most bytes on a node, if its memory was followed
    joules: float | None = None       # energy that its nodes used, if it could be read
    frequency: float = 0.0               # in GHz, if it was set
    cause: str = ""                      # why the manager ended it, see `verdict`
    used: tuple[float, float, int] = (0.0, 0.0, 0)  # on the first node: CPU seconds (user, system), bytes of the largest process
    cpu: float | None = None             # CPU seconds on all nodes, if known
    beyond: int = 0                      # excess of running threads over the cores of a node, if its threads were counted
    programs: tuple[tuple[float, int], ...] = ()  # coupled job, per program: CPU seconds, largest process in bytes


def called(job: Job, details: Details) -> str:
    """Return a job's label in the manager's output: `#3 solver`, followed by its name if it has one."""
    return f"#{job.id} {job.app}" + f" {details.name}" * bool(details.name)


def _is_of(row: JobRow, past: RunHistory) -> bool:
    """Return whether a row describes the end that the journal has."""
    end, start = past.ended.get(row.id), past.started.get(row.id)
    if end is None or row.status != end["state"]:
        return False
    return row.start is None or (start is not None and row.start >= start["time"] - 0.01)


def _booked(job: Job, start: StartRecord, cluster: Cluster, lends: LoanTable) -> Booking:
    """Return the booking of an ended job on the cluster on which it was started. Its loans are left out if they are
    numbered by other nodes."""
    placement, shares_of = codec.placement_of(start["placement"], cluster), tuple(lends.shares.get(job.id, ()))
    if job.id in lends.moved:
        return Booking(job, placement, start["time"], start["time"] + job.expected)
    return Booking(job, lends.settled(placement, job.id), start["time"], start["time"] + job.expected, shares_of)


class Records:
    """The ended jobs of a run: `rows` (by id) are in `jobs.csv`, `pending` are still to be written."""

    def __init__(self, run: RunDirectory, cluster: Cluster, launcher: Launcher, scripts: ScriptLauncher,
                 check: str, tell: Reporter, recorded: Callable[[str], None]) -> None:
        """Create the records; `open` reads `jobs.csv`.

        `scripts` launches the jobs that are scripts; `check` is the configuration's Launcher.CheckBindings; `recorded`
        is called with the status file of a job when it is no longer needed.
        """
        self.run = run
        self.cluster = cluster
        self.launcher = launcher
        self.scripts = scripts
        self.check = check
        self.tell = tell
        self.recorded = recorded
        self.rows: dict[int, JobRow] = {}
        self.pending: collections.deque[EndedJob] = collections.deque()
        self.sweep_at = math.inf             # when processes of written jobs are to be looked for
        self._unswept: list[EndedJob] = []
        self._swept = 0.0
        self._strays = StraySessions()
        self.text = PlacementText(cluster.nodes)
        self.slots = SlotCache(cluster.nodes)
        self._fields = SharedFields()
        self._mismatched: set[int] = set()
        self._found: dict[int, str] = {}  # the state of the bindings that the nodes reported, by job
        self._writer: JobWriter | None = None
        self._stale = False  # jobs.csv has lines of requeued jobs
        self._shares: set[str] = set()  # lines in the shares file of jobs that jobs.csv lacks

    def open(self, past: RunHistory) -> None:
        """Continue `jobs.csv`: drop the rows of requeued jobs, and rows of an earlier try, which the crash of a machine
        may bring back. Ends that only the journal has become pending. Raises OSError if the file cannot be written,
        RunError if it is damaged."""
        try:
            with naming(self.run.jobs):
                JobWriter(self.run.jobs).close()  # cuts off a torn line
            found = list(read_jobs(self.run.jobs))
        except JobFileError as error:
            raise RunError(f"{error}; correct that line, or move the file away: its lines are "
                           "written again from the journal") from error
        self.rows = {row.id: row for row in found if _is_of(row, past)}
        if len(self.rows) < len(found):
            self._write_rows()
        self._writer = JobWriter(self.run.jobs)
        with contextlib.suppress(OSError, ValueError):
            self._shares = {each.line for each in shares.read(self.run.shares)}
        for job_id, end in past.ended.items():
            if job_id in self.rows:
                continue
            entry, start = past.state.entry(job_id), past.started.get(job_id)
            job = entry.job
            cluster = codec.cluster_of(past.run_of.get(job_id, {}), self.cluster)
            wrong = past.placement_fault(job_id) if start else ""
            if wrong:
                raise RunError(f"{self.run.journal}: the start of job {job_id}, which is not in {self.run.jobs}: {wrong}")
            booking = _booked(job, start, cluster, past.state.lends) if start else None
            self.pending.append(EndedJob(job, JobState(end["state"]), end["reason"], booking,
                                        bool(start and start["backfilled"]), end["exit_code"],
                                        end["time"], cluster=cluster,
                                        details=entry.details,
                                        mates=past.state.lends.mates_of(job_id),
                                        cause=end.get("cause", "")))

    def close(self) -> None:
        """Close `jobs.csv`."""
        if self._writer is not None:
            self._writer.close()

    def write_next(self) -> None:
        """Write the line of the job that ended first, report it, and end the processes that it left.

        Raises OSError if the disk does not take the line; then the job is still pending.
        """
        if self._stale:
            self._renew()
        outcome = self.pending[0]
        job, booking, run = outcome.job, outcome.booking, self.run
        if outcome.session is not None:
            self._unswept.append(outcome)
            self.sweep_at = self._swept + SWEEP_PAUSE
        binding, result = "", NpbResult()
        if booking is not None:
            paths = run.files(job.app, job.id)
            result = read_result(paths.output)
            binding = self.check_bindings(booking, outcome.cluster)
            self.recorded(paths.status)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(paths.marker)
        if result.verification == "UNSUCCESSFUL" and not outcome.reason:
            outcome.reason = "its own verification was UNSUCCESSFUL"
        reason = outcome.reason
        if booking is not None and outcome.state in (JobState.FAILED, JobState.TIMEOUT):
            nodes = (outcome.cluster or self.cluster).nodes
            output, errors = printed(run, job, outcome.details, nodes[booking.placement.nodes[0]].name)
            words = last_words(errors, output)
            outcome.reason += (": " if words[:4] != "see " else "; ") * bool(words) + words + no_space(output.parent)
        row = self._row(outcome, binding, result.seconds)
        assert self._writer is not None
        lines = self._write_shares(outcome)  # first: a job that is in jobs.csv is not handled again
        try:
            self._writer.write(row)
        except OSError:
            outcome.reason = reason  # the next try adds the last words again
            raise
        self.rows[row.id] = row
        self.pending.popleft()
        self._shares.difference_update(lines)
        if outcome.state is not JobState.REFUSED:
            ran = f" after {outcome.end - booking.start:.2f} s" if booking else ""
            verified = f", verification {result.verification}" if result.verification else ""
            well = outcome.state is JobState.COMPLETED and not outcome.reason
            self.tell("end" if well else "failure",
                      f"{called(job, outcome.details)}  {outcome.state.value}{ran}{verified}"
                      + (f": {outcome.reason}" if outcome.reason else ""))

    def _write_shares(self, outcome: EndedJob) -> set[str]:
        """Write the missing lines of a job that lent or borrowed cores; return all its lines."""
        job, booking, path = outcome.job, outcome.booking, self.run.shares
        if booking is None or not shares.shared(booking):
            return set()
        lines = list(shares.held(booking, outcome.end, outcome.cluster or self.cluster))
        try:
            shares.append(path, [each for each in lines if each.line not in self._shares])
        except OSError as error:
            self.tell("warning", f"#{job.id} {job.app}: {path} lacks it: {error.strerror}")
        found = {each.line for each in lines}
        self._shares |= found
        return found

    def _row(self, outcome: EndedJob, binding: str, app_time: float | None) -> JobRow:
        job, booking = outcome.job, outcome.booking
        placed = booking.placement.at_start if booking else None
        text = PlacementText(outcome.cluster.nodes) if outcome.cluster else self.text
        nodes, cores = text.columns(placed) if placed else ("", "")
        values = {
            "id": job.id, "app": job.app, "procs": job.procs, "submit": job.submit,
            "start": booking.start if booking else None, "end": outcome.end if booking else None,
            "walltime": job.walltime, "status": outcome.state.value, "exit_code": outcome.exit_code, "app_time": app_time,
            "exclusive": job.exclusive, "backfilled": outcome.backfilled, "nodes": nodes, "cores": cores,
            "binding": binding, "reason": outcome.reason, **self._fields.of(job, outcome.details)}
        if placed and placed.devices:
            values["devices"] = text.devices(placed)
        if outcome.cause:
            values["cause"] = outcome.cause
        if outcome.memory:
            values["memory_peak"] = f"{math.ceil(outcome.memory / 2**20)}M"
        if outcome.cpu is not None:
            values["cpu_time"] = max(0.001, round(outcome.cpu, 3))
        if outcome.used[2]:
            values["largest_process"] = f"{math.ceil(outcome.used[2] / 2**20)}M"
        if outcome.beyond:
            values["threads_beyond"] = outcome.beyond
        if outcome.programs:
            values["programs_use"] = " : ".join(f"{cpu:.3f} {math.ceil(largest / 2**20)}M"
                                                for cpu, largest in outcome.programs)
        return row_of({**values, **self._shared(outcome), **self._drawn(outcome)})

    def _drawn(self, outcome: EndedJob) -> dict[str, Any]:
        """Return the columns about energy: measured if the job had its nodes for itself, otherwise predicted."""
        booking = outcome.booking
        if booking is None:
            return {}
        cluster, placement = outcome.cluster or self.cluster, booking.placement
        seconds = outcome.end - booking.start
        watts = draw(booking.job, placement, cluster.nodes, cluster.programs) or 0.0
        if outcome.joules is not None and not outcome.mates and placement.alone and seconds > 0:
            return {**columns_of(PowerSpan(booking.start, outcome.end, outcome.joules / seconds, outcome.frequency)),
                    "metered": True}
        return {} if not (watts or outcome.frequency) else columns_of(PowerSpan(booking.start, outcome.end, watts, outcome.frequency))

    def _shared(self, outcome: EndedJob) -> dict[str, Any]:
        """Return the columns about lending and borrowing; empty for a job that did neither."""
        booking = outcome.booking
        if booking is None or not shares.shared(booking):
            return {}
        return {"mates": ",".join(map(str, outcome.mates)), **shares.columns(booking, outcome.end)}

    def clear(self, outcome: EndedJob) -> None:
        """Remove the folder of a script that has ended, or of another job in which steps ran."""
        folder = self.scripts.folder(self.run.rankfile(outcome.job.app, outcome.job.id))
        if outcome.booking is not None and os.path.isdir(folder):
            shutil.rmtree(folder, ignore_errors=True)

    def report_start(self, start: Start, details: Details) -> None:
        """Report the start of a job with its cores, or only its nodes if it has more than two."""
        job, placement = start.job, start.booking.placement
        where = (self.text.cores(placement) if len(placement.nodes) <= 2
                 else self.text.nodes(placement))
        self.tell("start", f"{called(job, details)}  starts: {job.procs} rank"
                  + "s" * (job.procs > 1) + f" on {where}"
                  + f", {self.text.devices(placement)}" * bool(placement.devices)
                  + " (backfilled)" * start.backfilled)

    def forget(self, job_ids: Collection[int]) -> None:
        """Remove requeued jobs from `jobs.csv`."""
        if not job_ids:
            return
        gone = set(job_ids)
        self._unswept += (each for each in self.pending if each.job.id in gone)
        self.sweep_all(self._swept)  # a later sweep would hit their next run
        for job_id in gone:
            self.rows.pop(job_id, None)
        self.pending = collections.deque(each for each in self.pending if each.job.id not in gone)
        self._stale = True
        with contextlib.suppress(OSError):  # a full disk: then `write_next` tries again
            self._renew()

    def _renew(self) -> None:
        """Write `jobs.csv` without the requeued jobs."""
        self._write_rows()
        self.close()
        self._writer = JobWriter(self.run.jobs)
        self._stale = False

    def _write_rows(self) -> None:
        write_atomically(self.run.jobs, header() + "".join(row.line for row in self.rows.values()))

    def sweep_all(self, now: float) -> None:
        """Kill the processes that outlived recently recorded jobs, in one search of all processes."""
        unswept, self._unswept = self._unswept, []
        self.sweep(*unswept)
        self._swept, self.sweep_at = now, math.inf

    def sweep(self, *outcomes: EndedJob) -> None:
        """Kill the processes of jobs that outlived their mpirun, on this machine."""
        table, run = sessions(), self.launcher.run_id
        strays = self._strays.find(run, table)
        for outcome in outcomes:
            job, session = outcome.job, outcome.session
            if session is None:
                continue
            left = signal_session(session, signal.SIGKILL, spare={session},
                                  started=outcome.leader, table=table)
            for sid in strays.get(job.id, []):
                if sid != session and job_of(table[sid], run) == job.id:
                    left += signal_session(sid, signal.SIGKILL, table=table)
            if left:
                self.tell("warning", f"#{job.id} {job.app}: {len(left)} process(es) outlived it "
                                     "and were killed")

    def check_bindings(self, booking: Booking, cluster: Cluster | None = None) -> str:
        """Compare mpirun's report with the rankfile, and add the nodes' reports. Return `unchecked`, `mismatch` or the
        state of the check.

        `cluster`: the cluster on which the job ran, if it is not the present one.
        """
        job, nodes = booking.job, (cluster or self.cluster).nodes
        if self.check == "ignore":
            return "unchecked"
        paths = self.run.files(job.app, job.id)
        slots = self.slots.of(booking.placement.at_start) if cluster is None else list(
            booking.placement.at_start.slots(nodes))
        launcher = self.scripts if job.payload.script else self.launcher
        result = launcher.check_bindings(paths.bindings, paths.errors, slots, nodes)
        if result.state == "unchecked":
            result = launcher.check_bindings(paths.errors, paths.output, slots, nodes)
        self._tell_mismatch(job.id, result)
        found = self._found.get(job.id, "unchecked")
        if "mismatch" in (result.state, found):
            return "mismatch"
        return result.state if found == "unchecked" else found

    def found(self, job_id: int, check: BindingCheck) -> None:
        """Keep the nodes' report of where the ranks of a job are."""
        self._found[job_id] = check.state
        self._tell_mismatch(job_id, check)

    def _tell_mismatch(self, job_id: int, check: BindingCheck) -> None:
        """Warn once for each job whose ranks are on wrong cores."""
        if check.state == "mismatch" and job_id not in self._mismatched:
            self._mismatched.add(job_id)
            self.tell("warning", f"#{job_id}: RANKS ARE NOT WHERE THEY SHOULD BE: "
                                 + "; ".join(check.differences[:4]))
