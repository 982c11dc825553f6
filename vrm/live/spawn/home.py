"""Whether the directory of a run was removed while a supervisor follows a job without a manager: nobody can learn
any more how the job ends, so what is left of it is ended."""

from __future__ import annotations

import errno
import os

import _signal as signal  # see `supervisor.py`

LOOKS = 4
"""Looks in a row that must find the directory removed: on a shared file system one alone may be wrong."""

LOOK_EVERY = 5.0
"""Seconds between two of them while a program runs."""


class Home:
    """The directory of a job's marker, in that of the run."""

    def __init__(self, folder: bytes) -> None:
        self._folder = folder
        self._handle = -1
        self._found_removed = 0

    def keep(self) -> None:
        """Know it again wherever it is moved to, until `close`."""
        try:
            self._handle = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            pass

    def close(self) -> None:
        """It is not needed any more."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    @property
    def removed(self) -> bool:
        """Whether the last looks have found it removed."""
        return self._found_removed >= LOOKS

    def look(self) -> bool:
        """Look once more; whether it is `removed`."""
        self._found_removed = self._found_removed + 1 if self._is_removed() else 0
        return self.removed

    def _is_removed(self) -> bool:
        """Whether it is not there, where what the run's directory was in is; and was not moved."""
        try:
            os.lstat(self._folder)
            return False
        except OSError as error:
            if error.errno != errno.ENOENT:
                return False
        try:
            os.lstat(os.path.dirname(os.path.dirname(self._folder)))
        except OSError:
            return False  # what it is on is not mounted, perhaps
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
    """Kill all children of this process: a supervisor is given those that lose their parents, too."""
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
