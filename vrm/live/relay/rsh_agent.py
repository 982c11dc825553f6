"""Takes the place of ssh for the mpirun of a job: starts its daemon on another node through the relay (`relay.py`),
with no connection, and no step of the batch system, of its own. It runs alone: `python -I -S rsh_agent.py [OPTION ...] HOST
COMMAND ...`, and stays as long as the daemon, whose exit status it takes.

The daemon has the environment of mpirun. What it prints goes to the job's standard error. When this process is killed,
the daemon is.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runner"))
    import wire
else:
    from vrm.live.runner import wire

ADDRESS, ERRORS = b"VRM_RELAY", b"VRM_ERRORS"
"""The variables of a job with the name of the relay, and the file of its standard error."""

WITH_VALUE = ("-l", "-p", "-o", "-F", "-i", "-S", "-E")
"""Options of ssh behind which a word follows."""


def target(words: list[str]) -> tuple[str, str]:
    """The node and the command, as ssh reads its arguments; ValueError where one is missing."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in WITH_VALUE else 1
    if at + 1 >= len(words):
        raise ValueError(f"expected a host and a command, got {' '.join(words) or 'nothing'}")
    return words[at], " ".join(words[at + 1:])


def start(words: list[str]) -> tuple[str, int]:
    """Start the command and wait for its end: why it could not be started ("": it was), and its exit status."""
    try:
        host, command = target(words)
        env = dict(os.environb)
        errors = env.get(ERRORS, os.devnull.encode())
        connection = wire.connect(env[ADDRESS], wire.PROGRAM, os.fsencode(host), (
            [env.get(b"SHELL", b"/bin/sh"), b"-c", os.fsencode(command)], env, b"/", errors, errors, None, (), None, True,
            b"", 0.0, False))
    except KeyError:
        return "this is not a job of vrm", 255
    except (OSError, ValueError) as error:
        return f"vrm's relay cannot be reached: {error}", 255
    answer = wire.answer(connection)
    if not answer:
        return f"the connection to {host} was lost", 255
    message, raw = answer[:2]
    if message is not None:
        return f"{host}: {message}", 255
    return "", 128 + os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else os.WEXITSTATUS(raw)


if __name__ == "__main__":
    said, code = start(sys.argv[1:])
    if said:
        sys.stderr.write(f"vrm: {said}\n")
    sys.exit(code)
