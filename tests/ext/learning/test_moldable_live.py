"""Live jobs that may run on several numbers of ranks: on which they start, why, and that a restart keeps it."""

from __future__ import annotations

import json

import pytest
from conftest import Site, wait_until

from vrm.ext.learning.learned_jobs import LearnedJob
from vrm.ext.learning.store import LearnedStore

pytestmark = pytest.mark.mpi


@pytest.fixture
def plain(site: Site) -> Site:
    """A site of four emulated cores."""
    site.env["XDG_DATA_HOME"] = str(site.root / "data")
    site.program("nap.x", 'echo "$VRM_RANKS"; exec sleep 0.2\n')
    site.program("wait.x", "until [ -e go ]; do sleep 0.02; done\n")
    config(site)
    return site


def config(site: Site, backfilling: str = "moldable", **keys: object) -> None:
    site.config(Launcher={"Kind": "direct"}, Nodes=1, Sockets=1, Cores=4, Emulate=True, Allocation={"Policy": "pack"},
                Scheduling={"Backfilling": backfilling}, **keys)


def learn(site: Site, times: dict[int, float], machine: str = "", app: str = "nap.x") -> None:
    """Runs of the past: seconds by number of ranks."""
    with LearnedStore(site.root / "data" / "vrm" / "learned.sqlite") as store:
        store.add("before", "/", machine or name_of_machine(site), [
            LearnedJob("before", number, app, "", ranks, ranks, "e0", 0.0, seconds, 900.0, "completed")
            for number, (ranks, seconds) in enumerate(times.items())])


def name_of_machine(site: Site) -> str:
    site.program("other.x", "exit 0\n")
    site.lines("other.x 1 5")
    site.run("--once")
    with LearnedStore(site.root / "data" / "vrm" / "learned.sqlite") as store:
        found, = store.machines().values()
        store.forget()
    site.run("--once", "--fresh")
    return found


def test_a_program_that_scales_gets_many_ranks_and_one_that_does_not_gets_few(plain: Site) -> None:
    machine = name_of_machine(plain)
    learn(plain, {1: 100.0, 2: 50.0, 4: 25.0}, machine)
    plain.lines("nap.x 2 900 0 ranks=1,2,4")
    plain.run("--once", "--fresh")
    assert plain.rows()[0].procs == 4
    with LearnedStore(plain.root / "data" / "vrm" / "learned.sqlite") as store:
        store.forget()
    learn(plain, {1: 50.0, 2: 60.0, 4: 90.0}, machine)  # the curve goes up again
    plain.run("--once", "--fresh")
    row = plain.rows()[0]
    assert (row.procs, row.walltime, row.status) == (1, 1800.0, "completed")


def test_what_was_learned_on_another_machine_does_not_count(plain: Site) -> None:
    learn(plain, {1: 50.0, 2: 60.0, 4: 90.0}, "other 8+8")
    plain.lines("nap.x 2 900 0 ranks=1,2,4")
    plain.run("--once")
    assert plain.rows()[0].procs == 4  # as of a program that nobody has seen


def test_explain_names_the_choice_with_the_others(plain: Site) -> None:
    learn(plain, {1: 100.0, 2: 51.0, 4: 26.0})
    plain.lines("nap.x 2 900 0 ranks=1,2,4")
    plain.run("--once", "--fresh")
    said = plain.run("explain", "0")
    assert said.returncode == 0 and "#0: It runs on 4 ranks, for the least mean of wait and run:" in said.stdout
    assert "\nExpected from jobs of nap.x without arguments, in the directory of the run\n" in said.stdout
    rows = [line.split() for line in said.stdout.splitlines()]
    assert [row[:2] for row in rows if row and row[0] in "124"] == [["1", "1m40s"], ["2", "51s"], ["4", "26s"]]
    assert [row[0] for row in rows if "chosen" in row] == ["4"]
    width = json.loads(plain.run("explain", "0", "--json").stdout)[0]["width"]
    assert width["ranks"] == 4 and [option[:2] for option in width["options"]] == [[1, 100.0], [2, 51.0], [4, 26.0]]


def test_explain_names_the_arguments_by_which_times_are_compared(plain: Site) -> None:
    plain.lines("nap.x 2 900 0 ranks=1,2,4 args='-n 3' name=label")
    plain.run("--once", "--fresh")
    said = plain.run("explain", "0")
    assert "Expected from jobs of nap.x with the arguments -n 3" in said.stdout, said.stdout + said.stderr


def test_a_killed_manager_changes_nothing(plain: Site) -> None:
    plain.lines("wait.x 1 60 0 ranks=1,4", end=False)
    manager = plain.start()
    wait_until(lambda: plain.running() == ["0"], "it runs")
    manager.kill()
    manager.wait()
    (plain.root / "go").touch()
    plain.append("end\n")
    done = plain.run("--once")
    assert plain.statuses() == {0: "completed"}, done.stdout
    assert plain.rows()[0].procs == 4 and "warning" not in done.stdout.lower()


def test_a_job_that_runs_again_asks_for_what_it_asked_for_first(plain: Site) -> None:
    plain.program("fail.x", "exit 1\n")
    plain.lines("fail.x 2 60 0 ranks=1,4 retries=1")
    plain.run("--once")
    row = plain.rows()[0]
    assert (row.procs, row.walltime) == (4, 60.0)
    assert plain.run("--once", "--failed").returncode == 1
    assert (plain.rows()[0].procs, plain.rows()[0].walltime) == (4, 60.0)


def test_other_backfillings_say_that_they_do_not_choose(plain: Site) -> None:
    config(plain, "easy")
    plain.lines("nap.x 2 60 0 ranks=1..4", "nap.x 2 60 0 ranks=1..4")
    done = plain.run("--once")
    assert (done.stdout + done.stderr).count(
        "#0 nap.x: ranks=1..4 is for Backfilling: moldable; with easy it runs on 2 ranks") == 1
    assert {row.procs for row in plain.rows().values()} == {2}


@pytest.mark.parametrize("wish, why", [
    ("16..2", "`16..2` has its larger end first; write 2..16"), ("2-16", "`2-16` is not a choice of numbers of ranks"),
    ("2..16,cubes", "is not a choice"), ("0..3", "does not name 1 to 256 numbers")])
def test_a_wrong_choice_is_refused_with_its_place(plain: Site, wish: str, why: str) -> None:
    plain.lines(f"nap.x 2 60 0 ranks={wish}")
    said = plain.run("check")
    assert said.returncode == 1 and why in said.stdout + said.stderr and "queue:1" in said.stdout + said.stderr


def test_submit_takes_the_choice(plain: Site) -> None:
    plain.lines(end=False)
    manager = plain.start()
    wait_until(lambda: plain.state() is not None, "the manager is there")
    given = plain.run("submit", "nap.x", "1", "60", "--ranks", "1,2,4", "--wait")
    assert given.returncode == 0, given.stderr
    assert plain.rows()[0].procs == 4
    wrong = plain.run("submit", "nap.x", "1", "60", "--ranks", "16..2")
    assert wrong.returncode == 2 and "has its larger end first; write 2..16" in wrong.stderr
    plain.run("stop")
    plain.finish(manager)
