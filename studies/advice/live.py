"""Does advice pay in live runs? Drawn queues on a small cluster of namespaced nodes under Slurm, by the rules
that were advised and by FCFS + EASY with compact placement, in turns.

    python studies/advice/live.py --out DIR [--queues 10] [--limit SECONDS] [--show]

As root, on a machine with what tests/support/testbed.py wants. A queue has 20 MPI jobs of 1 to 8 ranks on 4
nodes of 2 cores; they sleep 1 to 12 s, and their limits are 1.3 to 8 times as long. One more queue runs
first, by FCFS + EASY: its jobs.csv is the history from which the draws come. Each queue runs by FCFS + EASY, by what is
advised for the makespan, and by what is advised for the mean wait, in another order each time. What is
there is not run again. The figures are of the records of the live runs; the intervals are Student's,
of the logarithms of the ratios. About 3 minutes a queue.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.testbed import Testbed, missing  # noqa: E402  (a module of the tests)

from vrm.ext.advice.advice import advise, combinations  # noqa: E402
from vrm.ext.advice.planned_run import plan  # noqa: E402
from vrm.model.rules import Rules  # noqa: E402
from vrm.results.jobs import read_jobs  # noqa: E402
from vrm.ext.study.confidence import interval  # noqa: E402
from vrm.api import Machine, Measurements  # noqa: E402

NODES, CORES = 4, 2
JOBS = 20
ARMS = ("today", "makespan", "wait")
BASE = {"backfill": "easy", "policy": "compact"}


def queue_of(seed: int) -> List[str]:
    """The lines of a queue."""
    draw = random.Random(seed)
    lines = []
    for _ in range(JOBS):
        seconds = math.exp(draw.uniform(0.0, math.log(12.0)))
        limit = math.ceil(seconds * draw.uniform(1.3, 8.0) + 2)
        lines.append(f"nap {draw.choice([1, 2, 2, 4, 4, 8])} {limit} 0 args={seconds:.2f}")
    return [*lines, "end"]


def write_site(folder: Path, lines: List[str], rules: Rules) -> Path:
    """Program, queue and configuration; the configuration's path."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    program = folder / "bin" / "nap"
    program.write_text('#!/bin/sh\nexec sleep "$1"\n')
    program.chmod(0o755)
    (folder / "queue").write_text("".join(f"{line}\n" for line in lines))
    config = folder / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Log": "log",
        "Scheduling": {"Algorithm": rules.algorithm, "Backfilling": str(rules.backfill),
                       "BackfillOrder": rules.backfill_order},
        "Allocation": {"Policy": rules.policy},
        "Launcher": {"AllowRoot": True, "Transport": "tcp"}}))
    return config


def live(testbed: Testbed, folder: Path, lines: List[str], rules: Rules) -> Dict[str, Any]:
    """Run a queue; its makespan, mean and longest wait (s), by the records."""
    config = write_site(folder, lines, rules)
    with testbed.allocation(NODES, "--exclusive") as batch:
        with open(folder / "said", "w") as said:
            process = testbed.popen(batch.host, [sys.executable, "-m", "vrm.cli", "-c", config, "--fresh", "--wait"],
                                    env={**batch.env, "PYTHONPATH": str(ROOT)}, cwd=folder, stdout=said,
                                    stderr=subprocess.STDOUT)
            process.wait(600)
    testbed.wait_for_slurm(testbed.nodes)
    rows = list(read_jobs(folder / "log" / "jobs.csv"))
    if len(rows) != JOBS or {row.status for row in rows} != {"completed"}:
        raise SystemExit(f"{folder}: not all jobs completed; see {folder / 'said'}")
    begun = min(row.submit for row in rows)
    waits = [row.start - row.submit for row in rows if row.start is not None]
    return {"makespan": max(row.end for row in rows if row.end is not None) - begun,
            "wait": sum(waits) / len(waits), "longest": max(waits)}


def advised(folder: Path, history: Path) -> Dict[str, Tuple[Rules, Dict[str, Any]]]:
    """The rules that are advised for each objective, with what was said of them."""
    found = plan(str(folder / "queue"), Machine.of(NODES, 1, CORES), Rules(**BASE),
                 measured=Measurements(history=[history]))
    told = advise(found.frozen, combinations(found.rules), found.heatmap)
    chosen = {}
    for objective in ARMS[1:]:
        choice = told.choice(objective)
        best = told.combinations[choice.best]
        chosen[objective] = best.rules, {"rules": best.name, "confidence": choice.confidence,
                                         "p10": best.gives[objective].p10,
                                         "p50": best.gives[objective].p50,
                                         "p90": best.gives[objective].p90}
    return chosen


def one(testbed: Testbed, out: Path, number: int, history: Path) -> Dict[str, Any]:
    """All runs of a queue."""
    lines = queue_of(100 + number)
    folder = out / f"queue{number:02}"
    write_site(folder, lines, Rules(**BASE))
    chosen = advised(folder, history)
    rules = {"today": Rules(**BASE), **{name: each[0] for name, each in chosen.items()}}
    found: Dict[str, Any] = {"advice": {name: each[1] for name, each in chosen.items()}}
    for turn in range(len(ARMS)):
        arm = ARMS[(number + turn) % len(ARMS)]
        found[arm] = live(testbed, folder / arm, lines, rules[arm])
    return found


def tables(results: List[Dict[str, Any]]) -> List[str]:
    """The ratios with their intervals, and the predictions."""
    lines = ["| advised for | against FCFS + EASY | ratio | 95 % interval | better in |",
             "|" + "---|" * 5]
    for arm in ARMS[1:]:
        for value in ("makespan", "wait", "longest"):
            ratios = [each[arm][value] / each["today"][value] for each in results]
            said = interval([math.log(ratio) for ratio in ratios])
            low, high = (math.exp(said.mean + sign * (said.half or 0.0)) for sign in (-1, 1))
            better = sum(ratio < 1 for ratio in ratios)
            lines.append(f"| {arm} | {value} | {math.exp(said.mean):.3f} | {low:.3f} to {high:.3f} | "
                         f"{better} of {len(ratios)} |")
    for arm in ARMS[1:]:
        errors = sorted(abs(each["advice"][arm]["p50"] / each[arm][arm] - 1) for each in results)
        inside = sum(each["advice"][arm]["p10"] <= each[arm][arm] <= each["advice"][arm]["p90"]
                     for each in results)
        lines.append(f"\nThe P50 of the {arm} was off by {100 * errors[len(errors) // 2]:.0f} % (median); "
                     f"P10 to P90 held {inside} of {len(results)}.")
    return lines


def main() -> int:
    """Run what is missing, then show what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--out", required=True, type=Path, help="where everything goes")
    add("--queues", type=int, default=10, help="how many")
    add("--limit", type=float, default=math.inf, help="seconds after which no queue begins")
    add("--show", action="store_true", help="only show what is there")
    arguments = parser.parse_args()
    begun, out = time.monotonic(), arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if not arguments.show:
        reason = missing()
        if reason:
            raise SystemExit(f"live.py: {reason}")
        with Testbed(NODES, sockets=1, cores=CORES) as testbed:
            history = out / "history" / "log"
            if not (out / "history.json").exists():
                found = live(testbed, out / "history", queue_of(99), Rules(**BASE))
                (out / "history.json").write_text(json.dumps(found))
            for number in range(arguments.queues):
                file = out / f"queue{number:02}.json"
                if file.exists():
                    continue
                if time.monotonic() - begun > arguments.limit:
                    break
                found = one(testbed, out, number, history)
                partial = file.with_suffix(f".{os.getpid()}")
                partial.write_text(json.dumps(found) + "\n")
                partial.rename(file)
                print(file.stem, *(f"{arm} {found[arm]['makespan']:.1f} s, wait {found[arm]['wait']:.1f} s;"
                                   for arm in ARMS), flush=True)
    results = [json.loads(file.read_text()) for file in sorted(out.glob("queue??.json"))]
    if len(results) < 2:
        print("two queues at least are needed for an interval")
        return 1
    text = tables(results)
    (out / "tables.md").write_text("\n".join(text) + "\n")
    print(f"{len(results)} queues of {JOBS} jobs", *text, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
