"""Hydra (MPICH, Intel MPI): exact commands, what its mpiexecs say, and the real ones.

The real ones are those of the list VRM_TEST_MPICH (paths of mpiexec, separated as PATH is), or
the one that vrm finds.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from collections.abc import Iterator, Mapping, Sequence

import pytest
import yaml
from conftest import Site, mpiexecs
from support.mpiruns import INTEL as INTEL_TEXT, MPICH as MPICH_TEXT, OPEN_MPI, fake, only
from support.machines import EVEN_ODD_THREADS, TWO_BY_FOUR, machine

from vrm.config.schema import LauncherSettings as Settings
from vrm.live.launch.base import SYNTHETIC_CHECK, LaunchError, LauncherNotFound, make_launcher
from vrm.live.launch.environment import environment, hydra_settings
from vrm.ext.sites.hydra import INTEL, MPICH, Hydra, find_mpiexec, parse_version
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import Topology, parse_cpu_list, parse_topology, read_topology
from vrm.model import RankSlot
from vrm.system.hosts import host_name

# ----------------------------------------------------------------------------------- commands


def slots(*places: tuple[int, int, tuple[int, ...]]) -> list[RankSlot]:
    """Ranks 0, 1, ... on (node, socket, cores)."""
    return [RankSlot(rank, *place) for rank, place in enumerate(places)]


@pytest.fixture
def topologies(tmp_path: Path) -> dict[str, Topology]:
    """Nodes of 2 x 4 cores; n1 has another numbering and two threads a core; `here` is this."""
    shapes = {"n0": TWO_BY_FOUR, "n1": EVEN_ODD_THREADS, "n2": TWO_BY_FOUR,
              host_name(): TWO_BY_FOUR}
    return {name: parse_topology(machine(tmp_path / name, shape), name)
            for name, shape in shapes.items()}


HERE = 3
SAME = slots((0, 0, (1,)), (0, 1, (0,)), (2, 0, (1,)))
DIFFERENT = slots((0, 0, (1,)), (0, 1, (0,)), (1, 1, (2, 3)))
BACKWARDS = slots((2, 0, (1,)), (0, 0, (1,)))


@pytest.mark.parametrize("family, env, placed, options, expected", [
    (MPICH, {}, SAME, (), "-hosts n0:2,n2:1 -bind-to user:1,4 -n 3 /apps/a -x 1"),
    (MPICH, {}, slots((1, 0, (0, 1))), ("-prepend-rank",),
     "-hosts n1:1 -bind-to user:0+8+2+10 -n 1 -prepend-rank /apps/a -x 1"),
    (MPICH, {}, DIFFERENT, (), "-hosts n0:2,n1:1 -bind-to none -n 1 taskset -c 1 /apps/a -x 1 "
                               ": -n 1 taskset -c 4 /apps/a -x 1 "
                               ": -n 1 taskset -c 5,13,7,15 /apps/a -x 1"),
    (MPICH, {}, slots((HERE, 0, (0,)), (HERE, 0, (2,))), (),
     f"-bootstrap fork -hosts {host_name()}:2 -bind-to user:0,2 -n 2 /apps/a -x 1"),
    # srun would put the ranks of MPICH on nodes in Slurm's order
    (MPICH, {}, BACKWARDS, (), "-hosts n2:1,n0:1 -bind-to user:1 -n 2 /apps/a -x 1"),
    (MPICH, {"SLURM_JOB_ID": "5"}, BACKWARDS, (),
     "-bootstrap ssh -hosts n2:1,n0:1 -bind-to user:1 -n 2 /apps/a -x 1"),
    (MPICH, {"SLURM_JOB_ID": "5"}, SAME, (),
     "-hosts n0:2,n2:1 -bind-to user:1,4 -n 3 /apps/a -x 1"),
    (INTEL, {"SLURM_JOB_ID": "5"}, BACKWARDS, (),
     "-host n2 -n 1 -env I_MPI_PIN_DOMAIN [0x2] /apps/a -x 1 "
     ": -host n0 -n 1 -env I_MPI_PIN_DOMAIN [0x2] /apps/a -x 1"),
    (INTEL, {}, DIFFERENT, ("-print-rank-map",),
     "-print-rank-map -host n0 -n 2 -env I_MPI_PIN_DOMAIN [0x2,0x10] /apps/a -x 1 "
     ": -host n1 -n 1 -env I_MPI_PIN_DOMAIN [0xa0a0] /apps/a -x 1"),
])
def test_command(topologies: dict[str, Topology], family: str, env: Mapping[str, str],
                 placed: Sequence[RankSlot], options: tuple[str, ...], expected: str) -> None:
    launcher = Hydra("mpiexec", family, "5.0", env, topologies, options=options)
    launcher.run_id = "r1"
    nodes = [topology.node for topology in topologies.values()]
    launch = launcher.command(7, Path("/apps/a"), placed, nodes, "/r/a.7.rf", ("-x", "1"))
    assert launch.argv == ("mpiexec", *expected.split())
    assert launch.files == {} and launch.affinity is None
    threads = str(max(len(slot.cores) for slot in placed))
    assert launch.env == {**env, "VRM_RUN": "r1", "VRM_JOB_ID": "7", "OMP_NUM_THREADS": threads}
    assert launcher.check_bindings("/e", "/o", placed, nodes) == BindingCheck(
        "unchecked", (f"{family} does not report bindings",))


def test_an_emulated_job_is_not_bound(topologies: dict[str, Topology]) -> None:
    nodes = [topology.node for topology in topologies.values()]
    for family, expected in (
            (MPICH, "-hosts localhost:3 -bind-to none -n 3 /apps/a"),
            (INTEL, "-genv I_MPI_PIN off -host localhost -n 3 /apps/a")):
        launcher = Hydra("mpiexec", family, "5.0", {}, {}, emulated=True)
        launch = launcher.command(7, "/apps/a", SAME, nodes, "/r")
        assert launch.argv == ("mpiexec", "-bootstrap", "fork", *expected.split())
        assert launcher.check_bindings("/e", "/o", SAME, nodes) == BindingCheck("unbound")


@pytest.mark.parametrize("family, placed, env, expected", [
    (MPICH, BACKWARDS, {"SLURM_JOB_ID": "5"}, "-bootstrap ssh -bootstrap-exec /r/bin/vrm-rsh -hosts n2:1,n0:1"),
    (INTEL, BACKWARDS, {}, "-bootstrap ssh -bootstrap-exec /r/bin/vrm-rsh -host n2"),
    (MPICH, slots((HERE, 0, (0,))), {}, "-bootstrap fork"),
    (MPICH, SAME, {"HYDRA_BOOTSTRAP": "slurm"}, "-hosts n0:2,n2:1"),  # the user's way
    (INTEL, SAME, {"I_MPI_HYDRA_BOOTSTRAP": "slurm"}, "-host n0")])
def test_proxies_are_started_through_the_relay(topologies: dict[str, Topology], family: str, placed: Sequence[RankSlot],
                                               env: dict[str, str], expected: str) -> None:
    launcher = Hydra("mpiexec", family, "5.0", env, topologies)
    launcher.rsh_agent = "/r/bin/vrm-rsh"
    launch = launcher.command(7, "/apps/a", placed, [topology.node for topology in topologies.values()], "/r")
    assert launch.argv[1:1 + len(expected.split())] == tuple(expected.split())
    assert launch.daemons is ("vrm-rsh" in expected)


def test_made_up_cores_are_not_bound_to(topologies: dict[str, Topology]) -> None:
    nodes = [topology.node for topology in topologies.values()]
    made_up = {name: replace(topology, synthetic=True) for name, topology in topologies.items()}
    for family, expected in (
            (MPICH, "-hosts n0:2,n2:1 -bind-to none -n 3 /apps/a"),
            (INTEL, "-genv I_MPI_PIN off -host n0 -n 2 /apps/a : -host n2 -n 1 /apps/a")):
        launcher = Hydra("mpiexec", family, "5.0", {}, made_up)
        assert launcher.command(7, "/apps/a", SAME, nodes, "/r").argv == (
            "mpiexec", *expected.split())
        assert launcher.check_bindings("/e", "/o", SAME, nodes) == SYNTHETIC_CHECK


def test_a_node_whose_cpu_numbers_are_not_known(topologies: dict[str, Topology]) -> None:
    nodes = [topology.node for topology in topologies.values()]
    launcher = Hydra("mpiexec", MPICH, "5.0", {}, {"n0": topologies["n0"]})
    with pytest.raises(LaunchError, match="rank 2: the CPU numbers of n2 are not known"):
        launcher.command(7, "/apps/a", SAME, nodes, "/r")


def test_environment() -> None:
    base = {"PATH": "/bin", "HYDRA_BINDING": "core", "HYDRA_HOST_FILE": "/h", "HYDRA_IFACE": "ib0",
            "I_MPI_PIN": "off", "I_MPI_PIN_DOMAIN": "omp", "I_MPI_PERHOST": "1",
            "I_MPI_FABRICS": "shm:ofi", "PMI_RANK": "0"}
    assert environment(base) == {"PATH": "/bin", "HYDRA_IFACE": "ib0", "I_MPI_FABRICS": "shm:ofi"}
    assert hydra_settings(base) == {}
    assert hydra_settings({"SLURM_JOB_ID": "5"}) == {"SLURM_CPU_BIND": "none"}


def test_what_slurm_says_of_other_tasks_is_not_for_the_proxies(tmp_path: Path) -> None:
    """As an srun around vrm has bound it to a core."""
    mpiexec = fake(tmp_path, MPICH_TEXT)
    base = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "5", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
            "SLURM_NTASKS_PER_NODE": "2", "SLURM_CONF": "/c"}
    made = Hydra.detect(Settings(Kind="hydra", Mpirun=mpiexec), False, {}, base)
    assert made.env == {"PATH": base["PATH"], "SLURM_JOB_ID": "5", "SLURM_CONF": "/c",
                        "SLURM_OVERLAP": "1", "SLURM_CPU_BIND": "none"}


# -------------------------------------------------------------------------------- exit codes

# What MPICH 5.0 and Intel MPI 2021.18 print.
KILLED = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 13806 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
KILLED_BY_INTEL = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 0 PID 1234 RUNNING AT vm
=   KILLED BY SIGNAL: 11 (Segmentation fault)
===================================================================================
"""


# On several nodes, and the banner of a rank that Hydra has killed before the right line.
CUT = "\n".join(KILLED.splitlines()[:8]) + "\n"
OTHERS = CUT.replace("9", "15") + "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: " \
    "Segmentation fault (signal 11)\n"


@pytest.mark.parametrize("code, text, expected", [
    (9, KILLED, 137), (255, CUT, 137), (11, OTHERS, 139), (255, KILLED_BY_INTEL, 139),
    (9, "it said: (signal 9)\n", 9), (3, "", 3), (0, KILLED, 0)])
def test_exit_codes(code: int, text: str, expected: int, tmp_path: Path) -> None:
    output = tmp_path / "a.o"
    output.write_text("x" * 1000 + "\n" + text)
    launcher = Hydra("mpiexec", MPICH, "5.0", {}, {})
    assert launcher.exit_code(code, output, tmp_path / "a.e") == expected


# --------------------------------------------------------------------------- finding mpiexec

OLD_OPEN_MPI = "mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"


@pytest.mark.parametrize("text, found", [
    (MPICH_TEXT, (MPICH, "5.0.2")), (INTEL_TEXT, (INTEL, "2021.11"))])
def test_versions(text: str, found: tuple[str, str]) -> None:
    assert parse_version(text) == found


@pytest.mark.parametrize("text, reason", [
    (OPEN_MPI.format("5.0.11"), "is Open MPI 5.0.11; set Launcher: {Kind: openmpi}"),
    (OLD_OPEN_MPI, "is Open MPI 4.1.4; set Launcher: {Kind: openmpi}"),
    ("\nsrun 22.05\n", "says `srun 22.05`, which is neither MPICH nor Intel MPI"),
    ("", "says `nothing`"),
])
def test_other_mpis_are_named_with_the_mend(text: str, reason: str) -> None:
    with pytest.raises(LauncherNotFound) as caught:
        parse_version(text)
    assert reason in str(caught.value) and "pip install mpich" in str(caught.value)


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this Python's programs, as if it were empty."""
    folder = tmp_path / "venv"
    folder.mkdir()
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


def test_finding_mpiexec(tmp_path: Path, beside: Path) -> None:
    other = fake(tmp_path / "ompi", OLD_OPEN_MPI, "mpiexec")
    real = fake(tmp_path / "mpich", MPICH_TEXT, "mpiexec")
    assert find_mpiexec("auto", only(tmp_path / "ompi", tmp_path / "mpich")) == (
        real, MPICH, "5.0.2")
    assert find_mpiexec(real, {}) == (real, MPICH, "5.0.2")
    with pytest.raises(LauncherNotFound, match=f"{other} is Open MPI 4.1.4"):
        find_mpiexec("auto", only(tmp_path / "ompi"))
    with pytest.raises(LauncherNotFound, match=f"{other} is Open MPI 4.1.4"):
        find_mpiexec(other, {})
    with pytest.raises(LauncherNotFound, match="no mpiexec on PATH; install MPICH"):
        find_mpiexec("auto", only(tmp_path))
    with pytest.raises(LauncherNotFound, match="Launcher.Mpirun: x is not an executable program on PATH"):
        find_mpiexec("x", only(tmp_path))
    debian = fake(beside, MPICH_TEXT, "mpiexec.mpich")
    assert find_mpiexec("auto", only(tmp_path))[0] == debian


def test_auto_takes_what_is_there(tmp_path: Path, beside: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    automatic = Settings(Kind="auto", AllowRoot=True)
    fake(tmp_path / "mpich", MPICH_TEXT, "mpiexec")
    fake(tmp_path / "mpich", MPICH_TEXT, "mpirun")
    fake(tmp_path / "ompi", OPEN_MPI.format("4.1.4"), "mpirun")
    slurm = tmp_path / "slurm"
    fake(slurm, "slurm 22.05.8\n", "srun")

    def found(*names: str, **env: str) -> str:
        base = {**only(*(tmp_path / name for name in names)), **env}
        return make_launcher(automatic, base=base).version_text

    assert found("mpich", "ompi", "slurm") == "Open MPI 4.1.4"
    assert found("mpich", "slurm", SLURM_JOB_ID="5") == "MPICH 5.0.2"
    assert found("slurm", SLURM_JOB_ID="5") == "Slurm 22.05.8"
    with pytest.raises(LaunchError) as caught:
        found("slurm")
    said = str(caught.value)
    for part in ("openmpi: no mpirun on PATH", "hydra: no mpiexec on PATH",
                 "srun: srun starts jobs inside a Slurm job only", "{Kind: direct}"):
        assert part in said
    # One that is there and cannot be used is told of, and not passed over in silence.
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(LaunchError, match="refuses to run as root"):
        make_launcher(Settings(Kind="auto"), base=only(tmp_path / "ompi", tmp_path / "mpich"))


# -------------------------------------------------------------------------- the real programs


ASK = """
while read -r key value; do
  [ "$key" = Cpus_allowed_list: ] && cpus=$value
done < /proc/self/status
echo "$PMI_RANK/$PMI_SIZE $cpus $VRM_RUN $VRM_JOB_ID"
"""
TOGETHER = ASK + """
: > "$0.$VRM_JOB_ID.there"
until [ -e "$0.0.there" ] && [ -e "$0.1.there" ]; do sleep 0.01; done
"""


@pytest.fixture(params=mpiexecs() or [""])
def mpich(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A site of two cores with a real MPICH or Intel MPI."""
    if not request.param:
        pytest.skip("no mpiexec of MPICH or Intel MPI (set VRM_TEST_MPICH to its path)")
    if len(read_topology().sockets[0]) < 2:
        pytest.skip("needs two cores")
    site = Site(tmp_path / "site")
    site.config(Cores=2, Launcher={"Kind": "hydra", "Mpirun": request.param},
                Allocation={"Policy": "pack"})
    yield site
    site.close()


def launcher_of(site: Site) -> dict[str, str]:
    """The launcher that a site has been given."""
    return dict(yaml.safe_load(site.config_file.read_text())["Launcher"])


def said(site: Site, app: str, job_id: int) -> dict[str, list[str]]:
    """What the ranks of a job said: its CPUs, run and job, by `rank/size`."""
    lines = (site.log / f"{app}.{job_id}.o").read_text().splitlines()
    return {words[0]: words[1:] for words in map(str.split, lines) if words}


def test_every_rank_is_on_its_core(mpich: Site) -> None:
    mpich.program("ask", ASK)
    mpich.lines("ask 2 60 0", "ask 1 60 0 cores=2")
    printed = mpich.finish(mpich.start())
    assert mpich.statuses() == {0: "completed", 1: "completed"}, printed
    assert "MPICH" in printed or "Intel MPI" in printed
    cores = [frozenset(read_topology().core(0, core).cpus) for core in (0, 1)]
    two = said(mpich, "ask", 0)
    assert [parse_cpu_list(two[f"{rank}/2"][0]) for rank in (0, 1)] == cores
    assert [words[2] for words in two.values()] == ["0", "0"]
    assert parse_cpu_list(said(mpich, "ask", 1)["0/1"][0]) == cores[0] | cores[1]
    mpich.nothing_left()


def test_two_jobs_run_at_once_on_their_own_cores(mpich: Site) -> None:
    mpich.program("pair", TOGETHER)
    mpich.lines("pair 1 60 0", "pair 1 60 0")
    printed = mpich.finish(mpich.start())
    assert mpich.statuses() == {0: "completed", 1: "completed"}, printed
    own = [parse_cpu_list(said(mpich, "pair", job)["0/1"][0]) for job in (0, 1)]
    assert own == [frozenset(read_topology().core(0, core).cpus) for core in (0, 1)]


def test_an_emulated_cluster_runs_unbound(mpich: Site) -> None:
    mpich.config(Nodes=2, Sockets=1, Cores=4, Emulate=True,
                 Launcher=launcher_of(mpich))
    mpich.program("ask", ASK)
    mpich.lines("ask 6 60 0")
    printed = mpich.finish(mpich.start())
    assert mpich.rows()[0].status == "completed", printed
    assert mpich.rows()[0].binding == "unbound"
    assert sorted(said(mpich, "ask", 0)) == [f"{rank}/6" for rank in range(6)]


def test_how_ranks_end(mpich: Site) -> None:
    """Also by a signal: mpiexec's own exit status does not tell."""
    mpich.program("three", "exit 3\n")
    mpich.program("dies", "kill -9 $$\n")
    mpich.program("hangs", "trap '' TERM\nwhile :; do sleep 0.05; done\n")
    mpich.config(Cores=2, Launcher=launcher_of(mpich),
                 Allocation={"Policy": "pack"}, Walltime="kill", Grace=1)
    mpich.lines("three 1 10 0", "dies 1 10 0", "hangs 2 0.5 0")
    mpich.finish(mpich.start())
    rows = mpich.rows()
    assert [rows[i].status for i in range(3)] == ["failed", "failed", "timeout"]
    assert rows[0].exit_code == 3
    launcher = Hydra("mpiexec", MPICH, "", {}, {})
    assert launcher.exit_code(rows[1].exit_code, mpich.log / "dies.1.o",
                              mpich.log / "dies.1.e") == 137
    mpich.nothing_left()


def test_the_doctor_finds_it(mpich: Site) -> None:
    mpich.program("ok", "exit 0\n")
    done = mpich.run("doctor")
    assert "one rank of `true` took" in done.stdout, done.stdout
