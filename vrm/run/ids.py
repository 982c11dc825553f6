"""Ids of jobs that no later run of a directory gives again, for users of other batch systems: their tools
keep ids for longer than a run lasts.

A directory in which nobody uses their commands has no file of ids, and each run begins with job 0.
"""

from __future__ import annotations

import os
from pathlib import Path

from vrm.system.files import read_own, write_atomically

BLOCK = 1000
"""Ids that are kept at once, so that the file is seldom written."""

LARGEST = 999_999_000
"""Ids have at most nine digits in ranges of them (`vrm.model.quantities`)."""


class Ids:
    """The file of a run's directory that says which ids may have been given: those below `kept`.

    `kept` is 0 where no commands of other batch systems were used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            found = int(read_own(path, 20))
        except (FileNotFoundError, ValueError):
            found = 0
        self.kept = found if 0 < found < LARGEST else 0

    @property
    def first(self) -> int:
        """The first id of a run that has given none yet."""
        return self.kept or 1

    def keep(self, last: int) -> None:
        """Ids up to this one are given; OSError when the file cannot be written."""
        if last >= self.kept:
            kept = (last // BLOCK + 1) * BLOCK + 1
            write_atomically(self._path, f"{kept}\n", private=True)
            descriptor = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self.kept = kept
