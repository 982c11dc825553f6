"""Tells when something happens to files, by the kernel's inotify: what this machine changes is heard at once.
Changes that other nodes make are not heard: look from time to time as well. It imports nothing of vrm."""

from __future__ import annotations

import ctypes
import os
import select
import time

WRITTEN, CLOSED, PLACED, GONE = 0x2, 0x8, 0x80, 0x200
"""A file was written; was closed by who had written it; has got its name by a rename; was removed. All but the first
are asked for with the directory."""

_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK


class Bell:
    """Rings when something happens to a file or to the files of a directory. `number` is its open file, or -1 where
    the system has no such thing: then it never rings."""

    def __init__(self) -> None:
        self.number = -1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self.number = self._libc.inotify_init1(_FLAGS)
        except (OSError, AttributeError):  # no libc of that kind
            pass

    def watch(self, path: str | os.PathLike[str], events: int) -> None:
        """Ring for these events from now on; again after a file was replaced by another one. A file that is not
        there is passed over."""
        if self.number >= 0:
            self._libc.inotify_add_watch(self.number, os.fsencode(path), events)

    def wait(self, seconds: float) -> None:
        """Return when it has rung, or after so many seconds."""
        if self.number < 0:
            time.sleep(min(seconds, 0.02))
        elif select.select([self.number], [], [], seconds)[0]:
            self.silence()

    def silence(self) -> None:
        """Forget what has happened so far; it has rung."""
        os.read(self.number, 1 << 16)

    def close(self) -> None:
        """Watch no longer."""
        if self.number >= 0:
            os.close(self.number)
            self.number = -1
