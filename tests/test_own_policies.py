"""Policies of the user's own: found with the configuration, and only where nobody else may write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

from conftest import Site
from vrm.cli import main
from vrm.config import own
from vrm.config.own import load_own
from vrm.scheduling import PolicyError, make_ordering

WIDEST = "def widest_first(job, now, nodes):\n    return job.procs\n"
NARROWEST = "def widest_first(job, now, nodes):\n    return -job.procs\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a policy in it; no module of an earlier test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VRM_CONFIG", raising=False)
    (tmp_path / "my_policies.py").write_text(WIDEST)
    yield tmp_path
    for name in own._loaded:
        sys.modules.pop(name, None)
    own._loaded.clear()


def test_a_live_run_finds_it_with_its_configuration(site: Site) -> None:
    """From whichever directory vrm is started, and before a module of the same name elsewhere."""
    elsewhere = site.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "my_policies.py").write_text(NARROWEST)
    (site.root / "my_policies.py").write_text(WIDEST)
    site.config(Launcher={"Kind": "direct"}, Cores=2, Replay={"Speed": 1000},
                Scheduling={"Algorithm": "my_policies:widest_first"},
                Allocation={"Policy": "pack"})
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 2 10 0", "ok.x 1 10 0", "ok.x 2 10 0")
    done = subprocess.run([sys.executable, "-m", "vrm.cli", "-c", str(site.config_file)],
                          cwd=elsewhere, env={**site.env, "PYTHONPATH": str(elsewhere)},
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(site.rows().values(), key=lambda row: row.start or 0).id == 1
    assert site.run("check").returncode == 0 and site.run("doctor").returncode == 0


def test_a_file_that_others_may_write_is_not_run(here: Path, capsys: Any) -> None:
    (here / "my_policies.py").write_text("raise SystemExit('it ran')\n")
    (here / "my_policies.py").chmod(0o666)
    assert main(["simulate", "lublin:4:9", "--algorithm", "my_policies:widest_first"]) == 2
    assert "my_policies.py may be written by everybody; chmod o-w" in capsys.readouterr().err
    (here / "vrm.yaml").write_text("Scheduling: {Algorithm: my_policies:widest_first}\n"
                                   "Launcher: {Kind: direct}\n")
    assert main(["run", "--once"]) == 2
    said = capsys.readouterr().err
    assert "vrm.yaml:1: Scheduling.Algorithm: " in said and "may be written by everybody" in said


def test_nor_one_in_a_directory_that_others_may_write(here: Path) -> None:
    open_to_all = here / "open"
    open_to_all.mkdir()
    (open_to_all / "my_policies.py").write_text(WIDEST)
    open_to_all.chmod(0o777)
    with pytest.raises(PolicyError, match="may be written by everybody"):
        load_own("my_policies:widest_first", open_to_all)
    load_own("my_policies:widest_first", open_to_all, "any")
    assert make_ordering("my_policies:widest_first").name == "my_policies:widest_first"


def test_simulate_finds_it_in_the_current_directory(here: Path, capsys: Any) -> None:
    assert main(["simulate", "lublin:64:30", "--algorithm", "my_policies:widest_first"]) == 0
    assert "my_policies:widest_first" in capsys.readouterr().out


def test_simulate_finds_that_of_a_configuration_with_it(here: Path, capsys: Any) -> None:
    below = here / "below"
    below.mkdir()
    (below / "vrm.yaml").write_text("Scheduling: {Algorithm: other:first}\nNodes: 4\n")
    (below / "other.py").write_text("def first(job, now, nodes):\n    return -job.id\n")
    assert main(["simulate", "lublin:4:9", "-c", "below/vrm.yaml"]) == 0
    assert "other:first" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["./my_policies.py:widest_first", "my_policies.py:widest_first",
                                  "/home/me/my_policies.py:widest_first"])
@pytest.mark.parametrize("option", ["--algorithm", "--policy", "--backfill"])
def test_the_path_of_a_file_is_answered_with_what_to_write(
        here: Path, capsys: Any, text: str, option: str) -> None:
    assert main(["simulate", "lublin:4:9", option, text]) == 2
    said = capsys.readouterr().err
    assert f"`{text}` is the path of a file; write `my_policies:widest_first`" in said


def test_an_expression_is_not_taken_for_a_path(here: Path, capsys: Any) -> None:
    assert main(["simulate", "lublin:4:9", "--algorithm", "q/t.py"]) == 2
    assert main(["simulate", "lublin:4:9", "--algorithm", "q/t*n"]) == 0


@pytest.mark.parametrize("name", ["random", "vrm", "numpy"])
def test_a_name_that_python_needs_is_refused(here: Path, name: str) -> None:
    import numpy  # so that it is loaded
    assert numpy
    (here / f"{name}.py").write_text(WIDEST)
    with pytest.raises(PolicyError, match=f"Python has a module {name} of its own"):
        load_own(f"{name}:widest_first", here)


def test_what_the_file_raises_is_reported_with_its_place(here: Path) -> None:
    (here / "broken.py").write_text("x = 1\n1 / 0\n")
    with pytest.raises(PolicyError, match=rf"failed at {here}/broken.py:2: ZeroDivisionError"):
        load_own("broken:first", here)
    assert "broken" not in sys.modules


def test_a_module_that_is_nowhere_is_answered_with_where_to_put_it(here: Path, capsys: Any) -> None:
    assert main(["simulate", "lublin:4:9", "--algorithm", "nowhere:first"]) == 2
    assert "put nowhere.py into the directory of the configuration" in capsys.readouterr().err


def test_an_experiment_takes_it_along(here: Path, capsys: Any) -> None:
    """Into the directory of each run, where the same command repeats it."""
    (here / "plan.yaml").write_text(
        "Name: own\nMode: simulated\nQueues: ['lublin:16:20']\nOut: out\n"
        "Scenarios:\n  - {Scheduling.Algorithm: my_policies:widest_first}\n"
        "  - {Scheduling.Algorithm: FCFS}\n")
    assert main(["experiment", "plan.yaml", "-j", "1"]) == 0, capsys.readouterr().err
    assert len(list(here.glob("out/*/my_policies.py"))) == 1
