"""When records of ended jobs are written. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

import errno
import math
from pathlib import Path
import pytest
from support.executor import Managed, asked, root  # noqa: F401
from vrm.ext.slurm.calls.server import SocketServer
from vrm.live.manager.liverun import RETRY
from vrm.live.manager.records import records
from vrm.live.manager.records.recording import RecordWriting
from vrm.results.jobs import read_jobs


def test_ends_are_recorded_when_no_call_is_likely_to_come(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = Managed(root, "ok.x 1 9 0")
    recording = managed.live.part(RecordWriting)
    managed.start(1.0)
    managed.end(0, 2.0)
    managed.live.part(SocketServer).call_expected_until = 3.0
    recording.tidy(2.0)
    assert recording.busy() and recording.deadline(2.0) == 3.0, "its sync serves the end, too"
    managed.live.now = 3.0
    write, full = managed.live.records.write_next, [True]

    def written() -> None:
        if full:
            raise OSError(full.pop() * errno.ENOSPC, "no space")
        write()

    monkeypatch.setattr(managed.live.records, "write_next", written)
    recording.tidy(3.0)
    assert recording.busy() and "cannot write" in managed.said[-1]
    recording.tidy(3.0)
    assert recording.busy(), "the disk has some time"
    managed.live.now = 3.0 + RETRY
    recording.tidy(3.0 + RETRY)
    assert not recording.busy() and recording.deadline(5.0) == math.inf
    assert "that works again; continuing" in managed.said
    assert [row.status for row in read_jobs(managed.run.jobs)] == ["completed"]
    managed.close()


def test_a_job_that_waits_again_has_no_line_though_the_disk_was_full_when_it_was_to_go(root: Path, monkeypatch: pytest.MonkeyPatch
                                                                                       ) -> None:
    managed = Managed(root, "ok.x 1 9 0", "ok.x 1 9 0")
    managed.start(1.0)
    managed.end(0, 2.0)
    managed.turn(2.0)
    assert [row.id for row in read_jobs(managed.run.jobs)] == [0]
    with monkeypatch.context() as full:
        full.setattr(records, "write_atomically", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space")))
        assert asked(managed, 3.0, do="requeue", ids=[0])["ok"]
    assert [row.id for row in read_jobs(managed.run.jobs)] == [0]
    managed.end(1, 4.0)
    managed.turn(4.0)
    assert [row.id for row in read_jobs(managed.run.jobs)] == [1]
    managed.close()
