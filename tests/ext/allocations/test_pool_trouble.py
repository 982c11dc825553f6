"""A pool where things go wrong: nodes that die, a batch system that hangs, full disks, other orders, other clocks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, wait_until
from support.pools import Pool, lines, ran
from support.testbed import LOGIN, Testbed
from vrm import cli
from vrm.ext.allocations.pool import batch, dead_allocations
from vrm.ext.allocations.pool.batch import CommandOutput, ended_in_slurm
from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.overview import of
from vrm.ext.allocations.pool.state import PoolState, taking
from vrm.system.files import write_atomically


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def pool(site: Site) -> Pool:
    return Pool(site)


FAILED = CommandOutput(0, "JobId=7 JobState=NODE_FAIL StartTime=2026-11-28T01:00:00 EndTime=2026-11-28T01:30:00 NodeList=n[1-2]", "")


@pytest.mark.parametrize("boots, ended", [
    (["2026-11-28T01:20:00", "2026-11-28T01:25:00"], True),
    (["2026-11-28T01:20:00", "2026-11-27T01:25:00"], False),   # one of them was not started again
    (["2026-11-28T01:04:00", "2026-11-28T01:25:00"], False),   # or perhaps before, by another clock
    (["2026-11-28T01:20:00", "None"], False),
    ([], False)])
def test_nodes_that_were_started_again_run_nothing_of_a_job(monkeypatch: pytest.MonkeyPatch, boots: list[str], ended: bool
                                                           ) -> None:
    answer = CommandOutput(0, "\n".join(f"NodeName=n{at} State=IDLE BootTime={boot} LastBusyTime=Unknown"
                                        for at, boot in enumerate(boots)), "")
    asked: list[Any] = []
    monkeypatch.setattr(batch, "run", lambda words: asked.append(words) or answer)
    assert ended_in_slurm(FAILED) is ended and asked == [["scontrol", "--oneliner", "show", "node", "n[1-2]"]]
    monkeypatch.setattr(batch, "run", lambda words: answer._replace(status=1))
    assert ended_in_slurm(FAILED) is False


def begun(tmp_path: Path, system: str = "slurm") -> PoolJournal:
    """A pool of which one allocation has taken two of three jobs."""
    made = PoolJournal(tmp_path / "pool")
    made.create()
    for entry in ({"do": "start", "options": {"system": system, "max_allocations": 3}},
                  {"do": "add", "lines": ["x 1 9"] * 3}, {"do": "join", "name": "slurm-7", "job": "7"}, taking("slurm-7", [0, 1])):
        assert made.append(entry)
    (made.directory / "slurm-7").mkdir()
    (made.directory / "slurm-7" / "journal").touch()
    return made


def test_somebody_says_that_an_allocation_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while the batch system calls it running, and not while its manager writes."""
    made = begun(tmp_path)
    monkeypatch.setattr(dead_allocations, "WATCHED", 0.5)
    monkeypatch.setattr(dead_allocations, "LOOKS", 0.01)
    answers = [CommandOutput(0, "JobId=7 JobState=RUNNING", "")]
    monkeypatch.setattr(batch, "run", lambda words: answers[0])
    with pytest.raises(PoolError, match=r"the batch system says that slurm-7 runs: end it first \(scancel 7\)"):
        dead_allocations.give_back(made, "slurm-7")
    answers[0] = CommandOutput(0, "JobId=7 JobState=NODE_FAIL", "")
    state, ends = made.directory / "slurm-7" / "state", threading.Event()

    def write() -> None:
        while not ends.wait(0.02):
            write_atomically(state, "{}")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(PoolError, match="the manager of slurm-7 has just written .*state: it lives"):
            dead_allocations.give_back(made, "slurm-7")
    finally:
        ends.set()
        writer.join()
    assert made.look().held_by("slurm-7") == [0, 1]
    assert dead_allocations.give_back(made, "slurm-7") == 2
    assert [*made.look().free] == [0, 1, 2] and not made.state.is_live("slurm-7")


def test_jobs_of_which_nobody_knows_whether_they_have_ended_are_not_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                              ) -> None:
    made = begun(tmp_path, "")
    monkeypatch.setattr(dead_allocations, "WATCHED", 0.0)
    (made.directory / "slurm-7" / "journal").unlink()
    with pytest.raises(PoolError, match="journal: No such file"):
        dead_allocations.give_back(made, "slurm-7")
    assert made.look().held_by("slurm-7") == [0, 1]


def test_a_batch_system_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begun(tmp_path)
    for number in range(8, 12):
        made.append({"do": "join", "name": f"slurm-{number}", "job": str(number)})
    asked: list[str] = []

    def hangs(words: Any, seconds: float = 0.0) -> CommandOutput:
        asked.append(words[-1])
        return CommandOutput(None, "", "scontrol has not answered within 20 s")
    monkeypatch.setattr(batch, "run", hangs)
    assert "does not answer" not in of(made, asks=True).text() and asked == ["7", "8", "9", "10", "11"]  # it answers, wrongly
    monkeypatch.setattr(batch, "SECONDS", 0.0)
    asked.clear()
    found = of(made, asks=True)
    assert asked == ["7"] and "the batch system does not answer: which allocations have died is not known" in found.text()
    assert {each["state"] for each in found.record["allocations"]} == {"running"}


def test_a_hanging_batch_system_is_not_asked_for_more(pool: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
                                                     ) -> None:
    """`vrm pool start` says so after one question, and changes nothing."""
    monkeypatch.setenv("PATH", pool.site.env["PATH"])
    monkeypatch.setenv("FAKE", str(pool.fake))
    pool.site.queue.write_text(lines(2))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "2").returncode == 0
    scontrol = Path(shutil.which("scontrol") or "")
    scontrol.write_text(f"#!/bin/sh\necho asked >>{pool.fake}/asked\nexec sleep 600\n")
    monkeypatch.setattr(batch.run, "__defaults__", (0.5,))
    monkeypatch.setattr(batch, "SECONDS", 0.5)
    read = PoolJournal(pool.place).look().requests
    assert cli.main(["-c", str(pool.site.config_file), "pool", "start", "-N", "1", "-t", "1:00:00"]) == 2
    assert "the batch system does not answer; try again later" in capsys.readouterr().err
    assert (pool.fake / "asked").read_text() == "asked\n" and PoolJournal(pool.place).look().requests == read


def test_times_in_the_journal_decide_nothing(tmp_path: Path) -> None:
    """The same entries by clocks that differ by years, in this order."""
    entries = [{"do": "add", "lines": ["x 1 9"] * 3}, {"do": "join", "name": "a", "job": "1", "until": 5.0},
               {"do": "join", "name": "b", "job": "2", "until": 5e9}, taking("b", [1]), taking("a", [0, 1]), taking("a", [0])]
    states = [PoolState({**entry, "time": time} for entry, time in zip(entries, times))
              for times in ([0.0] * 6, [9e9, 1.0, -5.0, 7e9, 3.0, 2.0])]
    assert states[0].holder == states[1].holder == {0: "a", 1: "b"} and [*states[1].free] == [2]


# ------------------------------------------------------------------------------------- managers


def test_a_node_that_failed_keeps_its_jobs_until_somebody_says_that_it_is_gone(pool: Pool) -> None:
    """`vrm pool start` gives nothing back after NODE_FAIL; `vrm pool gone` does, and the jobs run elsewhere."""
    site = pool.site
    site.queue.write_text(lines(4))
    pool.hold(range(2))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    first = pool.allocation(100)
    wait_until(lambda: len(ran(site, "log")) == 2, "two jobs run")
    refused = pool.vrm("gone", "slurm-100")
    assert refused.returncode == 2 and "the batch system says that slurm-100 runs" in refused.stderr
    pool.kill(first)
    pool.said(100, "NODE_FAIL")
    pool.let_go(range(2))
    assert pool.vrm("start").returncode == 0 and PoolJournal(pool.place).look().held_by("slurm-100")
    assert "one of: slurm-100" in pool.vrm("gone").stderr
    done = pool.vrm("gone", "slurm-100")
    assert done.returncode == 0 and "jobs of slurm-100 wait again" in done.stdout + done.stderr, done.stderr
    assert pool.vrm("start").returncode == 0
    site.finish(pool.allocation(101))
    assert ran(site) == {str(number): 1 for number in range(4)}
    assert "no allocation of the pool runs" in pool.vrm("gone", "slurm-100").stderr


def test_a_node_that_was_started_again_gives_its_jobs_back(pool: Pool) -> None:
    """`vrm pool start` asks Slurm when the node was booted: not before the allocation began, but after it."""
    site = pool.site
    site.queue.write_text(lines(4))
    pool.hold(range(2))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    first = pool.allocation(100)
    wait_until(lambda: len(ran(site, "log")) == 2, "two jobs run")
    pool.kill(first)
    pool.said(100, "NODE_FAIL StartTime=2026-11-28T01:00:00 EndTime=2026-11-28T01:30:00 NodeList=n7")
    pool.let_go(range(2))
    node = pool.fake / "state.n7"
    for boot, back in (("2026-11-28T00:59:00", False), ("2026-11-28T01:29:00", True)):
        node.write_text(f"NodeName=n7 State=IDLE BootTime={boot} LastBusyTime=Unknown\n")
        said = pool.vrm("start")
        assert said.returncode == 0 and ("allocation slurm-100 has died" in said.stdout + said.stderr) is back, said.stderr
        assert bool(PoolJournal(pool.place).look().held_by("slurm-100")) is not back
    site.finish(pool.allocation(101))
    assert ran(site) == {str(number): 1 for number in range(4)} and pool.rows() == ran(site)


def test_allocations_that_begin_in_another_order(pool: Pool) -> None:
    """The last one first; the others when it has ended."""
    site = pool.site
    site.queue.write_text("count.x 1 20 0 args=short\n" * 3 + "count.x 1 3000 0 args=long\n" * 3)
    site.config(Nodes="auto", Cores=2, Launcher={"Kind": "direct"}, End={"Margin": 5})
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "3").returncode == 0
    site.finish(pool.allocation(102, 120))  # no time for the long one
    assert ran(site) == {"short": 3}
    site.finish(pool.allocation(101))
    assert ran(site) == {"short": 3, "long": 3}
    assert "nothing to do" in site.finish(pool.allocation(100))
    assert pool.status()["ended"] == {"completed": 6}


def test_an_allocation_that_ends_at_once_is_seen_and_asked_for_again(pool: Pool) -> None:
    site = pool.site
    site.queue.write_text(lines(2))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    pool.said(100, "FAILED")
    assert [each["state"] for each in pool.status()["allocations"]] == ["never began"]
    assert "batch job 101" in (again := pool.vrm("start")).stdout + again.stderr
    assert [each["state"] for each in pool.status()["allocations"]] == ["asked for"]
    assert "it ended before vrm had begun in it" in pool.vrm("status").stdout


@pytest.mark.parametrize("queue, words, said", [
    ("count.x 99 60\n", [], "no plan: no request can run job 0: "),
    ("count.x 1 9d\n", [], "no plan: no request can run job 0: its limit is 777600 s"),
    ("count.x 3 60\n", ["--max-nodes", "1"], "no plan: --max-nodes leaves 1 nodes, and no request with as few runs all jobs")])
def test_a_queue_that_no_allocation_can_run(pool: Pool, queue: str, words: list[str], said: str) -> None:
    pool.free_site(4)
    pool.site.queue.write_text(queue)
    done = pool.vrm("start", *words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not list(pool.fake.glob("job.*"))


def test_jobs_that_the_next_allocation_cannot_run_either_are_named(pool: Pool) -> None:
    """The shape was chosen, and a job was added that is too long for it."""
    site = pool.site
    site.queue.write_text(lines(1))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    (site.root / "more").write_text("count.x 1 9000 0 args=long\n")
    assert pool.vrm("add", str(site.root / "more")).returncode == 0
    working = pool.allocation(100)
    site.finish(working)
    said = site.said(working)
    assert "no allocation is asked for: job 1 of the pool cannot run: its limit is 9000 s, and an allocation" in said, said
    assert ran(site) == {"0": 1} and len([*pool.fake.glob("job.*")]) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=False,
                                      capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_changes_nothing_and_leaves_nothing(small_disk: Path) -> None:
    made = PoolJournal(small_disk)
    made.create()
    made.append({"do": "add", "lines": ["x 1 9"] * 3})
    (small_disk / "ballast").write_bytes(b"")
    with open(small_disk / "ballast", "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(b"x" * 4096)
    for _ in range(3):
        with pytest.raises(PoolError, match="No space left on device; the pool is not changed until that works again"):
            made.append({"do": "join", "name": "a", "job": "1"})
    assert sorted(path.name for path in small_disk.iterdir()) == ["ballast", "entries"] and made.read == 1
    (small_disk / "ballast").unlink()
    assert made.append({"do": "join", "name": "a", "job": "1"}) and PoolJournal(small_disk).look().is_live("a")


@pytest.mark.testbed
def test_a_real_slurm_calls_a_node_failed_that_runs_on(testbed: Testbed, tmp_path: Path) -> None:
    """The node is cut off, and its processes live: their jobs stay with them after NODE_FAIL, whatever somebody says.
    When the node was started again, `vrm pool gone` gives the jobs back, and they run elsewhere."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "long.x").write_text('#!/bin/sh\necho "$1" >>"$0.log"; while [ -e "$0.hold" ]; do sleep 0.1; done\n')
    (tmp_path / "bin" / "long.x").chmod(0o755)
    (tmp_path / "bin" / "long.x.hold").touch()
    (tmp_path / "queue").write_text("long.x 1 60 0 args=0\n")
    config = tmp_path / "vrm.yaml"
    config.write_text("Applications: {Path: bin, Queue: queue}\nLog: log\nLauncher: {AllowRoot: true, CheckBindings: ignore}\n")

    def on_login(*words: str) -> subprocess.CompletedProcess[str]:
        return testbed.exec(LOGIN, [*words], env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)

    def pool(*words: str) -> str:
        done = on_login(sys.executable, "-m", "vrm.cli", "-c", str(config), "pool", *words)
        return str(done.stdout) + str(done.stderr)

    def state() -> str:
        return str(on_login("scontrol", "--oneliner", "show", "job", job).stdout)
    said = pool("start", "-N", "1", "-t", "00:10:00", "--max-allocations", "1", "--cores", "2")
    job = said.splitlines()[0].rsplit(" ", 1)[1]
    node = ""
    journal = PoolJournal(tmp_path / "log" / "pool")
    node = ""
    try:
        wait_until(lambda: (tmp_path / "bin" / "long.x.log").exists(), "the job runs", limit=120)
        node = state().split(" NodeList=")[1].split()[0]
        testbed.cut(node)
        assert on_login("scontrol", "update", f"nodename={node}", "state=down", "reason=test").returncode == 0
        wait_until(lambda: "JobState=NODE_FAIL" in state(), "Slurm calls it failed", limit=60)
        assert "Requeue=0" in state()
        pool("start")
        assert journal.look().held_by(f"slurm-{job}") == [0]
        assert "it lives. End its processes first" in pool("gone", f"slurm-{job}")
        testbed.restart(node)
        (tmp_path / "bin" / "long.x.hold").unlink()
        said = pool("gone", f"slurm-{job}")
        assert f"1 jobs of slurm-{job} wait again" in said, said
        testbed.join(node)
        on_login("scontrol", "update", f"nodename={node}", "state=resume")
        assert "asked for 1 node" in pool("start")
        wait_until(lambda: not on_login("squeue", "-h", "-o", "%i").stdout.split(), "the next one has ended", limit=120)
        assert json.loads(pool("status", "--json"))["ended"] == {"completed": 1}
        assert (tmp_path / "bin" / "long.x.log").read_text() == "0\n0\n"
    finally:
        if node:
            testbed.join(node)
            on_login("scontrol", "update", f"nodename={node}", "state=resume")
        on_login("scancel", "--user=root")
