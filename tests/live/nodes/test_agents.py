"""Agents on stand-in nodes (a script in ssh's place that runs the command here) which hang, fail,
talk nonsense, die and return; ranks and leftovers found among real processes; the real testbed's
part is in test_agents_testbed.py.
"""

from __future__ import annotations

import ast
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from collections.abc import Mapping

import psutil
import pytest

from conftest import LIMIT, mpirun_environment, wait_until
from support.machines import EVEN_ODD_THREADS, machine
from vrm.ext.slurm.calls.sampling import USAGE, JobUsage
from vrm.ext.sites.srun import Srun
from vrm.live.nodes import runner_commands
from vrm.live.runner import agent, proc
from vrm.live.nodes.agents import probe
from vrm.live.nodes.runner_commands import command_line, group_line, is_local
from vrm.live.nodes.agent_events import Affinity, AgentOrder, NodeDown, NodeLost, NodeUp, SweepDone
from vrm.live.nodes.bindings import compare_affinity
from vrm.live.nodes.topology import Topology, node_facts, parse_topology, read_topology
from vrm.live.relay.boot import MODULES, boot
from vrm.model import Node, RankSlot
from vrm.system.hosts import host_name
from vrm.system.transports.base import choose, transports
from vrm.system.transports.ssh import COMMAND as SSH
from support.agents import CPUS, Jobs, OPEN_MPI, RUN, StandIn, jobs, nodes, two_cpus  # noqa: F401


# -------------------------------------------------------------------------- the way to a node

AGENT = os.path.abspath(agent.__file__)


def test_the_command_of_each_way() -> None:
    words = ("/bin/sh", "-c", 'p=/usr/bin/python3; [ -x "$p" ] || p=$1; [ -x "$p" ] || p=python3; shift; exec "$p" -I -S "$@"',
             "sh", sys.executable, "-c", boot(), "n0", sys.executable, boot())
    assert os.path.dirname(agent.__file__) not in str(words), "no file of vrm is read on the node"
    assert command_line("n0", "srun", 9.6) == (
        "srun", "--overlap", "-N1", "-n1", "-w", "n0", "--cpu-bind=none", "--mem=0",
        "--mpi=none", "--export=ALL", "--quiet", "--gres=none", *words)
    assert command_line("n0", "srun", 9.6, gpus=2)[-len(words) - 1:] == ("--gpus=2", *words)
    assert command_line("n0", "ssh", 9.6)[:-1] == (*SSH, "-o", "ConnectTimeout=10", "n0")
    assert shlex.split(command_line("n0", "ssh", 9.6)[-1]) == list(words)
    assert command_line("n0", "ssh", 9.6, ("my", "way"))[:-1] == ("my", "way", "n0")
    assert group_line(["n0", "n1", "m7"], "ssh", 9.6) == ()
    assert group_line(["n0", "n1", "m7"], "srun", 9.6, gpus=2) == (
        "srun", "--overlap", "-N3", "-n3", "-w", "n[0-1],m7", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--no-kill",
        "--wait=0", "--cpu-bind=none", "--mem=0", "--mpi=none", "--export=ALL", "--quiet", "--gpus=6", *words[:-3],
        "$SLURMD_NODENAME", *words[-2:])


def test_a_python_that_is_not_there_is_replaced(tmp_path: Path, nodes: StandIn,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    python3 = tmp_path / "bin" / "python3"
    python3.parent.mkdir()
    python3.write_text(f'#!/bin/sh\ntouch {tmp_path}/replaced\nexec {sys.executable} "$@"\n')
    python3.chmod(0o755)
    nodes.does("n1", f"PATH={python3.parent}:$PATH")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such place's/python")
        patch.setattr(runner_commands, "_START", runner_commands._START.replace("/usr/bin/python3", "/no/such/python3"))
        loop = nodes.make("n1")
    loop.start()
    assert (tmp_path / "replaced").exists()


def test_srun_is_the_way_inside_slurm_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "srun").touch(0o755)
    env = {"SLURM_JOB_ID": "5", "PATH": str(tmp_path)}
    assert choose("auto", env) == "srun"
    assert choose("ssh", env) == "ssh"
    assert choose("auto", {**env, "PATH": "/no/such"}) == "ssh"
    assert choose("auto", {"PATH": str(tmp_path)}) == "ssh"
    assert choose("srun", {}) == "srun"


def test_an_agents_srun_inherits_nothing_of_the_jobs_tasks() -> None:
    env = {"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "4", "SRUN_CPUS_PER_TASK": "4", "A": "b",
           "SLURM_MEM_PER_CPU": "100", "SBATCH_EXPORT": "NONE", "SLURM_CONF": "/c",
           "HWLOC_SYNTHETIC": "pack:1 core:1 pu:1"}
    assert transports()["srun"].environment(env) == {"SLURM_JOB_ID": "5", "SLURM_CONF": "/c", "A": "b",
                                             "HWLOC_SYNTHETIC": "pack:1 core:1 pu:1"}
    assert transports()["ssh"].environment(env) == env


def test_names_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named:
        nodename = "n0.site.org"
    monkeypatch.setattr(os, "uname", Named)
    assert all(is_local(name, {}) for name in ("n0", "n0.site.org", "localhost", "127.0.0.1"))
    assert not any(is_local(name, {}) for name in ("n1", "n0.other.org", "n1.site.org"))
    assert is_local("vn3", {"SLURMD_NODENAME": "vn3"})


# ------------------------------------------------------------------------------- start of a run


def test_all_answer_what_this_machine_is(nodes: StandIn) -> None:
    own = host_name()
    loop = nodes.make("n1", own, "n2")
    found, failed = loop.agents.settle()
    assert failed == {} and sorted(found) == sorted(["n1", "n2", own])
    here = read_topology()
    for host, facts in found.items():
        assert facts.topology.host == host
        assert facts.topology.all_cores == here.all_cores
        assert facts.topology.sockets == here.sockets
        assert facts.memory >= facts.available > 0
        assert facts.boot and not facts.warning
    assert nodes.tries(own) == 0  # no ssh to oneself


FAILURES = {
    "refuses": ("echo 'ssh: connect to host n2 port 22: Connection refused' >&2; exit 255",
                "ssh: connect to host n2 port 22: Connection refused"),
    "has no key": ("echo 'Warning: something' >&2\necho 'user@n2: Permission denied (publickey).' "
                   ">&2; exit 255", r"Permission denied.*\(ssh must work without a password"),
    "ends at once": ("exit 0", "its agent ended and printed nothing"),
    "hangs": ("exec sleep 600", "no answer within 0.5 s$"),
    "asks and hangs": ("echo 'Password:'; sleep 600", "no answer within 0.5 s; it said: Password:"),
    "talks without end": ("exec yes nonsense", "something other than an agent answers there: nons"),
    "talks without a line": ("exec tr '\\0' x < /dev/zero", "something other than an agent answers"),
    "closes its output": ("exec sleep 600 > /dev/null 2>&1", "its agent ended and printed nothing"),
    "is another vrm": ("echo '{\"vrm\":1,\"facts\":{}}'; exec cat > /dev/null",
                       "cannot be read.*same version of vrm"),
    "has no CPU": ("echo '{\"vrm\":1,\"facts\":{\"files\":{},\"cpuset\":[],\"mask\":[],"
                   "\"synthetic\":\"\"}}'; exec cat > /dev/null", "no CPU that this process may"),
    "has no such file": ("exec python3 -I -S /no/such/runner.py",
                         "can't open file.*a file system that all nodes see"),
}


@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.slow
def test_a_node_that_fails_is_named_and_the_others_go_on(what: str, nodes: StandIn) -> None:
    does, reason = FAILURES[what]
    nodes.does("n2", does)
    timeout = 0.5 if "0.5" in reason else 20.0
    loop = nodes.make("n2", timeout=timeout)
    found, failed = loop.agents.settle()
    assert found == {} and list(failed) == ["n2"]
    assert re.search(reason, failed["n2"]), failed["n2"]
    others, none = nodes.make("n1", "n3").agents.settle()
    assert sorted(others) == ["n1", "n3"] and none == {}


@pytest.mark.slow
def test_probe_leaves_nothing_running(nodes: StandIn) -> None:
    nodes.does("n2", "exec sleep 600")
    found, failed = probe(["n1", "n2"], timeout=4.0, command=(str(nodes.ssh),))
    assert list(found) == ["n1"] and list(failed) == ["n2"]
    for pid in nodes.pids("n1") + nodes.pids("n2"):
        assert not psutil.pid_exists(pid)


def test_what_login_scripts_print_is_no_matter(nodes: StandIn) -> None:
    nodes.does("n1", "echo Welcome; echo '{\"json\": 1}'; echo '{'; printf 'no end of line'; "
                     "echo beware >&2")
    loop = nodes.make("n1").start()
    loop.agents.sweep(7)
    assert loop.next(SweepDone) == SweepDone("n1", 7, 0)


def test_a_program_that_is_not_there() -> None:
    found, failed = probe(["n1"], command=("/no/such/ssh",), timeout=1.0)
    assert found == {}
    assert failed == {"n1": "/no/such/ssh cannot be started: No such file or directory"}


def test_the_fan_out_is_kept_and_all_are_reached(nodes: StandIn) -> None:
    hosts = [f"m{i}" for i in range(6)]
    for host in hosts:
        nodes.does(host, f"while [ ! -e {nodes.root}/go ]; do sleep 0.01; done")
    loop = nodes.make(*hosts, fan_out=2)
    loop.until(lambda: sum(map(nodes.tries, hosts)) == 2, "two are connected to")
    assert loop.seen == []
    (nodes.root / "go").touch()
    loop.start()
    assert [nodes.tries(host) for host in hosts] == [1] * 6


def test_synthetic_machines(nodes: StandIn) -> None:
    nodes.does("n1", "export HWLOC_SYNTHETIC='pack:2 core:4 pu:1'")
    nodes.does("n2", "export HWLOC_SYNTHETIC='8'")
    found, _ = nodes.make("n1", "n2", "n3").agents.settle()
    assert found["n1"].topology.node == Node("n1", (4, 4)) and found["n1"].topology.synthetic
    assert found["n2"].topology.sockets == read_topology().sockets
    assert "HWLOC_SYNTHETIC is `8` there" in found["n2"].warning
    assert not found["n3"].topology.synthetic and not found["n3"].warning


def test_facts_travel_whole(tmp_path: Path) -> None:
    machine(tmp_path, EVEN_ODD_THREADS, online=set(range(16)) - {9})
    said = {**agent.facts(), "files": agent.read_files(tmp_path), "cpuset": list(range(2, 16)),
            "mask": [3, 4, 5]}
    facts = node_facts(json.loads(json.dumps(said)), "n0")
    assert facts.topology == parse_topology(tmp_path, "n0", range(2, 16), [3, 4, 5])
    assert facts.topology.node.sockets == (1, 2)
    began = time.time() - time.monotonic() + facts.began
    assert abs(began - psutil.Process(1).create_time()) < 2, "the first process of this machine or container"


# --------------------------------------------------------------------------- life of the agents


def test_a_lost_connection_is_no_lost_node(nodes: StandIn) -> None:
    loop = nodes.make("n1", "n2").start()
    os.kill(nodes.pids("n1")[0], signal.SIGKILL)
    assert loop.next(NodeLost) == NodeLost("n1", "its agent ended and printed nothing")
    assert loop.next(NodeUp).host == "n1" and nodes.tries("n1") == 2
    loop.agents.sweep(1)
    assert {loop.next(SweepDone).host, loop.next(SweepDone).host} == {"n1", "n2"}
    assert loop.seen == []


def test_a_question_survives_its_agent(nodes: StandIn) -> None:
    loop = nodes.make("n1").start()
    pid = nodes.pids("n1")[0]
    os.kill(pid, signal.SIGSTOP)
    loop.agents.sweep(4)
    os.kill(pid, signal.SIGKILL)
    assert loop.next(SweepDone) == SweepDone("n1", 4, 0)


@pytest.mark.slow
def test_a_node_that_hangs_goes_down_and_returns(nodes: StandIn) -> None:
    loop = nodes.make("n1", "n2", timeout=2.0).start()
    nodes.does("n1", "exec sleep 600")
    os.kill(nodes.pids("n1")[0], signal.SIGSTOP)
    assert loop.next(NodeDown) == NodeDown("n1", "no answer to a ping within 2 s")
    loop.agents.sweep(3)
    assert loop.next(SweepDone) == SweepDone("n2", 3, 0)
    assert loop.agents.unanswered() == 0 and loop.agents.unanswered(up_only=False) == 1
    loop.until(lambda: nodes.tries("n1") >= 3, "n1 is tried again and again")
    assert loop.seen == []  # and told once
    assert not loop.agents.sweeping(3)  # not on nodes that could be used
    nodes.does("n1")
    loop.next(NodeUp)
    assert loop.seen == [SweepDone("n1", 3, 0)]  # what was asked meanwhile comes first


def test_a_node_that_dies_goes_down_with_what_ssh_says(nodes: StandIn) -> None:
    loop = nodes.make("n1", "n2", timeout=1.0).start()
    nodes.does("n1", "echo 'ssh: connect to host n1 port 22: No route to host' >&2; exit 255")
    os.kill(nodes.pids("n1")[0], signal.SIGKILL)
    lost = time.monotonic()
    down = loop.next(NodeDown)
    assert down == NodeDown("n1", "ssh: connect to host n1 port 22: No route to host")
    assert time.monotonic() - lost >= 1.0  # not at the first failure
    nodes.does("n1")
    assert loop.next(NodeUp).host == "n1"


def test_a_restarted_node_has_lost_what_it_did(nodes: StandIn) -> None:
    loop = nodes.make("n1").start()
    loop.agents._nodes["n1"].boot = "an earlier one"
    os.kill(nodes.pids("n1")[0], signal.SIGKILL)
    assert loop.next(NodeDown) == NodeDown("n1", "it was restarted")
    assert loop.next(NodeUp).host == "n1"


def test_a_node_that_was_lost_for_a_moment_answers_again_when_it_is_swept(nodes: StandIn) -> None:
    """What is swept may start there again."""
    loop = nodes.make("n1", timeout=LIMIT).start()
    os.kill(nodes.pids("n1")[0], signal.SIGKILL)
    assert loop.next(NodeLost).host == "n1"
    loop.agents.sweep(1, lost=True)
    loop.until(lambda: any(isinstance(event, NodeUp) for event in loop.seen), "it answers again")
    assert loop.seen.index(SweepDone("n1", 1, 0)) < loop.seen.index(next(event for event in loop.seen if isinstance(event, NodeUp)))


def test_this_machine_is_never_down(nodes: StandIn) -> None:
    own = host_name()
    loop = nodes.make(own, timeout=0.5).start()
    first = loop.agents._nodes[own].process
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)
    loop.until(lambda: loop.agents._nodes[own].process not in (first, None), "a new agent")
    loop.agents.sweep(1)
    assert loop.next(SweepDone).host == own
    assert loop.seen == []


def test_silence_while_vrm_was_stopped_is_not_the_nodes(nodes: StandIn) -> None:
    """After a pause of the loop, what has been said meanwhile counts first."""
    loop = nodes.make("n1", ping=0.0, timeout=5.0).start()
    loop.agents.tick(time.monotonic())  # a ping goes out
    wait_until(lambda: select.select([loop.agents.fileno()], [], [], 0)[0], "it was answered")
    later = time.monotonic() + 60
    loop.agents.tick(later)
    assert loop.agents.events() == []


def test_dropped_nodes_are_left_alone(nodes: StandIn) -> None:
    nodes.does("n2", "exit 1")
    loop = nodes.make("n1", "n2")
    _, failed = loop.agents.settle()
    loop.agents.drop(failed)
    tries = nodes.tries("n2")
    loop.agents.sweep(None)
    assert loop.next(SweepDone) == SweepDone("n1", None, 0)
    loop.agents.drop(["n1", "n9"])
    assert nodes.tries("n2") == tries
    wait_until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE
                               for child in psutil.Process(nodes.pids("n1")[0]).children()), "the agent of n1 has ended")


def test_many_questions_at_once(nodes: StandIn) -> None:
    """More than the pipe takes."""
    loop = nodes.make("n1", ping=60.0).start()
    os.kill(nodes.pids("n1")[0], signal.SIGSTOP)
    for job in range(900):
        loop.agents.request_affinity(job, {"n1": 0}, OPEN_MPI)
    os.kill(nodes.pids("n1")[0], signal.SIGCONT)
    loop.until(lambda: len(loop.seen) == 900, "all are answered")
    assert [event.job_id for event in loop.seen] == list(range(900))


def test_agents_end_with_their_vrm(nodes: StandIn, tmp_path: Path) -> None:
    """Also when it is killed."""
    code = ("import sys; from vrm.live.nodes.agents import Agents\n"
            "agents = Agents(['n1', 'localhost'], command=(sys.argv[1],)); agents.settle()\n"
            "import psutil; print([p.pid for p in psutil.Process().children(recursive=True)], flush=True)\n"
            "sys.stdin.read()")
    process = subprocess.Popen([sys.executable, "-c", code, str(nodes.ssh)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())
    assert len(pids) == 4, "an agent here; the relay, the runner, and its agent"
    process.kill()
    process.communicate()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the agents have ended")


def test_an_agent_that_hears_nothing_ends() -> None:
    read, write = os.pipe()
    process = subprocess.Popen([sys.executable, "-I", "-S", AGENT, "0.2"], stdin=read,
                               stdout=subprocess.PIPE)
    try:
        process.communicate(timeout=LIMIT)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(read)
        os.close(write)


def test_warnings_of_the_batch_system_are_not_for_agents(nodes: StandIn) -> None:
    loop = nodes.make("n1").start()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(nodes.pids("n1")[0], number)
    loop.agents.sweep(1)
    assert loop.next(SweepDone) == SweepDone("n1", 1, 0)
    assert nodes.tries("n1") == 1


@pytest.mark.slow
def test_trying_again_and_again_leaks_nothing(nodes: StandIn) -> None:
    loop = nodes.make("n1", "n2", pauses=(0.001, 0.001), timeout=60.0).start()
    nodes.does("n1", "exit 1")
    os.kill(nodes.pids("n1")[0], signal.SIGKILL)
    loop.until(lambda: nodes.tries("n1") > 5, "n1 is tried again")
    before = len(os.listdir("/proc/self/fd"))
    loop.until(lambda: nodes.tries("n1") > 60, "n1 is tried many times")
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # it may just be tried
    assert len(loop.agents._dying) <= 2
    assert isinstance(loop.seen.pop(), NodeLost) and loop.seen == []


@pytest.mark.parametrize("module", MODULES)
def test_what_runs_on_nodes_is_python_3_6(module: str) -> None:
    ast.parse((Path(AGENT).parent / f"{module}.py").read_text(), feature_version=(3, 6))


# ------------------------------------------------------------------------------ ranks and sweep


def test_a_patient_sweep_kills_only_what_does_not_end_by_itself(nodes: StandIn, jobs: Jobs) -> None:
    loop = nodes.make("n1").start()
    with_end = ("signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\nwait()")
    ends, other = jobs.start(with_end), jobs.start("wait()", job=2)
    loop.agents.sweep(1, patience=600.0)
    assert loop.agents.sweeping(1) and not loop.agents.sweeping(2)
    ends.send_signal(signal.SIGUSR1)
    assert loop.next(SweepDone) == SweepDone("n1", 1, 0) and not loop.agents.sweeping(1)  # long before the patience is over
    assert jobs.started[0].wait() == 7
    loop.agents.sweep(2, patience=0.3)
    assert loop.next(SweepDone) == SweepDone("n1", 2, 1) and jobs.ended(other)


def test_what_a_job_uses_is_said_by_steps(nodes: StandIn, jobs: Jobs) -> None:
    loop = nodes.make("n1").start()
    run = loop.agents.run
    script = jobs.start("wait()", run)
    burn = "while time.process_time() < 0.1: pass\nroom = bytearray(32 << 20)\nwait()"
    tasks = [jobs.start(burn, run, SLURM_STEPID="4", SLURM_PROCID=rank) for rank in "013"]
    jobs.start(burn, run, job=2)
    jobs.start(burn, run + "0")
    assert loop.agents.order(USAGE, 1, {"n1": {}, "n2": {}}) == {"n1"}
    said = loop.next(JobUsage).steps
    assert set(said) == {"batch", "4"} and said["batch"]["pids"] == [script.pid]
    step = said["4"]
    assert sorted(step["tasks"]) == [0, 1, 3] and sorted(step["pids"]) == sorted(task.pid for task in tasks)
    assert 0.2 <= step["cpu"] < 5 and 32 << 20 < step["largest"] <= step["memory"] / 2
    assert step["memory"] > 96 << 20 > said["batch"]["memory"]


def test_modules_of_extensions_come_as_text(nodes: StandIn, tmp_path: Path) -> None:
    """A node opens none of their files, which are gone here; an agent that begins anew gets them again."""
    first, second = tmp_path / "sums_of_a_test.py", tmp_path / "taker_of_a_test.py"
    first.write_text("def total(values):\n    return sum(values)\n")
    second.write_text("import proc, sums_of_a_test\nasked = []\ndef take(request, now):\n    asked.append(1)\n    return {'number': "
                      "request['number'], 'total': sums_of_a_test.total(request['values']), 'asked': len(asked)}\n")
    mine = AgentOrder("mine", (str(first), str(second)), lambda host, request, answer: SimpleNamespace(
        host=host, found=(answer["total"], answer["asked"])))
    loop = nodes.make("n1").start()
    assert loop.agents.order(mine, 1, {"n1": {"values": [1, 2]}}) == {"n1"}
    first.unlink(), second.unlink()
    assert loop.next(SimpleNamespace).found == (3, 1)
    loop.agents.order(mine, 1, {"n1": {"values": [4]}})
    assert loop.next(SimpleNamespace).found == (4, 2)
    loop.agents.sweep(1)  # they have nothing to forget
    assert loop.next(SweepDone) == SweepDone("n1", 1, 0)
    os.kill(nodes.pids("n1")[0], signal.SIGKILL)
    loop.next(NodeLost)
    loop.next(NodeUp)
    loop.agents.order(mine, 1, {"n1": {"values": []}})
    assert loop.next(SimpleNamespace).found == (0, 1)


@two_cpus
def test_ranks_are_found_where_they_run(nodes: StandIn, jobs: Jobs) -> None:
    bind = "os.sched_setaffinity(0, [%d]); wait()"
    jobs.start(bind % CPUS[0], OMPI_COMM_WORLD_RANK="4")
    jobs.start(bind % CPUS[1], OMPI_COMM_WORLD_RANK="5", SLURM_PROCID="0")
    jobs.start("wait()", SLURM_PROCID="0")  # a daemon
    jobs.start("wait()", job=2, OMPI_COMM_WORLD_RANK="4")
    jobs.start("wait()", run="r2", OMPI_COMM_WORLD_RANK="4")
    loop = nodes.make("n1").start()
    loop.agents.request_affinity(1, {"n1": 2}, OPEN_MPI)
    assert loop.next(Affinity) == Affinity("n1", 1, {4: frozenset(CPUS[:1]),
                                                     5: frozenset(CPUS[1:2])})


def test_a_batch_script_has_the_variable_of_ranks(nodes: StandIn, jobs: Jobs) -> None:
    """And srun inherits it."""
    jobs.start("wait()", SLURM_PROCID="0")
    jobs.start("wait()", SLURM_PROCID="1", SLURM_STEP_ID="4")
    loop = nodes.make("n1").start()
    loop.agents.request_affinity(1, {"n1": 2}, Srun.rank_variables, patience=0.0)
    assert list(loop.next(Affinity).ranks) == [1]


@two_cpus
def test_the_outermost_process_of_a_rank_counts(nodes: StandIn, jobs: Jobs) -> None:
    """A wrapper that is bound, and what it starts moves itself."""
    jobs.start(f"os.sched_setaffinity(0, [{CPUS[1]}])\n"
               "if not os.fork():\n"
               f"    os.sched_setaffinity(0, [{CPUS[0]}])\n"
               "    if not os.fork(): os.setsid()\n"
               "    wait()\n"
               "os.wait()", OMPI_COMM_WORLD_RANK="0")
    loop = nodes.make("n1").start()
    loop.agents.request_affinity(1, {"n1": 1}, OPEN_MPI)
    assert loop.next(Affinity).ranks == {0: frozenset(CPUS[1:2])}
    loop.agents.sweep(1)
    loop.next(SweepDone)


def test_ranks_that_start_later_are_awaited(nodes: StandIn, jobs: Jobs) -> None:
    loop = nodes.make("n1").start()
    loop.agents.request_affinity(1, {"n1": 2}, OPEN_MPI)
    jobs.start("wait()", OMPI_COMM_WORLD_RANK="0")
    loop.agents.sweep(9)
    loop.next(SweepDone)
    assert loop.seen == []
    jobs.start("wait()", OMPI_COMM_WORLD_RANK="1")
    assert sorted(loop.next(Affinity).ranks) == [0, 1]


def test_ranks_that_never_come(nodes: StandIn, jobs: Jobs) -> None:
    jobs.start("wait()", OMPI_COMM_WORLD_RANK="0")
    loop = nodes.make("n1").start()
    loop.agents.request_affinity(1, {"n1": 2}, OPEN_MPI, patience=0.2)
    assert sorted(loop.next(Affinity).ranks) == [0]
    loop.agents.request_affinity(1, {"n1": 2}, OPEN_MPI)
    loop.agents.request_affinity(2, {"n1": 2}, OPEN_MPI)
    loop.until(lambda: not loop.agents._nodes["n1"].unsent, "asked")
    loop.agents.sweep(1)  # nobody waits for the ranks of a job that has ended
    assert loop.next(Affinity).job_id == 1
    assert loop.next(SweepDone) == SweepDone("n1", 1, 1)
    assert loop.agents.unanswered() == 1


def test_a_sweep_ends_all_that_a_job_has_left(nodes: StandIn, jobs: Jobs) -> None:
    stubborn = ("[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\n"
                "if not os.fork():\n"
                "    os.setsid()\n"
                "    if os.fork(): os._exit(0)\n"
                "wait()")
    parent = jobs.start(stubborn, job=1)
    child = wait_until(lambda: next((p for p in psutil.process_iter(["ppid"])
                                     if p.pid != parent.pid and stubborn_of(p, parent)), None),
                       "the daemon has left its parent")
    other = jobs.start("wait()", job=2)
    foreign = jobs.start("wait()", run="r2", job=1)
    loop = nodes.make("n1", "n2").start()
    loop.agents.sweep(1, ["n1"])
    assert loop.agents.sweeping(1) and not loop.agents.sweeping(2)
    assert loop.next(SweepDone) == SweepDone("n1", 1, 2)
    assert not loop.agents.sweeping(1)
    wait_until(lambda: jobs.ended(parent) and jobs.ended(child), "both are dead")
    assert not jobs.ended(other) and not jobs.ended(foreign)
    loop.agents.sweep(None, ["n2"])
    assert loop.next(SweepDone) == SweepDone("n2", None, 1)
    wait_until(lambda: jobs.ended(other), "the other job is dead")
    assert not jobs.ended(foreign)


def stubborn_of(process: psutil.Process, parent: psutil.Process) -> bool:
    """Whether this is the daemon that `parent` has left behind."""
    try:
        return (process.cmdline() == parent.cmdline() and process.ppid() != parent.pid
                and os.getsid(process.pid) != os.getsid(parent.pid))
    except (psutil.Error, ProcessLookupError):
        return False


def test_a_sweep_outruns_forks(nodes: StandIn, jobs: Jobs) -> None:
    jobs.start("print(flush=True)\n"
               "for _ in range(2000):\n"
               "    time.sleep(0.02)\n"
               "    if os.fork(): os._exit(0)\n")
    loop = nodes.make("n1").start()
    loop.agents.sweep(1)
    swept = loop.next(SweepDone)
    assert swept.processes >= 1 and swept.left == 0
    assert not [env for _, env in proc.marked() if os.fsencode(f"VRM_RUN={RUN}") in env]


def test_a_run_without_a_mark_is_not_swept(nodes: StandIn) -> None:
    loop = nodes.make("n1", run="").start()
    with pytest.raises(ValueError, match="no mark"):
        loop.agents.sweep(None)


@two_cpus
def test_the_ranks_of_open_mpi(nodes: StandIn) -> None:
    """mpirun and its threads carry the marks, too; its ranks are bound."""
    mpirun = shutil.which("mpirun")
    if not mpirun:
        pytest.skip("no mpirun")
    env = {**mpirun_environment(), "VRM_RUN": RUN, "VRM_JOB_ID": "1"}
    process = subprocess.Popen([mpirun, "-np", "2", "--bind-to", "core", "sleep", "600"],
                               env=env, start_new_session=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        loop = nodes.make("n1").start()
        loop.agents.request_affinity(1, {"n1": 2}, OPEN_MPI)
        found = loop.next(Affinity).ranks
        here = read_topology()
        slots = [RankSlot(0, 0, 0, (0,)), RankSlot(1, 0, 0, (1,))]
        if len(here.sockets) == 1:
            check = compare_affinity(slots, [here.node], {here.host: here}, {here.host: found})
            assert check.state == "ok", check
        loop.agents.sweep(1)
        assert loop.next(SweepDone).processes >= 3
    finally:
        process.kill()
        process.wait()


# ----------------------------------------------------------------------------------- comparison

EIGHT = {"n0": Topology.regular("n0", (4, 4)), "n1": Topology.regular("n1", (4, 4))}
NODES = [Node("n0", (4, 4)), Node("n1", (4, 4))]
SLOTS = [RankSlot(0, 0, 0, (0, 1)), RankSlot(1, 1, 1, (2,))]


def cpus(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


COMPARED: dict[str, tuple[Mapping[str, Mapping[int, frozenset[int]]], str, tuple[str, ...]]] = {
    "as wished": ({"n0": {0: cpus(0, 1)}, "n1": {1: cpus(6)}}, "ok", ()),
    "narrower": ({"n0": {0: cpus(1)}, "n1": {1: cpus(6)}}, "ok", ()),
    "wider": ({"n0": {0: cpus(0, 1, 2)}, "n1": {1: cpus(6)}}, "mismatch",
              ("rank 0 of n0: may use CPU 0-2, wanted 0-1 (socket 0 core 0-1)",)),
    "not bound": ({"n0": {0: cpus(0, 1)}, "n1": {1: cpus(*range(8))}}, "mismatch",
                  ("rank 1 of n1: may use CPU 0-7, wanted 6 (socket 1 core 2)",)),
    "on another node": ({"n0": {0: cpus(0, 1), 1: cpus(6)}, "n1": {}}, "mismatch",
                        ("rank 1 runs on n0, wanted n1",)),
    "not found": ({"n0": {0: cpus(0, 1)}}, "unchecked",
                  ("rank(s) 1 were not found on their node",)),
    "nothing known": ({}, "unchecked", ("rank(s) 0-1 were not found on their node",)),
}


@pytest.mark.parametrize("case", COMPARED)
def test_affinity_is_compared(case: str) -> None:
    ranks, state, differences = COMPARED[case]
    check = compare_affinity(SLOTS, NODES, EIGHT, ranks)
    assert (check.state, check.differences) == (state, differences)


def test_threads_of_a_core_are_the_core(tmp_path: Path) -> None:
    topology = {"n0": parse_topology(machine(tmp_path, EVEN_ODD_THREADS), "n0")}
    slot = [RankSlot(0, 0, 1, (0, 2))]  # CPUs 1, 9 and 5, 13
    node = [topology["n0"].node]
    for allowed in (cpus(1, 9, 5, 13), cpus(1, 5), cpus(9)):
        assert compare_affinity(slot, node, topology, {"n0": {0: allowed}}).state == "ok"
    check = compare_affinity(slot, node, topology, {"n0": {0: cpus(1, 9, 3)}})
    assert check.differences == (
        "rank 0 of n0: may use CPU 1,3,9, wanted 1,5,9,13 (socket 1 core 0,2)",)


def test_emulated_cores_are_not_compared() -> None:
    synthetic = {name: replace(topology, synthetic=True) for name, topology in EIGHT.items()}
    wild = {"n0": {0: cpus(7)}, "n1": {1: cpus(7)}}
    for topologies in (synthetic, {}):
        check = compare_affinity(SLOTS, NODES, topologies, wild)
        assert (check.state, check.differences) == (
            "unchecked", ("rank(s) 0-1 run on emulated cores",))
    # A rank on the wrong node shows on any machine.
    assert compare_affinity(SLOTS, NODES, synthetic, {"n1": {0: cpus(0)}}).state == "mismatch"


def test_a_node_that_has_shrunk() -> None:
    check = compare_affinity([RankSlot(0, 0, 1, (3,))], NODES,
                             {"n0": Topology.regular("n0", (4, 2))}, {"n0": {0: cpus(0)}})
    assert check.differences == ("rank 0 of n0: has no socket 1 with core 3",)
