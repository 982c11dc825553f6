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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple

from vrm.config import Settings
from vrm.live import control, journal as journals
from vrm.live.launchers import LaunchError, Result, read_result
from vrm.live.processes import (SessionEnd, pids_with_environment, signal_process,
                                signal_session)
from vrm.live.rundir import RunDirectory, RunError, write_json
from vrm.live.setup import Site, application_fault
from vrm.live.spawner import (Ended, ExitStatus, LaunchFailed, LaunchRequest, Marker, RecordError,
                              Spawner, SpawnerError, SpawnerLost, Started, SupervisorLost,
                              read_status)
from vrm.model import Booking, Infeasible, Job, JobState
from vrm.report.jobs import JobRow, JobWriter, PlacementText, read_jobs
from vrm.scheduling import Start
from vrm.workload.queue_file import (Line, LineError, Position, QueueFollower, Replay, parse_line,
                                     writer_of)

POLL = 0.2
"""Seconds between looks at the queue file and the commands (files may be written on another
host, where no notification comes from)."""

HEARTBEAT = 5.0
"""Seconds after which the state is written anew even if nothing changed."""

SNAPSHOT_PAUSE = 0.2
"""Seconds at least between two states written."""

BINDINGS_AFTER = 3.0
"""Seconds after a start at which the reported bindings are looked at for the first time."""

RETRY = 1.0
"""Seconds after which something is tried again that a full disk has prevented."""

_FULL_DISK = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))

Tell = Callable[[str, str], None]
"""Called with a kind (`start`, `end`, `warning`, `note`) and a text for people."""


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
    marker: Optional[Marker] = None
    intent: str = ""                     # why the manager ends it: timeout, cancel, stop, binding
    ending: Optional[SessionEnd] = None
    warned: bool = False
    bindings_due: float = math.inf

    @property
    def job(self) -> Job:
        """The job."""
        return self.booking.job


@dataclass
class Outcome:
    """A job that ended, before its record is written."""

    job: Job
    state: JobState
    reason: str = ""
    booking: Optional[Booking] = None
    backfilled: bool = False
    exit_code: Optional[int] = None      # as a shell would show it
    end: float = 0.0
    session: Optional[int] = None
    ran: Optional[Tuple[float, float]] = None  # start and end of mpirun, as its supervisor saw them


class Manager:
    """Runs one queue on one cluster to its end."""

    def __init__(self, settings: Settings, site: Site, run: RunDirectory, tell: Tell,
                 once: bool = False, fresh: bool = False) -> None:
        self.settings = settings
        self.cluster = site.cluster
        self.emulated = site.emulated
        self.scheduler = site.scheduler
        self.launcher = site.launcher
        self.run_directory = run
        self.tell = tell
        self.once = once
        self.fresh = fresh
        self.clock = Clock()
        self.start_time = self._now = self.clock()
        self.queue = self.scheduler.new_queue()
        self.running: Dict[int, Running] = {}
        self.rows: List[JobRow] = []
        self.counts = {state.value: 0 for state in JobState if state.ended}
        self.run_id = uuid.uuid4().hex[:12]
        self.phase = "running"
        self._text = PlacementText(self.cluster.nodes)
        self._next_id = 0
        self._unanswered: Dict[str, control.Command] = {}  # replies to commands carried out
        self._prepared: List[Start] = []          # decided, to be launched when in the journal
        self._outcomes: Deque[Outcome] = collections.deque()  # ended, to be recorded
        self._untold: List[Start] = []            # launched, to be told of
        self._mismatched: Set[int] = set()
        self._known_kinds: Set[str] = set()       # applications looked up in the heatmap
        self._signals = 0
        self._changed = True                      # a scheduling step is due
        self._next_step = math.inf
        self._next_poll = 0.0
        self._dirty = True                        # the state file is not up to date
        self._snapshot_earliest = 0.0
        self._snapshot_latest = 0.0
        self._snapshot_failed = False
        self._input_ended = False
        self._disk_failed = False
        self._blocked_until = 0.0                 # no job is started before, for a full disk
        self._said_waiting = False

    # The run.

    def run(self) -> bool:
        """Run the queue to its end; True when every job succeeded.

        Raises RunError when the run cannot begin or go on.
        """
        if self.once:
            self._check_queue_file()
        self.run_directory.create()
        with self.run_directory.owned() as lock:
            past = self._past()
            self.journal = journals.Journal(self.run_directory.journal)
            with Spawner(hold=[lock]) as self.spawner, self._woken_by_signals():
                self._continue(past)
                with JobWriter(self.run_directory.jobs) as self._writer:
                    self._restore_rows(past)
                    self._loop()
                    self._finish()
        failed = sum(self.counts.values()) - self.counts[JobState.COMPLETED.value]
        return not failed and not len(self.queue)

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
            while not self._done():
                timeout = max(0.0, self._next_deadline() - self.clock())
                ready = selector.select(timeout)
                # Everything of one turn happens at one moment, as in a simulation: what a job's
                # end lets start has that end as its start.
                self._now = now = self.clock()
                for key, _ in ready:
                    key.data()
                self._act_on_deadlines(now)
                if now >= self._next_poll:
                    self._next_poll = now + POLL
                    self._look_at_files(now)
                if self._changed or now >= self._next_step:
                    self._step(now)
                self._launch_prepared(now)
                self._do_chores()

    def _done(self) -> bool:
        if self._signals > 2 and not self.running:
            return True  # what a full disk does not take is taken up by the next manager
        if self.running or self._prepared or self._outcomes:
            return False
        if self.phase == "stopping":
            return True
        return self._input_ended and not len(self.queue) and not any(
            True for _ in control.take(self.run_directory))

    def _next_deadline(self) -> float:
        """When the loop must wake up even if nothing happens."""
        deadline = min(self._next_poll, self._next_step)
        for running in self.running.values():
            if running.ending:
                deadline = min(deadline, running.ending.deadline)
            elif not running.warned:
                deadline = min(deadline, running.booking.expected_end)
        return deadline

    # What wakes the loop.

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP wake the loop instead of breaking into what it does."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._wakeup = reader
        before_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None)
                  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
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
            self._signals += 1
            if self._signals == 1:
                self._stop(name, kill=self.settings.on_stop == "kill")
            elif self._signals == 2:
                self._stop(f"a second {name}", kill=True)
            else:
                self._stop(f"a further {name}", kill=True, at_once=True)

    def _read_spawner(self) -> None:
        for event in self.spawner.events():
            if isinstance(event, SpawnerLost):
                self._replace_spawner(event)
                continue
            running = self.running.get(int(event.id))
            if running is None:
                continue
            if isinstance(event, LaunchFailed) and event.message.endswith(_FULL_DISK):
                del self.running[running.job.id]
                self._no_room(running.job, event.message)
            elif isinstance(event, Started):
                running.session = event.supervisor_pid
                if running.intent:
                    self._end_session(running)
            elif isinstance(event, Ended):
                self._ended(running, event.status, *verdict(running.intent, event.status))
            elif isinstance(event, LaunchFailed):
                self._ended(running, None, JobState.FAILED, f"could not start: {event.message}")
            elif isinstance(event, SupervisorLost):
                running.session = event.supervisor_pid or running.session
                self._lost(running)

    def _replace_spawner(self, event: SpawnerLost) -> None:
        self.tell("warning", f"{event.message}; starting another, running jobs are not touched")
        try:
            self.spawner.start()
        except SpawnerError as error:
            raise RunError(f"{error}; the running jobs go on, and the same command follows "
                           "them to their end") from error

    def _lost(self, running: Running) -> None:
        """The supervisor of a job was killed: end what is left of the job, its status unknown."""
        running.intent = "lost"
        if running.session is None:
            self._session_gone(running)
        else:
            self._end_session(running)

    def _look_at_files(self, now: float) -> None:
        """The queue file, the commands, and the jobs of an earlier manager."""
        if self.phase == "running":
            self._read_queue(now)
        for name, command in control.take(self.run_directory):
            self._obey(name, command, now)
        for running in [r for r in self.running.values() if r.taken_over]:
            self._look_at_marker(running)

    def _look_at_marker(self, running: Running) -> None:
        dead = running.marker is None or running.marker.alive() is False
        run, job_id = self.run_directory, running.job.id
        try:
            status = read_status(run.status(job_id))
            if status is None and dead:  # killed after it had written, before it renamed the file
                status = read_status(run.marker(job_id))
        except RecordError as error:
            self._ended(running, None, JobState.FAILED, str(error))
            return
        if status is not None:
            self._ended(running, status, *verdict(running.intent, status))
        elif dead and running.intent != "lost":
            self._lost(running)

    def _act_on_deadlines(self, now: float) -> None:
        for running in list(self.running.values()):
            if running.ending:
                if now >= running.ending.deadline and running.ending.poll(now):
                    self._session_gone(running)
            elif not running.warned and now >= running.booking.expected_end:
                running.warned = True
                self._overdue(running)

    def _session_gone(self, running: Running) -> None:
        """No process of a job that is being ended is left; its supervisor tells of the end."""
        if running.intent == "lost":
            self._ended(running, None, JobState.FAILED, "its supervisor was killed, so its exit "
                                                        "status is not known")
        elif running.ending:
            running.ending.deadline = math.inf

    def _overdue(self, running: Running) -> None:
        job = running.job
        if self.settings.walltime == "kill":
            self.tell("warning", f"#{job.id} {job.app}: ran longer than its estimate of "
                                 f"{job.estimate:g} s; ending it (Walltime: kill)")
            self._end(running, "timeout")
        elif self.settings.walltime == "warn":
            self.tell("warning", f"#{job.id} {job.app}: runs longer than its estimate of "
                                 f"{job.estimate:g} s")

    # Jobs come in.

    def _read_queue(self, now: float) -> None:
        if self._input_ended:
            return
        queue = self.settings.applications.queue
        if writer_of(queue, time.time()).state == "ended":
            self._input.follower.finish()
        for line in self._input.due(now):
            self._take_line(line, now)
        if self._input.ended:
            self._input_ended = True
            self.journal.append("input", position=self._input.position, ended=True)
        for notice in self._input.follower.take_notices():
            self.tell("warning", notice)
        waits = not (self.running or len(self.queue) or self._input_ended)
        if waits and not self._said_waiting:
            self.tell("note", f"nothing to do; waiting for lines in {queue} (an `end` "
                              "line or `vrm stop` ends the run)")
        self._said_waiting = waits

    def _take_line(self, line: Line, now: float) -> None:
        if isinstance(line.parsed, LineError):
            self.tell("warning", f"{self.settings.applications.queue}:{line.number}: {line.parsed}")
            return
        wanted = line.parsed
        self._enter(now, wanted.app, wanted.procs, wanted.seconds, wanted.exclusive,
                    cores=wanted.fields.get("cores", 1), position=line.position)

    def _enter(self, now: float, app: str, procs: int, estimate: float, exclusive: bool,
               cores: int = 1, **origin: Any) -> Tuple[int, str]:
        """Enter a job under the next id; its id and, when it is refused, the reason."""
        job_id, self._next_id = self._next_id, self._next_id + 1
        job = Job(job_id, app, procs, estimate, now, exclusive, cores)
        self.journal.append("job", **journals.job_record(job), **origin)
        reason = application_fault(self.settings.applications.path, app)
        try:
            self.scheduler.check(job)
        except Infeasible as never:
            reason = reason or str(never)
        if reason:
            self.tell("warning", f"#{job_id} {app} refused: {reason}")
            self._close(Outcome(job, JobState.REFUSED, reason, end=now))
        else:
            self.queue.add(job)
            self._changed = True
            self._tell_unknown(job)
        self._dirty = True
        return job_id, reason

    def _tell_unknown(self, job: Job) -> None:
        """Say once of each application that the heatmap in use does not know it."""
        heatmap = getattr(self.scheduler.policy, "heatmap", None)
        if heatmap is not None and job.kind not in self._known_kinds and heatmap.missing([job.app]):
            self.tell("note", f"{job.kind} is not in the heatmap "
                              f"({self.settings.applications.heatmap}); it counts as an average "
                              "partner")
        self._known_kinds.add(job.kind)

    def _obey(self, name: str, command: control.Command, now: float) -> None:
        """Carry out a command file and answer it."""
        if name not in self._unanswered:
            self._unanswered[name] = self._reply_to(command, name, now)
        try:
            self.journal.sync()
            control.answer(self.run_directory, name, self._unanswered[name])
            del self._unanswered[name]
        except OSError as error:
            self._disk_trouble(f"{self.run_directory.replies}: {error.strerror}")

    def _reply_to(self, command: control.Command, name: str, now: float) -> control.Command:
        actions = {"submit": self._obey_submit, "cancel": self._obey_cancel,
                   "stop": self._obey_stop}
        if command["do"] not in actions:
            return {"ok": False,
                    "text": f"not understood: {command.get('why', command['do'])}"}
        try:
            return actions[command["do"]](command, name, now)
        except (KeyError, TypeError, ValueError) as error:
            return {"ok": False, "text": f"not understood: {error}"}

    def _obey_submit(self, command: control.Command, name: str, now: float) -> control.Command:
        wanted = parse_line(command["line"])
        if self.phase != "running":
            return {"ok": False, "text": "the manager is stopping and takes no more jobs"}
        job_id, reason = self._enter(now, wanted.app, wanted.procs, wanted.seconds,
                                     wanted.exclusive, cores=wanted.fields.get("cores", 1),
                                     command=name)
        if reason:
            return {"ok": False, "id": job_id, "text": f"job {job_id} refused: {reason}"}
        return {"ok": True, "id": job_id, "text": f"job {job_id}: {wanted.app} waits"}

    def _obey_cancel(self, command: control.Command, name: str, now: float) -> control.Command:
        job_id = int(command["id"])
        if job_id in self.queue:
            job = self.queue.remove(job_id)
            self._close(Outcome(job, JobState.CANCELLED, "cancelled while it waited", end=now))
            self._changed = self._dirty = True
            return {"ok": True, "text": f"job {job_id} ({job.app}) will not run"}
        running = self.running.get(job_id)
        if running is None:
            return {"ok": False, "text": f"no job {job_id} waits or runs"}
        self._end(running, "cancel")
        return {"ok": True, "text": f"job {job_id} ({running.job.app}) is being ended"}

    def _obey_stop(self, command: control.Command, name: str, now: float) -> control.Command:
        self._stop("`vrm stop`", kill=bool(command.get("now")))
        return {"ok": True, "text": f"stopping; {len(self.running)} job(s) "
                + ("are being ended" if command.get("now") else "may finish")
                + f", {len(self.queue)} waiting"}

    # Decisions.

    def _step(self, now: float) -> None:
        """Start everything that may start now."""
        self._changed = False
        self._next_step = math.inf
        if self.phase != "running" or not len(self.queue):
            return
        if now < self._blocked_until:
            self._next_step = self._blocked_until
            return
        for start in self.scheduler.step(now, self.queue, self.cluster):
            job, placement = start.job, start.booking.placement
            self.journal.append("start", id=job.id, time=now, backfilled=start.backfilled,
                                placement=journals.placement_record(placement))
            self._prepared.append(start)
            self._dirty = True
        if len(self.queue):
            self._next_step = max(now + POLL, self.scheduler.wake(now))

    def _launch_prepared(self, now: float) -> None:
        """Launch what was decided, once the decision is in the journal."""
        if not self._prepared or not self._synced():
            return
        prepared, self._prepared = self._prepared, []
        for start in prepared:
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
            self.tell("note", "files can be written again; going on")

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
        rankfile = run.rankfile(job.app, job.id)
        launch = self.launcher.command(
            job.id, self.settings.applications.path / job.app,
            list(booking.placement.slots(self.cluster.nodes)), self.cluster.nodes, rankfile)
        for path, text in launch.files.items():
            Path(path).write_text(text)
        return LaunchRequest(job.id, launch.argv, launch.env, os.getcwd(),
                             run.output(job.app, job.id), run.errors(job.app, job.id),
                             run.marker(job.id), run.status(job.id))

    def _where(self, booking: Booking) -> str:
        """Where a job runs, for people: its cores, or its nodes when these are more than two."""
        placement = booking.placement
        few = len(placement.nodes) <= 2
        return self._text.cores(placement) if few else self._text.nodes(placement)

    # Ends.

    def _end(self, running: Running, intent: str, grace: Optional[float] = None) -> None:
        """End a running job because of `intent`, which is recorded first."""
        if not running.intent:
            running.intent = intent
            self.journal.append("intent", id=running.job.id, reason=intent)
            self._synced()
        self._end_session(running, grace)

    def _end_session(self, running: Running, grace: Optional[float] = None) -> None:
        """SIGTERM now and SIGKILL after the grace time (seconds) to all processes of the job."""
        if running.session is None:
            return  # its supervisor has not answered yet; `_read_spawner` comes back to this
        running.ending = SessionEnd(running.session,
                                    self.settings.grace if grace is None else grace,
                                    spare={running.session},
                                    started=running.marker.started if running.marker else None)
        running.ending.poll(self.clock())

    def _ended(self, running: Running, status: Optional[ExitStatus], state: JobState,
               reason: str = "") -> None:
        """A job is over: free its cores at once; its record is written after the next step."""
        job = running.job
        del self.running[job.id]
        self.cluster.release(job.id)
        self._close(Outcome(job, state, reason, running.booking, running.backfilled,
                            shell_code(status), self._now, running.session,
                            (status.start, status.end) if status else None))
        self._changed = True

    def _close(self, outcome: Outcome) -> None:
        """Record that a job will not run (any more)."""
        self.counts[outcome.state.value] += 1
        self.journal.append("end", id=outcome.job.id, time=outcome.end, state=outcome.state.value,
                            reason=outcome.reason, exit_code=outcome.exit_code, ran=outcome.ran)
        self._outcomes.append(outcome)
        self._dirty = True

    # What can wait until the next jobs have started.

    def _do_chores(self) -> None:
        """Records of ended jobs, checks of bindings, the state file."""
        now = self.clock()
        if self._outcomes and self._synced():
            self._record_all()
        for start in self._untold:
            ranks = f"{start.job.procs} rank" + ("s" if start.job.procs > 1 else "")
            self.tell("start", f"#{start.job.id} {start.job.app}  starts: {ranks} on "
                               f"{self._where(start.booking)}"
                               + (" (backfilled)" if start.backfilled else ""))
        self._untold.clear()
        for running in list(self.running.values()):
            if now >= running.bindings_due:
                running.bindings_due = math.inf
                self._check_early(running)
        if now >= (self._snapshot_earliest if self._dirty else self._snapshot_latest):
            self._write_snapshot(now)

    def _record_all(self) -> None:
        """Record the jobs that ended; those that the disk does not take wait for the next time."""
        while self._outcomes and self.clock() >= self._blocked_until:
            try:
                self._record(self._outcomes[0])
            except OSError as error:
                self._blocked_until = self.clock() + RETRY
                self._disk_trouble(f"{self.run_directory.jobs}: {error.strerror}")
                return
            self._outcomes.popleft()
            self._disk_works()

    def _record(self, outcome: Outcome) -> None:
        """Write the line of a job that ended, tell of it, and end what it left behind."""
        job, booking, run = outcome.job, outcome.booking, self.run_directory
        if outcome.session is not None:
            self._sweep_session(outcome)
        binding, result = "", Result()
        if booking is not None:
            result = read_result(run.output(job.app, job.id))
            binding = self._check_bindings(booking)
            for done in (run.status(job.id), run.marker(job.id)):
                done.unlink(missing_ok=True)
        if result.verification == "UNSUCCESSFUL" and not outcome.reason:
            outcome.reason = "its own verification was UNSUCCESSFUL"
        row = self._row(outcome, binding, result.seconds)
        self._writer.write(row)
        self.rows.append(row)
        if outcome.state is not JobState.REFUSED:
            ran = f" after {outcome.end - booking.start:.2f} s" if booking else ""
            verified = f", verification {result.verification}" if result.verification else ""
            well = outcome.state is JobState.COMPLETED and not outcome.reason
            self.tell("end" if well else "failure",
                      f"#{job.id} {job.app}  {outcome.state.value}{ran}{verified}"
                      + (f": {outcome.reason}" if outcome.reason else ""))

    def _row(self, outcome: Outcome, binding: str, app_time: Optional[float]) -> JobRow:
        job, booking = outcome.job, outcome.booking
        placed = booking.placement if booking else None
        return JobRow(
            job.id, job.app, job.procs, job.submit, booking.start if booking else None,
            outcome.end if booking else None, job.estimate, outcome.state.value,
            exit_code=outcome.exit_code, app_time=app_time,
            exclusive=job.exclusive, backfilled=outcome.backfilled,
            nodes=self._text.nodes(placed) if placed else "",
            cores=self._text.cores(placed) if placed else "",
            binding=binding, reason=outcome.reason)

    def _sweep_session(self, outcome: Outcome) -> None:
        """End processes of a job that outlived its mpirun."""
        left = signal_session(outcome.session, signal.SIGKILL, spare={outcome.session})
        if left:
            self.tell("warning", f"#{outcome.job.id} {outcome.job.app}: {len(left)} process(es) "
                                 "outlived it and were killed")

    def _check_early(self, running: Running) -> None:
        """Look at the bindings of a job that runs, so that a wrong one is known in time."""
        binding = self._check_bindings(running.booking)
        if binding == "mismatch" and self.settings.launcher.check_bindings == "fail":
            self._end(running, "binding")

    def _check_bindings(self, booking: Booking) -> str:
        """Compare what mpirun reported with the rankfile; warn once for each job that differs."""
        job = booking.job
        if self.settings.launcher.check_bindings == "ignore":
            return "unchecked"
        result = self.launcher.check_bindings(
            self.run_directory.errors(job.app, job.id), self.run_directory.output(job.app, job.id),
            list(booking.placement.slots(self.cluster.nodes)), self.cluster.nodes)
        if result.state == "mismatch" and job.id not in self._mismatched:
            self._mismatched.add(job.id)
            self.tell("warning", f"#{job.id} {job.app}: RANKS ARE NOT WHERE THE RANKFILE PUTS THEM: "
                                 + "; ".join(result.differences[:4]))
        return result.state

    def _write_snapshot(self, now: float) -> None:
        """Replace the state file; rarely when that is slow, so that it never delays jobs."""
        self._dirty = False
        try:
            write_json(self.run_directory.state, self.snapshot())
            self._snapshot_failed = False
        except OSError as error:
            if not self._snapshot_failed:
                self.tell("warning", f"cannot write {self.run_directory.state}: {error.strerror}")
            self._snapshot_failed = True
        done = self.clock()
        self._snapshot_earliest = done + max(SNAPSHOT_PAUSE, 20 * (done - now))
        self._snapshot_latest = done + HEARTBEAT

    def snapshot(self) -> Dict[str, Any]:
        """What the status queries show: nodes, cores, running and waiting jobs, counts."""
        now = self.clock()
        names = [node.name for node in self.cluster.nodes]
        jobs = []
        for running in sorted(self.running.values(), key=lambda r: (r.booking.start, r.job.id)):
            booking = running.booking
            jobs.append({**_job_facts(booking.job), "state": JobState.RUNNING.value,
                         "start": booking.start, "expected_end": booking.expected_end,
                         "nodes": [names[i] for i in booking.placement.nodes]})
        reserved = self.scheduler.reservations(now, self.queue, self.cluster)
        for job in self.queue.in_order(now):
            facts = {**_job_facts(job), "state": JobState.QUEUED.value}
            if job.id in reserved:
                facts["expected_start"] = reserved[job.id]
            jobs.append(facts)
        settings = self.settings
        return {
            "format": 1, "time": now,
            "manager": {"host": socket.gethostname(), "pid": os.getpid(),
                        "start": self.start_time, "phase": self.phase},
            "scheduling": {"algorithm": settings.scheduling.algorithm,
                           "backfilling": settings.scheduling.backfilling,
                           "policy": settings.allocation.policy},
            "emulated": self.emulated,
            "nodes": [{"name": node.name, "up": bool(self.cluster.up >> i & 1),
                       "sockets": [socket_.slots for socket_ in sockets]}
                      for i, (node, sockets) in enumerate(zip(self.cluster.nodes,
                                                              self.cluster.view()))],
            "jobs": jobs,
            "ended": self.counts,
        }

    # Stopping, and going on where an earlier manager stopped.

    def _stop(self, who: str, kill: bool, at_once: bool = False) -> None:
        """Start nothing more; end the running jobs (`kill`) or let them finish."""
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
                    self._end(running, "stop", grace=0.0 if at_once else None)

    def _take_back(self, job: Job) -> None:
        """A job whose start was recorded but that was never launched waits again."""
        self.cluster.release(job.id)
        self.queue.add(job)
        self.journal.append("back", id=job.id)

    def _finish(self) -> None:
        """Leave nothing behind: the last state, the journal's closing word, no process."""
        left = [] if self.running else pids_with_environment("VRM_RUN", self.run_id)
        for process in left:
            signal_process(process, signal.SIGKILL)
        if left:
            self.tell("warning", f"{len(left)} process(es) of ended jobs were still there and are "
                                 "killed")
        waiting = len(self.queue)
        if self._input_ended and not waiting:
            self.journal.append("finished", time=self.clock())
        elif waiting:
            self.tell("note", f"{waiting} job(s) still wait; the same command goes on with them "
                              "(--fresh starts anew)")
        self.phase = "ended"
        self._write_snapshot(self.clock())
        try:
            self.journal.close()
        except OSError as error:
            raise RunError(f"cannot write {self.run_directory.journal}: {error.strerror}; the "
                           "same command records what is missing") from error

    def _past(self) -> journals.Past:
        """What an earlier manager left in the directory; an ended run is put aside."""
        run = self.run_directory
        try:
            past = journals.replay(journals.read(run.journal))
        except (ValueError, KeyError) as error:
            if not self.fresh:
                raise RunError(f"{error}; use --fresh to put it aside and start anew") from error
            past = journals.Past()
        if past.run and (self.fresh or past.finished) and not past.running:
            outputs = [path for job in past.jobs.values()
                       for path in (run.output(job.app, job.id), run.errors(job.app, job.id))]
            folder = run.archive(outputs)
            self.tell("note", f"the records of the run before are in {folder}")
            past = journals.Past()
        elif past.run and self.fresh:
            raise RunError(f"{len(past.running)} job(s) of the run before may still be running; "
                           "start without --fresh to follow them to their end first")
        return past

    def _continue(self, past: journals.Past) -> None:
        """Take up what the journal tells: jobs that wait, run, or ended in the meantime."""
        if past.run:
            self.run_id = past.run
            self.tell("note", f"going on with the run of {len(past.jobs)} job(s): "
                              f"{len(past.ended)} ended, {len(past.running)} started, "
                              f"{len(past.waiting)} waiting")
        self.launcher.run_id = self.run_id
        self.journal.append("run", run=self.run_id, time=self.clock(), pid=os.getpid(),
                            host=socket.gethostname())
        self._next_id = past.next_id
        taken = {"ok": True, "text": "taken before the manager was restarted"}
        self._unanswered = dict.fromkeys(past.commands, taken)
        self._input_ended = past.input_ended
        follower = QueueFollower(self.settings.applications.queue,
                                 Position(*past.position) if past.position else None)
        if self.once:
            follower.finish()
        self._input = Replay(follower, self.settings.replay.speed)
        for job in past.waiting:
            self.queue.add(job)
        for job, start in past.running:
            self._take_over(job, start, past.intents.get(job.id, ""))
        for end in past.ended.values():
            self.counts[end["state"]] += 1

    def _take_over(self, job: Job, start: journals.Record, intent: str) -> None:
        """Follow a job that an earlier manager started."""
        placement = journals.placement_of(start["placement"], self.cluster)
        booking = self.cluster.book(job, placement, start["time"])
        try:
            marker = Marker.read(self.run_directory.marker(job.id))
        except RecordError as error:
            self.tell("warning", str(error))
            marker = None
        if marker is None and not self.run_directory.status(job.id).exists():
            self._take_back(job)
            return
        running = Running(booking, start["backfilled"], taken_over=True, marker=marker,
                          intent=intent)
        self.running[job.id] = running
        if marker:
            running.session = marker.pid
            if intent:
                self._end_session(running)

    def _restore_rows(self, past: journals.Past) -> None:
        """Complete `jobs.csv` with ends that are in the journal only, and take the rows over."""
        self.rows = list(read_jobs(self.run_directory.jobs))
        known = {row.id for row in self.rows}
        for job_id, end in past.ended.items():
            if job_id in known:
                continue
            job, start = past.jobs[job_id], past.started.get(job_id)
            booking = Booking(job, journals.placement_of(start["placement"], self.cluster),
                              start["time"], start["time"] + job.estimate) if start else None
            self._outcomes.append(Outcome(job, JobState(end["state"]), end["reason"], booking,
                                          bool(start and start["backfilled"]), end["exit_code"],
                                          end["time"]))


def verdict(intent: str, status: ExitStatus) -> Tuple[JobState, str]:
    """How a job ended: first by what the manager itself did to it, then by its exit status."""
    if status.ok:
        return JobState.COMPLETED, ""
    if status.error:
        return JobState.FAILED, status.describe()
    return {
        "timeout": (JobState.TIMEOUT, "ran longer than its estimate"),
        "cancel": (JobState.CANCELLED, "cancelled by its user"),
        "stop": (JobState.CANCELLED, "the manager was stopped"),
        "binding": (JobState.FAILED, "its ranks were not where the rankfile puts them"),
    }.get(intent, (JobState.FAILED, status.describe()))


def shell_code(status: Optional[ExitStatus]) -> Optional[int]:
    """What a shell would show: the exit code, or 128 + signal; None without a status."""
    if status is None:
        return None
    return status.code if status.signal is None else 128 + status.signal


def _job_facts(job: Job) -> Dict[str, Any]:
    return {"id": job.id, "app": job.app, "procs": job.procs, "submit": job.submit,
            "estimate": job.estimate, "exclusive": job.exclusive}
