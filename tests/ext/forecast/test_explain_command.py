"""`vrm explain` on a real run."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest

from conftest import Site, wait_until
from vrm.cli import main
from vrm.ext.forecast.commands.explain import LONG
from vrm.ext.forecast.files import RunFiles
from vrm.model import Cluster, Job, JobState
from vrm.model.job import Details
from vrm.model.forms.placement_formats import to_record
from vrm.run.journal import codec
from vrm.run.journal import files as journals
from vrm.run.journal import single_job
from vrm.run.rundir import RunDirectory
from vrm.config.schema import load
from vrm.run.journal.history import replay
from vrm.scheduling import make_policy


def test_a_run_is_explained_with_and_without_its_manager(site: Site) -> None:
    site.config(Nodes=2, Sockets=1, Cores=2, Emulate=True,
                Scheduling={"Backfilling": "easy"})
    site.program("waits.x", "while [ ! -e \"$0.go\" ]; do sleep 0.02; done\n")
    site.lines("waits.x 2 1000 0", "waits.x 4 600 0", "waits.x 2 3600 0", "waits.x 1 60 0 0 after=1",
               "waits.x 9 60 0")
    manager = site.start()
    wait_until(lambda: site.running() and "refused" in site.said(manager), "a job runs")

    def explained(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = site.run("explain", *words)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def look() -> None:
        text = " ".join(explained("1-3").stdout.split())
        assert "#1 waits.x on 4 ranks waits since" in text
        assert "Needs 2 empty nodes, 1 empty; #0 waits.x holds" in text
        assert "If #0 was not there, it would start now" in text
        assert "It would fit now, but could delay #1 waits.x" in text
        assert re.search(r"an estimate of at most 1\dm\w* would start it at once", text)  # less, the later it is asked
        assert "It depends on #1, which should have ended by" in text
        first, = json.loads(explained("1", "--json").stdout)
        assert first["id"] == 1 and first["reasons"][0]["jobs"] == [0]
        rows = [line.split() for line in explained().stdout.splitlines()]
        assert [row[0] for row in rows] == ["ID", "1", "2", "3"]
        assert {row["id"] for row in json.loads(explained("--json").stdout)} == {1, 2, 3}
        assert "#0 waits.x runs" in explained("0", "1").stdout
        assert "there is no job 77" in explained("77", status=2).stderr
        assert "#4 waits.x has ended as refused: 9 ranks do not fit" in explained("4", status=2).stderr
        assert "`x` is not an id" in explained("x", status=2).stderr
        why = " ".join(site.run("forecast", "0", "1", "--why").stdout.split())
        assert "#0 waits.x runs" in why and "Needs 2 empty nodes, 1 empty; #0 waits.x holds" in why

    look()
    manager.send_signal(signal.SIGKILL)
    manager.wait()
    look()
    (site.bin / "waits.x.go").touch()
    site.run("--once")
    assert sorted(site.statuses().values()) == ["completed"] * 4 + ["refused"]
    assert explained().stdout == "no job waits\n"


def test_a_job_of_a_long_run_that_is_held_runs_or_has_ended_is_explained_without_building_anything(
        site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    site.config(Nodes=2, Sockets=1, Cores=2, Emulate=True)
    site.lines()
    run = RunDirectory.of(load(site.config_file))
    run.create()
    journal = journals.Journal(run.journal)
    journal.append("run", format=2, run="a", time=1.0, nodes=codec.nodes_record(Cluster.regular(2, 1, 2).nodes))
    journal.append("job", **codec.job_record(Job(0, "a.x", 1, 9.0, 2.0), Details(held=True), range(LONG)))
    for job_id in (3, 4):
        journal.append("start", id=job_id, time=3.0, backfilled=False, placement={})
    journal.append("end", id=3, time=4.0, state="failed", reason="exit 1", exit_code=1, ran=None)
    journal.close()
    monkeypatch.setattr(RunFiles, "read_new", lambda self: pytest.fail("all is built"))
    assert main(["-c", str(site.config_file), "explain", "7", "4999"]) == 0
    said = capsys.readouterr().out
    assert "#7 a.x on 1 rank waits since" in said and said.count("It is held (`vrm release` releases it).") == 2
    assert main(["-c", str(site.config_file), "explain", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["reasons"][0]["kind"] == "held"
    assert main(["-c", str(site.config_file), "explain", "3", "4"]) != 0
    assert "#3 a.x has ended as failed: exit 1\n#4 a.x runs" in capsys.readouterr().err
    assert main(["-c", str(site.config_file), "explain", "3", "7"]) == 0
    assert capsys.readouterr().out.startswith("#3 a.x has ended as failed: exit 1\n\n#7 a.x on 1 rank waits since")


def test_what_became_of_a_job_is_what_the_whole_journal_says(tmp_path: Path) -> None:
    """After each of many random events, of each job."""
    choose, cluster = random.Random(3), Cluster.regular(1, 1, 8)
    policy = make_policy("pack", cluster)
    path = tmp_path / "journal"
    journal = journals.Journal(path)
    journal.append("run", format=2, run="a", time=1.0, nodes=codec.nodes_record(cluster.nodes))
    for first, count in ((0, 1), (1, 3), (4, 1)):
        journal.append("job", **codec.job_record(Job(first, "a.x", 1, 9.0, 2.0), Details(held=first == 1),
                                                 range(count) if count > 1 else ()))
    journal.sync()
    for _ in range(80):
        past = replay(journals.read(path))
        for job_id, entry in past.state.book.entries.items():
            found = single_job.alone(path, job_id)
            assert found is not None and (found.job, found.came) == (entry.job, 5)
            assert found.waits == (entry.state is JobState.QUEUED) and found.end == past.ended.get(job_id)
            assert not found.waits or found.held == entry.held
        assert single_job.alone(path, 5) is None
        job_id = choose.randrange(5)
        entry, runs = past.state.book.entries[job_id], job_id in past.started and job_id not in past.ended
        if runs or entry.state.ended:
            journal.append(choose.choice(["again", "end"]) if runs else "again", id=job_id, retry=False, time=3.0,
                           state="failed", reason="", exit_code=1, ran=None)
        elif entry.held:
            journal.append("release", id=job_id)
        elif choose.random() < 0.5:
            journal.append("hold", id=job_id)
        else:
            journal.append("start", id=job_id, time=3.0, backfilled=False,
                           placement=to_record(policy.place(entry.job, Cluster(cluster.nodes))))
        journal.sync()
    journal.close()
