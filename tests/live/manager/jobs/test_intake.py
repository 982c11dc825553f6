"""Lines of the queue become jobs. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
from support.executor import Managed, root, states  # noqa: F401
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
