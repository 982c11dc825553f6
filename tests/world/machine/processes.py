"""Processes of the simulated machine, as the kernel sees them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

KILL, STOP, CONT, CHLD, PIPE, TERM = (int(each) for each in (
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGTERM))

HARMLESS = frozenset(int(each) for each in (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH))
"""Signals that are ignored by default."""

DEFAULT, IGNORE = 0, 1

Waiters = dict["Process", None]
"""Processes that sleep until something happens, in the order in which they came."""


class Killed(BaseException):
    """Unwinds the stack of a process that has ended: its system calls have no effect any more."""


class Process:
    """A process. `role` is its name in traces, `body` what it does, `alone` what a fork copies of what modules of vrm
    keep for a process (see `modules.PerProcess`). Of a process that has ended `status` is left, until its parent has it."""

    __slots__ = ("pid", "parent", "group", "session", "role", "argv", "env", "cwd", "files", "on_exec", "started",
                 "mask", "actions", "pending", "wakeup", "status", "dead", "reaped", "children", "subreaper", "fiber",
                 "wake_at", "ready", "stopped", "limits", "alone", "body", "child_waiters", "exit_waiters", "cpu", "facts",
                 "affinity", "steps", "host")

    host: Host

    def __init__(self, pid: int, parent: Process | None, role: str, argv: Sequence[str], env: Mapping[str, str],
                 started: int) -> None:
        self.pid, self.parent, self.role, self.argv, self.env = pid, parent, role, list(argv), dict(env)
        self.group = self.session = pid
        self.cwd = "/"
        self.files: dict[int, Any] = {}     # open file descriptions by number
        self.on_exec: set[int] = set()      # numbers that are closed by an exec
        self.started = started
        self.mask: frozenset[int] = frozenset()
        self.actions: dict[int, Any] = {}   # handlers of signals, or IGNORE
        self.pending: list[int] = []
        self.wakeup = -1
        self.status: int | None = None
        self.dead = self.reaped = self.subreaper = self.stopped = False
        self.children: dict[int, Process] = {}
        self.fiber: Any = None
        self.wake_at: float | None = None
        self.ready = False
        self.limits: dict[int, tuple[int, int]] = {}
        self.alone: dict[Any, Any] = {}
        self.body: Callable[[], object] | None = None
        self.child_waiters: Waiters = {}
        self.exit_waiters: Waiters = {}
        self.cpu = 0.0
        self.facts: dict[str, Any] = {}     # what a scenario knows of it
        self.affinity = frozenset(range(64))
        self.steps = 0

    def __repr__(self) -> str:
        return f"{self.role}({self.pid})"

    def inherit(self, parent: Process) -> None:
        """Return a copy as for a fork, without open files."""
        self.group, self.session, self.cwd = parent.group, parent.session, parent.cwd
        self.mask, self.actions, self.affinity = parent.mask, dict(parent.actions), parent.affinity
        self.limits = dict(parent.limits)

    @property
    def zombie(self) -> bool:
        """Return whether it has ended and its status was not collected."""
        return self.dead and not self.reaped

    def ignores(self, number: int) -> bool:
        """Return whether a signal has no effect on it."""
        action = self.actions.get(number, DEFAULT)
        return action == IGNORE or (action == DEFAULT and number in HARMLESS)

    def due(self) -> bool:
        """Return whether an unblocked signal is pending."""
        return any(number not in self.mask for number in self.pending)

    @property
    def tag(self) -> str:
        """Return the job to which the process belongs; "" if to none."""
        return self.env.get("VRM_JOB_ID", "") if "VRM_RUN" in self.env else ""


class Host:
    """A machine of a world: the first one has the manager, others are its nodes. `on`: it has power; `cut`: nobody reaches it;
    `boot` names the time since its last start, which was at `booted`; `lines` are its connections, `old` those from before."""

    def __init__(self, name: str) -> None:
        self.name, self.boot, self.boots, self.booted = name, "", 0, 0.0
        self.on = True
        self.cut = False
        self.delay = 0.0
        self.lines: list[Any] = []
        self.old: list[Any] = []
        self.init = Process(1, None, "init", ["init"], {}, 0)

    def start(self, number: int, now: float) -> Process:
        """Boot it; return its first process."""
        self.boots += 1
        self.on, self.booted = True, now
        self.boot = f"00000000-0000-4000-8{number:03d}-{self.boots:012d}"
        self.old += self.lines
        self.lines.clear()
        self.init = Process(1, None, "init", ["init"], {}, 0)
        self.init.subreaper, self.init.host = True, self
        return self.init


def line_of(process: Process) -> str:
    """/proc/PID/stat."""
    state = "Z" if process.dead else "T" if process.stopped else "R" if process.ready else "S"
    parent = process.parent.pid if process.parent is not None else 0
    name = process.role.split("#")[0][:15]
    return (f"{process.pid} ({name}) {state} {parent} {process.group} {process.session} 0 -1 0 0 0 0 0 0 0 0 0 20 0 "
            f"1 0 {process.started} 0 0\n")
