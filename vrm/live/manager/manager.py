"""The manager: an event loop that reads the queue, decides, starts jobs and follows them.

A job's end, a signal, a new line of the queue file or a command wakes it; everything that fits
is then started in one scheduling step, and only afterwards come tables, records and checks.

| part | what it does |
|---|---|
| `Nodes` | lost nodes, and those that answer again |
| `Stopping` | signals, and the end of the allocation |
| `Ends` | ends become records, or the job waits again |
| `Intake` | lines of the queue file become jobs |
| `Orders` | commands of people, as files |
| `Continuing` | what an earlier manager left |
| `RecordWriting` | ended jobs get their lines in `jobs.csv` |
| `Launches` | decisions become processes |
| `Adopting` | jobs belong to the batch job |
| `Checks` | bindings and memory of running jobs |
| `Showing` | the state file |

All work on one `vrm.live.manager.liverun.LiveRun`, and have the hooks of `vrm.live.manager.part.Part`. Those of
extensions come behind `RecordWriting`: who asks them something is answered before decisions become processes.
"""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Sequence

from vrm.config.schema import Settings
from vrm.live.manager.takeover import takeup
from vrm.live.launch.stepping import commands
from vrm.live.manager.adopting import Adopting
from vrm.live.manager.jobs.checks import Checks
from vrm.live.manager.takeover.continuing import Continuing
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import LINGER, Ends
from vrm.live.manager.jobs.intake import Intake
from vrm.live.manager.jobs.jobcontrol import JobControl
from vrm.live.manager.jobs.launches import Launches
from vrm.live.manager.nodes import Nodes
from vrm.live.manager.orders import Orders
from vrm.live.manager.part import POLL, Part, Parts
from vrm.live.manager.part_packages import give_events, of_packages
from vrm.live.manager.records.recording import RecordWriting
from vrm.live.manager.records.records import Tell
from vrm.live.manager.records.showing import Showing
from vrm.live.manager.stopping import Stopping
from vrm.live.site.setup import Site
from vrm.model import Job, JobState
from vrm.run.again import stopped, with_dependents
from vrm.run.entry import Dropped
from vrm.live.relay.process import RSH_AGENT, rsh_agent
from vrm.run.rundir import RunDirectory
from vrm.scheduling import Start
from vrm.system import profile
from vrm.system.bell import PLACED, WRITTEN, Bell
from vrm.results.added import load_columns
from vrm.system.errors import RunError
from vrm.system.processes import TagEnd, pids_with_environment
from vrm.workload.added import load_all

RINGS = 0.02
"""Seconds at least between two of these looks, however often the files of this host change."""


class Manager:
    """Runs one queue on one cluster to its end: its loop calls the `parts` of a list in their order, and it decides. It
    is the `vrm.run.run.Driver` of its run."""

    def __init__(self, settings: Settings, site: Site, run: RunDirectory, tell: Tell,
                 wait: bool = False, changed: bool = False, feeder: str = "",
                 further: Sequence[Part] = ()) -> None:
        """`wait`: for more lines of the queue file when all jobs have ended; `changed`: changed lines whose jobs have
        run are new jobs. `feeder` names the program behind `vrm run --`; `further` are parts of a manager besides its
        own and those of extensions."""
        load_all()
        load_columns()
        self.live = live = LiveRun(settings, site, run, tell)
        self.ends = Ends(live)
        self.nodes = Nodes(live, self.ends)
        self.stopping = Stopping(live, self.ends)
        self.launches = Launches(live, self.ends, self.nodes, site)
        self.intake = Intake(live, self.ends, wait, changed, feeder)
        jobs = JobControl(live, self.intake, self.ends)
        self.orders = Orders(live, self.stopping)
        self.continuing = Continuing(live, self.intake, self.ends, site)
        self.showing = Showing(live, site.emulated)
        first = (self.nodes, self.stopping, self.ends, self.intake, self.orders, self.continuing, jobs,
                 RecordWriting(live))
        then = self.launches, Adopting(live, site), Checks(live, self.ends), self.showing
        live.parts = Parts((*first, *then))  # extensions may ask for these
        live.parts = self.parts = Parts((*first, *of_packages(live), *then, *further))
        self._next_step = math.inf
        self._next_poll = 0.0
        self._looked = -math.inf                  # when the files were looked at
        self._idle = 0                            # ids given before this manager, if no job of these was left

    # The run.

    def run(self, fresh: bool = False, failed: bool = False) -> bool:
        """Run the queue to its end; True when every job succeeded.

        `fresh`: what an earlier manager has left is put aside; `failed`: jobs that did not complete run again. Raises
        RunError when the run cannot begin or go on.
        """
        live = self.live
        live.run_directory.create(live.settings.trust)
        with live.run_directory.owned() as lock:
            live.run_directory.make_commands({**commands(), RSH_AGENT: rsh_agent(),
                                              profile.FILE: profile.text([live.run_directory.programs])})
            past = takeup.past_of(live.run_directory, fresh, live.tell, live.new_state)
            if not past.jobs:
                self.intake.check_file()
            live.go_on(past)
            if live.ids.kept and not past.jobs:
                live.state.next_id = live.ids.first
            live.open_journal(past.mark)
            live.spawner.hold = (lock,)
            with live.spawner, self.stopping.woken_by_signals():
                self.stopping.ask_end(live.now, wait=5.0)
                try:
                    give_events(self.parts, past, live.run_directory.journal)
                    if past.rules is not None and not any("rules" in part.commands() for part in self.parts):
                        live.tell("warning", "the rules of the run had been changed by `vrm advise`, which is not in this "
                                             "installation (vrm/ext); the rules of the configuration are used")
                    for part in self.parts:
                        part.recall(past)
                    self.continuing.take_up(past, failed)
                    del past
                    self.orders.obey_all(unasked=True)  # before lines of the queue file are read
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
            self.bell = Bell()
            self.bell.watch(live.run_directory.commands, PLACED)
            if self.bell.number >= 0:
                selector.register(self.bell.number, selectors.EVENT_READ, self._rung)
            for part in self.parts:
                part.begin(selector)
            while not self._done():
                timeout = max(0.0, min(self._next_poll, self._next_decision(),
                                       *(part.deadline(live.now) for part in self.parts.having("deadline"))) - live.clock())
                ready = selector.select(timeout)
                if stopping.suspended(timeout):
                    ready = selector.select(0)  # it has timed out before it saw the SIGCONT
                # Everything of one turn happens at one moment, as in a simulation: what a job's
                # end lets start has that end as its start.
                live.now = now = self._moment()
                # A signal first: what it ends may have ended already.
                for key, _ in sorted(ready, key=lambda each: each[0].fileobj is not stopping.wakeup):
                    key.data()
                files = now >= self._next_poll
                if files:
                    self._next_poll, self._looked = now + POLL, now
                    if live.phase == "running":  # the queue may be another file by now
                        self.bell.watch(live.settings.applications.queue, WRITTEN)
                self.turn(now, files)
            for part in self.parts:
                part.end()
            self.bell.close()

    def turn(self, now: float, files: bool) -> None:
        """What has happened changes the run, then it decides, and what was decided is done. `files`: look at files, too,
        that other hosts may write."""
        for part in self.parts.having("look"):
            part.look(now, files)
        if self.live.changed or now >= self._next_decision():
            self.decide(now)
        for part in self.parts.having("act"):
            part.act(now)
        now = self.live.clock()
        for part in self.parts.having("tidy"):
            part.tidy(now)

    def _rung(self) -> None:
        """The queue file has more, or a command has come: look soon."""
        self.bell.silence()
        self._next_poll = min(self._next_poll, self._looked + RINGS)

    def _moment(self) -> float:
        """Now; with an interval the tick that is due, so that what it decides bears its time, as
        what follows from a job that has outlived what was expected of it, or may begin, bears that one's."""
        live, now = self.live, self.live.clock()
        if live.scheduler.interval:
            return self._next_step if self._next_step <= now else now
        due = min(live.revision_due, self.live.state.book.begins.next)
        return max(due, live.now) if now - POLL < due <= now else now

    def _done(self) -> bool:
        live, book = self.live, self.live.state.book
        if (self.stopping.signals > 2 or self.orders.gone) and not live.running:
            return True  # what a full disk does not take is taken up by the next manager
        if any(part.busy() for part in self.parts.having("busy")):
            return False
        if live.phase == "stopping":
            return True
        # Held jobs are waited for; what does not fit before the allocation's end is the next one's.
        if (len(live.state.queue) or any(True for _ in book.held) or book.begins.next < live.end.closing
                or any(part.expects(live.now) for part in self.parts.having("expects"))):
            return False
        over = self.intake.over(live.now)
        if self.intake.rest_wanted:
            self._next_poll = live.now
        return over

    # Decisions.

    def decide(self, now: float) -> None:
        """Start everything that may start now."""
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
        """When there is something to decide although nothing may happen by then."""
        book = self.live.state.book
        return min(self._next_step, book.begins.next, book.deadlines.next if self.live.phase == "running" else math.inf)

    # What a turn decides (`vrm.run.run.Driver`).

    def start(self, start: Start, now: float) -> None:
        """A job starts, now or when a part finds that it can."""
        if not any(part.starts(start, now) for part in self.parts.having("starts")):
            if start.booking.placement.lease is not None:  # its start is recorded when the cores are clear
                raise RunError(f"job {start.job.id} was to start on lent cores, and the part that moves them was left out (see "
                               "above); the same command continues the run")
            self.launches.add(start)
        self.live.dirty = True

    def drop(self, dropped: Sequence[Dropped], cause: str) -> None:
        """Waiting jobs will never run."""
        self.ends.drop(dropped, cause)

    def put_off(self, jobs: Sequence[Job], now: float) -> None:
        """Leave to the next allocation what would not end in this one."""
        self.live.dirty = True
        for job in jobs:
            self.live.tell(
                "note", f"#{job.id} {job.app} waits for another allocation: its estimate is "
                        f"{job.walltime:g} s, and in {max(0.0, self.live.end.closing - now):.0f} "
                        "s this one stops starting jobs (End)")

    def _finish(self) -> None:
        """Leave nothing behind: the last state, the journal's closing word, no process."""
        live, run_id = self.live, self.continuing.run_id
        left = ([] if live.running or not self.ends.leftovers
                else pids_with_environment("VRM_RUN", run_id))
        while left and live.clock() < self.ends.lingers:
            time.sleep(0.05)  # what ends by itself may do so
            left = pids_with_environment("VRM_RUN", run_id)
        killed, ending = len(left), TagEnd("VRM_RUN", run_id, grace=0.0)
        limit = live.clock() + LINGER
        while left and not ending.poll(live.clock()) and live.clock() < limit:
            time.sleep(0.01)
        killed += live.watch.close(sweep=not live.running)
        if killed:
            live.tell("warning", f"{killed} process(es) of ended jobs were still there and are "
                                 "killed")
        self._say_what_is_left()
        live.phase = "ended"
        self.showing.finish()
        try:
            live.journal.close()
        except OSError as error:
            raise RunError(f"cannot write {live.run_directory.journal}: {error.strerror}; the "
                           "same command records what is missing") from error

    def _say_what_is_left(self) -> None:
        """Record that all is done, or say what is not and who does it."""
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
