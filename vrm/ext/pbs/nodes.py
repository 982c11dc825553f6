"""`pbsnodes`: the nodes of the allocation."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from vrm.ext.pbs import words
from vrm.ext.slurm.calls.answers import Answer, Call, Refused
from vrm.ext.slurm.calls.counter import Counter
from vrm.ext.slurm.calls.jobs import NodeView

USAGE = "pbsnodes [-a | -l] [-v] [-F json] [node ...]"


def pbsnodes(call: Call, counter: Counter) -> Answer:
    """Show nodes: all, those that are named, or with -l those that are down."""
    options, names = words.options("pbsnodes", "aSjlvHF:D:Lrod:C:s:", USAGE, call.arguments)
    chosen = dict(options)
    for letter in chosen:
        if letter not in "alvFDs":
            raise Refused(f"pbsnodes: -{letter}: vrm does not know it\nusage: {USAGE}", words.USAGE)
    if chosen.get("F", "json") != "json":
        raise Refused(f"pbsnodes: -F {chosen['F']}: vrm knows json", words.USAGE)
    known = {node.name: node for node in counter.nodes()}
    said = [f"Node: {name},  Error: Unknown node \n" for name in names if name not in known]
    nodes = [known[name] for name in names if name in known] if names else list(known.values())
    if "l" in chosen:
        return Answer("".join(f"{node.name:<20} {state(node)}\n" for node in nodes if not node.up))
    if not names and not {"a", "v"} & set(chosen):
        raise Refused(f"usage: {USAGE}")
    on: dict[str, list[str]] = {}
    for job in counter.jobs(ended=False):
        for name, cores in zip(job.nodes, job.cores):
            on.setdefault(name, []).extend(f"{words.shown(job)}/{number}" for number in range(cores))
    shown = [(node.name, facts(node, on.get(node.name, []))) for node in nodes]
    if "F" in chosen:
        text = words.document(counter, {"nodes": dict(_nested(each) for each in shown)})
    else:
        text = "".join(f"{name}\n" + "".join(f"     {key} = {value}\n" for key, value in each) + "\n"
                       for name, each in shown)
    return Answer(text, "".join(said), 1 if said else 0)


def state(node: NodeView) -> str:
    """What PBS calls the state of a node."""
    if not node.up:
        return "down"
    if node.exclusive:
        return "job-exclusive"
    return "job-busy" if node.taken >= node.cores else "free"


def facts(node: NodeView, jobs: list[str]) -> list[tuple[str, Any]]:
    """What is said of a node."""
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
    """The same as JSON has it: what has a dot in its name within another object."""
    found: dict[str, Any] = {}
    for key, value in shown[1]:
        above, dot, name = key.partition(".")
        if dot:
            part = found.setdefault(above, {})
            if above != "resources_assigned" or str(value)[0] != "0":  # pbsnodes leaves out what nobody has
                part[name] = value
        elif key == "jobs":
            found[key] = [job for job, _ in groupby(each.partition("/")[0] for each in value.split(", "))]
        else:
            found[key] = value
    return shown[0], found
