"""The store: one SQLite file of a user with the ended jobs of all runs.

| table | a row describes |
|---|---|
| `runs` | a run: its id (that of its journal), its directory, and the machine |
| `jobs` | a job that ran, by its run and its id (`vrm.ext.learning.learned_jobs.LearnedJob`) |
| `overlaps` | the time for which two jobs of a run were on the same node |
| `attempts` | a failed attempt of a job, even if the job ran again |
| `nodes` | the last finding about a node of a machine (`vrm.ext.learning.health.findings.NodeRecord`) |
| `probes` | the result of the last probe of a node (`vrm.ext.learning.health.findings.ProbeRecord`) |

Each write is one transaction. Rows may be added again: they replace those of the same run and job.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Collection, Iterable, Iterator, Mapping

from vrm.ext.learning.filesystems import mounted, shared
from vrm.ext.learning.keys import AUTO, OFF
from vrm.ext.learning.learned_jobs import LearnedJob, Overlap
from vrm.system.files import fault
from vrm.system.errors import UserError

if TYPE_CHECKING:
    import sqlite3

VERSION = 1
"""Format of the tables. A vrm that changes them reads all older formats."""

MARK = 0x76726D4C
"""Mark of vrm's stores in the file header (`PRAGMA application_id`)."""

PATIENCE = 10.0
"""Seconds to wait while another program writes."""

_TABLES = """
CREATE TABLE runs (run TEXT PRIMARY KEY, directory TEXT NOT NULL, machine TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
    run TEXT NOT NULL, job INTEGER NOT NULL, app TEXT NOT NULL, input TEXT NOT NULL, ranks INTEGER NOT NULL,
    cores INTEGER NOT NULL, nodes TEXT NOT NULL, start REAL NOT NULL, "end" REAL NOT NULL, walltime REAL NOT NULL,
    status TEXT NOT NULL, exit_code INTEGER, cpu REAL, memory INTEGER, exclusive INTEGER NOT NULL,
    steady INTEGER NOT NULL,
    PRIMARY KEY (run, job)) WITHOUT ROWID;
CREATE INDEX jobs_of_program ON jobs (app, input);
CREATE TABLE overlaps (
    run TEXT NOT NULL, job INTEGER NOT NULL, other INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (run, job, other)) WITHOUT ROWID;
"""

_LATER = """
CREATE TABLE IF NOT EXISTS attempts (
    run TEXT NOT NULL, job INTEGER NOT NULL, app TEXT NOT NULL, input TEXT NOT NULL, ranks INTEGER NOT NULL,
    cores INTEGER NOT NULL, nodes TEXT NOT NULL, start REAL NOT NULL, "end" REAL NOT NULL, machine TEXT NOT NULL,
    PRIMARY KEY (run, job, start)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes (
    machine TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, cause TEXT NOT NULL, since REAL NOT NULL,
    text TEXT NOT NULL, PRIMARY KEY (machine, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS probes (
    machine TEXT NOT NULL, name TEXT NOT NULL, time REAL NOT NULL, compute REAL NOT NULL, memory REAL NOT NULL,
    workers INTEGER NOT NULL, fault TEXT NOT NULL, PRIMARY KEY (machine, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_of_run ON jobs (run, "end");
DROP INDEX IF EXISTS jobs_by_end;
"""
"""Tables and an index that were added without a new format; earlier versions of vrm ignore them."""

_INSERT = "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT = """
SELECT j.* FROM jobs j JOIN runs r ON r.run = j.run WHERE (?1 = '' OR j.app = ?1) AND (?2 = '' OR r.machine = ?2)"""
_RUNS = """
SELECT (SELECT max("end") FROM jobs j WHERE j.run = r.run) AS newest, r.run FROM runs r
WHERE (?1 = '' OR r.machine = ?1) AND newest IS NOT NULL"""
_OF_RUN = """SELECT * FROM jobs WHERE run = ?1 AND (?2 = '' OR app = ?2) ORDER BY "end" DESC, job DESC LIMIT ?3"""
_DELETE = (
    "DELETE FROM jobs WHERE (?1 = '' OR app = ?1) AND (?2 = '' OR run = ?2)",
    "DELETE FROM overlaps WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.run = overlaps.run AND j.job = overlaps.job)",
    "DELETE FROM runs WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.run = runs.run)")

_ADD = {"attempts": "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "nodes": "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?)",
        "probes": "INSERT OR REPLACE INTO probes VALUES (?, ?, ?, ?, ?, ?, ?)"}
_FIND = {"attempts": "SELECT * FROM attempts WHERE ?1 = '' OR machine = ?1",
         "nodes": "SELECT * FROM nodes WHERE ?1 = '' OR machine = ?1",
         "probes": "SELECT * FROM probes WHERE ?1 = '' OR machine = ?1"}


_END = 8
"""Position of the end in a row of `jobs`."""


class StoreError(UserError):
    """The store cannot be used; the text names the file, the reason and what to do."""


def place(wish: str, env: Mapping[str, str] | None = None) -> Path | None:
    """Return the file of the store according to the key `Learning.Store`: a path, or the place of the XDG
    directories; None if there is to be no store."""
    if wish == OFF:
        return None
    if wish != AUTO:
        return Path(wish)
    env = os.environ if env is None else env
    base = env.get("XDG_DATA_HOME", "")
    home = Path(base) if base.startswith("/") else Path(env.get("HOME") or "~").expanduser() / ".local" / "share"
    return home / "vrm" / "learned.sqlite"


class LearnedStore:
    """An open store, to be used in a `with`. A missing file and its directory are created; with `reading` they
    are not, and the store is then empty. Raises StoreError."""

    def __init__(self, path: Path, patience: float = PATIENCE, reading: bool = False) -> None:
        """`patience`: seconds to wait while another program writes."""
        self.path = path
        self._patience = patience
        self._file: sqlite3.Connection | None = None
        with self._told():
            self._check()
            if not path.exists():
                if reading:
                    return
                path.parent.mkdir(0o700, parents=True, exist_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            self._file = self._opened()
            self._begin()

    def __enter__(self) -> LearnedStore:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _check(self) -> None:
        at, kind = mounted(self.path)
        if shared(kind):
            raise StoreError(f"{self.path} is on a file system that machines share ({kind} at {at}), where several "
                             "managers cannot lock it safely; name a file on a local disk (Learning: {Store: PATH})")
        with contextlib.suppress(FileNotFoundError):
            wrong = fault(self.path.lstat())
            if wrong:
                raise StoreError(f"{self.path} {wrong}")

    def _opened(self) -> sqlite3.Connection:
        try:
            import sqlite3
        except ImportError as error:
            raise StoreError(f"this Python has no sqlite3 ({error}); use one that has it, or write "
                             "Learning: {Store: off}") from error
        return sqlite3.connect(self.path, timeout=self._patience, isolation_level=None)

    def _begin(self) -> None:
        """Create the tables in an empty file. Raises StoreError for a file of another program or of a newer
        vrm."""
        if self._number("application_id") == MARK:
            self._known()
            return
        with self._change() as file:
            if self._number("application_id") == MARK:  # another manager was faster
                return
            if next(file.execute("SELECT count(*) FROM sqlite_master"))[0]:
                raise StoreError(f"{self.path} is a database of another program; name another file "
                                 "(Learning: {Store: PATH})")
            for statement in _TABLES.split(";"):
                file.execute(statement)
            self._add_tables(file)
            file.execute(f"PRAGMA application_id = {MARK}")
            file.execute(f"PRAGMA user_version = {VERSION}")

    def _known(self) -> None:
        version = self._number("user_version")
        if version != VERSION:
            raise StoreError(f"{self.path} has form {version}, and this vrm reads form {VERSION}: another vrm wrote "
                             "it; use that one, or name another file (Learning: {Store: PATH})")
        if not self._has("jobs_of_run"):
            with self._change() as file:
                self._add_tables(file)

    def _has(self, table: str) -> bool:
        assert self._file is not None
        return bool(self._file.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone())

    @staticmethod
    def _add_tables(file: sqlite3.Connection) -> None:
        for statement in _LATER.split(";"):
            file.execute(statement)

    def _number(self, name: str) -> int:
        assert self._file is not None
        return int(next(self._file.execute(f"PRAGMA {name}"))[0])

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Raise StoreError for errors of the disk and of SQLite."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"{error.filename or self.path}: {(error.strerror or str(error)).lower()}; name another "
                             "file (Learning: {Store: PATH})") from error
        except StoreError:
            raise
        except Exception as error:
            if type(error).__module__ != "sqlite3":
                raise
            if "locked" in str(error):
                raise StoreError(f"{self.path}: another program has locked it for {self._patience:g} s; try again, or "
                                 "end that program") from error
            if "malformed" in str(error) or "not a database" in str(error):
                raise StoreError(f"{self.path} is damaged ({error}); move it away: vrm makes a new one, and "
                                 "`vrm learned import LOG` adds earlier runs") from error
            raise StoreError(f"{self.path}: {error}") from error

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Run the body as one transaction."""
        assert self._file is not None
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield self._file
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    def add(self, run: str, directory: str, machine: str, jobs: Iterable[LearnedJob],
            overlaps: Iterable[Overlap] = ()) -> None:
        """Add jobs of a run, and how long they were neighbours. Raises StoreError."""
        with self._told(), self._change() as file:
            file.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (run, directory, machine))
            file.executemany(_INSERT, (tuple(vars(each).values()) for each in jobs))
            file.executemany("INSERT OR REPLACE INTO overlaps VALUES (?, ?, ?, ?)",
                             ((run, each.job, each.other, each.seconds) for each in overlaps))

    def unknown(self, run: str, jobs: Collection[int]) -> set[int]:
        """Return the jobs of a run that are not in the store. Raises StoreError."""
        assert self._file is not None
        with self._told():
            there = self._file.execute("SELECT job FROM jobs WHERE run = ? AND job BETWEEN ? AND ?",
                                       (run, min(jobs), max(jobs)))
            return {*jobs}.difference(job for job, in there)

    def jobs(self, app: str = "", machine: str = "", last: int = -1) -> list[LearnedJob]:
        """Return the jobs in the order of their ends, only of one program and machine if these are given; only
        the `last` ones, unless `last` is negative. Raises StoreError."""
        rows = self._rows(_SELECT, app, machine) if last < 0 else self._last(app, machine, last)
        found = (LearnedJob(*(*row[:-2], bool(row[-2]), bool(row[-1]))) for row in rows)
        return sorted(found, key=lambda job: (job.end, job.run, job.job))

    def _last(self, app: str, machine: str, last: int) -> list[Any]:
        """Return the rows of the last jobs. Runs are read from the newest on, each by an index: a store may have very
        many jobs of other machines, or of older runs."""
        found: list[Any] = []
        for newest, run in sorted(self._rows(_RUNS, machine), reverse=True):
            if len(found) >= last and (not last or newest < found[-1][_END]):
                break
            found += self._rows(_OF_RUN, run, app, last)
            found.sort(key=lambda row: (row[_END], *row[:2]), reverse=True)
            del found[last:]
        return found

    def machines(self) -> dict[str, str]:
        """Return the machine of each run. Raises StoreError."""
        return dict(self._rows("SELECT run, machine FROM runs"))

    def overlaps(self) -> list[tuple[str, int, int, float]]:
        """Return the run, the two jobs, and the seconds of each overlap. Raises StoreError."""
        return self._rows("SELECT run, job, other, seconds FROM overlaps")

    def add_rows(self, table: str, rows: Iterable[Any]) -> None:
        """Add rows (data classes with fields in the order of the columns) to a table; a row replaces an earlier
        one with the same key. Raises StoreError."""
        with self._told(), self._change() as file:
            for row in rows:
                file.execute(_ADD[table], tuple(vars(row).values()))

    def rows(self, table: str, machine: str = "") -> list[tuple[Any, ...]]:
        """Return the rows of one of the tables `attempts`, `nodes` and `probes`, only of one machine if it is
        given. Raises StoreError."""
        return self._rows(_FIND[table], machine)

    def _rows(self, query: str, *values: Any) -> list[Any]:
        if self._file is None:
            return []
        with self._told():
            return self._file.execute(query, values).fetchall()

    def forget(self, app: str = "", run: str = "") -> int:
        """Delete the jobs of a program, or of a run, or all; return the number of deleted jobs. Raises
        StoreError."""
        if self._file is None:
            return 0
        with self._told():
            with self._change() as file:
                gone = file.execute(_DELETE[0], (app, run)).rowcount
                for statement in _DELETE[1:]:
                    file.execute(statement)
                file.execute("DELETE FROM attempts WHERE (?1 = '' OR app = ?1) AND (?2 = '' OR run = ?2)", (app, run))
                if not app and not run:
                    file.execute("DELETE FROM nodes")
                    file.execute("DELETE FROM probes")
            self._file.execute("VACUUM")
        return int(gone)
