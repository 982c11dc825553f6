"""Ends of jobs, by themselves or by the manager. The cores are freed at once; the verdict may be held for a moment (see
`running.HeldFailure`); then the end is recorded, or the job is requeued."""

from __future__ import annotations

import math
import time
from pathlib import Path
from collections.abc import Iterable, Sequence

from vrm.live.launch.base import disconnected
from vrm.live.manager.jobs import signals
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import POLL, JobEnded, JobReleased, Part
from vrm.live.manager.records.records import EndedJob
from vrm.live.manager.jobs.live_job import UNKNOWN_LEADER, HeldFailure, LiveJob
from vrm.live.manager.jobs.verdict import HOLD, LOST, shell_code, verdict
from vrm.live.spawn.records import ExitStatus
from vrm.model import Job, JobState
from vrm.model.amounts import MEMORY
from vrm.model.quantities import fold
from vrm.results import shares
from vrm.run.requeue import requeue_reason
from vrm.run.entry import DroppedJob
from vrm.system.processes import SessionEnding

LINGER = 2.0
"""Seconds for which mpirun's helper processes on other nodes may stay after a successful job."""


class Ends(Part):
    """Ends jobs and judges how they ended. `held`: failures that may turn out to be interruptions; `leftovers`: a job
    may have left processes on this machine; `lingers`: until when (seconds) helpers of successful jobs may stay on the
    nodes."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.held: dict[int, HeldFailure] = {}
        self.leftovers = False
        self.lingers = 0.0

    # Jobs that the manager ends.

    def end_job(self, running: LiveJob, intent: str, grace: float | None = None,
                **origin: object) -> None:
        """End a running job; its `intent` (the reason) is recorded first. A request of its user replaces an earlier
        intent."""
        if not running.intent or (intent in ("cancel", "requeue") and intent != running.intent):
            running.intent = intent
            self.live.state.intend(running.job.id, intent, time.time(), time.monotonic(), **origin)
            self.live.synced()
        if running.away:
            self.ended(running, None, *verdict(running.intent, None))
        else:
            self.end_session(running, grace)

    def end_session(self, running: LiveJob, grace: float | None = None) -> None:
        """Send SIGTERM now, and SIGKILL after the grace time (seconds), to all processes of the job."""
        if running.session is None:
            return  # its supervisor has not answered yet; its answer leads here again
        running.ending = SessionEnding(running.session,
                                       self.live.grace if grace is None else grace,
                                       spare={running.session},
                                       started=running.leader)
        running.ending.poll(self.live.clock())
        if running.ending.signalled_at is not None:
            running.told = min(running.told, running.ending.signalled_at)

    def lost(self, running: LiveJob) -> None:
        """Handle a killed supervisor: end what is left of its job, with an unknown exit status."""
        running.lost = True
        if running.leader is None:
            running.leader = UNKNOWN_LEADER
        if running.session is None:
            self._session_gone(running)
        else:
            self.end_session(running)

    def look(self, now: float, files: bool) -> None:
        """Release the verdicts on failures that nothing has interrupted by now. Continue the ends of jobs whose grace
        time is over, and handle walltimes and warning signals that are due."""
        for held in list(self.held.values()):
            nodes = () if held.running.former else held.running.booking.placement.nodes
            if now >= held.until and not self.live.watch.sweeping(held.running.job.id) and all(
                    map(self.live.watch.answers, nodes)):
                self.release_verdict(held)
        for running in list(self.live.running.values()):
            if running.ending:
                if now >= running.ending.deadline and running.ending.poll(now):
                    self._session_gone(running)
            elif running.begun and running.looked and not running.warned and now >= running.due:
                running.warned = True
                self._overdue(running)
            elif now >= running.signal_due:
                running.signal_due = math.inf
                wanted = signals.warning_of(self.live.state.entry(running.job.id).details)
                if wanted is not None:
                    signals.send(running, wanted.number, wanted.batch)
        self.live.revise(now)

    def deadline(self, now: float) -> float:
        """Return when a verdict, a revision, the end of an estimate, a signal or SIGKILL is due."""
        due = [self.live.revision_due, *(max(held.until, now + POLL) for held in self.held.values())]
        for running in self.live.running.values():
            if running.ending:
                due.append(running.ending.deadline)
            elif not running.warned:
                due += running.due if running.begun else math.inf, running.signal_due
        return min(due)

    def busy(self) -> bool:
        """Return whether jobs run, or have ended without a verdict yet."""
        return bool(self.live.running or self.held)

    def _session_gone(self, running: LiveJob) -> None:
        """Note that no process of a job that is being ended is left. Its supervisor reports the end, unless it was
        killed."""
        if running.lost:
            self.ended(running, None, *verdict(running.intent, None, running.why))
        elif running.ending:
            running.ending.deadline = math.inf

    def _overdue(self, running: LiveJob) -> None:
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

    # Jobs that have ended.

    def judged(self, running: LiveJob, status: ExitStatus) -> tuple[JobState, str]:
        """Return how a job ended. Evidence of a lost node comes first: mpirun may report success after it lost a node,
        and may end before it starts a rank."""
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

    def _cut(self, running: LiveJob) -> tuple[str, ...]:
        """Return the nodes to which vrm's own connection was lost while a job ran there."""
        return disconnected(self.live.run_directory.errors(running.job.app, running.job.id)) if self.beyond(running) else ()

    def lost_nodes(self, running: LiveJob) -> tuple[str, ...]:
        """Return the nodes that a job has lost, according to its output files."""
        job, run = running.job, self.live.run_directory
        if not running.former and not self.beyond(running):
            return ()
        errors = run.errors(job.app, job.id)
        return disconnected(errors) or self.live.launcher_of(job).lost_nodes(errors, run.output(job.app, job.id))

    def _failed_start(self, running: LiveJob, status: ExitStatus) -> str:
        """Return why the launcher's program ended before it started a rank; "" if it started one."""
        job, run = running.job, self.live.run_directory
        if status.ok or running.former:
            return ""
        launcher = self.live.launcher_of(job)
        why = launcher.failed_start(status.code or 0, run.errors(job.app, job.id), run.output(job.app, job.id))
        return why and f"{Path(launcher.mpirun).name}: {why}"

    def beyond(self, running: LiveJob) -> bool:
        """Return whether a job runs on nodes of this cluster other than this machine."""
        return not running.former and self.live.watch.beyond(running.booking.placement)

    def ended(self, running: LiveJob, status: ExitStatus | None, state: JobState,
              reason: str = "", clean: bool = False) -> None:
        """Handle the end of a job: free its cores at once; its record is written after the next step.

        `clean`: none of its processes is left on this machine. Then its session already belongs to the supervisor's
        next job and must not be touched.
        """
        live, job = self.live, running.job
        del live.running[job.id]
        self.live.watch.forget_memory(job.id)
        live.notify(JobReleased(job))
        live.state.release_cores(job.id)
        self.leftovers |= not clean or self.beyond(running)
        outcome = EndedJob(job, state, reason, running.booking, running.start.backfilled,
                          self._exit_code(job, status), self._end_of(running, status),
                          None if running.away or clean else running.session, running.leader,
                          (status.start, status.end) if status else None, running.former)
        if status is not None:
            outcome.used = status.user, status.system, status.maxrss
            outcome.cpu = None if self.beyond(running) else status.user + status.system
        if any(name == MEMORY for name, _ in (*job.request.per_task, *job.request.per_node)):
            # The largest single process may exceed the samples of the whole job.
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

    def _end_of(self, running: LiveJob, status: ExitStatus | None) -> float:
        """Return when a job ended: now, or before this manager began, as its supervisor recorded. If cores were lent or
        borrowed until now, the end is now."""
        if status is None or status.end >= self.live.start_time or shares.shared(running.booking):
            return self.live.now
        return max(running.booking.start, status.end)

    def settle(self, job_id: int) -> None:
        """Release the verdict on a job at once, if it is held."""
        if job_id in self.held:
            self.release_verdict(self.held[job_id])

    def release_verdict(self, held: HeldFailure, intent: str = "") -> None:
        """Release a held verdict: the job failed, or with an `intent` was interrupted."""
        outcome = held.outcome
        del self.held[outcome.job.id]
        if intent:
            outcome.state, outcome.reason = verdict(intent, None, held.running.why)
        self._conclude(outcome, intent)

    def _conclude(self, outcome: EndedJob, intent: str) -> None:
        """Record the end of a job that ran, or requeue it."""
        outcome.cause = intent if outcome.state is not JobState.COMPLETED else ""
        self.live.notify(JobEnded(outcome))
        self.live.records.clear(outcome)
        why, retry = requeue_reason(self.live.state.entry(outcome.job.id), outcome.state,
                                    outcome.reason, intent,
                                    self.live.settings.interrupted == "requeue")
        if why:
            self.live.records.sweep(outcome)
            lost = {"lost": True} if intent in ("node", "unstarted") and not retry else {}
            self.requeue_job(outcome.job, why, retry, **lost)
        else:
            self.close_job(outcome)
        self.live.changed = True

    def _exit_code(self, job: Job, status: ExitStatus | None) -> int | None:
        """Return the exit code that a shell would show for the rank that failed; None without a status."""
        code, run = shell_code(status), self.live.run_directory
        if status is None or not status.code:
            return code
        return self.live.launcher_of(job).exit_code(status.code, run.output(job.app, job.id),
                                            run.errors(job.app, job.id))

    def requeue_job(self, job: Job, why: str, retry: bool = False, **origin: object) -> None:
        """Requeue a job that ran; its files are removed only when the journal has the requeue."""
        self.drop(self.reopen(job, why, retry, **origin))
        self.live.changes()
        self.live.tell("note", f"#{job.id} {job.app} waits again: {why}")

    def reopen(self, job: Job, why: str, retry: bool = False, **origin: object) -> list[DroppedJob]:
        """Remove the end of a job that ran, and the files that it left. Return the jobs that can never run now."""
        dropped = self.live.state.again(job.id, self.live.now, why, retry, **origin)
        if any(path.exists() for path in self._left_by(job.id)) and self.live.synced():
            self.clear(job.id)  # otherwise the spawner does it, once the journal has the next start
        return dropped

    def _left_by(self, job_id: int) -> tuple[Path, Path]:
        run = self.live.run_directory
        return run.status(job_id), run.marker(job_id)

    def clear(self, job_id: int) -> None:
        """Remove the files that a start left; otherwise they would be taken for the end of the next start."""
        status = self.live.run_directory.status(job_id)
        if self.live.spawner.unwritten(status) and self.live.synced():
            self.live.spawner.release(status)
        for path in self._left_by(job_id):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # the spawner tries again before a launch
                self.live.report_disk_error(f"{path}: {error.strerror}")

    def close_job(self, outcome: EndedJob) -> None:
        """Record that a job will not run (again), and the same for the jobs that depend on it."""
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
        """Return the seconds that a job lost (`Loans.lost`) because it had fewer cores than it requested. What is
        learnt from its run time excludes them, so that it counts like other jobs."""
        booking = outcome.booking
        if booking is None or outcome.cluster is not None or not shares.shared(booking):
            return 0.0
        cluster = self.live.cluster
        return cluster.loans.lost(cluster, booking, outcome.end)

    def drop(self, dropped: Iterable[DroppedJob], cause: str = "") -> None:
        """Close jobs that can never run, for `cause`; by default because a job that they depend on did not end as
        required."""
        for job, reason in dropped:
            self.close_job(EndedJob(job, JobState.CANCELLED, reason, end=self.live.now, cause=cause))

    def requeue_cancelled(self, ids: Sequence[int]) -> None:
        """Requeue jobs that were cancelled only because the jobs `ids`, which may run now, had not ended as
        required."""
        live, found, look = self.live, list[int](), list(ids)
        while look:
            for job in live.state.book.dependencies.recoverable_dependents(look.pop()):
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
        """Requeue a job whose start was recorded but that was never launched."""
        dropped = self.live.state.back(job.id)
        self.clear(job.id)
        self.drop(dropped)
