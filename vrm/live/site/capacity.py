"""Checks on which nodes a job fits: the present nodes, those that were granted, and those of earlier allocations of the
run.

A job that fits on none of them is refused. A job that fits only on granted or earlier nodes waits: the
same command may find more nodes the next time.
"""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Callable, Iterable, Sequence

from vrm.live.batch.base import BatchSystem
from vrm.model import Infeasible, Job, Node
from vrm.scheduling import PolicyError, Scheduler
from vrm.scheduling.placement.spread import stranger

NodesOf = Callable[[Job], int]
"""Return the number of nodes that a job needs under a placement policy; raises Infeasible with the reason."""


@dataclass(frozen=True)
class WholeNodes:
    """The nodes with all their cores, if the batch system `system` granted only `cores` of these."""

    nodes: tuple[Node, ...]
    cores: int
    system: BatchSystem

    def remedy(self, job: Job, on: Callable[[Sequence[Node]], NodesOf]) -> str:
        """Return advice for a job that could run with all these cores, as `on` judges; "" for other jobs."""
        try:
            on(self.nodes)(job)
        except (Infeasible, PolicyError):
            return ""
        there = sum(node.cores for node in self.nodes)
        nodes = "this node" if len(self.nodes) == 1 else f"these {len(self.nodes)} nodes"
        how = self.system.ask_whole.format(cores=max(node.cores for node in self.nodes))
        return (f"; {self.system.title} granted {self.cores} of the {there} cores of {nodes}: ask for whole nodes "
                f"({how})")


class CapacityCheck:
    """Judges whether the jobs of a run can run.

    `scheduler`: the scheduler of the present nodes, `nodes`. `on` makes a judge for other nodes. `granted`: all nodes
    that the batch system gave, including those that do not answer. `whole`: the nodes with all cores, if only some were
    granted.
    """

    def __init__(self, scheduler: Scheduler, nodes: Sequence[Node],
                 on: Callable[[Sequence[Node]], NodesOf], granted: Sequence[Node] = (),
                 whole: WholeNodes | None = None) -> None:
        self._scheduler = scheduler
        self._on = on
        self._known: list[tuple[Node, ...]] = [tuple(nodes)]
        self._others: list[NodesOf] = []
        self.granted = tuple(granted)
        self._whole = whole
        self.add(granted)

    def add(self, nodes: Iterable[Node]) -> None:
        """Add nodes on which jobs could run, in this allocation or in an earlier one."""
        nodes = tuple(nodes)
        if not nodes or nodes in self._known:
            return
        self._known.append(nodes)
        try:
            self._others.append(self._on(nodes))
        except PolicyError:  # a user's own policy does not support such nodes
            return

    def under(self, scheduler: Scheduler, on: Callable[[Sequence[Node]], NodesOf]) -> None:
        """Judge by another scheduler from now on, and other nodes by the judges that `on` makes."""
        self._scheduler, self._on, self._others = scheduler, on, []
        others, self._known = self._known[1:], self._known[:1]
        for nodes in others:
            self.add(nodes)

    def lacks(self, job: Job) -> str:
        """Return why a job cannot run on the present nodes; "" if it can."""
        return self._scheduler.lacks(job)

    def never(self, job: Job) -> str:
        """Return why a job could not run on any of the nodes; "" if it could."""
        reason = self.lacks(job)
        for needs in self._others if reason else ():
            try:
                needs(job)
            except Infeasible:
                continue
            reason = ""
            break
        if reason and self._whole is not None:
            reason += self._whole.remedy(job, self._on)
        return reason or stranger(job.request.exclude, [node for nodes in self._known for node in nodes])
