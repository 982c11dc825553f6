"""Decides which files are trusted: no other user may decide what a manager runs in its user's name.

A path is followed as the kernel does it. A user who may write a directory on the path could put another file in the
place of the file, and so could the owner of a symbolic link.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import re
import stat
from typing import Union
from collections.abc import Iterable, Iterator

from vrm.system.files import trusted_owners, user_name

PathLike = Union[str, "os.PathLike[str]"]

_MOST_LINKS = 40

_UNSAFE_VARIABLES = re.compile(
    r"(LD|GLIBC|GCONV|DYLD)_.*"                                      # the dynamic linker
    r"|.*PATHS?|HOME|SHELL|IFS|PS4|ENV|.*_ENV|SHELLOPTS|BASHOPTS|ZDOTDIR|PROMPT_COMMAND"
    r"|(XDG|GIT|LMOD|MODULES)_.*|EDITOR|VISUAL|PAGER"                # shells and their tools
    r"|(PYTHON|PERL|RUBY|LUA_|NODE_|JULIA_|TCLLIB|R_).*|.*JAVA.*|.*JDK.*"
    r"|(OMPI|OPAL|ORTE|PRTE|PMIX|PMI|HYDRA|MPIEXEC|MPICH|MPIR|I_MPI|UCX|FI|HCOLL|HWLOC)_.*"
    r"|(SLURM|SRUN|SBATCH|PBS|SPANK)_.*|OMP_TOOL.*|CUDA_INJECTION.*")
"""Variables that can make a program load or start another one, or read settings that do."""


def distrust(path: PathLike, trust: str = "own", allow: str = "set Trust: {}",
             home: bool = False, there: bool = False) -> str:
    """Return why a file is not trusted, with the fix; "" if it is trusted, or does not exist.

    `trust` is own (files of this user or root that nobody else may write), group (also files of members of this user's
    groups, and files that one of these groups may write), or any. Every directory and link on the path is checked in
    the same way; in a sticky directory, such as /tmp, nobody can replace the files of others. `allow` is advice on how
    to have the file trusted nevertheless; `{}` in it is replaced by the trust that is needed. `home`: the path is a
    directory in which files will be written; a sticky bit does not help then, since anybody could add files under
    their names. `there`: a missing file is a reason, too.
    """
    if trust == "any":
        return ""
    whole = os.path.abspath(path)
    steps = list(_steps(whole))
    for number, (step, about) in enumerate(steps, 1):
        if about is None:
            return f"{path} is not there" if there else ""
        reason, needed = _fault(step, about, trust, home and number == len(steps))
        if reason:
            reason = f"{reason}, or {allow.format(needed)}"
            where = "" if step == whole else f"{step}, on the way to {path}, "
            return f"{where or f'{path} '}{reason}"
    return ""


def unsafe_variables(variables: Iterable[str], trust: str) -> str:
    """Return why a line of a queue that others may write (`trust` group or any) may not set these variables; "" if it
    may. Such variables can make the allowed programs start others."""
    wrong = sorted(name for name in variables if _UNSAFE_VARIABLES.fullmatch(name))
    if trust == "own" or not wrong:
        return ""
    return (f"env={', '.join(wrong)}: it can make a program run another one, and with Trust: "
            f"{trust} others may write the queue; set it in the configuration (Launcher."
            "Environment), or submit the job with `vrm submit`")


def _steps(path: str) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield every directory and link on the way to a file, and the file, each with its `lstat`; None instead of
    `lstat` if it does not exist or cannot be reached."""
    rest: list[str] = [part for part in path.split("/") if part][::-1]
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
            yield step, None  # opening the file reports the error
            return
        yield step, about
        if not stat.S_ISLNK(about.st_mode):
            here = step
            continue
        links += 1
        if links > _MOST_LINKS:
            yield step, None
            return
        target = os.readlink(step)
        if target.startswith("/"):
            here = "/"
        rest += [part for part in target.split("/") if part][::-1]


def _fault(path: str, about: os.stat_result, trust: str, home: bool) -> tuple[str, str]:
    """Return what is wrong with a file or directory, with the fix, and the trust that it needs."""
    owner, mode = about.st_uid, about.st_mode
    mine = owner in trusted_owners()
    if not mine and not (trust == "group" and about.st_gid in _groups()):
        needed = "group" if trust == "own" and about.st_gid in _groups() else "any"
        return f"belongs to {user_name(owner)}; make a copy of your own", needed
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX and not home):
        return "", ""
    if mode & stat.S_IWOTH:
        place = "; name a directory of your own in it" if mode & stat.S_ISVTX else ""
        return f"may be written by everybody; chmod o-w{place}", "any"
    if mode & stat.S_IWGRP and trust == "own" and _has_access_list(path):
        return "may be written by those in its access list (getfacl); setfacl -b", "group"
    if mode & stat.S_IWGRP and not _alone(about.st_gid):
        known = about.st_gid in _groups()
        if trust == "own" or not known:
            return (f"may be written by the group {_group(about.st_gid)}; chmod g-w",
                    "group" if known else "any")
    return "", ""


def _has_access_list(path: str) -> bool:
    """Return whether the group's permission to write may apply to users whom a POSIX access list names."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False


@functools.cache
def _groups() -> tuple[int, ...]:
    return (os.getegid(), *os.getgroups())


@functools.cache
def _alone(gid: int) -> bool:
    """Return whether a group has no other member than this user: many systems give each user a group of their own, and
    a umask that lets this group write."""
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
