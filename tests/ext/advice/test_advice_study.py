"""studies/advice/run.py: two windows of a drawn workload, resumed, with its tables and picture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[3] / "studies" / "advice" / "run.py"


@pytest.mark.slow
def test_two_windows(tmp_path: Path) -> None:
    def study(*words: str) -> str:
        done = subprocess.run([sys.executable, str(STUDY), "--out", str(tmp_path), *words], text=True,
                              capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    words = ("--traces", "lublin:64:1600", "--members", "3", "--windows")
    assert "lublin-64-1600" in study(*words, "1")
    begun = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}
    told = study(*words, "2")
    assert all(file.stat().st_mtime_ns == time for file, time in begun.items()) and len(
        list(tmp_path.glob("*.json"))) > len(begun)
    assert "| lublin-64-1600 | makespan |" in told and "median error" in told
    assert (tmp_path / "advice.png").stat().st_size > 1000
    assert study("--show") in told
