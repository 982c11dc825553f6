"""`sacctmgr`, `sshare`, `sprio`, `sstat`: they exist, and answer what is true of vrm, which is often nothing,
so that a tool does not reach those of the site."""

from __future__ import annotations

from vrm.front.answers import Answer, Call
from vrm.front.counter import Counter


def sacctmgr(call: Call, counter: Counter) -> Answer:
    """There are no accounts."""
    return Answer()


sshare = sprio = sstat = sacctmgr
