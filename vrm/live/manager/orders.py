"""What people ask of a running manager by command files: each is carried out once and answered.

The answer is a sentence for each job, and whether all was done. What is asked again after a crash
of the manager, because the answer was not written yet, is known from the journal.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Callable, Dict, Iterable, List

from vrm.live.manager.records import Outcome
from vrm.live.manager.takeup import RERUN
from vrm.model import Job, JobState
from vrm.run import control
from vrm.run.book import Entry, LifeError
from vrm.model.ranges import fold
from vrm.workload.grammar import parse_line, show

if TYPE_CHECKING:
    from vrm.live.manager.manager import Manager


class Orders:
    """Obeys commands with what a manager can do."""

    def __init__(self, manager: Manager, taken: Iterable[str] = ()) -> None:
        """`taken`: names of commands that an earlier manager has carried out."""
        self.manager = manager
        reply = {"ok": True, "text": "taken before the manager was restarted"}
        self._unanswered: Dict[str, control.Command] = dict.fromkeys(taken, reply)
        self._name = ""                # of the command that is being carried out
        self._requeued: List[int] = []

    def obey(self, name: str, command: control.Command) -> None:
        """Carry out a command and answer it; OSError when the answer can't be written, and then
        it is only answered the next time."""
        if name not in self._unanswered:
            self._name = name
            self._unanswered[name] = self._reply_to(command)
        self.manager.journal.sync()
        if command.get("unasked"):  # nobody waits for the answer
            self.manager.tell("note", self._unanswered[name]["text"])
            control.withdraw(self.manager.run_directory, name)
        else:
            control.answer(self.manager.run_directory, name, self._unanswered[name])
        del self._unanswered[name]

    def _reply_to(self, command: control.Command) -> control.Command:
        each = {"cancel": self._cancel, "hold": self._hold, "release": self._release,
                "requeue": self._requeue}
        what = command["do"]
        try:
            if what == "submit":
                return self._submit(command)
            if what == "stop":
                return self._stop(command)
            if what in each:
                return self._each(each[what], command)
        except (KeyError, TypeError, ValueError) as error:
            return {"ok": False, "text": f"not understood: {show(str(error), 500)}"}
        return {"ok": False, "text": f"not understood: {show(str(command.get('why', what)), 500)}"}

    def _submit(self, command: control.Command) -> control.Command:
        if not isinstance(command["line"], str):
            raise TypeError("the line is no text")
        wanted = parse_line(command["line"])
        if self.manager.phase != "running":
            return {"ok": False, "text": "the manager is stopping and takes no more jobs"}
        ids, reason = self.manager.enter(wanted, command=self._name)
        them = f"job{'s' * (len(ids) > 1)} {fold(ids)}"
        if reason:
            return {"ok": False, "id": ids[0], "ids": ids, "text": f"{them} refused: {reason}"}
        return {"ok": True, "id": ids[0], "ids": ids,
                "text": f"{them}: {wanted.app} wait{'s' * (len(ids) == 1)}"}

    def _stop(self, command: control.Command) -> control.Command:
        manager, now = self.manager, bool(command.get("now"))
        manager.stop("`vrm stop`", kill=now)
        return {"ok": True, "text": f"stopping; {len(manager.running)} job(s) "
                f"{'are being ended' if now else 'may finish'}, {manager.book.waiting} waiting"}

    def _each(self, act: Callable[[Entry], str], command: control.Command) -> control.Command:
        """Do something to each job that a command names; of a range, to those that allow it."""
        entries = self.manager.book.entries
        named, swept = control.chosen(command, entries, [
            job_id for job_id, entry in entries.items() if entry.state.value in RERUN])
        said: Dict[str, List[Job]] = {}  # what was done, and to which jobs: they may be thousands
        wrong, by_name = [], set(named)
        for job_id in [*named, *swept]:
            self.manager.settle(job_id)
            try:
                entry = self.manager.book.get(job_id)
                said.setdefault(act(entry), []).append(entry.job)
            except LifeError as error:
                if job_id in by_name:
                    wrong.append(str(error))
        done = [_sentence(jobs, what) for what, jobs in said.items()]
        if not done and not wrong:
            wrong.append(f"there is no job to {command['do']} among these")
        if self._requeued:
            self.manager.records.forget(self._requeued)
            self._requeued.clear()
        self.manager.jobs_changed()
        return {"ok": not wrong, "text": "\n".join([*done, *wrong])}

    # Each gives the end of a sentence about the job, or raises LifeError.

    def _cancel(self, entry: Entry) -> str:
        manager, job = self.manager, entry.job
        running = manager.running.get(job.id)
        if running is not None:
            manager.end_job(running, "cancel")
            return "is being ended"
        if entry.state is not JobState.QUEUED:
            raise LifeError(f"job {job.id} neither waits nor runs: it is {entry.state.value}")
        manager.close_job(Outcome(job, JobState.CANCELLED, "cancelled while it waited",
                                  end=manager.now))
        return "will not run"

    def _hold(self, entry: Entry) -> str:
        self.manager.book.hold(entry.job.id)
        self.manager.journal.append("hold", id=entry.job.id)
        return "is held"

    def _release(self, entry: Entry) -> str:
        self.manager.book.release(entry.job.id)
        self.manager.journal.append("release", id=entry.job.id)
        return "is released"

    def _requeue(self, entry: Entry) -> str:
        manager, job = self.manager, entry.job
        running = manager.running.get(job.id)
        if running is not None:
            manager.end_job(running, "requeue", command=self._name)
            return "is being ended and will wait again"
        if not entry.state.ended:
            raise LifeError(f"job {job.id} waits already")
        if any(each.job is job for each in manager.records.pending):
            raise LifeError(f"the end of job {job.id} is not recorded yet; try again")
        if entry.state is JobState.REFUSED:
            raise LifeError(f"job {job.id} was refused; submit it again")
        against = manager.book.against(entry)
        if against is not None:
            raise LifeError(f"job {job.id} depends on job {against.job.id}, which ended as "
                            f"{against.state.value}; requeue that one first")
        manager.counts[entry.state.value] -= 1
        manager.wait_again(job, "requeued by its user", command=self._name)
        self._requeued.append(job.id)
        return "waits again"


def _sentence(jobs: List[Job], what: str) -> str:
    """What was done to these jobs; `what` is as of one."""
    apps = list(dict.fromkeys(job.app for job in jobs))
    if len(jobs) == 1:
        return f"job {jobs[0].id} ({apps[0]}) {what}"
    them = f"jobs {fold(sorted(job.id for job in jobs))} ({', '.join(apps[:3])}"
    many = re.sub(r"^is\b", "are", what).replace("waits", "wait")
    return f"{them}{', ...' if len(apps) > 3 else ''}) {many}"
