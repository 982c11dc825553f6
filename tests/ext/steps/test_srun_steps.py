"""`srun` in a script job, as a program: on which cores, with which variables, output and exit status."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest

from conftest import mpirun_environment, wait_until
from vrm.ext.slurm.calls.build import link, script
from vrm.live.runner import serving
from vrm.ext.steps.records import Step, read_steps
from vrm.ext.steps.jobfile import JOB, text_of
from vrm.ext.steps.options import UsageError, hosts
from vrm.ext.steps.programs import links_mpi
from vrm.ext.steps.server import SOCKET
from vrm.ext.building.compiling import COMPILERS


class Around:
    """A job that has begun, as its script sees it: two emulated nodes of four cores, tasks of one core."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = secrets.token_hex(4)  # guards end all processes of a step of this run and number
        self.records = root / "steps.csv"
        self.steps = root / "7.steps"
        self.srun = root / "srun"
        self.steps.mkdir()
        self.srun.write_text(script("srun"))
        self.srun.chmod(0o700)
        self.write()
        self.env = {**mpirun_environment(), "VRM_STEPS": str(self.steps), "VRM_NODE": "n0", "SLURM_NTASKS": "8",
                    "SLURM_JOB_NAME": "relax", "OMP_NUM_THREADS": "4", "VRM_RUN": self.name, "VRM_JOB_ID": "7"}

    def write(self, nodes: Any = ("n0 n0 4 0/1;2/3", "n1 n1 4 0/1;2/3"), gpu: Any = (), group: Any = (),
              **values: str) -> None:
        """Write the job's file."""
        given = {"job": "7", "slurm": "7", "run": self.name, "name": "relax.sh", "records": str(self.records),
                 "tasks": "8", "cpus": "1", "bound": "0", "launcher": "direct", "program": "", "threads": "4",
                 **values}
        (self.steps / JOB).write_text(text_of({**{key: [value] for key, value in given.items()},
                                               "node": list(nodes), "gpu": list(gpu), "group": list(group)}))

    def start(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        """Start a step."""
        env = {**self.env, **how.pop("env", {})}
        return subprocess.Popen([str(self.srun), *words], env=env, text=True, cwd=self.root, **{
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how})

    def run(self, *words: str, input: str | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a step to its end."""
        return subprocess.run([str(self.srun), *words], env={**self.env, **how.pop("env", {})}, text=True,
                              cwd=self.root, capture_output=True, timeout=30, check=False, **(
                                  {"stdin": subprocess.DEVNULL} if input is None else {"input": input}))

    def shell(self, script: str, *options: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a step of a shell."""
        return self.run(*options, "sh", "-c", script, **how)

    def recorded(self) -> list[Step]:
        """The steps that have ended."""
        return read_steps(self.records).get(7, [])


SERVER = f"""
import os, sys
sys.path.insert(0, {serving.ROOT!r})
import resource
from vrm.live.runner import serving
server = serving.ScriptServer({{serving.FOLDER: os.fsencode(sys.argv[1]), b"VRM_SERVER": b"vrm.ext.steps.server"}})
server.start()
sys.stdin.read()
own = resource.getrusage(resource.RUSAGE_SELF)
print(sum(server.end(own)[:2]) - own.ru_utime - own.ru_stime)
"""
"""A supervisor's server of steps, until standard input ends; prints its seconds of CPU."""


@contextlib.contextmanager
def serving(around: Around) -> Iterator[subprocess.Popen[str]]:
    """Steps of this job are started by a server, through the C program."""
    around.srun.unlink()
    assert link(around.root, ["srun"])
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", SERVER, str(around.steps)], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        wait_until((around.steps / SOCKET).exists, "it listens")
        try:
            yield server
        finally:
            if server.returncode is None:
                server.communicate(timeout=30)


def of_server(server: subprocess.Popen[str]) -> int:
    """The server's number."""
    return int(subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.pid)], text=True, capture_output=True,
                              check=True).stdout)


@pytest.fixture(params=["alone", "server"])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Around]:
    """Steps start Python, or are forks of a server: all is the same."""
    around = Around(tmp_path)
    if request.param == "alone":
        yield around
    elif not any(map(shutil.which, COMPILERS)):
        pytest.skip("needs a C compiler")
    else:
        with serving(around):
            yield around


def pairs(text: str) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in text.splitlines())


def test_a_step_has_the_variables_of_one(job: Around) -> None:
    done = job.run("-n", "5", "--cpus-per-task=1", "-J", "part", "sh", "-c",
                   'env >"$SLURM_PROCID.env"')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = [pairs((job.root / f"{rank}.env").read_text()) for rank in range(5)]
    assert [env["SLURM_PROCID"] for env in found] == list("01234")
    assert [env["SLURM_LOCALID"] for env in found] == list("01230")
    assert [env["SLURM_NODEID"] + env["SLURMD_NODENAME"] for env in found] == ["0n0"] * 4 + ["1n1"]
    last = found[4]
    assert {name: last[name] for name in (
        "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
        "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEPID", "SLURM_STEP_ID", "SLURM_CPUS_PER_TASK", "SLURM_GTIDS",
        "SLURM_JOB_NAME", "OMP_NUM_THREADS")} == {
        "SLURM_NTASKS": "5", "SLURM_NPROCS": "5", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "n0,n1", "SLURM_STEP_TASKS_PER_NODE": "4,1", "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "1", "SLURM_GTIDS": "4", "SLURM_JOB_NAME": "part",
        "OMP_NUM_THREADS": "1"}
    step, = job.recorded()
    assert (step.step, step.name, step.state, step.exit_code, step.tasks, step.cores, step.nodes) == (
        "0", "part", "completed", 0, 5, 5, "n0 n1")
    assert job.run("true").returncode == 0  # as many tasks as the job has
    assert (job.recorded()[1].step, job.recorded()[1].tasks) == ("1", 8)


def test_output_labels_and_files(job: Around) -> None:
    labelled = job.shell('echo one; printf "two $SLURM_PROCID"; echo err >&2', "-l", "-n", "2")
    assert sorted(labelled.stdout.splitlines()) == ["0: one", "0: two 0", "1: one", "1: two 1"]
    assert sorted(labelled.stderr.splitlines()) == ["0: err", "1: err"]
    wide = job.shell("echo x", "-l", "-n", "8", "-D", "/", env={"SLURM_NTASKS": "8"})
    assert "7: x" in wide.stdout
    assert job.shell("echo out; echo err >&2", "-n", "2", "-o", "o.%j.%s.%2t.%N", "-e", "none").stdout == ""
    assert sorted(path.name for path in job.root.glob("o.*")) == ["o.7.2.00.n0", "o.7.2.01.n0"]
    assert (job.root / "o.7.2.01.n0").read_text() == "out\n"
    job.shell("echo out; echo err >&2", "-n", "2", "-o", "both", "--chdir", str(job.root))
    assert sorted((job.root / "both").read_text().split()) == ["err", "err", "out", "out"]
    missing = job.run("-n1", "-o", "no/such/folder/file", "true")
    assert missing.returncode == 1 and "Could not open stdout file" in missing.stderr


def test_standard_input_goes_to_all_tasks(job: Around) -> None:
    assert job.run("-n", "3", "cat", input="a\nb\n").stdout == "a\nb\n" * 3
    assert job.run("-n", "1", "cat", input="a\n").stdout == "a\n"
    assert job.run("-n", "2", "-i", "1", "-l", "cat", input="a\n").stdout == "1: a\n"
    assert job.run("-n", "2", "-i", "none", "cat", input="a\n").stdout == ""
    (job.root / "in").write_text("from a file\n")
    assert job.run("-n", "1", "--input=in", "cat", input="a\n").stdout == "from a file\n"


def test_the_exit_status_is_the_greatest(job: Around) -> None:
    failed = job.shell("exit $SLURM_PROCID", "-n", "4")
    assert failed.returncode == 3
    assert "srun: error: n0: task 3: Exited with exit code 3" in failed.stderr
    killed = job.shell("kill -9 $$", "-n", "1")
    assert killed.returncode == 137 and "srun: error: n0: task 0: Killed" in killed.stderr
    ended = job.shell('[ "$SLURM_PROCID" = 0 ] && exit 5; exec sleep 60', "-n", "3", "-K")
    assert ended.returncode == 143
    others = job.shell('[ "$SLURM_PROCID" = 0 ] && exit 5; sleep 0.2; echo on', "-n", "2")
    assert (others.returncode, others.stdout) == (5, "on\n")
    assert [(step.state, step.exit_code) for step in job.recorded()] == [
        ("failed", 3), ("failed", 137), ("failed", 143), ("failed", 5)]
    gone = job.run("-n", "1", "no-such-program")
    assert gone.returncode == 2 and "execve(): no-such-program: No such file" in gone.stderr


def test_a_time_limit_ends_a_step(job: Around) -> None:
    done = job.run("-n", "2", "-t", "0:01", "sleep", "60")
    assert done.returncode == 143 and "CANCELLED DUE TO TIME LIMIT" in done.stderr
    assert job.recorded()[0].state == "timeout"


def test_steps_side_by_side_have_cores_of_their_own_and_wait(job: Around) -> None:
    """Eight cores: two steps of four run, a third waits for one of them."""
    show = 'echo "$SLURMD_NODENAME"; read line'
    pipes = [job.start("-n", "1", "-c", "4", "sh", "-c", show, stdin=subprocess.PIPE) for _ in range(2)]
    assert sorted(each.stdout.readline() for each in pipes) == ["n0\n", "n1\n"]  # type: ignore[union-attr]
    third = job.start("-n", "1", "-c", "4", "sh", "-c", "echo third")
    assert "temporarily disabled, retrying" in third.stderr.readline()  # type: ignore[union-attr]
    shared = job.run("--overlap", "-n", "8", "sh", "-c", "echo $SLURM_PROCID")
    assert sorted(shared.stdout.split()) == list("01234567")
    assert third.poll() is None
    pipes[0].communicate("\n", timeout=30)
    out, err = third.communicate(timeout=30)
    assert (out, third.returncode) == ("third\n", 0) and "Step created for job 7" in err
    pipes[1].communicate("\n", timeout=30)
    assert {each.name for each in job.steps.iterdir()} - {SOCKET} == {"job", "lock"}


def test_many_steps_at_once_all_run(job: Around) -> None:
    """More than there is room for; each core has one step at a time."""
    script = ('for i in $(seq 24); do "$0" -Q -n1 sh -c \'echo begin; sleep 0.01; echo end\' & done; wait')
    done = subprocess.run(["sh", "-c", script, str(job.srun)], env=job.env, text=True, capture_output=True,
                          timeout=60, stdin=subprocess.DEVNULL, check=False)
    assert (done.stdout.count("begin"), done.stdout.count("end"), done.stderr) == (24, 24, "")
    at_once = most = 0
    for line in done.stdout.split():
        at_once += 1 if line == "begin" else -1
        most = max(most, at_once)
    assert most <= 8
    assert sorted(int(step.step) for step in job.recorded()) == list(range(24))


def test_a_killed_srun_ends_its_tasks_and_frees_its_cores(job: Around) -> None:
    step = job.start("-n", "8", "sh", "-c", 'trap "" TERM HUP; sleep 77 & echo $$; wait')
    pids = [int(step.stdout.readline()) for _ in range(8)]  # type: ignore[union-attr]
    step.kill()
    step.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "its tasks have ended")
    assert job.run("-Q", "-n", "8", "true").returncode == 0
    wait_until(lambda: len(job.recorded()) == 2, "both are recorded")
    assert {(each.step, each.state) for each in job.recorded()} == {("0", "cancelled"), ("1", "completed")}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_tasks(job: Around, number: signal.Signals) -> None:
    step = job.start("-n", "2", "sh", "-c", 'trap "echo got USR1" USR1; echo begun; '
                     'while :; do sleep 0.02; done')
    assert [step.stdout.readline() for _ in range(2)] == ["begun\n"] * 2  # type: ignore[union-attr]
    step.send_signal(signal.SIGUSR1)
    assert [step.stdout.readline() for _ in range(2)] == ["got USR1\n"] * 2  # type: ignore[union-attr]
    step.send_signal(number)
    step.communicate(timeout=30)
    assert step.returncode == 128 + number
    assert job.recorded()[0].state == "cancelled"


def test_export_says_which_variables_tasks_have(job: Around) -> None:
    env = {"MINE": "1", "OTHER": "2"}
    show = ["sh", "-c", 'echo "$MINE $OTHER ${SLURM_PROCID:-none}"']
    assert job.run("-n1", *show, env=env).stdout == "1 2 0\n"
    assert job.run("-n1", "--export=NONE", *show, env=env).stdout == "  0\n"
    assert job.run("-n1", "--export=MINE,OTHER=5", *show, env=env).stdout == "1 5 0\n"
    assert job.run("-n1", "--export=ALL,OTHER=5", *show, env=env).stdout == "1 5 0\n"


GPUS = [f"n0 {index} {index % 2} CUDA_VISIBLE_DEVICES GPU-a{index}" for index in range(4)] + [
    f"n1 {index} -1 CUDA_VISIBLE_DEVICES {index}" for index in (2, 5)]
"""Four on the first node, two on the second."""

SEEN = 'echo "$SLURM_PROCID $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES-all} $SLURM_GPUS_ON_NODE ${HIP_VISIBLE_DEVICES-no}"'


def test_tasks_see_the_gpus_that_are_asked_for(job: Around) -> None:
    job.write(gpu=GPUS)

    def seen(*words: str) -> list[str]:
        done = job.shell(SEEN, *words, env={"CUDA_VISIBLE_DEVICES": "of the script", "HIP_VISIBLE_DEVICES": "0"})
        assert (done.returncode, done.stderr) == (0, ""), words
        return sorted(done.stdout.splitlines())

    every = "GPU-a0,GPU-a1,GPU-a2,GPU-a3"
    assert seen("-n5") == [*(f"{rank} n0 {every} 4 no" for rank in range(4)), "4 n1 2,5 2 no"]
    assert seen("-n2", "--gpus-per-task=1") == ["0 n0 GPU-a0 1 no", "1 n0 GPU-a2 1 no"]  # its socket's
    assert seen("-n5", "--gpus-per-task=1") == ["0 n0 GPU-a0 1 no", "1 n0 GPU-a2 1 no", "2 n0 GPU-a1 1 no",
                                                "3 n0 GPU-a3 1 no", "4 n1 2 1 no"]
    assert seen("-n2", "--gpus=2") == ["0 n0 GPU-a0,GPU-a2 2 no", "1 n0 GPU-a0,GPU-a2 2 no"]
    assert seen("-n2", "-G", "3") == ["0 n0 GPU-a0,GPU-a1,GPU-a2 3 no", "1 n0 GPU-a0,GPU-a1,GPU-a2 3 no"]
    assert seen("-n2", "-N2", "--gres=gpu:a100:2") == ["0 n0 GPU-a0,GPU-a2 2 no", "1 n1 2,5 2 no"]
    assert seen("-n2", "-N2", "--gpus=4") == ["0 n0 GPU-a0,GPU-a2 2 no", "1 n1 2,5 2 no"]
    assert seen("-n1", "--gres=none") == seen("-n1", "--gpus=0") == ["0 n0  0 no"]
    assert seen("-n1", "-w", "n1", "--tres-per-task=gres/gpu:2") == ["0 n1 2,5 2 no"]
    for words in (("-n1", "--gpus=5"), ("-n4", "-w", "n1", "--gpus-per-task=1"), ("-n2", "-N1-2", "--gpus=3")):
        done = job.run(*words, "true")
        assert done.returncode == 1 and "GPU" in done.stderr.upper(), words


def test_no_two_steps_have_the_same_gpu(job: Around) -> None:
    """Many at once, of all kinds: what each sees, nobody else that asked for GPUs sees meanwhile."""
    job.write(gpu=GPUS)
    (job.root / "held").mkdir()
    step = """for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , " "); do
        mkdir "held/$SLURMD_NODENAME.$gpu" || echo twice "$gpu"
    done
    sleep 0.02
    for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , " "); do rmdir "held/$SLURMD_NODENAME.$gpu"; echo "$gpu"; done"""
    wishes = ["--gpus=1", "-n2 --gpus-per-task=1", "--gpus=3", "--gres=gpu:2", "-n3 --gpus-per-task=2"] * 3
    script = "".join(f'"$0" -Q -n1 {wish} sh -c "$1" & ' for wish in wishes) + "wait"
    done = subprocess.run(["sh", "-c", script, str(job.srun), step], env=job.env, text=True, capture_output=True,
                          timeout=60, stdin=subprocess.DEVNULL, check=False, cwd=job.root)
    assert "twice" not in done.stdout and done.stderr == ""
    assert len(done.stdout.split()) == 3 * (1 + 2 + 3 + 2 + 6) and set(done.stdout.split()) == {
        "GPU-a0", "GPU-a1", "GPU-a2", "GPU-a3", "2", "5"}


def test_lists_of_nodes() -> None:
    assert hosts("n1") == ["n1"] and hosts("a,b7,") == ["a", "b7"]
    assert hosts("a,n[08-10,3]x,m[1-2]") == ["a", "n08x", "n09x", "n10x", "n3x", "m1", "m2"]
    for wrong in ("n[1", "n[a-b]", "n[1-999999999]"):
        with pytest.raises(UsageError):
            hosts(wrong)


def test_a_step_stays_on_the_nodes_that_it_names(job: Around) -> None:
    show = ["sh", "-c", "echo $SLURMD_NODENAME"]
    assert job.run("-n", "4", "-w", "n1", *show).stdout.split() == ["n1"] * 4
    assert sorted(job.run("-n", "4", "-N", "2", *show).stdout.split()) == ["n0", "n0", "n0", "n1"]
    assert sorted(job.run("-n", "4", "-N", "2", "-m", "cyclic", "--ntasks-per-node=2", "-l", *show).stdout.splitlines()
                  ) == ["0: n0", "1: n1", "2: n0", "3: n1"]
    warned = job.run("-n", "1", "-N", "2", *show)
    assert warned.stdout == "n0\n" and "setting nnodes to 1" in warned.stderr


def test_a_step_of_an_exclusive_job_takes_further_cores_where_those_of_its_tasks_do_not_do(job: Around) -> None:
    job.write(nodes=("n0 n0 1 0/1;2/3", "n1 n1 1 0/1;2/3"), tasks="2")
    show = ["sh", "-c", "echo $SLURMD_NODENAME"]
    for tasks, wanted in (("2", ["n0", "n1"]), ("3", ["n0"] * 3), ("8", ["n0"] * 4 + ["n1"] * 4)):
        assert sorted(job.run("-n", tasks, *show).stdout.split()) == wanted
    assert "More processors requested" in job.run("-n", "9", *show).stderr


def test_a_step_names_its_own_job_and_leaves_nodes_out(job: Around) -> None:
    show = ["sh", "-c", "echo $SLURMD_NODENAME"]
    for words, found in ((["--jobid=7", "-n", "1", "--cpu_bind=none"], "n0\n"), (["--jobid", "7", "-n", "1", "-r", "1"], "n1\n"),
                         (["--exclude=n0", "-n", "1"], "n1\n")):
        done = job.run(*words, *show)
        assert (done.stdout, done.stderr, done.returncode) == (found, "", 0), (words, done)


def test_what_cannot_be_is_said_in_one_line(job: Around) -> None:
    wrong = {("-n", "9"): "More processors requested than permitted", ("-n", "x"): 'Invalid numeric value "x"',
             ("-n", "0"): "Invalid numeric value", ("-N", "3-2"): "invalid number of nodes",
             ("-N", "3", "-n", "3"): "the job has 4 on n0, 4 on n1", ("-t", "soon"): "Invalid --time",
             ("--cpu-bind=rank_ldom", "-n1"): "binds tasks to cores itself", ("--multi-prog",): "No such file",
             ("--gpus=1", "-n1"): "1 GPUs each and 0 on each node; the job has 4 on n0 and 0 GPUs, 4 on n1 and 0 GPUs",
             ("--gpus=x",): "Invalid specification", ("--gres=ssd:1",): "share what the job has of ssd",
             ("--ntask-per-node=1",): "unrecognized option",
             ("-w", "n7"): "n7 is not a node of job 7", ("-D", "/no/such"): "couldn't chdir",
             ("--distribution=plane=2",): "block and cyclic", ("-n",): "requires an argument",
             ("--cpu_bind=map_cpu:x", "-n1"): "`x` is not a CPU", ("--cpu-bind=mask_cpu:0", "-n1"): "not a mask of CPUs", ("--signal=USR1@5",): "does not do --signal",
             ("--container=x",): "does not do --container", ("--container-name=x",): "does not do --container-name",
             ("-n1", "true", ":", "-n1", "-o", "x"): "--output is of the whole step",
             ("-n1", "true", ":", "-n8"): "1 task of 1 core and 8 tasks of 1 core; the job has 4 on n0, 4 on n1",
             ("--het-group=1",): "job 7 has 1 component(s)", ("--het-group=x",): "Invalid --het-group",
             ("-r", "2"): "More processors requested",
             ("-y",): "invalid option"}
    for words, said in wrong.items():
        done = job.run(*words, *([] if words == ("-n",) else ["true"]))
        assert done.returncode == 1 and said in done.stderr, (words, done.stderr)
        assert done.stderr.startswith("srun: error: ") and done.stderr.count("\n") == 1, done.stderr
    assert "No command given" in job.run("-n", "1").stderr
    assert "names no program" in job.run("-n1", "true", ":", "-n1").stderr
    assert job.run("--version").stdout.startswith("slurm ")
    assert not job.recorded()
    (job.steps / JOB).write_text("job 7\n")
    assert "is damaged" in job.run("true").stderr
    (job.steps / JOB).unlink()
    assert "the job has ended" in job.run("true").stderr


SHOW = "echo $0 $SLURM_PROCID $SLURMD_NODENAME $SLURM_CPUS_PER_TASK $OMP_NUM_THREADS $SLURM_NTASKS"


def test_parts_of_a_step_have_programs_and_cores_of_their_own(job: Around) -> None:
    done = job.run("-n", "2", "sh", "-c", SHOW, "ocean", ":", "-n2", "-c2", "-N2", "sh", "-c", SHOW, "it's $HOME", ":",
                   "-n1", "-r1", "false")
    assert sorted(done.stdout.splitlines()) == [
        "it's $HOME 2 n0 2 2 5", "it's $HOME 3 n1 2 2 5", "ocean 0 n0 1 1 5", "ocean 1 n0 1 1 5"], done
    assert done.returncode == 1


def test_components_of_a_job_have_cores_of_their_own(job: Around) -> None:
    groups = ["4 1 0:0 0:1 0:2 0:3", "2 2 1:0 1:1 1:2 1:3"]
    job.write(group=groups)
    show = ["sh", "-c", SHOW, "it"]
    assert sorted(job.run(*show).stdout.splitlines()) == [f"it {rank} n0 1 1 4" for rank in range(4)]
    assert sorted(job.run("--het-group=1", *show).stdout.splitlines()) == [f"it {rank} n1 2 2 2" for rank in range(2)]
    both = [*(f"it {rank} n0 1 1 6" for rank in range(4)), "it 4 n1 2 2 6", "it 5 n1 2 2 6"]
    assert sorted(job.run("--het-group=0-1", *show).stdout.splitlines()) == both
    assert sorted(job.run(*show, ":", *show).stdout.splitlines()) == both
    assert sorted(job.run("--het-group=1", "-n1", *show, ":", "--het-group=0", "-n1", *show).stdout.splitlines()) == [
        "it 0 n1 2 2 2", "it 1 n0 1 1 2"]
    assert "job 7 has 2 component(s)" in job.run("--het-group=2", "true").stderr
    assert "More processors requested" in job.run("--het-group=1", "-n3", "true").stderr


def test_each_task_runs_the_program_that_a_file_says(job: Around) -> None:
    (job.root / "progs").write_text("# tasks, program, arguments\n\n"
                                    "0,2 echo 'one $HOME' %t-%o ''\n"
                                    "3-5  sh -c 'echo \"$@\"; exit 3' - \\\n %o of %t\n"
                                    "* sh -c 'echo rest $SLURM_PROCID $0 %o'\n")
    done = job.run("-n", "8", "-l", "--multi-prog", "progs")
    assert sorted(done.stdout.splitlines()) == [
        "0: one $HOME 0-0 ", "1: rest 1 sh 0", "2: one $HOME 2-1 ", "3: 0 of 3", "4: 1 of 4", "5: 2 of 5",
        "6: rest 6 sh 1", "7: rest 7 sh 2"], done
    assert done.returncode == 3 and "n1: task 4: Exited with exit code 3" in done.stderr
    assert [(step.name, step.tasks) for step in job.recorded()] == [("progs", 8)]
    for text, said in (("0 true\n", "no record for task id 1"), ("0 true\n0-1 false\n", "line 2: task 0 has a program already"),
                       ("0\n", "line 1: it names no program"), ("a true\n", "`a` is not a list of tasks")):
        (job.root / "progs").write_text(text)
        done = job.run("-n", "2", "--multi-prog", "progs")
        assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1, done


CONTAINER = """#!/bin/sh
echo "$@" >>{root}/{name}.called
until [ "$1" = inner ]; do shift; done
exec "$@"
"""
ENROOT = """#!/bin/bash
echo "$1 $2 $4" >>{root}/enroot.called
. "$3"
environ | grep -c ^SLURM_PROCID= >>{root}/enroot.called
mounts >>{root}/enroot.called
shift 4
rc "$@"
"""


def test_a_program_in_a_container(job: Around) -> None:
    """By the command lines of what starts containers, which stand-ins read here."""
    bin = job.root / "containers"
    bin.mkdir()
    env = {"PATH": f"{bin}:{job.env['PATH']}"}

    def add(name: str, text: str) -> None:
        (bin / name).write_text(text.format(root=job.root, name=name))
        (bin / name).chmod(0o755)
    add("inner", "#!/bin/sh\necho $SLURM_PROCID $1 $(pwd)\n")
    assert "needs one of apptainer" in job.run("--container-image=x.sif", "inner", env=env).stderr
    add("enroot", ENROOT)
    done = job.run("-n1", "--mpi=none", "--container-image=x.sqsh", "--container-mounts=/a:/b:ro+rprivate,/c", "--container-workdir=/tmp",
                   "inner", "deep sea", env=env)
    assert done.stdout == "0 deep sea /tmp\n", done.stderr
    assert (job.root / "enroot.called").read_text().splitlines() == [
        "start --conf x.sqsh", "1", "/a /b none x-create=auto,rbind,ro,rprivate", "/c /c none x-create=auto,rbind"]
    assert "enroot import docker://x" in job.run("--container-image=x", "inner", env=env).stderr
    add("apptainer", CONTAINER)
    for image, meant in (("./x.sif", "./x.sif"), ("hub.example#lab/x:2", "docker://hub.example/lab/x:2"), ("x", "docker://x"),
                         ("oras://hub.example/x", "oras://hub.example/x"), ("/images/x", "/images/x")):
        (job.root / "apptainer.called").unlink(missing_ok=True)
        done = job.run("-n2", "--mpi=none", f"--container-image={image}", "--container-mounts=/a:/b:ro+x", "--container-workdir=/w", "inner", "i",
                       env=env)
        assert sorted(done.stdout.splitlines()) == [f"{rank} i {job.root}" for rank in (0, 1)], done.stderr
        assert (job.root / "apptainer.called").read_text() == 2 * f"exec --bind /a:/b:ro,x --pwd /w {meant} inner i\n"
    for words, said in ((["--container-mounts=/a:", "inner"], "`/a:` is not SOURCE:TARGET"), (["inner", ":", "inner"], "of one program")):
        assert said in job.run("--container-image=x", *words, env=env).stderr


def test_more_tasks_than_cores_are_spread_over_the_nodes(job: Around) -> None:
    for how, counts in ((("-n", "20"), [10, 10]), (("-n", "9", "-c", "2"), [5, 4]), (("-n", "3"), [3]),
                        (("-n", "9", "-N", "1"), [9]), (("-n", "9", "-m", "cyclic"), [5, 4])):
        done = job.run(*how, "--overcommit", "sh", "-c", "echo $SLURMD_NODENAME")
        assert sorted((done.stdout.split().count(name) for name in set(done.stdout.split())), reverse=True) == counts, done
    assert job.run("-n", "9", "true", env={"SLURM_OVERCOMMIT": "1"}).returncode == 0
    assert "More processors requested" in job.run("-O", "-n", "1", "-c", "5", "true").stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core only")
def test_tasks_are_bound_to_their_cores(job: Around) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    job.write([f"n0 n0 2 {first}/{second}"], tasks="2", bound="1")
    show = ["grep", "Cpus_allowed_list", "/proc/self/status"]
    found = [line.split()[1] for line in job.run("-n", "2", *show).stdout.splitlines()]
    assert sorted(found) == sorted([str(first), str(second)])
    begun = job.start("-n", "1", "sh", "-c", "grep Cpus_allowed_list /proc/self/status; read line",
                      stdin=subprocess.PIPE)
    here = begun.stdout.readline().split()[1]  # type: ignore[union-attr]
    there = job.run("-n", "1", *show).stdout.split()[1]
    begun.communicate("\n", timeout=30)
    assert {here, there} == {str(first), str(second)}
    wide = job.run("-n", "2", "--cpu-bind=none", *show).stdout.split()[1::2]
    assert wide[0] == wide[1] and wide[0] in (f"{first}-{second}", f"{first},{second}")
    for said, cpus in ((f"map_cpu:{second},{first}", [second, first]), (f"verbose,map_cpu:{second}", [second, second]),
                       (f"map_cpu:{first}*2,0x{second:x}", [first, first]),
                       (f"mask_cpu:{1 << second:#x},{1 << first:x}", [second, first])):
        done = job.run("-n", "2", "-l", "--cpu-bind", said, *show)
        assert [line.split()[-1] for line in sorted(done.stdout.splitlines())] == list(map(str, cpus)), done
    done = job.run("-n", "1", f"--cpu-bind=map_cpu:{second + 1}", *show)
    assert done.returncode == 1 and f"CPU {second + 1} of n0 is not this job's, which has {first},{second}" in done.stderr
    # More tasks than cores.
    done = job.run("-n", "5", "-O", "sh", "-c", "grep Cpus_allowed_list /proc/self/status; echo $SLURM_CPUS_ON_NODE")
    assert sorted(done.stdout.split()) == sorted([str(first)] * 3 + [str(second)] * 2 + ["2"] * 5
                                                 + ["Cpus_allowed_list:"] * 5), done
    assert [(step.tasks, step.cores) for step in job.recorded()][-1] == (5, 2)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_program_of_an_mpi_is_known_by_its_libraries(tmp_path: Path) -> None:
    """It is for the launcher, also with one task."""
    (tmp_path / "empty.c").write_text("int mpi_of_test;\n")
    (tmp_path / "main.c").write_text("extern int mpi_of_test; int main(void) { return mpi_of_test; }\n")
    for words in (["-shared", "-o", "libmpi.so.40", "empty.c", "-Wl,-soname,libmpi.so.40"],
                  ["-o", "solve", "main.c", "./libmpi.so.40"]):
        subprocess.run(["cc", *words], cwd=tmp_path, check=True)
    assert links_mpi(str(tmp_path / "solve"))
    assert not any(map(links_mpi, ("/bin/sh", sys.executable, __file__, "/nowhere")))
    (tmp_path / "cut").write_bytes((tmp_path / "solve").read_bytes()[:200])
    assert not links_mpi(str(tmp_path / "cut"))


def test_a_step_loads_little() -> None:
    """What takes milliseconds to load is not loaded: a step would start late."""
    root = Path(__file__).parents[3]
    code = (f"import sys; sys.path.insert(0, {str(root)!r}); import vrm.ext.steps.main; "
            "print(*sorted(set(sys.modules) & {'re', 'json', 'typing', 'subprocess', 'enum', 'signal', "
            "'collections', 'ctypes', 'dataclasses', 'pathlib', 'threading'}))")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout == "\n"


def test_a_step_without_a_tidy_end_of_its_reader(job: Around) -> None:
    """`srun ... | head -1` ends."""
    step = job.start("-n", "1", "-l", "sh", "-c", "while echo line; do :; done")
    assert step.stdout.readline() == "0: line\n"  # type: ignore[union-attr]
    step.stdout.close()  # type: ignore[union-attr]
    begun = time.monotonic()
    assert step.wait(20) != 0 and time.monotonic() - begun < 20


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Around, subprocess.Popen[str]]]:
    """A job with a server of its steps, and who started that."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("needs a C compiler")
    around = Around(tmp_path)
    with serving(around) as server:
        yield around, server


def test_a_server_gives_a_step_what_it_would_inherit(served: tuple[Around, subprocess.Popen[str]]) -> None:
    """Directory, mask, limits, cores, priority and ignored signals; and the parent is the server's fork."""
    job, server = served
    core = min(os.sched_getaffinity(0))
    (job.root / "far away").mkdir()
    # The ignored signals but 32 and 33, with which the C library does as it likes.
    show = ("umask; ulimit -n; ulimit -s; pwd; nice; grep Cpus_allowed_list /proc/self/status; "
            "sed -n 's/^SigIgn:.*\\(.\\{8\\}\\)$/\\1/p' /proc/self/status | sed 's/^8/0/'; ps -o ppid= -p $PPID")
    around = (f"cd 'far away'; umask 027; ulimit -n 77; ulimit -s 4096; trap '' HUP USR1; "
              f"exec taskset -c {core} nice -n 3 {job.srun} -n1 sh -c \"$1\"")
    got = subprocess.run(["sh", "-c", around, "sh", show], env=job.env, cwd=job.root, text=True, capture_output=True,
                         stdin=subprocess.DEVNULL, timeout=30, check=True).stdout.split()
    usual = subprocess.run(["sh", "-c", around.replace(f"{job.srun} -n1 ", ""), "sh", show], env=job.env, cwd=job.root,
                           text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=30, check=True).stdout.split()
    assert got[:-1] == usual[:-1] and "77" in got and "4096" in got
    assert int(got[-1]) == of_server(server)


def test_an_srun_in_another_world_goes_on_alone(served: tuple[Around, subprocess.Popen[str]]) -> None:
    """Another scheduling class is not taken over; without a server, or with a dead one, steps start, too."""
    job, server = served
    parent = ["sh", "-c", "ps -o ppid= -p $PPID"]
    other = subprocess.run(["chrt", "--batch", "0", str(job.srun), "-n1", *parent], env=job.env, text=True,
                           capture_output=True, stdin=subprocess.DEVNULL, timeout=30, check=True)
    assert int(other.stdout) == os.getpid()
    assert int(job.run("-n1", *parent).stdout) == of_server(server)
    server.communicate("", timeout=30)
    assert int(job.run("-n1", *parent).stdout) == os.getpid()
    (job.steps / SOCKET).unlink()
    assert int(job.run("-n1", *parent).stdout) == os.getpid()


def test_a_server_knows_the_time_that_its_steps_took(served: tuple[Around, subprocess.Popen[str]]) -> None:
    job, server = served
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    assert job.run("-n", "2", sys.executable, "-S", "-c", burn).returncode == 0
    assert 0.4 <= float(server.communicate("", timeout=30)[0]) < 30


def test_steps_end_with_a_killed_server(served: tuple[Around, subprocess.Popen[str]]) -> None:
    job, server = served
    step = job.start("-n", "2", "sh", "-c", "echo $$; exec sleep 77")
    pids = [int(step.stdout.readline()) for _ in range(2)]  # type: ignore[union-attr]
    os.kill(of_server(server), signal.SIGKILL)
    assert step.wait(30) == 137
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "its tasks have ended")


def test_nonsense_at_the_server_harms_nobody(served: tuple[Around, subprocess.Popen[str]]) -> None:
    job, _ = served
    for text in (b"", b"\0", b"\xff" * 8, b"\x04\0\0\0abc\0", b"\x02\0\0\x00" + b"7\0"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(job.steps / SOCKET))
            client.sendall(text)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(10) in (b"-\n", b"-\n1\n", b"")
    assert job.run("-n", "8", "true").returncode == 0
