"""`vrm run -- PROGRAM`: a program gives the jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
from functools import partial
from pathlib import Path

import pytest
from conftest import Site, wait_until


def given(site: Site, text: str) -> str:
    """A program that calls vrm as a user would."""
    path = site.root / "give.sh"
    path.write_text(f"#!/bin/sh\nvrm() {{ {sys.executable} -m vrm.cli \"$@\"; }}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_run_ends_with_the_program_and_its_jobs(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    site.program("one", "echo one $*\n")
    client = given(site, "vrm submit one 1 60 --name first -- \"$@\"\nvrm submit one 1 60 --after first\n"
                         "echo $VRM_CONFIG; exit 5")
    done = site.run("run", "--", client, "a b")
    assert done.returncode == 5, done.stdout + done.stderr
    assert str(site.config_file) in done.stdout and "give.sh has ended with status 5" in done.stdout
    assert not site.queue.exists() and "queue file" not in done.stdout and "waiting for" not in done.stdout
    assert site.statuses() == {0: "completed", 1: "completed"}
    assert next(site.log.glob("one.0.o")).read_text() == "one a b\n"
    assert not list(site.root.glob("*.writer"))  # the next run may wait for lines again
    again = site.run("run", "--fresh", "--", given(site, "vrm submit one 1 60"))
    assert again.returncode == 0 and site.statuses() == {0: "completed"}


def test_the_status_is_the_programs_and_its_directory_is_no_workflows(site: Site) -> None:
    """A job that fails is the program's to judge. Without a configuration, or one that does not name `Log`."""
    keys = [line for line in site.config_file.read_text().splitlines() if not line.startswith("Log:")]
    site.config_file.write_text("\n".join(keys) + "\n")
    client = given(site, "mkdir logs; rm -r logs\nsbatch --wait --wrap 'exit 3' || sbatch --wait --wrap true\n"
                         "vrm queue --all\n[ $? = 0 ] && [ ! -e logs ]")
    done = site.run("run", "--", client)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 failed" in done.stdout and "everything is in vrm-logs" in done.stdout
    assert "wrap" in site.run("queue", "--all").stdout  # found without saying where
    assert site.run("run", "--fresh", "--strict", "--", client).returncode == 1
    assert site.run("run", "--strict").returncode == 2
    (site.root / "logs").mkdir()
    (site.root / "logs" / "journal").touch()  # a later run of a queue
    assert "their output goes to logs\n" in site.run("run", "--fresh", "--once").stdout


def test_an_end_line_of_the_queue_does_not_end_the_program(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    site.program("one", "echo one\n")
    site.lines("one 1 60")
    client = given(site, f"until grep -q completed {site.log}/jobs.csv; do sleep 0.02; done\n"
                         "vrm submit one 1 60 && exit 6")
    done = site.run("run", "--", client)
    assert done.returncode == 6, done.stdout + done.stderr
    assert site.statuses() == {0: "completed", 1: "completed"}


def test_a_program_that_is_none(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    done = site.run("run", "--", "/nowhere/x")
    assert done.returncode == 127 and "/nowhere/x: No such file" in done.stdout
    assert site.run("run", "--once", "--", "true").returncode == 0  # an option of before, which changes nothing


def test_the_program_ends_with_the_manager(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    manager = site.start("run", "--", given(site, "echo began; exec sleep 600"))
    wait_until(lambda: "began" in site.said(manager), "the program runs")
    manager.send_signal(signal.SIGTERM)
    said = site.finish(manager)
    assert manager.returncode == 1 and "give.sh was ended with the run" in said
    site.nothing_left()


def test_slurms_commands_are_first_on_the_path_of_the_program_alone(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    show = given(site, "for each in srun squeue mpirun; do command -v $each; done; echo \"$VRM_DIRECTORY ${SLURM_NTASKS:-none}\"")
    done = site.run("run", "--", show, SLURM_NTASKS="77")
    folder = site.log
    lines = done.stdout.splitlines()
    for said in (f"{folder}/bin/srun", f"{folder}/bin/squeue", f"{folder}/launchers/mpirun", f"{folder} none"):
        assert said in lines, done.stdout + done.stderr
    site.lines("where.sh 1 60 script=1")
    (site.bin / "where.sh").write_text("#!/bin/sh\ncommand -v srun\necho \"$PATH\"\nsrun -n 1 echo step\n")
    done = site.run("run", "--fresh", "--", "true")
    assert done.returncode == 0, done.stdout + done.stderr
    words = next(site.log.glob("where.sh.0.o")).read_text().split()
    assert words[0] == f"{folder}/bin/srun" and words[2] == "step"
    assert words[1].startswith(f"{folder}/bin:") and f"{folder}/launchers" not in words[1]


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_profiles_and_modules_do_not_hide_the_commands(site: Site) -> None:
    """In a client and in a job: a login shell whose profile sets PATH, and a module that does."""
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    home = site.root / "home"
    home.mkdir()
    (home / ".bash_profile").write_text("PATH=/usr/bin:/bin\n")
    (home / "own_env").write_text("module() { PATH=/usr/sbin:$PATH; return $1; }; export -f module; export FOUND=mine\n")
    shows = "#!/bin/bash -l\ncommand -v srun\nmodule 3\necho $? $FOUND $(command -v srun)\nmodule 0\n" \
            "bash -c 'module 4; echo $? $(command -v srun)'\nbash --login -c 'command -v squeue'\n"
    (site.root / "job.sh").write_text(shows)
    (site.root / "job.sh").chmod(0o755)
    done = site.run("run", "--", "bash", "-c", "./job.sh; sbatch -W -n1 -o out job.sh", BASH_ENV=str(home / "own_env"),
                    HOME=str(home))
    assert done.returncode == 0, done.stdout + done.stderr
    found = [f"{site.log}/bin/srun", f"3 mine {site.log}/bin/srun", f"4 {site.log}/bin/srun", f"{site.log}/bin/squeue"]
    assert (site.root / "out").read_text().splitlines() == found
    at = done.stdout.splitlines().index(found[0])
    assert done.stdout.splitlines()[at:at + 4] == found


def test_the_program_begins_when_the_manager_has_made_its_commands(site: Site) -> None:
    """A second run in the directory has the compiled commands at once: Python's scripts did not replace them later."""
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    made = []
    for _ in range(2):
        done = site.run("run", "--", "true")
        assert done.returncode == 0, done.stdout + done.stderr
        made.append((site.log / "bin" / "squeue").read_bytes())
    assert made[0] == made[1]


def test_the_status_of_a_program_that_a_signal_ends(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    assert site.run("run", "--", given(site, "kill -9 $$")).returncode == 137


def test_the_program_ends_with_a_manager_that_is_killed(site: Site) -> None:
    """Its successor starts it again: two would give their jobs twice."""
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    client = given(site, f"echo $$ >{site.root}/pid; exec sleep 600")
    manager = site.start("run", "--", client)
    wait_until(lambda: (site.root / "pid").exists() and (site.root / "pid").read_text().endswith("\n"), "it runs")
    pid = int((site.root / "pid").read_text())
    manager.kill()
    manager.wait()
    wait_until(lambda: not alive(pid), "the program has ended, too")
    done = site.run("run", "--", given(site, "exit 4"))
    assert done.returncode == 4, done.stdout + done.stderr


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_shell_and_its_jobs(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"})
    site.program("one", "echo one\n")
    there = Path(given(site, "vrm submit one 1 60; command -v srun; exit 3"))
    done = site.run("shell", SHELL=str(there))
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"{site.log}/bin/srun" in done.stdout.splitlines() and "are now vrm's" in done.stdout
    assert "completed" not in done.stdout and "1 completed" in (site.log / "vrm.out").read_text()
    assert site.statuses() == {0: "completed"}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_a_shell_on_a_terminal(site: Site) -> None:
    """Ctrl-C goes to what runs in the shell, not to the run."""
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"}, Applications={
        "Path": str(site.bin), "Queue": str(site.queue), "Any": True})
    site.lines()
    ours, theirs = pty.openpty()
    run = subprocess.Popen([sys.executable, "-m", "vrm.cli", "-c", str(site.config_file), "shell"], cwd=site.root,
                           env={**site.env, "SHELL": shutil.which("bash") or "", "PS1": "> "}, stdin=theirs,
                           stdout=theirs, stderr=theirs, preexec_fn=partial(_own_terminal, theirs))
    os.close(theirs)
    shown = b""

    def appears(text: bytes) -> bool:
        nonlocal shown
        with contextlib.suppress(OSError):  # nobody has the terminal any more
            while select.select([ours], [], [], 0)[0]:
                shown += os.read(ours, 4096)
        return text in shown

    # Ctrl-C comes when the program runs: before, it may be the shell that has it.
    for typed, answer in ((b"srun -n 2 echo he''llo\n", b"hello\r\nhello"),
                          (b"""sh -c "echo sle''eps; exec sleep 600"\n""", b"sleeps"),
                          (b"\x03", b"^C"), (b"sbatch --wrap='echo on' && echo do''ne\n", b"done")):
        shown = b""
        os.write(ours, typed)
        wait_until(lambda answer=answer: appears(answer), f"{answer!r} is shown")  # type: ignore[misc]
    os.write(ours, b"exit 4\n")
    wait_until(lambda: appears(b"exit") and run.poll() is not None, "the run has ended")
    assert run.returncode == 4, shown
    assert set(site.statuses().values()) == {"completed"} and len(site.statuses()) == 2
    os.close(ours)


def _own_terminal(terminal: int) -> None:
    """The terminal of this process and its children, as after a login."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
