"""Memory and GPUs that a batch system grants, by its environment and by what its programs print."""

from __future__ import annotations

from pathlib import Path
from collections.abc import Mapping, Sequence

import pytest

from vrm.live.batch.base import BatchJob, NodeShare, indices_of, systems
from vrm.ext.sites.pbs import parse_qstat
from vrm.live.batch.slurm import parse_gres, parse_shares
from vrm.system.hosts import host_name

GIB = 1 << 30
NO_ANSWER = BatchJob()

# Slurm 22.05 and 23.11, `scontrol show job -d`: a job on three nodes of two kinds.
SCONTROL = """\
JobId=4711 JobName=vrm
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   NodeList=n[1-3] NumNodes=3 NumCPUs=40 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=40,mem=96G,node=3,billing=40,gres/gpu=5
   JOB_GRES=gpu:5
     Nodes=n[1-2] CPU_IDs=0-15 Mem=32768 GRES=gpu:a100:2(IDX:0,3)
     Nodes=n3 CPU_IDs=0-7 Mem=32768 GRES=gpu:v100:1(IDX:2),nic:1(IDX:0)
   MinCPUsNode=1 MinMemoryNode=32G MinTmpDiskNode=0
   Command=/home/ann/Nodes=x CPU_IDs=1 Mem=1 GRES=gpu:9(IDX:9)
"""


def shares(system: str, env: Mapping[str, str], said: Mapping[str, str], *hosts: str,
           answer: BatchJob = NO_ANSWER) -> dict[str, NodeShare]:
    """What is found where programs print what `said` has for them."""
    def run(argv: Sequence[str]) -> str:
        return said.get(argv[0], "")

    return systems()[system].shares(env, answer, dict.fromkeys(hosts, 1), run)


def test_slurm_says_what_each_node_gives() -> None:
    assert parse_shares(SCONTROL) == {
        "n1": NodeShare(32 * GIB, 2, (0, 3)), "n2": NodeShare(32 * GIB, 2, (0, 3)), "n3": NodeShare(32 * GIB, 1, (2,))}


@pytest.mark.parametrize("line, wanted", [
    ("     Nodes=n1 CPU_IDs=0 Mem=0 GRES=", NodeShare(0, 0)),
    ("     Nodes=n1 CPU_IDs=0 Mem=512", NodeShare(GIB // 2, 0)),
    ("     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)", NodeShare(0, 4, (0, 1, 2, 3))),
    ("     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2", NodeShare(0, 2)),
    ("     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:t4:1(IDX:0),gpu:a100:1(IDX:1)", NodeShare(0, 2, (0, 1))),
    ("     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)\n"
     "     Nodes=n1 CPU_IDs=1 Mem=9 GRES=gpu:1(IDX:1)", NodeShare(9 << 20, 2, (0, 1))),
])
def test_forms_of_slurms_lines(line: str, wanted: NodeShare) -> None:
    assert parse_shares(f"JobId=1\n{line}\n") == {"n1": wanted}


def test_what_is_no_line_of_slurms_says_nothing() -> None:
    for text in ("", "slurm_load_jobs error: Invalid job id specified\n", "     Nodes=[ CPU_IDs=0 Mem=1\n"):
        assert parse_shares(text) == {}


def test_a_slurm_job_with_gpus() -> None:
    env = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_GPUS": "0,3",
           "SLURMD_NODENAME": "n1", "SLURM_GPUS_PER_NODE": "a100:2", "SLURM_MEM_PER_NODE": "1048576"}
    found = shares("slurm", env, {"scontrol": SCONTROL}, "n1", "n3", "n4")
    assert found == {"n1": NodeShare(32 * GIB, 2, (0, 3)), "n3": NodeShare(32 * GIB, 1, (2,)),
                     "n4": NodeShare(1024 * GIB, 0)}
    # scontrol does not answer: the environment knows of this node, and how many the others have.
    assert shares("slurm", env, {}, "n1", "n2") == {"n1": NodeShare(1024 * GIB, 2, (0, 3)),
                                                    "n2": NodeShare(1024 * GIB, 2)}


@pytest.mark.parametrize("text, given", [
    ("n1 gpu:a100:4(S:0-1)\nn2 (null)\n", {"n1": True, "n2": False}),
    ("n1 gpu:4\nn1 nic:2,gpu:4\n", {"n1": True}),
    ("n1 gpuram:4\n", {"n1": False}),
    ("", {}),
])
def test_whether_slurm_gives_out_gpus(text: str, given: dict[str, bool]) -> None:
    assert parse_gres(text) == given


def test_a_slurm_job_that_asked_for_no_gpu_has_none_of_those_that_slurm_gives_out() -> None:
    env = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_MEM_PER_CPU": "2G",
           "SLURM_JOB_CPUS_PER_NODE": "8,4"}
    assert shares("slurm", env, {"sinfo": "n1 gpu:2\nn2 (null)\n"}, "n1", "n2") == {
        "n1": NodeShare(16 * GIB, 0), "n2": NodeShare(8 * GIB)}
    assert shares("slurm", {**env, "SLURM_MEM_PER_CPU": "0"}, {}, "n1") == {"n1": NodeShare()}


# OpenPBS 20 and 22, `qstat -f`: chunks with GPUs and memory; a long value goes on in the next line.
QSTAT = """\
Job Id: 12.login
    Resource_List.walltime = 01:00:00
    exec_vnode = (n0:ncpus=8:ngpus=2:mem=4194304kb)+(n1[0]:ncpus=4:mem=2097152k
\tb:ngpus=1+n1[1]:ncpus=4:ngpus=0)
    run_count = 1
"""


def test_pbs_says_what_each_chunk_gives() -> None:
    answer = parse_qstat(QSTAT)
    assert answer.cores == {"n0": 8, "n1": 8} and answer.runs == 1
    assert shares("pbs", {}, {}, "n0", "n1", answer=answer) == {"n0": NodeShare(4 * GIB, 2),
                                                                "n1": NodeShare(2 * GIB, 1)}


def test_a_chunk_without_gpus_has_none_where_others_have_some() -> None:
    answer = parse_qstat("    exec_vnode = (n0:ncpus=8:ngpus=2)+(n1:ncpus=8)\n")
    assert shares("pbs", {}, {}, "n0", "n1", answer=answer) == {"n0": NodeShare(0, 2), "n1": NodeShare(0, 0)}
    answer = parse_qstat("    exec_vnode = (n0:ncpus=8)+(n1:ncpus=8)\n")
    assert shares("pbs", {}, {}, "n0", "n1", answer=answer) == {"n0": NodeShare(), "n1": NodeShare()}


def test_torque_has_a_file_of_gpus(tmp_path: Path) -> None:
    (tmp_path / "gpus").write_text("n0-gpu1\nn0-gpu0\nn2.site-gpu3\n")
    env = {"PBS_GPUFILE": str(tmp_path / "gpus")}
    assert shares("pbs", env, {}, "n0", "n1", "n2.site") == {
        "n0": NodeShare(0, 2, (0, 1)), "n1": NodeShare(0, 0), "n2.site": NodeShare(0, 1, (3,))}
    assert shares("pbs", {"PBS_GPUFILE": str(tmp_path / "none")}, {}, "n0") == {}


def test_grid_engine_names_those_of_its_first_host() -> None:
    own = host_name()
    assert shares("gridengine", {"SGE_HGR_gpu": "0 2"}, {}, own, "n1") == {own: NodeShare(0, 2, (0, 2))}
    assert shares("gridengine", {}, {}, own) == {}


@pytest.mark.parametrize("text, wanted", [("0,2-4", (0, 2, 3, 4)), ("7", (7,)), ("", None),
                                          ("GPU-1", None), ("1,", None)])
def test_lists_of_indices(text: str, wanted: object) -> None:
    assert indices_of(text) == wanted
