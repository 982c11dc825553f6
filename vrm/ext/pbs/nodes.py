"""`pbsnodes`: shows the nodes of the allocation."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from vrm.ext.pbs import resources
from vrm.ext.slurm.calls.answers import Answer, Call, CallRefused
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import NodeView

USAGE = "pbsnodes [-a | -l] [-v] [-F json] [node ...]"


def pbsnodes(call: Call, handler: RequestHandler) -> Answer:
    """Show all nodes, the named nodes, or with -l the nodes that are down."""
    options, names = resources.options("pbsnodes", "aSjlvHF:D:Lrod:C:s:", USAGE, call.arguments)
    chosen = dict(options)
    for letter in chosen:
        if letter not in "alvFDs":
            raise CallRefused(f"pbsnodes: -{letter}: vrm does not know it\nusage: {USAGE}", resources.USAGE)
    if chosen.get("F", "json") != "json":
        raise CallRefused(f"pbsnodes: -F {chosen['F']}: vrm knows json", resources.USAGE)
    known = {node.name: node for node in handler.nodes()}
    said = [f"Node: {name},  Error: Unknown node \n" for name in names if name not in known]
    nodes = [known[name] for name in names if name in known] if names else list(known.values())
    if "l" in chosen:
        return Answer("".join(f"{node.name:<20} {state(node)}\n" for node in nodes if not node.up))
    if not names and not {"a", "v"} & set(chosen):
        raise CallRefused(f"usage: {USAGE}")
    on: dict[str, list[str]] = {}
    for job in handler.jobs(ended=False):
        for name, cores in zip(job.nodes, job.cores):
            on.setdefault(name, []).extend(f"{resources.shown(job)}/{number}" for number in range(cores))
    shown = [(node.name, facts(node, on.get(node.name, []))) for node in nodes]
    if "F" in chosen:
        text = resources.document(handler, {"nodes": dict(_nested(each) for each in shown)})
    else:
        text = "".join(f"{name}\n" + "".join(f"     {key} = {value}\n" for key, value in each) + "\n"
                       for name, each in shown)
    return Answer(text, "".join(said), 1 if said else 0)


def state(node: NodeView) -> str:
    """Return PBS's name for the state of a node."""
    if not node.up:
        return "down"
    if node.exclusive:
        return "job-exclusive"
    return "job-busy" if node.taken >= node.cores else "free"


def facts(node: NodeView, jobs: list[str]) -> list[tuple[str, Any]]:
    """Return the attributes of a node, with PBS's names."""
    found: list[tuple[str, Any]] = [("Mom", node.name), ("ntype", "PBS"), ("state", state(node)), ("pcpus", node.cores)]
    if jobs:
        found.append(("jobs", ", ".join(jobs)))
    found += [("resources_available.arch", "linux"), ("resources_available.host", node.name)]
    if node.memory:
        found.append(("resources_available.mem", f"{node.memory >> 10}kb"))
    found.append(("resources_available.ncpus", node.cores))
    if node.gpus:
        found.append(("resources_available.ngpus", node.gpus))
    found += [("resources_available.vnode", node.name), ("resources_assigned.mem", f"{node.memory_taken >> 10}kb"),
              ("resources_assigned.ncpus", node.taken)]
    if node.gpus:
        found.append(("resources_assigned.ngpus", node.gpus_taken))
    return [*found, ("resv_enable", "True"), ("sharing", "default_shared")]


def _nested(shown: tuple[str, list[tuple[str, Any]]]) -> tuple[str, dict[str, Any]]:
    """Return the attributes as nested JSON objects: a name with a dot becomes a member of another object."""
    found: dict[str, Any] = {}
    for key, value in shown[1]:
        above, dot, name = key.partition(".")
        if dot:
            part = found.setdefault(above, {})
            if above != "resources_assigned" or str(value)[0] != "0":  # pbsnodes leaves out unused resources
                part[name] = value
        elif key == "jobs":
            found[key] = [job for job, _ in groupby(each.partition("/")[0] for each in value.split(", "))]
        else:
            found[key] = value
    return shown[0], found
