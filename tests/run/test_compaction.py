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
from vrm.run.journal import record_checks, codec, files, combined_records, compaction, single_job
from vrm.run.journal.follower import JournalFollower
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


def read_journal(path: Path) -> RunHistory:
    reader = files.JournalReader(path)
    past = replay(reader, path)
    past.mark = reader.mark
    return past


def fold(journal: files.Journal, path: Path, since: files.JournalPosition = files.START, meanwhile: int = 0) -> files.JournalPosition:
    """Fold the records after `since` as a manager does, whose run has so many managers more meanwhile; return the end of the
    folded part."""
    until, entries = journal.mark, read_journal(path).state.book.entries
    new = path.with_name("journal.new")
    new.unlink(missing_ok=True)
    file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        compaction.fold(path, since, until, entries, file)
        for number in range(meanwhile):
            run_again(journal, 70.0 + number)
        end = compaction.folded_end(file)
        journal.continue_in(new, file, end, until)
    except BaseException:
        os.close(file)
        raise
    return end


def run_again(journal: files.Journal, time: float) -> None:
    journal.append("run", format=4, run="r", nodes=NODES, time=time)
    if time % 2:
        journal.sync()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "journal")
    return tmp_path / "journal"


def test_a_folded_journal_tells_the_same(path: Path) -> None:
    before = read_journal(path)
    alone = [single_job.alone(path, job_id) for job_id in range(14)]
    ends = {each["id"]: each["state"] for each in files.read(path) if each["event"] == "end"}
    journal = files.Journal(path, before.mark)
    fold(journal, path)
    events = [each["event"] for each in files.read(path)]
    assert events == ["run", "jobs", "input", "jobs", "job", "start", "start", "lives", "run", "end", "start", "end", "again",
                      "start", "end", "jobs", "start", "end", "finished", "lives"]
    after = read_journal(path)
    assert told(after) == told(before) and after.format == record_checks.NEWEST
    assert [single_job.alone(path, job_id) for job_id in range(14)] == alone
    assert files.jobs_of_command(path, "another") == [7]
    assert {each["id"]: each["state"] for each in combined_records.unfolded(files.read(path)) if each["event"] == "end"} == ends
    run_again(journal, 70.0)  # and it is gone on with
    journal.close()
    again = read_journal(path)
    assert again.mark.offset == path.stat().st_size and again.mark[:3] == journal.mark[:3]
    assert again.runs[-1]["time"] == 70.0 and told(again)["ended"] == told(before)["ended"]
    assert (before.folded, again.folded) == (0, 5)
    fold(files.Journal(path, again.mark), path)
    assert told(read_journal(path)) == told(again), "what was folded before is folded again"


@pytest.mark.parametrize("meanwhile", [0, 1, 2, 5])
def test_a_journal_that_is_folded_while_it_is_written_tells_the_same(tmp_path: Path, path: Path, meanwhile: int) -> None:
    """A copy of all records, folded after each of some, and records that are added while it is folded."""
    lines = path.read_bytes().splitlines()
    for step in (1, 2, 5, 11):
        plain, short = tmp_path / f"plain{step}" / "journal", tmp_path / f"short{step}" / "journal"
        journals = []
        for each in (plain, short):
            each.parent.mkdir()
            journals.append(files.Journal(each))
        end = files.START
        for number, line in enumerate(lines):
            for journal in journals:
                journal.append(**compaction._read(line))
                journal.sync()
            if number % step == 0:
                end = fold(journals[1], short, end, meanwhile)
                for more in range(meanwhile):
                    run_again(journals[0], 70.0 + more)
        for journal in journals:
            journal.close()
        assert told(read_journal(short)) == told(read_journal(plain))


class Died(BaseException):
    """Whoever writes is killed."""


def test_who_dies_while_it_is_folded_loses_nothing(path: Path, tmp_path: Path, monkeypatch) -> None:
    """Killed before and after each call that changes a file: the journal tells the same, and is folded by the next."""
    original, wanted = path.read_bytes(), told(read_journal(path))
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

        journal = files.Journal(path)
        with monkeypatch.context() as patch:
            for name in ("pwrite", "fdatasync", "fsync", "ftruncate", "replace", "unlink", "close"):
                patch.setattr(os, name, dying(getattr(os, name)))
            try:
                fold(journal, path)
            except Died:
                calls += 1
            else:
                break
        assert told(read_journal(path)) == wanted
        journal = files.Journal(path)
        fold(journal, path)
        journal.close()
        assert told(read_journal(path)) == wanted and path.stat().st_size < len(original)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["journal"]
    assert calls > 10


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fdatasync", "replace"])
def test_a_full_disk_leaves_the_journal_as_it_is(path: Path, monkeypatch, call: str) -> None:
    original, journal = path.read_bytes(), files.Journal(path)
    wanted, mark = told(read_journal(path)), journal.mark

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space"):
            fold(journal, path, meanwhile=1)
    if call in ("replace", "ftruncate"):  # the others belong to the sync of the record that was added
        journal.sync()
    assert path.read_bytes().startswith(original) and journal.mark.offset >= mark.offset
    journal.close()
    after = told(read_journal(path))
    assert {**after, "finished": True} == wanted and len(read_journal(path).runs) == 3


def test_a_rename_that_a_server_does_and_reports_as_failed_has_happened(path: Path, monkeypatch) -> None:
    replace, journal = os.replace, files.Journal(path)

    def done(old: Any, new: Any) -> None:
        replace(old, new)
        raise OSError(2, "No such file or directory")

    monkeypatch.setattr(os, "replace", done)
    fold(journal, path)
    run_again(journal, 71.0)
    journal.close()
    assert read_journal(path).runs[-1]["time"] == 71.0, "without that the record is in a file without a name"


def test_nothing_is_on_disk_before_the_name_of_the_new_file_is(path: Path, monkeypatch) -> None:
    """The directory cannot be synced: after a crash the old file may be there, so that no sync may succeed."""
    journal, synced = files.Journal(path), files.sync_directory

    def failing(directory: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "sync_directory", failing)
    fold(journal, path)
    journal.append("finished", time=80.0)
    with pytest.raises(OSError):
        journal.sync()
    assert journal.pending
    journal.show()
    assert read_journal(path).number == 20
    monkeypatch.setattr(files, "sync_directory", synced)
    journal.sync()
    assert read_journal(path).number == 21


def test_a_damaged_journal_is_not_folded(path: Path) -> None:
    """Folding would give what is damaged right checksums."""
    journal = files.Journal(path)
    data = path.read_bytes()
    for wrong in (data.replace(b'"time":10.5', b'"time":10.6'), data[:data.rfind(b"{")]):
        assert wrong != data
        path.write_bytes(wrong)
        file = os.open(path.with_name("journal.new"), os.O_RDWR | os.O_CREAT)
        with pytest.raises(OSError, match="damaged"):
            compaction.fold(path, files.START, journal.mark, {}, file)
        with pytest.raises(OSError, match="damaged"):
            journal.continue_in(path.with_name("journal.new"), file, files.START, files.START)
        assert path.read_bytes() == wrong
        os.close(file)


def test_who_follows_a_journal_reads_each_end_of_the_new_file_once(path: Path) -> None:
    """Also if the new file has the number of an earlier one, which is the rule on ext4."""
    journal, follower = files.Journal(path), JournalFollower(path)
    end, ends, numbers = files.START, [], set[int]()
    for number in range(8):
        another, records = follower.read_new()
        assert not follower.trouble
        ends = [*(() if another else ends), *(each["id"] for each in combined_records.unfolded(records) if each["event"] == "end")]
        assert sorted(ends) == [0, 1, 2, 5, 6, 6, 7, 9, 10, 12]
        numbers.add(path.stat().st_ino)
        assert another == (number % 2 == 0)
        if number % 2:
            end = fold(journal, path, end)
        run_again(journal, 71.0 + 2 * number)


def test_who_follows_a_file_with_the_number_of_an_earlier_one_reads_it_from_the_start(path: Path) -> None:
    follower, data = JournalFollower(path), path.read_bytes()
    assert follower.read_new()[0]
    journal = files.Journal(path)
    fold(journal, path)
    for number in range(40):
        run_again(journal, 71.0 + number)
    journal.close()
    other = path.read_bytes()
    assert len(other) > len(data)
    path.write_bytes(data)
    follower._file = (path.stat().st_dev, path.stat().st_ino)
    assert follower.read_new() == (False, [])
    path.write_bytes(other)  # the same number
    another, records = follower.read_new()
    assert another and len(records) == follower.number == 60


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
