"""Checks whether the shim of lending can be built here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


HERE = Path(__file__).parents[1] / "ext" / "lending"


def can_build(compiler: str, folder: Path) -> bool:
    """Return whether this compiler is installed with OpenMP."""
    if not shutil.which(compiler):
        return False
    (folder / "a.c").write_text("#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n")
    return not subprocess.run([compiler, "-fopenmp", "a.c", "-o", "a"], cwd=folder, capture_output=True).returncode
