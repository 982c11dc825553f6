"""What the launch recipe relies on, on the test cluster: every mpirun, under Slurm and over ssh.

Jobs overlap when the time stamps that their own ranks print say so. docs/reference/launching.md tells which
test verifies what.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from conftest import LIMIT, mpiruns, wait_until
from support.testbed import Testbed

from vrm.config.schema import LauncherSettings as Settings
from vrm.live.launch.base import Launch
from vrm.live.launch.openmpi import SLOT_LIMIT, OpenMPI, find_mpirun
from vrm.live.launch.openmpi_output import UNNAMED, lost_nodes, strip_prefix
from vrm.live.nodes.topology import Topology
from vrm.model import Node, RankSlot

ROOT = Path(__file__).resolve().parent.parent.parent.parent
NAMES = ("n0", "n1", "n2", "n3")
NODES = [Node(name, (4, 4)) for name in NAMES]
MACHINES = {name: replace(Topology.regular(name, (4, 4)), synthetic=True) for name in NAMES}
KEEPALIVE = {f"{prefix}_MCA_oob_tcp_keepalive_{name}": value for prefix in ("OMPI", "PRTE")
             for name, value in (("time", "1"), ("intvl", "1"), ("probes", "1"))}
"""A lost node is noticed after 2 seconds instead of a minute."""


@dataclass
class Job:
    """A job that was started: its mpirun, and where its output is."""

    id: int
    slots: Sequence[RankSlot]
    process: subprocess.Popen[bytes]
    output: Path
    errors: Path

    def said(self) -> dict[int, dict[str, Any]]:
        """What every rank printed: host, pid, start, end, met and the job's tag."""
        ranks: dict[int, dict[str, Any]] = {}
        for line in map(strip_prefix, self.output.read_text().splitlines()):
            words = line.split()
            if words[:1] == ["rank"]:
                pairs = dict(zip(words[2::2], words[3::2]))
                ranks.setdefault(int(words[1]), {}).update(
                    {name: float(value) if name in ("start", "end") else value
                     for name, value in pairs.items()})
        return ranks


class Place:
    """Where jobs are launched from: the first node, inside a batch job of Slurm's or outside,
    with one of the mpiruns."""

    def __init__(self, testbed: Testbed, how: str, env: Mapping[str, str], mpirun: str,
                 program: Path, folder: Path) -> None:
        self.testbed = testbed
        self.how = how
        self.program = program
        self.folder = folder
        self.base = {**testbed.env, **env}
        self.jobs: list[Job] = []
        self.mpirun = find_mpirun(mpirun)[0]
        self.launcher = self.make()
        self.five = self.launcher.version >= (5,)

    def make(self, **base: str) -> OpenMPI:
        settings = Settings(Mpirun=self.mpirun, AllowRoot=True, Transport="tcp",
                            Environment=KEEPALIVE)
        launcher = OpenMPI.detect(settings, False, MACHINES, {**self.base, **base})
        launcher.run_id = "testbed"
        return launcher

    def start(self, job_id: int, slots: Sequence[RankSlot], *arguments: object,
              change: Callable[[Launch], Launch] = lambda launch: launch,
              launcher: OpenMPI | None = None) -> Job:
        """Start the program of ranks.c as a job; its ranks write FOLDER/ID.RANK."""
        launch = change((launcher or self.launcher).command(
            job_id, self.program, slots, NODES, self.folder / f"{job_id}.rf",
            [str(self.folder), str(job_id), *map(str, arguments)]))
        for name, text in launch.files.items():
            name.write_text(text)
        output, errors = self.folder / f"{job_id}.o", self.folder / f"{job_id}.e"
        with open(output, "w") as out, open(errors, "w") as err:
            process = self.testbed.popen("n0", launch.argv, env=launch.env, cwd=self.folder,
                                         stdout=out, stderr=err, start_new_session=True)
        self.jobs.append(Job(job_id, slots, process, output, errors))
        return self.jobs[-1]

    def wait_for_start(self, *jobs: Job) -> None:
        """Until every rank of the jobs runs."""
        for job in jobs:
            wait_until(lambda: all((self.folder / f"{job.id}.{slot.rank}").exists()
                                   for slot in job.slots) or job.process.poll() is not None,
                       f"all ranks of job {job.id} have started")
            assert job.process.poll() is None, job.errors.read_text()

    def let_end(self, *jobs: Job) -> None:
        """Let the ranks that wait for `go` end, and the jobs with them."""
        (self.folder / "go").touch()
        for job in jobs:
            assert job.process.wait(LIMIT) == 0, job.errors.read_text()

    def tagged(self, node: str, job_id: int) -> list[int]:
        """The processes of a job on a node, found there by its tag."""
        code = ("from vrm.system.processes import pids_with_environment as find; "
                f"print([*map(int, find('VRM_JOB_ID', '{job_id}'))])")
        done = self.testbed.exec(node, [sys.executable, "-c", code], cwd=ROOT, check=True)
        return json.loads(done.stdout)

    def ranks(self, node: str, job: Job) -> list[int]:
        """The ranks of a job that run on a node."""
        wanted = f"{self.program} {self.folder} {job.id} "
        return [pid for pid, line in self.testbed.pids(node).items()
                if (line + " ").startswith(wanted)]

    def sweep(self, node: str, job: Job) -> None:
        """Kill what a job left on a node."""
        self.testbed.exec(node, ["kill", "-9", *self.tagged(node, job.id)])
        wait_until(lambda: not self.ranks(node, job), f"no rank of job {job.id} is left on {node}")

    def close(self) -> None:
        """End what a failed test left."""
        (self.folder / "go").touch()
        for job in self.jobs:
            if job.process.poll() is None:
                job.process.kill()
                job.process.wait()


@pytest.fixture(scope="module")
def all_compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Every mpirun and ranks.c compiled for it."""
    found: dict[str, list[Any]] = {}
    for wanted in mpiruns():
        mpirun = find_mpirun(wanted)[0]
        mpicc = Path(mpirun).with_name("mpicc")
        compiler = str(mpicc) if mpicc.exists() else shutil.which("mpicc")
        if not compiler:
            pytest.skip(f"no mpicc beside {mpirun}")
        program = tmp_path_factory.mktemp("program") / "ranks"
        subprocess.run([compiler, "-O", str(Path(__file__).parents[2] / "support" / "ranks.c"), "-o",
                        str(program)], check=True)
        found[wanted] = [mpirun, program]
    return found


@pytest.fixture(scope="module", params=[*mpiruns()])
def compiled(request: pytest.FixtureRequest, all_compiled: dict[str, list[Any]]) -> list[Any]:
    """An mpirun and ranks.c compiled for it."""
    return all_compiled[request.param]


@pytest.fixture(scope="module", params=["slurm", "ssh"])
def outside(request: pytest.FixtureRequest, testbed: Testbed) -> Iterator[list[Any]]:
    """How daemons reach other nodes, and the environment of a batch job there."""
    if request.param == "ssh":
        yield ["ssh", {}]
        return
    with testbed.allocation(4, "--exclusive", "-w", "n[0-3]") as batch:
        yield ["slurm", batch.env]


@pytest.fixture
def place(outside: list[Any], compiled: list[Any], testbed: Testbed, tmp_path: Path
          ) -> Iterator[Place]:
    made = Place(testbed, *outside, *compiled, tmp_path)
    yield made
    made.close()


@pytest.fixture
def places(outside: list[Any], all_compiled: dict[str, list[Any]], testbed: Testbed,
           tmp_path: Path) -> Iterator[list[Place]]:
    """One for each mpirun."""
    made = []
    for number, compiled in enumerate(all_compiled.values()):
        (tmp_path / str(number)).mkdir()
        made.append(Place(testbed, *outside, *compiled, tmp_path / str(number)))
    yield made
    for place in made:
        place.close()


def on(*places: Any) -> list[RankSlot]:
    """Ranks 0, 1, ... on (node, socket, core)."""
    return [RankSlot(rank, node, socket, (core,))
            for rank, (node, socket, core) in enumerate(places)]


def halves(nodes: Sequence[int], cores: Sequence[int]) -> list[RankSlot]:
    """These cores of both sockets of the nodes."""
    return on(*((node, socket, core) for node in nodes for socket in (0, 1) for core in cores))


def overlap(*jobs: Job) -> bool:
    """Whether there was a moment at which every rank of the jobs ran."""
    ranks = [rank for job in jobs for rank in job.said().values()]
    return max(rank["start"] for rank in ranks) < min(rank["end"] for rank in ranks)


def without(*names: str) -> Callable[[Launch], Launch]:
    """Launches without these variables."""
    return lambda launch: replace(launch, env={
        name: value for name, value in launch.env.items() if name not in names})


@pytest.mark.slow
def test_co_scheduled_jobs_overlap_each_on_its_own_cores(place: Place) -> None:
    """Two jobs on the halves of the same sockets, and one on other nodes."""
    jobs = [place.start(1, halves((1, 2), (0, 1)), "go"),
            place.start(2, halves((1, 2), (2, 3)), "go"),
            place.start(3, on((0, 0, 0), (3, 1, 3)), "go")]
    place.wait_for_start(*jobs)
    for job, node in ((jobs[0], "n1"), (jobs[1], "n1"), (jobs[2], "n3")):
        ranks = place.ranks(node, job)
        assert len(ranks) == sum(NAMES[slot.node] == node for slot in job.slots)
        assert set(ranks) <= set(place.tagged(node, job.id))
    place.let_end(*jobs)
    assert overlap(*jobs)
    for job in jobs:
        said = job.said()
        assert {rank: (said[rank]["on"], said[rank]["job"]) for rank in said} == {
            slot.rank: (NAMES[slot.node], str(job.id)) for slot in job.slots}
        for other in jobs[:2]:
            check = place.launcher.check_bindings(job.errors, job.output, other.slots, NODES)
            assert check.state == ("ok" if job is other else "mismatch"), check
        assert lost_nodes(job.errors) == ()
        assert not any("+n" in str(word) for word in job.process.args)  # type: ignore[union-attr]


@pytest.mark.slow
def test_nodes_with_different_numbers_of_ranks(place: Place) -> None:
    """With PMIX_MCA_gds=hash, which is right on one machine, 4.1's ranks would fail to start."""
    slots = on((1, 0, 0), (1, 0, 1), (1, 0, 2), (2, 0, 0), (2, 0, 1), (3, 0, 0))
    job = place.start(1, slots)
    assert job.process.wait(LIMIT) == 0, job.errors.read_text()
    assert len(job.said()) == 6
    if not place.five:
        job = place.start(2, slots, change=lambda launch: replace(
            launch, env={**launch.env, "PMIX_MCA_gds": "hash"}))
        assert job.process.wait(LIMIT) != 0 and "num local peers" in job.errors.read_text()


@pytest.mark.parametrize("outside", ["slurm"], indirect=True)
@pytest.mark.slow
def test_without_the_recipe_slurm_makes_jobs_wait(place: Place) -> None:
    """SLURM_OVERLAP lets jobs share nodes. Without it -H still lets them run on other nodes."""
    def no_hosts(launch: Launch) -> Launch:
        argv = list(launch.argv)
        place = argv.index("-H")
        return replace(without("SLURM_OVERLAP")(launch), argv=(*argv[:place], *argv[place + 2:]))

    alone = without("SLURM_OVERLAP")
    pair = [place.start(1, on((1, 0, 0), (2, 0, 0)), "go", change=alone),
            place.start(2, on((3, 0, 0)), "go", change=alone)]
    place.wait_for_start(*pair)
    place.let_end(*pair)
    assert overlap(*pair)
    for job_id, slots, change in ((3, on((1, 1, 0), (2, 1, 0)), alone),
                                  (5, on((3, 0, 0)), no_hosts)):
        pair = [place.start(job_id, on((1, 0, 0), (2, 0, 0)), f"{job_id + 1}.0", 1, change=change),
                place.start(job_id + 1, slots, f"{job_id}.0", 1, change=change)]
        for job in pair:
            assert job.process.wait(LIMIT) == 0, job.errors.read_text()
        assert not overlap(*pair), job_id


@pytest.mark.parametrize("outside", ["slurm"], indirect=True)
def test_one_task_on_each_node_is_one_slot_to_open_mpi(place: Place) -> None:
    """So vrm sets SLURM_TASKS_PER_NODE to the cores."""
    assert place.base["SLURM_TASKS_PER_NODE"] == "1(x4)"
    assert place.launcher.env["SLURM_TASKS_PER_NODE"] == "8(x4)"
    job = place.start(1, on((1, 0, 0), (1, 0, 1)), change=lambda launch: replace(launch, env={
        **launch.env, "SLURM_TASKS_PER_NODE": place.base["SLURM_TASKS_PER_NODE"]}))
    assert job.process.wait(LIMIT) != 0
    assert re.search("not enough slots|oversubscribed its slots", job.errors.read_text())
    assert not job.said()


@pytest.mark.parametrize("outside", ["slurm"], indirect=True)
@pytest.mark.slow
def test_vrm_that_srun_has_started(place: Place) -> None:
    """srun tells of one task, which Open MPI takes for the allocation unless told otherwise."""
    code = ("import json, os, sys; from vrm.live.launch.environment import environment\n"
            "argv = json.loads(sys.argv[1])\n"
            "env = environment(os.environ, slots=[8] * 4) if sys.argv[2] else os.environ\n"
            "os.execve(argv[0], argv, env)")
    for job_id, cleaned in ((1, ""), (2, "vrm")):
        job = place.start(job_id, on((1, 0, 0), (3, 0, 0)), change=lambda launch: Launch(
            ("srun", "-N1", "-n1", "-w", "n0", "--chdir", str(ROOT), sys.executable, "-c", code,
             json.dumps(launch.argv), cleaned), place.base, launch.files))
        assert (job.process.wait(LIMIT) == 0) is bool(cleaned), job.errors.read_text()
        assert len(job.said()) == 2 * bool(cleaned)


@pytest.mark.parametrize("outside", ["ssh"], indirect=True)
def test_batch_systems_that_tell_of_too_few_slots(place: Place) -> None:
    """One line for each node, as PBS, Grid Engine and LSF write for one task on each."""
    hosts, engine = place.folder / "nodes", place.folder / "engine"
    hosts.write_text("".join(f"{name}\n" for name in NAMES))
    engine.write_text("".join(f"{name} 1 all.q@{name} UNDEFINED\n" for name in NAMES))
    jobs = [place.start(job_id, halves((1, 2), (job_id,)), "go", launcher=place.make(**base))
            for job_id, base in enumerate((
                {"PBS_JOBID": "1.s", "PBS_NODEFILE": str(hosts), "PBS_ENVIRONMENT": "PBS_BATCH"},
                {"JOB_ID": "1", "ARC": "x", "SGE_ROOT": "/sge", "PE_HOSTFILE": str(engine)},
                {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "n0 1 n1 1 n2 1 n3 1"}))]
    place.wait_for_start(*jobs)
    place.let_end(*jobs)
    assert overlap(*jobs)


@pytest.mark.slow
def test_exit_status(place: Place) -> None:
    endings = {"exit=3": 3, "abort=7": 7, "signal=9": 137, "signal=15": 143}
    jobs = {ending: place.start(i, on((1, 0, i), (2, 0, i)), "go", 20, ending)
            for i, ending in enumerate(endings)}
    place.wait_for_start(*jobs.values())
    (place.folder / "go").touch()
    assert {ending: job.process.wait(LIMIT) for ending, job in jobs.items()} == endings
    for job in jobs.values():
        assert lost_nodes(job.errors) == ()
        wait_until(lambda: not place.ranks("n1", job) + place.ranks("n2", job),
                   "no rank outlives the job")


@pytest.mark.slow
def test_cancel(place: Place) -> None:
    """SIGTERM to mpirun looks like a failure, and ends all ranks everywhere."""
    job = place.start(1, halves((0, 2), (0,)), "go", 60)
    place.wait_for_start(job)
    job.process.terminate()
    assert job.process.wait(LIMIT) == 1
    wait_until(lambda: not place.ranks("n0", job) + place.ranks("n2", job),
               "no rank outlives the job")
    assert lost_nodes(job.errors) == ()


@pytest.mark.slow
def test_mpirun_killed(place: Place) -> None:
    """Ranks on other nodes end themselves; with 5 those beside mpirun stay, and are found."""
    job = place.start(1, halves((0, 2), (0,)), "go", 60)
    place.wait_for_start(job)
    job.process.kill()
    assert job.process.wait(LIMIT) == -9
    wait_until(lambda: not place.ranks("n2", job), "the ranks on the other node end")
    if place.five:
        assert len(place.ranks("n0", job)) == 2
        assert set(place.ranks("n0", job)) <= set(place.tagged("n0", job.id))
        place.sweep("n0", job)
    wait_until(lambda: not place.ranks("n0", job), "no rank is left beside mpirun")


@pytest.mark.slow
def test_a_daemon_dies(place: Place) -> None:
    """5 calls it a success and leaves the ranks; only mpirun's words tell, if it finds any: on a
    busy machine it may hear first that the srun or ssh of its daemons has ended."""
    job = place.start(1, halves((1, 3), (0,)), "go", 60)
    place.wait_for_start(job)
    daemons = [pid for pid, line in place.testbed.pids("n3").items()
               if re.match(r"\S*/(orted|prted) ", line)]
    place.testbed.exec("n3", ["kill", "-9", *daemons])
    told = job.process.wait(LIMIT), lost_nodes(job.errors)
    if place.five:
        assert told in [(0, ("n3",)), (0 if place.how == "slurm" else 137, ())]
    else:
        assert told == (205, ("n3",))
    wait_until(lambda: not place.ranks("n1", job), "the ranks on the other node end")
    if place.five:
        assert len(place.ranks("n3", job)) == 2
        place.sweep("n3", job)
    wait_until(lambda: not place.ranks("n3", job), "no rank is left on the node")


def test_a_node_is_switched_off_and_another_unplugged(places: list[Place], testbed: Testbed
                                                      ) -> None:
    """mpirun learns of it only because the recipe makes it ask; so does the daemon cut off.

    Both ask only on connections on which nothing is under way: else it takes TCP a quarter of an
    hour. So nodes need to be watched as well.
    """
    jobs = [(place, place.start(1, on((1, 0, 0), (2, 0, 0)), "go", 60),
             place.start(2, on((1, 1, 0), (3, 1, 0)), "go", 60)) for place in places]
    for place, off, cut in jobs:
        place.wait_for_start(off, cut)
    wait_until(lambda: all(len(job.said()) == 2 for _, *both in jobs for job in both) and not any(
        int(line.split()[2]) for node in NAMES for line in testbed.exec(
            node, ["ss", "-Htn"]).stdout.splitlines()), "all that was said has arrived")
    try:
        testbed.cut("n3")
        testbed.kill("n2")
        for place, off, cut in jobs:
            for job, node in ((off, "n2"), (cut, "n3")):
                assert job.process.wait(LIMIT) == (0 if place.five else 205)
                assert lost_nodes(job.errors) == (node,)
                wait_until(lambda: not place.ranks("n1", job), "the ranks where all is well end")
            wait_until(lambda: not place.ranks("n3", cut), "the rank that is cut off ends")
        testbed.exec("n0", ["ip", "neigh", "flush", "all"])  # or TCP tries for minutes
        late = [place.start(3, on((1, 0, 0), (2, 0, 0))) for place in places]  # nobody knows of it
        for place, job in zip(places, late):
            assert job.process.wait(LIMIT) != 0
            lost = lost_nodes(job.errors, job.output)
            # Slurm ends the other daemon as well: mpirun blames that one if it had reported, else srun.
            assert lost in ([("n2",)] if place.how == "ssh" else [("n1",), (UNNAMED,)]), (
                job.errors.read_text() + job.output.read_text())
    finally:
        testbed.join("n3")
        testbed.restart("n2")
    for node in ("n2", "n3"):  # the kernel may have to forget first that they were away
        wait_until(lambda: testbed.exec("n0", ["ssh", node, "true"]).returncode == 0,
                   f"{node} answers again")
    for place in places:
        place.let_end(place.start(4, on((2, 0, 0), (3, 0, 0)), "go"))


def test_the_longest_slot_text(compiled: list[Any], testbed: Testbed, tmp_path: Path) -> None:
    """4.1 aborts at the first character too many, and 5 leaves cores out of longer ones."""
    machine = replace(Topology.regular("n0", (80,)), synthetic=True)
    launcher = OpenMPI.detect(Settings(Mpirun=compiled[0], AllowRoot=True), False,
                              {"n0": machine}, testbed.env)
    rankfile, five = tmp_path / "rf", launcher.version >= (5,)
    for length, cores in ((57, [*range(0, 8, 2), *range(10, 26, 2)]),
                          (58, [*range(0, 6, 2), *range(10, 28, 2)]),
                          (83, [*range(0, 6, 2), *range(10, 38, 2)])):
        text = ",".join(f"0:{core}" for core in cores)
        assert len("n0" + text) == length
        slot = [RankSlot(0, 0, 0, tuple(cores))]
        launch = launcher.command(1, "/bin/true", [RankSlot(0, 0, 0, (0,))], [machine.node],
                                  rankfile)
        rankfile.write_text(f"rank 0=n0 slot={text}\n")
        done = testbed.exec("n0", launch.argv, env={**launch.env,
                                                    "HWLOC_SYNTHETIC": "pack:1 core:80 pu:1"})
        (tmp_path / "o").write_text(done.stdout)
        state = launcher.check_bindings(tmp_path / "e", tmp_path / "o", slot, [machine.node]).state
        if length <= SLOT_LIMIT:
            assert (done.returncode, state) == (0, "ok"), done.stderr
        elif not five:
            assert done.returncode in (134, -6), done.stderr
        elif length > 80:
            assert (done.returncode, state) == (0, "mismatch"), done.stdout
