"""Run a program on another node by ssh, in this process's directory and environment:
`python remote.py HOST CPUS PROGRAM ARGUMENT...`, with CPUS such as `0,2`, or `-` for all.

For Kind: direct. What the remote shell gets to read is a fixed text and base64, so no word of a
job can mean anything to it. ssh is this process, and its exit status ours (255 also when the
program was killed by a signal).
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import List, Mapping, Sequence

# It must read as one word in single quotes, and run under any Python 3.
START = ("import base64,json,os,sys;"
         "d,c,a,e=json.loads(base64.b64decode(sys.argv[1]).decode());"
         "os.chdir(d);c and os.sched_setaffinity(0,c);os.execve(a[0],a,e)")

LONGEST = 128 * 1024 - 1
"""Bytes that Linux takes as one argument."""

NOT_TAKEN = ("HOSTNAME", "OLDPWD", "PWD", "SHLVL", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "_")
"""Variables that tell of this node and this login."""


def command(host: str, cpus: Sequence[int], program: Sequence[str], directory: str,
            environment: Mapping[str, str]) -> List[str]:
    """The ssh command; ValueError when it is too long."""
    env = {name: value for name, value in environment.items() if name not in NOT_TAKEN}
    words = json.dumps([directory, list(cpus), list(program), env]).encode()
    remote = f"exec python3 -c '{START}' {base64.b64encode(words).decode()}"
    if len(remote) > LONGEST:
        raise ValueError("environment and arguments are too long for ssh "
                         f"({len(remote)} bytes of {LONGEST})")
    return ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", host, remote]


def main(arguments: List[str]) -> int:
    """Become ssh; returns an exit status only when that fails."""
    host, listed, program = arguments[0], arguments[1], arguments[2:]
    cpus = [] if listed == "-" else [int(cpu) for cpu in listed.split(",")]
    try:
        argv = command(host, cpus, program, os.getcwd(), dict(os.environ))
        os.execvp(argv[0], argv)
    except (OSError, ValueError) as error:
        print(f"vrm: cannot reach {host}: {error}", file=sys.stderr)
    return 255


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
