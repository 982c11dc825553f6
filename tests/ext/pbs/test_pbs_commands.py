"""The commands of PBS on a real manager."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conftest import Site, wait_until
from support.slurm_cluster import Cluster, commands

pytestmark = pytest.mark.slow
assert commands  # the fixture


@pytest.fixture
def cluster(site: Site, commands: Path) -> Cluster:
    return Cluster(site, commands)


def test_a_session_of_a_pbs_user(cluster: Cluster) -> None:
    root = cluster.site.root
    home = root / "home"
    home.mkdir()
    cluster.env.update(HOME=str(home), ONE="1")
    cluster.start()
    assert cluster.said("qstat") == "" and cluster.said("qstat", "-f") == ""
    (root / "job.pbs").write_text(
        "#PBS -N hello\n#PBS -l select=1:ncpus=2:mpiprocs=2,walltime=0:05:00\n#PBS -j oe   # both\n#PBSnot -I\n"
        "echo $PBS_JOBID $PBS_JOBNAME $(wc -l < $PBS_NODEFILE) $NCPUS \"$(pwd)\" $ONE$TWO.\ncd $PBS_O_WORKDIR\n"
        "echo no >&2\nwhile [ -e wait ]; do sleep 0.01; done\nexit 3\n#PBS -I\n")
    (root / "wait").touch()
    first = cluster.said("qsub", "-v", "TWO=b\\,c", "job.pbs").strip()
    assert first == "1.vrm"
    second = cluster.said("qsub", "-W", f"depend=afterany:{first}", "-o", "second.out", "-V",
                          data="echo $ONE; echo never > /dev/null\n").strip()
    held = cluster.said("qsub", "-h", "-N", "a-name-that-is-rather-long", "-p", "7", "--", "/bin/echo", "a b").strip()
    wait_until(lambda: " R " in cluster.said("qstat", "1"), "it runs")
    lines = cluster.said("qstat").splitlines()
    assert lines[0] == "Job id            Name             User              Time Use S Queue"
    assert lines[1] == "----------------  ---------------- ----------------  -------- - -----"
    assert [line.split()[0] for line in lines[2:]] == [first, second, held]
    assert [line[:17].rstrip() for line in lines[2:]] == ["1.vrm", "2.vrm", "3.vrm"]
    assert [line.split()[-2:] for line in lines[2:]] == [["R", "vrm"], ["H", "vrm"], ["H", "vrm"]]
    assert "a-name-that-is-*" in lines[4]
    text = cluster.said("qstat", "-f", "1.vrm")
    assert text.startswith("Job Id: 1.vrm\n    Job_Name = hello\n") and text.endswith("\n\n")
    assert "    job_state = R\n" in text and "    Resource_List.walltime = 00:05:00\n" in text
    assert "    Join_Path = oe\n" in text and max(map(len, text.split("\n"))) <= 79
    known = json.loads(cluster.said("qstat", "-f", "-F", "json"))
    assert set(known["Jobs"]) == {first, second, held} and known["pbs_server"] == "vrm"
    one = known["Jobs"][first]
    assert one["Resource_List"] == {"ncpus": 2, "nodect": 1, "place": "pack", "select": "1:ncpus=2:mpiprocs=2",
                                    "walltime": "00:05:00"}
    assert one["Variable_List"]["TWO"] == "b,c" and re.fullmatch(r"\S+/0\*2", one["exec_host"])
    assert known["Jobs"][held]["Hold_Types"] == "u" and known["Jobs"][held]["Priority"] == 7
    assert cluster.said("qstat", "-F", "dsv", "-f", "3").startswith("Job Id: 3.vrm|Job_Name=a-name")
    assert first in cluster.said("qstat", "-u", cluster.said("qstat").splitlines()[2].split()[2])
    assert cluster.said("qstat", "-u", "nobody") == ""
    nodes = cluster.said("pbsnodes", "-a")
    assert "     state = job-busy\n" in nodes and "     jobs = 1.vrm/0, 1.vrm/1\n" in nodes
    assert next(iter(json.loads(cluster.said("pbsnodes", "-a", "-F", "json"))["nodes"].values()))["resources_assigned"]["ncpus"] == 2

    cluster.said("qalter", "-l", "walltime=1:00:00", held)
    assert json.loads(cluster.said("qstat", "-f", "-F", "json", held))["Jobs"][held]["Resource_List"]["walltime"] == "01:00:00"
    assert cluster.call("qhold", "1").returncode == 168
    (root / "wait").unlink()
    wait_until(lambda: cluster.call("qstat", "2").returncode == 35, "both have ended")
    gone = cluster.call("qstat", first)
    assert gone.stderr == "qstat: 1.vrm Job has finished, use -x or -H to obtain historical job information\n"
    assert (root / "hello.o1").read_text() == f"1.vrm hello 2 2 {home} b,c.\nno\n"  # without -V nothing of the shell's
    assert (root / "second.out").read_text() == "1\n"
    over = json.loads(cluster.said("qstat", "-x", "-f", "-F", "json", first))["Jobs"][first]
    assert (over["job_state"], over["Exit_status"]) == ("F", 3)
    assert [line.split()[-2] for line in cluster.said("qstat", "-x").splitlines()[2:]] == ["F", "F", "H"]
    cluster.said("qrls", "3")
    wait_until(lambda: cluster.call("qstat", "3").returncode == 35, "the held one, too")
    assert (root / "a-name-that-is-rather-long.o3").read_text() == "a b\n"

    # Arrays are one job with parts; waiting for the end; deleting.
    array = cluster.said("qsub", "-J", "1-5:2", "-N", "many", data="echo $PBS_ARRAY_INDEX $PBS_JOBID\nsleep $PBS_ARRAY_INDEX\n"
                         ).strip()
    assert array == "4[].vrm"
    assert [line.split()[0] for line in cluster.said("qstat").splitlines()[2:]] == [array]
    assert [line.split()[0] for line in cluster.said("qstat", "-t").splitlines()[3:]] == [f"4[{i}].vrm" for i in (1, 3, 5)]
    cluster.said("qdel", "4[5]")
    cluster.said("qdel", "4[]")
    wait_until(lambda: cluster.call("qstat", array).returncode == 35, "they have ended")
    assert cluster.call("qstat", "5").returncode == 153  # parts have no number of their own
    assert cluster.call("qsub", "-W", "block=true", data="exit 4\n").returncode == 4

    # What is wrong is said, and nothing has come of it.
    before = cluster.said("qstat", "-x")
    for words, code, said in (
            (["qsub", "-I", "s"], 2, "is a shell with a job"), (["qsub", "gone"], 1, "No such file"),
            (["qsub", "-l", "walltime=soon", "job.pbs"], 166, "no time as"), (["qsub", "-l", "select=0", "job.pbs"], 166, "not of the form"),
            (["qsub", "-l", "select=1:ncpus=1+2:ncpus=2", "job.pbs"], 2, "one kind"), (["qsub", "-l", "foo=3", "job.pbs"], 187, "foo"),
            (["qsub", "-l", "ncpus=99"], 1, "qsub: "), (["qsub", "-l", "nodes=n0:ppn=1"], 166, "not of the form"), (["qsub", "-J", "5", "job.pbs"], 2, "X-Y"),
            (["qsub", "-W", "depend=afterok:99", "job.pbs"], 153, "Unknown Job Id 99.vrm"), (["qsub", "-Y"], 2, "usage"),
            (["qsub", "-W", "depend=before:1", "job.pbs"], 2, "afterok"), (["qsub", "-j", "x", "job.pbs"], 2, "oe, eo"),
            (["qsub", "-a", "2561", "job.pbs"], 2, "a time as"), (["qstat", "99"], 153, "qstat: Unknown Job Id 99.vrm"),
            (["qdel", "99.vrm"], 153, "Unknown Job Id"), (["qdel", "x"], 1, "illegally formed job identifier: x"),
            (["qdel", "1"], 35, "Job has finished"), (["qalter", "-N", "x", "1"], 2, "walltime"), (["qdel"], 2, "usage"),
            (["qstat", "-T"], 2, "queues and the server only"), (["qstat", "-Q", "nosuch"], 170, "Unknown queue"), (["pbsnodes", "nowhere"], 1, "Unknown node")):
        done = cluster.call(*words)
        assert (done.returncode, done.stdout) == (code, "") and said in done.stderr, (words, done)
    assert cluster.said("qstat", "-x") == before
    cluster.stop()
