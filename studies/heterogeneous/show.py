"""What came out: tables, claims, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Optional


def show(out: Path, real: Optional[str]) -> None:
    """Write them."""
