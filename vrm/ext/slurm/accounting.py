"""`sacctmgr`, `sshare`, `sprio` and further commands that vrm does not implement. They exist, mostly with empty
output, so that a tool does not reach the commands of the site."""

from __future__ import annotations

from types import MappingProxyType
from typing import NoReturn
from collections.abc import Mapping

from vrm.ext.slurm.calls.answers import Answer, Call, CallRefused, HelpAnswer
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.forms.options import VERSION

INSTEAD: Mapping[str, str] = MappingProxyType({
    "sreport": "`vrm report` shows figures of the run", "sdiag": "`vrm status` shows the run"})
"""What to use instead of a command that vrm does not have."""

_CHANGES = ("add", "create", "delete", "modify", "archive", "dump", "load", "reconfigure", "clear")


def _tell(call: Call, about: str) -> None:
    """Raise HelpAnswer if the call asks for the version or for help."""
    asked = set(call.arguments)
    if asked & {"-V", "--version"}:
        raise HelpAnswer(f"{VERSION}\n")
    if asked & {"--help", "--usage"}:
        raise HelpAnswer(f"Usage: {call.name} [options]\n\n{about}\n")


def sacctmgr(call: Call, handler: RequestHandler) -> Answer:
    """Answer `sacctmgr`: print nothing, and refuse changes, because vrm keeps no accounts."""
    _tell(call, "vrm keeps no accounts: nothing is printed, and nothing can be changed.")
    acts = [word for word in call.arguments if not word.startswith("-")]
    if acts and acts[0].lower() in _CHANGES:
        return Answer(err=f"sacctmgr: error: vrm keeps no accounts: it cannot {acts[0]}\n", code=1)
    return Answer()


def refused(call: Call, handler: RequestHandler, known: Mapping[str, str] = INSTEAD) -> NoReturn:
    """Raise CallRefused for a command that vrm does not have; the site's command would take a job id of vrm for one of
    its own."""
    _tell(call, "vrm does not have this command.")
    instead = known.get(call.name, "it is there so that you do not reach your site's, which knows other jobs")
    raise CallRefused(f"{call.name}: error: vrm does not have this command: {instead}")


def nothing(call: Call, handler: RequestHandler) -> Answer:
    """Answer `sshare` and `sprio` with empty output: vrm has neither shares nor multi-factor priorities."""
    _tell(call, "vrm has no shares, and no priority of several factors: nothing is printed.")
    return Answer()
