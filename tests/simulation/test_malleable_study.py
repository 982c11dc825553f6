"""The study of SD-policy runs with one command, goes on where it was, and writes its tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[2] / "studies" / "malleable" / "run.py"


@pytest.mark.slow
def test_the_study_goes_on_where_it_was_and_writes_its_tables(tmp_path: Path) -> None:
    command = [sys.executable, str(STUDY), "--out", str(tmp_path), "--quick"]
    done = [subprocess.run([*command, *more], capture_output=True, text=True, timeout=240, check=True).stdout
            for more in (["--only", "easy"], [])]
    assert done[0].count("s of CPU") == 1 and ": easy: slowdown" in done[0]
    assert ": easy: slowdown" not in done[1] and ": sd 10: slowdown" in done[1]
    tables = (tmp_path / "tables.md").read_text()
    assert "| sd dynamic |" in tables and "The repeated run has the same starts and ends." in tables
    assert len(list(tmp_path.glob("*.png"))) == 1
