"""What the programs of a job have used where who waits for them cannot see it: on other nodes than the script's,
and those that the site's own srun has started.

There they are started through a small program (PROGRAM, `client.c` of the commands), which waits for them and leaves
a line in a file of its own, `used.STEP.WHO` in the directory of the job's steps: CPU seconds (user, system), and KiB
of the largest process. STEP is the number of the step, or `batch` for an mpirun of the script itself. A file that is
empty waits for its line. A step that has ended puts the lines of its files together into `used.steps`.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Used = tuple[float, float, int]
    """CPU seconds (user, system), and bytes of the largest process."""

PROGRAM = ".vrm-client"
"""The name of the program, which is also that of the commands, in the directory of these."""

PATIENCE = 1.0
"""Seconds in which the lines of other nodes come, once the launcher has ended; longer only where a node was lost."""


def prefix(directory: str, step: int | str) -> str:
    """What the paths of the files of a step begin with."""
    return f"{directory}/used.{step}."


def of_step(directory: str, step: int) -> Used | None:
    """What a step has used there, when its launcher has ended; None where nobody says so, or the job has ended."""
    until = time.monotonic() + PATIENCE
    while True:
        found = _files(directory, f"used.{step}.")
        if all(found.values()) or time.monotonic() > until:
            break
        select.select([], [], [], 0.002)
    if not found:
        return None
    used = _sum(found)
    try:
        handle = os.open(f"{directory}/used.steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(handle, f"{used[0]:.6f} {used[1]:.6f} {used[2] // 1024}\n".encode())
        os.close(handle)
        for name in found:
            os.unlink(f"{directory}/{name}")
    except OSError:  # the job has ended
        pass
    return used


def of_job(directory: str) -> Used:
    """What the script of a job that has ended, and its steps, have used there."""
    return _sum(_files(directory, "used."))


def together(all_of: Iterable[Used]) -> Used:
    """What all of these have used."""
    user, system, largest = 0.0, 0.0, 0
    for each in all_of:
        user, system, largest = user + each[0], system + each[1], max(largest, each[2])
    return user, system, largest


def _files(directory: str, start: str) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        names = [name for name in os.listdir(directory) if name.startswith(start)]
    except OSError:  # it has gone with the job
        return found
    for name in names:
        try:
            with open(f"{directory}/{name}", encoding="ascii", errors="replace") as file:
                found[name] = file.read()
        except OSError:  # a step that ends has put it together with others
            continue
    return found


def _sum(files: dict[str, str]) -> Used:
    return together(_read(line) for text in files.values() for line in text.splitlines())


def _read(line: str) -> Used:
    try:
        user, system, largest = line.split()
        return float(user), float(system), int(largest) * 1024
    except ValueError:  # torn
        return 0.0, 0.0, 0
