"""Tells when a step of a job has ended: a file of its directory was closed that had been written, or has
gone. Only steps that wait load this."""

from __future__ import annotations

import ctypes
import os
import select
import time

_CLOSE_WRITE, _DELETE = 0x8, 0x200
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK


class Bell:
    """Watches a directory. Changes that other nodes make are not seen: wait for a limited time."""

    def __init__(self, directory: str) -> None:
        self._handle = -1
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            self._handle = libc.inotify_init1(_FLAGS)
            if self._handle >= 0:
                libc.inotify_add_watch(self._handle, os.fsencode(directory), _CLOSE_WRITE | _DELETE)
        except (OSError, AttributeError):  # no libc of that kind: then only the time limit
            pass

    def wait(self, seconds: float) -> None:
        """Return when something has changed, or after so many seconds."""
        if self._handle < 0:
            time.sleep(min(seconds, 0.02))
            return
        if select.select([self._handle], [], [], seconds)[0]:
            os.read(self._handle, 1 << 16)

    def close(self) -> None:
        """Watch no longer."""
        if self._handle >= 0:
            os.close(self._handle)
