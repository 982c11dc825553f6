"""srun and Hydra on several nodes: every rank on its host and CPU, two jobs at the same time.

The nodes are those of the test cluster with this machine's own cores, so that binding is real.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Mapping, Sequence

import pytest
import yaml
from conftest import LIMIT, mpiexecs, wait_until
from support.testbed import Batch, Testbed

from vrm.config.schema import LauncherSettings as Settings
from vrm.live.launch.base import Launch, Launcher, make_launcher
from vrm.live.launch.environment import environment, hydra_settings
from vrm.ext.sites.hydra import MPICH, Hydra, find_mpiexec
from vrm.live.nodes.topology import Topology, parse_cpu_list, read_topology
from vrm.live.relay.boot import MARK
from vrm.model import RankSlot
from vrm.results.jobs import JobRow, read_jobs
from vrm.results.placement_text import parse_cores

ASK = """#!/bin/sh
while read -r key value; do
  [ "$key" = Cpus_allowed_list: ] && cpus=$value
done < /proc/self/status
echo "rank ${PMI_RANK:-$SLURM_PROCID} $(hostname) $cpus $VRM_RUN $VRM_JOB_ID"
[ -z "$1" ] && exit 0
: > "$1.$VRM_JOB_ID"
until [ -e "$1.1" ] && [ -e "$1.2" ]; do sleep 0.02; done
"""


@pytest.fixture(scope="module")
def batch(real: Testbed) -> Iterator[Batch]:
    """A batch job on two nodes."""
    with real.allocation(2, "--exclusive", "-w", "n[0-1]") as batch:
        yield batch


@pytest.fixture
def ask(tmp_path: Path) -> Path:
    """A program that tells rank, host, CPUs, run and job, and with an argument waits until jobs 1
    and 2 are both there."""
    program = tmp_path / "ask"
    program.write_text(ASK)
    program.chmod(0o755)
    return program


def topologies() -> dict[str, Topology]:
    """The machine of each node."""
    here = read_topology()
    return {f"n{i}": Topology(f"n{i}", here.all_cores, here.sockets) for i in range(2)}


def _family(program: str) -> str:
    """The family of an mpiexec, "" for none."""
    return "" if program == "auto" else find_mpiexec(program)[1]


KINDS = [("srun", "auto"), *(("hydra", mpiexec) for mpiexec in mpiexecs())]


def launcher(kind: str, program: str, batch: Batch) -> Launcher:
    """A launcher as the manager would make it in the batch job."""
    made = make_launcher(Settings(Kind=kind, Mpirun=program), False, topologies(), batch.env)
    made.run_id = "r1"
    return made


def slots(*places: tuple[int, tuple[int, ...]]) -> list[RankSlot]:
    """Ranks 0, 1, ... on (node, cores)."""
    return [RankSlot(rank, node, 0, cores) for rank, (node, cores) in enumerate(places)]


def write(launch: Launch) -> Launch:
    """Write the files of a launch."""
    for path, text in launch.files.items():
        Path(path).write_text(text)
    return launch


def run(testbed: Testbed, host: str, launch: Launch, folder: Path) -> Any:
    """Run a launch to its end on a host, with an environment that is its own alone."""
    write(launch)
    errors = folder / "errors"
    done = testbed.exec(host, ["env", "-i", *(f"{k}={v}" for k, v in launch.env.items()),
                               *launch.argv], cwd=folder)
    errors.write_text(done.stderr)
    return done


def told(text: str) -> dict[int, tuple[str, frozenset, str, str]]:
    """Host, CPUs, run and job of each rank."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["rank"]:
            found[int(words[1])] = (words[2], parse_cpu_list(words[3]), words[4], words[5])
    return found


def expected(placed: Sequence[RankSlot]) -> dict[int, tuple[str, frozenset, str, str]]:
    """What the ranks must tell."""
    here = read_topology()
    return {slot.rank: (f"n{slot.node}", frozenset(
        cpu for core in slot.cores for cpu in here.core(0, core).cpus), "r1", "1")
        for slot in placed}


PLACES = {
    "in order": slots((0, (0,)), (0, (1,)), (1, (0,))),
    "backwards": slots((1, (1,)), (0, (1,)), (0, (0,))),
    "different cores": slots((0, (1,)), (1, (0,))),
    "different cores backwards": slots((1, (1,)), (0, (0,))),
    "two cores": slots((0, (0, 1)), (1, (0, 1))),
}


@pytest.mark.parametrize("kind, program", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_every_rank_is_on_its_node_and_core(real: Testbed, batch: Batch, ask: Path, kind: str,
                                            program: str, place: str, tmp_path: Path) -> None:
    made = launcher(kind, program, batch)
    nodes = [topology.node for topology in topologies().values()]
    placed = PLACES[place]
    launch = made.command(1, ask, placed, nodes, tmp_path / "ask.1.rf")
    done = run(real, batch.host, launch, tmp_path)
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == expected(placed)
    found = made.check_bindings(tmp_path / "errors", tmp_path / "none", placed, nodes)
    if kind == "srun":
        assert found.state == ("unchecked" if place.startswith("different") else "ok"), found
        moved = [RankSlot(s.rank, s.node, 0, (1 - s.cores[0],)) for s in placed]
        if place != "two cores" and found.state == "ok":
            wrong = made.check_bindings(tmp_path / "errors", tmp_path / "none", moved, nodes)
            assert wrong.state == "mismatch" and len(wrong.differences) == len(placed)


TELLS = """#!/bin/sh
trap 'echo term >> "$1.ended"; exit 9' TERM
while read -r key value; do
  [ "$key" = Cpus_allowed_list: ] && cpus=$value
done < /proc/self/status
echo "$(hostname) $cpus $VRM_JOB_ID $OMP_NUM_THREADS $PWD"
echo x >> "$1.started"
until [ -e "$2" ]; do sleep 0.02; done
exit 5
"""


@pytest.mark.parametrize("how", ["srun", "ssh"])
def test_an_ensemble_on_several_nodes_outlives_its_manager(real: Testbed, batch: Batch, how: str,
                                                           tmp_path: Path) -> None:
    """Programs without MPI on all cores of two nodes. One is cancelled, the manager is killed while
    the others run, and another one follows them to their ends."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "tells"
    program.write_text(TELLS)
    program.chmod(0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "hosts").write_text("n[0-1]\n")
    (tmp_path / "queue").write_text("".join(
        f"tells 1 60 0 dir=work args='{tmp_path}/{name} {tmp_path}/go'\n" for name in range(6)))
    config = tmp_path / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Sockets": 1, "Cores": 2, "Log": "log",
        "Allocation": {"Policy": "pack"}, "Launcher": {"Kind": "direct"}, "Grace": 30,
        **({"Hosts": {"File": "hosts"}} if how == "ssh" else {})}))
    vrm = [sys.executable, "-m", "vrm.cli", "-c", config]

    def began(names: Sequence[int]) -> bool:
        return all((tmp_path / f"{name}.started").exists() for name in names)

    env = batch.env if how == "srun" else None
    with open(tmp_path / "said", "w") as log:
        first = real.popen("n0", [*vrm, "--once"], env=env, cwd=tmp_path, stdout=log, stderr=log)
        try:
            wait_until(lambda: began(range(4)), "four run")
            assert real.exec("login", [*vrm, "cancel", "3"], cwd=tmp_path).returncode == 0
            wait_until(lambda: began([4]), "the next one runs in its place")
        finally:
            first.kill()
            first.wait()
        second = real.popen("n0", [*vrm, "--once"], env=env, cwd=tmp_path, stdout=log, stderr=log)
        try:
            wait_until(lambda: "continuing the run" in (tmp_path / "said").read_text(),
                       "the next manager has taken over")
            (tmp_path / "go").touch()
            assert second.wait(LIMIT) == 1, (tmp_path / "said").read_text()
        finally:
            second.kill()
            second.wait()
        wait_until(lambda: not [line for node in ("n0", "n1") for line in real.pids(node).values()
                                if str(program) in line or MARK[:-1] in line
                                or "relay.py" in line], "nothing is left on the nodes")
    rows = {row.id: row for row in read_jobs(tmp_path / "log" / "jobs.csv")}
    assert {i: (row.status, row.exit_code) for i, row in rows.items()} == {
        i: ("cancelled", 9) if i == 3 else ("failed", 5) for i in range(6)}
    assert (tmp_path / "3.ended").read_text() == "term\n"
    cpus = [frozenset(read_topology().core(0, core).cpus) for core in (0, 1)]
    for i, row in rows.items():
        assert row.binding == "ok" and (tmp_path / f"{i}.started").read_text() == "x\n"
        words = (tmp_path / "log" / f"tells.{i}.o").read_text().split()
        (node, (place,)), = parse_cores(row.cores)
        assert words[0] == node and parse_cpu_list(words[1]) == cpus[place.first]
        assert words[2:] == [str(i), "1", str(tmp_path / "work")]
    assert {parse_cores(row.cores)[0][0] for row in rows.values()} == {"n0", "n1"}


@pytest.mark.parametrize("kind, program", KINDS)
def test_two_jobs_on_the_same_nodes_run_at_the_same_time(
        real: Testbed, batch: Batch, ask: Path, kind: str, program: str, tmp_path: Path) -> None:
    made = launcher(kind, program, batch)
    nodes = [topology.node for topology in topologies().values()]
    jobs = []
    for job_id, core in ((1, 0), (2, 1)):
        launch = write(made.command(job_id, ask, slots((0, (core,)), (1, (core,))), nodes,
                                    tmp_path / f"ask.{job_id}.rf", [str(tmp_path / "there")]))
        out = open(tmp_path / f"{job_id}.o", "w+")
        jobs.append((real.popen(batch.host, ["env", "-i", *(f"{k}={v}" for k, v
                                                            in launch.env.items()), *launch.argv],
                                cwd=tmp_path, stdout=out, stderr=out), core))
    for process, _ in jobs:
        assert process.wait(LIMIT) == 0  # each ends only when the other runs
    for job_id, core in ((1, 0), (2, 1)):
        ranks = told((tmp_path / f"{job_id}.o").read_text())
        cpus = frozenset(read_topology().core(0, core).cpus)
        assert [ranks[i][:2] for i in (0, 1)] == [("n0", cpus), ("n1", cpus)]


@pytest.mark.parametrize("mpiexec", mpiexecs())
def test_hydra_reaches_the_nodes_by_ssh(real: Testbed, ask: Path, mpiexec: str,
                                        tmp_path: Path) -> None:
    base: Mapping[str, str] = real.env
    _, family, version = find_mpiexec(mpiexec, base)
    made = Hydra(mpiexec, family, version, environment(base, settings=hydra_settings(base)),
                 topologies())
    made.run_id = "r1"
    placed = PLACES["backwards"]
    nodes = [topology.node for topology in topologies().values()]
    done = run(real, "login", made.command(1, ask, placed, nodes, tmp_path / "rf"), tmp_path)
    assert told(done.stdout) == expected(placed), done.stderr
    assert family != MPICH or "-bootstrap" not in made.command(1, ask, placed, nodes, "/r").argv


# (MPICH does not end the other ranks of programs without MPI, as this one is.)
@pytest.mark.parametrize("kind, program, body, code", [
    ("srun", "auto", "exit 3", 3), *(
        (kind, program, f"kill -{number} $$", 128 + number)
        for kind, program in KINDS for number in (9, 11) if _family(program) != MPICH)])
def test_the_exit_code_is_that_of_the_rank_that_failed(
        real: Testbed, batch: Batch, kind: str, program: str, body: str, code: int,
        tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    ends.write_text(f"#!/bin/sh\n[ ${{PMI_RANK:-$SLURM_PROCID}} = 1 ] && {body}\n"
                    "exec sleep 60\n")
    ends.chmod(0o755)
    made = launcher(kind, program, batch)
    nodes = [topology.node for topology in topologies().values()]
    launch = made.command(1, ends, slots((0, (0,)), (1, (0,))), nodes, tmp_path / "rf")
    done = run(real, batch.host, launch, tmp_path)
    (tmp_path / "output").write_text(done.stdout)
    assert done.returncode
    assert made.exit_code(done.returncode, tmp_path / "output", tmp_path / "errors") == code


@pytest.mark.parametrize("kind, program", [*KINDS, ("direct", "auto")])
def test_vrm_runs_a_queue_inside_a_slurm_job(real: Testbed, batch: Batch, ask: Path, kind: str,
                                             program: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    pair = programs / "pair"
    pair.write_text(ask.read_text().replace("[ -z \"$1\" ] && exit 0", f"set {tmp_path}/there")
                    .replace("$1.1", "$1.0").replace("$1.2", "$1.1"))
    pair.chmod(0o755)
    rows = run_queue(real, batch, tmp_path, kind, program, "pair 1 60 0", "pair 1 60 0")
    assert [rows[i].status for i in (0, 1)] == ["completed", "completed"]  # each met the other
    wanted = {"srun": "ok", "direct": "ok", "hydra": "unchecked"}[kind]
    assert [rows[i].binding for i in (0, 1)] == [wanted, wanted]
    for job_id, core in ((0, 0), (1, 1)):
        words = (tmp_path / "log" / f"pair.{job_id}.o").read_text().split()
        cpus = frozenset(read_topology().core(0, core).cpus)
        assert (words[-4], parse_cpu_list(words[-3]), words[-1]) == ("n0", cpus, str(job_id))


@pytest.mark.parametrize("kind, program", [*KINDS, ("direct", "auto")])
@pytest.mark.slow
def test_a_job_that_ignores_sigterm_is_ended(real: Testbed, batch: Batch, kind: str, program: str,
                                             tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    hangs = programs / "hangs"
    hangs.write_text("#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 0.1; done\n")
    hangs.chmod(0o755)
    rows = run_queue(real, batch, tmp_path, kind, program, "hangs 2 0.5 0", "hangs 1 0.5 0")
    assert [rows[i].status for i in (0, 1)] == ["timeout", "timeout"]
    assert str(hangs) not in " ".join(real.pids("n0").values())


def test_scripts_run_on_the_cores_of_their_first_node(real: Testbed, batch: Batch, ask: Path,
                                                      tmp_path: Path) -> None:
    """Two at the same time, one here and one on the other node, where srun is what starts ranks."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "where.sh").write_text(
        ask.read_text().replace("[ -z \"$1\" ] && exit 0", f"set {tmp_path}/there")
        .replace("rank", "${SLURM_JOB_ID-none} $VRM_NODELIST").replace("$1.1", "$1.0").replace(
            "$1.2", "$1.1"))
    rows = run_queue(real, batch, tmp_path, "srun", "auto", "where.sh 2 60 script=1",
                     "where.sh 2 60 script=1", nodes=2)
    assert [(rows[i].status, rows[i].binding) for i in (0, 1)] == [("completed", "ok")] * 2
    for job_id, host in ((0, "n0"), (1, "n1")):
        words = (tmp_path / "log" / f"where.sh.{job_id}.o").read_text().split()
        cpus = frozenset(cpu for core in (0, 1) for cpu in read_topology().core(0, core).cpus)
        assert words[:2] == [str(job_id), host] and words[-4] == host
        assert parse_cpu_list(words[-3]) == cpus


def run_queue(real: Testbed, batch: Batch, folder: Path, kind: str, program: str, *lines: str,
              nodes: int = 1) -> dict[int, JobRow]:
    """What became of the jobs of a queue that vrm has run on two cores of each node, the first of
    which is the batch's host."""
    (folder / "queue").write_text("".join(f"{line}\n" for line in lines))
    config = folder / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": str(folder / "bin"), "Queue": str(folder / "queue")},
        "Nodes": nodes, "Sockets": 1, "Cores": 2, "Log": str(folder / "log"), "Walltime": "kill",
        "Grace": 1, "Allocation": {"Policy": "pack"},
        "Launcher": {"Kind": kind, "Mpirun": program}}))
    done = real.exec(batch.host, [sys.executable, "-m", "vrm.cli", "-c", config, "--once"],
                     env=batch.env, cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {row.id: row for row in read_jobs(folder / "log" / "jobs.csv")}
