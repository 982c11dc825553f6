"""The study of SD-policy runs with one command, goes on where it was, and writes its tables."""

from __future__ import annotations

import json
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


def test_a_trace_that_does_not_say_its_machine_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "bare.swf"
    trace.write_text("".join(f"{at} {at} 0 60 8 -1 -1 8 90 -1 1 1 1 1 1 1 -1 -1\n" for at in range(1, 9)))
    command = [sys.executable, str(STUDY), "--out", str(tmp_path / "out"), "--jobs", "0", "--only", "/easy",
               "--trace", f"{trace}@4"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2 and "give --processors P, those of that machine" in refused.stderr
    assert f"{trace}: the workload does not say how large the machine is" in refused.stderr
    said = subprocess.run([*command, "--processors", "32"], capture_output=True, text=True, timeout=120, check=True)
    rows = json.loads((tmp_path / "out" / "bare-4-1-8" / "easy.json").read_text())["rows"]
    assert "easy: slowdown" in said.stdout and [row[1] for row in rows] == [1] * 8  # 8 of 32 processors: 1 of 4 nodes


@pytest.mark.parametrize("name, option", [("forecast/run.py", "--trace=a={}"), ("forecast/snapshots.py", "--trace={}"),
                                          ("advice/run.py", "--traces={}")])
def test_other_studies_refuse_it_too(tmp_path: Path, name: str, option: str) -> None:
    trace = tmp_path / "bare.swf"
    trace.write_text("1 1 0 60 8 -1 -1 8 90 -1 1 1 1 1 1 1 -1 -1\n")
    out = [] if "snapshots" in name else ["--out", str(tmp_path / "out")]
    refused = subprocess.run([sys.executable, str(STUDY.parents[1] / name), *out, option.format(trace)],
                             capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2 and "`; MaxProcs: N`); put that line in front" in refused.stderr
    assert "Traceback" not in refused.stderr
