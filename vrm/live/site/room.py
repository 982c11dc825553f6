"""On which nodes a job has room: those that are there now, those that were granted, and those of
earlier allocations of the run.

A job without room on any of them is refused. One that has no room on the nodes there are now but
had, or would have, on the others waits: the same command may find more nodes the next time.
"""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Callable, Iterable, Sequence

from vrm.live.batch.base import BatchSystem
from vrm.model import Infeasible, Job, Node
from vrm.scheduling import PolicyError, Scheduler
from vrm.scheduling.placement.spread import stranger

NodesOf = Callable[[Job], int]
"""How many nodes a job needs under a placement policy; raises Infeasible, with the reason."""


@dataclass(frozen=True)
class WholeNodes:
    """All cores of the `nodes` of which `system` has granted only some: `cores` in all."""

    nodes: tuple[Node, ...]
    cores: int
    system: BatchSystem

    def remedy(self, job: Job, on: Callable[[Sequence[Node]], NodesOf]) -> str:
        """What to do for a job that could run with all these cores; `on` judges. "" for others."""
        try:
            on(self.nodes)(job)
        except (Infeasible, PolicyError):
            return ""
        there = sum(node.cores for node in self.nodes)
        nodes = "this node" if len(self.nodes) == 1 else f"these {len(self.nodes)} nodes"
        how = self.system.ask_whole.format(cores=max(node.cores for node in self.nodes))
        return (f"; {self.system.title} granted {self.cores} of the {there} cores of {nodes}: ask for whole nodes "
                f"({how})")


class Room:
    """Judges the jobs of a run.

    `scheduler` is that of the nodes there are now, whose `nodes` these are; `on` makes the judge
    of other nodes, `granted` are all that the batch system gave, also such as do not answer, and `whole`
    are all cores of nodes of which it gave fewer.
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
        """Nodes that jobs could run on, in this allocation or in an earlier one."""
        nodes = tuple(nodes)
        if not nodes or nodes in self._known:
            return
        self._known.append(nodes)
        try:
            self._others.append(self._on(nodes))
        except PolicyError:  # a user's own policy that is not for such nodes
            return

    def under(self, scheduler: Scheduler, on: Callable[[Sequence[Node]], NodesOf]) -> None:
        """Judge by another scheduler from now on, and other nodes by what `on` makes."""
        self._scheduler, self._on, self._others = scheduler, on, []
        others, self._known = self._known[1:], self._known[:1]
        for nodes in others:
            self.add(nodes)

    def lacks(self, job: Job) -> str:
        """Why a job cannot run on the nodes there are now, "" when it can."""
        return self._scheduler.lacks(job)

    def never(self, job: Job) -> str:
        """Why a job could not run on any of the nodes either, "" when it could."""
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
