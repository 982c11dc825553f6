"""Inside a PBS job: what a job finds there, as recorded in jobs of OpenPBS 23.06, and programs that
stand in for pbs_attach and qstat."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from conftest import Site, wait_until
from vrm.live.batch.adoption import ATTACH_AFTER, Adoption, launch_agent
from vrm.live.batch.allocation import attach_command, find_allocation
from vrm.ext.sites.pbs import parse_pbsnodes
from vrm.live.launch.openmpi import OpenMPI
from vrm.live.manager.stopping import Idle
from vrm.live.nodes.agents import Agents
from vrm.live.nodes.runner_commands import command_line
from vrm.live.nodes.topology import Topology

LOG = 'echo "$VRM_JOB_ID" >> "$(dirname "$0")/log"\n'
WAIT = LOG + 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n'


@pytest.fixture
def pbs(tmp_path: Path) -> dict[str, str]:
    """The environment of a PBS job of one node, with a pbs_attach that logs what it is asked."""
    folder = tmp_path / "opt" / "pbs" / "bin"
    folder.mkdir(parents=True)
    program = folder / "pbs_attach"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/attached\n[ "$3" = -p ] && exit\n'
                       'shift 2\nexec "$@"\n')
    program.chmod(0o755)
    (tmp_path / "nodefile").write_text(os.uname().nodename + "\n")
    return {"PBS_JOBID": "11.login", "PBS_NODEFILE": str(tmp_path / "nodefile"),
            "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_EXEC": str(tmp_path / "opt" / "pbs"),
            "NCPUS": "2", "OMP_NUM_THREADS": "2"}


def attached(tmp_path: Path) -> list[str]:
    path = tmp_path / "attached"
    return path.read_text().splitlines() if path.exists() else []


# Which cores are granted where.

QSTAT = """\
Job Id: 5.login
    Job_Name = vn.pbs
    Job_Owner = user@login
    job_state = R
    queue = workq
    server = login
    exec_host = {hosts}
    exec_vnode = {vnodes}
    Rerunable = True
    Resource_List.nodect = 2
    Resource_List.place = scatter
    Resource_List.walltime = 00:10:00
    stime = Sun Nov 22 04:04:43 2026
    substate = 41
    Variable_List = PBS_O_HOME=/home/user,PBS_O_LOGNAME=user,
	PBS_O_PATH=/usr/local/bin:/usr/bin:/bin:/opt/pbs/bin,PBS_O_SHELL=/bin/ba
	sh,PBS_O_QUEUE=workq,PBS_O_HOST=login
    comment = Job run at Sun Nov 22 at 04:04 on (rack1:ncpus=1)+(n0:ncpus=2)
    run_count = 1
    Submit_arguments = vn.pbs
    project = _pbs_project_default
    Submit_Host = login

"""
"""As `qstat -f` printed it; the hosts and vnodes were `rack1/0+n0/0*2` and
`(rack1:ncpus=1)+(n0:ncpus=2)`, and the file of nodes had n2 and n0."""

PBSNODES = """\
{}
     Mom = n2
     ntype = PBS
     state = free
     pcpus = 2
     jobs = 5.login/0
     resources_available.arch = linux
     resources_available.host = {}
     resources_available.mem = 24684084kb
     resources_available.ncpus = 2
     resources_available.vnode = rack1
     resources_assigned.ncpus = 1
     resv_enable = True
     sharing = default_shared
     license = l

"""


@pytest.mark.parametrize("nodes, vnodes, known, expected", [
    ("n2 n0", "(rack1:ncpus=1)+(n0:ncpus=2)", {}, {"n2": 1, "n0": 2}),
    ("n2 n0 n1", "(r1:ncpus=1)+(r2:ncpus=3)+(n1:ncpus=2)", {}, {"n2": 1, "n0": 3, "n1": 2}),
    ("n0.site n1.site", "(n0:ncpus=4)+(n1:ncpus=2)", {}, {"n0.site": 4, "n1.site": 2}),
    ("n0 n1", "(n0[0]:ncpus=2+n0[1]:ncpus=2)+(n1[0]:ncpus=1)", {}, {"n0": 4, "n1": 1}),
    ("big small", "(s1:ncpus=2+s2:ncpus=3)+(small:ncpus=1)", {"s1": "big", "s2": "big"},
     {"big": 5, "small": 1}),
    ("big small", "(s1:ncpus=2+s2:ncpus=3)+(small:ncpus=1)", {}, {"big": 2, "small": 1})])
def test_vnodes_that_are_not_named_as_their_hosts(
        tmp_path: Path, nodes: str, vnodes: str, known: dict[str, str],
        expected: dict[str, int]) -> None:
    """Each host gets its own number of cores, not that of the first chunk (NCPUS). Where vnodes of
    other names are more than the hosts, pbsnodes is asked."""
    (tmp_path / "nodefile").write_text("\n".join(nodes.split()) + "\n")
    (tmp_path / "qstat.txt").write_text(QSTAT.format(hosts="", vnodes=vnodes))
    (tmp_path / "pbsnodes.txt").write_text("".join(PBSNODES.format(*each)
                                                   for each in known.items()))
    for name in ("qstat", "pbsnodes"):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.txt\n")
        (tmp_path / name).chmod(0o755)
    # NCPUS as it was in that job: the cores of the first chunk, less with ompthreads.
    env = {"PBS_JOBID": "5.login", "PBS_NODEFILE": str(tmp_path / "nodefile"), "NCPUS": "2",
           "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = find_allocation(env)
    assert dict(found.cores) == {**dict.fromkeys(nodes.split(), 2), **expected}
    assert list(found.hosts) == nodes.split() and found.runs == 1


def test_hosts_of_vnodes() -> None:
    assert parse_pbsnodes(PBSNODES.format("rack1", "n2") + PBSNODES.format("n0", "n0")) == {
        "rack1": "n2", "n0": "n0"}
    assert parse_pbsnodes("Node: rack1,  Error: Unknown node\n") == {}


# What adds processes to the job.


def test_pbs_attach_is_found_inside_of_a_pbs_job_alone(pbs: dict[str, str], tmp_path: Path
                                                       ) -> None:
    program = f"{pbs['PBS_EXEC']}/bin/pbs_attach"
    assert attach_command(pbs) == (program, "-j", "11.login")
    conf = tmp_path / "pbs.conf"
    conf.write_text(f"PBS_SERVER=login\nPBS_EXEC={pbs.pop('PBS_EXEC')}\n")
    assert attach_command({**pbs, "PBS_CONF_FILE": str(conf)}) == (program, "-j", "11.login")
    assert attach_command({**pbs, "PBS_CONF_FILE": "/none", "PATH": str(Path(program).parent)}
                          ) == (program, "-j", "11.login")
    assert attach_command({**pbs, "PBS_CONF_FILE": "/none", "PATH": "/none"}) == ()  # Torque
    for wrong in ("", "-x", "1; true"):
        assert attach_command({**pbs, "PBS_JOBID": wrong, "PBS_CONF_FILE": str(conf)}) == ()
    assert attach_command({"SLURM_JOB_ID": "1", "PBS_CONF_FILE": str(conf)}) == ()


def test_what_ssh_starts_attaches_itself_first(pbs: dict[str, str], tmp_path: Path) -> None:
    """The command that ssh gets, run here by a shell; the agent starts though PBS refuses."""
    way = command_line("far", "ssh", 5, (), attach=attach_command(pbs))
    assert way[0] == "ssh" and way[-2] == "far"
    assert "pbs_attach" not in command_line("far", "srun", 5, (), attach=attach_command(pbs))[-1]
    for status in ("0", "1"):
        Path(pbs["PBS_EXEC"], "bin", "pbs_attach").write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/attached; exit {status}\n')
        agents = Agents(["far"], env={**os.environ, **pbs}, timeout=30,
                        command=["/bin/sh", "-c", 'eval "exec $1"'], attach=attach_command(pbs))
        try:
            found, failed = agents.settle()
        finally:
            agents.close()
        assert list(found) == ["far"] and not failed
    assert [line.rpartition(" ")[0] for line in attached(tmp_path)] == ["-j 11.login -p"] * 2


def test_mpirun_starts_its_daemons_by_pbs_attach(pbs: dict[str, str]) -> None:
    program = f"{pbs['PBS_EXEC']}/bin/pbs_attach -j 11.login"
    assert launch_agent(4, pbs) == {"OMPI_MCA_orte_launch_agent": f"{program} orted"}
    assert launch_agent(5, pbs) == {"PRTE_MCA_prte_launch_agent": f"{program} prted"}
    assert launch_agent(4, {"PATH": "/none"}) == {}


@pytest.mark.parametrize("nodes, own, expected", [
    (("n0", "n1"), {}, "{} -j 11.login orted"), (("n0",), {}, None),
    (("n0", "n1"), {"OMPI_MCA_orte_launch_agent": "mine"}, "mine")])
def test_jobs_on_several_nodes_get_the_launch_agent(
        pbs: dict[str, str], tmp_path: Path, nodes: list[str], own: dict[str, str],
        expected: str) -> None:
    from vrm.config.schema import LauncherSettings as Settings
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    mpirun.chmod(0o755)
    settings = Settings(Mpirun=str(mpirun), AllowRoot=True, Environment=own)
    machines = {name: Topology.regular(name, (2,)) for name in nodes}
    env = OpenMPI.detect(settings, False, machines, {**pbs, "PATH": os.environ["PATH"]}).env
    assert env.get("OMPI_MCA_orte_launch_agent") == (
        expected and expected.format(f"{pbs['PBS_EXEC']}/bin/pbs_attach"))


def test_sessions_are_added_one_by_one_while_their_jobs_run(
        pbs: dict[str, str], tmp_path: Path) -> None:
    adoption = Adoption(attach_command(pbs))
    for job_id, session in ((0, 100), (1, 101), (2, 102)):
        adoption.add(job_id, session, 50.0)
    assert adoption.deadline(50.0) == 50.0 + ATTACH_AFTER
    adoption.poll(50.0, {0: 100})
    assert not attached(tmp_path)

    def done() -> bool:
        adoption.poll(60.0, {0: 100, 1: 999, 2: 102})  # job 1 has ended and begun again
        return adoption.deadline(60.0) == float("inf")

    wait_until(done, "all are added")
    assert attached(tmp_path) == ["-j 11.login -p 100", "-j 11.login -p 102"]
    assert not adoption.trouble
    Path(pbs["PBS_EXEC"], "bin", "pbs_attach").write_text("#!/bin/sh\necho refused >&2; exit 1\n")
    adoption.attach(103)
    wait_until(done, "it has failed")
    assert adoption.trouble == "refused"


def test_the_jobs_of_a_run_belong_to_the_batch_job(
        site: Site, pbs: dict[str, str], tmp_path: Path) -> None:
    """Those that run longer than a second."""
    site.config(Launcher={"Kind": "direct"}, Nodes="auto")
    long = site.program("long.x", WAIT)
    site.program("short.x", LOG)
    site.lines("short.x 1 9 0", "long.x 1 60 0")
    manager = site.start(**pbs)
    wait_until(lambda: attached(tmp_path), "the long one is added")
    Path(f"{long}.go").touch()
    assert "completed" in site.finish(manager)
    line, = attached(tmp_path)
    assert line.startswith("-j 11.login -p ")
    assert site.statuses() == {0: "completed", 1: "completed"}


def test_a_pbs_that_refuses_is_told_once(site: Site, pbs: dict[str, str]) -> None:
    Path(pbs["PBS_EXEC"], "bin", "pbs_attach").write_text(
        "#!/bin/sh\necho no such job >&2; exit 1\n")
    site.config(Launcher={"Kind": "direct"}, Nodes="auto")
    site.program("short.x", LOG + "sleep 2\n")
    site.lines("short.x 1 9 0", "short.x 1 9 0")
    said = site.finish(site.start(**pbs))
    assert said.count("jobs do not belong to the batch job, and would outlive its end: "
                      "no such job") == 1
    assert site.statuses() == {0: "completed", 1: "completed"}


# Suspension.


def test_a_stop_is_seen_wherever_in_its_loop_the_manager_was() -> None:
    """It had not begun to wait yet: what it computed itself is all that does not count."""
    clock, cpu = [100.0], [7.0]
    idle = Idle(lambda: clock[0], lambda: cpu[0])
    clock[0], cpu[0] = 103.0, 10.0  # it worked
    assert idle.seconds() == 0.0
    clock[0], cpu[0] = 108.5, 10.5  # it worked, and was stopped for 5 s meanwhile
    assert idle.seconds() == 5.0 and idle.seconds() == 0.0


@pytest.mark.parametrize("inside", [True, False])
def test_the_time_in_suspension_is_told_and_not_held_against_jobs(
        site: Site, pbs: dict[str, str], inside: bool) -> None:
    """As `qsig -s suspend` does it: everything is stopped. Outside of a batch job only vrm is."""
    site.config(Launcher={"Kind": "direct"}, Nodes="auto", Walltime="kill")
    long = site.program("long.x", WAIT)
    site.lines("long.x 1 6 0")  # of which a busy machine takes some before and after
    manager = site.start(**(pbs if inside else {}))
    wait_until(lambda: site.processes(), "it runs")
    manager.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    wait_until(lambda: time.monotonic() > stopped + 7.0, "it has been stopped for longer than that")
    manager.send_signal(signal.SIGCONT)
    wait_until(lambda: re.search(r"vrm was stopped for ([7-9]|\d\d+) s", site.said(manager)), "that is told")
    if inside:
        assert "the time of its jobs is extended by that" in site.said(manager)
        Path(f"{long}.go").touch()
    site.finish(manager)
    assert site.statuses() == {0: "completed" if inside else "timeout"}
