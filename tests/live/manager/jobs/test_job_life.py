"""The life of jobs in the real `vrm`: fields of a queue line, dependencies, priorities, retries,
arrays, and the commands hold, release, requeue and cancel; all of it across a kill of the manager.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest

from conftest import Site, wait_until
from vrm.results.job_columns import HEADER, SIMULATED
from vrm.model.quantities import numbers
from vrm.workload.queue_follower import QueueFollower

LOG = 'echo "$VRM_JOB_ID $*" >> "$(dirname "$0")/log"\n'
WAIT = LOG + 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n'


@pytest.fixture
def site(site: Site) -> Site:
    """A site that starts its programs directly."""
    site.config(Launcher={"Kind": "direct"})
    return site


def log(site: Site) -> list[str]:
    """A line for each start of a program: the job's id and the arguments."""
    path = site.bin / "log"
    return path.read_text().splitlines() if path.exists() else []


def started(site: Site) -> list[int]:
    """The ids of the jobs in the order of their starts."""
    return [int(line.split()[0]) for line in log(site)]


def let_go(program: Path) -> None:
    """Let the runs of a waiting program end."""
    Path(f"{program}.go").touch()


def running(site: Site, manager: subprocess.Popen[str], *ids: int) -> None:
    """Wait until exactly these jobs have been started at least once."""
    wait_until(lambda: set(started(site)) == set(ids), f"jobs {ids} have started")


def kill(manager: subprocess.Popen[str]) -> None:
    """kill -9."""
    manager.kill()
    manager.wait()


def shown(site: Site) -> dict[int, tuple[str, bool, list[int]]]:
    """State, whether it is held, and what it waits for, of each job that `vrm -i queue` shows."""
    jobs = json.loads(site.run("-i", "queue", "--json").stdout)["jobs"]
    return {job["id"]: (job["state"], job["held"], list(numbers(job["after"])) if job["after"]
                        else []) for job in jobs}


def shows(site: Site, jobs: dict[int, tuple[str, bool, list[int]]]) -> None:
    """Wait until `vrm -i queue` shows these jobs: the state is written a moment after an answer."""
    wait_until(lambda: shown(site) == jobs, f"{jobs} are shown")


# What a line says reaches the program, and no shell.


def test_arguments_environment_and_directory_reach_the_program_as_written(site: Site) -> None:
    (site.root / "some place").mkdir()
    site.program("tell.x", 'for word; do printf "<%s>" "$word"; done; echo\n'
                           'echo "$COLOUR|$OTHER"; pwd\n')
    site.lines("""tell.x 1 9 0 args='"a b" $HOME `touch a` $(touch b) ; touch c | * \\\\ # %i' """
               """env=COLOUR='$(touch d) 1,2' env=OTHER= dir='some place'""")
    assert site.run().returncode == 0, site.rows()
    words, variables, place = (site.log / "tell.x.0.o").read_text().splitlines()
    assert words == "<a b><$HOME><`touch><a`><$(touch><b)><;><touch><c><|><*><\\><#><%i>"
    assert variables == "$(touch d) 1,2|"
    assert place == str(site.root / "some place")
    assert sorted(p.name for p in (site.root / "some place").iterdir()) == []


def test_a_directory_that_is_not_there_fails_the_job_alone(site: Site) -> None:
    site.program("ok.x", LOG)
    site.lines("ok.x 1 9 0 dir=nowhere", "ok.x 1 9 0")
    assert site.run().returncode == 1
    assert site.statuses() == {0: "failed", 1: "completed"}
    assert str(site.root / "nowhere") in site.rows()[0].reason


def test_an_array_is_a_job_for_each_index(site: Site) -> None:
    site.program("part.x", LOG + 'echo "$VRM_ARRAY_INDEX"\n')
    site.lines("part.x 1 9 0 array=2-6:2,9 args='in.%i out%i'", "part.x 1 9 0 args=%i")
    assert site.run().returncode == 0
    assert log(site) == ["0 in.2 out2", "1 in.4 out4", "2 in.6 out6", "3 in.9 out9", "4 %i"]
    assert [(site.log / f"part.x.{i}.o").read_text() for i in range(5)] == [
        "2\n", "4\n", "6\n", "9\n", "\n"]


def test_an_array_that_is_refused_is_told_once(site: Site) -> None:
    site.lines("none.x 1 9 0 array=1-50")
    done = site.run()
    assert done.stdout.count("does not exist") == 1 and "#0-49 none.x refused" in done.stdout
    assert set(site.statuses().values()) == {"refused"} and len(site.rows()) == 50


# Order.


def test_dependencies_are_kept_and_a_failure_cancels_what_depends_on_it(site: Site) -> None:
    site.program("ok.x", LOG)
    site.program("bad.x", LOG + "exit 3\n")
    site.lines("bad.x 1 9 0 priority=-1",       # 0, last of those that can start
               "ok.x 1 9 0 after=0",            # 1
               "ok.x 1 9 0 after=any:0",        # 2
               "ok.x 1 9 0 after=1",            # 3, in turn
               "ok.x 1 9 0 after=any:1,5",      # 4 refused: 5 comes later
               "ok.x 1 9 0",                    # 5
               "ok.x 1 9 0 after=2,5",          # 6
               "ok.x 1 9 0 after=any:3,any:2")  # 7
    done = site.run()
    assert done.returncode == 1
    assert site.statuses() == {0: "failed", 1: "cancelled", 2: "completed", 3: "cancelled",
                               4: "refused", 5: "completed", 6: "completed", 7: "completed"}
    assert started(site) == [5, 0, 2, 6, 7]
    rows = site.rows()
    assert rows[1].reason == "job 0, on which it depends, ended as failed"
    assert rows[3].reason == "job 1, on which it depends, ended as cancelled"
    assert "depends on job 5" in rows[4].reason


def test_a_long_chain_of_dependencies_falls_at_once(site: Site) -> None:
    site.program("bad.x", "exit 1\n")
    site.lines("bad.x 1 9 0", *[f"bad.x 1 9 0 after={i}" for i in range(1500)])
    site.run()
    assert list(site.statuses().values()) == ["failed"] + ["cancelled"] * 1500


@pytest.mark.parametrize("scheduling", [
    {"Algorithm": "FCFS"}, {"Algorithm": "WFP3", "Backfilling": "easy"},
    {"Algorithm": "FCFS", "Backfilling": "conservative"}])
def test_a_higher_priority_comes_first_and_within_one_the_ordering_decides(
        site: Site, scheduling: dict) -> None:
    site.config(Launcher={"Kind": "direct"}, Scheduling=scheduling)
    first = site.program("first.x", WAIT)
    site.program("ok.x", LOG)
    site.lines("first.x 1 30 0", end=False)
    manager = site.start()
    running(site, manager, 0)
    site.append("ok.x 1 9 0\nok.x 1 9 0 priority=5\nok.x 1 9 0\nok.x 1 9 0 priority=-1\n"
                "ok.x 1 9 0 priority=5\nend\n")
    wait_until(lambda: len(shown(site)) == 6, "all lines are taken")
    if scheduling["Algorithm"] == "FCFS":
        assert list(shown(site)) == [0, 2, 5, 1, 3, 4]
    let_go(first)
    site.finish(manager)
    if scheduling.get("Backfilling") != "conservative":  # there who came first keeps its start
        assert started(site) == [0, 2, 5, 1, 3, 4]


# Tries.


FAILS_TWICE = LOG + '[ $(grep -c "^$VRM_JOB_ID " "$(dirname "$0")/log") -gt 2 ] || exit 7\n'


def test_a_failed_job_is_tried_again(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"}, Retries=1)
    site.program("some.x", FAILS_TWICE)
    site.lines("some.x 1 9 0", "some.x 1 9 0 retries=2", "some.x 1 9 0 retries=0",
               "some.x 1 9 0 after=1")
    done = site.run()
    assert site.statuses() == {0: "failed", 1: "completed", 2: "failed", 3: "failed"}
    assert sorted(started(site)) == [0, 0, 1, 1, 1, 2, 3, 3]
    assert "retry 1 of 2" in done.stdout and "retry 2 of 2" in done.stdout
    assert len((site.log / "jobs.csv").read_text().splitlines()) == 5


def test_a_job_that_ran_too_long_is_tried_again(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"}, Walltime="kill", Grace=0)
    site.program("long.x", WAIT)
    site.lines("long.x 1 1 0 retries=1")
    site.finish(site.start())
    assert site.statuses() == {0: "timeout"} and started(site) == [0, 0]
    site.nothing_left()


# Commands.


def test_hold_and_release(site: Site) -> None:
    first = site.program("first.x", WAIT)
    site.program("ok.x", LOG)
    site.lines("first.x 1 30 0", "ok.x 1 9 0 hold=1", "ok.x 1 9 0", "ok.x 1 9 0 after=1")
    manager = site.start()
    running(site, manager, 0)
    assert site.run("hold", "2").returncode == 0
    shows(site, {0: ("running", False, []), 1: ("queued", True, []), 2: ("queued", True, []),
                 3: ("queued", False, [1])})
    table = site.run("-i", "queue").stdout
    assert table.count("| held ") == 2 and table.count("| after 1 ") == 1
    assert "does not wait: it is running" in site.run("hold", "0").stderr
    assert "there is no job 9" in site.run("release", "9").stderr
    assert "not held" in site.run("release", "3").stderr
    assert "none of these jobs can be changed by release" in site.run("release", "3-9").stderr
    assert site.run("hold", "x").returncode == 2
    let_go(first)
    wait_until(lambda: "only held jobs are left (1-2)" in site.said(manager), "it is told")
    assert site.run("release", "1-3").returncode == 0
    site.finish(manager)
    assert set(site.statuses().values()) == {"completed"} and started(site) == [0, 1, 2, 3]


def test_submit_takes_what_a_line_takes(site: Site) -> None:
    (site.root / "place").mkdir()
    site.program("tell.x", LOG + 'echo "$A|$B|$VRM_ARRAY_INDEX|$(pwd)"\n')
    site.lines(end=False)
    manager = site.start("--wait")
    wait_until(site.state, "the manager runs")
    done = site.run("submit", "tell.x", "1", "9", "--args", "'x y' %i", "--env", "A=1 2",
                    "--env", "B=", "--dir", str(site.root / "place"), "--array", "3-4",
                    "--priority", "2", "--hold", "--name", "a name", "--retries", "1")
    assert done.stdout == "jobs 0-1: tell.x wait\n", done.stderr
    assert site.run("submit", "tell.x", "1", "9", "--after", "0-1").returncode == 0
    shows(site, {0: ("queued", True, []), 1: ("queued", True, []), 2: ("queued", False, [0, 1])})
    assert "wanted the ids" in site.run("submit", "tell.x", "1", "9", "--after", "7-5").stderr
    assert "it waits for job `x`, but no earlier job has this name" in site.run(
        "submit", "tell.x", "1", "9", "--after", "x").stderr
    assert "depends on job 9" in site.run("submit", "tell.x", "1", "9", "--after", "9").stderr
    assert site.run("release", "all").returncode == 0
    wait_until(lambda: len(site.statuses()) == 5, "all have ended")
    assert log(site) == ["0 x y 3", "1 x y 4", "2 "]
    assert (site.log / "tell.x.1.o").read_text() == f"1 2||4|{site.root}/place\n"
    site.run("stop")
    site.finish(manager)


def test_requeue_of_running_and_ended_jobs(site: Site) -> None:
    first = site.program("first.x", "trap 'exit 0' TERM\n" + WAIT)
    site.program("ok.x", LOG)
    site.program("bad.x", LOG + "exit 1\n")
    site.lines("ok.x 1 9 0", "bad.x 1 9 0", "first.x 1 30 0", "bad.x 1 9 0 after=2", end=False)
    manager = site.start("--wait")
    running(site, manager, 0, 1, 2)
    assert "waits already" in site.run("requeue", "3").stderr
    assert site.run("requeue", "0", "2").returncode == 0  # 2 ends with 0: it runs anew all the same
    wait_until(lambda: started(site) == [0, 1, 2, 0, 2], "both have run anew")
    let_go(first)
    ended = {0: "completed", 1: "failed", 2: "completed", 3: "failed"}
    wait_until(lambda: site.statuses() == ended, "all have ended")
    assert site.run("requeue", "1-2").returncode == 0
    wait_until(lambda: started(site)[6:] == [1, 2], "those have run anew, and what depended not")
    assert site.run("stop").returncode == 0
    said = site.finish(manager)
    assert "2 completed, 2 failed" in said
    lines = (site.log / "jobs.csv").read_text().splitlines()
    assert sorted(int(line.split(",")[0]) for line in lines[1:]) == [0, 1, 2, 3]


def test_cancel_takes_ids_ranges_and_all(site: Site) -> None:
    first = site.program("first.x", WAIT)
    site.lines("first.x 1 30 0", *["first.x 1 9 0"] * 6, "first.x 1 9 0 after=6", end=False)
    manager = site.start()
    running(site, manager, 0)
    wait_until(lambda: len(shown(site)) == 8, "all lines are taken")
    done = site.run("cancel", "2-4", "6", "77")
    assert done.returncode == 1 and "there is no job 77" in done.stderr
    wait_until(lambda: sorted(site.statuses()) == [2, 3, 4, 6, 7], "those are cancelled")
    assert site.rows()[7].reason == "job 6, on which it depends, ended as cancelled"
    assert site.run("cancel", "2").returncode == 1
    assert site.run("cancel", "all").returncode == 0
    wait_until(lambda: set(site.statuses().values()) == {"cancelled"} and len(site.rows()) == 8,
               "all are cancelled")
    assert started(site) == [0]
    site.run("stop")
    site.finish(manager)
    assert not first.with_name("first.x.go").exists()


# A restart.


def test_a_restarted_manager_knows_held_dependent_and_retried_jobs(site: Site) -> None:
    first = site.program("first.x", WAIT)
    site.program("some.x", FAILS_TWICE)
    site.program("ok.x", LOG)
    site.lines("some.x 1 9 0 retries=1", "first.x 1 30 0 priority=-1", "ok.x 1 9 0 hold=1",
               "ok.x 1 9 0", "ok.x 1 9 0 after=1 args=x array=4-5", "ok.x 1 9 0 hold=1 env=A=B",
               "some.x 1 9 0 hold=1 retries=3")
    site.append("")
    manager = site.start()
    wait_until(lambda: started(site)[-1:] == [1], "the second job runs")
    assert site.run("hold", "4").returncode == 0
    assert site.run("release", "2").returncode == 0
    known = {1: ("running", False, []), 2: ("queued", False, []), 4: ("queued", True, [1]),
             5: ("queued", False, [1]), 6: ("queued", True, []), 7: ("queued", True, [])}
    shows(site, known)
    kill(manager)
    again = site.start()
    wait_until(lambda: "continuing the run" in site.said(again), "the second manager runs")
    wait_until(lambda: site.state()["manager"]["pid"] == again.pid, "it has written its state")
    assert shown(site) == known
    let_go(first)
    wait_until(lambda: "only held jobs are left (4,6-7)" in site.said(again), "only those are left")
    assert site.run("requeue", "0").returncode == 0
    wait_until(lambda: started(site).count(0) == 3, "it has run a third time, and succeeded")
    assert site.run("release", "all").returncode == 0
    site.finish(again)
    assert set(site.statuses().values()) == {"completed"}
    assert log(site)[:4] == ["0 ", "0 ", "3 ", "1 "] and "4 x" in log(site)
    assert started(site).count(7) == 3


def test_a_requeued_job_survives_a_kill(site: Site) -> None:
    """Between the record that a job waits again and its next start."""
    first = site.program("first.x", WAIT)
    site.program("ok.x", LOG)
    site.lines("ok.x 1 9 0", "first.x 1 30 0", end=False)
    manager = site.start()
    running(site, manager, 0, 1)
    assert site.run("requeue", "0").returncode == 0
    kill(manager)
    let_go(first)
    wait_until(lambda: not site.running(), "the second job has ended by itself")
    again = site.start()
    wait_until(lambda: site.statuses() == {0: "completed", 1: "completed"}, "both have ended")
    site.run("stop")
    site.finish(again)
    assert started(site) == [0, 1, 0]


# Ids, names, and what tells jobs apart.


def test_a_bad_line_keeps_its_ids(site: Site) -> None:
    site.program("ok.x", LOG)
    site.lines("ok.x 1 9 0", "ok.x 1 9x 0 array=0-1", "'", "ok.x 1 9 0 after=0",
               "ok.x 1 9 0 after=2", "ok.x 1 9 0 after=4")
    said = site.finish(site.start())
    assert site.statuses() == {0: "completed", 1: "refused", 2: "refused", 3: "refused",
                               4: "completed", 5: "cancelled", 6: "completed"}
    rows = site.rows()
    assert rows[2].app == "ok.x" and rows[2].reason.startswith(f"{site.queue}:2: seconds: found `9x`")
    assert rows[3].app == "?" and rows[3].reason.startswith(f"{site.queue}:3: a quote is not closed")
    assert rows[5].reason == "job 2, on which it depends, ended as refused"
    assert f"#1-2 ok.x refused: {site.queue}:2: seconds: found `9x`" in said
    assert log(site) == ["0 ", "4 ", "6 "]


def test_a_run_that_vrm_0_1_began_goes_on_by_its_rules(site: Site) -> None:
    """Its journal knows no format, its bad lines have no ids, its dependencies are lists, and its
    jobs.csv has fewer columns."""
    site.program("ok.x", LOG)
    site.lines("ok.x 1 9 0", "ok.x 1 9 0 after=0 hold=1", end=False)
    follower = QueueFollower(site.queue)
    positions = [line.position for line in follower.read_new()]
    site.append("nonsense\nok.x 1 9 0 after=0\nend\n")
    job = {"event": "job", "app": "ok.x", "procs": 1, "estimate": 9.0, "submit": 1.0,
           "exclusive": False, "cores": 1}
    records = [
        {"event": "run", "run": "0123456789ab", "time": 1.0, "pid": 1,
         "nodes": [[socket.gethostname(), [1]]], "host": socket.gethostname(), "boot": "b",
         "allocation": ""},
        {**job, "id": 0, "position": positions[0]},
        {"event": "start", "id": 0, "time": 1.0, "backfilled": False, "placement": {
            "share": "whole", "claims": ["0x1", "0x1"], "order": ["0x1"], "procs": 1, "width": 1,
            "most": None}},
        {"event": "end", "id": 0, "time": 2.0, "state": "completed", "reason": "", "exit_code": 0,
         "ran": None},
        {**job, "id": 1, "position": positions[1], "after": [[0, False]], "held": True}]
    site.log.mkdir(mode=0o700)
    (site.log / "journal").write_text("".join(json.dumps(each) + "\n" for each in records))
    (site.log / "jobs.csv").write_text(SIMULATED + "0,ok.x,1,1,1,2,9,completed,0,,0,0,n,n:0/0,,\n")
    manager = site.start()
    wait_until(lambda: site.run("release", "1").returncode == 0, "the manager runs")
    said = site.finish(manager)
    assert site.statuses() == {0: "completed", 1: "completed", 2: "completed"}, said
    assert "continuing the run of 2 job(s)" in said and ":3: procs" in said
    assert (site.log / "jobs.csv").read_text().startswith(HEADER)
    assert sorted(log(site)) == ["1 ", "2 "]


def test_a_restarted_manager_goes_on_counting_bad_lines(site: Site) -> None:
    site.program("ok.x", LOG)
    site.lines("bad", "ok.x 1 9 0 hold=1", end=False)
    manager = site.start()
    wait_until(lambda: site.state() and shown(site), "the lines are taken")
    kill(manager)
    site.append("bad\nok.x 1 9 0 after=1\nend\n")
    again = site.start()
    wait_until(lambda: 3 in shown(site), "the other lines are taken")
    assert site.run("release", "1").returncode == 0
    site.finish(again)
    assert site.statuses() == {0: "refused", 1: "completed", 2: "refused", 3: "completed"}


def test_jobs_wait_for_names(site: Site) -> None:
    site.program("ok.x", LOG)
    site.program("bad.x", "exit 3")
    site.lines("ok.x 1 9 0 name=prep priority=-3", "bad.x 1 9 0 name='prep 2'",
               "ok.x 1 9 0 name=prep priority=-4", "ok.x 1 9 0 after=prep priority=5",
               "ok.x 1 9 0 after='any:prep 2'", "ok.x 1 9 0 after='prep 2'",
               "ok.x 1 9 0 after=later", "ok.x 1 9 0 name=later")
    site.finish(site.start())
    assert list(site.statuses().values()) == [
        "completed", "failed", "completed", "completed", "completed", "cancelled", "refused",
        "completed"]
    assert site.rows()[6].reason.startswith("it waits for job `later`, but no earlier job has this name")
    assert started(site)[-3:] == [0, 2, 3]


def test_what_tells_jobs_apart_is_shown_everywhere(site: Site) -> None:
    (site.root / "place").mkdir()
    first = site.program("first.x", WAIT)
    site.lines("first.x 1 90 0 name='run 1' args='-n 3'",
               "first.x 1 90 0 name=sweep array=4-5 args='-i %i \"a b\"' dir=place")
    manager = site.start()
    running(site, manager, 0)
    wait_until(lambda: len(shown(site)) == 3, "all lines are taken")
    facts = {job["id"]: (job["name"], job["args"], job["index"], job["dir"])
             for job in json.loads(site.run("-i", "queue", "--json").stdout)["jobs"]}
    place = str(site.root / "place")
    assert facts == {0: ("run 1", "-n 3", None, ""), 1: ("sweep", "-i 4 'a b'", 4, place),
                     2: ("sweep", "-i 5 'a b'", 5, place)}
    table = site.run("-i", "queue").stdout
    assert "| sweep[5] | -i 5 'a b' |" in table
    assert "sweep[4] -i 4" in site.run("top", COLUMNS="120").stdout
    let_go(first)
    site.finish(manager)
    rows = {job_id: (row.name, row.args, row.index, row.dir) for job_id, row in site.rows().items()}
    assert rows == facts


def test_the_state_of_two_large_arrays_is_small(site: Site) -> None:
    site.program("ok.x", LOG)
    site.lines("ok.x 1 9 0 array=0-2999 hold=1", "ok.x 1 9 0 array=0-2999 after=0-2999")
    manager = site.start()
    wait_until(lambda: site.state() and len(site.state()["jobs"]) == 2, "both are in the state")
    assert (site.log / "state").stat().st_size < 5000
    table = site.run("-i", "queue").stdout
    assert "| after 0-2999 |" in table and table.count("\n") < 20
    assert site.run("queue", "--all").stdout.count("\n") > 6000
    done = site.run("cancel", "0-2999")
    assert done.stdout == "jobs 0-2999 (ok.x) will not run\n"
    site.finish(manager)
    assert list(site.statuses().values()) == ["cancelled"] * 6000
    assert site.rows()[5999].reason == "job 0, on which it depends, ended as cancelled"


def test_why_jobs_wait(site: Site) -> None:
    site.config(Forecast=False)  # whose starts `vrm top` shows instead of reasons
    first = site.program("first.x", WAIT)
    site.lines("first.x 1 90 0", "first.x 1 90 0", "first.x 1 90 0", "first.x 1 9 0 hold=1",
               "first.x 1 9 0 after=1-3")
    manager = site.start()
    running(site, manager, 0)
    wait_until(lambda: len(shown(site)) == 5, "all lines are taken")
    why = {job["id"]: job["why"]
           for job in json.loads(site.run("-i", "queue", "--json").stdout)["jobs"]}
    assert re.fullmatch(r"needs 1 empty node, 0 empty; next \d\d:\d\d:\d\d", why.pop(1))
    assert why == {0: "", 2: "behind job 1", 3: "held", 4: "after 1-3"}
    assert "| behind job 1" in site.run("-i", "queue").stdout
    assert "behind job 1" in site.run("top").stdout
    assert site.run("cancel", "1-4").returncode == 0
    let_go(first)
    site.finish(manager)


# What failed runs again, and nothing else.


FAILS_ONCE = LOG + 'if [ ! -e "$0.$VRM_JOB_ID" ]; then touch "$0.$VRM_JOB_ID"; exit 3; fi\n'


def failed_run(site: Site) -> None:
    """A finished run in which one job failed, one depended on it, and one line was wrong."""
    site.program("ok.x", LOG)
    site.program("once.x", FAILS_ONCE)
    site.lines("ok.x 1 9 0", "once.x 1 9 0 args=x name=n", "ok.x 1 9 0 after=1", "bad", "ok.x 1 9 0")
    said = site.finish(site.start())
    assert "run --failed` runs those again" in said
    assert list(site.statuses().values()) == [
        "completed", "failed", "cancelled", "refused", "completed"]


def test_a_finished_run_runs_again_what_failed(site: Site) -> None:
    failed_run(site)
    before = site.rows()
    said = site.finish(site.start("run", "--failed"))
    assert "#1-2 run again (--failed)" in said
    assert log(site) == ["0 ", "1 x", "4 ", "1 x", "2 "]
    rows = site.rows()
    assert {i: row.status for i, row in sorted(rows.items())} == {
        0: "completed", 1: "completed", 2: "completed", 3: "refused", 4: "completed"}
    assert [rows[i] for i in (0, 3, 4)] == [before[i] for i in (0, 3, 4)]
    assert rows[1].name == "n" and not (site.log / "earlier").exists()
    said = site.finish(site.start("run", "--failed"))
    assert "no job of the run failed" in said and len(log(site)) == 5
    assert "choose one" in site.run("run", "--failed", "--fresh").stderr


def test_what_failed_runs_again_across_a_kill(site: Site) -> None:
    failed_run(site)
    site.program("once.x", LOG + 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n')
    manager = site.start("run", "--failed")
    wait_until(lambda: started(site)[-1:] == [1], "it runs")
    kill(manager)
    let_go(site.bin / "once.x")
    site.finish(site.start())
    assert list(site.statuses().values()) == [
        "completed", "completed", "completed", "refused", "completed"]
    assert log(site) == ["0 ", "1 x", "4 ", "1 x", "2 "]


def test_failed_without_an_earlier_run_runs_the_lines(site: Site) -> None:
    site.program("ok.x", LOG)
    site.lines("ok.x 1 9 0")
    done = site.run("run", "--failed")
    assert done.returncode == 0 and log(site) == ["0 "]


def test_requeue_without_a_manager_is_for_the_next_one(site: Site) -> None:
    failed_run(site)
    assert "job 9 is not there" in site.run("requeue", "9").stderr
    assert "was refused" in site.run("requeue", "3").stderr
    done = site.run("requeue", "failed")
    assert done.returncode == 0 and "jobs 1-2 will wait again when" in done.stdout, done.stderr
    said = site.finish(site.start())
    assert "jobs 1-2 (once.x, ok.x) wait again" in said
    assert set(site.statuses().values()) == {"completed", "refused"} and len(site.rows()) == 5
    assert log(site) == ["0 ", "1 x", "4 ", "1 x", "2 "]
    assert list((site.log / "commands").iterdir()) == list((site.log / "replies").iterdir()) == []


def test_requeue_failed_of_a_running_manager(site: Site) -> None:
    first = site.program("first.x", WAIT)
    site.program("once.x", FAILS_ONCE)
    site.lines("once.x 1 9 0", "first.x 1 90 0", "once.x 1 9 0 after=0")
    manager = site.start()
    wait_until(lambda: started(site)[-1:] == [1], "it runs")
    done = site.run("requeue", "failed")
    assert "jobs 0,2 (once.x) wait again" in done.stdout, done.stderr
    let_go(first)
    site.finish(manager)
    assert site.statuses()[0] == "completed"


# Programs outside the directory of programs.


def test_a_program_elsewhere_is_run_by_its_name(site: Site) -> None:
    code = site.root / "code"
    code.mkdir()
    site.program("ok.x", LOG)
    (site.bin / "ok.x").rename(code / "real solver")
    (site.bin / "link").symlink_to(code / "real solver")
    site.lines("link 1 9 0", "solver 1 9 0 args=x", "gone 1 9 0", "open 1 9 0", "dir 1 9 0")
    (code / "open").write_text("#!/bin/sh\n")
    (code / "open").chmod(0o777)
    site.config(Applications={
        "Path": "bin", "Queue": "queue", "Programs": {
            "solver": "code/real solver", "gone": "code/gone", "open": "code/open", "dir": "code"}})
    assert site.run("check").returncode == 1
    site.finish(site.start())
    rows = site.rows()
    assert {i: row.status for i, row in sorted(rows.items())} == {
        0: "refused", 1: "completed", 2: "refused", 3: "refused", 4: "refused"}
    assert f"Programs: {{link: {code}/real solver}}" in rows[0].reason
    assert (code / "log").read_text() == "1 x\n"
    assert "does not exist; build it, or correct Applications.Programs" in rows[2].reason
    assert "may be written by everybody" in rows[3].reason and "not a file" in rows[4].reason


def test_a_name_of_a_program_is_no_path(site: Site) -> None:
    site.config(Applications={"Path": "bin", "Queue": "queue", "Programs": {"a/b": "/bin/true"}})
    done = site.run("run")
    assert done.returncode == 2 and "a name for a program" in done.stderr
