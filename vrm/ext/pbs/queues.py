"""`qstat -Q`, `-q` and `-B`: show the queues and the server in the formats of OpenPBS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vrm.ext.pbs import resources
from vrm.ext.slurm.calls.answers import Answer, CallRefused
from vrm.ext.slurm.calls.handler import RequestHandler

QUEUES = ("Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type\n"
          "---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----\n")
SERVERS = ("Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext Status\n"
           "---------------- ----- ----- ----- ----- ----- ----- ----- ----- -----------\n")
LIMITS = ("Queue            Memory CPU Time Walltime Node   Run   Que   Lm  State\n"
          "---------------- ------ -------- -------- ---- ----- ----- ----  -----\n")

_NAMES = {"T": "Transit", "Q": "Queued", "H": "Held", "W": "Waiting", "R": "Running", "E": "Exiting", "B": "Begun"}


def shown(given: Mapping[str, str], names: Sequence[str], states: Mapping[str, Sequence[str]], handler: RequestHandler
          ) -> Answer:
    """Return the answer. `states` has the state letters of the jobs of each queue. Raises CallRefused for unknown
    queues."""
    if "F" in given:
        raise CallRefused("qstat: -F: vrm prints queues and the server as text", resources.USAGE)
    if "B" in given:
        if [name for name in names if name.partition(":")[0] not in (resources.SERVER, handler.site.host)]:
            raise CallRefused(f"qstat: cannot connect to server {names[0]}; there is {resources.SERVER}",
                              resources.USAGE)
        return Answer(_server([letter for each in states.values() for letter in each], "f" in given, handler))
    for name in names:
        if name.partition("@")[0] not in states:
            raise CallRefused(f"qstat: Unknown queue {name}; there are {', '.join(states)}", resources.NO_QUEUE)
    chosen = {name: states[name] for name in [each.partition("@")[0] for each in names] or states}
    if "q" in given:
        return Answer(_limits(chosen))
    if "f" in given:
        return Answer("".join(f"Queue: {name}\n    queue_type = Execution\n    total_jobs = {len(found)}\n"
                              f"    state_count = {_counts(found)}\n    enabled = True\n    started = True\n\n"
                              for name, found in chosen.items()))
    return Answer(QUEUES + "".join(f"{name[:16]:<16} {0:>5} {len(found):>5} yes yes {_columns(found)} Exec\n"
                                   for name, found in chosen.items()))


def _number(found: Sequence[str]) -> dict[str, int]:
    return {letter: sum(each == letter for each in found) for letter in _NAMES}


def _counts(found: Sequence[str]) -> str:
    return " ".join(f"{_NAMES[letter]}:{number}" for letter, number in _number(found).items())


def _columns(found: Sequence[str]) -> str:
    number = _number(found)
    return " ".join(f"{number[letter]:>5}" for letter in "QRHWTE")


def _server(found: Sequence[str], full: bool, handler: RequestHandler) -> str:
    if not full:
        return f"{SERVERS}{resources.SERVER:<16} {0:>5} {len(found):>5} {_columns(found)} Active\n"
    return (f"Server: {resources.SERVER}\n    server_state = Active\n    server_host = {handler.site.host}\n"
            f"    scheduling = True\n    total_jobs = {len(found)}\n    state_count = {_counts(found)}\n"
            f"    default_queue = {handler.site.default_queue or next(iter(handler.site.queues), resources.SERVER)}\n"
            f"    pbs_version = vrm\n\n")


def _limits(chosen: Mapping[str, Sequence[str]]) -> str:
    """Return the table of running and waiting jobs of each queue; no queue has limits."""
    rows: list[str] = []
    run = wait = 0
    for name, found in chosen.items():
        here = sum(letter in "REB" for letter in found)
        run, wait = run + here, wait + len(found) - here
        rows.append(f"{name[:16]:<16} {'--':^6} {'--':^8} {'--':^8} {'--':^4} {here:>5} {len(found) - here:>5} "
                    f"{'--':>4}   E R\n")
    total = f"{'':47}----- -----\n{'':47}{run:>5} {wait:>5}\n"
    return f"\nserver: {resources.SERVER}\n\n{LIMITS}{''.join(rows)}{total}"
