"""The interface of transports, which start programs on other nodes, and the registry of those that vrm knows.

A transport does one thing: it starts vrm's runner (`vrm.live.runner`) on a node, or one runner on each of several
nodes, with a pipe to it and one back. The runner starts, signals and waits for everything that runs there, and reports
what it used and how it ended. The end of the pipe means that the node, and everything that runs there, is lost. (If
srun is killed, its programs continue for a while; the agent ends them before the job starts again.) So all transports
behave in the same way: tests/live/spawn/test_transports.py runs the same tests for each.

Each transport is one file: `ssh.py` and `srun.py` here, those of extensions through entry points of the group
`vrm.transports`.
"""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Callable, Mapping

from vrm.system import plugins

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Transport:
    """A way to start a program on another node. `Hosts.Reach` selects it by `name`.

    `start` returns the words before the program's own, from the node's name and the seconds within which it must
    answer. The program has the standard input and output of this command, and ends when the input does.

    `group` returns the words that start the program once on each of several nodes, from a folded list of the nodes,
    their number and the seconds: all get the same input, and whole lines of up to 1,024 bytes come back from each.
    `own_name` is the variable there that holds the node's name. If the program has ended on one node, the command
    continues and reports that on standard error, as srun does: `error: NODE: task 0: ...`. Without a `group`, each
    node has a command of its own.

    `shell`: the program's words are passed as one word, through a shell on the node, as with ssh. `environment` makes
    the environment of the command from vrm's own. `chosen` returns whether `Reach: auto` takes this transport in an
    environment; ssh is taken if no transport returns True. `gpus` returns the words to add after those of `start` or
    `group` for a program that may use this number of GPUs.
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
    """Register a transport; raises ValueError if its name is taken."""
    if transport.name in _REGISTERED:
        raise ValueError(f"the transport {transport.name} is registered already")
    _REGISTERED[transport.name] = transport
    return transport


def transports() -> dict[str, Transport]:
    """Return the known transports by name, in the order in which `Reach: auto` tries them: those of extensions, then
    vrm's."""
    from vrm.system.transports import srun, ssh

    if "ssh" not in _REGISTERED:
        plugins.use("vrm.transports", {"srun", "ssh", *_REGISTERED}, lambda plugin, make: register(make()))
        register(srun.SRUN)
        register(ssh.SSH)
    return _REGISTERED


def choose(reach: str, env: Environment) -> str:
    """Return the name of the transport to use for this value of `Hosts.Reach`."""
    if reach != "auto":
        return reach
    return next((name for name, transport in transports().items() if transport.chosen(env)), "ssh")
