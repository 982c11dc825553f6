"""The test cluster itself: what it shows, what it does to nodes, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import vrm
from conftest import LIMIT, wait_until
from support.testbed import Testbed, missing


def test_nodes_see_each_other_and_their_own_machine(testbed: Testbed) -> None:
    for command in (["ssh", "n7"], ["srun", "-N1", "-w", "n7"]):
        said = testbed.exec("login", [*command, "sh", "-c", "'hostname; echo $HWLOC_SYNTHETIC'"]
                            if command[0] == "ssh" else
                            [*command, "sh", "-c", "hostname; echo $HWLOC_SYNTHETIC"])
        assert said.stdout.split("\n")[:2] == ["n7", "pack:2 core:4 pu:1"], said.stderr
    assert testbed.exec("n3", ["hostname"]).stdout == "n3\n"
    assert not set(testbed.pids("n3")) & {os.getpid()}
    with testbed.allocation(8, "--exclusive") as batch:
        assert batch.nodes == testbed.nodes
        done = testbed.exec(batch.host, ["srun", "--overlap", "hostname"], env=batch.env)
        assert sorted(done.stdout.split()) == list(testbed.nodes), done.stderr


def test_exit_status_and_signals_are_the_programs_own(testbed: Testbed) -> None:
    assert testbed.exec("n0", ["sh", "-c", "exit 7"]).returncode == 7
    process = testbed.popen("n0", ["sleep", "60"])
    assert "sleep 60" in testbed.pids("n0").values()
    process.terminate()
    assert process.wait(LIMIT) == -signal.SIGTERM
    with pytest.raises(subprocess.TimeoutExpired):
        testbed.exec("n0", ["sleep", "60"], timeout=0.1)
    assert "sleep 60" not in testbed.pids("n0").values()


def test_nodes_that_go_and_return(testbed: Testbed) -> None:
    def answers() -> bool:
        return testbed.exec("n0", ["ssh", "-o", "ConnectTimeout=1", "n7", "true"]).returncode == 0

    wait_until(answers, "n7 answers")
    testbed.cut("n7")
    assert not answers()
    testbed.join("n7")
    wait_until(answers, "n7 is on the network again")
    process = testbed.popen("n7", ["sleep", "60"])
    testbed.kill("n7")
    assert process.wait(LIMIT) == -signal.SIGKILL
    assert not testbed.alive("n7") and not answers()
    testbed.restart("n7")
    wait_until(answers, "n7 answers anew")
    assert testbed.exec("login", ["srun", "-N8", "hostname"]).stdout.split().count("n7") == 1


def traces(directory: Path) -> set[str]:
    """What a cluster with this directory has on this machine."""
    found = {line for line in Path("/proc/self/mountinfo").read_text().splitlines()
             if str(directory) in line}
    found |= {f"interface {name}" for name in os.listdir("/sys/class/net")}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(str(directory)) in ((entry / "cmdline").read_bytes()
                                               + (entry / "environ").read_bytes()):
                found.add(f"process {entry.name}")
        except OSError:  # it has ended, or is ending
            continue
    return found


def skip_unless_possible() -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)


@pytest.mark.testbed
def test_nothing_is_left_at_the_end_nor_after_a_failure(tmp_path: Path) -> None:
    skip_unless_possible()
    before = traces(tmp_path)
    with Testbed(2, slurm=False, directory=tmp_path / "a") as own:
        own.popen("n0", ["setsid", "sleep", "60"])
        assert traces(tmp_path) > before
        assert own.exec("n1", ["ssh", "n0", "hostname"]).stdout == "n0\n"
    assert traces(tmp_path) == before and not (tmp_path / "a").exists()
    with pytest.raises(RuntimeError), Testbed(2, directory=tmp_path / "a"):
        raise RuntimeError
    assert traces(tmp_path) == before and not (tmp_path / "a").exists()


@pytest.mark.testbed
def test_no_process_outlives_a_killed_test_run(tmp_path: Path) -> None:
    skip_unless_possible()
    before = traces(tmp_path)
    code = ("from pathlib import Path; from support.testbed import Testbed; import signal\n"
            f"with Testbed(2, directory=Path({str(tmp_path / 'a')!r})):\n"
            "    print('up', flush=True)\n    signal.pause()\n")
    run = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent, text=True,
                           stdout=subprocess.PIPE)
    assert run.stdout is not None and run.stdout.readline() == "up\n"
    assert len(traces(tmp_path)) > len(before)
    run.kill()
    run.wait()
    run.stdout.close()
    wait_until(lambda: traces(tmp_path) == before, "all of the killed cluster is gone")


@pytest.mark.testbed
def test_by_hand(tmp_path: Path) -> None:
    skip_unless_possible()
    program = [sys.executable, str(Path(__file__).parent / "support" / "testbed.py")]
    env = {**os.environ, "TMPDIR": str(tmp_path), "VRM_TESTBED": "t"}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*program, *words], env=env, text=True, capture_output=True,
                              timeout=60, check=False, cwd=tmp_path)

    assert call("exec", "n0", "true").returncode == 1
    assert call("up", "2", "--cores", "1", "--no-slurm").stderr == ""
    try:
        assert "`down` first" in call("up", "2").stderr
        assert call("exec", "n1", "sh", "-c", "pwd; exit 3").stdout == f"{tmp_path}\n"
        assert call("exec", "n1", "sh", "-c", "exit 3").returncode == 3
        assert call("kill", "n1").returncode == 0
        assert call("exec", "n1", "true").returncode == 1
        assert call("restart", "n1").returncode == 0
        assert call("exec", "n0", "ssh", "n1", "hostname").stdout == "n1\n"
    finally:
        assert call("down").returncode == 0
    assert not traces(tmp_path) - {f"interface {n}" for n in os.listdir("/sys/class/net")}
    assert not any(tmp_path.iterdir())


@pytest.mark.testbed
@pytest.mark.slow
@pytest.mark.skipif(missing() != "", reason=missing())
def test_tasks_opens_a_cluster_of_two_nodes(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The environment is this one: nothing is installed."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    import tasks

    place = Path(tempfile.gettempdir(), f"vrm-testbed.tasks-{os.getpid()}")
    before = traces(place)
    monkeypatch.setattr(tasks, "install", lambda: "")
    monkeypatch.setattr(tasks, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(tasks, "VENV", Path(sys.prefix))
    monkeypatch.setenv("VRM_TESTBED", place.name.partition(".")[2])
    assert tasks.cluster(["sh", "-c", "sinfo --noheader --Node --format %N; srun --nodes 2 vrm --version; exit 3"]) == 3
    shown = capfd.readouterr().out.split("\n")
    assert {"n0", "n1"} <= set(shown) and shown.count(f"vrm {vrm.__version__}") == 2
    wait_until(lambda: traces(place) <= before and not place.exists(), "nothing of the cluster is left")
