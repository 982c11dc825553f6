"""The directory of a run: where its files are, who owns it, and what an earlier run left."""

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
from vrm.system.files import fault, naming, open_own, read_own, sync_names, trusted_owners, write_atomically, write_new
from vrm.system.trust import distrust

PRIVATE = 0o700

HELPERS_END = 10.0
"""Seconds in which what a killed manager leaves behind lets go of the run's lock."""


class JobFiles(NamedTuple):
    """Where the files of a job are: `output` and `errors` are what it prints, `bindings` what
    mpirun reports of them (in the errors of a job that vrm 0.1 has started)."""

    marker: str
    status: str
    rankfile: str
    output: str
    errors: str
    bindings: str


class RunDirectory:
    """Paths of a run below its directory, its outputs and its state file.

    `pids/<id>` marks a live job, `ended/<id>` holds the exit status that a supervisor wrote
    until the manager has it in its journal, `scripts/` keeps the scripts that are jobs,
    `bin/` the commands that scripts find, `launchers/` those that only programs outside of jobs find,
    `commands/` and `replies/` carry `vrm submit`, `vrm cancel` and `vrm stop`.
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
        self._kept: set[str] = set()  # scripts that are there since they were written by this process
        self._pids, self._ended = str(self.pids), str(self.ended)
        self._rankfiles, self._log = str(self.rankfiles), str(self.log)

    @classmethod
    def of(cls, places: Any) -> RunDirectory:
        """That of a configuration: its settings, or the places that it names (`vrm.config.paths`)."""
        return cls(places.directory, places.log, places.state)

    def files(self, app: str, job_id: int) -> JobFiles:
        """The files of a job, as texts: a manager asks for those of thousands of jobs a second."""
        name = f"{app}.{job_id}"
        output, rankfile = f"{self._log}/{name}", f"{self._rankfiles}/{name}"
        return JobFiles(f"{self._pids}/{job_id}", f"{self._ended}/{job_id}", f"{rankfile}.rf",
                        f"{output}.o", f"{output}.e", f"{rankfile}.bindings")

    def keep_script(self, text: bytes) -> str:
        """Keep a script as it is now, on disk; the name of what is kept, which equal scripts share.
        OSError when it cannot be written."""
        name = f"s{hashlib.sha256(text).hexdigest()[:40]}"
        if name in self._kept:
            return name
        path = self.scripts / name
        try:
            if read_own(path) == text:
                sync_names(self.scripts)  # who wrote it may have been killed before
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
        sync_names(self.scripts)
        self._kept.add(name)
        return name

    def marker(self, job_id: int) -> Path:
        """The file that stands while the job runs."""
        return self.pids / str(job_id)

    def status(self, job_id: int) -> Path:
        """The file to which the job's supervisor writes its exit status."""
        return self.ended / str(job_id)

    def rankfile(self, app: str, job_id: int) -> Path:
        """The rankfile of a job."""
        return Path(self.files(app, job_id).rankfile)

    def output(self, app: str, job_id: int) -> Path:
        """Where the job's standard output goes."""
        return Path(self.files(app, job_id).output)

    def errors(self, app: str, job_id: int) -> Path:
        """Where the job's standard error goes."""
        return Path(self.files(app, job_id).errors)

    def create(self, trust: str = "own") -> None:
        """Make the directories, for this user only.

        RunError when that fails, when others may write in those that are there already (see
        `vrm.system.trust`), who could put files and links under the names of a run's own, or when
        what has such a name is none of this user's files.
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
            probe = place / ".writable"  # what a manager that was killed here has left is the next one's probe
            try:
                os.close(open_own(probe, os.O_WRONLY | os.O_CREAT))
                probe.unlink(missing_ok=True)
            except OSError as error:
                raise RunError(f"cannot write in {place}: {error.strerror}; set Log, State or "
                               "Directory to a place you may write to") from error

    def make_commands(self, programs: Mapping[str, str]) -> None:
        """Write programs, by their names, into `bin/`. RunError when that fails."""
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
        """Own the directory while the block runs: gives the lock's descriptor.

        Raises RunError when another manager owns it.
        """
        fd = open_own(self.lock, os.O_RDWR | os.O_CREAT)
        try:
            try:
                end = time.monotonic() + HELPERS_END
                while not _locked(fd, patient=time.monotonic() < end):
                    time.sleep(0.02)  # a killed manager's lock goes with the last it was starting
            except BlockingIOError as error:
                raise RunError(f"a manager ({_owner(fd)}) runs on {self.directory} already; stop it "
                               "with `vrm stop`, or give this run another Directory") from error
            except OSError as error:
                raise RunError(f"cannot lock {self.lock}: {error.strerror}; put Directory on a "
                               "file system that knows locks") from error
            for path in (*self.ended.glob(".*.old"), *self.log.glob(".vrm-*.[oe]")):
                path.unlink(missing_ok=True)  # kept for later jobs by processes that were killed
            with naming(self.lock):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            yield fd
        finally:
            os.close(fd)

    def manager_runs(self) -> bool:
        """Whether a manager owns the directory at this moment."""
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
        """Move what an earlier run left to `earlier/<time>/`; the folder, or None if nothing."""
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
    """What the owner of a lock has written into its file."""
    return os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"


def _locked(fd: int, patient: bool) -> bool:
    """Lock the file; False, if `patient`, when a manager has it that was killed on this host, whose
    helpers end in a moment. Raises BlockingIOError when another has it, OSError where there are
    no locks."""
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
    """Keep others out of a directory of the run; RunError when it is none of this user's."""
    about = directory.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid not in trusted_owners():
        raise RunError(f"{directory} is not a directory of your own; move it away")
    if about.st_mode & 0o077:
        directory.chmod(PRIVATE)


def write_json(path: Path, value: object, private: bool = False) -> None:
    """`write_atomically` of a value as JSON."""
    write_atomically(path, json.dumps(value, separators=(",", ":")), private)
