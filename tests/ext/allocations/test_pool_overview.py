"""A pool as `vrm status`, `vrm top` and `vrm pool status` show it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, wait_until
from support.pools import Pool, lines, ran
from support.snapshots import JOBS, NODES, snapshot
from vrm import cli
from vrm.ext.allocations.pool.journal import PoolJournal
from vrm.ext.allocations.pool.overview import around
from vrm.ext.top import cells, top
from vrm.system import plugins


@pytest.fixture
def pool(site: Site) -> Pool:
    return Pool(site)


def journal(tmp_path: Path, *entries: dict[str, Any]) -> PoolJournal:
    made = PoolJournal(tmp_path / "pool")
    made.create()
    for entry in ({"do": "start", "options": {"system": "slurm", "max_allocations": 9}}, *entries):
        assert made.append(entry)
    return made


def seen_from(tmp_path: Path) -> list[str]:
    found = around(tmp_path, tmp_path)
    return [] if found is None else found.lines()


def test_what_is_shown_of_allocations_and_of_what_waits(tmp_path: Path) -> None:
    assert seen_from(tmp_path) == []
    made = journal(tmp_path, {"do": "add", "lines": ["x 1 9", "y 1 9", "x 1 9", "x 1 9"]},
                   {"do": "ask", "number": 0, "nodes": 2, "seconds": 60.0}, {"do": "asked", "number": 0, "job": "7"},
                   {"do": "ask", "number": 1, "nodes": 3, "seconds": 60.0}, {"do": "asked", "number": 1, "job": "8"},
                   {"do": "join", "name": "slurm-7", "job": "7", "nodes": 2, "until": None},
                   {"do": "take", "name": "slurm-7", "jobs": [0]})
    said = seen_from(tmp_path)
    assert said[0] == f"4 jobs: none has ended; 3 wait for an allocation (2 x, 1 y); pool {tmp_path}/pool"
    assert said[1].split() == ["allocation", "state", "nodes", "until", "done", "waiting", "running"]
    assert said[2].split() == ["slurm-7", "running", "2", "0", "1"]
    assert said[3].split() == ["slurm-8", "asked", "for", "3", "0", "0"]
    assert "journal: No such file" in said[4]
    (tmp_path / "pool" / "slurm-7").mkdir()
    state = tmp_path / "pool" / "slurm-7" / "state"
    state.touch()
    assert "running" in seen_from(tmp_path)[2]
    os.utime(state, (0, 0))  # its manager writes it every 5 s
    assert "silent" in seen_from(tmp_path)[2]
    made.append({"do": "end", "name": "slurm-7", "done": {"0": "completed"}})
    assert seen_from(tmp_path)[3].split() == ["slurm-7", "ended", "2", "1", "0"]  # what others write is read
    made.append({"do": "over", "number": 1, "why": "the batch system has not taken the request: no"})
    made.append({"do": "stop", "now": False})
    assert seen_from(tmp_path)[-2:] == ["the last request that has failed: the batch system has not taken the request: no",
                                        "The pool is stopped; `vrm pool start` continues it."]


def test_allocations_that_work_are_first_and_those_that_have_ended_last(tmp_path: Path) -> None:
    journal(tmp_path, {"do": "add", "lines": ["x 1 9"]}, {"do": "ask", "number": 0, "nodes": 2, "seconds": 60.0},
            {"do": "asked", "number": 0, "job": "20"}, *({"do": "join", "name": f"slurm-{job}", "job": str(job), "until": 5.0} for job in (8, 11, 9)),
            {"do": "end", "name": "slurm-8", "done": {}})
    assert [line.split()[0] for line in seen_from(tmp_path)[2:6]] == ["slurm-9", "slurm-11", "slurm-20", "slurm-8"]
    assert seen_from(tmp_path)[5].split() == ["slurm-8", "ended", "0", "0", "0"]  # it lasts until no time any more


def test_a_pool_that_is_damaged_or_was_begun_again(tmp_path: Path) -> None:
    journal(tmp_path, {"do": "add", "lines": ["x 1 9"]})
    assert "1 jobs" in seen_from(tmp_path)[0]
    (tmp_path / "pool" / "entries" / "00000002").write_text("[]")
    assert "the pool is damaged" in seen_from(tmp_path)[0] and len(seen_from(tmp_path)) == 1
    (tmp_path / "pool").rename(tmp_path / "old")
    journal(tmp_path, {"do": "add", "lines": ["x 1 9"] * 3})
    assert "3 jobs" in seen_from(tmp_path)[0]


def test_an_extension_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vrm.report.overviews import overviews
    plugin = plugins.Plugin("vrm.overviews", "broken", "os:listdir", "mine", "1")
    monkeypatch.setattr(plugins, "own", lambda group: (plugin,))
    found = overviews(tmp_path, tmp_path)
    assert "mine 1 (os:listdir) failed: TypeError" in found["broken"].text()
    assert found["broken"].record["trouble"] in found["broken"].lines()


def test_a_screen_has_as_many_lines_of_it_as_leave_room() -> None:
    around = [f"line {number}" for number in range(30)]
    alone = cells.plain_text(top.render(None, (), (80, 24), 0.0, around=around)).split("\n")
    assert len(alone) == 24 and alone[:3] == ["vrm top", "line 0", "line 1"] and "q quit" in alone[-1]
    run = cells.plain_text(top.render(snapshot(NODES, JOBS), (), (80, 24), 0.0, around=around))
    assert "line 4\n... 25 more lines (vrm status)\n" in run and "line 5" not in run and "Running" in run


def test_the_pool_is_seen_from_its_configuration_and_from_its_allocations(pool: Pool) -> None:
    site = pool.site
    site.queue.write_text(lines(9))
    pool.hold(range(9))
    assert "no manager has written" in site.run("status").stderr
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "2").returncode == 0
    first = pool.allocation(100)
    wait_until(lambda: len(ran(site, "log")) == 2, "two jobs run")
    member = ["-c", str(site.root / "vrm.slurm-100.yaml")]

    def shown() -> str:
        return site.run("status").stdout
    wait_until(lambda: "2 count.x" in shown() and "6 wait" in shown(), "two run, and one waits there")
    for said in (shown(), site.run("top").stdout, pool.vrm("status").stdout):
        assert "9 jobs: none has ended; 6 wait for an allocation (6 count.x)" in said
        assert "slurm-100" in said and "asked for" in said and "slurm-101" in said
        assert max(map(len, said.splitlines()[2:])) < 80
    inside = site.run(*member, "status").stdout
    assert "Core 0" in inside and "slurm-101" in inside
    assert "slurm-101" in site.run(*member, "top").stdout
    for words in (["status", "--json"], [*member, "status", "--json"]):
        found = json.loads(site.run(*words).stdout)["pool"]
        assert [each["state"] for each in found["allocations"]] == ["running", "asked for"]
        assert found["allocations"][0]["programs"] == {"count.x": 2} and found["waiting"] == 6
    assert "pool" not in json.loads(site.run(*member, "queue", "--json").stdout)
    pool.let_go(range(9))
    site.finish(first)
    assert "9 completed; 0 wait" in shown() and "ended" in shown()


@pytest.mark.parametrize("words", [["queue"], ["log", "0"], ["wait", "0"]])
def test_where_a_pool_was_begun_its_command_is_named(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: ., Any: true, Queue: queue}\nLog: .\n")
    assert cli.main(words) == 2
    assert "yet; go to the directory in which it runs" in capsys.readouterr().err
    journal(tmp_path, {"do": "add", "lines": ["x 1 9"]})
    assert cli.main(words) == 2
    assert "yet; `vrm pool status` shows what was begun with this configuration" in capsys.readouterr().err
