"""Simulations on machines whose nodes differ, of workloads that ask for more than cores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vrm.cli import main
from vrm.api import Machine, Rules, simulate

DATA = Path(__file__).parents[1] / "ext" / "formats" / "data"


def test_the_memory_of_a_trace_counts_where_the_machine_has_some(tmp_path: Path) -> None:
    rows = ["1 0 -1 10 2 -1 -1 2 10 1048576 1 1 1 1 3 -1 -1 -1",
            "2 0 -1 10 1 -1 -1 1 10 -1 1 1 1 1 -1 -1 -1 -1",
            "3 0 -1 10 1 -1 -1 1 10 9999999 1 1 1 1 3 -1 -1 -1"]
    path = tmp_path / "t.swf"
    path.write_text("; MaxProcs: 4\n" + "\n".join(rows) + "\n")
    machine = tmp_path / "m.yaml"
    machine.write_text("Classes: [{Count: 2, Cores: 2, Memory: 2G}]")
    outcome = simulate(path, rules=Rules(policy="pack"), machine=str(machine))
    assert outcome.summary["completed"] == 2 and outcome.summary["refused"] == 1
    assert simulate(path, Machine.of(2, cores=2), Rules(policy="pack")).summary["completed"] == 3


def test_the_log_of_a_site_runs_on_its_machine(tmp_path: Path) -> None:
    machine = tmp_path / "my.yaml"
    machine.write_text("""Classes:
  - {Name: cpu, Count: 4, Sockets: 2, Cores: 16, Memory: 128G}
  - {Name: gpu, Count: 1, Sockets: 2, Cores: 8, Memory: 64G, Resources: {gpu: 2}, Features: [ib, ssd]}
""")
    log = tmp_path / "sacct.txt"
    shutil.copy(DATA / "sacct.txt", log)
    outcome = simulate(log, rules=Rules(policy="pack", backfill="easy"), machine=str(machine))
    summary = outcome.summary
    assert summary["completed"] == 5 and summary["refused"] == 1  # nobody has said ansys
    assert "ansys" in next(iter(summary["refusals"])) and "`ib` not wanted" not in str(outcome.dirt)
    machine.write_text(machine.read_text() + "Licences: {ansys: 2}\n")
    again = simulate(log, rules=Rules(policy="pack", backfill="easy"), machine=str(machine)).summary
    assert again["completed"] == 6
    assert again["recorded"] == {"jobs": 6, "average_wait": pytest.approx((10 + 1800 + 0 + 0 + 300 + 0) / 6)}


def test_what_the_machine_file_does_not_say_is_passed_over_and_counted(tmp_path: Path) -> None:
    machine = tmp_path / "my.yaml"
    machine.write_text("Classes: [{Count: 4, Sockets: 2, Cores: 16, Resources: {gpu: 2}}]\nLicences: {ansys: 2}\n")
    outcome = simulate(DATA / "sacct.txt", rules=Rules(policy="pack"), machine=str(machine))
    assert outcome.summary["completed"] == 6
    assert outcome.dirt["`ib` not wanted: no node of the machine offers it"] == 1
    assert not any("memory" in reason for reason in outcome.dirt)
    mics = simulate(DATA / "pbs.log", rules=Rules(policy="compact"), machine=str(machine))
    assert mics.dirt["`mic` not counted: no node of the machine has some"] == 1
    assert mics.summary["completed"] == 4


def test_licences_of_a_configuration_count_in_simulations(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "queue").write_text("a 1 10 0 licences=ansys:1\n" * 3)
    config = tmp_path / "vrm.yaml"
    config.write_text("Licences: {ansys: 1}\nNodes: 2\nSockets: 1\nCores: 4\nAllocation: {Policy: pack}\n")
    assert main(["simulate", str(tmp_path / "queue"), "-c", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["completed"] == 3 and found["makespan"] == 30
