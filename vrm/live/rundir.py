"""The directory of a run: where its files are, who owns it, and what an earlier run left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Iterator, List, Optional

PRIVATE = 0o700


class RunError(Exception):
    """The manager cannot run; the text says why and what to do."""


class RunDirectory:
    """Paths of a run below its directory, its outputs and its state file.

    `pids/<id>` marks a live job, `ended/<id>` holds the exit status that a supervisor wrote
    until the manager has it in its journal, `commands/` and `replies/` carry `vrm submit`,
    `vrm cancel` and `vrm stop`.
    """

    def __init__(self, directory: Path, log: Path, state: Path) -> None:
        self.directory = Path(directory)
        self.log = Path(log)
        self.state = Path(state)
        self.lock = self.directory / "lock"
        self.journal = self.directory / "journal"
        self.jobs = self.directory / "jobs.csv"
        self.pids = self.directory / "pids"
        self.ended = self.directory / "ended"
        self.rankfiles = self.directory / "rankfiles"
        self.commands = self.directory / "commands"
        self.replies = self.directory / "replies"

    def marker(self, job_id: int) -> Path:
        """The file that stands while the job runs."""
        return self.pids / str(job_id)

    def status(self, job_id: int) -> Path:
        """The file to which the job's supervisor writes its exit status."""
        return self.ended / str(job_id)

    def rankfile(self, app: str, job_id: int) -> Path:
        """The rankfile of a job."""
        return self.rankfiles / f"{app}.{job_id}.rf"

    def output(self, app: str, job_id: int) -> Path:
        """Where the job's standard output goes."""
        return self.log / f"{app}.{job_id}.o"

    def errors(self, app: str, job_id: int) -> Path:
        """Where the job's standard error goes, with the bindings that mpirun reports."""
        return self.log / f"{app}.{job_id}.e"

    def create(self) -> None:
        """Make the directories, private ones for this user only; RunError when that fails."""
        try:
            for public in (self.log, self.state.parent, self.directory):
                public.mkdir(parents=True, exist_ok=True)
            for private in (self.pids, self.ended, self.rankfiles, self.commands, self.replies):
                private.mkdir(mode=PRIVATE, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make {error.filename}: {error.strerror}; set Log, State or "
                           "Directory to a place you may write to") from error
        for place in (self.log, self.state.parent, self.directory, self.pids, self.ended,
                      self.rankfiles, self.commands):
            probe = place / f".writable.{os.getpid()}"
            try:
                probe.touch()
                probe.unlink()
            except OSError as error:
                raise RunError(f"cannot write in {place}: {error.strerror}; set Log, State or "
                               "Directory to a place you may write to") from error

    @contextlib.contextmanager
    def owned(self) -> Iterator[int]:
        """Own the directory while the block runs: gives the lock's descriptor.

        Raises RunError when another manager owns it.
        """
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
                raise RunError(f"a manager ({owner}) runs on {self.directory} already; stop it "
                               "with `vrm stop`, or give this run another Directory") from error
            except OSError as error:
                raise RunError(f"cannot lock {self.lock}: {error.strerror}; put Directory on a "
                               "file system that knows locks") from error
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            yield fd
        finally:
            os.close(fd)

    def manager_runs(self) -> bool:
        """Whether a manager owns the directory at this moment."""
        try:
            fd = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def archive(self, outputs: List[Path]) -> Optional[Path]:
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
        for path in [*old, *self.rankfiles.glob("*.rf"), *outputs]:
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, folder / path.name)
        for path in [*self.pids.iterdir(), *self.ended.iterdir()]:
            path.unlink()
        return folder


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content so that a reader sees the old text or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, value: object) -> None:
    """`write_atomically` of a value as JSON."""
    write_atomically(path, json.dumps(value, separators=(",", ":")))
