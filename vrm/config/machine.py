"""Machine files: the node classes of a simulated machine. Mistakes are reported with file, line, key and the fix.

Three formats are read. The format of vrm is YAML:

    Classes:
      - {Name: cpu, Count: 4, Sockets: 2, Cores: 8, Memory: 64GiB}
      - {Name: gpu, Count: 2, Sockets: 2, Cores: 8, Memory: 64GiB, Resources: {gpu: 2}, Features: [ib]}
    Licences: {ansys: 4}

The format of vrm 0.1.0 is JSON, `{"nodes": [{"count": 4, "sockets": 2, "cores": 8, "gpu": 2}]}`; so is that of
AccaSim, `{"groups": {"g0": {"core": 16, "mem": 4194304}}, "resources": {"g0": 4}}`, whose nodes have one socket.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, Field

from vrm.config.node_classes import Holdings, Licences
from vrm.config.validators import STRICT, kind
from vrm.config.problems import ConfigError
from vrm.config.value_types import Threads
from vrm.config.yaml_reader import Document, Location
from vrm.model.machine import MOST_SOCKETS, Machine
from vrm.model.node import Node

_DEPTH = 5  # Classes, its index, Energy, Frequencies, its index
_EXAMPLE = "Classes: [{Count: 4, Sockets: 2, Cores: 8, Memory: 64GiB}]"
Count = Annotated[int, Field(ge=1, le=MOST_SOCKETS), kind("a whole number from 1 up", "8")]


class NodeKind(Holdings):
    """A class of equal nodes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,40}$"),
                    kind("a prefix for the names of the nodes", "gpu")] = "n"
    count: Count = 1
    sockets: Count = 1
    cores: Count  # of each socket
    threads: Threads = 1  # of each core; above 1 each thread counts as a core


class MachineFile(BaseModel):
    """The keys of a machine file."""

    model_config = STRICT
    name: Annotated[str, kind("text", "my cluster")] = "machine"
    classes: Annotated[list[Annotated[NodeKind, kind("a group of keys", "{Count: 4, Cores: 8}")]],
                       Field(min_length=1), kind("a list of node classes", _EXAMPLE[9:])]
    licences: Licences = Field(default_factory=dict)

    def machine(self) -> Machine:
        """Return the machine, with nodes in the order of the classes. Node names are numbered from 0 for each prefix;
        a hyphen separates the number from a prefix that ends in a digit."""
        nodes: list[Node] = []
        numbers: dict[str, int] = {}
        for each in self.classes:
            shape = (each.cores * each.threads,) * each.sockets
            like = each.node(Node("n", shape, each.amounts(), threads=each.threads))
            begin = each.name + "-" * each.name[-1].isdigit()
            first = numbers.get(begin, 0)
            numbers[begin] = first + each.count
            nodes += [replace(like, name=f"{begin}{number}")
                      for number in range(first, first + each.count)]
        return Machine(tuple(nodes), self.licences)


def read_machine(path: str | os.PathLike[str]) -> Machine:
    """Return the machine of a file in any of the three formats. Raises ConfigError with all mistakes."""
    document = Document.read(path, _DEPTH, _EXAMPLE)
    mapping = document.mapping
    if document.problems:
        raise ConfigError(document.problems)
    if "groups" in mapping or "resources" in mapping:
        file = document.placed(MachineFile, *_of_accasim(document))
    elif "nodes" in mapping:
        file = document.placed(MachineFile, *_of_nodes(document))
    else:
        file = document.checked(MachineFile)
    threads = next((number for number, each in enumerate(file.classes) if each.threads != file.classes[0].threads), 0)
    if threads:
        raise ConfigError([document.problem(
            ("Classes", threads, "Threads"), "all nodes of a machine have as many threads on each core",
            f"write Threads: {file.classes[0].threads}, as in the first class")])
    sockets = sum(each.count * each.sockets for each in file.classes)
    if sockets > MOST_SOCKETS:
        raise ConfigError([document.problem((), f"its classes have {sockets} sockets in all; a machine "
                                            f"has at most {MOST_SOCKETS}", "make Count smaller")])
    return file.machine()


Other = tuple[dict[str, Any], dict[Location, Location]]
"""The equivalent keys of a machine file in another format, and the place of each in that file."""


def _of_accasim(document: Document) -> Other:
    groups, numbers = (_group(document, key) for key in ("groups", "resources"))
    classes: list[dict[str, Any]] = []
    places: dict[Location, Location] = {}
    for name in numbers:
        if name not in groups:
            raise ConfigError([document.problem(("resources", name), "no group has this name",
                                                f"describe it under groups: {', '.join(groups)}")])
        one: dict[str, Any] = {"Name": name, "Count": numbers[name]}
        at: Location = ("Classes", len(classes))
        places[at] = places[at + ("Count",)] = ("resources", name)
        here = ("groups", name)
        for key, value in _group(document, *here).items():
            if key == "core":
                word: tuple[str, ...] = ("Cores",)
            elif key == "mem":
                word, value = ("Memory",), _accasim_memory(document, (*here, key), value)
            else:
                word = ("Resources", key)
            if value is not None:
                _put(one, word, value)
                places[at + word] = (*here, key)
        classes.append(one)
    return {"Classes": classes}, places


def _accasim_memory(document: Document, place: Location, value: Any) -> Any:
    """Return the memory with a unit: a bare number is KiB, as in traces; 0 is none."""
    text = str(value).strip()
    if not text.isdigit():
        return value
    if not int(text):
        return None
    if int(text) < 1024:
        raise ConfigError([document.problem(
            place, f"{text} is {text} KiB of memory for a node", f'write the unit: "{text}GiB"')])
    return f"{text}K"


def _of_nodes(document: Document) -> Other:
    """Convert the nodes of vrm 0.1.0. Memory was a plain resource name there: a value without a unit is GiB."""
    words = {"count": "Count", "sockets": "Sockets", "cores": "Cores", "prefix": "Name"}
    classes: list[Any] = []
    places: dict[Location, Location] = {}
    listed = document.mapping["nodes"]
    for number, kinds in enumerate(listed if isinstance(listed, list) else [listed]):
        at, here = ("Classes", number), ("nodes", number)
        places[at] = here if isinstance(listed, list) else ("nodes",)
        if not isinstance(kinds, dict):
            classes.append(kinds)
            continue
        one: dict[str, Any] = {}
        for key, value in kinds.items():
            word = (words[key],) if key in words else (
                ("Memory",) if key in ("memory", "mem") else ("Resources", key))
            if word == ("Memory",) and re.fullmatch(r"[0-9.]+", str(value)):
                value = f"{value}G"
            _put(one, word, value)
            places[at + word] = here + (key,)
        classes.append(one)
    return {"Classes": classes}, places


def _put(mapping: dict[str, Any], words: tuple[str, ...], value: Any) -> None:
    for word in words[:-1]:
        mapping = mapping.setdefault(word, {})
    mapping[words[-1]] = value


def _group(document: Document, *place: str) -> dict[str, Any]:
    """Return the mapping at a place of the file."""
    found: Any = document.mapping
    for word in place:
        found = found.get(word)
    if not isinstance(found, dict) or not found:
        raise ConfigError([document.problem(
            place, "found nothing" if not found else "found no group of keys",
            'for example {"groups": {"g0": {"core": 16, "mem": 67108864}}, "resources": {"g0": 4}}')])
    return found
