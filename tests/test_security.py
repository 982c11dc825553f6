"""The promises of docs/reference/security.md, each tried by a second account: as root these tests run vrm as one
account and do as another what it must not be able to do.

Whether the kernel itself forbids some of it (`fs.protected_symlinks`, `fs.protected_regular`) differs
between machines; the promises hold either way.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Sequence

import pytest
import yaml

from conftest import mpirun_environment, wait_until
from vrm.system.trust import distrust

ALICE, EVE, TEAM = 64001, 64002, 64003
"""Numbers of accounts that nobody has: whose runs these are, who tries to get in, a group of both."""


class Place:
    """A directory that all accounts can reach, with one of Alice's in it, and vrm as either."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = self.folder("alice", ALICE)
        self.eve = self.folder("eve", EVE)
        self.shared = self.folder("shared", 0, 0o1777)
        self.proof = self.shared / "proof"
        self.bin = self.folder("alice/bin", ALICE)
        self.queue = self.file("alice/queue", ALICE, "ok.x 1 9 0\nend\n")
        self.program("alice/bin/ok.x", ALICE, 'echo ran >> "$0.log"\n')
        self.evil = self.program("eve/evil", EVE, f"id -u >> {self.proof}\n")
        self.precious = self.file("alice/precious", ALICE, "precious", 0o600)
        self.running: list[subprocess.Popen[str]] = []
        self.command: list[str] = []

    def folder(self, name: str, uid: int, mode: int = 0o755) -> Path:
        path = self.root / name
        path.mkdir()
        os.chown(path, uid, uid)
        path.chmod(mode)
        return path

    def file(self, name: str, uid: int, text: str, mode: int = 0o644) -> Path:
        path = self.root / name
        path.write_text(text)
        os.chown(path, uid, uid)
        path.chmod(mode)
        return path

    def program(self, name: str, uid: int, script: str) -> Path:
        return self.file(name, uid, "#!/bin/sh\n" + script, 0o755)

    def config(self, **keys: Any) -> Path:
        """Alice's configuration."""
        settings = {"Applications": {"Path": str(self.bin), "Queue": str(self.queue)}, "Nodes": 1,
                    "Sockets": 1, "Cores": 1, "Log": str(self.home / "run"), "Grace": 1,
                    "Launcher": {"Kind": "direct"}, **keys}
        return self.file("alice/vrm.yaml", ALICE, yaml.safe_dump(settings))

    def start(self, uid: int, *command: str, cwd: str = "", groups: Sequence[int] = ()
              ) -> subprocess.Popen[str]:
        """Run a command as an account."""
        process = subprocess.Popen(
            command, user=uid, group=uid, extra_groups=groups, text=True,
            cwd=cwd or self.root, env={**mpirun_environment(), "HOME": str(self.home),
                                         "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.running.append(process)
        return process

    def run(self, uid: int, *command: str, **how: Any) -> tuple[int, str]:
        process = self.start(uid, *command, **how)
        said = process.communicate(timeout=60)[0]
        return process.returncode, said

    def vrm(self, *arguments: str, uid: int = ALICE, **how: Any) -> tuple[int, str]:
        """Alice's (or `uid`'s) vrm with Alice's configuration."""
        return self.run(uid, *self.command, "-c", str(self.home / "vrm.yaml"), *arguments, **how)

    def do(self, uid: int, script: str, **how: Any) -> int:
        """The exit status of a shell of that account."""
        return self.run(uid, "/bin/sh", "-c", script, **how)[0]

    def ran(self) -> bool:
        return (self.bin / "ok.x.log").exists()

    def unharmed(self) -> None:
        """Nothing of Eve's ran, and nothing of Alice's was overwritten."""
        assert not self.proof.exists() and self.precious.read_text() == "precious"


def pythons() -> Iterator[str]:
    """This Python, and the system's, which may be open to others where this one is not: it has the
    same libraries by PYTHONPATH."""
    yield sys.executable
    for path in Path("/usr/bin").glob(f"python{sys.version_info[0]}.{sys.version_info[1]}"):
        yield str(path)


@pytest.fixture
def place() -> Iterator[Place]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two other accounts")
    root = Path(tempfile.mkdtemp(prefix="vrm-accounts-"))
    root.chmod(0o755)
    place = Place(root)
    try:
        for python in pythons():
            place.command = [python, "-m", "vrm.cli"]
            try:
                if place.run(ALICE, *place.command, "--version")[0] == 0:
                    break
            except PermissionError:
                continue
        else:
            pytest.skip("this Python, or this vrm, is not open to other accounts")
        place.config()
        yield place
    finally:
        for process in place.running:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=30)
        shutil.rmtree(root)


def planted_journal(place: Place) -> str:
    """A journal that would run Eve's program."""
    records = [
        {"event": "run", "run": "abc", "time": 1.0, "pid": 1, "nodes": [["n0", [1]]], "host": "h",
         "boot": "b", "allocation": ""},
        {"event": "job", "id": 0, "app": os.path.relpath(place.evil, place.bin), "procs": 1,
         "estimate": 9.0, "submit": 1.0, "exclusive": False, "cores": 1},
        {"event": "input", "position": None, "ended": True}]
    return "".join(json.dumps(record) + "\n" for record in records)


# Other accounts on the node.


@pytest.mark.slow
def test_files_planted_where_a_run_is_to_be_are_not_obeyed(place: Place) -> None:
    """A sticky directory lets nobody replace a file of Alice's, but anybody add one under its name."""
    folder = place.shared
    planted = place.file("eve/journal", EVE, planted_journal(place), 0o666)
    assert place.do(EVE, f"cp {planted} {folder}/journal; chmod 666 {folder}/journal") == 0
    place.config(State=str(folder / "vrm.state"))
    status, said = place.vrm()
    assert status == 2 and "State: " in said and "name a directory of your own" in said
    place.config(Directory=str(folder))
    assert "Directory: " in place.vrm()[1]
    place.config(Log=str(folder))
    assert "Log: " in place.vrm()[1]
    place.unharmed()
    assert not place.ran()


@pytest.mark.slow
def test_files_planted_before_a_directory_was_closed_are_not_obeyed(place: Place) -> None:
    folder = place.folder("alice/run", ALICE, 0o1777)
    planted = place.file("eve/journal", EVE, planted_journal(place), 0o666)
    assert place.do(EVE, f"cp {planted} {folder}/journal && chmod 666 {folder}/journal") == 0
    folder.chmod(0o755)  # as the message says
    status, said = place.vrm()
    assert status == 2 and "journal belongs to" in said and not place.ran()
    (folder / "journal").unlink()
    assert place.vrm()[0] == 0 and place.ran()
    place.unharmed()


@pytest.mark.slow
def test_links_planted_before_a_directory_was_closed_are_not_followed(place: Place) -> None:
    folder = place.folder("alice/run", ALICE, 0o1777)
    links = " ".join(["ok.x.0.o", "ok.x.0.e", *(f".state.{pid}" for pid in range(2000))])
    assert place.do(EVE, f"cd {folder}; for each in {links}; do ln -s {place.precious} $each; done"
                    ) == 0
    folder.chmod(0o755)
    status, said = place.vrm()
    assert status == 1 and "symbolic link" in said + (folder / "jobs.csv").read_text()
    place.unharmed()
    for name in ("jobs.csv", "state", "lock", "journal"):
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        folder.chmod(0o1777)
        assert place.do(EVE, f"ln -s {place.precious} {folder}/{name}") == 0
        folder.chmod(0o755)
        status, said = place.vrm()
        assert status == 2 and f"{name} is a symbolic link" in said
    place.unharmed()


def test_directories_planted_in_a_run_are_not_used(place: Place) -> None:
    folder = place.folder("alice/run", ALICE, 0o1777)
    assert place.do(EVE, f"mkdir -m 777 {folder}/commands && "
                         f"echo '{{\"do\":\"stop\"}}' > {folder}/commands/1") == 0
    folder.chmod(0o755)
    status, said = place.vrm()
    assert status == 2 and "commands is not a directory of your own" in said


@pytest.mark.slow
def test_the_queue_of_another_account_is_not_obeyed(place: Place) -> None:
    """Nor is its word that the queue has ended."""
    queue = place.shared / "queue"
    place.config(Applications={"Path": str(place.bin), "Queue": str(queue)})
    assert place.do(EVE, f"echo 'ok.x 1 9 0' > {queue}; chmod 644 {queue}") == 0
    status, said = place.vrm()
    assert status == 2 and "belongs to" in said and not place.ran()
    queue.unlink()
    facts = {"host": os.uname().nodename, "pid": 1, "start": 0, "ended": True}
    marker = place.file("eve/marker", EVE, json.dumps(facts))
    assert place.do(EVE, f"cp {marker} {queue}.writer") == 0
    manager = place.start(ALICE, *place.command, "-c", str(place.home / "vrm.yaml"), "--wait")
    wait_until(lambda: (place.home / "run" / "state").exists(), "the manager runs")
    assert place.do(ALICE, f"echo 'ok.x 1 9 0' > {queue}") == 0
    wait_until(place.ran, "it reads on")
    assert place.vrm("stop")[0] == 0
    manager.communicate(timeout=60)
    place.unharmed()


def test_a_configuration_that_lies_about_is_not_used(place: Place) -> None:
    text = (place.home / "vrm.yaml").read_text().replace(str(place.bin), str(place.eve))
    planted = place.file("eve/planted", EVE, text)
    assert place.do(EVE, f"cp {planted} {place.shared}/vrm.yaml") == 0
    status, said = place.run(ALICE, *place.command, "--once", cwd=str(place.shared))
    assert status == 2 and "belongs to" in said
    place.unharmed()


@pytest.mark.slow
def test_nobody_else_rules_a_running_manager(place: Place) -> None:
    place.program("alice/bin/long.x", ALICE, 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n')
    place.file("alice/queue", ALICE, "long.x 1 60 0\n")
    manager = place.start(ALICE, *place.command, "-c", str(place.home / "vrm.yaml"), "--wait")
    run = place.home / "run"
    wait_until(lambda: (run / "pids" / "0").exists(), "the job runs")
    for command in (["cancel", "0"], ["submit", "ok.x", "1", "9"], ["stop", "--now"],
                    ["hold", "0"], ["slurm", "sbatch", "--wrap", "true"], ["slurm", "scancel", "0"]):
        status, said = place.vrm(*command, uid=EVE)
        assert status != 0 and "Traceback" not in said
    assert place.do(EVE, f"echo 'ok.x 1 9 0' >> {place.queue}") != 0
    for path in ("journal", "state", "jobs.csv", "long.x.0.o", "pids/0", "commands"):
        assert place.do(EVE, f"cat {run}/{path} || ls {run}/{path}") != 0
    assert place.do(EVE, f"echo x > {run}/commands/1") != 0
    knock = ("import socket, sys; it = socket.socket(socket.AF_UNIX); it.settimeout(20); it.connect(sys.argv[1]); "
             "it.send(b'nonsense'); sys.exit(not it.recv(1))")
    run.chmod(0o755)  # the socket keeps others out by itself, and if it did not, the kernel says who comes
    assert place.run(EVE, place.command[0], "-c", knock, f"{run}/socket")[0] != 0
    (run / "socket").chmod(0o777)
    assert place.run(EVE, place.command[0], "-c", knock, f"{run}/socket")[0] != 0
    run.chmod(0o700)
    assert place.vrm("slurm", "squeue", "-h", "-o", "%i %T") == (0, "0 RUNNING\n")
    assert manager.poll() is None and (run / "pids" / "0").exists() and not place.ran()
    place.file("alice/bin/long.x.go", ALICE, "")
    assert place.vrm("stop")[0] == 0
    assert "1 completed" in manager.communicate(timeout=60)[0]


def test_programs_that_others_may_change_are_not_run(place: Place) -> None:
    (place.bin / "ok.x").chmod(0o757)
    place.file("alice/queue", ALICE, "ok.x 1 9 0\nmine.x 1 9 0\nend\n")
    os.symlink(place.evil, place.bin / "mine.x")
    status, said = place.vrm()
    assert status == 1 and not place.ran() and said.count("refused") >= 2
    place.unharmed()


def test_a_directory_with_an_access_list_is_one_that_others_may_write(place: Place) -> None:
    """Its mode shows the list's mask where the group's rights were."""
    folder = place.folder("listed", 0, 0o770)
    entries = [(0x01, 7, 0xFFFFFFFF), (0x02, 7, EVE), (0x04, 0, 0xFFFFFFFF), (0x10, 7, 0xFFFFFFFF),
               (0x20, 0, 0xFFFFFFFF)]
    try:
        os.setxattr(folder, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(
            struct.pack("<HHI", *entry) for entry in entries))
    except OSError as error:
        pytest.skip(f"no access lists here: {error}")
    assert "access list" in distrust(folder, home=True)


# One's group.


@pytest.mark.slow
def test_a_group_is_obeyed_where_one_says_so(place: Place) -> None:
    os.chown(place.queue, ALICE, TEAM)
    place.queue.chmod(0o664)
    assert place.vrm(groups=[TEAM])[0] == 2 and not place.ran()
    place.config(Trust="group")
    line = f"ok.x 1 9 0 env=LD_PRELOAD={place.evil}\nend\n"
    assert place.do(EVE, f"printf '{line}' > {place.queue}; echo 'ok.x 1 9 0' >> {place.queue}",
                    groups=[TEAM]) == 0
    assert place.vrm(groups=[TEAM])[0] == 1
    assert "env=LD_PRELOAD" in (place.home / "run" / "jobs.csv").read_text()
    assert not place.ran()  # nothing follows `end`
    place.queue.write_text("ok.x 1 9 0\nend\n")
    assert place.vrm(groups=[TEAM])[0] == 0 and place.ran()
    place.unharmed()


@pytest.mark.slow
def test_a_group_s_word_is_not_everybody_s(place: Place) -> None:
    place.config(Trust="group")
    place.queue.chmod(0o666)
    assert place.vrm(groups=[TEAM])[0] == 2
    run = place.folder("alice/run", ALICE, 0o777)
    place.queue.chmod(0o644)
    assert place.vrm(groups=[TEAM])[0] == 2 and not place.ran()
    run.chmod(0o755)
    assert place.vrm(groups=[TEAM])[0] == 0


@pytest.mark.slow
def test_own_policies_are_loaded_from_nowhere_else(place: Place) -> None:
    """Nor is a compiled file, which Python would take instead of the source."""
    folder = place.folder("alice/policies", ALICE, 0o1777)
    place.file("alice/policies/mine.py", ALICE, "def first(job, *_):\n    return job.id\n")
    settings = yaml.safe_load((place.home / "vrm.yaml").read_text())
    config = place.file("alice/policies/vrm.yaml", ALICE, yaml.safe_dump(
        {**settings, "Scheduling": {"Algorithm": "mine:first"}}))
    command = [*place.command, "-c", str(config)]
    assert place.do(EVE, f"mkdir {folder}/__pycache__") == 0
    status, said = place.run(ALICE, *command)
    assert status == 2 and "everybody" in said and not place.ran()
    folder.chmod(0o755)
    status, said = place.run(ALICE, *command)
    assert status == 2 and "__pycache__ belongs to" in said and not place.ran()
    (folder / "__pycache__").rmdir()
    status, said = place.run(ALICE, *command)
    assert status == 0 and place.ran(), said


def test_each_promise_has_its_test() -> None:
    """The page names tests that there are, and each test here stands on it."""
    tests = Path(__file__).parent
    page = (tests.parent / "docs" / "reference" / "security.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    known = {name for path in tests.rglob("test_*.py")
             for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}
    assert named and named <= known
    here = set(re.findall(r"^def (test_\w+)\(place", Path(__file__).read_text(), re.MULTILINE))
    assert here <= named
    assert all((tests.parent / path).exists() for path in re.findall(r"`(tests/[\w/]+\.py)`", page))
