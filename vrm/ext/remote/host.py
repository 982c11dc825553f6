"""Runs vrm's commands on another machine, over one connection."""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import signal
import sys
import termios
import tty
from contextlib import contextmanager, nullcontext
from typing import Any
from collections.abc import Iterator, Sequence

from vrm.ext.remote.connection import SSHException, ConnectionFailed, connect
from vrm.system.errors import RunError

HOME = "${XDG_DATA_HOME:-$HOME/.local/share}/vrm"
"""Directory where `setup` installs vrm on the other machine, as a shell expression."""

MOST = 1 << 16
"""Maximum number of bytes that are passed on at once."""

MISSING = 127
"""Exit status if vrm is not found."""


def target(text: str) -> tuple[str, str]:
    """Split `HOST` or `HOST:DIRECTORY`, as scp does, into its two parts. Raises RunError."""
    found = re.fullmatch(r"((?:[\w.+-]+@)?(?:\w[\w.%-]*|\[[0-9A-Fa-f:.%\w]+\]))(?::(.*))?", text)
    if not found:
        raise RunError(f"--on: `{text}` is not HOST, user@HOST or HOST:DIRECTORY")
    return found[1].replace("[", "").replace("]", ""), found[2] or ""


def place(directory: str) -> str:
    """Return a directory quoted for a shell; `~` is the home directory."""
    if directory == "~" or directory.startswith("~/"):
        return f'"$HOME"{shlex.quote(directory[1:]) if directory[1:] else ""}'
    return shlex.quote(directory)


class Host:
    """A connection on which commands run one after the other, in a directory of the other machine."""

    def __init__(self, name: str, directory: str = "") -> None:
        self.name = name
        self.directory = directory
        self.connection = connect(name)

    def close(self) -> None:
        """End the connection."""
        for hop in (self.connection, self.connection.gateway):
            if hasattr(hop, "close"):
                hop.close()

    def vrm(self, words: Sequence[str], keys: bool = True) -> int:
        """Run a command of vrm on the other machine and print its output; return its exit status. `keys`: typed
        input is passed to it; it gets a terminal if there is one here."""
        where = place(self.directory)
        absent = (f"vrm: {self.name} has no directory {self.directory} that you may enter; "
                  f"to make it: ssh {self.name} mkdir -p {where}")
        change = f"cd -- {where} 2>/dev/null || {{ echo {shlex.quote(absent)} >&2; exit 2; }}"
        script = "\n".join((
            *([change] if self.directory else []),
            f'v="{HOME}/current/bin/vrm"',
            '[ -x "$v" ] || v=$(command -v vrm) || {',
            f"echo {shlex.quote(f'vrm: there is no vrm on {self.name}; install it: vrm --on {self.name} setup')} >&2",
            f"exit {MISSING}; }}",
            f'exec "$v" {shlex.join(words)}'))
        return self.run(script, terminal=keys and sys.stdin.isatty() and sys.stdout.isatty(), keys=keys)

    def run(self, script: str, terminal: bool = False, keys: bool = False) -> int:
        """Run a shell script on the other machine as after a login, and print its output; return its exit status."""
        channel = self._started(script, terminal)
        with channel, (raw() if terminal else nullcontext()) as resized:
            _pass_on(channel, sys.stdin.fileno() if terminal or (keys and not sys.stdin.isatty()) else None, resized)
            return self._status(channel)

    def said(self, script: str) -> tuple[int, str, str]:
        """Run a script on the other machine; return its exit status, output and errors."""
        with self._started(script, False) as channel:
            channel.shutdown_write()
            output = channel.makefile("rb").read()
            errors = channel.makefile_stderr("rb").read()
            return self._status(channel), output.decode(errors="replace"), errors.decode(errors="replace")

    def there(self, path: str = "") -> str:
        """Return a remote path, or the directory in which commands run, quoted for a shell."""
        return place(path or self.directory or "~")

    def files(self) -> Any:
        """Return paramiko's access to the remote files. Raises ConnectionFailed if the server does not offer it."""
        try:
            return self.connection.sftp()
        except (SSHException, EOFError, OSError) as error:
            raise ConnectionFailed(f"{self.name} does not offer files by sftp ({error}); "
                                   "ask the site for it") from error

    def _started(self, script: str, terminal: bool) -> Any:
        login = "exec $(command -v bash || command -v sh) -lc \"$0\""
        try:
            channel = self.connection.create_session()
            if terminal:
                size = shutil.get_terminal_size()
                channel.get_pty(os.environ.get("TERM", "dumb"), size.columns, size.lines)
            channel.exec_command(shlex.join(["sh", "-c", login, script]))
            return channel
        except (OSError, SSHException, EOFError) as error:
            raise ConnectionFailed(f"the connection to {self.name} does not accept the command: "
                                   f"{error}; try again") from error

    def _status(self, channel: Any) -> int:
        status = channel.recv_exit_status()
        if status < 0:
            raise ConnectionFailed(f"the connection to {self.name} broke, or the command there was killed; what runs "
                                   "in a batch job continues")
        return int(status)


def _pass_on(channel: Any, keys: int | None, resized: int | None) -> None:
    """Print the output of the command and pass typed input to it until it has ended. A byte from `resized` means
    that the size of the terminal has changed."""
    if keys is None:
        channel.shutdown_write()
    while True:
        ready = select.select([channel, *(each for each in (keys, resized) if each is not None)], [], [])[0]
        if resized in ready:
            os.read(resized, MOST)  # type: ignore[arg-type]
            size = shutil.get_terminal_size()
            channel.resize_pty(size.columns, size.lines)
        if keys in ready and not _typed(channel, os.read(keys, MOST)):  # type: ignore[arg-type]
            keys = None
        if channel in ready and not _printed(channel) and (channel.eof_received or channel.closed):
            return


def _typed(channel: Any, data: bytes) -> bool:
    """Send typed input; return False at the end of the input, or of the command."""
    try:
        channel.sendall(data) if data else channel.shutdown_write()
    except OSError:  # it has ended meanwhile
        return False
    return bool(data)


def _printed(channel: Any) -> bool:
    """Print the available output of the command; return False if there was none."""
    heard = False
    for there, read, out in ((channel.recv_ready, channel.recv, sys.stdout),
                             (channel.recv_stderr_ready, channel.recv_stderr, sys.stderr)):
        while there():
            heard = True
            out.buffer.write(read(MOST))
            out.buffer.flush()
    return heard


@contextmanager
def raw() -> Iterator[int]:
    """Put the terminal into raw mode. The yielded descriptor gets a byte when the window's size changes."""
    before = termios.tcgetattr(sys.stdin)
    hear, say = os.pipe()
    old = signal.signal(signal.SIGWINCH, lambda *_: os.write(say, b"."))
    try:
        tty.setraw(sys.stdin)
        yield hear
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, old)
        os.close(hear)
        os.close(say)
