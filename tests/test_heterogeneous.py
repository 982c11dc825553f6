"""The study of schedulers, node orders and estimates on a small workload: it runs, goes on where it was, and
shows what came out."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[1] / "studies" / "heterogeneous" / "run.py"


def workload(path: Path, jobs: int) -> Path:
    """Jobs in the columns of the five days."""
    rng = random.Random(1)
    lines = ["submit,id,start,end,estimate,queue,requested_nodes,requested_cores,gpus,mics,mem_mib"]
    for number in range(jobs):
        submit, nodes, kind = number * 3, rng.choice((1, 1, 2, 8)), rng.choice(("gpu", "mic", "", ""))
        run = rng.randrange(60, 3000)
        lines.append(f"{submit},{number},{submit + 50},{submit + 50 + run},{rng.choice((1800, 3600))},"
                     f"{rng.choice(('debug', 'parallel'))},{nodes},{16 * nodes},{2 * nodes * (kind == 'gpu')},"
                     f"{nodes * (kind == 'mic')},{4096 * nodes}")
    path.write_text("\n".join(lines) + "\n")
    return path


def study(*words: object) -> str:
    return subprocess.run([sys.executable, STUDY, *map(str, words)], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


@pytest.mark.slow
def test_the_study_runs_goes_on_and_shows(tmp_path: Path) -> None:
    real, out = workload(tmp_path / "real.csv", 150), tmp_path / "out"
    assert "36 runs, 36 to do" in study("--out", out, "--real", real, "--schedulers", "SJF,PRB", "--limit", "0")
    said = study("--out", out, "--real", real, "--schedulers", "SJF,PRB")
    assert "[36/36] real.PRB.priority-weighted.actual: mean wait" in said and "36 runs; tables.md" in said
    before = (out / "tables.md").read_text()
    (out / "real.SJF.weighted.actual.npz").unlink()
    assert "36 runs, 1 to do" in study("--out", out, "--real", real, "--schedulers", "SJF,PRB")
    table = (out / "tables.md").read_text()
    assert [line for line in table.splitlines() if "CPU" not in line][:12] == [
        line for line in before.splitlines() if "CPU" not in line][:12]
    assert "mean wait 50 s" in table and "| SJF | requested |" in table
    assert all(f"**A{number}**" in (out / "claims.md").read_text() for number in range(1, 14))
    assert {path.name for path in out.glob("*.png")} >= {"real-wait.png", "real-slowdowns.png"}
