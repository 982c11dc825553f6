"""Tables and logs as workloads: what their rows become, and what is said of dirt and mistakes."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vrm.model.job import Request
from vrm.simulation.inputs import open_workload
from vrm.workload.rows import RowRequest, clock, gibibytes, moment, program, request_of, whole
from vrm.workload.submission import Submission
from vrm.workload.swf import Selection, Trace, TraceError
from vrm.ext.formats.table import TableWorkload, amount_of

DATA = Path(__file__).parent / "data"
GIB = 1 << 30
ALL = frozenset({"gpu", "memory", "mic", "ssd"})


def read(name: Any, rules: Selection = Selection(memory=True, resources=ALL), **more: Any) -> Any:
    workload = open_workload(DATA / name if isinstance(name, str) else name, rules, **more)
    return workload, {one.job.id: one for one in workload}


def asks(one: Submission) -> dict[str, Any]:
    """What of a request is not the default."""
    plain = Request(1)
    return {name: value for name, value in one.job.request._asdict().items()
            if value != getattr(plain, name)}


# ------------------------------------------------------------------------------------ rows


@pytest.mark.parametrize("asked, wanted", [
    ({"cores": 4}, {"tasks": 4}),
    ({"nodes": 1, "cores": 4}, {"tasks": 4, "nodes": (1, 1)}),
    ({"nodes": 2, "cores": 5}, {"tasks": 5, "nodes": (2, 2), "tasks_per_node": 3}),
    ({"tasks": 2, "cores": 8}, {"tasks": 2, "cores_per_task": 4}),
    ({"nodes": 2, "cores": 4, "total": {"memory": 8, "gpu": 3}},
     {"tasks": 4, "nodes": (2, 2), "tasks_per_node": 2, "per_node": (("gpu", 2000), ("memory", 4 * GIB))}),
    ({"cores": 4, "total": {"memory": 8, "gpu": 4}},
     {"tasks": 4, "per_task": (("gpu", 1000), ("memory", 2 * GIB))}),
    ({"cores": 4, "total": {"memory": 8, "gpu": 1}},
     {"tasks": 4, "nodes": (1, 1), "per_node": (("gpu", 1000), ("memory", 8 * GIB))}),
    ({"cores": 4, "per_task": {"memory": 1}, "per_node": {"ssd": 1}, "licences": {"a": 2}},
     {"tasks": 4, "per_task": (("memory", GIB),), "per_node": (("ssd", 1000),), "licences": (("a", 2000),)}),
    ({"nodes": 9, "cores": 1}, {"tasks": 9, "nodes": (9, 9), "tasks_per_node": 1}),
    ({"nodes": 9, "tasks": 2}, {"tasks": 2, "cores_per_task": 4, "nodes": (2, 2), "tasks_per_node": 1}),
])
def test_a_row_becomes_a_request(asked: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert request_of(RowRequest(1, 0, 1, **asked)) == Request(**wanted)


def test_with_units_a_row_of_n_nodes_is_n_tasks() -> None:
    row = RowRequest(1, 0, 1, nodes=2, cores=8, total={"memory": 8, "gpu": 2})
    assert request_of(row, units=True) == Request(
        2, 4, per_task=(("gpu", 1000), ("memory", 4 * GIB)))
    assert request_of(RowRequest(1, 0, 1, cores=3), units=True) == Request(1, 3)


def test_words_of_logs() -> None:
    assert [clock(text) for text in ("1-00:00:01", "02:00:00", "10:30", "00:00.250", "90", "UNLIMITED", "-1")
            ] == [86401, 7200, 630, 0, 90, 0, 0]
    assert [gibibytes(text, "m") for text in ("1024", "2G", "2.50Gb", "1048576kb", "1T")] == [
        1, 2, 2.5, 1, 1024]
    assert gibibytes("1073741824") == 1 and whole("1.5K") == 1500 and whole("") == 0
    assert moment("1970-01-02") == moment("1970-01-02T01:00:00+01:00") == 86400
    assert moment("Unknown") is None and program("my job/1") == "my_job_1" and program("--") == "app"
    for text in ("much", "-1G"):
        with pytest.raises(ValueError):
            gibibytes(text)


# ------------------------------------------------------------------------------------ sacct


def test_a_dump_of_sacct() -> None:
    workload, jobs = read("sacct.txt")
    assert sorted(jobs) == [1001, 1002, 1004, 1005, 1007, 1009]
    assert asks(jobs[1001]) == {
        "tasks": 8, "per_node": (("gpu", 2000), ("memory", 32 * GIB)), "nodes": (1, 1),
        "features": frozenset({"ib", "ssd"})}
    one = jobs[1001].job
    assert (one.submit, one.walltime, jobs[1001].run, one.user, one.app, one.queue) == (
        0, 14400, 3600, "ann", "train_net.sh", "gpu")
    assert asks(jobs[1002]) == {"tasks": 128, "per_node": (("memory", 62.5 * GIB),), "nodes": (4, 4),
                                    "tasks_per_node": 32}
    assert (jobs[1002].run, jobs[1002].job.walltime) == (91800, 172800)
    assert asks(jobs[1004]) == {"per_node": (("memory", 4 * GIB),), "nodes": (1, 1)}
    assert asks(jobs[1005]) == {"per_node": (("memory", 4 * GIB),), "nodes": (1, 1),
                                    "licences": (("ansys", 2000),)}
    assert jobs[1007].run == 1200 and jobs[1007].job.submit == 1200
    assert asks(jobs[1009]) == {"tasks": 4, "nodes": (2, 2), "tasks_per_node": 2}
    assert workload.waited == {1001: 10, 1002: 1800, 1004: 0, 1005: 0, 1007: 300, 1009: 0}
    assert workload.unix_start == 1709280000
    assert workload.dirt == {
        "lines of steps (no jobs)": 3, "constraints with choices: not followed": 1,
        "dropped: cut off, or with other columns than the header": 2,  # a | in it, and the last
        "dropped: never ran": 2, "dropped: has not ended": 1,
        "dropped: an earlier run of a job that was requeued": 1,
        "no requested time: run time instead": 2}


def test_a_dump_of_an_older_slurm() -> None:
    workload, jobs = read("sacct-old.txt")
    assert asks(jobs[17]) == {"tasks": 8, "nodes": (2, 2), "tasks_per_node": 4,
                                  "per_node": (("gpu", 1000), ("memory", 16000 << 20))}
    assert asks(jobs[18]) == {"tasks": 8, "nodes": (2, 2), "tasks_per_node": 4,
                                  "per_node": (("gpu", 2000), ("memory", 8 * GIB))}
    assert (jobs[18].run, jobs[18].job.walltime) == (90000, 90000)
    array = jobs[1 << 40]
    assert asks(array) == {"nodes": (1, 1), "per_node": (("memory", int(2.5 * GIB)),)}
    assert array.job.walltime == 600
    kept = Selection(memory=True, resources=ALL, keep_estimates=True)
    assert read("sacct-old.txt", kept)[1][18].job.walltime == 86400
    assert not any("craynetwork" in reason for reason in workload.dirt)  # it asked for 0 of them


@pytest.mark.parametrize("text, message", [
    ("JobID|User|State\n", "w.txt:1: no column Submit, Start, End, AllocTRES; make the dump with: sacct"),
    ("\n" + (DATA / "sacct.txt").read_text().replace("32G,node=1|billing", "32Q,node=1|billing"),
     "w.txt:3: not a value of its column (32Q); make the dump with: sacct"),
    ((DATA / "sacct.txt").read_text().replace("T08:00:00|2024", "T25:00:00|2024"), "w.txt:2: not a value"),
])
def test_a_dump_that_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "w.txt"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


# -------------------------------------------------------------------------------------- PBS


def test_a_log_of_pbs() -> None:
    workload, jobs = read("pbs.log")
    array = 1 << 40
    assert sorted(jobs) == [11, 12, 14, array]
    assert asks(jobs[11]) == {
        "tasks": 32, "nodes": (2, 2), "tasks_per_node": 16, "exclusive": True,
        "per_node": (("gpu", 2000), ("memory", 4 * GIB))}
    one = jobs[11].job
    assert (one.submit, one.walltime, jobs[11].run, one.user, one.app, one.queue) == (
        0, 7200, 3600, "ann", "cfd", "workq")
    assert asks(jobs[12]) == {"tasks": 3, "nodes": (1, 1), "per_node": (("memory", 1536 << 20),)}
    assert (jobs[12].job.submit, jobs[12].run) == (100, 600)
    assert asks(jobs[array]) == {"tasks": 5, "nodes": (3, 3), "tasks_per_node": 2, "per_node": (("mic", 667),)}
    assert asks(jobs[14]) == {"tasks": 4, "nodes": (2, 2), "tasks_per_node": 2, "per_node": (("gpu", 1000),)}
    assert workload.waited[12] == 4700 and workload.unix_start == 1709280000
    assert workload.dirt == {"chunks that differ: taken as equal ones": 1, "dropped: never ran": 1,
                             "dropped: no record, or cut off": 2, "no requested time: run time instead": 1}


def test_a_record_that_is_not_understood_has_its_place(tmp_path: Path) -> None:
    path = tmp_path / "20240301"
    path.write_text((DATA / "pbs.log").read_text().replace("mem=4gb", "mem=4qb"))
    with pytest.raises(TraceError, match="20240301:3: job 11.head: 4qb is not understood; correct"):
        read(path)


# ------------------------------------------------------------------------------------ Eurora


def test_a_trace_of_eurora() -> None:
    workload, jobs = read("eurora.log")
    assert asks(jobs[498605]) == {"tasks": 16, "nodes": (1, 1),
                                      "per_node": (("gpu", 1000), ("memory", 4 * GIB))}
    assert asks(jobs[498629]) == {"tasks": 32, "nodes": (2, 2), "tasks_per_node": 16,
                                      "per_node": (("gpu", 2000), ("memory", GIB))}
    assert dict(jobs[498676].job.request.per_node) == {"memory": 12 * GIB, "mic": 1000}
    assert jobs[498676].job.walltime == 86400 and jobs[498605].run == 13088
    assert workload.waited[498605] == 17872
    assert workload.dirt == {"dropped: no job, or cut off": 1}
    units = read("eurora.log", Selection(units=True))[1]
    assert asks(units[498629]) == {"tasks": 2, "cores_per_task": 16, "per_task": (("gpu", 2000),)}


# --------------------------------------------------------------------------------------- CSV


TABLE = """# what a site writes
Submit,Job ID,start,end,Estimate,queue,requested_nodes,requested-cores,gpus,mics,mem_mib,placed,features
10,7,20,30,1:00:00,debug,2,32,4,0,2048,x y,"ib,ssd"
5,8,,,60,debug,1,1,0,0,512,,
12,9,20,80,60,,1,1,,1,,,
"""


def test_a_table_of_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    path.write_text(TABLE)
    workload, jobs = read(path)
    assert asks(jobs[7]) == {"tasks": 32, "nodes": (2, 2), "tasks_per_node": 16,
                                 "features": frozenset({"ib", "ssd"}),
                                 "per_node": (("gpu", 2000), ("memory", GIB))}
    assert (jobs[7].job.submit, jobs[7].run, jobs[7].job.walltime, jobs[7].job.queue) == (
        10, 10, 3600, "debug")
    assert asks(jobs[9]) == {"nodes": (1, 1), "per_node": (("mic", 1000),)}
    assert workload.dirt == {"dropped: never ran": 1}
    assert workload.waited == {7: 10, 9: 8}
    packed = tmp_path / "jobs.csv.gz"
    with gzip.open(packed, "wb") as out:
        out.write(TABLE.encode())
    assert list(read(packed)[1]) == list(jobs)
    plain = read(path, Selection())[1]  # a machine of which nothing is said
    assert asks(plain[9]) == {"nodes": (1, 1)} and dict(plain[7].job.request.per_node) == {"gpu": 2000}
    assert [one.submit for one in (each.job for each in read(
        path, Selection(load=2, memory=True))[1].values())] == [10, 11]


def test_names_of_columns() -> None:
    assert TableWorkload.tells("a;Submit-Time;run") and TableWorkload.tells("submit,start,end") and not TableWorkload.tells("submit,x")
    assert not TableWorkload.tells("cg.A.x 4 60 0")
    assert amount_of("mem_per_task_mb", ALL) == ("memory", "per_task", "m")
    assert amount_of("hours_mb", ALL) is None and amount_of("mem_gb", ALL) == ("memory", "", "g")
    assert amount_of("memory_per_node_mib", ALL) == ("memory", "per_node", "m")
    assert amount_of("gpus_per_task", frozenset()) == ("gpu", "per_task", "")
    assert amount_of("mics", ALL) == ("mic", "", "") and amount_of("mics", frozenset()) is None
    assert amount_of("big_ssd", frozenset({"big_ssd"})) == ("big_ssd", "", "")


@pytest.mark.parametrize("old, new, message", [
    ("10,7,20", "x,7,20", "jobs:3: submit: `x` is not a time; write seconds, or a date"),
    ("1:00:00", "soon", "jobs:3: limit: `soon` is not a time"),
    ("2,32,4,", "2,-32,4,", "jobs:3: cores: `-32` is not a whole number"),
    ("2,32,4,", "2,32,-4,", "jobs:3: gpu: `-4` is not an amount; write a number, 0 or more"),
    ("mem_mib", "mem", "jobs:3: memory: `2048` is not an amount; write a unit, 4G, or name the column mem_mib"),
    ("10,7,20", "10,-7,20", "jobs:3: id: `-7` is not a whole number"),
])
def test_a_table_that_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "jobs"
    path.write_text(TABLE.replace(old, new))
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_a_table_that_is_cut_off_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    path.write_text(TABLE[:-8])
    assert "dropped: cut off, or with other columns than the header" in read(path)[0].dirt
    with gzip.open(tmp_path / "whole.gz", "wb") as out:
        out.write(TABLE.encode() * 2000)
    (tmp_path / "cut.gz").write_bytes((tmp_path / "whole.gz").read_bytes()[:200])
    with pytest.raises(ValueError, match="damaged gzip file"):
        read(tmp_path / "cut.gz")


# ----------------------------------------------------------------------------- SWF and machines


def test_the_memory_of_a_trace_counts_where_the_machine_has_some(tmp_path: Path) -> None:
    rows = ["1 0 -1 10 2 -1 -1 2 10 1048576 1 1 1 1 3 -1 -1 -1", "2 0 -1 10 1 -1 -1 1 10 -1 1 1 1 1 -1 -1 -1 -1",
            "3 0 -1 10 1 -1 -1 1 10 9999999 1 1 1 1 3 -1 -1 -1"]
    path = tmp_path / "t.swf"
    path.write_text("; MaxProcs: 4\n" + "\n".join(rows) + "\n")
    trace = Trace(path, Selection(memory=True))
    asked: list[Any] = [one.job.request.per_task for one in trace]
    assert asked == [(("memory", GIB),), (), (("memory", 9999999 << 10),)]
    assert [one.job.queue for one in trace] == ["3", "", "3"]
    assert all(not one.job.request.per_task for one in Trace(path))
    path.write_text("1 0 -1 10 2 -1 -1 2 10 much 1 1 1 1 3 -1 -1 -1\n")
    with pytest.raises(TraceError, match="t.swf:1: memory `much` is not a whole number of KiB"):
        list(Trace(path, Selection(memory=True)))


def test_rules_stay_what_they_were() -> None:
    assert replace(Selection(), largest=3).wants(1, 0) and Selection().resources == frozenset()
