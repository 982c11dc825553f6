"""Strip with the learned heatmap against compact, where each job has its node for itself: live, with the programs of a directory.

    python studies/learning/live.py --out DIR [--programs DIR] [--jobs N] [--rounds N] [--ranks N] [--seed N] [--emulate N:S:C]

The programs (such as npb/bin) are drawn with equal chance, each on as many ranks, and `vrm run` starts them on the nodes at
hand, or on N emulated nodes of S sockets of C cores. First a run under strip is learned from; then each round runs other jobs
under compact, and the same jobs under strip. Printed are the throughput, the run time of a job on average, and the worst job: each against compact, jobs against the mean of their
program there. On a machine that others use, the figures say little.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from vrm.results.jobs import JobRow, read_jobs

LIMIT = 600
"""Seconds that a job may take."""


def run(out: Path, name: str, policy: str, apps: list[str], arguments: argparse.Namespace) -> list[JobRow]:
    """Run these programs under a policy; the lines of their jobs."""
    site = out / name
    site.mkdir(parents=True)
    config: dict[str, Any] = {"Applications": {"Path": str(arguments.programs.resolve()), "Queue": "queue"},
                              "Allocation": {"Policy": policy}, "Learning": {"Store": str(out.resolve() / "store")}}
    if policy == "strip":
        config["Applications"]["Heatmap"] = "learned"
    if arguments.emulate:
        nodes, sockets, cores = map(int, arguments.emulate.split(":"))
        config |= {"Nodes": nodes, "Sockets": sockets, "Cores": cores, "Emulate": True}
    (site / "vrm.yaml").write_text(yaml.safe_dump(config))
    (site / "queue").write_text("".join(f"{app} {arguments.ranks} {LIMIT} 0\n" for app in apps) + "end\n")
    subprocess.run([sys.executable, "-m", "vrm.cli", "run"], cwd=site, check=True, stdout=subprocess.DEVNULL)
    return list(read_jobs(site / "logs" / "jobs.csv"))


def seconds(jobs: list[JobRow]) -> float:
    """From the first start to the last end."""
    return max(job.end for job in jobs) - min(job.start for job in jobs)


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", metavar="DIR", type=Path, required=True, help="a new directory for the runs")
    add("--programs", metavar="DIR", type=Path, default=Path("npb/bin"))
    add("--jobs", metavar="N", type=int, default=40, help="jobs of a run (default: 40)")
    add("--rounds", metavar="N", type=int, default=3)
    add("--ranks", metavar="N", type=int, default=1, help="of each job (default: 1)")
    add("--seed", metavar="N", type=int, default=1)
    add("--emulate", metavar="N:S:C", help="nodes, sockets and cores")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    programs = sorted(path.name for path in arguments.programs.iterdir() if path.suffix == ".x")
    jobs = [chance.choices(programs, k=arguments.jobs) for _ in range(arguments.rounds + 1)]
    try:
        run(arguments.out, "learn", "strip", jobs[0], arguments)
        rounds = [(run(arguments.out, f"compact{number}", "compact", apps, arguments),
                   run(arguments.out, f"strip{number}", "strip", apps, arguments)) for number, apps in enumerate(jobs[1:])]
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    alone: dict[str, list[float]] = {}
    for compact, _ in rounds:
        for job in compact:
            alone.setdefault(job.app, []).append(job.end - job.start)
    slower = [(job.end - job.start) / fmean(alone[job.app]) for _, strip in rounds for job in strip]
    failed = sum(job.status != "completed" for both in rounds for each in both for job in each)
    throughput = fmean(seconds(compact) / seconds(strip) for compact, strip in rounds)
    print(f"strip, learned against exclusive compact: throughput {100 * throughput - 100:+.1f} %, run of a job "
          f"{100 * fmean(slower) - 100:+.1f} % on average, {100 * max(slower) - 100:+.0f} % the worst; {failed} jobs failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
