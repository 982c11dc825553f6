"""A pool of one-core jobs under a fake batch system (Slurm or PBS), for tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from conftest import Site
from vrm.results.jobs import read_jobs

ROOT = Path(__file__).resolve().parents[2]

SUBMIT = ('n=$(ls "$FAKE" | grep -c job); for last; do :; done; cp "$last" "$FAKE/job.$n"; [ -e "$FAKE/refuse" ] && '
          '{ cat "$FAKE/refuse" >&2; exit 1; }; echo "$((100 + n))"')
CANCEL = 'echo "$1" >>"$FAKE/cancelled"'


def answer(file: str, error: str) -> str:
    """Return the script of a program that prints the file, or the error and fails if there is no such file."""
    return f'[ -e "$FAKE/{file}" ] && exec cat "$FAKE/{file}"; echo "{error}" >&2; exit 1'


SILENT = "Unable to contact slurm controller"

DIALECTS = {
    "slurm": {
        "sbatch": SUBMIT, "scancel": CANCEL, "scontrol": answer("state.$4", f"slurm_load_jobs error: {SILENT}"),
        "squeue": answer("squeue", f"squeue: error: {SILENT}"), "sinfo": 'cat "$FAKE/sinfo"'},
    "pbs": {
        "qsub": SUBMIT, "qdel": CANCEL,
        "qstat": 'for last; do :; done; case "$*" in -f) cat "$FAKE"/queue/* 2>/dev/null; exit 0;; '
                 '-Qf) echo "Queue: workq"; echo "    enabled = True"; echo "    started = True"; exit 0;; esac; '
                 + answer("state.$last", "qstat: cannot connect to server"),
        "pbsnodes": 'cat "$FAKE/pbsnodes"'}}
"""Fake batch systems made of files: `job.N` are the submitted scripts, `state.ID` is the answer about a job, `squeue`, `sinfo`,
`queue/*` and `pbsnodes` are the answers about all jobs and nodes."""


PACKED: dict[str, Any] = {"Allocation": {"Policy": "pack"}, "Scheduling": {"Backfilling": "easy"}}


class Pool:
    """A pool of one-core jobs; its allocations are managers on this machine."""

    def __init__(self, site: Site, dialect: str = "slurm") -> None:
        self.site = site
        self.dialect = dialect
        self.fake = site.root / "fake"
        self.fake.mkdir()
        site.program("count.x", 'echo "$1" >>"$0.log"; while [ -e "$0.hold.$1" ]; do sleep 0.02; done; '
                     'echo "$1" >>"$0.ended"\n')
        programs = site.root / dialect
        programs.mkdir()
        for name, text in DIALECTS[dialect].items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        others = site.env["PATH"]
        if dialect != "slurm":  # a Slurm on this machine would be found first
            others = str(site.root / "tools")
            Path(others).mkdir()
            for name in ("sh", "bash", "cat", "cp", "ls", "grep", "sleep", "env"):
                (Path(others) / name).symlink_to(shutil.which(name) or "")
        site.env.update(PATH=f"{programs}{os.pathsep}{others}", FAKE=str(self.fake), PYTHONPATH=str(ROOT))
        site.config(Nodes="auto", Cores=2, Launcher={"Kind": "direct"}, **PACKED)
        self.place = site.log / "pool"

    def vrm(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.site.run("pool", *words, **env)

    def hold(self, jobs: Iterable[int]) -> None:
        """Let these jobs run until `let_go`."""
        for number in jobs:
            (self.site.bin / f"count.x.hold.{number}").touch()

    def let_go(self, jobs: Iterable[int]) -> None:
        """Let held jobs end."""
        for number in jobs:
            (self.site.bin / f"count.x.hold.{number}").unlink()

    def allocation(self, job: int, seconds: float = 3600.0, **env: str) -> subprocess.Popen[str]:
        """Start the manager of the batch job `job`; its allocation ends after `seconds`."""
        (self.fake / f"state.{job}").write_text(f"JobId={job} JobState=RUNNING\n")
        return self.site.start("pool", "work", "--pool", str(self.place), SLURM_JOB_ID=str(job),
                               SLURM_JOB_NODELIST=os.uname().nodename, SLURM_JOB_END_TIME=str(int(time.time() + seconds)), **env)

    def script_begins(self, job: int, seconds: float = 3600.0) -> subprocess.Popen[str]:
        """Run the script of this batch job on this machine, as PBS does; its allocation ends after `seconds`."""
        host = os.uname().nodename
        (self.fake / "nodes").write_text(f"{host}\n" * 2)
        self.said(job, "R", f"    exec_vnode = ({host}:ncpus=2)\n    Resource_List.walltime = {int(seconds)}\n"
                  f"    stime = {time.strftime('%a %b %d %H:%M:%S %Y')}\n")
        output = self.site.root / f"batch.{job}"
        process = subprocess.Popen(
            [shutil.which("bash") or "", str(self.fake / f"job.{job - 100}")], cwd=self.site.root, text=True,
            env={**self.site.env, "PBS_JOBID": str(job), "PBS_NODEFILE": str(self.fake / "nodes"), "PBS_O_WORKDIR": str(self.site.root)},
            stdin=subprocess.DEVNULL, stdout=open(output, "w"), stderr=subprocess.STDOUT, start_new_session=True)
        process.output = output  # type: ignore[attr-defined]
        self.site.started.append(process)
        return process

    def free_site(self, nodes: int) -> None:
        """Let the site have `nodes` nodes of two cores, and no jobs."""
        if self.dialect == "pbs":
            (self.fake / "pbsnodes").write_text("".join(
                f"n{at}\n    state = free\n    resources_available.ncpus = 2\n\n" for at in range(nodes)))
            return
        (self.fake / "squeue").touch()
        (self.fake / "sinfo").write_text("".join(f"n{at}|p*|2|idle|1-00:00:00\n" for at in range(nodes)))

    def script(self, number: int) -> str:
        """Return the batch script of a request."""
        return (self.fake / f"job.{number}").read_text()

    def kill(self, process: subprocess.Popen[str], job: int | None = None) -> None:
        """Kill the manager and its processes (with `job`, only those of this batch job). The batch system does not notice
        it at first."""
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            if child.is_running():
                child.kill()
        if job is None:
            self.site.kill_processes()
            return
        for pid in self.site.processes():
            with contextlib.suppress(psutil.Error):
                each = psutil.Process(pid)
                if each.environ().get("PBS_JOBID") == str(job):
                    each.kill()

    def said(self, job: int, state: str, more: str = "") -> None:
        """Set the answer of the batch system about a job."""
        (self.fake / f"state.{job}").write_text(f"JobId={job} JobState={state}{more}\n" if self.dialect == "slurm" else
                                                f"Job Id: {job}\n    job_state = {state}\n{more}")

    def status(self) -> dict[str, Any]:
        done = self.vrm("status", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def rows(self) -> Counter[str]:
        """Return how often the job of each line has completed, by the argument of the job."""
        return Counter(row.args for path in self.place.glob(f"{self.dialect}-*/jobs.csv") for row in read_jobs(path)
                       if row.status == "completed")


def lines(number: int, seconds: int = 60) -> str:
    return "".join(f"count.x 1 {seconds} 0 args={at}\n" for at in range(number))


def ran(site: Site, what: str = "ended") -> Counter[str]:
    path = site.bin / f"count.x.{what}"
    return Counter(path.read_text().split()) if path.exists() else Counter()
