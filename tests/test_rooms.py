"""What may import what: the rooms that decide know nothing of files, clocks and processes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Set

import pytest

import vrm

HOUSE = Path(vrm.__file__).parent
OUTSIDE = {"os", "time", "datetime", "subprocess", "socket", "signal", "shutil", "tempfile",
           "threading", "psutil", "yaml", "pathlib"}
"""What gives a clock, a file, an environment variable or a process."""


def imported(room: str) -> Set[str]:
    """The modules that the files of a room import, vrm's with what is taken of them."""
    names = set()
    for path in (HOUSE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names |= {f"{node.module}.{name.name}" for name in node.names}
    return names


def rooms(names: Set[str]) -> Set[str]:
    """The rooms (`vrm.model`) and the outside modules among what is imported."""
    return {".".join(name.split(".")[:2 if name.startswith("vrm.") else 1]) for name in names}


@pytest.mark.parametrize("room, may", [
    ("model", set()), ("system", set()), ("scheduling", {"vrm.model"}),
    ("workload", {"vrm.model", "vrm.system"}),
])
def test_a_room_imports_only_what_lies_below_it(room: str, may: Set[str]) -> None:
    vrms = {name for name in rooms(imported(room)) if name.startswith("vrm.")}
    assert imported(room) and vrms <= {*may, f"vrm.{room}"}


@pytest.mark.parametrize("room", ["model", "scheduling"])
def test_who_decides_has_no_clock_and_no_files(room: str) -> None:
    assert not rooms(imported(room)) & OUTSIDE


@pytest.mark.slow
def test_who_runs_and_who_simulates_know_nothing_of_each_other() -> None:
    assert "vrm.simulation" not in rooms(imported("live"))
    assert "vrm.live" not in rooms(imported("simulation"))


@pytest.mark.parametrize("room, may", [
    ("live", {"jobs"}), ("simulation", {"jobs", "metrics", "names", "state", "summary", "validation"})])
@pytest.mark.slow
def test_of_reports_they_know_the_records_alone(room: str, may: Set[str]) -> None:
    """The lines of `jobs.csv` and the definitions of what is told of them are for all."""
    assert {name.split(".")[2] for name in imported(room) if name.startswith("vrm.report.")} == may
