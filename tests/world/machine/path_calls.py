"""The functions of `os.path` and `shutil` about files."""

from __future__ import annotations

import os as real
import posixpath
import stat
from typing import Any

from world.machine.file_calls import about, getcwd, listdir, readlink, rmdir, text_of, unlink


def lexists(path: Any) -> bool:
    try:
        about(path, False)
    except (OSError, ValueError):
        return False
    return True


def exists(path: Any) -> bool:
    try:
        about(path, True)
    except (OSError, ValueError):
        return False
    return True


def kind_is(test: Any, follow: bool = True) -> Any:
    """Return a function that returns whether a path leads to a file of this kind."""
    def ask(path: Any) -> bool:
        try:
            return bool(test(about(path, follow).st_mode))
        except (OSError, ValueError):
            return False
    return ask


def abspath(path: Any) -> Any:
    name = real.fspath(path)
    if isinstance(name, bytes):
        return posixpath.normpath(posixpath.join(real.fsencode(getcwd()), name))
    return posixpath.normpath(posixpath.join(getcwd(), name))


def realpath(path: Any, strict: bool = False) -> str:
    name = abspath(text_of(path))
    done = "/"
    for part in [each for each in name.split("/") if each]:
        done = posixpath.join(done, part)
        for _ in range(40):
            try:
                target = readlink(done)
            except OSError:
                break
            done = posixpath.normpath(posixpath.join(posixpath.dirname(done), target))
    return done


def relpath(path: Any, start: Any = None) -> str:
    return posixpath.relpath(abspath(text_of(path)), abspath(text_of(start)) if start is not None else getcwd())


def rmtree(path: Any, ignore_errors: bool = False) -> None:
    """shutil.rmtree."""
    try:
        for name in sorted(listdir(path)):
            child = posixpath.join(text_of(path), name)
            if stat.S_ISDIR(about(child, False).st_mode):
                rmtree(child, ignore_errors)
            else:
                unlink(child)
        rmdir(path)
    except OSError:
        if not ignore_errors:
            raise
