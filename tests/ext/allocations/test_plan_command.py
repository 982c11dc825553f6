"""`vrm plan`: from saved files, from a real Slurm with jobs of others in it, and what cannot be planned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until
from support.testbed import LOGIN, Testbed
from vrm import cli

CONFIG = "Applications: {Path: ., Any: true, Queue: queue}\nAllocation: {Policy: pack}\nNodes: auto\n"
LINE = "/bin/sleep 1 600\n"


def date(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A site of four nodes of two cores: three are in use for an hour, and a job waits for all. A queue of eight jobs of
    ten minutes. Gives the options that say so."""
    (tmp_path / "squeue").write_text(
        f"1|RUNNING|p|ann|9|3|6|1:00:00|{date(-60)}|{date(0)}|n[0-2]|None|(null)|(null)|NO|a\n"
        f"2|PENDING|p|ann|8|4|8|2:00:00|{date(-50)}|N/A||Resources|(null)|(null)|NO|b\n")
    (tmp_path / "sinfo").write_text("".join(
        f"n{at}|p*|2|{'alloc' if at < 3 else 'idle'}|1-00:00:00\n" for at in range(4)))
    (tmp_path / "vrm.yaml").write_text(CONFIG)
    (tmp_path / "queue").write_text(8 * LINE)
    monkeypatch.chdir(tmp_path)
    return ["--squeue", "squeue", "--sinfo", "sinfo", "--members", "12"]


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["plan", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_saved_site(saved: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The free node is ours at once if all is done before the job that waits for it."""
    found = planned(capsys, *saved)
    first = found["requests"][0]
    assert (first["nodes"], first["at_once"], first["start"]["p50"], first["chance"]) == (1, 1, 0, 1)
    assert first["seconds"] <= 3600 and found["jobs"] == 8 and found["partition"]["partition"] == "p"
    assert first["type"][0].startswith("vrm script --slurm -N 1 -t 00:") and "sbatch plan.slurm" in first["type"][1]
    assert 0 < first["core_hours"] <= 2 * first["end"]["mean"] / 3600 + 1e-9
    assert found == planned(capsys, *saved)  # the same state, the same answer
    assert {each["nodes"] for each in planned(capsys, *saved, "--nodes", "2,3")["requests"]} == {2, 3}


def test_jobs_that_are_left_out(saved: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without the job that waits for all nodes, all of them are ours in an hour; one that runs is there all the same."""
    def starts(*words: str) -> set[float]:
        return {each["start"]["p50"] // 600 for each in planned(capsys, *saved, "--nodes", "4", "--at-once", "1", *words)["requests"]}
    assert max(starts("--without", "1,2")) <= 5 < min(starts())


def test_nodes_that_others_have_reserved(saved: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The free node is kept for a course from ten minutes on."""
    (tmp_path / "reservations").write_text(f"ReservationName=course StartTime={date(600)} EndTime={date(86400)} Nodes=n3 NodeCnt=1 Users=t\n")
    there = [each["start"]["p50"] for words in ([], ["--reservations", "reservations"])
             for each in planned(capsys, *saved, "--nodes", "1", "--at-once", "1", *words)["requests"][:1]]
    assert there[0] == 0 and there[1] > 600


def test_the_table_for_people(saved: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *saved]) == 0
    shown = capsys.readouterr().out
    assert "8 jobs to run. squeue at" in shown and "up to 4 nodes of 2 cores, 1d" in shown
    assert "|   1 | 1 node x 00:" in shown and "1. vrm script --slurm -N 1" in shown
    assert "requests were tried (--all shows them)" in shown and "Assumed:" in shown
    assert "of their limits: no job has ended yet (--history" in shown
    assert "nobody comes later: there are too few jobs" in shown and "(--site-history" in shown
    assert cli.main(["plan", *saved, "--all"]) == 0
    assert "(--all" not in capsys.readouterr().out


def test_a_history_of_the_site(saved: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of its jobs took half of their limits: so does the one that runs."""
    lines = [f"{number} {number * 600} 0 1800 2 -1 -1 2 3600 -1 1 1 -1 -1 -1 -1 -1 -1" for number in range(1, 30)]
    (tmp_path / "site.swf").write_text("; MaxProcs: 8\n" + "\n".join(lines) + "\n")
    found = planned(capsys, *saved, "--site-history", "site.swf", "--nodes", "2", "--at-once", "1")
    assert {round(each["start"]["p50"], -1) for each in found["requests"]} <= {1800 + 3600, 1800, 0}
    assert any("29 that have ended" in each for each in found["assumed"])
    assert any("29 jobs of the history" in each for each in found["assumed"])


@pytest.mark.parametrize("change, words, said", [
    ({"queue": "/bin/sleep 9 600\n"}, [], "no request can run job 0: "),
    ({"queue": "/bin/sleep 1 86400\n"}, [], "no request can run job 0: its limit is 86400 s, vrm needs 60 s more, and "
                                            "partition p gives at most 86400 s"),
    ({"queue": "# nothing\n"}, [], "queue: it has no jobs"),
    ({"squeue": "what?\n"}, [], "squeue:1: it has 1 of 16 columns"),
    ({"sinfo": "n0|p*|2|down|1:00:00\n"}, [], "no node of partition p is up"),
    ({}, ["--partition", "none"], "there is no partition none; there are: p"),
    ({}, ["--nodes", "5"], "--nodes 5: partition p gives at most 4"),
    ({}, ["--slurm"], "which site? Give one of"),
    ({}, ["--site-history", "gone.swf"], "gone.swf"),
    ({}, ["--limits", "gone"], "gone: No such file"),
    ({"limits": "what?\n"}, ["--limits", "limits"], "limits: it names no partition; make the file with: scontrol show partition"),
    ({"limits": "PartitionName=p MaxTime=soon\n"}, ["--limits", "limits"], "MaxTime=soon is not a time"),
    ({"limits": "PartitionName=p RootOnly=YES\n"}, ["--limits", "limits"], "partition p takes jobs only from root"),
    ({"odd": "what?\n"}, ["--reservations", "odd"], "reservations: it names none; make the file with: scontrol show reservation"),
    ({"queue": "/bin/sleep 4 600\n"}, ["--nodes", "1"], "can all jobs run: 1 (job 0: 4 ranks of 1 core(s) do not fit on the 2 cores "
                                                        "of 1 node(s)); give more with --nodes"),
    ({}, ["--plot", "x.txt"], "ends in .png or .svg"),
    ({}, ["--submit", "99"], "--submit 99: the table has")])
def test_what_cannot_be_planned(saved: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                change: dict[str, str], words: list[str], said: str) -> None:
    for name, text in change.items():
        (tmp_path / name).write_text(text)
    assert cli.main(["plan", *saved, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_job_of_a_trace_that_is_larger_than_what_is_asked_for_is_named(
        saved: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading a trace leaves out jobs that are larger than the machine."""
    (tmp_path / "trace.swf").write_text("".join(
        f"{number} 0 -1 60 {procs} -1 -1 {procs} 600 -1 1 1 -1 1 -1 -1 -1 -1\n" for number, procs in ((6, 1), (7, 4))))
    assert cli.main(["plan", *saved, "trace.swf", "--nodes", "1"]) == 2
    assert "can all jobs run: 1 (job 7: 4 ranks of 1 core(s) do not fit on the 2 cores" in capsys.readouterr().err


def fake(tmp_path: Path, name: str, script: str) -> None:
    """A program of the batch system."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    file = tmp_path / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    os.environ["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"


def test_a_site_without_programs_or_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/bin:/usr/bin:/nowhere" if not any(
        Path(place, "squeue").exists() for place in ("/bin", "/usr/bin")) else "/nowhere")
    (tmp_path / "vrm.yaml").write_text(CONFIG)
    (tmp_path / "queue").write_text(LINE)
    assert cli.main(["plan"]) == 2
    assert "there is no squeue and no qstat here" in capsys.readouterr().err
    fake(tmp_path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert cli.main(["plan"]) == 2
    assert "squeue has failed (status 1): slurm_load_jobs error: Unable" in capsys.readouterr().err
    fake(tmp_path, "squeue", "exec /bin/sleep 1000")
    monkeypatch.setattr("vrm.ext.forecast.site.outer.SECONDS", 0.2)
    monkeypatch.setattr("vrm.ext.forecast.site.outer.output_of.__defaults__", (0.2,))
    assert cli.main(["plan"]) == 2
    assert "squeue has not answered within 0.2 s" in capsys.readouterr().err


def test_submitting(saved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                    capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    fake(tmp_path, "sbatch", "[ \"$1\" = --help ] || { cat \"$1\" >> submitted; echo Submitted batch job 7; }")
    assert cli.main(["plan", *saved, "--submit"]) == 0
    assert "Submitted batch job 7" in capfd.readouterr().out
    script = (tmp_path / "submitted").read_text()
    assert "#SBATCH --nodes=1" in script and "#SBATCH --partition=p" in script and "--exclusive" in script
    fake(tmp_path, "sbatch", "echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; exit 1")
    assert cli.main(["plan", *saved, "--submit"]) == 2
    said = capfd.readouterr().err
    assert "AssocMaxSubmitJobLimit" in said and "the site has not taken the request" in said and "0 of 1 chains" in said


def test_parts_of_a_queue(saved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capfd: pytest.CaptureFixture[str]) -> None:
    """Several at once: each has a part of the lines, and a run of its own."""
    (tmp_path / "queue").write_text("# a comment\n" + "".join(f"/bin/sleep 1 {600 + at}\n" for at in range(7)))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    fake(tmp_path, "sbatch", "[ \"$1\" = --help ] || cat \"$1\" >> submitted")
    assert cli.main(["plan", *saved, "--at-once", "2", "--submit"]) == 0
    lines = [(tmp_path / f"queue.part{number}").read_text().splitlines() for number in (1, 2)]
    assert sorted(lines[0] + lines[1]) == [f"/bin/sleep 1 {600 + at}" for at in range(7)] and len(lines[0]) in (3, 4)
    scripts = (tmp_path / "submitted").read_text()
    assert "vrm.part1.yaml" in scripts and "vrm.part2.yaml" in scripts
    capfd.readouterr()
    assert cli.main(["plan", "--deal", "2"]) == 2
    assert "vrm.part1.yaml exists; --force replaces it" in capfd.readouterr().err
    assert cli.main(["plan", "--deal", "2", "--force"]) == 0
    assert cli.main(["-c", "vrm.part2.yaml", "check"]) in (0, 1)
    assert "logs/part2" in (tmp_path / "vrm.part2.yaml").read_text()
    (tmp_path / "queue").write_text(2 * LINE + "/bin/sleep 1 600 after=0\n")
    assert cli.main(["plan", "--deal", "2"]) == 2
    assert "its lines depend on each other" in capfd.readouterr().err


def test_a_site_that_refuses_some_parts(saved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capfd: pytest.CaptureFixture[str]) -> None:
    """Where it takes none nothing is left over, and the same can be typed again; where it takes one, what is missing is said."""
    (tmp_path / "queue").write_text("".join(f"/bin/sleep 1 {600 + at}\n" for at in range(8)))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    fake(tmp_path, "sbatch", "[ \"$1\" = --help ] || { [ -e taken ] || [ ! -e takes ] || exec touch taken; echo no account >&2; exit 1; }")
    words = ["plan", *saved, "--at-once", "4", "--submit"]
    for _ in range(2):
        assert cli.main(words) == 2
        said = capfd.readouterr().err
        assert "no account" in said and "0 of 4 chains are submitted\n" in said and not list(tmp_path.glob("*.part*.yaml")), said
    (tmp_path / "takes").touch()
    assert cli.main(words) == 2
    said = capfd.readouterr().err
    assert "1 of 4 chains are submitted; when it takes the others: for p in 2 3 4; do vrm script -c vrm.part$p.yaml" in said, said
    assert len(list(tmp_path.glob("*.part*"))) >= 8


def test_a_request_for_each_job(saved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                capfd: pytest.CaptureFixture[str]) -> None:
    """A job of four nodes has to wait; a request for each has the others done before. Each is of its own nodes and limit."""
    (tmp_path / "queue").write_text("/bin/sleep 1 600\n/bin/sleep 7 5400\n/bin/sleep 1 600\n")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    fake(tmp_path, "sbatch", "[ \"$1\" = --help ] || { echo == >> submitted; cat \"$1\" >> submitted; }")
    assert cli.main(["plan", *saved, "--all", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)["requests"]
    at, single = next((at, one) for at, one in enumerate(found, 1) if one["each"])
    assert (single["nodes"], single["seconds"], single["at_once"], single["start"]["p50"]) == (4, 6300, 3, 0)
    assert single["type"][0] == "vrm plan --deal 3" and len(single["type"]) == 3
    assert single["type"][1].startswith("vrm script -c vrm.part1.yaml --slurm -N 4 -t 01:45:00")
    assert "plan.part1.slurm --force --submit" in single["type"][1]
    assert single["type"][2].startswith("for p in 2 3; do vrm script -c vrm.part$p.yaml --slurm -N 1 -t 00:15:00")
    assert not any(one["each"] for one in planned(capfd, *saved, "--at-once", "1,2")["requests"])
    assert not any(one["each"] for one in planned(capfd, *saved, "--nodes", "4")["requests"])
    assert cli.main(["plan", *saved, "--submit", str(at)]) == 0
    scripts = (tmp_path / "submitted").read_text().split("==\n")[1:]
    assert [("--nodes=4" in one, "vrm.part1.yaml" in one) for one in scripts] == [(True, True), (False, False), (False, False)]
    assert (tmp_path / "queue.part1").read_text() == "/bin/sleep 7 5400\n"


def test_a_picture(saved: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert cli.main(["plan", *saved, "--plot", "plan.svg"]) == 0
    assert "requests: from the start to the end" in (tmp_path / "plan.svg").read_text() or (tmp_path / "plan.svg").stat(
        ).st_size > 10_000


@pytest.mark.testbed
@pytest.mark.slow
def test_a_real_slurm_with_jobs_of_others(testbed: Testbed, tmp_path: Path) -> None:
    """One of the nodes is free for five minutes: what is submitted there by --submit runs at once, and does all jobs
    before those of others end."""
    root = Path(__file__).resolve().parents[3]
    (tmp_path / "vrm.yaml").write_text(CONFIG)
    (tmp_path / "queue").write_text(4 * "/bin/true 1 60\n")

    def asked(*words: Any) -> subprocess.CompletedProcess[str]:
        return testbed.exec(LOGIN, list(map(str, words)), env={"PYTHONPATH": str(root)}, cwd=tmp_path)

    nodes = len(set(asked("sinfo", "-h", "-N", "-o", "%N").stdout.split()))
    others = [asked("sbatch", "--parsable", "-N", width, "-t", minutes, "--exclusive", "-o", "/dev/null", "--wrap",
                    "sleep 600").stdout.strip() for width, minutes in ((nodes - 1, 10), (nodes, 20))]
    try:
        wait_until(lambda: asked("squeue", "-h", "-j", others[0], "-o", "%T").stdout.strip() == "RUNNING",
                   "the job of others runs")
        done = asked(sys.executable, "-m", "vrm.cli", "plan", "--json", "--members", "10", "--submit")
        assert done.returncode == 0, done.stderr
        first = json.loads(done.stdout[:done.stdout.rindex("}") + 1])["requests"][0]
        assert (first["nodes"], first["start"]["p50"]) == (1, 0) and first["seconds"] <= 600
        wait_until(lambda: (tmp_path / "logs" / "jobs.csv").exists()
                   and (tmp_path / "logs" / "jobs.csv").read_text().count("completed") == 4, "our jobs are done")
        assert asked("squeue", "-h", "-j", others[0], "-o", "%T").stdout.strip() == "RUNNING"
    finally:
        asked("scancel", *others)
