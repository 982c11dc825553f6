"""Replaces ssh for the mpirun of a job: starts its daemon on another node through the relay (`relay.py`), without a
connection, or a step of the batch system, of its own. It runs alone: `python -I -S rsh_agent.py [OPTION ...] HOST
COMMAND ...`. It runs as long as the daemon and returns the daemon's exit status.

The daemon gets the environment of mpirun. Its output goes to the job's standard error. When this process is killed,
the daemon is killed, too. This process replaces itself by a shell, which needs little memory: a job has one for each
other node.
"""

from __future__ import annotations

import os
import sys

import _signal as signal  # `signal` imports enum

if __name__ == "__main__":
    sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runner"))
    import wire
else:
    from vrm.live.runner import wire

ADDRESS, ERRORS = b"VRM_RELAY", b"VRM_ERRORS"
"""The variables of a job with the name of the relay, and with the file of its standard error."""

WITH_VALUE = ("-l", "-p", "-o", "-F", "-i", "-S", "-E")
"""Options of ssh that are followed by a value."""


def target(words: list[str]) -> tuple[str, str]:
    """Return the node and the command from arguments like those of ssh; raises ValueError if one is missing."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in WITH_VALUE else 1
    if at + 1 >= len(words):
        raise ValueError(f"expected a host and a command, got {' '.join(words) or 'nothing'}")
    return words[at], " ".join(words[at + 1:])


WAIT = '''read -r code said <&3 || { code=255; said="the connection to $0 was lost"; }
[ -z "$said" ] || echo "vrm: $said" >&2
exit "$code"'''
"""Shell script that waits for the end of the daemon on the node $0."""


def start(words: list[str]) -> None:
    """Start the command and replace this process by a shell that waits for its end. Raises ValueError with the reason
    if it could not be started."""
    try:
        host, command = target(words)
        env = dict(os.environb)
        errors = env.get(ERRORS, os.devnull.encode())
        connection = wire.connect(env[ADDRESS], wire.DAEMON, os.fsencode(host), (
            [env.get(b"SHELL", b"/bin/sh"), b"-c", os.fsencode(command)], env, b"/", errors, errors, None, (), None, True,
            b"", 0.0, False))
    except KeyError:
        raise ValueError("this is not a job of vrm") from None
    except OSError as error:
        raise ValueError(f"vrm's relay cannot be reached: {error}") from None
    os.dup2(connection.fileno(), 3)
    os.set_inheritable(3, True)  # it may have been 3 already
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv("/bin/sh", ["sh", "-c", WAIT, host])


if __name__ == "__main__":
    try:
        start(sys.argv[1:])
    except ValueError as error:
        sys.stderr.write(f"vrm: {error}\n")
    sys.exit(255)
