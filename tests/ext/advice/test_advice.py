"""Advice: which rules are compared, what their replays give, who is the best and how sure that is, what
it costs; the sizes of allocations; and the same answer on any number of processes."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from vrm import cli
from vrm.ext.advice import adviser
from vrm.ext.advice.advice import (CLOSE, OBJECTIVES, Advice, Choice, Combination, Measure, advise, against,
                                 choose, close, combinations, reason, rules_name, spread, without_plans)
from vrm.ext.advice.assumed_draws import draws, told
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.frozen import FrozenRun, of_jobs
from vrm.ext.advice.planned_run import MOST_JOBS, plan
from vrm.ext.forecast.replay import limits, replay
from vrm.ext.forecast.parallel import run_in_processes
from vrm.ext.advice.whatif import Size, recommend, what_if
from vrm.model import Cluster, Job, Node
from vrm.model.measured.energy import MeasuredProgram, PowerClass, Programs
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Details
from vrm.model.measured.power import MARK
from vrm.model.rules import Rules
from vrm.model.measured.speedups import Speedups
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling.compose import compose
from vrm.simulation.inputs import WorkloadError
from vrm.workload.submission import Submission
from vrm.api import Machine
from vrm.workload.swf import Selection

FCFS = Rules(backfill="easy", policy="compact")


def frozen(sizes: Sequence[Sequence[float]], nodes: int = 4, rules: Rules = FCFS, **more: Any) -> FrozenRun:
    """Jobs of (ranks, seconds) that wait from the beginning, on nodes of one core."""
    cluster = Cluster.regular(nodes, 1, 1)
    jobs = [Job(number, "a", int(ranks), seconds) for number, (ranks, seconds) in enumerate(sizes)]
    return of_jobs(jobs, compose(rules, cluster), cluster, **more)


# --------------------------------------------------------------------------------------- what is tried


def names(rules: Sequence[Rules], placed: bool = False) -> list[str]:
    return [rules_name(each, placed) for each in rules]


def test_todays_rules_come_first_and_none_comes_twice() -> None:
    found = names(combinations(Rules(algorithm="saf", backfill="easy")))
    assert found[0] == "saf + EASY" and "SAF + EASY" not in found and len(found) == 12
    assert len(set(found)) == 12 and "LJF + EASY" in found
    assert "SAF + EASY (SAF backfilled first)" not in found
    assert len(combinations(FCFS, most=5)) == 5 and names(combinations(FCFS, most=1)) == ["FCFS + EASY"]


def test_what_is_named_is_compared_and_nothing_else() -> None:
    found = combinations(Rules(policy="pack", backfill="none"), orders=["SJF", "SAF"],
                         dispatchers=["none", "easy/saf", "conservative"],
                         placements=["pack/best-fit", "compact"])
    assert names(found, True)[:5] == ["FCFS, pack", "SJF, pack/best-fit", "SJF, compact",
                                      "SJF + EASY (saf backfilled first), pack/best-fit",
                                      "SJF + EASY (saf backfilled first), compact"]
    assert len(found) == 12 and len(combinations(Rules(policy="pack", backfill="none"), orders=["SJF"], most=99)) == 2


def test_other_placements_only_where_speeds_were_measured() -> None:
    speeds = Speedups({"a": {"a": 1.2}})
    assert {each.policy for each in combinations(FCFS)} == {"compact"}
    assert {each.policy for each in combinations(FCFS, Heatmap({}))} == {"compact"}
    assert {each.policy for each in combinations(FCFS, speeds.heatmap(), True)} == {"compact", "strip"}


def test_a_guard_against_starvation_goes_with_easy_alone() -> None:
    guarded = Rules(backfill="easy", starvation=25.0)
    found = combinations(guarded, dispatchers=["none", "easy"], orders=["FCFS", "SJF"])
    assert [each.starvation for each in found] == [25.0, 0.0, 0.0, 25.0]


# ------------------------------------------------------------------------------------ what they give


def plain(jobs: Sequence[Job], starts: dict[int, float], ends: dict[int, float]) -> list[float]:
    """The definitions, in plain loops, where all jobs start and come at 0 s."""
    waits = [starts[job.id] for job in jobs]
    runs = [ends[job.id] - starts[job.id] for job in jobs]
    return [sum(waits) / len(jobs), max(ends.values()), sum(
        max(1.0, (wait + run) / max(run, 10.0)) for wait, run in zip(waits, runs)) / len(jobs), max(waits)]


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(1, 500)), min_size=1, max_size=12))
@settings(max_examples=60)
def test_what_a_replay_gives_is_as_defined(sizes: list[Any]) -> None:
    run = frozen(sizes)
    found = replay(run, limits)
    values = Measure(run).values(found, limits)
    assert values[:4] == pytest.approx(plain(run.waiting(), {i: each.start for i, each in found.items()},
                                             {i: each.end for i, each in found.items()}))
    assert values[4] == 0.0  # no end: not asked


def test_a_job_that_does_not_start_counts_from_the_end_of_the_allocation() -> None:
    run = frozen([(4, 60.0), (4, 50.0)], end=100.0)
    values = Measure(run).values(replay(run, limits), limits)
    assert values == (pytest.approx(50.0), 150.0, pytest.approx((1 + 150 / 50) / 2), 100.0, 1.0, 0.0)


def test_held_jobs_do_not_count_nor_what_waits_for_them() -> None:
    run = frozen([(4, 60.0)])
    run = run.with_job(Job(1, "a", 1, 10.0), Details(held=True))
    assert Measure(run).values(replay(run, limits), limits)[:2] == (0.0, 60.0)


def test_the_area_counts_cores_not_nodes() -> None:
    """Two nodes of 4 cores: a job of 5 ranks takes two nodes, and is smaller than one of 4 ranks."""
    cluster = Cluster.regular(2, 1, 4)
    jobs = [Job(0, "a", 8, 10.0), Job(1, "a", 4, 30.0), Job(2, "a", 5, 20.0)]
    found = {}
    for order in ("SAF", "LAF"):
        run = of_jobs(jobs, compose(Rules(algorithm=order), cluster.copy()), cluster.copy())
        starts = replay(run, limits)
        found[order] = sorted(starts, key=lambda job_id: starts[job_id].start)
    assert found == {"SAF": [0, 2, 1], "LAF": [1, 2, 0]}


# ------------------------------------------------------------------------------------------- the best


def judged(draws: Sequence[Sequence[float]], objective: str = "makespan") -> Choice:
    """The choice between rules that are as good otherwise."""
    number = len(draws[0])
    found = [Combination(str(at), FCFS, {
        **{name: spread([1.0]) for name in OBJECTIVES}, objective: spread([draw[at] for draw in draws])})
        for at in range(number)]
    return choose(objective, found, draws)


def test_the_best_is_that_of_the_least_mean_and_the_confidence_is_the_share_of_draws() -> None:
    found = judged([[100.0, 90.0, 120.0], [100.0, 90.0, 80.0], [100.0, 81.0, 80.0], [100.0, 120.0, 300.0]])
    assert found.best == 1 and found.confidence == 0.5 and not found.clear and not found.change
    assert found.regret == pytest.approx(400 / 381 - 1)
    sure = judged([[100.0, 90.0], [110.0, 90.0]])
    assert sure.clear and sure.change and sure.confidence == 1.0
    assert judged([[3.0, 5.0], [4.0, 5.0]], "fits")[1:3] == (1, 1.0)


def test_one_draw_does_not_decide_about_slowdowns() -> None:
    """The second rules are better in three of four draws; in the other a job of seconds waits for long."""
    draws = [[10.0, 5.0], [12.0, 6.0], [8.0, 4.0], [100.0, 140.0]]
    assert judged(draws, "wait").best == 0 and judged(draws).best == 0
    found = judged(draws, "slowdown")
    assert found.best == 1 and found.confidence == 0.75 and not found.clear
    assert found.regret == pytest.approx((8 / 1.4) ** 0.25 - 1)


def test_equal_rules_are_no_reason_to_change() -> None:
    assert judged([[100.0, 99.8]]).best == 0
    within = judged([[101.0, 100.0]])
    assert within.best == 1 and within.clear and not within.change


def test_of_equal_rules_that_with_the_shorter_wait_is_taken() -> None:
    found = [Combination(str(at), FCFS, {"makespan": spread([makespan]), "wait": spread([wait])})
             for at, (makespan, wait) in enumerate([(200.0, 1.0), (100.0, 50.0), (100.4, 5.0), (103.0, 1.0)])]
    assert choose("makespan", found, [[each.gives["makespan"].mean for each in found]]).best == 2


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=3, max_size=3), min_size=1, max_size=20))
@settings(max_examples=100)
def test_confidence_is_a_share_and_regret_is_never_negative(draws: list[list[float]]) -> None:
    for objective in ("makespan", "fits"):
        found = judged(draws, objective)
        assert 0 <= found.confidence <= 1 and found.regret >= 0
        assert len(draws) > 1 or found.confidence == 1.0
    assert close(0.0, [0.0, 1.0]) and close(1.0 + 0.99 * CLOSE, [1.0]) and not close(1.0, [0.0, 1.0])
    assert against(1.0, 0.0) == math.inf and against(0.0, 0.0) == 0.0


def test_percentiles_lie_between_neighbours() -> None:
    assert spread([4.0, 1.0, 2.0, 3.0, 5.0]) == (3.0, pytest.approx(1.4), 3.0, pytest.approx(4.6))
    assert spread([7.0]) == (7.0, 7.0, 7.0, 7.0)


MIXED = [(4, 600.0), *[(1, 60.0 * (1 + each % 5)) for each in range(20)], (3, 2000.0), (2, 900.0)]


def test_the_same_state_gives_the_same_advice_on_any_number_of_processes() -> None:
    run = frozen(MIXED)
    one, two, three = (advise(run, combinations(FCFS), members=7, processes=n).record() for n in (1, 2, 3))
    assert one == two == three and one["members"] == 7
    assert json.loads(json.dumps(one)) == one
    assert advise(replace(run, position=1), combinations(FCFS), members=7).record() != one


def test_few_ended_jobs_do_not_make_it_sure() -> None:
    """Draws from one job would all be the same."""
    past = History()
    for number in range(1, 9):
        past.add(Job(number, "a", 1, 100.0), 10.0)
        run = frozen(MIXED, past=past)
        values = {each(run.waiting()[0], 0.0) for each in draws(run, 20)}
        assert (len(values) > 5) == (number < 8) and ("assumption" in told(run)) == (number < 8)
    assert values == {60.0}
    assert all(each(job, 300.0) > 300.0 for each in draws(frozen(MIXED), 20) for job in
               [Job(1, "a", 1, 100.0), Job(2, "a", 1, 400.0)])


def test_advice_says_why() -> None:
    found = advise(frozen(MIXED), combinations(FCFS), members=10)
    choice = found.choice("wait")
    assert choice.change and found.combinations[choice.best].rules.algorithm in ("SAF", "SJF")
    assert "the rules until now are" in reason(found, choice) and choice.price["makespan"] > -1
    with pytest.raises(KeyError):
        found.choice("fits")
    ends = advise(frozen(MIXED, end=1500.0), combinations(FCFS), members=10)
    assert ends.choice("fits").objective == "fits"


def test_rules_that_a_job_cannot_run_under_are_left_out() -> None:
    cluster = Cluster.regular(2, 1, 2)
    run = of_jobs([Job(0, "a", 4, 10.0)], compose(FCFS, cluster), cluster)
    found = advise(run, combinations(FCFS, placements=["spare", "pack", "nobody"], orders=["FCFS"]),
                   members=2)
    assert [each.name for each in found.combinations] == ["FCFS + EASY, compact", "FCFS + EASY, pack"]
    assert sorted(found.left_out) == ["FCFS + EASY, nobody", "FCFS + EASY, spare"]


def test_plans_are_not_searched_for_in_each_draw() -> None:
    pytest.importorskip("ortools")
    run = frozen([(4, 60.0), (1, 10.0)], rules=Rules(backfill="cp", policy="compact"))
    found, rules = without_plans(run, Rules(backfill="cp", policy="compact"))
    assert rules == FCFS and found.run.scheduler.dispatcher.name == "easy"
    assert without_plans(found, rules) == (found, rules)
    assert advise(found, combinations(rules), members=2).combinations[0].name == "FCFS + EASY"


def test_what_a_process_raises_is_raised_here_and_no_process_is_left() -> None:
    def work(part: Any) -> list[int]:
        if part[0]:
            raise ValueError("the second part")
        return [1]

    with pytest.raises(RuntimeError, match="ValueError: the second part"):
        run_in_processes(work, 2)

    def killed(part: Any) -> list[int]:
        if part[0]:
            os._exit(3)
        return [1]

    with pytest.raises(RuntimeError, match="was killed"):
        run_in_processes(killed, 2)
    assert run_in_processes(lambda part: [each for each in range(7) if each % part[1] == part[0]], 3) == [*range(7)]


# ------------------------------------------------------------------------------------- before a run


def queue(path: Path, *lines: str) -> str:
    file = path / "my.queue"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def test_a_workload_is_frozen_before_its_first_moment(tmp_path: Path) -> None:
    found = plan(queue(tmp_path, "a 2 60 0", "b 1 10 0", "c 1 10 0 hold=1", "end"), Machine.of(2),
                 Rules(backfill="easy"))
    starts = {job_id: each.start for job_id, each in replay(found.frozen, limits).items()}
    assert starts == {0: 0.0, 1: 60.0} and len(Measure(found.frozen).jobs) == 2
    with pytest.raises(WorkloadError, match="does not say how large"):
        plan(queue(tmp_path, "a 2 60 0"))
    with pytest.raises(WorkloadError, match="it has no jobs"):
        plan("lublin:16:9", selection=Selection(first=100))
    with pytest.raises(WorkloadError, match=f"more than {MOST_JOBS} jobs"):
        plan(f"lublin:16:{MOST_JOBS + 1}")


def size(nodes: int, asked: float, chance: float, never: int = 0, done: float = 1.0) -> Size:
    return Size(nodes, nodes, spread([3600.0]), 3600.0, done, chance, asked, asked / 2, never)


def test_the_smallest_size_that_will_do_is_recommended() -> None:
    sizes = [size(2, 2.0, 0.0, never=1), size(4, 4.0, 0.6), size(8, 8.0, 0.95), size(16, 16.0, 1.0)]
    assert recommend(sizes, 3600.0)[0] == 2
    at, why = recommend(sizes[:2], 3600.0)
    assert at is None and "with 4 nodes it is 60 %" in why and "ask for longer" in why
    assert "need more than 2 nodes" in recommend(sizes[:1], None)[1]
    assert recommend([size(4, 10.0, 1.0), size(8, 12.0, 1.0), size(16, 14.0, 1.0)], None)[0] == 1


def test_a_larger_machine_is_never_later_and_uses_as_much() -> None:
    found = what_if([frozen(MIXED, nodes=nodes) for nodes in (4, 8, 64)], 3000.0, members=5)
    spans = [each.makespan.p50 for each in found.sizes]
    assert spans == sorted(spans, reverse=True) and [each.nodes for each in found.sizes] == [4, 8, 64]
    assert all(0 <= each.chance <= each.done <= 1 and each.used <= each.asked for each in found.sizes)
    assert json.loads(json.dumps(found.record())) == found.record()
    later = tuple(Submission(job, 0.0) for job in frozen(MIXED).waiting())
    free = what_if([replace(frozen([], nodes=nodes), later=later) for nodes in (2, 4)], None, members=5)
    assert free.sizes[0].never == 2 and free.recommended == 1 and free.sizes[1].walltime % 300 == 0


# ------------------------------------------------------------------------------------------- advised


def advice(best: int, confidence: float, regret: float) -> Advice:
    rules = [FCFS, Rules(algorithm="SAF", backfill="easy")]
    return Advice(0.0, 0, 50, "", 9, tuple(
        Combination(each.algorithm, each, {"makespan": spread([1.0])}) for each in rules),
        (Choice("makespan", best, confidence, regret, {}),), {})


def test_advised_changes_for_good_reasons_and_not_too_often() -> None:
    one = adviser.Adviser("makespan")
    assert one.wish(advice(1, 0.7, 0.5), 0.0) is None      # not clear
    assert one.wish(advice(1, 0.9, 0.04), 0.0) is None     # not worth while
    assert one.wish(advice(0, 1.0, 0.0), 0.0) is None      # as it is
    choice = one.wish(advice(1, 0.9, 0.2), 0.0)
    assert choice is not None and one.wish(advice(1, 0.9, 0.2), adviser.REST - 1) is None
    assert one.wish(advice(1, 0.9, 0.2), adviser.REST) is not None
    asked = adviser.command(advice(1, 0.9, 0.2), choice, FCFS)
    assert asked["rules"]["algorithm"] == "SAF" and asked["instead"] == FCFS.record() and asked["unasked"]
    assert adviser.Adviser("fits").wish(advice(1, 0.9, 0.2), 0.0) is not None  # no end: the makespan


# ------------------------------------------------------------------------------------ the commands


def test_the_commands_answer_and_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VRM_CONFIG", raising=False)

    def vrm(*words: str) -> tuple[int, str, str]:
        """Exit status, output and errors of a command."""
        try:
            status = cli.main(list(words))
        except SystemExit as ended:
            status = int(str(ended.code))
        return (status, *capsys.readouterr())

    queue(tmp_path, *["a 4 600 0", "b 8 900 0", "c 2 3600 0", "d 8 60 0"] * 3, "end")
    machine = ("--nodes", "4", "--cores", "4", "--members", "5")
    status, told, errors = vrm("advise", "my.queue", *machine, "--walltime", "1h", "--all")
    assert status == 0 and "jobs done before the end" in told and "| 11  |" in told, errors
    assert "The ranges are not calibrated" in told and "replaying" not in errors
    monkeypatch.setattr("vrm.ext.advice.commands.advise.LARGE", 10)
    assert "replaying 12 jobs 60 times; `--members 10` is faster\n" in vrm("advise", "my.queue", *machine)[2]
    told = vrm("whatif", "my.queue", "--nodes", "2,4,16", "--cores", "4", "--members", "5", "--json")[1]
    assert json.loads(told)["recommended"] in (2, 4, 16)
    asked = "my.queue", "--cores", "4", "--members", "5"
    assert vrm("advise", "--sizes", "2,4,16", *asked) == vrm("whatif", "--nodes", "2,4,16", *asked)
    told = vrm("whatif", "my.queue", "--nodes", "2,4,16", "--cores", "4", "--members", "5")[1]
    assert "Ask for" in told and "The ranges are not calibrated" in told
    (tmp_path / "widths.py").write_text("def widest(job, now, nodes):\n    return nodes\n")
    told = vrm("advise", "my.queue", *machine, "--orders", "widths:widest", "--json")[1]
    assert [each["name"] for each in json.loads(told)["combinations"]] == ["FCFS + EASY", "widths:widest + EASY"]
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: ., Queue: my.queue}\nNodes: 4\nSockets: 1\n"
                                       "Cores: 4\nLog: log\n")
    own = vrm("advise", "--json", "--members", "3")[1]  # nothing has run: its own queue
    assert json.loads(own)["jobs"] == 12
    assert vrm("whatif", "--nodes", "2,4", "--members", "3")[0] == 0
    (tmp_path / "vrm.yaml").unlink()
    for words, text in (
            (["advise", "my.queue"], "--nodes N --sockets S --cores C"),
            (["advise"], "there is no run in"), (["advise", "--nodes", "4"], "--nodes is for a QUEUE"),
            (["advise", "my.queue", *machine, "--apply"], "leave out QUEUE"),
            (["advise", "--apply", "nothing"], "one of wait, makespan"),
            (["advise", "nothing", *machine], "no such file"),
            (["advise", "my.queue", *machine, "--orders", "nobody:knows"], "nobody"),
            (["advise", "my.queue", *machine, "--dispatchers", "none/SAF"], "works with"),
            (["advise", "my.queue", *machine, "--algorithm", "nobody"], "unknown ordering"),
            (["advise", "my.queue", "--nodes", "4", "--members", "0"], "not a whole number"),
            (["whatif", "my.queue"], "which sizes"),
            (["whatif", "my.queue", "--nodes", "4,x"], "not a whole number")):
        status, told, errors = vrm(*words)
        assert (status, told) == (2, "") and text in errors, (words, errors, told)


def test_energy_is_advised_where_programs_were_measured() -> None:
    """Of two classes the second is slower and draws half: its energy is what the rules for energy give."""
    classes = {name: PowerClass(name) for name in ("fast", "slow")}
    programs = Programs({"a": {"fast": MeasuredProgram(100, 100), "slow": MeasuredProgram(120, 50)}})
    cluster = Cluster([Node(name, (1,), features=frozenset({MARK + name}), power=power)
                       for name, power in classes.items()])
    cluster.programs = programs
    jobs = tuple(Submission(Job(at, "a", 1, 60.0, 200.0 * at), 60.0) for at in range(3))

    def under(rules: Rules) -> FrozenRun:
        scheduler = compose(rules, cluster)
        return FrozenRun(Run(State(scheduler.new_queue(), cluster), scheduler), 0.0, later=jobs)

    today = Rules(backfill="eamc variant=base")
    rules = combinations(today, most=6, energy=True)
    assert "eamc variant=min-energy" in [each.backfill for each in rules]
    run = under(today)
    values = {}
    for each in rules:
        there = under(each)
        values[each.backfill] = Measure(run).values(replay(there, limits), limits)[-1]
    # 3 x 60 s at 100 W, or 72 s at 50 W; the weight of the time keeps fast at 1.5.
    assert values["eamc variant=base"] == pytest.approx(3 * 72 * 50 / 1000)
    assert values["easy"] == pytest.approx(3 * 60 * 100 / 1000)
    found = advise(run, rules, members=2)
    choice = found.choice("energy")
    given_ = {each.rules.backfill: each.gives["energy"].mean for each in found.combinations}
    assert found.combinations[choice.best].rules == today  # as good as any
    assert given_["easy"] == pytest.approx(given_["eamc variant=base"] * 100 / (1.2 * 50))
    assert "energy" not in {each.objective for each in advise(frozen([(1, 9.0)]), [FCFS], members=2).choices}
