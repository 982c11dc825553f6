"""Direct execution: what is started for a job, and the real `vrm` with programs without MPI that
tell themselves where they run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Mapping, Sequence

import pytest
from conftest import Site, wait_until
from support.machines import EVEN_ODD_THREADS, TWO_BY_FOUR, Cores, machine

from vrm.config.schema import LauncherSettings as Settings
from vrm.live.launch.base import SYNTHETIC_CHECK, LaunchError, make_launcher
from vrm.live.launch.direct import DirectLauncher
from vrm.live.launch.environment import thread_settings
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import parse_cpu_list, parse_topology, read_topology
from vrm.model import Node, RankSlot
from vrm.system.hosts import host_name

HERE = host_name()
WAITS = 'echo up >> "$0.up"\nwhile [ ! -e "$0.go" ]; do sleep 0.02; done\n'


def slots(*places: tuple[int, int, tuple[int, ...]]) -> Sequence[RankSlot]:
    """Ranks 0, 1, ... on (node, socket, cores)."""
    return [RankSlot(rank, *place) for rank, place in enumerate(places)]


def launcher(folder: Path, sockets: Sequence[Cores] = TWO_BY_FOUR, **settings: Any) -> DirectLauncher:
    """The launcher of a machine of this shape that bears this machine's name."""
    topology = parse_topology(machine(folder, sockets), HERE)
    emulated = settings.pop("emulated", False)
    made = make_launcher(Settings(Kind="direct", **settings), emulated, {HERE: topology},
                         {"PATH": "/bin", "OMP_NUM_THREADS": "77"})
    assert isinstance(made, DirectLauncher)
    made.run_id = "r1"
    return made


@pytest.mark.parametrize("sockets, placed, cpus, threads", [
    (TWO_BY_FOUR, slots((0, 0, (1,))), (1,), 1),
    (TWO_BY_FOUR, slots((0, 0, (2, 3)), (0, 1, (0, 1))), (2, 3, 4, 5), 4),
    # The second socket has the odd CPUs, and each core a second thread eight further on.
    (EVEN_ODD_THREADS, slots((0, 1, (0,)), (0, 1, (3,))), (1, 7, 9, 15), 2),
])
def test_a_job_is_the_program_on_the_cores_of_its_ranks(
        sockets: Sequence[Cores], placed: Sequence[RankSlot], cpus: tuple[int, ...],
        threads: int, tmp_path: Path) -> None:
    made = launcher(tmp_path, sockets)
    node = made.topologies[HERE].node
    launch = made.command(7, Path("/apps/a"), placed, [node], "/r/a.7.rf", ("-x", "a b"))
    assert launch.argv == ("/apps/a", "-x", "a b")
    assert launch.affinity == cpus
    assert launch.files == {}
    assert launch.env == {"PATH": "/bin", "VRM_RUN": "r1", "VRM_JOB_ID": "7",
                          "OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true",
                          "OMP_PLACES": "cores"}
    assert made.check_bindings("/e", "/o", placed, [node]) == BindingCheck("ok")


def test_an_emulated_job_is_not_bound(tmp_path: Path) -> None:
    made = launcher(tmp_path, emulated=True)
    nodes = [Node("n0", (4, 4)), Node("n1", (4, 4))]
    launch = made.command(7, "/apps/a", slots((1, 0, (0, 1, 2))), nodes, "/r")
    assert launch.affinity is None
    assert launch.env == {"PATH": "/bin", "VRM_RUN": "r1", "VRM_JOB_ID": "7",
                          "OMP_NUM_THREADS": "3"}
    assert made.check_bindings("/e", "/o", (), nodes) == BindingCheck("unbound")


@pytest.mark.parametrize("env, user, bound, expected", [
    ({}, {}, True, {"OMP_NUM_THREADS": "4", "OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}),
    ({}, {}, False, {"OMP_NUM_THREADS": "4"}),
    ({"OMP_NUM_THREADS": "1"}, {}, False, {"OMP_NUM_THREADS": "4"}),
    ({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2"}, False, {"OMP_NUM_THREADS": "2"}),
    ({"OMP_PLACES": "threads"}, {}, True, {"OMP_NUM_THREADS": "4"}),
    ({"OMP_PROC_BIND": "false"}, {}, True, {"OMP_NUM_THREADS": "4"}),
    ({"KMP_AFFINITY": "compact"}, {}, True, {"OMP_NUM_THREADS": "4"}),
])
def test_thread_settings(env: Mapping[str, str], user: Mapping[str, str], bound: bool,
                         expected: dict[str, str]) -> None:
    assert thread_settings(env, user, 4, bound) == expected


def test_what_cannot_be_started_is_refused(tmp_path: Path) -> None:
    made = launcher(tmp_path)
    here, there = made.topologies[HERE].node, Node("elsewhere", (4,))
    with pytest.raises(LaunchError, match=f"job 3 would span 2 nodes .{HERE}, elsewhere."):
        made.command(3, "/a", slots((0, 0, (0,)), (1, 0, (0,))), [here, there], "/r")
    with pytest.raises(LaunchError, match="no socket 1 with core 4"):
        made.command(3, "/a", slots((0, 1, (4,))), [here], "/r")
    with pytest.raises(LaunchError, match="Options are arguments for mpirun"):
        launcher(tmp_path / "other", Options=("--verbose",))


def test_a_program_on_another_node(tmp_path: Path) -> None:
    topology = parse_topology(machine(tmp_path, TWO_BY_FOUR), "n5")
    made = DirectLauncher({"PATH": "/bin"}, {}, {"n5": topology})
    placed = slots((0, 0, (2,)), (0, 1, (1,)))
    launch = made.command(7, "/apps/a", placed, [topology.node], "/r", ("-x",))
    assert (launch.host, launch.argv, launch.affinity) == ("n5", ("/apps/a", "-x"), (2, 5))
    assert launch.env["OMP_NUM_THREADS"] == "2" and launch.env["OMP_PLACES"] == "cores"
    assert made.check_bindings("/e", "/o", placed, [topology.node]).state == "ok"
    made_up = DirectLauncher({}, {}, {"n5": replace(topology, synthetic=True)})
    assert made_up.command(7, "/apps/a", placed, [topology.node], "/r").affinity is None
    assert made_up.check_bindings("/e", "/o", placed, [topology.node]) == SYNTHETIC_CHECK


# ------------------------------------------------------------------------- the real programs

ASK = """
while read -r key value; do
  [ "$key" = Cpus_allowed_list: ] && echo "cpus=$value"
done < /proc/self/status
echo "threads=$OMP_NUM_THREADS places=$OMP_PLACES run=$VRM_RUN id=$VRM_JOB_ID"
"""
TOGETHER = ASK + """
: > "$0.$VRM_JOB_ID.there"
until [ -e "$0.0.there" ] && [ -e "$0.1.there" ]; do sleep 0.01; done
"""


@pytest.fixture
def serial(tmp_path: Path) -> Iterator[Site]:
    """A site of two cores without MPI: no mpirun is on its PATH."""
    if len(read_topology().sockets[0]) < 2:
        pytest.skip("needs two cores")
    site = Site(tmp_path / "site")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sleep").symlink_to("/bin/sleep")
    site.env["PATH"] = str(tools)
    site.config(Cores=2, Launcher={"Kind": "direct"}, Allocation={"Policy": "pack"})
    yield site
    site.close()


def said(site: Site, app: str, job_id: int) -> dict[str, str]:
    """The `name=value` words that a job has printed."""
    words = (site.log / f"{app}.{job_id}.o").read_text().split()
    return dict(word.split("=", 1) for word in words)


def test_two_serial_jobs_run_at_once_on_their_own_cores(serial: Site) -> None:
    serial.program("pair", TOGETHER)
    serial.lines("pair 1 60 0", "pair 1 60 0")
    printed = serial.finish(serial.start())
    assert serial.statuses() == {0: "completed", 1: "completed"}, printed
    own = [parse_cpu_list(said(serial, "pair", job)["cpus"]) for job in (0, 1)]
    assert own == [frozenset(read_topology().core(0, core).cpus) for core in (0, 1)]
    for job in (0, 1):
        assert said(serial, "pair", job)["threads"] == "1"
        assert said(serial, "pair", job)["id"] == str(job)
        assert serial.rows()[job].binding == "ok"
    assert "without MPI" in printed
    serial.nothing_left()


@pytest.mark.parametrize("line", ["wide 2 60 0", "wide 1 60 0 cores=2"])
@pytest.mark.slow
def test_a_threaded_job_has_all_its_cores(serial: Site, line: str) -> None:
    serial.program("wide", ASK)
    serial.lines(line)
    serial.finish(serial.start(OMP_NUM_THREADS="1"))
    words = said(serial, "wide", 0)
    cores = read_topology().sockets[0][:2]
    assert parse_cpu_list(words["cpus"]) == {cpu for core in cores for cpu in core.cpus}
    assert (words["threads"], words["places"]) == ("2", "cores")


@pytest.mark.slow
def test_a_failing_serial_job_is_told_and_a_hanging_one_ended(serial: Site) -> None:
    serial.config(Cores=2, Launcher={"Kind": "direct"}, Allocation={"Policy": "pack"},
                  Walltime="kill", Grace=1)
    serial.program("bad", "exit 3\n")
    serial.program("dies", "kill -9 $$\n")
    serial.program("hangs", "trap '' TERM\nwhile :; do sleep 0.05; done\n")
    serial.lines("bad 1 10 0", "dies 1 10 0", "hangs 1 0.3 0")
    process = serial.start()
    serial.finish(process)
    assert process.returncode == 1
    rows = serial.rows()
    assert [(rows[i].status, rows[i].exit_code) for i in range(2)] == [
        ("failed", 3), ("failed", 137)]
    assert rows[2].status == "timeout"  # by SIGKILL, if it was quick enough to be deaf to SIGTERM
    serial.nothing_left()


@pytest.mark.slow
def test_a_job_that_would_span_nodes_fails_alone(serial: Site) -> None:
    serial.config(Nodes=2, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    serial.program("ok", ASK)
    serial.lines("ok 3 10 0 nodes=2", "ok 2 10 0", "ok 3 10 0")
    printed = serial.finish(serial.start())
    assert serial.statuses() == {0: "failed", 1: "completed", 2: "refused"}
    assert "would span 2 nodes (n0, n1)" in printed
    assert said(serial, "ok", 1)["threads"] == "2"
    assert "#2 ok refused: 3 ranks do not fit on 1 of 2 node(s) under compact; Launcher.Kind: direct" in printed


def test_a_job_waits_for_one_node_that_has_all_its_cores(serial: Site) -> None:
    """Two cores are free, one on each node: a process of two cannot have them."""
    serial.config(Nodes=2, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"}, Allocation={"Policy": "pack"})
    waits = serial.program("waits", WAITS)
    serial.program("ok", ASK)
    serial.lines("waits 1 10 0 nodelist=n0", "waits 1 10 0 nodelist=n1", "ok 2 10 0")
    process = serial.start()
    up = Path(f"{waits}.up")
    wait_until(lambda: up.exists() and len(up.read_text().split()) == 2, "two run")
    assert not (serial.log / "ok.2.o").exists(), "the third has been started"
    Path(f"{waits}.go").touch()
    serial.finish(process)
    assert serial.statuses() == {0: "completed", 1: "completed", 2: "completed"}
    assert said(serial, "ok", 2)["threads"] == "2"


def test_the_doctor_tries_a_program_without_mpi(serial: Site) -> None:
    serial.program("ok", "exit 0\n")
    serial.lines("ok 1 10 0")
    done = serial.run("doctor")
    assert done.returncode == 0 and "without MPI" in done.stdout and "trial job" in done.stdout


@pytest.mark.slow
def test_an_ensemble_of_many_tasks(serial: Site) -> None:
    serial.program("task", "echo $VRM_JOB_ID\n")
    serial.lines(*["task 1 5 0"] * 200)
    manager = serial.start()
    wait_until(lambda: manager.poll() is not None, "the ensemble ends")
    assert manager.returncode == 0
    assert [(serial.log / f"task.{i}.o").read_text() for i in range(200)] == [
        f"{i}\n" for i in range(200)]
    serial.nothing_left()


def test_what_a_launcher_of_a_user_lacks_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "bare_launcher.py").write_text(
        "from vrm.live.launch.base import Launcher\n\n\nclass Bare(Launcher):\n    kind = 'bare'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LaunchError, match="`bare_launcher:Bare` failed: NotImplementedError: its method `detect` is missing"):
        make_launcher(Settings(Kind="bare_launcher:Bare"))
