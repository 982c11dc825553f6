"""kill -9 of the manager, at times with its spawner, while jobs lend cores: by SD-policy, by `vrm lend`, in all phases
of a lend. No core is given twice, who lends has its cores again, and each job runs once. VRM_TEST_LEND_KILLS sets the
number of kills with lends in force (8 unless given), VRM_TEST_SEED what is drawn.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from conftest import LIMIT, Site, descendants, wait_until
from support.lending_site import cores
from support.kills import counted
from vrm.ext.lending.nodes import lending
from vrm.live.nodes.topology import parse_cpu_list
from vrm.model import Cluster, JobState
from vrm.model.sharing import core_share
from vrm.results import shares
from vrm.run import command_files
from vrm.run.journal import files as journals
from vrm.run.journal.codec import placement_of
from vrm.run.journal.history import RunHistory, replay
from vrm.run.rundir import RunDirectory

KILLS = int(os.environ.get("VRM_TEST_LEND_KILLS", "8"))
SEED = int(os.environ.get("VRM_TEST_SEED", "1"))

JOBS = 7
"""Jobs of a queue."""

A_QUEUE = 14
"""Kills after which the jobs of a queue end."""

# Says when it begins and where it is, works in regions until there is a file, and says that it ends.
PROGRAM = r"""
#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[4096];

static const char *file(const char *kind)
{
    snprintf(path, sizeof path, "%s/%s.%s", getenv("HERE"), kind, getenv("VRM_JOB_ID"));
    return path;
}

static void say(const char *what)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%s %s\n", what, getenv("VRM_JOB_ID"));
    snprintf(path, sizeof path, "%s/runs", getenv("HERE"));
    int runs = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (write(runs, line, length) != length)
        exit(4);
    close(runs);
}

int main(void)
{
    say("begin");
    FILE *pid = fopen(file("pid"), "w");
    fprintf(pid, "%d\n", (int)getpid());
    fclose(pid);
    while (access(file("done"), F_OK)) {
        int team = 0, right = 1, most = omp_get_max_threads();
        char *here = calloc(most, 1);
#pragma omp parallel
        {
#pragma omp single
            team = omp_get_num_threads();
            if (omp_get_thread_num() < most)
                here[omp_get_thread_num()] = 1;
            usleep(3000);
        }
        for (int i = 0; i < most; i++)
            right &= here[i];
        free(here);
        if (team != most || !right)
            return 3;
    }
    say("end");
    return 0;
}
"""


class Lends:
    """A site whose jobs lend cores of this machine, and what is known of them from outside."""

    def __init__(self, root: Path, program: Path, chance: random.Random) -> None:
        self.site, self.chance = Site(root), chance
        self.cores = cores(2)
        self.seen: Counter[str] = Counter()  # kills with lends of each phase, and of spawners
        self.site.env.update(HERE=str(root), OMP_WAIT_POLICY="passive")
        shutil.copy(program, self.site.bin / "omp")
        self.site.config(Nodes=1, Sockets=1, Cores=2, Forecast=False,
                         Scheduling={"Backfilling": chance.choice(["sd", "sd", "none"])},
                         Launcher={"Kind": chance.choice(["direct", "openmpi"]), "CheckBindings": "fail"})
        self.site.lines("omp 1 600 0 cores=2 malleable=1", *(
            f"omp 1 {chance.choice([60, 450, 600])} 0 cores={chance.choice([1, 2, 2])} malleable=1"
            for _ in range(JOBS - 1)))
        self.run = RunDirectory(self.site.log, self.site.log, self.site.log / "state")

    def past(self) -> RunHistory:
        """What is on disk."""
        return replay(journals.read(self.site.log / "journal"))

    def at(self, job: int) -> set[frozenset[int]]:
        """The CPUs that each thread of a job may use."""
        found: set[frozenset[int]] = set()
        with contextlib.suppress(OSError, ValueError):
            pid = (self.site.root / f"pid.{job}").read_text().strip()
            for task in Path(f"/proc/{pid}/task").iterdir():
                line, = (line for line in (task / "status").read_text().splitlines() if line.startswith("Cpus_allowed_list:"))
                found.add(frozenset(parse_cpu_list(line.split()[1])))
        return found

    def apart(self) -> None:
        """Fail where two jobs are on one core. One may move between two looks: what counts is seen on both sides."""
        running = [int(name) for name in self.site.running()]
        for first in running:
            for second in running:
                before = self.at(first)
                between = self.at(second)
                if first < second and before and before == self.at(first):
                    both = frozenset().union(*before) & frozenset().union(*between)
                    assert not both, f"jobs {first} and {second} are on CPUs {sorted(both)}: {before} {between}"

    def settled(self) -> bool:
        """Whether the threads of all jobs that run are where the journal says."""
        self.apart()
        past = self.past()
        state, cluster = past.state, Cluster.regular(1, 1, 2)
        running = {job_id for job_id, entry in state.book.entries.items() if entry.state is JobState.RUNNING}
        if {str(each) for each in running} != set(self.site.running()):
            return False
        planned = 0
        for job_id in running:
            placement = state.lends.settled(placement_of(past.started[job_id]["placement"], cluster), job_id)
            mine = core_share.cores_of(placement, cluster.nodes, cluster.layout) & ~state.lends.plan(job_id)
            assert not mine & planned, f"the plan gives cores twice: {state.lends.all}"
            planned |= mine
            cpus = frozenset().union(*(self.cores[core] for core in range(2) if mine >> core & 1))
            if frozenset().union(*self.at(job_id)) != cpus:  # OpenMP may have a core for each thread
                return False
        return True

    def ask(self) -> None:
        """Somebody may want something: a job ends, a job lends or takes back."""
        state, chance = self.past().state, self.chance
        running, waiting = ([job_id for job_id, entry in state.book.entries.items() if entry.state is kind]
                            for kind in (JobState.RUNNING, JobState.QUEUED))
        what = chance.choice(["", "end", "end", "lend", "back"] if state.lends.all else ["end", "lend", "lend", "node"])
        if not running or (what == "end" and not waiting):
            return
        job = chance.choice(running)
        if what == "end":
            (self.site.root / f"done.{job}").touch()
        elif what == "back":
            command_files.send(self.run, {"do": "lend", "id": job, "back": True, "unasked": True})
        elif what:
            to = {"to": waiting[0]} if what == "lend" and waiting else {}
            command_files.send(self.run, {"do": "lend", "id": job, "cores": 1, **to, "unasked": True})

    def kill(self) -> bool:
        """Start vrm and kill it: soon, or once all is settled, behind what happens then. Whether lends were in force;
        False, too, when the jobs have ended."""
        chance = self.chance
        manager = self.site.start(waits=False)
        wait_until(lambda: manager.poll() is not None or len(self.past().runs) == len(self.site.started), "it begins")
        if chance.random() < 0.75:
            end = time.monotonic() + LIMIT
            while manager.poll() is None and not self.settled():
                assert time.monotonic() < end, (self.past().state.lends.all, {job: self.at(job) for job in range(JOBS)},
                                                self.site.running(), self.site.said(manager))
                select.select([], [], [], 0.01)
            self.ask()
        journal = self.site.log / "journal"
        before, more, end = len(journals.read(journal)), chance.choice([0, 1, 1, 2, 3, 4]), time.monotonic() + 0.5
        while manager.poll() is None and len(journals.read(journal)) < before + more and time.monotonic() < end:
            self.apart()
        spawners = descendants(manager.pid, "spawner") if manager.poll() is None and chance.random() < 0.2 else []
        for process in spawners:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        manager.kill()
        assert manager.wait() <= 0, self.site.said(manager)
        self.apart()
        lends = self.past().state.lends.all.values()
        self.seen.update([*{each.phase for each in lends}, *["spawner"] * bool(spawners)])
        return bool(lends)

    def end(self) -> None:
        """All jobs end; everything is as it should be."""
        site = self.site
        for job in range(JOBS):
            (site.root / f"done.{job}").touch()
        assert site.run().returncode == 0
        assert set(site.statuses().values()) == {"completed"} and len(site.statuses()) == JOBS
        assert (site.log / "jobs.csv").read_text().count("\n") == JOBS + 1
        once = dict.fromkeys(range(JOBS), 1)
        assert counted(site.root / "runs", "begin") == counted(site.root / "runs", "end") == once
        past = self.past()
        assert not past.state.lends.all
        had: dict[int, list[shares.HeldCores]] = {}
        for held in shares.read(site.log / "shares.csv"):
            for core in parse_cpu_list(held.cores.partition("/")[2]):
                had.setdefault(core, []).append(held)
        for core, each in had.items():
            each.sort(key=lambda held: held.begin)
            for first, second in zip(each, each[1:]):
                assert first.job == second.job or first.end <= second.begin + 0.002, (core, first, second)
        site.nothing_left()
        assert not [place for run in past.runs for place in lending.places(run["run"], None)]
        site.close()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    (tmp_path / "omp.c").write_text(PROGRAM)
    if subprocess.run(["gcc", "-O1", "-fopenmp", "omp.c", "-o", "omp"], cwd=tmp_path).returncode:
        pytest.skip("no gcc with OpenMP")
    return tmp_path / "omp"


@pytest.mark.slow
def test_kills_while_cores_are_lent(program: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    kills = lent = queues = 0
    seen: Counter[str] = Counter()
    began = time.monotonic()
    while lent < KILLS:
        queues += 1
        here = Lends(tmp_path / f"queue{queues}", program, chance)
        try:
            for _ in range(A_QUEUE):
                kills += 1
                lent += here.kill()
                if lent >= KILLS or here.past().finished:
                    break
            here.end()
            seen.update(here.seen)
        except BaseException:
            print(f"VRM_TEST_SEED={SEED}, queue {queues}, kill {kills}")
            here.site.close()
            raise
    print(f"{kills} kills, {lent} with lends in force, {dict(seen)}, in {queues} queues, {time.monotonic() - began:.0f} s")
