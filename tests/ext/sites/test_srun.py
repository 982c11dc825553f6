"""srun: exact commands, host files and masks, and what slurmd's reports say.

The real one is tried on the namespace cluster in test_testbed_launchers.py.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from collections.abc import Mapping, Sequence

import pytest
from support.machines import EVEN_ODD_THREADS, TWO_BY_FOUR, machine

from vrm.config.schema import LauncherSettings as Settings
from vrm.live.launch.base import SYNTHETIC_CHECK, LaunchError, make_launcher
from vrm.live.launch.environment import step_environment
from vrm.ext.sites.srun import Srun, parse_masks
from vrm.live.nodes.bindings import BindingCheck
from vrm.live.nodes.topology import Topology, parse_topology
from vrm.model import RankSlot


def slots(*places: tuple[int, int, tuple[int, ...]]) -> list[RankSlot]:
    """Ranks 0, 1, ... on (node, socket, cores)."""
    return [RankSlot(rank, *place) for rank, place in enumerate(places)]


@pytest.fixture
def topologies(tmp_path: Path) -> dict[str, Topology]:
    """Two nodes of 2 x 4 cores, the second with another numbering and two threads a core."""
    return {"n0": parse_topology(machine(tmp_path / "0", TWO_BY_FOUR), "n0"),
            "n1": parse_topology(machine(tmp_path / "1", EVEN_ODD_THREADS), "n1"),
            "n2": parse_topology(machine(tmp_path / "2", TWO_BY_FOUR), "n2")}


COMMON = ("srun --job-name=vrm.7 --overlap --nodes={} --ntasks={} --distribution=arbitrary "
          "--cpu-bind=verbose,{} --kill-on-bad-exit=1 --export=ALL ")


@pytest.mark.parametrize("placed, nodes, ranks, binding, hosts", [
    (slots((0, 0, (1,)), (0, 1, (0,))), 1, 2, "map_cpu:1,4", "n0 n0"),
    (slots((2, 0, (0,)), (2, 0, (2,)), (0, 0, (0,))), 2, 3, "map_cpu:0,2", "n2 n2 n0"),
    # Ranks of several cores, and cores of several threads, are masks.
    (slots((0, 0, (0, 1)), (0, 1, (2, 3))), 1, 2, "mask_cpu:0x3,0xc0", "n0 n0"),
    (slots((1, 0, (0,)), (1, 1, (3,))), 1, 2, "mask_cpu:0x101,0x8080", "n1 n1"),
])
def test_command(topologies: dict[str, Topology], placed: Sequence[RankSlot], nodes: int,
                 ranks: int, binding: str, hosts: str) -> None:
    launcher = Srun("srun", "Slurm 22.05.8", {"PATH": "/bin"}, topologies, ("--mpi=pmix",))
    launcher.run_id = "r1"
    all_nodes = [topology.node for topology in topologies.values()]
    launch = launcher.command(7, "/apps/a", placed, all_nodes, "/r/a.7.rf", ("-x", "1"))
    assert launch.argv == tuple(
        (COMMON.format(nodes, ranks, binding) + "--mpi=pmix /apps/a -x 1").split())
    assert launch.files == {Path("/r/a.7.rf"): hosts.replace(" ", "\n") + "\n"}
    assert launch.env == {"PATH": "/bin", "VRM_RUN": "r1", "VRM_JOB_ID": "7",
                          "SLURM_HOSTFILE": "/r/a.7.rf",
                          "OMP_NUM_THREADS": str(len(placed[0].cores))}
    assert launch.affinity is None


def test_ranks_are_bound_one_by_one_where_nodes_differ(topologies: dict[str, Topology]) -> None:
    launcher = Srun("srun", "Slurm 22.05.8", {}, topologies)
    nodes = [topology.node for topology in topologies.values()]
    placed = slots((0, 0, (0,)), (0, 0, (1,)), (2, 1, (2, 3)))
    launch = launcher.command(7, "/apps/a", placed, nodes, "/r/a.7.rf", ("-x", "1"))
    assert launch.argv == tuple((COMMON.format(2, 3, "none")
                                 + "--multi-prog /r/a.7.rf.programs").split())
    assert launch.files[Path("/r/a.7.rf.programs")] == (
        "0 taskset -c 0 /apps/a -x 1\n1 taskset -c 1 /apps/a -x 1\n"
        "2 taskset -c 6,7 /apps/a -x 1\n")
    with pytest.raises(LaunchError, match="`a b` cannot be passed on by srun"):
        launcher.command(7, "/apps/a", placed, nodes, "/r", ("a b",))


def test_made_up_cores_are_not_bound_to(topologies: dict[str, Topology]) -> None:
    made_up = {name: replace(topology, synthetic=True) for name, topology in topologies.items()}
    launcher = Srun("srun", "Slurm 22.05.8", {}, made_up)
    nodes = [topology.node for topology in topologies.values()]
    placed = slots((0, 0, (0,)), (2, 0, (1,)))
    assert launcher.command(7, "/apps/a", placed, nodes, "/r").argv == tuple(
        (COMMON.format(2, 2, "none") + "/apps/a").split())
    assert launcher.check_bindings("/e", "/o", placed, nodes) == SYNTHETIC_CHECK


def test_cores_that_are_not_known(topologies: dict[str, Topology]) -> None:
    nodes = [topology.node for topology in topologies.values()]
    launcher = Srun("srun", "Slurm 22.05.8", {}, {})
    with pytest.raises(LaunchError, match="CPU numbers of n0 are not known"):
        launcher.command(7, "/a", slots((0, 0, (0,))), nodes, "/r")


# What slurmd 22.05 prints.
REPORT = """cpu-bind=MAP  - n0, task  0  0 [6242]: mask 0x2 set
some words of the program
cpu-bind=MASK - n1, task  1  0 [812]: mask 0x8080 set
"""


@pytest.mark.parametrize("text, expected", [
    (REPORT, {0: {1}, 1: {7, 15}}),
    ("cpu_bind=MASK - n0, task 12  3 [99]: mask 0x300\n", {12: {8, 9}}),
    ("cpu-bind-cores=MASK - n0, task  0  0 [99]: mask 0x3 set\n", {0: {0, 1}}),
    ("cpu-bind=MASK - n0, task  0  0 [99]: mask 0x3 FAILED\n", {}),
    ("cpu-bind=NONE - n1, task  0  0 [56]: mask 0x0\n", {}),
    ("cpu-bind=MASK - n0, task  0  0 [99]: mask 0x3", {}),
    ("", {}),
])
def test_parse_masks(text: str, expected: Mapping[int, Any]) -> None:
    assert parse_masks(text) == {rank: frozenset(cpus) for rank, cpus in expected.items()}


@pytest.mark.parametrize("text, expected", [
    (REPORT, BindingCheck("ok")),
    (REPORT.replace("0x2", "0x4"),
     BindingCheck("mismatch", ("rank 0 of n0: runs on CPU 2, wanted CPU 1",))),
    ("", BindingCheck("unchecked", (
        "2 rank(s): no binding reported by slurmd, which was not the one to bind them, or has no "
        "TaskPlugin=task/affinity",))),
])
def test_bindings(topologies: dict[str, Topology], text: str, expected: BindingCheck,
                  tmp_path: Path) -> None:
    errors = tmp_path / "a.e"
    errors.write_text(text)
    nodes = [topology.node for topology in topologies.values()]
    launcher = Srun("srun", "Slurm 22.05.8", {}, topologies)
    placed = slots((0, 0, (1,)), (1, 1, (3,)))
    assert launcher.check_bindings(errors, tmp_path / "a.o", placed, nodes) == expected


@pytest.mark.parametrize("code, text, expected", [
    (143, "srun: error: n1: task 1: Exited with exit code 3\n"
          "srun: launch/slurm: _step_signal: Terminating StepId=1.7\n"
          "srun: error: n0: task 0: Terminated\n", 3),
    (143, "srun: error: n1: tasks 1,3-4: Segmentation fault (core dumped)\n"
          "srun: error: n0: task 0: Terminated\n", 139),
    (137, "words\nsrun: error: n1: task 1: Killed\n", 137),
    (1, "srun: error: Unable to create step for job 5: Job is finished\n", 1),
    (0, "srun: error: n1: task 1: Killed\n", 0), (7, "", 7),
])
def test_exit_codes(code: int, text: str, expected: int, tmp_path: Path) -> None:
    errors = tmp_path / "a.e"
    errors.write_text(text)
    assert Srun("srun", "", {}, {}).exit_code(code, tmp_path / "a.o", errors) == expected


def test_the_step_is_not_asked_for_what_the_job_was_asked_for() -> None:
    env = {"PATH": "/bin", "SLURM_JOB_ID": "5", "SLURM_OVERLAP": "1", "SLURM_CPUS_PER_TASK": "8",
           "SRUN_CPUS_PER_TASK": "8", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "1",
           "SLURM_CPU_BIND": "cores", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_NNODES": "4",
           "SLURM_DISTRIBUTION": "block", "SLURM_HINT": "nomultithread",
           "SLURM_NODELIST": "n[0-3]", "SLURM_CONF": "/etc/slurm.conf"}
    assert step_environment(env, {"SLURM_HINT": "nomultithread"}) == {
        "PATH": "/bin", "SLURM_JOB_ID": "5", "SLURM_OVERLAP": "1",
        "SLURM_HINT": "nomultithread", "SLURM_NODELIST": "n[0-3]",
        "SLURM_CONF": "/etc/slurm.conf"}


def stand_in(folder: Path, version: str) -> dict[str, str]:
    """An environment whose srun says this of itself."""
    folder.mkdir()
    (folder / "srun").write_text(f"#!/bin/sh\necho '{version}'\n")
    (folder / "srun").chmod(0o755)
    return {"PATH": str(folder), "SLURM_JOB_ID": "5"}


def test_finding_srun(tmp_path: Path, topologies: dict[str, Topology]) -> None:
    env = stand_in(tmp_path / "bin", "slurm 22.05.8")
    settings = Settings(Kind="srun")
    found = make_launcher(settings, False, topologies, env)
    assert found.version_text == "Slurm 22.05.8"
    assert found.mpirun == os.path.join(env["PATH"], "srun")
    with pytest.raises(LaunchError, match="SLURM_JOB_ID is not set"):
        make_launcher(settings, False, topologies, {"PATH": env["PATH"]})
    with pytest.raises(LaunchError, match="srun is not an executable program on PATH; load"):
        make_launcher(settings, False, topologies, {"PATH": "/no", "SLURM_JOB_ID": "5"})
    with pytest.raises(LaunchError, match="Emulate"):
        make_launcher(settings, True, topologies, env)
    other = stand_in(tmp_path / "other", "unsruned 1.0")
    with pytest.raises(LaunchError, match="says `unsruned 1.0`, which is not Slurm's srun"):
        make_launcher(settings, False, topologies, other)
