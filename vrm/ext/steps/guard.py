"""A process that waits for the end of an `srun`, and ends the srun's tasks if the srun was killed before them."""

from __future__ import annotations

import _signal
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL to the tasks of an srun that was killed."""

END_MESSAGE = b"end\n"


class Guard:
    """The guard of this process, which reports to it the process groups that it starts. `mark` is in the environment
    of all processes of the step; the guard calls `killed` after it has ended the remaining processes.

    Files that are open when the guard starts stay open until it ends; this also keeps the step's cores allocated."""

    def __init__(self, mark: str, killed: Callable[[], None]) -> None:
        source, self._told = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(source)
            return
        try:
            os.close(self._told)
            _watch(source, mark, killed)
        finally:
            os._exit(0)

    def started(self, group: int) -> None:
        """Report that a process group of the step has started."""
        self._tell(b"+%d\n" % group)

    def ended(self, group: int) -> None:
        """Report that a process group has ended."""
        self._tell(b"-%d\n" % group)

    def close(self) -> None:
        """Report that the step has ended normally: the guard ends."""
        self._tell(END_MESSAGE)
        os.close(self._told)

    def _tell(self, text: bytes) -> None:
        try:
            os.write(self._told, text)
        except BrokenPipeError:  # the guard was killed
            pass


def _watch(source: int, mark: str, killed: Callable[[], None]) -> None:
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1,
                   _signal.SIGUSR2, _signal.SIGTSTP, _signal.SIGALRM):
        _signal.signal(number, _signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    data = b""
    while True:
        part = os.read(source, 1 << 16)
        if not part:
            break
        data += part
    lines = data.split(b"\n")
    if END_MESSAGE.strip() in lines:
        return
    groups = {int(line[1:]) for line in lines[:-1] if line[:1] == b"+"}
    groups -= {int(line[1:]) for line in lines[:-1] if line[:1] == b"-"}
    terminate_groups(groups, GRACE)
    for pid in marked(mark):
        _send(os.kill, pid, _signal.SIGKILL)
    killed()


def terminate_groups(groups: set[int], grace: float) -> None:
    """End process groups: send SIGTERM, and after `grace` seconds SIGKILL to those that still run."""
    for number, seconds in ((_signal.SIGTERM, grace), (_signal.SIGKILL, 1.0)):
        alive = {group for group in groups if _send(os.killpg, group, number)}
        end = time.monotonic() + seconds
        while alive and time.monotonic() < end:
            alive = {group for group in alive if lives(group)}
            select.select([], [], [], 0.01)
        if not alive:
            return


def lives(group: int) -> bool:
    """Return whether a process group has a process that is not a zombie."""
    if not _send(os.killpg, group, 0):
        return False
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()
            if int(words[2]) == group and words[0] != b"Z":
                return True
        except (OSError, IndexError, ValueError):
            continue
    return False


def marked(mark: str) -> list[int]:
    """Return the processes of this machine that have the mark (NAME=VALUE) in their environment."""
    found, wanted = [], os.fsencode(mark)
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0") and pid != os.getpid():
                    found.append(pid)
        except OSError:
            continue
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _send(kill: Callable[[int, int], None], target: int, number: int) -> bool:
    """Send a signal; return whether the target exists."""
    try:
        kill(target, number)
    except OSError:
        return False
    return True
