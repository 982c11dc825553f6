"""`vrm forecast` and `vrm submit --test-only` on a real run, with its manager and without."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from collections.abc import Callable

import pytest

from conftest import Site, wait_until
from vrm import cli
from vrm.results import forecast as forecasts


Vrm = Callable[..., str]


@pytest.fixture
def vrm(site: Site, capfd: pytest.CaptureFixture[str]) -> Vrm:
    """What a command prints, in this process: it starts at once."""
    def run(*words: str, status: int = 0) -> str:
        capfd.readouterr()
        try:
            found = cli.main(["-c", str(site.config_file), *words])
        except SystemExit as end:
            found = int(end.code or 0)
        printed = "".join(capfd.readouterr())
        assert found == status, printed
        return printed
    return run


@pytest.mark.mpi
def test_a_run_is_forecast_with_and_without_its_manager(site: Site, vrm: Vrm) -> None:
    site.config(Nodes=2, Sockets=1, Cores=2, Emulate=True, Scheduling={"Backfilling": "easy"},
                Launcher={"Kind": "direct"})
    site.program("waits.x", "while [ ! -e \"$0.go\" ]; do sleep 0.02; done\n")
    site.lines("waits.x 2 1000 0", "waits.x 2 600 0", "waits.x 2 3600 0", "waits.x 1 60 0 0 after=1",
               "waits.x 9 60 0")
    assert "there is no run in" in vrm("forecast", status=2)
    assert "there is no run in" in vrm("submit", "waits.x", "1", "--test-only", status=2)
    manager = site.start()
    file = site.log / forecasts.NAME
    wait_until(lambda: len(site.running()) == 2 and file.exists(), "a forecast")

    def by_id(*words: str) -> dict[int, dict[str, Any]]:
        return {each["id"]: each for each in json.loads(vrm("forecast", "--json", *words))}

    def look() -> None:
        found = by_id()
        assert set(found) == {0, 1, 2, 3}
        assert found[0]["status"] == "running" and found[2]["status"] == "waiting"
        assert found[2]["start"] == pytest.approx(found[1]["end"]) and found[2]["reason"]
        assert found[2]["p10"] <= found[2]["start"] <= found[2]["p90"] <= found[2]["latest"] + 1e-3
        assert found[2]["chance"] == 1.0 and found[2]["nodes"] == "n1"
        assert list(by_id("2", "77")) == [2]
        text = vrm("forecast")
        assert text.startswith("forecast of ") and "not included: later submissions" in text
        assert vrm("forecast", "77", status=2) == "vrm: there is no job 77\n"
        assert "#4 waits.x has ended as refused" in vrm("forecast", "4", status=2)
        assert "`x` is not an id" in vrm("forecast", "x", status=2)
        text = vrm("forecast", "--estimate", "2=20m")
        assert "#2 would start " in text and ", as it does now" in text
        assert "#1 waits.x runs" in vrm("forecast", "--estimate", "1=20m", status=2)
        assert "not a job with a time" in vrm("forecast", "--estimate", "1", status=2)
        before = (site.log / "journal").read_bytes().rstrip(b"\0")
        test, = json.loads(vrm("submit", "waits.x", "2", "60", "--test-only", "--json"))
        assert test["id"] == 5 and test["start"] >= found[2]["start"]
        assert "this job would wait and run like this" in vrm("submit", "waits.x", "1",
                                                              "--test-only", "--after", "2")
        assert "these jobs would" in vrm("submit", "waits.x", "1", "--array", "1-3",
                                         "--test-only")
        assert "9 ranks do not fit" in vrm("submit", "waits.x", "9", "--test-only", status=2)
        refused = vrm("submit", "missing.x", "1", "--test-only", status=2)
        assert "it would be refused: " in refused and f"{site.bin}/missing.x does not exist" in refused
        assert "job 4, on which it depends, ended as refused" in vrm("submit", "waits.x", "1", "--test-only", "--after", "4", status=2)
        assert (site.log / "journal").read_bytes().rstrip(b"\0") == before

    look()
    assert "Forecast" in vrm("queue")
    asked = json.loads(vrm("queue", "--json"))["jobs"]
    assert [each["forecast"]["start"] for each in asked] == [by_id()[each["id"]]["start"]
                                                            for each in asked]
    manager.kill()
    manager.wait()
    assert file.exists()  # and nobody takes it for a new one
    look()
    state = json.loads((site.log / "state").read_text())
    (site.log / "state").write_text(json.dumps({**state, "time": state["time"] + 1e5}))
    assert by_id()[2]["time"] == state["time"] + 1e5  # a host whose clock is ahead
    with open(site.log / "journal", "r+b") as journal:  # a machine that went down
        journal.truncate(os.fstat(journal.fileno()).st_size - 20)
    assert by_id()
    lines = (site.log / "journal").read_bytes().split(b"\n")
    damaged = b"\n".join([*lines[:3], lines[3].replace(b"2", b"3", 1), *lines[4:]])
    Path(site.log / "journal").write_bytes(damaged)
    assert "the journal cannot be read whole" in vrm("forecast")
    (site.log / "journal").write_bytes(b"\n".join(lines))
    (site.bin / "waits.x.go").touch()
    site.run("--once")
    assert "no job runs or waits" in vrm("forecast")
    assert "3 completed" in vrm("queue") or "completed" in vrm("queue", "--all")


@pytest.mark.mpi
def test_the_page_is_renewed_while_the_run_goes_on(site: Site, vrm: Vrm) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("waits.x", "while [ ! -e \"$0.go\" ]; do sleep 0.02; done\n")
    site.lines("waits.x 1 1000 0", "waits.x 1 600 0")
    file = site.root / "page.html"
    assert "--watch goes with --page" in vrm("forecast", "--watch", status=2)
    assert "there is no run in" in vrm("forecast", "--page", str(file), status=2)
    manager = site.start("--once")
    wait_until(site.running, "a job runs")
    assert "cannot write" in vrm("forecast", "--page", str(site.root / "no" / "page.html"), status=2)
    watcher = site.start("forecast", "--page", str(file), "--watch", "0.2")
    wait_until(lambda: file.exists() and "1 running, 1 waiting" in file.read_text(), "a page")
    assert 'http-equiv="refresh" content="1"' in file.read_text()
    (site.bin / "waits.x.go").touch()
    site.finish(manager)
    assert "the run has ended" in site.finish(watcher)
    assert "0 running, 0 waiting, 2 ended" in file.read_text() and "refresh" not in file.read_text()
