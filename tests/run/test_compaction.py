"""A long journal becomes short, and tells the same: to those who read all of it, to those who ask for one job, and
whenever whoever writes it dies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from collections.abc import Callable

import pytest

from vrm.model import Job, JobState
from vrm.model.job import Details
from vrm.run.journal import record_checks, codec, files, combined_records, compaction
from vrm.run.journal.history import RunHistory, replay

NODES = [["n0", [4]]]


def placement(core: int) -> dict[str, Any]:
    return {"taken": hex(1 << core), "procs": 1, "width": 1}


def write(path: Path) -> None:
    """A run of two managers: lines and commands, an array, a job that ran twice, one that is cancelled, one that runs."""
    journal = files.Journal(path)

    def job(job_id: int, app: str = "true", **more: Any) -> None:
        journal.append("job", **codec.job_record(Job(job_id, app, 1, 30.0 + job_id % 2, 1.0 + job_id)), **more)

    def life(job_id: int, how: str = "completed", **more: Any) -> None:
        start(job_id)
        journal.append("end", id=job_id, time=20.5 + job_id, state=how, reason="", exit_code=0, ran=[1.0, 2.0], **more)

    def start(job_id: int) -> None:
        journal.append("start", id=job_id, time=10.5 + job_id, backfilled=job_id % 3 == 0, placement=placement(job_id % 4))

    journal.append("run", format=3, run="r", nodes=NODES, time=0.0)
    for job_id in range(6):
        job(job_id, line=f"{job_id + 10:x}", position=[1, 7, 10 * job_id, ""])
    journal.append("input", position=[1, 7, 60, ""], ended=False)
    for job_id in (1, 0, 2):
        life(job_id)
    job(6, command="a command")
    job(7, "other", command="another")
    journal.append("job", **codec.job_record(Job(8, "many", 1, 5.0, 1.0), Details(name="x"), [0, 1, 2]))
    life(9, "failed", slower=0.5)
    start(4)
    start(5)
    journal.append("run", format=3, run="r", nodes=NODES, time=50.0)
    journal.append("end", id=5, time=51.0, state="completed", reason="", exit_code=0)  # it began before
    life(6)
    journal.append("again", id=6, time=52.0, reason="asked for", retry=False)
    life(6)
    journal.append("end", id=7, time=53.0, state="cancelled", reason="cancelled by its user", exit_code=None, cause="cancel")
    journal.append("job", **codec.job_record(Job(11, "last", 1, 5.0, 1.0), Details(after=codec.AFTER.of_record("8"))))
    life(10)
    job(12)
    journal.append("start", id=12, time=54.0, backfilled=False, placement={"taken": "0x3", "procs": 2, "width": 1},
                   **{"as": {"procs": 2, "walltime": 20.0, "expected": 20.0}})
    journal.append("end", id=12, time=55.0, state="completed", reason="", exit_code=0)
    journal.append("finished", time=60.0)
    journal.close()


def told(past: RunHistory) -> dict[str, Any]:
    """All that a manager takes up of a past."""
    entries = past.state.book.entries
    return {"jobs": {job_id: (each.job, each.details, each.state, each.begun, each.cause) for job_id, each in entries.items()},
            "ended": {job_id: dict(each) for job_id, each in past.ended.items()},
            "started": {job_id: dict(each) for job_id, each in past.started.items()},
            "under": {job_id: each["time"] for job_id, each in past.run_of.items()},
            "lines": (list(past.lines.digests), [list(past.lines.jobs(at)) for at in range(len(past.lines))]),
            "position": past.position, "of file": past.of_file, "commands": past.commands, "by command": past.by_command,
            "counts": past.state.counts, "next": past.state.next_id, "names": past.state.names, "waits": sorted(past.waits),
            "again": past.again, "finished": past.finished, "running": [job.id for job, _ in past.running]}


def read_earlier_run(path: Path) -> RunHistory:
    reader = files.JournalReader(path)
    past = replay(reader, path)
    past.mark = reader.mark
    return past


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "journal")
    return tmp_path / "journal"


def test_a_folded_journal_tells_the_same(path: Path) -> None:
    before = read_earlier_run(path)
    alone = [files.alone(path, job_id) for job_id in range(14)]
    ends = {each["id"]: each["state"] for each in files.read(path) if each["event"] == "end"}
    compaction.compact_journal(path, before)
    events = [each["event"] for each in files.read(path)]
    assert events == ["run", "jobs", "input", "jobs", "job", "start", "start", "lives", "run", "end", "start", "end", "again",
                      "start", "end", "jobs", "start", "end", "finished", "lives"]
    after = read_earlier_run(path)
    assert told(after) == told(before) and after.format == record_checks.NEWEST
    assert before.mark == after.mark and before.mark.offset == path.stat().st_size
    assert [files.alone(path, job_id) for job_id in range(14)] == alone
    assert files.jobs_of_command(path, "another") == [7]
    assert {each["id"]: each["state"] for each in combined_records.unfolded(files.read(path)) if each["event"] == "end"} == ends
    journal = files.Journal(path, before.mark)  # and it is gone on with
    journal.append("run", format=4, run="r", nodes=NODES, time=70.0)
    journal.close()
    again = read_earlier_run(path)
    assert again.runs[-1]["time"] == 70.0 and told(again)["ended"] == told(before)["ended"]
    compaction.compact_journal(path, again)
    assert told(read_earlier_run(path)) == told(again), "what was folded before is folded again"


def test_a_journal_is_folded_where_that_makes_it_much_shorter(path: Path, monkeypatch) -> None:
    assert not compaction.worth(read_earlier_run(path))  # it is short
    monkeypatch.setattr(compaction, "FEWEST", 10)
    past = read_earlier_run(path)
    assert compaction.worth(past)
    compaction.compact_journal(path, past)
    assert not compaction.worth(read_earlier_run(path)), "it was folded"
    old = path.with_name("old")
    old.write_bytes(b"".join(b'{"event":"run","run":"r"}\n' for _ in range(20)))  # of vrm 0.1.0
    assert not compaction.worth(read_earlier_run(old))


class Died(BaseException):
    """Whoever writes is killed."""


def test_who_dies_while_it_is_folded_loses_nothing(path: Path, tmp_path: Path, monkeypatch) -> None:
    """Killed before and after each call that changes a file: the journal tells the same, and is folded by the next."""
    original, wanted = path.read_bytes(), told(read_earlier_run(path))
    calls = 0
    for number in range(1000):
        path.write_bytes(original)
        left = number

        def dying(call: Callable[..., Any]) -> Callable[..., Any]:
            def instead(*arguments: Any, **more: Any) -> Any:
                nonlocal left
                left -= 1
                if left == -1:
                    raise Died
                found = call(*arguments, **more)
                left -= 1
                if left == -1:
                    raise Died
                return found
            return instead

        past = read_earlier_run(path)
        with monkeypatch.context() as patch:
            for name in ("pwrite", "fdatasync", "fsync", "ftruncate", "replace", "unlink"):
                patch.setattr(os, name, dying(getattr(os, name)))
            try:
                compaction.compact_journal(path, past)
            except Died:
                calls += 1
            else:
                break
        found = read_earlier_run(path)
        assert told(found) == wanted
        compaction.compact_journal(path, found)
        assert told(read_earlier_run(path)) == wanted and path.stat().st_size < len(original)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["journal"]
    assert calls > 10


def test_a_full_disk_leaves_the_journal_as_it_is(path: Path, tmp_path: Path, monkeypatch) -> None:
    original, past = path.read_bytes(), read_earlier_run(path)
    mark = past.mark

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError):
            compaction.compact_journal(path, past)
    assert path.read_bytes() == original and past.mark == mark
    assert [each.name for each in tmp_path.iterdir()] == ["journal"]


@pytest.mark.parametrize("wrong, says", [
    ({"ids": "0-"}, "ids is wrong"), ({"ids": "1,0"}, "ids is wrong"), ({"ids": "0-2"}, "of is not of 3 jobs"),
    ({"submits": [1.0]}, "submits is not of 2 jobs"), ({"of": [0, 1]}, "of is wrong"), ({"made": [{"app": 3}]}, "job: "),
    ({"lines": ["a"]}, "lines is not of 2 jobs")])
def test_folded_jobs_that_make_no_sense_are_damage(wrong: dict[str, Any], says: str) -> None:
    made = {key: value for key, value in codec.job_record(Job(0, "a", 1, 5.0)).items() if key not in ("id", "submit")}
    good = {"event": "jobs", "ids": "0-1", "made": [made], "of": [0, 0], "submits": [1.0, 2.0], "time": 2.0}
    run = {"event": "run", "run": "r", "format": 4, "nodes": NODES}
    assert set(replay([run, good]).jobs) == {0, 1}
    with pytest.raises(record_checks.JournalError, match=says):
        replay([run, {**good, **wrong}])
    with pytest.raises(record_checks.JournalError, match="job 0 exists already"):
        replay([run, good, good])


@pytest.mark.parametrize("wrong, says", [
    ({"ids": [0, 0]}, "ids is wrong"), ({"ids": [0, 9]}, "lives of job 9"), ({"start": [1.0]}, "start is not of 2 jobs"),
    ({"on": [None, 0]}, "on is wrong"), ({"on": [5, 0]}, "on is wrong"), ({"how": [0, 3]}, "how is wrong")])
def test_folded_lives_that_make_no_sense_are_damage(wrong: dict[str, Any], says: str) -> None:
    jobs = [{"event": "job", **codec.job_record(Job(job_id, "a", 1, 5.0))} for job_id in range(2)]
    good = {"event": "lives", "ids": [1, 0], "start": [1.0, 2.0], "end": [3.0, 4.0], "on": [0, 0], "places": [placement(0)],
            "backfilled": [1], "how": [0, 0], "ways": [{"state": "completed", "reason": "", "exit_code": 0}], "time": 4.0}
    run = {"event": "run", "run": "r", "format": 4, "nodes": NODES}
    past = replay([run, *jobs, good])
    assert [past.state.entry(job_id).state for job_id in (0, 1)] == [JobState.COMPLETED] * 2
    assert past.started[0]["backfilled"] and not past.started[1]["backfilled"]
    with pytest.raises(record_checks.JournalError, match=says):
        replay([run, *jobs, {**good, **wrong}])
    with pytest.raises(record_checks.JournalError, match="lives of job 1"):
        replay([run, *jobs, good, good])
