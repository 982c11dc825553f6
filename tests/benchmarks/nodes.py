#!/usr/bin/env python3
"""What many nodes cost the manager: start, processes, open files, and CPU at rest.

    python tests/benchmarks/nodes.py [--nodes 16 1000 4000] [--seconds 20] [--real] [--quick]

The nodes are stand-ins: a program instead of `srun` that answers for all of them, one line for each as their runners do.
So all that vrm itself does for so many nodes is real, in the manager and in its relay; the network, Slurm and the nodes'
own work are not there. With --real (as root) they are namespaces of this machine, each with its own sshd, runner and agent: an ssh for each. Then one of
them is powered off while jobs run on all, and its job must run again elsewhere, all must complete, and nothing be left.

Prints a table: seconds from the start until all nodes are in use, processes of the run, open files of
manager and relay, their CPU while one job runs and nothing happens (percent of a core), and their memory.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from prettytable import PrettyTable

sys.path[:0] = [str(Path(__file__).parents[1])]

from support.testbed import Testbed  # noqa: E402

ROOT = Path(__file__).parents[2]

SRUN = """\
#!{python}
import json, marshal, os, sys
sys.path[:0] = [{root!r}]
from vrm.live.relay.boot import program
from vrm.live.runner import agent, wire
from vrm.model.forms.hosts import expand
names = [name.encode() for name in expand(sys.argv[sys.argv.index("-w") + 1])]
facts = agent.facts()
def say(line):
    while line:
        line = line[os.write(1, line):]
def answer(name, number, what):
    say(wire.lines(name, number, marshal.dumps(("\\n" + json.dumps(dict(what, vrm=1)) + "\\n").encode(), 2)))
for name in names:
    say(wire.LINE + name + b" \\n")
left = len(program())
while left:
    left -= len(os.read(0, left))
for name in names:
    say(wire.lines(name, 0))
unread = bytearray()
while True:
    data = os.read(0, 1 << 20)
    if not data:
        break
    unread += data
    for name, number, content in wire.take_frames(unread):
        if name == wire.EVERY:
            for each in names:
                say(wire.lines(each, 0))
            continue
        what = marshal.loads(content)
        if isinstance(what, tuple):
            answer(name, number, {{"facts": facts}})
        elif isinstance(what, bytes) and what:
            for line in what.splitlines():
                request = json.loads(line)
                answer(name, number, {{"number": request["number"], "processes": 0, "left": 0, "ranks": {{}}}})
        else:
            say(wire.lines(name, number, marshal.dumps((None, 0, 0.0, 0.0, 0), 2)))
"""


def at_rest(run: subprocess.Popen[bytes], log: Path, begin: float, seconds: float) -> list[str]:
    """What a run uses whose job runs, while nothing happens."""
    while not (log / "state").exists() or b'"running"' not in (log / "state").read_bytes():
        if run.poll() is not None or time.monotonic() > begin + 300:
            sys.exit("the run did not begin")
        time.sleep(0.01)
    started = time.monotonic() - begin
    time.sleep(5)  # what the start has left to do
    manager = psutil.Process(run.pid)
    family = [manager, *manager.children(recursive=True)]
    relay = next(each for each in family if any(word.endswith("relay.py") for word in each.cmdline()))
    watched = (manager, relay)
    used = [[sum(each.cpu_times()[:2]) for each in watched]]
    for _ in range(3):
        time.sleep(seconds / 3)
        used.append([sum(each.cpu_times()[:2]) for each in watched])
    shares = [statistics.median(300 * (later[at] - earlier[at]) / seconds for earlier, later in zip(used, used[1:]))
              for at in range(2)]
    return [f"{started:.1f}", str(len(family)), *(str(each.num_fds()) for each in watched),
            *(f"{share:.2f}" for share in shares), *(f"{each.memory_info().rss / 2**20:.0f}" for each in watched)]


def measure_real(nodes: int, seconds: float, folder: Path) -> list[str]:
    """A row of the table, of namespaces; one is powered off in the end."""
    log = folder / "log"
    (folder / "hosts").write_text(f"n[0-{nodes - 1}] slots=1\n")
    (folder / "wait").write_text(f"#!/bin/sh\nuntil [ -e {folder}/go ]; do sleep 0.5; done\n")
    (folder / "wait").chmod(0o755)
    (folder / "queue").write_text("wait 1 1d 0\n" * nodes + "end\n")
    (folder / "vrm.yaml").write_text(f"Applications: {{Path: {folder}, Queue: {folder}/queue}}\nLauncher: {{Kind: direct}}\n"
                                     f"Hosts: {{File: {folder}/hosts, Timeout: 30}}\nLog: {log}\n")
    with Testbed(nodes, 1, 1, slurm=False, directory=folder / "cluster") as testbed, open(folder / "said", "wb") as said:
        begin = time.monotonic()
        run = testbed.popen("n0", [sys.executable, "-m", "vrm.cli", "-c", folder / "vrm.yaml"], cwd=folder,
                            env={"PYTHONPATH": str(ROOT)}, stdout=said, stderr=said)
        row = at_rest(run, log, begin, seconds)
        testbed.kill(f"n{nodes - 1}")
        while f"node n{nodes - 1} is down".encode() not in (folder / "said").read_bytes():
            if time.monotonic() > begin + 600:
                sys.exit("the node that was powered off is not down")
            time.sleep(0.1)
        (folder / "go").touch()
        code = run.wait(300)
        rows = list(csv.DictReader((log / "jobs.csv").open()))
        left = [line for node in testbed.nodes[:-1] for line in testbed.pids(node).values() if "python" in line or "wait" in line]
        if code or len(rows) != nodes or {each["status"] for each in rows} != {"completed"} or left:
            sys.exit(f"exit status {code}, {len(rows)} of {nodes} jobs, left: {left[:9]}")
    return [f"{nodes} real", *row]


def measure(nodes: int, seconds: float, folder: Path) -> list[str]:
    """A row of the table."""
    srun = folder / "srun"
    srun.write_text(SRUN.format(python=sys.executable, root=str(ROOT)))
    srun.chmod(0o755)
    (folder / "hosts").write_text(f"{os.uname().nodename}\nnode[0-{nodes - 2}]\n")
    (folder / "queue").write_text("sleep 1 1d 0 args=86400\n")
    (folder / "vrm.yaml").write_text(f"Applications: {{Path: /bin, Queue: {folder}/queue}}\nLauncher: {{Kind: direct}}\n"
                                     f"Hosts: {{File: {folder}/hosts, Reach: srun, Timeout: 60}}\nLog: {folder}/log\n")
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    begin = time.monotonic()
    run = subprocess.Popen([sys.executable, "-m", "vrm.cli", "-c", folder / "vrm.yaml"], env=env, cwd=ROOT,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return [str(nodes), *at_rest(run, folder / "log", begin, seconds)]
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 1000, 4000])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--real", action="store_true", help="namespaces of this machine (try 64)")
    parser.add_argument("--quick", action="store_true", help="eight nodes for a moment, for a look")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.seconds = [8], 0.3
    table = PrettyTable(["nodes", "start, s", "processes", "files: manager", "relay", "CPU %: manager", "relay.", "MiB: manager",
                         "relay.."], align="r")
    for nodes in options.nodes:
        with tempfile.TemporaryDirectory(prefix="vrm-nodes-") as folder:
            table.add_row((measure_real if options.real else measure)(nodes, options.seconds, Path(folder)))
    print(table)


if __name__ == "__main__":
    main()
