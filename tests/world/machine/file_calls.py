"""System calls about files, as functions of the module `os`."""

from __future__ import annotations

import errno
import os as real
import posixpath
import stat
from typing import Any

from world.machine.descriptors import (BellOpen, Channel, FileOpen, NullOpen, Open, PipeOpen, TextOpen, inode_waiters, opened)
from world.machine.files import DELETED, MOVED_TO, About, Inode, fail
from world.machine.kernel import K, UID, lowest
from world.machine.procfs import listed, of_proc
from world.machine.processes import Process

O_ACCMODE = 3
fspath, fsdecode, fsencode = real.fspath, real.fsdecode, real.fsencode


def text_of(path: Any) -> str:
    """Return a path as text."""
    if type(path) is str:
        return path
    return real.fsdecode(path)


def give(process: Process, open_file: Open, inherited: bool = False, least: int = 0) -> int:
    """Return a new file descriptor of a process for an open file."""
    limit = process.limits.get(7, (1024, 4096))[0]
    number = lowest(process, least)
    if number >= limit:
        raise fail(errno.EMFILE)
    process.files[number] = open_file
    open_file.count += 1
    if not inherited:
        process.on_exec.add(number)
    return number


def _wanted(inode: Inode | None, path: Any, flags: int) -> None:
    """Raise the error of open(2) for a name that leads to this inode."""
    writes = flags & O_ACCMODE != real.O_RDONLY
    if inode is None:
        if not flags & real.O_CREAT:
            raise fail(errno.ENOENT, path)
        return
    if flags & real.O_CREAT and flags & real.O_EXCL:
        raise fail(errno.EEXIST, path)
    if inode.is_link:
        raise fail(errno.ELOOP, path)
    if inode.is_dir and writes:
        raise fail(errno.EISDIR, path)
    if flags & real.O_DIRECTORY and not inode.is_dir:
        raise fail(errno.ENOTDIR, path)
    if not inode.mode & 0o400 or (writes and not inode.mode & 0o200):
        raise fail(errno.EACCES, path)
    if writes and K.disk.trouble == errno.EROFS and not stat.S_ISCHR(inode.mode):
        K.disk.failures += 1
        raise fail(errno.EROFS, path)


LOOKED_AT = tuple(f"/home/user/w/log/{name}/" for name in ("pids", "ended", "commands"))
"""Directories in which a manager finds messages about jobs."""


def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
    process = K.enter()
    name = text_of(path)
    if name.startswith(("/proc/", "/dev/")):
        return _open_special(process, name, path)
    if K.looking is not None and process.role == "manager" and name.startswith(LOOKED_AT):
        K.looking(name)
    follow = not flags & real.O_NOFOLLOW and not (flags & real.O_CREAT and flags & real.O_EXCL)
    there, last, inode = K.disk.walk(name, process.cwd, follow)
    if inode is not None and inode.is_link and not flags & real.O_CREAT and follow:
        raise fail(errno.ENOENT, path)
    _wanted(inode, path, flags)
    writes = flags & O_ACCMODE != real.O_RDONLY
    if inode is None:
        inode = K.disk.new(stat.S_IFREG | (mode & ~0o022))
        K.disk.change(path, (there, last, inode))
    if flags & real.O_TRUNC and writes:
        K.disk.resize(inode, 0, path)
    found = FileOpen(inode, flags & O_ACCMODE != real.O_WRONLY, writes, bool(flags & real.O_APPEND), name)
    return give(process, found)


def _open_special(process: Process, name: str, path: Any) -> int:
    if name == "/dev/null":
        return give(process, NullOpen())
    text = of_proc(name, process)
    if text is None:
        raise fail(errno.ENOENT, path)
    return give(process, TextOpen(text))


def close(number: int) -> None:
    process = K.enter()
    opened(process, number)
    K.close(process, number)


def closerange(first: int, last: int) -> None:
    process = K.enter()
    for number in sorted(process.files):
        if first <= number < last:
            K.close(process, number)


def read(number: int, size: int) -> bytes:
    return opened(K.enter(), number).read(size)


def write(number: int, data: Any) -> int:
    return opened(K.enter(), number).write(bytes(data))


def pread(number: int, size: int, at: int) -> bytes:
    found = opened(K.enter(), number)
    if not isinstance(found, FileOpen):
        raise fail(errno.ESPIPE)
    return found.pread(size, at)


def pwrite(number: int, data: Any, at: int) -> int:
    found = opened(K.enter(), number)
    if not isinstance(found, FileOpen):
        raise fail(errno.ESPIPE)
    return found.pwrite(bytes(data), at)


def lseek(number: int, at: int, whence: int = 0) -> int:
    found = opened(K.enter(), number)
    if not isinstance(found, FileOpen):
        raise fail(errno.ESPIPE)
    found.at = at if whence == 0 else found.at + at if whence == 1 else len(found.inode.data) + at
    return found.at


def _sync(number: int, data_only: bool) -> None:
    process = K.enter()
    found = opened(process, number)
    if not isinstance(found, FileOpen):
        raise fail(errno.EINVAL)
    seconds = K.slow()
    if seconds:
        K.sleep(seconds)
    K.disk.sync(found.inode, data_only)


def fsync(number: int) -> None:
    _sync(number, False)


def fdatasync(number: int) -> None:
    _sync(number, True)


def posix_fadvise(number: int, at: int, size: int, advice: int) -> None:
    opened(K.enter(), number)


def ftruncate(number: int, size: int) -> None:
    found = opened(K.enter(), number)
    if not isinstance(found, FileOpen) or not found.writable:
        raise fail(errno.EINVAL)
    K.disk.resize(found.inode, size)


def truncate(path: Any, size: int) -> None:
    if isinstance(path, int):
        return ftruncate(path, size)
    process = K.enter()
    K.disk.resize(K.disk.find(text_of(path), process.cwd), size, path)
    return None


def fstat(number: int) -> About:
    return opened(K.enter(), number).about()


def about(path: Any, follow: bool) -> About:
    """stat(2), or lstat(2)."""
    if isinstance(path, int):
        return fstat(path)
    process = K.enter()
    name = text_of(path)
    if name.startswith("/proc"):
        if listed(name, process) is not None:
            return About(Inode(5, stat.S_IFDIR | 0o555, 0), 0, 0)
        if of_proc(name, process) is None:
            raise fail(errno.ENOENT, path)
        return About(Inode(4, stat.S_IFREG | 0o444, 0), 0, 0)
    if name == "/dev/null":
        return NullOpen().about()
    try:
        inode = K.disk.find(name, process.cwd, follow)
    except OSError as error:
        raise fail(error.errno or 0, path) from None
    return About(inode, 0 if inode is K.disk.root else UID, len(inode.data))


def stat_(path: Any, *, dir_fd: Any = None, follow_symlinks: bool = True) -> About:
    return about(path, follow_symlinks)


def lstat(path: Any, *, dir_fd: Any = None) -> About:
    return about(path, False)


def access(path: Any, mode: int) -> bool:
    try:
        found = about(path, True)
    except OSError:
        return False
    return not mode & real.X_OK or bool(found.st_mode & 0o111)


def listdir(path: Any = ".") -> list[Any]:
    process = K.enter()
    name = text_of(path)
    if name.startswith("/proc"):
        found = listed(name, process)
        if found is None:
            raise fail(errno.ENOENT, path)
        return found
    inode = K.disk.find(name, process.cwd)
    if not inode.is_dir:
        raise fail(errno.ENOTDIR, path)
    names = list(inode.names)
    return [real.fsencode(each) for each in names] if isinstance(path, bytes) else names


def mkdir(path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
    process = K.enter()
    there, last, inode = K.disk.walk(text_of(path), process.cwd, False)
    if inode is not None:
        raise fail(errno.EEXIST, path)
    K.disk.change(path, (there, last, K.disk.new(stat.S_IFDIR | (mode & ~0o022))))


def _there(path: str) -> bool:
    try:
        about(path, False)
    except OSError:
        return False
    return True


def makedirs(path: Any, mode: int = 0o777, exist_ok: bool = False) -> None:
    above = posixpath.dirname(text_of(path))
    if above and above != "/" and not _there(above):
        makedirs(above, exist_ok=True)
    try:
        mkdir(path, mode)
    except FileExistsError:
        if not exist_ok or not stat.S_ISDIR(stat_(path).st_mode):
            raise


def _place(path: Any) -> tuple[Inode, str, Inode]:
    process = K.enter()
    there, last, inode = K.disk.walk(text_of(path), process.cwd, False)
    if inode is None:
        raise fail(errno.ENOENT, path)
    return there, last, inode


def place_of_socket(name: str) -> tuple[Inode, str, Inode | None]:
    """Return where the file of a socket is or will be: directory (an open file may name it), name, and inode if it exists."""
    process = K.enter()
    if not name.startswith("/proc/self/fd/"):
        return K.disk.walk(name, process.cwd)
    number, _, last = name.removeprefix("/proc/self/fd/").partition("/")
    found = opened(process, int(number))
    if not isinstance(found, FileOpen) or not found.inode.is_dir:
        raise fail(errno.ENOTDIR, name)
    return found.inode, last, found.inode.names.get(last)


def unlink(path: Any, *, dir_fd: Any = None) -> None:
    there, last, inode = _place(path)
    if inode.is_dir:
        raise fail(errno.EISDIR, path)
    K.disk.change(path, (there, last, None))
    K.disk.tell(there, DELETED)


def rmdir(path: Any, *, dir_fd: Any = None) -> None:
    there, last, inode = _place(path)
    if not inode.is_dir:
        raise fail(errno.ENOTDIR, path)
    if inode.names:
        raise fail(errno.ENOTEMPTY, path)
    K.disk.change(path, (there, last, None))


def rename(source: Any, target: Any, **_: Any) -> None:
    there, last, inode = _place(source)
    to, name, before = K.disk.walk(text_of(target), K.current.cwd, False)
    if before is inode:
        return
    if before is not None:
        if before.is_dir and not inode.is_dir:
            raise fail(errno.EISDIR, target)
        if inode.is_dir and not before.is_dir:
            raise fail(errno.ENOTDIR, target)
        if before.is_dir and before.names:
            raise fail(errno.ENOTEMPTY, target)
    inode.links += 1  # it has a name at any moment
    K.disk.change(source, (there, last, None), (to, name, inode))
    inode.links -= 1
    K.disk.tell(to, MOVED_TO)


def link(source: Any, target: Any, **_: Any) -> None:
    _, _, inode = _place(source)
    to, name, before = K.disk.walk(text_of(target), K.current.cwd, False)
    if before is not None:
        raise fail(errno.EEXIST, target)
    if inode.is_dir:
        raise fail(errno.EPERM, source)
    K.disk.change(target, (to, name, inode))


def symlink(source: Any, target: Any, **_: Any) -> None:
    process = K.enter()
    to, name, before = K.disk.walk(text_of(target), process.cwd, False)
    if before is not None:
        raise fail(errno.EEXIST, target)
    inode = K.disk.new(stat.S_IFLNK | 0o777)
    inode.text = text_of(source)
    K.disk.change(target, (to, name, inode))


def readlink(path: Any, *, dir_fd: Any = None) -> Any:
    process = K.enter()
    name = text_of(path)
    if name.startswith("/proc/self/fd/"):
        found = opened(process, int(name.rpartition("/")[2]))
        where = found.path if isinstance(found, FileOpen) else found.kind
        if isinstance(found, FileOpen):
            where = K.disk.path_of(found.inode) or f"{where} (deleted)"
        return real.fsencode(where) if isinstance(path, bytes) else where
    inode = K.disk.find(name, process.cwd, False)
    if not inode.is_link:
        raise fail(errno.EINVAL, path)
    return real.fsencode(inode.text) if isinstance(path, bytes) else inode.text


def chmod(path: Any, mode: int, **_: Any) -> None:
    process = K.enter()
    inode = K.disk.find(text_of(path), process.cwd)
    inode.mode = inode.mode & ~0o7777 | mode


def utime(path: Any, times: Any = None, **_: Any) -> None:
    process = K.enter()
    K.disk.find(text_of(path), process.cwd).mtime = int((K.now + K.ahead) * 1e9)


def getxattr(path: Any, name: Any, **_: Any) -> bytes:
    K.enter()
    raise fail(errno.ENODATA, path)


class Volume:
    """The result of statvfs(2)."""

    f_frsize, f_files, f_favail, f_blocks = 4096, 0, 0, 1 << 20

    def __init__(self) -> None:
        self.f_bavail = K.disk.left // 4096 if K.disk.trouble else 1 << 19


def statvfs(path: Any) -> Volume:
    process = K.enter()
    K.disk.find(text_of(path), process.cwd)
    return Volume()


def getcwd() -> str:
    return K.enter().cwd


def chdir(path: Any) -> None:
    process = K.enter()
    inode = K.disk.find(text_of(path), process.cwd)
    if not inode.is_dir:
        raise fail(errno.ENOTDIR, path)
    process.cwd = posixpath.normpath(posixpath.join(process.cwd, text_of(path)))


# Numbers of open files.


def pipe() -> tuple[int, int]:
    process = K.enter()
    channel = Channel()
    return give(process, PipeOpen(channel, False)), give(process, PipeOpen(channel, True))


def dup(number: int) -> int:
    process = K.enter()
    return give(process, opened(process, number))


def dup2(number: int, to: int, inheritable: bool = True) -> int:
    process = K.enter()
    found = opened(process, number)
    found.count += 1
    if to in process.files:
        K.close(process, to)
    process.files[to] = found
    (process.on_exec.discard if inheritable else process.on_exec.add)(to)
    return to


def set_inheritable(number: int, inheritable: bool) -> None:
    process = K.enter()
    opened(process, number)
    (process.on_exec.discard if inheritable else process.on_exec.add)(number)


def set_blocking(number: int, blocking: bool) -> None:
    opened(K.enter(), number).nonblocking = not blocking


def flock(number: Any, how: int) -> None:
    """flock(2): LOCK_SH 1, LOCK_EX 2, LOCK_NB 4, LOCK_UN 8."""
    process = K.enter()
    found = opened(process, number if isinstance(number, int) else number.fileno())
    if not isinstance(found, FileOpen):
        raise fail(errno.EBADF)
    inode, alone = found.inode, bool(how & 2)
    while True:
        holders = set() if inode.lock is None else inode.lock[1] - {found}
        if how & 8 or not holders or not (alone or inode.lock[0]):
            break
        if how & 4:
            raise fail(errno.EWOULDBLOCK)
        K.wait([inode_waiters(inode)])
    if how & 8:
        holders = holders if inode.lock is not None else set()
        inode.lock = (inode.lock[0], holders) if holders and inode.lock is not None else None
        K.wake(inode_waiters(inode))
    else:
        inode.lock = (alone, holders | {found})


def new_bell() -> int:
    return give(K.enter(), BellOpen())


def watch(number: int, path: Any, events: int) -> int:
    """inotify_add_watch(2); -1 if there is no such file."""
    process = K.enter()
    bell = opened(process, number)
    try:
        inode = K.disk.find(text_of(path), process.cwd)
    except OSError:
        return -1
    assert isinstance(bell, BellOpen)
    bell.watch(inode, events)
    return 1
