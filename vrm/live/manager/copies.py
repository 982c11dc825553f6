"""Forked copies of the manager do work that takes long and changes nothing.

A copy has all data as of the fork, writes an answer or the state file, and ends. The manager's loop continues
meanwhile, and the memory that the work needed is released with the copy.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import traceback
from collections.abc import Callable

from vrm.live.runner.starting import fork_into

FEW = 1000
"""Up to this number of jobs in a run, the manager itself answers questions and writes its state: that takes a few
hundredths of a second."""

AT_A_TIME = 4
"""Maximum number of copies at a time; further clients wait until one ends."""

PATIENCE = 60
"""Seconds after which a copy ends if its client does not read the answer."""

FAULT = 255
"""Exit status of a copy in which vrm failed; other exit statuses are the system's error number, or 0."""


Then = Callable[[str, float], None]
"""Called with the reason why a copy failed ("" if it succeeded) and the CPU seconds that it used."""


class Copies:
    """The copies that are working now, at most `most`."""

    def __init__(self, most: int = AT_A_TIME) -> None:
        self._most = most
        self._working: dict[int, Then | None] = {}

    def begin(self, work: Callable[[], None], keep: int = -1, then: Then | None = None) -> bool:
        """Fork a copy that does `work`; return False if the maximum is reached or the fork fails (try again later).

        The copy keeps the file descriptor `keep` open. `then` is called by `look` or `wait`.
        """
        self.look()
        if len(self._working) >= self._most:
            return False
        try:
            pid = fork_into(run_copy, work, keep)
        except OSError:
            return False
        self._working[pid] = then
        return True

    def look(self, wait: bool = False) -> bool:
        """Collect the copies that have ended, call their `then`, and return whether any still work."""
        for pid, then in list(self._working.items()):
            code, seconds = FAULT, 0.0
            with contextlib.suppress(ChildProcessError):
                found, status, used = os.wait4(pid, 0 if wait else os.WNOHANG)
                if not found:
                    continue
                code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
            del self._working[pid]
            if then is not None:
                then("" if not code else os.strerror(code) if 0 < code < FAULT else f"signal {-code}" if code < 0 else
                     "an error in vrm", seconds)
        return bool(self._working)

    def stop(self) -> None:
        """Kill the copies that still work; their `then` is not called."""
        for pid in self._working:
            self._working[pid] = None
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.look(wait=True)


def run_copy(work: Callable[[], None], keep: int) -> None:
    """In the copy: do the work and exit, without the cleanup that the end of a manager does.

    The copy closes the manager's open files, so that a process that waits for the manager's end through one of them
    does not wait for the copy.
    """
    code = FAULT
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        between = max(keep, 2)
        os.closerange(3, between)
        os.closerange(between + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        work()
        code = 0
    except OSError as error:
        code = error.errno or FAULT
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)
