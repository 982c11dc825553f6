"""Properties of a class of nodes besides cores, and licences; machine files and configurations use the same keys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from collections.abc import Sequence

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainSerializer, create_model
from pydantic_core import PydanticCustomError

from vrm.config.validators import OURS, STRICT, hosts_like, kind
from vrm.model.amounts import MEMORY, base, people
from vrm.model.quantities import memory_bytes, memory_text
from vrm.model.measured.energy import PowerClass
from vrm.model.node import Node
from vrm.model.measured.power import MARK
from vrm.model.forms.hosts import expand
from vrm.model.rules import attribute
from vrm.system import plugins


def extended(section: str) -> dict[str, Any]:
    """Return the keys that vrm's own extensions add to a section of the configuration ("": the top level): a kind and
    a default for each attribute."""
    found = {}
    for plugin in plugins.own("vrm.keys"):
        place, _, name = plugin.name.rpartition(".")
        if place == section:
            found[attribute(name)] = plugins.load(plugin)()
    return found


def _memory(value: Any) -> Any:
    """Return GiB of a text such as 64GiB, 64G or 64000M; a unit is required, and units are powers of 1024."""
    if isinstance(value, float):  # already converted
        return value
    return people(MEMORY, memory_bytes(str(value).strip()))


def _no_keys(resources: Any) -> Any:
    """Refuse memory and cores as names of resources: they have their own keys."""
    for name in resources if isinstance(resources, dict) else ():
        if name.lower() in ("memory", "mem", "core", "cores"):
            key = "Cores: 8" if name.lower().startswith("core") else "Memory: 64GiB"
            raise PydanticCustomError(OURS, "{message}", {
                "message": f"{name} has its own key", "hint": f"write {key} next to Resources"})
    return resources


def _whole_gpus(resources: dict[str, float]) -> dict[str, float]:
    if resources.get("gpu", 0) % 1:
        raise PydanticCustomError(OURS, "{message}", {
            "message": f"gpu: {resources['gpu']:g} is not a whole number", "hint": "write gpu: 2"})
    return resources


Memory = Annotated[float, Field(gt=0), BeforeValidator(_memory),
                   kind("memory with its unit, as 64GiB, 64G or 64000M", "64GiB"),
                   PlainSerializer(lambda size: memory_text(base(MEMORY, size)), return_type=str)]
_FEATURES = "[ib, ssd]"
_WORD = r"^[A-Za-z][A-Za-z0-9_.+-]{0,63}$"
Features = Annotated[
    tuple[Annotated[str, Field(pattern=_WORD), kind("a word", _FEATURES)], ...],
    kind("a list of words", _FEATURES, empty=())]
_SSD = "{gpu: 2, ssd: 1}"
Resources = Annotated[
    dict[Annotated[str, Field(pattern=_WORD),
                   kind("the name of a resource", _SSD)],
         Annotated[float, Field(ge=0, allow_inf_nan=False), kind("a number, 0 or more", "2")]],
    BeforeValidator(_no_keys), AfterValidator(_whole_gpus),
    kind("names with amounts", _SSD, empty={})]
_ANSYS = "{ansys: 4}"
Licences = Annotated[
    dict[Annotated[str, Field(pattern=_WORD), kind("the name of a licence", _ANSYS)],
         Annotated[int, Field(ge=0), kind("a whole number, 0 or more", "4")]],
    kind("names with numbers", _ANSYS, empty={})]


if TYPE_CHECKING:
    Added = BaseModel
else:
    Added = create_model("Added", __config__=STRICT, **extended("NodeClasses"))


class Holdings(Added):
    """Memory, resources and features of each node of a class."""

    model_config = STRICT
    memory: Annotated[Memory | None, kind("memory with its unit", "64GiB")] = None
    resources: Resources = Field(default_factory=dict)
    features: Features = ()

    def amounts(self) -> dict[str, float]:
        """Return the resources of a node in the form of `Node`: memory in GiB."""
        found = {MEMORY: self.memory or 0.0, **self.resources}
        return {name: amount for name, amount in found.items() if amount}

    def power(self) -> PowerClass | None:
        """Return the power class of such a node, if an extension adds the key; else None."""
        energy = getattr(self, "energy", None)
        found: PowerClass | None = None if energy is None else energy.power()
        return found

    def node(self, node: Node) -> Node:
        """Return the node with the features and the power of the class."""
        power = self.power()
        marks = {f"{MARK}{power.name}"} if power else set()
        return replace(node, features=node.features | frozenset(self.features) | marks, power=power)


class NodeClassSection(Holdings):
    """A class of nodes of a live run, and what each of them has."""

    hosts: Annotated[str, BeforeValidator(hosts_like("Hosts: node[01-16],node20")),
                     kind("hosts, as node[01-16],node20", "node[01-16]")]

    @property
    def names(self) -> list[str]:
        """Names of the hosts."""
        return expand(self.hosts)


def _once(classes: list[NodeClassSection]) -> list[NodeClassSection]:
    """Check that each host belongs to one class only."""
    seen: dict[str, int] = {}
    for number, each in enumerate(classes, 1):
        for host in each.names:
            if host in seen:
                raise PydanticCustomError(OURS, "{message}", {
                    "message": f"{host} is in entry {seen[host]} and in entry {number}" if
                    seen[host] != number else f"{host} is twice in entry {number}",
                    "hint": "name a host in one of them"})
            seen[host] = number
    return classes


_CLASSES = "[{Hosts: 'node[01-16]', Resources: {ssd: 2}, Features: [ib]}]"
NodeClasses = Annotated[
    list[Annotated[NodeClassSection, kind("a group of keys", "{Hosts: node01, Resources: {ssd: 2}}")]],
    AfterValidator(_once), kind("a list of node classes", _CLASSES, empty=[])]


def powered(classes: Sequence[NodeClassSection], nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes with the power of their classes, matched by name."""
    known = {host: each.power() for each in classes for host in each.names}
    return tuple(replace(node, power=power) if (power := known.get(node.name) or known.get(
        node.name.partition(".")[0])) is not None else node for node in nodes)
