"""Policies of the user's own: found with the configuration, and only where nobody else may write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest

from conftest import Site
from vrm.cli import main
from vrm.config import own_policies
from vrm.config.own_policies import load_own
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
    for name in own_policies._loaded:
        sys.modules.pop(name, None)
    own_policies._loaded.clear()


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


# ------------------------------------------------------- dispatchers and placements, live and simulated

MINE = '''\
from vrm.scheduling import combine


class Greedy:
    """Whatever fits starts."""

    def schedule(self, step):
        for job in step.waiting:
            if step.fits(job):
                yield job


class Strict:
    """Nobody overtakes the head, and heads start one by one."""

    name = "strict"

    def schedule(self, step):
        if step.fits(step.waiting[0]):
            yield step.waiting[0]


def highest_first(job, view, node):
    return -node


def upper_half(job, view, node):
    cores = view.nodes[node].cores
    return range(cores // 2, cores)


top = combine("open", highest_first, upper_half)
'''


def own_run(site: Site, nodes: int, cores: int, source: str = MINE, **settings: Any) -> Any:
    """A run of direct jobs, under policies of one's own: what it did and said."""
    (site.root / "mine.py").write_text(source)
    site.config(Launcher={"Kind": "direct"}, Nodes=nodes, Sockets=1, Cores=cores, Emulate=True,
                **settings)
    site.program("ok.x", "exec sleep 0.3\n")
    return site.run()


@pytest.mark.parametrize("backfilling", ["mine:Greedy", "mine:Strict", "3-kept", "easy-kept"])
def test_a_dispatcher_of_ones_own_decides_live_as_simulated(site: Site, backfilling: str) -> None:
    site.lines(*["ok.x 3 10 0", "ok.x 3 10 0", "ok.x 1 10 0", "ok.x 1 5 0"])
    done = own_run(site, 1, 4, Scheduling={"Backfilling": backfilling},
                   Allocation={"Policy": "pack"})
    assert done.returncode == 0, done.stdout + done.stderr
    live = sorted(site.rows().values(), key=lambda row: (row.start or 0, row.id))
    from vrm.api import Machine, Rules, simulate
    again = simulate(site.log / "jobs.csv", Machine.of(1, cores=4),
                     Rules(policy="pack", backfill=backfilling if ":" not in backfilling else _loaded(site,
                                                                                                      backfilling)))
    assert [row.id for row in live] == [row.id for row in sorted(
        again.jobs, key=lambda row: (row.start, row.id))]
    backfilled = {row.id for row in live if row.backfilled}
    assert backfilled == {row.id for row in again.jobs if row.backfilled}
    assert bool(backfilled) == (backfilling != "mine:Strict")


def _loaded(site: Site, text: str) -> Any:
    load_own(text, site.root)
    own_policies._loaded.pop("mine")
    return getattr(sys.modules.pop("mine"), text.partition(":")[2])()


@pytest.mark.parametrize("policy", ["mine:top", "open x mine:highest_first x mine:upper_half"])
def test_a_node_order_and_a_share_of_ones_own(site: Site, policy: str) -> None:
    site.lines(*["ok.x 1 10 0"] * 3)
    done = own_run(site, 2, 4, Allocation={"Policy": policy})
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row.cores for _, row in sorted(site.rows().items())] == [
        "n1:0/2", "n1:0/3", "n0:0/2"]
    assert site.run("check").returncode == 0
    system = site.root / "system.json"
    system.write_text('{"nodes": [{"count": 2, "cores": 4}]}')
    again = subprocess.run([sys.executable, "-m", "vrm.cli", "simulate", str(site.log / "jobs.csv"),
                            "--policy", policy, "--system", str(system), "--out", "again"],
                           cwd=site.root, env=site.env, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    from vrm.results.jobs import read_jobs
    assert {row.id: row.cores for row in read_jobs(site.root / "again/jobs.csv")} == {
        row.id: row.cores for row in site.rows().values()}


WRONG = {
    "twice": ("        yield job\n        yield job\n", "mine.py:7 starts job 2 twice"),
    "another's": ("        yield Job(77, 'x', 1, 1)\n", "mine.py:6 starts job 77, which does not wait"),
    "no job": ("        yield job, 1\n", "mine.py:6 gives (Job("),
    "too large": ("        yield step.waiting[0]\n        yield job\n", "mine.py:7 starts job 2, which does not fit now; ask `step.fits(job)` right before"),
    "raises": ("        1 / 0\n", "failed at "),
}
"""Endings of a `schedule`, with what is said of them."""


@pytest.mark.parametrize("how", WRONG)
def test_what_is_wrong_with_what_it_starts_is_reported_by_place(site: Site, how: str) -> None:
    """In one message; the run keeps its journal, and goes on once the file is right."""
    end, said = WRONG[how]
    broken = ("from vrm.model import Job\n\nclass Mine:\n"
              "    def schedule(self, step):\n"
              "        job = step.waiting[-1]\n" + end)
    right = "class Mine:\n    def schedule(self, step):\n        return [job for job in step.waiting[:1] if step.fits(job)]\n"
    site.lines("ok.x 3 10 0", "ok.x 3 10 0", f"ok.x {2 if how == 'too large' else 1} 10 0")
    done = own_run(site, 1, 4, broken, Scheduling={"Backfilling": "mine:Mine"},
                   Allocation={"Policy": "pack"})
    text = done.stdout + done.stderr
    assert done.returncode == 2 and "Traceback" not in text, text
    assert "`mine:Mine` " in text and said in text, text
    assert "type the same command" in text
    (site.root / "mine.py").write_text(right)
    assert site.run().returncode == 0
    assert {row.status for row in site.rows().values()} == {"completed"}


@pytest.mark.parametrize("option, source, said", [
    ("--algorithm", "def mine(job, now, nodes):\n    return 'high'\n",
     "own.py:1 gives 'high' for job 0; an ordering gives a number"),
    ("--algorithm", "def mine(job, now, nodes):\n    return job.nothing\n",
     "failed at {here}/own.py:2: AttributeError"),
    ("--policy", "from vrm.scheduling import combine\n\n\ndef order(job, view, node):\n"
     "    return None\n\n\nmine = combine('empty', order, 'all')\n",
     "own.py:4 gives None for node 0; a node order gives a number, lowest first"),
    ("--policy", "from vrm.scheduling import combine\n\n\ndef share(job, view, node):\n"
     "    return [7]\n\n\nmine = combine('open', 'number', share)\n",
     "own.py:4 gives [7] as the cores of node 0; give numbers from 0 to 3"),
    ("--policy", "class mine:\n    def __init__(self, cluster, heatmap):\n        pass\n\n"
     "    def nodes(self, job):\n        return 0\n\n    def place(self, job, view):\n"
     "        return None\n", "own.py:5 gives 0 as the nodes of job 0"),
    ("--policy", "from vrm.model import Placement\n\n\nclass mine:\n"
     "    def __init__(self, cluster, heatmap):\n        pass\n\n"
     "    def nodes(self, job):\n        return 1\n\n    def place(self, job, view):\n"
     "        return Placement('whole', (1, 1), (1,), job.procs)\n",
     "own.py:11 puts job 1 on cores that are taken, or down (nodes n0)"),
    ("--backfill", "class mine:\n    def schedule(self, step):\n        return 5\n",
     "failed: TypeError: 'int' object is not iterable"),
    ("--backfill", "from vrm.scheduling import Dispatcher\n\n\nclass mine(Dispatcher):\n"
     "    def decide(self, now, waiting, view, policy, heads):\n        return 5\n",
     "`own:mine` has `fill`, which vrm no longer calls: give it `schedule(self, step)`"),
    ("--backfill", "def mine():\n    return 5\n", "makes no backfilling"),
])
def test_what_is_wrong_in_a_simulation_is_reported_by_place(
        here: Path, capsys: Any, option: str, source: str, said: str) -> None:
    (here / "own.py").write_text(source)
    (here / "jobs").write_text("a 2 10 0\na 2 10 0\nend\n")
    words = ["simulate", "jobs", "--nodes", "2", "--cores", "4", option, "own:mine"]
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert "`own:mine`" in printed or "`order`" in printed or "`share`" in printed
    assert said.format(here=here) in printed and "Traceback" not in printed, printed
