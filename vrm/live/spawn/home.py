"""Detects that a run's directory was removed while a supervisor runs a job without a manager. Then nobody can read any
more how the job ends, so what is left of the job is killed."""

from __future__ import annotations

import errno
import os

import _signal as signal  # see `supervisor.py`

LOOKS = 4
"""Checks in a row that must find the directory removed: on a shared file system a single one may be wrong."""

LOOK_EVERY = 5.0
"""Seconds between two checks while a program runs."""


class MarkerDirectory:
    """The directory of a job's marker, inside the run's directory; knows whether it was removed."""

    def __init__(self, folder: bytes) -> None:
        self._folder = folder
        self._handle = -1
        self._found_removed = 0

    def keep(self) -> None:
        """Keep the directory open until `close`, so that it is recognised after it was moved."""
        try:
            self._handle = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            pass

    def close(self) -> None:
        """Close the directory."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    @property
    def removed(self) -> bool:
        """True if the last `LOOKS` checks in a row found the directory removed."""
        return self._found_removed >= LOOKS

    def look(self) -> bool:
        """Check once more, and return `removed`."""
        self._found_removed = self._found_removed + 1 if self._is_removed() else 0
        return self.removed

    def _is_removed(self) -> bool:
        """Return whether the directory is gone, although the parent of the run's directory exists, and was not moved
        elsewhere."""
        try:
            os.lstat(self._folder)
            return False
        except OSError as error:
            if error.errno != errno.ENOENT:
                return False
        try:
            os.lstat(os.path.dirname(os.path.dirname(self._folder)))
        except OSError:
            return False  # perhaps its file system is not mounted
        if self._handle < 0:
            return True
        try:
            os.fstat(self._handle)
        except OSError as error:
            return error.errno == errno.ESTALE  # removed by another host
        try:
            return os.readlink(b"/proc/self/fd/%d" % self._handle).endswith(b" (deleted)")
        except OSError:
            return False


def end_all() -> None:
    """Kill all children of this process. A supervisor is also the parent of descendants whose own parent has ended."""
    try:
        with open("/proc/thread-self/children", "rb") as file:
            children = file.read().split()
    except OSError:
        return
    for child in children:
        for kill in (os.killpg, os.kill):  # most lead a group
            try:
                kill(int(child), signal.SIGKILL)
            except OSError:
                pass
