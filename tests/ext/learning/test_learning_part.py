"""Live runs bring their jobs into the store, whatever becomes of the manager or of the store."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from conftest import Site, wait_until

from vrm.ext.learning.store import LearnedStore

pytestmark = pytest.mark.mpi

BUSY = "exec python3 -c 'import time\nwhile time.process_time() < 0.6: pass'\n"


@pytest.fixture
def plain(site: Site) -> Site:
    """A site with a program that sleeps and one that computes, and a store of its own."""
    site.env["XDG_DATA_HOME"] = str(site.root / "data")
    site.program("nap.x", "exec sleep 0.3\n")
    site.program("busy.x", BUSY)
    config(site)
    return site


def config(site: Site, **keys: object) -> None:
    site.config(Launcher={"Kind": "direct"}, Cores=2, Allocation={"Policy": "pack"}, **keys)


def store_file(site: Site) -> Path:
    return site.root / "data" / "vrm" / "learned.sqlite"


def known(site: Site) -> list[tuple[int, str, str]]:
    with LearnedStore(store_file(site), reading=True) as store:
        return sorted((job.job, job.app, job.status) for job in store.jobs())


def test_a_run_is_learned_with_its_cpu_time_and_neighbours(plain: Site) -> None:
    plain.lines("nap.x 1 60 0 args=-v", "busy.x 1 60 0 name=first args=7")
    done = plain.run("--once")
    assert done.returncode == 0, done.stdout
    assert "nothing is learned" not in done.stdout + done.stderr
    with LearnedStore(store_file(plain)) as store:
        nap, busy = sorted(store.jobs(), key=lambda job: job.job)
        assert {(job, other) for _, job, other, _ in store.overlaps()} == {(0, 1), (1, 0)}
    assert (nap.app, nap.input, busy.input) == ("nap.x", "-v", "7")
    assert nap.cpu is not None and nap.cpu < 0.25 and busy.cpu is not None and 0.6 <= busy.cpu < busy.seconds + 0.1
    assert busy.memory is not None and 1 << 20 < busy.memory < 1 << 28
    row = plain.rows()[1]
    assert row.cpu_time == busy.cpu


def test_the_same_run_goes_on_and_is_there_once(plain: Site) -> None:
    plain.lines("nap.x 1 60 0", "false.x 1 60 0", end=False)
    plain.program("false.x", "exit 3\n")
    plain.run("--once")
    plain.append("nap.x 1 60 0\n")
    plain.run("--once")
    assert known(plain) == [(0, "nap.x", "completed"), (1, "false.x", "failed"), (2, "nap.x", "completed")]


def test_nothing_that_jobs_csv_has_is_lost_by_kill_9(plain: Site) -> None:
    plain.program("wait.x", "until [ -e go ]; do sleep 0.02; done\n")
    plain.lines("nap.x 1 60 0", "wait.x 1 60 0", end=False)
    manager = plain.start()
    wait_until(lambda: (plain.log / "jobs.csv").exists() and plain.rows(), "the first job is in jobs.csv")
    manager.kill()
    manager.wait()
    assert not store_file(plain).exists()
    (plain.root / "go").touch()
    plain.append("end\n")
    plain.run("--once")
    assert known(plain) == [(0, "nap.x", "completed"), (1, "wait.x", "completed")]


def test_a_store_that_is_locked_or_damaged_does_not_stop_a_run(plain: Site) -> None:
    LearnedStore(store_file(plain)).close()
    other = sqlite3.connect(store_file(plain), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    plain.lines("nap.x 1 60 0", end=False)
    done = plain.run("--once")
    assert done.returncode == 0
    assert (done.stdout + done.stderr).count("nothing is learned from this run: ") == 1
    assert "another program has locked it for 2 s" in done.stdout + done.stderr
    other.close()
    imported = plain.run("learned", "import", str(plain.log))
    assert imported.stdout == f"{plain.log}: 1 job known\n" and known(plain) == [(0, "nap.x", "completed")]

    store_file(plain).write_bytes(b"no database" * 1000)
    plain.append("nap.x 1 60 0\n")
    done = plain.run("--once")
    assert done.returncode == 0 and "is damaged" in done.stdout + done.stderr
    shown = plain.run("learned", "show")
    assert shown.returncode == 2 and "is damaged" in shown.stderr and "Traceback" not in shown.stderr


def test_off_writes_nothing(plain: Site) -> None:
    config(plain, Learning={"Store": "off"})
    plain.lines("nap.x 1 60 0")
    plain.run("--once")
    assert not (plain.root / "data").exists() and plain.statuses() == {0: "completed"}
    assert "nothing is learned here" in plain.run("learned", "show").stderr


def test_the_key_names_the_file(plain: Site) -> None:
    config(plain, Learning={"Store": "here.sqlite"})
    plain.lines("nap.x 1 60 0")
    plain.run("--once")
    assert (plain.root / "here.sqlite").exists() and not (plain.root / "data").exists()


def test_commands(plain: Site) -> None:
    assert "no job is known yet" in plain.run("learned", "show").stdout
    plain.lines("nap.x 1 60 0", "nap.x 2 60 0", "busy.x 1 60 0")
    plain.run("--once")
    shown = json.loads(plain.run("learned", "show", "--json").stdout)
    assert [(each["app"], each["ranks"], each["jobs"]) for each in shown["programs"]] == [
        ("busy.x", [1], 1), ("nap.x", [1, 2], 2)]
    text = plain.run("learned", "show", "nap.x").stdout
    assert text.count("nap.x") == 2 and "busy.x" not in text
    lines = [json.loads(line) for line in plain.run("learned", "export").stdout.splitlines()]
    assert sorted((line["job"], line["app"], line["ranks"]) for line in lines) == [
        (0, "nap.x", 1), (1, "nap.x", 2), (2, "busy.x", 1)]
    plain.run("learned", "export", "-o", "all.jsonl")
    assert len((plain.root / "all.jsonl").read_text().splitlines()) == 3
    assert plain.run("learned", "forget").returncode == 2
    assert plain.run("learned", "forget", "nap.x").stdout == "2 jobs forgotten\n"
    assert known(plain) == [(2, "busy.x", "completed")]
    assert plain.run("learned", "import", str(plain.log)).returncode == 0 and len(known(plain)) == 3
    assert plain.run("learned", "forget", "--all").stdout == "3 jobs forgotten\n"


def test_what_cannot_be_imported_is_named(plain: Site) -> None:
    wrong = plain.run("learned", "import", "nowhere")
    assert wrong.returncode == 2 and "nowhere" in wrong.stderr and "name the directory (Log) of a live run" in wrong.stderr
