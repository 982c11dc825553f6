"""Bad nodes while a run is managed: with a real state and journal, and an executor that a test plays (`support.executor`)."""

from __future__ import annotations

import json
import random
import selectors
from pathlib import Path
from collections.abc import Callable
from typing import Any

import pytest
from support.executor import Managed, root  # noqa: F401

from vrm.ext.learning.health.findings import QUARANTINED
from vrm.ext.learning.health import part as part_module
from vrm.ext.learning.health.part import NodeHealth
from vrm.ext.learning.health.probes import PROBE, ProbeFinished
from vrm.ext.learning.health.report import cleared, known, text
from vrm.ext.learning.store import LearnedStore
from vrm.live.manager.part_packages import restore_events
from vrm.live.manager.takeover import earlier_run
from vrm.live.nodes.node_watch import NodeWentDown, NodeUncertain, NodeCameBack
from vrm.live.nodes.agent_events import AgentOrder
from vrm.report.tables import state_json, state_table
from vrm.results import state
from vrm.workload.grammar import parse_line

NOW = 1_790_000_000.0
"""Seconds since the epoch at which the runs begin."""

Ends = Callable[[str, int], tuple[float, int]]
"""The run time (seconds) and the exit code of a job on a node, and of its number there."""


class Nodes4(Managed):
    """A manager of four nodes, whose jobs end as a test says. `asked` are the nodes that were to be probed."""

    def __init__(self, root: Path, jobs: int, mode: str = "on", now: float = NOW, line: str = "ok.x 1 600 0", **keys: Any) -> None:
        super().__init__(root, *[line] * jobs, now=now, Nodes=4, Cores=1, Hosts={"Quarantine": mode},
                         Learning={"Store": str(root / "store")}, **keys)
        self.asked: list[str] = []
        self.health = self.live.part(NodeHealth)
        self.probes = {f"n{number}": 1.0 for number in range(4)}
        self.ran: list[tuple[str, float]] = []
        order = self.agents.order

        def ordered(what: AgentOrder, job_id: int, hosts: Any) -> set[str]:
            if what is PROBE:
                self.asked += hosts
                self.agents.says += (ProbeFinished(host, 100.0 * self.probes[host], 1e9, 1, "") for host in hosts)
            return order(what, job_id, hosts)

        self.agents.order = ordered  # type: ignore[method-assign]
        with selectors.DefaultSelector() as selector:
            self.health.begin(selector)

    def play(self, ends: Ends, jobs: int = 10**6) -> float:
        """Run all jobs, or as many, to their ends; when that was."""
        now, due, counts = self.live.now, dict[int, tuple[float, int, str]](), dict[str, int]()
        while jobs:
            self.turn(now)
            for job_id, running in self.live.running.items():
                if job_id not in due:
                    name = self.live.cluster.nodes[running.booking.placement.nodes[0]].name
                    counts[name] = counts.get(name, 0) + 1
                    seconds, code = ends(name, counts[name])
                    self.ran.append((name, seconds))
                    due[job_id] = now + seconds, code, name
            later = [now + 1.0] if self.agents.says else []
            if not due and not later:
                break
            job_id = min(due, key=due.__getitem__, default=-1)
            if job_id < 0 or (later and later[0] < due[job_id][0]):
                now = later[0]
                continue
            now, code, _ = due.pop(job_id)
            self.end(job_id, now, code)
            jobs -= 1
            held = self.manager.ends.held
            if job_id in held:
                self.manager.ends.settle(job_id)
        for _ in range(3):
            now += 1.0
            self.turn(now)
        return now

    def of(self, word: str) -> list[str]:
        """What was said that has this word."""
        return [said for said in self.said if word in said and not said.startswith("#")]


def slow(name: str, speed: float, seed: int = 1, noise: float = 0.02) -> Ends:
    rng = random.Random(seed)
    return lambda node, number: (100.0 * rng.uniform(1 - noise, 1 + noise) / (speed if node == name else 1.0), 0)


def fails(name: str) -> Ends:
    """Each third job on a node fails."""
    return lambda node, number: (10.0, int(node == name and number % 3 == 0))


def test_a_slow_node_is_found_probed_and_put_into_quarantine(root: Path) -> None:
    managed = Nodes4(root, 60)
    managed.probes["n2"] = 0.8
    managed.play(slow("n2", 0.8))
    assert [name for name, _ in managed.ran].count("n2") <= 8
    [said] = managed.of("quarantine")
    assert said.startswith("node n2 is in quarantine, slow: ") and "a probe: computing at 80 %" in said
    assert "n2" in managed.asked and len(managed.asked) == 3 == len({*managed.asked})
    shown = state.parsed(managed.run.state.read_bytes())
    assert "node n2 takes no new jobs: quarantine, slow: " in state_table(shown)
    assert [node["sockets"][0]["status"] for node in state_json(shown)["nodes"]] == ["Empty", "Empty", "Drained", "Empty"]
    managed.close()
    with LearnedStore(root / "store", reading=True) as store:
        [report] = known(store, now=managed.live.now)
    assert (report.name, report.state, report.facts["cause"]) == ("n2", QUARANTINED, "slow")
    assert "of the speed elsewhere" in text(report) and "n[0-1,3]" in text(report)
    json.dumps(report.facts)


def test_a_good_probe_lets_a_suspect_work_on(root: Path) -> None:
    managed = Nodes4(root, 14)
    managed.play(slow("n2", 0.8), jobs=13)
    assert managed.of("node n2 may be slow") and not managed.of("quarantine")
    assert managed.asked and not managed.live.drained and managed.live.cluster.all_up
    managed.close()


def test_suggest_is_the_default_and_only_says_so(root: Path) -> None:
    managed = Nodes4(root, 60, mode="suggest")
    managed.play(slow("n2", 0.8))
    [warned] = managed.of("node n2 is slow")
    assert "Hosts: {Quarantine: on}" in warned and [name for name, _ in managed.ran].count("n2") > 10
    assert not managed.asked and not managed.live.drained and managed.live.cluster.all_up
    managed.close()
    assert Managed(root / "other").live.settings.extended("Hosts.Quarantine") == "suggest"


def test_off_looks_for_nothing(root: Path) -> None:
    managed = Nodes4(root, 60, mode="off")
    managed.play(slow("n2", 0.5))
    assert not managed.of("n2") and not managed.asked
    managed.close()


def test_no_node_is_found_where_all_are_good(root: Path) -> None:
    managed = Nodes4(root, 120)
    managed.play(slow("", 1.0, noise=0.1))
    assert not managed.of("n2") and not managed.asked and not managed.live.drained
    managed.close()


def test_jobs_that_failed_there_run_again_elsewhere(root: Path) -> None:
    managed = Nodes4(root, 80, line="ok.x 1 600 0 retries=2")
    managed.probes["n1"] = 0.7
    managed.play(fails("n1"))
    assert [name for name, _ in managed.ran].count("n1") <= 8
    assert "2 of" in managed.of("quarantine")[0] and "jobs failed, and 0 of" in managed.of("quarantine")[0]
    assert managed.state.counts["completed"] == 80 and managed.state.counts["failed"] == 0
    managed.close()
    with LearnedStore(root / "store", reading=True) as store:
        assert len(store.rows("attempts")) == 2
        assert "2 of" in text(known(store, now=managed.live.now)[0])


def test_a_next_run_knows_the_node_until_it_is_cleared(root: Path) -> None:
    managed = Nodes4(root, 60)
    managed.probes["n2"] = 0.8
    end = managed.play(slow("n2", 0.8))
    managed.close()
    for path in (root / "log").iterdir():  # another run has a journal of its own
        if path.name in ("journal", "jobs.csv", "ids"):
            path.unlink()
    later = Nodes4(root, 30, now=end + 100)
    assert later.of("in quarantine, slow in an earlier run: ")
    now = later.play(slow("n2", 0.8), jobs=12)
    assert "n2" not in [name for name, _ in later.ran]
    with LearnedStore(root / "store") as store:
        assert cleared(store, ["n2"], now).startswith("cleared: n2")
        with pytest.raises(ValueError, match="nothing was found of n1, n7|nothing was found of n"):
            cleared(store, ["n7"], now)
    later.live.now = now + 20.0
    later.turn(now + 20.0)
    assert later.of("node n2 takes jobs as before: it was cleared") and not later.live.drained
    later.play(slow("n2", 1.0))
    assert "n2" in [name for name, _ in later.ran]
    later.close()


def test_the_next_manager_of_the_run_goes_on_with_it(root: Path) -> None:
    """What it has found is in its journal, also where nothing is kept of several runs."""
    managed = Nodes4(root, 60)
    managed.probes["n2"] = 0.8
    end = managed.play(slow("n2", 0.8), jobs=40)
    assert managed.live.drained
    managed.live.journal.sync()  # and it is killed
    (root / "store").unlink()
    past = earlier_run.read_earlier_run(managed.run, False, managed.live.tell, managed.live.new_state)
    following = Nodes4(root / "next", 8, now=end + 5)
    restore_events(following.manager.parts, past, managed.run.journal)
    with selectors.DefaultSelector() as selector:
        following.health.begin(selector)
    assert following.health.records["n2"].state == QUARANTINED and following.of("slow in an earlier run: ")
    following.play(slow("n2", 1.0))
    assert "n2" not in [name for name, _ in following.ran]
    following.close()
    managed.close()


def test_a_job_that_needs_the_node_has_it(root: Path) -> None:
    managed = Nodes4(root, 60)
    managed.probes["n2"] = 0.8
    now = managed.play(slow("n2", 0.8), jobs=50)
    assert managed.live.drained
    managed.manager.intake.enter(parse_line("ok.x 4 600 0"))
    managed.turn(now + 1.0)
    managed.turn(now + 12.0)
    assert managed.of("node n2 takes jobs again, since #60 needs it") and not managed.live.drained
    managed.close()


def test_a_node_that_answers_again_stays_drained(root: Path) -> None:
    managed = Nodes4(root, 0)
    managed.manager.nodes.drain(2, "a test")
    managed.agents.says += [NodeUncertain(2, "it is silent"), NodeCameBack(2)]
    managed.turn(NOW + 1)
    assert not managed.live.cluster.up >> 2 & 1
    managed.manager.nodes.resume_node(2)
    assert managed.live.cluster.all_up
    managed.agents.down.add(2)
    managed.manager.nodes.drain(2, "a test")
    managed.manager.nodes.resume_node(2)
    assert not managed.live.cluster.up >> 2 & 1
    managed.close()


def test_a_node_that_is_lost_while_it_is_probed(root: Path) -> None:
    managed = Nodes4(root, 60)
    managed.agents.order = lambda what, job_id, hosts: set(hosts)  # type: ignore[method-assign,assignment]
    now = managed.play(slow("n2", 0.8), jobs=20)
    checked = {node for node, why in managed.live.drained.items() if why == "vrm checks its speed"}
    assert checked
    managed.agents.says += [NodeWentDown(node, "gone") for node in checked]
    managed.agents.down |= checked
    managed.turn(now + 1)
    assert not checked & {*managed.live.drained}
    managed.close()


def test_a_probe_that_never_answers_is_given_up(root: Path) -> None:
    managed = Nodes4(root, 60)
    managed.agents.order = lambda what, job_id, hosts: set(hosts)  # type: ignore[method-assign,assignment]
    now = managed.play(slow("n2", 0.8), jobs=20)
    assert managed.live.drained
    managed.turn(now + 100)
    managed.turn(now + 101)
    assert not managed.live.drained or set(managed.live.drained) == {2}
    managed.close()


def test_where_much_is_known_a_copy_of_the_manager_judges(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "FEW", 10)
    managed = Nodes4(root, 60)
    look = managed.health._copied.look
    managed.health._copied.look = lambda wait=False: look(True)  # type: ignore[method-assign]
    managed.probes["n2"] = 0.8
    managed.play(slow("n2", 0.8))
    assert managed.of("node n2 is in quarantine, slow: ") and [name for name, _ in managed.ran].count("n2") <= 9
    managed.close()


def test_where_nobody_probes_the_jobs_alone_decide(root: Path) -> None:
    managed = Nodes4(root, 80)
    managed.agents.order = lambda what, job_id, hosts: set()  # type: ignore[method-assign,assignment]
    managed.play(slow("n2", 0.8))
    assert len(managed.of("nodes cannot be probed here")) == 1
    assert managed.of("node n2 is in quarantine, slow: ") and [name for name, _ in managed.ran].count("n2") <= 8
    managed.close()
