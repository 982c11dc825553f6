"""Conversion of jobs, nodes and placements to values of journal records, and back."""

from __future__ import annotations

import marshal
from operator import itemgetter
from typing import Any
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from vrm.model import Cluster, Job, Node, Placement
from vrm.model.forms import placement_formats
from vrm.model.forms.fields import ADDED, LINE, OF_DETAILS, OF_JOB, TABLE, getter, made
from vrm.model.forms.field_types import AFTER, same
from vrm.model.job import PLAIN, Dependency, Details
from vrm.model.node import Device
from vrm.model.quantities import fold, numbers
from vrm.run.loans import LoanTable
from vrm.system.plugins import PluginError
from vrm.workload.extension_fields import added

Record = dict[str, Any]
Own = Sequence[tuple[Dependency, ...]]

_OF_JOB, _OF_DETAILS = ([(each.record, getter(each), each.always, each.default,
                          each.kind.to_record if each.kind.to_record is not same else None)
                         for each in TABLE if each.kept in kept and each.record]
                        for kept in (OF_JOB, OF_DETAILS))
_VALUES = {each.record: (each.at, each.kind.of_record) for each in TABLE if each.record and each.kept != LINE}
TEMPLATE_KEYS = {*_VALUES, "more"}
"""Keys of a journal record that describe a job; its id and submit time are not among them."""


def job_record(job: Job, details: Details = PLAIN, indices: Sequence[int] = (), own: Own = ()) -> Record:
    """Return a job as journal values; with `indices`, an array whose first job it is. `own` are the additional
    dependencies of each job of the array."""
    record: Record = {"id": job.id, "submit": job.submit}
    of: Any = job
    for fields in (_OF_JOB, _OF_DETAILS):
        for key, get, always, default, convert in fields:
            value = get(of)
            if always or value != default:
                record[key] = convert(value) if convert is not None else value
        of = details
    if job.more:
        record["more"] = {f"{ADDED[word].package}:{word}": ADDED[word].kind.to_record(value)
                          for word, value in job.more.items()}
    if indices:
        record["array"] = fold(indices)
    if own:
        record["own"] = [AFTER.to_record(each) if each else "" for each in own]
    return record


MOST_TEMPLATES = 4096
"""Maximum number of cached jobs; jobs that differ only in id and time are copied from them."""

_templates: dict[bytes, tuple[Job, Details]] = {}


_getters: dict[tuple[str, ...], tuple[bytes, Callable[[Record], Any]]] = {}
"""By the keys of a record: those of its template, and what returns their values."""

_latest: tuple[Record, bytes] = {}, b""


def template_key(record: Record) -> bytes:
    """Return a key of the record's values that describe its job or array, without ids and times: records with equal
    keys make equal jobs."""
    global _latest
    if _latest[0] is not record:  # its check and its job need it, one after the other
        keys = tuple(record)
        if keys not in _getters:
            if len(_getters) == MOST_TEMPLATES:
                _getters.clear()
            names = [key for key in keys if key in TEMPLATE_KEYS]
            _getters[keys] = marshal.dumps(names, 2), itemgetter(*names) if names else len
        names_key, get = _getters[keys]
        _latest = record, names_key + marshal.dumps(get(record), 2)
    return _latest[1]


def jobs_of(record: Record) -> tuple[list[Job], Details, Sequence[int]]:
    """Return the job of a journal record, or the jobs of an array and their indices, and the details without the
    index. Jobs with the same `template_key` share their values."""
    known = template_key(record)
    if known in _templates:
        first, details = _templates[known]
        job = first.but(id=record["id"], submit=record["submit"])
    else:
        values = {}
        for key, value in record.items():
            if key in _VALUES:
                at, convert = _VALUES[key]
                values[at] = convert(value)
        for key, value in record.get("more", {}).items():
            word = key.partition(":")[2]
            values[word] = ADDED[word].kind.of_record(value)
        job, details = made(values, record["id"], record["submit"])
        if len(_templates) == MOST_TEMPLATES:
            _templates.clear()
        _templates[known] = job, details
    if "array" not in record:
        return [job], details, ()
    indices = numbers(record["array"])
    return [job.but(id=job_id) for job_id in range(job.id, job.id + len(indices))], details, indices


class MissingExtension(str):
    """The fault of a valid record that belongs to an extension that is not installed."""


def missing(what: str, package: str) -> str:
    """Return the fault of a record of an extension that is not installed: `what` the record has, and the package that
    adds it."""
    return MissingExtension(f"{what[:80]} of the package {package[:80]}, which is not installed here; install it, "
                            "and type the same command again")


def more_fault(more: Any) -> str:
    """Return why the extension fields in a job's record cannot be read; "" if they can."""
    if type(more) is not dict:
        return "more is wrong"
    for key, value in more.items():
        package, _, word = key.partition(":")
        try:
            field = added(word)
        except PluginError as error:
            return str(error)
        if field is None or field.package != package:
            return missing(f"a job has the field `{word}`", package)
        if not field.kind.sound(value):
            return f"{word} is wrong"
    return ""


def own_dependencies(record: Record) -> Own:
    """Return the additional dependencies of each job of an array; empty if there are none."""
    return [AFTER.of_record(each) if each else () for each in record.get("own", ())]


def is_own_dependencies(value: Any) -> bool:
    """Return whether a value is a valid `own` entry of a record."""
    return type(value) is list and all(each == "" or AFTER.sound(each) for each in value)


def nodes_record(nodes: Sequence[Node]) -> list[list[Any]]:
    """Return nodes as journal values: name, sockets, and their other properties, if any."""
    return [[node.name, list(node.sockets), *_more(node)] for node in nodes]


def _more(node: Node) -> list[Record]:
    more = {"resources": dict(node.resources), "features": sorted(node.features),
            "devices": {name: [[each.index, each.socket, each.uuid] for each in devices]
                        for name, devices in node.devices.items()},
            "threads": node.threads if node.threads > 1 else 0}
    found = {key: value for key, value in more.items() if value}
    return [found] if found else []


def same_nodes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two lists of nodes, as journal values, have the same names and cores."""
    return [each[:2] for each in one] == [each[:2] for each in other]


def cluster_of(record: Mapping[str, Any], now: Cluster) -> Cluster:
    """Return the cluster of a `run` record: `now` itself if the nodes are the same or not recorded."""
    if record.get("nodes") is None or same_nodes(record["nodes"], nodes_record(now.nodes)):
        return now
    return Cluster(nodes_of(record["nodes"]))


def nodes_of(values: Iterable[Any]) -> list[Node]:
    """Return the nodes of journal values."""
    return [Node(name, tuple(sockets), more.get("resources", {}),
                 frozenset(more.get("features", ())),
                 {name: tuple(Device(*each) for each in devices)
                  for name, devices in more.get("devices", {}).items()}, threads=more.get("threads", 1))
            for name, sockets, more in ((*each, {})[:3] for each in values)]


def placement_of(record: Record, cluster: Cluster) -> Placement:
    """Return the placement of a journal record, on the cluster that it was made for."""
    return placement_formats.of_record(record, cluster.layout)


def moved(placement: Placement, before: Cluster, now: Cluster) -> Placement | None:
    """Return the placement on the same cores of another cluster; None if a node is missing there, or differs."""
    return placement if before is now else placement_formats.moved(
        placement, (before.nodes, before.layout), (now.nodes, now.layout))


def move_lends(lends: LoanTable, jobs: Collection[int], before: Record, now: Cluster) -> None:
    """Renumber the cores that these jobs have lent and got, if the nodes differ from those of a `run` record."""
    then = cluster_of(before, now)
    if then is not now:
        old, new = (then.nodes, then.layout), (now.nodes, now.layout)
        lends.move(lambda cores: placement_formats.moved_cores(cores, old, new), jobs)
