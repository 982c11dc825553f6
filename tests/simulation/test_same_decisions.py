"""One policy, two clocks: a live run, replayed in the simulator with the run times that were
measured, starts the same jobs in the same order on the same cores.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from collections.abc import Sequence

import pytest
import yaml

from conftest import Site
from vrm.config.schema import load
from vrm.ext.forecast import replay as forecasts
from vrm.ext.forecast.files import RunFiles
from vrm.model import Cluster, Dependency, Job
from vrm.results.forecast import ManagerReport
from vrm.results.jobs import read_jobs
from vrm.results.placement_text import PlacementText
from vrm.run.journal import codec
from vrm.run.journal import files as journal
from vrm.run.journal.history import replay
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, Start, make_backfilling, make_ordering, make_policy
from vrm.api import Machine, Recording, Submission, simulate
from vrm.simulation.arguments import by_name
from vrm.simulation.engine import Simulator
from vrm.ext.measured import heatmap_files

pytestmark = pytest.mark.mpi

# app, ranks, seconds it takes, exclusive, seconds until the next line. The estimate is 2 s more.
JOBS: list[tuple[str, int, float, int, float]] = [
    ("ep", 8, 0.7, 0, 0), ("cg", 2, 0.3, 0, 0), ("ft", 12, 0.4, 0, 0), ("is", 3, 0.9, 0, 0.5),
    ("lu", 1, 0.2, 1, 0), ("ep", 5, 0.6, 0, 0), ("mg", 8, 0.3, 0, 0.4), ("cg", 2, 1.1, 0, 0),
    ("ft", 4, 0.2, 0, 0), ("is", 12, 0.5, 0, 0.3), ("lu", 2, 0.4, 0, 0), ("mg", 1, 0.1, 0, 0),
]
HEATMAP = {"ep": "cg ft is lu mg ep", "cg": "ep lu is mg ft cg", "ft": "ep lu cg is mg ft",
           "is": "ep lu cg mg ft is", "lu": "ep cg is lu mg ft", "mg": "ep lu cg is ft mg"}


def millionths(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(1e6 * seconds)


@dataclass(frozen=True)
class TimedRun:
    """A job of a live run as the journal tells of it, times in microseconds since the first
    submission (whole, so that they add up exactly), and its cores as jobs.csv names them."""

    id: int
    app: str
    procs: int
    estimate: int
    exclusive: bool
    submit: int
    start: int
    end: int
    nodes: str
    cores: str
    after: tuple[Dependency, ...]


def replayed(jobs: list[TimedRun], out: Path, **policies: Any) -> dict[int, tuple[int, str, str]]:
    """Start, nodes and cores of every job in virtual time, its estimate and run time given."""
    submissions = [Submission(Job(job.id, job.app, job.procs, job.estimate, job.submit,
                                  job.exclusive), job.end - job.start, job.after)
                   for job in jobs]
    simulate(submissions, Machine.of(6, 2, 2), record=Recording(out, "full"), **by_name(policies))
    return {row.id: (int(row.start), row.nodes, row.cores) for row in read_jobs(out / "jobs.csv")}


class Starts:
    """Notes when and where jobs start."""

    def __init__(self, text: PlacementText) -> None:
        self.text = text
        self.found: dict[int, tuple[int, str, str]] = {}

    def ended(self, booking: Any, start: Any, end: float, status: str) -> None:
        self.found[booking.job.id] = (int(booking.start), self.text.nodes(booking.placement),
                                      self.text.cores(booking.placement))

    def refused(self, *_: Any) -> None:
        raise AssertionError("no job is refused")

    def cancelled(self, *_: Any) -> None:
        raise AssertionError("no job is cancelled")

    def moment(self, state: Any) -> None:
        pass


def in_millionths(record: dict[str, Any], first: float) -> dict[str, Any]:
    """A record of a journal with its times as those of `TimedRun`."""
    times = {key: millionths(record[key] - first) for key in ("time", "submit") if key in record}
    lengths = {"estimate": millionths(record["estimate"])} if "estimate" in record else {}
    return {**record, **times, **lengths}


def moments(records: list[dict[str, Any]]) -> list[int]:
    """How many records of the run belong to each moment and those before it, which end with what
    was decided then."""
    when = [record.get("submit", record.get("time")) if record["event"] in ("job", "start", "end")
            else None for record in records]
    known = [number for number, time in enumerate(when) if time is not None]
    # On a busy machine the end of a job is recorded after what it let start: no moment is between.
    return [at + 1 for number, at in enumerate(known[:-1], 1)
            if max(when[each] for each in known[:number])
            < min(when[each] for each in known[number:])]


def from_here(records: list[dict[str, Any]], jobs: list[TimedRun], rules: dict[str, Any]
              ) -> tuple[set[int], dict[int, tuple[int, str, str]]]:
    """A state is made of a run's first records, copied, and runs on in virtual time: the ids of the
    jobs that had not started, and the starts of the copy."""
    cluster = Cluster.regular(6, 2, 2)
    scheduler = Scheduler(make_ordering(rules["algorithm"]), make_backfilling(rules["backfill"]),
                          make_policy(rules["policy"], cluster, rules["heatmap"]))
    past = replay(records, state=State(scheduler.new_queue(), cluster, frozen=True))
    for job, start in past.running:
        placement = codec.placement_of(start["placement"], cluster)
        past.state.running[job.id] = Start(cluster.book(job, placement, start["time"]), start["backfilled"])
    past.state.book.thaw()
    recorder = Starts(PlacementText(cluster.nodes))
    copied = Run(past.state, scheduler).copy()
    later = [Submission(Job(job.id, job.app, job.procs, job.estimate, job.submit, job.exclusive),
                        job.end - job.start, job.after)
             for job in jobs if job.id not in past.jobs]
    Simulator.of(copied, recorder, {job.id: job.end - job.start for job in jobs},
                 max((record[key] for record in records for key in ("submit", "time")
                      if key in record and record["event"] != "run"), default=0.0)).run(later)
    assert past.state.waiting == len(past.waiting)  # the copy's ends are not the original's
    return {job.id for job in jobs} - set(past.started), recorder.found


def from_files(site: Site, records: list[dict[str, Any]], jobs: list[TimedRun]
               ) -> dict[int, tuple[int, str, str]]:
    """The starts that a forecast of a run's first records gives which knows how long jobs take, of
    the jobs that had not started."""
    config = {**yaml.safe_load(site.config_file.read_text()), "Directory": str(site.root / "frozen")}
    (site.root / "frozen.yaml").write_text(yaml.safe_dump(config))
    settings = load(site.root / "frozen.yaml")
    settings.directory.mkdir(exist_ok=True)
    (settings.directory / "journal").unlink(missing_ok=True)
    written = journal.Journal(settings.directory / "journal")
    for record in records:
        written.append(**record)
    written.close()
    files = RunFiles(settings)
    files.read_new()
    frozen = files.frozen(ManagerReport("running"), 0.0)
    ran = {job.id: job.end - job.start for job in jobs}
    later = tuple(Submission(Job(job.id, job.app, job.procs, job.estimate, job.submit, job.exclusive),
                             ran[job.id]) for job in jobs if job.id not in files.past.jobs)
    text = PlacementText(frozen.state.cluster.nodes)
    return {job_id: (int(each.start), text.nodes(each.placement), text.cores(each.placement))
            for job_id, each in forecasts.replay(replace(frozen, later=later),
                                                 lambda job, _: ran[job.id]).items()
            if job_id not in files.past.started}


def decided(jobs: list[TimedRun]) -> dict[int, tuple[int, str, str]]:
    """Start, nodes and cores of every job in the live run."""
    return {job.id: (job.start, job.nodes, job.cores) for job in jobs}


def live_run(site: Site, policy: str, fields: Sequence[str] = (),
             **scheduling: Any) -> tuple[list[TimedRun], Path]:
    """The jobs run live on an emulated cluster, by id, and the heatmap in use; `fields` are what
    the first lines of the queue have behind their columns, and no jobs come without."""
    heatmap = site.root / "heatmap"
    heatmap.write_text("".join(f"{app} {row}\n" for app, row in HEATMAP.items()))
    site.config(Nodes=6, Sockets=2, Cores=2, Emulate=True,
                Applications={"Path": str(site.bin), "Queue": str(site.queue),
                              "Heatmap": str(heatmap)},
                Scheduling=scheduling,
                Allocation={"Policy": policy})
    lines = []
    jobs = JOBS[:len(fields) or None]
    for number, (app, ranks, seconds, exclusive, delay) in enumerate(jobs):
        site.program(f"{app}.{number}.x", f"exec sleep {seconds}\n")
        lines.append(f"{app}.{number}.x {ranks} {seconds + 2} {exclusive} {delay} "
                     + "".join(fields[number:number + 1]))
    site.lines(*lines)
    done = site.run("--fresh")
    assert done.returncode == 0, done.stdout + done.stderr
    past, rows = replay(journal.read(site.log / "journal")), site.rows()
    assert sorted(past.ended) == sorted(rows) == list(range(len(jobs)))
    first = past.jobs[0].submit
    return [TimedRun(job.id, job.app, job.procs, millionths(job.estimate), job.exclusive,
                     *(millionths(time - first) for time in (
                    job.submit, past.started[job.id]["time"], past.ended[job.id]["time"])),
                     rows[job.id].nodes, rows[job.id].cores, past.details[job.id].after)
            for job in past.jobs.values()], heatmap


@pytest.mark.parametrize("policy, algorithm, backfill", list(itertools.product(
    ["compact", "strip"], ["FCFS", "WFP3"], ["none", "easy"])))
def test_a_live_run_and_its_replay_decide_alike(site: Site, policy: str, algorithm: str,
                                                backfill: str) -> None:
    live, heatmap = live_run(site, policy, Algorithm=algorithm, Backfilling=backfill)
    assert decided(live) == replayed(live, site.root / "replay", algorithm=algorithm,
                                   backfill=backfill, policy=policy, heatmap=str(heatmap))
    records = journal.read(site.log / "journal")
    first = next(record["submit"] for record in records if record["event"] == "job")
    records = [in_millionths(record, first) for record in records]
    cuts = moments(records)
    rules = {"algorithm": algorithm, "backfill": backfill, "policy": policy,
             "heatmap": heatmap_files.read(heatmap).heatmap}
    compared = 0
    for cut in random.Random(1).sample(cuts, min(20, len(cuts))):
        later, found = from_here(records[:cut], live, rules)
        assert {job_id: found[job_id] for job_id in later} == {
            job_id: each for job_id, each in decided(live).items() if job_id in later}, cut
        assert from_files(site, records[:cut], live) == {job_id: found[job_id] for job_id in later}
        compared += len(later)
    assert compared > len(JOBS)


def test_dependencies_hold_in_both(site: Site) -> None:
    fields = ["", "", "", "after=0", "", "after=any:1,3", "after=1,2"]
    live, _ = live_run(site, "compact", fields, Algorithm="FCFS", Backfilling="easy")
    assert live[3].start >= live[0].end and live[5].start >= live[3].end
    assert decided(live) == replayed(live, site.root / "replay", backfill="easy", policy="compact")


INTERVAL = 0.5


def test_they_decide_alike_at_ticks_of_an_interval(site: Site) -> None:
    live, heatmap = live_run(site, "strip", Algorithm="WFP3", Backfilling="easy",
                             Interval=INTERVAL, StartsPerInterval=1)
    tick = millionths(INTERVAL)
    assert decided(live) == replayed(live, site.root / "replay", algorithm="WFP3", backfill="easy",
                                   policy="strip", heatmap=str(heatmap), interval=tick,
                                   starts_per_interval=1)
    assert all(job.start % tick == 0 for job in live)
    rules = site.state()["scheduling"]
    assert (rules["interval"], rules["starts_per_interval"]) == (INTERVAL, 1)
