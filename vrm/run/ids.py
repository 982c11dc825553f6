"""Job ids that are never reused by later runs of a directory. Tools of other batch systems need this: they keep ids
for longer than a run lasts.

A directory without use of such commands has no file of ids; there each run begins with job 0.
"""

from __future__ import annotations

import os
from pathlib import Path

from vrm.system.files import read_own, write_atomically

BLOCK = 1000
"""Number of ids that are reserved at once, so that the file is seldom written."""

LARGEST = 999_999_000
"""Largest id: ranges of ids have at most nine digits each (`vrm.model.quantities`)."""


class ReservedIds:
    """The file in a run's directory that records which ids may be in use: all below `kept`.

    `kept` is 0 if no commands of other batch systems were used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            found = int(read_own(path, 20))
        except (FileNotFoundError, ValueError):
            found = 0
        self.kept = found if 0 < found < LARGEST else 0

    @property
    def first(self) -> int:
        """First id of a run that has not used any id yet."""
        return self.kept or 1

    def keep(self, last: int) -> None:
        """Reserve the ids up to `last`. Raises OSError if the file cannot be written."""
        if last >= self.kept:
            kept = (last // BLOCK + 1) * BLOCK + 1
            write_atomically(self._path, f"{kept}\n", private=True)
            descriptor = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self.kept = kept
