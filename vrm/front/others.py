"""`sacctmgr`, `sshare`, `sprio`: they exist, and answer what is true of vrm, which is often nothing,
so that a tool does not reach those of the site."""

from __future__ import annotations

from vrm.front.answers import Answer, Call, Told
from vrm.front.counter import Counter
from vrm.front.options import VERSION

_CHANGES = ("add", "create", "delete", "modify", "archive", "dump", "load", "reconfigure", "clear")


def _tell(call: Call, about: str) -> None:
    """Answer who asks what the command is."""
    asked = set(call.arguments)
    if asked & {"-V", "--version"}:
        raise Told(f"{VERSION}\n")
    if asked & {"--help", "--usage"}:
        raise Told(f"Usage: {call.name} [options]\n\n{about}\n")


def sacctmgr(call: Call, counter: Counter) -> Answer:
    """There are no accounts, and nobody can make one."""
    _tell(call, "vrm keeps no accounts: nothing is printed, and nothing can be changed.")
    acts = [word for word in call.arguments if not word.startswith("-")]
    if acts and acts[0].lower() in _CHANGES:
        return Answer(err=f"sacctmgr: error: vrm keeps no accounts: it cannot {acts[0]}\n", code=1)
    return Answer()


def nothing(call: Call, counter: Counter) -> Answer:
    """There are no shares, and no priorities of several factors."""
    _tell(call, "vrm has no shares, and no priority of several factors: nothing is printed.")
    return Answer()
