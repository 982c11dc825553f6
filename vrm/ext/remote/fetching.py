"""Copies results from another machine: only files that are new or have changed, and never outside of the target
directory, whatever names the files have on the other side."""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterator

from vrm.ext.remote.connection import SSHException
from vrm.system.errors import RunError
from vrm.system.files import naming
from vrm.system.printing.text import printable

MAX_DEPTH = 32
"""Maximum depth of directories that are followed."""

FRESH = 2
"""Seconds within which a file may change again without a new modification time: a file changed so recently is
fetched again the next time."""

CHUNK = 1 << 18


@dataclass
class FetchResult:
    """Result of the copy."""

    files: int = 0
    bytes: int = 0
    same: int = 0
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RemoteFile:
    """A remote file: its path below the directory, its size in bytes and its modification time."""

    path: tuple[str, ...]
    size: int
    changed: int

    @property
    def name(self) -> str:
        """The path as shown to users."""
        return printable("/".join(self.path))


def fetch(files: Any, source: str, target: Path, now: float,
          progress: Callable[[int, int, int, int], None]) -> FetchResult:
    """Copy a remote directory to a local one. `now` is the remote time; `progress` is called with the number of
    files and bytes done, each followed by the total. Raises RunError if there is nothing to fetch."""
    done = FetchResult()
    try:
        found = list(listed(files, source, done))
    except UnicodeDecodeError as error:
        raise RunError(f"{source} has a file whose name is not UTF-8; rename it there") from error
    except (OSError, SSHException) as error:
        raise RunError(f"cannot read {printable(source)} there: {error}; name the directory of a run (Log in its "
                       "configuration)") from error
    changed = []
    for each in found:
        if is_same(target.joinpath(*each.path), each):
            done.same += 1
        else:
            changed.append(each)
    total = sum(each.size for each in changed)
    for each in changed:
        progress(done.files, len(changed), done.bytes, total)
        try:
            copy(files, source, each, target, each.changed >= now - FRESH)
        except FileNotFoundError as error:
            if error.filename is not None:
                raise
            done.refused.append(f"{each.name}: it was removed there meanwhile")
        except (NotADirectoryError, IsADirectoryError, PermissionError) as error:
            done.refused.append(f"{each.name}: {printable(error.strerror or str(error))}")
        else:
            done.files += 1
            done.bytes += each.size
    progress(done.files, len(changed), done.bytes, total)
    return done


def listed(files: Any, source: str, done: FetchResult) -> Iterator[RemoteFile]:
    """Yield the regular files below a remote directory. Links are not followed; files whose names could lead
    elsewhere are refused."""
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        above = waiting.pop()
        for entry in sorted(files.listdir_attr("/".join((source, *above))), key=lambda entry: entry.filename):
            path = (*above, entry.filename)
            shown = printable("/".join(path))
            if wrong(entry.filename):
                done.refused.append(f"{shown}: this name is not allowed")
            elif stat.S_ISDIR(entry.st_mode or 0):
                if len(path) < MAX_DEPTH:
                    waiting.append(path)
                else:
                    done.refused.append(f"{shown}: too deep")
            elif stat.S_ISREG(entry.st_mode or 0):
                yield RemoteFile(path, int(entry.st_size or 0), int(entry.st_mtime or 0))
            elif stat.S_ISLNK(entry.st_mode or 0):
                done.refused.append(f"{shown}: a symbolic link, which is not followed")


def wrong(name: str) -> bool:
    """Return whether a name is not a valid name of a file in a directory."""
    return name in ("", ".", "..") or "/" in name or "\0" in name or len(os.fsencode(name)) > 255


def is_same(path: Path, there: RemoteFile) -> bool:
    """Return whether a local file equals the remote one, by size and time."""
    try:
        here = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(here.st_mode) and (here.st_size, int(here.st_mtime)) == (there.size, there.changed)


def copy(files: Any, source: str, there: RemoteFile, target: Path, fresh: bool) -> None:
    """Copy one file: completely under its name, or not at all. No link below the target is followed."""
    folder = target
    folder.mkdir(parents=True, exist_ok=True)
    for name in there.path[:-1]:
        folder = folder / name
        try:
            folder.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise NotADirectoryError(20, f"{folder} here is not a directory; move it away", str(folder)) from None
    path = folder / there.path[-1]
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(21, f"{path} here is a directory; move it away", str(path))
    part = folder / f".vrm-{secrets.token_hex(8)}.part"
    try:
        with files.open("/".join((source, *there.path)), "rb") as reading:
            reading.prefetch(there.size)
            with naming(part), open(part, "xb") as writing:
                left = there.size
                while left and (data := reading.read(min(CHUNK, left))):
                    writing.write(data)
                    left -= len(data)
        changed = there.changed - fresh
        os.utime(part, (changed, changed))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
