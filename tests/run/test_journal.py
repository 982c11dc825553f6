"""The journal: what is written is read back, whatever a crash leaves of the last line; and the
past that is replayed equals the run that wrote it.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from random import Random
from re import Pattern
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from vrm.model import Cluster, Dependency, Job, Node
from vrm.model.forms.fields import made
from vrm.model.job import ANY, Details, PLAIN, Program
from vrm.model.forms.placement_formats import to_record
from vrm.model.queues import NO_QUEUES
from vrm.model.rules import Rules
from vrm.results.jobs import fields_of
from vrm.run.journal import codec
from vrm.run.journal import files as journals
from vrm.run.journal.follower import JournalFollower
from vrm.run.journal import record_checks as journal_check
from vrm.run.journal.history import EVENTS, RunHistory, replay
from vrm.scheduling import make_policy

JOB = Job(3, "ft.B.x", 8, 60.0, 12.5, True)
RUN = {"event": "run", "run": "r", "nodes": [["n0", [4]]]}


def start(job_id: int, procs: int = 1) -> dict[str, Any]:
    """The start of a job on the first cores of the one node."""
    return {"event": "start", "id": job_id, "time": 2.0, "backfilled": False,
            "placement": {"taken": hex((1 << procs) - 1), "procs": procs, "width": 1}}


def end(job_id: int, state: str) -> dict[str, Any]:
    return {"event": "end", "id": job_id, "time": 3.0, "state": state, "reason": "",
            "exit_code": None}


def test_records_survive_a_reopening(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = journals.Journal(path)
    journal.append("run", run="r", time=1.0)
    journal.append("job", **codec.job_record(JOB))
    assert journals.read(path) == []  # nothing before `sync`
    journal.close()
    again = journals.Journal(path)
    again.append("finished", time=2.0)
    again.close()
    assert [record["event"] for record in journals.read(path)] == ["run", "job", "finished"]
    assert path.stat().st_mode & 0o077 == 0


@given(cut=st.integers(min_value=0, max_value=400))
@settings(max_examples=60, deadline=None)
def test_a_torn_line_is_cut_off_and_swallows_nothing(cut: int, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("torn") / "journal"
    journal = journals.Journal(path)
    for number in range(5):
        journal.append("start", id=number)
    journal.close()
    data = path.read_bytes()
    cut = min(cut, len(data))
    path.write_bytes(data[:cut])
    whole = data[:cut].count(b"\n")
    assert [r["id"] for r in journals.read(path)] == list(range(whole))
    journal = journals.Journal(path)
    journal.append("start", id=99)
    journal.close()
    assert [r["id"] for r in journals.read(path)] == [*range(whole), 99]


def test_an_array_whose_jobs_wait_for_each_other_is_there_or_not_at_all(tmp_path: Path) -> None:
    """The journal cut at every byte of the record, and continued: nobody finds a part of the array."""
    path, cut_off = tmp_path / "journal", tmp_path / "cut"
    own = [(), (Dependency.on(3, ANY),), (Dependency.on(4, ANY), Dependency.on(1))]
    journal = journals.Journal(path)
    journal.append("run", run="r")
    for job_id in range(3):
        journal.append("job", **codec.job_record(JOB.but(id=job_id)))
    journal.sync()
    begin = len(path.read_bytes().rstrip(b"\0"))
    journal.append("job", **codec.job_record(JOB, Details(after=(Dependency.on(0),)), [0, 1, 2], own), command="call")
    journal.close()
    data = path.read_bytes()
    for cut in range(begin, len(data) + 1):
        cut_off.write_bytes(data[:cut])
        whole = cut == len(data)
        again = journals.Journal(cut_off)
        again.append("finished")
        again.close()
        assert journals.jobs_of_command(cut_off, "call") == ([3, 4, 5] if whole else [])
        past = replay(journals.read(cut_off))
        assert past.finished and past.state.next_id == (6 if whole else 3)
    assert [past.details[job_id].after for job_id in (3, 4, 5)] == [
        (Dependency.on(0), *each) for each in own]
    assert [past.details[job_id].index for job_id in (3, 4, 5)] == [0, 1, 2]
    wrong = {"event": "job", **codec.job_record(JOB, Details(), [0, 1, 2], own[:2])}
    with pytest.raises(journals.JournalError, match="journal:2: job 3: own is not of 3 jobs"):
        replay([RUN, wrong])


def test_the_jobs_of_a_command_are_on_disk_when_they_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager may have ended between their record and its sync, and the machine may die next."""
    path, synced = tmp_path / "journal", list[tuple[int, int]]()
    journal = journals.Journal(path)
    journal.append("run", run="r")
    journal.sync()
    journal.append("job", **codec.job_record(JOB.but(id=0)), command="call")
    journal.show()
    sync = os.fsync

    def noted(number: int) -> None:
        sync(number)
        synced.append((os.fstat(number).st_ino, os.fstat(number).st_size))
    monkeypatch.setattr(os, "fsync", noted)
    assert journals.jobs_of_command(path, "another") == [] and not synced
    assert journals.jobs_of_command(path, "call") == [0] and synced == [(path.stat().st_ino, path.stat().st_size)]
    journal.close()


def test_a_full_disk_keeps_what_is_pending(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "journal"
    journal = journals.Journal(path)
    journal.append("run", run="r")
    journal.sync()
    write = os.pwrite

    def no_space(fd: int, data: bytes, at: int) -> int:
        write(fd, data[:3], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    journal.append("start", id=1)
    monkeypatch.setattr(os, "pwrite", no_space)
    with pytest.raises(OSError):
        journal.sync()
    monkeypatch.setattr(os, "pwrite", write)
    assert [r["event"] for r in journals.read(path)] == ["run"]
    journal.close()
    assert [r["event"] for r in journals.read(path)] == ["run", "start"]


def test_what_was_begun_is_on_disk_after_the_next_sync(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "journal"
    journal = journals.Journal(path)
    journal.begin()  # of nothing
    journal.append("run", run="r")
    written, synced, write, sync = [], [], os.pwrite, os.fdatasync
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: written.append(data) or write(fd, data, at))
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(path.read_bytes().count(b"\n")) or sync(fd))
    journal.begin()
    assert [r["event"] for r in journals.read(path)] == ["run"] and journal.pending and not synced
    journal.append("start", id=1)
    journal.show()
    journal.sync()
    assert synced == [2] and not journal.pending
    assert sum(data.count(b'"event":"run"') for data in written) == 1  # not again: the disk may be at it
    journal.append("start", id=2)
    journal.begin()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: os.close(-1))
        with pytest.raises(OSError):
            journal.sync()
    assert journal.pending and [r["event"] for r in journals.read(path)] == ["run", "start"]
    journal.close()
    assert [r.get("id") for r in journals.read(path)] == [None, 1, 2]


def test_a_crash_leaves_records_and_zeros_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = journals.Journal(path)
    for number in range(3000):  # several times the space kept ahead
        journal.append("start", id=number)
        if number % 7 == 0:
            journal.sync()
    journal.sync()
    assert path.read_bytes().endswith(b"\0")
    assert [r["id"] for r in journals.read(path)] == list(range(3000))
    again = journals.Journal(path)  # the first was never closed
    again.append("start", id=3000)
    again.close()
    assert [r["id"] for r in journals.read(path)] == list(range(3001))
    assert b"\0" not in path.read_bytes()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"event":"run"}\nrubbish\n')
    with pytest.raises(ValueError, match=r"journal:2: not a journal record"):
        journals.read(path)


def test_the_past_of_a_run() -> None:
    jobs = [Job(i, "a.x", 1, 10.0, float(i)) for i in range(5)]
    records = [RUN]
    records += [{"event": "job", **codec.job_record(job), "position": [1, 10 * job.id, job.id, ""]}
                for job in jobs]
    records += [start(0), start(1), end(0, "completed"), start(2), {"event": "back", "id": 2},
                {"event": "intent", "id": 1, "reason": "cancel"},
                end(4, "refused")]
    past = replay(records)
    assert [job.id for job in past.waiting] == [2, 3]
    assert [job.id for job, _ in past.running] == [1]
    assert sorted(past.ended) == [0, 4] and past.state.intents == {1: ("cancel", 0.0)}
    assert past.state.next_id == 5 and past.position == [1, 40, 4, ""] and not past.finished
    assert replay([*records, {"event": "finished"}]).finished
    assert past.jobs[3] == jobs[3]


def test_what_a_job_was_submitted_with_comes_back() -> None:
    job = Job(4, "a.x", 2, 9.5, 1.25, True, 3, priority=-7,
              payload=Program(("-o", "$HOME"), {"A": "x y"}, "/some where"))
    details = Details((Dependency.on(1), Dependency.on(2, ANY)), 3, None, True, "a name")
    record = json.loads(json.dumps({"event": "job", **codec.job_record(job, details)}))
    past = replay([RUN, record])
    assert past.jobs == {4: job} and past.details == {4: details} and past.state.next_id == 5
    assert codec.job_record(JOB).keys() == {"id", "app", "procs", "estimate", "submit",
                                               "exclusive", "cores"}  # as ever, where it is plain


def test_an_array_is_one_record_and_many_jobs() -> None:
    record = codec.job_record(JOB.but(payload=Program(("%i",))), PLAIN, (2, 4, 6))
    past = replay([RUN, {"event": "job", **record, "position": [1, 2, 3, ""]},
                            end(4, "completed")])
    assert {i: past.details[i].index for i in past.jobs} == {3: 2, 4: 4, 5: 6}
    assert past.jobs[5].payload.own(6) == Program(("6",), {"VRM_ARRAY_INDEX": "6"})
    assert [job.id for job in past.waiting] == [3, 5] and past.state.next_id == 6


def test_jobs_that_wait_again_and_are_held() -> None:
    records = [{**RUN, "allocation": "slurm 1"},
               *({"event": "job", **codec.job_record(Job(i, "a.x", 1, 9.0))} for i in range(3)),
               {"event": "hold", "id": 2}, start(0),
               {"event": "intent", "id": 0, "reason": "requeue", "command": "c1"},
               {"event": "again", "id": 0, "retry": False}, start(1), end(1, "failed"),
               {"event": "again", "id": 1, "retry": True, "command": "c2"},
               {**RUN, "allocation": "slurm 2"}]
    past = replay(records)
    assert [job.id for job in past.waiting] == [0, 1, 2] and past.again == {0, 1}
    assert past.state.intents == {} and past.ended == {}
    assert [past.state.entry(job_id).tries for job_id in (0, 1)] == [0, 1]
    assert past.state.entry(2).held and past.commands == ["c1", "c2"]
    past = replay([*records, {"event": "release", "id": 2}, start(1)])
    assert not past.state.entry(2).held and past.again == {0}
    assert past.run_of[1]["allocation"] == "slurm 2" and past.run == "r"


def test_a_placement_limited_by_resources_comes_back_as_it_was() -> None:
    nodes = [Node(f"n{i}", (4, 4), resources={"gpu": 1}) for i in range(4)]
    job = Job(1, "a.x", 3, 60.0, resources={"gpu": 1})
    cluster = Cluster(nodes)
    placement = make_policy("compact", cluster).place(job, cluster)
    record = json.loads(json.dumps(to_record(placement)))
    back = codec.placement_of(record, Cluster(nodes))
    assert list(back.slots(nodes)) == list(placement.slots(nodes))
    assert len({slot.node for slot in back.slots(nodes)}) == 3


@pytest.mark.parametrize("policy", ["compact", "spare", "strip", "pack"])
def test_placements_come_back_as_they_were(policy: str) -> None:
    cluster = Cluster.regular(5, 2, 4)
    other = Cluster.regular(5, 2, 4)
    for number, procs in enumerate((3, 8, 5)):
        job = Job(number, f"{'abc'[number]}.x", procs, 60.0)
        placement = make_policy(policy, cluster).place(job, cluster)
        back = codec.placement_of(to_record(placement), other)
        assert list(back.slots(other.nodes)) == list(placement.slots(cluster.nodes))
        cluster.book(job, placement, 0.0)
        other.book(job, back, 0.0)
        assert cluster.view() == other.view()


# Damage.


def run_of_three() -> list[dict[str, Any]]:
    """The records of three jobs: one has ended, one runs, one waits."""
    return [RUN, *({"event": "job", **codec.job_record(Job(i, "a.x", 1, 9.0, 10.0 + i))}
                   for i in range(3)), start(0), end(0, "completed"), start(1)]


def written(path: Path, records: list[dict[str, Any]], syncs: bool = True) -> bytes:
    """A journal of this vrm with the records in it; `syncs`: each was on disk before the next one came."""
    path.unlink(missing_ok=True)
    journal = journals.Journal(path)
    for record in records:
        more = {"format": 2} if record["event"] == "run" else {}
        journal.append(**{**record, **more})
        if syncs or record["event"] == "run":
            journal.sync()
    journal.close()
    return path.read_bytes()


def plain(records: list[dict[str, Any]]) -> bytes:
    """The same as vrm 0.1.0 wrote it."""
    return b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n"
                    for record in records)


@pytest.mark.parametrize("change, line", [
    (lambda lines: [lines[0].replace(b"4", b"8", 1), *lines[1:]], 1),
    (lambda lines: [*lines[:2], lines[2].replace(b"11.0", b"12.0"), *lines[3:]], 3),
    (lambda lines: [*lines[:3], *lines[4:]], 4),
    (lambda lines: lines[1:], 1),
    (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4),
    (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
    (lambda lines: [*lines[:5], b"\0" + lines[5][1:], *lines[6:]], 6),
    (lambda lines: [b"\0" * 80 + lines[0][80:], *lines[1:]], 1),
    (lambda lines: [*lines[:2], b"\0" * 900, *lines[5:]], 3),
    (lambda lines: [*lines[:5], lines[5].replace(b"3", b"4")], 6),
    (lambda lines: [*lines, b'{"event":"back","id":1}\n'], 8),
    (lambda lines: [*lines[:4], b"\n", *lines[4:]], 5),
    (lambda lines: [plain([{**RUN, "format": 2}])], 1),
])
def test_damage_is_found_and_nothing_is_cut(tmp_path: Path, change: Any, line: int) -> None:
    path = tmp_path / "journal"
    lines = written(path, run_of_three()).splitlines(keepends=True)
    data = b"".join(change(lines))
    path.write_bytes(data)
    with pytest.raises(journals.JournalError, match=rf"journal:{line}: "):
        journals.read(path)
    if len(lines) > 1 and data.count(b"\n") > 1:
        with pytest.raises(journals.JournalError):
            journals.Journal(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize("tail, lost", [
    (b"", 0), (b"\0", 0), (b"\0" * 5000, 0), (b'{"event":"en', 0), (b'{"even\0\0\0\0', 0), (b"\0\0{", 0),
    (b"\0" * 40 + b"{}\n", 1), (b'{"event":"en\0\0\0"}\n{"event":"hold","id":1,"sum":"00000000"}\n\0\0', 2)])
def test_what_a_crash_leaves_behind_the_records_is_cut(tmp_path: Path, tail: bytes, lost: int) -> None:
    path = tmp_path / "journal"
    data = written(path, run_of_three())
    path.write_bytes(data + tail)
    journal = journals.Journal(path)
    assert journal.cut == lost
    journal.append("finished", time=9.0)
    journal.close()
    assert path.read_bytes()[:len(data)] == data
    assert [record["event"] for record in journals.read(path)][-1] == "finished"


@pytest.mark.parametrize("size", [7, 64, 512])
def test_records_that_came_to_disk_in_any_order_are_a_crashs_until_one_says_they_are_there(tmp_path: Path, size: int) -> None:
    """Each part of the bytes of one sync is missing once: what was on disk before is read, and nothing behind the
    missing part. With a record of the next sync behind it, the same is damage."""
    path = tmp_path / "journal"
    records = run_of_three()
    before = written(path, records[:2])
    path.write_bytes(before)
    journal = journals.Journal(path)
    for record in records[2:]:
        journal.append(**record)
    journal.close()
    data = path.read_bytes()
    assert data.count(b'"SUM"') == 3 and data.startswith(before)
    journal = journals.Journal(path)
    journal.append("hold", id=2)
    journal.close()
    more = path.read_bytes()
    for at in range(len(before), len(data), size):
        end = min(len(data), at + size)
        path.write_bytes(data[:at] + bytes(end - at) + data[end:] + bytes(99))
        found = journals.read(path)
        whole = data[:at].count(b"\n")
        assert len(found) == whole and JournalFollower(path).read_new() == (True, found)
        reader = journals.JournalReader(path)
        list(reader)
        again = journals.Journal(path, reader.mark)
        assert again.cut == data[end:].count(b"\n") and path.read_bytes() == b"".join(data.splitlines(True)[:whole])
        again.append("hold", id=0)
        again.close()
        assert [record["event"] for record in journals.read(path)] == [each["event"] for each in records[:whole]] + ["hold"]
        path.write_bytes(more[:at] + bytes(end - at) + more[end:])
        with pytest.raises(journals.JournalError, match=rf"journal:{whole + 1}: zeros within the records"):
            journals.read(path)
        with pytest.raises(journals.JournalError, match=rf"journal:{whole + 1}: zeros within the records"):
            journals.Journal(path, reader.mark)


def test_zeros_in_a_journal_of_an_earlier_vrm_are_damage(tmp_path: Path) -> None:
    """It does not say what is on disk, and may be continued by a vrm that does."""
    path = tmp_path / "journal"
    lines = written(path, run_of_three()).replace(b'"SUM"', b'"sum"').splitlines(True)
    damaged = b"".join([*lines[:3], bytes(len(lines[3])), *lines[4:]])
    path.write_bytes(damaged)
    for what in (journals.read, journals.Journal):
        with pytest.raises(journals.JournalError, match="journal:4: zeros within the records"):
            what(path)
    path.write_bytes(b"".join(lines))
    journal = journals.Journal(path)
    journal.append("run", run="r", format=journals.FORMAT)
    journal.close()
    data = path.read_bytes()
    assert data.count(b'"SUM"') == 1 and len(journals.read(path)) == 8
    path.write_bytes(damaged + data[len(damaged):])
    with pytest.raises(journals.JournalError, match="journal:4: zeros within the records"):
        journals.read(path)


def test_what_a_manager_has_only_written_is_on_disk_before_the_next_one_writes(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "journal"
    written(path, run_of_three()[:4])
    journal = journals.Journal(path)
    journal.append(**start(0))
    journal.begin()  # and the manager is killed
    calls: list[str] = []
    write, sync = os.pwrite, os.fdatasync
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: calls.append(data.decode()) or write(fd, data, at))
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("sync") or sync(fd))
    again = journals.Journal(path)
    assert len(calls) == 2 and '"start"' in calls[0] and calls[1] == "sync"  # again: a sync of it may have failed
    again.close()


def test_what_was_read_of_a_journal_is_not_read_again_to_continue_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = written(path, run_of_three())
    path.write_bytes(data + b'{"event":"en')
    reader = journals.JournalReader(path)
    assert len(list(reader)) == 7 and reader.mark.offset == len(data)
    path.write_bytes(b"?" + data[1:] + b'{"event":"en')  # nobody looks at it
    journal = journals.Journal(path, reader.mark)
    journal.append("finished", time=9.0)
    journal.close()
    path.write_bytes(data + path.read_bytes()[len(data):])
    assert [record["event"] for record in journals.read(path)][-2:] == ["start", "finished"]


@pytest.mark.parametrize("more", [5, 1000])  # records instead of the zeros, and more than these
def test_what_is_written_while_a_journal_is_read_is_no_damage(tmp_path: Path, more: int) -> None:
    """The zeros kept ahead were read, and then there are records in their place."""
    path = tmp_path / "journal"
    journal = journals.Journal(path)
    for number in range(3):
        journal.append("hold", id=number)
    journal.sync()
    lines = journals._whole_lines(path, journals.opened(path), 0)
    next(lines)  # the reader has all of the file by now, and has not looked at it
    for number in range(3, more):
        journal.append("hold", id=number, comment="x" * 99)
    journal.sync()
    assert [json.loads(line)["id"] for line in lines] == list(range(1, more))
    journal.close()


def test_zeros_that_were_read_while_the_record_came_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lines = written(path, run_of_three()).splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\0" * len(lines[1]), *lines[2:]]))
    with journals.opened(path) as file:
        file.peek()  # type: ignore[attr-defined]
        with open(path, "r+b") as other:  # the same file
            other.write(b"".join(lines))
        assert list(journals._whole_lines(path, file, 0)) == lines


@pytest.mark.parametrize("damaged", [[b'{"event":"hold","id":[1'], [b"7"], [b'{"event":"hold"}{"event":"hold"'],
                                     [b'{"event":"hold","id":{"a":1', b'"id":2']])
def test_records_that_are_decoded_together_are_found_one_by_one_where_one_is_none(
        tmp_path: Path, damaged: list[bytes]) -> None:
    path = tmp_path / "journal"
    journal = journals.Journal(path)
    for number in range(journals.BATCH + 5):
        journal.append("hold", id=number)
        for line in damaged if number == journals.BATCH + 2 else ():  # with right checksums
            journal._sum = journals.crc32(line, journal._sum)
            journal._pending.append(line + journals._SUM % journal._sum)
    journal.close()
    seen = []
    with pytest.raises(journals.JournalError, match=rf"journal:{journals.BATCH + 4}: not a journal record"):
        for record in journals.records(path):
            seen.append(record["id"])
    assert seen == list(range(journals.BATCH + 3))


def test_placements_are_looked_at_where_somebody_needs_them(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    odd = {**start(0), "placement": {**start(0)["placement"], "taken": "0x3"}}  # two cores, of one rank
    jobs = run_of_three()[1:4]
    written(path, [RUN, *jobs, start(1), odd, start(2)])
    with pytest.raises(journals.JournalError, match="journal:6: placement: its cores are wrong"):
        replay(journals.read(path), path)
    written(path, [RUN, *jobs, odd, start(1), end(0, "completed")])
    past = replay(journals.read(path), path)
    assert [job.id for job, _ in past.running] == [1] and past.placement_fault(0) and not past.placement_fault(1)
    lend = {"event": "lend", "number": 1, "id": 0, "to": None, "cores": "0x1", "time": 3.0, "until": None}
    written(path, [RUN, *jobs, odd, lend, end(0, "completed")])
    with pytest.raises(journals.JournalError, match="journal:6: placement: its cores are wrong"):
        replay(journals.read(path), path)
    path.write_bytes(plain([RUN, *jobs, odd, end(0, "completed")]))
    with pytest.raises(journals.JournalError, match="journal:5: placement: its cores are wrong"):
        replay(journals.read(path), path)  # there is no checksum
    follower = RunHistory()
    with pytest.raises(journals.JournalError, match="journal:5: placement: its cores are wrong"):
        for number, record in enumerate([RUN, *jobs, odd], 1):
            follower.take({**record, "sum": ""}, number)  # what is read while the run goes on


def test_jobs_of_which_the_same_is_said_share_it_and_what_is_wrong_is_wrong_again() -> None:
    alike = [{"event": "job", **codec.job_record(Job(i, "alike.x", 2, 7.0, 10.0 + i), Details(name="n"))} for i in range(3)]
    past = replay([RUN, *alike])
    first, second = past.jobs[0], past.jobs[1]
    assert [job.submit for job in past.jobs.values()] == [10.0, 11.0, 12.0] and sorted(past.jobs) == [0, 1, 2]
    assert first.request is second.request and past.details[0] is past.details[1] and past.state.names["n"] == [0, 1, 2]
    for change, word in (({"procs": True}, "procs"), ({"id": 3.0}, "id"), ({"submit": "1"}, "submit"), ({"array": 5}, "array"),
                         ({"line": "x"}, "line"), ({"estimate": None}, "estimate"), ({"exclusive": 0}, "exclusive")):
        for _ in range(2):
            with pytest.raises(journals.JournalError, match=f"journal:5: job: {word} is wrong"):
                replay([RUN, *alike, {**alike[2], "id": 3, **change}])


@pytest.mark.parametrize("event", [start(0), {**end(0, "failed"), "ran": [1.0, 2.5], "exit_code": 3}])
def test_starts_and_ends_are_checked_value_by_value(event: dict[str, Any]) -> None:
    usual = {**event, "sum": "00000000"}
    assert journal_check.fault(usual) == "" == journal_check.fault({**usual, "command": "c"})
    for name in usual:
        for value in (None, True, -1, 10 ** 9 + 1, 1e16, float("nan"), "running", "x", [], [1.0], [1.0, "2"], {}):
            other = {**usual, name: value}
            if name == "event":
                continue
            odd = {**other, "command": "c"}
            assert journal_check.fault(other) == journal_check.fault(odd), other
            if name in journal_check.WANTED[event["event"]]:
                right = journal_check.WANTED[event["event"]][name](value)
                assert journal_check.fault(other) == ("" if right else f"{event['event']}: {name} is wrong"), other
    assert "is missing" in journal_check.fault({key: value for key, value in usual.items() if key != "time"})


def test_a_journal_of_0_1_0_is_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    old = plain(run_of_three())
    path.write_bytes(old + b"\0" * 100)
    past = replay(journals.read(path))
    assert past.format == 1 and [job.id for job, _ in past.running] == [1]
    journal = journals.Journal(path)
    journal.append("run", run="r", format=2)
    journal.append(**end(1, "completed"))
    journal.close()
    past = replay(journals.read(path))
    assert past.format == 1 and sorted(past.ended) == [0, 1]  # it began with 0.1.0
    data = path.read_bytes()
    assert data.startswith(old)
    path.write_bytes(data.replace(b"11.0", b"12.0"))  # the older records are in the chain, too
    with pytest.raises(journals.JournalError):
        journals.read(path)
    assert replay(run_of_three()).format == 1
    written(path, run_of_three())
    assert replay(journals.read(path)).format == 2


@pytest.mark.parametrize("at, change, words", [
    (0, None, "the first record is not a manager's"),
    (0, {"format": journals.FORMAT + 1}, "newer vrm"),
    (0, {"nodes": [["n0", [0]]]}, "nodes"),
    (0, {"run": "../x"}, "run"),
    (1, None, "job 0, which never came"),
    (1, {"id": 2}, "job 1 exists already"),
    (1, {"app": "../../bin/sh"}, "app"),
    (1, {"app": "--x"}, "app"),
    (1, {"procs": 0}, "procs"),
    (1, {"estimate": float("inf")}, "estimate"),
    (1, {"exclusive": 1}, "exclusive"),
    (1, {"variables": {"VRM_RUN": "x"}}, "variables"),
    (1, {"variables": {"A B": "x"}}, "variables"),
    (1, {"directory": "/x\0y"}, "directory"),
    (1, {"arguments": "abc"}, "arguments"),
    (1, {"after": [[1]]}, "after"),
    (1, {"array": "5-0"}, "array"),
    (1, {"position": [1, 2]}, "position"),
    (4, {"id": 7}, "never came"),
    (4, {"time": None}, "time"),
    (4, {"placement": {}}, "placement"),
    (4, {"placement": {"taken": "0x100", "procs": 1, "width": 1}}, "cores are wrong"),
    (4, {"placement": {"taken": "0x3", "procs": 1, "width": 1}}, "cores are wrong"),
    (4, {"placement": {"share": "whole", "claims": ["0x2", "0x2"], "order": ["0x2"], "procs": 1,
                       "width": 1, "most": None}}, "claims"),
    (5, {"state": "running"}, "state"),
    (5, {"id": [0]}, "id"),
    (6, {"id": 0}, "ended already"),
    (6, {"event": "end"}, "end: state is missing"),
    (6, {"event": "again", "retry": False, "id": 2}, "never started"),
    (6, {"event": "intent", "reason": "cancel", "id": 0}, "does not run"),
    (6, {"event": "bang"}, "unknown event 'bang'"),
])
def test_records_that_make_no_sense_are_damage(tmp_path: Path, at: int, change: Any,
                                               words: str) -> None:
    """A journal of 0.1.0 has no checksums: a lost or changed line may leave it readable."""
    records = run_of_three()
    if change is None:
        del records[at]
    else:
        records[at] = {**records[at], **change}
    path = tmp_path / "journal"
    path.write_bytes(plain(records))
    with pytest.raises(journals.JournalError, match=rf"journal:\d+: .*{words}"):
        replay(journals.read(path), path)


def test_what_is_pending_can_be_shown_before_it_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = journals.Journal(path)
    journal.append("run", run="a")
    journal.sync()
    follower = JournalFollower(path)
    follower.read_new()
    for number in range(3000):  # more than is kept free behind the records
        journal.append("job", id=number, text="x" * 50)
    assert follower.read_new() == (False, [])
    journal.show()
    assert [record["id"] for record in follower.read_new()[1]] == list(range(3000))
    journal.append("end", id=7)
    journal.sync()
    assert follower.read_new() == (False, journals.read(path)[-1:])
    journal.append("end", id=8)
    journal.show()  # and the machine goes down
    assert journals.read(path)[-1]["id"] == 8 and len(journals.read(path)) == 3003
    again = journals.Journal(path)
    again.append("end", id=9)
    again.close()
    assert [record["id"] for record in journals.read(path)[-2:]] == [8, 9] and follower.trouble == ""


def test_changed_rules_are_in_force_while_the_configuration_says_what_it_said_then() -> None:
    was, then = Rules(backfill="easy"), Rules(algorithm="SAF", backfill="easy", queues=NO_QUEUES)
    record = {"event": "rules", "time": 1.0, "reason": "", "was": was.record(), "rules": then.record()}
    past = replay([RUN, record])
    assert past.in_force(was) == then and past.in_force(Rules(backfill="none")) == Rules(backfill="none")
    assert replay([RUN]).in_force(was) == was
    again = replay([RUN, record, {**record, "rules": was.record()}])
    assert again.in_force(was) == was


@pytest.mark.parametrize("change", [{"rules": {}}, {"was": 7}, {"reason": None}, {"time": "now"},
                                    {"rules": {**Rules().record(), "algorithm": 5}}])
def test_damaged_rules_are_damage(change: dict[str, Any]) -> None:
    record = {"event": "rules", "time": 1.0, "reason": "", "was": Rules().record(),
              "rules": Rules().record(), **change}
    with pytest.raises(journals.JournalError, match="journal:2: rules: "):
        replay([RUN, record])


def test_whatever_a_shell_can_pass_on_is_read_again() -> None:
    """A job that was submitted with line ends and escapes in its words must not spoil the journal."""
    words, variables = ("two\nlines", "\x1b[1m", "q\"u'o *", ""), {"A": "one\ntwo\t", "B": ""}
    job, details = made({"app": "a", "procs": 1, "walltime": 5.0, "arguments": words, "variables": variables}, 0, 1.0)
    past = RunHistory()
    past.take(RUN, 1)
    past.take(json.loads(json.dumps({"event": "job", **codec.job_record(job, details)})), 2)
    assert (past.jobs[0].payload.arguments, past.jobs[0].payload.variables) == (words, variables)
    assert fields_of(job, details)["args"] == "'two?lines' '?[1m' 'q\"u'\"'\"'o *' ''"


def test_every_event_has_its_values_and_what_it_changes() -> None:
    assert set(journal_check.WANTED) == set(EVENTS)


def test_lines_read_together_say_what_lines_read_one_by_one_say(tmp_path: Path, monkeypatch) -> None:
    """Whatever a disk makes of a journal: the same records, the same position after each way, the same fault."""
    path, random = tmp_path / "journal", Random(30)
    data = written(path, run_of_three())

    def read(only: Pattern[bytes] | None = None) -> tuple[list[dict[str, Any]], object, str]:
        found: list[dict[str, Any]] = []
        mark, fault = journals.START, ""
        try:
            with journals.opened(path) as file:
                for records, after in journals._records(path, file, only=only):
                    found += records
                    mark = after
        except journals.JournalError as error:
            fault = str(error)
        return found, mark, fault

    monkeypatch.setattr(journals, "BATCH", 3)
    faults = set()
    for number in range(600):
        changed = bytearray(data + b'{"event":"en' * (number % 2))
        for _ in range(number % 4):
            at, size = random.randrange(len(changed)), random.choice((0, 1, 1, 8, 300))
            changed[at:at + size] = random.choice((bytes(size), random.randbytes(size), b"", b"\n", b'"'))
        path.write_bytes(changed)
        together = read(), read(re.compile(b'"start"'))[0]
        with monkeypatch.context() as patch:
            patch.setattr(journals, "_sound", lambda lines, since: None)
            assert (read(), read(re.compile(b'"start"'))[0]) == together
        faults.add(together[0][2].partition(": ")[2])
    assert "" in faults and len(faults) > 4


def test_a_usual_record_has_no_fault() -> None:
    """The quick look at a record finds no more than the whole one, whatever value is wrong or missing."""
    job = {"event": "job", **codec.job_record(Job(7, "usual", 2, 30.0, 1.5)), "line": "ab", "position": [1, 2, 3, "f"],
           "command": "c", "sum": "0"}
    start = {"event": "start", "id": 7, "time": 2.5, "backfilled": False, "placement": {"taken": "0x1"}, "SUM": "0"}
    end = {"event": "end", "id": 7, "time": 3.5, "state": "completed", "reason": "", "exit_code": 0, "ran": [2.5, 3.0],
           "cause": "stop", "sum": "0"}
    odd = (None, True, -1, 3, 10 ** 10, 10 ** 400, 1.5, float("nan"), 1e300, "", "x", "completed", [], [1.0], [1.0, "x"],
           [1.0, True], [-1, 0, 0, ""], {}, {"a": []})
    assert not journal_check.is_usual(job)  # nobody has looked at the like yet
    usual = 0
    for record in (job, start, end):
        assert journal_check.fault(record) == "" and journal_check.is_usual(record)
        for key in [*record, "as", "array", "fault", "slower", "more", "new"]:
            changed = [{**record, key: value} for value in odd]
            for each in [*changed, {name: value for name, value in record.items() if name != key}]:
                if type(each.get("event")) is str and journal_check.is_usual(each):
                    usual += 1
                    assert journal_check.fault(each) == "", each
    assert usual > 20
