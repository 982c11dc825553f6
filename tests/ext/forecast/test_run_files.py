"""A run frozen from its files alone, against what then happened; and files as crashes leave them."""

from __future__ import annotations

import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from collections.abc import Callable, Sequence

import pytest

from vrm.config.schema import Settings, load
from vrm.ext.forecast.explain import Explainer
from vrm.ext.forecast.files import RunFiles
from vrm.ext.forecast.forecast import forecast
from vrm.ext.forecast.replay import limits, replay
from vrm.model import Dependency, Job
from vrm.model.job import ANY
from vrm.model.reservation import ReservationRequest
from vrm.results.forecast import ManagerReport
from vrm.run.journal import codec
from vrm.run.journal.files import Journal, read
from vrm.system.errors import RunError
from vrm.workload.queue_follower import QueueFollower
from vrm.workload.submission import Submission
from support.run_files import Event, of_directory, recorded, settings_in, submissions_of, write

RUNNING = ManagerReport("running")


def what_happened(records: Sequence[Event]) -> dict[int, tuple[float, float, Any]]:
    starts = {each["id"]: each for each in records if each["event"] == "start"}
    ends = {each["id"]: each["time"] for each in records if each["event"] == "end"}
    return {job_id: (start["time"], ends[job_id], start["placement"])
            for job_id, start in starts.items()}


@pytest.mark.parametrize("rules", [
    {"Algorithm": "FCFS", "Backfilling": "none"}, {"Algorithm": "WFP3", "Backfilling": "easy"},
    {"Algorithm": "SJF", "Backfilling": "easy", "Policy": "strip"},
    {"Backfilling": "conservative"}, {"Backfilling": "3-kept", "Policy": "pack"},
    {"Backfilling": "easy", "Estimates": "last-two", "Correction": "stepwise"},
    {"Backfilling": "easy", "Interval": 7}, {"Backfilling": "easy", "Reserved": "2"}],
    ids=lambda rules: "-".join(map(str, rules.values())))
def test_with_true_run_times_the_files_tell_what_then_happens(tmp_path: Path, rules: dict[str, str]
                                                              ) -> None:
    from vrm.model.forms.placement_formats import to_record

    reserved = [ReservationRequest(20.0, 90.0, 2, name="a", jobs=(4, 20, 21)), ReservationRequest(100.0, 300.0, 3, name="b")
                ] if "Reserved" in rules else []
    settings, rng = settings_in(tmp_path, **{
        key: value for key, value in rules.items() if key != "Reserved"}), random.Random(3)
    submissions = submissions_of(60, rng)
    moments = recorded(settings, submissions, reserved)
    runs = {each.job.id: each.run for each in submissions}
    happened = what_happened([record for records in moments for record in records])
    write(settings, [])
    journal, files, compared = Journal(settings.directory / "journal"), RunFiles(settings), 0
    for number, records in enumerate(moments):
        for record in records:
            journal.append(**record)
        journal.sync()
        if number % 7 != 3 or not records:  # at other moments a job outlives what is expected of it
            continue
        now = records[-1].get("time", records[-1].get("submit"))
        known = {record["id"] for each in moments[:number + 1] for record in each if "id" in record}
        over = {record["id"] for each in moments[:number + 1] for record in each
                if record["event"] == "end"}
        later = tuple(each._replace(after=tuple(one for one in each.after if one.ids[0] not in over))
                      for each in submissions if each.job.id not in known)
        for source in (files, RunFiles(settings)):  # followed, and read at once
            source.read_new()
            frozen = source.frozen(RUNNING, now)
            assert (frozen.now, source.trouble) == (now, "")
            found = replay(replace(frozen, later=later),
                           lambda job, ran: runs[job.id])
            ahead = {job_id: each for job_id, each in happened.items() if each[1] > now}
            assert {job_id: (each.start, each.end, to_record(each.placement))
                    for job_id, each in found.items()} == ahead
            compared += len(ahead)
    assert compared > 100


def test_a_journal_may_end_at_any_byte(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, Backfilling="easy")
    moments = recorded(settings, submissions_of(12, random.Random(5)))
    write(settings, [record for records in moments for record in records])
    path = settings.directory / "journal"
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    followed, last = RunFiles(settings), -1
    for size in sorted({*ends, *range(1, len(whole), 37)}):
        path.write_bytes(whole[:size] + bytes(50) * (size % 2))
        files = RunFiles(settings)
        assert files.read_new() == (size >= ends[0])
        assert files.trouble == "" and files.position == sum(end <= size for end in ends)
        if size < ends[0]:
            with pytest.raises(RunError, match="does not say on which nodes"):
                files.frozen(RUNNING)
            continue
        found = forecast(files.frozen(RUNNING, 0.0), members=2)
        waits = {job.id for job in found.jobs if not job.running}
        assert waits == {job.id for job in files.past.waiting}
        assert all(job.start >= found.time for job in found.jobs if not job.running)
        followed.read_new()
        assert followed.position == files.position > last - 1
        last = files.position


@pytest.mark.parametrize("damage", [
    lambda lines: lines[:3] + [b"\0\0\0\n"] + lines[4:], lambda lines: lines[:3] + lines[4:],
    lambda lines: lines[:3] + [lines[3].replace(b'"id":', b'"ID":')] + lines[4:],
    lambda lines: lines[:3] + [b"[" * 5000 + b"\n"] + lines[3:],
    lambda lines: lines[:3] + [b'{"event":"end"}\n'] + lines[3:]])
def test_behind_damage_nothing_is_believed(tmp_path: Path, damage: Callable[..., list[bytes]]
                                           ) -> None:
    settings = settings_in(tmp_path)
    moments = recorded(settings, submissions_of(8, random.Random(5)))
    write(settings, [record for records in moments for record in records])
    path = settings.directory / "journal"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(damage(lines)))
    files = RunFiles(settings)
    files.read_new()
    assert files.trouble.startswith(f"{path}:4: ") and "\n" not in files.trouble
    assert files.position in (0, 3)  # zeros: nobody knows what they were
    path.write_bytes(b"".join(lines))
    files.read_new()  # it was only seen while it was written
    assert (files.trouble, files.position) == ("", len(lines))


def test_another_run_in_the_directory_begins_anew(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    first = recorded(settings, submissions_of(9, random.Random(5)))
    write(settings, [record for records in first for record in records])
    files = RunFiles(settings)
    files.read_new()
    assert len(files.past.ended) == len(files.history) == 9
    second = recorded(settings, submissions_of(2, random.Random(6)))
    write(settings, [record for records in second[:2] for record in records])
    files.read_new()
    assert set(files.past.jobs) <= {0, 1} and not len(files.history)


def test_a_record_that_makes_no_sense_ends_what_is_believed(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    moments = recorded(settings, submissions_of(3, random.Random(5)))
    records = [record for each in moments for record in each]
    write(settings, [*records, {"event": "end", "id": 77, "time": 1.0, "state": "failed",
                                "reason": "", "exit_code": None}])
    files = RunFiles(settings)
    files.read_new()
    assert files.trouble.endswith(f":{len(records) + 1}: end of job 77, which never came")
    assert not files.frozen(RUNNING).waiting()


def test_without_a_run_it_is_said_what_to_do(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with pytest.raises(RunError, match="there is no run in .*logs.*`vrm run`"):
        of_directory(settings)
    settings.directory.mkdir()
    (settings.directory / "journal").mkdir()
    with pytest.raises(RunError, match="is a directory where a file belongs"):
        of_directory(settings)


def state_of(settings: Settings, **more: Any) -> dict[str, Any]:
    return {"format": 2, "time": 100.0, "emulated": False,
            "manager": {"host": "h", "pid": 1, "start": 0.0, "phase": "running"},
            "scheduling": settings.rules.record(), "allocation": {"end": 1000.0},
            "nodes": [{"name": f"n{at}", "up": at != 1, "sockets": [[None] * 2] * 2}
                      for at in range(6)], "jobs": [], "ended": {}, **more}


def test_the_state_file_tells_of_nodes_the_end_and_the_clock(tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_in(tmp_path, Backfilling="easy")
    write(settings, recorded(settings, [])[0]
          + [{"event": "job", **codec.job_record(Job(0, "a.x", 24, 50.0, 1.0))},
             {"event": "job", **codec.job_record(Job(1, "a.x", 20, 5000.0, 1.0))}])
    settings.state.write_text(json.dumps(state_of(settings)))
    monkeypatch.setattr(RunFiles, "_runs", lambda self: True)
    frozen = of_directory(settings)
    assert (frozen.now, frozen.end) == (100.0, 940.0)  # End.Margin is 60 s
    assert replay(frozen, limits) == {}  # a node is down; the other is too long
    monkeypatch.setattr(RunFiles, "_runs", lambda self: False)
    frozen = of_directory(settings)  # the manager was killed: the next one has another end
    assert frozen.end == math.inf and frozen.now > 1e9
    assert set(replay(frozen, limits)) == {1}
    future = 2 * frozen.now  # written on a host whose clock is ahead
    settings.state.write_text(json.dumps(state_of(settings, time=future)))
    assert of_directory(settings).now == future
    settings.state.write_text('{"format": 2')
    assert of_directory(settings).end == math.inf


def test_lines_with_a_delay_are_known_to_come(tmp_path: Path) -> None:
    """A recorded queue of which its manager has taken two lines: the third is due 20 s after the second,
    the next 30 s later, and so on."""
    settings = settings_in(tmp_path, Backfilling="easy")
    settings.applications.queue.parent.mkdir(exist_ok=True)
    settings.applications.queue.write_text(
        "a.x 4 500 0 10\na.x 24 50 0 20\n# here it has stopped\na.x 24 40 0 30 name=big\nthis is not a job\n"
        "b.x 4 10 0 0 array=1-3\na.x 1 5 0 5 after=big\na.x 1 5 0 after=7\na.x 400 5 0 5\na.x 4 60 0 0\nend\n")
    follower = QueueFollower(settings.applications.queue)
    positions = [list(line.position) for line in follower.read_new()]
    begin = recorded(settings, [])[0]
    first, second = ({"event": "job", **codec.job_record(Job(at, "a.x", procs, limit, time)), "position": place}
                     for at, procs, limit, time, place in (
                         (0, 4, 500.0, 100.0, positions[0]), (1, 24, 50.0, 110.0, positions[1])))
    write(settings, [*begin, first, second])
    files = RunFiles(settings)
    files.read_new()
    frozen = files.frozen(RUNNING, 115.0)
    assert [(one.job.id, one.job.submit, one.job.procs) for one in frozen.later] == [
        (2, 130, 24), (4, 160, 4), (5, 160, 4), (6, 160, 4), (7, 160, 1), (8, 165, 1), (9, 165, 400), (10, 170, 4)]
    starts = {job_id: each.start for job_id, each in replay(frozen, limits).items()}
    assert starts == {0: 115, 1: 615, 2: 665, 4: 160, 5: 160, 6: 160, 7: 705, 8: 710, 10: 170}
    assert [job.id for job in forecast(frozen, tries=9).jobs] == [0, 1]
    Explainer(frozen).of(1)
    # When the next line is taken, the rest stays; behind a killed manager the next line is due at once.
    journal = Journal(settings.directory / "journal")
    journal.append("job", **codec.job_record(Job(2, "a.x", 24, 40.0, 131.0)), position=positions[2])
    journal.sync()
    files.read_new()
    assert [(one.job.id, one.job.submit) for one in files.frozen(RUNNING, 140.0).later][:2] == [(4, 161), (5, 161)]
    assert files.frozen(RUNNING, 200.0).later[0].job.submit == 200
    assert files.frozen(ManagerReport("ended"), 1e6).later[0].job.submit == 1e6
    assert files.frozen(RUNNING._replace(phase="stopping"), 140.0).later == ()
    assert len(files.frozen(RUNNING, 140.0, most=5).later) == 2


def test_a_job_that_waits_for_those_to_come_says_so(tmp_path: Path) -> None:
    """Decisions are made every 10 s from 0 on. #1 has come at 12; at 18 a shorter job is due."""
    settings = settings_in(tmp_path, Algorithm="SJF", Backfilling="none", Interval=10)
    settings.applications.queue.write_text("a.x 24 500 0 12\na.x 24 50 0 6\na.x 24 5 0 0\n")
    places = [list(line.position) for line in QueueFollower(settings.applications.queue).read_new()]
    moments = recorded(settings, [Submission(Job(0, "a.x", 24, 500.0, 0.0), 5.0)])
    records = [{**record, "position": places[0]} if record["event"] == "job" else record
               for each in moments for record in each]
    write(settings, [*records, {"event": "job", **codec.job_record(Job(1, "a.x", 24, 50.0, 12.0)),
                                "position": places[1]}])
    files = RunFiles(settings)
    files.read_new()
    frozen = files.frozen(RUNNING, 15.0)
    reason, = Explainer(frozen).of(1).reasons
    assert reason.checked and reason.text.startswith("later jobs of the queue file start before it")
    assert (replay(frozen, limits)[1].start, reason.start) == (30, 20)


def test_without_fit_jobs_start_up_to_the_end_and_are_cut_there(tmp_path: Path) -> None:
    settings_in(tmp_path, Backfilling="easy")
    with open(tmp_path / "vrm.yaml", "a") as file:
        file.write("End: {Fit: false, Margin: 60}\nGrace: 10\n")
    settings = load(tmp_path / "vrm.yaml")
    jobs = [Job(0, "a.x", 24, 500.0, 1.0), Job(1, "a.x", 24, 5000.0, 1.0), Job(2, "a.x", 24, 30.0, 1.0)]
    write(settings, recorded(settings, [])[0]
          + [{"event": "job", **codec.job_record(job)} for job in jobs])
    files = RunFiles(settings)
    files.read_new()
    found = forecast(files.frozen(ManagerReport("running", end=1000.0, time=100.0)), tries=9)
    assert [(job.start, job.end, job.latest, job.chance) for job in found.jobs] == [
        (100, 600, 100, 1), (600, math.inf, 600, 1), (math.inf, math.inf, math.inf, 0)]
    assert found.jobs[2].reason == "does not start before the allocation ends"
    assert found.allocation_end == 940
    others = forecast(files.frozen(ManagerReport("running", end=5700.0, time=100.0))).jobs
    assert [job.end for job in others] == [600, 5600, 5630]  # before jobs are ended, at 5,690


def test_a_manager_that_is_stopping_starts_nothing(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    records = recorded(settings, submissions_of(20, random.Random(5)))
    write(settings, [record for each in records[:8] for record in each])
    files = RunFiles(settings)
    files.read_new()
    frozen = files.frozen(RUNNING._replace(phase="stopping"))
    running = {booking.job.id for booking in frozen.state.cluster.running()}
    assert running and len(frozen.waiting()) > 2
    assert set(replay(frozen, limits)) == running


def test_nothing_is_kept_of_what_is_over(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    records = recorded(settings, submissions_of(200, random.Random(5)))
    write(settings, [record for each in records[:-20] for record in each])
    files = RunFiles(settings)
    files.read_new()
    assert len(files.past.ended) > 100
    state = files.frozen(RUNNING).state
    assert len(state.book.entries) < 200 - len(files.past.ended) + 20
    assert state.next_id == 200 and os.path.exists(settings.directory / "journal")
    assert len(read(settings.directory / "journal")) == files.position


def test_a_run_of_vrm_0_1_0_is_forecast_at_each_record(tmp_path: Path) -> None:
    data = Path(__file__).parents[2] / "data" / "0.1.0"
    (tmp_path / "bin").mkdir()
    (tmp_path / "vrm.yaml").write_text((data / "vrm.yaml").read_text())
    settings = load(tmp_path / "vrm.yaml")
    settings.directory.mkdir(mode=0o700)
    lines = (data / "journal").read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        (settings.directory / "journal").write_bytes(b"".join(lines[:count]))
        files = RunFiles(settings)
        files.read_new()
        assert (files.trouble, files.position) == ("", count)
        found = forecast(files.frozen(RUNNING), members=3)
        assert len(found.jobs) == len(files.past.running) + files.past.state.waiting
    assert found.jobs == ()


def test_what_there_is_little_to_say_of(tmp_path: Path) -> None:
    """A queue that is empty, a history of one job, a run that has ended."""
    settings = settings_in(tmp_path)
    one = submissions_of(1, random.Random(5))
    moments = recorded(settings, one)
    write(settings, moments[0])
    assert forecast(of_directory(settings)).jobs == ()
    write(settings, [record for records in moments for record in records]
          + [{"event": "job", **codec.job_record(one[0].job.but(id=1))}])
    frozen = of_directory(settings)
    assert len(frozen.past) == 1
    found, = forecast(frozen, members=20).jobs
    assert found.start == found.p10 == found.p90 == frozen.now < found.end < math.inf
    write(settings, [record for records in moments for record in records]
          + [{"event": "finished", "time": 99.0}])
    assert forecast(of_directory(settings)).jobs == ()


def test_the_same_state_gives_the_same_forecast(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, Backfilling="easy")
    moments = recorded(settings, submissions_of(80, random.Random(5)))
    write(settings, [record for records in moments[:90] for record in records])
    made = []
    for _ in range(2):
        files = RunFiles(settings)
        files.read_new()
        assert len(files.history) > 20
        made.append(forecast(files.frozen(RUNNING), members=20, tries=5))
    assert made[0] == made[1]
    assert any(job.p10 < job.p90 for job in made[0].jobs if not job.running)
    assert all(job.reason for job in made[0].jobs if not job.running)


def test_of_jobs_that_depend_on_others_little_is_forgotten(tmp_path: Path) -> None:
    """Held jobs, an array, names, retries: as they were submitted."""
    from vrm.model.job import Details

    settings = settings_in(tmp_path)
    first = Job(0, "a.x", 24, 50.0, 1.0)
    records = [*recorded(settings, [])[0],
               {"event": "job", **codec.job_record(first, Details(name="big", retries=2))},
               {"event": "job", **codec.job_record(Job(1, "b.x", 4, 9.0, 1.0), Details(
                   after=(Dependency(range(1), ANY),)), (5, 6))},
               {"event": "job", **codec.job_record(Job(3, "c.x", 4, 9.0, 1.0))},
               {"event": "hold", "id": 3}]
    write(settings, records)
    files = RunFiles(settings)
    files.read_new()
    frozen = files.frozen(RUNNING._replace(time=10.0))
    assert {job_id: each.start for job_id, each in replay(frozen, limits).items()} == {
        0: 10.0, 1: 60.0, 2: 60.0}
    book = frozen.state.book
    assert book.entries[0].details.retries == 2 and list(book.held) == [3]
    jobs, details = files.submitted("c.x 4 5 after=big", 10.0)
    assert [each.after for each in details] == [(Dependency(range(1)),)]
    assert replay(frozen.with_job(jobs[0], details[0]), limits)[jobs[0].id].start == 60.0
    with pytest.raises(ValueError, match="huge"):
        files.submitted("c.x 4 5 after=huge", 10.0)
    with pytest.raises(ValueError, match="more than 100 jobs"):
        files.submitted("c.x 4 5 array=0-500", 10.0)
