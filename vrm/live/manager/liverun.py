"""A run while it is managed: its state and journal, its running jobs, its clock, and the handling of a full disk."""

from __future__ import annotations

import errno
import math
import os
import time
from typing import Any, TypeVar
from collections.abc import Callable, Mapping

from vrm.config.schema import Settings
from vrm.live.batch.walltime import AllocationEnd
from vrm.live.launch.base import Launcher
from vrm.live.manager.copies import Copies
from vrm.live.manager.part import Part, Parts, event_fault
from vrm.live.manager.takeover.recovery import ManagerPlace
from vrm.live.manager.records.records import Records, Reporter
from vrm.live.manager.jobs.live_job import LiveJob
from vrm.live.nodes.node_watch import NodeWatch
from vrm.config.policies import history_of, table_of
from vrm.live.site.setup import Site
from vrm.live.relay.process import RSH_AGENT
from vrm.live.spawn.spawner import Spawner
from vrm.run.expectations import make_expectations
from vrm.run.ids import ReservedIds
from vrm.model import Booking, Job
from vrm.model.forms.json_checks import number
from vrm.run.journal.files import START, Journal, JournalPosition
from vrm.run.journal.history import RunHistory
from vrm.run.run import Run
from vrm.run.rundir import RunDirectory
from vrm.run.state import State

StartForecast = Callable[..., Booking | None]
"""Forecast the start time of a job that would join the run now. Arguments: the job, its details, the run, the time
now, the time from which nothing starts any more, and whether walltimes and ends of allocations are kept. Returns
None if the job would not start; raises Infeasible or JobStateError."""

RETRY = 1.0
"""Seconds until an operation that failed because of a full disk is tried again."""


Kind = TypeVar("Kind", bound=Part)

NO_PROCESS = os.strerror(errno.EAGAIN), os.strerror(errno.ENOMEM)
"""The kernel's messages when it cannot create a process."""

STEP = 1.0
"""Seconds; if two clocks differ by this or more, a clock was set."""


class Clock:
    """Clock in seconds since the epoch that never jumps: the wall clock at the start plus monotonic time. A run keeps
    one clock as long as its machine is up."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._told = 0.0

    def __call__(self) -> float:
        return self._offset + time.monotonic()

    def resume_from(self, run: Mapping[str, Any], place: ManagerPlace) -> float:
        """Continue the clock of the earlier manager, from its `run` record, if the machine's clock was set since then,
        so that the times of running and waiting jobs stay right. Return the seconds by which this clock moved."""
        before, tick = run.get("time"), run.get("tick")
        if (run.get("host"), run.get("boot")) != (place.host, place.boot) or not (number(before) and number(tick)):
            return 0.0
        moved = float(before) - float(tick) - self._offset  # type: ignore[arg-type]
        if abs(moved) < STEP:
            return 0.0
        self._offset += moved
        return moved

    @property
    def ahead(self) -> float:
        """Seconds by which the machine's clock, since it was set, is ahead of this clock; 0.0 if it was not set."""
        ahead = time.time() - self()
        return ahead if abs(ahead) >= STEP else 0.0

    def news(self) -> str:
        """Return a message about the machine's clock, once after each change; otherwise ""."""
        ahead = self.ahead
        if abs(ahead - self._told) < STEP:
            return ""
        self._told = ahead
        return ("the machine's clock is right again" if not ahead else
                "the machine's clock was set, or it slept: it is "
                f"{abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}; "
                "this run continues with its own clock, so that walltimes and waiting times stay right")


class LiveRun:
    """A run under a manager. `now` is the time of the current turn of the loop; everything in that turn happens then.

    `changed`: a scheduling step is due. `dirty`: the state file is out of date. `phase`: running, stopping or ended.
    `blocked_until`: no job starts before this time, because of a full disk. `subject` has the state and makes the
    decisions. `rules`: the rules in force, which a part may have changed. `spawner` starts jobs, `watch` queries the
    nodes, `records` writes ended jobs, `end` is the end of the allocation. `parts` observe events, in this order.
    `drained`: why nodes that answer take no new jobs. `copies` answer questions that take long. `start_of` forecasts
    the start of a job, if a part can do that.
    """

    journal: Journal

    def __init__(self, settings: Settings, site: Site, run: RunDirectory, tell: Reporter) -> None:
        self.settings = settings
        self.run_directory = run
        self.tell = tell
        self.cluster = site.cluster
        self.scheduler = site.scheduler
        self.rules = settings.rules
        self.launcher = site.launcher
        self.scripts = site.scripts
        self.scripts.directory, self.scripts.commands = run.directory, run.programs
        self.scripts.outside = run.launchers
        self.relay_address = site.relay.address if site.relay and settings.hosts.steps == "shared" else ""
        if self.relay_address:
            self.launcher.rsh_agent = self.scripts.rsh_agent = str(run.programs / RSH_AGENT)
        self.spawner = site.spawner or Spawner(relay=site.relay)
        self.watch = site.watch or NodeWatch(None, site.cluster, {}, "")
        self.room = site.room
        self.place = ManagerPlace.here(site.allocation)
        self.expectations = make_expectations(settings.rules, table_of(settings), history_of(settings), live=True)
        self.ids = ReservedIds(run.directory / "ids")
        self.begin(self.new_state())
        self.running: dict[int, LiveJob] = {}
        self.parts = Parts()
        self.drained: dict[int, str] = {}
        self.copies = Copies()
        self.start_of: StartForecast | None = None
        self.clock = Clock()
        self.start_time = self.now = self.clock()
        self.end = AllocationEnd(settings.end.at, settings.end.margin, settings.grace, self.start_time, site.end)
        self.records = Records(run, site.cluster, site.launcher, site.scripts, settings.launcher.check_bindings, tell,
                               self.spawner.recorded)
        self.grace = settings.grace
        self.phase = "running"
        self.changed = True
        self.dirty = True
        self.blocked_until = 0.0
        self._disk_failed = False

    def resume_from(self, past: RunHistory) -> None:
        """Continue the run with this past, on the clock of the earlier manager."""
        self.begin(past.state)
        if past.runs:
            self.end.end += self.clock.resume_from(past.runs[-1], self.place)
        self.start_time = self.now = self.clock()

    def begin(self, state: State) -> None:
        """Manage the run of this state."""
        self.state = state
        self.subject = Run(state, self.scheduler, self.expectations)
        self.subject.asks = True

    def new_state(self) -> State:
        """Return the state of a run that has not begun, or whose journal is still to be read."""
        return State(self.scheduler.new_queue(), self.cluster, self.room.lacks, frozen=True)

    def changes(self) -> None:
        """Note that a change may allow other jobs to start."""
        self.changed = self.dirty = True

    def notify(self, event: object) -> None:
        """Notify all parts of an event."""
        for part in self.parts.observers(type(event)):
            part.observe(event)

    def part(self, kind: type[Kind]) -> Kind:
        """Return the manager's part of this class, which must be there."""
        return next(part for part in self.parts if isinstance(part, kind))

    def launcher_of(self, job: Job) -> Launcher:
        """Return the launcher of the job."""
        return self.scripts if job.payload.script else self.launcher

    # Expected run times of running jobs.

    @property
    def revision_due(self) -> float:
        """When a running job will exceed its expected run time; infinity if never."""
        return math.inf if self.expectations is None else self.expectations.due(self.cluster)

    def revise(self, now: float) -> None:
        """Extend the expected run times of jobs that have exceeded them."""
        if self.expectations is not None and self.expectations.correct_all(self.cluster, now):
            self.changes()
            self.renew()

    def renew(self, *jobs: int) -> None:
        """Update the bookings (end of walltime, core shares) of these running jobs and of all that lend or borrow
        cores."""
        self.dirty = True
        loans = self.cluster.loans
        for job_id in {*jobs, *(each for loan in loans.all for each in loan[:2]), *loans.borrowing_jobs}:
            running, booking = self.running.get(job_id), self.cluster.bookings.get(job_id)
            if running is not None and booking is not None and not running.former:
                running.start = running.start._replace(booking=booking)

    # The journal, and full disks.

    def open_journal(self, since: JournalPosition = START) -> None:
        """Open the journal for writing: state changes are recorded from here on. Records before `since` have been
        read."""
        self.journal = journal = Journal(self.run_directory.journal, since)
        if journal.cut:
            self.tell("warning", f"{self.run_directory.journal}: cut {journal.cut} record(s) behind line {since.number}: the "
                                 "machine died while it wrote them, and nobody has acted on them")
        self.state.log = self.journal.append

    def record(self, part: Part, event: str, **values: Any) -> None:
        """Append an event of an extension's part to the journal; the next manager passes it to the part (`happened`).
        Raises ValueError for an event that the part does not declare."""
        wrong = event_fault(part, event, values)
        if wrong:
            raise ValueError(wrong)
        self.journal.append("part", part=part.name, package=part.package, what=event, values=values, time=self.now)

    def synced(self) -> bool:
        """Sync the journal to disk; return False on failure. Then nothing starts until a sync succeeds."""
        try:
            self.journal.sync()
        except OSError as error:
            self.report_disk_error(f"{self.run_directory.journal}: {error.strerror}")
            return False
        return True

    def report_disk_error(self, why: str) -> None:
        """Report a file that cannot be written, or a process that cannot be created, once until that works again."""
        if not self._disk_failed:
            self._disk_failed = True
            what = "start" if why.endswith(NO_PROCESS) else "write"
            self.tell("warning", f"cannot {what}: {why}; starting nothing until that works again")

    def report_disk_recovery(self) -> None:
        """Report that writing or starting works again."""
        if self._disk_failed:
            self._disk_failed = False
            self.tell("note", "that works again; continuing")

    def block(self) -> None:
        """Start nothing for RETRY seconds."""
        self.blocked_until = self.clock() + RETRY
