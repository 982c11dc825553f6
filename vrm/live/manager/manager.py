"""The manager: an event loop that reads the queue, decides, starts jobs and follows them.

A job's end, a signal, a new line of the queue file or a command wakes it. All jobs that fit then
start in one scheduling step; tables, records and checks follow afterwards.

| part | task |
|---|---|
| `NodeEvents` | lost nodes, and nodes that answer again |
| `Stopping` | signals, and the end of the allocation |
| `Ends` | ended jobs become records, or are requeued |
| `Intake` | lines of the queue file become jobs |
| `CommandReader` | users' commands, as files |
| `Recovery` | jobs that an earlier manager left |
| `RecordWriting` | lines of ended jobs in `jobs.csv` |
| `Launches` | decisions become processes |
| `SessionAdoption` | jobs belong to the batch job |
| `Checks` | bindings and memory of running jobs |
| `StateWriter` | the state file |
| `JournalFolding` | a journal with few records |

All work on one `vrm.live.manager.liverun.LiveRun` and have the hooks of `vrm.live.manager.part.Part`. Parts of
extensions follow `RecordWriting`: a question to them is answered before decisions become processes.
"""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Sequence

from vrm.config.schema import Settings
from vrm.live.manager.takeover import earlier_run
from vrm.live.launch.script_environment import commands
from vrm.live.manager.session_adoption import SessionAdoption
from vrm.live.manager.jobs.checks import Checks
from vrm.live.manager.takeover.resuming import Recovery
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import LINGER, Ends
from vrm.live.manager.jobs.intake import Intake
from vrm.live.manager.jobs.jobcontrol import JobControl
from vrm.live.manager.jobs.launches import Launches
from vrm.live.manager.nodes import NodeEvents
from vrm.live.manager.command_reader import CommandReader
from vrm.live.manager.part import POLL, Part, Parts
from vrm.live.manager.part_packages import restore_events, extension_parts
from vrm.live.manager.records.journal_folding import JournalFolding
from vrm.live.manager.records.recording import RecordWriting
from vrm.live.manager.records.records import Reporter
from vrm.live.manager.records.state_writer import StateWriter
from vrm.live.manager.stopping import Stopping
from vrm.live.site.setup import Site
from vrm.model import Job, JobState
from vrm.run.requeue import stopped, with_dependents
from vrm.run.entry import DroppedJob
from vrm.live.relay.process import RSH_AGENT, rsh_agent
from vrm.run.rundir import RunDirectory
from vrm.scheduling import Start
from vrm.system import bash_env
from vrm.system.file_notifier import PLACED, WRITTEN, FileNotifier
from vrm.results.extension_columns import load_columns
from vrm.system.errors import RunError
from vrm.system.processes import TaggedEnding, pids_with_environment
from vrm.workload.extension_fields import load_all

RINGS = 0.02
"""Minimum seconds between two looks that changed files on this host cause."""


class Manager:
    """Runs one queue on one cluster to its end. Its loop calls the `parts` in order, and it makes the decisions. It is
    the `vrm.run.run.Driver` of its run."""

    def __init__(self, settings: Settings, site: Site, run: RunDirectory, tell: Reporter,
                 wait: bool = False, changed: bool = False, feeder: str = "",
                 further: Sequence[Part] = ()) -> None:
        """Create the manager and its parts.

        `wait`: wait for more lines of the queue file when all jobs have ended. `changed`: lines that were changed after
        their jobs ran are new jobs. `feeder`: the name of the program behind `vrm run --`. `further`: parts in addition
        to the manager's own and those of extensions.
        """
        load_all()
        load_columns()
        self.live = live = LiveRun(settings, site, run, tell)
        self.ends = Ends(live)
        self.nodes = NodeEvents(live, self.ends)
        self.stopping = Stopping(live, self.ends)
        self.launches = Launches(live, self.ends, self.nodes, site)
        self.intake = Intake(live, self.ends, wait, changed, feeder)
        jobs = JobControl(live, self.intake, self.ends)
        self.orders = CommandReader(live, self.stopping)
        self.recovery = Recovery(live, self.intake, self.ends, site)
        self.state_writer = StateWriter(live, site.emulated)
        first = (self.nodes, self.stopping, self.ends, self.intake, self.orders, self.recovery, jobs,
                 RecordWriting(live))
        then = self.launches, SessionAdoption(live, site), Checks(live, self.ends), self.state_writer, JournalFolding(live)
        live.parts = Parts((*first, *then))  # extensions may look these up
        live.parts = self.parts = Parts((*first, *extension_parts(live), *then, *further))
        self._next_step = math.inf
        self._next_poll = 0.0
        self._looked = -math.inf                  # when the files were looked at
        self._idle = 0                            # number of ids before this manager, if none of their jobs was left

    # The run.

    def run(self, fresh: bool = False, failed: bool = False) -> bool:
        """Run the queue to its end; return True if every job succeeded.

        `fresh`: archive what an earlier manager left. `failed`: run jobs again that did not complete. Raises
        RunError if the run cannot begin or continue.
        """
        live = self.live
        live.run_directory.create(live.settings.trust)
        with live.run_directory.owned() as lock:
            live.run_directory.make_commands({**commands(), RSH_AGENT: rsh_agent(),
                                              bash_env.FILE: bash_env.text([live.run_directory.programs])})
            past = earlier_run.read_earlier_run(live.run_directory, fresh, live.tell, live.new_state)
            if not past.jobs:
                self.intake.check_file()
            live.resume_from(past)
            if live.ids.kept and not past.jobs:
                live.state.next_id = live.ids.first
            live.open_journal(past.mark)
            live.spawner.hold = (lock,)
            with live.spawner, self.stopping.woken_by_signals():
                self.stopping.query_end(live.now, wait=5.0)
                try:
                    restore_events(self.parts, past, live.run_directory.journal)
                    if past.rules is not None and not any("rules" in part.commands() for part in self.parts):
                        live.tell("warning", "the rules of the run had been changed by `vrm advise`, which is not in this "
                                             "installation (vrm/ext); the rules of the configuration are used")
                    for part in self.parts:
                        part.recall(past)
                    self.recovery.take_up(past, failed)
                    del past
                    self.orders.carry_out_waiting(unasked=True)  # before lines of the queue file are read
                    self._idle = 0 if self.live.state.waiting or live.running else self.live.state.next_id
                    self._loop()
                    self._finish()
                finally:
                    live.records.close()
                    live.watch.close(sweep=False)
                    for part in self.parts:
                        part.leave()
        counts, intake = self.live.state.counts, self.intake
        wrong = sum(counts.values()) - counts[JobState.COMPLETED.value]
        return not (wrong or intake.bad_lines or self.live.state.waiting or intake.unclear or intake.follower.trouble)

    def _loop(self) -> None:
        live, stopping = self.live, self.stopping
        with selectors.DefaultSelector() as selector:
            self.notifier = FileNotifier()
            self.notifier.watch(live.run_directory.commands, PLACED)
            if self.notifier.number >= 0:
                selector.register(self.notifier.number, selectors.EVENT_READ, self._on_file_change)
            for part in self.parts:
                part.begin(selector)
            while not self._done():
                timeout = max(0.0, min(self._next_poll, self._next_decision(),
                                       *(part.deadline(live.now) for part in self.parts.having("deadline"))) - live.clock())
                ready = selector.select(timeout)
                if stopping.suspended(timeout):
                    ready = selector.select(0)  # it timed out before it saw the SIGCONT
                # Everything in one turn has the same time, as in a simulation: a job that starts
                # because another one ended starts at that end.
                live.now = now = self._moment()
                # A signal first: the jobs that it ends may have ended already.
                for key, _ in sorted(ready, key=lambda each: each[0].fileobj is not stopping.wakeup):
                    key.data()
                files = now >= self._next_poll
                if files:
                    self._next_poll, self._looked = now + POLL, now
                    if live.phase == "running":  # the queue may be another file by now
                        self.notifier.watch(live.settings.applications.queue, WRITTEN)
                self.turn(now, files)
            for part in self.parts:
                part.end()
            self.notifier.close()

    def turn(self, now: float, files: bool) -> None:
        """Do one turn: take in what happened, decide, and carry out the decisions. `files`: also look at files that
        other hosts may write."""
        for part in self.parts.having("look"):
            part.look(now, files)
        if self.live.changed or now >= self._next_decision():
            self.decide(now)
        for part in self.parts.having("act"):
            part.act(now)
        now = self.live.clock()
        for part in self.parts.having("tidy"):
            part.tidy(now)

    def _on_file_change(self) -> None:
        """Look soon: the queue file has grown, or a command has arrived."""
        self.notifier.silence()
        self._next_poll = min(self._next_poll, self._looked + RINGS)

    def _moment(self) -> float:
        """Return the time of this turn: with an interval the tick that is due; otherwise the time at which a job
        exceeded its expected run time or may begin, if that is due; otherwise now."""
        live, now = self.live, self.live.clock()
        if live.scheduler.interval:
            return self._next_step if self._next_step <= now else now
        due = min(live.revision_due, self.live.state.book.begins.next)
        return max(due, live.now) if now - POLL < due <= now else now

    def _done(self) -> bool:
        live, book = self.live, self.live.state.book
        if (self.stopping.signals > 2 or self.orders.gone) and not live.running:
            return True  # the next manager records what a full disk does not take
        if any(part.busy() for part in self.parts.having("busy")):
            return False
        if live.phase == "stopping":
            return True
        # Wait for held jobs; jobs that do not fit before the allocation's end are left to the next allocation.
        if (len(live.state.queue) or any(True for _ in book.held) or book.begins.next < live.end.closing
                or any(part.expects(live.now) for part in self.parts.having("expects"))):
            return False
        over = self.intake.over(live.now)
        if self.intake.rest_wanted:
            self._next_poll = live.now
        return over

    # Decisions.

    def decide(self, now: float) -> None:
        """Start every job that may start now."""
        live = self.live
        live.changed = False
        live.dirty |= live.state.book.begin(now)
        self._next_step = math.inf
        if live.phase != "running":
            return
        if self.intake.unsettled(now):
            live.changed, self._next_step = True, now + POLL
            return
        if live.state.reservations:
            live.dirty |= live.state.reservations.pass_time(now)
            self._next_step = live.scheduler.boundary(now, live.cluster)
        blocked = now < live.blocked_until
        live.subject.turn(now, self, now if blocked else live.end.closing, live.settings.end.fit and not blocked)
        if blocked:
            self._next_step = live.blocked_until
        elif len(live.state.queue):
            wake = live.subject.wake(now)
            self._next_step = wake if live.scheduler.interval else max(now + POLL, wake)

    def _next_decision(self) -> float:
        """Return when a decision is due even if nothing happens until then."""
        book = self.live.state.book
        return min(self._next_step, book.begins.next, book.deadlines.next if self.live.phase == "running" else math.inf)

    # The decisions of a turn (`vrm.run.run.Driver`).

    def start(self, start: Start, now: float) -> None:
        """Start a job, now or when a part finds that it can start. Raises RunError if the part that moves lent cores is
        missing."""
        if not any(part.starts(start, now) for part in self.parts.having("starts")):
            if start.booking.placement.lease is not None:  # its start is recorded when the lender has left the cores
                raise RunError(f"job {start.job.id} was to start on lent cores, and the part that moves them was left out (see "
                               "above); the same command continues the run")
            self.launches.add(start)
        self.live.dirty = True

    def drop(self, dropped: Sequence[DroppedJob], cause: str) -> None:
        """Close waiting jobs that can never run."""
        self.ends.drop(dropped, cause)

    def postpone(self, jobs: Sequence[Job], now: float) -> None:
        """Leave jobs that would not end in this allocation to the next one."""
        self.live.dirty = True
        for job in jobs:
            self.live.tell(
                "note", f"#{job.id} {job.app} waits for another allocation: its estimate is "
                        f"{job.walltime:g} s, and in {max(0.0, self.live.end.closing - now):.0f} "
                        "s this one stops starting jobs (End)")

    def _finish(self) -> None:
        """Leave no process behind; write the last state and the journal's last record. Raises RunError if the journal
        cannot be written."""
        live, run_id = self.live, self.recovery.run_id
        left = ([] if live.running or not self.ends.leftovers
                else pids_with_environment("VRM_RUN", run_id))
        while left and live.clock() < self.ends.lingers:
            time.sleep(0.05)  # give processes time to end by themselves
            left = pids_with_environment("VRM_RUN", run_id)
        killed, ending = len(left), TaggedEnding("VRM_RUN", run_id, grace=0.0)
        limit = live.clock() + LINGER
        while left and not ending.poll(live.clock()) and live.clock() < limit:
            time.sleep(0.01)
        killed += live.watch.close(sweep=not live.running)
        if killed:
            live.tell("warning", f"{killed} process(es) of ended jobs were still there and are "
                                 "killed")
        self._report_unfinished()
        live.phase = "ended"
        self.state_writer.finish()
        try:
            live.journal.close()
        except OSError as error:
            raise RunError(f"cannot write {live.run_directory.journal}: {error.strerror}; the "
                           "same command records what is missing") from error

    def _report_unfinished(self) -> None:
        """Record that the run is finished, or report what is left and which command continues it."""
        live, state, intake = self.live, self.live.state, self.intake
        ended = len(with_dependents(state.book.entries, stopped))
        left = ([f"{state.waiting} job(s) still wait"] * bool(state.waiting)
                + [f"{ended} ended by the stop"] * bool(ended))
        lacking = len(state.book.lacking)
        if left:
            live.tell("note", " and ".join(left) + (f" ({lacking} of them for more nodes than there are)" * bool(lacking))
                      + ": the same command continues them (--fresh starts again)")
        elif live.phase != "stopping" and not intake.unclear:
            live.journal.append("finished", time=live.clock())
            if self._idle == self.live.state.next_id > 0:
                live.tell("note", "nothing to do: all jobs have ended, and the queue has no new lines. `vrm run --failed` "
                                  "repeats what did not complete, `vrm run --fresh` all")
        if intake.unclear:
            live.tell("warning", intake.unclear)
