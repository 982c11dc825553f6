"""Reads the node lists of Slurm's options (`-w`, `-x`, `-F`) and of the variable SLURM_HOSTFILE."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from vrm.ext.slurm.calls.answers import Call, FileNeeded
from vrm.ext.slurm.forms.options import Options
from vrm.model.forms.hosts import expand, fold

HOSTFILE = "SLURM_HOSTFILE"
"""Variable with the path of a file that names the node of each task, one per line."""


def read(chosen: Mapping[str, str], options: Options, call: Call) -> FileNeeded | dict[str, str]:
    """Return the options, with paths of node list files replaced by the lists in these files; a list with a slash is
    a path. Returns FileNeeded if the client has to send a file first. Raises CallRefused if a file cannot be read."""
    found = dict(chosen)
    paths = {key: found[key] for key in ("nodelist", "exclude") if "/" in found.get(key, "")}
    if "nodefile" in found:  # Slurm, too, then ignores other lists
        paths["nodelist"] = found.pop("nodefile")
    by_task = "nodelist" not in found and "nodelist" not in paths and bool(call.env.get(HOSTFILE))
    if by_task:
        paths["nodelist"] = call.env[HOSTFILE]
    for key, said in paths.items():
        path = os.path.normpath(os.path.join(call.cwd, said))
        if path in call.missing:
            raise options.error(f"--{key}: {said}: {call.missing[path]}")
        if path not in call.sent:
            return FileNeeded(path)
        found[key] = _listed(os.fsdecode(call.sent[path]))
        if not found[key]:
            raise options.error(f"--{key}: {said} names no node")
    if by_task:
        _set_task_counts(found, options)
    return found


def _listed(text: str) -> str:
    """Return the list in a file: its lines have names and lists, and comments that begin with `#`."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    return ",".join(part.strip(",") for line in lines for part in line.split() if part.strip(","))


def _set_task_counts(chosen: dict[str, str], options: Options) -> None:
    """Set the number of tasks, nodes and tasks per node from a list that names a node for each task, unless they are
    given."""
    hosts = options.checked(f"{HOSTFILE}: {{}}", _repeated, chosen["nodelist"])
    each = {hosts.count(host) for host in set(hosts)}
    if len(each) > 1:
        raise options.error(f"{HOSTFILE}: vrm spreads tasks evenly over nodes; name every node equally often")
    chosen["nodelist"] = fold(hosts)
    chosen.setdefault("ntasks", str(len(hosts)))
    chosen.setdefault("nodes", str(len(set(hosts))))
    chosen.setdefault("ntasks-per-node", str(max(each)))


def names(text: str) -> list[str]:
    """Return the names of a list as Slurm does: sorted, without duplicates. Raises ValueError."""
    return expand(fold(_repeated(text)))


def _repeated(text: str) -> list[str]:
    """Return the names of a list; `n1*2` names n1 twice."""
    found: list[str] = []
    for host in re.split(r",(?![^\[]*\])", text):
        name, _, times = host.strip().partition("*")
        if times and not re.fullmatch(r"[0-9]{1,6}", times):
            raise ValueError(text)
        found += expand(name) * int(times or 1)
    return found


def nodes_for(hosts: list[str], least: int, most: int, tasks: int, per_node: int, options: Options
              ) -> tuple[list[str], int, int, int]:
    """Return the nodes that a job must have, its least and most number of nodes, and its tasks, for a list with more
    or fewer names, following Slurm's rules. 0 means not given."""
    if options.command == "srun" and most:
        hosts = hosts[:most]
    least = max(least, len(hosts))
    if most and least > most:
        raise options.error(f"Node count specification invalid: {len(hosts)} nodes are named, and {most} at most "
                            "are wanted")
    tasks = tasks or least * (per_node or 1)
    return hosts[:tasks], min(least, tasks), most, tasks
