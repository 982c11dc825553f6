"""Opens files of a run so that no link, pipe or file of another account is taken for one of them.

A user who could once write in a directory may have put such an object there under the name of a file that vrm is going
to write. It is detected when the file is opened; links are never followed, and pipes are never waited for.
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
    """Return the trusted accounts: the user of this process, root, and the owner of the root directory (in a user
    namespace that is root)."""
    return os.geteuid(), 0, os.stat("/").st_uid


@functools.cache
def user_name(uid: int) -> str:
    """Return an account's name, or `user N` if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@functools.cache
def group_name(gid: int) -> str:
    """Return a group's name, or its number if it has no name."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def fault(about: os.stat_result, written: bool = True) -> str:
    """Return why something is not a file of this user's own, with the fix; "" if it is one. Root's files count as
    one's own. `written`: the file will be written in place, which would also change what its other names (hard links)
    show."""
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
    """Open a file of this user's own and return its descriptor; never waits for a pipe.

    For anything else raises OSError, whose text says what is there and what to do about it (`fault`).
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
    """Return the content of a file of this user's own; raises OSError like `open_own`, and if the file has more than
    `most` bytes (-1: no limit)."""
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        data = file.read(most + 1 if most >= 0 else -1)
    if 0 <= most < len(data):
        raise OSError(errno.EFBIG, f"is longer than {most} bytes", os.fspath(path))
    return data


def read_regular(path: PathLike, most: int = -1) -> bytes:
    """Return the content of a file of any owner; raises OSError for a pipe, without waiting for it, and for a file
    that has more than `most` bytes (-1: no limit)."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
        data = file.read(most + 1 if most >= 0 else -1)
    if 0 <= most < len(data):
        raise OSError(errno.EFBIG, f"is longer than {most} bytes", os.fspath(path))
    return data


def write_new(path: PathLike, text: str, private: bool = False) -> None:
    """Write a new file: an existing object of that name is removed first, and never written to. `private`: readable
    for this user only, whatever the umask is."""
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
    """Replace a file's content so that a reader sees the old text or the new one, never a part. `private`: readable
    for this user only, whatever the umask is."""
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        write_new(temporary, text, private)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync_directory(directory: PathLike) -> None:
    """Force the names of the files in a directory to disk: the sync of a file alone does not ensure that the file
    exists after a crash of its machine. Raises OSError if that fails. Does nothing for a directory that this user may
    not read, or on a file system that cannot do this."""
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
    """Add the name of the file to errors of the system within the block: the error of a full disk does not name it."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
