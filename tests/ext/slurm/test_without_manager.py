"""What the commands of Slurm and PBS answer where no manager runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vrm.ext.slurm.calls.client import main
from vrm.ext.slurm.calls.names import LAUNCHERS, everything


@pytest.mark.parametrize("directory", [".", "not made yet", ""])
@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_every_command_says_what_it_is(directory: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VRM_DIRECTORY", directory and str(tmp_path / directory))
    for name in sorted(set(everything().answers) - LAUNCHERS):
        assert main([name, asked]) == 0, name
        said = capfd.readouterr()
        assert not said.err
        assert f"sage: {name} " in said.out if asked == "--help" else said.out in ("slurm 22.05.8\n", "pbs_version = vrm\n")


@pytest.mark.parametrize("words, said", [
    ("sbatch --no-such", "sbatch: error: unrecognized option --no-such"),
    ("strigger --get", "strigger: error: vrm does not have this command"),
    ("qstat -Q", "Unable to contact slurm controller"),
    ("squeue", "Unable to contact slurm controller"),
    ("scancel 1", "Unable to contact slurm controller"),
    ("sbatch --wrap true", "Unable to contact slurm controller"),
    ("qstat 1", "Unable to contact slurm controller"),
    ("sinfo -N", "Unable to contact slurm controller"),
    ("sacctmgr show user", "Unable to contact slurm controller")])
def test_a_refusal_needs_no_manager_either_and_the_rest_does(words: str, said: str, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch,
                                                             capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VRM_DIRECTORY", str(tmp_path))
    assert main(words.split()) != 0
    out, err = capfd.readouterr()
    assert not out and said in err
