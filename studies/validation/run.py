"""Live against simulated on the machine at hand: calibrates programs, runs queues of them live, and
replays each run knowing only what was calibrated.

    python studies/validation/run.py --out DIR [-c FILE] [--heatmap FILE]

Two scenarios: compact with FCFS and EASY, strip with WFP3 and EASY. About 4 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from math import ceil
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import yaml

from vrm.config import dump, load
from vrm.problems import ConfigError
from vrm.workload.estimates import Table, read_estimates

PROGRAMS = "bt.W.x,cg.A.x,ep.A.x,ft.A.x,is.B.x,lu.W.x,mg.A.x,sp.W.x"
SCENARIOS = (("compact", "FCFS"), ("strip", "WFP3"))
ROOT = Path(__file__).resolve().parents[2]


class StudyError(Exception):
    """A step that failed; the text says which."""


def vrm(*arguments: Any, succeeds: bool = True) -> str:
    """Run a command of vrm and return what it printed; StudyError when it fails."""
    done = subprocess.run([sys.executable, "-m", "vrm.cli", *map(str, arguments)], text=True,
                          stdout=subprocess.PIPE, check=False)
    if done.returncode and succeeds:
        raise StudyError(f"vrm {' '.join(map(str, arguments))} ended with {done.returncode}\n"
                         f"{done.stdout}")
    return done.stdout


def queue_text(table: Table, programs: Sequence[str], ranks: Sequence[int], copies: int,
               seed: int) -> str:
    """A recorded queue: each program on each number of ranks so many times, in random order,
    0 to 2 s apart, with estimates of twice the calibrated time."""
    jobs = [(app, procs) for app in programs for procs in ranks if (app, procs) in table] * copies
    if not jobs:
        raise StudyError("none of the programs was calibrated; build them with `vrm npb build`")
    draw = random.Random(seed)
    draw.shuffle(jobs)
    lines = [f"{app} {procs} {ceil(2 * table[app, procs].seconds)} 0 {draw.choice((0, 1, 2))}"
             for app, procs in jobs]
    return "\n".join([*lines, "end"]) + "\n"


def write_config(base: Path, out: Path, policy: str, algorithm: str,
                 heatmap: Optional[Path]) -> Path:
    """The configuration of a scenario: that of the machine, with its own queue, rules and log."""
    settings = dump(load(base))
    settings["Applications"].update(Queue=str(out / f"queue-{policy}"),
                                    Heatmap=str(heatmap) if heatmap else None)
    settings["Scheduling"].update(Algorithm=algorithm, Backfilling="easy")
    settings["Allocation"]["Policy"] = policy
    log = out / policy
    settings.update(Log=str(log), State=str(log / "state"), Directory=str(log))
    path = out / f"{policy}.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return path


Result = Dict[str, Any]


def study(base: Path, out: Path, heatmap: Optional[Path], programs: str, ranks: Sequence[int],
          copies: int, repetitions: int, seed: int) -> List[Result]:
    """Calibrate, run and replay; the errors of every run."""
    out.mkdir(parents=True, exist_ok=True)
    estimates = out / "estimates.csv"
    first = write_config(base, out, *SCENARIOS[0], heatmap)
    vrm("calibrate", "-c", first, "--apps", programs, "--ranks", ",".join(map(str, ranks)), "--out",
        estimates)
    table = read_estimates(estimates)[0]
    found: List[Result] = []
    for number in range(1, repetitions + 1):
        for policy, algorithm in SCENARIOS:
            config = write_config(base, out, policy, algorithm, heatmap)
            # Under strip a job has half of a socket, so that two run side by side.
            allowed = ranks if policy == "compact" else ranks[:1]
            (out / f"queue-{policy}").write_text(
                queue_text(table, programs.split(","), allowed, copies, seed), encoding="utf-8")
            print(vrm("-c", config, "--fresh", succeeds=False).splitlines()[-1], flush=True)
            found += _replays(config, estimates, heatmap, out, f"{policy}-{number}")
    return found


def _replays(config: Path, estimates: Path, heatmap: Optional[Path], out: Path,
             name: str) -> List[Result]:
    """Both replays of a run that has just ended."""
    known: List[Tuple[str, ...]] = [("--estimates", str(estimates)), ("--known", "actual")]
    if heatmap:
        known[0] += ("--heatmap", str(heatmap))
    found = []
    for more in known:
        text = vrm("-c", config, "validate", "--json", *more, "--out",
                   out / f"{name}-{'actual' if 'actual' in more else 'calibrated'}.svg")
        result = json.loads(text)
        del result["jobs"]
        found.append({"run": name, **result})
    return found


def table_text(found: Sequence[Result]) -> str:
    """The errors as a table."""
    from prettytable import PrettyTable

    out = PrettyTable(["run", "run times", "live makespan", "simulated", "error", "turnaround MAPE",
                       "median", "bias", "run time MAPE"])
    out.align = "r"
    for one in found:
        span, whole = one["makespan"], one["turnaround"]
        out.add_row([one["run"], one["known"], f"{span['live']:.2f}", f"{span['simulated']:.2f}",
                     f"{span['error']:+.1%}", f"{whole['mape']:.1%}", f"{whole['median']:.1%}",
                     f"{whole['bias']:+.1%}", f"{one['running']['mape']:.1%}"])
    return str(out.get_string()) + "\n"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Study, print and write; 0 done, 2 could not."""
    parser = argparse.ArgumentParser(description="Tell how far off the simulation is on this "
                                                 "machine.")
    add = parser.add_argument
    add("--out", metavar="DIR", type=Path, required=True, help="everything goes there")
    add("-c", "--config", metavar="FILE", type=Path, default=ROOT / "config" / "compact.yaml",
        help="programs, nodes and launcher (default: config/compact.yaml)")
    add("--heatmap", metavar="FILE", type=Path, default=ROOT / "docs" / "heatmap.csv",
        help="measured on this machine by `vrm heatmap measure` (default: docs/heatmap.csv)")
    add("--apps", metavar="LIST", default=PROGRAMS, help=f"programs (default: {PROGRAMS})")
    add("--ranks", metavar="LIST", default="1,2", help="the first for strip (default: 1,2)")
    add("--copies", metavar="N", type=int, default=2, help="of each in a queue (default: 2)")
    add("--repetitions", metavar="N", type=int, default=3, help="runs of each (default: 3)")
    add("--seed", metavar="N", type=int, default=1, help="of the queues' order (default: 1)")
    chosen = parser.parse_args(arguments)
    try:
        found = study(chosen.config, chosen.out.resolve(), chosen.heatmap.resolve(), chosen.apps,
                      tuple(map(int, chosen.ranks.split(","))), chosen.copies, chosen.repetitions,
                      chosen.seed)
    except (StudyError, ConfigError) as error:
        print(f"validation: {error}", file=sys.stderr)
        return 2
    text = table_text(found)
    (chosen.out / "validation.txt").write_text(text, encoding="utf-8")
    (chosen.out / "validation.json").write_text(json.dumps(found, indent=2) + "\n",
                                                encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
