"""`vrm generate`: mixes are the same for a seed, as asked for, recorded, and go on after a kill."""

from __future__ import annotations
from support import warm

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Site, wait_until
from vrm.ext.generate import npb
from vrm.ext.measured.estimates import Estimate, EstimateError, read_estimates, table_text
from vrm.ext.generate.generator import (GenerateError, Mix, choices, constant, parse_arrival,
                                    write_at_once, write_live)
from vrm.workload.queue_follower import QueueFollower
from vrm.workload.grammar import QueueLine
from vrm.workload.replay import replay
from vrm.workload.writer_marker import WriterMarker, writer_of

TABLE = {("cg.S.x", 1): 3.0, ("cg.S.x", 2): 2.5, ("ep.S.x", 1): 4.0, ("ep.A.x", 4): 40.0,
         ("bt.S.x", 4): 7.0}


def mix(jobs: int = 50, seed: int = 1, **more: object) -> Mix:
    return Mix(jobs, seed, choices(TABLE), **more)  # type: ignore[arg-type]


def read(queue: Path) -> list[QueueLine]:
    follower = QueueFollower(queue)
    follower.finish()
    lines = follower.read_new()
    assert all(isinstance(line.parsed, QueueLine) for line in lines)
    assert follower.ended
    return [line.parsed for line in lines]  # type: ignore[misc]


def vrm(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return warm.run(["generate", *arguments], cwd=cwd, timeout=60)


# The mix.


@given(seed=st.integers(0, 1 << 40), jobs=st.integers(1, 40),
       arrival=st.sampled_from(["uniform:0-4", "poisson:2.5", "once"]))
def test_a_mix_is_the_same_for_its_seed_and_holds_only_what_was_asked_for(
        seed: int, jobs: int, arrival: str) -> None:
    one = mix(jobs, seed, arrival=parse_arrival(arrival), exclusive=0.5)
    lines = list(one.lines())
    assert lines == list(one.lines()) and len(lines) == jobs
    assert all(TABLE[line.app, line.procs] <= line.seconds < TABLE[line.app, line.procs] + 1
               for line in lines)
    assert lines[-1].delay == 0
    assert all(line.delay is not None and line.delay >= 0 for line in lines)
    if arrival == "once":
        assert all(line.delay == 0 for line in lines)


def test_what_is_drawn_follows_the_distributions() -> None:
    count = 6000
    lines = list(mix(count, arrival=parse_arrival("uniform:3-10"), exclusive=0.25).lines())
    apps = Counter(line.app for line in lines)
    assert set(apps) == {"bt.S.x", "cg.S.x", "ep.A.x", "ep.S.x"}
    assert all(abs(seen - count / 4) < 0.1 * count / 4 for seen in apps.values())
    delays = Counter(line.delay for line in lines[:-1])
    assert set(delays) == set(range(3, 11))
    assert all(abs(seen - count / 8) < 0.2 * count / 8 for seen in delays.values())
    assert abs(sum(line.exclusive for line in lines) - count / 4) < 0.1 * count / 4
    poisson = [line.delay for line in mix(count, arrival=parse_arrival("poisson:5")).lines()][:-1]
    mean = sum(poisson) / len(poisson)
    variance = sum((delay - mean) ** 2 for delay in poisson) / len(poisson)
    assert abs(mean - 5) < 0.3 and abs(variance ** 0.5 - 5) < 0.4  # both are the mean


def test_estimates_are_rounded_up_and_multiplied_by_the_margin() -> None:
    lines = mix(200, margin=1.5).lines()
    assert {(line.app, line.procs): line.seconds for line in lines} == {
        ("cg.S.x", 1): 5, ("cg.S.x", 2): 4, ("ep.S.x", 1): 6, ("ep.A.x", 4): 60, ("bt.S.x", 4): 11}


def test_the_published_table_is_complete() -> None:
    assert len(npb.CLASS_B) == 8 * 7
    assert npb.CLASS_B["lu.B.x", 32] == 45 and npb.CLASS_B["sp.B.x", 2] == 640


@pytest.mark.parametrize("app, allowed", [
    ("bt.A.x", [1, 4, 9, 16]), ("sp", [1, 4, 9, 16]), ("cg.S.x", [1, 2, 4, 8, 16]),
    ("bt.A.4", [4]), ("ep.S.x", [1, 2, 4, 8, 16]), ("mine", [1, 2, 4, 8, 16])])
def test_rank_counts_of_programs(app: str, allowed: list[int]) -> None:
    assert npb.rank_counts(app, 16) == allowed
    assert all(npb.allows(app, ranks) for ranks in allowed)


@pytest.mark.parametrize("wanted, message", [
    ((["lu"],), "lu is not in the table"), ((["cg"], ["A"]), "cg in class A is not in the table"),
    (([], ["C"]), "nothing of class C"), (([], [], [64]), "nothing on 64 rank"),
    ((["bt"], [], [1]), "bt on 1 rank")])
def test_what_the_table_lacks_is_said(wanted: tuple[list[str], ...], message: str) -> None:
    with pytest.raises(GenerateError, match=message):
        choices(TABLE, *wanted)  # type: ignore[arg-type]


def test_one_estimate_for_all() -> None:
    assert constant(["bt", "cg.W.x"], ["S"], [1, 2, 4], 9.0) == {
        ("bt.S.x", 1): 9, ("bt.S.x", 4): 9, ("cg.W.x", 1): 9, ("cg.W.x", 2): 9, ("cg.W.x", 4): 9}
    for apps, classes, ranks, message in ((["bt"], ["S"], [2, 8], "squares"),
                                          (["bt"], [], [1], "wants a class")):
        with pytest.raises(GenerateError, match=message):
            constant(apps, classes, ranks, 9.0)


# The file.


def test_the_file_is_recorded_and_replays(tmp_path: Path) -> None:
    queue = tmp_path / "deep" / "queue"
    one = mix(arrival=parse_arrival("uniform:1-5"))
    write_at_once(one, queue, "how")
    assert queue.read_text().startswith("# how\n") and queue.read_text().endswith("\nend\n")
    assert read(queue) == list(one.lines())
    follower = QueueFollower(queue)
    due = [at for at, _ in replay(follower.read_new())]
    assert due[0] == 0 and all(1 <= b - a <= 5 for a, b in zip(due, due[1:]))
    with pytest.raises(GenerateError, match="--force"):
        write_at_once(one, queue, "how")
    write_at_once(mix(3), queue, "how", replace=True)
    assert len(read(queue)) == 3


def test_live_writes_the_same_file_as_time_passes(tmp_path: Path) -> None:
    pauses: list[float] = []
    live, whole = tmp_path / "live", tmp_path / "whole"
    one = mix(12, arrival=parse_arrival("uniform:1-30"))
    seen: list[int] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        seen.append(len(live.read_text().splitlines()))
        assert writer_of(live, time.time()).state == "writing"

    write_live(one, live, "how", speed=2.0, pause=pause)
    write_at_once(one, whole, "how")
    assert live.read_text() == whole.read_text()
    assert sum(pauses) == pytest.approx(sum(line.delay or 0 for line in one.lines()) / 2)
    assert max(pauses) <= 10 and seen[0] == 2 and seen == sorted(seen)
    assert writer_of(live, time.time()).state == "ended"


@pytest.mark.slow
def test_a_killed_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    options = ["--apps", "cg,ep", "--classes", "S", "--ranks", "1,2", "--estimate", "5",
               "--jobs", "30", "--seed", "7", "--arrival", "uniform:2-4"]
    queue = tmp_path / "live"
    process = subprocess.Popen(
        [sys.executable, "-m", "vrm.cli", "generate", *options, "--live", "--speed", "4", "live"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: queue.exists() and len(queue.read_text().splitlines()) >= 4,
                   "three jobs are written")
        assert writer_of(queue, time.time()).state == "writing"
        second = vrm(*options, "--live", "live", cwd=tmp_path)
        assert second.returncode == 2 and "--resume" in second.stderr
        second = vrm(*options, "--live", "--resume", "live", cwd=tmp_path)
        assert second.returncode == 2 and "being written already" in second.stderr
    finally:
        process.kill()
        process.wait()
    assert writer_of(queue, time.time()).state == "ended"
    with open(queue, "a") as file:
        file.write("cg.S.x 1 5")  # as if it had been killed within a line
    other = vrm(*options[:-4], "--seed", "8", "--live", "--resume", "live", cwd=tmp_path)
    assert other.returncode == 2 and "not job" in other.stderr
    done = vrm(*options, "--live", "--resume", "--speed", "1000", "live", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert vrm(*options, "whole", cwd=tmp_path).returncode == 0
    assert queue.read_text() == (tmp_path / "whole").read_text()
    again = vrm(*options, "--live", "--resume", "live", cwd=tmp_path)
    assert again.returncode == 2 and "complete" in again.stderr


def test_an_interrupted_generator_says_how_to_go_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "vrm.cli", "generate", "--estimates", "class-b", "--live",
         "--seed", "3", "--arrival", "uniform:500", "live"], cwd=tmp_path, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: (tmp_path / "live").exists()
                   and len((tmp_path / "live").read_text().splitlines()) == 2, "the first job")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and "--resume and --seed 3" in said
    assert "Traceback" not in said
    assert writer_of(tmp_path / "live", time.time()).state == "ended"


def test_the_first_line_of_a_file_makes_it_again(tmp_path: Path) -> None:
    assert vrm("--estimates", "class-b", "--ranks", "4,16", "--jobs", "9", "--exclusive", "0.3",
               "--margin", "1.2", "--arrival", "poisson:4", "one", cwd=tmp_path).returncode == 0
    command = (tmp_path / "one").read_text().splitlines()[0].split()
    assert command[:3] == ["#", "vrm", "generate"]
    assert vrm(*command[3:], "two", cwd=tmp_path).returncode == 0
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()


def test_a_manager_runs_what_a_live_generator_writes(site: Site) -> None:
    site.config(Replay={"Speed": 50})  # else it waits as the record says
    for name in ("cg.S.x", "ep.S.x"):
        site.program(name, "echo ' Time in seconds = 0.01'\n")
    manager = site.start()
    made = site.run("generate", "--apps", "cg,ep", "--classes", "S", "--ranks", "1", "--estimate",
                    "5", "--jobs", "5", "--seed", "4", "--live", "--speed", "50")
    assert made.returncode == 0, made.stderr
    site.finish(manager)
    assert set(site.statuses().values()) == {"completed"} and len(site.statuses()) == 5


@pytest.mark.parametrize("arguments, message", [
    (["q"], "no estimates; measure some with `vrm calibrate`"),
    (["q", "--estimate", "3"], "give --apps and --ranks"),
    (["q", "--estimate", "3", "--estimates", "t"], "give one of them"),
    (["q", "--estimates", "nix"], "vrm calibrate --out nix"),
    (["q", "--estimates", "class-b", "--arrival", "sometimes"], "uniform:LOW-HIGH"),
    (["q", "--estimates", "class-b", "--arrival", "uniform:9-3"], "uniform:LOW-HIGH"),
    (["q", "--estimates", "class-b", "--exclusive", "2"], "from 0 to 1"),
    (["q", "--estimates", "class-b", "--margin", "1e9"], "may be longer than 1000000000 s"),
    (["q", "--estimates", "class-b", "--jobs", "0"], "not a whole number from 1 up"),
    (["q", "--estimates", "class-b", "--live", "--resume"], "--seed"),
    (["q", "--estimates", "class-b", "--speed", "3"], "--speed is how fast a --live mix"),
    (["q", "--estimates", "class-b", "--live", "--force"], "for --live name a new one"),
    (["there/q", "--estimates", "class-b"], "cannot write there/q"),
    (["--estimates", "class-b", "-c", "nix.yaml"], "nix.yaml: no such file")])
@pytest.mark.slow
def test_what_cannot_be_generated_is_said(tmp_path: Path, arguments: list[str],
                                          message: str) -> None:
    (tmp_path / "there").write_text("a file")
    done = vrm(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "q").exists()


def test_another_writer_is_not_disturbed(tmp_path: Path) -> None:
    with WriterMarker(tmp_path / "q"), pytest.raises(GenerateError, match="being written"):
        write_live(mix(2), tmp_path / "q", "how", pause=lambda seconds: None)


# The table.


def test_a_table_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [Estimate("cg.S.x", 2).with_run(1.5, 1.25).with_run(2.5, 2.0).with_run(1.75, 1.5),
             Estimate("odd,name", 4).with_run(0.5, 0.5)]
    path.write_text(table_text(lines, ["machine: m"]))
    table, comments = read_estimates(path)
    assert list(table.values()) == lines and comments == ["machine: m"]
    assert table["cg.S.x", 2].seconds == 1.75
    path.write_text("app,procs,seconds\nmine,3,10\n")
    assert read_estimates(path)[0]["mine", 3].seconds == 10


@pytest.mark.parametrize("text, message", [
    ("", "no column app, procs, seconds"), ("app,procs,seconds\n", "no lines but the first"),
    ("app,procs,seconds\na,1\n", ":2: 2 values for 3 columns"),
    ("app,procs,seconds\na,x,3\n", ":2: invalid literal"),
    ("app,procs,seconds\na,1,0\n", ":2: ranks are 1 or more and seconds above 0"),
    ("# t\napp,procs,seconds\na,1,2\na,1,3\n", ":4: a on 1 ranks has a line already")])
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(EstimateError, match=message):
        read_estimates(tmp_path / "t")
