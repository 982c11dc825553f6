"""`open` and `pathlib.Path` of the simulated machine."""

from __future__ import annotations

import errno
import fnmatch
import functools
import os as real
import stat
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from world.machine import file_calls as calls
from world.machine import path_calls as paths
from world.machine.files import About, fail
from world.machine.kernel import K

PART = 1 << 16


class File:
    """The file object of `open`: bytes, or text in UTF-8. Like Python's it buffers what is written until it is flushed or
    closed, or a line ends if `buffering` is 1; the buffer of a killed process is lost."""

    def __init__(self, number: int, name: Any, flags: int, text: bool, buffering: int, closefd: bool, errors: str,
                 newline: str | None) -> None:
        self._number, self.name, self._text, self._closefd, self._errors = number, name, text, closefd, errors
        self._by_line = text and buffering == 1
        self._bare = buffering == 0
        self._newline = newline
        self.closed = False
        self._unread = b""
        self._held = b""
        self._appends = bool(flags & real.O_APPEND)

    def fileno(self) -> int:
        return self._number

    def __enter__(self) -> File:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _more(self) -> bytes:
        return calls.read(self._number, PART)

    def _bytes(self, size: int | None) -> bytes:
        self.flush()
        if size is None or size < 0:
            parts = [self._unread]
            while True:
                part = self._more()
                if not part:
                    break
                parts.append(part)
            self._unread = b""
            return b"".join(parts)
        while len(self._unread) < size:
            part = self._more()
            if not part:
                break
            self._unread += part
            if self._bare:
                break
        found, self._unread = self._unread[:size], self._unread[size:]
        return found

    def _line(self, limit: int) -> bytes:
        while True:
            at = self._unread.find(b"\n") + 1
            if at and (limit < 0 or at <= limit):
                break
            if 0 <= limit <= len(self._unread):
                at = limit
                break
            part = self._more()
            if not part:
                at = len(self._unread)
                break
            self._unread += part
        found, self._unread = self._unread[:at], self._unread[at:]
        return found

    def _decoded(self, data: bytes) -> Any:
        if not self._text:
            return data
        text = data.decode("utf-8", self._errors)
        return text.replace("\r\n", "\n").replace("\r", "\n") if self._newline is None and "\r" in text else text

    def read(self, size: int | None = -1) -> Any:
        return self._decoded(self._bytes(size))

    def readline(self, limit: int = -1) -> Any:
        return self._decoded(self._line(limit))

    def __iter__(self) -> Iterator[Any]:
        while True:
            line = self.readline()
            if not line:
                return
            yield line

    def readlines(self, most: int = -1) -> list[Any]:
        found, size = list[Any](), 0
        for line in self:
            found.append(line)
            size += len(line)
            if 0 < most <= size:
                break
        return found

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        added = data.encode("utf-8", self._errors) if self._text else bytes(data)
        if self._unread:
            self.seek(self.tell())
        self._held += added
        if self._bare or len(self._held) > 8192 or (self._by_line and b"\n" in added):
            self.flush()
        return len(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        while self._held:
            written = calls.write(self._number, self._held)
            self._held = self._held[written:]

    def tell(self) -> int:
        self.flush()
        return calls.lseek(self._number, 0, 1) - len(self._unread)

    def seek(self, at: int, whence: int = 0) -> int:
        self.flush()
        if whence == 1:
            at, whence = self.tell() + at, 0
        self._unread = b""
        return calls.lseek(self._number, at, whence)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        calls.ftruncate(self._number, size)
        return size

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
        finally:
            self.closed = True
            if self._closefd:
                calls.close(self._number)


_MODES = {"r": real.O_RDONLY, "w": real.O_WRONLY | real.O_CREAT | real.O_TRUNC,
          "a": real.O_WRONLY | real.O_CREAT | real.O_APPEND, "x": real.O_WRONLY | real.O_CREAT | real.O_EXCL}


def open_file(file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
              newline: str | None = None, closefd: bool = True, opener: Any = None) -> File:
    """builtins.open."""
    flags = _MODES[mode.strip("bt+U")[0]]
    if "+" in mode:
        flags = flags & ~calls.O_ACCMODE | real.O_RDWR
    if isinstance(file, int):
        number = file
    elif opener is not None:
        number = opener(file, flags)
    else:
        number = calls.open_(file, flags, 0o666)
        if stat.S_ISDIR(calls.fstat(number).st_mode):
            calls.close(number)
            raise fail(errno.EISDIR, file)
    made = File(number, file, flags, "b" not in mode, buffering, closefd, errors or "strict", newline)
    if "a" in mode:
        calls.lseek(number, 0, 2) if not isinstance(file, int) else None
    return made


class Path(PurePosixPath):
    """pathlib.Path, as far as vrm uses it."""

    __slots__ = ()

    def __truediv__(self, name: Any) -> Path:
        return _joined(str(self), name) if type(name) is str else super().__truediv__(name)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema
        return core_schema.no_info_plain_validator_function(cls)

    @classmethod
    def cwd(cls) -> Path:
        return cls(calls.getcwd())

    @classmethod
    def home(cls) -> Path:
        return cls("/home/user")

    def expanduser(self) -> Path:
        return self.home() / str(self)[2:] if str(self).startswith("~/") else self

    def stat(self, *, follow_symlinks: bool = True) -> About:
        return calls.stat_(str(self), follow_symlinks=follow_symlinks)

    def lstat(self) -> About:
        return calls.lstat(str(self))

    def exists(self) -> bool:
        return paths.exists(str(self))

    def is_file(self) -> bool:
        return bool(paths.kind_is(stat.S_ISREG)(str(self)))

    def is_dir(self) -> bool:
        return bool(paths.kind_is(stat.S_ISDIR)(str(self)))

    def is_symlink(self) -> bool:
        return bool(paths.kind_is(stat.S_ISLNK, False)(str(self)))

    def open(self, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None, newline: Any = None
             ) -> File:
        return open_file(str(self), mode, buffering, encoding, errors, newline)

    def read_text(self, encoding: Any = None, errors: Any = None) -> str:
        with self.open("r", errors=errors) as file:
            return file.read()  # type: ignore[no-any-return]

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return file.read()  # type: ignore[no-any-return]

    def write_text(self, text: str, encoding: Any = None, errors: Any = None, newline: Any = None) -> int:
        with self.open("w", errors=errors) as file:
            return file.write(text)

    def write_bytes(self, data: bytes) -> int:
        with self.open("wb") as file:
            return file.write(data)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        try:
            calls.mkdir(str(self), mode)
        except FileNotFoundError:
            if not parents or self.parent == self:
                raise
            self.parent.mkdir(parents=True, exist_ok=True)
            self.mkdir(mode, False, exist_ok)
        except OSError:
            if not exist_ok or not self.is_dir():
                raise

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            calls.unlink(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        calls.rmdir(str(self))

    def rename(self, target: Any) -> Path:
        calls.rename(str(self), target)
        return Path(target)

    replace = rename

    def iterdir(self) -> Iterator[Path]:
        for name in calls.listdir(str(self)):
            yield self / name

    def glob(self, pattern: str) -> Iterator[Path]:
        try:
            names = calls.listdir(str(self))
        except OSError:
            return
        for name in names:
            if fnmatch.fnmatchcase(name, pattern):
                yield self / name

    def chmod(self, mode: int) -> None:
        calls.chmod(str(self), mode)

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        calls.close(calls.open_(str(self), real.O_CREAT | real.O_WRONLY, mode))
        calls.utime(str(self))

    def absolute(self) -> Path:
        return Path(paths.abspath(str(self)))

    def resolve(self, strict: bool = False) -> Path:
        return Path(paths.realpath(str(self)))

    def samefile(self, other: Any) -> bool:
        return self.stat().st_ino == calls.stat_(str(other)).st_ino

    def symlink_to(self, target: Any, target_is_directory: bool = False) -> None:
        calls.symlink(str(target), str(self))


@functools.lru_cache(maxsize=1 << 13)
def _joined(folder: str, name: str) -> Path:
    """Return a path in a directory; cached, as each life of a world has the same ones."""
    return PurePosixPath.__truediv__(Path(folder), name)  # type: ignore[return-value]


def random_hex(size: int = 32) -> str:
    """secrets.token_hex."""
    return "%0*x" % (2 * size, K.chance.getrandbits(8 * size))

