"""The kernel of the simulated machine: it schedules the processes and keeps the time.

Each process is a greenlet that runs until a system call makes it wait, or until its turn is over; both are decided
here, by one seed. Nothing else in the world is left to chance. Time goes on by TICK at each system call, and jumps to
the next thing that is due when nobody can run.
"""

from __future__ import annotations

import copy
import errno
import heapq
import math
import traceback
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from world.machine.files import Files, fail
from world.machine.processes import (CHLD, CONT, DEFAULT, HARMLESS, IGNORE, KILL, STOP, Host, Killed, Process, Waiters)

TICK = 2e-5
"""Seconds that a system call takes."""

EPOCH = 1_700_000_000.0
"""Seconds since the epoch at which a world begins."""

FIRST, LAST = 100, 30000
"""Process ids that are given in turn."""

UID = 1000
HOST = "node0"
FILES = 1024

LOCK_WAITERS: dict[int, Waiters] = {}
"""The queues for locks of files, by inode number."""

NEVER = 1 << 62
"""A step that is never reached."""


class Kernel:
    """The machines of a world: `home` has the manager, and `hosts` are all by their names; process numbers are those of one
    machine only. `steps` counts system calls (with `most` of them it is `over`), `now` are the seconds of the world, `ahead`
    what the wall clock has more than `now`.
    `faults` may act at the step `fault_at`, which it sets. `wrong` are errors of the programs themselves."""

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, seed: int, strict: bool = False) -> None:
        """Start a new world."""
        self.chance = Random(seed)
        self.disk = Files(UID, strict)
        self.now, self.ahead = 1000.0, EPOCH - 1000.0
        self.home = Host(HOST)
        self.hosts = {HOST: self.home}
        self.processes: dict[int, Process] = {}
        self.ready: list[Process] = []
        self.sleeping: dict[Process, None] = {}
        self.wakes_at = float("inf")                   # nobody who sleeps wakes before
        self.corpses: list[Process] = []
        self.steps, self.fault_at, self.switch_at = 0, NEVER, 0
        self.events = 0
        self.faults: Callable[[], None] = lambda: None
        self.quantum = 30.0
        self.slow: Callable[[], float] = lambda: 0.0   # seconds that an fsync takes
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.asked = 0
        self.programs: dict[str, Callable[..., Any]] = {}
        self.wrong: list[str] = []
        self.digest, self.trace = 0, None if not getattr(self, "tracing", False) else list[str]()
        self.on_end: Callable[[Process], None] = lambda process: None
        self.on_signal: Callable[[Process, int], None] = lambda process, number: None
        self.on_start: Callable[[Process], None] = lambda process: None
        self.names: dict[Any, Any] = {}                # abstract names of sockets, and files that stand for them
        self.socket_files = False                      # whether the file system has such files
        self.over, self.most = False, NEVER
        self.looking: Callable[[str], None] | None = None  # called when a manager next opens the file of a job or command
        self.reuse = False
        self.freed: list[tuple[int, float]] = []        # numbers of processes that were, and since when they were
        LOCK_WAITERS.clear()
        self._start(0.0)

    def _start(self, booted: float) -> None:
        """Boot the machine, with its first process only."""
        self.last_pid = self.chance.choice((LAST, LAST, 140))
        self.next_pid = FIRST + self.chance.randrange(self.last_pid - FIRST if self.last_pid < LAST else 1000)
        self.processes[1] = self.current = self.init = self.home.start(0, booted)
        self.names.clear()

    def add_host(self, name: str) -> Host:
        """Add a machine."""
        self.hosts[name] = host = Host(name)
        host.start(len(self.hosts) - 1, self.now - 5.0)
        return host

    # What is told of a world.

    def note(self, what: str) -> None:
        """Record an event for the trace."""
        self.events += 1
        self.digest = zlib.crc32(what.encode("utf-8", "surrogateescape"), self.digest)
        if self.trace is not None:
            self.trace.append(f"{self.steps:7d} {self.now - 1000:12.6f} {self.current!r:18} {what}")

    # Each system call.

    def enter(self) -> Process:
        """Begin a system call: advance the time, let others run, apply faults, deliver signals. Return the calling process."""
        process = self.current
        if process.dead:
            raise Killed
        self.steps += 1
        process.steps += 1
        self.now += TICK
        if self.steps >= self.fault_at:
            self.faults()
            if process.dead:
                raise Killed
            if process.stopped:
                self._pause(process)
        if self.steps >= self.switch_at:
            self._pause(process)
        if process.pending:
            self.deliver(process)
        return process

    def _pause(self, process: Process) -> None:
        """End the time slice of a process."""
        self.switch_at = self.steps + 1 + int(-math.log(1.0 - self.chance.random()) * self.quantum)  # as expovariate
        if process is self.init:
            return
        self.over |= self.steps > self.most
        self._run(process)
        self.main.switch()
        if process.dead:
            raise Killed

    def wait(self, queues: Iterable[Waiters], until: float | None = None) -> bool:
        """Sleep until a queue is woken, a signal comes, or a time; return whether signal handlers were called. The caller
        checks again whether its condition holds."""
        process = self.current
        if process is self.init:
            raise RuntimeError("the first process cannot wait")
        process.ready = False
        queues = list(queues)
        for queue in queues:
            queue[process] = None
        process.wake_at = until
        if until is not None:
            self.sleeping[process] = None
            if until < self.wakes_at:
                self.wakes_at = until
        self.main.switch()
        for queue in queues:
            queue.pop(process, None)
        self.sleeping.pop(process, None)
        if process.dead:
            raise Killed
        return bool(process.pending) and self.deliver(process)

    def sleep(self, seconds: float) -> None:
        """Sleep for a number of seconds, even if signals come."""
        until = self.now + seconds
        while self.now < until:
            self.wait((), until)

    def wake(self, queue: Waiters) -> None:
        """Wake the processes of a queue."""
        for process in queue:
            self._run(process)

    def _run(self, process: Process) -> None:
        if not (process.ready or process.dead or process.stopped):
            process.ready = True
            self.ready.append(process)

    # The loop.

    def at(self, moment: float, act: Callable[[], None]) -> None:
        """Schedule a call at a time, outside any process."""
        self.asked += 1
        heapq.heappush(self.agenda, (moment, self.asked, act))

    def run(self, until: float) -> bool:
        """Run until `over` or until nothing is left to do; return False if that takes longer than `until`."""
        self.main = getcurrent()
        while not self.over:
            if self.corpses:
                self._bury()
            if self.agenda and self.agenda[0][0] <= self.now:
                self.current = self.init
                heapq.heappop(self.agenda)[2]()
                continue
            if self.wakes_at <= self.now:
                self._wake_sleepers()
            if not self.ready:
                due = min((each.wake_at for each in self.sleeping if each.wake_at is not None and not each.stopped),
                          default=float("inf"))
                if self.agenda:
                    due = min(due, self.agenda[0][0])
                if due == float("inf"):
                    return True
                self.now = max(self.now, due)
                if self.now > until:
                    return False
                continue
            process = self._choose()
            self.current = process
            process.fiber.switch()
            self.current = self.init
        return True

    def _wake_sleepers(self) -> None:
        """Wake the sleeping processes whose time has come."""
        self.wakes_at = float("inf")
        for process in list(self.sleeping):
            until = process.wake_at
            assert until is not None
            if until <= self.now:
                self.sleeping.pop(process)
                self._run(process)
            else:
                self.wakes_at = min(self.wakes_at, until)

    def _choose(self) -> Process:
        at = int(self.chance.random() * len(self.ready)) if len(self.ready) > 1 else 0
        process = self.ready.pop(at)
        process.ready = False
        self.disk.wall = int((self.now + self.ahead) * 1e9)
        return process

    def _bury(self) -> None:
        """Unwind the stacks of killed processes."""
        while self.corpses:
            process = self.corpses.pop()
            if process.fiber is not None and process.fiber and process.fiber is not getcurrent():
                self.current = process
                process.fiber.switch()
        self.current = self.init

    # Processes.

    def _pid(self) -> int:
        if self.reuse and self.freed and self.chance.random() < 0.3:
            old, since = self.freed.pop(int(self.chance.random() * len(self.freed)))
            if self.now > since + 0.05 and not self._used(old):  # no kernel comes round faster
                return old
        tried = 0
        while self._used(self.next_pid):
            self.next_pid, tried = FIRST if self.next_pid >= self.last_pid else self.next_pid + 1, tried + 1
            self.last_pid += tried > self.last_pid  # all are used
        found = self.next_pid
        self.next_pid = FIRST if found >= self.last_pid else found + 1
        return found

    def _used(self, number: int) -> bool:
        return number in self.processes or any(number in (each.group, each.session) for each in self.processes.values())

    def born(self, parent: Process, role: str, argv: Sequence[str], env: Mapping[str, str],
             body: Callable[[], object]) -> Process:
        """Return a new process without open files."""
        process = Process(self._pid(), parent, role, argv, env, int((self.now - parent.host.booted) * 100))
        process.host = parent.host
        process.inherit(parent)
        parent.children[process.pid] = process
        self.processes[process.pid] = process
        process.body = body
        process.fiber = greenlet(self._life)
        process.fiber.parent = self.main if hasattr(self, "main") else getcurrent()
        self._run(process)
        return process

    def fork_into(self, function: Callable[..., object], *arguments: Any) -> int:
        """Do what `vrm.live.runner.starting.fork_into` does: start a child that calls a function and ends; return its pid."""
        parent = self.enter()
        if self.faulty_fork():
            raise fail(errno.EAGAIN)
        role = function.__name__.replace("run_", "")
        child = self.born(parent, role, parent.argv, parent.env, lambda: function(*arguments))
        for number, opened in parent.files.items():
            opened.count += 1
            child.files[number] = opened
        child.on_exec = set(parent.on_exec)
        child.alone = {key: copy.deepcopy(value) for key, value in parent.alone.items()}
        self.note(f"fork {child!r}")
        return child.pid

    faulty_fork: Callable[[], bool] = staticmethod(lambda: False)

    def _life(self) -> None:
        """Run as the body of a greenlet."""
        process = self.current
        assert process.body is not None
        status = 0
        try:
            found = process.body()
            status = (found << 8) if isinstance(found, int) else 0
        except Killed:
            return
        except SystemExit as end:
            code = end.code
            status = (code & 255) << 8 if isinstance(code, int) else 256 if code else 0
        except BrokenPipeError:  # whoever it speaks to is gone: nobody hears of it
            status = 255 << 8
        except BaseException as error:  # a process of vrm has failed
            if process.dead:
                return
            self.wrong.append(f"{process!r} failed:\n{''.join(traceback.format_exception(type(error), error, error.__traceback__))}")
            status = 1 << 8
        if not process.dead:
            self.end(process, status)

    def end(self, process: Process, status: int) -> None:
        """End a process, with a status as from wait4."""
        if process.dead:
            return
        process.dead, process.status, process.ready = True, status, False
        self.note(f"end of {process!r} status {status:#x}")
        self.sleeping.pop(process, None)
        if process in self.ready:
            self.ready.remove(process)
        if process is not self.current or getcurrent() is not process.fiber:
            self.corpses.append(process)
        self.on_end(process)
        for number in sorted(process.files):
            self.close(process, number)
        self._orphans(process)
        self.wake(process.exit_waiters)
        parent = process.parent
        assert parent is not None
        self._tell_parent(process, parent)

    def _orphans(self, process: Process) -> None:
        heir = process.parent
        while heir is not None and (heir.dead or not heir.subreaper):
            heir = heir.parent
        heir = heir or process.host.init
        for child in list(process.children.values()):
            child.parent = heir
            heir.children[child.pid] = child
            if child.dead:
                self._tell_parent(child, heir)
        process.children.clear()

    def _tell_parent(self, process: Process, parent: Process) -> None:
        if parent is process.host.init or parent.actions.get(CHLD) == IGNORE:
            self.reap(process)
        else:
            self.signal(parent, CHLD)
        self.wake(parent.child_waiters)

    def reap(self, process: Process) -> None:
        """Reap a process that has ended."""
        process.reaped = True
        self.processes.pop(process.pid, None)
        if self.reuse:
            self.freed = [*self.freed[-30:], (process.pid, process.host.booted + process.started / 100)]
        if process.parent is not None:
            process.parent.children.pop(process.pid, None)

    def close(self, process: Process, number: int) -> None:
        """Close a file of a process."""
        opened = process.files.pop(number)
        process.on_exec.discard(number)
        opened.count -= 1
        if not opened.count:
            opened.gone()

    # Signals.

    def signal(self, process: Process, number: int) -> None:
        """Deliver a signal to a process."""
        if process.dead or process is self.init:
            return
        self.on_signal(process, number)
        if number == KILL:
            self.end(process, KILL)
        elif number == STOP:
            process.stopped = True
            if process in self.ready:
                self.ready.remove(process)
                process.ready = False
        else:
            if number == CONT and process.stopped:
                process.stopped = False
                self._run(process)
            self._common(process, number)

    def _common(self, process: Process, number: int) -> None:
        if number in process.mask:
            if number not in process.pending:
                process.pending.append(number)
                self._run(process)
            return
        action = process.actions.get(number, DEFAULT)
        if action == IGNORE or (action == DEFAULT and number in HARMLESS):
            return
        if action == DEFAULT:
            self.end(process, number)
        elif number not in process.pending:
            process.pending.append(number)
            self._run(process)

    def deliver(self, process: Process) -> bool:
        """Call the handlers of pending signals; return whether there were any."""
        called = False
        for number in [each for each in process.pending if each not in process.mask]:
            process.pending.remove(number)
            action = process.actions.get(number, DEFAULT)
            if action == DEFAULT and number not in HARMLESS:
                self.end(process, number)
                raise Killed
            if action in (DEFAULT, IGNORE):
                continue
            called = True
            if process.wakeup >= 0 and process.wakeup in process.files:
                process.files[process.wakeup].put(bytes([number]))
            action(number, None)
        return called

    # The machine dies.

    def crash(self) -> None:
        """Crash the machine: all processes are gone, and the disk keeps what it has. The scenario starts it again."""
        self.note("the machine dies")
        dying = self.current
        for line in [line for host in self.hosts.values() for line in host.lines]:
            self.at(self.now + self.chance.choice((0.0, 3.0, 60.0)), line.hang_up)
        self._drop(self.home)
        LOCK_WAITERS.clear()
        self.disk.crash(self.chance)
        self._start(self.now - 5.0)
        self.current = dying

    def power_off(self, host: Host) -> None:
        """Crash a node. Its peers are not notified."""
        self.note(f"{host.name} dies")
        host.on = False
        self._drop(host)

    def power_on(self, host: Host) -> None:
        """Boot a node again: its earlier connections are closed."""
        self.note(f"{host.name} starts")
        host.start([*self.hosts].index(host.name), self.now - 5.0)
        self._heard(host.old)

    def cut(self, host: Host, off: bool) -> None:
        """Cut the network of a node, or restore it."""
        self.note(f"{host.name} is {'cut off' if off else 'in reach again'}")
        host.cut = off
        self._heard([*host.lines, *host.old])

    def _heard(self, lines: Iterable[Any]) -> None:
        for line in lines:
            for channel in line.channels:
                self.wake(channel.waiters)

    def _drop(self, host: Host) -> None:
        """End all processes of a machine."""
        gone = [process for process in self.processes.values() if process.host is host]
        for process in gone:
            del self.processes[process.pid]
            if process is not host.init:
                process.dead, process.status, process.ready = True, KILL, False
                if process is not self.current:
                    self.corpses.append(process)
                self.sleeping.pop(process, None)
        self.ready = [process for process in self.ready if not process.dead]


K = Kernel()
"""The kernel of this interpreter; there is one at a time."""


def lowest(process: Process, least: int = 0) -> int:
    """Return the lowest free file descriptor of a process."""
    number = least
    files = process.files
    while number in files:
        number += 1
    return number

