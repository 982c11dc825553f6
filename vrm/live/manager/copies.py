"""What takes long and changes nothing is done by copies of the manager: children that know all as it is now, write an
answer or the state file, and end. The loop of the manager goes on meanwhile, and what they need of memory is gone
with them."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import traceback
from collections.abc import Callable

FEW = 1000
"""Jobs of a run up to which the manager itself answers questions and writes its state: it takes some hundredths of
a second."""

AT_A_TIME = 4
"""Copies that there may be; other clients wait for one of them to end."""

PATIENCE = 60
"""Seconds after which a copy ends whose client does not take its answer."""

FAULT = 255
"""The exit status of a copy in which vrm has failed; else it is the number of the system's error, or 0."""


Then = Callable[[str, float], None]
"""Called with why a copy has not done its work ("" if it has), and its seconds of CPU."""


class Copies:
    """The copies that work now, at most so many at a time."""

    def __init__(self, most: int = AT_A_TIME) -> None:
        self._most = most
        self._working: dict[int, Then | None] = {}

    def begin(self, work: Callable[[], None], keep: int = -1, then: Then | None = None) -> bool:
        """Whether a copy does this work, which may use the open file `keep`; not where there are too many, and
        another time will do. `then` is called by `look` or `wait`."""
        self.look()
        if len(self._working) >= self._most:
            return False
        try:
            pid = os.fork()
        except OSError:
            return False
        if not pid:
            _do(work, keep)
        self._working[pid] = then
        return True

    def look(self, wait: bool = False) -> bool:
        """Whether any copies work still."""
        for pid, then in list(self._working.items()):
            code, seconds = FAULT, 0.0
            with contextlib.suppress(ChildProcessError):
                found, status, used = os.wait4(pid, 0 if wait else os.WNOHANG)
                if not found:
                    continue
                code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
            del self._working[pid]
            if then is not None:
                then("" if not code else os.strerror(code) if 0 < code < FAULT else "an error in vrm", seconds)
        return bool(self._working)


def _do(work: Callable[[], None], keep: int) -> None:
    """In the copy: do the work, and end without anything that the end of a manager does. It has no file of the
    manager open: who waits for the manager's end by one of them waits for no copy."""
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
