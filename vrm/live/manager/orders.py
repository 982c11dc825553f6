"""What people ask of a running manager by command files: each is carried out once and answered.

The answer is a sentence for each job, and whether all was done. What is asked again after a crash
of the manager, because the answer was not written yet, is known from the journal.
"""

from __future__ import annotations

import errno
import os
from functools import partial

from vrm.live.manager.boundary import NotUnderstood, reading
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, Question
from vrm.live.manager.stopping import Stopping
from vrm.run import control
from vrm.model.quantities import fold
from vrm.run.journal.past import Past
from vrm.workload.grammar import show

_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG)
"""What says that no other time will do either."""


class Orders(Part):
    """Reads commands, has parts obey them, and answers. `gone`: somebody has removed the run's directory."""

    def __init__(self, live: LiveRun, stopping: Stopping) -> None:
        self.live = live
        self.stopping = stopping
        self.gone = False
        self._unanswered: dict[str, control.Command] = {}
        self._claims: dict[str, int] = {}  # open files of commands that nobody takes back any more
        self._done: set[str] = set()   # commands that earlier managers have carried out
        self._deaf: set[str] = set()   # files among the commands that stay there
        self._asked: set[str] = set()  # questions that copies of the manager answer now
        self._made: dict[str, list[int]] = {}  # the jobs that they have brought

    def recall(self, past: Past) -> None:
        """Learn which commands earlier managers have carried out; they are only answered."""
        self._done, self._made = set(past.commands), past.by_command

    def look(self, now: float, files: bool) -> None:
        """Carry out the commands that wait."""
        if files:
            self.obey_all()

    def expects(self, now: float) -> bool:
        """Whether there are commands."""
        return bool(self.waiting())

    def _before(self, name: str) -> control.Command:
        """The answer to a command that an earlier manager has carried out."""
        ids = self._made.get(name, [])
        text = f"job{'s' * (len(ids) > 1)} {fold(ids)}: " if ids else ""
        return {"ok": True, "text": f"{text}accepted before the manager was restarted",
                **({"id": ids[0], "ids": ids} if ids else {})}

    def waiting(self) -> list[tuple[str, control.Command]]:
        """The commands that wait. Without the directory of the run no job can be followed."""
        run = self.live.run_directory
        try:
            return [(name, command) for name, command in control.take(run, self.live.place.boot)
                    if name not in self._deaf]
        except FileNotFoundError as error:
            if not self.gone:
                self.gone = True
                self.stopping.stop(f"{error.filename} was removed or renamed: it holds the records of this run, which "
                                   "cannot continue; set `Log` to a directory that nobody removes",
                                   kill=True)
        except OSError as error:
            self.live.disk_trouble(f"{run.commands}: {error.strerror}")
        return []

    def obey_all(self, unasked: bool = False) -> None:
        """Carry out the commands that wait; or those alone that were given while no manager ran (`unasked`)."""
        self.live.copies.look()
        for name, command in self.waiting():
            if not unasked or command.get("unasked"):
                self.try_to_obey(name, command)

    def try_to_obey(self, name: str, command: control.Command) -> None:
        """Carry out a command file and answer it. What is none, or cannot be answered, or makes
        vrm fail in half of a change, is put aside: it is met once."""
        try:
            if command["do"] == "invalid":
                self._put_aside(name, command["why"])
            else:
                self.obey(name, command)
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                self._put_aside(name, f"it cannot be answered: {error.strerror}")
            else:
                self.live.disk_trouble(f"{self.live.run_directory.replies}: {error.strerror}")
        except Exception:
            self._put_aside(name, "an error in vrm")
            raise

    def _put_aside(self, name: str, why: str) -> None:
        """Take a command file out of the way and say so; one that stays is not looked at again, unless it is the disk
        that does not take it now."""
        self._let_go(name)
        try:
            where = f"it is now {control.put_aside(self.live.run_directory, name, why)}"
        except FileNotFoundError:
            return  # taken back
        except OSError as error:
            if error.errno in control.DISK:
                self.live.disk_trouble(f"{self.live.run_directory.directory}: {error.strerror}")
                return
            self._deaf.add(name)
            where = f"it cannot be moved away ({error.strerror}), and is not looked at again"
        self.live.tell("warning", f"the command file {show(name)} is ignored: {show(why, 300)}; "
                                  f"{where}")

    def obey(self, name: str, command: control.Command) -> None:
        """Carry out a command and answer it; OSError when the answer can't be written, and then
        it is only answered the next time."""
        if name in self._asked or not self._has(name):
            return
        if name not in self._unanswered:
            repeated = any(command["do"] in part.repeats() for part in self.live.parts)
            reply = self._before(name) if name in self._done and not repeated else self._reply_to(name, command)
            if callable(reply):
                self._hand_on(name, reply)
                return
            self._unanswered[name] = reply
        self.live.journal.sync()
        if command.get("unasked"):  # nobody waits for the answer
            self.live.tell("note", self._unanswered[name]["text"])
            control.remove(self.live.run_directory, name)
        else:
            control.answer(self.live.run_directory, name, self._unanswered[name])
        del self._unanswered[name]
        self._let_go(name)

    def _has(self, name: str) -> bool:
        """Have a command for this manager; whether that is so: it may have been taken back."""
        if name not in self._claims:
            claim = control.claim(self.live.run_directory, name)
            if claim is None:
                return False
            self._claims[name] = claim
        return True

    def leave(self) -> None:
        """What was not answered is the next manager's."""
        for name in list(self._claims):
            self._let_go(name)

    def _let_go(self, name: str) -> None:
        claim = self._claims.pop(name, None)
        if claim is not None:
            os.close(claim)

    def _hand_on(self, name: str, question: Question) -> None:
        """Have a copy of the manager answer a command, now or when there are fewer of them."""
        self.live.journal.sync()
        if self.live.copies.begin(partial(self._answer, name, question), then=partial(self._answered, name)):
            self._asked.add(name)

    def _answer(self, name: str, question: Question) -> None:
        """In a copy: answer a command that only reads."""
        control.answer(self.live.run_directory, name, question())

    def _answered(self, name: str, fault: str, seconds: float) -> None:
        """A copy has answered a command, or has not."""
        self._asked.discard(name)
        if not fault:
            self._let_go(name)
        else:
            text = f"error: the manager of vrm has not made the answer: {fault}"
            self._unanswered[name] = {"ok": False, "text": text, "out": "", "err": f"{text}\n", "code": 1}

    def _reply_to(self, name: str, command: control.Command) -> control.Command | Question:
        try:
            with reading(self.live.journal):
                for part in self.live.parts:
                    obey = part.commands().get(command["do"])
                    if obey is not None:
                        return obey(command, name)
                raise NotUnderstood(f"there is no command {command['do']}")
        except NotUnderstood as error:
            return {"ok": False, "text": f"not understood: {show(str(error), 500)}"}
