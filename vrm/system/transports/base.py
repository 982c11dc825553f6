"""How vrm gets onto other nodes: the interface that each transport has, and the registry of those that vrm knows.

A transport has one thing to do: start vrm's runner (`vrm.live.runner`) on a node, or one on each of several, with a
pipe to it and one back. Whatever runs there is started, signalled and waited for by the runner, which says what it used
and how it ended; the end of the pipe is the loss of the node, and of all that runs there. (Where srun is killed, its
programs go on for a while; the agent ends them before the job starts again.) So all transports behave alike:
tests/live/spawn/test_transports.py asks the same of each.

Each is one file: `ssh.py` and `srun.py` here, those of extensions by entry points of the group `vrm.transports`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from collections.abc import Callable, Mapping

from vrm.system import plugins

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Transport:
    """How a program is started on another node. `Hosts.Reach` names it.

    `start` gives the words before the program's, from the node's name and the seconds in which it must answer. The
    program has the standard input and output of this command, and ends when the input does.

    `group` gives the words that start the program once on each of several nodes, from these in a folded list, their
    number and the seconds: all get the same input, and whole lines of up to 1,024 bytes come back from each. `own_name`
    is the variable there with the node's name among those. When the program has ended on one node, the command goes on
    and says so on standard error, as srun does: `error: NODE: task 0: ...`. Without a `group`, each node has a command
    of its own.

    `shell`: the program's words go as one word, through a shell on the node, as with ssh. `environment` makes the
    environment of the command from vrm's own. `chosen` says whether `Reach: auto` takes this transport in an
    environment; ssh is taken where none says so. `gpus` gives the words behind those of `start` or `group` for what is
    to see so many GPUs.
    """

    name: str
    start: Callable[[str, float], tuple[str, ...]]
    shell: bool = False
    environment: Callable[[Environment], dict[str, str]] = dict
    chosen: Callable[[Environment], bool] = lambda env: False
    own_name: str = ""
    gpus: Callable[[int], tuple[str, ...]] = lambda number: ()
    group: Callable[[str, int, float], tuple[str, ...]] | None = None


_REGISTERED: dict[str, Transport] = {}


def register(transport: Transport) -> Transport:
    """Enter a transport; a name that is taken is a ValueError."""
    if transport.name in _REGISTERED:
        raise ValueError(f"the transport {transport.name} is registered already")
    _REGISTERED[transport.name] = transport
    return transport


@functools.cache
def transports() -> dict[str, Transport]:
    """The known ones by name, in the order in which `Reach: auto` asks them: those of extensions, then vrm's."""
    from vrm.system.transports import srun, ssh

    own = (srun.SRUN, ssh.SSH)
    found: list[Transport] = []
    plugins.use("vrm.transports", frozenset(each.name for each in own), lambda plugin, make: found.append(make()))
    for each in (*found, *own):  # again where it was forgotten what they are
        _REGISTERED.setdefault(each.name, each)
    return _REGISTERED


def choose(reach: str, env: Environment) -> str:
    """The name of the transport to take, where `Hosts.Reach` is this word."""
    if reach != "auto":
        return reach
    return next((name for name, transport in transports().items() if transport.chosen(env)), "ssh")
