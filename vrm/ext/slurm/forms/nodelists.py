"""The nodes that Slurm's options name (`-w`, `-x`, `-F`, SLURM_HOSTFILE), and what of a list is meant."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from vrm.ext.slurm.calls.answers import Call, Needs
from vrm.ext.slurm.forms.options import Options
from vrm.model.forms.hosts import expand, fold

HOSTFILE = "SLURM_HOSTFILE"
"""The variable that names a file with a line for the node of each task."""


def read(chosen: Mapping[str, str], options: Options, call: Call) -> Needs | dict[str, str]:
    """The options, with the lists that files have instead of their paths: a list with a slash is such a
    path. Needs: this file is to be sent first. Refused for one that cannot be read."""
    found = dict(chosen)
    paths = {key: found[key] for key in ("nodelist", "exclude") if "/" in found.get(key, "")}
    if "nodefile" in found:  # then Slurm, too, looks at no other list
        paths["nodelist"] = found.pop("nodefile")
    by_task = "nodelist" not in found and "nodelist" not in paths and bool(call.env.get(HOSTFILE))
    if by_task:
        paths["nodelist"] = call.env[HOSTFILE]
    for key, said in paths.items():
        path = os.path.normpath(os.path.join(call.cwd, said))
        if path in call.missing:
            raise options.error(f"--{key}: {said}: {call.missing[path]}")
        if path not in call.sent:
            return Needs(path)
        found[key] = _listed(os.fsdecode(call.sent[path]))
        if not found[key]:
            raise options.error(f"--{key}: {said} names no node")
    if by_task:
        _shared_out(found, options)
    return found


def _listed(text: str) -> str:
    """The list in a file: names and lists in lines, with comments behind `#`."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    return ",".join(part.strip(",") for line in lines for part in line.split() if part.strip(","))


def _shared_out(chosen: dict[str, str], options: Options) -> None:
    """A list that names a node for each task says how many tasks there are, and how many on a node."""
    hosts = options.checked(f"{HOSTFILE}: {{}}", _repeated, chosen["nodelist"])
    each = {hosts.count(host) for host in set(hosts)}
    if len(each) > 1:
        raise options.error(f"{HOSTFILE}: vrm spreads tasks evenly over nodes; name every node equally often")
    chosen["nodelist"] = fold(hosts)
    chosen.setdefault("ntasks", str(len(hosts)))
    chosen.setdefault("nodes", str(len(set(hosts))))
    chosen.setdefault("ntasks-per-node", str(max(each)))


def names(text: str) -> list[str]:
    """The names of a list as Slurm has them: sorted, and each once. ValueError."""
    return expand(fold(_repeated(text)))


def _repeated(text: str) -> list[str]:
    """The names of a list, in which `n1*2` is one that is named twice."""
    found: list[str] = []
    for host in re.split(r",(?![^\[]*\])", text):
        name, _, times = host.strip().partition("*")
        if times and not re.fullmatch(r"[0-9]{1,6}", times):
            raise ValueError(text)
        found += expand(name) * int(times or 1)
    return found


def nodes_for(hosts: list[str], least: int, most: int, tasks: int, per_node: int, options: Options
              ) -> tuple[list[str], int, int, int]:
    """The nodes that a job must have by a list, the least and the most that it has, and its tasks, as Slurm
    understands a list with more or fewer names. 0 stands for what is not said."""
    if options.command == "srun" and most:
        hosts = hosts[:most]
    least = max(least, len(hosts))
    if most and least > most:
        raise options.error(f"Node count specification invalid: {len(hosts)} nodes are named, and {most} at most "
                            "are wanted")
    tasks = tasks or least * (per_node or 1)
    return hosts[:tasks], min(least, tasks), most, tasks
