"""Lists of hosts as people write them: `n[0-3,7],login`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MOST_HOSTS = 100_000
"""Maximum number of hosts in a list: more are a mistake."""

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_RANGE = re.compile(r"(\d+)-(\d+)(?:/\d+)?")


def expand(text: str) -> list[str]:
    """Return the hosts of a folded list such as `n[0-3,7],login`, in the order of the list.

    Raises ValueError with the reason if it is not such a list.
    """
    hosts: list[str] = []
    for part in _parts(text):
        opened, closed = part.find("["), part.find("]")
        if opened < 0:
            hosts += _expand_range(part)
            continue
        if closed < opened:
            raise ValueError(f"`{text}` has a bracket without its other one")
        # One range at a time: NodeSet sorts, but the order of the list matters for counts.
        for numbers in part[opened + 1:closed].split(","):
            head, tail = f"{part[:opened]}[{numbers}]", part[closed + 1:]
            if "[" in tail:
                hosts += [host for name in _expand_range(head, tail) for host in expand(name)]
            else:
                hosts += _expand_range(head + tail)
        if len(hosts) > MOST_HOSTS:
            raise ValueError(f"`{text}` names more than {MOST_HOSTS} hosts")
    for host in hosts:
        if not HOST.fullmatch(host):
            raise ValueError(f"`{host}` is not the name of a host")
    return hosts


def _parts(text: str) -> list[str]:
    """Split a list at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            break
        if character == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
    if depth:
        raise ValueError(f"`{text}` has a bracket without its other one")
    parts = [part.strip() for part in (*parts, text[start:])]
    if not all(parts):
        raise ValueError(f"`{text}` has an empty part")
    return parts


def _expand_range(name: str, tail: str = "") -> list[str]:
    """Return the names of one range; `tail` is appended to each."""
    for first, last in _RANGE.findall(name):
        if int(last) - int(first) > MOST_HOSTS:
            raise ValueError(f"`{name}` names more than {MOST_HOSTS} hosts")
    from ClusterShell.NodeSet import (  # rarely needed, and its import takes 30 ms
        RESOLVER_NOGROUP, NodeSet, NodeSetException)

    if re.search(r"[@!&^*?]", name):  # NodeSet would interpret these as groups and operators
        raise ValueError(f"`{name}` is not the name of a host")
    try:
        return [host + tail for host in NodeSet(name, resolver=RESOLVER_NOGROUP)]
    except NodeSetException as error:
        raise ValueError(f"`{name}` is not the name of a host or a list of them "
                         f"({' '.join(str(error).split())})") from error


def fold(names: Iterable[str]) -> str:
    """Return the folded form of names, sorted and without duplicates; "" for none."""
    names = list(names)
    if len(names) < 2:
        return "".join(names)
    from ClusterShell.NodeSet import NodeSet  # its import takes 30 ms; a single name does not need it
    return str(NodeSet.fromlist(names))


def fold_hosts(names: Sequence[str]) -> str:
    """Fold host names as Slurm does, `n[0-3],m7`, in their order."""
    found: list[tuple[str, int, list[list[int]]]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        digits = name[len(stem):]
        if not digits:
            found.append((name, 0, []))
            continue
        number = int(digits)
        if found and found[-1][:2] == (stem, len(digits)) and found[-1][2]:
            runs = found[-1][2]
            if runs[-1][1] + 1 == number:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        else:
            found.append((stem, len(digits), [[number, number]]))
    texts = []
    for stem, width, runs in found:
        parts = [f"{first:0{width}}" + (f"-{last:0{width}}" if last > first else "") for first, last in runs]
        inner = ",".join(parts)
        texts.append(stem + (inner if len(runs) == 1 and "-" not in inner else f"[{inner}]" * bool(runs)))
    return ",".join(texts)
