"""Finds and ends processes: those of a session, and those that carry a job's tag.
Every signal goes to the very process that was found, never to a later one with its number, and
where all of a session is to end, to its group, which nobody can leave by forking in time.

Sessions are used because each rank of Open MPI is a process group of its own but stays in the
session of its mpirun. The kernel keeps no list of a session's members, so all processes are
asked: `getsid` costs a microsecond each, against ten or more for reading /proc or for psutil,
which is asked for environments. What is read of /proc/PID/stat stands in records of runs as it is there.
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
"""How often processes are listed in one look at them; new ones come all the time on a busy node."""

FIRST_PAUSE = 0.005
"""Seconds between the first and the second look at processes that are being ended."""

LATER = 1.0
"""Seconds that the oldest process group has to end the others, before they are told as well."""

LONGEST_PAUSE = 0.1
"""The pause doubles at every look, up to this many seconds."""


SETTLED = 10.0
"""Seconds after which a session that was no job's when it was seen first will not become one's."""


class Pid(int):
    """A process number that remembers when its process started.

    `started` is in clock ticks since the boot, as in /proc/PID/stat. Together with the number
    it names one process of this boot for ever. `group` is its process group, 0 if not known.
    """

    started: int
    group: int

    def __new__(cls, number: int, started: int, group: int = 0) -> Pid:
        """Process `number`, that started at `started`."""
        pid = super().__new__(cls, number)
        pid.started = started
        pid.group = group
        return pid


class Stat(NamedTuple):
    """What /proc tells of a process."""

    pid: Pid
    session: int
    dead: bool


def read_stat(pid: int) -> Stat | None:
    """What /proc/PID/stat says, or None if there is no such process."""
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
    """The numbers of all processes, the newest first, with those that come while they are read:
    else a child could be missed that has come since, and whose parent has gone."""
    known: set[int] = set()
    for _ in range(ROUNDS):
        new = {int(name) for name in os.listdir("/proc") if name.isdigit()} - known
        if not new:
            return
        known |= new
        yield from sorted(new, reverse=True)


def sessions() -> Sessions:
    """All processes of this machine by session; one look can serve many `Ending.poll`."""
    found: Sessions = {}
    for pid in _numbers():
        try:
            found.setdefault(os.getsid(pid), []).append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def session_members(sid: int, started: int | None = None,
                    table: Sessions | None = None) -> list[Pid]:
    """The living processes of session `sid`, its leader among them.

    `started`: start time of the session's leader. If the number has gone to another process
    since, there are no members. (The kernel does not give a number away while a session bears
    it.) `table`: a recent result of `sessions`.
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
    """The living processes that were started with `name=value` in their environment.

    It finds what left its session. Only processes whose environment this user may read are
    seen: those of the same user, or all of them for root.
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
    """That with which a process was started; empty where there is none (a zombie), or none that may be read."""
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}


class Strays:
    """Finds the sessions that jobs of a run have made for themselves, as daemons do.

    By the environment of a process in each. Whose a session is does not change, but its first program may not have
    been there yet when it was seen first: one that is not a job's is asked again until it has been seen for a while.
    (Ask `job_of` again before you act: its number may meanwhile be another's.)
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int | None, float, bool]] = {}  # by session: its job, seen since, for good

    def find(self, run: str, table: Sessions) -> dict[int, list[int]]:
        """The sessions of each job of the run (its `VRM_RUN`) in a table just made, the one in
        which it was started among them."""
        now, before, self._known = time.monotonic(), self._known, {}
        found: dict[int, list[int]] = {}
        for sid, pids in table.items():
            if sid == 0:
                continue  # the kernel's own, or begun outside of this container
            job, since, settled = before.get(sid, (None, now, False))
            if not settled:
                job = job_of(pids, run)
                settled = job is not None or now - since >= SETTLED
            self._known[sid] = job, since, settled
            if job is not None:
                found.setdefault(job, []).append(sid)
        return found


def job_of(pids: Sequence[int], run: str) -> int | None:
    """The job of a run to which a session belongs, by the environment of the first of its processes that has one."""
    for environment in filter(None, map(_environment, pids)):
        job = environment.get("VRM_JOB_ID", "")
        return int(job) if environment.get("VRM_RUN") == run and job.isdigit() else None
    return None


def signal_process(pid: int, signum: int) -> bool:
    """Send a signal; a `Pid` gets it only if it is still the same process.

    Returns False when the process is gone or belongs to somebody else.
    """
    handle = None
    try:
        # The handle (Linux 5.3) holds on to one process: check it, then signal it, no race.
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
    """Whether a process is still the one that was found, in the group in which it was."""
    stat = read_stat(pid)
    return stat is not None and stat.pid.started == pid.started and stat.pid.group == pid.group


def signal_session(sid: int, signum: int, spare: Collection[int] = (),
                   started: int | None = None, table: Sessions | None = None) -> list[Pid]:
    """Signal every process of a session but those in `spare`; returns those that got it.

    `started` and `table` as in `session_members`.
    """
    found = [pid for pid in session_members(sid, started, table) if pid not in spare]
    killed = kill_groups(found, spare) if signum == signal.SIGKILL else set()
    return [pid for pid in found if pid in killed or signal_process(pid, signum)]


def kill_groups(pids: Iterable[Pid], spare: Collection[int]) -> set[Pid]:
    """Kill the process groups of processes that were just found, but those led by one of `spare`. Return the processes
    that were in these.

    The kernel lets no fork come between. It gives the number of a group away when nobody is left in it: one of those
    that were found must be there still.
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


class Ending:
    """Ends processes without ever waiting: SIGTERM, a grace, then SIGKILL until none is left.

    The event loop calls `poll` when `deadline` has come. Each process group that is there at the
    first look gets SIGTERM once, and all of it in one moment: a shell must not go on with its next
    line because its child has ended first. The oldest group, that of the job's own program, comes
    first, the others when it is gone or after LATER seconds: mpirun ends its ranks itself. What is
    born later (to write a checkpoint, for example) is left alone until the SIGKILL. Stopped
    processes are continued, so that they can act on the SIGTERM. What to end is said by
    `SessionEnd` and `TagEnd`.

    `remaining` are the processes seen by the last `poll` (which may never end when a process
    hangs in the kernel or belongs to somebody else), `killed` says whether SIGKILL was sent,
    `told_at` when the first signal was sent (by the clock since the boot; None: not yet), and `deadline` when to
    call `poll` next, on the clock of its `now`.
    """

    def __init__(self, grace: float, spare: Collection[int]) -> None:
        self.grace = grace
        self.spare = frozenset(spare)
        self.deadline = 0.0
        self.remaining: list[Pid] = []
        self.killed = False
        self.told_at: float | None = None
        self._kill_at: float | None = None
        self._others_at = 0.0
        self._pause = FIRST_PAUSE
        self._first: int | None = None  # the group of the oldest process
        self._untold: set[tuple[int, int]] = set()

    def _find(self, table: Sessions | None) -> list[Pid]:
        raise NotImplementedError

    def _kill_groups(self) -> None:
        """Kill the groups of what remains, where all in them are to end."""

    def _tell(self, group: int, members: Sequence[Pid]) -> None:
        """Send SIGTERM to processes of one group, and let them go on if they are stopped."""
        for pid in members:
            signal_process(pid, signal.SIGTERM)
            signal_process(pid, signal.SIGCONT)

    def poll(self, now: float, table: Sessions | None = None) -> bool:
        """Look, signal what is left, and say whether nothing was.

        `now` is any clock in seconds that does not jump. `table`: a look taken just now by
        `sessions`, when many sessions end at the same time.
        """
        self.remaining = [pid for pid in self._find(table) if pid not in self.spare]
        if self._kill_at is None:
            self._kill_at = now + self.grace
            self._others_at = now + LATER
            self._untold = {(int(pid), pid.started) for pid in self.remaining}
            oldest = min(self.remaining, key=lambda pid: (pid.started, int(pid)), default=None)
            self._first = oldest.group if oldest is not None else None
        if self.remaining and self.told_at is None:
            self.told_at = time.monotonic()
        if now >= self._kill_at:
            self._kill_groups()
            for pid in self.remaining:
                self.killed = True
                signal_process(pid, signal.SIGKILL)
        else:
            self._tell_groups(now)
        self.deadline = now + self._pause
        if now < self._kill_at:
            self.deadline = min(self.deadline, self._kill_at)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return not self.remaining

    def _tell_groups(self, now: float) -> None:
        """SIGTERM to the groups that are due and have not had it, the oldest first."""
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


class SessionEnd(Ending):
    """Ends the processes of a session."""

    def __init__(self, sid: int, grace: float, spare: Collection[int] = (),
                 started: int | None = None) -> None:
        """`grace`: seconds between SIGTERM and SIGKILL, 0 for SIGKILL at once; `spare`: numbers
        not to be touched; `started`: as in `session_members`, by default that of the leader now.
        """
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


class TagEnd(Ending):
    """Ends the processes with `name=value` in their environment, in whatever session they are."""

    def __init__(self, name: str, value: str, grace: float, spare: Collection[int] = ()) -> None:
        """`grace` and `spare` as for `SessionEnd`."""
        super().__init__(grace, spare)
        self.name = name
        self.value = value

    def _find(self, table: Sessions | None) -> list[Pid]:
        return pids_with_environment(self.name, self.value)
