"""Which nodes a run owns: every form in which batch systems say it, and everything wrong there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from collections.abc import Callable, Mapping

import pytest
from conftest import descendants
from hypothesis import given
from hypothesis import strategies as st

from vrm.live.batch.allocation import Allocation, ask, end_of, find_allocation
from vrm.live.batch.base import AllocationError
from vrm.live.batch.hostfile import parse_hostfile
from vrm.ext.sites.pbs import duration, parse_pbs_time, parse_qstat
from vrm.live.batch.slurm import parse_scontrol, parse_slurm_time, parse_squeue
from vrm.model.forms.hosts import expand

Script = Callable[[str, str], None]
FOUR_O_CLOCK = time.mktime((2026, 11, 21, 16, 0, 0, 0, 0, -1))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Puts stand-ins for a batch system's programs on PATH, and hides the real ones."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("squeue", "scontrol", "qstat"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)

    def add(name: str, text: str) -> None:
        path = folder / name
        path.unlink()
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)

    return add


def here(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with the PATH that the stand-ins are on."""
    return {**env, "PATH": os.environ["PATH"]}


def counts(hosts: Mapping[str, int]) -> list[object]:
    return list(hosts.items())


# ---------------------------------------------------------------------------------- host lists


@pytest.mark.parametrize("text, hosts", [
    ("n0", "n0"),
    ("n[0-3]", "n0 n1 n2 n3"),
    ("n[08-11]", "n08 n09 n10 n11"),
    ("b[3,1-2],a", "b3 b1 b2 a"),
    ("rack[0-1]n[2,1]-ib", "rack0n2-ib rack0n1-ib rack1n2-ib rack1n1-ib"),
    ("gpu-node.site.org", "gpu-node.site.org"),
    ("10.77.0.1", "10.77.0.1"),
])
def test_folded_lists_keep_their_order(text: str, hosts: str) -> None:
    assert expand(text) == hosts.split()


@pytest.mark.parametrize("text", [
    "", "n[", "n]0[", "n[0-", "n[0-3", "n0,,n1", "n[a-b]", "n[]", "-oProxyCommand=x", "n0;id",
    "n0 n1", "@all", "n[0-3]!n1", "$(id)", "n[0-999999999]", "../n0", "n[[0-1]]", "n\n0",
    "-n[0-1]", "n[1-0]"])
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="`"):
        expand(text)


@given(st.lists(st.tuples(st.sampled_from(["n", "rack-", "x1y"]), st.lists(
    st.integers(0, 40), min_size=1, max_size=5)), min_size=1, max_size=4))
def test_lists_are_read_back(parts: list[object]) -> None:
    text = ",".join(f"{name}[{','.join(map(str, numbers))}]" for name, numbers in parts)
    assert expand(text) == [f"{name}{number}" for name, numbers in parts for number in numbers]


# ---------------------------------------------------------------------------------- host files


@pytest.mark.parametrize("text, hosts", [
    ("n0\nn1\n", {"n0": 0, "n1": 0}),
    ("# mine\n\n  n1 slots=4   # half\nn0:8", {"n1": 4, "n0": 8}),
    ("n[0-2] slots=2\nn1 slots=1\n", {"n0": 2, "n1": 3, "n2": 2}),
    ("n[2,0]:4\r\nlogin\r\n", {"n2": 4, "n0": 4, "login": 0}),
])
def test_host_files(text: str, hosts: dict[str, int]) -> None:
    assert counts(parse_hostfile(text)) == counts(hosts)


def test_every_wrong_line_of_a_host_file_is_named() -> None:
    with pytest.raises(AllocationError) as caught:
        parse_hostfile("n0\nn1 slots=0\nn[2\nn3 cores=4\nn4 slots=1 slots=2\nn5:x\n", "my/hosts")
    message = str(caught.value)
    assert [line.split(": ")[0] for line in message.splitlines()[:-1]] == [
        f"my/hosts:{number}" for number in (2, 3, 4, 5, 6)]
    assert "`slots=0` is not understood" in message and "`cores=4` is not understood" in message
    assert message.endswith("where name may be a list such as n[0-3]")


def test_host_files_without_a_host(tmp_path: Path) -> None:
    with pytest.raises(AllocationError, match="no host in it; write one name to a line"):
        parse_hostfile("# none\n")
    with pytest.raises(AllocationError, match="Hosts.File: .*/none: No such .*correct the path"):
        find_allocation({}, tmp_path / "none")


def test_a_host_file_goes_before_the_batch_system(tmp_path: Path, programs: Script) -> None:
    (tmp_path / "hosts").write_text("n7 slots=2\n")
    env = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_JOB_END_TIME": "1700000000"}
    assert find_allocation(env, tmp_path / "hosts") == Allocation(
        "hostfile", ("n7",), {"n7": 2}, "5", 1700000000.0)
    assert find_allocation({}, tmp_path / "hosts") == Allocation("hostfile", ("n7",), {"n7": 2})


def test_this_machine() -> None:
    assert find_allocation({}) == Allocation("machine", (os.uname().nodename.partition(".")[0],))


# --------------------------------------------------------------------------------------- slurm

SLURM = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_JOB_END_TIME": "1700000000"}


@pytest.mark.parametrize("more, cores", [
    ({"SLURM_JOB_CPUS_PER_NODE": "8(x3),4"}, {"n0": 8, "n1": 8, "n2": 8, "n3": 4}),
    ({"SLURM_JOB_CPUS_PER_NODE": "8(x4)", "SLURM_TASKS_PER_NODE": "1(x4)"},
     {"n0": 8, "n1": 8, "n2": 8, "n3": 8}),
    ({"SLURM_TASKS_PER_NODE": "2(x2),1(x2)", "SLURM_CPUS_PER_TASK": "4"},
     {"n0": 8, "n1": 8, "n2": 4, "n3": 4}),
    ({}, {}),
    ({"SLURM_JOB_CPUS_PER_NODE": "8(x3),4", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[2-3]"},
     {"n2": 8, "n3": 4}),
])
def test_slurm(more: dict[str, str], cores: dict[str, int], programs: Script) -> None:
    found = find_allocation({**SLURM, **more})
    hosts = ("n2", "n3") if "SLURM_STEP_ID" in more else ("n0", "n1", "n2", "n3")
    assert found == Allocation("slurm", hosts, cores, "5", 1700000000.0)


def test_counts_go_by_the_order_of_the_list(programs: Script) -> None:
    found = find_allocation({"SLURM_JOBID": "9", "SLURM_NODELIST": "b[1-2],a1",
                             "SLURM_JOB_CPUS_PER_NODE": "4(x2),8"})
    assert found.hosts == ("b1", "b2", "a1") and found.job == "9"
    assert found.cores == {"b1": 4, "b2": 4, "a1": 8}


@pytest.mark.parametrize("env, message", [
    ({"SLURM_JOB_ID": "5"}, "SLURM_JOB_NODELIST: is not set"),
    ({**SLURM, "SLURM_JOB_NODELIST": "n[0-"}, r"SLURM_JOB_NODELIST: `n\[0-` has a bracket"),
    ({**SLURM, "SLURM_JOB_CPUS_PER_NODE": "8(x)"}, r"CPUS_PER_NODE: `8\(x\)` is not a list of"),
    ({**SLURM, "SLURM_JOB_CPUS_PER_NODE": "8(x3)"}, r"`8\(x3\)` is for 3 nodes, and .* names 4"),
    ({**SLURM, "SLURM_JOB_CPUS_PER_NODE": "9(x999999),1(x999999)"}, "is not a list of counts"),
])
def test_slurm_said_wrongly(env: dict[str, str], message: str, programs: Script) -> None:
    with pytest.raises(AllocationError, match=message) as caught:
        find_allocation(env)
    assert "start vrm inside the batch job's script" in str(caught.value)


def test_slurm_is_asked_for_the_end_each_time(programs: Script, tmp_path: Path) -> None:
    end = tmp_path / "end"
    programs("squeue", f'echo "$@" > {tmp_path}/asked; echo "4 N/A"; echo "5 $(cat {end})"\n')
    end.write_text("2026-11-21T16:00:00")
    found = find_allocation(here(SLURM))
    assert found.end == FOUR_O_CLOCK
    assert (tmp_path / "asked").read_text() == "-h -j 5 -o %A %e\n"
    end.write_text("2026-11-21T17:00:00")
    assert end_of(found, here(SLURM)) == FOUR_O_CLOCK + 3600
    end.write_text("N/A")
    assert end_of(found, here({**SLURM, "SLURM_JOB_END_TIME": ""})) == FOUR_O_CLOCK


def test_scontrol_answers_for_squeue(programs: Script) -> None:
    programs("squeue", "echo 'slurm_load_jobs error' >&2; exit 1\n")
    programs("scontrol", "echo 'JobId=5 JobName=x'; echo '  EndTime=2026-11-21T16:00:00 More=N/A'\n")
    assert end_of(Allocation("slurm", ("n0",)), here(SLURM)) == FOUR_O_CLOCK


def test_programs_that_hang_are_not_waited_for(programs: Script) -> None:
    programs("squeue", "exec sleep 600\n")
    programs("scontrol", "sleep 600 & wait\n")
    assert ask(here(SLURM), seconds=0.2).end == 1700000000.0
    assert not descendants(os.getpid(), "sleep 600")


def test_a_job_id_that_is_none_goes_to_no_program(programs: Script, tmp_path: Path) -> None:
    programs("squeue", f"touch {tmp_path}/ran\n")
    assert end_of(Allocation("slurm", ()), here({"SLURM_JOB_ID": "-x 5"})) is None
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text, end", [
    ("5 2026-11-21T16:00:00\n", FOUR_O_CLOCK), ("5 N/A\n", None), ("5 Unknown\n", None), ("", None),
    ("6 2026-11-21T17:00:00\n5 2026-11-21T16:00:00\n", FOUR_O_CLOCK),
    ("55 2026-11-21T17:00:00\n", None), ("5 2026-99-99T99:99:99x\n", None)])
def test_squeue(text: str, end: object) -> None:
    assert parse_squeue(text, "5") == end


def test_scontrol_with_several_jobs() -> None:
    text = ("JobId=6 ArrayJobId=5 ArrayTaskId=1\n   EndTime=2026-11-21T17:00:00 Deadline=N/A\n\n"
            "JobId=5 ArrayJobId=5\n   EndTime=2026-11-21T16:00:00 Deadline=N/A\n")
    assert parse_scontrol(text, "5") == FOUR_O_CLOCK
    assert parse_scontrol(text, "6") == FOUR_O_CLOCK + 3600
    assert parse_scontrol(text, "7") is None
    assert parse_slurm_time("yesterday") is None


# ----------------------------------------------------------------------------------------- pbs

QSTAT_PRO = """\
Job Id: 42.server
    Job_Name = vrm
    job_state = R
    exec_host = n0/0*8+n1/0*8
    exec_vnode = (n0:ncpus=8:mem=4194304kb)+(n1[0]:ncpus=4:mem=2097152kb+n1[1]:
\tncpus=4)
    Resource_List.walltime = 02:00:00
    resources_used.walltime = 00:10:00
    stime = Sat Nov 21 14:00:00 2026
"""

QSTAT_TORQUE = """\
Job Id: 42.server
    exec_host = n0/0-7+n1/0,2-3+n1/5
    Resource_List.walltime = 7200
    start_time = Sat Nov 21 14:00:00 2026
"""


@pytest.fixture
def pbs(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "nodes").write_text("n0.site\n" * 8 + "n1.site\n" * 8)
    return {"PBS_JOBID": "42.server", "PBS_NODEFILE": str(tmp_path / "nodes")}


@pytest.mark.parametrize("text, cores", [
    (QSTAT_PRO, {"n0": 8, "n1": 8}), (QSTAT_TORQUE, {"n0": 8, "n1": 4})])
def test_qstat(text: str, cores: dict[str, int]) -> None:
    answer = parse_qstat(text)
    assert (answer.end, answer.cores) == (FOUR_O_CLOCK, cores)


def test_qstat_that_says_little() -> None:
    assert parse_qstat("") == parse_qstat("qstat: Unknown Job Id 42\n") == parse_qstat(
        "Job Id: 1\n    exec_host = x/y-z+\n    Resource_List.walltime = long\n")


def test_pbs_repeats_its_hosts(pbs: dict[str, str], programs: Script) -> None:
    found = find_allocation(pbs)
    assert found == Allocation("pbs", ("n0.site", "n1.site"), {"n0.site": 8, "n1.site": 8},
                               "42.server", None)


@pytest.mark.parametrize("more, each", [({"NCPUS": "4"}, 4), ({"PBS_NUM_PPN": "8"}, 8), ({}, 1),
                                        ({"NCPUS": "many"}, 1)])
def test_one_line_for_each_node_of_pbs(more: dict[str, str], each: int, tmp_path: Path,
                                       programs: Script) -> None:
    (tmp_path / "nodes").write_text("n1\nn0\n")
    found = find_allocation({"PBS_JOBID": "7", "PBS_NODEFILE": str(tmp_path / "nodes"), **more})
    assert found.hosts == ("n1", "n0") and found.cores == {"n1": each, "n0": each}


def test_qstat_knows_better(pbs: dict[str, str], programs: Script, tmp_path: Path) -> None:
    (tmp_path / "answer").write_text(QSTAT_TORQUE)
    programs("qstat", f'[ "$*" = "-f 42.server" ] && cat {tmp_path}/answer\n')
    found = find_allocation(here(pbs))
    assert found.cores == {"n0.site": 8, "n1.site": 4} and found.end == FOUR_O_CLOCK


def test_a_wall_time_counts_from_the_start_of_the_script(pbs: dict[str, str]) -> None:
    """The session of the job's script is as old as the job."""
    code = ("import sys; from vrm.live.batch.allocation import *\n"
            "print(end_of(Allocation('pbs', ()), {'PBS_JOBID': '1', 'PBS_WALLTIME': '3600'}))")
    before = time.time()
    said = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE,
                          start_new_session=True, env={**os.environ, "PATH": "/nowhere"}).stdout
    assert before - 2 <= float(said) - 3600 <= time.time() + 2


@pytest.mark.parametrize("text, seconds", [
    ("3600", 3600), ("02:00:00", 7200), ("30:00", 1800), ("1:00:00:00", 86400), ("", None),
    ("two", None), ("1:2:3:4:5", None), ("-5", None)])
def test_durations(text: str, seconds: object) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "now", "Sat Foo 21 14:00:00 2026", "Sat Nov 21 14:00 2026"])
def test_what_is_no_time(text: str) -> None:
    assert parse_pbs_time(text) is None


def test_pbs_said_wrongly(tmp_path: Path, programs: Script) -> None:
    with pytest.raises(AllocationError, match="PBS_NODEFILE: is not set in this PBS job"):
        find_allocation({"PBS_JOBID": "7"})
    with pytest.raises(AllocationError, match="PBS_NODEFILE: .*/none: No such file"):
        find_allocation({"PBS_NODEFILE": str(tmp_path / "none")})
    (tmp_path / "nodes").write_text("n0\n-oProxyCommand=x\n")
    with pytest.raises(AllocationError, match="`-oProxyCommand=x` is not the name of a host"):
        find_allocation({"PBS_NODEFILE": str(tmp_path / "nodes")})
    (tmp_path / "nodes").write_text("\n")
    with pytest.raises(AllocationError, match="PBS_NODEFILE: .* names no host"):
        find_allocation({"PBS_NODEFILE": str(tmp_path / "nodes")})
