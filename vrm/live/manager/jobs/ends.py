"""Jobs end: by themselves, or since the manager ends them. Their cores are free at once; how they
ended may be held for a moment (see `running.Held`); then they are recorded, or wait again."""

from __future__ import annotations

import math
import time
from pathlib import Path
from collections.abc import Iterable, Sequence

from vrm.live.launch.base import disconnected
from vrm.live.manager.jobs import signals
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import POLL, JobEnded, JobLeft, Part
from vrm.live.manager.records.records import EndedJob
from vrm.live.manager.jobs.running import LEADERLESS, HeldFailure, Running
from vrm.live.manager.jobs.verdict import HOLD, LOST, shell_code, verdict
from vrm.live.spawn.records import ExitStatus
from vrm.model import Job, JobState
from vrm.model.amounts import MEMORY
from vrm.model.quantities import fold
from vrm.results import shares
from vrm.run.again import waits_again
from vrm.run.entry import Dropped
from vrm.system.processes import SessionEnd

LINGER = 2.0
"""Seconds that mpirun's helpers on other nodes may stay after a job that ended well."""


class Ends(Part):
    """How jobs come to their ends. `held` are failures that may turn out to be interruptions;
    `leftovers`: a job may have left processes on this machine, `lingers`: until when helpers of jobs that ended well
    may be on the nodes (seconds)."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.held: dict[int, HeldFailure] = {}
        self.leftovers = False
        self.lingers = 0.0

    # The manager ends a job.

    def end_job(self, running: Running, intent: str, grace: float | None = None,
                **origin: object) -> None:
        """End a running job because of `intent`, which is recorded first. What its user wants is more than what it was
        to be ended for before."""
        if not running.intent or (intent in ("cancel", "requeue") and intent != running.intent):
            running.intent = intent
            self.live.state.intend(running.job.id, intent, time.time(), time.monotonic(), **origin)
            self.live.synced()
        if running.away:
            self.ended(running, None, *verdict(running.intent, None))
        else:
            self.end_session(running, grace)

    def end_session(self, running: Running, grace: float | None = None) -> None:
        """SIGTERM now and SIGKILL after the grace time (seconds) to all processes of the job."""
        if running.session is None:
            return  # its supervisor has not answered yet; its answer comes back to this
        running.ending = SessionEnd(running.session,
                                    self.live.grace if grace is None else grace,
                                    spare={running.session},
                                    started=running.leader)
        running.ending.poll(self.live.clock())
        if running.ending.told_at is not None:
            running.told = min(running.told, running.ending.told_at)

    def lost(self, running: Running) -> None:
        """The supervisor of a job was killed: end what is left of the job, its status unknown."""
        running.lost = True
        if running.leader is None:
            running.leader = LEADERLESS
        if running.session is None:
            self._session_gone(running)
        else:
            self.end_session(running)

    def look(self, now: float, files: bool) -> None:
        """Give the verdicts on failed jobs that nothing has interrupted, as is clear by now; end what has had its grace
        time, and look after what has had its time."""
        for held in list(self.held.values()):
            nodes = () if held.running.former else held.running.booking.placement.nodes
            if now >= held.until and not self.live.watch.sweeping(held.running.job.id) and all(
                    map(self.live.watch.answers, nodes)):
                self.release_verdict(held)
        for running in list(self.live.running.values()):
            if running.ending:
                if now >= running.ending.deadline and running.ending.poll(now):
                    self._session_gone(running)
            elif running.begun and not running.warned and now >= running.due:
                running.warned = True
                self._overdue(running)
            elif now >= running.signal_due:
                running.signal_due = math.inf
                wanted = signals.warning_of(self.live.state.entry(running.job.id).details)
                if wanted is not None:
                    signals.send(running, wanted.number, wanted.batch)
        self.live.revise(now)

    def deadline(self, now: float) -> float:
        """When a verdict or a revision is due, the end of an estimate, or SIGKILL."""
        due = [self.live.revision_due, *(max(held.until, now + POLL) for held in self.held.values())]
        for running in self.live.running.values():
            if running.ending:
                due.append(running.ending.deadline)
            elif not running.warned:
                due += running.due if running.begun else math.inf, running.signal_due
        return min(due)

    def busy(self) -> bool:
        """Whether jobs run, or have ended and are not judged yet."""
        return bool(self.live.running or self.held)

    def _session_gone(self, running: Running) -> None:
        """No process of a job that is being ended is left; its supervisor tells of the end."""
        if running.lost:
            self.ended(running, None, *verdict(running.intent, None, running.why))
        elif running.ending:
            running.ending.deadline = math.inf

    def _overdue(self, running: Running) -> None:
        job = running.job
        own = self.live.state.entry(job.id).details.more.get("limit") == "strict"
        wish = "kill" if own else self.live.settings.walltime
        if wish == "kill":
            self.live.tell("warning", f"#{job.id} {job.app}: ran longer than its estimate of "
                                      f"{job.walltime:g} s; ending it"
                                      + " (Walltime: kill)" * (not own))
            self.end_job(running, "timeout")
        elif wish == "warn":
            self.live.tell("warning", f"#{job.id} {job.app}: runs longer than its estimate of "
                                      f"{job.walltime:g} s")

    # A job has ended.

    def judged(self, running: Running, status: ExitStatus) -> tuple[JobState, str]:
        """How a job ended; mpirun may say that all is well when it has lost a node, and may end before it starts a rank."""
        if not running.intent:
            cut = () if status.ok else self._cut(running)
            lost = () if cut else self.lost_nodes(running)
            if cut or (lost and not all(map(self.live.watch.answers, running.booking.placement.nodes))):
                running.intent, running.why = "node", f"{LOST} {', '.join(cut or lost)} was lost"
            elif lost:
                return JobState.FAILED, f"{LOST} {', '.join(lost)} was lost"
            why = self._failed_start(running, status)
            if why:
                running.intent, running.why = "unstarted", why
        return verdict(running.intent, status, running.why, running.told)

    def _cut(self, running: Running) -> tuple[str, ...]:
        """The nodes to which vrm's own connection was lost while a job ran there."""
        return disconnected(self.live.run_directory.errors(running.job.app, running.job.id)) if self.beyond(running) else ()

    def lost_nodes(self, running: Running) -> tuple[str, ...]:
        """The nodes that a job has lost, by what was written to its files."""
        job, run = running.job, self.live.run_directory
        if not running.former and not self.beyond(running):
            return ()
        errors = run.errors(job.app, job.id)
        return disconnected(errors) or self.live.launcher_of(job).lost_nodes(errors, run.output(job.app, job.id))

    def _failed_start(self, running: Running, status: ExitStatus) -> str:
        """Why the launcher's program ended before it started a rank; "" where it did not."""
        job, run = running.job, self.live.run_directory
        if status.ok or running.former:
            return ""
        launcher = self.live.launcher_of(job)
        why = launcher.failed_start(status.code or 0, run.errors(job.app, job.id), run.output(job.app, job.id))
        return why and f"{Path(launcher.mpirun).name}: {why}"

    def beyond(self, running: Running) -> bool:
        """Whether a job has other nodes of this cluster than this machine."""
        return not running.former and self.live.watch.beyond(running.booking.placement)

    def ended(self, running: Running, status: ExitStatus | None, state: JobState,
              reason: str = "", clean: bool = False) -> None:
        """A job is over: free its cores at once; its record is written after the next step.

        `clean`: none of its processes is left on this machine. Then its session is that of the
        supervisor's next job, too, and must not be touched."""
        live, job = self.live, running.job
        del live.running[job.id]
        self.live.watch.forget_memory(job.id)
        live.notify(JobLeft(job))
        live.state.vacate(job.id)
        self.leftovers |= not clean or self.beyond(running)
        outcome = EndedJob(job, state, reason, running.booking, running.start.backfilled,
                          self._exit_code(job, status), self._end_of(running, status),
                          None if running.away or clean else running.session, running.leader,
                          (status.start, status.end) if status else None, running.former)
        if status is not None:
            outcome.used = status.user, status.system, status.maxrss
            outcome.cpu = None if self.beyond(running) else status.user + status.system
        if any(name == MEMORY for name, _ in (*job.request.per_task, *job.request.per_node)):
            # A process alone may have had more than was seen of all together.
            outcome.memory = max(running.memory, status.maxrss if status else 0)
        if state is JobState.COMPLETED and self.beyond(running):
            self.live.watch.sweep(job.id, running.booking.placement, well=True, patience=LINGER)
            self.lingers = live.now + LINGER
            outcome.session = None
        else:
            self.live.watch.sweep(job.id, running.booking.placement, former=running.former)
        live.changed = True
        if state is JobState.FAILED and not running.intent and (
                live.place.allocation or self.beyond(running)):
            self.held[job.id] = HeldFailure(running, outcome, live.now + HOLD)
        else:
            self._conclude(outcome, running.intent)

    def _end_of(self, running: Running, status: ExitStatus | None) -> float:
        """When a job ended: now, or before this manager began, as its supervisor says. What was lent until now counts
        until now."""
        if status is None or status.end >= self.live.start_time or shares.shared(running.booking):
            return self.live.now
        return max(running.booking.start, status.end)

    def settle(self, job_id: int) -> None:
        """Give the verdict on a job at once, if it is held."""
        if job_id in self.held:
            self.release_verdict(self.held[job_id])

    def release_verdict(self, held: HeldFailure, intent: str = "") -> None:
        """A held verdict: the job has failed, or with an `intent` was interrupted."""
        outcome = held.outcome
        del self.held[outcome.job.id]
        if intent:
            outcome.state, outcome.reason = verdict(intent, None, held.running.why)
        self._conclude(outcome, intent)

    def _conclude(self, outcome: EndedJob, intent: str) -> None:
        """Record the end of a job that ran, or let it wait again."""
        outcome.cause = intent if outcome.state is not JobState.COMPLETED else ""
        self.live.notify(JobEnded(outcome))
        self.live.records.clear(outcome)
        why, retry = waits_again(self.live.state.entry(outcome.job.id), outcome.state,
                                 outcome.reason, intent,
                                 self.live.settings.interrupted == "requeue")
        if why:
            self.live.records.sweep(outcome)
            lost = {"lost": True} if intent in ("node", "unstarted") and not retry else {}
            self.wait_again(outcome.job, why, retry, **lost)
        else:
            self.close_job(outcome)
        self.live.changed = True

    def _exit_code(self, job: Job, status: ExitStatus | None) -> int | None:
        """What a shell would show for the rank that failed; None without a status."""
        code, run = shell_code(status), self.live.run_directory
        if status is None or not status.code:
            return code
        return self.live.launcher_of(job).exit_code(status.code, run.output(job.app, job.id),
                                            run.errors(job.app, job.id))

    def wait_again(self, job: Job, why: str, retry: bool = False, **origin: object) -> None:
        """Let a job that ran run anew; its files go only when the journal says so."""
        self.drop(self.reopen(job, why, retry, **origin))
        self.live.changes()
        self.live.tell("note", f"#{job.id} {job.app} waits again: {why}")

    def reopen(self, job: Job, why: str, retry: bool = False, **origin: object) -> list[Dropped]:
        """A job that ran or ended has no end any more, and what it has left goes. Gives those that can never run."""
        dropped = self.live.state.again(job.id, self.live.now, why, retry, **origin)
        if any(path.exists() for path in self._left_by(job.id)) and self.live.synced():
            self.clear(job.id)  # else the spawner does, once the journal has the next start
        return dropped

    def _left_by(self, job_id: int) -> tuple[Path, Path]:
        run = self.live.run_directory
        return run.status(job_id), run.marker(job_id)

    def clear(self, job_id: int) -> None:
        """Remove what a start has left, or it would be taken for the end of the next one."""
        status = self.live.run_directory.status(job_id)
        if self.live.spawner.unwritten(status) and self.live.synced():
            self.live.spawner.release(status)
        for path in self._left_by(job_id):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # the spawner tries it again before a launch
                self.live.disk_trouble(f"{path}: {error.strerror}")

    def close_job(self, outcome: EndedJob) -> None:
        """Record that a job will not run (any more), nor those that depend on it."""
        state, job_id = self.live.state, outcome.job.id
        outcome.details, outcome.mates = state.entry(job_id).details, state.lends.mates_of(job_id)
        slower = self._slower(outcome)
        dropped = state.end(job_id, outcome.state, outcome.end, outcome.reason,
                            exit_code=outcome.exit_code, ran=outcome.ran,
                            **({"slower": slower} if slower else {}),
                            **({"cause": outcome.cause} if outcome.cause else {}))
        self.live.records.pending.append(outcome)
        if outcome.booking is not None:
            self.live.subject.learn(outcome.job, outcome.end - outcome.booking.start - slower,
                                    outcome.state)
        self.drop(dropped)
        self.live.dirty = True

    def _slower(self, outcome: EndedJob) -> float:
        """The seconds that a job took longer since it had fewer cores than it asked for, at least: nothing
        else is to be learnt from it than from others."""
        booking = outcome.booking
        if booking is None or outcome.cluster is not None or not shares.shared(booking):
            return 0.0
        cluster = self.live.cluster
        return cluster.loans.lost(cluster, booking, outcome.end)

    def drop(self, dropped: Iterable[Dropped], cause: str = "") -> None:
        """Close jobs that can never run, since one they depend on did not end as they want or for another
        cause."""
        for job, reason in dropped:
            self.close_job(EndedJob(job, JobState.CANCELLED, reason, end=self.live.now, cause=cause))

    def revive(self, ids: Sequence[int]) -> None:
        """Let jobs wait again that were cancelled only since these, which may run now, had ended otherwise than they
        want."""
        live, found, look = self.live, list[int](), list(ids)
        while look:
            for job in live.state.book.dependencies.let_down(look.pop()):
                self.drop(live.state.again(job.id, live.now, "what it depends on may run now"))
                found.append(job.id)
                look.append(job.id)
        if found:
            live.synced()
            self.live.records.forget(found)
            live.changes()
            live.tell("note", f"#{fold(sorted(found))} wait{'s' * (len(found) == 1)} again: what "
                              f"{'it depends' if len(found) == 1 else 'they depend'} on may run now")

    def take_back(self, job: Job) -> None:
        """A job whose start was recorded but that was never launched waits again."""
        dropped = self.live.state.back(job.id)
        self.clear(job.id)
        self.drop(dropped)
