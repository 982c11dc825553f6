"""The studies of energy, on little: they run, and what they claim they check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).resolve().parents[1] / "studies" / "energy"


def study(name: str, *arguments: str) -> str:
    found = subprocess.run([sys.executable, str(STUDIES / name), *arguments], capture_output=True,
                           text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.slow
def test_eamc_and_its_baselines(tmp_path: Path) -> None:
    said = study("run.py", "--jobs", "60", "--seeds", "1", "--out", str(tmp_path))
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert "STREAM,1.2,1.2,30184,21914,1.330,1.2,1.2,1.2,1.2" in lines and len(lines) == 9
    results = [line.split(",") for line in (tmp_path / "results.csv").read_text().splitlines()[1:]]
    assert len(results) == 27
    energy = {tuple(line[:3]): float(line[6]) for line in results}
    for share in ("13", "33", "50"):
        assert energy[share, "priority-inc", "1"] < energy[share, "min-runtime", "1"]
        assert [line[8] for line in results if line[:2] == [share, "base"]] == ["100"]
    assert "50 %: energy priority-inc 1 < min-runtime" in said
    for name in ("results.png", "power.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


HEAD = ("submit,id,start,end,estimate,queue,requested_nodes,requested_cores,nodes,cores,gpus,mics,mem_mib,"
        "placed,watts\n")


@pytest.mark.slow
def test_a_machine_under_a_cap(tmp_path: Path) -> None:
    data = tmp_path / "jobs.csv"
    data.write_text(HEAD + "".join(
        f"{60 * at},{at},{60 * at + 9},{60 * at + 4009},7200,debug,1,8,1,8,{at % 2},0,1024,,"
        f"{40 + at if at % 3 else ''}\n" for at in range(120)))
    said = study("eurora.py", str(data), "--out", str(tmp_path / "out"))
    rows = [line.split(",") for line in (tmp_path / "out" / "eurora.csv").read_text().splitlines()[1:]]
    assert [row[0] for row in rows] == ["none", "80 %", "60 %", "50 %", "40 %", "night 80 % and day 50 %"]
    assert all(row[2] == "120" for row in rows[:5])
    caps = [float(row[1]) for row in rows[1:5]]
    assert all(float(row[7]) <= cap for row, cap in zip(rows[1:5], caps))
    waits = [float(row[3]) for row in rows[:5]]
    assert waits == sorted(waits) and waits[4] > waits[0]
    assert "120 jobs; " in said and (tmp_path / "out" / "eurora.png").exists()
