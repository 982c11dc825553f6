"""A pool of one-core jobs under a batch system that is made up, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from conftest import Site
from vrm.results.jobs import read_jobs

ROOT = Path(__file__).resolve().parents[2]

FAKES = {
    "sbatch": 'n=$(ls "$FAKE" | grep -c job); for last; do :; done; cp "$last" "$FAKE/job.$n"; [ -e "$FAKE/refuse" ] && { cat "$FAKE/refuse" >&2; exit 1; }; '
              'echo "$((100 + n))"',
    "scontrol": 'cat "$FAKE/state.$4" 2>/dev/null || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }',
    "scancel": 'echo "$1" >>"$FAKE/cancelled"',
    "squeue": '[ -e "$FAKE/squeue" ] && exec cat "$FAKE/squeue"; echo "squeue: error: Unable to contact slurm controller" >&2; '
              'exit 1',
    "sinfo": 'cat "$FAKE/sinfo"'}
"""A Slurm of files: `state.ID` is what it says of a job, `squeue` and `sinfo` are what these print."""


PACKED: dict[str, Any] = {"Allocation": {"Policy": "pack"}, "Scheduling": {"Backfilling": "easy"}}


class Pool:
    """A pool of one-core jobs, and allocations that are managers on this machine."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.fake = site.root / "fake"
        self.fake.mkdir()
        site.program("count.x", 'echo "$1" >>"$0.log"; while [ -e "$0.hold.$1" ]; do sleep 0.02; done; '
                     'echo "$1" >>"$0.ended"\n')
        programs = site.root / "slurm"
        programs.mkdir()
        for name, text in FAKES.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        site.env.update(PATH=f"{programs}{os.pathsep}{site.env['PATH']}", FAKE=str(self.fake), PYTHONPATH=str(ROOT))
        site.config(Nodes="auto", Cores=2, Launcher={"Kind": "direct"}, **PACKED)
        self.place = site.log / "pool"

    def vrm(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.site.run("pool", *words, **env)

    def allocation(self, job: int, seconds: float = 3600.0, **env: str) -> subprocess.Popen[str]:
        """The batch job of this number begins."""
        (self.fake / f"state.{job}").write_text(f"JobId={job} JobState=RUNNING\n")
        return self.site.start("pool", "work", "--pool", str(self.place), SLURM_JOB_ID=str(job),
                               SLURM_JOB_NODELIST=os.uname().nodename, SLURM_JOB_END_TIME=str(int(time.time() + seconds)), **env)

    def free_site(self, nodes: int) -> None:
        """The site has so many nodes of two cores, and no job."""
        (self.fake / "squeue").touch()
        (self.fake / "sinfo").write_text("".join(f"n{at}|p*|2|idle|1-00:00:00\n" for at in range(nodes)))

    def script(self, number: int) -> str:
        """The batch script of a request."""
        return (self.fake / f"job.{number}").read_text()

    def kill(self, process: subprocess.Popen[str]) -> None:
        """The manager dies, and its processes: not at once known to the batch system."""
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            if child.is_running():
                child.kill()
        self.site.kill_processes()

    def said(self, job: int, state: str) -> None:
        """What the batch system says of a job from now on."""
        (self.fake / f"state.{job}").write_text(f"JobId={job} JobState={state}\n")

    def status(self) -> dict[str, Any]:
        done = self.vrm("status", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def rows(self) -> Counter[str]:
        """How often each line has completed, by the argument of its job."""
        return Counter(row.args for path in self.place.glob("slurm-*/jobs.csv") for row in read_jobs(path)
                       if row.status == "completed")


def lines(number: int, seconds: int = 60) -> str:
    return "".join(f"count.x 1 {seconds} 0 args={at}\n" for at in range(number))


def ran(site: Site, what: str = "ended") -> Counter[str]:
    path = site.bin / f"count.x.{what}"
    return Counter(path.read_text().split()) if path.exists() else Counter()
