"""Live against simulated on the machine at hand: how far off the replay of a live run is that knows
only what was measured apart from it.

    python studies/validation/run.py --out DIR [-c FILE] [--heatmap FILE]

Two scenarios, in turn: compact with FCFS and EASY, strip with WFP3 and EASY. A machine that others
use, too, is not as fast now as it was some minutes ago. So rounds of calibration stand between
the runs, and each run is replayed three times: with the run times of the rounds `before` it, with
those of the rounds right before and after (`beside`), and with its `actual` ones. What differs
between the first two is drift of the machine, what is left in the second is the model and chance,
and what is left in the last are decisions. About 7 minutes on two cores, 5 with a heatmap.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Any, Dict, List, Optional, Sequence

import yaml

from vrm.config.problems import ConfigError
from vrm.config.schema import dump, load
from vrm.ext.study.report.compare import CompareError
from vrm.ext.study.report.plotting import pyplot
from vrm.ext.study.validation.validation_report import data, draw
from vrm.simulation.arguments import Measurements
from vrm.ext.study.validation.replay import ValidationError, read_rows, read_rules, validate
from vrm.ext.measured.estimates import Estimate, Table, read_estimates, table_text

PROGRAMS = "cg.A.x,ep.A.x,ft.A.x,lu.W.x"
SCENARIOS = (("compact", "FCFS"), ("strip", "WFP3"))
KNOWN = ("before", "beside", "actual")
BEFORE = 3  # rounds of calibration that count as known before a run
BESIDE = 2  # rounds on either side that count as beside it
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


def queue_text(table: Table, programs: Sequence[str], ranks: Sequence[int], jobs: int,
               seed: int) -> str:
    """A recorded queue of so many jobs: the programs on each number of ranks in turn, in random
    order, 0 or 1 s apart so that they queue up, with estimates of twice the calibrated time."""
    kinds = [(app, procs) for app in programs for procs in ranks if (app, procs) in table]
    if not kinds:
        raise StudyError("none of the programs was calibrated; build them with `vrm npb build`")
    chosen = [kinds[number % len(kinds)] for number in range(jobs)]
    draw = random.Random(seed)
    draw.shuffle(chosen)
    lines = [f"{app} {procs} {ceil(2 * table[app, procs].seconds)} 0 {draw.choice((0, 1))}"
             for app, procs in chosen]
    return "\n".join([*lines, "end"]) + "\n"


def merged(rounds: Sequence[Table]) -> Table:
    """The runs of several calibrations as one: medians over all."""
    found: Table = {}
    for table in rounds:
        for key, one in table.items():
            for whole, own in zip(one.times, one.app_times):
                found[key] = found.get(key, Estimate(*key)).with_run(whole, own)
    return found


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


class Study:
    """The rounds of calibration and the runs, in the order in which they are made."""

    def __init__(self, base: Path, out: Path, heatmap: Optional[Path], programs: str,
                 ranks: Sequence[int]) -> None:
        self.base, self.out, self.programs, self.ranks = base, out, programs, ranks
        self.rounds: List[Table] = []
        out.mkdir(parents=True, exist_ok=True)
        self.heatmap = heatmap or self._measured()

    def _measured(self) -> Path:
        """The heatmap of the programs, measured before anything else."""
        path = self.out / "heatmap.csv"
        vrm("heatmap", "measure", "-c", write_config(self.base, self.out, *SCENARIOS[0], None),
            "--apps", self.programs, "--ranks", self.ranks[0], "--period", 6, "--fresh", "--out",
            path)
        return path

    def calibrate(self, count: int = 1) -> None:
        """So many rounds: each program once on each number of ranks."""
        config = write_config(self.base, self.out, *SCENARIOS[0], self.heatmap)
        path = self.out / f"calibrated-{len(self.rounds) + 1}.csv"
        vrm("calibrate", "-c", config, "--apps", self.programs, "--ranks",
            ",".join(map(str, self.ranks)), "--repetitions", count, "--fresh", "--out", path)
        table = read_estimates(path)[0]
        for number in range(count):
            self.rounds.append({key: Estimate(*key).with_run(one.times[number],
                                                             one.app_times[number])
                                for key, one in table.items()})

    def run(self, policy: str, algorithm: str, jobs: int, seed: int, name: str) -> int:
        """Run a queue live and keep its records as `name`; the number of rounds before it."""
        # Under strip a job has half of a socket, so that two run side by side.
        ranks = self.ranks if policy == "compact" else self.ranks[:1]
        (self.out / f"queue-{policy}").write_text(
            queue_text(merged(self.rounds), self.programs.split(","), ranks, jobs, seed),
            encoding="utf-8")
        config = write_config(self.base, self.out, policy, algorithm, self.heatmap)
        print(vrm("-c", config, "--fresh", succeeds=False).splitlines()[-1], flush=True)
        kept = self.out / "runs" / name
        kept.mkdir(parents=True, exist_ok=True)
        for file in ("jobs.csv", "state"):
            shutil.copyfile(self.out / policy / file, kept / file)
        return len(self.rounds)

    def replays(self, name: str, begun: int) -> Result:
        """The errors of a run that had `begun` rounds before it, by what its replay knows."""
        tables = {"before": self.rounds[max(0, begun - BEFORE):begun],
                  "beside": self.rounds[max(0, begun - BESIDE):begun + BESIDE]}
        directory = self.out / "runs" / name
        rows = read_rows(directory / "jobs.csv")
        rules, nodes = read_rules(directory / "state")
        measured = Measurements(*Measurements(self.heatmap).pairs(load(self.base).allocation.min_throughput))
        found: Result = {"run": name}
        for known in KNOWN:
            table = None
            if known in tables:
                table = merged(tables[known])
                (self.out / f"{name}-{known}.csv").write_text(table_text(table.values()),
                                                              encoding="utf-8")
            replay = validate(rows, rules, nodes, table, measured)
            draw(replay, self.out / f"{name}-{known}.svg")
            found[known] = data(replay)
            del found[known]["jobs"]
        return found

    def scatter(self) -> Dict[str, float]:
        """How far, on the average, the times of the same programs alone are from their medians:
        single runs, and whole rounds. No replay can be much better than this."""
        table = merged(self.rounds)
        sums = [sum(one.seconds for one in each.values()) for each in self.rounds]
        return {"run": fmean(abs(one.seconds / table[key].seconds - 1)
                             for each in self.rounds for key, one in each.items()),
                "round": fmean(abs(one / median(sums) - 1) for one in sums)}


def study(whole: Study, jobs: int, repetitions: int, seed: int) -> List[Result]:
    """Calibrate, run and replay; the errors of every run."""
    begun: Dict[str, int] = {}
    whole.calibrate(BEFORE - 1)
    for number in range(1, repetitions + 1):
        for policy, algorithm in SCENARIOS:
            whole.calibrate()
            name = f"{policy}-{number}"
            begun[name] = whole.run(policy, algorithm, jobs, seed + number, name)
    whole.calibrate(BESIDE)
    return [whole.replays(name, rounds) for name, rounds in begun.items()]


def report(found: Sequence[Result], scatter: Dict[str, float]) -> str:
    """The errors as a table, a row per run, and the mean size of those of each scenario."""
    from prettytable import PrettyTable

    figures = [(title, figure, name, known) for title, figure, name in (
        ("makespan", "makespan", "error"), ("turnaround", "turnaround", "mape"),
        ("run time", "running", "mape")) for known in KNOWN[:2]]
    out = PrettyTable(["run", "live", *(f"{title}, {known}" for title, _, _, known in figures),
                       "run time, bias"])
    out.align = "r"
    for policy, _ in SCENARIOS:
        runs = [one for one in found if one["run"].startswith(policy)]
        for one in runs:
            signs = ("+" if name == "error" else "" for _, _, name, _ in figures)
            out.add_row([one["run"], f"{one['actual']['makespan']['live']:.2f} s",
                         *(f"{one[known][figure][name]:{sign}.1%}"
                           for sign, (_, figure, name, known) in zip(signs, figures)),
                         f"{one['before']['running']['bias']:+.1%}"])
        means = [fmean(abs(one[known][figure][name]) for one in runs)
                 for _, figure, name, known in figures]
        out.add_row(["mean size", "", *(f"{mean:.1%}" for mean in means), ""], divider=True)
    worst = max(max(abs(one["actual"]["makespan"]["error"]), one["actual"]["turnaround"]["mape"])
                for one in found)
    return (f"{out.get_string()}\nlive: the makespan; errors of the replays: of the makespan, and "
            "MAPE over the jobs of turnaround and run time;\nbefore, beside: with the run times "
            "calibrated before, or right before and after, the run;\nbias: how much longer those "
            "calibrated before were, on the average\n"
            "with the run times of the run itself, the errors of makespan and turnaround are at "
            f"most {worst:.2%}\nthe machine: calibrated alone, a program differs from its median "
            f"by {scatter['run']:.1%} on the average, a whole round by {scatter['round']:.1%}\n")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Study, print and write; 0 done, 2 could not."""
    parser = argparse.ArgumentParser(description="Tell how far off the simulation is on this "
                                                 "machine.")
    add = parser.add_argument
    add("--out", metavar="DIR", type=Path, required=True, help="everything goes there")
    add("-c", "--config", metavar="FILE", type=Path, default=ROOT / "config" / "compact.yaml",
        help="programs, nodes and launcher (default: config/compact.yaml)")
    add("--heatmap", metavar="FILE", type=Path,
        help="measured on this machine by `vrm heatmap measure` (default: measure one)")
    add("--apps", metavar="LIST", default=PROGRAMS, help=f"programs (default: {PROGRAMS})")
    add("--ranks", metavar="LIST", default="1,2", help="the first for strip (default: 1,2)")
    add("--jobs", metavar="N", type=int, default=24, help="in a queue (default: 24)")
    add("--repetitions", metavar="N", type=int, default=3, help="runs of each (default: 3)")
    add("--seed", metavar="N", type=int, default=1, help="of the queues' order (default: 1)")
    chosen = parser.parse_args(arguments)
    try:
        pyplot(StudyError, "replay single runs with `vrm validate`")  # tell it now, not at the end
        whole = Study(chosen.config, chosen.out.resolve(),
                      chosen.heatmap and chosen.heatmap.resolve(), chosen.apps,
                      tuple(map(int, chosen.ranks.split(","))))
        found = study(whole, chosen.jobs, chosen.repetitions, chosen.seed)
    except (StudyError, ConfigError, CompareError, ValidationError) as error:
        print(f"validation: {error}", file=sys.stderr)
        return 2
    scatter = whole.scatter()
    text = report(found, scatter)
    (chosen.out / "validation.txt").write_text(text, encoding="utf-8")
    (chosen.out / "validation.json").write_text(json.dumps({"runs": found, "scatter": scatter},
                                                           indent=2) + "\n",
                                                encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
