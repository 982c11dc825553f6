"""The journal is folded while a manager runs: with real managers, and with an executor that a test plays
(`support.executor`)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, wait_until
from support.executor import Managed, root  # noqa: F401
from vrm.ext.follow.commands.wait import EndWatch
from vrm.live.manager.records.journal_folding import LATER, JournalFolding
from vrm.run.journal import compaction, files
from vrm.run.journal.history import replay
from vrm.run.rundir import RunDirectory

FEW = {"VRM_FOLD_AFTER": "30"}


def events(site: Site) -> list[str]:
    return [record["event"] for record in files.read(site.log / "journal")]


def finished(folding: JournalFolding) -> None:
    """Wait until the copy has ended, and finish the fold."""
    wait_until(lambda: not folding.busy(), "the copy ends")


def test_a_run_whose_journal_is_folded_gives_what_a_run_without_gives(site: Site) -> None:
    found = []
    for name, env in (("plain", {}), ("short", FEW)):
        here = Site(site.root / name)
        here.config(Launcher={"Kind": "direct"}, Cores=2, Allocation={"Policy": "pack"})
        here.program("job.x", "exit $1")
        here.lines(*(f"job.x 1 9 0 args={number % 3 // 2} retries={number % 2}" for number in range(120)))
        here.run(**env)
        entries = replay(files.read(here.log / "journal")).state.book.entries
        found.append(([(row.id, row.status, row.exit_code) for row in sorted(here.rows().values(), key=lambda row: row.id)],
                      {job_id: (each.job.but(submit=0.0), each.state, each.tries) for job_id, each in entries.items()}))
        assert ("lives" in events(here)) == bool(env) and not (here.log / "journal.new").exists()
        assert "nothing to do" in here.run(**env).stdout
        here.close()
    assert found[0] == found[1]


def test_a_client_that_waits_reads_each_end_once(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"}, Cores=2, Allocation={"Policy": "pack"})
    site.program("job.x", "true")
    site.lines(*["job.x 1 9 0"] * 100)
    manager = site.start(**FEW)
    ends, apps, watch = [], [], EndWatch(RunDirectory(site.log, site.log, site.log / "state.json"))
    wait_until(lambda: (site.log / "journal").exists(), "the journal is there")
    numbers = set()

    def all_ended() -> bool:
        watch.look()
        ends.append(len(watch.ended))
        apps.append(len(watch.apps))
        numbers.add((site.log / "journal").stat().st_ino)
        return ends[-1] == 100

    wait_until(all_ended, "all jobs have ended")
    assert ends == sorted(ends) and apps == sorted(apps) and len(numbers) > 1
    manager.terminate()
    manager.wait()


def test_the_long_journal_of_an_earlier_manager_is_folded_even_if_there_is_nothing_to_do(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"}, Cores=2, Allocation={"Policy": "pack"})
    site.program("job.x", "true")
    site.lines(*["job.x 1 9 0"] * 20)
    site.run()
    before = events(site)
    assert len(before) > 60 and "lives" not in before
    (site.log / "journal.new").write_text("left by a manager that was killed")
    assert "nothing to do" in site.run(**FEW).stdout
    assert "lives" in events(site) and len(events(site)) < 15
    assert not (site.log / "journal.new").exists()
    assert len(site.rows()) == 20


def lengthened(managed: Managed, more: int = 40) -> JournalFolding:
    """Add records to the journal, so that it is time to fold it."""
    for _number in range(more):
        managed.live.journal.append("input", position=None, ended=False)
    folding = managed.live.part(JournalFolding)
    folding._fewest = 30
    return folding


def test_a_fold_that_fails_is_reported_once_and_tried_again_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = Managed(root, "ok.x 1 9 0")
    managed.start(1.0)
    folding, journal = lengthened(managed), managed.run.journal

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    data = None
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "fold", full)
        for now in (1.0, 2.0, 3.0 + LATER):
            managed.live.now = now
            folding.tidy(now)
            finished(folding)
            data = data or journal.read_bytes()
            assert journal.read_bytes() == data and not journal.with_name("journal.new").exists()
    assert [text for text in managed.said if "cannot shorten" in text] == [
        f"cannot shorten {journal}: No space left on device; the run continues, and it is tried again"]
    managed.live.now = 9.0 + 3 * LATER
    folding.tidy(managed.live.now)
    managed.live.journal.append("input", position=None, ended=True)
    managed.live.journal.sync()
    finished(folding)
    past = replay(files.read(journal))
    assert journal.stat().st_ino != 0 and past.input_ended and [job.id for job, _ in past.running] == [0]
    managed.close()


def with_a_copy_that_works(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Managed, JournalFolding, int]:
    """A manager, its part that folds, and the process number of a copy that does not end by itself."""
    managed = Managed(root, "ok.x 1 9 0")
    managed.start(1.0)
    folding = lengthened(managed)
    monkeypatch.setattr(compaction, "fold", lambda *_: signal.pause())
    folding.tidy(1.0)
    pid, = folding._copies._working
    return managed, folding, pid


def test_a_copy_that_is_killed_leaves_the_journal(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed, folding, pid = with_a_copy_that_works(root, monkeypatch)
    assert folding.busy()
    os.kill(pid, 9)
    finished(folding)
    assert any("signal 9" in text for text in managed.said) and replay(files.read(managed.run.journal)).number > 40
    managed.close()


def test_a_manager_that_is_stopped_does_not_wait_for_a_copy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed, folding, pid = with_a_copy_that_works(root, monkeypatch)
    managed.live.phase = "stopping"
    assert not folding.busy()
    folding.leave()
    assert not managed.run.journal.with_name("journal.new").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not any("cannot shorten" in text for text in managed.said)
    managed.close()


def test_the_work_is_proportional_to_the_records(root: Path) -> None:
    """What is folded is not read again before as much has been added."""
    managed = Managed(root, "ok.x 1 9 0")
    managed.start(1.0)
    folding, folds = lengthened(managed, 0), []
    for _number in range(2000):
        managed.live.journal.append("promise", time=0.0, starts=[])
        managed.live.journal.sync()
        before = folding._since
        folding.tidy(1.0)
        finished(folding)
        if folding._since != before:
            folds.append(folding._since.number)
    assert 4 <= len(folds) <= 8
    managed.close()


def test_a_journal_of_the_oldest_format_is_not_folded(root: Path) -> None:
    managed = Managed(root, "ok.x 1 9 0")
    folding = lengthened(managed)
    past = replay(files.read(managed.run.journal))
    past.format = 1
    folding.recall(past)
    folding.tidy(1.0)
    assert not folding.busy() and folding._since == files.START
    managed.close()


def test_what_earlier_managers_have_folded_is_not_folded_again(root: Path) -> None:
    managed = Managed(root, "ok.x 1 9 0")
    folding = lengthened(managed)
    past = replay(files.read(managed.run.journal))
    past.mark, past.number, past.folded = files.JournalPosition(500, 70_000, 0, True, 0), 500, 480
    folding.recall(past)
    assert folding._since == past.mark
    past.folded = 460
    folding._since = files.START
    folding.recall(past)
    assert folding._since == files.START
    managed.close()
