"""Jobs, nodes and placements as values of journal records, and back."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Sequence

from vrm.model import AnyPlacement, Cluster, CorePlacement, Dependency, Job, Node, Placement
from vrm.model.ranges import fold
from vrm.run.book import PLAIN, Details
from vrm.workload.grammar import dependencies

Record = Dict[str, Any]


def job_record(job: Job, details: Details = PLAIN, indices: Sequence[int] = ()) -> Record:
    """A job as journal values, or with `indices` an array, whose first job it is."""
    record = {"id": job.id, "app": job.app, "procs": job.procs, "estimate": job.estimate,
              "submit": job.submit, "exclusive": job.exclusive, "cores": job.cores}
    more = {"priority": job.priority, "after": ",".join(map(str, details.after)),
            "retries": details.retries, "variables": dict(details.variables),
            "arguments": list(details.arguments), "directory": details.directory,
            "held": details.held, "name": details.name, "array": fold(indices)}
    return {**record, **{name: value for name, value in more.items() if value}}


def job_of(record: Record) -> Job:
    """The job of a journal record."""
    return Job(**{name: record[name] for name in
                  ("id", "app", "procs", "estimate", "submit", "exclusive", "cores")},
               priority=record.get("priority", 0))


def details_of(record: Record) -> Details:
    """What else a job's record tells, without an index in an array."""
    values = {name: record[name] for name in ("retries", "variables", "directory", "held", "name")
              if name in record}
    after = record.get("after", "")
    if isinstance(after, list):  # as vrm 0.1 wrote it, a pair for each job
        after = tuple(Dependency.on(*each) for each in after)
    return Details(after if isinstance(after, tuple) else dependencies(after) if after else (),
                   arguments=tuple(record.get("arguments", ())), **values)


def nodes_record(nodes: Sequence[Node]) -> List[List[Any]]:
    """Names and sockets of nodes as journal values."""
    return [[node.name, list(node.sockets)] for node in nodes]


def cluster_of(record: Record, now: Cluster) -> Cluster:
    """The cluster of a `run` record: `now` itself where the nodes are the same, or not told."""
    if record.get("nodes") in (None, nodes_record(now.nodes)):
        return now
    return Cluster(nodes_of(record["nodes"]))


def nodes_of(values: Iterable[Any]) -> List[Node]:
    """The nodes of journal values."""
    return [Node(name, tuple(sockets)) for name, sockets in values]


def placement_record(placement: AnyPlacement) -> Record:
    """A placement as journal values; sets of nodes or cores are hexadecimal."""
    if isinstance(placement, CorePlacement):
        return {"taken": hex(placement.taken), "procs": placement.procs,
                "width": placement.width}
    return {"share": placement.share, "claims": [hex(c) for c in placement.claims],
            "order": [hex(g) for g in placement.order], "procs": placement.procs,
            "width": placement.width,
            "most": placement.most and {str(n): r for n, r in placement.most.items()}}


def placement_of(record: Record, cluster: Cluster) -> AnyPlacement:
    """The placement of a journal record, on the cluster that it was made for."""
    if "taken" in record:
        return CorePlacement(cluster.layout, int(record["taken"], 16), record["procs"],
                             record["width"])
    lane0, lane1 = (int(c, 16) for c in record["claims"])
    return Placement(record["share"], (lane0, lane1),
                     tuple(int(g, 16) for g in record["order"]), record["procs"],
                     record["width"],
                     most=record["most"] and {int(n): r for n, r in record["most"].items()})
