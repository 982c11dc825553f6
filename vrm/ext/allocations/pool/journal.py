"""The journal of a pool: a directory of numbered files, one for each entry, that nobody changes or removes.

An entry is written to a file of its own, brought to disk, and linked under the next number, which succeeds for one
writer alone, on shared file systems too (NFS, Lustre, GPFS). Who was too late reads what the other has written, and
decides again. So all see the same entries in the same order, without a lock that somebody could die with, a clock or a
server.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from collections.abc import Callable

from vrm.ext.allocations.pool.state import Entry, PoolState
from vrm.system.files import open_own, read_own, sync_names

LINGERS = 5.0
"""Seconds in which a file system shows a name that it says is taken."""

SHOWN = 0.05
"""Seconds between two looks for it."""


class PoolError(Exception):
    """The pool's journal cannot be read or written; the text says where, and what to do."""


class PoolJournal:
    """The journal in a directory, and the `state` that its entries give as far as they were read."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.state = PoolState()
        self.read = 0
        """Entries that were read."""

    @property
    def entries(self) -> Path:
        """Where they are."""
        return self.directory / "entries"

    def exists(self) -> bool:
        """Whether there is a pool."""
        return self._path(0).exists()

    def create(self) -> None:
        """Make the directories. PoolError."""
        try:
            self.entries.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._trouble(error) from error

    def look(self) -> PoolState:
        """Read what others have written since. PoolError."""
        while True:
            entry = self._entry(self.read)
            if entry is None:
                return self.state
            self._apply(entry)

    def append(self, entry: Entry) -> bool:
        """Write the next entry, if nobody else has written one since the last look; whether it was. PoolError."""
        mark = uuid.uuid4().hex
        temporary = self.directory / f"new.{mark}"
        record = {**entry, "mark": mark, "time": time.time()}
        try:
            try:
                with open(open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
                    json.dump(record, file)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(temporary, self._path(self.read))
                except FileExistsError:  # also where the answer to a link that was made has been lost
                    there = self._await(self.read)
                    self._apply(there)
                    if there.get("mark") != mark:
                        return False
                    sync_names(self.entries)
                    return True
            finally:
                temporary.unlink(missing_ok=True)
            sync_names(self.entries)
        except OSError as error:
            raise self._trouble(error) from error
        self._apply(record)
        return True

    def decide(self, wanted: Callable[[PoolState], Entry | None]) -> Entry | None:
        """Write what is `wanted` in the state that the pool has then; what was written, None if nothing is wanted."""
        while True:
            entry = wanted(self.look())
            if entry is None or self.append(entry):
                return entry

    def _apply(self, entry: Entry) -> None:
        self.state.apply(entry)
        self.read += 1

    def _path(self, number: int) -> Path:
        return self.entries / f"{number:08d}"

    def _entry(self, number: int) -> Entry | None:
        path = self._path(number)
        try:
            text = read_own(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble(error) from error
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or not isinstance(found.get("do"), str):
                raise ValueError
        except ValueError:
            raise PoolError(f"{path} is not an entry of a pool: the pool is damaged. Begin another one with the jobs "
                            "that are left") from None
        return found

    def _await(self, number: int) -> Entry:
        """An entry whose name is taken: a client of a network file system may not see it at once."""
        limit = time.monotonic() + LINGERS
        while True:
            found = self._entry(number)
            if found is not None:
                return found
            if time.monotonic() > limit:
                raise PoolError(f"{self._path(number)} is there and cannot be read; is its file system all right?")
            os.listdir(self.entries)  # which has it asked again
            time.sleep(SHOWN)

    def _trouble(self, error: OSError) -> PoolError:
        return PoolError(f"{error.filename or self.directory}: {error.strerror or error}; the pool is not changed "
                         "until that works again")
