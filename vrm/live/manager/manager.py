"""The manager: an event loop that reads the queue, decides, starts jobs and follows them.

A job's end, a signal, a new line of the queue file or a command wakes it; everything that fits
is then started in one scheduling step, and only afterwards come tables, records and checks.

| part | what it does |
|---|---|
| `Desk` | what all share: the state, the journal, the jobs that run |
| `Intake` | lines of the queue file become jobs |
| `Launches` | decisions become processes |
| `Ends` | ends become records, or the job waits again |
| `Lending` | running jobs lend cores, and have them again |
| `Nodes` | lost nodes, wrong bindings |
| `Stopping` | signals, and the end of the allocation |
| `Orders` | commands of people, as files |
| `Door`, `LiveCounter` | commands of other batch systems, through a socket |
| `Continuing` | what an earlier manager left |
"""

from __future__ import annotations

import math
import selectors
import time
from typing import Callable, Dict, List

from vrm.config.schema import Settings
from vrm.live.batch.walltime import AllocationEnd
from vrm.live.manager import changes, takeup
from vrm.front import build
from vrm.live.launch.stepping import commands
from vrm.live.manager.continuing import Continuing
from vrm.live.manager.counter import LiveCounter
from vrm.live.manager.desk import Desk, Tell
from vrm.live.manager.door import Door
from vrm.live.manager.ends import LINGER, Ends
from vrm.live.manager.forecaster import forecasting_aside
from vrm.live.manager.intake import Intake
from vrm.live.manager.launches import Launches
from vrm.live.manager.lending import Lending
from vrm.live.manager.nodes import Nodes
from vrm.live.manager.orders import Orders
from vrm.live.manager.planner import planning_aside
from vrm.live.manager.records import Records
from vrm.live.manager.snapshot import snapshot
from vrm.live.manager.stopping import SUSPENDED, Stopping
from vrm.live.nodes.nodewatch import NodeWatch
from vrm.live.site.setup import Site
from vrm.live.spawn.spawner import Spawner
from vrm.model import JobState
from vrm.model.core_share import Borrowed
from vrm.run.rundir import RunDirectory, write_json
from vrm.run.state import State
from vrm.scheduling import Start
from vrm.steps.bell import PLACED, WRITTEN, Bell
from vrm.system.errors import RunError
from vrm.system.processes import TagEnd, pids_with_environment

POLL = 0.2
"""Seconds between looks at the queue file and the commands (files may be written on another
host, where no notification comes from)."""

RINGS = 0.02
"""Seconds at least between two of these looks, however often the files of this host change."""

HEARTBEAT = 5.0
"""Seconds after which the state is written anew even if nothing changed."""

SNAPSHOT_PAUSE = 0.2
"""Seconds between two states written, on an average of many changes."""

SNAPSHOT_AHEAD = 1.0
"""Seconds of such pauses that may be left out, so that what follows a few changes is shown at once."""

RECORDING = 0.1
"""Seconds at most that ended jobs are recorded for in one turn of the loop."""


class Manager:
    """Runs one queue on one cluster to its end."""

    def __init__(self, settings: Settings, site: Site, run: RunDirectory, tell: Tell,
                 once: bool = False, fresh: bool = False, failed: bool = False) -> None:
        self.desk = Desk(settings, site, run, tell)
        self.once = once
        self.begun: Callable[[], None] = lambda: None  # called when programs can give jobs
        self.fresh = fresh
        self.failed = failed  # run the jobs again that did not complete
        self.emulated = site.emulated
        self.warnings = site.warnings
        self.relay = site.relay
        self.adoption = site.adoption
        self.watch = site.watch or NodeWatch(None, site.cluster, {}, "")
        self.end = AllocationEnd(settings.end.at, settings.end.margin, settings.grace,
                                 self.desk.start_time, site.end)
        self.records = Records(run, site.cluster, site.launcher, site.scripts,
                               settings.launcher.check_bindings,
                               tell, lambda path: self.spawner.recorded(path))
        prepared: List[Start] = []
        self.ends = Ends(self.desk, self.records, self.watch)
        self.lending = Lending(self.desk, self.ends, self.watch, prepared, self.end)
        self.nodes = Nodes(self.desk, self.ends, self.watch, prepared, self.lending)
        self.launches = Launches(self.desk, self.ends, self.nodes, self.adoption, prepared)
        self.stopping = Stopping(self.desk, self.end, self.ends, self.launches, self.lending)
        self.intake = Intake(self.desk, self.ends.close_job)
        self.orders = Orders(self.desk, self.intake, self.ends, self.stopping, self.lending)
        self.orders.counter = LiveCounter(self.desk, self.intake, self.ends, self.orders, self.stopping)
        self.door = Door(self.desk, self.orders.counter)
        self.continuing = Continuing(self.desk, self.intake, self.ends, self.launches,
                                     self.adoption, self.lending)
        self._next_step = math.inf
        self._next_poll = 0.0
        self._looked = -math.inf                  # when the files were looked at
        self._snapshot_earliest = 0.0
        self._snapshot_paid = 0.0
        self._snapshot_latest = 0.0
        self._snapshot_failed = False
        self._adoption_trouble = ""
        self._record_more = False                 # ends wait to be recorded, for want of time

    @property
    def state(self) -> State:
        """The state of the run."""
        return self.desk.state

    @property
    def counts(self) -> Dict[str, int]:
        """How many jobs ended how."""
        return self.desk.state.counts

    @property
    def bad_lines(self) -> int:
        """Lines of the queue file that were not understood."""
        return self.intake.bad_lines

    # The run.

    def run(self) -> bool:
        """Run the queue to its end; True when every job succeeded.

        Raises RunError when the run cannot begin or go on.
        """
        desk = self.desk
        if self.once:
            self.intake.check_file()
        desk.run_directory.create(desk.settings.trust)
        with desk.run_directory.owned() as lock:
            desk.run_directory.make_commands({**commands(), **build.scripts()})
            past = takeup.past_of(desk.run_directory, self.fresh, desk.tell, desk.new_state,
                                  self.failed or takeup.requeue_waits(desk.run_directory))
            self.end.end += desk.go_on(past)
            changes.go_on(desk, past)
            if desk.ids.kept and not past.jobs:
                desk.state.next_id = desk.ids.first
            desk.open_journal()
            with (Spawner([lock], self.relay) as self.spawner, self.stopping.woken_by_signals(),
                  planning_aside(desk.scheduler), changes.advised_aside(desk),
                  build.Aside(desk.run_directory.programs) as self.launches.commands,
                  forecasting_aside(desk.settings, desk.run_directory, desk.now,
                                    lambda text: desk.tell("warning", text)) as self.forecaster):
                self.launches.spawner = self.spawner
                if self.relay is not None and self.relay.pid is not None:
                    self.adoption.attach(self.relay.pid)
                self.stopping.ask_end(desk.now, wait=5.0)
                self.records.open(past)
                try:
                    self.orders.taken(past)
                    self.intake.open(past, self.once)
                    self.continuing.take_up(past, self.warnings, self.failed)
                    self._loop()
                    self._finish()
                finally:
                    self.records.close()
                    self.watch.close(sweep=False)
        failed = sum(self.counts.values()) - self.counts[JobState.COMPLETED.value]
        return not (failed or self.bad_lines or self.state.waiting)

    def _loop(self) -> None:
        desk, stopping = self.desk, self.stopping
        with selectors.DefaultSelector() as selector:
            selector.register(self.spawner.fileno(), selectors.EVENT_READ,
                              self.launches.read_spawner)
            selector.register(stopping.wakeup, selectors.EVENT_READ, stopping.read_signals)
            if self.watch.fileno() >= 0:
                selector.register(self.watch.fileno(), selectors.EVENT_READ, lambda: None)
            self.door.open(selector)
            self.bell = Bell()
            self.bell.watch(desk.run_directory.commands, PLACED)
            if self.bell.number >= 0:
                selector.register(self.bell.number, selectors.EVENT_READ, self._rung)
            self.begun()
            while not self._done():
                timeout = max(0.0, self._next_deadline() - desk.clock())
                before = desk.clock()
                ready = selector.select(timeout)
                stopping.idle = desk.clock() - before
                if stopping.idle > timeout + SUSPENDED:
                    ready = selector.select(0)  # it has timed out before it saw the SIGCONT
                # Everything of one turn happens at one moment, as in a simulation: what a job's
                # end lets start has that end as its start.
                desk.now = now = self._moment()
                # A signal first: what it ends may have ended already.
                for key, _ in sorted(ready, key=lambda each: each[0].fileobj is not stopping.wakeup):
                    key.data()
                self.nodes.look(now)
                self.ends.settle_due(now)
                stopping.act(now)
                self.nodes.reopen(now)
                self.ends.act(now)
                desk.revise(now)
                if now >= self._next_poll:
                    self._next_poll, self._looked = now + POLL, now
                    self._look_at_files(now)
                self.door.serve()
                if now > self.state.book.next_missed and desk.phase == "running":
                    self.ends.drop(self.state.book.missed(math.nextafter(now, -math.inf)), "deadline")
                    desk.changes()
                if desk.changed or now >= min(self._next_step, self.state.book.next_begin):
                    self._step(now)
                self.door.answer()
                self.lending.act(now)
                self.launches.launch(now)
                self._do_chores()
            self.door.close()
            self.bell.close()

    def _rung(self) -> None:
        """The queue file has more, or a command has come: look soon."""
        self.bell.silence()
        self._next_poll = min(self._next_poll, self._looked + RINGS)

    def _moment(self) -> float:
        """Now; with an interval the tick that is due, so that what it decides bears its time, as
        what follows from a job that has outlived what was expected of it, or may begin, bears that one's."""
        desk, now = self.desk, self.desk.clock()
        if desk.scheduler.interval:
            return self._next_step if self._next_step <= now else now
        due = min(desk.revision_due, self.state.book.next_begin)
        return max(due, desk.now) if now - POLL < due <= now else now

    def _done(self) -> bool:
        desk, book = self.desk, self.state.book
        if (self.stopping.signals > 2 or self.orders.gone) and not desk.running:
            return True  # what a full disk does not take is taken up by the next manager
        if desk.running or self.ends.held or self.launches.prepared or self.lending.coming or self.records.pending or (
                self.records.sweep_at < math.inf):
            return False
        if desk.phase == "stopping":
            return True
        # Held jobs are waited for; what does not fit before the allocation's end is the next one's.
        return (desk.input_ended and not len(desk.queue) and not book.held
                and book.next_begin >= self.end.closing
                and not self.orders.waiting() and not desk.fed()
                and not self.orders.afar.busy(desk.clock()))

    def _next_deadline(self) -> float:
        """When the loop must wake up even if nothing happens."""
        now = self.desk.now
        if self._record_more:
            return now
        recording = self.door.next_call if self.records.pending and self.door.next_call > now else math.inf
        return min([recording, self._next_poll, self.state.book.next_begin, self.state.book.next_missed, self._next_step,
                    self.records.sweep_at, self.watch.deadline,
                    self.stopping.next_deadline(), self.adoption.deadline(now),
                    self.lending.deadline, self.desk.first_due, self.desk.revision_due, *self.nodes.closed.values(),
                    *(max(held.until, now + POLL) for held in self.ends.held.values())])

    def _look_at_files(self, now: float) -> None:
        """The queue file, the commands, the jobs of an earlier manager, the allocation's end."""
        if self.desk.phase == "running":
            self.bell.watch(self.desk.settings.applications.queue, WRITTEN)  # it may be another file by now
            self.intake.read(now)
            self.stopping.ask_end(now)
        self.orders.obey_all()
        self.continuing.look_at_markers()

    # Decisions.

    def _step(self, now: float) -> None:
        """Start everything that may start now."""
        desk = self.desk
        desk.changed = False
        desk.dirty |= desk.state.book.begin(now)
        self._next_step = math.inf
        if desk.phase != "running":
            return
        if desk.settings.end.fit:
            self._pass_over(now)
        if desk.state.reservations:
            desk.dirty |= desk.state.pass_time(now)
            self._next_step = desk.scheduler.boundary(now, desk.cluster)
        if not len(desk.queue):
            return
        if now < desk.blocked_until:
            self._next_step = desk.blocked_until
            return
        for start in desk.subject.step(now):
            if isinstance(start.booking.placement, Borrowed):
                self.lending.begin(start, now)
            else:
                self.launches.prepared.append(start)
            desk.dirty = True
        if len(desk.queue):
            wake = desk.subject.wake(now)
            self._next_step = wake if desk.scheduler.interval else max(now + POLL, wake)

    def _pass_over(self, now: float) -> None:
        """Leave to the next allocation what would not end in this one."""
        late = self.state.book.fit(now, self.end.closing)
        self.desk.dirty |= bool(late)
        for job in late:
            self.desk.tell(
                "note", f"#{job.id} {job.app} waits for another allocation: its estimate is "
                        f"{job.walltime:g} s, and in {max(0.0, self.end.closing - now):.0f} "
                        "s this one stops starting jobs (End)")

    # What can wait until the next jobs have started.

    def _do_chores(self) -> None:
        """Records of ended jobs, checks of bindings, the state file."""
        desk, now = self.desk, self.desk.clock()
        if now >= self.records.sweep_at:
            self.records.sweep_all(now)
        shared = desk.journal.pending and now < self.door.next_call
        if self.records.pending and not shared and desk.synced():
            self._record_all()
        self.lending.act(now)  # what a borrower has left may be clear now, and nothing else happens for a while
        for start in self.launches.untold:
            self.records.tell_start(start)
        self.launches.untold.clear()
        if now >= self.adoption.deadline(now) - 0.05:
            self._adopt(now)
        self.nodes.check_bindings(now)
        self.nodes.follow_memory(now)
        if now >= (self._snapshot_earliest if desk.dirty else self._snapshot_latest):
            self._write_snapshot(now)

    def _adopt(self, now: float) -> None:
        """Let the sessions of jobs belong to the batch job."""
        self.adoption.poll(now, {job_id: running.session
                                 for job_id, running in self.desk.running.items()})
        if self.adoption.trouble and not self._adoption_trouble:
            self.desk.tell("warning", "jobs do not belong to the batch job, and would outlive its "
                                      f"end: {self.adoption.trouble}")
        self._adoption_trouble = self.adoption.trouble or self._adoption_trouble

    def _record_all(self) -> None:
        """Record the jobs that ended; those that the disk does not take wait for the next time, and
        so do those for which there is no time now: jobs and commands must not wait for them."""
        desk = self.desk
        until, written = desk.clock() + RECORDING, False
        self._record_more = False
        while (self.records.pending and desk.clock() >= desk.blocked_until
               and not self.watch.metering(self.records.pending[0].job.id)):
            if desk.clock() >= until or written and self.door.knocked():
                self._record_more = True
                return
            written = True
            try:
                first = self.records.pending[0]
                if first.booking is not None and first.joules is None:
                    first.joules, first.frequency = self.watch.metered(first.job.id)
                self.records.write_next()
            except OSError as error:
                desk.block()
                desk.disk_trouble(f"{desk.run_directory.jobs}: {error.strerror}")
                return
            desk.disk_works()

    def _write_snapshot(self, now: float) -> None:
        """Replace the state file; rarely when that is slow, so that it never delays jobs."""
        desk = self.desk
        desk.dirty = False
        news = desk.clock.news()
        if news:
            desk.tell("warning", news)
        try:
            write_json(desk.run_directory.state, snapshot(
                desk.clock(), desk.rules, desk.scheduler, desk.state,
                [(each.booking if each.former else
                  desk.cluster.bookings.get(each.job.id, each.booking),
                  each.binding, each.former or desk.cluster)
                 for each in desk.running.values()],
                emulated=self.emulated, started=desk.start_time, phase=desk.phase,
                end=self.end.end, ahead=desk.clock.ahead))
            self._snapshot_failed = False
        except OSError as error:
            if not self._snapshot_failed:
                desk.tell("warning", f"cannot write {desk.run_directory.state}: {error.strerror}")
            self._snapshot_failed = True
        if self.forecaster.awake(desk.state, now):
            desk.journal.show()
            self.forecaster.tell(desk.state, desk.phase, self.end.end, now)
        done = desk.clock()
        least = 20 * (done - now)
        self._snapshot_paid = max(self._snapshot_paid, done) + max(SNAPSHOT_PAUSE, least)
        self._snapshot_earliest = max(done + least, self._snapshot_paid - SNAPSHOT_AHEAD)
        self._snapshot_latest = min(done + HEARTBEAT, self.forecaster.first(done))

    def _finish(self) -> None:
        """Leave nothing behind: the last state, the journal's closing word, no process."""
        desk, run_id = self.desk, self.continuing.run_id
        left = ([] if desk.running or not self.ends.leftovers
                else pids_with_environment("VRM_RUN", run_id))
        while left and desk.clock() < self.ends.lingers:
            time.sleep(0.05)  # what ends by itself may do so
            left = pids_with_environment("VRM_RUN", run_id)
        killed, ending = len(left), TagEnd("VRM_RUN", run_id, grace=0.0)
        limit = desk.clock() + LINGER
        while left and not ending.poll(desk.clock()) and desk.clock() < limit:
            time.sleep(0.01)
        killed += self.watch.close(sweep=not desk.running)
        if killed:
            desk.tell("warning", f"{killed} process(es) of ended jobs were still there and are "
                                 "killed")
        waiting = self.state.waiting
        if desk.input_ended and not waiting:
            desk.journal.append("finished", time=desk.clock())
        elif waiting:
            lacking = len(self.state.book.lacking)
            desk.tell("note", f"{waiting} job(s) still wait"
                      + (f", {lacking} of them for more nodes than there are" if lacking else "")
                      + "; the same command continues them (--fresh starts again)")
        desk.phase = "ended"
        self._write_snapshot(desk.clock())
        try:
            desk.journal.close()
        except OSError as error:
            raise RunError(f"cannot write {desk.run_directory.journal}: {error.strerror}; the "
                           "same command records what is missing") from error
