"""Starts programs on a node for the relay (`relay.py`), and tells it how they end.
It runs alone (`python -I -S runner.py`), at the other end of an ssh or srun.

An order are the arguments of `starting.start_job`; the answer to it is why the program could not
be started (or None), its status as `wait` has it, its CPU seconds (user, system) and its memory in
bytes, of a script with its steps. When the relay is gone nobody can learn that any more: the programs
are killed.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import relay
    import relay_client
    import serving
    import starting
else:
    from vrm.live.spawn import relay, relay_client, serving, starting

SILENCE = 120.0
"""Seconds after which a runner without programs ends, if it hears nothing."""

NODES_OWN = (b"HOSTNAME", b"SSH_CLIENT", b"SSH_CONNECTION", b"SSH_TTY", b"SLURMD_NODENAME",
             b"SLURM_NODEID", b"XDG_RUNTIME_DIR")
"""Variables that are not taken from the manager: they tell of a node or a login."""


ENDING = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
"""Signals that end a program before it has begun."""


class RunningProgram:
    """One that runs: the number of its order, the server of its steps, and when that is to start (0: it has)."""

    def __init__(self, number: int, env: dict[bytes, bytes]) -> None:
        self.number = number
        self.server = serving.ScriptServer(env)
        self.due = time.monotonic() + serving.AFTER if self.server.folder else 0.0


class Runner:
    """The loop; frames come from `inbox` and go to `outbox`."""

    def __init__(self, inbox: int, outbox: int, wake: int) -> None:
        self.inbox = inbox
        self.outbox = outbox
        self.wake = wake
        self.running: dict[int, Any] = {}  # programs by their process numbers
        self.waiting: dict[int, Any] = {}  # by their numbers, orders that wait for a directory: until when, and for which
        self.own = {name: os.environb[name] for name in NODES_OWN if name in os.environb}

    def serve(self) -> None:
        """Run until the relay is gone."""
        poll = select.poll()
        poll.register(self.inbox, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        unread = bytearray()
        heard = time.monotonic()
        while True:
            now = time.monotonic()
            due = min([each.due for each in self.running.values() if each.due],
                      default=now + (starting.LOOK_EVERY if self.waiting else SILENCE))
            ready = dict(poll.poll(1000 * max(0.0, due - now)))
            self.serve_steps()
            self.look()
            if self.wake in ready:
                os.read(self.wake, 4096)
                self.reap()
            if self.inbox in ready:
                data = os.read(self.inbox, 1 << 16)
                if not data:
                    break
                heard = time.monotonic()
                unread += data
                for number, content in relay.take_frames(unread):
                    self.take(number, content)
            elif not self.running and time.monotonic() >= heard + SILENCE:
                break
        for pid in self.running:
            self.kill(pid, signal.SIGKILL)

    def serve_steps(self) -> None:
        """Start the servers that are due."""
        for program in self.running.values():
            if program.due and time.monotonic() >= program.due:
                program.due = 0.0
                program.server.start()

    def look(self) -> None:
        """Start what has waited for a directory that is there now, or has waited for long enough."""
        for number, (due, folder, order) in list(self.waiting.items()):
            if os.path.isdir(folder) or time.monotonic() >= due:
                del self.waiting[number]
                *before, _, make = order
                self.start(number, (*before, 0.0, make))

    def take(self, number: int, content: bytes) -> None:
        """An order, a signal, or the question whether this process is there."""
        if not content:
            self.say(number)
            return
        what = marshal.loads(content)
        if isinstance(what, int):
            for pid, program in self.running.items():
                if program.number == number:
                    self.kill(pid, what)
            if number in self.waiting and what in ENDING:
                del self.waiting[number]
                self.say(number, (None, what, 0.0, 0.0, 0))
            return
        self.start(number, what)

    def start(self, number: int, order: tuple[Any, ...]) -> None:
        """Start a program, or wait for its directory."""
        argv, env, *rest = order
        env = {**{name: value for name, value in env.items() if name not in NODES_OWN}, **self.own}
        try:
            self.running[starting.start_job(argv, env, *rest)] = RunningProgram(number, env)
        except starting.Absent as absent:
            self.waiting[number] = time.monotonic() + absent.seconds, absent.folder, order
        except starting.StartError as error:
            self.say(number, (str(error), 0, 0.0, 0.0, 0))

    @staticmethod
    def kill(pid: int, number: int) -> None:
        """Signal a program with all of its process group; it has not been waited for."""
        try:
            os.killpg(pid, number)
        except OSError:
            pass  # its group is gone, or another user's

    def reap(self) -> None:
        """Tell of programs that have ended."""
        while self.running:
            pid, raw, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            program = self.running.pop(pid, None)
            if program is not None:
                self.say(program.number, (None, raw, *program.server.end(usage)))
                continue
            for each in self.running.values():
                each.server.ended(pid, usage)

    def say(self, number: int, answer: tuple[Any, ...] = ()) -> None:
        """Answer the relay."""
        data = relay.frame(number, marshal.dumps(answer, relay_client.PORTABLE) if answer else b"")
        while data:
            data = data[os.write(self.outbox, data):]


def main() -> None:
    """Run the runner on standard input and output, which the programs do not get."""
    for number in relay.IGNORED:
        signal.signal(number, signal.SIG_IGN)
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    wake, woken = os.pipe()
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    os.write(outbox, relay.MAGIC)
    try:
        Runner(inbox, outbox, wake).serve()
    except BrokenPipeError:
        pass  # the relay has gone


if __name__ == "__main__":
    main()
