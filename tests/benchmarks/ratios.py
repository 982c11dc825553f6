"""How many times as long `vrm simulate` takes as counting alone, and as before, in CPU time.

    python tests/benchmarks/ratios.py [--data DIR] [--pairs N] [--only WORD] [--before DIR] [--quick]

Each row runs two commands in turns, N times, and prints the median of the ratios: FCFS and EASY against
`plain_loop.py` on HPC2N and on a drawn trace of 232,536 jobs on 1,152 nodes (with equal start hashes);
machines whose nodes have memory that no job asks for against such without; and the memory that HPC2N's
jobs ask for, on nodes of 2 cores with 4 GiB, against the same nodes without. `--before` names a checkout of an earlier version: conservative
backfilling on HPC2N against that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from simulation import HPC2N, ROOT, compiled, synthetic, system

SIMULATE = [sys.executable, "-m", "vrm.cli", "simulate"]
PLAIN = [sys.executable, "tests/benchmarks/plain_loop.py"]


def cost(command: list[str], root: Path = ROOT) -> tuple[float, dict[str, Any]]:
    """CPU seconds of a command and its children, and what it printed as JSON; run in that checkout."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=root, env={**compiled(), "PYTHONPATH": str(root)},
                          stdout=subprocess.PIPE, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            json.loads(done.stdout.splitlines()[0]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get(
        "VRM_REFERENCE_DATA", ROOT.parent / "shared" / "data")))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--before", type=Path, metavar="DIR", help="a checkout of an earlier version")
    parser.add_argument("--quick", action="store_true", help="small traces, once: does it work?")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wide, mixed = Path(folder) / "wide.swf", Path(folder) / "mixed.swf"
        machines = [Path(folder) / name for name in ("plain.json", "memory.json")]
        system(machines[0])
        system(machines[1], mem=64)
        jobs, pairs = ((500, 500), 1) if args.quick else ((232_536, 20_000), args.pairs)
        synthetic(wide, jobs[0], 1152, 1, load=0.9, seed=3)
        synthetic(mixed, jobs[1], 200, 20)
        rows = [(f"{name} {backfilling}, to the plain loop", [*PLAIN, str(trace), backfilling],
                 [*SIMULATE, str(trace), "--backfill", backfilling, "--json"])
                for name, trace in (("HPC2N", args.data / "swf" / HPC2N), ("1,152 nodes", wide))
                if trace.exists() and (trace is wide or not args.quick) for backfilling in ("none", "easy")]
        rows += [(f"{policy}, with memory to without", *(
            [*SIMULATE, str(mixed), "--policy", policy, "--backfill", "easy", "--json", "--system",
             str(machine)] for machine in machines)) for policy in ("compact", "strip")]
        bare, filled = Path(folder) / "bare.yaml", Path(folder) / "filled.yaml"
        for path, memory in ((bare, ""), (filled, ", Memory: 4GiB")):
            path.write_text(f"Classes: [{{Count: 120, Cores: 2{memory}}}]\n")
        if (args.data / "swf" / HPC2N).exists() and not args.quick:
            rows += [(f"HPC2N {backfilling}, its memory to none", *(
                [*SIMULATE, str(args.data / "swf" / HPC2N), "--policy", "pack", "--backfill",
                 backfilling, "--json", "--machine", str(machine)] for machine in (bare, filled)))
                for backfilling in ("none", "easy")]
        if args.before is not None:
            trace = str(args.data / "swf" / HPC2N if not args.quick else mixed)
            rows.append(("conservative, to before", *(
                [[*SIMULATE, trace, "--backfill", "conservative", "--json"]] * 2)))
        for name, *commands in rows:
            if args.only in name:
                roots = [args.before if name.endswith("to before") else ROOT, ROOT]
                for command, root in zip(commands, roots) if not args.quick else ():
                    cost(command, root)  # compiles what is not compiled yet
                both = [[cost(command, root) for command, root in zip(commands, roots)]
                        for _ in range(pairs)]
                hashes = {found["start_hash"] for pair in both for _, found in pair}
                assert len(hashes) == 1, f"{name}: different schedules"
                ratio = statistics.median(second[0] / first[0] for first, second in both)
                print(f"{name:<40}{ratio:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
