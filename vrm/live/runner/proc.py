"""Reads the processes of runs on a node from the kernel's files. One file, the standard library only, Python 3.6 or
newer: agents (`agent.py`) run it on their nodes.

Processes are found by `VRM_RUN` and `VRM_JOB_ID` in the environment they were started with.
"""

import os

# The C module itself: `signal` imports enum, which takes 10 % of the agent's start.
import _signal as signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take another 10 %
    from typing import Iterator, List, Optional, Set, Tuple

    Process = Tuple[int, int]  # number, and start time in clock ticks since the boot

ROUNDS = 10
"""How often processes are listed in one look at most; new ones start all the time on a busy node."""


def read_stat(pid: int) -> "Optional[Tuple[int, int]]":
    """Return a process's parent and start time (clock ticks since the boot), or None if there is no such process."""
    try:
        with open("/proc/{}/stat".format(pid), "rb", 0) as file:
            text = file.read(4096)
    except OSError:
        return None
    # The program's name is in brackets and may itself hold brackets, spaces and newlines.
    fields = text.rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])


def environment_of(pid: int) -> "List[bytes]":
    """Return the environment that a process of a run was started with; [] for other processes, for those of other
    users and for dead ones."""
    try:
        with open("/proc/{}/environ".format(pid), "rb", 0) as file:
            text = file.read()
    except OSError:
        return []
    # Nearly all processes have no mark: do not split their text.
    return text.split(b"\0") if b"VRM_RUN=" in text else []


def marked() -> "Iterator[Tuple[Process, List[bytes]]]":
    """Yield the processes of all runs with their environment, the newest first: so a process that always continues in
    a child of its own is seen before it has ended.

    Processes that have started in the meantime are seen as well, in at most ROUNDS rounds: otherwise a child could be
    missed that has started since and whose parent has ended.
    """
    known: "Set[int]" = set()
    for _ in range(ROUNDS):
        numbers = {int(name) for name in os.listdir("/proc") if name.isdigit()} - known
        known |= numbers
        for pid in sorted(numbers, reverse=True):
            if not environment_of(pid):
                continue
            stat = read_stat(pid)
            # Read again: the number may have passed to another process before its start time was read.
            environment = environment_of(pid)
            if stat is not None and environment:
                yield (pid, stat[1]), environment
        if not numbers:
            break


def marks(run: str, job: "Optional[int]") -> "List[bytes]":
    """Return the entries that all processes of a job, or of a whole run (`job` None), have in their environment."""
    run_mark = [os.fsencode("VRM_RUN=" + run)]
    return run_mark + ([] if job is None else [os.fsencode("VRM_JOB_ID={}".format(job))])


def kill(process: "Process") -> None:
    """Send SIGKILL to exactly this process, never to a later one with its number."""
    pid, started = process
    handle = None
    try:
        # The handle (Linux 5.3) refers to one process only: check it, then signal it, without a race.
        if hasattr(os, "pidfd_open"):
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            except OSError:
                handle = None
        stat = read_stat(pid)
        if stat is None or stat[1] != started:
            return
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended, or belongs to another user
    finally:
        if handle is not None:
            os.close(handle)


def rank_of(environment: "List[bytes]", name: bytes) -> "Optional[int]":
    """Return the integer in the variable `name` (given as `NAME=`), None if there is none."""
    # All processes of a batch script inherit SLURM_PROCID=0: it is a rank's only in a step.
    if name == b"SLURM_PROCID=" and not any(
            entry.startswith(b"SLURM_STEP_ID=") for entry in environment):
        return None
    for entry in environment:
        if entry.startswith(name) and entry[len(name):].isdigit():
            return int(entry[len(name):])
    return None


def outermost(processes: "Set[Process]") -> int:
    """Return the process that has started the others: none of them is its ancestor; if there are several, the
    oldest."""
    if len(processes) > 1:
        numbers = {pid for pid, _ in processes}
        roots = [process for process in processes if not _below(process[0], numbers)]
        processes = set(roots) or processes
    return min(processes, key=lambda process: (process[1], process[0]))[0]


def _below(pid: int, numbers: "Set[int]") -> bool:
    """Return whether one of these processes is an ancestor of `pid`."""
    stat = read_stat(pid)
    while stat is not None and stat[0] > 1:
        if stat[0] in numbers:
            return True
        stat = read_stat(stat[0])
    return False


def allowed_cpus(pid: int) -> "Optional[str]":
    """Return the CPUs that a process may use, in the kernel's list format; None if it has ended."""
    try:
        with open("/proc/{}/status".format(pid)) as file:
            for line in file:
                if line.startswith("Cpus_allowed_list:"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # gone
    return None


def threads(pid: int) -> "List[int]":
    """Return the threads of a process; [] if it has ended."""
    try:
        return [int(name) for name in os.listdir("/proc/{}/task".format(pid))]
    except OSError:
        return []


PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Return the bytes of a process that are in memory, including shared ones; 0 if it has ended."""
    try:
        with open("/proc/{}/statm".format(pid), "rb", 0) as file:
            return PAGE * int(file.read(256).split()[1])
    except (OSError, IndexError):
        return 0


def proportional(pid: int) -> int:
    """Return the bytes of a process that are in memory, with only its part of shared memory (PSS); this takes the
    kernel some time. Equal to `resident` where the kernel does not report it (before Linux 4.14)."""
    try:
        with open("/proc/{}/smaps_rollup".format(pid), "rb", 0) as file:
            for line in file.read(4096).splitlines():
                if line.startswith(b"Pss:"):
                    return 1024 * int(line.split()[1])
    except (OSError, IndexError, ValueError):
        pass  # gone, or an old kernel
    return resident(pid)
