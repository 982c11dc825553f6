"""`vrm calibrate` with the real mpirun: the table, going on after a kill, what goes wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from conftest import Site, mpiruns, wait_until
from support.failing_mpirun import failing, tries
from vrm.ext.measure.calibrate import most_ranks
from vrm.run.requeue import LOSSES
from vrm.ext.measured.estimates import Estimate, read_estimates

RUN = "echo ran >> \"$0.log\"\necho ' Time in seconds = 0.25'\n"
MPIRUN = (b"mpirun", b"prterun")
"""What mpirun is called in the process table: Open MPI 5's becomes prterun."""
WAIT = RUN + "while [ ! -e \"$0.go\" ]; do sleep 0.02; done\n"


def runs(site: Site, name: str) -> int:
    log = site.bin / f"{name}.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def table(site: Site) -> dict[str, Estimate]:
    found, _ = read_estimates(site.root / "estimates.csv")
    return {f"{app} {procs}": estimate for (app, procs), estimate in found.items()}


def two_cores(site: Site, **more: object) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    site.config(Cores=2, **more)


def test_every_program_is_run_at_each_rank_count_it_allows(site: Site) -> None:
    two_cores(site)
    for name in ("cg.S.x", "bt.S.x"):
        site.program(name, RUN)
    done = site.run("calibrate", "--repetitions", "2")
    assert done.returncode == 0, done.stderr
    found = table(site)
    assert sorted(found) == ["bt.S.x 1", "cg.S.x 1", "cg.S.x 2"]
    assert runs(site, "bt.S.x") == 2 and runs(site, "cg.S.x") == 2 + 2 * 2
    for line in found.values():
        assert len(line.times) == 2 and line.app_seconds == 0.25
        assert line.seconds == pytest.approx(sum(line.times) / 2, abs=0.001) and line.seconds > 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert [line.split()[0] for line in lines] == [f"[{number}/6]" for number in range(1, 7)]
    assert [line.endswith("left") for line in lines] == [True] * 5 + [False]
    made = site.run("generate", "--estimates", "estimates.csv", "--jobs", "5", "queue")
    assert made.returncode == 0, made.stderr
    site.nothing_left()
    assert not list((site.log / "measure").glob("*.o"))


def test_the_placement_of_the_configuration_is_measured(site: Site) -> None:
    two_cores(site, Allocation={"Policy": "strip"})
    site.program("cg.S.x", RUN + "grep Cpus_allowed_list /proc/self/status >> \"$0.cpus\"\n")
    assert site.run("calibrate", "--repetitions", "1").returncode == 0
    assert list(table(site)) == ["cg.S.x 1"]
    done = site.run("calibrate", "--repetitions", "1", "--ranks", "1,2", "--fresh")
    assert done.returncode == 0 and "2 ranks are left out: 1 fit here under strip" in done.stderr
    site.config(Cores=2)
    done = site.run("calibrate", "--repetitions", "1")
    assert done.returncode == 2 and "placement strip; here:" in done.stderr
    assert "--fresh" in done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("mpirun", mpiruns())
def test_a_run_that_mpirun_could_not_start_is_started_again(site: Site, mpirun: str) -> None:
    """It is measured; after some tries it is said what mpirun says."""
    site.program("cg.S.x", RUN)
    site.config(Launcher={"Kind": "openmpi", "Mpirun": str(failing(site, mpirun))})
    done = site.run("calibrate", "--apps", "cg.S.x", "--repetitions", "1", "--ranks", "1", FAILS="2")
    assert done.returncode == 0, done.stderr
    assert table(site)["cg.S.x 1"].app_seconds == 0.25
    assert runs(site, "cg.S.x") == 1 and tries(site) == {0: 3}
    (site.root / "tries.0").unlink()
    done = site.run("calibrate", "--apps", "cg.S.x", "--repetitions", "1", "--ranks", "1", "--fresh", FAILS="99")
    assert done.returncode == 1 and "exit 213: The PMIx server's listener thread" in done.stderr
    assert runs(site, "cg.S.x") == 1 and tries(site) == {0: LOSSES + 1}
    site.nothing_left()


def test_a_killed_calibration_goes_on_and_leaves_nothing_running(site: Site) -> None:
    site.program("a.x", RUN)
    program = site.program("b.x", WAIT)
    first = site.start("calibrate", "--repetitions", "2")
    wait_until(lambda: runs(site, "b.x") == 1, "the second program runs")
    first.kill()
    first.wait()
    assert runs(site, "a.x") == 1 and len(table(site)["a.x 1"].times) == 1
    assert site.processes(), "the run of the killed calibration goes on"
    Path(f"{program}.log").unlink()
    # The second run of b.x is one of its own: what was left running is ended, not waited for.
    second = site.start("calibrate", "--repetitions", "2")
    wait_until(lambda: runs(site, "b.x") == 1, "the second program runs anew")
    assert len([pid for pid in site.processes() if _command(pid) in MPIRUN]) == 1
    Path(f"{program}.go").touch()
    said = site.finish(second)
    assert second.returncode == 0, said
    assert "continuing estimates.csv: 1 run(s) are there" in said
    assert runs(site, "a.x") == 2 and runs(site, "b.x") == 2
    assert all(len(line.times) == 2 for line in table(site).values())
    wait_until(lambda: not site.processes(), "nothing is left running")


def _command(pid: int) -> bytes:
    try:
        return os.path.basename(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])
    except OSError:
        return b""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_one_ends_its_run_and_says_how_to_go_on(site: Site, signum: int) -> None:
    site.program("b.x", WAIT)
    process = site.start("calibrate")
    wait_until(lambda: runs(site, "b.x") == 1, "the program runs")
    process.send_signal(signum)
    said = site.finish(process)
    assert process.returncode == 130 and "continues" in said and "Traceback" not in said
    site.nothing_left()


def test_programs_that_fail_are_named_and_the_others_measured(site: Site) -> None:
    site.program("bad.x", "echo 'wants a square' >&2\nexit 3\n")
    site.program("wrong.x", "echo ' Verification = UNSUCCESSFUL'\necho ' Time in seconds = 1'\n")
    site.program("long.x", "exec sleep 100\n")
    site.program("good.x", RUN)
    done = site.run("calibrate", "--apps", "long.x", "--limit", "1")
    assert done.returncode == 1 and not (site.root / "estimates.csv").exists()
    assert "long.x on 1 rank(s): ran longer than the limit" in done.stderr
    done = site.run("calibrate", "--apps", "bad.x,wrong.x,good.x", "--repetitions", "2")
    assert done.returncode == 1
    assert "not in the table: bad.x on 1 rank(s): exit 3: wants a square" in done.stderr
    assert "not in the table: wrong.x on 1 rank(s): its verification failed" in done.stderr
    assert list(table(site)) == ["good.x 1"] and runs(site, "good.x") == 2
    site.nothing_left()


@pytest.mark.parametrize("arguments, message", [
    (["--apps", "nix*"], "no program nix*"), (["--ranks", "7"], "nothing is left to measure"),
    (["--ranks", "x"], "not a whole number"), (["--out", "bin/a.x/t.csv"], "cannot write"),
    (["--out", "vrm.yaml"], "no column app")])
def test_what_cannot_be_measured_is_said(site: Site, arguments: list[str], message: str) -> None:
    site.program("a.x", RUN)
    done = site.run("calibrate", "--repetitions", "1", *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def test_without_programs_it_says_how_to_get_some(site: Site) -> None:
    done = site.run("calibrate")
    assert done.returncode == 2 and "vrm npb build" in done.stderr


def test_it_does_not_disturb_a_manager(site: Site) -> None:
    site.program("b.x", WAIT)
    site.lines("b.x 1 10 0")
    manager = site.start()
    wait_until(lambda: runs(site, "b.x") == 1, "the job runs")
    done = site.run("calibrate")
    assert done.returncode == 2 and "a manager" in done.stderr and runs(site, "b.x") == 1
    Path(site.bin / "b.x.go").touch()
    site.finish(manager)


@pytest.mark.parametrize("policy, most", [("compact", 24), ("strip", 12), ("spare", 12),
                                          ("pack", 24)])
def test_the_most_ranks_of_an_allocation(policy: str, most: int) -> None:
    from vrm.live.site.setup import Site as Allocation
    from vrm.model import Cluster
    from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
    cluster = Cluster.regular(3, 2, 4)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("none"),
                          make_policy(policy, cluster))
    assert most_ranks(Allocation(cluster, False, scheduler, None, None)) == most  # type: ignore[arg-type]
