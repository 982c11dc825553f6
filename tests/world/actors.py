"""The programs of a world that do not belong to vrm: programs of jobs, mpirun, ssh, and commands of users."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import Any

from world.machine import file_calls, process_calls, socket_calls
from world.machine.descriptors import Line, NullOpen
from world.machine.kernel import K
from world.machine.processes import IGNORE, KILL, TERM, Host

NO_ROUTE = 20.0
"""Seconds after which ssh gives up on an unreachable node."""


def job(argv: list[str]) -> int:
    """Run the program of a job, `job.x SECONDS CODE FLAGS`; return its exit status. Flags: i ignores SIGTERM, d leaves a
    daemon, c leaves a child in its own process group, g leaves a grandchild that ends soon, w writes much output, s ends by a
    signal, n ends normally at SIGTERM."""
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


def mpirun(argv: list[str]) -> int:
    """Run mpirun: start the ranks, `-np N PROGRAM ARGUMENTS` for each program, separated by `:`. If a rank fails, or at a
    SIGTERM, it ends the others. It ends when all ranks have ended; return the exit status of the first one that failed."""
    process = K.enter()
    told: list[int] = []
    process_calls.signal(TERM, lambda *_: told.append(1))
    left = dict[int, None]()
    for ranks, words in programs_of(argv):
        for _ in range(ranks):
            pid = K.fork_into(rank, words)
            K.processes[pid].facts["rank of"] = process.facts.get("run")
            left[pid] = None
    code, ends = 0, 0.0
    while left:
        if (told or code) and not ends:
            ends = K.now + 0.3
            for pid in left:
                process_calls.kill(pid, TERM)
        if ends and K.now >= ends:
            for pid in left:
                process_calls.kill(pid, KILL)
            ends = float("inf")
        pid, status = process_calls.waitpid(-1, 1)
        if pid:
            left.pop(pid, None)
            code = code or (128 + (status & 127) if status & 127 else status >> 8)
        elif left:
            K.wait([process.child_waiters], ends if 0 < ends < float("inf") else None)
    return 143 if told else code


def programs_of(argv: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Return the programs that mpirun is to start: number of ranks, and program with arguments."""
    found, words = list[tuple[int, list[str]]](), list(argv[1:])
    while words:
        part, words = (words[:words.index(":")], words[words.index(":") + 1:]) if ":" in words else (words, [])
        at = part.index("-np")
        first = next(number for number in range(at + 2, len(part)) if part[number].endswith(".x"))
        found.append((int(part[at + 1]), part[first:]))
    return found


def rank(words: list[str]) -> int:
    """Run a rank of an MPI program. Its mpirun ends it, as long as that lives."""
    actions = K.current.actions
    actions.pop(TERM, None)
    return job(words)


def script(argv: list[str]) -> int:
    """Run the batch script of a job: it starts `job` with its own arguments and ends with the same status."""
    process = K.enter()
    number = file_calls.open_(argv[0], 0)
    process.facts["text"] = file_calls.read(number, 1 << 16)
    file_calls.close(number)
    pid = K.fork_into(step, argv)
    K.processes[pid].facts["rank of"] = process.facts.get("run")
    status = process_calls.waitpid(pid, 0)[1]
    return 128 + (status & 127) if status & 127 else status >> 8


def step(words: list[str]) -> int:
    """Run the program that a script starts."""
    return job(words)


def daemon() -> None:
    """Leave the session of the job and stay for 400 s."""
    K.current.role = "daemon"
    process_calls.setsid()
    K.sleep(400.0)


def parent() -> int:
    """Start a child and end before it, so that the child has another parent when it ends."""
    K.current.role = "parent"
    K.fork_into(orphan)
    return 0


def orphan() -> int:
    K.current.role = "orphan"
    K.sleep(0.005)
    return 7


def child() -> None:
    """Stay in the session of the job, in an own process group, and ignore SIGTERM."""
    process = K.current
    process.role = "child"
    process_calls.setpgid(0, 0)
    process.actions[TERM] = IGNORE
    K.sleep(400.0)


def ssh(argv: list[str]) -> int:
    """Run `ssh HOST WORDS`: start vrm's runner on the node, whatever the words are, and pass on its input and output. ssh
    ends when the connection ends; the runner ends when this process ends, if its node can be reached."""
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
    remote.facts["ssh"] = process
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
    """Pass on data in both directions until the remote end is closed."""
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
    """Write all data."""
    while data:
        data = data[file_calls.write(number, data):]


def runner(name: str) -> int:
    """Do what `vrm.live.relay.boot` does on a node: read the source of the runner's modules from the pipe, then run the
    runner."""
    from world import truths
    with contextlib.suppress(BrokenPipeError):
        file_calls.write(1, b"\1vrm " + name.encode() + b" \n")
        size = exactly(4)
        if len(exactly(int.from_bytes(size, "little"))) and len(size) == 4:
            truths.vrm().runner.main(name)
    return 0


def exactly(size: int) -> bytes:
    """Return `size` bytes of standard input; fewer at its end."""
    data = b""
    while len(data) < size:
        part = file_calls.read(0, size - len(data))
        if not part:
            break
        data += part
    return data


def relay(argv: list[str]) -> None:
    """Run `vrm.live.relay.relay.main`, which reads its setup from standard input."""
    from world import truths
    with contextlib.suppress(EOFError):  # the manager was killed before it had written the setup
        truths.vrm().relay.main(argv[4:])


def agent(argv: list[str]) -> int:
    """Run the agent of the manager's own machine."""
    from world import truths
    with contextlib.suppress(ConnectionError):  # vrm has ended
        truths.vrm().agent.serve(float(argv[4]), *argv[5:7])
    return 0


class StandardInput:
    """Replaces sys.stdin.buffer; reads the input of the current process."""

    def read(self) -> bytes:
        return exactly(1 << 30)


class Screen:
    """Replaces sys.stdout and sys.stderr; keeps what the current process writes (`facts["said"]`)."""

    @property
    def buffer(self) -> Screen:
        return self

    def write(self, text: str | bytes) -> int:
        K.current.facts["said"] += text.encode() if isinstance(text, str) else text
        return len(text)

    def flush(self) -> None:
        """Do nothing: output is not buffered."""


def user(role: str, body: Callable[[], Any]) -> Any:
    """Start a process from the user's shell, with `role` and `body`; return it."""
    from world.machine.loading import ENVIRONMENT
    process = K.born(K.init, role, [role], ENVIRONMENT, body)
    for number in range(3):
        process.files[number] = nothing = NullOpen()
        nothing.count = 1
    return process
