"""Reads a file of hosts that the configuration names (`Hosts: File`) instead of those of a batch system."""

from __future__ import annotations

import re

from vrm.live.batch.base import AllocationError
from vrm.model.forms.hosts import expand


def parse_hostfile(text: str, place: str = "host file") -> dict[str, int]:
    """Return the hosts of a file, with the cores that it grants on each (0: not given).

    A line is a name or a folded list, alone or with `slots=N` (as for Open MPI) or `:N` (as for
    MPICH); `#` begins a comment. The cores of a host that appears again are added. Raises
    AllocationError with all invalid lines.
    """
    hosts: dict[str, int] = {}
    wrong = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *options = words
        if re.search(r":\d+$", name) and not options:
            name, _, count = name.rpartition(":")
            options = [f"slots={count}"]
        try:
            names = expand(name)
            slots = [re.fullmatch(r"slots=([1-9]\d{0,6})", option) for option in options]
            if len(slots) > 1 or not all(slots):
                raise ValueError(f"`{' '.join(options)}` is not understood")
        except ValueError as error:
            wrong.append(f"{place}:{number}: {error}")
            continue
        for host in names:
            hosts[host] = hosts.get(host, 0) + (int(slots[0][1]) if slots and slots[0] else 0)
    if wrong:
        raise AllocationError("\n".join(wrong) + "\nwrite one host per line: `name`, `name "
                              "slots=8` or `name:8`, where name may be a list such as n[0-3]")
    if not hosts:
        raise AllocationError(f"{place}: no host in it; write one name to a line")
    return hosts
