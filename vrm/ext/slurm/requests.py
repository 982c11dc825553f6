"""What Slurm's options ask of the machine, as fields of a job: tasks, cores, nodes, memory, GPUs, features,
licences."""

from __future__ import annotations

import re
from typing import Any, TypeVar
from collections.abc import Callable, Mapping

from vrm.ext.slurm.forms import nodelists
from vrm.ext.slurm.forms.options import Options
from vrm.model.amounts import Amounts, amounts
from vrm.model.forms.kinds import FieldError, name_sound
from vrm.model.job import Request
from vrm.model.quantities import scale

Demand = dict[str, Any]
"""Values by the names of `vrm.model.forms.fields`."""

_Found = TypeVar("_Found")

NO_FEATURES: frozenset[str] = frozenset()
NOTHING: Amounts = ()
NO_NODES: list[str] = []


def demand(chosen: Mapping[str, str], options: Options) -> Demand:
    """What is asked for. Refused for what cannot be understood, or that vrm cannot give."""

    def read(name: str, how: Callable[[str], _Found], default: _Found) -> _Found:
        if name not in chosen:
            return default
        try:
            return how(chosen[name])
        except FieldError as error:
            raise options.error(f"--{name}: {error}") from error
        except ValueError as error:
            raise options.error(f"Invalid value `{chosen[name]}` for --{name}") from error

    cores = read("cpus-per-task", _positive, 1)
    per_node = read("ntasks-per-node", _positive, 0)
    least, most = read("nodes", nodes, (0, 0))
    tasks = read("ntasks", _positive, 0)
    nodelist = read("nodelist", nodelists.names, NO_NODES)
    if nodelist:
        nodelist, least, most, tasks = nodelists.nodes_for(nodelist, least, most, tasks, per_node, options)
    tasks = tasks or max(least, 1) * (per_node or 1)
    gpus_per_task, gpus_per_node = read("gpus-per-task", _gpus, (0, "")), read("gpus-per-node", _gpus, (0, ""))
    if "cpus-per-gpu" in chosen:
        if not gpus_per_task[0] or "cpus-per-task" in chosen:
            raise options.error("--cpus-per-gpu: vrm follows it together with --gpus-per-task alone; say "
                                "--cpus-per-task")
        cores = gpus_per_task[0] * read("cpus-per-gpu", _positive, 1)
    features = set(read("constraint", _features, NO_FEATURES))
    others: dict[str, float] = {}
    for part in chosen.get("gres", "").split(","):
        name, _, rest = part.removeprefix("gres:").removeprefix("gres/").partition(":")
        if not name or name.upper() == "NONE":
            continue
        try:
            if name == "gpu":
                gpus_per_node = _gpus(rest or "1")
            else:
                if not name_sound(name):
                    raise ValueError(part)
                others[name] = others.get(name, 0) + float(_count(rest.rpartition(":")[2] or "1"))
        except ValueError as error:
            raise options.error(f"Invalid generic resource (gres) specification: {part}") from error
    if "gpus" in chosen:
        total = read("gpus", _gpus, (0, ""))
        gpus_per_task, gpus_per_node = _shared(total, tasks, least, most, options)
    features |= {kind for _, kind in (gpus_per_task, gpus_per_node) if kind}
    found: Demand = {"procs": tasks, "cores": cores}
    if least:
        least = min(least, tasks)
        found["nodes"] = least, max(least, min(most, tasks)) if most else 0
    wanted = {"tasks_per_node": per_node, "gpus_per_task": gpus_per_task[0], "gpus_per_node": gpus_per_node[0],
              "mem_per_node": read("mem", _memory, 0), "mem_per_task": read("mem-per-cpu", _memory, 0) * cores,
              "features": frozenset(features), "others_per_node": amounts(others),
              "licences": read("licenses", _licences, NOTHING), "nodelist": frozenset(nodelist),
              "exclude": frozenset(read("exclude", nodelists.names, NO_NODES))}
    if "mem-per-gpu" in chosen:
        memory = read("mem-per-gpu", _memory, 0)
        wanted["mem_per_task"] = memory * gpus_per_task[0]
        wanted["mem_per_node"] = memory * gpus_per_node[0]
    found.update((name, value) for name, value in wanted.items() if value)
    try:
        Request.of_fields(tasks, cores, False, found)
    except ValueError as error:
        raise options.error(f"Requested node configuration is not available: {error}") from error
    return found


def _positive(text: str) -> int:
    found = _count(text)
    if not found:
        raise ValueError(text)
    return found



def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", text):
        raise ValueError(text)
    return int(text)


def nodes(text: str) -> tuple[int, int]:
    """The least and the most nodes."""
    match = re.fullmatch(r"([0-9]{1,7})([km]?)(?:-([0-9]{1,7})([km]?))?", text.lower())
    if not match:
        raise ValueError(text)
    least = int(match[1]) * scale(match[2])
    most = int(match[3]) * scale(match[4]) if match[3] else least
    if not 0 < least <= most:
        raise ValueError(text)
    return least, most


def _memory(text: str) -> int:
    """Bytes of `4G` or, without a unit, of megabytes; 0 for all, which says nothing."""
    match = re.fullmatch(r"([0-9]{1,15})([kmgtKMGT]?)[bB]?", text)
    if not match:
        raise ValueError(text)
    return int(match[1]) * scale(match[2] or "M")


def _gpus(text: str) -> tuple[int, str]:
    """The number of GPUs, and their kind, of `2`, `a100:2` or `gpu:a100:2`."""
    text = text.removeprefix("gpu:")
    kind, _, number = text.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,6}", number):
        kind, number = text, "1"
    if kind and not name_sound(kind):
        raise ValueError(text)
    return int(number), kind


def _shared(total: tuple[int, str], tasks: int, least: int, most: int, options: Options
            ) -> tuple[tuple[int, str], tuple[int, str]]:
    """GPUs of a whole job, as those of each task or of each node."""
    count, kind = total
    if count % tasks == 0:
        return (count // tasks, kind), (0, "")
    nodes = least if least == most else 0
    if tasks == 1 or (nodes and count % nodes == 0):
        return (0, ""), (count // (nodes or 1), kind)
    raise options.error(f"--gpus={count} cannot be shared evenly by {tasks} tasks; say --gpus-per-task, or "
                        "--gpus-per-node and --nodes")


def _features(text: str) -> frozenset[str]:
    """The features that all nodes must have: `ib&fast`."""
    found = frozenset(part.strip() for part in re.split("[&,]", text) if part.strip())
    if not all(map(name_sound, found)):
        raise FieldError("`{}` is more than vrm follows: features that all nodes have, as ib&fast", text)
    return found


def _licences(text: str) -> Amounts:
    """Licences as `ansys:2,matlab`."""
    if "|" in text:
        raise FieldError("`{}`: vrm takes all licences that are named (with commas)", text)
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.replace("=", ":").partition(":")
        name = name.partition("@")[0]
        if not name_sound(name):
            raise ValueError(text)
        found[name] = float(_positive(number or "1"))
    return amounts(found)
