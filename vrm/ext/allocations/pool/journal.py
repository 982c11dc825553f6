"""The journal of a pool: a directory of numbered files, one for each entry, which are never changed or removed.

An entry is written to its own file, brought to disk, and linked under the next number. The link succeeds for
one writer only, on shared file systems too (NFS, Lustre, GPFS). A writer that was too late reads what the other
has written, and decides again. So all see the same entries in the same order, without a clock, a server, or a
lock that a dying process could keep.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from collections.abc import Callable

from vrm.ext.allocations.pool.state import Entry, PoolState
from vrm.system.files import open_own, read_own, sync_directory
from vrm.system.errors import UserError

MAX_LINK_DELAY = 5.0
"""Seconds within which a file system shows a file whose name it reports as taken."""

SHOWN = 0.05
"""Seconds between two attempts to read it."""


class PoolError(UserError):
    """The pool's journal cannot be read or written; the text says where, and what to do."""


class PoolJournal:
    """The journal in a directory, and the `state` that results from the entries read so far."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.state = PoolState()
        self.read = 0
        """Number of entries that were read."""

    @property
    def entries(self) -> Path:
        """The directory of the entries."""
        return self.directory / "entries"

    def exists(self) -> bool:
        """Return whether there is a pool."""
        return self._path(0).exists()

    def create(self) -> None:
        """Create the directories. Raises PoolError."""
        try:
            self.entries.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._trouble(error) from error

    def look(self) -> PoolState:
        """Read what others have written since the last call; return the state. Raises PoolError."""
        while True:
            entry = self._entry(self.read)
            if entry is None:
                return self.state
            self._apply(entry)

    def append(self, entry: Entry) -> bool:
        """Write the next entry, unless another writer has written one since the last `look`; return whether it
        was written. Raises PoolError."""
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
                except FileExistsError:  # also if the link was made and the answer was lost
                    there = self._await(self.read)
                    self._apply(there)
                    if there.get("mark") != mark:
                        return False
                    sync_directory(self.entries)
                    return True
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(self.entries)
        except OSError as error:
            raise self._trouble(error) from error
        self._apply(record)
        return True

    def decide(self, wanted: Callable[[PoolState], Entry | None]) -> Entry | None:
        """Write the entry that `wanted` returns for the pool's present state; return it, or None if it returns
        None."""
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
        """Return an entry whose name is taken: a client of a network file system may not see it at once."""
        limit = time.monotonic() + MAX_LINK_DELAY
        while True:
            found = self._entry(number)
            if found is not None:
                return found
            if time.monotonic() > limit:
                raise PoolError(f"{self._path(number)} is there and cannot be read; is its file system all right?")
            os.listdir(self.entries)  # makes the client query the server again
            time.sleep(SHOWN)

    def _trouble(self, error: OSError) -> PoolError:
        return PoolError(f"{error.filename or self.directory}: {error.strerror or error}; the pool is not changed "
                         "until that works again")
