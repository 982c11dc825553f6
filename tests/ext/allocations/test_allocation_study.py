"""The study of `vrm plan`: on a small made-up trace, where the truth is known."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def study() -> Any:
    spec = importlib.util.spec_from_file_location("allocation_study", ROOT / "studies/allocations/run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["allocation_study"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Jobs of three users on 16 processors, each of which takes as long as it may."""
    draw = random.Random(7)
    lines = []
    for number in range(1, 401):
        run, procs = draw.choice([300, 600, 1800]), draw.choice([1, 1, 2, 4])
        lines.append(f"{number} {number * 150} 0 {run} {procs} -1 -1 {procs} {run} -1 1 {number % 3} -1 -1 -1 -1 -1 -1")
    path = tmp_path / "small.swf"
    path.write_text("; MaxProcs: 16\n" + "\n".join(lines) + "\n")
    return path


def test_moments_of_a_trace(study: Any, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                            capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run.py", "--trace", f"small={trace}", "--out", str(tmp_path / "out"), "--seeds", "1", "2", "--moments", "1"]
    monkeypatch.setattr(sys, "argv", words)
    assert study.main() == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "small.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and rows[0]["time"] != rows[1]["time"]
    for row in rows:
        assert 0 <= row["p10"] <= row["p50"] <= row["p90"] and row["best"] <= row["recommended"] < math.inf
        assert row["hours"] > 0 and row["single_hours"] <= row["hours"] + 1e-9
    assert "| small | 2 |" in capsys.readouterr().out
    assert study.main() == 0  # nothing is run again
    assert len((tmp_path / "out" / "small.jsonl").read_text().splitlines()) == 2


def test_the_truth_is_the_whole_trace_run_on(study: Any, trace: Path) -> None:
    """Without a request all jobs start as in a run of the trace alone."""
    from vrm.api import Machine, simulate
    from vrm.ext.forecast.replay import replay
    from vrm.model.rules import Rules

    there = study.Trace(str(trace), 3)
    frozen = next(there.moments(1))
    truth = there.truth(frozen)
    found = replay(frozen, truth._draws[0], truth.later_arrivals(0))
    alone = {row.id: row.start for row in simulate(there.jobs, Machine.of(16), Rules(policy="compact")).jobs}
    first = frozen.state.next_id + study.OURS
    starts = {there.jobs[job_id - first].job.id if job_id >= first else job_id: job.start for job_id, job in found.items()}
    assert len(starts) > 200 and starts == {job_id: alone[job_id] for job_id in starts}
    assert {job_id for job_id, start in alone.items() if start > frozen.now} <= starts.keys()
