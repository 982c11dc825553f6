"""How good the promises of `vrm plan` are: a user's jobs are put into a site's trace at many moments.

    python studies/allocations/run.py --trace kth=KTH.swf.gz ctc=CTC.swf.gz hpc2n=HPC2N.swf.gz --out DIR

The site is the trace under FCFS with EASY, on as many one-core nodes as it has processors. At moments drawn from --seeds a
user asks it for allocations, to run a queue in them: consecutive jobs of one user of the same trace, which are run under
FCFS with EASY, too. What the user knows is what has happened until then: the site's queue with its limits, the site's
jobs that have ended, and the user's jobs before these. The code of `vrm plan` compares 12 requests. The truth is the
site's trace run on with each of them in it, all jobs taking as long as they did.

For each trace the table says how many ends lay in the range that was promised (P10 to P90), how much later than the best
of the 12 all jobs were done on average with the one that was recommended (regret), and against two habits: one request
for all (the most nodes that are of use, as long as the limits need), and a request for each job. Core hours are those
that are charged. --show only shows what is in DIR; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from vrm.ext.allocations.arrivals import PastArrival, again
from vrm.ext.allocations.compare import PartRequest, ShapeOutcome, Work, asked, combined, compare, shapes
from vrm.ext.allocations.shapes import START_UP, RequestLimits, AllocationShape, rounded, sizes
from vrm.ext.allocations.outer_site import ARRIVAL_IDS, OURS, RequestedAllocation, OuterSite
from vrm.ext.allocations.queue_progress import makespan, progress
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.frozen import FrozenRun, of_jobs, freeze_simulation
from vrm.ext.forecast.replay import limits
from vrm.model import Cluster, Job
from vrm.model.rules import Rules
from vrm.scheduling.compose import compose
from vrm.simulation.engine import Recorder, Simulator
from vrm.simulation.inputs import ERRORS, open_workload, processors_of
from vrm.workload.submission import Submission

TRIED = 12
"""Requests that are compared."""

BEFORE = 40
"""Jobs of the user that have ended before."""

QUEUE = (10, 60)
"""Jobs of a queue."""

LONGEST = 24 * 3600.0
"""Seconds of a request at most."""

KEPT = 30 * 86400.0
"""Seconds of the site's history that count for those who come later."""


class Moment(NamedTuple):
    """What was promised and what became of it, in seconds from the moment: of the request that was recommended, of the
    best of the others, of one request for all, and of one for each job; the core hours of three of these."""

    time: float
    jobs: int
    shape: str
    p10: float
    p50: float
    p90: float
    recommended: float
    best: float
    whole: float
    single: float
    hours: float
    whole_hours: float
    single_hours: float
    seconds: float
    starts: Tuple[float, float, float]
    start: float


class Ended(Recorder):
    """Notes who has ended when, in order."""

    def __init__(self, past: History) -> None:
        self.past = past

    def ended(self, booking: Any, start: Any, end: float, status: str) -> None:
        """A job has ended."""
        self.past.add(booking.job, end - booking.start)


def jobs_of(path: str) -> Tuple[List[Submission], int]:
    """The jobs of a trace in order, and the processors of its machine."""
    source = open_workload(path)
    jobs = sorted(source, key=lambda each: (each.job.submit, each.job.id))
    processors = processors_of(source, "put that line in front")
    return [each for each in jobs if each.job.procs <= processors], processors


def rules_on(cluster: Cluster) -> Any:
    """FCFS with EASY."""
    return compose(Rules(policy="compact"), cluster)


class Trace:
    """A site, and those who use it."""

    def __init__(self, path: str, seed: int) -> None:
        self.jobs, self.processors = jobs_of(path)
        self.runs = {each.job.id: each.run for each in self.jobs}
        self.draw = random.Random(seed)
        self.past = History()
        self.bounds = RequestLimits("", self.processors, 1, self.processors // 2, 1, LONGEST)
        users: Dict[str, List[Submission]] = {}
        for each in self.jobs:
            if each.job.walltime + START_UP <= LONGEST and each.job.procs <= self.bounds.most:
                users.setdefault(each.job.user, []).append(each)
        self.users = [jobs for _, jobs in sorted(users.items()) if len(jobs) >= BEFORE + QUEUE[0]]

    def moments(self, number: int) -> Iterator[FrozenRun]:
        """The site at so many moments, in order of time: between a tenth and nine tenths of the submissions."""
        first, last = (self.jobs[int(share * len(self.jobs))].job.submit for share in (0.1, 0.9))
        times = sorted(self.draw.uniform(first, last) for _ in range(number))
        cluster = Cluster.regular(self.processors, 1, 1)
        simulator = Simulator(rules_on(cluster), cluster, Ended(self.past))
        for _ in simulator.moments(self.jobs):
            while times and (simulator.executor.next_time() > times[0]):
                frozen = freeze_simulation(simulator, self.past)
                yield replace(frozen, now=max(frozen.now, times.pop(0)), kill=True)
            if not times:
                return

    def queue(self) -> Tuple[List[Submission], History]:
        """Jobs of one user, and what is known of those before."""
        jobs = self.draw.choice(self.users)
        number = min(self.draw.randint(*QUEUE), len(jobs) - BEFORE)
        at = self.draw.randint(BEFORE, len(jobs) - number)
        known = History()
        for each in jobs[at - BEFORE:at]:
            known.add(each.job, min(each.run, each.job.walltime))
        return [each._replace(job=each.job.but(id=number, submit=0.0), after=(), run=min(each.run, each.job.walltime))
                for number, each in enumerate(jobs[at:at + number])], known

    def site(self, frozen: FrozenRun) -> OuterSite:
        """The site as it is known at a moment."""
        user = "the pilot"
        known = [PastArrival(job, job.submit, run) for job, run in self.past.ended if job.submit > frozen.now - KEPT]
        known.sort(key=lambda each: each.submit)
        first = frozen.state.next_id + OURS
        return OuterSite(frozen, lambda nodes, limit, job_id: Job(job_id, "vrm", nodes, limit, user=user),
                         lambda member: again(known, f"{frozen.now} {member}", frozen.now, first + member * ARRIVAL_IDS))

    def truth(self, frozen: FrozenRun) -> OuterSite:
        """The site as it will really go on: its one draw."""
        first = frozen.state.next_id + OURS
        later = [each._replace(job=each.job.but(id=first + at)) for at, each in enumerate(self.jobs)
                 if each.job.submit > frozen.now]
        found = self.site(frozen)
        found.later_arrivals = lambda member: iter(later)
        found._draws = [lambda job, ran: max(self.runs[job.id], ran)]
        return found


def work_of(jobs: Sequence[Submission], past: History, processors: int, most: int) -> Work:
    """A queue on several numbers of nodes, also dealt to several allocations."""
    from vrm.ext.allocations.queue_parts import WeightedLine, deal
    widest = max(each.job.procs for each in jobs)
    needed = min(most, sum(each.job.procs for each in jobs))
    parts: Dict[Tuple[int, int], List[FrozenRun]] = {}
    lines = [WeightedLine("", 1, each.job.procs * each.job.walltime) for each in jobs]
    for nodes in sizes(widest, max(widest, needed)):
        cluster = Cluster.regular(nodes, 1, 1)
        frozen = replace(of_jobs((), rules_on(cluster), cluster, past=past), later=tuple(jobs), kill=True)
        for at_once in (1, 2, 4):
            if nodes * at_once <= processors and at_once <= len(jobs):
                parts[nodes, at_once] = [replace(frozen, later=tuple(jobs[at] for at in part))
                                         for part in deal(lines, at_once)] if at_once > 1 else [frozen]
    each = [PartRequest(replace(of_jobs((), rules_on(cluster), cluster, past=past), later=(one,), kill=True), one.job.procs,
                        min(LONGEST, rounded(one.job.walltime + START_UP)))
            for one in jobs for cluster in [Cluster.regular(one.job.procs, 1, 1)]]
    return Work(parts, max(each.job.walltime for each in jobs), each=each)


def thinned(found: Sequence[AllocationShape]) -> List[AllocationShape]:
    """TRIED of some shapes, evenly."""
    if len(found) <= TRIED:
        return list(found)
    return [found[round(at * (len(found) - 1) / (TRIED - 1))] for at in range(TRIED)]


def real_end(work: Work, runs: Dict[int, float], truth: OuterSite, shape: AllocationShape) -> ShapeOutcome:
    """What a request really gives."""
    requests = work.requests(shape)
    parts = [progress(part, seconds, shape.chain, lambda job, ran: runs[job.id]) for part, _, seconds in requests]
    given = truth.given(asked(parts, requests), 0)
    return combined(parts, given, [one.nodes for one in requests])


def one_for_all(work: Work, bounds: RequestLimits) -> AllocationShape:
    """The most nodes that are of use, as long as the limits need."""
    nodes = max(nodes for nodes, at_once in work.parts if at_once == 1)
    needs = makespan(work.parts[nodes, 1][0], limits) + START_UP
    seconds = min(bounds.longest, rounded(needs))
    return AllocationShape("", nodes, seconds, max(1, math.ceil(needs / seconds)) + (needs > seconds))


def one_for_each(jobs: Sequence[Submission], truth: OuterSite) -> Tuple[float, float]:
    """When all jobs are really done (s) if each is a job of the site, and their core hours."""
    frozen = truth.frozen
    first = frozen.state.next_id
    asks = [RequestedAllocation(each.job.procs, each.job.walltime, each.run) for each in jobs]
    given = truth.given(asks, 0)
    assert len(asks) < OURS and first >= 0
    return (max(each.end if each else math.inf for each in given),
            sum(each.job.procs * each.run for each in jobs) / 3600)


def judged(trace: Trace, frozen: FrozenRun) -> Moment:
    """One moment."""
    begun = time.perf_counter()
    jobs, past = trace.queue()
    work = work_of(jobs, past, trace.processors, trace.bounds.most)
    site, truth = trace.site(frozen), trace.truth(frozen)
    tried = thinned(shapes(work, trace.bounds))
    found = compare(work, site, tried, 1)
    seconds = time.perf_counter() - begun
    runs = {each.job.id: each.run for each in jobs}
    real = {each.shape: real_end(work, runs, truth, each.shape) for each in found}
    whole = real_end(work, runs, truth, one_for_all(work, trace.bounds))
    single, single_hours = one_for_each(jobs, truth)
    best = found[0]
    chosen = real[best.shape]
    return Moment(frozen.now, len(jobs), str(best.shape), *best.end[1:], chosen.end, min(each.end for each in real.values()),
                  whole.end, single, chosen.charged / 3600, whole.charged / 3600, single_hours, seconds, best.start[1:],
                  chosen.start)


def table(name: str, found: Sequence[Moment]) -> str:
    """What became of a trace's moments."""
    ended = [each for each in found if each.recommended < math.inf]
    inside = sum(each.p10 <= each.recommended <= each.p90 for each in found) / len(found)
    early = sum(each.recommended < each.p10 for each in found) / len(found)
    regret = [each.recommended / each.best - 1 for each in ended]
    whole = [each.recommended / each.whole for each in ended if each.whole < math.inf]
    single = [each.recommended / each.single for each in ended if each.single < math.inf]
    hours = sum(each.hours for each in ended)
    return (f"| {name} | {len(found)} | {100 * inside:.0f} % | {100 * early:.0f} % | {100 * (1 - inside - early):.0f} % | "
            f"{100 * fmean(regret):.1f} % | {100 * median(regret):.1f} % | {fmean(whole):.2f} | {fmean(single):.2f} | "
            f"{hours / sum(each.whole_hours for each in ended):.2f} | {hours / sum(each.single_hours for each in ended):.2f} | "
            f"{len(found) - len(ended)} | {median(each.seconds for each in found):.1f} |")


HEAD = ("| trace | moments | in the range | earlier | later | regret, mean | median | end against one request for all | against "
        "one for each job | core hours against all | against each | not done | seconds |\n|" + "---|" * 13)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", nargs="+", default=[], metavar="NAME=FILE", help="traces in SWF")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--moments", type=int, default=25, help="of each seed")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--quick", action="store_true", help="3 moments of each")
    options = parser.parse_args()
    directory = Path(options.out)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        for name, path in () if options.show else (text.split("=", 1) for text in options.trace):
            for at, seed in enumerate(options.seeds[:1] if options.quick else options.seeds):
                number = 3 if options.quick else options.moments
                run(directory / f"{name}.jsonl", Trace(path, seed), at * number, number)
    except (*ERRORS, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(HEAD)
    for file in sorted(directory.glob("*.jsonl")):
        found = [Moment(**json.loads(line)) for line in file.read_text().splitlines()]
        if found:
            print(table(file.stem, found))
    return 0


def run(file: Path, trace: Trace, before: int, number: int) -> None:
    """Judge some moments of a trace, which has had some before; those that the file has are not judged again."""
    there = len(file.read_text().splitlines()) if file.exists() else 0
    with open(file, "a", encoding="utf-8") as out:
        if there >= before + number:
            return
        for at, frozen in enumerate(trace.moments(number), before):
            if at < there:
                trace.queue()
                continue
            found = judged(trace, frozen)
            out.write(json.dumps(found._asdict()) + "\n")
            out.flush()
            print(f"{file.stem} {at + 1}: {found.shape}, promised {found.p10:.0f} to {found.p90:.0f} s, really "
                  f"{found.recommended:.0f} s, best {found.best:.0f} s, {found.seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
