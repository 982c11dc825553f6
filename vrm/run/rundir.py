"""The directory of a run: the paths of its files, its lock, and the files that an earlier run left."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Iterator, Mapping

from vrm.run.journal.archive import Archive
from vrm.system.errors import RunError
from vrm.system.files import (fault, naming, open_own, read_own, sync_directory, trusted_owners,
                              write_atomically, write_new)
from vrm.system.trust import distrust

PRIVATE = 0o700

HELPERS_END = 10.0
"""Seconds that the helper processes of a killed manager may keep the run's lock."""


class JobFiles(NamedTuple):
    """Paths of the files of a job: `output` and `errors` are its standard output and error, `bindings` is mpirun's
    binding report (for a job that vrm 0.1 started, the report is in `errors`)."""

    marker: str
    status: str
    rankfile: str
    output: str
    errors: str
    bindings: str


class RunDirectory:
    """Paths of a run: its directory, its outputs and its state file.

    `pids/<id>` marks a live job. `ended/<id>` holds the exit status that a supervisor wrote, until the manager has it
    in its journal. `scripts/` keeps the scripts that are jobs, `bin/` the commands that scripts find, `launchers/`
    those that only programs outside of jobs find. `commands/` and `replies/` carry `vrm submit`, `vrm cancel` and
    `vrm stop`.
    """

    def __init__(self, directory: Path, log: Path, state: Path) -> None:
        self.directory = Path(directory)
        self.log = Path(log)
        self.state = Path(state)
        self.lock = self.directory / "lock"
        self.journal = self.directory / "journal"
        self.jobs = self.directory / "jobs.csv"
        self.steps = self.directory / "steps.csv"
        self.shares = self.directory / "shares.csv"
        self.outputs = self.directory / "outputs"
        self.forecast = self.directory / "forecast.json"
        self.forecasts = self.directory / "forecasts.jsonl"
        self.pids = self.directory / "pids"
        self.ended = self.directory / "ended"
        self.rankfiles = self.directory / "rankfiles"
        self.scripts = self.directory / "scripts"
        self.programs = self.directory / "bin"
        self.launchers = self.directory / "launchers"
        self.commands = self.directory / "commands"
        self.replies = self.directory / "replies"
        self._kept: set[str] = set()  # scripts that this process has written or found
        self._pids, self._ended = str(self.pids), str(self.ended)
        self._rankfiles, self._log = str(self.rankfiles), str(self.log)

    @classmethod
    def of(cls, places: Any) -> RunDirectory:
        """Return the directory of a configuration: of its settings, or of the places that it names
        (`vrm.config.paths`)."""
        return cls(places.directory, places.log, places.state)

    def files(self, app: str, job_id: int) -> JobFiles:
        """Return the files of a job as strings, not paths, for speed: a manager needs those of thousands of jobs a
        second."""
        name = f"{app}.{job_id}"
        output, rankfile = f"{self._log}/{name}", f"{self._rankfiles}/{name}"
        return JobFiles(f"{self._pids}/{job_id}", f"{self._ended}/{job_id}", f"{rankfile}.rf",
                        f"{output}.o", f"{output}.e", f"{rankfile}.bindings")

    def keep_script(self, text: bytes) -> str:
        """Store the present text of a script on disk and return its stored name; equal scripts share one file. Raises
        OSError if it cannot be written."""
        name = f"s{hashlib.sha256(text).hexdigest()[:40]}"
        if name in self._kept:
            return name
        path = self.scripts / name
        try:
            if read_own(path) == text:
                sync_directory(self.scripts)  # whoever wrote it may have been killed before this step
                self._kept.add(name)
                return name
        except FileNotFoundError:
            pass
        temporary = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        with naming(temporary), open(open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700),
                                     "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(self.scripts)
        self._kept.add(name)
        return name

    def marker(self, job_id: int) -> Path:
        """Return the file that exists while the job runs."""
        return self.pids / str(job_id)

    def status(self, job_id: int) -> Path:
        """Return the file to which the job's supervisor writes the exit status."""
        return self.ended / str(job_id)

    def rankfile(self, app: str, job_id: int) -> Path:
        """Return the rankfile of a job."""
        return Path(self.files(app, job_id).rankfile)

    def output(self, app: str, job_id: int) -> Path:
        """Return the file of the job's standard output."""
        return Path(self.files(app, job_id).output)

    def errors(self, app: str, job_id: int) -> Path:
        """Return the file of the job's standard error."""
        return Path(self.files(app, job_id).errors)

    def create(self, trust: str = "own") -> None:
        """Make the directories, accessible only to this user.

        Raises RunError if that fails, if other users may write in existing ones (see `vrm.system.trust`) and could so
        put files and links under the names of the run's files, or if a file of such a name does not belong to this
        user.
        """
        try:
            for key, named in (("Log", self.log), ("State", self.state.parent),
                               ("Directory", self.directory)):
                named.mkdir(PRIVATE, parents=True, exist_ok=True)
                reason = distrust(named, trust, home=True)
                if reason:
                    raise RunError(f"{key}: {reason}")
            for private in (self.pids, self.ended, self.rankfiles, self.scripts, self.commands,
                            self.replies):
                private.mkdir(PRIVATE, exist_ok=True)
                _make_private(private)
            for file in (self.journal, self.jobs, self.steps, self.lock, self.state):
                with contextlib.suppress(FileNotFoundError):
                    reason = fault(file.lstat(), written=file != self.state)
                    if reason:
                        raise RunError(f"{file} {reason}")
        except OSError as error:
            raise RunError(f"cannot make {error.filename}: {error.strerror}; set Log, State or "
                           "Directory to a place you may write to") from error
        for place in (self.log, self.state.parent, self.directory, self.pids, self.ended,
                      self.rankfiles, self.commands):
            probe = place / ".writable"  # a probe left by a manager that was killed here is used again
            try:
                os.close(open_own(probe, os.O_WRONLY | os.O_CREAT))
                probe.unlink(missing_ok=True)
            except OSError as error:
                raise RunError(f"cannot write in {place}: {error.strerror}; set Log, State or "
                               "Directory to a place you may write to") from error

    def make_commands(self, programs: Mapping[str, str]) -> None:
        """Write programs, given by name, into `bin/`. Raises RunError if that fails."""
        try:
            self.programs.mkdir(PRIVATE, exist_ok=True)
            _make_private(self.programs)
            for name, text in programs.items():
                temporary = self.programs / f".{name}.{os.getpid()}"
                write_new(temporary, text)
                temporary.chmod(0o700)
                os.replace(temporary, self.programs / name)
        except OSError as error:
            raise RunError(f"cannot make {error.filename}: {error.strerror}") from error

    @contextlib.contextmanager
    def owned(self) -> Iterator[int]:
        """Lock the directory while the block runs; yields the descriptor of the lock file.

        Raises RunError if another manager has the lock.
        """
        fd = open_own(self.lock, os.O_RDWR | os.O_CREAT)
        try:
            try:
                end = time.monotonic() + HELPERS_END
                while not _locked(fd, patient=time.monotonic() < end):
                    time.sleep(0.02)  # a killed manager's lock is free when the last helper it started has ended
            except BlockingIOError as error:
                raise RunError(f"a manager ({_owner(fd)}) runs on {self.directory} already; stop it "
                               "with `vrm stop`, or set another Log (or Directory) for this run") from error
            except OSError as error:
                raise RunError(f"cannot lock {self.lock}: {error.strerror}; put Directory on a "
                               "file system that knows locks") from error
            for path in (*self.ended.glob(".*.old"), *self.log.glob(".vrm-*.[oe]")):
                path.unlink(missing_ok=True)  # left for reuse by processes that were killed
            with naming(self.lock):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            yield fd
        finally:
            os.close(fd)

    def manager_runs(self) -> bool:
        """Return whether a manager has the lock now."""
        try:
            fd = open_own(self.lock, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def archive(self, outputs: list[Path]) -> Path | None:
        """Move the files of an earlier run to `earlier/<time>/`; return that folder, or None if there are no
        files."""
        old = [p for p in (self.journal, self.jobs) if p.exists()]
        if not old:
            return None
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.journal.stat().st_mtime
                                                              if self.journal.exists() else None))
        folder = self.directory / "earlier" / stamp
        number = 1
        while folder.exists():
            number += 1
            folder = self.directory / "earlier" / f"{stamp}-{number}"
        folder.mkdir(parents=True)
        self.forecast.unlink(missing_ok=True)
        outputs = [*outputs, self.outputs, Archive(self.outputs).index]
        for path in [*old, self.steps, self.forecasts, *self.rankfiles.glob("*.rf"), *self.rankfiles.glob("*.bindings"),
                     *self.scripts.iterdir(), *outputs]:
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, folder / path.name)
        for path in [*self.pids.iterdir(), *self.ended.iterdir()]:
            path.unlink()
        for path in self.rankfiles.glob("*.steps"):
            shutil.rmtree(path, ignore_errors=True)
        return folder


def _owner(fd: int) -> str:
    """Return the text that the owner of a lock has written into the lock file."""
    return os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"


def _locked(fd: int, patient: bool) -> bool:
    """Lock the file. Return False, if `patient`, when the lock belongs to a manager that was killed on this host,
    whose helpers end soon. Raises BlockingIOError if another process has it, OSError if the file system has no
    locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        words = _owner(fd).split()
        here = len(words) == 4 and words[3] == socket.gethostname()
        if not patient or not here or os.path.exists(f"/proc/{words[1]}"):
            raise
        return False
    return True


def _make_private(directory: Path) -> None:
    """Remove the access of other users to a directory. Raises RunError if it does not belong to this user."""
    about = directory.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid not in trusted_owners():
        raise RunError(f"{directory} is not a directory of your own; move it away")
    if about.st_mode & 0o077:
        directory.chmod(PRIVATE)


def write_json(path: Path, value: object, private: bool = False) -> None:
    """Write a value as JSON with `write_atomically`."""
    write_atomically(path, json.dumps(value, separators=(",", ":")), private)
