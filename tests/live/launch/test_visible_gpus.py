"""Which GPUs the tasks of a job see: the table of a job, the script that reads it, and real launchers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from collections.abc import Mapping, Sequence

import pytest
from conftest import mpiexecs, mpirun_environment, mpiruns

from vrm.config.schema import LauncherSettings as Settings
from vrm.live.launch.base import make_launcher
from vrm.live.launch.visible_gpus import SCRIPT, VisibleGpus
from vrm.live.nodes.topology import Gpu, read_topology
from vrm.model import Node, RankSlot
from vrm.model.job import Request

VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
             "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
A, B, C, D = (Gpu("nvidia", number, f"GPU-{letter}", f"GPU-{letter}")
              for number, letter in enumerate("abcd"))
NODES = (Node("n0", (4, 4)), Node("n1", (4, 4)), Node("n2", (4, 4)))
TABLE = Path("/r/a.7.gpus")


def booking(tasks: Sequence[tuple[int, int]], devices: Mapping[int, Sequence[int]], gpus: int = 0,
            gpus_per_node: int = 0, share: str = "cores", alone: bool = False) -> Any:
    """A job with tasks on nodes (node, how many) that holds these devices."""
    request = Request.of(sum(number for _, number in tasks), resources={"gpu": gpus},
                         per_node={"gpu": gpus_per_node}, exclusive=alone and share == "cores")
    placement = SimpleNamespace(
        parts=(),         nodes=[node for node, _ in tasks], share=share, ranks_by_node=lambda nodes: iter(tasks),
        alone=int(alone),
        devices={node: {"gpu": tuple(indices)} for node, indices in devices.items()})
    return SimpleNamespace(job=SimpleNamespace(request=request), placement=placement)


def table(gpus: Mapping[str, Sequence[Gpu]], job: Any, chosen: Sequence[str] = (),
          whole: bool = False, variables: Mapping[str, str] = {}) -> list[str]:
    """The lines of a job's table; none where the program is started as it is."""
    program, arguments, files = VisibleGpus(gpus, chosen, whole).wrapped(
        job, NODES, Path("/apps/a"), ("-x", "a b"), variables, TABLE)
    if not files:
        assert (program, arguments) == (Path("/apps/a"), ("-x", "a b"))
        return []
    assert (program, arguments) == ("/bin/sh", (SCRIPT, str(TABLE), "/apps/a", "-x", "a b"))
    return files[TABLE].splitlines()


BOTH = {"n0": (A, B), "n1": (C, D)}


def test_each_task_sees_its_own() -> None:
    job = booking([(0, 2), (1, 1)], {0: (1, 0), 1: (3,)}, gpus=1)
    assert table(BOTH, job) == ["0 CUDA_VISIBLE_DEVICES=GPU-b", "1 CUDA_VISIBLE_DEVICES=GPU-a",
                                "2 CUDA_VISIBLE_DEVICES=GPU-d"]
    job = booking([(0, 1), (1, 1)], {0: (0, 1), 1: (2, 3)}, gpus=2)
    assert table(BOTH, job) == ["0 CUDA_VISIBLE_DEVICES=GPU-a,GPU-b",
                                "1 CUDA_VISIBLE_DEVICES=GPU-c,GPU-d"]


def test_all_tasks_of_a_node_see_those_of_the_node() -> None:
    job = booking([(0, 2), (1, 2)], {0: (1,), 1: (2,)}, gpus_per_node=1)
    assert table(BOTH, job) == ["0 CUDA_VISIBLE_DEVICES=GPU-b", "1 CUDA_VISIBLE_DEVICES=GPU-b",
                                "2 CUDA_VISIBLE_DEVICES=GPU-c", "3 CUDA_VISIBLE_DEVICES=GPU-c"]
    job = booking([(0, 1)], {0: (1, 0)}, gpus=1, gpus_per_node=1)  # its own, then the node's
    assert table(BOTH, job) == ["0 CUDA_VISIBLE_DEVICES=GPU-b,GPU-a"]


def test_one_process_for_all_tasks_sees_all() -> None:
    job = booking([(0, 2)], {0: (1, 0)}, gpus=1)
    assert table(BOTH, job, whole=True) == ["* CUDA_VISIBLE_DEVICES=GPU-b,GPU-a"]


def test_each_maker_has_its_variable() -> None:
    """And what hides the GPUs of another maker on the same node."""
    amd, intel = Gpu("amd", 1, "GPU-0123"), Gpu("intel", 2, "0")
    job = booking([(0, 1)], {0: (1,)}, gpus=1)
    assert table({"n0": (Gpu("nvidia", 0, "0"), amd, intel)}, job) == [
        "0 CUDA_VISIBLE_DEVICES= ROCR_VISIBLE_DEVICES=GPU-0123 ZE_AFFINITY_MASK=4095"]
    assert table({"n0": (amd,)}, job) == ["0 ROCR_VISIBLE_DEVICES=GPU-0123"]


def test_who_asks_for_none_sees_none_where_others_may_be() -> None:
    shared = booking([(0, 1), (2, 1)], {})
    assert table(BOTH, shared) == ["* CUDA_VISIBLE_DEVICES="]
    assert table({"n0": (Gpu("intel", 0, "0"),)}, shared) == ["* ZE_AFFINITY_MASK=4095"]
    assert table(BOTH, booking([(2, 1)], {})) == []  # n2 has none
    assert table(BOTH, booking([(0, 1)], {}, share="half")) == ["* CUDA_VISIBLE_DEVICES="]  # strip


def test_who_has_the_node_alone_sees_what_there_is() -> None:
    assert table(BOTH, booking([(0, 1)], {}, share="whole", alone=True)) == []
    assert table(BOTH, booking([(0, 1)], {}, share="half", alone=True)) == []  # spare
    assert table(BOTH, booking([(0, 1)], {}, alone=True)) == []  # exclusive under pack


def test_a_users_own_word_counts_for_who_asks_for_none() -> None:
    shared = booking([(0, 1)], {})
    assert table(BOTH, shared, variables={"CUDA_VISIBLE_DEVICES": "0"}) == []
    assert table(BOTH, shared, chosen=["ROCR_VISIBLE_DEVICES", "OTHER"]) == []
    asking = booking([(0, 1)], {0: (1,)}, gpus=1)
    assert table(BOTH, asking, variables={"CUDA_VISIBLE_DEVICES": "0"}) == [
        "0 CUDA_VISIBLE_DEVICES=GPU-b"]


# ------------------------------------------------------------------------------------- the script

SHOW = "for name in {}; do eval \"echo $name=\\${{$name-unset}}\"; done".format(" ".join(VARIABLES))


def started(folder: Path, lines: str, env: Mapping[str, str] = {}, program: Sequence[str] = (
        "/bin/sh", "-c", SHOW)) -> subprocess.CompletedProcess[str]:
    (folder / "t").write_text(lines)
    return subprocess.run(["/bin/sh", SCRIPT, str(folder / "t"), *program],
                          env={"PATH": "/bin:/usr/bin", **env}, input="what it reads\n", text=True,
                          capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize("env, task", [
    ({"OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0"}, 1), ({"PMI_RANK": "1", "SLURM_PROCID": "0"}, 1),
    ({"PMIX_RANK": "1"}, 1), ({"SLURM_PROCID": "1"}, 1), ({"OMPI_COMM_WORLD_RANK": "11"}, 11), ({}, 0)])
def test_the_script_finds_its_task(tmp_path: Path, env: dict[str, str], task: int) -> None:
    lines = "".join(f"{number} CUDA_VISIBLE_DEVICES=g{number}\n" for number in range(12))
    done = started(tmp_path, lines, {**env, "CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1",
                                     "GPU_DEVICE_ORDINAL": "1"})
    assert done.stdout.splitlines() == [f"CUDA_VISIBLE_DEVICES=g{task}", *(
        f"{name}=unset" for name in VARIABLES[1:])]
    assert not done.stderr


def test_the_script_leaves_the_program_alone(tmp_path: Path) -> None:
    """Its arguments, its input, its exit code, and its process, which is the script's own."""
    done = started(tmp_path, "* CUDA_VISIBLE_DEVICES= ZE_AFFINITY_MASK=4095\n", {}, (
        "/bin/sh", "-c", 'cat; echo "$1|$2|$CUDA_VISIBLE_DEVICES|$ZE_AFFINITY_MASK"; exit 7', "p", "a  b",
        "*"))
    assert done.stdout == "what it reads\na  b|*||4095\n" and done.returncode == 7
    ended = started(tmp_path, "* CUDA_VISIBLE_DEVICES=1\n", {}, ("/bin/sh", "-c", "kill -9 $$"))
    assert ended.returncode == -9


def test_a_task_that_the_table_does_not_have_does_not_start(tmp_path: Path) -> None:
    done = started(tmp_path, "0 CUDA_VISIBLE_DEVICES=a\n", {"PMI_RANK": "3"})
    assert done.returncode == 126 and not done.stdout
    assert "the GPUs of task 3 are not known from" in done.stderr


# -------------------------------------------------------------------------------- real launchers

LAUNCHERS = [("openmpi", mpirun) for mpirun in mpiruns()] + [("hydra", found) for found in mpiexecs()
                                                             ] + [("direct", "auto")]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("kind, program", LAUNCHERS)
def test_tasks_of_each_launcher_see_their_own(tmp_path: Path, kind: str, program: str) -> None:
    """Two tasks, which both find all GPUs in the environment around."""
    topology = read_topology()
    if topology.cores < 2:
        pytest.skip("needs two cores")
    job = booking([(0, 2)], {0: (1, 0)}, gpus=1)
    env = {**mpirun_environment(), "CUDA_VISIBLE_DEVICES": "0,1"}
    launcher = make_launcher(Settings(Kind=kind, Mpirun=program, AllowRoot=True), False,
                             {topology.host: topology}, env)
    launcher.run_id = "r"
    node = topology.node
    slots = [RankSlot(0, 0, 0, (0,)), RankSlot(1, 0, 0, (1,)) if node.sockets[0] > 1
             else RankSlot(1, 0, 1, (0,))]
    path, arguments, files = VisibleGpus({node.name: (A, B)}, (), not launcher.rank_variables).wrapped(
        job, [node], "/bin/sh", ("-c", "echo seen $CUDA_VISIBLE_DEVICES"), {}, tmp_path / "t.gpus")
    launch = launcher.command(7, path, slots, [node], tmp_path / "a.7.rf", arguments)
    for place, text in (*launch.files.items(), *files.items()):
        place.write_text(text)
    done = subprocess.run(launch.argv, env=dict(launch.env), text=True, capture_output=True,
                          check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = sorted(line for line in done.stdout.splitlines() if line.startswith("seen"))
    assert seen == (["seen GPU-b,GPU-a"] if kind == "direct" else ["seen GPU-a", "seen GPU-b"])
