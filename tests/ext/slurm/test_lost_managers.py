"""A manager that is killed before it has answered a command: its client gets the same id in the end, or is correctly
told that nothing was submitted. The manager kills itself, at the moment that a file names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Site, wait_until
from vrm.ext.slurm.calls import build, client
from vrm.run import command_files
from vrm.run.journal import files as journals
from vrm.run.journal.history import replay

pytestmark = pytest.mark.slow

MORTAL = """
import os, signal, sys
from pathlib import Path
from vrm import cli
from vrm.ext.slurm.calls.answers import FileNeeded
from vrm.ext.slurm.calls import server as server_module
from vrm.ext.slurm.calls.server import SocketServer
from vrm.run import command_files
look, act, to_file = SocketServer.look, SocketServer.act, command_files.answer

def dies(moment):
    there = Path("dies-" + moment)
    if there.exists():
        there.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

def served(server, now, files):
    if server.calls:
        dies("unread")
    look(server, now, files)
    if any(not isinstance(reply, FileNeeded) for reply in server.replies.values()):
        dies("unwritten")

def answered(server, now):
    if any(not isinstance(reply, FileNeeded) for reply in server.replies.values()):
        server.live.synced()
        dies("unanswered")
    act(server, now)

def answered_by_file(*words):
    dies("unanswered")
    to_file(*words)

server_module.MOST = int(os.environ.get("MOST", server_module.MOST))
SocketServer.look, SocketServer.act, command_files.answer = served, answered, answered_by_file
sys.exit(cli.main())
"""


class Mortal:
    """Managers that die, and a client's command in either form."""

    def __init__(self, site: Site, folder: Path, form: str) -> None:
        self.site = site
        site.config(Launcher={"Kind": "direct"}, Cores=2)
        site.lines(end=False)
        self.commands = folder
        folder.mkdir()
        if form == "python":
            for name, text in build.scripts().items():
                (folder / name).write_text(text)
                (folder / name).chmod(0o755)
        elif not build.link(folder):
            pytest.skip("no C compiler")
        self.env = {**site.env, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "VRM_DIRECTORY": str(site.log)}

    def start(self, dies: str = "", **env: str) -> None:
        """A manager, which takes commands; later it dies at a moment."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", MORTAL, "-c", str(self.site.config_file), "run", "--wait"], cwd=self.site.root,
            env={**self.site.env, **env}, stdin=subprocess.DEVNULL, stdout=open(self.site.root / "out.mortal", "a"),
            stderr=subprocess.STDOUT)
        self.site.started.append(self.process)  # type: ignore[arg-type]
        wait_until(lambda: self.call("squeue", "-h")[0] == 0, "the manager answers")
        if dies:
            (self.site.root / f"dies-{dies}").touch()

    def dead(self) -> None:
        """It has been killed."""
        assert self.process.wait(20) == -signal.SIGKILL

    def popen(self, *words: str, data: bytes = b"") -> subprocess.Popen[bytes]:
        """A client, which has been given its standard input."""
        process = subprocess.Popen(
            [str(self.commands / words[0]), *words[1:]], cwd=self.site.root, env=self.env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(data)
        process.stdin.close()
        process.stdin = None
        return process

    def call(self, *words: str, data: bytes = b"") -> tuple[int, str, str]:
        """The exit status of a client, and what it has printed."""
        process = self.popen(*words, data=data)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.decode(), err.decode()

    def jobs(self) -> list[int]:
        """The jobs of the journal."""
        past = replay(journals.read(self.site.log / "journal"))
        return sorted(past.jobs)


@pytest.fixture(params=["c", "python"])
def mortal(request: pytest.FixtureRequest, site: Site, tmp_path: Path) -> Mortal:
    return Mortal(site, tmp_path / "commands", request.param)


SCRIPT = b"#!/bin/sh\n#SBATCH -J given -H\ntrue\n"


def test_a_client_whose_manager_is_killed_has_its_id(mortal: Mortal) -> None:
    """Not on disk: the next manager takes it. On disk, but not answered: the journal has the id."""
    mortal.start("unwritten")
    waits = mortal.popen("sbatch", "--parsable", data=SCRIPT)
    mortal.dead()
    mortal.start()
    out, err = waits.communicate(timeout=60)
    assert (waits.returncode, out, err) == (0, b"1001\n", b"")  # ids of the killed one are not given again
    (mortal.site.root / "dies-unanswered").touch()
    assert mortal.call("qsub", "-", data=SCRIPT) == (0, "1002.vrm\n", "")  # and no other manager was started
    mortal.dead()
    assert mortal.jobs() == [1001, 1002]


def test_one_that_waits_for_its_job_is_told_what_goes_on(mortal: Mortal) -> None:
    mortal.start()
    one = mortal.popen("sbatch", "--wait", "-H", "--wrap", "true")
    wait_until(lambda: mortal.jobs() == [1], "it is submitted")
    two = mortal.popen("srun", "-n1", "sh", "-c", "echo begun; until [ -e go ]; do sleep 0.05; done")
    assert two.stdout is not None and two.stdout.readline() == b"begun\n"
    mortal.process.kill()
    out, err = one.communicate(timeout=60)
    assert (one.returncode, out) == (1, b"Submitted batch job 1\n")
    assert b"sbatch: error: the manager of vrm has ended; job 1 was submitted" in err
    out, err = two.communicate(timeout=60)
    assert two.returncode == 1 and out == b"" and b"srun: error: the manager of vrm has ended; its job continues" in err
    (mortal.site.root / "go").touch()
    wait_until(lambda: not mortal.site.running(), "it has ended")


def test_a_client_too_many_asks_by_a_file_and_no_other_is_left(site: Site, tmp_path: Path) -> None:
    mortal = Mortal(site, tmp_path / "commands", "c")
    mortal.start(MOST="1")
    waits = mortal.popen("sbatch", "--wait", "-H", "--wrap", "true")
    wait_until(lambda: mortal.jobs() == [1], "it is submitted")
    assert mortal.call("squeue", "-h", "-o", "%i") == (0, "1\n", "")
    assert mortal.call("sbatch", "--parsable", data=SCRIPT) == (0, "2\n", "") and waits.poll() is None
    assert mortal.call("scancel", "1", "2")[0] == 0
    assert waits.communicate(timeout=60)[0] == b"Submitted batch job 1\n" and waits.returncode == 1


def test_vrm_submit_is_answered_by_the_journal(site: Site, tmp_path: Path) -> None:
    mortal = Mortal(site, tmp_path / "commands", "python")
    site.program("a", "true")
    mortal.start("unanswered")
    done = site.run("submit", "a", "1", "--hold")
    assert (done.returncode, done.stdout) == (0, "job 0: accepted; then the manager ended\n"), done
    mortal.dead()
    assert mortal.jobs() == [0]


def test_without_another_manager_nothing_was_submitted(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    mortal = Mortal(site, tmp_path / "commands", "python")
    monkeypatch.setattr(command_files, "NEXT", 0.1)
    monkeypatch.setenv("VRM_DIRECTORY", str(site.log))
    mortal.start("unread")
    assert client.main(["sbatch", "--wrap", "true"]) == 1
    mortal.dead()
    assert capfd.readouterr() == (
        "", "sbatch: error: the manager of vrm has ended before it took this; nothing was submitted\n")
    assert mortal.jobs() == [] and not list((site.log / "commands").iterdir())


def test_nothing_is_printed_twice(capfd: pytest.CaptureFixture[str]) -> None:
    screen = client.Printer((4, 0))
    screen.print(0, b"ab")
    screen.print(0, b"cdef")
    screen.print(1, b"x")
    assert screen.given == (6, 1)
    screen.again()
    screen.print(0, b"abcdefg")
    assert capfd.readouterr() == ("efg", "x")
