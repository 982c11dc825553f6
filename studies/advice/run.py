"""Is the advice right? Windows of real and drawn workloads as static queues.

    python studies/advice/run.py --out DIR [--traces FILE...] [--windows 40] [--members 50]
                                 [--limit SECONDS] [--show]

FILE is a trace in the Standard Workload Format, or a drawn one: lublin:256:20000. Of each so many
windows of 200 consecutive jobs are drawn (seeded), all submitted at once to the machine of the trace.
Windows in which hardly anybody waits, less than a minute in the mean under FCFS + EASY, are passed over:
there is nothing to advise. The advice has the requests of the users and the jobs before the window,
nothing else. Then each of the rules that it compares is replayed with the real run times: the *regret*
of a choice is by how much its real value is worse than that of the best in hindsight; *of all windows together* it is
that of their sums.

Compared with the advice: users' limits in the place of draws, the rules that were best for all windows
of the trace together (which nobody knows before), and FCFS + EASY. Each window leaves a file; those
that are there are not run again. In the end, and with --show at once, the tables are printed and
written (tables.md), and a picture (advice.png). About 10 s for a window.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from vrm.ext.advice.advice import (CLOSE, CONFIDENT, OBJECTIVES, advise, against, combinations, replayed,
                                 rules_name, under_rules)
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.frozen import FrozenRun, of_jobs
from vrm.ext.forecast.replay import limits
from vrm.model import Cluster
from vrm.model.rules import Rules
from vrm.scheduling.compose import compose
from vrm.simulation.inputs import ERRORS, open_workload, processors_of
from vrm.workload.submission import Submission

JOBS = 200
BEFORE = 5
"""Windows at the beginning of a trace that are history alone."""
SEED = 13
LEAST_WAIT = 60.0
"""Seconds that jobs must wait in the mean under FCFS + EASY for a window to count."""
TODAY = Rules(backfill="easy", policy="compact")
GOALS = {"makespan": (0.02, 0.15), "wait": (0.03, 0.20)}
"""The mean regret and the median error of what is predicted, at most."""


def jobs_of(trace: str) -> Tuple[List[Submission], int]:
    """The jobs of a trace in order of their submission, and the processors."""
    source = open_workload(trace)
    jobs = sorted(source, key=lambda each: (each.job.submit, each.job.id))
    processors = processors_of(source, "put that line in front")
    return [each for each in jobs if each.job.procs <= processors], processors


def name_of(trace: str) -> str:
    """What a trace is called."""
    return Path(trace).name.partition(".")[0].replace(":", "-")


def windows(jobs: Sequence[Submission]) -> List[int]:
    """The places of the first jobs of the windows in the order in which they are drawn; none overlap."""
    blocks = list(range(BEFORE, len(jobs) // JOBS))
    random.Random(SEED).shuffle(blocks)
    return [at * JOBS for at in blocks]


def window(jobs: Sequence[Submission], processors: int, first: int, members: int) -> Dict[str, Any]:
    """What is advised for a window, and what then happens."""
    past = History()
    for one in jobs[:first]:
        past.add(one.job, one.run)
    inside = jobs[first:first + JOBS]
    true = {one.job.id: one.run for one in inside}
    cluster = Cluster.regular(processors, 1, 1)
    frozen = of_jobs([one.job.but(submit=0.0) for one in inside], compose(TODAY, cluster), cluster,
                     past=past)
    real, = replayed(frozen, [frozen], 1, draws=lambda *_: [lambda job, ran: true[job.id]])
    if real[0][list(OBJECTIVES).index("wait")] < LEAST_WAIT:
        return {"first": first, "passed over": True}
    rules = combinations(TODAY)
    begun = time.process_time()
    told = advise(frozen, rules, members=members)
    seconds = time.process_time() - begun
    tried: List[FrozenRun] = [frozen, *(each for _, each in under_rules(frozen, rules[1:])[0])]
    places = list(OBJECTIVES)
    real, = replayed(frozen, tried, 1, draws=lambda *_: [lambda job, ran: true[job.id]])
    limited, = replayed(frozen, tried, 1, draws=lambda *_: [limits])
    found: Dict[str, Any] = {"first": first, "seconds": seconds, "members": members,
                             "rules": [rules_name(each) for each in rules]}
    for choice in told.choices:
        at = places.index(choice.objective)
        values = [each[at] for each in real]
        by_limits = [each[at] for each in limited]
        spread = told.combinations[choice.best].gives[choice.objective]
        found[choice.objective] = {
            "best": choice.best, "confidence": choice.confidence, "p10": spread.p10,
            "p50": spread.p50, "p90": spread.p90, "real": values,
            "by limits": by_limits.index(min(by_limits)), "limits say": min(by_limits)}
    return found


# --------------------------------------------------------------------------------------- tables

def regret(found: Dict[str, Any], at: int) -> float:
    """By how much rules are worse than the best in hindsight."""
    return against(found["real"][at], min(found["real"]))


def judged(objective: str, all_found: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    """What came of an objective in the windows of a trace."""
    each = [found[objective] for found in all_found]
    fixed = [statistics.mean(regret(one, at) for one in each) for at in range(len(each[0]["real"]))]
    clear = [one for one in each if one["confidence"] >= CONFIDENT]
    return {
        "windows": len(each),
        "hit": sum(regret(one, one["best"]) == 0 for one in each),
        "advice": statistics.mean(regret(one, one["best"]) for one in each),
        "together": against(sum(one["real"][one["best"]] for one in each),
                            sum(min(one["real"]) for one in each)),
        "limits": statistics.mean(regret(one, one["by limits"]) for one in each),
        "fixed": min(fixed), "fixed rules": all_found[0]["rules"][fixed.index(min(fixed))],
        "today": fixed[0], "clear": len(clear),
        "right": sum(regret(one, one["best"]) <= CLOSE for one in clear),
        "error": statistics.median(abs(against(one["p50"], one["real"][one["best"]])) for one in each),
        "limits error": statistics.median(
            abs(against(one["limits say"], one["real"][one["by limits"]])) for one in each),
        "covered": statistics.mean(one["p10"] <= one["real"][one["best"]] <= one["p90"]
                                   for one in each)}


def share(value: float) -> str:
    """As per cent."""
    return f"{100 * value:.1f} %"


def tables(results: Dict[str, List[Dict[str, Any]]]) -> List[str]:
    """All that was found, as Markdown."""
    lines = ["| trace | objective | best of all | mean regret: advice | of all windows together | "
             "by limits | best fixed rules | FCFS + EASY | clear advice | of it right or within 2 % |",
             "|" + "---|" * 10]
    for trace, found in results.items():
        for objective in ("makespan", "wait", "slowdown", "longest"):
            one = judged(objective, found)
            right = (f"{one['right']} ({100 * one['right'] / one['clear']:.0f} %)" if one["clear"]
                     else "-")
            lines.append(
                f"| {trace} | {OBJECTIVES[objective].words} | {one['hit']} of {one['windows']} | "
                f"**{share(one['advice'])}** | {share(one['together'])} | {share(one['limits'])} | "
                f"{share(one['fixed'])} ({one['fixed rules']}) | {share(one['today'])} | {one['clear']} | {right} |")
    lines += ["", "| trace | objective | median error: P50 of the advice | by limits | "
              "P10 to P90 hold |", "|" + "---|" * 5]
    for trace, found in results.items():
        for objective in ("makespan", "wait"):
            one = judged(objective, found)
            lines.append(f"| {trace} | {OBJECTIVES[objective].words} | **{share(one['error'])}** | "
                         f"{share(one['limits error'])} | {100 * one['covered']:.0f} % |")
    seconds = [found["seconds"] for each in results.values() for found in each]
    members = {found["members"] for each in results.values() for found in each}
    rules = max(len(found["rules"]) for each in results.values() for found in each)
    lines += ["", f"{JOBS} jobs, {rules} combinations, {'/'.join(map(str, sorted(members)))} draws: "
              f"{statistics.median(seconds):.1f} s of CPU time in the median."]
    return lines


KINDS = (("advice", "advice", "#0072B2", "o"), ("limits", "users' limits instead of draws", "#E69F00", "s"),
         ("fixed", "best fixed rules, known only afterwards", "#009E73", "^"), ("today", "FCFS + EASY", "#555555", "D"))
"""What is compared, its name, colour and mark."""


def picture(results: Dict[str, List[Dict[str, Any]]], path: Path) -> None:
    """The regrets as points."""
    draw({OBJECTIVES[objective].words: {
        name.partition("-")[0]: [100 * judged(objective, found)[key] for key, *_ in KINDS]
        for name, found in results.items()} for objective in GOALS}, path)


def draw(regrets: Dict[str, Dict[str, List[float]]], path: Path) -> None:
    """Of each objective and workload the regret in percent, in the order of `KINDS`."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(regrets), figsize=(10, 3.2), sharey=True, layout="constrained", squeeze=False)
    for axis, (words, workloads) in zip(axes[0], regrets.items()):
        for place, (_, label, color, mark) in enumerate(KINDS):
            values = [of[place] for of in workloads.values()]
            lines = [line + 0.2 * (place - 1.5) for line in range(len(values))]
            axis.plot(values, lines, mark, color=color, label=label, markersize=6)
            for value, line in zip(values, lines):
                axis.annotate(f"{value:.1f}" if value < 10 else f"{value:.0f}", (value, line), xytext=(6, 0),
                              textcoords="offset points", va="center", fontsize=7)
        axis.set_yticks(range(len(workloads)), list(workloads))
        axis.set_xscale("log")
        axis.set_xlim(axis.get_xlim()[0], 1.8 * axis.get_xlim()[1])  # the last numbers are whole
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axis.set_title(words, loc="left", fontsize=10)
        axis.grid(axis="x", color="0.9", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()
    figure.supxlabel("mean regret: how much worse than the best rules in hindsight (logarithmic)", fontsize=9)
    figure.legend(*axes[0][0].get_legend_handles_labels(), frameon=False, fontsize=8, ncols=4, loc="outside upper left")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def read(out: Path) -> Dict[str, List[Dict[str, Any]]]:
    """The windows that are there, by trace."""
    found: Dict[str, List[Dict[str, Any]]] = {}
    for file in sorted(out.glob("*.json")):
        one = json.loads(file.read_text())
        if "passed over" not in one:
            found.setdefault(file.name.rpartition(".w")[0], []).append(one)
    return found


def main() -> int:
    """Run what is missing, then show what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--out", required=True, type=Path, help="where everything goes")
    add("--traces", nargs="*", default=[], help="traces, or lublin:PROCESSORS:JOBS[:SEED]")
    add("--windows", type=int, default=40, help="of each trace")
    add("--members", type=int, default=50, help="draws")
    add("--limit", type=float, default=float("inf"), help="seconds after which no window begins")
    add("--show", action="store_true", help="only show what is there")
    arguments = parser.parse_args()
    begun = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for trace in [] if arguments.show else arguments.traces:
        try:
            jobs, processors = jobs_of(trace)
        except (OSError, *ERRORS) as error:
            parser.error(str(error))
        done = 0
        for number, first in enumerate(windows(jobs)):
            if done == arguments.windows:
                break
            file = arguments.out / f"{name_of(trace)}.w{number:03}.json"
            if file.exists():
                done += "passed over" not in json.loads(file.read_text())
                continue
            if time.monotonic() - begun > arguments.limit:
                break
            found = window(jobs, processors, first, arguments.members)
            partial = file.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(found) + "\n", encoding="utf-8")
            partial.rename(file)
            if "passed over" in found:
                continue
            done += 1
            print(file.stem, *(f"{objective} {100 * regret(found[objective], found[objective]['best']):.1f} %"
                               for objective in GOALS), flush=True)
    results = read(arguments.out)
    if not results:
        print("nothing is there to show")
        return 1
    text = tables(results)
    (arguments.out / "tables.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    picture(results, arguments.out / "advice.png")
    print(*text, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
