"""Agents that run on this machine, and substitutes for nodes and jobs."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import LIMIT, descendants
from vrm.live.launch.openmpi import OpenMPI
from vrm.live.nodes.agents import Agents
from vrm.live.nodes.agent_events import AgentEvent, NodeUp
from vrm.live.relay.boot import MARK


OPEN_MPI = OpenMPI.rank_variables
RUN = f"r1.{os.getpid()}"
"""Run id of these tests' jobs; unique, because other tests may run on this machine at the same time."""
STAND_IN = r"""#!/bin/sh
# ssh as far as agents know it: what a host does stands in a file of its name.
while [ $# -gt 2 ]; do shift; done
here=%s
echo $$ >> $here/pids.$1
echo >> $here/tries.$1
. $here/$1
eval "exec $2"
"""


class StandIn:
    """Nodes that are all this machine, through a script that replaces ssh."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ssh = root / "ssh"
        self.ssh.write_text(STAND_IN % shlex.quote(str(root)))
        self.ssh.chmod(0o755)
        self.agents: list[Agents] = []

    def does(self, host: str, what: str = "") -> None:
        """Let each new connection to the host first run the shell commands `what`."""
        other = self.root / f".{host}"
        other.write_text(what + "\n")
        other.replace(self.root / host)

    def make(self, *hosts: str, **options: Any) -> Loop:
        """Return an event loop with agents of these hosts, with short times."""
        settings: dict[str, Any] = {"timeout": 10.0, "ping": 0.05, "pauses": (0.02, 0.1),
                                    "run": RUN, "command": (str(self.ssh),)}
        settings.update(options)
        agents = Agents(hosts, **settings)
        self.agents.append(agents)
        return Loop(agents)

    def pids(self, host: str) -> list[int]:
        """Return the ids of the processes that connected to the host; they have become its agents."""
        path = self.root / f"pids.{host}"
        return list(map(int, path.read_text().split())) if path.exists() else []

    def tries(self, host: str) -> int:
        """Return the number of connections to the host."""
        return len(self.pids(host))


class Loop:
    """An event loop for agents; `seen` holds the events that were not taken yet."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.seen: list[AgentEvent] = []

    def until(self, condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
        """Run until the condition is true and return its value; the test fails after `limit` seconds."""
        poll = select.poll()
        poll.register(self.agents.fileno(), select.POLLIN)
        end = time.monotonic() + limit
        while True:
            now = time.monotonic()
            due = self.agents.tick(now)
            self.seen += self.agents.events()
            value = condition()
            if value:
                return value
            if now > end:
                pytest.fail(f"not within {limit:g} s: {what}; events: {self.seen}")
            poll.poll(1000 * min(max(0.0, due - now), 0.1))

    def next(self, kind: type, host: str | None = None) -> Any:
        """Run until there is an event of this kind (of this host); remove it from `seen` and return it."""
        def found() -> Any:
            return next((event for event in self.seen if isinstance(event, kind)
                         and host in (None, event.host)), None)
        event = self.until(found, f"{kind.__name__} of {host}")
        self.seen.remove(event)
        return event

    def start(self) -> Loop:
        """Run until all nodes are up."""
        for _ in self.agents._nodes:
            self.next(NodeUp)
        return self


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[StandIn]:
    stand_in = StandIn(tmp_path)
    for host in ("n1", "n2", "n3"):
        stand_in.does(host)
    yield stand_in
    for agents in stand_in.agents:
        agents.close()
    left = [child for word in (str(tmp_path), "agent.py", MARK[:-1], "relay.py") for child in descendants(os.getpid(), word)]
    assert not left, f"processes were left: {left}"


class Jobs:
    """Processes with the environment variables of jobs; they are killed at the end of the test."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, code: str, run: str = RUN, job: int = 1, **env: str) -> psutil.Process:
        """Start a Python program and wait until it prints a line; `code` may use os, sys, time, signal and `wait()`."""
        program = ("import os, sys, time, signal\n"
                   "def wait():\n    print(flush=True); time.sleep(600)\n" + code)
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
            env={**os.environ, "VRM_RUN": run, "VRM_JOB_ID": str(job), **env})
        self.started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return psutil.Process(process.pid)

    def ended(self, process: psutil.Process) -> bool:
        """Return whether a process has ended."""
        for popen in self.started:
            popen.poll()
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    for process in made.started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


CPUS = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs 2 CPUs")
