"""Energy-aware scheduling on two classes of nodes (EAMC), against its baselines, on Lublin workloads of which
13, 33 and 50 % of the jobs are of the program that prefers the second class.

    python studies/energy/run.py [--out DIR] [--jobs 2000] [--seeds 3] [--load 0.9] [--quick]

The machine is system A of M. D'Amico's PhD thesis (UPC, 2021): 512 nodes each of p1 and p2, with his published
coefficients and programs (`system_a.py`). Jobs take whole nodes; their sizes and times are those of the model
of Lublin and Feitelson for 512 nodes (the generator of the thesis is not to be had), run times are on p1 at
the highest frequency, and times between arrivals are scaled so that the jobs would fill `load` of all 1,024
nodes. Writes predictions.csv, results.csv and pictures; prints them, and which of the published orders hold.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import system_a

from vrm.model import Job, Node
from vrm.model.measured.energy import ENERGY
from vrm.model.measured.power import MARK
from vrm.ext.study.report.compare import COLOURS
from vrm.ext.study.report.plotting import PictureError, picture
from vrm.ext.measure.power_picture import draw_power
from vrm.results.energy import power_over_time
from vrm.api import Machine, Measurements, Recording, Rules, simulate
from vrm.ext.generate.lublin import Lublin
from vrm.workload.submission import Submission

EACH = 512
SHARES = (13, 33, 50)
CASES = [("base", 1.0), ("min-runtime", 1.0), ("min-energy", 1.0)] + [
    (variant, weight) for variant in ("reorder", "priority-inc", "priority-inc-v") for weight in (1.0, 1.5)]
PROGRAMS = system_a.programs()
NODES = tuple(Node(f"{name}-{at}", (1,), features=frozenset({MARK + name}), power=system_a.CLASSES[name])
              for name in ("p1", "p2") for at in range(EACH))


class Result(NamedTuple):
    """Figures of one run: seconds, J, W, GHz, and the share of jobs that ran on their best class."""

    response: float
    wait: float
    makespan: float
    energy: float
    frequency: float
    best: float


class Places:
    """How many jobs started on their best class, by the objective at weight 1."""

    def __init__(self) -> None:
        self.best = self.all = 0

    def booked(self, booking: Any) -> None:
        offers = PROGRAMS.offers(booking.job.app, system_a.CLASSES)
        here = "p1" if booking.placement.nodes[0] < EACH else "p2"
        self.all += 1
        self.best += min(offers, key=lambda offer: offer.score).name == here

    def released(self, booking: Any) -> None: ...

    def revised(self, booking: Any, before: float) -> None: ...

    def nodes_changed(self) -> None: ...


def workload(jobs: int, share: int, seed: int, load: float) -> List[Submission]:
    """The jobs; the same sizes and times for each share."""
    drawn = list(Lublin(EACH).jobs(jobs, seed))
    draw = random.Random(f"programs {seed} {share}")
    others = [app for app in PROGRAMS if app != "STREAM"]
    area = sum(one.job.procs * one.run for one in drawn)
    span = max(one.job.submit for one in drawn)
    stretch = area / (2 * EACH * load) / span
    found = []
    for one in drawn:
        # 13 % stands for one in eight, as if all eight programs were as frequent.
        limit = 1 / 8 if share == 13 else share / 100
        app = "STREAM" if draw.random() < limit else draw.choice(others)
        found.append(Submission(Job(one.job.id, app, one.job.procs, max(one.job.walltime, 1.0),
                                    round(one.job.submit * stretch, 3)), one.run))
    return found


def run(jobs: Sequence[Submission], variant: str, weight: float) -> "tuple[Result, Any]":
    """One simulation."""
    places = Places()
    outcome = simulate(list(jobs), Machine(NODES),
                       Rules(policy="compact", backfill=f"eamc variant={variant} weight={weight:g}"),
                       measured=Measurements(energy=PROGRAMS), record=Recording(watchers=[places]))
    summary = outcome.summary
    return Result(summary["average_turnaround"], summary["average_wait"], summary["makespan"],
                  summary["energy"], summary.get("average_frequency", 0.0),
                  places.best / places.all), outcome


def predictions() -> List[str]:
    """The table of predictions, as lines of a CSV."""
    lines = ["program,frequency p1,frequency p2,energy p1 J,energy p2 J,worse/best,at weight 1.5 p1,"
             "at weight 1.5 p2,least energy p1,least energy p2"]
    for app in PROGRAMS:
        one, half, least = (PROGRAMS.offers(app, system_a.CLASSES, *how)
                            for how in (("balanced", 1.0), ("balanced", 1.5), (ENERGY, 1.0)))
        scores = sorted(offer.score for offer in one)
        lines.append(",".join([app, *(f"{offer.prediction.frequency:g}" for offer in one),
                               *(f"{offer.prediction.joules:.0f}" for offer in one),
                               f"{scores[1] / scores[0]:.3f}",
                               *(f"{offer.prediction.frequency:g}" for offer in (*half, *least))]))
    return lines


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return math.fsum(values) / len(values)


def claims(found: Dict[Any, List[Result]]) -> List[str]:
    """Which of the orders that the thesis found hold here, with the figures."""
    def of(share: int, variant: str, weight: float, what: str) -> float:
        return mean([getattr(each, what) for each in found[share, variant, weight]])

    lines = []
    for share in SHARES:
        inc = of(share, "priority-inc", 1.5, "response")
        fast, slow = (of(share, name, 1.0, "response") for name in ("min-runtime", "min-energy"))
        lines.append(f"{share} %: response priority-inc 1.5 < min-runtime < min-energy: "
                     f"{inc:.0f} < {fast:.0f} < {slow:.0f} s: {'yes' if inc < fast < slow else 'NO'}")
        joules, most = (of(share, name, 1.0, "energy") / 1e9 for name in ("priority-inc", "min-runtime"))
        lines.append(f"{share} %: energy priority-inc 1 < min-runtime: {joules:.2f} < {most:.2f} GJ: "
                     f"{'yes' if joules < most else 'NO'} ({100 * (joules / most - 1):+.1f} %)")
    gains = [1 - of(share, "priority-inc", 1.0, "energy") / of(share, "min-runtime", 1.0, "energy")
             for share in SHARES]
    lines.append("the more jobs prefer p2, the more energy is saved: " + ", ".join(
        f"{100 * gain:.1f} %" for gain in gains) + f": {'yes' if gains == sorted(gains) else 'NO'}")
    return lines


SHOWN = {("base", 1.0): ("best class only (base)", "X"), ("min-runtime", 1.0): ("fastest (min-runtime)", "s"),
         ("min-energy", 1.0): ("least energy (min-energy)", "v"), ("reorder", 1.0): ("reorder", "^"),
         ("priority-inc", 1.0): ("priority-inc", "o"), ("priority-inc", 1.5): ("priority-inc, weight 1.5", "D")}
"""The cases of the picture, with their names and marks."""


def draw(path: Path, points: Dict[Any, Tuple[float, float]]) -> None:
    """Mean energy against mean response of each share, variant and weight, as parts of those of min-runtime."""
    with picture(path, PictureError, "read results.csv", 8.4, 3.4) as figure:
        axes = figure.subplots(1, len(SHARES), sharex=True, sharey=True)
        for axis, share in zip(axes, SHARES):
            response, energy = points[share, "min-runtime", 1.0]
            for (case, (label, mark)), colour in zip(SHOWN.items(), COLOURS):
                found = points[(share, *case)]
                axis.plot(100 * found[0] / response - 100, 100 * found[1] / energy - 100, mark, color=colour,
                          label=label, markersize=7)
            axis.set_title(f"{share} % of the jobs prefer class p2")
            axis.grid(color="0.9", linewidth=0.7)
        axes[0].set_ylabel("energy against min-runtime [%]")
        figure.supxlabel("mean response time against min-runtime [%]: left is sooner, down needs less energy", fontsize=9)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False, fontsize=8)


def pictures(out: Path, found: Dict[Any, List[Result]]) -> None:
    """Energy against response for each share."""
    draw(out / "results.png", {key: (mean([each.response for each in there]), mean([each.energy for each in there]))
                               for key, there in found.items()})


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="energy-results", help="where tables and pictures go")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3, help="workloads for each share")
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--quick", action="store_true", help="300 jobs, one workload for each share")
    args = parser.parse_args()
    if args.quick:
        args.jobs, args.seeds = 300, 1
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    table = predictions()
    (out / "predictions.csv").write_text("\n".join(table) + "\n")
    print("\n".join(table), end="\n\n")
    found: Dict[Any, List[Result]] = {}
    begun = time.process_time()
    power = []
    for share in SHARES:
        for variant, weight in CASES:
            for seed in range(1, args.seeds + 1):
                one, outcome = run(workload(args.jobs, share, seed, args.load), variant, weight)
                found.setdefault((share, variant, weight), []).append(one)
                if (share, seed) == (33, 1) and (variant, weight) in CASES[1:3] + CASES[5:6]:
                    power.append((variant, power_over_time(outcome.results.drawn)))
    lines = ["share,variant,weight,mean response s,mean wait s,makespan s,energy GJ,mean GHz,on the best %"]
    for (share, variant, weight), there in found.items():
        one = Result(*map(mean, zip(*there)))
        lines.append(f"{share},{variant},{weight:g},{one.response:.0f},{one.wait:.0f},{one.makespan:.0f},"
                     f"{one.energy / 1e9:.3f},{one.frequency:.2f},{100 * one.best:.0f}")
    (out / "results.csv").write_text("\n".join(lines) + "\n")
    for line in lines:
        print("  ".join(f"{cell:>15}" for cell in line.split(",")))
    print("", *claims(found), sep="\n")
    pictures(out, found)
    draw_power(out / "power.png", power)
    print(f"\n{time.process_time() - begun:.0f} s of processor time; tables and pictures are in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
