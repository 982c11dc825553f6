"""A batch system and a launcher that only this file knows: registered here, they are everywhere.

The file registers both when it is imported, and carries out vrm's command line when it is run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Mapping, Sequence

import pytest

import vrm as package
from vrm.live.batch.allocation import Allocation, batch_job, find_allocation, kill_delay
from vrm.live.batch.base import BatchJob, BatchSystem, Environment, Question, BatchScript, register, systems
from vrm.ext.begin.batch_script import script, submit_commands
from vrm.live.launch.base import LAUNCHERS, Launch, Launcher, PathLike, make_launcher
from vrm.live.launch.environment import batch_settings, environment, hydra_settings, tagged
from vrm.live.nodes.bindings import BindingCheck
from vrm.model import Node, RankSlot
from vrm.system.transports import base as transports_base
from vrm.system.transports.base import Transport, transports

SYNTHETIC_CHECK = ("moon", "twice")


class Moon(BatchSystem):
    """Nodes in MOON_NODES, the end by a program."""

    name = "moon"
    title = "Moon"
    signs = ids = ("MOON_JOB",)
    kill_delay = 7.0
    openmpi_overlooks = ({"OMPI_MCA_ras": "^moon"}, {"PRTE_MCA_ras": "^moon"})
    hydra_settings = {"HYDRA_MOON": "1"}
    submit = "moonsub"
    directive = "MOON"
    script_help = "for moonsub"
    queue_word = "crater"

    def hosts(self, env: Environment) -> dict[str, int]:
        return dict.fromkeys(env["MOON_NODES"].split(), 3)

    def questions(self, job: str) -> Sequence[Question]:
        return (((sys.executable, "-c", f"import os; print({job}, os.environ.get('MOON_END', 4000))"),
                 lambda text: BatchJob(float(text.split()[1]), {"n1": 2}, 3)),)

    def job_environment(self, env: Environment, slots: Sequence[int]) -> dict[str, str]:
        return {"MOON_INSIDE": env["MOON_JOB"]} if "MOON_JOB" in env else {}

    def openmpi_slots(self, env: Environment) -> Mapping[str, int] | None:
        return {"n0": 1} if "MOON_JOB" in env else None

    def script_lines(self, wrapper: BatchScript) -> list[str]:
        return ["# As many as there are.", f"--nodes {wrapper.nodes}"]


class Twice(Launcher):
    """Starts a program by `env`, which says on its errors that it has."""

    kind = "twice"
    several_nodes = False
    rank_variables = ("TWICE_RANK",)
    mpirun = "/usr/bin/env"
    version_text = "Twice 2"

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env

    @classmethod
    def detect(cls, settings: Any, emulated: bool, topologies: Any, base: Mapping[str, str]
               ) -> Twice:
        return cls(environment(base, settings.environment))

    def command(self, job_id: int, app: PathLike, slots: Sequence[RankSlot], nodes: Sequence[Node],
                rankfile: PathLike, arguments: Sequence[str] = (),
                variables: Mapping[str, str] | None = None) -> Launch:
        return Launch((self.mpirun, "TWICE_RANK=0", os.fspath(app), *arguments),
                      tagged({**self.env, **(variables or {})}, self.run_id, job_id), {})

    def check_bindings(self, errors: PathLike, output: PathLike, slots: Sequence[RankSlot],
                       nodes: Sequence[Node] = ()) -> BindingCheck:
        return BindingCheck("unbound")


def enter() -> None:
    """Register all that this file makes up."""
    register(Moon)
    LAUNCHERS.register("twice")(Twice)
    transports_base.register(Transport("rocket", lambda host, timeout: ("rocket", host)))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Registered for one test; the environment of a job of the batch system."""
    monkeypatch.setattr(LAUNCHERS, "_known", dict(LAUNCHERS._known))
    enter()
    yield {"MOON_JOB": "17", "MOON_NODES": "n0 n1", "PATH": os.environ["PATH"]}
    del systems()["moon"], transports()["rocket"]


def test_a_batch_system_of_ones_own(made_up: dict[str, str]) -> None:
    assert find_allocation(made_up) == Allocation("moon", ("n0", "n1"), {"n0": 3, "n1": 2}, "17",
                                                  4000.0, 3)
    assert batch_job(made_up, 3) == "moon 17 again 2" and kill_delay("moon 17") == 7.0
    assert environment(made_up)["MOON_INSIDE"] == "17"
    assert batch_settings(5, made_up, {"n0": 2}) == {"PRTE_MCA_ras": "^moon"}
    assert batch_settings(4, made_up, {"n0": 1}) == {}
    assert hydra_settings(made_up) == {"HYDRA_MOON": "1"}
    wrapper = BatchScript(("vrm", "--once"), 5, 60, cores=4, directives=("--dark",))
    assert submit_commands("moon", wrapper) == ["moonsub FILE"]
    assert "#MOON --nodes 5\n#MOON --dark\n" in script("moon", wrapper)
    with pytest.raises(ValueError, match="batch system moon is registered already"):
        register(Moon)


def test_a_launcher_of_ones_own(made_up: dict[str, str]) -> None:
    from vrm.config.schema import LauncherSettings as Section

    launcher = make_launcher(Section(Kind="twice"), base=made_up)
    assert (launcher.kind, launcher.version_text, launcher.rank_variables) == (
        "twice", "Twice 2", ("TWICE_RANK",))
    assert launcher.lost_nodes("e", "o") == () and launcher.without_launcher_text("a line") == "a line"


class Plain:
    """One from before there was a class to inherit from: with the methods alone."""

    mpirun, version_text, run_id = "p", "P 1", ""

    @classmethod
    def detect(cls, *arguments: Any) -> Plain:
        return cls()


def test_a_launcher_that_is_no_subclass_has_the_defaults() -> None:
    from vrm.config.schema import LauncherSettings as Section

    launcher = make_launcher(Section(Kind=f"{__name__}:Plain"), base={})
    assert (launcher.version_text, launcher.rank_variables, launcher.several_nodes) == ("P 1", (), True)
    assert launcher.lost_nodes("e") == () and launcher.exit_code(5, "o", "e") == 5


def vrm(site: Any, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """vrm's command line in a process that knows what is made up here."""
    return subprocess.run([sys.executable, __file__, "-c", str(site.config_file), *arguments],
                          cwd=site.root, env={**site.env, **env}, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=60, check=False)


def test_a_run_by_both(site: Any) -> None:
    """The configuration names what is registered; commands and their help do, too."""
    site.config(Launcher={"Kind": "twice"}, Hosts={"Reach": "rocket"})
    site.program("show", 'echo "$TWICE_RANK $MOON_INSIDE"')
    site.lines("show 1 60 0")
    env = {"MOON_JOB": "17", "MOON_NODES": os.uname().nodename, "MOON_END": str(time.time() + 9e4)}
    done = vrm(site, "--once", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.rows()[0].status == "completed"
    assert (site.log / "show.0.o").read_text() == "0 17\n"
    assert '"moon 17 again 2"' in (site.log / "journal").read_text()
    checked = vrm(site, "check", **env)
    assert "Twice 2" in checked.stdout, checked.stdout + checked.stderr


@pytest.mark.parametrize("words, wanted", [
    (("script", "--help"), ("--slurm", " | --pbs", "--moon", "for moonsub", "crater (Moon)")),
    (("script", "--moon", "-N", "2", "-t", "1h", "--cores", "2"), ("#MOON --nodes 2",)),
    (("init", "--help"), ("also write vrm.moon, for moonsub",))])
def test_the_commands_know_it(site: Any, words: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    if words[0] == "init":
        done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True,
                              env=site.env, check=False)
    else:
        done = vrm(site, *words)
    assert all(text in " ".join(done.stdout.split()) for text in wanted), done.stdout + done.stderr


FILE = '''
from vrm.live.batch.base import BatchSystem, register

@register
class Moon(BatchSystem):
    name, submit, script_help = "moon", "moonsub", "for moonsub"
'''


def test_a_file_is_all_that_it_takes(tmp_path: Path) -> None:
    """A copy of vrm with one file more knows that batch system."""
    shutil.copytree(Path(package.__file__).parent, tmp_path / "vrm",
                    ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "vrm" / "live" / "batch" / "moon.py").write_text(FILE)
    done = subprocess.run([sys.executable, "-m", "vrm.cli", "script", "--help"], cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True,
                          capture_output=True, check=False)
    assert "--moon" in done.stdout, done.stdout + done.stderr


if __name__ == "__main__":
    from vrm.cli import main

    enter()
    sys.exit(main(sys.argv[1:]))
