"""The whole program on a cluster: a real batch job, real mpiruns, nodes that are lost and come back.

Where ranks were, and when, is read from what they printed themselves.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Iterable, Iterator, Sequence

import pytest
import yaml
from conftest import LIMIT, mpiexecs, mpiruns, wait_until
from support.testbed import LOGIN, Batch, Testbed

from vrm.ext.sites.hydra import find_mpiexec
from vrm.live.launch.openmpi import find_mpirun
from vrm.live.launch.openmpi_output import strip_prefix
from vrm.live.nodes.topology import parse_cpu_list, read_topology
from vrm.live.relay.boot import MARK
from vrm.results.jobs import JobRow, read_jobs
from vrm.results.placement_text import parse_cores

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PROGRAMS = ("bt.S.x", "cg.S.x", "ep.S.x", "mg.S.x")
HEATMAP = "bt ep cg mg bt\ncg ep bt mg cg\nep mg cg bt ep\nmg ep bt cg mg\n"


class Seen(NamedTuple):
    """What a rank printed."""

    host: str
    cpus: frozenset[int]
    start: float
    end: float


class Cluster:
    """A directory with programs and a configuration, and vrm on the cluster."""

    def __init__(self, testbed: Testbed, root: Path, mpirun: str = "auto",
                 kind: str = "openmpi") -> None:
        """With `kind` srun, `mpirun` is an MPICH's, whose programs srun starts."""
        self.testbed = testbed
        self.root = root
        self.log = root / "log"
        self.marks = root / "marks"
        self.config_file = root / "vrm.yaml"
        self.managers: list[subprocess.Popen[str]] = []
        found = (find_mpirun if kind == "openmpi" else find_mpiexec)(mpirun)[0]
        self.launcher: dict[str, Any] = {"Kind": kind, "CheckBindings": "fail", **{
            "openmpi": {"Mpirun": found, "AllowRoot": True, "Transport": "tcp",
                        "Environment": {"OMPI_MCA_mpi_yield_when_idle": 1}},
            # UCX takes nodes for one machine whose memory they share.
            "hydra": {"Mpirun": found, "Environment": {"UCX_TLS": "tcp,self"}},
            # Slurm 22.05's pmi2 refuses some of the long addresses that ranks exchange over UCX; those of OFI are short.
            "srun": {"Options": ["--mpi=pmi2"], "Environment": {"MPIR_CVAR_CH4_NETMOD": "ofi"}}}[kind]}
        (root / "bin").mkdir(parents=True)
        self.marks.mkdir()
        name = re.sub("mpi(exec|run)(.hydra)?", "mpicc", Path(found).name)
        self.mpicc = shutil.which(Path(found).with_name(name)) or (
            shutil.which(name) if kind == "openmpi" else None)
        if not self.mpicc:
            pytest.skip(f"no {name} beside {found}")
        self.build("ranks.c", PROGRAMS)
        (root / "heatmap").write_text(HEATMAP)
        self.config()

    def build(self, source: str, names: Sequence[str]) -> None:
        """Compile a program of tests/support under these names."""
        program = self.root / "bin" / names[0]
        subprocess.run([str(self.mpicc), "-o", program, ROOT / "tests" / "support" / source], check=True)
        for name in names[1:]:
            shutil.copy(program, self.root / "bin" / name)

    def config(self, **keys: Any) -> None:
        """Write the configuration: strip, WFP3 and EASY, and what `keys` say over it."""
        settings: dict[str, Any] = {
            "Applications": {"Path": "bin", "Queue": "queue", "Heatmap": "heatmap"},
            "Scheduling": {"Algorithm": "WFP3", "Backfilling": "easy"},
            "Allocation": {"Policy": "strip"}, "Log": "log", "Grace": 2,
            "Launcher": self.launcher, "Learning": {"Store": str(self.root / "learned")}}
        settings.update(keys)
        self.config_file.write_text(yaml.safe_dump(settings))

    def queue(self, *lines: str) -> None:
        """Write the queue file."""
        (self.root / "queue").write_text("".join(line + "\n" for line in (*lines, "end")))

    def line(self, app: str, procs: int, seconds: float, name: str, wait: str = "never",
             more: str = "") -> str:
        """A job whose ranks stay for so many seconds, or until somebody makes the file `wait`."""
        return f"{app} {procs} 60 0 args='{self.marks} {name} {wait} {seconds}' {more}"

    def start(self, batch: Batch | None = None) -> subprocess.Popen[str]:
        """Start vrm on the batch job's first node, or on n0 without Slurm."""
        self.managers.append(self.testbed.popen(
            batch.host if batch else "n0",
            [sys.executable, "-m", "vrm.cli", "-c", self.config_file],
            env={**(batch.env if batch else {}), "PYTHONUNBUFFERED": "1",
                 "PYTHONPATH": str(ROOT)}, cwd=self.root, text=True,
            stdout=open(self.root / "said", "w"), stderr=subprocess.STDOUT))
        return self.managers[-1]

    def submit(self, nodes: int) -> str:
        """Submit the script that vrm writes for so many nodes; the batch job's number."""
        made = self.vrm("script", "--slurm", "-N", str(nodes), "-t", "10m", "--exclusive", "-o",
                        str(self.root / "vrm.slurm"))
        assert made.returncode == 0, made.stderr
        return self.testbed.exec(LOGIN, [
            "sbatch", "--parsable", "-o", self.root / "said", self.root / "vrm.slurm"],
            cwd=self.root, env={"PYTHONPATH": str(ROOT)}, check=True).stdout.strip()

    def wait_for_batch(self, job: str, limit: float = LIMIT) -> None:
        """Until a batch job has ended by itself."""
        wait_until(lambda: not self.testbed.exec(LOGIN, ["squeue", "-h", "-j", job]).stdout.strip(),
                   f"the batch job has ended; vrm said:\n{self.said()}", limit)

    def left(self) -> list[str]:
        """The processes of this directory's programs on all nodes that are on."""
        return [f"{node}: {line}" for node in self.testbed.nodes if self.testbed.alive(node)
                for line in self.testbed.pids(node).values() if f"{self.root}/bin/" in line]

    def finish(self, process: subprocess.Popen[str], limit: float = 90) -> str:
        """Wait for vrm to end and return what it printed."""
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            pytest.fail(f"vrm did not end within {limit:g} s:\n{self.said()}")
        return self.said()

    def said(self) -> str:
        """What vrm has printed so far."""
        return (self.root / "said").read_text()

    def vrm(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`vrm -c CONFIG WORDS` on the login node."""
        return self.testbed.exec(LOGIN, [sys.executable, "-m", "vrm.cli", "-c", self.config_file,
                                         *words], env={"PYTHONPATH": str(ROOT)}, cwd=self.root)

    def state(self) -> dict[str, Any]:
        """The state file."""
        return json.loads((self.log / "state").read_text())

    def nodes_of_jobs(self) -> dict[int, list[str]]:
        """The nodes of the running jobs that the state file knows."""
        return {job["id"]: job["nodes"] for job in self.state()["jobs"] if "nodes" in job}

    def rows(self) -> dict[int, JobRow]:
        """The lines of jobs.csv."""
        return {row.id: row for row in read_jobs(self.log / "jobs.csv")}

    def seen(self, row: JobRow) -> dict[int, Seen]:
        """What every rank of a job printed."""
        begun: dict[int, tuple[str, frozenset[int], float]] = {}
        found: dict[int, Seen] = {}
        for line in (self.log / f"{row.app}.{row.id}.o").read_text().splitlines():
            words = strip_prefix(line).split()
            if words[:1] == ["rank"] and "start" in words:
                said = dict(zip(words[::2], words[1::2]))
                begun[int(said["rank"])] = (said["on"], parse_cpu_list(said["cpus"]),
                                            float(said["start"]))
                assert said["job"] == str(row.id)
            elif words[:1] == ["rank"]:
                found[int(words[1])] = Seen(*begun[int(words[1])], float(words[3]))
        return found

    def check_jobs(self, jobs: Iterable[int]) -> int:
        """These jobs completed with all of their ranks on the nodes and cores that were planned,
        and no core was used by two at a time. The number of pairs that shared a socket meanwhile.
        """
        known = self.rows()
        rows = {job_id: known[job_id] for job_id in jobs}
        # Hydra reports none: they are read on the nodes when a job has run for a second.
        bindings = ("ok", "unchecked") if self.launcher["Kind"] == "hydra" else ("ok",)
        where: dict[int, dict[tuple[str, int], set[int]]] = {}
        for job_id, row in rows.items():
            assert row.status == "completed" and row.binding in bindings, (row, self.said())
            ranks = self.seen(row)
            assert sorted(ranks) == list(range(row.procs))
            planned = [(host, place.socket, core) for host, places in parse_cores(row.cores)
                       for place in places for core in range(place.first, place.last + 1)]
            assert [ranks[rank].host for rank in sorted(ranks)] == [host for host, _, _ in planned]
            if not self.testbed.synthetic:
                assert [ranks[rank].cpus for rank in sorted(ranks)] == [
                    frozenset(read_topology().core(socket, core).cpus)
                    for _, socket, core in planned]
            for host, places in parse_cores(row.cores):
                for place in places:
                    where.setdefault(job_id, {}).setdefault((host, place.socket), set()).update(
                        range(place.first, place.last + 1))
        shared = 0
        for one, other in combinations(rows, 2):
            for host, socket in where[one].keys() & where[other].keys():
                first, second = rows[one], rows[other]
                if max(first.start or 0, second.start or 0) < min(first.end or 0, second.end or 0):
                    assert not where[one][host, socket] & where[other][host, socket]
                    shared += 1
        return shared

    def close(self) -> None:
        """End what the test has started."""
        for process in self.managers:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def cluster(testbed: Testbed, tmp_path: Path) -> Iterator[Cluster]:
    """A directory on the cluster."""
    made = Cluster(testbed, tmp_path / "site")
    yield made
    made.close()
    for node in testbed.nodes:
        if not testbed.alive(node):
            testbed.restart(node)


def test_sbatch_runs_a_recorded_queue_of_fifty_jobs_under_strip(cluster: Cluster) -> None:
    draw, asked = random.Random(7), cluster.marks / "asked"  # two jobs run until then
    cluster.config(Replay={"Speed": 1})
    (cluster.root / "queue").write_text("".join(
        f"{draw.choice(PROGRAMS)} {draw.choice([1, 2, 4, 4, 8, 8, 16])} {draw.randint(2, 20)} "
        f"{int(draw.random() < 0.05)} {draw.choice(['0', '0.1', '0.2'])} "
        f"args='{cluster.marks} j{number} "
        f"{asked.name if number < 2 else 'never'} {90 if number < 2 else draw.choice([0.2, 0.5, 0.8])}'\n"
        for number in range(50)) + "end\n")
    job = cluster.submit(8)
    try:
        wait_until(lambda: (cluster.log / "state").exists() and len(
            [job for job in cluster.state()["jobs"] if job["state"] == "running"]) >= 2,
            "two jobs run")
        queue, state = cluster.vrm("-i", "queue"), cluster.vrm("-i", "state")
        assert "WFP3 + EASY, strip" in queue.stdout and " R " in queue.stdout
        assert all(f"| {node} " in state.stdout for node in cluster.testbed.nodes), state
        asked.touch()
        cluster.wait_for_batch(job, limit=150)
    finally:
        cluster.testbed.exec(LOGIN, ["scancel", job])
    assert "50 completed" in cluster.said(), cluster.said()
    assert sorted(cluster.rows()) == [*range(50)] and cluster.check_jobs(range(50)) >= 10
    cluster.testbed.wait_for_slurm(cluster.testbed.nodes)
    assert not cluster.left()


@pytest.mark.parametrize("mpirun", mpiruns())
@pytest.mark.slow
def test_over_ssh_with_a_host_file(testbed: Testbed, tmp_path: Path, mpirun: str) -> None:
    cluster = Cluster(testbed, tmp_path / "site", mpirun)
    (cluster.root / "hosts").write_text("n[0-2]\nn9  # there is no such node\n")
    cluster.config(Hosts={"File": "hosts", "Reach": "ssh", "Timeout": 20})
    cluster.queue(*(cluster.line(PROGRAMS[number % 4], procs, 0.5, f"j{number}")
                    for number, procs in enumerate([8, 6, 2, 12, 4, 3, 8, 1])))
    try:
        said = cluster.finish(cluster.start())
    finally:
        cluster.close()
    assert "n9 is left out" in said
    assert "8 completed" in said
    assert sorted(cluster.rows()) == [*range(8)] and cluster.check_jobs(range(8)) >= 2


def steps_of(batch: Batch, testbed: Testbed) -> int:
    """How many steps a batch job has had: they are numbered."""
    done = testbed.exec(batch.host, ["srun", "--overlap", "-N1", "-n1", "-w", batch.host, "printenv", "SLURM_STEP_ID"],
                        env=batch.env, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("kind, mpirun", [
    *(("openmpi", mpirun) for mpirun in mpiruns()), *(("hydra", mpiexec) for mpiexec in mpiexecs())])
@pytest.mark.slow
def test_jobs_on_several_nodes_make_no_steps(testbed: Testbed, tmp_path: Path, kind: str, mpirun: str) -> None:
    """Their daemons are children of vrm's processes on the nodes; a site that accounts by step gets one for each."""
    made = {}
    for steps, jobs in (("shared", 8), ("each", 4)):
        cluster = Cluster(testbed, tmp_path / steps, mpirun, kind)
        cluster.config(Hosts={"Steps": steps}, Allocation={"Policy": "compact"})
        cluster.queue(*(cluster.line("bt.S.x", 16, 0.1, f"j{number}") for number in range(jobs)))
        try:
            with testbed.allocation(4, "--exclusive") as batch:
                said = cluster.finish(cluster.start(batch))
                made[steps] = steps_of(batch, testbed)
        finally:
            cluster.close()
        assert f"{jobs} completed" in said, said
        cluster.check_jobs(range(jobs))
        assert {len({rank.host for rank in cluster.seen(row).values()}) for row in cluster.rows().values()} == {2}
        assert not cluster.left()
    assert made["shared"] == 1 and made["each"] >= 1 + 4, made  # one for all nodes, and one for each job


def means(steps: int) -> list[float]:
    """The means of both fields of tests/support/exchange.c after so many steps."""
    first, second = 1.0, 2.0
    for _ in range(steps):
        first, second = (3 * first + second) / 4, (3 * second + first) / 4
    return [first, second]


@pytest.mark.parametrize("policy", ["strip", "pack"])
@pytest.mark.parametrize("kind, mpirun", [
    *(("openmpi", mpirun) for mpirun in mpiruns()), *(("hydra", mpiexec) for mpiexec in mpiexecs()),
    *(("srun", mpiexec) for mpiexec in mpiexecs())])
@pytest.mark.slow
def test_two_programs_exchange_a_field(testbed: Testbed, tmp_path: Path, kind: str, mpirun: str, policy: str) -> None:
    """Two codes of different widths on two nodes are one MPI_COMM_WORLD, each rank on the cores that are its own."""
    cluster = Cluster(testbed, tmp_path / "site", mpirun, kind)
    cluster.build("exchange.c", ["ocean.x", "atmos.x"])
    cluster.config(Allocation={"Policy": policy})
    cluster.queue("model 9 60 0 coupled='ocean.x 6 nodes=2 args=20 : atmos.x 3 cores=2 args=20'",
                  # srun kills what aborts, and Hydra waits where ranks exit without a word.
                  "bad 3 60 0 coupled='ocean.x 2 args=\"3 0 {0}\" : atmos.x 1 args=\"3 0 {0}\"'".format(
                      -5 if kind == "srun" else 5),
                  "late 3 60 0 coupled='ocean.x 2 args=20 : ranks.x 1'", cluster.line("bt.S.x", 2, 0.1, "j"))
    try:
        with testbed.allocation(2, "--exclusive") as batch:
            said = cluster.finish(cluster.start(batch))
    finally:
        cluster.close()
    rows = cluster.rows()
    assert {job: row.status for job, row in rows.items()} == {
        0: "completed", 1: "failed", 2: "refused", 3: "completed"}, said
    assert rows[1].exit_code == 5 and "ranks.x does not exist" in rows[2].reason
    assert rows[0].binding in (("ok",) if kind == "openmpi" else ("ok", "unchecked")), said
    text = (cluster.log / "model.0.o").read_text()
    for code, mean in enumerate(means(20)):
        assert f"code {code} mean {mean:.9f}" in text
    ranks = sorted((int(found[1]), found[2], found[3], int(found[4]), found[5]) for found in re.finditer(
        r"rank (\d+) of 9 on (\S+) cpus (\S+) context (\S+) threads (\d)", text))
    assert [(rank, context, threads) for rank, _, _, context, threads in ranks] == [
        (rank, int(rank > 5) if kind != "srun" else -1, "12"[rank > 5]) for rank in range(9)]
    planned = [(host, place.socket, core) for host, places in parse_cores(rows[0].cores)
               for place in places for core in range(place.first, place.last + 1)]
    mine = [planned[at:at + 1] for at in range(6)] + [planned[at:at + 2] for at in (6, 8, 10)]
    assert len(planned) == len(set(planned)) == 12 and all(len({each[:2] for each in cores}) == 1 for cores in mine)
    assert [host for _, host, _, _, _ in ranks] == [cores[0][0] for cores in mine]
    assert len({host for _, host, _, _, _ in ranks[:6]}) == 2
    if not testbed.synthetic:
        assert [parse_cpu_list(cpus) for _, _, cpus, _, _ in ranks] == [
            frozenset(cpu for _, socket, core in cores for cpu in read_topology().core(socket, core).cpus) for cores in mine]
    assert not cluster.left()


@pytest.mark.parametrize("kind, mpirun", [
    *(("openmpi", mpirun) for mpirun in mpiruns()), *(("hydra", mpiexec) for mpiexec in mpiexecs()),
    *(("srun", mpiexec) for mpiexec in mpiexecs())])
@pytest.mark.slow
def test_both_programs_of_a_coupled_job_share_its_fate(testbed: Testbed, tmp_path: Path, kind: str, mpirun: str) -> None:
    """One is cancelled, one is requeued, one loses the node of its second program, and one reaches its limit."""
    cluster = Cluster(testbed, tmp_path / "site", mpirun, kind)
    cluster.config(Allocation={"Policy": "pack"}, Walltime="kill", Grace=0.5, Hosts={"Timeout": 4})

    def pair(name: str, limit: int, other: str) -> str:
        said = f'args="{cluster.marks} {name} go 60"'
        return f"{name} 4 {limit} 0 coupled='bt.S.x 2 nodelist=n0 {said} : cg.S.x 2 nodelist={other} {said}'"

    def started(name: str) -> bool:
        return len(list(cluster.marks.glob(f"{name}.*"))) == 4

    def ranks(name: str) -> list[str]:
        return [line for line in cluster.left() if f" {name} go " in line]

    cluster.queue(pair("gone", 60, "n1"), pair("again", 60, "n1"), pair("lost", 60, "n2"), pair("late", 8, "n1"))
    try:
        with testbed.allocation(3, "--exclusive", "-w", "n[0-2]") as batch:
            process = cluster.start(batch)
            wait_until(lambda: all(map(started, ("gone", "again", "lost", "late"))), "all ranks have started")
            assert cluster.vrm("cancel", "0").returncode == 0
            wait_until(lambda: 0 in cluster.rows(), "the first has ended")
            wait_until(lambda: not ranks("gone"), "nothing is left of it on either node")
            for name in ("again", "lost"):
                for mark in cluster.marks.glob(f"{name}.*"):
                    mark.unlink()
            assert cluster.vrm("requeue", "1").returncode == 0
            wait_until(lambda: started("again"), "the second runs again")
            testbed.kill("n2")
            wait_until(lambda: "waits again: interrupted" in cluster.said(), "the third waits")
            wait_until(lambda: not ranks("lost"), "its first program has ended, too")
            wait_until(lambda: 3 in cluster.rows(), "the fourth has reached its limit")
            testbed.restart("n2")
            wait_until(lambda: started("lost"), "the third runs again")
            (cluster.marks / "go").touch()
            said = cluster.finish(process)
    finally:
        cluster.close()
        if not testbed.alive("n2"):
            testbed.restart("n2")
    assert {job: row.status for job, row in cluster.rows().items()} == {
        0: "cancelled", 1: "completed", 2: "completed", 3: "timeout"}, said
    for job, other in ((1, "n1"), (2, "n2")):
        text = (cluster.log / f"{cluster.rows()[job].app}.{job}.o").read_text()
        on = dict(re.findall(r"rank (\d) of 4 on (\S+) ", text))
        assert on == {"0": "n0", "1": "n0", "2": other, "3": other}
    assert not cluster.left()


HETEROGENEOUS = """#!/bin/sh
#SBATCH -n 2 -w n0 -o out
#SBATCH hetjob
#SBATCH -n 1 -c 2 -w n1
cd {root}/bin
srun ./ocean.x 20 : ./atmos.x 20
echo "both $?"
srun -n 1 ./ocean.x 3 : --het-group=0 -n 1 -c 1 ./atmos.x 3
echo "first $?"
srun --het-group=0,1 ./ranks.x {root}/marks all
echo "all $?"
"""
"""The second step has both programs on the first component's cores, the third one program on those of both."""


@pytest.mark.parametrize("kind, mpirun", [
    *(("openmpi", mpirun) for mpirun in mpiruns()), *(("hydra", mpiexec) for mpiexec in mpiexecs()),
    *(("srun", mpiexec) for mpiexec in mpiexecs())])
@pytest.mark.slow
def test_a_heterogeneous_job_of_slurm_runs_mpi_programs(real: Testbed, tmp_path: Path, kind: str, mpirun: str) -> None:
    """Each srun of its script is one MPI_COMM_WORLD over both components; each rank has the cores of its own."""
    cluster = Cluster(real, tmp_path / "site", mpirun, kind)
    cluster.build("exchange.c", ["ocean.x", "atmos.x"])
    cluster.build("ranks.c", ["ranks.x"])
    cluster.config(Allocation={"Policy": "pack"}, Nodes=2, Sockets=1, Cores=2)
    (cluster.root / "het.sh").write_text(HETEROGENEOUS.format(root=cluster.root))
    with real.allocation(2, "--exclusive", "-w", "n[0-1]") as batch:
        done = real.exec(batch.host, [sys.executable, "-m", "vrm.cli", "-c", cluster.config_file, "run", "--",
                                      "sbatch", "--wait", "het.sh"], env={**batch.env, "PYTHONPATH": str(ROOT)}, cwd=cluster.root)
    text = (cluster.root / "out").read_text()
    assert done.returncode == 0, (done, text)
    assert [line for line in text.splitlines() if line[-2:] == " 0"] == ["both 0", "first 0", "all 0"], text
    cpus = [frozenset(read_topology().core(0, core).cpus) for core in (0, 1)]
    seen = {(found[1], found[2], parse_cpu_list(found[3]), found[4]) for found in re.finditer(
        r"rank (\d of \d) on (\S+) (?:pid \d+ )?cpus (\S+) (?:context \S+ threads (\d)|job)", text)}
    both = {(f"{rank} of 3", "n0", cpus[rank]) for rank in (0, 1)}, ("2 of 3", "n1", cpus[0] | cpus[1])
    assert seen == {*((*each, "1") for each in both[0]), (*both[1], "2"), *((*each, None) for each in (*both[0], both[1])),
                    *((f"{rank} of 2", "n0", cpus[rank], "1") for rank in (0, 1))}, text
    for steps in (20, 3):
        for code, mean in enumerate(means(steps)):
            assert f"code {code} mean {mean:.9f}" in text
    assert not cluster.left()


INSIDE = """#!/bin/sh
# Each script runs two mpiruns over its nodes, one after the other; the nodes' names go to a file.
for number in 0 1; do
    {mpirun} -n 2 {program} >>{folder}/$VRM_JOB_ID.$(hostname) || exit 1
done
"""


@pytest.mark.parametrize("kind, mpirun", [
    *(("openmpi", mpirun) for mpirun in mpiruns()), *(("hydra", mpiexec) for mpiexec in mpiexecs())])
@pytest.mark.slow
def test_an_mpirun_in_a_script_makes_no_step_wherever_the_script_is(
        real: Testbed, tmp_path: Path, kind: str, mpirun: str) -> None:
    """Three scripts on two nodes each: one of them on the manager's node, the others reach that node and each other's."""
    cluster = Cluster(real, tmp_path / "site", mpirun, kind)
    (cluster.root / "bin" / "inside").write_text(INSIDE.format(
        mpirun=shutil.which(cluster.launcher.get("Mpirun", mpirun)) or mpirun, program="/bin/hostname", folder=cluster.root))
    (cluster.root / "bin" / "inside").chmod(0o755)
    cluster.config(Allocation={"Policy": "pack"}, Nodes=3, Sockets=1, Cores=2, Hosts={"Timeout": 20})
    cluster.queue(*(f"inside 2 60 script=1 nodes=2 nodelist={','.join(pair)}" for pair in (
        ("n0", "n1"), ("n1", "n2"), ("n2", "n1"))))
    try:
        with real.allocation(3, "--exclusive", "-w", "n[0-2]") as batch:
            said = cluster.finish(cluster.start(batch))
            made = steps_of(batch, real)
    finally:
        cluster.close()
    assert "3 completed" in said, said + "".join(path.read_text() for path in cluster.log.glob("*.e"))
    on = {path.name: sorted({*path.read_text().split()}) for path in cluster.root.glob("[0-2].*")}
    assert sorted(on.values()) == [["n0", "n1"], ["n1", "n2"], ["n1", "n2"]], on
    assert {name.partition(".")[2] for name in on} == {"n0", "n1"}, "scripts were on the manager's node, and on another"
    assert made == 1 and not cluster.left(), said


PYTHON = r"\S*python[\d.]* .*"
VICTIMS = {"relay": PYTHON + r"/relay\.py ", "runner": PYTHON + re.escape(MARK[:-1]), "srun": "srun --overlap -N",
           "agent of mpirun": r"(?s)sh -c read -r code said .* n1$", "daemon of mpirun": r"(\S*/)?orted "}
"""The processes of a job on two nodes, by their command lines."""


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.slow
def test_a_killed_process_of_vrm_costs_a_job_one_try_at_most(cluster: Cluster, victim: str) -> None:
    """Where it is vrm's connection to a node that ends, the job runs again; where it is mpirun's own, it has failed."""
    cluster.config(Allocation={"Policy": "compact"}, Hosts={"Timeout": 5})
    cluster.queue(cluster.line("bt.S.x", 16, 60, "a", "go"), cluster.line("cg.S.x", 8, 60, "b", "go"))
    with cluster.testbed.allocation(3, "--exclusive", "-w", "n[0-2]") as batch:
        process = cluster.start(batch)
        wait_until(lambda: len(list(cluster.marks.iterdir())) == 24, "all ranks have started")
        began = cluster.state()["jobs"][0]["start"]
        node = batch.nodes[1] if victim in ("runner", "daemon of mpirun") else batch.host
        pids = [pid for pid, line in cluster.testbed.pids(node).items() if re.match(VICTIMS[victim], line)]
        assert pids
        cluster.testbed.exec(node, ["kill", "-9", *pids])  # an agent may have gone with its runner
        again = victim not in ("agent of mpirun", "daemon of mpirun")
        if again:
            wait_until(lambda: any(job["id"] == 0 and job.get("start", began) > began for job in cluster.state()["jobs"]),
                       "the job runs again")
        else:
            wait_until(lambda: 0 in cluster.rows(), "the job has ended")
        (cluster.marks / "go").touch()
        said = cluster.finish(process)
    rows = cluster.rows()
    assert {job: row.status for job, row in rows.items()} == {0: "completed" if again else "failed", 1: "completed"}, said
    assert not cluster.left()


STAYS = f"""#!/bin/sh
trap '' TERM INT HUP
[ "$1" ] || while :; do sleep 0.1; done
setsid "$0" &
"$(dirname "$0")/{PROGRAMS[0]}" "$@"
"""
"""Ranks that are deaf to signals, and leave something in a session of its own."""


@pytest.mark.parametrize("how, kind, mpiexec", [
    (how, kind, mpiexec) for mpiexec in mpiexecs()
    for how, kind in (("sbatch", "hydra"), ("sbatch", "srun"), ("ssh", "hydra"))])
@pytest.mark.slow
def test_the_other_launchers_on_several_nodes(real: Testbed, tmp_path: Path, how: str, kind: str,
                                              mpiexec: str) -> None:
    """Two jobs at a time on all nodes, each on cores of its own; one of them is cancelled."""
    cluster = Cluster(real, tmp_path / "site", mpiexec, kind)

    def all_have_started(jobs: str) -> bool:
        return len(list(cluster.marks.glob(f"[{jobs}].?"))) == 6

    (cluster.root / "bin" / "stays").write_text(STAYS)
    (cluster.root / "bin" / "stays").chmod(0o755)
    (cluster.root / "hosts").write_text("n[0-2]\n")
    cluster.config(Sockets=1, Cores=2, Grace=0.5,
                   **({"Hosts": {"File": "hosts"}} if how == "ssh" else {}))
    cluster.queue(cluster.line("bt.S.x", 3, 60, "a", "met"),
                  cluster.line("cg.S.x", 3, 60, "b", "met"),
                  cluster.line("stays", 3, 60, "c", "never"),
                  cluster.line("ep.S.x", 3, 60, "d", "go"))
    job = cluster.submit(3) if how == "sbatch" else ""
    process = None if job else cluster.start()
    try:
        wait_until(lambda: all_have_started("ab"), "the first two jobs have met on all nodes")
        (cluster.marks / "met").touch()
        wait_until(lambda: all_have_started("cd"), "the ranks of the last two jobs have started")
        assert len([line for line in cluster.left() if "stays" in line]) >= 6
        assert cluster.vrm("cancel", "2").returncode == 0
        wait_until(lambda: 2 in cluster.rows(), "the job has ended")
        wait_until(lambda: not [line for line in cluster.left() if "stays" in line],
                   "nothing is left of it")
        assert cluster.rows()[2].status == "cancelled" and 3 not in cluster.rows()
        wait_until(lambda: cluster.state()["jobs"][0]["binding"] == "ok", "the other is bound")
        (cluster.marks / "go").touch()
        cluster.finish(process) if process else cluster.wait_for_batch(job)
    finally:
        cluster.testbed.exec(LOGIN, ["scancel", job]) if job else cluster.close()
    assert cluster.check_jobs([0, 1, 3]) >= 3, "the first two met on each node"
    assert all(rank.end - rank.start < 60 for rank in cluster.seen(cluster.rows()[3]).values())
    assert not cluster.left()
    for job_id, app in ((0, "bt.S.x"), (1, "cg.S.x"), (3, "ep.S.x")):
        # What sbatch was told of tasks is not for the srun of a step.
        assert "--ntasks-per-node" not in (cluster.log / f"{app}.{job_id}.e").read_text()


@pytest.mark.parametrize("kind, mpiexec", [
    (kind, mpiexec) for mpiexec in mpiexecs() for kind in ("hydra", "srun")])
@pytest.mark.slow
def test_ranks_that_are_not_bound_are_found_on_their_nodes(real: Testbed, tmp_path: Path,
                                                           kind: str, mpiexec: str) -> None:
    """A launcher that binds nothing, as one that its site has wrapped."""
    cluster = Cluster(real, tmp_path / "site", mpiexec, kind)
    if kind == "srun":
        cluster.launcher["Options"].append("--cpu-bind=none")
    else:
        wrapped = cluster.root / "mpiexec"
        wrapped.write_text("#!/bin/sh\nfor word; do\n  shift\n"
                           "  case $word in user:*) word=none;; esac\n"
                           '  set -- "$@" "$word"\ndone\n'
                           f'exec {cluster.launcher["Mpirun"]} "$@"\n')
        wrapped.chmod(0o755)
        cluster.launcher["Mpirun"] = str(wrapped)
    cluster.config(Sockets=1, Cores=2)
    cluster.queue(cluster.line("bt.S.x", 2, 60, "a"))
    with real.allocation(2, "--exclusive") as batch:
        said = cluster.finish(cluster.start(batch))
    row = cluster.rows()[0]
    assert (row.status, row.binding) == ("failed", "mismatch"), said
    assert "its ranks were not where they should be" in row.reason
    for rank, node in enumerate(batch.nodes):
        assert f"rank {rank} of {node}: may use CPU " in said
    assert not cluster.left()


def test_a_node_that_is_powered_off_takes_its_job_alone_and_is_used_again(
        cluster: Cluster) -> None:
    """The lost job is repeated elsewhere, its neighbour goes on, and the node comes back. With
    `Interrupted: mark` a lost node is a failure, and needs a retry."""
    cluster.config(Allocation={"Policy": "compact"}, Cores=1, Grace=0.5, Hosts={"Timeout": 4},
                   Interrupted="mark")
    cluster.queue(cluster.line("bt.S.x", 2, 60, "keeps", "go"),
                  cluster.line("cg.S.x", 4, 60, "lost", "go", more="retries=1"),
                  cluster.line("ep.S.x", 4, 60, "gone", "never"),
                  cluster.line("mg.S.x", 12, 0.1, "all", more="after=any:2"))
    with cluster.testbed.allocation(6, "--exclusive") as batch:
        process = cluster.start(batch)
        wait_until(lambda: len(list(cluster.marks.iterdir())) == 10, "all ranks have started")
        first = wait_until(lambda: (found := cluster.nodes_of_jobs()).keys() >= {0, 1, 2} and found,
                           "the state tells of all three")
        assert first[0] == [batch.host] and len(set(first[1]) | set(first[2])) == 4
        cluster.testbed.kill(first[1][1])
        cluster.testbed.kill(first[2][1])
        wait_until(lambda: 2 in cluster.rows(), "the job without retries has ended")
        wait_until(lambda: [job for job in cluster.state()["jobs"] if job["id"] == 1
                            and job["state"] == "running" and job["nodes"] != first[1]],
                   "the other one runs elsewhere")
        down = {node["name"] for node in cluster.state()["nodes"] if not node["up"]}
        assert down == {first[1][1], first[2][1]}
        (cluster.marks / "go").touch()
        wait_until(lambda: {0, 1} <= set(cluster.rows()), "both have ended")
        assert cluster.testbed.alive(batch.host) and process.poll() is None
        for node in sorted(down):
            cluster.testbed.restart(node)
        said = cluster.finish(process)
    rows = cluster.rows()
    assert {job_id: row.status for job_id, row in rows.items()} == {
        0: "completed", 1: "completed", 2: "failed", 3: "completed"}, said
    assert first[2][1] in rows[2].reason
    assert {seen.host for seen in cluster.seen(rows[3]).values()} == set(
        batch.nodes), "the last job needs all nodes, those that came back, too"
    assert "retry 1 of 1" in said


def test_an_ensemble_goes_on_without_a_node_and_with_it_again(testbed: Testbed, tmp_path: Path
                                                              ) -> None:
    """Programs without MPI on three nodes that are reached by ssh. One is switched off: what ran
    there was interrupted, waits again without a retry and runs when the node is back; what waits
    does not end there, too, one after the other."""
    (tmp_path / "bin").mkdir()
    for name, script in (("stays", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"),
                         ("short", "exit 0")):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/$(hostname).ran\n{script}\n")
        program.chmod(0o755)
    (tmp_path / "hosts").write_text("n[0-2]\n")
    (tmp_path / "queue").write_text(3 * "stays 4 60 0\n" + 30 * "short 1 60 0 retries=1\n")
    config = tmp_path / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Sockets": 1, "Cores": 4, "Log": "log",
        "Allocation": {"Policy": "pack"}, "Launcher": {"Kind": "direct"},
        "Hosts": {"File": "hosts", "Timeout": 4}}))

    def ran(node: str) -> list[str]:
        file = tmp_path / f"{node}.ran"
        return file.read_text().split() if file.exists() else []

    def rows() -> dict[int, str]:
        return {row.id: row.status for row in read_jobs(tmp_path / "log" / "jobs.csv")}

    with open(tmp_path / "said", "w") as said:
        process = testbed.popen("n0", [sys.executable, "-m", "vrm.cli", "-c", config, "--once"],
                                env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path, stdout=said,
                                stderr=said)
        try:
            wait_until(lambda: all(map(ran, ("n0", "n1", "n2"))), "all three run")
            testbed.kill("n2")
            wait_until(lambda: "n2 is down" in (tmp_path / "said").read_text(), "that is known")
            wait_until(lambda: "waits again: interrupted" in (tmp_path / "said").read_text(),
                       "what ran there waits")
            assert not rows()
            testbed.restart("n2")
            wait_until(lambda: ran("n2")[:2] == ["stays"] * 2, "it runs again")
            (tmp_path / "go").touch()
            assert process.wait(LIMIT) == 0, (tmp_path / "said").read_text()
        finally:
            process.kill()
            process.wait()
            if not testbed.alive("n2"):
                testbed.restart("n2")
    assert list(rows().values()) == ["completed"] * 33, (tmp_path / "said").read_text()
    assert sorted(ran("n0") + ran("n1") + ran("n2")) == 30 * ["short"] + 4 * ["stays"]


@pytest.mark.parametrize("kind, mpirun, when", [
    ("direct", "", "ended"), ("direct", "", "at once"), ("srun", "", "at once"), ("srun", "", "back"),
    *(("openmpi", each, "at once") for each in mpiruns()),
    *(("hydra", each, when) for each in mpiexecs() for when in ("at once", "back"))])
def test_a_node_that_is_lost_while_no_manager_runs_interrupts_its_jobs(
        real: Testbed, tmp_path: Path, kind: str, mpirun: str, when: str) -> None:
    """Its jobs wait again, and what runs on another node goes on. The next manager begins at once, when the end of the
    job is recorded (an mpirun does not see the loss for minutes), or when the node is back."""
    launcher = {"Kind": kind}
    if kind in ("openmpi", "hydra"):
        launcher = Cluster(real, tmp_path / "other", mpirun, kind).launcher
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "stays"
    program.write_text(f"#!/bin/sh\necho $VRM_JOB_ID $(hostname) >> {tmp_path}/ran\n"
                       f"until [ -e {tmp_path}/go.$VRM_JOB_ID ]; do sleep 0.05; done\n")
    program.chmod(0o755)
    (tmp_path / "hosts").write_text("n[0-2]\n")
    ranks = (1, 1) if kind == "direct" else (2, 4)  # that say so
    (tmp_path / "queue").write_text(f"stays 2 99 0\nstays {2 if kind == 'direct' else 4} 99 0\nend\n")
    config = tmp_path / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Sockets": 1, "Cores": 2, "Log": "log", "Grace": 0.5,
        "Allocation": {"Policy": "pack"}, "Launcher": launcher, "Hosts": {"File": "hosts", "Timeout": 3}}))

    def ran(job: int) -> list[str]:
        file = tmp_path / "ran"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split()[1] for line in lines if line.startswith(f"{job} ")]

    def start(batch: Batch | None) -> subprocess.Popen[str]:
        with open(tmp_path / "said", "a") as said:
            return real.popen(batch.host if batch else "n0", [sys.executable, "-m", "vrm.cli", "-c", config, "--wait"], text=True,
                              env={**(batch.env if batch else {}), "PYTHONPATH": str(ROOT)}, cwd=tmp_path, stdout=said,
                              stderr=said)

    with real.allocation(3, "--exclusive") if kind == "srun" else nullcontext() as batch:
        process = start(batch)
        try:
            wait_until(lambda: (len(ran(0)), len(ran(1))) == ranks, "both run")
            process.kill()
            process.wait()
            lost = max(ran(1))
            real.kill(lost)
            if when == "back":
                real.restart(lost)
            elif when == "ended":
                wait_until(lambda: (tmp_path / "log" / "ended" / "1").exists(), "its end is recorded")
            process = start(batch)
            (tmp_path / "go.0").touch()
            wait_until(lambda: len(ran(1)) == 2 * ranks[1], "it runs again")
            (tmp_path / "go.1").touch()
            process.wait(LIMIT)
        finally:
            process.kill()
            process.wait()
            for node in real.nodes:
                if not real.alive(node):
                    real.restart(node)
    said = (tmp_path / "said").read_text()
    assert [row.status for row in read_jobs(tmp_path / "log" / "jobs.csv")] == 2 * ["completed"], said
    assert "waits again: interrupted: " in said and "end of the allocation" not in said, said
    assert len(ran(0)) == ranks[0], "its neighbour went on"
    assert f"{lost} was restarted" in said if when == "back" else lost not in ran(1)[ranks[1]:], said


def test_what_runs_on_a_node_that_was_cut_off_is_ended_when_it_is_back(cluster: Cluster) -> None:
    cluster.config(Allocation={"Policy": "compact"}, Cores=1, Grace=0.5, Hosts={"Timeout": 4},
                   Interrupted="mark")
    cluster.queue(cluster.line("bt.S.x", 6, 300, "cut", "never"),
                  cluster.line("cg.S.x", 2, 300, "waits", "go"))

    def ranks(node: str) -> list[str]:
        return [line for line in cluster.testbed.pids(node).values()
                if str(cluster.marks) in line and " cut " in line and "bt.S.x" in line.split()[0]]

    with cluster.testbed.allocation(4, "--exclusive") as batch:
        process = cluster.start(batch)
        wait_until(lambda: len(list(cluster.marks.iterdir())) == 8, "all ranks have started")
        lost = wait_until(lambda: cluster.nodes_of_jobs().get(0), "the state tells of the job")[-1]
        cluster.testbed.cut(lost)
        try:
            wait_until(lambda: 0 in cluster.rows(), "the job has ended")
            assert cluster.rows()[0].status == "failed"
            assert ranks(lost), "its ranks go on where nobody can reach them"
        finally:
            cluster.testbed.join(lost)
        wait_until(lambda: not ranks(lost), "they are ended")
        wait_until(lambda: all(node["up"] for node in cluster.state()["nodes"]), "it is used again")
        (cluster.marks / "go").touch()
        cluster.finish(process)
    assert cluster.rows()[1].status == "completed"
    for node in cluster.testbed.nodes:
        assert not ranks(node)


def test_scancel_interrupts_and_the_next_batch_job_goes_on(cluster: Cluster) -> None:
    """Slurm kills the steps under the mpiruns at the same moment as it tells vrm; a job that has
    no retry left is not lost by it."""
    cluster.config(Allocation={"Policy": "compact"}, Cores=1)
    cluster.queue(cluster.line("bt.S.x", 4, 60, "first", "go"),
                  cluster.line("cg.S.x", 2, 60, "second", "go"))
    with cluster.testbed.allocation(3, "--exclusive", "-w", "n[0-2]") as batch:
        process = cluster.start(batch)
        wait_until(lambda: len(list(cluster.marks.iterdir())) == 6, "all ranks have started")
        cluster.testbed.exec(batch.host, ["scancel", "--signal=KILL", batch.job], check=True)
        process.terminate()  # as scancel does to the batch script
        said = cluster.finish(process)
    assert said.count("waits again: interrupted") == 2, said
    assert "failed" not in said and cluster.rows() == {}
    (cluster.marks / "go").touch()
    with cluster.testbed.allocation(3, "--exclusive") as batch:
        cluster.finish(cluster.start(batch))
    assert {row.status for row in cluster.rows().values()} == {"completed"}
