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
from vrm.live.manager.part import Obey, Part, Stopped
from vrm.run.control import Command

SUSPENDED = 2.0
"""Seconds from which on a loop that did not wake counts as stopped, if it gets SIGCONT; it wakes
every POLL seconds."""

RESERVE = 2.0
"""Seconds that vrm keeps for its own records of those that a batch system gives it to end."""

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""What batch systems send some time before the end, as `sbatch --signal=B:USR1@120` asks for."""


class Idle:
    """How long this process did nothing since it was asked last: it waited, or was stopped. `clock` and `cpu` tell
    seconds: what it has computed meanwhile does not count."""

    def __init__(self, clock: Callable[[], float], cpu: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._cpu = cpu
        self._before = clock() - cpu()

    def seconds(self) -> float:
        """Since this was asked last, or since the beginning."""
        before, self._before = self._before, self._clock() - self._cpu()
        return self._before - before


class Stopping(Part):
    """Stops the run when it is told to, or when the allocation is about to end. `signals` counts
    those that asked for it."""

    def __init__(self, live: LiveRun, ends: Ends) -> None:
        self.live = live
        self.ends = ends
        self.signals = 0
        self.wakeup: socket.socket
        self._slept = 0.0       # seconds in which the loop did nothing since it was woken before
        self._closing = False   # the allocation is about to end
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

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Signals wake the loop."""
        selector.register(self.wakeup, selectors.EVENT_READ, self.read_signals)
        self._idle = Idle(self.live.clock)

    def commands(self) -> Mapping[str, Obey]:
        """To end the run."""
        return {"stop": self._obey}

    def _obey(self, command: Command, name: str) -> Command:
        now, live = bool(command.get("now")), self.live
        self.stop("`vrm stop`", kill=now)
        return {"ok": True, "text": f"stopping; {len(live.running)} job(s) "
                f"{'are being ended' if now else 'may finish'}, {live.state.waiting} waiting"}

    def suspended(self, timeout: float) -> bool:
        """The loop was woken, after `timeout` seconds at most: whether this process was stopped meanwhile."""
        self._slept = self._idle.seconds()
        return self._slept > timeout + SUSPENDED

    def read_signals(self) -> None:
        """Do what the signals say that came since."""
        live = self.live
        for number in self.wakeup.recv(64):
            name = signal.Signals(number).name
            if number == signal.SIGCONT:
                self._resumed(self._slept)
                continue
            if number in WARNINGS:
                live.end.warned(live.now)
                self._close_down(f"{name}, the batch system's warning")
                continue
            self.signals += 1
            if number == signal.SIGTERM and live.place.allocation:
                self._interrupt(name)
                continue
            intent = "pause" if live.settings.on_stop == "requeue" else "stop"
            self.stop(("", "a second ", "a further ")[min(self.signals, 3) - 1] + name, at_once=self.signals > 2,
                      kill=self.signals > 1 or live.settings.on_stop != "wait", intent=intent)

    def _resumed(self, seconds: float) -> None:
        """Processes go on that were stopped, of which vrm is one: it has waited so long. Nobody was
        silent meanwhile, and inside a batch job its own jobs were stopped, too."""
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

    def ask_end(self, now: float, wait: float | None = None) -> None:
        """Learn when the allocation ends; it may have been extended."""
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
        """Do what the end of the allocation wants done by now; ask for it."""
        live = self.live
        if now >= live.end.closing and not self._closing:
            self._close_down("the allocation ends soon")
        if self._closing and now >= live.end.last_call:
            for running in list(live.running.values()):
                if not running.intent:
                    self.ends.end_job(running, "interrupted")
        if files and live.phase == "running":
            self.ask_end(now)

    def deadline(self, now: float) -> float:
        """When the end of the allocation wants something done."""
        if not self._closing:
            return self.live.end.closing
        return (self.live.end.last_call if any(not running.intent
                                          for running in self.live.running.values()) else math.inf)

    def _close_down(self, who: str) -> None:
        """The allocation is about to end: start nothing more; running jobs may use what is left."""
        if self._closing:
            return
        self._closing = True
        self.stop(who, kill=False)

    def _interrupt(self, name: str) -> None:
        """The batch system ends this job, puts it back into its queue, or takes its nodes away.
        What runs, and what has failed just now, was interrupted; the processes have less time
        than the batch system gives vrm."""
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
        """Start nothing more; end the running jobs (`kill`, because of `intent`) or let them
        finish."""
        live = self.live
        if live.phase != "stopping":
            live.phase = "stopping"
            live.changes()
            live.notify(Stopped())
        what = "ending" if kill else "waiting for"
        live.tell("note", f"{who}: starting nothing more"
                  + (f", {what} {len(live.running)} running job(s)" if live.running else ""))
        if kill:
            for running in list(live.running.values()):
                if at_once or not running.intent:
                    # Who ends an allocation sends SIGTERM at its end.
                    self.ends.end_job(running, "interrupted" if self._closing else intent,
                                      grace=0.0 if at_once else None)
