"""What all parts of a manager share: the run's state and journal, the jobs that run, and what is to
be done next."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, Mapping

from vrm.config.schema import Settings
from vrm.live.launch.base import Launcher
from vrm.live.manager.recovery import Place
from vrm.live.manager.running import Running
from vrm.config.policies import table_of
from vrm.live.site.setup import Site
from vrm.results.history import HistoryError, lessons
from vrm.run.expectations import make_expectations
from vrm.run.ids import Ids
from vrm.model import Job
from vrm.model.shapes import number
from vrm.run.journal import Journal, Past
from vrm.run.run import Run
from vrm.run.rundir import RunDirectory
from vrm.run.state import State
from vrm.scheduling import JobQueue
from vrm.system.errors import RunError

RETRY = 1.0
"""Seconds after which something is tried again that a full disk has prevented."""

Tell = Callable[[str, str], None]
"""Called with a kind (`start`, `end`, `failure`, `warning`, `note`) and a text for people."""


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
                "this run goes on by its own clock, so that walltimes and waiting times stay right")


class Desk:
    """`now` is the moment of the present turn of the loop: all that happens in it happens then.

    `changed`: a scheduling step is due. `dirty`: the state file is not up to date. `phase` is
    running, stopping or ended; `closing`: the allocation is about to end. `blocked_until`: no job
    is started before, for a full disk. `subject` is the run: its state, and who decides. `rules` are
    those in force, which `vrm.live.manager.changes` may have changed.
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
        self.visible = site.visible
        self.scripts = site.scripts
        self.scripts.records, self.scripts.commands = run.steps, run.programs
        self.scripts.outside = run.launchers
        self.room = site.room
        self.place = Place.here(site.allocation)
        try:
            self.expectations = make_expectations(
                settings.rules.estimates, settings.rules.correction, table_of(settings),
                lessons(settings.scheduling.history), live=True)
        except HistoryError as error:
            raise RunError(f"Scheduling.History: {error}") from error
        self.ids = Ids(run.directory / "ids")
        self.begin(self.new_state())
        self.running: Dict[int, Running] = {}
        self.clock = Clock()
        self.start_time = self.now = self.clock()
        self.grace = settings.grace
        self.phase = "running"
        self.closing = False
        self.input_ended = False
        self.feeder = ""                            # the program behind `vrm run --`, if there is one, and
        self.fed: Callable[[], bool] = lambda: False  # whether it still gives jobs
        self.changed = True
        self.dirty = True
        self.blocked_until = 0.0
        self._disk_failed = False

    def go_on(self, past: Past) -> float:
        """Manage the run that this is the past of; the seconds by which its clock differs from what was taken for the
        time until now."""
        self.begin(past.state)
        moved = self.clock.go_on(past.runs[-1], self.place) if past.runs else 0.0
        self.start_time = self.now = self.clock()
        return moved

    def begin(self, state: State) -> None:
        """Manage the run of this state."""
        self.state = state
        self.subject = Run(state, self.scheduler, self.expectations)
        self.subject.asks = True

    def new_state(self) -> State:
        """The state of a run that has not begun, or of which a journal tells."""
        return State(self.scheduler.new_queue(), self.cluster, self.room.lacks, frozen=True)

    @property
    def queue(self) -> JobQueue:
        """The jobs that may start as soon as there is room."""
        return self.state.queue

    def changes(self) -> None:
        """Other jobs may start now than before."""
        self.changed = self.dirty = True

    def launcher_of(self, job: Job) -> Launcher:
        """What starts the job."""
        return self.scripts if job.payload.script else self.launcher

    def mark(self, run_id: str) -> None:
        """Processes bear this mark from now on."""
        self.launcher.run_id = self.scripts.run_id = run_id

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

    def open_journal(self) -> None:
        """Begin to write: what changes the state is recorded from here on."""
        self.journal = Journal(self.run_directory.journal)
        self.state.log = self.journal.append

    def synced(self) -> bool:
        """Bring the journal to disk; when that fails nothing is started until it works again."""
        try:
            self.journal.sync()
        except OSError as error:
            self.disk_trouble(f"{self.run_directory.journal}: {error.strerror}")
            return False
        return True

    def disk_trouble(self, why: str) -> None:
        """Report a file that cannot be written, once until that works again."""
        if not self._disk_failed:
            self._disk_failed = True
            self.tell("warning", f"cannot write: {why}; starting nothing until that works again")

    def disk_works(self) -> None:
        """A file that could not be written was written."""
        if self._disk_failed:
            self._disk_failed = False
            self.tell("note", "files can be written again; continuing")

    def block(self) -> None:
        """Start nothing for a while."""
        self.blocked_until = self.clock() + RETRY

    @property
    def first_due(self) -> float:
        """When something is due of a job that runs: the end of its estimate, or SIGKILL."""
        deadline = math.inf
        for running in self.running.values():
            if running.ending:
                deadline = min(deadline, running.ending.deadline)
            elif not running.warned:
                deadline = min(deadline, running.due, running.signal_due)
        return deadline
