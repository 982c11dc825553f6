"""Queues of a run: what the jobs of each may take, how long they are expected to wait, and their priority.

A job names its queue (`queue=NAME`); a job without a name goes to the default queue. If no queues are configured,
every name is accepted and has no effect.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from typing import Any
from collections.abc import Iterable, Mapping, Sequence

from vrm.model.job import Infeasible, Job, Request, together
from vrm.model.node import Node
from vrm.model.forms.json_checks import Check, count, flag, line, number, whole

EXPECTED_WAIT = 3600.0
"""Expected wait (seconds) of jobs in a queue that does not define one."""


MARK = "queue:"
"""Prefix of the features that mark which queues a node belongs to."""


@dataclass(frozen=True)
class Queue:
    """One queue. In all limits, 0 means no limit.

    `priority` is added to that of each job. `expected_wait` is in seconds. `max_running` and `max_cores` limit all its
    running jobs together, `..._per_user` those of one user. Jobs run on the `nodes` (names; empty: on all), on at most
    `cores_per_node` cores of each. `max_walltime` is the longest limit that a job may have, `default_walltime` the
    limit of a job without one (seconds).
    """

    name: str
    default: bool = False
    priority: int = 0
    expected_wait: float = EXPECTED_WAIT
    max_running: int = 0
    max_cores: int = 0
    max_running_per_user: int = 0
    max_cores_per_user: int = 0
    nodes: tuple[str, ...] = ()
    cores_per_node: int = 0
    max_walltime: float = 0.0
    default_walltime: float = 0.0

    def has(self, node: str) -> bool:
        """Return whether its jobs may run on the node with this name."""
        return not self.nodes or bool({node, node.partition(".")[0]} & set(self.nodes))

    @property
    def limited(self) -> bool:
        """Whether its jobs may have to wait until other jobs of the queue end."""
        return bool(self.max_running or self.max_cores or self.max_running_per_user
                    or self.max_cores_per_user)

    @property
    def placed(self) -> bool:
        """Whether it restricts where jobs run."""
        return bool(self.nodes or self.cores_per_node)

    @property
    def mark(self) -> str:
        """The feature that its nodes have; no feature of a user contains a colon."""
        return f"{MARK}{self.name}"

    def request(self, request: Request) -> Request:
        """Return a request with the restrictions of the queue added. Raises Infeasible if they contradict it."""
        if request.parts:
            return together([self.request(part) for part in request.parts], request.licences)
        if self.nodes:
            request = request._replace(features=request.features | {self.mark})
        if self.cores_per_node:
            tasks = self.cores_per_node // request.cores_per_task
            if not tasks:
                raise Infeasible(f"a rank wants {request.cores_per_task} cores, queue {self.name} "
                                 f"gives a job {self.cores_per_node} of a node")
            most = min(tasks, request.tasks_per_node or tasks)
            request = request._replace(tasks_per_node=most)
        return request


@dataclass(frozen=True)
class Queues:
    """All queues of a run."""

    all: tuple[Queue, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.all)

    @classmethod
    def of(cls, wanted: Any) -> Queues:
        """Make queues from values by name, such as `{"debug": {"priority": 5}, "long": {}}`; `Queues` are returned
        unchanged. Raises ValueError for anything else."""
        if isinstance(wanted, Queues):
            return wanted
        if not (isinstance(wanted, Mapping) and all(map(_queue, wanted.values()))
                and all(map(line, wanted))):
            raise ValueError(f"{wanted!r} are not queues")
        found = tuple(Queue(name, **{**values, "nodes": tuple(values.get("nodes", ()))})
                      for name, values in wanted.items())
        if sum(queue.default for queue in found) > 1:
            raise ValueError("two queues are the default; one may be")
        return cls(found)

    def record(self) -> dict[str, dict[str, Any]]:
        """Return plain values that `of` reads."""
        return {queue.name: {each.name: list(value) if each.name == "nodes" else value
                             for each in fields(Queue)[1:]
                             if (value := getattr(queue, each.name)) != each.default}
                for queue in self.all}

    def __str__(self) -> str:
        return ", ".join(queue.name for queue in self.all) or "none"

    def queue(self, job: Job) -> Queue:
        """Return the queue of a job. Raises Infeasible, with the reason, if no queue has that name."""
        if not self.all:
            return Queue(job.queue)
        if not job.queue:
            return next((queue for queue in self.all if queue.default), self.all[0])
        for queue in self.all:
            if queue.name == job.queue:
                return queue
        names = [queue.name for queue in self.all]
        close = difflib.get_close_matches(job.queue, names, 1)
        raise Infeasible(f"unknown queue `{job.queue}`; " + (
            f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"))

    def default_walltime(self, name: str) -> float:
        """Return the limit (seconds) of a job without one in the queue with this name; 0 if the queue defines none."""
        usual = next((queue for queue in self.all if queue.default), self.all[0]) if self.all else Queue("")
        return next((queue for queue in self.all if queue.name == name), usual).default_walltime

    def check(self, job: Job) -> None:
        """Raise Infeasible if a job requests more than its queue allows a single job."""
        if self.all:
            queue = self.queue(job)
            for most, whose in ((queue.max_cores, ""), (queue.max_cores_per_user, " a user")):
                if 0 < most < job.request.cores:
                    raise Infeasible(f"it wants {job.request.cores} cores, queue {queue.name} "
                                     f"allows{whose} {most} at a time")
            if 0 < queue.max_walltime < job.walltime:
                raise Infeasible(f"its limit is {job.walltime:g} s, queue {queue.name} allows {queue.max_walltime:g}")
            queue.request(job.request)

    @property
    def placed(self) -> bool:
        """Whether any queue restricts where jobs run."""
        return any(queue.placed for queue in self.all)

    def marked(self, nodes: Iterable[Node]) -> Sequence[Node]:
        """Return the nodes with features that say which queues they belong to."""
        kept = tuple(nodes)
        if not any(queue.nodes for queue in self.all):
            return kept
        return tuple(replace(node, features=node.features | {
            queue.mark for queue in self.all if queue.nodes and queue.has(node.name)}) for node in kept)

    def unknown_nodes(self, nodes: Iterable[Node]) -> dict[str, tuple[str, ...]]:
        """Return the node names in queues that match none of the nodes, by queue."""
        known = {name for node in nodes for name in (node.name, node.name.partition(".")[0])}
        found = {queue.name: tuple(name for name in queue.nodes if name not in known)
                 for queue in self.all}
        return {name: names for name, names in found.items() if names}


NO_QUEUES = Queues()
"""The queues of a run that has none."""


def _queue(value: Any) -> bool:
    """Return whether `Queues.of` accepts the value as a queue."""
    if not isinstance(value, Mapping):
        return False
    checks: Mapping[str, Check] = {
        "default": flag, "priority": whole,
        "expected_wait": lambda value: number(value) and value > 0,
        **dict.fromkeys(("max_walltime", "default_walltime"), lambda value: number(value) and value >= 0),
        "nodes": lambda value: isinstance(value, (list, tuple)) and all(map(line, value))}
    return all(isinstance(key, str) and key in _KEYS and checks.get(key, count)(each)
               for key, each in value.items())


_KEYS = {each.name for each in fields(Queue)} - {"name"}
