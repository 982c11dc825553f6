"""What a manager finds in its run's directory: a copy of another run, markers without a journal, the
directory of a run that was begun on another host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, wait_until
from vrm.live.manager.takeover import earlier_run
from vrm.run.journal import files as journals
from vrm.run.journal.history import RunHistory, replay
from vrm.run.rundir import RunDirectory

WAIT = 'echo "$VRM_JOB_ID" >> "$0.log"\nwhile [ ! -e "$0.go" ]; do sleep 0.02; done\n'


@pytest.fixture
def site(site: Site) -> Site:
    """A site with two jobs that wait for a file each, and one behind them."""
    site.program("a.x", WAIT)
    site.program("b.x", WAIT)
    site.program("ok.x", "exit 0\n")
    site.lines("a.x 1 60 0", "b.x 1 60 0", "ok.x 1 60 0")
    config(site)
    return site


def copied(site: Site) -> None:
    """Copy the directory of a run. `cp -a` also copies the socket, which shutil refuses to."""
    subprocess.run(["cp", "-a", site.log, site.root / "copy"], check=True)


def config(site: Site, log: str = "log") -> None:
    site.config(Launcher={"Kind": "direct"}, Nodes=1, Cores=2, Log=str(site.root / log),
                Allocation={"Policy": "pack"}, Emulate=True)


def starts(site: Site, app: str) -> int:
    """How often a program was started."""
    path = site.bin / f"{app}.log"
    return len(path.read_text().splitlines()) if path.exists() else 0


def leave_running(site: Site) -> None:
    """Two jobs run, and the manager is killed."""
    manager = site.start()
    wait_until(lambda: starts(site, "a.x") == starts(site, "b.x") == 1, "both run")
    manager.kill()
    manager.wait()


def go(site: Site) -> None:
    """Let the programs end."""
    for name in ("a.x", "b.x"):
        (site.bin / f"{name}.go").touch()


def with_runs(*runs: dict) -> RunHistory:
    past = RunHistory()
    past.runs += runs
    return past


def past(directory: Path) -> RunHistory:
    return replay(journals.read(directory / "journal"))


def test_a_copy_leaves_the_jobs_of_the_original_alone(site: Site) -> None:
    leave_running(site)
    copied(site)
    config(site, "copy")
    done = site.run()
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"is a copy of {site.log}" in done.stderr and "--fresh" in done.stderr
    assert starts(site, "a.x") == starts(site, "b.x") == 1 and len(site.running()) == 2

    for marker in (site.root / "copy" / "pids").iterdir():  # as the message says
        marker.unlink()
    copy = site.start()
    wait_until(lambda: starts(site, "a.x") == starts(site, "b.x") == 2, "they run here, too")
    assert "it is now a separate run" in site.said(copy)
    assert site.run("cancel", "0", "1").returncode == 0
    site.finish(copy)
    rows = (site.root / "copy" / "jobs.csv").read_text()
    assert rows.count(",cancelled,") == 2 and rows.count(",completed,") == 1
    assert past(site.root / "copy").run != past(site.log).run
    assert len(site.processes()) >= 2  # neither by the cancel nor by the sweep at the end

    config(site)
    go(site)
    assert site.run().returncode == 0
    assert set(site.statuses().values()) == {"completed"} and starts(site, "a.x") == 2
    site.nothing_left()


def test_a_copy_begins_again_with_fresh(site: Site) -> None:
    leave_running(site)
    copied(site)
    config(site, "copy")
    go(site)
    assert site.run("--fresh").returncode == 0
    config(site)
    assert site.run().returncode == 0
    assert starts(site, "a.x") == 2  # once in each


def test_a_directory_that_was_moved_is_the_same_run(site: Site) -> None:
    leave_running(site)
    before = past(site.log).run
    go(site)
    wait_until(lambda: not site.running(), "how the programs ended is on record")
    site.log.rename(site.root / "moved")
    config(site, "moved")
    assert site.run().returncode == 0
    assert past(site.root / "moved").run == before


def test_what_waits_in_a_copy_goes_on_as_a_run_of_its_own(site: Site) -> None:
    leave_running(site)
    go(site)
    wait_until(lambda: not site.running(), "how the programs ended is on record")
    copied(site)
    config(site, "copy")
    done = site.run()
    assert done.returncode == 0 and "it is now a separate run" in done.stdout
    assert starts(site, "a.x") == starts(site, "b.x") == 1  # their ends were in the copy
    again = past(site.root / "copy")
    assert len(again.ended) == 3 and again.run != past(site.log).run


def test_the_number_of_the_device_is_not_what_tells(site: Site, monkeypatch: Any) -> None:
    """It differs between hosts that share a file system; a copy on another may have the inode."""
    run = RunDirectory(site.log, site.log, site.log / "state")
    run.create()
    home = earlier_run.identity(run)
    assert set(home) == {"path", "inode"}
    same = with_runs({"home": home})
    assert earlier_run.copied_from(run, same) == ""
    stat = os.stat

    def otherwise(path: Any, **how: Any) -> os.stat_result:
        about = list(stat(path, **how))
        about[2] += 1
        return os.stat_result(about)
    monkeypatch.setattr(os, "stat", otherwise)  # the recorded path is on another device
    monkeypatch.setattr(Path, "stat", lambda path, **how: stat(path, **how))
    assert earlier_run.copied_from(run, same) == home["path"]
    monkeypatch.undo()
    assert earlier_run.copied_from(run, with_runs({"home": {**home, "path": "/gone"}})) == ""
    assert earlier_run.copied_from(run, with_runs({"home": {**home, "inode": 1}}))
    assert earlier_run.copied_from(run, with_runs({})) == ""  # begun by 0.1.0


def test_another_host_goes_on_with_the_run(site: Site) -> None:
    """On a shared file system: here one machine under two names."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--uts", "true"], check=False).returncode:
        pytest.skip("only root can give a machine a second name")
    leave_running(site)
    before = past(site.log).run
    command = [sys.executable, "-m", "vrm.cli", "-c", str(site.config_file)]
    other = subprocess.Popen(
        ["unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh", *command],
        cwd=site.root, env={**site.env, "SLURM_JOB_ID": "", "VRM_CONFIG": ""}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    site.started.append(other)
    wait_until(lambda: len(past(site.log).runs) == 2, "the second manager has begun")
    go(site)
    said = other.communicate(timeout=60)[0]
    assert other.returncode == 0, said
    assert "is a copy" not in said and past(site.log).run == before
    assert past(site.log).runs[-1]["host"] == "elsewhere"
    assert starts(site, "a.x") == starts(site, "b.x") == 1
    assert set(site.statuses().values()) == {"completed"}


def test_markers_without_a_journal_are_not_passed_over(site: Site) -> None:
    leave_running(site)
    journal = (site.log / "journal").read_bytes()
    (site.log / "journal").unlink()
    for option in ([], ["--fresh"]):
        done = site.run(*option)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "may still be running: 0 (process" in done.stderr and "1 (process" in done.stderr
        assert str(site.pids) in done.stderr
    assert starts(site, "a.x") == 1 and len(site.running()) == 2 and not site.statuses()
    (site.log / "journal").write_bytes(journal)  # as the message says
    go(site)
    assert site.run().returncode == 0
    assert set(site.statuses().values()) == {"completed"} and starts(site, "a.x") == 1


def test_markers_of_dead_supervisors_without_a_journal_need_fresh(site: Site) -> None:
    run = RunDirectory(site.log, site.log, site.log / "state")
    run.create()
    run.marker(0).write_text(json.dumps({
        "id": 0, "pid": 1, "started": 1, "boot": "an earlier one", "host": os.uname().nodename,
        "time": 1.0}) + "\n")
    run.jobs.write_text("id\n")
    done = site.run()
    assert done.returncode == 2 and "--fresh" in done.stderr and "1 job(s)" in done.stderr
    go(site)
    run.jobs.unlink()
    assert site.run("--fresh").returncode == 0
    assert set(site.statuses().values()) == {"completed"}


def test_ends_without_a_journal_are_put_aside(site: Site) -> None:
    go(site)
    assert site.run().returncode == 0
    (site.log / "journal").unlink()
    before = (site.log / "jobs.csv").read_text()
    assert site.run().returncode == 0
    folder, = (site.log / "earlier").iterdir()
    assert (folder / "jobs.csv").read_text() == before and len(site.statuses()) == 3


def test_a_line_of_an_earlier_try_is_written_anew(site: Site) -> None:
    """The death of a machine may bring it back: jobs.csv is not synced."""
    go(site)
    assert site.run().returncode == 0
    before = (site.log / "jobs.csv").read_text()
    ends = [row.split(",") for row in before.splitlines()]
    status, start = (ends[0].index(name) for name in ("status", "start"))
    ends[1][status] = "failed"
    ends[2][start] = str(float(ends[2][start]) - 1)
    (site.log / "jobs.csv").write_text("".join(",".join(row) + "\n" for row in ends))
    assert site.run().returncode == 0
    assert {row.id: (row.status, row.start) for row in site.rows().values()} == {
        int(row.split(",")[0]): ("completed", float(row.split(",")[start])) for row in before.splitlines()[1:]}


@pytest.mark.parametrize("marked", [False, True])
def test_a_directory_of_0_1_0_may_have_been_copied(tmp_path: Path, marked: bool) -> None:
    """Its journal does not say which it is. A name of its own keeps it from a copy's processes,
    unless jobs that bear the old name may be running here."""
    run = RunDirectory(tmp_path, tmp_path, tmp_path / "state")
    run.create()
    run.journal.write_text(json.dumps({"event": "run", "run": "abc", "nodes": [["n0", [1]]]}) + "\n")
    if marked:
        run.marker(0).write_text("{}\n")
    past = earlier_run.read_earlier_run(run, False, lambda kind, text: None, lambda: RunHistory().state)
    assert (past.run == "abc") is marked and past.format == 1


def test_a_job_whose_placement_is_wrong_and_whose_row_is_missing_is_damage(site: Site) -> None:
    """Nobody needs the placement of a job that is in jobs.csv."""
    go(site)
    assert site.run().returncode == 0
    journal = site.log / "journal"
    records = journals.read(journal)
    journal.unlink()
    again = journals.Journal(journal)
    for record in records:
        if record["event"] == "start" and record["id"] == 2:
            record["placement"]["procs"] = 2
        again.append(**{key: value for key, value in record.items() if key.lower() != "sum"})
    again.close()
    assert site.run().returncode == 0
    rows = (site.log / "jobs.csv").read_text().splitlines(keepends=True)
    (site.log / "jobs.csv").write_text("".join(row for row in rows if not row.startswith("2,")))
    done = site.run()
    assert done.returncode == 2 and "the start of job 2, which is not in" in done.stderr
    assert "placement: it is that of another job" in done.stderr
