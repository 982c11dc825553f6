"""Commands that wait for a job: `srun` and `salloc` outside of jobs, `mpirun` called by programs that do not know
about a batch system, and `sattach`.

Each of them except `sattach` submits a script job that continues as what was typed: as a step on all of its cores,
as the command, or as the real mpirun, which the job restricts to its cores. The client prints the job's output as it
comes and returns its exit status; its standard input is the job's where both run on the same machine. The job ends
when the client ends."""

from __future__ import annotations

import os
import re
import shlex
import signal
from functools import partial
from collections.abc import Callable, Iterator, Mapping, Sequence

from vrm.ext.slurm.forms import nodelists, state_names
from vrm.ext.slurm.calls import shell
from vrm.ext.slurm.calls.answers import Answer, JoinStep, FileNeeded, CallRefused, Reply, DeferredAnswer
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.forms.options import Options
from vrm.ext.slurm.sbatch import ask, components
from vrm.ext.slurm.calls.wire import STDIN, Call
from vrm.model import JobState
from vrm.ext.steps.options import OF_JOBS, known, parts_of

SRUN = Options("srun", known("srun"), "[options] PROGRAM [ARGUMENTS]")
"""Options of srun; the srun inside the job reads the options of the step again."""

SALLOC = Options("salloc", known("salloc"), "[options] [[--] COMMAND [ARGUMENTS]]")
SATTACH = Options("sattach", "Q quiet n -, v verbose n -", "JOB[.STEP]")
MPIRUN = Options("mpirun", "")

PART = 1 << 20
"""Bytes of output that are passed on at a time."""

GRANTED = "salloc: Granted job allocation %d\n"
"""What salloc prints when its job starts; clients read the id from it."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals to the client that end its job; other signals are sent to the job's processes."""


def srun(call: Call, handler: RequestHandler) -> Reply:
    """Run a step in a job of its own."""
    parts = parts_of(call.arguments)
    (chosen, rest), *others = [SRUN.parse(part, mixed=False) for part in parts]
    if not rest or not all(words for _, words in others):
        raise SRUN.error("No command given to execute.")
    if "jobid" in chosen:
        return _join_step(chosen["jobid"], call, handler)
    if any("het-group" in given or "pack-group" in given for given, _ in ((chosen, rest), *others)):
        raise SRUN.error("--het-group names components of the job in which srun runs, and this is outside of jobs")
    job = {key: value for key, value in chosen.items() if key not in ("output", "error", "input", "export")}
    # These options apply to the job, not to its step.
    typed = [SRUN.without(part, "nodelist", "exclude", *OF_JOBS) for part in parts]
    if "pty" in chosen:
        return _enter(call, handler, SRUN, job, rest[0])
    words = [word for part in typed for word in (":", *part)][1:]
    return _submit(call, handler, SRUN, job, ["srun", *words], rest[0], "quiet" not in chosen,
                   others=[given for given, _ in others])


def _join_step(text: str, call: Call, handler: RequestHandler) -> Reply:
    """Run a step in a running job: the client becomes its srun."""
    found, missing = SRUN.checked(f"Invalid job id {text}", state_names.find, handler, text)
    if missing or len(found) != 1:
        raise SRUN.error(f"--jobid={text}: " + ("Invalid job id specified" if missing else "name one job of the array"))
    try:
        return JoinStep(variables=handler.entry_variables(found[0].id, call.env))
    except CallRefused as refused:
        raise SRUN.error(f"--jobid={text}: {refused}") from refused


_IDLE_COMMAND = ("sleep", "2147483647")
"""Command of a job that only exists for the steps that enter it; it ends at its time limit or by scancel."""


def salloc(call: Call, handler: RequestHandler) -> Reply:
    """Run a command on the cores of a job."""
    (chosen, *others), rest = components(SALLOC, call.arguments)
    if "no-shell" in chosen and not rest:
        return _submit(call, handler, SALLOC, chosen, _IDLE_COMMAND, "interactive", "quiet" not in chosen,
                       AllocationAnswer, others)
    if "no-shell" in chosen:
        raise SALLOC.error(f"--no-shell runs no command; leave out {rest[0]}, or the option")
    if not rest:
        return _enter(call, handler, SALLOC, chosen, "interactive", others)
    return _submit(call, handler, SALLOC, chosen, rest, rest[0], "quiet" not in chosen, CommandAnswer, others)


def sattach(call: Call, handler: RequestHandler) -> Reply:
    """Print what a running job has printed and prints, until it ends. Steps print to the same files as their job."""
    _, rest = SATTACH.parse(call.arguments)
    if len(rest) != 1:
        raise SATTACH.error("name one job or step that runs, for example sattach 12.0")
    found, missing = SATTACH.checked(f"Invalid job id {rest[0]}", state_names.find, handler, rest[0].partition(".")[0])
    if missing or len(found) != 1:
        raise SATTACH.error(f"{rest[0]}: " + ("Invalid job id specified" if missing else "name one job of the array"))
    if not found[0].launched or found[0].state.ended:
        raise SATTACH.error(f"{rest[0]}: the job does not run")
    return OutputAnswer(handler, found[0].id, SATTACH.command, False)


def _enter(call: Call, handler: RequestHandler, options: Options, chosen: Mapping[str, str], program: str,
           others: Sequence[Mapping[str, str]] = ()) -> Reply:
    """Submit a job that only exists for what its client runs in it."""
    return _submit(call, handler, options, chosen, ("/bin/sh", "-c", shell.SCRIPT), program,
                   "quiet" not in chosen and options is SALLOC, partial(ShellAnswer, call.env), others)


_COUNTS = ("n", "np", "c")
_PER_NODE = ("npernode", "ppn", "perhost", "N")
_HOSTS = ("H", "host", "hosts", "hostfile", "machinefile", "machine", "f", "rankfile", "rf", "nolocal")
_VALUES = {**dict.fromkeys(("mca", "gmca", "omca", "prtemca", "pmixmca", "env", "genv"), 2), **dict.fromkeys((
    *_COUNTS, *_PER_NODE, "x", "map-by", "bind-to", "rank-by", "wdir", "wd", "path", "output", "output-filename",
    "display", "genvlist", "envlist", "timeout", "prefix", "stdin", "personality", "report-uri", "runtime-options",
    "rmk", "bootstrap", "launcher", "iface", "tune", "am", "s", "outfile-pattern", "errfile-pattern"), 1)}
"""Number of values that follow an option of mpirun."""


def mpirun(call: Call, handler: RequestHandler) -> Reply:
    """Run the real mpirun in a job with as many tasks as mpirun has ranks."""
    tasks, cores, per_node, program = _ranks(call.name, call.arguments)
    chosen = {"ntasks": str(tasks), "cpus-per-task": str(cores)}
    if per_node:
        chosen["ntasks-per-node"] = str(per_node)
    return _submit(call, handler, MPIRUN, chosen, [call.name, *call.arguments], program, False)


def _ranks(name: str, arguments: Sequence[str]) -> tuple[int, int, int, str]:
    """Return the number of ranks that an mpirun starts, the cores of each, the maximum number per node (0: any) and
    the program. Raises CallRefused if the arguments do not say them."""
    total, cores, per_node, program = 0, 1, 0, ""
    left = list(arguments)
    while left:
        found = 0
        for option, value in _launcher_options(left):
            if option in _COUNTS:
                found = _whole(value)
            elif option in _PER_NODE:
                per_node = _whole(value)
            wide = re.search(r"\bpe=(\d{1,4})\b", value.lower())
            cores = max(cores, int(wide[1])) if wide else cores
        if not left:
            break
        if not found:
            raise MPIRUN.error(f"how many ranks is it to start? For example {name} -n 4 {left[0]}")
        total, program = total + found, program or left[0]
        left = left[left.index(":") + 1:] if ":" in left else []
    if not program:
        raise MPIRUN.error(f"which program? For example {name} -n 4 PROGRAM")
    return total, cores, per_node, program


def _launcher_options(left: list[str]) -> Iterator[tuple[str, str]]:
    """Remove the options at the beginning of the list and yield each with its value ("": none)."""
    while left and left[0].startswith("-") and left[0] != "--":
        option, equals, value = left.pop(0).lstrip("-").partition("=")
        if option in _HOSTS:
            raise MPIRUN.error(f"vrm chooses the nodes and cores; leave out the option {option}")
        needed = _VALUES.get(option, 0)
        needed -= needed == 1 and bool(equals)
        if len(left) < needed:
            raise MPIRUN.error(f"the option {option} needs a value")
        yield option, left[0] if needed == 1 else value
        del left[:needed]


def _whole(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text):
        raise MPIRUN.error(f"`{text}` is not a number of ranks")
    return int(text)


def _submit(call: Call, handler: RequestHandler, options: Options, chosen: Mapping[str, str], typed: Sequence[str],
            program: str, says: bool, waits: Callable[..., AttachedAnswer] | None = None,
            others: Sequence[Mapping[str, str]] = ()) -> Reply:
    """Submit a job that continues as what was typed; return the object that waits for it. `others`: see `ask`."""
    named: list[Mapping[str, str]] = []
    for each in (chosen, *others):
        found = nodelists.read({key: value for key, value in each.items() if key != "chdir"}, options, call)
        if isinstance(found, FileNeeded):
            return found
        named.append(found)
    asked = ask(named[0], options, call, handler, os.path.basename(program) or program, output=False,
                script=_script(call, typed), others=named[1:])
    try:
        return (waits or AttachedAnswer)(handler, handler.submit(asked)[0], options.command, says)
    except CallRefused as refused:
        raise options.error(f"Unable to allocate resources: {refused}") from refused


def _script(call: Call, typed: Sequence[str]) -> bytes:
    """Return the job's script."""
    pid, _, host = call.env.get(STDIN, "").partition("@")
    lines = ["#!/bin/sh"]
    if pid.isdigit():
        there = f"/proc/{pid}/fd/0"
        lines += [f"if [ \"$(uname -n)\" = {shlex.quote(host)} ] && (: <{there}) 2>/dev/null; then exec <{there}; fi"]
    lines += [f"exec {shlex.join(typed)}"]
    return os.fsencode("\n".join(lines) + "\n")


class AttachedAnswer(DeferredAnswer):
    """Waits for a job: passes on its output and signals to it, and ends it when the client is gone. `says`: print,
    as Slurm does, that the job is queued and that it starts."""

    at_start = ""
    """Message that is printed when the job has started, with `%d` for its id."""

    def __init__(self, handler: RequestHandler, job_id: int, command: str, says: bool) -> None:
        self.id = job_id
        self._handler, self._command, self._says = handler, command, says
        self._text = {1: b"", 2: b""}
        self._read: dict[int, int] = {1: 0, 2: 0}
        self._asked = self._started = self._over = False
        self._by = 0

    def poll(self) -> Answer | None:
        """Return the exit status of the job when it has ended and all of its output was passed on."""
        found = self._handler.jobs([self.id])
        if not found:
            return Answer(err=f"{self._command}: error: job {self.id} is no longer known\n", code=1)
        job = found[0]
        self._say(job)
        over = job.state.ended and not job.ending
        more = self._follow(job)
        if not over or more:
            return None
        self._over = True
        code = 128 + self._by if self._by and job.state is JobState.CANCELLED else job.code or 0
        told = job.state in (JobState.CANCELLED, JobState.TIMEOUT, JobState.REFUSED)
        why = f": {job.reason}" if job.reason else ""
        return Answer(err=f"{self._command}: error: job {self.id} {job.state.value}{why}\n" if told else "",
                      code=code or int(job.state is not JobState.COMPLETED))

    def _say(self, job: JobView) -> None:
        started = bool(job.nodes)
        if self._says and not self._asked and not started and not job.state.ended:
            self._text[2] += f"{self._command}: job {self.id} queued and waiting for resources\n".encode()
            self._asked = True
        if started and not self._started:
            self._started = True
            if self._asked:
                self._text[2] += f"{self._command}: job {self.id} has been allocated resources\n".encode()
            if self._says and self.at_start:
                self._text[2] += (self.at_start % self.id).encode()

    def _follow(self, job: JobView) -> bool:
        """Read new output of the job; return whether there may be more."""
        more = False
        out, err, _ = self._handler.files(job)
        for number, path in ((1, out), (2, err)):
            if not path or not self._started or (number == 2 and err == out):
                continue
            try:
                with open(path, "rb") as file:
                    if os.fstat(file.fileno()).st_size < self._read[number]:
                        self._read[number] = 0  # the job was started again
                    file.seek(self._read[number])
                    data = file.read(PART)
            except OSError:
                continue
            self._read[number] += len(data)
            self._text[number] += data
            more |= len(data) == PART
        return more

    def take(self) -> tuple[bytes, bytes]:
        """Return the output to print."""
        out, err = self._text[1], self._text[2]
        self._text = {1: b"", 2: b""}
        return out, err

    def gone(self) -> None:
        """The client was killed: end its job."""
        self._end()

    def signalled(self, number: int) -> None:
        """End the job at a signal to the client, or pass the signal on."""
        if number in ENDING:
            self._by = self._by or number
            self._end()
        elif number != signal.SIGCONT:
            self._end(number)

    def _end(self, number: int = 0) -> None:
        if not self._over:
            try:
                self._handler.cancel(self.id, number)
            except CallRefused:  # it has ended meanwhile
                pass


class CommandAnswer(AttachedAnswer):
    """Waits for the command of salloc."""

    at_start = GRANTED


class OutputAnswer(AttachedAnswer):
    """Prints the output of a job; the job continues when the client ends."""

    def poll(self) -> Answer | None:
        """Return the exit status of the job, or that of a client ended by a signal."""
        return Answer(code=128 + self._by) if self._by else super().poll()

    def _end(self, number: int = 0) -> None:
        """Do nothing: neither a signal to the client nor its end affects the job."""


class AllocationAnswer(AttachedAnswer):
    """Waits until a job has started and then lets it run on its own. `granted` is the message printed then."""

    granted = GRANTED

    def poll(self) -> Answer | None:
        """Return the answer when the job has started, or when it has ended before that."""
        job, = self._handler.jobs([self.id])
        if not job.launched:
            return super().poll()
        self._say(job)
        self._over = True
        self._text[2] += (self.granted % self.id).encode() * self._says
        return self._granted(job)

    def _granted(self, job: JobView) -> Answer:
        return Answer()


class ShellAnswer(AllocationAnswer):
    """Waits until a job has started; then its client runs a shell or step in the job (see
    `vrm.ext.slurm.calls.shell`)."""

    closing = ""
    """Message that the client prints at its end, with `%d` for the job's id."""

    def __init__(self, env: Mapping[str, str], handler: RequestHandler, job_id: int, command: str, says: bool) -> None:
        super().__init__(handler, job_id, command, says)
        self._env = env

    def _granted(self, job: JobView) -> Answer:
        tasks, closing = str(job.job.procs), self.closing % self.id if self.closing else shell.NO_MESSAGE
        return JoinStep(variables={**self._handler.entry_variables(self.id, self._env), "SLURM_NTASKS": tasks,
                                   "SLURM_NPROCS": tasks, shell.ENTERED_VARIABLE: closing})


__all__: list[str] = ["AttachedAnswer", "mpirun", "salloc", "sattach", "srun"]
