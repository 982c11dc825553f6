"""Writes files of runs for forecasts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from vrm.config.policies import make_scheduler
from vrm.ext.forecast.files import RunFiles
from vrm.ext.forecast.frozen import FrozenRun
from vrm.config.schema import Settings, load
from vrm.model import Cluster, Dependency, Job
from vrm.model.job import ANY
from vrm.model.reservation import ReservationRequest
from vrm.run.expectations import make_expectations
from vrm.run.journal import codec
from vrm.run.journal.files import FORMAT, Journal
from vrm.simulation.engine import Simulator
from vrm.workload.submission import Submission


Event = dict[str, Any]


class Nobody:
    """A recorder that ignores everything."""

    def ended(self, *_: Any) -> None:
        pass

    refused = cancelled = moment = ended


def settings_in(directory: Path, **scheduling: Any) -> Settings:
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    policy = scheduling.pop("Policy", "compact")
    (directory / "vrm.yaml").write_text(yaml.safe_dump(
        {"Applications": {"Path": "bin"}, "Scheduling": scheduling,
         "Allocation": {"Policy": policy}, "Log": "logs"}))
    return load(directory / "vrm.yaml")


def submissions_of(number: int, rng: random.Random) -> list[Submission]:
    """Return random jobs of up to six nodes of four cores; some depend on others."""
    at, found = 0.0, []
    for job_id in range(number):
        at += rng.choice([0.0, 0.0, rng.uniform(0, 4)])
        run = rng.uniform(1, 20)
        after = (Dependency((rng.randrange(job_id),), ANY),) if job_id and rng.random() < .15 else ()
        found.append(Submission(Job(job_id, f"a{job_id % 4}.x", rng.randint(1, 24),
                                    run + rng.uniform(0, 30), at), run, after))
    return found


def recorded(settings: Settings, submissions: Sequence[Submission], reserved: Sequence[ReservationRequest] = (),
             machine: tuple[int, int, int] = (6, 2, 2), begun: float = 0.0) -> list[list[Event]]:
    """Simulate a run of these jobs; return its journal records, one list per moment. `machine`: nodes, sockets, cores."""
    cluster = Cluster.regular(*machine)
    rules = settings.rules
    simulator = Simulator(make_scheduler(settings, cluster), cluster, Nobody(), end=begun + 1e9,
                          expectations=make_expectations(rules))
    records: list[Event] = []
    simulator.state.log = lambda event, **values: records.append({"event": event, **values})
    found = [[{"event": "run", "format": FORMAT, "run": "abc", "time": begun,
               "nodes": codec.nodes_record(cluster.nodes)}]]
    for wanted in reserved:
        simulator.state.reservations.reserve(wanted, 0.0, foreseen=True)
    for _ in simulator.moments(submissions):
        for record in records:
            if record["event"] == "end":
                record["exit_code"] = 0
        found.append(list(records))
        records.clear()
    return found


def write(settings: Settings, records: Sequence[Event]) -> None:
    settings.directory.mkdir(exist_ok=True, mode=0o700)
    (settings.directory / "journal").unlink(missing_ok=True)
    journal = Journal(settings.directory / "journal")
    for record in records:
        journal.append(**record)
        journal.sync()  # one sync per record: a record implies that those before it are on disk
    journal.close()


def of_directory(settings: Settings) -> FrozenRun:
    """Return the run of these settings at this moment, with or without a manager. Raises RunError, with
    advice, if there is no run or its files cannot be read."""
    files = RunFiles(settings)
    files.read_new()
    return files.frozen(files.told())
