"""On a login node: what `vrm init` writes, what `vrm check` says next, and that `vrm run` does not run there by
accident."""

from __future__ import annotations

from pathlib import Path
from collections.abc import Callable

import pytest

from conftest import mpirun_environment
from vrm.cli import main
from vrm.live.batch.login import login_node

Vrm = Callable[..., tuple[int, str]]


def submits(folder: Path, name: str) -> Path:
    """A program that submits scripts, in `folder`/bin."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    program = folder / "bin" / name
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("program, files, env, name", [
    ("sbatch", [], {}, ""),  # installed, but nobody has configured it
    ("sbatch", ["etc/slurm.conf"], {}, "slurm"),
    ("sbatch", ["etc/slurm/slurm.conf"], {}, "slurm"),
    ("sbatch", ["conf"], {"SLURM_CONF": "{}/conf"}, "slurm"),
    ("sbatch", ["etc/slurm.conf"], {"SLURM_CONF": "{}/gone"}, ""),
    ("sbatch", ["etc/slurm.conf"], {"SLURM_JOB_ID": "3"}, ""),
    ("sbatch", ["etc/slurm.conf"], {"VRM_RUN": "x"}, ""),
    ("sbatch", ["etc/slurm.conf"], {"VRM_DIRECTORY": "x"}, ""),
    ("qsub", ["conf"], {"PBS_CONF_FILE": "{}/conf"}, "pbs"),
    ("qsub", ["etc/slurm.conf"], {"PBS_CONF_FILE": "{}/gone"}, ""),
    ("none", ["etc/slurm.conf"], {}, ""),
])
def test_a_login_node_has_a_submit_command_and_its_configuration(
        tmp_path: Path, program: str, files: list, env: dict[str, str], name: str) -> None:
    submits(tmp_path, program)
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    env = {"SLURM_CONF": "", "PATH": str(tmp_path / "bin"),
           **{key: value.format(tmp_path) for key, value in env.items()}}
    if Path("/etc/slurm/slurm.conf").exists() and not env["SLURM_CONF"] and not files:
        pytest.skip("Slurm is configured on this machine")
    found = login_node(env)
    assert (found.system.name if found else "") == name


@pytest.fixture
def vrm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Vrm:
    """`vrm` on a login node of Slurm, in a directory with a program; its exit status and what it prints."""
    submits(tmp_path / "slurm", "sbatch")
    (tmp_path / "slurm/etc").mkdir()
    (tmp_path / "slurm/etc/slurm.conf").touch()
    work = tmp_path / "work"
    program = submits(work, "solver")
    program.write_text("#!/bin/sh\nexit 0\n")
    for key in ("SLURM_CONF", "SLURM_JOB_ID", "PBS_NODEFILE", "VRM_CONFIG", "VRM_DIRECTORY", "VRM_RUN"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/slurm/bin:{mpirun_environment()['PATH']}")
    monkeypatch.chdir(work)

    def typed(*words: str) -> tuple[int, str]:
        status = main(words)
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    return typed


def test_init_writes_the_batch_script_and_says_how_to_submit_it(vrm: Vrm) -> None:
    status, said = vrm("init", "-N", "4")
    assert status == 0 and "this is a login node" in said
    assert Path("vrm.slurm").read_text().count("--nodes=4") == 1
    following = said.partition("next:")[2]
    assert "vrm check --nodes 4" in following and "sbatch vrm.slurm" in following and "vrm run" not in following
    status, said = vrm("check", "--nodes", "4", "--sockets", "2", "--cores", "4")
    assert status == 0 and said.endswith("next: sbatch vrm.slurm\n")
    assert vrm("check")[1].endswith("next: sbatch vrm.slurm\n")


def test_without_a_script_check_says_how_to_write_one_and_that_works(vrm: Vrm) -> None:
    Path("queue").write_text("solver 1 60\n")
    Path("vrm.yaml").write_text("Applications: {Path: bin}\nLauncher: {Kind: direct}\n")
    status, said = vrm("check", "--nodes", "4")
    typed, _, then = said.splitlines()[-1].removeprefix("next: ").partition(", then ")
    assert status == 0 and then == "sbatch vrm.slurm"
    assert vrm(*typed.split()[1:])[0] == 0
    assert "--nodes=4" in Path("vrm.slurm").read_text()


def test_run_asks_for_here(vrm: Vrm) -> None:
    Path("vrm.yaml").write_text("Applications: {Path: bin, Any: true}\nLauncher: {Kind: direct}\nLog: logs\n")
    Path("queue").write_text("solver 1 60\n")
    for words in (["run", "--once"], ["-c", "vrm.yaml", "--once"], ["run", "--", "true"]):
        status, said = vrm(*words)
        assert status == 2 and "login node of Slurm" in said and "`sbatch vrm.slurm`" in said and "--here" in said
        assert not Path("logs").exists()
    status, said = vrm("run", "--once", "--here")
    assert status == 0, said
    assert "1 completed" in said


def test_a_file_of_hosts_says_where_jobs_run(vrm: Vrm) -> None:
    Path("hosts").write_text("localhost\n")
    Path("vrm.yaml").write_text("Applications: {Path: bin}\nLauncher: {Kind: direct}\nHosts: {File: hosts}\nLog: logs\n")
    Path("queue").write_text("solver 1 60\n")
    assert "login node" not in vrm("run", "--once")[1]
