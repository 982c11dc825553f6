"""`vrm simulate`: geometry, results, messages, and the jobs of an earlier run."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from vrm.cli import main
from vrm.commands import simulate as command
from vrm.commands.parsing import Parser
from vrm.results.jobs import read_jobs

ROWS = """; MaxProcs: 4
; UnixStartTime: 1000000000
1 0 -1 10 2 -1 -1 2 20 -1 1 1 -1 -1 -1 -1 -1 -1
2 1 -1 10 4 -1 -1 4 20 -1 1 1 -1 -1 -1 -1 -1 -1
3 2 -1 5 1 -1 -1 1 5 -1 1 2 -1 -1 -1 -1 -1 -1
4 3 -1 5 9 -1 -1 9 5 -1 1 2 -1 -1 -1 -1 -1 -1
"""
QUEUE = "ft.B.x 4 10 0 4\nmg.B.x 8 5 1 0\nbad\nmg.B.x 400 5 0 0\n"


def run(*words: Any) -> int:
    parser = Parser()
    command.add_parsers(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    args = parser.parse_args(["simulate", *map(str, words)])
    return args.act(args)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.swf"
    path.write_text(ROWS)
    return path


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "queue"
    path.write_text(QUEUE)
    return path


def json_of(capsys: Any) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_one_json_object_with_the_promised_keys(trace: Path, capsys: Any) -> None:
    assert run(trace, "--json", "--backfill", "easy") == 0
    found = json_of(capsys)
    assert {"jobs", "average_wait", "average_turnaround", "average_bounded_slowdown", "makespan",
            "utilisation", "jobs_per_second"} <= set(found)
    assert found["machine"] == {"nodes": 4, "sockets": 1, "cores": 1, "all_cores": 4}
    assert found["jobs"] == 3 and found["backfilled"] == 1
    assert found["dirt"] == {"dropped: more processors than the machine": 1}


def test_options_override_the_configuration(trace: Path, tmp_path: Path, capsys: Any) -> None:
    config = tmp_path / "vrm.yaml"
    config.write_text("Scheduling: {Algorithm: WFP3, Backfilling: easy}\nNodes: 3\nSockets: 2\n"
                      "Cores: 2\nAllocation: {Policy: strip}\n")
    assert run(trace, "--json", "-c", config) == 0
    found = json_of(capsys)
    assert (found["algorithm"], found["backfilling"], found["policy"]) == ("WFP3", "easy", "strip")
    assert found["machine"] == {"nodes": 3, "sockets": 2, "cores": 2, "all_cores": 12}
    assert run(trace, "--json", "-c", config, "--algorithm=t*n", "--nodes", 7, "--backfill", 2) == 0
    found = json_of(capsys)
    assert (found["algorithm"], found["backfilling"]) == ("t*n", "depth 2")
    assert found["machine"]["nodes"] == 7


def test_files_of_a_run(trace: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert run(trace, "--out", out, "--evalys", "--backfill", "easy") == 0
    assert "bounded slowdown" in capsys.readouterr().out
    lines = (out / "jobs.csv").read_text().splitlines()
    assert lines[0].startswith("id,app,procs,submit,start,end,walltime,status,")
    assert lines[1].startswith("3,app,1,2,2,7,5,completed,,,0,1,n2,n2:0/0,")
    assert json.loads((out / "summary.json").read_text())["jobs"] == 3
    evalys = (out / "evalys.csv").read_text().splitlines()
    assert evalys[1] == ("3,t.swf,app,2,1,5,1,COMPLETED_SUCCESSFULLY,2,5,7,0,5,1.0,2,,")
    assert evalys[-1].split(",")[14] == "0-3"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    run(trace, "--out", out, "--evalys", "--backfill", "easy")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_queue_file(queue: Path, capsys: Any) -> None:
    assert run(queue, "--nodes", 2, "--sockets", 2, "--cores", 2, "--json") == 0
    found = json_of(capsys)
    assert found["jobs"] == 2 and found["refused"] == 2 and found["makespan"] == 15
    assert found["dirt"] == {"lines that name no job": 1}


def test_lines_that_depend_on_others_or_are_held(tmp_path: Path, capsys: Any) -> None:
    queue = tmp_path / "queue"
    queue.write_text("a 1 10 0\nb 2 5 0 after=0\nc 1 5 0 hold=1\nd 1 5 0 after=2\ne 99 5 0\n"
                     "f 1 5 0 after=4\ng 1 5 0 after=any:4\nh 1 5 0 after=20\n")
    shape = ["--nodes", 2, "--out", tmp_path]
    assert run(queue, *shape, "--json") == 0
    found = json_of(capsys)
    assert {name: found[name] for name in ("completed", "cancelled", "refused", "held")} == {
        "completed": 3, "cancelled": 1, "refused": 2, "held": 2}
    rows = {row.id: row for row in read_jobs(tmp_path / "jobs.csv")}
    assert {row.id: row.start for row in rows.values() if row.start is not None} == {
        0: 0, 1: 10, 6: 0}
    assert rows[5].reason == "job 4, on which it depends, ended as refused"
    assert "depends on job 20" in rows[7].reason and set(rows) == {0, 1, 4, 5, 6, 7}
    assert run(queue, *shape) == 0
    text = capsys.readouterr().out
    assert "held" in text and "2 jobs never ran" in text and "cancelled" in text


def test_the_jobs_of_a_run_are_a_workload(trace: Path, tmp_path: Path, capsys: Any) -> None:
    for policy in ("strip", "compact", "pack"):
        shape = ["--nodes", 2, "--sockets", 2, "--cores", 2, "--policy", policy,
                 "--backfill", "easy"]
        run(trace, "--out", tmp_path / "a", *shape)
        run(tmp_path / "a" / "jobs.csv", "--out", tmp_path / "b", *shape)
        assert list(read_jobs(tmp_path / "a" / "jobs.csv")) \
            == list(read_jobs(tmp_path / "b" / "jobs.csv"))


def test_neither_the_workload_nor_a_live_run_is_overwritten(trace: Path, tmp_path: Path,
                                                            capsys: Any) -> None:
    run(trace, "--out", tmp_path / "one")
    jobs = tmp_path / "one" / "jobs.csv"
    before = jobs.read_bytes()
    assert run(jobs, "--nodes", 4, "--out", tmp_path / "one" / ".." / "one") == 2
    assert "is the workload and would be overwritten" in capsys.readouterr().err
    (tmp_path / "one" / "journal").touch()
    assert run(trace, "--out", tmp_path / "one") == 2
    assert "is that of a live run and would be overwritten" in capsys.readouterr().err
    assert jobs.read_bytes() == before


def test_a_synthetic_workload(capsys: Any) -> None:
    def starts(*words: Any) -> Any:
        assert run(*words, "--json") == 0
        found = json_of(capsys)
        return found["start_hash"], found["jobs"], found["machine"]["all_cores"]

    plain = starts("lublin:32:60")
    assert plain[1:] == (60, 32)
    assert starts("lublin:32:60:0") == plain != starts("lublin:32:60:1")
    assert starts("lublin:32:60", "--jobs", 7, "--first", 11)[1] == 7
    assert starts("lublin:32:60", "--nodes", 64)[1:] == (60, 64)


def test_the_load_of_a_synthetic_workload() -> None:
    from vrm.simulation.inputs import open_workload
    from vrm.ext.generate.lublin import Lublin
    from vrm.workload.swf import Selection
    found = list(open_workload("lublin:32:60:3", Selection(load=2)))
    plain = list(Lublin(32).jobs(60, 3))
    assert [one.job.submit * 2 for one in found] == [one.job.submit for one in plain]
    assert [(one.run, one.job.procs) for one in found] == [(one.run, one.job.procs)
                                                           for one in plain]


@pytest.mark.parametrize("text, cores", [
    ('{"nodes": [{"count": 2, "sockets": 2, "cores": 2}, {"cores": 3, "prefix": "fat"}]}', 11),
    ('{"groups": {"g0": {"core": 2, "mem": 9000}}, "resources": {"g0": 3}}', 6),
    ("Classes:\n- {Count: 2, Cores: 3}\n- {Name: fat, Sockets: 2, Cores: 2, Memory: 8G}", 10)])
@pytest.mark.parametrize("option", ["--machine", "--system"])
def test_a_machine_file(trace: Path, tmp_path: Path, capsys: Any, text: str, cores: int,
                        option: str) -> None:
    machine = tmp_path / "machine"
    machine.write_text(text)
    assert run(trace, option, machine, "--json", "--policy", "compact") == 0
    found = json_of(capsys)
    assert found["machine"]["all_cores"] == cores and found["completed"] >= 3
    machine.write_text("[]")
    assert run(trace, option, machine) == 2
    assert "machine:1: found a list, wanted keys" in capsys.readouterr().err
    assert run(trace, option, machine, "--nodes", "3") == 2
    assert "leave out --nodes" in capsys.readouterr().err


@pytest.mark.parametrize("words, message", [
    (["none.swf"], "no such file"),
    (["lublin:256"], "lublin:PROCESSORS:JOBS[:SEED]"),
    (["lublin:256:5:1:1"], "lublin:PROCESSORS:JOBS[:SEED]"),
    (["lublin:1:5"], "2 processors or more"),
    (["lublin:256:0"], "lublin:PROCESSORS:JOBS[:SEED]"),
    (["t.swf", "--algorithm", "wpf3"], "did you mean wfp3"),
    (["t.swf", "--backfill", "esay"], "did you mean easy"),
    (["t.swf", "--policy", "stripe"], "did you mean strip"),
    (["t.swf", "--cores", "2"], "--nodes N"),
    (["queue"], "--nodes N"),
    (["t.swf", "--heatmap", "none"], "none"),
    (["t.swf", "-c", "none.yaml"], "no such file"),
    (["t.swf", "--warm-up", "100"], "warm-up"),
    (["t.swf", "--nodes", "1000000000"], "too many"),
    (["t.swf", "--evalys"], "--out DIR"),
    (["t.swf", "--min-throughput", "nan"], "a number from 0 on"),
    (["t.swf", "--out", "t.swf/out"], "t.swf/out: Not a directory"),
    (["t.swf", "--out", "queue"], "queue is a file; name a directory for the results"),
    (["t.swf", "--swf", "/dev/full"], "/dev/full: No space left on device"),
    (["t.swf", "--first", "5"], "no job is left to run"),
    (["t.swf", "--nodes", "1", "--last", "2"], "more processors than the machine: 2"),
])
def test_messages(words: Any, message: str, trace: Path, queue: Path, tmp_path: Path, capsys: Any,
                  monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and error.count("\n") == 1


@pytest.mark.parametrize("content, message", [
    (b"", "bad: empty; name a trace"),
    (gzip.compress(b"", mtime=0), "bad: empty; name a trace"),
    (bytes(range(256)) * 9, "bad: not a text file; name a trace"),
    (b"\xef\xbb\xbf" + ROWS.encode(), "bad:1: begins with a byte order mark (UTF-8); convert it: "
                                      "`tail -c +4 bad > NEW`"),
    ("\ufeff".encode("utf-16-le") + ROWS.encode("utf-16-le"), "(UTF-16); convert it: `iconv"),
    (ROWS.replace("\n", "\r").encode(), "bad: its lines end with a carriage return alone; convert"),
    (b"dear diary\nnothing happened\n", "bad:1: "),
    (b"\xfd7zXZ\0\0\4" + bytes(9), "bad: compressed; of compressed files vrm reads gzip alone: type <(xz -dc bad) instead"),
    (b"BZh91AY&SY", "bad: compressed; of compressed files vrm reads gzip alone: type <(bzip2 -dc bad) instead"),
    (b"1 0 -1 10 2 -1 -1 2 20 -1 1 1 -1 -1 -1 -1 -1 -1\n", "bad: the workload does not say how large"),
    (ROWS.replace("3 2 ", f"{2 ** 63} 2 ").encode(), "bad:5: a number out of range"),
    (ROWS.replace("3 2 ", f"3 {'9' * 400} ").encode(), "bad:5: a number out of range"),
    (b"id,app,procs,submit,start,end,walltime,status\n%d,a,1,0,0,1,1,completed\n" % 2 ** 63,
     "bad:2: id: `9223372036854775808` is too large"),
    (b"id,app,procs,submit,start,end,walltime,status\n1,a,1,0,0," + b"9" * 400 + b",1,completed\n",
     "bad:2: end: "),
])
def test_bad_files_are_named_with_the_fix(content: bytes, message: str, tmp_path: Path,
                                          capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_bytes(content)
    shape = [] if "how large" in message or "empty" in message else ["--nodes", 4]
    assert run("bad", *shape) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and error.count("\n") == 1
    assert error.startswith("vrm simulate: bad") and len(error) < 500


def test_the_header_may_have_another_sign(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "t").write_text(ROWS.replace(";", "#"))
    assert run(tmp_path / "t", "--json") == 0
    assert json_of(capsys)["machine"]["all_cores"] == 4


@pytest.mark.parametrize("piped", [True, False])
def test_standard_input_is_read(piped: bool, tmp_path: Path) -> None:
    (tmp_path / "t.swf").write_text("; MaxProcs: 4\n" + ROWS)
    with open(tmp_path / "t.swf", "rb") as file:
        given: dict[str, Any] = {"input": file.read()} if piped else {"stdin": file}
        file.seek(0)
        done = subprocess.run([sys.executable, "-m", "vrm.cli", "simulate", "-", "--json"], stdout=subprocess.PIPE, **given)
    assert done.returncode == 0 and json.loads(done.stdout)["workload"] == "-" and json.loads(done.stdout)["jobs"]


def test_pipes_are_read(trace: Path, tmp_path: Path, capsys: Any) -> None:
    assert run(trace, "--json") == 0
    plain = json_of(capsys)
    run(trace, "--out", tmp_path / "out")
    jobs = tmp_path / "out" / "jobs.csv"
    queue = tmp_path / "queue"
    queue.write_text("a.S.x 1 5 0 2\nb.S.x 2 7 0\n")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for source, words, number in ((trace, [], 3), (jobs, ["--nodes", 4], 3),
                                  (queue, ["--nodes", 4], 2)):
        content = source.read_bytes()
        writer = threading.Thread(target=fifo.write_bytes, args=(content,))
        writer.start()
        capsys.readouterr()
        assert run(fifo, "--json", *words) == 0
        writer.join()
        found = json_of(capsys)
        assert found["jobs"] == number
        if number == 3:
            assert found["start_hash"] == plain["start_hash"]
    # An error in it names the pipe.
    writer = threading.Thread(target=fifo.write_text, args=(ROWS + "5 x\n" + ROWS[-50:] + "x " * 18,))
    writer.start()
    assert run(fifo) == 2
    writer.join()
    assert f"vrm simulate: {fifo}:" in capsys.readouterr().err
    assert run("/dev/null") == 2
    assert "/dev/null: a device, not a file" in capsys.readouterr().err
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m vrm.cli simulate <(cat {trace}) --json"],
                          capture_output=True, text=True, timeout=60, check=False,
                          cwd=Path(__file__).resolve().parents[2])
    assert json.loads(done.stdout)["start_hash"] == plain["start_hash"], done.stderr


def test_killed_at_the_requested_time(tmp_path: Path, capsys: Any) -> None:
    trace = tmp_path / "t.swf"
    trace.write_text("; MaxProcs: 1\n1 0 -1 90 1 -1 -1 1 8 -1 1 1 -1 -1 -1 -1 -1 -1\n")
    assert run(trace, "--kill", "--json") == 0
    found = json_of(capsys)
    assert found["timeout"] == 1 and found["makespan"] == 8
    assert run(trace, "--json") == 0
    assert json_of(capsys)["makespan"] == 90
    assert main(["help", "simulate", "--all"]) == 0
    assert "implies--keep-estimates" in "".join(capsys.readouterr().out.split())


def test_an_interrupted_run_writes_what_has_ended(trace: Path, tmp_path: Path, capsys: Any,
                                                  monkeypatch: Any) -> None:
    from vrm.simulation.results import Results
    plain = Results.ended

    def ended(self: Results, *args: Any) -> None:
        plain(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(Results, "ended", ended)
    assert run(trace, "--algorithm", "wfp3", "--out", tmp_path, "--json") == 130
    assert json_of(capsys)["interrupted"]
    assert len(list(read_jobs(tmp_path / "jobs.csv"))) == 1


def test_moments_and_a_status_for_others(trace: Path, tmp_path: Path, capsys: Any) -> None:
    import csv
    out, status = tmp_path / "out", tmp_path / "status.json"
    assert run(trace, "--out", out, "--json") == 0
    plain = json_of(capsys)
    assert run(trace, "--out", out, "--moments", "--status", status, "--json") == 0
    found = json_of(capsys)
    assert found["start_hash"] == plain["start_hash"]
    rows = list(csv.DictReader((out / "moments.csv").open()))
    assert list(rows[0]) == ["time", "queued", "cores_queued", "cores_busy"]
    times = [float(row["time"]) for row in rows]
    assert times == sorted(times) and float(rows[-1]["cores_busy"]) == 0
    assert max(float(row["queued"]) for row in rows) == found["queue_length"]["maximum"]
    said = json.loads(status.read_text())
    assert (said["state"], said["ended"], said["waiting"]) == ("complete", found["jobs"], 0)
    assert run(trace, "--moments") == 2 and "say where (--out DIR)" in capsys.readouterr().err
    assert run(trace, "--status", tmp_path / "none" / "s") == 2
