"""The programs of a world that are none of vrm's: those of jobs, and the commands of users."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

from world.machine import file_calls, process_calls, socket_calls
from world.machine.descriptors import Line, NullOpen
from world.machine.kernel import K
from world.machine.processes import IGNORE, TERM, Host

NO_ROUTE = 20.0
"""Seconds after which ssh gives up a node that nobody reaches."""


def job(argv: list[str]) -> int:
    """The program of a job: `job.x SECONDS CODE FLAGS`. Flags: i ignores SIGTERM, d leaves a daemon, c a child in its own
    group, g a grandchild that ends soon, w writes a lot, s ends by a signal, n changes SIGTERM into a normal end."""
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
    for flag, body in (("d", daemon), ("c", child), ("g", parent)):
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


def parent() -> int:
    """It leaves a child that ends on its own, whoever is its parent by then."""
    K.current.role = "parent"
    K.fork_into(orphan)
    return 0


def orphan() -> int:
    K.current.role = "orphan"
    K.sleep(0.005)
    return 7


def child() -> None:
    """It stays in the session, in a group of its own."""
    process = K.current
    process.role = "child"
    process_calls.setpgid(0, 0)
    process.actions[TERM] = IGNORE
    K.sleep(400.0)


def ssh(argv: list[str]) -> int:
    """`ssh HOST WORDS`: vrm's runner on a node, whatever the words are, and what goes to it and comes from it. That ends when
    the connection does; and it ends, as far as it is in reach, when this process does."""
    process, host = K.enter(), K.hosts[argv[1]]
    due = K.now + NO_ROUTE
    while host.cut or not host.on:
        if K.now >= due:
            file_calls.write(2, b"ssh: connect to host: Connection timed out\n")
            return 255
        K.wait((), K.now + 0.5)
    from world.machine.loading import ENVIRONMENT
    line = Line(host)
    remote = K.born(host.init, "runner", ["python3", "-I", "-S"], ENVIRONMENT, lambda: runner(host.name))
    mine = [file_calls.give(process, each) for each in line.near]
    for number, each in enumerate((*line.far, NullOpen())):
        remote.files[number] = each
        each.count += 1
    K.note(f"start {remote!r} on {host.name}")
    try:
        pass_on(host, mine)
    except BrokenPipeError:
        pass
    return 255 if line.lost else 0


def pass_on(host: Host, mine: list[int]) -> None:
    """Pass on what comes, until the other end is closed."""
    poll = socket_calls.Poll()
    poll.register(0, socket_calls.EPOLL["EPOLLIN"])
    poll.register(mine[1], socket_calls.EPOLL["EPOLLIN"])
    while True:
        ready = dict(poll.poll())
        if host.delay:
            K.sleep(host.delay)
        if mine[1] in ready:
            data = file_calls.read(mine[1], 1 << 16)
            if not data:
                return
            put(1, data)
        if 0 in ready:
            data = file_calls.read(0, 1 << 16)
            if data:
                put(mine[0], data)
            else:
                poll.unregister(0)
                file_calls.close(mine[0])


def put(number: int, data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[file_calls.write(number, data):]


def runner(name: str) -> int:
    """What `vrm.live.relay.boot` does on a node, which takes the text of the runner's modules from the pipe, and then that
    runner."""
    from world import truths
    with contextlib.suppress(BrokenPipeError):
        file_calls.write(1, b"\1vrm " + name.encode() + b" \n")
        size = exactly(4)
        if len(exactly(int.from_bytes(size, "little"))) and len(size) == 4:
            truths.vrm().runner.main(name)
    return 0


def exactly(size: int) -> bytes:
    """So many bytes of standard input; fewer at its end."""
    data = b""
    while len(data) < size:
        part = file_calls.read(0, size - len(data))
        if not part:
            break
        data += part
    return data


def relay(argv: list[str]) -> None:
    """`vrm.live.relay.relay.main`, which reads its setup from standard input."""
    from world import truths
    with contextlib.suppress(EOFError):  # the manager was killed before it had written that
        truths.vrm().relay.main(argv[4:])


def agent(argv: list[str]) -> int:
    """The agent of the manager's own machine."""
    from world import truths
    with contextlib.suppress(ConnectionError):  # vrm has gone
        truths.vrm().agent.serve(float(argv[4]), *argv[5:7])
    return 0


class StandardInput:
    """sys.stdin.buffer, of the process that reads it."""

    def read(self) -> bytes:
        return exactly(1 << 30)


def user(role: str, body: Callable[[], Any]) -> Any:
    """A process of the user's shell."""
    from world.machine.loading import ENVIRONMENT
    process = K.born(K.init, role, [role], ENVIRONMENT, body)
    for number in range(3):
        process.files[number] = nothing = NullOpen()
        nothing.count = 1
    return process
