"""A run while it is managed: its state and journal, the jobs that run, its clock, and the disk that may be full."""

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
from vrm.live.manager.takeover.recovery import Place
from vrm.live.manager.records.records import Records, Tell
from vrm.live.manager.jobs.running import Running
from vrm.live.nodes.nodewatch import NodeWatch
from vrm.config.policies import history_of, table_of
from vrm.live.site.setup import Site
from vrm.live.relay.process import RSH_AGENT
from vrm.live.spawn.spawner import Spawner
from vrm.run.expectations import make_expectations
from vrm.run.ids import Ids
from vrm.model import Booking, Job
from vrm.model.forms.shapes import number
from vrm.run.journal.files import START, Journal, Mark
from vrm.run.journal.past import Past
from vrm.run.run import Run
from vrm.run.rundir import RunDirectory
from vrm.run.state import State

StartOf = Callable[..., Booking | None]
"""When a job would start that joined the run: the job, its details, the run, now, when nothing may start any more, and
whether walltimes and ends of allocations are kept. None where it would not start; Infeasible, LifeError."""

RETRY = 1.0
"""Seconds after which something is tried again that a full disk has prevented."""


Kind = TypeVar("Kind", bound=Part)

NO_PROCESS = os.strerror(errno.EAGAIN), os.strerror(errno.ENOMEM)
"""Why there is no process, as the kernel says it."""

STEP = 1.0
"""Seconds from which on a difference between two clocks is a clock that was set."""


class Clock:
    """Seconds since the epoch that never jump: wall clock at the start plus monotonic time. A run has one clock
    as long as its machine is up."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._told = 0.0

    def __call__(self) -> float:
        return self._offset + time.monotonic()

    def go_on(self, run: Mapping[str, Any], place: Place) -> float:
        """Take up the clock of the manager before, by its record, if the machine's clock was set since then: what runs
        and waits has its times. The seconds by which this clock is moved."""
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
        """Seconds by which the machine's clock is ahead of this one, since it was set; 0.0 if it was not."""
        ahead = time.time() - self()
        return ahead if abs(ahead) >= STEP else 0.0

    def news(self) -> str:
        """What is to be said of the machine's clock, once after each change."""
        ahead = self.ahead
        if abs(ahead - self._told) < STEP:
            return ""
        self._told = ahead
        return ("the machine's clock is right again" if not ahead else
                "the machine's clock was set, or it slept: it is "
                f"{abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}; "
                "this run continues with its own clock, so that walltimes and waiting times stay right")


class LiveRun:
    """A run that a manager manages. `now` is the moment of the present turn of the loop: all that happens in it
    happens then.

    `changed`: a scheduling step is due. `dirty`: the state file is not up to date. `phase` is running, stopping or
    ended. `blocked_until`: no job is started before, for a full disk. `subject` has the state, and who decides.
    `rules` are those in force, which a part may have changed. `spawner` starts jobs, `watch` asks
    the nodes, `records` are of jobs that ended, `end` is that of the allocation. `parts` take notice of events, in
    this order. `drained` has why nodes take no new jobs that answer. `copies` answer what takes long. `start_of` says when a job would start, where a part can forecast that.
    """

    journal: Journal

    def __init__(self, settings: Settings, site: Site, run: RunDirectory, tell: Tell) -> None:
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
        self.place = Place.here(site.allocation)
        self.expectations = make_expectations(settings.rules, table_of(settings), history_of(settings), live=True)
        self.ids = Ids(run.directory / "ids")
        self.begin(self.new_state())
        self.running: dict[int, Running] = {}
        self.parts = Parts()
        self.drained: dict[int, str] = {}
        self.copies = Copies()
        self.start_of: StartOf | None = None
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

    def go_on(self, past: Past) -> None:
        """Manage the run that this is the past of, by its clock."""
        self.begin(past.state)
        if past.runs:
            self.end.end += self.clock.go_on(past.runs[-1], self.place)
        self.start_time = self.now = self.clock()

    def begin(self, state: State) -> None:
        """Manage the run of this state."""
        self.state = state
        self.subject = Run(state, self.scheduler, self.expectations)
        self.subject.asks = True

    def new_state(self) -> State:
        """The state of a run that has not begun, or of which a journal tells."""
        return State(self.scheduler.new_queue(), self.cluster, self.room.lacks, frozen=True)

    def changes(self) -> None:
        """Other jobs may start now than before."""
        self.changed = self.dirty = True

    def notify(self, event: object) -> None:
        """Let all parts take notice of an event."""
        for part in self.parts.observers(type(event)):
            part.observe(event)

    def part(self, kind: type[Kind]) -> Kind:
        """The part of this kind, which the manager has."""
        return next(part for part in self.parts if isinstance(part, kind))

    def launcher_of(self, job: Job) -> Launcher:
        """What starts the job."""
        return self.scripts if job.payload.script else self.launcher

    # What is expected of running jobs.

    @property
    def revision_due(self) -> float:
        """When a running job will have outlived what is expected of it; infinity for never."""
        return math.inf if self.expectations is None else self.expectations.due(self.cluster)

    def revise(self, now: float) -> None:
        """Expect jobs to run longer that have outlived what was expected of them."""
        if self.expectations is not None and self.expectations.correct_all(self.cluster, now):
            self.changes()
            self.renew()

    def renew(self, *jobs: int) -> None:
        """These running jobs, and all that lend or borrow cores, know their bookings as they are now: ends of
        walltimes, and shares."""
        self.dirty = True
        loans = self.cluster.loans
        for job_id in {*jobs, *(each for loan in loans.all for each in loan[:2]), *loans.guests}:
            running, booking = self.running.get(job_id), self.cluster.bookings.get(job_id)
            if running is not None and booking is not None and not running.former:
                running.start = running.start._replace(booking=booking)

    # The journal, and disks that are full.

    def open_journal(self, since: Mark = START) -> None:
        """Begin to write: what changes the state is recorded from here on. What is before `since` has been read."""
        self.journal = journal = Journal(self.run_directory.journal, since)
        if journal.cut:
            self.tell("warning", f"{self.run_directory.journal}: cut {journal.cut} record(s) behind line {since.number}: the "
                                 "machine died while it wrote them, and nobody has acted on them")
        self.state.log = self.journal.append

    def record(self, part: Part, event: str, **values: Any) -> None:
        """Put an event of an extension's part into the journal; the next manager gives it to the part (`happened`).
        ValueError for one that the part does not declare."""
        wrong = event_fault(part, event, values)
        if wrong:
            raise ValueError(wrong)
        self.journal.append("part", part=part.name, package=part.package, what=event, values=values, time=self.now)

    def synced(self) -> bool:
        """Bring the journal to disk; when that fails nothing is started until it works again."""
        try:
            self.journal.sync()
        except OSError as error:
            self.disk_trouble(f"{self.run_directory.journal}: {error.strerror}")
            return False
        return True

    def disk_trouble(self, why: str) -> None:
        """Report a file that cannot be written, or a process that cannot be made, once until that works again."""
        if not self._disk_failed:
            self._disk_failed = True
            what = "start" if why.endswith(NO_PROCESS) else "write"
            self.tell("warning", f"cannot {what}: {why}; starting nothing until that works again")

    def disk_works(self) -> None:
        """What could not be written or started was."""
        if self._disk_failed:
            self._disk_failed = False
            self.tell("note", "that works again; continuing")

    def block(self) -> None:
        """Start nothing for a while."""
        self.blocked_until = self.clock() + RETRY
