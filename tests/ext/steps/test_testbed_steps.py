"""Steps and plain mpiruns of scripts on several nodes of the test cluster, inside a Slurm job: each on the
nodes and cores of its own job, next to another job on the same nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest
import yaml
from conftest import mpiexecs, mpiruns, wait_until
from support.testbed import Batch, Testbed

from vrm.live.nodes.topology import parse_cpu_list, read_topology
from vrm.live.relay.boot import MARK
from vrm.results.jobs import JobRow, read_jobs
from vrm.ext.steps.records import read_steps

SCRIPT = """#!/bin/sh
cd {folder}
: >here.$VRM_JOB_ID
until [ -e here.{first} ] && [ -e here.{second} ]; do sleep 0.05; done   # both jobs run
out=$VRM_JOB_ID
srun -n 2 ./where 0.2 >$out.step
srun -n 1 -w n1 ./where >$out.there &
srun -n 1 -w n0 ./where >$out.here
wait
srun -n 2 -l -o $out.%t ./where
srun -n 2 sh -c 'exit 3'
echo "failed $?"
{mpirun} -n 2 ./where 0.4 >$out.mpirun
{mpirun} -n 2 {bind} ./where >$out.bound
echo "mpirun $?"
: >done.$VRM_JOB_ID
until [ -e done.{first} ] && [ -e done.{second} ]; do sleep 0.05; done
"""

WHERE = """#!/bin/sh
while read -r key value; do
  [ "$key" = Cpus_allowed_list: ] && cpus=$value
done < /proc/self/status
[ $# = 0 ] || ./burn $1
echo "$(hostname) $cpus ${SLURM_PROCID:-none} ${SLURMD_NODENAME:-none} $COLOUR"
"""

BURN = f"""#!{sys.executable} -S
import sys, time
room = bytearray(48 << 20) if sys.argv[1] == "0.2" else b""
while time.process_time() < float(sys.argv[1]): pass
"""


@pytest.fixture(scope="module")
def batch(real: Testbed) -> Iterator[Batch]:
    """A batch job on two nodes."""
    with real.allocation(2, "--exclusive", "-w", "n[0-1]") as batch:
        yield batch


KINDS = [("srun", "auto"), ("direct", "auto"), *(("openmpi", mpirun) for mpirun in mpiruns()),
         *(("hydra", mpiexec) for mpiexec in mpiexecs())]


def run(real: Testbed, batch: Batch, folder: Path, kind: str, program: str, script: str,
        jobs: int = 2, **more: Any) -> dict[int, JobRow]:
    """Jobs of the script, each with a core of each of two nodes."""
    for name, text in (("steps.sh", script), ("where", WHERE), ("burn", BURN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "queue").write_text("steps.sh 2 60 script=1 nodes=2 env=COLOUR=red\n" * jobs)
    config = folder / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": str(folder), "Queue": str(folder / "queue")}, "Nodes": 2, "Sockets": 1,
        "Cores": 2, "Log": str(folder / "log"), "Walltime": "kill", "Grace": 1,
        "Allocation": {"Policy": "pack"}, "Launcher": {"Kind": kind, "Mpirun": program, "AllowRoot": True}, **more}))
    done = real.exec(batch.host, [sys.executable, "-m", "vrm.cli", "-c", config, "--once"], env=batch.env,
                     cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {row.id: row for row in read_jobs(folder / "log" / "jobs.csv")}


def places(path: Path) -> list[tuple[str, frozenset]]:
    """The host and CPUs of each task."""
    found = []
    for line in path.read_text().splitlines():
        words = line.rpartition(": ")[2].split()
        found.append((words[0], parse_cpu_list(words[1])))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind, program", KINDS)
def test_steps_and_mpiruns_stay_on_the_nodes_and_cores_of_their_job(
        real: Testbed, batch: Batch, kind: str, program: str, tmp_path: Path) -> None:
    mpirun = {"srun": "true", "direct": "true", "hydra": program}.get(kind, "mpirun" if program == "auto" else program)
    bind = "--bind-to core" if kind == "openmpi" else ""
    rows = run(real, batch, tmp_path, kind, program,
               SCRIPT.format(folder=tmp_path, mpirun=mpirun, bind=bind, first=min(IDS), second=max(IDS)))
    errors = "".join(path.read_text() for path in (tmp_path / "log").glob("*.e"))
    assert [rows[i].status for i in IDS] == ["completed"] * 2, errors
    cores: list[set[tuple[str, frozenset]]] = []
    for job_id in IDS:
        step = places(tmp_path / f"{job_id}.step")
        assert sorted(host for host, _ in step) == ["n0", "n1"], errors
        own = set(step)
        assert all(len(cpus) == len(read_topology().core(0, 0).cpus) for _, cpus in own)
        assert {*places(tmp_path / f"{job_id}.there"), *places(tmp_path / f"{job_id}.here")} == own
        assert set(places(tmp_path / f"{job_id}.0")) | set(places(tmp_path / f"{job_id}.1")) == own
        for line in (tmp_path / f"{job_id}.step").read_text().splitlines():
            assert line.split()[0] == line.split()[3] and line.split()[4] == "red"
        ranks = {line.split()[2] for line in (tmp_path / f"{job_id}.step").read_text().splitlines()}
        assert ranks == {"0", "1"}
        assert (tmp_path / f"{job_id}.1").read_text().startswith("1: n")
        if mpirun != "true":
            assert set(places(tmp_path / f"{job_id}.mpirun")) == own, errors
            assert set(places(tmp_path / f"{job_id}.bound")) == own, errors
        said = (tmp_path / "log" / f"steps.sh.{job_id}.o").read_text().splitlines()
        assert said == ["failed 3", "mpirun 0"], errors
        steps = {step.step: step for step in read_steps(tmp_path / "log" / "steps.csv")[job_id]}
        assert steps["0"].nodes == "n0 n1"
        # What the tasks have used on both nodes, and the plain mpirun.
        used, whole = steps["0"], steps["batch"]
        assert used.user + used.system >= 0.4 and 48 << 20 <= used.maxrss < 90 << 20, used
        assert whole.user + whole.system >= used.user + used.system + 0.8 * (mpirun != "true"), whole
        assert whole.maxrss >= used.maxrss
        cores.append(own)
    assert not cores[0] & cores[1]
    assert not [line for line in real.pids("n1").values() if str(tmp_path) in line]


IDS = (0, 1)
"""The jobs of a run's queue."""


SPREAD = """#!/bin/sh
cd {folder}
srun -n 2 sh -c 'exec 9>lock.$SLURM_PROCID; flock 9; trap "echo got $SLURM_PROCID" USR1; : >up.$SLURM_PROCID; while :; do sleep 0.02; done' >said &
srun=$!
until [ -e up.0 ] && [ -e up.1 ]; do sleep 0.02; done
kill -USR1 $srun
until grep -q "got 0" said && grep -q "got 1" said; do sleep 0.02; done
kill -{signal} $srun
wait $srun
echo "first $?"
for rank in 0 1; do flock -w 20 lock.$rank echo "ended $rank"; done
srun -Q -n 2 sh -c 'echo $(hostname) $SLURM_PROCID'
echo word | srun -n 2 -K sh -c '[ $SLURM_PROCID = 1 ] || {{ read w; echo $w >word; exec sleep 77; }}
    until [ -s word ]; do sleep 0.02; done; exit 5'
echo "last $?"
"""


@pytest.mark.parametrize("kind, number", [("direct", "KILL"), ("srun", "TERM")])
def test_tasks_on_other_nodes_without_a_launcher(real: Testbed, batch: Batch, kind: str, number: str,
                                                 tmp_path: Path) -> None:
    """Signals reach them, they end with their srun, and then their cores are free; one that fails ends the others."""
    text = SPREAD.format(folder=tmp_path, signal=number)
    if kind == "srun":
        rows = run(real, batch, tmp_path, kind, "auto", text.replace("srun -", "srun --mpi=none -"), jobs=1)
    else:  # ssh leaves what it has started, where nobody ends that
        rows = run(real, batch, tmp_path, kind, "auto", text, jobs=1, Hosts={"Reach": "ssh"})
    errors = (tmp_path / "log" / "steps.sh.0.e").read_text()
    assert rows[0].status == "completed", errors
    first, *ended, one, other, last = (tmp_path / "log" / "steps.sh.0.o").read_text().splitlines()
    assert (first, last) == (f"first {143 if number == 'TERM' else 137}", "last 143"), errors
    assert (tmp_path / "word").read_text() == "word\n"
    assert ended == ["ended 0", "ended 1"] and sorted([one, other]) == ["n0 0", "n1 1"], errors
    assert "n1: task 1: Exited with exit code 5" in errors
    found = {step.step: step.state for step in read_steps(tmp_path / "log" / "steps.csv")[0]}
    assert found == {"0": "cancelled", "1": "completed", "2": "failed", "batch": "completed"}
    for node in ("n0", "n1"):
        wait_until(lambda: not [line for line in real.pids(node).values() if "sleep 77" in line
                                or str(tmp_path) in line], f"nothing is left on {node}")


KILLED = """#!/bin/sh
until [ -S "$VRM_STEPS/socket" ] && cmp -s "$VRM_DIRECTORY/bin/srun" "$VRM_DIRECTORY/bin/.vrm-client"; do
    sleep 0.02
done
cd {folder}
srun -n 1 sh -c 'server=$(ps -o ppid= -p $PPID); echo $server $(ps -o ppid= -p $server) >new.$$; mv new.$$ $(hostname)
    exec sleep 77' 2>/dev/null
echo "step $?"
until [ -e go ]; do sleep 0.02; done
srun -n 1 echo again
"""


@pytest.mark.parametrize("victim", ["server", "its parent"])
def test_a_killed_server_of_steps_leaves_nothing_on_any_node(real: Testbed, batch: Batch, victim: str,
                                                             tmp_path: Path) -> None:
    """A script on each node, whose steps are started by a server there. When that is killed, the script goes on; when
    the supervisor or the runner is that has started both, the job has failed. The step is recorded, its tasks end."""
    script, config, log = tmp_path / "killed.sh", tmp_path / "vrm.yaml", tmp_path / "log"
    script.write_text(KILLED.format(folder=tmp_path))
    script.chmod(0o755)
    (tmp_path / "queue").write_text("killed.sh 2 60 script=1\n" * 2)
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": str(tmp_path), "Queue": str(tmp_path / "queue")}, "Nodes": 2, "Sockets": 1,
        "Cores": 2, "Log": str(log), "Allocation": {"Policy": "pack"}, "Launcher": {"Kind": "direct"},
        "Interrupted": "mark"}))  # the loss of vrm's connection to a node counts as one of the node
    manager = real.popen(batch.host, [sys.executable, "-m", "vrm.cli", "-c", config, "--once"], env=batch.env,
                         cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for node in ("n0", "n1"):
            wait_until(lambda: (tmp_path / node).exists() or manager.poll() is not None, f"a step runs on {node}")
            server, parent = (tmp_path / node).read_text().split()
            name = real.pids(node)[int(parent)]
            assert ("run_supervisors.py" if node == batch.host else MARK[:-1]) in name
            real.exec(node, ["kill", "-KILL", server if victim == "server" else parent], check=True)
        if victim == "server":
            (tmp_path / "go").touch()
    finally:
        said = manager.communicate(timeout=60)[0]
    steps, rows = read_steps(log / "steps.csv"), {row.id: row for row in read_jobs(log / "jobs.csv")}
    for job_id in IDS:
        found = [(step.step, step.state, step.exit_code) for step in steps[job_id] if step.step != "batch"]
        if victim == "server":
            assert (log / f"killed.sh.{job_id}.o").read_text() == "step 137\nagain\n", said
            assert found == [("0", "cancelled", 137), ("1", "completed", 0)]
            assert rows[job_id].status == "completed"
        else:
            # Its srun is ended with SIGTERM, and killed; it may have had time for the line, else its guard has.
            assert found in ([("0", "cancelled", 137)], [("0", "cancelled", 143)]), said
            assert rows[job_id].status == "failed", said
    for node in ("n0", "n1"):
        wait_until(lambda: not [line for line in real.pids(node).values() if "sleep 77" in line
                                or str(tmp_path) in line], f"nothing is left on {node}")


def test_commands_on_another_node_than_the_managers(real: Testbed, batch: Batch, tmp_path: Path) -> None:
    """They talk to it by files, and wait for their jobs: output, exit status, a signal."""
    config, log = tmp_path / "vrm.yaml", tmp_path / "log"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": str(tmp_path), "Queue": str(tmp_path / "queue"), "Any": True}, "Nodes": 2,
        "Sockets": 1, "Cores": 2, "Log": str(log), "Allocation": {"Policy": "pack"},
        "Launcher": {"Kind": "srun", "AllowRoot": True}}))
    manager = real.popen(batch.host, [sys.executable, "-m", "vrm.cli", "-c", config, "--wait"], env=batch.env, cwd=tmp_path,
                         stdout=subprocess.PIPE, text=True)
    try:
        wait_until((log / "socket").exists, "it listens")
        other = next(node for node in ("n0", "n1") if node != batch.host)
        env = {"VRM_DIRECTORY": str(log), "PATH": f"{log / 'bin'}:{os.environ['PATH']}"}
        done = real.exec(other, ["srun", "-n", "2", "sh", "-c", "echo out; echo err >&2; exit 3"], env=env,
                         cwd=tmp_path)
        assert (done.returncode, done.stdout) == (3, "out\nout\n") and done.stderr.count("err\n") == 2, done.stderr
        submitted = real.exec(other, ["sbatch", "--wait", "-o", "filed", "--wrap", "echo filed; exit 4"], env=env,
                              cwd=tmp_path)
        assert submitted.returncode == 4 and (tmp_path / "filed").read_text() == "filed\n", submitted.stderr
        inside = real.exec(other, ["salloc", "-n", "2", "--", "srun", "hostname"], env=env, cwd=tmp_path)
        assert inside.returncode == 0 and len(inside.stdout.split()) == 2, inside.stderr
        spread = real.exec(other, ["sbatch", "--parsable", "-n2", "-N2", "--wrap",
                                   "srun sh -c ': >at.$SLURM_PROCID; exec sleep 666'"], env=env, cwd=tmp_path)
        number = spread.stdout.strip()
        wait_until(lambda: (tmp_path / "at.0").exists() and (tmp_path / "at.1").exists(), "it is on both nodes")
        for node in ("n0", "n1"):  # by the manager's socket, and by files
            said = real.exec(node, ["sstat", "-nPj", number, "-o", "jobid,ntasks,nodelist"], env=env)
            assert said.stdout == f"{number}.0|2|n0,n1\n", said.stderr
        real.exec(other, ["scancel", number], env=env, check=True)
        client = real.popen(other, ["srun", "-n", "1", "sh", "-c", "echo begun; exec sleep 777"], env=env,
                            cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert client.stdout.readline() == "begun\n"
        client.send_signal(signal.SIGINT)
        client.communicate(timeout=60)
        assert client.returncode == 130
    finally:
        manager.send_signal(signal.SIGTERM)
        manager.communicate(timeout=60)
    assert [row.status for row in read_jobs(log / "jobs.csv")] == ["failed", "failed", "completed", "cancelled", "cancelled"]
