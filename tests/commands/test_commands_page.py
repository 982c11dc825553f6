"""The page of all commands: each is on it, and each example runs, in the order of the page."""

from __future__ import annotations
from support import warm

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from conftest import Site, wait_until
from vrm import cli
from vrm.commands.parsing import every

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "commands.md"


def examples() -> list[tuple[str, str]]:
    """Command and example of each row of the table."""
    rows = re.findall(r"^\| (?:`([^`]+)`)? ?\| .* \| `(vrm [^`]+)` \|$", PAGE.read_text(), re.M)
    return [(name, typed) for name, typed in rows]


def test_every_command_is_on_the_page() -> None:
    known = {parser.prog.partition(" ")[2] for parser, acts in every(cli.parser()) if acts}
    assert {name for name, _ in examples() if name} == known
    for name, typed in examples():
        assert typed.startswith(f"vrm {name}")


def slurm_seconds(site: Site) -> None:
    """Let a site of two nodes with a job on one of them be asked for, and write a queue for it."""
    (site.root / "my.queue").write_text("first 1 60 0\n")
    (site.root / "slurm").mkdir()
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 60))
    for program, said in (("squeue", f"1|RUNNING|p|ann|9|1|2|1:00:00|{began}|{began}|n0|None|(null)|(null)|NO|a"),
                          ("sinfo", "n0|p*|2|alloc|1-00:00:00\nn1|p*|2|idle|1-00:00:00"), ("scontrol", ""),
                          ("sbatch", "7")):
        path = site.root / "slurm" / program
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
        path.chmod(0o755)
    site.env["PATH"] = f"{site.root}/slurm{os.pathsep}{site.env['PATH']}"


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpicc"), reason="needs mpicc for the benchmarks")
def test_every_example_runs_as_it_is_typed(site: Site) -> None:
    """One session; a manager runs from `submit` to `stop`."""
    site.config_file.unlink()
    (site.root / "plan.yaml").write_text("Mode: simulated\nQueues: ['lublin:16:20']\n"
                                         "Scenarios: [{Scheduling.Algorithm: SJF}]\n")
    site.program("first", "echo one\n")
    site.program("wait", "exec sleep 600\n")

    def vrm(*words: str) -> subprocess.CompletedProcess[str]:
        return warm.run(words, cwd=site.root, env=site.env, timeout=300)

    def of(name: str, state: str) -> list[int]:
        """The ids of jobs of this name that have this state."""
        return [each["id"] for each in json.loads(vrm("queue", "--json").stdout)["jobs"]
                if (each["name"], each["state"]) == (name, state)]

    lender = borrower = -1
    for name, typed in examples():
        if typed == "vrm lend 3 --to 7":  # two jobs for it, on all cores of the machine
            cores = str(len(os.sched_getaffinity(0)))
            vrm("submit", "wait", "1", "600", "--cores", cores, "--malleable", "--name", "lender")
            lender, = wait_until(lambda: of("lender", "running"), "the lender runs")
            vrm("submit", "wait", "1", "60", "--name", "borrower")
            borrower, = wait_until(lambda: of("borrower", "queued"), "the borrower waits")
            typed = f"vrm lend {lender} --to {borrower}"
        elif typed == "vrm lend 3 --back":
            wait_until(lambda: of("borrower", "running"), "the borrower runs on what was lent")
            vrm("cancel", str(borrower))
            wait_until(lambda: not of("borrower", "running"), "it has ended")
            vrm("lend", str(lender), "--to", "node")
            typed = f"vrm lend {lender} --back"
        elif lender >= 0:
            vrm("cancel", str(lender))
            lender = -1
        if name == "plan":
            slurm_seconds(site)
        if name == "submit":
            site.start("--wait")
            wait_until(lambda: "nothing to do; waiting for lines" in site.said(site.started[0]),
                       "the manager has done its queue")
        done = vrm(*shlex.split(typed)[1:])
        assert done.returncode == 0, f"{typed}\n{done.stdout}{done.stderr}"
        if name == "stop":
            site.finish(site.started[0])
        if name == "npb build":
            (site.root / "queue").write_text("ep.S.x 1 60 0\nfirst 1 60 0\n")
