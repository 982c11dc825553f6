"""Signals, the end of the allocation, and how a manager stops."""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import time
from typing import Iterator, Optional

from vrm.live.batch import allocation
from vrm.live.batch.walltime import AllocationEnd
from vrm.live.manager.desk import Desk
from vrm.live.manager.ends import Ends
from vrm.live.manager.launches import Launches
from vrm.live.manager.lending import Lending

SUSPENDED = 2.0
"""Seconds from which on a loop that did not wake counts as stopped, if it gets SIGCONT; it wakes
every POLL seconds."""

RESERVE = 2.0
"""Seconds that vrm keeps for its own records of those that a batch system gives it to end."""

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""What batch systems send some time before the end, as `sbatch --signal=B:USR1@120` asks for."""


class Stopping:
    """Stops the run when it is told to, or when the allocation is about to end. `signals` counts
    those that asked for it; `idle` are the seconds that the loop has just waited."""

    def __init__(self, desk: Desk, end: AllocationEnd, ends: Ends, launches: Launches,
                 lending: Lending) -> None:
        self.desk = desk
        self.end = end
        self.ends = ends
        self.launches = launches
        self.lending = lending
        self.signals = 0
        self.idle = 0.0
        self.wakeup: socket.socket
        self._end_trouble = ""  # why the batch system does not tell its end

    @contextlib.contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Signals wake the loop instead of breaking into what it does."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self.wakeup = reader
        before_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None)
                  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT,
                                 *WARNINGS)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            reader.close()
            writer.close()

    def read_signals(self) -> None:
        """Do what the signals say that came since."""
        desk = self.desk
        for number in self.wakeup.recv(64):
            name = signal.Signals(number).name
            if number == signal.SIGCONT:
                self._resumed(self.idle)
                continue
            if number in WARNINGS:
                self.end.warned(desk.now)
                self._close_down(f"{name}, the batch system's warning")
                continue
            self.signals += 1
            if number == signal.SIGTERM and desk.place.allocation:
                self._interrupt(name)
                continue
            intent = "pause" if desk.settings.on_stop == "requeue" else "stop"
            if self.signals == 1:
                self.stop(name, kill=desk.settings.on_stop != "wait", intent=intent)
            elif self.signals == 2:
                self.stop(f"a second {name}", kill=True, intent=intent)
            else:
                self.stop(f"a further {name}", kill=True, at_once=True, intent=intent)

    def _resumed(self, seconds: float) -> None:
        """Processes go on that were stopped, of which vrm is one: it has waited so long. Nobody was
        silent meanwhile, and inside a batch job its own jobs were stopped, too."""
        if seconds < SUSPENDED:
            return  # a SIGCONT alone: scancel sends one before SIGTERM
        desk = self.desk
        self.idle = 0.0
        self.ends.watch.resumed(seconds)
        inside = bool(desk.place.allocation)
        for running in desk.running.values():
            running.paused += seconds * inside
        desk.tell("note", f"vrm was stopped for {seconds:.0f} s and continues"
                  + ("; the time of its jobs is extended by that" if inside and desk.running
                     else ""))

    def ask_end(self, now: float, wait: Optional[float] = None) -> None:
        """Learn when the allocation ends; it may have been extended."""
        desk = self.desk
        if self.end.poll(now, wait):
            desk.changed = True
            left = self.end.end - now
            desk.tell("note", "the allocation does not end" if left == math.inf else
                      f"the allocation ends in {left:.0f} s")
        if self.end.trouble != self._end_trouble:
            self._end_trouble = self.end.trouble
            if self._end_trouble:
                desk.tell("warning", f"cannot learn when the allocation ends: {self._end_trouble}; "
                                     "set End.At")

    def act(self, now: float) -> None:
        """Do what the end of the allocation wants done by now."""
        desk = self.desk
        if now >= self.end.closing and not desk.closing:
            self._close_down("the allocation ends soon")
        if desk.closing and now >= self.end.last_call:
            for running in list(desk.running.values()):
                if not running.intent:
                    self.ends.end_job(running, "interrupted")

    def next_deadline(self) -> float:
        """When the end of the allocation wants something done."""
        if not self.desk.closing:
            return self.end.closing
        return (self.end.last_call if any(not running.intent
                                          for running in self.desk.running.values()) else math.inf)

    def _close_down(self, who: str) -> None:
        """The allocation is about to end: start nothing more; running jobs may use what is left."""
        if self.desk.closing:
            return
        self.desk.closing = True
        self.stop(who, kill=False)

    def _interrupt(self, name: str) -> None:
        """The batch system ends this job, puts it back into its queue, or takes its nodes away.
        What runs, and what has failed just now, was interrupted; the processes have less time
        than the batch system gives vrm."""
        desk = self.desk
        desk.closing = True
        moment = time.time()
        delay = allocation.kill_delay(desk.place.allocation)
        desk.grace = min(desk.grace, max(0.0, delay - RESERVE))
        for running in desk.running.values():
            running.told = min(running.told, moment)
        for held in list(self.ends.held.values()):
            self.ends.release_verdict(held, "interrupted")
        self.stop(f"{name} from the batch system", kill=True, at_once=self.signals > 2)

    def stop(self, who: str, kill: bool, at_once: bool = False, intent: str = "stop") -> None:
        """Start nothing more; end the running jobs (`kill`, because of `intent`) or let them
        finish."""
        desk = self.desk
        if desk.phase != "stopping":
            desk.phase = "stopping"
            desk.changes()
            self.launches.take_all_back()
            self.lending.take_all_back()
        what = "ending" if kill else "waiting for"
        desk.tell("note", f"{who}: starting nothing more"
                  + (f", {what} {len(desk.running)} running job(s)" if desk.running else ""))
        if kill:
            for running in list(desk.running.values()):
                if at_once or not running.intent:
                    # Who ends an allocation sends SIGTERM at its end.
                    self.ends.end_job(running, "interrupted" if desk.closing else intent,
                                      grace=0.0 if at_once else None)
