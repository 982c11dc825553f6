"""Whose files are obeyed: nobody else shall decide what a manager runs in its user's name.

A path is followed as the kernel does. Who may write a directory on it could put another file in
its place, and so could the owner of a symbolic link.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from typing import Iterator, List, Tuple, Union

PathLike = Union[str, "os.PathLike[str]"]

_MOST_LINKS = 40


def distrust(path: PathLike, trust: str = "own", allow: str = "set Trust: {}") -> str:
    """Why a file is not to be obeyed, with the mend; "" when it is, or is not there.

    `trust` is own (this user's or root's files, that nobody else may write), group (also files of
    members of this user's groups, and those that a group of its may write), or any. The same is
    asked of every directory and link on the way; in a sticky directory, such as /tmp, nobody
    replaces the files of others. `allow` says how to have it obeyed all the same; `{}` in it is
    the trust that would do.
    """
    if trust == "any":
        return ""
    for step, about in _steps(os.path.abspath(path)):
        reason, needed = _fault(about, trust)
        if reason:
            reason = f"{reason}, or {allow.format(needed)}"
            where = "" if step == os.path.abspath(path) else f"{step}, on the way to {path}, "
            return f"{where or f'{path} '}{reason}"
    return ""


def _steps(path: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Everything that is passed on the way to a file, and the file, as `lstat` tells of each."""
    rest: List[str] = [part for part in path.split("/") if part][::-1]
    here, links = "/", 0
    yield here, os.lstat(here)
    while rest:
        name = rest.pop()
        if name == ".":
            continue
        step = os.path.dirname(here) if name == ".." else os.path.join(here, name)
        try:
            about = os.lstat(step)
        except OSError:
            return  # who opens the file is told
        yield step, about
        if not stat.S_ISLNK(about.st_mode):
            here = step
            continue
        links += 1
        if links > _MOST_LINKS:
            return
        target = os.readlink(step)
        if target.startswith("/"):
            here = "/"
        rest += [part for part in target.split("/") if part][::-1]


def _fault(about: os.stat_result, trust: str) -> Tuple[str, str]:
    """What is wrong with a file or directory, with the mend, and the trust that it needs."""
    owner, mode = about.st_uid, about.st_mode
    mine = owner in _trusted_owners()
    if not mine and not (trust == "group" and about.st_gid in _groups()):
        needed = "group" if trust == "own" and about.st_gid in _groups() else "any"
        return f"belongs to {_user(owner)}; make a copy of your own", needed
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return "", ""
    if mode & stat.S_IWOTH:
        return "may be written by everybody; chmod o-w", "any"
    if mode & stat.S_IWGRP and not _alone(about.st_gid):
        known = about.st_gid in _groups()
        if trust == "own" or not known:
            return (f"may be written by the group {_group(about.st_gid)}; chmod g-w",
                    "group" if known else "any")
    return "", ""


@functools.lru_cache(maxsize=None)
def _trusted_owners() -> Tuple[int, ...]:
    """This user, root, and who owns the root directory: in a user namespace that is root."""
    return os.geteuid(), 0, os.stat("/").st_uid


@functools.lru_cache(maxsize=None)
def _groups() -> Tuple[int, ...]:
    return (os.getegid(), *os.getgroups())


@functools.lru_cache(maxsize=None)
def _alone(gid: int) -> bool:
    """Whether a group has no member but this user: many systems give each user one of its own,
    and a umask that lets it write."""
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
