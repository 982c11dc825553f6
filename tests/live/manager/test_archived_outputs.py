"""Output: {Archive: true}: what jobs print is in one file when they have ended, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import LIMIT, Site, mpiruns, wait_until
from vrm.run.journal.archive import ERR, OUT, Archive
from vrm.run.journal import files as journals

VRM = [sys.executable, "-m", "vrm.cli"]
PROGRAM = """
echo "job $VRM_JOB_ID begins"
[ "$1" = both ] && echo "trouble of $VRM_JOB_ID" >&2
echo "begin $VRM_JOB_ID" >> "$HERE/runs"
sleep $2
echo "job $VRM_JOB_ID ends"
exit $3
"""


def text_of(site: Site, job_id: int, output: str = OUT) -> str | None:
    """What the archive has of a job."""
    archive = Archive(site.log / "outputs")
    frame = archive.find(job_id, output)
    return None if frame is None else b"".join(archive.parts(frame)).decode()


def files(site: Site) -> list[str]:
    """The files of outputs, and rankfiles."""
    return sorted(path.name for path in (*site.log.glob("[!.]*.[oe]"), *(site.log / "rankfiles").glob("*")))


@pytest.fixture
def archived(site: Site) -> Site:
    """A site whose outputs are archived."""
    site.env["HERE"] = str(site.root)
    site.config(Launcher={"Kind": "direct"}, Output={"Archive": True}, Cores=2, Allocation={"Policy": "pack"})
    site.program("job.x", PROGRAM)
    return site


def test_outputs_are_in_one_file_and_every_command_finds_them(archived: Site) -> None:
    site = archived
    site.program("quiet.x", "exit 0\n")
    site.lines("job.x 1 9 0 args='one 0 0'", "job.x 1 9 0 args='both 0 3'", "quiet.x 1 9 0", end=False)
    manager = site.start()
    wait_until(lambda: (site.log / "jobs.csv").exists() and len(site.statuses()) == 3, "three jobs are recorded")
    wait_until(lambda: not files(site), "their files are gone while the manager waits for more")
    assert site.run("log", "0").stdout == "job 0 begins\njob 0 ends\n"
    assert site.run("log", "1", "--err").stdout == "trouble of 1\n"
    followed = site.run("log", "1", "--follow")
    assert followed.stdout == "job 1 begins\njob 1 ends\n" and "failed, exit 3: trouble of 1" in followed.stderr
    said = site.run("log", "2")
    assert (said.returncode, said.stdout) == (0, "")
    assert site.run("log", "7").returncode == 2
    assert b"job 0 begins\njob 0 ends\n" in (site.log / "outputs").read_bytes(), "as it is"
    site.append("end\n")
    site.finish(manager)
    there = site.root / "there"
    there.mkdir()
    done = subprocess.run([*VRM, "-c", str(site.config_file), "log", "--extract"], cwd=there, env=site.env, text=True,
                          capture_output=True, timeout=60, check=True)
    assert "3 file(s) of 2 job(s)" in done.stderr
    assert {path.name: path.read_text() for path in there.iterdir()} == {
        "job.x.0.o": "job 0 begins\njob 0 ends\n", "job.x.1.o": "job 1 begins\njob 1 ends\n",
        "job.x.1.e": "trouble of 1\n"}
    done = subprocess.run([*VRM, "-c", str(site.config_file), "log", "--extract", "2"], cwd=there, env=site.env,
                          text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2 and "has nothing of 2" in done.stderr


def test_a_job_that_runs_again_has_its_own_file_meanwhile_and_the_last_output_counts(archived: Site) -> None:
    site = archived
    site.lines("job.x 1 9 0 args='both 0 3'")
    site.run()
    assert text_of(site, 0, ERR) == "trouble of 0\n" and files(site) == []
    site.program("job.x", f"echo again; while [ ! -e {site.root}/go ]; do sleep 0.05; done\n")
    manager = site.start("--failed", waits=False)
    wait_until(lambda: (site.log / "job.x.0.o").exists() and (site.log / "job.x.0.o").stat().st_size, "it runs again")
    assert site.run("log", "0").stdout == "again\n"
    follow = subprocess.Popen([*VRM, "-c", str(site.config_file), "log", "0", "--follow"], cwd=site.root, env=site.env,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert follow.stdout is not None and follow.stdout.readline() == "again\n"
    (site.root / "go").touch()
    assert "completed" in follow.communicate(timeout=60)[1]
    site.finish(manager)
    assert text_of(site, 0) == "again\n" and files(site) == []
    assert site.statuses() == {0: "completed"}
    site.run("--fresh")
    earlier, = (site.log / "earlier").iterdir()
    assert {"outputs", "outputs.index"} <= {path.name for path in earlier.iterdir()}


def test_kill_9_of_managers_and_supervisors_loses_no_output(archived: Site) -> None:
    site, chance, jobs = archived, random.Random(7), 24
    site.lines(*(f"job.x 1 9 0 args='{chance.choice(['one', 'both'])} {chance.choice([0, 0.02, 0.2])} "
                 f"{chance.choice([0, 0, 3])}'" for _ in range(jobs)))
    for _ in range(8):
        manager = site.start()
        moment = time.monotonic() + chance.uniform(0.1, 0.8)
        while manager.poll() is None and time.monotonic() < moment:
            if chance.random() < 0.02:
                for marker in list(site.pids.glob("[0-9]*")) if site.pids.exists() else []:
                    try:
                        os.kill(json.loads(marker.read_text().splitlines()[0])["pid"], signal.SIGKILL)
                    except (OSError, ValueError, IndexError):
                        pass  # it has ended, or is being written
                    break
            manager.poll()
            time.sleep(0.005)
        manager.kill()
        manager.wait(LIMIT)
        if chance.random() < 0.5 and (site.log / "outputs").exists():  # as a machine that dies leaves it
            with open(site.log / "outputs", "ab") as file:
                file.write(b"==> vrm: job 1, started 1.0, out: 100 bytes, crc32 00000000\ntorn")
    site.finish(site.start(waits=False))
    assert set(site.rows()) == set(range(jobs))
    assert files(site) == []
    for job_id, row in site.rows().items():
        if row.start is not None and row.status in ("completed", "failed") and "supervisor" not in row.reason:
            said = text_of(site, job_id)
            assert said is not None and said.startswith(f"job {job_id} begins\n"), row
            if row.status == "completed":
                assert said == f"job {job_id} begins\njob {job_id} ends\n"
    assert sum(each["event"] == "end" for each in journals.records(site.log / "journal")) >= jobs


def test_what_an_earlier_manager_left_in_files_is_archived_when_the_key_is_set(archived: Site) -> None:
    site = archived
    site.config(Launcher={"Kind": "direct"}, Cores=2, Allocation={"Policy": "pack"})
    site.lines("job.x 1 9 0 args='both 0 0'")
    site.run()
    assert files(site) == ["job.x.0.e", "job.x.0.o"] and not (site.log / "outputs").exists()
    other = site.log / "notes.o"
    other.write_text("not of a job")
    site.config(Launcher={"Kind": "direct"}, Output={"Archive": True}, Cores=2, Allocation={"Policy": "pack"})
    site.run()
    assert text_of(site, 0) == "job 0 begins\njob 0 ends\n" and text_of(site, 0, ERR) == "trouble of 0\n"
    assert files(site) == ["notes.o"]
    assert Path(site.log / "outputs").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mpirun", mpiruns())
def test_rankfiles_of_ended_jobs_go_and_bindings_are_checked(archived: Site, mpirun: str) -> None:
    site = archived
    site.config(Launcher={"CheckBindings": "fail", "Mpirun": mpirun}, Output={"Archive": True})
    site.lines("job.x 1 30 0 args='both 0 0'", "job.x 1 30 0 args='both 0 0'")
    done = site.run()
    assert done.returncode == 0, done.stdout
    assert {row.binding for row in site.rows().values()} == {"ok"}
    assert text_of(site, 1) == "job 1 begins\njob 1 ends\n" and text_of(site, 1, ERR) == "trouble of 1\n"
    assert files(site) == []


def test_a_file_that_a_job_names_stays(archived: Site) -> None:
    site = archived
    site.lines(end=False)
    manager = site.start()
    wait_until(lambda: (site.log / "journal").exists() and site.state(), "the manager is there")
    script = site.root / "own.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH -o {site.root}/own-%j.txt\n#SBATCH -t 1\necho mine\n")
    assert site.run("slurm", "sbatch", str(script)).returncode == 0
    wait_until(lambda: (site.log / "jobs.csv").exists() and site.rows(), "it is recorded")
    site.append("end\n")
    site.finish(manager)
    job_id, = site.rows()
    assert (site.root / f"own-{job_id}.txt").read_text() == "mine\n"
    assert text_of(site, job_id) is None and site.run("log", str(job_id)).stdout == "mine\n"
