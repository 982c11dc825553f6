"""Complete answers of vrm's commands, recorded as readable files in tests/data/answers.

This module makes the directory. Its run is of the year 2100 and has no manager, so the answers are the same on each machine
except for the parts that `normal` replaces. `python tests/make_answers.py` records them again.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Sequence

from support.run_files import recorded, write
from vrm.cli import main
from vrm.config.schema import load
from vrm.model import Job
from vrm.model.job import ANY, Dependency
from vrm.system.hosts import host_name
from vrm.workload.submission import Submission

ANSWERS = Path(__file__).resolve().parents[1] / "data" / "answers"
THEN = 4102488000.0
"""2100-01-01 12:00 UTC (seconds since the epoch). Without a manager, a run is continued from its last record, which is in the future."""

CONFIG = """Applications: {Path: bin, Queue: queue}
Nodes: 4
Sockets: 1
Cores: 8
Emulate: true
Launcher: {Kind: direct}
Log: logs
Scheduling: {Algorithm: FCFS, Backfilling: easy}
"""

QUEUE = """cg.x 4 600 0
ft.x 64 1h
missing.x 1 60
cg.x 2 nonsense
cg.x 2 10m name=first
ft.x 8 20m after=first
end
"""

WRONG: dict[str, str] = {
    "key.yaml": "Schedulng: {Algorithm: FCFS}\n",
    "case.yaml": "scheduling: {Algorithm: FCFS}\n",
    "place.yaml": "Algorithm: FCFS\n",
    "value.yaml": "Nodes: many\nGrace: -1\nTrust: everybody\n",
    "twice.yaml": "Log: a\nLog: b\n",
    "open.yaml": "Log: [a\n",
    "list.yaml": "- Log\n",
    "tag.yaml": "Log: !path a\n",
    "variable.yaml": "Log: $NOT_SET_ANYWHERE/a\n",
    "algorithm.yaml": "Applications: {Path: bin}\nLauncher: {Kind: direct}\nNodes: 1\nScheduling: {Algorithm: FCSF}\n",
    "policy.yaml": "Applications: {Path: bin}\nLauncher: {Kind: direct}\nNodes: 1\nAllocation: {Policy: stripe}\n",
    "backfill.yaml": "Scheduling: {Backfilling: esay}\n",
    "queues.yaml": "Queues: {a: {Default: true}, b: {Default: true}}\n",
    "classes.yaml": "NodeClasses: [{Hosts: 'n[2-1]'}]\n",
    "memory.yaml": "NodeClasses: [{Hosts: n1, Memory: 64}]\n",
    "package.yaml": "Extensions: {my-site: {SiteTokens: 4}}\n",
    "objective.yaml": "Scheduling: {Objective: best}\n",
    "files.yaml": "Applications: {Path: nowhere, Heatmap: none.csv}\nLauncher: {Kind: direct}\nNodes: 1\n",
    "version.yaml": "Version: 2.0\n"}
"""Configurations with mistakes."""

ERRORS: Sequence[str] = (
    *(f"-c {name} run --here" for name in WRONG), "-c gone.yaml run", "-c bin run --here",
    "quue", "queue --jsn", "submit", "submit cg.x", "submit cg.x many", "submit cg.x 0", "submit cg.x 4 soon",
    "submit cg.x 4 600 --after x", "submit cg.x 4 600 --retries -1", "submit cg.x 4 600 --cores 0",
    "submit cg.x 4 600 --array 5-1", "submit cg.x 4 600 --licences ansys", "submit cg.x 4 600 --nodelist 'n[1'",
    "submit /opt/other.x 4 600", "submit cg.x 4 600 --json", "submit cg.x 4 600 --args a -- b", "cancel", "cancel x",
    "cancel 99", "hold 7-3", "requeue 99", "log 99", "log", "wait 99", "wait failed", "explain 99", "forecast --seconds 3",
    "run --failed --fresh --here", "run --strict --here", "queue extra", "help nothing",
    "simulate", "simulate gone.swf", "simulate empty.swf", "simulate queue", "simulate queue --nodes 0",
    "simulate queue --nodes 2 --sockets x", "simulate queue --cores 4", "simulate queue --nodes 4 --cores 8 --algorithm FCSF",
    "simulate queue --nodes 4 --cores 8 --algorithm 'q/t)'", "simulate queue --nodes 4 --cores 8 --backfill sometimes",
    "simulate queue --nodes 4 --cores 8 --policy stripe", "simulate queue --nodes 4 --cores 8 --node-order best",
    "simulate queue --nodes 4 --cores 8 --estimates oracle", "simulate queue --nodes 4 --cores 8 --backfill 'sd mates=x'",
    "simulate queue --nodes 4 --cores 8 --algorithm policies.py", "simulate queue --nodes 4 --cores 8 --power-cap -1",
    "simulate queue --nodes 4 --cores 8 --min-throughput -1", "simulate queue --machine gone.yaml",
    "simulate queue --nodes 4 --cores 8 --heatmap gone.csv", "compare gone", "report gone", "validate gone",
    "experiment run gone.yaml", "top extra", "slurm nothing", "check --nodes 0", "advise gone.swf", "generate")
"""Command lines with mistakes."""

COMMANDS: dict[str, Sequence[str]] = {
    "explain": ("explain", "explain 0", "explain 2", "explain 3", "explain 4", "explain 5", "explain 2-5 --json"),
    "forecast": ("forecast", "forecast 2", "forecast --json", "forecast 2 --why"),
    "check": ("check", "check --nodes 8", "-c files.yaml check", "-c algorithm.yaml check"),
    "doctor": ("doctor", "-c files.yaml doctor"),
    "errors": ERRORS}
"""The files of answers, with the command lines of each."""


def made(place: Path) -> None:
    """Make the directory `place`: programs, a queue, a run of the year 2100, and files with mistakes."""
    (place / "bin").mkdir(parents=True)
    for name in ("cg.x", "ft.x"):
        (place / "bin" / name).write_text("#!/bin/sh\nsleep 1\n")
        (place / "bin" / name).chmod(0o755)
    for name, text in {"vrm.yaml": CONFIG, "queue": QUEUE, "empty.swf": "; nothing\n", **WRONG}.items():
        (place / name).write_text(text)
    settings = load(place / "vrm.yaml")
    wanted: list[tuple[float, int, float, dict[str, Any]]] = [
        (0.0, 20, 3000.0, {}), (5.0, 8, 1800.0, {}), (60.0, 24, 3600.0, {}), (90.0, 4, 900.0, {}), (120.0, 4, 7200.0, {}),
        (150.0, 2, 600.0, {"after": (Dependency((2,), ANY),)})]
    jobs = [Submission(Job(number, ("cg.x", "ft.x")[number % 2], ranks, walltime, THEN + at), walltime, **more)
            for number, (at, ranks, walltime, more) in enumerate(wanted)]
    moments = recorded(settings, jobs, machine=(4, 1, 8), begun=THEN)
    begun = [record for moment in moments for record in moment]
    last = next(at for at, record in enumerate(begun) if record["event"] == "end")
    write(settings, begun[:last])


@contextlib.contextmanager
def within(place: Path) -> Iterator[None]:
    """Work in this directory, in UTC, without the user's configuration; restore everything afterwards."""
    before, env = os.getcwd(), dict(os.environ)
    os.chdir(place)
    os.environ.update(TZ="UTC", COLUMNS="120", NO_COLOR="1")
    os.environ.pop("VRM_CONFIG", None)
    time.tzset()
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(env)
        time.tzset()


def answer(line: str) -> str:
    """Run vrm; return the command line, its output and errors, and its exit status if it is not 0."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status: Any = main(shlex.split(line))
        except SystemExit as ended:
            status = ended.code
    return f"$ vrm {line}\n{said.getvalue()}" + f"[exit status {status}]\n" * bool(status)


def normal(text: str, place: Path) -> str:
    """Return the answer without the parts that depend on the machine or the time."""
    text = text.replace(str(place), "DIR").replace(host_name(), "HOST")
    for pattern, instead in (
            (r"(?m)^\w+ +(python|topology|node|login shell|mpicc|trial job|allocation) .*$", r"       \1: of this machine"),
            (r"(?m)^usage: .*(\n {10,}.*)*", "usage: ..."),  # the format depends on the Python version
            (r"[\d.]+ GiB", "N GiB"), (r"Python \d[\d.]+", "Python N"), (r"(?m)[ \t]+$", "")):
        text = re.sub(pattern, instead, text)
    return text


def answers(name: str, place: Path) -> str:
    """Return all answers of the file `name`."""
    with within(place):
        return normal("\n".join(map(answer, COMMANDS[name])), place)


def record(place: Path) -> None:
    """Write all files of answers."""
    made(place)
    ANSWERS.mkdir(exist_ok=True)
    for name in COMMANDS:
        (ANSWERS / f"{name}.txt").write_text(answers(name, place), encoding="utf-8")
        print(ANSWERS / f"{name}.txt", file=sys.stderr)
