"""kill -9 of the manager at any moment of a run, again and again: no job runs twice, none is lost,
and every exit code is right. The managers fold their journal often. VRM_TEST_KILLS sets the number of kills (24 unless given).
"""

from __future__ import annotations

import os
import random
import select
import time

import pytest

from conftest import LIMIT, Site
from vrm.run.journal import files as journals
from vrm.run.journal.history import replay
from support.kills import counted

KILLS = int(os.environ.get("VRM_TEST_KILLS", "24"))

# Each run says when it begins and ends; two words in one write to a file opened for appending.
PROGRAM = """
echo "begin $VRM_JOB_ID" >> "$HERE/runs"
sleep $1
echo "end $VRM_JOB_ID" >> "$HERE/runs"
exit $2
"""


def lines(chance: random.Random, jobs: int) -> tuple[list[str], dict[int, tuple[str, int, int]]]:
    """A queue, and what is to become of each job: status, exit code and number of runs."""
    text, wanted = [], {}
    for job_id in range(jobs):
        code = chance.choice([0, 0, 0, 3, 42])
        retries = chance.choice([0, 0, 1, 2])
        seconds = chance.choice([0, 0.01, 0.05, 0.3])
        line = f"job.x 1 9 0 args='{seconds} {code}' retries={retries}"
        runs = retries + 1 if code else 1
        status = "failed" if code else "completed"
        if job_id and chance.random() < 0.3:
            other = chance.randrange(job_id)
            line += f" after={other}"
            if wanted[other][0] != "completed":
                status, code, runs = "cancelled", None, 0
        text.append(line + f" priority={chance.choice([0, 0, 1])}")
        wanted[job_id] = (status, code, runs)
    return text, wanted


def kill_somewhen(site: Site, chance: random.Random) -> bool:
    """Start `vrm` and kill it after a random time, or when it has written so many bytes more to
    its journal; False when it has come to the end of the queue before, which the next would begin
    anew."""
    manager = site.start()
    journal = site.log / "journal"
    began = time.monotonic()
    moment = began + chance.uniform(0.2, 1.2)
    more = chance.choice([None, 1, 150, 400, 1000, 3000])

    def size() -> int:
        return sum(map(len, map(str, journals.read(journal))))

    before = size()
    while manager.poll() is None:
        now = time.monotonic()
        if now > began + LIMIT:
            pytest.fail(f"it neither ended nor went on; it said:\n{site.said(manager)}")
        if now >= moment if more is None else size() >= before + more:
            break
        select.select([], [], [], 0.001)  # give way to it
    manager.kill()
    code = manager.wait()
    assert code != 2, site.said(manager)
    return code < 0 and not replay(journals.read(journal)).finished


def test_kills_at_any_moment(site: Site) -> None:
    chance = random.Random(KILLS)
    kills = rounds = folded = 0
    while kills < KILLS:
        rounds += 1
        here = Site(site.root / f"round{rounds}")
        here.config(Launcher={"Kind": "direct"}, Nodes=3, Cores=1, Emulate=True,
                    Scheduling={"Backfilling": chance.choice(["none", "easy", "conservative"])})
        here.env.update(HERE=str(here.root), VRM_FOLD_AFTER=str(chance.choice([3, 10, 30])))
        here.program("job.x", PROGRAM)
        text, wanted = lines(chance, 40)
        here.lines(*text)
        unfinished = True
        while kills < KILLS and unfinished:
            unfinished = kill_somewhen(here, chance)
            kills += unfinished
        if unfinished:
            assert here.run().returncode != 2
        found = {job_id: (row.status, row.exit_code) for job_id, row in here.rows().items()}
        assert found == {job_id: each[:2] for job_id, each in wanted.items()}
        assert len((here.log / "jobs.csv").read_text().splitlines()) == len(wanted) + 1
        runs = {job_id: each[2] for job_id, each in wanted.items() if each[2]}
        assert counted(here.root / "runs", "begin") == runs
        assert counted(here.root / "runs", "end") == runs
        here.nothing_left()
        here.close()
        folded += b'"event":"lives"' in (here.log / "journal").read_bytes()
    assert kills >= KILLS and folded
