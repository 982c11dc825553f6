"""The command line's own words: what it says to mistakes, closed pipes, full disks and Ctrl-C."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Site
from vrm import cli
from vrm.cli import main
from vrm.ext.begin.commands import check

VRM = [sys.executable, "-m", "vrm"]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: an empty one, without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VRM_CONFIG", raising=False)
    return tmp_path


@pytest.mark.parametrize("words, told", [
    (["--once"], "-c FILE"), (["queue"], "no manager has written"),
    (["log", "1"], "no manager has written"),
    (["--json"], "need `vrm queue`"), (["run", "--once", "-c", "x.yaml"], "x.yaml: no such file"),
    (["--watch", "5"], "need `vrm queue`"), (["-i", "queue"], "no manager has written"),
    (["-i", "state", "--json"], "no manager has written"), (["cancel", "1"], "no manager runs on"),
    (["queue", "--on", "x"], "--on HOST must be before"), (["run", "--on", "x", "--", "true"], "--on HOST must be before"),
])
def test_a_mistake_is_one_line_and_leaves_nothing(
        empty: Path, capsys: Any, words: list[str], told: str) -> None:
    assert main(words) == cli.COULD_NOT_RUN
    said = capsys.readouterr()
    assert told in said.err and said.err.count("\n") == 1 and said.out == ""
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("seconds", ["-1", "0", "inf", "soon"])
def test_watching_needs_a_time(empty: Path, capsys: Any, seconds: str) -> None:
    with pytest.raises(SystemExit):
        main(["-i", "queue", f"--watch={seconds}"])
    assert f"`{seconds}` is not a time above 0: seconds, or as 90m" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"manager": 3}'])
def test_a_state_that_is_none(site: Site, capsys: Any, content: str) -> None:
    site.log.mkdir()
    (site.log / "state").write_text(content)
    assert main(["-c", str(site.config_file), "-i", "queue"]) == cli.COULD_NOT_RUN
    assert "is not a state that a manager has written" in capsys.readouterr().err


def a_finished_run(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 10 0")
    assert site.run().returncode == 0


def test_nobody_reads_or_the_disk_is_full(site: Site) -> None:
    """Showing a run, of which every file can be read, and simulating, which prints a lot."""
    a_finished_run(site)
    for words in (["-c", str(site.config_file), "-i", "queue"], ["simulate", "lublin:4:9"]):
        reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
        reader.wait()
        shut = subprocess.run([*VRM, *words], stdout=reader.stdin, stderr=subprocess.PIPE,
                              text=True)
        reader.stdin.close()  # type: ignore[union-attr]
        assert (shut.returncode, shut.stderr) == (141, "")
        with open("/dev/full", "w") as full:
            done = subprocess.run([*VRM, *words], stdout=full, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (2, "vrm: No space left on device\n")


NOISE = bytes(range(256))


@pytest.mark.parametrize("words", [
    ["simulate", "noise", "--nodes", "2"], ["simulate", "noise.swf.gz"],
    ["simulate", "lublin:4:9", "--system", "noise"], ["heatmap", "show", "noise"],
    ["generate", "--estimates", "noise", "q"], ["experiment", "noise"], ["report", "noise"],
    ["compare", "noise"], ["validate", "noise", "--known", "actual"], ["-c", "noise"],
], ids=" ".join)
def test_a_file_of_another_kind_is_named(empty: Path, capsys: Any, words: list[str]) -> None:
    packed = gzip.compress(b"; MaxProcs: 64\n" * 99)
    (empty / "noise").write_bytes(NOISE)
    (empty / "noise.swf.gz").write_bytes(packed[:15] + NOISE)
    assert main(words) == cli.COULD_NOT_RUN
    said = capsys.readouterr().err
    assert "noise" in said and said.count("\n") == 1 and "\\x" not in said and "codec" not in said


def test_a_key_that_must_be_there(empty: Path, capsys: Any) -> None:
    (empty / "e.yaml").write_text("Mode: simulated\n")
    assert main(["experiment", "e.yaml"]) == cli.COULD_NOT_RUN
    assert capsys.readouterr().err == "e.yaml: Queues: this key has no default; write it\n"


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(arguments: Any) -> int:
        raise KeyboardInterrupt
    monkeypatch.setattr(check, "doctor", interrupted)
    assert main(["doctor"]) == cli.INTERRUPTED
    assert capsys.readouterr().err == ""


def test_an_ordering_that_fails_on_the_way(site: Site) -> None:
    """The run ends with the place in the user's file; the same command goes on."""
    (site.root / "mine.py").write_text("def worst(job, now, nodes):\n"
                                       "    return nodes / (job.id - 1)\n")
    site.config(Launcher={"Kind": "direct"}, Scheduling={"Algorithm": "mine:worst"})
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 10 0", "ok.x 1 10 0", "ok.x 1 10 0")
    failed = site.run(PYTHONPATH=str(site.root))
    assert failed.returncode == 2
    assert f"`mine:worst` failed at {site.root}/mine.py:2: ZeroDivisionError" in failed.stderr
    assert failed.stderr.count("\n") == 1
    site.config(Launcher={"Kind": "direct"})
    assert site.run().returncode == 0
    assert set(site.statuses().values()) == {"completed"} and len(site.statuses()) == 3


def test_a_line_that_is_not_understood_is_no_success(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 10 0", "ok.x one 10 0")
    done = site.run()
    assert f"{site.queue}:2: procs: found `one`" in done.stdout
    assert "1 completed, 1 refused, 1 line(s) of the queue file not understood;" in done.stdout
    assert done.returncode == cli.SOME_FAILED


@pytest.mark.parametrize("option, own, told", [
    ("--algorithm", "mine:text", "gives 'high' for job 1; an ordering gives a number"),
    ("--algorithm", "mine:bare", "failed: TypeError: bare() takes 0"),
    ("--policy", "mine:bare", "failed: TypeError: bare() takes 0"),
    ("--policy", "mine:text", "makes no placement policy"),
    ("--backfill", "mine:bare", "makes no backfilling"),
    ("--backfill", "mine:text", "failed: TypeError: text() missing"),
])
def test_policies_that_are_none(empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any,
                                option: str, own: str, told: str) -> None:
    (empty / "mine.py").write_text("def text(job, now, nodes=0):\n    return 'high'\n"
                                   "def bare():\n    return None\n")
    monkeypatch.syspath_prepend(str(empty))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert main(["simulate", "lublin:4:9", option, own]) == cli.COULD_NOT_RUN
    assert told in capsys.readouterr().err


OWN = """
class Own:
    def __init__(self, cluster=None, heatmap=None):
        pass
    def nodes(self, job):
        return 1
    def place(self, job, cluster):
        return None  # although it says that every job needs one node

class Hasty(Own):
    def place(self, job, cluster):
        return cluster.nonsense

class Careless(Own):
    def nodes(self, job):
        return {}[job.id]

class Late:
    def schedule(self, step):
        for job in step.waiting:
            yield 1 / 0

class Plain:
    def schedule(self, step):
        return [job for job in step.waiting[:1] if step.fits(job)]
"""


@pytest.mark.parametrize("option, own, told", [
    ("--policy", "own:Hasty", "`own:Hasty` failed at {}:12: AttributeError: 'Cluster' object"),
    ("--policy", "own:Careless", "`own:Careless` failed at {}:16: KeyError: 1"),
    ("--policy", "own:Own", "job(s) that it cannot start even on an empty machine"),
    ("--backfill", "own:Late", "`own:Late` failed at {}:21: ZeroDivisionError: division by zero"),
])
def test_what_a_policy_raises_is_told_with_its_place(
        empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, option: str, own: str,
        told: str) -> None:
    """Also in the middle of a generator; and a promise that it does not keep."""
    (empty / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(empty))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    assert main(["simulate", "lublin:64:60", "--load", "50", "--backfill", "easy", option, own]
                ) == cli.COULD_NOT_RUN
    assert told.format(empty / "own.py") in capsys.readouterr().err


def test_a_policy_of_ones_own_is_called_as_it_was_named(
        empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (empty / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(empty))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    assert main(["simulate", "lublin:64:9", "--backfill", "own:Plain"]) == 0
    assert "FCFS + own:Plain, pack" in capsys.readouterr().out
