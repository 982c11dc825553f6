"""Requests: which are tried, how the user's queue goes on in them, what the site makes of them, and which is the best."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from collections.abc import Iterator, Sequence

import pytest

from vrm.api import Machine, simulate
from vrm.ext.allocations.arrivals import DAY, HORIZON, PACES, PastArrival, Stream, again, assumed
from vrm.ext.allocations.bounds import bounds, read, restrictions
from vrm.ext.allocations.compare import LEAST, SURE, WIDER, PartRequest, RequestForecast, ShapeOutcome, Work, best, compare, judged, outcome, shapes, widened
from vrm.ext.allocations.queue_parts import WeightedLine, deal
from vrm.ext.allocations.shapes import MOST, START_UP, RequestLimits, AllocationShape, limits, rounded, sizes
from vrm.ext.allocations.outer_site import RequestedAllocation, of_snapshot
from vrm.ext.allocations.slots import MOST as MOST_SLOTS, cores_per_slot, in_slots, slots_of
from vrm.ext.allocations.queue_progress import makespan, progress
from vrm.ext.advice.assumed_draws import RATIOS
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.frozen import FrozenRun, of_jobs
from vrm.ext.forecast.replay import limits as as_limited
from vrm.ext.forecast.site.snapshot import SiteJob, SiteNode, SiteReservation, Snapshot, SnapshotError
from vrm.model import Cluster, Dependency, Job
from vrm.model.job import ANY
from vrm.model.rules import Rules
from vrm.scheduling.compose import compose
from vrm.simulation.arguments import Timetable
from vrm.workload.submission import Submission


def certain() -> History:
    """All jobs have taken as long as they might: so will all."""
    past = History()
    for number in range(10):
        past.add(Job(number, "a", 1, 100.0), 100.0)
    return past


def queue(jobs: Sequence[tuple[int, float]], nodes: int, first: int = 0) -> FrozenRun:
    """Jobs of (ranks, limit), with ids from the first on, on nodes of one core."""
    cluster = Cluster.regular(nodes, 1, 1)
    later = tuple(Submission(Job(number, "a", ranks, seconds), seconds) for number, (ranks, seconds) in enumerate(jobs, first))
    return replace(of_jobs((), compose(Rules(policy="compact"), cluster), cluster, past=certain()), later=later)


def site(nodes: int, running: Sequence[tuple[int, float]] = (), waiting: Sequence[tuple[int, float]] = ()) -> Snapshot:
    """Nodes of one core, with jobs of (nodes, limit) that begin now, and others that wait."""
    first, jobs = 0, []
    for number, (width, wall) in enumerate(running):
        jobs.append(SiteJob(f"r{number}", wall, width, width, 1, user="ann", queue="p", start=0.0,
                            places=tuple((at, None) for at in range(first, first + width))))
        first += width
    jobs += [SiteJob(f"w{number}", wall, width, width, 1, user="ann", queue="p", submit=-10.0 + number, rank=-number)
             for number, (width, wall) in enumerate(waiting)]
    return Snapshot(0.0, [SiteNode(f"n{at}", 1, {"p": 1}) for at in range(nodes)], jobs)


def limited(nodes: int, most: int = 0, longest: float = 1e6) -> RequestLimits:
    return RequestLimits("p", nodes, 1, most or nodes, 1, longest)


PAST = [(Job(number, "a", 1, 100.0, submit=0.0, user="zoe", queue="other"), 100.0) for number in range(10)]
"""A history of another partition: how long jobs take is certain, and nobody comes."""


# ------------------------------------------------------------------------------------ what is tried


def test_limits_are_those_that_people_ask_for() -> None:
    assert [rounded(seconds) for seconds in (1, 300, 301, 3600, 3601, 5 * 3600, 13.2 * 3600)] == [
        300, 300, 600, 3600, 4500, 18000, 14 * 3600]
    assert list(limits(8 * 3600 - START_UP, 1000, math.inf)) == [8 * 3600, 4 * 3600 + 1800, 2 * 3600 + 900]
    assert list(limits(8 * 3600, 3600, 4 * 3600)) == [4 * 3600, 8100]
    assert list(limits(100, 90, 120)) == []  # the longest job and vrm need more


def test_sizes_double_and_are_few() -> None:
    assert sizes(1, 8) == [1, 2, 4, 8] and sizes(3, 10) == [3, 6, 10] and sizes(4, 2) == [4]
    assert len(sizes(1, 5000)) == 5 and sizes(1, 5000)[0] == 1 and sizes(1, 5000)[-1] == 5000


def test_shapes_have_the_chain_that_is_needed() -> None:
    """Two hours of work on one node, in one request, in two and in four (of 45 minutes: each job takes half an hour)."""
    work = Work({(1, 1): [queue([(1, 1800.0)] * 4, 1)]}, 1800.0)
    assert [(shape.seconds, shape.chain) for shape in shapes(work, limited(4))] == [(8100, 1), (4500, 2), (2100, 4)]
    assert [shape.chain for shape in shapes(work, limited(4, longest=1900.0))] == [4]
    assert shapes(work, limited(4, longest=1000.0)) == []


def test_not_more_shapes_than_a_site_is_asked_about() -> None:
    jobs = [(1, 600.0)] * 40
    work = Work({(nodes, parts): [queue(jobs[part::parts], nodes, 100 * part) for part in range(parts)]
                 for nodes in (1, 2, 4, 8, 16) for parts in (1, 2, 4)}, 600.0)
    found = shapes(work, limited(64))
    assert len(found) <= MOST and len(set(found)) == len(found)
    assert {shape.at_once for shape in found} == {1, 2, 4}
    assert not [shape for shape in shapes(work, limited(16)) if shape.nodes * shape.at_once > 16]


def test_one_request_for_each_job() -> None:
    """A site on which one node is free now, another in an hour: the short job need not wait for the wide one."""
    jobs = [(2, 1000.0), (1, 300.0)]
    each = [PartRequest(queue([jobs[0]], 2), 2, 1200.0), PartRequest(queue([jobs[1]], 1, 1), 1, 600.0)]
    work = Work({(2, 1): [queue(jobs, 2)]}, 1000.0, members=2, each=each)
    found = shapes(work, limited(2), 2)
    assert found[-1] == AllocationShape("p", 2, 1200.0, 1, 2, each=True) and not any(one.each for one in found[:-1])
    there = of_snapshot(site(2, [(1, 3600.0)]), limited(2), "me", PAST)
    assert outcome(work, there, found[-1], 1, 0) == ShapeOutcome(0, 4600, 2300, 2300)
    assert outcome(work, there, found[0], 1, 0) == ShapeOutcome(3600, 4900, 2600, 2300)
    assert compare(work, there, found, 1)[0].shape.each
    assert not [one for one in shapes(replace(work, each=each * 60), limited(2), 2) if one.each]


def test_a_queue_that_no_chain_does_has_a_request_for_each_job() -> None:
    jobs = [(1, 1000.0)] * 20
    each = [PartRequest(queue([job], 1, number), 1, 1200.0) for number, job in enumerate(jobs)]
    bounds = limited(20, longest=1200.0)
    assert shapes(Work({(1, 1): [queue(jobs, 1)]}, 1000.0, members=2), bounds) == []
    found, = shapes(Work({(1, 1): [queue(jobs, 1)]}, 1000.0, members=2, each=each), bounds)
    assert found.each and str(found) == "one for each of 20 jobs"


def test_what_is_clearly_worse_is_not_drawn_again() -> None:
    work = Work({(nodes, 1): [queue([(1, 600.0)] * 6, nodes)] for nodes in (1, 2)}, 600.0)
    found = compare(work, of_snapshot(site(4), limited(4), "me", PAST), shapes(work, limited(4), 2), 1)
    assert found[0].shape.nodes == 2 and found[0].members == 50
    assert {each.members for each in found if each.end.mean > 1.1 * found[0].end.mean} == {5}


# ------------------------------------------------------------------------- the queue in allocations


def test_what_does_not_end_in_one_allocation_is_run_by_the_next() -> None:
    work = queue([(1, 100.0)] * 5, 2)
    assert makespan(work, as_limited) == 300
    found = progress(work, 200.0 + START_UP, 8, as_limited)
    assert (found.lasts, found.used, found.left) == ((200, 100), 500, 0)
    assert progress(work, 200.0 + START_UP, 1, as_limited) == ((200,), 400, 1)
    assert progress(work, 100.0 + START_UP / 2, 8, as_limited).left == 5  # no job fits


def test_a_job_that_outruns_its_limit_is_interrupted_and_runs_again() -> None:
    work = queue([(1, 100.0), (1, 50.0)], 1)
    found = progress(work, 160.0, 8, lambda job, ran: 170.0 if job.id == 0 else 50.0)
    assert found == ((), 0.0, 2)  # the first never ends in one, and the next one would be the same
    assert progress(work, 180.0, 8, lambda job, ran: 170.0 if job.id == 0 else 50.0).lasts == (170, 50)


def test_lines_are_dealt_so_that_parts_are_alike() -> None:
    lines = [WeightedLine(str(area), 1, area) for area in (5, 1, 4, 3, 3)]
    assert deal(lines, 2) == [[0, 4], [1, 2, 3]]
    assert sorted(at for part in deal(lines, 3) for at in part) == [0, 1, 2, 3, 4]


# --------------------------------------------------------------------------------------- the site


def test_an_allocation_waits_for_what_is_before_it() -> None:
    found = of_snapshot(site(4, [(4, 1000.0)], [(2, 500.0)]), limited(4), "me", PAST)
    assert found.given([RequestedAllocation(2, 300.0, 200.0)], 0) == [(1000, 1200)]
    assert found.given([RequestedAllocation(4, 300.0, 200.0)], 7) == [(1500, 1700)]
    assert found.given([RequestedAllocation(2, 300.0, 200.0), RequestedAllocation(2, 300.0, 100.0, 0), RequestedAllocation(4, 99.0, 9.0, 1)], 0) == [
        (1000, 1200), (1200, 1300), (1500, 1509)]


def test_jobs_may_be_listed_in_any_order() -> None:
    """squeue lists those that wait first."""
    there = site(4, [(4, 1000.0)], [(2, 500.0)])
    turned = replace(there, jobs=[*there.jobs[::-1], SiteJob("stuck", 9.0, 1, 1, 1, queue="p", stuck="held")])
    found = of_snapshot(turned, limited(4), "me", PAST)
    assert found.given([RequestedAllocation(4, 300.0, 200.0), RequestedAllocation(4, 300.0, 200.0)], 0) == [(1500, 1700), (1700, 1900)]


def test_a_window_of_backfilling_is_found_by_itself() -> None:
    """Three nodes wait for a fourth: who needs one of them for a short time has it now."""
    full = site(4, [(1, 3600.0)], [(4, 7200.0)])
    work = Work({(nodes, 1): [queue([(1, 600.0)] * 6, nodes)] for nodes in (1, 2, 3)}, 600.0, members=4)
    found = compare(work, of_snapshot(full, limited(4), "me", PAST), shapes(work, limited(4), 2), 1)
    assert found[0].shape == AllocationShape("p", 3, 1500.0) and found[0].start[1:] == (0, 0, LEAST) and found[0].end.p50 == 1200
    late = next(each for each in found if each.shape == AllocationShape("p", 1, 4500.0))  # too long for the window
    assert late.start.p10 == 3600 + 7200 - LEAST


def brute(snapshot: Snapshot, work: FrozenRun, shape: AllocationShape) -> float:
    """When all is done with a request, by whole simulations of both from their beginnings."""
    done: set[int] = set()
    lasts = []
    for _ in range(shape.chain):
        left = [one for one in work.later if one.job.id not in done]
        ran = simulate([one._replace(job=one.job.but(id=number)) for number, one in enumerate(left)],
                       Machine.of(shape.nodes, 1, 1), Rules(policy="compact"), timetable=Timetable(end=shape.seconds - START_UP))
        rows = list(ran.jobs)
        done |= {left[row.id].job.id for row in rows}
        lasts.append(max(row.end for row in rows))
        if len(done) == len(work.later):
            break
    assert len(done) == len(work.later)
    nodes = len(snapshot.nodes)
    jobs = [Submission(Job(number, "a", job.nodes, job.wall), job.wall) for number, job in enumerate(snapshot.jobs)]
    for at, seconds in enumerate(lasts):  # a chain: each is submitted with the others, and may start after the one before
        ours = Submission(Job(len(jobs), "us", shape.nodes, shape.seconds), seconds, (Dependency.on(len(jobs) - 1, ANY),) if at else ())
        jobs.append(ours)
    rows = {row.id: row for row in simulate(jobs, Machine.of(nodes, 1, 1), Rules(policy="compact")).jobs}
    return rows[len(jobs) - 1].end


@pytest.mark.parametrize("seed", range(25))
def test_the_best_request_is_the_best_of_the_tried_by_brute_force(seed: int) -> None:
    """Where nothing is left to chance: all ends are those of whole simulations, and the first has the least."""
    draw = random.Random(seed)
    nodes = draw.randint(2, 6)
    running, left = [], nodes
    while left and draw.random() < 0.8:
        running.append((draw.randint(1, left), float(draw.randint(1, 30) * 100)))
        left -= running[-1][0]
    waiting = [(draw.randint(1, nodes), float(draw.randint(1, 30) * 100)) for _ in range(draw.randint(0, 5))]
    jobs = [(draw.randint(1, 2), float(draw.randint(1, 20) * 60)) for _ in range(draw.randint(1, 8))]
    most = max(ranks for ranks, _ in jobs)
    if most > nodes:
        return
    snapshot = site(nodes, running, waiting)
    work = Work({(size, 1): [queue(jobs, size)] for size in sizes(most, nodes)}, max(wall for _, wall in jobs), members=2)
    tried = shapes(work, limited(nodes), 2)
    found = compare(work, of_snapshot(snapshot, limited(nodes), "me", PAST), tried, 1)
    ends = {shape: brute(snapshot, work.parts[shape.nodes, 1][0], shape) for shape in tried}
    assert {each.shape: each.end.p50 for each in found} == pytest.approx(ends)
    assert ends[found[0].shape] <= 1.02 * min(ends.values())


def test_parts_side_by_side_are_done_with_the_last() -> None:
    parts = [queue([(1, 600.0)], 1), queue([(1, 900.0)], 1, 1)]
    work = Work({(1, 1): [queue([(1, 600.0), (1, 900.0)], 1)], (1, 2): parts}, 900.0, members=1)
    idle = of_snapshot(site(2), limited(2), "me", PAST)
    assert outcome(work, idle, AllocationShape("p", 1, 1200.0, 1, 2), 1, 0) == ShapeOutcome(0, 900, 1500, 1500)
    busy = of_snapshot(site(2, [(1, 1000.0)]), limited(2), "me", PAST)
    assert outcome(work, busy, AllocationShape("p", 1, 1200.0, 1, 2), 1, 0).end == 600 + 900


def shared(jobs: Sequence[SiteJob]) -> Snapshot:
    return Snapshot(0.0, [SiteNode(f"n{at}", 8, {"p": 8, "q": 0}, up=at < 3) for at in range(4)], list(jobs),
                    [SiteReservation("r", 600.0, 900.0, (1,))])


def test_a_slot_is_a_node_where_no_two_jobs_fit_on_one() -> None:
    jobs = [SiteJob("1", 60.0, 16, 2, 8, queue="p", start=-1.0, places=((0, None), (2, None))), SiteJob("2", 60.0, 5, 1, 5)]
    assert cores_per_slot(shared(jobs), 8) == 0 and slots_of(3, 8, 0) == 3
    found = in_slots(shared(jobs), 0)
    assert [(job.nodes, job.per_node, [node for node, _ in job.places]) for job in found.jobs] == [(2, 1, [0, 2]), (1, 1, [])]
    assert [node.up for node in found.nodes] == [True, True, True, False] and found.nodes[0].classes == {"p": 1}
    assert found.reservations[0].nodes == (1,)


def test_shared_nodes_are_divided() -> None:
    jobs = [SiteJob("1", 60.0, 4, 1, 4, queue="p", start=-1.0, places=((0, None),)),
            SiteJob("2", 60.0, 2, 1, 2, queue="p", start=-1.0, places=((0, None),)),
            SiteJob("3", 60.0, 4, 2, 2, queue="p", start=-1.0, places=((0, None), (2, None))), SiteJob("4", 9.0, 6, queue="p")]
    assert cores_per_slot(shared(jobs), 8) == 2 and slots_of(3, 8, 2) == 12 and slots_of(1, 1, 2) == 1
    found = in_slots(shared(jobs), 2)
    assert len(found.nodes) == 16 and found.reservations[0].nodes == (4, 5, 6, 7)
    assert [[node for node, _ in job.places] for job in found.jobs] == [[0, 1], [2], [3, 8], []]
    assert [job.total for job in found.jobs] == [2, 1, 2, 3]
    asked = of_snapshot(shared(jobs), RequestLimits("p", 3, 8, 3), "me", PAST)
    assert any("counted in 2 cores" in each for each in asked.said)
    assert asked.given([RequestedAllocation(1, 60.0, 60.0)], 0)[0].start == 0  # seven slots are free, and job 4 takes three
    assert asked.given([RequestedAllocation(3, 60.0, 60.0)], 0)[0].start == 59


def test_a_large_site_has_slots_of_more_cores() -> None:
    many = Snapshot(0.0, [SiteNode(f"n{at}", 128) for at in range(1000)], [SiteJob("1", 60.0, 1)])
    assert len(in_slots(many, cores_per_slot(many, 128)).nodes) <= MOST_SLOTS


# -------------------------------------------------------------------------------- what is unknown


def test_a_history_comes_again() -> None:
    known = [PastArrival(Job(0, "a", 1, 100.0), day * DAY + 3600.0 * hour, 50.0 + day) for day in range(5) for hour in range(24)]
    first = list(again(known, "seed", 1000.0, 7))
    assert first == list(again(known, "seed", 1000.0, 7))
    assert len({tuple(one.run for one in again(known, str(seed), 1000.0, 7)) for seed in range(9)}) > 4
    times = [one.job.submit - 1000.0 for one in first]
    assert times == sorted(times) and 0 < times[0] <= 3600 and times[-1] > 0.95 * HORIZON
    assert all(time % 3600 == 0 for time in times) and len(times) == pytest.approx(HORIZON / 3600, rel=0.2)
    assert [one.job.id for one in first[:3]] == [7, 8, 9]


def test_without_a_history_the_site_stays_as_full_as_it_is() -> None:
    jobs = [Job(0, "a", 4, 1000.0), Job(1, "a", 1, 100.0)]
    ratios = []
    for seed in range(20):
        come = list(assumed(jobs, 1.0, str(seed), 0.0, 1))
        assert {one.run / one.job.walltime for one in come} == set(RATIOS)
        ratios.append(sum(one.run * one.job.request.cores for one in come) / HORIZON)
        short = sum(one.job.walltime == 100 for one in come) / len(come)
        assert short == pytest.approx(10 / 11, abs=0.02)  # it is seen a tenth as often
    assert min(ratios) == pytest.approx(min(PACES), rel=0.05) and max(ratios) == pytest.approx(max(PACES), rel=0.05)


def test_a_stream_makes_each_once() -> None:
    made = []

    def make() -> Iterator[Submission]:
        for number in range(3):
            made.append(number)
            yield Submission(Job(number, "a", 1, 1.0), 1.0)
    stream = Stream(make())
    assert [next(iter(stream)).job.id, *(one.job.id for one in stream), *(one.job.id for one in stream)] == [
        0, 0, 1, 2, 0, 1, 2] and made == [0, 1, 2]


def test_jobs_that_nobody_sees_are_on_the_nodes_that_are_busy() -> None:
    quiet = site(3, [(1, 600.0)])
    hidden = replace(quiet, nodes=[replace(node, busy=at < 2) for at, node in enumerate(quiet.nodes)])
    found = of_snapshot(hidden, limited(3, longest=7200.0), "me", PAST)
    assert found.given([RequestedAllocation(1, 60.0, 60.0)], 0) == [(0, 60)] and found.given([RequestedAllocation(2, 60.0, 60.0)], 0)[0].start == 600
    assert found.given([RequestedAllocation(3, 60.0, 60.0)], 0)[0].start == 7200  # by PAST: all of its limit
    assert any("1 nodes are busy with jobs that you may not see" in each and "2 hours" in each for each in found.said)
    spread = of_snapshot(hidden, limited(3, longest=7200.0), "me")
    starts = {spread.given([RequestedAllocation(3, 60.0, 60.0)], member)[0].start for member in range(50)}
    assert len(starts) > 5 and max(starts) <= 7200


def test_priorities_that_do_not_follow_submissions_widen_the_range() -> None:
    fair = site(2, [(2, 600.0)], [(2, 100.0)] * 5)
    behind = of_snapshot(fair, limited(2), "me", PAST)
    assert {behind.given([RequestedAllocation(2, 60.0, 60.0)], member)[0].start for member in range(20)} == {1100}
    mixed = replace(fair, jobs=[replace(job, rank=rank) for job, rank in zip(fair.jobs, (0, 5, 9, 1, 7, 3))])
    drawn = of_snapshot(mixed, limited(2), "me", PAST)
    assert len({drawn.given([RequestedAllocation(2, 60.0, 60.0)], member)[0].start for member in range(40)}) > 2
    assert any("yours, too" in each for each in drawn.said)
    mine = replace(mixed, jobs=[replace(job, user="me" if job.rank == 9 else job.user) for job in mixed.jobs])
    known = of_snapshot(mine, limited(2), "me", PAST)
    assert {known.given([RequestedAllocation(2, 60.0, 60.0)], member)[0].start for member in range(20)} == {700}


def test_amounts_alone_are_no_site_to_plan_for() -> None:
    with pytest.raises(SnapshotError, match="amounts of cores alone"):
        of_snapshot(replace(site(2), manager="AttributeState"), limited(2), "me")


# -------------------------------------------------------------------------------- limits of sites

SCONTROL = ("PartitionName=p AllowGroups=ALL Default=YES MaxNodes=3 MaxTime=1-00:00:00 MinNodes=2 State=UP TotalNodes=4\n"
            "PartitionName=q MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 State=UP\n"
            "PartitionName=root MaxNodes=2 RootOnly=YES State=UP\nPartitionName=course ReqResv=YES State=UP\n"
            "PartitionName=off MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DRAIN\n")
QSTAT = ("Queue: p\n    queue_type = Execution\n    resources_max.nodect = 2\n    resources_max.walltime = 12:00:00\n"
         "    enabled = True\n    started = True\n\nQueue: off\n    enabled = True\n    started = False\n")
NODES = [SiteNode("n0", 8, {"p": 8, "q": 8, "off": 8, "root": 8, "course": 8}), SiteNode("n1", 4, {"p": 4, "q": 4}),
         SiteNode("n2", 8, {"p": 8}, up=False), SiteNode("n3", 8, {"p": 8})]


def test_what_requests_may_be() -> None:
    there = Snapshot(0.0, NODES, [], longest={"q": 600.0}, default="p")
    assert bounds(there, "", read(SCONTROL)) == RequestLimits("p", 3, 4, 3, 2, 86400)
    assert bounds(there, "q", read(SCONTROL)) == RequestLimits("q", 2, 4, 2, 1, 600)
    assert bounds(there, "p", read(QSTAT)) == RequestLimits("p", 3, 4, 2, 1, 43200)
    assert bounds(there, "p", {}) == RequestLimits("p", 3, 4, 3, 1, math.inf)
    assert bounds(Snapshot(0.0, [SiteNode("n0", 4)], []), "", {}) == RequestLimits("", 1, 4, 1, 1, math.inf)


@pytest.mark.parametrize("partition, text, said", [
    ("none", SCONTROL, "there is no partition none; there are: course, off, p, q, root"),
    ("root", SCONTROL, "partition root takes jobs only from root .RootOnly=YES.: choose another"),
    ("course", SCONTROL, "partition course takes jobs only in a reservation .ReqResv=YES.: choose another"),
    ("off", SCONTROL, "partition off takes or starts no jobs now .State=DRAIN.*--partition"),
    ("off", QSTAT, "enabled or started is False"),
    ("", "", "which partition. Give --partition, one of course, off, p, q, root")])
def test_where_nothing_can_be_asked_for(partition: str, text: str, said: str) -> None:
    with pytest.raises(SnapshotError, match=said):
        bounds(Snapshot(0.0, NODES, []), partition, read(text))


def test_a_partition_in_which_nobody_is() -> None:
    """Its nodes are those of another one, too."""
    nodes = [SiteNode("n0", 1, {"p": 1, "d": 1}), SiteNode("n1", 1, {"p": 1})]
    job = SiteJob("r", 1000.0, 1, 1, 1, queue="p", submit=-9.0, start=0.0, places=((1, None),))
    found = of_snapshot(Snapshot(0.0, nodes, [job]), RequestLimits("d", 1, 1, 1), "me", PAST)
    assert found.given([RequestedAllocation(1, 300.0, 200.0)], 0) == [(0, 200)]


def test_what_a_partition_takes_is_said() -> None:
    known = read("PartitionName=p AllowGroups=ALL AllowAccounts=chem,phys DenyQos=debug QoS=N/A State=UP\nPartitionName=q AllowGroups=ALL\n")
    assert restrictions("p", known) == ["partition p takes only accounts chem,phys, no qualities of service debug: the site refuses other requests"]
    assert restrictions("q", known) == restrictions("", known) == []


def test_a_partition_with_nodes_of_its_own_is_a_machine_of_its_own() -> None:
    """The first job that waits, in the other partition, is no reason to start others before a wide job here; one in a partition
    with the same nodes is."""
    def starts(other: str) -> float:
        nodes = [SiteNode(f"n{at}", 1, dict.fromkeys(names, 1)) for at, names in enumerate(["q" + other, "q", "p" + other, "p", "p" + other, "p"])]
        jobs = [SiteJob("r", 1000.0, 1, 1, 1, queue="q", submit=-9.0, start=0.0, places=((0, None),)),
                SiteJob("s", 500.0, 2, 2, 1, queue="p", submit=-9.0, start=0.0, places=((2, None), (4, None))),
                SiteJob("q", 900.0, 2, 2, 1, queue="q", submit=-8.0, rank=9), SiteJob("wide", 700.0, 4, 4, 1, queue="p", submit=-7.0, rank=8)]
        found = of_snapshot(Snapshot(0.0, nodes, jobs), limited(4), "me", PAST)
        assert any("share nodes" in each for each in found.said) == bool(other)
        span, = found.given([RequestedAllocation(2, 2000.0, 100.0)], 0)
        assert span is not None
        return span.start
    assert starts("") == 1200 and starts("z") == 0


# ----------------------------------------------------------------------------- which is the best


def candidate(nodes: int, ends: Sequence[float], charged: float) -> RequestForecast:
    return judged(AllocationShape("p", nodes, 600.0), [ShapeOutcome(0.0, end, charged, charged / 2) for end in ends])


def test_ranges_are_wider_than_the_draws() -> None:
    found = widened(float(100 * at) for at in range(101))
    assert (found.p10, found.p50, found.p90) == pytest.approx((1000 - 4000 * WIDER, 5000, 9000 + 4000 * WIDER))
    assert widened([7.0] * 9)[1:] == (0, 7, 7 + LEAST)
    half = widened([100.0] * 8 + [math.inf] * 3)
    assert half[1:3] == (100 - LEAST, 100) and half.p90 == math.inf
    assert widened([math.inf] * 9)[2:] == (math.inf, math.inf)


def test_the_first_ends_first_and_is_sure() -> None:
    quick, slow, unsure, cheap = (candidate(4, [100.0] * 10, 7200), candidate(2, [200.0] * 10, 3600),
                                  candidate(8, [50.0] * 8 + [math.inf] * 2, 3600), candidate(1, [101.0] * 10, 3600))
    assert [each.shape.nodes for each in best([slow, unsure, quick])] == [4, 2, 8]
    assert [each.shape.nodes for each in best([slow, quick, cheap])] == [1, 4, 2]  # as good, and cheaper
    chain = cheap._replace(shape=cheap.shape._replace(chain=3), hours=0.99)
    assert best([chain, cheap])[0] is cheap and best([chain._replace(hours=0.9), cheap])[0].shape.chain == 3
    assert (quick.hours, quick.wasted, unsure.chance) == (2, 0.5, 0.8) and unsure.chance < SURE
    assert unsure.end.p90 == math.inf and unsure.record()["end"]["p90"] is None and best([]) == []
