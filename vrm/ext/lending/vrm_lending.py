"""Lets a Python program learn which cores it may use now (docs/reference/lending-protocol.md; vrm_lending.h does
the same for C). This single file needs only the standard library: you may copy it to your program.

    cores = vrm_lending.Lending()          # outside of a malleable job it never returns an order
    while working:                         # at a point where the number of workers may change
        wanted = cores.take()
        if wanted is not None:
            workers = wanted.threads(at_the_start)
            ...
            cores.acknowledge(wanted, workers)"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from typing import NamedTuple

SIZE, CPUS, MAGIC, PROGRAM = 4096, 4096, b"VRMLEND1", 1
_HEAD = struct.Struct("=8sIIIIQQB")
_WANTED = struct.Struct(f"=QII{CPUS // 8}s")
_FIRST, _THREADS, _ACKNOWLEDGED, _INDEX = 120, 20, 32, 40
_START = _FIRST + 2 * _WANTED.size


class Wanted(NamedTuple):
    """An order: the CPUs that the process may use, the number of these cores, and the number of cores at its start
    (`of`)."""

    epoch: int
    cores: int
    of: int
    cpus: frozenset[int]

    def threads(self, at_start: int) -> int:
        """Return the number of threads or workers to use if the program started with `at_start`: between 1 and
        `at_start`; one for each core if it started with at most one per core, otherwise in proportion."""
        threads = self.cores if at_start <= self.of else -(-at_start * self.cores // self.of)
        return max(1, min(at_start, threads))


def _started() -> int:
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


class Lending:
    """The file of this process. `active`: the process is part of a malleable job. No method waits or raises an
    error."""

    def __init__(self) -> None:
        self.active = False
        self._taken = 0
        self._pid = os.getpid()
        folder = os.environ.get("VRM_LENDING", "")
        self._path = f"{folder}/{self._pid}"
        if not folder.startswith("/"):
            return
        try:
            self._make(folder)
        except OSError:
            return  # no memory file system, no space, or a folder of another user: the same as outside of a job
        self.active = True

    def _make(self, folder: str) -> None:
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        about = os.lstat(folder)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise PermissionError(folder)
        mask = sum(1 << cpu for cpu in os.sched_getaffinity(0) if cpu < CPUS)
        text = _HEAD.pack(MAGIC, SIZE, PROGRAM, self._pid, 0, _started(), 0, 0).ljust(_START, b"\0")
        aside = self._path + ".new"
        if os.path.lexists(aside):
            os.unlink(aside)
        handle = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, (text + mask.to_bytes(CPUS // 8, "little")).ljust(SIZE, b"\0"))
            self._file = mmap.mmap(handle, SIZE)
        finally:
            os.close(handle)
        os.rename(aside, self._path)

    def take(self) -> Wanted | None:
        """Return the order that has come since the last one was taken; None if there is none."""
        if not self.active or self._file[_INDEX] == self._taken:
            return None
        for _ in range(3):
            index = self._file[_INDEX]
            at = _FIRST + _WANTED.size * (index & 1)
            epoch, cores, of, mask = _WANTED.unpack(self._file[at:at + _WANTED.size])
            if self._file[_INDEX] == index:  # otherwise it was overwritten meanwhile
                self._taken = index
                bits = int.from_bytes(mask, "little")
                return Wanted(epoch, cores, of, frozenset(
                    cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1))
        return None

    def acknowledge(self, wanted: Wanted, threads: int) -> None:
        """Confirm that the order is followed, with this number of threads or workers."""
        if self.active:
            self._file[_THREADS:_THREADS + 4] = struct.pack("=I", threads)
            self._file[_ACKNOWLEDGED:_ACKNOWLEDGED + 8] = struct.pack("=Q", wanted.epoch)

    def close(self) -> None:
        """Remove the file. vrm removes the files of processes that were killed."""
        if self.active and os.getpid() == self._pid:
            self.active = False
            self._file.close()
            try:
                os.unlink(self._path)
            except OSError:
                pass  # vrm has removed it already
