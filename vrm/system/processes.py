"""Finds and ends processes: those of a session, and those with a job's mark in their environment. Each signal is sent
to exactly the process that was found, never to a later one with its number. If all of a session is to end, the signal
is sent to its process group, which no process can leave by a fork at that moment.

Sessions are used because each rank of Open MPI is a process group of its own but stays in the session of its mpirun.
The kernel keeps no list of a session's members, so all processes are checked: `getsid` costs a microsecond each,
against ten or more for reading /proc or for psutil, which is used for environments. Values from /proc/PID/stat are
written into records of runs unchanged.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import (NamedTuple)
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import psutil

Sessions = dict[int, list[int]]
"""Process numbers by session, see `sessions`."""

ROUNDS = 10
"""How often processes are listed in one look at most; new ones start all the time on a busy node."""

FIRST_PAUSE = 0.005
"""Seconds between the first and the second look at processes that are being ended."""

LATER = 1.0
"""Seconds that the oldest process group has to end the others, before these get the signal as well."""

LONGEST_PAUSE = 0.1
"""The pause doubles at every look, up to this many seconds."""


SETTLED = 10.0
"""Seconds after which a session that belonged to no job when it was first seen is assumed never to belong to one."""


class Pid(int):
    """A process number with the start time of its process.

    `started` is in clock ticks since the boot, as in /proc/PID/stat. Together with the number it identifies one
    process of this boot. `group` is its process group, 0 if unknown.
    """

    started: int
    group: int

    def __new__(cls, number: int, started: int, group: int = 0) -> Pid:
        """Return process `number`, which started at `started`."""
        pid = super().__new__(cls, number)
        pid.started = started
        pid.group = group
        return pid


class Stat(NamedTuple):
    """The data of a process in /proc/PID/stat; `dead`: it is a zombie."""

    pid: Pid
    session: int
    dead: bool


def read_stat(pid: int) -> Stat | None:
    """Return the data in /proc/PID/stat, or None if there is no such process."""
    try:
        with open(f"/proc/{int(pid)}/stat", "rb", 0) as file:
            text = file.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name is in brackets and may itself hold brackets, spaces and newlines.
    fields = text.rpartition(b")")[2].split()
    # A process whose first thread has ended shows as a zombie while its other threads run.
    dead = fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1
    return Stat(Pid(pid, int(fields[19]), int(fields[2])), int(fields[3]), dead)


def _numbers() -> Iterator[int]:
    """Yield the numbers of all processes, the newest first, including those that start in the meantime: otherwise a
    child could be missed that has started since and whose parent has ended."""
    known: set[int] = set()
    for _ in range(ROUNDS):
        new = {int(name) for name in os.listdir("/proc") if name.isdigit()} - known
        if not new:
            return
        known |= new
        yield from sorted(new, reverse=True)


def sessions() -> Sessions:
    """Return all processes of this machine by session; one result can serve many calls of `ProcessEnding.poll`."""
    found: Sessions = {}
    for pid in _numbers():
        try:
            found.setdefault(os.getsid(pid), []).append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def session_members(sid: int, started: int | None = None,
                    table: Sessions | None = None) -> list[Pid]:
    """Return the living processes of session `sid`, including its leader.

    `started`: start time of the session's leader. If the number belongs to another process by now, there are no
    members. (The kernel does not reuse a number while a session has it.) `table`: a recent result of `sessions`.
    """
    if started is not None:
        leader = read_stat(sid)
        if leader is not None and leader.pid.started != started:
            return []
    members = []
    for pid in _in_session(sid) if table is None else table.get(sid, []):
        stat = read_stat(pid)
        if stat is not None and stat.session == sid and not stat.dead:
            members.append(stat.pid)
    return members


def _in_session(sid: int) -> Iterator[int]:
    for pid in _numbers():
        try:
            if os.getsid(pid) == sid:
                yield pid
        except (ProcessLookupError, PermissionError):
            continue


def pids_with_environment(name: str, value: str) -> list[Pid]:
    """Return the living processes that were started with `name=value` in their environment.

    This also finds processes that left their session. Only processes whose environment this user may read are found:
    those of the same user, or all of them for root.
    """
    found = []
    for number in _numbers():
        before = read_stat(number)
        if before is None or before.dead or _environment(number).get(name) != value:
            continue
        after = read_stat(number)
        if after is not None and after.pid.started == before.pid.started:
            found.append(after.pid)
    return found


def _environment(pid: int) -> Mapping[str, str]:
    """Return the environment with which a process was started; {} if there is none (a zombie), or if it may not be
    read."""
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}


class StraySessions:
    """Finds the sessions that jobs of a run have created themselves, as daemons do.

    The environment of a process in a session shows its job. The job of a session does not change, but its first
    program may not have been there yet when the session was first seen: a session without a job is checked again until
    it is `SETTLED` seconds old. (Call `job_of` again before you act: by then the number may belong to another
    session.)
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int | None, float, bool]] = {}  # by session: job, first seen, final

    def find(self, run: str, table: Sessions) -> dict[int, list[int]]:
        """Return the sessions of each job of the run (its `VRM_RUN`) in a table made just now, including the session
        in which the job was started."""
        now, before, self._known = time.monotonic(), self._known, {}
        found: dict[int, list[int]] = {}
        for sid, pids in table.items():
            if sid == 0:
                continue  # the kernel's own, or created outside of this container
            job, since, settled = before.get(sid, (None, now, False))
            if not settled:
                job = job_of(pids, run)
                settled = job is not None or now - since >= SETTLED
            self._known[sid] = job, since, settled
            if job is not None:
                found.setdefault(job, []).append(sid)
        return found


def job_of(pids: Sequence[int], run: str) -> int | None:
    """Return the job of the run to which a session belongs, from the first of its processes with a readable
    environment; None if it belongs to none."""
    for environment in filter(None, map(_environment, pids)):
        job = environment.get("VRM_JOB_ID", "")
        return int(job) if environment.get("VRM_RUN") == run and job.isdigit() else None
    return None


def signal_process(pid: int, signum: int) -> bool:
    """Send a signal; to a `Pid` only if it is still the same process.

    Return False if the process has ended or belongs to another user.
    """
    handle = None
    try:
        # The handle (Linux 5.3) refers to one process only: check it, then signal it, without a race.
        if hasattr(os, "pidfd_open"):
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                return False
            except OSError:
                handle = None
        if isinstance(pid, Pid):
            stat = read_stat(pid)
            if stat is None or stat.pid.started != pid.started:
                return False
        if handle is not None:
            signal.pidfd_send_signal(handle, signum)
        else:
            os.kill(pid, signum)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle is not None:
            os.close(handle)


def _is_same(pid: Pid) -> bool:
    """Return whether a process is still the one that was found, in the same process group."""
    stat = read_stat(pid)
    return stat is not None and stat.pid.started == pid.started and stat.pid.group == pid.group


def signal_session(sid: int, signum: int, spare: Collection[int] = (),
                   started: int | None = None, table: Sessions | None = None) -> list[Pid]:
    """Signal every process of a session except those in `spare`; return the processes that got the signal.

    `started` and `table` as in `session_members`.
    """
    found = [pid for pid in session_members(sid, started, table) if pid not in spare]
    killed = kill_groups(found, spare) if signum == signal.SIGKILL else set()
    return [pid for pid in found if pid in killed or signal_process(pid, signum)]


def kill_groups(pids: Iterable[Pid], spare: Collection[int]) -> set[Pid]:
    """Kill the process groups of processes that were just found, except groups led by one of `spare`. Return the
    processes that were in these groups.

    The kernel allows no fork in between. It reuses the number of a group when no process is left in it: therefore one
    of the found processes must still be there.
    """
    groups: dict[int, list[Pid]] = {}
    for pid in pids:
        groups.setdefault(pid.group, []).append(pid)
    killed: set[Pid] = set()
    for group, members in groups.items():
        if group and group not in spare and any(map(_is_same, members)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
                killed.update(members)
    return killed


class ProcessEnding:
    """Ends processes without ever waiting: SIGTERM, a grace period, then SIGKILL until none is left.

    The event loop calls `poll` when `deadline` has come. Each process group that exists at the first look gets SIGTERM
    once, all of its processes at the same moment: a shell must not continue with its next line because its child has
    ended first. The oldest group, that of the job's own program, is first; the others follow when it has ended or
    after LATER seconds, since mpirun ends its ranks itself. Processes that start later (to write a checkpoint, for
    example) are left alone until the SIGKILL. Stopped processes are continued, so that they can react to the SIGTERM.
    `SessionEnding` and `TaggedEnding` define which processes to end.

    `remaining` are the processes seen by the last `poll` (it may never become empty if a process hangs in the kernel
    or belongs to another user); `killed`: SIGKILL was sent; `signalled_at`: when the first signal was sent (on the
    monotonic clock; None: not yet); `deadline`: when to call `poll` next, on the clock of its `now`.
    """

    def __init__(self, grace: float, spare: Collection[int]) -> None:
        self.grace = grace
        self.spare = frozenset(spare)
        self.deadline = 0.0
        self.remaining: list[Pid] = []
        self.killed = False
        self.signalled_at: float | None = None
        self._kill_at: float | None = None
        self._others_at = 0.0
        self._pause = FIRST_PAUSE
        self._first: int | None = None  # the group of the oldest process
        self._untold: set[tuple[int, int]] = set()

    def _find(self, table: Sessions | None) -> list[Pid]:
        raise NotImplementedError

    def _kill_groups(self) -> None:
        """Kill the process groups of the remaining processes, if all processes in them are to end."""

    def _tell(self, group: int, members: Sequence[Pid]) -> None:
        """Send SIGTERM to processes of one group, and continue those that are stopped."""
        for pid in members:
            signal_process(pid, signal.SIGTERM)
            signal_process(pid, signal.SIGCONT)

    def poll(self, now: float, table: Sessions | None = None) -> bool:
        """Look for the processes and signal those that are left; return True if there were none.

        `now` is any clock in seconds that does not jump. `table`: a result of `sessions` made just now, useful if many
        sessions end at the same time.
        """
        self.remaining = [pid for pid in self._find(table) if pid not in self.spare]
        if self._kill_at is None:
            self._kill_at = now + self.grace
            self._others_at = now + LATER
            self._untold = {(int(pid), pid.started) for pid in self.remaining}
            oldest = min(self.remaining, key=lambda pid: (pid.started, int(pid)), default=None)
            self._first = oldest.group if oldest is not None else None
        if self.remaining and self.signalled_at is None:
            self.signalled_at = time.monotonic()
        if now >= self._kill_at:
            self._kill_groups()
            for pid in self.remaining:
                self.killed = True
                signal_process(pid, signal.SIGKILL)
        else:
            self._signal_groups(now)
        self.deadline = now + self._pause
        if now < self._kill_at:
            self.deadline = min(self.deadline, self._kill_at)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return not self.remaining

    def _signal_groups(self, now: float) -> None:
        """Send SIGTERM to the groups that are due and have not got it, the oldest first."""
        groups: dict[int, list[Pid]] = {}
        for pid in sorted(self.remaining, key=lambda pid: (pid.started, int(pid))):
            groups.setdefault(pid.group, []).append(pid)
        if self._first in groups and now < self._others_at:
            groups = {self._first: groups[self._first]}
        for group, members in groups.items():
            names = {(int(pid), pid.started) for pid in members}
            if names & self._untold:
                self._untold -= names
                self._tell(group, members)


class SessionEnding(ProcessEnding):
    """Ends the processes of a session."""

    def __init__(self, sid: int, grace: float, spare: Collection[int] = (),
                 started: int | None = None) -> None:
        """`grace`: seconds between SIGTERM and SIGKILL, 0 for SIGKILL at once; `spare`: numbers of processes that are
        left alone; `started`: as in `session_members`, by default that of the present leader."""
        super().__init__(grace, spare)
        if started is None:
            leader = read_stat(sid)
            started = leader.pid.started if leader else None
        self.sid = sid
        self.started = started

    def _find(self, table: Sessions | None) -> list[Pid]:
        return session_members(self.sid, self.started, table)

    def _kill_groups(self) -> None:
        kill_groups(self.remaining, self.spare)

    def _tell(self, group: int, members: Sequence[Pid]) -> None:
        if group and group not in self.spare and any(map(_is_same, members)):
            for number in (signal.SIGTERM, signal.SIGCONT):
                try:
                    os.killpg(group, number)
                except (ProcessLookupError, PermissionError):
                    break
        else:
            super()._tell(group, members)


class TaggedEnding(ProcessEnding):
    """Ends the processes with `name=value` in their environment, in any session."""

    def __init__(self, name: str, value: str, grace: float, spare: Collection[int] = ()) -> None:
        """`grace` and `spare` as in `SessionEnding`."""
        super().__init__(grace, spare)
        self.name = name
        self.value = value

    def _find(self, table: Sessions | None) -> list[Pid]:
        return pids_with_environment(self.name, self.value)
