"""The programs of a world that are none of vrm's: those of jobs, and the commands of users."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from world.machine import file_calls, process_calls
from world.machine.kernel import K
from world.machine.processes import IGNORE, TERM


def job(argv: list[str]) -> int:
    """The program of a job: `job.x SECONDS CODE FLAGS`. Flags: i ignores SIGTERM, d leaves a daemon, c a child in its own
    group, w writes a lot, s ends by a signal, n changes SIGTERM into a normal end."""
    process = K.enter()
    seconds, code, flags = float(argv[1]), int(argv[2]), argv[3]
    if "i" in flags:
        process_calls.signal(TERM, signal.SIG_IGN)
    ending: list[int] = []
    if "n" in flags:
        process_calls.signal(TERM, lambda *_: ending.append(1))
    try:
        for _ in range(3 if "w" in flags else 1):
            file_calls.write(1, b"working\n" * (200 if "w" in flags else 1))
    except OSError:
        pass  # a full disk
    for flag, body in (("d", daemon), ("c", child)):
        if flag in flags:
            K.fork_into(body)
    until = K.now + seconds
    while K.now < until and not ending:
        K.wait((), until)
    if "s" in flags:
        process_calls.kill(process.pid, signal.SIGSEGV)
    return 0 if ending else code


def daemon() -> None:
    """It leaves the session of its job, and stays."""
    K.current.role = "daemon"
    process_calls.setsid()
    K.sleep(400.0)


def child() -> None:
    """It stays in the session, in a group of its own."""
    process = K.current
    process.role = "child"
    process_calls.setpgid(0, 0)
    process.actions[TERM] = IGNORE
    K.sleep(400.0)


def user(role: str, body: Callable[[], Any]) -> Any:
    """A process of the user's shell."""
    from world.machine.loading import ENVIRONMENT
    return K.born(K.init, role, [role], ENVIRONMENT, body)
