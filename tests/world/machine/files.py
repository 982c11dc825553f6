"""Files of the simulated machine: what processes see (the page cache), and what the disk has.

A process that dies takes nothing with it: what it wrote is in the page cache. A machine that dies keeps what is on the
disk, and any part of the rest:

- Changes of names (create, link, rename, unlink, mkdir) are in a log, in their order. A crash keeps a beginning of it.
  An fsync of a file or directory brings the whole log to disk, as ext4 and XFS do. With `strict`, as POSIX allows, an
  fsync of a directory brings the changes of that directory alone, one of a file none, and a crash keeps of each
  directory another beginning.
- Of the content of a file, each page of PAGE bytes that was written since its last fsync is there or not, on its own;
  a page that is not there, and was not before, is zeros. The size is that of the last page that is there.
- A failed fsync leaves pages that count as clean and are not on the disk, as Linux does.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

PAGE = 512
"""Bytes that a disk writes atomically: a sector."""

MOST_LINKS = 40

MODIFY, CLOSED, MOVED_TO, DELETED = 0x2, 0x8, 0x80, 0x200
"""Events of inotify."""


_TEXTS = {number: os.strerror(number) for number in errno.errorcode}


def fail(number: int, path: Any = None) -> OSError:
    """Return the OSError of an error number."""
    return OSError(number, _TEXTS[number]) if path is None else OSError(number, _TEXTS[number], path)


class Inode:
    """A file, directory, link or device. `disk` is the content on disk, `on_disk` the names on disk."""

    __slots__ = ("number", "mode", "links", "data", "disk", "dirty", "mtime", "names", "on_disk", "watches", "lock",
                 "text", "opens")

    def __init__(self, number: int, mode: int, mtime: int) -> None:
        self.number, self.mode, self.links, self.mtime = number, mode, 0, mtime
        self.data = bytearray()
        self.disk = b""
        self.dirty: set[int] = set()
        self.names: dict[str, Inode] = {}
        self.on_disk: dict[str, Inode] = {}
        self.watches: list[tuple[Any, int]] = []
        self.lock: Any = None  # who has locked it: shared or exclusive, and which open files
        self.text = ""  # where a symbolic link leads to, or what makes a file of /proc
        self.opens = 0

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


class About:
    """The result of stat(2)."""

    __slots__ = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns")

    def __init__(self, inode: Inode, uid: int, size: int) -> None:
        self.st_mode, self.st_ino, self.st_dev, self.st_nlink = inode.mode, inode.number, 7, inode.links
        self.st_uid = self.st_gid = uid
        self.st_size, self.st_mtime_ns = size, inode.mtime

    @property
    def st_mtime(self) -> float:
        return self.st_mtime_ns / 1e9

    st_ctime = st_atime = st_mtime


_DIRECTORY = stat.S_IFDIR


@functools.lru_cache(maxsize=4096)
def _plain(path: str) -> tuple[str, str] | None:
    """Return the directory and the last name of an absolute path without `.`, `..` or empty names; None for others."""
    parts = path.split("/")[1:]
    if not path.startswith("/") or not all(part and part.strip(".") and len(part) < 256 for part in parts):
        return None
    folder, _, last = path.rpartition("/")
    return folder, last


Change = tuple[Inode, str, "Inode | None"]
"""A change of a name in a directory: directory, name, new inode or None."""


class Files:
    """A file system. `trouble` is the error of a disk that is read-only or full (after `left` more bytes); `broken` is the
    number of writes and syncs until one fails with EIO; `failures` counts the calls that failed for these reasons."""

    def __init__(self, uid: int, strict: bool = False) -> None:
        self.uid = uid
        self.strict = strict
        self.wall = 0  # nanoseconds
        self._next, self._free = 2, list[int]()
        self.root = Inode(1, stat.S_IFDIR | 0o755, 0)
        self.root.links = 1
        self.log: list[tuple[Change, ...]] = []
        self._folders: dict[str, Inode] = {}  # directories by plain paths, until a directory or link changes its name
        self.trouble, self.left, self.broken = 0, 0, 0
        self.syncs = self.failures = 0
        self.armed: Callable[[tuple[Inode, ...]], None] | None = None  # called at a change of these

    # Names.

    def walk(self, path: str, cwd: str, follow: bool = True) -> tuple[Inode, str, Inode | None]:
        """Return the directory of the last name of a path, that name, and its inode or None."""
        plain = _plain(path)
        if plain is not None:
            here = self._folders.get(plain[0]) or self._folder(plain[0])
            if here is not None:
                found = here.names.get(plain[1])
                if found is None or not (follow and found.is_link):
                    return here, plain[1], found
        return self._walk(path, cwd, follow, 0)

    def _folder(self, path: str) -> Inode | None:
        """Return the directory of a plain path without symbolic links; None if there is none."""
        here: Inode | None = self.root
        for name in path.split("/")[1:]:
            here = here.names.get(name)  # type: ignore[union-attr]
            if here is None:
                return None
        assert here is not None
        if here.mode & _DIRECTORY != _DIRECTORY:
            return None
        self._folders[path] = here
        return here

    def _walk(self, path: str, cwd: str, follow: bool, links: int) -> tuple[Inode, str, Inode | None]:
        """Do the same for any path: follow links and raise errors."""
        if not path:
            raise fail(errno.ENOENT, path)
        if "\0" in path:
            raise ValueError("embedded null byte")
        whole = path if path[0] == "/" else f"{cwd}/{path}"
        parts = [part for part in whole.split("/") if part and part != "."]
        here, above = self.root, list[Inode]()
        for at, name in enumerate(parts):
            last = at == len(parts) - 1
            if not here.is_dir:
                raise fail(errno.ENOTDIR, path)
            if name == "..":
                found: Inode | None = above.pop() if above else self.root
                if last:
                    return (above[-1] if above else self.root), name, found
            else:
                found = here.names.get(name)
            if found is not None and stat.S_ISLNK(found.mode) and (follow or not last):
                if links >= MOST_LINKS:
                    raise fail(errno.ELOOP, path)
                base = "/" + "/".join(parts[:at])
                rest = "/".join(parts[at + 1:])
                target = found.text if found.text[0] == "/" else f"{base}/{found.text}"
                return self._walk(f"{target}/{rest}" if rest else target, cwd, follow, links + 1)
            if last:
                if len(name) > 255:
                    raise fail(errno.ENAMETOOLONG, path)
                return here, name, found
            if found is None:
                raise fail(errno.ENOENT, path)
            if name != "..":
                above.append(here)
            here = found
        return self.root, "/", self.root

    def find(self, path: str, cwd: str, follow: bool = True) -> Inode:
        """Return the inode of a path."""
        found = self.walk(path, cwd, follow)[2]
        if found is None:
            raise fail(errno.ENOENT, path)
        if path[-1] == "/" and not found.is_dir:
            raise fail(errno.ENOTDIR, path)
        return found

    def path_of(self, inode: Inode) -> str:
        """Return a current path of an inode; "" if it has none."""
        stack = [("", self.root)]
        while stack:
            path, here = stack.pop()
            if here is inode:
                return path or "/"
            stack += [(f"{path}/{name}", each) for name, each in here.names.items()]
        return ""

    def new(self, mode: int) -> Inode:
        """Return a new inode without a name; the number of a removed one may be used again."""
        if self._free:
            number = self._free.pop()
        else:
            number, self._next = self._next, self._next + 1
        return Inode(number, mode, self.wall)

    def change(self, path: Any, *changes: Change) -> None:
        """Change names, all atomically."""
        if self.trouble == errno.EROFS or (self.trouble and self.left <= 0 and any(
                to is not None and name not in there.names for there, name, to in changes)):
            raise self._refused(path)
        if self.broken and self._breaks():
            raise fail(errno.EIO, path)
        for there, name, to in changes:
            before = there.names.get(name)
            if any(each is not None and not stat.S_ISREG(each.mode) for each in (before, to)):
                self._folders.clear()
            if to is None:
                del there.names[name]
            else:
                there.names[name] = to
                to.links += 1
            there.mtime = self.wall
            if before is not None:
                before.links -= 1
                self.gone(before)
        self.log.append(changes)
        if self.armed is not None:
            self.armed(tuple(there for there, _, _ in changes))

    def gone(self, inode: Inode) -> None:
        """Free the number of an inode if nothing refers to it any more. (The number is kept as long as the name may be on
        disk.)"""
        if not inode.links and not inode.opens and not inode.is_dir:
            inode.links = -1
            self._free.append(inode.number)

    def tell(self, inode: Inode, event: int) -> None:
        """Notify those that watch an inode."""
        for watch, events in inode.watches:
            if events & event:
                watch.ring()

    # Content.

    def _refused(self, path: Any = None) -> OSError:
        self.failures += 1
        return fail(self.trouble, path)

    def _breaks(self) -> bool:
        self.broken -= 1
        self.failures += not self.broken
        return self.broken == 0

    def write(self, inode: Inode, at: int, data: bytes) -> int:
        """Write into the page cache; return the number of bytes written."""
        if self.trouble or self.broken:
            data = self._allowed(inode, at, data)
        size, end = len(inode.data), at + len(data)
        if at > size:
            inode.data.extend(bytes(at - size))
        inode.data[at:end] = data
        if data:
            first = (min(at, size) if at > size else at) // PAGE
            inode.dirty.update(range(first, (end - 1) // PAGE + 1))
        inode.mtime = self.wall
        if inode.watches:
            self.tell(inode, MODIFY)
        if self.armed is not None:
            self.armed((inode,))
        return len(data)

    def _allowed(self, inode: Inode, at: int, data: bytes) -> bytes:
        """Return the part of the data that fits on the disk."""
        if self.broken and self._breaks():
            raise fail(errno.EIO)
        if self.trouble == errno.EROFS:
            raise self._refused()
        more = at + len(data) - len(inode.data)
        if self.trouble and more > 0:
            if more > self.left:
                data = data[:len(data) - (more - self.left)] if self.left > 0 else data[:max(0, len(inode.data) - at)]
                if not data:
                    raise self._refused()
                more = max(0, at + len(data) - len(inode.data))
            self.left -= more
        return data

    def resize(self, inode: Inode, size: int, path: Any = None) -> None:
        """Truncate a file, or extend it with zeros."""
        if self.trouble == errno.EROFS:
            raise self._refused(path)
        before = len(inode.data)
        if size < before:
            del inode.data[size:]
            inode.dirty = {page for page in inode.dirty if page * PAGE < size}
        else:
            inode.data.extend(bytes(size - before))
        if size != before:
            inode.dirty.add(size // PAGE)
            inode.mtime = self.wall

    def sync(self, inode: Inode, data_only: bool = False) -> None:
        """fsync(2), or fdatasync(2)."""
        self.syncs += 1
        grown = len(inode.disk) != len(inode.data)
        if self.broken and self._breaks():
            # Linux: the pages count as clean, and are not there.
            kept = bytearray(inode.data)
            for page in inode.dirty:
                kept[page * PAGE:(page + 1) * PAGE] = inode.disk[page * PAGE:(page + 1) * PAGE].ljust(
                    min(PAGE, len(kept) - page * PAGE), b"\0") if page * PAGE < len(kept) else b""
            inode.disk = bytes(kept)
            inode.dirty.clear()
            raise fail(errno.EIO)
        if inode.dirty:
            inode.disk = bytes(inode.data)
            inode.dirty = set()
        if self.armed is not None:
            self.armed((inode,))
        if self.strict:
            if inode.is_dir:
                self._commit_directory(inode)
        elif not data_only or grown:
            self._commit(len(self.log))

    def _commit(self, count: int) -> None:
        """Write the first changes of the log to disk."""
        for changes in self.log[:count]:
            for change in changes:
                self._on_disk(change)
        del self.log[:count]

    @staticmethod
    def _on_disk(change: Change) -> None:
        there, name, to = change
        if to is None:
            there.on_disk.pop(name, None)
        else:
            there.on_disk[name] = to

    def _commit_directory(self, inode: Inode) -> None:
        kept: list[tuple[Change, ...]] = []
        for changes in self.log:
            others = tuple(change for change in changes if change[0] is not inode)
            for change in changes:
                if change[0] is inode:
                    self._on_disk(change)
            if others:
                kept.append(others)
        self.log = kept

    # The machine dies.

    def crash(self, chance: Random) -> None:
        """Crash: keep what is on disk, and parts of what was not synced."""
        if self.strict:
            self._crash_strict(chance)
        else:
            self._commit(chance.choice((0, len(self.log), chance.randint(0, len(self.log)))))
        self.log.clear()
        self._folders.clear()
        self.trouble = self.left = self.broken = 0
        seen: dict[int, Inode] = {}
        stack = [self.root]
        self.root.links = 1
        while stack:
            here = stack.pop()
            here.names = dict(here.on_disk)
            here.watches, here.lock, here.opens = [], None, 0
            for each in here.names.values():
                if id(each) not in seen:
                    seen[id(each)] = each
                    each.links = 0
                    stack.append(each)
                each.links += 1
            if here.dirty or here.disk != here.data:
                self._torn(here, chance)
        used = {each.number for each in seen.values()} | {1}
        self._free = [number for number in range(self._next - 1, 0, -1) if number not in used]

    def _crash_strict(self, chance: Random) -> None:
        """Write, for each directory, a random prefix of its changes."""
        left: dict[int, int] = {}
        for changes in self.log:
            for change in changes:
                number = change[0].number
                if number not in left:
                    left[number] = chance.choice((0, 1 << 30, chance.randint(0, len(self.log))))
                if left[number] > 0:
                    left[number] -= 1
                    self._on_disk(change)

    @staticmethod
    def _torn(inode: Inode, chance: Random) -> None:
        """Set the content of a file after a crash: unsynced sectors reach the disk in any order."""
        share = chance.choice((0.0, 1.0, chance.random()))
        old, new = inode.disk, bytes(inode.data)
        pages = [page for page in sorted(inode.dirty) if chance.random() < share]
        mixed = bytearray(old)
        for page in pages:
            begin, end = page * PAGE, min((page + 1) * PAGE, len(new))
            if begin < end:
                mixed.extend(bytes(max(0, end - len(mixed))))
                mixed[begin:end] = new[begin:end]
        if len(new) < len(old) and chance.random() < share:
            del mixed[len(new):]
        found = bytes(mixed)
        inode.data, inode.disk, inode.dirty = bytearray(found), found, set()

    def everything(self) -> Iterator[tuple[str, Inode]]:
        """Yield all paths with their inodes."""
        stack = [("", self.root)]
        while stack:
            path, here = stack.pop()
            yield path or "/", here
            stack += [(f"{path}/{name}", each) for name, each in sorted(here.names.items(), reverse=True)]

    def save_all(self) -> None:
        """Write everything to disk."""
        self._commit(len(self.log))
        for _, inode in self.everything():
            inode.disk, inode.dirty = bytes(inode.data), set()
