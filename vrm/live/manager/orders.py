"""What people ask of a running manager by command files: each is carried out once and answered.

The answer is a sentence for each job, and whether all was done. What is asked again after a crash
of the manager, because the answer was not written yet, is known from the journal.
"""

from __future__ import annotations

import errno
import math
import re
from typing import TYPE_CHECKING, Callable, Dict, List, Set, Tuple

from vrm.live.manager import changes, door
from vrm.live.manager.desk import Desk
from vrm.live.manager.ends import Ends
from vrm.live.manager.intake import Intake
from vrm.live.manager.lending import Lending
from vrm.live.manager.records import Outcome
from vrm.live.manager.stopping import Stopping
from vrm.live.manager.takeup import RERUN
from vrm.model import Job, JobState
from vrm.run import control
from vrm.run.book import Entry, LifeError
from vrm.run.journal import Past
from vrm.model.ranges import fold
from vrm.model.reservation import ReservationError, Wanted
from vrm.results.places import fold_nodes
from vrm.run.reserving import named, when
from vrm.workload.grammar import parse_line, show

if TYPE_CHECKING:
    from vrm.live.manager.counter import LiveCounter

_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG)
"""What says that no other time will do either."""


class Orders:
    """Obeys commands with what a manager can do. `gone`: somebody has removed the run's directory."""

    def __init__(self, desk: Desk, intake: Intake, ends: Ends, stopping: Stopping,
                 lending: Lending) -> None:
        self.desk = desk
        self.intake = intake
        self.ends = ends
        self.stopping = stopping
        self.lending = lending
        self.gone = False
        self._unanswered: Dict[str, control.Command] = {}
        self._jobs_of: Dict[str, List[int]] = {}
        self._done: Set[str] = set()   # commands that earlier managers have carried out
        self._name = ""                # of the command that is being carried out
        self._requeued: List[int] = []
        self._deaf: Set[str] = set()   # files among the commands that stay there
        self.counter: LiveCounter
        self.afar = door.Afar()

    def taken(self, past: Past) -> None:
        """Commands that an earlier manager has carried out; they are only answered."""
        self._jobs_of, self._done = past.by_command, set(past.commands)

    def known(self, name: str) -> List[int]:
        """The jobs that were made of a command, by an earlier manager or for a client that asks again and again."""
        return self._jobs_of.get(name, [])

    def _before(self, name: str, command: control.Command) -> control.Command:
        """The answer to a command that an earlier manager has carried out."""
        ids = self.known(name)
        text = f"job{'s' * (len(ids) > 1)} {fold(ids)}: " if ids else ""
        return {"ok": True, "text": f"{text}taken before the manager was restarted",
                **({"id": ids[0], "ids": ids} if ids else {}), **({"code": 0} if command["do"] == "front" else {})}

    def waiting(self) -> List[Tuple[str, control.Command]]:
        """The commands that wait. Without the directory of the run no job can be followed."""
        run = self.desk.run_directory
        try:
            return [(name, command) for name, command in control.take(run)
                    if name not in self._deaf]
        except FileNotFoundError as error:
            if not self.gone:
                self.gone = True
                self.stopping.stop(f"{error.filename} was removed or renamed, which this run needs",
                                   kill=True)
        except OSError as error:
            self.desk.disk_trouble(f"{run.commands}: {error.strerror}")
        return []

    def obey_all(self) -> None:
        """Carry out the commands that wait."""
        self.afar.sweep(self.desk.clock())
        for name, command in self.waiting():
            self.try_to_obey(name, command)

    def try_to_obey(self, name: str, command: control.Command) -> None:
        """Carry out a command file and answer it. What is none, or cannot be answered, or makes
        vrm fail, is put aside: it is met once."""
        try:
            if command["do"] == "invalid":
                self._put_aside(name, command["why"])
            else:
                self.obey(name, command)
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                self._put_aside(name, f"it cannot be answered: {error.strerror}")
            else:
                self.desk.disk_trouble(f"{self.desk.run_directory.replies}: {error.strerror}")
        except Exception:
            self._put_aside(name, "vrm failed at it")
            raise

    def _put_aside(self, name: str, why: str) -> None:
        """Take a command file out of the way and say so; one that stays is not looked at again."""
        try:
            where = f"it is now {control.put_aside(self.desk.run_directory, name, why)}"
        except FileNotFoundError:
            return  # taken back
        except OSError as error:
            self._deaf.add(name)
            where = f"it cannot be moved away ({error.strerror}), and is not looked at again"
        self.desk.tell("warning", f"the command file {show(name)} is not obeyed: {show(why, 300)}; "
                                  f"{where}")

    def obey(self, name: str, command: control.Command) -> None:
        """Carry out a command and answer it; OSError when the answer can't be written, and then
        it is only answered the next time."""
        if name not in self._unanswered:
            self._name = name  # what a command of another batch system says of its jobs, it says again
            done = name in self._done and not (command["do"] == "front" and self.known(name))
            self._unanswered[name] = self._before(name, command) if done else self._reply_to(command)
        self.desk.journal.sync()
        if command.get("unasked"):  # nobody waits for the answer
            self.desk.tell("note", self._unanswered[name]["text"])
            control.withdraw(self.desk.run_directory, name)
        else:
            control.answer(self.desk.run_directory, name, self._unanswered[name])
        del self._unanswered[name]

    def _reply_to(self, command: control.Command) -> control.Command:
        each = {"cancel": self.cancel, "hold": self.hold, "release": self.release,
                "requeue": self.requeue}
        what = command["do"]
        try:
            if what == "submit":
                return self._submit(command)
            if what == "stop":
                return self._stop(command)
            if what == "reserve":
                return self._reserve(command)
            if what == "unreserve":
                return self._unreserve(command)
            if what == "lend":
                return self._lend(command)
            if what == "rules":
                return self._rules(command)
            if what == "front":
                return self._front(command)
            if what in each:
                return self._each(each[what], command)
        except (KeyError, TypeError, ValueError) as error:
            return {"ok": False, "text": f"not understood: {show(str(error), 500)}"}
        return {"ok": False, "text": f"not understood: {show(str(command.get('why', what)), 500)}"}

    def _front(self, command: control.Command) -> control.Command:
        name, first = self._name, self.desk.state.next_id
        try:
            return self.afar.answer(command, name, self.counter, self.desk.clock())
        finally:
            if self.desk.state.next_id > first:  # one that waits for them may ask again, under the same name
                self._jobs_of[name] = list(range(first, self.desk.state.next_id))

    def _submit(self, command: control.Command) -> control.Command:
        if not isinstance(command["line"], str):
            raise TypeError("the line is no text")
        wanted = parse_line(command["line"])
        if self.desk.phase != "running":
            return {"ok": False, "text": "the manager is stopping and takes no more jobs"}
        ids, reason = self.intake.enter(wanted, command=self._name)
        them = f"job{'s' * (len(ids) > 1)} {fold(ids)}"
        if reason:
            return {"ok": False, "id": ids[0], "ids": ids, "text": f"{them} refused: {reason}"}
        return {"ok": True, "id": ids[0], "ids": ids,
                "text": f"{them}: {wanted.app} wait{'s' * (len(ids) == 1)}"}

    def _stop(self, command: control.Command) -> control.Command:
        desk, now = self.desk, bool(command.get("now"))
        self.stopping.stop("`vrm stop`", kill=now)
        return {"ok": True, "text": f"stopping; {len(desk.running)} job(s) "
                f"{'are being ended' if now else 'may finish'}, {desk.state.waiting} waiting"}

    def _reserve(self, command: control.Command) -> control.Command:
        desk, begin, end = self.desk, command["begin"], command["end"]
        names, ids = list(map(str, command["nodes"])), list(map(int, command["jobs"]))
        wanted = Wanted(-math.inf if begin is None else float(begin), float(end),
                        int(command["number"]), tuple(names), str(command["name"]), tuple(ids))
        closing = self.stopping.end.closing
        try:
            if desk.phase != "running":
                raise ReservationError("the manager is stopping and reserves nothing more")
            if max(wanted.begin, desk.now) >= closing:
                raise ReservationError(f"jobs start until {when(closing)}, when the allocation's end "
                                       "is near (End), and the reservation would begin then or later")
            made = desk.state.reserve(wanted, desk.now, command=self._name)
        except ReservationError as error:
            return {"ok": False, "text": str(error)}
        desk.changes()
        jobs = f", for job{'s' * (len(ids) > 1)} {fold(ids)}" if ids else ""
        return {"ok": True, "name": made.name, "nodes": list(made.nodes),
                "text": f"reservation {made.name}: {fold_nodes(made.nodes)} from {when(made.begin)} to "
                        f"{when(made.end)}{jobs}"}

    def _unreserve(self, command: control.Command) -> control.Command:
        desk = self.desk
        try:
            found = named(desk.state.reservations, str(command["which"]))
        except ReservationError as error:
            return {"ok": False, "text": str(error)}
        jobs = desk.state.unreserve(found.id, desk.now, "cancelled", command=self._name)
        desk.changes()
        waiting = [job_id for job_id in jobs if job_id in desk.state.queue]
        compete = (f"; job{'s' * (len(waiting) > 1)} {fold(sorted(waiting))} compete"
                   f"{'s' * (len(waiting) == 1)} with the others again" if waiting else "")
        return {"ok": True, "text": f"reservation {found.name} is cancelled{compete}"}

    def _lend(self, command: control.Command) -> control.Command:
        lender, to = int(command["id"]), command.get("to")
        for job_id in (lender, *((int(to),) if to is not None else ())):
            self.ends.settle(job_id)
        try:
            text = (self.lending.back(lender, command=self._name) if command.get("back") else
                    self.lending.ask(lender, int(command["cores"]), None if to is None else int(to),
                                     command=self._name))
        except LifeError as error:
            return {"ok": False, "text": str(error)}
        return {"ok": True, "text": text}

    def _rules(self, command: control.Command) -> control.Command:
        if not isinstance(command["reason"], str):
            raise TypeError("the reason is no text")
        try:
            text = changes.change(self.desk, command["rules"], command["reason"],
                                  command.get("instead"), command=self._name)
        except changes.Refused as refused:
            return {"ok": False, "text": f"the rules stay as they are: {show(str(refused), 500)}"}
        return {"ok": True, "text": text}

    def _each(self, act: Callable[[Entry], str], command: control.Command) -> control.Command:
        """Do something to each job that a command names; of a range, to those that allow it."""
        entries = self.desk.state.book.entries
        named, swept = control.chosen(command, entries, [
            job_id for job_id, entry in entries.items() if entry.state.value in RERUN])
        said: Dict[str, List[Job]] = {}  # what was done, and to which jobs: they may be thousands
        wrong, by_name = [], set(named)
        for job_id in [*named, *swept]:
            self.ends.settle(job_id)
            self.lending.settle(job_id)
            try:
                entry = self.desk.state.entry(job_id)
                said.setdefault(act(entry), []).append(entry.job)
            except LifeError as error:
                if job_id in by_name:
                    wrong.append(str(error))
        done = [_sentence(jobs, what) for what, jobs in said.items()]
        if not done and not wrong:
            wrong.append(f"there is no job to {command['do']} among these")
        self._forget_requeued()
        self.desk.changes()
        return {"ok": not wrong, "text": "\n".join([*done, *wrong])}

    def one(self, what: str, job_id: int, command: str) -> None:
        """Cancel, hold, release or requeue a job; LifeError when it cannot be done."""
        acts = {"cancel": self.cancel, "hold": self.hold, "release": self.release, "requeue": self.requeue}
        self.ends.settle(job_id)
        self.lending.settle(job_id)
        self._name = command
        acts[what](self.desk.state.entry(job_id))
        self._forget_requeued()
        self.desk.changes()

    def _forget_requeued(self) -> None:
        """Jobs that wait again have no records any more."""
        if self._requeued:
            self.ends.records.forget(self._requeued)
            self._requeued.clear()

    # Each gives the end of a sentence about the job, or raises LifeError.

    def cancel(self, entry: Entry) -> str:
        """It will not run, or is ended."""
        job, running = entry.job, self.desk.running.get(entry.job.id)
        if running is not None:
            self.ends.end_job(running, "cancel")
            return "is being ended"
        if entry.state is not JobState.QUEUED:
            raise LifeError(f"job {job.id} neither waits nor runs: it is {entry.state.value}")
        self.ends.close_job(Outcome(job, JobState.CANCELLED, "cancelled while it waited",
                                    end=self.desk.now))
        return "will not run"

    def hold(self, entry: Entry) -> str:
        """It does not start until it is released."""
        self.desk.state.hold(entry.job.id)
        return "is held"

    def release(self, entry: Entry) -> str:
        """It may start again."""
        self.desk.state.release(entry.job.id)
        return "is released"

    def requeue(self, entry: Entry) -> str:
        """It waits again."""
        job, running = entry.job, self.desk.running.get(entry.job.id)
        if entry.details.more.get("requeue") == "no":
            raise LifeError(f"job {job.id} is not to run again: it was submitted with --no-requeue")
        if running is not None:
            self.ends.end_job(running, "requeue", command=self._name)
            return "is being ended and will wait again"
        if not entry.state.ended:
            raise LifeError(f"job {job.id} waits already")
        if any(each.job is job for each in self.ends.records.pending):
            raise LifeError(f"the end of job {job.id} is not recorded yet; try again")
        if entry.state is JobState.REFUSED:
            raise LifeError(f"job {job.id} was refused; submit it again")
        against = self.desk.state.book.against(entry)
        if against is not None:
            raise LifeError(f"job {job.id} depends on job {against[0]}, which ended as "
                            f"{against[1].value}; requeue that one first")
        self.ends.wait_again(job, "requeued by its user", command=self._name)
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
