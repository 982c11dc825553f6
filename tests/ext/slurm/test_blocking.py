"""srun, salloc and mpirun outside of jobs: jobs that are waited for, with what they print, their exit status,
signals and standard input."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest

from conftest import Site, mpirun_environment, wait_until
from support.executor import Managed
from vrm.ext.slurm.calls import build
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.calls.answers import Answer, CallRefused, DeferredAnswer
from vrm.ext.slurm.blocking import AllocationAnswer, _ranks
from vrm.ext.slurm.calls.server import SILENCE, CommandFileCalls, SocketServer
from vrm.model import Job as SubmittedJob, JobState
from vrm.model.job import PLAIN
from vrm.ext.steps.records import read_steps


class Outside:
    """A run, and commands that are typed outside of its jobs."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.env = {**mpirun_environment(), "VRM_DIRECTORY": str(site.log)}
        self.env["PATH"] = f"{site.log}/launchers:{site.log}/bin:{self.env['PATH']}"

    def popen(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(words, env={**self.env, **how.pop("env", {})}, text=True, cwd=self.site.root, **{
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how})

    def run(self, *words: str, input: Any = None, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run one to its end."""
        return subprocess.run(words, env={**self.env, **how.pop("env", {})}, text=True, cwd=self.site.root,
                              capture_output=True, timeout=60, check=False, **how, **(
                                  {"stdin": subprocess.DEVNULL} if input is None else {"input": input}))


@pytest.fixture(params=["socket", "files"])
def outside(site: Site, request: pytest.FixtureRequest) -> Iterator[Outside]:
    """A run of two cores, whose jobs are waited for: on the manager's node, and as from another one."""
    site.config(Nodes=1, Sockets=1, Cores=2, Allocation={"Policy": "pack"}, Launcher={"Kind": "direct"},
                Applications={"Path": str(site.bin), "Queue": str(site.queue), "Any": True})
    manager = site.start("--wait")
    wait_until(lambda: "waiting for lines" in site.said(manager), "it waits")
    assert build.link(site.log / "bin")
    build.link(site.log / "launchers", ["mpirun"], site.log / "bin")
    if request.param == "files":
        (site.log / "socket").rename(site.log / "elsewhere")
    yield Outside(site)
    manager.send_signal(signal.SIGTERM)
    site.finish(manager)


def test_a_program_that_waits_for_its_job(outside: Outside) -> None:
    site = outside.site
    done = outside.run("srun", "-n", "2", "-l", "-J", "mine", "sh", "-c",
                       'echo "$COLOUR $PWD"; echo err >&2; exit $SLURM_PROCID', env={"COLOUR": "deep red"})
    assert sorted(done.stdout.splitlines()) == [f"{rank}: deep red {site.root}" for rank in (0, 1)], done.stderr
    assert "0: err" in done.stderr and "task 1: Exited with exit code 1" in done.stderr
    assert done.returncode == 1
    wait_until(lambda: len(site.rows()) == 1, "it is recorded")
    row, = site.rows().values()
    assert (row.procs, row.status, row.exit_code, row.app) == (2, "failed", 1, "mine")
    assert [step.step for step in read_steps(site.log / "steps.csv")[row.id]] == ["0", "batch"]
    assert outside.run("srun", "--version").stdout.startswith("slurm ")


def test_what_is_printed_comes_at_once_and_signals_go_on(outside: Outside) -> None:
    client = outside.popen("srun", "-n1", "sh", "-c", 'trap "echo got it; exit 7" USR1; echo begun; '
                           'while :; do sleep 0.02; done')
    assert client.stdout.readline() == "begun\n"  # type: ignore[union-attr]
    client.send_signal(signal.SIGUSR1)
    out, _ = client.communicate(timeout=30)
    assert (out, client.returncode) == ("got it\n", 7)


def test_standard_input_is_the_clients(outside: Outside) -> None:
    assert outside.run("srun", "-n1", "cat", input="a\nb\n").stdout == "a\nb\n"
    (outside.site.root / "in").write_text("from a file\n")
    with open(outside.site.root / "in", encoding="utf-8") as file:
        done = subprocess.run(["srun", "-n1", "cat"], env=outside.env, stdin=file, text=True,
                              capture_output=True, timeout=60, check=False)
    assert done.stdout == "from a file\n", done.stderr


def test_salloc_says_which_job_it_got(outside: Outside) -> None:
    done = outside.run("salloc", "-n", "1", "sh", "-c", "echo $SLURM_JOB_ID")
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == f"salloc: Granted job allocation {done.stdout.strip()}"
    assert not outside.run("salloc", "-Q", "-n", "1", "true").stderr


def test_options_of_the_job_are_not_options_of_its_step(outside: Outside) -> None:
    first = outside.run("sbatch", "--parsable", "--wrap=echo first").stdout.strip()
    done = outside.run("srun", f"--dependency=afterany:{first}", "--begin=now", "--signal=USR1@1", "echo", "second")
    assert (done.returncode, done.stdout) == (0, "second\n"), done.stderr
    wait_until(lambda: len(outside.site.rows()) == 2, "both are recorded")
    starts = {row.id: row.start for row in outside.site.rows().values()}
    assert starts[int(first)] < starts[int(first) + 1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_ends_takes_its_job_with_it(outside: Outside, number: int) -> None:
    site = outside.site
    if number == signal.SIGKILL and (site.log / "elsewhere").exists():
        pytest.skip("from another node this takes a minute: see the next test")
    client = outside.popen("srun", "-n", "2", "sh", "-c", "echo begun; exec sleep 777")
    assert client.stdout.readline() == "begun\n"  # type: ignore[union-attr]
    waits = outside.popen("srun", "-n1", "echo", "later")
    assert "queued and waiting" in waits.stderr.readline()  # type: ignore[union-attr]
    client.send_signal(number)
    client.communicate(timeout=30)
    out, _ = waits.communicate(timeout=30)
    assert (out, waits.returncode) == ("later\n", 0)
    wait_until(lambda: len(site.rows()) == 2, "both are recorded")
    assert sorted(row.status for row in site.rows().values()) == ["cancelled", "completed"]
    assert client.returncode == (-9 if number == signal.SIGKILL else 130)
    site.nothing_left()


def test_who_asks_a_manager_that_hangs_can_be_ended(outside: Outside) -> None:
    if (outside.site.log / "elsewhere").exists():
        pytest.skip("who asks by files is not a C program")
    manager, = outside.site.started
    manager.send_signal(signal.SIGSTOP)
    try:
        client = outside.popen("squeue")
        status = Path(f"/proc/{client.pid}/status")
        wait_until(lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) >> signal.SIGTERM - 1 & 1,
                   "it passes signals on")
        client.send_signal(signal.SIGTERM)
        _, said = client.communicate(timeout=30)
        assert (client.returncode, said) == (143, "squeue: error: the manager of vrm does not answer\n")
    finally:
        manager.send_signal(signal.SIGCONT)


def test_a_client_on_another_node_that_asks_no_more_is_gone(tmp_path: Path) -> None:
    class JobView(DeferredAnswer):
        """Waits, and keeps what comes."""

        heard: list[object] = []

        def poll(self) -> Answer | None:
            return Answer("all\n", code=4) if "end" in self.heard else None

        def take(self) -> tuple[bytes, bytes]:
            return b"\xff out", b"err"

        def gone(self) -> None:
            self.heard.append("gone")

        def signalled(self, number: int) -> None:
            self.heard.append(number)

    managed = Managed(tmp_path / "run")
    file_calls, job = CommandFileCalls(managed.live, managed.live.part(SocketServer).handler), JobView()
    file_calls.wait("1.a", job, 100.0)
    asked = file_calls.answer({"of": "1.a", "signals": [10]}, "2.b", 150.0)
    assert (asked["waits"], os.fsencode(str(asked["out"])), asked["err"]) == ("1.a", b"\xff out", "err")
    file_calls.sweep(150.0 + SILENCE)
    assert file_calls.busy(151.0) and not file_calls.busy(170.0) and job.heard == [10]
    file_calls.sweep(151.0 + SILENCE)
    assert job.heard == [10, "gone"]
    late = file_calls.answer({"of": "1.a", "signals": []}, "3.c", 220.0)
    assert "waits" not in late and "code" not in late and "heard nothing" in str(late["text"])
    file_calls.wait("4.d", job, 230.0)
    job.heard.append("end")
    assert file_calls.answer({"of": "4.d", "signals": []}, "5.e", 231.0)["code"] == 4
    assert not file_calls.busy(231.0)
    managed.close()


def test_a_command_on_the_cores_of_a_job(outside: Outside) -> None:
    done = outside.run("salloc", "-n", "2", "--", "sh", "-c",
                       'srun -n1 echo a & srun -n1 echo b & wait; echo "$SLURM_NTASKS"; exit 3')
    assert (sorted(done.stdout.split()), done.returncode) == (["2", "a", "b"], 3), done.stderr
    # One that is only there for the steps that enter it.
    done = outside.run("salloc", "--no-shell", "-n", "2", "-J", "room")
    assert done.returncode == 0 and done.stderr.startswith("salloc: ") and not done.stdout
    room = done.stderr.split()[-1]
    done = outside.run("srun", f"--jobid={room}", "-n2", "sh", "-c", "echo $SLURM_JOB_ID.$SLURM_PROCID")
    assert sorted(done.stdout.split()) == [f"{room}.0", f"{room}.1"], (done.stderr, outside.site.rows())
    assert outside.run("scancel", room).returncode == 0
    wait_until(lambda: int(room) in outside.site.rows(), "it has ended")
    assert "runs no command" in outside.run("salloc", "--no-shell", "true").stderr


def test_a_job_is_granted_when_it_is_launched_and_not_when_that_is_decided() -> None:
    """The journal may take a while; who enters the job until then would hear that it does not run."""
    class Looks:
        launched = False

        def jobs(self, ids: list[int]) -> list[JobView]:
            return [JobView(2, SubmittedJob(2, "sleep", 1, 60), PLAIN, JobState.RUNNING, nodes=("n0",), launched=self.launched)]

        def files(self, job: JobView) -> tuple[str, str, str]:
            return "", "", ""

    looks = Looks()
    granted = AllocationAnswer(looks, 2, "salloc", True)  # type: ignore[arg-type]
    assert granted.poll() is None and granted.poll() is None
    looks.launched = True
    assert granted.poll() == Answer()
    assert granted.take()[1] == b"salloc: Granted job allocation 2\n"


@pytest.mark.mpi
def test_mpirun_in_a_job_that_is_entered_is_the_real_one(outside: Outside) -> None:
    """In a shell of salloc it is on the job's cores; a step that srun --jobid starts finds it, too."""
    done = outside.run("salloc", "-Q", "-n2", input="mpirun -n 2 sh -c 'echo rank $OMPI_COMM_WORLD_RANK'\n")
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"], done
    room = outside.run("salloc", "--no-shell", "-n", "1").stderr.split()[-1]
    done = outside.run("srun", f"--jobid={room}", "-n1", "bash", "-c", "command -v mpirun")
    assert done.stdout and not done.stdout.startswith(str(outside.site.log)), done
    assert len(outside.run("squeue", "-h", "-t", "all").stdout.splitlines()) == 2


class Terminal:
    """A command at a terminal."""

    def __init__(self, outside: Outside, *words: str, **env: str) -> None:
        self.master, slave = pty.openpty()
        self.process = outside.popen(*words, env=env, stdin=slave, stdout=slave, stderr=slave,
                                     start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.text = ""

    def type(self, line: str, then: str) -> None:
        """Type a line, and wait for what it prints."""
        self.text = ""
        os.write(self.master, line.encode())
        wait_until(lambda: then in self.read(), f"it prints {then!r}")

    def read(self) -> str:
        """What has been printed since the last line was typed."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.text += os.read(self.master, 1 << 16).decode()
            except OSError:  # nobody has it open any more
                break
        return self.text

    def ended(self) -> int:
        """Its exit status."""
        code = self.process.wait(30)
        self.read()
        os.close(self.master)
        return code


def test_a_shell_with_a_job(outside: Outside) -> None:
    """At a terminal: its steps are the job's, Ctrl-C and stopped programs are the shell's; it ends with the job, and the
    job with it."""
    site = outside.site
    shell = Terminal(outside, "salloc", "-n", "2", "-J", "room", SHELL="/bin/bash")
    shell.type("echo in $SLURM_JOB_ID $SLURM_NTASKS $((40 + 2))\n", " 2 42\r\n")
    job = shell.text.split(" 2 42\r\n")[0].split()[-1]
    shell.type("srun sh -c 'echo task $SLURM_PROCID $((1 + 1))'\n", "task 1 2\r\n")
    shell.type("srun -n1 sh -c 'echo begun; exec sleep 777'\n", "begun\r\n")
    shell.type("\x03", "^C")
    shell.type("echo back $((1 + 1))\n", "back 2\r\n")
    shell.type("sleep 777 & jobs; kill %1; wait; echo all $((1 + 1))\n", "all 2\r\n")
    assert outside.run("squeue", "-h", "-j", job, "-o", "%T %j").stdout == "RUNNING room\n"
    os.write(shell.master, b"exit 5\n")
    assert shell.ended() == 5, shell.text
    wait_until(lambda: int(job) in site.rows(), "it has ended")
    assert site.rows()[int(job)].status == "completed"
    # Without a terminal; and one whose job is ended by another.
    done = outside.run("salloc", "-Q", "-n1", input="srun hostname >/dev/null && echo $SLURM_NTASKS; exit 3\n")
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 3)
    # As a user of PBS has it.
    shell = Terminal(outside, "qsub", "-I", "-l", "select=2:ncpus=1", "-N", "asked", SHELL="/bin/bash")
    shell.type("echo $PBS_JOBNAME $PBS_O_WORKDIR $(cat $PBS_NODEFILE | wc -l) $((1 + 1))\n", f"asked {site.root} 2 2\r\n")
    os.write(shell.master, b"exit 6\n")
    assert shell.ended() == 6 and shell.text.rstrip().endswith(".vrm completed"), shell.text
    # A step with a terminal.
    shell = Terminal(outside, "srun", "-n1", "-J", "step", "--pty", "bash", "--norc")
    shell.type("[ -t 0 ] && echo $SLURM_JOB_NAME $SLURM_STEPID $SLURM_NTASKS $((1 + 1))\n", "step 0 1 2\r\n")
    os.write(shell.master, b"exit 6\n")
    assert shell.ended() == 6, shell.text
    wait_until(lambda: len(site.rows()) == 4 and not outside.run("squeue", "-h").stdout, "it has ended")
    assert [row.status for row in site.rows().values()] == ["completed"] * 4
    shell = Terminal(outside, "salloc", "-n1", SHELL="/bin/bash")
    shell.type("echo $SLURM_JOB_ID $((1 + 1))-\n", " 2-\r\n")
    job = shell.text.split(" 2-\r\n")[0].split()[-1]
    shell.type("srun sh -c 'echo step $((1 + 1)); exec sleep 777'\n", "step 2\r\n")
    assert outside.run("scancel", job).returncode == 0
    assert (shell.ended(), f"Job allocation {job} has been revoked" in shell.text) == (1, True), shell.text
    site.nothing_left()


def test_files_and_programs_for_all_nodes_of_a_job(outside: Outside) -> None:
    """sbcast and pbsdsh, and the commands that only refuse."""
    root = outside.site.root
    (root / "from").write_text("text\n")
    (root / "from").chmod(0o750)
    done = outside.run("salloc", "-Q", "-n", "2", "--", "sh", "-c", f"sbcast from {root}/to; echo $?; sbcast from to; echo $?; "
                       "sbcast -f from to; echo $?; pbsdsh sh -c 'echo $SLURM_PROCID'; sreport; strigger --get; echo $?")
    assert sorted(done.stdout.split()) == ["0", "0", "0", "1", "1", "1"], done
    assert (root / "to").read_text() == "text\n" and (root / "to").stat().st_mode & 0o777 == 0o750
    assert "File exists" in done.stderr and "sreport: error: vrm does not have this command" in done.stderr
    done = outside.run("sbcast", "from", "to")
    assert done.returncode == 1 and "needs its nodes" in done.stderr


def test_a_step_in_a_job_that_runs(outside: Outside) -> None:
    """From outside, also with a terminal; it ends with the job."""
    root = outside.site.root
    job = outside.run("sbatch", "--parsable", "-n", "2", "-J", "held", "--wrap",
                      "srun -n2 --jobid=$SLURM_JOB_ID sleep 600").stdout.strip()
    wait_until(lambda: outside.run("squeue", "-h", "-t", "R", "-o", "%i").stdout.strip() == job, "it runs")
    show = ["sh", "-c", "echo $SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_NTASKS $MINE; command -v srun; exit 4"]
    done = outside.run("srun", "--overlap", f"--jobid={job}", *show, env={"MINE": "here"})
    assert (done.stdout, done.returncode) == (f"{job} held 1 here\n{outside.site.log}/bin/srun\n", 4), done.stderr
    master, slave = pty.openpty()
    shell = outside.popen("srun", "--overlap", f"--jobid={job}", "--pty", "sh", "-c",
                          f"[ -t 0 ] && echo $SLURM_JOB_ID >{root}/there; exec sleep 600",
                          stdin=slave, stdout=slave, stderr=slave)
    wait_until(lambda: (root / "there").exists() and (root / "there").read_text() == f"{job}\n", "it has a terminal")
    assert outside.run("scancel", job).returncode == 0
    shell.wait(30)
    os.close(master)
    os.close(slave)
    done = outside.run("srun", f"--jobid={job}", "true")
    assert done.returncode == 1 and "it does not run" in done.stderr


def test_a_job_is_watched_and_goes_on(outside: Outside) -> None:
    """What it has printed, what it prints, its exit status; a signal is for the one who watches."""
    root = outside.site.root
    job = outside.run("sbatch", "--parsable", "-o", "both", "--wrap", "echo early; until [ -e go ]; do sleep 0.05; done; "
                      "echo late >&2; exit 3").stdout.strip()
    wait_until(lambda: (root / "both").exists() and (root / "both").read_text() == "early\n", "it runs")
    first, second = (outside.popen("sattach", f"{job}.0") for _ in range(2))
    for each in (first, second):
        assert each.stdout and each.stdout.readline() == "early\n"
    first.send_signal(signal.SIGINT)
    assert first.wait(30) == 130
    (root / "go").touch()
    assert second.communicate(timeout=30) == ("late\n", "") and second.returncode == 3
    wait_until(lambda: [row.status for row in outside.site.rows().values()] == ["failed"], "it is recorded")
    for words, said in {(): "name one job or step", ("99",): "Invalid job id", (job,): "does not run", ("x.y",): "Invalid job id"}.items():
        done = outside.run("sattach", *words)
        assert done.returncode == 1 and said in done.stderr and done.stderr.startswith("sattach: error: "), done


@pytest.mark.mpi
def test_mpirun_is_the_real_one_on_the_cores_of_a_job(outside: Outside) -> None:
    done = outside.run("mpirun", "-n", "2", "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK $VRM_NTASKS")
    assert sorted(done.stdout.splitlines()) == ["rank 0 2", "rank 1 2"], done.stderr
    assert outside.run("mpirun", "-n", "1", "sh", "-c", "exit 5").returncode == 5
    wait_until(lambda: len(outside.site.rows()) == 2, "both are recorded")
    wrong: list[tuple[str, ...]] = [("mpirun", "true"), ("mpirun", "-n", "0", "true"), ("mpirun", "-n", "1"),
                                    ("mpirun", "-n", "1", "-H", "n1", "true"), ("mpirun", "-n", "9", "true")]
    for words in wrong:
        done = outside.run(*words)
        assert done.returncode and "mpirun: error: " in done.stderr, words


def test_what_cannot_be_is_said(outside: Outside) -> None:
    for words, said in {("srun",): "No command given", ("srun", "-n", "x", "true"): "Invalid value `x`",
                        ("srun", "--jobid=99", "true"): "--jobid=99: Invalid job id",
                        ("srun", "-n", "1", "true", ":", "-n", "1"): "No command given",
                        ("srun", "--het-group=0", "true"): "this is outside of jobs",
                        ("sbatch", "-n1", ":", "-n64", "-t", "5", "--wrap", "true"): "64 ranks",
                        ("salloc", "-t4", "-n1", ":", "-n1", "-t", "5", "true"): "--time is of all components",
                        ("salloc", "-n1", ":", "-n64", "true"): "Unable to allocate resources: true: 64 ranks",
                        ("srun", "--container-name=x", "true"): "--container-name cannot be followed",
                        ("srun", "-n", "64", "true"): "srun: error: Unable to allocate resources: 64 ranks"}.items():
        done = outside.run(*words)
        assert done.returncode == 1 and said in done.stderr, (words, done.stderr)


def test_a_shell_in_a_job_of_a_program(site: Site) -> None:
    """It is on the job's cores, is no part of its end, and leaves no files."""
    site.config(Nodes=2, Sockets=1, Cores=2, Emulate=True, Allocation={"Policy": "pack"}, Launcher={"Kind": "direct"})
    gate = site.root / "gate"
    site.program("hold", f"while [ ! -e {gate} ]; do sleep 0.05; done")
    site.lines("hold 2 60 0", end=False)
    manager = site.start("--wait")
    wait_until(lambda: "running" in str(site.state()), "it runs")
    assert build.link(site.log / "bin")
    outside = Outside(site)
    done = outside.run("srun", "--overlap", "--jobid=0", "-n", "2", "sh", "-c", "echo $SLURM_JOB_ID $SLURMD_NODENAME")
    assert done.stdout.splitlines() == ["0 n0", "0 n0"], done
    (site.root / "sh").write_text("#!/bin/sh\necho $SLURM_JOB_ID $SLURM_NTASKS >there; exit 3\n")
    (site.root / "sh").chmod(0o755)
    done = site.run("shell", "0", SHELL=str(site.root / "sh"))
    assert done.returncode == 3 and (site.root / "there").read_text() == "0 1\n", done
    assert "Invalid job id" in site.run("shell", "7").stderr
    gate.touch()
    wait_until(lambda: len(site.rows()) == 1, "it has ended")
    assert site.statuses() == {0: "completed"} and not list((site.log / "rankfiles").glob("*.steps"))
    manager.send_signal(signal.SIGTERM)
    site.finish(manager)


SHOW = "echo $0 $SLURM_PROCID $SLURM_CPUS_PER_TASK $SLURM_NTASKS"
HET = """#!/bin/sh
#SBATCH -n2 -o het.out
#SBATCH hetjob
#SBATCH -n1 -c2
echo $SLURM_HET_SIZE $SLURM_NTASKS_HET_GROUP_0 $SLURM_NTASKS_HET_GROUP_1 $SLURM_CPUS_PER_TASK_HET_GROUP_1
srun --mpi=none sh -c '{show}' first
srun --mpi=none --het-group=1 sh -c '{show}' second
srun --mpi=none sh -c '{show}' a : sh -c '{show}' b
"""


def test_heterogeneous_jobs(site: Site) -> None:
    site.config(Nodes=2, Sockets=1, Cores=2, Emulate=True, Allocation={"Policy": "pack"}, Launcher={"Kind": "direct"})
    manager = site.start("--wait")
    wait_until(lambda: "waiting for lines" in site.said(manager), "it waits")
    assert build.link(site.log / "bin")
    outside = Outside(site)
    (outside.site.root / "het.sh").write_text(HET.format(show=SHOW))
    done = outside.run("sbatch", "--wait", "het.sh")
    text = (outside.site.root / "het.out").read_text().splitlines()
    assert text, (done, site.said(manager))
    assert (text[0], sorted(text[1:])) == ("2 2 1 2", [
        "a 0 1 3", "a 1 1 3", "b 2 2 3", "first 0 1 2", "first 1 1 2", "second 0 2 1"]), (done, text)
    typed = ["sh", "-c", SHOW]
    for words in (["salloc", "-n2", ":", "-n1", "-c2", "srun", "--mpi=none", *typed, "a", ":", "--mpi=none", *typed, "b"],
                  ["srun", "--mpi=none", "-n2", *typed, "a", ":", "-n1", "-c2", *typed, "b"]):
        done = outside.run(*words)
        assert sorted(done.stdout.splitlines()) == ["a 0 1 3", "a 1 1 3", "b 2 2 3"], done
    wait_until(lambda: len(outside.site.rows()) == 3, "all are recorded")
    assert {row.coupled for row in site.rows().values()} == {
        f"{name} 2 : {name} 1 cores=2" for name in ("het.sh", "srun", "sh")}
    manager.send_signal(signal.SIGTERM)
    site.finish(manager)


def test_hardware_threads_of_slurms_options(site: Site) -> None:
    """Where they count as cores `--hint` asks for one of each core; else it changes nothing."""
    site.config(Nodes=1, Sockets=1, Cores=2, Threads=2, Emulate=True, Allocation={"Policy": "spare"}, Launcher={"Kind": "direct"})
    manager = site.start("--wait")
    wait_until(lambda: "waiting for lines" in site.said(manager), "it waits")
    assert build.link(site.log / "bin")
    outside = Outside(site)
    shown = outside.run("scontrol", "show", "node").stdout
    assert "CoresPerSocket=2" in shown and "ThreadsPerCore=2" in shown and "CPUTot=4" in shown
    assert outside.run("sinfo", "-h", "-o", "%X %Y %Z %z").stdout == "1 2 2 1:2:2\n"
    for number, options in enumerate((["--hint=nomultithread"], ["--threads-per-core=1"], ["--hint=multithread"], [])):
        done = outside.run("sbatch", "--wait", "-n2", *options, "--wrap", "true")
        assert done.returncode == 0, done
        wait_until(lambda: len(site.rows()) == number + 1, "it is recorded")
    assert [row.threads for row in site.rows().values()] == [1, 1, 0, 0]
    assert "Invalid value `fast` for --hint" in outside.run("sbatch", "--hint=fast", "--wrap", "true").stderr
    manager.send_signal(signal.SIGTERM)
    site.finish(manager)


def test_partitions_have_nodes_and_limits_of_their_own(site: Site) -> None:
    site.config(Nodes=3, Sockets=1, Cores=1, Emulate=True, Allocation={"Policy": "pack"}, Launcher={"Kind": "direct"},
                Queues={"short": {"Nodes": "n[0-1]", "MaxWalltime": "10m", "DefaultWalltime": "5m", "Default": True},
                        "long": {"Nodes": "n2"}})
    site.program("one", "true")
    manager = site.start("--wait")
    wait_until(lambda: "waiting for lines" in site.said(manager), "it waits")
    assert build.link(site.log / "bin")
    outside = Outside(site)
    assert outside.run("sinfo", "-h", "-o", "%P %D %N %L").stdout.splitlines() == [
        "long 1 n2 1:00:00", "short* 2 n[0-1] 5:00"]
    assert "MaxTime=00:10:00" in outside.run("scontrol", "show", "partition", "short").stdout
    assert "Partitions=long\n" in outside.run("scontrol", "show", "node", "n2").stdout.replace(" \n", "\n")
    done = outside.run("sbatch", "-p", "short", "-t", "11", "--wrap", "true")
    assert done.returncode == 1 and "its limit is 660 s, queue short allows 600" in done.stderr
    gate = site.root / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    for name in ("short", "short", "long,short", "long,short", "short,long"):
        assert outside.run("sbatch", "-p", name, "--wrap", wait).returncode == 0
    wait_until(lambda: outside.run("squeue", "-h", "-t", "R").stdout.count("\n") == 3, "three run")
    # The fourth and the fifth would start where the limit is short.
    assert sorted(outside.run("squeue", "-h", "-o", "%P %t %l").stdout.splitlines()) == sorted([
        "short R 5:00", "short R 5:00", "long R 1:00:00", "short PD 5:00", "short PD 5:00"])
    gate.touch()
    site.append("one 1\n")
    wait_until(lambda: len(site.rows()) == 6, "all have ended")
    assert {row.status for row in site.rows().values()} == {"completed"}
    assert [row.walltime for row in site.rows().values() if row.app == "one"] == [300]
    manager.send_signal(signal.SIGTERM)
    site.finish(manager)


def test_how_many_ranks_an_mpirun_starts() -> None:
    for words, found in {"-np 4 --map-by slot:PE=2 -x A prog -n 3": (4, 2, 0, "prog"),
                         "-n 2 a : -n 3 b -n 7": (5, 1, 0, "a"),
                         "--mca btl self -n 4 -npernode 2 --bind-to core prog": (4, 1, 2, "prog")}.items():
        assert _ranks("mpirun", words.split()) == found
    for words in ("prog", "-n", "-n x prog", "--hostfile f -n 2 prog", "-n 2 a : b"):
        with pytest.raises(CallRefused):
            _ranks("mpirun", words.split())


def test_clients_without_a_compiler(outside: Outside) -> None:
    """The same as scripts, which start Python."""
    path = Path(outside.site.root / "srun")
    path.write_text(build.script("srun"))
    path.chmod(0o755)
    done = outside.run(str(path), "-n1", "cat", input="x\n")
    assert (done.stdout, done.returncode) == ("x\n", 0), done.stderr
    client = outside.popen(str(path), "-n1", "sh", "-c", "echo begun; exec sleep 777", start_new_session=True)
    assert client.stdout.readline() == "begun\n"  # type: ignore[union-attr]
    by_files = (outside.site.log / "elsewhere").exists()
    os.killpg(client.pid, signal.SIGINT if by_files else signal.SIGKILL)  # a killed one is missed after a minute
    client.communicate(timeout=30)
    wait_until(lambda: len(outside.site.rows()) == 2, "both are recorded")
    assert sorted(row.status for row in outside.site.rows().values()) == ["cancelled", "completed"]
