"""Finds the last meaningful line in the output of a failed job, which people look for first."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from vrm.live.launch.base import LAUNCHERS, tail
from vrm.workload.grammar import show

SIZE = 8192
"""Bytes read from the end of a file."""

LONGEST = 160
"""Maximum characters of a line that are shown."""

ROOM = 1 << 16
"""Free bytes below which a disk counts as full."""

_RULE = re.compile(r"^-{40,}\n?", re.MULTILINE)

_MPI_ERROR = re.compile(r"\[\S+:\d+\] \*\*\* (MPI_ERR_\w+: .*)")
"""Last line of an MPI library about an error of the program."""

_NOISE = re.compile(r"\[\S+:\d+\] (\*\*\* |\[ ?\d+\] |Signal|Failing at|(\[\[[^]]*\],\d+\] )?\w+[ _]ERROR)")
"""Lines of backtraces and of a launcher's own errors; used only if there are no other lines."""

_STATUS = re.compile(r"Primary job +terminated normally, but|\w+ detected that one or more processes exited with non-zero")
"""Beginning of a frame that says only what the exit status says."""


@cache
def _says() -> re.Pattern[str]:
    """Return a pattern for the lines, in frames or alone, that launchers add when a rank has failed. It covers all
    launchers, because an mpirun may have started its daemons with srun."""
    known = [LAUNCHERS.get(name).complaints for name in LAUNCHERS.names]
    return re.compile(f"^({'|'.join(filter(None, known))})")


def last_line(path: Path) -> str:
    """Return the last line of a program's output, without the lines of its launcher; "" if there is none. If only the
    launcher wrote something, return the first of those lines."""
    text, says = tail(path, SIZE).replace("\0", ""), _says()  # Open MPI 5 ends an MPI_Abort with a NUL
    own: list[str] = []
    others: list[str] = []
    noise: list[str] = []
    for number, part in enumerate(_RULE.split(text)):
        lines = [line.strip() for line in part.splitlines() if line.strip()]
        if lines and _STATUS.match(lines[0]):
            continue
        framed = number % 2 == 1 or bool(lines and says.match(lines[0]))
        for line in lines:
            error = _MPI_ERROR.match(line)
            ours = noise if _NOISE.match(line) else others if framed or says.match(line) else own
            (own if error else ours).append(error[1] if error else line)
    return show((own[-1:] or others[:1] or noise[:1] or [""])[0], LONGEST)


def last_words(errors: Path, output: Path) -> str:
    """Return the last line of the errors and where they are, as `text; see log/fails.2.e`; without errors, where the
    output is; without either, ""."""
    for path in (errors, output):
        line = last_line(path)
        if line:
            return f"{line if path is errors else ''}{'; ' * (path is errors)}see {_near(path)}"
    return ""


def no_space(directory: Path) -> str:
    """Return a text about a full disk, for the end of a reason; "" while the disk has space."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return ""
    full = disk.f_bavail * disk.f_frsize < ROOM or disk.f_files > 0 == disk.f_favail
    return f"; the disk of {_near(directory)} is full" if full else ""


def _near(path: Path) -> str:
    """Return the path as a user would type it in the manager's working directory."""
    here = os.path.relpath(path)
    return show(str(path) if here.startswith("..") else here, 400)
