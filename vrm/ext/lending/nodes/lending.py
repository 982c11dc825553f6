"""vrm's side of the files from which processes of malleable jobs learn which cores they may use
(docs/reference/lending-protocol.md, vrm/ext/lending/vrm_lending.h). One file, only the standard library, Python 3.6
or newer.

Each process makes its own file, in a folder of its job in this node's memory file system; vrm writes orders into it.
vrm does not map the file, so that an agent cannot crash if somebody truncates it, and never waits for a lock. A file
that does not have exactly the right form is ignored."""

import fcntl
import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, Iterable, List, Optional, Tuple

PLACE = "/dev/shm"
SIZE, CPUS = 4096, 4096
"""Size of a file in bytes, and number of bits of a mask."""

HEAD = struct.Struct("=8sIIIIQQB")
"""Magic, size, kind, pid, threads, started, acknowledged, index."""

WANTED = struct.Struct("=QII{}s".format(CPUS // 8))
"""Epoch, cores, cores at the start, mask."""

INDEX, FIRST = HEAD.size - 1, 120
START = FIRST + 2 * WANTED.size
"""Positions of the index, of the first of the two buffers, and of the mask at the start."""

MAGIC = b"VRMLEND1"


def folder(run: str, job: int, user: "Optional[int]" = None) -> str:
    """Return the folder of the files of a job's processes on each node. The job finds it in the variable
    `VRM_LENDING`."""
    return "{}/vrm-lending.{}.{}.{}".format(PLACE, os.geteuid() if user is None else user, run, job)


def places(run: str, job: "Optional[int]") -> "List[str]":
    """Return the folders of a job (which may not exist), or the existing folders of all jobs of a run (None)."""
    if job is not None:
        return [folder(run, job)]
    begin = os.path.basename(folder(run, 0))[:-1]
    try:
        return [os.path.join(PLACE, name) for name in os.listdir(PLACE) if name.startswith(begin)]
    except OSError:
        return []


def write_order(place: str, pid: int, started: int, epoch: int, cpus: "Iterable[int]",
                share: "Optional[Tuple[int, int]]" = None, own: "Iterable[int]" = ()) -> "Optional[Dict[str, int]]":
    """Write an order into the file of a process, unless the file has this order or a later one. Return what the
    process reports: `acknowledged`, the epoch that it follows, and `threads`; None if it has no valid file. `share`:
    the number of these cores and of all its cores, if they should not be counted. `own`: the CPUs that the process
    has while its job lends nothing; its own record of them is incomplete if its mask was narrow already when it made
    the file."""
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
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an older agent, already replaced, may still run
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
            os.pwrite(handle, bytes([index]), INDEX)  # a single byte is written completely or not at all
        return {"acknowledged": acknowledged, "threads": threads}
    except OSError:
        return None
    finally:
        os.close(handle)


def remove(place: str, dead_only: bool = False) -> None:
    """Remove the files of a job that has ended; with `dead_only` only the files of processes that have ended."""
    try:
        if not _private(place):
            return
        for name in os.listdir(place):
            if not (dead_only and os.path.exists("/proc/" + name.split(".")[0])):
                os.unlink("{}/{}".format(place, name))
        os.rmdir(place)
    except OSError:
        pass  # there is no folder, or a process of the job has just made a file


def _private(place: str) -> bool:
    about = os.lstat(place)
    return (stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
            and not about.st_mode & 0o077)


def bits(cpus: "Iterable[int]") -> bytes:
    """Return a mask of CPUs in the kernel's format."""
    mask = bytearray(CPUS // 8)
    for cpu in cpus:
        if cpu < CPUS:
            mask[cpu // 8] |= 1 << cpu % 8
    return bytes(mask)


def mask_of(text: bytes) -> "FrozenSet[int]":
    """Return the CPUs of a mask."""
    return frozenset(8 * place + bit for place, byte in enumerate(text) if byte
                     for bit in range(8) if byte >> bit & 1)


def count(cpus: "Iterable[int]") -> int:
    """Return the number of cores that these CPUs belong to; several hardware threads of a core count once."""
    known = cores_of()
    return len({known.get(cpu, cpu) for cpu in cpus})


_CORES: "Dict[int, int]" = {}


def cores_of() -> "Dict[int, int]":
    """Return the first CPU of the core of each CPU of this node; a CPU whose core the kernel does not report is its
    own core."""
    if not _CORES:
        for cpu in range(os.cpu_count() or 1):
            try:
                with open("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list".format(cpu)) as file:
                    _CORES[cpu] = int(file.read().replace("-", ",").split(",")[0])
            except (OSError, ValueError):
                _CORES[cpu] = cpu
    return _CORES
