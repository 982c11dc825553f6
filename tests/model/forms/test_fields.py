"""The table of job fields: every field goes through every form, and a new one is one row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import mpirun_environment, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vrm.live.manager.records import snapshot
from vrm.model import Dependency, Job
from vrm.model.amounts import amounts
from vrm.model.forms.fields import LINE, OF_JOB, REQUEST, RESULT, TABLE, getter, made
from vrm.model.job import ANY, FAIL, OK, PLAIN, START, Component, Details, Request
from vrm.results import state
from vrm.results.jobs import JobRow, JobWriter, fields_of, read_jobs, submitted
from vrm.run.journal import codec
from vrm.run.journal import record_checks as journal_check
from vrm.run.journal.history import EVENTS, replay
from vrm.api import Machine, Recording, Rules, Submission, simulate
from vrm.workload.grammar import COLUMNS, FIELDS, QueueLine, parse_line

TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=9)
IDS = st.integers(0, 999)
DEPENDENCY = st.builds(lambda first, more, kind, delay: Dependency(
    range(first, first + 1 + more), kind, delay=delay if kind == START else 0.0), IDS, IDS,
    st.sampled_from((OK, ANY, START, FAIL)), st.sampled_from([0.0, 1.0, 90.0, 86400.0, 0.5]))
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("gpu", "gpus", "mem", "memory"))
AMOUNTS = st.dictionaries(NAME, st.integers(1, 10**6).map(lambda amount: amount / 1000),
                          max_size=3).map(amounts)
HOST = st.from_regex(r"[a-m][a-z0-9-]{0,3}[0-9]{0,3}[a-z]", fullmatch=True)
BYTES = st.integers(0, 1 << 44)
TIMES = st.integers(1, 10**9).map(float) | st.floats(0.001, 10**6).map(
    lambda value: round(value, 3))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "app": st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_. ]{0,9}", fullmatch=True).filter(
        lambda app: app == app.strip()),
    "procs": st.integers(1, 10**9 - 1),
    "walltime": TIMES, "believed": st.none() | TIMES,
    "exclusive": st.booleans(), "cores": st.integers(1, 999),
    "name": TEXT.filter(lambda name: name.isprintable() and not set(name) <= set("0123456789:,-")
                        and not name.startswith(("any:", "start:", "fail:"))),
    "begin": TIMES, "after": st.lists(DEPENDENCY, max_size=3, unique=True).map(tuple),
    "priority": st.integers(-10**9 + 1, 10**9 - 1), "retries": st.integers(0, 9999),
    "variables": st.dictionaries(st.from_regex(r"[A-UW-Z_][A-Za-z0-9_]{0,5}", fullmatch=True), TEXT,
                                 max_size=3),
    "arguments": st.lists(TEXT.filter(lambda word: word != ":"), max_size=3).map(tuple),
    "directory": TEXT, "held": st.booleans(), "index": st.none() | st.integers(0, 9999),
    "gpus_per_task": st.integers(0, 99), "gpus_per_node": st.integers(0, 99),
    "mem_per_task": BYTES, "mem_per_node": BYTES, "others_per_task": AMOUNTS,
    "others_per_node": AMOUNTS, "licences": AMOUNTS.map(
        lambda found: tuple((name, max(1, amount // 1000) * 1000) for name, amount in found)),
    "features": st.frozensets(NAME, max_size=3), "nodes": st.sampled_from([(1, 0), (1, 1), (1, 9)]),
    "tasks_per_node": st.integers(0, 0) | st.integers(10**9 - 1, 10**9 - 1),
    "threads": st.integers(0, 8),
    "script": st.booleans(), "file": st.just("") | TEXT, "copy": st.just("") | NAME,
    "queue": st.just("") | NAME, "requeue": st.sampled_from(["", "yes", "no"]), "reservation": st.just("") | NAME,
    "front": st.just("") | NAME, "environment": st.just("") | NAME, "output": st.just("") | TEXT,
    "errors": st.just("") | TEXT, "input": st.just("") | TEXT, "append": st.booleans(),
    "array_id": st.integers(0, 99), "limit": st.just("") | NAME, "comment": st.just("") | TEXT,
    "malleable": st.booleans(),
    "watts": st.just(0.0) | TIMES,
    "deadline": TIMES, "nodelist": st.frozensets(HOST, max_size=1), "exclude": st.frozensets(HOST.map("x".__add__), max_size=4),
    "each": st.lists(TEXT, max_size=2).map(tuple), "title": st.just("") | TEXT, "warning": st.just("") | TEXT,
    "singleton": st.just("") | NAME, "throttle": st.integers(0, 99)}
"""What each field may be, by its attribute: a new row of the table needs one here, too."""

ASKED = [field.at for field in TABLE if field.kept == REQUEST and field.at != "licences"]
VALUES["components"] = st.just(()) | st.lists(st.builds(
    lambda app, ranks, cores, alone, asked, words: Component(app, Request.of_fields(ranks, cores, alone, asked), words),
    VALUES["app"], st.integers(1, 99), st.integers(1, 9), st.booleans(),
    st.fixed_dictionaries({name: VALUES[name] for name in ASKED}), VALUES["arguments"]), min_size=2, max_size=3).map(tuple)


def agreed(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a job that can be: what a coupled one asks for is said of its programs."""
    if (values["index"] or 0) >= len(values["each"]):
        values = {**values, "each": ()}
    programs = values["components"]
    if not programs:
        return values
    defaults = {field.at: field.default for field in TABLE if field.at in (*ASKED, "arguments", "file", "script", "malleable")}
    return {**values, **defaults, "procs": sum(each.request.tasks for each in programs),
            "cores": max(each.request.cores_per_task for each in programs),
            "exclusive": all(each.request.exclusive for each in programs)}


JOBS = st.fixed_dictionaries(VALUES).filter(
    lambda values: values["believed"] != values["walltime"]  # then nothing is said of it
).map(agreed)


def test_every_field_is_known_to_this_test() -> None:
    assert {field.at for field in TABLE if field.kept not in (LINE, RESULT)} == set(VALUES)


def test_names_are_taken_once() -> None:
    for form in ("word", "at", "record", "shown", "column"):
        names = [getattr(field, form) for field in TABLE if getattr(field, form)]
        assert len(names) == len(set(names)), form


def values_of(job: Job, details: Details) -> dict[str, Any]:
    """All fields by their attributes."""
    return {field.at: getter(field)(job if field.kept in OF_JOB else details)
            for field in TABLE if field.kept not in (LINE, RESULT)}


@given(JOBS)
def test_a_job_has_the_values_that_it_was_made_of(values: dict[str, Any]) -> None:
    assert values_of(*made(values, 7, 3.0)) == values


@given(JOBS)
def test_every_field_in_a_queue_line(values: dict[str, Any]) -> None:
    said = {field.at: field for field in TABLE if field.word and field.word != "each"}  # a pattern there
    line = QueueLine(values["app"], values["procs"], values["walltime"], values["exclusive"],
                     fields={field.word: values[at] for at, field in said.items()
                             if field.word in FIELDS and at in values and values[at] != field.default
                             and not (at == "cores" and values["components"])})
    assert parse_line(str(line)) == line
    assert parse_line(str(line)).values == {
        at: values[at] for at, field in said.items() if at in values
        and (field.word in COLUMNS or field.word in line.fields)}


@given(JOBS, st.lists(st.integers(0, 99), max_size=3, unique=True).map(tuple))
def test_every_field_in_a_journal(values: dict[str, Any], indices: tuple[int, ...]) -> None:
    job, details = made({**values, "index": None}, 7, 3.0)
    record = json.loads(json.dumps({"event": "job", **codec.job_record(job, details, indices)}))
    assert journal_check.fault(record) == ""
    assert EVENTS["job"].fault(replay([{"event": "run", "run": "a", "format": 2}]), record) == ""
    jobs, again, found = codec.jobs_of(record)
    assert [each.id for each in jobs] == list(range(7, 7 + (len(indices) or 1)))
    assert (jobs[0], again, tuple(found)) == (job, details, indices)


@given(JOBS)
def test_every_field_in_the_state(values: dict[str, Any]) -> None:
    job, details = made(values, 7, 3.0)
    facts = json.loads(json.dumps({**snapshot._facts(job, details), "state": "queued"}))
    assert state._job(facts)
    index = str(values["index"])
    shown = {**state.JOB, **facts}
    for field in TABLE:
        if field.shown and field.kept != LINE:
            assert shown[field.shown] == field.kind.plain(values[field.at]), field
    full, = state._jobs(facts)
    assert full["args"] == (shown["args"] if values["index"] is None
                            else shown["args"].replace("%i", index))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(JOBS)
def test_every_field_in_jobs_csv_and_in_a_replay(tmp_path: Path, values: dict[str, Any]) -> None:
    job, details = made(values, 7, 3.0)
    row = JobRow(7, job.app, job.procs, 3.0, 4.0, 5.0, job.walltime, "completed",
                 exclusive=job.exclusive, **fields_of(job, details))
    path = tmp_path / "jobs.csv"
    path.unlink(missing_ok=True)
    with JobWriter(path) as writer:
        writer.write(row)
    read, = read_jobs(path)
    assert read == row
    again, same = submitted(read, 3.0)
    own = job.but(payload=job.payload.own(details.index))
    kept = {field.at for field in TABLE if field.column}
    assert {at: value for at, value in values_of(again, same).items() if at in kept} == {
        at: value for at, value in values_of(own, details).items() if at in kept}


def test_what_older_files_do_not_say_has_its_default() -> None:
    row = JobRow(7, "a.x", 4, 3.0, 4.0, 5.0, 9.0, "completed", cores="n0:0/0-7")
    job, details = submitted(row, 1.0)
    assert (job.cores, job.submit, details) == (2, 1.0, PLAIN)
    record = {"id": 7, "app": "a.x", "procs": 4, "estimate": 9.0, "submit": 3.0,
              "exclusive": False, "cores": 2, "after": [[3, False], [5, True]]}
    (job,), details, _ = codec.jobs_of(record)
    assert details == Details((Dependency.on(3), Dependency.on(5, ANY)))
    assert values_of(job, PLAIN) == {
        **{field.at: field.default for field in TABLE if field.kept not in (LINE, RESULT)},
        "app": "a.x", "procs": 4, "walltime": 9.0, "cores": 2}


# ------------------------------------------------------------------------- what acts in a replay


def recorded(path: Path, *rows: JobRow) -> Path:
    with JobWriter(path) as writer:
        for row in rows:
            writer.write(row)
    return path


def test_a_replay_of_jobs_csv_obeys_priority_and_dependencies(tmp_path: Path) -> None:
    def row(job: int, start: float, **more: Any) -> JobRow:
        return JobRow(job, f"a{job}", 1, 0.0, start, start + 10, 10.0, "completed", **more)

    path = recorded(tmp_path / "jobs.csv", row(0, 0.0), row(1, 20.0), row(2, 10.0, priority=3),
                    row(3, 40.0, after="1", name="last"), row(4, 30.0, hold=True))
    outcome = simulate(path, Machine.of(1), record=Recording(out=tmp_path / "again"))
    assert {job.id: job.start for job in outcome.jobs} == {2: 0, 0: 10, 1: 20, 3: 30, 4: 40}
    assert {job.id: (job.priority, job.after, job.name, job.hold)
            for job in read_jobs(tmp_path / "again" / "jobs.csv")} == {
        0: (0, "", "", False), 1: (0, "", "", False), 2: (3, "", "", False),
        3: (0, "1", "last", False), 4: (0, "", "", True)}


def test_a_field_of_jobs_csv_that_makes_no_sense_is_reported(tmp_path: Path) -> None:
    from vrm.simulation.inputs import WorkloadError
    path = recorded(tmp_path / "jobs.csv",
                    JobRow(3, "a", 1, 0.0, 0.0, 9.0, 9.0, "completed", after="3-"))
    with pytest.raises(WorkloadError, match="job 3: .*3-"):
        simulate(path, Machine.of(1))


# ---------------------------------------------------------------------------------- one more row

ONE_MORE = """
import sys
from vrm.model.forms.fields import TABLE, Field, Option
from vrm.model.forms.field_types import LABEL

TABLE.append(Field("colour", LABEL, "a colour", default="", record="colour", shown="colour",
                   column="colour", form=4, option=Option("COLOUR", "the job's colour")))
from vrm.cli import main
sys.exit(main())
"""

CONFIG = """
Applications: {Path: bin, Queue: queue}
Nodes: 2
Sockets: 1
Cores: 2
Emulate: true
Launcher: {Kind: direct}
Log: log
"""


@pytest.mark.slow
def test_a_new_field_is_one_row(tmp_path: Path) -> None:
    """It is in the queue line, in submit, journal, state, queue --json, jobs.csv, and in a replay."""
    program = tmp_path / "one_more.py"
    program.write_text(ONE_MORE)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "job").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "bin" / "job").chmod(0o755)
    (tmp_path / "vrm.yaml").write_text(CONFIG)
    queue, log = tmp_path / "queue", tmp_path / "log"
    queue.write_text("job 1 60 0 hold=1 colour=blue\njob 1 60 0 colour=\n")

    def words(*more: str) -> list[str]:
        return [sys.executable, str(program), "-c", str(tmp_path / "vrm.yaml"), *more]

    def vrm(*more: str) -> str:
        done = subprocess.run(words(*more), cwd=tmp_path, env=mpirun_environment(),
                              capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""

    with open(tmp_path / "said", "w") as said:
        manager = subprocess.Popen(words(), cwd=tmp_path, env=mpirun_environment(), stdout=said,
                                   stderr=said, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: vrm("submit", "job", "1", "60", "--hold", "--colour", "green"),
                   "a job is submitted")
        seen = wait_until(lambda: {job["id"]: job["colour"]
                                   for job in json.loads(vrm("-i", "queue", "--json"))["jobs"]},
                          "jobs wait")
        assert seen[0] == "blue"
        assert "--colour COLOUR" in vrm("help", "submit", "--all")
        with queue.open("a") as lines:
            lines.write("end\n")
        wait_until(lambda: vrm("release", "all"), "jobs are released")
        manager.wait(60)
    finally:
        manager.kill()
        manager.wait()
    text = (tmp_path / "said").read_text()
    assert "queue:2: colour: found nothing, wanted a colour" in text
    records = [json.loads(line) for line in (log / "journal").read_bytes().split(b"\n") if line]
    colours = {record["id"]: record.get("colour") for record in records
               if record["event"] == "job"}
    assert colours == {0: "blue", 1: None, 2: "green"}, text
    assert '"colour":' in vrm("queue", "--all", "--json")
    header, *lines = (log / "jobs.csv").read_text().splitlines()
    assert header.endswith(",colour")
    assert {line.split(",")[0]: line.split(",")[-1] for line in lines} == {
        "0": "blue", "1": "", "2": "green"}
    vrm("simulate", str(log / "jobs.csv"), "--nodes", "2", "--out", str(tmp_path / "again"))
    lines = (tmp_path / "again" / "jobs.csv").read_text().splitlines()[1:]
    assert sorted(line.split(",")[-1] for line in lines) == ["blue", "green"]


# ------------------------------------------------------------------- the limit, and what is expected


def test_limits_go_by_the_walltime_and_scheduling_by_what_is_expected() -> None:
    """Job 2 fits before job 1 starts, by what is expected of 0 and 2; job 0 is ended at its limit."""
    jobs = [Job(0, "a", 1, 100.0, expected=50.0), Job(1, "a", 2, 60.0), Job(2, "a", 1, 150.0,
                                                                           expected=50.0)]
    runs = [200.0, 10.0, 30.0]
    outcome = simulate(map(Submission, jobs, runs), Machine.of(2), Rules(backfill="easy", kill=True))
    assert {job.id: (job.start, job.end, job.status) for job in outcome.jobs} == {
        2: (0, 30, "completed"), 0: (0, 100, "timeout"), 1: (100, 110, "completed")}
    limits = [job.but(expected=job.walltime) for job in jobs]
    outcome = simulate(map(Submission, limits, runs), Machine.of(2), Rules(backfill="easy", kill=True))
    assert {job.id: job.start for job in outcome.jobs} == {0: 0, 1: 100, 2: 110}


def test_a_request_is_a_key() -> None:
    one, other = (Job(number, "a", 4, 9.0, cores=2, resources={"gpu": 1, "disk": 0.1, "net": 0},
                      features=frozenset({"fast"})) for number in range(2))
    assert one.request == other.request and hash(one.request) == hash(other.request)
    assert one.request.per_task == (("disk", 100), ("gpu", 1000))
    assert one.request.cores == 8
    plain = Job(2, "a", 4, 9.0)
    assert plain.request is Job(3, "b", 4, 10.0).request and plain.request != one.request
    with pytest.raises(ValueError, match="amount"):
        Job(4, "a", 1, 1.0, resources={"gpu": -1})
