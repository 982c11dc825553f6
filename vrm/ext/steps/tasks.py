"""Runs the processes of a step and waits for them: its tasks, or the launcher that starts them."""

from __future__ import annotations

import _signal
import os
import select
import sys
import time

from vrm.ext.steps.guard import Guard, lives
from vrm.ext.steps.label import LineLabeller

KILLED_AFTER = 5.0
"""Seconds between SIGTERM and SIGKILL when tasks are ended."""

LOOK = 0.5
"""Seconds between two checks whether the job still runs, for a step started from outside the job."""

KILL_WINDOW = 1.0
"""Seconds within which a second Ctrl-C kills at once."""

FORWARDED_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1,
                     _signal.SIGUSR2, _signal.SIGCONT, _signal.SIGALRM)


class Process:
    """A process to start: its command, environment, CPUs (None: those of this process), and the open files of its
    standard input, output and error. `control`: the pipe through which it gets signals, if the kernel cannot deliver
    them."""

    __slots__ = ("words", "env", "cpus", "files", "label", "control")

    def __init__(self, words: list[str], env: dict[str, str], cpus: list[int] | None,
                 files: tuple[int, int, int], label: bytes = b"", control: int = -1) -> None:
        self.words, self.env, self.cpus, self.files, self.label = words, env, cpus, files, label
        self.control = control


class RunningStep:
    """The processes of a step. `codes` are their exit statuses as a shell shows them, by their numbers.

    `own_groups`: each process leads a process group. `leaders`: signals except SIGKILL are sent only to the
    processes, which pass them on, and not to their groups. `kill_on_bad_exit`: when one fails, the others are ended.
    `limit`: their time limit in seconds. `ended`: their numbers in the order of their ends. `feeder`: the process
    that writes their input (0: none). `control`: a pipe through which signals for all processes come; they are ended
    when its writer closes it. `marker`: a file ("": none) whose removal ends all processes."""

    def __init__(self, guard: Guard, own_groups: bool = True, leaders: bool = False,
                 kill_on_bad_exit: bool = False,
                 limit: float | None = None, control: int = -1) -> None:
        self.codes: dict[int, int] = {}
        self.ended: list[int] = []
        self.timed_out = self.cancelled = False
        self.killed_by = self.feeder = 0
        self.marker = ""
        self._guard, self._own, self._leaders, self._kill = guard, own_groups, leaders, kill_on_bad_exit
        self._pids: dict[int, int] = {}
        self._control = control
        self._controls: dict[int, int] = {}
        self._killed_remotely: set[int] = set()
        self._groups: list[int] = []
        self._labelled: list[LineLabeller] = []
        self._got: list[int] = []
        self._interrupted = 0.0
        self._limit = None if limit is None else time.monotonic() + limit
        self._kill_at: float | None = None
        self._wake, told = os.pipe()
        os.set_blocking(told, False)
        os.set_blocking(self._wake, False)
        _signal.set_wakeup_fd(told)
        for number in (*FORWARDED_SIGNALS, _signal.SIGCHLD):
            if _signal.getsignal(number) != _signal.SIG_IGN or number == _signal.SIGCHLD:
                _signal.signal(number, lambda got, frame: self._got.append(got))

    def start(self, number: int, process: Process) -> None:
        """Start a process."""
        pipes = [os.pipe(), os.pipe()] if process.label else []
        # A signal that comes before the program runs is meant for it, too: signals are blocked until the child has
        # reset the handlers.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, FORWARDED_SIGNALS)
        pid = os.fork()
        if not pid:
            self._become(process, pipes)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        if self._own:
            try:
                os.setpgid(pid, pid)
            except OSError:  # it runs the program already
                pass
            self._guard.started(pid)
        self._pids[pid] = number
        if process.control >= 0:
            self._controls[pid] = process.control
        self._groups.append(pid)
        for (source, target), to in zip(pipes, process.files[1:]):
            os.close(target)
            self._labelled.append(LineLabeller(source, to, process.label))

    def _become(self, process: Process, pipes: list[tuple[int, int]]) -> None:
        """Become the process."""
        try:
            if self._own:
                os.setpgid(0, 0)
            _signal.set_wakeup_fd(-1)
            for number in (*FORWARDED_SIGNALS, _signal.SIGCHLD):
                if _signal.getsignal(number) != _signal.SIG_IGN:
                    _signal.signal(number, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
            for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
                _signal.signal(number, _signal.SIG_DFL)
            files = [process.files[0], *(target for _, target in pipes)] if pipes else list(process.files)
            files = [os.dup(handle) if handle < 3 else handle for handle in files]
            for number, handle in enumerate(files):
                os.dup2(handle, number)
            if process.cpus:
                os.sched_setaffinity(0, process.cpus)
            os.closerange(3, 256)
            os.execve(process.words[0], process.words, process.env)
        except OSError as error:
            os.write(2, f"srun: error: {process.words[0]}: {error.strerror}\n".encode(errors="replace"))
            os._exit(error.errno or 1)

    def wait(self) -> None:
        """Wait until all processes have ended and their output is copied."""
        while self._pids or self._labelled:
            self._reap()
            if not self._pids and not self._labelled:
                break
            timeout = None
            due = [at for at in (self._limit, self._kill_at) if at is not None]
            due += [time.monotonic() + LOOK] * bool(self.marker)
            if due:
                timeout = max(0.0, min(due) - time.monotonic())
            try:
                ready = select.select([self._wake, *(each.source for each in self._labelled),
                                       *([self._control] if self._control >= 0 else [])], [], [], timeout)[0]
            except InterruptedError:
                ready = []
            if self._wake in ready:
                os.read(self._wake, 4096)
            if self._control in ready:
                self._hear()
            self._labelled = [each for each in self._labelled if each.source not in ready or each.copy()]
            self._act()
        for group in self._groups if self._own else ():  # processes that the tasks have left behind
            if lives(group):
                self._send(group, _signal.SIGKILL)
        if self.feeder:
            os.kill(self.feeder, _signal.SIGKILL)
        _signal.set_wakeup_fd(-1)

    def _hear(self) -> None:
        """Receive signals from the control pipe; at its end, end all processes."""
        numbers = os.read(self._control, 64)
        self._got += numbers
        if not numbers:
            self._control = -1
            self.end()

    def _act(self) -> None:
        now = time.monotonic()
        while self._got:
            self._pass_on(self._got.pop(0), now)
        if self._limit is not None and now >= self._limit:
            self._limit, self.timed_out = None, True
            self.end()
        if self.marker and not os.path.exists(self.marker):
            self.marker, self.cancelled, self.killed_by = "", True, self.killed_by or _signal.SIGTERM
            self.end()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._send_all(_signal.SIGKILL)

    def _pass_on(self, number: int, now: float) -> None:
        """Pass on a received signal. A signal that ends the step also sets the time of a final SIGKILL."""
        if number == _signal.SIGCHLD:
            return
        if number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT):
            self.cancelled, self.killed_by = True, self.killed_by or number
            if number == _signal.SIGINT and now - self._interrupted < KILL_WINDOW:
                number = _signal.SIGKILL
            self._interrupted = now
            if self._kill_at is None:
                self._kill_at = now + KILLED_AFTER
        self._send_all(number)

    def _send_all(self, number: int) -> None:
        for pid in list(self._pids):
            self._send(pid, number)

    def end(self) -> None:
        """End all running processes."""
        self._send_all(_signal.SIGTERM)
        self._kill_at = time.monotonic() + KILLED_AFTER

    def _send(self, pid: int, number: int) -> None:
        try:
            if pid in self._controls and pid not in self._killed_remotely:
                os.write(self._controls[pid], bytes([number]))
                if number == _signal.SIGKILL:  # if there is no answer, kill the local process
                    self._killed_remotely.add(pid)
                    self._kill_at = time.monotonic() + KILLED_AFTER
            elif self._own and (number == _signal.SIGKILL or not self._leaders):
                os.killpg(pid, number)
            else:
                os.kill(pid, number)
        except OSError:
            pass

    def _reap(self) -> None:
        while self._pids:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._pids.clear()
                return
            if not pid:
                return
            number = self._pids.pop(pid, None)
            if number is None:
                self.feeder = 0 if pid == self.feeder else self.feeder
                continue
            code = os.waitstatus_to_exitcode(status)
            self.codes[number] = code if code >= 0 else 128 - code
            self.ended.append(number)
            if self._own and not lives(pid):
                self._guard.ended(pid)
            if code and self._kill and self._kill_at is None:
                self.end()


def feed(pipes: list[int]) -> int:
    """Copy standard input to all these pipes in a new process; return its id."""
    pid = os.fork()
    if pid:
        for pipe in pipes:
            os.close(pipe)
        return pid
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    try:
        while pipes:
            data = os.read(0, 1 << 16)
            if not data:
                break
            for pipe in list(pipes):
                try:
                    left = data
                    while left:
                        left = left[os.write(pipe, left):]
                except OSError:
                    pipes.remove(pipe)
    finally:
        os._exit(0)


def say(text: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"srun: {text}\n")
