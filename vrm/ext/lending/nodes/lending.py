"""The files by which processes of malleable jobs learn which cores they may use (docs/reference/lending-protocol.md,
vrm/ext/lending/vrm_lending.h): vrm's side of them. One file, the standard library only, Python 3.6 or newer.

Each process makes its own file, in a folder of its job in this node's memory; vrm writes what is wanted.
Nothing is mapped here, so that a file which somebody cuts cannot end an agent, and nothing waits. A file
that is not exactly as it must be is nobody's.
"""

import fcntl
import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, Iterable, List, Optional, Tuple

PLACE = "/dev/shm"
SIZE, CPUS = 4096, 4096
"""Bytes of a file, and bits of a mask."""

HEAD = struct.Struct("=8sIIIIQQB")
"""Magic, size, kind, pid, threads, started, acknowledged, index."""

WANTED = struct.Struct("=QII{}s".format(CPUS // 8))
"""Epoch, cores, cores at the start, mask."""

INDEX, FIRST = HEAD.size - 1, 120
START = FIRST + 2 * WANTED.size
"""Where the index is, the first of the two buffers, and the mask of the start."""

MAGIC = b"VRMLEND1"


def folder(run: str, job: int, user: "Optional[int]" = None) -> str:
    """Where the files of a job's processes are, on each node; `VRM_LENDING` says it to the job."""
    return "{}/vrm-lending.{}.{}.{}".format(PLACE, os.geteuid() if user is None else user, run, job)


def places(run: str, job: "Optional[int]") -> "List[str]":
    """The folders of a job, or of all jobs of a run (None), which may not be there."""
    if job is not None:
        return [folder(run, job)]
    begin = os.path.basename(folder(run, 0))[:-1]
    try:
        return [os.path.join(PLACE, name) for name in os.listdir(PLACE) if name.startswith(begin)]
    except OSError:
        return []


def publish(place: str, pid: int, started: int, epoch: int, cpus: "Iterable[int]",
            share: "Optional[Tuple[int, int]]" = None, own: "Iterable[int]" = ()) -> "Optional[Dict[str, int]]":
    """Write an order into the file of a process, unless it or a later one is there; what the process says:
    `acknowledged`, the epoch that it follows, and `threads`. None where it has no (sound) file. `share`:
    how many cores these are, and of how many, where that is not to be counted. `own`: what it has where its job
    lends nothing; it may have made its file when its mask was narrow already."""
    try:
        if not _private(place):
            return None
        handle = os.open("{}/{}".format(place, pid), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_size != SIZE:
            return None
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an agent that was given up may live still
        text = os.pread(handle, SIZE, 0)
        if len(text) < SIZE:
            return None
        magic, size, _, owner, threads, since, acknowledged, index = HEAD.unpack_from(text)
        if (magic, size, owner, since) != (MAGIC, SIZE, pid, started):
            return None
        if WANTED.unpack_from(text, FIRST + WANTED.size * (index & 1))[0] < epoch:
            wanted = frozenset(cpus)
            start = mask_of(text[START:START + CPUS // 8]) | wanted.union(own)
            here, of = share or (count(wanted), count(start))
            index = (index + 1) % 256
            os.pwrite(handle, WANTED.pack(epoch, here, of, bits(wanted)),
                      FIRST + WANTED.size * (index & 1))
            os.pwrite(handle, bytes([index]), INDEX)  # one byte: it is there, or it is not
        return {"acknowledged": acknowledged, "threads": threads}
    except OSError:
        return None
    finally:
        os.close(handle)


def remove(place: str, dead_only: bool = False) -> None:
    """Remove the files of a job that has ended, or those of its processes that have."""
    try:
        if not _private(place):
            return
        for name in os.listdir(place):
            if not (dead_only and os.path.exists("/proc/" + name.split(".")[0])):
                os.unlink("{}/{}".format(place, name))
        os.rmdir(place)
    except OSError:
        pass  # it is not there, or a process of the job has just made one


def _private(place: str) -> bool:
    about = os.lstat(place)
    return (stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
            and not about.st_mode & 0o077)


def bits(cpus: "Iterable[int]") -> bytes:
    """A mask of CPUs as the kernel has it."""
    mask = bytearray(CPUS // 8)
    for cpu in cpus:
        if cpu < CPUS:
            mask[cpu // 8] |= 1 << cpu % 8
    return bytes(mask)


def mask_of(text: bytes) -> "FrozenSet[int]":
    """The CPUs of a mask."""
    return frozenset(8 * place + bit for place, byte in enumerate(text) if byte
                     for bit in range(8) if byte >> bit & 1)


def count(cpus: "Iterable[int]") -> int:
    """How many cores these CPUs are; of several hardware threads of a core one is counted."""
    known = cores_of()
    return len({known.get(cpu, cpu) for cpu in cpus})


_CORES: "Dict[int, int]" = {}


def cores_of() -> "Dict[int, int]":
    """The first CPU of the core of each CPU of this node; none where the kernel does not say it."""
    if not _CORES:
        for cpu in range(os.cpu_count() or 1):
            try:
                with open("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list".format(cpu)) as file:
                    _CORES[cpu] = int(file.read().replace("-", ",").split(",")[0])
            except (OSError, ValueError):
                _CORES[cpu] = cpu
    return _CORES
