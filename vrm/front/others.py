"""`sacctmgr`, `sshare`, `sprio`, `sstat`: they exist, and answer what is true of vrm, which is often nothing,
so that a tool does not reach those of the site."""

from __future__ import annotations

from vrm.front import words
from vrm.front.answers import Answer, Call
from vrm.front.counter import Counter

_CHANGES = ("add", "create", "delete", "modify", "archive", "dump", "load", "reconfigure", "clear")


def _version(call: Call) -> bool:
    return bool({"-V", "--version"} & set(call.arguments))


def sacctmgr(call: Call, counter: Counter) -> Answer:
    """There are no accounts, and nobody can make one."""
    if _version(call):
        return Answer(words.VERSION + "\n")
    acts = [word for word in call.arguments if not word.startswith("-")]
    if acts and acts[0].lower() in _CHANGES:
        return Answer(err=f"sacctmgr: error: vrm keeps no accounts: it cannot {acts[0]}\n", code=1)
    return Answer()


def nothing(call: Call, counter: Counter) -> Answer:
    """There are no shares, no priorities of several factors, and no figures of running steps."""
    return Answer(words.VERSION + "\n" if _version(call) else "")
