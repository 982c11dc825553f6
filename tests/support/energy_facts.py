"""The published data of `studies/energy`, for tests."""

from __future__ import annotations

import runpy
from pathlib import Path

_FOUND = runpy.run_path(str(Path(__file__).resolve().parents[2] / "studies/energy/system_a.py"))
CLASSES, programs = _FOUND["CLASSES"], _FOUND["programs"]
