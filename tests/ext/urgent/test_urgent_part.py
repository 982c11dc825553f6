"""The part that makes room for urgent jobs, with a real state and journal (`support.executor`)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.executor import Managed, asked, root, states  # noqa: F401

from vrm.config.schema import load
from vrm.ext.forecast.files import RunFiles
from vrm.ext.forecast.replay import limits, replay
from vrm.ext.lending.orders import MaskReport
from vrm.ext.lending.part import LendingPart
from vrm.ext.urgent.part import UrgentPart
from vrm.live.manager.part import NodeClosed
from vrm.live.spawn.messages import Started
from vrm.model import JobState
from vrm.results.forecast import ManagerReport

RIGID = "ok.x 4 100 0 mem_per_task=1G"
URGENT = "ok.x 4 50 0 mem_per_task=1G"
MEMORY = [{"Hosts": "n[0-1]", "Memory": "16G"}]


def managed(root: Path, *lines: str, **keys: Any) -> Managed:
    """Two nodes of four cores whose jobs run."""
    found = Managed(root, *lines, **{"NodeClasses": MEMORY, **keys})
    found.start(1.0)
    for job_id in found.live.running:
        found.jobs.says.append(Started(job_id, 1 << 23, 1 << 23))
    found.turn(1.5)
    return found


def parts(run: Managed) -> tuple[LendingPart, UrgentPart]:
    return run.live.part(LendingPart), run.live.part(UrgentPart)


def clear(run: Managed, job_id: int, now: float, host: str = "n0") -> None:
    """A node has carried out the last order about a job."""
    run.agents.says.append(MaskReport(host, job_id, run.state.lends.epochs[job_id], True, {}, frozenset()))
    run.turn(now)


def test_a_job_is_paused_once_its_node_says_that_it_stands_still(root: Path) -> None:
    run = managed(root, RIGID, RIGID, URGENT)
    said = asked(run, 2.0, do="urgent", id=2, pause=[0])
    assert said == {"ok": True, "text": "job 2 starts when job 0 has stopped"}
    assert states(run) == ["running", "running", "queued"] and run.agents.pauses == [(0, 1, True)]
    clear(run, 0, 3.0)
    assert states(run)[2] == "running" and run.live.running[0].due == 151.0, "its limit is later by the pause"
    run.end(2, 30.0)
    run.turn(30.0)
    assert run.agents.pauses[-1] == (0, 2, False)
    clear(run, 0, 31.0)
    assert not run.state.lends.all and run.live.running[0].due == 129.0, "it stood still for 28 s"
    assert not parts(run)[1].promises
    run.close()


def test_a_forecast_knows_how_long_a_job_has_stood_still(root: Path) -> None:
    run = managed(root, RIGID, RIGID, URGENT)
    asked(run, 2.0, do="urgent", id=2, pause=[0])
    clear(run, 0, 3.0)

    def limit(now: float) -> float:
        run.live.journal.sync()
        files = RunFiles(load(root / "vrm.yaml"))
        files.read_new()
        frozen = files.frozen(ManagerReport("running", math.inf, frozenset(), now), now)
        found = frozen.state.cluster.bookings[0]
        assert found.expected_end == found.limit == replay(frozen, limits)[0].end
        return found.limit

    assert limit(20.0) == run.live.running[0].due == 151.0
    run.end(2, 30.0)
    run.turn(30.0)
    clear(run, 0, 31.0)
    assert limit(40.0) == run.live.running[0].due == 129.0
    run.close()


def test_a_node_that_does_not_stop_a_job_starts_nothing_and_the_promise_stays(root: Path) -> None:
    run = managed(root, RIGID, RIGID, URGENT)
    asked(run, 2.0, do="urgent", id=2, pause=[0])
    run.agents.says.append(MaskReport("n0", 0, 1, False, {}, frozenset(), "some of its processes do not stop"))
    run.turn(3.0)
    assert states(run) == ["running", "running", "queued"] and run.agents.pauses[-1] == (0, 2, False)
    clear(run, 0, 4.0)
    assert 2 in parts(run)[1].promises and any("waits" in text for text in run.said)
    run.turn(8.5)  # job 0 is not asked again, but job 1 may make room
    assert run.agents.pauses[-1] == (1, 1, True)
    run.close()


def test_a_job_that_did_not_stop_is_asked_again_where_no_other_can_make_room(root: Path) -> None:
    run = managed(root, RIGID, RIGID + " no_pause=1", URGENT, Interrupted="mark")
    asked(run, 2.0, do="urgent", id=2, pause=[0])
    run.agents.says.append(MaskReport("n0", 0, 1, False, {}, frozenset(), "some of its processes do not stop"))
    run.turn(3.0)
    clear(run, 0, 4.0)
    run.turn(8.5)
    assert run.agents.pauses[-1] == (0, 2, False), "not at once"
    run.turn(13.5)
    assert run.agents.pauses[-1] == (0, 3, True)
    clear(run, 0, 14.0)
    assert states(run)[2] == "running"
    run.close()


def test_a_job_that_is_requeued_makes_room_when_it_has_left(root: Path) -> None:
    run = managed(root, "ok.x 4 100", RIGID, "ok.x 4 50")
    said = asked(run, 2.0, do="urgent", id=2, requeue=[0])
    assert said == {"ok": True, "text": "job 2 starts when job 0 has ended, and waits again"}
    assert run.live.running[0].intent == "requeue" and states(run)[2] == "queued" and not run.agents.pauses
    run.end(0, 3.0, code=143)
    run.turn(3.0)
    assert states(run) == ["queued", "running", "running"]
    assert run.state.cluster.bookings[2].placement.room[0] == 1, "it has the node"
    run.close()


def test_two_urgent_jobs_do_not_get_the_same_cores(root: Path) -> None:
    run = managed(root, RIGID, RIGID, URGENT, URGENT)
    assert asked(run, 2.0, do="urgent", id=2, pause=[0])["ok"]
    refused = asked(run, 2.5, do="urgent", id=3, pause=[0])
    assert not refused["ok"] and "job 0: it has given its cores to another job; job 3 waits" in refused["text"], refused
    assert asked(run, 3.0, do="urgent", id=3, pause=[1])["ok"]
    held = [loan.cores for loan in run.live.cluster.loans.all]
    assert len(held) == 2 and not held[0] & held[1]
    run.close()


def test_memory_decides_who_is_paused(root: Path) -> None:
    run = managed(root, "ok.x 4 100 0 mem_per_task=2G", "ok.x 4 100", "ok.x 4 50 0 mem_per_task=2G", "ok.x 4 50",
                  NodeClasses=[{"Hosts": "n[0-1]", "Memory": "10G"}])
    for job_id, pause, why in ((2, [0], "do not have enough cores"), (2, [1], "its memory is not known"),
                               (3, [0], "do not have enough cores")):
        said = asked(run, 2.0 + job_id, do="urgent", id=job_id, pause=pause)
        assert not said["ok"] and why in said["text"], said
    run.live.running[1].memory = 1 << 30  # as was seen
    assert asked(run, 9.0, do="urgent", id=2, pause=[1])["ok"]
    run.close()


def test_an_urgent_job_stays_on_the_nodes_of_its_queue(root: Path) -> None:
    run = managed(root, f"{RIGID} queue=b", f"{RIGID} queue=b", f"{URGENT} queue=a",
                  Queues={"a": {"Nodes": "n1"}, "b": {}})
    assert not asked(run, 2.0, do="urgent", id=2, pause=[0])["ok"]
    assert asked(run, 3.0, do="urgent", id=2, pause=[1])["ok"] and run.agents.pauses == [(1, 1, True)]
    run.close()


def test_a_job_that_must_not_stand_still_does_not(root: Path) -> None:
    run = managed(root, f"{RIGID} no_pause=1", RIGID, URGENT)
    said = asked(run, 2.0, do="urgent", id=2, pause=[0])
    assert not said["ok"] and "job 0: it was submitted with --no-pause" in said["text"], said
    run.close()


def test_who_starts_by_itself_disturbs_nobody_and_room_is_made_where_it_does_not(root: Path) -> None:
    run = managed(root, RIGID, RIGID, URGENT, Grace=1)
    said = asked(run, 2.0, do="urgent", id=2, by=100.0)
    assert said["ok"] and "by itself" in said["text"] and not run.agents.pauses
    part = parts(run)[1]
    assert part.deadline(2.0) == 96.0
    run.turn(95.0)
    assert not run.agents.pauses
    run.turn(96.5)
    assert run.agents.pauses == [(0, 1, True)]
    clear(run, 0, 97.0)
    assert states(run)[2] == "running"
    run.close()


def test_a_promise_outlives_its_manager_and_is_over_with_its_job(root: Path) -> None:
    run = managed(root, RIGID, RIGID, URGENT)
    asked(run, 2.0, do="urgent", id=2, by=1e9)
    promised = [values for event, values in run.events if event == "part"]
    part = parts(run)[1]
    twin = UrgentPart(run.live)
    twin.happened("promised", {"id": 2, "by": 1e9, "lend": [], "pause": [], "requeue": []})
    assert twin.promises == part.promises and not promised
    asked(run, 3.0, do="cancel", ids=["2"])
    run.turn(4.0)
    assert not part.promises and run.state.entry(2).state is JobState.CANCELLED and part.deadline(4.0) == math.inf
    twin.happened("over", {"id": 2})
    assert not twin.promises
    run.close()


def test_a_lost_node_undoes_what_was_in_the_making(root: Path) -> None:
    run = managed(root, RIGID, RIGID, URGENT)
    asked(run, 2.0, do="urgent", id=2, pause=[0])
    run.live.now = 3.0
    run.live.notify(NodeClosed(0))
    assert states(run)[2] == "queued" and 2 not in parts(run)[0].coming
    assert run.agents.pauses == [(0, 1, True)]
    run.turn(3.0)
    assert run.agents.pauses[-1] == (0, 2, False)
    run.close()


@pytest.mark.parametrize("command", [{"id": "x"}, {"id": 2, "pause": ["y"]}, {}])
def test_what_is_no_command_is_refused(root: Path, command: dict[str, Any]) -> None:
    run = managed(root, RIGID, RIGID, URGENT)
    assert not asked(run, 2.0, do="urgent", **command)["ok"]
    run.close()
