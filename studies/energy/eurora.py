"""A power cap on five days of Eurora, a real machine of nodes with GPUs and with MICs (CINECA, 2014).

    python studies/energy/eurora.py DATA [--out DIR] [--quick] [--backfill easy]

DATA is the table of the 5,930 jobs (CSV, may be .gz) with the columns submit, start, end, estimate, nodes,
cores, gpus, mics, mem_mib and watts; it is not part of vrm. 4,795 jobs have the mean power that a model of
A. Borghesi and others predicted; the others are taken to draw as many watts for each core as those with
one do on average; 60 of them have 0 W, which are taken as 1 mW. Each job asks for what it used. Writes a table (also as eurora.csv) and a picture.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

from vrm.model import Job, Node
from vrm.model.job import Request
from vrm.ext.energy.cap import PowerLimit
from vrm.ext.measure.power_picture import draw_power
from vrm.results.energy import power_over_time
from vrm.api import Machine, Rules, simulate
from vrm.workload.submission import Submission

DAY = 86400.0
NODES = tuple(Node(f"n{at}", (8, 8), {"memory": 32.0, "mic" if at < 32 else "gpu": 2.0})
              for at in range(64))


def read(path: str) -> List[Dict[str, str]]:
    """The lines of the table."""
    data = Path(path).read_bytes()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    return list(csv.DictReader(io.StringIO(data.decode())))


def workload(rows: List[Dict[str, str]]) -> Tuple[List[Submission], float]:
    """The jobs in order of time, and the watts for a core where none are known."""
    known = [(float(row["watts"]), int(row["cores"])) for row in rows if row["watts"]]
    per_core = math.fsum(watts for watts, _ in known) / sum(cores for _, cores in known)
    found = []
    for number, row in enumerate(sorted(rows, key=lambda row: (int(row["submit"]), int(row["id"]))), 1):
        nodes, cores = int(row["nodes"]), int(row["cores"])
        run = float(row["end"]) - float(row["start"])
        wants = {"gpu": math.ceil(int(row["gpus"]) / nodes), "mic": math.ceil(int(row["mics"]) / nodes),
                 "memory": min(32.0, int(row["mem_mib"]) / 1024 / nodes)}
        request = Request.of(cores, nodes=(nodes, nodes), tasks_per_node=math.ceil(cores / nodes),
                             per_node={name: amount for name, amount in wants.items() if amount})
        watts = max(float(row["watts"]), 0.001) if row["watts"] else per_core * cores
        job = Job(number, "job", cores, max(float(row["estimate"]), run, 1.0), float(row["submit"]),
                  request=request, watts=watts, user=row["queue"])
        found.append(Submission(job, run))
    return found, per_core


def night(high: float, low: float, days: int = 8) -> str:
    """A cap that is low from 8 to 20 o'clock and high in the night."""
    steps = [f"{0:g}={high:g}"]
    for day in range(days):
        steps += [f"{day * DAY + 8 * 3600:g}={low:g}", f"{day * DAY + 20 * 3600:g}={high:g}"]
    return " ".join(steps)


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="the table of the jobs")
    parser.add_argument("--out", default="eurora-results", help="where tables and pictures go")
    parser.add_argument("--quick", action="store_true", help="the first 800 jobs alone")
    parser.add_argument("--backfill", default="easy", help="the dispatcher (default: easy)")
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    jobs, per_core = workload(read(args.data))
    if args.quick:
        jobs = jobs[:800]
    print(f"{len(jobs)} jobs; {per_core:.2f} W for a core where none are known")
    first = _run(jobs, args.backfill, "")
    highest = first["highest"]
    cases = [("none", ""), *((f"{share} %", f"{highest * share / 100:.0f}") for share in (80, 60, 50, 40)),
             ("night 80 % and day 50 %", night(round(highest * 0.8), round(highest * 0.5)))]
    found = [first] + [_run(jobs, args.backfill, cap) for _, cap in cases[1:]]
    lines = ["cap,watts,jobs,mean wait s,mean bounded slowdown,makespan s,energy MJ,highest W,seconds"]
    for (name, cap), result in zip(cases, found):
        lines.append(f"{name},{cap.split()[0] if cap and ' ' not in cap else '' if not cap else 'steps'},"
                     f"{result['jobs']},{result['wait']:.0f},{result['slowdown']:.2f},"
                     f"{result['makespan']:.0f},{result['energy'] / 1e6:.1f},{result['highest']:.0f},"
                     f"{result['seconds']:.1f}")
    (out / "eurora.csv").write_text("\n".join(lines) + "\n")
    for line in lines:
        print("  ".join(f"{cell:>22}" for cell in line.split(",")))
    name, cap = cases[-1]
    draw_power(out / "eurora.png", [("no cap", first["power"]), (name, found[-1]["power"])],
               ("cap", PowerLimit.of(cap).steps))
    return 0


def _run(jobs: List[Submission], backfill: str, cap: str) -> Dict[str, Any]:
    """A simulation, in figures; under a cap no moment may have more than it."""
    begun = time.process_time()
    outcome = simulate(jobs, Machine(NODES),
                       # Without a cap one that never binds: power is recorded.
                       Rules(policy="pack", backfill=backfill, power_cap=cap or "1e9"))
    power = power_over_time(outcome.results.drawn)
    summary = outcome.summary
    if cap:
        broken = [(at, watts) for at, watts in power if watts > PowerLimit.of(cap).at(at) + 1e-3]
        if broken:
            raise SystemExit(f"the cap is broken: {broken[:3]}")
    return {"jobs": summary["jobs"], "wait": summary["average_wait"], "power": power,
            "slowdown": summary["average_bounded_slowdown"], "makespan": summary["makespan"],
            "energy": summary["energy"], "highest": summary["highest_power"],
            "seconds": time.process_time() - begun}


if __name__ == "__main__":
    sys.exit(main())
