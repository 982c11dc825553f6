"""Commands whose manager is stopped: those that only read give up, the others say that they wait."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from collections.abc import Iterator

import pytest

from vrm.ext.slurm.calls import build, wire
from vrm.ext.slurm.calls.names import everything, reads
from vrm.ext.slurm.calls.wire import Call
from vrm.ext.building import compiling

CLIENT = """
import sys
from vrm.ext.slurm.calls import client, wire
wire.PATIENCE, wire.SAYS_AFTER = 0.3, 0.2
sys.exit(client.main(sys.argv[1:]))
"""


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A manager that says nothing by itself; the limits are short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VRM_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(build.ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(wire, "PATIENCE", 0.3)
    monkeypatch.setattr(wire, "SAYS_AFTER", 0.2)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        listening.listen()
        listening.settimeout(30)
        yield listening


@pytest.mark.parametrize("compiled", [True, False])
def test_a_manager_that_says_nothing(manager: socket.socket, compiled: bool) -> None:
    if compiled and not any(map(shutil.which, compiling.COMPILERS)):
        pytest.skip("needs a C compiler")
    if compiled:
        assert build.link(Path("bin"), ["squeue", "scontrol", "sbatch"])

    def start(*words: str) -> subprocess.Popen[str]:
        command: list[str] = ([os.path.abspath(f"bin/{words[0]}"), *words[1:]] if compiled else
                              [sys.executable, "-c", CLIENT, *words])
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    for words in (["squeue", "-h"], ["scontrol", "show", "job"]):
        with start(*words) as client:
            assert client.communicate(timeout=30) == ("", f"{words[0]}: error: {wire.timeout_message()}\n")
        assert client.returncode == 1
        manager.accept()[0].close()
    for words in (["sbatch", "job.sh"], ["scontrol", "hold", "1"]):
        with start(*words) as client:
            assert client.stderr is not None
            assert client.stderr.readline() == f"{words[0]}: {wire.waits()}\n"
            connection, _ = manager.accept()
            with connection:
                connection.sendall(wire.frame(b"O", b"done\n") + wire.frame(b"X", b"0"))
                assert client.communicate(timeout=30) == ("done\n", "")
        assert client.returncode == 0
    with start("sbatch", "--wait", "job.sh") as client:  # it was taken: what it waits for is its job
        connection, _ = manager.accept()
        with connection:
            connection.sendall(wire.frame(b"O", b""))
            with pytest.raises(subprocess.TimeoutExpired):
                client.wait(2 * wire.SAYS_AFTER)
            connection.sendall(wire.frame(b"X", b"3"))
            assert client.communicate(timeout=30) == ("", "")
    assert client.returncode == 3


def test_what_only_reads() -> None:
    assert {name.partition(":")[0] for name in everything().reading} <= set(everything().answers)
    assert reads(Call("squeue", ["--me"], "/", {})) and reads(Call("scontrol", ["show", "job"], "/", {}))
    assert not any(reads(Call(name, words, "/", {})) for name, words in (
        ("sbatch", ["show"]), ("scontrol", ["hold", "1"]), ("scontrol", [])))
