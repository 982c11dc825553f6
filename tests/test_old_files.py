"""What version 0.1.0 wrote is read and continued: a run of it, whose journal is cut after each
record, with its queue, configuration, jobs.csv and state (`tests/data/0.1.0`).

The queue has a line that is not understood, which in 0.1.0 took no id, and jobs ran where vrm was
started, not where the queue file is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import warm
from conftest import mpirun_environment, wait_until

from vrm.config.schema import load
from vrm.report import tables
from vrm.results.jobs import read_jobs
from vrm.run.journal import files as journals
from vrm.run.journal.history import replay

DATA = Path(__file__).parent / "data" / "0.1.0"
RECORDS = (DATA / "journal").read_bytes().splitlines(keepends=True)

# How each job ends (9 is too large, 11 depends on 2), and what it finds as index and arguments.
STATUS = {0: "completed", 1: "failed", 2: "failed", 3: "completed", 4: "completed", 5: "completed",
          6: "completed", 7: "completed", 8: "completed", 9: "refused", 10: "timeout",
          11: "cancelled", 12: "completed"}
WORDS = {2: "- fail", 3: "0 part 0", 4: "1 part 1", 5: "2 part 2", 6: "3 part 3", 10: "- slow"}


def told(records: list[bytes]) -> tuple[dict[int, str], int]:
    """How jobs ended by these records, and how many tries of job 2 failed and were not its last."""
    found = [json.loads(record) for record in records]
    return ({record["id"]: record["state"] for record in found if record["event"] == "end"},
            sum(record["event"] == "again" for record in found))


@pytest.mark.parametrize("number", range(1, len(RECORDS) + 1))
def test_a_journal_is_read_up_to_any_record(number: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"".join(RECORDS[:number]) + (RECORDS[number][:9] if number < len(RECORDS)
                                                   else b""))
    past = replay(journals.read(path))
    ended, _ = told(RECORDS[:number])
    assert {job_id: end["state"] for job_id, end in past.ended.items()} == ended
    assert past.run == "58b9dfa1a22e"
    jobs = [json.loads(record) for record in RECORDS[:number] if b'"event":"job"' in record]
    assert len(past.jobs) == sum(4 if "array" in job else 1 for job in jobs)
    if 2 in past.jobs:
        assert past.details[2].retries == 1 and past.jobs[2].payload.arguments == ("fail",)
    if 4 in past.jobs:
        assert past.details[4].index == 1 and past.jobs[4].payload.own(1).arguments == ("part", "1")
    assert past.finished == (number == len(RECORDS))


def lay_out(folder: Path, number: int) -> Path:
    """The run as it was when its journal had so many records, with the start of another one."""
    (folder / "bin").mkdir(parents=True)
    (folder / "log").mkdir(mode=0o700)
    shutil.copy(DATA / "job", folder / "bin" / "job")
    (folder / "bin" / "job").chmod(0o755)
    for name in ("queue", "vrm.yaml"):
        shutil.copy(DATA / name, folder / name)
        (folder / name).chmod(0o644)
    inode = (folder / "queue").stat().st_ino
    lines = []
    for line in RECORDS[:number]:
        record = json.loads(line)
        if record.get("position"):
            record["position"][0] = inode
        lines.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    (folder / "log" / "journal").write_bytes(b"".join(lines) + b'{"event":"st')
    ended, _ = told(RECORDS[:number])
    header, *rows = (DATA / "jobs.csv").read_text().splitlines(keepends=True)
    (folder / "log" / "jobs.csv").write_text(
        header + "".join(row for row in rows if int(row.split(",")[0]) in ended))
    return folder / "vrm.yaml"


@pytest.mark.parametrize("number", [1, 3, 5, 8, 12, 13, 16, 18, 21, 24, 28, 31, 34, 35, 38])
@pytest.mark.slow
def test_a_run_is_continued_from_any_record(number: int, tmp_path: Path) -> None:
    config = lay_out(tmp_path / "run", number)
    ended, failures = told(RECORDS[:number])
    elsewhere = tmp_path / "started here"
    elsewhere.mkdir()

    with open(tmp_path / "said", "w") as said:
        manager = warm.Warm([*warm.VRM, "-c", config], cwd=elsewhere, env=mpirun_environment(), stdout=said,
                            stderr=said, stdin=subprocess.DEVNULL)
    try:
        if ended.get(8) is None and b'"event":"release"' not in b"".join(RECORDS[:number]):
            wait_until(lambda: manager.poll() is not None or warm.run(
                ["-c", config, "release", "8"], cwd=elsewhere, env=mpirun_environment()).returncode == 0,
                "job 8 is released")
        manager.wait(60)
    finally:
        manager.kill()
        manager.wait()
    found = {row.id: row.status for row in read_jobs(config.parent / "log" / "jobs.csv")}
    # Job 12 was submitted by a command, which came late.
    late = any(b'"id":12' in record for record in RECORDS[:number])
    wanted = {job_id: status for job_id, status in STATUS.items() if late or job_id != 12}
    if not any(b'"id":1,' in record for record in RECORDS[:number]):
        wanted[1] = "refused"  # a newer vrm knows when a line comes that `direct` cannot span nodes
    text = (tmp_path / "said").read_text()
    assert found == wanted, text
    ran = [line.split(" ") for line in (elsewhere / "ran").read_text().splitlines()]
    runs: dict[int, list[str]] = {}
    for job_id, index, *words in ran:
        where = " ".join(words).split(str(elsewhere))[1].split()
        runs.setdefault(int(job_id), []).append(" ".join([index, *where]))
    for job_id in wanted:
        again = runs.get(job_id, [])
        if job_id in ended or job_id in (1, 9, 11):  # 1 would span nodes, which `direct` cannot
            assert not again, (job_id, text)
        else:
            tries = 2 - failures if job_id == 2 else 1
            assert again == [WORDS.get(job_id, "-")] * tries, (job_id, text)


def test_its_state_is_shown() -> None:
    state: dict[str, Any] = json.loads((DATA / "state").read_text())
    assert "n0" in tables.state_table(state, state["time"])
    assert tables.queue_table(state, state["time"])
    assert tables.queue_json(state) is not None and tables.state_json(state) is not None


def test_its_records_are_read() -> None:
    rows = {row.id: row for row in read_jobs(DATA / "jobs.csv")}
    assert {job_id: row.status for job_id, row in rows.items()} == STATUS
    assert rows[1].cores == "n0:0/0;n1:0/1" and rows[2].exit_code == 3
    assert rows[10].reason == "ran longer than its estimate"


def test_its_configuration_is_read() -> None:
    settings = load(DATA / "vrm.yaml")
    assert settings.scheduling.algorithm == "WFP3" and settings.walltime == "kill"
