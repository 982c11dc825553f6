"""Files of a run: opened so that no link, pipe or file of another account is taken for one of them.

Who could once write in a directory may have put such a thing there under the name of a file that
vrm is going to write. It is found when the file is opened, never followed, and never waited for.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import grp
import os
import pwd
import secrets
import stat
from pathlib import Path
from typing import Union
from collections.abc import Iterator

PathLike = Union[str, "os.PathLike[str]"]

_LINK = "is a symbolic link where a file of vrm's own belongs; remove it"
_NO_FILE = "is a {} where a file belongs; move it away"
_WRITES = os.O_WRONLY | os.O_RDWR


@functools.cache
def trusted_owners() -> tuple[int, ...]:
    """The user of this process, root, and who owns the root directory: in a user namespace that is root."""
    return os.geteuid(), 0, os.stat("/").st_uid


@functools.cache
def user_name(uid: int) -> str:
    """An account's name, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@functools.cache
def group_name(gid: int) -> str:
    """A group's name, or its number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def fault(about: os.stat_result, written: bool = True) -> str:
    """Why something is not a file of this user's own, with the fix; "" when it is one. Root's files
    count as one's own. `written`: it is to be written where it is, which would change what other
    names of it (hard links) show."""
    kind = next((name for name, test in _KINDS if test(about.st_mode)), "")
    if stat.S_ISLNK(about.st_mode):
        return _LINK
    if kind:
        return _NO_FILE.format(kind)
    if about.st_uid not in trusted_owners():
        return f"belongs to {user_name(about.st_uid)}; remove it, or make a copy of your own"
    if written and about.st_nlink > 1:
        return "has more than one name (hard links); replace it by a copy of your own"
    return ""


_KINDS = (("directory", stat.S_ISDIR), ("pipe", stat.S_ISFIFO), ("socket", stat.S_ISSOCK),
          ("device", stat.S_ISCHR), ("device", stat.S_ISBLK))


def open_own(path: PathLike, flags: int, mode: int = 0o600) -> int:
    """Open a file of this user's own and return its descriptor; without waiting for a pipe.

    OSError, whose text says what is there and what to do about it, for anything else (`fault`).
    """
    assert not flags & os.O_TRUNC, "the file would be emptied before it is looked at"
    path = os.fspath(path)
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC,
                         mode)
    except OSError as error:
        text = {errno.ELOOP: _LINK, errno.ENXIO: _NO_FILE.format("pipe or socket"),
                errno.EISDIR: _NO_FILE.format("directory")}.get(error.errno or 0)
        if text:
            raise OSError(error.errno, text, path) from error
        raise
    wrong = fault(os.fstat(handle), bool(flags & _WRITES))
    if wrong:
        os.close(handle)
        raise OSError(errno.EPERM, wrong, path)
    return handle


def read_own(path: PathLike, most: int = -1) -> bytes:
    """The content of a file of this user's own, or its first `most` bytes; OSError as `open_own`,
    and when it has more than that."""
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        data = file.read(most + 1 if most >= 0 else -1)
    if 0 <= most < len(data):
        raise OSError(errno.EFBIG, f"is longer than {most} bytes", os.fspath(path))
    return data


def read_regular(path: PathLike, most: int = -1) -> bytes:
    """The content of a file, whosever it is; OSError for a pipe, which is not waited for, and for a
    file that has more than `most` bytes."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
        data = file.read(most + 1 if most >= 0 else -1)
    if 0 <= most < len(data):
        raise OSError(errno.EFBIG, f"is longer than {most} bytes", os.fspath(path))
    return data


def write_new(path: PathLike, text: str, private: bool = False) -> None:
    """Write a file that is new: what has its name is removed, and never written through. With
    `private` for this user only, whatever the umask."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o600 if private else 0o666
    try:
        handle = os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        handle = os.open(path, flags, mode)
    with naming(path), open(handle, "w", encoding="utf-8") as file:
        file.write(text)


def write_atomically(path: Path, text: str, private: bool = False) -> None:
    """Replace a file's content so that a reader sees the old text or the new, never a part;
    `private`: for this user only, whatever the umask."""
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        write_new(temporary, text, private)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync_names(directory: PathLike) -> None:
    """Bring the names of the files in a directory to disk: that a file is there after the death of its machine, its own
    sync does not say. OSError when that fails; a directory that this user may not read is left to its file system, and
    so is one of a file system that knows no such thing."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise OSError(error.errno, error.strerror, os.fspath(directory)) from error
    finally:
        os.close(handle)


@contextlib.contextmanager
def naming(path: PathLike) -> Iterator[None]:
    """Errors of the system within the block name the file: a full disk does not say which."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
