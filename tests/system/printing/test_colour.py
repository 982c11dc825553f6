"""Colours where a person looks, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vrm.system.printing.text import coloured, marked, wanted

TABLE = """+----+--------+-----------+
| Id | App    | Status    |
| 1  | failed | failed    |
| 2  | a.x    | cancelled |
| 3  | a.x    | completed |
+----+--------+-----------+
wrong  config        vrm.yaml: what failed
ok     nodes         n0"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_states_are_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    said = marked(TABLE, Terminal())
    assert re.sub(r"\x1b\[\d+m", "", said) == TABLE
    assert said.count("\x1b[31mfailed\x1b[0m") == 2 and "\x1b[31mwrong\x1b[0m  config" in said
    assert "\x1b[33mcancelled\x1b[0m" in said and "what failed" in said and "completed |" in said


@pytest.mark.parametrize("variable, value, out", [
    ("NO_COLOR", "1", Terminal()), ("TERM", "dumb", Terminal()), ("TERM", "xterm", io.StringIO())])
def test_nowhere_else(variable: str, value: str, out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    assert not wanted(out) and marked(TABLE, out) == TABLE and coloured("x", "red", out) == "x"


@pytest.mark.parametrize("more, colour", [({}, True), ({"NO_COLOR": "1"}, False)])
def test_vrm_check_on_a_terminal(tmp_path: Path, more: dict[str, str], colour: bool) -> None:
    (tmp_path / "vrm.yaml").write_text("Nodes: many\n")
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-m", "vrm.cli", "check"], cwd=tmp_path, stdout=theirs, stderr=theirs,
                       env={**env, "TERM": "xterm", **more}, check=False)
        said = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "wrong" in said and ("\x1b[31mwrong" in said) == colour, said
