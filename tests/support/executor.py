"""A manager with a real state and journal and a fake executor: the test determines how jobs end and how nodes answer."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from types import MappingProxyType
from typing import Any
from collections.abc import Iterable, Iterator, Mapping

import pytest
import yaml

from vrm.config.schema import load
from vrm.live.manager.takeover import earlier_run
from vrm.live.manager.liverun import Clock, LiveRun
from vrm.live.manager.manager import Manager
from vrm.live.manager.part import Part
from vrm.live.nodes.node_watch import NodeEvent, NodeWatch
from vrm.live.nodes.agent_events import AgentOrder
from vrm.live.site.setup import prepare
from vrm.live.spawn.messages import Ended, Event, LaunchRequest, Started
from vrm.live.spawn.records import ExitStatus
from vrm.live.spawn.spawner import Spawner
from vrm.model import Cluster, RankSlot
from vrm.run import command_files
from vrm.run.rundir import RunDirectory
from vrm.system.processes import read_stat
from vrm.workload.grammar import parse_line

NO_SESSION = 1 << 23
"""A session id that does not exist on any system."""


class Jobs(Spawner):
    """Fake spawner: `launched` holds the launch requests; the test puts events into `says`."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[LaunchRequest] = []
        self.says: list[Event] = []

    def launch(self, request: LaunchRequest) -> None:
        self.launched.append(request)

    def events(self) -> list[Event]:
        said, self.says = self.says, []
        return said

    def recorded(self, status: Any) -> None:
        pass


class Agents(NodeWatch):
    """Fake nodes: the test puts events into `says`. `orders` holds orders to lenders (job, epoch, number of CPUs of each rank),
    `pauses` (job, epoch, whether to stop). `down` holds the nodes that do not answer, `swept` the jobs that may still have
    processes on nodes."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(None, cluster, {}, "")
        self.says: list[NodeEvent] = []
        self.orders: list[tuple[int, int, dict[int, int]]] = []
        self.pauses: list[tuple[int, int, bool]] = []
        self.down: set[int] = set()
        self.swept: set[int] = set()
        self.names = [node.name for node in cluster.nodes]

    def poll(self, now: float) -> list[NodeEvent]:
        said, self.says = self.says, []
        return said

    def answers(self, node: int) -> bool:
        return node not in self.down

    def sweeping(self, job_id: int, placement: object = None) -> bool:
        return job_id in self.swept

    watches = True

    def cpus(self, slots: Iterable[RankSlot]) -> dict[str, dict[int, set[int]]]:
        return {self.names[slot.node]: {slot.rank: set(slot.cores)} for slot in slots}

    def order(self, order: AgentOrder, job_id: int, hosts: Mapping[str, Mapping[str, Any]]) -> set[str]:
        if order.name == "masks":
            self.orders.append((job_id, next(iter(hosts.values()))["epoch"], {
                rank: len(cpus) for values in hosts.values() for rank, cpus in values["tasks"].items()}))
        elif order.name == "pause":
            first = next(iter(hosts.values()))
            self.pauses.append((job_id, first["epoch"], first["stop"]))
        return set(hosts)


class Still(Clock):
    """A clock that shows the time of the current turn."""

    ahead = 0.0

    def __init__(self, live: LiveRun) -> None:
        super().__init__()
        self.live = live

    def __call__(self) -> float:
        return self.live.now


class Managed:
    """A manager of two emulated nodes of four cores that does nothing by itself: the test calls its parts with the time
    (seconds). `said` holds the messages to users, `events` the journal events."""

    def __init__(self, root: Path, *lines: str, now: float = 0.0, further: Iterable[Part] = (),
                 site: Mapping[str, Any] = MappingProxyType({}), **keys: Any) -> None:
        """`lines` are submitted as jobs. An earlier run in `root` is resumed. `keys` are keys of the configuration; `site`
        replaces attributes of the site."""
        (root / "bin").mkdir(parents=True, exist_ok=True)
        for program, text in (("ok.x", "exit 0"), ("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")):  # never started
            (root / "bin" / program).write_text(f"#!/bin/sh\n{text}\n")
            (root / "bin" / program).chmod(0o755)
        (root / "queue").touch()
        (root / "vrm.yaml").write_text(yaml.safe_dump({
            "Applications": {"Path": "bin", "Queue": "queue"}, "Log": "log", "Launcher": {"Kind": "openmpi", "Mpirun": "bin/mpirun", "AllowRoot": True},
            "Nodes": 2, "Sockets": 1, "Cores": 4, "Emulate": True, "Allocation": {"Policy": "compact"}, **keys}))
        self.queue = root / "queue"
        settings = load(root / "vrm.yaml")
        self.run = RunDirectory.of(settings)
        self.run.create()
        self.said: list[str] = []
        found = prepare(settings)
        self.jobs, self.agents = Jobs(), Agents(found.cluster)
        self.manager = Manager(settings, dataclasses.replace(found, spawner=self.jobs, watch=self.agents, **site), self.run,
                               lambda kind, text: self.said.append(text), further=list(further))
        self.live = self.manager.live
        past = earlier_run.read_earlier_run(self.run, False, self.live.tell, self.live.new_state)
        self.live.resume_from(past)
        self.state = self.live.state
        self.live.now = self.live.start_time = now
        self.live.clock = Still(self.live)
        self.live.open_journal(past.mark)
        for part in self.manager.parts:
            part.recall(past)
        self.manager.recovery.take_up(past)
        self.events: list[tuple[str, dict[str, Any]]] = []
        append = self.live.journal.append

        def noted(event: str, **values: Any) -> None:
            self.events.append((event, values))
            append(event, **values)

        self.state.log = noted
        for line in lines:
            self.manager.intake.enter(parse_line(line))

    @property
    def found(self) -> list[str]:
        """Names of the journal events so far."""
        return [event for event, _ in self.events]

    def turn(self, now: float, files: bool = False) -> None:
        """Run one turn of the manager's loop."""
        self.live.now = now
        self.manager.launches.read_spawner()
        self.manager.turn(now, files)

    def start(self, now: float) -> None:
        """Start all jobs that may start; they run."""
        self.live.now = now
        self.manager.decide(now)
        self.manager.launches.act(now)

    def end(self, job_id: int, now: float, code: int = 0, clean: bool = True) -> None:
        """End a job. Without `clean`, processes may be left in its session."""
        self.live.now = now
        if not clean:
            self.jobs.says.append(Started(job_id, NO_SESSION, NO_SESSION))
        self.jobs.says.append(Ended(job_id, ExitStatus(code, None, None, 0.0, now, 0.0, 0.0, 0, now, now), clean=clean))
        self.manager.launches.read_spawner()

    def close(self) -> None:
        """Close all files and parts."""
        for part in self.manager.parts:
            part.end()
        self.live.records.close()
        self.live.journal.close()


class OtherSession:
    """The session of another job: a session leader, and a program that answers until it gets a signal."""

    def __init__(self) -> None:
        self.leader = subprocess.Popen(["sh", "-c", "cat; exit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       start_new_session=True)
        assert self.lives()
        stat = read_stat(self.leader.pid)
        assert stat is not None
        self.sid, self.started = self.leader.pid, stat.pid.started

    def lives(self) -> bool:
        """Return whether the program lives. A signal sent before takes effect before it reads its input."""
        assert self.leader.stdin is not None and self.leader.stdout is not None
        try:
            self.leader.stdin.write("hello\n")
            self.leader.stdin.flush()
        except BrokenPipeError:
            return False
        return self.leader.stdout.readline() == "hello\n"


@pytest.fixture
def other() -> Iterator[OtherSession]:
    found = OtherSession()
    yield found
    found.leader.kill()
    found.leader.communicate()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def states(managed: Managed) -> list[str]:
    return [entry.state.value for entry in managed.state.book.entries.values()]


def asked(managed: Managed, now: float, **command: Any) -> command_files.Command:
    """Send a command file; return the reply."""
    name = command_files.send(managed.run, command)
    managed.turn(now, files=True)
    reply = command_files.wait_reply(managed.run, name, 0)
    assert reply is not None
    return reply
