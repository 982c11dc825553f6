"""Builds the commands that start vrm's runner on a node."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from vrm.live.relay.boot import boot
from vrm.model.forms.hosts import fold_hosts
from vrm.system.hosts import host_name
from vrm.system.transports.base import transports

SILENCE = 120
"""Seconds after which an agent ends if it hears nothing."""

# Uses the node's own Python, so that not all nodes open the files of this Python at the same moment; if there is none,
# uses this Python, or another one on PATH.
_START = 'p=/usr/bin/python3; [ -x "$p" ] || p=$1; [ -x "$p" ] || p=python3; shift; exec "$p" -I -S "$@"'

# Before that, adds the session that ssh has created to the surrounding batch job.
_ATTACH = 'a=$1 o=$2 j=$3; shift 3; "$a" "$o" "$j" -p $$ >/dev/null 2>&1; '


def command_line(host: str, reach: str, timeout: float, command: Sequence[str] = (), attach: Sequence[str] = (),
                 gpus: int = 0) -> tuple[str, ...]:
    """Return the command that starts the runner of another node. `reach` is one of `vrm.system.transports`.

    `command` replaces ssh and its options: it gets the host's name, and the command to run there as one word, as ssh
    does. A shell there runs that word; it consists of fixed words and of paths of vrm, quoted. `attach` adds the
    processes that ssh starts to the batch job (see `vrm.live.batch.adoption`). `gpus`: how many GPUs of the node the
    batch system grants.
    """
    before, shell = node_command(host, reach, timeout, command, gpus)
    if not shell:
        return (*before, *_start(host))
    words = _start(host)
    if attach:
        words = ("/bin/sh", "-c", _ATTACH + words[2], "sh", *attach, *words[4:])
    return (*before, " ".join(map(shlex.quote, words)))


def group_line(hosts: Sequence[str], reach: str, timeout: float, gpus: int = 0) -> tuple[str, ...]:
    """Return the command that starts a runner on each of several nodes at once; () if this transport cannot. `gpus`:
    how many GPUs the batch system grants on each."""
    way = transports()[reach]
    if way.group is None:
        return ()
    return (*way.group(fold_hosts(hosts), len(hosts), timeout), *way.gpus(gpus * len(hosts)), *_start(f"${way.own_name}"))


def local_line(host: str) -> tuple[str, ...]:
    """Return the command that starts the runner of this machine under the node name `host`."""
    return _start(host)


def _start(name: str) -> tuple[str, ...]:
    """Return the command that starts a runner for the node `name`."""
    own, text = sys.executable or "python3", boot()
    return ("/bin/sh", "-c", _START, "sh", own, "-c", text, name, own, text)


def node_command(host: str, reach: str, timeout: float, command: Sequence[str] = (), gpus: int = 0
                 ) -> tuple[tuple[str, ...], bool]:
    """Return the words to put before a program's own words to start it on a node, and whether the program's words must
    be joined into one for a shell. Arguments as in `command_line`."""
    way = transports()[reach]
    if not way.shell:
        return (*way.start(host, timeout), *way.gpus(gpus)), False
    return ((*command, host) if command else way.start(host, timeout)), True


def is_local(host: str, env: Mapping[str, str]) -> bool:
    """Return whether `host` is a name of this machine."""
    own = os.uname().nodename
    names = {own, "localhost", "127.0.0.1", "::1",
             *(env[way.own_name] for way in transports().values() if way.own_name in env)}
    if host in names:
        return True
    # A short and a long name with the same first part mean one host; two different long names do not.
    return host.partition(".")[0] == host_name() and "" in (host.partition(".")[2],
                                                            own.partition(".")[2])


_FIXES = (
    ("Host key verification failed", "log in there once by hand, to accept its key"),
    ("Permission denied", "ssh must work without a password: ssh-keygen, ssh-copy-id"),
    ("can't open file", "vrm must lie on a file system that all nodes see"),
    ("Could not resolve hostname", "correct the host's name"))


def with_fix(text: str) -> str:
    """Return a reason why a node cannot be reached, with advice on how to fix it if that is known."""
    fix = next((fix for sign, fix in _FIXES if sign in text), "")
    return f"{text} ({fix})" if fix else text
