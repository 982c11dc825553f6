#!/usr/bin/env python3
"""What the live manager costs, against a bare shell loop (and its peers) in the same run.

python tests/benchmarks/manager.py [--jobs 60] [--tasks 2000] [--rounds 3] [--peers PYTHON] [--quick]
python tests/benchmarks/manager.py --forecasts [--rounds 3]

--peers names a Python in which hyperqueue and qcg-pilotjob are installed. Medians of the rounds;
the contestants take turns within a round, so that drift of the machine hits them alike.
Their files are kept until the end, below $TMPDIR: before it makes a file, ext4 without a journal
looks at each one that was deleted in the last minutes, which the next contestant would pay for.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import yaml
from prettytable import PrettyTable

from vrm.model import Cluster, Heatmap, Job
from vrm.run.journal import files as journal
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy

importlib.import_module("numpy")  # scheduling loads it at the first long queue; not to be timed here

ROOT_OPT_IN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def environment() -> dict[str, str]:
    """The environment of the runs; root has opted in."""
    return {**os.environ, **(ROOT_OPT_IN if os.geteuid() == 0 else {})}


def configure(folder: Path, lines: list[str], **keys: Any) -> Path:
    """A site of one core with `true` as its program, a queue of these lines, and what `keys` say
    over it."""
    (folder / "bin").mkdir()
    (folder / "bin" / "true").write_bytes(Path("/bin/true").read_bytes())
    (folder / "bin" / "true").chmod(0o755)
    (folder / "queue").write_text("".join(f"{line}\n" for line in lines))
    config = folder / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Nodes": 1, "Sockets": 1, "Cores": 1, "Log": str(folder / "log"), **keys,
        "Applications": {"Path": str(folder / "bin"), "Queue": str(folder / "queue"),
                         **keys.get("Applications", {})}}))
    return config


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def new_folder() -> Path:
    """An empty folder that is removed at the end of the program."""
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="vrm-bench-"))
    return Path(_FOLDERS[-1].name)


def run_vrm(jobs: int, line: str = "true 1 60 0", **keys: Any) -> tuple[float, float, list[float]]:
    """Seconds from the first start to the last end, of the whole command, and the seconds
    between each job's end and the next one's start."""
    folder = new_folder()
    config = configure(folder, [line] * jobs, **keys)
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "vrm.cli", "-c", str(config), "--once"],
                   env=environment(), stdout=subprocess.DEVNULL, check=True)
    whole = time.monotonic() - begin
    spans = sorted(tuple(r["ran"]) for r in journal.read(folder / "log" / "journal")
                   if r["event"] == "end")
    gaps = [later[0] - earlier[1] for earlier, later in zip(spans, spans[1:])]
    return spans[-1][1] - spans[0][0], whole, gaps


def launched(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command and environment with which the manager starts one of these jobs."""
    from vrm.config.schema import load
    from vrm.live.site.setup import prepare
    config = configure(folder, [])
    os.environ.update(environment())
    site = prepare(load(config), watch=False)
    placement = site.scheduler.policy.place(Job(0, "true", 1, 60.0), site.cluster)
    launch = site.launcher.command(0, folder / "bin" / "true",
                                   list(placement.slots(site.cluster.nodes)),
                                   site.cluster.nodes, folder / "true.0.rf")
    for path, text in launch.files.items():
        Path(path).write_text(text)
    return [os.fspath(word) for word in launch.argv], dict(launch.env)


def run_loop(argv: list[str], env: dict[str, str], jobs: int) -> float:
    """Seconds of a bare shell loop over the same mpirun."""
    script = (f"i=0; while [ $i -lt {jobs} ]; do {shlex.join(argv)} > /dev/null 2>&1; "
              "i=$((i+1)); done")
    begin = time.monotonic()
    subprocess.run(["sh", "-c", script], env=env, check=True)
    return time.monotonic() - begin


HYPERQUEUE = """
import json, sys, time
from hyperqueue import LocalCluster, Job
from hyperqueue.cluster import WorkerConfig
argv, env, jobs = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=int(sys.argv[4])))
    client = cluster.client()
    def many(n):
        job = Job()
        for _ in range(n):
            job.program(argv, env=env)
        begin = time.monotonic()
        client.wait_for_jobs([client.submit(job)])
        return time.monotonic() - begin
    many(1)
    print(many(jobs))
"""

QCG = """
import json, os, sys, tempfile, time
from qcg.pilotjob.api.manager import LocalManager
from qcg.pilotjob.api.job import Jobs
argv, env, jobs, kept = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[5] == "kept"
def many(n):
    work = Jobs()
    for i in range(n):
        name = 'j%d_%d' % (n, i)
        files = (name + '.o', name + '.e') if kept else (os.devnull,) * 2
        work.add(exec=argv[0], args=argv[1:], numCores=1, stdout=files[0], stderr=files[1], name=name)
    begin = time.monotonic()
    manager.wait4(manager.submit(work))
    return time.monotonic() - begin
if __name__ == "__main__":  # it starts further processes from this file
    manager = LocalManager(['--wd', tempfile.mkdtemp(dir='.'), '--nodes', sys.argv[4]])
    many(1)
    print(many(jobs))
    manager.finish()
"""


def run_peer(python: str, code: str, argv: list[str], env: dict[str, str], jobs: int,
             cores: int = 1, outputs: str = "dropped") -> float | None:
    """Seconds a peer takes for the same commands on so many cores; None when it cannot be run. HyperQueue
    keeps the outputs of each in two files, as vrm does; QCG-PilotJob where they are to be `kept`."""
    changed = {k: v for k, v in env.items() if os.environ.get(k) != v or k in ROOT_OPT_IN}
    folder = new_folder()
    (folder / "peer.py").write_text(code)
    done = subprocess.run([python, "peer.py", json.dumps(argv), json.dumps(changed), str(jobs),
                           str(cores), outputs], env=env, cwd=folder, capture_output=True,
                          text=True, check=False, timeout=300)
    if done.returncode:
        print(f"(a peer failed: {done.stderr.strip().splitlines()[-1:]})", file=sys.stderr)
        return None
    return float(done.stdout.split()[-1])


def overhead(jobs: int, rounds: int, peers: str | None) -> None:
    """The table of back-to-back jobs."""
    contestants: dict[str, list[float]] = {}
    gaps: list[float] = []
    with tempfile.TemporaryDirectory(prefix="vrm-bench-") as name:
        argv, env = launched(Path(name))
        for _ in range(rounds):
            contestants.setdefault("shell loop", []).append(run_loop(argv, env, jobs))
            inside, whole, between = run_vrm(jobs)
            contestants.setdefault("vrm, first start to last end", []).append(inside)
            contestants.setdefault("vrm, whole command", []).append(whole)
            gaps += between
            if peers:
                for title, code in (("HyperQueue", HYPERQUEUE), ("QCG-PilotJob", QCG)):
                    took = run_peer(peers, code, argv, env, jobs)
                    if took is not None:
                        contestants.setdefault(title, []).append(took)
    table = PrettyTable(["", "median s", "ratio to loop"])
    table.align[""] = "l"
    base = statistics.median(contestants["shell loop"])
    for title, times in contestants.items():
        median = statistics.median(times)
        table.add_row([title, f"{median:.2f}", f"{median / base:.3f}"])
    print(f"{jobs} jobs of one rank of `true`, back to back on one core, {rounds} rounds")
    print(table)
    ordered = sorted(1000 * gap for gap in gaps)
    print("from the end of an mpirun to the start of the next: median "
          f"{statistics.median(ordered):.2f} ms, 95th percentile "
          f"{ordered[int(0.95 * len(ordered))]:.2f} ms\n")


def ensemble(jobs: int, rounds: int, peers: str | None) -> None:
    """The table of serial programs without MPI, as many at once as there are cores."""
    cores = min(2, len(os.sched_getaffinity(0)))
    contestants: dict[str, list[float]] = {}
    for _ in range(rounds):
        contestants.setdefault("shell loop, one at a time", []).append(
            run_loop(["/bin/true"], dict(os.environ), jobs))
        for title, archive in (("", False), (", outputs archived", True)):
            inside, whole, _ = run_vrm(jobs, Cores=cores, Launcher={"Kind": "direct"}, Output={"Archive": archive},
                                       Allocation={"Policy": "pack"})
            contestants.setdefault(f"vrm, first start to last end{title}", []).append(inside)
            contestants.setdefault(f"vrm, whole command{title}", []).append(whole)
        if peers:
            for title, code, outputs in (("HyperQueue", HYPERQUEUE, "kept"), ("QCG-PilotJob", QCG, "kept"),
                                         ("QCG-PilotJob, outputs dropped", QCG, "dropped")):
                took = run_peer(peers, code, ["/bin/true"], dict(os.environ), jobs, cores, outputs)
                if took is not None:
                    contestants.setdefault(title, []).append(took)
    table = PrettyTable(["", "median s", "jobs a second", "ratio to vrm"])
    table.align[""] = "l"
    base = statistics.median(contestants["vrm, first start to last end"])
    for title, times in contestants.items():
        median = statistics.median(times)
        table.add_row([title, f"{median:.2f}", f"{jobs / median:.0f}", f"{median / base:.2f}"])
    print(f"{jobs} jobs of `true` without MPI (Kind: direct), {cores} at once, each bound to its "
          f"core, {rounds} rounds")
    print(table, "\n", sep="")


def step(jobs: int = 10000, nodes: int = 1000) -> None:
    """One scheduling step with a long queue, on a full cluster of which a job has just ended."""
    apps = ["bt", "cg", "ep", "ft", "is", "lu", "mg", "sp"]
    table = PrettyTable(["policy", "algorithm", "first step ms", "later steps, median ms"])
    for policy in ("compact", "strip"):
        for algorithm in ("FCFS", "WFP3", "(q / t)**3 * n"):
            draw = random.Random(1)
            heatmap = Heatmap({a: {b: float(draw.randint(1, 8)) for b in apps} for a in apps})
            cluster = Cluster.regular(nodes, 2, 32)
            scheduler = Scheduler(make_ordering(algorithm), make_backfilling("easy"),
                                  make_policy(policy, cluster, heatmap))
            queue = scheduler.new_queue()

            def job(number: int, now: float) -> Job:
                return Job(number, draw.choice(apps) + ".B.x", 2 ** draw.randint(1, 14),
                           draw.uniform(10, 5000), now)

            for number in range(jobs):
                queue.add(job(number, draw.uniform(-1000, 0)))
            times, now = [], 0.0
            for number in range(jobs, jobs + 51):
                begin = time.perf_counter()
                scheduler.step(now, queue, cluster)
                times.append(1000 * (time.perf_counter() - begin))
                now, first = cluster.ends[0]
                cluster.release(first)
                queue.add(job(number, now))
            table.add_row([policy, algorithm, f"{times[0]:.1f}",
                           f"{statistics.median(times[1:]):.1f}"])
    print(f"one scheduling step, {jobs} queued jobs, {nodes} nodes of 2x32 cores, EASY")
    print(table, "\n", sep="")


def forecasts(jobs: int, rounds: int) -> None:
    """How long a job's end takes to let the next one start, with and without the process that
    forecasts all that wait: turn about, each behind a queue of so many jobs."""
    gaps: dict[str, list[list[float]]] = {"on": [], "off": []}
    for number in range(rounds):
        for switch in (("on", "off"), ("off", "on"))[number % 2]:
            _, _, between = run_vrm(jobs, "nap 1 60 0 0 args=0.05", Forecast=switch == "on",
                                    Applications={"Programs": {"nap": "/bin/sleep"}},
                                    Launcher={"Kind": "direct"})
            gaps[switch].append(sorted(1000 * gap for gap in between[jobs // 4:]))
    table = PrettyTable(["Forecast", "median ms", "95th percentile", "median of each run"])
    for switch, runs in gaps.items():
        middle, high = ([run[int(share * len(run))] for run in runs] for share in (0.5, 0.95))
        table.add_row([switch, f"{statistics.median(middle):.2f}", f"{statistics.median(high):.2f}",
                       " ".join(f"{each:.1f}" for each in middle)])
    print(f"from the end of a job to the start of the next, {jobs} jobs of `sleep 0.05` on one core "
          f"without MPI, {rounds} rounds, after the first quarter of the jobs; medians of the rounds")
    print(table, "\n", sep="")


def idle(seconds: float = 20.0) -> None:
    """Share of a core that a manager with nothing to do uses."""
    with tempfile.TemporaryDirectory(prefix="vrm-bench-") as name:
        config = configure(Path(name), [])
        manager = subprocess.Popen([sys.executable, "-m", "vrm.cli", "-c", str(config), "--wait"],
                                   env=environment(), stdout=subprocess.DEVNULL)
        try:
            while not (Path(name) / "log" / "state").exists():
                time.sleep(0.05)
            process = psutil.Process(manager.pid)

            def family_used() -> float:  # with the children that have ended: some do their work soon after the start
                return sum(sum(p.cpu_times()[:4]) for p in family)

            family = [process, *process.children()]
            before = family_used()
            time.sleep(seconds)
            family = [p for p in family if p.is_running()]
            used = family_used() - before
            memory = sum(p.memory_info().rss for p in family) / 2**20
        finally:
            manager.terminate()
            manager.wait()
    print(f"an idle manager uses {100 * used / seconds:.2f} % of a core and {memory:.0f} MiB "
          f"(with its spawner; measured for {seconds:g} s)")


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=textwrap.dedent(__doc__ or ""),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=2000, help="jobs without MPI")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--quick", action="store_true", help="few of everything, for a look")
    parser.add_argument("--forecasts", action="store_true",
                        help="only this: what the process that forecasts costs the manager")
    arguments = parser.parse_args()
    if arguments.forecasts:
        forecasts(*((20, 1) if arguments.quick else (200, 2 * arguments.rounds)))
        while _FOLDERS:
            _FOLDERS.pop().cleanup()
        return
    if arguments.quick:
        arguments.jobs, arguments.tasks, arguments.rounds = 3, 20, 1
    ensemble(arguments.tasks, arguments.rounds, arguments.peers)
    overhead(arguments.jobs, arguments.rounds, arguments.peers)
    if arguments.quick:
        step(100)
        idle(1.0)
    else:
        step()
        idle()
    while _FOLDERS:
        _FOLDERS.pop().cleanup()


if __name__ == "__main__":
    main()
