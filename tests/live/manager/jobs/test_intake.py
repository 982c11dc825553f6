"""Lines of the queue become jobs. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from support.executor import Managed, root, states  # noqa: F401
from vrm.live.manager.liverun import RETRY
from vrm.run.journal import files as journal


def test_lines_of_the_queue_file_become_jobs_and_a_wrong_one_is_counted(root: Path) -> None:
    managed = Managed(root)
    intake = managed.manager.intake
    managed.queue.write_text("ok.x 1 9 0\nok.x many 9 0\nok.x 8 9 0\n")
    managed.turn(1.0)
    assert not managed.found, "files are looked at when it is time"
    managed.turn(1.0, files=True)
    assert states(managed) == ["running", "refused", "queued"] and intake.bad_lines == 1
    managed.queue.open("a").write("end\n")
    assert not intake.over(1.0)
    managed.turn(2.0, files=True)
    assert intake.over(2.0) and managed.live.synced()
    assert [record["ended"] for record in journal.read(managed.run.journal) if record["event"] == "input"] == [True]
    managed.close()


def test_a_script_of_the_queue_file_waits_for_a_disk_that_does_not_take_it_now(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = Managed(root)
    managed.queue.write_text("ok.x 1 9 0 script=1\nok.x 1 9 0\n")
    with monkeypatch.context() as full:
        full.setattr(managed.run.__class__, "keep_script", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space", "it")))
        managed.turn(1.0, files=True)
        assert states(managed) == [] and "no space" in managed.said[-1]
    managed.turn(1.0 + RETRY, files=True)
    assert states(managed) == ["running", "running"]
    managed.close()


def test_the_next_manager_reads_on_where_this_one_has_read_to(root: Path) -> None:
    managed = Managed(root)
    managed.queue.write_text("ok.x 1 9 0\nok.x 1 9 0\n")
    managed.turn(1.0, files=True)
    assert len(states(managed)) == 2
    managed.close()
    again = Managed(root, now=2.0)
    again.queue.open("a").write("ok.x 1 9 0\n")
    again.turn(3.0, files=True)
    assert len(states(again)) == 3
    again.close()
