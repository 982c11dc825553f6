"""How fast the simulator is: whole processes, with reading the trace and writing jobs.csv.

    python tests/benchmarks/simulation.py [--data DIR] [--only WORD] [--accasim PYTHON] [--quick]

DIR holds `swf/` with the published traces (default: $VRM_REFERENCE_DATA, else `../shared/data`
beside the checkout); rows whose trace is missing are left out. Synthetic traces are made here. The
last columns compare with the floor that the project sets itself (above 1: better). With
--accasim, a Python that has AccaSim 1.1.3, the same trace runs there, too. The last line is what
writing jobs.csv costs. --quick runs small synthetic traces only, to see that all of it works.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HPC2N, KTH = "HPC2N-2002-2.1-cln.swf.gz", "KTH-SP2-1996-2.1-cln.swf.gz"

# Runs `vrm simulate` as the program does and tells time and memory of its process, together with
# that of the process which writes its lines.
CHILD = """
import json, resource, sys
from vrm.cli import parser
args = parser().parse_all(["simulate", *sys.argv[1:]])
code = args.act(args)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"peak": sum(one.ru_maxrss for one in used) / 1024,
                  "cpu": sum(one.ru_utime + one.ru_stime for one in used)}))
sys.exit(code)
"""

ACCASIM = """
import collections, collections.abc, json, resource, sys
collections.Mapping = collections.abc.Mapping
from accasim.base.simulator_class import Simulator
from accasim.base.scheduler_class import FirstInFirstOut, ShortestJobFirst, EASYBackfilling
from accasim.base.allocator_class import FirstFit
kind = {"fcfs": FirstInFirstOut, "sjf": ShortestJobFirst, "easy": EASYBackfilling}[sys.argv[3]]
Simulator(sys.argv[1], sys.argv[2], kind(FirstFit()), RESULTS_FOLDER_PATH=sys.argv[4]
          ).start_simulation()
print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


class Case(NamedTuple):
    """A run: a trace, the command's options, and the floor in seconds (None: none was set)."""

    name: str
    trace: str
    options: list[str]
    floor: float | None
    aim: float | None = None


def synthetic(path: Path, jobs: int, nodes: int, cores: int, load: float = 0.85,
              smallest: int = 1, largest: int = 512, seed: int = 1) -> None:
    """A trace: log-normal run times (median 1800 s, sigma 1.5), sizes 2^i with weight 0.75^i,
    Poisson arrivals, estimates 1 to 5 times the run time; the offered load is exact."""
    draw = random.Random(seed)
    sizes = []
    while smallest <= largest:
        sizes.append(smallest)
        smallest *= 2
    weights = [0.75 ** index for index in range(len(sizes))]
    rows, gaps, area = [], [], 0.0
    for _ in range(jobs):
        size = draw.choices(sizes, weights)[0]
        run = max(1, min(86400, round(draw.lognormvariate(math.log(1800), 1.5))))
        rows.append((size, run, math.ceil(run * draw.uniform(1, 5))))
        gaps.append(draw.expovariate(1))
        area += size * run
    scale = area / (load * nodes * cores) / sum(gaps)
    at = 0.0
    with open(path, "w", encoding="ascii") as out:
        out.write(f"; Version: 2.2\n; MaxNodes: {nodes}\n; MaxProcs: {nodes * cores}\n")
        for number, ((size, run, estimate), gap) in enumerate(zip(rows, gaps), 1):
            at += gap * scale
            out.write(f"{number} {int(at)} -1 {run} {size} -1 -1 {size} {estimate} -1 1 "
                      f"{number % 64} -1 {number % 4} -1 -1 -1 -1\n")


def speed_table(path: Path) -> None:
    """Speed-ups of four applications beside each other."""
    draw = random.Random(2)
    apps = ["app0", "app1", "app2", "app3"]
    path.write_text(f"{' '.join(apps)} spare\n" + "".join(
        f"{app} {' '.join(f'{draw.uniform(0.8, 1.4):.2f}' for _ in range(5))}\n" for app in apps))


def system(path: Path, **amounts: int) -> None:
    """A machine of 200 nodes of 2 x 10 cores, with amounts of resources on each."""
    path.write_text(json.dumps({"nodes": [{"count": 200, "sockets": 2, "cores": 10, **amounts}]}))


def compiled() -> dict[str, str]:
    """An environment in which Python keeps what it has compiled, as where vrm is installed: the start of a
    program that is compiled each time would be half of a short run."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure(code: str, words: list[str]) -> dict[str, Any]:
    """Seconds, peak memory (MB) and what the program printed, of one whole process."""
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True,
                          text=True, check=False, env=compiled())
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()[-500:]}")
    lines = done.stdout.splitlines()
    return {**json.loads(lines[0]), **json.loads(lines[-1]), "seconds": seconds}


def cases() -> list[Case]:
    """The table's rows."""
    pack = ["--nodes", "128", "--sockets", "1", "--cores", "16", "--policy", "pack"]
    whole = ["--nodes", "5040", "--sockets", "1", "--cores", "16"]
    found = [
        Case("HPC2N FCFS", HPC2N, [], 202876 / 40000),
        Case("HPC2N SJF", HPC2N, ["--algorithm", "sjf"], 202876 / 40000),
        Case("HPC2N EASY", HPC2N, ["--backfill", "easy"], 202876 / 20000, 202876 / 55000),
        Case("HPC2N WFP3+EASY", HPC2N, ["--algorithm", "wfp3", "--backfill", "easy"],
             202876 / 8000),
        Case("KTH conservative", KTH, ["--backfill", "conservative"], 10, 3),
        Case("synth100k FCFS", "synth100k", pack, 5),
        Case("synth100k SJF", "synth100k", [*pack, "--algorithm", "sjf"], 5),
        Case("synth100k EASY", "synth100k", [*pack, "--backfill", "easy"], 12),
        Case("deep queue FCFS", "deep200k", pack, 30),
        Case("5040 nodes EASY", "wide200k", [*whole, "--backfill", "easy"], 60),
        Case("strip, speeds", "corun10k", ["--nodes", "200", "--sockets", "2", "--cores", "10",
                                           "--policy", "strip", "--backfill", "easy",
                                           "--heatmap", "{speeds}"], 30),
        Case("HPC2N conservative", HPC2N, ["--backfill", "conservative"], 600, 120),
    ]
    for policy in ("compact", "strip"):  # a resource that nobody asks for: to be within 5 %
        for system in ("plain", "memory"):
            found.append(Case(f"{policy}, {system}", "corun10k", [
                "--system", f"{{{system}}}", "--policy", policy, "--backfill", "easy"], None))
    for nodes in (64, 512, 4096):
        found.append(Case(f"EASY, {nodes} nodes", f"nodes{nodes}",
                          ["--backfill", "easy", "--nodes", str(nodes)], None))
    for load in (0.8, 1.2, 1.6):
        found.append(Case(f"EASY, load {load}", f"load{load}",
                          ["--backfill", "easy", "--nodes", "512"], None))
    return found


def make_trace(name: str, path: Path, most: int) -> None:
    """Make a synthetic trace of that name, of at most so many jobs."""
    if name == "synth100k":
        synthetic(path, min(most, 100_000), 128, 16)
    elif name == "deep200k":
        synthetic(path, min(most, 200_000), 128, 16, load=1.5)
    elif name == "wide200k":
        synthetic(path, min(most, 200_000), 5040, 16, smallest=16, largest=8192)
    elif name == "corun10k":
        synthetic(path, min(most, 10_000), 200, 10, smallest=1, largest=512)
    elif name.startswith("nodes"):
        nodes = int(name[5:])
        synthetic(path, min(most, 20_000), nodes, 1, largest=max(1, nodes // 4))
    else:
        synthetic(path, min(most, 20_000), 512, 1, load=float(name[4:]), largest=128)


def writing(folder: Path, most: int, rounds: int) -> None:
    """Print how many times longer a run on 8,192 nodes takes with --out than without."""
    trace = folder / "nodes8192.swf"
    make_trace("nodes8192", trace, most)
    words = [str(trace), "--json", "--backfill", "easy", "--nodes", "8192"]
    found = []
    if rounds > 1:
        measure(CHILD, words)  # compiles what is not compiled yet
    for _ in range(rounds):
        without, out = measure(CHILD, words), measure(CHILD, [*words, "--out", f"{folder}/out"])
        found.append((out["seconds"] / without["seconds"], out["cpu"] / without["cpu"]))
    seconds, cpu = map(statistics.median, zip(*found))
    print(f"8192 nodes, EASY: with --out {seconds:.2f} times the seconds and {cpu:.2f} times the "
          f"CPU seconds of without (medians of {rounds} pairs)")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get(
        "VRM_REFERENCE_DATA", ROOT.parent / "shared" / "data")))
    parser.add_argument("--only", default="", help="rows whose name contains this (`writing`: the last line)")
    parser.add_argument("--accasim", metavar="PYTHON", help="a Python that has AccaSim 1.1.3")
    parser.add_argument("--quick", action="store_true", help="small synthetic traces only")
    args = parser.parse_args()
    most = 500 if args.quick else 1_000_000
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    print(f"{'run':<20}{'jobs':>8}{'s':>8}{'CPU s':>8}{'jobs/s':>9}{'us/job':>8}{'MB':>6}{'queue':>8}"
          f"{'floor s':>9}{'ratio':>7}{'to aim':>7}")
    with tempfile.TemporaryDirectory() as folder:
        speeds = Path(folder) / "speeds"
        speed_table(speeds)
        named = {"{speeds}": speeds, "{plain}": Path(folder) / "plain.json",
                 "{memory}": Path(folder) / "memory.json"}
        system(named["{plain}"])
        system(named["{memory}"], mem=64)
        for case in cases():
            if args.only.lower() not in case.name.lower():
                continue
            trace = args.data / "swf" / case.trace
            if case.trace.endswith(".gz"):
                if args.quick or not trace.exists():
                    continue
            else:
                trace = Path(folder) / f"{case.trace}.swf"
                if not trace.exists():
                    make_trace(case.trace, trace, most)
            options = [str(named.get(option, option)) for option in case.options]
            found = measure(CHILD, [str(trace), "--json", "--out", f"{folder}/out", *options])
            seconds, jobs = found["seconds"], found["jobs"]
            print(f"{case.name:<20}{jobs:>8}{seconds:>8.1f}{found['cpu']:>8.1f}{jobs / seconds:>9.0f}"
                  f"{seconds / jobs * 1e6:>8.1f}{found['peak']:>6.0f}"
                  f"{found['queue_length']['maximum']:>8.0f}"
                  + (f"{case.floor:>9.1f}{case.floor / seconds:>7.2f}" if case.floor else
                     f"{'':>16}")
                  + (f"{case.aim / seconds:>7.2f}" if case.aim else ""), flush=True)
            if args.accasim and case.trace == "synth100k":
                compare(args.accasim, trace, Path(folder), case.name, seconds)
        if args.only.lower() in "writing":
            writing(Path(folder), most, 1 if args.quick else 5)


def compare(python: str, trace: Path, folder: Path, name: str, ours: float) -> None:
    """Run the same trace in AccaSim and print how many times longer it takes."""
    system = folder / "system.json"
    system.write_text(json.dumps({"system_name": "s", "groups": {"g0": {"core": 16}},
                                  "resources": {"g0": 128}}))
    kind = name.split()[-1].lower()
    results = folder / "accasim"
    results.mkdir(exist_ok=True)
    begun = time.perf_counter()
    done = subprocess.run([python, "-c", ACCASIM, str(trace), str(system), kind, f"{results}/"],
                          cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        print(f"  AccaSim did not run: {done.stderr.strip().splitlines()[-1:]}")
        return
    peak = json.loads(done.stdout.splitlines()[-1])["peak"]
    print(f"  AccaSim 1.1.3{'':<15}{seconds:>8.1f}{'':>25}{peak:>6.0f}  {seconds / ours:.1f} times as "
          "long")


if __name__ == "__main__":
    main()
