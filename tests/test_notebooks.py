"""The notebooks of the documentation run, and print what they show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT, mpirun_environment

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells and not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    shown = "".join("".join(output["text"]) for cell in cells for output in cell["outputs"] if output["output_type"] == "stream")
    program = tmp_path / "cells.py"
    program.write_text("\n".join("".join(cell["source"]) for cell in cells))
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env={**mpirun_environment(), "MPLBACKEND": "agg"},
                          capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown
