"""Defects that are inserted into vrm, one at a time: the world, or a plain test named in `ELSEWHERE`, must find each.
`mutations.txt` records in how many worlds each was found last."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from world.aims import CALLS_SINCE, FOLDS_SINCE
from world.plan import FOLDS, SOCKET

RECORD = Path(__file__).with_name("mutations.txt")
"""The defects, each with the number of worlds in which it was found last."""

MOST = 20_000
"""Worlds in which a defect must be found."""


class Mutation(NamedTuple):
    """A defect: `changes` are of modules, a text that is there once, and what stands there instead. `earlier`: vrm has had
    it, as the commit or review that is named tells."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    earlier: str = ""


ALL = (
    # What vrm has had: found by this world, or told by the commit that mended it.
    Mutation("a refused job is cancelled after a restart", ((
        "vrm.run.job_book", "                if state is not entry.state:", "                if False:"),), "seed 7"),
    Mutation("jobs.csv stays closed on a read-only disk", ((
        "vrm.results.jobs", "            with suppress(OSError):  # a disk that is", "            if True:  # a disk that is"), (
        "vrm.results.jobs", "        if self._torn is not None:\n", "        if False:\n")), "seed 11"),
    Mutation("zeros in jobs.csv end the run", ((
        "vrm.results.jobs", "            end = _first_zero(file)\n", "            end = size\n"),), "seed 26"),
    Mutation("a status that could not be written goes with its supervisor", ((
        "vrm.live.spawn.supervisor", "    if told and (problem is None or link.recorded()):", "    if told:"),), "seed 222"),
    Mutation("a cancel is forgotten when a job is being ended", ((
        "vrm.live.manager.jobs.ends", '(intent in ("cancel", "requeue") and intent != running.intent)', "False"),), "seed 1095"),
    Mutation("a job that waits again is twice in jobs.csv", ((
        "vrm.live.manager.records.records", "        if self._stale:\n", "        if False:\n"),), "seed 2311"),
    Mutation("the name of the journal is not synced", ((
        "vrm.run.journal.files", "        if not self._end:  # it is new", "        if False:  # it is new"),), "seed 10256"),
    Mutation("signals and ends are compared by a clock that is set", ((
        "vrm.live.manager.jobs.verdict", "status.before(told)", "status.end < told"), (
        "vrm.live.manager.jobs.ends", "time.time(), time.monotonic(), **origin", "time.time(), time.time(), **origin"), (
        "vrm.system.processes", "            self.signalled_at = time.monotonic()", "            self.signalled_at = time.time()")), "seed 100900"),
    Mutation("a status is let go before the journal has it", ((
        "vrm.live.manager.jobs.ends", "if self.live.spawner.unwritten(status) and self.live.synced():", "if True:"),), "seed 2411"),
    Mutation("files of a start go before the journal says so", ((
        "vrm.live.manager.jobs.ends", "for path in self._left_by(job.id)) and self.live.synced():",
        "for path in self._left_by(job.id)):"),), "review of ends.py"),
    Mutation("a refusal that a crash kept out of the journal is forgotten", ((
        "vrm.live.manager.takeover.resuming", "            if never:  # the machine", "            if False:  # the machine"),), "084f4bc5"),
    Mutation("a command is carried out again after a crash", ((
        "vrm.live.manager.command_reader", "if name in self._done and not repeated else", "if False else"),), "9193622a"),
    Mutation("the lock is free while a launch is under way", ((
        "vrm.live.manager.manager", "            live.spawner.hold = (lock,)\n", "            live.spawner.hold = ()\n"),), "0.1"),
    Mutation("a supervisor lost before the job began begins it twice", ((
        "vrm.live.spawn.spawner", "marker is None and", "True and"),), "32d20987"),
    Mutation("zeros amid records of which nobody knows are damage", ((
        "vrm.run.journal.files", "            if safe >= 0:\n", "            if False:\n"),), "seed 99"),
    Mutation("the first record of a journal is not synced alone", ((
        "vrm.live.manager.takeover.resuming", "        live.journal.sync()  # the first", "        pass  # the first"),)),
    Mutation("a status of an earlier start in the same boot is that of the last one", ((
        "vrm.live.manager.takeover.recovery", " or not _before(status.tick, under, start):", " or True:"),), "seed 340"),
    Mutation("a marker of an earlier start in the same boot is that of the last one", ((
        "vrm.live.manager.takeover.recovery", " or _before(marker.tick, under, start - SOON)", ""),), "seed 795819536946"),
    Mutation("a command that has its answer is carried out by the next manager", ((
        "vrm.run.command_files", "(over or (boot", "(False or (boot"), (
        "vrm.run.command_files", "            remove(run, name)  # which", "            pass  # which")), "seed 795820256999"),
    Mutation("a job whose end was not recorded takes the cores of one that runs", ((
        "vrm.live.manager.takeover.resuming", "SUPERSEDED if job.id in over", "RUNNING if job.id in over"),), "seed 6"),
    Mutation("what was cut of jobs.csv comes back between its lines", ((
        "vrm.results.jobs", "                os.fsync(file.fileno())  # or", "                pass  # or"), (
        "vrm.results.jobs", "        os.fsync(self._file.fileno())  # see", "        pass  # see")), "seed 243"),
    Mutation("the relay ends a client once more that went with its node", ((
        "vrm.live.relay.relay", "        if client not in self.clients:\n", "        if False:\n"),), "seed 327"),
    Mutation("a start that nobody knows is a time", ((
        "vrm.live.manager.records.snapshot", "if moment < math.inf}", "if True}"),), "seed 109"),
    Mutation("a node that was lost for a moment is used before it is swept", ((
        "vrm.live.nodes.agents", "        node.rising = facts if back or not node.up else None\n",
        "        if back and node.up:\n            self._ready.append(NodeUp(node.host, facts))\n"
        "        node.rising = None if node.up else facts\n"),), "seed 2148"),
    Mutation("jobs start where a lost one may still run", ((
        "vrm.live.manager.jobs.launches", "sweeping(start.job.id, start.booking.placement)", "sweeping(start.job.id)"),), "seed 2148"),
    Mutation("a job whose marker went with the manager's machine runs on elsewhere", ((
        "vrm.live.manager.takeover.resuming", "        if past.run:  # this", "        if False:  # this"),), "seed 1184"),
    Mutation("what was on its way to a node that was given up is done there", ((
        "vrm.live.runner.runner", "        if now > heard + DOUBT:", "        if False:"), (
        "vrm.live.runner.runner", "            if not part or not self.more.poll(0):", "            if True:")), "seed 224"),
    Mutation("nobody hears the agent of this machine where others were left out", ((
        "vrm.live.nodes.node_watch", "(not self._alone or agents.begun)", "not self._alone"),), "seed 4016"),
    Mutation("a relay that ends at once ends the manager", ((
        "vrm.live.relay.process", "        with contextlib.suppress(BrokenPipeError):  # it", "        if True:  # it"),), "seed 1150"),
    Mutation("a command file that a full disk cannot move stays for ever", ((
        "vrm.live.manager.command_reader", "            if error.errno in command_files.DISK:", "            if False:"),), "reviewed"),
    Mutation("a job that may run on another node starts here before that is swept", ((
        "vrm.live.manager.takeover.resuming", "filter(self._may_be_left, chain(past.started, past.again))", "()"),), "seed 6040"),
    Mutation("only the next manager knows that a job may still run on another node", ((
        "vrm.live.manager.takeover.resuming", "filter(self._may_be_left, chain(past.started, past.again))",
        "[job.id for job, _ in past.running if self._may_be_left(job.id)]"),), "seed 795887545587"),
    Mutation("a script that the disk does not take now is refused", ((
        "vrm.live.manager.jobs.intake", "            if again and error.errno in DISK:\n", "            if False:\n"),), "seed 7466"),
    Mutation("the name of a script's copy is not on disk", ((
        "vrm.run.rundir", "        os.replace(temporary, path)\n        sync_directory(self.scripts)\n", "        os.replace(temporary, path)\n"), (
        "vrm.run.rundir", "                sync_directory(self.scripts)  # who", "                pass  # who")), "seed 6063"),
    Mutation("a job that could not be forked has failed for the next manager", ((
        "vrm.live.manager.takeover.resuming", 'if running.intent in ("", "timeout") and self._may_start', "if False and self._may_start"),), "seed 6282"),
    Mutation("others have the cores of a job that failed on another node before that is swept", ((
        "vrm.live.nodes.node_watch", "lost=not well", "lost=False"),), "seed 795835153643"),
    Mutation("the session of a supervisor that has ended is known by its number alone", ((
        "vrm.live.manager.jobs.launches", "event.supervisor_pid, event.leader\n", "event.supervisor_pid, None\n"),), "seed 795840948495"),
    Mutation("a job whose cores others have when it is taken over is not swept", ((
        "vrm.live.manager.jobs.ends", "        else:\n            self.live.watch.sweep(", "        elif not running.former:\n            self.live.watch.sweep("),), "seed 795817095401"),
    Mutation("a command that the death of the machine brought back is carried out", ((
        "vrm.run.command_files", "(boot and _of_before(command, boot))", "False"),), "seed 795823051152"),
    Mutation("a supervisor that has an end to write keeps its job from the next start", ((
        "vrm.live.spawn.spawner", " and not marker.end_idle(DYING)", ""),), "seed 795823061072"),
    Mutation("who has its cores back leaves them to its borrower when it ends", ((
        "vrm.run.journal.history", "    if all(each.lender != found.lender", "    if False and all(each.lender != found.lender"),), "seed 795823056036"),
    Mutation("lent cores keep the numbers that they had among other nodes", ((
        "vrm.live.manager.takeover.resuming", "            codec.move_lends(", "            (lambda *_: None)("), (
        "vrm.run.journal.history", "        move_lends(lends, [", "        (lambda *_: None)(lends, [")), "seed 795823058256"),
    Mutation("a command is taken back that a manager carries out", ((
        "vrm.run.command_files", "fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),), "seed 795830863443"),
    # Others.
    Mutation("a job starts on lent cores before they are clear", ((
        "vrm.ext.lending.part", "if all(each.phase == LENT for each in", "if True or all(each.phase == LENT for each in"),)),
    Mutation("a lender is not moved from the cores that it lends", ((
        "vrm.ext.lending.nodes.masks", "                    os.sched_setaffinity(thread, cpus)\n", "                    pass\n"), (
        "vrm.ext.lending.nodes.masks", "changed = changed or not allowed <= cpus", "pass"))),
    Mutation("a coupled job has the ranks of its first program only", ((
        "vrm.live.manager.jobs.launches", "for (path, own, _), part in zip(wrapped, job.parts)]", "for (path, own, _), part in zip(wrapped[:1], job.parts)]"),)),
    Mutation("a replay does not know on how many ranks a moldable job runs", ((
        "vrm.run.journal.history", 'record.get("as")', "None"),)),
    Mutation("scancel ends nothing that waits", ((
        "vrm.ext.slurm.scancel", "handler.cancel(job.id, number if running else 0)", "job.state is JobState.QUEUED or handler.cancel(job.id, number)"),)),
    Mutation("the journal is not synced", ((
        "vrm.run.journal.files", "                os.fdatasync(self._fd)", "                pass"),)),
    Mutation("a job is launched before its start is on disk", ((
        "vrm.live.manager.jobs.launches", "        if not live.synced():\n            return\n        prepared",
        "        live.journal.show()\n        prepared"),)),
    Mutation("records that failed to be written are dropped", ((
        "vrm.run.journal.files", "            self._put(data)\n        self._end",
        "            try:\n                self._put(data)\n            except OSError:\n                self._pending.clear()\n"
        "                raise\n        self._end"),)),
    Mutation("a torn line of the journal is not cut", ((
        "vrm.run.journal.files", "        os.ftruncate(self._fd, self._end)\n        if self._end:",
        "        self._end = size\n        if self._end:"),)),
    Mutation("the intent to end a job is not synced", ((
        "vrm.live.manager.jobs.ends", "**origin)\n            self.live.synced()\n        if running.away", "**origin)\n        if running.away"),)),
    Mutation("commands are answered before they are on disk", ((
        "vrm.live.manager.command_reader", '        self.live.journal.sync()\n        if command.get("unasked")', '        if command.get("unasked")'),)),
    Mutation("a status in the marker is not looked for", ((
        "vrm.live.manager.takeover.recovery", "            status = _status_in(run.marker(job_id), job_id, under, start)  # written", "            pass  # written"),)),
    Mutation("the status is looked for before the supervisor", ((
        "vrm.live.manager.takeover.recovery", "        alive = marker.alive() if marker else False\n        status", "        status"), (
        "vrm.live.manager.takeover.recovery", "        if status is None and marker is not None and (alive",
        "        alive = marker.alive() if marker else False\n        if status is None and marker is not None and (alive"))),
    Mutation("a boot is not told from another", ((
        "vrm.live.manager.takeover.recovery", "gone or marker.boot != here.boot", "gone"),)),
    Mutation("a process is known by its number alone", ((
        "vrm.live.spawn.records", "stat is not None and stat.pid.started == self.started and", "stat is not None and"),)),
    Mutation("a job that never began has failed", ((
        "vrm.live.manager.takeover.resuming", '        if running.intent in ("cancel", "stop"):\n', "        if True:\n"),)),
    Mutation("jobs that a stop ended do not run again", ((
        "vrm.live.manager.takeover.resuming", "wanted = ended_unsuccessfully if failed else stopped", "wanted = ended_unsuccessfully if failed else (lambda entry: False)"),)),
    Mutation("the manager before has told a job to end, and this one does not", ((
        "vrm.live.manager.takeover.resuming", "found.what == recovery.RUNNING and intent:", "found.what == recovery.RUNNING and False:"),)),
    Mutation("cores are free before the processes are gone", ((
        "vrm.live.manager.jobs.ends", "            self.end_session(running, grace)\n",
        "            self.end_session(running, grace)\n            self.live.state.release_cores(running.job.id)\n            self.live.changed = True\n"),)),
    Mutation("what a lost supervisor's job has left runs on", ((
        "vrm.live.manager.jobs.ends", "        else:\n            self.end_session(running)\n\n    def look",
        "        else:\n            self._session_gone(running)\n\n    def look"),)),
    Mutation("a supervisor does not see that something is left", ((
        "vrm.live.spawn.supervisor", "    clean = alone and starting.has_no_children()\n", "    clean = True\n"),)),
    Mutation("nobody looks for what a run has left", ((
        "vrm.live.manager.manager", "        while left and not ending.poll", "        while False and not ending.poll"), (
        "vrm.live.manager.records.records", "        for outcome in outcomes:\n", "        for outcome in ():\n"))),
    Mutation("a supervisor forgets a status that could not be written", ((
        "vrm.live.spawn.supervisor", "    while problem is not None and time.monotonic() < last", "    while False and time.monotonic() < last"),)),
    Mutation("exit status 0 after a signal is success", ((
        "vrm.live.manager.jobs.verdict", "status.ok and status.before(told) and", "status.ok and"),)),
    Mutation("retries are not counted", (("vrm.run.job_book", "        entry.tries += retry\n", ""),)),
    Mutation("the end of a job is told before it is on record", ((
        "vrm.live.spawn.supervisor", "    release(kept)\n    problem = record(marker, status, text, sync)\n", "    problem = None\n"),)),
    Mutation("a hold is not recorded", (("vrm.run.state", '        self.record("hold", id=job_id)\n', ""),)),
    Mutation("a start that was taken back is not forgotten", ((
        "vrm.run.journal.history", '    past.forget(record["id"])\n    past.state.back', "    past.state.back"),)),
    Mutation("dependents of a job that ended are not told", ((
        "vrm.run.job_book", "        return self.dependencies.settle(entry, state, now)\n\n    def again", "        entry.state = state\n        return []\n\n    def again"),)),
    Mutation("a command file is written in place", ((
        "vrm.run.command_files", '        write_json(run.commands / name, {**command, "host": os.uname().nodename, "boot": boot_id()}, private=True)',
        "        (run.commands / name).write_text(json.dumps(command))"),)),
    Mutation("a marker is written in place", ((
        "vrm.live.spawn.supervisor", "    write(old, text, True, False)\n    os.rename(old, path)\n", "    write(path, text, True, False)\n"),)),
    Mutation("the exit code is that of another child", ((
        "vrm.live.spawn.supervisor", "            if child == pid:\n", "            if child:\n"),)),
    Mutation("the place in the queue file is not kept", ((
        "vrm.live.manager.jobs.intake", "Position(*past.position) if past.position else None", "None"), (
        "vrm.live.manager.jobs.intake", "taken=bool(past.lines)", "taken=False"))),
    Mutation("the walltime of jobs is not looked at after a restart", ((
        "vrm.live.manager.jobs.ends", "            elif running.begun and running.looked and not running.warned and now", "            elif running.session is not None and not running.taken_over and not running.warned and now"),)),
    Mutation("a call is answered before it is on disk", ((
        "vrm.ext.slurm.calls.server", "        if not self.live.synced():\n            return  # the replies wait until the disk accepts the journal", "        if False:\n            return  # the replies wait until the disk accepts the journal"),)),
    Mutation("a client whose manager was lost calls under another name", ((
        "vrm.ext.slurm.calls.client", "        return by_files(lost.call, run, lost.given)", '        return by_files(replace(lost.call, token=f"{lost.call.token}0"), run, lost.given)'),)),
    Mutation("the next manager does not know the jobs of a call", ((
        "vrm.ext.slurm.calls.server", "        self.handler.known = past.by_command\n", ""), (
        "vrm.ext.slurm.calls.server", "        self.file_calls.done = set(past.commands)\n", "        self.file_calls.done = set()\n"))),
    Mutation("records that came while the journal was folded are lost", ((
        "vrm.run.journal.files", "in lines(old, since, self.mark):", "in ():"),)),
    Mutation("a folded journal has its name before it is on disk", ((
        "vrm.run.journal.compaction", "        os.fsync(new)\n", ""), (
        "vrm.run.journal.files", "        os.fdatasync(file)\n", ""))),
    Mutation("the name of a folded journal is not synced", ((
        "vrm.run.journal.files", "            sync_directory(self._path.parent)\n            self._renamed", "            self._renamed"),)),
)
"""Those that the world must find."""

FOCUS = {
    "a status that could not be written goes with its supervisor": "full,readonly,quota,manager",
    "a cancel is forgotten when a job is being ended": "long,deaf,limited,cancel,manager@intent",
    "a job that waits again is twice in jobs.csv": "full@again,requeue",
    "signals and ends are compared by a clock that is set": "clock,manager",
    "a status is let go before the journal has it": "fork@start+full@pids+manager,full@exit+manager,failing",
    "files of a start go before the journal says so": "full@exit+manager,failing",
    "a refusal that a crash kept out of the journal is forgotten": "machine@job,large,submit",
    "a command is carried out again after a crash": "manager@job,submit",
    "the lock is free while a launch is under way": "stall@start+both",
    "a supervisor lost before the job began begins it twice": "supervisor,spare",
    "zeros amid records of which nobody knows are damage": "machine",
    "the first record of a journal is not synced alone": "machine@run,submit",
    "a status of an earlier start in the same boot is that of the last one": "machine,program",
    "a marker of an earlier start in the same boot is that of the last one": "readonly@again+both@start,readonly@again,failing",
    "a command that has its answer is carried out by the next manager": "readonly@replies+manager,submit,stop,term",
    "a job whose end was not recorded takes the cores of one that runs": "manager@start,manager@end",
    "what was cut of jobs.csv comes back between its lines": "full,machine,manager",
    "a node that was lost for a moment is used before it is swept": "runner@begin+stall_agent",
    "jobs start where a lost one may still run": "stall_agent@begin+stand_in",
    "a job whose marker went with the manager's machine runs on elsewhere": "machine@begin,machine@pids",
    "what was on its way to a node that was given up is done there": "cut@start,delay@start,cut@begin",
    "a relay that ends at once ends the manager": "relay",
    "a command file that a full disk cannot move stays for ever": "full,readonly,quota",
    "a job that may run on another node starts here before that is swept": "machine",
    "a script that the disk does not take now is refused": "full@run,full@queue,scripts,append",
    "others have the cores of a job that failed on another node before that is swept": "stall_agent@begin+stand_in",
    "a command that the death of the machine brought back is carried out": "machine@commands,machine@replies,submit,stop,term",
    "who has its cores back leaves them to its borrower when it ends": "manager@regained,manager@regain,lend,back,long",
    "a command is taken back that a manager carries out": "pause@look,pause@commands,submit",
    "records that failed to be written are dropped": "full,readonly,quota",
    "the intent to end a job is not synced": "machine@signal,cancel,manager@intent",
    "commands are answered before they are on disk": "pause@replies,submit",
    "a status in the marker is not looked for": "manager@exit+supervisor@pids",
    "the status is looked for before the supervisor": "manager@begin+pause@look",
    "a boot is not told from another": "machine",
    "a process is known by its number alone": "both@begin+supervisor,reuse",
    "the manager before has told a job to end, and this one does not": "manager@intent,long,long,cancel,cancel",
    "cores are free before the processes are gone": "deaf,long,cancel,requeue",
    "a supervisor does not see that something is left": "leaving,cancel,long",
    "a command file is written in place": "stall@commands,client@commands,submit",
    "a marker is written in place": "full,quota,both",
    "the place in the queue file is not kept": "manager@queue,append,insert,same",
    "the walltime of jobs is not looked at after a restart": "manager@begin,long,limited",
    "a call is answered before it is on disk": "machine@job,manager@job",
    "a client whose manager was lost calls under another name": "manager@job",
    "the next manager does not know the jobs of a call": "manager@job",
    **dict.fromkeys(("a folded journal has its name before it is on disk", "the name of a folded journal is not synced"), "machine@journal.new"),
}
"""Kinds of faults and acts without which a defect does nothing, by its name: the worlds that look for it have mostly these."""



def found(name: str) -> Mutation:
    """The mutation of this name."""
    return next(each for each in ALL if each.name == name)


KINDS = {**dict.fromkeys((
    "a job that may run on another node starts here before that is swept", "a job whose cores others have when it is taken over is not swept",
    "others have the cores of a job that failed on another node before that is swept", "jobs start where a lost one may still run",
    "a job whose marker went with the manager's machine runs on elsewhere", "what was on its way to a node that was given up is done there",
    "a node that was lost for a moment is used before it is swept", "nobody hears the agent of this machine where others were left out"), "hosts"),
    "the name of a script's copy is not on disk": "script",
    "a job starts on lent cores before they are clear": "lends",
    "a lender is not moved from the cores that it lends": "hosts+lends",
    "who has its cores back leaves them to its borrower when it ends": "lends",
    "a coupled job has the ranks of its first program only": "coupled", "scancel ends nothing that waits": "slurm",
    "a replay does not know on how many ranks a moldable job runs": "moldable",
    **dict.fromkeys(("a call is answered before it is on disk", "a client whose manager was lost calls under another name",
                     "the next manager does not know the jobs of a call"), "socket"),
    **dict.fromkeys(("records that came while the journal was folded are lost", "a folded journal has its name before it is on disk",
                     "the name of a folded journal is not synced"), "folds")}
"""Kinds of worlds without which a defect does nothing, by its name."""


class Elsewhere(NamedTuple):
    """Why worlds may not find a defect in a few minutes, and the plain test that fails with it each time."""

    why: str
    test: str


ELSEWHERE: dict[str, Elsewhere] = {
    "the manager before has told a job to end, and this one does not": Elsewhere(
        "a manager has to be killed between the record of a reason and the signal: the two are some calls apart",
        "tests/live/manager/takeover/test_resuming.py::test_what_the_manager_before_was_to_end_is_ended_by_the_next_one"),
    "a status is let go before the journal has it": Elsewhere(
        "the disk has to refuse a status and then the journal, and its manager to die before it takes that",
        "tests/live/manager/jobs/test_ends.py::test_nothing_of_a_start_goes_while_the_journal_does_not_say_that_the_job_waits_again"),
    "a status of an earlier start in the same boot is that of the last one": Elsewhere(
        "the marker in the same file has the time of its start, too, which is compared first: only one made in the last millisecond passes",
        "tests/live/manager/takeover/test_recovery.py::test_what_came_back_of_an_earlier_start_in_the_same_boot_is_not_that_of_this_one"),
    "a command that has its answer is carried out by the next manager": Elsewhere(
        "the disk has to refuse the removal of a command file, and its manager to die then",
        "tests/run/test_command_files.py::test_a_command_whose_answer_is_there_is_not_carried_out_again"),
    "what was cut of jobs.csv comes back between its lines": Elsewhere(
        "the machine has to die after a cut and bring some sectors of a line to disk that crosses two of them",
        "tests/results/test_jobs.py::test_what_is_cut_off_is_gone_from_the_disk_before_something_comes_in_its_place"),
    "a node that was lost for a moment is used before it is swept": Elsewhere(
        "a job has to start on a node in the milliseconds between its agent's first word and the sweep",
        "tests/live/nodes/test_agents.py::test_a_node_that_was_lost_for_a_moment_answers_again_when_it_is_swept"),
    "a job that may run on another node starts here before that is swept": Elsewhere(
        "the manager's machine has to die with a job on another node whose runner outlives that, and its next start to be on the manager's own",
        "tests/live/manager/takeover/test_resuming.py::test_nodes_are_swept_of_what_the_manager_before_may_have_left_and_what_it_had_started_starts_nowhere_before"),
    "only the next manager knows that a job may still run on another node": Elsewhere(
        "the manager's machine has to die with a job on another node, its marker to be torn, and the next manager to be killed before the sweep",
        "tests/live/manager/takeover/test_resuming.py::test_what_nobody_has_seen_end_starts_nowhere_before_the_nodes_are_swept_even_if_another_manager_was_killed_meanwhile"),
    "a command that the death of the machine brought back is carried out": Elsewhere(
        "the removal of a command file has to be in the log of the disk, and that of its answer's folder not",
        "tests/run/test_command_files.py::test_a_command_that_the_death_of_the_machine_brings_back_is_not_carried_out"),
    "who has its cores back leaves them to its borrower when it ends": Elsewhere(
        "a lender has to end between the return of its cores and the end of the job that had them",
        "tests/run/test_lends.py::test_who_has_taken_its_cores_back_and_ends_leaves_nothing_to_the_borrower"),
}
"""The defects that worlds find seldom, by their names."""


def recorded() -> dict[str, int]:
    """In how many worlds each defect was found last."""
    lines = [line for line in RECORD.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {name: int(worlds) for worlds, name in (line.strip().split(maxsplit=1) for line in lines)}


def record(found: Mapping[str, int]) -> None:
    """Write that again."""
    known = {**recorded(), **found}
    rows = [f"{known[each.name]:6d} {each.name}" for each in ALL if each.name in known]
    RECORD.write_text("# In how many worlds the defects of mutations.py were found; `python3 tasks.py world --mutations` writes it.\n"
                      + "".join(f"{row}\n" for row in rows), encoding="utf-8")


def seeds_until_found(mutation: Mutation, first: int, minutes: float = 3.0) -> tuple[int, str]:
    """How many worlds it took, and what was wrong then; 0 when it was not found. The seed by which vrm's defect was found
    comes before all others, where its world is still the same."""
    before, seed = mutation.earlier.partition("seed ")[::2]
    if seed and not before:
        said = _tried(mutation, int(seed), 1, minutes)
        if said[0]:
            return said
    since = {SOCKET: CALLS_SINCE, FOLDS: FOLDS_SINCE}.get(KINDS.get(mutation.name, ""), first)
    return _tried(mutation, since, MOST, minutes)


def _tried(mutation: Mutation, first: int, seeds: int, minutes: float) -> tuple[int, str]:
    script = [sys.executable, str(Path(__file__).with_name("run.py")), "--first", str(first), "--seeds", str(seeds), "--minutes",
              str(minutes), "--stop", "--mutation", mutation.name, "--focus", FOCUS.get(mutation.name, ""), "--worker", f"{first},1", "--kind", KINDS.get(mutation.name, "")]
    done = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith('{"failed"') and not fails(json.loads(line)["failed"], FOCUS.get(mutation.name, "")):
            said = json.loads(line)
            return said["failed"] - first + 1, said["wrong"][0].strip().splitlines()[0]
    return 0, done.stdout.strip()[-300:] if done.returncode else ""


def fails(seed: int, focus: str) -> bool:
    """Whether a world fails without a defect, too: then it has found none."""
    script = [sys.executable, str(Path(__file__).with_name("run.py")), "--seed", str(seed), "--focus", focus, "--whole"]
    return subprocess.run(script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0


def plain_test_fails(mutation: Mutation) -> bool:
    """Whether the plain test of a defect fails in a copy of vrm that has it."""
    house = Path(__file__).parents[2]
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("vrm", "tests"):
            shutil.copytree(house / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for module, old, new in mutation.changes:
            path = copy / f"{module.replace('.', '/')}.py"
            path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(house / "pyproject.toml"),
                               "--rootdir", folder, ELSEWHERE[mutation.name].test], cwd=folder, env={**os.environ, "PYTHONPATH": folder},
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 1


def all_found(arguments: argparse.Namespace) -> int:
    """Try each; the exit status. Those count that neither worlds nor a plain test find."""
    tried, counts, rare = ALL[arguments.skip:], dict[str, int](), 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(partial(seeds_until_found, first=1, minutes=arguments.minutes), tried)
        for mutation, (seeds, wrong) in zip(tried, results):
            if seeds:
                counts[mutation.name] = seeds
            if not seeds and mutation.name in ELSEWHERE and plain_test_fails(mutation):
                rare += 1
                print(f"       rare  {mutation.name}: {ELSEWHERE[mutation.name].why}; {ELSEWHERE[mutation.name].test} fails", flush=True)
                continue
            print(f"{f'{seeds:5d} seeds' if seeds else '  NOT FOUND'}  {mutation.name}"
                  + f" (earlier: {mutation.earlier})" * bool(mutation.earlier) + f": {wrong[:200]}", flush=True)
    record(counts)
    print(f"{len(counts)} of {len(tried)} found by worlds, {rare} others by plain tests only")
    return int(len(counts) + rare < len(tried))
