"""What a copy of a run costs, against `copy.deepcopy` of it in the same run.

    python tests/benchmarks/state.py [--quick]

A forecast copies the state of the manager: here 10,000 jobs that wait and 1,000 that run, a tenth of
them with a dependency.
"""

import argparse
import copy
import statistics
import time

from vrm.model import Cluster, Dependency, Job
from vrm.model.job import PLAIN, Details
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy


def run_of(waiting: int, running: int, backfilling: str) -> Run:
    """A run with so many jobs that wait and run."""
    cluster = Cluster.regular(running, 1, 2)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfilling),
                          make_policy("compact", cluster, None))
    run = Run(State(scheduler.new_queue(), cluster), scheduler)
    for job_id in range(running + waiting):
        job = Job(job_id, f"app{job_id % 7}.x", 2, 100.0 + job_id % 50, 0.0)
        run.state.submit([job], Details((Dependency.on(job_id - 1),)) if job_id > running
                         and job_id % 10 == 0 else PLAIN)
        if job_id == running - 1:
            run.step(0.0)
    run.step(0.0)
    return run


def seconds(do: object) -> float:
    """CPU seconds of a call."""
    begun = time.process_time()
    do()  # type: ignore[operator]
    return time.process_time() - begun


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    waiting, running, pairs = (200, 20, 1) if parser.parse_args().quick else (10_000, 1_000, 5)
    print(f"{waiting} jobs wait, {running} run; CPU time of a copy, medians of {pairs}")
    print(f"{'backfilling':14} {'copy, ms':>9} {'deepcopy, ms':>13} {'ratio':>7}")
    for backfilling in ("none", "easy", "conservative"):
        run = run_of(waiting, running, backfilling)
        assert len(run.state.running) == running
        ours, deep = zip(*((seconds(run.copy), seconds(lambda: copy.deepcopy(run.state)))
                           for _ in range(pairs)))
        own, other = statistics.median(ours), statistics.median(deep)
        print(f"{backfilling:14} {1e3 * own:9.1f} {1e3 * other:13.1f} {own / other:7.3f}")


if __name__ == "__main__":
    main()
