"""srun, salloc and mpirun outside of jobs: jobs that are waited for, with what they print, their exit status,
signals and standard input."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Iterator, List, Optional, Tuple, cast

import pytest

from conftest import Site, mpirun_environment, wait_until
from vrm.front import build
from vrm.front.answers import Answer, Refused, Waiting
from vrm.front.blocking import _ranks
from vrm.front.counter import Counter
from vrm.live.manager.door import SILENCE, Afar
from vrm.results.steps import read_steps


class Outside:
    """A run, and commands that are typed outside of its jobs."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.env = {**mpirun_environment(), "VRM_DIRECTORY": str(site.log)}
        self.env["PATH"] = f"{site.log}/launchers:{site.log}/bin:{self.env['PATH']}"

    def popen(self, *words: str, **how: Any) -> "subprocess.Popen[str]":
        """Start a command."""
        return subprocess.Popen(words, env={**self.env, **how.pop("env", {})}, text=True, cwd=self.site.root, **{
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how})

    def run(self, *words: str, input: Any = None, **how: Any) -> "subprocess.CompletedProcess[str]":
        """Run one to its end."""
        return subprocess.run(words, env={**self.env, **how.pop("env", {})}, text=True, cwd=self.site.root,
                              capture_output=True, timeout=60, check=False, **how, **(
                                  {"stdin": subprocess.DEVNULL} if input is None else {"input": input}))


@pytest.fixture(params=["socket", "files"])
def outside(site: Site, request: pytest.FixtureRequest) -> Iterator[Outside]:
    """A run of two cores, whose jobs are waited for: on the manager's node, and as from another one."""
    site.config(Nodes=1, Sockets=1, Cores=2, Allocation={"Policy": "pack"}, Launcher={"Kind": "direct"},
                Applications={"Path": str(site.bin), "Queue": str(site.queue), "Any": True})
    manager = site.start()
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
        pytest.skip("who asks by files is no C program")
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


def test_a_client_on_another_node_that_asks_no_more_is_gone() -> None:
    class Job(Waiting):
        """Waits, and keeps what comes."""

        heard: List[object] = []

        def poll(self) -> Optional[Answer]:
            return Answer("all\n", code=4) if "end" in self.heard else None

        def take(self) -> Tuple[bytes, bytes]:
            return b"\xff out", b"err"

        def gone(self) -> None:
            self.heard.append("gone")

        def signalled(self, number: int) -> None:
            self.heard.append(number)

    afar, job, counter = Afar(), Job(), cast(Counter, None)
    afar._waiting["1.a"], afar._heard["1.a"] = job, 100.0
    asked = afar.answer({"of": "1.a", "signals": [10]}, "2.b", counter, 150.0)
    assert (asked["waits"], os.fsencode(str(asked["out"])), asked["err"]) == ("1.a", b"\xff out", "err")
    afar.sweep(150.0 + SILENCE)
    assert afar.busy(151.0) and not afar.busy(170.0) and job.heard == [10]
    afar.sweep(151.0 + SILENCE)
    assert job.heard == [10, "gone"]
    late = afar.answer({"of": "1.a", "signals": []}, "3.c", counter, 220.0)
    assert "waits" not in late and "code" not in late and "heard nothing" in str(late["text"])
    afar._waiting["4.d"], afar._heard["4.d"] = job, 230.0
    job.heard.append("end")
    assert afar.answer({"of": "4.d", "signals": []}, "5.e", counter, 231.0)["code"] == 4
    assert not afar.busy(231.0)


def test_a_command_on_the_cores_of_a_job(outside: Outside) -> None:
    done = outside.run("salloc", "-n", "2", "--", "sh", "-c",
                       'srun -n1 echo a & srun -n1 echo b & wait; echo "$SLURM_NTASKS"; exit 3')
    assert (sorted(done.stdout.split()), done.returncode) == (["2", "a", "b"], 3), done.stderr
    assert "which command?" in outside.run("salloc", "-n1").stderr


@pytest.mark.mpi
def test_mpirun_is_the_real_one_on_the_cores_of_a_job(outside: Outside) -> None:
    done = outside.run("mpirun", "-n", "2", "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK $VRM_NTASKS")
    assert sorted(done.stdout.splitlines()) == ["rank 0 2", "rank 1 2"], done.stderr
    assert outside.run("mpirun", "-n", "1", "sh", "-c", "exit 5").returncode == 5
    wait_until(lambda: len(outside.site.rows()) == 2, "both are recorded")
    wrong: List[Tuple[str, ...]] = [("mpirun", "true"), ("mpirun", "-n", "0", "true"), ("mpirun", "-n", "1"),
                                    ("mpirun", "-n", "1", "-H", "n1", "true"), ("mpirun", "-n", "9", "true")]
    for words in wrong:
        done = outside.run(*words)
        assert done.returncode and "mpirun: error: " in done.stderr, words


def test_what_cannot_be_is_said(outside: Outside) -> None:
    for words, said in {("srun",): "No command given", ("srun", "-n", "x", "true"): "Invalid value `x`",
                        ("srun", "--pty", "sh"): "cannot be followed",
                        ("srun", "-n", "64", "true"): "srun: error: Unable to allocate resources: 64 ranks"}.items():
        done = outside.run(*words)
        assert done.returncode == 1 and said in done.stderr, (words, done.stderr)


def test_how_many_ranks_an_mpirun_starts() -> None:
    for words, found in {"-np 4 --map-by slot:PE=2 -x A prog -n 3": (4, 2, 0, "prog"),
                         "-n 2 a : -n 3 b -n 7": (5, 1, 0, "a"),
                         "--mca btl self -n 4 -npernode 2 --bind-to core prog": (4, 1, 2, "prog")}.items():
        assert _ranks("mpirun", words.split()) == found
    for words in ("prog", "-n", "-n x prog", "--hostfile f -n 2 prog", "-n 2 a : b"):
        with pytest.raises(Refused):
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
