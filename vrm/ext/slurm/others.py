"""`sacctmgr`, `sshare`, `sprio`: they exist, and answer what is true of vrm, which is often nothing,
so that a tool does not reach those of the site."""

from __future__ import annotations

from types import MappingProxyType
from typing import NoReturn
from collections.abc import Mapping

from vrm.ext.slurm.calls.answers import Answer, Call, Refused, HelpAnswer
from vrm.ext.slurm.calls.counter import Counter
from vrm.ext.slurm.forms.options import VERSION

INSTEAD: Mapping[str, str] = MappingProxyType({
    "sreport": "`vrm report` shows figures of the run", "sdiag": "`vrm status` shows the run"})
"""What does instead of a command."""

_CHANGES = ("add", "create", "delete", "modify", "archive", "dump", "load", "reconfigure", "clear")


def _tell(call: Call, about: str) -> None:
    """Answer who asks what the command is."""
    asked = set(call.arguments)
    if asked & {"-V", "--version"}:
        raise HelpAnswer(f"{VERSION}\n")
    if asked & {"--help", "--usage"}:
        raise HelpAnswer(f"Usage: {call.name} [options]\n\n{about}\n")


def sacctmgr(call: Call, counter: Counter) -> Answer:
    """There are no accounts, and nobody can make one."""
    _tell(call, "vrm keeps no accounts: nothing is printed, and nothing can be changed.")
    acts = [word for word in call.arguments if not word.startswith("-")]
    if acts and acts[0].lower() in _CHANGES:
        return Answer(err=f"sacctmgr: error: vrm keeps no accounts: it cannot {acts[0]}\n", code=1)
    return Answer()


def refused(call: Call, counter: Counter, known: Mapping[str, str] = INSTEAD) -> NoReturn:
    """vrm has no such command; that of the site would take an id of vrm for one of its own."""
    _tell(call, "vrm does not have this command.")
    instead = known.get(call.name, "it is there so that you do not reach your site's, which knows other jobs")
    raise Refused(f"{call.name}: error: vrm does not have this command: {instead}")


def nothing(call: Call, counter: Counter) -> Answer:
    """There are no shares, and no priorities of several factors."""
    _tell(call, "vrm has no shares, and no priority of several factors: nothing is printed.")
    return Answer()
