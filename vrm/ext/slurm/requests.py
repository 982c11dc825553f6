"""Converts Slurm's resource options to fields of a job: tasks, cores, nodes, memory, GPUs, features, licences."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, TypeVar
from collections.abc import Callable, Mapping, Sequence

from vrm.ext.slurm.forms import nodelists
from vrm.ext.slurm.forms.options import Options
from vrm.model.amounts import Amounts, amounts, total
from vrm.model.forms.fields import REQUEST, TABLE
from vrm.model.forms.field_types import FieldError, name_sound
from vrm.model.job import Component, Request
from vrm.model.quantities import SLURM_MEMORY, memory_bytes, scale

Demand = dict[str, Any]
"""Values by their names in `vrm.model.forms.fields`."""

_Found = TypeVar("_Found")
_NO_GPUS = (0, "")


def read(options: Options, chosen: Mapping[str, str], name: str, how: Callable[[str], _Found], default: _Found
         ) -> _Found:
    """Return the value of option `name` as `how` reads it, or `default` if the option is not given. Raises CallRefused
    for an invalid value."""
    if name not in chosen:
        return default
    try:
        return how(chosen[name])
    except FieldError as error:
        raise options.error(f"--{name}: {error}") from error
    except (ValueError, KeyError) as error:
        raise options.error(f"Invalid value `{chosen[name]}` for --{name}") from error


def demand(chosen: Mapping[str, str], options: Options) -> Demand:
    """Return the resources that the options request. Raises CallRefused for values that cannot be understood or that
    vrm cannot provide."""
    said = {name: read(options, chosen, name, *reader) for name, reader in READERS.items()}
    per_node, (least, most), nodelist, tasks = (
        said[name] for name in ("ntasks-per-node", "nodes", "nodelist", "ntasks"))
    if nodelist:
        nodelist, least, most, tasks = nodelists.nodes_for(nodelist, least, most, tasks, per_node, options)
    tasks = tasks or max(least, 1) * (per_node or 1)
    gpus, others = said["gres"]
    gpus_per_task, gpus_per_node = said["gpus-per-task"], gpus or said["gpus-per-node"]
    cores, memory = said["cpus-per-task"], said["mem-per-gpu"]
    if "cpus-per-gpu" in chosen:
        if not gpus_per_task[0] or "cpus-per-task" in chosen:
            raise options.error("--cpus-per-gpu: vrm follows it together with --gpus-per-task alone; say "
                                "--cpus-per-task")
        cores = gpus_per_task[0] * said["cpus-per-gpu"]
    if "gpus" in chosen:
        gpus_per_task, gpus_per_node = _shared(said["gpus"], tasks, least, most, options)
    found: Demand = {"procs": tasks, "cores": cores}
    if least:
        least = min(least, tasks)
        found["nodes"] = least, max(least, min(most, tasks)) if most else 0
    wanted = {"tasks_per_node": per_node, "gpus_per_task": gpus_per_task[0], "gpus_per_node": gpus_per_node[0],
              "mem_per_node": said["mem"] if memory is None else memory * gpus_per_node[0],
              "mem_per_task": said["mem-per-cpu"] * cores if memory is None else memory * gpus_per_task[0],
              "features": said["constraint"] | {kind for _, kind in (gpus_per_task, gpus_per_node) if kind},
              "others_per_node": others, "licences": said["licenses"],
              "threads": said["hint"] or said["threads-per-core"],
              "nodelist": frozenset(nodelist), "exclude": frozenset(said["exclude"])}
    found.update((name, value) for name, value in wanted.items() if value)
    try:
        Request.of_fields(tasks, cores, False, found)
    except ValueError as error:
        raise options.error(f"Requested node configuration is not available: {error}") from error
    return found


def together(first: Demand, others: Sequence[Demand]) -> Demand:
    """Return the combined fields of a heterogeneous job with the components `first` and `others`. Removes the fields
    that describe resources from `first` and `others`."""
    parts: list[Component] = []
    licences: Amounts = ()
    for each in (first, *others):
        own = {name: each.pop(name) for name in _OF_MACHINE if name in each}
        licences = total(licences, own.pop("licences", ()))
        tasks, cores = own.pop("procs"), own.pop("cores")
        parts.append(Component(first["app"], Request.of_fields(tasks, cores, False, own)))
    return {"procs": sum(part.request.tasks for part in parts), "components": tuple(parts),
            **({"licences": licences} if licences else {})}


_OF_MACHINE = ("procs", "cores", *(field.at for field in TABLE if field.kept == REQUEST))


def _positive(text: str) -> int:
    found = _count(text)
    if not found:
        raise ValueError(text)
    return found


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", text):
        raise ValueError(text)
    return int(text)


def _sound(name: str) -> str:
    if not name_sound(name):
        raise ValueError(name)
    return name


def nodes(text: str) -> tuple[int, int]:
    """Return the minimum and the maximum number of nodes that `--nodes` requests."""
    match = re.fullmatch(r"([0-9]{1,7})([km]?)(?:-([0-9]{1,7})([km]?))?", text.lower())
    if not match:
        raise ValueError(text)
    least = int(match[1]) * scale(match[2])
    most = int(match[3]) * scale(match[4]) if match[3] else least
    if not 0 < least <= most:
        raise ValueError(text)
    return least, most


def _hint(text: str) -> int:
    """Return how many hardware threads of each core a task uses; 0 for any number."""
    if text not in ("compute_bound", "memory_bound", "multithread", "nomultithread"):
        raise ValueError(text)
    return int(text == "nomultithread")


def _gpus(text: str) -> tuple[int, str]:
    """Return number and kind ("": any) of the GPUs in `2`, `a100:2` or `gpu:a100:2`."""
    text = text.removeprefix("gpu:")
    kind, _, number = text.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,6}", number):
        kind, number = text, "1"
    return int(number), kind and _sound(kind)


def _resources(text: str) -> tuple[tuple[int, str] | None, Amounts]:
    """Read `gpu:a100:2,ssd:1`: return the GPUs (None if there is no `gpu`) and the other resources of each node."""
    gpus, others = None, dict[str, float]()
    for part in text.split(","):
        name, _, rest = part.removeprefix("gres:").removeprefix("gres/").partition(":")
        try:
            if name == "gpu":
                gpus = _gpus(rest or "1")
            elif name and name.upper() != "NONE":
                others[_sound(name)] = others.get(name, 0) + _count(rest.rpartition(":")[2] or "1")
        except ValueError as error:
            raise FieldError("Invalid generic resource (gres) specification: {}", part) from error
    return gpus, amounts(others)


def _shared(total: tuple[int, str], tasks: int, least: int, most: int, options: Options
            ) -> tuple[tuple[int, str], tuple[int, str]]:
    """Split the GPUs of a whole job evenly: return them per task and per node (one is zero)."""
    count, kind = total
    if count % tasks == 0:
        return (count // tasks, kind), (0, "")
    nodes = least if least == most else 0
    if tasks == 1 or (nodes and count % nodes == 0):
        return (0, ""), (count // (nodes or 1), kind)
    raise options.error(f"--gpus={count} cannot be shared evenly by {tasks} tasks; say --gpus-per-task, or "
                        "--gpus-per-node and --nodes")


def _features(text: str) -> frozenset[str]:
    """Return the features of `ib&fast` or `ib,fast`; a node must have all of them."""
    found = frozenset(part.strip() for part in re.split("[&,]", text) if part.strip())
    if not all(map(name_sound, found)):
        raise FieldError("`{}` is more than vrm follows: features that all nodes have, as ib&fast", text)
    return found


def _licences(text: str) -> Amounts:
    """Return the licences of `ansys:2,matlab`."""
    if "|" in text:
        raise FieldError("`{}`: vrm takes all licences that are named (with commas)", text)
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.replace("=", ":").partition(":")
        name = name.partition("@")[0]
        found[_sound(name)] = float(_positive(number or "1"))
    return amounts(found)


_memory = partial(memory_bytes, dialect=SLURM_MEMORY)

READERS: Mapping[str, tuple[Callable[[str], Any], Any]] = {
    "cpus-per-task": (_positive, 1), "ntasks-per-node": (_positive, 0), "nodes": (nodes, (0, 0)),
    "ntasks": (_positive, 0), "nodelist": (nodelists.names, []), "gpus-per-task": (_gpus, _NO_GPUS),
    "gpus-per-node": (_gpus, _NO_GPUS), "cpus-per-gpu": (_positive, 1), "constraint": (_features, frozenset()),
    "gres": (_resources, (None, ())), "gpus": (_gpus, _NO_GPUS), "mem": (_memory, 0), "mem-per-cpu": (_memory, 0),
    "hint": (_hint, 0), "threads-per-core": (lambda text: int(_positive(text) == 1), 0),
    "licenses": (_licences, ()), "exclude": (nodelists.names, []), "mem-per-gpu": (_memory, None)}
"""For each resource option the function that reads its value, and the value that is used without the option."""
