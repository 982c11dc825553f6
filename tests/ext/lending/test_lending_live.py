"""Running jobs lend cores, live: the ranks of the lender leave them before the borrower is there, and have
them again when it has gone; also after `kill -9` of the manager behind each record, over several nodes, and
when anybody dies or a node is silent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Mapping

import pytest
import yaml
from conftest import Site, wait_until
from support.executor import Managed
from support.lending_site import KILLED, PROGRAM, allowed, cores, done, events, prepared
from support.testbed import LOGIN, Testbed

from vrm.ext.lending.part import AGAIN, PATIENCE, LendingPart
from vrm.live.manager.part import NodeClosed, JobHeldForCommand, Parts
from vrm.ext.lending.orders import MaskReport
from vrm.live.nodes.agent_events import AgentOrder
from vrm.live.nodes.topology import parse_cpu_list, read_topology
from vrm.model import JobState
from vrm.results import shares
from vrm.run.journal import files as journal
from vrm.run.entry import JobStateError
from vrm.run.journal.history import replay
from vrm.system.errors import RunError

ROOT = Path(__file__).resolve().parent.parent.parent.parent

@pytest.mark.slow
def test_ranks_leave_lent_cores_and_have_them_again(site: Site) -> None:
    first, second = cores(2)
    prepared(site)
    manager = site.start()
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has both cores")
    said = site.run("lend", "0", "--to", "1")
    assert said.returncode == 0 and said.stdout.endswith(
        " to job 1, which starts when job 0 has left it\n"), said
    wait_until(lambda: allowed(site.root, 1), "job 1 runs")
    assert allowed(site.root, 0) == first and allowed(site.root, 1) == second
    wait_until(lambda: "lends 1 core to 1" in site.run("queue").stdout, "the queue shows it")

    def known() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(site.run("-i", "state", "--json").stdout)
        return found

    wait_until(lambda: known()["lends"][0]["phase"] != "lend", "it is known that the core is clear")
    state = known()
    lend, = state["lends"]
    assert (lend["id"], lend["to"], lend["phase"], lend["cores"]) == (0, 1, "lent", 1)
    assert [socket["jobs"] for node in state["nodes"] for socket in node["sockets"]] == [[0, 1]]
    for wrong, why in ((("0",), "has 1 core for each of its ranks"), (("1",), "job 1 is not malleable"),
                       (("9",), "9")):
        refused = site.run("lend", *wrong, "--to", "node")
        assert refused.returncode == 1 and why in refused.stderr, refused
    refused = site.run("lend", "0", "--back")
    assert "job 1 runs on the cores of job 0 until it ends; `vrm requeue 1`" in refused.stderr
    done(site, 1)
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has its core again")
    # To nobody, and back.
    assert site.run("lend", "0", "--cores", "1", "--to", "node").returncode == 0
    wait_until(lambda: allowed(site.root, 0) == first, "the core is free")
    assert site.run("lend", "0", "--back").stdout == "job 0 takes its cores back\n"
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has its core again")
    done(site, 0)
    site.append("end\n")
    assert site.finish(manager) and manager.returncode == 0
    rows = site.rows()
    assert {row.status for row in rows.values()} == {"completed"}
    assert [row.binding for row in rows.values()] == ["ok", "ok"]
    assert (rows[0].mates, rows[1].mates, rows[0].changes, rows[1].changes) == ("1", "0", 4, 0)
    assert rows[1].borrowed == pytest.approx(rows[1].end - rows[1].start, abs=0.01)
    held = shares.read(site.log / "shares.csv")
    assert [each.cores for each in held if each.job == 0] == ["0/0-1", "0/0", "0/0-1", "0/0", "0/0-1"]
    lent = sum(each.end - each.begin for each in held if each.job == 0 and each.cores == "0/0")
    assert rows[0].lent == pytest.approx(lent, abs=0.01) and rows[0].lent > rows[1].borrowed
    mine = [each for each in held if each.job == 0]
    assert (mine[0].begin, mine[-1].end) == pytest.approx((rows[0].start, rows[0].end), abs=0.01)
    assert all(one.end == two.begin for one, two in zip(mine, mine[1:]))
    found = events(site)
    assert [event for event in found if event in ("lend", "lent", "regain", "regained")] == [
        "lend", "lent", "regain", "regained"] * 2
    assert found.index("lent") < len(found) - 1 - found[::-1].index("start")


@pytest.mark.slow
def test_masks_equal_the_plan_after_a_kill_behind_each_record(site: Site) -> None:
    """No job is lost, and none runs twice."""
    first, second = cores(2)
    for event, number in (("lend", 1), ("lent", 1), ("start", 2), ("end", 1), ("regain", 1),
                          ("regained", 1)):
        here = Site(site.root / f"{event}{number}")
        prepared(here)
        killed = subprocess.Popen(
            [sys.executable, "-c", KILLED, event, str(number), "-c", str(here.config_file)],
            cwd=here.root, env=here.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT)
        here.started.append(killed)
        wait_until(lambda: allowed(here.root, 0) == first | second, "job 0 has both cores")
        asked = subprocess.Popen([sys.executable, "-m", "vrm.cli", "-c", str(here.config_file), "lend", "0",
                                  "--to", "1"], cwd=here.root, env=here.env, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        if event not in ("lend", "lent", "start"):
            wait_until(lambda: allowed(here.root, 1), "job 1 runs")
            assert (allowed(here.root, 0), allowed(here.root, 1)) == (first, second)
            done(here, 1)
        killed.wait(60)
        assert killed.returncode == -9, event
        assert events(here)[-1] == event
        again = here.start()
        asked.wait(60)
        # Nobody runs on borrowed cores now: the lender has all of its.
        if event != "regained":
            wait_until(lambda: "reclaimed" in here.said(again), f"{event}: job 0 has taken its core back")
        wait_until(lambda: allowed(here.root, 0) == first | second, f"{event}: job 0 has both cores")
        wait_until(lambda: not json.loads(here.run("-i", "state", "--json").stdout).get("lends"),
                   f"{event}: nothing is lent")
        if event in ("lend", "lent", "start"):
            assert not allowed(here.root, 1), "job 1 waits"
        done(here, 0, 1)
        here.append("end\n")
        here.finish(again)
        assert here.statuses() == {0: "completed", 1: "completed"}, here.said(again)
        assert [row.binding for row in here.rows().values()] == ["ok", "ok"]
        counted = events(here)
        assert counted.count("lend") == counted.count("regain") == counted.count("regained") == 1
        here.nothing_left()
        here.close()


def lent_when_killed(site: Site) -> tuple[set[int], set[int]]:
    """A manager is killed while job 0 lends a core to job 1, which runs there; the core that it keeps, and that one."""
    first, second = cores(2)
    prepared(site)
    manager = site.start()
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has both cores")
    assert site.run("lend", "0", "--to", "1").returncode == 0
    wait_until(lambda: allowed(site.root, 1) == second, "job 1 runs")
    manager.kill()
    manager.wait()
    return first, second


@pytest.mark.slow
def test_a_borrower_that_runs_is_followed_by_the_next_manager(site: Site) -> None:
    first, second = lent_when_killed(site)
    manager = site.start()
    wait_until(lambda: "continuing the run" in site.said(manager), "the run continues")
    wait_until(lambda: "lends 1 core to 1" in site.run("queue").stdout, "it is known who lends")
    assert (allowed(site.root, 0), allowed(site.root, 1)) == (first, second)
    # The lender ends first: the borrower goes on, and its core is not free.
    done(site, 0)
    wait_until(lambda: site.statuses() == {0: "completed"}, "job 0 has ended")
    site.append("wait.x 1 60 0 cores=2\n")
    manager.kill()
    manager.wait()
    manager = site.start()
    wait_until(lambda: "continuing the run" in site.said(manager), "the run continues")
    wait_until(lambda: "| Q " in site.run("queue").stdout, "job 2 waits")
    assert allowed(site.root, 1) == second and not allowed(site.root, 2)
    done(site, 1)
    wait_until(lambda: allowed(site.root, 2) == first | second, "job 2 has both cores")
    done(site, 2)
    site.append("end\n")
    site.finish(manager)
    rows = site.rows()
    assert {row.status for row in rows.values()} == {"completed"}
    assert (rows[0].mates, rows[1].mates) == ("1", "0")
    assert [each.cores for each in shares.read(site.log / "shares.csv")] == ["0/0-1", "0/0", "0/1"]


@pytest.mark.slow
def test_lender_and_borrower_may_end_while_no_manager_runs(site: Site) -> None:
    lent_when_killed(site)
    done(site, 0, 1)
    wait_until(lambda: not allowed(site.root, 0) and not allowed(site.root, 1), "both have ended")
    site.append("end\n")
    manager = site.start()
    site.finish(manager)
    assert site.statuses() == {0: "completed", 1: "completed"} and "Traceback" not in site.said(manager)


@pytest.mark.slow
def test_cancel_requeue_and_stop_of_either(site: Site) -> None:
    """On emulated cores, where nobody is bound, so that nobody need be moved."""
    prepared(site, Emulate=True, Launcher={"Kind": "direct"})
    site.append("wait.x 1 60 0 cores=2\n")
    manager = site.start()

    def runs(*jobs: int) -> None:
        wait_until(lambda: site.running() == sorted(map(str, jobs)), f"jobs {jobs} run")

    runs(0)
    assert site.run("lend", "0", "--to", "2").returncode == 1, "it is rigid, and wants two cores"
    assert site.run("lend", "0", "--to", "1").returncode == 0
    runs(0, 1)
    assert site.run("requeue", "1").returncode == 0  # the borrower waits again
    runs(0)
    wait_until(lambda: events(site).count("regained") == 1, "the core is job 0's again")
    assert site.run("lend", "0", "--to", "1").returncode == 0
    runs(0, 1)
    assert site.run("requeue", "0").returncode == 0  # the lender waits again, the borrower has the node
    runs(1)
    assert site.run("cancel", "2").returncode == 0
    done(site, 1)
    runs(0)
    assert site.run("lend", "0", "--to", "node").returncode == 0
    assert site.run("cancel", "0").returncode == 0  # the lender dies while it lends
    site.append("end\n")
    site.finish(manager)
    assert site.statuses() == {0: "cancelled", 1: "completed", 2: "cancelled"}
    assert replay(journal.read(site.log / "journal")).state.lends.all == {}


@pytest.mark.slow
def test_a_dispatcher_lends_what_has_started_in_the_same_step(site: Site) -> None:
    prepared(site, Scheduling={"Algorithm": "FCFS", "Backfilling": "sd"})
    first, second = cores(2)
    site.lines("wait.x 1 600 0 cores=2 malleable=1", "wait.x 1 60 0 cores=2 malleable=1")
    manager = site.start()
    wait_until(lambda: allowed(site.root, 0) and allowed(site.root, 1), "both run")
    assert {frozenset(allowed(site.root, job)) for job in (0, 1)} == {frozenset(first), frozenset(second)}
    wait_until(lambda: [job["binding"] for job in (site.state() or {"jobs": ()})["jobs"]] == ["ok", "ok"],
               "their cores were looked at")
    done(site, 1)
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has both cores")
    done(site, 0)
    site.finish(manager)
    rows = site.rows()
    assert {row.status for row in rows.values()} == {"completed"}
    assert [row.binding for row in rows.values()] == ["ok", "ok"] and rows[1].mates == "0"


# What nodes may answer, or not.

LINES = ("ok.x 2 100 0 cores=4 malleable=1",) * 2


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[Managed]:
    """A job that runs on both nodes, and one that waits."""
    managed = Managed(tmp_path / "run", *LINES)
    managed.start(0.0)
    assert list(managed.live.running) == [0]
    order = managed.agents.order

    def on_disk(what: AgentOrder, job_id: int, hosts: Mapping[str, Mapping[str, Any]]) -> set[str]:
        assert not managed.live.journal.pending, "the intent is on disk first"
        assert {rank: len(cpus) for values in hosts.values() for rank, cpus in values["own"].items()} == {0: 4, 1: 4}
        return order(what, job_id, hosts)

    managed.agents.order = on_disk  # type: ignore[method-assign]
    managed.live.now = 10.0
    yield managed
    managed.close()


@pytest.fixture
def asked(managed: Managed) -> Managed:
    """Job 0 is to lend half of its cores to job 1."""
    managed.live.part(LendingPart).ask(0, 0, 1)
    assert managed.found[-1] == "lend" and not managed.agents.orders
    managed.live.part(LendingPart).act(10.0)
    assert managed.found[-1] == "lend" and managed.agents.orders == [(0, 1, {0: 2, 1: 2})]
    return managed


def answer(managed: Managed, host: str, epoch: int, clear: bool = True, error: str = "") -> None:
    managed.live.part(LendingPart).observe(MaskReport(host, 0, epoch, clear, {}, frozenset(), error))


def prepared_of(managed: Managed) -> list[int]:
    return [start.job.id for start in managed.manager.launches.prepared]


def borrowed_and_left(managed: Managed, clean: bool = True) -> None:
    """Job 1 has had the cores, and has ended."""
    for host in ("n0", "n1"):
        answer(managed, host, 1)
    managed.manager.launches.act(10.0)
    managed.end(1, 20.0, clean=clean)


def test_all_nodes_must_have_answered_the_last_order(asked: Managed) -> None:
    answer(asked, "n0", 1)
    answer(asked, "n0", 1)
    answer(asked, "n1", 0)  # of an order before it
    assert asked.found[-1] == "lend" and not prepared_of(asked) and 1 not in asked.live.running
    answer(asked, "n1", 1)
    assert asked.found[-2:] == ["lent", "start"] and prepared_of(asked) == [1]
    assert asked.live.running[0].due > 100 and asked.live.running[0].booking.shares
    answer(asked, "n1", 1)
    assert asked.found[-1] == "start"


@pytest.mark.parametrize("how", ["silent", "unclear", "down"])
def test_a_node_that_does_not_move_its_ranks_undoes_the_lend(asked: Managed, how: str) -> None:
    lending, cluster = asked.live.part(LendingPart), asked.live.cluster
    answer(asked, "n0", 1)
    if how == "silent":
        lending.act(10.0 + PATIENCE)
        assert "no answer from n1" in asked.said[-1]
    elif how == "unclear":
        answer(asked, "n1", 1, False, "process 7 cannot be moved to CPU 0")
        assert "process 7 cannot be moved" in asked.said[-1]
    else:
        lending.observe(NodeClosed(1))
        assert "n1 does not answer" in asked.said[-1]
    assert "regain" in asked.found and not prepared_of(asked) and 1 in asked.state.queue
    assert 1 not in cluster.bookings and not cluster.loans.all
    lending.act(30.0)
    assert asked.agents.orders[-1] == (0, 2, {0: 4, 1: 4}), "its cores are its own again"
    assert cluster.loans.refusing_lenders == (set() if how == "down" else {0})
    answer(asked, "n0", 2)
    answer(asked, "n1", 2)
    assert asked.found[-1] == "regained" and not asked.state.lends.all
    assert asked.state.entry(1).state is JobState.QUEUED


@pytest.mark.parametrize("how", ["back", "settle", "silent"])
def test_a_lend_that_is_undone_again_before_the_first_is_over_is_taken_back_once(asked: Managed, how: str) -> None:
    """What was lent before and is on its way back is left alone: no manager could read the journal otherwise."""
    lending = asked.live.part(LendingPart)
    asked.live.notify(JobHeldForCommand(1))  # somebody wants something of job 1, before the nodes have answered
    lending.ask(0, 0, 1)
    assert asked.found.count("regain") == 1 and len(asked.state.lends.all) == 2
    lending.act(10.0)
    if how == "back":
        lending.back(0)
    elif how == "settle":
        asked.live.notify(JobHeldForCommand(1))
    else:
        lending.act(10.0 + PATIENCE)
    regained = [values["number"] for event, values in asked.events if event == "regain"]
    assert regained == [1, 2] and 1 in asked.state.queue
    lending.act(40.0)
    epoch = asked.agents.orders[-1][1]
    answer(asked, "n0", epoch)
    answer(asked, "n1", epoch)
    assert not asked.state.lends.all and asked.found[-2:] == ["regained"] * 2


def test_nobody_lends_who_would_run_into_the_end_of_the_allocation(managed: Managed) -> None:
    live, lending = managed.live, managed.live.part(LendingPart)
    live.end.end = 160.0 + live.end.margin  # job 0 ends by 100 with all cores, and by 200 with half of them
    with pytest.raises(JobStateError, match="job 1 would run into the allocation's end"):
        lending.ask(0, 0, 1)
    assert 1 in live.state.queue and not live.cluster.loans.all and not lending.coming
    live.settings = live.settings.model_copy(update={"end": live.settings.end.model_copy(update={"fit": False})})
    lending.ask(0, 0, 1)
    assert list(lending.coming) == [1]


def test_a_lender_that_ends_before_its_order_is_sent_is_left_alone(managed: Managed) -> None:
    managed.live.part(LendingPart).ask(0, 0, None)
    managed.end(0, 20.0)
    managed.live.part(LendingPart).act(20.0)
    assert not managed.agents.orders and managed.live.part(LendingPart).deadline(20.0) == float("inf")


def test_cores_that_are_not_given_back_are_asked_for_again(asked: Managed) -> None:
    lending = asked.live.part(LendingPart)
    borrowed_and_left(asked)
    asked.live.records.write_next()
    lending.act(20.0)
    assert asked.found[-1] == "regain" and len(asked.agents.orders) == 2
    lending.act(20.0 + PATIENCE)
    asked.live.now = 20.0 + PATIENCE
    assert "does not have all its cores again yet" in asked.said[-1] and len(asked.agents.orders) == 2
    lending.act(20.0 + PATIENCE + AGAIN)
    lending.act(20.0 + PATIENCE + AGAIN)
    assert asked.agents.orders[-1] == (0, 2, {0: 4, 1: 4})
    for host in ("n0", "n1"):
        answer(asked, host, 2)
    assert asked.found[-1] == "regained" and not asked.state.lends.all


@pytest.mark.parametrize("last", ["swept", "written"])
def test_a_lender_has_its_cores_again_in_the_turn_in_which_its_borrower_has_left(asked: Managed, last: str) -> None:
    borrowed_and_left(asked, clean=last == "written")
    if last == "swept":
        asked.live.records.write_next()
        assert asked.manager.live.records.sweep_at < float("inf") and not asked.live.records.pending
    asked.live.part(LendingPart).act(20.0)
    assert "regain" not in asked.found, "processes of job 1 may be there still"
    asked.turn(20.1)
    assert asked.found[-1] == "regain" and asked.agents.orders[-1] == (0, 2, {0: 4, 1: 4})


def test_what_cannot_be_lent_is_said(managed: Managed, tmp_path: Path) -> None:
    for lender, number, to, why in ((1, 0, None, "job 1 does not run: it is queued"),
                                   (0, 3, 0, "job 0 cannot start now: it is running"),
                                   (0, 4, 1, "lends 3 at most, not 4"), (7, 0, None, "7")):
        with pytest.raises(JobStateError, match=why):
            managed.live.part(LendingPart).ask(lender, number, to)
    rigid = Managed(tmp_path / "rigid", *(line.removesuffix(" malleable=1") for line in LINES))
    rigid.start(0.0)
    with pytest.raises(JobStateError, match="not malleable: submit it with --malleable"):
        rigid.live.part(LendingPart).ask(0, 0, 1)
    assert not managed.state.lends.all and not rigid.state.lends.all
    rigid.close()


@pytest.mark.slow
def test_over_several_nodes(real: Testbed, tmp_path: Path) -> None:
    """Two nodes that see this machine's cores; a rank of two cores on each lends one on each."""
    first, second = cores(2)
    root = tmp_path / "site"
    (root / "bin").mkdir(parents=True)
    program = root / "bin" / "wait.x"
    program.write_text("#!/bin/sh\n" + PROGRAM.replace("echo $$", 'grep Cpus_allowed_list /proc/self/status')
                       .replace("sleep 0.05;", 'sleep 0.05; grep Cpus_allowed_list /proc/$$/status > '
                                '"$HERE/.t$VRM_JOB_ID.${OMPI_COMM_WORLD_RANK:-0}"; mv '
                                '"$HERE/.t$VRM_JOB_ID.${OMPI_COMM_WORLD_RANK:-0}" '
                                '"$HERE/pid.$VRM_JOB_ID.${OMPI_COMM_WORLD_RANK:-0}";'))
    program.chmod(0o755)
    (root / "vrm.yaml").write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Log": "log", "Grace": 2,
        "Launcher": {"Kind": "openmpi", "AllowRoot": True, "Transport": "tcp", "CheckBindings": "fail",
                     "Environment": {"HERE": str(root)}}}))
    whole = len(read_topology().sockets[0])
    (root / "queue").write_text(f"wait.x 2 600 0 cores={whole} malleable=1 nodes=2 tasks_per_node=1\n"
                                "wait.x 2 60 0 malleable=1 nodes=2\n")

    def cpus(job: int, rank: int) -> set[int] | None:
        try:
            return set(parse_cpu_list((root / f"pid.{job}.{rank}").read_text().split()[1]))
        except (OSError, IndexError):
            return None

    def vrm(*words: str) -> subprocess.CompletedProcess[str]:
        return real.exec(LOGIN, [sys.executable, "-m", "vrm.cli", "-c", root / "vrm.yaml", *words],
                         env={"PYTHONPATH": str(ROOT)}, cwd=root)

    def said() -> str:
        return (root / "said").read_text()

    with real.allocation(2, "--exclusive") as batch:
        manager = real.popen(batch.host, [sys.executable, "-m", "vrm.cli", "-c", root / "vrm.yaml", "--wait"],
                             env={**batch.env, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}, cwd=root,
                             text=True, stdout=open(root / "said", "w"), stderr=subprocess.STDOUT)
        wait_until(lambda: cpus(0, 0) and cpus(0, 1), "job 0 runs")
        everything = cpus(0, 0)
        assert everything is not None and everything >= first | second
        asked = vrm("lend", "0", "--cores", str(whole - 1), "--to", "1")
        assert asked.returncode == 0, asked.stderr
        wait_until(lambda: cpus(1, 0) and cpus(1, 1), f"job 1 runs: {said()}")
        wait_until(lambda: cpus(0, 0) == cpus(0, 1) == first, "job 0 keeps a core on each node")
        assert cpus(1, 0) == cpus(1, 1) == second
        (root / "done.1").touch()
        wait_until(lambda: cpus(0, 0) == cpus(0, 1) == everything, f"job 0 has all again: {said()}")
        (root / "done.0").touch()
        with open(root / "queue", "a") as file:
            file.write("end\n")
        assert manager.wait(60) == 0, said()
    held = shares.read(root / "log" / "shares.csv")
    assert len({each.node for each in held}) == 2 and len([each for each in held if each.job == 0]) == 6 and "MISMATCH" not in said().upper()


def test_a_manager_without_this_part_takes_up_no_lends(asked: Managed) -> None:
    asked.live.parts = Parts(part for part in asked.live.parts if not isinstance(part, LendingPart))
    with pytest.raises(RunError, match="jobs of this run lend cores, and the part `lending` of vrm's extensions, which gives"):
        asked.manager.recovery._restore_loans()
