"""Schedulers, node orders and estimates on a machine with GPUs and MICs: five real days of Eurora, and months
of a generated year of it.

    python studies/heterogeneous/run.py --out DIR [--real FILE] [--months 2014-05+,2014-06,...]
                                        [--schedulers LJF,SJF,EASY,PRB,CP] [--orders weighted,...]
                                        [--limit SECONDS]

{LJF, SJF, EASY, PRB, CP} x six node orders x {requested, predicted, actual} run times. FILE is a trace of the
five days: PA-HPC-SIM's, or a CSV (docs/reference/workloads.md). A month has the one case of `cells.MONTHLY`, with a `+`
the whole grid. What is there is not run again; `--limit` ends the study before a run that would begin
later. In the end, and with `--show` at once, tables (tables.md), claims (claims.md) and pictures are written
of what is there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import List

import cells
import show


def main() -> int:
    """Run what is missing, then show what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--out", required=True, type=Path, help="where everything goes")
    add("--real", help="the five days: a trace of PA-HPC-SIM, or a CSV")
    add("--months", default="", help="months of the generated year, as 2014-06 or 2014-06+")
    add("--schedulers", default=",".join(cells.SCHEDULERS), help="some of LJF,SJF,EASY,PRB,CP")
    add("--orders", default=",".join(cells.ORDERS), help="some of the node orders")
    add("--limit", type=float, default=float("inf"), help="seconds after which no run begins")
    add("--show", action="store_true", help="only show what is there")
    arguments = parser.parse_args()
    begun = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    schedulers = arguments.schedulers.split(",")
    unknown = [name for name in schedulers if name not in cells.SCHEDULERS]
    if unknown:
        parser.error(f"there is no scheduler {unknown[0]}; there are {', '.join(cells.SCHEDULERS)}")
    workloads: List[str] = [cells.REAL] * bool(arguments.real)
    workloads += [month for month in arguments.months.split(",") if month]
    orders = arguments.orders.split(",")
    planned = [] if arguments.show else [
        cell for cell in cells.cells(workloads, schedulers) if cell.order in orders]
    left = [cell for cell in planned if not (arguments.out / f"{cell.name}.npz").exists()]
    print(f"{len(planned)} runs, {len(left)} to do", flush=True)
    for number, cell in enumerate(left, 1):
        if time.monotonic() - begun > arguments.limit:
            print(f"--limit: {len(left) - number + 1} runs are left for the next time")
            break
        found = cells.run(cell, arguments.out, arguments.real)
        print(f"[{number}/{len(left)}] {cell.name}: mean wait {found['wait']:.0f} s, mean slowdown "
              f"{found['slowdown']:.1f}, {found['cpu']:.0f} s", flush=True)
    show.show(arguments.out, arguments.real)
    return 0


if __name__ == "__main__":
    sys.exit(main())
