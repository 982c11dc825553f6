"""Cancels, holds, releases and requeues jobs at the request of users, whichever command they use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.jobs.intake import Intake
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import JobHeldForCommand, CommandHandler, Part
from vrm.model import Job, JobState
from vrm.model.quantities import fold
from vrm.run import command_files
from vrm.run.requeue import runs_again, ended_unsuccessfully
from vrm.run.entry import CANCEL, DroppedJob, Entry, JobStateError

AGAIN = "waits again"


class JobControl(Part):
    """Carries out users' requests about jobs."""

    def __init__(self, live: LiveRun, intake: Intake, ends: Ends) -> None:
        self.live = live
        self.intake = intake
        self.ends = ends
        self.acts = {"cancel": self._cancel, "hold": self._hold, "release": self._release, "requeue": self._requeue}

    def do(self, what: str, job_ids: Iterable[int], command: str = "") -> tuple[dict[str, list[Job]], dict[int, str]]:
        """Cancel, hold, release or requeue jobs.

        Return two dictionaries: the changed jobs (maybe thousands), by the end of a sentence about a job ("is held");
        and the reasons why nothing was done, by job id. `command` is the command's name for the journal.
        """
        done: dict[str, list[Job]] = {}
        wrong: dict[int, str] = {}
        for job_id in job_ids:
            self.ends.settle(job_id)
            self.live.notify(JobHeldForCommand(job_id))
            try:
                entry = self.live.state.entry(job_id)
                done.setdefault(self.acts[what](entry, command), []).append(entry.job)
            except JobStateError as error:
                wrong[job_id] = str(error)
        self.live.records.forget([job.id for job in done.get(AGAIN, ())])  # requeued jobs have no end records
        self.live.changes()
        return done, wrong

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the commands that cancel, hold, release or requeue jobs."""
        return dict.fromkeys(self.acts, self._handle_command)

    def _handle_command(self, command: command_files.Command, name: str) -> command_files.Command:
        """Apply a command to each job that it names; in a range, only to the jobs that allow it."""
        entries = self.live.state.book.entries
        named, swept = command_files.chosen(command, entries, (
            job_id for job_id, entry in entries.items() if ended_unsuccessfully(entry)))
        done, not_done = self.do(command["do"], [*named, *swept], name)
        wrong = [not_done[job_id] for job_id in named if job_id in not_done]
        if not done and not wrong:
            wrong.append(f"none of these jobs can be changed by {command['do']}")
        return {"ok": not wrong, "text": "\n".join([*(_sentence(jobs, what) for what, jobs in done.items()), *wrong])}

    # Each returns the end of a sentence about the job, or raises JobStateError.

    def _cancel(self, entry: Entry, command: str) -> str:
        job, running = entry.job, self.live.running.get(entry.job.id)
        if running is not None:
            self.ends.end_job(running, "cancel")
            return "is being ended"
        if runs_again(self.live.state.book.entries, entry):
            self.live.records.forget([job.id])  # it has another end
            self.ends.reopen(job, "cancelled by its user")
        elif entry.state is not JobState.QUEUED:
            raise JobStateError(f"job {job.id} neither waits nor runs: it is {entry.state.value}")
        self.ends.drop([DroppedJob(job, "cancelled while it waited")], CANCEL)
        return "will not run"

    def _hold(self, entry: Entry, command: str) -> str:
        self.live.state.hold(entry.job.id)
        return "is held"

    def _release(self, entry: Entry, command: str) -> str:
        self.live.state.release(entry.job.id)
        return "is released"

    def _requeue(self, entry: Entry, command: str) -> str:
        job, running = entry.job, self.live.running.get(entry.job.id)
        if entry.details.more.get("requeue") == "no":
            raise JobStateError(f"job {job.id} is not to run again: it was submitted with --no-requeue")
        if running is not None:
            self.ends.end_job(running, "requeue", command=command)
            return "is being ended and will wait again"
        if not entry.state.ended:
            raise JobStateError(f"job {job.id} waits already")
        if any(each.job is job for each in self.live.records.pending):
            raise JobStateError(f"the end of job {job.id} is not recorded yet; try again")
        if entry.state is JobState.REFUSED:
            self.intake.retry(entry, command=command)
            self.live.tell("note", f"#{job.id} {job.app} waits again: requeued by its user")
            return AGAIN
        against = self.live.state.book.dependencies.against(entry)
        if against is not None:
            raise JobStateError(f"job {job.id} depends on job {against[0]}, which ended as "
                                f"{against[1].value}; requeue that one first")
        self.ends.requeue_job(job, "requeued by its user", command=command)
        return AGAIN


def _sentence(jobs: list[Job], what: str) -> str:
    """Return a sentence about what was done to these jobs; `what` is its end in the singular."""
    apps = list(dict.fromkeys(job.app for job in jobs))
    if len(jobs) == 1:
        return f"job {jobs[0].id} ({apps[0]}) {what}"
    them = f"jobs {fold(sorted(job.id for job in jobs))} ({', '.join(apps[:3])}"
    many = re.sub(r"^is\b", "are", what).replace("waits", "wait")
    return f"{them}{', ...' if len(apps) > 3 else ''}) {many}"
