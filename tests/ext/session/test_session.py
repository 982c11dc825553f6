"""Jobs as futures: real managers, real jobs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import FIRST_COMPLETED, CancelledError, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

from conftest import LIMIT, Site, wait_until
from vrm import Session
from vrm.config.problems import ConfigError
from vrm.results.jobs import read_jobs
from vrm.ext.session import JobFailed, SessionError
from vrm.workload.grammar import LineError

KEYS: dict[str, Any] = {"Nodes": 2, "Sockets": 1, "Cores": 2, "Emulate": True,
                        "Launcher": {"Kind": "direct"}}


@pytest.fixture
def place(site: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with programs, in which this test is."""
    for name, text in {"tells": 'echo "$* $COLOUR"', "fails": "echo oh no >&2; exit 3",
                       "waits": "while [ ! -e go ]; do sleep 0.02; done; echo went"}.items():
        (site.root / name).write_text(f"#!/bin/sh\n{text}\n")
        (site.root / name).chmod(0o755)
    monkeypatch.chdir(site.root)
    monkeypatch.delenv("VRM_CONFIG", raising=False)
    return site.root


def test_jobs_are_futures(place: Path) -> None:
    with Session(**KEYS) as session:
        jobs = [session.submit("./tells", args=["a b", number], env={"COLOUR": "red"}, walltime="1m")
                for number in range(3)]
        bad = session.submit("./fails", 1, 60)
        never = session.submit("./tells", after=[bad])
        refused = session.submit("./nothing")
        last = session.submit("tells", 2, 60, after=jobs, cores=1, exclusive=True)
        assert {job.result().text for job in as_completed(jobs, LIMIT)} == {
            f"a b {number} red\n" for number in range(3)}
        with pytest.raises(JobFailed, match="(?s)failed .exit status 3.*oh no") as failed:
            bad.result(LIMIT)
        assert failed.value.result.exit_code == 3
        with pytest.raises(CancelledError):
            never.result(LIMIT)
        with pytest.raises(JobFailed, match="refused: .*nothing does not exist"):
            refused.result(LIMIT)
        result = last.result(LIMIT)
        assert result.status == "completed" and result.start is not None
        assert result.start >= max(job.result().end for job in jobs)
        assert [job.id for job in (*jobs, bad, never, refused, last)] == list(range(7))
        assert "ended" in repr(last) and "0 job(s)" in repr(session)
    assert session._process is not None and session._process.returncode == 1
    with pytest.raises(SessionError, match="closed"):
        session.submit("./tells")


def test_the_example_of_the_page(place: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "python.md"
    example = page.read_text().split("```python\n")[1].split("```")[0]
    assert 'Nodes="auto"' in example
    for name, text in {"solve": 'echo "solved $1"', "collect": "echo all"}.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    (place / "example.py").write_text(example.replace('Nodes="auto"', "Nodes=2, Emulate=True, Cores=2"))
    done = subprocess.run([sys.executable, "example.py"], env={**os.environ, "VRM_CONFIG": ""}, timeout=LIMIT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:4]) == [f"{n} solved {n}" for n in range(4)] and lines[4:] == ["all"]


def test_cancelling_waiting_and_asyncio(place: Path) -> None:
    async def both(session: Session) -> str:
        first, second = session.submit("./tells", args=["1"]), session.submit("./tells", args=["2"])
        results = await asyncio.gather(first, second)
        return "".join(result.text for result in results)

    with Session(**KEYS) as session:
        job, other = session.submit("./waits", 2, exclusive=True), session.submit("./tells", 2, nodes="2-2")
        done, left = wait([job, other], 0.5, FIRST_COMPLETED)
        assert not done and left == {job, other}
        wait_until(job.running, "it runs")
        assert not other.running() and not other.done()
        assert other.cancel() and job.cancel()
        for each in (job, other):
            with pytest.raises(CancelledError):
                each.result(LIMIT)
        assert job.cancelled() and not job.running()
        assert sorted(asyncio.run(both(session)).split()) == ["1", "2"]
    with pytest.raises(ZeroDivisionError), Session(**KEYS) as session:
        job = session.submit("./waits")
        wait_until(job.running, "it runs")
        raise ZeroDivisionError
    assert job.cancelled()


def test_a_manager_that_is_killed_is_started_again(place: Path) -> None:
    with Session(**KEYS) as session:
        jobs = [session.submit("./waits", 2) for _ in range(3)]
        wait_until(lambda: sum(job.running() for job in jobs) == 2, "two run")
        assert session._process is not None
        session._process.send_signal(signal.SIGKILL)
        (place / "go").touch()
        assert [job.result(LIMIT).text for job in jobs] == ["went\n"] * 3
        assert session._restarts == 1


def test_restarts_count_since_the_last_progress(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vrm.ext.session.RESTARTS", 1)
    with Session(**KEYS) as session:
        for number in range(1, 4):
            job = session.submit("./waits")
            wait_until(job.running, "it runs")
            assert session._process is not None
            session._process.send_signal(signal.SIGKILL)
            wait_until(lambda: session._restarts == number, "there is another manager")
            (place / "go").touch()
            assert job.result(LIMIT).text == "went\n"
            (place / "go").unlink()


def test_what_a_session_has_given_up_does_not_run_later(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what had started: that is said, and the next session has its end."""
    monkeypatch.setattr("vrm.ext.session.RESTARTS", 0)
    with Session(**KEYS) as session:
        runs = session.submit("./waits", exclusive=True)
        waits = session.submit("./waits", 2, nodes="2-2")
        wait_until(lambda: runs.running() and waits.id == 1, "one runs")
        assert session._process is not None
        with session._lock:  # what is sent now nobody takes
            session._process.send_signal(signal.SIGSTOP)
        late = session.submit("./tells")
        session._process.send_signal(signal.SIGKILL)
        for job, text in ((runs, "job 0 has started and continues"), (waits, "the manager has ended"),
                          (late, "the manager has ended")):
            with pytest.raises(SessionError, match=text):
                job.result(LIMIT)
        assert len(list((session.settings.directory / "commands").iterdir())) == 1  # for the one that waits
    with Session(**KEYS) as session:
        (place / "go").touch()
        assert session.submit("./tells").result(LIMIT).id == 2
    rows = {row.id: row.status for row in read_jobs(session.settings.directory / "jobs.csv")}
    assert rows == {0: "completed", 1: "cancelled", 2: "completed"}


def test_small_jobs_share_nodes_and_an_exclusive_one_does_not(place: Path) -> None:
    """Nobody has said where: it is pack. A manager that goes on keeps the nodes of an exclusive job for it."""
    with Session(**KEYS) as session:
        small = [session.submit("./waits") for _ in range(2)]
        alone = session.submit("./waits", exclusive=True)
        wait_until(lambda: all(job.running() for job in (*small, alone)), "three run on two nodes")
        assert session._process is not None
        session._process.send_signal(signal.SIGKILL)
        late = session.submit("./waits", 2)
        assert late.id == 3 and session._restarts == 1
        (place / "go").touch()
        ends = [job.result(LIMIT).end for job in (*small, alone)]
        assert (late.result(LIMIT).start or 0) >= min(ends[2], max(ends[:2]))
    rows = {row.id: row for row in read_jobs(session.settings.directory / "jobs.csv")}
    assert rows[0].nodes == rows[1].nodes != rows[2].nodes and rows[0].cores != rows[1].cores
    assert [rows[job.id].exclusive for job in (*small, alone)] == [False, False, True]


def test_a_configuration_says_otherwise(place: Path) -> None:
    with Session(**KEYS, Allocation={"Policy": "compact"}) as session:
        assert session.settings.allocation.policy == "compact"
        jobs = [session.submit("./waits") for _ in range(3)]
        wait_until(lambda: jobs[0].running() and jobs[1].running(), "two have a node each")
        assert jobs[2].id == 2 and not jobs[2].running()
        (place / "go").touch()
        wait(jobs, LIMIT)


def test_a_running_manager_is_used_and_left_alone(place: Path, site: Site) -> None:
    site.config(Emulate=True, Nodes=1, Sockets=1, Cores=2, Launcher={"Kind": "direct"})
    site.program("one", "echo one\n")
    site.lines(end=False)
    manager = site.start("--wait")
    wait_until(lambda: "waiting for lines" in site.said(manager), "it waits")
    with Session(site.config_file) as session:
        assert not session.own and session.submit("one").result(LIMIT).text == "one\n"
        held = session.submit("one", hold=True)
        assert held.id == 1
        manager.send_signal(signal.SIGTERM)
        with pytest.raises(SessionError, match="the manager has ended"):
            held.result(LIMIT)
    site.finish(manager)


def test_a_program_that_dies_leaves_no_manager(place: Path) -> None:
    died = subprocess.run([sys.executable, "-c", f"""
import os
from vrm import Session
session = Session(**{KEYS!r})
job = session.submit("./tells", args=["said"])
job.result()
print(session._process.pid, flush=True)
os._exit(9)
"""], cwd=place, env={**os.environ, "VRM_CONFIG": ""}, capture_output=True, text=True, timeout=LIMIT)
    assert died.returncode == 9, died.stderr
    pid = int(died.stdout)
    wait_until(lambda: not Path(f"/proc/{pid}").exists()
               or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z", "the manager ends by itself")


def where(number: int, more: int = 0) -> Any:
    """A process, and a number."""
    return os.getpid(), number + more


def fails_at(number: int) -> int:
    """Not for 7."""
    return 100 // (number - 7)


def ends_its_worker_once(number: int) -> int:
    """The first time that it is 5."""
    if number == 5 and not os.path.exists("ended"):
        Path("ended").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def ends_its_worker(number: int) -> None:
    """Always."""
    os.kill(os.getpid(), signal.SIGKILL)


class Odd(Exception):
    """One that pickle writes and cannot read: it has other arguments than its text."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(str(number))


def fails_oddly(number: int) -> None:
    raise Odd(number, "odd")


def test_functions_are_called_by_few_workers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with Session(**KEYS) as session:
        found = list(session.map(where, range(3000), [1] * 3000))
        assert [number for _, number in found] == list(range(1, 3001))
        assert 1 <= len({pid for pid, _ in found}) <= 4 and os.getpid() not in {pid for pid, _ in found}
        results = session.map(fails_at, range(20), workers=2, chunksize=3)
        assert [next(results) for _ in range(7)] == [100 // (number - 7) for number in range(7)]
        with pytest.raises(ZeroDivisionError) as failed:
            next(results)
        assert "in fails_at" in str(failed.value.__cause__)
        assert list(session.map(ends_its_worker_once, range(12), workers=1, chunksize=4)) == list(range(12))
        assert (place / "ended").exists()
        with pytest.raises(JobFailed, match="SIGKILL"):
            list(session.map(ends_its_worker, [0]))
        with pytest.raises(TypeError, match="cannot be sent back"):
            list(session.map(open, ["tells"], workers=1))
        with pytest.raises(TypeError, match="an exception .Odd: 3. cannot be sent back"):
            list(session.map(fails_oddly, [3], workers=1))
        assert list(session.map(where, [])) == []
        assert not list((session.settings.directory / "maps").iterdir())


def test_functions_of_no_module(place: Path) -> None:
    def here(number: int) -> int:
        return 2 * number

    with Session(**KEYS) as session:
        try:
            import cloudpickle
            assert cloudpickle and list(session.map(here, range(3), workers=1)) == [0, 2, 4]
        except ImportError:
            with pytest.raises(ValueError, match="only with cloudpickle"):
                next(session.map(here, [1]))


def test_what_is_wrong_is_said_at_once(place: Path) -> None:
    with Session(**KEYS) as session:
        for wrong, match in (({"colour": 1}, "`colour` is not a field"), ({"tasks": 0}, "procs"),
                             ({"walltime": "soon"}, "run time"), ({"cores": "many"}, "cores"),
                             ({"array": "0-3"}, "`array` is not a field")):
            with pytest.raises((ValueError, LineError), match=match):
                session.submit("./tells", **wrong)
    with pytest.raises(TypeError, match="not both"):
        Session("vrm.yaml", Nodes=2)
    with pytest.raises(ConfigError):
        Session(Nods=2)
    with pytest.raises(SessionError, match="the manager did not start: .*"):
        Session(**{**KEYS, "Launcher": {"Kind": "direct", "Options": ["-x"]}})
