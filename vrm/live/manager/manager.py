"""The manager: an event loop that reads the queue, decides, starts jobs and follows them.

A job's end, a signal, a new line of the queue file or a command wakes it; everything that fits
is then started in one scheduling step, and only afterwards come tables, records and checks.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import math
import os
import selectors
import signal
import socket
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Deque, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from vrm.config.schema import Settings
from vrm.live.batch import allocation
from vrm.live.batch.walltime import AllocationEnd
from vrm.live.launch.base import LaunchError
from vrm.live.manager import recovery, takeup
from vrm.live.manager.orders import Orders
from vrm.live.manager.records import Outcome, Records, Tell
from vrm.live.manager.snapshot import snapshot
from vrm.live.manager.verdict import HOLD, NODE_LOSSES, Held, shell_code, verdict
from vrm.live.nodes.nodewatch import Bound, Down, Left, NodeWatch, Unsure, Up
from vrm.live.site.setup import Site, application_fault, leads_outside
from vrm.live.spawn.remote import UNREACHED
from vrm.live.spawn.spawner import (Ended, ExitStatus, LaunchFailed, LaunchRequest, Marker, Spawner,
                                    SpawnerError, SpawnerLost, Started, SupervisorLost)
from vrm.model import Booking, Cluster, Job, JobState
from vrm.model.fields import made
from vrm.model.job import resolved
from vrm.run import codec, control, journal as journals
from vrm.run.book import Details, Dropped, JobBook, LifeError
from vrm.run.rundir import RunDirectory, write_json
from vrm.scheduling import Start
from vrm.system.errors import RunError
from vrm.system.files import write_new
from vrm.system.processes import SessionEnd, TagEnd, pids_with_environment
from vrm.system.trust import distrust, leads_astray
from vrm.model.ranges import fold
from vrm.workload.following import Line, Position, QueueFollower
from vrm.workload.grammar import UNKNOWN_TIME, LineError, QueueLine, show
from vrm.workload.replay import Replay
from vrm.workload.writer_marker import writer_of

POLL = 0.2
"""Seconds between looks at the queue file and the commands (files may be written on another
host, where no notification comes from)."""

HEARTBEAT = 5.0
"""Seconds after which the state is written anew even if nothing changed."""

SNAPSHOT_PAUSE = 0.2
"""Seconds at least between two states written."""

BINDINGS_AFTER = 1.0
"""Seconds after a start at which the bindings are looked at for the first time."""

LINGER = 2.0
"""Seconds that mpirun's helpers on other nodes may stay after a job that ended well."""

CLOSED_FOR = 15.0
"""Seconds in which nothing starts on a node that could not be reached once."""

SUSPENDED = 2.0
"""Seconds from which on a loop that did not wake counts as stopped, if it gets SIGCONT; it wakes
every POLL seconds."""

RESERVE = 2.0
"""Seconds that vrm keeps for its own records of those that a batch system gives it to end."""

RETRY = 1.0
"""Seconds after which something is tried again that a full disk has prevented."""

_FULL_DISK = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG)

FILES = 1000
"""Rankfiles of different content that are remembered."""

RECORDING = 0.1
"""Seconds at most that ended jobs are recorded for in one turn of the loop."""

SHARED_DELAY = 90.0
"""Seconds after which a file that another host has made is seen here for sure."""

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""What batch systems send some time before the end, as `sbatch --signal=B:USR1@120` asks for."""


class Clock:
    """Seconds since the epoch that never jump: wall clock at the start plus monotonic time."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()


@dataclass
class Running:
    """A job that was started and has not ended."""

    booking: Booking
    backfilled: bool
    session: Optional[int] = None
    taken_over: bool = False             # started by an earlier manager: its files tell the end
    away: bool = False                   # on another host: its processes are out of reach
    marker: Optional[Marker] = None
    intent: str = ""                     # why the manager ends it, see `verdict`
    told: float = math.inf               # when it was told to end, by the wall clock
    lost: bool = False                   # its supervisor was killed
    ending: Optional[SessionEnd] = None
    gone_since: float = math.inf         # its files are not there
    warned: bool = False
    paused: float = 0.0                  # seconds for which it was suspended together with vrm
    why: str = ""                        # more about the intent: which node was lost
    bindings_due: float = math.inf
    binding: str = "unchecked"           # whether its ranks are where they should be
    former: Optional[Cluster] = None     # on which it runs, where its nodes are not all here now

    @property
    def job(self) -> Job:
        """The job."""
        return self.booking.job

    @property
    def due(self) -> float:
        """When its estimate is over."""
        return self.booking.expected_end + self.paused


class Manager:
    """Runs one queue on one cluster to its end."""

    def __init__(self, settings: Settings, site: Site, run: RunDirectory, tell: Tell,
                 once: bool = False, fresh: bool = False, failed: bool = False) -> None:
        self.settings = settings
        self.cluster = site.cluster
        self.emulated = site.emulated
        self.scheduler = site.scheduler
        self.launcher = site.launcher
        self.run_directory = run
        self.tell = tell
        self.once = once
        self.fresh = fresh
        self.failed = failed  # run the jobs again that did not complete
        self.clock = Clock()
        self.start_time = self.now = self.clock()
        self.queue = self.scheduler.new_queue()
        self.room = site.room
        self.book = JobBook(self.queue, self.room.lacks)
        self.records = Records(run, self.cluster, self.launcher, settings.launcher.check_bindings,
                               tell, lambda path: self.spawner.recorded(path))
        self.place = recovery.Place.here(site.allocation)
        self.relay = site.relay
        self.adoption = site.adoption
        self._adoption_trouble = ""
        self.watch = site.watch or NodeWatch(None, site.cluster, {}, "")
        self.warnings = site.warnings
        self.end = AllocationEnd(settings.end.at, settings.end.margin, settings.grace,
                                 self.start_time, site.end)
        self.running: Dict[int, Running] = {}
        self._held: Dict[int, Held] = {}          # failures that may turn out to be interruptions
        self._losses: Dict[int, int] = {}         # nodes that jobs have lost, by id
        self.grace = settings.grace
        self.counts = {state.value: 0 for state in JobState if state.ended}
        self.bad_lines = 0  # that this manager has read in the queue file
        self.run_id = uuid.uuid4().hex[:12]
        self.phase = "running"
        self._next_id = 0
        self._named: Dict[str, List[int]] = {}    # ids of the jobs of each name
        self._bad_lines_have_ids = True
        self._workplace = str(settings.workplace)  # where jobs run that say nothing of it
        self._orders = Orders(self)
        self._deaf: Set[str] = set()              # files among the commands that stay there
        self._prepared: List[Start] = []          # decided, to be launched when in the journal
        self._untold: List[Start] = []            # launched, to be told of
        self._lingering: Deque[Tuple[float, Booking]] = collections.deque()  # to be swept then
        self._closed: Dict[int, float] = {}       # until when nothing starts on a node
        self._known_kinds: Set[str] = set()       # applications looked up in the heatmap
        self._signals = 0
        self._idle = 0.0                          # seconds that the loop has just waited
        self._leftovers = False                   # a job may have left processes here
        self._written: Dict[str, Path] = {}       # rankfiles by their content
        self._faults: Dict[str, str] = {}         # of applications, as found in this turn
        self._gone = False                        # somebody has removed the run's directory
        self._changed = True                      # a scheduling step is due
        self._next_step = math.inf
        self._next_poll = 0.0
        self._dirty = True                        # the state file is not up to date
        self._snapshot_earliest = 0.0
        self._snapshot_latest = 0.0
        self._snapshot_failed = False
        self._input_ended = False
        self._disk_failed = False
        self._record_more = False                 # ends wait to be recorded, for want of time
        self._blocked_until = 0.0                 # no job is started before, for a full disk
        self._closing = False                     # the allocation is about to end
        self._end_trouble = ""                    # why the batch system does not tell its end
        self._said_waiting = ""

    # The run.

    def run(self) -> bool:
        """Run the queue to its end; True when every job succeeded.

        Raises RunError when the run cannot begin or go on.
        """
        if self.once:
            self._check_queue_file()
        self.run_directory.create(self.settings.trust)
        with self.run_directory.owned() as lock:
            past = takeup.past_of(self.run_directory, self.fresh, self.tell,
                                  self.failed or takeup.requeue_waits(self.run_directory))
            self.journal = journals.Journal(self.run_directory.journal)
            with Spawner([lock], self.relay) as self.spawner, self._woken_by_signals():
                if self.relay is not None and self.relay.pid is not None:
                    self.adoption.attach(self.relay.pid)
                self._ask_end(self.now, wait=5.0)
                self.records.open(past)
                try:
                    self._continue(past)
                    self._loop()
                    self._finish()
                finally:
                    self.records.close()
                    self.watch.close(sweep=False)
        failed = sum(self.counts.values()) - self.counts[JobState.COMPLETED.value]
        return not (failed or self.bad_lines or self.book.waiting)

    def _check_queue_file(self) -> None:
        """What is to be read once must be there now."""
        queue = self.settings.applications.queue
        try:
            queue.open("rb").close()
        except OSError as error:
            raise RunError(f"cannot read the queue file {queue}: {error.strerror}; correct "
                           "Applications.Queue, or start without --once to wait for the file"
                           ) from error

    def _loop(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.spawner.fileno(), selectors.EVENT_READ, self._read_spawner)
            selector.register(self._wakeup, selectors.EVENT_READ, self._read_signals)
            if self.watch.fileno() >= 0:
                selector.register(self.watch.fileno(), selectors.EVENT_READ, lambda: None)
            while not self._done():
                timeout = max(0.0, self._next_deadline() - self.clock())
                before = self.clock()
                ready = selector.select(timeout)
                self._idle = self.clock() - before
                if self._idle > timeout + SUSPENDED:
                    ready = selector.select(0)  # it has timed out before it saw the SIGCONT
                # Everything of one turn happens at one moment, as in a simulation: what a job's
                # end lets start has that end as its start.
                self.now = now = self._moment()
                # A signal first: what it ends may have ended already.
                for key, _ in sorted(ready, key=lambda each: each[0].fileobj is not self._wakeup):
                    key.data()
                self._look_at_nodes(now)
                self._settle(now)
                self._act_on_deadlines(now)
                if now >= self._next_poll:
                    self._next_poll = now + POLL
                    self._look_at_files(now)
                if self._changed or now >= self._next_step:
                    self._step(now)
                self._launch_prepared(now)
                self._do_chores()

    def _moment(self) -> float:
        """Now; with an interval the tick that is due, so that what it decides bears its time."""
        now = self.clock()
        return self._next_step if self.scheduler.interval and self._next_step <= now else now

    def _done(self) -> bool:
        if (self._signals > 2 or self._gone) and not self.running:
            return True  # what a full disk does not take is taken up by the next manager
        if self.running or self._held or self._prepared or self.records.pending or (
                self.records.sweep_at < math.inf):
            return False
        if self.phase == "stopping":
            return True
        # Held jobs are waited for; what does not fit before the allocation's end is the next one's.
        return (self._input_ended and not len(self.queue) and not self.book.held
                and not self._commands())

    def _next_deadline(self) -> float:
        """When the loop must wake up even if nothing happens."""
        if self._record_more:
            return self.now
        deadline = min(self._next_poll, self._next_step, self.records.sweep_at,
                       self.watch.deadline)
        if not self._closing:
            deadline = min(deadline, self.end.closing)
        for held in self._held.values():
            deadline = min(deadline, max(held.until, self.now + POLL))
        deadline = min(deadline, self.adoption.deadline(self.now))
        for running in self.running.values():
            if self._closing and not running.intent:
                deadline = min(deadline, self.end.last_call)
            if running.ending:
                deadline = min(deadline, running.ending.deadline)
            elif not running.warned:
                deadline = min(deadline, running.due)
        return min([deadline, *self._closed.values()])

    # What wakes the loop.

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        """Signals wake the loop instead of breaking into what it does."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._wakeup = reader
        before_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None)
                  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT,
                                 *WARNINGS)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            reader.close()
            writer.close()

    def _read_signals(self) -> None:
        for number in self._wakeup.recv(64):
            name = signal.Signals(number).name
            if number == signal.SIGCONT:
                self._resumed(self._idle)
                continue
            if number in WARNINGS:
                self.end.warned(self.now)
                self._close_down(f"{name}, the batch system's warning")
                continue
            self._signals += 1
            if number == signal.SIGTERM and self.place.allocation:
                self._interrupt(name)
                continue
            intent = "pause" if self.settings.on_stop == "requeue" else "stop"
            if self._signals == 1:
                self.stop(name, kill=self.settings.on_stop != "wait", intent=intent)
            elif self._signals == 2:
                self.stop(f"a second {name}", kill=True, intent=intent)
            else:
                self.stop(f"a further {name}", kill=True, at_once=True, intent=intent)

    def _resumed(self, seconds: float) -> None:
        """Processes go on that were stopped, of which vrm is one: it has waited so long. Nobody was
        silent meanwhile, and inside a batch job its own jobs were stopped, too."""
        if seconds < SUSPENDED:
            return  # a SIGCONT alone: scancel sends one before SIGTERM
        self._idle = 0.0
        self.watch.resumed(seconds)
        inside = bool(self.place.allocation)
        for running in self.running.values():
            running.paused += seconds * inside
        self.tell("note", f"vrm was stopped for {seconds:.0f} s and continues"
                  + ("; the time of its jobs is extended by that" if inside and self.running
                     else ""))

    def _read_spawner(self) -> None:
        for event in self.spawner.events():
            if isinstance(event, SpawnerLost):
                self._replace_spawner(event)
                continue
            running = self.running.get(int(event.id))
            if running is None:
                continue
            if isinstance(event, LaunchFailed) and (event.message.endswith(_FULL_DISK)
                                                    or event.message.startswith("marker file")):
                del self.running[running.job.id]
                self._no_room(running.job, event.message)
            elif isinstance(event, LaunchFailed) and event.message.startswith(
                    self.cluster.nodes[running.booking.placement.nodes[0]].name + UNREACHED):
                self._unreached(running, event.message)
            elif isinstance(event, Started):
                running.session = event.supervisor_pid
                self.adoption.add(running.job.id, event.supervisor_pid, self.now)
                if running.intent:
                    self._end_session(running)
            elif isinstance(event, Ended):
                self._ended(running, event.status, *self._judged(running, event.status),
                            clean=event.clean)
            elif isinstance(event, LaunchFailed):
                self._ended(running, None, JobState.FAILED, f"could not start: {event.message}")
            elif isinstance(event, SupervisorLost):
                running.session = event.supervisor_pid
                self._lost(running)

    def _unreached(self, running: Running, why: str) -> None:
        """A job was not started since its node does not answer: others will do, or the same later.
        Were the node kept, it would swallow the queue."""
        if running.intent:
            self._ended(running, None, *verdict(running.intent, None, why))
            return
        del self.running[running.job.id]
        self._take_back(running.job)
        node, = running.booking.placement.nodes
        if self.cluster.up >> node & 1:
            self.tell("warning", f"{why}; nothing starts there for {CLOSED_FOR:g} s")
        self._close_node(node)
        self._closed[node] = self.now + CLOSED_FOR

    def _replace_spawner(self, event: SpawnerLost) -> None:
        self.tell("warning", f"{event.message}; starting another, running jobs are not touched")
        try:
            self.spawner.start()
        except SpawnerError as error:
            raise RunError(f"{error}; the running jobs continue, and the same command follows "
                           "them to their end") from error

    def _lost(self, running: Running) -> None:
        """The supervisor of a job was killed: end what is left of the job, its status unknown."""
        running.lost = True
        if running.session is None:
            self._session_gone(running)
        else:
            self._end_session(running)

    def _look_at_nodes(self, now: float) -> None:
        """What the agents on the nodes tell."""
        for event in self.watch.poll(now):
            if isinstance(event, Down):
                self._node_down(event)
            elif isinstance(event, Unsure):
                self._close_node(event.node)
                self.tell("note", f"node {self.cluster.nodes[event.node].name}: {event.reason}; "
                                  "nothing starts there until it answers")
            elif isinstance(event, Up):
                self.cluster.set_up(event.node, True)
                self._changed = self._dirty = True
                self.tell("note", f"node {self.cluster.nodes[event.node].name} answers again and "
                                  "is used again")
            elif isinstance(event, Bound):
                self.records.found(event.job_id, event.check)
                self._judge_bindings(event.job_id, event.check.state)
            elif isinstance(event, Left):
                self.tell("warning", f"#{event.job_id}: {event.processes} process(es) outlived it "
                                     f"on {event.host} and were killed"
                          + (f", {event.immortal} of them do not die" if event.immortal else ""))

    def _node_down(self, event: Down) -> None:
        """A node is lost: nothing starts there, and the jobs that are on it are lost with it."""
        name = self.cluster.nodes[event.node].name
        self._close_node(event.node)
        lost = [running for running in self.running.values()
                if not running.former and running.booking.placement.node_set >> event.node & 1]
        self.tell("warning", f"node {name} is down: {event.reason}; "
                  + (f"its {len(lost)} job(s) are ended" if lost else "no job was on it")
                  + ", nothing starts there")
        for running in lost:
            running.why = running.why or f"node {name} is down"
            self.end_job(running, "node")
        for held in list(self._held.values()):
            if held.running.booking.placement.node_set >> event.node & 1:
                held.running.why = f"node {name} is down"
                self._release_verdict(held, "node")

    def _close_node(self, node: int) -> None:
        """Nothing starts on a node any more."""
        self.cluster.set_up(node, False)
        self._changed = self._dirty = True
        for start in list(self._prepared):  # not launched yet, so it can still go elsewhere
            if start.booking.placement.node_set >> node & 1:
                self._prepared.remove(start)
                self._take_back(start.job)

    def _judged(self, running: Running, status: ExitStatus) -> Tuple[JobState, str]:
        """How a job ended; mpirun may say that all is well when it has lost a node."""
        if not running.intent and self._beyond(running):
            job, run = running.job, self.run_directory
            lost = self.launcher.lost_nodes(run.errors(job.app, job.id),
                                            run.output(job.app, job.id))
            if lost:
                return JobState.FAILED, f"mpirun has lost {', '.join(lost)}"
        return verdict(running.intent, status, running.why, running.told)

    def _beyond(self, running: Running) -> bool:
        """Whether a job has other nodes of this cluster than this machine."""
        return not running.former and self.watch.beyond(running.booking.placement)

    def _look_at_files(self, now: float) -> None:
        """The queue file, the commands, the jobs of an earlier manager, the allocation's end."""
        self._faults.clear()
        if self.phase == "running":
            self._read_queue(now)
            self._ask_end(now)
        for name, command in self._commands():
            self._obey(name, command)
        for running in [r for r in self.running.values() if r.taken_over]:
            self._look_at_marker(running)

    def _commands(self) -> List[Tuple[str, control.Command]]:
        """The commands that wait. Without the directory of the run no job can be followed."""
        try:
            return [(name, command) for name, command in control.take(self.run_directory)
                    if name not in self._deaf]
        except FileNotFoundError as error:
            if not self._gone:
                self._gone = True
                self.stop(f"{error.filename} was removed or renamed, which this run needs",
                          kill=True)
        except OSError as error:
            self._disk_trouble(f"{self.run_directory.commands}: {error.strerror}")
        return []

    def _look_at_marker(self, running: Running) -> None:
        """See whether a job of an earlier manager has ended."""
        found = self._look(running.job.id)
        if found.what == recovery.ENDED:
            assert found.status is not None
            if found.gone and not found.status.ok:  # perhaps by that allocation's end
                running.intent = running.intent or "interrupted"
            self._ended(running, found.status, *self._judged(running, found.status))
        elif found.what == recovery.INTERRUPTED:
            self._ended(running, None, JobState.FAILED, found.trouble)
        elif found.what in (recovery.LOST, recovery.UNSTARTED) and not running.lost:
            # Another host's rename of the marker to the status may be seen in two parts.
            running.gone_since = min(running.gone_since, self.now)
            if not running.away or self.now > running.gone_since + SHARED_DELAY:
                self._lost(running)

    def _look(self, job_id: int) -> recovery.Found:
        return recovery.look(self.run_directory, job_id, self._run_of.get(job_id, {}), self.place)

    def _act_on_deadlines(self, now: float) -> None:
        if now >= self.end.closing and not self._closing:
            self._close_down("the allocation ends soon")
        if self._closing and now >= self.end.last_call:
            for running in list(self.running.values()):
                if not running.intent:
                    self.end_job(running, "interrupted")
        for node in [node for node, until in self._closed.items() if now >= until]:
            del self._closed[node]
            if self.watch.answers(node):
                self.cluster.set_up(node, True)
                self._changed = self._dirty = True
        for running in list(self.running.values()):
            if running.ending:
                if now >= running.ending.deadline and running.ending.poll(now):
                    self._session_gone(running)
            elif not running.warned and now >= running.due:
                running.warned = True
                self._overdue(running)

    def _session_gone(self, running: Running) -> None:
        """No process of a job that is being ended is left; its supervisor tells of the end."""
        if running.lost:
            self._ended(running, None, *verdict(running.intent, None, running.why))
        elif running.ending:
            running.ending.deadline = math.inf

    def _overdue(self, running: Running) -> None:
        job = running.job
        if self.settings.walltime == "kill":
            self.tell("warning", f"#{job.id} {job.app}: ran longer than its estimate of "
                                 f"{job.estimate:g} s; ending it (Walltime: kill)")
            self.end_job(running, "timeout")
        elif self.settings.walltime == "warn":
            self.tell("warning", f"#{job.id} {job.app}: runs longer than its estimate of "
                                 f"{job.estimate:g} s")

    # Jobs come in.

    def _read_queue(self, now: float) -> None:
        queue = self.settings.applications.queue
        if self._input_ended:
            self._say_waiting(queue)
            return
        if writer_of(queue, time.time()).state == "ended":
            self._input.follower.finish()
        for line in self._input.due(now):
            self._take_line(line)
        if self._input.ended:
            self._input_ended = True
            self.journal.append("input", position=self._input.position, ended=True)
        for notice in self._input.follower.take_notices():
            self.tell("warning", notice)
        self._say_waiting(queue)

    def _say_waiting(self, queue: Path) -> None:
        """Say once why nothing happens."""
        waits = ""
        if not (self.running or len(self.queue)):
            held, lacking = self.book.held, self.book.lacking
            if held:
                waits = (f"only held jobs are left ({fold(sorted(held)[:20])}); `vrm release` or "
                         "`vrm cancel` lets the run continue")
            elif lacking and not self._input_ended:
                waits = (f"only jobs are left that need more nodes than there are "
                         f"({fold(sorted(lacking)[:20])}); waiting for lines in {queue} (`vrm stop` "
                         "ends the run, and the same command continues them)")
            elif not self._input_ended:
                waits = (f"nothing to do; waiting for lines in {queue} (an `end` line or "
                         "`vrm stop` ends the run)")
        if waits and waits != self._said_waiting:
            self.tell("note", waits)
        self._said_waiting = waits

    def _take_line(self, line: Line) -> None:
        if not isinstance(line.parsed, LineError):
            self.enter(line.parsed, position=line.position)
            return
        self.bad_lines += 1
        where = f"{self.settings.applications.queue}:{line.number}: {line.parsed}"
        if not self._bad_lines_have_ids:
            self.tell("warning", where)
            return
        # Its ids are taken, or all jobs after it would have others than their lines say.
        wanted = QueueLine(line.parsed.app or "?", 1, 1.0, fields={
            "array": range(line.parsed.jobs)} if line.parsed.jobs > 1 else {})
        self.enter(wanted, where, position=line.position)

    def enter(self, wanted: QueueLine, fault: str = "", **origin: object
              ) -> Tuple[List[int], str]:
        """Enter what a line asks for, a job or an array of them; the ids and, when all of it is
        refused, the reason: `fault` if there is one. `origin` goes into the journal."""
        now = self.now
        fields, base = wanted.fields, self.settings.applications.queue.parent
        indices: Sequence[Optional[int]] = fields.get("array", (None,))
        ids = range(self._next_id, self._next_id + len(indices))
        self._next_id += len(indices)
        name, after = fields.get("name", ""), fields.get("after", ())
        try:
            after = resolved(after, self._named)
        except ValueError as unknown:
            after, fault = (), fault or str(unknown)
        values = {"retries": self.settings.retries, **wanted.values, "after": after}
        if "directory" in values:
            values["directory"] = os.path.join(base, values["directory"])
        first, common = made(values, ids[0], now)
        jobs = [first.but(id=job_id) for job_id in ids]
        # One record for the whole line: a crash leaves all of an array or nothing.
        self.journal.append("job", **codec.job_record(jobs[0], common, fields.get("array", ())),
                            **origin)
        reason = fault or self._fault(jobs[0], common)
        if "position" in origin:  # a line of the queue file, which others may write
            reason = reason or leads_astray(common.variables, self.settings.trust)
        if reason:
            self.tell("warning", f"#{fold(ids)} {wanted.app} refused: {reason}")
        for job, index in zip(jobs, indices):
            details = common if index is None else replace(common, index=index)
            if reason:
                self.book.know(job, details, JobState.REFUSED)
                self.close_job(Outcome(job, JobState.REFUSED, reason, end=now))
            else:
                self._drop(self.book.enter(job, details))
                self._changed = True
        if name:
            self._named.setdefault(name, []).extend(ids)
        if not reason:
            self._tell_unknown(jobs[0])
            if wanted.assumed:
                self.tell("note", f"#{fold(ids)} {wanted.app}: without an estimate "
                                  f"{UNKNOWN_TIME / 3600:g} h is assumed")
            self._tell_lacking([job_id for job_id in ids if self.book.entries[job_id].lacks])
        self._dirty = True
        return list(ids), reason

    def _tell_lacking(self, ids: Sequence[int]) -> None:
        """Report waiting jobs that cannot run on the nodes there are now."""
        if ids:
            first = self.book.entries[ids[0]]
            self.tell("note", f"#{fold(ids)} wait{'s' * (len(ids) == 1)} for more nodes: "
                              f"{first.job.app}: {first.lacks}")

    def _fault(self, job: Job, details: Details) -> str:
        """Why a new job can't be taken, or "" when it can."""
        known = self.settings.applications
        if job.app not in self._faults:
            self._faults[job.app] = (application_fault(known.path, job.app, known.programs)
                                     or distrust(known.program(job.app), self.settings.trust))
        reason = self._faults[job.app]
        for dependency in details.after:
            if dependency.ids[-1] >= job.id:
                reason = reason or (f"it depends on job {dependency.ids[-1]}, and a job can "
                                    "depend only on such as came before it")
        return reason or self.room.never(job)

    def _foreign(self, app: str) -> str:
        """Why the program of a job that a journal tells of is not to be run; "" when it may be, or
        is not there at the moment."""
        known = self.settings.applications
        return (leads_outside(known.path, app, known.programs)
                or distrust(known.program(app), self.settings.trust)
                if os.path.lexists(known.program(app)) else "")

    def _drop(self, dropped: List[Dropped]) -> None:
        """Close jobs that can never run since one they depend on did not end as they want."""
        for job, reason in dropped:
            self.close_job(Outcome(job, JobState.CANCELLED, reason, end=self.now))

    def _tell_unknown(self, job: Job) -> None:
        """Say once of each application that the heatmap in use does not know it."""
        heatmap = self.scheduler.policy.heatmap
        if heatmap is not None and job.kind not in self._known_kinds and heatmap.missing([job.app]):
            self.tell("note", f"{job.kind} is not in the heatmap "
                              f"({self.settings.applications.heatmap}); it counts as an average "
                              "partner")
        self._known_kinds.add(job.kind)

    def _obey(self, name: str, command: control.Command) -> None:
        """Carry out a command file and answer it. What is none, or cannot be answered, or makes
        vrm fail, is put aside: it is met once."""
        try:
            if command["do"] == "invalid":
                self._put_aside(name, command["why"])
            else:
                self._orders.obey(name, command)
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                self._put_aside(name, f"it cannot be answered: {error.strerror}")
            else:
                self._disk_trouble(f"{self.run_directory.replies}: {error.strerror}")
        except Exception:
            self._put_aside(name, "vrm failed at it")
            raise

    def _put_aside(self, name: str, why: str) -> None:
        """Take a command file out of the way and say so; one that stays is not looked at again."""
        try:
            where = f"it is now {control.put_aside(self.run_directory, name, why)}"
        except FileNotFoundError:
            return  # taken back
        except OSError as error:
            self._deaf.add(name)
            where = f"it cannot be moved away ({error.strerror}), and is not looked at again"
        self.tell("warning", f"the command file {show(name)} is not obeyed: {show(why, 300)}; "
                             f"{where}")

    def jobs_changed(self) -> None:
        """Other jobs may start now than before."""
        self._changed = self._dirty = True

    # Decisions.

    def _step(self, now: float) -> None:
        """Start everything that may start now."""
        self._changed = False
        self._next_step = math.inf
        if self.phase != "running":
            return
        if self.settings.end.fit:
            self._pass_over(now)
        if not len(self.queue):
            return
        if now < self._blocked_until:
            self._next_step = self._blocked_until
            return
        for start in self.scheduler.step(now, self.queue, self.cluster):
            job, placement = start.job, start.booking.placement
            self.journal.append("start", id=job.id, time=now, backfilled=start.backfilled,
                                placement=codec.placement_record(placement))
            self.book.started(job.id)
            self._prepared.append(start)
            self._dirty = True
        if len(self.queue):
            wake = self.scheduler.wake(now)
            self._next_step = wake if self.scheduler.interval else max(now + POLL, wake)

    def _pass_over(self, now: float) -> None:
        """Leave to the next allocation what would not end in this one."""
        late = self.book.fit(now, self.end.closing)
        self._dirty = self._dirty or bool(late)
        for job in late:
            self.tell("note", f"#{job.id} {job.app} waits for another allocation: its estimate is "
                              f"{job.estimate:g} s, and in {max(0.0, self.end.closing - now):.0f} "
                              "s this one stops starting jobs (End)")

    def _launch_prepared(self, now: float) -> None:
        """Launch what was decided, once the decision is in the journal."""
        if not self._prepared or not self._synced():
            return
        prepared, self._prepared = self._prepared, []
        for start in prepared:
            if self.watch.sweeping(start.job.id):  # it would be taken for what it has left behind
                self._prepared.append(start)
                continue
            running = Running(start.booking, start.backfilled)
            self.running[start.job.id] = running
            try:
                self.spawner.launch(self._request(start.booking))
            except (LaunchError, ValueError) as error:
                self._ended(running, None, JobState.FAILED, f"could not start: {error}")
                continue
            except OSError as error:
                del self.running[start.job.id]
                self._no_room(start.job, f"{error.filename or self.run_directory.directory}: "
                                         f"{error.strerror}")
                continue
            running.bindings_due = now + BINDINGS_AFTER
            self._untold.append(start)

    def _no_room(self, job: Job, why: str) -> None:
        """The files of a job could not be written: it waits, and nothing starts for a while."""
        self._take_back(job)
        self._changed = True
        self._blocked_until = self.clock() + RETRY
        self._disk_trouble(why)

    def _disk_trouble(self, why: str) -> None:
        """Tell of a file that cannot be written, once until that works again."""
        if not self._disk_failed:
            self._disk_failed = True
            self.tell("warning", f"cannot write: {why}; starting nothing until that works again")

    def _disk_works(self) -> None:
        if self._disk_failed:
            self._disk_failed = False
            self.tell("note", "files can be written again; continuing")

    def _synced(self) -> bool:
        """Bring the journal to disk; when that fails nothing is started until it works again."""
        try:
            self.journal.sync()
        except OSError as error:
            self._disk_trouble(f"{self.run_directory.journal}: {error.strerror}")
            return False
        return True

    def _request(self, booking: Booking) -> LaunchRequest:
        """What the spawner has to start for a job; writes the rankfile."""
        job, run = booking.job, self.run_directory
        details = self.book.entries[job.id].details
        rankfile = run.rankfile(job.app, job.id)
        launch = self.launcher.command(
            job.id, self.settings.applications.program(job.app),
            list(booking.placement.slots(self.cluster.nodes)), self.cluster.nodes, rankfile,
            details.words, details.environment)
        for path, text in launch.files.items():
            self._write(path, text)
        return LaunchRequest(job.id, launch.argv, launch.env,
                             details.directory or self._workplace,
                             run.output(job.app, job.id), run.errors(job.app, job.id),
                             run.marker(job.id), run.status(job.id), launch.affinity,
                             host=launch.host, reports=(
                                 run.bindings(job.app, job.id), job.procs, launch.reports)
                             if launch.reports else None)

    def _write(self, path: Path, text: str) -> None:
        """Write a file of a job, by a further name of an earlier job's file if that is the same."""
        try:
            os.link(self._written[text], path)
        except (KeyError, OSError):
            write_new(path, text)
            if len(self._written) >= FILES:
                self._written.clear()
            self._written[text] = path

    def _where(self, booking: Booking) -> str:
        """Where a job runs, for people: its cores, or its nodes when these are more than two."""
        placement = booking.placement
        few = len(placement.nodes) <= 2
        return self.records.text.cores(placement) if few else self.records.text.nodes(placement)

    # Ends.

    def end_job(self, running: Running, intent: str, grace: Optional[float] = None,
                **origin: object) -> None:
        """End a running job because of `intent`, which is recorded first."""
        if not running.intent:
            running.intent = intent
            self.journal.append("intent", id=running.job.id, reason=intent, time=time.time(),
                                **origin)
            self._synced()
        if running.away:
            self._ended(running, None, *verdict(running.intent, None))
        else:
            self._end_session(running, grace)

    def _end_session(self, running: Running, grace: Optional[float] = None) -> None:
        """SIGTERM now and SIGKILL after the grace time (seconds) to all processes of the job."""
        if running.session is None:
            return  # its supervisor has not answered yet; `_read_spawner` comes back to this
        running.ending = SessionEnd(running.session,
                                    self.grace if grace is None else grace,
                                    spare={running.session},
                                    started=running.marker.started if running.marker else None)
        running.ending.poll(self.clock())
        if running.ending.told_at is not None:
            running.told = min(running.told, running.ending.told_at)

    def _ended(self, running: Running, status: Optional[ExitStatus], state: JobState,
               reason: str = "", clean: bool = False) -> None:
        """A job is over: free its cores at once; its record is written after the next step.

        `clean`: none of its processes is left on this machine. Then its session is that of the
        supervisor's next job, too, and must not be touched."""
        job = running.job
        del self.running[job.id]
        self._leftovers |= not clean or self._beyond(running)
        if job.id in self.cluster.bookings:
            self.cluster.release(job.id)
        outcome = Outcome(job, state, reason, running.booking, running.backfilled,
                          self._exit_code(job, status), self.now,
                          None if running.away or clean else running.session,
                          running.marker.started if running.marker else None,
                          (status.start, status.end) if status else None, running.former)
        if state is JobState.COMPLETED and self._beyond(running):
            self._lingering.append((self.now + LINGER, running.booking))
            outcome.session = None
        elif not running.former:
            self.watch.sweep(job.id, running.booking.placement)
        self._changed = True
        if state is JobState.FAILED and not running.intent and (
                self.place.allocation or self._beyond(running)):
            self._held[job.id] = Held(running, outcome, self.now + HOLD)
        else:
            self._conclude(outcome, running.intent)

    def _settle(self, now: float) -> None:
        """Give the verdicts of failed jobs on which it is clear that nothing interrupted them."""
        for held in list(self._held.values()):
            running = held.running
            nodes = () if running.former else running.booking.placement.nodes
            if now >= held.until and not self.watch.sweeping(running.job.id) and all(
                    map(self.watch.answers, nodes)):
                self._release_verdict(held)

    def settle(self, job_id: int) -> None:
        """Give the verdict on a job at once, if it is held."""
        if job_id in self._held:
            self._release_verdict(self._held[job_id])

    def _release_verdict(self, held: Held, intent: str = "") -> None:
        """A held verdict: the job has failed, or with an `intent` was interrupted."""
        outcome = held.outcome
        del self._held[outcome.job.id]
        if intent:
            outcome.state, outcome.reason = verdict(intent, None, held.running.why)
        self._conclude(outcome, intent)

    def _conclude(self, outcome: Outcome, intent: str) -> None:
        """Record the end of a job that ran, or let it wait again."""
        why, retry = self._why_again(outcome, intent)
        if why:
            self.records.sweep(outcome)
            lost = {"lost": True} if intent == "node" and not retry else {}
            self._losses[outcome.job.id] = self._losses.get(outcome.job.id, 0) + len(lost)
            self.wait_again(outcome.job, why, retry, **lost)
        else:
            self.close_job(outcome)
        self._changed = True

    def _exit_code(self, job: Job, status: Optional[ExitStatus]) -> Optional[int]:
        """What a shell would show for the rank that failed; None without a status."""
        code, run = shell_code(status), self.run_directory
        if status is None or not status.code:
            return code
        return self.launcher.exit_code(status.code, run.output(job.app, job.id),
                                       run.errors(job.app, job.id))

    def _why_again(self, outcome: Outcome, intent: str) -> Tuple[str, bool]:
        """Why a job that ended waits again ("" when it does not), and whether that is a retry."""
        entry = self.book.entries[outcome.job.id]
        if intent == "requeue":
            return "requeued by its user", False
        if outcome.state is JobState.COMPLETED or intent in ("cancel", "stop"):
            return "", False
        if intent == "interrupted":
            requeue = self.settings.interrupted == "requeue"
            return ("interrupted by the end of the allocation" if requeue else ""), False
        if intent == "pause":
            return "the manager was stopped (OnStop: requeue)", False
        if (intent == "node" and self.settings.interrupted == "requeue"
                and self._losses.get(outcome.job.id, 0) < NODE_LOSSES):
            return f"interrupted: {outcome.reason}", False
        if entry.tries < entry.details.retries:
            return (f"{outcome.state.value} ({outcome.reason}); retry {entry.tries + 1} of "
                    f"{entry.details.retries}"), True
        return "", False

    def wait_again(self, job: Job, why: str, retry: bool = False, **origin: object) -> None:
        """Let a job that ran run anew; its files go only when the journal says so."""
        self.journal.append("again", id=job.id, time=self.now, reason=why, retry=retry, **origin)
        if any(path.exists() for path in self._left_by(job.id)):
            self._synced()
            self._clear(job.id)
        self._drop(self.book.again(job.id, retry))
        self._changed = self._dirty = True
        self.tell("note", f"#{job.id} {job.app} waits again: {why}")

    def _left_by(self, job_id: int) -> Tuple[Path, Path]:
        return self.run_directory.status(job_id), self.run_directory.marker(job_id)

    def _clear(self, job_id: int) -> None:
        """Remove what a start has left, or it would be taken for the end of the next one."""
        for path in self._left_by(job_id):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # the spawner tries it again before a launch
                self._disk_trouble(f"{path}: {error.strerror}")

    def close_job(self, outcome: Outcome) -> None:
        """Record that a job will not run (any more), nor those that depend on it."""
        outcome.details = self.book.entries[outcome.job.id].details
        self.counts[outcome.state.value] += 1
        self.journal.append("end", id=outcome.job.id, time=outcome.end, state=outcome.state.value,
                            reason=outcome.reason, exit_code=outcome.exit_code, ran=outcome.ran)
        self.records.pending.append(outcome)
        self._drop(self.book.ended(outcome.job.id, outcome.state))
        self._dirty = True

    # What can wait until the next jobs have started.

    def _do_chores(self) -> None:
        """Records of ended jobs, checks of bindings, the state file."""
        now = self.clock()
        if now >= self.records.sweep_at:
            self.records.sweep_all(now)
        if self.records.pending and self._synced():
            self._record_all()
        for start in self._untold:
            ranks = f"{start.job.procs} rank" + ("s" if start.job.procs > 1 else "")
            self.tell("start", f"#{start.job.id} {start.job.app}  starts: {ranks} on "
                               f"{self._where(start.booking)}"
                               + (" (backfilled)" if start.backfilled else ""))
        self._untold.clear()
        while self._lingering and now >= self._lingering[0][0]:
            booking = self._lingering.popleft()[1]
            if booking.job.id not in self.running:
                self.watch.sweep(booking.job.id, booking.placement, here=True)
        if now >= self.adoption.deadline(now) - 0.05:
            self._adopt(now)
        for running in list(self.running.values()):
            if now >= running.bindings_due:
                running.bindings_due = math.inf
                self._check_early(running)
        if now >= (self._snapshot_earliest if self._dirty else self._snapshot_latest):
            self._write_snapshot(now)

    def _adopt(self, now: float) -> None:
        """Let the sessions of jobs belong to the batch job."""
        self.adoption.poll(now, {job_id: running.session
                                 for job_id, running in self.running.items()})
        if self.adoption.trouble and not self._adoption_trouble:
            self.tell("warning", "jobs do not belong to the batch job, and would outlive its end: "
                                 f"{self.adoption.trouble}")
        self._adoption_trouble = self.adoption.trouble or self._adoption_trouble

    def _record_all(self) -> None:
        """Record the jobs that ended; those that the disk does not take wait for the next time, and
        so do those for which there is no time now: jobs and commands must not wait for them."""
        until = self.clock() + RECORDING
        self._record_more = False
        while self.records.pending and self.clock() >= self._blocked_until:
            if self.clock() >= until:
                self._record_more = True
                return
            try:
                self.records.write_next()
            except OSError as error:
                self._blocked_until = self.clock() + RETRY
                self._disk_trouble(f"{self.run_directory.jobs}: {error.strerror}")
                return
            self._disk_works()

    def _check_early(self, running: Running) -> None:
        """Look at the bindings of a job that runs, so that a wrong one is known in time."""
        if self.settings.launcher.check_bindings == "ignore":
            return
        job_id, placement = running.job.id, running.booking.placement
        self.watch.ask(job_id, list(placement.slots(self.cluster.nodes)))
        self._judge_bindings(job_id, self.records.check_bindings(running.booking))

    def _judge_bindings(self, job_id: int, state: str) -> None:
        """End a job whose ranks are on the cores of others, where that is wished."""
        running = self.running.get(job_id)
        if running is not None and state != "unchecked":
            running.binding, self._dirty = state, True
        if (state == "mismatch" and running is not None and not running.intent
                and self.settings.launcher.check_bindings == "fail"):
            self.end_job(running, "binding")

    def _write_snapshot(self, now: float) -> None:
        """Replace the state file; rarely when that is slow, so that it never delays jobs."""
        self._dirty = False
        try:
            write_json(self.run_directory.state, snapshot(
                self.clock(), self.settings, self.cluster, self.scheduler, self.book,
                [(each.booking, each.binding, each.former or self.cluster)
                 for each in self.running.values()], self.counts,
                emulated=self.emulated, started=self.start_time, phase=self.phase,
                end=self.end.end))
            self._snapshot_failed = False
        except OSError as error:
            if not self._snapshot_failed:
                self.tell("warning", f"cannot write {self.run_directory.state}: {error.strerror}")
            self._snapshot_failed = True
        done = self.clock()
        self._snapshot_earliest = done + max(SNAPSHOT_PAUSE, 20 * (done - now))
        self._snapshot_latest = done + HEARTBEAT

    # Stopping, and going on where an earlier manager stopped.

    def _ask_end(self, now: float, wait: Optional[float] = None) -> None:
        """Learn when the allocation ends; it may have been extended."""
        if self.end.poll(now, wait):
            self._changed = True
            left = self.end.end - now
            self.tell("note", "the allocation does not end" if left == math.inf else
                      f"the allocation ends in {left:.0f} s")
        if self.end.trouble != self._end_trouble:
            self._end_trouble = self.end.trouble
            if self._end_trouble:
                self.tell("warning", f"cannot learn when the allocation ends: {self._end_trouble}; "
                                     "set End.At")

    def _close_down(self, who: str) -> None:
        """The allocation is about to end: start nothing more; running jobs may use what is left."""
        if self._closing:
            return
        self._closing = True
        self.stop(who, kill=False)

    def _interrupt(self, name: str) -> None:
        """The batch system ends this job, puts it back into its queue, or takes its nodes away.
        What runs, and what has failed just now, was interrupted; the processes have less time
        than the batch system gives vrm."""
        self._closing = True
        moment = time.time()
        delay = allocation.kill_delay(self.place.allocation)
        self.grace = min(self.grace, max(0.0, delay - RESERVE))
        for running in self.running.values():
            running.told = min(running.told, moment)
        for held in list(self._held.values()):
            self._release_verdict(held, "interrupted")
        self.stop(f"{name} from the batch system", kill=True, at_once=self._signals > 2)

    def stop(self, who: str, kill: bool, at_once: bool = False, intent: str = "stop") -> None:
        """Start nothing more; end the running jobs (`kill`, because of `intent`) or let them
        finish."""
        if self.phase != "stopping":
            self.phase = "stopping"
            self._changed = self._dirty = True
            for start in self._prepared:
                self._take_back(start.job)
            self._prepared.clear()
        what = "ending" if kill else "waiting for"
        self.tell("note", f"{who}: starting nothing more"
                  + (f", {what} {len(self.running)} running job(s)" if self.running else ""))
        if kill:
            for running in list(self.running.values()):
                if at_once or not running.intent:
                    # Who ends an allocation sends SIGTERM at its end.
                    self.end_job(running, "interrupted" if self._closing else intent,
                              grace=0.0 if at_once else None)

    def _take_back(self, job: Job) -> None:
        """A job whose start was recorded but that was never launched waits again."""
        self.cluster.release(job.id)
        self.journal.append("back", id=job.id)
        self._clear(job.id)
        self._drop(self.book.again(job.id))

    def _finish(self) -> None:
        """Leave nothing behind: the last state, the journal's closing word, no process."""
        left = ([] if self.running or not self._leftovers
                else pids_with_environment("VRM_RUN", self.run_id))
        while left and self._lingering and self.clock() < self._lingering[-1][0]:
            time.sleep(0.05)  # what ends by itself may do so
            left = pids_with_environment("VRM_RUN", self.run_id)
        killed, ending = len(left), TagEnd("VRM_RUN", self.run_id, grace=0.0)
        limit = self.clock() + LINGER
        while left and not ending.poll(self.clock()) and self.clock() < limit:
            time.sleep(0.01)
        killed += self.watch.close(sweep=not self.running)
        if killed:
            self.tell("warning", f"{killed} process(es) of ended jobs were still there and are "
                                 "killed")
        waiting = self.book.waiting
        if self._input_ended and not waiting:
            self.journal.append("finished", time=self.clock())
        elif waiting:
            lacking = len(self.book.lacking)
            self.tell("note", f"{waiting} job(s) still wait"
                      + (f", {lacking} of them for more nodes than there are" if lacking else "")
                      + "; the same command continues them (--fresh starts again)")
        self.phase = "ended"
        self._write_snapshot(self.clock())
        try:
            self.journal.close()
        except OSError as error:
            raise RunError(f"cannot write {self.run_directory.journal}: {error.strerror}; the "
                           "same command records what is missing") from error

    def _continue(self, past: journals.Past) -> None:
        """Take up what the journal tells: jobs that wait, run, or ended in the meantime."""
        if past.run:
            self._leftovers = True
            self.run_id = past.run
            self.tell("note", f"continuing the run of {len(past.jobs)} job(s): "
                              f"{len(past.ended)} ended, {len(past.running)} started, "
                              f"{len(past.waiting)} waiting")
        for warning in self.warnings:
            self.tell("warning", warning)
        self.launcher.run_id = self.run_id
        self.watch.begin(self.run_id)
        self._run_of = past.run_of
        nodes = codec.nodes_record(self.cluster.nodes)
        granted = codec.nodes_record(self.room.granted)
        more = {"granted": granted} if granted not in ([], nodes) else {}
        if past.runs and past.runs[-1].get("nodes", nodes) != nodes:
            self.tell("note", "the nodes are others than before; the run continues with these")
        self.journal.append("run", format=journals.FORMAT, run=self.run_id, time=self.clock(),
                            pid=os.getpid(), nodes=nodes, **more,
                            home=takeup.identity(self.run_directory), **self.place.record())
        self._bad_lines_have_ids = not past.run or past.format > 1
        if past.run and past.format == 1:  # whose jobs run where vrm was started, to their end
            self._workplace = os.getcwd()
        self._next_id = past.next_id
        self._losses = dict(past.losses)
        self._orders = Orders(self, past.commands)
        self._input_ended = past.input_ended
        follower = QueueFollower(self.settings.applications.queue,
                                 Position(*past.position) if past.position else None,
                                 fault=lambda path: distrust(path, self.settings.trust))
        if self.once:
            follower.finish()
        self._input = Replay(follower, self.settings.replay.speed)
        for record in past.runs:
            self.room.add(codec.cluster_of(record, self.cluster).nodes)
            self.room.add(codec.nodes_of(record.get("granted", [])))
        self._restore_jobs(past)
        if self.failed:
            self._run_failed_again(past)
        for job, start in past.running:
            self._take_over(job, start, past.intents.get(job.id, ""),
                            past.told.get(job.id, math.inf))

    def _run_failed_again(self, past: journals.Past) -> None:
        """Let the jobs wait again that did not complete, with their ids; refused ones stay so."""
        if not past.run:
            raise RunError(f"there is no earlier run in {self.run_directory.directory} of which "
                           "jobs could run again; start without --failed")
        ids = [job_id for job_id, entry in sorted(self.book.entries.items())
               if entry.state.value in takeup.RERUN]
        self.tell("note", f"#{fold(ids)} run{'s' * (len(ids) == 1)} again (--failed)" if ids else
                          "no job of the run failed: nothing to run again (--failed)")
        for job_id in ids:
            self.journal.append("again", id=job_id, time=self.now, reason="run again by --failed",
                                retry=False)
        self.journal.sync()
        self.records.forget(ids)
        for job_id in ids:
            self._clear(job_id)
            self.counts[self.book.entries[job_id].state.value] -= 1
            self._drop(self.book.again(job_id))

    def _restore_jobs(self, past: journals.Past) -> None:
        """Enter all jobs of the run, in the order in which they came."""
        for job_id, known in past.details.items():
            if known.name:
                self._named.setdefault(known.name, []).append(job_id)
        for job_id, job in past.jobs.items():
            details, end = past.details[job_id], past.ended.get(job_id)
            if end is not None:
                self.book.know(job, details, JobState(end["state"]))
                self.counts[end["state"]] += 1
            elif job_id in past.started:
                self.book.know(job, details, JobState.RUNNING)
        foreign = {app: self._foreign(app) for app in {job.app for job in past.waiting}}
        for job in past.waiting:
            if job.id in past.again:
                self._clear(job.id)
            never = foreign[job.app] or self.room.never(job)
            try:
                if not never:
                    self._drop(self.book.enter(job, past.details[job.id]))
            except LifeError as error:
                never = str(error)
            if never:  # the machine died between the job's record and that of its refusal
                self.book.know(job, past.details[job.id], JobState.REFUSED)
                self.close_job(Outcome(job, JobState.REFUSED, never, end=self.now))
        self._tell_lacking(sorted(self.book.lacking))
        for job_id, tries in past.tries.items():
            self.book.entries[job_id].tries = tries

    def _take_over(self, job: Job, start: journals.Record, intent: str, told: float) -> None:
        """Follow a job that an earlier manager started, or find how it ended. With an `intent` it
        had told the job to end, at `told`."""
        before = codec.cluster_of(self._run_of.get(job.id, {}), self.cluster)
        found = self._look(job.id)
        old = codec.placement_of(start["placement"], before)
        placement = recovery.moved(old, before, self.cluster)
        if placement is not None and placement.clashes(self.cluster):
            placement = None  # one of its nodes is down
        if found.trouble:
            self.tell("warning", found.trouble)
        if placement is None:
            booking = Booking(job, old, start["time"], start["time"] + job.estimate)
        else:
            booking = self.cluster.book(job, placement, start["time"])
        running = Running(booking, start["backfilled"], taken_over=True, marker=found.marker,
                          intent=intent, told=told if intent else math.inf,
                          away=found.what == recovery.ELSEWHERE,
                          former=before if placement is None else None)
        self.running[job.id] = running
        marker = found.marker
        if marker and (marker.host, marker.boot) == (self.place.host, self.place.boot):
            running.session = marker.pid
            self.adoption.add(job.id, marker.pid, self.now)
        if found.what == recovery.UNSTARTED:
            self._never_began(running)
        elif found.what == recovery.INTERRUPTED:
            running.intent = intent or "interrupted"
            self._ended(running, None, *verdict(running.intent, None))
        elif found.what == recovery.ELSEWHERE:
            if intent:
                self._ended(running, None, *verdict(intent, None))
                return
            self.tell("note", f"#{job.id} {job.app} runs under {found.marker.host}; it is followed "
                              "by its files (`vrm requeue` or `vrm cancel` gives it up)")
        elif found.what == recovery.RUNNING and placement is None:
            self.tell("warning", f"#{job.id} {job.app} runs on nodes that are not there any more; "
                                 "ending it")
            self.end_job(running, "interrupted")
        elif found.what == recovery.RUNNING and intent:
            self._end_session(running)

    def _never_began(self, running: Running) -> None:
        """The journal says that a job was to start, and nothing tells that it did."""
        job = running.job
        if running.intent in ("cancel", "stop"):
            self._ended(running, None, *verdict(running.intent, None))
            return
        del self.running[job.id]
        if job.id in self.cluster.bookings:
            self.cluster.release(job.id)
        self.journal.append("back", id=job.id)
        self._drop(self.book.again(job.id))

