"""The last words of a job that failed: what people look for first in its output."""

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
"""Characters of a line that are shown."""

ROOM = 1 << 16
"""Bytes below which a disk counts as full."""

_RULE = re.compile(r"^-{40,}\n?", re.MULTILINE)

_MPI_ERROR = re.compile(r"\[\S+:\d+\] \*\*\* (MPI_ERR_\w+: .*)")
"""What an MPI library says of the program's fault, as its last words."""

_NOISE = re.compile(r"\[\S+:\d+\] (\*\*\* |\[ ?\d+\] |Signal|Failing at|(\[\[[^]]*\],\d+\] )?\w+[ _]ERROR)")
"""Lines of backtraces and of a launcher's own troubles: nobody's words, except where there are no others."""

_STATUS = re.compile(r"Primary job +terminated normally, but|\w+ detected that one or more processes exited with non-zero")
"""How a frame begins that says no more than the exit status does."""


@cache
def _says() -> re.Pattern[str]:
    """What launchers add, in frames or lines of their own, when a rank has failed. All of them: an
    mpirun may have started its daemons by srun."""
    known = [LAUNCHERS.get(name).complaints for name in LAUNCHERS.names]
    return re.compile(f"^({'|'.join(filter(None, known))})")


def last_line(path: Path) -> str:
    """The last line of a program's output, without what its launcher has added; "" for none. When
    the launcher alone has said something, the first line of that."""
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
    """The last line of the errors and where they are, as `text; see log/fails.2.e`; of the output
    where there are no errors, "" where there is neither."""
    for path in (errors, output):
        line = last_line(path)
        if line:
            return f"{line if path is errors else ''}{'; ' * (path is errors)}see {_near(path)}"
    return ""


def no_space(directory: Path) -> str:
    """What is to be said of a disk that takes nothing more; "" while there is room."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return ""
    full = disk.f_bavail * disk.f_frsize < ROOM or disk.f_files > 0 == disk.f_favail
    return f"; the disk of {_near(directory)} is full" if full else ""


def _near(path: Path) -> str:
    """The path as one would type it where the manager runs."""
    here = os.path.relpath(path)
    return show(str(path) if here.startswith("..") else here, 400)
