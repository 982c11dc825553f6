"""Snapshots of sites, as LML: the vectors and the reference input of C. Karbach (Jülich report 4354,
2012), both resource managers against vrm's simulator, and files that are damaged."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from typing import Any
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.ext.forecast.parallel import run_in_processes
from vrm.ext.forecast.site.forecast import SiteByNode, SiteForecast, forecast_lml, forecast_site
from vrm.model import Job
from vrm.api import Machine, Recording, Rules, Submission, simulate
from vrm.ext.forecast.site.lml import Lml
from vrm.ext.forecast.site.snapshot import SiteJob, SiteNode, Snapshot, SnapshotError

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<lml:lgui xmlns:lml="http://eclipse.org/ptp/lml">\n'
EPOCH = "07/12/12-15:00:00"


def date(seconds: float) -> str:
    """A date so many seconds after 15:00:00, before or behind it within the day."""
    whole = 15 * 3600 + int(seconds)
    return f"07/12/12-{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


def lml(objects: Sequence[tuple[str, str, dict[str, Any]]], **scheduler: str) -> bytes:
    """A file: objects as (type, id, data)."""
    every = [("system", "sys", {"system_time": EPOCH}), ("scheduler", "sched", scheduler), *objects]
    lines = [f' <object id="{key}" type="{kind}" name="{key}"/>' for kind, key, _ in every]
    infos = [f' <info oid="{key}" type="short">' + "".join(
        f'<data key="{name}" value="{value}"/>' for name, value in data.items()) + "</info>"
        for _, key, data in every]
    return (HEAD + "<objects>\n" + "\n".join(lines) + "\n</objects>\n<information>\n"
            + "\n".join(infos) + "\n</information>\n</lml:lgui>\n").encode()


def node(number: int, cores: int = 1, **more: Any) -> tuple[str, str, dict[str, Any]]:
    return "node", f"nd{number}", {"ncores": cores, **more}


def waits(key: str, cores: int, wall: int, before: int, **more: Any
          ) -> tuple[str, str, dict[str, Any]]:
    """A job that waits since so many seconds."""
    return "job", key, {"state": "Idle", "queuedate": date(-before), "totalcores": cores,
                        "wall": wall, **more}


def runs(key: str, cores: str, until: int, **more: Any) -> tuple[str, str, dict[str, Any]]:
    """A job that runs on these nodes or cores until then, since a minute."""
    return "job", key, {"state": "Running", "queuedate": date(-120), "dispatchdate": date(-60),
                        "wall": until + 60, "nodelist": cores, **more}


def spans(found: dict[str, SiteForecast]) -> dict[str, tuple[float, float]]:
    return {key: (each.start, each.end) for key, each in found.items()}


def said(content: bytes) -> dict[str, tuple[float, float]]:
    return spans(forecast_lml(Lml(content))[0])


# ---------------------------------------------------------------------------------- the vectors

TABLE = [node(1, 5), runs("j2", "(1-1(1-2))", 4, totalcores=2), runs("j3", "(1-1(3-3))", 9, totalcores=1),
         waits("j5", 3, 2, 400), waits("j1", 2, 5, 300), waits("j4", 1, 7, 200), waits("j6", 2, 6, 100)]


@pytest.mark.parametrize("manager", ["NodeState", "AttributeState"])
@pytest.mark.parametrize("algorithm, dogs, wanted", [
    ("FCFS", "1", {"j5": (4, 6), "j1": (6, 11), "j4": (6, 13), "j6": (9, 15)}),
    ("List", "1", {"j5": (5, 7), "j1": (0, 5), "j4": (4, 11), "j6": (7, 13)}),
    ("Backfilling", "1", {"j5": (4, 6), "j1": (6, 11), "j4": (0, 7), "j6": (7, 13)}),
    ("Backfilling", "all", {"j5": (4, 6), "j1": (6, 11), "j4": (0, 7), "j6": (7, 13)})])
def test_the_table_of_five_processors(algorithm: str, dogs: str, wanted: dict[str, Any],
                                      manager: str) -> None:
    assert said(lml(TABLE, scheduling_algorithm=algorithm, topdogs=dogs, system_state=manager)) == wanted


def test_the_same_core_is_needed_all_the_time() -> None:
    content = [node(1), node(2), runs("j1", "(1-1)", 1), runs("j2", "(2-2)", 2),
               waits("j3", 1, 2, 5), ("reservation", "r", {"starttime": date(2), "endtime": date(50),
                                                           "nodelist": "(1-1)"})]
    assert said(lml(content, system_state="AttributeState")) == {"j3": (1, 3)}
    found, _ = forecast_lml(Lml(lml(content, system_state="NodeState")))
    assert found["j3"] == SiteForecast(2, 4, ((1, frozenset({0})),))


REFERENCE = lml([
    node(1, 5),
    ("job", "j1", {"queuedate": date(-3600), "dispatchdate": date(-60), "state": "Running",
                   "nummachines": 1, "taskspernode": 2, "totalcores": 2, "wall": 65,
                   "odelist": "(1-1(4-5))", "mystery": "&lt;kept&gt;"}),
    ("job", "j2", {"queuedate": date(-3600), "state": "Idle", "nummachines": 1, "taskspernode": 4,
                   "totalcores": 4, "wall": 20}),
    ("job", "j3", {"queuedate": date(-1800), "state": "Idle", "nummachines": 1, "taskspernode": 3,
                   "totalcores": 3, "wall": 4})],
    system_sysprio="-DATEqueuedate", system_state="NodeState", scheduling_algorithm="Backfilling")


@pytest.mark.parametrize("key", ["odelist", "nodelist"])
def test_the_reference_input(key: str) -> None:
    content = REFERENCE.replace(b"odelist", key.encode())
    found, written = forecast_lml(Lml(content))
    assert found == {"j2": SiteForecast(5, 25, ((0, frozenset(range(4))),)),
                     "j3": SiteForecast(0, 4, ((0, frozenset(range(3))),))}
    again = Lml(written)
    assert again.snapshot == Lml(content).snapshot  # a forecast is not read as what is
    assert forecast_lml(again)[1] == written and written.startswith(content[:-40])
    text = written.decode()
    assert 'value="&lt;kept&gt;"' in text
    assert re.findall(r'key="predicted_(\w+)" value="([^"]*)"', text) == [
        ("completiondate", date(5)),
        ("dispatchdate", date(5)), ("completiondate", date(25)), ("nodelist", "(1-1(1-4))"),
        ("dispatchdate", date(0)), ("completiondate", date(4)), ("nodelist", "(1-1(1-3))")]
    counted = forecast_lml(Lml(content.replace(b"NodeState", b"AttributeState")))[1].decode()
    assert 'key="predicted_totalcores" value="4"' in counted and "predicted_nodelist" not in counted


def test_simultaneous_ends_come_before_the_next_decision() -> None:
    content = [node(1, 6), runs("j1", "(1-1(1-2))", 10), runs("j2", "(1-1(3-4))", 5),
               runs("j3", "(1-1(5-6))", 5), waits("j4", 4, 3, 9), waits("j5", 2, 3, 8)]
    for manager in ("NodeState", "AttributeState"):
        assert said(lml(content, scheduling_algorithm="List", system_state=manager)) == {
            "j4": (5, 8), "j5": (8, 11)}


def test_a_switch_decides_after_each_of_several_ends() -> None:
    """After the end of j2 alone only j5 fits."""
    content = [node(1, 6), runs("j1", "(1-1(1-2))", 10), runs("j2", "(1-1(3-4))", 5),
               runs("j3", "(1-1(5-6))", 5), waits("j4", 4, 3, 9), waits("j5", 2, 3, 8)]
    assert said(lml(content, scheduling_algorithm="List", simultaneous_events="one_by_one")) == {
        "j4": (8, 11), "j5": (5, 8)}
    # So do jobs that come at once: the first one starts before the second, which goes first, is there.
    later = [node(1, 2), waits("j1", 2, 5, -3), waits("j2", 2, 5, -3, priority=1)]
    for how, wanted in (("together", {"j1": (8, 13), "j2": (3, 8)}), ("one_by_one", {"j1": (3, 8), "j2": (8, 13)})):
        assert said(lml(later, simultaneous_events=how, system_sysprio="priority")) == wanted
    with pytest.raises(SnapshotError, match="goes with the system_state NodeState"):
        Lml(lml(content, system_state="AttributeState", simultaneous_events="one_by_one"))


def test_processes_that_share_the_parts_of_a_site_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [SiteNode(f"n{at}", 2, {"abc"[at % 3]: 2}) for at in range(9)]
    jobs = [SiteJob(f"j{at}", float(at % 7 + 1), nodes=at % 3 + 1, per_node=2, queue="abc"[at % 3 - at % 2], rank=-at)
            for at in range(40)]
    site = Snapshot(0.0, nodes, jobs, algorithm="List", shared=False)
    shared: list[int] = []

    def noted(work: Any, processes: int) -> Any:
        shared.append(processes)
        return run_in_processes(work, processes)

    monkeypatch.setattr("vrm.ext.forecast.site.forecast.run_in_processes", noted)
    assert forecast_site(site, processes=4) == forecast_site(site) and shared == [3, 1]
    wrong = replace(site, shared=True, jobs=[*jobs, *(SiteJob(
        key, 50.0, cores=2, queue="c", start=-1.0, places=((2, frozenset({0, 1})),)) for key in ("one", "two"))])
    for processes in (1, 3):  # what another process finds wrong is said as if it was found here
        with pytest.raises(SnapshotError, match="^job two runs on cores of node n2 that job one has, too"):
            forecast_site(wrong, processes=processes)


# ------------------------------------------------------------------------ what a file can say


def test_queues_have_no_more_than_their_cores_of_a_node() -> None:
    content = [node(1, 8, avail_classes="(small,4)(medium,8)"),
               *(waits(f"s{at}", 2, 10, 9 - at, queue="small") for at in range(3)),
               waits("m", 4, 10, 1, queue="medium"), waits("other", 1, 10, 1, queue="large"),
               waits("big", 5, 10, 1, queue="small")]
    found, _ = forecast_lml(Lml(lml(content, scheduling_algorithm="List")))
    assert spans({key: found[key] for key in ("s0", "s1", "s2", "m")}) == {
        "s0": (0, 10), "s1": (0, 10), "s2": (10, 20), "m": (0, 10)}
    assert found["other"].start == math.inf and "no node is for queue large" in found["other"].reason
    assert found["big"].start == math.inf and found["big"].reason


@pytest.mark.parametrize("limit, wanted", [
    ({"starters": 4}, {"a": (0, 10), "b": (10, 20), "c": (0, 10), "d": (0, 10)}),
    ({"maxjobs": 1}, {"a": (0, 10), "b": (10, 20), "c": (20, 30), "d": (0, 10)}),
    ({"maxjobsperuser": 1}, {"a": (0, 10), "b": (10, 20), "c": (0, 10), "d": (0, 10)})])
@pytest.mark.parametrize("manager", ["NodeState", "AttributeState"])
def test_limits_of_queues(limit: dict[str, int], wanted: dict[str, Any], manager: str) -> None:
    content = [node(1, 16), ("queue", "q", limit),
               waits("a", 3, 10, 9, queue="q", owner="u"), waits("b", 3, 10, 8, queue="q", owner="u"),
               waits("c", 1, 10, 7, queue="q", owner="v"), waits("d", 6, 10, 6, owner="u")]
    assert said(lml(content, scheduling_algorithm="List", system_state=manager)) == wanted


def test_nodes_that_are_not_shared() -> None:
    content = [node(1, 4), node(2, 8), runs("r", "(1-1(1-1))", 5),
               ("job", "a", {"nummachines": 1, "taskspernode": 2, "wall": 3}),
               ("job", "b", {"nummachines": 1, "taskspernode": 2, "wall": 3}),
               ("job", "c", {"nummachines": 1, "taskspernode": 6, "wall": 3}),
               ("job", "d", {"nummachines": 1, "taskspernode": 9, "wall": 3})]
    found, written = forecast_lml(Lml(lml(content, node_sharing="no", scheduling_algorithm="List")))
    assert spans({key: found[key] for key in "abc"}) == {"a": (0, 3), "b": (3, 6), "c": (6, 9)}
    assert {key: [number for number, _ in found[key].places] for key in "abc"} == {
        "a": [1], "b": [1], "c": [1]}
    assert found["d"].reason and b"(2-2(1-8))" in written


def test_one_reservation_for_each_queue() -> None:
    """Two queues with nodes of their own are two machines: the head of each has its reservation."""
    content = [node(1, 2, avail_classes="(a,2)"), node(2, 2, avail_classes="(b,2)"),
               runs("ra", "(1-1(1-1))", 4, queue="a"), runs("rb", "(2-2(1-1))", 4, queue="b"),
               waits("ha", 2, 5, 9, queue="a"), waits("hb", 2, 5, 8, queue="b"),
               waits("fa", 1, 6, 7, queue="a"), waits("fb", 1, 6, 6, queue="b")]
    one = said(lml(content, topdogs="1", topdogs_per_queue="no"))
    each = said(lml(content, topdogs="1", topdogs_per_queue="yes"))
    assert one["ha"] == (4, 9) and one["hb"][0] > 4  # put off by fb
    assert each["ha"] == (4, 9) and each["hb"] == (4, 9)


def test_formulas_dates_chains_states_and_later_jobs() -> None:
    content = [node(1, 2),
               waits("old", 1, 5, 100), waits("new", 2, 5, 10), waits("held", 1, 5, 300, state="Hold"),
               waits("next", 1, 5, 200, after="new"), waits("soon", 1, 5, -12), waits("never", 3, 5, 9),
               waits("behind", 1, 5, 9, after="held"), waits("done", 1, 5, 9, state="Completed")]
    dates = said(lml(content, scheduling_algorithm="FCFS"))
    assert (dates["old"], dates["new"], dates["next"], dates["soon"]) == ((0, 5), (5, 10), (10, 15),
                                                                        (12, 17))
    large = said(lml(content, system_sysprio="totalcores*1000-DATEQUEUEDATE",
                     scheduling_algorithm="FCFS"))
    assert (large["new"], large["old"], large["next"]) == ((0, 5), (5, 10), (5, 10))
    found, written = forecast_lml(Lml(lml(content)))
    assert "done" not in found
    for key, why in (("held", "its state is Hold"), ("behind", "it waits for job held"),
                     ("never", "3 rank")):
        assert found[key].start == math.inf and why in found[key].reason
        assert f'oid="{key}" type="forecast">\n <data key="predicted_reason"'.encode() in written


def test_limits_of_a_forecast() -> None:
    site = Lml(lml(TABLE)).snapshot
    first = forecast_site(site, most_jobs=2)
    assert [key for key, each in first.items() if each.start < math.inf] == ["j5", "j4"]
    assert "not among the first 2 starts" in first["j6"].reason
    soon = forecast_site(site, most_seconds=5)
    assert [key for key, each in soon.items() if each.start < math.inf] == ["j5", "j4"]
    assert "not within 5 s" in soon["j1"].reason


def test_what_is_missing_has_its_default() -> None:
    content = HEAD + ('<objects><object id="n" type="node"/><object id="j" type="job"/>'
                      '<object id="k" type="job"/></objects></lml:lgui>')
    found, written = forecast_lml(Lml(content.encode()))
    assert spans(found) == {"j": (0, 86400), "k": (86400, 172800)}
    assert Lml(written).snapshot == Lml(content.encode()).snapshot
    assert b"<information>\n<info oid" in written


# ------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("change, line, what", [
    ((b'value="65"', b'value="never"'), 15, "wall is `never`, wanted seconds above 0"),
    ((b'"ncores" value="5"', b'"ncores" value="-5"'), 14, "ncores is `-5`, wanted a whole number"),
    ((b"(1-1(4-5))", b"(1-1(4-6))"), 15, "wanted cores from 1 to 5, in order, of node 1"),
    ((b"(1-1(4-5))", b"(2-2)"), 15, "wanted nodes from 1 to 1"),
    ((b"(1-1(4-5))", b"node1"), 15, "wanted nodes and cores as (1-1(4-5))"),
    ((b"NodeState", b"MoonState"), 13, "system_state is `MoonState`, and there are NodeState, Attrib"),
    ((b"Backfilling", b"Guessing"), 13, "scheduling_algorithm is `Guessing`"),
    ((b"-DATEqueuedate", b"-DATEbirthday"), 13, "no job has a key birthday"),
    ((b"-DATEqueuedate", b"-DATEqueuedate("), 13, "is not an arithmetic expression"),
    ((b'system_time" value="07', b'system_time" value="13'), 12, "wanted a date as %m/%d/%y"),
    ((b'oid="j2"', b'aid="j2"'), 16, "an info has no oid"),
    ((b"</lml:lgui>", b""), 20, "it is not XML (no element found)"),
    ((b"lml:lgui", b"html"), 2, "it begins with <html>"),
    ((b"<lml:lgui", b'<!DOCTYPE x [<!ENTITY e "eee">]><lml:lgui'), 2, "it has a document type"),
    ((b'encoding="UTF-8"', b'encoding="UTF-16"'), 1, "")])
def test_a_wrong_value_is_named_with_its_place(change: tuple[bytes, bytes], line: int, what: str) -> None:
    content = REFERENCE.replace(*change)
    assert content != REFERENCE
    with pytest.raises(SnapshotError) as error:
        forecast_lml(Lml(content, "site.xml"))
    assert str(error.value).startswith(f"site.xml:{line}: ") and what in str(error.value)


def test_running_jobs_that_overlap_are_named() -> None:
    with pytest.raises(SnapshotError, match="job b runs on cores of node nd1 that job a has, too"):
        said(lml([node(1, 4), runs("a", "(1-1(1-2))", 5), runs("b", "(1-1(2-3))", 5)]))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10 ** 9))
def test_a_damaged_file_is_one_message_or_a_forecast(seed: int) -> None:
    draw = random.Random(seed)
    content = bytearray(REFERENCE)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(content))
        how = draw.randrange(4)
        if how == 0:
            content[at] = draw.randrange(256)
        elif how == 1:
            del content[at:at + draw.randint(1, 40)]
        elif how == 2:
            content[at:at] = bytes(draw.choice([b"<data/>", b"&lt;", b"9" * 20, b'"', b"<info oid='j2'/>"]))
        else:
            content[at:at] = content[at:at + draw.randint(1, 200)]
    try:
        _, written = forecast_lml(Lml(bytes(content)))
    except SnapshotError as error:
        assert str(error).startswith("LML:") and "\n" not in str(error)
    except ValueError as error:
        pytest.fail(f"not a message with its place: {error!r}")
    else:
        Lml(written)


# ------------------------------------------------------------------ against vrm's own simulator


@st.composite
def loads(draw: Callable[[Any], Any]) -> list[SiteJob]:
    jobs, time = [], 0.0
    for number in range(draw(st.integers(1, 14))):
        time += draw(st.sampled_from([0, 0, 1, 3]))
        jobs.append(SiteJob(f"j{number}", float(draw(st.integers(1, 9))), draw(st.integers(1, 6)),
                            submit=time, rank=-time))
    return jobs


@pytest.mark.parametrize("manager", ["NodeState", "AttributeState"])
@pytest.mark.parametrize("algorithm, depth, backfill", [
    ("FCFS", 1, "none"), ("List", 1, "list"), ("Backfilling", 1, "easy"), ("Backfilling", 2, "2"),
    ("Backfilling", math.inf, "conservative-recomputed")])
@settings(max_examples=15, deadline=None)
@given(jobs=loads())
def test_both_managers_agree_with_the_simulator(algorithm: str, depth: float, backfill: str,
                                                manager: str, jobs: list[SiteJob]) -> None:
    site = Snapshot(0.0, [SiteNode("n", 6)], jobs, algorithm=algorithm, manager=manager, depth=depth)
    found = forecast_site(site)
    outcome: dict[int, float] = {}

    class Watching:
        def booked(self, booking: Any) -> None:
            outcome[booking.job.id] = booking.start

        def released(self, booking: Any) -> None:
            """Nothing."""

        revised = released

        def nodes_changed(self) -> None:
            """Nothing."""

    simulate([Submission(Job(at, "a", job.cores, job.wall, job.submit), job.wall) for at, job in enumerate(jobs)],
             Machine.of(1, cores=6), Rules(policy="pack", backfill=backfill), record=Recording(watchers=[Watching()]))
    assert {key: each.start for key, each in found.items()} == {
        f"j{at}": start for at, start in outcome.items()}


def test_a_large_site() -> None:
    """The nodes of JUROPA, and its two partitions with a reservation for each."""
    draw = random.Random(7)
    nodes = [SiteNode(f"n{at}", 8, {"big": 8} if at < 2500 else {"small": 8}) for at in range(3290)]
    jobs, at = [], 0
    for number in range(300):
        size = draw.choice([1, 2, 4, 8, 16, 24])
        if at + size > 2500:
            break
        jobs.append(SiteJob(f"r{number}", draw.randint(3600, 86400), nodes=size, per_node=8,
                            start=-float(draw.randint(1, 3600)), queue="big",
                            places=tuple((node, None) for node in range(at, at + size))))
        at += size
    jobs += [SiteJob(f"w{number}", draw.randint(600, 86400), nodes=draw.choice([1, 4, 16, 64, 512]),
                     per_node=8, queue=draw.choice(["big", "big", "small"]), rank=-number)
             for number in range(300)]
    found = forecast_site(Snapshot(0.0, nodes, jobs, shared=False, per_queue=True))
    assert len(found) == 300 and all(each.start < math.inf for each in found.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.integers(1, 9)), min_size=1,
                max_size=12), st.booleans(), st.sampled_from(["List", "Backfilling"]))
def test_queues_with_nodes_of_their_own_are_machines_of_their_own(
        wanted: list[tuple[str, int, int]], shared: bool, algorithm: str) -> None:
    nodes = [SiteNode(f"n{at}", 2, {"a" if at < 3 else "b": 2}) for at in range(6)]
    jobs = [SiteJob(f"j{at}", float(wall), nodes=size, per_node=2, queue=queue, rank=-at)
            for at, (queue, size, wall) in enumerate(wanted)]
    site = Snapshot(0.0, nodes, jobs, algorithm=algorithm, per_queue=True, shared=shared)
    whole = {key: (each.start, {node for node, _ in each.places})
             for key, each in SiteByNode(site).run(math.inf, math.inf).items()}
    assert whole == {key: (each.start, {node for node, _ in each.places})
                     for key, each in forecast_site(site).items()}
