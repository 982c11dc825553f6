"""What the user's queue needs: the numbers of nodes on which it can run, as a whole or divided among several
allocations."""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import replace
from typing import NamedTuple
from collections.abc import Sequence

from vrm.commands.shared import CannotRun, settings_of
from vrm.ext.advice.commands.advise import take_queue
from vrm.ext.advice.commands.whatif import queues_of, waiting_of
from vrm.ext.allocations.compare import MEMBERS, PartRequest, Work
from vrm.ext.allocations.queue_parts import WeightedLine, deal, lines_of
from vrm.ext.allocations.shapes import AT_ONCE, MOST_EACH, START_UP, RequestLimits, rounded, sizes
from vrm.ext.forecast.frozen import FrozenRun
from vrm.model.job import Infeasible
from vrm.workload.submission import Submission


class Demand(NamedTuple):
    """The work, and its number of jobs."""

    work: Work
    jobs: int


def demand(arguments: argparse.Namespace, bounds: RequestLimits) -> Demand:
    """Return what has to run. Raises CannotRun if no request in the partition can run all of it."""
    wanted: tuple[int, ...] = arguments.nodes or ()
    alone = not wanted and not arguments.at_once
    if wanted and max(wanted) > bounds.most:
        raise CannotRun(f"--nodes {max(wanted)}: {_name(bounds)} gives at most {bounds.most}")
    _take_queue(arguments, bounds)
    whole = _planned(arguments, (bounds.most,))[0]
    jobs = [one for one in whole.later if not one.held]
    if not jobs:
        raise CannotRun("no job waits: there is nothing to ask for")
    _possible(whole, bounds)
    longest = max(one.job.walltime for one in jobs)
    needed = sum(one.job.request.cores for one in jobs) / max(1, whole.state.cluster.cores // bounds.most)
    most = max(1, min(bounds.most, math.ceil(needed)))
    fewest = bounds.fewest
    if not wanted:
        doubled = [fewest * 2 ** power for power in range(20) if fewest * 2 ** power < most]
        fits = [frozen for frozen in _planned(arguments, (*doubled, most)) if not _never(frozen)]
        first = len(fits[0].state.cluster.nodes) if fits else bounds.most
        wanted = tuple(sizes(first, max(first, most)))
    runs = {len(frozen.state.cluster.nodes): replace(frozen, later=tuple(one for one in frozen.later if not one.held))
            for frozen in _planned(arguments, wanted) if not _never(frozen)}
    if not runs:
        raise CannotRun(f"on none of these numbers of nodes can all jobs run: {', '.join(map(str, wanted))} "
                        f"({_never(_planned(arguments, (max(wanted),))[0])}); give more with --nodes")
    lines = lines_of(arguments.queue) if arguments.queue is not None else None
    if lines is not None and sum(line.jobs for line in lines) != len(whole.later):
        lines = None
    parts: dict[tuple[int, int], Sequence[FrozenRun]] = {(nodes, 1): [frozen] for nodes, frozen in runs.items()}
    for at_once in arguments.at_once or AT_ONCE:
        if lines is not None and 1 < at_once <= len(lines):
            jobs_of = _jobs_of(lines, deal(lines, at_once))
            for nodes, frozen in runs.items():
                parts[nodes, at_once] = [replace(frozen, later=tuple(frozen.later[at] for at in part))
                                         for part in jobs_of]
    each = _each(arguments, bounds, lines) if lines is not None and alone else []
    return Demand(Work(parts, longest, arguments.members or MEMBERS, each), len(jobs))


def _each(arguments: argparse.Namespace, bounds: RequestLimits, lines: Sequence[WeightedLine]) -> list[PartRequest]:
    """Return a request for each job on the fewest nodes that can run it, in the order in which the lines are
    divided into single-line parts. Returns [] if a job has none, or if a line has several jobs."""
    if not 1 < len(lines) <= MOST_EACH or any(line.jobs != 1 for line in lines):
        return []
    whole = _planned(arguments, (1,))[0]
    cores = max(1, whole.state.cluster.cores)
    needs = sorted({max(bounds.fewest, -(-one.job.request.cores // cores)) for one in whole.later})
    runs = _planned(arguments, [nodes for nodes in needs if nodes <= bounds.most] or [bounds.most])
    found = []
    for at, in deal(lines, len(lines)):
        fits = next((frozen for frozen in runs if len(frozen.later) == len(lines)
                     and not _refused(frozen, frozen.later[at])), None)
        if fits is None or fits.later[at].held:
            return []
        job = fits.later[at]
        found.append(PartRequest(replace(fits, later=(job,)), len(fits.state.cluster.nodes),
                                 min(rounded(job.job.walltime + START_UP), bounds.longest)))
    return found


def _take_queue(arguments: argparse.Namespace, bounds: RequestLimits) -> None:
    """Set the queue, and the sockets and cores of nodes: those of the options, else of the configuration, else
    the cores of the partition as one socket."""
    shape = arguments.nodes, arguments.sockets, arguments.cores
    take_queue(arguments)
    arguments.nodes, arguments.sockets, arguments.cores = shape
    if arguments.queue is None or arguments.machine or arguments.sockets or arguments.cores:
        return
    settings = settings_of(arguments) if getattr(arguments, "config", None) is not None else None
    if settings is None or "auto" in (settings.sockets, settings.cores):
        arguments.sockets, arguments.cores = 1, bounds.cores


def _name(bounds: RequestLimits) -> str:
    return f"partition {bounds.partition}" if bounds.partition else "the site"


def _planned(arguments: argparse.Namespace, nodes: Sequence[int]) -> list[FrozenRun]:
    arguments.nodes = tuple(nodes)
    return queues_of(arguments) if arguments.queue is not None else waiting_of(arguments)


def _never(frozen: FrozenRun) -> str:
    """Return the first job that can never run, and the reason; "" if all can run."""
    refused = ((one.job.id, _refused(frozen, one)) for one in frozen.later)
    return next((f"job {job_id}: {reason}" for job_id, reason in refused if reason), "")


def _refused(frozen: FrozenRun, one: Submission) -> str:
    """Return why a job can never run; "" if it can."""
    try:
        if one.refused:
            raise Infeasible(one.refused)
        frozen.run.scheduler.check(one.job)
    except Infeasible as reason:
        return str(reason)
    return ""


def _possible(whole: FrozenRun, bounds: RequestLimits) -> None:
    """Raise CannotRun for a job that no request in the partition can run."""
    name = _name(bounds)
    never = _never(whole)
    if never:
        raise CannotRun(f"no request can run {never}; {name} gives at most {bounds.most} nodes of "
                        f"{bounds.cores} cores. Leave this job out, or choose another partition (--partition)")
    for one in whole.later:
        if one.job.walltime + START_UP > bounds.longest:
            raise CannotRun(f"no request can run job {one.job.id}: its limit is {one.job.walltime:g} s, vrm needs "
                            f"{START_UP:g} s more, and {name} gives at most {bounds.longest:g} s. Lower its limit, or "
                            "choose another partition (--partition)")


def _jobs_of(lines: Sequence[WeightedLine], parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the jobs of the lines of each part, by their indices."""
    ends = list(itertools.accumulate(line.jobs for line in lines))
    return [[job for at in part for job in range(ends[at] - lines[at].jobs, ends[at])] for part in parts]
