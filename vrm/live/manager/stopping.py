"""Signals, the end of the allocation, and how a manager stops."""

from __future__ import annotations

import contextlib
import math
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping

from vrm.live.batch import allocation
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.part import CommandHandler, Part, RunStopping
from vrm.run.command_files import Command

SUSPENDED = 2.0
"""Seconds; a loop that woke this much too late and gets SIGCONT was suspended. (It wakes every POLL seconds.)"""

RESERVE = 2.0
"""Seconds that vrm keeps for its own records, out of the time that a batch system gives it to end."""

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that batch systems send some time before the end, as `sbatch --signal=B:USR1@120` requests."""


class Idle:
    """Measures how long this process waited or was suspended since the last call. `clock` and `cpu` return seconds; the
    time in which the process computed is not counted."""

    def __init__(self, clock: Callable[[], float], cpu: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._cpu = cpu
        self._before = clock() - cpu()

    def seconds(self) -> float:
        """Return the idle seconds since the last call, or since the beginning."""
        before, self._before = self._before, self._clock() - self._cpu()
        return self._before - before


class Stopping(Part):
    """Stops the run on request, or when the allocation is about to end. `signals` counts the signals that requested
    it."""

    def __init__(self, live: LiveRun, ends: Ends) -> None:
        self.live = live
        self.ends = ends
        self.signals = 0
        self.wakeup: socket.socket
        self._slept = 0.0       # idle seconds of the loop since it last woke
        self._closing = False   # the allocation is about to end
        self._end_trouble = ""  # why the batch system does not report the end

    @contextlib.contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Context in which signals wake the loop instead of interrupting what it does."""
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

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Let signals wake the loop."""
        selector.register(self.wakeup, selectors.EVENT_READ, self.read_signals)
        self._idle = Idle(self.live.clock)

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the command that ends the run."""
        return {"stop": self._handle_command}

    def _handle_command(self, command: Command, name: str) -> Command:
        now, live = bool(command.get("now")), self.live
        self.stop("`vrm stop`", kill=now)
        return {"ok": True, "text": f"stopping; {len(live.running)} job(s) "
                f"{'are being ended' if now else 'may finish'}, {live.state.waiting} waiting"}

    def suspended(self, timeout: float) -> bool:
        """Return whether this process was suspended while the loop waited `timeout` seconds at most."""
        self._slept = self._idle.seconds()
        return self._slept > timeout + SUSPENDED

    def read_signals(self) -> None:
        """Act on the signals that arrived."""
        live = self.live
        for number in self.wakeup.recv(64):
            name = signal.Signals(number).name
            if number == signal.SIGCONT:
                self._resumed(self._slept)
                continue
            if number in WARNINGS:
                live.end.warned(live.now)
                self._stop_before_end(f"{name}, the batch system's warning")
                continue
            self.signals += 1
            if number == signal.SIGTERM and live.place.allocation:
                self._interrupt(name)
                continue
            intent = "pause" if live.settings.on_stop == "requeue" else "stop"
            self.stop(("", "a second ", "a further ")[min(self.signals, 3) - 1] + name, at_once=self.signals > 2,
                      kill=self.signals > 1 or live.settings.on_stop != "wait", intent=intent)

    def _resumed(self, seconds: float) -> None:
        """Handle a resume after `seconds` of suspension. The nodes were not silent during that time, and inside a batch
        job vrm's jobs were suspended, too."""
        if seconds < SUSPENDED:
            return  # a SIGCONT alone: scancel sends one before SIGTERM
        live = self.live
        self._slept = 0.0
        live.watch.resumed(seconds)
        inside = bool(live.place.allocation)
        for running in live.running.values():
            running.paused += seconds * inside
        live.tell("note", f"vrm was stopped for {seconds:.0f} s and continues"
                  + ("; the time of its jobs is extended by that" if inside and live.running
                     else ""))

    def query_end(self, now: float, wait: float | None = None) -> None:
        """Query when the allocation ends; it may have been extended."""
        live, end = self.live, self.live.end
        if end.poll(now, wait):
            live.changed = True
            left = end.end - now
            live.tell("note", "the allocation does not end" if left == math.inf else
                      f"the allocation ends in {left:.0f} s")
        if end.trouble not in ("", self._end_trouble):
            live.tell("warning", f"cannot learn when the allocation ends: {end.trouble}; set End.At")
        self._end_trouble = end.trouble

    def look(self, now: float, files: bool) -> None:
        """Do what is due before the end of the allocation; query that end."""
        live = self.live
        if now >= live.end.closing and not self._closing:
            self._stop_before_end("the allocation ends soon")
        if self._closing and now >= live.end.end_jobs_at:
            for running in list(live.running.values()):
                if not running.intent:
                    self.ends.end_job(running, "interrupted")
        if files and live.phase == "running":
            self.query_end(now)

    def deadline(self, now: float) -> float:
        """Return when the end of the allocation next requires an action."""
        if not self._closing:
            return self.live.end.closing
        return (self.live.end.end_jobs_at if any(not running.intent
                                          for running in self.live.running.values()) else math.inf)

    def _stop_before_end(self, who: str) -> None:
        """Start nothing more, as the allocation is about to end; running jobs may use the time that is left."""
        if self._closing:
            return
        self._closing = True
        self.stop(who, kill=False)

    def _interrupt(self, name: str) -> None:
        """Handle SIGTERM of the batch system, which ends this batch job, requeues it or takes its nodes away.

        Jobs that run, and jobs that failed just now, count as interrupted. Their processes get less time to end than
        the batch system gives vrm.
        """
        live = self.live
        self._closing = True
        moment = time.monotonic()
        delay = allocation.kill_delay(live.place.allocation)
        live.grace = min(live.grace, max(0.0, delay - RESERVE))
        for running in live.running.values():
            running.told = min(running.told, moment)
        for held in list(self.ends.held.values()):
            self.ends.release_verdict(held, "interrupted")
        self.stop(f"{name} from the batch system", kill=True, at_once=self.signals > 2)

    def stop(self, who: str, kill: bool, at_once: bool = False, intent: str = "stop") -> None:
        """Start nothing more; end the running jobs (`kill`, with `intent` as the reason) or let them finish."""
        live = self.live
        if live.phase != "stopping":
            live.phase = "stopping"
            live.changes()
            live.notify(RunStopping())
        what = "ending" if kill else "waiting for"
        live.tell("note", f"{who}: starting nothing more"
                  + (f", {what} {len(live.running)} running job(s)" if live.running else ""))
        if kill:
            for running in list(live.running.values()):
                if at_once or not running.intent:
                    # A batch system sends SIGTERM at the end of an allocation.
                    self.ends.end_job(running, "interrupted" if self._closing else intent,
                                      grace=0.0 if at_once else None)
