"""Commands that are about jobs. With a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

from pathlib import Path
from support.executor import Managed, asked, root, states  # noqa: F401
from vrm.results.jobs import read_jobs


def test_commands_act_on_jobs_one_by_one_and_in_ranges(root: Path) -> None:
    managed = Managed(root, *["ok.x 8 9 0"] * 4)
    managed.start(1.0)
    assert asked(managed, 2.0, do="hold", ids=["1-3"])["text"] == "jobs 1-3 (ok.x) are held"
    assert asked(managed, 2.0, do="release", id=2)["text"] == "job 2 (ok.x) is released"
    wrong = asked(managed, 2.0, do="hold", ids=[0, 9])
    assert not wrong["ok"] and len(wrong["text"].splitlines()) == 2
    assert asked(managed, 3.0, do="cancel", ids=["0-1", 3])["text"] == (
        "jobs 1,3 (ok.x) will not run\njob 0 (ok.x) is being ended")
    managed.end(0, 4.0, code=1)
    assert states(managed) == ["cancelled", "cancelled", "queued", "cancelled"]
    managed.turn(5.0)  # it is recorded, and job 2 runs
    assert asked(managed, 6.0, do="requeue", ids=[0, 1])["text"] == "jobs 0-1 (ok.x) wait again"
    assert [row.id for row in read_jobs(managed.run.jobs)] == [3]
    assert asked(managed, 7.0, do="submit", line="ok.x 1 9 0")["id"] == 4
    assert "1 job(s) may finish, 3 waiting" in asked(managed, 7.0, do="stop")["text"]
    assert "is stopping" in asked(managed, 7.0, do="submit", line="ok.x 1 9 0")["text"]
    managed.close()
