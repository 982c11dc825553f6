"""The commands that start vrm's runner on a node."""

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
"""Seconds after which an agent that hears nothing ends."""

# With the node's own Python, so that not all nodes open this one's files at the same moment; where there is none, with
# this one, or another that is found.
_START = 'p=/usr/bin/python3; [ -x "$p" ] || p=$1; [ -x "$p" ] || p=python3; shift; exec "$p" -I -S "$@"'

# Before that, the session which ssh has made is added to the batch job around.
_ATTACH = 'a=$1 o=$2 j=$3; shift 3; "$a" "$o" "$j" -p $$ >/dev/null 2>&1; '


def command_line(host: str, reach: str, timeout: float, command: Sequence[str] = (), attach: Sequence[str] = (),
                 gpus: int = 0) -> tuple[str, ...]:
    """What starts the runner of another node. `reach` is one of `vrm.system.transports`.

    `command` replaces ssh and its options: it gets the host's name, and the command
    to run there as one word, as ssh does. That goes through a shell there; it holds fixed words
    and paths of vrm's, quoted. `attach` adds what ssh starts to the batch job (see
    `vrm.live.batch.adoption`). `gpus`: how many of the node's the batch system grants.
    """
    before, shell = way_to(host, reach, timeout, command, gpus)
    if not shell:
        return (*before, *_start(host))
    words = _start(host)
    if attach:
        words = ("/bin/sh", "-c", _ATTACH + words[2], "sh", *attach, *words[4:])
    return (*before, " ".join(map(shlex.quote, words)))


def group_line(hosts: Sequence[str], reach: str, timeout: float, gpus: int = 0) -> tuple[str, ...]:
    """What starts a runner on each of several nodes at once; () where this way of reaching them cannot. `gpus`: how many
    the batch system grants on each."""
    way = transports()[reach]
    if way.group is None:
        return ()
    return (*way.group(fold_hosts(hosts), len(hosts), timeout), *way.gpus(gpus * len(hosts)), *_start(f"${way.own_name}"))


def local_line(host: str) -> tuple[str, ...]:
    """What starts the runner of this machine, which goes by this name."""
    return _start(host)


def _start(name: str) -> tuple[str, ...]:
    """The words that start a runner, which goes by this name."""
    own, text = sys.executable or "python3", boot()
    return ("/bin/sh", "-c", _START, "sh", own, "-c", text, name, own, text)


def way_to(host: str, reach: str, timeout: float, command: Sequence[str] = (), gpus: int = 0
           ) -> tuple[tuple[str, ...], bool]:
    """The words that start a program on a node, before its own; whether these go as one word, for a
    shell. Arguments as `command_line`."""
    way = transports()[reach]
    if not way.shell:
        return (*way.start(host, timeout), *way.gpus(gpus)), False
    return ((*command, host) if command else way.start(host, timeout)), True


def is_local(host: str, env: Mapping[str, str]) -> bool:
    """Whether this is the machine's own name."""
    own = os.uname().nodename
    names = {own, "localhost", "127.0.0.1", "::1",
             *(env[way.own_name] for way in transports().values() if way.own_name in env)}
    if host in names:
        return True
    # A short name and a long one are the same, two long ones are not.
    return host.partition(".")[0] == host_name() and "" in (host.partition(".")[2],
                                                            own.partition(".")[2])


_FIXES = (
    ("Host key verification failed", "log in there once by hand, to accept its key"),
    ("Permission denied", "ssh must work without a password: ssh-keygen, ssh-copy-id"),
    ("can't open file", "vrm must lie on a file system that all nodes see"),
    ("Could not resolve hostname", "correct the host's name"))


def with_fix(text: str) -> str:
    """A reason why a node cannot be reached, with what to do about it where that is known."""
    fix = next((fix for sign, fix in _FIXES if sign in text), "")
    return f"{text} ({fix})" if fix else text
