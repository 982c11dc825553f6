"""Measures what programs of a job have used if the process that waits for them cannot measure it: on other nodes
than the script's, and if the site's own srun has started them.

Such programs are started through a small program (PROGRAM, `client.c` of the commands), which waits for them and
writes one line to a file of its own, `used.STEP.WHO` in the directory of the job's steps: CPU seconds (user,
system), and KiB of the largest process. STEP is the number of the step, or `batch` for an mpirun of the script
itself. An empty file means that its line is still to come. When a step has ended, it merges the lines of its files
into `used.steps`."""

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
"""Name of the program in the directory of the commands, which are links to it."""

PATIENCE = 1.0
"""Seconds to wait for the lines of other nodes after the launcher has ended; they take longer only if a node was
lost."""


def prefix(directory: str, step: int | str) -> str:
    """Return the beginning of the paths of a step's files."""
    return f"{directory}/used.{step}."


def of_step(directory: str, step: int) -> Used | None:
    """Return what a step, whose launcher has ended, has used according to its files; None if there are none. Merges
    the files into `used.steps`."""
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
    """Return what the script of an ended job and its steps have used according to these files."""
    return _sum(_files(directory, "used."))


def together(all_of: Iterable[Used]) -> Used:
    """Return the sum of the CPU times and the largest process of all."""
    user, system, largest = 0.0, 0.0, 0
    for each in all_of:
        user, system, largest = user + each[0], system + each[1], max(largest, each[2])
    return user, system, largest


def _files(directory: str, start: str) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        names = [name for name in os.listdir(directory) if name.startswith(start)]
    except OSError:  # it was removed with the job
        return found
    for name in names:
        try:
            with open(f"{directory}/{name}", encoding="ascii", errors="replace") as file:
                found[name] = file.read()
        except OSError:  # a step that ended has merged it
            continue
    return found


def _sum(files: dict[str, str]) -> Used:
    return together(_read(line) for text in files.values() for line in text.splitlines())


def _read(line: str) -> Used:
    try:
        user, system, largest = line.split()
        return float(user), float(system), int(largest) * 1024
    except ValueError:  # damaged line
        return 0.0, 0.0, 0
