"""Reports changes of files by the kernel's inotify, without delay for changes by this machine. Changes by other nodes
are not reported: check the files from time to time as well. Imports nothing of vrm."""

from __future__ import annotations

import ctypes
import os
import select
import time

WRITTEN, CLOSED, PLACED, GONE = 0x2, 0x8, 0x80, 0x200
"""Events: a file was written; was closed by a writer; got its name by a rename; was removed. The last three are
requested for the directory, the first for the file itself."""

_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK


class FileNotifier:
    """Notifies when something happens to a file or to the files of a directory. `number` is its descriptor, or -1 if
    the system has no inotify: then it never notifies."""

    def __init__(self) -> None:
        self.number = -1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self.number = self._libc.inotify_init1(_FLAGS)
        except (OSError, AttributeError):  # no libc with inotify
            pass

    def watch(self, path: str | os.PathLike[str], events: int) -> None:
        """Notify of these events from now on; call it again after a file was replaced by another one. A file that does
        not exist is ignored."""
        if self.number >= 0:
            self._libc.inotify_add_watch(self.number, os.fsencode(path), events)

    def wait(self, seconds: float) -> None:
        """Return when an event has happened, at the latest after `seconds` (without inotify: after at most 0.02 s)."""
        if self.number < 0:
            time.sleep(min(seconds, 0.02))
        elif select.select([self.number], [], [], seconds)[0]:
            self.silence()

    def silence(self) -> None:
        """Discard the events that have happened so far; there must be at least one."""
        os.read(self.number, 1 << 16)

    def close(self) -> None:
        """Stop watching."""
        if self.number >= 0:
            os.close(self.number)
            self.number = -1
