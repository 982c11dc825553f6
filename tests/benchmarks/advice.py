"""What advice costs: 12 combinations x 50 draws x 200 jobs, on one process and on two.

    python tests/benchmarks/advice.py [--quick]

The jobs are drawn (lublin:256), and 1,000 before them have ended. Wall seconds of the whole comparison,
and CPU seconds of a replay; the goal is 10 s on 2 cores. The advice is the same on any number of
processes, which is checked.
"""

import argparse
import os
import resource
import time

from vrm.ext.advice.advice import advise, combinations
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.frozen import of_jobs
from vrm.model import Cluster
from vrm.model.rules import Rules
from vrm.scheduling.compose import compose
from vrm.simulation.inputs import open_workload


def cpu() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    return sum(used.ru_utime + used.ru_stime for used in (resource.getrusage(resource.RUSAGE_SELF),
                                                          resource.getrusage(resource.RUSAGE_CHILDREN)))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    jobs, before, members = (20, 50, 3) if parser.parse_args().quick else (200, 1000, 50)
    drawn = list(open_workload(f"lublin:256:{jobs + before}"))
    past, cluster, today = History(), Cluster.regular(256, 1, 1), Rules(backfill="easy")
    for one in drawn[:before]:
        past.add(one.job, one.run)
    frozen = of_jobs([one.job.but(submit=0.0) for one in drawn[before:]], compose(today, cluster),
                     cluster, past=past)
    rules = combinations(today)
    print(f"{len(rules)} combinations x {members} draws x {jobs} jobs; {len(os.sched_getaffinity(0))} core(s)")
    print(f"{'processes':<11}{'wall, s':>9}{'CPU, s':>9}{'CPU of a replay, ms':>21}")
    found = []
    for processes in (1, 2):
        begun, used = time.perf_counter(), cpu()
        found.append(advise(frozen, rules, members=members, processes=processes))
        seconds, used = time.perf_counter() - begun, cpu() - used
        print(f"{processes:<11}{seconds:>9.1f}{used:>9.1f}{1e3 * used / members / len(rules):>21.1f}")
    assert found[0] == found[1], "other advice on two processes"


if __name__ == "__main__":
    main()
