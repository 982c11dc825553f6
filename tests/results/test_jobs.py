"""The list of jobs: exact lines, whole round trips, torn files, placements as text."""

from __future__ import annotations

import csv
import dataclasses
import errno
import math
import os
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vrm.model import Cluster, Heatmap, Infeasible, Job, JobState, Node, Placement
from vrm.model.forms.fields import ADDED, Field
from vrm.model.forms.field_types import LABEL
from vrm.results.job_columns import (COMPUTED, HEADER, MORE, NAMES, SIMULATED, JobFileError, cell, pattern, seconds_texts)
from vrm.results.jobs import JobRow, JobWriter, read_jobs
from vrm.results.placement_text import CoreRange, PlacementText, parse_cores
from vrm.scheduling import make_policy

# A busy machine is not a failure, and what the fixtures give may be used again and again.
UNTIMED = settings(deadline=None, suppress_health_check=[
    HealthCheck.too_slow, HealthCheck.function_scoped_fixture])

ROW = JobRow(3, "ft.B.x", 32, 1700000000.25, 1700000001.0, 1700000033.5, 60.0, "completed", 0,
             2.73, False, True, "n[0-3]", "n0:0/0-3+1/0-3;n1:0/0-3", "ok", "")

ENDED = [state.value for state in JobState if state.ended]
ANY_TEXT = st.text(st.characters()) | st.text(',"\\\n\r\0 nu\udcff\ud83dä')
TIMES = (st.integers(-10**9, 10**12)
         | st.floats(-1e9, 2e9).map(lambda value: round(value, 3))).map(float)


@st.composite
def job_rows(draw):
    return JobRow(
        id=draw(st.integers(0, 10**9)), app=draw(ANY_TEXT), procs=draw(st.integers(1, 10**6)),
        submit=draw(TIMES), start=draw(st.none() | TIMES), end=draw(st.none() | TIMES),
        walltime=draw(TIMES), status=draw(st.sampled_from(ENDED)),
        exit_code=draw(st.none() | st.integers(0, 255)), app_time=draw(st.none() | TIMES),
        exclusive=draw(st.booleans()), backfilled=draw(st.booleans()), nodes=draw(ANY_TEXT),
        cores=draw(ANY_TEXT), binding=draw(st.sampled_from(["", "ok", "mismatch", "unbound"])),
        reason=draw(ANY_TEXT), name=draw(ANY_TEXT), args=draw(ANY_TEXT), dir=draw(ANY_TEXT),
        index=draw(st.none() | st.integers(0, 10**6)),
        cores_per_task=draw(st.integers(1, 99)), after=draw(ANY_TEXT),
        priority=draw(st.integers(-10**9, 10**9)), retries=draw(st.integers(0, 99)),
        hold=draw(st.booleans()))


def write(path, rows, append=False):
    if not append:
        path.unlink(missing_ok=True)
    with JobWriter(path) as writer:
        for row in rows:
            writer.write(row)


# ---------------------------------------------------------------------------------- exact lines


def test_header_is_the_contract():
    assert HEADER == ("id,app,procs,submit,start,end,walltime,status,exit_code,app_time,exclusive,"
                      "backfilled,nodes,cores,binding,reason,name,args,dir,index,"
                      "cores_per_task,after,priority,retries,hold,"
                      "gpus_per_task,mem_per_task,gpus_per_node,mem_per_node,per_task,per_node,licences,"
                      "features,node_range,tasks_per_node,queue,devices,expected,memory_peak,"
                      "reservation,script,file,malleable,watts,frequency,energy,power,mates,lent,borrowed,changes,"
                      "metered,begin,cause,deadline,nodelist,exclude,coupled,cpu_time,largest_process,threads_beyond,"
                      "threads,programs_use\n")
    assert HEADER.startswith(SIMULATED[:-1]) and SIMULATED.endswith(",binding,reason\n")


@pytest.mark.parametrize("row, line", [
    (ROW, "3,ft.B.x,32,1700000000.25,1700000001,1700000033.5,60,completed,0,2.73,0,1,n[0-3],"
          "n0:0/0-3+1/0-3;n1:0/0-3,ok,,,,,,,,,,\n"),
    (JobRow(4, "mg.B.x", 8, 5.0, None, None, 10.0, "refused", reason="needs 8 nodes, has 2"),
     '4,mg.B.x,8,5,,,10,refused,,,0,0,,,,"needs 8 nodes, has 2",,,,,,,,,\n'),
    (JobRow(5, "a", 1, 0, 0, 7, 9, JobState.FAILED, 139, exclusive=True, reason='said "no"\n\\o/'),
     '5,a,1,0,0,7,9,failed,139,,1,0,,,,"said ""no""\\n\\\\o/",,,,,,,,,\n'),
    (JobRow(6, "a", 1, -0.0001, 0.0004, 1.0006, math.inf, "timeout", nodes="n[0,2]"),
     '6,a,1,0,0,1.001,inf,timeout,,,0,0,"n[0,2]",,,,,,,,,,,,\n'),
    (JobRow(7, "a", 1, 0, 0, 7, 9, "completed", name="run 1", args="-o 'a,b'", dir="/d", index=0),
     "7,a,1,0,0,7,9,completed,,,0,0,,,,,run 1,\"-o 'a,b'\",/d,0,,,,,\n"),
    (JobRow(8, "a", 2, 0, 0, 7, 9, "completed", cores_per_task=3, after="3,any:5-7", priority=-2,
            retries=1, hold=True),
     '8,a,2,0,0,7,9,completed,,,0,0,,,,,,,,,3,"3,any:5-7",-2,1,1\n'),
])
def test_line(row, line):
    later = sum(each.form > 3 for each in MORE)
    assert row.line == line[:-1] + "," * later + "\n"


def test_a_line_with_what_it_asked_of_the_machine():
    row = JobRow(9, "a", 2, 0, 0, 7, 9, "completed", gpus_per_task=1, mem_per_task="4G",
                 per_node="ssd:1,x:2", features="ib", node_range="2-4", queue="long",
                 devices="n0:gpu/0,1", expected=1.5,
                 memory_peak="106M", reservation="demo", script=True, file="/opt/a", malleable=True,
                 watts=250.5, frequency=1.8, energy=1753.5, power=250.5, mates="3,7", lent=12.5,
                 borrowed=0.5, changes=3, metered=True, begin=90.0, cause="memory",
                 deadline=7200.0, nodelist="n[1-2]", exclude="n3", coupled="a 1 : b 1", cpu_time=12.25,
                 largest_process="80M", threads_beyond=2, threads=1, programs_use="1.5 40M : 10.75 80M")
    assert row.line.endswith(
        ',,,,,1,4G,,,,"ssd:1,x:2",,ib,2-4,,long,"n0:gpu/0,1",1.5,106M,demo,1,/opt/a,1,250.5,1.8,1753.5,250.5,'
        '"3,7",12.5,0.5,3,1,90,memory,7200,n[1-2],n3,a 1 : b 1,12.25,80M,2,1,1.5 40M : 10.75 80M\n')


LEFT_OUT = len(MORE)


def first_columns(row, left_out=LEFT_OUT):
    """The line of a row whose last columns are empty, without these."""
    assert row.line.endswith("," * left_out + "\n")
    return row.line[:-left_out - 1] + "\n"


def test_the_short_line_has_the_columns_of_a_simulation():
    assert ROW.short_line == first_columns(ROW)


def test_a_pattern_gives_the_line_of_a_row():
    cells = [cell(value) for value in dataclasses.astuple(ROW)[:16]]
    assert pattern() % tuple(cells) + "\n" == ROW.short_line
    assert pattern(id="3", reason="") % tuple(cells[1:15]) + "\n" == ROW.short_line


@given(st.lists(TIMES | st.integers(0, 10**9).map(float), min_size=1))
def test_times_in_an_array_are_written_as_one_by_one(times):
    assert list(map(str, seconds_texts(np.array(times)))) == list(map(cell, times))


# ------------------------------------------------------------------------ files of older versions


OLD = JobRow(0, "old", 1, 0, 0, 1, 9, "completed", reason='a, "b"')


@pytest.mark.parametrize("columns", [16, 20, 23])
@pytest.mark.parametrize("torn", ["", "1,a,1,0"])
def test_a_file_of_an_older_version_is_continued(tmp_path, torn, columns):
    path = tmp_path / "jobs.csv"
    header = ",".join(NAMES[:columns]) + "\n"
    path.write_text(header + first_columns(OLD, len(NAMES) - columns) + torn)
    path.chmod(0o640)
    with JobWriter(path) as writer:
        assert path.read_text() == HEADER + OLD.line
        writer.write(NEW)
    assert list(read_jobs(path)) == [OLD, NEW]
    assert path.stat().st_mode & 0o777 == 0o640 and [each.name for each in tmp_path.iterdir()] == [
        "jobs.csv"]


NEW = dataclasses.replace(OLD, id=1, name="sweep", args="-n 3", dir="/data", index=4,
                          priority=5, after="0")


# ----------------------------------------------------------------------------------- round trip


@UNTIMED
@given(st.lists(job_rows(), max_size=8))
@pytest.mark.slow
def test_round_trip(tmp_path, rows):
    path = tmp_path / "jobs.csv"
    write(path, rows)
    assert list(read_jobs(path)) == rows
    content = path.read_bytes()
    assert content.count(b"\n") == len(rows) + 1, "each job is one line"
    assert b"\r" not in content and b"\0" not in content
    content.decode("utf-8")


@UNTIMED
@given(st.lists(job_rows(), max_size=8))
@pytest.mark.slow
def test_other_programs_read_the_same(tmp_path, rows):
    """The csv module sees the texts as they are, but for the escapes that keep a job on a line."""
    path = tmp_path / "jobs.csv"
    write(path, rows)
    with open(path, encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, strict=True))
    assert [int(line["id"]) for line in lines] == [row.id for row in rows]
    for line, row in zip(lines, rows):
        for column in ("app", "nodes", "cores", "reason"):
            text = getattr(row, column)
            if not any(char in "\\\n\r\0" or "\ud800" <= char <= "\udfff" for char in text):
                assert line[column] == text


def test_a_job_on_very_many_nodes(tmp_path):
    row = dataclasses.replace(ROW, cores=";".join(f"n{i}:0/0-63+1/0-63" for i in range(20000)),
                              reason='"quoted", too')
    write(tmp_path / "jobs.csv", [row])
    assert list(read_jobs(tmp_path / "jobs.csv")) == [row]


# ------------------------------------------------------------------------- crashes and reopening


def test_each_job_is_in_the_file_when_write_returns(tmp_path):
    path = tmp_path / "jobs.csv"
    with JobWriter(path) as writer:
        assert list(read_jobs(path)) == []
        for count, reason in enumerate(["", "short", "x" * 20000, "two\nlines"], 1):
            writer.write(dataclasses.replace(ROW, reason=reason))
            assert len(list(read_jobs(path))) == count


def test_reopening_continues_with_one_header(tmp_path):
    path = tmp_path / "jobs.csv"
    for number in range(3):
        with JobWriter(path) as writer:
            writer.write(dataclasses.replace(ROW, id=number))
    assert path.read_text().splitlines().count(HEADER.strip()) == 1
    assert [row.id for row in read_jobs(path)] == [0, 1, 2]


def test_a_file_torn_anywhere_keeps_its_whole_lines(tmp_path):
    path = tmp_path / "jobs.csv"
    rows = [ROW, dataclasses.replace(ROW, id=4, reason='two\nlines, "quoted", and ä')]
    write(path, rows)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    new = dataclasses.replace(ROW, id=99)
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends)
        kept = rows[:max(0, whole - 1)]
        assert list(read_jobs(path)) == kept
        with JobWriter(path) as writer:
            writer.write(new)
        assert list(read_jobs(path)) == [*kept, new]


def test_what_is_cut_off_is_gone_from_the_disk_before_something_comes_in_its_place(tmp_path, monkeypatch):
    """The death of a machine would mix the two."""
    path, sync, synced = tmp_path / "jobs.csv", os.fsync, []

    def noted(number):
        sync(number)
        synced.append((os.fstat(number).st_ino, os.fstat(number).st_size))
    monkeypatch.setattr(os, "fsync", noted)
    path.write_text(HEADER + ROW.line + "7,ft,")
    whole = len(HEADER + ROW.line)
    with JobWriter(path) as writer:
        assert synced == [(path.stat().st_ino, whole)]
        writer._begin_anew(whole)
        assert synced == [(path.stat().st_ino, whole)] * 2


def test_a_very_long_torn_line_is_cut_off(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + ROW.line + "7,ft," + "x" * 200_000)
    with JobWriter(path):
        pass
    assert path.read_text() == HEADER + ROW.line


@pytest.mark.parametrize("content", ["a,b,c\n1,2,3\n", "#!/bin/sh", "id,app\n", "\n"])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "jobs.csv"
    path.write_text(content)
    with pytest.raises(JobFileError, match=r"jobs\.csv:1: .*move it away"):
        JobWriter(path)
    assert path.read_text() == content


@pytest.mark.parametrize("whole, rest", [
    ("", "\0" * 10), ("", HEADER[:20] + "\0" * 600), (HEADER, "\0" * 512 + ROW.line),
    (HEADER + ROW.line, ROW.line[:9] + "\0\0" + ROW.line)])
def test_what_a_dead_machine_leaves_is_cut_off(tmp_path, whole, rest):
    """Zeros are where its disk had nothing yet; the journal has the jobs that are behind them."""
    path = tmp_path / "jobs.csv"
    path.write_text(whole + rest)
    with JobWriter(path) as jobs:
        jobs.write(ROW)
    assert path.read_text() == (whole or HEADER) + ROW.line


def test_a_disk_that_becomes_read_only_is_tried_again(tmp_path, monkeypatch):
    path = tmp_path / "jobs.csv"
    with JobWriter(path) as jobs:
        jobs.write(ROW)

        def refuse(*_):
            raise OSError(errno.EROFS, "Read-only file system")
        file = jobs._file
        monkeypatch.setattr(os, "truncate", refuse)
        jobs._file = types.SimpleNamespace(write=refuse, close=file.close)
        for _ in range(2):
            with pytest.raises(OSError):
                jobs.write(ROW)
        monkeypatch.undo()
        jobs.write(ROW)
    assert path.read_text() == HEADER + 2 * ROW.line


def test_a_killed_writer_leaves_whole_jobs(tmp_path):
    path = tmp_path / "jobs.csv"
    program = ("import sys; from vrm.results.jobs import *\n"
               "writer = JobWriter(sys.argv[1])\n"
               "for i in range(10**9):\n"
               "    writer.write(JobRow(i, 'ft.B.x', 1, i, i, i, 1, 'completed'))\n")
    process = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        deadline = time.monotonic() + 60
        while not path.exists() or path.stat().st_size < 100_000:
            assert process.poll() is None and time.monotonic() < deadline
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = [row.id for row in read_jobs(path)]
    assert before == list(range(len(before))) and len(before) > 1000
    write(path, [dataclasses.replace(ROW, id=len(before))], append=True)
    assert [row.id for row in read_jobs(path)] == [*before, len(before)]


# -------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("line, message", [
    ("x,a,1,0,0,1,1,completed,,,0,0,,,,", "id: invalid literal for int"),
    ("1,a,1,zero,0,1,1,completed,,,0,0,,,,", "submit: could not convert"),
    ("1,a,1,0,0,1,1,done,,,0,0,,,,", "status: `done` is not one of completed, failed"),
    ("1,a,1,0,0,1,1,completed,,,yes,0,,,,", "exclusive: `yes` is neither 0 nor 1"),
    ("1,a,1,0", "the line ends before `start`"),
    ("", "id: invalid literal"),
])
def test_bad_lines_are_told_with_their_place(tmp_path, line, message):
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + ROW.line + line + "\n" + ROW.line)
    rows = read_jobs(path)
    assert next(rows) == ROW, "what comes before the bad line is read"
    with pytest.raises(JobFileError, match=f"jobs.csv:3: {message}"):
        next(rows)


def test_a_stray_quote_spoils_no_other_line(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + ROW.line.replace("ok", '"ok') + ROW.line)
    with pytest.raises(JobFileError, match="jobs.csv:2: the line ends before `reason`"):
        list(read_jobs(path))


def test_columns_are_found_by_name(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("user,id,app,procs,submit,start,end,walltime,status\r\n"
                    "ada,1,ft.B.x,4,0,1.5,2,10,completed\r\n")
    assert list(read_jobs(path)) == [JobRow(1, "ft.B.x", 4, 0.0, 1.5, 2.0, 10.0, "completed")]


def test_missing_columns_are_named(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("id,app,procs,submit,start,end\n")
    with pytest.raises(JobFileError, match="jobs.csv:1: .*`walltime`, `status`"):
        list(read_jobs(path))


def test_an_empty_file_has_no_jobs(tmp_path):
    (tmp_path / "jobs.csv").write_text("")
    assert list(read_jobs(tmp_path / "jobs.csv")) == []


def test_a_missing_file_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_jobs(tmp_path / "jobs.csv"))
    with pytest.raises(FileNotFoundError):
        JobWriter(tmp_path / "no" / "jobs.csv")


def test_columns_are_the_fields():
    assert [*NAMES, "more"] == [field.name for field in dataclasses.fields(JobRow)]


# ------------------------------------------------------------------------- columns of extensions


QUOTED = JobRow(1, "a", 1, 0.0, 1.0, 2.0, 9.0, "completed", reason='x, "y"')


@pytest.fixture
def colour(monkeypatch):
    """A field and a column that an extension adds."""
    monkeypatch.setitem(ADDED, "colour", Field("colour", LABEL, column="colour"))
    monkeypatch.setitem(COMPUTED, "doubled", lambda row: 2 * (row.end - row.start))


def test_columns_of_extensions_are_behind_all_others(tmp_path, colour):
    path = tmp_path / "jobs.csv"
    with JobWriter(path) as out:
        out.write(dataclasses.replace(QUOTED, more=(("colour", "deep, blue"),)))
        out.write(QUOTED)
    first, second = read_jobs(path)
    assert path.read_text().splitlines()[0].endswith("programs_use,colour,doubled")
    assert (first.added("colour"), first.added("doubled")) == ("deep, blue", "2")
    assert (second.added("colour", "none"), second.reason) == ("none", 'x, "y"')


def test_a_file_is_continued_when_an_extension_has_come_or_gone(tmp_path, monkeypatch):
    path = tmp_path / "jobs.csv"
    JobWriter(path).close()
    with JobWriter(path) as out:
        out.write(QUOTED)
    monkeypatch.setitem(COMPUTED, "doubled", lambda row: 2 * (row.end - row.start))
    monkeypatch.setitem(COMPUTED, "start_again", lambda row: row.start)
    with JobWriter(path) as out:  # they have come
        out.write(dataclasses.replace(QUOTED, id=2))
    monkeypatch.delitem(COMPUTED, "doubled")
    with JobWriter(path) as out:  # one has gone
        out.write(dataclasses.replace(QUOTED, id=3))
    assert path.read_text().splitlines()[0] == ",".join([*NAMES, "start_again", "doubled"])
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["reason"], row["start_again"], row["doubled"]) for row in rows] == [
        ("1", 'x, "y"', "", ""), ("2", 'x, "y"', "1", "2"), ("3", 'x, "y"', "1", "")]
    path.write_text(path.read_text().replace("start_again,doubled", "doubled,doubled", 1))
    with pytest.raises(JobFileError, match="not a list of jobs that can be continued"):
        JobWriter(path)


# ----------------------------------------------------------------------------------- placements


def plain_cores(placement, nodes):
    """The column `cores`, from the place of every rank."""
    text = {}
    for slot in placement.slots(nodes):
        text.setdefault(slot.node, {}).setdefault(slot.socket, []).extend(slot.cores)
    parts = []
    for node, sockets in text.items():
        for cores in sockets.values():
            assert cores == list(range(cores[0], cores[-1] + 1))
        runs = [f"{socket}/{cores[0]}" + (f"-{cores[-1]}" if len(cores) > 1 else "")
                for socket, cores in sockets.items()]
        parts.append(f"{nodes[node].name}:{'+'.join(runs)}")
    return ";".join(parts)


@UNTIMED
@given(st.data())
@pytest.mark.slow
def test_placements_as_text(data):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    count = data.draw(st.integers(1, 12))
    first = data.draw(st.integers(0, 3))
    names = data.draw(st.sampled_from([
        [f"n{i}" for i in range(first, first + count)],
        [f"cn{i:03}" for i in range(first, first + count)],
        [f"r{i // 4}n{i % 4}" for i in range(count)],
        ["alpha", "beta", *(f"n{i}" for i in range(count - 2))][:count],
    ]))
    cluster = Cluster(Node(name, tuple(shape)) for name in names)
    policy = make_policy(data.draw(st.sampled_from(["compact", "spare", "strip"])), cluster,
                         Heatmap({}))
    writer = PlacementText(cluster.nodes)
    for number in range(data.draw(st.integers(1, 8))):
        job = Job(number, data.draw(st.sampled_from(["ft.B.x", "is.B.x"])),
                  data.draw(st.integers(1, 2 * cluster.cores)), 10.0,
                  exclusive=data.draw(st.booleans()), cores=data.draw(st.integers(1, 3)))
        try:
            placement = policy.place(job, cluster)
        except Infeasible:
            continue
        if not placement:
            continue
        cluster.book(job, placement, 0.0)
        taken = [names[node] for node in placement.nodes]
        assert writer.nodes(placement) == str(NodeSet.fromlist(taken))
        cores = writer.cores(placement)
        assert cores == plain_cores(placement, cluster.nodes)
        assert [name for name, _ in parse_cores(cores)] == taken
        assert sum(last - start + 1 for _, ranges in parse_cores(cores)
                   for _, start, last in ranges) == job.procs * job.cores
        if data.draw(st.booleans()):  # what comes later gets nodes with gaps between
            cluster.release(data.draw(st.sampled_from(sorted(cluster.bookings))))


def test_nodes_with_gaps_are_folded():
    cluster = Cluster.regular(200, 2, 4)
    writer = PlacementText(cluster.nodes)
    for numbers, text in [([0], "n0"), ([199], "n199"), ([0, 1, 2], "n[0-2]"), ([0, 2], "n[0,2]"),
                          ([3, 5, 6, 7, 100, 198, 199], "n[3,5-7,100,198-199]")]:
        taken = sum(1 << number for number in numbers)
        assert writer.nodes(Placement("whole", (taken, taken), (taken,), 8)) == text


def test_parse_cores():
    assert parse_cores("n1:0/0-3+1/7;n0:0/2-2") == [
        ("n1", [CoreRange(0, 0, 3), CoreRange(1, 7, 7)]), ("n0", [CoreRange(0, 2, 2)])]
    assert parse_cores("") == []


@pytest.mark.parametrize("text", ["n0", "n0:", "n0:0/", "n0:0/1-", "n0:a/0-3", "n0:0/0-3;"])
def test_parse_cores_refuses(text):
    with pytest.raises(ValueError, match="socket/first-last"):
        parse_cores(text)
