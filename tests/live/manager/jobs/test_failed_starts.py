"""An mpirun that ends before it has started a rank: the job starts again, whoever is killed in between."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT, Site, mpiruns
from support.failing_mpirun import SAID, failing, tries
from support.lending_site import KILLED, events
from vrm.live.launch.openmpi import OpenMPI
from vrm.model import Job, JobState
from vrm.model.job import Details
from vrm.run.requeue import LOSSES, requeue_reason
from vrm.run.entry import Entry

@pytest.fixture(params=mpiruns())
def wrapped(site: Site, request: pytest.FixtureRequest) -> Site:
    """A site whose mpirun fails $FAILS times for each job and then starts it."""
    mpirun = failing(site, request.param)
    site.program("job.x", 'echo "$VRM_JOB_ID" >> "$HERE/ran"\nexit $1\n')
    site.config(Interrupted="mark", Launcher={"Kind": "openmpi", "Mpirun": str(mpirun)})
    return site


def ran(site: Site) -> list[int]:
    return sorted(map(int, (site.root / "ran").read_text().split())) if (site.root / "ran").exists() else []


@pytest.mark.mpi
def test_a_job_that_mpirun_could_not_start_starts_again(wrapped: Site) -> None:
    """Without a retry, and even where an interrupted job is not to run again: nothing of it has run."""
    wrapped.lines("job.x 1 9 args=0", "job.x 1 9 args=3")
    done = wrapped.run(FAILS="2")
    assert "#0 job.x waits again: it was not started: mpirun: The PMIx server's listener" in done.stdout, done.stdout
    assert (ran(wrapped), tries(wrapped)) == ([0, 1], {0: 3, 1: 3})
    assert wrapped.statuses() == {0: "completed", 1: "failed"} and wrapped.rows()[1].exit_code == 3
    wrapped.nothing_left()


@pytest.mark.mpi
def test_a_start_that_always_fails_is_not_tried_for_ever(wrapped: Site) -> None:
    wrapped.lines("job.x 1 9 args=0", "job.x 1 9 args=0 after=0")
    done = wrapped.run(FAILS="99")
    assert wrapped.statuses() == {0: "failed", 1: "cancelled"} and tries(wrapped) == {0: LOSSES + 1}
    assert "mpirun: The PMIx server's listener thread failed to start" in done.stdout and not ran(wrapped)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("event, number", [("start", 1), ("again", 1), ("start", 2), ("again", 2), ("start", 3)])
def test_a_killed_manager_leaves_the_next_try_to_the_next_one(wrapped: Site, event: str, number: int) -> None:
    wrapped.lines("job.x 1 9 args=0")
    killed = subprocess.run([sys.executable, "-c", KILLED, event, str(number), "-c", str(wrapped.config_file)],
                            cwd=wrapped.root, env={**wrapped.env, "FAILS": "2"}, capture_output=True, timeout=LIMIT)
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    wrapped.run(FAILS="2")
    assert ran(wrapped) == [0] and wrapped.statuses() == {0: "completed"}
    assert events(wrapped).count("again") == 2 and tries(wrapped)[0] >= 3
    wrapped.nothing_left()


def test_sbatch_no_requeue_does_not_mean_such_a_start() -> None:
    entry = Entry(Job(0, "job.x", 1, 9.0), Details(more={"requeue": "no"}))
    assert requeue_reason(entry, JobState.FAILED, "why", "unstarted", False) == ("it was not started: why", False)
    entry.losses = LOSSES
    assert requeue_reason(entry, JobState.FAILED, "why", "unstarted", True) == ("", False)


@pytest.mark.parametrize("code, errors, output, why", [
    (213, SAID, "", "The PMIx server's listener thread failed to start"),
    (1, "[n0:7] PMIX ERROR: x in file y\n" + SAID, "", "The PMIx server's listener thread failed to start"),
    (213, SAID, "[n0:7] Rank 0 bound to ...\n", ""), (0, SAID, "", ""), (213, "", "", ""),
    (213, "a\nb\nc\nd\ne\n" + SAID, "", "")])
def test_only_what_mpirun_says_first_of_all_counts(
        tmp_path: Path, code: int, errors: str, output: str, why: str) -> None:
    """A rank may say the same, or have run: then it has failed."""
    (tmp_path / "e").write_text(errors)
    (tmp_path / "o").write_text(output)
    launcher = OpenMPI("mpirun", (5, 0, 11))
    assert launcher.failed_start(code, tmp_path / "e", tmp_path / "o") == why
