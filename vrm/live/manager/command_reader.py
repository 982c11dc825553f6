"""Carries out users' commands, which arrive as command files: each once, with one answer.

The answer is a sentence for each job, and whether everything was done. If the manager crashes before it writes the
answer, the command is found again; the journal shows that it was carried out.
"""

from __future__ import annotations

import errno
import os
from functools import partial

from vrm.live.manager.input_faults import InputFault, reading
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, Question
from vrm.live.manager.stopping import Stopping
from vrm.run import command_files
from vrm.model.quantities import fold
from vrm.run.journal.history import RunHistory
from vrm.workload.grammar import show

_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG)
"""Errors that a later try will not fix."""


class CommandReader(Part):
    """Reads commands, calls the parts that carry them out, and answers. `gone`: the run's directory was removed."""

    def __init__(self, live: LiveRun, stopping: Stopping) -> None:
        self.live = live
        self.stopping = stopping
        self.gone = False
        self._unanswered: dict[str, command_files.Command] = {}
        self._claims: dict[str, int] = {}  # open files of claimed commands, which their clients cannot withdraw
        self._done: set[str] = set()   # commands that earlier managers have carried out
        self._ignored_files: set[str] = set()   # command files that cannot be removed and are ignored
        self._asked: set[str] = set()  # questions that copies of the manager answer now
        self._made: dict[str, list[int]] = {}  # ids of the jobs that these commands submitted

    def recall(self, past: RunHistory) -> None:
        """Learn which commands earlier managers have carried out; these are only answered."""
        self._done, self._made = set(past.commands), past.by_command

    def look(self, now: float, files: bool) -> None:
        """Carry out the waiting commands."""
        if files:
            self.carry_out_waiting()

    def expects(self, now: float) -> bool:
        """Return whether commands are waiting."""
        return bool(self.waiting())

    def _before(self, name: str) -> command_files.Command:
        """Return the answer to a command that an earlier manager has carried out."""
        ids = self._made.get(name, [])
        text = f"job{'s' * (len(ids) > 1)} {fold(ids)}: " if ids else ""
        return {"ok": True, "text": f"{text}accepted before the manager was restarted",
                **({"id": ids[0], "ids": ids} if ids else {})}

    def waiting(self) -> list[tuple[str, command_files.Command]]:
        """Return the waiting commands with their names. Stops the run if its directory was removed: without it no job
        can be followed."""
        run = self.live.run_directory
        try:
            return [(name, command) for name, command in command_files.take(run, self.live.place.boot)
                    if name not in self._ignored_files]
        except FileNotFoundError as error:
            if not self.gone:
                self.gone = True
                self.stopping.stop(f"{error.filename} was removed or renamed: it holds the records of this run, which "
                                   "cannot continue; set `Log` to a directory that nobody removes",
                                   kill=True)
        except OSError as error:
            self.live.report_disk_error(f"{run.commands}: {error.strerror}")
        return []

    def carry_out_waiting(self, unasked: bool = False) -> None:
        """Carry out the waiting commands; with `unasked` only those that were given while no manager ran."""
        self.live.copies.look()
        for name, command in self.waiting():
            if not unasked or command.get("unasked"):
                self.carry_out_safely(name, command)

    def carry_out_safely(self, name: str, command: command_files.Command) -> None:
        """Carry out a command file and answer it. Put aside a file that is not a command, cannot be answered, or makes
        vrm fail in the middle of a change, so that it is met only once."""
        try:
            if command["do"] == "invalid":
                self._put_aside(name, command["why"])
            else:
                self.carry_out_command(name, command)
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                self._put_aside(name, f"it cannot be answered: {error.strerror}")
            else:
                self.live.report_disk_error(f"{self.live.run_directory.replies}: {error.strerror}")
        except Exception:
            self._put_aside(name, "an error in vrm")
            raise

    def _put_aside(self, name: str, why: str) -> None:
        """Move a command file away and report it. Ignore a file that cannot be moved from then on, unless the disk is
        the reason."""
        self._let_go(name)
        try:
            where = f"it is now {command_files.reject_file(self.live.run_directory, name, why)}"
        except FileNotFoundError:
            return  # its client withdrew it
        except OSError as error:
            if error.errno in command_files.DISK:
                self.live.report_disk_error(f"{self.live.run_directory.directory}: {error.strerror}")
                return
            self._ignored_files.add(name)
            where = f"it cannot be moved away ({error.strerror}), and is not looked at again"
        self.live.tell("warning", f"the command file {show(name)} is ignored: {show(why, 300)}; "
                                  f"{where}")

    def carry_out_command(self, name: str, command: command_files.Command) -> None:
        """Carry out a command and answer it. Raises OSError if the answer cannot be written; the next call then only
        answers."""
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
        if command.get("unasked"):  # no client waits for the answer
            self.live.tell("note", self._unanswered[name]["text"])
            command_files.remove(self.live.run_directory, name)
        else:
            command_files.answer(self.live.run_directory, name, self._unanswered[name])
        del self._unanswered[name]
        self._let_go(name)

    def _has(self, name: str) -> bool:
        """Claim a command for this manager; return False if its client has withdrawn it."""
        if name not in self._claims:
            claim = command_files.claim(self.live.run_directory, name)
            if claim is None:
                return False
            self._claims[name] = claim
        return True

    def leave(self) -> None:
        """Leave unanswered commands to the next manager."""
        for name in list(self._claims):
            self._let_go(name)

    def _let_go(self, name: str) -> None:
        claim = self._claims.pop(name, None)
        if claim is not None:
            os.close(claim)

    def _hand_on(self, name: str, question: Question) -> None:
        """Let a copy of the manager answer a command, now or when fewer copies are working."""
        self.live.journal.sync()
        if self.live.copies.begin(partial(self._answer, name, question), then=partial(self._answered, name)):
            self._asked.add(name)

    def _answer(self, name: str, question: Question) -> None:
        """In a copy: answer a command that only reads."""
        command_files.answer(self.live.run_directory, name, question())

    def _answered(self, name: str, fault: str, seconds: float) -> None:
        """Take note that a copy has answered a command, or prepare an error answer if it failed."""
        self._asked.discard(name)
        if not fault:
            self._let_go(name)
        else:
            text = f"error: the manager of vrm has not made the answer: {fault}"
            self._unanswered[name] = {"ok": False, "text": text, "out": "", "err": f"{text}\n", "code": 1}

    def _reply_to(self, name: str, command: command_files.Command) -> command_files.Command | Question:
        try:
            with reading(self.live.journal):
                for part in self.live.parts:
                    carry_out_command = part.commands().get(command["do"])
                    if carry_out_command is not None:
                        return carry_out_command(command, name)
                raise InputFault(f"there is no command {command['do']}")
        except InputFault as error:
            return {"ok": False, "text": f"not understood: {show(str(error), 500)}"}
