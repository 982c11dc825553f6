"""Reads the journal of a manager that runs."""

from __future__ import annotations

import os
from pathlib import Path

from vrm.run.journal import files
from vrm.run.journal.record_checks import JournalError, Record
from vrm.system.files import open_own


class JournalFollower:
    """Reads a journal while it is being written: each record once.

    `trouble` is what is wrong after the records read so far; "" for nothing. The next call then reads again from
    there: on a shared file system a line may arrive in parts. A journal that was folded is another one: its records are
    read from the start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""
        self._mark = files.START
        self._file = (0, 0)

    @property
    def number(self) -> int:
        """Number of records read."""
        return self._mark.number

    def read_new(self) -> tuple[bool, list[Record]]:
        """Return whether another journal than before begins, and the new records. Raises OSError if the file cannot
        be read."""
        with open(open_own(self.path, os.O_RDONLY), "rb") as file:
            about = os.fstat(file.fileno())
            same = (self._file == (about.st_dev, about.st_ino) and about.st_size >= self._mark.offset
                    and files.is_at(self._mark, file))  # the number of a removed file may be that of a new one
            if not same:
                self._file, self._mark = (about.st_dev, about.st_ino), files.START
            file.seek(self._mark.offset)
            data = file.read()
        found: list[Record] = []
        self.trouble = ""
        try:
            for records, mark in files.read_after(self.path, data, self._mark):
                found += records
                self._mark = mark
        except JournalError as error:
            self.trouble = str(error)
        return not same, found
