"""Live runs on nodes with GPUs, memory and licences: no two jobs have the same at a time, by what their
tasks print themselves; lost nodes and killed managers; and the simulator decides alike.

Files stand for GPUs (VRM_DEVICES). Everything else is real.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
import yaml
from conftest import Site, mpiexecs, mpiruns, wait_until
from support.testbed import Testbed, missing

from vrm.live.launch.openmpi_output import strip_prefix
from vrm.live.nodes.topology import read_topology
from vrm.model import Node
from vrm.model.amounts import GPU, MEMORY
from vrm.model.machine import Machine
from vrm.results.jobs import JobRow, read_jobs
from vrm.results.placement_text import parse_cores
from vrm.run.journal import files as journal
from vrm.run.journal.history import replay
from vrm.api import Recording, Rules, Submission, simulate

ORDERS = ("first-fit", "best-fit", "balanced", "weighted", "hybrid", "priority-weighted")
LICENCES = {"ansys": 2}
GPUS = {"n0": 2, "n1": 2, "n2": 4}
"""Of each node; others have none."""

SHOW = r"""task=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_STEP_ID:+${SLURM_PROCID:-0}}}}
cpus=$(sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status)
echo "task ${task:-0} on $(uname -n) sees ${CUDA_VISIBLE_DEVICES-all} cpus $cpus start $(date +%s.%N)"
i=0
while [ ! -e "$2" ] && [ $i -lt 600 ]; do sleep "$1"; i=$((i + 1)); [ "$2" != - ] || break; done
echo "task ${task:-0} end $(date +%s.%N)"
"""
"""Tells what a task sees, and when; ends after so many seconds, or when there is a file."""


def stand_ins(folder: Path, gpus: Mapping[str, int] = GPUS) -> Path:
    """A directory that stands for these GPUs, by node, with UUIDs of their own; each second one is on
    socket 1."""
    for host, number in gpus.items():
        (folder / host).mkdir(parents=True)
        for index in range(number):
            (folder / host / f"nvidia{index}").write_text(f"uuid: GPU-{host}-{index}\n"
                                                          f"socket: {index % 2}\n")
    return folder


class Wish(NamedTuple):
    """What a job asks for besides tasks."""

    tasks: int
    gpus_per_task: int = 0
    gpus_per_node: int = 0
    memory: int = 0  # MiB on each node
    ansys: int = 0

    @property
    def fields(self) -> str:
        """As in a line of the queue."""
        said = {"gpus_per_task": self.gpus_per_task, "gpus_per_node": self.gpus_per_node,
                "mem_per_node": self.memory and f"{self.memory}M",
                "licences": self.ansys and f"ansys:{self.ansys}"}
        return " ".join(f"{name}={value}" for name, value in said.items() if value)


def mixed(count: int, seed: int, memory: int, most: int) -> list[Wish]:
    """A queue of CPU, 1-GPU, 2-GPU, memory-heavy and licence jobs; `memory` is that of a node in MiB,
    and no job has more than `most` tasks."""
    draw = random.Random(seed)
    kinds = {"cpu": lambda: Wish(draw.randint(1, most)), "gpu": lambda: Wish(1, gpus_per_task=1),
             "two": lambda: draw.choice([Wish(2, gpus_per_task=1), Wish(1, gpus_per_task=2),
                                         Wish(2, gpus_per_node=2)]),
             "memory": lambda: Wish(1, memory=int(memory * draw.uniform(0.4, 0.7))),
             "licence": lambda: Wish(draw.randint(1, 2), ansys=draw.randint(1, 2))}
    names = [name for name in kinds for _ in range(count // len(kinds))]
    draw.shuffle(names)
    return [kinds[name]() for name in names]


# ------------------------------------------------------------------------------- what was seen


class Seen(NamedTuple):
    """What a task printed."""

    host: str
    gpus: tuple[str, ...] | None  # None: the variable was not set
    start: float
    end: float


def seen(log: Path, row: JobRow) -> dict[int, Seen]:
    """By task."""
    begun: dict[int, tuple[str, tuple[str, ...] | None, float]] = {}
    found: dict[int, Seen] = {}
    for line in (log / f"{row.app}.{row.id}.o").read_text().splitlines():
        text = strip_prefix(line)
        start = re.fullmatch(r"task (\d+) on (\S+) sees (\S*) cpus \S* start (\S+)", text)
        if start:
            gpus = None if start[3] == "all" else tuple(filter(None, start[3].split(",")))
            begun[int(start[1])] = start[2], gpus, float(start[4])
        end = re.fullmatch(r"task (\d+) end (\S+)", text)
        if end:
            found[int(end[1])] = Seen(*begun[int(end[1])], float(end[2]))
    return found


def held(row: JobRow) -> dict[str, tuple[int, ...]]:
    """The GPUs of a job by node, as jobs.csv has them."""
    parts = (part.partition(":") for part in row.devices.split(";") if part)
    return {host: tuple(map(int, text.removeprefix("gpu/").split(","))) for host, _, text in parts}


def check(log: Path, wishes: Sequence[Wish], whole: bool = False, hosts: bool = True,
          capacity: int | None = None, alone: bool = False) -> dict[int, JobRow]:
    """All jobs completed with what they asked for, and nothing was held by two at a time. `whole`: a
    job is one process; `hosts`: tasks know on which node they are; `capacity`: MiB of a node;
    `alone`: jobs share no node."""
    rows = {row.id: row for row in read_jobs(log / "jobs.csv")}
    assert sorted(rows) == list(range(len(wishes)))
    used: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    for job_id, row in rows.items():
        wish, tasks = wishes[job_id], seen(log, row)
        assert row.status == "completed", row
        assert sorted(tasks) == ([0] if whole else list(range(wish.tasks))), row
        devices = held(row)
        asks = wish.gpus_per_task or wish.gpus_per_node
        assert bool(devices) == bool(asks), row
        if asks:
            own = [gpu for task in tasks.values() for gpu in task.gpus or ()]
            planned = {f"GPU-{host}-{index}" for host, here in devices.items() for index in here}
            assert set(own) == planned, (row, tasks)
            if not whole and wish.gpus_per_task:
                assert len(own) == len(set(own)) and all(
                    len(task.gpus or ()) == wish.gpus_per_task for task in tasks.values())
            for task in tasks.values():
                for gpu in task.gpus or ():
                    if hosts:
                        assert gpu.split("-")[1] == task.host
                    used.setdefault(("gpu", gpu), []).append((task.start, task.end, job_id))
        else:
            nodes = {host for host, _ in parse_cores(row.cores)}
            for task in tasks.values():
                hidden = not alone and nodes & GPUS.keys()
                assert task.gpus == (() if hidden else None), (row, task)
        assert row.start is not None and row.end is not None
        for host, places in parse_cores(row.cores):
            for place in places:
                for core in range(place.first, place.last + 1):
                    used.setdefault((host, f"{place.socket}.{core}"), []).append(
                        (row.start, row.end, job_id))
    for what, spans in used.items():
        for (start, end, one), (begin, until, other) in combinations(spans, 2):
            assert one == other or max(start, begin) >= min(end, until) - 1e-6, (what, one, other)
    moments = [row.start for row in rows.values()]
    for moment in moments:
        running = [row for row in rows.values() if row.start <= moment < row.end]
        assert sum(wishes[row.id].ansys for row in running) <= LICENCES["ansys"]
        if capacity is not None:
            memory: dict[str, int] = {}
            for row in running:
                for host, _ in parse_cores(row.cores):
                    memory[host] = memory.get(host, 0) + wishes[row.id].memory
            assert max(memory.values(), default=0) <= capacity
    assert any(start < until and begin < end and one != other
               for (start, end, one), (begin, until, other) in combinations(
                   [(row.start, row.end, row.id) for row in rows.values()], 2)), "nothing ran together"
    return rows


# ----------------------------------------------------------------------- the same in virtual time


def millionths(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(1e6 * seconds)


def decided_alike(log: Path, nodes: Sequence[Node], out: Path, **policies: Any) -> None:
    """The run of a journal, replayed in virtual time with the run times that were measured, starts the
    same jobs at the same microsecond with the same cores and GPUs."""
    past = replay(journal.read(log / "journal"))
    rows = {row.id: row for row in read_jobs(log / "jobs.csv")}
    first = past.jobs[0].submit
    submissions, live = [], {}
    for job in past.jobs.values():
        submit, start, end = (millionths(time - first) for time in (
            job.submit, past.started[job.id]["time"], past.ended[job.id]["time"]))
        twin = job.but(submit=submit, walltime=millionths(job.walltime),
                       expected=millionths(job.expected))
        submissions.append(Submission(twin, end - start, past.details[job.id].after))
        live[job.id] = (start, rows[job.id].nodes, rows[job.id].cores, rows[job.id].devices)
    simulate(submissions, Machine(nodes, LICENCES), Rules(**policies), record=Recording(out, "full"))
    found = {row.id: (int(row.start or 0), row.nodes, row.cores, row.devices)
             for row in read_jobs(out / "jobs.csv")}
    assert found == live


# ------------------------------------------------------------------- an emulated cluster, anywhere


def nodes_of(state: Mapping[str, Any], gpus: Mapping[str, int]) -> list[Node]:
    """The nodes of a run by its state file and the GPUs that stand there."""
    from vrm.model.node import Device
    return [Node(node["name"], tuple(map(len, node["sockets"])),
                 {name: total for name, (_, total) in node["resources"].items()},
                 devices={GPU: tuple(Device(index, index % 2, f"GPU-{node['name']}-{index}")
                                     for index in range(gpus[node["name"]]))}
                 if node["name"] in gpus else {}) for node in state["nodes"]]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("kind, policy, order", [*(("direct", "pack", order) for order in ORDERS), *(
    ("direct", policy, "auto") for policy in ("compact", "spare", "strip")),
    ("openmpi", "pack", "best-fit"), ("openmpi", "strip", "auto")])
def test_nothing_is_held_by_two_and_the_simulator_decides_alike(site: Site, kind: str, policy: str,
                                                                order: str) -> None:
    site.config(Nodes=4, Sockets=2, Cores=2, Emulate=True, Launcher={"Kind": kind},
                Licences=LICENCES, Scheduling={"Algorithm": "FCFS", "Backfilling": "easy"},
                Allocation={"Policy": policy, "NodeOrder": order})
    devices = stand_ins(site.root / "gpus")
    site.program("show.x", SHOW)
    memory = memory_of(site, VRM_DEVICES=str(devices))
    wishes = mixed(30 if kind == "direct" else 15, 5, memory, 2 if policy in ("spare", "strip") else 4)
    draw = random.Random(1)
    site.lines(*(f"show.x {wish.tasks} 20 0 {draw.choice([0, 0, 0.1])} "
                 f"args='{draw.choice([0.1, 0.2, 0.4])} -' {wish.fields} "
                 + "nodes=1" * (kind == "direct") for wish in wishes))
    done = site.run("--fresh", "--once", VRM_DEVICES=str(devices), limit=180)
    assert done.returncode == 0, done.stdout + done.stderr
    check(site.log, wishes, whole=kind == "direct", hosts=False, capacity=memory,
          alone=policy in ("compact", "spare"))
    state = site.state()
    assert state is not None
    decided_alike(site.log, nodes_of(state, GPUS), site.root / "replay", algorithm="FCFS",
                  backfill="easy", policy=policy, node_order=order)


def memory_of(site: Site, **env: str) -> int:
    """MiB of each node of a site's cluster."""
    site.lines()
    done = site.run("--fresh", "--once", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    state = site.state()
    assert state is not None
    return int(state["nodes"][0]["resources"][MEMORY][1] * 1024)


# ------------------------------------------------------------------------------ the test cluster


class Lab:
    """A directory on the test cluster with the program that tells what it sees, and vrm on four nodes,
    three of which have GPUs."""

    def __init__(self, testbed: Testbed, root: Path, kind: str = "openmpi", mpirun: str = "auto") -> None:
        self.mpirun = mpirun
        self.testbed, self.root, self.log = testbed, root, root / "log"
        self.kind = kind
        self.config_file = root / "vrm.yaml"
        self.devices = stand_ins(root / "gpus")
        self.managers: list[subprocess.Popen[str]] = []
        (root / "bin").mkdir()
        (root / "bin/show.x").write_text("#!/bin/sh\n" + SHOW)
        (root / "bin/show.x").chmod(0o755)
        self.config()

    def config(self, order: str = "auto", **keys: Any) -> None:
        """Write the configuration: pack by this node order, and what `keys` say over it."""
        launcher: dict[str, Any] = {"Kind": self.kind, "Mpirun": self.mpirun}
        if self.kind == "openmpi":
            launcher.update(AllowRoot=True, Transport="tcp",
                            Environment={"OMPI_MCA_mpi_yield_when_idle": 1})
        self.config_file.write_text(yaml.safe_dump({
            "Applications": {"Path": "bin", "Queue": "queue"}, "Log": "log", "Grace": 1,
            "Scheduling": {"Algorithm": "FCFS", "Backfilling": "easy"}, "Licences": LICENCES,
            "Allocation": {"Policy": "pack", "NodeOrder": order}, "Launcher": launcher, **keys}))

    def queue(self, lines: Iterable[str]) -> None:
        (self.root / "queue").write_text("".join(f"{line}\n" for line in (*lines, "end")))

    def line(self, wish: Wish, seconds: float = 0.1, wait: str = "-", more: str = "") -> str:
        """A job that stays for so many seconds, or until there is the file `wait`."""
        one = "nodes=1" * (self.kind == "direct")
        file = wait if wait == "-" else self.root / wait
        return f"show.x {wish.tasks} 60 0 args='{seconds} {file}' {wish.fields} {one} {more}"

    def start(self, batch: Any, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start vrm on the batch job's first node."""
        self.managers.append(self.testbed.popen(
            batch.host, [sys.executable, "-m", "vrm.cli", "-c", self.config_file, *words],
            env={**batch.env, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT),
                 "VRM_DEVICES": str(self.devices), **env}, cwd=self.root, text=True,
            stdout=open(self.root / f"said.{len(self.managers)}", "w"), stderr=subprocess.STDOUT))
        return self.managers[-1]

    def said(self) -> str:
        """What the last vrm has printed."""
        return (self.root / f"said.{len(self.managers) - 1}").read_text()

    def finish(self, process: subprocess.Popen[str], limit: float = 240) -> str:
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            pytest.fail(f"vrm did not end within {limit:g} s:\n{self.said()}")
        return self.said()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.log / "state").read_text())
        return found

    def running(self) -> dict[int, str]:
        """The GPUs of running jobs by the state file; none as long as there is no such file."""
        if not (self.log / "state").exists():
            return {}
        return {job["id"]: job.get("devices", "") for job in self.state()["jobs"]
                if job["state"] == "running"}

    def shown(self, job: int) -> dict[str, Any]:
        """What the tasks of a job that runs have printed."""
        path = self.log / f"show.x.{job}.o"
        text = path.read_text() if path.exists() else ""
        return dict(re.findall(r"task (\d+) on \S+ sees (\S+) ", text))

    def close(self) -> None:
        for process in self.managers:
            if process.poll() is None:
                process.kill()
                process.wait()


ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def lab(testbed: Testbed, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(testbed, tmp_path)
    yield made
    made.close()
    for node in testbed.nodes:
        if not testbed.alive(node):
            testbed.restart(node)


LAUNCHERS = [*(("openmpi", mpirun) for mpirun in mpiruns()), *(("hydra", found) for found in mpiexecs()),
             ("direct", "auto")]


@pytest.mark.slow
@pytest.mark.parametrize("kind, mpirun, order", [
    *(("direct", "auto", order) for order in ORDERS),  # an order has chosen the nodes before anything is launched
    *((*launcher, "weighted") for launcher in LAUNCHERS[:-1])])
def test_sixty_jobs_on_a_cluster(testbed: Testbed, tmp_path: Path, kind: str, mpirun: str, order: str
                                 ) -> None:
    lab = Lab(testbed, tmp_path, kind, mpirun)
    lab.config(order)
    memory = 1024 * 1024  # MiB: more than there is, until the state says how much
    with testbed.allocation(4) as batch:
        lab.queue([])
        lab.finish(lab.start(batch, "--fresh", "--once"))
        memory = int(lab.state()["nodes"][0]["resources"][MEMORY][1] * 1024)
        wishes = mixed(60, len(order), memory, 8)
        draw = random.Random(2)
        lab.queue(lab.line(wish, draw.choice([0.1, 0.3, 0.6])) for wish in wishes)
        process = lab.start(batch, "--fresh", "--once")
        try:
            said = lab.finish(process)
        finally:
            lab.close()
    assert process.returncode == 0, said
    check(lab.log, wishes, whole=kind == "direct", capacity=memory)
    decided_alike(lab.log, nodes_of(lab.state(), GPUS), tmp_path / "replay", algorithm="FCFS",
                  backfill="easy", policy="pack", node_order=order)


def test_tasks_of_srun_see_their_own(testbed: Testbed, tmp_path: Path) -> None:
    lab = Lab(testbed, tmp_path, "srun")
    wishes = [Wish(2, gpus_per_task=1), Wish(2, gpus_per_node=2), Wish(1), Wish(3, gpus_per_task=1),
              Wish(4)]
    lab.queue(lab.line(wish, 0.3) for wish in wishes)
    with testbed.allocation(4) as batch:
        said = lab.finish(lab.start(batch, "--once"))
    assert "5 completed" in said, said
    check(lab.log, wishes)


def test_a_lost_node_gives_its_gpus_back(lab: Lab) -> None:
    """The job that had them runs again on another node's; the node comes back with one GPU of two, and
    stays down until it has both."""
    with lab.testbed.allocation(2) as batch:
        other = next(node for node in batch.nodes if node != batch.host)
        for host, number in ((batch.host, 1), (other, 2)):
            for path in (lab.devices / host).glob("*") if (lab.devices / host).exists() else ():
                path.unlink()
            (lab.devices / host).mkdir(exist_ok=True)
            for index in range(number):
                (lab.devices / host / f"nvidia{index}").write_text(f"uuid: GPU-{host}-{index}\n")
        lab.config(Hosts={"Timeout": 3})
        lab.queue([lab.line(Wish(1, gpus_per_task=1), wait="go"),
                   lab.line(Wish(1, gpus_per_task=1), wait="go"),
                   lab.line(Wish(1, gpus_per_task=2), wait="go")])
        process = lab.start(batch, "--once")
        wait_until(lambda: sorted(lab.running().values()) == [f"{batch.host}:gpu/0", f"{other}:gpu/0"],
                   "two jobs run on a GPU each")
        lost, kept = sorted(lab.running(), key=lambda job: batch.host in lab.running()[job])
        lab.testbed.kill(other)
        wait_until(lambda: kept in lab.running() and lost not in lab.running(), "one is lost")
        assert lab.state()["nodes"][batch.nodes.index(other)]["up"] is False
        (lab.devices / other / "nvidia1").unlink()
        lab.testbed.restart(other)
        wait_until(lambda: "it has come back without nvidia1" in lab.said(), "it lacks a GPU")
        assert list(lab.running()) == [kept]
        (lab.root / "go").touch()
        wait_until(lambda: f"#{lost} show.x  completed" in lab.said(), "the lost one runs again")
        assert held({row.id: row for row in read_jobs(lab.log / "jobs.csv")}[lost]) == {batch.host: (0,)}
        process.terminate()
        lab.finish(process)


def test_a_killed_manager_and_the_next_keep_the_gpus(lab: Lab) -> None:
    with lab.testbed.allocation(4) as batch:
        wishes = [Wish(2, gpus_per_task=1), Wish(1, gpus_per_task=2), Wish(2, gpus_per_node=4),
                  Wish(1, gpus_per_task=1), Wish(4, gpus_per_task=2)]
        lab.queue(lab.line(wish, 0.05, "go") for wish in wishes)
        first = lab.start(batch, "--once")
        wait_until(lambda: len(lab.running()) == 3 and all(
            len(lab.shown(job)) == wishes[job].tasks for job in lab.running()), "three run")
        before = {job: (text, lab.shown(job)) for job, text in lab.running().items()}
        first.kill()
        first.wait()
        second = lab.start(batch, "--once")
        wait_until(lambda: lab.state()["manager"]["pid"] != first.pid and len(lab.running()) == 3,
                   "the next one follows them")
        assert {job: (text, lab.shown(job)) for job, text in lab.running().items()} == before
        (lab.root / "go").touch()
        said = lab.finish(second)
    assert second.returncode == 0, said
    check(lab.log, wishes)


def test_a_gpu_that_is_gone_when_the_next_manager_starts(lab: Lab) -> None:
    """The job that has it runs on to its end; nothing else is given it, and who needs two waits for
    nodes such as there were before."""
    with lab.testbed.allocation(2) as batch:
        lab.queue([lab.line(Wish(1, gpus_per_task=2), wait="go"), lab.line(Wish(1, gpus_per_task=2)),
                   lab.line(Wish(1, gpus_per_task=1))])
        stand_ins(lab.root / "more", dict.fromkeys(batch.nodes, 2))
        other = next(node for node in batch.nodes if node != batch.host)
        shutil.rmtree(lab.root / "more" / other)
        lab.devices = lab.root / "more"
        first = lab.start(batch, "--once")
        wait_until(lambda: len(lab.running()) == 1 and lab.shown(0), "one runs")
        first.kill()
        first.wait()
        (lab.devices / batch.host / "nvidia1").unlink()
        second = lab.start(batch, "--once")
        wait_until(lambda: ((lab.log / "state").exists() and lab.state()["manager"]["pid"] != first.pid)
                   or second.poll() is not None, "the next one has begun")
        (lab.root / "go").touch()
        wait_until(lambda: "#2 show.x  completed" in lab.said() or second.poll() is not None,
                   "the others are seen to")
        second.terminate()
        said = lab.finish(second)
    assert "Traceback" not in said, said
    rows = {row.id: row for row in read_jobs(lab.log / "jobs.csv")}
    assert {job: row.status for job, row in rows.items()} == {0: "completed", 2: "completed"}, said
    assert "1 job(s) still wait (1 of them for more nodes than there are)" in said


def test_a_request_that_no_node_can_meet_is_refused(lab: Lab) -> None:
    with lab.testbed.allocation(4) as batch:
        lab.queue([lab.line(Wish(1, gpus_per_task=5)), lab.line(Wish(1, gpus_per_task=4)),
                   lab.line(Wish(1, ansys=3)), lab.line(Wish(1), more="features=ib")])
        lab.finish(lab.start(batch, "--once"))
    rows = {row.id: row for row in read_jobs(lab.log / "jobs.csv")}
    assert {job: row.status for job, row in rows.items()} == {
        0: "refused", 1: "completed", 2: "refused", 3: "refused"}
    assert re.search(r"the nearest, n2: a rank wants 5 of gpu, a node has at most 4", rows[0].reason), rows[0].reason
    assert "ansys" in rows[2].reason and "ib" in rows[3].reason


@pytest.mark.parametrize("wrong, complaint", [
    ("none", "No such file or directory; name a directory that all nodes see"),
    ("card7", "card7: is the name of no device; wanted is nvidia0"),
])
def test_a_wrong_directory_of_stand_ins_is_one_message(lab: Lab, wrong: str, complaint: str) -> None:
    (lab.root / "wrong").mkdir()
    (lab.root / "wrong/card7").touch()
    path = lab.root / ("wrong" if wrong == "card7" else wrong)
    lab.queue([lab.line(Wish(1))])
    with lab.testbed.allocation(2) as batch:
        process = lab.start(batch, "--once", VRM_DEVICES=str(path))
        said = lab.finish(process)
    assert process.returncode == 2 and complaint in said and "Traceback" not in said


# ------------------------------------------------------------------ a Slurm that gives out GPUs


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Two nodes of four GPUs each."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Testbed(2, directory=tmp_path_factory.mktemp("slurm") / "cluster", gpus=4) as cluster:
        yield cluster


@pytest.mark.testbed
@pytest.mark.slow
@pytest.mark.parametrize("kind, mpirun, options, wanted", [
    *((*launcher, ["--gpus=5"], {"n0": [0, 1, 2, 3], "n1": [0]}) for launcher in [*LAUNCHERS, ("srun", "auto")]),
    *((kind, "auto", options, wanted) for kind in ("direct", "srun") for options, wanted in (
        (["--gres=gpu:2"], {"n0": [0, 1], "n1": [0, 1]}), (["--exclusive"], {"n0": [0, 1, 2, 3], "n1": [0, 1, 2, 3]}), ([], {}))),
])
def test_what_slurm_grants_is_used(slurm: Testbed, tmp_path: Path, kind: str, mpirun: str,
                                   options: Sequence[str], wanted: Mapping[str, list[int]]) -> None:
    """On all nodes, and under each launcher steps have the GPUs of their nodes."""
    lab = Lab(slurm, tmp_path, kind, mpirun)
    shutil.rmtree(lab.devices)
    stand_ins(lab.devices, {"n0": 4, "n1": 4})
    wishes = [Wish(1, gpus_per_task=1) for here in wanted.values() for _ in here] + [Wish(1), Wish(2)]
    if all(wanted.values()) and wanted and kind != "direct":
        wishes.append(Wish(2, gpus_per_node=1))
    lab.queue(lab.line(wish, 1) for wish in wishes)
    with slurm.allocation(2, *options) as batch:
        process = lab.start(batch, "--once")
        said = lab.finish(process)
        lab.close()
    assert process.returncode == 0, said
    rows = {row.id: row for row in read_jobs(lab.log / "jobs.csv")}
    used = sorted({(host, index) for row in rows.values() for host, here in held(row).items()
                   for index in here})
    assert used == [(host, index) for host, here in wanted.items() for index in here]
    assert {node["name"]: node["resources"].get(GPU, [0, 0])[1] for node in lab.state()["nodes"]} == {
        host: len(wanted.get(host, [])) for host in ("n0", "n1")}
    for job, row in rows.items():
        for task in seen(lab.log, row).values():
            assert len(task.gpus or ()) == (wishes[job].gpus_per_task or wishes[job].gpus_per_node)


# ---------------------------------------------------------------------- two vrm on one machine


@pytest.mark.mpi
def test_two_vrm_on_a_node_share_no_gpu(site: Site, tmp_path: Path) -> None:
    """Two batch jobs were granted one each, and not which; a third finds none left."""
    if read_topology().synthetic:
        pytest.skip("nothing is claimed on a machine that is made up")
    sites = [site, Site(tmp_path / "second"), Site(tmp_path / "third")]
    devices = tmp_path / "gpus"
    devices.mkdir()
    for number in range(2):
        (devices / f"nvidia{number}").touch()
    (tmp_path / "nodes").write_text(f"{os.uname().nodename}\n")
    qstat = tmp_path / "bin/qstat"
    qstat.parent.mkdir()
    cores = read_topology().cores
    qstat.write_text(f"#!/bin/sh\necho 'Job Id: '$2\necho '    exec_vnode = "
                     f"({os.uname().nodename}:ncpus={cores}:ngpus=1:mem=1048576kb)'\n")
    qstat.chmod(0o755)
    path = f"{qstat.parent}:{os.environ['PATH']}"
    try:
        for number, each in enumerate(sites):
            each.config(Nodes="auto", Sockets="auto", Cores="auto", Launcher={"Kind": "direct"},
                        Allocation={"Policy": "pack"})
            each.program("show.x", SHOW)
            each.lines(f"show.x 1 60 0 args='0.05 {tmp_path}/go' gpus_per_task=1")
            process = each.start("--once", PBS_NODEFILE=str(tmp_path / "nodes"), PBS_CONF_FILE="/none",
                                 PBS_JOBID=f"{number}.login", VRM_DEVICES=str(devices), PATH=path)
            if number < 2:
                output = each.log / "show.x.0.o"
                wait_until(lambda: output.exists() and output.read_text(), "it runs")
                assert f" sees {number} cpus" in output.read_text()
                state = wait_until(each.state, "the state file is there")
                assert state["nodes"][0]["resources"] == {
                    GPU: [0, 1], MEMORY: [1, 1]}
            else:
                said = each.finish(process)
                assert "nvidia0, nvidia1 are held by another vrm on this node, and left out" in said
                assert "1 job(s) still wait (1 of them for more nodes than there are)" in said
                assert each.statuses() == {}
    finally:
        (tmp_path / "go").touch()
        for each in sites[:2]:
            for process in each.started:
                each.finish(process)
        for each in sites[1:]:
            each.close()
    assert sites[0].statuses() == sites[1].statuses() == {0: "completed"}
